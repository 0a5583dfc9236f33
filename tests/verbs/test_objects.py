"""Devices, domains, regions, queue pair states, and owners of objects; nothing is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from resident import give_back
from transport import rounds
from verbs_ends import (
    ALL,
    INIT,
    RTR,
    RTS,
    End,
    completions,
    connect,
    connect_pair,
    connected,
    device,
    give,
    raw_initiator,
    ready,
    statuses,
    stream_pair,
    until,
)

from rmemcached.verbs import (
    CQ,
    MR,
    PD,
    QP,
    Access,
    CompChannel,
    Context,
    Opcode,
    SendWR,
    State,
    Status,
    VerbsError,
    devices,
    status_text,
)


@pytest.mark.soft("what a device has is its own affair")
def test_the_device() -> None:
    assert devices() == ["soft_iw0", "soft_shm0"]
    with Context(device()) as context:
        limits = context.query_device()
        kind = (1, 4) if device() == "soft_iw0" else (0, 1)  # an RNIC, or an adapter of RoCE
        assert (limits["transport_type"], limits["node_type"]) == kind
        assert limits["max_sge"] >= 8 and limits["max_qp_rd_atom"] == 128 and limits["phys_port_cnt"] == 1
        assert limits["max_srq_wr"] >= 16384 and limits["max_pkeys"] == 1
        port = context.query_port()
        assert port["state"] == 4 and port["max_msg_sz"] == 2**31 and port["gid_tbl_len"] == 1
        assert context.query_gid() == bytes(10) + b"\xff\xff\x7f\x00\x00\x01"


def test_what_a_device_has_not() -> None:
    with Context(device()) as context:
        ports, gids = context.query_device()["phys_port_cnt"], context.query_port()["gid_tbl_len"]
        with pytest.raises(VerbsError):
            context.query_port(ports + 1)
        with pytest.raises(VerbsError):
            context.query_gid(1, gids)
    with pytest.raises(VerbsError, match="no such device: none0"):
        Context("none0")
    with pytest.raises(ValueError):
        devices("none")


def test_status_texts() -> None:
    texts = [status_text(status) for status in Status]
    assert len(set(texts)) == len(texts) and all(texts)
    assert status_text(99) == "unknown"


@pytest.mark.soft("the choice of keys, and what a region may be, is a device's affair")
def test_registration() -> None:
    with Context(device()) as context:
        pd = PD(context)
        buffer = bytearray(1000)
        regions = [MR(pd, buffer, ALL) for _ in range(1000)]
        keys = {mr.rkey for mr in regions}
        # The keys vary in all 32 bits, and are all different.
        assert len(keys) == 1000 and all(mr.lkey == mr.rkey for mr in regions)
        assert len({key >> 24 for key in keys}) > 200 and len({key & 255 for key in keys}) > 200
        with pytest.raises(BufferError):
            buffer.append(0)
        for mr in regions:
            mr.close()
            mr.close()
        buffer.append(0)
        again = {MR(pd, buffer, ALL).rkey for _ in range(1000)}
        # In a million pairs of keys two pairs may be equal, once in 4000 runs.
        assert len(keys & again) < 3
        empty = MR(pd, bytearray(), ALL)
        assert empty.length == 0
        constant = MR(pd, b"constant", Access.REMOTE_READ)
        assert constant.sge(2, 3)[1] == 3
        for offset, length in ((0, 9), (-1, 2), (8, 1), (0, -1)):
            with pytest.raises(ValueError):
                constant.sge(offset, length)
        with pytest.raises(BufferError):
            MR(pd, b"constant", ALL)
        for access, error in ((Access.REMOTE_WRITE, 22), (Access.REMOTE_ATOMIC | Access.LOCAL_WRITE, 95)):
            with pytest.raises(VerbsError) as caught:
                MR(pd, bytes(8) if access == Access.REMOTE_WRITE else bytearray(8), access)
            assert caught.value.errno == error
        assert MR(pd, bytearray(8), ALL | Access.RELAXED_ORDERING).length == 8


def test_busy_objects_cannot_go() -> None:
    """An object with children closes them first, where libibverbs answers EBUSY."""
    with Context(device()) as context:
        pd, cq = PD(context), CQ(context)
        mr, qp = MR(pd, bytearray(8)), QP(pd, cq)
        pd.close()
        for closed in (lambda: mr.rkey, lambda: qp.qp_num, lambda: MR(pd, bytearray(8))):
            with pytest.raises(ValueError):
                closed()
        cq.close()
        cq.close()
    context.close()
    with pytest.raises(ValueError):
        PD(context)


def test_garbage_collection_closes() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        a, b = connected()
        del a, b
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_queue_pair_limits() -> None:
    with Context(device()) as context:
        pd, cq = PD(context), CQ(context, 100)
        assert cq.cqe >= 100
        numbers = {QP(pd, cq).qp_num for _ in range(100)}
        assert all(0 < number < 1 << 24 for number in numbers)
        limits = context.query_device()
        too_much: tuple[dict[str, Any], ...] = (
            {"max_send_wr": limits["max_qp_wr"] + 1},
            {"max_recv_wr": limits["max_qp_wr"] + 1},
            {"max_send_sge": 1000},
            {"max_recv_sge": 1000},
            {"max_inline_data": 1 << 20},
        )
        for options in too_much:
            with pytest.raises(VerbsError) as caught:
                QP(pd, cq, **options)
            assert caught.value.errno == 22
        with Context(device()) as other, pytest.raises(VerbsError):
            QP(PD(other), cq)
        for cqe in (0, -1, 1 << 30):
            with pytest.raises(VerbsError):
                CQ(context, cqe)


@pytest.mark.soft("RTR and RTS without a peer")
def test_state_transitions_check_their_attributes() -> None:
    def refused(qp: QP, state: State, **attributes: object) -> None:
        before = qp.state
        with pytest.raises(VerbsError) as caught:
            qp.modify(state, **attributes)
        assert caught.value.errno == 22
        assert qp.state == before

    with Context(device()) as context:
        pd, cq = PD(context), CQ(context)
        qp = QP(pd, cq)
        assert qp.state == State.RESET
        for attributes, state, following in (
            (INIT, State.INIT, State.RTR),
            (RTR, State.RTR, State.RTS),
            (RTS, State.RTS, State.INIT),
        ):
            for missing in attributes:
                refused(qp, state, **{name: value for name, value in attributes.items() if name != missing})
            refused(qp, state, **attributes, cur_qp_state=State.SQE)
            refused(qp, following, **attributes)
            if state != State.RTS:
                refused(qp, state, **attributes, retry_cnt=1)
            qp.modify(state, **attributes)
            assert qp.state == state
        refused(qp, State.RTR, **RTR)
        assert qp.query()["max_rd_atomic"] == 4 and qp.query()["dest_qp_num"] == 7
        qp.modify(State.RTS, qp_access_flags=ALL, cur_qp_state=State.RTS)
        assert qp.query()["qp_access_flags"] == ALL
        qp.modify(State.ERR)
        refused(qp, State.RTS, **RTS)
        qp.modify(State.RESET)
        refused(qp, State.INIT, **{**INIT, "port_num": 2})
        refused(qp, State.INIT, **{**INIT, "pkey_index": 1})
        qp.modify(State.INIT, **INIT)
        refused(qp, State.RTR, **{**RTR, "max_dest_rd_atomic": 129})


@pytest.mark.soft("queue pairs of libibverbs have no stream")
def test_a_stream_needs_a_queue_pair_that_is_ready_and_without_one() -> None:
    with End() as a, End() as b:
        ours, theirs = stream_pair()
        a.qp.modify(State.RESET)
        with pytest.raises(VerbsError) as caught:
            give(a.qp, ours, initiator=True)
        assert caught.value.errno == 22 and ours.fileno() >= 0
        ready(a.qp)
        connect(a, b)
        with pytest.raises(VerbsError) as caught:
            give(a.qp, ours, initiator=True)
        assert caught.value.errno == 106 and ours.fileno() >= 0
        # After RESET the queue pair starts anew.
        for end in (a, b):
            end.qp.modify(State.ERR)
            end.qp.modify(State.RESET)
            ready(end.qp)
        connect(a, b)
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR())
        assert statuses(completions(b, 1, a)) == [Status.SUCCESS]
        ours.close()
        theirs.close()


@pytest.mark.soft("Soft-RoCE does not take up what was posted in SQD")
def test_send_queue_drain() -> None:
    with connected() as (a, b):
        b.qp.post_recv((1, []), (2, []))
        a.qp.post_send(SendWR(wr_id=1))
        completions(b, 1, a)
        a.qp.modify(State.SQD)
        a.qp.post_send(SendWR(wr_id=2))
        for _ in range(50):
            assert a.poll() in ([], a.done) and b.poll() == []
        a.qp.modify(State.RTS)
        assert [wc.wr_id for wc in completions(b, 1, a)] == [2]


@pytest.mark.soft("Soft-RoCE keeps them")
def test_destroying_a_queue_pair_drops_its_completions() -> None:
    with connected() as (a, _):
        other = QP(a.pd, a.cq)
        ready(other, 0)
        a.qp.post_recv(*((i, []) for i in range(5)))
        other.post_recv((9, []), (10, []))
        for qp in (a.qp, other):
            qp.modify(State.ERR)
        a.qp.close()
        assert [wc.wr_id for wc in a.cq.poll()] == [9, 10]


def resident() -> int:
    give_back()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.resident
@pytest.mark.parametrize("crc", [False, True])
def test_a_thousand_connections_leave_nothing(crc: bool) -> None:
    with End(1 << 16) as a, End(1 << 16) as b:
        a.qp.close()
        b.qp.close()

        def one() -> None:
            for end in (a, b):
                end.qp = QP(end.pd, end.cq)
                ready(end.qp)
                end.done.clear()
            connect(a, b, crc=crc)
            b.qp.post_recv((1, [b.mr.sge(0, 10)]), (2, []))
            a.qp.post_send(
                SendWR(Opcode.SEND, [a.mr.sge(0, 10)]),
                SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 1 << 16)], remote_addr=b.mr.addr, rkey=b.mr.rkey),
            )
            completions(a, 2, b)
            a.qp.close()
            b.qp.close()

        for _ in range(rounds(100)):
            one()
        descriptors, memory = len(os.listdir("/proc/self/fd")), resident()
        for _ in range(rounds(1000)):
            one()
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert resident() - memory < 4 << 20


@pytest.mark.resident
def test_whole_endpoints_leave_nothing() -> None:
    def one() -> None:
        a, b = connected(4096)
        b.qp.post_recv((1, [b.mr.sge(0, 10)]))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 10)]))
        completions(b, 1, a)
        a.close()
        b.close()

    for _ in range(rounds(50)):
        one()
    descriptors, memory = len(os.listdir("/proc/self/fd")), resident()
    for _ in range(rounds(300)):
        one()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert resident() - memory < 4 << 20


@pytest.mark.soft("the memory of a device's queues is its own affair")
@pytest.mark.resident
def test_idle_queue_pairs_are_small() -> None:
    """A connected idle queue pair takes less than 24 KB of this process; its descriptors are the kernel's."""
    with End() as a, End() as b:
        count = 200

        def more() -> None:
            pair = QP(a.pd, a.cq, max_send_wr=32, max_recv_wr=32), QP(b.pd, b.cq, max_send_wr=32, max_recv_wr=32)
            for qp in pair:
                ready(qp)
            connect_pair(*pair)
            a.poll()
            b.poll()

        for _ in range(20):
            more()
        before = resident()
        for _ in range(count):
            more()
        assert (resident() - before) / (2 * count) < 24 << 10


def test_deregistration_while_the_peer_writes() -> None:
    """After dereg_mr returns no octet changes any more, whichever thread makes progress."""
    size = 1 << 20
    for crc in (False, True):
        with End(size) as a, End(64) as b:
            connect(a, b, crc=crc)
            a.buffer[:] = b"\x01" * size
            target = bytearray(size)
            mr = MR(b.pd, target, ALL)
            wr = SendWR(Opcode.RDMA_WRITE, [a.mr.sge()], remote_addr=mr.addr, rkey=mr.rkey, flags=0)
            a.qp.post_send(*[wr] * 32)
            stop = threading.Event()

            def progress(stop: threading.Event = stop, a: End = a, b: End = b) -> None:
                while not stop.is_set():
                    a.cq.poll()
                    b.cq.poll()

            thread = threading.Thread(target=progress)
            thread.start()
            until(lambda target=target: target[-1] == 1)  # type: ignore[misc]
            mr.close()
            target[:] = bytes(size)
            # The WRITE may have placed all octets already: the next is refused.
            a.qp.post_send(wr)
            try:
                until(lambda b=b: b.qp.state == State.ERR)  # type: ignore[misc]
            finally:
                stop.set()
                thread.join()
            assert target == bytes(size)


def test_threads_share_everything() -> None:
    """Four threads post on one queue pair and register memory while two others poll."""
    with connected(1 << 16, max_send_wr=512, cqe=8192) as (a, b):
        count, workers = rounds(300), 4
        failures: list[BaseException] = []
        finished = threading.Event()
        free = threading.Semaphore(256)
        done = []

        def work(seed: int) -> None:
            try:
                for i in range(count):
                    mr = MR(a.pd, bytearray(64), ALL)
                    free.acquire()
                    a.qp.post_send(
                        SendWR(
                            Opcode.RDMA_READ, [a.mr.sge(64 * seed, 64)], remote_addr=b.mr.addr, rkey=b.mr.rkey, wr_id=i
                        )
                    )
                    mr.close()
            except BaseException as error:
                failures.append(error)

        def poll(end: End) -> None:
            while not finished.is_set():
                for wc in end.cq.poll():
                    done.append(wc.status)
                    free.release()

        pollers = [threading.Thread(target=poll, args=(end,)) for end in (a, b, a)]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
        for thread in pollers + threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        while len(done) < count * workers and not failures:
            assert a.qp.state == State.RTS
        finished.set()
        for thread in pollers:
            thread.join(10)
        assert not failures
        assert done == [Status.SUCCESS] * (count * workers)


def test_importing_opens_nothing() -> None:
    script = "import os; n = len(os.listdir('/proc/self/fd')); import rmemcached.verbs; "
    script += "assert len(os.listdir('/proc/self/fd')) == n; assert len(os.listdir('/proc/self/task')) == 1"
    subprocess.run([sys.executable, "-P", "-c", script], check=True, cwd=Path(__file__).parent.parent.parent)


@pytest.mark.once
def test_close_with_unread_octets_and_a_deaf_peer() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        peer.sock.send(b"\x00")
        channel = CompChannel(end.context)
        assert channel.fileno() >= 0
        end.qp.close()
        assert peer.recv(1) == b""

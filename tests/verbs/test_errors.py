"""Failing requests between two queue pairs: each has its status, and fails only on its queue pair."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from verbs_ends import (
    ALL,
    PATHS,
    End,
    completions,
    connect,
    connect_pair,
    connected,
    faults,
    give,
    ready,
    statuses,
    stream_pair,
    streams,
    until,
)

from rmemcached.verbs import MR, PD, QP, Access, Opcode, SendFlag, SendWR, State, Status, VerbsError

LOCAL = Access.LOCAL_WRITE
RETRIES = "what ends it are the device's retries, which take seconds: the daemon's are in tests/lab/crossing.py"


def flushed(end: End, *wr_ids: int) -> None:
    found = completions(end, len(wr_ids))
    assert [(wc.wr_id, wc.status) for wc in found] == [(wr_id, Status.WR_FLUSH_ERR) for wr_id in wr_ids]


def remote_cases() -> dict[str, object]:
    return {
        "unknown key": lambda b: (b.mr.addr, b.mr.rkey ^ 0x5A5A),
        "out of bounds": lambda b: (b.mr.addr + len(b.buffer) - 7, b.mr.rkey),
        "before the start": lambda b: (b.mr.addr - 1, b.mr.rkey),
        "end of memory": lambda b: (2**64 - 4, b.mr.rkey),
        "another domain": lambda b: region(b, PD(b.context), ALL),
        "no right": lambda b: region(b, b.pd, LOCAL),
        "deregistered": lambda b: gone(b),
    }


def region(end: End, pd: PD, access: int) -> tuple[int, int]:
    end.extra = MR(pd, bytearray(b"secret data"), access)  # type: ignore[attr-defined]
    return end.extra.addr, end.extra.rkey  # type: ignore[attr-defined]


def gone(end: End) -> tuple[int, int]:
    mr = MR(end.pd, bytearray(100), ALL)
    name = mr.addr, mr.rkey
    mr.close()
    return name


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("what", remote_cases())
def test_read_of_what_is_not_exposed(what: str, crc: bool) -> None:
    with connected(crc=crc) as (a, b):
        addr, rkey = remote_cases()[what](b)  # type: ignore[operator]
        a.buffer[:16] = b"u" * 16
        a.qp.post_recv((7, []))
        b.qp.post_recv((8, []))
        a.qp.post_send(
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=1, remote_addr=addr, rkey=rkey),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(8, 8)], wr_id=2, remote_addr=b.mr.addr, rkey=b.mr.rkey),
        )
        found = {wc.wr_id: wc.status for wc in completions(a, 3, b)}
        assert found == {1: Status.REM_ACCESS_ERR, 2: Status.WR_FLUSH_ERR, 7: Status.WR_FLUSH_ERR}
        flushed(b, 8)
        assert a.qp.state == b.qp.state == State.ERR
        assert a.buffer[:16] == b"u" * 16


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("size", [8, 200_000])
@pytest.mark.parametrize("what", remote_cases())
def test_write_to_what_is_not_exposed(what: str, size: int, crc: bool) -> None:
    """A WRITE completes when it is on its way; the status of a READ behind it shows the failure."""
    with End(1 << 18) as a, End(100) as b:
        connect(a, b, crc=crc)
        addr, rkey = remote_cases()[what](b)  # type: ignore[operator]
        before = bytes(b.buffer)
        b.qp.post_recv((8, []))
        a.qp.post_send(
            SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, size)], wr_id=1, flags=0, remote_addr=addr, rkey=rkey),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=2, remote_addr=b.mr.addr, rkey=b.mr.rkey),
        )
        assert completions(a, 1, b)[-1].status in (Status.WR_FLUSH_ERR, Status.REM_ACCESS_ERR)
        flushed(b, 8)
        assert b.buffer == before
        if "extra" in vars(b):
            assert b.qp.state == State.ERR


def test_queue_pair_without_remote_access() -> None:
    """A request needs the rights of the queue pair as well as of the region."""
    for opcode, qp_access in (
        (Opcode.RDMA_READ, LOCAL | Access.REMOTE_WRITE),
        (Opcode.RDMA_WRITE, LOCAL | Access.REMOTE_READ),
    ):
        with End() as a, End(qp_access=qp_access) as b:
            connect(a, b)
            b.qp.post_recv((8, []))
            a.qp.post_send(SendWR(opcode, [a.mr.sge(0, 8)], wr_id=1, remote_addr=b.mr.addr, rkey=b.mr.rkey))
            completions(a, 1, b)
            flushed(b, 8)


def local_cases() -> dict[str, object]:
    return {
        "unknown key": lambda e: (e.mr.addr, 8, e.mr.lkey ^ 0x77),
        "out of bounds": lambda e: (e.mr.addr + len(e.buffer) - 7, 8, e.mr.lkey),
        "before the start": lambda e: (e.mr.addr - 1, 8, e.mr.lkey),
        "end of memory": lambda e: (2**64 - 4, 8, e.mr.lkey),
        "another domain": lambda e: (region(e, PD(e.context), ALL)[0], 8, region(e, PD(e.context), ALL)[1]),
    }


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RDMA_READ])
@pytest.mark.parametrize("what", local_cases())
def test_local_protection_of_sends(what: str, opcode: Opcode) -> None:
    with connected() as (a, b):
        b.qp.post_recv((8, [b.mr.sge(0, 100)]), (9, []))
        a.qp.post_recv((7, []))
        sge = local_cases()[what](a)  # type: ignore[operator]
        a.qp.post_send(
            SendWR(Opcode.SEND, [a.mr.sge(0, 5)], wr_id=1),
            SendWR(opcode, [a.mr.sge(0, 8), sge], wr_id=2, remote_addr=b.mr.addr, rkey=b.mr.rkey),
            SendWR(Opcode.SEND, [a.mr.sge(0, 5)], wr_id=3),
        )
        found = {wc.wr_id: wc.status for wc in completions(a, 4, b)}
        assert found.pop(2) in faults(Status.LOC_PROT_ERR)
        assert found == {1: Status.SUCCESS, 3: Status.WR_FLUSH_ERR, 7: Status.WR_FLUSH_ERR}
        expected_there = [Status.SUCCESS, Status.WR_FLUSH_ERR] if streams() else [Status.SUCCESS]
        assert statuses(completions(b, len(expected_there))) == expected_there


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("size", [8, 60_000])
@pytest.mark.parametrize("what", [*local_cases(), "read only"])
def test_local_protection_of_receives(what: str, size: int, crc: bool) -> None:
    with connected(crc=crc) as (a, b):
        if what == "read only":
            mr = MR(b.pd, bytes(70_000), 0)
            sge = mr.sge(0, size)
        else:
            addr, _, key = local_cases()[what](b)  # type: ignore[operator]
            sge = addr, size, key
        b.qp.post_recv((8, [sge]), (9, []))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, size)], wr_id=1))
        first, second = completions(b, 2, a)
        assert first.status in faults(Status.LOC_PROT_ERR) and second.status == Status.WR_FLUSH_ERR
        until(lambda: a.qp.state == State.ERR, a)


def test_a_read_needs_a_writable_sink() -> None:
    with connected() as (a, b):
        mr = MR(a.pd, b"constant", 0)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [mr.sge()], remote_addr=b.mr.addr, rkey=b.mr.rkey))
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]


@pytest.mark.soft("a device that works by itself has carried the READ out by then")
def test_the_sink_of_a_read_goes_away() -> None:
    with connected() as (a, b):
        sink = bytearray(1 << 16)
        mr = MR(a.pd, sink, LOCAL)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [mr.sge()], remote_addr=b.mr.addr, rkey=b.mr.rkey))
        b.buffer[:] = b"x" * len(b.buffer)
        mr.close()
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
        assert sink == bytes(1 << 16)


@pytest.mark.soft(RETRIES)
def test_the_source_of_a_read_goes_away_midway() -> None:
    """A READ fails when its source is deregistered midway: no octet is taken from the source afterwards."""
    for crc in (False, True):
        size = 32 << 20
        with End(size) as a, End(100) as b:
            connect(a, b, crc=crc)
            source = bytearray(b"x" * size)
            mr = MR(b.pd, source, ALL)
            a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge()], remote_addr=mr.addr, rkey=mr.rkey))
            until(lambda: a.buffer[0] == ord("x"), a, b)
            mr.close()
            source[:] = b"s" * size
            assert completions(a, 1, b)[0].status != Status.SUCCESS
            assert b"s" not in a.buffer


@pytest.mark.soft("libibverbs refuses requests before the queue pair has its peer")
def test_the_source_of_a_send_goes_away_before_it_is_sent() -> None:
    with End() as a, End() as b:
        mr = MR(a.pd, bytearray(100), LOCAL)
        a.qp.post_send(SendWR(Opcode.SEND, [mr.sge()], wr_id=1))
        mr.close()
        b.qp.post_recv((8, [b.mr.sge()]))
        connect(a, b)
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
        flushed(b, 8)


@pytest.mark.soft("InfiniBand's sender tries again until a receive is posted: test_system.py")
def test_no_receive_posted() -> None:
    with connected() as (a, b):
        a.qp.post_recv((7, []))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], wr_id=1))
        found = {wc.wr_id: wc.status for wc in completions(a, 2, b)}
        # The SEND is complete once TCP has the octets.
        assert found == {1: Status.SUCCESS, 7: Status.WR_FLUSH_ERR}
        assert b.qp.state == State.ERR
        assert b.qp.counters()["terminates_sent"] == 1
        assert a.qp.counters()["terminates_received"] == 1


@pytest.mark.parametrize("size", [101, 65_000, 1 << 20])
@pytest.mark.parametrize("crc", [False, True])
def test_message_longer_than_the_receive(size: int, crc: bool) -> None:
    with connected(1 << 20, crc=crc) as (a, b):
        a.qp.post_recv((7, []))
        limit = size - 1 if size <= 65_000 else 70_000
        b.buffer[limit:] = b"u" * (len(b.buffer) - limit)
        b.qp.post_recv((8, [b.mr.sge(0, limit)]), (9, [b.mr.sge(0, 100)]))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, size)], wr_id=1))
        first, second = completions(b, 2, a)
        assert first.status in faults(Status.LOC_LEN_ERR) and second.status == Status.WR_FLUSH_ERR
        until(lambda: a.qp.state == State.ERR, a)
        assert b.buffer[limit:] == b"u" * (len(b.buffer) - limit)


@pytest.mark.soft("what becomes of a READ without ORD is the device's affair")
def test_a_peer_without_reads() -> None:
    with End(ord=0) as a, End() as b:
        connect(a, b)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=b.mr.addr, rkey=b.mr.rkey))
        assert statuses(completions(a, 1, b)) == [Status.LOC_QP_OP_ERR]


@pytest.mark.soft("how an overrun queue answers to poll_cq is the device's affair")
def test_completion_queue_overrun() -> None:
    """Completions without room are lost, the queue reports the loss, and the queue pair is in error."""
    with End(cqe=4, max_send_wr=16) as a, End() as b:
        b.qp.post_recv(*((i, []) for i in range(8)))
        connect(a, b)
        a.qp.post_send(*(SendWR(wr_id=i) for i in range(8)))
        # get_event makes progress, and takes no completions.
        os.set_blocking(a.channel.fileno(), False)  # type: ignore[union-attr]
        until(lambda: a.channel.get_event() or a.qp.state == State.ERR, b)  # type: ignore[union-attr]
        found = []
        with pytest.raises(VerbsError) as caught:
            for _ in range(10):
                found += a.cq.poll()
        assert caught.value.errno == 75
        assert [wc.wr_id for wc in found] == [0, 1, 2, 3]
        assert a.qp.state == State.ERR


def test_errors_as_exceptions() -> None:
    with End() as a:
        a.qp.modify(State.ERR)
        a.qp.post_send(SendWR(wr_id=5))
        (wc,) = completions(a, 1)
        with pytest.raises(VerbsError, match="work request 5: WR_FLUSH_ERR") as caught:
            wc.check()
        assert caught.value.status == Status.WR_FLUSH_ERR
        assert isinstance(caught.value, OSError)


def test_the_other_queue_pairs_go_on() -> None:
    """Of several queue pairs on one CQ and one channel each failing pair leaves the others working."""
    with End() as a, End() as b:
        ends = []
        for _ in range(5):
            pair = QP(a.pd, a.cq), QP(b.pd, b.cq)
            for qp in pair:
                ready(qp)
            connect_pair(*pair)
            ends.append(pair)
        for round_ in range(5):
            for i, (sender, receiver) in enumerate(ends):
                if i < round_:
                    continue
                receiver.post_recv((i, [b.mr.sge(0, 8)]))
                sender.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], wr_id=i))
            found = completions(b, 5 - round_, a) + completions(a, 5 - round_, b)
            assert set(statuses(found)) == {Status.SUCCESS}
            sender, receiver = ends[round_]
            sender.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=1, rkey=2))
            assert statuses(completions(a, 1, b)) == [Status.REM_ACCESS_ERR]
            assert receiver.state == State.ERR


@pytest.mark.soft("RTR and RTS without a peer")
def test_posting_in_each_state() -> None:
    with End() as a:
        a.qp.modify(State.RESET)
        for call in (lambda: a.qp.post_send(SendWR()), lambda: a.qp.post_recv((1, []))):
            with pytest.raises(VerbsError) as caught:
                call()
            assert caught.value.errno == 22
        a.qp.to_init()
        a.qp.post_recv((1, []))
        with pytest.raises(VerbsError):
            a.qp.post_send(SendWR())
        a.qp.to_rtr()
        with pytest.raises(VerbsError):
            a.qp.post_send(SendWR())
        a.qp.to_rts()
        a.qp.post_send(SendWR(wr_id=2))
        a.qp.modify(State.ERR)
        assert {(wc.wr_id, wc.status) for wc in completions(a, 2)} == {(1, 5), (2, 5)}
        a.qp.post_recv((3, []), (4, []))
        a.qp.post_send(SendWR(wr_id=5, flags=SendFlag(0)))
        flushed(a, 3, 4, 5)
        a.qp.post_recv((6, []))
        a.qp.modify(State.RESET)
        assert a.cq.poll() == []


CHILD = """
import socket, struct, sys
sys.path[:0] = {paths!r}
import verbs_ends
from verbs_ends import *
from rmemcached.verbs import *
verbs_ends.FABRIC = {fabric!r}
end = End({size})
give(end.qp, socket.socket(fileno=int(sys.argv[1])), initiator=True, crc=sys.argv[2] == "True")
end.qp.post_recv((1, [end.mr.sge(0, 16)]))
end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 8)]))
end.buffer[8:24] = struct.pack(">QI4x", end.mr.addr, end.mr.rkey)
end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(8, 16)]))
print("ready", flush=True)
while True:
    end.poll()
"""


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("opcode", [Opcode.RDMA_READ, Opcode.RDMA_WRITE])
@pytest.mark.soft(RETRIES)
def test_peer_process_is_killed_in_the_middle_of_a_transfer(opcode: Opcode, crc: bool, fabric: str) -> None:
    # The buffers are in no shared memory, so the transfer keeps both ends busy.
    size = 64 << 20
    with End(size, max_send_wr=512) as end:
        sock, theirs = stream_pair()
        script = CHILD.format(paths=PATHS, fabric=fabric.split()[0], size=size)
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", script, str(theirs.fileno()), str(crc)],
            cwd=Path(__file__).parent.parent.parent,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        try:
            end.qp.post_recv((1, [end.mr.sge(0, 8)]), (2, [end.mr.sge(8, 16)]), (3, []))
            give(end.qp, sock, initiator=False)
            completions(end, 2)
            addr, rkey = struct.unpack(">QI4x", end.buffer[8:24])
            wr = SendWR(opcode, [end.mr.sge(64)], wr_id=9, remote_addr=addr + 64, rkey=rkey)
            end.qp.post_send(*[wr] * 100)
            # One transfer is complete, and the second is under way.
            until(lambda: end.done, end)
            os.kill(child.pid, signal.SIGKILL)
            until(lambda: end.qp.state == State.ERR, end)
            found = completions(end, 101)
            assert found[-1].status == Status.WR_FLUSH_ERR
            by_id = {wc.wr_id for wc in found}
            assert by_id == {3, 9}
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

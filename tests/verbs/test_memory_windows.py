"""Memory windows of both types: what they give peers, and all the ways in which they end."""

from __future__ import annotations

import os
import threading

import pytest
from verbs_ends import (
    ALL,
    REMOTE,
    SHIFTED,
    End,
    bind,
    bound,
    completions,
    connect,
    connect_pair,
    connected,
    ready,
    statuses,
    until,
)

from rmemcached.verbs import MR, MW, PD, QP, Access, Opcode, SendFlag, SendWR, State, Status, VerbsError, WCOpcode

pytestmark = pytest.mark.soft("a device of libibverbs may have no memory windows, and its statuses are its own")

BINDABLE = Access.LOCAL_WRITE | Access.MW_BIND


def try_out(a: End, b: End, opcode: Opcode, addr: int, rkey: int, size: int = 8) -> Status:
    """The outcome of a peer's access. A READ behind a WRITE shows a refusal of the WRITE."""
    a.qp.post_send(
        SendWR(opcode, [a.mr.sge(0, size)], flags=0, remote_addr=addr, rkey=rkey),
        SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 1)], remote_addr=b.mr.addr, rkey=b.mr.rkey),
    )
    (wc,) = completions(a, 1, b)
    return wc.status if opcode == Opcode.RDMA_READ or wc.status == Status.SUCCESS else Status.REM_ACCESS_ERR


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("kind", [1, 2])
def test_a_peer_reads_and_writes_through_a_window(kind: int, crc: bool) -> None:
    with connected(crc=crc) as (a, b):
        mw, mr = bound(b, kind)
        memory = memoryview(mr)
        a.buffer[:8] = b"8 octets"
        assert try_out(a, b, Opcode.RDMA_WRITE, mr.addr + 100, mw.rkey) == Status.SUCCESS
        memory[192:200] = b"the end!"
        assert try_out(a, b, Opcode.RDMA_READ, mr.addr + 192, mw.rkey) == Status.SUCCESS
        assert bytes(memory[100:108]) == b"8 octets" and a.buffer[1:8] == b"he end!"
        assert bytes(memory[:100]) == bytes(100) and bytes(memory[200:]) == bytes(100)
        memory.release()


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize(
    ("opcode", "at", "access"),
    [
        (Opcode.RDMA_READ, -1, REMOTE),
        (Opcode.RDMA_READ, 93, REMOTE),
        (Opcode.RDMA_WRITE, 93, REMOTE),
        (Opcode.RDMA_READ, 0, Access.REMOTE_WRITE),
        (Opcode.RDMA_WRITE, 0, Access.REMOTE_READ),
        (Opcode.RDMA_READ, 0, 0),
    ],
)
def test_what_a_window_does_not_give(opcode: Opcode, at: int, access: int, kind: int) -> None:
    with connected() as (a, b):
        mw, mr = bound(b, kind, access)
        memory = bytes(memoryview(mr))
        assert try_out(a, b, opcode, mr.addr + 100 + at, mw.rkey) == Status.REM_ACCESS_ERR
        assert memoryview(mr) == memory
        assert b.qp.state == State.ERR


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("parent", [None, SHIFTED, "zero"])
def test_the_addresses_of_a_window(parent: int | str | None, zero: bool, kind: int) -> None:
    """A window counts its octets from 0 on, or has the addresses of its region."""
    with connected() as (a, b):
        memory = bytearray(range(200))
        rights = BINDABLE | (Access.ZERO_BASED if parent == "zero" else 0)
        mr = MR(b.pd, memory, rights, iova=parent if isinstance(parent, int) else None)
        mw = MW(b.pd, kind)
        access = REMOTE | (Access.ZERO_BASED if zero else 0)
        assert bind(b, mw, mr, 50, 100, access, key=mw.rkey if kind == 2 else 0).status == Status.SUCCESS
        start = 0 if zero else mr.addr + 50
        assert try_out(a, b, Opcode.RDMA_READ, start + 20, mw.rkey) == Status.SUCCESS
        assert a.buffer[1:8] == memory[71:78]
        assert try_out(a, b, Opcode.RDMA_READ, start + 93, mw.rkey) == Status.REM_ACCESS_ERR


def test_a_window_of_type_1_moves_under_a_new_key() -> None:
    with connected() as (a, b):
        mw, mr = bound(b, 1)
        first = mw.rkey
        other = MR(b.pd, bytearray(b"another region"), BINDABLE)
        assert bind(b, mw, other, 0, 14, Access.REMOTE_READ).opcode == WCOpcode.BIND_MW
        assert mw.rkey != first
        # The first region has no window any more.
        mr.close()
        assert try_out(a, b, Opcode.RDMA_READ, other.addr + 1, mw.rkey) == Status.SUCCESS
        assert a.buffer[1:8] == b"other r"
        assert try_out(a, b, Opcode.RDMA_READ, other.addr, first) == Status.REM_ACCESS_ERR


def test_a_window_of_type_1_ends_by_a_bind_without_length() -> None:
    with connected() as (a, b):
        mw, mr = bound(b, 1)
        keys = {mw.rkey}
        assert bind(b, mw, None, 0, 0, 0).status == Status.SUCCESS
        keys.add(mw.rkey)
        assert len(keys) == 2
        addr = mr.addr
        mr.close()
        assert try_out(a, b, Opcode.RDMA_READ, addr + 100, mw.rkey) == Status.REM_ACCESS_ERR


@pytest.mark.parametrize("by", ["LOCAL_INV", "SEND"])
def test_a_window_of_type_2_is_invalidated_and_bound_again(by: str) -> None:
    with connected() as (a, b):
        mw, mr = bound(b, 2)
        key = mw.rkey
        for _ in range(3):
            assert try_out(a, b, Opcode.RDMA_WRITE, mr.addr + 100, key) == Status.SUCCESS
            if by == "SEND":
                b.qp.post_recv((1, []))
                a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=key))
                assert completions(b, 1, a)[0].invalidated_rkey == key
                completions(a, 1, b)
            else:
                b.qp.post_send(SendWR(Opcode.LOCAL_INV, invalidate_rkey=key))
                (wc,) = completions(b, 1, a)
                assert (wc.status, wc.opcode) == (Status.SUCCESS, WCOpcode.LOCAL_INV)
            old, key = key, key & ~255 | key + 1 & 255
            wc = bind(b, mw, mr, 100, 100, key=key)
            assert (wc.status, wc.opcode) == (Status.SUCCESS, WCOpcode.BIND_MW)
        assert try_out(a, b, Opcode.RDMA_WRITE, mr.addr + 100, key) == Status.SUCCESS
        assert try_out(a, b, Opcode.RDMA_WRITE, mr.addr + 100, old) == Status.REM_ACCESS_ERR


@pytest.mark.parametrize("kind", [1, 2])
def test_the_queue_pairs_of_a_window(kind: int) -> None:
    """Any queue pair of the domain serves a window of type 1, and only its own queue pair a window of type 2."""
    with connected() as (a, b):
        pair = QP(a.pd, a.cq), QP(b.pd, b.cq)
        for qp in pair:
            ready(qp)
        connect_pair(*pair)
        mw, mr = bound(b, kind)
        pair[0].post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=mr.addr + 100, rkey=mw.rkey))
        assert statuses(completions(a, 1, b)) == [Status.SUCCESS if kind == 1 else Status.REM_ACCESS_ERR]
        assert try_out(a, b, Opcode.RDMA_READ, mr.addr + 100, mw.rkey) == Status.SUCCESS


def test_a_region_with_a_window_stays() -> None:
    """A bound window keeps its region, until the window or its queue pair ends."""
    for kind, end in ((1, "window"), (2, "window"), (2, "queue pair"), (2, "LOCAL_INV")):
        with End() as b:
            qp = QP(b.pd, b.cq)
            ready(qp)
            mw, mr = bound(b, kind, qp=qp)
            for call in (mr.close, lambda: mr.rereg(access=ALL)):  # noqa: B023
                with pytest.raises(VerbsError) as caught:
                    call()
                assert caught.value.errno == 16
            if end == "window":
                mw.close()
            elif end == "queue pair":
                qp.close()
            else:
                qp.post_send(SendWR(Opcode.LOCAL_INV, invalidate_rkey=mw.rkey))
                completions(b, 1)
            mr.rereg(access=ALL)
            mr.close()


def test_a_window_of_a_destroyed_queue_pair_is_bound_again() -> None:
    with connected() as (a, b):
        qp = QP(b.pd, b.cq)
        ready(qp)
        mw, mr = bound(b, 2, qp=qp)
        qp.close()
        assert bind(b, mw, mr, 0, 100, key=mw.rkey).status == Status.SUCCESS
        assert try_out(a, b, Opcode.RDMA_READ, mr.addr, mw.rkey) == Status.SUCCESS


def refused_parents() -> dict[str, object]:
    return {
        "no right to bind": lambda e: MR(e.pd, bytearray(300), Access.LOCAL_WRITE),
        "WRITEs without a local right": lambda e: MR(e.pd, bytes(300), int(Access.MW_BIND)),
        "out of bounds": lambda e: MR(e.pd, bytearray(150), BINDABLE),
        "another domain": lambda e: MR(PD(e.context), bytearray(300), BINDABLE),
        "a list": lambda e: MR.of_list(e.pd, [bytes(300)]),
    }


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("what", refused_parents())
def test_binds_that_are_refused(what: str, kind: int) -> None:
    if (what, kind) == ("another domain", 1):
        with End() as b, pytest.raises(VerbsError, match="not permitted"):
            b.qp.bind_mw(MW(b.pd), (refused_parents()[what](b), 0, 1, REMOTE))  # type: ignore[operator]
        return
    with connected() as (_, b):
        mr = refused_parents()[what](b)  # type: ignore[operator]
        mw = MW(b.pd, kind)
        b.qp.post_recv((1, []))
        part = mr, mr.addr + 100, 100, REMOTE
        if kind == 2:
            b.qp.post_send(SendWR.bind_mw(mw=mw, rkey=mw.rkey, bind=part, wr_id=7), SendWR(wr_id=8))
        else:
            b.qp.bind_mw(mw, part, wr_id=7)
            b.qp.post_send(SendWR(wr_id=8))
        found = {wc.wr_id: wc.status for wc in completions(b, 3)}
        assert found == {7: Status.MW_BIND_ERR, 8: Status.WR_FLUSH_ERR, 1: Status.WR_FLUSH_ERR}
        # Nothing keeps the region.
        mr.close()


def test_requests_that_a_window_of_type_2_refuses() -> None:
    for what in ("bound already", "no length", "not bound", "type 1", "a region's key without rights"):
        with End() as b:
            mw, mr = bound(b, 1 if what == "type 1" else 2)
            key = mw.rkey
            if what == "bound already":
                request = SendWR.bind_mw(mw=mw, rkey=key ^ 1, bind=(mr, mr.addr, 8, REMOTE))
            elif what == "no length":
                b.qp.post_send(SendWR(Opcode.LOCAL_INV, invalidate_rkey=key))
                completions(b, 1)
                request = SendWR.bind_mw(mw=mw, rkey=key, bind=(mr, mr.addr, 0, REMOTE))
            elif what == "not bound":
                request = SendWR(Opcode.LOCAL_INV, invalidate_rkey=key ^ 1)
            else:
                request = SendWR(Opcode.LOCAL_INV, invalidate_rkey=key if what == "type 1" else mr.rkey)
            b.qp.post_send(request)
            expected = Status.MW_BIND_ERR if request.opcode == Opcode.BIND_MW else Status.LOC_QP_OP_ERR
            assert statuses(completions(b, 1)) == [expected]


def test_requests_that_cannot_be_posted() -> None:
    with End() as b, End() as other:
        mr = MR(b.pd, bytearray(300), BINDABLE)
        mw, foreign = MW(b.pd, 2), MW(other.pd, 2)
        part = mr, mr.addr, 8, REMOTE
        for request in (
            SendWR.bind_mw(mw=mw, rkey=mw.rkey ^ 256, bind=part),
            SendWR.bind_mw(mw=foreign, rkey=foreign.rkey, bind=part),
            SendWR.bind_mw(mw=mw, rkey=mw.rkey, bind=(mr, mr.addr, 8, int(Access.LOCAL_WRITE))),
            SendWR.bind_mw(mw=mw, rkey=mw.rkey, bind=(None, 0, 8, REMOTE)),
        ):
            with pytest.raises(VerbsError) as caught:
                b.qp.post_send(request)
            assert caught.value.errno == 22
        with pytest.raises(VerbsError):
            b.qp.bind_mw(mw, part)  # of type 2
        for kind in (0, 3):
            with pytest.raises(VerbsError) as caught:
                MW(b.pd, kind)
            assert caught.value.errno == 22
        mw.close()
        with pytest.raises(ValueError):
            b.qp.post_send(SendWR.bind_mw(mw=mw, rkey=0, bind=part))


def test_a_window_closed_before_its_bind_is_carried_out() -> None:
    """Whether the window or the region is gone: the request fails when its turn comes."""
    for closed in ("window", "region"):
        with End(ord=1) as a, End() as b:
            connect(a, b)
            mw, mr = MW(a.pd, 2), MR(a.pd, bytearray(300), BINDABLE)
            a.qp.post_send(
                SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=1, remote_addr=b.mr.addr, rkey=b.mr.rkey),
                SendWR.bind_mw(
                    mw=mw,
                    rkey=mw.rkey,
                    bind=(mr, mr.addr, 8, REMOTE),
                    wr_id=2,
                    flags=SendFlag.FENCE | SendFlag.SIGNALED,
                ),
            )
            (mw if closed == "window" else mr).close()
            found = {wc.wr_id: wc.status for wc in completions(a, 2, b)}
            assert found == {1: Status.SUCCESS, 2: Status.MW_BIND_ERR}


def test_requests_are_carried_out_in_order() -> None:
    """A SEND leaves after the binds before the SEND, and LOCAL_INV with a fence waits for earlier READs."""
    with connected() as (a, b):
        mw, mr = bound(b, 2)
        b.qp.post_recv((9, []))
        keys = [mw.rkey, mw.rkey ^ 1, mw.rkey ^ 2]
        a.qp.post_recv(*((i, [a.mr.sge(100, 4)]) for i in range(2)))
        a.qp.post_send(SendWR(Opcode.SEND))
        completions(b, 1, a)
        completions(a, 1, b)
        requests = []
        for i, key in enumerate(keys[:2]):
            requests += [
                SendWR(Opcode.RDMA_READ, [b.mr.sge(0, 5000)], wr_id=10 * i, remote_addr=a.mr.addr, rkey=a.mr.rkey),
                SendWR(
                    Opcode.LOCAL_INV,
                    invalidate_rkey=key,
                    wr_id=10 * i + 1,
                    flags=SendFlag.SIGNALED | (SendFlag.FENCE if i else 0),
                ),
                SendWR.bind_mw(mw=mw, rkey=keys[i + 1], bind=(mr, mr.addr, 300, REMOTE), wr_id=10 * i + 2),
                SendWR(Opcode.SEND, [b.mr.sge(0, 4)], wr_id=10 * i + 3),
            ]
        b.qp.post_send(*requests)
        found = [(wc.wr_id, wc.status) for wc in completions(b, 8, a)]
        assert found == [(10 * i + j, Status.SUCCESS) for i in range(2) for j in range(4)]
        assert statuses(completions(a, 2, b)) == [Status.SUCCESS] * 2
        assert try_out(a, b, Opcode.RDMA_READ, mr.addr, keys[2]) == Status.SUCCESS
        assert try_out(a, b, Opcode.RDMA_READ, mr.addr, keys[1]) == Status.REM_ACCESS_ERR


def test_binds_in_a_queue_that_is_flushed() -> None:
    with End() as b:
        mw, mr = MW(b.pd, 2), MR(b.pd, bytearray(300), BINDABLE)
        b.qp.modify(State.ERR)
        b.qp.post_send(SendWR.bind_mw(mw=mw, rkey=mw.rkey, bind=(mr, mr.addr, 300, REMOTE)))
        assert statuses(completions(b, 1)) == [Status.WR_FLUSH_ERR]
        mr.close()


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.RDMA_READ])
def test_a_window_is_no_region_of_this_end(opcode: Opcode) -> None:
    with connected() as (a, b):
        mw, mr = bound(a, 1)
        b.qp.post_recv((1, [b.mr.sge(0, 8)]))
        sge = mr.addr + 100, 8, mw.rkey
        a.qp.post_send(SendWR(opcode, [sge], remote_addr=b.mr.addr, rkey=b.mr.rkey))
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]


def test_a_window_over_shared_memory_goes_through_the_stream() -> None:
    """A peer never maps a window's memory: the pages would give the rights of all the region."""
    with connected() as (a, b):
        mr = MR.alloc(b.pd, 10_000, ALL | Access.MW_BIND)
        mw = MW(b.pd)
        bind(b, mw, mr, 100, 100)
        for _ in range(4):
            assert try_out(a, b, Opcode.RDMA_READ, mr.addr + 100, mw.rkey) == Status.SUCCESS
            a.buffer[:8] = os.urandom(8)
            expected = a.buffer[:8]
            assert try_out(a, b, Opcode.RDMA_WRITE, mr.addr + 150, mw.rkey) == Status.SUCCESS
            assert memoryview(mr)[150:158] == expected
        # At most the READs of b.mr were one-sided.
        assert a.qp.counters()["one_sided"] <= 8


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("kind", [1, 2])
def test_a_window_ends_in_the_middle_of_a_read(kind: int, crc: bool) -> None:
    """After the window's end no octet leaves through the window, and nobody uses its region."""
    size = 32 << 20
    with End(size) as a, End(100) as b:
        connect(a, b, crc=crc)
        source = bytearray(b"x" * size)
        mr, mw = MR(b.pd, source, BINDABLE), MW(b.pd, kind)
        assert bind(b, mw, mr, 0, size, key=mw.rkey if kind == 2 else 0).status == Status.SUCCESS
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge()], remote_addr=mr.addr, rkey=mw.rkey))
        until(lambda: a.buffer[0] == ord("x"), a, b)
        mw.close()
        mr.close()
        source[:] = b"s" * size
        assert completions(a, 1, b)[0].status != Status.SUCCESS
        assert b"s" not in bytes(a.buffer)


def test_a_window_of_type_1_moves_while_queue_pairs_use_the_window() -> None:
    """A thread moves a window between two regions, while a peer reads through the present or the last key."""
    with End() as a, End() as b:
        regions = [MR(b.pd, bytearray(octet * 4096), BINDABLE, iova=0) for octet in (b"0", b"1")]
        mw, own = MW(b.pd), QP(b.pd, b.cq)
        ready(own)
        stop = threading.Event()

        def move() -> None:
            place = 0
            while not stop.is_set():
                own.bind_mw(mw, (regions[place], 0, 4096, REMOTE), flags=0)
                place ^= 1

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for _ in range(30):
                pair = QP(a.pd, a.cq), QP(b.pd, b.cq)
                for qp in pair:
                    ready(qp)
                connect_pair(*pair)
                pair[0].post_send(
                    *(
                        SendWR(Opcode.RDMA_READ, [a.mr.sge(4096 * i, 4096)], remote_addr=0, rkey=mw.rkey)
                        for i in range(8)
                    )
                )
                for i, status in enumerate(statuses(completions(a, 8, b))):
                    assert status in (Status.SUCCESS, Status.REM_ACCESS_ERR, Status.WR_FLUSH_ERR)
                    octets = bytes(a.buffer[4096 * i : 4096 * i + 4096])
                    assert status != Status.SUCCESS or octets in (b"0" * 4096, b"1" * 4096)
                for qp in pair:
                    qp.close()
        finally:
            stop.set()
            mover.join()

"""Regions whose addresses are no pointers (iova, zero-based), and regions that change while they keep their keys."""

from __future__ import annotations

import os

import pytest
from verbs_ends import ALL, SHIFTED, End, completions, connect, connected, device, statuses, until

from rmemcached.verbs import MR, PD, Access, Context, Opcode, SendWR, State, Status, VerbsError

pytestmark = pytest.mark.soft("the objects' calls for such regions are the software devices'")

SIZE = 300_000


def move(opcode: Opcode, a: End, b: End, here: MR, there: MR, offset: int, size: int) -> None:
    """Carries out a request between two regions, and waits until its octets are in place."""
    b.qp.post_recv((1, [there.sge(offset, size)] if opcode == Opcode.SEND else []))
    request = SendWR(opcode, [here.sge(offset, size)], remote_addr=there.addr + offset, rkey=there.rkey)
    a.qp.post_send(request, *([] if opcode == Opcode.SEND else [SendWR(Opcode.SEND, [])]))
    assert set(statuses(completions(b, 1, a) + completions(a, 1 + (opcode != Opcode.SEND), b))) == {Status.SUCCESS}


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("size", [8, 5000, SIZE])
@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RDMA_READ])
def test_every_operation_between_regions_with_addresses_of_their_own(opcode: Opcode, size: int, crc: bool) -> None:
    with connected(crc=crc) as (a, b):
        mine, theirs = bytearray(os.urandom(SIZE + 3)), bytearray(os.urandom(SIZE + 3))
        makers = (
            (lambda: MR(a.pd, mine, ALL, iova=5), lambda: MR(b.pd, theirs, ALL | Access.ZERO_BASED)),
            (lambda: MR(a.pd, mine, ALL | Access.ZERO_BASED), lambda: MR(b.pd, theirs, ALL, iova=2**64 - SIZE - 4)),
        )
        for make_here, make_there in makers:
            with make_here() as here, make_there() as there:
                move(opcode, a, b, here, there, 3, size)
                assert mine[3 : 3 + size] == theirs[3 : 3 + size]
                assert mine[:3] != theirs[:3]


def test_a_zero_based_region_in_shared_memory(fabric: str) -> None:
    with connected() as (a, b):
        there = MR.alloc(b.pd, 10_000, ALL | Access.ZERO_BASED)
        view = memoryview(there)
        assert there.addr == 0
        for opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_READ) * 2:
            view[100:200] = os.urandom(100)
            move(opcode, a, b, a.mr, there, 100, 100)
            assert view[100:200] == a.buffer[100:200]
        view.release()
        if fabric.startswith("soft_shm"):
            assert a.qp.counters()["one_sided"] > 0


@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ])
@pytest.mark.parametrize("addr", [SHIFTED - 1, SHIFTED + 93, 0, "pointer"])
def test_addresses_outside_of_a_shifted_region(addr: int | str, opcode: Opcode) -> None:
    with connected() as (a, b):
        memory = bytearray(100)
        there = MR(b.pd, memory, ALL, iova=SHIFTED)
        with MR(b.pd, memory) as unshifted:
            at = unshifted.addr if isinstance(addr, str) else addr
        b.qp.post_recv((8, []))
        a.qp.post_send(SendWR(opcode, [a.mr.sge(0, 8)], remote_addr=at, rkey=there.rkey))
        assert statuses(completions(b, 1, a)) == [Status.WR_FLUSH_ERR]
        until(lambda: a.qp.state == State.ERR, a)
        assert memory == bytes(100)


def test_attributes_that_no_region_has() -> None:
    with Context(device()) as context:
        pd = PD(context)
        for iova, access, error in (
            (2**64 - 4, ALL, 22),
            (0, Access.REMOTE_WRITE | Access.ZERO_BASED, 22),
            (0, ALL | Access.REMOTE_ATOMIC, 95),
        ):
            with pytest.raises(VerbsError) as caught:
                MR(pd, bytearray(8) if access & 1 else bytes(8), access, iova=iova)
            assert caught.value.errno == error
        assert MR(pd, bytearray(8), ALL | Access.ON_DEMAND | Access.HUGETLB).length == 8


@pytest.mark.parametrize("crc", [False, True])
def test_reads_into_the_same_memory_under_two_addresses(crc: bool) -> None:
    """Of two READs into the same memory the second one's octets stay, also where the first is still coming in."""
    size = 1 << 20
    with End(2 * size) as a, End(2 * size) as b:
        connect(a, b, crc=crc)
        sink = bytearray(size)
        sinks = [MR(a.pd, sink, ALL, iova=iova) for iova in (1 << 30, 1 << 40)]
        for _ in range(4):
            b.buffer[:] = os.urandom(2 * size)
            a.qp.post_send(
                *(
                    SendWR(Opcode.RDMA_READ, [mr.sge()], remote_addr=b.mr.addr + i * size, rkey=b.mr.rkey)
                    for i, mr in enumerate(sinks)
                )
            )
            assert statuses(completions(a, 2, b)) == [Status.SUCCESS] * 2
            assert sink == b.buffer[size:]


def test_a_region_gets_other_memory() -> None:
    with connected() as (a, b):
        old, new = bytearray(b"old " * 100), bytearray(b"new " * 200)
        there = MR(b.pd, old, ALL)
        keys = there.lkey, there.rkey
        move(Opcode.RDMA_READ, a, b, a.mr, there, 0, 400)
        assert a.buffer[:400] == old
        there.rereg(buffer=new)
        old.append(0)  # nobody holds the old memory
        assert (there.lkey, there.rkey, there.length) == (*keys, 800)
        move(Opcode.RDMA_READ, a, b, a.mr, there, 0, 800)
        assert a.buffer[:800] == new
        there.rereg(access=ALL | Access.ZERO_BASED)
        assert there.addr == 0
        move(Opcode.RDMA_WRITE, a, b, a.mr, there, 400, 8)
        there.rereg(buffer=old)
        assert there.addr == 0
        move(Opcode.SEND, a, b, a.mr, there, 0, 8)
        assert old[:8] == b"new new "
        there.rereg(access=ALL)
        move(Opcode.RDMA_WRITE, a, b, a.mr, there, 8, 8)
        assert old[:20] == b"new new new new old "


@pytest.mark.parametrize("what", ["rights", "domain", "memory"])
def test_what_a_region_gave_before_its_change_is_refused(what: str) -> None:
    with connected() as (a, b):
        there = MR(b.pd, bytearray(100), ALL)
        addr = there.addr
        if what == "rights":
            there.rereg(access=Access.LOCAL_WRITE)
        elif what == "domain":
            there.rereg(pd=PD(b.context))
        else:
            there.rereg(buffer=bytearray(200))
        b.qp.post_recv((8, []))
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=addr, rkey=there.rkey))
        assert statuses(completions(a, 1, b)) == [Status.REM_ACCESS_ERR]
        assert statuses(completions(b, 1, a)) == [Status.WR_FLUSH_ERR]


def test_an_invalidated_region_is_valid_after_its_change() -> None:
    with connected() as (a, b):
        there = MR(b.pd, bytearray(100), ALL)
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=there.rkey))
        completions(b, 1, a)
        completions(a, 1, b)
        there.rereg(access=ALL)
        move(Opcode.RDMA_READ, a, b, a.mr, there, 0, 100)


def test_changes_that_are_refused() -> None:
    with Context(device()) as context, Context(device()) as other:
        pd = PD(context)
        memory = bytearray(100)
        mr = MR(pd, memory, ALL)
        shared, parts = MR.alloc(pd, 100, ALL), MR.of_list(pd, [b"one", b"two"])
        for call, error in (
            (lambda: shared.rereg(access=ALL), 22),
            (lambda: parts.rereg(buffer=bytearray(100)), 22),
            (lambda: mr.rereg(pd=PD(other)), 22),
            (lambda: mr.rereg(buffer=bytearray()), 22),
            (lambda: mr.rereg(access=int(Access.REMOTE_WRITE)), 22),
            (lambda: mr.rereg(access=ALL | Access.REMOTE_ATOMIC), 95),
        ):
            with pytest.raises(VerbsError) as caught:
                call()
            assert caught.value.errno == error
        with memoryview(mr), pytest.raises(BufferError):
            mr.rereg(access=ALL)
        assert mr.length == 100 and mr.rkey
        moved = PD(context)
        mr.rereg(pd=moved)
        pd.close()
        assert mr.length == 100
        moved.close()
        with pytest.raises(ValueError):
            mr.rereg(access=ALL)


@pytest.mark.parametrize("crc", [False, True])
def test_a_region_changes_in_the_middle_of_a_read(crc: bool) -> None:
    """After the change no octet of the old memory leaves, and the READ goes on with the new memory."""
    size = 32 << 20
    with End(size) as a, End(100) as b:
        connect(a, b, crc=crc)
        old, new = bytearray(b"x" * size), bytearray(b"y" * size)
        there = MR(b.pd, old, ALL | Access.ZERO_BASED)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge()], remote_addr=0, rkey=there.rkey))
        until(lambda: a.buffer[0] == ord("x"), a, b)
        there.rereg(buffer=new)
        old[:] = b"s" * size
        assert statuses(completions(a, 1, b)) == [Status.SUCCESS]
        octets = bytes(a.buffer)
        # Each octet of the new memory comes behind all octets of the old.
        assert octets.rstrip(b"y").rstrip(b"x") == b"" and octets[-1:] == b"y"

"""Regions over several pieces of memory (MR.of_list), each a single region for peers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from verbs_ends import ALL, End, completions, connect, connected

from rmemcached.verbs import MR, PD, Opcode, SendFlag, SendWR, State, Status, VerbsError

pytestmark = pytest.mark.soft("libibverbs has no such regions")

LARGEST = 3 << 20


@pytest.fixture(scope="module", params=["plain", "crc", "plain small segments", "crc small segments"])
def pair(request: pytest.FixtureRequest, fabric: str) -> Iterator[tuple[End, End]]:
    mss = 536 if "small" in request.param else 0
    with connected(LARGEST + 64, crc="crc" in request.param, mss=mss) as (a, b):
        yield a, b


def read(a: End, b: End, mr: MR, offset: int, size: int) -> Status:
    """b's octets at an offset of the region come to the beginning of a's buffer."""
    a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, size)], wr_id=5, remote_addr=mr.addr + offset, rkey=mr.rkey))
    (wc,) = completions(a, 1, b)
    assert wc.wr_id == 5
    return wc.status


def some_parts(sizes: list[int]) -> list[bytes]:
    order = random.Random(len(sizes))
    return [order.randbytes(size) for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [1, 1],
        [0, 5, 0, 0, 7, 0],
        [65536, 65536],
        [24, 1 << 20, 40, 1 << 20, 64],
        [3, 4096] * 8,
        [1 << 16] * 40,
        [100, *[70_000, 8] * 20],
    ],
    ids=lambda sizes: f"{len(sizes)} parts of {sum(sizes)}",
)
def test_reads_of_all_and_of_parts(pair: tuple[End, End], sizes: list[int]) -> None:
    a, b = pair
    parts = some_parts(sizes)
    whole = b"".join(parts)
    cut = random.Random(1)
    with MR.of_list(b.pd, parts) as mr:
        assert mr.length == len(whole)
        ranges = [(0, len(whole)), (len(whole) - 1, 1), (len(whole) // 2, len(whole) - len(whole) // 2)]
        ranges += [
            (start, cut.randint(1, len(whole) - start)) for start in (cut.randrange(len(whole)) for _ in range(8))
        ]
        # The ranges also cover each edge between two parts.
        edge = 0
        for size in sizes[:20]:
            edge += size
            ranges.append((max(edge - 3, 0), min(6, len(whole) - max(edge - 3, 0))))
        for start, size in ranges:
            a.buffer[: size + 8] = b"\xee" * (size + 8)
            assert read(a, b, mr, start, size) == Status.SUCCESS
            assert a.buffer[:size] == whole[start : start + size]
            assert a.buffer[size : size + 8] == b"\xee" * 8


def test_what_changes_is_read_as_it_is(pair: tuple[End, End]) -> None:
    a, b = pair
    first, second = bytearray(b"one"), bytearray(100_000)
    with MR.of_list(b.pd, [first, second]) as mr:
        for turn in range(3):
            second[:] = bytes([turn]) * 100_000
            assert read(a, b, mr, 0, 100_003) == Status.SUCCESS
            assert a.buffer[:100_003] == first + second


@pytest.mark.parametrize("what", ["before", "behind", "across the end", "write", "another domain"])
def test_nothing_else_is_reached(fabric: str, what: str) -> None:
    with End(1 << 12) as a, End(1 << 12) as b:
        connect(a, b)
        secret, parts = bytearray(b"s" * 4096), [bytearray(b"x" * 100), bytearray(b"y" * 3000)]
        domain = PD(b.context) if what == "another domain" else b.pd
        with MR.of_list(domain, parts) as mr, MR(b.pd, secret, ALL):
            offset, size = {"before": (-1, 8), "behind": (3100, 8), "across the end": (3096, 8)}.get(what, (0, 8))
            opcode = Opcode.RDMA_WRITE if what == "write" else Opcode.RDMA_READ
            a.qp.post_send(
                SendWR(
                    opcode, [a.mr.sge(0, size)], remote_addr=mr.addr + offset, rkey=mr.rkey, flags=SendFlag.SIGNALED
                ),
                SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=b.mr.addr, rkey=b.mr.rkey),
            )
            assert completions(a, 2, b)[-1].status in (Status.WR_FLUSH_ERR, Status.REM_ACCESS_ERR)
            assert b.qp.state == State.ERR
            assert parts == [b"x" * 100, b"y" * 3000]
        if domain is not b.pd:
            domain.close()


def test_it_serves_no_work_request_of_its_own_side(fabric: str) -> None:
    with End(1 << 12) as a, End(1 << 12) as b:
        connect(a, b)
        parts = [b"x" * 100, b"y" * 3000]
        with MR.of_list(a.pd, parts) as mr:
            b.qp.post_recv((1, [b.mr.sge()]))
            a.qp.post_send(SendWR(Opcode.SEND, [(mr.addr, 3000, mr.lkey)], wr_id=3))
            assert [(wc.wr_id, wc.status) for wc in completions(a, 1, b)] == [(3, Status.LOC_PROT_ERR)]
            with pytest.raises(BufferError, match="several places"):
                memoryview(mr)


def test_what_is_no_list(fabric: str) -> None:
    with End(100) as end:
        for buffers in ([], [b"", b""], [b"x"] * 17, [bytes(1 << 20), *[b"12"] * 17]):
            with pytest.raises(VerbsError, match=r"reg_list.*Invalid"):
                MR.of_list(end.pd, buffers)
        with pytest.raises(TypeError):
            MR.of_list(end.pd, [5])  # type: ignore[list-item]
        # Sixteen buffers close together are the limit. Of distant buffers there may be any number.
        for buffers in ([b"x"] * 16, [b"1" * 4400] * 100):
            MR.of_list(end.pd, buffers).close()


def test_close_while_it_is_read(fabric: str) -> None:
    """A READ of a region closed meanwhile is answered or refused, and does not use the memory after the close."""
    with End(LARGEST) as a, End(100) as b:
        connect(a, b)
        mr = MR.of_list(b.pd, [bytearray(b"z" * (1 << 20)) for _ in range(3)])
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, LARGEST)], wr_id=5, remote_addr=mr.addr, rkey=mr.rkey))
        b.cq.poll(1)
        mr.close()
        (wc,) = completions(a, 1, b)
        assert wc.status in (Status.SUCCESS, Status.REM_ACCESS_ERR, Status.WR_FLUSH_ERR, Status.REM_OP_ERR)
        if wc.status == Status.SUCCESS:
            assert a.buffer == b"z" * LARGEST

"""SEND, RDMA WRITE and RDMA READ between two queue pairs over loopback TCP."""

from __future__ import annotations

import random

import pytest
from verbs_ends import ALL, End, completions, connect, connected, statuses, streams, until

from rmemcached.verbs import MR, Opcode, SendFlag, SendWR, Status, VerbsError, WCOpcode

# Sizes around the limits of an FPDU (loopback: 65474 octets of ULPDU), of the copying of small payloads, of the receive
# window and of the receive buffer.
SIZES = [
    *(0, 1, 2, 3, 4, 5, 63, 64, 127, 128, 129, 492, 511, 512, 4075, 4076, 4096, 4097, 16383, 16384, 16385),
    *(65455, 65456, 65457, 65458, 65459, 65460, 65461, 65535, 65536, 130915, 131072, 1 << 20, (4 << 20) - 1, 4 << 20),
]
LARGEST = max(SIZES)


@pytest.fixture(scope="module", params=["plain", "crc", "plain small segments", "crc small segments"])
def pair(request: pytest.FixtureRequest):
    mss = 1448 if "small" in request.param else 0
    a, b = connected(LARGEST + 64, crc="crc" in request.param, mss=mss)
    # The responder of a stream may not send before its first reception. A test may begin with either end, so the
    # initiator sends a message here.
    b.qp.post_recv((0, []))
    a.qp.post_send(SendWR(Opcode.SEND, []))
    completions(a, 1, b)
    completions(b, 1, a)
    yield a, b
    a.close()
    b.close()


def fill(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_send(pair: tuple[End, End], size: int) -> None:
    for source, target in (pair, pair[::-1]):
        data = fill(size, size)
        source.buffer[:size] = data
        target.buffer[: size + 1] = bytes(size + 1)
        target.qp.post_recv((77, [target.mr.sge(0, size + 1)]))
        source.qp.post_send(SendWR(Opcode.SEND, [source.mr.sge(0, size)], wr_id=5))
        (received,) = completions(target, 1, source)
        (sent,) = completions(source, 1, target)
        assert (received.wr_id, received.status, received.opcode) == (77, Status.SUCCESS, WCOpcode.RECV)
        assert (received.byte_len, received.qp_num) == (size, target.qp.qp_num)
        assert (sent.wr_id, sent.status, sent.opcode) == (5, Status.SUCCESS, WCOpcode.SEND)
        assert sent.qp_num == source.qp.qp_num
        assert target.buffer[:size] == data
        assert target.buffer[size] == 0


@pytest.mark.parametrize("size", SIZES)
def test_write(pair: tuple[End, End], size: int) -> None:
    a, b = pair
    data = fill(size, size + 1)
    a.buffer[:size] = data
    b.buffer[: size + 64] = b"\xee" * (size + 64)
    b.qp.post_recv((1, []))
    # The SEND behind the WRITE tells that the octets are in place.
    a.qp.post_send(
        SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, size)], wr_id=6, remote_addr=b.mr.addr + 32, rkey=b.mr.rkey),
        SendWR(Opcode.SEND, [], wr_id=7),
    )
    completions(b, 1, a)
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in completions(a, 2, b)] == [
        (6, Status.SUCCESS, WCOpcode.RDMA_WRITE),
        (7, Status.SUCCESS, WCOpcode.SEND),
    ]
    assert b.buffer[32 : 32 + size] == data
    assert b.buffer[:32] == b"\xee" * 32
    assert b.buffer[32 + size : 64 + size] == b"\xee" * 32


@pytest.mark.parametrize("size", SIZES)
def test_read(pair: tuple[End, End], size: int) -> None:
    for source, target in (pair, pair[::-1]):
        data = fill(size, size + 2)
        source.buffer[32 : 32 + size] = data
        target.buffer[: size + 64] = b"\xdd" * (size + 64)
        target.qp.post_send(
            SendWR(
                Opcode.RDMA_READ,
                [target.mr.sge(8, size)],
                wr_id=8,
                remote_addr=source.mr.addr + 32,
                rkey=source.mr.rkey,
            )
        )
        (wc,) = completions(target, 1, source)
        assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (8, Status.SUCCESS, WCOpcode.RDMA_READ, size)
        assert target.buffer[8 : 8 + size] == data
        assert target.buffer[:8] == b"\xdd" * 8
        assert target.buffer[8 + size : 64 + size] == b"\xdd" * 56


@pytest.mark.parametrize("total", [0, 1, 7, 100, 1000, 65456, 65457, 200_000, 1_000_000])
def test_scatter_gather(pair: tuple[End, End], total: int) -> None:
    """All three operations move eight parts on each side, cut differently, some empty."""
    a, b = pair
    cut = random.Random(total)

    def parts(mr: MR) -> list[tuple[int, int, int]]:
        edges = sorted(cut.randint(0, total) for _ in range(7))
        sizes = [right - left for left, right in zip([0, *edges], [*edges, total], strict=True)]
        order = list(range(8))
        cut.shuffle(order)
        starts = {}
        at = 0
        for i in order:
            starts[i] = at
            at += sizes[i] + 3
        return [mr.sge(starts[i], sizes[i]) for i in range(8)]

    def content(end: End, sges: list[tuple[int, int, int]]) -> bytes:
        return b"".join(end.buffer[addr - end.mr.addr : addr - end.mr.addr + size] for addr, size, _ in sges)

    gathered, scattered = parts(a.mr), parts(b.mr)
    a.buffer[: total + 64] = fill(total + 64, 1)
    b.qp.post_recv((1, scattered))
    a.qp.post_send(SendWR(Opcode.SEND, gathered))
    completions(b, 1, a)
    completions(a, 1, b)
    assert content(b, scattered) == content(a, gathered)

    a.buffer[: total + 64] = fill(total + 64, 2)
    expected = content(a, gathered)
    b.qp.post_recv((1, []))
    a.qp.post_send(
        SendWR(Opcode.RDMA_WRITE, gathered, remote_addr=b.mr.addr, rkey=b.mr.rkey, flags=0), SendWR(Opcode.SEND)
    )
    completions(b, 1, a)
    completions(a, 1, b)
    assert b.buffer[:total] == expected

    b.buffer[:total] = fill(total, 3)
    a.qp.post_send(SendWR(Opcode.RDMA_READ, gathered, remote_addr=b.mr.addr, rkey=b.mr.rkey))
    completions(a, 1, b)
    assert content(a, gathered) == b.buffer[:total]


def test_inline_data_may_change_after_posting() -> None:
    """Inline data, of no region at all, may change after the post, even before there is a stream."""
    with End() as a, End() as b:
        limit = a.qp.query()["max_inline_data"]
        memory = bytearray(limit)
        foreign = MR(b.pd, memory)
        b.qp.post_recv(*((i, [b.mr.sge(i * limit, limit)]) for i in range(3)))
        if not streams():
            connect(a, b)
        for i, size in enumerate((0, 5, limit)):
            memory[:size] = bytes([65 + i]) * size
            addr, _, _ = foreign.sge()
            parts = [(addr, size // 2, 0), (addr + size // 2, size - size // 2, 0)]
            a.qp.post_send(SendWR(Opcode.SEND, parts, flags=SendFlag.INLINE | SendFlag.SIGNALED))
        memory[:] = bytes(limit)
        with pytest.raises(VerbsError):
            a.qp.post_send(SendWR(Opcode.SEND, [(addr, limit + 1, 0)], flags=SendFlag.INLINE))
        if streams():
            with pytest.raises(VerbsError):
                a.qp.post_send(SendWR(Opcode.RDMA_READ, [(addr, 1, 0)], flags=SendFlag.INLINE))
            connect(a, b)
        assert [wc.byte_len for wc in completions(b, 3, a)] == [0, 5, limit]
        assert b.buffer[limit : limit + 5] == b"BBBBB"
        assert b.buffer[2 * limit : 3 * limit] == b"C" * limit


@pytest.mark.soft("libibverbs refuses requests before the queue pair has its peer")
def test_work_posted_before_the_stream_waits_for_it() -> None:
    with End() as a, End() as b:
        b.buffer[:4] = b"data"
        a.qp.post_recv((3, [a.mr.sge(100, 10)]))
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 4)], wr_id=1, remote_addr=b.mr.addr, rkey=b.mr.rkey))
        # A responder may not send before its first reception: this SEND waits for the peer's READ.
        b.qp.post_send(SendWR(Opcode.SEND, [b.mr.sge(0, 4)], wr_id=2))
        assert a.poll() == [] and b.poll() == []
        connect(a, b)
        found = {wc.wr_id for wc in completions(a, 2, b)}
        assert found == {1, 3}
        assert a.buffer[:4] == b"data" and a.buffer[100:104] == b"data"


def test_more_reads_than_the_peer_takes_are_queued() -> None:
    with End(1 << 20, ord=4) as a, End(1 << 20) as b:
        connect(a, b, ird=2, ord=4)
        b.buffer[:] = fill(1 << 20, 9)
        size = 1 << 14
        a.qp.post_send(
            *(
                SendWR(
                    Opcode.RDMA_READ,
                    [a.mr.sge(i * size, size)],
                    wr_id=i,
                    remote_addr=b.mr.addr + i * size,
                    rkey=b.mr.rkey,
                )
                for i in range(64)
            )
        )
        assert [wc.wr_id for wc in completions(a, 64, b)] == list(range(64))
        assert a.qp.query()["max_rd_atomic"] == 2
        assert a.buffer == b.buffer


def test_completions_come_in_order_behind_a_read() -> None:
    with End() as a, End() as b:
        connect(a, b)
        b.qp.post_recv(*((i, [b.mr.sge(0, 8)]) for i in range(4)))
        read = SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 1000)], wr_id=0, remote_addr=b.mr.addr, rkey=b.mr.rkey)
        sends = [SendWR(Opcode.SEND, [a.mr.sge(0, 8)], wr_id=i) for i in range(1, 5)]
        a.qp.post_send(read, *sends)
        if streams():
            until(lambda: a.qp.counters()["tx_fpdus"] == 5, a)
            for _ in range(100):
                assert a.poll() == []
        assert [wc.wr_id for wc in completions(a, 5, b)] == [0, 1, 2, 3, 4]


def test_fence_holds_back_until_the_reads_are_done() -> None:
    with End() as a, End() as b:
        connect(a, b)
        b.qp.post_recv((0, [b.mr.sge(0, 8)]))
        b.buffer[:8] = expected = b"8 octets"
        a.qp.post_send(
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=0, remote_addr=b.mr.addr, rkey=b.mr.rkey),
            SendWR(Opcode.SEND, [a.mr.sge(0, 8)], wr_id=1, flags=SendFlag.FENCE | SendFlag.SIGNALED),
        )
        if streams():
            until(lambda: a.qp.counters()["tx_fpdus"] == 1, a)
        completions(b, 1, a)
        assert [wc.wr_id for wc in completions(a, 2, b)] == [0, 1]
        # The SEND sent the octets fetched by the READ.
        assert a.buffer[:8] == b.buffer[:8] == expected


def test_unsignalled_requests_make_no_completion() -> None:
    with End() as a, End() as b:
        connect(a, b)
        b.qp.post_recv(*((i, [b.mr.sge(0, 8)]) for i in range(3)))
        a.qp.post_send(
            SendWR(Opcode.SEND, wr_id=0, flags=0),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=1, flags=0, remote_addr=b.mr.addr, rkey=b.mr.rkey),
            SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 8)], wr_id=2, flags=0, remote_addr=b.mr.addr, rkey=b.mr.rkey),
            SendWR(Opcode.SEND, wr_id=3, flags=0),
            SendWR(Opcode.SEND, wr_id=4),
        )
        completions(b, 3, a)
        assert [wc.wr_id for wc in completions(a, 1, b)] == [4]
    with End(sq_sig_all=True) as a, End() as b:
        connect(a, b)
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR(Opcode.SEND, wr_id=9, flags=0))
        assert [wc.wr_id for wc in completions(a, 1, b)] == [9]


@pytest.mark.soft("a device's queues may be longer than was asked for")
def test_queue_limits() -> None:
    with End(max_send_wr=4, max_recv_wr=3) as a, End(max_recv_wr=8) as b:
        with pytest.raises(VerbsError) as caught:
            a.qp.post_recv(*((i, []) for i in range(4)))
        assert caught.value.errno == 12 and "request 3" in str(caught.value)
        with pytest.raises(VerbsError) as caught:
            a.qp.post_send(*(SendWR(wr_id=i) for i in range(5)))
        assert caught.value.errno == 12 and "request 4" in str(caught.value)
        b.qp.post_recv(*((i, []) for i in range(8)))
        connect(a, b)
        # The four accepted requests go out, and make room.
        assert [wc.wr_id for wc in completions(a, 4, b)] == [0, 1, 2, 3]
        a.qp.post_send(*(SendWR(wr_id=i) for i in range(4)))
        assert [wc.wr_id for wc in completions(b, 8, a)] == list(range(8))


def test_malformed_requests_are_refused() -> None:
    with End() as a:
        for request in (
            SendWR(Opcode.SEND, [a.mr.sge(0, 1)] * 9),
            SendWR(Opcode.RDMA_WRITE_WITH_IMM, [a.mr.sge(0, 1)]),
            SendWR(Opcode.SEND_WITH_IMM, [a.mr.sge(0, 1)]),
            SendWR(Opcode.SEND, [(a.mr.addr, 0xFFFFFFFF, a.mr.lkey)]),
        ):
            with pytest.raises(VerbsError) as caught:
                a.qp.post_send(request)
            assert caught.value.errno == 22
        with pytest.raises(VerbsError):
            a.qp.post_recv((0, [a.mr.sge(0, 1)] * 9))


@pytest.mark.soft("libibverbs has regions and windows that can be invalidated, and plain regions are not among them")
def test_send_with_invalidate() -> None:
    with End() as a, End() as b:
        connect(a, b)
        memory = bytearray(100)
        mr = MR(b.pd, memory, ALL)
        b.qp.post_recv((1, []), (2, []))
        a.qp.post_send(SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 8)], remote_addr=mr.addr, rkey=mr.rkey))
        a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=mr.rkey))
        (wc,) = completions(b, 1, a)
        assert wc.invalidated_rkey == mr.rkey
        completions(a, 2, b)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=mr.addr, rkey=mr.rkey))
        assert statuses(completions(a, 1, b)) == [Status.REM_ACCESS_ERR]
        assert statuses(completions(b, 1, a)) == [Status.WR_FLUSH_ERR]
        mr.close()


@pytest.mark.parametrize("crc", [False, True])
def test_traffic_in_both_directions_at_once(crc: bool) -> None:
    """READs, WRITEs and SENDs of random sizes both ways move every octet right."""
    area = 1 << 20
    with End(4 * area, max_send_wr=128) as a, End(4 * area, max_send_wr=128) as b:
        connect(a, b, crc=crc)
        draw = random.Random(4711)
        for _ in range(12):
            expected = []
            for end, peer in ((a, b), (b, a)):
                end.buffer[: 2 * area] = draw.randbytes(2 * area)
                peer.qp.post_recv(*((i, [peer.mr.sge(3 * area + i * 65536, 65536)]) for i in range(8)))
            for end, peer in ((a, b), (b, a)):
                wrs = []
                for i in range(8):
                    size = draw.choice([0, 3, 100, 5000, 65536])
                    at = draw.randint(0, area - 65536)
                    wrs.append(SendWR(Opcode.SEND, [end.mr.sge(at, size)], wr_id=i))
                    expected.append((peer, 3 * area + i * 65536, end.buffer[at : at + size]))
                    size = draw.choice([0, 1, 60, 4097, 65460, 131072])
                    at = draw.randint(area, 2 * area - 131072)
                    wrs.append(
                        SendWR(
                            Opcode.RDMA_READ,
                            [end.mr.sge(2 * area + i * 131072, size)] if size else [],
                            wr_id=100 + i,
                            remote_addr=peer.mr.addr + at,
                            rkey=peer.mr.rkey,
                        )
                    )
                    expected.append((end, 2 * area + i * 131072, peer.buffer[at : at + size]))
                draw.shuffle(wrs)
                order = [wr.opcode == Opcode.SEND for wr in wrs]
                sends = iter([wr for wr in wrs if wr.opcode == Opcode.SEND])
                sends = iter(sorted(sends, key=lambda wr: wr.wr_id))
                reads = iter([wr for wr in wrs if wr.opcode != Opcode.SEND])
                end.qp.post_send(*(next(sends) if is_send else next(reads) for is_send in order))
            found_a, found_b = completions(a, 24, b), completions(b, 24, a)
            assert set(statuses(found_a + found_b)) == {Status.SUCCESS}
            for end, at, data in expected:
                assert end.buffer[at : at + len(data)] == data

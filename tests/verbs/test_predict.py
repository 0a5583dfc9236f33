"""Many FPDUs in one reception: octets that come in another place than predicted still end where their headers say."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
from functools import partial

import pytest
from verbs_ends import (
    ALL,
    PATIENCE,
    End,
    Peer,
    completions,
    fpdu,
    raw_initiator,
    raw_responder,
    send,
    statuses,
    tagged,
    until,
)

from rmemcached.verbs import MR, Access, Opcode, SendWR, State, Status

pytestmark = [pytest.mark.once, pytest.mark.parametrize("crc", [False, True])]

SIZE = 1 << 17
FILL = 0xEE


def arrived(end: End, octets: int) -> bool:
    return end.qp.counters()["rx_bytes"] >= octets or end.qp.state == State.ERR


def deliver(peer: Peer, end: End, stream: bytes, cuts: list[int]) -> None:
    """Sends the pieces between the cuts. Before the next piece, the last is received or the stream broken."""
    start = end.qp.counters()["rx_bytes"]
    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        peer.sock.settimeout(PATIENCE)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sock.sendall(stream[first:last])
        peer.sock.settimeout(0)
        until(partial(arrived, end, start + last), end)


def reads(end: End, peer: Peer, sinks: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Posts a READ for each list of (offset, length). Returns the (address, length) of each sink."""
    wrs = [
        SendWR(Opcode.RDMA_READ, [end.mr.sge(*part) for part in parts], wr_id=n, remote_addr=1, rkey=2)
        for n, parts in enumerate(sinks)
    ]
    end.qp.post_send(*wrs)
    for _ in sinks:
        assert peer.recv_fpdu()[2:4] == b"\x41\x41"
    return [(end.mr.addr + parts[0][0], sum(length for _, length in parts)) for parts in sinks]


def segmented(opcode: int, stag: int, to: int, data: bytes, sizes: list[int]) -> list[bytes]:
    """The segments of a message; the last of `sizes` is repeated."""
    segments: list[bytes] = []
    at = 0
    while at < len(data) or not segments:
        size = sizes[min(len(segments), len(sizes) - 1)]
        segments.append(tagged(opcode, stag, to + at, data[at : at + size], last=at + size >= len(data)))
        at += size
    return segments


@pytest.mark.parametrize(
    "sizes",
    [[1000], [4096], [600, 600, 700], [3000, 512], [512, 3000], [1024, 1, 1024], [9000, 100], [1 << 15]],
    ids=str,
)
def test_read_responses_of_any_segmentation(sizes: list[int], crc: bool) -> None:
    """Four READs, the second with three elements, complete for responses of regular and irregular segments."""
    for pieces in (1, 2, 7):
        with End(SIZE) as end:
            peer, _ = raw_responder(end, crc=crc)
            sinks = [[(0, 20000)], [(40000, 5000), (30000, 10), (50000, 15000)], [(70000, 1)], [(70001, 30001)]]
            places = reads(end, peer, sinks)
            datas = [os.urandom(length) for _, length in places]
            segments = []
            for (to, _), data in zip(places, datas, strict=True):
                segments += segmented(2, end.mr.rkey, to, data, sizes)
            stream = b"".join(fpdu(segment, crc) for segment in segments) + fpdu(send(b"behind"), crc)
            end.qp.post_recv((99, [end.mr.sge(110000, 100)]))
            chance = random.Random(pieces)
            deliver(peer, end, stream, sorted(chance.sample(range(1, len(stream)), pieces - 1)))
            found = completions(end, 5)
            assert [(wc.wr_id, wc.status) for wc in found] == [(n, Status.SUCCESS) for n in (0, 1, 2, 3, 99)]
            for parts, data in zip(sinks, datas, strict=True):
                got = b"".join(bytes(end.buffer[at : at + length]) for at, length in parts)
                assert got == data
            assert end.buffer[110000:110006] == b"behind"


def test_read_responses_cut_at_every_octet(crc: bool) -> None:
    with End(SIZE) as end:
        peer, _ = raw_responder(end, crc=crc)
        cut = 1
        length = 0
        while cut <= length or not length:
            ((to, _),) = reads(end, peer, [[(0, 1700)]])
            data = os.urandom(1700)
            stream = b"".join(fpdu(s, crc) for s in segmented(2, end.mr.rkey, to, data, [600, 600, 500]))
            length = len(stream)
            deliver(peer, end, stream, [cut] if cut < length else [])
            assert statuses(completions(end, 1)) == [Status.SUCCESS]
            assert end.buffer[:1700] == data
            cut += 1 if cut < 20 or 610 < cut < 650 or cut > length - 30 else 41


@pytest.mark.parametrize("scratch", [False, True])
def test_writes_touch_what_they_cover(scratch: bool, crc: bool) -> None:
    """Bytes behind a WRITE change only with SCRATCH, for WRITEs of changing sizes and places between SENDs."""
    chance = random.Random(5)
    with End(SIZE, ALL | Access.SCRATCH if scratch else ALL) as end:
        inbox = bytearray(4096)
        region = MR(end.pd, inbox, ALL)
        peer, _ = raw_initiator(end, crc=crc)
        sends = 0
        for _ in range(40):
            end.buffer[:] = bytes([FILL]) * SIZE
            image: list[int | None] = [FILL] * SIZE
            frames = []
            to = messages = 0
            texts = []
            for _message in range(chance.randrange(1, 5)):
                data = chance.randbytes(chance.randrange(1, 20000))
                if chance.random() < 0.5:
                    to = chance.randrange(0, 90000)
                if scratch:
                    image[to:] = [None] * (SIZE - to)
                image[to : to + len(data)] = data
                sizes = chance.choice([[700], [4000], [512, 513, 2000], [2000, 600], [1 << 15]])
                frames += segmented(0, end.mr.rkey, end.mr.addr + to, data, sizes)
                to = (to + len(data)) % 90000
                messages += 1
                if chance.random() < 0.5:
                    sends += 1
                    texts.append(chance.randbytes(chance.choice([0, 5, 100, 900])))
                    end.qp.post_recv((sends, [region.sge(1000 * len(texts) - 1000, 1000)]))
                    frames.append(send(texts[-1], sends))
            stream = b"".join(fpdu(frame, crc) for frame in frames)
            served = end.qp.counters()["writes_served"]
            deliver(peer, end, stream, sorted(chance.sample(range(1, len(stream)), chance.randrange(3))))
            assert end.qp.counters()["writes_served"] == served + messages
            for n, (wc, text) in enumerate(zip(completions(end, len(texts)), texts, strict=True)):
                assert wc.byte_len == len(text)
                assert inbox[1000 * n : 1000 * n + len(text)] == text
            assert all(want is None or want == got for want, got in zip(image, end.buffer, strict=True))


def outcome(kind: str, change: tuple[int, int], at_once: bool, crc: bool) -> tuple[object, ...]:
    """The outcome of a message of three segments with a wrong octet in the second header."""
    with End(100, ALL | Access.SCRATCH) as end:
        # The buffer is aligned, so a changed bit of an address has the same effect wherever the buffer is.
        memory = memoryview(mmap.mmap(-1, 2 * SIZE))
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % SIZE
        end.buffer = memory[start : start + SIZE]
        end.mr = MR(end.pd, end.buffer, ALL | Access.SCRATCH)
        data = bytes(range(250)) * 12
        if kind == "READ":
            peer, _ = raw_responder(end, crc=crc)
            reads(end, peer, [[(1000, 3000)], [(5000, 100)]])
        else:
            peer, _ = raw_initiator(end, crc=crc)
        end.qp.post_recv((7, [end.mr.sge(100000, 1000)]))
        segments = segmented(2 if kind == "READ" else 0, end.mr.rkey, end.mr.addr + 1000, data, [1000])
        frames = [bytearray(fpdu(segment, crc)) for segment in segments]
        octet, flip = change
        frames[1][octet] ^= flip
        stream = b"".join(frames)
        deliver(peer, end, stream, [] if at_once else [len(frames[0]), len(frames[0]) + 16])
        terminate = b""
        if end.qp.state == State.ERR:
            terminate = peer.recv_fpdu()[:24]
        found = [(wc.wr_id, wc.status) for wc in end.done]
        beyond = bytes(end.buffer[:1000]) + bytes(end.buffer[4000:])
        counters = {name: end.qp.counters()[name] for name in ("rx_fpdus", "writes_served", "reads", "recvs")}
        peer.close()
        return end.qp.state, terminate, found, beyond if kind == "READ" else beyond[:1000], counters


@pytest.mark.parametrize("kind", ["READ", "WRITE"])
def test_a_header_that_is_not_the_expected(kind: str, crc: bool) -> None:
    """A changed header among frames received at once has the same outcome as among frames one by one, and nothing
    beyond the target changes."""
    for octet in range(16):
        for flip in (0x01, 0x40, 0x80):
            change = octet, flip
            one, other = outcome(kind, change, True, crc), outcome(kind, change, False, crc)
            # Behind a wrong length random octets count as headers: only the octets beyond the target are the same.
            assert one[3] == other[3] and (octet < 2 or one == other), change


@pytest.mark.parametrize("kind", ["READ", "WRITE"])
def test_an_octet_is_wrong(kind: str, crc: bool) -> None:
    """With CRC a wrong octet ends the stream: its READ does not complete, the READ before does."""
    for wrong in (0, 15, 16, 17, 1100, 1999, 2000, 2005, 2016, 2019, 2020, 2100, 4040, 4100, 5000, 6057, 6059):
        for cuts in ([], [1500], [2005, 2030]):
            with End(SIZE, ALL | Access.SCRATCH) as end:
                data = os.urandom(3 * 2001)
                if kind == "READ":
                    peer, _ = raw_responder(end, crc=crc)
                    places = reads(end, peer, [[(0, 1000)], [(1000, len(data))]])
                    first = tagged(2, end.mr.rkey, places[0][0], data[:1000])
                else:
                    peer, _ = raw_initiator(end, crc=crc)
                    first = tagged(0, end.mr.rkey, end.mr.addr, data[:1000])
                segments = segmented(2 if kind == "READ" else 0, end.mr.rkey, end.mr.addr + 1000, data, [2001])
                stream = bytearray(b"".join(fpdu(segment, crc) for segment in segments))
                assert len(stream) == 3 * 2024
                deliver(peer, end, fpdu(first, crc), [])
                if crc:
                    stream[wrong] ^= 0x10
                deliver(peer, end, bytes(stream), cuts)
                if crc:
                    if wrong == 0:
                        # The wrong length makes the frame longer, so its end must still come.
                        peer.raw(bytes(1 << 16))
                    assert peer.recv_terminate() == (2, 0, 2)
                    until(lambda end=end: end.qp.state == State.ERR, end)  # type: ignore[misc]
                else:
                    assert end.buffer[1000 : 1000 + len(data)] == data
                wanted = [Status.SUCCESS, Status.WR_FLUSH_ERR if crc else Status.SUCCESS]
                assert statuses(completions(end, 2)) == wanted if kind == "READ" else not end.done


def test_a_region_that_goes_away_while_responses_come(crc: bool) -> None:
    with End(SIZE) as end:
        peer, _ = raw_responder(end, crc=crc)
        other = MR(end.pd, bytearray(8000), ALL)
        wrs = [
            SendWR(Opcode.RDMA_READ, [mr.sge(0, 8000)], wr_id=n, remote_addr=1, rkey=2)
            for n, mr in enumerate((end.mr, other))
        ]
        end.qp.post_send(*wrs)
        peer.recv_fpdu()
        peer.recv_fpdu()
        keys = [(mr.rkey, mr.addr) for mr in (end.mr, other)]
        other.close()
        data = os.urandom(8000)
        segments = [segment for key, to in keys for segment in segmented(2, key, to, data, [1000])]
        deliver(peer, end, b"".join(fpdu(segment, crc) for segment in segments), [])
        assert statuses(completions(end, 2)) == [Status.SUCCESS, Status.LOC_PROT_ERR]
        assert end.buffer[:8000] == data


def test_reads_into_one_sink(crc: bool) -> None:
    """Octets taken by mistake for a response are put back, and are there when their turn comes."""
    with End(SIZE) as end:
        peer, _ = raw_responder(end, crc=crc)
        places = reads(end, peer, [[(0, 20000)]] * 4)
        end.qp.post_recv(*((100 + n, [end.mr.sge(100000 + 100 * n, 100)]) for n in range(4)))
        datas = [os.urandom(20000) for _ in places]
        stream = b""
        for n, ((to, _), data) in enumerate(zip(places, datas, strict=True)):
            for segment in segmented(2, end.mr.rkey, to, data, [1000]):
                stream += fpdu(segment, crc)
            stream += fpdu(send(b"between %d" % n, msn=n + 1), crc)
        deliver(peer, end, stream, [])
        found = completions(end, 8)
        assert [(wc.wr_id, wc.status) for wc in found] == [
            (wr_id, Status.SUCCESS) for n in range(4) for wr_id in (n, 100 + n)
        ]
        assert end.buffer[:20000] == datas[-1]
        assert [end.buffer[100000 + 100 * n :][:9] for n in range(4)] == [b"between %d" % n for n in range(4)]


@pytest.mark.parametrize("size", [598, 1999, 4000])
def test_short_messages_fill_the_buffer(size: int, crc: bool) -> None:
    """Behind short responses the buffer takes as many octets as have room, and no more."""
    with End(SIZE, max_recv_wr=256) as end:
        peer, _ = raw_responder(end, crc=crc)
        msn = 1
        for _ in range(8):
            places = reads(end, peer, [[(size * n, size)] for n in range(16)])
            datas = [os.urandom(size) for _ in places]
            end.qp.post_recv(*((100, [end.mr.sge(100000, 20000)]) for n in range(60)))
            segments = [tagged(2, end.mr.rkey, to, data) for (to, _), data in zip(places, datas, strict=True)]
            segments += [send(datas[0], msn=msn + n) for n in range(60)]
            msn += 60
            deliver(peer, end, b"".join(fpdu(segment, crc) for segment in segments), [])
            assert statuses(completions(end, 76)) == [Status.SUCCESS] * 76
            assert end.buffer[: 16 * size] == b"".join(datas)

"""soft_iw octet by octet, with a hand-made peer on a raw socket."""

from __future__ import annotations

import os
import random
import socket
import struct
import time

import polling
import pytest
from verbs_ends import (
    ALL,
    REMOTE,
    REPLY,
    REQUEST,
    End,
    Peer,
    bind,
    bound,
    completions,
    crc32c,
    fpdu,
    mpa_frame,
    raw_initiator,
    raw_responder,
    read_request,
    read_request_segment,
    send,
    statuses,
    tagged,
    tcp_pair,
    tcp_pair_mss,
    untagged,
    until,
    write,
)

from rmemcached.verbs import (
    MR,
    MW,
    PD,
    QP,
    Access,
    Opcode,
    SendFlag,
    SendWR,
    State,
    Status,
    StreamState,
    VerbsError,
    parse_request,
    reject,
)

pytestmark = pytest.mark.once

SEND_HELLO = "001741430000000000000000000000010000000068656c6c6f000000b990b10c"
SEND_SE_EMPTY = "00124145000000000000000000000002000000009f746d49"
WRITE_DATA = "0012c14011223344000000000000100064617461e8503db0"
RTR_WRITE = "000ec140000000010000000000000000ebd34c5f"
READ_REQUEST = (
    "002e414100000000000000010000000100000000aabbcc0100000000000020000000004011223344000000000000100007294a49"
)
READ_RESPONSE = "0012c142aabbcc010000000000002000646174619bf7779c"
TERMINATE_STAG = "0016414700000000000000020000000100000000110000007cb94e29"


def test_the_hand_made_frames_are_the_reference_vectors() -> None:
    assert fpdu(send(b"hello")).hex() == SEND_HELLO
    assert fpdu(untagged(5, msn=2)).hex() == SEND_SE_EMPTY
    assert fpdu(write(0x11223344, 0x1000, b"data")).hex() == WRITE_DATA
    assert fpdu(tagged(0, 1, 0)).hex() == RTR_WRITE
    assert fpdu(read_request_segment((0xAABBCC01, 0x2000), 64, (0x11223344, 0x1000))).hex() == READ_REQUEST
    assert fpdu(tagged(2, 0xAABBCC01, 0x2000, b"data")).hex() == READ_RESPONSE
    assert fpdu(untagged(7, bytes.fromhex("11000000"), qn=2)).hex() == TERMINATE_STAG
    assert crc32c(b"123456789") == 0xE3069283


def test_sends_are_produced_as_the_vectors() -> None:
    with End() as end:
        peer, _ = raw_responder(end)
        end.buffer[:5] = b"hello"
        end.qp.post_send(
            SendWR(Opcode.SEND, [end.mr.sge(0, 5)]),
            SendWR(Opcode.SEND, [], flags=SendFlag.SOLICITED),
        )
        assert peer.recv(56).hex() == SEND_HELLO + SEND_SE_EMPTY


def test_a_write_is_produced_as_the_vector() -> None:
    with End() as end:
        peer, _ = raw_responder(end)
        end.buffer[:4] = b"data"
        wr = SendWR(Opcode.RDMA_WRITE, [end.mr.sge(0, 4)], remote_addr=0x1000, rkey=0x11223344)
        end.qp.post_send(wr)
        assert peer.recv(24).hex() == WRITE_DATA
        wr = SendWR(Opcode.RDMA_WRITE, [], remote_addr=0, rkey=1)
        end.qp.post_send(wr)
        assert peer.recv(20).hex() == RTR_WRITE


def test_a_read_is_asked_for_and_its_response_taken() -> None:
    with End() as end:
        peer, _ = raw_responder(end)
        end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(16, 64)], wr_id=3, remote_addr=0x1000, rkey=0x11223344))
        sink = end.mr.rkey, end.mr.addr + 16
        assert peer.recv_fpdu() == fpdu(read_request_segment(sink, 64, (0x11223344, 0x1000)))
        data = os.urandom(64)
        peer.send(tagged(2, sink[0], sink[1], data[:60], last=False), tagged(2, sink[0], sink[1] + 60, data[60:]))
        (wc,) = completions(end, 1)
        assert (wc.wr_id, wc.status, wc.byte_len) == (3, Status.SUCCESS, 64)
        assert end.buffer[16:80] == data


def test_a_read_is_served() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        end.buffer[:4] = b"data"
        peer.send(read_request_segment((0xAABBCC01, 0x2000), 4, (end.mr.rkey, end.mr.addr)))
        assert peer.recv(24).hex() == READ_RESPONSE
        # A zero-length READ is answered with any key and address.
        peer.send(read_request_segment((0xAABBCC01, 0x2000), 0, (1, 2), msn=2))
        assert peer.recv_fpdu() == fpdu(tagged(2, 0xAABBCC01, 0x2000))
        assert end.qp.counters()["reads_served"] == 2


def received(end: End, count: int) -> None:
    until(lambda: end.qp.counters()["rx_bytes"] >= count, end)


def test_a_new_stream_after_a_read_that_broke_off() -> None:
    """A queue pair whose stream ended within a READ's answer begins anew after RESET."""
    with End() as end:
        peer, _ = raw_responder(end, crc=False)
        end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 5000)], remote_addr=1, rkey=2))
        peer.recv_fpdu()
        peer.send(tagged(2, end.mr.rkey, end.mr.addr, bytes(2000), last=False))
        until(lambda: end.qp.counters()["rx_fpdus"] == 1, end)
        peer.close()
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
        end.qp.modify(State.RESET)
        end.qp.ready(access=7)
        peer, _ = raw_responder(end, crc=False)
        end.qp.post_recv((1, [end.mr.sge(0, 8)]))
        peer.send(send(b"anew"))
        assert statuses(completions(end, 1)) == [Status.SUCCESS]


def test_frames_are_parsed_at_every_cut() -> None:
    """Frames of all kinds, delivered in two pieces with a cut anywhere, are parsed, with CRC and without."""
    for crc in (True, False):
        with End() as end:
            frames = [
                send(b"hello", 1),
                untagged(5, b"", msn=2),
                tagged(0, 1, 0),
                write(end.mr.rkey, end.mr.addr + 100, b"data"),
                send(b"first, ", 3, last=False),
                write(end.mr.rkey, end.mr.addr + 104, b"more"),
                send(b"last", 3, mo=7),
                read_request_segment((7, 8), 3, (end.mr.rkey, end.mr.addr + 100)),
            ]
            stream = b"".join(fpdu(frame, crc) for frame in frames)
        for cut in range(0, len(stream), 1 if crc else 3):
            with End(512) as end:
                peer, _ = raw_initiator(end, crc=crc)
                frames[3] = write(end.mr.rkey, end.mr.addr + 100, b"data")
                frames[5] = write(end.mr.rkey, end.mr.addr + 104, b"more")
                frames[7] = read_request_segment((7, 8), 3, (end.mr.rkey, end.mr.addr + 100))
                stream = b"".join(fpdu(frame, crc) for frame in frames)
                end.qp.post_recv(*((i, [end.mr.sge(i * 20, 20)]) for i in range(3)))
                peer.raw(stream[:cut])
                received(end, cut)
                peer.raw(stream[cut:])
                assert [(wc.status, wc.byte_len) for wc in completions(end, 3)] == [(0, 5), (0, 0), (0, 11)]
                assert end.buffer[:5] == b"hello" and end.buffer[40:51] == b"first, last"
                assert peer.recv_fpdu()[2:] == fpdu(tagged(2, 7, 8, b"dat"), crc)[2:]
                assert end.buffer[100:108] == b"datamore"


def test_large_fpdus_are_taken() -> None:
    """FPDUs of any size up to 65535 octets of ULPDU are taken, as siw and hardware may send them."""
    for crc in (True, False):
        with End(1 << 18) as end:
            peer, _ = raw_initiator(end, crc=crc)
            end.qp.post_recv((1, [end.mr.sge(0, 1 << 17)]))
            data = os.urandom(65535 - 18)
            peer.send(send(data, 1, last=False), send(data[:1001], 1, mo=len(data)))
            (wc,) = completions(end, 1)
            assert wc.byte_len == len(data) + 1001
            assert end.buffer[: wc.byte_len] == data + data[:1001]
            data = os.urandom(65535 - 14)
            peer.send(write(end.mr.rkey, end.mr.addr + 77, data))
            until(lambda: end.qp.counters()["writes_served"] == 1, end)
            assert end.buffer[77 : 77 + len(data)] == data


def test_without_crc_large_payloads_do_not_pass_the_receive_buffer() -> None:
    with End(1 << 21) as end:
        peer, _ = raw_initiator(end, crc=False)
        data = os.urandom(1 << 20)
        step = 65000
        segments = [
            write(end.mr.rkey, end.mr.addr + at, data[at : at + step], last=at + step >= len(data))
            for at in range(0, len(data), step)
        ]
        peer.send(*segments)
        until(lambda: end.qp.counters()["writes_served"] == 1, end)
        assert end.buffer[: len(data)] == data
        assert end.qp.counters()["rx_staged_bytes"] <= 4096


def test_fpdus_respect_the_segment_size() -> None:
    with End() as end:
        ours, theirs = tcp_pair_mss(536)
        end.qp.connect(ours, crc=False)
        read_request(theirs)
        peer = Peer(theirs, end, crc=False)
        peer.raw(mpa_frame(REPLY, 0x10, 2, (16, 16)))
        end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 4000)]))
        offset = 0
        while offset < 4000:
            frame = peer.recv_fpdu()
            assert len(frame) <= 536 and len(frame) % 4 == 0
            qn, msn, mo = struct.unpack(">III", frame[8:20])
            assert (qn, msn, mo) == (0, 1, offset)
            payload = int.from_bytes(frame[:2], "big") - 18
            offset += payload
            assert frame[2] == (0x41 if offset == 4000 else 0x01)
        peer.close()


# The next tests are about MPA start-up.


def test_request_frames() -> None:
    with End(ird=16, ord=16) as end:
        _, request = raw_responder(end, crc=True)
        assert request.hex() == "4d504120494420526571204672616d65" + "50020004" + "00100010"
    with End() as end:
        _, request = raw_responder(end, crc=False)
        assert request.hex() == "4d504120494420526571204672616d65" + "10020004" + "00100010"
    with End() as end:
        ours, theirs = tcp_pair()
        end.qp.connect(ours, crc=True, ird=0, ord=0, private_data=b"token")
        assert read_request(theirs) == mpa_frame(REQUEST, 0x40, 1, private=b"token")
        theirs.close()


def test_request_parser() -> None:
    whole = mpa_frame(REQUEST, 0x50, 2, (0x8000 | 5, 7), b"private")
    for cut in range(len(whole)):
        assert parse_request(whole[:cut]) is None
    parsed = parse_request(whole + b"behind")
    assert parsed == {
        "revision": 2,
        "enhanced": True,
        "crc": True,
        "peer_to_peer": True,
        "ird": 5,
        "ord": 7,
        "private_data": b"private",
        "consumed": len(whole),
    }
    plain = parse_request(mpa_frame(REQUEST, 0x10, 1, private=b"xy"))
    assert plain is not None and not plain["enhanced"] and plain["private_data"] == b"xy"
    for bad in (
        b"get key\r\n",
        b"MPA ID Req Fram3",
        REPLY,
        mpa_frame(REQUEST, 0x40, 0),
        mpa_frame(REQUEST, 0x40, 3),
        mpa_frame(REQUEST, 0xC0, 1),
        mpa_frame(REQUEST, 0x10, 2),
        REQUEST + b"\x40\x01\x02\x01",
    ):
        with pytest.raises(VerbsError) as caught:
            parse_request(bad)
        assert caught.value.errno == 71


@pytest.mark.parametrize(
    ("request_frame", "want_crc", "reply_frame", "crc"),
    [
        (mpa_frame(REQUEST, 0x00, 1), False, mpa_frame(REPLY, 0x00, 1), False),
        (mpa_frame(REQUEST, 0x40, 1, private=b"x"), False, mpa_frame(REPLY, 0x40, 1), True),
        (mpa_frame(REQUEST, 0x00, 1), True, mpa_frame(REPLY, 0x40, 1), True),
        (mpa_frame(REQUEST, 0x00, 2), False, mpa_frame(REPLY, 0x00, 2), False),
        (mpa_frame(REQUEST, 0x10, 2, (16, 16)), False, mpa_frame(REPLY, 0x10, 2, (8, 8)), False),
        (mpa_frame(REQUEST, 0x10, 2, (3, 2)), False, mpa_frame(REPLY, 0x10, 2, (8, 3)), False),
        # A peer that wants no negotiation of a depth gets none.
        (mpa_frame(REQUEST, 0x10, 2, (0x3FFF, 0x3FFF)), False, mpa_frame(REPLY, 0x10, 2, (0x3FFF, 0x3FFF)), False),
        (mpa_frame(REQUEST, 0x10, 2, (0x3FFF, 5)), False, mpa_frame(REPLY, 0x10, 2, (8, 0x3FFF)), False),
        # In peer-to-peer mode we choose the kind of ready-to-receive frame.
        (mpa_frame(REQUEST, 0x10, 2, (0xC010, 0xC010)), False, mpa_frame(REPLY, 0x10, 2, (0x8008, 0x8008)), False),
        (mpa_frame(REQUEST, 0x10, 2, (0x8010, 0x4010)), False, mpa_frame(REPLY, 0x10, 2, (0x8008, 0x4008)), False),
        (mpa_frame(REQUEST, 0x10, 2, (0xC010, 0x0010)), False, mpa_frame(REPLY, 0x10, 2, (0x8008, 0x8008)), False),
    ],
)
def test_replies(request_frame: bytes, want_crc: bool, reply_frame: bytes, crc: bool) -> None:
    with End() as end:
        peer, reply = raw_initiator(end, crc=crc, request=request_frame, want_crc=want_crc, ird=8, ord=8)
        assert reply == reply_frame
        end.qp.post_recv((1, [end.mr.sge(0, 8)]))
        # The responder sends nothing before its first reception, here a ready-to-receive WRITE.
        end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 1)]))
        assert peer.silent()
        peer.send(tagged(0, 1, 0))
        assert peer.recv_fpdu()[2:4] == b"\x41\x43"
        peer.send(send(b"after"))
        assert statuses(completions(end, 2)) == [Status.SUCCESS] * 2


def test_private_data_of_the_reply() -> None:
    with End() as end:
        _, reply = raw_initiator(end, private_data=b"welcome")
        assert reply == mpa_frame(REPLY, 0x50, 2, (16, 16), b"welcome")


def test_octets_behind_the_request_are_refused() -> None:
    with End() as end:
        ours, theirs = tcp_pair()
        frame = mpa_frame(REQUEST, 0x10, 2, (16, 16))
        for bad in (frame + b"\x00", frame[:-1], b""):
            with pytest.raises(VerbsError) as caught:
                end.qp.accept(theirs, bad)
            assert caught.value.errno == 71
        # After the refusals socket and queue pair can still be used.
        end.qp.accept(theirs, frame)
        with pytest.raises(VerbsError):
            end.qp.accept(ours, frame)
        ours.close()


@pytest.mark.parametrize("words", [None, (16, 16)])
def test_reject(words: tuple[int, int] | None) -> None:
    with End() as end:
        ours, theirs = tcp_pair()
        end.qp.post_recv((1, []))
        end.qp.connect(ours, crc=True, ird=16 if words else 0, ord=16 if words else 0)
        request = read_request(theirs)
        reject(theirs, request)
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
        assert end.qp.state == State.ERR
        assert theirs.recv(1) == b""
        theirs.close()
    ours, theirs = tcp_pair()
    reject(theirs, request)
    assert ours.recv(100) == mpa_frame(REPLY, 0x70 if words else 0x60, 2 if words else 1, words)
    reject(theirs, request, b"why")
    assert ours.recv(100) == mpa_frame(REPLY, 0x70 if words else 0x60, 2 if words else 1, words, b"why")
    with pytest.raises(VerbsError):
        reject(theirs, request, bytes(509))
    # A request with markers gets a frame of rejection.
    reject(theirs, mpa_frame(REQUEST, 0x80, 1))
    assert ours.recv(100) == mpa_frame(REPLY, 0x20, 1)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "reply",
    [
        mpa_frame(REQUEST, 0x10, 2, (16, 16)),
        mpa_frame(REPLY, 0x10, 3, (16, 16)),
        mpa_frame(REPLY, 0x90, 2, (16, 16)),
        mpa_frame(REPLY, 0x00, 2),
        mpa_frame(REPLY, 0x10, 2, (16, 16)) + b"\x00",
        b"HTTP/1.1 400 Bad Request\r\n",
        REPLY + b"\x10\x02\xff\xff",
        b"",
    ],
)
def test_bad_replies_end_the_queue_pair(reply: bytes) -> None:
    with End() as end:
        end.qp.post_recv((1, []))
        end.qp.post_send(SendWR(wr_id=2))
        peer, _ = raw_responder(end, reply=reply)
        if not reply:
            peer.sock.shutdown(socket.SHUT_WR)
        assert statuses(completions(end, 2)) == [Status.WR_FLUSH_ERR] * 2
        assert end.qp.state == State.ERR


def test_reply_with_more_reads_than_we_take() -> None:
    with End() as end:
        peer, _ = raw_responder(end, crc=True, ird=4, ord=4, reply=mpa_frame(REPLY, 0x50, 2, (16, 5)))
        assert peer.recv_terminate() == (2, 0, 6)
        assert end.qp.state == State.ERR


def test_reply_in_pieces() -> None:
    with End() as end:
        peer, _ = raw_responder(end, crc=True, reply=b"")
        for octet in mpa_frame(REPLY, 0x50, 2, (16, 16), b"private"):
            peer.raw(bytes([octet]))
            assert end.poll() == []
        end.qp.post_send(SendWR())
        assert peer.recv_fpdu() == fpdu(send(b""))


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("pause", [0, 30])
@pytest.mark.parametrize("channel", [True, False])
def test_peer_to_peer(channel: bool, pause: int, crc: bool) -> None:
    """The ready-to-receive frame comes first, after the pause. From then on the responder may send."""
    with End(channel=channel) as end:
        ours, theirs = tcp_pair()
        end.qp.post_recv((1, [end.mr.sge(0, 8)]))
        end.qp.connect(ours, crc=crc, ird=8, ord=4, peer_to_peer=True, pause=pause)
        end.qp.post_send(SendWR(Opcode.SEND, [], wr_id=2))
        assert read_request(theirs) == mpa_frame(REQUEST, 0x50 if crc else 0x10, 2, (0x8008, 0x8004))
        peer = Peer(theirs, end, crc)
        begin = time.monotonic()
        peer.raw(mpa_frame(REPLY, 0x50 if crc else 0x10, 2, (0x8004, 0x8008), b"welcome"))
        if channel:
            # The descriptor wakes a waiting program for the reply and for the end of the pause.
            assert end.channel is not None
            os.set_blocking(end.channel.fileno(), False)
            while not polling.readable(theirs, 0):
                assert polling.readable(end.channel, 5)
                end.channel.get_event()
        assert peer.recv(20)[:-4].hex() == RTR_WRITE[:-8]
        assert time.monotonic() - begin >= pause / 1000
        assert peer.recv_fpdu()[2:4] == b"\x41\x43"
        peer.send(send(b"first"))
        assert {wc.wr_id for wc in completions(end, 2)} == {1, 2}
        assert end.qp.stream() == {
            "state": StreamState.OPEN,
            "crc": crc,
            "ird": 8,
            "ord": 4,
            "peer_ird": 4,
            "peer_ord": 8,
            "private_data": b"welcome",
        }
        peer.close()


def test_peer_to_peer_without_a_common_frame() -> None:
    with End() as end:
        ours, theirs = tcp_pair()
        end.qp.connect(ours, peer_to_peer=True)
        read_request(theirs)
        peer = Peer(theirs, end, crc=False)
        peer.raw(mpa_frame(REPLY, 0x10, 2, (0xC010, 0x4010)))
        assert peer.recv_terminate() == (2, 0, 7)
        assert end.qp.state == State.ERR
        peer.close()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_the_end_of_a_stream_that_pauses(how: str) -> None:
    with End() as end:
        ours, theirs = tcp_pair()
        end.qp.post_recv((1, []))
        end.qp.connect(ours, pause=60000)
        read_request(theirs)
        peer = Peer(theirs, end, crc=False)
        peer.raw(mpa_frame(REPLY, 0x10, 2, (16, 16)))
        until(lambda: end.qp.stream()["state"] == StreamState.OPEN, end)
        if how == "close":
            peer.close()
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
            assert end.qp.stream()["state"] == StreamState.CLOSED
        else:
            end.qp.modify(State.RESET)
            assert end.qp.stream()["state"] == StreamState.NONE
            assert end.qp.stream()["private_data"] == b""
            peer.close()


def test_start_up_times_out_after_ten_seconds() -> None:
    """The channel's descriptor wakes the program at the time-out, and not before."""
    with End() as end:
        ours, theirs = tcp_pair()
        end.qp.post_recv((1, []))
        end.cq.arm()
        end.qp.connect(ours)
        assert end.channel is not None
        assert not polling.readable(end.channel, 9.5)
        assert polling.readable(end.channel, 2)
        assert end.channel.get_event() is end.cq
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
        assert read_request(theirs) and theirs.recv(1) == b""
        theirs.close()


def of_window(
    end: End, kind: int, access: int = REMOTE, *, at: int = 0, change: int = 0, foreign: bool = False
) -> tuple[int, int]:
    """(key, address) of a memory window of the end, or of another queue pair in the end's domain."""
    if foreign:
        qp = QP(end.pd, end.cq)
        qp.ready()
    mw, mr = bound(end, kind, access, qp=qp if foreign else None)
    end.kept = mw, mr, foreign and qp  # type: ignore[attr-defined]
    return mw.rkey ^ change, mr.addr + 100 + at


def with_window(end: End) -> int:
    mr = MR(end.pd, bytearray(100), ALL | Access.MW_BIND)
    mw = MW(end.pd)
    bind(end, mw, mr, 0, 100)
    end.kept = mw, mr  # type: ignore[attr-defined]
    return mr.rkey


# Each of these faults of a peer ends the stream with its Terminate, and this queue pair only.
WRONG = {
    "unknown DDP version, tagged": (lambda e: bytes([0xC0]) + write(e.mr.rkey, e.mr.addr, b"x")[1:], (1, 1, 4)),
    "unknown DDP version, untagged": (lambda e: bytes([0x42]) + send(b"x")[1:], (1, 2, 6)),
    "unknown RDMAP version": (lambda e: bytes([0x41, 0x83]) + send(b"x")[2:], (0, 2, 5)),
    "unknown RDMAP opcode": (lambda e: untagged(11, b"x"), (0, 2, 6)),
    "immediate data": (lambda e: untagged(8, bytes(8)), (0, 2, 6)),
    "tagged send": (lambda e: tagged(3, e.mr.rkey, e.mr.addr, b"x"), (0, 2, 6)),
    "untagged write": (lambda e: untagged(0, b"x"), (0, 2, 6)),
    "read request on the send queue": (lambda e: untagged(1, bytes(28)), (0, 2, 6)),
    "send on the read queue": (lambda e: untagged(3, bytes(28), qn=1), (0, 2, 6)),
    "send on the terminate queue": (lambda e: untagged(3, b"x", qn=2), (0, 2, 6)),
    "unknown queue": (lambda e: untagged(3, b"x", qn=3), (1, 2, 1)),
    "wrong MSN": (lambda e: send(b"x", 2), (1, 2, 3)),
    "MSN zero": (lambda e: send(b"x", 0), (1, 2, 3)),
    "MO gap": (lambda e: send(b"x", 1, mo=4), (1, 2, 4)),
    "endless empty segments": (lambda e: send(b"", 1, last=False), (1, 2, 4)),
    "longer than the receive": (lambda e: send(bytes(101), 1), (1, 2, 5)),
    "wrong MSN of a READ": (lambda e: read_request_segment((1, 2), 1, (e.mr.rkey, e.mr.addr), msn=2), (1, 2, 3)),
    "READ with an offset": (lambda e: read_request_segment((1, 2), 1, (e.mr.rkey, e.mr.addr), mo=1), (1, 2, 4)),
    "READ in segments": (lambda e: read_request_segment((1, 2), 1, (e.mr.rkey, e.mr.addr), last=False), (1, 2, 5)),
    "READ request too short": (lambda e: untagged(1, bytes(27), qn=1), (1, 0, 0)),
    "READ request too long": (lambda e: untagged(1, bytes(29), qn=1), (1, 2, 5)),
    "READ of an unknown STag": (lambda e: read_request_segment((1, 2), 1, (e.mr.rkey ^ 1, e.mr.addr)), (0, 1, 0)),
    "READ out of bounds": (lambda e: read_request_segment((1, 2), 5, (e.mr.rkey, e.mr.addr + 65532)), (0, 1, 1)),
    "READ before the start": (lambda e: read_request_segment((1, 2), 5, (e.mr.rkey, e.mr.addr - 1)), (0, 1, 1)),
    "READ longer than all": (lambda e: read_request_segment((1, 2), 2**32 - 1, (e.mr.rkey, e.mr.addr)), (0, 1, 1)),
    "READ around the end of memory": (
        lambda e: read_request_segment((1, 2), 9, (e.mr.rkey, 2**64 - 8)),
        (0, 1, 4),
    ),
    "WRITE to an unknown STag": (lambda e: write(e.mr.rkey ^ 0x100, e.mr.addr, b"x"), (1, 1, 0)),
    "WRITE out of bounds": (lambda e: write(e.mr.rkey, e.mr.addr + 65536, b"x"), (1, 1, 1)),
    "WRITE before the start": (lambda e: write(e.mr.rkey, e.mr.addr - 1, b"xy"), (1, 1, 1)),
    "WRITE around the end of memory": (lambda e: write(e.mr.rkey, 2**64 - 1, b"xy"), (1, 1, 3)),
    "response to no READ": (lambda e: tagged(2, e.mr.rkey, e.mr.addr, b"x"), (0, 2, 6)),
    "invalidation of an unknown STag": (lambda e: untagged(4, b"x", invalidate=12345), (0, 1, 9)),
    "READ before a window": (lambda e: read_request_segment((1, 2), 8, of_window(e, 1, at=-1)), (0, 1, 1)),
    "READ behind a window": (lambda e: read_request_segment((1, 2), 8, of_window(e, 2, at=93)), (0, 1, 1)),
    "WRITE behind a window": (lambda e: write(*of_window(e, 2, at=99), b"xy"), (1, 1, 1)),
    "READ of a window for WRITEs": (lambda e: read_request_segment((1, 2), 8, of_window(e, 1, 2)), (0, 1, 2)),
    "WRITE to a window for READs": (lambda e: write(*of_window(e, 2, 4), b"x"), (1, 1, 0)),
    "WRITE to another key of a window": (lambda e: write(*of_window(e, 2, change=1), b"x"), (1, 1, 0)),
    "READ of a window of another queue pair": (
        lambda e: read_request_segment((1, 2), 8, of_window(e, 2, foreign=True)),
        (0, 1, 3),
    ),
    "WRITE to a window of another queue pair": (lambda e: write(*of_window(e, 2, foreign=True), b"x"), (1, 1, 2)),
    "invalidation of a window of another queue pair": (
        lambda e: untagged(4, invalidate=of_window(e, 2, foreign=True)[0]),
        (0, 1, 9),
    ),
    "invalidation of a window of type 1": (lambda e: untagged(4, invalidate=of_window(e, 1)[0]), (0, 1, 9)),
    "invalidation of an unbound window": (lambda e: untagged(4, invalidate=MW(e.pd, 2).rkey), (0, 1, 9)),
    "invalidation of a region with a window": (lambda e: untagged(4, invalidate=with_window(e)), (0, 1, 9)),
    "ULPDU shorter than its header": (lambda e: b"\x41\x43" + bytes(15), (1, 0, 0)),
    "empty ULPDU": (lambda e: b"", (1, 0, 0)),
}


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame(what: str, crc: bool) -> None:
    make, error = WRONG[what]
    with End() as end, End() as bystander:
        peer, _ = raw_initiator(end, crc=crc)
        other, _ = raw_initiator(bystander, crc=crc)
        end.qp.post_recv((1, [end.mr.sge(0, 100)]), (2, [end.mr.sge(0, 100)]))
        before = bytes(end.buffer)
        peer.send(make(end))
        assert peer.recv_terminate() == error
        expected = [Status.WR_FLUSH_ERR] * 2
        if what == "longer than the receive":
            expected[0] = Status.LOC_LEN_ERR
        assert statuses(completions(end, 2)) == expected
        assert end.qp.state == State.ERR
        assert end.qp.counters()["terminates_sent"] == 1
        if what != "invalidation of an unknown STag":
            assert end.buffer == before
        bystander.qp.post_recv((1, [bystander.mr.sge(0, 100)]))
        other.send(send(b"fine"))
        assert statuses(completions(bystander, 1)) == [Status.SUCCESS]


def test_terminate_carries_the_offending_header() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        wrong = read_request_segment((1, 2), 1, (end.mr.rkey ^ 1, end.mr.addr))
        peer.send(wrong)
        frame = peer.recv_fpdu()
        assert frame[20:24] == bytes.fromhex("0100e000")
        assert frame[24 : 24 + 48] == struct.pack(">H", 46) + wrong
    with End() as end:
        peer, _ = raw_initiator(end)
        wrong = write(12345, 6789, b"data")
        peer.send(wrong)
        frame = peer.recv_fpdu()
        assert frame[20:24] == bytes.fromhex("1100c000")
        assert frame[24:40] == struct.pack(">H", 18) + wrong[:14]


def test_a_bad_crc() -> None:
    for flip in (0, 7, 25, 29):
        with End() as end:
            peer, _ = raw_initiator(end)
            end.qp.post_recv((1, [end.mr.sge(0, 100)]))
            frame = bytearray(fpdu(send(b"hello")))
            frame[flip] ^= 1 if flip else 0
            if not flip:
                frame[-1] ^= 0x80
            peer.raw(bytes(frame))
            assert peer.recv_terminate() == (2, 0, 2)
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
            assert end.buffer[:5] == bytes(5)


def test_too_many_reads() -> None:
    """A peer may have as many READs unanswered as negotiated. Answered READs do not count."""
    with End(1 << 22) as end:
        peer, _ = raw_initiator(end, ird=4)
        for msn in range(1, 9):
            peer.send(read_request_segment((1, 2), 4, (end.mr.rkey, end.mr.addr), msn=msn))
            assert peer.recv_fpdu()[2:4] == b"\xc1\x42"
        # The answers exceed the socket's buffers, so these READs stay unanswered.
        size = 1 << 22
        peer.send(*(read_request_segment((1, 2), size, (end.mr.rkey, end.mr.addr), msn=msn) for msn in range(9, 20)))
        until(lambda: end.qp.state == State.ERR, end)


def test_responses_must_match_the_read() -> None:
    for change in (
        lambda stag, to: tagged(2, stag ^ 1, to, bytes(64)),
        lambda stag, to: tagged(2, stag, to + 1, bytes(64)),
        lambda stag, to: tagged(2, stag, to, bytes(65)),
        lambda stag, to: tagged(2, stag, to, bytes(63)),
        lambda stag, to: tagged(2, stag, to, bytes(64), last=False),
    ):
        with End() as end:
            peer, _ = raw_responder(end)
            end.buffer[100:200] = b"u" * 100
            end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(16, 64)], remote_addr=1, rkey=2))
            peer.recv_fpdu()
            peer.send(change(end.mr.rkey, end.mr.addr + 16))
            assert peer.recv_terminate()[:2] == (1, 1)
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
            assert end.buffer[100:200] == b"u" * 100


def test_no_receive_posted() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        peer.send(send(b"hello"))
        assert peer.recv_terminate() == (1, 2, 2)
        assert end.qp.state == State.ERR


def test_a_send_changes_its_kind_midway() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        end.qp.post_recv((1, [end.mr.sge(0, 100)]))
        peer.send(send(b"abcd", last=False), untagged(5, b"e", msn=1, mo=4))
        assert peer.recv_terminate() == (0, 2, 6)


# The next tests are about the peer's Terminates for our requests.


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        # These have RFC 5040's bit order: protection errors with the READ request's header, then an operation error.
        ("0100e000 002e 4141 0000000000000001000000010000", Status.REM_ACCESS_ERR),
        ("0102e000 002e 4141 0000000000000001000000010000", Status.REM_ACCESS_ERR),
        ("0207c000 002e 4141 0000000000000001000000010000", Status.REM_INV_REQ_ERR),
        # These have siw's bit order on little-endian machines: nibbles are swapped, flags are in the low bits.
        ("10000700 002e 4141 0000000000000001000000010000", Status.REM_ACCESS_ERR),
        ("20070300 002e 4141 0000000000000001000000010000", Status.REM_INV_REQ_ERR),
        # These name no request, and so flush the READ.
        ("00000000", Status.WR_FLUSH_ERR),
        ("20020000", Status.WR_FLUSH_ERR),
    ],
)
def test_terminate_received(payload: str, status: Status) -> None:
    with End() as end:
        peer, _ = raw_responder(end)
        end.qp.post_recv((9, []))
        end.qp.post_send(
            SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 64)], wr_id=1, remote_addr=0x1000, rkey=0x11223344),
            SendWR(Opcode.SEND, [], wr_id=2),
        )
        peer.recv_fpdu()
        peer.recv_fpdu()
        peer.send(untagged(7, bytes.fromhex(payload), qn=2))
        found = {wc.wr_id: wc.status for wc in completions(end, 3)}
        assert found == {1: status, 2: Status.WR_FLUSH_ERR, 9: Status.WR_FLUSH_ERR}
        assert end.qp.counters()["terminates_received"] == 1
        assert end.qp.counters()["terminates_sent"] == 0


@pytest.mark.parametrize("crc", [True, False])
def test_the_peer_closes_at_every_octet(crc: bool) -> None:
    stream = fpdu(send(b"one"), crc) + fpdu(send(bytes(600), 2), crc)
    for cut in [*range(0, 60), 100, len(stream) - 5, len(stream) - 1]:
        with End() as end:
            peer, _ = raw_initiator(end, crc=crc)
            end.qp.post_recv((1, [end.mr.sge(0, 100)]), (2, [end.mr.sge(100, 1000)]))
            peer.raw(stream[:cut])
            peer.close()
            first, second = completions(end, 2)
            whole = cut >= len(fpdu(send(b"one"), crc))
            assert first.status == (Status.SUCCESS if whole else Status.WR_FLUSH_ERR)
            assert second.status == Status.WR_FLUSH_ERR
            assert end.qp.state == State.ERR


def test_garbage_on_the_stream() -> None:
    draw = random.Random(99)
    for crc in (True, False):
        for _ in range(300):
            with End(4096) as end:
                peer, _ = raw_initiator(end, crc=crc)
                end.qp.post_recv((1, [end.mr.sge(0, 1000)]))
                head = bytes([draw.choice([0x41, 0xC1, 0x01, 0x81]), 0x40 | draw.randrange(8)])
                body = head + draw.randbytes(draw.randrange(100)) if draw.random() < 0.7 else draw.randbytes(50)
                try:
                    peer.raw(fpdu(body, crc) + draw.randbytes(draw.randrange(200)))
                    peer.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                until(lambda: end.qp.state == State.ERR, end)


def test_memory_regions_of_another_domain_are_out_of_reach() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        secret = bytearray(b"secret")
        mr = MR(PD(end.context), secret, 7)
        peer.send(read_request_segment((1, 2), 6, (mr.rkey, mr.addr)))
        assert peer.recv_terminate() == (0, 1, 3)
    with End() as end:
        peer, _ = raw_initiator(end)
        mr = MR(PD(end.context), secret, 7)
        peer.send(write(mr.rkey, mr.addr, b"public"))
        assert peer.recv_terminate() == (1, 1, 2)
        assert secret == b"secret"

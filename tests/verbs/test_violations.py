"""What a peer does wrong, where test_wire.py does not look: in soft_shm's ring, and in the middle of other messages."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import verbs_ends
from shm_ends import RawPeer
from test_wire import WRONG
from verbs_ends import (
    REPLY,
    End,
    completions,
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
    untagged,
    until,
    write,
)

from rmemcached.verbs import Opcode, SendWR, State, Status, StreamState

pytestmark = pytest.mark.once


@pytest.fixture
def shm(fabric: str) -> Iterator[None]:
    verbs_ends.FABRIC = "soft_shm"
    yield
    verbs_ends.FABRIC = fabric


@pytest.mark.usefixtures("shm")
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame_in_the_ring(what: str) -> None:
    make, error = WRONG[what]
    with End() as end, End() as bystander:
        peer, other = RawPeer(end), RawPeer(bystander)
        end.qp.post_recv((1, [end.mr.sge(0, 100)]), (2, [end.mr.sge(0, 100)]))
        peer.write(fpdu(make(end), crc=False))
        expected = [Status.WR_FLUSH_ERR] * 2
        if what == "longer than the receive":
            expected[0] = Status.LOC_LEN_ERR
        assert statuses(completions(end, 2)) == expected
        assert end.qp.state == State.ERR
        octets = peer.read()
        assert octets[2:4] == b"\x41\x47"
        assert (octets[20] >> 4, octets[20] & 15, octets[21]) == error
        bystander.qp.post_recv((1, [bystander.mr.sge(0, 100)]))
        other.write(fpdu(send(b"fine"), crc=False))
        assert statuses(completions(bystander, 1)) == [Status.SUCCESS]
        peer.close()
        other.close()


@pytest.mark.usefixtures("shm")
def test_too_many_reads_in_the_ring() -> None:
    """READs beyond the depth are refused when unconsumed answers fill the ring."""
    with End(1 << 20) as end:
        peer = RawPeer(end)
        for msn in range(1, 40):
            segment = read_request_segment((1, 2), 1 << 20, (end.mr.rkey, end.mr.addr), msn=msn)
            peer.write(fpdu(segment, crc=False))
            end.poll()
            if end.qp.state == State.ERR:
                break
        assert msn == 17  # 16 wait for their answers, the first of them under way
        assert end.qp.state == State.ERR


@pytest.mark.usefixtures("shm")
def test_no_receive_and_a_socket_that_closes_at_every_octet() -> None:
    with End() as end:
        peer = RawPeer(end)
        peer.write(fpdu(send(b"hello"), crc=False))
        until(lambda: end.qp.state == State.ERR, end)
        octets = peer.read()
        assert (octets[20] >> 4, octets[20] & 15, octets[21]) == (1, 2, 2)
    for kind in ("send", "write", "response"):
        cut = 0
        whole = 1
        while cut < whole:
            with End() as end:
                peer = RawPeer(end)
                end.qp.post_recv((1, [end.mr.sge(0, 100)]))
                end.buffer[:200] = b"u" * 200
                if kind == "send":
                    octets = fpdu(send(b"hello"), crc=False)
                elif kind == "write":
                    octets = fpdu(write(end.mr.rkey, end.mr.addr, b"hello"), crc=False)
                else:
                    request = SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 5)], wr_id=2, remote_addr=1, rkey=2)
                    end.qp.post_send(request)
                    octets = fpdu(tagged(2, end.mr.rkey, end.mr.addr, b"hello"), crc=False)
                whole = len(octets)
                peer.write(octets[:cut])
                peer.close()
                found = completions(end, 2 if kind == "response" else 1)
                assert {wc.status for wc in found} == {Status.WR_FLUSH_ERR}
                assert end.buffer[5:200] == b"u" * 195
            cut += 1


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("kind", ["write", "response", "read request"])
def test_the_peer_closes_within_a_message(kind: str, crc: bool) -> None:
    cut = 0
    whole = 1
    while cut < whole:
        with End() as end:
            peer, _ = raw_responder(end, crc=crc)
            end.qp.post_recv((1, []))
            end.buffer[:200] = b"u" * 200
            end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 9)], wr_id=2, remote_addr=1, rkey=2))
            peer.recv_fpdu()
            if kind == "write":
                octets = fpdu(write(end.mr.rkey, end.mr.addr, b"many octets"), crc)
            elif kind == "response":
                octets = fpdu(tagged(2, end.mr.rkey, end.mr.addr, b"nine octe"), crc)
            else:
                octets = fpdu(read_request_segment((1, 2), 9, (end.mr.rkey, end.mr.addr)), crc)
            whole = len(octets)
            peer.raw(octets[:cut])
            peer.close()
            found = {wc.wr_id: wc.status for wc in completions(end, 2)}
            assert found == {1: Status.WR_FLUSH_ERR, 2: Status.WR_FLUSH_ERR}
            # With CRC nothing is touched before all of a frame has been checked.
            assert end.buffer[: 200 if crc else 0] == b"u" * (200 if crc else 0)
            assert end.buffer[11:200] == b"u" * 189
        cut += 1


@pytest.mark.parametrize("flags", [0x10, 0x30])
def test_the_peer_closes_within_its_reply(flags: int) -> None:
    reply = mpa_frame(REPLY, flags, 2, (16, 16), b"welcome")
    for cut in range(len(reply) + 1):
        with End() as end:
            ours, theirs = tcp_pair()
            end.qp.post_recv((1, []))
            end.qp.connect(ours)
            read_request(theirs)
            theirs.sendall(reply[:cut])
            theirs.close()
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
            refused = cut == len(reply) and flags & 0x20
            assert end.qp.stream()["state"] == (StreamState.REFUSED if refused else StreamState.CLOSED)


@pytest.mark.parametrize("kind", ["write", "response", "read request", "terminate"])
def test_a_bad_crc_of(kind: str) -> None:
    """Nothing of a frame with a bad CRC is placed, answered or believed."""
    with End() as end:
        peer, _ = raw_responder(end)
        end.qp.post_recv((1, []))
        end.buffer[:200] = b"u" * 200
        end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 9)], wr_id=2, remote_addr=1, rkey=2))
        peer.recv_fpdu()
        octets = {
            "write": write(end.mr.rkey, end.mr.addr, b"many octets"),
            "response": tagged(2, end.mr.rkey, end.mr.addr, b"nine octe"),
            "read request": read_request_segment((1, 2), 9, (end.mr.rkey, end.mr.addr)),
            "terminate": untagged(7, bytes.fromhex("01000000"), qn=2),
        }[kind]
        frame = bytearray(fpdu(octets))
        frame[-1] ^= 1
        peer.raw(bytes(frame))
        assert peer.recv_terminate() == (2, 0, 2)
        found = {wc.wr_id: wc.status for wc in completions(end, 2)}
        assert found == {1: Status.WR_FLUSH_ERR, 2: Status.WR_FLUSH_ERR}
        assert end.buffer[:200] == b"u" * 200
        assert end.qp.counters()["terminates_received"] == 0


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x01\x00\xe0", b"\x01\x00\xe0\x00", b"\x01\x00\xe0\x00\x00\x2e"])
def test_a_terminate_that_is_cut_short(payload: bytes) -> None:
    with End() as end:
        peer, _ = raw_responder(end)
        end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 9)], wr_id=2, remote_addr=1, rkey=2))
        peer.recv_fpdu()
        peer.send(untagged(7, payload, qn=2))
        (wc,) = completions(end, 1)
        assert wc.status == (Status.REM_ACCESS_ERR if len(payload) >= 4 else Status.WR_FLUSH_ERR)
        assert end.qp.counters()["terminates_sent"] == 0


def test_the_right_that_was_taken_back() -> None:
    """A key that the peer has revoked itself, by a SEND with invalidate, gives no access on the wire."""
    for frame, error in (
        (lambda end: write(end.mr.rkey, end.mr.addr, b"x"), (1, 1, 0)),
        (lambda end: read_request_segment((1, 2), 1, (end.mr.rkey, end.mr.addr)), (0, 1, 0)),
    ):
        with End() as end:
            peer, _ = raw_initiator(end)
            end.qp.post_recv((1, []))
            peer.send(untagged(4, invalidate=end.mr.rkey))
            (wc,) = completions(end, 1)
            assert wc.invalidated_rkey == end.mr.rkey
            peer.send(frame(end))
            assert peer.recv_terminate() == error


def test_a_stream_that_is_shut_down_for_writing_only() -> None:
    """The peer's FIN is the end of both directions, as for siw: RDMA streams are not half closed."""
    with End() as end:
        peer, _ = raw_initiator(end)
        end.qp.post_recv((1, []))
        peer.sock.shutdown(socket.SHUT_WR)
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
        assert peer.recv(1) == b""

"""Connections in rdma_cm's way: Listener and connect."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import polling
import pytest
from verbs_ends import PATIENCE, REPLY, REQUEST, End, completions, mpa_frame, statuses

from rmemcached.verbs import Opcode, SendWR, State, Status, StreamState, VerbsError
from rmemcached.verbs.cm import Listener, Refused, Request, connect

pytestmark = pytest.mark.once


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(("127.0.0.1", 0)) as listening:
        yield listening


@contextlib.contextmanager
def answering(listener: Listener, answer: Callable[[Request], object]) -> Iterator[None]:
    """A thread that gives the listener's next request to `answer`."""

    def serve() -> None:
        request = listener.get_request(PATIENCE)
        assert request is not None
        answer(request)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("peer_to_peer", [False, True])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_connect_and_accept(address: str, peer_to_peer: bool, crc: bool) -> None:
    seen: list[Request] = []
    with End(ird=30, ord=30) as a, End(ird=30, ord=30) as b, Listener((address, 0)) as listener:

        def answer(request: Request) -> None:
            seen.append(request)
            request.accept(b.qp, private_data=b"welcome", ird=12, ord=20)

        with answering(listener, answer):
            reply = connect(
                a.qp, listener.address, private_data=b"hello", crc=crc, ird=10, ord=15, peer_to_peer=peer_to_peer
            )
        (request,) = seen
        assert (request.private_data, request.ird, request.ord) == (b"hello", 10, 15)
        assert (request.revision, request.crc, request.peer_to_peer) == (2, crc, peer_to_peer)
        assert request.peer[0] == address
        assert reply == {
            "state": StreamState.OPEN,
            "crc": crc,
            "ird": 10,
            "ord": 12,
            "peer_ird": 12,
            "peer_ord": 10,
            "private_data": b"welcome",
        }
        assert b.qp.stream()["ord"] == 10 and b.qp.stream()["peer_ird"] == 10
        for end, wr_id in ((a, 1), (b, 2)):
            end.qp.post_recv((wr_id, []))
        # With peer_to_peer the responder may send first.
        first, second = (b, a) if peer_to_peer else (a, b)
        first.qp.post_send(SendWR(Opcode.SEND, [], wr_id=3))
        assert completions(first, 1, second)[0].wr_id == 3
        second.qp.post_send(SendWR(Opcode.SEND, [], wr_id=4))
        assert {wc.status for wc in completions(first, 1, second) + completions(second, 2, first)} == {Status.SUCCESS}


def test_revision_1(listener: Listener) -> None:
    with End() as a, End() as b:

        def answer(request: Request) -> None:
            assert (request.revision, request.ird, request.ord) == (1, None, None)
            request.accept(b.qp)

        with answering(listener, answer):
            reply = connect(a.qp, listener.address, ird=0, ord=0)
        assert (reply["ird"], reply["ord"], reply["peer_ird"]) == (16, 16, 0)
        a.qp.post_send(SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=b.mr.addr, rkey=b.mr.rkey))
        assert statuses(completions(a, 1, b)) == [Status.SUCCESS]


def test_rejected(listener: Listener) -> None:
    with End() as a:
        a.qp.post_recv((1, []))
        with answering(listener, lambda request: request.reject(b"no room")), pytest.raises(Refused) as caught:
            connect(a.qp, listener.address)
        assert caught.value.private_data == b"no room"
        assert a.qp.state == State.ERR
        assert statuses(completions(a, 1)) == [Status.WR_FLUSH_ERR]
        assert a.qp.stream()["state"] == StreamState.REFUSED


def test_closed_without_a_reply(listener: Listener) -> None:
    with End() as a:
        with answering(listener, lambda request: request.close()), pytest.raises(ConnectionError) as caught:
            connect(a.qp, listener.address)
        assert not isinstance(caught.value, Refused)
        assert a.qp.state == State.ERR


def test_nobody_there(listener: Listener) -> None:
    address = listener.address
    listener.close()
    with End() as a:
        with pytest.raises(ConnectionRefusedError):
            connect(a.qp, address)
        assert a.qp.state == State.RTS


def test_no_reply_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, End() as a:
        with pytest.raises(TimeoutError):
            connect(a.qp, silent.getsockname(), timeout=0.1)
        assert a.qp.state == State.ERR


def test_a_request_that_cannot_be_accepted_can_still_be_rejected(listener: Listener) -> None:
    with End() as a, End() as b:
        b.qp.modify(State.ERR)

        def answer(request: Request) -> None:
            with pytest.raises(VerbsError):
                request.accept(b.qp)
            request.reject()

        with answering(listener, answer), pytest.raises(Refused):
            connect(a.qp, listener.address)


def test_requests_come_as_they_are_whole(listener: Listener) -> None:
    """Slow, silent, impatient and foreign clients let all others connect."""
    frame = mpa_frame(REQUEST, 0x10, 2, (16, 16), b"slow")
    with contextlib.ExitStack() as stack:

        def client(data: bytes) -> socket.socket:
            sock = stack.enter_context(socket.create_connection(listener.address))
            sock.settimeout(PATIENCE)
            sock.sendall(data)
            return sock

        assert listener.get_request(0) is None
        client(b"")
        slow = client(frame[:-1])
        gone = client(frame[:5])
        foreign = client(b"version\r\n")
        early = client(frame + b"\0")
        markers = client(mpa_frame(REQUEST, 0x80, 1))
        client(mpa_frame(REQUEST, 0x40, 1, private=b"quick"))
        gone.close()
        request = listener.get_request(PATIENCE)
        assert request is not None and request.private_data == b"quick"
        request.close()
        assert listener.get_request(0.05) is None
        assert not polling.readable(listener, 0)
        assert foreign.recv(1) == b""
        assert early.recv(1) == b""
        assert markers.recv(100) == mpa_frame(REPLY, 0x20, 1)
        slow.sendall(frame[-1:])
        assert polling.readable(listener, PATIENCE)
        request = listener.get_request(PATIENCE)
        assert request is not None and request.private_data == b"slow"
        request.reject()
        assert slow.recv(100) == mpa_frame(REPLY, 0x30, 2, (16, 16))
    assert listener.get_request(0.05) is None


def test_clients_that_send_nothing_make_way(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmemcached.verbs.cm.PENDING_MAX", 2)
    monkeypatch.setattr("rmemcached.verbs.cm.START_SECONDS", 2.0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(listener.address)) for _ in range(3)]
        assert listener.get_request(0.05) is None
        clients[0].settimeout(PATIENCE)
        assert clients[0].recv(1) == b""
        assert not polling.select(clients[1:], [], 0)[0]
        assert listener.get_request(2.5) is None
        for sock in clients[1:]:
            sock.settimeout(PATIENCE)
            assert sock.recv(1) == b""

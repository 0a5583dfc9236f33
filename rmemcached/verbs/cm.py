"""Connections of soft_iw in the manner of rdma_cm: the passive side listens on a TCP port, the active side connects.

    with Listener(("127.0.0.1", 7174)) as listener:
        request = listener.get_request()
        request.accept(qp, private_data=b"welcome")

    reply = connect(qp, ("127.0.0.1", 7174), private_data=b"hello")

The peer may be any iWARP endpoint. For a peer with rdma_cm, on siw or an iWARP NIC, the TCP port is rdma_cm's port and
the private data is the data of rdma_connect and rdma_accept. Before the call the program brings the queue pair to RTS,
and may post receives.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from types import TracebackType
from typing import Any, Self

from rmemcached.verbs.objects.base import VerbsError
from rmemcached.verbs.objects.queue_pair import QP, State, StreamState, parse_request, reject

START_SECONDS = 10.0  # how long a start-up may take, on either side
PENDING_MAX = 1024  # connections without a request so far; a further connection closes the oldest
REQUEST_MAX = 20 + 512  # octets of the longest request


class Refused(ConnectionRefusedError):
    """The peer has answered with a reject."""

    private_data: bytes
    """The private data of the reject, which may say why."""


class Request:
    """A connection asked for by a peer. The program accepts, rejects or closes it."""

    def __init__(self, sock: socket.socket, frame: bytes, parsed: dict[str, Any]) -> None:
        self._sock = sock
        self._frame = frame
        self.peer = sock.getpeername()
        self.private_data: bytes = parsed["private_data"]
        self.revision: int = parsed["revision"]
        self.crc: bool = parsed["crc"]
        self.peer_to_peer: bool = parsed["peer_to_peer"]
        self.ird: int | None = parsed["ird"] if parsed["enhanced"] else None
        self.ord: int | None = parsed["ord"] if parsed["enhanced"] else None

    def accept(
        self, qp: QP, *, private_data: bytes = b"", crc: bool = False, ird: int = 16, ord: int = 16
    ) -> dict[str, Any]:
        """Makes the connection the stream of `qp`; returns QP.stream(). After a VerbsError the request stays open."""
        qp.accept(self._sock, self._frame, crc=crc, ird=ird, ord=ord, private_data=private_data)
        return qp.stream()

    def reject(self, private_data: bytes = b"") -> None:
        with contextlib.suppress(VerbsError):
            reject(self._sock, self._frame, private_data)
        self.close()

    def close(self) -> None:
        self._sock.close()


class Listener:
    """A TCP port where peers ask for connections. For one thread at a time."""

    def __init__(self, address: tuple[str, int], backlog: int = 128) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=backlog)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._pending: dict[int, tuple[socket.socket, float, bytearray]] = {}
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def fileno(self) -> int:
        """A descriptor, readable when get_request() has work."""
        return self._epoll.fileno()

    def get_request(self, timeout: float | None = None) -> Request | None:
        """The next request, or None if there is none within `timeout` seconds.

        A connection without a valid MPA request within 10 s is closed. A request for markers is rejected.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            while self._pending and (oldest := next(iter(self._pending.values())))[1] <= now:
                self._drop(oldest[0])
            ends = [end for end in (deadline, oldest_end(self._pending)) if end is not None]
            wait = max(0.0, min(ends) - now) if ends else None
            events = self._epoll.poll(wait, maxevents=1)
            for fd, _ in events:
                if fd == self._listener.fileno():
                    self._take()
                elif (request := self._read(fd)) is not None:
                    return request
            if not events and deadline is not None and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        for sock, _, _ in list(self._pending.values()):
            self._drop(sock)
        self._epoll.close()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the peer has gone again, or the process has no descriptor left
            return
        sock.setblocking(False)
        if len(self._pending) >= PENDING_MAX:
            self._drop(next(iter(self._pending.values()))[0])
        self._pending[sock.fileno()] = sock, time.monotonic() + START_SECONDS, bytearray()
        self._epoll.register(sock, select.EPOLLIN)

    def _read(self, fd: int) -> Request | None:
        # Reads from a pending connection. Returns the request once whole; drops the connection at a mistake or its end.
        sock, _, frame = self._pending[fd]
        try:
            # A byte more than the longest request: the peer must not send anything behind its request.
            data = sock.recv(REQUEST_MAX + 1 - len(frame))
            frame += data
            parsed = parse_request(bytes(frame))
        except BlockingIOError:
            return None
        except VerbsError:
            with contextlib.suppress(VerbsError):
                reject(sock, bytes(frame))
            self._drop(sock)
            return None
        except OSError:
            self._drop(sock)
            return None
        if parsed is not None and parsed["consumed"] == len(frame):
            del self._pending[fd]
            self._epoll.unregister(sock)
            return Request(sock, bytes(frame), parsed)
        if parsed is not None or not data:
            self._drop(sock)
        return None

    def _drop(self, sock: socket.socket) -> None:
        del self._pending[sock.fileno()]
        sock.close()


def oldest_end(pending: dict[int, tuple[socket.socket, float, bytearray]]) -> float | None:
    return next((end for _, end, _ in pending.values()), None)


def connect(
    qp: QP,
    address: tuple[str, int],
    *,
    timeout: float = START_SECONDS,
    private_data: bytes = b"",
    crc: bool = False,
    ird: int = 16,
    ord: int = 16,
    peer_to_peer: bool = False,
    pause: int = 0,
) -> dict[str, Any]:
    """Connects `qp`, waits until it is connected, and returns QP.stream().

    The options are those of QP.connect. A peer that knows only MPA revision 1 needs ird=0 and ord=0; siw needs a pause.
    Raises Refused if the peer sends a reject, ConnectionError if the stream ends without a reject, and TimeoutError.
    The queue pair is in ERR afterwards, unless there was no TCP connection.
    """
    deadline = time.monotonic() + timeout
    sock = socket.create_connection(address, timeout)
    try:
        with sock.dup() as watched:
            readable = select.poll()
            readable.register(watched, select.POLLIN)
            options: dict[str, Any] = {"crc": crc, "ird": ird, "ord": ord, "private_data": private_data}
            qp.connect(sock, peer_to_peer=peer_to_peer, pause=pause, **options)
            while (stream := qp.stream())["state"] == StreamState.STARTING:
                left = deadline - time.monotonic()
                if left <= 0:
                    qp.modify(State.ERR)
                    raise TimeoutError("no reply to the MPA request")
                # A progress thread may take the reply, so the socket is not readable here: look again after 50 ms.
                readable.poll(min(left, 0.05) * 1000)
                qp.send_cq.poll(0)
    finally:
        sock.close()
    if stream["state"] == StreamState.REFUSED:
        refused = Refused("the MPA request was rejected")
        refused.private_data = stream["private_data"]
        raise refused
    if stream["state"] != StreamState.OPEN:
        raise ConnectionError("no MPA reply, or not an acceptable one")
    return stream

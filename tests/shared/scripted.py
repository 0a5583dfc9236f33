"""Servers with the answers of a test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """Starts a server, which serves each connection in a thread of its own, and then closes the connection. Yields its
    address. A client may go before its answer."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sockets.append(listener.accept()[0])
                threads.append(threading.Thread(target=talk, args=(sockets[-1],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            host, port = listener.getsockname()
            yield host, port
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(20)
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(20)


class Scripted:
    """A server other than memcached: after `version` and the like, `answers` yields the pieces of each reply."""

    def __init__(self, answers: Callable[[bytes], Iterator[bytes]]) -> None:
        self.answers = answers
        self.ended = threading.Event()
        self.stack = contextlib.ExitStack()
        self.address = self.stack.enter_context(serving(self.serve))
        self.place = "{}:{}".format(*self.address)
        self.stack.callback(self.ended.set)

    def serve(self, sock: socket.socket) -> None:
        sock.settimeout(20)
        with sock.makefile("rb") as lines:
            for line in lines:
                known = {b"version": b"VERSION 1\r\n", b"mn": b"MN\r\n"}.get(line.strip())
                for piece in iter([known]) if known else self.answers(line.strip()):
                    sock.sendall(piece)

    def stop(self) -> None:
        self.stack.close()

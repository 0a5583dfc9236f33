"""A relay between clients and a server, for tests that change requests or replies."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Self

from servers import Server


class Relay:
    """Passes on the lines of clients, and the server's answers.

    A subclass sets attributes first: this class's constructor starts to accept connections.
    """

    def __init__(self, server: Server, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.server = server
        self.connections = 0
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(address)
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    def start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def accept(self) -> None:
        """Runs in a thread: connects each client to the server, with a thread for each direction."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            upstream = self.server.connect(timeout=None)
            for one in (client, upstream):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets += [client, upstream]
            self.start(self.answers, upstream, client)
            self.start(self.requests, client, upstream)

    def answers(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                client.sendall(data)
        self.end(client, upstream)

    def requests(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            for line in stream:
                if not self.request(line, stream, client, upstream):
                    break
        self.end(client, upstream)

    def request(self, line: bytes, stream: BinaryIO, client: socket.socket, upstream: socket.socket) -> bool:
        """Passes a line on. Returns False to end the connection."""
        upstream.sendall(line)
        return True

    def end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.end(*self.sockets)
        for thread in self.threads:
            thread.join(20)
        for one in (self.listener, *self.sockets):
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

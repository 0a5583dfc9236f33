"""A relay with a copy of all bytes, for tests of the traffic."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from servers import HOST, Server

TIMEOUT = 20.0


@dataclass
class Recorded:
    """A connection's bytes: the client's, and the server's."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


class Recorder:
    """Passes connections on to a server. second: takes the second connection in place of the server."""

    def __init__(self, server: Server, second: Callable[[socket.socket], None] | None = None) -> None:
        self.server = server
        self.second = second
        self.connections: list[Recorded] = []
        self.sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        self.start(self.accept)

    def start(self, function: Callable[..., None], *arguments: object) -> None:
        self.threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self.threads[-1].start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.sockets.append(client)
            self.connections.append(Recorded())
            if self.second is not None and len(self.connections) == 2:
                self.start(self.second, client)
                continue
            upstream = self.server.connect(timeout=TIMEOUT)
            upstream.settimeout(None)
            self.sockets.append(upstream)
            for one in (client, upstream):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.start(self.move, client, upstream, self.connections[-1].sent)
            self.start(self.move, upstream, client, self.connections[-1].received)

    def move(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # shutdown wakes the thread in accept.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join(TIMEOUT)

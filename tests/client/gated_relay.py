"""Relays that hold requests to several servers back until each server has a request."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from servers import Server

PATIENCE = 20.0  # seconds after which a gate opens by itself, and the test fails


class Gate:
    """Holds requests of several relays back until so many relays have a request. The gate is open at first."""

    def __init__(self, relays: int) -> None:
        self.relays = relays
        self.changed = threading.Condition()
        self.opened = threading.Event()
        self.came: set[Any] = set()
        self.wanted = relays
        self.opened.set()

    def shut(self, wanted: int | None = None) -> None:
        with self.changed:
            self.came = set()
            self.wanted = self.relays if wanted is None else wanted
            self.opened.clear()

    def open(self) -> None:
        self.opened.set()

    def wait_for(self, relays: int) -> None:
        """Returns when so many relays have a request."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.came) >= relays, PATIENCE)

    def enter(self, relay: Any) -> None:
        with self.changed:
            self.came.add(relay)
            self.changed.notify_all()
            if len(self.came) >= self.wanted:
                self.opened.set()
        self.opened.wait(PATIENCE)


class GatedRelay:
    """Passes on the lines of a client and a server, behind a gate."""

    def __init__(self, server: Server, gate: Gate, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.server = server
        self.gate = gate
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(address)
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    def start(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
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
                if not self.gate.opened.is_set():
                    self.gate.enter(self)
                if not self.handle(line, client):
                    upstream.sendall(line)
        self.end(client, upstream)

    def handle(self, line: bytes, client: socket.socket) -> bool:
        """Whether the relay has answered to a line itself."""
        return False

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

"""Relays that hold requests to several servers back until each server has a request."""

from __future__ import annotations

import socket
import threading
from typing import Any, BinaryIO

from relay import Relay
from servers import Server

PATIENCE = 20.0  # seconds until a gate opens by itself, and the test fails


class Gate:
    """Holds back the requests of several relays until `wanted` relays have a request. The gate is open at first."""

    def __init__(self, relays: int) -> None:
        self.relays = relays
        self.changed = threading.Condition()
        self.opened = threading.Event()
        self.came: set[Any] = set()
        self.wanted = relays
        self.opened.set()

    def shut(self, wanted: int | None = None) -> None:
        """Closes the gate until `wanted` relays, by default all, have a request."""
        with self.changed:
            self.came = set()
            self.wanted = self.relays if wanted is None else wanted
            self.opened.clear()

    def open(self) -> None:
        self.opened.set()

    def wait_for(self, relays: int) -> None:
        """Returns when this number of relays has a request."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.came) >= relays, PATIENCE)

    def enter(self, relay: Any) -> None:
        """Counts the relay's request, and waits for the open gate. The relays' threads call it."""
        with self.changed:
            self.came.add(relay)
            self.changed.notify_all()
            if len(self.came) >= self.wanted:
                self.opened.set()
        self.opened.wait(PATIENCE)


class GatedRelay(Relay):
    """Passes on the lines of a client and a server, behind a gate."""

    def __init__(self, server: Server, gate: Gate, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.gate = gate
        super().__init__(server, address)

    def request(self, line: bytes, stream: BinaryIO, client: socket.socket, upstream: socket.socket) -> bool:
        if not self.gate.opened.is_set():
            self.gate.enter(self)
        return self.handle(line, client) or super().request(line, stream, client, upstream)

    def handle(self, line: bytes, client: socket.socket) -> bool:
        """For subclasses: may answer the line itself. Returns whether it did; False: the line goes to the server."""
        return False

"""A server that has vanished: its lifeline stays open, and no bytes come."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from relay import Relay
from servers import Server
from transport import PACE

from rmemcached.client import Client, MemcacheError

TIMEOUT = 0.4 * PACE


class SilentRelay(Relay):
    """From `forget` on the existing connections lose their bytes silently, as on the way to a host without power."""

    def __init__(self, server: Server) -> None:
        self.lost = threading.Event()
        super().__init__(server)

    def answers(self, upstream: socket.socket, client: socket.socket) -> None:
        lost = self.lost
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                if not lost.is_set():
                    client.sendall(data)
        self.end(client, upstream)

    def requests(self, client: socket.socket, upstream: socket.socket) -> None:
        self.answers(client, upstream)

    def forget(self) -> None:
        self.lost.set()
        self.lost = threading.Event()


@pytest.fixture
def relay(rmemcached_server: Callable[..., Server]) -> Iterator[SilentRelay]:
    with SilentRelay(rmemcached_server("-t", "1")) as relay:
        yield relay


def test_a_queue_pair_that_is_silent_is_not_joined(relay: SilentRelay) -> None:
    """A client that connects anew after a time-out does not join a silent queue pair held by idle clients."""
    with (
        Client(relay.address, transport="soft_iw", timeout=TIMEOUT) as idle,
        Client(relay.address, transport="soft_iw", timeout=TIMEOUT) as client,
    ):
        assert idle.version() == client.version()
        relay.forget()
        with pytest.raises(TimeoutError):
            client.version()
        answered = False
        for _ in range(20):
            with contextlib.suppress(MemcacheError, OSError):
                client.version()
                answered = True
                break
        assert answered

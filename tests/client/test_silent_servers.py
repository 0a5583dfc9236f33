"""A server that vanished: its lifeline is open, and no bytes come."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from servers import Server
from transport import PACE

from rmemcached.client import Client, MemcacheError

TIMEOUT = 0.4 * PACE


class Relay:
    """A relay between clients and a server. From `forget` on the existing connections lose their bytes silently, as on
    the way to a host without power."""

    def __init__(self, server: tuple[str, int], stack: ExitStack) -> None:
        self.server = server
        self.stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.lost = threading.Event()
        accepting = threading.Thread(target=self.accept)
        accepting.start()
        stack.callback(accepting.join)
        stack.callback(self.listener.shutdown, socket.SHUT_RDWR)

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.server)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(one, other, self.lost), daemon=True).start()
                    self.stack.callback(one.close)

    def pump(self, source: socket.socket, sink: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not lost.is_set():
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def forget(self) -> None:
        self.lost.set()
        self.lost = threading.Event()


@pytest.fixture
def relay(rmemcached_server: Callable[..., Server]) -> Iterator[Relay]:
    server = rmemcached_server("-t", "1")
    with ExitStack() as stack:
        yield Relay((server.host, server.port), stack)


def test_a_queue_pair_that_is_silent_is_not_joined(relay: Relay) -> None:
    """A client that connects anew after a time-out does not join a silent queue pair held by idle clients."""
    host, port = relay.listener.getsockname()
    with (
        Client((host, port), transport="soft_iw", timeout=TIMEOUT) as idle,
        Client((host, port), transport="soft_iw", timeout=TIMEOUT) as client,
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

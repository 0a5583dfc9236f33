"""A thousand connections come and go, and both sides have the descriptors, memory and threads of the beginning."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest
from daemon_tools import (
    GONE_WITHIN,
    Conversation,
    Peer,
    alone,
    descriptors,
    eventually,
    rdma_at_rest,
    rdma_client,
    resident,
    threads,
)
from resident import give_back
from servers import Server
from transport import rounds

from rmemcached.client import Client

pytestmark = pytest.mark.usefixtures("rdma_transport")

ROUNDS = rounds(1000)
WARM_UP = rounds(100)  # rounds until allocators and pools have their size
# The most growth in bytes over the rounds after the warm-up. With 900 rounds, one queue pair's buffers (256 KB) left by
# each hundred would exceed the limit. A shorter warm-up leaves more growth for later, such as a huge page of 2 MB.
GROWTH = (2 if ROUNDS == 1000 else 6) << 20


@pytest.fixture
def scene(rmemcached_server: Callable[..., Server]) -> Iterator[tuple[Server, Conversation]]:
    server = rmemcached_server("-m", "64", "-t", "2")
    with Conversation(server) as control:
        yield server, control


def at_rest(control: Conversation) -> None:
    eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
    alone(control)
    give_back()


def measure(control: Conversation, pid: int, round_trip: Callable[[int], None]) -> None:
    """Runs the rounds and compares the daemon and this process before and after."""
    for number in range(WARM_UP):
        round_trip(number)
    at_rest(control)
    both = (pid, os.getpid())
    counts = [(descriptors(p), threads(p)) for p in both]
    memory = [resident(p) for p in both]
    for number in range(WARM_UP, ROUNDS):
        round_trip(number)
    at_rest(control)

    def back() -> bool:
        # Fewer are right, too: a worker frees the descriptors of a connection at the end of its turn.
        now = [(descriptors(p), threads(p)) for p in both]
        return all(have <= had for pair in zip(now, counts, strict=True) for have, had in zip(*pair, strict=True))

    eventually(back)
    growth = [resident(p) - old for p, old in zip(both, memory, strict=True)]
    assert max(growth) < GROWTH, growth


@pytest.mark.parametrize("rdma", [True, False], ids=["rdma", "tcp"])
def test_connect_set_get_disconnect(scene: tuple[Server, Conversation], rdma: bool, rdma_transport: str) -> None:
    server, control = scene
    transport = rdma_transport if rdma else "tcp"

    def round_trip(number: int) -> None:
        client = Client(server.address, transport=transport, timeout=10, connect_timeout=10, default_noreply=False)
        value = bytes([number % 256]) * (number % 50 * 400)
        assert client.set("leak", value)
        assert client.get("leak") == value
        client.close()

    measure(control, server.pid, round_trip)
    if rdma:
        assert control.number("rdma_total_queue_pairs", "rdma") == ROUNDS


@pytest.mark.device("its objects")
def test_connect_and_vanish(scene: tuple[Server, Conversation]) -> None:
    """Vanished clients leave nothing: without a word, in the middle of a command, or with a reset."""
    server, control = scene

    def round_trip(number: int) -> None:
        client = rdma_client(server)
        client.version()
        del client
        sock = server.connect()
        sock.sendall((b"", b"set key 0 0 100000\r\nabc", b"get", b"MPA ID")[number % 4])
        if number % 3 == 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    with pytest.warns(ResourceWarning):
        measure(control, server.pid, round_trip)


def test_exchanges_that_come_to_nothing(scene: tuple[Server, Conversation]) -> None:
    server, control = scene

    def round_trip(number: int) -> None:
        if number % 2:
            with Peer(server, attach=False):
                pass
        else:
            with Conversation(server) as talk:
                assert talk.ask(b"rdma version=2 transport=soft_iw qpn=1\r\n").startswith(b"CLIENT_ERROR")

    measure(control, server.pid, round_trip)


@pytest.mark.device("registrations")
def test_one_connection_a_thousand_values(scene: tuple[Server, Conversation]) -> None:
    """A long-lived client, with values of changing sizes, keeps its registrations and buffers limited."""
    server, control = scene
    with rdma_client(server) as client:
        client.set("leak", bytes(1_000_000))

        def round_trip(number: int) -> None:
            size = number * 7919 % 1_000_000
            assert client.set(f"leak{number % 10}", bytes(size))
            found = client.get(f"leak{number % 10}")
            assert found is not None and len(found) == size

        for number in range(WARM_UP):
            round_trip(number)
        give_back()
        before = resident(os.getpid()), resident(server.pid)
        for number in range(WARM_UP, ROUNDS):
            round_trip(number)
        give_back()
        # The limits have room for two sinks of the client, and for pages of the arena that the daemon touches only now.
        assert resident(os.getpid()) - before[0] < GROWTH + (2 << 20)
        assert resident(server.pid) - before[1] < 64 << 20
        assert control.number("rdma_registrations", "rdma") == 2

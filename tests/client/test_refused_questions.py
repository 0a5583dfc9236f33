"""Proxies that answer a question of the client with an error, and then close the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from classic_relay import META, ClassicRelay
from transport import PACE, RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client, ClusterClient, MemcacheClientError, TransportUnavailable

TIMEOUT = 20 * PACE
QUESTIONS = [
    (b"rdma",),
    (b"mn",),
    (b"version",),
    (b"rdma", b"mn"),
    (b"rdma", b"version"),
    (b"mn", b"version"),
    (b"rdma", b"mn", b"version"),
]


@pytest.fixture(params=QUESTIONS, ids=lambda questions: b"-".join(questions).decode())
def refuses(request: pytest.FixtureRequest) -> tuple[bytes, ...]:
    questions: tuple[bytes, ...] = request.param
    return questions


@pytest.fixture(params=["classic", "modern"])
def relay(
    request: pytest.FixtureRequest, make_relay: Callable[..., ClassicRelay], refuses: tuple[bytes, ...]
) -> ClassicRelay:
    return make_relay(*refuses, unknown=META if request.param == "classic" else ())


def test_every_connection_is_of_use(relay: ClassicRelay, key: str) -> None:
    """The first connection of a Client, and each later connection, serves requests."""
    with Client(relay.address, timeout=TIMEOUT, default_noreply=False) as client:
        for _ in range(3):
            assert client.set(key, b"value") is True
            assert client.get(key) == b"value"
            assert client.transport == "tcp"
            client.close()


def test_threads(relay: ClassicRelay, key: str) -> None:
    """Threads of a Client connect at the same time, and each gets its answers."""
    with Client(relay.address, timeout=TIMEOUT, default_noreply=False) as client, ThreadPoolExecutor(4) as threads:
        assert client.set(key, b"value") is True
        client.close()
        assert list(threads.map(lambda _: client.get(key), range(80))) == [b"value"] * 80


def test_a_cluster(relay: ClassicRelay, key: str) -> None:
    with ClusterClient([relay.address], timeout=TIMEOUT, default_noreply=False) as client:
        for _ in range(3):
            assert client.set(key, b"value") is True
            assert client.get_many([key]) == {key: b"value"}
            client.close()


def test_async_client(relay: ClassicRelay, key: str) -> None:
    async def body() -> None:
        async with AsyncClient(relay.address, timeout=TIMEOUT, default_noreply=False) as client:
            for _ in range(3):
                assert await client.set(key, b"value") is True
                assert await asyncio.gather(*(client.get(key) for _ in range(20))) == [b"value"] * 20
                await client.close()

    asyncio.run(body())


def test_a_server_without_rdma_is_not_asked_again(make_relay: Callable[..., ClassicRelay], key: str) -> None:
    """The Client learns from its first connection, at the cost of a second, that the server has no RDMA. Later
    connections do not ask."""
    relay = make_relay(b"rdma", unknown=())
    with Client(relay.address, timeout=TIMEOUT, default_noreply=False) as client:
        for _ in range(3):
            assert client.set(key, b"value") is True
            asked, connections = list(relay.asked), relay.connections
            client.close()
        assert client.get(key) == b"value"
        assert (relay.asked, relay.connections) == (asked, connections + 1)


def test_a_server_that_only_refuses_is_asked_again(make_relay: Callable[..., ClassicRelay], key: str) -> None:
    """After a refusal without a close the client asks again: the server may have RDMA next time."""
    relay = make_relay(unknown=())
    with Client(relay.address, timeout=TIMEOUT) as client:
        for times in range(1, 4):
            client.get(key)
            client.close()
            assert relay.connections == times
        assert len(relay.asked) % 3 == 0
        assert relay.asked


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_transport_that_is_asked_for(make_relay: Callable[..., ClassicRelay], key: str, transport: str) -> None:
    """A transport named by the caller has no substitute: each call raises the server's error."""
    relay = make_relay(b"rdma", unknown=())
    with Client(relay.address, timeout=TIMEOUT, transport=transport) as client:
        for _ in range(3):
            with pytest.raises(TransportUnavailable, match="the server answered CLIENT_ERROR malformed request"):
                client.get(key)


def test_authentication(make_relay: Callable[..., ClassicRelay], key: str) -> None:
    relay = make_relay(b"set rmemcached:authentication", unknown=())
    with Client(relay.address, timeout=TIMEOUT, username="name", password="word") as client:
        for _ in range(3):
            with pytest.raises(MemcacheClientError, match="malformed request: the server refuses username"):
                client.get(key)

"""AsyncClient by TLS, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from concurrency import Run
from servers import Server
from suspended import suspended
from tls_relay import TlsRelay

from rmemcached.client import AsyncClient, AsyncClusterClient, MemcacheUnexpectedCloseError

LARGE = bytes(range(256)) * 3000
TIMEOUT = 20.0

Make = Callable[..., AsyncClient]


@pytest.fixture(params=["memcached", "rmemcached"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"shared_{request.param}")
    return found


@pytest.fixture
def relay(server: Server, certificate: Path) -> Iterator[TlsRelay]:
    with TlsRelay(server, certificate) as relay:
        yield relay


@pytest.fixture
def make(relay: TlsRelay, certificate: Path) -> Make:
    def make(**arguments: Any) -> AsyncClient:
        context = ssl.create_default_context(cafile=str(certificate))
        given = {"tls_context": context, "timeout": TIMEOUT, "default_noreply": False}
        return AsyncClient(("127.0.0.1", relay.port), **{**given, **arguments})

    return make


def test_values(run: Run, make: Make, key: str) -> None:
    async def body() -> None:
        async with make() as client:
            for value in (b"", b"small", LARGE, bytearray(LARGE)):
                assert await client.set(key, value) is True
                assert await client.get(key) == value
            assert await client.set(key, b"later", noreply=True)
            assert await client.get_many([key, "no" + key]) == {key: b"later"}
            memory = bytearray(len(LARGE))
            await client.set(key, LARGE)
            assert await client.get_into(key, memory) == len(LARGE)
            assert memory == LARGE
            assert client.transport == "tcp"

    run(body())


def test_more_than_all_buffers_hold(run: Run, make: Make, key: str) -> None:
    """Requests and answers go on while the other direction is full."""

    async def body() -> None:
        async with make() as client:
            keys = [f"{key}-{number}" for number in range(40)]
            assert all(await asyncio.gather(*(client.set(name, LARGE) for name in keys)))
            calls = [client.get(name) if turn % 2 else client.set(name, LARGE) for name in keys for turn in range(4)]
            assert set(await asyncio.gather(*calls)) == {True, LARGE}

    run(body())


def test_many_at_a_time_and_cancelled_ones(run: Run, make: Make, key: str) -> None:
    async def body() -> None:
        order = random.Random(1)
        async with make() as client:
            values = {f"{key}-{number}": b"%d" % number * order.randrange(2000) for number in range(50)}
            assert await client.set_many(values) == []

            async def one(name: str) -> None:
                assert await client.get(name) == values[name]

            tasks = [asyncio.ensure_future(one(order.choice(list(values)))) for _ in range(2000)]
            for task in order.sample(tasks, 1000):
                await asyncio.sleep(0)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
            assert results.count(None) >= 1000
            assert await client.get_many(values) == values

    run(body())


def test_a_server_that_does_not_answer(run: Run, make: Make, server: Server, key: str) -> None:
    async def body() -> None:
        async with make(timeout=0.3) as client:
            await client.set(key, b"value")
            with suspended(server.pid), pytest.raises(TimeoutError, match="get: timed out"):
                await client.get(key)
            async with asyncio.timeout(TIMEOUT):
                while await client.get(key) != b"value":
                    pass

    run(body())


def test_the_server_ends(run: Run, make: Make, memcached_server: Callable[..., Server], certificate: Path) -> None:
    async def body(relay: TlsRelay) -> None:
        async with AsyncClient(
            ("127.0.0.1", relay.port), tls_context=ssl.create_default_context(cafile=str(certificate)), timeout=TIMEOUT
        ) as client:
            assert await client.get("key") is None
            await asyncio.to_thread(relay.server.stop)
            with pytest.raises((MemcacheUnexpectedCloseError, OSError), match=f"127.0.0.1:{relay.port}"):
                while True:
                    await client.get("key")

    with TlsRelay(memcached_server(), certificate) as relay:
        run(body(relay))


def test_another_certificate(run: Run, make: Make, relay: TlsRelay) -> None:
    async def body() -> None:
        async with make(tls_context=ssl.create_default_context()) as client:
            with pytest.raises(ssl.SSLCertVerificationError, match=f"127.0.0.1:{relay.port}.*certificate"):
                await client.version()

    run(body())


def test_a_cluster(run: Run, relay: TlsRelay, certificate: Path, key: str) -> None:
    async def body() -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        async with AsyncClusterClient([("127.0.0.1", relay.port)], tls_context=context, timeout=TIMEOUT) as cluster:
            await cluster.set(key, b"value", noreply=False)
            assert await cluster.get_many([key, "no" + key]) == {key: b"value"}

    run(body())


def test_it_is_encrypted_or_refused(make: Make) -> None:
    for wrong in ({"transport": "rdma_cm"}, {"rdma_cm_port": 1}):
        with pytest.raises(ValueError, match="tls_context does not go with rdma_cm"):
            make(**wrong)

"""The client notices, before a request goes out, that the server has closed an idle connection."""

from __future__ import annotations

import asyncio
import copy
import select
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from polling import eventually
from servers import Server
from tls_relay import TlsRelay
from transport import PACE, RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client, ClusterClient

TIMEOUT = 20 * PACE

each_transport = pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    return rmemcached_server("-o", "idle_timeout=1")


def kicked(server: Server) -> int:
    """The number of idle connections closed by the server."""
    with Client(server.address, transport="tcp", timeout=TIMEOUT) as client:
        return int(client.stats()[b"idle_kicks"])


def wait_until_kicked(server: Server, count: int) -> None:
    eventually(lambda: kicked(server) >= count, TIMEOUT)


@each_transport
def test_a_client(server: Server, transport: str) -> None:
    with Client(server.address, transport=transport, timeout=TIMEOUT) as client:
        assert client.set("key", b"old", noreply=False) is True
        wait_until_kicked(server, 1)
        assert client.get("key") == b"old"
        wait_until_kicked(server, 2)
        assert client.set("key", b"new") is True
        assert client.get("key") == b"new"
        wait_until_kicked(server, 3)
        with client.pipeline() as batch:
            batch.set("key", b"newer")
            batch.get("key")
        assert batch.results == [True, b"newer"]


@pytest.mark.device("completions that nobody awaits")
@each_transport
def test_one_lane_of_a_queue_pair(server: Server, transport: str) -> None:
    """The client notices the close of an idle lane while further lanes of the queue pair are in use."""
    options: dict[str, Any] = {"transport": transport, "timeout": TIMEOUT}
    with Client(server.address, **options) as idle, Client(server.address, **options) as busy:
        assert idle.get("key") is None
        until = time.monotonic() + TIMEOUT
        while int(busy.stats()[b"idle_kicks"]) < 1:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert idle.set("key", b"value") is True
        assert idle.get("key") == b"value"


@each_transport
def test_a_cluster(server: Server, transport: str) -> None:
    """A cluster client, and its copy, take HashClient's arguments for idle connections."""
    with ClusterClient(
        [server.address], transport=transport, timeout=TIMEOUT, use_pooling=True, pool_idle_timeout=0.8
    ) as client:
        for number, one in enumerate((client, copy.copy(client))):
            with one:
                one.set("key", b"old", noreply=False)
                wait_until_kicked(server, 2 * number + 1)
                assert one.set("key", b"new") is True
                assert one.get("key") == b"new"
                wait_until_kicked(server, 2 * number + 2)
                assert one.get_many(["key", "other"]) == {"key": b"new"}
                one.close()


@each_transport
@pytest.mark.parametrize("runs", [True, False], ids=["the loop runs", "the loop stands still"])
def test_an_async_client(server: Server, transport: str, runs: bool) -> None:
    async def body() -> None:
        async def wait(count: int) -> None:
            if runs:
                await asyncio.get_running_loop().run_in_executor(None, wait_until_kicked, server, count)
            else:
                wait_until_kicked(server, count)

        async with AsyncClient(server.address, transport=transport, timeout=TIMEOUT) as client:
            await client.set("key", b"old", noreply=False)
            await wait(1)
            assert await client.set("key", b"new") is True
            assert await client.get("key") == b"new"
            await wait(2)
            assert await client.get_many(["key"]) == {"key": b"new"}

    asyncio.run(body())


def test_behind_tls(server: Server, certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        TlsRelay(server, certificate) as relay,
        Client(("127.0.0.1", relay.port), tls_context=context, timeout=TIMEOUT) as client,
    ):
        assert client.set("key", b"old", noreply=False) is True
        # The server's close comes through the relay some time later, so the test waits for the close.
        end = select.poll()
        end.register(client.sock, select.POLLRDHUP)
        assert end.poll(TIMEOUT * 1000)
        time.sleep(0.05)
        assert client.set("key", b"new") is True
        assert client.get("key") == b"new"


@each_transport
def test_another_daemon_in_its_place(rmemcached_server: Callable[..., Server], transport: str) -> None:
    """Every connection of a Client notices its end after the replacement of the daemon."""
    first = rmemcached_server()
    with Client(first.address, transport=transport, timeout=TIMEOUT) as client, ThreadPoolExecutor(4) as threads:
        everybody = threading.Barrier(4)

        def ask() -> object:
            everybody.wait(TIMEOUT)
            return client.get("key")

        assert [one.result() for one in [threads.submit(ask) for _ in range(4)]] == [None] * 4
        first.stop()
        with Server(first.command, first.port):
            assert client.set("key", b"value") is True
            assert client.get("key") == b"value"
            assert [one.result() for one in [threads.submit(ask) for _ in range(4)]] == [b"value"] * 4
            client.close()

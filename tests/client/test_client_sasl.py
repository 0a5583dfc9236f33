"""Servers with SASL (-S): rmemcached over every transport, and memcached, which has the binary protocol alone."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sasl_tools import REALM, Folder
from servers import Server
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    MemcacheClientError,
    MemcacheError,
    MemcacheServerError,
    TransportUnavailable,
)
from rmemcached.client.transport.binary import BinarySocket

ServerFactory = Callable[..., Server]
USER = f"ann@{REALM}"
TRANSPORTS = [("memcached", "tcp"), ("memcached", "auto"), ("rmemcached", "auto"), ("rmemcached", "tcp")]
TRANSPORTS += [("rmemcached", name) for name in RDMA_TRANSPORTS]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder = Folder(tmp_path, monkeypatch)
    folder.users_in_sasldb()
    return folder


class Guarded:
    """A server with -S, and the arguments of its clients."""

    def __init__(self, server: Server, transport: str) -> None:
        self.server = server
        self.transport = transport

    def options(self, password: str = "secret", **options: Any) -> dict[str, Any]:
        settings = {"transport": self.transport, "timeout": 20, "default_noreply": False, "sasl": True}
        return {**settings, "username": USER, "password": password, **options}

    def client(self, password: str = "secret", **options: Any) -> Client:
        return Client(self.server.address, **self.options(password, **options))


@pytest.fixture(params=TRANSPORTS, ids="-".join)
def guarded(request: pytest.FixtureRequest, users: Folder) -> Guarded:
    name, transport = request.param
    return Guarded(request.getfixturevalue(f"{name}_server")("-S", "-t", "1"), transport)


def test_commands(guarded: Guarded) -> None:
    with guarded.client() as client:
        assert client.get("key") is None
        assert client.set("key", b"value") is True
        assert client.get("key") == b"value"
        assert client.gets("nothing") == (None, None)
        _, cas = client.gets("key")
        assert client.cas("key", b"other", cas) is True
        assert client.cas("key", b"other", cas) is False
        assert client.cas("nothing", b"other", b"1") is None
        assert client.add("key", b"x") is False
        assert client.replace("nothing", b"x") is False
        assert client.append("key", b"!") is True
        assert client.prepend("key", b"?") is True
        assert client.append("nothing", b"!") is False
        assert client.get("key") == b"?other!"
        assert client.delete("key") is True
        assert client.delete("key") is False
        assert client.incr("number", 1) is None
        assert client.set("number", b"5") is True
        assert client.incr("number", 10) == 15
        assert client.decr("number", 100) == 0
        assert client.touch("number", 100) is True
        assert client.touch("nothing", 100) is False
        assert client.gat("number", 100).strip() == b"0"
        assert client.set("gone", b"x", expire=-1) is True
        assert client.get("gone") is None
        many = {f"key {n}".replace(" ", "_"): b"%d\r\nEND\r\n" % n for n in range(300)}
        assert client.set_many(many) == []
        assert client.get_many([*many, "nothing"]) == many
        large = bytes(range(256)) * 3000
        assert client.set("large", large) is True
        assert client.get("large") == large
        with pytest.raises(MemcacheClientError):
            client.incr("large", 1)
        with pytest.raises(MemcacheServerError):
            client.set("larger", bytes(2_000_000))
        assert client.get("large") == large
        assert client.version().startswith(b"1.6.")
        assert int(client.stats()[b"curr_items"]) > 300
        assert client.flush_all() is True
        assert client.get("large") is None


def test_quiet_commands(guarded: Guarded) -> None:
    with guarded.client(default_noreply=True) as client:
        for n in range(500):
            client.set(f"key{n}", b"%d" % n)
            client.incr(f"key{n}", 1)
            client.add(f"key{n}", b"refused")
            client.delete("nothing")
        assert client.get("key499") == b"500"
        with client.pipeline() as pipeline:
            for n in range(500):
                pipeline.get(f"key{n}")
            assert pipeline.execute() == [b"%d" % (n + 1) for n in range(500)]
        assert client.get_many([f"key{n}" for n in range(500)]) == {f"key{n}": b"%d" % (n + 1) for n in range(500)}


def test_many_connections(guarded: Guarded) -> None:
    with guarded.client() as client:
        client.set("key", b"value")
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(client.get, ["key"] * 200)) == [b"value"] * 200
        for again in (copy.copy(client), pickle.loads(pickle.dumps(client))):
            with again:
                assert again.get("key") == b"value"
        client.close()
        assert client.get("key") == b"value"


def test_a_wrong_password(guarded: Guarded) -> None:
    with guarded.client() as known, guarded.client("wrong word") as client:
        known.set("key", b"value")
        for _ in range(2):
            with pytest.raises(MemcacheClientError, match="refuses username and password") as raised:
                client.get("key")
            assert str(guarded.server.port) in str(raised.value)
            assert "wrong word" not in str(raised.value) + repr(client)
        assert client.connections == 0
        assert known.get("key") == b"value"


def test_async_client(guarded: Guarded) -> None:
    async def body() -> None:
        async with AsyncClient(guarded.server.address, **guarded.options()) as client:
            large = bytes(range(256)) * 3000
            assert await client.set("large", large) is True
            results = await asyncio.gather(*(client.set(f"key{n}", b"%d" % n) for n in range(100)))
            assert results == [True] * 100
            found = await asyncio.gather(*(client.get(f"key{n}") for n in range(100)), client.get("large"))
            assert found == [*(b"%d" % n for n in range(100)), large]
        async with AsyncClient(guarded.server.address, **guarded.options("wrong")) as client:
            with pytest.raises(MemcacheClientError, match="refuses username and password"):
                await client.get("key")

    asyncio.run(body())


def test_clusters(guarded: Guarded) -> None:
    with ClusterClient([guarded.server.address], **guarded.options()) as cluster:
        assert cluster.set("key", b"value") is True
        assert cluster.get_many(["key", "other"]) == {"key": b"value"}

    async def body() -> None:
        async with AsyncClusterClient([guarded.server.address], **guarded.options()) as cluster:
            assert await cluster.get("key") == b"value"

    asyncio.run(body())


def test_a_url(guarded: Guarded) -> None:
    user, place = USER.replace("@", "%40"), guarded.server.place
    url = f"memcached://{user}:secret@{place}?sasl=true&transport={guarded.transport}"
    with Client(url, default_noreply=False) as client:
        assert client.set("key", b"value") is True


def test_without_sasl(guarded: Guarded) -> None:
    """A client without credentials, or with credentials for -Y."""
    for options in ({"username": None, "password": None, "sasl": False}, {"sasl": False}):
        with guarded.client(timeout=1, connect_timeout=1, **options) as client:
            with pytest.raises((MemcacheError, OSError)) as raised:
                client.get("key")
            if guarded.server.command[1:2] == ["-P"]:
                assert "sasl=True" in str(raised.value)


def test_which_protocol(rmemcached_server: ServerFactory, memcached_server: ServerFactory, users: Folder) -> None:
    options: dict[str, Any] = {"username": USER, "password": "secret", "sasl": True, "timeout": 20}
    with Client(rmemcached_server("-S").address, **options) as client:
        client.set("key", b"value")
        assert client.binary_only is False
        assert client.transport != "tcp"
    for server in (memcached_server("-S"), rmemcached_server("-S", "-B", "binary")):
        with Client(server.address, **options) as client:
            client.set("key", b"value")
            assert (client.binary_only, client.transport) == (True, "tcp")
            assert isinstance(client.sock, BinarySocket)
        with (
            Client(server.address, transport=RDMA_TRANSPORTS[0], **options) as client,
            pytest.raises(TransportUnavailable),
        ):
            client.get("key")


def test_long_values(memcached_server: ServerFactory, users: Folder) -> None:
    """The binary protocol with values longer than the socket's room, while the server sends such values."""
    server = Guarded(memcached_server("-S", "-I", "64m", "-m", "256"), "tcp")
    large = bytes(range(256)) * 50_000
    with server.client() as client:
        assert client.set("large", large) is True
        assert client.get("large") == large
        assert client.set_many({"large1": large, "large2": large}) == []
        assert client.get_many(["large1", "large2"]) == {"large1": large, "large2": large}

    async def body() -> None:
        async with AsyncClient(server.server.address, **server.options()) as client:
            results = await asyncio.gather(*(client.set(f"large{n}", large) for n in range(4)))
            assert results == [True] * 4
            found = await asyncio.gather(*(client.get(f"large{n % 4}") for n in range(8)))
            assert found == [large] * 8

    asyncio.run(body())


def test_a_server_without_sasl(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    for server in (rmemcached_server(), memcached_server()):
        with (
            Client(server.address, username="me", password="secret", sasl=True) as client,
            pytest.raises(MemcacheClientError, match="has no SASL"),
        ):
            client.get("key")


def test_arguments() -> None:
    Client("127.0.0.1", username="with blank", password="p\r\n", sasl=True)
    for username, password, sasl in (("a", "b", 1), (None, None, True), ("a\0", "secret", True), ("a", "", True)):
        with pytest.raises(ValueError, match=r"sasl|username") as raised:
            Client("127.0.0.1", username=username, password=password, sasl=sasl)  # type: ignore[call-overload]
        assert "secret" not in str(raised.value)

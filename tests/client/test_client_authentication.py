"""Servers that want a name and a password (-Y), over every transport."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from transport import RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client, MemcacheClientError, MemcacheError
from rmemcached.client.authentication import KEY

ServerFactory = Callable[..., Server]
TRANSPORTS = [("memcached", "tcp"), ("rmemcached", "auto"), ("rmemcached", "tcp")]
TRANSPORTS += [("rmemcached", name) for name in RDMA_TRANSPORTS]


class Guarded:
    """A server that knows two users, and how to connect to it."""

    def __init__(self, server: Server, transport: str) -> None:
        self.server = server
        self.transport = transport

    def client(self, username: Any = "user", password: Any = "pass:word", **options: Any) -> Client:
        return Client(self.server.address, **self.options(username, password, **options))

    def options(self, username: Any = "user", password: Any = "pass:word", **options: Any) -> dict[str, Any]:
        settings = {"transport": self.transport, "timeout": 20, "default_noreply": False}
        return {**settings, "username": username, "password": password, **options}


@pytest.fixture(params=TRANSPORTS, ids="-".join)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    name, transport = request.param
    users = tmp_path / "users"
    users.write_text("user:pass:word\nother:secret\n")
    yield Guarded(request.getfixturevalue(f"{name}_server")("-Y", str(users), "-t", "1"), transport)


def test_with_the_right_password(guarded: Guarded) -> None:
    with guarded.client() as client, guarded.client(b"other", b"secret") as other:
        assert client.set("key", b"value") is True
        assert other.get("key") == b"value"
        assert client.set("large", bytes(100_000)) is True
        assert other.get("large") == bytes(100_000)
        assert [item["key"] for item in other.metadump() if item["key"] == KEY] == []
        client.close()
        assert client.get("key") == b"value"


def test_many_lanes_each_authenticate(guarded: Guarded) -> None:
    with guarded.client() as client:
        client.set("key", b"value")
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(client.get, ["key"] * 200)) == [b"value"] * 200
        clients = [guarded.client() for _ in range(5)]
        assert [one.get("key") for one in clients] == [b"value"] * 5
        for one in clients:
            one.close()


@pytest.mark.parametrize("user", [("user", "wrong"), ("nobody", "pass:word"), ("other", "pass:word")], ids="-".join)
def test_with_a_wrong_one(guarded: Guarded, user: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with guarded.client() as known, guarded.client(*user) as client, caplog.at_level(logging.DEBUG):
        known.set("key", b"value")
        for _ in range(2):
            with pytest.raises(MemcacheClientError, match="refuses username and password") as raised:
                client.get("key")
            assert f"{guarded.server.port}" in str(raised.value)
            assert user[1] not in str(raised.value) + repr(client) + caplog.text
            assert client.connections == 0
        assert known.get("key") == b"value"


def test_without_one(guarded: Guarded) -> None:
    with guarded.client(None, None) as client:
        for _ in range(2):
            with pytest.raises(MemcacheClientError, match="wants authentication: username= and password="):
                client.get("key")


def test_copies_know_it_too(guarded: Guarded) -> None:
    with guarded.client() as client:
        client.set("key", b"value")
        for again in (copy.copy(client), pickle.loads(pickle.dumps(client))):
            with again:
                assert again.get("key") == b"value"


def test_async_client(guarded: Guarded) -> None:
    async def body() -> None:
        async with AsyncClient(guarded.server.address, **guarded.options()) as client:
            assert await client.set("key", b"value") is True
            assert await client.get("key") == b"value"
        async with AsyncClient(guarded.server.address, **guarded.options(password="wrong")) as client:
            with pytest.raises(MemcacheError):
                await client.get("key")

    asyncio.run(body())


@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_a_server_that_asks_nobody(rmemcached_server: ServerFactory, transport: str) -> None:
    """It keeps nothing of what it was told."""
    options: dict[str, Any] = {"transport": transport, "timeout": 20, "username": "user", "password": "password"}
    with Client(rmemcached_server().address, default_noreply=False, **options) as client:
        assert client.set("key", b"value") is True
        assert client.get(KEY) is None
        assert client.get("key") == b"value"


@pytest.mark.parametrize("words", [("a b", "c"), ("a", "b\r\nc"), ("", "b"), ("a", ""), ("a\0", "b"), ("a", None)])
def test_what_cannot_be_sent(words: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"username|password") as raised:
        Client("127.0.0.1", username=words[0], password=words[1])
    assert "b\r\nc" not in str(raised.value)

"""Servers that demand a name and a password (-Y), over every transport."""

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
from dumps import keys_in
from servers import Server
from test_client_errors import answering
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    AsyncClient,
    Client,
    MemcacheClientError,
    MemcacheError,
    MemcacheServerError,
    MemcacheUnknownError,
)
from rmemcached.client.transport.authentication import KEY

ServerFactory = Callable[..., Server]
TRANSPORTS = [("memcached", "tcp"), ("rmemcached", "auto"), ("rmemcached", "tcp")]
TRANSPORTS += [("rmemcached", name) for name in RDMA_TRANSPORTS]


USERS = {"user": "pass:word", "other": "secret", "tab": "pass\tword", "long": "x" * 150}


class Guarded:
    """A server with USERS, and the ways to connect."""

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
    users.write_text("".join(f"{name}:{word}\n" for name, word in USERS.items()))
    yield Guarded(request.getfixturevalue(f"{name}_server")("-Y", str(users), "-t", "1"), transport)


def test_with_the_right_password(guarded: Guarded) -> None:
    with guarded.client() as client, guarded.client(b"other", b"secret") as other:
        assert client.set("key", b"value") is True
        assert other.get("key") == b"value"
        assert client.set("large", bytes(100_000)) is True
        assert other.get("large") == bytes(100_000)
        assert KEY not in keys_in(other)
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
    """A server without -Y does not store the client's name and password as an item."""
    options: dict[str, Any] = {"transport": transport, "timeout": 20, "username": "user", "password": "password"}
    with Client(rmemcached_server().address, default_noreply=False, **options) as client:
        assert client.set("key", b"value") is True
        assert client.get(KEY) is None
        assert client.get("key") == b"value"


@pytest.mark.parametrize(
    "words",
    [("a b", "secret"), ("", "secret"), ("a\0", "secret"), ("a", "secret\r\nx"), ("a", "secret\0"), ("a", None)],
)
def test_what_cannot_be_sent(words: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"username|password") as raised:
        Client("127.0.0.1", username=words[0], password=words[1])
    assert "secret" not in str(raised.value)


def test_what_is_no_text() -> None:
    """Neither the error about a malformed name or password nor its cause contains the password."""
    with pytest.raises(ValueError, match="password") as raised:
        Client("127.0.0.1", username="a", password="secret\udc80")
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    for words in (("a", 5), (5, "a"), ("a", ["secret"])):
        with pytest.raises(TypeError, match="must be str or bytes") as refused:
            Client("127.0.0.1", username=words[0], password=words[1])  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", USERS)
def test_passwords_that_servers_take(guarded: Guarded, name: str) -> None:
    with guarded.client(name, USERS[name]) as client:
        assert client.set("key", b"value") is True


@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_a_password_with_a_blank(rmemcached_server: ServerFactory, tmp_path: Path, transport: str) -> None:
    """memcached 1.6.18 refuses such a password; later versions and the daemon take such passwords."""
    users = tmp_path / "users"
    users.write_text("user:pass word\n")
    options: dict[str, Any] = {"transport": transport, "timeout": 20, "default_noreply": False}
    server = rmemcached_server("-Y", str(users))
    with Client(server.address, username="user", password="pass word", **options) as client:
        assert client.set("key", b"value") is True


@pytest.mark.parametrize("user", [("user", "wrong"), (None, None), ("other", "secret")])
def test_a_lane_that_another_client_has_left(guarded: Guarded, user: tuple[Any, Any]) -> None:
    """A Client without the password does not get in by a lane left by a client with the password."""
    with guarded.client("other", "secret") as stays:
        with guarded.client() as first, guarded.client() as second:
            assert first.set("key", b"value") is True
            assert second.get("key") == b"value"
            first.close()
            with guarded.client(*user) as client:
                if user == ("other", "secret"):
                    assert client.get("key") == b"value"
                else:
                    with pytest.raises(MemcacheClientError, match="authentication"):
                        client.get("key")
            assert first.get("key") == b"value"
        assert stays.get("key") == b"value"


@pytest.mark.parametrize("line", [b"SERVER_ERROR out of memory storing object", b"what? secret"])
def test_a_server_in_trouble_says_so(line: bytes) -> None:
    """Errors about other things than the password keep their class and text."""
    with answering({b"": line + b"\r\n"}) as address:
        with (
            Client(address, transport="tcp", username="user", password="secret", timeout=20) as client,
            pytest.raises(MemcacheServerError if line.startswith(b"SERVER") else MemcacheUnknownError) as raised,
        ):
            client.get("key")
        assert "secret" not in str(raised.value)
        assert ("out of memory" in str(raised.value)) == line.startswith(b"SERVER")

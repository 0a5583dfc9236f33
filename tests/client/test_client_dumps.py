"""Commands whose answers have no known end."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import serving
from servers import Server, free_port
from suspended import suspended
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    Client,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

ServerFactory = Callable[..., Server]
KEYS = [b"plain", b"with%percent", "ü".encode(), b"x" * 250, b"\x01\xff"]


@pytest.fixture(params=["memcached-tcp", "rmemcached-tcp", *(f"rmemcached-{name}" for name in RDMA_TRANSPORTS)])
def own(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client with a server of its own."""
    name, _, transport = request.param.partition("-")
    server: Server = request.getfixturevalue(f"{name}_server")("-t", "1", "-o", "no_lru_maintainer")
    with Client(server.address, transport=transport, timeout=20, default_noreply=False) as client:
        yield client


def test_metadump(own: Client) -> None:
    own.set_many(dict.fromkeys(KEYS, b"value"))
    own.set("expires", b"x" * 5000, expire=1000)
    own.get("plain")
    found = {item["key"]: item for item in own.metadump()}
    assert sorted(found) == sorted([*KEYS, b"expires"])
    plain, expires = found[b"plain"], found[b"expires"]
    assert (plain["exp"], plain["fetch"], expires["fetch"]) == (-1, True, False)
    assert expires["exp"] > plain["la"] > 1_000_000_000
    assert expires["size"] > 5000 > plain["size"] > 0
    assert all(isinstance(plain[name], int) for name in ("exp", "la", "cas", "cls", "size"))
    assert [item["key"] for item in own.metadump(expires["cls"])] == [b"expires"]


def test_mgdump(own: Client) -> None:
    own.set_many(dict.fromkeys(KEYS, b"value"))
    if own.version() == b"1.6.18":
        with pytest.raises(MemcacheUnknownCommandError, match="lru_crawler mgdump all"):
            next(own.mgdump())
    else:
        assert sorted(own.mgdump()) == sorted(KEYS)


def test_the_client_can_be_used_meanwhile(own: Client) -> None:
    own.set_many({f"key-{number}": b"value" for number in range(2000)})
    seen = 0
    for item in own.metadump():
        assert own.get(item["key"]) == b"value"
        seen += 1
    assert seen == 2000


def test_watch(own: Client) -> None:
    with own.watch("fetchers", timeout=20) as events:
        for number in range(3):
            own.get(f"key-{number}")
        assert [next(events)["key"] for _ in range(3)] == ["key-0", "key-1", "key-2"]
    with own.watch("mutations", "evictions", timeout=20) as events:
        own.set("key", b"value")
        event = next(events)
        assert (event["type"], event["key"]) == ("item_store", "key")
    with pytest.raises(StopIteration):
        next(events)


def test_what_the_server_refuses(own: Client) -> None:
    with pytest.raises((MemcacheClientError, MemcacheServerError)):
        own.watch("nonsense", timeout=20)
    with pytest.raises(MemcacheServerError), own.metadump("9999") as items:
        next(items)
    for wrong in ("two words", "", "line\r\n", "ü"):
        with pytest.raises(MemcacheIllegalInputError):
            own.metadump(wrong)
    assert own.get("key") is None


def test_time_limits(own: Client, request: pytest.FixtureRequest) -> None:
    with own.watch("fetchers", timeout=0.2) as events:
        with pytest.raises(TimeoutError, match="watch fetchers: timed out: nothing has come for"):
            next(events)
        with pytest.raises(StopIteration):
            next(events)


def test_left_early(own: Client) -> None:
    own.set_many({f"key-{number}": b"value" for number in range(100)})
    with own.metadump() as items:
        next(items)
    items.close()
    with pytest.warns(ResourceWarning, match="unclosed 'watch fetchers'"):
        own.watch("fetchers")
        gc.collect()
    assert own.get("key-1") == b"value"


def test_over_a_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    rmemcached_server("-o", "no_lru_maintainer", path=path)
    with Client(path, timeout=20, default_noreply=False) as client:
        client.set("key", b"value")
        assert list(client.mgdump()) == [b"key"]


@pytest.mark.parametrize("answer", [b"key=one exp=-1\r\n", b"key=one exp=-1\r\nkey=tw", b""])
def test_a_server_that_ends_early(answer: bytes) -> None:
    """Received entries count; the early end is an error, never a short answer."""

    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    found: list[Any] = []
    ends = pytest.raises(MemcacheUnexpectedCloseError, match="metadump all: the server has ended")
    with serving(serve) as address, ends:
        found.extend(Client(address, timeout=20).metadump())


def test_a_line_that_makes_no_sense() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"key=one exp=soon\r\n")

    with serving(serve) as address, pytest.raises(MemcacheUnknownError, match="exp=soon"):
        list(Client(address, timeout=20).metadump())


def test_no_server_and_a_silent_one(shared_rmemcached: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        Client(("127.0.0.1", free_port())).metadump()
    with (
        suspended(shared_rmemcached.pid),
        contextlib.closing(Client(shared_rmemcached.address, timeout=0.2).metadump()) as items,
        pytest.raises(TimeoutError, match="metadump all"),
    ):
        next(items)

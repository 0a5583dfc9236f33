"""Meta commands and their uses: leases, time to live, existence."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from classic_relay import ClassicRelay
from conftest import Backend
from servers import Server
from suspended import suspended

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheUnknownCommandError,
    MetaItem,
    MetaNumber,
    MetaResult,
)

SIZES = (0, 1, 100, 3000, 100_000, 1_000_000)


class JsonSerde:
    def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
        return json.dumps(value).encode(), 7

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        assert flags == 7
        return json.loads(value)


class Awaited:
    """An AsyncClient with the methods of a Client: each runs the loop until its result is there."""

    def __init__(self, client: AsyncClient | AsyncClusterClient) -> None:
        self.client = client
        self.runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.runner.run(getattr(self.client, name)(*arguments, **options))

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


class Piped:
    """Commands in a Pipeline, between other commands."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            pipeline = self.client.pipeline()
            if not hasattr(pipeline, name):
                return getattr(self.client, name)(*arguments, **options)
            pipeline.get("no-such-key")
            getattr(pipeline, name)(*arguments, **options)
            pipeline.get("no-such-key")
            before, result, behind = pipeline.execute()
            assert (before, behind) == (None, None)
            if isinstance(result, BaseException):
                raise result
            return result

        return call


@pytest.fixture(params=["sync", "pipeline", "async"])
def meta(request: pytest.FixtureRequest, backend: Backend, make_client: Callable[..., Client]) -> Any:
    """A Client, or an object with the methods of a Client, implemented in another way."""
    if request.param == "sync":
        return make_client()
    if request.param == "pipeline":
        return Piped(make_client())
    awaited = Awaited(AsyncClient(backend.server.address, transport=backend.transport, timeout=20))
    request.addfinalizer(awaited.close)
    return awaited


def found(item: MetaItem | None) -> MetaItem:
    assert item is not None
    return item


def test_get(meta: Any, key: str) -> None:
    assert meta.meta_get(key) is None
    assert meta.meta_set(key, b"value", expire=1000, flags=5) == MetaResult("done")
    assert meta.meta_get(key) == MetaItem(key, b"value")
    item = meta.meta_get(key, flags=True, cas=True, ttl=True, size=True, hit_before=True, last_access=True, opaque="o1")
    assert item == MetaItem(key, b"value", 5, item.cas, item.ttl, 5, True, item.last_access, b"o1")
    assert item.cas > 0
    assert 990 <= item.ttl <= 1000
    assert 0 <= item.last_access < 10
    assert meta.meta_get(key, value=False, ttl=True, touch=0) in (MetaItem(key, ttl=-1), MetaItem(key, ttl=item.ttl))
    assert meta.meta_get(key, value=False, ttl=True) == MetaItem(key, ttl=-1)


@pytest.mark.parametrize("size", SIZES)
def test_values(meta: Any, key: str, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert meta.meta_set(key, value)
    assert meta.meta_get(key, size=True) == MetaItem(key, value, size=size)
    assert meta.meta_set(key, memoryview(value)[: size // 2])
    assert meta.meta_get(key).value == value[: size // 2]
    assert meta.get(key) == value[: size // 2]


def test_set(meta: Any, key: str) -> None:
    assert meta.meta_set(key, b"1", mode="replace") == MetaResult("not stored")
    assert not meta.meta_set(key, b"1", mode="append")
    assert meta.meta_set(key, b"1", mode="add")
    assert meta.meta_set(key, b"1", mode="add").status == "not stored"
    assert meta.meta_set(key, b"2", mode="append")
    first = meta.meta_set(key, b"0", mode="prepend", return_cas=True, opaque=b"here")
    assert (first.status, first.opaque) == ("done", b"here")
    item = meta.meta_get(key, cas=True)
    assert (item.value, item.cas) == (b"012", first.cas)
    assert meta.meta_set(key, b"x", cas=item.cas + 1) == MetaResult("exists")
    assert meta.meta_set("no" + key, b"x", cas=item.cas) == MetaResult("not found")
    assert meta.meta_set(key, b"x", cas=item.cas)


def test_delete(meta: Any, key: str) -> None:
    assert meta.meta_delete(key) == MetaResult("not found")
    meta.meta_set(key, b"value")
    cas = meta.meta_get(key, cas=True).cas
    assert meta.meta_delete(key, cas=cas + 1) == MetaResult("exists")
    assert meta.meta_delete(key, cas=cas, opaque="x") == MetaResult("done", opaque=b"x")
    assert meta.meta_get(key) is None


def test_arithmetic(meta: Any, key: str) -> None:
    assert meta.meta_arithmetic(key) == MetaNumber("not found")
    assert meta.meta_arithmetic(key, 5, initial=10) == MetaNumber("done", 10)
    assert meta.meta_arithmetic(key, 5, value=False) == MetaNumber("done")
    number = meta.meta_arithmetic(key, 20, mode="decr", return_cas=True, ttl=True, touch=100)
    assert (number.status, number.value, bool(number)) == ("done", 0, True)
    assert number.ttl in (-1, 99, 100)
    assert meta.meta_arithmetic(key, 1, cas=number.cas + 1) == MetaNumber("exists")
    assert meta.meta_arithmetic(key + "-2", initial=3, vivify=100, ttl=True).value == 3
    assert 90 < meta.ttl(key + "-2") <= 100
    meta.meta_set(key, b"word")
    with pytest.raises(MemcacheClientError, match=r"meta_arithmetic.*non-numeric"):
        meta.meta_arithmetic(key)


@pytest.mark.parametrize(
    "name", [b"with blank", b"\r\nflush_all\r\n", bytes(range(180)), "ümlaut", b"\xff", "\x7f", b"a\0b"]
)
def test_keys_of_any_bytes(meta: Any, key: str, name: Any) -> None:
    name = name + key[-6:] if isinstance(name, str) else name + key[-6:].encode()
    assert meta.meta_get(name) is None
    assert meta.meta_debug(name) is None
    assert meta.meta_set(name, b"12")
    assert meta.meta_get(name) == MetaItem(name, b"12")
    assert meta.exists(name) is True
    assert meta.meta_arithmetic(name).value == 13
    assert meta.meta_debug(name)["cls"] >= 1
    assert meta.meta_delete(name)
    assert meta.exists(name) is False


def test_a_key_is_the_same_one_in_base64(backend: Backend, make_client: Callable[..., Client], key: str) -> None:
    client = make_client(allow_unicode_keys=True, key_prefix=b"pre:")
    client.set("ü" + key, b"value")
    assert found(client.meta_get("ü" + key)).value == b"value"
    assert found(make_client().meta_get(("pre:ü" + key).encode())).value == b"value"


@pytest.mark.parametrize("name", ["", "x" * 251, b"\n" * 200, b"\xff" * 188])
def test_keys_that_cannot_be_sent(meta: Any, name: Any) -> None:
    with pytest.raises(MemcacheIllegalInputError, match="Key is"):
        meta.meta_get(name)
    with pytest.raises(TypeError):
        meta.meta_set(5, b"value")


@pytest.mark.parametrize(
    "options",
    [{"opaque": "a b"}, {"opaque": "x" * 32}, {"opaque": 5}, {"new_cas": "1 x"}, {"touch": "1 v"}, {"vivify": "a"}],
)
def test_options_that_cannot_be_sent(meta: Any, options: Any) -> None:
    with pytest.raises(MemcacheClientError):
        meta.meta_get("key", **options)
    with pytest.raises(ValueError, match="mode"):
        meta.meta_set("key", b"value", mode="update")
    with pytest.raises(ValueError, match="mode"):
        meta.meta_arithmetic("key", mode="update")


def test_debug_and_noop(meta: Any, key: str) -> None:
    assert meta.meta_noop() is True
    meta.meta_set(key, b"value", expire=100)
    meta.meta_get(key)
    words = meta.meta_debug(key)
    assert set(words) == {"exp", "la", "cas", "fetch", "cls", "size"}
    assert words["fetch"] is True
    assert 90 < words["exp"] <= 100


def test_existence_and_times(meta: Any, key: str) -> None:
    assert (meta.exists(key), meta.ttl(key), meta.last_access(key)) == (False, None, None)
    assert (meta.ttl(key, "none"), meta.last_access(key, "none")) == ("none", "none")
    meta.meta_set(key, b"value")
    assert (meta.exists(key), meta.ttl(key)) == (True, -1)
    assert 0 <= meta.last_access(key) < 10
    assert meta.meta_get(key, hit_before=True).hit_before is False
    assert meta.gat_many([key, "no" + key], 100) == {key: b"value"}
    assert 90 < meta.ttl(key) <= 100
    assert meta.gat_many([]) == {}
    assert meta.gat_many([key]) == {key: b"value"}
    assert meta.ttl(key) == -1


def test_win_stale_and_wait(meta: Any, key: str) -> None:
    won = meta.meta_get(key, vivify=30, cas=True)
    assert won == MetaItem(key, None, cas=won.cas, won=True)
    assert meta.meta_get(key, vivify=30) == MetaItem(key, None, waits=True)
    assert meta.meta_set(key, b"value", cas=won.cas)
    assert meta.meta_get(key, vivify=30) == MetaItem(key, b"value")
    assert meta.invalidate(key) is True
    assert meta.meta_get(key) == MetaItem(key, b"value", won=True, stale=True)
    assert meta.meta_get(key) == MetaItem(key, b"value", waits=True, stale=True)
    assert meta.invalidate("no" + key) is False
    assert meta.invalidate(key) is True
    assert (meta.exists(key), 20 < meta.ttl(key) <= 30, meta.last_access(key) < 10) == (True, True, True)
    assert meta.meta_get(key).won is True
    meta.meta_set(key, b"value", expire=100)
    assert meta.meta_get(key, recache=10) == MetaItem(key, b"value")
    assert meta.meta_get(key, recache=200) == MetaItem(key, b"value", won=True)
    assert meta.meta_get(key, recache=200) == MetaItem(key, b"value", waits=True)


def test_an_empty_value_is_one(meta: Any, key: str) -> None:
    meta.meta_set(key, b"")
    assert meta.meta_get(key, vivify=30) == MetaItem(key, b"")


@pytest.mark.parametrize("transport", ["tcp", "soft_shm", "soft_iw"])
def test_what_newer_servers_know(rmemcached_server: Callable[..., Server], transport: str) -> None:
    with Client(rmemcached_server().address, transport=transport, timeout=20) as client:
        assert client.meta_set("key", b"value", new_cas=5, return_cas=True, return_size=True) == MetaResult(
            "done", 5, 5
        )
        assert client.meta_set("key", b"older", cas=4, invalidate=True)
        assert found(client.meta_get("key", cas=True)).stale is True
        assert client.meta_set("appended", b"x", mode="append", vivify=60)
        assert client.meta_get("appended") == MetaItem("appended", b"x")
        assert client.meta_delete("key", clear=True)
        assert found(client.meta_get("key", size=True)).size == 0
        assert found(client.meta_get("other", vivify=30, new_cas=77, cas=True)).cas == 77


def test_the_serde(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=JsonSerde())
    assert client.meta_set(key, [1, "two"])
    assert found(client.meta_get(key)).value == [1, "two"]
    assert found(client.meta_get(key, flags=True)).flags == 7
    assert client.meta_get(key, value=False) == MetaItem(key)
    with client.pipeline() as pipeline:
        pipeline.meta_get(key)
        pipeline.meta_get("no" + key, vivify=30)
    assert pipeline.results[0].value == [1, "two"]
    assert (pipeline.results[1].value, pipeline.results[1].won) == (None, True)


def test_ignore_exc(rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server()
    with Client(server.address, timeout=0.2, ignore_exc=True, default_noreply=False, transport="tcp") as client:
        client.set("key", b"value")
        with suspended(server.pid):
            assert client.meta_get("key") is None
            assert client.get_or_set("key", lambda: b"computed") == b"computed"
            with pytest.raises(TimeoutError):
                client.meta_set("key", b"value")


def test_a_server_without_them(make_relay: Callable[..., ClassicRelay], key: str) -> None:
    relay = make_relay()
    with Client(relay.address, transport="tcp", timeout=20, default_noreply=False) as client:
        for call in (client.meta_get, client.exists, client.meta_debug, client.ttl, client.meta_delete):
            with pytest.raises(MemcacheUnknownCommandError, match="the server knows no meta commands"):
                call(key)
        assert client.set(key, b"value") is True
        assert client.gat_many([key], 100) == {key: b"value"}
        assert client.connections == 1

    async def body() -> None:
        async with AsyncClient(relay.address, transport="tcp", timeout=20) as client:
            get = asyncio.ensure_future(client.get(key))
            with pytest.raises(MemcacheUnknownCommandError):
                await client.meta_get(key)
            assert await get == b"value"

    asyncio.run(body())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_of_several_servers(three: list[Server], key: str, kind: str) -> None:
    options: dict[str, Any] = {"timeout": 20, "default_noreply": False}
    addresses = [server.address for server in three]
    made: Any
    if kind == "sync":
        made = ClusterClient(addresses, ignore_exc=True, retry_attempts=0, **options)
    else:
        made = Awaited(AsyncClusterClient(addresses, ignore_exc=True, retry_attempts=0, **options))
    calls = itertools.count()

    def compute() -> bytes:
        next(calls)
        return b"value"

    for number in range(12):
        name = f"{key}-{number} \xff"
        assert made.get_or_set(name, compute, 100) == b"value"
        assert made.get_or_set(name, compute, 100) == b"value"
        assert made.meta_get(name).value == b"value"
        assert (made.exists(name), 90 < made.ttl(name) <= 100, made.last_access(name) < 10) == (True, True, True)
        assert made.invalidate(name) is True
        assert made.meta_set(name, b"5")
        assert made.meta_arithmetic(name).value == 6
        assert made.meta_debug(name)["cls"] > 0
        assert made.meta_delete(name)
        assert made.exists(name) is False
    assert next(calls) == 12
    for server in three:
        server.kill()
    assert made.meta_get(key) is None
    assert made.get_or_set(key, compute) == b"value"
    assert not made.meta_set(key, b"value")
    made.close()


# --- leases ---


def test_one_caller_computes(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    calls = itertools.count()
    begun, may_end = threading.Event(), threading.Event()

    def compute() -> bytes:
        next(calls)
        begun.set()
        assert may_end.wait(20)
        return b"value"

    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(client.get_or_set, key, compute, 100) for _ in range(8)]
        assert begun.wait(20)
        # Another caller has to be looking for the value before compute() may end.
        while client.calls < 1 and not any(result.done() for result in results):
            pass
        may_end.set()
        assert [result.result(20) for result in results] == [b"value"] * 8
    assert next(calls) == 1
    assert 90 < client.ttl(key) <= 100
    assert client.get_or_set(key, lambda: pytest.fail("there is a value")) == b"value"


def test_one_task_computes(backend: Backend, key: str) -> None:
    calls = itertools.count()

    async def body() -> None:
        async with AsyncClient(backend.server.address, transport=backend.transport, timeout=20) as client:

            async def compute() -> bytes:
                next(calls)
                await asyncio.sleep(0.01)
                return b"value"

            assert await asyncio.gather(*(client.get_or_set(key, compute) for _ in range(50))) == [b"value"] * 50
            assert await client.get_or_set(key, lambda: b"other") == b"value"
            with pytest.raises(ZeroDivisionError):
                await client.get_or_set("no" + key, lambda: 1 // 0)
            waits = asyncio.create_task(client.get_or_set(key + "-2", lambda: asyncio.sleep(60)))
            while not await client.exists(key + "-2"):
                pass
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            # Nobody has to wait for the lease of a cancelled call.
            assert await client.get_or_set(key + "-2", lambda: b"value") == b"value"

    asyncio.run(body())
    assert next(calls) == 1


def test_a_computation_that_fails(make_client: Callable[..., Client], oracle: Any, key: str) -> None:
    """After a failed computation the next caller computes at once; a stale value stays for the others."""
    client = make_client()
    with pytest.raises(ZeroDivisionError):
        client.get_or_set(key, lambda: 1 // 0, lease=1000)
    assert client.exists(key) is False
    assert client.get_or_set(key, lambda: b"value", lease=1000) == b"value"
    client.invalidate(key)
    with pytest.raises(ZeroDivisionError):
        client.get_or_set(key, lambda: 1 // 0, lease=1000)
    assert oracle.get(key) == b"value"
    assert client.get_or_set(key, lambda: b"newer", lease=1000) == b"newer"
    assert client.get(key) == b"newer"


def test_a_value_that_is_refused(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    with pytest.raises(MemcacheError, match="too large"):
        client.get_or_set(key, lambda: bytes(9 << 20), lease=1000)
    assert client.get_or_set(key, lambda: b"value", lease=1000) == b"value"


def test_what_was_deleted_meanwhile_is_not_stored(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()

    def compute() -> bytes:
        client.delete(key)
        return b"outdated"

    assert client.get_or_set(key, compute) == b"outdated"
    assert client.get(key) is None


def test_stale_values(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, b"old")
    client.invalidate(key)
    seen: list[Any] = []

    def compute() -> bytes:
        seen.append(client.get_or_set(key, lambda: b"not this"))
        seen.append(client.get_or_set(key, lambda: b"by itself", stale=False, wait=0))
        return b"new"

    assert client.get_or_set(key, compute) == b"new"
    assert seen == [b"old", b"by itself"]
    assert client.get(key) == b"new"


def test_invalidated_before_there_was_a_value(make_client: Callable[..., Client], key: str) -> None:
    """invalidate() during the first compute(): other callers get no stale value, and the outdated result is not
    stored."""
    client = make_client(serde=JsonSerde())
    seen: list[Any] = []

    def compute() -> Any:
        client.invalidate(key)
        seen.append(client.get_or_set(key, lambda: client.get_or_set(key, lambda: "by itself", wait=0) + ", newer"))
        return "outdated"

    assert client.get_or_set(key, compute) == "outdated"
    assert seen == ["by itself, newer"]
    assert client.get(key) == "by itself, newer"


def test_refresh(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, b"old", expire=50)
    assert client.get_or_set(key, lambda: b"new", 100, refresh=10) == b"old"
    assert client.get_or_set(key, lambda: client.get_or_set(key, lambda: b"not this") + b"er", refresh=60) == b"older"
    assert client.get(key) == b"older"


def test_a_lease_ends(make_client: Callable[..., Client], key: str) -> None:
    """After the death of a winner the next caller waits for the lease at most, and then computes the value."""
    client = make_client()
    assert found(client.meta_get(key, vivify=1)).won
    assert client.get_or_set(key, lambda: b"value", wait=0) == b"value"
    assert client.get(key) == b""
    assert client.get_or_set(key, lambda: b"value", lease=1) == b"value"
    assert client.get(key) == b"value"


@pytest.mark.parametrize("lease", [0, -1, 1.5, None])
def test_a_lease_has_seconds(client: Client, lease: Any) -> None:
    with pytest.raises(ValueError, match="lease"):
        client.get_or_set("key", lambda: b"value", lease=lease)

"""An asyncio application with aiocache, on rmemcached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiocache import cached, caches
from aiocache.lock import OptimisticLock, OptimisticLockError, RedLock
from aiocache.serializers import PickleSerializer
from concurrency import in_child
from frameworks import A_YEAR, LARGE, MANY
from servers import Server, free_port

from rmemcached.client import MemcacheServerError
from rmemcached.connectors.aiocache import RMemcachedCache

ServerFactory = Callable[..., Server]


def on(server: Server, body: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    """Runs a coroutine function with an empty cache."""

    async def main() -> None:
        async with RMemcachedCache(f"tcp://127.0.0.1:{server.port}", **options) as cache:
            await cache.clear()
            await body(cache)

    asyncio.run(main())


def test_an_application(module_rmemcached: Server) -> None:
    path = "rmemcached.connectors.aiocache.RMemcachedCache"
    entry = {"cache": path, "endpoint": "127.0.0.1", "port": module_rmemcached.port, "transport": "soft_shm"}
    caches.set_config({"default": {**entry, "serializer": {"class": "aiocache.serializers.PickleSerializer"}}})
    calls: list[int] = []

    @cached(alias="default", key_builder=lambda function, *arguments: f"square of {arguments}")
    async def square(number: int) -> int:
        calls.append(number)
        return number * number

    async def main() -> None:
        assert [await square(3), await square(3), await square(4)] == [9, 9, 16] and calls == [3, 4]
        assert caches.get("default").client.transport == "soft_shm"
        await caches.get("default").close()

    asyncio.run(main())


def test_values(module_rmemcached: Server) -> None:
    async def body(cache: Any) -> None:
        values = {"large": LARGE, "object": {"a": 1}, "with blank": 1, "ключ" * 100: 2}
        assert await cache.multi_set(values.items())
        assert await cache.multi_get([*values, "other"]) == [*values.values(), None]
        await cache.set("none", None)
        assert await cache.exists("none") and await cache.get("none", "default") == "default"
        assert not await cache.exists("other")
        assert await cache.add("new", 1)
        with pytest.raises(ValueError, match="already exists"):
            await cache.add("new", 2)
        assert [await cache.delete("new"), await cache.delete("new")] == [1, 0]
        with pytest.raises(ValueError, match="namespace"):
            await cache.clear(namespace="other")
        await cache.clear()
        assert await cache.get("object") is None

    on(module_rmemcached, body, serializer=PickleSerializer(), namespace="app:")


def test_times_and_numbers(module_rmemcached: Server) -> None:
    async def body(cache: Any) -> None:
        for ttl, expected in ((None, -1), (0, -1), (A_YEAR, A_YEAR), (59.5, 60)):
            await cache.set("key", "1", ttl=ttl)
            assert expected - 5 <= await cache.client.ttl("key") <= expected + 1
        assert await cache.expire("key", 30) and not await cache.expire("other", 30)
        assert await cache.client.ttl("key") <= 30
        assert [await cache.increment("n"), await cache.increment("n", 5), await cache.increment("n", -2)] == [1, 6, 4]
        assert await cache.get("n") == 4
        numbers = await asyncio.gather(*(cache.increment("many") for _ in range(MANY)))
        assert sorted(numbers) == list(range(1, MANY + 1))
        await cache.set("text", "text")
        with pytest.raises(TypeError, match="cannot be counted"):
            await cache.increment("text")

    on(module_rmemcached, body)


def test_locks(module_rmemcached: Server) -> None:
    async def body(cache: Any) -> None:
        calls: list[int] = []

        async def compute() -> None:
            async with RedLock(cache, "key", lease=5):
                if await cache.get("key") is None:
                    calls.append(1)
                    await cache.set("key", 5)

        await asyncio.gather(*(compute() for _ in range(20)))
        assert len(calls) == 1
        await cache._add("lock", "another's")
        assert await cache._redlock_release("lock", "mine") == 0 and await cache.exists("lock")
        with pytest.raises(OptimisticLockError):
            async with OptimisticLock(cache, "key") as lock:
                await cache.set("key", 6)
                await lock.cas(7)
        assert await cache.get("key") == 6

    on(module_rmemcached, body)


def test_a_forked_child(module_rmemcached: Server) -> None:
    cache = RMemcachedCache(f"127.0.0.1:{module_rmemcached.port}")

    async def check(key: str) -> bool:
        found = await cache.get("parent")
        await cache.set(key, 1)
        await cache.close()
        return found in (None, 1)

    assert asyncio.run(check("parent"))
    in_child(lambda: asyncio.run(check("child")))
    assert asyncio.run(cache.get("child")) == 1
    asyncio.run(cache.close())


def test_servers_that_are_down_or_refuse(rmemcached_server: ServerFactory) -> None:
    nowhere = free_port()

    @cached(cache=RMemcachedCache, port=nowhere, key="key")
    async def function() -> int:
        return 5

    async def main() -> None:
        assert await function() == 5, "aiocache logs what the cache raises"
        with pytest.raises(ConnectionRefusedError):
            await RMemcachedCache(port=nowhere).get("key")
        quiet = RMemcachedCache([f"127.0.0.1:{nowhere}"], ignore_exc=True)
        assert await quiet.get("key") is None and not await quiet.set("key", 1)
        assert [await quiet.increment("key"), await quiet.increment("key", -1)] == [-1, -1]

    asyncio.run(main())

    async def body(cache: Any) -> None:
        with pytest.raises(MemcacheServerError, match="too large"):
            await cache.set("key", LARGE)

    on(rmemcached_server("-t", "1"), body, serializer=PickleSerializer())

"""A program that uses all of rmemcached.client, for type checkers. It runs, too: everything.py HOST PORT."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, assert_type

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Buffer,
    Client,
    ClusterClient,
    Gathered,
    KeepaliveOpts,
    MemcacheError,
    MetaItem,
    MetaNumber,
    MetaResult,
    Pipeline,
    TooManyConnections,
    serde,
)


class Upper:
    """A serde."""

    def serialize(self, key: Any, value: str) -> tuple[bytes, int]:
        return value.upper().encode(), 1

    def deserialize(self, key: Any, value: bytes, flags: int) -> str:
        return value.decode()


def store_and_fetch(client: Client) -> None:
    assert_type(client.set("key", b"value", expire=60, noreply=False), bool | None)
    client.add(b"key", "text")
    client.replace("key", b"value")
    client.append("key", b"1")
    client.prepend("key", b"0")
    assert client.get("key", default=b"") == b"0value1"
    value, cas = client.gets("key")
    client.cas("key", value, cas)
    client.gat("key", 10)
    client.gats("key", expire=10)
    assert_type(client.get_many(["key"]), dict[str, Any])
    assert_type(client.gets_many([b"key"]), dict[bytes, tuple[Any, bytes]])
    assert_type(client.gat_many(["key"], 60), dict[str, Any])
    assert_type(client.set_many({"a": b"1", "b": b"2"}), list[str])
    assert_type(client.incr("a", 1), int | None)
    client.decr("a", 1)
    client.touch("a", 100)
    client.delete("a")
    client.delete_many(["a", "b"])
    client["item"] = b"value"
    assert client["item"] == b"value"
    del client["item"]


def memory(client: Client) -> None:
    with client.buffer(100_000) as buffer, client.register(bytearray(10)) as own:
        assert_type(buffer, Buffer)
        assert len(own) == 10
        with memoryview(buffer) as view:
            view[:5] = b"large"
        client.set("large", buffer)
        assert_type(client.get_into("large", buffer, offset=0), int | None)
        assert client.get_many_into([("large", buffer), ("none", own)]) == [100_000, None]
    with client.get("large", copy=False) as seen:
        assert bytes(seen[:5]) == b"large"
    client.set("parts", Gathered([b"one", bytearray(b"two")]))


def pipelines(client: Client) -> None:
    pipeline: Pipeline
    with client.pipeline() as pipeline:
        pipeline.set("key", b"1")
        pipeline.incr("key", 2)
        pipeline.meta_get("key", cas=True)
    results: list[Any] = pipeline.results
    assert results[1] == 3


def meta(client: Client) -> None:
    item = client.meta_get("key", ttl=True, cas=True)
    assert_type(item, MetaItem | None)
    assert item is not None and item.cas is not None
    assert_type(client.meta_set("key", b"1", mode="replace", cas=item.cas), MetaResult)
    assert_type(client.meta_arithmetic("key", 5, initial=0), MetaNumber)
    assert_type(client.meta_debug("key"), dict[str, Any] | None)
    assert client.meta_noop() and client.exists("key") and client.ttl("key") == -1
    client.last_access("key")
    client.invalidate("key", 10)
    client.get_or_set("key", lambda: b"computed", 60, refresh=5)
    assert client.meta_delete("key")


def administration(client: Client) -> None:
    assert_type(client.version(), bytes)
    assert_type(client.stats("settings"), dict[bytes, Any])
    client.raw_command("mn")
    client.cache_memlimit(64)
    print(client.transport, client.connections, client.calls, client.server)
    with client.metadump() as items:
        for entry in items:
            assert_type(entry["key"], Any)
    with client.watch("mutations", timeout=5) as events:
        events.close()
    client.flush_all()


async def asynchronous(server: tuple[str, int]) -> None:
    async with AsyncClient(server, default_noreply=False) as client:
        assert_type(await client.set("key", b"value"), bool)
        assert_type(await client.get_many(["key"]), dict[str, Any])
        item = await client.meta_get("key")
        assert_type(item, MetaItem | None)
        await client.get_or_set("other", lambda: asyncio.sleep(0, b"computed"))
        await client.get_into("key", bytearray(5))
        async for entry in client.metadump():
            assert_type(entry, dict[str, Any])
    async with AsyncClusterClient([server], default_noreply=False) as cluster:
        await cluster.set("key", b"value")
        assert await cluster.get_many(["key"]) == {"key": b"value"}
        assert_type(await cluster.meta_get("key"), MetaItem | None)
        assert_type(await cluster.exists("key"), bool)


def main() -> None:
    server = (sys.argv[1], int(sys.argv[2]))
    keepalive = KeepaliveOpts(idle=10)
    with Client(server, default_noreply=False, timeout=20, socket_keepalive=keepalive, transport="tcp") as client:
        store_and_fetch(client)
        memory(client)
        pipelines(client)
        meta(client)
        administration(client)
    try:
        with Client(f"tcp://{server[0]}:{server[1]}", serde=Upper()) as client:
            client.set("key", "text", noreply=False)
            assert client.get("key") == "TEXT"
    except TooManyConnections as error:
        print(error.server, error.command)
    except MemcacheError:
        raise
    for made in (serde.pickle_serde, serde.Pickle5Serde(), serde.NumpySerde(), serde.CompressedSerde()):
        with Client(server, serde=made) as client:
            client.set("key", "text", noreply=False)
            assert client.get("key") == "text"
    with ClusterClient([server], hasher="rendezvous", default_noreply=False) as cluster:
        assert cluster.set_many({"key": b"value"}) == []
        assert_type(cluster.meta_get("key"), MetaItem | None)
    asyncio.run(asynchronous(server))


if __name__ == "__main__":
    main()

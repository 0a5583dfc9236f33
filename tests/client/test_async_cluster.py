"""AsyncClusterClient: the features beyond ClusterClient and AsyncClient."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import socket
import types
from typing import Any

import pytest
from concurrency import Run
from gated_relay import Gate, GatedRelay
from servers import Server
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    ClusterClient,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
)
from rmemcached.client.api.cluster_meta import META

OPTIONS: dict[str, Any] = {"timeout": 20.0, "default_noreply": False}


@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_the_methods(run: Run, three: list[Server], transport: str, key: str) -> None:
    async def main() -> None:
        addresses = [server.address for server in three]
        async with AsyncClusterClient(addresses, transport=transport, **OPTIONS) as cluster:
            assert await cluster.set(key, b"1") is True
            assert await cluster.add(key, b"2") is False
            assert await cluster.replace(key, b"2") is True
            assert await cluster.append(key, b"3") is True
            assert await cluster.prepend(key, b"1") is True
            assert (await cluster.incr(key, 2), await cluster.decr(key, 25)) == (125, 100)
            value, cas = await cluster.gets(key)
            assert value == b"100"
            assert await cluster.cas(key, b"new", cas) is True
            assert await cluster.cas(key, b"newer", cas) is False
            assert await cluster.gat(key, 100) == b"new"
            assert (await cluster.gats(key, 100))[0] == b"new"
            assert await cluster.touch(key, 100) is True
            assert (await cluster.delete(key), await cluster.delete(key)) == (True, False)
            assert (await cluster.get(key, b"d"), await cluster.gets(key)) == (b"d", (None, None))
            assert set(await cluster.version()) == set(await cluster.stats()) == set(cluster.clients)
            values = {f"{key}-{number}": b"%d" % number * number for number in range(300)}
            assert await cluster.set_many(values) == []
            assert await cluster.get_many(values) == values
            assert {name: value for name, (value, _) in (await cluster.gets_many(values)).items()} == values
            assert await cluster.delete_many(values) is True
            assert await cluster.get_many(values) == {}
            assert await cluster.set_many(values, noreply=True) == []
            assert await cluster.get_many(values) == values
            await cluster.flush_all()
            assert await cluster.get_many(values) == {}
            with pytest.raises(MemcacheIllegalInputError):
                await cluster.get_many(["a", "a b"])
            await cluster.set(key, b"text")
            with pytest.raises(MemcacheClientError, match="non-numeric"):
                await cluster.incr(key, 1)

    run(main())


def test_it_has_the_methods_of_the_other() -> None:
    for name, method in inspect.getmembers(ClusterClient, callable):
        if name.startswith("_") or name in ("client_class", "quit", "disconnect_all"):
            continue
        ours = getattr(AsyncClusterClient, name)
        parameters, expected = (dict(inspect.signature(one).parameters) for one in (ours, method))
        expected.pop("copy", None)
        assert list(parameters) == list(expected), name
        assert inspect.iscoroutinefunction(ours) != (name == "add_server"), name


def test_missing_arguments_are_told_at_the_call() -> None:
    """A call without its arguments raises at once, and makes no coroutine for a later await, as with AsyncClient."""
    address = ("127.0.0.1", 1)
    for client in AsyncClient(address), AsyncClusterClient([address]):
        for name in META:
            with pytest.raises(TypeError, match="argument"):
                getattr(client, name)()


def test_all_servers_are_asked_at_once(run: Run, relays: list[GatedRelay], gate: Gate, key: str) -> None:
    async def main() -> None:
        async with AsyncClusterClient([relay.address for relay in relays], **OPTIONS) as cluster:
            values = {f"{key}-{number}": b"%d" % number for number in range(100)}
            await cluster.get_many(values)
            for call, expected in (
                (cluster.set_many, []),
                (cluster.get_many, values),
                (cluster.delete_many, True),
            ):
                gate.shut()
                assert await call(values) == expected
                assert gate.opened.is_set()
            # A cancelled call leaves the connections usable. There are four relays, so a gate for five stays shut.
            await cluster.set_many(values)
            gate.shut(5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cluster.get_many(values)
            gate.open()
            assert await cluster.get_many(values) == values

    run(main())


def test_a_server_that_has_ended(run: Run, three: list[Server], key: str) -> None:
    async def main() -> None:
        addresses = [server.address for server in three]
        values = {f"{key}-{number}": b"%d" % number for number in range(100)}
        async with (
            AsyncClusterClient(addresses, retry_attempts=1000, retry_timeout=0, **OPTIONS) as strict,
            AsyncClusterClient(addresses, ignore_exc=True, retry_attempts=0, **OPTIONS) as lenient,
        ):
            for cluster in (strict, lenient):
                assert await cluster.set_many(values) == []
            name = f"127.0.0.1:{three[1].port}"
            rest = {one: value for one, value in values.items() if strict.hasher.get_node(one) != name}
            three[1].kill()
            for _ in range(2):
                with pytest.raises((OSError, MemcacheUnexpectedCloseError), match=name):
                    await strict.get_many(values)
                assert await lenient.get_many(values) == rest
            # By now `lenient` takes the server for dead, and places its keys on the other servers.
            assert await lenient.set_many(values) == []
            assert await lenient.get_many(values) == values
            assert await lenient.get(key) is None
        async with AsyncClusterClient([]) as nothing:
            with pytest.raises(MemcacheError, match="All servers seem to be down"):
                await nothing.get(key)

    run(main())


class SlowlyClosing(AsyncClient):
    """A client whose close takes a turn of the loop, where a task may be cancelled."""

    closed = False

    async def close(self) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            await super().close()
            self.closed = True


class SlowlyClosingCluster(AsyncClusterClient):
    client_class = SlowlyClosing


@pytest.mark.parametrize("ending", ["close", "refresh"])
def test_all_are_closed_when_closing_is_cancelled(run: Run, three: list[Server], ending: str, key: str) -> None:
    addresses = [server.address for server in three]

    async def main() -> None:
        cluster = SlowlyClosingCluster(lambda: addresses, transport="tcp", **OPTIONS)
        await cluster.version()
        clients: list[Any] = list(cluster.clients.values())
        addresses.clear()
        task = asyncio.ensure_future(getattr(cluster, ending)())
        if ending == "refresh":
            while cluster.clients:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(client.closed for client in clients)

    run(main())


def test_servers_come_and_go(run: Run, three: list[Server], key: str) -> None:
    addresses = [server.address for server in three]
    listed = addresses[:2]

    async def main() -> None:
        values = {f"{key}-{number}": b"%d" % number for number in range(100)}
        async with AsyncClusterClient(lambda: listed, **OPTIONS) as cluster:
            assert await cluster.set_many(values) == []
            await cluster.remove_server(addresses[1])
            cluster.add_server(addresses[2])
            assert list(cluster.clients) == [f"127.0.0.1:{three[place].port}" for place in (0, 2)]
            assert await cluster.refresh() is True
            assert await cluster.refresh() is False
            assert await cluster.get_many(values) == values
            cluster.refresh_interval = 0.001
            cluster._refresh_at = 0.0
            listed.append(addresses[2])
            async with asyncio.timeout(20):
                while len(cluster.clients) < 3:
                    await cluster.get(key)

    run(main())


def test_copies_and_look_ups(run: Run, three: list[Server], monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    known = socket.getaddrinfo

    def look_up(name: str, *arguments: Any) -> Any:
        return known("127.0.0.1" if name == "cache.example" else name, *arguments)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def main() -> None:
        async with await AsyncClusterClient.from_dns("cache.example", three[0].port, **OPTIONS) as cluster:
            assert list(cluster.clients) == [f"127.0.0.1:{three[0].port}"]
            assert await cluster.set(key, b"value") is True
            for other in (copy.copy(cluster), copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):
                async with other:
                    assert await other.get(key) == b"value"
                    assert await other.refresh() is False

    run(main())
    with pytest.raises(ValueError, match="is Client's"):
        AsyncClusterClient(["one"], socket_module=types.SimpleNamespace(**vars(socket)))  # type: ignore[arg-type]

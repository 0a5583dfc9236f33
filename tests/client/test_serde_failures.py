"""A serde's exceptions: they are the caller's, whatever they are, and no server has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from concurrency import Run
from conftest import Backend
from servers import Server

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
)

TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "retry_attempts": 0}


class Fails:
    """A serde whose files, sockets and the like may fail, for values with the beginning `bad`."""

    def __init__(self, error: BaseException, reads: bool) -> None:
        self.error = error
        self.reads = reads

    def serialize(self, key: Any, value: bytes) -> tuple[bytes, int]:
        if value.startswith(b"bad") and not self.reads:
            raise self.error
        return value, 0

    def deserialize(self, key: Any, value: bytes, flags: int) -> bytes:
        if value.startswith(b"bad") and self.reads:
            raise self.error
        return value


@pytest.fixture(params=["tcp", "soft_shm"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, OSError])
@pytest.mark.parametrize("ignore_exc", [False, True])
def test_no_call_waits_for_ever(
    shared_rmemcached: Server, transport: str, error: type[BaseException], ignore_exc: bool, key: str
) -> None:
    serde = Fails(error("of the serde"), True)
    hidden = ignore_exc and issubclass(error, Exception)

    async def main() -> None:
        options = {"transport": transport, "timeout": TIMEOUT, "serde": serde, "ignore_exc": ignore_exc}
        async with AsyncClient(shared_rmemcached.address, **options) as client:
            await client.set(key, b"bad", noreply=False)
            await client.set(f"{key}-good", b"good", noreply=False)
            for call in (client.get(key), client.gets(key), client.get_many([key])):
                try:
                    found = await call
                except BaseException as caught:
                    assert not hidden and caught is serde.error
                else:
                    assert hidden and found in (None, (None, None), {key: None}, {})
            assert await client.get(f"{key}-good") == b"good"

    # asyncio.run would handle these exceptions itself.
    loop = asyncio.new_event_loop()
    try:
        # main() runs in a task of its own: Python 3.12's wait_for would await the coroutine itself, and GeneratorExit
        # has another meaning there.
        loop.run_until_complete(asyncio.wait_for(loop.create_task(main()), TIMEOUT))
    finally:
        loop.close()


@pytest.mark.parametrize("reads", [False, True])
def test_a_file_that_is_missing_is_no_dead_server(three: list[Server], transport: str, reads: bool, key: str) -> None:
    serde = Fails(FileNotFoundError("of the serde"), reads)
    addresses = [server.address for server in three]
    with ClusterClient(addresses, transport=transport, serde=serde, **OPTIONS) as cluster:
        for call in (
            lambda: cluster.set(key, b"bad") and cluster.get(key),
            lambda: cluster.set(key, b"bad") and cluster.gets(key),
            lambda: cluster.set(key, b"bad") and cluster.get_many([key]),
            lambda: cluster.set_many({key: b"bad"}) or cluster.get_many([key]),
            lambda: cluster.set_many({key: b"bad"}, noreply=True) or cluster.get_many([key]),
            lambda: cluster.meta_set(key, b"bad") and cluster.meta_get(key),
        ):
            with pytest.raises(FileNotFoundError):
                call()
            assert not cluster._failures and not cluster._dead
        assert cluster.set(key, b"good") is True
        assert cluster.get(key) == b"good"


@pytest.mark.parametrize("reads", [False, True])
def test_nor_for_a_task(run: Run, three: list[Server], reads: bool, key: str) -> None:
    serde = Fails(FileNotFoundError("of the serde"), reads)
    addresses = [server.address for server in three]

    async def main() -> None:
        async with AsyncClusterClient(addresses, serde=serde, **OPTIONS) as cluster:
            for noreply in (False, True):
                with pytest.raises(FileNotFoundError):
                    await cluster.set(key, b"bad", noreply=noreply)
                    await cluster.get(key)
                with pytest.raises(FileNotFoundError):
                    await cluster.set_many({key: b"bad"}, noreply=noreply)
                    await cluster.get_many([key])
                assert not cluster._failures and not cluster._dead
            assert await cluster.set(key, b"good") is True
            assert await cluster.get(key) == b"good"

    run(main())


class Closes:
    """A serde that closes its client for each value."""

    close: Callable[[], object]

    def serialize(self, key: Any, value: bytes) -> tuple[bytes, int]:
        return value, 0

    def deserialize(self, key: Any, value: bytes, flags: int) -> bytes:
        self.close()
        return value


def test_a_serde_may_close_its_client(make_client: Callable[..., Client], key: str) -> None:
    serde = Closes()
    client = make_client(serde=serde)
    serde.close = client.close
    values = {f"{key}{number}": b"%d" % number * 4096 for number in range(20)}
    assert client.set_many(values) == []
    for name, value in values.items():
        assert client.get(name) == value
        assert client.gets(name)[0] == value
    assert client.get_many(values) == values
    found = client.meta_get(key + "0")
    assert found is not None and found.value == values[key + "0"]
    pipeline = client.pipeline()
    for name in values:
        pipeline.get(name)
    assert pipeline.execute() == list(values.values())


@pytest.mark.parametrize("several", [False, True], ids=["client", "cluster"])
def test_a_serde_may_close_its_tasks_client(run: Run, backend: Backend, several: bool, key: str) -> None:
    """After a close by the serde the value at hand is still the result, all other calls get the end of the connection,
    and the next call works."""
    serde = Closes()
    values = {f"{key}{number}": b"%d" % number * 4096 for number in range(20)}

    async def main() -> None:
        options: dict[str, Any] = {"transport": backend.transport, "timeout": TIMEOUT, "default_noreply": False}
        address = backend.server.address
        made = (
            AsyncClusterClient([address], serde=serde, **options)
            if several
            else AsyncClient(address, serde=serde, **options)
        )
        async with made as client:

            def close() -> None:
                # The close begins without a turn of the loop, as in a task of asyncio.eager_task_factory.
                with pytest.raises(StopIteration):
                    client.close().send(None)

            serde.close = close
            assert await client.set_many(values) == []
            for name, value in values.items():
                assert await client.get(name) == value
                # gat asks the daemon, also where there are direct reads.
                assert (await client.gats(name))[0] == value
                found = await client.meta_get(name)
                assert found is not None and found.value == value
            calls = [client.gat(name) for name in values]
            first, *others = await asyncio.gather(*calls, return_exceptions=True)
            assert first == values[key + "0"]
            assert {str(error) for error in others} == {"the AsyncClient was closed"}
            with pytest.raises(MemcacheUnexpectedCloseError, match="the AsyncClient was closed"):
                await client.get_many(values)

    run(main())


# --- set_many over several servers: nothing is sent when a value cannot be sent ---


@pytest.fixture(params=["serde", "value", "expire"])
def unsendable(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """A serde, a value and an expiry without a valid command, and the class of the error."""
    cases: dict[str, tuple[Any, ...]] = {
        "serde": (Fails(RuntimeError("of the serde"), False), b"bad", 0, RuntimeError),
        "value": (None, "é", 0, MemcacheIllegalInputError),
        "expire": (None, b"good", "soon", MemcacheIllegalInputError),
    }
    return cases[request.param]


@pytest.mark.parametrize("noreply", [False, True])
@pytest.mark.parametrize("ignore_exc", [False, True])
def test_a_value_that_cannot_be_sent(
    three: list[Server], unsendable: Any, noreply: bool, ignore_exc: bool, key: str
) -> None:
    serde, value, expire, error = unsendable
    addresses = [server.address for server in three]
    values = {f"{key}-{number}": b"good" for number in range(60)} | {f"{key}-last": value}
    with ClusterClient(addresses, serde=serde, ignore_exc=ignore_exc, **OPTIONS) as cluster:
        if not ignore_exc:
            with pytest.raises(error):
                cluster.set_many(values, expire=expire, noreply=noreply)
            assert cluster.get_many(values) == {}
        elif expire == 0:
            node = cluster.hasher.get_node(f"{key}-last")
            lost = [name for name in values if cluster.hasher.get_node(name) == node]
            assert cluster.set_many(values, noreply=noreply) == lost
            assert cluster.get_many(values) == {name: b"good" for name in values if name not in lost}
        else:
            assert sorted(cluster.set_many(values, expire=expire, noreply=noreply)) == sorted(values)
            assert cluster.get_many(values) == {}


@pytest.mark.parametrize("noreply", [False, True])
@pytest.mark.parametrize("ignore_exc", [False, True])
def test_a_value_that_a_task_cannot_send(
    run: Run, three: list[Server], unsendable: Any, noreply: bool, ignore_exc: bool, key: str
) -> None:
    serde, value, expire, error = unsendable
    addresses = [server.address for server in three]
    values = {f"{key}-{number}": b"good" for number in range(60)} | {f"{key}-last": value}

    async def main() -> None:
        async with AsyncClusterClient(addresses, serde=serde, ignore_exc=ignore_exc, **OPTIONS) as cluster:
            if not ignore_exc:
                with pytest.raises(error):
                    await cluster.set_many(values, expire=expire, noreply=noreply)
                assert await cluster.get_many(values) == {}
            elif expire == 0:
                node = cluster.hasher.get_node(f"{key}-last")
                lost = [name for name in values if cluster.hasher.get_node(name) == node]
                assert await cluster.set_many(values, noreply=noreply) == lost
                assert await cluster.get_many(values) == {name: b"good" for name in values if name not in lost}
            else:
                assert sorted(await cluster.set_many(values, expire=expire, noreply=noreply)) == sorted(values)
                assert await cluster.get_many(values) == {}

    run(main())

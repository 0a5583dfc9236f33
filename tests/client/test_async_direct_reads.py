"""AsyncClient's direct reads (docs/direct-reads.md), on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from concurrency import Run, in_child
from resident import mapped_items
from servers import Server
from suspended import suspended

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    MemcacheClientError,
    MemcacheUnexpectedCloseError,
)

ServerFactory = Callable[..., Server]
OPTIONS: dict[str, Any] = {"timeout": 20.0, "default_noreply": False, "transport": "soft_shm"}
FLAGS = ("-t", "2", "-o", "rdma_direct,no_huge_pages")  # without huge pages only written pages get memory
VALUE = os.urandom(1_000_000)
VALUE_SIZES = (0, 1, 100, 5000, 100_000, 3_000_000)


@pytest.fixture(scope="module")
def server(module_server: ServerFactory) -> Server:
    return module_server("-m", "256", "-I", "8m", *FLAGS)


@pytest.fixture(scope="module")
def full_server(module_server: ServerFactory) -> Server:
    """A daemon with 600 values of 1 MB."""
    server = module_server("-m", "1024", *FLAGS)
    with Client(server.address, **OPTIONS) as writer:
        assert not writer.set_many(dict.fromkeys(map(str, range(600)), VALUE))
    return server


async def hits(server: Server) -> int:
    """The hits counted by the daemon."""
    with Client(server.address, **OPTIONS) as other:
        return int(other.stats()[b"direct_hits"])


def test_nobody_is_asked(run: Run, server: Server, key: str) -> None:
    values = {f"{key}-{length}": os.urandom(length) for length in VALUE_SIZES}

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set_many(values)
            with Client(server.address, **OPTIONS) as asking:
                # A new Client asks at first: it has no connection for direct reads yet.
                numbers = {name: cas for name, (_, cas) in asking.gets_many(values).items()}
            into = {name: bytearray(len(value) + 10) for name, value in values.items()}
            with suspended(server.pid):
                for name, value in values.items():
                    assert await client.get(name) == value
                    assert await client.get(name.encode()) == value
                    assert await client.gets(name) == (value, numbers[name])
                    assert await client.get_into(name, into[name], 10) == len(value)
                    assert into[name] == bytes(10) + value
                assert await client.get_many(values) == values
                assert await client.gets_many(values) == {name: (values[name], numbers[name]) for name in values}
                assert await client.get_many_into(into.items()) == list(VALUE_SIZES)
                assert all(into[name].startswith(value) for name, value in values.items())
                with pytest.raises(ValueError, match="has 100 bytes, and the buffer 99"):
                    await client.get_into(f"{key}-100", bytearray(99))
                await asyncio.gather(*(client.get(name) for name in values))
            missing = f"{key}-nothing"
            assert await client.get(missing, 5) == 5
            assert await client.gets(missing, 5, 6) == (5, 6)
            assert await client.get_into(missing, bytearray(5), 0, 7) == 7
            assert list(await client.get_many([missing, *reversed(values)])) == [*reversed(values)]
            assert await client.get_many_into([(missing, bytearray(9)), (f"{key}-1", bytearray(9))]) == [None, 1]

    run(body())


@pytest.mark.parametrize("connected", [False, True])
def test_memory_can_be_mapped_ahead(run: Run, full_server: Server, connected: bool) -> None:
    """prefault() works with and without a connection, and tasks run meanwhile."""

    async def body() -> None:
        before = mapped_items()
        async with AsyncClient(full_server.address, **OPTIONS) as client:
            if connected:
                await client.meta_noop()
            task = asyncio.create_task(client.prefault())
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            mapped = task.result()
            # The thread maps 512 MB at a time, and the loop does not wait for it.
            assert 550_000_000 < mapped < 1 << 30 and turns > 2
            assert mapped_items() - before > 550_000_000
            assert await client.prefault() == mapped
            assert await client.get("7") == VALUE
        for transport in ("tcp", "soft_iw"):
            async with AsyncClient(full_server.address, **OPTIONS | {"transport": transport}) as client:
                assert await client.prefault() == 0

    run(body())


def test_memory_is_mapped_ahead_at_any_time(run: Run, rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "64", *FLAGS)

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            assert await client.prefault() < 1 << 20
            await client.set_many({str(number): os.urandom(100_000) for number in range(100)})
            mapped = await client.prefault()
            assert mapped > 10_000_000
            task = asyncio.create_task(client.prefault())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.prefault() == mapped

            def child() -> None:
                async def reads() -> None:
                    assert await client.prefault() == mapped
                    await client.close()

                asyncio.run(reads())

            in_child(child)
            server.kill()
            # The error depends on whether the loop has noticed the end of the connection.
            with pytest.raises((OSError, MemcacheUnexpectedCloseError)):
                await client.prefault()
            with Server(server.command, server.port):
                assert await client.prefault() < 1 << 20
                assert await client.get("1") is None
        with pytest.raises(OSError, match="refused"):
            await AsyncClient(server.address, **OPTIONS).prefault()

    run(body())


def test_what_has_been_sent_before_is_carried_out_before(run: Run, server: Server, key: str) -> None:
    """A read of a key comes after all earlier commands of this client for the key. The client reads unchanged keys
    meanwhile."""

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            names = [f"{key}-{number}" for number in range(8)]
            await client.set_many(dict.fromkeys(names, b"1"))
            with suspended(server.pid):
                changes = [
                    asyncio.create_task(call)
                    for call in (
                        client.set(names[0], b"new"),
                        client.delete(names[1]),
                        client.incr(names[2], 4),
                        client.touch(names[3], -1),
                        client.gat(names[4], -1),
                        client.meta_set(names[5], b"meta"),
                        client.invalidate(names[6]),
                    )
                ]
                await asyncio.sleep(0)
                gets = [asyncio.create_task(client.get(name)) for name in names]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert [task.done() for task in gets] == [False] * 7 + [True]
            await asyncio.gather(*changes)
            found = await asyncio.gather(*gets)
            assert found[:6] == [b"new", None, b"5", None, None, b"meta"]
            assert found[7] == b"1"
            # All commands have their answers, so the client reads without asking.
            with suspended(server.pid):
                assert await client.get_many([names[0], names[2], names[5]]) == {
                    names[0]: b"new",
                    names[2]: b"5",
                    names[5]: b"meta",
                }

    run(body())


def test_a_task_reads_what_it_has_written(run: Run, server: Server, key: str) -> None:
    """A task reads its own writes, also those without an answer, beside more such tasks."""

    async def one(client: AsyncClient, name: str) -> None:
        for number in range(300):
            value = b"%d" % number
            await client.set(name, value, noreply=number % 2 == 1)
            assert await client.get(name) == value
            if number % 7 == 0:
                await client.delete(name, noreply=True)
                assert await client.get_many([name]) == {}
                await client.set(name, value, noreply=True)
            assert (await client.gets_many([name]))[name][0] == value

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await asyncio.gather(*(one(client, f"{key}-{number}") for number in range(20)))

    run(body())


def test_cas_of_several_tasks(run: Run, server: Server, key: str) -> None:
    """No increment of several tasks is lost, with direct reads for gets."""

    async def one(client: AsyncClient) -> None:
        for _ in range(50):
            while True:
                value, cas = await client.gets(key)
                if await client.cas(key, b"%d" % (int(value) + 1), cas):
                    break

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client, AsyncClient(server.address, **OPTIONS) as other:
            await client.set(key, b"0")
            await asyncio.gather(one(client), one(client), one(other))
            assert await other.get(key) == b"150"

    run(body())


@pytest.mark.parametrize("size", [100, 2_000_000])
def test_all_who_read_have_their_turn(run: Run, server: Server, key: str, size: int) -> None:
    """An endless reader leaves all tasks their turn."""
    most, least = 4000, 20

    async def body() -> None:
        reads = 0

        async def greedy(client: AsyncClient) -> int:
            nonlocal reads
            while reads < most:
                await client.get(f"{key}-large")
                reads += 1
            return reads

        async def modest(client: AsyncClient) -> int:
            for _ in range(least):
                assert await client.get(key) == b"value"
                assert list(await client.get_many([key, f"{key}-large"])) == [key, f"{key}-large"]
            return reads

        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, b"value")
            await client.set(f"{key}-large", bytes(size))
            others = [modest(client) for _ in range(3)]
            end, *seen = await asyncio.gather(greedy(client), *others)
            assert all(one < end for one in seen), seen

    run(body())


def test_a_reader_that_is_cancelled_gives_its_turn_up(run: Run, server: Server, key: str) -> None:
    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, bytes(2_000_000))
            for _ in range(3):
                tasks = [asyncio.create_task(client.get(key)) for _ in range(5)]
                await asyncio.sleep(0)
                for one in (0, 1, 3):
                    tasks[one].cancel()
                for one in (2, 4):
                    assert len(await tasks[one]) == 2_000_000

    run(body())


def test_the_next_loop_reads_as_well(run: Run, server: Server, key: str) -> None:
    """A client reads directly on the next loop, too, and so does its child, whatever the first loop left: a connection,
    waiting calls."""
    client = AsyncClient(server.address, **OPTIONS)
    value = os.urandom(2_000_000)

    async def first() -> None:
        await client.set(key, value)
        assert await client.get(key) == value
        waiting = asyncio.create_task(client.get(key))
        await asyncio.sleep(0)
        assert not waiting.done()

    async def second() -> None:
        async with asyncio.timeout(20):
            assert await client.get(key) == value
            assert await client.get_many([key]) == {key: value}
            await client.close()

    run(first())
    run(second())
    run(first())
    in_child(lambda: asyncio.run(second()))

    async def parent() -> None:
        assert await client.get(key) == value
        in_child(lambda: in_new_loop(second()))
        await client.close()

    def in_new_loop(work: Coroutine[Any, Any, Any]) -> None:
        asyncio._set_running_loop(None)
        asyncio.run(work)

    run(parent())


def test_others_have_their_turn(run: Run, server: Server, key: str) -> None:
    """An endless reader lets other tasks write, and be cancelled."""

    async def until_new(client: AsyncClient) -> None:
        while await client.get(key) != b"new":
            pass

    async def for_ever(client: AsyncClient, large: str) -> None:
        while True:
            await client.get_into(large, bytearray(2_000_000))

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, b"old")
            await client.set(f"{key}-large", bytes(2_000_000))
            reader = asyncio.create_task(until_new(client))
            endless = asyncio.create_task(for_ever(client, f"{key}-large"))
            await asyncio.sleep(0.01)
            assert not reader.done()
            await client.set(key, b"new")
            await reader
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless

    run(body())


def test_serdes_and_their_errors(run: Run, server: Server, key: str) -> None:
    class Upper:
        def serialize(self, key: Any, value: str) -> tuple[bytes, int]:
            return value.encode(), 7

        def deserialize(self, key: Any, value: bytes, flags: int) -> str:
            assert flags == 7
            if value == b"bad":
                raise ZeroDivisionError
            return value.decode().upper()

    async def body(ignore_exc: bool) -> None:
        async with AsyncClient(
            server.address, **OPTIONS, serde=Upper(), key_prefix="app:", ignore_exc=ignore_exc
        ) as client:
            names = [key, f"{key}-2"]
            await client.set_many(dict.fromkeys(names, "value"))
            await client.set(f"{key}-bad", "bad")
            into = bytearray(5)
            with suspended(server.pid):
                assert await client.get(key) == "VALUE"
                assert (await client.gets(key))[0] == "VALUE"
                assert await client.get_many(names) == dict.fromkeys(names, "VALUE")
                assert (await client.get_into(key, into), into) == (5, bytearray(b"value"))
                for call in (client.get, client.gets):
                    if ignore_exc:
                        assert await call(f"{key}-bad") in (None, (None, None))
                    else:
                        with pytest.raises(ZeroDivisionError):
                            await call(f"{key}-bad")

    run(body(False))
    run(body(True))


# --- hits reported to the daemon ---


def test_hits_are_counted(run: Run, server: Server, key: str) -> None:
    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, b"value")
            before = await client.stats()
            for _ in range(1000):
                await client.get(key)
            after = await client.stats()
            for name in (b"get_hits", b"direct_hits"):
                assert int(after[name]) - int(before[name]) == 1000
            told = await hits(server)
            await client.get(key)
        # The client reports hits at its close if no command follows them.
        end = time.monotonic() + 10
        while await hits(server) == told:
            assert time.monotonic() < end
        assert await hits(server) == told + 1

    run(body())


def test_hits_are_told_in_time(run: Run, server: Server, key: str) -> None:
    """A client that only reads reports its hits within two seconds."""

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, b"value")
            before = await hits(server)
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                await client.get(key)
                await asyncio.sleep(0.01)
            assert await hits(server) - before > 50
            await client.set(key, b"other")
            assert await client.get(key) == b"other"

    run(body())


def test_hits_and_large_values_that_wait_to_be_sent(run: Run, server: Server, key: str) -> None:
    """The line of hits stays in one piece between parts of large values."""

    async def read(client: AsyncClient) -> None:
        for _ in range(300):
            assert await client.get(f"{key}-{_ % 100}") == b"small"
            if _ % 10 == 0:
                await asyncio.sleep(0)

    async def write(client: AsyncClient, number: int) -> None:
        for size in (100, 70_000, 1_000_000, 3_000):
            assert await client.set(f"{key}-large-{number}", bytes(size)) is True
            assert await client.get(f"{key}-large-{number}") == bytes(size)

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set_many({f"{key}-{number}": b"small" for number in range(100)})
            await asyncio.gather(read(client), read(client), *(write(client, number) for number in range(10)))

    run(body())


def test_only_who_knows_the_password(run: Run, rmemcached_server: ServerFactory, tmp_path: Path, key: str) -> None:
    """A connection whose first line is the password, not a request, reads too."""
    users = tmp_path / "users"
    users.write_text("user:secret\n")
    server = rmemcached_server("-Y", str(users), *FLAGS)

    async def body() -> None:
        options = {**OPTIONS, "username": "user", "password": "secret"}
        async with AsyncClient(server.address, **options) as client, AsyncClient(server.address, **options) as other:
            await client.set(key, b"value")
            assert await other.get(key) == b"value"
            with suspended(server.pid):
                assert (await client.get(key), await other.get(key)) == (b"value", b"value")
            async with AsyncClient(server.address, **{**options, "password": "wrong"}) as wrong:
                with pytest.raises(MemcacheClientError):
                    await wrong.get(key)

    run(body())


# --- daemons that stand still or have ended ---


def test_a_daemon_that_stands_still_is_asked(run: Run, rmemcached_server: ServerFactory, key: str) -> None:
    server = rmemcached_server(*FLAGS)

    async def body() -> None:
        async with AsyncClient(server.address, **{**OPTIONS, "timeout": 0.2}) as client:
            await client.set(key, b"value")
            with suspended(server.pid):
                end = time.monotonic() + 10
                with pytest.raises(TimeoutError):
                    while time.monotonic() < end:
                        assert await client.get(key) == b"value"
            assert await client.get(key) == b"value"

    run(body())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_daemon_that_has_ended(run: Run, rmemcached_server: ServerFactory, how: str, key: str) -> None:
    server = rmemcached_server(*FLAGS)

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            await client.set(key, b"old")
            assert await client.get(key) == b"old"
            getattr(server, how)()
            for call in (client.get(key), client.gets(key), client.get_many([key]), client.get_into(key, bytearray(9))):
                with pytest.raises((ConnectionError, MemcacheUnexpectedCloseError)):
                    await call
            with Server(server.command, server.port):
                assert await client.get(key) is None
                await client.set(key, b"new")
                assert await client.get(key) == b"new"

    run(body())


def test_another_loop_and_a_forked_child(run: Run, server: Server, key: str) -> None:
    client = AsyncClient(server.address, **OPTIONS)

    async def body(value: bytes) -> None:
        await client.set(key, value)
        for _ in range(3):
            assert await client.get(key) == value

    async def close() -> None:
        await client.close()

    run(body(b"one"))
    run(body(b"two"))
    in_child(lambda: asyncio.run(body(b"three")))

    async def last() -> None:
        assert await client.get(key) == b"three"
        await client.close()
        # A get of a closed client makes a new connection.
        assert await client.get(key) == b"three"
        await client.close()

    run(last())


def test_a_cluster(run: Run, rmemcached_server: ServerFactory, key: str) -> None:
    servers = [rmemcached_server(*FLAGS) for _ in range(2)]
    values = {f"{key}-{number}": b"%d" % number for number in range(50)}

    async def body() -> None:
        async with AsyncClusterClient([server.address for server in servers], **OPTIONS) as cluster:
            await cluster.set_many(values)
            with suspended(servers[0].pid), suspended(servers[1].pid):
                assert await cluster.get_many(values) == values
                assert {name: found[0] for name, found in (await cluster.gets_many(values)).items()} == values
                assert await cluster.get(f"{key}-0") == b"0"
            assert await cluster.get_many([*values, "nothing"]) == values

    run(body())

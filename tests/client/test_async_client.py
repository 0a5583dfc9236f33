"""AsyncClient, over every transport, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from concurrency import KNOWN, Run, first_calls
from servers import Server, free_port
from suspended import suspended
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    AsyncClient,
    Client,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
)
from rmemcached.client.transport._buffers import usage

LARGE = bytes(range(256)) * 256
TOO_LARGE = bytes(9 << 20)
BROKEN = (MemcacheUnexpectedCloseError, ConnectionError)

ServerFactory = Callable[..., Server]


@pytest.fixture
def make(backend: Any) -> Callable[..., AsyncClient]:
    def make(**arguments: Any) -> AsyncClient:
        settings: dict[str, Any] = {"transport": backend.transport, "timeout": 20, "default_noreply": False}
        return AsyncClient(backend.server.address, **{**settings, **arguments})

    return make


Make = Callable[..., AsyncClient]


def test_each_method_has_the_result_of_the_clients(
    run: Run, make: Make, make_client: Callable[..., Client], key: str
) -> None:
    calls = [
        *first_calls(key, LARGE),
        ("get", (key,), {}),
        ("set", (key, bytearray(LARGE)), {}),
        ("incr", (key, 1), {}),
        ("get", (key,), {}),
        ("set", (key, TOO_LARGE), {}),
        ("set", (key, b""), {}),
        ("get", (key,), {}),
        ("delete", (key,), {}),
        ("delete", (key,), {}),
        ("set_many", ({key + "-1": b"one", key + "-2": LARGE},), {}),
        ("get_many", ([key + "-1", key, key + "-2"],), {}),
        ("delete_many", ([key + "-1", key],), {}),
        ("get_many", ([key + "-1", key + "-2"],), {}),
        ("get_many", ([],), {}),
        ("set_many", ({},), {}),
        ("version", (), {}),
        ("raw_command", ("mn",), {}),
        ("set", (key, b"", "soon"), {}),
        ("get", ("white space",), {}),
        ("get", (5,), {}),
    ]
    oracle = make_client(key_prefix="one:")
    expected = []
    for name, arguments, options in calls:
        try:
            expected.append(getattr(oracle, name)(*arguments, **options))
        except Exception as error:
            expected.append(type(error))

    async def body() -> None:
        found = []
        async with make(key_prefix="two:") as client:
            for name, arguments, options in calls:
                try:
                    found.append(await getattr(client, name)(*arguments, **options))
                except Exception as error:
                    found.append(type(error))
        assert found == expected

    run(body())
    assert {MemcacheServerError, MemcacheClientError, MemcacheIllegalInputError, TypeError} <= {
        *filter(_is_type, expected)
    }


def _is_type(value: object) -> bool:
    return isinstance(value, type)


def test_cas(run: Run, make: Make, key: str) -> None:
    async def body() -> None:
        async with make() as client:
            await client.set(key, b"one")
            value, cas = await client.gets(key)
            assert (value, await client.gats(key, 100)) == (b"one", (b"one", cas))
            assert await client.gets_many([key]) == {key: (b"one", cas)}
            assert await client.cas(key, b"two", cas) is True
            assert await client.cas(key, b"three", cas) is False

    run(body())


@pytest.mark.device("its completion channel in an event loop")
def test_many_tasks(run: Run, make: Make, key: str) -> None:
    """Three thousand tasks get their answers, though fewer requests may be under way at a time."""

    async def one(client: AsyncClient, number: int) -> None:
        name, value = f"{key}-{number}", b"%d-" % number + bytes(random.Random(number).choice((10, 3000, 20_000)))
        assert await client.set(name, value) is True
        assert await client.get(name) == value
        assert await client.delete(name) is True

    async def body() -> None:
        async with make() as client:
            await asyncio.gather(*(one(client, number) for number in range(3000)))

    run(body())


def test_ten_thousand_gets_half_of_them_cancelled(run: Run, make: Make, key: str) -> None:
    count = 10_000
    values = {f"{key}-{number}": b"%d" % number + bytes(number % 3 * 4000) for number in range(50)}

    async def body() -> None:
        async with make() as client:
            assert await client.set_many(values) == []
            names = [*values]
            tasks = [asyncio.create_task(client.gat(names[number % 50])) for number in range(count)]
            chance = random.Random(5)
            for number in chance.sample(range(count), count // 2):
                if chance.random() < 0.01:
                    await asyncio.sleep(0)
                tasks[number].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
            assert count // 20 < cancelled <= count // 2
            for number, result in enumerate(results):
                assert isinstance(result, asyncio.CancelledError) or result == values[names[number % 50]]
            assert await client.get_many(names) == values

    run(body())


def test_a_timeout_of_asyncio(run: Run, make: Make, backend: Any, key: str) -> None:
    """The late answer to a call ended by asyncio's time limit goes to no other call."""

    async def body() -> None:
        async with make() as client:
            await client.set_many({key + "-1": b"one", key + "-2": LARGE})
            with suspended(backend.server.pid), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.gat(key + "-2")
            assert await client.get(key + "-1") == b"one"
            assert await client.get(key + "-2") == LARGE

    run(body())


def test_a_silent_server(run: Run, make: Make, backend: Any, key: str) -> None:
    async def body() -> None:
        async with make(timeout=0.3) as client:
            await client.set(key, b"value")
            with suspended(backend.server.pid):
                calls = [asyncio.create_task(client.gat(key)) for _ in range(5)]
                for result in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(result, TimeoutError)
            assert await client.get(key) == b"value"

    run(body())


def test_without_waiting_for_answers(run: Run, make: Make, key: str) -> None:
    async def body() -> None:
        async with make(default_noreply=True) as client:
            assert await client.set(key, TOO_LARGE) is True
            assert await client.set(key, b"5") is True
            assert await client.incr(key, 2, noreply=True) is None
            assert await client.get(key) == b"7"
            assert await client.set_many({key: b"many"}) == []
            assert await client.delete("no" + key) is True
            assert await client.get(key) == b"many"
            assert await client.delete_many([key]) is True
            assert await client.get(key) is None

    run(body())


@pytest.mark.device("the end of a queue pair")
@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_the_server_is_killed_and_started_again(
    run: Run, rmemcached_server: ServerFactory, transport: str, key: str
) -> None:
    """Each of many calls ends, with a right value, a miss, or a clear error."""
    first = rmemcached_server()
    servers: list[Server] = []

    async def one(client: AsyncClient, stop: asyncio.Event, ended: list[object]) -> None:
        while not stop.is_set():
            try:
                value = await client.get(key)
                assert value in (None, LARGE)
                ended.append(value)
            except (MemcacheServerError, OSError) as error:
                assert str(error)
                ended.append(error)
                await asyncio.sleep(0.01)

    async def body() -> None:
        async with AsyncClient(first.address, transport=transport, timeout=5, default_noreply=False) as client:
            await client.set(key, LARGE)
            stop = asyncio.Event()
            ended: list[object] = []
            tasks = [asyncio.create_task(one(client, stop, ended)) for _ in range(1000)]
            while len(ended) < 1000:
                await asyncio.sleep(0.01)
            first.kill()
            seen = len(ended)
            while not any(isinstance(end, Exception) for end in ended[seen:]):
                await asyncio.sleep(0.01)
            servers.append(Server(first.command, first.port))
            seen = len(ended)
            while None not in ended[seen:]:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*tasks)
            await client.set(key, LARGE)
            assert await client.get(key) == LARGE

    try:
        run(body())
    finally:
        for server in servers:
            server.stop()


def test_no_server(run: Run) -> None:
    async def body() -> None:
        async with AsyncClient(("127.0.0.1", free_port())) as client:
            for result in await asyncio.gather(*(client.get("key") for _ in range(5)), return_exceptions=True):
                assert isinstance(result, ConnectionRefusedError)

    run(body())


def test_a_server_that_takes_no_commands(run: Run) -> None:
    """Calls to a server that ends each connection do not connect again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in KNOWN:
            writer.write(KNOWN[await reader.readline()])
        await writer.drain()
        writer.close()

    async def body() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            async with AsyncClient(address, transport="tcp", timeout=10) as client:
                for _ in range(3):
                    for result in await asyncio.gather(client.get("a"), client.get("b"), return_exceptions=True):
                        assert isinstance(result, BROKEN)

    run(body())


def test_a_loop_that_was_busy_for_longer_than_the_timeout(run: Run, make: Make, key: str) -> None:
    """A call gets answers that came while the loop was busy."""

    async def body() -> None:
        async with make(timeout=0.3) as client:
            await client.set(key, b"value")
            calls = [asyncio.create_task(client.get(key)) for _ in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(0.6)
            assert await asyncio.gather(*calls) == [b"value"] * 3

    run(body())


def test_clients_on_one_loop(run: Run, make: Make, key: str) -> None:
    """The close of a client leaves the events of the others alone."""

    async def body() -> None:
        clients = [make() for _ in range(3)]
        for client in clients:
            await client.set(key, b"value")
        while clients:
            await clients.pop(0).close()
            for client in clients:
                assert await client.get(key) == b"value"

    run(body())


@pytest.mark.parametrize("answer", [b"nonsense\r\n", b"VA x\r\n", b"VA 3\r\nfourEN\r\n", b"x" * 70_000, b"VA 5\r\nab"])
def test_a_server_that_breaks_the_protocol(run: Run, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(KNOWN.get(line, answer))
            if line not in KNOWN:
                break
        await writer.drain()
        writer.close()

    async def body() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            async with AsyncClient(address, transport="tcp", timeout=10) as client:
                for result in await asyncio.gather(client.get("a"), client.get("b"), return_exceptions=True):
                    assert isinstance(result, (MemcacheUnknownError, *BROKEN))

    run(body())


def test_close_while_calls_are_under_way(run: Run, make: Make, backend: Any, key: str) -> None:
    async def body() -> None:
        client = make()
        await client.set(key, b"value")
        with suspended(backend.server.pid):
            calls = [asyncio.create_task(client.gat(key)) for _ in range(3)]
            await asyncio.sleep(0.05)
            await client.close()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, MemcacheUnexpectedCloseError)
        assert await client.get(key) == b"value"
        await client.close()
        await client.close()

    run(body())


def test_close_while_it_connects(run: Run) -> None:
    """A close ends calls whose connection gets no answer."""

    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = AsyncClient(listener.getsockname(), transport="tcp", connect_timeout=20)
            calls = [asyncio.create_task(client.get("key")) for _ in range(3)]
            await asyncio.get_running_loop().run_in_executor(None, listener.accept)
            await client.close()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, MemcacheUnexpectedCloseError)

    run(body())


def test_a_server_that_reads_slowly_is_not_silent(run: Run) -> None:
    """A server that reads slowly is not silent: the time limit is for times without any traffic."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for question, answer in KNOWN.items():
            assert await reader.readline() == question
            writer.write(answer)
        await reader.readline()
        for _ in range(20):
            await asyncio.sleep(0.05)
            await reader.readexactly(1 << 20)
        writer.write(b"HD\r\n")
        await reader.read()
        writer.close()

    async def body() -> None:
        # The small buffer keeps the window small: behind a full window of megabytes congestion control pauses for half
        # a second.
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        server = await asyncio.start_server(serve, sock=listener, limit=1 << 16)
        async with (
            server,
            AsyncClient(listener.getsockname(), transport="tcp", timeout=0.4, default_noreply=False) as client,
        ):
            assert await client.set("key", bytes(20 << 20)) is True

    run(body())


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_values_in_memory_have_a_limit(run: Run, rmemcached_server: ServerFactory, transport: str) -> None:
    """Many large values under way take limited memory."""
    values = {f"key-{number}": b"%d-" % number + bytes(100_000) for number in range(1000)}

    async def body() -> None:
        server = rmemcached_server("-m", "1024")
        async with AsyncClient(server.address, transport=transport, timeout=20, default_noreply=False) as client:
            stored = asyncio.gather(*(client.set(name, value) for name, value in values.items()))
            most = 0
            while not stored.done():
                await asyncio.sleep(0)
                most = max(most, usage()["regions"])
            assert await stored == [True] * len(values)
            assert most < 32 << 20
            assert await client.get_many(values) == values

    run(body())


def test_a_value_that_is_refused_before_all_of_it_was_sent(run: Run) -> None:
    """The rest of the refused value still goes to the server as part of the value."""
    size = 8 << 20
    rest: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for question, answer in KNOWN.items():
            assert await reader.readline() == question
            writer.write(answer)
        await reader.readline()
        writer.write(b"SERVER_ERROR object too large for cache\r\n")
        await asyncio.sleep(0.2)
        rest.append(await reader.readexactly(size + 2))
        assert await reader.readline() == b"mg key v\r\n"
        writer.write(b"EN\r\n")
        await reader.read()
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
        address = server.sockets[0].getsockname()
        async with server, AsyncClient(address, transport="tcp", timeout=20, default_noreply=False) as client:
            with pytest.raises(MemcacheServerError, match="too large"):
                await client.set("key", b"v" * size)
            others = [bytes([number]) * size for number in range(5)]
            assert await client.get("key") is None
            del others
        assert rest == [b"v" * size + b"\r\n"]

    run(body())


@pytest.mark.parametrize(("command", "answer"), [("incr", b"VA 1\r\nx\r\n"), ("get", b"VA 1\r\nx\r\n")])
def test_nobody_waits_for_ever(run: Run, command: str, answer: bytes) -> None:
    """A malformed number ends the call, and so does a serde's StopIteration, an exception that futures refuse."""

    class Stops:
        def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
            return value, 0

        def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
            raise StopIteration

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(KNOWN.get(line, answer))
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        async with server, AsyncClient(address, transport="tcp", timeout=20, serde=Stops()) as client:
            call = client.incr("key", 1) if command == "incr" else client.get("key")
            with pytest.raises((MemcacheUnknownError, RuntimeError)):
                await asyncio.wait_for(call, 5)

    run(body())


def test_one_loop_after_the_other(run: Run, make: Make, key: str) -> None:
    client = make()

    async def first() -> None:
        assert await client.set(key, b"value") is True

    async def second() -> None:
        assert await client.get(key) == b"value"
        await client.close()

    run(first())
    run(second())


def test_another_loop_at_the_same_time_is_refused(run: Run, make: Make, key: str) -> None:
    client = make()

    async def other() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await client.get(key)

    async def body() -> None:
        async with client:
            await client.get(key)
            await asyncio.to_thread(lambda: asyncio.run(other()))
            assert await client.get(key) is None

    run(body())


@pytest.mark.device("a fork")
def test_a_child_makes_its_own_connection(make: Make, key: str) -> None:
    client = make()

    async def body() -> None:
        assert await client.set(key, LARGE) is True
        loop = asyncio.get_running_loop()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if _in_new_loop(client, key) else 1)
        assert (await loop.run_in_executor(None, os.waitpid, pid, 0))[1] == 0
        assert await client.get(key) == LARGE
        await client.close()

    asyncio.run(body())


def _in_new_loop(client: AsyncClient, key: str) -> bool:
    asyncio._set_running_loop(None)

    async def body() -> bool:
        async with client:
            return bool(await client.get(key) == LARGE)

    return asyncio.new_event_loop().run_until_complete(body())


def test_lost_unclosed(make: Make, key: str) -> None:
    async def body() -> None:
        client = make()
        await client.get(key)
        with pytest.warns(ResourceWarning, match="unclosed .*AsyncClient"):
            del client
            gc.collect()

    asyncio.run(body())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda client: pickle.loads(pickle.dumps(client))])
def test_copies(run: Run, make: Make, key: str, again: Callable[[AsyncClient], AsyncClient]) -> None:
    async def body() -> None:
        async with make(key_prefix="p:") as client:
            await client.set(key, b"value")
            async with again(client) as other:
                assert (other.server, await other.get(key)) == (client.server, b"value")
            assert await client.get(key) == b"value"

    run(body())


def test_a_serde_and_ignore_exc(run: Run, make: Make, make_client: Callable[..., Client], key: str) -> None:
    class Pickle:
        def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
            return pickle.dumps(value), 1

        def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
            return pickle.loads(value)

    make_client().set(key + "-raw", b"no pickle")

    async def body() -> None:
        async with make(serde=Pickle()) as client:
            await client.set(key, {"a": [1]})
            assert await client.get(key) == {"a": [1]}
            assert await client.get_many([key]) == {key: {"a": [1]}}
            with pytest.raises(pickle.UnpicklingError):
                await client.get(key + "-raw")
        async with make(serde=Pickle(), ignore_exc=True) as client:
            assert await client.get(key + "-raw", "default") == "default"

    run(body())


def test_other_tasks_run_while_answers_come(run: Run, make: Make, key: str) -> None:
    """A busy client leaves the loop to other tasks."""

    async def body() -> None:
        async with make() as client:
            await client.set(key, LARGE)
            calls = asyncio.gather(*(client.gat(key) for _ in range(5000)))
            turns = 0
            while not calls.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 10
            assert await calls == [LARGE] * 5000

    run(body())


def test_over_a_unix_socket(run: Run, memcached_server: ServerFactory, tmp_path: Any) -> None:
    path = str(tmp_path / "sock")
    memcached_server(path=path)

    async def body() -> None:
        async with AsyncClient(path, default_noreply=False) as client:
            assert await client.set("key", b"value") is True
            assert await client.get("key") == b"value"
            assert client.transport == "tcp"

    run(body())


@pytest.mark.device("registered memory")
def test_into_the_callers_memory(run: Run, make: Make, key: str) -> None:
    async def body() -> None:
        async with make() as client:
            values = {f"{key}-{size}": bytes([size % 251]) * size for size in (0, 1, 100, 5000, 300_000)}
            await client.set_many(values)
            for name, value in values.items():
                memory = bytearray(len(value) + 10)
                assert await client.get_into(name, memory, 5) == len(value)
                assert memory == bytes(5) + value + bytes(5)
                if value:
                    with pytest.raises(ValueError, match=f"has {len(value)} bytes, and the buffer {len(value) - 1}"):
                        await client.get_into(name, bytearray(len(value) - 1))
            assert await client.get_into(key + "-none", bytearray(1), default="none") == "none"
            pairs = [(name, bytearray(300_000)) for name in (*values, key + "-none")]
            assert await client.get_many_into(pairs) == [*map(len, values.values()), None]
            assert [bytes(memory[: len(values[name])]) for name, memory in pairs[:-1]] == list(values.values())
            assert await client.get_many_into([]) == []
            for wrong in (bytes(5), memoryview(bytearray(10))[::2]):
                with pytest.raises(BufferError):
                    await client.get_into(key, wrong)
            with await client.buffer(300_000) as buffer:
                with memoryview(buffer) as view:
                    view[:3] = b"abc"
                await client.set(key, buffer)
                assert await client.get(key) == b"abc" + bytes(299_997)
                assert await client.get_into(f"{key}-300000", buffer) == 300_000
                with memoryview(buffer) as view:
                    assert view == values[f"{key}-300000"]
            with await client.register(bytearray(b"own")) as own:
                await client.set(key, own)
                assert await client.get(key) == b"own"

    run(body())


def test_dumps(run: Run, rmemcached_server: ServerFactory) -> None:
    async def body() -> None:
        # The maintainer would start crawls, and the dumps would wait for them.
        server = rmemcached_server("-o", "no_lru_maintainer")
        async with AsyncClient(server.address, timeout=20, default_noreply=False) as client:
            await client.set_many({f"key-{number}": b"value" for number in range(100)})
            found = [item["key"] async for item in client.metadump()]
            assert sorted(found) == sorted(f"key-{number}".encode() for number in range(100))
            assert len([key async for key in client.mgdump()]) == 100
            events = client.watch("mutations")
            first = asyncio.ensure_future(anext(events))
            while not first.done():
                await client.set("watched", b"value")
            assert first.result()["key"] == "watched"
            await events.aclose()
            # No event comes, so only a cancellation ends the wait.
            silent = client.watch("evictions")
            waiting = asyncio.ensure_future(anext(silent))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, 0.2)
            assert await client.get("watched") == b"value"
            with pytest.raises(MemcacheServerError):
                async for _ in client.metadump("nonsense"):
                    pass

    run(body())

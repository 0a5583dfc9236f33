"""With a stopped server calls end in time, cleaning up included, and an event loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from servers import Server
from suspended import resume, suspend, suspended
from transport import PACE, RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client, ClusterClient, Gathered

TIMEOUT = 0.5 * PACE
LATE = 0.6 * PACE  # seconds by which a call may end late on a busy machine
SIZE = 20 << 20
TRANSPORTS = ("tcp", *RDMA_TRANSPORTS)

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    return rmemcached_server("-m", "512", "-I", "64m", "-t", "2")


class Heart:
    """Beats in an event loop. Measures the longest pause, in seconds and in seconds of the loop thread's CPU time."""

    def __init__(self) -> None:
        self.pause = self.work = 0.0

    async def beat(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0)
            self.pause = max(self.pause, time.monotonic() - wall)
            self.work = max(self.work, time.thread_time() - cpu)


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Heart]:
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    await asyncio.sleep(0)
    yield heart
    await asyncio.sleep(0)
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating


def pipeline(client: Any) -> None:
    with client.pipeline() as batch:
        batch.set("a", bytes(SIZE))
        batch.get("large")
    for result in batch.results:
        raise result


CALLS: dict[str, Callable[[Any], object]] = {
    "set": lambda client: client.set("key", bytes(SIZE)),
    "set a bytearray": lambda client: client.set("key", bytearray(SIZE)),
    "set gathered": lambda client: client.set("key", Gathered([bytes(SIZE), bytearray(5)])),
    "set 5 MB": lambda client: client.set("key", bytes(5 << 20)),
    "set 5 KB": lambda client: client.set("key", bytes(5 << 10)),
    "set_many": lambda client: client.set_many({"a": bytes(SIZE), "b": bytes(SIZE)}),
    "get": lambda client: client.get("large"),
    "get_many": lambda client: client.get_many(["large", "small"]),
    "get_into": lambda client: client.get_into("large", bytearray(SIZE)),
}
SYNC_CALLS = {"pipeline": pipeline, **CALLS}


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Fails if the block does not end at its calls' time-out."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert TIMEOUT * 0.9 < took < TIMEOUT + LATE


@each_transport
@pytest.mark.parametrize("name", SYNC_CALLS)
@pytest.mark.without_direct("a get must wait for the daemon")
def test_a_call(server: Server, transport: str, name: str) -> None:
    with Client(server.address, transport=transport, timeout=TIMEOUT, default_noreply=False) as client:
        client.set("large", bytes(SIZE))
        with suspended(server.pid), in_time(), pytest.raises(TimeoutError):
            SYNC_CALLS[name](client)
        assert client.set("key", b"value") is True


@each_transport
def test_a_call_with_a_buffer(server: Server, transport: str) -> None:
    """The memory of a timed-out call is the caller's again on return."""
    options: dict[str, Any] = {"transport": transport, "timeout": TIMEOUT, "default_noreply": False}
    with Client(server.address, **options) as client, client.buffer(SIZE) as buffer:
        client.set("large", bytes(SIZE))
        with suspended(server.pid), in_time(), pytest.raises(TimeoutError), memoryview(buffer) as view:
            client.set("key", view)
        with suspended(server.pid), in_time(), pytest.raises(TimeoutError):
            client.get_into("large", buffer)
        assert client.set("key", b"value") is True


@each_transport
def test_a_cluster(server: Server, transport: str) -> None:
    options: dict[str, Any] = {"transport": transport, "timeout": TIMEOUT, "default_noreply": False}
    with ClusterClient([server.address], **options) as client:
        client.set("large", bytes(SIZE))
        with suspended(server.pid), in_time(), pytest.raises(TimeoutError):
            client.set("key", bytes(SIZE))


@pytest.mark.device("memory behind a time-out")
@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_others_on_the_queue_pair_go_on(server: Server, transport: str) -> None:
    """A timed-out set leaves the other clients of the queue pair their answers, once the server runs."""
    options: dict[str, Any] = {"transport": transport, "connect_timeout": 20 * PACE, "default_noreply": False}
    with (
        Client(server.address, timeout=20 * PACE, **options) as patient,
        Client(server.address, timeout=TIMEOUT, **options) as hasty,
    ):
        assert patient.set("key", b"value") is True
        assert hasty.get("key") == b"value"
        suspend(server.pid)
        try:
            with in_time(), pytest.raises(TimeoutError):
                hasty.set("key", bytes(SIZE))
        finally:
            resume(server.pid)
        assert patient.connections == 1
        assert patient.get("other") is None
        assert patient.connections == 1


async def expect_time_out(call: Awaitable[object]) -> None:
    with in_time(), pytest.raises(TimeoutError):
        await call


@each_transport
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.without_direct("a get must wait for the daemon")
def test_an_event_loop(server: Server, transport: str, name: str) -> None:
    async def body() -> None:
        options: dict[str, Any] = {"transport": transport, "timeout": TIMEOUT, "default_noreply": False}
        async with AsyncClient(server.address, **options) as client:
            await client.set("large", bytes(SIZE))
            with suspended(server.pid):
                async with heartbeat() as heart:
                    await expect_time_out(CALLS[name](client))  # type: ignore[arg-type]
            assert heart.pause < LATE
            assert await client.set("key", b"value") is True

    asyncio.run(body())


@pytest.mark.device("memory of calls without an end")
@each_transport
@pytest.mark.parametrize("end", ["cancel", "close"])
@pytest.mark.without_direct("a get must wait for the daemon")
def test_calls_that_are_given_up(server: Server, transport: str, end: str) -> None:
    """The loop does not wait for the server after cancelled calls, or after a close during calls."""

    async def body() -> None:
        client = AsyncClient(server.address, transport=transport, timeout=20 * PACE, default_noreply=False)
        buffer = await client.buffer(SIZE)
        await client.set("large", bytes(SIZE))
        with suspended(server.pid), memoryview(buffer) as view:
            async with heartbeat() as heart:
                values = (bytes(SIZE), view, bytes(5 << 20))
                calls = [asyncio.create_task(client.set("key", value)) for value in values]
                calls.append(asyncio.create_task(client.get("large")))
                for _ in range(100):
                    await asyncio.sleep(0)
                if end == "cancel":
                    for call in calls:
                        call.cancel()
                await client.close()
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, BaseException) for result in results)
            assert heart.pause < LATE
        buffer.close()

    asyncio.run(body())


@each_transport
def test_large_values_leave_other_tasks_their_turn(server: Server, transport: str) -> None:
    """The copies of sixteen large values at a time leave the loop to other tasks, on any transport."""

    async def body() -> None:
        options: dict[str, Any] = {"transport": transport, "timeout": 20 * PACE, "default_noreply": False}
        async with AsyncClient(server.address, **options) as client:
            values = {f"key-{number}": bytes([number]) * (8 << 20) for number in range(16)}
            targets = [(key, bytearray(8 << 20)) for key in values]
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: asyncio.gather(*(client.set(key, value) for key, value in values.items())),
                lambda: client.set_many(values),
                lambda: asyncio.gather(*(client.get(key) for key in values)),
                lambda: client.get_many(values),
                lambda: client.get_many_into(targets),
            ]
            work = []
            for call in calls:
                async with heartbeat() as heart:
                    await call()
                work.append(heart.work)
            assert [bytes(target) for _, target in targets] == list(values.values())
            assert max(work) < 0.025 * PACE, work

    asyncio.run(body())

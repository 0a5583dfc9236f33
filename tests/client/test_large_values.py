"""Values of some megabytes come whole, several in one call as well, and their memory is used again."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from polling import eventually
from servers import Server
from suspended import suspended
from transport import PACE, RDMA_TRANSPORTS, rounds

from rmemcached.client import AsyncClient, Client, ClusterClient

TIMEOUT = 20.0 * PACE
MB = 1 << 20
TRANSPORTS = ["tcp", *RDMA_TRANSPORTS]

# The tests of this file are about gets that ask. Only test_in_a_steady_state_no_page_is_new permits direct reads, too.
pytestmark = pytest.mark.without_direct("large values that the server writes")

ServerFactory = Callable[..., Server]
Make = Callable[..., Client]


@pytest.fixture
def server(rmemcached_server: ServerFactory) -> Server:
    return rmemcached_server("-t", "1", "-m", "1024", "-I", "64m")


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(f"{size} {seed}").randbytes(size)


def page_faults(work: Callable[[], Any]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


# ---- several values in one call --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_values_of_any_size(make: Make, transport: str) -> None:
    """Large and small values of changing sizes come whole in any order, also with missing keys between them."""
    client = make(transport)
    draw = random.Random(1)
    sizes = [0, 1, 5000, 200_000, MB, 3 * MB + 7, 9 * MB]
    values = {f"key{number}": random_bytes(draw.choice(sizes), number) for number in range(24)}
    assert client.set_many(values) == []
    for turn in range(rounds(6)):
        keys = [*values, *(f"missing{number}" for number in range(draw.randrange(12)))]
        draw.shuffle(keys)
        keys = keys[: draw.randrange(1, len(keys))]
        wanted = {key: values[key] for key in keys if key in values}
        assert client.get_many(keys) == wanted, turn
        found = client.gets_many(keys)
        assert {key: value for key, (value, _) in found.items()} == wanted
        assert all(client.cas(key, values[key], cas) for key, (_, cas) in found.items())
        changed = draw.choice(list(values))
        values[changed] = random_bytes(draw.choice(sizes), 100 + turn)
        assert client.set(changed, values[changed]) is True
    assert client.get_many([f"missing{number}" for number in range(50)]) == {}
    assert client.get_many(values) == values


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_values_with_a_serde(make: Make, transport: str) -> None:
    from rmemcached.client import serde

    client = make(transport, serde=serde.Pickle5Serde())
    values = {f"key{number}": {"number": number, "bytes": random_bytes(2 * MB, number)} for number in range(5)}
    assert client.set_many(values) == []
    for _ in range(2):
        assert client.get_many(values) == values


@pytest.mark.device("WRITEs to several places")
@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_the_server_writes_several_values_to_memory(make: Make, transport: str) -> None:
    """From the second call on the server writes the values by WRITE, not in messages."""
    client = make(transport)
    values = {f"key{number}": random_bytes(4 * MB, number) for number in range(5)}
    assert client.set_many(values) == []
    assert client.get_many(values) == values
    counters = client.stats("rdma")
    before = int(counters[b"rdma_writes"])
    assert client.get_many(values) == values
    assert int(client.stats("rdma")[b"rdma_writes"]) >= before + 5


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cluster_gets_several_values(rmemcached_server: ServerFactory, transport: str) -> None:
    servers = [rmemcached_server("-t", "1", "-m", "256", "-I", "16m") for _ in range(2)]
    values = {f"key{number}": random_bytes(3 * MB, number) for number in range(10)}
    with ClusterClient(
        [server.address for server in servers], transport=transport, default_noreply=False, timeout=TIMEOUT
    ) as cluster:
        assert cluster.set_many(values) == []
        for _ in range(3):
            assert cluster.get_many([*values, "missing"]) == values
        assert {key: value for key, (value, _) in cluster.gets_many(values).items()} == values


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_threads_get_several_values(make: Make, transport: str) -> None:
    client = make(transport)
    values = {f"key{number}": random_bytes(MB + number, number) for number in range(8)}
    assert client.set_many(values) == []
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: client.get_many(values), range(40)):
            assert found == values


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_that_change_come_whole(make: Make, transport: str) -> None:
    """Each value is whole and was stored, whatever other clients get and store at the same time."""
    clients = [make(transport) for _ in range(3)]
    keys = ["a", "b", "c", "d"]
    stored = [bytes([number]) * (4 * MB + 1000 * (number % 2)) for number in range(4)]
    for key in keys:
        clients[0].set(key, stored[0])

    def store(_: int) -> None:
        for number in range(60):
            assert clients[2].set(keys[number % 4], stored[number % 3]) is True

    def fetch(who: int) -> None:
        for _ in range(20):
            assert clients[who].get(keys[who]) in stored
            found = clients[who].get_many(keys)
            assert list(found) == keys and all(value in stored for value in found.values())

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(store, 2), pool.submit(fetch, 0), pool.submit(fetch, 1)]:
            done.result()


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_memory_that_a_get_of_an_event_loop_has_named_stays(make: Make, server: Server, transport: str) -> None:
    """Memory named by a get under way stays, though larger values make the client's memory for values grow."""
    sizes = [300_000, 300_001, 300_002, 300_003, 3 * MB, 9 * MB]
    values = {f"key{number}": random_bytes(size, number) for number, size in enumerate(sizes)}
    assert make(transport).set_many(values) == []

    async def body(draw: random.Random) -> None:
        async def one() -> None:
            for _ in range(4):
                keys = draw.sample(list(values), 4)
                assert await client.get_many(keys) == {key: values[key] for key in keys}

        async with AsyncClient(server.address, transport=transport, timeout=TIMEOUT) as client:
            await asyncio.gather(*(one() for _ in range(12)))

    # The memory named by gets grows in the first calls of each client.
    for seed in range(20):
        asyncio.run(body(random.Random(seed)))


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_server_that_stands_still_while_it_sends_several(make: Make, server: Server, transport: str) -> None:
    client = make(transport, timeout=0.3 * PACE)
    values = {f"key{number}": random_bytes(2 * MB, number) for number in range(6)}
    assert client.set_many(values) == []
    assert client.get_many(values) == values
    for _ in range(2):
        with suspended(server.pid), pytest.raises(TimeoutError):
            client.get_many(values)
        assert make(transport).get_many(values) == values


# ---- memory of earlier values, used again ----------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_are_whose_they_are(make: Make, transport: str) -> None:
    """A value held by a name, a view or a set stays as it was, and so does its hash."""
    client = make(transport)
    size = 300_000
    values = [random_bytes(size, number) for number in range(12)]
    for number, value in enumerate(values):
        client.set(f"key{number}", value)
    held = [client.get(f"key{number}") for number in range(12)]
    views = [memoryview(client.get(f"key{number}"))[5:] for number in range(12)]
    hashed = {client.get(f"key{number}") for number in range(12)}
    for turn in range(40):
        got = client.get(f"key{turn % 12}")
        assert type(got) is bytes and got == values[turn % 12] and hash(got) == hash(values[turn % 12])
        assert got in hashed
        del got
    for number, (one, other) in enumerate(pairwise(held)):
        assert one is not other and one == values[number]
    assert all(view == value[5:] for view, value in zip(views, values, strict=True))
    assert hashed == set(values)


@pytest.mark.resident
@pytest.mark.parametrize("who", ["off", "own"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_in_a_steady_state_no_page_is_new(rmemcached_server: ServerFactory, transport: str, who: str) -> None:
    """No page is new, whether values are dropped before or after the next call. A new page takes longer than the copy
    of its bytes."""
    server = rmemcached_server("-t", "1", "-m", "512", "-I", "64m", "-o", f"rdma_direct={who}")
    values = {f"key{number}": random_bytes(4 * MB, number) for number in range(3)}
    one, large = random_bytes(4 * MB, 0), random_bytes(16 * MB)
    with Client(server.address, transport=transport, default_noreply=False, timeout=TIMEOUT) as client:
        client.set_many(values)
        client.set("large", large)

        def turns() -> None:
            held = None
            for _ in range(4):
                assert client.get_many(values) == values
                held = client.get_many(values)
            assert held == values
            for _ in range(4):
                assert client.get("key0") == one
                assert client.get("large") == large

        for _ in range(3):
            turns()
        # There are 45056 pages in these values.
        assert page_faults(turns) < 2000


@pytest.mark.resident
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_is_given_back(make: Make, transport: str) -> None:
    """The client keeps at most 128 MB of gathered and dropped values, and none after its close."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        return (int(pages[1]) - int(pages[2])) * resource.getpagesize()

    client = make(transport)
    value = random_bytes(4 * MB)
    client.set("key", value)
    before = resident()
    held = [client.get("key") for _ in range(100)]
    assert all(one == value for one in held)
    for _ in range(3):
        held.clear()
        assert resident() - before < 200 * MB
        held = [client.get("key") for _ in range(100)]
    held.clear()
    client.close()
    assert resident() - before < 60 * MB


# ---- memory of the caller's ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_value_comes_to_its_place_only(make: Make, transport: str) -> None:
    client = make(transport)
    memory = bytearray(b"x" * (3 * MB))
    for size in (200_000, MB + 1, 2 * MB):
        client.set("key", random_bytes(size))
        memory[:] = b"x" * len(memory)
        assert client.get_into("key", memory, offset=100) == size
        assert memory[:100] == b"x" * 100 and memory[100 : 100 + size] == random_bytes(size)
        assert memory[100 + size :] == b"x" * (len(memory) - size - 100)
        # The bytearray can be resized: nobody holds its memory any more.
        memory.append(0)
        memory.pop()
    memory[:] = b"x" * len(memory)
    with pytest.raises(ValueError, match="has 2097152 bytes, and the buffer 1000000"):
        client.get_into("key", memoryview(memory)[:1_000_000])
    assert client.get_into("missing", memory) is None
    assert memory == b"x" * len(memory)


@pytest.mark.device("memory behind a time-out")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_is_the_callers_behind_a_timeout(make: Make, server: Server, transport: str) -> None:
    """A server that goes on later leaves the caller's memory alone."""
    client, control = make(transport, timeout=0.3 * PACE), make("tcp")
    client.set("key", random_bytes(2 * MB))
    memory = bytearray(2 * MB)
    assert client.get_into("key", memory) == 2 * MB
    with suspended(server.pid):
        with pytest.raises(TimeoutError):
            client.get_into("key", memory)
        memory[:] = b"x" * len(memory)
    eventually(lambda: control.stats()[b"curr_connections"] == 1, TIMEOUT)
    assert memory == b"x" * len(memory)

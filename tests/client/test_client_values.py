"""Values of every kind and size, alone and in batches, over every transport; read back by another client."""

from __future__ import annotations

import array
import mmap
import random
from typing import Any

import pytest
from transport import rounds

from rmemcached.client import Client, MemcacheServerError

EAGER = 4096
MESSAGE = 8192
MEGABYTE = 1 << 20


def around(*limits: int) -> list[int]:
    return [size for limit in limits for size in range(max(0, limit - 3), limit + 4)]


SIZES = sorted(
    {*range(40), *around(512, 2048, EAGER, MESSAGE - 64, MESSAGE, 2 * MESSAGE, 16384, 65536, 262144, MEGABYTE)}
    | {100, 1000, 3000, 5000, 30000, 200000, 500000, 2 * MEGABYTE + 17, 5 * MEGABYTE}
)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(size * 1009 + seed).randbytes(size)


@pytest.mark.device("messages, READs and WRITEs of all sizes")
def test_every_size_there_and_back(client: Client, oracle: Any, key: str) -> None:
    for size in SIZES:
        value = random_bytes(size)
        assert client.set(key, value, flags=size) is True
        assert client.get(key) == value, size
        assert client.get(key) == value, size
        if size <= 70000 or size % MEGABYTE == 17:
            assert oracle.get(key) == value, size
            assert oracle.set(key, value[::-1])
            assert client.get(key) == value[::-1], size


def test_sizes_in_random_order(client: Client, key: str) -> None:
    chosen = random.Random(5)
    stored: dict[str, bytes] = {}
    for number in range(rounds(600)):
        name = f"{key}-{chosen.randrange(20)}"
        if name in stored and chosen.random() < 0.5:
            assert client.get(name) == stored[name]
        else:
            size = int(2 ** chosen.uniform(0, 20.5))
            stored[name] = random_bytes(size, number)
            assert client.set(name, stored[name], noreply=chosen.random() < 0.3) is True
    assert client.get_many(stored) == stored


def test_returned_bytes_are_ordinary(client: Client, key: str) -> None:
    for size in (0, 1, 100, 5000, 300000, MEGABYTE):
        value = random_bytes(size)
        client.set(key, value)
        got = client.get(key)
        assert type(got) is bytes and len(got) == size
        assert hash(got) == hash(value)
        assert got + b"x" == value + b"x"


def test_values_stay_when_the_next_one_arrives(client: Client, key: str) -> None:
    names = [f"{key}-{i}" for i in range(12)]
    values = {name: random_bytes(400000 + 50000 * i) for i, name in enumerate(names)}
    for name, value in values.items():
        client.set(name, value)
    got = {name: client.get(name) for name in names}
    assert got == values


@pytest.mark.parametrize("size", [10, EAGER + 1, 300000])
def test_bytes_like_values(client: Client, key: str, size: int) -> None:
    data = random_bytes(size)
    with mmap.mmap(-1, size) as mapped:
        mapped[:] = data
        kinds = [
            bytearray(data),
            memoryview(data),
            memoryview(bytearray(b"xx" + data))[2:],
            array.array("B", data),
            mapped,
        ]
        for value in kinds:
            assert client.set(key, value) is True
            assert client.get(key) == data
        assert client.set_many({f"{key}-{i}": value for i, value in enumerate(kinds)}) == []
        assert client.get_many([f"{key}-{i}" for i in range(len(kinds))]) == {
            f"{key}-{i}": data for i in range(len(kinds))
        }
        del value, kinds
    every_other = memoryview(data)[::2]
    assert client.set(key, every_other) is True
    assert client.get(key) == data[::2]


def test_mutable_value_is_released_after_set(client: Client, key: str) -> None:
    value = bytearray(random_bytes(300000))
    client.set(key, value)
    value.extend(b"more")  # BufferError while somebody still exports it
    assert client.get(key) == bytes(value[:-4])


def test_store_commands_with_large_values(client: Client, oracle: Any, key: str) -> None:
    first, second = random_bytes(200000, 1), random_bytes(150000, 2)
    assert client.replace(key, first) is False
    assert client.add(key, first, flags=9, expire=1000) is True
    assert client.add(key, second) is False
    assert client.append(key, second) is True
    assert client.prepend(key, second) is True
    assert client.get(key) == second + first + second == oracle.get(key)
    value, cas = client.gets(key)
    assert value == second + first + second
    assert client.cas(key, first, b"1") is False
    assert client.cas(key, first, cas) is True
    assert client.cas(key + "missing", first, cas) is None
    assert client.replace(key, second) is True
    assert client.gat(key, 1000) == second
    assert client.gats(key, 1000)[0] == second
    assert client.gat(key + "missing", 1000, "default") == "default"
    assert client.gats(key + "missing", 1000, 1, 2) == (1, 2)
    assert client.gat(key, -1) is not None
    assert client.get(key) is None


def test_large_value_with_expiry_in_the_past(client: Client, key: str) -> None:
    assert client.set(key, random_bytes(100000), expire=-1) is True
    assert client.get(key) is None


def test_flags_of_large_values(make_client: Any, key: str) -> None:
    class Flags:
        def serialize(self, key: Any, value: bytes) -> tuple[bytes, int]:
            return value, len(value)

        def deserialize(self, key: Any, value: bytes, flags: int) -> tuple[bytes, int]:
            return value, flags

    client = make_client(serde=Flags())
    for size in (5, EAGER, EAGER + 1, 100000):
        value = random_bytes(size)
        client.set(key, value)
        assert client.get(key) == (value, size)
        assert client.gets(key)[0] == (value, size)
        assert client.get_many([key]) == {key: (value, size)}


@pytest.mark.parametrize("noreply", [False, True])
def test_many_small_values(client: Client, key: str, noreply: bool) -> None:
    values = {f"{key}-{i}": random_bytes(i % 300, i) for i in range(rounds(20000))}
    assert client.set_many(values, noreply=noreply) == []
    missing = [f"{key}-missing-{i}" for i in range(1000)]
    assert client.get_many([*values, *missing]) == values
    assert client.delete_many(values, noreply=noreply) is True
    assert client.get_many(values) == {}


@pytest.mark.device("many READs and WRITEs")
@pytest.mark.parametrize("noreply", [False, True])
def test_many_large_values(client: Client, key: str, noreply: bool) -> None:
    sizes = [0, 10, EAGER, EAGER + 1, 50000, 300000, MEGABYTE]
    values = {f"{key}-{i}": random_bytes(sizes[i % len(sizes)], i) for i in range(70)}
    assert client.set_many(values, noreply=noreply) == []
    assert client.get_many(values) == values
    assert {name: value for name, (value, _) in client.gets_many(values).items()} == values
    client.delete_many(values)


def test_errors_in_a_batch_leave_the_connection_in_step(client: Client, key: str) -> None:
    large = bytes(9 * MEGABYTE)
    for noreply in (False, True):
        values = {f"{key}-1": b"one", f"{key}-2": large, f"{key}-3": b"three", f"{key}-4": random_bytes(100000)}
        if noreply:
            assert client.set_many(values, noreply=True) == []
        else:
            with pytest.raises(MemcacheServerError, match="too large"):
                client.set_many(values)
        del values[f"{key}-2"]
        assert client.get_many([*values, f"{key}-2"]) == values
        client.delete_many(values)


def test_error_lines_of_commands_without_reply_are_not_taken_for_answers(client: Client, key: str) -> None:
    client.set(key, b"word")
    for number in range(rounds(3000)):
        if number % 3 == 0:
            client.add(key, b"not stored", noreply=True)
        elif number % 3 == 1:
            client.incr(key, 1, noreply=True)
        else:
            client.touch(key + "missing", 1, noreply=True)
        if number % 500 == 7:
            assert client.get(key) == b"word"
    client.set(key, bytes(9 * MEGABYTE), noreply=True)
    assert client.set(key, b"new") is True
    assert client.get(key) == b"new"
    client.set(key, bytes(9 * MEGABYTE), noreply=True)
    assert client.version()
    client.add(key, b"not stored", noreply=True)
    assert client.stats()[b"version"]
    client.add(key, b"not stored", noreply=True)
    assert client.raw_command("mn") == b"MN"


def test_too_large_for_the_server_leaves_the_connection_usable(client: Client, key: str) -> None:
    for size in (9 * MEGABYTE, 40 * MEGABYTE):
        client.set(key, b"old")
        with pytest.raises(MemcacheServerError, match="too large"):
            client.set(key, bytes(size))
        assert client.set(key, b"new") is True
        assert client.get(key) == b"new"


def test_payloads_travel_by_read_and_write(shared_rmemcached: Any, key: str) -> None:
    with Client(shared_rmemcached.address, transport="soft_iw", default_noreply=False, timeout=20) as client:
        value = random_bytes(300000)
        client.set(key, b"small")
        before = client.stats("rdma")
        client.set(key, value)
        assert client.get(key) == value
        after = client.stats("rdma")
    assert after[b"rdma_read_bytes"] - before[b"rdma_read_bytes"] == len(value)
    assert after[b"rdma_write_bytes"] - before[b"rdma_write_bytes"] == len(value)
    assert after[b"rdma_recv_bytes"] - before[b"rdma_recv_bytes"] < 1000


def test_sink_grows_with_the_values(shared_rmemcached: Any, key: str) -> None:
    with Client(shared_rmemcached.address, transport="soft_iw", default_noreply=False, timeout=20) as client:
        value = random_bytes(5 * MEGABYTE)
        client.set(key, value)
        assert client.get(key) == value  # in the stream: larger than the client's memory for values (its Sink)
        before = client.stats("rdma")[b"rdma_write_bytes"]
        for _ in range(3):
            assert client.get(key) == value
        assert client.stats("rdma")[b"rdma_write_bytes"] - before == 3 * len(value)
        small = random_bytes(50000)
        client.set(key, small)
        for _ in range(50):  # often enough for the Sink to become smaller again
            assert client.get(key) == small
        client.set(key, value)
        for _ in range(2):
            assert client.get(key) == value

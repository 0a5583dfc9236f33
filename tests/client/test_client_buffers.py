"""Memory for large values: regions that calls borrow, and buffers of the caller's, which need no copy."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from servers import Server
from suspended import suspended
from transport import PACE, RDMA_TRANSPORTS

from rmemcached.client import Client
from rmemcached.client._buffers import usage

TIMEOUT = 20.0 * PACE
MB = 1 << 20
TRANSPORTS = ["tcp", *RDMA_TRANSPORTS]
EAGER = 4096
SIZES = (1, 100, EAGER, EAGER + 1, 70_000, MB, 3 * MB + 7)

ServerFactory = Callable[..., Server]
Make = Callable[..., Client]


@pytest.fixture
def server(rmemcached_server: ServerFactory) -> Server:
    return rmemcached_server("-t", "1", "-m", "1024", "-I", "128m")


@pytest.fixture
def make(server: Server) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(transport: str, **arguments: Any) -> Client:
            settings: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, **arguments}
            return stack.enter_context(Client(server.address, transport=transport, **settings))

        yield make


def shared_memory(client: Client) -> list[int]:
    found = client.stats("rdma")
    return [int(found[name]) for name in (b"shm_mapped_regions", b"shm_mapped_bytes", b"shm_declined_offers")]


def one_sided(client: Client) -> int:
    return int(client.stats("rdma")[b"shm_one_sided"])


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_in_a_steady_state_nothing_is_registered(make: Make) -> None:
    """Nor offered, or mapped, whatever the size; and no value goes through the ring."""
    client = make("soft_shm")
    values = {f"key{size}": random_bytes(size) for size in (5000, MB, 9 * MB, 20 * MB, 70 * MB)}

    def turn() -> None:
        for key, value in values.items():
            assert client.set(key, value) is True
            assert client.get(key) == value

    # A sink gets larger by the first value that it has no room for.
    for _ in range(3):
        turn()
    before = usage(), shared_memory(client)
    moved = one_sided(client)
    for _ in range(3):
        turn()
    assert (usage(), shared_memory(client)) == before
    assert before[1][2] == 0
    # Each value is a READ or a WRITE at least, most of them several.
    assert one_sided(client) - moved >= 3 * 2 * len(values)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_many_clients_need_what_their_calls_need(make: Make, transport: str) -> None:
    """Those that wait for their next call hold nothing."""
    value = random_bytes(8 * MB)
    clients = [make(transport) for _ in range(20)]
    before = usage()
    clients[0].set("large", value)
    for client in clients:
        client.set("own", value)
        # The first is too large for its sink.
        for _ in range(3):
            assert client.get("large") == value
        client.get("none")
    now = usage()
    assert now["regions"] - before["regions"] <= 24 * MB
    assert now["regions"] == now["unused"]


def test_unused_regions_have_a_limit(make: Make) -> None:
    """What one call needs is not kept for ever."""
    client = make("soft_shm")
    value = random_bytes(60 * MB)
    assert client.set_many({f"key{number}": value for number in range(6)}) == []
    found = usage()
    assert found["unused"] == found["regions"] <= 256 * MB
    assert all(client.get(f"key{number}") == value for number in range(6))
    client.close()
    assert usage()["regions"] == 0


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_what_a_call_has_borrowed_is_given_back(make: Make, transport: str) -> None:
    """After hits, misses, values that are refused, and error lines."""
    client = make(transport)
    value = random_bytes(300_000)
    client.set("key", value)
    assert client.get("key") == value
    assert client.get("none") is None
    assert client.set_many({f"key{number}": value for number in range(20)}) == []
    assert client.add("key", value) is False
    with pytest.raises(Exception, match="too large"):
        client.set("key", bytes(129 * MB))
    assert client.get("key1") == value
    assert usage()["unused"] == usage()["regions"]


# ---- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_out_of_buffers_and_into_them(make: Make, transport: str) -> None:
    """All of one, or a part of it; what lies beside the part stays as it was."""
    client = make(transport)
    source, target = client._buffer(5 * MB), client._buffer(5 * MB)
    assert len(source) == 5 * MB
    for size in SIZES:
        value = random_bytes(size)
        for at in (0, 64, 1001):
            with memoryview(source) as out, memoryview(target) as into:
                out[at : at + size] = value
                into[: size + 2 * at + 64] = b"." * (size + 2 * at + 64)
                assert client.set("key", out[at : at + size]) is True
                assert client.get("key") == value
                assert client._get_into("key", into[at : at + size]) == size
                assert into[at : at + size] == value
                assert bytes(into[:at]) == b"." * at and into[at + size : at + size + 64] == b"." * 64
                assert client._get_into("key", into[at : at + size + 32]) == size
    with memoryview(source) as out:
        assert client.set_many({"a": out[:MB], "b": out[MB : 3 * MB], "c": b"ordinary" * 1000}) == []
        assert client.get_many("abc") == {"a": out[:MB], "b": out[MB : 3 * MB], "c": b"ordinary" * 1000}


def test_a_value_in_a_buffer_is_moved_once(make: Make) -> None:
    """Its memory is the server's source and target: no region is borrowed, and nothing goes through the ring."""
    client = make("soft_shm")
    size = 40 * MB
    source, target = client._buffer(size), client._buffer(size)
    with memoryview(source) as out, memoryview(target) as into:
        for turn in range(4):
            out[:8] = out[-8:] = turn.to_bytes(8, "big")
            if turn == 2:
                before = usage(), shared_memory(client), one_sided(client)
            assert client.set("key", source) is True
            assert client._get_into("key", into) == size
            assert into == out
    assert (usage(), shared_memory(client)) == before[:2]
    assert one_sided(client) > before[2] and usage()["regions"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_does_not_fit_is_refused(make: Make, transport: str) -> None:
    """The connection is as good as before."""
    client = make(transport)
    buffer = client._buffer(10_000)
    for size in (10_001, 2 * MB):
        client.set("key", random_bytes(size))
        with pytest.raises(ValueError, match=f"the value has {size} bytes, and the buffer 10000"):
            client._get_into("key", buffer)
        with pytest.raises(ValueError, match="and the buffer 0"):
            client._get_into("key", bytearray())
    client.set("empty", b"")
    assert client._get_into("empty", buffer) == 0 and client._get_into("empty", bytearray()) == 0
    assert client._get_into("none", buffer) is None and client._get_into("none", buffer, -1) == -1
    for wrong in (bytes(100), memoryview(bytearray(100))[::2], memoryview(bytearray(100)).toreadonly()):
        with pytest.raises(BufferError):
            client._get_into("key", wrong)
    with pytest.raises(TypeError):
        client._get_into("key", "text")
    with pytest.raises(ValueError, match="at least one byte"):
        client._buffer(0)
    assert client._get_into("key", bytearray(2 * MB)) == 2 * MB
    assert client.get("key") == random_bytes(2 * MB)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_buffer_is_there_as_long_as_it_is_seen(make: Make, transport: str) -> None:
    client = make(transport)
    client.set("key", random_bytes(MB))
    buffer = client._buffer(MB)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match="in use"):
        buffer.close()
    assert client._get_into("key", view[:MB]) == MB
    client.close()
    # Nobody reaches it now, and it is the caller's.
    assert view == random_bytes(MB)
    # A new connection to the same server may use it.
    assert client.set("other", view) is True and client._get_into("other", buffer) == MB
    assert client.get("other") == random_bytes(MB)
    del buffer
    assert view[-1] == random_bytes(MB)[-1]
    view.release()
    buffer = client._buffer(MB)
    buffer.close()
    buffer.close()
    assert len(buffer) == 0
    with pytest.raises(BufferError, match="closed"):
        memoryview(buffer)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_buffer_of_another_server_is_ordinary_memory(
    rmemcached_server: ServerFactory, make: Make, transport: str
) -> None:
    client = make(transport)
    with Client(rmemcached_server().address, transport=transport, timeout=TIMEOUT) as other:
        buffer = other._buffer(MB)
        memoryview(buffer)[:] = random_bytes(MB)
        assert client.set("key", buffer) is True
        memoryview(buffer)[:] = bytes(MB)
        assert client._get_into("key", buffer) == MB and memoryview(buffer) == random_bytes(MB)


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_that_did_not_answer_may_still_write(server: Server, make: Make, shared: bool) -> None:
    """What it maps stays mapped, so that a Buffer is not used again until it has closed the lane. It does not."""
    client, other = make("soft_shm", timeout=0.3 * PACE), make("soft_shm")
    value = random_bytes(MB)
    client.set("key", value)
    if shared:
        other.version()
    buffer = client._buffer(MB)
    assert client._get_into("key", buffer) == MB
    with suspended(server.pid), pytest.raises(TimeoutError):
        client._get_into("key", buffer)
    with pytest.raises(BufferError, match="did not answer in time"):
        client._get_into("key", buffer)
    # It is still the caller's memory, to read from.
    assert client.get("key") == value == memoryview(buffer)
    assert client.set("other", buffer) is True and client.get("other") == value
    assert client._get_into("key", client._buffer(MB)) == MB


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_child_leaves_buffers_alone(make: Make, transport: str) -> None:
    client = make(transport)
    client.set("key", random_bytes(MB))
    buffer = client._buffer(MB)
    assert client.get("key") == random_bytes(MB)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.close()
            del buffer
            status = 0 if usage()["regions"] == 0 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert client._get_into("key", buffer) == MB and memoryview(buffer) == random_bytes(MB)
    assert client.get("key") == random_bytes(MB)

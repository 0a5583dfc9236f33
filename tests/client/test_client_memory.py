"""Values in the caller's memory, and memory of the client that the caller sees."""

from __future__ import annotations

import array
import gc
import mmap
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from concurrency import ended, fork
from servers import Server
from transport import RDMA_TRANSPORTS, rdma, rounds

from rmemcached.client import Buffer, Client
from rmemcached.client.transport._buffers import usage

ServerFactory = Callable[..., Server]

MB = 1 << 20
SIZES = (1, 100, 4096, 5000, 100_000, 3 * MB)


def pattern(size: int, start: int = 0) -> bytes:
    return bytes((start + number) % 251 for number in range(min(size, 1000))) * (size // 1000 + 1)


def value_of(size: int, start: int = 0) -> bytes:
    return pattern(size, start)[:size]


@pytest.mark.device("registered memory")
def test_into_any_memory(client: Client, key: str) -> None:
    """A value goes to any place of a buffer. Bytes beside the value stay as they were."""
    for size in SIZES:
        value = value_of(size)
        client.set(key, value)
        with client.buffer(size + 20) as buffer:
            targets: list[Any] = [
                buffer,
                bytearray(size + 20),
                array.array("B", bytes(size + 20)),
                np.zeros(size + 20, np.uint8),
                mmap.mmap(-1, size + 20),
            ]
            for target in targets:
                with memoryview(target) as view:
                    view[:] = b"." * (size + 20)
                    assert client.get_into(key, target, 7) == size
                    assert view[:7] == b"." * 7
                    assert view[7 : size + 7] == value
                    assert view[size + 7 :] == b"." * 13
            targets.clear()


def test_arrays(client: Client, key: str) -> None:
    """Contiguous arrays of any shape and type are sources and targets."""
    source = np.arange(60_000, dtype=np.float64).reshape(200, 300)
    target = np.zeros((200, 300))
    client.set(key, source)
    assert client.get_into(key, target) == source.nbytes
    assert (target == source).all()
    with pytest.raises(BufferError, match="contiguous"):
        client.get_into(key, target[:, ::2])
    with pytest.raises(BufferError, match="contiguous"):
        client.register(target.T)


def test_offsets(client: Client, key: str) -> None:
    client.set(key, b"12345")
    memory = bytearray(8)
    assert client.get_into(key, memory, 3) == 5
    assert memory == b"\0\0\x0012345"
    for offset in (4, 8):
        with pytest.raises(ValueError, match=f"has 5 bytes, and the buffer {8 - offset}"):
            client.get_into(key, memory, offset)
    for wrong in (-1, 9, 1.5, None):
        with pytest.raises(ValueError, match="offset must be from 0 to 8"):
            client.get_into(key, memory, wrong)  # type: ignore[arg-type]
    assert memory == b"\0\0\x0012345"
    assert client.get_into("no" + key, memory) is None
    assert client.get_into("no" + key, memory, 0, -1) == -1


def test_many_into(client: Client, key: str) -> None:
    values = {f"{key}-{size}": value_of(size) for size in (*SIZES, 0)}
    client.set_many(values)
    for room in (0, 5):
        targets = {name: bytearray(len(value) + room) for name, value in values.items()}
        pairs: list[tuple[str, Any]] = [*targets.items()]
        pairs.insert(2, ("no" + key, bytearray(10)))
        pairs.insert(7, ("no" + key, bytearray(10_000)))
        lengths = client.get_many_into(pairs)
        assert [length for length in lengths if length is not None] == [len(value) for value in values.values()]
        assert lengths.count(None) == 2
        assert all(targets[name] == value + bytes(room) for name, value in values.items())
    assert client.get_many_into([]) == []


@pytest.mark.parametrize("size", [100, 100_000])
def test_many_into_with_one_that_does_not_fit(client: Client, key: str, size: int) -> None:
    client.set_many({f"{key}-1": value_of(size), f"{key}-2": value_of(size, 5), f"{key}-3": value_of(size, 9)})
    memory = [bytearray(size), bytearray(size - 1), bytearray(size)]
    with pytest.raises(ValueError, match=f"the value of '{key}-2' has {size} bytes, and the buffer {size - 1}"):
        client.get_many_into([(f"{key}-{number + 1}", memory[number]) for number in range(3)])
    assert memory == [value_of(size), bytes(size - 1), value_of(size, 9)]


def test_views_without_a_copy(client: Client, key: str) -> None:
    """Views keep their values, whatever the client gets later, and other calls find memory meanwhile."""
    for size in SIZES:
        for start in range(3):
            client.set(key, value_of(size, start))
            first = client.get(key, copy=False)
            assert isinstance(first, memoryview)
            assert first.readonly
            assert first == value_of(size, start)
            client.set(key, value_of(size, start + 10))
            second = client.get(key, copy=False)
            assert [first, second] == [value_of(size, start), value_of(size, start + 10)]
    assert client.get("no" + key, copy=False) is None
    assert client.get("no" + key, 5, copy=False) == 5


def test_what_views_had_is_used_again(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, value_of(3 * MB))
    for turn in range(10):
        if turn == 4:
            before = usage()
        with client.get(key, copy=False) as view:
            assert view == value_of(3 * MB)
    assert usage() == before or client.transport == "soft_iw"


@pytest.mark.device("registered memory of an ended queue pair")
@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_memory_outlives_client_connection_and_server(
    rmemcached_server: ServerFactory, transport: str, key: str
) -> None:
    server = rmemcached_server("-I", "8m")
    client = Client(server.address, transport=transport, timeout=20, default_noreply=False)
    value = value_of(3 * MB)
    client.set(key, value)
    buffer = client.buffer(3 * MB)
    seen = np.frombuffer(memoryview(buffer), np.uint8)
    assert client.get_into(key, buffer) == 3 * MB
    view = client.get(key, copy=False)
    array_ = np.frombuffer(client.get(key, copy=False), np.uint8)
    client.close()
    assert view == value == array_.tobytes()
    server.kill()
    with pytest.raises(OSError):
        client.get(key)
    del client
    gc.collect()
    assert view == value == array_.tobytes() == seen.tobytes() == memoryview(buffer)
    with pytest.raises(BufferError, match="in use"):
        buffer.close()
    del seen, view, array_
    buffer.close()
    assert usage()["regions"] == 0


@pytest.mark.device("pinned pages in a fork")
@pytest.mark.parametrize("size", [100, 300_000, 3 * MB])
def test_views_in_a_forked_child(make_client: Callable[..., Client], key: str, size: int) -> None:
    """A forked child reads its parent's views, whatever the parent gets next."""
    client = make_client()
    value = value_of(size)
    client.set(key, value)
    client.set(key + "-2", value_of(size, 9))
    view = client.get(key, copy=False)
    theirs, ours = os.pipe()

    def read() -> None:
        os.close(ours)
        assert view == value
        os.read(theirs, 1)
        assert view == value and client.get(key + "-2") == value_of(size, 9)

    child = fork(read)
    os.close(theirs)
    view.release()
    others = [client.get(key + "-2", copy=False) for _ in range(3)]
    assert others == [value_of(size, 9)] * 3
    os.close(ours)
    ended(child)
    del others
    client.set(key, value)
    assert client.get(key, copy=False) == client.get(key) == value


@pytest.mark.parametrize("make", ["buffer", "register"])
def test_a_signal_while_a_buffer_is_made(make_client: Callable[..., Client], make: str) -> None:
    """The handler's exception leaves no registered memory behind: the debug build counts registered memory."""
    client = make_client()
    memory = bytearray(5000)
    client.buffer(5000).close()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise InterruptedError

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(rounds(300)):
            buffer = None
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + turn * 1e-7)
                for _ in range(1000):
                    buffer = client.buffer(5000) if make == "buffer" else client.register(memory)
                    buffer.close()
            except InterruptedError:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if buffer is not None:
                    buffer.close()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert client.set("key", b"value") is True
    memory.append(1)


def test_views_and_buffers_in_cycles(client: Client, key: str) -> None:
    """The garbage collector clears cycles of views and buffers in any order."""
    client.set(key, value_of(3 * MB))
    for _ in range(3):
        cycle: list[Any] = [client.get(key, copy=False), client.register(bytearray(5000))]
        cycle[1].close()
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert client.get(key) == value_of(3 * MB)


def test_a_lost_buffer_warns_where_it_was_made(client: Client) -> None:
    with pytest.warns(ResourceWarning, match=r"unclosed .*Buffer of 5000 bytes.*test_client_memory\.py:\d+"):
        client.buffer(5000)
        gc.collect()
    buffer = client.buffer(5000)
    assert (len(buffer), buffer.closed) == (5000, False)
    buffer.close()
    buffer.close()
    assert (len(buffer), buffer.closed) == (0, True)
    with pytest.raises(BufferError, match="closed"):
        memoryview(buffer)
    with pytest.raises(TypeError):
        Buffer()
    for size in (0, -1, 1.5, "1"):
        with pytest.raises(ValueError, match="at least one byte"):
            client.buffer(size)  # type: ignore[arg-type]


@pytest.mark.device("registered memory")
def test_registered_objects(client: Client, key: str) -> None:
    """Registered objects stay as they were, and the client moves values to and from them."""
    for size in (100, 3 * MB):
        objects: list[Any] = [
            bytearray(size),
            array.array("B", bytes(size)),
            np.zeros(size, np.uint8),
            mmap.mmap(-1, size),
        ]
        for memory in objects:
            with client.register(memory) as buffer:
                memoryview(memory)[:] = value_of(size)
                assert len(buffer) == size
                assert memoryview(buffer) == value_of(size)
                assert client.set(key, memory) is True
                client.set(key + "-2", value_of(size, 9))
                assert client.get_into(key + "-2", memory) == size
                assert client.get(key) == value_of(size)
                assert memoryview(memory) == value_of(size, 9)
        objects.clear()


def test_what_is_registered_stays_there(client: Client, key: str) -> None:
    memory = bytearray(5000)
    buffer = client.register(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    buffer.close()
    memory.append(1)
    with client.register(b"constant") as buffer:
        assert memoryview(buffer).readonly
        assert client.set(key, b"constant") is True
        with pytest.raises(BufferError):
            client.get_into(key, buffer)
    for wrong, error in (("text", TypeError), (b"", ValueError), (5, TypeError)):
        with pytest.raises(error):
            client.register(wrong)


def test_registered_memory_is_registered_once(rmemcached_server: ServerFactory, key: str) -> None:
    with Client(
        rmemcached_server("-I", "8m").address, transport="soft_iw", timeout=20, default_noreply=False
    ) as client:
        memory = bytearray(3 * MB)
        with client.register(memory):
            before = usage()["registered"]
            for start in range(5):
                memory[:] = value_of(3 * MB, start)
                assert client.set(key, memory) is True
                memory[:] = bytes(3 * MB)
                assert client.get_into(key, memory) == 3 * MB
                assert memory == value_of(3 * MB, start)
            assert usage()["registered"] == before


def test_buffers_of_many_clients(shared_rmemcached: Any, key: str) -> None:
    """A Buffer serves every client of the same server."""
    transport = rdma()
    clients = [
        Client(shared_rmemcached.address, transport=transport, timeout=20, default_noreply=False) for _ in range(3)
    ]
    with clients[0].buffer(MB) as buffer:
        clients[0].close()
        with memoryview(buffer) as view:
            view[:] = value_of(MB)
        assert clients[1].set(key, buffer) is True
        with memoryview(buffer) as view:
            view[:] = bytes(MB)
        assert clients[2].get_into(key, buffer) == MB
        assert memoryview(buffer) == value_of(MB)
    for client in clients:
        client.close()


class Tensor:
    """An object with DLPack and no buffer protocol, as torch's tensors."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # DLPack's numbers of the CPU


def test_memory_by_dlpack(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    value = bytes(range(250)) * 400
    client.set(key, value)
    array = np.zeros(100_000, dtype="u1")
    assert client.get_into(key, Tensor(array)) == len(value)
    assert array.tobytes() == value
    with client.register(Tensor(np.arange(50_000, dtype="u2"))) as buffer:
        client.set(key, buffer)
        assert client.get(key) == np.arange(50_000, dtype="u2").tobytes()
        assert client.get_into(key, buffer) == 100_000
    with pytest.raises(BufferError):
        client.get_into(key, Tensor(np.zeros((10, 10))[:, ::2]))
    with pytest.raises(TypeError):
        client.register(object())

"""Memory for large values: regions borrowed by calls, and buffers of the caller's, which need no copy."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from concurrency import ended, fork, in_child
from polling import eventually
from servers import Server
from suspended import suspended
from transport import PACE, RDMA_TRANSPORTS, rounds

from rmemcached.client import Client
from rmemcached.client.transport._buffers import usage
from rmemcached.client.transport._queue_pair import QueuePair
from rmemcached.client.transport._registered import Registrations
from rmemcached.client.transport.transports import ROWS

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


def shared_memory(client: Client) -> list[int]:
    found = client.stats("rdma")
    return [int(found[name]) for name in (b"shm_mapped_regions", b"shm_mapped_bytes", b"shm_declined_offers")]


def one_sided(client: Client) -> int:
    return int(client.stats("rdma")[b"shm_one_sided"])


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


here = pytest.mark.skipif("soft_shm" not in RDMA_TRANSPORTS, reason="shared memory is the same with any device")


# ---- regions ---------------------------------------------------------------------------------------------------------


@here
def test_in_a_steady_state_nothing_is_registered_or_mapped(make: Make) -> None:
    """In a steady state nothing is registered or mapped, and no value of up to 8 MB goes through the ring. (Larger
    values do: both sides copy at the same time.)"""
    client = make("soft_shm")
    values = {f"key{size}": random_bytes(size) for size in (5000, MB, 3 * MB, 8 * MB)}

    def turn() -> None:
        for key, value in values.items():
            assert client.set(key, value) is True
            assert client.get(key) == value

    # The client's memory for received values (its Sink) grows with the first value above its size.
    for _ in range(3):
        turn()
    before = usage(), shared_memory(client)
    moved = one_sided(client)
    for _ in range(3):
        turn()
    assert (usage(), shared_memory(client)) == before
    assert before[1][2] == 0
    # Each transfer of a value takes at least one READ or WRITE, most of them several.
    assert one_sided(client) - moved >= 3 * 2 * len(values)


@pytest.mark.device("registrations")
@pytest.mark.parametrize("transport", [name for name in RDMA_TRANSPORTS if name != "soft_iw"])
def test_in_a_steady_state_nothing_is_registered(make: Make, transport: str) -> None:
    """Repeated values, new values, memory of the caller's, and batches register nothing. On soft_iw a registration is
    an entry in a table."""
    client = make(transport)
    same = random_bytes(MB)
    again = bytearray(random_bytes(2 * MB))

    def turn(number: int) -> None:
        fresh = random_bytes(300_000 + number)
        assert client.set("same", same) is True and client.set("again", again) is True
        assert client.set("fresh", fresh) is True
        assert client.set_many({"a": fresh, "b": same, "c": bytes(5000)}) == []
        assert client.get("same") == same and client.get("again") == again and client.get("fresh") == fresh

    for number in range(12):
        turn(number)
    before = usage()["registered"]
    for number in range(12, 20):
        turn(number)
    assert usage()["registered"] == before


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_many_clients_need_what_their_calls_need(make: Make, transport: str) -> None:
    """A Client holds memory for values only during its calls."""
    value = random_bytes(8 * MB)
    clients = [make(transport) for _ in range(20)]
    before = usage()
    clients[0].set("large", value)
    for client in clients:
        client.set("own", value)
        # The first value exceeds the client's memory for received values, so this memory grows.
        for _ in range(3):
            assert client.get("large") == value
        client.get("none")
    now = usage()
    assert now["regions"] - before["regions"] <= 24 * MB
    assert now["regions"] == now["unused"]


@here
def test_unused_regions_have_a_limit(make: Make) -> None:
    """The memory kept after calls has a limit."""
    client = make("soft_shm")
    value = random_bytes(60 * MB)
    assert client.set_many({f"key{number}": value for number in range(6)}) == []
    found = usage()
    assert found["unused"] == found["regions"] <= 256 * MB
    assert all(client.get(f"key{number}") == value for number in range(6))
    client.close()
    assert usage()["regions"] == 0


@pytest.mark.device("registrations")
@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_what_a_call_has_borrowed_is_given_back(make: Make, transport: str) -> None:
    """A call gives its memory back after hits, misses, refused values, and error lines."""
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


# ---- objects that stay registered ------------------------------------------------------------------------------------


@pytest.fixture
def registrations() -> Iterator[Registrations]:
    """The registrations of a queue pair without a peer. They work alike on every device."""
    queue = QueuePair(ROWS["soft_iw"], ("127.0.0.1", 1))
    found = Registrations(queue)
    yield found
    found.close()


def use(registrations: Registrations, value: bytes) -> bool:
    """Takes the object for a request, and gives the object back. Returns whether the object has a registration."""
    found = registrations.take(value)
    if found is None:
        return False
    assert found.transfers == 1
    registrations.give(found)
    return True


def test_an_object_that_comes_again_stays_registered(registrations: Registrations) -> None:
    value, other = random_bytes(MB), random_bytes(MB + 1)
    assert [use(registrations, value) for _ in range(5)] == [False, True, True, True, True]
    assert [use(registrations, other) for _ in range(3)] == [False, True, True]
    assert (registrations.registered, len(registrations), registrations.size) == (2, 2, 2 * MB + 1)


def test_what_nobody_else_has_goes_first(registrations: Registrations) -> None:
    """An object without other owners, which cannot come again, is the first to go. A request keeps its object."""
    values = [random_bytes(size) for size in (1000, 1001, 1002)]
    for value in values:
        assert [use(registrations, value) for _ in range(3)] == [False, True, True]
    held = registrations.take(values[1])
    assert held is not None
    del value, values[:2]
    assert len(registrations) == 3
    newcomer = random_bytes(1003)
    assert [use(registrations, newcomer) for _ in range(2)] == [False, True]
    # values[0] has gone. A request still has values[1].
    assert len(registrations) == 3 and registrations.size == 1001 + 1002 + 1003
    registrations.give(held)
    assert use(registrations, values[0]) and registrations.registered == 4


def test_registrations_have_limits(registrations: Registrations) -> None:
    """The object unused for the longest time makes room for a new registration."""
    values = [random_bytes(1000 + number) for number in range(300)]
    for value in values:
        assert [use(registrations, value) for _ in range(3)] == [False, True, True]
    assert len(registrations) == 256
    assert use(registrations, values[-256]) and not use(registrations, values[-257])
    large = [bytes(size) for size in (60 * MB, 70 * MB, 129 * MB)]
    found = [[use(registrations, value) for _ in range(2)] for value in large]
    assert found == [[False, True], [False, True], [False, False]]
    assert registrations.size <= 128 * MB and use(registrations, large[1])


def test_new_objects_are_seldom_registered(registrations: Registrations) -> None:
    """New objects are seldom registered, even at the address of the last object."""
    for number in range(640):
        value = number.to_bytes(4, "big") * 1000
        assert use(registrations, value) in (False, True)
        del value
    assert registrations.registered <= 20
    # A repeated object is found for all that.
    value = random_bytes(MB)
    assert any(use(registrations, value) for _ in range(100)) and use(registrations, value)


def test_one_object_that_always_comes_speaks_for_no_other(registrations: Registrations) -> None:
    """Objects that come twice, and never again, are seldom registered beside an object that always comes."""
    always = random_bytes(MB)
    for number in range(200):
        other = random_bytes(5000 + number)
        for value in (always, other, other):
            use(registrations, value)
        del other
    assert use(registrations, always) and registrations.registered <= 12


# ---- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.device("registered memory")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_values_out_of_buffers_and_into_them(make: Make, transport: str) -> None:
    """A buffer is source and target as a whole or in part. Bytes beside the part stay as they were."""
    client = make(transport)
    source, target = client.buffer(5 * MB), client.buffer(5 * MB)
    assert len(source) == 5 * MB
    for size in SIZES:
        value = random_bytes(size)
        for at in (0, 64, 1001):
            with memoryview(source) as out, memoryview(target) as into:
                out[at : at + size] = value
                into[: size + 2 * at + 64] = b"." * (size + 2 * at + 64)
                assert client.set("key", out[at : at + size]) is True
                assert client.get("key") == value
                assert client.get_into("key", into[at : at + size]) == size
                assert into[at : at + size] == value
                assert bytes(into[:at]) == b"." * at and into[at + size : at + size + 64] == b"." * 64
                assert client.get_into("key", into[at : at + size + 32]) == size
    with memoryview(source) as out:
        assert client.set_many({"a": out[:MB], "b": out[MB : 3 * MB], "c": b"ordinary" * 1000}) == []
        assert client.get_many("abc") == {"a": out[:MB], "b": out[MB : 3 * MB], "c": b"ordinary" * 1000}


@here
def test_a_value_in_a_buffer_is_moved_once(make: Make) -> None:
    """The buffer's memory is the server's source and target: no region is borrowed, and the ring stays unused."""
    client = make("soft_shm")
    size = 40 * MB
    source, target = client.buffer(size), client.buffer(size)
    with memoryview(source) as out, memoryview(target) as into:
        for turn in range(4):
            out[:8] = out[-8:] = turn.to_bytes(8, "big")
            if turn == 2:
                before = usage(), shared_memory(client), one_sided(client)
            assert client.set("key", source) is True
            assert client.get_into("key", into) == size
            assert into == out
    assert (usage(), shared_memory(client)) == before[:2]
    assert one_sided(client) > before[2] and usage()["regions"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_does_not_fit_is_refused(make: Make, transport: str) -> None:
    """A value above the buffer's size is refused, and the connection is as good as before."""
    client = make(transport)
    buffer = client.buffer(10_000)
    for size in (10_001, 2 * MB):
        client.set("key", random_bytes(size))
        with pytest.raises(ValueError, match=f"the value of .key. has {size} bytes, and the buffer 10000"):
            client.get_into("key", buffer)
        with pytest.raises(ValueError, match="and the buffer 0"):
            client.get_into("key", bytearray())
    client.set("empty", b"")
    assert client.get_into("empty", buffer) == 0 and client.get_into("empty", bytearray()) == 0
    assert client.get_into("none", buffer) is None and client.get_into("none", buffer, default=-1) == -1
    for wrong in (bytes(100), memoryview(bytearray(100))[::2], memoryview(bytearray(100)).toreadonly()):
        with pytest.raises(BufferError):
            client.get_into("key", wrong)
    with pytest.raises(TypeError):
        client.get_into("key", "text")
    with pytest.raises(ValueError, match="at least one byte"):
        client.buffer(0)
    assert client.get_into("key", bytearray(2 * MB)) == 2 * MB
    assert client.get("key") == random_bytes(2 * MB)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_buffer_is_there_as_long_as_it_is_seen(make: Make, transport: str) -> None:
    client = make(transport)
    client.set("key", random_bytes(MB))
    buffer = client.buffer(MB)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match="in use"):
        buffer.close()
    assert client.get_into("key", view[:MB]) == MB
    client.close()
    # After the close only the caller reaches the memory, through the view.
    assert view == random_bytes(MB)
    # A new connection to the same server may use the view.
    assert client.set("other", view) is True and client.get_into("other", buffer) == MB
    assert client.get("other") == random_bytes(MB)
    del buffer
    assert view[-1] == random_bytes(MB)[-1]
    view.release()
    buffer = client.buffer(MB)
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
        buffer = other.buffer(MB)
        memoryview(buffer)[:] = random_bytes(MB)
        assert client.set("key", buffer) is True
        memoryview(buffer)[:] = bytes(MB)
        assert client.get_into("key", buffer) == MB and memoryview(buffer) == random_bytes(MB)


@here
@pytest.mark.without_direct("only a server that is asked writes to a Buffer")
@pytest.mark.parametrize("shared", [False, True])
def test_a_server_that_did_not_answer_may_still_write(server: Server, make: Make, shared: bool) -> None:
    """After a time-out the Buffer is refused as a target: the daemon keeps its mapping, and may still write there."""
    client, other = make("soft_shm", timeout=0.3 * PACE), make("soft_shm")
    value = random_bytes(MB)
    client.set("key", value)
    if shared:
        other.version()
    buffer = client.buffer(MB)
    assert client.get_into("key", buffer) == MB
    with suspended(server.pid), pytest.raises(TimeoutError):
        client.get_into("key", buffer)
    connections = client.stats()[b"total_connections"]
    with pytest.raises(BufferError, match="did not answer in time"):
        client.get_into("key", buffer)
    # The refused call has sent nothing, so the connection is still good.
    assert client.stats()[b"total_connections"] == connections
    # The memory is still the caller's, to read from.
    assert client.get("key") == value == memoryview(buffer)
    assert client.set("other", buffer) is True and client.get("other") == value
    assert client.get_into("key", client.buffer(MB)) == MB


@pytest.mark.device("READs behind a time-out")
@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_late_read_finds_nothing_that_came_later(server: Server, make: Make, transport: str, shared: bool) -> None:
    """A set done by the server after its time-out never stores later content of the Buffer."""
    client, other, control = make(transport, timeout=0.3 * PACE), make(transport), make("tcp")
    value = random_bytes(3 * MB)
    buffer = client.buffer(3 * MB)
    with memoryview(buffer) as view:
        view[:] = value
        # The server maps the buffer, and uses the mapping.
        for _ in range(3):
            assert client.set("key", buffer) is True
        if shared:
            other.version()
        with suspended(server.pid):
            with pytest.raises(TimeoutError):
                client.set("key", buffer)
            view[:] = bytes(3 * MB)
        # Once the server has noticed the end of the queue pair, all requests of the client are done.
        eventually(lambda: control.stats()[b"curr_connections"] == 1, TIMEOUT)
        assert control.get("key") == value
        # The buffer can be used as before.
        view[:] = value[::-1]
        assert client.set("again", buffer) is True and control.get("again") == value[::-1]
        assert client.get_into("key", buffer) == 3 * MB and view == value


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_child_leaves_buffers_alone(make: Make, transport: str) -> None:
    client = make(transport)
    client.set("key", random_bytes(MB))
    buffer = client.buffer(MB)
    assert client.get("key") == random_bytes(MB)

    def child() -> bool:
        nonlocal buffer
        client.close()
        del buffer
        return usage()["regions"] == 0

    in_child(child)
    assert client.get_into("key", buffer) == MB and memoryview(buffer) == random_bytes(MB)
    assert client.get("key") == random_bytes(MB)


@pytest.mark.device("pinned pages in a fork")
@pytest.mark.parametrize("client_of_its_own", [True, False], ids=["own client", "inherited client"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_children_have_the_memory_for_themselves(make: Make, transport: str, client_of_its_own: bool) -> None:
    """Each child, and its parent, gets values of its own into a Buffer from before the fork, and stores them."""
    size = 400_000
    client = make(transport)
    buffer = client.buffer(size)
    view = memoryview(buffer)
    values = [random.Random(number).randbytes(size) for number in range(3)]

    def work(number: int) -> None:
        mine = make(transport) if client_of_its_own else client
        for _ in range(rounds(50)):
            assert mine.get_into(f"key{number}", buffer) == size and view == values[number]
            assert mine.set(f"copy{number}", view) is True
            assert mine.get(f"copy{number}") == values[number]

    for number in range(3):
        client.set(f"key{number}", values[number])
    children = [fork(lambda number=number: work(number)) for number in range(2)]  # type: ignore[misc]
    work(2)
    for child in children:
        ended(child)
    view.release()


@pytest.mark.device("pinned pages in a fork")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_child_has_what_was_there_at_the_fork(make: Make, transport: str) -> None:
    """A child sees the content at the fork in the Buffer, in its views, and in lent values.

    The same holds for a grandchild, whoever writes first.
    """
    client = make(transport)
    buffer = client.buffer(MB + 5)
    view = memoryview(buffer)
    view[:] = random_bytes(MB + 5)
    client.set("key", random_bytes(MB))
    lent = client.get("key", copy=False)
    go, went = os.pipe()
    done, did = os.pipe()

    def child() -> None:
        os.read(go, 1)
        assert view == random_bytes(MB + 5) and lent == random_bytes(MB)
        view[:3] = b"own"
        in_child(grandchild)
        assert bytes(view[:3]) == b"own"
        os.write(did, b"1")

    def grandchild() -> None:
        assert bytes(view[:3]) == b"own" and view[3:] == random_bytes(MB + 5)[3:] and lent == random_bytes(MB)
        view[:3] = b"not"

    one = fork(child)
    view[:] = bytes(MB + 5)
    lent.release()
    client.set("key", bytes(MB))
    for _ in range(3):
        assert client.get("key", copy=False) == bytes(MB)
    os.write(went, b"1")
    os.close(did)
    os.read(done, 1)
    assert view == bytes(MB + 5)
    ended(one)
    assert client.get_into("key", buffer) == MB
    view.release()
    buffer.close()
    for end in (go, went, done):
        os.close(end)


def fill_from(client: Client, buffer: Any, key: str, results: Any) -> None:
    with memoryview(buffer) as view:
        results.put((key, client.get_into(key, buffer), view[:3].tobytes()))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_of_multiprocessing(make: Make, transport: str) -> None:
    client = make(transport)
    keys = ("aaa", "bbb", "ccc")
    buffer = client.buffer(MB)
    memoryview(buffer)[:3] = b"old"
    for key in keys:
        client.set(key, key.encode() * 1000)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=fill_from, args=(client, buffer, key, results)) for key in keys]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found) == [(key, 3000, key.encode()) for key in keys]
    assert bytes(memoryview(buffer)[:3]) == b"old"


def test_a_closed_buffer_costs_a_fork_nothing(make: Make) -> None:
    client = make(RDMA_TRANSPORTS[0])
    first, second, third = (client.buffer(MB) for _ in range(3))
    for one in (second, first):
        one.close()
    memoryview(third)[:3] = b"old"

    def work() -> None:
        assert bytes(memoryview(third)[:3]) == b"old"

    in_child(work)


@here
@pytest.mark.resident
def test_a_child_without_room_for_the_copy_is_told(make: Make) -> None:
    """A Buffer without room for the child's copy raises an error, and the parent's memory stays as it was."""
    client = make("soft_shm")
    buffer = client.buffer(64 * MB)
    with memoryview(buffer) as view:
        view[:3] = b"old"

    def parent() -> None:
        mine = make("soft_shm")
        own = mine.buffer(64 * MB)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + 32 * MB, used + 32 * MB))
        in_child(lambda: refused(own))
        with memoryview(own) as view:
            assert view[:3] == bytes(3)

    def refused(own: Any) -> None:
        with pytest.raises(BufferError, match="no memory for a copy of the Buffer when this process was forked"):
            memoryview(own)

    in_child(parent)

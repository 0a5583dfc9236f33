"""Views of the daemon's items in place: their content, and their lifetime."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from polling import eventually
from server_by_hand import DATA, ServerByHand
from servers import Server
from suspended import suspended
from viewing import is_pinned, views

from rmemcached.client import (
    Client,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
    PinnedMemory,
)
from rmemcached.store._testing import Store

ServerFactory = Callable[..., Server]
TIMEOUT = 20.0
MB = 1 << 20
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "transport": "soft_shm"}
FLAGS = ("-t", "2", "-o", "rdma_direct")


@pytest.fixture(scope="module")
def server(module_server: ServerFactory) -> Server:
    return module_server("-m", "256", "-I", "8m", *FLAGS)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, **OPTIONS) as made:
        made.version()
        yield made


def until(server: Server, kept: int, seconds: float = TIMEOUT) -> None:
    """Waits until the daemon keeps this number of items for views. No event announces the number."""
    eventually(lambda: views(server)[0] == kept, seconds, f"{kept} items kept")


# --- content ---


@pytest.mark.parametrize("length", [0, 1, 100, 5000, 500_000])
def test_a_value_is_seen_where_it_lies(server: Server, client: Client, key: str, length: int) -> None:
    value = os.urandom(length)
    client.set(key, value)
    view = client.get_view(key)
    assert view == value and view.readonly and len(view) == length and is_pinned(view)
    with pytest.raises(TypeError):
        view[0:1] = b"x"
    assert views(server)[0] == 1
    del view
    client.version()
    assert views(server)[0] == 0


def test_a_value_in_pieces_is_a_list(server: Server, client: Client, key: str) -> None:
    """The view of a value in pieces is a list, also for the largest value, whose answer is a long line. A reference to
    one piece keeps the item."""
    for length in (600_000, 7 * MB):
        value = os.urandom(length)
        client.set(key, value)
        pieces = client.get_view(key)
        assert len(pieces) == -(-length // pieces[0].nbytes) and all(is_pinned(piece) for piece in pieces)
        assert b"".join(pieces) == value
        last = pieces.pop()
        assert views(server)[0] == 1
        client.delete(key)
        del pieces
        client.version()
        assert views(server)[0] == 1 and last == value[-last.nbytes :]
        del last
        client.version()
        assert views(server)[0] == 0


def test_what_is_seen_can_be_stored(client: Client, key: str) -> None:
    """A seen value can be stored by each storage command, in one piece or in several."""
    for length in (1000, 600_000):
        value = os.urandom(length)
        client.set(key, value)
        seen = client.get_view(key)
        other = f"{key}-other"
        assert client.set(other, seen) and client.get(other) == value
        assert client.append(other, seen) and client.prepend(other, seen) and client.get(other) == value * 3
        assert client.set_many({other: seen}) == [] and client.get(other) == value
        client.delete(other)
        assert client.meta_set(other, seen) and client.get(other) == value
        client.delete(other)
        with client.pipeline() as pipeline:
            pipeline.set(other, seen)
        assert pipeline.results == [True] and client.get(other) == value
        assert client.set(key, seen) and client.get(key) == value


def test_more_pieces_than_a_reply_has_room_for(rmemcached_server: ServerFactory, key: str) -> None:
    """A value in more pieces than a reply, or a view, has room for is still seen."""
    options = "rdma_direct,slab_chunk_max=16,rdma_view_limit=200"
    server = rmemcached_server("-t", "1", "-m", "256", "-I", "40m", "-o", options)
    with Client(server.address, **OPTIONS) as client:
        block = os.urandom(15_000)
        for length, least in ((900_000, 50), (33_000_000, 2000)):
            value = (block * 2200)[:length]
            client.set(key, value)
            pieces = client.get_view(key)
            assert len(pieces) > least and b"".join(pieces) == value
        client.set(key, block * 2300)
        view = client.get_view(key)
        assert not isinstance(view, list) and not is_pinned(view) and view == block * 2300


def test_misses(server: Server, client: Client, key: str) -> None:
    assert client.get_view(key) is None
    assert client.get_view(key, b"nothing") == b"nothing"
    client.set(key, b"value", expire=-1)
    assert client.get_view(key) is None
    assert views(server)[0] == 0


def test_what_a_view_shows_does_not_change(server: Server, client: Client, key: str) -> None:
    """A view keeps its content, whatever becomes of the item."""
    client.set(key, b"12345")
    changes: list[Callable[[], object]] = [
        lambda: client.incr(key, 1),
        lambda: client.decr(key, 1),
        lambda: client.append(key, b"678"),
        lambda: client.prepend(key, b"678"),
        lambda: client.set(key, b"54321"),
        lambda: client.touch(key, 100),
        lambda: client.delete(key),
        lambda: client.flush_all(),
    ]
    for change in changes:
        client.set(key, b"12345")
        view = client.get_view(key)
        change()
        for number in range(20):
            client.set(f"{key}-{number}", b"6" * 5)
        assert view == b"12345" and is_pinned(view)
    client.set(key, b"7")
    seen = [client.get_view(key) for _ in range(3)]
    assert client.incr(key, 1) == 8
    assert [bytes(view) for view in seen] == [b"7"] * 3
    assert client.get(key) == b"8" == client.get_view(key)


def test_a_view_of_what_is_seen_already_asks_nobody(server: Server, client: Client, key: str) -> None:
    """A view of a value seen now or a moment ago asks nobody. For a value stored since, the client asks."""
    value = os.urandom(2 * MB)
    client.set(key, value, noreply=False)
    client.set(f"{key}-small", b"value")
    names = [key, f"{key}-small"]
    seen = [client.get_view(name) for name in names]
    with suspended(server.pid):
        again = [client.get_view(name) for name in names]
        assert b"".join(again[0]) == value and again[1] == b"value"
        del again, seen
        again = [client.get_view(name) for name in names]
        assert b"".join(again[0]) == value and again[1] == b"value" and is_pinned(again[1])
        del again[0][1:]
        again[0] += client.get_view(key)
        assert again[0][0] == again[0][1]
    assert views(server)[0] == 2
    for number in range(1000):
        client.set(names[1], b"%d" % number, noreply=number % 2 == 1)
        view = client.get_view(names[1])
        assert view == b"%d" % number == client.get_view(names[1])
    assert again[1] == b"value"
    client.delete(names[1])
    assert client.get_view(names[1]) is None and view == b"999"
    del again, view
    client.version()
    assert views(server)[0] == 0


# --- views as Python objects ---


def test_other_objects_of_the_same_memory_keep_it(server: Server, client: Client, key: str) -> None:
    numpy = pytest.importorskip("numpy")
    numbers = array.array("d", range(1000))
    client.set(key, numbers)
    view = client.get_view(key)
    there = [numpy.frombuffer(view, dtype="d"), view[8:16], view.cast("d"), memoryview(view.obj)]
    del view
    client.set(key, b"other")
    assert there[0].sum() == sum(numbers) and not there[0].flags.writeable
    assert there[1].cast("d")[0] == there[2][1] == 1.0
    while there:
        assert views(server)[0] == 1
        del there[0]
        client.version()
    assert views(server)[0] == 0


def test_serdes(server: Server, key: str) -> None:
    """Serdes get a memoryview, and the flags."""

    class Views:
        def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
            return value, 7

        def deserialize(self, key: Any, value: Any, flags: int) -> Any:
            return key, value, flags

    with Client(server.address, **OPTIONS, serde=Views(), key_prefix="app:") as client:
        client.set(key, b"small")
        found = client.get_view(key)
        assert found == (key, b"small", 7) and is_pinned(found[1])
        large = os.urandom(2 * MB)
        client.set(key, large)
        del found
        assert client.get_view(key) == (key, large, 7)
        client.version()
        assert views(server)[0] == 0


@pytest.mark.without_direct("it is about a daemon without the option")
@pytest.mark.parametrize("transport", ["tcp", "soft_iw", "soft_shm"])
def test_elsewhere_it_is_a_copy(rmemcached_server: ServerFactory, server: Server, key: str, transport: str) -> None:
    """On other transports, and with the option off, the view is a copy."""
    for one in [rmemcached_server()] + [server] * (transport != "soft_shm"):
        with Client(one.address, **OPTIONS | {"transport": transport}) as client:
            for value in (b"", b"value", os.urandom(3 * MB if one is server else 600_000)):
                client.set(key, value)
                view = client.get_view(key)
                assert view == value and view.readonly and not isinstance(view.obj, PinnedMemory)
            assert client.get_view(f"{key}-nothing", 5) == 5


def test_a_request_that_cannot_be_made(client: Client) -> None:
    for wrong in ("a b", "x" * 251, b"\n"):
        with pytest.raises(MemcacheIllegalInputError):
            client.get_view(wrong)
    with pytest.raises(TypeError, match="get_view"):
        PinnedMemory()


# --- releases ---


def test_a_get_that_asks_nobody_tells_of_views_that_have_gone(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    client.set(f"{key}-seen", b"value")
    seen = client.get_view(f"{key}-seen")
    reads = (
        lambda: client.get(key),
        lambda: client.get_many([key])[key],
        lambda: client.get_view(f"{key}-seen"),
        lambda: client.get_into(key, bytearray(5)) and b"value",
    )
    for read in reads:
        view = client.get_view(key)
        assert views(server)[0] == 2
        view.release()
        deadline = time.monotonic() + TIMEOUT
        while views(server)[0] == 2:
            assert read() == b"value"
            assert time.monotonic() < deadline
    seen.release()


def test_calls_that_ask_nothing_take_it_along(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    for ask in (lambda: client.buffer(100), lambda: client.register(bytearray(100))):
        view = client.get_view(key)
        view.release()
        with ask():
            assert views(server)[0] == 0


def test_many_views_that_go_at_once(server: Server, client: Client, key: str) -> None:
    names = [f"{key}-{number}" for number in range(1500)]
    client.set_many({name: name.encode() for name in names})
    seen = [client.get_view(name) for name in names[:1000]]
    assert views(server)[0] == 1000 and all(map(is_pinned, seen))
    del seen[::2]
    client.version()
    assert views(server)[0] == 500
    seen += [client.get_view(name) for name in names[1000:]]
    assert views(server)[0] == 1000
    assert {bytes(view) for view in seen} == {name.encode() for name in [*names[1:1000:2], *names[1000:]]}
    seen.clear()
    client.version()
    assert views(server)[0] == 0


def test_threads(server: Server, client: Client, key: str) -> None:
    """Each thread gives back items that other threads asked for."""
    names = [f"{key}-{number}" for number in range(50)]
    client.set_many({name: name.encode() * 100 for name in names})
    handed: list[memoryview] = []

    def look(start: int) -> None:
        for number in range(400):
            name = names[(start + number) % 50]
            handed.append(client.get_view(name))
            assert handed[-1].nbytes
            if number % 3:
                handed.pop(0)
            if number % 10 == 0:
                client.set(name, name.encode() * 100, noreply=True)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(look, range(6)))
    assert {bytes(view) for view in handed} <= {name.encode() * 100 for name in names}
    assert all(is_pinned(view) for view in handed)
    handed.clear()
    client.version()
    until(server, 0)


def test_views_of_threads_that_have_ended(server: Server, client: Client, key: str) -> None:
    """The views of ended threads end, too: any call on a further connection gives their items back."""
    names = [f"{key}-{number}" for number in range(4)]
    client.set_many(dict.fromkeys(names, b"value"))
    barrier = threading.Barrier(4)
    found: list[memoryview] = []

    def look(name: str) -> None:
        barrier.wait(TIMEOUT)
        found.append(client.get_view(name))

    threads = [threading.Thread(target=look, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert views(server)[0] == 4
    found.clear()
    client.version()
    until(server, 0)


# --- the end of connections ---


def test_views_keep_the_connection_when_the_client_is_closed(server: Server, key: str) -> None:
    client = Client(server.address, **OPTIONS)
    client.set(key, b"value")
    client.set(f"{key}-2", b"value")
    first, second = client.get_view(key), client.get_view(f"{key}-2")
    client.close()
    client.close()
    assert client.connections == 0
    assert client.set(key, b"other") and is_pinned(first) and first == second == b"value"
    del client
    assert views(server)[0] == 2 and is_pinned(second)
    del first
    assert is_pinned(second) and views(server)[0] == 2
    del second
    until(server, 0)


def test_a_client_that_is_killed(server: Server, client: Client, key: str) -> None:
    client.set_many({f"{key}{number}": b"value" for number in range(100)})
    client.set(f"{key}-large", bytes(3 * MB))
    script = (
        "import sys, time\n"
        "from rmemcached.client import Client\n"
        "client = Client(('127.0.0.1', int(sys.argv[1])), transport='soft_shm', timeout=20)\n"
        "seen = [client.get_view(sys.argv[2] + str(number)) for number in range(100)]\n"
        "seen += client.get_view(sys.argv[2] + '-large')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(server.port), key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert views(server)[0] == 101
        process.kill()
        until(server, 0, 1.0)


def test_a_daemon_that_is_killed(rmemcached_server: ServerFactory, key: str) -> None:
    """A view keeps its content after the daemon's death."""
    server = rmemcached_server("-m", "64", *FLAGS)
    with Client(server.address, **OPTIONS) as client:
        value = os.urandom(500_000)
        client.set(key, value)
        view = client.get_view(key)
        server.kill()
        assert not view.obj.pinned and "not pinned" in repr(view.obj)
        assert view == value
        with pytest.raises((MemcacheUnexpectedCloseError, OSError)):
            client.get_view(key)
        assert view == value


def test_a_connection_that_is_lost(server: Server, client: Client, key: str) -> None:
    """After a lost connection the daemon keeps no item, the view reports its loss, and can still be read."""
    client.set(key, b"value")
    view = client.get_view(key)
    assert view.obj.pinned
    sock = client.sock
    assert sock is not None
    sock.shutdown(socket.SHUT_RDWR)
    assert not view.obj.pinned
    until(server, 0)
    assert len(bytes(view)) == 5
    del view
    with pytest.raises((MemcacheUnexpectedCloseError, OSError)):
        client.version()
    assert client.get_view(key) == b"value"


def test_a_call_that_fails_leaves_views_alone(server: Server, key: str) -> None:
    """The Client drops the connection of a failed call, and views keep the connection.

    A connection by which the daemon could still reach the caller's memory is not kept.
    """
    with Client(server.address, **OPTIONS | {"timeout": 0.2}) as client:
        client.set(key, b"value")
        view = client.get_view(key)
        with suspended(server.pid), pytest.raises(TimeoutError):
            client.version()
        client.set(key, b"other")
        assert view == b"value" and is_pinned(view)
        del view
        until(server, 0)
        client.set(key, bytes(100_000))
        view = client.get_view(key)
        memory = client.buffer(100_000)
        with suspended(server.pid), pytest.raises(TimeoutError):
            client.set(key, memory, noreply=False)
        assert not is_pinned(view) and view == bytes(100_000)
        until(server, 0)
        memory.close()


def test_a_fork(server: Server, client: Client, key: str) -> None:
    """The child can read its parent's views. The parent keeps the items of views released by the child."""
    client.set(key, b"value")
    view = client.get_view(key)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert view == b"value" and not view.obj.pinned
            del view
            assert client.get_view(key) == b"value"
            client.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    until(server, 1)
    assert view == b"value" and is_pinned(view)


def test_idle_timeout(rmemcached_server: ServerFactory, key: str) -> None:
    """A silent client with views is not idle. Its time counts again after its last view."""
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,debug_commands,idle_timeout=10")
    with Client(server.address, transport="tcp", timeout=TIMEOUT) as control:

        def step() -> None:
            for _ in range(4):
                assert control.raw_command("debugtime 8") == b"OK"
                control.version()

        assert control.raw_command("debugtime p") == b"OK"
        client = Client(server.address, **OPTIONS)
        client.set(key, b"value")
        view = client.get_view(key)
        step()
        assert is_pinned(view) and control.stats()[b"idle_kicks"] == 0
        view.release()
        client.version()
        deadline = time.monotonic() + TIMEOUT
        while control.stats()[b"idle_kicks"] == 0:
            assert time.monotonic() < deadline
            step()
        client.close()


# --- the commands rdma_view and rdma_release ---


def test_commands_that_make_no_sense(server: Server, client: Client, key: str) -> None:
    """Malformed commands give back nothing but the client's own items."""
    client.set(key, b"value")
    for line in ("rdma_view", "rdma_view a b", "rdma_view " + "x" * 251):
        with pytest.raises(MemcacheClientError, match="bad command line format"):
            client.raw_command(line)
    junk = ("", " ", "x", "-1", "1 2 3", "99999999999999999999", "4294967296", "0x", "x0", " 1  5 " * 300)
    for ids, kept in [*((ids, 1) for ids in junk), ("0", 0), (" 5 0  0 x", 0)]:
        # After each of these commands the Client gives up its connection, and the daemon frees its kept items.
        until(server, 0)
        text = client.raw_command(f"rdma_view {key}\r\nrdma_release {ids}\r\nstats rdma", "END\r\n")
        assert text.startswith(b"VIEW 0 0 ") and b"STAT rdma_views %d\r\n" % kept in text, ids


@pytest.mark.without_direct("it is about a daemon without the option")
def test_only_with_the_memory(server: Server, rmemcached_server: ServerFactory, key: str) -> None:
    off = rmemcached_server()
    for line in (b"rdma_view a\r\n", b"rdma_release 0\r\n"):
        with off.connect() as plain, plain.makefile("rb") as answers:
            plain.sendall(line)
            assert answers.readline() == b"ERROR\r\n"
    with server.connect() as plain, plain.makefile("rb") as answers:
        plain.sendall(b"set a 0 0 1\r\n1\r\nrdma_release 0\r\nrdma_view a\r\n")
        assert answers.readline() == b"STORED\r\n"
        assert answers.readline() == b"CLIENT_ERROR rdma: this client was not given the items' memory\r\n"
    refused = pytest.raises(MemcacheClientError, match="was not given the items' memory")
    with Client(server.address, **OPTIONS | {"transport": "soft_iw"}) as client, refused:
        client.raw_command("rdma_view a")


def test_statistics(server: Server, client: Client, key: str) -> None:
    """A view counts as a get."""
    names = (b"cmd_get", b"get_hits", b"get_misses")
    before = [client.stats()[name] for name in names]
    client.set(key, b"value")
    client.get_view(key)
    client.get_view(f"{key}-nothing")
    assert [client.stats()[name] - old for name, old in zip(names, before, strict=True)] == [2, 1, 1]


class MemoryServer(ServerByHand):
    """A server whose client gets a store's memory."""

    def take_stream(self) -> None:
        self.store = Store(maxbytes=64 * MB, direct=True)
        stream, _ = self.shm.accept()
        assert stream.recv(36, socket.MSG_WAITALL).startswith(b"SHM ID Req Frame")
        socket.send_fds(stream, [b"S"], self.store.direct_fds())
        stream.sendall(b"HM ID Rep Frame")
        stream.setblocking(False)
        self.qp.attach(stream)

    def close(self) -> None:
        super().close()
        # The thread that made the store closes it: the store holds a mutex locked for its clients, and only the thread
        # that locked the mutex can unlock it.
        self.store.close()


@pytest.mark.parametrize(
    "line",
    [
        b"VIEW",
        b"VIEW ",
        b"VIEW 0 0 x 5 %x:5",
        b"VIEW 0 0  5 %x:5",
        b"VIEW 0 0 fff8 5 %x:2 %x:4",
        b"VIEW 0 0 fff8 5",
        b"VIEW 0 0 fff8 5 ",
        b"VIEW 0 0 fff8 5 %x",
        b"VIEW 0 0 fff8 5 %x:",
        b"VIEW 0 0 fff8 5 %x:4",
        b"VIEW 0 0 fff8 5 %x:6",
        b"VIEW 0 0 fff8 5 %x:5 ",
        b"VIEW 0 0 fff8 5 %x:5 %x:0",
        b"VIEW 0 0 fff8 0 %x:5",
        b"VIEW 0 0 fff8 5  %x:5",
        b"VIEW -1 0 fff8 5 %x:5",
        b"VIEW 4294967296 0 fff8 5 %x:5",
        b"VIEW 0 4294967296 fff8 5 %x:5",
        b"VIEW 0 0 fff8 5 0:5",
        b"VIEW 0 0 fff8 5 fffffffffffffff:5",
        b"VIEW 0 0 fff8 5 ffffffffffffffffff:5",
        b"VIEW 0 0 fff8 1152921504606846975 %x:fffffffffffffff",
        b"VALUE a 0 5",
        b"OK",
    ],
    ids=repr,
)
def test_places_are_checked_before_they_are_seen(line: bytes) -> None:
    """The client checks the places in answers of a broken or hostile server."""
    server = MemoryServer("soft_shm")
    with server, ThreadPoolExecutor(1) as threads:
        client = Client(server.address, transport="soft_shm", timeout=TIMEOUT)
        with client:
            view = threads.submit(client.get_view, b"key")
            server.accept()
            server.wait(lambda: server.inbox.endswith(b"rdma_view key\r\n"))
            length = sum(os.fstat(fd).st_size for fd in server.store.direct_fds())
            server.send(DATA, line.replace(b"%x", b"%x" % (length - 4096)) + b"\r\n")
            with pytest.raises(MemcacheUnknownError):
                view.result()


def test_a_place_at_the_very_end_is_seen() -> None:
    """A place that ends with the memory is valid, unlike the places of the test above."""
    server = MemoryServer("soft_shm")
    with server, ThreadPoolExecutor(1) as threads:
        client = Client(server.address, transport="soft_shm", timeout=TIMEOUT)
        view = threads.submit(client.get_view, b"key")
        server.accept()
        server.wait(lambda: server.inbox.endswith(b"rdma_view key\r\n"))
        length = sum(os.fstat(fd).st_size for fd in server.store.direct_fds())
        server.send(DATA, b"VIEW 7 0 fff8 5 %x:5\r\n" % (length - 5))
        assert view.result() == bytes(5)
        del view
        version = threads.submit(client.version)
        server.wait(lambda: server.inbox.endswith(b"rdma_release 7\r\nversion\r\n"))
        server.send(DATA, b"VERSION 1\r\n")
        assert version.result() == b"1"
        client.close()


def test_nothing_is_mapped_for_long(server: Server, key: str) -> None:
    """The memory is unmapped when its last view goes."""

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:rmemcached items")

    before = mappings()
    client = Client(server.address, **OPTIONS)
    client.set(key, b"value")
    view = client.get_view(key)
    client.close()
    assert mappings() == before + 1 and view == b"value"
    del view
    assert mappings() == before

"""Direct reads (docs/direct-reads.md): their values, the gets that ask after all, and the reports to the daemon."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resident import mapped_items
from servers import Server
from suspended import suspended

from rmemcached.client import Client, ClusterClient, MemcacheClientError, MemcacheUnexpectedCloseError

ServerFactory = Callable[..., Server]
TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "transport": "soft_shm"}
FLAGS = ("-t", "2", "-o", "rdma_direct,no_huge_pages")  # without huge pages only written pages get memory


@pytest.fixture(scope="module")
def server(module_server: ServerFactory) -> Server:
    return module_server("-m", "256", "-I", "8m", *FLAGS)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, **OPTIONS) as made:
        made.version()
        yield made


def direct(client: Client) -> dict[str, int]:
    """The daemon's statistics of direct reads, once the client has reported all hits."""
    client.close()
    return {
        name.decode(): int(value)
        for name, value in client.stats().items()
        if name.startswith(b"direct_") or name in (b"cmd_get", b"get_hits", b"get_misses")
    }


def test_nobody_is_asked(server: Server, client: Client, key: str) -> None:
    values = {f"{key}-{length}": os.urandom(length) for length in (0, 1, 100, 5000, 100_000, 3_000_000)}
    for name, value in values.items():
        client.set(name, value)
    with Client(server.address, transport="tcp", timeout=TIMEOUT) as asking:
        numbers = {name: asking.gets(name)[1] for name in values}
    into = {name: bytearray(len(value) + 10) for name, value in values.items()}
    with suspended(server.pid):
        for name, value in values.items():
            assert client.get(name) == value
            assert client.get(name.encode()) == value
            view = client.get(name, copy=False)
            assert (view, type(view), view.readonly) == (value, memoryview, True)
            assert client.gets(name) == (value, numbers[name])
            assert client.get_into(name, into[name], 10) == len(value)
            assert into[name] == bytes(10) + value
        assert client.get_many(values) == values
        assert client.gets_many(values) == {name: (values[name], numbers[name]) for name in values}
        assert client.get_many_into(into.items()) == [len(value) for value in values.values()]
        assert all(into[name].startswith(value) for name, value in values.items())
    nothing = f"{key}-nothing"
    assert client.get(nothing) is None
    assert client.gets(nothing, 1, 2) == (1, 2)
    assert client.get_into(nothing, bytearray(5), 0, 3) == 3
    assert client.get_many([*values, nothing]) == values
    assert client.gets_many([nothing, f"{key}-1"]) == {f"{key}-1": (values[f"{key}-1"], numbers[f"{key}-1"])}
    assert client.get_many_into([(nothing, bytearray(9)), (f"{key}-1", bytearray(9))]) == [None, 1]


def test_values_that_do_not_fit(server: Server, client: Client, key: str) -> None:
    """Only values that fit their buffers are written."""
    client.set_many({key: b"value", f"{key}-2": b"other"})
    short, enough = bytearray(4), bytearray(5)
    with suspended(server.pid):
        with pytest.raises(ValueError, match=f"the value of '{key}' has 5 bytes, and the buffer 4"):
            client.get_into(key, short)
        with pytest.raises(ValueError, match=f"the value of '{key}' has 5 bytes, and the buffer 4"):
            client.get_many_into([(key, short), (f"{key}-2", enough)])
        with pytest.raises(BufferError):
            client.get_into(key, b"     ")
    assert (short, enough) == (bytearray(4), bytearray(b"other"))
    # Long values are copied together, and each buffer is checked by itself.
    values = {f"{key}-{number}": os.urandom(100_000 + number) for number in range(3)}
    client.set_many(values)
    into = [bytearray(100_010), bytearray(100_000), bytearray(100_002)]
    with suspended(server.pid), pytest.raises(ValueError, match="has 100001 bytes, and the buffer 100000"):
        client.get_many_into(zip(values, into, strict=True))
    assert into == [values[f"{key}-0"] + bytes(10), bytes(100_000), values[f"{key}-2"]]


def test_a_signal_ends_a_long_call(client: Client, key: str) -> None:
    """A signal ends a get of some GB before all is copied."""

    class Alarm(BaseException):
        pass

    def ring(number: int, frame: object) -> None:
        raise Alarm

    size = 7_000_000
    client.set(key, b"x" * size)
    into, last = bytearray(size), bytearray(size)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Alarm):
            client.get_many_into([(key, into)] * 500 + [(key, last)])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert into == b"x" * size and last == bytes(size)
    assert client.get_into(key, last) == size


def test_without_cas(rmemcached_server: ServerFactory, key: str) -> None:
    """With -C the daemon has no CAS numbers, and gets gives 0."""
    server = rmemcached_server("-C", *FLAGS)
    with Client(server.address, **OPTIONS) as client, Client(server.address, transport="tcp", timeout=20) as asking:
        client.set(key, b"value")
        with suspended(server.pid):
            found = client.gets(key)
        assert found == asking.gets(key) == (b"value", b"0")


def test_what_is_asked_for(server: Server, client: Client, key: str) -> None:
    """gat, pipelines and meta commands ask the daemon, and so does the get of an invalidated key."""
    client.set(key, b"value")
    before = direct(client)
    assert client.gat(key, 100) == b"value"
    assert client.gats(key, 100)[0] == b"value"
    assert client.gat_many([key], 100) == {key: b"value"}
    with client.pipeline() as pipeline:
        pipeline.get(key)
    assert pipeline.results == [b"value"]
    found = client.meta_get(key)
    assert found is not None and found.value == b"value"
    client.invalidate(key, 100)
    client.get(key)
    assert direct(client)["direct_hits"] == before["direct_hits"]


def test_serdes_and_prefixes(server: Server, key: str) -> None:
    class Pickle:
        def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
            return pickle.dumps((key, value)), 7

        def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
            assert flags == 7
            return pickle.loads(value)

    with Client(server.address, **OPTIONS, serde=Pickle(), key_prefix="app:", allow_unicode_keys=True) as client:
        names = [f"é{key}", f"{key}-2"]
        for name in names:
            client.set(name, {"value": name})
        with suspended(server.pid):
            assert client.get(names[0]) == (names[0], {"value": names[0]})
            assert client.get_many(names) == {name: (name, {"value": name}) for name in names}
        assert client.get_many([*names, "nothing"]) == {name: (name, {"value": name}) for name in names}
        assert list(client.get_many(["nothing", *reversed(names)])) == names[::-1]


def test_a_client_reads_what_it_has_written(server: Server, client: Client, key: str) -> None:
    """A client reads its own writes, also without having waited for the answer."""
    for number in range(2000):
        client.set(key, b"%d" % number, noreply=number % 2 == 1)
        assert client.get(key) == b"%d" % number
        if number % 7 == 0:
            client.delete(key, noreply=True)
            assert client.get_many([key]) == {}


def test_commands_of_others_without_answers(server: Server, client: Client, key: str) -> None:
    """A thread reads without asking while sets of other threads have no answers yet."""
    threads = [threading.Thread(target=client.set, args=(f"{key}-{n}", b"v", 0, True)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.set(key, b"value")
    with suspended(server.pid):
        assert client.get(key) == b"value"


def two_processes(script: str, server: Server, key: str) -> list[subprocess.Popen[str]]:
    """Starts two processes of the script, with the daemon's port and the key as arguments."""
    arguments = [sys.executable, "-c", script, str(server.port), key]
    return [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]


def test_every_client_reads_what_one_was_told(server: Server, client: Client, key: str) -> None:
    """Several processes never see a rising number fall."""
    client.set(key, b"0" * 10)
    script = (
        "import sys\n"
        "from rmemcached.client import Client\n"
        "with Client(('127.0.0.1', int(sys.argv[1])), transport='soft_shm', timeout=20) as client:\n"
        "    seen = told = 0\n"
        "    while seen < 20000:\n"
        "        now = int(client.get(sys.argv[2]))\n"
        "        assert now >= seen, (now, seen)\n"
        "        told += now != seen\n"
        "        seen = now\n"
        "    print(told)\n"
    )
    readers = two_processes(script, server, key)
    for number in range(1, 20_001):
        if number % 3:
            assert client.incr(key, 1) == number
        else:
            client.set(key, b"%010d" % number)
        if number % 100 == 0:
            assert int(client.get(key)) == number
    for reader in readers:
        output, _ = reader.communicate(timeout=60)
        assert reader.returncode == 0
        assert int(output) > 0


def test_numbers_are_never_torn(server: Server, client: Client, key: str) -> None:
    """incr and decr write in place, from all ones to all twos and back, and no reader sees a mixture."""
    low, high = b"1" * 19, b"2" * 19
    client.set(key, low)
    script = (
        "import sys\n"
        "from rmemcached.client import Client\n"
        "with Client(('127.0.0.1', int(sys.argv[1])), transport='soft_shm', timeout=20) as client:\n"
        "    seen = {client.get(sys.argv[2])}\n"
        "    print('begun', flush=True)\n"
        "    while b'over' not in seen:\n"
        "        seen.add(client.get(sys.argv[2]))\n"
        "print(sorted(seen))\n"
    )
    readers = two_processes(script, server, key)
    for reader in readers:
        assert reader.stdout is not None and reader.stdout.readline() == "begun\n"
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        client.incr(key, int(low))
        client.decr(key, int(low))
    client.set(key, b"over")
    for reader in readers:
        assert reader.communicate(timeout=60)[0] == f"{[low, high, b'over']}\n"


def test_cas_of_several_processes(server: Server, client: Client, key: str) -> None:
    """No increment of two processes is lost: value and CAS value of a direct `gets` belong together."""
    client.set(key, b"0")
    script = (
        "import sys\n"
        "from rmemcached.client import Client\n"
        "with Client(('127.0.0.1', int(sys.argv[1])), transport='soft_shm', timeout=20) as client:\n"
        "    for round in range(1000):\n"
        "        done = False\n"
        "        while not done:\n"
        "            value, cas = client.gets(sys.argv[2])\n"
        "            done = client.cas(sys.argv[2], b'%d' % (int(value) + 1), cas)\n"
        "        if round % 3 == 0:\n"
        "            client.incr(sys.argv[2], 1)\n"
    )
    for process in two_processes(script, server, key):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert client.get(key) == b"2668"


def test_values_that_change_while_they_are_copied(server: Server, client: Client, key: str) -> None:
    """The caller's memory gets one of the changing values as a whole."""
    size = 200_000
    script = (
        "import sys, time\n"
        "from rmemcached.client import Client\n"
        "with Client(('127.0.0.1', int(sys.argv[1])), transport='soft_shm', timeout=20) as client:\n"
        "    end = time.monotonic() + 2\n"
        "    while time.monotonic() < end:\n"
        "        for letter in b'abc':\n"
        f"            client.set(sys.argv[2], bytes([letter]) * {size})\n"
    )
    client.set(key, b"a" * size)
    writers = two_processes(script, server, key)
    into, second = bytearray(size), bytearray(size)
    seen = set()
    while any(writer.poll() is None for writer in writers):
        assert client.get_into(key, into) == size
        assert into == into[:1] * size
        seen.add(into[0])
        assert client.get_many_into([(key, into), (key, second)]) == [size, size]
        assert into == into[:1] * size
        assert second == second[:1] * size
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen == set(b"abc")


def test_threads_share_a_client(client: Client, key: str) -> None:
    wrong: list[Any] = []

    def work(place: int) -> None:
        name = f"{key}-{place}"
        for number in range(300):
            value = b"%d-" % place * (1 + number % 500)
            client.set(name, value)
            if (found := client.get(name)) != value:
                wrong.append(found)
            client.get_many([f"{key}-{other}" for other in range(8)])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- expiry, and the daemon's clock ---


def test_what_expires_is_not_read_any_more(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value", expire=2)
    began = time.monotonic()
    while client.get(key) == b"value":
        assert time.monotonic() - began < 4
    # The daemon counts whole seconds from another moment, so the item may expire early, but not within half a second.
    assert time.monotonic() - began > 0.5
    client.set(key, b"value")
    client.touch(key, -1)
    assert client.get(key) is None


def test_flush_all(rmemcached_server: ServerFactory, key: str) -> None:
    server = rmemcached_server(*FLAGS)
    with Client(server.address, **OPTIONS) as client, Client(server.address, **OPTIONS) as other:
        for _ in range(20):
            client.set(key, b"value")
            assert other.get(key) == b"value"
            client.flush_all()
            assert other.get(key) is None


def test_a_daemon_that_stands_still_is_asked(rmemcached_server: ServerFactory, key: str) -> None:
    """The client asks a daemon that stands still: a key may have expired meanwhile."""
    server = rmemcached_server(*FLAGS)
    with Client(server.address, **{**OPTIONS, "timeout": 0.2}) as client:
        client.set(key, b"value")
        with suspended(server.pid):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                while time.monotonic() - began < 10:
                    assert client.get(key) == b"value"
            assert 0.9 < time.monotonic() - began < 5
        assert client.get(key) == b"value"


def test_a_client_that_was_idle_meanwhile_asks(rmemcached_server: ServerFactory, key: str) -> None:
    """A client that was idle while the daemon's clock stood still notices this at its next get, and asks."""
    server = rmemcached_server(*FLAGS)
    with Client(server.address, **{**OPTIONS, "timeout": 0.2}) as client:
        client.set(key, b"value", expire=2)
        assert client.get(key) == b"value"
        # The daemon's clock moves once more, then stands still for longer than clients tolerate.
        time.sleep(1.2)
        with suspended(server.pid):
            time.sleep(2.5)
            with pytest.raises(TimeoutError):
                client.get(key)


# --- ends of daemons, connections and processes ---


@pytest.mark.parametrize("flags", [FLAGS, ()])
def test_another_daemon_in_its_place_that_came_by_a_timeout(
    rmemcached_server: ServerFactory, tmp_path: Path, flags: tuple[str, ...], key: str
) -> None:
    """Of two live daemons the client reads the daemon that answers, and reports hits to no other."""
    path = tmp_path / "socket"
    first = rmemcached_server(*FLAGS, path=str(path))
    with Client(first.address, **{**OPTIONS, "timeout": 1.0}) as client:
        client.set(key, b"old")
        assert client.get(key) == b"old"
        path.unlink()
        rmemcached_server(*flags, path=str(path))
        with suspended(first.pid), pytest.raises(TimeoutError):
            client.set(key, b"lost")
        client.set(key, b"new")
        assert client.get(key) == b"new"
        assert client.gets(key)[0] == b"new"


def test_without_a_connection_none_is_made(rmemcached_server: ServerFactory, key: str) -> None:
    """A get finds its value without a connection, and makes no connection for the report of the hit."""
    server = rmemcached_server(*FLAGS)
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        assert client.get(key) == b"value"
        client.quit()
        client.get(key)
        with suspended(server.pid):
            end = time.monotonic() + 1
            while time.monotonic() < end:
                assert client.get(key) == b"value"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_daemon_that_has_ended(rmemcached_server: ServerFactory, how: str, key: str) -> None:
    server = rmemcached_server(*FLAGS)
    before = mappings()
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"old")
        assert client.get(key) == b"old"
        getattr(server, how)()
        with pytest.raises((ConnectionError, MemcacheUnexpectedCloseError)):
            client.get(key)
        assert mappings() == before
        # A new daemon takes its place.
        with Server(server.command, server.port):
            assert client.get(key) is None
            client.set(key, b"new")
            assert client.get(key) == b"new"


def test_a_forked_child_reads(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    assert client.get(key) == b"value"
    child = os.fork()
    if child == 0:
        try:
            good = client.get(key) == b"value" and client.get(key) == b"value" and client.set(key, b"other")
            os._exit(0 if good and client.get(key) == b"other" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get(key) == b"other"


def test_a_cluster(rmemcached_server: ServerFactory, key: str) -> None:
    servers = [rmemcached_server(*FLAGS) for _ in range(2)]
    values = {f"{key}-{number}": b"%d" % number for number in range(50)}
    with ClusterClient([server.address for server in servers], **OPTIONS) as cluster:
        cluster.set_many(values)
        with suspended(servers[0].pid), suspended(servers[1].pid):
            assert cluster.get_many(values) == values
            assert {name: found[0] for name, found in cluster.gets_many(values).items()} == values
            assert cluster.get(f"{key}-0") == b"0"
        assert cluster.get_many([*values, "nothing"]) == values
        # The get comes after the thread's earlier sets without an answer.
        for number in range(50):
            cluster.set_many(dict.fromkeys(values, b"%d" % number), noreply=True)
            assert cluster.get_many(values) == dict.fromkeys(values, b"%d" % number)
        servers[0].kill()
        with pytest.raises((ConnectionError, MemcacheUnexpectedCloseError)):
            cluster.get_many(values)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("rmemcached items")


def test_nothing_is_left(server: Server) -> None:
    before = mappings(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with Client(server.address, **OPTIONS) as client:
            client.get("key")
            assert mappings() == before[0] + 1
    assert (mappings(), len(os.listdir("/proc/self/fd"))) == before


def test_memory_can_be_mapped_ahead(rmemcached_server: ServerFactory) -> None:
    """prefault() maps the daemon's memory, for a client with or without a connection, and repeatedly."""
    server = rmemcached_server("-m", "64", *FLAGS)
    values = {str(number): os.urandom(100_000) for number in range(200)}
    with Client(server.address, **OPTIONS) as writer:
        assert not writer.set_many(values)
    for connected in (False, True):
        before = mapped_items()
        with Client(server.address, **OPTIONS) as client:
            if connected:
                client.version()
            assert mapped_items() - before < 1 << 20
            mapped = client.prefault()
            assert 20_000_000 < mapped < 64 << 20
            # Nobody has touched the end of the last page of a class: this end is not mapped.
            assert mapped_items() - before > 19_000_000
            assert client.prefault() == mapped
            assert client.get_many(list(values)) == values
    for options in ({"transport": "tcp"}, {"transport": "soft_iw"}):
        with Client(server.address, **{**OPTIONS, **options}) as client:
            assert client.prefault() == 0
    server.stop()
    with Client(server.address, **OPTIONS) as client, pytest.raises(OSError, match="refused"):
        client.prefault()


def test_memory_is_mapped_ahead_at_any_time(rmemcached_server: ServerFactory) -> None:
    """prefault() maps the memory as of the call: behind commands without an answer, and of the present daemon."""
    server = rmemcached_server("-m", "64", *FLAGS)
    values = {str(number): os.urandom(100_000) for number in range(100)}
    with Client(server.address, **OPTIONS) as client:
        assert client.prefault() < 1 << 20
        assert not client.set_many(values)
        mapped = client.prefault()
        assert mapped > 10_000_000
        client.set("small", b"value", noreply=True)
        assert mapped <= client.prefault() <= mapped + 8192
        server.kill()
        with pytest.raises((ConnectionError, MemcacheUnexpectedCloseError)):
            client.prefault()
        with Server(server.command, server.port):
            assert client.prefault() < 1 << 20
            assert not client.set_many(values)
            assert client.prefault() > 10_000_000


# --- hits reported to the daemon ---


def test_hits_are_counted(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    before = direct(client)
    for _ in range(1000):
        client.get(key)
    after = direct(client)
    grown = {name: after[name] - before[name] for name in ("cmd_get", "get_hits", "direct_hits", "get_misses")}
    assert grown["cmd_get"] == grown["get_hits"] == 1000
    # `direct` made a new connection, whose first get may have asked the daemon.
    assert grown["direct_hits"] >= 999
    assert grown["get_misses"] == 0


def test_hits_are_told_before_the_next_request(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    assert client.get(key) == b"value"
    before = int(client.stats()[b"get_hits"])
    for round in range(1, 5):
        for _ in range(1000):
            client.get(key)
        assert int(client.stats()[b"get_hits"]) == before + 1000 * round


def test_calls_that_ask_nothing_take_hits_along(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    assert client.get(key) == b"value"
    with Client(server.address, transport="tcp", timeout=TIMEOUT) as asking:
        for ask in (lambda: client.buffer(100), lambda: client.register(bytearray(100))):
            client.version()
            before = int(asking.stats()[b"get_hits"])
            # A get asks the server while a set of its thread has no answer. version() waits for this set, so the gets
            # below read directly. Five hits are too few for a report of their own.
            client.set(f"{key}-2", b"value", noreply=True)
            client.version()
            for _ in range(5):
                client.get(key)
            with ask():
                pass
            # The line of hits has no answer, so the daemon may read the line after the other connection's `stats`.
            end = time.monotonic() + TIMEOUT
            while int(asking.stats()[b"get_hits"]) == before:
                assert time.monotonic() < end
            assert int(asking.stats()[b"get_hits"]) == before + 5


def test_hits_are_told_in_time(server: Server, client: Client, key: str) -> None:
    """A client that goes on reading reports its hits within two seconds."""
    client.set(key, b"value")
    before = direct(client)
    with Client(server.address, **OPTIONS) as other:
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            client.get(key)
            time.sleep(0.01)
        assert int(other.stats()[b"get_hits"]) - before["get_hits"] > 50


def test_all_of_a_call_are_named(client: Client, key: str) -> None:
    """Hits of all values are reported, beyond the limit of a line: eviction knows of each use."""
    values = {f"{key}-{number}": b"x" * (100 + number * 10) for number in range(200)}
    assert not client.set_many(values)
    into = [(name, bytearray(len(value))) for name, value in values.items()]
    assert client.get_many_into(into) == [len(value) for value in values.values()]
    client.close()
    with client.pipeline() as pipeline:
        for name in values:
            pipeline.meta_get(name, value=False, hit_before=True, bump=False)
    assert [found.hit_before for found in pipeline.results] == [True] * 200


def test_what_is_read_is_not_evicted(rmemcached_server: ServerFactory, key: str) -> None:
    server = rmemcached_server("-m", "8", *FLAGS)
    value = os.urandom(1000)
    with Client(server.address, **OPTIONS) as client:
        client.set(key, value)
        client.set(f"{key}-unread", value)
        for number in range(30_000):
            client.set(f"{key}-{number}", value)
            if number % 50 == 0:
                assert client.get(key) == value
        assert client.get(f"{key}-unread") is None


LINES = [
    b"rdma_hits",
    b"rdma_hits ",
    b"rdma_hits x",
    b"rdma_hits @:",
    b"rdma_hits 5",
    b"rdma_hits 999:1 -1:5 @1:2 @ffffffff:ffffffffffffffffffff",
    b"rdma_hits @0:0 " * 100,
    b"rdma_hits 1:18446744073709551615 1:1",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_lines_that_make_no_sense(rmemcached_server: ServerFactory, line: bytes) -> None:
    """Malformed lines get no answer and do nothing. Correct entries in them count."""
    server = rmemcached_server(*FLAGS)
    with Client(server.address, **OPTIONS) as client:
        text = client.raw_command(line + b"\r\nset a 0 0 1\r\n1\r\n" + line + b" noreply\r\nget a", "END\r\n")
        assert text == b"STORED\r\nVALUE a 0 1\r\n1\r\n"
    assert int(server.stats()["get_hits"]) == (3 if line.endswith(b" 1:1") else 1)


@pytest.mark.without_direct("it is about a daemon whose memory nobody reads")
def test_without_the_option_the_command_is_none(rmemcached_server: ServerFactory) -> None:
    with rmemcached_server().connect() as plain, plain.makefile("rb") as answers:
        plain.sendall(b"rdma_hits 1:1\r\n")
        assert answers.readline() == b"ERROR\r\n"


NOT_GIVEN = b"CLIENT_ERROR rdma: this client was not given the items' memory\r\n"


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_who_was_not_given_the_memory_tells_no_hits(rmemcached_server: ServerFactory, line: bytes) -> None:
    """Lines of hits on a socket, or another transport's queue pair, are refused and not counted, also with noreply."""
    server = rmemcached_server(*FLAGS)
    request = line + b"\r\nset a 0 0 1\r\n1\r\n" + line + b" noreply\r\nget a\r\n"
    with server.connect() as plain, plain.makefile("rb") as answers:
        plain.sendall(request)
        found = [answers.readline() for _ in range(6)]
        assert found == [NOT_GIVEN, b"STORED\r\n", NOT_GIVEN, b"VALUE a 0 1\r\n", b"1\r\n", b"END\r\n"]
    with Client(server.address, **OPTIONS | {"transport": "soft_iw"}) as client:
        with pytest.raises(MemcacheClientError, match="was not given the items' memory"):
            client.raw_command(line)
        assert client.get("a") == b"1"
    stats = server.stats()
    assert "direct_hits" not in stats and stats["get_hits"] == "2"


def test_hits_are_told_after_reconnects(server: Server, client: Client, key: str) -> None:
    """Each queue pair reports its hits, also those of threads that share the queue pair."""
    client.set(key, b"value")
    before = direct(client)["direct_hits"]
    for _ in range(3):
        client.version()
        threads = [threading.Thread(target=lambda: [client.get(key) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
    assert direct(client)["direct_hits"] == before + 1200


# --- the clients that may read directly ---


def test_only_who_knows_the_password(rmemcached_server: ServerFactory, tmp_path: Path, key: str) -> None:
    users = tmp_path / "users"
    users.write_text("user:secret\n")
    server = rmemcached_server("-Y", str(users), *FLAGS)
    before = mappings()
    wrong: dict[str, Any] = {"username": "user", "password": "wrong"}
    for options in (OPTIONS, OPTIONS | wrong):
        with Client(server.address, **options) as client:
            with pytest.raises(MemcacheClientError):
                client.get(key)
            assert mappings() == before
    with Client(server.address, **OPTIONS, username="user", password="secret") as client:
        client.set(key, b"value")
        with suspended(server.pid):
            assert client.get(key) == b"value"


def test_over_a_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path, key: str) -> None:
    server = rmemcached_server(*FLAGS, path=str(tmp_path / "socket"))
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        with suspended(server.pid):
            assert client.get(key) == b"value"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("rdma_direct,no_rdma", "rdma_direct needs shared memory: it goes with neither no_rdma nor rdma_shm=none"),
        (
            "rdma_direct=own,rdma_shm=none",
            "rdma_direct needs shared memory: it goes with neither no_rdma nor rdma_shm=none",
        ),
        (
            "rdma_direct=own,rdma_shm=/nowhere",
            "rdma_direct=own is for clients over the socket without a file: with -s and rdma_shm=<file> it is"
            " rdma_direct=all, for whoever the file's permissions let in",
        ),
    ],
)
def test_options_that_exclude_each_other(other: str, why: str) -> None:
    command = [sys.executable, "-m", "rmemcached", "-u", "root", "-o", other]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert done.stderr.strip() == why


@pytest.mark.resident
@pytest.mark.parametrize(
    ("limit", "options", "text"),
    [
        (
            150 << 20,
            ("-m", "64"),
            "cannot make shared memory for the items: rdma_direct and rdma_direct_remote need Linux 5.1, and address"
            " space for the memory limit (ulimit -v, -m)",
        ),
        (
            0,
            ("-m", "1900000"),
            "cannot make the index of direct reads: rdma_direct and rdma_direct_remote need memory for it, and go with"
            " a memory limit of up to 1.7 TB (-m)",
        ),
    ],
)
def test_a_daemon_that_cannot_have_the_memory(limit: int, options: tuple[str, ...], text: str) -> None:
    script = (
        "import resource, sys\n"
        "if int(sys.argv[1]):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)\n"
        "from rmemcached.cli import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    for option in ("rdma_direct", "rdma_direct_remote"):
        flags = ("-u", "root", "-l", "127.0.0.1", "-p", "-1", "-o", option, *options)
        words = [sys.executable, "-c", script, str(limit), *flags]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        assert done.returncode != 0 and done.stderr.strip() == text


def test_descriptors_that_no_client_can_use(server: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without address space the client asks the daemon, and logs the reason once."""
    before = mappings()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    for _ in range(2):
        with Client(server.address, **OPTIONS) as client:
            resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), limits[1]))
            try:
                client.set(key, b"value")
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
            assert mappings() == before
            assert client.get(key) == b"value"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{server.address}: the items' memory cannot be mapped: Cannot allocate memory (ulimit -v); gets ask the server"
    ]

"""Several servers: the placement of keys, and servers that fail, come and go, beside pymemcache and libmemcached."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pymemcache.client.hash
import pytest
from concurrency import in_child
from gated_relay import Gate, GatedRelay
from pymemcache.client.hash import HashClient
from pymemcache.client.rendezvous import RendezvousHash as PymemcacheHash
from servers import Server, free_port
from suspended import suspended
from transport import RDMA_TRANSPORTS, within

import rmemcached.client.api.servers
from rmemcached.client import (
    Client,
    ClusterClient,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
)
from rmemcached.client.hashing import RendezvousHash, share_of

ServerFactory = Callable[..., Server]
TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False}
NAMES = ["10.0.0.1", ("10.0.0.2", 11211), "10.0.0.2:11212", "[::1]:5", "/run/one.sock", "unix:/run/two.sock"]
KEYS = [f"user:{number}" for number in range(10000)]


@pytest.fixture(scope="module", params=["tcp", *RDMA_TRANSPORTS])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(three: list[Server], transport: str) -> Iterator[ClusterClient]:
    with ClusterClient([server.address for server in three], transport=transport, **OPTIONS) as made:
        yield made


# --- where keys go ---


def test_keys_go_where_pymemcache_puts_them() -> None:
    ours, theirs = ClusterClient(NAMES), HashClient(NAMES)
    assert list(ours.clients) == list(theirs.clients)
    names: list[Any] = [*KEYS, *(key.encode() for key in KEYS[:1000]), *(f"é{key}€" for key in KEYS[:1000])]
    places = [theirs.hasher.get_node(name) for name in names]
    assert [ours.hasher.get_node(name) for name in names] == places
    assert len(set(places)) == len(NAMES)


def test_the_hash_of_any_text_is_that_of_pymemcache() -> None:
    nodes = ["", "a", "ab", "abc", "abcd", "hé€st:1"]
    ours, theirs = RendezvousHash(nodes), PymemcacheHash(list(nodes))
    for length in (*range(40), 250, 507, 508, 509, 5000):
        for text in ("x" * length, "é€𝄞" * length):
            assert ours.get_node(text) == theirs.get_node(text)
    # The last two nodes have equal hashes: the lowest bytes of their characters are equal.
    for nodes in ([], ["one"], ["b:1", "b:\u0131"], ["b:\u0131", "b:1"]):
        assert RendezvousHash(nodes).get_node("key") == PymemcacheHash(list(nodes)).get_node("key")


def test_values_of_pymemcache_are_found(three: list[Server], key: str) -> None:
    addresses = [server.address for server in three]
    values = {f"{key}-{number}": b"%d" % number for number in range(100)}
    theirs = HashClient(addresses, default_noreply=False)
    with ClusterClient(addresses, **OPTIONS) as ours:
        theirs.set_many(values)
        assert ours.get_many(values) == values
        assert ours.delete_many(values) is True
        assert theirs.get_many(list(values)) == {}
        assert ours.set_many(values) == []
        assert theirs.get_many(list(values)) == values
    theirs.close()


def test_the_shares_of_weights() -> None:
    """The shares are computed with C's floats: some are below the exact quotient."""
    assert share_of(1, 1, 1) == 40
    assert [share_of(weight, 6, 3) for weight in (1, 2, 3)] == [20, 40, 60]
    for total in range(1, 400):
        for weight in range(1, total + 1):
            part = np.float32(weight) / np.float32(total)
            points = part * np.float32(160) / np.float32(4) * np.float32(3)
            assert share_of(weight, total, 3) == int(np.float32(float(points) + 1e-10))


def test_a_hasher_of_ones_own(three: list[Server]) -> None:
    class First:
        def __init__(self) -> None:
            self.nodes: list[str] = []
            self.add_node = self.nodes.append
            self.remove_node = self.nodes.remove

        def get_node(self, key: Any) -> str | None:
            return min(self.nodes, default=None)

    for hasher in (First, PymemcacheHash):
        with ClusterClient([server.address for server in three], hasher, **OPTIONS) as cluster:
            assert cluster.set("key", b"value") is True
            assert cluster.get("key") == b"value"
            assert isinstance(cluster.hasher, hasher)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_without_the_libraries() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("pymemcache", "uhashring")))
from rmemcached.client import ClusterClient
print(ClusterClient(["one", "two"]).hasher.get_node("key"))
try:
    ClusterClient(["one", "two"], hasher="ketama")
except ImportError as error:
    print(error)
"""
    theirs = HashClient(["one", "two"]).hasher.get_node("key")
    text = "hasher='ketama' needs the library uhashring: pip install 'rmemcached[cluster]'"
    assert run_python(code) == f"{theirs}\n{text}\n"


# --- the methods ---


def test_the_methods(cluster: ClusterClient, three: list[Server], key: str) -> None:
    assert cluster.set(key, b"1") is True
    assert (cluster.get(key), cluster.get("no" + key), cluster.get("no" + key, b"d")) == (b"1", None, b"d")
    with cluster.get(key, copy=False) as view:
        assert bytes(view) == b"1"
    assert cluster.add(key, b"2") is False
    assert cluster.replace(key, b"2") is True
    assert cluster.append(key, b"3") is True
    assert cluster.prepend(key, b"1") is True
    assert cluster.incr(key, 2) == 125
    assert cluster.decr(key, 25) == 100
    assert cluster.incr("no" + key, 1) is None
    value, cas = cluster.gets(key)
    assert value == b"100"
    assert cluster.cas(key, b"new", cas) is True
    assert cluster.cas(key, b"newer", cas) is False
    assert cluster.cas("no" + key, b"newer", cas) is None
    assert cluster.gets("no" + key) == (None, None)
    assert cluster.gets("no" + key, b"a", b"b") == (b"a", b"b")
    assert cluster.gat(key, 100) == b"new"
    assert cluster.gats(key, 100)[0] == b"new"
    assert (cluster.touch(key, 100), cluster.touch("no" + key, 100)) == (True, False)
    assert (cluster.delete(key), cluster.delete(key)) == (True, False)
    names = {server.place for server in three}
    assert set(cluster.stats()) == set(cluster.version()) == set(cluster.clients) == names
    cluster.set_many({f"{key}-{number}": b"v" for number in range(50)})
    cluster.flush_all()
    assert cluster.get_many([f"{key}-{number}" for number in range(50)]) == {}
    cluster.quit()
    assert all(client.connections == 0 for client in cluster.clients.values())
    assert cluster.get(key) is None


def test_many_keys(cluster: ClusterClient, key: str) -> None:
    values: dict[str, Any] = {f"{key}-{number}": os.urandom(number * 300) for number in range(300)}
    assert cluster.set_many(values) == []
    assert cluster.get_many(values) == cluster.get_multi(iter(values)) == values
    found = cluster.gets_many([*values, "no" + key])
    assert {name: value for name, (value, _) in found.items()} == values
    assert cluster.get_many(values, gets=True) == cluster.gets_multi(values) == found
    name = f"{key}-7"
    assert cluster.cas(name, b"new", found[name][1]) is True
    assert cluster.delete_many([*values, "no" + key]) is True
    assert cluster.get_many(values) == {}
    assert cluster.get_many([]) == {}
    assert cluster.set_many({}) == []
    assert cluster.delete_multi([]) is True
    # No call is under way any more.
    assert [client.calls for client in cluster.clients.values()] == [0, 0, 0]


def test_many_keys_without_answers(cluster: ClusterClient, key: str) -> None:
    values = {f"{key}-{number}": os.urandom(number * 300) for number in range(300)}
    assert cluster.set_many(values, noreply=True) == []
    assert cluster.get_many(values) == values
    assert cluster.delete_many(values, noreply=True) is True
    assert cluster.get_many(values) == {}


def test_keys_and_values_as_a_client_has_them(three: list[Server], key: str) -> None:
    class Numbers:
        def serialize(self, key: Any, value: int) -> tuple[bytes, int]:
            return b"%d" % value, 3

        def deserialize(self, key: Any, value: bytes, flags: int) -> int:
            assert flags == 3
            return int(value)

    addresses = [server.address for server in three]
    options = {**OPTIONS, "key_prefix": "app:", "allow_unicode_keys": True, "serde": Numbers()}
    with ClusterClient(addresses, **options) as cluster, ClusterClient(addresses, **OPTIONS) as plain:
        values = {f"é{key}-{number}": number for number in range(50)}
        assert cluster.set_many(values) == []
        assert cluster.get_many(values) == values
        assert cluster.gets_many(values).keys() == values.keys()
        assert cluster.get(f"é{key}-7") == 7
        placed = {cluster.hasher.get_node(name): name for name in values}
        for node, name in placed.items():
            assert node is not None
            assert plain.clients[node].get(f"app:{name}".encode()) == b"%d" % values[name]


def test_what_a_server_refuses_is_raised(cluster: ClusterClient, key: str) -> None:
    values: dict[str, Any] = {f"{key}-{number}": b"v" for number in range(20)}
    large = f"{key}-large"
    with pytest.raises(MemcacheError, match="set_many: object too large for cache") as failure:
        cluster.set_many({**values, large: bytes(2 << 20)})
    assert failure.value.server == cluster.hasher.get_node(large)
    assert cluster.get_many([*values, large]) == values
    with pytest.raises(MemcacheClientError, match="non-numeric"):
        cluster.incr(f"{key}-1", 1)
    # None of these refusals counts as a failure of the server.
    assert cluster.get_many(values) == values


@pytest.mark.parametrize("ignore_exc", [False, True])
def test_keys_that_cannot_be_sent(three: list[Server], ignore_exc: bool) -> None:
    with ClusterClient([server.address for server in three], ignore_exc=ignore_exc, **OPTIONS) as cluster:
        for call in (
            lambda: cluster.get("a b"),
            lambda: cluster.get_many(["a", "a b"]),
            lambda: cluster.set_many({"a": b"v", "a b": b"v"}),
            lambda: cluster.delete_many(["a", "a b"]),
        ):
            with pytest.raises(MemcacheIllegalInputError, match="whitespace"):
                call()
        with pytest.raises(TypeError, match="key must be str or bytes"):
            cluster.get(5)  # type: ignore[arg-type]
        assert cluster.get_many(["a"]) == {}


def test_values_that_cannot_be_sent(three: list[Server], key: str) -> None:
    addresses = [server.address for server in three]
    values: dict[str, Any] = {f"{key}-{number}": b"v" for number in range(50)}
    wrong = {**values, f"{key}-wrong": "ä"}
    with ClusterClient(addresses, **OPTIONS) as strict, ClusterClient(addresses, ignore_exc=True, **OPTIONS) as lenient:
        with pytest.raises(MemcacheIllegalInputError, match="binary-safe"):
            strict.set_many(wrong)
        assert strict.get_many(wrong) == {}
        lost = lenient.set_many(wrong)
        place = lenient.hasher.get_node(f"{key}-wrong")
        assert sorted(lost) == sorted(name for name in wrong if lenient.hasher.get_node(name) == place)
        assert strict.get_many(wrong) == {name: b"v" for name in values if name not in lost}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"servers": "one:5"}, r"servers is a list, not 'one:5': \['one:5'\]"),
        ({"servers": [5]}, "Unsupported server specification: 5: "),
        ({"servers": ["redis://one"]}, "redis://one: the scheme must be"),
        ({"servers": ["tcp://one?key_prefix=a"]}, "key_prefix is the same for all servers"),
        ({"servers": ["tcp://one?timeout=1"], "timeout": 2}, "timeout is given twice"),
        ({"hasher": "crc"}, "hasher must be one of rendezvous, ketama, or a class with get_node, not 'crc'"),
        ({"weights": {"one": 2}}, "weights are for hasher='ketama'"),
        ({"weights": {"one": 0}, "hasher": "ketama"}, "the weight of one:11211 must be an integer from 1 up, not 0"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"retry_timeout": -1}, "retry_timeout must be seconds from 0 up, not -1"),
        ({"dead_timeout": -1}, "dead_timeout must be seconds from 0 up, not -1"),
        ({"refresh_interval": 5}, "refresh_interval is positive seconds, for servers that a function lists"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClusterClient(**{"servers": [], **arguments})


def test_the_arguments_of_hash_client_are_taken() -> None:
    cluster = ClusterClient(
        ["one"], use_pooling=True, max_pool_size=4, pool_idle_timeout=9, lock_generator=threading.Lock, timeout=3
    )
    assert cluster.clients["one:11211"].timeout == 3
    with pytest.raises(TypeError, match="Server must be a string"):
        cluster.add_server(("one", 11211), 11211)
    cluster.add_server("one", 11211)
    cluster.add_server("two", 5)
    assert list(cluster.clients) == ["one:11211", "two:5"]

    class Special(Client):
        pass

    cluster.client_class = Special
    cluster.add_server("three")
    assert isinstance(cluster.clients["three:11211"], Special)


def test_urls(three: list[Server], memcached_server: ServerFactory, tmp_path: Path, key: str) -> None:
    path = str(tmp_path / "sock")
    memcached_server(path=path)
    ports = [server.port for server in three]
    urls = [f"tcp://127.0.0.1:{ports[0]}", f"shm://127.0.0.1:{ports[1]}?timeout=9", f"iwarp://127.0.0.1:{ports[2]}"]
    with ClusterClient([*urls, f"unix://{path}"], default_noreply=False) as cluster:
        values = {f"{key}-{number}": b"%d" % number for number in range(100)}
        assert cluster.set_many(values) == []
        assert cluster.get_many(values) == values
        assert list(cluster.clients) == [*(f"127.0.0.1:{port}" for port in ports), path]
        assert [client.transport for client in cluster.clients.values()][:3] == ["tcp", "soft_shm", "soft_iw"]
        assert [client.timeout for client in cluster.clients.values()] == [None, 9, None, None]


# --- all servers at once ---


@pytest.mark.parametrize("module", ["", "socket", "gevent.socket"])
def test_all_servers_are_asked_before_one_is_waited_for(
    relays: list[GatedRelay], gate: Gate, key: str, module: str
) -> None:
    options = dict(OPTIONS)
    if module:
        options["socket_module"] = __import__(module, fromlist=["socket"])
    with ClusterClient([relay.address for relay in relays], **options) as cluster:
        values = {f"{key}-{number}": b"%d" % number for number in range(100)}
        cluster.get_many(values)
        for call, expected in (
            (lambda: cluster.set_many(values), []),
            (lambda: cluster.get_many(values), values),
            (lambda: {name: value for name, (value, _) in cluster.gets_many(values).items()}, values),
            (lambda: cluster.delete_many(values), True),
        ):
            gate.shut()
            assert call() == expected
            assert gate.opened.is_set()


def test_an_interrupted_call_leaves_no_answers(relays: list[GatedRelay], gate: Gate, key: str) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        if not stopped.is_set():
            stopped.set()
            raise Stop

    def interrupt() -> None:
        gate.wait_for(4)
        os.kill(os.getpid(), signal.SIGUSR1)
        # A signal just before the client begins to wait does not wake the client.
        while not stopped.wait(0.01):
            os.kill(os.getpid(), signal.SIGUSR1)

    stopped = threading.Event()
    with ClusterClient([relay.address for relay in relays], **OPTIONS) as cluster:
        values = {f"{key}-{number}": b"%d" % number for number in range(100)}
        cluster.set_many(values)
        gate.shut(5)  # stays shut: there are four relays
        before = signal.signal(signal.SIGUSR1, stop)
        try:
            sender = threading.Thread(target=interrupt)
            sender.start()
            with pytest.raises(Stop):
                cluster.get_many(values)
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        gate.open()
        assert [client.connections for client in cluster.clients.values()] == [0] * 4
        assert cluster.get_many([f"{key}-1"]) == {f"{key}-1": b"1"}


# --- servers that fail ---


class Clock:
    """A clock for ClusterClient and pymemcache's HashClient, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rmemcached.client.api.servers, "monotonic", clock)
    monkeypatch.setattr(pymemcache.client.hash, "time", types.SimpleNamespace(time=clock))
    return clock


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OSError as error:
        return type(error)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("ignore_exc", [False, True])
@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_failures_are_dealt_with_as_in_pymemcache(
    memcached_server: ServerFactory, clock: Clock, attempts: int, ignore_exc: bool
) -> None:
    """One of two servers ends, is found dead, and comes back. At each step the result is the same as in pymemcache."""
    stays = memcached_server()
    goes = memcached_server()
    options: dict[str, Any] = {"retry_attempts": attempts, "ignore_exc": ignore_exc, **OPTIONS}
    theirs = HashClient([stays.address, goes.address], **options)
    ours = ClusterClient([stays.address, goes.address], **options)
    key = next(key for key in KEYS if theirs.hasher.get_node(key) == f"127.0.0.1:{goes.port}")
    again: Server | None = None
    with contextlib.closing(ours), contextlib.closing(theirs):
        seen: list[Any] = []
        for one in (ours, theirs):
            assert one.set(key, b"value") is True
        goes.stop()
        # Both clients begin without connections, because the errors of existing connections may differ.
        for one in (ours, theirs):
            for client in one.clients.values():
                client.close()
        steps = [0, 0, 0.5, 0.6, 0, 1.1, 0, 1.1, 0, 0, 1.1, 0, 61, 0, 0, 1.1, 0, 1.1, 1.1, 0, 30]
        for step in steps:
            clock.now += step
            found = [outcome(lambda one=one: one.get(key, "none")) for one in (ours, theirs)]  # type: ignore[misc]
            assert found[0] == found[1], (step, seen)
            seen.append(found[0])
            many = [outcome(lambda one=one: one.get_many([key])) for one in (ours, theirs)]  # type: ignore[misc]
            assert many[0] == many[1], (step, seen)
        again = Server(goes.command, goes.port)
        try:
            clock.now += 200
            for step in (0, 2, 0, 61, 61):
                clock.now += step
                assert outcome(lambda: ours.set(key, b"v")) == outcome(lambda: theirs.set(key, b"v"))
            assert ours.get(key) == b"v"
            assert ours.clients[f"127.0.0.1:{goes.port}"].get(key) == b"v"
        finally:
            ours.close()
            theirs.close()
            again.stop()


def test_one_server_of_several_has_ended(three: list[Server], transport: str, key: str) -> None:
    values = {f"{key}-{number}": b"%d" % number for number in range(100)}
    addresses = [server.address for server in three]
    # Without a pause between attempts the client asks the failed server each time.
    options = {**OPTIONS, "transport": transport, "retry_attempts": 1000, "retry_timeout": 0}
    with (
        ClusterClient(addresses, **options) as strict,
        ClusterClient(addresses, ignore_exc=True, **options) as lenient,
    ):
        for cluster in (strict, lenient):
            assert cluster.set_many(values) == []
        three[1].kill()
        name = f"127.0.0.1:{three[1].port}"
        rest = {one: value for one, value in values.items() if strict.hasher.get_node(one) != name}
        lost = [one for one in values if one not in rest]
        # The first call finds the connections ended. The second call finds nobody listening.
        for _ in range(2):
            with pytest.raises((OSError, MemcacheUnexpectedCloseError), match=name):
                strict.get_many(values)
            assert lenient.get_many(values) == rest
        assert sorted(lenient.set_many(values)) == sorted(lost)
        assert lenient.delete_many(values) is True
        assert lenient.get_many(values) == {}
        assert lenient.get(lost[0], b"default") == b"default"
        assert lenient.gets(lost[0]) == (None, None)
        assert lenient.set(lost[0], b"v") is False
        assert set(lenient.version()) == set(lenient.clients) - {name}


def test_all_servers_have_ended(clock: Clock) -> None:
    addresses = [("127.0.0.1", free_port()) for _ in range(2)]
    cluster = ClusterClient(addresses, retry_attempts=0, **OPTIONS)
    with pytest.raises(ConnectionRefusedError) as failure:
        cluster.get_many(KEYS[:50])
    assert str(failure.value).count("127.0.0.1:") == 1
    assert [note.split(" has failed")[0] for note in failure.value.__notes__] == [
        name for name in cluster.clients if name not in str(failure.value)
    ]
    for call in (lambda: cluster.get("key"), lambda: cluster.get_many(["key"]), lambda: cluster.set("key", b"v")):
        with pytest.raises(MemcacheError, match=r"^All servers seem to be down right now$"):
            call()
    clock.now += 61
    with pytest.raises(ConnectionRefusedError):
        cluster.get("key")
    nothing = ClusterClient([], ignore_exc=True)
    assert nothing.get("key", b"d") == b"d"
    assert nothing.set_many({"key": b"v"}) == ["key"]
    assert nothing.get_many(["key"]) == {}


def test_calls_that_fail_together_are_one_failure(three: list[Server], key: str) -> None:
    """Failures of several threads together do not make the server dead."""
    threads = 6
    together = threading.Barrier(threads)
    with ClusterClient([server.address for server in three], retry_attempts=2, **OPTIONS) as cluster:
        name = cluster.hasher.get_node(key)
        ended = next(server for server in three if name == f"127.0.0.1:{server.port}")
        ended.kill()

        def call(_: int) -> Any:
            together.wait(20)
            return outcome(lambda: cluster.get(key))

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(call, range(threads)))
        assert ConnectionRefusedError in found
        # The calls count as one failure, so the server still has the key, whose get is a miss now.
        assert cluster.hasher.get_node(key) == name
        assert cluster.get(key) is None


def test_a_server_that_stands_still(three: list[Server], key: str) -> None:
    values = {f"{key}-{number}": b"%d" % number for number in range(100)}
    with ClusterClient([server.address for server in three], ignore_exc=True, timeout=0.3, transport="tcp") as cluster:
        assert cluster.set_many(values, noreply=False) == []
        with suspended(three[0].pid):
            name = f"127.0.0.1:{three[0].port}"
            rest = {one: value for one, value in values.items() if cluster.hasher.get_node(one) != name}
            assert cluster.get_many(values) == rest
            # The client does not ask the server again for a second.
            begin = time.monotonic()
            assert cluster.get_many(values) == rest
            assert time.monotonic() - begin < within(0.3)


def test_several_servers_that_stand_still(three: list[Server], transport: str, key: str) -> None:
    """A call that asks several silent servers ends after a single timeout."""
    keys = [f"{key}-{number}" for number in range(100)]
    options: dict[str, Any] = {**OPTIONS, "transport": transport, "timeout": 1.0}
    for name in ("get_many", "delete_many"):
        with ClusterClient([server.address for server in three], **options) as cluster:
            cluster.set_many(dict.fromkeys(keys, b"value"))
            with contextlib.ExitStack() as stack:
                for server in three:
                    stack.enter_context(suspended(server.pid))
                begin = time.monotonic()
                with pytest.raises(TimeoutError, match="nothing has come for 1 s"):
                    # These keys have no items: a direct read would find an item without the server's answer.
                    getattr(cluster, name)([f"no-{one}" for one in keys])
                assert 0.9 < time.monotonic() - begin < within(1.9)


# --- servers that come and go ---


def test_servers_come_and_go(three: list[Server], key: str) -> None:
    addresses = [server.address for server in three]
    with ClusterClient(addresses[:1], **OPTIONS) as cluster:
        cluster.set(key, b"value")
        client = cluster.clients[f"127.0.0.1:{three[0].port}"]
        for address in addresses[1:]:
            cluster.add_server(address)
        assert cluster.clients[f"127.0.0.1:{three[0].port}"] is client
        values = {f"{key}-{number}": b"v" for number in range(100)}
        assert cluster.set_many(values) == []
        cluster.remove_server("127.0.0.1", three[0].port)
        assert client.connections == 0
        assert set(cluster.get_many(values)) < set(values)
        with pytest.raises(ValueError, match=r"there is no server 127\.0\.0\.1"):
            cluster.remove_server(addresses[0])


def test_threads(three: list[Server]) -> None:
    """Threads get the right values while servers come and go."""
    addresses = [server.address for server in three]
    ends = threading.Event()

    def work(shared: ClusterClient, number: int) -> int:
        done = 0
        while not ends.is_set():
            keys = [f"{number}-{done}-{index}" for index in range(20)]
            shared.set_many({key: key.encode() for key in keys})
            assert all(value == key.encode() for key, value in shared.get_many(keys).items())
            assert shared.get(keys[0]) in (None, keys[0].encode())
            done += 1
        return done

    with ClusterClient(addresses, **OPTIONS) as shared, ThreadPoolExecutor(8) as threads:
        running = [threads.submit(work, shared, number) for number in range(8)]
        try:
            for _ in range(100):
                shared.remove_server(addresses[0])
                shared.add_server(addresses[0])
        finally:
            ends.set()
        assert all(one.result() > 0 for one in running)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(three: list[Server], make: Callable[[ClusterClient], ClusterClient], key: str) -> None:
    servers = [server.address for server in three]
    options: dict[str, Any] = {"hasher": "ketama", "weights": {servers[0]: 3}, "retry_attempts": 5, **OPTIONS}
    with ClusterClient(servers, **options) as cluster:
        values = {f"{key}-{number}": b"%d" % number for number in range(50)}
        cluster.set_many(values)
        cluster.note = "mine"  # type: ignore[attr-defined]
        with make(cluster) as other:
            assert all(client.connections == 0 for client in other.clients.values())
            assert other.get_many(values) == values
            assert (other.retry_attempts, other.note) == (5, "mine")  # type: ignore[attr-defined]
            other.remove_server(servers[0])
        assert len(cluster.clients) == 3
        assert cluster.get_many(values) == values


def test_a_forked_child(three: list[Server], key: str) -> None:
    with ClusterClient([server.address for server in three], **OPTIONS) as cluster:
        cluster.set(key, b"value")
        with cluster._lock:

            def child() -> None:
                assert cluster.get(key) == b"value"
                adding = threading.Thread(target=cluster.add_server, args=("one",))
                adding.start()
                adding.join(10)
                assert "one:11211" in cluster.clients

            # The lock is held at the fork, as if by another thread of the parent.
            in_child(child)
        assert cluster.get(key) == b"value"

"""Damaged or harmful values, servers and URLs raise an error with the reason, and never give a wrong value."""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from concurrency import ended, fork
from scripted import serving
from servers import Server

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    Gathered,
    MemcacheIllegalInputError,
    serde,
)
from rmemcached.client.api.discovery import read_configuration
from rmemcached.client.observed import ObservedClient

TIMEOUT = 20.0


# --- serdes ---


def npy(description: str) -> bytes:
    text = description.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "description",
    [
        *(f"{{'descr':{descr},'fortran_order':False,'shape':(1,)}}" for descr in ("()", "[('a',('<f8',))]", "[()]")),
        *(f"{{'descr':'{descr}','fortran_order':False,'shape':(1<<50,)}}" for descr in ("|S0", "|V0")),
        *(f"{{'descr':'{descr}','fortran_order':False,'shape':({1 << 50},)}}" for descr in ("|S0", "|V0")),
        "{'descr':'<f8','fortran_order':False,'shape':(0x" + "f" * 4000 + ",)}",
        "-" * 60_000 + "1",
        "[" * 60_000,
    ],
)
def test_descriptions_of_arrays_that_claim_anything(description: str) -> None:
    with pytest.raises(ValueError, match="the value of 'key' is damaged"):
        serde.NumpySerde().deserialize("key", npy(description), serde.FLAG_ARRAY)


def test_arrays_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="use Pickle5Serde"):
        serde.NumpySerde().serialize("key", numpy.zeros(3, "V0"))


def test_what_was_appended_to_a_compressed_value_is_not_lost(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=serde.ZstdSerde())
    client.set(key, b"x" * 5000)
    assert client.append(key, b"tail") is True
    with pytest.raises(ValueError, match="damaged"):
        client.get(key)
    # A value that is only a skippable frame, or a frame of no bytes, is refused, too.
    for frame in (b"\x50\x2a\x4d\x18\x00\x00\x00\x00", b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"):
        make_client().set(key, frame, flags=serde.FLAG_ZSTD)
        with pytest.raises(ValueError, match="damaged"):
            client.get(key)


def test_gathered_has_its_parts_for_good(make_client: Callable[..., Client], key: str) -> None:
    gathered = Gathered([b"a" * 100])
    with pytest.raises(TypeError, match="has its parts already"):
        gathered.__init__([b"b" * 10])  # type: ignore[misc]
    assert (len(gathered), bytes(gathered)) == (100, b"a" * 100)
    client = make_client()
    for empty in (Gathered([]), Gathered.__new__(Gathered)):
        client.set(key, empty)
        assert (client.get(key), bytes(empty), len(empty)) == (b"", b"", 0)


def test_gathered_holds_no_addresses() -> None:
    for part in (numpy.array([object()]), numpy.zeros(2, [("P", "<i4"), ("b", "O")])):
        with pytest.raises(BufferError, match="objects or pointers"):
            Gathered([part])
    # "Objects" is the name of a field here, and no type.
    assert len(Gathered([numpy.zeros(2, [("Objects", "<i4")])])) == 8
    with pytest.raises(MemcacheIllegalInputError, match="Python objects or pointers"):
        Client("127.0.0.1").set("key", numpy.array([object()]))


# --- servers of a cluster ---


class Elsewhere:
    """A hasher with servers of its own."""

    def add_node(self, node: str) -> None: ...
    def remove_node(self, node: str) -> None: ...
    def get_node(self, key: Any) -> str:
        return "10.0.0.1:1"


def test_a_hasher_that_names_no_server() -> None:
    cluster = ClusterClient(["127.0.0.1"], hasher=Elsewhere)
    for call in (cluster.get, lambda key: cluster.get_many([key])):
        with pytest.raises(ValueError, match=r"the hasher has 'key' at '10\.0\.0\.1:1', which is none of the servers"):
            call("key")

    async def main() -> None:
        async with AsyncClusterClient(["127.0.0.1"], hasher=Elsewhere) as other:
            with pytest.raises(ValueError, match="which is none of the servers"):
                await other.get("key")

    asyncio.run(main())


def test_a_function_that_returns_a_text() -> None:
    listed: list[Any] = ["127.0.0.1:11211"]
    with pytest.raises(ValueError, match=r"servers is a list, not '127\.0\.0\.1:11211'"):
        ClusterClient(lambda: listed[0])
    cluster = ClusterClient(lambda: listed[-1] if len(listed) > 1 else listed)
    listed.append("12")
    with pytest.raises(ValueError, match="servers is a list, not '12'"):
        cluster.refresh()
    assert list(cluster.clients) == ["127.0.0.1:11211"]
    with pytest.raises(ValueError, match="me:\\*\\*\\*@host") as failure:
        ClusterClient("tcp://me:secret@host")
    assert "secret" not in str(failure.value)


def test_a_refresh_with_a_wrong_server_changes_nothing() -> None:
    listed: list[Any] = ["127.0.0.1"]
    cluster = ClusterClient(lambda: listed, timeout=1)
    listed[:] = ["127.0.0.2", "tcp://127.0.0.3?timeout=5"]
    with pytest.raises(ValueError, match="timeout is given twice"):
        cluster.refresh()
    assert list(cluster.clients) == ["127.0.0.1:11211"]
    assert cluster.hasher.get_node("key") == "127.0.0.1:11211"


def test_a_refresh_that_hangs_has_one_thread(three: list[Server]) -> None:
    asked = threading.Semaphore(0)
    answer = threading.Event()
    calls: list[None] = []

    def lister() -> list[Any]:
        calls.append(None)
        if len(calls) > 1:
            asked.release()
            assert answer.wait(TIMEOUT)
        return [server.address for server in three]

    with ClusterClient(lister, refresh_interval=1e-6, timeout=TIMEOUT) as cluster:
        cluster.get("key")
        assert asked.acquire(timeout=TIMEOUT)
        for _ in range(50):
            cluster.get("key")
        (thread,) = [one for one in threading.enumerate() if one.name == "rmemcached refresh"]
        assert len(calls) == 2
        answer.set()
        thread.join(TIMEOUT)
        # The look-up under way ends before the next begins.
        cluster.get("key")
        assert asked.acquire(timeout=TIMEOUT)
        pickle.loads(pickle.dumps(ClusterClient(["127.0.0.1"]))).close()
        for one in threading.enumerate():
            if one.name == "rmemcached refresh":
                one.join(TIMEOUT)


@pytest.mark.parametrize("arguments", [{"retry_attempts": None}, {"retry_attempts": "2"}, {"retry_timeout": None}])
def test_attempts_that_are_no_number(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be"):
        ClusterClient(["127.0.0.1"], **arguments)


@pytest.mark.parametrize(
    "nodes", [b"", b"||11211", b"a|b|-5", b"a|b|0", b"a|b|99999", b"a|b|1_1", b"a|b|" + b"9" * 5000, b"a|b|\xff"]
)
def test_configurations_of_no_servers(nodes: bytes) -> None:
    with pytest.raises(ValueError):
        read_configuration(b"CONFIG cluster 0 20\r\n1\n" + nodes + b"\n", True)


# --- hanging servers ---


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """A server without any answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


@pytest.mark.parametrize("transport", ["auto", "tcp", "soft_shm", "soft_iw"])
def test_a_server_that_hangs_is_named(silent: tuple[str, int], transport: str) -> None:
    where = f"127.0.0.1:{silent[1]}"
    why = f"{where}: connecting \\({transport}\\): timed out: nothing has come for 0.2 s"
    with Client(silent, transport=transport, timeout=0.2) as client, pytest.raises(TimeoutError, match=why):
        client.get("key")
    with ClusterClient([silent], transport=transport, timeout=0.2) as cluster, pytest.raises(TimeoutError, match=why):
        cluster.get_many(["key"])

    async def main() -> None:
        async with AsyncClient(silent, transport=transport, timeout=0.2) as other:
            with pytest.raises(TimeoutError, match=why):
                await other.get("key")

    asyncio.run(main())


def test_a_server_that_resets_is_named() -> None:
    def reset(one: socket.socket) -> None:
        one.recv(1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with (
        serving(reset) as address,
        Client(address, transport="soft_iw", timeout=TIMEOUT) as client,
        pytest.raises(OSError, match=f"connecting \\(soft_iw\\).*127.0.0.1:{address[1]}"),
    ):
        client.get("key")


# --- ObservedClient, which counts its own calls ---


def test_a_child_does_not_wait_for_the_parents_threads(shared_rmemcached: Server) -> None:
    with ObservedClient(shared_rmemcached.address, timeout=TIMEOUT) as client:
        client.get("key")
        held = threading.Event()
        over = threading.Event()

        def hold() -> None:
            with client._observer.lock:
                held.set()
                over.wait(TIMEOUT)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(TIMEOUT)

        def get() -> bool:
            signal.alarm(10)
            client.get("key")
            return client.metrics()["get"].calls == 2

        child = fork(get)
        over.set()
        thread.join(TIMEOUT)
        ended(child)


def test_a_signal_handler_may_use_it(shared_rmemcached: Server) -> None:
    with ObservedClient(shared_rmemcached.address, timeout=TIMEOUT) as client:
        before = signal.signal(signal.SIGUSR1, lambda *_: client.get("key"))
        try:
            with client._observer.lock:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert client.metrics()["get"].calls == 1


# --- URLs ---


@pytest.mark.parametrize(
    "url",
    [
        "tcp://me:se/cret@host:1",
        "tcp://me:se?cret@host:1",
        "tcp://me:12?cret@host:1",
        "tcp://me:12?timeout=cret@host:1",
        "tcp://me:se#cret@host:1",
        "tcp://me:a@se/cret@host:1",
        "tcp://me:a@se?cret=1@host:1",
        "tcp://me:se\u2100cret@host:1",
        "tcp://me:se[cret@host:1",
        "tcp://me:se\ncret@host:1",
        "redis://me:se/cret@host:1",
    ],
)
def test_no_error_shows_a_password_that_is_not_quoted(url: str) -> None:
    for make in (Client, AsyncClient, lambda url: ClusterClient([url])):
        with pytest.raises(ValueError) as failure:
            make(url)
        text = str(failure.value)
        assert "cret" not in text
        assert text.startswith(f"{url.partition(':')[0]}://me:***@host:1: ")
        assert "\n" not in text


@pytest.mark.parametrize(
    "url",
    [
        "tcp://me:secret",
        "tcp://me:123456",
        "tcp://me:se:cret",
        "tcp://me:se/cret",
        "tcp://me:se?cret=1",
        "tcp://me:se#cret",
        "tcp://me:secret/",
        "unix://me:secret/run/sock",
        "redis://me:secret",
    ],
)
def test_no_error_shows_a_password_without_a_host(url: str) -> None:
    for make in (Client, AsyncClient, lambda url: ClusterClient([url])):
        with pytest.raises(ValueError) as failure:
            make(url)
        text = str(failure.value)
        assert "cret" not in text and "123456" not in text
        assert text.startswith(f"{url.partition(':')[0]}://me:***: ")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("tcp://me:p%FFss@host", "must be UTF-8"),
        ("tcp://%FF", "must be UTF-8"),
        ("unix:///run/%FF", "must be UTF-8"),
        ("tcp://host?key_prefix=%FF", "the option key_prefix must be printable UTF-8"),
        ("tcp://ho\tst", "control characters"),
        ("tcp://host\n", "control characters"),
        ("tcp://host?key_prefix=a\nb", "control characters"),
        ("tcp://[::1]x:5", "behind the brackets"),
        ("tcp://host:" + "9" * 5000, "the port must be from 1 to 65535"),
        ("tcp://host?rdma_cm_port=" + "9" * 5000, "must be from 1 to 65535"),
    ],
)
def test_no_part_of_a_url_is_changed_silently(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Client(url)


def test_what_may_be_in_a_url() -> None:
    assert Client("tcp://me:a%2F%3F%23%40b@host?key_prefix=a@b").key_prefix == b"a@b"
    assert Client("tcp://me:my pass@host").server == ("host", 11211)
    assert Client("unix:///run/a@b.sock").server == "/run/a@b.sock"

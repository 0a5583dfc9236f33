"""Connections: addresses, choice of the transport, ends of all kinds, time-outs, signals, threads, forks, leaks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from concurrency import know_meta, wait_until_busy
from pymemcache.client.hash import HashClient
from scripted import serving
from servers import Server, free_port
from suspended import suspend, suspended
from transport import RDMA_TRANSPORTS, rounds, some

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    KeepaliveOpts,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from rmemcached.client.api.discovery import configured_servers
from rmemcached.connectors._blocks import Blocks
from rmemcached.connectors._clients import make_client
from rmemcached.connectors.lmcache import RMemcachedConnector

ServerFactory = Callable[..., Server]
LARGE = os.urandom(300000)


def answering_all(answer: bytes, meta: bool = False) -> AbstractContextManager[tuple[str, int]]:
    """A server with a fixed answer to the first input of each connection, and then the end."""

    def serve(connection: socket.socket) -> None:
        if meta:
            know_meta(connection)
        connection.recv(65536)
        connection.sendall(answer)

    return serving(serve)


# --- addresses and options ---


@pytest.mark.parametrize("spelling", ["tuple", "string", "arguments", "text", "numpy", "list"])
def test_server_spellings(shared_memcached: Any, spelling: str) -> None:
    host, port = shared_memcached.address
    made = {
        "tuple": lambda: Client((host, port)),
        "string": lambda: Client(f"{host}:{port}"),
        "arguments": lambda: Client(host, port),
        "text": lambda: Client(host, str(port)),
        "numpy": lambda: Client(host, numpy.uint16(port)),  # type: ignore[call-overload]
        "list": lambda: Client([host, port]),  # type: ignore[call-overload]
    }[spelling]()
    with made as client:
        assert client.server == (host, port)
        assert client.version()


def test_default_port_and_brackets() -> None:
    assert Client("example").server == ("example", 11211)
    assert Client("[::1]").server == ("::1", 11211)
    assert Client("[::1]", 5).server == ("::1", 5)
    assert Client("::1:11211").server == ("::1", 11211)
    assert Client(("fe80::1%eth0", 5)).server == ("fe80::1%eth0", 5)
    assert Client("[::1]:5").server == ("::1", 5)
    assert Client("unix:/tmp/x").server == "/tmp/x"
    assert Client("/tmp/x").server == "/tmp/x"


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (5, "a server is 'host', 'host:port'"),
        (("one",), "a server is 'host', 'host:port'"),
        (None, "a server is 'host', 'host:port'"),
        ("one:abc", "the port must be from 1 to 65535, not 'abc'"),
        ("one:", "the port must be from 1 to 65535, not ''"),
        ("one:0", "the port must be from 1 to 65535, not '0'"),
        ("one:88616", "the port must be from 1 to 65535, not '88616'"),
        ("one:+5", "the port must be from 1 to 65535, not '+5'"),
        ("[::1]:88616", "the port must be from 1 to 65535, not '88616'"),
        (":-5", "it names no host: a server is 'host'"),
        (":5", "it names no host: a server is 'host'"),
        ("", "it names no host: a server is 'host'"),
        ("unix:", "it names no UNIX socket, as '/run/memcached.sock' does"),
        ("/", "it names no UNIX socket, as '/run/memcached.sock' does"),
        ("11211", "'11211' is a port, and the host is missing, as in '127.0.0.1:11211'"),
        ("::1", "an IPv6 address is written in brackets: [::1]:11211"),
        ("fe80::1:5", "an IPv6 address is written in brackets: [::1]:11211"),
        ("one:5:6", "'one:5' is no host: a server is 'host'"),
        ("one two:5", "'one two' is no host: a server is 'host'"),
        (("one", None), "the port must be from 1 to 65535, not None"),
        (("one", 88616), "the port must be from 1 to 65535, not 88616"),
        (("one", -1), "the port must be from 1 to 65535, not -1"),
        (("one", True), "the port must be from 1 to 65535, not True"),
        (("one", 5.0), "the port must be from 1 to 65535, not 5.0"),
        (("one:5", 6), "'one:5' is no host: a server is 'host'"),
        (("/run/sock", 6), "'/run/sock' is no host: a server is 'host'"),
        ((b"one", 5), "the host must be a text, not b'one'"),
        (("", 5), "it names no host: a server is 'host'"),
    ],
)
def test_no_server(server: Any, why: str) -> None:
    """Each client refuses the address at once, in an error with the address. A resolver would take another port, or say
    nothing."""
    makers: list[Callable[..., Any]] = [
        Client,
        AsyncClient,
        lambda server: ClusterClient([server]),
        lambda server: AsyncClusterClient([server]),
        lambda server: ClusterClient([], hasher="ketama", weights={server: 2}),
        lambda server: ClusterClient([]).add_server(server),
        lambda server: configured_servers(server, {}),
        Blocks,
        lambda server: make_client([server], {}, {}),
    ]
    for make in makers:
        with pytest.raises(ValueError) as failure:
            make(server)
        assert str(failure.value).startswith(f"Unsupported server specification: {server!r}: {why}")
        assert "\n" not in str(failure.value)


@pytest.mark.parametrize(("host", "port"), [("one", 88616), ("one", "88616"), ("one", "x"), ("one", -5), ("", 5)])
def test_no_server_in_two_arguments(host: str, port: Any) -> None:
    makers: list[Callable[..., Any]] = [Client, AsyncClient, ClusterClient([]).add_server, RMemcachedConnector]
    for make in makers:
        with pytest.raises(ValueError, match=r"the port must be from 1 to 65535, not|it names no host"):
            make(host, port)
    with pytest.raises(ValueError, match=r"the port must be from 1 to 65535, not|it names no host"):
        ClusterClient.from_dns(host, port)


def test_the_error_does_not_show_a_password() -> None:
    for server in ("me:secret@one:5", "me:5:secret@one", ("me:secret@one", 5), ("tcp://me:secret@one", 5)):
        with pytest.raises(ValueError, match=r"\*\*\*@one") as failure:
            Client(server)
        assert "secret" not in str(failure.value)


def test_unix_socket(memcached_server: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "socket")
    memcached_server(path=path)
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(path) as client:
        client.set("key", LARGE, noreply=False)
        assert client.get("key") == LARGE
        assert client.transport == "tcp"
    assert "soft_shm is not available: the server answered ERROR" in caplog.text
    with pytest.raises(ValueError, match="UNIX socket"):
        Client(path, transport="soft_iw")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"transport": "pigeon"}, "auto, rdma_cm, verbs, soft_shm, soft_iw, tcp"),
        ({"timeout": 0}, "positive"),
        ({"connect_timeout": -1}, "positive"),
        ({"spin": -1}, "spin"),
        ({"timeout": "5"}, "timeout must be positive seconds or None, not '5'"),
        ({"connect_timeout": b"5"}, "connect_timeout must be positive seconds or None, not b'5'"),
        ({"spin": "5"}, "spin must be microseconds from 0 up, not '5'"),
        ({"timeout": True}, "timeout must be positive seconds or None, not True"),
        ({"timeout": math.inf}, "timeout must be positive seconds or None, not inf"),
        ({"connect_timeout": [1]}, r"connect_timeout must be positive seconds or None, not \[1\]"),
        ({"spin": False}, "spin must be microseconds from 0 up, not False"),
        ({"rdma_cm_port": "x"}, "rdma_cm_port must be from 1 to 65535, not 'x'"),
        ({"rdma_cm_port": 5.0}, "rdma_cm_port must be from 1 to 65535, not 5.0"),
        ({"rdma_cm_port": True}, "rdma_cm_port must be from 1 to 65535, not True"),
        ({"socket_keepalive": 5}, "KeepaliveOpts"),
        ({"encoding": "latin-99"}, "encoding: unknown encoding: latin-99"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Client("127.0.0.1", **arguments)


EVERY_CLIENT = [
    Client,
    AsyncClient,
    lambda host, serde=None, **options: ClusterClient([host], serde=serde, **options),
    lambda host, serde=None, **options: AsyncClusterClient([host], serde=serde, **options),
]


@pytest.mark.parametrize("make", EVERY_CLIENT, ids=["Client", "AsyncClient", "ClusterClient", "AsyncClusterClient"])
@pytest.mark.parametrize("serde", [23080.0, True, False, b"23080", [23080], (), object(), "serialize".upper])
def test_what_is_neither_port_nor_serde_is_refused(make: Callable[..., Any], serde: Any) -> None:
    """The client refuses the argument at once, not at the first command, which would go to the usual port."""
    with pytest.raises(
        TypeError, match=f"serde must have the methods .*, not be {re.escape(repr(serde))}; a port is an"
    ):
        make("127.0.0.1", serde)


@pytest.mark.parametrize("make", EVERY_CLIENT, ids=["Client", "AsyncClient", "ClusterClient", "AsyncClusterClient"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"serializer": 5}, "serializer must be a function, not 5"),
        ({"deserializer": "x"}, "deserializer must be a function, not 'x'"),
        ({"no_delay": "no"}, "no_delay must be True or False, not 'no'"),
        ({"ignore_exc": "false"}, "ignore_exc must be True or False, not 'false'"),
        ({"default_noreply": 2.5}, "default_noreply must be True or False, not 2.5"),
        ({"allow_unicode_keys": []}, r"allow_unicode_keys must be True or False, not \[\]"),
        ({"encoding": None}, "encoding must be the name of one, such as 'utf-8', not None"),
        ({"key_prefix": 5}, "key_prefix must be bytes or str, not 5"),
        ({"username": 5, "password": "x"}, "username must be str or bytes, not int"),
    ],
)
def test_arguments_of_a_wrong_type(make: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        make("127.0.0.1", **arguments)


def test_a_port_behind_a_list_of_servers_is_refused() -> None:
    makers: list[Callable[..., Any]] = [ClusterClient, AsyncClusterClient]
    for make in makers:
        with pytest.raises(TypeError, match="serde must have"):
            make(["127.0.0.1"], serde=23080)
        with pytest.raises(ValueError, match="hasher must be one of"):
            make(["127.0.0.1"], 23080)
        with pytest.raises(ValueError, match=r"servers is a list, not one server: \[\('127.0.0.1', 23080\)\]"):
            make(("127.0.0.1", 23080))
        for wrong in (None, 5, {"127.0.0.1": 23080}):
            with pytest.raises(ValueError, match=f"servers is a list, such as .*, not {re.escape(repr(wrong))}$"):
                make(wrong)


def test_wrong_types(client: Client) -> None:
    with pytest.raises(TypeError):
        client.get(5)  # type: ignore[arg-type]
    with pytest.raises(MemcacheIllegalInputError):
        client.set("key", b"x", flags="0 q")  # type: ignore[arg-type]
    with pytest.raises(MemcacheIllegalInputError, match="empty"):
        client.get("")
    with pytest.raises(TypeError):
        Client("127.0.0.1", key_prefix=5)  # type: ignore[call-overload]


def test_keepalive_and_no_delay(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(socket_keepalive=KeepaliveOpts(idle=5, intvl=2, cnt=3), no_delay=False, connect_timeout=5)
    client.set(key, b"x")
    assert client.get(key) == b"x"
    for wrong in (0, 1.5, "5", True):
        with pytest.raises(ValueError, match="The idle parameter must be an integer greater or equal to 1"):
            KeepaliveOpts(idle=wrong)  # type: ignore[arg-type]


# --- choice of the transport ---


def test_auto_takes_rdma(shared_rmemcached: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(shared_rmemcached.address) as client:
        assert client.transport == "auto"
        client.version()
        assert client.transport == "soft_shm"
        client.close()
        client.version()
    assert len(caplog.records) == 1
    assert "transport soft_shm (both ends have it" in caplog.text


def test_auto_falls_back_to_tcp(shared_memcached: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(shared_memcached.address) as client:
        client.version()
        assert client.transport == "tcp"
        client.close()
        client.version()
    assert len(caplog.records) == 1
    assert "the server answered ERROR" in caplog.text


def test_pinned_transport_does_not_fall_back(shared_memcached: Any) -> None:
    with Client(shared_memcached.address, transport="soft_iw") as client:
        with pytest.raises(MemcacheServerError, match="the server answered ERROR"):
            client.get("key")
        with pytest.raises(MemcacheServerError, match="the server answered ERROR"):
            client.set("key", b"x")


# With a number for qpn and 2 for version this would be a right line of the exchange.
NONSENSE = (
    b"RDMA transport=soft_iw qpn=%s version=%d credits=32 msgsize=8192 workers=1 worker=0 lanes=64 lanebytes=16384"
    b" token=" + b"0" * 32 + b"\r\n"
)


@pytest.mark.parametrize(
    "answer",
    [
        b"RDMA version=2 transport=soft_iw qpn=1\r\n",
        NONSENSE % (b"x", 2),
        NONSENSE % (b"99999999999", 2),
        NONSENSE % (b"1", 1),
        b"RDMA\r\n",
        b"R" * 5000,
        b"",
    ],
)
def test_nonsense_in_the_exchange(answer: bytes) -> None:
    with (
        answering_all(answer) as address,
        Client(address, transport="soft_iw", connect_timeout=5) as client,
        pytest.raises(MemcacheServerError),
    ):
        client.get("key")


def test_exchange_times_out(shared_rmemcached: Any) -> None:
    with (
        Client(shared_rmemcached.address, transport="soft_iw", connect_timeout=0.2) as client,
        suspended(shared_rmemcached.pid),
        pytest.raises(TimeoutError),
    ):
        client.get("key")


# --- ends of clients, connections and servers ---


def test_close_is_idempotent_and_the_next_command_reconnects(client: Client, key: str) -> None:
    client.close()
    client.set(key, b"value")
    client.close()
    client.close()
    assert client.get(key) == b"value"
    client.quit()
    assert client.get(key) == b"value"
    with client as same:
        assert same is client
        assert client.get(key) == b"value"


def test_collected_while_open(backend: Any) -> None:
    client = Client(backend.server.address, transport=backend.transport)
    client.version()
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
        gc.collect()


def test_collected_when_closed_or_never_connected(backend: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = Client(backend.server.address, transport=backend.transport)
        client.version()
        client.close()
        del client
        Client(backend.server.address)
        gc.collect()


@pytest.mark.device("its objects")
def test_nothing_leaks(backend: Any, key: str) -> None:
    def cycle() -> None:
        with Client(backend.server.address, transport=backend.transport, default_noreply=False) as client:
            client.set(key, LARGE)
            assert client.get(key) == LARGE

    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    cycle()
    gc.collect()
    before = counts()
    for _ in range(rounds(100)):
        cycle()
    # The counts may fall: leftovers of another test end meanwhile.
    assert all(now <= then for now, then in zip(counts(), before, strict=True))


class Mallinfo(ctypes.Structure):
    """struct mallinfo2"""

    _fields_ = (
        ("free_and_mapped", 7 * ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("free", 2 * ctypes.c_size_t),
    )


@pytest.mark.parametrize("transport", ["tcp", "soft_shm", "soft_iw"])
def test_a_client_that_is_in_no_call_has_no_buffers(shared_rmemcached: Server, transport: str, key: str) -> None:
    """Idle clients have no buffers: calls share them, to stay in the cache in a process with many Clients.

    A client with direct reads keeps 5 KB of hits for the daemon.
    """
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo

    def connected(stack: contextlib.ExitStack) -> None:
        client = Client(shared_rmemcached.address, transport=transport, timeout=20, default_noreply=False)
        stack.enter_context(client).set(key, b"value")

    most = 10_000 if transport == "soft_shm" else 4096
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connected(stack)
        before = mallinfo().uordblks
        for _ in range(100):
            connected(stack)
        assert mallinfo().uordblks - before < 100 * most


@pytest.mark.parametrize("transport", ["tcp", "soft_shm", "soft_iw"])
def test_an_answer_before_all_of_a_command_has_gone(shared_rmemcached: Server, transport: str, key: str) -> None:
    """The rest of the command is sent all the same. The next command is a command of its own."""
    with Client(shared_rmemcached.address, transport=transport, timeout=20, default_noreply=False) as client:
        assert client.set(key, b"value")
        with pytest.raises(MemcacheClientError):
            client.raw_command(b"get " + b"y" * 300_000)
        assert client.get(key) == b"value"


def test_server_gone_is_a_refused_connection(client: Client) -> None:
    client.close()
    for transport in ("tcp", "auto"):
        port = free_port()
        with pytest.raises(ConnectionRefusedError, match=f"Connection refused: '127.0.0.1:{port}'"):
            Client(("127.0.0.1", port), transport=transport).get("key")


def test_an_error_of_connecting_names_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{path}'"):
        Client(path).get("key")
    with pytest.raises(socket.gaierror, match=r"no\.such\.host\.invalid:11211"):
        Client("no.such.host.invalid").get("key")
    # The queue of connections is full: nothing answers.
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{address[1]}"):
            Client(address, connect_timeout=0.2).get("key")


@pytest.mark.device("the end of a queue pair")
@pytest.mark.parametrize(
    "transport, name",
    [("tcp", "memcached"), ("tcp", "rmemcached"), *((transport, "rmemcached") for transport in RDMA_TRANSPORTS)],
)
@pytest.mark.parametrize("operation", some(["gat", "gat large", "set", "set large", "gat_many", "set_many"]))
def test_server_killed_in_the_middle(request: pytest.FixtureRequest, transport: str, name: str, operation: str) -> None:
    server = request.getfixturevalue(f"{name}_server")("-I", "8m")
    with Client(server.address, transport=transport, default_noreply=False, timeout=20) as client:
        client.set("small", b"x")
        client.set("large", LARGE)
        calls: dict[str, Callable[[], Any]] = {
            "gat": lambda: client.gat("small"),
            "gat large": lambda: client.gat("large"),
            "set": lambda: client.set("small", b"y"),
            "set large": lambda: client.set("large", LARGE * 10),
            "gat_many": lambda: client.gat_many(["small", "large"] * 10),
            "set_many": lambda: client.set_many({"a": LARGE, "b": b"x", "c": LARGE}),
        }
        suspend(server.pid)
        raised: list[BaseException] = []

        def call() -> None:
            try:
                calls[operation]()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        wait_until_busy(client)
        server.kill()
        thread.join(20)
        assert len(raised) == 1
        assert isinstance(raised[0], (MemcacheUnexpectedCloseError, ConnectionError)), raised
        with pytest.raises(OSError):
            client.get("small")


def test_server_restarts(rmemcached_server: ServerFactory) -> None:
    first = rmemcached_server()
    client = Client(first.address, default_noreply=False)
    client.set("key", b"value")
    first.stop()
    with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError)):
        client.get("key")
    with pytest.raises(ConnectionRefusedError):
        client.get("key")
    client.close()


def test_the_servers_reason_is_in_the_message(shared_rmemcached: Any, key: str) -> None:
    with Client(shared_rmemcached.address, transport="soft_iw", timeout=20) as client:
        with pytest.raises(MemcacheUnexpectedCloseError, match="SERVER_ERROR rdma: RDMA READ failed"):
            client.raw_command(f"ms {key} 100000 @1000:1")
        assert client.version()
        assert client.get(key) is None


@pytest.mark.device("waits for completions")
@pytest.mark.parametrize("spin", [None, 0])
def test_timeout(backend: Any, spin: float | None, key: str) -> None:
    patient = Client(backend.server.address, transport=backend.transport, timeout=20, default_noreply=False)
    # This client connects before the server stops: connecting to a stopped server would take up the time-out.
    impatient = Client(
        backend.server.address, transport=backend.transport, timeout=0.5, default_noreply=False, spin=spin
    )
    with patient, impatient as client:
        patient.set(key, LARGE)
        client.version()
        with suspended(backend.server.pid):
            for call in (
                lambda: client.gat(key),
                lambda: client.set(key, LARGE * 20),
            ):
                with pytest.raises(TimeoutError):
                    call()
                with pytest.raises(TimeoutError):  # a new connection: accepted by the kernel, not served
                    Client(backend.server.address, transport="tcp", timeout=0.2).get(key)
        client.close()
        assert patient.get(key) in (LARGE, LARGE * 20)
        assert client.version()


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"XYZZY\r\n", MemcacheUnknownError),
        (b"VA x\r\n", MemcacheUnknownError),
        (b"VA 3\r\nabcd\r\n", MemcacheUnknownError),
        (b"VA 99999999999999999999999\r\n", MemcacheUnknownError),
        (b"VA 999999999999\r\n", MemcacheUnknownError),
        (b"VA 3 f99999999999\r\nabc\r\n", MemcacheUnknownError),
        (b"VA 5 @\r\n", MemcacheUnknownError),
        (b"VA 10\r\nabc", MemcacheUnexpectedCloseError),
        (b"VA 100000\r\n" + b"x" * 50000, MemcacheUnexpectedCloseError),
        (b"V", MemcacheUnexpectedCloseError),
        (b"", MemcacheUnexpectedCloseError),
        (b"x" * 200000, MemcacheUnknownError),
        (b"ERROR\r\n", MemcacheUnknownCommandError),
        (b"CLIENT_ERROR no\r\n", MemcacheClientError),
        (b"SERVER_ERROR no\r\n", MemcacheServerError),
    ],
)
def test_hostile_server(answer: bytes, error: type[Exception]) -> None:
    with answering_all(answer, meta=True) as address:
        with Client(address, transport="tcp", timeout=20, serde=Identity()) as client:
            with pytest.raises(error) as raised:
                client.get("key")
            assert raised.type is error
            client.close()
        with Client(address, transport="tcp", timeout=20, ignore_exc=True) as client:
            assert client.get("key", "default") == "default"


class Identity:
    """A serde that leaves values alone. With a serde the client asks the server for the flags."""

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        return value, 0

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        return value


def test_reply_in_small_pieces(key: str) -> None:
    """A reply cut at any place is read."""
    text = b"VA 10 f7\r\n0123456789\r\n"

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        know_meta(connection)
        for cut in range(1, len(text)):
            received = b""
            while not received.endswith(b"\r\n"):
                received += connection.recv(1000)
            connection.sendall(text[:cut])
            connection.sendall(text[cut:])

    with serving(serve) as address, Client(address, transport="tcp", timeout=20, serde=Identity()) as client:
        for _ in range(1, len(text)):
            assert client.get("key") == b"0123456789"


def test_what_has_come_of_a_reply_stays_its_clients() -> None:
    """Half of an error line stays its Client's, while another Client is used in between."""
    value, rounds = bytes(32 << 20), 5

    def serve(connection: socket.socket, digit: bytes) -> None:
        with connection.makefile("rb") as stream:
            know_meta(connection)
            for number in range(rounds):
                stream.read(1)
                connection.sendall(b"SERVER_ERROR " + digit * number)
                assert stream.readline() == b"s key %d q\r\n" % len(value)
                stream.read(len(value) + 2)
                assert stream.readline() + stream.readline() == b"mn\r\nmg key v\r\n"
                connection.sendall(digit + b"\r\nMN\r\nVA 10\r\n" + digit * 10 + b"\r\n")

    with contextlib.ExitStack() as stack:
        clients = {}
        for digit in (b"1", b"2"):
            address = stack.enter_context(serving(partial(serve, digit=digit)))
            clients[digit * 10] = stack.enter_context(Client(address, transport="tcp", timeout=20))
        for _ in range(rounds):
            for client in clients.values():
                client.set("key", value, noreply=True)
            for found, client in clients.items():
                assert client.get("key") == found


# --- signals, threads, forks ---


@pytest.mark.device("waits for completions")
@pytest.mark.parametrize("spin", [None, 0])
def test_signal_handlers_run_while_waiting(backend: Any, key: str, spin: float | None) -> None:
    with Client(
        backend.server.address, transport=backend.transport, timeout=20, default_noreply=False, spin=spin
    ) as client:
        client.set(key, b"value")
        seen = []

        def alarm(seconds: float) -> None:
            """Sends alarms repeatedly: a signal just before the client begins to wait does not wake the client."""
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

        def go_on(number: int, frame: object) -> None:
            alarm(0)
            seen.append(number)
            os.kill(backend.server.pid, signal.SIGCONT)

        def give_up(number: int, frame: object) -> None:
            alarm(0)
            raise InterruptedError("given up")

        previous = signal.signal(signal.SIGALRM, go_on)
        try:
            with suspended(backend.server.pid):
                alarm(0.05)
                assert client.gat(key) == b"value"
            assert set(seen) == {signal.SIGALRM}
            signal.signal(signal.SIGALRM, give_up)
            with suspended(backend.server.pid), pytest.raises(InterruptedError, match="given up"):
                alarm(0.05)
                client.gat(key)
            assert client.get(key) == b"value"
        finally:
            alarm(0)
            signal.signal(signal.SIGALRM, previous)


@pytest.mark.device("waits for completions")
def test_other_threads_run_while_one_waits(backend: Any, key: str) -> None:
    """A waiting call has released the GIL: the main thread can let the server go on."""
    with Client(backend.server.address, transport=backend.transport, timeout=20, default_noreply=False) as client:
        client.set(key, b"value")
        with suspended(backend.server.pid):
            thread = threading.Thread(target=client.gat, args=(key,))
            thread.start()
            wait_until_busy(client)
        thread.join(20)
        assert not thread.is_alive()


def test_close_in_the_parent_ends_the_connection_in_spite_of_a_child(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Client(server.address, transport="tcp") as watcher:
        client = Client(server.address, transport="soft_iw")
        client.version()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
        os.close(read_end)
        try:
            client.close()
            while watcher.stats("rdma")[b"rdma_queue_pairs"] != 0:
                pass
        finally:
            os.close(write_end)
            os.waitpid(pid, 0)


# --- together with pymemcache ---


def test_hash_client(shared_memcached: Any, shared_rmemcached: Any, key: str) -> None:
    class OurHashClient(HashClient):
        client_class = Client

    hashed = OurHashClient([shared_memcached.address, shared_rmemcached.address], default_noreply=False, timeout=20)
    values = {f"{key}-{i}": f"{i}".encode() for i in range(100)}
    assert hashed.set_many(values) == []
    assert hashed.get_many(values) == values
    assert hashed.get(f"{key}-5") == b"5"
    hashed.close()

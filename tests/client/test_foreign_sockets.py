"""Waits, orders, limits and errors for users of gevent, eventlet and TLS, and for users of Client.sock."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polling
import pytest
from concurrency import in_child, know_meta, wait_until_busy
from servers import Server
from suspended import suspended
from tls_relay import TlsRelay
from transport import RDMA_TRANSPORTS

from rmemcached.client import Client, MemcacheUnexpectedCloseError

LARGE = bytes(range(256)) * 3000
TIMEOUT = 20.0
CHILD = Path(__file__).with_name("greenlet_child.py")
GREEN = [f"{name}-{how}" for name in ("gevent", "eventlet") for how in ("module", "patched", "late")]
BLOCKING = ["gevent-blocking", "eventlet-blocking"]
PATCHED = [how for how in GREEN if not how.endswith("module")]


@pytest.fixture(params=["memcached", "rmemcached"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"shared_{request.param}")
    return found


class Child:
    """A process of greenlet_child.py for many tests in turn: most take less time than the process's start."""

    def __init__(self, how: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
        )

    def wrong(self, test: str, arguments: dict[str, Any]) -> str:
        """Runs the test in the process. Returns the reason of a failure, or an empty text."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([test, arguments]).encode() + b"\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline() if polling.readable(self.process.stdout, 50) else b""
        if answer:
            return str(json.loads(answer))
        self.errors.seek(0)
        return f"it did not answer; status {self.process.poll()}\n{self.errors.read().decode()}"

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.errors, self.process.stdin):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


CHILDREN: dict[str, Child] = {}


@pytest.fixture(scope="module", autouse=True)
def children() -> Iterator[None]:
    yield
    while CHILDREN:
        CHILDREN.popitem()[1].end()


def run_child(how: str, test: str, server: Server, **arguments: Any) -> None:
    """Runs a test of greenlet_child.py. A failed test ends its process."""
    given = {"server": server.address, "pid": server.pid, **arguments}
    child = CHILDREN.get(how) or CHILDREN.setdefault(how, Child(how))
    try:
        wrong = child.wrong(test, given)
    finally:
        # An unfinished test may have left the server stopped.
        os.kill(server.pid, signal.SIGCONT)
    if wrong:
        CHILDREN.pop(how).end()
    assert not wrong, wrong


# --- gevent and eventlet ---


@pytest.mark.parametrize("what", ["commands", "many", "batch"])
@pytest.mark.parametrize("how", GREEN + BLOCKING)
def test_each_server(how: str, what: str, server: Server) -> None:
    """Greenlets get right answers to all commands, share a client, and send more bytes than all buffers hold."""
    run_child(how, what, server)


@pytest.mark.parametrize("what", ["others_run", "interrupted", "time_limit", "copies"])
@pytest.mark.parametrize("how", GREEN)
def test_greenlets(how: str, what: str, shared_memcached: Server) -> None:
    """Greenlets run while a call waits; the end of a call leaves a usable client; calls have a time limit; copies keep
    the socket module."""
    run_child(how, what, shared_memcached)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
@pytest.mark.parametrize("how", PATCHED)
def test_explicit_rdma_on_patched_sockets(how: str, transport: str, shared_rmemcached: Server) -> None:
    run_child(how, "rdma", shared_rmemcached, transport=transport)


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
@pytest.mark.parametrize("how", PATCHED)
def test_what_blocks_greenlets_is_told_once(how: str, transport: str, shared_rmemcached: Server) -> None:
    child = Child(how)
    try:
        arguments = {"server": shared_rmemcached.address, "pid": shared_rmemcached.pid, "transport": transport}
        assert child.wrong("warned", arguments) == ""
    finally:
        child.end()


@pytest.mark.parametrize("how", ["gevent-module", "gevent-patched"])
def test_native_threads_beside_greenlets(how: str, shared_memcached: Server) -> None:
    run_child(how, "native_threads", shared_memcached)


@pytest.mark.parametrize("how", ["gevent-unpatched", "eventlet-unpatched"])
def test_no_queue_pair_from_before_the_patch_is_used(how: str, shared_rmemcached: Server) -> None:
    run_child(how, "patched_meanwhile", shared_rmemcached)


@pytest.mark.parametrize("how", ["gevent-module", "eventlet-patched"])
def test_unix_socket(how: str, memcached_server: Callable[..., Server], tmp_path: Path) -> None:
    run_child(how, "commands", memcached_server(path=str(tmp_path / "socket")))


# --- socket modules of other kinds ---


def some_module(**functions: Any) -> Any:
    """A module like socket, with its own class of sockets."""
    made = types.ModuleType("some_module")
    vars(made).update({**{name: value for name, value in vars(socket).items() if name.isupper()}, **functions})
    return made


def test_what_is_used_of_a_socket_module(server: Server) -> None:
    names: list[str] = []

    class Socket(socket.socket):
        pass

    def getaddrinfo(*arguments: Any) -> Any:
        names.append(arguments[0])
        return socket.getaddrinfo(*arguments)

    module = some_module(socket=Socket, getaddrinfo=getaddrinfo)
    with Client(server.address, socket_module=module, timeout=TIMEOUT, default_noreply=False) as client:
        assert client.set("key", LARGE)
        assert client.get("key") == LARGE
        assert isinstance(client.sock, Socket)
        assert client.transport == "tcp"
        assert names == [server.host]
        assert client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_next_address_is_tried(shared_memcached: Server) -> None:
    def getaddrinfo(host: str, port: int, *arguments: Any) -> Any:
        found = socket.getaddrinfo(host, port, *arguments)
        return [(*one[:4], (host, 1)) for one in found] + found

    module = some_module(socket=socket.socket, getaddrinfo=getaddrinfo)
    with Client(shared_memcached.address, socket_module=module, timeout=TIMEOUT) as client:
        assert client.version()
    module = some_module(socket=socket.socket, getaddrinfo=lambda host, port, *rest: getaddrinfo(host, 1, *rest))
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.1"):
        Client(shared_memcached.address, socket_module=module, timeout=TIMEOUT).version()


def test_what_a_socket_raises_comes_out_of_the_call(shared_memcached: Server) -> None:
    class Failure(BaseException):
        pass

    class Broken(socket.socket):
        what: BaseException | None = None

        def recv_into(self, *arguments: Any) -> int:
            if Broken.what is not None:
                raise Broken.what
            return super().recv_into(*arguments)

    module = some_module(socket=Broken, getaddrinfo=socket.getaddrinfo)
    with Client(shared_memcached.address, socket_module=module, timeout=TIMEOUT, ignore_exc=True) as client:
        client.set("key", b"value", noreply=False)
        for what in (Failure(), KeyboardInterrupt(), TimeoutError("of the caller")):
            Broken.what = what
            with pytest.raises(type(what)) as caught:
                client.touch("key", noreply=False)
            assert caught.value is what
            Broken.what = None
            assert client.connections == 0
            assert client.get("key") == b"value"
        Broken.what = OSError(5, "Input/output error")
        with pytest.raises(OSError, match=rf"Input/output error during touch: '127.0.0.1:{shared_memcached.port}'"):
            client.touch("key", noreply=False)
        assert client.get("key") is None
        Broken.what = None
        assert client.get("key") == b"value"


def test_the_server_ends(memcached_server: Callable[..., Server]) -> None:
    server = memcached_server()
    module = some_module(socket=socket.socket, getaddrinfo=socket.getaddrinfo)
    with Client(server.address, socket_module=module, timeout=TIMEOUT, default_noreply=False) as client:
        client.set("key", b"value")
        server.stop()
        with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError), match=f"127.0.0.1:{server.port}"):
            client.get("key")
        with pytest.raises(ConnectionRefusedError):
            client.get("key")


# --- TLS ---


@pytest.fixture
def tls(server: Server, certificate: Path) -> Iterator[TlsRelay]:
    with TlsRelay(server, certificate) as relay:
        yield relay


@pytest.fixture
def make_tls(tls: TlsRelay, certificate: Path) -> Iterator[Callable[..., Client]]:
    with contextlib.ExitStack() as stack:

        def make(**arguments: Any) -> Client:
            context = ssl.create_default_context(cafile=str(certificate))
            given = {"tls_context": context, "timeout": TIMEOUT, "default_noreply": False}
            return stack.enter_context(Client(("127.0.0.1", tls.port), **{**given, **arguments}))

        yield make


def test_tls(make_tls: Callable[..., Client], key: str) -> None:
    client = make_tls()
    for value in (b"", b"small", LARGE):
        assert client.set(key, value)
        assert client.get(key) == value
    assert client.set(key, b"later", noreply=True)
    assert client.get(key) == b"later"
    assert client.get_many([key, "none"]) == {key: b"later"}
    assert isinstance(client.sock, ssl.SSLSocket)
    assert client.sock.version() in ("TLSv1.2", "TLSv1.3")
    assert client.transport == "tcp"
    assert client.connections == 1


def test_tls_and_more_than_all_buffers_hold(make_tls: Callable[..., Client], key: str) -> None:
    client = make_tls()
    client.set(key, LARGE[:500_000])
    with client.pipeline() as queued:
        for _ in range(100):
            queued.get(key)
            queued.set("other", LARGE[:100_000])
    assert queued.results == [LARGE[:500_000], True] * 100
    assert client.set_many({f"{key}-{number}": LARGE[:100_000] for number in range(100)}) == []
    assert client.connections == 1


def test_tls_in_threads(make_tls: Callable[..., Client], key: str) -> None:
    client = make_tls()
    client.set(key, b"value")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(client.get, [key] * 100)) == [b"value"] * 100


def test_tls_lets_threads_and_signal_handlers_run(make_tls: Callable[..., Client], server: Server, key: str) -> None:
    client = make_tls()
    client.set(key, b"value")

    class Alarm(BaseException):
        pass

    def on_alarm(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with ThreadPoolExecutor(1) as threads:
            with suspended(server.pid):
                other = threads.submit(client.get, key)
                wait_until_busy(client)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Alarm):
                    client.get(key)
            assert other.result() == b"value"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert client.get(key) == b"value"


def test_tls_time_limit(make_tls: Callable[..., Client], server: Server, tls: TlsRelay, key: str) -> None:
    client = make_tls(timeout=0.1)
    client.set(key, b"value")
    with suspended(server.pid), pytest.raises(TimeoutError, match=f"127.0.0.1:{tls.port}: get: timed out"):
        client.get(key)
    assert client.get(key) == b"value"


def test_tls_server_with_another_certificate(make_tls: Callable[..., Client], tls: TlsRelay) -> None:
    client = make_tls(tls_context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError, match=f"127.0.0.1:{tls.port}.*certificate"):
        client.version()


def test_tls_certificate_of_another_host(tls: TlsRelay, certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    with pytest.raises(ssl.SSLCertVerificationError, match=f"localhost:{tls.port}.*localhost"):
        Client(("localhost", tls.port), tls_context=context, timeout=TIMEOUT).version()


def test_a_server_without_tls(server: Server, certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    client = Client(server.address, tls_context=context, timeout=TIMEOUT, connect_timeout=0.5)
    with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
        client.version()


def test_tls_after_a_fork(make_tls: Callable[..., Client], key: str) -> None:
    client = make_tls()
    client.set(key, LARGE)

    def child() -> None:
        assert client.sock is None
        assert client.get(key) == LARGE
        client.close()

    in_child(child)
    assert client.get(key) == LARGE
    assert client.connections == 1


def test_tls_handshake_with_a_silent_server(certificate: Path) -> None:
    """timeout= limits the handshake without a connect_timeout=."""
    context = ssl.create_default_context(cafile=str(certificate))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{port}"):
            Client(("127.0.0.1", port), tls_context=context, timeout=0.2).version()


@pytest.fixture
def taken(certificate: Path) -> Iterator[Callable[[], tuple[int, Callable[[], ssl.SSLSocket]]]]:
    """taken() listens with TLS: (port, a function that returns the connection after the client has asked for mn)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(1))

        def listen() -> tuple[int, Callable[[], ssl.SSLSocket]]:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def accept() -> ssl.SSLSocket:
                plain, _ = listener.accept()
                made = stack.enter_context(context.wrap_socket(plain, server_side=True))
                know_meta(made)
                return made

            return listener.getsockname()[1], threads.submit(accept).result

        yield listen


def test_what_is_not_tls(taken: Callable[[], Any], certificate: Path) -> None:
    """An error of ssl is not taken for an error of the system, though it has a number, too."""
    port, accepted = taken()
    context = ssl.create_default_context(cafile=str(certificate))
    with Client(("127.0.0.1", port), tls_context=context, timeout=TIMEOUT) as client, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.get, "key")
        server = accepted()
        assert server.recv(64).startswith(b"mg")
        raw = os.dup(server.fileno())
        os.write(raw, b"x" * 200)
        os.close(raw)
        with pytest.raises(ssl.SSLError, match=f"127.0.0.1:{port}: get: .*SSL"):
            answer.result()


@pytest.mark.parametrize("size", [1, 30_000_000], ids=["small", "large"])
def test_a_signal_handlers_time_out_is_not_the_clients(taken: Callable[[], Any], certificate: Path, size: int) -> None:
    """A time-out raised by a signal handler comes out of the call as it is, both from a wait and from a look for
    readiness without a wait."""

    class OfTheCaller(TimeoutError):
        pass

    error = OfTheCaller("of the caller")

    def on_alarm(*_: object) -> None:
        raise error

    port, _ = taken()
    context = ssl.create_default_context(cafile=str(certificate))
    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with Client(("127.0.0.1", port), tls_context=context, timeout=TIMEOUT) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(OfTheCaller) as caught:
                client.set("key", bytes(size), noreply=False)
            assert caught.value is error
            assert client.connections == 0
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", GREEN)
def test_tls_of_greenlets(how: str, tls: TlsRelay, server: Server, certificate: Path) -> None:
    done = types.SimpleNamespace(address=("127.0.0.1", tls.port), pid=server.pid)
    run_child(how, "tls", done, certificate=str(certificate))  # type: ignore[arg-type]


@pytest.mark.parametrize("how", GREEN)
def test_tls_of_greenlets_without_room(how: str, tls: TlsRelay, server: Server, certificate: Path) -> None:
    done = types.SimpleNamespace(address=("127.0.0.1", tls.port), pid=server.pid)
    run_child(how, "tls_without_room", done, certificate=str(certificate))  # type: ignore[arg-type]


# --- Client.sock ---


@pytest.mark.device("the descriptor of its channel")
def test_sock(make_client: Callable[..., Client], backend: Any, key: str) -> None:
    client = make_client()
    assert client.sock is None
    client.set(key, b"value")
    found = client.sock
    if client.transport == "rdma_cm":
        assert found is None
        return
    assert isinstance(found, socket.socket)
    assert client.sock is found
    assert found.getpeername()[1] == backend.server.port
    with pytest.raises(AttributeError):
        client.sock = None
    assert client.get(key) == b"value"
    client.close()
    assert client.sock is None
    assert found.fileno() == -1
    assert client.get(key) == b"value"
    assert client.sock is not found


def test_a_time_out_of_sock_does_not_disturb(make_client: Callable[..., Client], backend: Any, key: str) -> None:
    """A time-out of sock makes the shared descriptor non-blocking, without harm to the client."""
    client = make_client(spin=0)
    client.set(key, LARGE)
    if client.sock is None:
        return
    client.sock.settimeout(5.0)
    with ThreadPoolExecutor(1) as threads:
        with suspended(backend.server.pid):
            waiting = threads.submit(client.gat, key)
            wait_until_busy(client)
        assert waiting.result() == LARGE
    assert client.set(key, b"value")
    assert client.connections == 1


def test_sock_in_a_forked_child(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, b"value")
    found = client.sock

    def child() -> None:
        assert client.sock is None
        assert client.get(key) == b"value"
        client.close()

    in_child(child)
    assert client.sock is found
    assert client.get(key) == b"value"


def descriptors_of(socket_name: str) -> int:
    """The number of descriptors of a socket in this process. The socket has this name in /proc."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names.count(socket_name)


def test_sock_is_made_once_and_closed_with_the_connection(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, b"value")
    if client.sock is None:
        return
    name = os.readlink(f"/proc/self/fd/{client.sock.fileno()}")
    for _ in range(3):
        assert client.get(key) == b"value"
        assert client.sock.fileno() >= 0
    assert descriptors_of(name) == 2
    client.close()
    assert descriptors_of(name) == 0

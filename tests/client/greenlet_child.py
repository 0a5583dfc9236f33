"""A process of gevent or eventlet that uses a Client: python greenlet_child.py HOW.

HOW: a library, and the source of the client's sockets: gevent-module, gevent-patched (before the import of the
client), gevent-late (after the import), gevent-blocking (no patch), and the same for eventlet. Each line of stdin is
JSON, [TEST, ARGUMENTS]: a function below, and its keyword arguments. The answer is a line with a JSON string: the
traceback of a failure, or nothing.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LARGE = bytes(range(256)) * 3000
TIMEOUT = 20.0
MANY = 24


class Greenlets:
    """The common interface of gevent and eventlet for the tests."""

    def __init__(self, how: str) -> None:
        warnings.simplefilter("ignore", DeprecationWarning)
        self.name, _, self.how = how.partition("-")
        if self.how == "late":
            importlib.import_module("rmemcached.client")
        self.library = importlib.import_module(self.name)
        if self.how in ("patched", "late"):
            self.patch()
        self.module = {"gevent": "gevent.socket", "eventlet": "eventlet.green.socket"}[self.name]
        self.waits_alone = self.how == "blocking"

    def patch(self) -> None:
        if self.name == "gevent":
            importlib.import_module("gevent.monkey").patch_all()
        else:
            self.library.monkey_patch()

    def options(self) -> dict[str, Any]:
        return {"socket_module": importlib.import_module(self.module)} if self.how == "module" else {}

    def start(self, work: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Starts a greenlet. Returns a function that waits for the greenlet, and returns or raises its result."""
        started = self.library.spawn(work, *arguments)
        return started.get if self.name == "gevent" else started.wait

    def sleep(self, seconds: float) -> None:
        self.library.sleep(seconds)

    def timeout(self, seconds: float) -> Any:
        """Starts and returns a time limit of the library."""
        limit = self.library.Timeout(seconds)
        if self.name == "gevent":
            limit.start()
        return limit

    def cancel(self, limit: Any) -> None:
        limit.cancel()

    def exit(self) -> type[BaseException]:
        return importlib.import_module("greenlet").GreenletExit


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The server, the child of another process, stands still for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while True:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    break
            time.sleep(0.0005)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def make(green: Greenlets, server: list[Any] | str, **options: Any) -> Any:
    from rmemcached.client import Client

    address = server if isinstance(server, str) else (server[0], server[1])
    given = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT, "default_noreply": False, **green.options()}
    return Client(address, **{**given, **options})


def commands(green: Greenlets, server: Any, pid: int) -> None:
    """Commands of every kind work, and "auto" is plain TCP unless the sockets are the system's."""
    with make(green, server) as client:
        assert client.set("key", b"value") is True
        assert client.get("key") == b"value"
        assert client.set("large", LARGE) is True
        assert client.get("large") == LARGE
        assert client.get_many(["key", "large", "none"]) == {"key": b"value", "large": LARGE}
        assert client.set("key", b"later", noreply=True)
        assert client.get("key") == b"later"
        assert client.delete("none") is False
        assert client.stats()[b"pid"] == pid
        assert client.raw_command("version").startswith(b"VERSION")
        if not green.waits_alone:
            assert client.transport == "tcp"
            assert client.sock.getpeername() is not None


def many(green: Greenlets, server: Any, pid: int) -> None:
    """A Client serves many greenlets at the same time. Each greenlet gets the value of its own last set, though the set
    had no answer."""
    with make(green, server, default_noreply=True) as client:

        def work(number: int) -> int:
            for count in range(50):
                text = b"%d-%d" % (number, count)
                client.set(f"key-{number}", text)
                green.sleep(0)
                assert client.get(f"key-{number}") == text
                if count % 10 == 0:
                    client.set(f"large-{number}", text + LARGE, noreply=False)
                    assert client.get(f"large-{number}") == text + LARGE
            return number

        for _ in range(3):
            waits = [green.start(work, number) for number in range(MANY)]
            assert [wait() for wait in waits] == list(range(MANY))
        assert client.calls == 0
        assert 1 <= client.connections <= MANY


def others_run(green: Greenlets, server: Any, pid: int) -> None:
    """Other greenlets run while a call waits for the server, which goes on only after they have run."""
    with make(green, server) as client:
        client.set("key", b"value")
        ticks = 0
        with stopped(pid):
            wait = green.start(client.get, "key")
            while client.calls == 0 or ticks < 5:
                green.sleep(0.005)
                ticks += 1
            assert client.calls == 1
            # The second call needs a connection of its own, and waits for the stopped server while it connects.
            second = green.start(client.set, "large", LARGE)
            for _ in range(5):
                green.sleep(0.005)
            assert client.calls == 1
        assert wait() == b"value"
        assert second() is True
        assert client.connections == 2


def interrupted(green: Greenlets, server: Any, pid: int) -> None:
    """Time limits of the library, and the end of a greenlet, come out of a call as they are; the client goes on."""
    with make(green, server) as client:
        client.set("key", b"value")
        for call in (lambda: client.get("key"), lambda: client.set("other", LARGE), lambda: client.get_many(["key"])):
            with stopped(pid):
                limit = green.timeout(0.05)
                try:
                    call()
                except BaseException as error:
                    assert error is limit, repr(error)
                else:
                    raise AssertionError("the server stood still")
                finally:
                    green.cancel(limit)
            assert client.calls == 0
            assert client.connections == 0
            client.set("key", b"value")
            assert client.get("key") == b"value"
        with stopped(pid):
            raised: list[BaseException] = []

            def work() -> None:
                try:
                    client.get("key")
                except BaseException as error:
                    raised.append(error)
                    raise

            started = green.library.spawn(work)
            while client.calls == 0:
                green.sleep(0.005)
            started.kill()
            assert isinstance(raised[0], green.exit())
        assert client.get("key") == b"value"


def time_limit(green: Greenlets, server: Any, pid: int) -> None:
    from rmemcached.client import MemcacheError

    with make(green, server, timeout=0.1) as client:
        client.set("key", b"value")
        with stopped(pid):
            for call in (lambda: client.get("key"), lambda: client.set("key", LARGE * 16)):
                try:
                    call()
                except TimeoutError as error:
                    assert "timed out" in str(error) and str(server[1]) in str(error), error
                else:
                    raise AssertionError("the server stood still")
                break
        assert client.get("key") == b"value"
        try:
            client.raw_command("nothing like it")
        except MemcacheError as error:
            assert str(server[1]) in str(error)


def batch(green: Greenlets, server: Any, pid: int) -> None:
    """A batch beyond all buffers is answered: the client reads answers while it sends. Otherwise the server would stop
    reading."""
    with make(green, server) as client:
        client.set("large", LARGE[:500_000])
        with client.pipeline() as queued:
            for _ in range(200):
                queued.get("large")
                queued.set("other", LARGE[:100_000])
        assert queued.results == [LARGE[:500_000], True] * 200
        assert client.connections == 1
        client.set_many({f"key-{number}": LARGE[:100_000] for number in range(200)}, noreply=True)
        assert client.get("key-199") == LARGE[:100_000]


def rdma(green: Greenlets, server: Any, pid: int, transport: str) -> None:
    """A transport named by the caller works on patched sockets, and blocks."""
    with make(green, server, transport=transport) as client:
        client.set("key", LARGE)
        assert client.get("key") == LARGE
        assert client.transport == transport
        waits = [green.start(client.get, "key") for _ in range(4)]
        assert [wait() for wait in waits] == [LARGE] * 4


def warned(green: Greenlets, server: Any, pid: int, transport: str) -> None:
    """A single line warns that RDMA blocks, whatever the number of clients. TCP clients get no warning."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rmemcached.client").addHandler(handler)
    for chosen in ("tcp", "auto", transport, transport):
        with make(green, server, transport=chosen) as client:
            client.set("key", b"value")
            assert client.get("key") == b"value"
        assert len(lines) == (chosen == transport), lines
    assert f"{server[0]}:{server[1]}: transport {transport}: " in lines[0] and "no other greenlet" in lines[0]


def patched_meanwhile(green: Greenlets, server: Any, pid: int) -> None:
    """After late patching a new connection does not block the greenlets, whatever connections came before."""
    with make(green, server) as first:
        first.set("key", b"value")
        green.patch()
        with make(green, server) as second:
            assert second.get("key") == b"value"
            assert second.transport == "tcp"
            assert first.get("key") == b"value"


def copies(green: Greenlets, server: Any, pid: int) -> None:
    with make(green, server) as client:
        client.set("key", b"value")
        for again in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
            with again:
                assert again.socket_module is client.socket_module
                assert again.get("key") == b"value"


def native_threads(green: Greenlets, server: Any, pid: int) -> None:
    """Each thread makes connections of its own: a socket of gevent belongs to a thread's event loop."""
    with make(green, server) as client:
        client.set("key", b"value")
        pool = green.library.get_hub().threadpool
        for _ in range(3):
            assert pool.apply(client.get, ("key",)) == b"value"
            assert client.get("key") == b"value"
        assert 2 <= client.connections <= 4


def tls_without_room(green: Greenlets, server: Any, pid: int, certificate: str) -> None:
    """While a request beyond the buffers waits for a stopped server, other greenlets run, and the call ends in time."""
    path = {"gevent": "gevent.ssl", "eventlet": "eventlet.green.ssl"}[green.name]
    library = importlib.import_module(path if green.how == "module" else "ssl")
    context = library.SSLContext(library.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    with make(green, server, tls_context=context, timeout=0.5) as client:
        client.set("key", b"value")
        with stopped(pid):
            wait = green.start(client.set, "large", bytes(100_000_000))
            for _ in range(20):
                green.sleep(0.005)
            assert client.calls == 1
            try:
                wait()
            except TimeoutError as error:
                assert "set: timed out" in str(error)
            else:
                raise AssertionError("the server stood still")
        assert client.get("key") == b"value"


def tls(green: Greenlets, server: Any, pid: int, certificate: str) -> None:
    """The library's own TLS sockets work."""
    path = {"gevent": "gevent.ssl", "eventlet": "eventlet.green.ssl"}[green.name]
    library = importlib.import_module(path if green.how == "module" else "ssl")
    context = library.SSLContext(library.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    with make(green, server, tls_context=context) as client:
        client.set("key", LARGE)
        assert client.get("key") == LARGE
        waits = [green.start(client.get, "key") for _ in range(4)]
        assert [wait() for wait in waits] == [LARGE] * 4
        with stopped(pid):
            wait = green.start(client.get, "key")
            for _ in range(5):
                green.sleep(0.005)
            assert client.calls == 1
        assert wait() == LARGE
        client.set("key", LARGE)
        with client.pipeline() as queued:
            for _ in range(40):
                queued.get("key")
                queued.set("other", LARGE[:100_000])
        assert queued.results == [LARGE, True] * 40


def main() -> None:
    green = Greenlets(sys.argv[1])
    for line in sys.stdin:
        name, arguments = json.loads(line)
        wrong = ""
        try:
            globals()[name](green, **arguments)
        except BaseException:
            wrong = traceback.format_exc()
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()

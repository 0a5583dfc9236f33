"""Clients over every transport, and pymemcache beside them."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop
from classic_relay import ClassicRelay
from concurrency import Run
from gated_relay import Gate, GatedRelay
from pymemcache.client.base import Client as PymemcacheClient
from servers import Server, start_rmemcached
from tls_relay import make_certificate
from transport import PACE, RDMA_TRANSPORTS

from rmemcached.client import Client

TIMEOUT = 20.0
BACKENDS = [("tcp", "memcached"), ("tcp", "rmemcached"), *((name, "rmemcached") for name in RDMA_TRANSPORTS)]
# A client over rdma_cm has no TCP connection.
OVER_TLS = [(name, "tls") for name in ("tcp", *RDMA_TRANSPORTS) if name != "rdma_cm"]
VARIABLE = "RMEMCACHED_TEST_TLS"
# The files whose tests run over TLS in every run. With VARIABLE=all the tests of all files do (script/test --tls).
ALWAYS_OVER_TLS = ("test_client_values.py", "test_client_objects.py")
# Tests without a row over TLS, with the reason.
NEVER_OVER_TLS = {
    "test_client_objects.py::test_the_expire_of_gat_is_what_the_server_makes_of_it": "has a plain socket of its own",
    "test_client_threads.py::test_pymemcaches_pool": "pymemcache's pool takes no URL",
    "test_foreign_sockets.py::test_sock_is_made_once_and_closed_with_the_connection": "there are two descriptors",
    "test_serde.py::test_threads_copies_and_other_clients": "pymemcache takes no URL",
    "test_urls.py::test_a_connection": "has URLs of its own",
}
_numbers = itertools.count()


class SecureServer:
    """A daemon with TLS: its address is a URL, so its Clients have TLS. Otherwise a Server."""

    def __init__(self, server: Server, certificate: Path) -> None:
        self.server = server
        self.context = ssl.create_default_context(cafile=str(certificate))
        self.address = f"memcacheds://{server.host}:{server.port}?tls_ca={certificate}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)


class Backend(NamedTuple):
    """A transport and the server to use over the transport."""

    transport: str
    server: Server


def over_tls(item: pytest.Item) -> bool:
    found = getattr(item, "callspec", None)
    return found is not None and found.params.get("backend") in OVER_TLS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the rows over TLS, except of some files, or of all tests with such a row."""
    every = os.environ.get(VARIABLE) == "all"
    left_out = [
        item
        for item in items
        if over_tls(item)
        and (
            item.nodeid.rpartition("/")[2].partition("[")[0] in NEVER_OVER_TLS
            or not (every or item.path.name in ALWAYS_OVER_TLS)
        )
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session", autouse=True)
def devices(shared_rmemcached: Server) -> None:
    """Opens the device of each transport, before a test's live objects are counted: a process keeps devices open."""
    for transport in RDMA_TRANSPORTS:
        with Client(shared_rmemcached.address, transport=transport, timeout=TIMEOUT) as client:
            client.version()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    make_certificate(path)
    return path


@pytest.fixture(scope="session")
def shared_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A daemon of ours with TLS, like shared_rmemcached."""
    certificate = tmp_path_factory.mktemp("shared_tls") / "server.pem"
    make_certificate(certificate)
    files = f"ssl_chain_cert={certificate},ssl_key={certificate.with_suffix('.key')}"
    cleartext = ["-o", "rdma_cleartext"] if "verbs" in RDMA_TRANSPORTS else []
    server = start_rmemcached("-m", "512", "-I", "8m", "-t", "2", "-Z", "-o", files, *cleartext)
    yield SecureServer(server, certificate)
    server.stop()
    assert server.ended_well(), server.stderr()


@pytest.fixture(params=BACKENDS + OVER_TLS, ids="-".join)
def backend(request: pytest.FixtureRequest) -> Backend:
    transport, name = request.param
    return Backend(transport, request.getfixturevalue(f"shared_{name}"))


@pytest.fixture
def make_client(backend: Backend) -> Iterator[Callable[..., Client]]:
    """make_client(**arguments) connects to the backend. By default the Client waits for replies."""
    with ExitStack() as stack:

        def make(**arguments: Any) -> Client:
            settings: dict[str, Any] = {"transport": backend.transport, "timeout": TIMEOUT, "default_noreply": False}
            return stack.enter_context(Client(backend.server.address, **{**settings, **arguments}))

        yield make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


@pytest.fixture
def make_oracle(backend: Backend) -> Iterator[Callable[..., PymemcacheClient]]:
    """make_oracle(**arguments): pymemcache on the same server."""
    made: list[PymemcacheClient] = []

    def make(**arguments: Any) -> PymemcacheClient:
        settings: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "no_delay": True}
        server = backend.server
        settings["tls_context"] = getattr(server, "context", None)
        # The address of a server with TLS is a URL.
        address = server.address if isinstance(server.address, tuple) else (server.host, server.port)
        made.append(PymemcacheClient(address, **{**settings, **arguments}))
        return made[-1]

    yield make
    for oracle in made:
        oracle.close()


@pytest.fixture
def oracle(make_oracle: Callable[..., PymemcacheClient]) -> PymemcacheClient:
    return make_oracle()


@pytest.fixture
def make(server: Server) -> Iterator[Callable[..., Client]]:
    """make(transport, **arguments) connects to the fixture `server` of the test's file."""
    with ExitStack() as stack:

        def make(transport: str, **arguments: Any) -> Client:
            settings: dict[str, Any] = {"timeout": TIMEOUT * PACE, "default_noreply": False, **arguments}
            return stack.enter_context(Client(server.address, transport=transport, **settings))

        yield make


@pytest.fixture
def make_relay(shared_memcached: Server) -> Iterator[Callable[..., ClassicRelay]]:
    """make_relay(*refuses, **options) starts a relay in front of memcached."""
    with ExitStack() as stack:
        yield lambda *refuses, **options: stack.enter_context(
            ClassicRelay(shared_memcached, refuses=refuses, **options)
        )


@pytest.fixture
def gate() -> Gate:
    return Gate(4)


@pytest.fixture
def relays(shared_memcached: Server, gate: Gate) -> Iterator[list[GatedRelay]]:
    """Four relays in front of a server. A closed gate holds every request until each relay has a request."""
    with ExitStack() as stack:
        yield [stack.enter_context(GatedRelay(shared_memcached, gate)) for _ in range(4)]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """run(coroutine) in a new event loop."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(body: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(body, 60))

    return run


@pytest.fixture
def key() -> str:
    """A key unused by all earlier tests. The key begins with new-: the load generator's tests use key-1 on the same
    servers.

    Tests append numbers to the key. Without the hyphen at its end, new-1 with 908 would be another test's new-1908.
    """
    return f"new-{next(_numbers)}-"


@pytest.fixture
def three(rmemcached_server: Callable[..., Server]) -> list[Server]:
    """Three daemons of ours for a test, which may end them."""
    return [rmemcached_server("-t", "1") for _ in range(3)]

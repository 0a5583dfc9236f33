"""Fixtures that every test folder shares: daemons on ephemeral loopback ports.

A test that asks for a daemon fails when that daemon ends by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "shared")]

import transport  # noqa: E402
from servers import Server, start_memcached, start_rmemcached  # noqa: E402

ServerFactory = Callable[..., Server]


def _stop_all(started: list[Server]) -> None:
    crashed = [server for server in started if not server.ended_by_us and not server.alive()]
    for server in reversed(started):
        server.stop()
    for server in crashed:
        pytest.fail(f"{server.command} ended with status {server.process.returncode}:\n{server.stderr()}")


def _factory(start: ServerFactory) -> Iterator[ServerFactory]:
    started: list[Server] = []

    def make(*arguments: str, path: str | None = None) -> Server:
        server = start(*arguments, path=path)
        started.append(server)
        return server

    yield make
    _stop_all(started)


@pytest.fixture(scope="module", params=transport.RDMA_TRANSPORTS)
def rdma_transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each test once for each transport, which is that of transport.rdma() meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(transport.VARIABLE, request.param)
        yield request.param


@pytest.fixture
def rmemcached_server() -> Iterator[ServerFactory]:
    """rmemcached_server(*flags, path=None) starts our daemon; it is stopped after the test."""
    yield from _factory(start_rmemcached)


@pytest.fixture
def memcached_server() -> Iterator[ServerFactory]:
    """memcached_server(*flags, path=None) starts the installed memcached; it is stopped after the test."""
    yield from _factory(start_memcached)


@pytest.fixture(scope="session")
def shared_rmemcached() -> Iterator[Server]:
    """One daemon of ours (-m 256 -I 8m -t 2) for all tests that neither end, flush nor fill it."""
    server = start_rmemcached("-m", "256", "-I", "8m", "-t", "2")
    yield server
    _stop_all([server])


@pytest.fixture(scope="module")
def module_rmemcached() -> Iterator[Server]:
    """One daemon of ours (-m 256 -I 8m -t 2) for the tests of a module, which may fill it."""
    server = start_rmemcached("-m", "256", "-I", "8m", "-t", "2")
    yield server
    _stop_all([server])


@pytest.fixture(scope="session")
def shared_memcached() -> Iterator[Server]:
    """One memcached (-m 256 -I 8m -t 2) for all tests that neither end nor flush it."""
    server = start_memcached("-m", "256", "-I", "8m", "-t", "2")
    yield server
    _stop_all([server])

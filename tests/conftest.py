"""Fixtures for every test folder: daemons on ephemeral loopback ports, and a check of live objects.

A test fails when one of its daemons ends by itself, or with an error.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "shared")]
# The tools of the whole daemon's tests; tests/hostile uses them too.
sys.path.append(str(ROOT / "tests" / "system"))

import transport  # noqa: E402
import turns  # noqa: E402
from live import left_behind  # noqa: E402
from scripted import Scripted  # noqa: E402
from servers import Server, start_memcached, start_rmemcached  # noqa: E402

from rmemcached.sys.debug import debug_build, live_objects  # noqa: E402

ServerFactory = Callable[..., Server]

# Folders whose tests use the layers, or the client, in their own process.
IN_PROCESS = {"store", "verbs", "protocol", "drive_machine", "client"}
LEFT_SECONDS = 5.0  # limit for the end of threads after a test told them to end
FAILED = pytest.StashKey[bool]()
LEFT_OUT = pytest.StashKey[list[str]]()
# Options of all daemons and stores, with the marker of the tests that fail with them.
EXCLUDING = {"lru_algorithm=s3fifo": "segmented", "rdma_direct": "by_default", "-e ": "no_memory_file"}


def pytest_addoption(parser: pytest.Parser) -> None:
    turns.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    turns.register(config)


def pytest_collection_finish() -> None:
    """Excludes the modules and the collected tests, which live until the end, from later collections of garbage."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that fail with RMEMCACHED_TEST_OPTIONS, and lists them at the end."""
    options = os.environ.get("RMEMCACHED_TEST_OPTIONS", "")
    names = [mark for option, mark in EXCLUDING.items() if option in options]
    marks = [(item, next(filter(None, map(item.get_closest_marker, names)), None)) for item in items]
    left_out = [item for item, mark in marks if mark is not None]
    lines = {f"{item.nodeid.partition('[')[0]}: {mark.args[0]}" for item, mark in marks if mark is not None}
    if left_out:
        config.stash[LEFT_OUT] = sorted(lines)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, mark in marks if mark is None]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(LEFT_OUT, []):
        terminalreporter.section("left out because of RMEMCACHED_TEST_OPTIONS")
        for line in config.stash[LEFT_OUT]:
            terminalreporter.line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Frees sockets and queue pairs before the next test: the traceback of a failed test holds them."""
    result = yield
    if item.stash.get(FAILED, False):
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()
    return result


@pytest.fixture(autouse=True)
def daemons_that_are_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons of tests with the marker without_direct permit no direct reads."""
    if request.node.get_closest_marker("without_direct"):
        options = os.environ.get("RMEMCACHED_TEST_OPTIONS", "")
        monkeypatch.setenv("RMEMCACHED_TEST_OPTIONS", f"{options} -o rdma_direct=off")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a debug build, a test fails if more objects are alive after the test than before.

    A failed test may leave objects: its traceback refers to them.
    """
    if not debug_build or request.path.relative_to(ROOT / "tests").parts[0] not in IN_PROCESS:
        yield
        return
    before = live_objects()
    yield
    # pytest would keep the values of fixtures, and so their objects, beyond this check.
    request.node.funcargs.clear()
    if not request.node.stash.get(FAILED, False) and (left := left_behind(before, LEFT_SECONDS)):
        pytest.fail(f"left behind: {left}")


def _stop_all(started: list[Server]) -> None:
    crashed = [server for server in started if not server.ended_by_us and not server.alive()]
    for server in reversed(started):
        server.stop()
    for server in started:
        if server in crashed or not server.ended_well():
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
    """Runs each test once for each transport. Meanwhile transport.rdma() returns the transport."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(transport.VARIABLE, request.param)
        yield request.param


@pytest.fixture
def rmemcached_server() -> Iterator[ServerFactory]:
    """rmemcached_server(*flags, path=None) starts our daemon. The fixture stops the daemon at the end."""
    yield from _factory(start_rmemcached)


@pytest.fixture(scope="module")
def module_server() -> Iterator[ServerFactory]:
    """module_server(*flags, path=None) starts our daemon for the tests of a module."""
    yield from _factory(start_rmemcached)


@pytest.fixture
def memcached_server() -> Iterator[ServerFactory]:
    """memcached_server(*flags, path=None) starts the installed memcached. The fixture stops the server at the end."""
    yield from _factory(start_memcached)


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[bytes], Iterator[bytes]]], Scripted]]:
    """scripted(answers) starts a server with these answers. The fixture stops the server after the test."""
    started: list[Scripted] = []

    def start(answers: Callable[[bytes], Iterator[bytes]]) -> Scripted:
        started.append(Scripted(answers))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def shared_rmemcached() -> Iterator[Server]:
    """A daemon of ours (-m 512 -I 8m -t 2) for all tests that do not end, flush or fill the daemon."""
    server = start_rmemcached("-m", "512", "-I", "8m", "-t", "2")
    yield server
    _stop_all([server])


@pytest.fixture(scope="module")
def module_rmemcached(module_server: ServerFactory) -> Server:
    """A daemon of ours (-m 256 -I 8m -t 2) for the tests of a module, which may fill its memory."""
    return module_server("-m", "256", "-I", "8m", "-t", "2")


@pytest.fixture(scope="session")
def shared_memcached() -> Iterator[Server]:
    """A memcached (-m 256 -I 8m -t 2) for all tests that do not end or flush the server."""
    server = start_memcached("-m", "256", "-I", "8m", "-t", "2")
    yield server
    _stop_all([server])

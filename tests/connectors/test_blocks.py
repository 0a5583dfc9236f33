"""The common parts of the connectors for blocks: settings, memory of any format, leftovers in the server, forks."""

from __future__ import annotations

import array
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from concurrency import in_child
from lmcache_adapter import Adapter
from polling import eventually
from servers import Server
from suspended import suspended

from rmemcached.client import Client, MemcacheServerError
from rmemcached.connectors._blocks import Blocks
from rmemcached.connectors._keys import block_key
from rmemcached.connectors._workers import Workers
from rmemcached.connectors.lmcache import RMemcachedConnector

MEGABYTE = 1 << 20
DAY = 24 * 3600


@pytest.fixture
def blocks(rmemcached_server: Callable[..., Server]) -> Iterator[Blocks]:
    made = Blocks(rmemcached_server("-m", "64", "-t", "1").address)
    yield made
    made.close()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rmemcached-blocks")]


@pytest.mark.parametrize("size", [1000, 3 * MEGABYTE])
@pytest.mark.parametrize("days", [29, 31, 400, 40_000])
def test_blocks_that_are_kept_for_long(shared_rmemcached: Server, size: int, days: int) -> None:
    """Blocks kept for long stay: memcached takes more than 30 days for a date of 1970, and has no date after 2038."""
    blocks = Blocks(shared_rmemcached.address, prefix="days:", expire=days * DAY)
    target = memoryview(bytearray(size))
    assert blocks.store("name", memoryview(b"x" * size)) and blocks.load("name", target)
    left = blocks.client.ttl(blocks.key("name"))
    assert left == -1 if days > 20_000 else days * DAY - 10 < left <= days * DAY + 1
    blocks.close()


@pytest.mark.parametrize("code", ["B", "b", "d"])
@pytest.mark.parametrize("count", [0, 4, 5, 100, 400_000])
def test_memory_of_any_format(blocks: Blocks, code: str, count: int) -> None:
    """Blocks are bytes of memory of any format, also blocks stored in pieces."""
    source = memoryview(array.array(code, [number % 100 for number in range(count)]))
    target = memoryview(array.array(code, [0]) * count)
    assert blocks.store("name", source)
    assert blocks.load("name", target) and target == source
    if count and count % 2 == 0:
        square = target.cast("B").cast("B", (2, target.nbytes // 2))
        square.cast("B")[:] = bytes(target.nbytes)
        assert blocks.load("name", square) and target == source
        assert blocks.store("square", square) and blocks.load("square", target) and target == source


def test_what_is_refused_in_part_leaves_nothing(rmemcached_server: Callable[..., Server]) -> None:
    """Pieces of refused blocks do not fill a server that evicts nothing."""
    server = rmemcached_server("-m", "16", "-M", "-t", "1")
    blocks = Blocks(server.address)
    assert blocks.store("small", memoryview(b"value"))
    for _ in range(3):
        with pytest.raises(MemcacheServerError, match="out of memory"):
            blocks.store("big", memoryview(bytearray(40 * MEGABYTE)))
        assert server.stats()["curr_items"] == "1"
    # The server's pages belong to large items now.
    assert blocks.store("fits", memoryview(bytearray(3 * MEGABYTE)))
    blocks.close()


def test_names_that_utf_8_does_not_have() -> None:
    names: list[str | bytes] = [
        "\ud800",
        "\ud800a",
        "\udfff",
        "\udc80",
        b"\x80",
        "\x80",
        "a b",
        "a\tb",
        "a\u00a0b",
        "a\x00b",
        b"\xed\xa0\x80",
    ]
    # A byte outside of UTF-8 has the same key as bytes and as Python's text: b"\x80" and "\udc80".
    assert len({block_key(name) for name in names}) == len(names) - 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expire": "soon"}, "expire has to be 0 or more seconds, not 'soon'"),
        ({"expire": None}, "expire has to be 0 or more seconds, not None"),
        ({"expire": float("inf")}, "expire has to be 0 or more seconds, not inf"),
        ({"timeout": "x"}, "timeout has to be 0 or more seconds, not 'x'"),
        ({"timeout": "0"}, "timeout must be positive seconds or None, not 0.0"),
        ({"connect_timeout": [1]}, r"connect_timeout has to be 0 or more seconds, not \[1\]"),
        ({"workers": "many"}, "workers has to be 1 or more, not 'many'"),
        ({"workers": 1.5}, "workers has to be a whole number, not 1.5"),
        ({"workers": True}, "workers has to be 1 or more, not True"),
        ({"port": "x"}, "the port must be from 1 to 65535, not 'x'"),
        ({"prefix": 5}, "the prefix 5 has to be a text of 100 bytes at most"),
        ({"password": "secret"}, "username and password: one without the other"),
        ({"url": "tcp://h:1?key_prefix=a"}, "tcp://h:1.key_prefix=a: .* option key_prefix: use the setting prefix"),
        ({"url": "tcp://h:1?ignore_exc=1"}, "without the option ignore_exc: leave it out"),
        ({"url": "tcp://h:1?default_noreply=1"}, "without the option default_noreply: leave it out"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    """A line names the senseless setting, and nothing is left behind."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match=message) as raised:
        RMemcachedConnector(**settings)
    assert "\n" not in str(raised.value)
    assert not threads() and os.listdir("/proc/self/fd") == before


def test_numbers_may_be_texts(shared_rmemcached: Server) -> None:
    """Settings may be texts, as from a command line."""
    connector = RMemcachedConnector(
        shared_rmemcached.host,
        str(shared_rmemcached.port),  # type: ignore[arg-type]
        workers="3",  # type: ignore[arg-type]
        expire="1000",  # type: ignore[arg-type]
        timeout="5",  # type: ignore[arg-type]
        connect_timeout="2.5",  # type: ignore[arg-type]
        prefix="texts:",
    )
    assert Adapter(connector).store(["key"], [memoryview(b"value")])[0]
    assert len([name for name in threads() if "prepare" not in name]) == 3
    with Client(shared_rmemcached.address) as client:
        assert 990 < client.ttl(block_key("key", b"texts:")) <= 1000
    connector.close()


def test_a_url_that_says_one_time(shared_rmemcached: Server) -> None:
    """Each of the two times may come from the URL, the other then from the setting: no call waits without a limit."""
    place = f"memcached://{shared_rmemcached.place}"
    for query, found in (("", (7, 3)), ("?connect_timeout=1", (7, 1)), ("?timeout=2", (2, 3))):
        blocks = Blocks(place + query, timeout=7, connect_timeout=3)
        assert (blocks.client.timeout, blocks.client.connect_timeout) == found
        blocks.close()


def test_a_forked_child_is_told(shared_rmemcached: Server) -> None:
    """A forked child gets an error: without the parent's threads a batch would never end. A child can close, and make
    a connector of its own."""
    connector = RMemcachedConnector(shared_rmemcached.host, shared_rmemcached.port, prefix="forks:")
    adapter = Adapter(connector)
    assert adapter.store(["key"], [memoryview(b"value")])[0]

    def child() -> None:
        with pytest.raises(RuntimeError, match="make another here"):
            connector.submit_batch_exists(["key"])
        connector.close()
        own = RMemcachedConnector(shared_rmemcached.host, shared_rmemcached.port, prefix="forks:")
        assert Adapter(own).exist(["key"]) == (True, "", [True])
        own.close()

    in_child(child)
    with connector._workers._lock:
        # A thread that is about to finish a batch holds this lock at the fork.
        in_child(child)
    assert adapter.exist(["key"]) == (True, "", [True])
    connector.close()


def test_a_start_that_fails_leaves_nothing(shared_rmemcached: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed start of the third thread nothing is left."""
    started = threading.Thread.start
    left = [2]

    def start(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        started(thread)

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Workers(Blocks(shared_rmemcached.address), 4)
    assert not threads() and os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("what", ["stands still", "is killed"])
def test_memory_is_the_callers_when_a_batch_is_over(rmemcached_server: Callable[..., Server], what: str) -> None:
    """At the end of a batch, also of a failed batch, no view is left for Python's garbage collection."""
    server = rmemcached_server("-m", "64", "-t", "1")
    connector = RMemcachedConnector(server.host, server.port, timeout=1.0, transport="tcp")
    adapter = Adapter(connector)
    buffers = [bytearray(100_000) for _ in range(20)]
    keys = [str(number) for number in range(20)]

    def views() -> list[memoryview]:
        return [memoryview(buffer) for buffer in buffers]

    assert adapter.store(keys, views())[0]
    gc.collect()
    gc.disable()
    try:
        with suspended(server.pid):
            if what == "is killed":
                server.kill()
            for move in (adapter.store, adapter.load):
                assert not move(keys, views())[0]
                for buffer in buffers:
                    # The append fails as long as there is a view.
                    buffer.append(1)
                    del buffer[-1]
    finally:
        gc.enable()
        connector.close()


def test_nothing_outlives_close(shared_rmemcached: Server) -> None:
    """No thread, descriptor or connection outlives close, called repeatedly from any thread."""
    before = len(os.listdir("/proc/self/fd"))
    connector = RMemcachedConnector(shared_rmemcached.host, shared_rmemcached.port, prefix="close:", workers=4)
    adapter = Adapter(connector)
    assert adapter.store([str(number) for number in range(9)], [memoryview(bytearray(MEGABYTE - 5000))] * 9)[0]
    closing = [threading.Thread(target=connector.close) for _ in range(4)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    assert connector._blocks.client.connections == 0
    # The thread that maps a server's memory ends by itself.
    eventually(lambda: not threads(), 20)
    assert len(os.listdir(Path("/proc/self/fd"))) == before

"""A Client in many threads, in forked processes, copied and pickled."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from concurrency import ended, fork, in_child, wait_until_busy
from pymemcache.client.base import PooledClient
from suspended import suspended

from rmemcached.client import Client

LARGE = bytes(range(256)) * 256
THREADS = 4
ROUNDS = 150


class Remembers(Client):
    """A subclass with an attribute and an argument of its own."""

    def __init__(self, remembered: object, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.remembered = remembered


@pytest.mark.device("its completion channel among threads")
def test_one_client_in_many_threads(make_client: Callable[..., Client], key: str) -> None:
    """Threads share a client for small values, sent in the messages or the stream, and for large values, moved through
    memory named in the request."""
    client = make_client()
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> None:
        small, large = f"{key}-{number}-s", f"{key}-{number}-l"
        barrier.wait()
        for count in range(ROUNDS):
            text = b"%d-%d" % (number, count)
            assert client.set(small, text)
            assert client.set(large, text + LARGE)
            assert client.get(small) == text
            assert client.get(large) == text + LARGE
            assert client.get_many([small, large]) == {small: text, large: text + LARGE}

    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(work, number) for number in range(THREADS)]:
            done.result()
    assert client.calls == 0
    assert 1 <= client.connections <= THREADS


def test_a_call_during_another_ones_wait_has_a_connection_of_its_own(
    make_client: Callable[..., Client], backend: Any, key: str
) -> None:
    client = make_client()
    client.set(key, b"value")
    with ThreadPoolExecutor(2) as threads:
        with suspended(backend.server.pid):
            first = threads.submit(client.gat, key)
            wait_until_busy(client)
            second = threads.submit(client.gat, key)
        assert (first.result(), second.result()) == (b"value", b"value")
    assert client.connections == 2
    client.close()
    assert client.connections == 0


def test_close_while_a_call_is_under_way(make_client: Callable[..., Client], backend: Any, key: str) -> None:
    """A call under way gets its answer before its connection is closed."""
    client = make_client()
    client.set(key, b"value")
    with ThreadPoolExecutor(1) as threads:
        with suspended(backend.server.pid):
            first = threads.submit(client.gat, key)
            wait_until_busy(client)
            client.close()
        assert first.result() == b"value"
    assert (client.calls, client.connections) == (0, 0)
    assert client.get(key) == b"value"


def test_a_threads_commands_stay_in_their_order(make_client: Callable[..., Client], key: str) -> None:
    """A thread gets the value of its own last set, though this set had no answer, beside sets of other threads."""
    client = make_client(default_noreply=True)
    stop = threading.Event()

    def disturb(number: int) -> None:
        while not stop.is_set():
            client.set(f"{key}-{number}", b"other")
            client.get(f"{key}-{number}")

    with ThreadPoolExecutor(2) as threads:
        disturbing = [threads.submit(disturb, number) for number in range(2)]
        try:
            for count in range(500):
                client.set(key, b"%d" % count)
                assert client.get(key) == b"%d" % count
        finally:
            stop.set()
        for one in disturbing:
            one.result()


def test_connections_of_threads_that_have_ended_are_used_again(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(default_noreply=True)
    for count in range(20):
        thread = threading.Thread(target=client.set, args=(key, b"%d" % count))
        thread.start()
        thread.join()
    assert client.connections <= 2
    assert client.get(key) is not None


@pytest.mark.device("a fork")
def test_after_a_fork_parent_and_child_go_on(make_client: Callable[..., Client], key: str) -> None:
    client = make_client()
    client.set(key, LARGE)

    def child() -> None:
        assert client.connections == 0
        assert client.get(key) == LARGE
        assert client.set(key, b"child") is True
        assert client.connections == 1
        client.close()
        assert client.get(key) == b"child"

    in_child(child)
    assert client.get(key) == b"child"
    in_child(client.close)
    assert client.get(key) == b"child"


@pytest.mark.device("a fork")
def test_a_fork_while_another_thread_is_in_a_call(make_client: Callable[..., Client], backend: Any, key: str) -> None:
    client = make_client()
    client.set(key, b"value")
    with ThreadPoolExecutor(1) as threads:
        with suspended(backend.server.pid):
            first = threads.submit(client.gat, key)
            wait_until_busy(client)
            reader, writer = os.pipe()
            child = fork(lambda: os.read(reader, 1) and client.get(key) == b"value")
        os.write(writer, b"x")
        ended(child)
        os.close(reader)
        os.close(writer)
        assert first.result() == b"value"


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda client: pickle.loads(pickle.dumps(client))],
    ids=["copy", "deep", "pickle"],
)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new"])
def test_a_copy_has_the_options_and_no_connection(
    make_client: Callable[..., Client], key: str, connected: bool, again: Callable[[Client], Client]
) -> None:
    client = make_client(key_prefix="p:", timeout=17.5, ignore_exc=True)
    if connected:
        client.set(key, LARGE)
    with again(client) as other:
        assert other.connections == 0
        for name in ("server", "timeout", "key_prefix", "ignore_exc", "default_noreply", "transport", "encoding"):
            assert getattr(other, name) == getattr(client, name), name
        other.set(key, b"other")
        client.close()
        assert other.get(key) == b"other"
    assert client.get(key) == b"other"


def test_a_subclass_has_attributes_and_is_copied_with_them(backend: Any, key: str) -> None:
    with Remembers("this", backend.server.address, transport=backend.transport, default_noreply=False) as client:
        client.set(key, b"value")
        assert weakref.ref(client)() is client
        with pickle.loads(pickle.dumps(client)) as other:
            assert (type(other), other.remembered) == (Remembers, "this")
            assert other.get(key) == b"value"


def test_pymemcaches_pool(backend: Any, key: str) -> None:
    """The pool of Django's use_pooling works with our client."""

    class Pool(PooledClient):
        client_class = Client

    pool = Pool(backend.server.address, max_pool_size=2, timeout=20, pool_idle_timeout=5)
    try:
        for count in range(5):
            assert pool.set(key, b"%d" % count, noreply=False)
            assert pool.get(key) == b"%d" % count
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(pool.get, [key] * 100)) == [b"4"] * 100
    finally:
        pool.close()

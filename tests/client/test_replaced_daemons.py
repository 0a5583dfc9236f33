"""Clients read the memory of a daemon during its death and replacement (docs/direct-reads.md)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from polling import eventually
from servers import Server, start_rmemcached
from viewing import is_pinned

from rmemcached.client import Client, MemcacheError

TIMEOUT = 20.0
KEYS = [f"key-{number}" for number in range(150)]
SIZES = ("64", "1024", "16", "64")
"""Memory limits of successive daemons: the layout of slots changes, or stays the same."""
OPTION = {"soft_iw": "rdma_direct_remote", "soft_shm": "rdma_direct"}


def value_of(key: str, generation: int) -> bytes:
    # The lengths depend on the generation: a key changes its slab class and place, and a place its key.
    length = random.Random(f"{key} {generation % 2}").choice((1, 60, 500, 3000))
    return f"{generation} {key} ".encode() * (1 + length // 10)


def generation_of(key: str, value: bytes) -> int:
    found = int(value.partition(b" ")[0])
    assert value == value_of(key, found)
    return found


def fill(server: Server, generation: int) -> None:
    names = list(KEYS)
    random.Random(generation).shuffle(names)
    with Client(server.address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as client:
        client.set_many({name: value_of(name, generation) for name in names})


def follow(server: Server, megabytes: str) -> Server:
    """Kills a daemon, and starts a daemon on the same port."""
    command = list(server.command)
    command[len(command) - command[::-1].index("-m")] = megabytes
    server.kill()
    return Server(command, server.port)


@pytest.fixture(params=OPTION)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RMEMCACHED_DIRECT", "soft_iw")
    name: str = request.param
    return name


@pytest.fixture
def first(transport: str) -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def start() -> Server:
        made.append(start_rmemcached("-m", SIZES[0], "-t", "2", "-o", OPTION[transport]))
        return made[-1]

    yield start
    for server in made:
        server.kill()


def try_until(call: Callable[[], Any]) -> Any:
    """Repeats a call of a client until the client has got over the loss of its connections."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            return call()
        except (MemcacheError, OSError):
            assert time.monotonic() < end


def unasked(server: Server) -> int:
    return int(server.stats()["direct_hits"])


def read_unasked(client: Client, server: Server, generation: int) -> bool:
    """Whether the Client gets most of some values without asking."""
    before = unasked(server)
    for key in KEYS[:20]:
        assert client.get(key) == value_of(key, generation)
    # The next request reports the reads.
    client.version()
    return unasked(server) - before >= 15


def test_reads_go_on_by_themselves(first: Callable[[], Server], transport: str) -> None:
    """Reads go on with nothing remembered from the old daemon, whose memory, secrets and places were different."""
    server = first()
    try:
        with Client(server.address, transport=transport, timeout=TIMEOUT) as client:
            for generation, following in enumerate(SIZES):
                if generation:
                    server = follow(server, following)
                fill(server, generation)
                for _ in range(4):
                    found = try_until(lambda: client.get_many(KEYS))
                    assert found == {key: value_of(key, generation) for key in KEYS}
                    for key in KEYS[:20]:
                        assert client.get(key) == value_of(key, generation)
                # A new daemon makes its index first, so reads without a request begin a little later.
                eventually(partial(read_unasked, client, server, generation), TIMEOUT)
    finally:
        server.kill()


def test_readers_at_the_moment_of_death(first: Callable[[], Server], transport: str) -> None:
    """Once a daemon has been replaced, no read gives a value of an earlier daemon."""
    server = first()
    fill(server, 0)
    now = [0]
    stop = threading.Event()
    wrong: list[str] = []
    seen: set[int] = set()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        with Client(server.address, transport=transport, timeout=TIMEOUT) as client:
            while not stop.is_set():
                key = chance.choice(KEYS)
                least = now[0]
                try:
                    found = client.get(key) if chance.random() < 0.8 else client.get_many([key]).get(key)
                    if found is None:
                        continue
                    generation = generation_of(key, found)
                    seen.add(generation)
                    if generation < least:
                        wrong.append(f"{key}: {generation} after {least}")
                except (MemcacheError, OSError):
                    # For a moment nobody listens. A later call connects anew.
                    stop.wait(0.01)
                except AssertionError as error:
                    wrong.append(f"{key}: torn or foreign: {error}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for generation, following in enumerate(SIZES[1:], 1):
            stop.wait(0.2)
            server = follow(server, following)
            now[0] = generation
            fill(server, generation)
            end = time.monotonic() + TIMEOUT
            while generation not in seen and not wrong:
                assert time.monotonic() < end
                stop.wait(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.kill()
    assert wrong == [] and seen == set(range(len(SIZES)))


@pytest.mark.parametrize("transport", ["soft_shm"], indirect=True)
def test_views_of_a_daemon_that_is_no_more(first: Callable[[], Server], transport: str) -> None:
    """Views survive evictions, a flush and the daemon's death, and the next daemon hears nothing of them."""
    server = first()
    fill(server, 0)
    try:
        with Client(server.address, transport=transport, timeout=TIMEOUT, default_noreply=False) as client:
            old = {key: client.get_view(key) for key in KEYS[:50]}
            for number in range(400):
                client.set(f"more-{number}", bytes(500_000))
            assert int(client.stats()[b"evictions"]) > 0
            client.flush_all()
            assert all(view == value_of(key, 0) and is_pinned(view) for key, view in old.items())
            server = follow(server, SIZES[1])
            assert not any(is_pinned(view) for view in old.values())
            fill(server, 1)
            assert try_until(lambda: client.get_view(KEYS[0])) == value_of(KEYS[0], 1)
            new = {key: client.get_view(key) for key in KEYS[:30]}
            assert all(view == value_of(key, 0) and not is_pinned(view) for key, view in old.items())
            # The live daemon has other items with the ids of the old views, so no release of an old view may reach it.
            del old
            client.version()
            for _ in range(2):
                assert all(view == value_of(key, 1) and is_pinned(view) for key, view in new.items())
                assert int(client.stats("rdma")[b"rdma_views"]) == 30
                assert {key: client.get_view(key) for key in new} == {key: value_of(key, 1) for key in new}
            del new
            client.version()
            assert int(client.stats("rdma")[b"rdma_views"]) == 0
    finally:
        server.kill()

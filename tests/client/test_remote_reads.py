"""Gets by RDMA READ (docs/direct-reads.md, sections 8 and 9): what they read, and when they ask after all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server, start_rmemcached

from rmemcached.client import Client, MemcacheClientError, MemcacheError, MemcacheUnknownCommandError

TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "transport": "soft_iw"}
FLAGS = ("-m", "256", "-t", "2", "-o", "rdma_direct_remote")


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", "soft_iw")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = start_rmemcached(*FLAGS)
    yield made
    assert made.alive()
    made.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, **OPTIONS) as made:
        warm(made)
        yield made


def warm(client: Client) -> None:
    """What is asked for the first time: keys to the memory."""
    client.set("warm", b"up")
    for _ in range(3):
        assert client.get("warm") == b"up"


def counts(client: Client) -> tuple[int, int]:
    """(gets that asked, gets that read), without the one that makes the client tell of the latter."""
    assert client.get("nothing") is None
    stats = client.stats()
    read = int(stats[b"direct_hits"])
    return int(stats[b"cmd_get"]) - read - 1, read


def test_nobody_is_asked(client: Client, key: str) -> None:
    values = {f"{key}-{length}": os.urandom(length) for length in (0, 1, 100, 5000, 60_000)}
    for name, value in values.items():
        client.set(name, value)
    client.get_many(values)
    asked, read = counts(client)
    for _ in range(3):
        for name, value in values.items():
            assert client.get(name) == value
            assert client.get(name.encode()) == value
        assert client.get_many(values) == values
    # The get that makes it tell has asked.
    assert counts(client) == (asked + 1, read + 45)
    assert client.get_many([*values, f"{key}-nothing"]) == values


def test_many_at_once(client: Client, key: str) -> None:
    """More than READs can be under way, or have room, at a time."""
    values = {f"{key}-{number}": os.urandom(number * 150) for number in range(200)}
    for name, value in values.items():
        client.set(name, value)
    client.get_many(values)
    before = counts(client)
    assert client.get_many(values) == values
    after = counts(client)
    assert after[1] - before[1] > 150


def test_what_is_long_is_asked_for(client: Client, key: str) -> None:
    value = os.urandom(300_000)
    client.set(key, value)
    before = counts(client)
    assert client.get(key) == value
    after = counts(client)
    assert (after[0] - before[0], after[1] - before[1]) == (2, 0)


def test_changes_are_seen_at_once(client: Client, key: str) -> None:
    for number in range(300):
        client.set(key, b"%d" % number)
        assert client.get(key) == b"%d" % number
    assert client.incr(key, 1) == 300
    assert client.get(key) == b"300"
    assert client.delete(key)
    assert client.get(key) is None
    client.set(key, b"value")
    assert client.get(key) == b"value"
    client.flush_all()
    assert client.get(key) is None
    client.set(key, b"value", noreply=True)
    assert client.get(key) == b"value"
    client.set(key, b"short", expire=1)
    deadline = time.monotonic() + 5
    while client.get(key) is not None:
        assert time.monotonic() < deadline


def test_it_is_not_done_where_it_does_not_pay(server: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMEMCACHED_DIRECT")
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        before = counts(client)
        for _ in range(5):
            assert client.get(key) == b"value"
        assert counts(client) == (before[0] + 6, before[1])


@pytest.mark.parametrize("chosen", ["soft_iw, verbs", " soft_iw ,", "soft_iw"])
def test_blanks_in_the_list_mean_nothing(
    server: Server, key: str, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", chosen)
    with Client(server.address, **OPTIONS) as client:
        warm(client)
        before = counts(client)
        client.set(key, b"value")
        assert client.get(key) == b"value"
        assert counts(client) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("wrong", ["soft_shm", "verbs,SOFT_IW", "1", "auto"])
def test_a_list_of_other_names_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", wrong)
    name = wrong.rpartition(",")[2]
    text = (
        f"the environment variable RMEMCACHED_DIRECT must list some of verbs, rdma_cm, soft_iw, or none, not '{name}'"
    )
    with pytest.raises(ValueError, match=text):
        Client("127.0.0.1")


def test_a_server_without_the_option_is_asked(key: str) -> None:
    with start_rmemcached("-t", "1") as server, Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        assert client.get(key) == b"value"
        assert b"direct_hits" not in client.stats()
        with pytest.raises(MemcacheUnknownCommandError):
            client.raw_command("rdma_direct 0")


def test_the_command(server: Server, client: Client) -> None:
    base = client.raw_command("rdma_direct 0")
    assert base.startswith(b"DIRECT ") and len(base.split()) == 5
    assert client.raw_command("rdma_direct ffffffffff") == b"NOT_FOUND"
    assert client.raw_command("rdma_direct ffffffffffffffff") == b"NOT_FOUND"
    for line in ("rdma_direct", "rdma_direct x", "rdma_direct 0 0", "rdma_direct 11111111111111111", "rdma_direct -1"):
        with pytest.raises(MemcacheClientError, match="bad command line format"):
            client.raw_command(line)
    for transport in ("tcp", "soft_shm"):
        with (
            Client(server.address, **{**OPTIONS, "transport": transport}) as other,
            pytest.raises(MemcacheError, match="rdma: th"),
        ):
            other.raw_command("rdma_direct 0")


def test_whoever_is_not_authenticated_gets_no_key(key: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("joe:secret\n")
    with start_rmemcached(*FLAGS, "-Y", str(users)) as server:
        with (
            Client(server.address, **OPTIONS, username="joe", password="wrong") as client,
            pytest.raises(MemcacheError),
        ):
            client.raw_command("rdma_direct 0")
        with Client(server.address, **OPTIONS, username="joe", password="secret") as client:
            warm(client)
            before = counts(client)
            assert client.get("warm") == b"up"
            assert counts(client)[1] == before[1] + 1


def test_a_daemon_that_was_killed(key: str) -> None:
    server = start_rmemcached(*FLAGS)
    with Client(server.address, **OPTIONS) as client:
        warm(client)
        server.process.kill()
        server.process.wait()
        with pytest.raises((MemcacheError, OSError)):
            client.get("warm")


def test_flags_that_do_not_go_together() -> None:
    for other in ("no_rdma",):
        command = [sys.executable, "-m", "rmemcached", "-u", "root", "-o", f"rdma_direct_remote,{other}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode == os.EX_USAGE
        assert done.stderr.strip() == "rdma_direct_remote needs TCP and RDMA: it goes with neither -s nor no_rdma"


def test_no_value_is_ever_wrong(server: Server) -> None:
    """Beside writers, over another connection; threads share the queue pair."""
    keys = [f"stress-{number}" for number in range(20)]
    stopped = threading.Event()
    errors: list[str] = []
    told = dict.fromkeys(keys, 0)

    def value(key: str, version: int) -> bytes:
        head = f"{key} {version} ".encode()
        return head * (1 + random.Random(version).randrange(3000) // len(head))

    def write() -> None:
        chance = random.Random(3)
        with Client(server.address, **{**OPTIONS, "transport": "tcp"}) as client:
            for version in range(1, 3000):
                key = chance.choice(keys)
                if chance.random() < 0.1:
                    client.delete(key)
                client.set(key, value(key, version))
                told[key] = version
        stopped.set()

    def read() -> None:
        chance = random.Random(5)
        with Client(server.address, **OPTIONS) as client:
            while not stopped.is_set() and not errors:
                key = chance.choice(keys)
                least = told[key]
                found = client.get(key)
                if found is None:
                    continue
                name, version, _ = found.split(b" ", 2)
                if name.decode() != key or int(version) < least or found != value(key, int(version)):
                    errors.append(f"{key}: {found[:50]!r}, at least version {least}")

    with Client(server.address, **OPTIONS) as client:
        before = counts(client)[1]
        threads = [threading.Thread(target=target) for target in (write, read, read)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert counts(client)[1] > before


def test_shared_memory_is_not_given_with_it(server: Server) -> None:
    """That takes rdma_direct."""
    before = server.stats()["direct_clients"]
    with Client(server.address, **OPTIONS | {"transport": "soft_shm"}) as client:
        client.set("shared", b"value")
        assert client.get("shared") == b"value" == client.get_view("shared")
        assert client.stats("rdma")[b"rdma_total_views"] == 0
    assert server.stats()["direct_clients"] == before

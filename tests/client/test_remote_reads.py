"""Gets by RDMA READ (docs/direct-reads.md, sections 8 and 9): their values, and the gets that ask after all."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from concurrency import in_child
from polling import eventually
from server_by_hand import ServerByHand
from servers import Server, start_rmemcached

from rmemcached.bench import _load
from rmemcached.client import Client, MemcacheClientError, MemcacheError, MemcacheUnknownCommandError
from rmemcached.store._testing import hash_of, hash_secret, set_hash_secret

TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "transport": "soft_iw"}
FLAGS = ("-m", "256", "-t", "2", "-o", "rdma_direct_remote")


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", "soft_iw")


@pytest.fixture(scope="module")
def server(module_server: Callable[..., Server]) -> Server:
    return module_server(*FLAGS)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, **OPTIONS) as made:
        warm(made)
        yield made


def warm(client: Client) -> None:
    """Makes the client ask the daemon for the keys to its memory."""
    client.set("warm", b"up")
    for _ in range(3):
        assert client.get("warm") == b"up"


def frames(server: Server) -> int:
    """The number of iWARP frames at the daemon: a frame for each READ, and for each other message of a client."""
    with Client(server.address, **{**OPTIONS, "transport": "tcp"}) as other:
        return int(other.stats("rdma")[b"iw_rx_fpdus"])


def beside(began: float) -> float:
    """The largest number of other frames since `began`: for READs of the clock, and for lines of hits."""
    return 5 + 20 * (time.monotonic() - began)


def counts(client: Client) -> tuple[int, int]:
    """Returns the numbers of asking gets and of gets by READ. The get of this function makes the client report its
    hits, and is not in the result."""
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
    # The additional asking get is the get of the first counts().
    assert counts(client) == (asked + 1, read + 45)
    assert client.get_many([*values, f"{key}-nothing"]) == values


def test_many_at_once(client: Client, key: str) -> None:
    """A call with many keys reads all of them, though they exceed the READs under way at a time and the memory for
    them."""
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
    eventually(lambda: client.get(key) is None, 5)


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
    """Threads on a shared queue pair read right values beside a writer on another connection."""
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


# --- keys whose place is known from an earlier read ---


def test_one_read_is_enough_then(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    assert client.get(key) == b"value"
    before, began = frames(server), time.monotonic()
    for _ in range(50):
        assert client.get(key) == b"value"
    assert 50 <= frames(server) - before < 55 + beside(began)
    values = {f"{key}-{number}": b"%d" % number for number in range(100)}
    client.set_many(values)
    client.get_many(values)
    before, began = frames(server), time.monotonic()
    assert client.get_many(values) == values
    assert 100 <= frames(server) - before < 105 + beside(began)


def test_what_is_somewhere_else_now(server: Server, client: Client, key: str) -> None:
    """The client looks a moved item up in the index, and asks nobody."""
    with Client(server.address, **{**OPTIONS, "transport": "tcp"}) as other:
        client.set(key, b"value")
        for number in range(20):
            assert client.get(key) == client.get(key)
            before = counts(client)
            # A value of another size is at another place, in another class.
            other.set(key, bytes([number]) * (1 + number * 300))
            assert client.get(key) == bytes([number]) * (1 + number * 300)
            assert counts(client) == (before[0] + 1, before[1] + 1)
        # The client does not guess the place of an ever-changing item: each get takes two READs.
        before_frames, began = frames(server), time.monotonic()
        for number in range(30):
            other.set(key, b"%d" % number)
            assert client.get(key) == b"%d" % number
        assert frames(server) - before_frames < 65 + beside(began)


def keys_of_one_tag(server: Server) -> list[str]:
    """Two keys with the same tag in the slots of one bucket."""
    ours = hash_secret()
    (memory,) = [fd for fd in Path(f"/proc/{server.pid}/fd").iterdir() if "rmemcached index" in os.readlink(fd)]
    with memory.open("rb") as file:
        header = file.read(4096)
    (buckets,) = struct.unpack_from("<Q", header, 784)
    assert buckets & (buckets - 1) == 0
    (place_bits,) = struct.unpack_from("<I", header, 264 + 12)
    tag_bits = min(16, 48 - 7 - place_bits)
    seen: dict[tuple[int, int], str] = {}
    set_hash_secret(header[56 : 56 + len(ours)])
    try:
        for number in range(1_000_000):
            hv = hash_of(b"tag-%d" % number)
            other = seen.setdefault((hv & (buckets - 1), hv >> (32 - tag_bits)), f"tag-{number}")
            if other != f"tag-{number}":
                return [other, f"tag-{number}"]
    finally:
        set_hash_secret(ours)
    pytest.fail("a hash that is none")


def test_keys_of_one_tag() -> None:
    """Both keys are found by READs, with an extra READ for the second."""
    with start_rmemcached(*FLAGS) as server, Client(server.address, **OPTIONS) as client:
        warm(client)
        names = keys_of_one_tag(server)
        for name in names:
            client.set(name, name.encode())
        before, before_frames, began = counts(client), frames(server), time.monotonic()
        for name in names:
            assert client.get(name) == name.encode()
        # The first key takes two READs, and the second takes three.
        assert 5 <= frames(server) - before_frames < 9 + beside(began)
        assert client.get_many(names) == {name: name.encode() for name in names}
        assert counts(client) == (before[0] + 1, before[1] + 4)
        assert client.delete(names[0])
        assert client.get(names[0]) is None
        assert client.get(names[1]) == names[1].encode()
        client.set(names[0], b"again")
        assert client.get_many(names) == {names[0]: b"again", names[1]: names[1].encode()}


def test_what_is_no_more(server: Server, client: Client, key: str) -> None:
    """A deleted key is a miss, even after another key has taken its place."""
    with Client(server.address, **{**OPTIONS, "transport": "tcp"}) as other:
        for number in range(20):
            client.set(key, b"value")
            assert client.get(key) == b"value"
            assert other.delete(key)
            for heir in range(3):
                other.set(f"{key}-{number}-{heir}", b"other")
            assert client.get(key) is None
            assert client.get_many([key, f"{key}-{number}-1"]) == {f"{key}-{number}-1": b"other"}


def test_what_was_flushed_or_has_expired(client: Client, key: str) -> None:
    for change in (client.flush_all, lambda: client.touch(key, expire=-1), lambda: client.set(key, b"x", expire=-1)):
        client.set(key, b"value")
        assert client.get(key) == client.get(key) == b"value"
        change()
        assert client.get(key) is None
    client.set(key, b"value", expire=2)
    while client.get(key) is not None:
        pass
    assert client.get(key) is None


def test_what_was_evicted() -> None:
    """An evicted key is a miss, even after its place is used again."""
    flags = ("-m", "4", "-t", "1", "-o", "rdma_direct_remote")
    with start_rmemcached(*flags) as server, Client(server.address, **OPTIONS) as client:
        values = {f"key-{number}": b"key-%d " % number * 100 for number in range(3000)}
        client.set_many(values)
        for _ in range(3):
            client.get_many(values)
        more = {f"more-{number}": b"more-%d " % number * 100 for number in range(10_000)}
        client.set_many(more)
        found = client.get_many(values)
        assert len(found) < len(values)
        assert found == {name: values[name] for name in found}
        found = client.get_many(more)
        assert found and found == {name: more[name] for name in found}
        assert int(client.stats()[b"evictions"]) > 0


def test_what_the_page_mover_has_moved() -> None:
    flags = ("-m", "64", "-t", "1", "-o", "rdma_direct_remote,slab_reassign,slab_automove=0")
    with start_rmemcached(*flags) as server, Client(server.address, **OPTIONS) as client:
        values = {f"key-{number}": b"%d " % number * 200 for number in range(6000)}
        client.set_many(values)
        for _ in range(3):
            client.get_many(values)
        pages = {
            int(name.split(b":")[0]): int(value)
            for name, value in client.stats("slabs").items()
            if name.endswith(b":total_pages")
        }
        source = max(pages, key=lambda clsid: pages[clsid])
        # The deleted items make room for the moved items.
        for number in range(2000):
            client.delete(f"key-{number * 3}")
        left = {name: value for name, value in values.items() if int(name[4:]) % 3}
        assert client.raw_command(f"slabs reassign {source} {min(pages) if min(pages) != source else 1}") == b"OK"
        while int(client.stats()[b"slabs_moved"]) == 0:
            assert client.get_many(list(left)[:100]) == {name: left[name] for name in list(left)[:100]}
        assert client.get_many(left) == left
        before = counts(client)
        assert client.get_many(left) == left
        assert counts(client)[1] - before[1] > 0.95 * len(left)


# --- gets of other kinds ---


def test_all_gets_read(client: Client, key: str) -> None:
    values = {f"{key}-{length}": os.urandom(length) for length in (1, 100, 5000)}
    client.set_many(values)
    client.get_many(values)
    memory = bytearray(5000)
    before = counts(client)
    for name, value in values.items():
        assert client.gets(name)[0] == value
        view = client.get(name, copy=False)
        assert isinstance(view, memoryview) and view.readonly and view == value
        assert client.get_view(name) == value
        assert client.get_into(name, memory) == len(value)
        assert memory[: len(value)] == value
        with pytest.raises(ValueError, match=f"has {len(value)} bytes, and the buffer {len(value) - 1}"):
            client.get_into(name, memoryview(memory)[: len(value) - 1])
    assert {name: value for name, (value, _) in client.gets_many(values).items()} == values
    buffers = [bytearray(100), bytearray(100), bytearray(5000)]
    assert client.get_many_into(list(zip(values, buffers, strict=True))) == [1, 100, 5000]
    assert buffers[2] == values[f"{key}-5000"]
    assert counts(client) == (before[0] + 1, before[1] + 21)


def test_cas_values(server: Server, client: Client, key: str) -> None:
    """A value never comes with another's CAS value: the seal covers both."""
    client.set(key, b"10")
    with Client(server.address, **{**OPTIONS, "transport": "tcp"}) as other:
        for change in (
            lambda: other.set(key, b"11"),
            lambda: other.incr(key, 1),
            lambda: other.decr(key, 1),
            lambda: other.raw_command(f"ma {key} E4711"),
            lambda: other.raw_command(f"ma {key} N0 D100 E4712"),
        ):
            client.gets(key)
            before = counts(client)
            change()
            read = client.gets(key)
            assert counts(client) == (before[0] + 1, before[1] + 1)
            assert read == other.gets(key)
        cas = client.gets(key)[1]
        assert cas == b"4712"
        assert client.cas(key, b"mine", cas) is True
        assert client.cas(key, b"again", cas) is False
        assert client.get(key) == b"mine"


# --- growth of the index, and forked processes ---


def test_parts_of_an_index_that_grows(key: str) -> None:
    """The client knows the index from its small beginning, and asks for the keys to the parts registered since."""
    items = 350_000
    flags = ("-m", "1024", "-t", "1", "-o", "rdma_direct_remote")
    with start_rmemcached(*flags) as server, Client(server.address, **OPTIONS) as client, server.connect(60) as plain:
        warm(client)
        for first in range(0, items, 1000):
            plain.sendall(_load.store_commands(first, 1000, value_size=10))
            left = 8 * 1000
            while left:
                left -= len(plain.recv(left))
        lines = {client.raw_command(f"rdma_direct {place:x}") for place in range(0, 8 << 20, 1 << 20)}
        assert len(lines) == 3 and all(line.startswith(b"DIRECT ") for line in lines), lines
        assert int(client.stats()[b"direct_buckets"]) * 128 > 4 << 20
        some = [b"k" * (32 - len(b"%d" % number)) + b"%d" % number for number in range(0, items, 701)]
        # Each call asks for the key to a further part.
        for _ in range(6):
            found = client.get_many(some)
            assert len(found) == len(some)
        before = counts(client)
        assert client.get_many(some) == found
        assert counts(client)[1] - before[1] > 0.95 * len(some)


def test_a_forked_child_reads_for_itself(server: Server, client: Client, key: str) -> None:
    client.set(key, b"value")
    assert client.get(key) == b"value"

    def body() -> None:
        for _ in range(5):
            assert client.get(key) == b"value"
        client.set(key, b"the child's")
        before = counts(client)
        assert client.get(key) == b"the child's"
        assert counts(client)[1] == before[1] + 1
        client.close()

    in_child(body)
    before = counts(client)
    assert client.get(key) == b"the child's"
    assert client.get_many([key]) == {key: b"the child's"}
    assert counts(client)[1] == before[1] + 2


@pytest.mark.parametrize(("tokens", "depth"), [({}, 1), ({"direct": 1}, 16)])
def test_depth_of_reads(tokens: dict[str, int], depth: int) -> None:
    """The client has room for 16 READs if the server offers direct reads, else for a single READ."""
    with ServerByHand("soft_iw", **tokens) as server:
        client = Client(server.address, **OPTIONS)

        def connect() -> None:
            with pytest.raises((MemcacheError, OSError)):
                client.version()

        thread = threading.Thread(target=connect)
        thread.start()
        server.accept()
        assert int.from_bytes(server.frame[22:24], "big") & 0x3FFF == depth
        server.close()
        thread.join()
        client.close()


def test_shared_memory_is_not_given_with_it(rmemcached_server: Callable[..., Server]) -> None:
    """rdma_direct_remote gives no shared memory: only rdma_direct does."""
    server = rmemcached_server("-o", "rdma_direct=off,rdma_direct_remote")
    with Client(server.address, **OPTIONS | {"transport": "soft_shm"}) as client:
        client.set("shared", b"value")
        assert client.get("shared") == b"value" == client.get_view("shared")
        assert client.stats("rdma")[b"rdma_total_views"] == 0
    assert "direct_clients" not in server.stats()

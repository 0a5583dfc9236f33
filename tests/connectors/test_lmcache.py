"""LMCache's connector against real daemons: a load gives the stored bytes, or a miss."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dumps import keys_in
from lmcache_adapter import Adapter, Arena
from scripted import Scripted
from servers import Server, start_rmemcached
from transport import RDMA_TRANSPORTS

from rmemcached.client import Client
from rmemcached.connectors._blocks import HEAD, ITEM_OVERHEAD, MAGIC, SMALLEST_PIECE, Blocks, read_head
from rmemcached.connectors._keys import block_key
from rmemcached.connectors.lmcache import RMemcachedConnector

Connect = Callable[..., Adapter]
MEGABYTE = 1 << 20
TRANSPORTS = ["tcp", *RDMA_TRANSPORTS]


@pytest.fixture
def connect() -> Iterator[Callable[..., Adapter]]:
    """connect(server, **params) makes a connector with adapter_params as LMCache does."""
    made: list[RMemcachedConnector] = []

    def make(server: Any, **params: Any) -> Adapter:
        made.append(RMemcachedConnector(server.host, server.port, **params))
        return Adapter(made[-1])

    yield make
    for connector in made:
        connector.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, HEAD.size, 100_000, MEGABYTE - ITEM_OVERHEAD, MEGABYTE, 3 * MEGABYTE + 7])
def test_what_is_stored_is_loaded(
    connect: Connect, rmemcached_server: Callable[..., Server], transport: str, size: int
) -> None:
    """Blocks of any size, also over the server's item size, go from an arena and back."""
    adapter = connect(rmemcached_server("-m", "128", "-t", "1"), transport=transport)
    arena = Arena(10 * size)
    keys = [f"model@0000000{number}@0@{number:032x}" for number in range(5)]
    blocks = [arena.view(size, os.urandom(61)) for _ in keys]
    targets = [arena.view(size) for _ in keys]
    assert adapter.exist(keys) == (True, "", [False] * 5)
    assert adapter.load(keys, targets) == (True, "", [False] * 5)
    assert adapter.store(keys, blocks) == (True, "", [True] * 5)
    assert adapter.exist([*keys, "other"]) == (True, "", [True] * 5 + [False])
    assert adapter.load(keys, targets) == (True, "", [True] * 5)
    assert [view.tobytes() for view in targets] == [view.tobytes() for view in blocks]
    assert adapter.delete([keys[0], "other"]) == (True, "", [True, False])
    assert adapter.load(keys, targets) == (True, "", [False] + [True] * 4)


def test_blocks_of_the_items_memory(connect: Connect, rmemcached_server: Callable[..., Server]) -> None:
    """A client loads blocks by direct reads, from the daemon's items."""
    adapter = connect(rmemcached_server("-m", "128", "-I", "8m", "-o", "rdma_direct"), transport="soft_shm")
    arena = Arena(8 * MEGABYTE)
    block, target = arena.view(4 * MEGABYTE - 1, os.urandom(997)), arena.view(4 * MEGABYTE - 1)
    assert adapter.store(["key"], [block])[2] == [True]
    for _ in range(2):
        assert adapter.load(["key"], [target])[2] == [True]
        assert target.tobytes() == block.tobytes()


@pytest.mark.parametrize("options", [[], ["-o", "rdma_direct"]], ids=["asked", "direct"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_batch_of_all_kinds(
    connect: Connect, rmemcached_server: Callable[..., Server], transport: str, options: list[str]
) -> None:
    """Each block of a batch has its own outcome, whatever the rest have."""
    adapter = connect(rmemcached_server("-m", "256", "-t", "2", *options), transport=transport, workers=3)
    sizes = [1, 0, HEAD.size, 300_000, MEGABYTE, 3 * MEGABYTE + 7, 70_000, 200_000, 5] * 3
    keys = [f"key {number}" if number % 2 else f"key{number}" for number in range(len(sizes))]
    blocks = [memoryview((os.urandom(61) * (size // 61 + 1))[:size]) for size in sizes]
    assert adapter.store(keys, blocks)[0]
    targets = [memoryview(bytearray(size)) for size in sizes]
    for _ in range(2):
        assert adapter.load(keys, targets) == (True, "", [True] * len(sizes))
        assert targets == blocks
    # A load misses a missing block, and blocks for which the memory is too short, too long, or of a head's length.
    wrong = {3: 300_001, 7: 199_999, 9: HEAD.size, 2: 5, 14: 100}
    keys[12] = "none"
    targets = [memoryview(bytearray(wrong.get(number, size))) for number, size in enumerate(sizes)]
    done = [number not in wrong and number != 12 for number in range(len(sizes))]
    assert adapter.load(keys, targets) == (True, "", done)
    assert [target for target, one in zip(targets, done, strict=True) if one] == [
        block for block, one in zip(blocks, done, strict=True) if one
    ]


def test_a_block_of_another_length_is_a_miss(connect: Connect, shared_rmemcached: Server) -> None:
    adapter = connect(shared_rmemcached, prefix="lengths:")
    arena = Arena(20 * MEGABYTE)
    for size in (HEAD.size, 1000, 9 * MEGABYTE):
        assert adapter.store(["key"], [arena.view(size, b"x")])[2] == [True]
        for other in (size - 1, size + 1):
            assert adapter.load(["key"], [memoryview(bytearray(other))])[2] == [False]


@pytest.mark.parametrize("what", ["first", "last"])
def test_a_lost_piece_makes_a_miss(connect: Connect, rmemcached_server: Callable[..., Server], what: str) -> None:
    server = rmemcached_server("-m", "64", "-t", "1")
    adapter = connect(server)
    block = memoryview(bytearray(os.urandom(3 * MEGABYTE)))
    assert adapter.store(["key"], [block])[2] == [True]
    with Client(server.address, default_noreply=False) as client:
        pieces = [key for key in keys_in(client) if key.startswith(b"p:")]
        assert len(pieces) == 4
        assert client.delete(pieces[0 if what == "first" else -1])
    assert adapter.load(["key"], [memoryview(bytearray(3 * MEGABYTE))]) == (True, "", [False])


def test_pieces_are_of_one_store(connect: Connect, rmemcached_server: Callable[..., Server]) -> None:
    """A block stored again and again, with different bytes each time, is loaded in one version, or missed."""
    server = rmemcached_server("-m", "256", "-t", "2")
    writer, reader = connect(server), connect(server)
    size = 3 * MEGABYTE
    blocks = [memoryview(bytearray(bytes([number]) * size)) for number in range(4)]
    assert writer.store(["key"], [blocks[0]])[0]
    over = threading.Event()

    def write() -> None:
        for number in range(40):
            writer.store(["key"], [blocks[number % 4]])
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    target = memoryview(bytearray(size))
    while not over.is_set():
        ok, error, (found,) = reader.load(["key"], [target])
        assert ok and not error
        if found:
            assert target.tobytes() == bytes(target[:1]) * size
    thread.join()
    assert reader.load(["key"], [target])[2] == [True]
    assert target.tobytes() == blocks[3].tobytes()


def test_storing_again_leaves_no_pieces_behind(connect: Connect, rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server("-m", "64", "-t", "1")
    adapter = connect(server)
    block = memoryview(bytearray(2 * MEGABYTE))
    for _ in range(3):
        assert adapter.store(["key"], [block])[2] == [True]
    with Client(server.address) as client:
        assert client.stats()[b"curr_items"] == 4
        assert adapter.delete(["key"])[2] == [True]
        assert client.stats()[b"curr_items"] == 0


def test_long_and_strange_keys_do_not_collide(connect: Connect, shared_rmemcached: Server) -> None:
    """Names that differ behind the 250th byte, or in bytes forbidden in memcached's keys, do not collide."""
    adapter = connect(shared_rmemcached, prefix="names:")
    keys = ["m" * 300 + "a", "m" * 300 + "b", "a model@1", "a\tmodel@1", "modèle", "modele", "n:x", "x"]
    # These names look like the keys made from other names.
    keys += [block_key(keys[0]).decode(), block_key("x").decode(), "p:" + "0" * 32 + ":0"]
    keys = list(dict.fromkeys(keys))
    blocks = [memoryview(bytearray(f"{number:08}".encode())) for number in range(len(keys))]
    assert adapter.store(keys, blocks)[0]
    targets = [memoryview(bytearray(8)) for _ in keys]
    assert adapter.load(keys, targets)[2] == [True] * len(keys)
    assert targets == blocks


def test_a_server_that_is_killed_and_started_again(connect: Connect) -> None:
    """Batches under way give misses or the stored bytes, and none hangs. Then blocks are stored and loaded."""
    size, count = 3 * MEGABYTE, 16
    server = start_rmemcached("-m", "256", "-I", "8m", "-t", "2")
    adapter = connect(server, timeout=5.0)
    keys = [f"key-{number}" for number in range(count)]
    blocks = [memoryview(bytearray(bytes([65 + number]) * size)) for number in range(count)]
    targets = [memoryview(bytearray(size)) for _ in range(count)]
    assert adapter.store(keys, blocks)[0]
    batches = [adapter.connector.submit_batch_get(keys, targets)]
    batches += [adapter.connector.submit_batch_set(keys, blocks) for _ in range(4)]
    server.kill()
    done = adapter.wait(batches[0])[2]
    for found, target, block in zip(done, targets, blocks, strict=True):
        assert not found or target == block
    outcomes = [adapter.wait(number) for number in batches[1:]]
    assert not outcomes[-1][0] and outcomes[-1][1]
    ok, error, found_none = adapter.load(keys, targets)
    assert not ok and error and not any(found_none)
    again = Server(server.command, server.port)
    try:
        # Each lost connection fails one call: several calls may fail before all connections are new.
        attempts = 0
        while not adapter.store(keys, blocks)[0]:
            attempts += 1
            assert attempts <= 10
        assert adapter.load(keys, targets) == (True, "", [True] * count)
        assert targets == blocks
    finally:
        adapter.connector.close()
        again.stop()


def test_no_server(connect: Connect) -> None:
    server = start_rmemcached("-t", "1")
    server.stop()
    adapter = connect(server)
    view = memoryview(bytearray(10))
    for ok, error, done in (adapter.store(["a"], [view]), adapter.load(["a"], [view]), adapter.exist(["a"])):
        assert not ok and str(server.port) in error and done == [False]


def test_a_block_that_the_server_cannot_hold(connect: Connect, rmemcached_server: Callable[..., Server]) -> None:
    """A block larger than the server's memory is a miss, and the rest of its batch is stored. Empty blocks are stored,
    too."""
    adapter = connect(rmemcached_server("-m", "64", "-t", "1"))
    ok, error, done = adapter.store(["a", "b"], [memoryview(b""), memoryview(bytearray(5))])
    assert done == [True, True] and ok and not error
    keys, views = ["big", "small"], [memoryview(bytearray(200 * MEGABYTE)), memoryview(bytearray(5))]
    ok, error, done = adapter.store(keys, views)
    assert adapter.load(keys, views)[2][0] is False
    assert done[1] is True


def test_a_block_that_is_refused(connect: Connect, rmemcached_server: Callable[..., Server]) -> None:
    """Behind a block refused by a full server, which evicts nothing, the other blocks of the batch are stored."""
    adapter = connect(rmemcached_server("-m", "16", "-M", "-t", "1"), workers=1)
    small = memoryview(bytearray(5))
    assert adapter.store(["first"], [small])[0]
    ok, error, done = adapter.store(["big", "small"], [memoryview(bytearray(40 * MEGABYTE)), small])
    assert (ok, done) == (False, [False, True]) and "out of memory" in error


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_some_blocks_are_refused(connect: Connect, rmemcached_server: Callable[..., Server], transport: str) -> None:
    """The connector reports the stored blocks of a partly stored batch. A repeated key has the last block."""
    adapter = connect(rmemcached_server("-m", "16", "-M", "-t", "1"), workers=1, transport=transport)
    keys = [str(number) for number in range(100)]
    blocks = [memoryview(os.urandom(300_000)) for _ in keys]
    ok, error, done = adapter.store(keys, blocks)
    assert not ok and "out of memory" in error and 20 < sum(done) < 60
    targets = [memoryview(bytearray(300_000)) for _ in keys]
    assert adapter.load(keys, targets) == (True, "", done)
    assert [one for one, stored in zip(targets, done, strict=True) if stored] == [
        one for one, stored in zip(blocks, done, strict=True) if stored
    ]
    first, second = memoryview(b"x" * 3000), memoryview(b"y" * 3000)
    assert adapter.store(["0", "1", "0"], [first, first, second])[2] == [True] * 3
    assert adapter.load(["0"], [targets[0][:3000]])[2] == [True] and targets[0][:3000] == second


@pytest.mark.parametrize(("length", "piece"), [(1 << 62, 1), (1 << 62, 1 << 62), (1 << 40, SMALLEST_PIECE), (3000, 1)])
def test_heads_that_others_have_made(connect: Connect, shared_rmemcached: Server, length: int, piece: int) -> None:
    """A head with false content, which everybody with access may store, costs no more than another miss."""
    adapter = connect(shared_rmemcached, prefix="heads:")
    head = HEAD.pack(MAGIC, length, piece, b"r" * 16)
    with Client(shared_rmemcached.address, default_noreply=False) as client:

        def plant() -> None:
            client.set(block_key("key", b"heads:"), head)

        plant()
        assert adapter.load(["key"], [memoryview(bytearray(3000))]) == (True, "", [False])
        assert adapter.delete(["key"]) == (True, "", [True])
        plant()
        block, target = (memoryview(bytearray(2 * MEGABYTE)) for _ in range(2))
        assert adapter.store(["key"], [block])[2] == [True] and adapter.load(["key"], [target])[2] == [True]
    # read_head refuses heads with many or small pieces: 2^62 pieces would exceed all memory. A head with a single piece
    # is valid, but names a store without pieces.
    assert read_head(head) is None or length == piece


def test_the_size_of_pieces(
    shared_rmemcached: Server, scripted: Callable[[Callable[[bytes], Iterator[bytes]]], Scripted]
) -> None:
    """Behind a proxy that hides its server's settings, pieces have memcached's default size. The size never is 0, even
    while another thread forgets the server's settings."""
    blocks = Blocks(scripted(lambda line: iter([b"END\r\n"])).place, transport="tcp")
    assert blocks.piece_size() == MEGABYTE - ITEM_OVERHEAD
    blocks.close()
    blocks = Blocks(shared_rmemcached.address)
    whole = blocks.piece_size()
    over = threading.Event()

    def forget() -> None:
        while not over.is_set():
            blocks.forget_server()

    thread = threading.Thread(target=forget)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert {blocks.piece_size() for _ in range(2000)} == {whole}
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
        blocks.close()


def test_batches(connect: Connect, shared_rmemcached: Server) -> None:
    """Empty batches are finished, too. Lists of different lengths are refused, and so are batches after close."""
    adapter = connect(shared_rmemcached, workers=3, prefix="batches:")
    assert adapter.store([], []) == (True, "", [])
    assert adapter.exist([]) == (True, "", [])
    with pytest.raises(ValueError, match="lists of 1 and 0 entries"):
        adapter.connector.submit_batch_set(["a"], [])
    numbers = [
        adapter.connector.submit_batch_set([f"{number}"], [memoryview(bytearray(b"%03d" % number))])
        for number in range(100)
    ]
    assert len(set(numbers)) == 100
    assert all(adapter.wait(number)[0] for number in reversed(numbers))
    assert all(adapter.exist([f"{number}" for number in range(100)])[2])
    adapter.connector.close()
    adapter.connector.close()
    with pytest.raises(RuntimeError, match="closed"):
        adapter.connector.submit_batch_exists(["a"])


@pytest.mark.parametrize(
    ("params", "message"),
    [({"workers": 0}, "workers"), ({"prefix": "a b"}, "prefix"), ({"expire": -1}, "expire")],
)
def test_wrong_parameters(connect: Connect, shared_rmemcached: Server, params: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connect(shared_rmemcached, **params)


def test_a_url_and_time(connect: Connect, shared_rmemcached: Server) -> None:
    """The server's URL has options, and blocks expire."""
    url = f"memcached://{shared_rmemcached.place}?transport=tcp&timeout=5"
    adapter = connect(shared_rmemcached, url=url, expire=1000, prefix="url:")
    assert adapter.store(["key"], [memoryview(bytearray(3))])[0]
    with Client(shared_rmemcached.address) as client:
        assert 990 < client.ttl(block_key("key", b"url:")) <= 1000


def test_nothing_of_lmcache_is_imported(tmp_path: Path) -> None:
    names = "import sys, rmemcached.connectors.lmcache; print({'lmcache', 'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", names], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

"""The memory that clients read without asking: items in it are found, others are not, and no value is ever wrong."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from concurrency import in_child
from direct_readers import GROWS_FROM, fill, readers_beside
from polling import eventually

from rmemcached.store._testing import Store, hash_of
from rmemcached.store._testing_direct import DirectReader, header_is_usable

MB = 1 << 20
LIFE = 2 * MB  # bytes before the arena in the arena's file: they hold the mutex
BEAT = 808  # offset of the header's beat: the time at which the store last set the clock


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(direct=True) as store:
        yield store
        store.check()


@pytest.fixture
def reader(store: Store) -> DirectReader:
    return DirectReader(store.direct_fds())


def test_without_the_option_there_is_nothing() -> None:
    with Store(direct=False) as store:
        store.set(b"key", b"value")
        with pytest.raises(OSError, match="no memory for clients"):
            store.direct_give()
        assert not any(store.direct_stats().values())
        assert store.used(hash_of(b"key"), 1) is False


def test_what_is_stored_is_found(store: Store, reader: DirectReader) -> None:
    assert reader.read(b"key") == "ask"
    for number, length in enumerate((0, 1, 100, 8192, 300_000, 700_000, MB - 500)):
        value = os.urandom(length)
        assert store.set(b"key", value, flags=number) == "STORED"
        found = reader.read(b"key")
        assert isinstance(found, tuple)
        assert found[:2] == (value, number)
    store.set(b"key", b"2")
    store.store("append", b"key", b"3")
    store.store("prepend", b"key", b"1")
    assert reader.get(b"key") == b"123"
    assert store.direct_stats()["items"] == 1


def test_what_is_not_there_any_more_is_not_found(store: Store, reader: DirectReader) -> None:
    store.set(b"key", b"value")
    store.delete(b"key")
    assert reader.read(b"key") == "ask"
    store.set(b"key", b"value", exptime=10)
    assert reader.get(b"key") == b"value"
    store.advance(10)
    assert store.get(b"key") is None
    assert reader.read(b"key") == "ask"
    store.set(b"key", b"value")
    store.touch(b"key", -1)
    assert reader.read(b"key") == "ask"
    for delay in (0, 5):
        store.set(b"key", b"value")
        store.flush_all(delay)
        assert (reader.get(b"key") is None) is (delay == 0)
        store.advance(delay + 1)
        assert reader.read(b"key") == "ask"
    assert store.get(b"key") is None
    assert store.direct_stats()["items"] == 0


def test_stale_items_are_asked_for(store: Store, reader: DirectReader) -> None:
    store.store("set", b"key", b"value", new_cas=100)
    assert reader.get(b"key") == b"value"
    assert store.store("cas", b"key", b"stale", cas=90, stale=True)[0] == "STORED"
    assert reader.read(b"key") == "ask"


def test_numbers_that_change_in_place(store: Store, reader: DirectReader) -> None:
    store.set(b"key", b"100")
    assert store.delta(b"key", 1)[1] == b"101"
    assert reader.get(b"key") == b"101"
    assert store.delta(b"key", 99, incr=False)[1] == b"2"
    assert reader.get(b"key") == b"2  "


@pytest.mark.parametrize("options", [{"use_cas": False}, {"s3fifo": True}, {"lru_segmented": False}, {"factor": 1.08}])
def test_it_goes_with_every_store(options: dict[str, bool]) -> None:
    with Store(direct=True, **options) as store:  # type: ignore[arg-type]
        reader = DirectReader(store.direct_fds())
        values = {b"key-%d" % number: os.urandom(number * 7 % 3000) for number in range(3000)}
        for key, value in values.items():
            store.set(key, value, flags=len(value) % 2)
        found = {key: reader.get(key) for key in values}
        asked = [key for key, value in found.items() if value is None]
        assert len(asked) <= len(values) // 20
        assert {key: value for key, value in found.items() if value is not None} == {
            key: value for key, value in values.items() if key not in asked
        }
        store.check()


def test_the_index_grows_with_the_items() -> None:
    with Store(512 * MB, direct=True, nthreads=1) as store:
        reader = DirectReader(store.direct_fds())
        keys = [b"key-%d" % number for number in range(400_000)]
        first = store.direct_stats()["buckets"]
        for key in keys:
            store.set(key, key)
        stats = store.direct_stats()
        assert stats["buckets"] > 8 * first
        assert 11.5 < 128 * stats["buckets"] / len(keys) < 12.1
        asked = 0
        for number, key in enumerate(keys):
            if number % 10_000 == 0:
                # A reader asks if the store's clock has stood still for long: the call sets the clock.
                store.advance(0)
            asked += reader.get(key) != key
        assert asked == len(keys) - stats["items"]
        assert asked < len(keys) / 50
        for key in keys:
            store.delete(key)
        assert store.direct_stats()["items"] == 0
        store.check()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    "megabytes, least, local, by_read",
    [
        *((64, 96, 20, 23), (1024, 96, 24, 27), (200_000, 96, 32, 34)),
        # This index needs more than the 1.5 TB of addresses left by the thread sanitizer.
        pytest.param(1_740_000, 56, 36, 36, marks=pytest.mark.resident),
    ],
)
def test_places_of_all_lengths(megabytes: int, least: int, local: int, by_read: int, remote: bool) -> None:
    """Items of all lengths are found by their places. A place has no more bits than the addresses need."""
    with Store(megabytes * MB, direct=True, direct_remote=remote, chunk_size=least - 48) as store:
        reader = DirectReader(store.direct_fds())
        header = os.pread(store.direct_fds()[0], 4096, 0)
        assert struct.unpack_from("<II", header, 272)[1] == (by_read if remote else local)
        values = {b"key-%d" % number: os.urandom(number * 331 % 20_000) for number in range(1000)}
        for key, value in values.items():
            store.set(key, value)
        # The hash depends on a secret of this process, so a bucket of the index may by chance have too many items.
        found = {key: got for key in values if (got := reader.get(key)) is not None}
        assert len(values) - len(found) == store.direct_stats()["left_out"] <= 10
        assert found == {key: values[key] for key in found}
        if remote:
            assert {key: reader.read_lines(key)[0] for key in found} == found
        store.check()


def test_items_without_room_get_another_chance(store: Store, reader: DirectReader) -> None:
    """An item without room in the index gets room at a later get, after others have gone."""
    # The index does not grow for so few items.
    keys: list[bytes] = []
    mask = store.direct_stats()["buckets"] - 1
    bucket = hash_of(b"key") & mask
    number = 0
    while len(keys) < 25:
        number += 1
        if hash_of(b"%d" % number) & mask == bucket:
            keys.append(b"%d" % number)
    for key in keys:
        store.set(key, key)
    assert [key for key in keys if reader.get(key) is None] == keys[20:]
    assert store.direct_stats()["left_out"] == 5
    for key in keys[:5]:
        store.delete(key)
    for key in keys[20:]:
        assert store.get(key) == key
    assert [reader.get(key) for key in keys[5:]] == keys[5:]


def test_evicted_items_are_not_found() -> None:
    with Store(8 * MB, direct=True) as store:
        reader = DirectReader(store.direct_fds())
        value = os.urandom(1000)
        for number in range(20_000):
            store.set(b"key-%d" % number, value)
        store.advance(1)
        there = [number for number in range(20_000) if reader.get(b"key-%d" % number) is not None]
        assert 0 < len(there) < 10_000
        assert all(store.get(b"key-%d" % number) == value for number in there)
        store.check()


@pytest.mark.parametrize("ended", ["told", "closed"])
def test_a_store_that_has_ended_is_not_read(ended: str) -> None:
    store = Store(direct=True)
    reader = DirectReader(store.direct_fds())
    store.set(b"key", b"value")
    assert reader.alive
    assert reader.get(b"key") == b"value"
    if ended == "told":
        store.direct_end()
        assert not reader.alive
        assert reader.read(b"key") == "ask"
    store.close()
    assert not reader.alive
    assert reader.read(b"key") == "ask"


def test_a_store_that_was_killed_is_not_read() -> None:
    """A reader does not read a killed store: the kernel marks the robust mutex at the process's death."""
    child = (
        "import os, socket, sys\n"
        "from rmemcached.store._testing import Store\n"
        "store = Store(direct=True)\n"
        "store.set(b'key', b'value')\n"
        "socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b'x'], store.direct_fds())\n"
        "sys.stdin.read()\n"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [sys.executable, "-c", child, str(theirs.fileno())]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()]) as process:
            _, (index, arena), *_ = socket.recv_fds(ours, 1, 2)
            reader = DirectReader((index, arena))
            os.close(index)
            os.close(arena)
            assert reader.get(b"key") == b"value"
            process.kill()
            process.wait()
            assert not reader.alive
            assert reader.read(b"key") == "ask"


# --- hits ---


@pytest.mark.segmented("WARM, COLD, and how many fetches count")
def test_hits_are_told(store: Store, reader: DirectReader) -> None:
    store.set(b"key", b"value")
    assert reader.line() == b""
    for _ in range(5):
        reader.read(b"key")
    found = re.fullmatch(rb"rdma_hits @([0-9a-f]+):([0-9a-f]+) @\1:\2 (\d+):5\r\n", reader.line())
    assert found
    hv, place = int(found[1], 16), int(found[2], 16)
    assert hv == hash_of(b"key")
    assert int(found[3]) >> 6 == 2 and store.item(b"key", update=False).queue == "COLD"
    # Eviction counts no more than two fetches: after them the line of hits names the item no more.
    assert store.used(hv, place) and store.used(hv, place)
    reader.read(b"key")
    assert reader.line() == b"rdma_hits %d:1\r\n" % int(found[3])
    assert reader.line() == b""
    store.delete(b"key")
    assert store.used(hv, place) is False


@pytest.mark.parametrize("options", [{}, {"s3fifo": True}, {"lru_segmented": False}])
def test_a_hit_that_is_told_late_revives_nothing(options: dict[str, Any]) -> None:
    """A hit reported after the flush of its item neither revives the item nor makes it younger."""
    with Store(direct=True, **options) as store:
        reader = DirectReader(store.direct_fds())
        store.set(b"key", b"value")
        store.advance(100)
        assert reader.get(b"key") == b"value"
        found = re.search(rb" @([0-9a-f]+):([0-9a-f]+) ", reader.line())
        assert found
        store.advance(1)
        store.flush_all(0)
        for _ in range(3):
            assert store.used(int(found[1], 16), int(found[2], 16)) is False
        assert reader.get(b"key") is None
        assert store.get(b"key") is None


@pytest.mark.parametrize("place", [0, 1, 1 << 37, (1 << 38) - 1, 1 << 38, (1 << 64) - 1])
def test_places_that_are_none(store: Store, place: int) -> None:
    store.set(b"key", b"value")
    for hv in (0, hash_of(b"key"), (1 << 32) - 1):
        assert store.used(hv, place) is False


def test_a_line_has_room_for_all(store: Store, reader: DirectReader) -> None:
    """Items of many classes that do not fit into a line are reported in the next line."""
    told = 0
    for number in range(500):
        key = b"key-%d" % number
        store.set(key, b"x" * (number * 37))
        found = reader.read(key)
        if isinstance(found, tuple) and found[2]:
            line = reader.line()
            assert len(line) <= 2048 and line.endswith(b"\r\n")
            told += sum(int(count) for count in re.findall(rb" \d+:(\d+)", line))
    while line := reader.line():
        told += sum(int(count) for count in re.findall(rb" \d+:(\d+)", line))
    assert told == store.direct_stats()["items"]


# --- readers beside writers ---


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "keys, max_value, options",
    [
        (30, 60_000, {}),
        (2000, 2000, {"s3fifo": True}),
        (3000, 60_000, {"slab_reassign": True}),
        (300, 400_000, {"slab_chunk_size_max": 16384, "slab_reassign": True}),
        (20_000, 20_000, {"lru_maintainer": True, "lru_crawler": True}),
    ],
)
def test_no_value_is_ever_wrong(keys: int, max_value: int, options: dict[str, int], seed: int) -> None:
    with Store(32 * MB, direct=True, **options) as store:  # type: ignore[arg-type]
        counts = readers_beside(
            store,
            keys,
            threads=3,
            ops=20_000,
            seed=seed,
            max_value=max_value,
            clock=True,
            move=options.get("slab_reassign", False),
        )
        assert sum(found for _, found, _ in counts) > 1000
        eventually(lambda: not store.stats()["slab_reassign_running"], 60)
        store.check(False)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("options", [{}, {"s3fifo": True}])
def test_no_value_is_wrong_while_the_index_grows(options: dict[str, bool], lines: bool) -> None:
    """Readers find right values while the index splits beside sets, deletes and evictions of the moved items."""
    with Store(32 * MB, direct=True, direct_remote=lines, nthreads=1, **options) as store:  # type: ignore[arg-type]
        fill(store, GROWS_FROM)
        found, buckets = 0, store.direct_stats()["buckets"]
        for seed in range(100):
            counts = readers_beside(store, 20_000, lines=lines, threads=2, ops=20_000, seed=seed, max_value=64)
            found += sum(number for _, number, _ in counts)
            if found > 500 and store.direct_stats()["buckets"] > buckets + 500:
                break
        else:
            pytest.fail("too few values, or splits")
        store.check(False)


def test_a_reader_that_does_not_verify_is_caught() -> None:
    """test_no_value_is_ever_wrong would find a reader that does not verify values."""
    with (
        Store(32 * MB, direct=True) as store,
        pytest.raises(AssertionError, match="nobody has stored"),
    ):
        for seed in range(20):
            readers_beside(store, 8, verify=False, threads=3, ops=30_000, seed=seed, max_value=60_000)


# --- seals: they verify an item read by RDMA READ, which may read its cache lines in any order ---


@pytest.fixture
def sealed() -> Iterator[Store]:
    with Store(direct_remote=True) as store:
        yield store
        store.check()


def test_items_verify_themselves(sealed: Store) -> None:
    reader = DirectReader(sealed.direct_fds())
    assert reader.read_lines(b"key") == "ask"
    for number, length in enumerate((0, 1, 7, 8, 100, 8192, 60_000)):
        value = os.urandom(length)
        sealed.set(b"key", value, flags=number)
        assert reader.read_lines(b"key") == (value, number)
        assert reader.get(b"key") == value
    # Longer values have no seal.
    sealed.set(b"key", bytes(65536))
    assert reader.read_lines(b"key") == "ask"
    assert reader.get(b"key") == bytes(65536)
    sealed.set(b"key", b"value")
    sealed.delete(b"key")
    assert reader.read_lines(b"key") == "ask"


def test_a_seal_goes_with_what_changes(sealed: Store) -> None:
    reader = DirectReader(sealed.direct_fds())
    sealed.set(b"key", b"100")
    sealed.delta(b"key", 1)
    assert reader.read_lines(b"key") == (b"101", 0)
    sealed.delta(b"key", 99, incr=False)
    assert reader.read_lines(b"key") == (b"2  ", 0)
    sealed.touch(b"key", 100)
    assert reader.read_lines(b"key") == (b"2  ", 0)
    for _ in range(3):
        # A use changes the item's time and queue, and the seal stays valid.
        sealed.get(b"key")
        sealed.advance(30)
        assert reader.read_lines(b"key") == (b"2  ", 0)
    sealed.advance(10)
    assert reader.read_lines(b"key") == "ask"
    sealed.set(b"key", b"value")
    sealed.flush_all(0)
    assert reader.read_lines(b"key") == "ask"
    sealed.store("set", b"key", b"value", new_cas=100)
    assert sealed.store("cas", b"key", b"stale", cas=90, stale=True)[0] == "STORED"
    assert reader.read_lines(b"key") == "torn"


def test_without_the_option_there_are_no_seals(store: Store, reader: DirectReader) -> None:
    store.set(b"key", b"value")
    assert reader.read_lines(b"key") == "ask"
    assert reader.get(b"key") == b"value"


def test_a_seal_may_need_a_larger_chunk() -> None:
    """Items with a seal may need a larger chunk, and no other items do."""
    with Store() as plain, Store(direct=True) as direct, Store(direct_remote=True) as sealed:
        for length in range(40, 3000, 13):
            classes = []
            for store in (plain, direct, sealed):
                store.set(b"key", bytes(length))
                classes.append(store.item(b"key", update=False).clsid)
            total = 48 + 8 + 4 + length + 2
            assert classes[0] == classes[1] == plain.class_of(total)
            assert classes[2] == plain.class_of((total + 7) // 8 * 8 + 8)


@pytest.mark.parametrize(
    "keys, max_value, options",
    [
        (30, 64, {"use_cas": False}),
        (30, 60_000, {}),
        (2000, 2000, {"s3fifo": True}),
        (3000, 20_000, {"slab_reassign": True}),
        (20_000, 20_000, {"lru_maintainer": True, "lru_crawler": True}),
    ],
)
def test_no_copy_is_ever_wrong(keys: int, max_value: int, options: dict[str, int]) -> None:
    found = seed = 0
    with Store(32 * MB, direct_remote=True, **options) as store:  # type: ignore[arg-type]
        while found < 500:
            seed += 1
            assert seed < 100
            counts = readers_beside(
                store,
                keys,
                lines=True,
                threads=2,
                ops=10_000,
                seed=seed,
                max_value=max_value,
                clock=True,
                move=options.get("slab_reassign", False),
            )
            found += sum(number for _, number, _ in counts)
        eventually(lambda: not store.stats()["slab_reassign_running"], 60)
        store.check(False)


def test_a_reader_that_ignores_seals_is_caught() -> None:
    """test_no_copy_is_ever_wrong would find a reader that ignores seals."""
    with (
        Store(32 * MB, direct_remote=True) as store,
        pytest.raises(AssertionError, match="nobody has stored"),
    ):
        for seed in range(20):
            readers_beside(store, 8, verify=False, lines=True, threads=2, ops=30_000, seed=seed, max_value=60_000)


def follow_changes(store: Store, chance: random.Random, number: int) -> int:
    """Makes 100 000 changes of a key, each reported to two readers. Returns how often they found the new value."""
    readers = [DirectReader(store.direct_fds()) for _ in range(2)]
    counts: list[list[int]] = []
    errors: list[BaseException] = []

    def run(reader: DirectReader) -> None:
        try:
            counts.append(reader.follow_lines(b"key"))
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for _ in range(100_000):
        number += 1
        kind = chance.randrange(4)
        if kind == 0:
            store.delete(b"key")
        if kind == 1:
            store.touch(b"key", 1000)
        if kind < 2 or store.delta(b"key", 1)[0] != "OK":
            # Values of equal length reuse the memory of earlier values.
            store.set(b"key", b"%d" % number)
        for reader in readers:
            reader.tell(number)
    for reader in readers:
        reader.end()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return sum(found for _, found, _ in counts)


def test_what_was_replaced_is_never_seen_again(sealed: Store) -> None:
    """No reader sees an old value after anybody was told of the new value."""
    chance = random.Random(7)
    found = 0
    number = 10**9
    # On a busy machine the readers may hardly run beside a round of changes.
    while found <= 1000:
        found += follow_changes(sealed, chance, number)
        number += 100_000


# --- missing or damaged memory ---


def memfd(content: bytes, seals: int = fcntl.F_SEAL_SHRINK, length: int = 0) -> int:
    """Returns a sealed memfd. length: of the file, if longer than its content."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    os.truncate(fd, max(length, len(content)))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def first_bytes(store: Store) -> bytes:
    """The header and the first buckets."""
    return os.pread(store.direct_fds()[0], 65536, 0)


def lengths(store: Store) -> tuple[int, int]:
    """The lengths of index and arena."""
    index, arena = (os.fstat(fd).st_size for fd in store.direct_fds())
    return index, arena


def test_descriptors_of_something_else(store: Store) -> None:
    header = first_bytes(store)
    index, arena = store.direct_fds()
    pipe = os.pipe()
    made = [*pipe, os.open(__file__, os.O_RDONLY), memfd(b""), memfd(bytes(65536)), memfd(header), memfd(header, 0)]
    for fd in made:
        for pair in ((fd, arena), (index, fd), (arena, index)):
            with pytest.raises(OSError, match="Protocol error"):
                DirectReader(pair)
        os.close(fd)


def test_memory_that_is_longer_than_places_reach() -> None:
    """Memory beyond the reach of places would only use up this process's addresses."""
    with Store(2 * MB, direct=True) as store:
        header = bytearray(first_bytes(store))
        index, _ = lengths(store)
    for bits, works in ((40, True), (41, False), (46, False)):
        header[16:24] = struct.pack("<Q", 1 << bits)
        fds = memfd(bytes(header), length=index), memfd(b"", length=1 << bits)
        with contextlib.nullcontext() if works else pytest.raises(OSError, match="Protocol error"):
            DirectReader(fds)
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("change", [-1, 1])
def test_memory_of_another_layout(store: Store, change: int) -> None:
    """A reader refuses memory of an older or a newer daemon."""
    index, arena = lengths(store)
    header = bytearray(first_bytes(store))
    (layout,) = struct.unpack_from("<I", header, 8)
    for written, works in ((layout, True), (layout + change, False)):
        struct.pack_into("<I", header, 8, written)
        fds = memfd(bytes(header), length=index), memfd(b"", length=arena)
        with contextlib.nullcontext() if works else pytest.raises(OSError, match="Protocol error"):
            DirectReader(fds)
        for fd in fds:
            os.close(fd)


def test_memory_that_is_shorter_than_it_says(store: Store) -> None:
    """A reader refuses memory shorter than its header says: a look behind the end would kill this process."""
    index, arena = lengths(store)
    header = first_bytes(store)
    for length, works in ((arena, True), (arena + 4096, True), (arena - 4096, False)):
        fds = memfd(header, length=index), memfd(b"", length=length)
        with contextlib.nullcontext() if works else pytest.raises(OSError, match="Protocol error"):
            DirectReader(fds)
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize(
    "at, number",
    [
        (0, 0),  # the magic number
        (8, 3),  # the layout
        (12, 0),  # the flag for seals
        (16, 0),  # the length: too short or too long
        (16, 100),
        (16, 511),
        (16, 8191),
        (16, 1 << 41),
        (16, (1 << 64) - 1),
        (32, 64),  # the index
        (32, 4097),
        (32, (1 << 64) - 64),
        (40, 0),  # the index's buckets
        (40, 1 << 57),
        (48, 1 << 40),  # the mutex
        (48, (1 << 64) - 4),
        (264, (1 << 64) - 512),  # the arena
        (272, 60),  # the bits of a place
        (276, 38),
    ],
)
def test_headers_that_no_client_uses(at: int, number: int) -> None:
    """Clients that READ refuse such headers: only the header tells them the length of the memory."""
    with Store(2 * MB, direct_remote=True) as store:
        header = bytearray(first_bytes(store)[:4096])
    assert header_is_usable(bytes(header))
    short = at in (8, 12, 272, 276)
    struct.pack_into("<I" if short else "<Q", header, at, number)
    assert not header_is_usable(bytes(header))
    # A wrong length is refused even if the other numbers fit by an overflow.
    if at == 16:
        struct.pack_into("<QQQ", header, 32, 4096, 1, 856)
        struct.pack_into("<Q", header, 264, 1 << 30)
        assert not header_is_usable(bytes(header))


def test_halves_of_two_slots_may_name_no_class() -> None:
    """A READ may mix halves of two slots, and so name a missing class: the reader does not look there, and asks."""
    with Store(2 * MB, direct_remote=True) as store:
        header = first_bytes(store)[:4096]
        length, arena = lengths(store)
    (index,) = struct.unpack_from("<Q", header, 32)
    _, chunk_bits, place_bits, *sizes = struct.unpack_from("<QII64I", header, 264)
    assert 0 < chunk_bits <= place_bits and sizes[1] and not sizes[63]
    (buckets,) = struct.unpack_from("<Q", header, 784)
    at = index + (hash_of(b"key") & (buckets - 1)) * 128
    for clsid, found in ((1, "torn"), (63, "ask")):
        slot = (hash_of(b"key") >> 16) << 32 | (1 << 6 | clsid) << place_bits
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.truncate(fd, length)
        os.pwrite(fd, header, 0)
        os.pwrite(fd, struct.pack("<I", slot & 0xFFFFFFFF), at + 8)
        os.pwrite(fd, struct.pack("<H", slot >> 32), at + 8 + 20 * 4)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        items = memfd(b"", length=arena)
        assert DirectReader((fd, items)).read_lines(b"key") == found
        os.close(fd)
        os.close(items)


def pages_of(fd: int) -> int:
    return os.fstat(fd).st_blocks


def test_only_pages_that_the_daemon_has_are_mapped_ahead() -> None:
    """prefault() maps only pages that the daemon has: the kernel would charge a new page to the reader."""
    with Store(64 * MB, direct=True, huge_pages=False) as store:
        fds = store.direct_fds()
        fd = fds[1]
        reader = DirectReader(fds)
        assert reader.prefault() == 0
        for number in range(40):
            # A part of each chunk is never used.
            store.set(b"%d" % number, bytes(MB // 2 - 50_000))
        # The store reports the pages in use once a second.
        store.advance(0)
        before = pages_of(fd)
        used = reader.prefault()
        assert 17 * MB <= used <= before * 512
        assert used == DirectReader(fds).prefault()
        assert pages_of(fd) == before
        store.set(b"more", bytes(MB // 2))
        store.advance(0)
        assert used < reader.prefault() <= used + MB
        (index, length), header = lengths(store), first_bytes(store)[:4096]
        pages = pages_of(fd)
        assert reader.prefault() > used
        assert pages_of(fd) == pages
    with open(memfd(header, length=index), "r+b", buffering=0) as copy, open(memfd(b"", length=length), "rb") as empty:
        for said in (used, length, (1 << 64) - 1, 4097, 0):
            os.pwrite(copy.fileno(), struct.pack("<Q", said), BEAT + 8)
            assert DirectReader((copy.fileno(), empty.fileno())).prefault() == 0
            assert pages_of(empty.fileno()) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's process")
def test_another_user_maps_no_more_than_there_was() -> None:
    """A reader of another user maps no new page, though the kernel reports all pages of a foreign file as present."""
    with Store(64 * MB, direct=True) as store:
        for number in range(20):
            store.set(b"%d" % number, bytes(MB // 2))
        store.advance(0)
        fds = store.direct_fds()
        fd = fds[1]
        before = pages_of(fd)

        def child() -> None:
            os.setuid(65534)
            reader = DirectReader(fds)
            used = reader.prefault()
            assert 9 * MB <= used <= before * 512 and reader.prefault() == used

        in_child(child)
        assert pages_of(fd) <= before + 2 * MB // 512
        store.set(b"0", b"")


def test_a_chain_of_chunks_that_are_too_short() -> None:
    """A reader gives up a chain with too many chunks: this chain of one byte each would take a minute for 2 GB."""
    index, base = 1 << 16, 1 << 44
    arena = index + LIFE
    chunk, length = arena + 4096, arena + MB
    memory = bytearray(length)
    with Store(2 * MB, direct=True) as store:
        (layout,) = struct.unpack_from("<I", first_bytes(store), 8)
    struct.pack_into("<8sIIQQQQQ", memory, 0, b"rmemcach", layout, 0, length, base, 4096, 16, 856)
    struct.pack_into("<QIII", memory, 264, arena, 14, 14, 0)
    # The index has a single bucket. The secrets are 0, and so is each hash.
    struct.pack_into("<QI", memory, 784, 1, 100)
    struct.pack_into("<q", memory, BEAT, int(time.monotonic() * 1000))
    struct.pack_into("<I", memory, 856, 4711)
    struct.pack_into("<QI", memory, 4096, 0, 1 << 14)
    for part, found in ((100_000, True), (1000, True), (1, False)):
        struct.pack_into("<24xIIiHHBB6x2s", memory, arena, 50, 0, 100_002, 2, 1 | 32, 5, 2, b"kk")
        struct.pack_into("<Q", memory, arena + 56, base + chunk)
        struct.pack_into("<Q16xii", memory, chunk, base + chunk, part, part)
        fds = memfd(bytes(memory[:index])), memfd(bytes(memory[index:]))
        assert isinstance(DirectReader(fds).read(b"kk"), tuple) == found
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("lines", [False, True])
def test_damaged_memory_is_harmless(lines: bool) -> None:
    """Damaged memory harms no process. Values without seals may be wrong, and values with seals are right."""
    with Store(2 * MB, direct=True, direct_remote=lines, item_size_max=MB, slab_chunk_size_max=16384) as store:
        values = {b"key-%d" % number: os.urandom(number * (50 if lines else 400)) for number in range(200)}
        keys = list(values)
        for number, key in enumerate(keys):
            store.set(key, values[key], flags=number)
        copies = []
        used: list[tuple[int, int]] = []
        for original, length in zip(store.direct_fds(), lengths(store), strict=True):
            copies.append(memfd(b"", length=length))
            for at in range(0, length, 4096):
                page = os.pread(original, 4096, at)
                if page.count(0) != 4096:
                    os.pwrite(copies[-1], page, at)
                    used.append((copies[-1], at))
        index, arena = copies
        chance = random.Random(5)
        reader = DirectReader((index, arena))
        answers = set()
        for _ in range(400):
            fd, page_at = chance.choice(used[1:])
            at = page_at + 8 * chance.randrange(512)
            before = os.pread(fd, 8, at)
            os.pwrite(fd, chance.choice([os.urandom(8), bytes(8), b"\xff" * 8, b"\xff\xff\xff\x7f" * 2]), at)
            # No store sets the clock in this copy of the memory, so the test does.
            os.pwrite(index, struct.pack("<q", int(time.monotonic() * 1000)), BEAT)
            for number, key in enumerate(keys):
                found = reader.read_lines(key) if lines else reader.read(key)
                assert not lines or found in ((values[key], number), "ask", "torn")
                answers.add(type(found))
            os.pwrite(fd, before, at)
        assert answers == {tuple, str}
        os.close(index)
        os.close(arena)

"""Slab classes, the arena and its extents."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from rmemcached.store._testing import Store

MB = 1 << 20
EXTENT = 64 * MB


def chunk_sizes(store: Store) -> list[int]:
    return [store.class_stats(i)["chunk_size"] for i in range(1, store.largest_class + 1)]


def expected_sizes(smallest: int, factor: float, largest: int) -> list[int]:
    """The sizes by the rule of memcached's slabs_init."""
    sizes: list[int] = []
    size = smallest
    while len(sizes) < 62 and size < largest / factor:
        size = (size + 7) // 8 * 8
        sizes.append(size)
        size = int(size * factor)
    return [*sizes, largest]


# Prints the growth of the process in KB by a new store, and by its first value. The program runs in a process of its
# own, because the resident memory of this process includes that of other threads.
GROWTH = """
from rmemcached.store._testing import Store

def resident_kb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4

Store().close()
before = resident_kb()
with Store(maxbytes=8 << 30, hashpower_init=20) as store:
    made = resident_kb()
    store.set(b"key", b"value")
    print(made - before, resident_kb() - before)
"""

# Prints by how many KB the process grows when 100 values of 1 MB are allocated and none is written, and how many MB of
# the arena the system may put into huge pages, in all and at its beginning.
UNWRITTEN = """
from pathlib import Path
from rmemcached.store._testing import Store

def resident_kb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

with Store(maxbytes=512 << 20, huge_pages=False) as store:
    before = resident_kb()
    items = [store.alloc(b"%d" % i, 1_000_000) for i in range(100)]
    assert all(items)
    print(resident_kb() - before, store.direct_stats()["huge_pages"])
"""


def test_default_classes_are_memcacheds() -> None:
    with Store() as store:
        sizes = chunk_sizes(store)
        assert sizes[:12] == [96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1184]
        assert sizes[-2:] == [394840, 524288]
        assert store.largest_class == 39
        assert store.class_stats(1)["chunks_per_page"] == 10922
        assert store.class_stats(39)["chunks_per_page"] == 2
        assert store.class_stats(0) is None
        assert store.class_stats(40) is None


@pytest.mark.parametrize(
    ("chunk_size", "factor", "largest"),
    [(48, 1.25, 1 << 19), (48, 1.08, 1 << 19), (48, 2.0, 1 << 20), (1, 1.01, 1 << 16), (500, 1.5, 1 << 14)],
)
def test_classes_follow_the_settings(chunk_size: int, factor: float, largest: int) -> None:
    with Store(chunk_size=chunk_size, factor=factor, slab_chunk_size_max=largest) as store:
        assert chunk_sizes(store) == expected_sizes(48 + chunk_size, factor, largest)


def test_class_of_a_size() -> None:
    with Store(item_size_max=4 * MB) as store:
        sizes = chunk_sizes(store)
        for clsid, size in enumerate(sizes, 1):
            assert store.class_of(size) == clsid
            assert store.class_of(size + 1) == min(clsid + 1, len(sizes))
        assert store.class_of(1) == 1
        assert store.class_of(0) == 0
        assert store.class_of(4 * MB) == len(sizes)
        assert store.class_of(4 * MB + 1) == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"maxbytes": 0}, "memory limit"),
        ({"factor": 1.0}, "factor"),
        ({"chunk_size": 0}, "chunk size"),
        ({"slab_chunk_size_max": 2 * MB}, "slab chunk"),
        ({"slab_chunk_size_max": 50}, "slab chunk"),
        ({"slab_chunk_size_max": 1001}, "multiple of 8"),
        ({"item_size_max": 1000}, "item size limit"),
        ({"item_size_max": 2 << 30}, "item size limit"),
        ({"hashpower_init": 33}, "hash power"),
        ({"maxbytes": 1 << 60}, "address space"),
        ({"maxbytes": (1 << 64) - 1}, "address space"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Store(**settings)


def test_arena_holds_the_limit_and_a_page_of_each_class() -> None:
    for maxbytes in (1, MB, 24 * MB, 25 * MB, 26 * MB, 1 << 30):
        with Store(maxbytes=maxbytes) as store:
            base, length = store.arena()
            assert base % (2 * MB) == 0
            assert length % EXTENT == 0
            assert length >= maxbytes + 39 * MB


def test_extents_are_announced_before_use() -> None:
    with Store(maxbytes=130 * MB, item_size_max=MB) as store:
        base, length = store.arena()
        assert store.extents() == []
        seen = 0
        for i in range(150):
            store.set(b"key-%d" % i, bytes(500_000))
            extents = store.extents()
            assert extents == [(base + j * EXTENT, EXTENT) for j in range(len(extents))]
            top = max(offset + n for offset, n in store.item(b"key-%d" % i).iov())
            assert top <= len(extents) * EXTENT
            seen = max(seen, len(extents))
        assert seen == 2
        assert length >= 3 * EXTENT
        assert store.stats()["total_malloced"] == 75 * MB


def test_small_limit_gives_every_class_its_first_page() -> None:
    with Store(maxbytes=MB) as store:
        sizes = chunk_sizes(store)
        for round_ in range(3):
            for clsid, size in enumerate(sizes, 1):
                assert store.set(b"k%02d-%d" % (clsid, round_), bytes(size - 48 - 8 - 6 - 2)) == "STORED"
        for clsid, size in enumerate(sizes, 1):
            stats = store.class_stats(clsid)
            assert stats["total_pages"] == 1
            assert stats["used_chunks"] == min(3, MB // size)
            assert stats["number"] == stats["used_chunks"]
        assert store.stats()["total_malloced"] == len(sizes) * MB
        store.check()


@pytest.mark.resident
def test_memory_is_resident_only_when_used() -> None:
    printed = subprocess.run([sys.executable, "-P", "-c", GROWTH], stdout=subprocess.PIPE, check=True).stdout
    made, used = map(int, printed.split())
    assert made < 3 * 1024
    assert used < 6 * 1024


@pytest.mark.resident
def test_memory_is_cleared_where_it_is_written() -> None:
    """Allocated items cost only a few small pages until somebody writes to them."""
    printed = subprocess.run([sys.executable, "-P", "-c", UNWRITTEN], stdout=subprocess.PIPE, check=True).stdout
    grown, huge = map(int, printed.split())
    assert grown < 8 * 1024
    assert huge == 0


@pytest.mark.parametrize("direct", [False, None], ids=["private", "shared"])
def test_pages_that_are_full_become_huge(direct: bool | None) -> None:
    """Full pages become huge, also pages open to clients, and keep their content."""
    with Store(maxbytes=128 * MB, direct=direct) as store:
        values = {b"key-%d" % number: os.urandom(2000) for number in range(30_000)}
        for key, value in values.items():
            store.set(key, value)
        full = store.stats()["total_malloced"] // (2 * MB) - 2
        deadline = time.monotonic() + 60
        while store.direct_stats()["huge_pages"] < full and time.monotonic() < deadline:
            os.sched_yield()
        assert store.direct_stats()["huge_pages"] >= full * 0.9
        assert all(store.get(key) == value for key, value in values.items())
        store.check()


def test_chunk_accounting() -> None:
    with Store() as store:
        perslab = store.class_stats(1)["chunks_per_page"]
        for i in range(perslab + 1):
            store.set(b"%05d" % i, b"")
        stats = store.class_stats(1)
        assert (stats["total_pages"], stats["total_chunks"]) == (2, 2 * perslab)
        assert (stats["used_chunks"], stats["free_chunks"]) == (perslab + 1, perslab - 1)
        assert stats["mem_requested"] == (perslab + 1) * (48 + 8 + 6 + 2) == store.stats()["curr_bytes"]
        for i in range(perslab + 1):
            assert store.delete(b"%05d" % i)
        stats = store.class_stats(1)
        assert (stats["used_chunks"], stats["free_chunks"], stats["number"]) == (0, 2 * perslab, 0)
        assert store.stats()["curr_bytes"] == 0
        store.check()

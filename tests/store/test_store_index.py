"""The index for clients that read without asking costs nothing before the first such client."""

from __future__ import annotations

import concurrent.futures
import mmap
import os
import time

import pytest
from polling import eventually

from rmemcached.store._testing import Store
from rmemcached.store._testing_direct import DirectReader

pytestmark = pytest.mark.without_direct("about stores before their first reader")
MB = 1 << 20
LIFE = 2 * MB  # bytes before the arena in the arena's file: they hold the mutex


def test_nobody_has_an_index_before_somebody_asks() -> None:
    with Store(256 * MB, hashpower_init=12) as store:
        values = {b"key-%d" % number: b"value-%d" % number for number in range(100_000)}
        for key, value in values.items():
            store.set(key, value)
        assert not any(store.direct_stats()[name] for name in ("buckets", "items", "clients", "readers"))
        reader = DirectReader(store.direct_give())
        stats = store.direct_stats()
        assert stats["items"] + stats["left_out"] == len(values)
        assert stats["left_out"] < len(values) / 50
        assert (stats["readers"], stats["clients"]) == (1, 1)
        found = {key: reader.get(key) for key in values}
        assert {key: value for key, value in found.items() if value is not None}.items() <= values.items()
        assert sum(value is None for value in found.values()) == stats["left_out"]
        store.check()


def test_an_index_goes_with_its_last_reader() -> None:
    with Store(direct_linger=0) as store:
        store.set(b"key", b"1")
        for _ in range(3):
            reader = DirectReader(store.direct_give())
            second = DirectReader(store.direct_give())
            assert reader.get(b"key") == second.get(b"key") == store.get(b"key")
            store.direct_return()
            store.set(b"key", b"2")
            assert store.direct_stats()["readers"] == 1
            assert reader.get(b"key") == b"2" and reader.alive
            store.direct_return()
            eventually(lambda: store.direct_stats()["buckets"] == 0, 60)
            # A reader of the old index learns that nobody writes there any more.
            store.set(b"key", b"3")
            assert not reader.alive and reader.read(b"key") == "ask"
            store.check()
        assert store.direct_stats()["clients"] == 6


def test_an_index_stays_while_a_reader_may_come_back() -> None:
    with Store(direct_linger=3600) as store:
        store.set(b"key", b"value")
        first = DirectReader(store.direct_give())
        store.direct_return()
        assert first.alive and first.get(b"key") == b"value"
        second = DirectReader(store.direct_give())
        assert first.alive and second.get(b"key") == b"value"


def test_what_was_flushed_before_is_not_found() -> None:
    with Store() as store:
        store.set(b"old", b"value")
        store.advance(2)
        store.flush_all()
        store.advance(2)
        store.set(b"new", b"value")
        reader = DirectReader(store.direct_give())
        assert reader.get(b"old") is None
        assert reader.get(b"new") == b"value"


@pytest.mark.parametrize("options", [{}, {"lru_maintainer": True, "slab_reassign": True, "slab_automove": 1}])
def test_an_index_is_made_and_given_up_beside_writers(options: dict[str, object]) -> None:
    """Readers find right values while the index is made and given up again and again beside writers."""
    with (
        Store(32 * MB, direct_linger=0, nthreads=4, hashpower_init=13, **options) as store,  # type: ignore[arg-type]
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        writing = pool.submit(store.stress, 2, 150_000, keys=20_000, max_value=2000, move="slab_reassign" in options)
        rounds = found = 0
        while not writing.done():
            reader = DirectReader(store.direct_give())
            reading = pool.submit(reader.run, rounds, 20_000)
            time.sleep(0.01)  # The reader reads during this time.
            reader.end()
            found += reading.result()[1]
            store.direct_return()
            rounds += 1
        writing.result()
        assert rounds > 5 and found > 1000
        eventually(lambda: store.direct_stats()["buckets"] == 0, 60)
        store.check()


def test_a_raised_limit_gives_items_that_are_asked_for() -> None:
    """After a raised memory limit clients ask for items beyond the memory covered by the index."""
    with Store(8 * MB, slab_reassign=True) as store:
        reader = DirectReader(store.direct_give())
        assert store.set_memory_limit(200 * MB)
        values = {b"key-%d" % number: os.urandom(20_000) for number in range(5000)}
        for key, value in values.items():
            store.set(key, value)
        # The clock has to move: a store with a stopped clock is asked.
        store.advance(0)
        found = {key: reader.get(key) for key in values}
        there = {key: value for key, value in found.items() if value is not None}
        assert there.items() <= values.items()
        assert 0 < len(there) < len(values) / 5
        for key in list(values)[::2]:
            store.set(key, b"new")
            assert reader.get(key) in (b"new", None)
            store.delete(key)
            assert reader.get(key) is None
        store.check()


def test_readers_make_no_more_memory_than_the_limit_and_the_index() -> None:
    """A reader's reads of holes make pages, but never beyond the ends of the descriptors' files."""
    with Store(64 * MB) as store:
        index, arena = store.direct_give()
        assert os.fstat(arena).st_size == 64 * MB + LIFE
        assert os.fstat(index).st_size <= 10 * MB
        for fd in (index, arena):
            with pytest.raises(OSError):
                os.truncate(fd, 1 << 30)
            with pytest.raises(OSError):
                os.write(fd, b"x")
            with pytest.raises(OSError):
                mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_a_reader_that_makes_the_file_longer_stops_nobody() -> None:
    """A longer file stops no store: any process of the same user can lengthen the file, whatever the rights of its
    descriptor."""
    with Store(8 * MB, slab_reassign=True) as store:
        _, arena = store.direct_give()
        os.fchmod(arena, 0o600)
        with open(f"/proc/self/fd/{arena}", "r+b", buffering=0) as file:
            os.truncate(file.fileno(), 100 * MB + 4096)
            with pytest.raises(OSError):
                file.write(b"x")
        assert store.set_memory_limit(64 * MB)
        values = {b"key-%d" % number: os.urandom(20_000) for number in range(2000)}
        assert {store.set(key, value) for key, value in values.items()} == {"STORED"}
        assert {key: store.get(key) for key in values} == values
        store.check()


def test_memory_is_given_back_before_somebody_reads() -> None:
    with Store(64 * MB, slab_reassign=True, huge_pages=False) as store:
        for number in range(40):
            store.set(b"%d" % number, bytes(MB // 2))
        for number in range(40):
            store.delete(b"%d" % number)
        assert store.set_memory_limit(4 * MB)
        while store.reassign(store.largest_class, 0) in ("OK", "RUNNING"):
            os.sched_yield()
        before = store.stats()["total_malloced"]
        assert store.direct_stats()["sealed"] == 0
        _, arena = store.direct_give()
        assert store.direct_stats()["sealed"] == 1
        assert before < 6 * MB
        assert os.fstat(arena).st_blocks * 512 <= before + MB


def test_memory_is_kept_for_other_items_once_somebody_has_read() -> None:
    with Store(64 * MB, slab_reassign=True, huge_pages=False) as store:
        store.direct_give()
        store.direct_return()
        for number in range(40):
            store.set(b"%d" % number, bytes(MB // 2))
        for number in range(40):
            store.delete(b"%d" % number)
        full = store.stats()["total_malloced"]
        assert store.set_memory_limit(full - 8 * MB)
        while store.reassign(store.largest_class, 0) in ("OK", "RUNNING"):
            os.sched_yield()
        pool = store.stats()["slab_global_page_pool"]
        assert pool > 8
        assert store.stats()["total_malloced"] == full and store.direct_stats()["sealed"] == 1
        values = {b"key-%d" % number: os.urandom(1000) for number in range(4 * 1024)}
        assert {store.set(key, value) for key, value in values.items()} == {"STORED"}
        assert store.stats()["total_malloced"] == full
        assert store.stats()["slab_global_page_pool"] < pool
        store.check()

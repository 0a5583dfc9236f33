"""The LRU, eviction, and running out of memory."""

from __future__ import annotations

import pytest

from rmemcached.store._testing import Store

MB = 1 << 20


def fill(store: Store, count: int, start: int = 0) -> None:
    for i in range(start, start + count):
        assert store.set(b"%05d" % i, b"") == "STORED"


def test_the_oldest_goes_first() -> None:
    with Store(maxbytes=MB) as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, count)
        for i in range(500):
            fill(store, 1, count + i)
            assert store.item(b"%05d" % i, False) is None
            assert store.item(b"%05d" % (i + 1), False) is not None
        stats = store.stats()
        assert (stats["evictions"], stats["curr_items"]) == (500, count)
        own = store.class_stats(1)
        assert (own["evicted"], own["evicted_unfetched"], own["evicted_nonzero"]) == (500, 500, 0)
        assert own["total_pages"] == 1
        store.check()


@pytest.mark.segmented("which item goes first")
def test_used_items_stay() -> None:
    with Store(maxbytes=MB) as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, count)
        # Within the interval a use does not move the item, so the item is the next to go.
        store.get(b"00000")
        fill(store, 1, 90000)
        assert store.get(b"00000") is None
        store.advance(61)
        for i in range(1, 100):
            assert store.get(b"%05d" % i) == b""
        fill(store, 500, 91000)
        assert all(store.get(b"%05d" % i) == b"" for i in range(1, 100))
        assert store.get(b"00100") is None
        store.check()


def test_looking_without_update_is_no_use() -> None:
    with Store(maxbytes=MB) as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, count)
        store.advance(100)
        assert store.get(b"00000", update=False) == b""
        fill(store, 1, 90000)
        assert store.get(b"00000") is None


@pytest.mark.segmented("which item goes first")
def test_age_and_evicted_time() -> None:
    with Store(maxbytes=MB) as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, 1)
        store.advance(30)
        store.set(b"00001", b"", exptime=10000)
        fill(store, count - 2, 2)
        assert store.class_stats(1)["age"] in (30, 31)
        store.get(b"00000")
        fill(store, 1, 90000)
        own = store.class_stats(1)
        assert own["evicted_time"] in (30, 31)
        assert (own["evicted"], own["evicted_unfetched"], own["evicted_nonzero"]) == (1, 0, 0)
        fill(store, 1, 90001)
        own = store.class_stats(1)
        assert (own["evicted"], own["evicted_unfetched"], own["evicted_nonzero"]) == (2, 1, 1)


@pytest.mark.segmented("which item goes first")
def test_referenced_items_are_evicted_but_stay_readable() -> None:
    with Store(maxbytes=MB) as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, count)
        held = [store.item(b"%05d" % i) for i in range(5)]
        fill(store, 1, 50000)
        stats = store.stats()
        assert (stats["lrutail_reflocked"], stats["evictions"], stats["direct_reclaims"]) == (10, 6, 6)
        assert all(store.item(b"%05d" % i, False) is None for i in range(6))
        assert [(item.key, item.value) for item in held] == [(b"%05d" % i, b"") for i in range(5)]
        store.check(False)
        for item in held:
            item.release()
        store.check()
        fill(store, 5, 60000)
        assert store.stats()["evictions"] == 6


def test_no_memory_when_all_is_referenced() -> None:
    with Store(maxbytes=MB, item_size_max=MB) as store:
        clsid = store.class_of(500_000)
        assert store.class_stats(clsid)["chunks_per_page"] == 2
        store.set(b"a", bytes(499_000))
        store.set(b"b", bytes(499_000))
        held = [store.item(b"a"), store.item(b"b")]
        assert store.set(b"c", bytes(499_000)) == "NO_MEMORY"
        assert store.class_stats(clsid)["outofmemory"] == store.stats()["outofmemory"] == 1
        assert held[0].value == bytes(499_000)
        held[0].release()
        assert store.set(b"c", bytes(499_000)) == "STORED"
        assert store.get(b"a") is None
        held[1].release()
        store.check()


@pytest.mark.parametrize("size", [0, 1000, 100_000, 700_000])
def test_without_eviction_memory_runs_out(size: int) -> None:
    with Store(maxbytes=8 * MB, evict_to_free=False) as store:
        stored = 0
        while store.set(b"%05d" % stored, bytes(size)) == "STORED":
            stored += 1
        assert stored > 0
        assert store.set(b"again", bytes(size)) == "NO_MEMORY"
        stats = store.stats()
        assert stats["evictions"] == 0
        assert stats["outofmemory"] == 2
        assert stats["curr_items"] == stored
        for i in range(stored):
            assert store.get(b"%05d" % i) == bytes(size)
        assert store.delete(b"00000")
        assert store.set(b"again", bytes(size)) == "STORED"
        store.check()


def test_without_eviction_expired_items_are_reclaimed() -> None:
    with Store(maxbytes=MB, evict_to_free=False) as store:
        count = store.class_stats(1)["chunks_per_page"]
        for i in range(count):
            store.set(b"%05d" % i, b"", exptime=5)
        assert store.set(b"extra", b"") == "NO_MEMORY"
        store.advance(10)
        assert store.set(b"extra", b"") == "STORED"
        store.check()


def test_memory_stays_within_the_limit() -> None:
    with Store(maxbytes=16 * MB) as store:
        for i in range(20000):
            assert store.set(b"%05d" % i, bytes(i * 7919 % 30000)) == "STORED"
        classes = [store.class_stats(i) for i in range(1, store.largest_class + 1)]
        over = sum(c["total_pages"] > 0 for c in classes)
        assert store.stats()["total_malloced"] <= (16 + over) * MB
        assert store.stats()["evictions"] > 0
        store.check()


def test_chains_are_evicted_whole() -> None:
    with Store(maxbytes=16 * MB, item_size_max=4 * MB) as store:
        for i in range(200):
            size = (600_000, 3_000_000, 1_500_000)[i % 3]
            assert store.set(b"%05d" % i, bytes([i]) * size) == "STORED"
            assert store.get(b"%05d" % i) == bytes([i]) * size
            store.check()
        assert store.stats()["evictions"] > 150


def test_append_evicts_others_not_itself() -> None:
    with Store(maxbytes=4 * MB, slab_chunk_size_max=1 << 16) as store:
        store.set(b"mine", b"")
        value = b""
        for i in range(100):
            store.set(b"other-%d" % i, bytes(50_000))
            value += b"%04d" % i * 1000
            assert store.store("append", b"mine", value[-4000:])[0] == "STORED"
            assert store.get(b"mine") == value
        store.check()


def test_reset_clears_counters_only() -> None:
    with Store(maxbytes=MB) as store:
        fill(store, store.class_stats(1)["chunks_per_page"] + 100)
        before = store.stats()
        store.reset_stats()
        after = store.stats()
        assert before["evictions"] == 100
        assert after["evictions"] == after["total_items"] == after["direct_reclaims"] == 0
        assert after["curr_items"] == before["curr_items"]
        assert after["curr_bytes"] == before["curr_bytes"]
        store.check()


@pytest.mark.parametrize("algorithm", ["segmented", "flat", "s3fifo"])
def test_eviction_goes_on_behind_what_others_keep(algorithm: str) -> None:
    """A set finds an item to evict though a thousand items at the tail are held, whose eviction frees no memory."""
    with Store(maxbytes=MB, lru_segmented=algorithm == "segmented", s3fifo=algorithm == "s3fifo") as store:
        count = store.class_stats(1)["chunks_per_page"]
        fill(store, count)
        kept = [store.item(b"%05d" % i, False) for i in range(1000)]
        fill(store, count - 1000, count)
        assert store.class_stats(1)["outofmemory"] == 0
        # S3-FIFO leaves held items where they are. The LRU algorithms evict them, and look further for memory.
        stay = algorithm == "s3fifo"
        assert store.stats()["evictions"] >= count - 1000 * stay and (store.get(b"00999") is not None) == stay
        assert all(item.key == b"%05d" % i for i, item in enumerate(kept))
        for item in kept:
            item.release()
        store.check()

"""S3-FIFO: the small queue (HOT), the main queue (COLD), and the keys remembered after their eviction."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rmemcached.store._testing import Store, hash_secret, set_hash_secret

MB = 1 << 20
CLASS = 2  # the slab class of the items below
VALUE = b"x" * 50


def s3fifo(**options: object) -> Store:
    """A store with a page for each class, without threads."""
    given: dict[str, object] = {"s3fifo": True, "maxbytes": MB, "hashpower_init": 12}
    return Store(**{**given, **options})  # type: ignore[arg-type]


@pytest.fixture
def same_hashes() -> Iterator[None]:
    """The keys have the same places in the table of remembered keys, and the same early losses, in every run."""
    before = hash_secret()
    set_hash_secret(random.Random(1).randbytes(len(before)))
    yield
    set_hash_secret(before)


def queue(store: Store, key: bytes) -> str | None:
    item = store.item(key, update=False)
    return item.queue if item else None


def fill(store: Store, count: int, first: int = 0) -> None:
    for i in range(first, first + count):
        assert store.set(b"%07d" % i, VALUE) == "STORED"


def evictions(store: Store) -> int:
    return int(store.class_stats(CLASS)["evicted"])


def fill_up(store: Store, first: int = 1_000_000) -> int:
    """Stores items up to the first eviction. Returns their number."""
    count = 0
    while evictions(store) == 0:
        fill(store, 1, first + count)
        count += 1
    return count


def test_new_items_are_in_the_small_queue() -> None:
    with s3fifo() as store:
        fill(store, 10)
        stats = store.class_stats(CLASS)
        assert (stats["number"], stats["number_hot"]) == (10, 10)
        store.check()


def test_a_fetch_moves_nothing() -> None:
    with s3fifo() as store:
        fill(store, 10)
        for _ in range(5):
            assert store.get(b"%07d" % 0) == VALUE
        assert queue(store, b"%07d" % 0) == "HOT"
        stats = store.stats()
        assert [stats[f"moves_{name}"] for name in ("to_cold", "to_warm", "within_lru")] == [0, 0, 0]
        store.check()


def test_what_was_fetched_goes_to_the_main_queue_and_the_rest_is_evicted() -> None:
    with s3fifo() as store:
        fill(store, 20)
        for i in range(10):
            assert store.get(b"%07d" % i)
        fill_up(store)
        fill(store, 100, 2_000_000)
        assert [queue(store, b"%07d" % i) for i in range(10)] == ["COLD"] * 10
        assert [queue(store, b"%07d" % i) for i in range(10, 20)] == [None] * 10
        stats = store.class_stats(CLASS)
        assert stats["evicted"] == stats["evicted_unfetched"] > 10
        assert store.stats()["moves_to_cold"] == 10
        store.check()


@pytest.mark.usefixtures("same_hashes")
def test_a_key_that_comes_back_enters_the_main_queue() -> None:
    with s3fifo() as store:
        fill(store, 300)
        for i in range(0, 300, 2):
            store.get(b"%07d" % i)
        fill_up(store)
        items = store.class_stats(CLASS)["number"]
        fill(store, 3 * items, 2_000_000)
        last = max(i for i in range(2_000_000, 2_000_000 + 3 * items) if queue(store, b"%07d" % i) is None)
        before = store.stats()["ghost_hits"]
        store.set(b"%07d" % last, VALUE)
        assert queue(store, b"%07d" % last) == "COLD"
        store.set(b"%07d" % (last - items // 3), VALUE)
        assert queue(store, b"%07d" % (last - items // 3)) == "COLD"
        assert store.stats()["ghost_hits"] == before + 2
        # Keys evicted long ago are forgotten.
        store.set(b"%07d" % (last - items // 2), VALUE)
        assert queue(store, b"%07d" % (last - items // 2)) == "HOT"
        assert store.stats()["ghost_hits"] == before + 2
        # A value of another size enters the small queue.
        store.set(b"%07d" % (last - 1), VALUE * 10)
        assert queue(store, b"%07d" % (last - 1)) == "HOT"
        store.check()


def test_the_main_queue_evicts_what_was_not_fetched_since_it_came() -> None:
    with s3fifo() as store:
        fill(store, 200)
        for i in range(200):
            store.get(b"%07d" % i)
        fill_up(store)
        fill(store, 50, 2_000_000)
        main = [b"%07d" % i for i in range(200) if queue(store, b"%07d" % i) == "COLD"]
        assert len(main) == 200
        for key in main[:100]:
            store.get(key)
        # New items, each fetched, enter the main queue, which is then too long and evicts.
        for i in range(40_000):
            fill(store, 1, 3_000_000 + i)
            store.get(b"%07d" % (3_000_000 + i))
            if all(queue(store, key) is None for key in main[100:]):
                break
        left = sum(queue(store, key) == "COLD" for key in main[:100])
        assert left > 75
        assert store.stats()["moves_within_lru"] >= left
        store.check()


def test_an_eviction_ends_where_everything_was_fetched() -> None:
    with s3fifo() as store:
        count = fill_up(store)
        for _ in range(4):
            for i in range(count):
                store.get(b"%07d" % (1_000_000 + i))
        fill(store, count, 2_000_000)
        assert evictions(store) >= count
        store.check()


def test_what_is_stored_again_keeps_its_queue_and_its_fetches() -> None:
    with s3fifo() as store:
        fill(store, 2)
        for i in range(2):
            store.get(b"%07d" % i)
        fill_up(store)
        assert queue(store, b"%07d" % 0) == "COLD"
        store.set(b"%07d" % 0, VALUE)
        assert queue(store, b"%07d" % 0) == "COLD"
        store.set(b"%07d" % 0, VALUE * 20)
        assert queue(store, b"%07d" % 0) == "HOT"
        store.set(b"fetched", VALUE)
        store.get(b"fetched")
        store.set(b"fetched", VALUE)
        fill(store, 2 * store.class_stats(CLASS)["number_hot"], 3_000_000)
        assert queue(store, b"fetched") == "COLD"
        store.check()


def test_without_eviction_only_what_has_expired_goes() -> None:
    with s3fifo(evict_to_free=False) as store:
        for i in range(100):
            store.set(b"%07d" % i, VALUE, exptime=10)
        count = 0
        while store.set(b"%07d" % (1_000_000 + count), VALUE) == "STORED":
            count += 1
        assert evictions(store) == 0
        store.advance(20)
        fill(store, 100, 2_000_000)
        assert store.set(b"more", VALUE) != "STORED"
        assert evictions(store) == 0
        assert store.stats()["reclaimed"] == 100
        store.check()


def test_without_eviction_what_has_expired_is_found_behind_what_has_not() -> None:
    with s3fifo(evict_to_free=False) as store:
        fill(store, 8)
        for i in range(100):
            store.set(b"%07d" % (1_000_000 + i), VALUE, exptime=10)
        while store.set(b"%07d" % (2_000_000 + store.stats()["curr_items"]), VALUE) == "STORED":
            pass
        store.advance(20)
        fill(store, 100, 3_000_000)
        assert store.set(b"more", VALUE) != "STORED"
        assert (evictions(store), store.stats()["reclaimed"]) == (0, 100)
        assert all(store.get(b"%07d" % i) == VALUE for i in range(8))
        store.check()


@pytest.mark.parametrize(("size", "megabytes"), [(450_000, 4), (1_200_000, 16)])
def test_of_few_items_the_last_ones_stay(size: int, megabytes: int) -> None:
    """The latest two items stay though the small queue's share is less than an item. Items of the second size are
    chained."""
    with s3fifo(maxbytes=megabytes * MB, item_size_max=2 * MB) as store:
        for i in range(megabytes * MB // size):
            store.set(b"old-%d" % i, bytes(size))
            store.get(b"old-%d" % i)
        for i in range(20):
            assert store.set(b"new-%d" % i, bytes(size)) == "STORED"
            assert [store.get(b"new-%d" % n, update=False) for n in (i, max(i - 1, 0))] == [bytes(size)] * 2
        assert store.stats()["evictions"] >= 10
        store.check()


def test_of_few_items_one_that_comes_back_stays() -> None:
    """An item stored again stays, though all items but the newest are fetched."""
    value = bytes(450_000)
    with s3fifo(maxbytes=16 * MB) as store:
        others = [b"old-%d" % i for i in range(20)]
        for key in others:
            store.set(key, value)
        while len(others) < 60 and (len(others) == 20 or queue(store, b"new-20")):
            for key in others[:20]:
                store.get(key)
            others.append(b"new-%d" % len(others))
            store.set(others[-1], value)
        assert queue(store, b"new-20") is None
        others.remove(b"new-20")
        ghosts = store.stats()["ghost_hits"]
        for stored in (b"new-20", *(b"more-%d" % i for i in range(2))):
            for key in others * 4:
                store.get(key)
            assert store.set(stored, value) == "STORED"
            assert store.get(b"new-20", update=False) == value, stored
        assert store.stats()["ghost_hits"] == ghosts + 1
        store.check()


@pytest.mark.parametrize("fetches", [0, 1, 4])
@pytest.mark.parametrize("held", [5, 15, 200])
def test_what_is_in_use_is_in_nobodys_way(fetches: int, held: int) -> None:
    """Eviction passes over items held by references, as during a send or by a client's views."""
    with s3fifo() as store:
        count = fill_up(store)
        for _ in range(fetches):
            for i in range(count):
                store.get(b"%07d" % (1_000_000 + i))
        # The fetched items move to the main queue, from which eviction then takes.
        fill(store, 300, 2_000_000)
        keys = [key for key in (b"%07d" % (1_000_000 + i) for i in range(count)) if queue(store, key)][:held]
        assert {queue(store, key) for key in keys} == {"COLD" if fetches else "HOT"}
        items = [store.item(key, update=False) for key in keys]
        assert len(items) == held
        before = evictions(store)
        fill(store, 300, 4_000_000)
        assert evictions(store) == before + 300
        # The held items stay: their eviction would free no memory.
        assert all(store.item(key, update=False) is not None for key in keys)
        assert all(item.value == VALUE for item in items)
        store.check(False)


def test_where_everything_is_in_use_there_is_no_memory() -> None:
    with s3fifo(item_size_max=MB) as store:
        value = bytes(499_000)
        assert [store.set(key, value) for key in (b"a", b"b")] == ["STORED"] * 2
        items = {key: store.item(key) for key in (b"a", b"b")}
        assert store.set(b"c", value) == "NO_MEMORY"
        items[b"b"].release()
        assert store.set(b"c", value) == "STORED"
        assert (queue(store, b"b"), store.get(b"a")) == (None, value)
        items[b"a"].release()
        store.check()


@pytest.mark.parametrize(("threads", "pages"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("options", [{}, {"lru_maintainer": True, "lru_crawler": True}])
def test_few_items_and_many_threads(threads: int, pages: int, options: dict[str, int]) -> None:
    """Sets of many threads find memory with two items a page: a thread holds three items at most (old, new, joined)."""
    with s3fifo(maxbytes=pages * MB, slab_sizes=(96,), nthreads=threads, **options) as store:
        done = store.stress(threads, 30_000, keys=60, max_value=2000, even=True)
        assert (done["no_memory"], store.stats()["outofmemory"]) == (0, 0)
        store.stop_threads()
        store.check()


def test_what_has_expired_at_a_tail_makes_room() -> None:
    with s3fifo() as store:
        for i in range(100):
            store.set(b"%07d" % i, VALUE, exptime=5)
        store.advance(10)
        fill(store, 100, 1_000_000)
        assert store.class_stats(CLASS)["number"] == 100
        store.advance(10)
        # The class's age is the age of its queue with items.
        assert store.class_stats(CLASS)["age"] == store.class_stats(CLASS)["age_hot"] >= 10
        store.check()


def test_the_maintainer_drops_what_has_expired_at_the_tails() -> None:
    with s3fifo(lru_maintainer=True) as store:
        store.stop_threads()
        for i in range(100):
            store.set(b"%07d" % i, VALUE, exptime=5)
        store.advance(10)
        store.maintain()
        assert store.stats()["curr_items"] == 0
        assert store.class_stats(CLASS)["reclaimed"] == 100


def test_flush_all_finds_what_was_just_stored_in_any_order() -> None:
    with s3fifo() as store:
        fill(store, 400)
        for i in range(400):
            store.get(b"%07d" % i)
        fill_up(store)
        fill(store, 50, 2_000_000)
        store.advance(10)
        # The flush reaches items stored or touched in its own second, also in the middle of both queues.
        store.touch(b"%07d" % 100, 100)
        store.set(b"%07d" % 200, VALUE)
        fill(store, 20, 3_000_000)
        store.touch(b"%07d" % 3_000_000, 100)
        store.flush_all()
        assert store.get(b"%07d" % 100) is None
        assert store.get(b"%07d" % 200) is None
        assert all(store.get(b"%07d" % i) is None for i in range(3_000_000, 3_000_020))
        store.check()


def test_brief_items_have_a_queue_of_their_own() -> None:
    with s3fifo(lru_maintainer=True, temp_lru=True, temporary_ttl=60) as store:
        store.stop_threads()
        store.set(b"brief", VALUE, exptime=30)
        assert queue(store, b"brief") == "TEMP"
        store.advance(31)
        store.maintain()
        assert store.stats()["curr_items"] == 0
        store.check()


def test_the_maintainer_moves_nothing_ahead_of_need() -> None:
    with s3fifo(lru_maintainer=True, hot_lru_pct=1, warm_lru_pct=1) as store:
        store.stop_threads()
        fill(store, 1000)
        store.set_segmented(True)
        store.advance(100_000)
        store.maintain()
        assert store.class_stats(CLASS)["number_hot"] == 1000
        store.check()


def cached(store: Store, key: int) -> bool:
    """Asks for a key, and stores a missing value, as an application's cache. Returns whether the key had a value."""
    if store.get(b"%07d" % key) is not None:
        return True
    store.set(b"%07d" % key, VALUE)
    return False


def test_the_main_queues_keys_are_remembered_too() -> None:
    with s3fifo() as store:
        fill(store, 1)
        store.get(b"%07d" % 0)
        count = fill_up(store)
        assert queue(store, b"%07d" % 0) == "COLD"
        # Other items, each fetched, push the key out of the main queue.
        for i in range(3 * count):
            cached(store, 2_000_000 + i)
            cached(store, 2_000_000 + i)
            if queue(store, b"%07d" % 0) is None:
                break
        store.set(b"%07d" % 0, VALUE)
        assert queue(store, b"%07d" % 0) == "COLD"
        store.check()


@pytest.mark.usefixtures("same_hashes")
def test_the_small_queues_have_little_where_what_is_popular_stays() -> None:
    with s3fifo() as store:
        assert store.stats()["small_lru_pct"] == pytest.approx(10, abs=0.01)
        source = random.Random(1)
        keys = [int(source.paretovariate(0.2)) % 100_000 for _ in range(400_000)]
        for key in keys:
            cached(store, key)
        assert 0.4 < store.stats()["small_lru_pct"] < 5
        store.check()


@pytest.mark.usefixtures("same_hashes")
def test_the_small_queues_have_more_where_what_is_popular_changes() -> None:
    with s3fifo() as store:
        count = fill_up(store)
        source = random.Random(1)
        # A key is asked for about four times within a short span of keys, and never again.
        for i in range(30 * count):
            cached(store, 2_000_000 + i // 4 - source.randrange(count // 2))
        assert 20 < store.stats()["small_lru_pct"] <= 70
        store.check()


@pytest.mark.parametrize("maxbytes", [MB, 64 * MB, 1 << 30])
def test_what_the_ghosts_take(maxbytes: int) -> None:
    with s3fifo(maxbytes=maxbytes) as store:
        assert 0.015 * maxbytes < store.stats()["ghost_bytes"] <= maxbytes / 16
    with Store(maxbytes=maxbytes, s3fifo=False) as other:
        assert other.stats()["ghost_bytes"] == 0


def test_counters_are_reset() -> None:
    with s3fifo() as store:
        fill(store, 100)
        fill_up(store)
        fill(store, 2000, 2_000_000)
        fill(store, 2000, 1_000_000)
        assert store.stats()["ghost_hits"] > 0
        store.reset_stats()
        stats = store.stats()
        assert (stats["evictions"], stats["moves_to_cold"], stats["ghost_hits"]) == (0, 0, 0)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [{}, {"lru_maintainer": True, "temp_lru": True, "temporary_ttl": 2}])
def test_many_threads(seed: int, options: dict[str, int]) -> None:
    with s3fifo(maxbytes=4 * MB, lru_crawler=True, **options) as store:
        store.crawler_sleep(0)
        done = store.stress(4, 50_000, seed=seed, keys=20_000, max_value=20_000, clock=True)
        assert done["hits"] > 0
        store.check(False)
        store.stop_threads()
        store.check()
        assert store.stats()["evictions"] > 0

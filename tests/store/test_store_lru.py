"""The queues of the segmented LRU, and the maintainer, which moves items between them."""

from __future__ import annotations

import pytest
from polling import eventually

from rmemcached.store._testing import Store

MB = 1 << 20
CLASS = 2  # the slab class of the items below


def segmented(**options: int | float | bool) -> Store:
    """A store without a background crawler, whose maintainer moves no item because of its age."""
    given: dict[str, int | float | bool] = {"hot_max_factor": 1e6, "warm_max_factor": 1e6, "hashpower_init": 12}
    return Store(lru_maintainer=True, **{**given, **options})  # type: ignore[arg-type]


def queue(store: Store, key: bytes) -> str | None:
    item = store.item(key, update=False)
    return item.queue if item else None


def fill(store: Store, count: int, first: int = 0, exptime: int = 0) -> None:
    for i in range(first, first + count):
        assert store.set(b"%07d" % i, b"x" * 50, exptime=exptime) == "STORED"


def fetch_twice(store: Store, key: bytes) -> None:
    assert store.get(key) is not None
    assert store.get(key) is not None


def into_cold(store: Store, key: bytes) -> None:
    """Stores the key and other items, and lets the maintainer move all of them to COLD."""
    store.tune(0, 0, 1e6, 1e6)
    fill(store, 20, 9_000_000)
    store.set(key, b"x" * 50)
    store.maintain()
    assert queue(store, key) == "COLD"
    store.tune(20, 40, 1e6, 1e6)


def test_new_items_are_hot() -> None:
    with segmented() as store:
        store.stop_threads()
        fill(store, 10)
        stats = store.class_stats(CLASS)
        assert (stats["number"], stats["number_hot"]) == (10, 10)
        assert queue(store, b"0000001") == "HOT"


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_hot_and_warm_keep_their_shares() -> None:
    with segmented(hot_lru_pct=30, warm_lru_pct=20) as store:
        fill(store, 1000)
        store.maintain()
        stats = store.class_stats(CLASS)
        assert 250 <= stats["number_hot"] <= 300
        assert stats["number_cold"] == stats["moves_to_cold"] == 1000 - stats["number_hot"]
        for i in range(1000):
            fetch_twice(store, b"%07d" % i)
        store.maintain()
        stats = store.class_stats(CLASS)
        assert 150 <= stats["number_warm"] <= 200
        assert stats["moves_to_warm"] >= 700
        # The statistics leave out items that the maintainer's thread moves meanwhile.
        eventually(lambda: store.class_stats(CLASS)["number"] == 1000)
        store.check()


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_an_old_tail_moves_to_cold() -> None:
    with segmented() as store:
        into_cold(store, b"cold")
        store.advance(100)
        store.set(b"older", b"x" * 50)
        store.advance(30)
        store.set(b"newer", b"x" * 50)
        store.advance(100)
        # COLD's tail is 230 s old: HOT gives up items unused for 115 s.
        store.tune(80, 0, 0.5, 1e6)
        store.maintain()
        assert queue(store, b"older") == "COLD"
        assert queue(store, b"newer") == "HOT"
        assert store.class_stats(CLASS)["age_hot"] == 100


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_what_is_fetched_twice_goes_from_hot_to_warm() -> None:
    with segmented() as store:
        store.set(b"once", b"x" * 50)
        store.set(b"twice", b"x" * 50)
        store.get(b"once")
        fetch_twice(store, b"twice")
        store.tune(0, 80, 1e6, 1e6)
        store.maintain()
        assert queue(store, b"once") == "COLD"
        assert queue(store, b"twice") == "WARM"
        stats = store.class_stats(CLASS)
        assert (stats["moves_to_warm"], stats["moves_to_cold"], stats["number_warm"]) == (1, 1, 1)


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_a_fetch_of_cold_moves_to_warm() -> None:
    with segmented() as store:
        into_cold(store, b"key")
        store.get(b"key")
        store.maintain()
        assert queue(store, b"key") == "COLD"
        store.advance(10)
        store.get(b"key")
        store.maintain()
        assert queue(store, b"key") == "WARM"
        assert store.item(b"key", False).time == store.time
        assert store.class_stats(CLASS)["moves_to_warm"] == 1


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_the_thread_makes_the_move() -> None:
    with segmented() as store:
        into_cold(store, b"key")
        fetch_twice(store, b"key")
        eventually(lambda: queue(store, b"key") == "WARM")
        store.check()


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_a_move_that_waits_for_an_item_that_went() -> None:
    with segmented() as store:
        into_cold(store, b"key")
        fetch_twice(store, b"key")
        store.delete(b"key")
        store.set(b"key", b"new")
        store.maintain()
        assert store.get(b"key") == b"new"
        store.check()


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_warm_items_that_are_fetched_stay() -> None:
    with segmented() as store:
        fill(store, 30)
        for i in range(10):
            fetch_twice(store, b"%07d" % i)
        store.tune(0, 80, 1e6, 1e6)
        store.maintain()
        assert store.class_stats(CLASS)["number_warm"] == 10
        store.get(b"0000000")
        store.tune(0, 0, 1e6, 1e6)
        store.maintain()
        stats = store.class_stats(CLASS)
        assert stats["moves_within_lru"] == 1
        assert stats["number_cold"] == 30


def test_eviction_takes_colds_tail_and_spares_what_is_warm() -> None:
    with segmented(maxbytes=MB) as store:
        fill(store, 100)
        for i in range(10):
            fetch_twice(store, b"%07d" % i)
        for i in range(3):
            store.maintain()
            fill(store, 5000, 1000 + 5000 * i)
        store.maintain()
        fill(store, 2000, 100000)
        stats = store.class_stats(CLASS)
        assert stats["evicted"] > 5000
        assert stats["direct_reclaims"] > 5000
        assert all(queue(store, b"%07d" % i) for i in range(10))
        assert all(queue(store, b"%07d" % i) is None for i in range(10, 100))
        store.check()


def test_without_cold_allocation_takes_from_hot() -> None:
    with segmented(maxbytes=MB, hot_lru_pct=80, warm_lru_pct=0) as store:
        fill(store, 30000)
        stats = store.stats()
        assert stats["evictions"] > 0
        assert stats["outofmemory"] == 0
        store.check()


def test_without_the_maintainer_allocation_takes_from_warm() -> None:
    """A set finds an item to evict though all items have been fetched and no maintainer moves any to COLD."""
    with segmented(maxbytes=MB) as store:
        store.stop_threads()
        count = store.class_stats(CLASS)["chunks_per_page"]
        fill(store, count)
        for i in range(count):
            fetch_twice(store, b"%07d" % i)
        fill(store, 1, count)
        assert store.stats()["evictions"] == 1
        # Fetch every item. The items of COLD are then queued for WARM, and without the maintainer nobody moves them.
        for i in range(count):
            store.get(b"%07d" % i)
        fill(store, count - 1, count + 1)
        stats = store.stats()
        assert stats["outofmemory"] == 0
        assert count - 16 <= stats["curr_items"] <= count
        store.check()


def test_brief_items_have_a_queue_of_their_own() -> None:
    with segmented(maxbytes=MB, temp_lru=True, temporary_ttl=60) as store:
        fill(store, 100, exptime=60)
        fill(store, 100, 100, exptime=61)
        fill(store, 100, 200)
        stats = store.class_stats(CLASS)
        # The maintainer may have moved some from HOT to COLD already.
        assert (stats["number_temp"], stats["number_hot"] + stats["number_cold"]) == (100, 200)
        fill(store, 20000, 1000)
        assert store.class_stats(CLASS)["number_temp"] == 100
        fetch_twice(store, b"0000001")
        assert queue(store, b"0000001") == "TEMP"
        store.advance(62)
        store.maintain()
        assert store.class_stats(CLASS)["number_temp"] == 0
        assert store.class_stats(CLASS)["reclaimed"] >= 100
        store.check()


def test_temp_ttl_at_run_time() -> None:
    with segmented() as store:
        store.set(b"a", b"x" * 50, exptime=10)
        store.set_temp_ttl(10)
        store.set(b"b", b"x" * 50, exptime=10)
        store.set(b"past", b"x" * 50, exptime=-1)
        store.set_temp_ttl(-1)
        store.set(b"c", b"x" * 50, exptime=10)
        assert [queue(store, key) for key in (b"a", b"b", b"c")] == ["HOT", "TEMP", "HOT"]


@pytest.mark.segmented("flat mode")
def test_flat_mode_has_cold_only() -> None:
    with segmented() as store:
        fill(store, 100)
        for i in range(50):
            fetch_twice(store, b"%07d" % i)
        store.maintain()
        store.set_segmented(False)
        fill(store, 100, 1000)
        store.advance(1)
        store.maintain()
        store.maintain()
        stats = store.class_stats(CLASS)
        assert (stats["number_cold"], stats["number"]) == (200, 200)
        store.set_segmented(True)
        fill(store, 1, 5000)
        assert queue(store, b"0005000") == "HOT"
        store.check()


@pytest.mark.segmented("flat mode")
def test_without_a_maintainer_the_lru_is_flat() -> None:
    with Store(lru_segmented=True, temp_lru=True) as store:
        fill(store, 10, exptime=5)
        store.set_segmented(True)
        store.set_temp_ttl(100)
        fill(store, 10, 100)
        assert store.class_stats(CLASS)["number_cold"] == 20
        assert store.stats()["lru_maintainer_juggles"] == 0


def test_the_maintainer_drops_what_has_expired_at_the_tails() -> None:
    with segmented() as store:
        fill(store, 1000, exptime=10)
        store.maintain()
        store.advance(12)
        store.maintain()
        stats = store.class_stats(CLASS)
        assert (stats["number"], stats["reclaimed"], stats["expired_unfetched"]) == (0, 1000, 1000)


def test_the_maintainer_drops_what_was_flushed() -> None:
    with segmented() as store:
        fill(store, 1000)
        store.maintain()
        store.advance(5)
        store.flush_all()
        fill(store, 3, 5000)
        eventually(lambda: store.class_stats(CLASS)["number"] == 3)
        stats = store.class_stats(CLASS)
        assert stats["reclaimed"] == 1000
        assert store.get(b"0005000") is not None


def test_it_leaves_alone_what_the_crawler_has_not_seen() -> None:
    with segmented(lru_crawler=True) as store:
        fill(store, 1000)
        # The crawler may be busy with a crawl started by the maintainer.
        eventually(lambda: store.dump(b"all").result == "OK")
        eventually(lambda: not store.stats()["lru_crawler_running"])
        store.tune(80, 0, 1e6, 1e6)
        dump = store.dump(b"%d" % CLASS, slow=True)
        while dump.result != "OK":
            # The crawler is busy again with a crawl started by the maintainer.
            eventually(lambda: not store.stats()["lru_crawler_running"])
            dump = store.dump(b"%d" % CLASS, slow=True)
        dump.waiting()
        store.tune(0, 0, 1e6, 1e6)
        store.maintain()
        moved = store.class_stats(CLASS)["number_cold"]
        fill(store, 10, 5000)
        dump.proceed()
        found = dump.found()
        assert {b"%07d" % i for i in range(1000)} <= set(found) or moved > 0
        store.check()


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_a_leaked_reference_is_repaired() -> None:
    with segmented(maxbytes=MB, tail_repair_time=100) as store:
        # Beside the maintainer's thread store.maintain() would do less, and a full store could have no item to evict.
        store.stop_threads()
        fill(store, 1)
        store.item(b"0000000", False).leak()
        store.advance(50)
        fill(store, 20000, 1000)
        assert store.class_stats(CLASS)["tailrepairs"] == 0
        fill(store, 1)
        store.item(b"0000000", False).leak()
        store.tune(80, 0, 1e6, 1e6)
        store.advance(102)
        store.tune(0, 0, 1e6, 1e6)
        store.maintain()
        assert store.class_stats(CLASS)["tailrepairs"] == 1
        assert store.class_stats(CLASS)["lrutail_reflocked"] >= 1


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_counters_are_reset() -> None:
    with segmented(hot_lru_pct=0) as store:
        fill(store, 10)
        store.maintain()
        assert store.stats()["moves_to_cold"] == 10
        store.reset_stats()
        stats = store.stats()
        assert (stats["moves_to_cold"], stats["curr_items"]) == (0, 10)


@pytest.mark.segmented("the maintainer moves items between the segments")
def test_more_bumps_than_can_wait() -> None:
    with segmented(nthreads=1, hot_lru_pct=0, maxbytes=64 * MB) as store:
        fill(store, 30000)
        store.maintain()
        for _ in range(2):
            for i in range(30000):
                store.get(b"%07d" % i)
        store.maintain()
        stats = store.stats()
        assert stats["moves_to_warm"] + stats["lru_bumps_dropped"] >= 30000
        store.check()


def test_the_maintainer_starts_crawls() -> None:
    with segmented(lru_crawler=True) as store:
        fill(store, 1000, exptime=30)
        fill(store, 1000, 5000)

        def reclaimed() -> bool:
            # The first crawl may have begun before the items expired. The next crawl follows some time later.
            store.advance(60)
            return bool(store.class_stats(CLASS)["number"] == 1000)

        eventually(reclaimed)
        eventually(lambda: store.stats()["lru_crawler_starts"] > 0)
        starts = store.stats()["lru_crawler_starts"]

        def started_again() -> bool:
            store.advance(600)
            return bool(store.stats()["lru_crawler_starts"] > starts + 2)

        eventually(started_again)


def test_many_threads_and_the_background_ones() -> None:
    choices: list[dict[str, int]] = [
        {},
        {"temp_lru": True, "temporary_ttl": 2},
        {"lru_segmented": False},
        {"s3fifo": True},
    ]
    for seed, options in enumerate(choices):
        with segmented(maxbytes=3 * MB, lru_crawler=True, hot_max_factor=0.2, warm_max_factor=2.0, **options) as store:
            store.crawler_sleep(0)
            done = store.stress(threads=4, ops=30000, seed=seed, keys=8000, max_value=20000, clock=True)
            assert done["hits"] > 1000
            store.check(False)
            store.stop_threads()
            store.check()
            assert store.stats()["evictions"] > 0


@pytest.mark.parametrize("times", [1, 20])
def test_threads_end_with_the_store(times: int) -> None:
    for _ in range(times):
        with segmented(lru_crawler=True) as store:
            fill(store, 100)
            store.crawl(b"all")

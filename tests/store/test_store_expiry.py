"""Expiry times, touch, flush_all, the clock."""

from __future__ import annotations

import threading
import time

import pytest

from rmemcached.store._testing import Store

MONTH = 60 * 60 * 24 * 30


def test_clock_starts_an_interval_and_two_seconds_in() -> None:
    with Store() as store:
        assert store.time in (62, 63)
        assert abs(store.process_started + 62 - time.time()) < 2
        started = store.time
        store.advance(10)
        assert store.time in (started + 10, started + 11)


def test_realtime() -> None:
    with Store() as store:
        now = store.time
        started = store.process_started
        assert store.realtime(0) == 0
        assert store.realtime(-1) == 1
        assert store.realtime(-(1 << 62)) == 1
        assert store.realtime(1) == now + 1
        assert store.realtime(MONTH) == now + MONTH
        assert store.realtime(MONTH + 1) == 1
        assert store.realtime(started) == 1
        assert store.realtime(started + 1) == 1
        assert store.realtime(started + 1000) == 1000
        assert store.realtime(1 << 62) == 0xFFFFFFFF


def test_items_expire_when_read() -> None:
    with Store() as store:
        store.set(b"never", b"1")
        store.set(b"soon", b"1", exptime=10)
        store.set(b"absolute", b"1", exptime=store.process_started + store.time + 20)
        store.set(b"past", b"1", exptime=-1)
        assert store.get(b"past") is None
        store.advance(8)
        assert store.get(b"soon") == b"1"
        store.advance(2)
        assert store.get(b"soon") is None
        assert store.get(b"absolute") == b"1"
        store.advance(10)
        assert store.get(b"absolute") is None
        store.advance(MONTH)
        assert store.get(b"never") == b"1"
        stats = store.stats()
        assert (stats["get_expired"], stats["curr_items"]) == (3, 1)
        store.check()


def test_expired_items_do_not_count_for_stores() -> None:
    with Store() as store:
        for op, result in (
            ("add", "STORED"),
            ("replace", "NOT_STORED"),
            ("append", "NOT_STORED"),
            ("prependviv", "STORED"),
            ("cas", "NOT_FOUND"),
        ):
            store.set(b"k", b"old", exptime=1)
            cas = store.item(b"k").cas
            store.advance(2)
            assert store.store(op, b"k", b"new", cas=cas)[0] == result
            assert store.get(b"k") == (b"new" if result == "STORED" else None)
        store.check()


def test_touch() -> None:
    with Store() as store:
        assert store.touch(b"k", 10) is None
        store.set(b"k", b"1", exptime=10)
        assert store.touch(b"k", 100).value == b"1"
        store.advance(50)
        assert store.get(b"k") == b"1"
        store.touch(b"k", 0)
        store.advance(MONTH)
        assert store.get(b"k") == b"1"
        store.touch(b"k", -1)
        assert store.get(b"k") is None


def test_expired_item_stays_readable_by_reference() -> None:
    with Store() as store:
        store.set(b"k", b"value", exptime=1)
        item = store.item(b"k")
        store.advance(2)
        assert store.get(b"k") is None
        assert item.value == b"value"


def test_flush_all_at_once() -> None:
    with Store() as store:
        store.set(b"old", b"1")
        store.advance(5)
        for i in range(100):
            store.set(b"now-%d" % i, bytes(i * 100))
        store.flush_all()
        assert store.stats()["curr_items"] == 1
        assert store.get(b"old") is None
        assert store.stats()["get_flushed"] == 1
        for i in range(100):
            assert store.get(b"now-%d" % i) is None
        # An item stored after the flush stays, though stored in the same second.
        store.set(b"new", b"2")
        assert store.get(b"new") == b"2"
        store.flush_all(-5)
        assert store.get(b"new") is None
        store.check()


def test_flush_all_later() -> None:
    with Store() as store:
        store.set(b"k", b"1")
        store.flush_all(10)
        assert store.stats()["oldest_live"] == store.time + 9
        assert store.get(b"k") == b"1"
        store.advance(5)
        store.set(b"during", b"1")
        assert store.get(b"k") == b"1"
        store.advance(5)
        assert store.get(b"k") is None
        assert store.get(b"during") is None
        store.set(b"after", b"1")
        assert store.get(b"after") == b"1"
        store.advance(100)
        assert store.get(b"after") == b"1"


def test_flush_all_at_an_absolute_time() -> None:
    with Store() as store:
        store.set(b"k", b"1")
        store.flush_all(store.process_started + store.time + 100)
        store.advance(90)
        assert store.get(b"k") == b"1"
        store.advance(10)
        assert store.get(b"k") is None


@pytest.mark.parametrize("flush", [True, False])
def test_dead_items_at_the_tail_are_reclaimed_first(flush: bool) -> None:
    with Store(maxbytes=1 << 20) as store:
        count = store.class_stats(1)["chunks_per_page"]
        for i in range(count):
            dead = i < 100
            store.set(b"%05d" % i, b"", exptime=5 if dead and not flush else 0)
        store.advance(10)
        if flush:
            store.flush_all()
        for i in range(100):
            assert store.set(b"new%02d" % i, b"") == "STORED"
        stats = store.stats()
        assert stats["evictions"] == 0
        assert stats["reclaimed"] >= 100
        assert stats["expired_unfetched"] == stats["reclaimed"] == store.class_stats(1)["reclaimed"]
        if not flush:
            assert all(store.get(b"%05d" % i) == b"" for i in range(100, count))
        store.check()


def test_expired_memory_is_used_before_a_new_page() -> None:
    with Store() as store:
        count = store.class_stats(1)["chunks_per_page"]
        for i in range(count):
            store.set(b"%05d" % i, b"", exptime=5)
        store.advance(10)
        for i in range(count):
            store.set(b"n%04d" % i, b"")
        assert store.class_stats(1)["total_pages"] == 1
        store.check()


@pytest.mark.parametrize("options", [{"lru_maintainer": True}, {"s3fifo": True}, {"lru_segmented": False}])
def test_flush_all_reaches_what_was_fetched_in_its_second(options: dict[str, bool]) -> None:
    """flush_all reaches an item fetched in the second of the flush, which is not at its queue's head."""
    with Store(**options) as store:  # type: ignore[arg-type]
        store.set(b"key", b"value")
        store.set(b"newer", b"value")
        store.advance(100)
        for _ in range(3):
            assert store.get(b"key") == b"value"
        store.flush_all(0)
        assert store.get(b"key") is None
        assert store.get(b"newer") is None


@pytest.mark.segmented("a maintainer that moves items between queues")
def test_flush_all_reaches_what_moves_between_queues_meanwhile() -> None:
    """flush_all reaches items that fetches move on meanwhile, beside the maintainer."""
    keys = [b"key-%d" % i for i in range(3000)]
    ended = threading.Event()
    with Store(lru_maintainer=True) as store:

        def fetch() -> None:
            while not ended.is_set():
                for key in keys:
                    store.get(key)

        threads = [threading.Thread(target=fetch) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                for key in keys:
                    store.set(key, b"value")
                store.flush_all(0)
                assert not [key for key in keys if store.get(key) is not None]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        store.check(at_rest=False)

"""The crawler thread: dumps, crawls for expired items, its commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmemcached.store._testing import Store


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(lru_crawler=True, hashpower_init=12) as store:
        yield store


def idle(store: Store) -> None:
    """Returns when the crawler has nothing to do: a dump waits for the crawl before."""
    dump = store.dump(b"all")
    while dump.result == "RUNNING":
        dump = store.dump(b"all")
    dump.found()


@pytest.mark.parametrize("classes", [b"all", b"hash"])
def test_a_dump_has_every_item_once(store: Store, classes: bytes) -> None:
    keys = [b"key-%d" % i for i in range(5000)]
    for i, key in enumerate(keys):
        store.set(key, bytes(i % 3000))
    dump = store.dump(classes)
    assert dump.result == "OK"
    assert sorted(dump.found()) == sorted(keys)
    assert dump.complete


def test_a_dump_of_classes(store: Store) -> None:
    store.set(b"small", b"")
    store.set(b"large", bytes(1000))
    store.set(b"larger", bytes(2000))
    clsid = {key: store.item(key).clsid for key in (b"small", b"large", b"larger")}
    assert store.dump(b"%d" % clsid[b"large"]).found() == [b"large"]
    found = store.dump(b"%d,,+%d" % (clsid[b"small"], clsid[b"larger"])).found()
    assert sorted(found) == [b"larger", b"small"]


def test_a_dump_has_items_in_use_and_none_that_is_dead(store: Store) -> None:
    store.set(b"gone", b"1", exptime=5)
    store.set(b"held", b"2")
    held = store.item(b"held")
    store.advance(7)
    for classes in (b"all", b"hash"):
        assert store.dump(classes).found() == [b"held"]
    held.release()
    store.advance(1)
    store.flush_all()
    for classes in (b"all", b"hash"):
        assert store.dump(classes).found() == []


@pytest.mark.parametrize("classes", [b"all", b"hash"])
def test_a_dump_ends_when_its_reader_goes_away(store: Store, classes: bytes) -> None:
    for i in range(5000):
        store.set(b"key-%d" % i, b"")
    dump = store.dump(classes, limit=100)
    assert 100 <= len(dump.found()) < 200
    assert not dump.complete
    assert len(store.dump(classes).found()) == 5000
    store.check()


@pytest.mark.parametrize("classes", [b"all", b"hash"])
def test_a_slow_reader_hinders_nobody(store: Store, classes: bytes) -> None:
    for i in range(2000):
        store.set(b"key-%d" % i, b"")
    dump = store.dump(classes, slow=True)
    dump.waiting()
    assert store.dump(b"all").result == "RUNNING"
    assert store.crawl(b"all") == "RUNNING"
    for i in range(2000):
        assert store.get(b"key-%d" % i) == b""
        store.set(b"other-%d" % i, b"")
        store.delete(b"key-%d" % i)
    dump.proceed()
    assert dump.complete
    store.check()


def test_the_store_is_closed_under_a_dump() -> None:
    with Store(lru_crawler=True) as store:
        for i in range(100):
            store.set(b"key-%d" % i, b"")
        dump = store.dump(b"all", slow=True)
        dump.waiting()
        dump.proceed()
        store.crawler(False)
    assert dump.found() is not None


@pytest.mark.parametrize("growing", [False, True])
def test_a_walk_of_a_growing_table_has_every_item(growing: bool) -> None:
    with Store(lru_crawler=True, hashpower_init=12, hash_expand=growing) as store:
        for i in range(4000):
            store.set(b"key-%d" % i, b"")
        dump = store.dump(b"hash", slow=True)
        dump.waiting()
        for i in range(60000):
            store.set(b"new-%d" % i, b"")
        assert (store.stats()["hash_power_level"] > 13) is growing
        dump.proceed()
        old = [key for key in dump.found() if key.startswith(b"key-")]
        assert len(old) == len(set(old)) == 4000
        store.check()


def test_a_crawl_frees_expired_items_only(store: Store) -> None:
    for i in range(1000):
        store.set(b"brief-%d" % i, b"", exptime=10)
        store.set(b"long-%d" % i, b"", exptime=1000)
        store.set(b"never-%d" % i, b"")
    store.get(b"brief-1")
    store.advance(12)
    assert store.crawl(b"all") == "OK"
    idle(store)
    stats = store.stats()
    assert (stats["curr_items"], stats["crawler_reclaimed"], stats["expired_unfetched"]) == (2000, 1000, 999)
    assert stats["crawler_items_checked"] >= 3000
    assert stats["lru_crawler_starts"] >= 2
    store.check()


def test_tocrawl_limits_a_crawl(store: Store) -> None:
    for i in range(1000):
        store.set(b"brief-%d" % i, b"", exptime=1)
    store.advance(3)
    store.crawler_tocrawl(100)
    assert store.crawl(b"1") == "OK"
    idle(store)
    assert store.stats()["crawler_reclaimed"] == 100


def test_an_item_in_use_is_not_crawled(store: Store) -> None:
    store.set(b"brief", b"", exptime=1)
    held = store.item(b"brief")
    store.advance(3)
    store.crawl(b"all")
    idle(store)
    assert store.stats()["crawler_reclaimed"] == 0
    held.release()
    store.crawl(b"all")
    idle(store)
    assert store.stats()["crawler_reclaimed"] == 1


@pytest.mark.parametrize("classes", [b"0", b"64", b"1x", b"x", b"-1", b"1 2", b"+", b"99999999999999999999", b"1,64"])
def test_what_is_no_class(store: Store, classes: bytes) -> None:
    assert store.crawl(classes) == "BADCLASS"
    assert store.dump(classes).result == "BADCLASS"


def test_nothing_to_crawl(store: Store) -> None:
    assert store.crawl(b",,") == "NOTSTARTED"
    assert store.dump(b"all").found() == []
    assert store.crawl(b"hash") == "ERROR"


def test_the_thread_comes_and_goes(store: Store) -> None:
    assert store.has_crawler
    assert not store.crawler(True)
    store.crawler(False)
    store.crawler(False)
    assert not store.has_crawler
    assert store.crawl(b"all") == "ERROR"
    assert store.crawler(True)
    assert store.has_crawler
    assert store.crawl(b"all") == "OK"


def test_it_ends_after_the_crawl_under_way(store: Store) -> None:
    store.set(b"key", b"")
    dump = store.dump(b"all", slow=True)
    dump.waiting()
    store.crawler(False)
    assert store.has_crawler
    assert store.crawl(b"all") == "ERROR"
    assert not store.crawler(True)
    dump.proceed()
    assert dump.found() == [b"key"]

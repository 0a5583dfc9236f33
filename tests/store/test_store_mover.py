"""The page mover, automove, and a changing memory limit."""

from __future__ import annotations

import resource
import struct
import time
from typing import Any

import pytest
from polling import eventually

from rmemcached.store._testing import Store

MB = 1 << 20


def move(store: Store, src: int, dst: int) -> None:
    """Moves a page from a class to another, and waits for the end of the move."""
    moved = store.stats()["slabs_moved"]
    assert store.reassign(src, dst) == "OK"
    eventually(lambda: store.stats()["slabs_moved"] > moved and not store.stats()["slab_reassign_running"])


def fill(store: Store, pages: int, clsid: int, length: int) -> list[bytes]:
    """Stores items of equal length until the class has this number of full pages. Returns their keys."""
    perslab = store.class_stats(clsid)["chunks_per_page"]
    keys = [b"%06d" % i for i in range(pages * perslab)]
    for key in keys:
        assert store.set(key, key * (length // 6)) == "STORED"
    stats = store.class_stats(clsid)
    assert (stats["total_pages"], stats["free_chunks"]) == (pages, 0)
    return keys


def class_of(store: Store, length: int) -> int:
    """The slab class of an item with a key of six bytes and a value of this length."""
    return store.class_of(48 + 8 + 7 + length + 2)


def resident_pages(base: int, length: int) -> int:
    """The number of resident system pages in a range of addresses."""
    size = resource.getpagesize()
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(base // size * 8)
        return sum(entry >> 63 for (entry,) in struct.iter_unpack("=Q", pagemap.read(length // size * 8)))


def test_answers() -> None:
    with Store(slab_reassign=True) as store:
        assert store.reassign(1, 1) == "SAME"
        assert store.reassign(0, 0) == "SAME"
        assert store.reassign(1, 2) == "NOSPARE"
        assert store.reassign(0, 2) == "NOSPARE"
        assert store.reassign(-1, 2) == "BADCLASS"
        assert store.reassign(-5, 2) == "BADCLASS"
        assert store.reassign(1, 40) == "BADCLASS"
        assert store.reassign(40, 1) == "BADCLASS"
        assert store.reassign(1, -1) == "BADCLASS"
        assert not store.stats()["slab_reassign_running"]
    with Store() as store:
        assert store.reassign(1, 2) == "RUNNING"


def test_items_are_copied_to_free_memory() -> None:
    with Store(slab_reassign=True) as store:
        length = 6000
        clsid = class_of(store, length)
        keys = fill(store, 3, clsid, length)
        perslab = len(keys) // 3
        for key in keys[perslab : 2 * perslab]:
            store.delete(key)
        store.touch(keys[0], 1000)
        cas = {key: store.item(key).cas for key in keys[:perslab]}
        before = store.stats()
        move(store, clsid, 0)
        stats = store.stats()
        assert stats["slab_reassign_rescues"] == perslab
        assert stats["slab_global_page_pool"] == 1
        assert stats["evictions"] == 0
        for name in ("curr_items", "curr_bytes", "total_items", "total_malloced"):
            assert stats[name] == before[name]
        for key in keys[:perslab] + keys[2 * perslab :]:
            assert store.get(key) == key * 1000
        assert {key: store.item(key).cas for key in keys[:perslab]} == cas
        assert store.item(keys[0]).exptime != 0
        assert (store.class_stats(clsid)["total_pages"], store.class_stats(clsid)["free_chunks"]) == (2, 0)
        store.check()


def test_the_order_of_the_lru_stays() -> None:
    with Store(slab_reassign=True, maxbytes=2 * MB) as store:
        length = 60000
        clsid = class_of(store, length)
        keys = fill(store, 2, clsid, length)
        half = len(keys) // 2
        for key in keys[half:]:
            store.delete(key)
        move(store, clsid, 0)
        for i in range(3):
            assert store.set(b"new-%02d" % i, bytes(length)) == "STORED"
        while store.stats()["evictions"] < 3:
            assert store.set(b"x%05d" % store.stats()["total_items"], bytes(length)) == "STORED"
        assert [store.get(key, False) is None for key in keys[:4]] == [True, True, True, False]
        store.check()


def test_items_are_evicted_when_memory_is_full() -> None:
    with Store(slab_reassign=True, maxbytes=3 * MB) as store:
        length = 6000
        clsid = class_of(store, length)
        keys = fill(store, 3, clsid, length)
        move(store, clsid, 5)
        assert store.stats()["evictions"] > 0
        assert store.class_stats(clsid)["total_pages"] == 2
        assert store.class_stats(5)["total_pages"] == 1
        assert store.class_stats(5)["free_chunks"] == store.class_stats(5)["chunks_per_page"]
        assert all(store.get(key) in (None, key * 1000) for key in keys)
        assert store.stats()["total_malloced"] == 3 * MB
        store.check()


def test_without_eviction_nothing_is_lost() -> None:
    with Store(slab_reassign=True, maxbytes=3 * MB, evict_to_free=False) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 3, clsid, 6000)
        assert store.reassign(clsid, 5) == "OK"
        eventually(lambda: store.stats()["slab_reassign_busy_nomem"] > 1000)
        assert store.stats()["slab_reassign_running"]
        assert all(store.get(key) == key * 1000 for key in keys)
        store.check(False)


def test_an_item_that_is_referenced_or_being_filled_stays() -> None:
    """A page with items in use, by a send or by an RDMA operation, keeps these items in place."""
    with Store(slab_reassign=True) as store:
        clsid = class_of(store, 6000)
        filling = store.alloc(b"filling", 6002)
        where = filling.iov()
        keys = []
        perslab = store.class_stats(clsid)["chunks_per_page"]
        for i in range(2 * perslab - 1):
            keys.append(b"%06d" % i)
            store.set(keys[-1], keys[-1] * 1000)
        for key in keys[perslab:]:
            store.delete(key)
        held = store.item(keys[5])
        assert store.reassign(clsid, 0) == "OK"
        eventually(lambda: store.stats()["slab_reassign_busy_items"] > 10)
        assert store.stats()["slabs_moved"] == 0
        assert store.stats()["slab_reassign_last_busy_status"] == b"busy_floating"
        assert held.value == keys[5] * 1000
        assert held.refcount == 1
        filling.write(b"f" * 6000)
        assert filling.iov() == where
        assert filling.store()[0] == "STORED"
        filling.release()
        assert store.get(b"filling") == b"f" * 6000
        assert store.stats()["slabs_moved"] == 0
        # The copy has taken the item's place: a new set of the key and a delete concern the copy.
        assert store.get(keys[5]) == keys[5] * 1000
        assert store.delete(keys[5])
        assert held.value == keys[5] * 1000
        held.release()
        eventually(lambda: store.stats()["slabs_moved"] == 1)
        assert store.get(b"filling") == b"f" * 6000
        assert store.get(keys[5]) is None
        store.check()


@pytest.mark.parametrize("referenced", [False, True])
def test_chained_items(referenced: bool) -> None:
    with Store(slab_reassign=True, slab_chunk_size_max=16384, maxbytes=16 * MB) as store:
        largest = store.largest_class
        value = bytes(range(256)) * 400
        for i in range(60):
            assert store.set(b"%06d" % i, value + b"%06d" % i) == "STORED"
        pages = store.class_stats(largest)["total_pages"]
        for i in range(30, 45):
            store.delete(b"%06d" % i)
        held = store.item(b"000001") if referenced else None
        if held is not None:
            runs = held.iov()
            assert store.reassign(largest, 0) == "OK"
            eventually(lambda: store.stats()["slab_reassign_busy_items"] > 10)
            assert store.stats()["slabs_moved"] == 0
            assert held.iov() == runs
            assert held.value == value + b"000001"
            held.release()
            eventually(lambda: store.stats()["slabs_moved"] == 1)
        else:
            move(store, largest, 0)
        assert store.stats()["slab_reassign_chunk_rescues"] > 30
        assert store.class_stats(largest)["total_pages"] == pages - 1
        for i in range(60):
            assert store.get(b"%06d" % i) == (None if 30 <= i < 45 else value + b"%06d" % i)
        eventually(lambda: not store.stats()["slab_reassign_running"])
        store.check()


def test_heads_of_chained_items() -> None:
    with Store(slab_reassign=True, slab_chunk_size_max=1024, maxbytes=64 * MB) as store:
        head = store.class_of(48 + 48 + 8 + 8)
        count = 2 * store.class_stats(head)["chunks_per_page"]
        for i in range(count):
            assert store.set(b"%06d" % i, b"%06d" % i * 200) == "STORED"
        assert store.class_stats(head)["total_pages"] == 2
        for i in range(count // 2, count, 1):
            store.delete(b"%06d" % i)
        move(store, head, 0)
        assert store.stats()["slab_reassign_rescues"] == count // 2
        for i in range(count // 2):
            assert store.get(b"%06d" % i) == b"%06d" % i * 200
        store.check()


def test_expired_items_are_dropped() -> None:
    with Store(slab_reassign=True) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 2, clsid, 6000)
        for key in keys:
            store.touch(key, 10)
        store.advance(20)
        move(store, clsid, 0)
        assert store.stats()["curr_items"] <= len(keys) // 2
        assert store.stats()["slab_reassign_rescues"] == 0
        store.check()


def test_a_page_of_the_pool_is_used_again() -> None:
    with Store(slab_reassign=True, maxbytes=2 * MB) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 2, clsid, 6000)
        for key in keys:
            store.delete(key)
        move(store, clsid, 0)
        assert store.stats()["slab_global_page_pool"] == 1
        perslab = store.class_stats(1)["chunks_per_page"]
        for i in range(perslab + 1):
            assert store.set(b"%05d" % i, b"") == "STORED"
        assert store.stats()["slab_global_page_pool"] == 0
        assert store.stats()["total_malloced"] == 2 * MB
        assert store.stats()["evictions"] == 1
        store.check()


@pytest.mark.without_direct("memory that the arena once had stays the daemon's")
def test_memory_limit_at_run_time() -> None:
    with Store(slab_reassign=True, maxbytes=2 * MB) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 2, clsid, 6000)
        store.set(b"one more", bytes(6000))
        assert store.stats()["evictions"] == 1
        assert store.set_memory_limit(70 * MB)
        for i in range(64 * (len(keys) // 2)):
            store.set(b"x%05d" % i, bytes(6000))
        stats = store.stats()
        assert stats["evictions"] == 1
        assert 64 * MB < stats["total_malloced"] <= 70 * MB
        assert len(store.extents()) == 2
        assert store.set_memory_limit(8 * MB)
        store.flush_all()
        store.advance(2)
        for i in range(64 * (len(keys) // 2)):
            store.get(b"x%05d" % i)
        while store.class_stats(clsid)["total_pages"] > 2:
            move(store, clsid, 0)
        assert store.stats()["total_malloced"] <= 8 * MB
        store.check()
        assert not store.set_memory_limit(1 << 50)
        assert not store.set_memory_limit(0)
        # The store takes back memory given up before, all zeros as required.
        assert store.set_memory_limit(70 * MB)
        for i in range(60 * (len(keys) // 2)):
            assert store.set(b"y%05d" % i, bytes(6000)) == "STORED"
        assert len(store.extents()) == 2
        store.check()


def test_pinned_memory_is_not_given_back() -> None:
    """Memory above the limit stays in the pool, and no class gets any."""
    with Store(slab_reassign=True, maxbytes=70 * MB) as store:
        store.pin_memory()
        clsid = class_of(store, 6000)
        keys = fill(store, 60, clsid, 6000)
        before = resident_pages(store.arena()[0], 70 * MB)
        assert store.set_memory_limit(8 * MB)
        for key in keys:
            store.delete(key)
        while store.class_stats(clsid)["total_pages"] > 2:
            move(store, clsid, 0)
        stats = store.stats()
        assert (stats["slab_global_page_pool"], stats["total_malloced"]) == (58, 60 * MB)
        # Every page still has memory of its own.
        assert resident_pages(store.arena()[0], 70 * MB) >= before
        store.check()
        # The limit allows eight pages.
        for i in range(10 * (len(keys) // 60)):
            assert store.set(b"x%05d" % i, bytes(6000)) == "STORED"
        assert store.class_stats(clsid)["total_pages"] == 8
        assert store.stats()["slab_global_page_pool"] == 52
        assert store.stats()["evictions"] == 2 * (len(keys) // 60)
        assert store.set(b"another", bytes(100)) == "STORED"
        assert store.stats()["slab_global_page_pool"] == 51
        # A larger limit makes the pages of the pool usable again, and they are used before new pages.
        assert store.set_memory_limit(70 * MB)
        more = keys[: 51 * (len(keys) // 60)]
        for key in more:
            assert store.set(key, key * 1000) == "STORED"
        assert store.class_stats(clsid)["total_pages"] == 59
        assert store.stats()["total_malloced"] == 60 * MB
        assert store.stats()["slab_global_page_pool"] == 0
        assert all(store.get(key) == key * 1000 for key in more)
        store.check()


def test_unlink_finds_the_copy() -> None:
    """The holder of an item may unlink the item after its move."""
    with Store(slab_reassign=True, maxbytes=8 * MB) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 2, clsid, 6000)
        perslab = len(keys) // 2
        held = [store.item(key) for key in keys[:perslab]]
        assert store.reassign(clsid, 0, allow_evictions=False) == "OK"
        eventually(lambda: store.stats()["slab_reassign_rescues"] == perslab)
        for item, key in zip(held, keys, strict=False):
            item.unlink()
            assert store.get(key) is None
            item.release()
        eventually(lambda: store.stats()["slabs_moved"] == 1)
        assert store.stats()["curr_items"] == perslab
        store.check()


def test_preallocation() -> None:
    with Store(preallocate=True, maxbytes=64 * MB) as store:
        assert all(store.class_stats(i)["total_pages"] == 1 for i in range(1, store.largest_class + 1))
        assert store.stats()["total_malloced"] == 39 * MB
        assert not store.set_memory_limit(128 * MB)
        store.set(b"key", b"value")
        store.check()
    with pytest.raises(ValueError, match="at least 39 megabytes"):
        Store(preallocate=True, maxbytes=38 * MB)


def test_automove_gives_free_pages_to_the_pool() -> None:
    with Store(slab_reassign=True, slab_automove=1, maxbytes=4 * MB) as store:
        clsid = class_of(store, 6000)
        for key in fill(store, 4, clsid, 6000):
            store.delete(key)
        eventually(lambda: store.stats()["slab_global_page_pool"] == 2)
        store.check(False)


def test_automove_two_moves_a_page_with_every_eviction() -> None:
    with Store(slab_reassign=True, slab_automove=2, maxbytes=4 * MB) as store:
        fill(store, 3, class_of(store, 6000), 6000)
        small = class_of(store, 60)
        for i in range(2 * store.class_stats(small)["chunks_per_page"] + 1):
            store.set(b"small-%06d" % i, bytes(50))
        eventually(lambda: store.stats()["slabs_moved"] > 0 and not store.stats()["slab_reassign_running"])
        store.set_automove(0)
        assert store.class_stats(class_of(store, 6000))["total_pages"] < 3


def test_sizes() -> None:
    with Store(track_sizes=True) as store:
        store.set(b"a", b"")
        store.set(b"b", bytes(100))
        store.set(b"c", bytes(100))
        assert store.sizes() == {64: 1, 160: 2}
        store.delete(b"b")
        store.set(b"a", bytes(700_000))
        assert store.sizes() == {160: 1, 700_064: 1}
        store.flush_all()
        store.get(b"a")
        store.get(b"c")
        assert store.sizes() == {}
    with Store() as store:
        store.set(b"a", b"")
        assert store.sizes() == {}


def test_given_sizes() -> None:
    with Store(slab_sizes=[100, 200, 5000]) as store:
        sizes = [store.class_stats(i)["chunk_size"] for i in range(1, store.largest_class + 1)]
        assert sizes == [104, 200, 5000, MB // 2]


def test_the_end_does_not_wait_for_references() -> None:
    store = Store(slab_reassign=True)
    keys = fill(store, 2, class_of(store, 6000), 6000)
    filling = store.alloc(b"filling", 6002)
    held = [store.item(key) for key in keys]
    store.reassign(class_of(store, 6000), 0)
    eventually(lambda: store.stats()["slab_reassign_busy_items"] > 0)
    started = time.monotonic()
    store.close()
    # The mover passes over a page with items in use 10000 times before it gives up, in the end every 5 ms. The close
    # does not wait for all passes.
    assert time.monotonic() - started < 10
    assert held
    assert filling is not None


@pytest.mark.parametrize("emptied", [False, True])
def test_a_move_out_of_the_pool_ends_when_the_threads_end(emptied: bool) -> None:
    """After the threads' end a move out of the pool still ends, even if others have used up the pool meanwhile."""
    with Store(slab_reassign=True, maxbytes=4 * MB) as store:
        clsid = class_of(store, 6000)
        keys = fill(store, 4, clsid, 6000)
        for key in keys:
            store.delete(key)
        move(store, clsid, 0)
        move(store, clsid, 0)
        store.stop_threads()
        assert store.begin_move(0, 1)
        if emptied:
            fill(store, 2, class_of(store, 600), 600)
            assert store.stats()["slab_global_page_pool"] == 0
        store.finish_move(0, 1)
        assert store.stats()["slabs_moved"] == (2 if emptied else 3)
        assert store.class_stats(1)["total_pages"] == (0 if emptied else 1)
        store.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"factor": 4.0, "maxbytes": 24 * MB},
        {"factor": 4.0, "maxbytes": 12 * MB, "slab_chunk_size_max": 16384},
        {"factor": 4.0, "maxbytes": 8 * MB, "slab_chunk_size_max": 1024},
        {"factor": 4.0, "maxbytes": 12 * MB, "slab_automove": 2, "hashpower_init": 10},
        {"factor": 4.0, "maxbytes": 12 * MB, "lru_maintainer": True, "lru_crawler": True},
        {"factor": 4.0, "maxbytes": 12 * MB, "s3fifo": True, "lru_maintainer": True},
        {"factor": 4.0, "maxbytes": 12 * MB, "s3fifo": True, "slab_automove": 2, "slab_chunk_size_max": 16384},
    ],
)
def test_pages_move_under_load(settings: dict[str, Any]) -> None:
    """Values and structures stay right while pages go from class to class beside all kinds of commands."""
    with Store(slab_reassign=True, **settings) as store:
        moves = 0
        # The number of moved pages in a round depends on the machine.
        for seed in range(7, 27):
            moves += store.stress(4, 20_000, seed=seed, keys=3000, max_value=60_000, clock=True, move=True)["moves"]
            if moves > 10:
                break
        assert moves > 10
        # The mover tries a page with immovable items 5000 times, at last every 5 ms, before it evicts them.
        eventually(lambda: not store.stats()["slab_reassign_running"], 60)
        store.check(False)

"""The layout and data of items: every size, chained items, references."""

from __future__ import annotations

import random

import pytest

from rmemcached.store._testing import Store

MB = 1 << 20
ITEM_LINKED, ITEM_CAS, ITEM_FETCHED, ITEM_CHUNKED, ITEM_CFLAGS = 1, 2, 8, 32, 256
HEADER = 48
CHUNK_HEADER = 48


def value_of(size: int, seed: int = 0) -> bytes:
    return random.Random(size * 31 + seed).randbytes(size)


@pytest.mark.parametrize("use_cas", [True, False])
def test_every_size_to_4096(use_cas: bool) -> None:
    with Store(use_cas=use_cas) as store:
        for size in range(4097):
            value = value_of(size)
            assert store.set(b"key", value, flags=size % 3) == "STORED"
            item = store.item(b"key")
            assert item.value == value
            assert item.data() == value + b"\r\n"
            assert item.flags == size % 3
            assert item.key == b"key"
            assert item.ntotal == HEADER + 8 * use_cas + 4 + 4 * (size % 3 > 0) + size + 2
            assert item.clsid == store.class_of(item.ntotal)
            item.release()
        store.check()
        stats = store.stats()
        assert (stats["curr_items"], stats["total_items"]) == (1, 4097)


def test_around_every_class_limit() -> None:
    with Store(maxbytes=128 * MB) as store:
        for clsid in range(1, store.largest_class + 1):
            limit = store.class_stats(clsid)["chunk_size"] - HEADER - 8 - 4 - 2
            for size in range(max(limit - 3, 0), limit + 4):
                value = value_of(size)
                assert store.set(b"key", value) == "STORED"
                item = store.item(b"key")
                assert item.value == value
                assert bool(item.it_flags & ITEM_CHUNKED) == (item.ntotal > 1 << 19)
                item.release()
        store.check()


@pytest.mark.parametrize("chunk_max", [1024, 16384, 1 << 19])
def test_chained_items_around_chunk_limits(chunk_max: int) -> None:
    payload = chunk_max - CHUNK_HEADER
    limit = min(MB, 40 * chunk_max)
    with Store(item_size_max=MB, slab_chunk_size_max=chunk_max) as store:
        for chunks in range(1, limit // payload + 1):
            for delta in (-3, -2, -1, 0, 1, 2, 3):
                size = chunks * payload - 2 + delta
                if HEADER + 8 + 4 + size + 2 > MB:
                    continue
                value = value_of(size)
                assert store.set(b"key", value, flags=7) == "STORED"
                item = store.item(b"key")
                assert item.value == value
                assert item.flags == 7
                runs = item.iov()
                assert sum(n for _, n in runs) == size + 2
                if item.it_flags & ITEM_CHUNKED:
                    assert len(runs) == -(-(size + 2) // payload)
                    assert item.clsid == store.largest_class
                item.release()
        store.check()


def test_largest_item() -> None:
    overhead = HEADER + 8 + 4 + 2
    with Store() as store:
        assert store.set(b"key", bytes(MB - overhead)) == "STORED"
        assert store.size_ok(3, 0, MB - overhead + 2)
        assert not store.size_ok(3, 0, MB - overhead + 3)
        assert store.set(b"key", bytes(MB - overhead + 1)) == "TOO_LARGE"
        assert store.set(b"key", bytes(MB - overhead), flags=1) == "TOO_LARGE"
        assert not store.size_ok(3, 0, 1)
        assert not store.size_ok(3, 0, 1 << 40)
        assert store.alloc(b"key", 1) is None
        assert store.alloc(b"key", 1 << 33) is None
        # After a failed set the old item is still there: the caller decides about it.
        assert len(store.get(b"key")) == MB - overhead
        store.check()


def test_huge_item_in_many_chunks() -> None:
    with Store(maxbytes=128 * MB, item_size_max=32 * MB) as store:
        value = value_of(30 * MB + 17)
        assert store.set(b"key", value) == "STORED"
        item = store.item(b"key")
        assert item.value == value
        assert len(item.iov()) == 61
        assert store.class_stats(store.largest_class)["number"] == 1
        assert store.stats()["curr_bytes"] == item.ntotal == HEADER + 8 + 4 + len(value) + 2
        item.release()
        store.check()
        assert store.delete(b"key")
        store.check()
        used = [store.class_stats(i)["used_chunks"] for i in range(1, store.largest_class + 1)]
        assert not any(used)


def test_iov_of_any_part() -> None:
    rng = random.Random(5)
    with Store(slab_chunk_size_max=1024) as store:
        for size in (0, 1, 500, 975, 976, 977, 5000, 20000):
            value = value_of(size)
            store.set(b"key", value)
            item = store.item(b"key")
            whole = value + b"\r\n"
            for _ in range(200):
                offset = rng.randrange(size + 4)
                length = rng.randrange(size + 8)
                assert item.data(offset, length) == whole[offset : offset + length]
            if size > 2000:
                first = item.iov(0, size, max_iov=2)
                assert len(first) == 2
                rest = item.iov(sum(n for _, n in first), size, max_iov=100)
                assert first + rest == item.iov()
            item.release()


def test_crlf_is_there_before_the_payload() -> None:
    with Store(slab_chunk_size_max=1024) as store:
        for nbytes in (2, 3, 100, 976, 977, 978, 1952, 1953, 1954, 9999):
            item = store.alloc(b"key", nbytes)
            assert item.data(nbytes - 2) == b"\r\n"
            assert item.refcount == 1
            assert item.it_flags & ITEM_LINKED == 0
            item.release()
        store.check()


def test_header_fields() -> None:
    with Store() as store:
        item = store.alloc(b"k" * 250, 10, 0xFFFFFFFF, 4711)
        assert item.key == b"k" * 250
        assert item.flags == 0xFFFFFFFF
        assert item.exptime == 4711
        assert item.it_flags == ITEM_CAS | ITEM_CFLAGS
        item.store()
        assert item.it_flags == ITEM_CAS | ITEM_CFLAGS | ITEM_LINKED
        assert store.item(b"k" * 250).it_flags & ITEM_FETCHED
        assert item.time == store.time


def test_keys_are_any_bytes() -> None:
    with Store() as store:
        keys = [bytes([c]) * n for c in (0, 1, 32, 127, 255) for n in range(1, 251)]
        for key in keys:
            store.set(key, key)
        for key in keys:
            assert store.get(key) == key
        store.check()


@pytest.mark.parametrize("size", [10, 5000, 700_000])
def test_references_outlive_the_link(size: int) -> None:
    value = value_of(size)
    with Store() as store:
        store.set(b"deleted", value)
        store.set(b"replaced", value)
        deleted, replaced = store.item(b"deleted"), store.item(b"replaced")
        assert deleted.refcount == 2
        store.delete(b"deleted")
        store.set(b"replaced", value_of(size, 1))
        store.set(b"deleted", value_of(size, 2))
        assert deleted.refcount == replaced.refcount == 1
        assert deleted.it_flags & ITEM_LINKED == 0
        assert deleted.value == replaced.value == value
        store.check(False)
        deleted.unlink()
        assert store.get(b"deleted") is None
        deleted.release()
        replaced.release()
        store.check()


@pytest.mark.parametrize("size", [400, 5000, 700_000])
def test_references_outlive_eviction(size: int) -> None:
    value = value_of(size)
    with Store(maxbytes=6 * MB, slab_chunk_size_max=1 << 14) as store:
        store.set(b"mine", value)
        mine = store.item(b"mine")
        for i in range(3 * 6 * MB // size):
            store.set(b"key-%d" % i, value_of(size, i))
        assert mine.value == value
        mine.release()
        assert store.stats()["evictions"] > 0
        store.check()


def test_unstored_items_give_their_memory_back() -> None:
    with Store() as store:
        for size in (10, 5000, 900_000) * 100:
            store.alloc(b"key", size).release()
        assert store.stats()["total_malloced"] <= 5 * MB
        assert store.stats()["total_items"] == 0
        store.check()

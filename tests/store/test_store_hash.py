"""The hash function and the hash table's growth."""

from __future__ import annotations

import threading

import pytest

from rmemcached.store._testing import Store, hash_of


def wait_for_growth(store: Store, power: int) -> None:
    """Lets the growing thread finish; the store offers the state, no event."""
    done = threading.Event()
    for _ in range(1000):
        stats = store.stats()
        if stats["hash_power_level"] >= power and not stats["hash_is_expanding"]:
            return
        store.tick()
        done.wait(0.01)
    raise AssertionError(f"the hash table did not grow to {power}: {store.stats()}")


@pytest.mark.parametrize("pattern", [b"%d", b"key-%08d", b"%d" + b"x" * 100, b"user:%d:profile:settings"])
@pytest.mark.parametrize("shift", [0, 16])
def test_hash_spreads(pattern: bytes, shift: int) -> None:
    """Chi-square of 64K keys in 4096 buckets, by the low and the high bits."""
    buckets = [0] * 4096
    for i in range(65536):
        buckets[hash_of(pattern % i) >> shift & 4095] += 1
    chi2 = sum((n - 16) ** 2 / 16 for n in buckets)
    assert 4095 - 6 * 90.5 < chi2 < 4095 + 6 * 90.5


def test_hash_depends_on_every_bit() -> None:
    for length in (1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 250):
        key = bytes(range(length))
        flips = 0
        for bit in range(length * 8):
            other = bytearray(key)
            other[bit // 8] ^= 1 << bit % 8
            difference = hash_of(key) ^ hash_of(bytes(other))
            assert difference != 0
            flips += difference.bit_count()
        assert 13 < flips / (length * 8) < 19


def test_hash_depends_on_length() -> None:
    assert len({hash_of(bytes(n)) for n in range(251)}) == 251


def test_grows_with_200k_items() -> None:
    with Store(maxbytes=256 << 20) as store:
        for i in range(200_000):
            store.set(b"key-%d" % i, b"%d" % i)
            if i % 10_000 == 0:
                assert store.get(b"key-%d" % (i // 2)) == b"%d" % (i // 2)
        wait_for_growth(store, 18)
        store.check()
        stats = store.stats()
        assert (stats["curr_items"], stats["hash_power_level"]) == (200_000, 18)
        assert stats["hash_bytes"] == 8 << 18
        for i in range(200_000):
            assert store.get(b"key-%d" % i) == b"%d" % i


def test_grows_from_the_smallest_table() -> None:
    for power in (1, 2, 11):
        with Store(hashpower_init=power) as store:
            for i in range(20_000):
                store.set(b"key-%d" % i, b"x")
            wait_for_growth(store, 14)
            for i in range(20_000):
                assert store.get(b"key-%d" % i) == b"x"
            store.check()


def test_closing_while_growing() -> None:
    for _ in range(20):
        with Store(hashpower_init=12) as store:
            for i in range(10_000):
                store.set(b"key-%d" % i, b"")


def test_grows_under_load() -> None:
    with Store(maxbytes=256 << 20, hashpower_init=10) as store:
        result = store.stress(4, 100_000, seed=3, keys=100_000, max_value=200)
        assert result["no_memory"] == 0
        assert store.stats()["hash_power_level"] >= 14
        store.check()

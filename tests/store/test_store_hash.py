"""The hash function and the hash table's growth."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest

from rmemcached.store._testing import Store, colliding_keys, hash_of, hash_secret, set_hash_secret

BITS = 12  # low bits of a hash value: they choose the bucket in a table of 4096
CROWD = 12  # keys in one bucket; 500 keys crowd so by chance with a probability below 2^-50

# In an earlier version all keys with UNLUCKY_LAST at their end had the same hash value, and so had all keys with
# UNLUCKY_SECOND as their second word of 8 bytes.
UNLUCKY_LAST = bytes.fromhex("e3c6889cf06abc8e")
UNLUCKY_SECOND = bytes.fromhex("03771e4ba9d6f2c8")

# Prints the fullest bucket, and the number of its keys, for the keys on standard input.
FULLEST = f"""
import sys
from collections import Counter
from rmemcached.store._testing import hash_of
keys = sys.stdin.buffer.read().split()
print(Counter(hash_of(key) & {(1 << BITS) - 1} for key in keys).most_common(1)[0])
"""


@pytest.fixture
def known_secret() -> Iterator[None]:
    """Gives the hash function the same secrets each time."""
    before = hash_secret()
    set_hash_secret(random.Random(1).randbytes(len(before)))
    yield
    set_hash_secret(before)


def fullest(keys: Iterable[bytes]) -> int:
    """The number of keys in the fullest bucket."""
    return Counter(hash_of(key) & (1 << BITS) - 1 for key in keys).most_common(1)[0][1]


def wait_for_growth(store: Store, power: int) -> None:
    """Waits until the table has grown. The store offers a state and no event, so the test polls."""
    done = threading.Event()
    for _ in range(1000):
        stats = store.stats()
        if stats["hash_power_level"] >= power and not stats["hash_is_expanding"]:
            return
        store.tick()
        done.wait(0.01)
    raise AssertionError(f"the hash table did not grow to {power}: {store.stats()}")


@pytest.mark.usefixtures("known_secret")
@pytest.mark.parametrize("pattern", [b"%d", b"key-%08d", b"%d" + b"x" * 100, b"user:%d:profile:settings"])
@pytest.mark.parametrize("shift", [0, 16])
def test_hash_spreads(pattern: bytes, shift: int) -> None:
    """64K keys spread over 4096 buckets, by a chi-square test of the low and the high bits."""
    buckets = [0] * 4096
    for i in range(65536):
        buckets[hash_of(pattern % i) >> shift & 4095] += 1
    chi2 = sum((n - 16) ** 2 / 16 for n in buckets)
    assert 4095 - 6 * 90.5 < chi2 < 4095 + 6 * 90.5


@pytest.mark.usefixtures("known_secret")
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


@pytest.mark.usefixtures("known_secret")
def test_hash_depends_on_length() -> None:
    assert len({hash_of(bytes(n)) for n in range(251)}) == 251


@pytest.mark.usefixtures("known_secret")
def test_keys_that_collide_do_not_at_the_next_start() -> None:
    """Colliding keys, which the knowledge of secrets makes possible, do not collide in the next process."""
    keys = colliding_keys(500, BITS)
    assert fullest(keys) == 500
    command = [sys.executable, "-P", "-c", FULLEST]
    starts = [subprocess.run(command, input=b"\n".join(keys), capture_output=True, check=True).stdout for _ in range(2)]
    assert starts[0] != starts[1]
    for start in starts:
        assert int(start.decode().strip("()\n").split(",")[1]) < CROWD


@pytest.mark.usefixtures("known_secret")
@pytest.mark.parametrize(("begin", "end"), [(0, 192), (192, 200), (200, 204)])
def test_the_hash_depends_on_all_secrets(begin: int, end: int) -> None:
    """The hash depends on XXH3's secrets, and on both words of multiply-shift's factor."""
    keys = [bytes(range(length)) for length in range(251)]
    secret = bytearray(hash_secret())
    before = [hash_of(key) for key in keys]
    secret[begin:end] = random.Random(2).randbytes(end - begin)
    set_hash_secret(bytes(secret))
    assert sum(hash_of(key) == value for key, value in zip(keys, before, strict=True)) < 3


UNLUCKY_KEYS: list[Callable[[int], bytes]] = [
    lambda i: b"%08d" % i + UNLUCKY_LAST,
    lambda i: b"%08d" % i + UNLUCKY_SECOND + b"the same",
]


@pytest.mark.parametrize("key", UNLUCKY_KEYS)
def test_no_word_of_a_key_hides_the_others(key: Callable[[int], bytes]) -> None:
    """Keys that once had the same hash value are spread like all other keys."""
    assert fullest(key(i) for i in range(500)) < CROWD


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
        wait_for_growth(store, 14)
        store.check()

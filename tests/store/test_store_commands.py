"""The store commands and arithmetic, as memcached's do_store_item and do_add_delta have them."""

from __future__ import annotations

import random

import pytest

from rmemcached.store._testing import Store

ITEM_TOKEN_SENT, ITEM_STALE = 512, 2048
U64 = (1 << 64) - 1


def test_add_replace_set() -> None:
    with Store() as store:
        assert store.store("replace", b"k", b"0")[0] == "NOT_STORED"
        assert store.store("add", b"k", b"1")[0] == "STORED"
        assert store.store("add", b"k", b"2")[0] == "NOT_STORED"
        assert store.get(b"k") == b"1"
        assert store.store("replace", b"k", b"3")[0] == "STORED"
        assert store.store("set", b"k", b"4")[0] == "STORED"
        assert store.get(b"k") == b"4"
        assert store.delete(b"k")
        assert not store.delete(b"k")
        assert store.get(b"k") is None
        store.check()


def test_cas() -> None:
    with Store() as store:
        assert store.store("cas", b"k", b"0", cas=5)[0] == "NOT_FOUND"
        _, first, _ = store.store("set", b"k", b"1")
        assert store.item(b"k").cas == first
        assert store.store("cas", b"k", b"x", cas=first + 1)[0] == "EXISTS"
        assert store.store("cas", b"k", b"x", cas=0)[0] == "EXISTS"
        result, second, _ = store.store("cas", b"k", b"2", cas=first)
        assert (result, store.get(b"k")) == ("STORED", b"2")
        assert second > first
        assert store.store("cas", b"k", b"x", cas=first)[0] == "EXISTS"
        # set does not look at the CAS value, and append does.
        assert store.store("set", b"k", b"3", cas=first)[0] == "STORED"
        assert store.store("append", b"k", b"x", cas=first)[0] == "EXISTS"
        assert store.store("append", b"k", b"4", cas=store.item(b"k").cas)[0] == "STORED"
        assert store.get(b"k") == b"34"


def test_given_cas_value() -> None:
    with Store() as store:
        assert store.store("set", b"k", b"1", new_cas=1000) == ("STORED", 1000, 0)
        assert store.store("cas", b"k", b"2", cas=1000, new_cas=2000) == ("STORED", 2000, 0)
        assert store.item(b"k").cas == 2000


def test_without_cas() -> None:
    with Store(use_cas=False) as store:
        assert store.store("set", b"k", b"1", new_cas=7) == ("STORED", 0, 0)
        assert store.item(b"k").cas == 0
        assert store.store("cas", b"k", b"2", cas=7)[0] == "EXISTS"
        assert store.delta(b"k", 1) == ("OK", b"2", 0)


def test_stale_cas() -> None:
    with Store() as store:
        store.store("set", b"k", b"1", exptime=500, new_cas=100)
        store.item(b"k").set_flag(ITEM_TOKEN_SENT)
        exptime = store.item(b"k").exptime
        assert store.store("cas", b"k", b"x", cas=90)[0] == "EXISTS"
        assert store.store("cas", b"k", b"x", cas=101, stale=True)[0] == "EXISTS"
        assert store.store("cas", b"k", b"x", cas=0, stale=True)[0] == "EXISTS"
        assert store.store("cas", b"k", b"2", cas=90, stale=True, exptime=9)[0] == "STORED"
        item = store.item(b"k")
        assert item.value == b"2"
        assert item.it_flags & ITEM_STALE
        assert item.it_flags & ITEM_TOKEN_SENT
        assert item.exptime == exptime


@pytest.mark.parametrize("suffix", ["", "viv"])
def test_append_and_prepend(suffix: str) -> None:
    with Store() as store:
        store.set(b"k", b"middle", flags=5, exptime=100)
        exptime = store.item(b"k").exptime
        result, cas, nbytes = store.store("append" + suffix, b"k", b"-end", flags=9, exptime=7)
        assert (result, nbytes) == ("STORED", len(b"middle-end\r\n"))
        assert store.item(b"k").cas == cas
        assert store.store("prepend" + suffix, b"k", b"begin-")[0] == "STORED"
        item = store.item(b"k")
        assert (item.value, item.flags, item.exptime) == (b"begin-middle-end", 5, exptime)
        item.release()
        missing = store.store("append" + suffix, b"new", b"x", flags=3)[0]
        assert missing == ("STORED" if suffix else "NOT_STORED")
        missing = store.store("prepend" + suffix, b"other", b"x", flags=3)[0]
        assert missing == ("STORED" if suffix else "NOT_STORED")
        store.check()


@pytest.mark.parametrize("chunk_max", [1024, 16384])
def test_append_and_prepend_onto_chains(chunk_max: int) -> None:
    rng = random.Random(chunk_max)
    payload = chunk_max - 48
    with Store(slab_chunk_size_max=chunk_max, maxbytes=256 << 20) as store:
        for old_size in (0, 1, payload - 70, payload - 2, payload - 1, payload, 3 * payload - 2, 3 * payload + 5):
            for add_size in (0, 1, payload - 2, payload, 2 * payload - 2, 2 * payload + 1):
                old, add = rng.randbytes(old_size), rng.randbytes(add_size)
                store.set(b"k", old, flags=77)
                assert store.store("append", b"k", add)[0] == "STORED"
                assert store.get(b"k") == old + add
                assert store.store("prepend", b"k", add)[0] == "STORED"
                item = store.item(b"k")
                assert item.data() == add + old + add + b"\r\n"
                assert item.flags == 77
                item.release()
        store.check()


def test_append_grows_to_the_limit() -> None:
    with Store(slab_chunk_size_max=4096, item_size_max=65536) as store:
        value = b""
        store.set(b"k", value)
        while len(value) + 1000 + 48 + 8 + 2 + 2 <= 65536:
            value += bytes([len(value) % 251]) * 1000
            assert store.store("append", b"k", value[-1000:])[0] == "STORED"
        assert store.get(b"k") == value
        assert store.store("append", b"k", bytes(1000))[0] == "NOT_STORED"
        assert store.get(b"k") == value
        store.check()


def test_add_on_an_existing_item_counts_as_use() -> None:
    with Store() as store:
        store.set(b"k", b"1")
        store.advance(100)
        assert store.store("add", b"k", b"2")[0] == "NOT_STORED"
        assert store.item(b"k", False).time == store.time


@pytest.mark.parametrize(
    ("value", "incr", "delta", "expected"),
    [
        (b"0", True, 1, b"1"),
        (b"9", True, 1, b"10"),
        (b"99", True, 901, b"1000"),
        (b"10", False, 1, b"9"),
        (b"5", False, 5, b"0"),
        (b"5", False, 6, b"0"),
        (b"5", False, U64, b"0"),
        (b"%d" % U64, True, 1, b"0"),
        (b"%d" % U64, True, U64, b"%d" % (U64 - 1)),
        (b"%d" % (U64 - 1), True, 1, b"%d" % U64),
        (b"%d" % U64, False, 1, b"%d" % (U64 - 1)),
        (b"0", True, U64, b"%d" % U64),
        (b"007", True, 1, b"8"),
        (b" 7", True, 1, b"8"),
        (b"7 ", True, 1, b"8"),
        (b"7\t", True, 1, b"8"),
        (b"+7", True, 1, b"8"),
        (b"1 2", True, 1, b"2"),
        (b"7\x00", True, 1, b"8"),
        (b"", True, 1, None),
        (b"x", True, 1, None),
        (b"7x", True, 1, None),
        (b"0x7", True, 1, None),
        (b"1.5", True, 1, None),
        (b"-1", True, 1, None),
        (b"-5", False, 1, None),
        (b"%d" % (U64 + 1), True, 1, None),
        (b"9" * 30, True, 1, None),
        (b" ", True, 1, None),
    ],
)
def test_delta(value: bytes, incr: bool, delta: int, expected: bytes | None) -> None:
    with Store() as store:
        store.set(b"k", value, flags=12)
        result, text, cas = store.delta(b"k", delta, incr)
        item = store.item(b"k")
        if expected is None:
            assert result == "NON_NUMERIC"
            assert item.value == value
        else:
            assert (result, text) == ("OK", expected)
            assert item.value == expected.ljust(len(value))
            assert item.data()[-2:] == b"\r\n"
            assert item.cas == cas
            assert item.flags == 12
        item.release()
        store.check()


def test_delta_in_place_or_new() -> None:
    with Store() as store:
        assert store.delta(b"k", 1)[0] == "NOT_FOUND"
        store.set(b"k", b"10")
        # The result is written in place: the item stays, and a shorter result is padded.
        assert store.delta(b"k", 1, False)[1] == b"9"
        assert store.get(b"k") == b"9 "
        assert store.stats()["total_items"] == 1
        # While somebody holds a reference to the item, its bytes must not change: the result goes into a new item.
        item = store.item(b"k")
        assert store.delta(b"k", 1)[1] == b"10"
        assert item.value == b"9 "
        assert store.get(b"k") == b"10"
        assert store.stats()["total_items"] == 2
        item.release()
        # A result too long for the item goes into a new item.
        assert store.delta(b"k", 90)[1] == b"100"
        assert store.get(b"k") == b"100"
        assert store.stats()["total_items"] == 3
        store.check()


def test_delta_keeps_expiry() -> None:
    with Store() as store:
        store.set(b"k", b"9", exptime=100)
        exptime = store.item(b"k").exptime
        store.delta(b"k", 1)
        assert store.item(b"k").exptime == exptime
        store.advance(100)
        assert store.delta(b"k", 1)[0] == "NOT_FOUND"


def test_delta_cas() -> None:
    with Store() as store:
        _, cas, _ = store.store("set", b"k", b"10")
        assert store.delta(b"k", 1, cas=cas + 1)[0] == "CAS_MISMATCH"
        result, text, second = store.delta(b"k", 1, cas=cas)
        assert (result, text) == ("OK", b"11")
        assert second > cas
        result, text, third = store.delta(b"k", 1000, cas=second)
        assert (result, text) == ("OK", b"1011")
        assert store.item(b"k").cas == third > second


def test_delta_on_a_chained_item() -> None:
    with Store(slab_chunk_size_max=1024) as store:
        store.set(b"k", b"1" + b" " * 3000)
        assert store.delta(b"k", 1)[0] == "NON_NUMERIC"


def test_random_commands_against_a_dict() -> None:
    rng = random.Random(42)
    model: dict[bytes, bytes] = {}
    with Store(maxbytes=256 << 20, slab_chunk_size_max=2048, item_size_max=65536) as store:
        for _ in range(30000):
            key = b"k%d" % rng.randrange(100)
            value = rng.randbytes(rng.choice((0, 1, 10, 100, 1000, 2000, 3000, 5000)))
            op = rng.choice(("set", "set", "add", "replace", "append", "prepend", "delete", "get"))
            if op == "get":
                assert store.get(key) == model.get(key)
                continue
            if op == "delete":
                assert store.delete(key) == (model.pop(key, None) is not None)
                continue
            old = model.get(key)
            expected = old is None if op == "add" else op == "set" or old is not None
            if op in ("append", "prepend") and old is not None:
                value = value if len(old) + len(value) < 60000 else b""
                model[key] = old + value if op == "append" else value + old
            elif expected:
                model[key] = value
            assert (store.store(op, key, value)[0] == "STORED") == expected
        for key, value in model.items():
            assert store.get(key) == value
        stats = store.stats()
        assert stats["curr_items"] == len(model)
        assert stats["evictions"] == 0
        store.check()

"""Making and freeing stores."""

from __future__ import annotations

import os

from rmemcached.store._testing import Store


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def mappings_kb() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * 4


def test_a_hundred_stores_leave_nothing() -> None:
    def one(i: int) -> None:
        with Store(maxbytes=64 << 20, hashpower_init=10) as store:
            for j in range(2000 if i % 10 == 0 else 10):
                store.set(b"key-%d" % j, bytes(j))
            item = store.item(b"key-5")
            assert item.value == bytes(5)
            store.check(False)
            item.release()

    for i in range(10):
        one(i)
    before = len(os.listdir("/proc/self/fd")), threads(), mappings_kb()
    for i in range(100):
        one(i)
    after = len(os.listdir("/proc/self/fd")), threads(), mappings_kb()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 4096


def test_several_stores_at_once() -> None:
    stores = [Store() for _ in range(8)]
    for i, store in enumerate(stores):
        store.set(b"key", b"%d" % i)
    for i, store in enumerate(stores):
        assert store.get(b"key") == b"%d" % i
        store.close()


def test_no_thread_until_the_table_grows() -> None:
    before = threads()
    with Store() as store:
        store.set(b"key", b"value")
        assert threads() == before

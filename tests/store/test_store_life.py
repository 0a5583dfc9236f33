"""Making and freeing stores."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import pytest

from rmemcached.store._testing import Store


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def mappings_kb() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * 4


@pytest.mark.resident
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
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), threads(), mappings_kb()
    for i in range(100):
        one(i)
    after = len(os.listdir("/proc/self/fd")), threads(), mappings_kb()
    # The numbers may have fallen: leftovers of another test have ended meanwhile.
    assert after[0] <= before[0] and after[1] <= before[1]
    assert after[2] - before[2] < 4096


def test_several_stores_at_once() -> None:
    stores = [Store() for _ in range(8)]
    for i, store in enumerate(stores):
        store.set(b"key", b"%d" % i)
    for i, store in enumerate(stores):
        assert store.get(b"key") == b"%d" % i
        store.close()


@pytest.mark.without_direct("a store with readers has a thread for their index")
def test_no_thread_until_the_table_grows() -> None:
    before = threads()
    with Store(huge_pages=False) as store:
        store.set(b"key", b"value")
        assert threads() <= before


def blocked_signals(thread: str) -> set[int]:
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    bits = int(status.split("SigBlk:")[1].split()[0], 16)
    return {number for number in signal.valid_signals() if bits >> (number - 1) & 1}


@pytest.mark.without_direct("a store with readers has a thread for their index")
def test_threads_take_no_signals_but_their_own_faults() -> None:
    """The store's threads block all signals but their own faults: a blocked SIGSEGV would end the process before
    faulthandler names the place."""
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    before = set(os.listdir("/proc/self/task"))
    with Store(lru_maintainer=True, lru_crawler=True, slab_reassign=True):
        ours = set(os.listdir("/proc/self/task")) - before
        assert len(ours) == 4
        # The C library blocks all signals of a thread that has not run yet.
        deadline = time.monotonic() + 30
        while any(faults & blocked_signals(thread) for thread in ours) and time.monotonic() < deadline:
            os.sched_yield()
        for thread in ours:
            blocked = blocked_signals(thread)
            assert signal.SIGTERM in blocked and not faults & blocked

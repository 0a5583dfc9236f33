"""Threads without the GIL, all commands at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rmemcached.store._testing import Store

MB = 1 << 20


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_few_keys(seed: int) -> None:
    """Values stay right under much contention on each key."""
    with Store() as store:
        result = store.stress(4, 60_000, seed=seed, keys=40, max_value=60_000)
        assert result["hits"] > 10_000
        assert result["joined"] > 100
        assert result["counted"] > 1000
        # "won": stale items won by a thread for recaching. The number depends on who comes first: about 120.
        assert result["won"] > 20
        store.check()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_eviction_expiry_and_flush(seed: int) -> None:
    with Store(maxbytes=4 * MB) as store:
        result = store.stress(4, 100_000, seed=seed, keys=20_000, max_value=20_000, clock=True)
        stats = store.stats()
        assert stats["evictions"] > 1000
        assert stats["get_expired"] > 100
        assert result["flushed"] > 0
        store.check()


@pytest.mark.parametrize("chunk_max", [1024, 1 << 14, 1 << 19])
def test_chained_items(chunk_max: int) -> None:
    with Store(maxbytes=32 * MB, slab_chunk_size_max=chunk_max) as store:
        store.stress(4, 20_000, seed=chunk_max, keys=300, max_value=min(900_000, 40 * chunk_max))
        assert store.stats()["evictions"] > 0 or chunk_max < 1 << 19
        store.check()


def test_without_cas_and_eviction() -> None:
    with Store(maxbytes=8 * MB, use_cas=False, evict_to_free=False) as store:
        result = store.stress(4, 50_000, seed=9, keys=5000, max_value=50_000)
        assert result["no_memory"] > 0
        assert store.stats()["evictions"] == 0
        store.check()


@pytest.mark.parametrize("use_cas", [False, True])
def test_no_increment_is_lost(use_cas: bool) -> None:
    with Store() as store:
        store.set(b"number", b"0")
        store.race(4, 20_000, b"number", use_cas)
        assert store.get(b"number") == b"80000"
        store.check()


def test_the_clock_never_goes_back() -> None:
    """A tick that has read the system's clock before a debugtime does not undo the debugtime."""
    times = 200_000
    with Store() as store, ThreadPoolExecutor(1) as pool:
        before = store.time
        ticks = pool.submit(store.tick, times)
        assert store.advance(1, times) == 0
        ticks.result()
        assert times <= store.time - before < times + 60


def test_check_while_threads_run() -> None:
    import threading

    with Store(maxbytes=8 * MB, hashpower_init=10) as store:
        worker = threading.Thread(target=store.stress, args=(3, 80_000, 4), kwargs={"keys": 20_000, "max_value": 2000})
        worker.start()
        checks = 0
        try:
            while worker.is_alive():
                store.check(False)
                checks += 1
                # A check holds all locks: without a pause the other threads starve.
                worker.join(0.005)
        finally:
            worker.join()
        store.check()
        assert checks > 1

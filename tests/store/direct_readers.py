#!/usr/bin/env python3
"""Threads that read a store's memory without asking, beside writers; as a program, with any number of reads.

    script/direct-reads [READS [PROCESSOR]]

READS values (1000 million) are found and compared, in rounds beside writers: sets of all kinds, incr, deletes,
flush_all, expiry, evictions, page moves, a growing index, chained values, both ways to evict. The exit status is 1
after a wrong value. In every second round readers come and go, and with them the index. PROCESSOR: all threads run on
this processor.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rmemcached.store._testing import Store
from rmemcached.store._testing_direct import DirectReader

MB = 1 << 20
WRITES = 400_000  # of each writer in a round
READERS = 2
GROWS_FROM = 45_000  # items, more than enough to fill the first index of a store
KINDS: list[tuple[int, int, int, dict[str, Any]]] = [
    # keys, the longest value, further items at the start, options of the store
    (30, 64, 0, {}),
    (2000, 64, 0, {"s3fifo": True}),
    (20_000, 64, 0, {"lru_maintainer": True, "lru_crawler": True, "hashpower_init": 12}),
    (40_000, 64, GROWS_FROM, {}),
    (3000, 20_000, 0, {"slab_reassign": True}),
    (300, 100_000, 0, {"slab_chunk_size_max": 16384, "slab_reassign": True}),
]


def readers_beside(
    store: Store, keys: int, verify: bool = True, lines: bool = False, leave: bool = False, **stress: Any
) -> list[list[int]]:
    """Runs Store.stress, and threads that read meanwhile. Returns [asked, found, torn] of each reader.

    lines: the readers copy cache lines in any order, as an RDMA device may. leave: after some milliseconds a reader
    goes, and a new reader comes.
    """
    counts: list[list[int]] = []
    errors: list[BaseException] = []
    written = threading.Event()
    present: list[DirectReader] = []

    def run(place: int, reader: DirectReader) -> None:
        run_one = reader.run_lines if lines else reader.run
        counts.append(run_one(place, keys, verify))

    def come_and_go(place: int) -> None:
        draw = random.Random(f"{stress['seed']} {place}")
        while not written.is_set():
            reader = DirectReader(store.direct_give())
            goes = threading.Timer(draw.uniform(0.001, 0.05), reader.end)
            goes.start()
            try:
                run(draw.getrandbits(32), reader)
            finally:
                goes.join()
                store.direct_return()
            written.wait(draw.uniform(0, 0.01))

    def stay(place: int) -> None:
        run(place, present[place])

    def catch(body: Callable[[int], None], place: int) -> None:
        try:
            body(place)
        except AssertionError as error:
            errors.append(error)

    if not leave:
        present += [DirectReader(store.direct_fds()) for _ in range(READERS)]
    body = come_and_go if leave else stay
    threads = [threading.Thread(target=catch, args=(body, place)) for place in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        store.stress(keys=keys, **stress)
    finally:
        written.set()
        for reader in present:
            reader.end()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return counts


def fill(store: Store, items: int) -> None:
    """Stores items that nobody reads."""
    for number in range(items):
        store.set(b"filler-%d" % number, b"x")


def one_round(
    seed: int, leave: bool, keys: int, max_value: int, others: int, options: dict[str, Any]
) -> tuple[list[int], int]:
    """Returns [asked, found, torn] of a round with a store of its own, and the number of new readers."""
    with Store(32 * MB, direct=not leave or None, direct_linger=0, **options) as store:
        fill(store, others)
        before = store.direct_stats()["buckets"]
        moves = options.get("slab_reassign", False)
        writes = WRITES if max_value <= 1000 else WRITES // 8
        # With further items the clock stands still: a moving clock, and flushes, would leave too few for a growing
        # index.
        counts = readers_beside(
            store,
            keys,
            leave=leave,
            threads=1,
            ops=writes,
            seed=seed,
            max_value=max_value,
            clock=not others,
            move=moves,
        )
        stats = store.direct_stats()
        assert leave or not others or stats["buckets"] > before, "the index has not grown"
    return [sum(column) for column in zip(*counts, strict=True)], stats["clients"]


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000_000
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    total = [0, 0, 0]
    came = 0
    began = time.monotonic()
    seed = int.from_bytes(os.urandom(4), "big")
    while total[1] < wanted:
        seed += 1
        kind, leave = KINDS[seed // 2 % len(KINDS)], bool(seed % 2)
        try:
            counts, readers = one_round(seed, leave, *kind)
        except AssertionError as error:
            print(f"\nwrong, with {kind} and seed {seed}{', readers come and go' * leave}: {error}")
            return 1
        came += readers
        total = [before + now for before, now in zip(total, counts, strict=True)]
        asked, found, torn = total
        left = (time.monotonic() - began) * (wanted - found) / max(found, 1)
        print(
            f"\r{found:,} read, {torn:,} torn, {asked:,} not found, {came:,} readers; {max(left, 0):.0f} s left ",
            end="",
            flush=True,
        )
    print(f"\nno wrong value in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

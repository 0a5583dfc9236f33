"""Compares the readers of external storage: microseconds of a read, from the page cache and from the device.

    python tests/flash/compare_readers.py FOLDER     # on the device; takes a minute

The readers take turns, and the table has the median of the rounds. Beside a worker's reads of short values in the page
cache, which need no reader, the table has these values, too.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from pathlib import Path

from rmemcached.flash._testing import Engine

MEGABYTE = 1 << 20
PAGES, PAGE, WBUF = 64, 8 * MEGABYTE, 4 * MEGABYTE
ROUNDS = 9
READERS = {
    "1 thread": ("threads", 1),
    "8 threads": ("threads", 8),
    "32 threads": ("threads", 32),
    "uring": ("uring", 1),
}


def forget(file: Path) -> None:
    """Takes the file out of the page cache."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def filled(file: Path, reader: tuple[str, int], length: int) -> tuple[Engine, list[tuple[int, int, int]]]:
    engine = Engine([(str(file), PAGES, 0)], PAGE, WBUF, reader[1], reader[0], 512 * MEGABYTE)
    places: list[tuple[int, int, int]] = []
    while len(places) * length < 256 * MEGABYTE and len(places) < 20000:
        place = engine.put(b"key", bytes(length))
        if place is None:
            time.sleep(0.001)
        else:
            places.append(place)
    while engine.put(b"other", bytes(length)) is None or sum(engine.page(n)["active"] for n in range(PAGES)) > 1:
        time.sleep(0.001)
    return engine, places


def measured(engine: Engine, places: list[tuple[int, int, int]], length: int, under_way: int) -> float:
    before = engine.reads()[2]
    for start in range(0, len(places), under_way):
        assert None not in engine.get_many(places[start : start + under_way], b"key", length)
    return (engine.reads()[2] - before) / len(places) / 1000


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"{'value':>7} {'reads':>5}  {'from':<6} " + " ".join(f"{name:>16}" for name in READERS))
    for length in (1000, 64_000, 500_000):
        engines = {name: filled(folder / f"flash-{name}", reader, length) for name, reader in READERS.items()}
        for under_way in (1, 32):
            for source in ("cache", "device"):
                times: dict[str, list[float]] = {name: [] for name in READERS}
                for turn in range(ROUNDS):
                    for name, (engine, places) in engines.items():
                        asked = random.Random(turn).sample(places, min(320, len(places)))
                        if source == "device":
                            forget(folder / f"flash-{name}")
                        else:
                            engine.get_many(asked, b"key", length)
                        times[name].append(measured(engine, asked, length, under_way))
                cells = [f"{statistics.median(t):7.1f} ({min(t):.0f}-{max(t):.0f})" for t in times.values()]
                print(
                    f"{length:>7} {under_way:>5}  {source:<6} " + " ".join(f"{cell:>16}" for cell in cells), flush=True
                )
        for name, (engine, _) in engines.items():
            engine.close()
            (folder / f"flash-{name}").unlink()


if __name__ == "__main__":
    main()

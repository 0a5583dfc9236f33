"""Damage for memory files (store/memory_file.pxd) and their tables of flash pages (flash/kept.pxd)."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

MB = 1 << 20
HEAD = 2 * MB
PAGES_AT = 128 * 1024
# The beginnings of an ELF program, of gzip, of a SQLite database, of zeros and of text
FOREIGN = (b"\x7fELF\x02\x01\x01", b"\x1f\x8b\x08", b"SQLite format 3\0", bytes(16), b"# a text\n")
TABLE_CHECKED, TABLE_HEAD, TABLE_PAGES, TABLE_BUFFERS = 560, 660, 4096, 8192


def seeds(count: int) -> range:
    """So many seeds, or the range FIRST:END of RMEMCACHED_TEST_SEEDS."""
    first, _, end = os.environ.get("RMEMCACHED_TEST_SEEDS", f"0:{count}").partition(":")
    return range(int(first), int(end))


def damage(path: Path, rng: random.Random) -> None:
    """Changes bits and words in the head, in headers of items, or anywhere. Seldom cuts or replaces the file."""
    size = path.stat().st_size
    match rng.randrange(20):
        case 0:
            return os.truncate(path, rng.randrange(size))
        case 1:
            path.write_bytes(rng.choice(FOREIGN) + rng.randbytes(rng.choice((0, 100, HEAD))))
            return os.truncate(path, rng.choice((path.stat().st_size, size)))
    places = (
        lambda: rng.randrange(1500),
        lambda: PAGES_AT + rng.randrange(20),
        lambda: HEAD + rng.randrange((size - HEAD) // 8) * 8,
        lambda: rng.randrange(size),
    )
    change(path, rng, rng.choice((1, 10, 1000)), lambda: rng.choice(places)())


def damage_table(path: Path, rng: random.Random) -> None:
    """The same for FILE.flash, seldom in the part of the head that has a check."""
    size = path.stat().st_size
    places = (
        lambda: rng.randrange(TABLE_CHECKED, TABLE_HEAD, 4),
        lambda: rng.randrange(TABLE_PAGES, TABLE_PAGES + 32 * 16, 4),
        lambda: rng.randrange(TABLE_BUFFERS, size, 8),
    )
    change(path, rng, rng.choice((1, 5, 50)), lambda: rng.choice(places)())
    if rng.random() < 0.1:
        change(path, rng, 1, lambda: rng.randrange(TABLE_CHECKED))


def change(path: Path, rng: random.Random, times: int, place: Callable[[], int]) -> None:
    with path.open("r+b") as file:
        for _ in range(times):
            at = place()
            file.seek(at)
            file.write(rng.choice((rng.randbytes(1), rng.randbytes(8), bytes(8), b"\xff" * 8, struct.pack("<Q", at))))

"""Values that contain their size and seed. Every reader recognizes a torn or foreign value."""

from __future__ import annotations

import random

_BLOCK = random.Random(2014).randbytes(1 << 21)
_HALF = 1 << 20
_PERIOD = (1 << 21) - 9  # of longer values: data moved by whole pages is still recognized as wrong


def make_value(seed: int, size: int) -> bytes:
    """`size` bytes that depend on `seed`."""
    seed &= 0xFFFFFFFF
    if size < 8:
        return _BLOCK[size : 2 * size]
    start = seed * 2654435761 % _HALF
    if size > _HALF:
        times = (start + size) // _PERIOD + 1
        return size.to_bytes(4, "big") + seed.to_bytes(4, "big") + (_BLOCK[:_PERIOD] * times)[start : start + size - 8]
    return size.to_bytes(4, "big") + seed.to_bytes(4, "big") + _BLOCK[start : start + size - 8]


def problem(value: bytes) -> str | None:
    """The fault of a value, or None."""
    if len(value) < 8:
        return None if value == make_value(0, len(value)) else f"short value {value!r}"
    size = int.from_bytes(value[:4], "big")
    if size != len(value):
        return f"{len(value)} bytes where {size} were set"
    seed = int.from_bytes(value[4:8], "big")
    right = make_value(seed, size)
    if value == right:
        return None
    first = next(i for i in range(size) if value[i] != right[i])
    return f"value {seed} of {size} bytes is wrong from byte {first}"

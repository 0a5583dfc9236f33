"""What ends a benchmark with one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rmemcached.bench.servers import StartError
from rmemcached.client import MemcacheError


class BenchError(RuntimeError):
    """What is wrong, and the way out."""


# What servers, files and memory do to a benchmark. Anything else is a defect of ours, and has a traceback.
EXPECTED = (BenchError, StartError, MemcacheError, OSError, ValueError, MemoryError)


def text_of(error: BaseException) -> str:
    """One of EXPECTED in plain words."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Says of which contender one of EXPECTED is. Raises it as a BenchError."""
    try:
        yield
    except EXPECTED as error:
        raise BenchError(f"{name}: {text_of(error)}") from error

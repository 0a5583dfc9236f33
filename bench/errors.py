"""The errors of a benchmark, each with its message of a single line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rmemcached.bench.servers import StartError
from rmemcached.client import MemcacheError


class BenchError(RuntimeError):
    """A mistake, told in a line with the way out."""


# Mistakes of the user, and errors of servers, files and memory: a benchmark tells them in a line. Any other error is a
# defect of ours, and has a traceback.
EXPECTED = (BenchError, StartError, MemcacheError, OSError, ValueError, MemoryError)


def text_of(error: BaseException) -> str:
    """The message of an error of EXPECTED, in plain words."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Adds the contender's name to an error of EXPECTED. Raises it as a BenchError."""
    try:
        yield
    except EXPECTED as error:
        raise BenchError(f"{name}: {text_of(error)}") from error

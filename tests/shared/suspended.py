"""Child processes that stand still for a while."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


def suspend(pid: int) -> None:
    """SIGSTOP to a child; returns when all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


def resume(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Stops a child for the time of the block, unless the block ends the child. Afterwards the child finds all input
    at once."""
    suspend(pid)
    try:
        yield
    finally:
        resume(pid)

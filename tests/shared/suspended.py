"""Child processes, and single threads of them, that stand still for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000


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


def threads_named(pid: int, name: str) -> list[int]:
    """The numbers of a process's threads with this name."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(task.name) for task in tasks if (task / "comm").read_text() == f"{name}\n")


@contextlib.contextmanager
def stopped(tid: int) -> Iterator[None]:
    """A thread of a child process stands still, and the others go on."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long] * 4
    assert ptrace(PTRACE_SEIZE, tid, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0
    os.waitpid(tid, WALL)
    try:
        yield
    finally:
        assert ptrace(PTRACE_DETACH, tid, 0, 0) == 0

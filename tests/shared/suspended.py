"""Child processes, and single threads of them, that stand still for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
FUTEX_WAIT_BITSET, FUTEX_OPERATION = 9, 0x7F


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


def waits_for_condition(tid: int) -> bool:
    """Whether a thread waits for a condition variable, and so has no lock. Waits for locks are another operation."""
    words = Path(f"/proc/{tid}/syscall").read_text().split()
    return words[0] == FUTEX and int(words[2], 16) & FUTEX_OPERATION == FUTEX_WAIT_BITSET


@contextlib.contextmanager
def stopped_without_lock(tid: int) -> Iterator[None]:
    """As `stopped`, at a moment when the thread has no lock: others would wait for the lock."""
    while True:
        with stopped(tid):
            if waits_for_condition(tid):
                yield
                return

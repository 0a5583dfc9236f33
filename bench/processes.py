"""How the processes of a benchmark begin and end: none outlives the command, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from rmemcached.bench.errors import BenchError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
DESCRIPTORS_MOST = 1 << 20  # where the system has no limit, programs that close all would never end
DESCRIPTORS_BESIDE = 100  # that a process has beside its connections


def descriptors() -> int:
    """How many this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MOST if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MOST)


def raise_descriptors() -> None:
    """This process, and those that it starts, may have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, descriptors()), hard))


def check_descriptors(option: str, wanted: int) -> None:
    """Raises BenchError when a process cannot have so many connections."""
    if wanted + DESCRIPTORS_BESIDE > descriptors():
        raise BenchError(f"{option}: a process may have {descriptors()} descriptors (ulimit -Hn)")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT waits meanwhile; processes that are started have it blocked for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int, how: int) -> None:
    """This process gets the signal `how` when `parent` ends, which has started it by its main thread."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), how)


def children() -> set[int]:
    """The processes of this one, which has started or adopted them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found |= set(map(int, path.read_text().split()))
    return found


@contextlib.contextmanager
def adopting() -> Iterator[Callable[[], None]]:
    """Processes whose parents end become this one's. The function that it gives kills those that it has adopted."""
    before = children()
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def kill() -> None:
        # Their own come next.
        while adopted := children() - before:
            for number in adopted:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)

    try:
        yield kill
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

"""Start and end of a benchmark's processes: none outlives the command, in any case."""

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
DESCRIPTORS_MOST = 1 << 20  # if the system has no limit: programs that close every number would never end
DESCRIPTORS_BESIDE = 100  # of a process, beside its connections


def descriptors() -> int:
    """The number of descriptors that this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MOST if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MOST)


def raise_descriptors() -> None:
    """Raises the limit of this process, and of processes started by it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, descriptors()), hard))


def check_descriptors(option: str, wanted: int) -> None:
    """Raises BenchError when a process cannot have so many connections."""
    if wanted + DESCRIPTORS_BESIDE > descriptors():
        raise BenchError(f"{option}: a process may have {descriptors()} descriptors (ulimit -Hn)")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT waits meanwhile; processes started meanwhile have SIGINT blocked for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int, how: int) -> None:
    """This process gets the signal `how` when `parent` ends. The main thread of `parent` has started this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), how)


def children() -> set[int]:
    """The child processes of this process, started or adopted."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # an ended thread
            found |= set(map(int, path.read_text().split()))
    return found


def kill_children() -> None:
    """Kills the remaining children: if a start was interrupted, only the system knows its process."""
    for number in children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@contextlib.contextmanager
def adopting() -> Iterator[Callable[[], None]]:
    """This process adopts processes whose parents end. Yields a function to kill the adopted processes."""
    before = children()
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def kill() -> None:
        # The children of a killed process are adopted, too, and killed in the next pass.
        while adopted := children() - before:
            for number in adopted:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)

    try:
        yield kill
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

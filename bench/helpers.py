"""Client processes with orders from the benchmark."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from rmemcached.bench.errors import EXPECTED, BenchError, text_of
from rmemcached.bench.processes import end_with, uninterrupted

PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Failure:
    """A helper's answer about a failed order."""

    text: str


class Helper:
    """A process of its own that runs a function of a module, on orders.

    Raises BenchError. The process ends with the context; after an error also in the middle of its work.
    """

    def __init__(self, target: Callable[..., None], cores: set[int], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=helped, args=(target, theirs, cores, *arguments), daemon=True)
        resource_tracker.ensure_running()  # before SIGINT is blocked: the tracker's start unblocks SIGINT
        with uninterrupted():
            self.process.start()
        theirs.close()
        self.answer()

    def tell(self, *what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the helper has ended, and its answer has the reason
            self.pipe.send(what)

    def answer(self) -> Any:
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise BenchError(f"a client process ended with status {self.process.exitcode}") from None
        if isinstance(found, Failure):
            raise BenchError(found.text)
        return found

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.pipe.close()
        if kind is not None:
            self.process.kill()
        self.process.join()


def helped(target: Callable[..., None], pipe: Connection, cores: set[int], *arguments: Any) -> None:
    """Runs the function in the helper."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with(parent.pid or 0, signal.SIGKILL)
    try:
        target(pipe, cores, *arguments)
    except EXPECTED as error:
        with contextlib.suppress(BrokenPipeError):
            pipe.send(Failure(text_of(error)))


def orders(pipe: Connection, cores: set[int]) -> Iterator[tuple[Any, ...]]:
    """Yields the orders in the helper, until the parent has gone."""
    os.sched_setaffinity(0, cores)
    # By default the kernel may prolong each sleep by 50 us: too much for short pauses between requests.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    pipe.send(None)
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


# A program that keeps a core busy until its starter ends.
BUSY = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
while os.getppid() == int(sys.argv[1]):
    for _ in range(1000000): pass
"""


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that always run, as others on a host do."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with uninterrupted():
                process = subprocess.Popen([sys.executable, "-S", "-c", BUSY, str(os.getpid())])
                stack.callback(process.wait)
                stack.callback(process.kill)
        yield

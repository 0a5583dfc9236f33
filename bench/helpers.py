"""Client processes that do what they are told, again and again."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

PR_SET_TIMERSLACK = 29


class Helper:
    """A process of its own that runs one function of a module again and again, when told."""

    def __init__(self, target: Callable[..., None], cores: set[int], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, cores, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.answer()

    def tell(self, *what: Any) -> None:
        self.pipe.send(what)

    def answer(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise ChildProcessError("a client process has ended; its output is above") from None

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *exc: object) -> None:
        self.pipe.close()
        self.process.join()


def orders(pipe: Connection, cores: set[int]) -> Iterator[tuple[Any, ...]]:
    """In the helper: what it is told, until the parent has gone."""
    os.sched_setaffinity(0, cores)
    # Short sleeps are to be short.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    pipe.send(None)
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that always run, as others on a host do."""
    running = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()

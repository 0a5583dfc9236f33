"""Batches of blocks, which threads carry out while their caller goes on.

The caller hands in a batch and gets its number. When all parts are done, an eventfd becomes readable, and `drain` has
the batch's outcome.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from ._blocks import Blocks, reason
from ._settings import as_whole

PART = 4 << 20  # bytes for which a further thread is worth being woken


class Outcome(NamedTuple):
    """Of a batch. ok: no part of it failed. error: the first failure. done: of each block, whether it was found."""

    number: int
    ok: bool
    error: str
    done: list[bool]


class _Batch:
    def __init__(self, number: int, size: int, parts: int) -> None:
        self.number = number
        self.done = [False] * size
        self.parts = parts
        self.error = ""


class Workers:
    """Threads over Blocks. `submit`, `drain` and `close` are thread-safe; `submit` does not wait.

    blocks: is closed by `close`. count: of threads, 1 or more. Raises ValueError.
    """

    def __init__(self, blocks: Blocks, count: int) -> None:
        count = as_whole("workers", count, 1)
        self.blocks = blocks
        self._lock = threading.Lock()
        self._next = 0
        self._finished: list[Outcome] = []
        self._closed = False
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = [
            threading.Thread(target=self._run, name=f"rmemcached-blocks-{number}", daemon=True)
            for number in range(count)
        ]
        self._pid = os.getpid()
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise

    @property
    def event(self) -> int:
        """The eventfd. It is readable when `drain` has something."""
        return self._event

    def submit(
        self,
        task: Callable[..., Iterable[bool | str]],
        *columns: Sequence[Any],
        whole: bool = False,
        nbytes: int | None = None,
    ) -> int:
        """Queues a batch, whose rows are those of the columns, and returns its number.

        task: takes the columns of a part of the rows, and says of each row whether it was done, or in a text why it
        failed. What it raises fails the rows that it has not spoken of. whole: there is one part. nbytes: of all
        blocks; None: many. Raises ValueError when the columns differ in length, and RuntimeError after `close`, and
        in a forked child.
        """
        size = len(columns[0])
        if any(len(column) != size for column in columns):
            raise ValueError(f"lists of {' and '.join(str(len(column)) for column in columns)} entries in one batch")
        parts = min(size, 1 if whole else len(self._threads))
        if nbytes is not None:
            # Threads that take turns for little of work each are slower than one of them.
            parts = min(parts, max(nbytes // PART, 1))
        if self._pid != os.getpid():
            # Nobody would ever carry it out.
            raise RuntimeError("the connector's threads are in the process that forked this one: make another here")
        with self._lock:
            if self._closed:
                raise RuntimeError("the connector is closed")
            batch = _Batch(self._next, size, parts)
            self._next += 1
            for part in range(parts):
                self._queue.put((batch, task, columns, slice(part, None, parts)))
            if not parts:
                self._finish(batch)
        return batch.number

    def drain(self) -> list[Outcome]:
        """What was finished since the last call."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Ends the threads when what they do is done. Batches that wait fail. Any number of times."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self._event)
        self.blocks.close()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            batch, task, columns, rows = work
            error = ""
            try:
                if self._closed:
                    raise RuntimeError("the connector was closed")
                said = task(*(column[rows] for column in columns))
                for row, outcome in zip(range(len(batch.done))[rows], said, strict=True):
                    batch.done[row] = outcome is True
                    if isinstance(outcome, str):
                        error = error or outcome
            except Exception as problem:
                # Whatever it is, somebody waits for the batch.
                error = error or reason(problem)
            with self._lock:
                batch.error = batch.error or error
                batch.parts -= 1
                if not batch.parts:
                    self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        # The caller holds the lock.
        self._finished.append(Outcome(batch.number, not batch.error, batch.error, batch.done))
        if not self._closed:
            os.eventfd_write(self._event, 1)

"""Batches of blocks, carried out by threads while the caller goes on.

The caller submits a batch and gets its number. When all parts are done, an eventfd becomes readable, and `drain` has
the batch's outcome.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from ._blocks import Blocks, reason
from ._settings import as_whole

WORKERS = 4  # threads, by default
LOADS = 1 << 20  # bytes of a thread's group: of loads, with a copy or a round trip for each block,
STORES = 4 << 20  # ... and of stores, sent together, while the server copies the first of them


def groups_of(size: int, nbytes: int, group: int) -> list[slice]:
    """Returns the rows of a batch in groups of `group` bytes, one row at least. nbytes: of all blocks of the batch."""
    rows = max(group * size // max(nbytes, 1), 1)
    return [slice(first, first + rows) for first in range(0, size, rows)]


class Outcome(NamedTuple):
    """The result of a batch. ok: no part failed. error: the first failure. done: for each block, whether its row
    succeeded."""

    number: int
    ok: bool
    error: str
    done: list[bool]


class _Batch:
    """A batch under way. groups: of rows without a thread yet. left: number of unfinished groups. columns: empty once
    the batch has ended."""

    def __init__(
        self, number: int, task: Callable[..., Iterable[bool | str]], columns: Sequence[Sequence[Any]]
    ) -> None:
        self.number = number
        self.task = task
        self.columns = columns
        self.done = [False] * len(columns[0])
        self.error = ""
        self.groups: Iterator[slice] = iter(())
        self.left = 0


class Workers:
    """Threads over Blocks. `submit`, `drain` and `close` are thread-safe; `submit` does not wait.

    blocks: closed by `close`. count: of threads, 1 or more. Raises ValueError.
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
        """The eventfd, readable when `drain` has outcomes."""
        return self._event

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def submit(
        self, task: Callable[..., Iterable[bool | str]], *columns: Sequence[Any], nbytes: int = 0, group: int = 0
    ) -> int:
        """Queues a batch with the rows of the columns, and returns its number.

        task: takes the columns of a group of rows, and yields for each row True, False, or a text with the reason of
        a failure. Its exception fails the group's remaining rows, and all groups without a thread. nbytes: of all
        blocks. group: bytes of a thread's group; 0: one thread takes the whole batch. Raises ValueError when the
        columns differ in length, and RuntimeError after `close` and in a forked child.
        """
        size = len(columns[0])
        if any(len(column) != size for column in columns):
            raise ValueError(f"lists of {' and '.join(str(len(column)) for column in columns)} entries in one batch")
        groups = groups_of(size, nbytes, group) if group else [slice(size)] * (size > 0)
        if self._pid != os.getpid():
            # A forked child has no such threads, so nobody would ever carry the batch out.
            raise RuntimeError("the connector's threads are in the process that forked this one: make another here")
        with self._lock:
            if self._closed:
                raise RuntimeError("the connector is closed")
            batch = _Batch(self._next, task, columns)
            self._next += 1
            batch.groups = iter(groups)
            batch.left = len(groups)
            for _ in range(min(len(groups), len(self._threads))):
                self._queue.put(batch)
            if not groups:
                self._finish(batch)
        return batch.number

    def drain(self) -> list[Outcome]:
        """Returns the batches finished since the last call."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Ends the threads after their present groups. Any number of times.

        Unfinished batches fail. In a forked child the parent's threads go on.
        """
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock.
            self._lock = threading.Lock()
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
        while (batch := self._queue.get()) is not None:
            # A thread woken too late finds no group, and no caller waits for this thread.
            while (rows := self._take(batch)) is not None:
                self._carry_out(batch, rows)
            del batch

    def _take(self, batch: _Batch) -> slice | None:
        # Without the lock, and without the GIL, two threads may get the same element of the iterator.
        with self._lock:
            return next(batch.groups, None)

    def _carry_out(self, batch: _Batch, rows: slice) -> None:
        """Does a group of rows. The last group finishes the batch."""
        error = ""
        failed = False
        try:
            if self._closed:
                raise RuntimeError("the connector was closed")
            said = batch.task(*(column[rows] for column in batch.columns))
            for row, outcome in zip(range(len(batch.done))[rows], said, strict=True):
                batch.done[row] = outcome is True
                if isinstance(outcome, str):
                    error = error or outcome
        except Exception as problem:
            # Every exception must end the batch: a caller waits for it.
            error = error or reason(problem)
            failed = True
        with self._lock:
            batch.error = batch.error or error
            batch.left -= 1
            if failed:
                batch.left -= sum(1 for _ in batch.groups)
            if not batch.left:
                self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        # The caller holds the lock.
        batch.columns = ()
        self._finished.append(Outcome(batch.number, not batch.error, batch.error, batch.done))
        if not self._closed:
            os.eventfd_write(self._event, 1)

"""Batches shared by threads: the rows that a thread takes on, and the end of a batch."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence

import pytest
from servers import Server

from rmemcached.connectors._blocks import Blocks
from rmemcached.connectors._workers import Outcome, Workers


@pytest.fixture
def workers(shared_rmemcached: Server) -> Iterator[Workers]:
    one = Workers(Blocks((shared_rmemcached.host, shared_rmemcached.port)), 2)
    yield one
    one.close()


def finished(workers: Workers) -> list[Outcome]:
    poll = select.poll()
    poll.register(workers.event, select.POLLIN)
    assert poll.poll(20_000)
    return workers.drain()


def test_a_batch_does_not_wait_for_a_thread_that_is_busy(workers: Workers) -> None:
    """A batch ends without the help of a busy thread. Once free, this thread leaves the batch alone."""
    busy, free = threading.Event(), threading.Event()
    threads: set[int] = set()

    def hold(rows: Sequence[int]) -> list[bool]:
        busy.set()
        assert free.wait(20)
        return [True for _ in rows]

    def move(rows: Sequence[int]) -> list[bool]:
        threads.add(threading.get_ident())
        return [row % 3 != 0 for row in rows]

    held = workers.submit(hold, [0])
    assert busy.wait(20)
    number = workers.submit(move, list(range(10)), nbytes=100, group=20)
    done = [row % 3 != 0 for row in range(10)]
    assert finished(workers) == [Outcome(number, True, "", done)]
    assert len(threads) == 1
    free.set()
    assert finished(workers) == [Outcome(held, True, "", [True])]
    # The thread does not disturb the next batch either.
    number = workers.submit(move, list(range(10)), nbytes=100, group=20)
    assert finished(workers) == [Outcome(number, True, "", done)]


def test_what_fails_ends_the_batch(shared_rmemcached: Server) -> None:
    """After a failure the reported rows keep their result, and no thread tries the remaining rows."""
    tried: list[int] = []

    def move(rows: Sequence[int]) -> Iterator[bool | str]:
        tried.extend(rows)
        yield True
        yield "refused"
        if rows[0] == 3:
            raise OSError("the server is gone")
        yield True

    one = Workers(Blocks((shared_rmemcached.host, shared_rmemcached.port)), 1)
    try:
        number = one.submit(move, list(range(12)), nbytes=12, group=3)
        done = [True, False, True, True, False, False] + [False] * 6
        assert finished(one) == [Outcome(number, False, "refused", done)]
    finally:
        one.close()
    assert tried == list(range(6))


def test_close_ends_what_nobody_has_taken_on(shared_rmemcached: Server) -> None:
    busy, free = threading.Event(), threading.Event()
    tried: list[int] = []

    def hold(rows: Sequence[int]) -> list[bool]:
        tried.extend(rows)
        busy.set()
        assert free.wait(20)
        return [True for _ in rows]

    one = Workers(Blocks((shared_rmemcached.host, shared_rmemcached.port)), 1)
    one.submit(hold, [0, 1], nbytes=2, group=1)
    assert busy.wait(20)
    closing = threading.Thread(target=one.close)
    closing.start()
    while not one.closed:
        assert closing.is_alive()
    free.set()
    closing.join(20)
    assert not closing.is_alive()
    assert one.drain() == [Outcome(0, False, "the connector was closed", [True, False])]
    assert tried == [0]


def test_each_row_is_one_threads(shared_rmemcached: Server) -> None:
    """Threads that take on groups at the same moment take different groups."""
    tried: list[list[int]] = [[] for _ in range(8)]
    numbers = iter(range(8))
    own = threading.local()

    def move(rows: Sequence[int]) -> list[bool]:
        if not hasattr(own, "tried"):
            own.tried = tried[next(numbers)]
        own.tried.extend(rows)
        return [True for _ in rows]

    one = Workers(Blocks((shared_rmemcached.host, shared_rmemcached.port)), 8)
    try:
        one.submit(move, list(range(20_000)), nbytes=20_000, group=1)
        assert finished(one) == [Outcome(0, True, "", [True] * 20_000)]
        assert not one.drain()
    finally:
        one.close()
    assert sorted(row for rows in tried for row in rows) == list(range(20_000))


@pytest.mark.parametrize(
    ("nbytes", "group", "groups"), [(100, 30, [3, 3, 3, 1]), (100, 5, [1] * 10), (100, 1000, [10]), (0, 0, [10])]
)
def test_groups(workers: Workers, nbytes: int, group: int, groups: list[int]) -> None:
    sizes: list[int] = []

    def move(rows: Sequence[int]) -> list[bool]:
        sizes.append(len(rows))
        return [True for _ in rows]

    workers.submit(move, list(range(10)), nbytes=nbytes, group=group)
    assert finished(workers)[0].done == [True] * 10
    assert sorted(sizes, reverse=True) == groups

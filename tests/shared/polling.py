"""Waits: for descriptors ready for reading or writing, and for state without an announcement.

select.select refuses descriptors above 1023, as a process with many sockets has them.
"""

from __future__ import annotations

import select as system
import time
from collections.abc import Callable, Sequence
from typing import Any

TIMEOUT = 10.0  # seconds, the limit of one operation; a stall is a failure


def select(
    readers: Sequence[Any], writers: Sequence[Any] = (), seconds: float | None = None
) -> tuple[list[Any], list[Any]]:
    """As select.select, without its limit: descriptors, or objects with a fileno(). Errors and ends count as ready."""
    poll = system.poll()
    wanted: dict[int, int] = {}
    for things, event in ((readers, system.POLLIN), (writers, system.POLLOUT)):
        for thing in things:
            number = thing if isinstance(thing, int) else thing.fileno()
            wanted[number] = wanted.get(number, 0) | event
    for number, events in wanted.items():
        poll.register(number, events)
    found = dict(poll.poll(None if seconds is None else max(seconds, 0) * 1000))
    failed = system.POLLERR | system.POLLHUP

    def of(things: Sequence[Any], event: int) -> list[Any]:
        return [x for x in things if found.get(x if isinstance(x, int) else x.fileno(), 0) & (event | failed)]

    return of(readers, system.POLLIN), of(writers, system.POLLOUT)


def readable(thing: Any, seconds: float | None = 0) -> bool:
    return bool(select([thing], (), seconds)[0])


def writable(thing: Any, seconds: float | None = 0) -> bool:
    return bool(select([], [thing], seconds)[1])


def at_least(read: Callable[[], int], target: int) -> Callable[[], bool]:
    """A check whether `read` has come to `target`."""
    return lambda: read() >= target


def eventually(check: Callable[[], Any], seconds: float = TIMEOUT, what: str = "") -> Any:
    """Repeats `check` until its result is true, and returns the result: for state announced by no event."""
    begin = time.monotonic()
    while True:
        result = check()
        if result:
            return result
        waited = time.monotonic() - begin
        if waited > seconds:
            raise AssertionError(f"not within {seconds} s: {what or check}")
        # On a slow machine a constant check takes time from the work awaited.
        time.sleep(min(max(0.002, waited / 20), 0.1))

"""Descriptors ready for reading or writing.

select.select refuses descriptors above 1023, as a process with many sockets has them.
"""

from __future__ import annotations

import select as system
from collections.abc import Sequence
from typing import Any


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

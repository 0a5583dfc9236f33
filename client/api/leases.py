"""Leases: if many callers miss a value, a single caller computes the value (memcached's doc/protocol.txt, "Meta Get",
N, R, W, X, Z).

The generator `steps` yields the steps, and knows neither threads nor event loops; `drive` and `drive_async` carry them
out, and send the results back.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from ..transport.arguments import is_integer

PAUSE_LEAST = 0.002  # seconds between two looks at another caller's value; doubles
PAUSE_MOST = 0.1


class Caller(NamedTuple):
    """The objects that a step calls. For an AsyncClient the results are awaitable."""

    client: Any
    compute: Callable[[], Any]
    sleep: Callable[[float], Any]


Step = Callable[[Caller], Any]


def steps(
    key: bytes | str, expire: int, lease: int, wait: float | None, refresh: int | None, stale: bool
) -> Generator[Step, Any, Any]:
    """The steps of a get_or_set; returns its result. Raises ValueError."""
    if not is_integer(lease) or lease < 1:
        raise ValueError(f"lease is whole seconds from 1 up, not {lease!r}")
    for name, seconds in (("expire", expire), ("refresh", 0 if refresh is None else refresh)):
        # Checked here, before the value is computed.
        if not is_integer(seconds):
            raise ValueError(f"{name} is whole seconds, not {seconds!r}")
    return _steps(key, expire, lease, wait, refresh, stale)


def _steps(
    key: bytes | str, expire: int, lease: int, wait: float | None, refresh: int | None, stale: bool
) -> Generator[Step, Any, Any]:
    pause = PAUSE_LEAST

    def compute(by: Caller) -> Any:
        return by.compute()

    def sleep(by: Caller) -> Any:
        return by.sleep(pause)

    waited = 0.0
    while True:
        item = yield lambda by: by.client.meta_get(key, cas=True, vivify=lease, recache=refresh)
        if item is None:
            # With ignore_exc: the server has not answered.
            return (yield compute)
        if item.won:
            break
        if item.value is not None and (stale or not item.stale):
            return item.value
        if wait is not None and waited >= wait:
            return (yield compute)
        yield sleep
        waited += pause
        pause = min(2 * pause, PAUSE_MOST)
    try:
        value = yield compute
        # Stores the value if the item has not changed since this caller won it.
        yield lambda by: by.client.meta_set(key, value, expire=expire, cas=item.cas)
    except BaseException:
        if item.value is None or item.stale:
            # The next caller wins the item, and the old value may be used meanwhile. If the deletion fails, too, this
            # caller still gets the exception of the first failure.
            keep = {"invalidate": True, "expire": lease} if item.stale else {}
            with contextlib.suppress(Exception):
                yield lambda by: by.client.meta_delete(key, cas=item.cas, **keep)
        raise
    return value


def drive(client: Any, compute: Callable[[], Any], what: Generator[Step, Any, Any]) -> Any:
    """Does the steps with a Client."""
    caller = Caller(client, compute, time.sleep)
    go_on = partial(what.send, None)
    while True:
        try:
            step = go_on()
        except StopIteration as end:
            return end.value
        try:
            go_on = partial(what.send, step(caller))
        except BaseException as error:
            go_on = partial(what.throw, error)


async def drive_async(client: Any, compute: Callable[[], Any], what: Generator[Step, Any, Any]) -> Any:
    """Does the steps with an AsyncClient."""
    import asyncio

    caller = Caller(client, compute, asyncio.sleep)
    go_on = partial(what.send, None)
    while True:
        try:
            step = go_on()
        except StopIteration as end:
            return end.value
        try:
            result = step(caller)
            go_on = partial(what.send, await result if inspect.isawaitable(result) else result)
        except BaseException as error:
            go_on = partial(what.throw, error)

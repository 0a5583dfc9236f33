"""Leases: of all callers without a value a single caller computes it (memcached's doc/protocol.txt, "Meta Get", N, R,
W, X, Z).

The generator `steps` yields the steps, and knows neither threads nor event loops; `drive` and `drive_async` carry them
out.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ..transport.arguments import is_integer

PAUSE_LEAST = 0.002  # seconds between two looks at another caller's value; doubles
PAUSE_MOST = 0.1


class Get(NamedTuple):
    """meta_get. Answered with its result."""

    key: bytes | str
    lease: int
    refresh: int | None


class Set(NamedTuple):
    """meta_set, if the item is still the won item."""

    key: bytes | str
    value: Any
    expire: int
    cas: int | None


class GiveUp(NamedTuple):
    """meta_delete of a won item, so the next caller wins it. keep: its old value may be used."""

    key: bytes | str
    cas: int | None
    lease: int
    keep: bool


class Sleep(NamedTuple):
    """Waits."""

    seconds: float


class Compute(NamedTuple):
    """The caller's function. Answered with the value."""


Step = Get | Set | GiveUp | Sleep | Compute


def steps(
    key: bytes | str, expire: int, lease: int, wait: float | None, refresh: int | None, stale: bool
) -> Generator[Step, Any, Any]:
    """The steps of a get_or_set; returns its result. Raises ValueError."""
    if not is_integer(lease) or lease < 1:
        raise ValueError(f"lease is whole seconds from 1 up, not {lease!r}")
    for name, seconds in (("expire", expire), ("refresh", 0 if refresh is None else refresh)):
        # Before the value is computed.
        if not is_integer(seconds):
            raise ValueError(f"{name} is whole seconds, not {seconds!r}")
    return _steps(key, expire, lease, wait, refresh, stale)


def _steps(
    key: bytes | str, expire: int, lease: int, wait: float | None, refresh: int | None, stale: bool
) -> Generator[Step, Any, Any]:
    pause = PAUSE_LEAST
    waited = 0.0
    while True:
        item = yield Get(key, lease, refresh)
        if item is None:
            # ignore_exc: the server has not answered.
            return (yield Compute())
        if item.won:
            break
        if item.value is not None and (stale or not item.stale):
            return item.value
        if wait is not None and waited >= wait:
            return (yield Compute())
        yield Sleep(pause)
        waited += pause
        pause = min(2 * pause, PAUSE_MOST)
    try:
        value = yield Compute()
        yield Set(key, value, expire, item.cas)
    except BaseException:
        if item.value is None or item.stale:
            # The caller gets the exception of the first failure.
            with contextlib.suppress(Exception):
                yield GiveUp(key, item.cas, lease, item.stale)
        raise
    return value


def call_of(client: Any, step: Step) -> Any:
    """The client's result for a step; an AsyncClient's is awaitable."""
    if isinstance(step, Get):
        return client.meta_get(step.key, cas=True, vivify=step.lease, recache=step.refresh)
    if isinstance(step, Set):
        return client.meta_set(step.key, step.value, expire=step.expire, cas=step.cas)
    assert isinstance(step, GiveUp)
    if step.keep:
        return client.meta_delete(step.key, cas=step.cas, invalidate=True, expire=step.lease)
    return client.meta_delete(step.key, cas=step.cas)


def drive(client: Any, compute: Callable[[], Any], what: Generator[Step, Any, Any]) -> Any:
    """Does the steps with a Client."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = what.send(result) if error is None else what.throw(error)
        except StopIteration as end:
            return end.value
        result = error = None
        try:
            if isinstance(step, Compute):
                result = compute()
            elif isinstance(step, Sleep):
                time.sleep(step.seconds)
            else:
                result = call_of(client, step)
        except BaseException as problem:
            error = problem


async def drive_async(client: Any, compute: Callable[[], Any], what: Generator[Step, Any, Any]) -> Any:
    """Does the steps with an AsyncClient."""
    import asyncio

    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = what.send(result) if error is None else what.throw(error)
        except StopIteration as end:
            return end.value
        result = error = None
        try:
            if isinstance(step, Compute):
                result = compute()
                if inspect.isawaitable(result):
                    result = await result
            elif isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            else:
                result = await call_of(client, step)
        except BaseException as problem:
            error = problem

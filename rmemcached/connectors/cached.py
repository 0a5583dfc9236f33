"""A decorator like functools.lru_cache with its results in rmemcached: if several callers miss, one computes.

>>> client = Client("127.0.0.1:11211", serde=pickle_serde)
>>> @cached(client, expire=60)
... def square(number):
...     return number * number
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import inspect
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from rmemcached.client import Client, ClusterClient
from rmemcached.client.api.servers import Servers

from ._clients import expiry

_Function = TypeVar("_Function", bound=Callable[..., Any])

NAME_MOST = 100  # characters of a function's name at the beginning of a key
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
WITH_REPR = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


class Nothing(enum.Enum):
    """Stored for a result of None, because a client returns None for a miss."""

    NONE = 0


class CacheInfo(NamedTuple):
    """Calls by this process with a stored result, and calls with a computed result."""

    hits: int
    misses: int


def canonical(value: Any) -> str:
    """Returns a text, the same for equal arguments in every process, different between types. Raises TypeError."""
    kind = type(value)
    if kind in PLAIN or kind in WITH_REPR or kind is datetime.datetime:
        return f"{kind.__name__}:{value!r}"
    if kind in (tuple, list):
        return f"{kind.__name__}({','.join(map(canonical, value))})"
    if kind in (set, frozenset):
        return f"{kind.__name__}({','.join(sorted(map(canonical, value)))})"
    if kind is dict:
        return f"dict({','.join(sorted(f'{canonical(key)}={canonical(value[key])}' for key in value))})"
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f"{field.name}={canonical(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{name}({','.join(fields)})"
    raise TypeError(f"a key cannot be made of {name}: tell cached how, by key=function of the arguments")


def make_key(function: Callable[..., Any], prefix: str, version: Any) -> Callable[..., str]:
    """Returns the function from a call's arguments to its key of up to 133 bytes after the prefix. Raises TypeError."""
    if function.__name__ == "<lambda>":
        raise TypeError("cached: all lambdas have one name, and would have each other's results: give key=, or use def")
    name = f"{function.__module__}.{function.__qualname__}"
    shown = "".join(letter if "!" <= letter <= "~" else "_" for letter in name[:NAME_MOST])
    signature = inspect.signature(function)

    def key(*arguments: Any, **named: Any) -> str:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        text = canonical((name, version, bound.arguments))
        return f"{prefix}{shown}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    return key


class Count:
    """Hits and misses. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    def add(self, hit: bool) -> None:
        """Counts a call."""
        with self._lock:
            if hit:
                self.hits += 1
            else:
                self.misses += 1

    def info(self) -> CacheInfo:
        """Returns the counts."""
        return CacheInfo(self.hits, self.misses)


def check_client(client: Any, asynchronous: bool) -> None:
    """Raises TypeError for a client of the wrong kind for the function, or without a serde."""
    kinds: tuple[type, ...] = (Client, ClusterClient)
    if asynchronous:
        from rmemcached.client import AsyncClient, AsyncClusterClient

        kinds = (AsyncClient, AsyncClusterClient)
    if not isinstance(client, kinds):
        what = "a coroutine function" if asynchronous else "a function that is no coroutine function"
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"cached: for {what} the client is of {names}, not of {type(client).__name__}")
    serde = cast(Any, client).default_kwargs["serde"] if isinstance(client, Servers) else cast(Any, client).serde
    if serde is None:
        raise TypeError("cached: the client stores bytes only: give it a serde, such as serde=serde.pickle_serde")


def with_leases(
    client: Any, function: Callable[..., Any], key_of: Callable[..., str], expire: float | None, options: dict[str, Any]
) -> tuple[Callable[..., Any], Count]:
    """Returns a function with the same arguments that looks for the result first, and the count of its calls."""
    count = Count()

    def begin(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
        # Returns get_or_set's result, and a function from this result to the caller's.
        computed = False

        def compute() -> Any:
            nonlocal computed
            computed = True
            result = function(*arguments, **named)
            return Nothing.NONE if result is None else result

        async def compute_later() -> Any:
            nonlocal computed
            computed = True
            result = await function(*arguments, **named)
            return Nothing.NONE if result is None else result

        def counted(result: Any) -> Any:
            count.add(not computed)
            return None if result is Nothing.NONE else result

        how = compute_later if inspect.iscoroutinefunction(function) else compute
        return client.get_or_set(key_of(*arguments, **named), how, expiry(expire), **options), counted

    async def later(*arguments: Any, **named: Any) -> Any:
        awaitable, counted = begin(arguments, named)
        return counted(await awaitable)

    def at_once(*arguments: Any, **named: Any) -> Any:
        result, counted = begin(arguments, named)
        return counted(result)

    return functools.wraps(function)(later if inspect.iscoroutinefunction(function) else at_once), count


def cached(
    client: Any,
    expire: float | None = None,
    *,
    key: Callable[..., str] | None = None,
    prefix: str = "",
    version: Any = 0,
    lease: int = 30,
    wait: float | None = None,
    refresh: int | None = None,
    stale: bool = True,
) -> Callable[[_Function], _Function]:
    """Keeps a function's results in rmemcached, for all processes and hosts. For functions and coroutine functions.

    Args:
        client: a Client or ClusterClient with a serde; for a coroutine function an AsyncClient or AsyncClusterClient.
        expire: lifetime of a result in seconds. None or 0: for ever.
        key: a function of the same arguments returning the key, of at most 250 bytes. By default the key consists of
            the function's name and its arguments: None, numbers, str, bytes, dates, UUIDs, Decimals, Enums,
            dataclasses, and tuples, lists, sets and dicts of these; any other type raises TypeError. f(1) and
            f(number=1) are the same call, f(1) and f(1.0) are not.
        prefix: before each default key, not before the keys of `key`. Functions with the same module and name share
            their results. If two such functions differ (closures with different variables, or functions in the
            `__main__` of two programs), pass different prefixes.
        version: a new version leaves all older results behind.
        lease, wait, refresh, stale: as for `Client.get_or_set`: seconds until the next caller may compute if the
            computing caller does not come back; seconds of waiting for the result; seconds before expiry in which one
            caller computes anew; whether an invalidated result is used meanwhile.

    The returned function has `cache_key`, `cache_invalidate` (one caller computes, the rest have the old result) and
    `cache_delete`, all with the function's arguments; `cache_info()` with this process' hits and misses; and
    `__wrapped__`. Exceptions of the function are raised and not stored. None is a result. If a server is down, the
    client's error is raised; with ignore_exc the function computes. Thread-safe as the client is.

    Raises TypeError for a client of the wrong kind, and for a lambda without `key`.
    """
    options = {"lease": lease, "wait": wait, "refresh": refresh, "stale": stale}

    def decorate(function: _Function) -> _Function:
        check_client(client, inspect.iscoroutinefunction(function))
        key_of = key or make_key(function, prefix, version)
        wrapper, count = with_leases(client, function, key_of, expire, options)
        found = cast(Any, wrapper)
        found.cache_key = key_of
        found.cache_invalidate = lambda *arguments, **named: client.invalidate(key_of(*arguments, **named))
        found.cache_delete = lambda *arguments, **named: client.delete(key_of(*arguments, **named))
        found.cache_info = count.info
        return cast(_Function, wrapper)

    return decorate

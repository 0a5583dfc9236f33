"""The decorator @cached: keys, leases, both kinds of functions."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from concurrency import in_child
from frameworks import A_YEAR, LARGE, MANY, in_threads
from servers import Server, free_port

from rmemcached.client import AsyncClient, Client, ClusterClient
from rmemcached.client.serde import Pickle5Serde, pickle_serde
from rmemcached.connectors.cached import cached, canonical

ServerFactory = Callable[..., Server]


@pytest.fixture
def client(module_rmemcached: Server) -> Iterator[Client]:
    with Client(module_rmemcached.address, serde=pickle_serde, default_noreply=False, timeout=20) as made:
        made.flush_all()
        yield made


def test_a_function(client: Client) -> None:
    calls: list[Any] = []

    @cached(client, expire=A_YEAR)
    def function(number: Any, other: int = 1, *rest: int, name: str = "x") -> Any:
        """What it does."""
        calls.append(number)
        return number

    for value in (3, None, LARGE, "", b"", 3.0, [1, {2}]):
        assert [function(value), function(value, 1), function(number=value, name="x")] == [value] * 3
    assert len(calls) == 7
    assert function.cache_info() == (14, 7)  # type: ignore[attr-defined]
    assert function.__name__ == "function" and function.__doc__ == "What it does."
    key = function.cache_key(3)  # type: ignore[attr-defined]
    assert A_YEAR - 60 <= client.ttl(key) <= A_YEAR + 1
    assert function.cache_delete(3) and function(3) == 3 and len(calls) == 8  # type: ignore[attr-defined]
    assert function.cache_invalidate(3) and function(3) == 3 and len(calls) == 9  # type: ignore[attr-defined]
    assert function.__wrapped__(5) == 5 and len(calls) == 10  # type: ignore[attr-defined]


def test_a_lambda_needs_a_key(client: Client) -> None:
    """A lambda needs key=: all lambdas are called <lambda>, so two in a module would have each other's results."""
    with pytest.raises(TypeError, match="key="):
        cached(client)(lambda number: number)
    assert cached(client, key=lambda number: f"mine-{number}")(lambda number: -number)(3) == -3


def test_versions_prefixes_and_keys(client: Client) -> None:
    def function(number: int) -> int:
        return number

    keys = {
        cached(client, **options)(function).cache_key(1)  # type: ignore[attr-defined]
        for options in ({}, {"version": 2}, {"prefix": "other:"}, {"key": lambda number: f"mine-{number}"})
    }
    assert len(keys) == 4 and "mine-1" in keys and max(map(len, keys)) <= 250
    long = type("N" * 300, (), {"__module__": "m"})
    function.__qualname__ = "ф" * 300
    assert len(cached(client)(function).cache_key(1)) <= 140  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"a key cannot be made of m\.N+: .*key="):
        cached(client)(function)(long())


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_equal_arguments_have_one_key_and_others_have_others() -> None:
    same = [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"x", "y", "z"}, {"z", "y", "x"}), (Point(1, 2), Point(1, 2))]
    for one, other in same:
        assert canonical(one) == canonical(other)
    day = datetime.date(2026, 1, 1)
    values = [1, 1.0, True, "1", b"1", None, (1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}, ("1,2",), ("1", "2")]
    values += [("a", ("b",)), ("a", "b"), Colour.RED, Point(1, 2), Point(2, 1), day, datetime.datetime(2026, 1, 1)]
    assert len({canonical(value) for value in values}) == len(values)


def test_one_of_many_threads_computes(client: Client) -> None:
    calls: list[int] = []
    begun = threading.Event()

    @cached(client, expire=60)
    def function(number: int) -> None:
        calls.append(number)
        begun.wait(20)

    threading.Timer(0.1, begun.set).start()
    assert in_threads(lambda _: function(1)) == [None] * MANY
    assert calls == [1]
    assert function.cache_info() == (MANY - 1, 1)  # type: ignore[attr-defined]


def test_a_coroutine_function(module_rmemcached: Server) -> None:
    async def main() -> None:
        async with AsyncClient(module_rmemcached.address, serde=Pickle5Serde(), default_noreply=False) as client:
            await client.flush_all()
            calls: list[int] = []

            @cached(client)
            async def function(number: int) -> int | None:
                calls.append(number)
                await asyncio.sleep(0)
                return number or None

            assert await asyncio.gather(*(function(3) for _ in range(MANY))) == [3] * MANY
            assert [await function(0), await function(0)] == [None, None] and calls == [3, 0]
            assert function.cache_info() == (MANY, 2)  # type: ignore[attr-defined]
            assert await function.cache_delete(3) and await function(3) == 3  # type: ignore[attr-defined]
            assert calls == [3, 0, 3]

    asyncio.run(main())


def test_exceptions_are_not_stored(client: Client) -> None:
    calls: list[int] = []

    @cached(client)
    def function() -> int:
        calls.append(1)
        return 1 // (len(calls) - 1)

    with pytest.raises(ZeroDivisionError):
        function()
    assert function() == 1


def test_a_forked_child(client: Client) -> None:
    calls: list[int] = []

    @cached(client)
    def function() -> int:
        calls.append(1)
        return 5

    function()
    in_child(lambda: function() == 5 and calls == [1])


def test_a_server_that_is_down() -> None:
    nowhere = ("127.0.0.1", free_port())

    @cached(Client(nowhere, serde=pickle_serde))
    def strict() -> int:
        return 5

    with pytest.raises(ConnectionRefusedError):
        strict()

    @cached(Client(nowhere, serde=pickle_serde, ignore_exc=True))
    def quiet() -> int:
        return 5

    assert quiet() == 5

    @cached(ClusterClient([nowhere], serde=pickle_serde, ignore_exc=True))
    def of_a_cluster() -> int:
        return 5

    assert of_a_cluster() == 5


def test_clients_that_do_not_fit(module_rmemcached: Server) -> None:
    async def coroutine() -> None:
        pass

    with pytest.raises(TypeError, match="AsyncClient or AsyncClusterClient, not of Client"):
        cached(Client(module_rmemcached.address, serde=pickle_serde))(coroutine)
    with pytest.raises(TypeError, match="Client or ClusterClient, not of AsyncClient"):
        cached(AsyncClient(module_rmemcached.address, serde=pickle_serde))(lambda: 1)
    for bare in (Client(module_rmemcached.address), ClusterClient([module_rmemcached.address])):
        with pytest.raises(TypeError, match="give it a serde"):
            cached(bare)(lambda: 1)

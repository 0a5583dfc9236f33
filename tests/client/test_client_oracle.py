"""The same calls through our client and through pymemcache: the same results, the same exceptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pymemcache import exceptions as pymemcache_exceptions
from pymemcache import serde as pymemcache_serde
from pymemcache.client.base import Client as PymemcacheClient
from servers import free_port

import rmemcached.client as client_module
from rmemcached.client import Client


class Recorder:
    """Calls a client's methods and keeps their results, exceptions included."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.results: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                result = getattr(self.client, name)(*arguments, **named)
            except Exception as error:
                result = (type(error).__name__, error.args)
            self.results.append((name, result))
            return result

        return call


def storage(c: Recorder, k: str) -> None:
    c.get(k)
    c.get(k, "default")
    c.set(k, b"value")
    c.get(k)
    c.get(k.encode())
    c.set(k, "text")
    c.set(k, 12)
    c.get(k)
    c.set(k, 1.5)
    c.get(k)
    c.set(k, b"")
    c.get(k)
    c.set(k, b"a\r\nEND\r\nb")
    c.get(k)
    c.add(k, b"no")
    c.add(k + "2", b"yes")
    c.replace(k, b"replaced")
    c.replace(k + "3", b"no")
    c.append(k, b"+")
    c.prepend(k, b"-")
    c.get(k)
    c.append(k + "3", b"no")
    c.prepend(k + "3", b"no")
    c.get(k + "3")
    c.delete(k)
    c.delete(k)
    c.get(k)


def compare_and_swap(c: Recorder, k: str) -> None:
    c.cas(k, b"none", 1)
    c.cas(k, b"none", b"1")
    c.cas(k, b"none", "1")
    c.client.set(k, b"first")
    value, cas = c.client.gets(k)
    c.results.append((value, type(cas), cas.isdigit()))
    c.cas(k, b"second", cas)
    c.cas(k, b"third", cas)
    c.cas(k, b"third", int(cas))
    c.get(k)
    c.cas(k, b"x", "abc")
    c.cas(k, b"x", 1.5)
    c.cas(k, b"x", "\u00e9")
    c.cas(k, b"x", b"")
    c.gets(k + "missing")
    c.gets(k + "missing", 1, 2)
    c.cas(k, b"y", c.client.gets(k)[1], noreply=True)
    c.get(k)


def arithmetic(c: Recorder, k: str) -> None:
    c.incr(k, 1)
    c.decr(k, 1)
    c.set(k, b"10")
    c.incr(k, 5)
    c.decr(k, 20)
    c.get(k)
    # memcached 1.6.18 looks for a minus sign even behind an item whose value is 2**63 or more: values here are smaller.
    c.incr(k, 2**63 - 1)
    c.incr(k, 2**63 + 2)
    c.incr(k, -1)
    c.incr(k, 2**64)
    c.incr(k, "1")
    c.incr(k, 1, noreply=True)
    c.decr(k + "missing", 1, noreply=True)
    c.get(k)
    c.set(k, b"word")
    c.incr(k, 1)
    c.decr(k, 1)
    c.get(k)


def many(c: Recorder, k: str) -> None:
    keys = [f"{k}-{i}" for i in range(20)]
    c.get_many([])
    c.get_many(keys)
    c.set_many({})
    c.set_many({key: f"value {i}" for i, key in enumerate(keys[::2])})
    c.get_many(keys)
    c.get_many(tuple(keys))
    c.get_multi([keys[0], keys[0], keys[1]])
    c.set_multi({keys[1]: b"1", keys[3].encode(): b"3"})
    c.get_many([keys[1].encode(), keys[3]])
    c.delete_many(keys[:4])
    c.delete_many([])
    c.delete_multi(keys[:2])
    c.get_many(keys)
    found = c.client.gets_many(keys)
    c.results.append({name: (value, type(cas)) for name, (value, cas) in found.items()})
    c.get_many([keys[0], "bad key"])
    c.set_many({keys[0]: b"x", "bad key": b"y"})
    c.get(keys[0])


def expiry(c: Recorder, k: str) -> None:
    c.set(k, b"gone", expire=-1)
    c.get(k)
    c.set(k, b"stays", expire=100)
    c.get(k)
    c.touch(k, 1000)
    c.touch(k + "missing", 1000)
    c.touch(k)
    c.touch(k, -1)
    c.get(k)
    c.touch(k, "1")
    c.set(k, b"x", expire=1.5)
    c.set(k, b"x", expire="1")
    c.set_many({k: b"x"}, expire=-1)
    c.get(k)


def bad_keys(c: Recorder, k: str) -> None:
    for key in (
        "a" * 251,
        b"a" * 300,
        "with space",
        b"with\ttab",
        "line\r\nfeed",
        " leading",
        "trailing ",
        "null\0byte",
        "non-ascii \u00e9".replace(" ", ""),
    ):
        c.get(key)
        c.set(key, b"x")
        c.delete(key)
        c.touch(key)
        c.incr(key, 1)
    c.set("a" * 250, b"longest")
    c.get("a" * 250)
    c.set(k, "\u00e9")
    c.get(b"\xff\xfe" + k.encode())


def no_reply(c: Recorder, k: str) -> None:
    c.set(k, b"1", noreply=True)
    c.get(k)
    c.add(k, b"2", noreply=True)
    c.replace(k, b"3", noreply=True)
    c.append(k, b"4", noreply=True)
    c.prepend(k, b"5", noreply=True)
    c.get(k)
    c.touch(k, 100, noreply=True)
    c.touch(k + "missing", 100, noreply=True)
    c.set_many({k + "a": b"a", k + "b": b"b"}, noreply=True)
    c.get_many([k + "a", k + "b"])
    c.delete(k + "a", noreply=True)
    c.delete(k + "missing", noreply=True)
    c.delete_many([k + "b", k + "missing"], noreply=True)
    c.get_many([k, k + "a", k + "b"])
    c.cas(k, b"no", 1, noreply=True)
    c.get(k)


def as_dict(c: Recorder, k: str) -> None:
    c.client[k] = b"value"
    c.results.append(c.client[k])
    del c.client[k]
    try:
        c.client[k]
    except KeyError:
        c.results.append("KeyError")


def other_commands(c: Recorder, k: str) -> None:
    c.version()
    c.raw_command(b"get " + k.encode(), b"END\r\n")
    c.set(k, b"value")
    c.raw_command("get " + k, "END\r\n")
    c.raw_command("mn")
    c.raw_command("nonsense")
    c.stats("nonsense")
    c.stats("detail", "nonsense")
    c.flush_all(10**6)
    c.flush_all("1")
    c.cache_memlimit("x")
    c.get(k)


def too_large(c: Recorder, k: str) -> None:
    c.set(k, b"old")
    c.set(k, b"x" * (9 << 20))
    c.get(k)
    c.set(k, b"new")
    c.get(k)


SCENARIOS = [
    storage,
    compare_and_swap,
    arithmetic,
    many,
    expiry,
    bad_keys,
    no_reply,
    as_dict,
    other_commands,
    too_large,
]


def compare(scenario: Callable[[Recorder, str], None], ours: Any, theirs: Any, key: str) -> None:
    mine, reference = Recorder(ours), Recorder(theirs)
    scenario(mine, key + "x")
    scenario(reference, key + "y")
    expected = [repr(result) for result in reference.results]
    for spelling in (key, repr(key.encode())[2:-1]):
        expected = [text.replace(spelling + "y", spelling + "x") for text in expected]
    assert [repr(result) for result in mine.results] == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_as_pymemcache(scenario: Any, client: Any, oracle: Any, key: str) -> None:
    compare(scenario, client, oracle, key)


@pytest.mark.parametrize("scenario", [storage, many, no_reply])
def test_same_with_default_noreply(scenario: Any, make_client: Any, make_oracle: Any, key: str) -> None:
    compare(scenario, make_client(default_noreply=True), make_oracle(default_noreply=True), key)


@pytest.mark.parametrize("scenario", [storage, many, compare_and_swap])
def test_same_with_prefix_and_unicode_keys(scenario: Any, make_client: Any, make_oracle: Any, key: str) -> None:
    options = {"key_prefix": b"p:", "allow_unicode_keys": True, "encoding": "utf8"}
    compare(scenario, make_client(**options), make_oracle(**options), key + "\u20ac")


class NumberedSerde:
    """The flags give the type of the value."""

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        return (value, 7) if isinstance(value, str) else (repr(value), 2**32 - 1)

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        return (key, value, flags)


@pytest.mark.parametrize(
    "serde",
    [NumberedSerde(), pymemcache_serde.pickle_serde, pymemcache_serde.compressed_serde],
    ids=lambda s: type(s).__name__,
)
def test_same_with_serde(serde: Any, make_client: Any, make_oracle: Any, key: str) -> None:
    def scenario(c: Recorder, k: str) -> None:
        c.set(k, "text")
        c.get(k)
        c.set(k, {"a": [1, 2.5, None]})
        c.get(k)
        c.set(k, 12)
        c.get(k)
        c.set(k, 12, flags=16)
        c.set(k, "text" * 2000)
        c.get(k)
        c.set_many({k: "one", k + "2": 2, k + "3": "3" * 10000})
        c.get_many([k, k + "2", k + "3", k + "missing"])

    compare(scenario, make_client(serde=serde), make_oracle(serde=serde), key)


def test_same_with_serializer_functions(make_client: Any, make_oracle: Any, key: str) -> None:
    functions = {
        "serializer": lambda key, value: (value.upper(), 3),
        "deserializer": lambda key, value, flags: (value.decode(), flags),
    }
    compare(storage_of_text, make_client(**functions), make_oracle(**functions), key)


def storage_of_text(c: Recorder, k: str) -> None:
    c.set(k, "abc")
    c.get(k)
    c.get_many([k])


@pytest.mark.parametrize("ignore_exc", [False, True])
def test_same_when_nobody_listens(ignore_exc: bool, key: str) -> None:
    port = free_port()

    def scenario(c: Recorder, k: str) -> None:
        c.get(k, "default")
        c.gets(k, 1, 2)
        c.get_many([k])
        c.stats()

    ours = Client(("127.0.0.1", port), ignore_exc=ignore_exc)
    theirs = PymemcacheClient(("127.0.0.1", port), ignore_exc=ignore_exc)
    compare(scenario, ours, theirs, key)


def test_exceptions_are_pymemcaches() -> None:
    for name in (name for name in dir(pymemcache_exceptions) if name.startswith("Memcache")):
        theirs, mine = getattr(pymemcache_exceptions, name), getattr(client_module, name)
        assert issubclass(mine, theirs)
        ours = [kind.__name__ for kind in mine.__mro__ if kind.__module__ == "rmemcached.client.exceptions"]
        assert ours == [kind.__name__ for kind in theirs.__mro__ if kind.__module__ == theirs.__module__]


def test_methods_take_pymemcaches_arguments() -> None:
    """Each public method of pymemcache's client is ours, with the same parameters in the same order and the same
    defaults. Any more parameters are optional."""
    for name, method in vars(PymemcacheClient).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            theirs, ours = (list(inspect.signature(one).parameters.values()) for one in (method, getattr(Client, name)))
            assert [one.name for one in ours[: len(theirs)]] == [one.name for one in theirs], name
            for their, our in zip(theirs, ours, strict=False):
                assert their.default in (inspect.Parameter.empty, our.default), (name, our)
            assert inspect.Parameter.empty not in [one.default for one in ours[len(theirs) :]], name

"""A Flask application with Flask-Caching, and cachelib by itself, on rmemcached."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from cachelib.base import BaseCache
from concurrency import in_child
from dumps import keys_in
from flask import Flask
from flask_caching import Cache
from frameworks import A_YEAR, FIFTY_YEARS, LARGE, MANY, in_threads
from servers import Server, free_port

from rmemcached.client import Client, MemcacheServerError
from rmemcached.connectors.cachelib import RMemcachedCache

ServerFactory = Callable[..., Server]


@pytest.fixture
def cache(module_rmemcached: Server) -> RMemcachedCache:
    made = RMemcachedCache(f"tcp://127.0.0.1:{module_rmemcached.port}", key_prefix="cachelib:", timeout=20)
    made.clear()
    return made


def test_an_application(module_rmemcached: Server) -> None:
    app = Flask("application")
    settings = {"CACHE_TYPE": "rmemcached.connectors.flask.RMemcachedCache", "CACHE_KEY_PREFIX": "application:"}
    servers = [f"127.0.0.1:{module_rmemcached.port}"]
    cache = Cache(
        app, config={**settings, "CACHE_MEMCACHED_SERVERS": servers, "CACHE_OPTIONS": {"transport": "soft_shm"}}
    )
    calls: list[int] = []

    @app.route("/<int:number>")
    @cache.cached(query_string=True)
    def page(number: int) -> str:
        calls.append(number)
        return str(len(calls))

    @cache.memoize(cache_none=True)
    def nothing(number: int) -> None:
        calls.append(number)

    web = app.test_client()
    assert [web.get("/1?a=b c").text, web.get("/1?a=b c").text, web.get("/2").text] == ["1", "1", "2"]
    assert nothing(3) is None and nothing(3) is None and calls == [1, 2, 3]
    cache.delete_memoized(nothing, 3)
    assert nothing(3) is None and calls == [1, 2, 3, 3]
    cache.clear()
    assert web.get("/2").text == "5"


def test_times_past_2038_are_for_ever(cache: RMemcachedCache) -> None:
    """A time after 2038 does not expire: memcached would take such a time for past, and drop the item at once."""
    assert cache.set("key", "value", timeout=FIFTY_YEARS) and cache.get("key") == "value"


def test_nobody_can_choose_the_key_of_another(cache: RMemcachedCache, module_rmemcached: Server) -> None:
    """A key unfit for memcached is stored under its hash. The hash, used as a key, does not give the value."""
    cache.set("secret " + "x" * 300, "value")
    with Client(module_rmemcached.address, transport="tcp") as client:
        (stored,) = [key.decode() for key in keys_in(client)]
    assert cache.get(stored.removeprefix("cachelib:")) is None


def test_a_server_that_is_down_makes_pages_slow_and_not_wrong() -> None:
    app = Flask("application")
    settings = {"CACHE_TYPE": "rmemcached.connectors.flask.RMemcachedCache"}
    cache = Cache(app, config={**settings, "CACHE_MEMCACHED_SERVERS": f"127.0.0.1:{free_port()}"})
    app.route("/")(cache.cached()(lambda: "page"))
    assert app.test_client().get("/").text == "page"
    with pytest.raises(ConnectionRefusedError):
        RMemcachedCache(f"127.0.0.1:{free_port()}").get("key")
    quiet = RMemcachedCache(f"127.0.0.1:{free_port()}", ignore_exc=True)
    assert quiet.get("key") is None and not quiet.set("key", 1) and quiet.dec("key") is None
    assert quiet.inc("key") is None and not quiet.has("key") and quiet.set_many({"key": 1}) == []


def test_values(cache: RMemcachedCache) -> None:
    assert isinstance(cache, BaseCache)
    values = {"none": None, "large": LARGE, "object": {"a": [1]}, "with blank": 1, "ключ" * 100: 2, "": 3}
    assert cache.set_many(values) == list(values)
    assert cache.get_dict(*values) == values
    assert cache.has("none") and not cache.has("other") and cache.get("other") is None
    assert cache.add("new", 1) and not cache.add("new", 2) and cache.get("new") == 1
    assert cache.delete("new") and not cache.delete("new")
    assert cache.delete_many("none", "object", "other") == ["none", "object", "other"] and not cache.has("object")


def test_timeouts(cache: RMemcachedCache) -> None:
    for timeout, expected in ((0, -1), (None, 300), (A_YEAR, A_YEAR), (datetime.timedelta(minutes=1), 60)):
        cache.set("key", 1, timeout)
        assert expected - 5 <= cache._client.ttl("cachelib:key") <= expected + 1
    cache.set("key", 1, -1)
    assert not cache.has("key")


def test_numbers(cache: RMemcachedCache) -> None:
    assert [cache.inc("up"), cache.inc("up", 5), cache.get("up")] == [1, 6, 6]
    assert [cache.dec("down", 2), cache.dec("down"), cache.get("down"), cache.inc("down", 4)] == [-2, -3, -3, 1]
    cache.set("text", "text")
    with pytest.raises(TypeError, match="no number but str"):
        cache.inc("text")
    assert sorted(in_threads(lambda _: cache.inc("threads"))) == list(range(1, MANY + 1))
    assert sorted(in_threads(lambda _: cache.dec("threads")), reverse=True) == list(range(MANY - 1, -1, -1))


def test_a_forked_child(cache: RMemcachedCache) -> None:
    cache.set("parent", 1)
    in_child(lambda: cache.get("parent") == 1 and cache.set("child", 2) is True)
    assert cache.get("child") == 2


def test_a_value_that_is_too_large(rmemcached_server: ServerFactory) -> None:
    cache = RMemcachedCache(f"127.0.0.1:{rmemcached_server('-t', '1').port}")
    cache.set("key", 1)
    with pytest.raises(MemcacheServerError, match="too large"):
        cache.set("key", LARGE)
    assert not cache.has("key")
    cache.close()

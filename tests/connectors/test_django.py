"""A Django application whose cache is rmemcached. script/django-suite runs Django's own tests with the back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from concurrency import in_child
from django.conf import settings
from frameworks import A_YEAR, FIFTY_YEARS, LARGE, MANY, in_threads
from servers import Server, free_port

from rmemcached.client import MemcacheServerError

ServerFactory = Callable[..., Server]
BACKEND = "rmemcached.connectors.django.RMemcachedCache"


def page(request: Any) -> Any:
    from django.core.cache import cache
    from django.http import HttpResponse

    return HttpResponse(str(cache.get_or_set("pages", lambda: 0) is not None and cache.incr("pages")))


@pytest.fixture(scope="module", autouse=True)
def application() -> None:
    import django
    from django.urls import path

    if not settings.configured:
        settings.configure(ROOT_URLCONF=(path("", page),), SECRET_KEY="of the tests", ALLOWED_HOSTS=["testserver"])
        django.setup()


@pytest.fixture
def make_caches(module_rmemcached: Server) -> Iterator[Callable[..., Any]]:
    """make_caches(**settings): the caches of an application with these settings of CACHES["default"]."""
    from django.core.cache import caches
    from django.test import override_settings

    overrides = []

    def make(**changed: Any) -> Any:
        entry = {"BACKEND": BACKEND, "LOCATION": f"shm://127.0.0.1:{module_rmemcached.port}", **changed}
        overrides.append(override_settings(CACHES={"default": entry}))
        overrides[-1].enable()
        return caches

    yield make
    for override in reversed(overrides):
        override.disable()


def test_an_application(make_caches: Callable[..., Any]) -> None:
    from django.test import Client

    cache = make_caches(KEY_PREFIX="application")["default"]
    web = Client()
    assert [web.get("/").content for _ in range(3)] == [b"1", b"2", b"3"]
    assert cache.get("pages") == 3
    assert cache._cache.transport == "soft_shm" and cache._cache.connections > 0, "the end of a request has closed it"


def test_values_and_timeouts(make_caches: Callable[..., Any]) -> None:
    cache = make_caches(TIMEOUT=None)["default"]
    absent = object()
    values = {"none": None, "large": LARGE, "object": {"a": [1, 2.5]}, "number": 5, "ключ": "текст"}
    assert cache.set_many(values) == []
    assert cache.get_many(values) == values
    assert cache.get("none", absent) is None and cache.get("other", absent) is absent
    assert cache._cache.ttl(cache.make_key("number")) == -1
    cache.set("number", 1, timeout=A_YEAR)
    assert A_YEAR - 60 <= cache._cache.ttl(cache.make_key("number")) <= A_YEAR + 1
    cache.set("number", 1, timeout=FIFTY_YEARS)
    assert cache.get("number") == 1
    cache.set("number", 1, timeout=0)
    assert cache.get("number") is None
    assert cache.add("number", 1) and not cache.add("number", 2)
    assert cache.touch("number", A_YEAR) and cache.get("number") == 1


def test_prefix_version_and_clear(make_caches: Callable[..., Any]) -> None:
    first = make_caches(KEY_PREFIX="first")["default"]
    first.set("key", 1)
    first.set("key", 2, version=2)
    second = make_caches(KEY_PREFIX="second", OPTIONS={"key_prefix": "client:"})["default"]
    assert second.get("key") is None
    assert (first.get("key"), first.get("key", version=2)) == (1, 2)
    second.clear()
    assert first.get("key") is None, "clear empties the server"


def test_threads_share_a_client(make_caches: Callable[..., Any]) -> None:
    caches = make_caches(OPTIONS={"timeout": 20})

    def call(number: int) -> tuple[int, int]:
        cache = caches["default"]
        cache.set(f"key-{number}", number)
        return cache.get(f"key-{number}"), id(cache._cache)

    found = in_threads(call)
    assert [value for value, _ in found] == list(range(MANY))
    assert len({client for _, client in found}) == 1


def test_a_forked_child(make_caches: Callable[..., Any]) -> None:
    cache = make_caches()["default"]
    cache.set("parent", 1)
    in_child(lambda: cache.get("parent") == 1 and cache.set("child", 2) is None)
    assert cache.get("child") == 2


def test_a_server_that_is_down(make_caches: Callable[..., Any]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    cache = make_caches(LOCATION=nowhere)["default"]
    with pytest.raises(ConnectionRefusedError):
        cache.get("key")
    quiet = make_caches(LOCATION=nowhere, OPTIONS={"ignore_exc": True})["default"]
    quiet.set("key", 1)
    assert quiet.get("key", "default") == "default" and quiet.get_many(["key"]) == {}


def test_a_value_that_is_too_large(make_caches: Callable[..., Any], rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-t", "1")
    cache = make_caches(LOCATION=f"tcp://127.0.0.1:{server.port}")["default"]
    cache.set("key", b"small")
    with pytest.raises(MemcacheServerError, match="too large"):
        cache.set("key", LARGE)
    assert cache.get("key") is None


def test_options_in_the_url_and_several_servers(make_caches: Callable[..., Any], module_rmemcached: Server) -> None:
    port = module_rmemcached.port
    cache = make_caches(LOCATION=f"tcp://127.0.0.1:{port}?timeout=7&key_prefix=url:")["default"]
    cache.set("key", 1)
    assert cache.get("key") == 1 and cache._cache.timeout == 7 and cache._cache.key_prefix == b"url:"
    both = make_caches(LOCATION=[f"127.0.0.1:{port}", f"tcp://localhost:{port}"], OPTIONS={"timeout": 20})["default"]
    assert both.set_many({f"key-{number}": number for number in range(20)}) == []
    assert len(both._cache.clients) == 2 and both.get("key-7") == 7
    with pytest.raises(ValueError, match="timeout is given twice"):
        make_caches(LOCATION=f"tcp://127.0.0.1:{port}?timeout=7", OPTIONS={"timeout": 8})["default"].get("key")

"""Functions of an application cached by dogpile.cache, on rmemcached."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from concurrency import in_child
from dogpile.cache import make_region
from dogpile.cache.api import NO_VALUE
from frameworks import A_YEAR, LARGE, MANY, in_threads
from servers import Server, free_port

from rmemcached.client import MemcacheServerError

ServerFactory = Callable[..., Server]


@pytest.fixture
def region(module_rmemcached: Server) -> Any:
    url = f"shm://127.0.0.1:{module_rmemcached.port}?key_prefix=dogpile:"
    made = make_region().configure("rmemcached", arguments={"url": url, "memcached_expire_time": A_YEAR})
    made.backend.client.flush_all()
    return made


def test_an_application(region: Any) -> None:
    calls: list[int] = []

    @region.cache_on_arguments()
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    assert [square(3), square(3), square(4)] == [9, 9, 16] and calls == [3, 4]
    square.invalidate(3)
    assert square(3) == 9 and calls == [3, 4, 3]
    assert region.backend.client.transport == "soft_shm"


def test_values(region: Any) -> None:
    values = {"none": None, "large": LARGE, "with blank": {"a": 1}, "ключ" * 100: 2}
    region.set_multi(values)
    assert region.get_multi([*values, "other"]) == [*values.values(), NO_VALUE]
    assert region.get("none") is None and region.get("other") is NO_VALUE
    assert A_YEAR - 60 <= region.backend.client.ttl("none") <= A_YEAR + 1
    region.delete_multi(["none", "with blank"])
    assert region.get("none") is NO_VALUE and region.get("with blank") is NO_VALUE
    region.delete("large")
    assert region.get("large") is NO_VALUE


def test_one_of_many_threads_computes(module_rmemcached: Server) -> None:
    arguments = {"url": f"127.0.0.1:{module_rmemcached.port}", "distributed_lock": True, "lock_timeout": 30}
    region = make_region().configure("rmemcached", arguments=arguments)
    calls: list[int] = []
    lock = threading.Lock()

    def compute() -> int:
        with lock:
            calls.append(1)
        return 5

    # dogpile locks this key under a name five bytes longer, which exceeds memcached's limit of 250 bytes.
    key = "k" * 248
    assert in_threads(lambda _: region.get_or_create(key, compute)) == [5] * MANY
    assert len(calls) == 1


def test_a_forked_child(region: Any) -> None:
    region.set("parent", 1)
    in_child(lambda: region.get("parent") == 1 and region.set("child", 2) is None)
    assert region.get("child") == 2


def test_servers_that_are_down_or_refuse(rmemcached_server: ServerFactory) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionRefusedError):
        make_region().configure("rmemcached", arguments={"url": nowhere}).get("key")
    quiet = make_region().configure("rmemcached", arguments={"url": [nowhere], "ignore_exc": True})
    assert quiet.get_or_create("key", lambda: 5) == 5
    small = make_region().configure("rmemcached", arguments={"url": f"127.0.0.1:{rmemcached_server('-t', '1').port}"})
    with pytest.raises(MemcacheServerError, match="too large"):
        small.set("key", LARGE)
    small.backend.client.close()

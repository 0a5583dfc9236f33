"""The measurements of `rmemcached-bench latency` as pytest-benchmark cases: `pytest bench`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from rmemcached.bench.arguments import parse_size, size_name
from rmemcached.bench.contenders import Contender, connect, default_contenders
from rmemcached.bench.latency import FLAGS
from rmemcached.bench.servers import Server, memcached_path, start_memcached, start_rmemcached

CASES = default_contenders(("soft_shm", "soft_iw", "tcp", "tcp+pymemcache", "memcached", "memcached+pymemcache"))
SIZES = "8,100,1k,64k,1m"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    started = {"rmemcached": start_rmemcached(*FLAGS)}
    try:
        if memcached_path() is not None:
            started["memcached"] = start_memcached(*FLAGS)
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.mark.parametrize("contender", CASES, ids=lambda contender: contender.name)
@pytest.mark.parametrize("size", [parse_size(size) for size in SIZES.split(",")], ids=size_name)
@pytest.mark.parametrize("operation", ["get", "set"])
def test_latency(benchmark: Any, servers: dict[str, Server], operation: str, size: int, contender: Contender) -> None:
    benchmark.group = f"{operation} {size_name(size)}"
    value = os.urandom(size)
    client = connect(contender, servers[contender.server].address)
    try:
        client.set("key", value)
        if operation == "get":
            assert benchmark(client.get, "key") == value
        else:
            benchmark(client.set, "key", value)
            assert client.get("key") == value
    finally:
        client.close()

"""latency.py's measurements as pytest-benchmark cases: `pytest bench`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from latency import COMBINATIONS, SERVER_FLAGS, SIZES, have_pymemcache, make_client, parse_size, size_name
from servers import Server, memcached_path, start_memcached, start_rmemcached

CASES = [
    (client, server)
    for client, server in COMBINATIONS
    if (server != "memcached" or memcached_path() is not None) and (client != "pymemcache" or have_pymemcache())
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    started = {"rmemcached": start_rmemcached(*SERVER_FLAGS)}
    try:
        if memcached_path() is not None:
            started["memcached"] = start_memcached(*SERVER_FLAGS)
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.mark.parametrize("client_name, server_name", CASES)
@pytest.mark.parametrize("size", [parse_size(size) for size in SIZES.split(",")], ids=size_name)
@pytest.mark.parametrize("operation", ["get", "set"])
def test_latency(
    benchmark: Any, servers: dict[str, Server], operation: str, size: int, client_name: str, server_name: str
) -> None:
    benchmark.group = f"{operation} {size_name(size)}"
    value = os.urandom(size)
    client = make_client(client_name, servers[server_name])
    try:
        client.set("key", value)
        if operation == "get":
            assert benchmark(client.get, "key") == value
        else:
            benchmark(client.set, "key", value)
            assert client.get("key") == value
    finally:
        client.close()

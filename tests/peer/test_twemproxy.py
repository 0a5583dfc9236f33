"""twemproxy in front of two daemons: commands, failover, and the way back. A proxy is a program of its own, as ever."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from polling import eventually
from pymemcache.client.base import Client as Pymemcache
from servers import HOST, Server, free_port

from rmemcached.client import Client

TWEMPROXY = shutil.which("nutcracker") or shutil.which("nutcracker", path="/usr/sbin")
KEYS = [f"key{number}" for number in range(100)]
CONFIGURATION = """\
pool:
  listen: {host}:{port}
  hash: md5
  distribution: ketama
  timeout: 2000
  auto_eject_hosts: true
  server_failure_limit: 1
  server_retry_timeout: 100
  servers:
"""

ServerFactory = Callable[..., Server]


@pytest.fixture
def daemons(rmemcached_server: ServerFactory) -> list[Server]:
    return [rmemcached_server("-I", "4m"), rmemcached_server("-I", "4m")]


@pytest.fixture
def proxy(daemons: list[Server], tmp_path: Path) -> Iterator[int]:
    """A running twemproxy's port."""
    assert TWEMPROXY is not None, "twemproxy is not installed: apt-get install nutcracker"
    port = free_port()
    lines = [f"   - {one.host}:{one.port}:1 daemon{number}\n" for number, one in enumerate(daemons)]
    settings = tmp_path / "proxy.yml"
    settings.write_text(CONFIGURATION.format(host=HOST, port=port) + "".join(lines))
    command = [TWEMPROXY, "-c", str(settings), "-o", str(tmp_path / "log"), "-p", str(tmp_path / "pid")]
    with subprocess.Popen([*command, "-a", HOST, "-s", str(free_port())]) as process:
        try:
            eventually(lambda: listens(port), what="twemproxy's port")
            yield port
        finally:
            process.terminate()


def listens(port: int) -> bool:
    with socket.socket() as plain:
        return plain.connect_ex((HOST, port)) == 0


def stores_all(client: Pymemcache, value: bytes) -> bool:
    """Whether all keys could be stored. A key whose daemon has just ended fails once."""
    return all([stores(client, key, value) for key in KEYS])


def stores(client: Pymemcache, key: str, value: bytes) -> bool:
    try:
        return bool(client.set(key, value, noreply=False))
    except Exception:  # twemproxy's SERVER_ERROR, or the end of the connection
        client.close()
        return False


def test_commands(proxy: int, daemons: list[Server]) -> None:
    with closing(Pymemcache((HOST, proxy), timeout=10)) as client:
        assert stores_all(client, b"first")
        assert all(int(one.stats()["curr_items"]) > 10 for one in daemons)
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"first")
        for size in (0, 1, 100_000, 3_000_000):
            assert client.set("large", bytes(size), noreply=False)
            assert client.get("large") == bytes(size)
        assert client.append("key1", b"+", noreply=False) and client.prepend("key1", b"-", noreply=False)
        value, cas = client.gets("key1")
        assert value == b"-first+"
        assert client.cas("key1", b"5", cas, noreply=False)
        assert not client.cas("key1", b"6", cas, noreply=False)
        assert client.incr("key1", 37) == 42 and client.decr("key1", 2) == 40
        assert client.touch("key1", 1000, noreply=False)
        assert not client.add("key1", b"", noreply=False) and client.replace("key1", b"x", noreply=False)
        assert client.delete("key1", noreply=False) and client.get("key1") is None


def test_our_client(proxy: int) -> None:
    """The client finds classic commands, and no RDMA, behind the proxy."""
    with Client((HOST, proxy)) as client:
        assert client.set_many(dict.fromkeys(KEYS, b"value")) == []
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"value")
        assert client.set("large", bytes(3_000_000)) and client.get("large") == bytes(3_000_000)
        assert client.delete_many(KEYS) and client.get_many(KEYS) == {}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_failover_and_back(proxy: int, daemons: list[Server], how: signal.Signals) -> None:
    """A daemon ends, and its keys go to the other; the next daemon at the same port gets its keys again."""
    gone, stays = daemons
    with closing(Pymemcache((HOST, proxy), timeout=10)) as client:
        assert stores_all(client, b"first")
        before = int(stays.stats()["curr_items"])
        assert 0 < before < len(KEYS)
        gone.stop(how)
        eventually(lambda: stores_all(client, b"second"), what="the failover")
        assert int(stays.stats()["curr_items"]) == len(KEYS)
        with Server(gone.command, gone.port) as back:
            eventually(
                lambda: stores_all(client, b"third") and int(back.stats()["curr_items"]) == len(KEYS) - before,
                what="the way back",
            )
            assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"third")

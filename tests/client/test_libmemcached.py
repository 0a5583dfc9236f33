"""ClusterClient beside libmemcached, by pylibmc."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from gated_relay import Gate, GatedRelay
from servers import Server
from test_cluster import KEYS, OPTIONS, ServerFactory

from rmemcached.client import ClusterClient

pylibmc = pytest.importorskip("pylibmc", reason="pylibmc has no wheel for this Python")


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 5), (3, 7, 100)], ids=str)
def test_keys_go_where_libmemcached_puts_them(three: list[Server], weights: tuple[int, ...]) -> None:
    servers = [server.place for server in three]
    theirs = pylibmc.Client(
        [f"{server}:{weight}" for server, weight in zip(servers, weights, strict=True)],
        behaviors={"ketama_weighted": True, "no_block": True, "tcp_nodelay": True},
    )
    keys = KEYS[:2000]
    theirs.set_multi({key: b"value" for key in keys})
    ours = ClusterClient(servers, hasher="ketama", weights=dict(zip(servers, weights, strict=True)), **OPTIONS)
    with ours:
        assert len(ours.get_many(keys)) == len(keys)
        for name, client in ours.clients.items():
            assert set(client.get_many(keys)) == {key for key in keys if ours.hasher.get_node(key) == name}
        assert ours.hasher.get_node(b"user:7") == ours.hasher.get_node("user:7")
    theirs.disconnect_all()


def check_libmemcached(servers: list[str]) -> None:
    """Each key is on libmemcached's server; when a server goes the others keep their keys."""
    theirs = pylibmc.Client(servers, behaviors={"ketama_weighted": True})
    keys = KEYS[:500]
    theirs.set_multi({key: b"value" for key in keys})
    theirs.disconnect_all()
    with ClusterClient(servers, hasher="ketama", **OPTIONS) as ours:
        for name, client in ours.clients.items():
            assert set(client.get_many(keys)) == {key for key in keys if ours.hasher.get_node(key) == name}
            assert client.get_many(keys)
        nodes = [ours.hasher.get_node(key) for key in keys]
        gone = next(iter(ours.clients))
        ours.remove_server(servers[0])
        for key, node in zip(keys, nodes, strict=True):
            assert node == gone or ours.hasher.get_node(key) == node
        ours.remove_server(servers[1])
        assert ours.hasher.get_node("key") is None


def test_libmemcached_leaves_the_usual_port_out(memcached_server: ServerFactory) -> None:
    # The usual port is free at these unused addresses of this host.
    hosts = [f"127.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}.{last}" for last in (1, 2)]
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(GatedRelay(memcached_server(), Gate(1), (host, 11211)))
        check_libmemcached(hosts)


def test_libmemcached_with_unix_sockets(memcached_server: ServerFactory, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        memcached_server(path=path)
    check_libmemcached(paths)

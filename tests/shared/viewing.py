"""How many items the daemon keeps for views, and whether a view is one of them."""

from __future__ import annotations

from servers import Server

from rmemcached.client import Client, PinnedMemory

TIMEOUT = 20.0


def views(server: Server) -> tuple[int, int]:
    """How many items the daemon keeps for views, and how many views it has refused. The question goes over TCP."""
    with Client(server.address, transport="tcp", timeout=TIMEOUT) as plain:
        found = plain.stats("rdma")
    return found[b"rdma_views"], found[b"rdma_refused_views"]


def is_pinned(view: memoryview) -> bool:
    return isinstance(view.obj, PinnedMemory) and view.obj.pinned

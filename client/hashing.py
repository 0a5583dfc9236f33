"""The hashers of a ClusterClient: they choose each key's server.

A hasher has ``add_node(name)``, ``remove_node(name)`` and ``get_node(key)``. Its nodes are servers by name:
"host:port", or the path of a UNIX socket.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Any, Protocol

from .api._rendezvous import RendezvousHash
from .transport.arguments import is_integer
from .transport.sockets import DEFAULT_PORT, Server


class Hasher(Protocol):
    """A hasher places keys. Any thread may call get_node, also while another thread adds or removes a node."""

    def add_node(self, node: str, /) -> None: ...
    def remove_node(self, node: str, /) -> None: ...
    def get_node(self, key: Any, /) -> str | None: ...


POINTS = 40
"""Texts that are hashed for a server of average weight. Each gives four points of the circle."""


def node_name(server: Server) -> str:
    """The name of a server's node, as in pymemcache."""
    return server if isinstance(server, str) else f"{server[0]}:{server[1]}"


def short(number: float) -> float:
    """The number in the precision of C's float."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def share_of(weight: int, total: int, nodes: int) -> int:
    """The number of texts hashed for a node, computed as in libmemcached: in floats, rounded down."""
    part = short(short(weight) / short(total))
    points = short(short(short(part * (4 * POINTS)) / 4) * nodes)
    return math.floor(short(points + 1e-10))


def ketama_name(node: str) -> str:
    """A node in libmemcached's form: with the port 0 for a UNIX socket, without the usual port."""
    if node.startswith("/"):
        return f"{node}:0"
    host, _, port = node.rpartition(":")
    return host if port == str(DEFAULT_PORT) else node


class KetamaHash:
    """Consistent hashing that places keys like libmemcached with MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED.

    Keys have the same servers as with pylibmc's ``behaviors={"ketama_weighted": True}`` and PHP's
    Memcached::OPT_LIBKETAMA_COMPATIBLE, if the servers have the same names in both programs. The key is hashed without
    its prefix. The library uhashring makes the circle.

    Args:
        weights: {name of the node: its weight}, integers from 1 up; a node of weight 2 gets twice as many keys as a
            node of weight 1. 1 for nodes without an entry.

    Thread-safe. Raises ImportError without uhashring, and ValueError for a wrong weight.
    """

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        try:
            from uhashring import HashRing
        except ImportError:
            raise ImportError(
                "hasher='ketama' needs the library uhashring: pip install 'rmemcached[cluster]'"
            ) from None
        self._make_ring: Callable[..., Any] = HashRing
        self.weights = dict(weights or {})
        for node, weight in self.weights.items():
            if not is_integer(weight) or weight < 1:
                raise ValueError(f"the weight of {node} must be an integer from 1 up, not {weight!r}")
        self.nodes: tuple[str, ...] = ()
        self._circle: tuple[list[int], list[str]] = ([], [])

    def add_node(self, node: str) -> None:
        """Adds a node by its name, unless present."""
        if node not in self.nodes:
            self._place((*self.nodes, node))

    def remove_node(self, node: str) -> None:
        """Removes a node. Raises ValueError for an unknown node."""
        if node not in self.nodes:
            raise ValueError(f"No such node {node} to remove")
        self._place(tuple(one for one in self.nodes if one != node))

    def _place(self, nodes: tuple[str, ...]) -> None:
        weights = [self.weights.get(node, 1) for node in nodes]
        shares = {
            ketama_name(node): {"vnodes": share_of(weight, sum(weights), len(nodes)), "weight": 1}
            for node, weight in zip(nodes, weights, strict=True)
        }
        names = {ketama_name(node): node for node in nodes}
        points = self._make_ring(nodes=shares, hash_fn="ketama").get_points() if nodes else []
        self._circle = ([point for point, _ in points], [names[name] for _, name in points])
        self.nodes = nodes

    def get_node(self, key: str | bytes) -> str | None:
        """Returns the name of the node of a key, or None when there is no node."""
        points, names = self._circle
        if not points:
            return None
        text = key if isinstance(key, bytes) else str(key).encode()
        value = int.from_bytes(md5(text, usedforsecurity=False).digest()[:4], "little")
        place = bisect_left(points, value)
        return names[place if place < len(points) else 0]


HASHERS: dict[str, Callable[[], Hasher]] = {"rendezvous": RendezvousHash, "ketama": KetamaHash}
"""The hashers that have a name."""


def make_hasher(hasher: str | Callable[[], Hasher], weights: Mapping[str, int]) -> Hasher:
    """The hasher of this name, or made by this class or function. Raises ValueError, ImportError."""
    if weights and hasher not in ("ketama", KetamaHash):
        raise ValueError("weights are for hasher='ketama'")
    if hasher == "ketama":
        return KetamaHash(weights)
    if callable(hasher):
        return KetamaHash(weights) if hasher is KetamaHash else hasher()
    if hasher not in HASHERS:
        raise ValueError(f"hasher must be one of {', '.join(HASHERS)}, or a class with get_node, not {hasher!r}")
    return HASHERS[hasher]()

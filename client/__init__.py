"""The Python client of rmemcached: pymemcache's methods, over RDMA where client and server have RDMA.

>>> from rmemcached.client import Client
>>> with Client("127.0.0.1", 11211) as client:
...     client.set("key", b"value")
...     client.get("key")
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from rmemcached import import_error

try:
    from .api._client import Client
    from .api._pipeline import Pipeline
    from .api._views import PinnedMemory
    from .transport._buffers import Buffer
    from .transport._gathered import Gathered
except ModuleNotFoundError as error:
    raise import_error(error) from None
from .api.cluster import ClusterClient
from .exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    TooManyConnections,
    TransportRefused,
    TransportUnavailable,
)
from .transport.sockets import KeepaliveOpts
from .wire.meta import MetaItem, MetaNumber, MetaResult

if TYPE_CHECKING:
    from .api._async import AsyncClient
    from .api.async_cluster import AsyncClusterClient

__all__ = [
    "AsyncClient",
    "AsyncClusterClient",
    "Buffer",
    "Client",
    "ClusterClient",
    "Gathered",
    "KeepaliveOpts",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "MetaItem",
    "MetaNumber",
    "MetaResult",
    "PinnedMemory",
    "Pipeline",
    "TooManyConnections",
    "TransportRefused",
    "TransportUnavailable",
]


# asyncio takes longer to import than all the rest, so these classes are imported when first used.
_LATER = {"AsyncClient": ".api._async", "AsyncClusterClient": ".api.async_cluster"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_LATER[name], __name__), name)
    globals()[name] = found
    return found


# Modules named by pickles of 0.1.0, and the present places of their classes and functions.
_MOVED = {
    "_async": ".api._async",
    "_client": ".api._client",
    "_rendezvous": ".api._rendezvous",
    "async_cluster": ".api.async_cluster",
    "cluster": ".api.cluster",
    "discovery": ".api.discovery",
    "meta": ".wire.meta",
    "sockets": ".transport.sockets",
}


def _moved(name: str, place: str) -> ModuleType:
    """Returns a module for an old name. The first use of an attribute imports the module at the present place."""

    def find(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
        found: object = getattr(import_module(place, __name__), attribute)
        return found

    module = ModuleType(f"{__name__}.{name}")
    vars(module)["__getattr__"] = find
    return module


for _name, _place in _MOVED.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _moved(_name, _place)

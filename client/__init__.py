"""The Python client of rmemcached: pymemcache's methods, over RDMA where both ends have it.

>>> from rmemcached.client import Client
>>> with Client("127.0.0.1", 11211) as client:
...     client.set("key", b"value")
...     client.get("key")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rmemcached import import_error

try:
    from ._buffers import Buffer
    from ._client import Client
    from ._gathered import Gathered
    from ._pipeline import Pipeline
    from ._views import PinnedMemory
except ModuleNotFoundError as error:
    raise import_error(error) from None
from .cluster import ClusterClient
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
from .meta import MetaItem, MetaNumber, MetaResult
from .sockets import KeepaliveOpts

if TYPE_CHECKING:
    from ._async import AsyncClient
    from .async_cluster import AsyncClusterClient

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


# asyncio takes longer to import than all the rest.
_LATER = {"AsyncClient": "._async", "AsyncClusterClient": ".async_cluster"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_LATER[name], __name__), name)
    globals()[name] = found
    return found

"""The Python client of rmemcached: pymemcache's methods, over RDMA where both ends have it.

>>> from rmemcached.client import Client
>>> with Client("127.0.0.1", 11211) as client:
...     client.set("key", b"value")
...     client.get("key")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmemcached import import_error

try:
    from ._buffers import Buffer
    from ._client import Client
    from ._gathered import Gathered
    from ._pipeline import Pipeline
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

__all__ = [
    "AsyncClient",
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
    "Pipeline",
    "TooManyConnections",
    "TransportRefused",
    "TransportUnavailable",
]


def __getattr__(name: str) -> object:
    # asyncio takes longer to import than all the rest.
    if name == "AsyncClient":
        from ._async import AsyncClient

        globals()[name] = AsyncClient
        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

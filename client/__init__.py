"""The Python client of rmemcached: pymemcache's methods, over RDMA where both ends have it.

>>> from rmemcached.client import Client
>>> with Client("127.0.0.1", 11211) as client:
...     client.set("key", b"value")
...     client.get("key")
"""

from __future__ import annotations

from ._client import Client
from .exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from .sockets import KeepaliveOpts

__all__ = [
    "Client",
    "KeepaliveOpts",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
]

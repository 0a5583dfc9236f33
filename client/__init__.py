"""The Python client of rmemcached: pymemcache's methods, over RDMA where both ends have it.

>>> from rmemcached.client import Client
>>> with Client("127.0.0.1", 11211) as client:
...     client.set("key", b"value")
...     client.get("key")
"""

from __future__ import annotations

from rmemcached.client._client import Client
from rmemcached.client.connection import KeepaliveOpts
from rmemcached.client.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

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

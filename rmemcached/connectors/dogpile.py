"""A back end of dogpile.cache: ``make_region().configure("rmemcached", arguments={"url": "127.0.0.1:11211"})``.

Needs ``pip install 'rmemcached[dogpile]'``. The name is an entry point of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dogpile.cache.backends.memcached import GenericMemcachedBackend

from rmemcached.client.serde import pickle_serde

from ._clients import expiry, fitting_key, key_room, make_client

DEFAULTS = {"allow_unicode_keys": True, "default_noreply": False, "serde": pickle_serde}
OURS = ("url", "distributed_lock", "lock_timeout", "memcached_expire_time")


class RMemcachedBackend(GenericMemcachedBackend):
    """dogpile.cache on rmemcached.

    arguments: "url" names the servers: "host:port", a URL, or a list. "distributed_lock", "lock_timeout" and
    "memcached_expire_time" (seconds) mean the same as in dogpile's memcached back ends; the rest are arguments of
    rmemcached.client.Client, or ClusterClient. Raises ValueError.

    All threads share one client. A region without a key_mangler hashes the keys refused by memcached.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self._expire_time = arguments.get("memcached_expire_time")
        options = {name: value for name, value in arguments.items() if name not in OURS}
        self._client: Any = make_client(arguments["url"], options, DEFAULTS)
        # dogpile puts this word before the key of a lock, so keys have less room.
        self._room = key_room(self._client) - len("_lock")

    def _imports(self) -> None:
        """Imports nothing: this module's imports are enough."""

    @property
    def client(self) -> Any:
        """The client, of all threads."""
        return self._client

    def key_mangler(self, key: str) -> str:
        """Returns the key sent by a region without a key_mangler."""
        return fitting_key(key, self._room)

    def set(self, key: str, value: Any) -> None:
        """Stores a value. Raises OSError, MemcacheError."""
        self._client.set(key, value, expire=expiry(self._expire_time))

    def set_multi(self, mapping: Mapping[str, Any]) -> None:
        """Stores several values. Raises OSError, MemcacheError."""
        self._client.set_multi(dict(mapping), expire=expiry(self._expire_time))

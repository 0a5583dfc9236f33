"""A result back end of Celery, by URL: ``result_backend = "rmemcached://127.0.0.1:11211"``.

The names are entry points of this package. Needs ``pip install 'rmemcached[celery]'``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.backends.base import KeyValueStoreBackend
from kombu.utils.encoding import bytes_to_str

from rmemcached.client import MemcacheError, MemcacheUnexpectedCloseError
from rmemcached.client.urls import shown

from ._clients import expiry, make_client

# With noreply, a failed store would lose the result silently. So the worker waits for the server's answer, for a while.
DEFAULTS = {"default_noreply": False, "connect_timeout": 5.0, "timeout": 5.0}
SCHEME = "rmemcached"


def servers_of(url: str) -> list[str]:
    """Returns the servers of a result_backend, as URLs of a Client. Raises ValueError.

    "rmemcached://host:port" leaves the transport to the client; "rmemcached+shm://host:port", and all other schemes
    of Client, name the transport. Semicolons separate several servers.
    """
    scheme, _, places = url.removeprefix(f"{SCHEME}+").partition("://")
    scheme = "memcached" if scheme == SCHEME else scheme
    found = [f"{scheme}://{place}" for place in places.split(";") if place.strip("/")]
    if not found:
        raise ValueError(f"{shown(url)}: it names no server, as {SCHEME}://127.0.0.1:11211 does")
    return found


class RMemcachedBackend(KeyValueStoreBackend):
    """Celery's results on rmemcached.

    The URL has the options of a Client's URL, and the setting cache_backend_options has arguments of Client or
    ClusterClient. result_expires and result_chord_expires may be longer than 30 days. A failure to store a result
    raises OSError or MemcacheError; result_backend_always_retry tries again after a failure to reach the server.
    """

    key_t = staticmethod(bytes_to_str)
    supports_autoexpire = True
    supports_native_join = True
    implements_incr = True

    def __init__(self, app: Any, expires: Any = None, url: str | None = None, **options: Any) -> None:
        super().__init__(app, url=url, **options)
        self.url = url or f"{SCHEME}://127.0.0.1:11211"
        self.expires = self.prepare_expires(expires, type=int)
        servers = servers_of(self.url)
        self.client: Any = make_client(servers, app.conf.cache_backend_options or {}, DEFAULTS)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Returns whether the server was unreachable, or has ended the connection."""
        return isinstance(exc, (OSError, MemcacheUnexpectedCloseError))

    def get(self, key: str) -> bytes | None:
        """Returns the value, or None."""
        value: bytes | None = self.client.get(key)
        return value

    def mget(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Returns {key: value} without the misses."""
        found: dict[str, bytes] = self.client.get_many(keys)
        return found

    def _store(self, key: str, value: Any, seconds: float | None) -> None:
        if not self.client.set(key, value, expire=expiry(seconds)):
            raise MemcacheError(f"the value of {key} was not stored: its server is not asked at present")

    def set(self, key: str, value: Any) -> None:
        """Stores a value for result_expires seconds. Raises OSError, MemcacheError."""
        self._store(key, value, self.expires)

    def delete(self, key: str) -> bool:
        """Removes a value. Returns whether the key had a value."""
        return bool(self.client.delete(key))

    def incr(self, key: str) -> int:
        """Adds 1. Returns the new number. Raises MemcacheError for a lost counter: its chord would wait for ever."""
        number: int | None = self.client.incr(key, 1)
        if not number:
            raise MemcacheError(f"the counter {key} has gone: it was evicted, has expired, or the server was restarted")
        return number

    def expire(self, key: str, value: Any) -> bool:
        """Sets the lifetime of a value, in seconds from now."""
        return bool(self.client.touch(key, expire=expiry(value)))

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        """Celery's step before a chord. Begins the chord's counter: memcached counts only from a stored number."""
        self._store(self.get_key_for_chord(header_result_args[0]), b"0", self.chord_expires)
        return super()._apply_chord_incr(header_result_args, body, **kwargs)

    def as_uri(self, include_password: bool = True) -> str:
        """Returns the URL, with or without its password."""
        if include_password:
            return self.url
        scheme, _, _ = self.url.partition("://")
        if not scheme.startswith(SCHEME):
            # Celery has removed this part of the scheme.
            scheme = f"{SCHEME}+{scheme}"
        places = (shown(server).partition("://")[2] for server in servers_of(self.url))
        return f"{scheme}://{';'.join(places)}"

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "expires": self.expires, "url": self.url})

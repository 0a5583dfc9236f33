"""A cache of cachelib (Flask-Session, ...): ``RMemcachedCache("127.0.0.1:11211")``.

Needs ``pip install 'rmemcached[flask]'``. Flask-Caching has a module of its own, flask.py.
"""

from __future__ import annotations

from typing import Any

from cachelib.base import BaseCache

from rmemcached.client import MemcacheClientError
from rmemcached.client.serde import pickle_serde

from ._clients import expiry, fitting_key, key_room, make_client

DEFAULTS = {"allow_unicode_keys": True, "default_noreply": False, "serde": pickle_serde}


class RMemcachedCache(BaseCache):
    """cachelib's methods on rmemcached.

    servers: "host:port", a URL, a text with commas between several servers, or a list. default_timeout: seconds, 0: for
    ever. key_prefix: before each key. options: the arguments of rmemcached.client.Client, or ClusterClient. Raises
    ValueError.

    Keys refused by memcached are hashed. A call to a server that is down raises OSError, unless the option ignore_exc
    is set. `has` tells a stored None from a miss. `clear` removes all items of the servers, also of other programs.
    Thread-safe; a forked child has connections of its own.
    """

    def __init__(
        self,
        servers: Any = "127.0.0.1:11211",
        default_timeout: Any = 300,
        key_prefix: str | None = None,
        ignore_delete_many_errors: bool = True,
        **options: Any,
    ) -> None:
        BaseCache.__init__(self, default_timeout, ignore_delete_many_errors=ignore_delete_many_errors)
        self.key_prefix = key_prefix or ""
        self._client: Any = make_client(servers, options, DEFAULTS)
        self._room = key_room(self._client) - len(self.key_prefix.encode())

    def _fit(self, key: str) -> str:
        return self.key_prefix + fitting_key(key, self._room)

    def _expiry(self, timeout: Any) -> int:
        return expiry(self._normalize_timeout(timeout))

    def get(self, key: str) -> Any:
        """Returns the value, or None."""
        return self._client.get(self._fit(key))

    def get_many(self, *keys: str) -> list[Any]:
        """Returns the values, with None for each miss."""
        fits = [self._fit(key) for key in keys]
        found = self._client.get_many(fits)
        return [found.get(fit) for fit in fits]

    def has(self, key: str) -> bool:
        """Returns whether there is a value, without fetching the value."""
        return bool(self._client.exists(self._fit(key)))

    def set(self, key: str, value: Any, timeout: Any = None) -> bool | None:
        """Stores a value for `timeout` seconds: None: default_timeout, 0: for ever."""
        return bool(self._client.set(self._fit(key), value, self._expiry(timeout)))

    def add(self, key: str, value: Any, timeout: Any = None) -> bool:
        """Stores a value if the key has none. Returns whether the value was stored."""
        return bool(self._client.add(self._fit(key), value, self._expiry(timeout)))

    def set_many(self, mapping: dict[str, Any], timeout: Any = None) -> list[Any]:
        """Stores several values. Returns the keys of the stored values."""
        names = {self._fit(key): key for key in mapping}
        values = {fit: mapping[key] for fit, key in names.items()}
        failed = set(self._client.set_many(values, self._expiry(timeout)))
        return [key for fit, key in names.items() if fit not in failed]

    def delete(self, key: str) -> bool:
        """Removes a value. Returns whether the key had a value."""
        return bool(self._client.delete(self._fit(key)))

    def delete_many(self, *keys: str) -> list[Any]:
        """Removes several values in one round trip. Returns the keys: each is without a value now. Raises like get."""
        self._client.delete_many([self._fit(key) for key in keys])
        return list(keys)

    def clear(self) -> bool:
        """Removes all items of the servers, also of other programs."""
        return self._client.flush_all() is not False

    def inc(self, key: str, delta: int = 1) -> int | None:
        """Adds to a number, or stores `delta` if there is none. Returns the new number. Raises TypeError."""
        fit = self._fit(key)
        if delta >= 0:
            try:
                number: int | None = self._client.incr(fit, delta)
            except MemcacheClientError:
                # The value may be a number below 0, which memcached cannot count.
                return self._change(key, delta)
            if number is not None and number is not False:
                return number
        return self._change(key, delta)

    def dec(self, key: str, delta: int = 1) -> int | None:
        """Subtracts from a number, or stores -`delta` if there is none. Returns the new number. Raises TypeError."""
        return self._change(key, -delta)

    def _change(self, key: str, delta: int) -> int | None:
        """Adds a number of any sign, by `gets` and `cas`."""
        fit, lifetime = self._fit(key), self._expiry(None)
        while True:
            value, cas = self._client.gets(fit)
            if value is None and cas is None:
                number, stored = delta, self._client.add(fit, delta, lifetime)
                if not stored and not self._client.exists(fit):
                    # With ignore_exc an unreachable server looks like this.
                    return None
            else:
                if not isinstance(value, int):
                    raise TypeError(f"the value of {key!r} is no number but {type(value).__name__}")
                number = value + delta
                stored = self._client.cas(fit, number, cas, lifetime)
            if stored:
                return number

    def close(self) -> None:
        """Closes the connections; the next command makes new ones."""
        self._client.close()

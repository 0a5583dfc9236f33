"""A cache of aiocache: ``RMemcachedCache(servers="127.0.0.1:11211")``, or by its path in ``caches.set_config``.

Needs ``pip install 'rmemcached[aiocache]'``.
"""

from __future__ import annotations

from typing import Any

from aiocache.base import BaseCache
from aiocache.serializers import JsonSerializer

from rmemcached.client import MemcacheClientError

from ._clients import expiry, fitting_key, key_room, make_async_client

DEFAULTS = {"allow_unicode_keys": True, "default_noreply": False}
OF_AIOCACHE = ("plugins", "namespace", "key_builder", "timeout", "ttl")


def as_bytes(key: str, value: Any) -> bytes:
    """Returns a serializer's result as bytes. Raises TypeError."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the serializer has made {type(value).__name__} of the value for {key!r}: it must be str or bytes")


class RMemcachedCache(BaseCache):
    """aiocache's cache on rmemcached, for asyncio.

    servers: "host:port", a URL, a text with commas between several servers, or a list; endpoint and port name a server
    in aiocache's words. serializer (JsonSerializer), plugins, namespace, key_builder, timeout and ttl are aiocache's;
    timeout is for a whole operation. All other arguments are rmemcached.client.AsyncClient's, or AsyncClusterClient's.
    Raises ValueError.

    A ttl of None or 0 is for ever. Keys refused by memcached are hashed. `clear` removes all items of the servers, and
    with a namespace raises ValueError. For one event loop at a time, as an AsyncClient is.
    """

    NAME = "rmemcached"

    def __init__(
        self,
        servers: Any = None,
        endpoint: str = "127.0.0.1",
        port: int = 11211,
        serializer: Any = None,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name) for name in OF_AIOCACHE if name in options}
        super().__init__(serializer=serializer or JsonSerializer(), **own)
        self.client: Any = make_async_client(servers or [(endpoint, port)], options, DEFAULTS)
        self._room = key_room(self.client)

    def _build_key(self, key: Any, namespace: Any = None) -> str:
        return fitting_key(str(super()._build_key(key, namespace=namespace)), self._room)

    # BaseCache's public methods call the methods below.
    async def _get(self, key: str, encoding: str | None = "utf-8", _conn: Any = None) -> Any:
        value = await self.client.get(key)
        return value if encoding is None or value is None else value.decode(encoding)

    async def _gets(self, key: str, encoding: str | None = "utf-8", _conn: Any = None) -> Any:
        _, token = await self.client.gets(key)
        return token

    async def _multi_get(self, keys: list[str], encoding: str | None = "utf-8", _conn: Any = None) -> list[Any]:
        found = await self.client.get_many(keys)
        values = [found.get(key) for key in keys]
        return [value if encoding is None or value is None else value.decode(encoding) for value in values]

    async def _set(
        self, key: str, value: Any, ttl: float | None = None, _cas_token: Any = None, _conn: Any = None
    ) -> bool:
        data = as_bytes(key, value)
        if _cas_token is not None:
            return bool(await self.client.cas(key, data, _cas_token, expire=expiry(ttl)))
        return bool(await self.client.set(key, data, expire=expiry(ttl)))

    async def _multi_set(self, pairs: list[tuple[str, Any]], ttl: float | None = None, _conn: Any = None) -> bool:
        values = {key: as_bytes(key, value) for key, value in pairs}
        return not await self.client.set_many(values, expire=expiry(ttl))

    async def _add(self, key: str, value: Any, ttl: float | None = None, _conn: Any = None) -> bool:
        if not await self.client.add(key, as_bytes(key, value), expire=expiry(ttl)):
            raise ValueError(f"Key {key} already exists, use .set to update the value")
        return True

    async def _exists(self, key: str, _conn: Any = None) -> bool:
        return bool(await self.client.exists(key))

    async def _increment(self, key: str, delta: int, _conn: Any = None) -> int:
        try:
            if delta < 0:
                number = await self.client.decr(key, -delta)
                number = None if number is False else number
            else:
                number = (await self.client.meta_arithmetic(key, delta, initial=delta)).value
            if number is None and await self.client.add(key, b"%d" % delta):
                return delta
        except MemcacheClientError as error:
            raise TypeError(f"the value of {key!r} cannot be counted: {error}") from None
        if number is not None:
            return int(number)
        # Another caller has added the key meanwhile; or, with ignore_exc, nobody answers.
        return await self._increment(key, delta) if await self.client.exists(key) else -1

    async def _expire(self, key: str, ttl: float | None, _conn: Any = None) -> bool:
        return bool(await self.client.touch(key, expiry(ttl)))

    async def _delete(self, key: str, _conn: Any = None) -> int:
        return int(await self.client.delete(key))

    async def _clear(self, namespace: str | None = None, _conn: Any = None) -> bool:
        if namespace:
            raise ValueError("memcached cannot clear a namespace: clear() removes all items of the servers")
        await self.client.flush_all()
        return True

    async def _raw(
        self, command: str, *args: Any, encoding: str | None = None, _conn: Any = None, **kwargs: Any
    ) -> Any:
        return await getattr(self.client, command)(*args, **kwargs)

    async def _redlock_release(self, key: str, value: Any) -> int:
        # A caller may delete its own lock only: after its lease another caller may have taken the lock.
        found, token = await self.client.gets(key)
        if found != as_bytes(key, value):
            return 0
        return int(bool(await self.client.meta_delete(key, cas=token)))

    async def _close(self, *args: Any, _conn: Any = None, **kwargs: Any) -> None:
        await self.client.close()

    def __repr__(self) -> str:
        return f"RMemcachedCache ({self.client!r})"

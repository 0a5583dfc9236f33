"""The meta commands of ClusterClient and AsyncClusterClient: each goes to the server of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..wire.meta import MetaItem, MetaNumber, MetaResult
from . import leases

_Key = bytes | str
# The keys of these methods can be any bytes.
META = frozenset(
    (
        "meta_get",
        "meta_set",
        "meta_delete",
        "meta_arithmetic",
        "meta_debug",
        "exists",
        "ttl",
        "last_access",
        "invalidate",
    )
)
ABSENT = MetaResult("not found")
NO_NUMBER = MetaNumber("not found")


class ClusterMeta:
    """Client's methods. A key whose server has failed gets Client's answer for a missing item."""

    def _run(self, method: str, key: _Key, default: Any, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def meta_get(self, key: _Key, **options: Any) -> MetaItem | None:
        """As `Client.meta_get`."""
        return self._run("meta_get", key, None, **options)

    def meta_set(self, key: _Key, value: Any, **options: Any) -> MetaResult:
        """As `Client.meta_set`."""
        return self._run("meta_set", key, ABSENT, value, **options)

    def meta_delete(self, key: _Key, **options: Any) -> MetaResult:
        """As `Client.meta_delete`."""
        return self._run("meta_delete", key, ABSENT, **options)

    def meta_arithmetic(self, key: _Key, delta: int = 1, **options: Any) -> MetaNumber:
        """As `Client.meta_arithmetic`."""
        return self._run("meta_arithmetic", key, NO_NUMBER, delta, **options)

    def meta_debug(self, key: _Key) -> dict[str, Any] | None:
        """As `Client.meta_debug`."""
        return self._run("meta_debug", key, None)

    def exists(self, key: _Key) -> bool:
        """As `Client.exists`."""
        return self._run("exists", key, False)

    def ttl(self, key: _Key, default: Any = None) -> Any:
        """As `Client.ttl`."""
        return self._run("ttl", key, default, default)

    def last_access(self, key: _Key, default: Any = None) -> Any:
        """As `Client.last_access`."""
        return self._run("last_access", key, default, default)

    def invalidate(self, key: _Key, expire: int = 30) -> bool:
        """As `Client.invalidate`."""
        return self._run("invalidate", key, False, expire)

    def get_or_set(
        self,
        key: _Key,
        compute: Callable[[], Any],
        expire: int = 0,
        *,
        lease: int = 30,
        wait: float | None = None,
        refresh: int | None = None,
        stale: bool = True,
    ) -> Any:
        """As `Client.get_or_set`. Without a server for the key the call computes, and does not store."""
        return leases.drive(self, compute, leases.steps(key, expire, lease, wait, refresh, stale))


class AsyncClusterMeta:
    """AsyncClient's methods. A key whose server has failed gets AsyncClient's answer for a missing item."""

    async def _run(self, method: str, key: _Key, default: Any, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def meta_get(self, key: _Key, **options: Any) -> MetaItem | None:
        """As `Client.meta_get`."""
        return await self._run("meta_get", key, None, **options)

    async def meta_set(self, key: _Key, value: Any, **options: Any) -> MetaResult:
        """As `Client.meta_set`."""
        return await self._run("meta_set", key, ABSENT, value, **options)

    async def meta_delete(self, key: _Key, **options: Any) -> MetaResult:
        """As `Client.meta_delete`."""
        return await self._run("meta_delete", key, ABSENT, **options)

    async def meta_arithmetic(self, key: _Key, delta: int = 1, **options: Any) -> MetaNumber:
        """As `Client.meta_arithmetic`."""
        return await self._run("meta_arithmetic", key, NO_NUMBER, delta, **options)

    async def meta_debug(self, key: _Key) -> dict[str, Any] | None:
        """As `Client.meta_debug`."""
        return await self._run("meta_debug", key, None)

    async def exists(self, key: _Key) -> bool:
        """As `Client.exists`."""
        return await self._run("exists", key, False)

    async def ttl(self, key: _Key, default: Any = None) -> Any:
        """As `Client.ttl`."""
        return await self._run("ttl", key, default, default)

    async def last_access(self, key: _Key, default: Any = None) -> Any:
        """As `Client.last_access`."""
        return await self._run("last_access", key, default, default)

    async def invalidate(self, key: _Key, expire: int = 30) -> bool:
        """As `Client.invalidate`."""
        return await self._run("invalidate", key, False, expire)

    async def get_or_set(
        self,
        key: _Key,
        compute: Callable[[], Any],
        expire: int = 0,
        *,
        lease: int = 30,
        wait: float | None = None,
        refresh: int | None = None,
        stale: bool = True,
    ) -> Any:
        """As `AsyncClient.get_or_set`. Without a server for the key the call computes, and does not store."""
        return await leases.drive_async(self, compute, leases.steps(key, expire, lease, wait, refresh, stale))

"""A client of several servers for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from ._async import AsyncClient
from .cluster_meta import AsyncClusterMeta
from .discovery import configured_servers, dns_servers
from .servers import Servers, logger, outcome

_Key = bytes | str
_K = TypeVar("_K", bytes, str)
_T = TypeVar("_T")
_Cluster = TypeVar("_Cluster", bound="AsyncClusterClient")


async def in_thread(function: Callable[[], _T]) -> _T:
    """The result of a function, called in a thread since it may wait."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


async def close_all(clients: Iterable[AsyncClient]) -> None:
    """Closes all clients, also after an error, or when the task is cancelled. Raises the first exception then."""
    problem: BaseException | None = None
    for client in clients:
        try:
            await client.close()
        except BaseException as error:
            problem = problem or error
    if problem is not None:
        raise problem


async def at_once(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """The results of concurrent calls, or their exceptions. A cancelled at_once cancels all calls."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
    return results


class AsyncClusterClient(Servers[AsyncClient], AsyncClusterMeta):
    """`ClusterClient` for asyncio: its arguments, and its methods, awaitable. Only add_server is no coroutine.

    >>> async with AsyncClusterClient(["10.0.0.1", "10.0.0.2"]) as cluster:
    ...     await cluster.set("key", b"value")
    ...     await cluster.get_many(["key", "other"])

    Each server has an AsyncClient. socket_module cannot be given. from_dns and from_config look servers up in a thread;
    a function as servers is called by the constructor, and by `refresh` in a thread.

    Calls can be cancelled, like an AsyncClient's. Not thread-safe, and for one event loop at a time.
    """

    client_class = AsyncClient

    @classmethod
    async def from_dns(cls: type[_Cluster], name: str, port: int = 11211, **options: Any) -> _Cluster:
        """As `ClusterClient.from_dns`."""
        return await in_thread(partial(cls, partial(dns_servers, name, port), **options))

    @classmethod
    async def from_config(
        cls: type[_Cluster], endpoint: Any, *, use_vpc_ip_address: bool = True, **options: Any
    ) -> _Cluster:
        """As `ClusterClient.from_config`."""
        found = partial(configured_servers, endpoint, options, use_vpc_ip_address)
        return await in_thread(partial(cls, found, **options))

    # --- servers ---

    async def remove_server(self, server: Any, port: int | None = None) -> None:
        """As `ClusterClient.remove_server`."""
        await self._remove(self._name_of(server, port)[0]).close()

    async def refresh(self) -> bool:
        """As `ClusterClient.refresh`."""
        differs, removed = self._replace(await in_thread(self._lister()))
        await close_all(removed)
        return differs

    def _refresh_soon(self) -> None:
        # The loop has only a weak reference to the task: without self._refreshing it could vanish.
        loop = asyncio.get_running_loop()
        if self._refreshing is None or self._refreshing.done() or self._refreshing.get_loop() is not loop:
            self._refreshing = loop.create_task(self._refresh_quietly())

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except Exception as error:
            logger.warning("the list of servers could not be refreshed: %s", error)

    # --- several keys ---

    async def get_many(self, keys: Iterable[_K], gets: bool = False) -> dict[_K, Any]:
        """As `ClusterClient.get_many`."""
        batches = self._batches(keys)
        calls = [client.gets_many if gets else client.get_many for client in batches.clients]
        results = await at_once(call(names) for call, names in zip(calls, batches.keys, strict=True))
        return self._found(batches, results)

    get_multi = get_many

    async def gets_many(self, keys: Iterable[_K]) -> dict[_K, tuple[Any, bytes]]:
        """As `ClusterClient.gets_many`."""
        return await self.get_many(keys, True)

    gets_multi = gets_many

    async def set_many(
        self, values: Mapping[_K, Any], expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> list[_K]:
        """As `ClusterClient.set_many`."""
        batches = self._batches(values)
        parts = [{key: values[key] for key in keys} for keys in batches.keys]
        # With a bad value nothing is sent to any server, unless exceptions are ignored.
        results = [
            outcome(client._stores, part, expire, flags) for client, part in zip(batches.clients, parts, strict=True)
        ]
        problems = [result for result in results if isinstance(result, Exception)]
        if self.ignore_exc or not problems:
            ready = [place for place, result in enumerate(results) if not isinstance(result, Exception)]
            stored = await at_once(batches.clients[place]._store_many(results[place], noreply) for place in ready)
            for place, result in zip(ready, stored, strict=True):
                results[place] = result
        return self._not_stored(batches, results)

    set_multi = set_many

    async def delete_many(self, keys: Iterable[_Key], noreply: bool | None = None) -> bool:
        """As `ClusterClient.delete_many`."""
        batches = self._batches(keys)
        results = await at_once(
            client.delete_many(names, noreply) for client, names in zip(batches.clients, batches.keys, strict=True)
        )
        self._settle(batches.names, results)
        return True

    delete_multi = delete_many

    # --- single keys ---

    async def _run(self, method: str, key: _Key, default: Any, *arguments: Any, **options: Any) -> Any:
        found = self._place(method, key)
        if found is None:
            return default
        name, client = found
        try:
            result = await getattr(client, method)(key, *arguments, **options)
        except Exception as error:
            self._has_failed(name, error)
            if not self.ignore_exc:
                raise
            return default
        if self._failures:
            self._failures.pop(name, None)
        return result

    async def get(self, key: _Key, default: Any = None) -> Any:
        """As `ClusterClient.get`, without the argument `copy`."""
        return await self._run("get", key, default, default)

    async def gets(self, key: _Key, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """As `ClusterClient.gets`."""
        found: tuple[Any, Any] = await self._run("gets", key, (default, cas_default), default, cas_default)
        return found

    async def gat(self, key: _Key, expire: int = 0, default: Any = None) -> Any:
        """As `ClusterClient.gat`."""
        return await self._run("gat", key, default, expire, default)

    async def gats(self, key: _Key, expire: int = 0, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """As `ClusterClient.gats`."""
        found: tuple[Any, Any] = await self._run("gats", key, (default, cas_default), expire, default, cas_default)
        return found

    async def set(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool:
        """As `ClusterClient.set`."""
        return bool(await self._run("set", key, False, value, expire, noreply, flags))

    async def add(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool:
        """As `ClusterClient.add`."""
        return bool(await self._run("add", key, False, value, expire, noreply, flags))

    async def replace(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool:
        """As `ClusterClient.replace`."""
        return bool(await self._run("replace", key, False, value, expire, noreply, flags))

    async def append(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool:
        """As `ClusterClient.append`."""
        return bool(await self._run("append", key, False, value, expire, noreply, flags))

    async def prepend(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool:
        """As `ClusterClient.prepend`."""
        return bool(await self._run("prepend", key, False, value, expire, noreply, flags))

    async def cas(
        self,
        key: _Key,
        value: Any,
        cas: int | str | bytes,
        expire: int = 0,
        noreply: bool = False,
        flags: int | None = None,
    ) -> bool | None:
        """As `ClusterClient.cas`."""
        stored: bool | None = await self._run("cas", key, False, value, cas, expire, noreply, flags)
        return stored

    async def incr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None:
        """As `ClusterClient.incr`."""
        number: int | None = await self._run("incr", key, False, value, noreply)
        return number

    async def decr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None:
        """As `ClusterClient.decr`."""
        number: int | None = await self._run("decr", key, False, value, noreply)
        return number

    async def touch(self, key: _Key, expire: int = 0, noreply: bool | None = None) -> bool:
        """As `ClusterClient.touch`."""
        return bool(await self._run("touch", key, False, expire, noreply))

    async def delete(self, key: _Key, noreply: bool | None = None) -> bool:
        """As `ClusterClient.delete`."""
        return bool(await self._run("delete", key, False, noreply))

    # --- all servers ---

    async def _each(self, method: str, *arguments: Any) -> dict[str, Any]:
        """The results of a method at each server that may be asked."""
        self._look_around()
        clients = {name: client for name, client in self.clients.items() if self._admits(name)}
        results = await at_once(getattr(client, method)(*arguments) for client in clients.values())
        self._settle(list(clients), results)
        return {
            name: result for name, result in zip(clients, results, strict=True) if not isinstance(result, Exception)
        }

    async def flush_all(self, delay: int = 0, noreply: bool | None = None) -> None:
        """As `ClusterClient.flush_all`."""
        await self._each("flush_all", delay, noreply)

    async def stats(self, *args: str | bytes) -> dict[str, dict[bytes, Any]]:
        """As `ClusterClient.stats`."""
        return await self._each("stats", *args)

    async def version(self) -> dict[str, bytes]:
        """As `ClusterClient.version`."""
        return await self._each("version")

    async def close(self) -> None:
        """As `ClusterClient.close`."""
        await close_all(list(self.clients.values()))

    async def __aenter__(self: _Cluster) -> _Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

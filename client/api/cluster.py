"""A client of several servers: pymemcache's HashClient, with requests to all servers at once and more methods."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from ._client import Client
from ._fan_out import delete_all, fetch_all, store_all, store_all_quietly
from .cluster_meta import ClusterMeta
from .discovery import configured_servers, dns_servers
from .servers import Servers, logger, outcome

_Key = bytes | str
_K = TypeVar("_K", bytes, str)
_Cluster = TypeVar("_Cluster", bound="ClusterClient")


class ClusterClient(Servers[Client], ClusterMeta):
    """A client of several servers, each with a part of the keys, and with the methods of pymemcache's HashClient.

    >>> with ClusterClient(["10.0.0.1", "10.0.0.2:11212", "shm://127.0.0.1"]) as cluster:
    ...     cluster.set("key", b"value")
    ...     cluster.get_many(["key", "other"])

    Args:
        servers: a list of servers, each as for Client: (host, port), "host:port", a path, a URL. Or a function without
            arguments that returns such a list, for `refresh`.
        hasher: "rendezvous" places keys like pymemcache's HashClient. "ketama" places them like libmemcached
            with KETAMA_WEIGHTED (pylibmc, PHP), and needs uhashring: pip install 'rmemcached[cluster]'. Or a class
            with add_node, remove_node and get_node, as in pymemcache.
        retry_attempts: how often an unreachable server is tried again before it is dead. 0: not at all.
        retry_timeout: seconds between these attempts.
        dead_timeout: seconds until a dead server gets its keys back. Meanwhile the rest of the servers have them.
        ignore_exc: a failed call returns the result of a miss, or False; get_many and gets_many the values of the
            reachable servers.
        use_pooling, max_pool_size, pool_idle_timeout, lock_generator: accepted for programs written for pymemcache,
            and without effect: a Client has a connection for each call under way, keeps it, and notices when the server
            closes it.
        weights: for "ketama": {server: integer}, 1 for servers without an entry.
        refresh_interval: seconds after which a call starts a thread to ask for the list of servers again.
            None: only `refresh` asks again. Needs a function as servers.

    The rest of the arguments is Client's, and so are the methods' results and errors. A server fails by an OSError, for
    example a TimeoutError. Until the next attempt its keys are misses, and nothing is raised for them. When all servers
    are dead a call raises MemcacheError.

    The keys of a call go to all their servers before any answer is awaited. Without ignore_exc the call raises the
    exception of the first failed server, with the server's name, after the answers of all servers.

    With "rendezvous", "key" and b"key" can have different servers, as in pymemcache. Thread-safe; a forked child
    has connections of its own. copy.copy, copy.deepcopy and pickle make a client without connections and failures.
    """

    client_class = Client

    @classmethod
    def from_dns(cls: type[_Cluster], name: str, port: int = 11211, **options: Any) -> _Cluster:
        """Class method: a ClusterClient of all addresses (A and AAAA) of a name; `refresh` looks them up again.

        Keys are placed by these addresses. options: the class's. Raises OSError when the name is not known.
        """
        return cls(partial(dns_servers, name, port), **options)

    @classmethod
    def from_config(cls: type[_Cluster], endpoint: Any, *, use_vpc_ip_address: bool = True, **options: Any) -> _Cluster:
        """Class method: a ClusterClient of the servers listed by a configuration endpoint of AWS ElastiCache; `refresh`
        asks the endpoint again.

        endpoint: as a Client's server. use_vpc_ip_address: the servers' addresses in the VPC are used, as in
        pymemcache; False: their names. options: the class's. Raises the errors of a Client's commands.
        """
        return cls(partial(configured_servers, endpoint, options, use_vpc_ip_address), **options)

    # --- servers ---

    def remove_server(self, server: Any, port: int | None = None) -> None:
        """Removes a server for good, and closes its connections. Raises ValueError for an unknown server."""
        self._remove(self._name_of(server, port)[0]).close()

    def refresh(self) -> bool:
        """Asks for the list of servers again: adds new servers, and removes servers without an entry. Returns whether
        the list has changed.

        Raises the errors of the function, or ValueError without a function, and changes nothing then.
        """
        differs, removed = self._replace(self._lister()())
        for client in removed:
            client.close()
        return differs

    def _refresh_soon(self) -> None:
        with self._lock:
            # One thread at a time: the present refresh may wait for long.
            if self._refreshing is None or not self._refreshing.is_alive():
                thread = threading.Thread(target=self._refresh_quietly, name="rmemcached refresh", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # The process has too many threads, or the interpreter ends.
                    logger.warning("the list of servers could not be refreshed: %s", error)
                else:
                    self._refreshing = thread

    def _refresh_quietly(self) -> None:
        try:
            self.refresh()
        except Exception as error:
            logger.warning("the list of servers could not be refreshed: %s", error)

    # --- several keys ---

    def get_many(self, keys: Iterable[_K], gets: bool = False) -> dict[_K, Any]:
        """Returns {key: value} for the keys with items; gets: the result of `gets_many`. Asks all servers at once."""
        batches = self._batches(keys)
        results = fetch_all(batches.clients, batches.keys, gets)
        return self._found(batches, results)

    get_multi = get_many

    def gets_many(self, keys: Iterable[_K]) -> dict[_K, tuple[Any, bytes]]:
        """Returns {key: (value, cas)} for the keys with items. Asks all servers at once."""
        return self.get_many(keys, True)

    gets_multi = gets_many

    def set_many(
        self, values: Mapping[_K, Any], expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> list[_K]:
        """Stores the values of a dict, at all servers at once. Returns a list of the keys not stored."""
        batches = self._batches(values)
        parts = [{key: values[key] for key in keys} for keys in batches.keys]
        store = store_all_quietly if self._is_quiet(noreply) else store_all
        results = store(batches.clients, parts, expire, flags, self.ignore_exc)
        return self._not_stored(batches, results)

    set_multi = set_many

    def delete_many(self, keys: Iterable[_Key], noreply: bool | None = None) -> bool:
        """Removes the items of the keys, at all servers at once. Returns True, also if keys had no item."""
        batches = self._batches(keys)
        if self._is_quiet(noreply):
            results: list[Any] = []
            for client, part in zip(batches.clients, batches.keys, strict=True):
                results.append(outcome(client.delete_many, part, True))
        else:
            results = delete_all(batches.clients, batches.keys)
        self._settle(batches.names, results)
        return True

    delete_multi = delete_many

    # --- single keys ---

    def _run(self, method: str, key: _Key, default: Any, *arguments: Any, **options: Any) -> Any:
        found = self._place(method, key)
        if found is None:
            return default
        name, client = found
        try:
            result = getattr(client, method)(key, *arguments, **options)
        except Exception as error:
            self._has_failed(name, error)
            if not self.ignore_exc:
                raise
            return default
        if self._failures:
            self._failures.pop(name, None)
        return result

    def get(self, key: _Key, default: Any = None, *, copy: bool = True) -> Any:
        """Returns the value of key, or default when there is no item. copy: as for `Client.get`."""
        if copy:
            return self._run("get", key, default, default)
        return self._run("get", key, default, default, copy=False)

    def gets(self, key: _Key, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """Returns (value, cas) of key, or (default, cas_default) when there is no item. cas: bytes for the method
        `cas`."""
        found: tuple[Any, Any] = self._run("gets", key, (default, cas_default), default, cas_default)
        return found

    def gat(self, key: _Key, expire: int = 0, default: Any = None) -> Any:
        """Returns the result of `get`, and lets the item expire in `expire` seconds (0: never)."""
        return self._run("gat", key, default, expire, default)

    def gats(self, key: _Key, expire: int = 0, default: Any = None, cas_default: Any = None) -> tuple[Any, Any]:
        """Returns the result of `gets`, and lets the item expire in `expire` seconds (0: never)."""
        found: tuple[Any, Any] = self._run("gats", key, (default, cas_default), expire, default, cas_default)
        return found

    def set(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores value under key, for `expire` seconds (0: for ever), with 32 bits of flags. Returns True."""
        stored: bool | None = self._run("set", key, False, value, expire, noreply, flags)
        return stored

    def add(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores value if key has no item. Returns True, or False when there is an item."""
        stored: bool | None = self._run("add", key, False, value, expire, noreply, flags)
        return stored

    def replace(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Stores value if key has an item. Returns True, or False when there is no item."""
        stored: bool | None = self._run("replace", key, False, value, expire, noreply, flags)
        return stored

    def append(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Appends value to the stored value. Returns True, or False when there is no item."""
        stored: bool | None = self._run("append", key, False, value, expire, noreply, flags)
        return stored

    def prepend(
        self, key: _Key, value: Any, expire: int = 0, noreply: bool | None = None, flags: int | None = None
    ) -> bool | None:
        """Puts value before the stored value. Returns True, or False when there is no item."""
        stored: bool | None = self._run("prepend", key, False, value, expire, noreply, flags)
        return stored

    def cas(
        self,
        key: _Key,
        value: Any,
        cas: int | str | bytes,
        expire: int = 0,
        noreply: bool = False,
        flags: int | None = None,
    ) -> bool | None:
        """Stores value if the item's cas is still the given cas.

        Returns True, or False when the item has changed, or None when there is no item.
        """
        stored: bool | None = self._run("cas", key, False, value, cas, expire, noreply, flags)
        return stored

    def incr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None:
        """Adds value to the stored number. Returns the new number, or None when there is no item."""
        number: int | None = self._run("incr", key, False, value, noreply)
        return number

    def decr(self, key: _Key, value: int, noreply: bool | None = False) -> int | None:
        """Subtracts value, down to 0. Returns the new number, or None when there is no item."""
        number: int | None = self._run("decr", key, False, value, noreply)
        return number

    def touch(self, key: _Key, expire: int = 0, noreply: bool | None = None) -> bool:
        """Lets the item of key expire in `expire` seconds (0: never). Returns True, or False when there is none."""
        return bool(self._run("touch", key, False, expire, noreply))

    def delete(self, key: _Key, noreply: bool | None = None) -> bool:
        """Removes the item of key. Returns True, or False when there was none."""
        return bool(self._run("delete", key, False, noreply))

    # --- all servers ---

    def _each(self, method: str, *arguments: Any) -> dict[str, Any]:
        """The results of a method at each server that may be asked, server by server."""
        self._look_around()
        clients = {name: client for name, client in list(self.clients.items()) if self._admits(name)}
        results = [outcome(getattr(client, method), *arguments) for client in clients.values()]
        self._settle(list(clients), results)
        return {
            name: result for name, result in zip(clients, results, strict=True) if not isinstance(result, Exception)
        }

    def flush_all(self, delay: int = 0, noreply: bool | None = None) -> None:
        """Invalidates all items of all servers, in `delay` seconds."""
        self._each("flush_all", delay, noreply)

    def stats(self, *args: str | bytes) -> dict[str, dict[bytes, Any]]:
        """Returns {name of the server: result of `Client.stats`}."""
        return self._each("stats", *args)

    def version(self) -> dict[str, bytes]:
        """Returns {name of the server: its version}."""
        return self._each("version")

    def quit(self) -> None:
        """Sends the command `quit` to the servers, and closes the connections."""
        self._each("quit")

    def close(self) -> None:
        """Closes all connections. May be called any number of times. The next command makes new connections."""
        for client in list(self.clients.values()):
            client.close()

    disconnect_all = close

    def __enter__(self: _Cluster) -> _Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

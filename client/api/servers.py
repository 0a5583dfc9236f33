"""The servers of a ClusterClient or AsyncClusterClient: which server has a key, failed servers, new and removed
servers."""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from ssl import SSLContext
from time import monotonic
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from ..exceptions import MemcacheError
from ..hashing import Hasher, make_hasher, node_name
from ..transport.arguments import check_choices, is_number
from ..transport.sockets import DEFAULT_PORT, Keepalive, Server
from ..urls import is_url, parse_server, shown
from ._client import Client
from ._fan_out import check_key
from .cluster_meta import META
from .discovery import Discovery

logger = logging.getLogger("rmemcached.client")

# Client, or AsyncClient.
_Client = TypeVar("_Client")

# A server's URL may not have these options: they are about keys, values and failures.
OF_THE_CLUSTER = ("key_prefix", "ignore_exc", "default_noreply", "allow_unicode_keys", "encoding")

CLIENT_OPTIONS = (
    *("serde", "serializer", "deserializer", "connect_timeout", "timeout", "no_delay", "socket_module"),
    *("socket_keepalive", "key_prefix", "allow_unicode_keys", "default_noreply", "encoding", "tls_context"),
    *("transport", "spin", "rdma_cm_port", "username", "password", "sasl"),
)
"""The arguments that each server's Client gets."""


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, or the exception raised by it."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def in_list(servers: Iterable[Any]) -> list[Any]:
    """Servers in a list. Raises ValueError for a text, which is a single server, and for other objects than lists."""
    if isinstance(servers, (str, bytes)):
        text = repr(shown(servers) if isinstance(servers, str) and is_url(servers) else servers)
        raise ValueError(f"servers is a list, not {text}: [{text}]")
    if isinstance(servers, Mapping) or not isinstance(servers, Iterable):
        raise ValueError(f"servers is a list, such as ['10.0.0.1', '10.0.0.2:11212'], not {servers!r}")
    found = list(servers)
    if isinstance(servers, tuple) and len(found) == 2 and isinstance(found[0], str) and not isinstance(found[1], str):
        # A single server: (host, port).
        raise ValueError(f"servers is a list, not one server: [{servers!r}]")
    return found


class Failure(NamedTuple):
    """An unreachable server: how often it was tried again, and the time of the last attempt (monotonic)."""

    attempts: int
    when: float


class Batches(NamedTuple, Generic[_Client]):
    """The keys of a call by server, and the keys without a server to ask."""

    names: list[str]
    clients: list[_Client]
    keys: list[list[Any]]
    lost: list[Any]


class Servers(Generic[_Client]):
    """The common base of ClusterClient and AsyncClusterClient: the servers, with a client of each, and their
    failures."""

    client_class: Callable[..., _Client]

    def __init__(
        self,
        servers: Iterable[Any] | Discovery,
        hasher: str | Callable[[], Hasher] = "rendezvous",
        serde: Any = None,
        serializer: Callable[[Any, Any], tuple[Any, int]] | None = None,
        deserializer: Callable[[Any, bytes, int], Any] | None = None,
        connect_timeout: float | None = None,
        timeout: float | None = None,
        no_delay: bool = True,
        socket_module: ModuleType | None = None,
        socket_keepalive: Keepalive | None = None,
        key_prefix: bytes | str = b"",
        max_pool_size: int | None = None,
        pool_idle_timeout: float = 0,
        lock_generator: Callable[[], Any] | None = None,
        retry_attempts: int = 2,
        retry_timeout: float = 1,
        dead_timeout: float = 60,
        use_pooling: bool = False,
        ignore_exc: bool = False,
        allow_unicode_keys: bool = False,
        default_noreply: bool = True,
        encoding: str = "ascii",
        tls_context: SSLContext | None = None,
        *,
        transport: str | None = None,
        spin: float | None = None,
        rdma_cm_port: int | None = None,
        username: str | bytes | None = None,
        password: str | bytes | None = None,
        sasl: bool = False,
        weights: Mapping[Any, int] | None = None,
        refresh_interval: float | None = None,
    ) -> None:
        """Takes the options of the class. Raises ValueError, ImportError, and the errors of a function as servers."""
        given = locals()
        self.default_kwargs = {name: given[name] for name in CLIENT_OPTIONS}
        if not is_number(retry_attempts, -math.inf):
            raise ValueError(f"retry_attempts must be a number, not {retry_attempts!r}")
        for name, number in (("retry_timeout", retry_timeout), ("dead_timeout", dead_timeout)):
            if not is_number(number, 0) and number != math.inf:
                raise ValueError(f"{name} must be seconds from 0 up, not {number!r}")
        self.retry_attempts = retry_attempts
        self.retry_timeout = retry_timeout
        self.dead_timeout = dead_timeout
        self.ignore_exc = ignore_exc
        self.clients: dict[str, _Client] = {}
        self._weights = {node_name(self._server_of(server)): weight for server, weight in (weights or {}).items()}
        self._hasher = hasher
        self._discover = servers if callable(servers) else None
        if refresh_interval is not None and (self._discover is None or not is_number(refresh_interval, 0, True)):
            raise ValueError("refresh_interval is positive seconds, for servers that a function lists")
        self.refresh_interval = refresh_interval
        self._begin()
        # This Client checks the options, even when there are no servers.
        self._prefix = Client(("127.0.0.1", DEFAULT_PORT), ignore_exc=ignore_exc, **self.default_kwargs).key_prefix
        self._unicode_keys = allow_unicode_keys
        for server in in_list(servers() if callable(servers) else servers):
            self.add_server(server)

    # --- servers ---

    def _begin(self) -> None:
        """Makes the parts that are not copied: for the constructor, and for a copy."""
        self._pid = os.getpid()
        self._guard = threading.RLock()
        self._failures: dict[str, Failure] = {}
        self._dead: dict[str, float] = {}
        self._refreshing: Any = None  # the thread or task of the present or last refresh
        self.hasher = make_hasher(self._hasher, self._weights)
        self._refresh_at = None if self.refresh_interval is None else monotonic() + self.refresh_interval
        for name in self.clients:
            self.hasher.add_node(name)

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        for name in ("_guard", "_failures", "_dead", "_refreshing", "hasher"):
            del state[name]
        state["clients"] = {name: copy.copy(client) for name, client in list(self.clients.items())}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def _lock(self) -> threading.RLock:
        # Held while servers change. A forked child makes a new lock: no thread there releases the parent's lock.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._guard = threading.RLock()
        return self._guard

    def _server_of(self, server: Any) -> Server:
        found, options = parse_server(server)
        for name in OF_THE_CLUSTER:
            if name in options:
                raise ValueError(f"{shown(server)}: {name} is the same for all servers: an argument of ClusterClient")
        return found

    def _name_of(self, server: Any, port: int | None) -> tuple[str, Any]:
        """The name of a server given in a form of add_server, and the server in a form for Client."""
        if port is not None:
            if not isinstance(server, str):
                raise TypeError("Server must be a string when passing port.")
            server = (server, port)
        return node_name(self._server_of(server)), server

    def add_server(self, server: Any, port: int | None = None) -> None:
        """Adds a server, in any form of the constructor's list, or as add_server(host, port). A server already present
        stays; if this server is dead, it gets its keys back.

        Raises ValueError for a bad server.
        """
        name, server = self._name_of(server, port)
        with self._lock:
            if name not in self.clients:
                self.clients[name] = self.client_class(server, **self.default_kwargs)
                self.hasher.add_node(name)
            elif self._dead.pop(name, None) is not None:
                self.hasher.add_node(name)

    def _remove(self, name: str) -> _Client:
        """Removes a server. Returns its client, for the caller to close. Raises ValueError for an unknown server."""
        with self._lock:
            if name not in self.clients:
                raise ValueError(f"there is no server {name}")
            if self._dead.pop(name, None) is None:
                self.hasher.remove_node(name)
            self._failures.pop(name, None)
            return self.clients.pop(name)

    def _lister(self) -> Discovery:
        if self._discover is None:
            raise ValueError("there is nothing to ask: servers was a list (from_dns, from_config, or a function)")
        return self._discover

    def _replace(self, found: Iterable[Any]) -> tuple[bool, list[_Client]]:
        """Takes a new list of servers. Returns whether it differs, and the clients for the caller to close."""
        servers = {node_name(self._server_of(server)): server for server in in_list(found)}
        with self._lock:
            gone = [name for name in self.clients if name not in servers]
            new = [name for name in servers if name not in self.clients]
            # If a client cannot be made, nothing changes.
            made = {name: self.client_class(servers[name], **self.default_kwargs) for name in new}
            for name, client in made.items():
                self.clients[name] = client
                self.hasher.add_node(name)
            removed = [self._remove(name) for name in gone]
        if new or gone:
            logger.info("servers: %s new, %s gone", ", ".join(new) or "none", ", ".join(gone) or "none")
        return bool(new or gone), removed

    def _is_time_to_refresh(self) -> bool:
        """Whether the interval is over. Then the next interval begins."""
        if self.refresh_interval is None or self._refresh_at is None:
            return False
        with self._lock:
            if monotonic() < self._refresh_at:
                return False
            self._refresh_at = monotonic() + self.refresh_interval
            return True

    def _refresh_soon(self) -> None:
        """Begins to ask for the list of servers, without waiting for it."""
        raise NotImplementedError

    # --- servers with failures ---

    def _look_around(self) -> None:
        """Before a call: begins a refresh when due, and gives dead servers their keys back."""
        if self._refresh_at is not None and monotonic() >= self._refresh_at and self._is_time_to_refresh():
            self._refresh_soon()
        if self._dead:
            self._revive()

    def _revive(self) -> None:
        with self._lock:
            for name, when in list(self._dead.items()):
                if monotonic() - when > self.dead_timeout:
                    logger.info("%s: has its keys again", name)
                    del self._dead[name]
                    self.hasher.add_node(name)

    def _bury(self, name: str) -> None:
        """Marks a server as dead: the hasher gives its keys to other servers."""
        with self._lock:
            self._failures.pop(name, None)
            if name in self.clients and name not in self._dead:
                logger.warning("%s: is dead: other servers have its keys for %g s", name, self.dead_timeout)
                self._dead[name] = monotonic()
                self.hasher.remove_node(name)

    def _admits(self, name: str) -> bool:
        """Whether a server may be asked now: it has not failed, or may be tried again. Called before each request.

        When the attempts are used up, marks the server as dead, but still returns True: as in HashClient, this call is
        the last call to ask the server.
        """
        failure = self._failures.get(name)
        if failure is None:
            return True
        if failure.attempts < self.retry_attempts:
            return monotonic() - failure.when > self.retry_timeout
        self._bury(name)
        return True

    def _has_failed(self, name: str, error: Exception) -> None:
        # The error of a serde is not the server's.
        if not isinstance(error, OSError) or getattr(error, "of_serde", False):
            return
        with self._lock:
            failure = self._failures.get(name)
            if failure is not None:
                # Calls under way at the time of the failure are no attempts.
                if monotonic() - failure.when > self.retry_timeout:
                    self._failures[name] = Failure(failure.attempts + 1, monotonic())
            elif self.retry_attempts > 0:
                self._failures[name] = Failure(0, monotonic())
            else:
                self._bury(name)

    def _nobody_is_left(self) -> None:
        if not self.ignore_exc:
            raise MemcacheError("All servers seem to be down right now")

    def _place(self, method: str, key: Any) -> tuple[str, _Client] | None:
        """The server for a call with a key, by name, and its client. None: no server may be asked: a miss.

        Raises MemcacheIllegalInputError, TypeError.
        """
        if method not in META:
            check_key(key, self._prefix, self._unicode_keys)
        if self._dead or self._refresh_at is not None:
            self._look_around()
        while True:
            name = self.hasher.get_node(key)
            if name is None:
                self._nobody_is_left()
                return None
            client = self.clients.get(name)
            if client is not None:
                return None if self._failures and not self._admits(name) else (name, client)
            self._has_gone(name, key)

    def _has_gone(self, name: str, key: Any) -> None:
        """Handles a node without a client. Raises ValueError if the hasher is wrong: nobody removed the node
        meanwhile."""
        with self._lock:
            if name not in self.clients and self.hasher.get_node(key) == name:
                raise ValueError(f"the hasher has {key!r} at {name!r}, which is none of the servers that it was given")

    # --- calls ---

    def _batches(self, keys: Iterable[Any]) -> Batches[_Client]:
        self._look_around()
        get_node = self.hasher.get_node
        groups: dict[str | None, list[Any]] = {}
        for key in keys:
            check_key(key, self._prefix, self._unicode_keys)
            name = get_node(key)
            group = groups.get(name)
            if group is None:
                groups[name] = [key]
            else:
                group.append(key)
        batches: Batches[_Client] = Batches([], [], [], [])
        for name, group in groups.items():
            if name is None:
                self._nobody_is_left()
            # A server removed meanwhile has no Client.
            client = self.clients.get(name or "")
            if client is None and name is not None:
                self._has_gone(name, group[0])
            if name is None or client is None or (self._failures and not self._admits(name)):
                batches.lost.extend(group)
            else:
                batches.names.append(name)
                batches.clients.append(client)
                batches.keys.append(group)
        return batches

    def _settle(self, names: list[str], results: list[Any]) -> None:
        """Notes failed servers. Raises the first exception among the results, unless they are ignored."""
        problem: Exception | None = None
        for name, result in zip(names, results, strict=True):
            if not isinstance(result, Exception):
                if self._failures:
                    self._failures.pop(name, None)
                continue
            self._has_failed(name, result)
            if problem is None:
                problem = result
            else:
                problem.add_note(f"{name} has failed as well: {result}")
        if problem is not None and not self.ignore_exc:
            raise problem

    def _found(self, batches: Batches[_Client], results: list[Any]) -> dict[Any, Any]:
        """_settle, and the values of all servers."""
        self._settle(batches.names, results)
        found: dict[Any, Any] = {}
        for result in results:
            if isinstance(result, dict):
                found.update(result)
        return found

    def _not_stored(self, batches: Batches[_Client], results: list[Any]) -> list[Any]:
        """_settle, and the keys not stored."""
        self._settle(batches.names, results)
        failed = list(batches.lost)
        for keys, result in zip(batches.keys, results, strict=True):
            failed += keys if isinstance(result, Exception) else result
        return failed

    def _is_quiet(self, noreply: bool | None) -> bool:
        check_choices(noreply=noreply)
        return bool(self.default_kwargs["default_noreply"] if noreply is None else noreply)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {', '.join(self.clients) or 'without servers'}>"

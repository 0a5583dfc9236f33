"""A cache back end of Django: ``"BACKEND": "rmemcached.connectors.django.RMemcachedCache"``.

LOCATION is a server ("host:port", "unix:/path", a URL such as "shm://127.0.0.1:11211"), a text with commas or
semicolons between several servers, or a list. OPTIONS are the arguments of rmemcached.client.Client, or ClusterClient.
TIMEOUT, KEY_PREFIX, VERSION and KEY_FUNCTION are Django's. Needs ``pip install 'rmemcached[django]'``.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.memcached import BaseMemcachedCache

import rmemcached.client
from rmemcached.client import Client
from rmemcached.client.serde import pickle_serde

from ._clients import LATEST, make_client, server_list

DEFAULTS = {"allow_unicode_keys": True, "default_noreply": False, "serde": pickle_serde}


class DjangoClient(Client):
    """A Client with replaceable methods, for unittest.mock in applications' tests."""


class Shared:
    """The clients of this process, one for each set of servers and options.

    Django makes a back end for each thread (with asyncio: for each task), and a Client serves all threads.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._clients: list[tuple[list[Any], dict[str, Any], Any]] = []

    def client(self, servers: list[Any], options: dict[str, Any]) -> Any:
        """Returns the client of these servers and options. Thread-safe. Raises the errors of make_client."""
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock.
            self._begin()
        with self._lock:
            for known, with_options, client in self._clients:
                if known == servers and with_options == options:
                    return client
            client = make_client(servers, options, DEFAULTS, DjangoClient)
            if not self._clients:
                atexit.register(self.close)
            self._clients.append((servers, dict(options), client))
            return client

    def close(self) -> None:
        """Closes the clients' connections; the next command makes new connections."""
        for _, _, client in self._clients:
            client.close()


shared = Shared()


class RMemcachedCache(BaseMemcachedCache):
    """Django's cache, with rmemcached's client.

    Connections stay open between requests, and all threads share one client. A call to a server that is down raises
    OSError, as with PyMemcacheCache; the option ignore_exc makes such a call a miss. A value too large for the server
    raises MemcacheServerError, and leaves the key without an item.
    """

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server_list(server), params, library=rmemcached.client, value_not_found_exception=KeyError)
        self._class = DjangoClient

    @property
    def _cache(self) -> Any:
        # The client is no attribute: a forked child has clients of its own.
        return shared.client(self._servers, self._options)

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> int:
        """Returns Django's time-out. An end after 2038 is for ever: memcached would take such a time for the past."""
        found: int = super().get_backend_timeout(timeout)
        return found if found <= LATEST else 0

    def close(self, **kwargs: Any) -> None:
        """Does nothing: Django calls `close` at the end of each request, and the connections stay open for the next."""

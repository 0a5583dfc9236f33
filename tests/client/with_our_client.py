"""A plugin of pytest for pymemcache's own tests: Client is ours, alone and in the clients based on Client."""

from __future__ import annotations

import os
import socket
from typing import Any

import pymemcache.client.base
import pymemcache.client.hash

import rmemcached.client

TRANSPORT = os.environ["RMEMCACHED_TEST_TRANSPORT"]


class Client(rmemcached.client.Client):
    """rmemcached's Client over a fixed transport, unless the arguments need TCP."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if options.get("socket_module", socket) is socket:
            options.setdefault("transport", TRANSPORT)
        super().__init__(*arguments, **options)


pymemcache.client.base.Client = Client
pymemcache.client.base.PooledClient.client_class = Client
pymemcache.client.hash.HashClient.client_class = Client

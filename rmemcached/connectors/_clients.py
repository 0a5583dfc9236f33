"""Shared by the connectors: the client for a framework's settings, keys, and expiration times."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmemcached.client import Client, ClusterClient
from rmemcached.client.api.servers import CLIENT_OPTIONS, Servers
from rmemcached.client.urls import SCHEMES, is_url, names_auto, parse_server, shown

if TYPE_CHECKING:
    from rmemcached.client import AsyncClient, AsyncClusterClient

RELATIVE_MOST = 30 * 24 * 3600  # seconds; memcached takes a larger number for a time since 1970
LATEST = 2**31 - 1  # seconds since 1970: a later time wraps around in memcached, and the item would be gone at once
KEY_MAX = 250  # bytes
HASHED = "h2:"

# Bytes forbidden in a key of memcached's text protocol.
UNFIT = re.compile(rb"[\x00-\x20\x7f]")


def expiry(seconds: float | None) -> int:
    """Returns memcached's expiration time for a lifetime in seconds. None, 0 and an end after 2038: for ever. Below 0:
    expired at once. Raises ValueError for NaN."""
    if not seconds:
        return 0
    if seconds < 0:
        return -1
    now = int(time.time())
    if seconds > LATEST - now:
        return 0
    whole = math.ceil(seconds)
    return whole if whole <= RELATIVE_MOST else now + whole


def fitting_key(key: str, room: int) -> str:
    """Returns the key if memcached takes it in `room` bytes, else a key of 67 bytes with its SHA-256.

    A key in the form of such a hash is hashed as well, so nobody can choose a key equal to another key's hash.
    """
    encoded = key.encode("utf-8", "surrogatepass")
    if encoded and len(encoded) <= room and not key.startswith(HASHED) and not UNFIT.search(encoded):
        return key
    return HASHED + hashlib.sha256(encoded).hexdigest()


def server_list(servers: Any) -> list[Any]:
    """Returns a framework's servers as a list: one server, a text with commas or semicolons, or a sequence.

    A tuple of a text and a number is one server: (host, port).
    """
    if isinstance(servers, str):
        return [server.strip() for server in re.split("[;,]", servers) if server.strip()]
    if isinstance(servers, tuple) and len(servers) == 2 and isinstance(servers[1], int):
        return [servers]
    return list(servers)


def settled(
    servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], bool]:
    """Returns (servers, arguments of a client, whether the client must be a cluster).

    defaults: for arguments that neither the options nor a URL gives. Options about keys, values and failures in the URL
    of a single server become arguments. Raises ValueError without a server, or for an option given twice.
    """
    found = server_list(servers)
    if not found:
        raise ValueError(f"there is no server in {servers!r}: 127.0.0.1:11211 is one, and so is shm://127.0.0.1:11211")
    said: dict[str, Any] = {}
    for server in found:
        said.update(parse_server(server)[1])
    arguments = {**{name: value for name, value in defaults.items() if name not in said}, **options}
    if len(found) == 1 and is_url(found[0]):
        for name in said.keys() & options.keys():
            raise ValueError(f"{shown(found[0])}: {name} is given twice, there and as an option: leave one of them out")
        if names_auto(found[0]):
            arguments.setdefault("transport", SCHEMES["memcached"])
        arguments.update(said)
        found = [parse_server(found[0])[0]]
    # With ignore_exc a Client's sets still raise, as pymemcache's do. A cluster's sets do not.
    clustered = len(found) > 1 or bool(arguments.get("ignore_exc")) or not arguments.keys() <= set(CLIENT_OPTIONS)
    return found, arguments, clustered


def make_client(
    servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any], client_class: type[Client] = Client
) -> Client | ClusterClient:
    """Returns a Client for one server, or a ClusterClient for several, for ignore_exc, or for an option of a cluster.

    Does not connect. Raises ValueError, and TypeError for an unknown option.
    """
    found, arguments, clustered = settled(servers, options, defaults)
    return ClusterClient(found, **arguments) if clustered else client_class(found[0], **arguments)


def make_async_client(
    servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> AsyncClient | AsyncClusterClient:
    """Returns an AsyncClient or an AsyncClusterClient, chosen and made as by make_client."""
    from rmemcached.client import AsyncClient, AsyncClusterClient

    found, arguments, clustered = settled(servers, options, defaults)
    return AsyncClusterClient(found, **arguments) if clustered else AsyncClient(found[0], **arguments)


def make_cluster(servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> ClusterClient:
    """Returns a ClusterClient, also for one server: a ClusterClient does not retry a failed server at once."""
    found, arguments, _ = settled(servers, options, defaults)
    return ClusterClient(found, **arguments)


def key_room(client: Any) -> int:
    """Returns the bytes left for a key after the prefix of a client or cluster."""
    prefix = client.default_kwargs["key_prefix"] if isinstance(client, Servers) else client.key_prefix
    return KEY_MAX - len(prefix.encode() if isinstance(prefix, str) else prefix)

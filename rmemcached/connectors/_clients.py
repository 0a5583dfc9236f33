"""What the connectors share: a client of the servers that a framework's settings name, keys, and times to expire."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rmemcached.client import Client, ClusterClient
from rmemcached.client.api.servers import CLIENT_OPTIONS, Servers
from rmemcached.client.urls import SCHEMES, is_url, parse_server, shown

if TYPE_CHECKING:
    from rmemcached.client import AsyncClient, AsyncClusterClient

RELATIVE_MOST = 30 * 24 * 3600  # seconds; what is more memcached takes for a time since 1970
LATEST = 2**31 - 1  # seconds since 1970: a later time wraps around in memcached, and the item would be gone at once
KEY_MAX = 250  # bytes
HASHED = "h2:"

# What memcached's text protocol cannot carry in a key.
UNFIT = re.compile(rb"[\x00-\x20\x7f]")


def expiry(seconds: float | None) -> int:
    """memcached's expiration time for something that lives for so many seconds. None, 0 and what is past 2038: for
    ever. Less than 0: not at all. Raises ValueError for what is no number."""
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
    """The key if memcached can take it in `room` bytes, else one of 67 bytes that is made of its SHA-256.

    A key that looks like one of those is hashed as well: nobody can choose the key that another one gets.
    """
    encoded = key.encode("utf-8", "surrogatepass")
    if encoded and len(encoded) <= room and not key.startswith(HASHED) and not UNFIT.search(encoded):
        return key
    return HASHED + hashlib.sha256(encoded).hexdigest()


def server_list(servers: Any) -> list[Any]:
    """Servers as frameworks have them, as a list: one, several in a text between commas or semicolons, a sequence.

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
    """(servers, arguments of a client, whether it must be a cluster's).

    defaults: arguments that neither the options nor a URL names. What the URL of a single server says of keys, values
    and failures is an argument. Raises ValueError when there is no server, or something is given twice.
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
        if urlsplit(found[0]).scheme == "memcached":
            arguments.setdefault("transport", SCHEMES["memcached"])
        arguments.update(said)
        found = [parse_server(found[0])[0]]
    # With ignore_exc a Client's sets raise nevertheless, as pymemcache's do, and a cluster's do not.
    clustered = len(found) > 1 or bool(arguments.get("ignore_exc")) or not arguments.keys() <= set(CLIENT_OPTIONS)
    return found, arguments, clustered


def make_client(
    servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any], client_class: type[Client] = Client
) -> Client | ClusterClient:
    """A Client of one server, or a ClusterClient: of several, with ignore_exc, or with an option that only that has.

    Does not connect. Raises ValueError, and TypeError for an option that there is not.
    """
    found, arguments, clustered = settled(servers, options, defaults)
    return ClusterClient(found, **arguments) if clustered else client_class(found[0], **arguments)


def make_async_client(
    servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> AsyncClient | AsyncClusterClient:
    """The same for asyncio."""
    from rmemcached.client import AsyncClient, AsyncClusterClient

    found, arguments, clustered = settled(servers, options, defaults)
    return AsyncClusterClient(found, **arguments) if clustered else AsyncClient(found[0], **arguments)


def make_cluster(servers: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> ClusterClient:
    """A ClusterClient, also of one server: it does not ask again at once a server that has failed."""
    found, arguments, _ = settled(servers, options, defaults)
    return ClusterClient(found, **arguments)


def key_room(client: Any) -> int:
    """The bytes that a key may have behind the prefix of a client, or of a cluster's."""
    prefix = client.default_kwargs["key_prefix"] if isinstance(client, Servers) else client.key_prefix
    return KEY_MAX - len(prefix.encode() if isinstance(prefix, str) else prefix)

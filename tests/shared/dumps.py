"""The keys of a daemon."""

from __future__ import annotations

from rmemcached.client import Client, MemcacheServerError


def keys_in(client: Client) -> list[bytes]:
    """All keys, sorted. Asks again while the daemon refuses a dump because its maintainer's crawler is at work."""
    while True:
        try:
            return sorted(item["key"] for item in client.metadump())
        except MemcacheServerError as error:
            if "currently processing crawler request" not in str(error):
                raise

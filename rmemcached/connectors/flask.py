"""A cache of Flask-Caching: ``CACHE_TYPE = "rmemcached.connectors.flask.RMemcachedCache"``.

CACHE_MEMCACHED_SERVERS names the servers (by default 127.0.0.1:11211), CACHE_OPTIONS has arguments of
rmemcached.client.Client, or ClusterClient. CACHE_KEY_PREFIX, CACHE_DEFAULT_TIMEOUT, CACHE_MEMCACHED_USERNAME and
CACHE_MEMCACHED_PASSWORD are Flask-Caching's. Needs ``pip install 'rmemcached[flask]'``.
"""

from __future__ import annotations

from typing import Any

from flask_caching.backends.base import BaseCache

from . import cachelib


class RMemcachedCache(BaseCache, cachelib.RMemcachedCache):
    """Flask-Caching's cache on rmemcached, with the arguments of connectors.cachelib.RMemcachedCache."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        cachelib.RMemcachedCache.__init__(self, *arguments, **options)

    @classmethod
    def factory(cls, app: Any, config: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> RMemcachedCache:
        """Returns the cache of an application's configuration. Raises ValueError, TypeError."""
        options = dict(kwargs)
        if not args:
            options.setdefault("servers", config.get("CACHE_MEMCACHED_SERVERS") or "127.0.0.1:11211")
        for name in ("username", "password"):
            if config.get(f"CACHE_MEMCACHED_{name.upper()}"):
                options.setdefault(name, config[f"CACHE_MEMCACHED_{name.upper()}"])
        if config.get("CACHE_KEY_PREFIX"):
            options.setdefault("key_prefix", config["CACHE_KEY_PREFIX"])
        return cls(*args, **options)

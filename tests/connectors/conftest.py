"""Connectors as their programs make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lmcache_adapter import Adapter

from rmemcached.connectors.lmcache import RMemcachedConnector


@pytest.fixture
def connect() -> Iterator[Callable[..., Adapter]]:
    """connect(server, **params) makes a connector with adapter_params as LMCache does."""
    made: list[RMemcachedConnector] = []

    def make(server: Any, **params: Any) -> Adapter:
        made.append(RMemcachedConnector(server.host, server.port, **params))
        return Adapter(made[-1])

    yield make
    for connector in made:
        connector.close()

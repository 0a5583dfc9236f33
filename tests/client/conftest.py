"""Clients over every transport, and pymemcache beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pymemcache.client.base import Client as PymemcacheClient
from servers import Server
from tls_relay import make_certificate
from transport import RDMA_TRANSPORTS

from rmemcached.client import Client

TIMEOUT = 20.0
BACKENDS = [("tcp", "memcached"), ("tcp", "rmemcached"), *((name, "rmemcached") for name in RDMA_TRANSPORTS)]
_numbers = itertools.count()


class Backend(NamedTuple):
    """A transport and the server to use over the transport."""

    transport: str
    server: Server


@pytest.fixture(scope="session", autouse=True)
def devices(shared_rmemcached: Server) -> None:
    """A client's device stays open with its process: all are opened before a test's live objects are counted."""
    for transport in RDMA_TRANSPORTS:
        with Client(shared_rmemcached.address, transport=transport, timeout=TIMEOUT) as client:
            client.version()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    make_certificate(path)
    return path


@pytest.fixture(params=BACKENDS, ids="-".join)
def backend(request: pytest.FixtureRequest) -> Backend:
    transport, name = request.param
    return Backend(transport, request.getfixturevalue(f"shared_{name}"))


@pytest.fixture
def make_client(backend: Backend) -> Iterator[Callable[..., Client]]:
    """make_client(**arguments) connects to the backend; replies are waited for unless the arguments say otherwise."""
    made: list[Client] = []

    def make(**arguments: Any) -> Client:
        settings: dict[str, Any] = {"transport": backend.transport, "timeout": TIMEOUT, "default_noreply": False}
        made.append(Client(backend.server.address, **{**settings, **arguments}))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


@pytest.fixture
def make_oracle(backend: Backend) -> Iterator[Callable[..., PymemcacheClient]]:
    """make_oracle(**arguments): pymemcache on the same server."""
    made: list[PymemcacheClient] = []

    def make(**arguments: Any) -> PymemcacheClient:
        settings: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "no_delay": True}
        made.append(PymemcacheClient(backend.server.address, **{**settings, **arguments}))
        return made[-1]

    yield make
    for oracle in made:
        oracle.close()


@pytest.fixture
def oracle(make_oracle: Callable[..., PymemcacheClient]) -> PymemcacheClient:
    return make_oracle()


@pytest.fixture
def key() -> str:
    """A key unused by all earlier tests."""
    return f"key-{next(_numbers)}"


@pytest.fixture
def three(rmemcached_server: Callable[..., Server]) -> list[Server]:
    """Three daemons of ours for a test, which may end them."""
    return [rmemcached_server("-t", "1") for _ in range(3)]

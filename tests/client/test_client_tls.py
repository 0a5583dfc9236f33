"""Clients and TLS on all transports: URLs, clusters, ends without TLS, and who shares queue pairs."""

from __future__ import annotations

import asyncio
import json
import pickle
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, SecureServer
from servers import Server
from tls_relay import TlsRelay, make_certificate

from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    MemcacheServerError,
    TransportUnavailable,
)

TRANSPORTS = ("tcp", "soft_iw", "soft_shm")


@pytest.fixture
def context(shared_tls: SecureServer) -> ssl.SSLContext:
    return shared_tls.context


@pytest.fixture
def place(shared_tls: SecureServer) -> tuple[str, int]:
    return shared_tls.host, shared_tls.port


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kinds_of_clients(shared_tls: SecureServer, key: str, transport: str) -> None:
    url = f"{shared_tls.address}&transport={transport}&timeout={TIMEOUT}"
    with Client(url) as client:
        assert client.set(key, b"value", noreply=False) and client.transport == transport
    with ClusterClient([url]) as cluster:
        assert cluster.get_many([key]) == {key: b"value"}

    async def body() -> None:
        async with AsyncClient(url) as client, AsyncClusterClient([url]) as cluster:
            assert await client.get(key) == b"value" and client.transport == transport
            assert await cluster.get_many([key]) == {key: b"value"}

    asyncio.run(body())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_argument(place: tuple[str, int], context: ssl.SSLContext, key: str, transport: str) -> None:
    with ClusterClient([place], tls_context=context, transport=transport, timeout=TIMEOUT) as cluster:
        assert cluster.set(key, b"value", noreply=False)
        assert cluster.get(key) == b"value"


def test_a_client_of_a_url_is_pickled(shared_tls: SecureServer, key: str) -> None:
    with Client(shared_tls.address, timeout=TIMEOUT) as client, pickle.loads(pickle.dumps(client)) as other:
        assert client.set(key, b"value", noreply=False)
        assert other.get(key) == b"value"
        assert other.tls_context is client.tls_context


def test_a_new_file_is_read(shared_tls: SecureServer, tmp_path: Path) -> None:
    """A new Client of the same URL reads the new file."""
    file = tmp_path / "ca.pem"
    make_certificate(file)
    url = f"memcacheds://{shared_tls.host}:{shared_tls.port}?tls_ca={file}"
    with Client(url, timeout=TIMEOUT) as client, pytest.raises(ssl.SSLCertVerificationError):
        client.version()
    trusted = Path(shared_tls.address.partition("tls_ca=")[2])
    (tmp_path / "next").write_bytes(trusted.read_bytes())
    (tmp_path / "next").replace(file)
    with Client(url, timeout=TIMEOUT) as client:
        assert client.version()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_certificate_that_is_not_known(place: tuple[str, int], transport: str) -> None:
    other = ssl.create_default_context()
    with (
        Client(place, tls_context=other, transport=transport, timeout=TIMEOUT) as client,
        pytest.raises(ssl.SSLCertVerificationError, match=f"{place[0]}:{place[1]}"),
    ):
        client.version()


def test_another_name(shared_tls: SecureServer) -> None:
    """The certificate is for an address: the name of the host is checked."""
    place = ("localhost", shared_tls.port)
    with (
        Client(place, tls_context=shared_tls.context, transport="soft_iw", timeout=TIMEOUT) as client,
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
    ):
        client.version()


@pytest.mark.parametrize("transport", ["soft_iw", "soft_shm"])
def test_clients_with_other_trust_share_no_queue_pair(
    place: tuple[str, int], context: ssl.SSLContext, transport: str
) -> None:
    """A client without trust in the server gets no lane of a client with trust."""
    with Client(place, tls_context=context, transport=transport, timeout=TIMEOUT) as client:
        assert client.version()
        for other in (ssl.create_default_context(), None):
            with (
                Client(place, tls_context=other, transport=transport, timeout=TIMEOUT) as stranger,
                pytest.raises((ssl.SSLCertVerificationError, MemcacheServerError)),
            ):
                stranger.version()


# ---- an end without TLS ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", *TRANSPORTS])
@pytest.mark.parametrize("more", [{}, {"username": "me", "password": "secret"}], ids=["", "password"])
def test_a_server_that_speaks_tls(place: tuple[str, int], transport: str, more: dict[str, Any]) -> None:
    text = f"^{place[0]}:{place[1]}: .*the server speaks TLS: give tls_context, or memcacheds:// in the URL$"
    with (
        Client(place, transport=transport, timeout=TIMEOUT, **more) as client,
        pytest.raises(MemcacheServerError, match=text),
    ):
        client.version()


@pytest.mark.parametrize("transport", ["auto", *TRANSPORTS])
@pytest.mark.parametrize("name", ["memcached", "rmemcached"])
def test_a_server_without_tls(
    request: pytest.FixtureRequest, context: ssl.SSLContext, name: str, transport: str
) -> None:
    server: Server = request.getfixturevalue(f"shared_{name}")
    with (
        Client(server.address, tls_context=context, transport=transport, timeout=TIMEOUT) as client,
        pytest.raises(ssl.SSLError, match="the server speaks no TLS: leave out tls_context"),
    ):
        client.version()


def test_tls_that_ends_before_the_server(shared_rmemcached: Server, certificate: Path) -> None:
    """Behind a proxy with TLS the daemon knows of no TLS: no stream in the clear is made."""
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        TlsRelay(shared_rmemcached, certificate) as relay,
        Client(("127.0.0.1", relay.port), tls_context=context, transport="soft_iw", timeout=TIMEOUT) as client,
        pytest.raises(TransportUnavailable, match="does not take its iWARP stream inside TLS"),
    ):
        client.version()


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def doctor() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "rmemcached.tools.doctor", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    yield run


def test_doctor(shared_tls: SecureServer, doctor: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    found = json.loads(doctor("--json", shared_tls.address).stdout)
    measured = {one["transport"]: one for one in found["transports"]}
    for transport in TRANSPORTS:
        assert measured[transport]["p50"] > 0


def test_doctor_without_tls(
    shared_tls: SecureServer, shared_rmemcached: Server, doctor: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    plain = doctor(f"{shared_tls.host}:{shared_tls.port}")
    assert plain.returncode == 2
    assert "the server speaks TLS: give tls_context, or memcacheds:// in the URL" in plain.stderr
    secure = doctor(shared_tls.address.replace(f":{shared_tls.port}", f":{shared_rmemcached.port}"))
    assert secure.returncode == 2
    assert "the server speaks no TLS" in secure.stderr

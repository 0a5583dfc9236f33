"""Servers as URLs, and the environment variable with the transport."""

from __future__ import annotations

import asyncio
import copy
import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Backend
from servers import Server

from rmemcached.client import AsyncClient, Client
from rmemcached.client.transport.sockets import server_text

SCHEMES = {"tcp": "tcp", "soft_shm": "shm", "soft_iw": "iwarp", "verbs": "rdma", "rdma_cm": "memcached"}


def of(url: str, *names: str) -> list[Any]:
    client = Client(url)
    return [getattr(client, name) for name in names]


@pytest.mark.parametrize(
    ("url", "server", "transport"),
    [
        ("memcached://one", ("one", 11211), "auto"),
        ("memcached://one:5", ("one", 5), "auto"),
        ("memcached://one:5/", ("one", 5), "auto"),
        ("memcacheds://one:5", ("one", 5), "auto"),
        ("memcacheds://one?transport=soft_iw", ("one", 11211), "soft_iw"),
        ("MEMCACHED://one:5", ("one", 5), "auto"),
        ("memcached://[::1]:5", ("::1", 5), "auto"),
        ("memcached://[::1]", ("::1", 11211), "auto"),
        ("memcached://[fe80::1%25eth0]:5", ("fe80::1%eth0", 5), "auto"),
        ("memcached://one?transport=rdma_cm", ("one", 11211), "rdma_cm"),
        ("rdma://10.0.0.1:65535", ("10.0.0.1", 65535), "verbs"),
        ("shm://one:5", ("one", 5), "soft_shm"),
        ("iwarp://one:5", ("one", 5), "soft_iw"),
        ("tcp://one:5", ("one", 5), "tcp"),
        ("unix:///run/memcached.sock", "/run/memcached.sock", "auto"),
        ("unix:///run/my%20memcached.sock?transport=tcp", "/run/my memcached.sock", "tcp"),
        ("unix:///run/a://b", "/run/a://b", "auto"),
    ],
)
def test_a_server_and_a_transport(url: str, server: Any, transport: str) -> None:
    assert of(url, "server", "transport") == [server, transport]
    made = AsyncClient(url)
    assert (made.server, made.transport) == (server, transport)


@pytest.mark.parametrize("server", [("::1", 5), "[::1]:5", "unix:/run/sock", "/run/sock", "one:5", "one"])
def test_what_pymemcache_takes_is_still_taken(server: Any) -> None:
    from pymemcache.client.base import normalize_server_spec

    assert Client(server).server == normalize_server_spec(server)


def test_options() -> None:
    url = (
        "memcached://me:p%40ss%3Aword@one:5?timeout=0.5&connect_timeout=none&no_delay=false&key_prefix=app%3A"
        "&ignore_exc=yes&default_noreply=0&allow_unicode_keys=On&encoding=utf-8&spin=20&rdma_cm_port=7"
    )
    names = ["timeout", "connect_timeout", "no_delay", "key_prefix", "ignore_exc", "default_noreply"]
    assert of(url, *names) == [0.5, None, False, b"app:", True, False]
    names = ["allow_unicode_keys", "encoding", "spin", "rdma_cm_port", "credentials"]
    assert of(url, *names) == [True, "utf-8", 20.0, 7, (b"me", b"p@ss:word", False)]


def test_arguments_beside_a_url() -> None:
    client = Client("memcached://one?timeout=2", None, connect_timeout=1, transport="tcp", key_prefix="p")
    assert (client.timeout, client.connect_timeout, client.transport, client.key_prefix) == (2.0, 1, "tcp", b"p")
    for name, value in {"timeout": 3, "username": "you", "password": "b", "transport": "tcp"}.items():
        with pytest.raises(ValueError, match=f"^tcp://me:\\*\\*\\*@one\\?timeout=2: {name} is given twice"):
            Client("tcp://me:secret@one?timeout=2", **{name: value})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://one", "the scheme must be one of memcached, memcacheds, rdma, shm, iwarp, tcp, unix, not 'redis'"),
        ("memcached://", "it names no host"),
        ("memcached://:11211", "it names no host"),
        ("memcached://one:0", "the port must be from 1 to 65535, not '0'"),
        ("memcached://one:88616", "the port must be from 1 to 65535, not '88616'"),
        ("memcached://11211", "'11211' is a port, and the host is missing"),
        ("memcached://one%20two", "'one two' is no host"),
        ("memcached://one:65536", "the port must be from 1 to 65535, not '65536'"),
        ("memcached://one:", "the port must be from 1 to 65535, not ''"),
        ("memcached://::1", "an IPv6 address is written in brackets"),
        ("memcached://[::1", "Invalid IPv6 URL"),
        ("memcached://one/path", "a path ('/path') is for unix:// alone"),
        ("memcached://one#part", "it ends in a fragment ('part')"),
        ("memcached://one?time=1", "there is no option 'time': it can have allow_unicode_keys, connect_timeout"),
        ("memcached://one?timeout", "the query is name=value&..., not 'timeout'"),
        ("memcached://one?timeout=1&timeout=2", "the option timeout is there twice"),
        ("memcached://one?timeout=soon", "the option timeout must be a number or none, not 'soon'"),
        ("memcached://one?timeout=inf", "the option timeout must be a number or none, not 'inf'"),
        ("memcached://one?no_delay=maybe", "the option no_delay must be true or false, not 'maybe'"),
        ("memcached://one?rdma_cm_port=x", "the option rdma_cm_port must be from 1 to 65535, not 'x'"),
        ("tcp://one?transport=tcp", "tcp:// is a transport already"),
        ("memcached://one?tls_ca=/file", "the options tls_ca, tls_cert, tls_key are for memcacheds:// alone"),
        ("memcacheds://one?tls_ca=/no/file", "TLS: /no/file: No such file or directory"),
        ("memcacheds://one?tls_key=/no/file", "the option tls_key is for a certificate: tls_cert"),
        ("unix://run/sock", "the path of a UNIX socket follows three slashes"),
        ("unix:///", "the path of a UNIX socket follows three slashes"),
    ],
)
def test_a_url_that_is_wrong(url: str, why: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError) as failure:
            make(url)
        assert str(failure.value).startswith(f"{url}: {why}")
        assert "\n" not in str(failure.value)


def test_other_wrong_values() -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        Client("memcached://one?timeout=0")
    with pytest.raises(ValueError, match="transport must be one of"):
        Client("memcached://one?transport=udp")
    with pytest.raises(ValueError, match="the port is a part of the URL"):
        Client("memcached://one", 11211)
    with pytest.raises(ValueError, match="rdma_cm_port needs a host"):
        Client("unix:///run/sock?rdma_cm_port=5")


def test_errors_do_not_show_the_password() -> None:
    for url in ("tcp://me:secret@one:x", "tcp://me:se@cret@one/p", "none://me:secret@one", "tcp://me:secret@one?a=b"):
        with pytest.raises(ValueError) as failure:
            Client(url)
        assert "cret" not in str(failure.value)
        assert "://me:***@one" in str(failure.value)


def test_a_connection(backend: Backend, key: str) -> None:
    url = (
        f"{SCHEMES[backend.transport]}://{server_text(backend.server.address)}?timeout={TIMEOUT}&default_noreply=false"
    )
    with Client(url) as client:
        assert client.set(key, b"value") is True
        assert client.transport == backend.transport
        for other in (copy.copy(client), pickle.loads(pickle.dumps(client))):
            with other:
                assert other.get(key) == b"value"
                assert other.transport == backend.transport

    async def main() -> Any:
        async with AsyncClient(url) as client:
            return await client.get(key), client.transport

    assert asyncio.run(main()) == (b"value", backend.transport)


def test_a_connection_to_a_unix_socket(rmemcached_server: Callable[..., Server], tmp_path: Path, key: str) -> None:
    server = rmemcached_server(path=str(tmp_path / "with space"))
    with Client(f"unix://{tmp_path}/with%20space?default_noreply=false") as client:
        assert client.set(key, b"value") is True
        assert client.server == server.path


# --- RMEMCACHED_TRANSPORT ---


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_TRANSPORT", "soft_iw")
    assert Client("one").transport == "soft_iw"
    assert AsyncClient("one").transport == "soft_iw"
    assert Client("one", transport="auto").transport == "auto"
    assert Client("one", transport="tcp").transport == "tcp"
    assert Client("memcached://one").transport == "auto"
    assert Client("memcached://one", transport="tcp").transport == "tcp"
    assert Client("tcp://one").transport == "tcp"
    client = Client("one")
    monkeypatch.setenv("RMEMCACHED_TRANSPORT", "")
    assert Client("one").transport == "auto"
    # A copy has the original's transport, whatever the environment says now.
    assert copy.copy(client).transport == pickle.loads(pickle.dumps(client)).transport == "soft_iw"


def test_an_environment_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_TRANSPORT", "rdma")
    with pytest.raises(ValueError, match=r"^the environment variable RMEMCACHED_TRANSPORT must be one of auto, .*"):
        Client("one")
    monkeypatch.setenv("RMEMCACHED_TRANSPORT", "soft_iw")
    with pytest.raises(ValueError, match=r"^RMEMCACHED_TRANSPORT=soft_iw needs a host and port"):
        Client("/run/sock")
    monkeypatch.setenv("RMEMCACHED_TRANSPORT", "rdma_cm")
    with pytest.raises(ValueError, match="tls_context does not go with rdma_cm"):
        Client("one", tls_context=ssl.create_default_context())

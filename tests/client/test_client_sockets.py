"""Sockets besides the system's own: gevent's, eventlet's, those of a module, and TLS."""

from __future__ import annotations

import copy
import importlib
import pickle
import socket
import ssl
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from tls_relay import TlsRelay, make_certificate
from transport import RDMA_TRANSPORTS

from rmemcached.client import AsyncClient, Client

PROGRAM = Path(__file__).with_name("greenlets.py")
LARGE = bytes(range(256)) * 4096
HOWS = [("module", "auto"), ("before", "auto"), ("after", "auto"), ("plain", "tcp"), ("before", "tcp")]
HOWS += [("before", name) for name in RDMA_TRANSPORTS]


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
@pytest.mark.parametrize(("how", "transport"), HOWS, ids=lambda word: word)
def test_greenlets(rmemcached_server: Callable[..., Server], library: str, how: str, transport: str) -> None:
    server = rmemcached_server("-I", "8m")
    arguments = [library, how, transport, server.host, str(server.port), str(server.pid)]
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done 0\n", done.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for a host's name, and not for its address."""
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    make_certificate(path, "DNS:localhost")
    return path


@pytest.fixture
def relay(shared_rmemcached: Server, certificate: Path) -> Iterator[TlsRelay]:
    with TlsRelay(shared_rmemcached, certificate) as relay:
        yield relay


def test_tls(relay: TlsRelay, certificate: Path, key: str) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    with Client(("localhost", relay.port), timeout=20, default_noreply=False, tls_context=context) as client:
        assert client.set(key, b"value") is True
        assert client.get(key) == b"value"
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.transport == "tcp"
        values = {f"{key}-{number}": LARGE for number in range(10)}
        assert client.set_many(values) == []
        assert client.get_many(values) == values
        with copy.copy(client) as other:
            assert other.get(key) == b"value"
        with pytest.raises(TypeError, match="SSLContext"):
            pickle.dumps(client)


def test_a_copy_of_one_with_tls_has_the_same_context() -> None:
    context = ssl.create_default_context()
    client = Client("127.0.0.1", tls_context=context)
    assert copy.copy(client).tls_context is context
    assert copy.deepcopy([client])[0].tls_context is context


def test_tls_with_a_certificate_that_is_not_known(relay: TlsRelay) -> None:
    with Client(("localhost", relay.port), timeout=20, tls_context=ssl.create_default_context()) as client:
        with pytest.raises(ssl.SSLCertVerificationError, match=f"localhost:{relay.port}"):
            client.get("key")
        assert client.connections == 0


def test_a_module(shared_rmemcached: Server, key: str) -> None:
    """The client calls the same functions of a module as pymemcache."""
    made: list[socket.socket] = []

    def make(*arguments: Any) -> socket.socket:
        made.append(socket.socket(*arguments))
        return made[-1]

    module = types.ModuleType("a_module")
    module.socket = make  # type: ignore[attr-defined]
    module.getaddrinfo = socket.getaddrinfo  # type: ignore[attr-defined]
    with Client(shared_rmemcached.address, timeout=20, default_noreply=False, socket_module=module) as client:
        assert client.set(key, b"value") is True
        assert client.transport == "tcp"
        assert len(made) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"socket_module": types.ModuleType("a_module"), "transport": "soft_shm"},
        {"tls_context": ssl.create_default_context(), "transport": "rdma_cm"},
        {"tls_context": ssl.create_default_context(), "rdma_cm_port": 5},
    ],
    ids=["module", "rdma_cm", "port of rdma_cm"],
)
def test_not_with_rdma(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is for TCP|does not go with rdma_cm"):
        Client("127.0.0.1", **arguments)


def test_not_with_a_unix_socket_or_a_loop() -> None:
    context = ssl.create_default_context()
    with pytest.raises(ValueError, match="needs a host and port"):
        Client("/sock", tls_context=context)
    with pytest.raises(ValueError, match="is Client's"):
        AsyncClient("127.0.0.1", socket_module=types.SimpleNamespace(**vars(socket)))


def test_copies_keep_the_module(shared_rmemcached: Server, key: str) -> None:
    with Client(shared_rmemcached.address, socket_module=socket) as client:
        assert pickle.loads(pickle.dumps(client)).socket_module is None
    module = importlib.import_module("gevent.socket")
    assert pickle.loads(pickle.dumps(Client("127.0.0.1", socket_module=module))).socket_module is module


def test_sock(client: Client, key: str) -> None:
    shown = client.sock
    assert shown is None
    client.get(key)
    shown = client.sock
    assert shown is client.sock
    assert shown.getpeername()[1] == client.server[1]
    client.close()
    assert client.sock is None
    assert shown.fileno() == -1

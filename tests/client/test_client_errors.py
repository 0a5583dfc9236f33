"""The client's exceptions and their texts."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pymemcache
import pytest
from concurrency import KNOWN
from pymemcache.client.retrying import RetryingClient
from scripted import serving
from servers import Server
from suspended import suspended
from transport import RDMA_TRANSPORTS

from rmemcached.client import (
    Client,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    TooManyConnections,
    TransportUnavailable,
)

ServerFactory = Callable[..., Server]
TOO_LARGE = bytes(9 << 20)

WITHOUT_PYMEMCACHE = """
import sys
sys.modules["pymemcache"] = None
from rmemcached.client import *
assert MemcacheError.__mro__[1:] == (Exception, BaseException, object), MemcacheError.__mro__
assert [kind.__name__ for kind in MemcacheUnexpectedCloseError.__mro__] == [
    "MemcacheUnexpectedCloseError", "MemcacheServerError", "MemcacheError", "Exception", "BaseException", "object"]
assert issubclass(MemcacheIllegalInputError, MemcacheClientError)
assert issubclass(TransportUnavailable, MemcacheServerError)
"""


def where(client: Client) -> str:
    return "{}:{}".format(*client.server)


def answering(answers: dict[bytes, bytes]) -> AbstractContextManager[tuple[str, int]]:
    """A server with a table of answers by a line's first word. The key b"" is for all other words. An empty answer
    closes the connection."""

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = answers.get(line.split()[0], answers[b""])
                if not answer:
                    break
                connection.sendall(answer)

    return serving(serve)


def test_they_are_pymemcaches(client: Client, key: str) -> None:
    client.set(key, b"text")
    with pytest.raises(pymemcache.MemcacheClientError) as caught:
        client.incr(key, 1)
    assert caught.value.args == (b"cannot increment or decrement non-numeric value",)
    with pytest.raises(pymemcache.MemcacheIllegalInputError):
        client.get("white space")
    retrying = RetryingClient(client, attempts=2, retry_for=[pymemcache.MemcacheError])
    with pytest.raises(MemcacheClientError):
        retrying.incr(key, 1)


def test_without_pymemcache() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PYMEMCACHE], check=True, timeout=60)


def test_they_name_server_command_and_cause(client: Client, key: str) -> None:
    client.set(key, b"text")
    calls: list[tuple[str, Callable[[], object], str]] = [
        ("incr", lambda: client.incr(key, 1), "cannot increment or decrement non-numeric value"),
        ("set", lambda: client.set(key, TOO_LARGE), "object too large for cache"),
        ("set_many", lambda: client.set_many({key: TOO_LARGE}), "object too large for cache"),
        ("touch", lambda: client.touch(key, 1 << 63), "bad token in command line format"),
        ("stats", lambda: client.stats("nonsense", "of", "mine"), ""),
        ("raw", lambda: client.raw_command("raw nonsense"), "raw"),
    ]
    for command, call, cause in calls:
        try:
            call()
        except MemcacheError as error:
            again = pickle.loads(pickle.dumps(error))
            for one in (error, again):
                assert str(one).startswith(f"{where(client)}: {command}"), str(one)
                assert cause in str(one)
                assert (one.server, str(one.command).split()[0]) == (where(client), command)
        else:
            assert command == "stats", command


def test_a_time_out_names_server_and_command(make_client: Callable[..., Client], backend: Any, key: str) -> None:
    client = make_client(timeout=0.25)
    client.set(key, b"value")
    with suspended(backend.server.pid), pytest.raises(TimeoutError) as caught:
        client.gat(key)
    assert str(caught.value) == f"{where(client)}: gat: timed out: nothing has come for 0.25 s"


@pytest.mark.device("the end of a queue pair")
@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_a_dead_server(rmemcached_server: ServerFactory, transport: str) -> None:
    server = rmemcached_server()
    with Client(server.address, transport=transport, timeout=20, default_noreply=False) as client:
        client.set("key", b"value")
        server.kill()
        with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError)) as caught:
            client.get("key")
        assert where(client) in str(caught.value)
        # A client aware of the end connects anew, which fails before any command.
        assert "get" in str(caught.value) or isinstance(caught.value, ConnectionRefusedError)
        with pytest.raises(ConnectionRefusedError, match=f"{server.port}"):
            client.get("key")


@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_sets_without_an_answer_to_a_dead_server_fail_from_the_second_on(
    rmemcached_server: ServerFactory, transport: str
) -> None:
    server = rmemcached_server()
    with Client(server.address, transport=transport, timeout=20) as client:
        for _ in range(10):
            client.set("key", b"value")
        server.kill()
        with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError)):
            for _ in range(2):
                client.set("key", b"value")
        with pytest.raises(ConnectionRefusedError):
            client.set("key", b"value")


@pytest.mark.parametrize("transport", ["auto", "tcp", *RDMA_TRANSPORTS])
@pytest.mark.parametrize("name", ["memcached", "rmemcached"])
def test_a_server_that_is_full(request: pytest.FixtureRequest, name: str, transport: str) -> None:
    if name == "memcached" and transport in RDMA_TRANSPORTS:
        transport = "tcp"
    server: Server = request.getfixturevalue(f"{name}_server")("-c", "64", "-t", "1")
    held: list[socket.socket] = []
    try:
        # The server accepts, or refuses, connections in their order: the next will be refused as well.
        while True:
            held.append(server.connect(timeout=20))
            try:
                held[-1].sendall(b"version\r\n")
                if not held[-1].recv(100).startswith(b"VERSION"):
                    break
            except ConnectionError:
                break
        with Client(server.address, transport=transport, timeout=20) as client:
            for _ in range(2):
                with pytest.raises(TooManyConnections, match=f"{server.port}: .*too many open connections.* -c"):
                    client.get("key")
            assert client.connections == 0
    finally:
        for one in held:
            one.close()


@pytest.mark.parametrize("transport", RDMA_TRANSPORTS)
def test_a_transport_that_is_not_there(shared_memcached: Server, transport: str) -> None:
    with Client(shared_memcached.address, transport=transport, timeout=20) as client:
        with pytest.raises(TransportUnavailable) as caught:
            client.get("key")
        assert str(caught.value).startswith(f"{where(client)}: connecting ({transport}): ")


def test_an_error_with_a_reason() -> None:
    with (
        answering({b"mn": b"MN\r\n", b"": b"ERROR proxy overloaded\r\n"}) as address,
        Client(address, transport="tcp", timeout=20) as client,
        pytest.raises(MemcacheServerError, match="get: proxy overloaded"),
    ):
        client.get("key")


def test_a_server_that_answers_error_to_everything_behind_a_set() -> None:
    """Behind a command without an answer no call hangs, even if the server answers ERROR to everything."""
    with (
        answering({b"mn": b"MN\r\n", b"": b"ERROR\r\n", b"value": b""}) as address,
        Client(address, transport="tcp", timeout=20) as client,
    ):
        client.delete("key", noreply=True)
        with pytest.raises(MemcacheUnknownCommandError):
            client.get("key")


@pytest.mark.by_default("its daemon has no RDMA, so -o rdma_direct is an error")
def test_which_command_a_server_does_not_know(rmemcached_server: ServerFactory) -> None:
    unknown = r": stats rdma: the server does not know this command$"
    with (
        Client(rmemcached_server("-o", "no_rdma").address) as client,
        pytest.raises(MemcacheUnknownCommandError, match=unknown),
    ):
        client.stats("rdma")


def test_cache_memlimit_tells_the_truth(rmemcached_server: ServerFactory) -> None:
    with Client(rmemcached_server("-m", "64").address) as client:
        assert client.cache_memlimit(128) is True
        with pytest.raises(MemcacheClientError, match="cache_memlimit: MEMLIMIT"):
            client.cache_memlimit(0)


def test_check_key(client: Client, oracle: Any) -> None:
    for key in ("key", b"key", "x" * 200):
        assert client.check_key(key, b"p:") == oracle.check_key(key, b"p:")
    for wrong in ("white space", "", "x" * 250, "ü"):
        with pytest.raises(MemcacheIllegalInputError):
            client.check_key(wrong, b"p:" if wrong else b"")


def test_raw_command_ends_at_an_error_line(client: Client) -> None:
    with pytest.raises(MemcacheError):
        client.raw_command("nonsense", end_tokens="END\r\n")
    for command in ("lru_crawler metadump 9999", "lru_crawler metadump nonsense"):
        with pytest.raises(MemcacheError, match=command):
            client.raw_command(command, end_tokens="END\r\n")
    assert client.version()


@pytest.mark.parametrize("command", ["stats", "get {key}", "gets {key} {key}", "mg {key} v", "mn\r\nmg {key} v\r\nmn"])
def test_the_rest_of_a_raw_answer_is_nobodys(client: Client, key: str, command: str) -> None:
    """The end of a raw answer is not always known: bytes behind the tokens answer no other command."""
    large = b"MN\r\nHD\r\n" * 100_000
    client.set(key, large)
    client.set(key + "-1", b"another")
    for _ in range(3):
        client.raw_command(command.format(key=key))
        assert client.get(key + "-1") == b"another"
        assert client.set(key + "-2", b"value") is True


def test_raw_commands_keep_the_connection(client: Client, key: str) -> None:
    client.set(key, b"1")
    for _ in range(3):
        assert client.raw_command(f"incr {key} 1").isdigit()
        assert client.get(key) is not None
        first, client_first = client.connections, client.stats()[b"total_connections"]
        assert client.raw_command("version").startswith(b"VERSION")
        assert client.stats()[b"total_connections"] == client_first
        assert client.connections == first


def test_a_password_that_is_echoed() -> None:
    with answering({b"": b"CLIENT_ERROR secret\r\n"}) as address:
        with (
            Client(address, transport="tcp", username="user", password="secret", timeout=20) as client,
            pytest.raises(MemcacheError) as raised,
        ):
            client.get("key")
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("call", ["raw", "stats", "get", "metadump", "version"])
def test_an_answer_without_an_end(call: str) -> None:
    """An endless answer costs a client a bounded amount of memory."""
    answered: set[bytes] = set()
    endless = {"stats": b"STAT a 1\r\n" * 100_000, "raw": bytes(1 << 20)}.get(call, b"x" * (1 << 20))

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                if line in KNOWN and (call != "version" or line not in answered):
                    answered.add(line)
                    connection.sendall(KNOWN[line])
                    continue
                while True:
                    connection.sendall(endless)

    with (
        serving(serve) as address,
        Client(address, transport="tcp", timeout=20) as client,
        pytest.raises(MemcacheUnknownError),
    ):
        if call == "raw":
            client.raw_command("anything", "END\r\n")
        elif call == "metadump":
            list(client.metadump())
        else:
            getattr(client, call)(*["key"] * (call == "get"))


def test_a_port_and_a_serde() -> None:
    with pytest.raises(TypeError, match=r"Client\(\(host, port\), serde=\.\.\.\)"):
        Client("127.0.0.1", 11211, serde=None)  # type: ignore[call-overload]

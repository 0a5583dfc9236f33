"""Look-ups of a ClusterClient's servers: in the DNS, and at a configuration endpoint."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gated_relay import Gate, GatedRelay
from polling import eventually
from servers import Server

import rmemcached.client.api.servers
from rmemcached.client import ClusterClient, MemcacheUnknownCommandError, MemcacheUnknownError

ServerFactory = Callable[..., Server]
OPTIONS: dict[str, Any] = {"timeout": 20.0, "default_noreply": False}


class Names:
    """A getaddrinfo with the test's addresses for a single name."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked = threading.Semaphore(0)
        self.known = socket.getaddrinfo

    def __call__(self, name: str, port: int, *arguments: int) -> Any:
        if name != "cache.example":
            return self.known(name, port, *arguments)
        self.asked.release()
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in self.addresses for found in self.known(address, port, *arguments)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    return names


def test_from_dns(names: Names, memcached_server: ServerFactory, key: str) -> None:
    port = memcached_server("-l", "127.0.0.2").port
    # memcached opens its addresses in turn, and the fixture has waited only for the first.
    with socket.socket() as probe:
        eventually(lambda: probe.connect_ex(("127.0.0.2", port)) == 0, what="memcached listens at 127.0.0.2")
    names.addresses = ["127.0.0.2", "127.0.0.1", "127.0.0.2", "::1"]
    with ClusterClient.from_dns("cache.example", port, **OPTIONS) as cluster:
        assert list(cluster.clients) == [f"127.0.0.1:{port}", f"127.0.0.2:{port}", f"::1:{port}"]
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        assert cluster.refresh() is True
        assert cluster.refresh() is False
        assert list(cluster.clients) == [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
        values = {f"{key}-{number}": b"v" for number in range(50)}
        cluster.set_many(values)
        assert cluster.get_many(values) == values
        assert all(client.connections for client in cluster.clients.values())
        names.addresses = []
        with pytest.raises(OSError, match=r"cache\.example"):
            cluster.refresh()
        assert cluster.get_many(values) == values
        with pickle.loads(pickle.dumps(cluster)) as other:
            names.addresses = ["127.0.0.2"]
            assert other.refresh() is True
            assert list(other.clients) == [f"127.0.0.2:{port}"]
    with pytest.raises(ValueError, match="there is nothing to ask"):
        ClusterClient(["one"]).refresh()


def test_the_interval(names: Names, memcached_server: ServerFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(rmemcached.client.api.servers, "monotonic", lambda: now[0])
    port = memcached_server().port
    names.addresses = ["127.0.0.1"]
    options = {"refresh_interval": 30, "ignore_exc": True, **OPTIONS}
    with ClusterClient.from_dns("cache.example", port, **options) as cluster:
        assert names.asked.acquire(timeout=10)
        now[0] += 29
        cluster.get("key")
        names.addresses = ["127.0.0.1", "::1"]
        for _ in range(2):
            assert not names.asked.acquire(blocking=False)
            now[0] += 31
            cluster.get_many(["key"])
            cluster.get_many(["key"])
            assert names.asked.acquire(timeout=10)
            # A look-up after both servers are found fails, is logged, and changes nothing.
            names.addresses = names.addresses if len(cluster.clients) == 1 else []
            for thread in threading.enumerate():
                if thread.name == "rmemcached refresh":
                    thread.join(10)
            assert len(cluster.clients) == 2


class Endpoint(GatedRelay):
    """A memcached that also answers to `config get cluster`."""

    answer = b""

    def handle(self, line: bytes, client: socket.socket) -> bool:
        if line != b"config get cluster\r\n":
            return False
        client.sendall(self.answer)
        return True


def configuration(*nodes: str) -> bytes:
    text = b"12\n" + " ".join(nodes).encode() + b"\n"
    return b"CONFIG cluster 0 %d\r\n%b\r\nEND\r\n" % (len(text), text)


@pytest.fixture
def endpoint(shared_memcached: Server) -> Iterator[Endpoint]:
    with Endpoint(shared_memcached, Gate(1)) as endpoint:
        yield endpoint


def test_from_config(endpoint: Endpoint, three: list[Server], key: str) -> None:
    endpoint.answer = configuration(*(f"node.example|127.0.0.1|{server.port}" for server in three))
    values = {f"{key}-{number}": b"v" for number in range(50)}
    with ClusterClient.from_config(endpoint.address, **OPTIONS) as cluster:
        assert list(cluster.clients) == [f"127.0.0.1:{server.port}" for server in three]
        assert cluster.set_many(values) == []
        endpoint.answer = configuration(*(f"localhost||{server.port}" for server in three[1:]))
        assert cluster.refresh() is True
        assert list(cluster.clients) == [f"localhost:{server.port}" for server in three[1:]]
        assert cluster.set_many(values) == []
        assert cluster.get_many(values) == values
    endpoint.answer = configuration("localhost|10.0.0.1|5", "localhost|10.0.0.2|6")
    host, port = endpoint.address
    by_name = ClusterClient.from_config(f"tcp://{host}:{port}", use_vpc_ip_address=False)
    assert list(by_name.clients) == ["localhost:5", "localhost:6"]


@pytest.mark.parametrize(
    "answer",
    [
        b"VALUE cluster 0 1\r\n1\na|b|5\n\r\nEND\r\n",
        b"CONFIG cluster 0 1\r\nx\na|b|5\n\r\nEND\r\n",
        b"CONFIG cluster 0 1\r\n1\na|5\n\r\nEND\r\n",
        b"CONFIG cluster 0 1\r\n1\na|b|port\n\r\nEND\r\n",
        b"CONFIG cluster 0 1\r\n1\n\xc3\xa9|b|5\n\r\nEND\r\n",
        b"CONFIG\n\r\nEND\r\n",
    ],
)
def test_a_wrong_configuration(endpoint: Endpoint, answer: bytes) -> None:
    endpoint.answer = answer
    with pytest.raises(MemcacheUnknownError, match="config get cluster: this is no list of servers: b'") as failure:
        ClusterClient.from_config(endpoint.address, **OPTIONS)
    assert "\n" not in str(failure.value)


def test_a_server_without_a_configuration(shared_memcached: Server) -> None:
    with pytest.raises(MemcacheUnknownCommandError, match="config get cluster"):
        ClusterClient.from_config(shared_memcached.address, **OPTIONS)

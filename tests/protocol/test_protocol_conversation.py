"""The replies to the same requests are the same bytes, in whatever pieces the requests come and the replies go."""

from __future__ import annotations

import re
import socket

import pytest
from conversation import CONVERSATION, normal
from transport import some

from rmemcached.protocol._testing import Machine, Server

# SHORT leaves out the long requests, because tests feed these bytes thousands of times.
REQUESTS = [entry.request for entry in CONVERSATION]
SHORT = b"".join(request for request in REQUESTS if len(request) < 10000)


@pytest.fixture(scope="module")
def whole() -> bytes:
    server = Server()
    return Machine(server).feed(SHORT)


def test_replies() -> None:
    server = Server()
    machine = Machine(server)
    for request, expected, _ in CONVERSATION:
        reply = machine.feed(request).decode("latin-1")
        assert re.fullmatch(expected, reply, re.DOTALL), (request[:80], reply[:200])
    assert machine.closed
    server.check()


def test_pipelined(whole: bytes) -> None:
    server = Server()
    machine = Machine(server)
    parts = b"".join(machine.feed(request) for request in REQUESTS if len(request) < 10000)
    assert parts == whole
    server.check()


@pytest.mark.parametrize("direct", [False, True])
def test_split_in_two_at_every_offset(whole: bytes, direct: bool) -> None:
    for offset in some(range(len(SHORT))):
        server = Server()
        machine = Machine(server)
        machine.direct = direct
        assert machine.feed(SHORT[:offset]) + machine.feed(SHORT[offset:]) == whole, offset
        assert machine.closed
        server.check()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1000])
def test_in_pieces(whole: bytes, step: int, direct: bool) -> None:
    server = Server()
    machine = Machine(server)
    machine.direct = direct
    assert machine.feed(SHORT, chunk=step) == whole
    server.check()


@pytest.mark.parametrize("max_iov", [1, 2, 3, 1000])
@pytest.mark.parametrize("max_sent", [1, 5, 100000])
def test_output_in_pieces(whole: bytes, max_iov: int, max_sent: int) -> None:
    server = Server()
    machine = Machine(server)
    machine.max_iov = max_iov
    machine.max_sent = max_sent
    machine.max_bytes = max(3, max_sent)
    assert machine.feed(SHORT) == whole
    server.check()


@pytest.mark.parametrize("budget", [1, 2, 1000000])
def test_requests_per_event(whole: bytes, budget: int) -> None:
    server = Server(reqs_per_event=budget)
    machine = Machine(server)
    assert machine.feed(SHORT) == whole
    assert ("yield" in machine.wants) == (budget < 1000)
    assert server.stats()["conn_yields"] == machine.wants.count("yield")


def ask(peer: socket.socket, request: bytes) -> bytes:
    """The reply of a memcached 1.6.18 to request, up to the answer to a `version` behind the request."""
    mark = b"VERSION 1.6.18\r\n"
    peer.sendall(request + b"version\r\n")
    reply = b""
    while not reply.endswith(mark):
        part = peer.recv(65536)
        assert part, reply
        reply += part
    return reply.removesuffix(mark)


def test_as_memcached_answers(memcached_server) -> None:
    daemon = memcached_server("-m", "64")
    server = Server()
    machine = Machine(server)
    compared = 0
    with socket.create_connection(("127.0.0.1", daemon.port)) as peer:
        for request, _, both in CONVERSATION:
            if not both or request.endswith(b"quit\r\n") or b"version" in request:
                continue
            assert normal(machine.feed(request)) == normal(ask(peer, request)), request[:100]
            compared += 1
    assert compared > 40

"""Replies longer than a connection's share of its worker's turn arrive whole and in order, whatever the reader's
pace."""

from __future__ import annotations

import random
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from daemon_tools import Conversation
from servers import Server

ServerFactory = Callable[..., Server]

# The control connection, the others, a request of theirs and its reply.
Busy = tuple[Conversation, list[socket.socket], bytes, bytes]

TURN = 512 * 1024  # bytes of a worker's turn
SHARE = 64 * 1024  # bytes sent in any case
EXTENTS = 1024  # the most pieces of memory in one system call


class Values:
    """The values of a server, and the replies to gets of them."""

    def __init__(self, talk: Conversation, sizes: list[int]) -> None:
        choice = random.Random(1)
        self.blocks: list[bytes] = []
        for number, size in enumerate(sizes):
            value = choice.randbytes(size)
            talk.send(b"set v%d 0 0 %d\r\n%b\r\n" % (number, size, value))
            assert talk.read(8) == b"STORED\r\n"
            self.blocks.append(b"VALUE v%d 0 %d\r\n%b\r\n" % (number, size, value))

    def request(self, numbers: list[int]) -> tuple[bytes, bytes]:
        line = b"get " + b" ".join(b"v%d" % number for number in numbers) + b"\r\n"
        return line, b"".join(self.blocks[number] for number in numbers) + b"END\r\n"


def exchange(pairs: list[tuple[socket.socket, bytes, bytes]], most: int) -> None:
    """Sends all requests, then reads all replies at once, `most` bytes at a time, and compares them."""
    left = {plain: memoryview(reply) for plain, _, reply in pairs}
    with selectors.DefaultSelector() as ready:
        for plain, request, _ in pairs:
            plain.sendall(request)
            ready.register(plain, selectors.EVENT_READ)
        while left:
            found = ready.select(30)
            assert found, f"{len(left)} connections get nothing more"
            for key, _ in found:
                one = key.fileobj
                assert isinstance(one, socket.socket)
                data = one.recv(most)
                assert data == left[one][: len(data)] and data
                left[one] = left[one][len(data) :]
                if not left[one]:
                    del left[one]
                    ready.unregister(one)


@pytest.mark.parametrize("most", [3000, 1 << 20])
@pytest.mark.parametrize("size", [257, 4000, SHARE - 40, TURN, 700_000])
def test_many_at_once(rmemcached_server: ServerFactory, size: int, most: int) -> None:
    """Replies that need many turns all come. Some connections send more before they have read their replies."""
    server = rmemcached_server("-t", "1", "-m", "256")
    choice = random.Random(size)
    with Conversation(server) as talk, ExitStack() as stack:
        values = Values(talk, [size] * 10)
        plain = [stack.enter_context(server.connect(30)) for _ in range(12)]
        for _ in range(2):
            pairs = []
            for one in plain:
                request, reply = b"", b""
                for _ in range(choice.choice([1, 1, 3])):
                    keys = max(1, min(choice.choice([1, 100, 300]), 800_000 // size))
                    asked, answer = values.request(choice.choices(range(10), k=keys))
                    request += asked + b"mn\r\n"
                    reply += answer + b"MN\r\n"
                pairs.append((one, request, reply))
            exchange(pairs, most)


@pytest.mark.parametrize("keys", [EXTENTS // 2 - 1, EXTENTS // 2, EXTENTS // 2 + 1, EXTENTS + 1])
def test_more_extents_than_a_call_takes(rmemcached_server: ServerFactory, keys: int) -> None:
    server = rmemcached_server("-t", "1", "-m", "64", "-R", "1000")
    with Conversation(server) as talk, server.connect(30) as plain:
        values = Values(talk, [257, 300, 1000])
        request, reply = values.request([number % 3 for number in range(keys)])
        exchange([(plain, request * 2, reply * 2)], 1 << 20)


@pytest.fixture
def busy(rmemcached_server: ServerFactory) -> Iterator[Busy]:
    """Connections waiting for each other's turns because their last replies were long, and a connection without such a
    wait."""
    server = rmemcached_server("-t", "1", "-m", "128")
    with Conversation(server) as talk, ExitStack() as stack:
        request, reply = Values(talk, [4000] * 10).request([number % 10 for number in range(200)])
        plain = [stack.enter_context(server.connect(30)) for _ in range(12)]
        exchange([(one, request, reply) for one in plain], 1 << 20)
        yield talk, plain, request, reply


def test_a_connection_that_quits_behind_a_long_reply(busy: Busy) -> None:
    """The connection ends after the reply has left, even if the reply had to wait for other connections' turns."""
    _, plain, request, reply = busy
    exchange([(one, request + b"quit\r\n", reply) for one in plain], 1 << 20)
    assert [one.recv(1) for one in plain] == [b""] * len(plain)


def test_one_that_ends_in_the_queue(busy: Busy) -> None:
    """Connections closed while their replies wait for a turn leave nothing behind, and the others go on."""
    talk, plain, request, reply = busy
    for one in plain[::2]:
        one.sendall(request)
        one.close()
    exchange([(one, request, reply) for one in plain[1::2]], 1 << 20)
    talk.send(b"mn\r\n")
    assert talk.read(4) == b"MN\r\n"


def test_a_value_that_comes_behind_a_long_reply(busy: Busy) -> None:
    """No byte of a value is lost if the daemon has read the value with a request whose long reply waits for its
    turn."""
    _, plain, request, reply = busy
    stored = random.Random(2).randbytes(300_000)
    pairs = []
    for number, one in enumerate(plain):
        behind = b"set w%d 0 0 %d\r\n%b\r\nget w%d\r\n" % (number, len(stored), stored, number)
        answer = b"STORED\r\nVALUE w%d 0 %d\r\n%b\r\nEND\r\n" % (number, len(stored), stored)
        pairs.append((one, request + behind, reply + answer))
    exchange(pairs, 1 << 20)

"""All values longer than a connection's share of its worker's turn are stored, beside any traffic."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from daemon_tools import Conversation, eventually
from servers import Server

ServerFactory = Callable[..., Server]

CONNECTIONS = 12
TURN = 512 * 1024  # bytes of a worker's turn
SHARE = 64 * 1024  # bytes received in any case


def read(plain: socket.socket, length: int) -> bytes:
    """Reads so many bytes. Raises AssertionError if the connection ends before."""
    received = bytearray()
    while len(received) < length:
        more = plain.recv(length - len(received))
        assert more
        received += more
    return bytes(received)


def ask(plain: socket.socket, request: bytes, reply: bytes) -> None:
    plain.sendall(request)
    assert read(plain, len(reply)) == reply


@pytest.mark.parametrize("size", [SHARE - 2, SHARE + 1, TURN, 1_000_000])
def test_many_at_once(rmemcached_server: ServerFactory, size: int) -> None:
    """Long sets that need many turns are stored, each before its get, and short requests are served in between."""
    server = rmemcached_server("-t", "1", "-m", "128")

    def store(number: int, plain: socket.socket) -> None:
        values = [random.Random(f"{number} {turn}").randbytes(size) for turn in range(4)]
        sets = b"".join(b"set v%d 0 0 %d\r\n%b\r\n" % (number, size, value) for value in values)
        answer = b"VALUE v%d 0 %d\r\n%b\r\nEND\r\n" % (number, size, values[-1])
        ask(plain, sets + b"get v%d\r\n" % number, b"STORED\r\n" * len(values) + answer)

    with ExitStack() as stack, ThreadPoolExecutor(CONNECTIONS) as threads:
        plain = [stack.enter_context(server.connect(30)) for _ in range(CONNECTIONS + 1)]
        storing = [threads.submit(store, number, one) for number, one in enumerate(plain[:-1])]
        while not all(one.done() for one in storing):
            ask(plain[-1], b"mn\r\n", b"MN\r\n")
        for one in storing:
            one.result()


def test_ends_within_a_payload(rmemcached_server: ServerFactory) -> None:
    """The end of a payload that waits for a turn leaves nothing behind, and its neighbours go on."""
    server = rmemcached_server("-t", "1", "-m", "128")
    value = random.Random(1).randbytes(1_000_000)
    request = b"set v 0 0 %d\r\n%b\r\n" % (len(value), value)
    with Conversation(server) as talk, ExitStack() as stack, ThreadPoolExecutor(CONNECTIONS) as threads:
        plain = [stack.enter_context(server.connect(30)) for _ in range(CONNECTIONS)]

        def send(number: int) -> None:
            if number % 2:
                plain[number].sendall(request[: 100_000 * number])
                plain[number].close()
            else:
                ask(plain[number], request * 3, b"STORED\r\n" * 3)

        list(threads.map(send, range(CONNECTIONS)))
        eventually(lambda: int(talk.stats()["curr_connections"]) <= CONNECTIONS // 2 + 2)
        ask(plain[0], b"get v\r\n", b"VALUE v 0 %d\r\n%b\r\nEND\r\n" % (len(value), value))

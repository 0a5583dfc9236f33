"""Forked children, calls in threads, servers in threads, and event loops."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from rmemcached.client import Client

# The fixture `run` of tests/client: runs a coroutine in a new event loop.
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def fork(body: Callable[[], object]) -> int:
    """Runs body in a forked child, and returns the child's number. The child ends with status 0 if body returns None or
    a true value; the child prints an exception."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        result = body()
        status = 0 if result is None or result else 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int) -> None:
    """Waits for a child, and fails if its body raised or returned a false value."""
    assert os.waitpid(child, 0)[1] == 0


def in_child(body: Callable[[], object]) -> None:
    """Runs body in a forked child, and fails if body raised or returned a false value other than None."""
    ended(fork(body))


# The answers of today's memcached to the first requests of a client.
KNOWN = {b"mn\r\n": b"MN\r\n", b"version\r\n": b"VERSION 1.6.45\r\n"}


def know_meta(connection: socket.socket) -> None:
    """Answers, for a server made by hand, the client's question whether the server knows meta commands."""
    questions = b"".join(KNOWN)
    asked = b""
    while asked != questions:
        more = connection.recv(len(questions) - len(asked))
        assert more, "the client has gone"
        asked += more
    connection.sendall(b"".join(KNOWN.values()))


def first_calls(key: str, large: bytes) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls (method, arguments, named arguments) in an order that shows the effect of each."""
    return [
        ("get", (key,), {}),
        ("get", (key, "miss"), {}),
        ("gets", (key, 1, 2), {}),
        ("replace", (key, b"none"), {}),
        ("append", (key, b"none"), {}),
        ("set", (key, b"10"), {"flags": 7}),
        ("add", (key, b"there"), {}),
        ("incr", (key, 5), {}),
        ("decr", (key, 100), {}),
        ("append", (key, b"1"), {}),
        ("prepend", (key, b"2"), {}),
        ("get", (key,), {}),
        ("gat", (key, 100), {}),
        ("touch", (key, 100), {}),
        ("touch", ("no" + key, 100), {}),
        ("cas", (key, b"never", 1), {}),
        ("cas", ("no" + key, b"never", 1), {}),
        ("set", (key, large), {"expire": 100}),
        ("get", (key,), {}),
    ]


def wait_until_busy(client: Client, calls: int = 1) -> None:
    """Waits until so many calls of the client are under way in other threads, which must be about to begin."""
    while client.calls < calls:
        time.sleep(0.0005)

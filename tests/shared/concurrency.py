"""Forked children, calls in threads, and servers in threads."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from rmemcached.client import Client


def in_child(body: Callable[[], None]) -> None:
    """Runs body in a forked child, and fails if body raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


# The answers of a present memcached to the first requests of a client.
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


def wait_until_busy(client: Client, calls: int = 1) -> None:
    """Waits until so many calls of the client are under way in other threads, which must be about to begin."""
    while client.calls < calls:
        time.sleep(0.0005)

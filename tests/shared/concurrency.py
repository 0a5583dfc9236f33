"""Forked children, calls of other threads, and servers that threads are."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from rmemcached.client import Client


def in_child(body: Callable[[], None]) -> None:
    """Runs body in a forked child and fails when it raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


# How a server of today answers what a client asks it at first, at once.
KNOWN = {b"mn\r\n": b"MN\r\n", b"version\r\n": b"VERSION 1.6.45\r\n"}


def know_meta(connection: socket.socket) -> None:
    """A server made by hand answers the client's question whether it knows meta commands."""
    questions = b"".join(KNOWN)
    asked = b""
    while asked != questions:
        more = connection.recv(len(questions) - len(asked))
        assert more, "the client has gone"
        asked += more
    connection.sendall(b"".join(KNOWN.values()))


def wait_until_busy(client: Client, calls: int = 1) -> None:
    """Returns when so many calls of the client are under way, in other threads; they must be about to begin."""
    while client.calls < calls:
        time.sleep(0.0005)

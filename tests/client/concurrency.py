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


def know_meta(connection: socket.socket) -> None:
    """A server made by hand answers the client's question whether it knows meta commands."""
    asked = b""
    while asked != b"mn\r\n":
        asked += connection.recv(len(b"mn\r\n") - len(asked))
    connection.sendall(b"MN\r\n")


def wait_until_busy(client: Client, calls: int = 1) -> None:
    """Returns when so many calls of the client are under way, in other threads; they must be about to begin."""
    while client.calls < calls:
        time.sleep(0.0005)

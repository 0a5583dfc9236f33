"""Of all clients that read a stale item, a single client is told to recache the item."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from servers import Server

ServerFactory = Callable[..., Server]
CONTESTED = 500  # wins by the other worker before the test ends
MOST = 5_000_000  # limit of markings, if the wins are too few
BATCH = 5_000  # requests in a batch
MARK = b"md key I\r\nmg key s\r\n"
READ = b"mg key s\r\n"


def converse(connection: socket.socket, requests: bytes) -> bytes:
    """Sends requests whose replies have a line each. Returns the replies."""
    connection.sendall(requests)
    replies = bytearray()
    count = requests.count(b"\n")
    while count > 0:
        chunk = connection.recv(1 << 18)
        assert chunk, "the daemon closed the connection"
        count -= chunk.count(b"\n")
        replies += chunk
    return bytes(replies)


def test_one_client_wins_a_stale_item(rmemcached_server: ServerFactory) -> None:
    """When an item is marked stale while a connection of another worker reads the item, a single read wins, each
    time."""
    server = rmemcached_server("-t", "2")
    stop = threading.Event()
    others = [0]

    def read() -> None:
        while not stop.is_set():
            others[0] += converse(reading, READ * BATCH).count(b" W")

    with server.connect() as marking, server.connect() as reading:
        marking.sendall(b"ms key 1\r\nx\r\n")
        assert marking.recv(100) == b"HD\r\n"
        reader = threading.Thread(target=read)
        reader.start()
        marked = wins = 0
        try:
            while others[0] < CONTESTED and marked < MOST:
                # The first read after the marking wins: the reader's, or this connection's.
                replies = converse(marking, MARK * BATCH)
                assert replies.count(b"HD\r\n") == BATCH
                marked += BATCH
                wins += replies.count(b" W")
        finally:
            stop.set()
            reader.join()
        assert wins + others[0] == marked
        assert others[0] > 0

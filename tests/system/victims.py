"""Clients to be killed. Each line on stdin (mode and arguments) forks a client. The client, once in position, prints
its process id on stdout.

    victims.py HOST PORT
    storm SEED       sets and gets of all sizes, for ever
    read KEY SIZE    a set by RDMA READ that the client never answers
    write KEY SIZE   a get by RDMA WRITE that the client never takes
    idle             a queue pair with nothing to do
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

from daemon_tools import DATA, TIMEOUT, Peer, rdma_client
from selfcheck import make_value, problem

from rmemcached.verbs import Access

SIZES = (0, 1, 7, 100, 1000, 4096, 4097, 8184, 20_000, 100_000, 1_000_000)
KEYS = 16


def tell(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def pause() -> NoReturn:
    while True:
        signal.pause()


def storm(server: Any, seed: int) -> None:
    """Sets and gets for ever. Prints the fault of a wrong value."""
    source = random.Random(seed)
    client = rdma_client(server)
    client.version()
    tell(os.getpid())
    while True:
        key = f"storm{source.randrange(KEYS)}"
        if source.random() < 0.5:
            client.set(key, make_value(source.getrandbits(32), source.choice(SIZES)))
        else:
            value = client.get(key)
            wrong = problem(value) if value is not None else None
            if wrong:
                tell(f"wrong: {wrong}")
                return


def hang(server: Any, mode: str, key: str, size: int) -> None:
    """Sends a set (mode "read") or a get ("write") with memory of the peer, and then never polls."""
    peer = Peer(server, receive_buffer=16384)
    memory = bytearray(size)
    region = peer.region(memory, Access.REMOTE_READ if mode == "read" else Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    if mode == "read":
        request = f"ms {key} {size} @{region.addr:x}:{region.rkey:x}\r\n"
    else:
        request = f"mg {key} v @{region.addr:x}:{region.rkey:x}:{size:x}\r\n"
    peer.send(DATA, request.encode())
    tell(os.getpid())
    pause()


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    server = SimpleNamespace(
        address=(host, port),
        host=host,
        port=port,
        connect=lambda timeout=TIMEOUT: socket.create_connection((host, port), timeout),
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        mode, *arguments = line.split()
        if os.fork():
            continue
        try:
            if mode == "storm":
                storm(server, int(arguments[0]))
            elif mode == "idle":
                client = rdma_client(server)
                client.version()
                tell(os.getpid())
                pause()
            else:
                hang(server, mode, arguments[0], int(arguments[1]))
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()

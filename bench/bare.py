"""The servers of the floors, as a program of its own: a bare echo server, or a server that answers in two cache lines.

    python -P -m rmemcached.bench.bare --port N | --path PATH [--lines [--yields]]

With --lines each connection hands over shared memory; the server answers there until the connection ends.
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket

from rmemcached.bench import _floor

HOST = "127.0.0.1"


def listen(port: int, path: str) -> socket.socket:
    if path:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(4096)
        return listener
    # The accepted connections inherit the option, as with memcached.
    listener = socket.create_server((HOST, port), backlog=4096)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve_lines(listener: socket.socket, yields: bool) -> None:
    """Answers the clients in turn, and sleeps between two of them."""
    while True:
        with listener.accept()[0] as plain:
            _, descriptors, _, _ = socket.recv_fds(plain, 1, 1)
            for descriptor in descriptors:
                with mmap.mmap(descriptor, 0) as memory, memoryview(memory) as view:
                    os.close(descriptor)
                    plain.sendall(b"1")
                    _floor.answer_lines(view, yields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", default="")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--yields", action="store_true")
    options = parser.parse_args()
    with listen(options.port, options.path) as listener:
        if options.lines:
            serve_lines(listener, options.yields)
        _floor.serve(listener.fileno())


if __name__ == "__main__":
    main()

"""bench/servers.py: what a daemon writes can be read at any time."""

from __future__ import annotations

import sys

from servers import Server, free_port

LINES = 100_000
# A program that listens on a port, and from the first connection on writes numbered lines, each by itself.
WRITER = f"""
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
listener.accept()
for number in range({LINES}):
    os.write(2, b"%d\\n" % number)
listener.accept()
"""


def test_output_is_whole_however_often_it_is_read() -> None:
    port = free_port()
    with Server([sys.executable, "-c", WRITER, str(port)], port) as server:
        while not (read := server.stderr()).endswith(f"\n{LINES - 1}\n"):
            assert read.count("\n") < LINES, read[-100:]
        assert [int(line) for line in read.splitlines()] == list(range(LINES))

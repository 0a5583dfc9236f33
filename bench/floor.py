"""The bare echo server as a process of its own, and connections to it. What it measures is in _floor.pyx."""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
from collections.abc import Iterator

from rmemcached.bench.contenders import Contender, pinned
from rmemcached.bench.servers import HOST, Server, free_port

STORED = b"STORED\r\n"
TIMEOUT = 60.0
ECHO = "a bare echo server over {transport}: epoll_wait, recv and send, without Python"
CALL = "an empty method call from Python that copies the value once"


def listen(port: int, path: str) -> socket.socket:
    if path:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(4096)
        return listener
    # Inherited by the connections, as with memcached.
    listener = socket.create_server((HOST, port), backlog=4096)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def start_echo(transport: str, folder: str, cores: set[int]) -> Server:
    """Starts it on these cores. transport: "tcp" or "unix". Raises StartError."""
    command = [sys.executable, "-P", "-m", "rmemcached.bench.floor"]
    with pinned(cores):
        if transport == "unix":
            path = f"{folder}/echo"
            return Server([*command, "--path", path], 0, path)
        port = free_port()
        return Server([*command, "--port", str(port)], port)


def texts(operation: str, key: str, value: bytes) -> tuple[bytes, bytes]:
    """A request of the text protocol, and its reply."""
    if operation == "set":
        return b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value), STORED
    name = key.encode()
    return b"get %s\r\n" % name, b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (name, len(value), value)


def echo_connection(server: Server, request: int, reply: bytes, together: int = 1) -> socket.socket:
    """A connection that answers each request of so many bytes with the reply. Raises OSError, ConnectionError."""
    plain = server.connect(TIMEOUT)
    try:
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.sendall(struct.pack("=III", request, len(reply), together) + reply)
        if plain.recv(1) != b"1":
            raise ConnectionError("the echo server closed the connection")
        plain.setblocking(True)
    except BaseException:
        plain.close()
        raise
    return plain


def floor_of(contender: Contender) -> str:
    """The transport of the echo server that a contender stands beside; "": there is none."""
    if contender.server == "running" or contender.transport == "auto":
        return ""
    return {"soft_shm": "", "soft_iw": "tcp", "verbs": ""}.get(contender.transport, contender.transport)


@contextlib.contextmanager
def echo_servers(contenders: list[Contender], folder: str, cores: set[int]) -> Iterator[dict[str, Server]]:
    """{"tcp" or "unix": server} as the contenders want them."""
    with contextlib.ExitStack() as stack:
        wanted = dict.fromkeys(filter(None, map(floor_of, contenders)))
        yield {name: stack.enter_context(start_echo(name, folder, cores)) for name in wanted}


def main() -> None:
    from rmemcached.bench import _floor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", default="")
    options = parser.parse_args()
    with listen(options.port, options.path) as listener:
        _floor.serve(listener.fileno())


if __name__ == "__main__":
    main()

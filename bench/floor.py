"""The floors of contenders, and clients of them. bare.py has the servers, _floor.pyx the measuring clients.

A floor is measured in the same rounds as a contender, and by the same means: its clients look like a Client.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rmemcached.bench import _floor
from rmemcached.bench.contenders import Contender, pinned
from rmemcached.bench.document import Record
from rmemcached.bench.servers import Server, on_free_port

STORED = b"STORED\r\n"
TIMEOUT = 60.0
TCP, UNIX, LINES, CALL = (f"floor: {name}" for name in ("tcp", "unix", "lines", "call"))
TEXTS = {
    TCP: "a bare echo server over TCP: epoll_wait, recv and send, without Python",
    UNIX: "a bare echo server over a UNIX socket: epoll_wait, recv and send, without Python",
    LINES: "a ping-pong through two cache lines of shared memory, of which both sides poll one, and one memcpy",
    CALL: "an empty method call from Python that copies the value once",
}
FLOORS = {"soft_shm": LINES, "soft_iw": TCP, "tcp": TCP, "unix": UNIX}


def start_echo(transport: str, folder: str, cores: set[int]) -> Server:
    """Starts the echo server on these cores. transport: "tcp" or "unix". Raises StartError."""
    command = [sys.executable, "-P", "-m", "rmemcached.bench.bare"]
    with pinned(cores):
        if transport == "unix":
            path = f"{folder}/echo"
            return Server([*command, "--path", path], 0, path)
        return on_free_port(lambda port: Server([*command, "--port", str(port)], port))


def start_lines(folder: str, cores: set[int], yields: bool) -> Server:
    """Starts the server of the cache lines, on one of these cores. Raises StartError.

    yields: its clients have the same core; else they leave the core to the server.
    """
    core = max(cores)
    path = f"{folder}/{'yields' if yields else f'lines.{core}'}"
    command = [sys.executable, "-P", "-m", "rmemcached.bench.bare", "--lines", *(["--yields"] if yields else [])]
    with pinned({core}):
        return Server([*command, "--path", path], 0, path)


def texts(operation: str, key: str, value: bytes, keys: int = 1) -> tuple[bytes, bytes]:
    """A request of the text protocol, and its reply. keys: of a multiget, or sets sent together."""
    name = key.encode()
    if operation == "set":
        return b"set %s 0 0 %d\r\n%s\r\n" % (name, len(value), value) * keys, STORED * keys
    hit = b"VALUE %s 0 %d\r\n%s\r\n" % (name, len(value), value)
    return b"get" + b" %s" % name * keys + b"\r\n", hit * keys + b"END\r\n"


def open_echo(address: Any, request: int, reply: bytes, together: int = 1) -> socket.socket:
    """A connection answering each request of so many bytes with the reply. Raises OSError, ConnectionError."""
    plain = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    try:
        plain.settimeout(TIMEOUT)
        plain.connect(address)
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


def echo_connection(server: Server, request: int, reply: bytes, together: int = 1) -> socket.socket:
    """open_echo to a Server."""
    return open_echo(server.address, request, reply, together)


class EchoClient:
    """Looks like a client: `get` and `set` (`get_many` and `set_many` of so many keys) ask the echo server.

    Each operation has a connection of its own, because a connection has one size of requests and replies.
    """

    get: Any
    set: Any
    get_many: Any
    set_many: Any

    def __init__(
        self, address: Any, key: str, value: bytes, operations: Sequence[str] = ("get", "set"), keys: int = 1
    ) -> None:
        self.plain = []
        for operation in operations:
            request, reply = texts(operation, key, value, keys)
            plain = open_echo(address, len(request), reply)
            self.plain.append(plain)
            head, length = (reply.index(value), len(value)) if operation == "get" else (0, 0)
            stride = len(reply[: -len(b"END\r\n")]) // keys
            asker = _floor.Asker(plain.fileno(), len(request), len(reply), head, length, stride)
            name = operation if keys == 1 else f"{operation}_many"
            setattr(self, name, getattr(asker, name))

    def close(self) -> None:
        for plain in self.plain:
            plain.close()


class LinesClient:
    """Looks like a client over shared memory: asks through two cache lines, and copies values once.

    Until close() its process leaves the server's core to the polling server.
    """

    def __init__(self, address: str, value: bytes) -> None:
        yields = os.path.basename(address) == "yields"
        self.allowed = os.sched_getaffinity(0)
        if not yields:
            server = int(address.rpartition(".")[2])
            os.sched_setaffinity(0, self.allowed - {server} or self.allowed)
        descriptor = os.memfd_create("lines")
        try:
            os.truncate(descriptor, _floor.Lines.VALUES_AT + len(value))
            self.memory = mmap.mmap(descriptor, 0)
            with socket.socket(socket.AF_UNIX) as plain:
                plain.settimeout(TIMEOUT)
                plain.connect(address)
                socket.send_fds(plain, [b"x"], [descriptor])
                if plain.recv(1) != b"1":
                    raise ConnectionError("the server of the cache lines closed the connection")
        finally:
            os.close(descriptor)
        self.lines = _floor.Lines(memoryview(self.memory), value, yields)
        self.get, self.set = self.lines.get, self.lines.set
        self.get_many, self.set_many = self.lines.get_many, self.lines.set_many

    def close(self) -> None:
        self.lines.close()
        os.sched_setaffinity(0, self.allowed)


def floor_client(name: str, address: Any, key: str, value: bytes, operations: Sequence[str] = ("get", "set")) -> Any:
    """A client of the floor of this name, for values of this size."""
    return LinesClient(address, value) if name == LINES else EchoClient(address, key, value, operations)


def floor_of(contender: Contender) -> str:
    """The name of a contender's floor; "": there is none."""
    if contender.server == "running":
        return ""
    return FLOORS.get(contender.transport, "")


def floors_of(contenders: Sequence[Contender], without: Sequence[str] = ()) -> dict[str, str]:
    """{contender: its floor}, for a Case."""
    found = {contender.name: floor_of(contender) for contender in contenders}
    return {name: floor for name, floor in found.items() if floor and floor not in without}


@contextlib.contextmanager
def floor_servers(
    wanted: Sequence[str], folder: str, cores: set[int], yields: bool, record: Record | None = None
) -> Iterator[dict[str, Server]]:
    """The servers of these floors, each once, by name, added to the record. yields: as of start_lines."""
    with contextlib.ExitStack() as stack:
        made = {}
        for name in dict.fromkeys(wanted):
            if record is not None:
                record.floor(name, TEXTS[name])
            server = (
                start_lines(folder, cores, yields)
                if name == LINES
                else start_echo(name.removeprefix("floor: "), folder, cores)
            )
            made[name] = stack.enter_context(server)
        yield made


def one_core(for_clients: set[int], for_servers: set[int]) -> bool:
    """Whether clients and servers share a single core: a polling server must give the core up."""
    return len(for_clients | for_servers) == 1

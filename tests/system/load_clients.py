"""Clients that load a daemon and check every value: RDMA clients in turn, TCP clients over one poll loop.

    load_clients.py HOST PORT KIND COUNT SECONDS SEED

They run for SECONDS after a line on stdin. The last line of stdout is a JSON object: operations, hits of gets, payload
bytes, the longest operation in seconds, sets refused for want of memory, and the faults.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

from daemon_tools import rdma_client
from selfcheck import make_value, problem
from transport import within

from rmemcached.client import MemcacheServerError

SIZES = (0, 1, 7, 8, 64, 100, 500, 1000, 4000, 4096, 4097, 8192, 16_000, 65_536, 200_000, 1_000_000)
WEIGHTS = (2, 2, 2, 2, 8, 20, 10, 10, 4, 4, 4, 4, 4, 3, 1, 1)
KEYS = 400
OUT_OF_MEMORY = "out of memory storing object"
TIMEOUT = within(20.0)  # seconds: a longer operation is a stall


class Result:
    """The counts of all clients, and the found faults."""

    def __init__(self) -> None:
        self.operations = 0
        self.hits = 0
        self.payload = 0
        self.longest = 0.0
        self.full = 0  # sets refused for want of memory
        self.wrong: list[str] = []

    def got(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        self.hits += 1
        self.payload += len(value)
        wrong = problem(value)
        if wrong:
            self.wrong.append(f"{key}: {wrong}")

    def did(self, began: float) -> None:
        self.operations += 1
        self.longest = max(self.longest, time.monotonic() - began)


def choose(source: random.Random) -> tuple[str, bytes | None]:
    """A key, and the value for a set, or None for a get."""
    key = f"load{source.randrange(KEYS)}"
    if source.random() < 0.6:
        return key, None
    return key, make_value(source.getrandbits(32), source.choices(SIZES, WEIGHTS)[0])


def run_rdma(server: Any, count: int, seconds: float, seed: int, result: Result) -> None:
    """Runs so many RDMA clients in turn, in this thread."""
    source = random.Random(seed)
    clients = [rdma_client(server, timeout=TIMEOUT) for _ in range(count)]
    for client in clients:
        client.version()
    ready()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            key, value = choose(source)
            began = time.monotonic()
            if value is not None:
                try:
                    if not client.set(key, value):
                        result.wrong.append(f"{key}: not stored")
                except MemcacheServerError as error:
                    if OUT_OF_MEMORY not in str(error):
                        raise
                    result.full += 1
                result.payload += len(value)
            elif source.random() < 0.9:
                result.got(key, client.get(key))
            elif source.random() < 0.5:
                for name, found in client.get_many([f"load{source.randrange(KEYS)}" for _ in range(5)]).items():
                    result.got(name, found)
            else:
                client.delete(key)
            result.did(began)
    for client in clients:
        client.close()


class TcpClient:
    """A TCP client with one request at a time on a non-blocking socket, driven by the poll loop."""

    def __init__(self, server: Any, source: random.Random, result: Result) -> None:
        self.sock = socket.create_connection(server.address, TIMEOUT)
        self.sock.setblocking(False)
        self.source = source
        self.result = result
        self.out = memoryview(b"")
        self.inbox = bytearray()
        self.key = ""
        self.setting = False
        self.began = 0.0

    def start(self) -> None:
        self.key, value = choose(self.source)
        self.began = time.monotonic()
        self.setting = value is not None
        if value is None:
            self.out = memoryview(f"get {self.key}\r\n".encode())
        else:
            self.out = memoryview(b"set %s 0 0 %d\r\n%s\r\n" % (self.key.encode(), len(value), value))
            self.result.payload += len(value)
        self.write()

    def write(self) -> None:
        try:
            while self.out:
                self.out = self.out[self.sock.send(self.out) :]
        except BlockingIOError:
            pass

    def read(self) -> bool:
        """Takes the received bytes. True: the reply is whole."""
        try:
            while True:
                more = self.sock.recv(1 << 18)
                if not more:
                    raise ConnectionError("closed by the daemon")
                self.inbox += more
                if len(more) < 1 << 18:
                    break
        except BlockingIOError:
            pass
        if self.setting:
            if not self.inbox.endswith(b"\r\n"):
                return False
            if self.inbox == f"SERVER_ERROR {OUT_OF_MEMORY}\r\n".encode():
                self.result.full += 1
            elif self.inbox != b"STORED\r\n":
                self.result.wrong.append(f"{self.key}: {bytes(self.inbox[:100])!r}")
        elif self.inbox != b"END\r\n":
            head = self.inbox.find(b"\r\n")
            if head < 0:
                return False
            length = int(self.inbox[:head].split()[3])
            if len(self.inbox) < head + 2 + length + 7:
                return False
            self.result.got(self.key, bytes(self.inbox[head + 2 : head + 2 + length]))
            if self.inbox[head + 2 + length :] != b"\r\nEND\r\n":
                self.result.wrong.append(f"{self.key}: no END behind the value")
        self.inbox.clear()
        self.result.did(self.began)
        return True


def run_tcp(server: Any, count: int, seconds: float, seed: int, result: Result) -> None:
    """Runs so many TCP clients over one poll loop."""
    source = random.Random(seed)
    poll = select.poll()
    clients = {}
    for _ in range(count):
        client = TcpClient(server, source, result)
        clients[client.sock.fileno()] = client
        poll.register(client.sock, select.POLLIN)
    ready()
    end = time.monotonic() + seconds
    busy = set(clients)
    for client in clients.values():
        client.start()
        if client.out:
            poll.modify(client.sock, select.POLLIN | select.POLLOUT)
    while busy:
        events = poll.poll(TIMEOUT * 1000)
        if not events:
            result.wrong.append(f"{len(busy)} TCP clients stall")
            return
        for fd, event in events:
            client = clients[fd]
            if event & select.POLLOUT:
                client.write()
                if not client.out:
                    poll.modify(fd, select.POLLIN)
            if event & ~select.POLLOUT and client.read():
                if time.monotonic() >= end:
                    busy.discard(fd)
                    poll.unregister(fd)
                    continue
                client.start()
                if client.out:
                    poll.modify(fd, select.POLLIN | select.POLLOUT)
    for client in clients.values():
        client.sock.close()


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    host, port, kind, count, seconds, seed = sys.argv[1:]
    server = SimpleNamespace(
        address=(host, int(port)), connect=lambda timeout=TIMEOUT: socket.create_connection((host, int(port)), timeout)
    )
    result = Result()
    run = run_rdma if kind == "rdma" else run_tcp
    try:
        run(server, int(count), float(seconds), int(seed), result)
    except Exception as error:
        result.wrong.append(f"{type(error).__name__}: {error}")
    print(json.dumps(vars(result)), flush=True)


if __name__ == "__main__":
    main()

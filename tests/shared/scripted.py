"""Servers that give the answers of a test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class Scripted:
    """A server other than memcached: after `version` and the like, `answers` yields the pieces of each reply."""

    def __init__(self, answers: Callable[[bytes], Iterator[bytes]]) -> None:
        self.answers = answers
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.threads.append(threading.Thread(target=self.serve, args=(sock,)))
                self.threads[-1].start()

    def serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines, contextlib.suppress(OSError):
            sock.settimeout(20)
            for line in lines:
                known = {b"version": b"VERSION 1\r\n", b"mn": b"MN\r\n"}.get(line.strip())
                for piece in iter([known]) if known else self.answers(line.strip()):
                    sock.sendall(piece)

    def stop(self) -> None:
        self.ended.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(20)

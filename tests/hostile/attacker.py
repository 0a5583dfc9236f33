"""The process of an attacker: runs a function of an attack_*.py.

    attacker.py MODULE FUNCTION ADDRESS ARGUMENTS

ADDRESS (a list of host and port, or the path of a UNIX socket) and ARGUMENTS (an object) are JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


class Target:
    """The daemon within the attacker's knowledge: its address, and docs/."""

    def __init__(self, address: Any) -> None:
        self.address: tuple[str, int] | str = address if isinstance(address, str) else (address[0], address[1])

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A connected socket. receive_buffer: the size in bytes of its receive buffer; a small buffer fills soon."""
        plain = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.connect(self.address)
        return plain

    def ready(self) -> None:
        """Reports the beginning of the attack."""
        self.say("ready")

    def say(self, line: object) -> None:
        os.write(1, f"{line}\n".encode())

    def told(self) -> str:
        """Waits for a line from the test."""
        return sys.stdin.readline().rstrip("\n")

    def stay(self) -> None:
        """Keeps everything until the test kills this process."""
        while True:
            signal.pause()


def die_with_parent() -> None:
    """Ends this process with the test: no attack outlives the test."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    module, function, address, arguments = sys.argv[1:]
    die_with_parent()
    getattr(importlib.import_module(module), function)(Target(json.loads(address)), **json.loads(arguments))


if __name__ == "__main__":
    main()

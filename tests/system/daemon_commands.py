"""Daemons as a user starts them: by their command line, with their messages and exit status."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

START = 20.0  # seconds, the limit of a start or a stop
OURS = [sys.executable, "-P", "-m", "rmemcached"]
AS_ROOT = ["-u", "root"] if os.geteuid() == 0 else []


def run(command: list[str], *flags: str, **options: Any) -> tuple[int, str, str]:
    """Runs a command to its own end: exit status, stdout, stderr."""
    done = subprocess.run(
        [*command, *flags],
        capture_output=True,
        text=True,
        timeout=START,
        stdin=subprocess.DEVNULL,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def refused(*flags: str) -> tuple[int, str]:
    """(exit status, message) of a refused command line."""
    status, out, message = run(OURS, *AS_ROOT, *flags)
    assert out == "" and "Traceback" not in message, message
    return status, message


def as_nobody(*flags: str) -> tuple[int, str, str]:
    """Runs the command as a user without rights, who may have 256 descriptors.

    The process loads the program while still root: others may not be able to read the folder.
    """
    program = (
        "import encodings.idna, os, resource, sys; import rmemcached.cli, rmemcached.server.server\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(rmemcached.cli.main(sys.argv[1:]))"
    )
    return run([sys.executable, "-P", "-c", program], *flags)


def started(*flags: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a daemon with these flags, without waiting until the daemon serves."""
    return subprocess.Popen(
        [*OURS, *AS_ROOT, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def stopped(process: subprocess.Popen[str], how: int = signal.SIGTERM) -> tuple[int, str]:
    """Stops a daemon. Returns its exit status and output."""
    process.send_signal(how)
    out, err = process.communicate(timeout=START)
    return process.returncode, out + err


def answers(host: str, port: int) -> bool:
    """Whether a daemon answers at this address."""
    try:
        with socket.create_connection((host, port), 5) as sock:
            sock.sendall(b"mn\r\n")
            return sock.recv(10) == b"MN\r\n"
    except OSError:
        return False

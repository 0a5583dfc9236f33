"""Checks the imported rmemcached: its commands, the daemon, and set and get over the transports without a device.

    python - < tests/smoke.py       # the rmemcached found by a Python started in this folder
    python -P - < tests/smoke.py    # the installed rmemcached

Python reads this file from stdin, and so finds modules as for a user who types. The output is a line with the checks,
or the status is 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import rmemcached
from rmemcached.client import AsyncClient, Client

HOST = "127.0.0.1"
TRANSPORTS = ("soft_shm", "soft_iw", "tcp")
SIZES = (0, 100, 4096, 1_000_000)
PYTHON = (sys.executable, *(["-P"] if sys.flags.safe_path else []))
SCRIPTS = Path(sys.executable).parent
PERFTEST = ("read", "bw", "-d", "soft_shm0", "--local", "-n", "10", "-s", "64k")
SECONDS = 60
VERSIONS = f"memcached {rmemcached.MEMCACHED_VERSION} (rmemcached {rmemcached.__version__})\n"


def printed(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
    return done.stdout


def check(right: object, what: str) -> None:
    if not right:
        sys.exit(f"rmemcached in {rmemcached.__path__[0]}: {what}")


@contextlib.contextmanager
def daemon(command: Sequence[str]) -> Iterator[int]:
    """A daemon in the background, and its port. Its command ends when the daemon serves."""
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
    user = ["-u", "root"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pid")
        printed(*command, "-d", "-P", str(file), "-l", HOST, "-p", str(port), *user)
        pid = int(file.read_text())
        ended = os.pidfd_open(pid)
        try:
            yield port
        finally:
            os.kill(pid, signal.SIGTERM)
            stopped = select.select([ended], [], [], SECONDS)[0]
            os.close(ended)
            check(stopped, f"the daemon does not end by SIGTERM: {command}")


def set_and_get(port: int, transport: str) -> None:
    with Client(HOST, port, transport=transport, default_noreply=False, timeout=SECONDS) as client:
        for size in SIZES:
            value = os.urandom(size)
            check(client.set("key", value) and client.get("key") == value, f"{size} bytes over {transport}")
        check(transport in ("auto", client.transport), f"{client.transport} was taken, and {transport} was named")


async def set_and_get_with_asyncio(port: int) -> None:
    async with AsyncClient(HOST, port, default_noreply=False) as client:
        check(await client.set("key", b"value") and await client.get("key") == b"value", "AsyncClient")


def main() -> None:
    for command in ((str(SCRIPTS / "rmemcached"),), (*PYTHON, "-m", "rmemcached")):
        check(printed(*command, "-V") == VERSIONS, f"{command} -V")
        with daemon(command) as port:
            for transport in (*TRANSPORTS, "auto"):
                set_and_get(port, transport)
            asyncio.run(set_and_get_with_asyncio(port))
    check("soft_shm0: soft\n" in printed(str(SCRIPTS / "rmemcached-devices")), "rmemcached-devices")
    measured = printed(str(SCRIPTS / "rmemcached-perftest"), *PERFTEST)
    check(measured.splitlines()[-1].startswith(" 65536 "), "rmemcached-perftest")
    print(f"rmemcached {rmemcached.__version__} in {rmemcached.__path__[0]} works, over {', '.join(TRANSPORTS)}")


if __name__ == "__main__":
    main()

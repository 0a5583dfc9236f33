"""A daemon and a client that may not lock as much memory as their device wants. Run by test_lab.py in a guest.

The kernel limits only processes without CAP_IPC_LOCK: both run as a user without rights. The modules are loaded while
still root: others may not be able to read their folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from daemon_tools import Conversation, eventually
from guest_tools import device_for_everybody  # noqa: F401
from servers import Server, free_port

from rmemcached.client import Client

WITHIN = 20.0
KB, MB = 1 << 10, 1 << 20
NOBODY = """
import encodings.idna, logging, os, resource, sys
import rmemcached.cli, rmemcached.client, rmemcached.client.transport._rdma, rmemcached.server.server
resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[1]), int(sys.argv[1])))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""
DAEMON = NOBODY + "sys.exit(rmemcached.cli.main(sys.argv[2:]))"
CLIENT = (
    NOBODY
    + """
logging.basicConfig(level="INFO", format="%(message)s")
with rmemcached.client.Client(sys.argv[2], timeout=20, default_noreply=False) as client:
    for size in (0, 100, 4097, 1_000_000, 3_000_000):
        for number in range(3):
            value = os.urandom(size)
            assert client.set("key", value) and client.get("key") == value
            values = {"a": value, "b": value[:5000], "c": value[::-1]}
            assert client.set_many(values) == [] and client.get_many(list(values)) == values
            client.set("quiet", value, noreply=True)
            assert client.get("quiet") == value
    print(client.transport)
"""
)


@contextmanager
def daemon(limit: int, *flags: str) -> Iterator[Server]:
    port = free_port()
    # With -c 256 the daemon stays within the user's limit of descriptors, and does not warn about the limit.
    command = [sys.executable, "-P", "-c", DAEMON, str(limit), "-p", str(port), "-U", "0", "-l", "127.0.0.1"]
    command += ["-c", "256", *flags]
    with Server(command, port) as server:
        yield server
        assert server.alive(), server.stderr()


def said(server: Server) -> list[str]:
    """The daemon's lines about its device, without the line about the meeting place of shared memory."""
    lines = [line for line in server.stderr().splitlines() if line.startswith("RDMA: ")]
    return [line for line in lines if not line.startswith("RDMA: shared memory meets")]


def shortage(limit: int) -> str:
    return (
        f"RDMA: 64 MB of item memory could not be locked for the device: ulimit -l is {limit // KB} KB; it must have"
        " room for -m and the connections (systemd: LimitMEMLOCK=infinity)"
    )


def test_daemon() -> None:
    """A daemon with too little lockable memory reports so once, at its start, and serves on the software devices."""
    with daemon(64 * KB, "-v") as server, Conversation(server) as control:
        assert control.stats("rdma")["rdma_device"] == "soft_iw0,soft_shm0"
        assert said(server) == [shortage(64 * KB) + ": the software devices serve alone"]
        with Client(server.address, default_noreply=False, timeout=WITHIN) as client:
            assert client.set("key", bytes(MB)[:-100]) and client.get("key") == bytes(MB)[:-100]
            assert client.transport == "soft_shm"


def test_daemon_that_is_told_which_device() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", DAEMON, str(64 * KB), "-p", str(free_port()), "-o", "rdma_device=rxe0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr == shortage(64 * KB) + "; -o rdma_device=none runs on the software devices alone\n"


def test_daemon_that_grows() -> None:
    """A daemon that may lock its first memory, and not later memory, gives up the device, and all else goes on."""
    limit = 80 * MB
    with daemon(limit, "-m", "200", "-v") as server, Conversation(server) as control:
        assert "rxe0" in control.stats("rdma")["rdma_device"]
        with Client(server.address, transport="verbs", default_noreply=False, timeout=WITHIN) as client:
            assert client.set("early", bytes(100_000)) and client.get("early") == bytes(100_000)
        value = os.urandom(900_000)
        with Client(server.address, transport="soft_iw", default_noreply=False, timeout=WITHIN) as client:
            for number in range(100):
                assert client.set(f"key{number}", value)
            eventually(lambda: "rxe0" not in control.stats("rdma")["rdma_device"], WITHIN)
            assert all(client.get(f"key{number}") == value for number in range(100))
        with Client(server.address, default_noreply=False, timeout=WITHIN) as client:
            assert client.get("early") == bytes(100_000)
            assert client.transport == "soft_shm"
        assert said(server)[1:] == [shortage(limit) + "; its connections end"]


@pytest.fixture
def anybody_s(rmemcached_server: Callable[..., Server]) -> Server:
    """A daemon of root's: other users have no shared memory with the daemon."""
    return rmemcached_server("-m", "100", "-I", "4m")


def run_client(server: Server, limit: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLIENT, str(limit), server.place],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_client(anybody_s: Server) -> None:
    """Without memory for messages the client takes another transport, and logs a line with the reason."""
    chosen, transport = run_client(anybody_s, 64 * KB)
    assert transport == "tcp"
    assert (
        "verbs is not available: no queue pair here: [Errno 12] 384 KB could not be locked for the device: ulimit -l"
        " is 64 KB; raise it (systemd: LimitMEMLOCK=infinity)" in chosen
    )


def test_client_with_large_values(anybody_s: Server) -> None:
    """With memory for messages, but not for values, the client copies values into messages, and logs a line."""
    chosen, shortage, transport = run_client(anybody_s, 600 * KB)
    assert transport == "verbs" and "transport verbs (both ends have it)" in chosen
    assert shortage == (
        "transport verbs: 1024 KB could not be locked for the device: ulimit -l is 600 KB; raise it"
        " (systemd: LimitMEMLOCK=infinity); large values are copied"
    )

"""rmemcached-doctor with obstacles: other users, other network namespaces, a firewall. All are real.

Users and network namespaces need root; in continuous integration (CI is set) their absence is a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from rmemcached.client import Client

ServerFactory = Callable[..., Server]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ, reason="root is needed for users and network namespaces"
)

HERE, THERE, PORT = "10.99.7.1", "10.99.7.2", 11211
WITHIN = 40.0
# The modules are loaded while still root: others may not be able to read their folder.
NOBODY = """
import encodings.idna, os, sys
import rmemcached.client.transport._rdma, rmemcached.tools.doctor
rmemcached.tools.doctor.make_parser().format_help()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(rmemcached.tools.doctor.main(sys.argv[1:]))
"""
PROGRAM = ("-m", "rmemcached.tools.doctor")


def doctor(*arguments: str, within: tuple[str, ...] = (), program: tuple[str, ...] = PROGRAM) -> dict[str, Any]:
    done = subprocess.run(
        [*within, sys.executable, "-P", *program, "--json", *arguments],
        env={**os.environ, "RMEMCACHED_RDMA_DEVICE": "none"},
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["status"] == done.returncode
    return found


def transport(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = (one for one in found["transports"] if one["transport"] == name)
    return dict(one)


@pytest.mark.parametrize("mode", [None, "0700"], ids=["default", "FILE"])
def test_another_user(mode: str | None, rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    """Status 1: shared memory is possible. The doctor advises a change of -a, and the change works."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    path = tmp_path / "shm.sock"
    server = rmemcached_server(*(("-a", mode, "-o", f"rdma_shm={path}") if mode else ()))
    with Client(server.address, transport="soft_shm") as client:
        client.version()  # the socket of shared memory is there
    found = doctor(server.place, program=("-c", NOBODY))
    one = transport(found, "soft_shm")
    assert (found["taken"], found["status"], one["state"]) == ("tcp", 1, "fails")
    assert ("Permission denied" if mode else "not for user 65534") in one["why"] and "-a 0666" in one["change"]
    if mode:
        path.chmod(0o666)
        assert doctor(server.place, program=("-c", NOBODY))["taken"] == "soft_shm"


def test_a_socket_for_others(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    path = tmp_path / "daemon.sock"
    rmemcached_server("-a", "0700", path=str(path))
    found = doctor(str(path), program=("-c", NOBODY))
    assert found["status"] == 2 and "Permission denied" in found["error"] and "-a " in found["error"]


class TwoHosts:
    """Two network namespaces with a wire between them: the daemon in the first, the doctor in the second."""

    def __init__(self, folder: Path) -> None:
        self.shm = folder / "shm.sock"
        with contextlib.ExitStack() as stack:
            self.places = [self.place(stack) for _ in range(2)]
            here, there = self.places
            run = subprocess.check_call
            run([*here, *f"ip link add wire type veth peer name wire netns {there[2]}".split()])
            for place, address in ((here, HERE), (there, THERE)):
                for command in ("link set lo up", f"addr add {address}/24 dev wire", "link set wire up"):
                    run([*place, "ip", *command.split()])
            self.start(stack, folder / "notify")
            self.close = stack.pop_all().close

    def place(self, stack: contextlib.ExitStack) -> tuple[str, ...]:
        """The words before a command to run in a new namespace."""
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.enter_context(holder)
        stack.callback(holder.kill)
        assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        return ("nsenter", "-t", str(holder.pid), "--net")

    def start(self, stack: contextlib.ExitStack, notify: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(notify))
            manager.settimeout(WITHIN)
            daemon = subprocess.Popen(
                [
                    *(*self.places[0], sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-l", HERE),
                    *("-p", str(PORT), "-a", "0666", "-o", f"rdma_shm={self.shm}"),
                ],
                env={**os.environ, "NOTIFY_SOCKET": str(notify)},
            )
            stack.enter_context(daemon)
            stack.callback(daemon.terminate)
            assert manager.recv(100) == b"READY=1\n"

    def filter(self, what: str) -> None:
        """Adds a firewall rule for the daemon's port at the daemon's host."""
        for rule in (
            "add table ip t",
            "add chain ip t c { type filter hook input priority 0; }",
            f"add rule ip t c tcp dport {PORT} {what}",
        ):
            subprocess.check_call([*self.places[0], "nft", rule])


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    made = TwoHosts(tmp_path)
    yield made
    made.close()


def test_containers_of_one_host(two_hosts: TwoHosts) -> None:
    """Addresses do not tell that containers share a host. Naming shared memory helps, if both see its folder."""
    there = two_hosts.places[1]
    found = doctor(f"{HERE}:{PORT}", within=there)
    one = transport(found, "soft_shm")
    assert (found["taken"], found["status"], one["state"]) == ("tcp", 0, "not there")
    assert "shm://" in one["change"] and "rdma_shm=FILE" in one["change"]
    assert transport(doctor(f"shm://{HERE}:{PORT}", within=there), "soft_shm")["state"] == "works"


def test_a_firewall(two_hosts: TwoHosts) -> None:
    two_hosts.filter("drop")
    found = doctor("--timeout", "0.3", f"{HERE}:{PORT}", within=two_hosts.places[1])
    assert found["status"] == 2 and "timed out" in found["error"] and "firewall" in found["error"]


@pytest.mark.parametrize("verdict", ["drop", "reject with tcp reset"])
def test_a_firewall_that_lets_one_connection_through(verdict: str, two_hosts: TwoHosts) -> None:
    """The doctor does not call the daemon down: the daemon has answered."""
    two_hosts.filter(f"tcp flags syn / syn,ack ct count over 1 {verdict}")
    found = doctor("--timeout", "0.5", f"{HERE}:{PORT}", within=two_hosts.places[1])
    failed = {one["transport"]: one["change"] for one in found.get("transports", []) if one["state"] == "fails"}
    # A connection passes once the firewall has noticed the end of the connection before. So either the whole doctor
    # fails, or some transports.
    assert failed or found["error"]
    assert "lets too few through" in found.get("error", "lets too few through")
    for name, change in failed.items():
        assert ("let a second TCP connection" if name == "soft_iw" else "lets too few through") in change

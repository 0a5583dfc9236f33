"""rdma_cm without a device: the daemon gives the reason why it does not start, the client why another transport is
taken. tests/lab/guest_cm.py has the tests with a device."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

import pytest
from servers import Server, free_port

from rmemcached.client import Client
from rmemcached.client.transport.connection import TransportUnavailable
from rmemcached.option_values import UsageError
from rmemcached.options import parse
from rmemcached.server.sockets import choose_cm_addresses, open_listeners
from rmemcached.settings import Settings

PORT = 11212
EX_USAGE, EX_OSERR = 64, 71


def test_the_daemon_does_not_start_without() -> None:
    """A daemon with an rdma_cm port that nobody can reach does not start."""
    command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-l", "127.0.0.1", "-p", str(free_port())]
    command += ["-o", f"rdma_cm_port={PORT}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == EX_OSERR
    assert done.stdout == f"failed to listen on rdma_cm port {PORT}: no RDMA device has a loopback address\n"


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        (["-s", "/tmp/none"], "rdma_cm_port needs TCP and RDMA: it goes with neither -s nor no_rdma"),
        (["-o", "no_rdma"], "rdma_cm_port needs TCP and RDMA: it goes with neither -s nor no_rdma"),
        (["-o", "rdma_device=none"], "rdma_cm_port needs a device: it does not go with rdma_device=none"),
    ],
)
def test_options_that_contradict_it(others: list[str], problem: str) -> None:
    with pytest.raises(UsageError) as told:
        parse(["-o", f"rdma_cm_port={PORT}", *others])
    assert (str(told.value), told.value.status) == (problem, EX_USAGE)


@pytest.mark.parametrize("value", ["0", "65536", "-1", "x", ""])
def test_ports_that_are_none(value: str) -> None:
    with pytest.raises(UsageError, match="rdma_cm_port"):
        parse(["-o", f"rdma_cm_port={value}"])


def test_addresses_that_are_listened_on() -> None:
    """The daemon listens on each address once, for any number of its sockets there, and on no address of loopback."""
    settings = Settings()
    settings.port = settings.udp_port = -1
    settings.interfaces = ["127.0.0.1", "0.0.0.0"]
    opened = open_listeners(settings)
    try:
        assert [host for _, host, _ in choose_cm_addresses(opened)] == ["0.0.0.0"]
    finally:
        for listener in opened:
            listener.sock.close()


def test_the_client_says_why_not(rmemcached_server: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    server = rmemcached_server()
    refused = pytest.raises(TransportUnavailable, match="no queue pair here")
    with Client(server.address, transport="rdma_cm", timeout=10) as client, refused:
        client.get("key")
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(server.address, rdma_cm_port=PORT) as client:
        client.set("key", b"value", noreply=False)
        assert client.transport == "soft_shm"
    assert "rdma_cm is not available: no queue pair here" in caplog.text


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_that_the_client_does_not_take(port: int) -> None:
    with pytest.raises(ValueError, match="rdma_cm_port must be from 1 to 65535"):
        Client(("127.0.0.1", 11211), rdma_cm_port=port)


def test_it_is_not_for_unix_sockets() -> None:
    with pytest.raises(ValueError, match="not the UNIX socket"):
        Client("/tmp/socket", transport="rdma_cm")
    with pytest.raises(ValueError, match="not the UNIX socket"):
        Client("/tmp/socket", rdma_cm_port=PORT)

"""The daemon on an iWARP device, which only rdma_cm can connect. Run by test_siw.py in a guest with siw0."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Iterator

import pytest
from daemon_tools import Conversation, eventually, rdma_at_rest
from guest_tools import REFERENCE, SYSTEM_PYTHON, run
from servers import Server, free_port

from rmemcached.client import Client

HERE = "10.0.2.15"
WITHIN = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, int]]:
    """The daemon and its port of rdma_cm. siw counts registrations against the limit of locked memory, also root's."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
    port, cm_port = free_port(), free_port()
    command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-p", str(port), "-m", "256", "-I", "8m", "-v"]
    with Server([*command, "-o", f"rdma_cm_port={cm_port}"], port) as started:
        with Conversation(started, WITHIN) as talk:
            assert "siw0" in talk.stats("rdma")["rdma_device"]
        yield started, cm_port
        assert started.alive()


def test_values_of_all_sizes(server: tuple[Server, int]) -> None:
    daemon, cm_port = server
    generator = random.Random(3)
    with (
        Conversation(daemon, WITHIN) as control,
        Client(
            (HERE, daemon.port), transport="rdma_cm", rdma_cm_port=cm_port, timeout=WITHIN, default_noreply=False
        ) as client,
    ):
        for size in (0, 1, 100, 4095, 4096, 4097, 8192, 65536, 1_000_000, 2_000_000):
            value = generator.randbytes(size)
            assert client.set("key", value)
            assert client.get("key") == value
        assert control.number("rdma_cm_queue_pairs", "rdma") == 1
        assert control.number("rdma_read_bytes", "rdma") > 3_000_000
        client.close()
        eventually(lambda: rdma_at_rest(control), WITHIN)


def test_librdmacm_is_a_peer(server: tuple[Server, int]) -> None:
    daemon, cm_port = server
    run(SYSTEM_PYTHON, REFERENCE, "--rdma-cm", str(cm_port), HERE, str(daemon.port))


def test_addresses_in_lines_are_not_enough(server: tuple[Server, int]) -> None:
    """The exchange on the TCP port does not offer the device."""
    with Conversation(server[0], WITHIN) as talk:
        answer = talk.ask(b"rdma version=2 transport=verbs qpn=17 credits=32 msgsize=8192 lanebytes=512\r\n")
        assert answer == b"SERVER_ERROR rdma: transport verbs is not available here\r\n"


def test_nobody_listens(server: tuple[Server, int]) -> None:
    with (
        Client((HERE, server[0].port), transport="rdma_cm", rdma_cm_port=free_port(), timeout=WITHIN) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.version()

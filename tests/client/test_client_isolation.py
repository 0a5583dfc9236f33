"""Memory exposed to a server is out of reach of all other servers, and queue pairs are not predictable."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_by_hand import DATA, TIMEOUT, ServerByHand
from transport import rdma

from rmemcached.client import Client, MemcacheError
from rmemcached.verbs import Status

pytestmark = pytest.mark.usefixtures("rdma_transport")

VALUE = bytes(range(250)) * 400


def connect(server: ServerByHand, threads: ThreadPoolExecutor) -> Client:
    """Returns a client connected to the server, after the server's reply to a first command."""
    client = Client(server.address, transport=rdma(), timeout=TIMEOUT, connect_timeout=TIMEOUT, default_noreply=False)
    version = threads.submit(client.version)
    server.accept()
    server.wait(lambda: server.inbox == b"version\r\n")
    server.inbox = b""
    server.send(DATA, b"VERSION 1.6.45\r\n")
    assert version.result() == b"1.6.45"
    return client


@pytest.mark.device("protection domains")
def test_another_server_cannot_read_what_is_exposed_to_one() -> None:
    """Both servers know address and key. Only the recipient of the client's request may read."""
    with (
        ServerByHand(rdma()) as ours,
        ServerByHand(rdma()) as theirs,
        ThreadPoolExecutor(2) as threads,
        connect(ours, threads) as client,
        connect(theirs, threads) as other,
    ):
        stored = threads.submit(client.set, "secret", VALUE)
        ours.wait(lambda: ours.inbox.endswith(b"\r\n"))
        named = re.search(rb"@([0-9a-f]+):([0-9a-f]+)", ours.inbox)
        assert named is not None, ours.inbox
        address, key = int(named[1], 16), int(named[2], 16)
        # A client answers READs while waiting for a reply.
        found = threads.submit(other.get, "anything")
        theirs.wait(lambda: theirs.inbox.endswith(b"\r\n"))
        assert theirs.read(len(VALUE), address, key) == Status.REM_ACCESS_ERR
        assert not any(theirs.memory)
        theirs.lifeline.close()
        with pytest.raises((MemcacheError, OSError)):
            found.result()
        assert ours.read(len(VALUE), address, key) == Status.SUCCESS
        assert ours.memory[: len(VALUE)] == VALUE
        ours.send(DATA, b"HD\r\n")
        assert stored.result()


@pytest.mark.device("the attributes of a queue pair")
def test_the_first_packet_sequence_number_is_random() -> None:
    numbers = []
    for _ in range(3):
        with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads, connect(server, threads):
            numbers.append((int(server.asked["psn"]), int(server.asked["qpn"])))
    assert len({psn for psn, _ in numbers}) > 1
    assert any(psn != qpn for psn, qpn in numbers)
    assert all(0 <= psn < 1 << 24 for psn, _ in numbers)

"""The client reports a server's breach of the protocol at once, and keeps no more than promised."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import pytest
from server_by_hand import CLOSE, CREDIT, DATA, TIMEOUT, ServerByHand
from transport import rdma

from rmemcached.client import Client, MemcacheServerError, MemcacheUnexpectedCloseError

each_transport = pytest.mark.usefixtures("rdma_transport")

KEPT = 128 * 1024
"""Bytes kept by the client for each lane."""


class Fault(NamedTuple):
    """A message, the number of its repetitions, and the client's name for the breach."""

    rule: str
    kind: int
    more: dict[str, Any]
    times: int = 1


FAULTS = [
    Fault("a message of unknown type", 9, {}),
    Fault("a message for a lane that is not open", DATA, {"lane": 5, "payload": b"VERSION\r\n"}),
    Fault("a message for a lane that is not open", CLOSE, {"lane": 5}),
    Fault("more used than was sent", DATA, {"used": 16384}),
    Fault("more credits than any server has", CREDIT, {"credits": 65535}, 2),
    Fault("more for a lane than the client keeps", DATA, {"lane": 1, "payload": bytes(8000)}, KEPT // 8000 + 1),
]


def call(server: ServerByHand, client: Client, threads: ThreadPoolExecutor) -> Future[bytes]:
    """Starts a call of the client. Returns when the request has arrived."""
    server.inbox = b""
    version: Future[bytes] = threads.submit(client.version)
    server.wait(lambda: server.inbox == b"version\r\n")
    return version


def connect(server: ServerByHand, threads: ThreadPoolExecutor) -> tuple[Client, Client]:
    """Two clients on one queue pair. Lane 0 is the first client's."""
    clients = [
        Client(
            server.address, transport=server.transport, timeout=TIMEOUT, connect_timeout=TIMEOUT, default_noreply=False
        )
        for _ in range(2)
    ]
    # Both clients connect in the same thread: each thread has a queue pair of its own.
    version = threads.submit(clients[0].version)
    server.accept()
    server.wait(lambda: server.inbox == b"version\r\n")
    server.send(DATA, b"VERSION 1\r\n")
    assert version.result() == b"1"
    version = call(server, clients[1], threads)
    server.send(DATA, b"VERSION 1\r\n", lane=1)
    assert version.result() == b"1"
    return clients[0], clients[1]


@each_transport
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule} {fault.kind}")
def test_the_client_says_which_rule_was_broken(fault: Fault) -> None:
    with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads:
        first, second = connect(server, threads)
        with first, second:
            version = call(server, first, threads)
            for _ in range(fault.times):
                server.send(fault.kind, **fault.more)
            while not version.done():
                # A stream without room takes the rest of the messages when the server polls.
                server.cq.poll(16)
                wait([version], timeout=0.01)
            with pytest.raises(MemcacheUnexpectedCloseError, match=f"broken the protocol: {fault.rule}"):
                version.result()
            # After a long pause the second client notices the connection's end before it asks, and connects anew: the
            # closed listener refuses this connection.
            server.listener.close()
            with pytest.raises((MemcacheUnexpectedCloseError, ConnectionRefusedError), match=f"{fault.rule}|refused"):
                second.version()


def test_more_messages_than_credits() -> None:
    """The client takes at most as many messages at a time as it has given credits. All messages have arrived before the
    client looks: a ring has room for them."""
    with ServerByHand("soft_shm") as server, ThreadPoolExecutor(1) as threads:
        first, second = connect(server, threads)
        with first, second:
            for _ in range(48):
                server.send(CREDIT)
            with pytest.raises(MemcacheUnexpectedCloseError, match="a message without a credit"):
                first.version()


@each_transport
@pytest.mark.parametrize(
    "tokens", [{"lanebytes": 511}, {"lanebytes": 1 << 21}, {"workers": 0}, {"lanes": 0}, {"credits": 1}], ids=str
)
def test_an_answer_that_makes_no_sense(tokens: dict[str, int]) -> None:
    with ServerByHand(rdma(), **tokens) as server, ThreadPoolExecutor(1) as threads:
        client = Client(server.address, transport=rdma(), timeout=TIMEOUT)
        version = threads.submit(client.version)
        server.answer_exchange()
        with pytest.raises(MemcacheServerError, match="makes no sense"):
            version.result()

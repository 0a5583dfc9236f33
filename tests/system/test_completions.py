"""The cost of requests in completions, events and doorbells, as `stats rdma` counts; many queue pairs in one queue."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest
from daemon_tools import DATA, GONE_WITHIN, Conversation, Peer, eventually, rdma_at_rest, rdma_client
from servers import Server
from suspended import suspended
from transport import rounds

ServerFactory = Callable[..., Server]
pytestmark = pytest.mark.usefixtures("rdma_transport")

SILENT = 8  # SENDs for each completion, except on soft_iw
COUNTED = ("rdma_wakeups", "rdma_completions", "rdma_doorbells", "rdma_sends", "rdma_recvs")


@pytest.fixture
def server(rmemcached_server: ServerFactory) -> Server:
    return rmemcached_server("-m", "64", "-t", "1")


def counts(control: Conversation) -> dict[str, int]:
    found = control.stats("rdma")
    return {name: int(found[name]) for name in COUNTED}


@pytest.mark.device("completions and events")
def test_a_small_request_is_one_completion_and_one_doorbell(server: Server, rdma_transport: str) -> None:
    """A small request costs the daemon a doorbell and a completion. Its reply has no completion or event of its own."""
    count = rounds(400)
    with Conversation(server) as control, rdma_client(server) as client:
        client.set("key", bytes(100))
        before = counts(control)
        for _ in range(count):
            assert client.gat("key") == bytes(100)
        after = counts(control)
        cost = {name: after[name] - before[name] for name in COUNTED}
    assert cost["rdma_recvs"] == cost["rdma_sends"] == cost["rdma_doorbells"] == count
    # These completions may include earlier SENDs.
    told = count if rdma_transport == "soft_iw" else count // SILENT + 1
    assert count <= cost["rdma_completions"] <= count + told
    if rdma_transport.startswith("soft_"):
        assert cost["rdma_wakeups"] == 0
    else:
        assert cost["rdma_wakeups"] <= count + told


@pytest.mark.device("lists of requests")
def test_replies_of_a_turn_leave_with_one_doorbell(server: Server) -> None:
    count = 8
    with Peer(server) as peer, Conversation(server) as control:
        before = counts(control)
        with suspended(server.pid):
            for _ in range(count):
                peer.send(DATA, b"mn\r\n")
        peer.wait(lambda: peer.inbox == b"MN\r\n" * count)
        after = counts(control)
    assert after["rdma_sends"] - before["rdma_sends"] >= count
    # A turn may find only some of the messages, so there may be several doorbells.
    assert after["rdma_doorbells"] - before["rdma_doorbells"] <= count // 2


@pytest.mark.device("inline data and receives")
def test_messages_of_every_length(server: Server) -> None:
    """Messages of every length arrive. Short messages have receives of their own, and inline SENDs have a limit."""
    with rdma_client(server) as client:
        for size in [*range(600), *range(4000, 4200)][:: 1 if rounds(100) == 100 else 7]:
            value = os.urandom(size)
            assert client.set("key", value)
            assert client.get("key") == value


@pytest.mark.device("the size of a completion queue")
def test_queue_pairs_for_more_than_a_queue_holds(rmemcached_server: ServerFactory) -> None:
    """The completion queue grows with its queue pairs. The daemon adds a queue where rxe's cannot hold all."""
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_credits=1024,rdma_msgsize=512")
    with Conversation(server) as control:
        for _ in range(2):
            with contextlib.ExitStack() as clients:
                connected = [clients.enter_context(rdma_client(server)) for _ in range(40)]
                for number, client in enumerate(connected):
                    assert client.set(f"key{number}", bytes(5000))
                for number, client in enumerate(reversed(connected)):
                    assert client.get(f"key{number}") == bytes(5000)
            eventually(lambda: rdma_at_rest(control), GONE_WITHIN)

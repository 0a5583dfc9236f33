"""From the exchange to READY a queue pair belongs to a worker, and has limited time and an unguessable number."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from daemon_tools import (
    GONE_WITHIN,
    READY,
    SHM_REQUEST,
    Conversation,
    Peer,
    descriptors,
    eventually,
    rdma_at_rest,
    rdma_client,
    shm_socket,
)
from polling import readable
from servers import Server
from suspended import stopped, threads_named
from transport import rdma, rounds

pytestmark = pytest.mark.usefixtures("rdma_transport")

LATE = b"SERVER_ERROR rdma: no READY within 2 s\r\n"


@pytest.fixture(scope="module")
def hasty(module_server: Callable[..., Server]) -> Server:
    """A daemon with a limit of two seconds for a queue pair."""
    return module_server("-m", "64", "-t", "2", "-o", "rdma_ready_timeout=2,rdma_direct_linger=0")


@pytest.fixture
def control(hasty: Server) -> Iterator[Conversation]:
    """A control connection. Before and after the test there is no queue pair."""
    with Conversation(hasty) as conversation:
        connections = conversation.number("curr_connections")
        open_files = descriptors(hasty.pid)
        yield conversation
        eventually(lambda: rdma_at_rest(conversation), GONE_WITHIN)
        assert conversation.number("rdma_unready_queue_pairs", "rdma") == 0
        eventually(lambda: conversation.number("curr_connections") <= connections)
        eventually(lambda: descriptors(hasty.pid) <= open_files)


@pytest.mark.parametrize("attach", [False, True], ids=["without a stream", "without READY"])
def test_a_queue_pair_that_does_not_get_ready_is_given_up(hasty: Server, control: Conversation, attach: bool) -> None:
    """The lifeline of a late queue pair gets an error line and ends. A ready queue pair may be silent for long."""
    late = control.number("rdma_ready_timeouts", "rdma")
    with Peer(hasty) as good, Peer(hasty, attach=attach, ready=False) as bad:
        assert control.number("rdma_unready_queue_pairs", "rdma") == 1
        assert bad.lifeline.ask(b"mn\r\n") == b"MN\r\n"
        assert bad.last_words() == LATE
        assert control.number("rdma_ready_timeouts", "rdma") == late + 1
        # The rest of the queue pair goes with its lifeline. The peer may see the end of the lifeline first.
        eventually(lambda: control.number("rdma_unready_queue_pairs", "rdma") == 0)
        eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 1)
        assert good.ask(b"mn\r\n") == b"MN\r\n"


def test_ready_comes_too_late(hasty: Server, control: Conversation) -> None:
    with Peer(hasty, ready=False) as bad:
        assert bad.last_words() == LATE
        with pytest.raises((ConnectionError, OSError)):
            bad.send(READY)
            bad.wait(lambda: bad.ready)


def test_many_are_late_at_once(hasty: Server, control: Conversation) -> None:
    """Many late queue pairs do not wait for one another, and the daemon serves others meanwhile."""
    late = control.number("rdma_ready_timeouts", "rdma")
    with rdma_client(hasty) as bystander, ExitStack() as stack:
        bad = [stack.enter_context(Peer(hasty, attach=False)) for _ in range(rounds(40))]
        for peer in bad:
            assert peer.last_words() == LATE
            assert bystander.set("key", b"value")
        assert control.number("rdma_ready_timeouts", "rdma") == late + len(bad)


def test_the_end_of_a_lifeline_frees_what_was_not_ready(hasty: Server, control: Conversation) -> None:
    for attach in (False, True):
        with Peer(hasty, attach=attach, ready=False):
            assert control.number("rdma_unready_queue_pairs", "rdma") == 1
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


@pytest.mark.skipif(rdma() == "rdma_cm", reason="the kernel chooses the number")
def test_the_first_packet_sequence_number_is_random(hasty: Server, control: Conversation) -> None:
    offers = []
    for _ in range(4):
        with Peer(hasty, attach=False) as peer:
            offers.append((int(peer.offer["psn"]), int(peer.offer["qpn"])))
    assert len({psn for psn, _ in offers}) > 1, offers
    assert any(psn != qpn for psn, qpn in offers), offers
    assert all(0 <= psn < 1 << 24 for psn, _ in offers), offers


def test_streams_reach_the_worker_of_their_queue_pair(rmemcached_server: Callable[..., Server]) -> None:
    """Lifelines and streams are spread over the workers, and each stream comes to the right worker."""
    server = rmemcached_server("-t", "4")
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(server)) for _ in range(rounds(12))]
        for number, peer in enumerate(peers):
            assert peer.ask(b"set key%d 0 0 1\r\nx\r\n" % number) == b"STORED\r\n"
        control = stack.enter_context(Conversation(server))
        assert control.number("rdma_queue_pairs", "rdma") == len(peers)
        assert control.number("curr_items") == len(peers)


def test_what_queue_pairs_have_counted_stays(rmemcached_server: Callable[..., Server]) -> None:
    """Counters of the software devices keep the counts of ended queue pairs."""
    server = rmemcached_server("-t", "2")
    name = {"soft_iw": "iw_rx_bytes", "soft_shm": "shm_rx_bytes"}.get(rdma())
    if name is None:
        pytest.skip("other devices do not count")
    with Conversation(server) as control:
        assert control.number(name, "rdma") == 0
        seen = 0
        for _ in range(4):
            with Peer(server) as peer:
                assert peer.ask(b"mn\r\n") == b"MN\r\n"
                inside = control.number(name, "rdma")
                assert inside > seen
            eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
            seen = control.number(name, "rdma")
            assert seen >= inside


def request_stream(server: Server, peer: Peer) -> socket.socket:
    """Sends the request for a queue pair's stream, without waiting."""
    if rdma() == "soft_shm":
        stream = shm_socket(peer.offer)
        stream.sendall(SHM_REQUEST + peer.private_data)
        return stream
    stream = socket.create_connection((server.host, server.port))
    stream.sendall(b"MPA ID Req Frame" + struct.pack(">BBHHH", 0x10, 2, 24, 16, 16) + peer.private_data)
    return stream


@pytest.mark.skipif(rdma() not in ("soft_iw", "soft_shm"), reason="has no streams")
def test_a_stream_on_its_way_to_its_worker_is_a_connection(hasty: Server, control: Conversation) -> None:
    """-c also limits streams that wait for a busy worker."""
    workers = threads_named(hasty.pid, "mc-worker")
    with Conversation(hasty) as second, Peer(hasty, attach=False) as peer, ExitStack() as stack:
        before = control.number("curr_connections")
        accepted = control.number("total_connections")
        number = int.from_bytes(bytes.fromhex(peer.offer["token"])[:4], sys.byteorder)
        with stopped(workers[number]):
            # Two successive connections have different workers: one of these two requests goes to the running worker.
            for talk in (control, second):
                talk.send(b"mn\r\n")
            eventually(lambda: readable(control.sock) or readable(second.sock))
            live = control if readable(control.sock) else second
            assert live.line() == b"MN\r\n"
            streams = [stack.enter_context(request_stream(hasty, peer)) for _ in range(2)]
            eventually(lambda: live.number("total_connections") == accepted + 2)
            # By its last reply here a worker has served everything that was in its queue.
            for _ in range(20):
                live.ask(b"mn\r\n")
            assert live.number("curr_connections") == before + 2
            assert not any(map(readable, streams))
        assert (second if live is control else control).line() == b"MN\r\n"
        # One socket has become the stream, and so is no connection any more. The daemon refuses the other.
        eventually(lambda: control.number("curr_connections") == before)
        assert all(stream.recv(16) for stream in streams)

"""The daemon keeps a limited amount for the lanes of a queue pair, whatever its client does, and loses none of it."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from daemon_tools import (
    CREDIT,
    DATA,
    HEADER,
    TIMEOUT,
    Conversation,
    Peer,
    alone,
    beside_another,
    eventually,
    rdma_at_rest,
    resident,
)
from polling import at_least
from servers import Server, start_rmemcached
from suspended import suspended
from transport import rounds, within

from rmemcached.verbs import Access

pytestmark = pytest.mark.usefixtures("rdma_transport")

LANES = 64
MB = 1 << 20
SIZE = 100_000


class LanePeer(Peer):
    """A peer that keeps the replies of its lanes apart, and grants the credits chosen by the test."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.replies: dict[int, bytearray] = defaultdict(bytearray)
        self.received = 0
        super().__init__(server, **options)

    def _take(self, index: int, length: int) -> None:
        super()._take(index, length)
        message = bytes(self.receives[index * self.msgsize : index * self.msgsize + length])
        self.received += 1
        if message[0] == DATA:
            self.replies[int.from_bytes(message[4:8], "big")] += message[HEADER:]
            self.inbox.clear()

    def __enter__(self) -> Self:
        return self

    def grant(self, until: Callable[[], Any], timeout: float = TIMEOUT) -> None:
        """Waits for `until()`, and gives each received credit back."""
        while not until():
            seen = self.received
            if self.owed and self.credits:
                self.send(CREDIT)
            self.wait(lambda: until() or self.received > seen, timeout=timeout)  # noqa: B023


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    return rmemcached_server("-m", "64", "-t", "1", "-D", ":")


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    with beside_another(server) as conversation:
        yield conversation


def flood(peer: LanePeer, control: Conversation, batch: Callable[[int, int], bytes]) -> int:
    """Sends batches on all lanes in turn until no credit comes back. Returns the number of sent batches.

    The peer gives the daemon credits for CREDIT messages alone.
    """
    recvs = control.number("rdma_recvs", "rdma") - 1
    sends = control.number("rdma_sends", "rdma") - peer.received
    sent = granted = 0
    while True:
        while peer.credits > 1:
            back, granted = peer.received - 1 - granted, peer.received - 1
            peer.send(DATA, batch(sent % LANES, sent // LANES), sent % LANES, credits=back)
            sent += 1
        eventually(at_least(lambda: control.number("rdma_recvs", "rdma") - recvs, sent + 1), within(30.0))
        have = control.number("rdma_sends", "rdma") - sends
        peer.wait(at_least(lambda: peer.received, have))
        if peer.credits <= 1:
            # The credit of READY, and those not yet granted by any message.
            peer.owed = peer.received - granted
            return sent


@pytest.mark.resident
def test_kept_input_has_a_limit(server: Server, control: Conversation) -> None:
    """Lanes whose replies cannot leave keep input up to the limit.

    Then the client's credits stay away until replies leave. No reply is missing.
    """
    assert control.ask(b"set key 0 0 1\r\nx\r\n") == b"STORED\r\n"
    per = 400

    def batch(lane: int, number: int) -> bytes:
        return b"".join(b"mg key s O%d.%d\r\n" % (lane, number * per + i) for i in range(per))

    with LanePeer(server, credits=2) as peer:
        before = resident(server.pid)
        sent = flood(peer, control, batch)
        found = control.stats("rdma")
        limit = int(found["rdma_input_limit"])
        assert 0 < int(found["rdma_input_bytes"]) <= limit
        assert int(found["rdma_input_waits"]) > 0
        assert control.number("read_buf_bytes") >= int(found["rdma_input_bytes"])
        assert sent * peer.msgsize < limit + 2 * MB
        assert resident(server.pid) - before < 3 * MB
        expected = {
            lane: b"".join(b"HD s1 O%d.%d\r\n" % (lane, i) for i in range(len(range(lane, sent, LANES)) * per))
            for lane in range(LANES)
        }
        peer.grant(lambda: sum(map(len, peer.replies.values())) >= sum(map(len, expected.values())))
        for lane, replies in expected.items():
            assert peer.replies[lane] == replies, lane
        assert control.number("rdma_input_bytes", "rdma") <= 4096


@pytest.mark.resident
def test_beginnings_of_commands_have_a_limit(server: Server, control: Conversation) -> None:
    """Unfinished binary packets with long keys, on all lanes, meet a limit."""
    header = struct.pack(">BBHBBHIIQ", 0x80, 0, 60_000, 0, 0, 0, 60_000, 0, 0)
    with LanePeer(server) as peer:
        before = resident(server.pid)
        with pytest.raises(ConnectionError):
            for number in range(8 * LANES):
                peer.send(DATA, (header if number < LANES else b"") + bytes(8000), number % LANES)
            peer.wait(lambda: False)
        assert peer.last_words() == b"SERVER_ERROR rdma: no memory for unfinished commands\r\n"
        assert resident(server.pid) - before < 3 * MB


@pytest.mark.resident
def test_replies_that_wait_have_a_limit(server: Server, control: Conversation) -> None:
    """Long replies on all lanes, without a credit to leave, take limited memory."""
    prefixes = 400
    for first in range(0, prefixes, 100):
        names = b" ".join(b"prefix%d:x" % number for number in range(first, first + 100))
        assert control.ask(b"get " + names + b"\r\n") == b"END\r\n"
    with LanePeer(server, credits=2) as peer:
        before = resident(server.pid)
        flood(peer, control, lambda lane, number: b"stats detail dump\r\n" * 20)
        assert resident(server.pid) - before < 10 * MB
        peer.grant(lambda: peer.replies[LANES - 1].count(b"END\r\n") >= 20)


def everything(peer: LanePeer) -> int:
    return sum(map(len, peer.replies.values()))


@pytest.fixture
def deep(rmemcached_server: Callable[..., Server]) -> Server:
    """A daemon that takes a message for each lane at once."""
    return rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_credits=80")


def test_all_lanes_fetch_at_once(deep: Server) -> None:
    """All lanes complete, with more READs than room in the send queue, and a SEND that completes before the READs."""
    with LanePeer(deep, credits=80) as peer:
        memory = bytearray(range(250)) * (SIZE // 250)
        region = peer.region(memory, Access.REMOTE_READ)
        for _ in range(rounds(5)):
            peer.replies.clear()
            with suspended(deep.pid):
                peer.send(DATA, b"mn\r\n", LANES - 1)
                for lane in range(LANES - 1):
                    peer.send(DATA, b"ms key%d %d @%x:%x\r\n" % (lane, SIZE, region.addr, region.rkey), lane)
            peer.grant(lambda: everything(peer) >= LANES * len(b"MN\r\n"))
            assert all(peer.replies[lane] == b"HD\r\n" for lane in range(LANES - 1))


def test_a_deep_queue_gives_way(deep: Server) -> None:
    """A queue pair does a share of its input in each turn, even if no lane has more than a lane's share."""
    with LanePeer(deep, credits=80) as peer, Conversation(deep) as control:
        with suspended(deep.pid):
            for lane in range(LANES):
                peer.send(DATA, b"mn\r\n" * 15, lane)
        peer.grant(lambda: everything(peer) >= LANES * 15 * len(b"MN\r\n"))
        assert all(peer.replies[lane] == b"MN\r\n" * 15 for lane in range(LANES))
        assert control.number("conn_yields") > 0


def test_a_command_counts_once(rdma_transport: str) -> None:
    """A queue pair does 4 times `-R` commands in a turn, also if each comes in a message of its own."""
    with (
        start_rmemcached("-m", "64", "-t", "1", "-R", "4", "-o", "rdma_credits=80") as server,
        LanePeer(server, credits=80) as peer,
        Conversation(server) as control,
    ):
        for count, gives_way in ((15, False), (48, True)):
            before = control.number("conn_yields")
            peer.replies.clear()
            with suspended(server.pid):
                for number in range(count):
                    peer.send(DATA, b"mn\r\n", number % 16)
            peer.grant(lambda: everything(peer) == count * len(b"MN\r\n"))  # noqa: B023
            assert (control.number("conn_yields") > before) is gives_way


def test_a_lane_that_quits_gives_credits_back(server: Server, control: Conversation) -> None:
    """The daemon drops input behind `quit`, also the part that is still in its receive."""
    assert control.ask(b"set key 0 0 1\r\nx\r\n") == b"STORED\r\n"
    with LanePeer(server, credits=2) as peer:
        flood(peer, control, lambda lane, number: b"mg key s\r\n" * 400 + b"quit\r\n")
        assert control.number("rdma_input_waits", "rdma") > 0
        peer.grant(lambda: everything(peer) >= LANES * 400 * len(b"HD s1\r\n"))
        for lane in range(rounds(40)):
            peer.replies.clear()
            peer.grant(lambda: peer.credits > 1)
            peer.send(DATA, b"mn\r\n", lane)
            peer.grant(lambda: everything(peer) == len(b"MN\r\n"))
        # The daemon keeps less than half of them to itself.
        assert peer.credits > 8


@pytest.mark.parametrize("whole", [False, True], ids=["lifeline", "queue pair"])
def test_what_was_sent_before_the_end_is_done(deep: Server, whole: bool) -> None:
    """Commands sent before the end are done: more than a turn's share, in waiting messages, also when all ends."""
    lanes, messages, per = 3, 3, 200
    with Conversation(deep) as control, LanePeer(deep, credits=80) as peer:
        with suspended(deep.pid):
            for number in range(messages):
                for lane in range(lanes):
                    batch = (b"set key%d.%d.%d 0 0 1\r\nx\r\n" % (lane, number, i) for i in range(per))
                    peer.send(DATA, b"".join(batch), lane)
            if whole:
                peer.close()
            else:
                peer.lifeline.close()
        eventually(lambda: rdma_at_rest(control))
        assert control.number("curr_items") == lanes * messages * per
        alone(control)


def test_replies_of_a_client_that_has_ended_hold_nothing_up(deep: Server) -> None:
    """Commands behind replies without a credit are done after the client's end."""
    with Conversation(deep) as control, LanePeer(deep, credits=2) as peer:
        for lane in range(3):
            peer.send(DATA, b"mn\r\n" * 100 + b"get key\r\n" * 50, lane, credits=0)
        peer.send(DATA, b"set key 0 0 1\r\nx\r\n", 0, credits=0)
        assert control.number("curr_items") == 0
        peer.lifeline.close()
        eventually(lambda: rdma_at_rest(control))
        assert control.number("curr_items") == 1

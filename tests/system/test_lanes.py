"""The work of a queue pair's lanes in a turn, and the commands of a client sent before its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from daemon_tools import DATA, Conversation, alone, eventually, rdma_at_rest, resident
from lane_peer import Lanes
from servers import Server, start_rmemcached
from suspended import suspended
from transport import rounds

from rmemcached.verbs import Access

pytestmark = pytest.mark.usefixtures("rdma_transport")

LANES = range(64)
MB = 1 << 20
SIZE = 100_000


@pytest.fixture
def deep(rmemcached_server: Callable[..., Server]) -> Server:
    """A daemon with credits for a message of each lane at once."""
    return rmemcached_server("-m", "64", "-t", "1", "-D", ":", "-o", "rdma_credits=80")


def replies_to(peer: Lanes, count: int) -> int:
    """Waits for so many replies of `mn`. Returns how many have come."""
    peer.wait(lambda: sum(map(len, peer.replies.values())) >= count * len(b"MN\r\n"))
    return sum(reply.count(b"MN\r\n") for reply in peer.replies.values())


@pytest.mark.resident
def test_replies_that_wait_have_a_limit(deep: Server) -> None:
    """The daemon makes no more long replies than a limit before the client has taken some."""
    prefixes, asked = 400, 600
    with Conversation(deep) as control, Lanes(deep) as peer:
        for first in range(0, prefixes, 100):
            names = b" ".join(b"prefix%d:x" % number for number in range(first, first + 100))
            assert control.ask(b"get " + names + b"\r\n") == b"END\r\n"
        peer.open(1)
        before = resident(deep.pid)
        with suspended(deep.pid):
            peer.put(1, b"stats detail dump\r\n" * (asked // 2))
            peer.put(1, b"stats detail dump\r\n" * (asked // 2))
        peer.wait(lambda: peer.unsaid[1] == peer.keeps)
        assert resident(deep.pid) - before < 8 * MB
        text = peer.read(1, lambda replies: replies.count(b"END\r\n") == asked)
        assert len(text) > 8 * MB


def test_all_lanes_fetch_at_once(deep: Server) -> None:
    """More READs than the send queue has room for complete, also when a SEND completes before all of them."""
    with Lanes(deep, credits=80) as peer:
        memory = bytearray(range(250)) * (SIZE // 250)
        region = peer.region(memory, Access.REMOTE_READ)
        peer.open(*LANES)
        for _ in range(rounds(5)):
            peer.replies.clear()
            assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
            with suspended(deep.pid):
                peer.put(0, b"mn\r\n")
                for lane in LANES[1:]:
                    peer.put(lane, b"ms key%d %d @%x:%x\r\n" % (lane, SIZE, region.addr, region.rkey))
            peer.wait(lambda: len(peer.replies[0]) == 8 and all(peer.replies[lane] for lane in LANES))
            assert peer.replies[0] == b"MN\r\n" * 2
            assert all(peer.replies[lane] == b"HD\r\n" for lane in LANES[1:])


def test_a_deep_queue_gives_way(deep: Server) -> None:
    """A queue pair does only a share of its input in a turn, though no lane exceeds its own share."""
    with Lanes(deep, credits=80) as peer, Conversation(deep) as control:
        peer.open(*LANES)
        assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
        peer.replies.clear()
        with suspended(deep.pid):
            for lane in LANES:
                peer.put(lane, b"mn\r\n" * 15)
        assert replies_to(peer, len(LANES) * 15) == len(LANES) * 15
        assert all(peer.replies[lane] == b"MN\r\n" * 15 for lane in LANES)
        assert control.number("conn_yields") > 0


def test_a_command_counts_once(rdma_transport: str) -> None:
    """A queue pair does 4 times `-R` commands in a turn, also if each comes in a message of its own."""
    with (
        start_rmemcached("-m", "64", "-t", "1", "-R", "4", "-o", "rdma_credits=80") as server,
        Lanes(server, credits=80) as peer,
        Conversation(server) as control,
    ):
        peer.open(*range(16))
        for lane in range(16):
            assert peer.talk(lane, b"mn\r\n") == b"MN\r\n"
        for count, gives_way in ((15, False), (48, True)):
            before = control.number("conn_yields")
            peer.replies.clear()
            with suspended(server.pid):
                for number in range(count):
                    peer.put(number % 16, b"mn\r\n")
            assert replies_to(peer, count) == count
            assert (control.number("conn_yields") > before) is gives_way


@pytest.mark.parametrize("whole", [False, True], ids=["lifeline", "queue pair"])
def test_what_was_sent_before_the_end_is_done(deep: Server, whole: bool) -> None:
    """Commands sent before the end are done, though they exceed a turn and partly wait in messages, also if the queue
    pair ends as well."""
    lanes, messages, per = range(3), 3, 200
    with Conversation(deep) as control, Lanes(deep, credits=80) as peer:
        peer.open(*lanes)
        with suspended(deep.pid):
            for number in range(messages):
                for lane in lanes:
                    batch = (b"set key%d.%d.%d 0 0 1\r\nx\r\n" % (lane, number, i) for i in range(per))
                    peer.put(lane, b"".join(batch))
            if whole:
                peer.close()
            else:
                peer.lifeline.close()
        eventually(lambda: rdma_at_rest(control))
        assert control.number("curr_items") == len(lanes) * messages * per
        alone(control)


def test_replies_of_a_client_that_has_ended_hold_nothing_up(deep: Server) -> None:
    """The daemon carries out the commands behind replies for which the ended client gave no credit."""
    with Conversation(deep) as control, Lanes(deep, credits=2, gives_back=False) as peer:
        peer.open(*range(3))
        for lane in range(3):
            peer.send(DATA, b"mn\r\n" * 100 + b"get key\r\n" * 50, lane, credits=0)
        peer.send(DATA, b"set key 0 0 1\r\nx\r\n", 0, credits=0)
        assert control.number("curr_items") == 0
        peer.lifeline.close()
        eventually(lambda: rdma_at_rest(control))
        assert control.number("curr_items") == 1

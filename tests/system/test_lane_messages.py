"""Lanes: each is a connection of its own, opened and closed by messages, and held up by no other lane."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from daemon_tools import (
    CLOSE,
    CREDIT,
    DATA,
    GONE_WITHIN,
    HEADER,
    OPEN,
    VERSION,
    Conversation,
    alone,
    beside_another,
    eventually,
    message,
    rdma_at_rest,
    rdma_client,
    resident,
    room_for,
)
from lane_peer import LANE_BYTES, Lanes
from servers import Server, start_rmemcached
from suspended import suspended
from transport import rdma, rounds

from rmemcached.verbs import Access, Opcode, SendWR

pytestmark = pytest.mark.usefixtures("rdma_transport")

SIZE = 100_000
INPUT_FIRST = 4096  # bytes of the smallest buffer of a lane (rdma/lane.pxd)


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    return rmemcached_server("-m", "64", "-t", "1")


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    with beside_another(server) as conversation:
        yield conversation


def ended(peer: Lanes, line: bytes) -> None:
    """The daemon has given up the queue pair, with the reason on the lifeline."""
    with pytest.raises(ConnectionError):
        peer.wait(lambda: False)
    assert peer.last_words() == line


# ---- open and close --------------------------------------------------------------------------------------------------


@pytest.mark.device("lanes without a lifeline")
def test_each_lane_is_a_connection(server: Server, control: Conversation) -> None:
    """Each lane but lane 0, the lifeline's, counts as a connection, and is closed by itself."""
    with Lanes(server) as peer:
        before = control.stats()
        peer.open(0, 1, 7)
        for lane in (0, 1, 7):
            assert peer.talk(lane, b"mn\r\n") == b"MN\r\n"
        found = control.stats()
        assert int(found["curr_connections"]) == int(before["curr_connections"]) + 2
        assert int(found["total_connections"]) == int(before["total_connections"]) + 2
        assert control.number("rdma_streams", "rdma") == 4
        peer.close_lanes(7, 0)
        assert control.number("curr_connections") == int(before["curr_connections"]) + 1
        assert peer.talk(1, b"mn\r\n") == b"MN\r\n"
        peer.open(7)
        assert peer.talk(7, b"mn\r\n") == b"MN\r\n"


def test_the_offer_says_what_there_is(control: Conversation, server: Server) -> None:
    with Lanes(server) as peer:
        found = control.stats("rdma")
        assert (peer.offer["workers"], peer.offer["worker"]) == ("1", "0")
        assert peer.offer["lanes"] == found["rdma_max_lanes"] == control.stats("settings")["maxconns"]
        assert peer.offer["lanebytes"] == found["rdma_lane_bytes"]


def test_lanes_are_apart(server: Server, control: Conversation) -> None:
    """Halves of commands on many lanes become the whole commands of each lane."""
    with Lanes(server) as peer:
        lanes = range(0, 1000, 7)
        peer.open(*lanes)
        for lane in lanes:
            peer.put(lane, b"set key%d 0 0 5\r\n%02d" % (lane, lane % 100))
        for lane in lanes:
            peer.put(lane, b"abc\r\nget key%d\r\n" % lane)
        for lane in lanes:
            expected = b"STORED\r\nVALUE key%d 0 5\r\n%02dabc\r\nEND\r\n" % (lane, lane % 100)
            peer.wait(lambda: len(peer.replies[lane]) >= len(expected))  # noqa: B023
            assert peer.replies[lane] == expected


def test_quit_closes_the_lane(server: Server, control: Conversation) -> None:
    """The daemon announces the close, drops input up to the client's CLOSE, and the number is free afterwards."""
    with Lanes(server) as peer:
        peer.open(0, 3)
        peer.put(3, b"mn\r\nquit\r\nmn\r\n")
        peer.wait(lambda: 3 in peer.closed)
        assert peer.closed == {3: b""}
        assert peer.replies[3] == b"MN\r\n"
        peer.put(3, b"set late 0 0 1\r\nx\r\n")
        peer.send(CLOSE, b"", 3)
        peer.open(3)
        assert peer.talk(3, b"get late\r\n") == b"END\r\n"
        assert peer.talk(0, b"mn\r\n") == b"MN\r\n"


def test_what_came_before_close_is_done(server: Server, control: Conversation) -> None:
    """The daemon carries out the commands before CLOSE, even if the lane had to wait for room for its replies."""
    assert control.ask(b"set big 0 0 5000\r\n" + bytes(5000) + b"\r\n") == b"STORED\r\n"
    with Lanes(server) as peer:
        peer.open(1)
        peer.put(1, b"get big\r\n" * 20 + b"set done 0 0 1\r\nx\r\n")
        peer.wait(lambda: peer.unsaid[1] == LANE_BYTES)
        assert control.ask(b"get done\r\n") == b"END\r\n"
        peer.close_lanes(1)
        assert control.ask(b"mg done\r\n") == b"HD\r\n"


@pytest.mark.device("READs under way")
def test_close_waits_for_the_lanes_reads(server: Server, control: Conversation) -> None:
    """After CLOSE the memory is the client's again: the daemon gives up the unfinished value and keeps the old."""
    size = 1_000_000
    old = b"o" * size
    with Lanes(server) as peer:
        memory = bytearray(b"n" * size)
        region = peer.region(memory, Access.REMOTE_READ)
        for number in range(rounds(20)):
            key = b"key%d" % number
            control.send(b"set %s 0 0 %d noreply\r\n" % (key, size) + old + b"\r\n")
            assert control.ask(b"mn\r\n") == b"MN\r\n"
            memory[:] = b"n" * size
            peer.open(1)
            peer.put(1, b"ms %s %d @%x:%x\r\n" % (key, size, region.addr, region.rkey))
            peer.close_lanes(1)
            memory[:] = b"x" * size
            control.send(b"get %s\r\n" % key)
            assert control.line().startswith(b"VALUE")
            value = control.read(size)
            assert control.read(7) == b"\r\nEND\r\n"
            assert value in (old, b"n" * size)


@pytest.mark.device("WRITEs under way")
def test_close_waits_for_the_lanes_writes(server: Server, control: Conversation) -> None:
    """No byte comes into the client's memory after the daemon's CLOSE."""
    size = 1_000_000
    control.send(b"set big 0 0 %d\r\n" % size + b"v" * size + b"\r\n")
    assert control.line() == b"STORED\r\n"
    with Lanes(server) as peer:
        memory = bytearray(size)
        region = peer.region(memory, Access.REMOTE_WRITE | Access.LOCAL_WRITE)
        for number in range(rounds(20)):
            memory[:] = bytes(size)
            peer.open(1, 2)
            request = b"mg big v @%x:%x:%x\r\n" % (region.addr, region.rkey, size)
            peer.put(1, request * 3)
            peer.put(2, b"mn\r\n")
            if number % 2:
                peer.wait(lambda: len(peer.replies[2]) > 0)
            peer.close_lanes(1)
            memory[:] = bytes(size)
            peer.close_lanes(2)
            peer.open(2)
            assert peer.talk(2, b"mn\r\n") == b"MN\r\n"
            peer.close_lanes(2)
            assert memory == bytes(size)


def test_a_value_of_which_a_part_has_been_written() -> None:
    """Lanes are closed while the send queue has room for only a part of their values, under way already. The items
    are deleted meanwhile: no byte of another item arrives in their place."""
    size = 3_300_000
    with (
        # Chunks have 16 KB at most, so a value takes many WRITEs.
        start_rmemcached("-m", "64", "-I", "4m", "-t", "1", "-o", "slab_chunk_max=16") as server,
        Conversation(server) as control,
        Lanes(server, receive_buffer=4096) as peer,
    ):

        def store(key: int, byte: bytes) -> None:
            control.send(b"set key%d 0 0 %d\r\n" % (key, size) + byte * size + b"\r\n")
            assert control.line() == b"STORED\r\n"

        lanes = range(4)
        memory = bytearray(size)
        region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)
        where = b"@%x:%x" % (region.addr, region.rkey)
        peer.open(*lanes)
        for lane in lanes:
            store(lane, b"v")
        with suspended(server.pid):
            for lane in lanes:
                # The set waits for room for its READ in the send queue, and the get for the WRITEs of the value.
                peer.put(lane, b"mg key%d v %s:%x\r\nms other%d 5000 %s\r\n" % (lane, where, size, lane, where))
            for lane in lanes:
                peer.send(CLOSE, b"", lane)
        for lane in lanes:
            assert control.ask(b"delete key%d\r\n" % lane) == b"DELETED\r\n"
        for key in range(15):
            store(key, b"x")
        peer.wait(lambda: len(peer.closed) == len(lanes))
        strange = memory.count(b"x")
        assert strange == 0
        assert b"v" in memory


def a_large_value(control: Conversation, peer: Lanes, size: int) -> tuple[Any, bytearray, bytes]:
    """Stores "v"s under the key big. Returns a region for the value, its memory, and the command for a get there."""
    control.send(b"set big 0 0 %d\r\n" % size + b"v" * size + b"\r\n")
    assert control.line() == b"STORED\r\n"
    memory = bytearray(size)
    region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)
    return region, memory, b"mg big v @%x:%x:%x\r\n" % (region.addr, region.rkey, size)


class Ordered(Lanes):
    """Records the order of lanes in which replies came."""

    def __init__(self, server: Server) -> None:
        self.order: list[int] = []
        super().__init__(server)

    def _take(self, index: int, length: int) -> None:
        data = bytes(self.receives[index * self.msgsize : index * self.msgsize + length])
        super()._take(index, length)
        if data[0] == DATA and length > HEADER:
            self.order.append(int.from_bytes(data[6:8], "big"))


def test_a_small_reply_overtakes_a_large_value() -> None:
    """A reply of a lane overtakes a large value of another lane, of which the send queue has only a part at a time."""
    size = 8_000_000
    with (
        start_rmemcached("-m", "64", "-I", "16m", "-t", "1") as server,
        Conversation(server) as control,
        Ordered(server) as peer,
    ):
        region, memory, get = a_large_value(control, peer, size)
        peer.open(1, 2)
        with suspended(server.pid):
            peer.put(1, get)
            peer.put(2, b"mn\r\n")
        peer.wait(lambda: len(peer.order) == 2)
        assert peer.order == [2, 1]
        assert bytes(peer.replies[1]) == b"VA %d @\r\n" % size
        assert memory == b"v" * size
        region.close()


@pytest.mark.parametrize("opened", [1, 5])
def test_beyond_the_limit_of_connections(opened: int) -> None:
    """The daemon refuses a lane too many with memcached's line, and disturbs no lane."""
    with start_rmemcached("-t", "1", "-c", room_for(opened + 2, threads=1)) as server, Conversation(server) as control:
        alone(control)
        with Lanes(server) as peer:
            peer.open(*range(opened + 1))
            for lane in range(opened + 1):
                assert peer.talk(lane, b"mn\r\n") == b"MN\r\n"
            last = peer.lanes - 1
            for _ in range(3):
                peer.open(last)
                peer.put(last, b"set key 0 0 1\r\nx\r\n")
                peer.wait(lambda: last in peer.closed)
                assert peer.closed.pop(last) == b"ERROR Too many open connections\r\n"
                peer.send(CLOSE, b"", last)
            assert control.ask(b"get key\r\n") == b"END\r\n"
            assert control.number("rdma_refused_lanes", "rdma") == 3
            assert control.number("rejected_connections") == 3
            peer.close_lanes(1)
            peer.open(last)
            assert peer.talk(last, b"mn\r\n") == b"MN\r\n"
            assert control.number("curr_connections") == opened + 2


# ---- the limits of each lane -----------------------------------------------------------------------------------------


@pytest.mark.device("lanes without a lifeline")
def test_a_lane_that_does_not_read_holds_up_none(server: Server, control: Conversation) -> None:
    """Replies stop at the client's limit, commands at the daemon's limit; nothing of the lane is lost."""
    assert control.ask(b"set big 0 0 5000\r\n" + bytes(5000) + b"\r\n") == b"STORED\r\n"
    reply = b"VALUE big 0 5000\r\n" + bytes(5000) + b"\r\nEND\r\n"
    with Lanes(server) as peer:
        stuck, others = range(1, 40), range(40, 44)
        peer.open(*stuck, *others)
        asked = dict.fromkeys(stuck, 0)
        # These are more commands than the daemon keeps unanswered.
        while any(peer.room[lane] > 4000 for lane in stuck):
            for lane in stuck:
                count = min(peer.room[lane], 7000) // len(b"get big\r\n")
                if peer.room[lane] > 4000:
                    peer.put(lane, b"get big\r\n" * count, used=False)
                    asked[lane] += count
        for lane in others:
            for _ in range(20):
                assert peer.talk(lane, b"get big\r\n", b"END\r\n") == reply
        assert all(len(peer.replies[lane]) == LANE_BYTES for lane in stuck)
        for lane in (1, 39):
            whole = len(reply) * asked[lane]
            assert peer.read(lane, lambda replies: len(replies) >= whole) == reply * asked[lane]  # noqa: B023


def test_a_client_that_asks_for_more_than_it_reads(server: Server, control: Conversation) -> None:
    """The client sends commands whenever the daemon reports room. The daemon keeps no more than the promised room, and
    answers everything."""
    assert control.ask(b"set big 0 0 5000\r\n" + bytes(5000) + b"\r\n") == b"STORED\r\n"
    reply = b"VALUE big 0 5000\r\n" + bytes(5000) + b"\r\nEND\r\n"
    with Lanes(server) as peer:
        peer.open(1)
        asked = 0
        while len(peer.replies[1]) < 100 * len(reply):
            count = min(peer.room[1], 8000) // len(b"get big\r\n")
            if count:
                peer.put(1, b"get big\r\n" * count, used=False)
                asked += count
                assert control.number("rdma_input_bytes", "rdma") <= peer.lane_bytes
            else:
                have = len(peer.replies[1])
                peer.put(1)
                peer.wait(lambda: len(peer.replies[1]) > have)  # noqa: B023
        whole = len(reply) * asked
        assert peer.read(1, lambda replies: len(replies) >= whole) == reply * asked


def test_room_comes_back_without_replies(server: Server, control: Conversation) -> None:
    """Commands without answers, many times the room of a lane, get through."""
    with Lanes(server) as peer:
        peer.open(1)
        for number in range(200):
            request = b"set key 0 0 1000 noreply\r\n%1000d\r\n" % number
            peer.wait(lambda: peer.room[1] >= 1050)
            peer.put(1, request)
        assert peer.talk(1, b"get key\r\n", b"END\r\n") == b"VALUE key 0 1000\r\n%1000d\r\nEND\r\n" % 199


def test_large_values_in_messages(server: Server, control: Conversation) -> None:
    """Values longer than the room of a lane get through in both directions."""
    value = os.urandom(SIZE)
    request = b"set key 0 0 %d\r\n" % SIZE + value + b"\r\n"
    with Lanes(server) as peer:
        peer.open(9)
        while request:
            peer.wait(lambda: peer.room[9] > 0)
            n = min(peer.room[9], 8000)
            peer.put(9, request[:n])
            request = request[n:]
        peer.wait(lambda: len(peer.replies[9]) >= len(b"STORED\r\n"))
        peer.replies[9].clear()
        peer.put(9, b"get key\r\n")
        expected = b"VALUE key 0 %d\r\n" % SIZE + value + b"\r\nEND\r\n"
        assert peer.read(9, lambda replies: len(replies) >= len(expected)) == expected


def test_a_command_without_an_end_closes_its_lane(server: Server, control: Conversation) -> None:
    """The unfinished command of a lane has a limit, and goes with the lane."""
    header = b"\x80\x00" + (60_000).to_bytes(2, "big") + bytes(4) + (1 << 20).to_bytes(4, "big") + bytes(12)
    with Lanes(server) as peer:
        before = resident(server.pid)
        peer.open(0, 1)
        peer.put(1, header)
        for _ in range(100):
            peer.wait(lambda: peer.room[1] >= 8000 or 1 in peer.closed)
            if 1 in peer.closed:
                break
            peer.put(1, bytes(8000))
        else:
            assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
        assert resident(server.pid) - before < 4 << 20
        assert peer.talk(0, b"mn\r\n") == b"MN\r\n"


def test_many_lanes_fetch_at_once(server: Server, control: Conversation) -> None:
    """With more READs than room in the send queue each lane waits for its own READ."""
    with Lanes(server) as peer:
        memory = bytearray(range(250)) * (SIZE // 250)
        region = peer.region(memory, Access.REMOTE_READ)
        lanes = range(300)
        peer.open(*lanes)
        for lane in lanes:
            peer.put(lane, b"ms key%d %d @%x:%x\r\n" % (lane, SIZE, region.addr, region.rkey))
        peer.wait(lambda: all(peer.replies[lane] == b"HD\r\n" for lane in lanes))
        for lane in (0, 299):
            peer.replies[lane].clear()
            peer.put(lane, b"get key%d\r\n" % lane)
            expected = b"VALUE key%d 0 %d\r\n" % (lane, SIZE) + memory + b"\r\nEND\r\n"
            assert peer.read(lane, lambda replies: len(replies) >= len(expected)) == expected  # noqa: B023


def test_a_client_without_credits_takes_no_receives_of_others(server: Server, control: Conversation) -> None:
    """A client without credits takes no receives of others, though queue pairs share receives on software devices."""
    with Lanes(server) as greedy, Lanes(server) as modest:
        modest.open(1)
        assert modest.talk(1, b"mn\r\n") == b"MN\r\n"
        modest.replies[1].clear()
        messages = modest.credits - 1
        greedy.sends[:HEADER] = message(CREDIT)
        with suspended(server.pid):
            for _ in range(200):
                with suppress(OSError):
                    greedy.qp.post_send(SendWR(Opcode.SEND, [greedy.send_region.sge(0, HEADER)]))
            for _ in range(messages):
                modest.put(1, b"mn\r\n")
        modest.wait(lambda: modest.replies[1] == b"MN\r\n" * messages)
        with pytest.raises(ConnectionError):
            greedy.wait(lambda: False)
        assert modest.talk(1, b"mn\r\n") == b"MN\r\n"


def test_the_end_of_the_lifeline_ends_all_lanes(server: Server, control: Conversation) -> None:
    """Commands sent before the end are done, also when nobody has taken the earlier replies."""
    assert control.ask(b"set big 0 0 5000\r\n" + bytes(5000) + b"\r\n") == b"STORED\r\n"
    with Lanes(server) as peer:
        lanes = range(1, 20)
        peer.open(*lanes)
        for lane in lanes:
            peer.put(lane, b"get big\r\n" * 10 + b"set key%d 0 0 1\r\nx\r\n" % lane)
        peer.wait(lambda: all(peer.unsaid[lane] == LANE_BYTES for lane in lanes))
        peer.lifeline.close()
        alone(control, 2)
        assert control.number("curr_items") == 2 + len(lanes)


def test_the_end_of_the_lifeline_within_a_value() -> None:
    """The daemon gives up a partly written value, and carries out the commands behind the value."""
    size, lanes = 3_000_000, range(1, 5)
    with (
        start_rmemcached("-m", "64", "-I", "8m", "-t", "1") as server,
        Conversation(server) as control,
        Lanes(server) as peer,
    ):
        region, _, get = a_large_value(control, peer, size)
        peer.open(*lanes)
        for lane in lanes:
            peer.put(lane, get * 3)
            peer.put(lane, b"set key%d 0 0 1\r\nx\r\n" % lane)
        # The peer takes nothing: no value is complete, and each lane keeps the commands behind its gets.
        eventually(lambda: control.number("rdma_input_bytes", "rdma") >= INPUT_FIRST * len(lanes))
        peer.lifeline.close()
        alone(control)
        assert control.number("curr_items") == 1 + len(lanes)
        assert control.ask(b"delete big\r\n") == b"DELETED\r\n"
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        region.close()


# ---- breaches of the rules -------------------------------------------------------------------------------------------

Breach = Callable[[Lanes], None]


def overrun(peer: Lanes) -> None:
    """Sends more than the daemon keeps, on a lane waiting for its client."""
    peer.put(1, b"get big\r\n" * 600)
    peer.wait(lambda: peer.unsaid[1] == LANE_BYTES)
    while not peer.failed:
        peer.send_raw(message(DATA, b"get big\r\n" * 800, lane=1))


def close_twice(peer: Lanes) -> None:
    peer.send(CLOSE, b"", 1)
    peer.send_raw(message(CLOSE, lane=1))


BREACHES: dict[str, tuple[Breach, bytes]] = {
    "opened twice": (lambda p: p.send(OPEN, b"", 1), b"a lane opened that is not closed"),
    "a number too large": (lambda p: p.send(OPEN, b"", p.lanes), b"a lane beyond those that the server has"),
    "the largest number": (lambda p: p.send(OPEN, b"", 0xFFFF), b"a lane beyond those that the server has"),
    "not open": (lambda p: p.send(DATA, b"mn\r\n", 2), b"a message for a lane that is not open"),
    "empty, not open": (lambda p: p.send(DATA, b"", 0), b"a message for a lane that is not open"),
    "data beyond": (lambda p: p.send(DATA, b"mn\r\n", 0xFFFF), b"a message for a lane that is not open"),
    "closed unopened": (lambda p: p.send(CLOSE, b"", 2), b"a lane closed that is not open"),
    "closed twice": (close_twice, b"a lane closed that is not open"),
    "closed beyond": (lambda p: p.send(CLOSE, b"", 0xFFFF), b"a lane closed that is not open"),
    "used too much": (lambda p: p.send(DATA, b"", 1 << 16 | 1), b"more used than was sent"),
    "more than is kept": (overrun, b"more for a lane than it keeps"),
    "unknown": (lambda p: p.send(5, b"", 1), b"a message of unknown type"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breach(server: Server, control: Conversation, name: str) -> None:
    breach, line = BREACHES[name]
    assert control.ask(b"set big 0 0 5000\r\n" + bytes(5000) + b"\r\n") == b"STORED\r\n"
    with Lanes(server) as peer:
        peer.open(1)
        with suppress(ConnectionError):
            breach(peer)
        ended(peer, b"SERVER_ERROR rdma: " + line + b"\r\n")
    assert control.number("rdma_qp_errors", "rdma") == 1


@pytest.mark.parametrize("tokens", [[], ["lanebytes=511"], ["lanebytes=1048577"], ["lanebytes=x"]])
def test_lanebytes_are_demanded(server: Server, control: Conversation, tokens: list[str]) -> None:
    words = [f"rdma version={VERSION} transport={rdma()} qpn=1 credits=2 msgsize=512", *tokens]
    wrong = b"a value is malformed or out of range" if tokens else b"lanebytes is missing"
    assert control.ask(" ".join(words).encode() + b"\r\n") == b"CLIENT_ERROR rdma: " + wrong + b"\r\n"


# ---- lanes as users see them -----------------------------------------------------------------------------------------


def test_stats_conns_show_lanes(server: Server, control: Conversation) -> None:
    with Lanes(server) as peer:
        peer.open(0, 5, 6)
        peer.put(6, b"set key 0 0 5\r\nab")
        peer.talk(5, b"mn\r\n")
        found = control.stats("conns")
        (fd,) = {name.partition(".")[0] for name in found if "." in name.partition(":")[0]}
        assert found[f"{fd}:addr"] == found[f"{fd}.5:addr"] == found[f"{fd}.6:addr"]
        assert found[f"{fd}.5:rdma"] == "yes"
        assert found[f"{fd}.6:state"] == "conn_nread"
        assert found[f"{fd}.6:secs_since_last_cmd"].isdigit()
        assert f"{fd}.0:addr" not in found


@pytest.mark.device("lanes without a lifeline")
def test_each_lane_authenticates_itself(tmp_path: Path) -> None:
    """Each lane has to authenticate itself, but for lane 0, where the lifeline has done so."""
    users = tmp_path / "users"
    users.write_text("user:secret\n")
    with start_rmemcached("-Y", str(users), "-t", "1") as server, Authenticated(server) as peer:
        peer.open(0, 1, 2)
        known = b"CLIENT_ERROR unauthenticated\r\n" if rdma() == "rdma_cm" else b"END\r\n"
        assert peer.talk(0, b"get key\r\n") == known
        assert peer.talk(1, b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        assert peer.talk(1, b"set auth 0 0 11\r\nuser secret\r\n") == b"STORED\r\n"
        assert peer.talk(1, b"get key\r\n") == b"END\r\n"
        assert peer.talk(2, b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"


class Authenticated(Lanes):
    """A peer whose lifeline has authenticated itself."""

    def exchange(self, credits: int, tokens: object) -> None:
        assert self.lifeline.ask(b"set auth 0 0 11\r\nuser secret\r\n") == b"STORED\r\n"
        super().exchange(credits, tokens)  # type: ignore[arg-type]


@pytest.mark.device("lanes without a lifeline")
def test_idle_lanes_are_closed() -> None:
    """Silent lanes are closed as idle, also with a reply that waits for the client. Other lanes stay."""
    with (
        start_rmemcached("-t", "1", "-vv", "-o", "idle_timeout=1") as server,
        Lanes(server) as peer,
    ):
        peer.open(0, 1, 2, 3)
        for lane in (1, 2, 3):
            assert peer.talk(lane, b"mn\r\n") == b"MN\r\n"

        def busy() -> bool:
            peer.talk(3, b"mn\r\n")
            return {1, 2} <= peer.closed.keys()

        eventually(busy)
        assert peer.closed == {1: b"", 2: b""}
        with Conversation(server) as control:
            assert control.number("idle_kicks") == 2
        assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
        said = re.findall(r"^Closing idle fd (\d+)\.(\d+)$", server.stderr(), re.M)
        assert sorted(lane for _, lane in said) == ["1", "2"]


def test_watchers_see_lanes(server: Server, control: Conversation) -> None:
    """Watchers also see the lane's number within its queue pair; lane 0 is the lifeline's."""
    with Conversation(server) as watcher, Lanes(server) as peer:
        assert watcher.ask(b"watch connevents\r\n") == b"OK\r\n"
        peer.open(0, 7)
        peer.talk(7, b"quit\r\n")
        lines = (line for line in iter(watcher.line, b"") if b" lane=" in line)
        assert re.search(rb" type=conn_new .* cfd=\d+ lane=7\n", next(lines))
        assert re.search(rb" type=conn_close .* reason=\w+ cfd=\d+ lane=7\n", next(lines))


@pytest.mark.device("the end of a queue pair")
def test_lanes_of_a_client_that_is_gone_end_normally(server: Server, control: Conversation) -> None:
    """However a queue pair ends, its lanes end with the reason of a plain connection closed by its client."""
    with Conversation(server) as watcher:
        assert watcher.ask(b"watch connevents\r\n") == b"OK\r\n"
        with Lanes(server) as peer:
            peer.open(0, 7, 8)
            assert peer.talk(7, b"mn\r\n") == b"MN\r\n"
        closes = (line for line in iter(watcher.line, b"") if b" type=conn_close " in line and b" lane=" in line)
        for _ in range(2):
            assert re.search(rb" reason=normal cfd=\d+ lane=[78]\n", next(closes))


def test_lanes_of_a_queue_pair_have_a_limit_of_their_own() -> None:
    with start_rmemcached("-t", "1", "-o", "rdma_max_lanes=3") as server, Conversation(server) as control:
        assert control.number("rdma_max_lanes", "rdma") == 3
        with Lanes(server) as peer:
            assert peer.lanes == 3
            peer.open(0, 1, 2)
            assert peer.talk(2, b"mn\r\n") == b"MN\r\n"
        with ExitStack() as stack:
            clients = [stack.enter_context(rdma_client(server)) for _ in range(7)]
            for client in clients:
                assert client.set("key", b"value")
            assert control.number("rdma_queue_pairs", "rdma") == 3


def test_what_the_daemon_writes_names_the_lane() -> None:
    with start_rmemcached("-t", "1", "-vv") as server:
        with Lanes(server) as peer:
            peer.open(0, 7)
            peer.talk(0, b"get zero\r\n")
            peer.talk(7, b"get seven\r\n")
            peer.talk(7, b"quit\r\n")
        server.stop()
        written = server.stderr()
    assert re.search(r"^<\d+ get zero$", written, re.M)
    for line in (
        r"<\d+\.7 new auto-negotiating client connection",
        r"\d+\.7: Client using the ascii protocol",
        r"<\d+\.7 get seven",
        r">\d+\.7 END",
        r"<\d+\.7 connection closed\.",
    ):
        assert re.search(f"^{line}$", written, re.M), written


# ---- the cost of a lane ----------------------------------------------------------------------------------------------


@pytest.mark.resident
def test_memory_of_idle_lanes() -> None:
    """Each further lane costs the daemon at most 2 KB."""
    lanes = 4000
    with start_rmemcached("-t", "1", "-c", "6000") as server, Lanes(server, credits=64) as peer:
        peer.open(0)
        peer.talk(0, b"get key\r\n")
        before = resident(server.pid)
        peer.open(*range(1, lanes + 1))
        for lane in range(1, lanes + 1):
            peer.talk(lane, b"get key\r\n")
        assert (resident(server.pid) - before) / lanes <= 2048


@pytest.mark.resident
def test_memory_of_queue_pairs() -> None:
    """Each further used queue pair costs the daemon at most 16 KB, on the software devices."""
    count = 80
    with start_rmemcached("-t", "1") as server, ExitStack() as peers:

        def use(number: int) -> None:
            for _ in range(number):
                peer = peers.enter_context(Lanes(server))
                peer.open(1)
                for _ in range(40):
                    peer.talk(1, b"get key\r\n")

        use(20)
        before = resident(server.pid)
        use(count)
        assert (resident(server.pid) - before) / count <= 16384


def test_queue_pairs_beyond_those_that_share_receives() -> None:
    """A shared queue has 262144 receives at most: with a full shared queue a queue pair has receives of its own."""
    with (
        start_rmemcached("-t", "1", "-o", "rdma_credits=1024,rdma_max_lanes=1") as server,
        Conversation(server) as control,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(rdma_client(server)) for _ in range(262)]
        for client in clients:
            assert client.set("key", b"value")
        assert control.number("rdma_queue_pairs", "rdma") == 262
        assert all(client.get("key") == b"value" for client in clients)


@pytest.mark.resident
def test_refusals_that_cannot_leave() -> None:
    """A client that opens lanes beyond the limit and takes no refusals costs the daemon little memory: a queue pair may
    have as many refusals waiting as -c. Each leaves when the client takes more."""
    with (
        start_rmemcached("-t", "1", "-c", "4000") as server,
        Lanes(server, credits=64) as first,
        Lanes(server, credits=2, gives_back=False) as second,
    ):
        first.open(*range(first.lanes))
        first.wait(lambda: first.lanes - 1 in first.closed)
        before = resident(server.pid)
        # The peer keeps the credit of READY: the daemon has no credit for a refusal.
        second.owed = 0
        second.open(*range(1, second.lanes))
        assert not second.closed
        assert resident(server.pid) - before < second.lanes * 64 + 300_000
        second.owed = 1
        while len(second.closed) < second.lanes - 1:
            have = len(second.closed)
            if second.owed and second.credits:
                second.send(CREDIT)
            second.wait(lambda: len(second.closed) > have or (second.owed and second.credits))  # noqa: B023
        assert set(second.closed.values()) == {b"ERROR Too many open connections\r\n"}

"""Requests to a daemon and their replies, for each command over every transport."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from daemon_tools import DATA, HEADER, TIMEOUT, Conversation, Peer
from servers import Server, start_rmemcached

sys.path.append(str(Path(__file__).resolve().parent.parent / "protocol"))

from binary_packets import CONVERSATION, DELETE, GET, NOOP, SET, STAT, Packet, normal, packets, request, store
from test_protocol_features import Step, features

TRANSPORTS = ("tcp", "unix", "rdma")
FEATURES = features("machine")
MARK = b"mg nobody Othe-end\r\n"
MARK_REPLY = b"EN Othe-end\r\n"


class Socket:
    """A connection of its own, also to a UNIX socket."""

    def __init__(self, server: Server) -> None:
        self.sock = server.connect(TIMEOUT)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        try:
            return self.sock.recv(65536)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.sock.close()


class QueuePair:
    """A stream of a queue pair of its own."""

    def __init__(self, server: Server) -> None:
        self.peer = Peer(server)

    def send(self, data: bytes) -> None:
        room = int(self.peer.offer["msgsize"]) - HEADER
        for start in range(0, len(data), room):
            self.peer.send(DATA, data[start : start + room])

    def receive(self) -> bytes:
        self.peer.wait(lambda: self.peer.inbox)
        data = bytes(self.peer.inbox)
        self.peer.inbox.clear()
        if self.peer.owed > 4:
            self.peer.send(DATA)
        return data

    def close(self) -> None:
        self.peer.close()


@pytest.fixture(scope="module")
def daemons(tmp_path_factory) -> Iterator[dict[str, Server]]:
    """A daemon for sockets and queue pairs, and a daemon for the UNIX socket. Their clocks stand still."""
    path = str(tmp_path_factory.mktemp("features") / "socket")
    flags = ("-t", "2", "-o", "debug_commands")
    both = {"tcp": start_rmemcached(*flags), "unix": start_rmemcached(*flags, path=path)}
    for server in both.values():
        with Conversation(server) as control:
            assert control.ask(b"debugtime p\r\n") == b"OK\r\n"
    yield {**both, "rdma": both["tcp"]}
    for server in both.values():
        assert server.alive(), server.stderr()
        server.stop()


@pytest.fixture(params=TRANSPORTS)
def line(request: pytest.FixtureRequest, daemons: dict[str, Server]) -> Iterator[Socket | QueuePair]:
    """A connection to a daemon without items."""
    server = daemons[request.param]
    with Conversation(server) as control:
        # Items as old as the flush would survive: the clock moves before and behind the flush.
        assert control.ask(b"debugtime 2\r\n") == b"OK\r\n"
        assert control.ask(b"flush_all\r\n") == b"OK\r\n"
        assert control.ask(b"debugtime 2\r\n") == b"OK\r\n"
    made = QueuePair(server) if request.param == "rdma" else Socket(server)
    yield made
    made.close()


def up_to(line: Socket | QueuePair, mark: bytes) -> bytes:
    """The bytes before mark, or before the end of the connection, which gives ~CLOSED~."""
    got = b""
    while not got.endswith(mark):
        part = line.receive()
        if not part:
            return got + b"~CLOSED~"
        got += part
    return got.removesuffix(mark)


def run(line: Socket | QueuePair, server: Server, steps: list[Step], closes: bool) -> str:
    reply = b""
    for step in steps:
        if isinstance(step, int):
            line.send(MARK)
            reply += up_to(line, MARK_REPLY)
            with Conversation(server) as control:
                assert control.ask(b"debugtime %d\r\n" % step) == b"OK\r\n"
        else:
            with suppress(BrokenPipeError, ConnectionResetError):
                line.send(step)
    if not closes:
        line.send(MARK)
    return (reply + up_to(line, MARK_REPLY)).decode("latin-1")


def cases() -> Iterator[Any]:
    for name, (_, expected) in FEATURES.items():
        for transport in TRANSPORTS:
            # Over a queue pair the peer does not see the end of a stream, whose place a new stream takes: cases with an
            # end are for sockets.
            if transport != "rdma" or "CLOSED" not in expected:
                marks = [pytest.mark.segmented("lru mode is refused")] if name == "lru-mode" else []
                yield pytest.param(name, transport, marks=marks)


@pytest.mark.parametrize(("name", "line"), list(cases()), indirect=["line"])
def test_feature(name: str, line: Socket | QueuePair, daemons: dict[str, Server], request) -> None:
    steps, expected = FEATURES[name]
    server = daemons[request.node.callspec.params["line"]]
    reply = run(line, server, steps, "CLOSED" in expected)
    assert re.search(expected, reply, re.DOTALL), reply[:500]


def test_binary(line: Socket | QueuePair) -> None:
    mark = request(NOOP, opaque=0x0FF0)
    for sent, expected in CONVERSATION[:-1]:
        line.send(sent + mark)
        assert normal(packets(up_to(line, b"\x81" + mark[1:]))) == expected, sent


def ask(line: Socket | QueuePair, data: bytes) -> list[Packet]:
    mark = request(NOOP, opaque=0x0FF0)
    line.send(data + mark)
    return packets(up_to(line, b"\x81" + mark[1:]))


def test_binary_statistics(line: Socket | QueuePair) -> None:
    end = Packet(STAT)
    ask(line, store(SET, b"a", b"x"))
    for key, name in (
        (b"", b"curr_items"),
        (b"settings", b"maxbytes"),
        (b"items", b"items:1:number"),
        (b"slabs", b"1:chunk_size"),
    ):
        *found, last = ask(line, request(STAT, key))
        assert last == end
        assert name in [packet.key for packet in found], key
    assert ask(line, request(STAT, b"reset")) == [end]
    for key in (b"detail", b"detail x", b"conns", b"nothing"):
        assert ask(line, request(STAT, key)) == [Packet(STAT, 1, value=b"Not found")]


def test_binary_detail(line: Socket | QueuePair) -> None:
    end = Packet(STAT)
    assert ask(line, request(STAT, b"detail on")) == [end]
    ask(line, store(SET, b"pre:a", b"x") + request(GET, b"pre:a") + request(GET, b"pre:b") + request(DELETE, b"pre:a"))
    dump = Packet(STAT, 0, b"detailed", value=b"PREFIX pre get 2 hit 1 set 1 del 1\r\nEND\r\n")
    assert ask(line, request(STAT, b"detail dump")) == [dump, end]
    assert ask(line, request(STAT, b"detail off") + request(STAT, b"reset")) == [end, end]

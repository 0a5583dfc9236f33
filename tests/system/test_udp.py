"""The UDP port: frames, messages of several datagrams, invalid requests."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from daemon_tools import Conversation, eventually
from servers import Server, start_rmemcached

sys.path.append(str(Path(__file__).resolve().parent.parent / "protocol"))

from binary_packets import GET, GETK, GETQ, NOOP, QUIT, SET, SETQ, Packet, flags, normal, packets, request, store

FRAME = struct.Struct(">HHHH")
MAX_DATAGRAM = 1400
LATE = 30.0  # seconds
SO_RCVBUFFORCE = 33


class Daemon(NamedTuple):
    server: Server
    port: int
    """The UDP port."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[Daemon]:
    """A daemon with two workers and a UDP port of its own choice."""
    names = tmp_path_factory.mktemp("udp") / "ports"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMCACHED_PORT_FILENAME", str(names))
        server = start_rmemcached("-U", "-1", "-t", "2", "-I", "8m", "-m", "128")
    yield Daemon(server, udp_port(names))
    assert server.alive(), server.stderr()
    server.stop()


def udp_port(names: Path) -> int:
    """The port in the daemon's file."""
    eventually(names.exists)
    lines = dict(line.split(": ") for line in reversed(names.read_text().splitlines()))
    return int(lines["UDP INET"])


class Peer:
    """A UDP client. Every request gets a request id of its own."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # A datagram without room is lost, so the buffer is large. Root is free of the system's limit, which can be a
        # tenth of this size.
        option = SO_RCVBUFFORCE if os.geteuid() == 0 else socket.SO_RCVBUF
        self.sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        self.sock.settimeout(LATE)
        self.sock.connect(("127.0.0.1", port))
        self.id = 0

    def send(self, data: bytes, sequence: int = 0, total: int = 1, reserved: int = 0) -> None:
        self.id = (self.id + 1) % 65536
        self.sock.send(FRAME.pack(self.id, sequence, total, reserved) + data)

    def datagram(self) -> tuple[int, int, bytes]:
        """(sequence, total, data) of the next datagram, an answer to the last request."""
        data = self.sock.recv(65536)
        assert len(data) <= MAX_DATAGRAM
        number, sequence, total, reserved = FRAME.unpack_from(data)
        assert (number, reserved) == (self.id, 0)
        return sequence, total, data[FRAME.size :]

    def message(self) -> bytes:
        """The next message, an answer to the last request."""
        sequence, total, data = self.datagram()
        assert (sequence, total > 0) == (0, True)
        for expected in range(1, total):
            sequence, same, more = self.datagram()
            assert (sequence, same) == (expected, total)
            data += more
        return data

    def ask(self, data: bytes) -> bytes:
        self.send(data)
        return self.message()

    def silent(self) -> None:
        """Sends a command, and fails if anything but its answer arrives: earlier requests have no answers left."""
        assert self.ask(b"mn\r\n") == b"MN\r\n"

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def peer(daemon: Daemon) -> Iterator[Peer]:
    peer = Peer(daemon.port)
    yield peer
    peer.close()


# ---- requests and replies --------------------------------------------------------------------------------------------


def test_text_commands(daemon: Daemon, peer: Peer) -> None:
    assert peer.ask(b"set u1 5 0 3\r\nabc\r\n") == b"STORED\r\n"
    assert peer.ask(b"get u1\r\n") == b"VALUE u1 5 3\r\nabc\r\nEND\r\n"
    assert peer.ask(b"append u1 0 0 1\r\nd\r\n") == b"STORED\r\n"
    assert peer.ask(b"mg u1 v f\r\n") == b"VA 4 f5\r\nabcd\r\n"
    assert peer.ask(b"gat 0 u1\r\n") == b"VALUE u1 5 4\r\nabcd\r\nEND\r\n"
    assert peer.ask(b"delete u1\r\n") == b"DELETED\r\n"
    assert peer.ask(b"get u1\r\n") == b"END\r\n"
    assert peer.ask(b"version\r\n").startswith(b"VERSION ")
    assert peer.ask(b"nonsense\r\n") == b"ERROR\r\n"
    with Conversation(daemon.server) as tcp:
        assert tcp.ask(b"set u1 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert peer.ask(b"get u1\r\n") == b"VALUE u1 0 1\r\nx\r\nEND\r\n"


def test_binary_commands(peer: Peer) -> None:
    assert normal(packets(peer.ask(store(SET, b"u2", b"abc", 7, opaque=8)))) == [Packet(SET, opaque=8)]
    assert normal(packets(peer.ask(request(GETK, b"u2")))) == [Packet(GETK, 0, b"u2", flags(7), b"abc")]
    # A quiet command gets no reply, not even an empty datagram.
    peer.send(store(SETQ, b"u2", b"new") + request(GETQ, b"nothing"))
    peer.silent()
    assert packets(peer.ask(request(GET, b"u2")))[0].value == b"new"
    assert normal(packets(peer.ask(request(QUIT)))) == [Packet(QUIT)]
    peer.silent()


def test_each_datagram_chooses_its_protocol(peer: Peer) -> None:
    for _ in range(3):
        assert packets(peer.ask(request(NOOP, opaque=3))) == [Packet(NOOP, opaque=3)]
        assert peer.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("size", [0, 1, 1300, 1391, 1392, 1393, 2784, 20_000, 65_000])
def test_long_replies_come_in_numbered_datagrams(peer: Peer, daemon: Daemon, size: int) -> None:
    value = bytes(i % 251 for i in range(size))
    with Conversation(daemon.server) as tcp:
        assert tcp.ask(b"set long 0 0 %d\r\n%s\r\n" % (size, value)) == b"STORED\r\n"
    reply = b"VALUE long 0 %d\r\n%s\r\nEND\r\n" % (size, value)
    peer.send(b"get long\r\n")
    total = -(-len(reply) // (MAX_DATAGRAM - FRAME.size))
    parts = [peer.datagram() for _ in range(total)]
    assert [part[:2] for part in parts] == [(i, total) for i in range(total)]
    assert b"".join(part[2] for part in parts) == reply
    assert packets(peer.ask(request(GET, b"long")))[0].value == value


def test_a_chained_item(peer: Peer, daemon: Daemon) -> None:
    value = b"0123456789abcdef" * 62_500
    with Conversation(daemon.server) as tcp:
        assert tcp.ask(b"set chained 0 0 %d\r\n%s\r\n" % (len(value), value)) == b"STORED\r\n"
    assert peer.ask(b"get chained\r\n") == b"VALUE chained 0 %d\r\n%s\r\nEND\r\n" % (len(value), value)


def test_a_large_value_to_store(peer: Peer) -> None:
    value = b"v" * 60_000
    assert peer.ask(b"set w 0 0 60000\r\n" + value + b"\r\n") == b"STORED\r\n"
    assert peer.ask(b"get w\r\n") == b"VALUE w 0 60000\r\n" + value + b"\r\nEND\r\n"


def test_every_reply_is_a_message(peer: Peer) -> None:
    """As in memcached 1.6, each command and each key of a multiget has its own message; END goes with the last."""
    peer.send(b"set m1 0 0 1\r\n1\r\nset m2 0 0 300\r\n" + b"2" * 300 + b"\r\n")
    assert [peer.message(), peer.message()] == [b"STORED\r\n"] * 2
    second = b"VALUE m2 0 300\r\n" + b"2" * 300 + b"\r\n"
    peer.send(b"get m1 nothing m2\r\n")
    assert [peer.message(), peer.message()] == [b"VALUE m1 0 1\r\n1\r\n", second + b"END\r\n"]
    peer.send(b"get m2 nothing\r\n")
    assert [peer.message(), peer.message()] == [second, b"END\r\n"]
    peer.send(b"get m1\r\nget m2\r\nmn\r\n")
    assert peer.message() == b"VALUE m1 0 1\r\n1\r\nEND\r\n"
    assert [peer.message(), peer.message()] == [second + b"END\r\n", b"MN\r\n"]
    peer.send(request(GETK, b"m1") + request(GETQ, b"nothing") + request(NOOP))
    assert [packets(peer.message())[0].opcode for _ in range(2)] == [GETK, NOOP]
    peer.silent()


def test_a_long_multiget(peer: Peer) -> None:
    """A line beyond 2 KB, and more commands than the daemon does in a turn of the loop, are answered."""
    peer.ask(b"set m1 0 0 1\r\n1\r\n")
    peer.send(b"get " + b"m1 " * 1000 + b"\r\n")
    replies = [peer.message() for _ in range(1000)]
    assert replies == [b"VALUE m1 0 1\r\n1\r\n"] * 999 + [b"VALUE m1 0 1\r\n1\r\nEND\r\n"]
    peer.send(b"mn\r\n" * 500)
    assert [peer.message() for _ in range(500)] == [b"MN\r\n"] * 500
    peer.silent()


# ---- invalid requests ------------------------------------------------------------------------------------------------


def test_quiet_commands(peer: Peer) -> None:
    peer.send(b"set nr 0 0 1 noreply\r\nx\r\n")
    peer.send(b"mg nothing v q\r\n")
    peer.silent()
    assert peer.ask(b"get nr\r\n") == b"VALUE nr 0 1\r\nx\r\nEND\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"get a",
        b"set half 0 0 10\r\nabc",
        b"set half 0 0 3\r\nabc",
        b"get " + b"a " * 2000,
        b"x" * 3000,
        b"x" * 65_000,
        b"quit\r\nmn\r\n",
        b"GET / HTTP/1.1\r\nmn\r\n",
        b"\x80",
        request(GET, b"key")[:-1],
        store(SET, b"half", b"abc")[:-1],
        request(NOOP, magic=0x80)[:23],
        b"\x80" + b"\x01" * 30,
        request(SET, b"half", b"\0" * 8, body=1 << 20),
    ],
)
def test_half_a_request_is_dropped(peer: Peer, data: bytes) -> None:
    """The daemon drops an unfinished request. The next datagram does not complete the request."""
    peer.send(data)
    peer.silent()
    assert peer.ask(b"get half\r\n") == b"END\r\n"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0",
        b"\0\1\0\0\0\1\0",
        b"\0\1\0\0\0\1\0\0",
        FRAME.pack(1, 0, 0, 0) + b"mn\r\n",
        FRAME.pack(1, 0, 2, 0) + b"mn\r\n",
        FRAME.pack(1, 1, 2, 0) + b"mn\r\n",
        FRAME.pack(1, 0, 257, 0) + b"mn\r\n",
        FRAME.pack(1, 0, 65535, 0) + b"mn\r\n",
        FRAME.pack(1, 0, 256, 0) + b"mn\r\n" * 16_000,
    ],
)
def test_frames_that_are_none_are_dropped(peer: Peer, frame: bytes) -> None:
    peer.sock.send(frame)
    peer.silent()


def test_sequence_and_reserved_are_not_looked_at(peer: Peer) -> None:
    peer.send(b"mn\r\n", sequence=5, reserved=9)
    assert peer.message() == b"MN\r\n"


def test_the_longest_datagram(peer: Peer) -> None:
    size = 65507 - FRAME.size - len(b"set w 0 0 65000\r\n\r\n")
    assert peer.ask(b"set w 0 0 %d\r\n%s\r\n" % (size, b"v" * size)) == b"STORED\r\n"


def test_a_value_that_is_too_large(peer: Peer) -> None:
    assert peer.ask(b"set w 0 0 20000000\r\n" + b"v" * 1000) == b"SERVER_ERROR object too large for cache\r\n"
    peer.silent()


@pytest.mark.parametrize(
    "data", [b"watch\r\n", b"lru_crawler metadump all\r\n", b"lru_crawler mgdump all\r\n", b"rdma version=2\r\n"]
)
def test_commands_that_want_a_connection(peer: Peer, data: bytes) -> None:
    assert peer.ask(data).startswith(b"CLIENT_ERROR ")
    peer.silent()


def test_a_peer_that_is_gone(daemon: Daemon, peer: Peer) -> None:
    """A reply to a closed port comes back as an error, and disturbs nobody."""
    with Conversation(daemon.server) as tcp:
        tcp.ask(b"set gone 0 0 50000\r\n" + b"v" * 50_000 + b"\r\n")
    for _ in range(20):
        other = Peer(daemon.port)
        other.send(b"get gone\r\n")
        other.close()
    peer.silent()
    assert peer.ask(b"get gone\r\n").endswith(b"v\r\nEND\r\n")


def test_many_peers_at_once(daemon: Daemon) -> None:
    peers = [Peer(daemon.port) for _ in range(100)]
    for turn in range(5):
        for i, peer in enumerate(peers):
            peer.send(b"set p%d 0 0 4\r\n%04d\r\nget p%d\r\n" % (i, turn, i))
        for i, peer in enumerate(peers):
            assert [peer.message(), peer.message()] == [b"STORED\r\n", b"VALUE p%d 0 4\r\n%04d\r\nEND\r\n" % (i, turn)]
    for peer in peers:
        peer.close()


# ---- settings and statistics -----------------------------------------------------------------------------------------


def test_statistics(daemon: Daemon, peer: Peer) -> None:
    with Conversation(daemon.server) as tcp:
        settings = tcp.stats("settings")
        assert (settings["udpport"], settings["num_threads_per_udp"]) == ("-1", "2")
        before = tcp.stats()
        request = b"get nothing\r\n"
        peer.ask(request)
        after = tcp.stats()
    assert int(after["cmd_get"]) == int(before["cmd_get"]) + 1
    # The bytes of the frame's header count. The rest is `stats` by TCP and the request.
    assert int(after["bytes_read"]) - int(before["bytes_read"]) == len(b"stats\r\n") + 8 + len(request)
    assert after["total_connections"] == before["total_connections"]


def test_off_by_default(rmemcached_server) -> None:
    server = rmemcached_server()
    with Conversation(server) as tcp:
        assert tcp.stats("settings")["udpport"] == "0"
    peer = Peer(server.port)
    with pytest.raises(ConnectionRefusedError):
        peer.ask(b"mn\r\n")
    peer.close()


def test_another_port_and_several_addresses(rmemcached_server, tmp_path: Path, monkeypatch) -> None:
    names = tmp_path / "ports"
    monkeypatch.setenv("MEMCACHED_PORT_FILENAME", str(names))
    server = rmemcached_server("-U", "-1", "-l", "127.0.0.1,127.0.0.2")
    with Conversation(server) as tcp:
        assert tcp.stats("settings")["num_threads_per_udp"] == "1"
    peer = Peer(udp_port(names))
    peer.silent()
    peer.close()

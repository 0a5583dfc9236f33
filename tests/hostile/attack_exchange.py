"""Costly attacks on the exchange and on lanes: starts without end, requests without credits, endless work."""

from __future__ import annotations

import os
import socket
import struct
import time
from types import SimpleNamespace

from attacker import Target
from daemon_tools import CREDIT, DATA, Peer
from lane_peer import Lanes
from transport import VARIABLE

from rmemcached.host import host_identity
from rmemcached.verbs import MR, Access

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset
LANES = 64
FEW_LANES = 8  # so few that two messages on each lane need no returned credit
AT_ONCE = 16  # large values that one message asks for


def exchange_line(transport: str) -> bytes:
    where = " host={} netns={}".format(*host_identity()) if transport == "soft_shm" else ""
    limits = "credits=16 msgsize=8192 ird=16 ord=16 lanebytes=65536"
    return f"rdma version=2 transport={transport} qpn=17 {limits}{where}\r\n".encode()


def exchange(target: Target, transport: str) -> socket.socket:
    """A lifeline whose queue pair waits for its stream."""
    plain = target.connect()
    plain.sendall(exchange_line(transport))
    answer = plain.recv(4096)
    assert answer.startswith(b"RDMA "), answer
    return plain


def peer(target: Target, transport: str, kind: type[Peer] = Peer, **options: object) -> Peer:
    """A peer made of raw verbs, of this kind, connected to the daemon over this transport."""
    os.environ[VARIABLE] = transport
    assert not isinstance(target.address, str)
    host, port = target.address

    def connect(timeout: float) -> socket.socket:
        plain = target.connect()
        plain.settimeout(timeout)
        return plain

    server = SimpleNamespace(host=host, port=port, address=(host, port), connect=connect)
    return kind(server, **options)  # type: ignore[arg-type]


def exchange_flood(target: Target, transport: str) -> None:
    """Makes and abandons queue pairs as fast as possible."""
    target.ready()
    while True:
        plain = exchange(target, transport)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        plain.close()


def without_stream(target: Target, transport: str, count: int) -> None:
    """Makes so many queue pairs that wait for their stream. For each pair given up by the daemon a new pair begins."""
    waiting = [exchange(target, transport) for _ in range(count)]
    target.ready()
    while True:
        # The daemon gives up the queue pairs in the order of their beginning.
        oldest = waiting.pop(0)
        while oldest.recv(4096):
            pass
        oldest.close()
        waiting.append(exchange(target, transport))


def without_ready(target: Target, transport: str, count: int) -> None:
    """Makes so many queue pairs with streams, and without READY. For each pair given up by the daemon a new pair
    begins."""
    waiting = [peer(target, transport, ready=False) for _ in range(count)]
    target.ready()
    while True:
        oldest = waiting.pop(0)
        oldest.last_words()
        oldest.close()
        waiting.append(peer(target, transport, ready=False))


def without_credits(target: Target, transport: str, count: int) -> None:
    """Sends requests on a few lanes of some queue pairs, as many as there is room for, and gives no credits for
    replies."""
    request = b"get bystander\r\n" * 500
    peers = [peer(target, transport, credits=2, lanes=range(FEW_LANES)) for _ in range(count)]
    for one in peers:
        for lane in range(FEW_LANES):
            while one.room[lane] >= len(request):
                one.send(DATA, request, lane, credits=0)
    target.ready()
    target.stay()


def pump(one: Peer, request: bytes, lanes: int = LANES) -> None:
    """Keeps the daemon's queue as deep as credits allow, on so many lanes, and takes all replies."""
    lane = 0
    while True:
        while one.credits > 1:
            one.send(DATA, request, lane % lanes)
            lane += 1
        if one.owed * 2 >= one.posted and one.credits:
            one.send(CREDIT)
        had = one.credits + one.owed
        one.wait(lambda: one.credits + one.owed > had)  # noqa: B023
        one.inbox.clear()


def deep_queue(target: Target, transport: str, request: str, at_once: int) -> None:
    """Keeps the daemon's queue of a queue pair from ever being empty."""
    one = peer(target, transport, credits=64, lanes=range(LANES))
    target.ready()
    pump(one, request.encode() * at_once)


def large_values(target: Target, transport: str, request: str, size: int, count: int) -> None:
    """Starts so many processes: each fetches or stores a large value without end, on a queue pair of its own."""
    began, begins = os.pipe()
    for number in range(count):
        if os.fork() == 0:
            one = peer(target, transport, credits=64, lanes=range(LANES // 4))
            memory = MR.alloc(one.pd, size, Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE)
            where = f"@{memory.addr:x}:{memory.rkey:x}"
            line = request.format(number=number, where=where, size=size).encode() + b"\r\n"
            one.ask(line)
            os.write(begins, b".")
            pump(one, line * AT_ONCE, LANES // 4)
    for _ in range(count):
        os.read(began, 1)
    target.ready()
    target.stay()


def lanes_without_end(target: Target, transport: str) -> None:
    """Opens lanes, asks for something, and closes the lanes, many in a message, also more than -c allows."""
    one = peer(target, transport, Lanes, credits=64)
    assert isinstance(one, Lanes)
    target.ready()
    while True:
        lanes = [lane for lane in range(0, one.lanes, 7) if lane not in one.closed][:200]
        one.open(*lanes)
        for lane in lanes:
            one.put(lane, b"get bystander\r\n")
        one.close_lanes(*lanes)


def lanes_at_rest(target: Target, transport: str, count: int) -> None:
    """Keeps so many lanes at rest, each after one request."""
    one = peer(target, transport, Lanes, credits=64)
    assert isinstance(one, Lanes)
    one.open(*range(count))
    for lane in range(count):
        one.put(lane, b"mn\r\n")
    one.wait(lambda: sum(reply.endswith(b"MN\r\n") for reply in one.replies.values()) == count)
    target.ready()
    target.stay()


def lanes_left_open(target: Target, transport: str, count: int, lanes: int) -> None:
    """Opens so many lanes on each of some queue pairs, with unread replies, and half a command."""
    request = b"get bystander\r\n" * 100
    for _ in range(count):
        one = peer(target, transport, Lanes, credits=64)
        assert isinstance(one, Lanes)
        one.open(*range(lanes))
        for lane in range(lanes):
            while one.room[lane] >= len(request):
                one.put(lane, request, used=False)
            one.put(lane, b"get byst"[: one.room[lane]], used=False)
    target.ready()
    target.stay()


def statistics_and_deep_queues(target: Target, transport: str, count: int) -> None:
    """Runs some deep queues, each a process, and a connection that asks for statistics without end."""
    for _ in range(count):
        if os.fork() == 0:
            pump(peer(target, transport, credits=64, lanes=range(LANES)), b"mg bystander v\r\n" * 200)
    plain = target.connect()
    replies = plain.makefile("rb")
    target.ready()
    while True:
        plain.sendall(b"stats rdma\r\n")
        while replies.readline() != b"END\r\n":
            pass
        time.sleep(0)

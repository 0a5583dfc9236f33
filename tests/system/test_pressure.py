"""Slow, greedy or many clients neither let the daemon's memory grow without bound nor keep it from serving others."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import polling
import pytest
from daemon_tools import (
    CREDIT,
    DATA,
    GONE_WITHIN,
    Conversation,
    Peer,
    descriptors,
    eventually,
    rdma_at_rest,
    rdma_client,
    resident,
    tcp_client,
)
from polling import at_least
from servers import Server
from transport import rounds, within

from rmemcached.client import Client

MB = 1 << 20
STALL = within(5.0)  # seconds for an operation behind others; tests/hostile has closer limits


def inbox_length(peer: Peer) -> int:
    return len(peer.inbox)


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Iterator[Server]:
    """A daemon with a single worker: all clients share its turns."""
    yield rmemcached_server("-t", "1", "-m", "64", "-c", "6000")


def push(sock: socket.socket, data: bytes, times: int) -> tuple[int, int]:
    """Sends data `times` times for as long as the daemon takes them. Returns (whole copies, bytes of the next) sent."""
    sock.setblocking(False)
    block = data * times
    sent = 0
    while sent < len(block) and polling.writable(sock, 0.2):
        sent += sock.send(memoryview(block)[sent:])
    return divmod(sent, len(data))


def others_are_served(server: Server) -> None:
    for client in (rdma_client(server), tcp_client(server)):
        for size in (10, 100_000):
            began = time.monotonic()
            assert client.set("other", bytes(size))
            assert client.get("other") == bytes(size)
            assert time.monotonic() - began < STALL
        client.close()


@pytest.mark.parametrize("size", [100, 10_000])
def test_pipelined_gets_without_reading(server: Server, size: int) -> None:
    """100 000 gets without reading take limited memory; the replies all come when the client reads."""
    request, reply = b"get key\r\n", b"VALUE key 0 %d\r\n%s\r\nEND\r\n" % (size, bytes(size))
    count = 100_000
    with Conversation(server) as control, Conversation(server) as greedy:
        assert control.ask(b"set key 0 0 %d\r\n%s\r\n" % (size, bytes(size))) == b"STORED\r\n"
        before = resident(server.pid)
        whole, part = push(greedy.sock, request, count)
        others_are_served(server)
        assert resident(server.pid) - before < 16 * MB
        greedy.sock.setblocking(True)
        greedy.sock.settimeout(10)
        if part:
            greedy.send(request[part:])
            whole += 1
        expected = whole * len(reply)
        received = 0
        while received < expected:
            block = greedy.sock.recv(min(MB, expected - received))
            assert block
            at = received % len(reply)
            pattern = reply[at:] + reply * (len(block) // len(reply) + 1)
            assert block == pattern[: len(block)]
            received += len(block)
        assert greedy.ask(b"mn\r\n") == b"MN\r\n"
        assert resident(server.pid) - before < 16 * MB


def test_many_greedy_clients(server: Server) -> None:
    """50 greedy clients, which ask for overwritten values of 200 KB and die without reading, cost limited memory."""
    size = 200_000
    with Conversation(server) as control:
        others_are_served(server)
        eventually(lambda: control.number("curr_connections") == 1)
        open_files, before = descriptors(server.pid), resident(server.pid)
        greedy = [Conversation(server) for _ in range(50)]
        for round_number in range(4):
            value = bytes([round_number]) * size
            assert control.ask(b"set key 0 0 %d\r\n%s\r\n" % (size, value)) == b"STORED\r\n"
            for talk in greedy:
                talk.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    talk.sock.send(b"get key\r\n" * 100)
            others_are_served(server)
        for talk in greedy:
            talk.close()
        eventually(lambda: control.number("curr_connections") == 1)
        eventually(lambda: descriptors(server.pid) <= open_files)
        assert resident(server.pid) - before < 32 * MB
        # The next test begins without these items.
        assert control.ask(b"flush_all\r\n") == b"OK\r\n"


@pytest.mark.device("a peer without receives")
def test_greedy_rdma_client(server: Server) -> None:
    """For a client that asks without end and grants no credit the daemon keeps as much of its lane as promised."""
    with Conversation(server) as control, Peer(server) as peer:
        value = bytes(4000)
        assert control.ask(b"set key 0 0 4000\r\n%s\r\n" % value) == b"STORED\r\n"
        peer.ask(b"mn\r\n")
        before = resident(server.pid)
        gets = rounds(900)
        batch = b"get key\r\n" * gets
        posted = 0
        while peer.room[0] >= len(batch):
            peer.send(DATA, batch, credits=0)
            posted += 1
        others_are_served(server)
        assert resident(server.pid) - before < 8 * MB
        reply = b"VALUE key 0 4000\r\n%s\r\nEND\r\n" % value
        expected = posted * gets * len(reply)
        taken = 0

        def take() -> bool:
            nonlocal taken
            taken += len(peer.inbox)
            peer.inbox.clear()
            if peer.owed >= 4 and peer.credits:
                # This message also reports the bytes used by the lane.
                peer.send(DATA)
            return taken >= expected

        peer.wait(take, timeout=within(30.0))
        assert taken == expected


@pytest.mark.device("READs without an answer")
def test_lane_that_waits_for_a_read_stops_its_client(server: Server) -> None:
    """The daemon keeps commands behind an unanswered READ up to a bound."""
    with Peer(server) as peer:
        # The first item is stored before the measurement: with the first item comes item memory, which a device of the
        # system makes resident as a whole.
        assert peer.ask(b"set first 0 0 1\r\nx\r\n") == b"STORED\r\n"
        before = resident(server.pid)
        peer.send(DATA, b"ms key 100000 @1000:1\r\n" + b"mn\r\n" * 1900)
        with pytest.raises((ConnectionError, TimeoutError)):
            while True:
                peer.send(DATA, b"mn\r\n" * 2000)
        assert resident(server.pid) - before < 8 * MB


@pytest.mark.parametrize("keys", [1000, 20_000, 100_000])
def test_long_multigets(server: Server, keys: int) -> None:
    """Lines of up to a megabyte, with hits and misses, get right replies over both transports."""
    with Conversation(server) as talk, Peer(server) as peer:
        for number in range(0, 1000, 2):
            talk.send(b"set m%d 0 0 5 noreply\r\n%05d\r\n" % (number, number))
        line = b"get " + b" ".join(b"m%d" % number for number in range(keys)) + b"\r\n"
        expected = (
            b"".join(b"VALUE m%d 0 5\r\n%05d\r\n" % (number, number) for number in range(0, 1000, 2)) + b"END\r\n"
        )
        talk.send(line)
        assert talk.read(len(expected)) == expected
        assert talk.ask(b"mn\r\n") == b"MN\r\n"
        for at in range(0, len(line), 8000):
            peer.send(DATA, line[at : at + 8000])

        def whole() -> bool:
            if peer.owed >= 8 and peer.credits:
                peer.send(CREDIT)
            return len(peer.inbox) >= len(expected)

        peer.wait(whole)
        assert peer.inbox == expected


def test_multiget_of_large_values(server: Server) -> None:
    """A line asks for the same 10 KB 20 000 times: of 200 MB of replies a bounded part is in memory."""
    with Conversation(server) as talk:
        assert talk.ask(b"set k 0 0 10000\r\n%s\r\n" % bytes(10_000)) == b"STORED\r\n"
        before = resident(server.pid)
        talk.send(b"get" + b" k" * 20_000 + b"\r\n")
        others_are_served(server)
        assert resident(server.pid) - before < 16 * MB
        reply = b"VALUE k 0 10000\r\n%s\r\n" % bytes(10_000)
        for _ in range(20_000):
            assert talk.read(len(reply)) == reply
        assert talk.line() == b"END\r\n"


def test_line_without_end(server: Server) -> None:
    """A key of megabytes ends its connection, or gets an error. The daemon does not collect the key for ever."""
    with Conversation(server) as control:
        for start in (b"get ", b"set ", b"", b"mg "):
            with Conversation(server) as talk:
                before = resident(server.pid)
                talk.sock.setblocking(False)
                sent = 0
                try:
                    while sent < 100 * MB and polling.writable(talk.sock, 2.0):
                        sent += talk.sock.send((start if sent == 0 else b"") + b"a" * 65536)
                except OSError:
                    pass
                assert control.ask(b"mn\r\n") == b"MN\r\n"
                assert resident(server.pid) - before < 16 * MB
        others_are_served(server)


def test_byte_by_byte(server: Server) -> None:
    """40 clients, half of them by RDMA, send an octet at a time, in turn, and get right replies."""
    script = b"set slow%d 5 0 6\r\nabcdef\r\nget slow%d\r\nms slow%d 3 F7\r\nxyz\r\nmg slow%d v f k\r\nmn\r\n"
    reply = b"STORED\r\nVALUE slow%d 5 6\r\nabcdef\r\nEND\r\nHD\r\nVA 3 f7 kslow%d\r\nxyz\r\nMN\r\n"
    talks = [Conversation(server) for _ in range(20)]
    peers = [Peer(server) for _ in range(20)]
    for talk in talks:
        talk.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    scripts = [script.replace(b"%d", b"%03d" % number) for number in range(40)]
    for at in range(len(scripts[0])):
        for number, talk in enumerate(talks):
            talk.send(scripts[number][at : at + 1])
        for number, peer in enumerate(peers, 20):
            peer.send(DATA, scripts[number][at : at + 1])
    for number, talk in enumerate(talks):
        expected = reply.replace(b"%d", b"%03d" % number)
        assert talk.read(len(expected)) == expected
        talk.close()
    for number, peer in enumerate(peers, 20):
        expected = reply.replace(b"%d", b"%03d" % number)
        peer.wait(at_least(partial(inbox_length, peer), len(expected)))
        assert peer.inbox == expected
        peer.close()


def test_idle_connections_are_cheap(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 5000 if hard == resource.RLIM_INFINITY else min(5000, hard - 500)
    assert count > 500, "this machine allows too few open files"
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
        control = stack.enter_context(Conversation(server))
        others_are_served(server)
        before = resident(server.pid)
        talks = [stack.enter_context(server.connect()) for _ in range(count)]
        eventually(lambda: control.number("curr_connections") >= count + 1)
        assert (resident(server.pid) - before) / count < 1024
        # The limit also holds for connections with a part of a command, and for connections that were active before.
        for sock in talks:
            sock.sendall(b"get nothing\r\nge")
        for sock in talks:
            assert sock.recv(100) == b"END\r\n"
        eventually(lambda: control.number("read_buf_count") >= count)
        assert (resident(server.pid) - before) / count < 1024
        for sock in talks:
            sock.sendall(b"t nothing\r\n")
        for sock in talks:
            assert sock.recv(100) == b"END\r\n"
        others_are_served(server)
        assert (resident(server.pid) - before) / count < 1024
        for sock in talks:
            sock.close()
        eventually(lambda: control.number("curr_connections") == 1)


@pytest.mark.device("many queue pairs")
def test_idle_queue_pairs(server: Server) -> None:
    """300 connected queue pairs cost the daemon a limited amount each, and their end gives all of it back."""
    count = rounds(300)
    with Conversation(server) as control, ExitStack() as stack:
        others_are_served(server)
        before = resident(server.pid)
        peers = [stack.enter_context(Peer(server)) for _ in range(count)]
        for number, peer in enumerate(peers):
            assert peer.ask(b"set idle%d 0 0 5\r\nvalue\r\n" % number) == b"STORED\r\n"
        assert control.number("rdma_queue_pairs", "rdma") == count
        per_client = (resident(server.pid) - before) / count
        # A queue pair has 16 receives and 16 sends of 8 KB at most, of which only used messages are in memory.
        assert per_client < 300 * 1024, per_client
        for number, peer in enumerate(peers):
            assert peer.ask(b"mg idle%d v\r\n" % number, b"value\r\n") == b"VA 5\r\nvalue\r\n"
            peer.close()
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


def test_short_messages_take_little_memory(server: Server, rdma_transport: str) -> None:
    """Short messages use up no memory of their receives of 8 KB, though all receives are used in turn."""
    count = rounds(100)
    with Conversation(server) as control, ExitStack() as stack:
        clients = [stack.enter_context(rdma_client(server)) for _ in range(count)]
        for client in clients:
            assert client.set("short", bytes(100))
        before = resident(server.pid)
        for _ in range(40):
            for client in clients:
                assert client.get("short") == bytes(100)
        assert (resident(server.pid) - before) / count < 16 * 1024
        stack.close()
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


@pytest.mark.parametrize("requests", [1, 20])
def test_fairness(rmemcached_server: Callable[..., Server], requests: int) -> None:
    """-R: a connection with 300 000 commands waiting does not keep the others of its worker waiting."""
    server = rmemcached_server("-t", "1", "-R", str(requests))
    with Conversation(server) as control, Conversation(server) as busy, rdma_client(server) as rdma:
        tcp = tcp_client(server)
        assert rdma.set("key", b"value")
        count = 300_000
        block = memoryview(b"mn\r\n" * count)
        busy.sock.setblocking(False)
        sent = received = 0
        slowest = 0.0
        while received < len(block):
            readable, writable = polling.select([busy.sock], [busy.sock] if sent < len(block) else [], 10)
            assert readable or writable
            if writable:
                sent += busy.sock.send(block[sent:])
            if readable:
                received += len(busy.sock.recv(MB))
            for client in (rdma, tcp):
                began = time.monotonic()
                assert client.get("key") == b"value"
                slowest = max(slowest, time.monotonic() - began)
        assert slowest < STALL
        assert control.number("conn_yields") > count // requests // 2
        tcp.close()


def test_a_long_dump_takes_the_turn(rmemcached_server: Callable[..., Server]) -> None:
    """After each reply to stats cachedump, of up to 2 MB, the other connections of the worker have their turn."""
    # Without the maintainer the dumped list has all items.
    server = rmemcached_server("-t", "1", "-o", "no_lru_maintainer")
    dumps = 10
    with Conversation(server) as control, Conversation(server) as busy:
        control.sock.sendall(b"".join(b"set key-%d 0 0 1 noreply\r\nx\r\n" % number for number in range(5000)))
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        before = control.number("conn_yields")
        busy.sock.sendall(b"stats cachedump 1 0\r\n" * dumps)
        received = b""
        while received.count(b"\r\nEND\r\n") < dumps:
            received += busy.sock.recv(MB)
        assert control.number("conn_yields") - before >= dumps - 1


def work(server: Server, client: Client) -> float:
    """The daemon's CPU time in seconds for some gets."""
    before = server.cpu_seconds()
    for _ in range(20):
        assert client.gat("key") == b"value"
    return server.cpu_seconds() - before


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """The test and its daemons share a CPU. In a virtual machine the wake-up of a process on another CPU can cost ten
    times a request."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    yield
    os.sched_setaffinity(0, all_of_them)


def test_many_unfinished_stream_requests(one_cpu: None, rmemcached_server: Callable[..., Server]) -> None:
    """1000 connections before their first byte, and 1000 idle connections, make the requests of others no dearer.

    Two daemons serve the same requests in turns. Only the second has these connections. The cost of a request depends
    on other work on the machine, which changes while the test runs.
    """
    # Without polling the CPU time is of the requests alone.
    alone, beset = (rmemcached_server("-t", "1", "-m", "64", "-c", "6000", "-o", "rdma_spin=0") for _ in range(2))
    source = random.Random(1)
    with Conversation(beset) as control, rdma_client(alone) as one, rdma_client(beset) as other:
        idle = [beset.connect() for _ in range(1000)]
        streams = [beset.connect() for _ in range(1000)]
        for sock in streams:
            sock.sendall(b"MPA ID Req Frame"[: source.randint(1, 16)])
        for client in (one, other):
            client.set("key", b"value")
        eventually(lambda: control.number("curr_connections") == 2002)
        ratios = sorted(work(beset, other) / work(alone, one) for _ in range(41))
        for sock in idle + streams:
            sock.close()
        assert ratios[20] < 1.5, ratios

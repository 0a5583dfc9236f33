"""-o idle_timeout: the daemon closes idle connections only, which neither send nor take anything.

The tests step the daemon's clock by debugtime. Every command on the control connection makes the only worker take a
turn and look at the clock.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon_tools import CREDIT, DATA, Conversation, Peer, eventually, over_libibverbs
from servers import Server

from rmemcached.verbs import Access

MB = 1 << 20
TIMEOUT = 10  # seconds of the daemon's clock
STEP = 8
SIZE = 24 * MB  # more than the kernel holds of a connection's output


class Clock:
    """The control connection, and the daemon's clock."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.control = Conversation(server)
        assert self.control.ask(b"debugtime p\r\n") == b"OK\r\n"

    def step(self, seconds: int = STEP) -> None:
        assert self.control.ask(b"debugtime %d\r\n" % seconds) == b"OK\r\n"
        assert self.control.ask(b"mn\r\n") == b"MN\r\n"

    def until(self, kicks: int, stalled: int) -> None:
        """Steps until the daemon has closed so many connections. Input on its way moves a connection's time on."""

        def closed() -> bool:
            self.step()
            return self.kicks() == (kicks, stalled)

        eventually(closed, what=f"{kicks} closed, {stalled} of them stalled")

    def kicks(self) -> tuple[int, int]:
        return self.control.number("idle_kicks"), self.control.number("idle_kicks_stalled")


@pytest.fixture
def clock(rmemcached_server: Callable[..., Server]) -> Iterator[Clock]:
    clock = Clock(
        rmemcached_server("-vv", "-t", "1", "-m", "128", "-I", "32m", "-o", f"idle_timeout={TIMEOUT},debug_commands")
    )
    with clock.control:
        yield clock


def store(clock: Clock, value: bytes) -> None:
    assert clock.control.ask(b"set key 7 0 %d\r\n%s\r\n" % (len(value), value)) == b"STORED\r\n"


def narrow(server: Server) -> Conversation:
    """A connection with a small receive buffer."""
    talk = Conversation.__new__(Conversation)
    talk.sock = socket.socket()
    talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    talk.sock.settimeout(10)
    talk.sock.connect((server.host, server.port))
    talk.file = talk.sock.makefile("rb")
    return talk


def test_a_slow_reader_gets_all(clock: Clock) -> None:
    """A slow reader gets 24 MB, in 24 parts with most of the idle time-out between them."""
    value = bytes(range(256)) * (SIZE // 256)
    store(clock, value)
    with narrow(clock.server) as slow:
        slow.send(b"get key\r\n")
        assert slow.line() == b"VALUE key 7 %d\r\n" % SIZE
        for at in range(0, SIZE, MB):
            clock.step()
            assert slow.read(MB) == value[at : at + MB]
        assert slow.line() + slow.line() == b"\r\nEND\r\n"
        assert slow.ask(b"mn\r\n") == b"MN\r\n"
    assert clock.kicks() == (0, 0)


def test_a_fast_reader_gets_all(rmemcached_server: Callable[..., Server]) -> None:
    """A reply of many turns of the worker is under way also while its peer has taken all sent bytes.

    In each turn the daemon sends a part of the reply, the clock steps, and other commands take time, so that the peer
    has taken this part before the daemon looks for idle connections.
    """
    others = b"debugtime %d\r\n" % STEP + b"mg none\r\n" * 4000
    clock = Clock(
        rmemcached_server(
            *("-t", "1", "-m", "128", "-I", "32m", "-R", "4001", "-o", f"idle_timeout={TIMEOUT},debug_commands")
        )
    )
    store(clock, bytes(SIZE))
    expected = b"VALUE key 7 %d\r\n%s\r\nEND\r\n" % (SIZE, bytes(SIZE))
    with clock.control, Conversation(clock.server) as fast, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(fast.read, len(expected))
        fast.send(b"get key\r\n")
        clock.control.send(others * 4 + b"mn\r\n")
        while clock.control.line() != b"MN\r\n":
            pass
        assert reply.result() == expected
        assert clock.kicks() == (0, 0)


def test_what_the_kernel_holds_is_under_way_too(clock: Clock) -> None:
    """A connection is not idle while its peer slowly reads a reply that lies in the daemon's socket as a whole.

    The daemon cannot know the content of the peer's own socket: the test reads the rest at once.
    """
    store(clock, bytes(MB))
    with narrow(clock.server) as slow:
        slow.send(b"get key\r\n")
        assert slow.line() == b"VALUE key 7 %d\r\n" % MB
        for _ in range(4):
            clock.step()
            assert slow.read(100_000) == bytes(100_000)
        assert slow.read(MB - 400_000) == bytes(MB - 400_000)
        assert slow.line() + slow.line() == b"\r\nEND\r\n"
        assert slow.ask(b"mn\r\n") == b"MN\r\n"
    assert clock.kicks() == (0, 0)


def test_a_reply_longer_than_the_rest_of_the_one_before(clock: Clock) -> None:
    """The daemon compares the untaken bytes of a reply with earlier looks at this reply only: a longer next reply does
    not count as a peer that takes nothing."""
    store(clock, bytes(MB))
    with narrow(clock.server) as slow:
        slow.send(b"get key\r\n")
        assert slow.line() == b"VALUE key 7 %d\r\n" % MB
        assert slow.read(MB - 300_000) == bytes(MB - 300_000)
        clock.step()
        clock.step()
        assert slow.read(300_000) == bytes(300_000)
        assert slow.line() + slow.line() == b"\r\nEND\r\n"
        slow.send(b"get key\r\n")
        assert slow.line() == b"VALUE key 7 %d\r\n" % MB
        for _ in range(4):
            clock.step()
            assert slow.read(100_000) == bytes(100_000)
    assert clock.kicks() == (0, 0)


def test_who_takes_nothing_is_closed(clock: Clock) -> None:
    store(clock, bytes(SIZE))
    with narrow(clock.server) as stalled, Conversation(clock.server) as watcher:
        assert watcher.ask(b"watch connevents\r\n") == b"OK\r\n"
        stalled.send(b"get key\r\n")
        assert stalled.line() == b"VALUE key 7 %d\r\n" % SIZE
        clock.until(1, 1)
        received = 0
        with pytest.raises(ConnectionResetError):
            while more := stalled.sock.recv(MB):
                received += len(more)
            raise ConnectionResetError
        assert received < SIZE
        assert b"type=conn_close " in (line := watcher.line()) and b" reason=idle_timeout " in line
        assert ": its peer takes nothing\n" in clock.server.stderr()


def test_quit_behind_a_reply_that_is_not_taken(clock: Clock) -> None:
    """A connection with an untaken reply before `quit` is closed, though no command is under way any more."""
    store(clock, bytes(SIZE))
    with narrow(clock.server) as stalled:
        stalled.send(b"get key\r\nquit\r\n")
        assert stalled.line() == b"VALUE key 7 %d\r\n" % SIZE
        clock.until(1, 1)


@pytest.mark.parametrize("size", [SIZE, 2 * SIZE], ids=["stored", "too large"])
def test_a_slow_sender_is_not_idle(clock: Clock, size: int) -> None:
    """A connection is not idle while it sends a value in parts, even if the daemon only swallows the value."""
    with Conversation(clock.server) as slow:
        slow.send(b"set key 0 0 %d\r\n" % size)
        for _ in range(0, size, 4 * MB):
            clock.step()
            before = clock.control.number("bytes_read")
            slow.send(bytes(4 * MB))
            eventually(lambda read=before + 4 * MB: clock.control.number("bytes_read") >= read)  # type: ignore[misc]
        slow.send(b"\r\n")
        assert slow.line() == (b"STORED\r\n" if size == SIZE else b"SERVER_ERROR object too large for cache\r\n")
    assert clock.kicks() == (0, 0)


def test_a_sender_that_stops_is_closed(clock: Clock) -> None:
    """The daemon frees the unfinished item, and the old value stays."""
    store(clock, b"old")
    with Conversation(clock.server) as stalled:
        stalled.send(b"set key 0 0 %d\r\n" % SIZE + bytes(MB))
        clock.until(1, 1)
        assert stalled.ended()
        assert ": its peer sends nothing of the value that it has begun\n" in clock.server.stderr()
        assert clock.control.ask(b"mg key v\r\n") == b"VA 3\r\n"


def test_who_is_silent_between_commands_is_closed(clock: Clock) -> None:
    with Conversation(clock.server) as silent, Conversation(clock.server) as half:
        assert silent.ask(b"mn\r\n") == half.ask(b"mn\r\n") == b"MN\r\n"
        half.send(b"get ke")
        clock.until(2, 0)
        assert silent.ended() and half.ended()


def test_watchers_stay(clock: Clock) -> None:
    with Conversation(clock.server) as watcher:
        assert watcher.ask(b"watch fetchers\r\n") == b"OK\r\n"
        for _ in range(4):
            clock.step()
        assert clock.control.ask(b"get nothing\r\n") == b"END\r\n"
        assert b"key=nothing" in watcher.line()


@pytest.mark.usefixtures("rdma_transport")
def test_a_lane_that_gives_credits_is_not_idle(clock: Clock) -> None:
    """A client that takes 200 replies some at a time, without another command, is not idle."""
    store(clock, bytes(4000))
    expected = 200 * len(b"VALUE key 7 4000\r\n%s\r\nEND\r\n" % bytes(4000))
    with Peer(clock.server) as peer:
        peer.send(DATA, b"get key\r\n" * 200)
        steps = 0
        while len(peer.inbox) < expected:
            clock.step()
            steps += 1
            some = len(peer.inbox)
            peer.wait(lambda have=some: len(peer.inbox) > have)  # type: ignore[misc]
            if peer.credits:
                peer.send(CREDIT)
        assert steps * STEP > 3 * TIMEOUT
        assert peer.ask(b"mn\r\n")
    assert clock.kicks() == (0, 0)


@pytest.mark.usefixtures("rdma_transport")
def test_a_lane_whose_read_is_not_answered_is_idle(clock: Clock) -> None:
    with Peer(clock.server) as peer:
        memory = bytearray(4 * MB)
        region = peer.region(memory, Access.REMOTE_READ)
        peer.send(DATA, f"ms key {len(memory)} @{region.addr:x}:{region.rkey:x}\r\n".encode())
        # Only a software device needs its program to answer READs.
        clock.until(1, 0 if over_libibverbs() else 1)
        eventually(lambda: clock.control.number("rdma_queue_pairs", "rdma") == 0)


@pytest.mark.usefixtures("rdma_transport")
@pytest.mark.parametrize("command", [b"ms key %d @%x:%x", b"mg key v @%x:%x:%x"], ids=["READ", "WRITE"])
def test_what_is_not_answered_ends_a_queue_pair_that_is_not_idle(clock: Clock, command: bytes) -> None:
    """A client that still asks on another lane loses its queue pair, and the items of its READs and WRITEs, like other
    clients."""
    if over_libibverbs():
        pytest.skip("a device of the system answers without its program")
    size = 8 * MB
    store(clock, bytes(size))
    with Peer(clock.server, lanes=(0, 1), receive_buffer=65536) as peer:
        memory = bytearray(size)
        region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE)
        numbers = (region.addr, region.rkey)
        line = command % ((size, *numbers) if command.startswith(b"ms") else (*numbers, size))
        peer.send(DATA, line + b"\r\n")
        for _ in range(10):
            clock.step()
            if clock.kicks() != (0, 0):
                break
            peer.send(DATA, b"mn\r\n", 1)
        assert clock.kicks() == (1, 1)
        eventually(lambda: clock.control.number("rdma_queue_pairs", "rdma") == 0)

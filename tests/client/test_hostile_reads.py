"""RDMA READs of a client (docs/direct-reads.md, sections 8 and 9) without a proper answer of the server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from server_by_hand import CREDIT, DATA, TIMEOUT, ServerByHand
from servers import Server
from suspended import suspended
from transport import PACE

from rmemcached import verbs
from rmemcached.client import Client, MemcacheError, MemcacheUnexpectedCloseError
from rmemcached.store._testing import Store
from rmemcached.store._testing_direct import DirectReader
from rmemcached.verbs import Access, State

LIMIT = 0.4 * PACE
"""The clients' time limit."""
SLACK = 1.0 * PACE
"""The seconds by which a call may be late on a busy machine."""
MB = 1 << 20
ENDED = "the server has ended the connection"
READ_REQUEST, READ_RESPONSE, TERMINATE = 1, 2, 7


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", "soft_iw")


class ReadServer(ServerByHand):
    """Lets its client READ a store with a single key."""

    def __init__(self, depth: int = 16, **tokens: object) -> None:
        super().__init__("soft_iw", direct=1, **tokens)
        self.depth = depth
        self.store = Store(2 * MB, direct_remote=True)
        self.store.set(b"key", b"value")
        self.items = memoryview(DirectReader(self.store.direct_fds()))
        length = len(self.items)
        self.readable = verbs.MR(self.pd, self.items, Access.REMOTE_READ)
        self.direct = b"DIRECT %x 0 %x %x\r\n" % (self.readable.addr, length, self.readable.rkey)
        self.asked_for: list[bytes] = []

    def take_stream(self) -> None:
        stream, _ = self.listener.accept()
        self.stream = stream.dup()
        self.stream.settimeout(TIMEOUT)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(TIMEOUT)
        while verbs.parse_request(self.frame) is None:
            self.frame += stream.recv(4096)
        stream.setblocking(False)
        self.qp.accept(stream, self.frame, ird=self.depth)
        self.qp.modify(State.RTS, qp_access_flags=Access.REMOTE_READ)

    def answer(self) -> None:
        """Answers the received commands."""
        while b"\r\n" in self.inbox:
            line, _, self.inbox = self.inbox.partition(b"\r\n")
            self.asked_for.append(line)
            if line.startswith(b"rdma_direct"):
                self.send(DATA, self.direct, credits=1)
            elif line.startswith(b"mg "):
                self.send(DATA, b"VA 5 f0\r\nasked\r\n", credits=1)

    def give_memory(self) -> None:
        """Tells the client where to READ. Nobody serves the client's READs from then on."""
        self.accept()
        self.wait(lambda: b"rdma_direct 0\r\n" in self.inbox)
        self.answer()

    def serve(self, call: Future[Any]) -> None:
        """Acts as a proper server until the call is over."""
        deadline = time.monotonic() + TIMEOUT
        while not call.done():
            assert time.monotonic() < deadline
            for wc in self.cq.poll(16):
                if wc.status == verbs.Status.SUCCESS and wc.opcode == verbs.WCOpcode.RECV:
                    self.take(wc.wr_id, wc.byte_len)
            self.answer()
            wait([call], timeout=0.001)

    def take_request(self) -> tuple[int, int, int]:
        """Takes the next READ before the device sees the request: tag, address and length of the target memory."""
        came = self.stream.makefile("rb", 0)
        while True:
            (length,) = struct.unpack(">H", came.read(2))
            rest = b""
            while len(rest) < (length + 2 + 3 & ~3) - 2 + 4:
                rest += came.read((length + 2 + 3 & ~3) - 2 + 4 - len(rest))
            if rest[1] & 15 == READ_REQUEST:
                return struct.unpack_from(">IQI", rest, 18)

    def put(self, segment: bytes) -> None:
        """Sends a segment of DDP, without CRC."""
        frame = struct.pack(">H", len(segment)) + segment
        self.stream.sendall(frame + bytes(-len(frame) % 4) + bytes(4))

    def put_response(self, tag: int, address: int, data: bytes, last: bool = True) -> None:
        """Sends a segment of a READ response. last: of the response."""
        head = struct.pack(">BBIQ", 0xC1 if last else 0x81, 0x40 | READ_RESPONSE, tag, address)
        self.put(head + data)

    def close(self) -> None:
        super().close()
        self.items.release()
        if hasattr(self, "stream"):
            self.stream.close()
        # The thread that made the store closes it: the store holds a mutex locked for its clients, and only the thread
        # that locked the mutex can unlock it.
        self.store.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def server() -> Iterator[ReadServer]:
    with ReadServer() as made:
        yield made


@contextlib.contextmanager
def client_of(server: ServerByHand, timeout: float = LIMIT) -> Iterator[Client]:
    with Client(server.address, transport="soft_iw", timeout=timeout, connect_timeout=TIMEOUT) as client:
        yield client


@contextlib.contextmanager
def reading(server: ReadServer, threads: ThreadPoolExecutor, timeout: float = LIMIT) -> Iterator[Future[bytes]]:
    """A get of a client that knows where to READ."""
    with client_of(server, timeout) as client:
        call = threads.submit(client.get, b"key")
        server.give_memory()
        yield call


def check_failure(call: Future[Any], server: ServerByHand, began: float, *causes: str) -> None:
    """The failure comes in time, in a class of the client's errors, as a line with server, command and cause."""
    with pytest.raises((MemcacheUnexpectedCloseError, TimeoutError)) as raised:
        call.result(TIMEOUT)
    taken = time.monotonic() - began
    host, port = server.address
    text = str(raised.value)
    assert re.fullmatch(f"{re.escape(f'{host}:{port}: get: ')}({'|'.join(causes)})", text), text
    assert taken < LIMIT + SLACK


# --- a client's first READ, of the memory's header ---


def test_a_server_that_answers(server: ReadServer, threads: ThreadPoolExecutor) -> None:
    """A server that answers READs late is a proper server: the tests below differ only in their fault."""
    with reading(server, threads, TIMEOUT) as call:
        with pytest.raises(TimeoutError):
            call.result(0.3)
        server.serve(call)
        assert call.result() == b"value"
        assert server.asked_for == [b"rdma_direct 0"]


def test_a_server_that_is_silent(server: ReadServer, threads: ThreadPoolExecutor) -> None:
    with reading(server, threads) as call:
        check_failure(call, server, time.monotonic(), f"timed out: nothing has come for {LIMIT:g} s")
        # The late answer reaches nobody.
        for _ in range(3):
            server.cq.poll(16)


def test_a_server_that_says_something_else(server: ReadServer, threads: ThreadPoolExecutor) -> None:
    """Messages besides the answer do not prolong the wait."""
    with reading(server, threads) as call:
        server.take_request()
        began = time.monotonic()
        for _ in range(12):
            if not call.done():
                server.send(CREDIT)
                wait([call], timeout=LIMIT / 4)
        check_failure(call, server, began, f"timed out: nothing has come for {LIMIT:g} s")


def test_others_that_share_the_queue_pair(threads: ThreadPoolExecutor) -> None:
    """A READ without an answer ends the queue pair. The other clients learn the reason before their own time is
    over."""
    with ReadServer() as server, client_of(server) as reader, client_of(server, TIMEOUT) as other:
        # Connections that one thread makes share a queue pair.
        for lane, client in enumerate((reader, other)):
            version = threads.submit(client.version)
            if lane == 0:
                server.accept()
            server.wait(lambda: server.inbox == b"version\r\n")
            server.inbox = b""
            server.send(DATA, b"VERSION 1\r\n", lane=lane)
            assert version.result() == b"1"
        call = threads.submit(reader.get, b"key")
        server.wait(lambda: server.inbox == b"rdma_direct 0\r\n")
        server.answer()
        server.take_request()
        began = time.monotonic()
        with pytest.raises(
            MemcacheUnexpectedCloseError, match="the server did not give back the memory of another req"
        ):
            other.version()
        check_failure(call, server, began, f"timed out: nothing has come for {LIMIT:g} s")


@pytest.mark.parametrize("change", [lambda key: 0, lambda key: key ^ 0x100], ids=["0", "of another region"])
def test_a_key_that_is_none(server: ReadServer, threads: ThreadPoolExecutor, change: Callable[[int], int]) -> None:
    """A READ with a false key is answered by an error."""
    with client_of(server) as client:
        numbers = server.readable.addr, server.readable.length, change(server.readable.rkey)
        server.direct = b"DIRECT %x 0 %x %x\r\n" % numbers
        call = threads.submit(client.get, b"key")
        server.give_memory()
        began = time.monotonic()
        server.serve(call)
        check_failure(call, server, began, "the queue pair failed: remote access error")


def test_more_memory_than_there_is(server: ReadServer, threads: ThreadPoolExecutor) -> None:
    """A READ of a header beyond the memory is answered by an error."""
    server.direct = b"DIRECT %x 0 ffffffff %x\r\n" % (
        server.readable.addr + server.readable.length,
        server.readable.rkey,
    )
    with reading(server, threads) as call:
        began = time.monotonic()
        server.serve(call)
        check_failure(call, server, began, "the queue pair failed: remote access error")


FAULTS: dict[str, Callable[[ReadServer, int, int, int], None]] = {
    "too short": lambda server, tag, address, length: server.put_response(tag, address, bytes(length - 8)),
    "empty": lambda server, tag, address, length: server.put_response(tag, address, b""),
    "too long": lambda server, tag, address, length: server.put_response(tag, address, bytes(length + 8)),
    "without an end": lambda server, tag, address, length: server.put_response(tag, address, bytes(length), False),
    "before the memory": lambda server, tag, address, length: server.put_response(tag, address - 64, bytes(length)),
    "behind the memory": lambda server, tag, address, length: server.put_response(tag, address + length, bytes(64)),
    "of another tag": lambda server, tag, address, length: server.put_response(tag ^ 0x100, address, bytes(length)),
    "terminate": lambda server, tag, address, length: server.put(
        struct.pack(">BBIIIIHH", 0x41, 0x40 | TERMINATE, 0, 2, 1, 0, 0x0100, 0)
    ),
    "no iWARP": lambda server, tag, address, length: server.stream.sendall(bytes(range(200))),
    "the end of the stream": lambda server, tag, address, length: server.stream.shutdown(socket.SHUT_RDWR),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_is_none(server: ReadServer, threads: ThreadPoolExecutor, fault: str) -> None:
    """A false answer to a READ ends the call, while the lifeline stays open and silent."""
    with reading(server, threads) as call:
        request = server.take_request()
        began = time.monotonic()
        FAULTS[fault](server, *request)
        broken = "the stream to the server broke: a frame came that no correct peer sends"
        others = {"terminate": "the queue pair failed: remote access error", "the end of the stream": ENDED}
        check_failure(call, server, began, others.get(fault, broken))


@pytest.mark.parametrize("part", [0, 1, 10, 16, 800])
def test_an_answer_that_ends_in_the_middle(server: ReadServer, threads: ThreadPoolExecutor, part: int) -> None:
    with reading(server, threads) as call:
        tag, address, length = server.take_request()
        began = time.monotonic()
        # The answer ends within its second segment.
        server.put_response(tag, address, bytes(64), last=False)
        rest = struct.pack(">HBBIQ", length - 64 + 14, 0xC1, 0x40 | READ_RESPONSE, tag, address + 64) + bytes(length)
        server.stream.sendall(rest[:part])
        check_failure(call, server, began, f"timed out: nothing has come for {LIMIT:g} s")


def test_the_end_of_the_lifeline(server: ReadServer, threads: ThreadPoolExecutor) -> None:
    """The words of a hostile server on the lifeline appear as a line of bounded length."""
    with reading(server, threads) as call:
        server.take_request()
        began = time.monotonic()
        with contextlib.suppress(OSError):
            server.lifeline.sendall(b"SERVER_ERROR one\r\nline\x1b[2J\x00" + b"x" * 1_000_000)
        server.lifeline.close()
        check_failure(call, server, began, r"SERVER_ERROR one\\r\\nline\\x1b\[2J\\x00x{,4000}")


# --- false answers to rdma_direct ---


@pytest.mark.parametrize(
    "line",
    [
        b"DIRECT",
        b"DIRECT ",
        b"DIRECT %(base)x 0 %(length)x",
        b"DIRECT %(base)x 0 %(length)x %(key)x 0",
        b"DIRECT %(base)x 0 0 %(key)x",
        b"DIRECT %(base)x 1 %(length)x %(key)x",
        b"DIRECT %(base)x fffffffffffffff8 %(length)x %(key)x",
        b"DIRECT %(base)x -8 %(length)x %(key)x",
        b"DIRECT -%(base)x 0 %(length)x %(key)x",
        b"DIRECT %(base)x 0 1%(base)016x %(key)x",
        b"DIRECT 1%(base)016x 0 %(length)x %(key)x",
        b"DIRECT %(base)x 0 -1 %(key)x",
        b"DIRECT %(base)x 0 %(length)x 1%(key)08x",
        b"DIRECT %(base)x 0 %(length)x x",
        b"DIRECT %(base)x 0 1000000000000000000000000000000000000000000 %(key)x",
        # Memory of these lengths has no room for the header.
        b"DIRECT %(base)x 0 3ff %(key)x",
        b"DIRECT %(base)x 0 8 %(key)x",
        b"DIRECT %(other)x 0 %(length)x %(key)x",
        b"EN",
        b"VA 5 f0",
        b"NOT_FOUND",
        b"SERVER_ERROR no",
    ],
    ids=repr,
)
def test_answers_that_lie(server: ReadServer, threads: ThreadPoolExecutor, line: bytes) -> None:
    """After a false answer the client sends its gets to the server, and asks no more for memory."""
    numbers = {
        b"base": server.readable.addr,
        b"length": server.readable.length - 4096,
        b"key": server.readable.rkey,
        b"other": server.readable.addr + 4096,
    }
    server.direct = line % numbers + (b"\r\n" if line[:2] != b"VA" else b"\r\nvalue\r\n")
    with client_of(server, TIMEOUT) as client:
        call = threads.submit(client.get, b"key")
        server.give_memory()
        server.serve(call)
        if line[:2] == b"VA":
            with pytest.raises(MemcacheError):
                call.result()
            return
        assert call.result() == b"asked"
        for _ in range(2):
            call = threads.submit(client.get, b"key")
            server.serve(call)
            assert call.result() == b"asked"
        assert server.asked_for.count(b"rdma_direct 0") == 1


# --- how many READs a server answers at a time ---


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_fewer_reads_than_the_client_would_have(threads: ThreadPoolExecutor, depth: int) -> None:
    with ReadServer(depth, ird=depth) as server, client_of(server, TIMEOUT) as client:
        names = [f"key-{number}" for number in range(100)]
        for name in names:
            server.store.set(name.encode(), name.encode() * 20)
        for _ in range(2):
            call = threads.submit(client.get_many, names)
            if not server.frame:
                server.give_memory()
            server.serve(call)
            assert call.result() == {name: name.encode() * 20 for name in names}
        assert int.from_bytes(server.frame[22:24], "big") & 0x3FFF == depth
        assert [line for line in server.asked_for if not line.startswith(b"rdma_hits ")] == [b"rdma_direct 0"]


@pytest.mark.parametrize("tokens", [{"ird": 0}, {"direct": 0}, {"direct": 2}], ids=str)
def test_a_server_that_answers_no_reads(threads: ThreadPoolExecutor, tokens: dict[str, int]) -> None:
    with ServerByHand("soft_iw", **{"direct": 1, **tokens}) as server, client_of(server, TIMEOUT) as client:
        call = threads.submit(client.get, b"key")
        server.accept()
        server.wait(lambda: server.inbox.endswith(b"\r\n"))
        assert server.inbox.startswith(b"mg key v ")
        server.send(DATA, b"EN\r\n")
        assert call.result() is None


# --- time limits, and daemons that stand still ---


@contextlib.contextmanager
def alarms(seconds: float) -> Iterator[list[int]]:
    """SIGALRM comes again and again, and its handler returns. After TIMEOUT the handler raises."""
    seen: list[int] = []
    end = time.monotonic() + TIMEOUT

    def handler(number: int, frame: object) -> None:
        seen.append(number)
        if time.monotonic() > end:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise AssertionError("the call has no end")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def daemon(module_server: Callable[..., Server]) -> Server:
    return module_server("-m", "64", "-t", "1", "-o", "rdma_direct_remote")


def client_for(daemon: Server, transport: str, timeout: float = LIMIT, **options: Any) -> Client:
    return Client(
        daemon.address,
        transport=transport,
        timeout=timeout,
        connect_timeout=TIMEOUT,
        default_noreply=False,
        **options,
    )


def warm(client: Client, key: str, value: bytes) -> None:
    """Returns when gets of the key need READs only. A daemon that goes on after a stop may need a moment."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            client.set(key, value)
            for _ in range(3):
                assert client.get(key) == value
            return
        except TimeoutError:
            assert time.monotonic() < end


@pytest.mark.parametrize("spin", [None, 0])
def test_signals_do_not_prolong_a_read(daemon: Server, key: str, spin: float | None) -> None:
    """Each signal interrupts the wait, which goes on for the rest of its time."""
    with client_for(daemon, "soft_iw", spin=spin) as client:
        warm(client, key, b"value")
        with suspended(daemon.pid), alarms(0.001) as seen:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=f"get: timed out: nothing has come for {LIMIT:g} s$"):
                client.get(key)
            assert LIMIT * 0.9 < time.monotonic() - began < LIMIT + SLACK
        assert len(seen) > 10
        warm(client, key, b"value")


@pytest.mark.parametrize("transport", ["tcp", "soft_iw", "soft_shm"])
def test_signals_do_not_prolong_a_request(daemon: Server, key: str, transport: str) -> None:
    """Signals prolong neither the wait for the answer nor the wait for room to send."""
    with client_for(daemon, transport) as client:
        for call in (client.version, lambda: client.set(key, bytes(MB - 100)), lambda: client.set(key, bytes(50_000))):
            warm(client, key, b"value")
            with suspended(daemon.pid), alarms(0.001) as seen:
                began = time.monotonic()
                with pytest.raises(TimeoutError, match=f"timed out: nothing has come for {LIMIT:g} s$"):
                    call()
                # The time limit begins with the last progress, a little after the call's begin: first the client sends
                # as much as fits into the socket.
                assert LIMIT * 0.9 < time.monotonic() - began < LIMIT + SLACK
            assert len(seen) > 10


def test_a_call_that_goes_on_has_its_time(daemon: Server, key: str) -> None:
    """Signals take no time from a call: behind each answer the wait begins anew."""
    with client_for(daemon, "tcp", 2 * LIMIT) as client, alarms(0.001):
        began = time.monotonic()
        while time.monotonic() - began < 4 * LIMIT:
            client.set(key, b"value" * 10_000)
            assert client.gat(key) == b"value" * 10_000


def test_a_daemon_that_stops_in_the_middle_of_a_read(daemon: Server, key: str) -> None:
    """Whenever the daemon stops in a READ, the call returns the value or ends in time."""
    value = os.urandom(60_000)
    with client_for(daemon, "soft_iw") as client, ThreadPoolExecutor(1) as threads:
        for _ in range(5):
            warm(client, key, value)

            def read() -> float:
                while True:
                    began = time.monotonic()
                    try:
                        assert client.get(key) == value
                    except TimeoutError:
                        return time.monotonic() - began

            call = threads.submit(read)
            with pytest.raises(TimeoutError):
                call.result(0.01)
            with suspended(daemon.pid):
                assert LIMIT * 0.9 < call.result(TIMEOUT) < LIMIT + SLACK

"""A call that timed out has named memory of the caller's: it returns when the server has closed the lane, or cannot
reach the memory any more."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection

import pytest
from server_by_hand import CLOSE, CREDIT, DATA, TIMEOUT, ServerByHand
from suspended import suspended
from transport import PACE, rdma

from rmemcached.client import Client, MemcacheUnexpectedCloseError

each_transport = pytest.mark.usefixtures("rdma_transport")

SIZE = 100_000
HASTE = 0.1 * PACE
SILENT = 1.0  # seconds that the server may say nothing,
MOST = 5.0  # ... and that it gets in all (CLOSE_WAIT, CLOSE_WAIT_MOST)
VERSION = b"VERSION 1\r\n"


def call(server: ServerByHand, client: Client, lane: int, threads: ThreadPoolExecutor) -> bytes:
    """What a call of the client returns, for which the server answers."""
    server.inbox = b""
    version: Future[bytes] = threads.submit(client.version)
    server.wait(lambda: server.inbox.endswith(b"version\r\n"))
    server.send(DATA, VERSION, lane=lane)
    return version.result()


def make(address: tuple[str, int], transport: str, timeout: float) -> Client:
    return Client(address, transport=transport, timeout=timeout, connect_timeout=TIMEOUT, default_noreply=False, spin=0)


def set_in_vain(client: Client) -> None:
    """Of a buffer of its own."""
    with memoryview(client.buffer(SIZE)) as view:
        client.set("key", view)


class Scene:
    """Two clients on one queue pair. The second's set gets no answer."""

    def __init__(self, server: ServerByHand, threads: ThreadPoolExecutor) -> None:
        self.patient = make(server.address, server.transport, TIMEOUT)
        self.hasty = make(server.address, server.transport, HASTE)
        # They connect in the same thread: each thread has a queue pair of its own.
        version = threads.submit(self.patient.version)
        server.accept()
        server.wait(lambda: server.inbox == b"version\r\n")
        server.send(DATA, VERSION)
        assert version.result() == b"1"
        self.set = threads.submit(set_in_vain, self.hasty)
        server.wait(lambda: (CLOSE, 1) in server.taken)

    def is_waiting(self, seconds: float) -> bool:
        """Whether the call is still under way then."""
        return not wait([self.set], timeout=seconds).done

    def close(self) -> None:
        self.patient.close()
        self.hasty.close()


@each_transport
def test_a_server_that_takes_its_time() -> None:
    """It answers others: they and it go on."""
    with ServerByHand(rdma(), 2) as server, ThreadPoolExecutor(1) as threads:
        scene = Scene(server, threads)
        for _ in range(4):
            server.send(CREDIT)
            assert scene.is_waiting(0.5 * SILENT)
        server.send(CLOSE, lane=1)
        with pytest.raises(TimeoutError):
            scene.set.result()
        assert call(server, scene.patient, 0, threads) == b"1"
        scene.close()


@each_transport
@pytest.mark.parametrize("talks", [False, True], ids=["silent", "talks"])
def test_a_server_that_never_closes(talks: bool) -> None:
    """The memory is taken away from it. Others on the queue pair are told so."""
    with ServerByHand(rdma(), 2) as server, ThreadPoolExecutor(1) as threads:
        scene = Scene(server, threads)
        begun = time.monotonic()
        while scene.is_waiting(0.5 * SILENT):
            assert time.monotonic() - begun < TIMEOUT
            if talks:
                server.send(CREDIT)
        assert time.monotonic() - begun > (MOST - SILENT if talks else 0.5 * SILENT)
        with pytest.raises(TimeoutError):
            scene.set.result()
        with pytest.raises(MemcacheUnexpectedCloseError, match="the client has ended the connection"):
            scene.patient.version()
        scene.close()


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@each_transport
@pytest.mark.usefixtures("alarm")
def test_what_has_come_for_the_lane() -> None:
    """Another thread has taken it. The server is silent: the call of a handler that raises ends all the same."""
    with ServerByHand(rdma(), 2) as server, ThreadPoolExecutor(1) as threads:
        patient, hasty = (make(server.address, server.transport, TIMEOUT) for _ in range(2))
        # They connect in the same thread: each thread has a queue pair of its own.
        first = threads.submit(patient.version)
        server.accept()
        server.wait(lambda: server.inbox == b"version\r\n")
        server.send(DATA, VERSION)
        first.result()
        assert call(server, hasty, 1, threads) == b"1"
        second = threads.submit(patient.version)
        server.wait(lambda: server.inbox.endswith(b"version\r\n"))

        def interrupt(*_: object) -> None:
            server.wait(lambda: b"key" in server.inbox)
            server.send(DATA, b"HD", lane=1)
            server.send(DATA, VERSION)
            second.result()
            raise Interrupted

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, HASTE)
        with pytest.raises(Interrupted):
            set_in_vain(hasty)
        patient.close()
        hasty.close()


def stand_still(address: tuple[str, int], transport: str, said: Connection) -> None:
    """In a process of its own: a thread that sleeps for the queue pair, and one that waits for its lane's end."""
    answers = []
    with make(address, transport, TIMEOUT) as patient, make(address, transport, HASTE) as hasty:
        patient.version()
        waiting = threading.Thread(target=lambda: answers.append(patient.version()))
        waiting.start()
        with pytest.raises(TimeoutError):
            set_in_vain(hasty)
        waiting.join()
    said.send(answers)


@each_transport
def test_a_process_that_stands_still() -> None:
    """It does not take the time for the server's."""
    with ServerByHand(rdma(), 2) as server:
        heard, said = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=stand_still, args=(server.address, server.transport, said)
        )
        process.start()
        said.close()
        assert process.pid is not None
        server.accept()
        server.wait(lambda: server.inbox == b"version\r\n")
        server.send(DATA, VERSION)
        server.wait(lambda: (CLOSE, 1) in server.taken)
        with suspended(process.pid):
            server.send(CLOSE, lane=1)
            time.sleep(1.5 * SILENT)  # what it waits for is over by then
        server.send(DATA, VERSION)
        assert heard.recv() == [b"1"]
        process.join()

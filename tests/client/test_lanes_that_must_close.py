"""A broken-off call has named memory of the caller's: the call returns once the server has closed the lane, or has
lost access to the memory."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
from server_by_hand import CLOSE, CREDIT, DATA, TIMEOUT, ServerByHand
from suspended import suspended
from transport import PACE, rdma

from rmemcached.client import Client, MemcacheUnexpectedCloseError

each_transport = pytest.mark.usefixtures("rdma_transport")

SIZE = 100_000
HASTE = 0.1 * PACE
SILENT = 1.0  # seconds without a message after which the client waits no more for CLOSE (CLOSE_WAIT)
MOST = 5.0  # seconds after which the client waits no more in any case (CLOSE_WAIT_MOST)
VERSION = b"VERSION 1\r\n"


def call(server: ServerByHand, client: Client, lane: int, threads: ThreadPoolExecutor) -> bytes:
    """The result of a client's call, answered by the server."""
    server.inbox = b""
    version: Future[bytes] = threads.submit(client.version)
    server.wait(lambda: server.inbox.endswith(b"version\r\n"))
    server.send(DATA, VERSION, lane=lane)
    return version.result()


def make(address: tuple[str, int], transport: str, timeout: float) -> Client:
    return Client(address, transport=transport, timeout=timeout, connect_timeout=TIMEOUT, default_noreply=False, spin=0)


def set_in_vain(client: Client) -> None:
    """Sets a value out of a buffer, and the server does not answer."""
    with memoryview(client.buffer(SIZE)) as view:
        client.set("key", view)


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt(*_: object) -> None:
    raise Interrupted


def interrupted_set(client: Client) -> None:
    """A set interrupted by a signal."""
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, HASTE)
    with pytest.raises(Interrupted):
        set_in_vain(client)


def share(server: ServerByHand, threads: ThreadPoolExecutor, timeout: float) -> tuple[Client, Client]:
    """Two clients on one queue pair. The second client has this time-out."""
    patient, other = (make(server.address, server.transport, seconds) for seconds in (TIMEOUT, timeout))
    # Both clients connect in the same thread: each thread has a queue pair of its own.
    version = threads.submit(patient.version)
    server.accept()
    server.wait(lambda: server.inbox == b"version\r\n")
    server.send(DATA, VERSION)
    assert version.result() == b"1"
    assert call(server, other, 1, threads) == b"1"
    return patient, other


def ask(server: ServerByHand, client: Client, threads: ThreadPoolExecutor) -> Future[bytes]:
    """Starts a call, and waits until the server has the request."""
    server.inbox = b""
    version = threads.submit(client.version)
    server.wait(lambda: server.inbox.endswith(b"version\r\n"))
    return version


@each_transport
@pytest.mark.usefixtures("alarm")
def test_a_server_that_takes_its_time() -> None:
    """While the server answers others, a call waits for the late close of its lane, and both clients go on."""
    with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads:
        patient, other = share(server, threads, TIMEOUT)

        def close_late() -> None:
            server.wait(lambda: (CLOSE, 1) in server.taken)
            for _ in range(4):
                server.send(CREDIT)
                time.sleep(0.5 * SILENT)
            server.send(CLOSE, lane=1)

        closing = threads.submit(close_late)
        begun = time.monotonic()
        interrupted_set(other)
        assert time.monotonic() - begun > 1.5 * SILENT
        closing.result()
        assert call(server, patient, 0, threads) == b"1"
        patient.close()
        other.close()


@pytest.mark.device("the revocation of memory")
@each_transport
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("talks", [False, True], ids=["silent", "talks"])
def test_a_server_that_never_closes(talks: bool) -> None:
    """A server that never closes the lane loses access to the memory, and the others on the queue pair learn of it."""
    with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(1) as talker:
        patient, other = share(server, threads, TIMEOUT)
        version = ask(server, patient, threads)
        done = threading.Event()

        def talk() -> None:
            while talks and not done.wait(0.5 * SILENT):
                server.send(CREDIT)

        talking = talker.submit(talk)
        begun = time.monotonic()
        interrupted_set(other)
        assert time.monotonic() - begun > (MOST - SILENT if talks else 0.5 * SILENT)
        done.set()
        talking.result()
        with pytest.raises(MemcacheUnexpectedCloseError, match="the client has ended the connection"):
            version.result()
        patient.close()
        other.close()


@pytest.mark.device("the revocation of memory")
@each_transport
def test_a_call_whose_time_is_over() -> None:
    """A call whose time is over waits for a quarter of a second, then takes the memory away from the server."""
    with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads:
        patient, hasty = share(server, threads, HASTE)
        version = ask(server, patient, threads)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            set_in_vain(hasty)
        assert time.monotonic() - begun < 0.5 * SILENT + HASTE
        with pytest.raises(MemcacheUnexpectedCloseError, match="the client has ended the connection"):
            version.result()
        patient.close()
        hasty.close()


@each_transport
@pytest.mark.usefixtures("alarm")
def test_what_has_come_for_the_lane() -> None:
    """A set whose signal handler raises comes to its end, though another thread has received the lane's answer before,
    and the server is silent from then on."""
    with ServerByHand(rdma()) as server, ThreadPoolExecutor(1) as threads:
        patient, hasty = (make(server.address, server.transport, TIMEOUT) for _ in range(2))
        # Both clients connect in the same thread: each thread has a queue pair of its own.
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
    """Runs in a process of its own: a thread sleeps for the queue pair, and another thread waits for the end of
    its own client's lane."""
    answers = []
    with make(address, transport, TIMEOUT) as patient, make(address, transport, TIMEOUT) as other:
        patient.version()
        waiting = threading.Thread(target=lambda: answers.append(patient.version()))
        waiting.start()
        interrupted_set(other)
        waiting.join()
    said.send(answers)


@each_transport
def test_a_process_that_stands_still() -> None:
    """The client does not mistake its own pause for the server's."""
    with ServerByHand(rdma()) as server:
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
            time.sleep(1.5 * SILENT)  # the waiting thread's limit is over by then
        server.send(DATA, VERSION)
        assert heard.recv() == [b"1"]
        process.join()

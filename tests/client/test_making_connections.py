"""Threads that connect at the same time share the queue pair made by the first; otherwise no thread waits."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from polling import eventually
from scripted import serving
from servers import Server
from transport import PACE, RDMA_TRANSPORTS, rounds

from rmemcached.client import Client
from rmemcached.client.transport import exchange

TIMEOUT = 20.0 * PACE


def answer(connection: socket.socket, before: Callable[[bytes], object] = lambda line: None) -> None:
    """Answers `version`, and gives an error for all the rest."""
    with connection.makefile("rb") as lines:
        for line in lines:
            before(line)
            connection.sendall(b"VERSION 1\r\n" if line == b"version\r\n" else b"ERROR\r\n")


def test_nobody_waits_where_there_is_no_queue_pair() -> None:
    """After a server has refused RDMA to a thread, the others ask at the same time, and no thread waits for another."""
    everybody = threading.Barrier(5)
    known = threading.Event()

    def before(line: bytes) -> None:
        if known.is_set() and line.startswith(b"rdma ") and b"soft_shm" in line:
            everybody.wait(TIMEOUT)

    with serving(lambda connection: answer(connection, before)) as address, ExitStack() as stack:

        def connect() -> Client:
            client = stack.enter_context(Client(address, transport="auto", timeout=TIMEOUT))
            assert client.version() == b"1"
            return client

        connect()
        known.set()
        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        everybody.wait(TIMEOUT)
        for thread in threads:
            thread.join()


def test_threads_fall_back_when_rdma_cm_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waits for another thread's attempt over rdma_cm, and each comes through by TCP."""
    port = 9
    everybody = threading.Barrier(4)
    resolve = socket.getaddrinfo

    def resolve_together(host: str, wanted: int, *arguments: int, **options: int) -> object:
        if wanted == port:
            everybody.wait(TIMEOUT)
        return resolve(host, wanted, *arguments, **options)

    with serving(answer) as address, ExitStack() as stack:

        def connect() -> str | None:
            client = stack.enter_context(
                Client(address, rdma_cm_port=port, timeout=TIMEOUT, connect_timeout=TIMEOUT / 20)
            )
            assert client.version() == b"1"
            return client.transport

        monkeypatch.setattr(socket, "getaddrinfo", resolve_together)
        with ThreadPoolExecutor(everybody.parties) as pool:
            connections = [pool.submit(connect) for _ in range(everybody.parties)]
        assert [one.result() for one in connections] == ["tcp"] * everybody.parties


def test_threads_share_also_while_rdma_cm_takes_long(
    rmemcached_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue pairs on their way through rdma_cm count: beyond 16 a thread joins an existing queue pair at once."""
    port = 9
    everybody = threading.Barrier(exchange.MOST_FOR_THREADS)
    resolve = socket.getaddrinfo

    def resolve_together(host: str, wanted: int, *arguments: int, **options: int) -> object:
        if wanted == port:
            everybody.wait(TIMEOUT)
        return resolve(host, wanted, *arguments, **options)

    server = rmemcached_server()
    with ExitStack() as stack, ThreadPoolExecutor(everybody.parties - 1) as pool:

        def connect() -> str | None:
            client = stack.enter_context(Client(server.address, rdma_cm_port=port, timeout=TIMEOUT))
            client.version()
            return client.transport

        assert connect() == "soft_shm"
        monkeypatch.setattr(socket, "getaddrinfo", resolve_together)
        connections = [pool.submit(connect) for _ in range(everybody.parties - 1)]
        eventually(lambda: everybody.n_waiting == everybody.parties - 1)
        with ThreadPoolExecutor(1) as another:
            assert another.submit(connect).result() == "soft_shm"
        assert everybody.n_waiting == everybody.parties - 1
        everybody.wait(TIMEOUT)
        assert [one.result() for one in connections] == ["soft_shm"] * len(connections)


def test_a_signal_handler_connects_while_its_thread_does() -> None:
    """The handler connects to the same server before the server has answered the thread's question."""
    asked = threading.Event()

    def serve(connection: socket.socket) -> None:
        if asked.is_set():
            answer(connection)
        else:
            connection.recv(1)
            asked.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    class Interrupted(Exception):
        pass

    answers: list[bytes] = []

    def interrupt(*_: object) -> None:
        with Client(address, transport="auto", timeout=TIMEOUT) as client:
            answers.append(client.version())
        raise Interrupted

    with serving(serve) as address:
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted), Client(address, transport="auto", timeout=TIMEOUT) as client:
                client.version()
        finally:
            signal.signal(signal.SIGALRM, previous)
    assert answers == [b"1"]


LOADED_LATER = """
import sys
from rmemcached.client import Client
from rmemcached.client.transport import exchange
before = set(sys.modules)
with Client((sys.argv[1], int(sys.argv[2])), transport=sys.argv[3], timeout=float(sys.argv[4])) as client:
    client.version()
print(*(set(sys.modules) - before))
"""


@pytest.mark.parametrize("transport", ["auto", "tcp", *RDMA_TRANSPORTS])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nothing_is_imported(rmemcached_server: Callable[..., Server], transport: str, host: str) -> None:
    """Connecting imports nothing: a module imported by a thread would stay locked in a child forked meanwhile."""
    server = rmemcached_server("-l", "127.0.0.1")
    command = [sys.executable, "-c", LOADED_LATER, host, str(server.port), transport, str(TIMEOUT)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout.split() == []


class Alarm(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises Alarm."""

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def connect_until(alarm: float, client: Client) -> None:
    with suppress(Alarm):
        try:
            signal.setitimer(signal.ITIMER_REAL, alarm)
            client.version()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    with suppress(Alarm):
        client.close()


@pytest.mark.parametrize("transport", ["auto", "tcp", *RDMA_TRANSPORTS])
@pytest.mark.usefixtures("alarm")
def test_a_handler_that_raises(rmemcached_server: Callable[..., Server], transport: str) -> None:
    """Wherever the handler raises, the caller gets the handler's exception only, and other threads can connect."""
    server = rmemcached_server()
    source = random.Random(3)
    done = threading.Event()
    failures: list[BaseException] = []

    def make() -> Client:
        return Client(server.address, transport=transport, timeout=TIMEOUT)

    def connect() -> None:
        try:
            while not done.is_set():
                with make() as client:
                    client.version()
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=connect) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        for _ in range(rounds(120)):
            connect_until(source.uniform(5e-5, 1.5e-3), make())
    finally:
        done.set()
        for thread in others:
            thread.join()
    assert failures == []

    def hold() -> None:
        with exchange.one_at_a_time(make(), transport):
            pass

    another = threading.Thread(target=hold, daemon=True)
    another.start()
    another.join(TIMEOUT)
    assert not another.is_alive()

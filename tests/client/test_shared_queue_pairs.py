"""Clients of a process share queue pairs: each is a connection of its own, never held up or ended by another."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from concurrency import in_child
from daemon_tools import eventually
from servers import Server
from suspended import suspended
from transport import PACE, RDMA_TRANSPORTS, rounds

from rmemcached.client import Client
from rmemcached.client.exceptions import MemcacheUnexpectedCloseError
from rmemcached.client.transport import exchange
from rmemcached.client.transport._queue_pair import QueuePair
from rmemcached.client.transport.transports import ROWS

TIMEOUT = 20.0 * PACE
SIZES = (10, 3000, 5000, 70_000, 900_000)

ServerFactory = Callable[..., Server]
Make = Callable[..., Client]


@pytest.fixture(params=RDMA_TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(rmemcached_server: ServerFactory) -> Server:
    return rmemcached_server("-t", "1", "-m", "256", "-I", "64m")


@pytest.fixture
def make(server: Server, transport: str) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(**arguments: Any) -> Client:
            settings: dict[str, Any] = {
                "transport": transport,
                "timeout": TIMEOUT,
                "default_noreply": False,
                **arguments,
            }
            return stack.enter_context(Client(server.address, **settings))

        yield make


def numbers(client: Client, *names: str) -> list[int]:
    found = {**client.stats(), **client.stats("rdma")}
    return [int(found[name.encode()]) for name in names]


def in_threads(count: int, body: Callable[[int], None]) -> list[BaseException]:
    """Runs body(0), body(1), ... at the same time. Returns their exceptions."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            body(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_queue_pairs_are_given_to_all_workers(rmemcached_server: ServerFactory, transport: str) -> None:
    """The workers get queue pairs in turn.

    The TCP connections of soft_iw's streams have no turn: otherwise one of two workers would get all queue pairs.
    """
    server = rmemcached_server("-t", "4")

    def next_worker() -> int:
        # The exchange gives the worker's number.
        with socket.create_connection((server.host, server.port), TIMEOUT) as plain:
            plain.sendall(QueuePair(ROWS[transport], server.address).exchange_line())
            line = plain.makefile("rb").readline()
        (number,) = re.findall(rb" worker=(\d+)", line)
        return int(number)

    first = next_worker()
    for number in range(1, 10):
        with Client(server.address, transport=transport, timeout=TIMEOUT) as client:
            client.set("key", "value", noreply=False)
            assert next_worker() == (first + 2 * number) % 4


@pytest.mark.device("queue pairs with many lanes")
def test_one_queue_pair_for_each_worker(rmemcached_server: ServerFactory, transport: str) -> None:
    """However many clients there are, each worker has one queue pair, and each client is a connection until its
    close."""
    server = rmemcached_server("-t", "3")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.address, transport=transport, timeout=TIMEOUT)) for _ in range(50)]
        for number, client in enumerate(clients):
            client.set(f"key{number}", f"value{number}", noreply=False)
        assert numbers(clients[7], "rdma_queue_pairs", "rdma_streams") == [3, 50]
        before, _ = numbers(clients[7], "curr_connections", "rdma_streams")
        for client in clients[10:]:
            client.close()
        for number, client in enumerate(clients[:10]):
            assert client.get(f"key{number + 20}") == f"value{number + 20}".encode()
        # A queue pair's CLOSE messages go out before its next request, so the server knows of nearly all closed lanes.
        assert numbers(clients[0], "curr_connections", "rdma_streams")[1] <= 12
        for _ in range(10):
            clients[0].version()
        assert numbers(clients[0], "rdma_queue_pairs", "rdma_streams") == [3, 10]
        assert numbers(clients[0], "curr_connections") == [before - 40]


def test_threads_have_their_own_while_there_are_few(make: Make) -> None:
    """Each thread that makes connections has a queue pair. More than 16 threads share queue pairs."""
    control = make()
    control.version()
    for threads, queue_pairs in ((4, 5), (20, 16)):
        everybody = threading.Barrier(threads)

        def work(_: int, everybody: threading.Barrier = everybody) -> None:
            clients = [make() for _ in range(3)]
            for client in clients:
                client.version()
            # All threads live until here: no thread may get the number of an ended thread.
            everybody.wait()

        assert in_threads(threads, work) == []
        assert numbers(control, "rdma_queue_pairs")[0] <= queue_pairs
    assert numbers(control, "rdma_queue_pairs", "rdma_streams") == [16, 1 + 3 * 24]


def test_the_last_takes_the_queue_pair_along(make: Make, server: Server) -> None:
    """The end of the last client is no error, in whatever order the server sees the ends of lane and lifeline."""
    with socket.create_connection((server.host, server.port)) as plain, plain.makefile("rb") as lines:

        def number(name: bytes) -> int:
            plain.sendall(b"stats rdma\r\n")
            found = dict(line.split()[1:3] for line in iter(lines.readline, b"END\r\n"))
            return int(found[name])

        def queue_pairs() -> int:
            return number(b"rdma_queue_pairs")

        clients = [make() for _ in range(5)]
        for client in clients:
            client.version()
        assert queue_pairs() == 1
        for client in clients:
            client.close()
        eventually(lambda: queue_pairs() == 0)
        assert number(b"rdma_qp_errors") == 0
        assert clients[3].set("key", "value")
        assert clients[4].get("key") == b"value"


@pytest.mark.device("its completion channel among threads")
@pytest.mark.parametrize("spin", [0, None, 100_000])
def test_threads_do_not_mix(make: Make, spin: float | None) -> None:
    """Threads on a queue pair keep values of all sizes apart, while some sleep and others poll."""
    clients = [make(spin=spin) for _ in range(12)]
    for client in clients:
        client.version()

    def work(number: int) -> None:
        client = clients[number]
        for turn in range(rounds(40)):
            size = SIZES[(number + turn) % len(SIZES)]
            value = (b"%d.%d." % (number, turn)).ljust(size, b"x")
            assert client.set(f"key{number}", value)
            assert client.get(f"key{number}") == value
            assert client.get_many([f"key{number}", "none"]) == {f"key{number}": value}

    assert in_threads(len(clients), work) == []
    assert numbers(clients[0], "rdma_queue_pairs") == [1]


@pytest.mark.device("receives for many messages")
def test_requests_without_replies(make: Make) -> None:
    clients = [make(spin=0) for _ in range(6)]
    for client in clients:
        client.version()

    def work(number: int) -> None:
        client = clients[number]
        for turn in range(rounds(300)):
            client.set(f"key{number}", b"%d" % turn, noreply=True)
            client.set(f"large{number}", bytes(4000), noreply=True)
        assert client.get(f"key{number}") == b"%d" % (rounds(300) - 1)

    assert in_threads(len(clients), work) == []


@pytest.mark.device("its completion channel among threads")
def test_sleepers_are_woken(make: Make, server: Server) -> None:
    """Each sleeping thread is woken by its own reply, whichever thread sleeps for the queue pair."""
    clients = [make(spin=0) for _ in range(10)]
    for client in clients:
        client.version()
    for _ in range(rounds(10)):
        waiting = threading.Barrier(len(clients) + 1)

        def work(number: int, waiting: threading.Barrier = waiting) -> None:
            waiting.wait()
            assert clients[number].set(f"key{number}", bytes(number))

        results: list[list[BaseException]] = []
        with suspended(server.pid):
            runner = threading.Thread(target=lambda: results.append(in_threads(len(clients), work)))  # noqa: B023
            runner.start()
            waiting.wait()
        runner.join()
        assert results == [[]]


def test_more_than_a_lane_keeps_both_ways(make: Make) -> None:
    """A batch beyond a lane's room in both directions gets through: the client reports used bytes while it sends."""
    client = make()
    values = {f"key{number:05}": b"%05d" % number * 600 for number in range(8000)}
    assert client.set_many(values, noreply=False) == []
    assert client.get_many(values) == values


def test_owners_sleep_until_they_can_go_on(make: Make, server: Server) -> None:
    """A client without room does not wake the thread that sleeps for all: they would wake each other without end."""
    sleeper, full = make(spin=0), make(spin=0, timeout=0.3 * PACE)
    assert sleeper.version() == full.version()
    many = {f"key{number}": bytes(3000) for number in range(50)}
    with suspended(server.pid):
        thread = threading.Thread(target=sleeper.version)
        thread.start()
        before = resource.getrusage(resource.RUSAGE_SELF)
        with pytest.raises(TimeoutError):
            full.set_many(many, noreply=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
    thread.join()
    assert after.ru_nvcsw - before.ru_nvcsw < 500


@pytest.mark.device("memory behind a time-out")
def test_a_timeout_is_one_clients(make: Make, server: Server) -> None:
    """After a time-out the value is stored whole or not at all, its memory is the caller's again, and other clients of
    the queue pair go on."""
    size = 8 << 20
    other, value = make(), bytearray(b"n" * size)
    assert other.set("key", b"old")

    def hasty_set() -> None:
        value[:] = b"n" * size
        make(timeout=0.001, spin=0).set("key", value)

    def is_as_before() -> bool:
        value[:] = b"x" * size
        return other.get("key") in (b"old", b"n" * size) and bool(other.set("key", b"old"))

    for _ in range(rounds(8)):
        # On a machine with a single processor the device may be served first each time: then no call times out.
        with suppress(TimeoutError):
            hasty_set()
        assert is_as_before()
    # The server goes on early enough to close the lane before the client gives up the queue pair.
    go_on = threading.Timer(0.05, lambda: os.kill(server.pid, signal.SIGCONT))
    with suspended(server.pid):
        go_on.start()
        with pytest.raises(TimeoutError):
            hasty_set()
    go_on.join()
    assert is_as_before()
    assert numbers(other, "rdma_total_queue_pairs", "rdma_qp_errors") == [1, 0]


def test_a_value_that_comes_too_late(make: Make) -> None:
    """The late value of a timed-out get goes into memory that nobody else gets until the lane is closed."""
    size = 8 << 20
    other = make()
    assert other.set("key", b"v" * size)
    for _ in range(rounds(12)):
        hasty = make(timeout=0.001, spin=0)
        with suppress(TimeoutError):
            hasty.get("key")
        hasty.close()
        blocks = [bytes(1 << 20) for _ in range(8)]
        assert other.get("key") == b"v" * size
        assert all(block == bytes(1 << 20) for block in blocks)
    assert numbers(other, "rdma_total_queue_pairs", "rdma_qp_errors") == [1, 0]


@pytest.mark.device("requests without acknowledgement by the program")
def test_a_server_that_stands_still(make: Make, server: Server) -> None:
    """All clients keep their time-outs with a stopped server, and go on afterwards."""
    clients = [make(timeout=0.3, spin=0) for _ in range(4)]
    for client in clients:
        client.version()

    def work(number: int) -> None:
        with pytest.raises((TimeoutError, MemcacheUnexpectedCloseError)):
            clients[number].set("key", bytes(100_000))

    with suspended(server.pid):
        assert in_threads(len(clients), work) == []
    for client in clients:
        assert client.set("key", b"value")


@pytest.mark.device("the end of a queue pair")
def test_the_end_of_a_queue_pair_ends_all_of_it(rmemcached_server: ServerFactory, transport: str) -> None:
    """Each client notices the end, in its present call or in its next, and then connects anew."""
    server = rmemcached_server("-t", "1")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server.address, transport=transport, timeout=TIMEOUT, default_noreply=False))
            for _ in range(6)
        ]
        for client in clients:
            client.version()
        waiting = threading.Barrier(4)

        def work(number: int) -> None:
            waiting.wait()
            with pytest.raises((MemcacheUnexpectedCloseError, OSError)):
                clients[number].version()

        results: list[list[BaseException]] = []
        runner = threading.Thread(target=lambda: results.append(in_threads(3, work)))
        with suspended(server.pid):
            runner.start()
            waiting.wait()
            server.kill()
        runner.join()
        assert results == [[]]
        for client in clients[3:]:
            with pytest.raises((MemcacheUnexpectedCloseError, OSError)):
                client.version()
        for client in clients:
            with pytest.raises(ConnectionRefusedError):
                client.version()


def test_the_servers_end_of_a_lane(make: Make) -> None:
    """If the server ends a lane, only the lane's client notices, and connects anew."""
    first, second = make(), make()
    assert first.set("key", b"value")
    with pytest.raises(MemcacheUnexpectedCloseError):
        second.raw_command(b"quit", "\r\n")
    assert first.get("key") == b"value"
    assert second.get("key") == b"value"
    assert numbers(first, "rdma_total_queue_pairs") == [1]


def test_beyond_the_limit_of_connections(rmemcached_server: ServerFactory, transport: str) -> None:
    server = rmemcached_server("-t", "1", "-c", "20")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.address, transport=transport, timeout=TIMEOUT)) for _ in range(20)]
        with pytest.raises(MemcacheUnexpectedCloseError, match="Too many open connections"):
            for client in clients:
                client.version()
        assert clients[0].set("key", b"value", noreply=False)
        clients[1].close()
        # The server learns of the close before this request, and then has room for another client.
        clients[0].version()
        assert clients[19].get("key") == b"value"


@pytest.mark.device("a fork")
def test_a_child_makes_its_own(make: Make) -> None:
    clients = [make() for _ in range(3)]
    for client in clients:
        assert client.set("key", b"parent")

    def child() -> None:
        for client in clients:
            client.close()
        assert all(client.set("key", b"child") for client in clients)
        assert numbers(clients[0], "rdma_queue_pairs") == [2]

    in_child(child)
    assert [client.get("key") for client in clients] == [b"child"] * 3


@pytest.mark.device("its completion channel among threads")
@pytest.mark.parametrize("follows", [False, True], ids=["sleeps for all", "follows"])
def test_signal_handlers_run(make: Make, server: Server, follows: bool) -> None:
    """Signal handlers run in a waiting call, also while another thread sleeps for the queue pair."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    mine, other = make(spin=0), make(spin=0)
    assert mine.version() == other.version()
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with suspended(server.pid):
            thread = threading.Thread(target=other.version)
            if follows:
                thread.start()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                mine.version()
            if not follows:
                thread.start()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    thread.join()
    assert mine.version() == other.version()


def test_a_queue_pair_that_has_just_ended(make: Make) -> None:
    """A thread cannot join a queue pair whose last owner has just left, and the next call connects anew."""
    client = make()
    client.version()
    ((queue, _),) = (one for pairs in exchange.shared.values() for one in pairs if not one[0].ended())
    client.close()
    with pytest.raises(OSError, match="has ended"):
        exchange.stream_of(client, queue)
    assert client.set("key", b"value")

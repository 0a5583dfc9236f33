"""Clients that die: nobody reads a half-written value, and nothing of the dead clients is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from daemon_tools import (
    DATA,
    GONE_WITHIN,
    Conversation,
    Peer,
    alone,
    child,
    eventually,
    rdma_at_rest,
    rdma_client,
    tcp_client,
)
from polling import at_least
from selfcheck import make_value, problem
from servers import Server, start_rmemcached
from transport import rounds
from victims import KEYS, SIZES

from rmemcached.verbs import Access

pytestmark = pytest.mark.usefixtures("rdma_transport")

BIG = 8_000_000


class Nursery:
    """Forks clients to be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.alive: set[int] = set()

    def fork(self, *words: object) -> int:
        """Forks a victim. Returns its process id once the victim is in position."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line.strip().isdigit(), line + (self.process.stderr.read() if self.process.stderr else "")
        self.alive.add(int(line))
        return int(line)

    def kill(self, pid: int) -> None:
        self.alive.remove(pid)
        os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """Also kills victims left by a failed test: the next test begins without them."""
        for pid in list(self.alive):
            with suppress(ProcessLookupError):
                self.kill(pid)


@pytest.fixture(scope="module")
def survivor(rdma_transport: str) -> Iterator[tuple[Server, Nursery]]:
    """A single daemon for all the deaths."""
    with start_rmemcached("-m", "96", "-I", "8m", "-M", "-t", "2") as server:
        with child("victims.py", server.host, server.port) as process:
            yield server, Nursery(process)
        assert server.alive(), server.stderr()


@pytest.fixture
def scene(survivor: tuple[Server, Nursery]) -> Iterator[tuple[Server, Conversation, Nursery]]:
    server, nursery = survivor
    with Conversation(server) as control:
        eventually(lambda: rdma_at_rest(control))
        alone(control)
        try:
            yield server, control, nursery
        finally:
            nursery.kill_all()


def wait_at_rest(control: Conversation) -> None:
    eventually(lambda: rdma_at_rest(control), GONE_WITHIN, "queue pairs and registrations at zero")


def wait_for_one(control: Conversation) -> None:
    """Waits until a single queue pair is left."""
    eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 1, GONE_WITHIN)


def received(control: Conversation) -> int:
    return control.number("rdma_recvs", "rdma")


@pytest.mark.device("queue pairs of dead peers")
def test_killed_at_random_moments(scene: tuple[Server, Conversation, Nursery]) -> None:
    server, control, nursery = scene
    source = random.Random(11)
    reader = tcp_client(server)
    for key in range(KEYS):
        reader.set(f"storm{key}", make_value(key, source.choice(SIZES)))
    for round_number in range(rounds(60)):
        pids = [nursery.fork("storm", 10 * round_number + i) for i in range(source.randint(1, 3))]
        if source.random() < 0.2:
            # The victim stops reading first: transfers to the victim pile up.
            os.kill(pids[0], signal.SIGSTOP)
        for _ in range(source.randrange(40)):
            name = f"storm{source.randrange(KEYS)}"
            value = reader.get(name)
            assert value is not None and problem(value) is None, (name, problem(value))
        for pid in pids:
            nursery.kill(pid)
        wait_at_rest(control)
    for key in range(KEYS):
        value = reader.get(f"storm{key}")
        assert value is not None and problem(value) is None
    reader.close()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_killed_with_a_read_in_flight(scene: tuple[Server, Conversation, Nursery], stopped: bool) -> None:
    """No item is left after 12 rounds of 3 items of 8 MB, three times the memory of a daemon without evictions."""
    server, control, nursery = scene
    old = random.Random(5).randbytes(BIG)
    with rdma_client(server) as reader:
        assert reader.set("old", old)
        items = control.number("curr_items")
        fetched = control.number("rdma_read_bytes", "rdma")
        for _ in range(12):
            before = received(control)
            pids = [nursery.fork("read", "old", BIG) for _ in range(3)]
            # Each victim has sent READY and its set.
            eventually(at_least(lambda: received(control), before + 6))
            if stopped:
                os.kill(pids[0], signal.SIGSTOP)
            assert reader.get("old") == old
            assert control.number("rdma_read_bytes", "rdma") == fetched
            for pid in pids:
                nursery.kill(pid)
            wait_for_one(control)
        assert reader.get("old") == old
        assert control.number("curr_items") == items
        assert reader.set("old", old[::-1])
        assert reader.get("old") == old[::-1]
    wait_at_rest(control)


def test_killed_with_a_write_in_flight(scene: tuple[Server, Conversation, Nursery]) -> None:
    """The daemon holds an item during its WRITE, even if the item is overwritten, until the client's death."""
    server, control, nursery = scene
    items = control.number("curr_items")
    with rdma_client(server) as other:
        for round_number in range(14):
            value = bytes([round_number]) * BIG
            assert other.set("key", value)
            before = received(control)
            written = control.number("rdma_write_bytes", "rdma")
            pids = [nursery.fork("write", "key", BIG) for _ in range(2)]
            eventually(at_least(lambda: received(control), before + 4))
            # The item is overwritten and deleted while the daemon sends the value.
            assert other.set("key", value[:-1])
            assert other.get("key") == value[:-1]
            assert other.delete("key")
            assert control.number("rdma_write_bytes", "rdma") - written < 3 * BIG - 1
            for pid in pids:
                nursery.kill(pid)
            wait_for_one(control)
        assert control.number("curr_items") == items
    wait_at_rest(control)


@pytest.mark.device("queue pairs of stopped peers")
def test_a_stopped_reader_holds_nobody_up(scene: tuple[Server, Conversation, Nursery]) -> None:
    """A client stopped in the middle of everything holds up no other client, and goes with SIGKILL."""
    server, control, nursery = scene
    with rdma_client(server) as other:
        assert other.set("key", bytes(BIG))
        pids = [nursery.fork("write", "key", BIG), nursery.fork("read", "key", BIG), nursery.fork("storm", 1)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for number in range(rounds(200)):
            assert other.set("other", make_value(number, 100_000))
            value = other.get("other")
            assert value is not None and problem(value) is None
        for pid in pids:
            nursery.kill(pid)
        wait_for_one(control)
    wait_at_rest(control)


@pytest.mark.device("queue pairs of dead peers")
def test_many_die_at_once(scene: tuple[Server, Conversation, Nursery]) -> None:
    _, control, nursery = scene
    pids = [nursery.fork("idle") for _ in range(20)]
    assert control.stats("rdma")["rdma_queue_pairs"] == "20"
    for pid in pids:
        nursery.kill(pid)
    wait_at_rest(control)
    eventually(lambda: control.number("curr_connections") == 1, GONE_WITHIN)


def test_the_queue_pair_goes_with_its_lifeline(scene: tuple[Server, Conversation, Nursery]) -> None:
    server, control, _ = scene
    with Peer(server) as peer:
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        peer.lifeline.close()
        wait_at_rest(control)
        peer.failed = None
        with pytest.raises(ConnectionError):
            peer.wait(lambda: False)


def test_the_lifeline_goes_with_its_queue_pair(scene: tuple[Server, Conversation, Nursery]) -> None:
    server, control, _ = scene
    with Peer(server) as peer:
        peer.qp.close()
        assert peer.lifeline.ended()
        wait_at_rest(control)


@pytest.mark.device("queue pairs without a peer")
@pytest.mark.parametrize("attached", [False, True], ids=["no stream", "no READY"])
def test_gone_before_it_began(scene: tuple[Server, Conversation, Nursery], attached: bool) -> None:
    server, control, _ = scene
    with Peer(server, attach=attached, ready=False):
        assert control.stats("rdma")["rdma_queue_pairs"] == "1"
    wait_at_rest(control)


def test_memory_taken_back_under_a_read(scene: tuple[Server, Conversation, Nursery]) -> None:
    """A region deregistered in the middle of the daemon's READ fails the set, and leaves the old value."""
    server, control, _ = scene
    with rdma_client(server) as other:
        assert other.set("key", b"old")
        for _ in range(rounds(12)):
            with Peer(server) as peer:
                memory = bytearray(BIG)
                region = peer.region(memory, Access.REMOTE_READ)
                peer.send(DATA, f"ms key {BIG} @{region.addr:x}:{region.rkey:x}\r\n".encode())
                region.close()
                with pytest.raises(ConnectionError):
                    peer.wait(lambda: False)
                assert peer.last_words().startswith(b"SERVER_ERROR rdma: RDMA READ failed: ")
            assert other.get("key") == b"old"
    wait_at_rest(control)


def unfinished_tcp(server: Server, size: int, source: random.Random) -> Any:
    talk = Conversation(server)
    talk.send(b"set tcp 0 0 %d\r\n%s" % (size, bytes(source.randrange(size))))
    return talk


def test_unfinished_sets_over_tcp(scene: tuple[Server, Conversation, Nursery]) -> None:
    """15 sets of 8 MB over TCP that never become whole leave nothing behind."""
    server, control, _ = scene
    source = random.Random(3)
    with rdma_client(server) as other:
        assert other.set("tcp", b"old")
        for _ in range(rounds(15)):
            talks = [unfinished_tcp(server, BIG, source) for _ in range(3)]
            assert other.get("tcp") == b"old"
            for talk in talks:
                talk.close()
            # Only the control connection and the other client are left.
            eventually(lambda: control.number("curr_connections") == 2, GONE_WITHIN)
        assert other.set("tcp", bytes(BIG))
    wait_at_rest(control)

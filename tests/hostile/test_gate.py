"""The gate can fail: its measurements show the cost of an attack."""

from __future__ import annotations

import mmap
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace

import attack_sockets
import bystander
import pytest
from harness import (
    MB,
    Attacker,
    Case,
    Footprint,
    Latency,
    Limits,
    check_bystander,
    for_connections,
    run_case,
    scene_of,
)
from servers import Server
from suspended import suspended

from rmemcached.client import Client

TRANSPORTS = ("tcp", "soft_iw", "soft_shm")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_time_that_the_daemon_takes_is_seen(rmemcached_server: Callable[..., Server], transport: str) -> None:
    server = rmemcached_server("-t", "1")
    with scene_of(server, [transport]) as scene:
        quiet = scene.bystander.round()
        try:
            with Attacker(server, attack_sockets.stop_and_go, pid=server.pid, seconds=0.02):
                attack = scene.bystander.round()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with pytest.raises(AssertionError, match=f"{transport}: p99"):
            check_bystander([quiet], [attack])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_get_that_fails_says_what_the_daemon_does(rmemcached_server: Callable[..., Server], transport: str) -> None:
    """When a get from a stopped daemon times out, the error shows the states of the daemon's threads: T, not R."""
    server = rmemcached_server("-t", "1")
    with Client(server.address, transport=transport, timeout=0.2, default_noreply=False) as client:
        assert client.set(bystander.KEY, bystander.VALUE)
        queued = bystander.Queued(bystander.worker_of(client, server.pid))
        bystander.measure(client, queued, server.pid)
        with suspended(server.pid), pytest.raises(TimeoutError) as found:
            bystander.measure(client, queued, server.pid)
    (note,) = found.value.__notes__
    assert re.match(r"after \d+\.\d s, of which .* for \d+\.\d s and, .*; the daemon: .*\bmc-worker T in ", note), note


def test_one_bad_round_of_three_is_noise() -> None:
    usual, late = {"tcp": Latency(0.0, 0.0001, 0.0, 0.0)}, {"tcp": Latency(0.0, 0.1, 0.0, 0.0)}
    check_bystander([usual], [late, usual, usual])
    with pytest.raises(AssertionError):
        check_bystander([usual], [late, usual, late])


def test_what_is_held_is_seen(rmemcached_server: Callable[..., Server]) -> None:
    """The gate sees the attacker's connections, and the memory for their input."""
    case = Case("half open", attack_sockets.half_open, {"count": 100}, for_connections(99, 4096))
    with scene_of(rmemcached_server("-t", "1"), TRANSPORTS) as scene:
        with pytest.raises(AssertionError, match="descriptors grew by 100, limit 99"):
            run_case(scene, case)
        run_case(scene, replace(case, limits=for_connections(100, 4096)))


def test_every_limit_is_compared() -> None:
    before = Footprint(0, 0, 0, 0, 0, 0, 0)
    limits = Limits(memory=1, locked=2, mapped=3, descriptors=4, threads=5)
    assert limits.exceeded(before, Footprint(1, 1, 2, 3, 1, 4, 5)) == []
    now = Footprint(2, 2, 3, 4, 2, 5, 6)
    assert [line.split()[0] for line in limits.exceeded(before, now)] == [
        "resident", "shared", "charged", "locked", "mapped", "descriptors", "threads",
    ]  # fmt: skip


@pytest.mark.resident
@pytest.mark.parametrize("kind", ["resident", "shared"])
def test_footprint_of_this_process(kind: str) -> None:
    before = Footprint.of(os.getpid())
    with mmap.mmap(-1, 8 * MB, mmap.MAP_PRIVATE if kind == "resident" else mmap.MAP_SHARED) as held:
        # This process writes page by page: a whole block would be memory of this process, too, for a while.
        for at in range(0, len(held), mmap.PAGESIZE):
            held[at] = 1
        now = Footprint.of(os.getpid())
    assert getattr(now, kind) - getattr(before, kind) > 7 * MB
    assert before.threads >= 1 and before.descriptors > 3 and before.mapped > before.resident


def test_the_bystander_knows_its_worker(rmemcached_server: Callable[..., Server]) -> None:
    """The bystander finds the worker of each of two connections, which the daemon gives to its two workers in turn."""
    server = rmemcached_server("-t", "2")
    with Client(server.address, transport="tcp") as one, Client(server.address, transport="tcp") as other:
        clients = (one, other)
        for client in clients:
            client.version()
        found = [bystander.worker_of(client, server.pid) for client in clients]
        assert set(found) == set(bystander.workers(server.pid))
        assert found == [bystander.worker_of(client, server.pid) for client in clients]

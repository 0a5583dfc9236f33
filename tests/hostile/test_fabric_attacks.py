"""Attacks below the messages, on soft_shm and soft_iw, cost no other client anything."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace

import attack_fabrics
import pytest
from daemon_tools import Conversation, descriptors, eventually
from harness import (
    KB,
    MB,
    REST,
    Attacker,
    Case,
    Limits,
    Scene,
    check_bystander,
    for_connections,
    run_case,
    scene_of,
)
from resident import SANITIZED
from servers import Server
from suspended import suspended

TRANSPORTS = ("tcp", "soft_iw", "soft_shm")
PAIR = for_connections(1, 600 * KB, 4)
"""A queue pair with its lifeline, its socket and a region waiting for its seal."""
GONE = replace(for_connections(8, 2 * MB, 5, 1024 * MB), mapped=4096 * MB)
"""Queue pairs ending in turn. While the daemon maps a region, the region's pages count as the daemon's, too."""
PIECES = 8
"""Pieces of memory passed by a queue pair and waiting for their close, on a busy machine."""
LOCKED = Limits(memory=4 * MB, locked=160 * MB, descriptors=4)
"""Locked address space: a queue pair's, and malloc's reserve."""


def nothing_allocated(scene: Scene, attacker: Attacker) -> None:
    attacker.tell("what have they cost?")
    assert attacker.line() == "0"


def a_large_value(scene: Scene) -> None:
    assert scene.control.ask(b"set large 0 0 900000\r\n" + bytes(900_000) + b"\r\n") == b"STORED\r\n"


def queue_pair_lives(scene: Scene, attacker: Attacker) -> None:
    """The daemon permits the attacker's work, however silly: the queue pair lives."""
    assert scene.control.number("rdma_queue_pairs", "rdma") == scene.queue_pairs + 1


def queue_pairs_live(scene: Scene, attacker: Attacker) -> None:
    assert scene.control.number("rdma_queue_pairs", "rdma") >= scene.queue_pairs + 4


CASES = [
    Case("sparse values", attack_fabrics.sparse_values, {"count": 300, "size": MB}, PAIR, outcome=nothing_allocated),
    Case("sparse values, -k", attack_fabrics.sparse_values, {"count": 300, "size": MB}, LOCKED,
         outcome=nothing_allocated, flags=("-k",), after=replace(LOCKED, descriptors=0)),
    Case("huge empty memory, -k", attack_fabrics.sparse_values, {"count": 20, "size": 2048 * MB}, LOCKED,
         outcome=nothing_allocated, flags=("-k",), after=replace(LOCKED, descriptors=0)),
    Case("a region whose file is locked", attack_fabrics.held_region, {}, PAIR, outcome=queue_pair_lives),
    Case("registries whose file is locked", attack_fabrics.held_registry, {}, for_connections(4, 600 * KB, 4)),
    Case("a close that waits", attack_fabrics.closes_that_wait, {"count": 1}, PAIR),
    Case("253 closes that wait", attack_fabrics.closes_that_wait, {"count": 253}, PAIR),
    Case("closes that wait, without end", attack_fabrics.closes_without_end, {},
         Limits(memory=8 * MB, mapped=400 * MB, descriptors=256 + 32)),
    Case("a close that waits, never read", attack_fabrics.close_never_read, {}, PAIR),
    Case("closes that take long", attack_fabrics.closes_that_take_long, {"size": 64 * MB},
         for_connections(1, 600 * KB, 4 + PIECES), outcome=queue_pair_lives),
    Case("offers of a page", attack_fabrics.offers, {"size": 4096}, PAIR, outcome=queue_pair_lives),
    Case("offers of 16 MB on 8 queue pairs", attack_fabrics.offers_of_many, {"count": 8, "size": 16 * MB - 64 * KB},
         for_connections(8, 600 * KB, 4 + PIECES), outcome=queue_pairs_live),
    Case("offers of 256 MB on 4 queue pairs", attack_fabrics.offers_of_many, {"count": 4, "size": 256 * MB},
         replace(for_connections(4, 600 * KB, 5 + PIECES), mapped=2048 * MB), outcome=queue_pairs_live),
    Case("regions of 256 MB that go", attack_fabrics.regions_that_go, {"size": 256 * MB}, GONE),
    Case("offers of nothing", attack_fabrics.offers, {"size": 2048 * MB}, PAIR, outcome=queue_pair_lives),
    Case("records", attack_fabrics.records, {}, PAIR, outcome=queue_pair_lives),
    Case("frames", attack_fabrics.frames, {}, PAIR, outcome=queue_pair_lives),
    Case("frames of four queue pairs", attack_fabrics.frames_of_many, {"count": 4}, for_connections(4, 600 * KB, 4),
         outcome=queue_pairs_live),
    Case("cells of an octet", attack_fabrics.cells, {}, PAIR, outcome=queue_pair_lives),
    Case("a line at a time", attack_fabrics.one_line, {"key": "large", "size": 900_000}, PAIR, prepare=a_large_value,
         outcome=queue_pair_lives),
    Case("a read octet by octet", attack_fabrics.octets_of_a_read, {"size": 900_000},
         for_connections(1, 2 * MB, 4), outcome=queue_pair_lives),
    Case("requests for streams", attack_fabrics.mpa_requests, {}, for_connections(100, 4 * KB)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_attack_below_the_messages(rmemcached_server: Callable[..., Server], case: Case) -> None:
    if case.attack is attack_fabrics.held_region and not attack_fabrics.may_miss_pages():
        pytest.skip("needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1")
    with scene_of(rmemcached_server("-t", "1", "-m", "64", *case.flags), TRANSPORTS) as scene:
        run_case(scene, case)


def test_more_descriptors_than_a_record_has_are_not_taken(rmemcached_server: Callable[..., Server]) -> None:
    """A queue pair that passes as many descriptors as a message takes is ended, and the daemon takes none of them."""
    server = rmemcached_server("-t", "1", "-m", "64")
    count, each = 6, 253
    with (
        Conversation(server) as control,
        Attacker(server, attack_fabrics.closes_of_many, count=count, each=each) as attacker,
    ):
        before = descriptors(server.pid)
        # The daemon is stopped until the attacker has closed its own descriptors: then the passed copies are the last.
        with suspended(server.pid):
            attacker.tell("pass them")
            assert attacker.line() == "passed"
        eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 0)
        assert descriptors(server.pid) <= before
        with Conversation(server) as other:
            assert other.ask(b"mn\r\n") == b"MN\r\n"


@contextlib.contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Lets the process open no further descriptor."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_no_worker_closes_what_finds_no_descriptor(rmemcached_server: Callable[..., Server]) -> None:
    """A socket whose `close` waits is passed while the daemon can take no descriptor.

    The message stays in place, and ends the queue pair once there are descriptors again.
    """
    with scene_of(rmemcached_server("-t", "1", "-m", "64"), TRANSPORTS) as scene:
        quiet = [scene.bystander.round()]
        before = scene.footprint()
        with Attacker(scene.server, attack_fabrics.closes_of_many, count=1, each=1) as attacker:
            with no_descriptor_left(scene.server.pid):
                with suspended(scene.server.pid):
                    attacker.tell("pass it")
                    assert attacker.line() == "passed"
                attack = [scene.bystander.round() for _ in range(3)]
                queue_pair_lives(scene, attacker)
            eventually(lambda: scene.control.number("rdma_queue_pairs", "rdma") == scene.queue_pairs)
            attack.append(scene.bystander.round())
        scene.wait_until_at_rest(before, REST)
        quiet.append(scene.bystander.round())
        if not SANITIZED:
            check_bystander(quiet, attack)

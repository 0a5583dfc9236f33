"""Attacks on the exchange and on lanes; harness.py lists the assertions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import attack_exchange as attack
import pytest
from daemon_tools import DATA, TIMEOUT, Conversation, Peer, eventually
from harness import KB, MB, Attacker, Case, Limits, Scene, run_case, scene_of
from servers import start_rmemcached
from suspended import suspended
from transport import PACE, VARIABLE

TRANSPORTS = ("tcp", "soft_iw", "soft_shm")
HASTY = ("-o", "rdma_ready_timeout=1")
KEPT = 1 * MB
"""Memory of a queue pair: its messages, and for each lane 16 KB of input and its replies."""
FEW = 200
"""The number of lanes that a case leaves open."""


def were_given_up(scene: Scene, attacker: Attacker) -> None:
    eventually(lambda: scene.control.number("rdma_ready_timeouts", "rdma") > 0)


def waits(scene: Scene, attacker: Attacker) -> None:
    found = scene.control.stats("rdma")
    assert 0 < int(found["rdma_input_bytes"]) <= 4 * attack.FEW_LANES * int(found["rdma_lane_bytes"])


def a_large_value(scene: Scene) -> None:
    assert scene.control.ask(b"set large 0 0 1000000\r\n" + bytes(1_000_000) + b"\r\n") == b"STORED\r\n"


def queue_pairs_live(scene: Scene, attacker: Attacker) -> None:
    """The daemon permits the attacker's work: its queue pairs live."""
    assert scene.control.number("rdma_queue_pairs", "rdma") >= scene.queue_pairs + 2


def of_large_values(case: Case) -> Case:
    """Completes a case with values of 1 MB."""
    count = case.arguments["count"]
    # Each lane may have begun to store a value, and the daemon keeps memory once used for items: the limits include it.
    items = (count * attack.LANES // 4 + 16) * MB
    return replace(
        case,
        arguments={**case.arguments, "size": 1_000_000},
        limits=Limits(memory=items + count * MB, mapped=count * 64 * MB, descriptors=count * 8),
        prepare=a_large_value,
        outcome=queue_pairs_live,
        after=Limits(memory=items, mapped=count * 64 * MB),
        flags=("-m", "256"),
    )


FETCH = {"request": "mg large v {where}:{size:x}"}
STORE = {"request": "ms large{number} {size} {where}"}
FETCH_IN_MESSAGES = {"request": "mg large v"}
LARGE = [
    Case("large values for 2 queue pairs", attack.large_values, {**FETCH, "count": 2}),
    Case("large values for 8 queue pairs", attack.large_values, {**FETCH, "count": 8}),
    Case("large values of 2 queue pairs", attack.large_values, {**STORE, "count": 2}),
    Case("large values of 8 queue pairs", attack.large_values, {**STORE, "count": 8}),
    Case("large values for 8 queue pairs, in messages", attack.large_values, {**FETCH_IN_MESSAGES, "count": 8}),
]

CASES = [
    *map(of_large_values, LARGE),
    Case("exchanges without end", attack.exchange_flood, limits=Limits(memory=8 * MB, descriptors=8)),
    Case(
        "exchanges without streams",
        attack.without_stream,
        {"count": 100},
        # malloc keeps some pages when queue pairs are given up and made anew.
        Limits(memory=100 * (32 * KB) + 2 * MB, mapped=400 * MB, descriptors=110),
        outcome=were_given_up,
        flags=HASTY,
    ),
    Case(
        "streams without READY",
        attack.without_ready,
        {"count": 20},
        Limits(memory=20 * 200 * KB, mapped=400 * MB, descriptors=20 * 8),
        outcome=were_given_up,
        flags=HASTY,
    ),
    Case(
        "no credits for replies",
        attack.without_credits,
        {"count": 4},
        Limits(memory=4 * KEPT, mapped=400 * MB, descriptors=4 * 8),
        outcome=waits,
    ),
    Case(
        "a deep queue",
        attack.deep_queue,
        {"request": "mg bystander v\r\n", "at_once": 400},
        Limits(memory=4 * MB, mapped=400 * MB, descriptors=8),
    ),
    Case(
        "lanes opened and closed without end",
        attack.lanes_without_end,
        limits=Limits(memory=4 * MB, mapped=400 * MB, descriptors=8),
    ),
    Case(
        "lanes left open",
        attack.lanes_left_open,
        {"count": 2, "lanes": FEW // 2},
        # Each lane may take 16 KB for input, and 256 replies.
        Limits(memory=FEW * 300 * KB, mapped=400 * MB, descriptors=2 * 8),
    ),
    Case(
        "statistics beside deep queues",
        attack.statistics_and_deep_queues,
        {"count": 3},
        Limits(memory=8 * MB, mapped=400 * MB, descriptors=32),
    ),
]


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with start_rmemcached("-m", "64", "-t", "1", *request.param.flags) as server, scene_of(server, TRANSPORTS) as made:
        yield made
        assert server.alive()


@pytest.mark.parametrize("transport", ["soft_iw", "soft_shm"])
@pytest.mark.parametrize(
    ("scene", "case"), [(case, case) for case in CASES], ids=[case.name for case in CASES], indirect=["scene"]
)
def test_exchange(scene: Scene, case: Case, transport: str) -> None:
    run_case(scene, replace(case, arguments={**case.arguments, "transport": transport}))


def moved(statistics: bytes) -> int:
    found = re.search(rb"^STAT iw_tx_bytes (\d+)", statistics, re.MULTILINE)
    assert found is not None, statistics
    return int(found[1])


def reply(peer: Peer) -> bytes:
    """The requested statistics."""
    peer.wait(lambda: peer.inbox.endswith(b"END\r\n"))
    text = bytes(peer.inbox)
    peer.inbox.clear()
    return text


def test_others_come_before_a_device_that_never_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits for the rest of a turn of a busy device, and not for the device's next turn as well.

    When two clients ask at the same time, over TCP and over shared memory, the busy device moves nothing between their
    replies.
    """
    monkeypatch.setenv(VARIABLE, "soft_shm")
    size = 60_000
    fetch = {"transport": "soft_iw", "request": FETCH["request"], "size": size, "count": 16}
    between = []
    with (
        start_rmemcached("-m", "64", "-t", "1") as server,
        Conversation(server, TIMEOUT * PACE) as plain,
        Peer(server) as near,
    ):
        assert plain.ask(b"set large 0 0 %d\r\n" % size + bytes(size) + b"\r\n") == b"STORED\r\n"
        with Attacker(server, attack.large_values, **fetch):
            for _ in range(31):
                assert plain.ask(b"mn\r\n") == b"MN\r\n"
                with suspended(server.pid):
                    plain.send(b"stats rdma\r\n")
                    near.send(DATA, b"stats rdma\r\n")
                first = b"".join(iter(plain.line, b"END\r\n"))
                between.append(moved(reply(near)) - moved(first))
    assert median(between) <= 0, between


@pytest.mark.parametrize("transport", ["soft_iw", "soft_shm"])
def test_lanes_of_a_client_that_is_killed_end_in_many_turns(transport: str) -> None:
    """With -R 1 a connection has one answer in a turn. The answers tell the number of lanes ended by each turn."""
    count, in_a_turn = 4000, 64
    with (
        start_rmemcached("-m", "64", "-t", "1", "-R", "1", "-c", str(2 * count)) as server,
        Conversation(server, TIMEOUT * PACE) as control,
    ):
        with Attacker(server, attack.lanes_at_rest, transport=transport, count=count) as attacker:
            assert control.number("curr_connections") > count
            with suspended(server.pid):
                control.send(b"stats\r\n" * 200)
                attacker.kill()
        found = []
        for _ in range(200):
            answer = b"".join(iter(control.line, b"END\r\n"))
            found.append(int(answer.partition(b"STAT curr_connections ")[2].split()[0]))
        ended = [before - after for before, after in itertools.pairwise(found)]
        assert found[0] > count > 100 > found[-1]
        assert max(ended) <= in_a_turn + 2, ended

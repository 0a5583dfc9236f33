"""The gate on sockets: TCP, UNIX sockets, UDP. harness.py lists the assertions of each case."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import attack_sockets
import pytest
from daemon_tools import eventually
from harness import KB, MB, MORE_SECONDS, Attacker, Case, Limits, Scene, for_connections, run_case, scene_of
from servers import Server

TRANSPORTS = {"tcp": ("tcp", "soft_iw", "soft_shm"), "unix": ("unix", "soft_shm")}
FLAGS = ("-t", "1", "-m", "64", "-c", "2000")
FULL_TURNS = 2 * MORE_SECONDS
"""Seconds that large values may add to the bystander's p99. The values fill the worker's turns, and the time to copy
512 KB depends on other use of the machine's memory: 0.4 ms are usual, 1.5 ms have been seen."""


def values(scene: Scene, size: int, count: int = 1, prefix: str = "value") -> None:
    """Stores values for the attacker to ask for."""
    for number in range(count):
        scene.control.send(b"set %s%d 0 0 %d noreply\r\n%s\r\n" % (prefix.encode(), number, size, bytes(size)))
    assert scene.control.ask(b"mg %s%d\r\n" % (prefix.encode(), count - 1)) == b"HD\r\n"


def refused(scene: Scene, attacker: Attacker) -> None:
    """A connection beyond the limit has read a line, and nothing else."""
    assert attacker.line() == "ERROR Too many open connections"
    assert scene.control.number("rejected_connections") > 0


def ended(scene: Scene, attacker: Attacker) -> None:
    """The daemon has closed every connection of the attacker."""
    assert attacker.line() == "ended"
    eventually(lambda: scene.control.number("curr_connections") == scene.connections)


def gives_way(scene: Scene, attacker: Attacker) -> None:
    """The attacker's connections have given way to others."""
    assert scene.control.number("conn_yields") > 0


def all_watch(scene: Scene, attacker: Attacker) -> None:
    """The daemon has as many watchers as allowed."""
    eventually(lambda: scene.control.number("log_watchers") == 20)


CASES = (
    # The first attacks are on connections. Some of the half-open commands have begun an item, in memory of -m.
    Case(
        "half-open commands",
        attack_sockets.half_open,
        {"count": 200},
        for_connections(200, 4 * KB, memory=12 * MB),
        after=Limits(memory=12 * MB),
    ),
    Case("flood of connects", attack_sockets.connect_flood, {}, for_connections(1000, KB), flags=("-c", "1000")),
    Case(
        "more connections than -c",
        attack_sockets.connect_until_full,
        {"count": 300},
        for_connections(250, 4 * KB),
        outcome=refused,
        flags=("-c", "250"),
    ),
    # The next clients read replies slowly, or never.
    Case(
        "slow readers of 64 MB",
        attack_sockets.slow_readers,
        {"count": 10, "key": "value0"},
        for_connections(10, 64 * KB),
        prepare=partial(values, size=64 * MB),
        flags=("-m", "256", "-I", "128m"),
    ),
    Case(
        "values of 1 MB, not read",
        attack_sockets.ask_without_reading,
        {"count": 20, "request": "get value0\r\n"},
        for_connections(20, 64 * KB),
        prepare=partial(values, size=1_000_000),
    ),
    Case(
        "values of 1 MB, read",
        attack_sockets.ask_and_read,
        {"count": 4, "request": "get value0\r\n"},
        for_connections(4, 64 * KB),
        prepare=partial(values, size=1_000_000),
        more=FULL_TURNS,
    ),
    Case(
        "small commands without end",
        attack_sockets.ask_and_read,
        {"count": 4, "request": "get nothing\r\n", "at_once": 1000},
        for_connections(4, 64 * KB),
        outcome=gives_way,
    ),
    # The next clients send long lines.
    Case(
        "100 000 keys, read",
        attack_sockets.many_keys,
        {"keys": 100_000, "prefix": "value", "read": True},
        for_connections(1, MB),
        prepare=partial(values, size=100, count=1000),
    ),
    Case(
        "100 000 keys, not read",
        attack_sockets.many_keys,
        {"keys": 100_000, "prefix": "value", "read": False},
        for_connections(1, MB),
        prepare=partial(values, size=100, count=1000),
    ),
    Case("an octet a second", attack_sockets.octet_by_octet, {"count": 100}, for_connections(100, 4 * KB)),
    Case(
        "a line without end",
        attack_sockets.endless,
        {"count": 10, "start": "incr ", "rest": "a"},
        for_connections(10, 64 * KB),
        outcome=ended,
    ),
    Case(
        "a key without end",
        attack_sockets.endless,
        {"count": 10, "start": "get ", "rest": "a"},
        for_connections(10, 64 * KB),
    ),
    Case(
        "keys without end",
        attack_sockets.endless,
        {"count": 4, "start": "get", "rest": " key"},
        for_connections(4, 64 * KB),
    ),
    # The next cases are about large values.
    Case(
        "values of 1 MB, stored without end",
        attack_sockets.store_without_end,
        {"count": 4, "size": 1_000_000},
        for_connections(4, 64 * KB, memory=64 * MB),
        after=Limits(memory=64 * MB),
        more=FULL_TURNS,
    ),
    Case(
        "values of 16 MB, stored without end",
        attack_sockets.store_without_end,
        {"count": 2, "size": 16_000_000},
        for_connections(2, 64 * KB, memory=200 * MB),
        after=Limits(memory=200 * MB),
        flags=("-m", "192", "-I", "32m"),
        more=FULL_TURNS,
    ),
    # The memory of the next values is new: only written bytes become resident, and only they are cleared.
    Case(
        "values of 1 MB begun in new memory",
        attack_sockets.begin_values,
        {"count": 1000, "size": 1_000_000, "at_once": 20},
        for_connections(1000, 16 * KB, memory=64 * MB),
        after=Limits(memory=64 * MB),
        flags=("-m", "2048"),
    ),
    Case(
        "a binary set of 4 GB", attack_sockets.huge_binary, {"opcode": 1, "extras": 8, "key": 4}, Limits(descriptors=4)
    ),
    Case(
        "a binary get of 4 GB", attack_sockets.huge_binary, {"opcode": 0, "extras": 0, "key": 4}, Limits(descriptors=4)
    ),
    # The next attack is on the hash table. All these keys had the same hash value under the former function, which had
    # no secret.
    Case(
        "keys of the same hash",
        attack_sockets.store_and_ask,
        {"count": 40_000, "ending": "e3c6889cf06abc8e"},
        for_connections(1, 64 * KB, memory=12 * MB),
        after=Limits(memory=12 * MB),
    ),
    # The next attacks keep side threads busy.
    Case(
        "watchers that stall",
        attack_sockets.watch,
        {"count": 20, "what": "fetchers mutations connevents"},
        for_connections(20, 300 * KB),
        outcome=all_watch,
    ),
    Case(
        "dumps that stall",
        attack_sockets.dump,
        {"count": 50},
        for_connections(50, 64 * KB),
        prepare=partial(values, size=10, count=20_000),
    ),
)
BOTH = {"flood of connects", "slow readers of 64 MB", "values of 1 MB, not read", "values of 1 MB, stored without end"}
TABLE = [(kind, case) for case in CASES for kind in TRANSPORTS if kind == "tcp" or case.name in BOTH]


@pytest.fixture
def scenes(rmemcached_server: Callable[..., Server]) -> Iterator[Callable[..., AbstractContextManager[Scene]]]:
    """Makes the scene of a case. Later flags override earlier flags."""
    with tempfile.TemporaryDirectory() as folder:
        yield lambda kind, flags=(): scene_of(
            rmemcached_server(*FLAGS, *flags, path=str(Path(folder) / "socket") if kind == "unix" else None),
            TRANSPORTS[kind],
        )


@pytest.mark.parametrize(("kind", "case"), TABLE, ids=[f"{case.name}-{kind}" for kind, case in TABLE])
def test_case(scenes: Callable[..., AbstractContextManager[Scene]], kind: str, case: Case) -> None:
    with scenes(kind, case.flags) as scene:
        run_case(scene, case)


@pytest.mark.parametrize(
    "request_text",
    ["get value0\r\n", "get" + " value0" * 9000 + "\r\n", "get" + " a" * 30_000 + "\r\n"],
    ids=["a large reply", "9000 large replies", "30 000 keys"],
)
def test_udp_flood(
    scenes: Callable[..., AbstractContextManager[Scene]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_text: str,
) -> None:
    names = tmp_path / "ports"
    monkeypatch.setenv("MEMCACHED_PORT_FILENAME", str(names))
    case = Case(
        "UDP flood",
        attack_sockets.udp_flood,
        {"request": request_text},
        Limits(),
        prepare=partial(values, size=60_000),
    )
    with scenes("tcp", ("-U", "-1")) as scene:
        eventually(names.exists)
        lines = dict(line.split(": ") for line in reversed(names.read_text().splitlines()))
        run_case(scene, replace(case, arguments={**case.arguments, "port": int(lines["UDP INET"])}))

"""script/torture runs, and finds faults. The long runs are made by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from daemon_tools import Conversation, eventually
from harness import MB, START_SECONDS, Footprint
from selfcheck import make_value
from servers import Server
from torture import LEFT, gauges, left, run
from torture_clients import KEYS, RARE, Result, value_of
from transport import RDMA_TRANSPORTS, within

from rmemcached.client import Client

SECONDS = within(2.0)
FABRICS = [name for name in RDMA_TRANSPORTS if name.startswith("soft_")]


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_few_seconds(fabric: str) -> None:
    assert run(fabric, SECONDS, 2) == []


@pytest.mark.parametrize("size", [100, 4097, 1_000_001, *RARE])
def test_a_wrong_byte_is_found(size: int) -> None:
    source = random.Random(size)
    for place in (0, 8, size // 2, size - 1):
        value = bytearray(value_of(7, source, size))
        value[place] ^= 1
        result = Result()
        result.check(7, bytes(value))
        assert len(result.wrong) == 1, place


def test_the_value_of_another_key_is_found() -> None:
    result = Result()
    value = value_of(7, random.Random(1), 5000)
    result.check(7, value)
    assert result.wrong == []
    result.check(8, value)
    assert result.wrong == ["torture8: the value is that of key 7"]


@pytest.mark.parametrize("moved", [4096, MB, 2 * MB])
def test_part_of_a_long_value_in_the_place_of_another_is_found(moved: int) -> None:
    size = 5 * MB
    value = bytearray(make_value(KEYS << 16, size))
    value[moved : moved + 4096] = value[2 * moved : 2 * moved + 4096]
    result = Result()
    result.check(KEYS, bytes(value))
    assert len(result.wrong) == 1


def test_what_is_left_is_found(rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server()
    with Conversation(server) as control:
        # The connection that awaited the server's start may not have ended yet.
        eventually(lambda: control.number("curr_connections") == 1, START_SECONDS)
        base = gauges(control), Footprint.of(server.pid)
        with Client(server.address, transport=FABRICS[0], timeout=5) as client:
            client.version()
            found = {line.split()[0] for line in left(server, control, base, 0.0)}
        assert {"curr_connections", "rdma_queue_pairs", "descriptors"} <= found
        assert left(server, control, base) == []
    assert LEFT.descriptors == LEFT.threads == LEFT.locked == 0

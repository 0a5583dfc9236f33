"""Which RDMA transport the tests of the data path use, and how much of what they repeat a slow machine can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

VARIABLE = "RMEMCACHED_TEST_TRANSPORT"
_wished = os.environ.get(VARIABLE)
RDMA_TRANSPORTS = (_wished,) if _wished else ("soft_iw", "soft_shm")
"""Transports of rmemcached.client: the software devices', unless the environment names one."""

RDMA = RDMA_TRANSPORTS[0]
"""For tests that are run over one of them."""


def rdma() -> str:
    """The one in use, in this process and those it starts: of the fixture rdma_transport, or the first."""
    return os.environ.get(VARIABLE, RDMA_TRANSPORTS[0])


PACE = int(os.environ.get("RMEMCACHED_TEST_PACE", "1"))
"""How many times slower than usual this machine is (emulated ones are): so many times fewer repetitions there are."""


def rounds(count: int) -> int:
    """How often to do what a machine of usual speed does `count` times."""
    return max(count // PACE, min(count, 3))


def within(seconds: float) -> float:
    """How long something may take that a machine of usual speed does within `seconds`."""
    return seconds * PACE


def some(items: Sequence[Item]) -> list[Item]:
    """All of the items, or those at the ends and every PACE-th between them."""
    return [item for i, item in enumerate(items) if i % PACE == 0 or i == len(items) - 1]

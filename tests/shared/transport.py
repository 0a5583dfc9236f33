"""The RDMA transport for tests of the data path, and how often they repeat things on a slow machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

VARIABLE = "RMEMCACHED_TEST_TRANSPORT"
_named = os.environ.get(VARIABLE)
RDMA_TRANSPORTS = (_named,) if _named else ("soft_iw", "soft_shm")
"""Transports of rmemcached.client: both software devices', unless the environment names a transport."""

RDMA = RDMA_TRANSPORTS[0]
"""For tests over a single transport."""


def rdma() -> str:
    """The transport in use, in this process and its children: the fixture rdma_transport's, else the first."""
    return os.environ.get(VARIABLE, RDMA_TRANSPORTS[0])


PACE = int(os.environ.get("RMEMCACHED_TEST_PACE", "1"))
"""The factor by which this machine is slower than usual (an emulated machine, for example). Tests repeat less by this
factor."""


def rounds(count: int) -> int:
    """The number of repetitions where a machine of usual speed makes `count`."""
    return max(count // PACE, min(count, 3))


def within(seconds: float) -> float:
    """The time limit for work that a machine of usual speed does within `seconds`."""
    return seconds * PACE


def some(items: Sequence[Item]) -> list[Item]:
    """All items, or on a slow machine every PACE-th and the last."""
    return [item for i, item in enumerate(items) if i % PACE == 0 or i == len(items) - 1]

"""The RDMA transport for tests of the data path, and how often they repeat things on a slow machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

VARIABLE = "RMEMCACHED_TEST_TRANSPORT"
_named = os.environ.get(VARIABLE)
RDMA_TRANSPORTS = (_named,) if _named else ("soft_iw", "soft_shm")
"""Transports of rmemcached.client: those of the software devices, unless the environment names one."""

RDMA = RDMA_TRANSPORTS[0]
"""For tests that run over one transport only."""


def rdma() -> str:
    """The transport in use, in this process and its children: the fixture rdma_transport's, else the first."""
    return os.environ.get(VARIABLE, RDMA_TRANSPORTS[0])


PACE = int(os.environ.get("RMEMCACHED_TEST_PACE", "1"))
"""How many times slower than usual this machine is, such as an emulated one. Tests repeat that much less."""


def rounds(count: int) -> int:
    """The number of repetitions where a machine of usual speed makes `count`."""
    return max(count // PACE, min(count, 3))


def within(seconds: float) -> float:
    """The time limit for work that a machine of usual speed does within `seconds`."""
    return seconds * PACE


def some(items: Sequence[Item]) -> list[Item]:
    """All items, or on a slow machine every PACE-th and the last."""
    return [item for i, item in enumerate(items) if i % PACE == 0 or i == len(items) - 1]

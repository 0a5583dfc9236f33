"""-c, where several threads count connections at the same time."""

from __future__ import annotations

import os
import threading

import pytest

from rmemcached.server._testing import Connections

TIMES = 1_000_000


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_no_two_threads_take_the_last_place() -> None:
    """No two workers admit a connection to the last place, while lanes come and go without end."""
    connections = Connections(1)
    workers = [threading.Thread(target=connections.come_and_go, args=(TIMES,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert connections.rejected > 0
    assert connections.most == 1

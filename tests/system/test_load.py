"""64 RDMA clients in several processes and 200 TCP clients at once: no wrong byte, no stall, nothing left behind.

RMEMCACHED_LOAD_SECONDS sets for how long (20; less on a slow machine). script/soak and script/torture take longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from daemon_tools import (
    GONE_WITHIN,
    Conversation,
    child,
    descriptors,
    eventually,
    finished,
    rdma_at_rest,
    rdma_client,
    threads,
)
from servers import Server
from transport import PACE, within

pytestmark = pytest.mark.usefixtures("rdma_transport")

SECONDS = float(os.environ.get("RMEMCACHED_LOAD_SECONDS") or max(20 / PACE, 6))
RDMA = (16,) * (4 if PACE == 1 else 2)  # clients per process
TCP = (100,) * (2 if PACE == 1 else 1)
LONGEST = within(10.0)  # seconds: all clients share two cores with the daemon


# The second run is short, has checksums, and so little memory that items are evicted all the time.
@pytest.mark.device("load by many processes")
@pytest.mark.parametrize(
    ("seconds", "flags"),
    [(SECONDS, ("-m", "256")), (min(SECONDS, 4.0), ("-m", "16", "-o", "rdma_crc"))],
    ids=["long", "evicting"],
)
def test_rdma_and_tcp_together(
    rmemcached_server: Callable[..., Server], seconds: float, flags: tuple[str, ...]
) -> None:
    server = rmemcached_server("-t", "4", "-c", "1024", "-o", "rdma_direct_linger=0", *flags)
    with Conversation(server) as control, ExitStack() as stack:
        # The connection that awaited the daemon's start must be gone.
        eventually(lambda: control.number("curr_connections") == 1)
        before = descriptors(server.pid), threads(server.pid)
        groups = [("rdma", count) for count in RDMA] + [("tcp", count) for count in TCP]
        processes = [
            stack.enter_context(child("load_clients.py", server.host, server.port, kind, count, seconds, seed))
            for seed, (kind, count) in enumerate(groups)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        assert control.stats("rdma")["rdma_streams"] == str(sum(RDMA))
        everybody = sum(RDMA) + sum(TCP) + 1
        eventually(lambda: control.number("curr_connections") == everybody)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(finished(process, seconds + within(60))) for process in processes]
        for (kind, _), result in zip(groups, results, strict=True):
            assert result["wrong"] == [], (kind, result["wrong"][:5])
            assert result["operations"] > 50 * seconds / PACE, (kind, result)
            assert result["hits"] > 0
            assert result["full"] == 0 or "16" in flags
            assert result["longest"] < LONGEST, (kind, result)
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        eventually(lambda: control.number("curr_connections") == 1)
        if "16" in flags and PACE == 1:
            assert control.number("evictions") > 0
        found = control.stats("rdma")
        for name in (
            "rdma_read_errors",
            "rdma_write_errors",
            "rdma_exchange_errors",
            "iw_terminates_sent",
            "shm_terminates_sent",
        ):
            assert found[name] == "0", found
        eventually(lambda: descriptors(server.pid) <= before[0] and threads(server.pid) <= before[1])
        with rdma_client(server) as client:
            assert client.flush_all()
            assert client.set("after", bytes(1_000_000))
            assert client.get("after") == bytes(1_000_000)

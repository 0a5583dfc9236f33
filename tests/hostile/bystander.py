"""The process of a bystander: an ordinary client that gets a small value each millisecond, and times it.

    bystander.py ADDRESS PID TRANSPORT...

ADDRESS is JSON, PID the daemon's. Each line on stdin is a number of gets over each transport; the answer is a JSON
object: for each transport the p50, p99 and longest time in seconds, and the p99 of the wall clock.

From a time is taken off what the daemon's workers and this thread spent on a processor's queue meanwhile. The kernel
adds to that count when a thread gets the processor: a worker has it before it reads the request, this thread before it
sees the reply.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from transport import within

from rmemcached.client import Client

KEY, VALUE = "bystander", b"x" * 100


class Queued:
    """Nanoseconds for which threads were ready to run and waited for a processor."""

    def __init__(self, pid: int) -> None:
        workers = [
            task / "schedstat"
            for task in Path(f"/proc/{pid}/task").iterdir()
            if (task / "comm").read_text() == "mc-worker\n"
        ]
        assert workers, "the daemon has no thread mc-worker"
        own = Path(f"/proc/self/task/{os.getpid()}/schedstat")
        self.files = [os.open(path, os.O_RDONLY) for path in (*workers, own)]

    def read(self) -> int:
        return sum(int(os.pread(file, 64, 0).split()[1]) for file in self.files)


def part(times: list[float], percent: int) -> float:
    """The time that so many percent of the gets did not exceed."""
    return times[(len(times) * percent + 99) // 100 - 1]


def measure(client: Client, queued: Queued) -> tuple[float, float]:
    """(seconds without waiting for a processor, seconds) of one get."""
    before = queued.read()
    began = time.perf_counter()
    value = client.get(KEY)
    wall = time.perf_counter() - began
    assert value == VALUE, value
    return max(wall - (queued.read() - before) / 1e9, 0.0), wall


def main() -> None:
    address, pid, *transports = sys.argv[1:]
    server = json.loads(address)
    server = server if isinstance(server, str) else tuple(server)
    clients = {}
    for name in transports:
        client = Client(
            server,
            transport="tcp" if name in ("tcp", "unix") else name,
            timeout=within(30.0),
            connect_timeout=within(10.0),
            default_noreply=False,
        )
        assert client.set(KEY, VALUE)
        clients[name] = client
    queued = Queued(int(pid))
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for _ in range(int(line)):
            for name, client in clients.items():
                time.sleep(0.001)
                found[name].append(measure(client, queued))
        answer = {}
        for name, pairs in found.items():
            net, wall = (sorted(times) for times in zip(*pairs, strict=True))
            answer[name] = [part(net, 50), part(net, 99), net[-1], part(wall, 99)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

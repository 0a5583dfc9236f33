"""The process of a bystander: an ordinary client that gets a small value each millisecond, by `gat`, which asks the
daemon, and measures the time.

    bystander.py ADDRESS PID TRANSPORT...

ADDRESS is JSON, PID the daemon's. Each line on stdin is a number of gets over each transport; the answer is a JSON
object: for each transport the p50, p99 and longest time in seconds, and the p99 of the wall clock.

From each time is subtracted the time that the connection's worker and this thread spent meanwhile on a processor's
queue. The kernel adds to that count when a thread gets the processor: a worker has the processor before reading the
request, this thread before seeing the reply. The bystander finds the worker of its connection at the beginning, before
any other client asks for anything: only this worker works.
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
IDENTIFY_SECONDS = 0.1


def workers(pid: int) -> list[Path]:
    """The schedstat file of each of the daemon's workers: nanoseconds run, nanoseconds waited, number of runs."""
    found = [
        task / "schedstat"
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text() == "mc-worker\n"
    ]
    assert found, "the daemon has no thread mc-worker"
    return found


def worker_of(client: Client, pid: int) -> Path:
    """The client's worker. Meanwhile no other worker may be busy."""
    found = workers(pid)
    if len(found) == 1:
        return found[0]
    before = [int(path.read_text().split()[0]) for path in found]
    end = time.monotonic() + IDENTIFY_SECONDS
    while time.monotonic() < end:
        client.gat(KEY)
    ran = [int(path.read_text().split()[0]) - was for path, was in zip(found, before, strict=True)]
    assert sum(ran) < 1.5 * max(ran), f"the workers have run for {ran} ns: which one serves the connection?"
    return found[ran.index(max(ran))]


class Queued:
    """Nanoseconds for which a worker and this thread were ready to run and waited for a processor."""

    def __init__(self, worker: Path) -> None:
        own = Path(f"/proc/self/task/{os.getpid()}/schedstat")
        self.files = [os.open(path, os.O_RDONLY) for path in (worker, own)]

    def read(self) -> int:
        return sum(int(os.pread(file, 64, 0).split()[1]) for file in self.files)


def standing(pid: int) -> str:
    """The state of each thread of the daemon. R: ready to run; if the thread does not go on, others have the
    processors. T: stopped."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        found.append(f"{name} {rest.split()[0]} in {(task / 'wchan').read_text()}")
    return ", ".join(found)


def part(times: list[float], percent: int) -> float:
    """The time not exceeded by so many percent of the gets."""
    return times[(len(times) * percent + 99) // 100 - 1]


def measure(client: Client, queued: Queued, pid: int) -> tuple[float, float]:
    """(seconds without waiting for a processor, seconds) of a get."""
    before = queued.read()
    began = time.perf_counter()
    try:
        value = client.gat(KEY)
    except Exception as error:
        # The states are read before the count: a ready worker adds to the count when going on.
        threads = standing(pid)
        error.add_note(
            f"after {time.perf_counter() - began:.1f} s, of which the worker and this thread waited for a processor for"
            f" {(queued.read() - before) / 1e9:.1f} s and, if the worker is ready (R), longer; the daemon: {threads}"
        )
        raise
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
        clients[name] = client, Queued(worker_of(client, int(pid)))
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for _ in range(int(line)):
            for name, (client, queued) in clients.items():
                time.sleep(0.001)
                try:
                    found[name].append(measure(client, queued, int(pid)))
                except Exception as error:
                    error.add_note(f"over {name}, after {len(found[name])} gets of this round")
                    raise
        answer = {}
        for name, pairs in found.items():
            net, wall = (sorted(times) for times in zip(*pairs, strict=True))
            answer[name] = [part(net, 50), part(net, 99), net[-1], part(wall, 99)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

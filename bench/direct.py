#!/usr/bin/env python3
"""Gets that ask nobody (`-o rdma_direct`, docs/direct-reads.md), beside gets that ask, in one run.

Reads of 100 B at C speed and from Python, back to back and with pauses, of Client and AsyncClient; of 1 MB beside one
memcpy, and views of it; by several processes; by READs over devices, over "verbs" beside perftest's READs of the same
sizes; and what they cost the daemon: CPU for hits and sets, memory for each item. The last column has the bounds; the
exit status is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rmemcached.bench.figures import add_json, put_out
from rmemcached.bench.servers import Server, start_rmemcached
from rmemcached.client import AsyncClient, Client, _load

VALUE = b"v" * 100
LARGE = os.urandom(1_000_000)
PAUSES = (0.0, 10e-6, 1e-3, 10e-3)
READERS = 8
ITEM = 176  # bytes of an item with a key of 4 B and this value, and its seal
KEYS = [b"key-%d" % number for number in range(10_000)]


class Row(NamedTuple):
    """One figure. bound: the most that it may be; with a minus sign: the least."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    def holds(self) -> bool:
        if self.bound is None:
            return True
        return self.value <= self.bound if self.bound >= 0 else self.value >= -self.bound


def connect(server: Server) -> Client:
    """A Client over shared memory that has a connection."""
    client = Client(server.address, transport="soft_shm", timeout=20, default_noreply=False)
    client.version()
    return client


def microseconds(operation: Callable[[], object], seconds: float, units: int = 1000) -> float:
    """The median time of one of `units` operations in a row."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(units):
            operation()
        times.append((time.perf_counter() - begin) / units)
    return statistics.median(times) * 1e6


def small_reads(direct: Server, asked: Server, seconds: float) -> list[Row]:
    rows = []
    with connect(direct) as client, connect(asked) as other:
        for one in (client, other):
            one.set(b"key", VALUE)
        for pause in PAUSES:
            took = statistics.median(_load.read_direct(client, b"key", seconds, pause)) / 1000
            rows.append(Row(f"get 100 B, C, {pause * 1e6:g} us apart", took, "us", 0.4))
        rows.append(Row("get 100 B, Python", microseconds(lambda: client.get(b"key"), seconds), "us", 0.8))
        rows.append(Row("get 100 B, Python, asked", microseconds(lambda: other.get(b"key"), seconds), "us"))
        rows.append(Row("gets 100 B, Python", microseconds(lambda: client.gets(b"key"), seconds), "us", 0.8))
        into = bytearray(100)
        rows.append(
            Row("get_into 100 B, Python", microseconds(lambda: client.get_into(b"key", into), seconds), "us", 0.8)
        )
        many = [name.decode() for name in KEYS[:100]]
        for one in (client, other):
            one.set_many(dict.fromkeys(many, VALUE))
        rows.append(Row("get_many(100), a key", microseconds(lambda: client.get_many(many), seconds, 10) / 100, "us"))
        rows.append(
            Row("get_many(100), a key, asked", microseconds(lambda: other.get_many(many), seconds, 10) / 100, "us")
        )
    return rows


async def await_reads(server: Server, seconds: float) -> tuple[float, float]:
    """The median time of a get that a task awaits, and of a key of get_many, in microseconds."""
    many = [name.decode() for name in KEYS[:100]]
    async with AsyncClient(server.address, transport="soft_shm", timeout=20, default_noreply=False) as client:
        await client.set(b"key", VALUE)
        await client.set_many(dict.fromkeys(many, VALUE))
        found = []
        for units, call in ((200, lambda: client.get(b"key")), (5, lambda: client.get_many(many))):
            times = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                for _ in range(units):
                    await call()
                times.append((time.perf_counter() - begin) / units)
            found.append(statistics.median(times) * 1e6)
    return found[0], found[1] / len(many)


def awaited_reads(direct: Server, asked: Server, seconds: float) -> list[Row]:
    rows = []
    for server, how in ((direct, ""), (asked, ", asked")):
        one, of_many = asyncio.run(await_reads(server, seconds))
        rows.append(Row(f"AsyncClient.get 100 B{how}", one, "us", None if how else 0.8))
        rows.append(Row(f"AsyncClient.get_many(100), a key{how}", of_many, "us"))
    return rows


def large_reads(direct: Server, asked: Server, seconds: float) -> list[Row]:
    copied = bytearray(LARGE)
    with connect(direct) as client, connect(asked) as other:
        for one in (client, other):
            one.set("large", LARGE)
        client.set("another", LARGE)
        # Of two in turn none is seen any more when it is looked at again: the daemon is asked.
        names = itertools.cycle(("large", "another"))
        memcpy = microseconds(lambda: bytes(copied), seconds, 100)
        read = microseconds(lambda: client.get("large"), seconds, 100)
        into = bytearray(len(LARGE))
        moved = microseconds(lambda: memoryview(into).__setitem__(slice(None), copied), seconds, 100)
        received = microseconds(lambda: client.get_into("large", into), seconds, 100)
        return [
            Row("get 1 MB, of one memcpy", memcpy / read, "", -0.8),
            Row("get_into 1 MB, of one memcpy", moved / received, "", -0.8),
            Row("get 1 MB, asked, of one memcpy", memcpy / microseconds(lambda: other.get("large"), seconds, 100), ""),
            Row("memcpy of 1 MB", memcpy, "us"),
            Row("get_view 1 MB, seen lately", microseconds(lambda: client.get_view("large"), seconds), "us", 3.0),
            Row("get_view 1 MB, asked", microseconds(lambda: client.get_view(next(names)), seconds), "us", 3.0),
        ]


def read_all(address: Any, seconds: float, results: Any) -> None:
    """One reader process."""
    client = Client(address, transport="soft_shm", timeout=20)
    client.version()
    results.put((*_load.count_direct(client, KEYS, seconds), time.process_time()))
    client.close()


def reader_processes(direct: Server, seconds: float) -> list[Row]:
    with connect(direct) as client:
        client.set_many(dict.fromkeys([name.decode() for name in KEYS], VALUE))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    readers = [context.Process(target=read_all, args=(direct.address, seconds, results)) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    counted = [results.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    cores = min(len(os.sched_getaffinity(0)), READERS)
    total = sum(read - asked for read, asked, _ in counted) / seconds / cores / 1e6
    return [Row(f"{READERS} processes, C, each core", total, "M/s", -2.0)]


def set_cpu(one: Server, other: Server, seconds: float) -> float:
    """The daemon's CPU for a set, of what it takes with the other server."""
    ratios = []
    for _ in range(5):
        spent = []
        for server in (one, other):
            with server.connect(30) as plain:
                begin = server.cpu_seconds()
                done = _load.run([plain.fileno()], seconds, keys=100_000, depth=32, set_every=1)
                spent.append((server.cpu_seconds() - begin) / done["sets"])
        ratios.append(spent[0] / spent[1])
    return statistics.median(ratios)


def daemon_cpu(direct: Server, asked: Server, seconds: float) -> list[Row]:
    """CPU of the daemon for as many hits, and for as many sets."""
    rows = []
    hits = 200_000
    cost = {}
    for server in (direct, asked):
        with connect(server) as client:
            for name in KEYS[:100]:
                client.set(name, VALUE)
            before = server.cpu_seconds()
            for number in range(hits):
                client.get(KEYS[number % 100])
            cost[server.pid] = server.cpu_seconds() - before
    rows.append(Row("daemon CPU of a hit, of one that asks", cost[direct.pid] / cost[asked.pid], "", 0.01))
    rows.append(Row("daemon CPU of a set, of one without the index", set_cpu(direct, asked, seconds), "", 1.15))
    return rows


def remote_reads(remote: Server, transport: str, seconds: float) -> list[Row]:
    """Gets by READs over a device, beside gets that ask over the same one."""
    rows = []
    many = dict.fromkeys([name.decode() for name in KEYS[:100]], VALUE)
    for reads, name in ((transport, ""), ("", ", asked")):
        os.environ["RMEMCACHED_DIRECT"] = reads
        with Client(remote.address, transport=transport, timeout=20, default_noreply=False) as client:
            client.set_many(many)
            client.get_many(many)
            took = microseconds(lambda: client.get("key-0"), seconds, 100)
            rows.append(Row(f"get 100 B, Python, {transport}{name}", took, "us"))
            took = microseconds(lambda: client.get_many(many), seconds, 10) / 100
            rows.append(Row(f"get_many(100), a key, {transport}{name}", took, "us"))
    return rows


def bare_read(size: int) -> float:
    """The median time of a READ between two of perftest's processes, in microseconds."""
    command = ["ib_read_lat", "-F", "-s", str(size), "-n", "3000", *os.environ.get("PERFTEST_OPTIONS", "").split()]
    cores = sorted(os.sched_getaffinity(0))
    found = subprocess.PIPE
    with subprocess.Popen([*pinned(cores[0]), *command], stdout=found, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        # It listens when it has said what it will do, which it does not flush: the client tries again.
        for _ in range(200):
            client = [*pinned(cores[-1]), *command, "127.0.0.1"]
            done = subprocess.run(client, stdout=found, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode == 0:
                break
            if server.poll() is not None:
                raise SystemExit(f"ib_read_lat failed:\n{server.stdout.read()}\n{done.stdout}")
            time.sleep(0.05)
        server.communicate()
    row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(size)])
    return float(row[4])


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def device_reads(remote: Server, seconds: float) -> list[Row]:
    """At C speed over verbs, beside bare READs of the same sizes; each end polls on a processor of its own."""
    cores = sorted(os.sched_getaffinity(0))
    subprocess.run(["taskset", "-a", "-p", "-c", str(cores[0]), str(remote.pid)], check=True, capture_output=True)
    os.environ["RMEMCACHED_DIRECT"] = "verbs"
    took: dict[bool, list[float]] = {False: [], True: []}
    bare: dict[int, list[float]] = {}
    os.sched_setaffinity(0, {cores[-1]})
    try:
        with Client(remote.address, transport="verbs", timeout=20, default_noreply=False, spin=10000) as client:
            client.set("read", VALUE)
            for _ in range(5):
                client.get("read")
            chunks = [value for name, value in client.stats("slabs").items() if name.endswith(b":chunk_size")]
            item = next(size for size in sorted(map(int, chunks)) if size >= ITEM)
            for _ in range(5):
                for anew, times in took.items():
                    times.append(statistics.median(_load.read_remote(client, b"read", seconds, anew)) / 1000)
                os.sched_setaffinity(0, set(cores))
                for size in (128, item):
                    bare.setdefault(size, []).append(bare_read(size))
                os.sched_setaffinity(0, {cores[-1]})
    finally:
        os.sched_setaffinity(0, set(cores))
    bucket, chunk = (statistics.median(times) for times in bare.values())
    one, two = statistics.median(took[False]), statistics.median(took[True])
    return [
        Row("READ of 128 B, perftest", bucket, "us"),
        Row(f"READ of {item} B, perftest", chunk, "us"),
        Row("get 100 B, C, verbs, one READ", one, "us"),
        Row("the same, of perftest's READ", one / chunk, "", 1.1),
        Row("get 100 B, C, verbs, two READs", two, "us"),
        Row("the same, of perftest's two READs", two / (bucket + chunk), "", 1.1),
    ]


def memory(items: int) -> list[Row]:
    """What the index adds for each of so many items."""
    with start_rmemcached("-m", "1024", "-t", "1", "-o", "rdma_direct") as server, server.connect(30) as plain:
        for first in range(0, items, 1000):
            plain.sendall(_load.store_commands(first, 1000))
            left = 8 * 1000
            while left:
                left -= len(plain.recv(left))
        stats = server.stats()
        bytes_for_each = 128 * int(stats["direct_buckets"]) / items
        return [
            Row("memory of the index for an item", bytes_for_each, "B", 12.0),
            Row("items not in the index", 100 * (1 - int(stats["direct_items"]) / int(stats["curr_items"])), "%"),
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row (default %(default)s)")
    parser.add_argument("--items", type=int, default=1_000_000, help="whose memory is measured (default %(default)s)")
    parser.add_argument(
        "--transports",
        default="soft_iw",
        help="over which values are read by READs: soft_iw, verbs (default %(default)s)",
    )
    add_json(parser)
    options = parser.parse_args()
    flags = ("-m", "512", "-t", "1")
    with start_rmemcached(*flags, "-o", "rdma_direct") as direct, start_rmemcached(*flags) as asked:
        rows = small_reads(direct, asked, options.seconds)
        rows += awaited_reads(direct, asked, options.seconds)
        rows += large_reads(direct, asked, options.seconds)
        rows += reader_processes(direct, options.seconds)
        rows += daemon_cpu(direct, asked, options.seconds)
        with start_rmemcached(*flags, "-o", "rdma_direct_remote") as remote:
            rows += [
                Row(
                    "daemon CPU of a set with a seal, of one without", set_cpu(remote, asked, options.seconds), "", 1.15
                )
            ]
            for transport in options.transports.split(","):
                rows += remote_reads(remote, transport, options.seconds)
            if "verbs" in options.transports.split(",") and shutil.which("ib_read_lat"):
                rows += device_reads(remote, options.seconds)
    rows += memory(options.items)
    lines = [f"{'':46} {'':>10}        bound"]
    for row in rows:
        bound = "" if row.bound is None else f"{'>=' if row.bound < 0 else '<='} {abs(row.bound):g}"
        lines.append(f"{row.name:46} {row.value:10.3f} {row.unit:4} {bound:>8}{'' if row.holds() else '  MISSED'}")
    put_out(options, {row.name: row.value for row in rows}, "\n".join(lines))
    return 0 if all(row.holds() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

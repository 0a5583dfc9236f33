"""`rmemcached-bench direct`: direct reads (`-o rdma_direct`, docs/direct-reads.md), beside gets that ask the daemon.

The command measures reads of 100 B at C speed and from Python, back to back and with pauses, of Client and of
AsyncClient; reads of 1 MB beside one memcpy, and views of 1 MB; reads by several processes; READs over devices, over
"verbs" beside perftest's READs of the same sizes; and the costs to the daemon: CPU for hits and sets, and memory for
each item. The last column has the bounds; the exit status is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from rmemcached import __version__
from rmemcached.bench import _direct_reads, _floor, _load
from rmemcached.bench.arguments import names_of
from rmemcached.bench.contenders import pinned
from rmemcached.bench.cpu import fill
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import CALL, TEXTS
from rmemcached.bench.measure import Steps
from rmemcached.bench.processes import uninterrupted
from rmemcached.bench.servers import Server, start_rmemcached
from rmemcached.bench.sheet import Sheet
from rmemcached.client import AsyncClient, Client

HELP = "gets that ask nobody, beside gets that ask: times, CPU, memory, and their bounds"
AT_LEAST = {"items": 1000}
REFERENCE = "asked"
TRANSPORTS = ("soft_iw", "verbs")
FLAGS = ("-m", "512", "-t", "1")
MEMCPY, READ = "floor: memcpy", "floor: perftest"
VALUE = b"v" * 100
LARGE = os.urandom(1_000_000)
PAUSES = (0.0, 10e-6, 1e-3, 10e-3)
READERS = 8
ITEM = 176  # bytes of an item with a key of 4 B and this value, and its seal
SMALL, LARGE_GROUP, COST, DEVICES = "small values", "large values", "what it costs the daemon", "by READs"
KEYS = [b"key-%d" % number for number in range(10_000)]


def connect(server: Server) -> Client:
    """A connected Client over shared memory."""
    client = Client(server.address, transport="soft_shm", timeout=20, default_noreply=False)
    client.version()
    return client


def microseconds(operation: Callable[[], object], seconds: float, units: int = 1000) -> float:
    """The median time of a call, over runs of `units` calls."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(units):
            operation()
        times.append((time.perf_counter() - begin) / units)
    return statistics.median(times) * 1e6


def small_reads(direct: Server, asked: Server, seconds: float, sheet: Sheet) -> None:
    many = [name.decode() for name in KEYS[:100]]
    with connect(direct) as client, connect(asked) as other:
        for one in (client, other):
            one.set(b"key", VALUE)
            one.set_many(dict.fromkeys(many, VALUE))
        for pause in PAUSES:
            took = statistics.median(_direct_reads.read_direct(client, b"key", seconds, pause)) / 1000
            sheet.add(f"get 100 B, C, {pause * 1e6:g} us apart", "direct", took, "us", group=SMALL, bound="<= 0.4")
        into = bytearray(100)
        copier = _floor.Copier(len(VALUE))
        copier.set("key", VALUE)
        contenders: list[tuple[Any, str]] = [(client, "direct"), (other, "asked"), (copier, CALL)]
        for one, name in sheet.record.round.shuffled(contenders):
            if one is copier:
                took = microseconds(functools.partial(copier.get, "key"), seconds)
                sheet.add("get 100 B, Python", CALL, took, "us", group=SMALL)
                continue
            rows: dict[str, tuple[Callable[[], object], str]] = {
                "get 100 B, Python": (functools.partial(one.get, b"key"), "<= 0.8"),
                "gets 100 B, Python": (functools.partial(one.gets, b"key"), "<= 0.8"),
                "get_into 100 B, Python": (functools.partial(one.get_into, b"key", into), "<= 0.8"),
            }
            for row, (call, bound) in rows.items():
                took = microseconds(call, seconds)
                floor = CALL if row.startswith("get 100") else ""
                sheet.add(row, name, took, "us", group=SMALL, bound=bound if one is client else "", floor=floor)
            took = microseconds(functools.partial(one.get_many, many), seconds, 10) / 100
            sheet.add("get_many(100), a key", name, took, "us", group=SMALL)


async def await_reads(server: Server, seconds: float) -> tuple[float, float]:
    """The median time of an awaited get, and of a key of get_many, in microseconds."""
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


def awaited_reads(direct: Server, asked: Server, seconds: float, sheet: Sheet) -> None:
    for server, name in sheet.record.round.shuffled(((direct, "direct"), (asked, "asked"))):
        one, of_many = asyncio.run(await_reads(server, seconds))
        bound = "<= 0.8" if server is direct else ""
        sheet.add("AsyncClient.get 100 B", name, one, "us", group=SMALL, bound=bound)
        sheet.add("AsyncClient.get_many(100), a key", name, of_many, "us", group=SMALL)


def large_reads(direct: Server, asked: Server, seconds: float, sheet: Sheet) -> None:
    copied = bytearray(LARGE)
    into = bytearray(len(LARGE))
    with connect(direct) as client, connect(asked) as other:
        for one in (client, other):
            one.set("large", LARGE)
        client.set("another", LARGE)
        # The views alternate between two values: a view is released before the next view of the same value. So
        # the client asks the daemon for each view.
        names = itertools.cycle(("large", "another"))
        rows: list[tuple[str, str, Callable[[], object]]] = [
            ("get 1 MB", MEMCPY, lambda: bytes(copied)),
            ("get 1 MB", "direct", lambda: client.get("large")),
            ("get 1 MB", "asked", lambda: other.get("large")),
            ("get_into 1 MB", MEMCPY, lambda: memoryview(into).__setitem__(slice(None), copied)),
            ("get_into 1 MB", "direct", lambda: client.get_into("large", into)),
        ]
        for row, name, call in sorted(sheet.record.round.shuffled(rows), key=lambda said: said[0]):
            took = microseconds(call, seconds, 100)
            # The bound of the time is 1 / 0.8: at least 0.8 of memcpy's speed.
            bound = f"<= 1.25 of {MEMCPY}" if name == "direct" else ""
            sheet.add(row, name, took, "us", group=LARGE_GROUP, bound=bound, floor="" if name == MEMCPY else MEMCPY)
        took = microseconds(lambda: client.get_view("large"), seconds)
        sheet.add("get_view 1 MB, seen lately", "direct", took, "us", group=LARGE_GROUP, bound="<= 3")
        took = microseconds(lambda: client.get_view(next(names)), seconds)
        sheet.add("get_view 1 MB, not seen lately", "direct", took, "us", group=LARGE_GROUP, bound="<= 3")


def read_all(address: Any, seconds: float, together: Any, results: Any) -> None:
    """A reader process, which begins when all readers are ready."""
    client = Client(address, transport="soft_shm", timeout=20)
    client.version()
    together.wait(60)
    results.put((*_direct_reads.count_direct(client, KEYS, seconds), time.process_time()))
    client.close()


def reader_processes(direct: Server, seconds: float, sheet: Sheet) -> None:
    with connect(direct) as client:
        client.set_many(dict.fromkeys([name.decode() for name in KEYS], VALUE))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (direct.address, seconds, context.Barrier(READERS), results)
    readers = [context.Process(target=read_all, args=arguments) for _ in range(READERS)]
    resource_tracker.ensure_running()  # before SIGINT is blocked: the tracker's start unblocks SIGINT
    try:
        with uninterrupted():
            for reader in readers:
                reader.start()
        counted = [results.get(timeout=60) for _ in readers]
    except BaseException:
        for reader in readers:
            if reader.pid is not None:
                reader.kill()
        raise
    for reader in readers:
        reader.join()
    cores = min(len(os.sched_getaffinity(0)), READERS)
    total = sum(read - asked for read, asked, _ in counted) / seconds / cores / 1e6
    name = f"get 100 B, C, {READERS} processes, each core"
    sheet.add(name, "direct", total, "M/s", group=SMALL, better="higher", bound=">= 2")


def set_cpu(servers: dict[str, Server], seconds: float, sheet: Sheet) -> None:
    """The daemons' CPU for a set, while a client with direct reads is connected."""
    for name, server in sheet.record.round.shuffled(servers.items()):
        with connect(server), server.connect(30) as plain:
            begin = server.cpu_seconds()
            load = _load.Load(keys=100_000, depth=32, batch=True, sets=1.0)
            load.add_socket(plain)
            with load:
                done = load.run(seconds)
            spent = (server.cpu_seconds() - begin) / done["sets"] * 1e6
        bound = "" if name == "asked" else "<= 1.15 of asked"
        sheet.add("daemon's CPU of a set", name, spent, "us", group=COST, bound=bound)


def hit_cpu(servers: dict[str, Server], sheet: Sheet) -> None:
    """The daemons' CPU for the same number of hits."""
    hits = 200_000
    for name, server in sheet.record.round.shuffled(servers.items()):
        with connect(server) as client:
            for key in KEYS[:100]:
                client.set(key, VALUE)
            before = server.cpu_seconds()
            for number in range(hits):
                client.get(KEYS[number % 100])
            spent = (server.cpu_seconds() - before) / hits * 1e6
        bound = "" if name == "asked" else "<= 0.01 of asked"
        sheet.add("daemon's CPU of a hit", name, spent, "us", group=COST, bound=bound)


@contextlib.contextmanager
def reading(transport: str) -> Iterator[None]:
    """Clients made meanwhile read by READs over this transport; "": they ask."""
    before = os.environ.get("RMEMCACHED_DIRECT")
    os.environ["RMEMCACHED_DIRECT"] = transport
    try:
        yield
    finally:
        if before is None:
            del os.environ["RMEMCACHED_DIRECT"]
        else:
            os.environ["RMEMCACHED_DIRECT"] = before


def remote_reads(remote: Server, transport: str, seconds: float, sheet: Sheet) -> None:
    """Gets by READs over a device, beside asking gets over the same device."""
    many = dict.fromkeys([name.decode() for name in KEYS[:100]], VALUE)
    for reads, name in sheet.record.round.shuffled(((transport, "direct"), ("", "asked"))):
        with (
            reading(reads),
            Client(remote.address, transport=transport, timeout=20, default_noreply=False) as client,
        ):
            client.set_many(many)
            client.get_many(many)
            took = microseconds(functools.partial(client.get, "key-0"), seconds, 100)
            sheet.add(f"get 100 B, Python, {transport}", name, took, "us", group=DEVICES)
            took = microseconds(functools.partial(client.get_many, many), seconds, 10) / 100
            sheet.add(f"get_many(100), a key, {transport}", name, took, "us", group=DEVICES)


def bare_read(size: int) -> float:
    """The median time of a READ between two of perftest's processes, in microseconds."""
    command = ["ib_read_lat", "-F", "-s", str(size), "-n", "3000", *os.environ.get("PERFTEST_OPTIONS", "").split()]
    cores = sorted(os.sched_getaffinity(0))
    found = subprocess.PIPE
    with subprocess.Popen([*on_core(cores[0]), *command], stdout=found, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        # The client tries again until the server listens: the server does not flush its output, which would show this.
        for _ in range(200):
            client = [*on_core(cores[-1]), *command, "127.0.0.1"]
            done = subprocess.run(client, stdout=found, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode == 0:
                break
            if server.poll() is not None:
                raise BenchError(f"ib_read_lat failed:\n{server.stdout.read()}\n{done.stdout}")
            time.sleep(0.05)
        server.communicate()
    row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(size)])
    return float(row[4])


def on_core(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def beside_perftest(record: Record) -> bool:
    """Whether perftest's READs can be measured; if not, adds a note."""
    if shutil.which("ib_read_lat") is not None:
        return True
    record.note("READs over verbs stand beside no bare READ: ib_read_lat is not in PATH (apt-get install perftest)")
    return False


def device_reads(remote: Server, seconds: float, sheet: Sheet) -> None:
    """Measures READs at C speed over verbs, beside bare READs of the same sizes. Both ends poll, each on its own
    processor."""
    cores = sorted(os.sched_getaffinity(0))
    subprocess.run(["taskset", "-a", "-p", "-c", str(cores[0]), str(remote.pid)], check=True, capture_output=True)
    beside = beside_perftest(sheet.record)
    with contextlib.ExitStack() as stack:
        stack.enter_context(pinned({cores[-1]}))
        stack.enter_context(reading("verbs"))
        client = Client(remote.address, transport="verbs", timeout=20, default_noreply=False, spin=10000)
        stack.enter_context(client)
        client.set("read", VALUE)
        for _ in range(5):
            client.get("read")
        chunks = [value for name, value in client.stats("slabs").items() if name.endswith(b":chunk_size")]
        item = next(size for size in sorted(map(int, chunks)) if size >= ITEM)
        one, two = (
            statistics.median(_direct_reads.read_remote(client, b"read", seconds, new)) / 1000 for new in (False, True)
        )
        rows = {"get 100 B, C, verbs, one READ": one, "get 100 B, C, verbs, two READs": two}
        floors: dict[str, float] = {}
        if beside:
            with pinned(set(cores)):
                bucket, chunk = bare_read(128), bare_read(item)
            floors = dict(zip(rows, (chunk, bucket + chunk), strict=True))
            sheet.record.floor(READ, f"perftest's READs of the same sizes: 128 B and {item} B")
        for row, took in rows.items():
            if beside:
                sheet.add(row, READ, floors[row], "us", group=DEVICES)
            bound, floor = (f"<= 1.1 of {READ}", READ) if beside else ("", "")
            sheet.add(row, "direct", took, "us", group=DEVICES, bound=bound, floor=floor)


def memory(items: int, sheet: Sheet) -> None:
    """The memory added by the index for each of so many items."""
    with start_rmemcached("-m", "1024", "-t", "1", "-o", "rdma_direct") as server, connect(server) as client:
        client.version()
        fill(server, items)
        stats = server.stats()
        each = 128 * int(stats["direct_buckets"]) / items
        absent = 100 * (1 - int(stats["direct_items"]) / int(stats["curr_items"]))
    sheet.add("memory of the index for an item", "direct", each, "B", group=COST, bound="<= 12")
    sheet.add("items not in the index", "direct", absent, "%", group=COST)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.3, help="of each row in each round (default: %(default)s)")
    parser.add_argument("--items", type=int, default=1_000_000, help="whose memory is measured (default: %(default)s)")
    parser.add_argument(
        "--transports",
        type=names_of(TRANSPORTS),
        default=["soft_iw"],
        help=f"over which values are read by READs: {', '.join(TRANSPORTS)} (default: soft_iw)",
    )


def add_contenders(record: Record, servers: dict[str, Server]) -> None:
    clients = {"direct": "rmemcached.client, which reads the items", "asked": "rmemcached.client, which asks"}
    clients["direct, for READs"] = "rmemcached.client, which asks"
    for name, server in servers.items():
        record.contender(
            {
                "name": name,
                "server": f"rmemcached {__version__}",
                "client": clients[name],
                "command": server.command,
                "floor": False,
            }
        )
    record.floor(CALL, TEXTS[CALL])
    record.floor(MEMCPY, "one memcpy of the value, as bytes() or into a bytearray")


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    sheet = Sheet(record)
    steps = record.steps(7)
    measure_parts(options, sheet, steps)
    if record.round.number == 1:
        memory(options.items, sheet)
        steps.step("memory")
    sheet.finish()


def measure_parts(options: argparse.Namespace, sheet: Sheet, steps: Steps) -> None:
    seconds = options.seconds
    with (
        start_rmemcached(*FLAGS, "-o", "rdma_direct") as direct,
        start_rmemcached(*FLAGS, "-o", "rdma_direct=off") as asked,
        start_rmemcached(*FLAGS, "-o", "rdma_direct_remote") as remote,
    ):
        servers = {"direct": direct, "asked": asked, "direct, for READs": remote}
        add_contenders(sheet.record, servers)
        for part in (small_reads, awaited_reads, large_reads):
            part(direct, asked, seconds, sheet)
            steps.step("reads")
        reader_processes(direct, seconds, sheet)
        steps.step("processes")
        hit_cpu({"direct": direct, "asked": asked}, sheet)
        set_cpu(servers, seconds, sheet)
        steps.step("CPU")
        for transport in options.transports:
            remote_reads(remote, transport, seconds, sheet)
        if "verbs" in options.transports:
            device_reads(remote, seconds, sheet)
        steps.step("READs")

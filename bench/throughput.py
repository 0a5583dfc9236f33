"""`rmemcached-bench throughput`: requests a second of one client that always has many under way, at C speed.

A request follows as soon as a reply has come; it waits for no other. Keys are drawn at random; with many of them the
items do not stay in the processor's caches.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from typing import Any

from rmemcached.bench import _load
from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, pinned, refuse_clients, start
from rmemcached.bench.cpu import MEMORY, OPERATIONS, fill
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Case, Figure, Progress, Run, Taken, progress, take_turns

HELP = "requests a second of one client that always has many under way, at C speed"
CONTENDERS = ("soft_shm", "soft_iw", "tcp", "unix", "memcached")
FIGURES = (Figure("per_second", "1/s", "higher"), Figure("cpu_us", "us"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=numbers, default=[1000, 10000], metavar="N", help="default: 1000,10000")
    parser.add_argument("--depths", type=numbers, default=[32], help="requests under way (default: 32)")
    parser.add_argument("--sizes", type=sizes, default=[100], help="of values (default: 100)")
    parser.add_argument(
        "--operations",
        type=names_of(tuple(OPERATIONS)),
        default=["get"],
        help="some of get, set, mixed: 9 gets to 1 set (default: get)",
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each run (default: 0.5)")
    parser.add_argument("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def run_of(client: Any, server: Any, case: Case, seconds: float) -> Run:
    cpu = getattr(server, "cpu_seconds", None)
    said = case.parameters

    def run(number: int) -> Taken:
        before = cpu() if cpu else 0.0
        load = _load.Load(
            keys=said["keys"],
            value_size=said["size"],
            sets=OPERATIONS[said["operation"]],
            depth=said["depth"],
            complete=True,
            seed=number + 1,
        )
        with load:
            load.add_client(client)
            done = load.run(seconds if number else seconds / 10)
        values = {"per_second": done["requests"] / done["seconds"]}
        if cpu:
            values["cpu_us"] = (cpu() - before) / done["requests"] * 1e6
        return Taken(values)

    return run


def cases_of(options: argparse.Namespace, size: int, cores: str) -> Iterator[Case]:
    for operation, keys, depth in itertools.product(options.operations, options.keys, options.depths):
        words = "9 gets to 1 set" if operation == "mixed" else operation
        yield Case(
            f"{words} of {size_name(size)}, {depth} under way, {keys} keys, {CORES[cores]}",
            {"operation": operation, "size": size, "keys": keys, "depth": depth, "cores": cores},
            FIGURES,
        )


def measure_placed(options: argparse.Namespace, cores: str, record: Record, bar: Progress) -> None:
    for_clients, for_servers = placement(cores)
    flags = ("-t", "1", "-m", "256", "-I", "8m")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(pinned(for_clients))
        clients, servers = {}, {}
        for contender in options.contenders:
            server = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, server))
            servers[contender.name] = server
            clients[contender.name] = stack.enter_context(contextlib.closing(connect(contender, server.address)))
        for size in options.sizes:
            for server in servers.values():
                fill(server, max(options.keys), size)
            for case in cases_of(options, size, cores):
                runs = {name: run_of(clients[name], servers[name], case, options.seconds) for name in servers}
                record.case(case, take_turns(case, runs, options.rounds, bar))


def measure(options: argparse.Namespace, record: Record) -> None:
    refuse_clients(options.contenders, "throughput")
    if max(options.keys) * (max(options.sizes) + 100) > MEMORY:
        raise BenchError(f"--keys, --sizes: all items together have {MEMORY >> 20} MB at most")
    cases = len(options.cores) * len(options.sizes) * len(options.operations) * len(options.keys) * len(options.depths)
    with progress(cases * (options.rounds + 1) * len(options.contenders)) as bar:
        for cores in options.cores:
            measure_placed(options, cores, record, bar)

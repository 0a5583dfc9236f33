"""`rmemcached-bench throughput`: requests a second of one client with many under way at all times, at C speed.

Each reply lets the next request follow at once. Keys are drawn at random; with many keys the items do not stay in the
processor's caches. The floors get as many requests in a batch, and then the next batch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from rmemcached.bench import _load
from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, pinned, refuse_clients, start
from rmemcached.bench.cpu import BATCH_MOST, MEMORY, OPERATIONS, echoing, fill_all
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import LINES, LinesClient, floor_of, floor_servers, floors_of, one_core
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, runs_of, take_turns
from rmemcached.bench.scratch import scratch

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


def floor_run(server: Any, name: str, case: Case, seconds: float) -> Run:
    """A run with as many requests at a time, to the floor of this name."""
    said = case.parameters

    def run(number: int) -> Taken:
        length = seconds if number else seconds / 10
        if name == LINES:
            with contextlib.closing(LinesClient(server.address, bytes(said["size"]))) as client:
                copies, spent = client.lines.batches(said["depth"], length)
            return Taken({"per_second": copies / spent})
        with echoing(server, 1, said["operation"], said["size"], said["depth"]) as (plain,):
            load = _load.Load(
                keys=1,
                value_size=said["size"],
                sets=OPERATIONS[said["operation"]],
                depth=said["depth"],
                batch=True,
                complete=True,
                seed=number + 1,
            )
            load.add_socket(plain)
            with load:
                before = server.cpu_seconds()
                done = load.run(length)
                used = server.cpu_seconds() - before
        return Taken({"per_second": done["requests"] / done["seconds"], "cpu_us": used / done["requests"] * 1e6})

    return run


def cases_of(options: argparse.Namespace, size: int, cores: str, floors: dict[str, str]) -> Iterator[Case]:
    for operation, keys, depth in itertools.product(options.operations, options.keys, options.depths):
        words = "9 gets to 1 set" if operation == "mixed" else operation
        yield Case(
            f"{words} of {size_name(size)}, {depth} under way, {keys} keys, {CORES[cores]}",
            {"operation": operation, "size": size, "keys": keys, "depth": depth, "cores": cores},
            FIGURES,
            # A mix has replies of several sizes, and a batch must fit into a socket's buffers.
            floors if operation != "mixed" and depth * (size + 64) <= BATCH_MOST else {},
        )


def measure_placed(options: argparse.Namespace, cores: str, record: Record, steps: Steps) -> None:
    for_clients, for_servers = placement(cores)
    flags = ("-t", "1", "-m", "256", "-I", "8m")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stack.enter_context(pinned(for_clients))
        clients, servers = {}, {}
        for contender in options.contenders:
            server = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, server, "the load generator"))
            servers[contender.name] = server
            clients[contender.name] = stack.enter_context(contextlib.closing(connect(contender, server.address)))
        floors = floors_of(options.contenders)
        yields = one_core(for_clients, for_servers)
        bare = stack.enter_context(floor_servers([*floors.values()], folder, for_servers, yields, record))
        for size in options.sizes:
            fill_all(servers, max(options.keys), size)
            for case in cases_of(options, size, cores, floors):
                runs = {name: run_of(clients[name], servers[name], case, options.seconds) for name in servers}
                for name in bare if case.floors else ():
                    runs[name] = floor_run(bare[name], name, case, options.seconds)
                record.case(case, take_turns(case, runs, record.round, steps))


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    refuse_clients(options.contenders, "throughput")
    if max(options.keys) * (max(options.sizes) + 100) > MEMORY:
        raise BenchError(f"--keys, --sizes: all items together have {MEMORY >> 20} MB at most")
    cases = len(options.cores) * len(options.sizes) * len(options.operations) * len(options.keys) * len(options.depths)
    runs = len(options.contenders) + len(set(filter(None, map(floor_of, options.contenders))))
    steps = record.steps(cases * runs * runs_of(record.round))
    for where in options.cores:
        measure_placed(options, where, record, steps)

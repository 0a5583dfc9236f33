"""`rmemcached-bench latency`: get and set from Python, one at a time.

Plain TCP is several times faster or slower depending on whether client and server share a core, and the scheduler may
decide that differently for each server. --cores decides it for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import Any

from rmemcached.bench import _floor
from rmemcached.bench.arguments import CORES, cores, names_of, placement, size_name, sizes
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, pinned, start
from rmemcached.bench.document import Record
from rmemcached.bench.floor import LINES, LinesClient, echo_connection, floor_servers, floors_of, one_core, texts
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, need_histograms, runs_of, take_turns
from rmemcached.bench.scratch import scratch

HELP = "get and set from Python, one at a time"
AT_LEAST = {"seconds": 0}  # with 0, --least decides
CONTENDERS = ("soft_shm", "soft_iw", "tcp", "memcached", "memcached+pymemcache")
OPERATIONS = ("get", "set")
FLAGS = ("-t", "1", "-m", "256", "-I", "8m")
FIGURES = (Figure("p50_us", "us"), Figure("per_second", "1/s", "higher"))
VALUES = 4  # different values of a size
WARM_UP = 20
KEY = "key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=sizes, default=sizes("8,100,1k,64k,1m"), help="default: 8,100,1k,64k,1m")
    parser.add_argument("--operations", type=names_of(OPERATIONS), default=list(OPERATIONS), help="default: get,set")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each run (default: 0.1)")
    parser.add_argument("--least", type=int, default=20, help="operations in each run at least (default: 20)")
    parser.add_argument(
        "--pause", type=int, default=0, metavar="US", help="microseconds of sleep before each operation"
    )
    parser.add_argument("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def sample(
    client: Any, operation: str, key: str, values: list[bytes], seconds: float, least: int, pause: float = 0
) -> list[int]:
    """Latencies in nanoseconds of an operation, repeated for `seconds` and at least `least` times.

    pause: seconds of sleep before each operation, outside the measured time. Raises ValueError for a changed value.
    """
    latencies = []
    get, put = client.get, client.set
    put(key, values[0])
    end = perf_counter_ns() + int(seconds * 1e9)
    number = 0
    while number < least or perf_counter_ns() < end:
        value = values[number % len(values)]
        number += 1
        if pause:
            sleep(pause)
        if operation == "get":
            begin = perf_counter_ns()
            got = get(key)
            latencies.append(perf_counter_ns() - begin)
            value = values[0]
        else:
            begin = perf_counter_ns()
            put(key, value)
            latencies.append(perf_counter_ns() - begin)
            got = get(key)
        if got != value:
            raise ValueError(f"{operation} of {len(value)} bytes: a wrong value came back")
    return latencies


def taken(latencies: list[int]) -> Taken:
    ordered = sorted(latencies)
    per_second = len(ordered) / (sum(ordered) / 1e9)
    return Taken({"p50_us": ordered[len(ordered) // 2] / 1000, "per_second": per_second}, latencies)


@dataclass
class Bench:
    """The connections: clients by contender, and the servers of the floors."""

    options: argparse.Namespace
    clients: dict[str, Any]
    floors: dict[str, str]
    servers: dict[str, Any]

    def run_of(self, client: Any, operation: str, values: list[bytes]) -> Run:
        options = self.options

        def run(number: int) -> Taken:
            seconds, least = (options.seconds, options.least) if number else (0, min(options.least, WARM_UP))
            gc.disable()
            try:
                return taken(sample(client, operation, KEY, values, seconds, least, options.pause / 1e6))
            finally:
                gc.enable()

        return run

    def lines_run(self, operation: str, values: list[bytes]) -> Run:
        def run(number: int) -> Taken:
            # The server polls as long as there is a client, so each run has a new client.
            with contextlib.closing(LinesClient(self.servers[LINES].address, values[0])) as client:
                return self.run_of(client, operation, values)(number)

        return run

    def echo_run(self, name: str, operation: str, value: bytes) -> Run:
        options = self.options

        def run(number: int) -> Taken:
            request, reply = texts(operation, KEY, value)
            seconds, least = (options.seconds, options.least) if number else (0, min(options.least, WARM_UP))
            with echo_connection(self.servers[name], len(request), reply) as plain:
                return taken(_floor.ask(plain.fileno(), len(request), reply, seconds, least, options.pause / 1e6))

        return run

    def runs(self, operation: str, size: int) -> dict[str, Run]:
        values = [os.urandom(size) for _ in range(VALUES)]
        made = {name: self.run_of(client, operation, values) for name, client in self.clients.items()}
        for name in self.servers:
            made[name] = (
                self.lines_run(operation, values) if name == LINES else self.echo_run(name, operation, values[0])
            )
        return made


@contextlib.contextmanager
def running(options: argparse.Namespace, cores: str, record: Record) -> Iterator[Bench]:
    """Starts all servers on their cores, and connects from ours."""
    for_clients, for_servers = placement(cores)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        clients = {}
        stack.enter_context(pinned(for_clients))
        for contender in options.contenders:
            server = stack.enter_context(start(contender, FLAGS, folder, for_servers))
            record.contender(described(contender, server))
            clients[contender.name] = stack.enter_context(contextlib.closing(connect(contender, server.address)))
        floors = floors_of(options.contenders)
        yields = one_core(for_clients, for_servers)
        servers = stack.enter_context(floor_servers([*floors.values()], folder, for_servers, yields, record))
        yield Bench(options, clients, floors, servers)


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    need_histograms()
    cases = len(options.cores) * len(options.operations) * len(options.sizes)
    runs = len(options.contenders) + len(set(floors_of(options.contenders).values()))
    steps = record.steps(cases * runs * runs_of(record.round))
    for where in options.cores:
        with running(options, where, record) as bench:
            measure_placed(options, where, bench, record, steps)


def measure_placed(options: argparse.Namespace, cores: str, bench: Bench, record: Record, steps: Steps) -> None:
    for operation in options.operations:
        for size in options.sizes:
            pause = f", {options.pause} us apart" if options.pause else ""
            case = Case(
                f"{operation} of {size_name(size)}{pause}, {CORES[cores]}",
                {"operation": operation, "size": size, "pause_us": options.pause, "cores": cores},
                FIGURES,
                bench.floors,
            )
            record.case(case, take_turns(case, bench.runs(operation, size), record.round, steps))

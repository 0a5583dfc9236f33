"""`rmemcached-bench paced`: get and set after a think time, from processes of their own.

With a pause between two requests, caches are cold and both sides may sleep. The gaps are fixed, or exponential
(--exponential): then requests come at random, as from many users.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import perf_counter_ns, sleep
from typing import Any

from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import named
from rmemcached.bench.floor import LINES, floor_client, floor_of, floor_servers, floors_of, one_core
from rmemcached.bench.helpers import Helper, busy, orders
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, need_histograms, runs_of, take_turns
from rmemcached.bench.scratch import scratch

HELP = "get and set of 100 B after a think time, by one client or more"
AT_LEAST = {"seconds": 0}
CONTENDERS = ("soft_shm", "soft_iw", "tcp", "unix", "auto", "memcached")
OPERATIONS = ("get", "set")
SIZE = 100
CHECK_EVERY = 64  # sets; each check is a get
LEAST = 10
FIGURES = (Figure("p50_us", "us"), Figure("cpu_us", "us"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--think", type=numbers, default=[0, 20, 100, 1000, 10000], metavar="US", help="microseconds")
    parser.add_argument("--operations", type=names_of(OPERATIONS), default=["get"], help="default: get")
    parser.add_argument("--clients", type=numbers, default=[1], metavar="N", help="processes (default: 1)")
    parser.add_argument("--exponential", action="store_true", help="gaps of random length, with that mean")
    parser.add_argument("--workers", type=int, default=1, help="threads of each server (default: 1)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run (default: 0.3)")
    parser.add_argument("--most", type=int, default=3000, help="requests of a client in a run (default: 3000)")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that always run beside (default: 0)"
    )
    parser.add_argument("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def paced_client(pipe: Connection, cores: set[int], contender: Contender, address: Any, number: int) -> None:
    """Answers (operation, think time in us, whether gaps are exponential, count) with latencies in nanoseconds.

    A floor (its `server` is "floor") gets a client for each order: the server of the cache lines polls as long as it
    has a client.
    """
    chance = random.Random(number)
    values = [chance.randbytes(SIZE) for _ in range(4)]
    key = f"key{number}"
    with contextlib.ExitStack() as stack:
        client = None
        if contender.server != "floor":
            client = stack.enter_context(contextlib.closing(connect(contender, address)))
            client.set(key, values[0])
        for operation, think, exponential, count in orders(pipe, cores):
            gaps = [chance.expovariate(1 / think) if exponential else think for _ in range(count)] if think else []
            if client is not None:
                pipe.send(paced(client, key, values, operation, gaps, count))
                continue
            with contextlib.closing(floor_client(contender.name, address, key, values[0])) as bare:
                # An echo server gets no value, only the size, so each set has the first value.
                stored = values if contender.name == LINES else values[:1] * len(values)
                pipe.send(paced(bare, key, stored, operation, gaps, count))


def paced(client: Any, key: str, values: list[bytes], operation: str, gaps: list[float], count: int) -> list[int]:
    """The latencies of so many operations, in nanoseconds, with these gaps (us) before. Raises ValueError."""
    client.set(key, values[0])
    taken = []
    gc.disable()
    for turn in range(count):
        if gaps:
            sleep(gaps[turn] / 1e6)
        value = values[turn % 4] if operation == "set" else values[0]
        begin = perf_counter_ns()
        if operation == "set":
            client.set(key, value)
            got = value
        else:
            got = client.get(key)
        taken.append(perf_counter_ns() - begin)
        if operation == "set" and turn % CHECK_EVERY == 0:
            got = client.get(key)
        if got != value:
            raise ValueError(f"{operation} after a think time: a wrong value came back")
    gc.enable()
    return taken


def run_of(helpers: list[Helper], server: Any, operation: str, think: int, options: argparse.Namespace) -> Run:
    cpu = getattr(server, "cpu_seconds", None)
    if "--lines" in getattr(server, "command", ()):
        cpu = None  # the server of the cache lines polls all the time

    def run(number: int) -> Taken:
        count = max(LEAST, min(options.most, int(options.seconds * 1e6 / max(think, 20)))) if number else LEAST
        before = cpu() if cpu else 0.0
        for helper in helpers:
            helper.tell(operation, think, options.exponential, count)
        latencies = list(itertools.chain.from_iterable(helper.answer() for helper in helpers))
        values = {"p50_us": sorted(latencies)[len(latencies) // 2] / 1000}
        if cpu:
            values["cpu_us"] = (cpu() - before) / len(latencies) * 1e6
        return Taken(values, latencies)

    return run


def cases_of(options: argparse.Namespace, cores: str, floors: dict[str, str]) -> Iterator[Case]:
    for operation, clients, think in itertools.product(options.operations, options.clients, options.think):
        gaps = ", exponential" if options.exponential else ""
        by = f"{clients} clients" if clients > 1 else "one client"
        yield Case(
            f"{operation} of {SIZE} B after {think} us{gaps}, {by}, {CORES[cores]}",
            {
                "operation": operation,
                "clients": clients,
                "think_us": think,
                "exponential": options.exponential,
                "workers": options.workers,
                "cores": cores,
            },
            FIGURES,
            {name: floor for name, floor in floors.items() if clients == 1 or floor != LINES},
        )


def measure_placed(options: argparse.Namespace, cores: str, record: Record, steps: Steps) -> None:
    for_clients, for_servers = placement(cores)
    flags = ("-t", str(options.workers), "-m", "64")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        servers: dict[str, Any] = {}
        helpers: dict[str, list[Helper]] = {}
        contenders = list(options.contenders)
        for contender in options.contenders:
            servers[contender.name] = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, servers[contender.name]))
        floors = floors_of(contenders)
        yields = one_core(for_clients, for_servers)
        servers |= stack.enter_context(floor_servers([*floors.values()], folder, for_servers, yields, record))
        contenders += [Contender(name, "floor") for name in dict.fromkeys(floors.values())]
        for contender in contenders:
            address, count = servers[contender.name].address, 1 if contender.name == LINES else max(options.clients)
            with named(contender.name):
                helpers[contender.name] = [
                    stack.enter_context(Helper(paced_client, for_clients, contender, address, number))
                    for number in range(count)
                ]
        stack.enter_context(busy(options.busy))
        for case in cases_of(options, cores, floors):
            said = case.parameters
            runs = {
                name: run_of(helpers[name][: said["clients"]], server, said["operation"], said["think_us"], options)
                for name, server in servers.items()
                if name != LINES or name in case.floors.values()
            }
            record.case(case, take_turns(case, runs, record.round, steps))


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    need_histograms()
    cases = len(options.cores) * len(options.operations) * len(options.clients) * len(options.think)
    runs = len(options.contenders) + len(set(filter(None, map(floor_of, options.contenders))))
    steps = record.steps(cases * runs * runs_of(record.round))
    for where in options.cores:
        measure_placed(options, where, record, steps)

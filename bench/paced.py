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
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import perf_counter_ns, sleep
from typing import Any

from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, start
from rmemcached.bench.document import Record
from rmemcached.bench.helpers import Helper, busy, orders
from rmemcached.bench.measure import Case, Figure, Progress, Run, Taken, need_histograms, progress, take_turns

HELP = "get and set of 100 B after a think time, by one client or more"
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
    """Answers (operation, think time in us, whether gaps are exponential, count) with latencies in nanoseconds."""
    chance = random.Random(number)
    values = [chance.randbytes(SIZE) for _ in range(4)]
    key = f"key{number}"
    with contextlib.closing(connect(contender, address)) as client:
        client.set(key, values[0])
        for operation, think, exponential, count in orders(pipe, cores):
            client.set(key, values[0])
            gaps = [chance.expovariate(1 / think) if exponential else think for _ in range(count)] if think else []
            taken = []
            gc.disable()
            for turn in range(count):
                if think:
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
                    raise ValueError(f"{operation} of {contender.name}: a wrong value came back")
            gc.enable()
            pipe.send(taken)


def run_of(helpers: list[Helper], server: Any, operation: str, think: int, options: argparse.Namespace) -> Run:
    cpu = getattr(server, "cpu_seconds", None)

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


def cases_of(options: argparse.Namespace, cores: str) -> Iterator[Case]:
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
        )


def measure_placed(options: argparse.Namespace, cores: str, record: Record, bar: Progress) -> None:
    for_clients, for_servers = placement(cores)
    flags = ("-t", str(options.workers), "-m", "64")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers: dict[str, Any] = {}
        helpers: dict[str, list[Helper]] = {}
        for contender in options.contenders:
            server = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, server))
            servers[contender.name] = server
            helpers[contender.name] = [
                stack.enter_context(Helper(paced_client, for_clients, contender, server.address, number))
                for number in range(max(options.clients))
            ]
        stack.enter_context(busy(options.busy))
        for case in cases_of(options, cores):
            said = case.parameters
            runs = {
                name: run_of(helpers[name][: said["clients"]], server, said["operation"], said["think_us"], options)
                for name, server in servers.items()
            }
            record.case(case, take_turns(case, runs, options.rounds, bar))


def measure(options: argparse.Namespace, record: Record) -> None:
    need_histograms()
    cases = len(options.cores) * len(options.operations) * len(options.clients) * len(options.think)
    with progress(cases * (options.rounds + 1) * len(options.contenders)) as bar:
        for cores in options.cores:
            measure_placed(options, cores, record, bar)

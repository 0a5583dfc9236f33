"""`rmemcached-bench connections`: gets of 100 B by 10 processes, which together have many connections.

Each process uses its connections in turn. The server's memory for a connection is the growth of its resident memory,
divided by the number of connections. soft_shm has no floor here: servers that poll for 10 processes would need 10
cores.
"""

from __future__ import annotations

import argparse
import contextlib
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

from rmemcached.bench.arguments import CORES, cores, numbers, placement
from rmemcached.bench.contenders import Contender, connect, default_contenders, described, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import named
from rmemcached.bench.floor import LINES, EchoClient, floor_servers, floors_of
from rmemcached.bench.helpers import Helper, orders
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, runs_of, take_turns
from rmemcached.bench.processes import check_descriptors
from rmemcached.bench.scratch import scratch

HELP = "gets of 100 B by 10 processes that have many connections between them"
CONTENDERS = ("soft_shm", "soft_iw", "tcp", "unix", "memcached")
PROCESSES = 10
KEY, VALUE = "key", bytes(100)
FIGURES = (Figure("per_second", "1/s", "higher"), Figure("cpu_us", "us"), Figure("memory_bytes", "bytes"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connections", type=numbers, default=[10, 100, 1000], metavar="N", help="default: 10,100,1000"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each run (default: 0.5)")
    parser.add_argument("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def asker(pipe: Connection, cores: set[int], count: int) -> None:
    """Answers ("connect", contender, address) when connected, and ("ask", name, seconds) with (gets, seconds)."""
    clients: dict[str, list[Any]] = {}
    with contextlib.ExitStack() as stack:
        for what, *rest in orders(pipe, cores):
            if what == "connect":
                contender, address = rest
                made = [stack.enter_context(contextlib.closing(client_of(contender, address))) for _ in range(count)]
                clients[contender.name] = made
                pipe.send(None)
            else:
                name, seconds = rest
                pipe.send(gets(clients[name], seconds))


def client_of(contender: Contender, address: Any) -> Any:
    """A client with its connection made, ready to get KEY."""
    if contender.server == "floor":
        return EchoClient(address, KEY, VALUE, ("get",))
    client = connect(contender, address)
    client.set(KEY, VALUE)
    return client


def gets(clients: list[Any], seconds: float) -> tuple[int, float]:
    """Gets over the connections in turn until the time is over: (gets, seconds). Raises ValueError."""
    done = 0
    begin = perf_counter()
    while done == 0 or perf_counter() - begin < seconds:
        for client in clients:
            if client.get(KEY) != VALUE:
                raise ValueError("get: a wrong value came back")
        done += len(clients)
    return done, perf_counter() - begin


def attach(helpers: list[Helper], contender: Contender, server: Any, count: int) -> float | None:
    """Connects the helpers to a server. Returns its memory for each connection, if this process can see the memory."""
    memory = getattr(server, "private_bytes", None)
    # A connection is made before the measurement: a server's allocations for its first connection do not count.
    with contextlib.closing(client_of(contender, server.address)):
        before = memory() if memory else 0
        for helper in helpers:
            helper.tell("connect", contender, server.address)
        for helper in helpers:
            helper.answer()
        return (memory() - before) / count if memory else None


def run_of(helpers: list[Helper], name: str, server: Any, memory: float | None, seconds: float) -> Run:
    cpu = getattr(server, "cpu_seconds", None)

    def run(number: int) -> Taken:
        before = cpu() if cpu else 0.0
        length = seconds if number else seconds / 10
        for helper in helpers:
            helper.tell("ask", name, length)
        answers = [helper.answer() for helper in helpers]
        values = {"per_second": sum(done / spent for done, spent in answers)}
        if cpu:
            values["cpu_us"] = (cpu() - before) / sum(done for done, _ in answers) * 1e6
        if memory is not None:
            # The memory has been measured before, once in this round.
            values["memory_bytes"] = memory
        return Taken(values)

    return run


def measure_count(options: argparse.Namespace, cores: str, count: int, record: Record, steps: Steps) -> None:
    for_clients, for_servers = placement(cores)
    flags = ("-t", "1", "-m", "64", "-c", str(count * 2 + 100))
    share = max(1, count // PROCESSES)
    floors = floors_of(options.contenders, without=(LINES,))
    case = Case(f"{count} connections, {CORES[cores]}", {"connections": count, "cores": cores}, FIGURES, floors)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        helpers = [stack.enter_context(Helper(asker, for_clients, share)) for _ in range(min(count, PROCESSES))]
        servers: dict[str, Any] = {}
        contenders = list(options.contenders)
        for contender in options.contenders:
            servers[contender.name] = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, servers[contender.name]))
        servers |= stack.enter_context(floor_servers([*floors.values()], folder, for_servers, False, record))
        contenders += [Contender(name, "floor") for name in dict.fromkeys(floors.values())]
        runs: dict[str, Run] = {}
        for contender in contenders:
            server = servers[contender.name]
            with named(contender.name):
                memory = attach(helpers, contender, server, share * len(helpers))
            runs[contender.name] = run_of(helpers, contender.name, server, memory, options.seconds)
        record.case(case, take_turns(case, runs, record.round, steps))


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    check_descriptors("--connections", 2 * max(options.connections))  # of the servers
    runs = len(options.contenders) + len(set(floors_of(options.contenders, without=(LINES,)).values()))
    steps = record.steps(len(options.cores) * len(options.connections) * runs * runs_of(record.round))
    for where in options.cores:
        for count in options.connections:
            measure_count(options, where, count, record, steps)

"""`rmemcached-bench cpu`: the server's CPU time for a request.

Many connections speak the text protocol with 32 B keys, at C speed; on each of them `depth` requests leave together,
and the next when all are answered. CPU time is the user and system time of all threads of the server. The other figures
are of what left together: its 99th percentile, and with --rate the longest, from when it was due.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.contenders import Contender, default_contenders, described, pinned, refuse, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import ECHO, echo_connection, echo_servers, floor_of, texts
from rmemcached.bench.measure import Case, Figure, Run, Taken, progress, take_turns
from rmemcached.bench.servers import Server
from rmemcached.client import _load

HELP = "the server's CPU time for a request, with many connections at C speed"
CONTENDERS = ("tcp", "memcached")
FLAGS = ("-c", "4096", "-I", "8m")
MEGABYTES = 1024  # the default of --memory
OPERATIONS = {"get": 0, "set": 1, "mixed": 10}  # one request of so many is a set; 0: none
OTHERS = {
    "miss": "get of a key that is not there",
    "delete": "delete",
    "incr": "incr",
    "touch": "touch",
    "mg": "mg",
    "ms": "ms",
    "new": "set of a key that is new",
}
KEYS = 10000
DELETED = 100000  # keys that a run deletes, unless its time is over before
MEMORY = 128 << 20  # bytes of items of one size that a run asks for: several sizes fit into the memory
BATCH_MOST = 4 << 20  # bytes that are sent together
FIGURES = (Figure("cpu_us", "us"), Figure("per_second", "1/s", "higher"), Figure("p99_us", "us"))
PACED = (Figure("longest_us", "us"), *FIGURES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=50, help="default: 50")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (default: 1)")
    parser.add_argument("--depths", type=numbers, default=[1, 16], help="requests sent at a time (default: 1,16)")
    parser.add_argument("--sizes", type=sizes, default=[100], help="of values (default: 100)")
    parser.add_argument(
        "--operations",
        type=names_of((*OPERATIONS, *OTHERS)),
        default=["get", "set"],
        help="some of get, set, mixed: 9 gets to 1 set; miss, delete, incr, touch, mg, ms; new: sets of keys that are"
        " new, which evict others (default: get,set)",
    )
    parser.add_argument(
        "--multiget", type=numbers, default=[1], metavar="KEYS", help="keys of a get; figures are per key (default: 1)"
    )
    parser.add_argument("--workers", type=int, default=1, help="threads of each server (default: 1)")
    parser.add_argument("--memory", type=int, default=MEGABYTES, metavar="MB", help=f"-m (default: {MEGABYTES})")
    parser.add_argument(
        "--rate", type=int, default=0, metavar="N", help="requests a second (default: each follows a reply)"
    )
    parser.add_argument("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def keys_of(size: int, operation: str = "") -> int:
    """How many keys are asked for: no more than the servers hold."""
    return min(DELETED if operation == "delete" else KEYS, MEMORY // (size + 100))


def fill(server: Any, keys: int, size: int = 100) -> None:
    """Stores the keys that the load generator asks for. Raises ConnectionError, ValueError."""
    store(server, keys, functools.partial(_load.store_commands, value_size=size))


def fill_up(server: Any, size: int) -> None:
    """Stores new keys until the server evicts others. Raises ConnectionError, ValueError."""
    with connected(server, 1) as descriptors:
        seed = 1 << 20  # no run has this one
        while server.stats()["evictions"] == "0":
            _load.run(descriptors, 0.2, keys=1, value_size=size, depth=100, seed=seed, ask="new")
            seed += 1


def store(server: Any, keys: int, commands: Callable[[int, int], bytes]) -> None:
    """Stores keys; commands(first, count) are those that do. Raises ConnectionError, ValueError."""
    with server.connect(30) as plain:
        for first in range(0, keys, 100):
            count = min(100, keys - first)
            plain.sendall(commands(first, count))
            wanted = count * len(b"STORED\r\n")
            received = b""
            while len(received) < wanted:
                more = plain.recv(65536)
                if not more:
                    raise ConnectionError("the server closed the connection")
                received += more
            if received != b"STORED\r\n" * count:
                raise ValueError(f"wrong reply {received[:80]!r}")


@contextlib.contextmanager
def connected(server: Server, count: int) -> Iterator[list[int]]:
    """Descriptors of connections that the server has accepted."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(server.connect(10)) for _ in range(count)]
        for plain in made:
            plain.sendall(b"mn\r\n")
            if plain.recv(64) != b"MN\r\n":
                raise ValueError("wrong reply to mn")
        yield [plain.fileno() for plain in made]


@contextlib.contextmanager
def echoing(server: Server, count: int, operation: str, size: int, depth: int) -> Iterator[list[int]]:
    """Descriptors of connections to the echo server, which answers as if the generator's first key were there."""
    command = _load.store_commands(0, 1, value_size=size)
    head, _, value = command.partition(b"\r\n")
    request, reply = texts(operation, head.split()[1].decode(), value.removesuffix(b"\r\n"))
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(echo_connection(server, len(request), reply, depth)) for _ in range(count)]
        yield [plain.fileno() for plain in made]


def run_of(
    server: Server, options: argparse.Namespace, operation: str, size: int, depth: int, keys: int, floor: bool
) -> Run:
    def run(number: int) -> Taken:
        count = options.connections
        opened = echoing(server, count, operation, size, depth) if floor else connected(server, count)
        known = 1 if floor else keys_of(size, operation)
        if operation == "delete":
            fill(server, known, size)
        elif operation == "incr":
            store(server, known, _load.count_commands)
        with opened as descriptors:
            before = server.cpu_seconds()
            done = _load.run(
                descriptors,
                options.seconds if number else options.seconds / 10,
                keys=known,
                value_size=size,
                depth=depth,
                set_every=OPERATIONS.get(operation, 0),
                seed=number + 1,
                multiget=keys,
                ask=operation if operation in OTHERS else "",
                rate=options.rate,
            )
            used = server.cpu_seconds() - before
        requests = done["requests"] + done["gets"] * (keys - 1)
        values = {"cpu_us": used / requests * 1e6, "per_second": requests / done["seconds"], "p99_us": done["p99_us"]}
        if options.rate:
            values["longest_us"] = done["longest_us"]
        return Taken(values)

    return run


def measure(options: argparse.Namespace, record: Record) -> None:
    refuse(options.contenders, "cpu", ("tcp", "unix"), clients=False)
    if max(options.depths) * (max(options.sizes) + 64) > BATCH_MOST:
        raise BenchError(f"--depths, --sizes: what is sent at a time is {BATCH_MOST >> 20} MB at most")
    if max(options.multiget) > 1 and options.operations != ["get"]:
        raise BenchError("--multiget needs --operations get")
    flags = (*FLAGS, "-t", str(options.workers), "-m", str(options.memory))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        floors = {c.name: f"floor: {floor_of(c)}" for c in options.contenders}
        runs = len(options.contenders) + len(set(floors.values()))
        # Mixed requests and multigets have no floor; a few steps less do not harm the bar.
        cases = len(options.cores) * len(options.sizes) * len(options.operations) * len(options.depths)
        cases *= len(options.multiget)
        bar = stack.enter_context(progress(cases * runs * (options.rounds + 1)))
        for cores in options.cores:
            for_clients, for_servers = placement(cores)
            with contextlib.ExitStack() as placed:
                placed.enter_context(pinned(for_clients))
                servers = {}
                for contender in options.contenders:
                    servers[contender.name] = placed.enter_context(start(contender, flags, folder, for_servers))
                    record.contender(described(contender, servers[contender.name]))
                echoes = placed.enter_context(echo_servers(options.contenders, folder, for_servers))
                for name in echoes:
                    record.floor(f"floor: {name}", ECHO.format(transport=name))
                for size in options.sizes:
                    for case in cases_of(options, size, cores, floors):
                        operation, depth = case.parameters["operation"], case.parameters["depth"]
                        for server in servers.values():
                            fill(server, keys_of(size), size)
                            if operation == "new":
                                fill_up(server, size)
                        keys = case.parameters["multiget"]
                        made = {
                            name: run_of(server, options, operation, size, depth, keys, False)
                            for name, server in servers.items()
                        }
                        for name in echoes if case.floors else ():
                            made[f"floor: {name}"] = run_of(echoes[name], options, operation, size, depth, 1, True)
                        record.case(case, take_turns(case, made, options.rounds, bar))


def cases_of(options: argparse.Namespace, size: int, cores: str, floors: dict[str, str]) -> Iterator[Case]:
    for operation in options.operations:
        for depth, keys in itertools.product(options.depths, options.multiget):
            pipelined = f", pipelined by {depth}" if depth > 1 else ""
            words = "9 gets to 1 set" if operation == "mixed" else OTHERS.get(operation, operation)
            words = f"get of {keys} keys" if keys > 1 else words
            words += f" of {size_name(size)}{pipelined}, {options.connections} connections"
            words += f", {options.workers} workers" if options.workers > 1 else ""
            words += f", {options.rate} a second" if options.rate else ""
            yield Case(
                f"{words}, {CORES[cores]}",
                {
                    "operation": operation,
                    "size": size,
                    "depth": depth,
                    "multiget": keys,
                    "connections": options.connections,
                    "workers": options.workers,
                    "rate": options.rate,
                    "cores": cores,
                },
                PACED if options.rate else FIGURES,
                floors if operation in ("get", "set") and keys == 1 and options.workers == 1 else {},
            )

"""`rmemcached-bench cpu`: the server's CPU time for a request.

Many connections speak the text protocol with 32 B keys, at C speed; on each of them `depth` requests leave together,
and the next when all are answered. CPU time is the user and system time of all threads of the server. The other figures
are times of requests: the 99th percentile, and with --rate the longest time, from the moment when the request was due.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rmemcached.bench import _load
from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.contenders import Contender, default_contenders, described, pinned, refuse, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError, named
from rmemcached.bench.floor import echo_connection, floor_servers, floors_of, texts
from rmemcached.bench.measure import Case, Figure, Run, Taken, runs_of, take_turns
from rmemcached.bench.processes import check_descriptors
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server

HELP = "the server's CPU time for a request, with many connections at C speed"
CONTENDERS = ("tcp", "memcached")
CONNECTIONS_MOST = 4096  # -c, unless a run asks for more
FLAGS = ("-t", "1", "-m", "256", "-c", str(CONNECTIONS_MOST))
MEGABYTES = 256  # the default of --memory
LARGE, LARGE_FLAGS = 512 * 1024, ("-I", "8m")  # a larger value may not fit into an item of the usual size
OPERATIONS = {"get": 0.0, "set": 1.0, "mixed": 0.1}  # the part of sets in the requests
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
DELETED = 100000  # keys deleted by a run that does not end earlier by its time
MEMORY = 128 << 20  # bytes of items of one size in a run: several sizes fit into the memory
BATCH_MOST = 128 * 1024  # bytes taken at once by an empty socket buffer
SENT_MOST = 4 << 20  # bytes sent together
FIGURES = (Figure("cpu_us", "us"), Figure("per_second", "1/s", "higher"), Figure("p99_us", "us"))
PACED = (Figure("longest_us", "us"), *FIGURES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=numbers, default=[50], metavar="N", help="default: 50")
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


def keys_of(size: int, sizes: int = 1, operation: str = "") -> int:
    """The number of keys in a run: no more than the servers hold, beside the keys of so many sizes in all."""
    return min(DELETED if operation == "delete" else KEYS, MEMORY // sizes // (size + 100))


def fill_all(servers: Mapping[str, Any], keys: int, size: int = 100) -> None:
    """Stores the load generator's keys on each server. Raises BenchError with the server's name."""
    for name, server in servers.items():
        with named(name):
            fill(server, keys, size)


def fill(server: Any, keys: int, size: int = 100) -> None:
    """Stores the load generator's keys. Raises OSError, ValueError."""
    with server.connect(30) as plain:
        for first in range(0, keys, 100):
            count = min(100, keys - first)
            plain.sendall(_load.store_commands(first, count, value_size=size))
            received = b""
            while received.count(b"\n") < count:
                more = plain.recv(65536)
                if not more:
                    raise ConnectionError("the server closed the connection")
                received += more
            if wrong := received.replace(b"STORED\r\n", b""):
                raise ValueError(f"set of {size_name(size)}: a wrong reply came back: {wrong[:80]!r}")


def fill_counters(server: Any, keys: int) -> None:
    """Stores the counters of incr, each 0. Raises ConnectionError, ValueError."""
    with server.connect(30) as plain:
        load = _load.Load(keys=keys, only="incr", depth=100)
        load.add_socket(plain)
        with load:
            load.fill()


def fill_up(server: Any, size: int) -> None:
    """Stores new keys until the server evicts others. Raises ConnectionError, ValueError."""
    seed = 1 << 20  # no run has this seed
    while server.stats()["evictions"] == "0":
        with server.connect(30) as plain:
            load = _load.Load(keys=1, value_size=size, only="new", depth=100, batch=True, seed=seed)
            load.add_socket(plain)
            with load:
                load.run(0.2)
        seed += 1


def percentile(counted: dict[int, int], percent: float) -> float:
    """A percentile, in microseconds, of latencies counted in nanoseconds. 0 without latencies."""
    wanted = sum(counted.values()) * percent / 100
    reached = 0
    for ns in sorted(counted):
        reached += counted[ns]
        if reached >= wanted:
            return ns / 1000
    return 0.0


@contextlib.contextmanager
def connected(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Connections already accepted by the server."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(server.connect(10)) for _ in range(count)]
        for plain in made:
            plain.sendall(b"mn\r\n")
            if plain.recv(64) != b"MN\r\n":
                raise ValueError("wrong reply to mn")
        yield made


@contextlib.contextmanager
def echoing(
    server: Server, count: int, operation: str, size: int, depth: int, keys: int = 1
) -> Iterator[list[socket.socket]]:
    """Connections to the echo server, which answers as if the generator's first key were there."""
    command = _load.store_commands(0, 1, value_size=size)
    head, _, value = command.partition(b"\r\n")
    request, reply = texts(operation, head.split()[1].decode(), value.removesuffix(b"\r\n"), keys)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(echo_connection(server, len(request), reply, depth)) for _ in range(count)]
        yield made


def run_of(server: Server, case: Case, length: float, floor: bool) -> Run:
    """A run of a case, of `length` seconds. floor: the server is the echo server. `bounds` calls this, too."""
    said = case.parameters
    operation, size, depth, keys = (said[name] for name in ("operation", "size", "depth", "multiget"))
    count, rate = said["connections"], said.get("rate", 0)
    # Each case has seeds of its own: the new keys of a case differ from those of all earlier cases.
    seed = (zlib.crc32(case.name.encode()) << 16) + 1

    def run(number: int) -> Taken:
        if operation == "delete":
            fill(server, said["stored"], size)
        elif operation == "incr":
            fill_counters(server, said["stored"])
        opened = echoing(server, count, operation, size, depth, keys) if floor else connected(server, count)
        with opened as plain:
            load = _load.Load(
                keys=1 if floor else said["stored"],
                value_size=size,
                sets=OPERATIONS.get(operation, 0.0),
                only=operation if operation in OTHERS else "",
                depth=depth,
                batch=True,
                multiget=keys,
                rate=rate,
                complete=True,
                seed=seed + number,
            )
            for one in plain:
                load.add_socket(one)
            with load:
                before = server.cpu_seconds()
                done = load.run(length if number else length / 10)
                used = server.cpu_seconds() - before
        requests = done["requests"] + done["gets"] * (keys - 1)
        values = {
            "cpu_us": used / requests * 1e6,
            "per_second": requests / done["seconds"],
            "p99_us": percentile(done["latencies"], 99),
        }
        if rate:
            values["longest_us"] = max(done["latencies"]) / 1000
        return Taken(values)

    return run


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    refuse(options.contenders, "cpu", ("tcp", "unix"), clients=False)
    check_descriptors("--connections", max(options.connections))
    if max(options.depths) > 1 and max(options.depths) * (max(options.sizes) + 64) > SENT_MOST:
        raise BenchError(f"--depths, --sizes: what is pipelined has {SENT_MOST >> 20} MB at most")
    if max(options.multiget) > 1 and options.operations != ["get"]:
        raise BenchError("--multiget needs --operations get")
    floors = floors_of(options.contenders)
    runs = len(options.contenders) + len(set(floors.values()))
    # Mixed requests have no floor, but are counted with one: the progress bar jumps a few steps, without harm.
    cases = len(options.cores) * len(options.sizes) * len(options.operations) * len(options.depths)
    cases *= len(options.multiget) * len(options.connections)
    steps = record.steps(cases * runs * runs_of(record.round))
    for where in options.cores:
        for_clients, for_servers = placement(where)
        with contextlib.ExitStack() as placed:
            folder = placed.enter_context(scratch())
            placed.enter_context(pinned(for_clients))
            servers = {}
            most = max(CONNECTIONS_MOST, max(options.connections) + 100)
            flags: tuple[str, ...] = ("-t", str(options.workers), "-m", str(options.memory), "-c", str(most))
            flags += LARGE_FLAGS if max(options.sizes) > LARGE else ()
            for contender in options.contenders:
                servers[contender.name] = placed.enter_context(start(contender, flags, folder, for_servers))
                record.contender(described(contender, servers[contender.name], "the load generator"))
            echoes = placed.enter_context(floor_servers([*floors.values()], folder, for_servers, False, record))
            for size in options.sizes:
                for case in cases_of(options, size, where, floors):
                    # Keys deleted or evicted meanwhile are stored again.
                    fill_all(servers, keys_of(size, len(options.sizes)), size)
                    if case.parameters["operation"] == "new":
                        for server in servers.values():
                            fill_up(server, size)
                    made = {name: run_of(server, case, options.seconds, False) for name, server in servers.items()}
                    for name in echoes if case.floors else ():
                        made[name] = run_of(echoes[name], case, options.seconds, True)
                    record.case(case, take_turns(case, made, record.round, steps))


def cases_of(options: argparse.Namespace, size: int, cores: str, floors: dict[str, str]) -> Iterator[Case]:
    """The cases for values of a size. floors: as in Case, left out where the echo server cannot do the case."""
    every = itertools.product(options.operations, options.depths, options.multiget, options.connections)
    for operation, depth, keys, connections in every:
        pipelined = f", pipelined by {depth}" if depth > 1 else ""
        words = "9 gets to 1 set" if operation == "mixed" else OTHERS.get(operation, operation)
        words = f"get of {keys} keys" if keys > 1 else words
        # The replies to a batch must fit into a socket's buffers.
        fits = depth == 1 or depth * keys * (size + 64) <= BATCH_MOST
        words += f" of {size_name(size)}{pipelined}, {connections} connections"
        words += f", {options.workers} workers" if options.workers > 1 else ""
        words += f", {options.rate} a second" if options.rate else ""
        yield Case(
            f"{words}, {CORES[cores]}",
            {
                "operation": operation,
                "size": size,
                "depth": depth,
                "multiget": keys,
                "stored": keys_of(size, len(options.sizes), operation),
                "connections": connections,
                "workers": options.workers,
                "rate": options.rate,
                "cores": cores,
            },
            PACED if options.rate else FIGURES,
            floors if operation in ("get", "set") and fits and options.workers == 1 and not options.rate else {},
        )

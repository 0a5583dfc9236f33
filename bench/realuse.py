#!/usr/bin/env python3
"""Real use rather than ping-pong: large values, several threads, other clients beside.

large        get and set of large values over shared memory, in bytes objects and in registered buffers; throughput as
             a ratio to one memcpy of the same size in the client's process.
threads      get and set by several threads with a client each, two workers; bytes per second as a ratio to TCP.
sharing      gets of 100 B by threads of one process, at C speed, whose clients share a queue pair or have one each;
             requests per second as a ratio to a queue pair each, and to one thread.
beside       gets of 100 B by two TCP clients, beside clients of the same worker that are idle (100), that ask every
             millisecond (4), or without pause (2); throughput as a ratio to none beside, and to the same over TCP.

Each transport has a daemon of its own, so that idle clients of one do not meet requests of another, and the CPU time
is that transport's. The transports take turns in short samples: other load on the machine slows all of them alike, and
the ratios hold. Every value that comes back is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from rmemcached.bench.arguments import CORES, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.connections import asker
from rmemcached.bench.contenders import parse_contender
from rmemcached.bench.cpu import fill
from rmemcached.bench.figures import add_json, put_out
from rmemcached.bench.helpers import Helper, busy
from rmemcached.bench.paced import paced_client
from rmemcached.bench.servers import Server, start_rmemcached
from rmemcached.client import Client, _load

TRANSPORTS = ("soft_shm", "soft_iw", "tcp", "unix", "auto")
PARTS = ("large", "threads", "sharing", "beside")
KEY, SMALL = "key", 100
TIMEOUT = 60.0
MB = 1 << 20


# ---- daemons and clients ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemons(transports: list[str], cores: set[int], *flags: str) -> Iterator[dict[str, Server]]:
    """A daemon for each transport, on these cores."""
    allowed = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.callback(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, cores)  # they inherit it
        made = {}
        for name in transports:
            path = f"{folder}/socket" if name == "unix" else None
            made[name] = stack.enter_context(start_rmemcached(*flags, path=path))
        os.sched_setaffinity(0, allowed)
        yield made


def connect(address: Any, transport: str) -> Any:
    """A client over this transport; "unix" is memcached's protocol over a UNIX socket."""
    name = "tcp" if transport == "unix" else transport
    return Client(address, timeout=TIMEOUT, default_noreply=False, transport=name)


# ---- large values, and threads ---------------------------------------------------------------------------------------


def copy_rate(size: int, seconds: float) -> float:
    """Bytes per second of one memcpy between pages that are there."""
    source, target = bytearray(os.urandom(size)), bytearray(size)
    done = 0
    begin = perf_counter()
    while done == 0 or perf_counter() - begin < seconds:
        target[:] = source
        done += size
    return done / (perf_counter() - begin)


def transfer_rate(client: Any, operation: str, key: str, value: bytes, seconds: float) -> float:
    """Bytes per second of one operation, repeated. Raises ValueError for a changed value."""
    client.set(key, value)
    done = 0
    spent = 0.0
    while done == 0 or spent < seconds:
        begin = perf_counter()
        got = client.get(key) if operation == "get" else client.set(key, value)
        spent += perf_counter() - begin
        done += len(value)
        if operation == "get" and got != value:
            raise ValueError(f"get of {len(value)} bytes: a wrong value came back")
    if operation == "set" and client.get(key) != value:
        raise ValueError(f"set of {len(value)} bytes: a wrong value came back")
    return done / spent


def buffer_rate(client: Any, operation: str, key: str, value: bytes, seconds: float) -> float:
    """The same, out of a registered buffer, or into one."""
    size = len(value)
    client.set(key, value)
    buffer = client.buffer(size)
    with memoryview(buffer) as view:
        if operation == "set":
            view[:] = value
        done = 0
        # The server maps the buffer when it is first named.
        for _ in range(2):
            client.get_into(key, view) if operation == "get" else client.set(key, view)
        begin = perf_counter()
        while done == 0 or perf_counter() - begin < seconds:
            client.get_into(key, view) if operation == "get" else client.set(key, view)
            done += size
        spent = perf_counter() - begin
        if (view if operation == "get" else client.get(key)) != value:
            raise ValueError(f"{operation} of {size} bytes: a wrong value came back")
    buffer.close()
    return done / spent


def measure_large(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    most = max(options.large) // MB + 1
    flags = ("-t", "1", "-m", str(4 * most + 64), "-I", f"{2 * most}m")
    allowed = os.sched_getaffinity(0)
    for cores in options.cores:
        for_clients, for_daemons = placement(cores)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(daemons(["soft_shm"], for_daemons, *flags))["soft_shm"]
            stack.callback(os.sched_setaffinity, 0, allowed)
            os.sched_setaffinity(0, for_clients)
            client = stack.enter_context(contextlib.closing(connect(server.address, "soft_shm")))
            for size, operation in itertools.product(options.large, ("get", "set")):
                value = os.urandom(size)
                kinds = {"registered buffers": buffer_rate, "bytes": transfer_rate}
                taken: dict[str, list[float]] = {kind: [] for kind in kinds}
                copies = []
                for _ in range(options.rounds):
                    copies.append(copy_rate(size, options.seconds))
                    for kind, rate in kinds.items():
                        taken[kind].append(rate(client, operation, KEY, value, options.seconds))
                rows += [
                    {
                        "cores": cores,
                        "size": size,
                        "operation": operation,
                        "through": kind,
                        "mb_per_second": statistics.median(rates) / 1e6,
                        "memcpy_mb_per_second": statistics.median(copies) / 1e6,
                        "to_memcpy": statistics.median(rate / copy for rate, copy in zip(rates, copies, strict=True)),
                    }
                    for kind, rates in taken.items()
                ]
    return rows


def together(clients: list[Any], operation: str, value: bytes, seconds: float) -> float:
    """Bytes per second of all clients, each in a thread of its own."""
    rates: list[float] = []

    def work(number: int) -> None:
        rates.append(transfer_rate(clients[number], operation, f"{KEY}{number}", value, seconds))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(rates) < len(clients):
        raise ChildProcessError("a thread has failed; its output is above")
    return sum(rates)


def measure_threads(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw", "tcp")]
    flags = ("-t", "2", "-m", "256", "-I", f"{2 * max(options.sizes) // MB + 1}m")
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, os.sched_getaffinity(0), *flags))
        clients = {
            name: [
                stack.enter_context(contextlib.closing(connect(server.address, name)))
                for _ in range(max(options.threads))
            ]
            for name, server in servers.items()
        }
        for count, size, operation in itertools.product(options.threads, options.sizes, ("set", "get")):
            value = os.urandom(size)
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for name in names:
                    rates[name].append(together(clients[name][:count], operation, value, options.seconds))
            rows += [
                {
                    "threads": count,
                    "size": size,
                    "operation": operation,
                    "transport": name,
                    "mb_per_second": statistics.median(taken) / 1e6,
                }
                for name, taken in rates.items()
            ]
    add_ratios(rows, ("threads", "size", "operation"), {"transport": "tcp"}, "mb_per_second", "to_tcp")
    return rows


# ---- threads that share a queue pair ---------------------------------------------------------------------------------


def sharing_clients(address: Any, transport: str, count: int, pairs: str) -> list[Any]:
    """Connected clients. Those that one thread makes share a queue pair, up to 16 threads have one each."""
    makers = count if pairs == "own" else 1
    barrier = threading.Barrier(makers)

    def make(_: int) -> list[Any]:
        barrier.wait()
        made = [connect(address, transport) for _ in range(count // makers)]
        for client in made:
            client.version()
        # A thread that had ended by now would leave its number, and its queue pair, to the next.
        barrier.wait()
        return made

    with ThreadPoolExecutor(makers) as pool:
        return list(itertools.chain.from_iterable(pool.map(make, range(makers))))


def shared_rate(clients: list[Any], options: argparse.Namespace, depth: int, seed: int) -> float:
    """Requests per second of all clients, each in a thread of its own."""

    def work(number: int) -> float:
        done = _load.run_client(
            clients[number], options.seconds, keys=1000, value_size=SMALL, depth=depth, seed=seed * 100 + number
        )
        return float(done["requests"] / done["seconds"])

    with ThreadPoolExecutor(len(clients)) as pool:
        return sum(pool.map(work, range(len(clients))))


def measure_sharing(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw")]
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, os.sched_getaffinity(0), "-t", "1", "-m", "64"))
        for server in servers.values():
            fill(server, 1000)
        for name, count in itertools.product(names, options.sharers):
            with contextlib.ExitStack() as connected:
                clients = {}
                for pairs in ("shared", "own"):
                    clients[pairs] = sharing_clients(servers[name].address, name, count, pairs)
                    for client in clients[pairs]:
                        connected.enter_context(contextlib.closing(client))
                for depth in sorted({1, options.depth}):
                    rates: dict[str, list[float]] = {pairs: [] for pairs in clients}
                    for seed, pairs in itertools.product(range(1, options.rounds + 1), clients):
                        rates[pairs].append(shared_rate(clients[pairs], options, depth, seed))
                    rows += [
                        {
                            "transport": name,
                            "depth": depth,
                            "threads": count,
                            "queue_pairs": pairs,
                            "per_second": statistics.median(taken),
                        }
                        for pairs, taken in rates.items()
                    ]
    add_ratios(rows, ("transport", "depth", "threads"), {"queue_pairs": "own"}, "per_second", "to_own")
    add_ratios(
        rows, ("transport", "depth", "queue_pairs"), {"threads": min(options.sharers)}, "per_second", "to_fewest"
    )
    return rows


# ---- TCP clients beside others ---------------------------------------------------------------------------------------

OTHERS = ("none", "100 idle", "4 paced", "2 busy")
ASKERS = 2
OTHERS_THINK = 1000


def connected_asker(server: Server, transport: str) -> Helper:
    """A process with one client of the daemon over this transport."""
    helper = Helper(asker, os.sched_getaffinity(0), 1)
    helper.tell("connect", parse_contender(transport), server.address)
    helper.answer()
    return helper


@contextlib.contextmanager
def beside(case: str, server: Server, transport: str, seconds: float) -> Iterator[None]:
    """Clients of the daemon over this transport, which do for so many seconds what the case says."""
    everywhere = os.sched_getaffinity(0)
    count = 0 if case == "none" else int(case.split()[0])
    with contextlib.ExitStack() as stack:
        helpers: list[Helper] = []
        if case.endswith("idle"):
            for _ in range(count):
                stack.enter_context(contextlib.closing(connect(server.address, transport))).set(KEY, bytes(SMALL))
        elif case.endswith("paced"):
            for number in range(count):
                helper = Helper(paced_client, everywhere, parse_contender(transport), server.address, number)
                helpers.append(stack.enter_context(helper))
                helper.tell("get", OTHERS_THINK, False, int(seconds * 1e6 / OTHERS_THINK))
        else:
            for _ in range(count):
                helpers.append(stack.enter_context(connected_asker(server, transport)))
                helpers[-1].tell("ask", transport, seconds)
        yield
        for helper in helpers:
            helper.answer()


def measure_beside(options: argparse.Namespace) -> list[dict[str, Any]]:
    everywhere = os.sched_getaffinity(0)
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw", "tcp")]
    rates: dict[tuple[str, str], list[float]] = {(case, name): [] for case in OTHERS for name in names}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, everywhere, "-t", "1", "-m", "64"))
        askers = {
            name: [stack.enter_context(connected_asker(server, "tcp")) for _ in range(ASKERS)]
            for name, server in servers.items()
        }
        for _, (case, name) in itertools.product(range(options.rounds), rates):
            with beside(case, servers[name], name, options.seconds):
                for each in askers[name]:
                    each.tell("ask", "tcp", options.seconds)
                answers = [each.answer() for each in askers[name]]
                rates[case, name].append(sum(done / spent for done, spent in answers))
    rows = [
        {"others": case, "transport": name, "per_second": statistics.median(taken)}
        for (case, name), taken in rates.items()
    ]
    add_ratios(rows, ("transport",), {"others": "none"}, "per_second", "to_none")
    add_ratios(rows, ("others",), {"transport": "tcp"}, "per_second", "to_tcp")
    return rows


# ---- the output ------------------------------------------------------------------------------------------------------


def add_ratios(rows: list[dict[str, Any]], case: tuple[str, ...], base: dict[str, Any], figure: str, name: str) -> None:
    """Adds to each row its figure over that of the row of the same case that `base` names; None without one."""
    found = {
        tuple(row[key] for key in case): row[figure]
        for row in rows
        if all(row[key] == wanted for key, wanted in base.items())
    }
    for row in rows:
        other = found.get(tuple(row[key] for key in case))
        row[name] = row[figure] / other if other else None


HEADINGS = {"size": "size", "think_us": "think us", "to_fewest": "to fewest", "memory_bytes": "KB each"}


def shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "size":
        return size_name(value)
    if key == "memory_bytes":
        return f"{value / 1024:.1f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.2f}"
    return str(value)


def table(rows: list[dict[str, Any]]) -> str:
    keys = list(rows[0])
    cells = [[HEADINGS.get(key, key.replace("_", " ")) for key in keys]]
    cells += [[shown(key, row[key]) for key in keys] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(keys))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    transports, placements = names_of(TRANSPORTS), names_of(tuple(CORES))
    parser.add_argument("--transports", type=transports, default=list(TRANSPORTS), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each kind (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each sample (default: 0.5)")
    parser.add_argument("--cores", type=placements, default=list(CORES), help="placements (default: all)")
    parser.add_argument("--depth", type=int, default=32, help="requests under way, of sharing (default: 32)")
    parser.add_argument("--large", type=sizes, default=[MB, 16 * MB, 64 * MB], metavar="SIZES", help="1m,16m,64m")
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4], metavar="N", help="default: 1,2,4")
    parser.add_argument("--sharers", type=numbers, default=[1, 2, 4, 8, 16], metavar="N", help="threads that share")
    parser.add_argument("--sizes", type=sizes, default=sizes("4k,64k,256k,1m,4m"), help="of the threads' values")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that always run beside (default: 0)"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"{part!r} is not one of {', '.join(PARTS)}")
    if "apart" in options.cores and len(os.sched_getaffinity(0)) < 2:
        parser.error("--cores apart needs two cores")
    measures = {
        "large": measure_large,
        "threads": measure_threads,
        "sharing": measure_sharing,
        "beside": measure_beside,
    }
    with busy(options.busy):
        figures = {part: measures[part](options) for part in options.parts or PARTS}
    put_out(options, figures, "\n\n".join(f"{part}\n{table(rows)}" for part, rows in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Latency of get and set from Python: rmemcached over shared memory, RDMA and TCP, beside memcached and pymemcache.

Starts rmemcached and, if it is installed, memcached, with one worker thread each, on loopback. The combinations of
client and server take turns in short samples, so that what else happens on the machine meets all of them and the ratios
hold. Every value is compared byte for byte; the comparison is not timed.

Whether client and server are on one core or on two makes plain TCP several times faster or slower, and the scheduler
may decide it differently for each server: --cores decides it for all.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from figures import add_json, add_plot, check_plot, put_out  # noqa: E402
from servers import Server, memcached_path, start_memcached, start_rmemcached  # noqa: E402

from rmemcached.client import Client  # noqa: E402

SIZES = "8,100,1k,64k,1m"
CLIENTS = "soft_shm,soft_iw,tcp,pymemcache"
OPERATIONS = ("get", "set")
CORES = ("any", "together", "apart")
SERVER_FLAGS = ("-t", "1", "-m", "256", "-I", "8m")
TIMEOUT = 30.0
VALUES = 4  # different values of one size
WARM_UP = 20

# (client, server): how the table names the combinations, in its order
COMBINATIONS = (
    ("soft_shm", "rmemcached"),
    ("soft_iw", "rmemcached"),
    ("tcp", "rmemcached"),
    ("pymemcache", "rmemcached"),
    ("tcp", "memcached"),
    ("pymemcache", "memcached"),
)


def parse_size(text: str) -> int:
    """Bytes from "100", "64k" or "1m"."""
    factors = {"k": 1024, "m": 1024 * 1024}
    factor = factors.get(text[-1:].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def size_name(size: int) -> str:
    if size >= 2**20 and size % 2**20 == 0:
        return f"{size >> 20} MB"
    if size >= 1024 and size % 1024 == 0:
        return f"{size >> 10} KB"
    return f"{size} B"


def make_client(name: str, server: Server) -> Any:
    """A connected client: "pymemcache", or our own with that transport."""
    if name == "pymemcache":
        from pymemcache.client.base import Client as PymemcacheClient

        return PymemcacheClient(server.address, timeout=TIMEOUT, no_delay=True, default_noreply=False)
    return Client(server.address, timeout=TIMEOUT, default_noreply=False, transport=name)


def have_pymemcache() -> bool:
    return importlib.util.find_spec("pymemcache") is not None


def placement(cores: str) -> tuple[set[int], set[int]]:
    """The cores for the clients, and those for the servers."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores == "any":
        return set(allowed), set(allowed)
    return {allowed[0]}, {allowed[0] if cores == "together" else allowed[1]}


@contextlib.contextmanager
def running(clients: list[str], names: list[str], cores: str = "any") -> Iterator[dict[tuple[str, str], Any]]:
    """Starts the servers and connects the clients: {(client, server): client object}. cores: one of CORES."""
    starters: dict[str, Callable[..., Server]] = {"rmemcached": start_rmemcached, "memcached": start_memcached}
    allowed = os.sched_getaffinity(0)
    for_clients, for_servers = placement(cores)
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, for_servers)  # they inherit it
        servers = {name: stack.enter_context(starters[name](*SERVER_FLAGS)) for name in names}
        os.sched_setaffinity(0, for_clients)
        made = {}
        for client, server in COMBINATIONS:
            if client in clients and server in servers:
                made[client, server] = stack.enter_context(contextlib.closing(make_client(client, servers[server])))
        yield made


def sample(client: Any, operation: str, key: str, values: list[bytes], seconds: float, least: int) -> list[int]:
    """Latencies in nanoseconds of one operation, repeated for a time and at least `least` times."""
    latencies = []
    get, put = client.get, client.set
    end = perf_counter_ns() + int(seconds * 1e9)
    number = 0
    while number < least or perf_counter_ns() < end:
        value = values[number % len(values)]
        number += 1
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


def percentile(ordered: list[int], fraction: float) -> float:
    """In microseconds, of latencies in rising order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] / 1000


def measure(
    clients: dict[tuple[str, str], Any],
    sizes: list[int],
    operations: list[str],
    seconds: float,
    rounds: int,
    least: int,
) -> list[dict[str, Any]]:
    """One row for each operation, size and combination."""
    rows = []
    for operation in operations:
        for size in sizes:
            values = [os.urandom(size) for _ in range(VALUES)]
            taken: dict[tuple[str, str], list[int]] = {which: [] for which in clients}
            for which, client in clients.items():
                key = f"{which[0]}-{operation}-{size}"
                client.set(key, values[0])
                sample(client, operation, key, values, 0, min(least, WARM_UP))
            for _ in range(rounds):
                for which, client in clients.items():
                    key = f"{which[0]}-{operation}-{size}"
                    client.set(key, values[0])
                    gc.disable()
                    try:
                        taken[which] += sample(client, operation, key, values, seconds, least)
                    finally:
                        gc.enable()
            for (client_name, server_name), latencies in taken.items():
                ordered = sorted(latencies)
                rows.append(
                    {
                        "operation": operation,
                        "size": size,
                        "client": client_name,
                        "server": server_name,
                        "count": len(ordered),
                        "p50_us": percentile(ordered, 0.5),
                        "p99_us": percentile(ordered, 0.99),
                        "per_second": len(ordered) / (sum(ordered) / 1e9),
                    }
                )
    for row in rows:
        row["p50_to_tcp"] = ratio(rows, row, "tcp", "rmemcached")
        row["p50_to_memcached"] = ratio(rows, row, "pymemcache", "memcached")
    return rows


def ratio(rows: list[dict[str, Any]], row: dict[str, Any], client: str, server: str) -> float | None:
    """p50 of a row over that of another client and server for the same operation and size."""
    for other in rows:
        if (other["operation"], other["size"], other["client"], other["server"]) == (
            row["operation"],
            row["size"],
            client,
            server,
        ):
            return float(row["p50_us"] / other["p50_us"])
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [
        "                                                                          p50 relative to",
        "        size  client      server          p50 us     p99 us      ops/s    our tcp   pymemcache+memcached",
    ]
    previous = None
    for row in rows:
        group = (row["operation"], row["size"])
        if previous not in (None, group):
            lines.append("")
        name = f"{row['operation']} {size_name(row['size']):>8}" if group != previous else ""
        previous = group
        ratios = "".join(
            f"{'' if row[key] is None else format(row[key], '.2f'):>{width}}"
            for key, width in (("p50_to_tcp", 11), ("p50_to_memcached", 15))
        )
        lines.append(
            f"{name:<12}  {row['client']:<11} {row['server']:<11} {row['p50_us']:10.1f} {row['p99_us']:10.1f}"
            f" {row['per_second']:10.0f}{ratios}".rstrip()
        )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Draws p50 over the value size, one panel for each operation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    operations = list(dict.fromkeys(row["operation"] for row in rows))
    figure, panels = pyplot.subplots(1, len(operations), figsize=(6 * len(operations), 4.5), sharey=True, squeeze=False)
    for panel, operation in zip(panels[0], operations, strict=True):
        for client, server in COMBINATIONS:
            points = [
                (row["size"], row["p50_us"])
                for row in rows
                if (row["operation"], row["client"], row["server"]) == (operation, client, server)
            ]
            if points:
                dashes = "-" if server == "rmemcached" else "--"
                panel.plot(*zip(*points, strict=True), dashes, marker="o", markersize=4, label=f"{client}, {server}")
        sizes = sorted({row["size"] for row in rows})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sizes, [size_name(size) for size in sizes])
        panel.set_title(operation)
        panel.set_xlabel("value size")
        panel.grid(True, which="both", alpha=0.25)
    panels[0][0].set_ylabel("p50, microseconds")
    panels[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help=f"value sizes, comma-separated (default: {SIZES})")
    parser.add_argument("--operations", default="get,set", help="default: get,set")
    parser.add_argument("--transports", default=CLIENTS, help=f"default: {CLIENTS}")
    parser.add_argument("--servers", default="rmemcached,memcached", help="default: rmemcached,memcached")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each sample (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each kind (default: 5)")
    parser.add_argument("--least", type=int, default=20, help="operations in each sample at least (default: 20)")
    parser.add_argument(
        "--cores",
        choices=CORES,
        default="any",
        help="client and servers share one core, or have one each (default: as the scheduler likes)",
    )
    add_json(parser)
    add_plot(parser, "p50 over size")
    options = parser.parse_args(arguments)
    try:
        sizes = [parse_size(size) for size in options.sizes.split(",")]
    except ValueError:
        parser.error(f"--sizes: not sizes: {options.sizes}")
    clients = options.transports.split(",")
    operations = options.operations.split(",")
    names = options.servers.split(",")
    for given, known in ((clients, tuple(CLIENTS.split(","))), (operations, OPERATIONS)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is not one of {', '.join(known)}")
    for name in names:
        if name not in ("rmemcached", "memcached"):
            parser.error(f"{name!r} is not one of rmemcached, memcached")
    if options.cores == "apart" and len(os.sched_getaffinity(0)) < 2:
        parser.error("--cores apart needs two cores")
    check_plot(parser, options)
    if "memcached" in names and memcached_path() is None:
        print("memcached is not installed: no comparison with it (apt-get install memcached)", file=sys.stderr)
        names.remove("memcached")
    if "pymemcache" in clients and not have_pymemcache():
        print("pymemcache is not installed: no comparison with it (pip install pymemcache)", file=sys.stderr)
        clients.remove("pymemcache")
    with running(clients, names, options.cores) as made:
        rows = measure(made, sizes, operations, options.seconds, options.rounds, options.least)
    figures = {"seconds": options.seconds, "rounds": options.rounds, "cores": options.cores, "results": rows}
    if options.plot:
        plot(rows, options.plot)
    put_out(options, figures, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

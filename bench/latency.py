#!/usr/bin/env python3
"""Latency of get and set from Python: rmemcached over shared memory, RDMA and TCP, with memcached and pymemcache.

Starts rmemcached and, if it is installed, memcached, with one worker thread each, on loopback. The combinations of
client and server take turns in short samples: other load on the machine slows all of them alike, and the ratios hold.
Every value is compared byte for byte; the comparison is not timed.

Plain TCP is several times faster or slower depending on whether client and server share a core, and the scheduler may
decide that differently for each server. --cores decides it for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from figures import add_json, add_plot, check_plot, put_out  # noqa: E402
from servers import Server, memcached_path, start_memcached, start_rmemcached  # noqa: E402

from rmemcached.client import Client  # noqa: E402

SIZES = "8,100,1k,64k,1m"
CLIENTS = "soft_shm,soft_iw,tcp,pymemcache"
OPERATIONS = ("get", "set")
CORES = {"any": "cores as the scheduler chooses", "together": "client and server on one core", "apart": "a core each"}
SERVER_FLAGS = ("-t", "1", "-m", "256", "-I", "8m")
TIMEOUT = 30.0
VALUES = 4  # different values of one size
WARM_UP = 20

# (client, server) in the order of the table, with their colours in the plot
COLOURS = {
    ("soft_shm", "rmemcached"): "#2a9d6f",
    ("soft_iw", "rmemcached"): "#3b8ed0",
    ("tcp", "rmemcached"): "#9a6fd0",
    ("pymemcache", "rmemcached"): "#c9a227",
    ("tcp", "memcached"): "#d9652b",
    ("pymemcache", "memcached"): "#c8446a",
}
COMBINATIONS = tuple(COLOURS)
GREY = "#7d8590"


def parse_size(text: str) -> int:
    """Bytes from "100", "64k" or "1m". Raises ValueError."""
    factors = {"k": 1024, "m": 1024 * 1024}
    factor = factors.get(text[-1:].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def size_name(size: int) -> str:
    """A number of bytes as text, for example "64 KB"."""
    if size >= 2**20 and size % 2**20 == 0:
        return f"{size >> 20} MB"
    if size >= 1024 and size % 1024 == 0:
        return f"{size >> 10} KB"
    return f"{size} B"


def make_client(name: str, server: Server) -> Any:
    """A client of the server: "pymemcache", or our own with the transport of that name."""
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
def running(
    clients: list[str], names: list[str], cores: str = "any", memcached: str | None = None
) -> Iterator[dict[tuple[str, str], Any]]:
    """Starts the servers and connects the clients: {(client, server): client object}.

    cores: one of CORES. memcached: the program to start, by default the installed one.
    """
    starters: dict[str, Callable[..., Server]] = {
        "rmemcached": start_rmemcached,
        "memcached": functools.partial(start_memcached, program=memcached),
    }
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


def sample(
    client: Any, operation: str, key: str, values: list[bytes], seconds: float, least: int, pause: float = 0
) -> list[int]:
    """Latencies in nanoseconds of one operation, repeated for `seconds` and at least `least` times.

    pause: seconds of sleep before each operation, outside the measured time. Raises ValueError for a changed value.
    """
    latencies = []
    get, put = client.get, client.set
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


def percentile(ordered: list[int], fraction: float) -> float:
    """A percentile in microseconds; `ordered` are nanoseconds in rising order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] / 1000


def measure(
    clients: dict[tuple[str, str], Any],
    sizes: list[int],
    operations: list[str],
    seconds: float,
    rounds: int,
    least: int,
    pause: float = 0,
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
                sample(client, operation, key, values, 0, min(least, WARM_UP), pause)
            for _ in range(rounds):
                for which, client in clients.items():
                    key = f"{which[0]}-{operation}-{size}"
                    client.set(key, values[0])
                    gc.disable()
                    try:
                        taken[which] += sample(client, operation, key, values, seconds, least, pause)
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
        row["p50_to_tcp_memcached"] = ratio(rows, row, "tcp", "memcached")
        row["p50_to_memcached"] = ratio(rows, row, "pymemcache", "memcached")
    return rows


def ratio(rows: list[dict[str, Any]], row: dict[str, Any], client: str, server: str) -> float | None:
    """p50 of a row over that of another client and server for the same operation and size; None without such a row."""
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
    """The rows as text, those of one placement after those of another."""
    lines: list[str] = []
    for cores in dict.fromkeys(row["cores"] for row in rows):
        if lines:
            lines.append("")
        lines += [
            f"{CORES[cores]:<71} p50 relative to",
            "        size  client      server          p50 us     p99 us      ops/s"
            "    our tcp   memcached by: our tcp, pymemcache",
        ]
        previous = None
        for row in rows:
            if row["cores"] != cores:
                continue
            group = (row["operation"], row["size"])
            if previous not in (None, group):
                lines.append("")
            name = f"{row['operation']} {size_name(row['size']):>8}" if group != previous else ""
            previous = group
            ratios = "".join(
                f"{'' if row[key] is None else format(row[key], '.2f'):>{width}}"
                for key, width in (("p50_to_tcp", 11), ("p50_to_tcp_memcached", 23), ("p50_to_memcached", 12))
            )
            lines.append(
                f"{name:<12}  {row['client']:<11} {row['server']:<11} {row['p50_us']:10.1f} {row['p99_us']:10.1f}"
                f" {row['per_second']:10.0f}{ratios}".rstrip()
            )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Draws p50 over the value size, one panel for each operation and placement.

    The background is transparent and the colours are of medium brightness: readable on a light page and on a dark one.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and nothing in the file depends on when it was made.
    matplotlib.rc("svg", fonttype="none", hashsalt="rmemcached")
    matplotlib.rc("font", size=9)
    matplotlib.rc("text", color=GREY)
    matplotlib.rc("xtick", color=GREY)
    matplotlib.rc("ytick", color=GREY)
    matplotlib.rc("axes", labelcolor=GREY, edgecolor=GREY)
    panels = list(dict.fromkeys((row["operation"], row["cores"]) for row in rows))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(1.5 + 3.5 * len(panels), 3.6), sharey=True, squeeze=False)
    for panel, (operation, cores) in zip(axes[0], panels, strict=True):
        for (client, server), colour in COLOURS.items():
            points = [
                (row["size"], row["p50_us"])
                for row in rows
                if (row["operation"], row["cores"], row["client"], row["server"]) == (operation, cores, client, server)
            ]
            if points:
                dashes = "-" if server == "rmemcached" else "--"
                label = f"{client} client, {server}" if client != "pymemcache" else f"pymemcache, {server}"
                panel.plot(*zip(*points, strict=True), dashes, color=colour, marker="o", markersize=3, label=label)
        sizes = sorted({row["size"] for row in rows})
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xticks(sizes, [size_name(size) for size in sizes], rotation=45)
        panel.set_title(f"{operation}, {CORES[cores]}", fontsize=9)
        panel.minorticks_off()
        panel.grid(True, color=GREY, alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("median latency, microseconds")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.06 * -(-len(labels) // 3), 1, 1))
    figure.savefig(path, transparent=True, metadata={"Date": None} if path.endswith(".svg") else None)


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
        "--pause", type=float, default=0, metavar="US", help="microseconds of sleep before each operation (default: 0)"
    )
    parser.add_argument(
        "--cores",
        default="any",
        help="any: as the scheduler chooses; together: client and server on one core; apart: a core each;"
        " or several of them, comma-separated (default: any)",
    )
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
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
    placements = options.cores.split(",")
    for given, known in ((clients, tuple(CLIENTS.split(","))), (operations, OPERATIONS), (placements, tuple(CORES))):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is not one of {', '.join(known)}")
    for name in names:
        if name not in ("rmemcached", "memcached"):
            parser.error(f"{name!r} is not one of rmemcached, memcached")
    if "apart" in placements and len(os.sched_getaffinity(0)) < 2:
        parser.error("--cores apart needs two cores")
    check_plot(parser, options)
    if "memcached" in names and (options.memcached or memcached_path()) is None:
        print("memcached is not installed: no comparison with it (apt-get install memcached)", file=sys.stderr)
        names.remove("memcached")
    if "pymemcache" in clients and not have_pymemcache():
        print("pymemcache is not installed: no comparison with it (pip install pymemcache)", file=sys.stderr)
        clients.remove("pymemcache")
    rows = []
    for cores in placements:
        with running(clients, names, cores, options.memcached) as made:
            taken = measure(
                made, sizes, operations, options.seconds, options.rounds, options.least, options.pause / 1e6
            )
        rows += [{**row, "cores": cores} for row in taken]
    figures = {key: getattr(options, key) for key in ("seconds", "rounds", "cores", "pause")} | {"results": rows}
    if options.plot:
        plot(rows, options.plot)
    put_out(options, figures, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

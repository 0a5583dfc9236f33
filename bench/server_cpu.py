#!/usr/bin/env python3
"""Server CPU per request, start-up time and resident memory: rmemcached compared with memcached.

50 connections speak the text protocol over loopback TCP with a server of one worker thread: 9 gets to 1 set, 32 B keys,
100 B values; first one request at a time on each connection, then 16. With --multiget, all are gets of so many keys.
CPU time is the user and system time of all threads of the server. The servers take turns, so that other load on the
machine meets both.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from figures import add_json, put_out  # noqa: E402
from servers import Server, memcached_path, start_memcached, start_rmemcached  # noqa: E402

from rmemcached.client import _load  # noqa: E402

SERVER_FLAGS = ("-t", "1", "-m", "256", "-c", "4096")
KEYS = 10000
FILL_BYTES = 64 << 20  # of values, at most


def fill(server: Server, keys: int, size: int = 100) -> None:
    """Stores the keys that the load generator asks for. Raises ConnectionError, ValueError."""
    with server.connect(30) as plain:
        at_once = max(1, min(1000, 1_000_000 // (size + 100)))
        for first in range(0, keys, at_once):
            count = min(at_once, keys - first)
            plain.sendall(_load.store_commands(first, count, value_size=size))
            wanted = count * len(b"STORED\r\n")
            received = b""
            while len(received) < wanted:
                more = plain.recv(65536)
                if not more:
                    raise ConnectionError("the server closed the connection")
                received += more
            if received != b"STORED\r\n" * count:
                raise ValueError(f"wrong reply {received[:80]!r}")


def measure(
    server: Server,
    connections: int,
    seconds: float,
    depth: int,
    keys: int,
    seed: int,
    size: int = 100,
    multiget: int = 0,
) -> dict[str, float]:
    """CPU microseconds per request, or per key of a multiget, and requests per second of one run."""
    with contextlib.ExitStack() as stack:
        plain = [stack.enter_context(server.connect(10)) for _ in range(connections)]
        before = server.cpu_seconds()
        done = _load.run(
            [p.fileno() for p in plain],
            seconds,
            keys=keys,
            value_size=size,
            depth=depth,
            set_every=0 if multiget else 10,
            seed=seed,
            multiget=multiget or 1,
        )
        used = server.cpu_seconds() - before
    asked = done["requests"] * (multiget or 1)
    return {"cpu_us": used / asked * 1e6, "per_second": asked / done["seconds"]}


def run(
    connections: int,
    seconds: float,
    rounds: int,
    depths: list[int],
    starts: int,
    memcached: str | None = None,
    size: int = 100,
    multiget: int = 0,
) -> dict[str, Any]:
    """Measures everything; the result is the JSON document. memcached: the program, by default the installed one."""
    starters: dict[str, Callable[..., Server]] = {"rmemcached": start_rmemcached}
    memcached = memcached or memcached_path()
    if memcached is not None:
        starters["memcached"] = functools.partial(start_memcached, program=memcached)
    start_up: dict[str, Any] = {name: {"ready_s": [], "resident_bytes": []} for name in starters}
    for _ in range(starts):
        for name, start in starters.items():
            with start(*SERVER_FLAGS) as server:
                start_up[name]["ready_s"].append(server.started_after)
                start_up[name]["resident_bytes"].append(server.resident_bytes())
                server.kill()
    load: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(start(*SERVER_FLAGS)) for name, start in starters.items()}
        keys = max(1, min(KEYS, FILL_BYTES // (size + 100)))
        for server in servers.values():
            fill(server, keys, size)
        for depth in depths:
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
            for number in range(rounds):
                for name, server in servers.items():
                    samples[name].append(measure(server, connections, seconds, depth, keys, number + 1, size, multiget))
            for name, taken in samples.items():
                load.append(
                    {
                        "server": name,
                        "depth": depth,
                        "cpu_us": statistics.median(sample["cpu_us"] for sample in taken),
                        "per_second": statistics.median(sample["per_second"] for sample in taken),
                        "samples": taken,
                    }
                )
    for figures in start_up.values():
        figures["ready_s_median"] = statistics.median(figures["ready_s"])
        figures["resident_bytes_median"] = statistics.median(figures["resident_bytes"])
    return {
        "connections": connections,
        "seconds": seconds,
        "rounds": rounds,
        "size": size,
        "multiget": multiget,
        "start_up": start_up,
        "load": load,
        "ratios": ratios(load),
    }


def ratios(load: list[dict[str, Any]]) -> dict[str, float]:
    """CPU per request of rmemcached over that of memcached, by depth."""
    figure = {(row["server"], row["depth"]): row["cpu_us"] for row in load}
    return {
        str(depth): cpu / figure["memcached", depth]
        for (name, depth), cpu in figure.items()
        if name == "rmemcached" and ("memcached", depth) in figure
    }


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = ["server        ready      resident at start"]
    for name, figures in result["start_up"].items():
        resident = figures["resident_bytes_median"] / 2**20
        lines.append(f"{name:<12} {figures['ready_s_median'] * 1000:6.1f} ms {resident:9.1f} MiB")
    asked = f"gets of {result['multiget']} keys" if result["multiget"] else "9:1 get:set"
    one = "key    " if result["multiget"] else "request"
    several = "keys    " if result["multiget"] else "requests"
    lines += [
        "",
        f"{result['connections']} connections, text protocol, {asked}, {result['size']} B values, one worker thread",
    ]
    lines.append(f"server       pipelined by   CPU per {one}   {several} per second   CPU ratio to memcached")
    for row in result["load"]:
        ratio = result["ratios"].get(str(row["depth"])) if row["server"] == "rmemcached" else None
        lines.append(
            f"{row['server']:<12} {row['depth']:>12} {row['cpu_us']:14.2f} us {row['per_second']:21.0f}"
            + (f" {ratio:24.2f}" if ratio is not None else "")
        )
    if "memcached" not in result["start_up"]:
        lines.append("memcached is not installed: no comparison (apt-get install memcached)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each sample (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each kind (default: 5)")
    parser.add_argument("--depths", default="1,16", help="requests sent at a time, comma-separated (default: 1,16)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (default: 100)")
    parser.add_argument("--multiget", type=int, default=0, metavar="KEYS", help="gets of so many keys, and no sets")
    parser.add_argument("--starts", type=int, default=5, help="starts of each server that are timed (default: 5)")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    depths = [int(depth) for depth in options.depths.split(",")]
    result = run(
        options.connections,
        options.seconds,
        options.rounds,
        depths,
        options.starts,
        options.memcached,
        options.size,
        options.multiget,
    )
    put_out(options, result, report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The hit ratio of a full cache: rmemcached and memcached under the same requests and the same -m.

One connection behaves like an application that caches what it computes: it asks for keys that follow Zipf's law, and
stores those that it did not get. Each key has a value size of its own, spread evenly on a logarithmic scale between
--smallest and --largest bytes. The first half of the requests fills the cache; the ratio is that of the second half.
The exit status is 1 when rmemcached's ratio is more than --points below memcached's.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from figures import add_json, put_out  # noqa: E402
from servers import Server, start_memcached, start_rmemcached  # noqa: E402

BATCH = 50  # keys of one get
VALUE = re.compile(rb"VALUE (\d+) 0 (\d+)\r\n")


def sizes(keys: int, smallest: int, largest: int) -> list[int]:
    """The value size of each key, in bytes."""
    spread = random.Random(1)
    return [int(smallest * (largest / smallest) ** spread.random()) for _ in range(keys)]


def requests(keys: int, count: int, exponent: float) -> list[int]:
    """`count` keys by Zipf's law. A key's popularity is independent of its number, and so of its size."""
    order = list(range(keys))
    source = random.Random(2)
    source.shuffle(order)
    weights = itertools.accumulate((rank + 1) ** -exponent for rank in range(keys))
    return source.choices(order, cum_weights=list(weights), k=count)


def ask(plain: socket.socket, keys: Sequence[int], length: Sequence[int]) -> set[int]:
    """Sends one get and returns the keys that were there. Raises ValueError for a value of a wrong size."""
    plain.sendall(b"get " + " ".join(map(str, keys)).encode() + b"\r\n")
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"END\r\n"):
        part = plain.recv(1 << 20)
        if not part:
            raise ConnectionError("the server closed the connection")
        if len(part) < 5 and parts:
            part = parts.pop() + part
        parts.append(part)
    found = {int(key): int(size) for key, size in VALUE.findall(b"".join(parts))}
    for key, size in found.items():
        if size != length[key]:
            raise ValueError(f"key {key} has {size} bytes, not {length[key]}")
    return set(found)


def run(server: Server, wanted: Sequence[int], length: Sequence[int]) -> dict[str, Any]:
    """Puts the load on one server, stops it, and returns its hit ratio (0 to 1) and counters."""
    filler = memoryview(b"x" * max(length))
    hits = asked = 0
    with server, server.connect(30) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a get follows a set that has no reply
        for first in range(0, len(wanted), BATCH):
            keys = wanted[first : first + BATCH]
            there = ask(plain, list(dict.fromkeys(keys)), length)
            if first >= len(wanted) // 2:
                asked += len(keys)
                hits += sum(key in there for key in keys)
            missing = [key for key in dict.fromkeys(keys) if key not in there]
            if missing:
                pieces: list[bytes | memoryview] = []
                for key in missing:
                    pieces += [b"set %d 0 0 %d noreply\r\n" % (key, length[key]), filler[: length[key]], b"\r\n"]
                plain.sendall(b"".join(pieces))
        stats = server.stats()
    return {
        "version": stats["version"],
        "hit_ratio": hits / asked,
        **{name: int(stats[name]) for name in ("evictions", "curr_items", "bytes", "total_items")},
    }


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{result['requests']} requests for {result['keys']} keys by Zipf's law (exponent {result['exponent']}),"
        f" {result['smallest']} to {result['largest']} B, -m {result['megabytes']}",
        f"{'server':<12}{'version':>9}{'hit ratio':>11}{'evictions':>11}{'items':>9}{'bytes':>12}",
    ]
    for name in ("rmemcached", "memcached"):
        row = result[name]
        lines.append(
            f"{name:<12}{row['version']:>9}{100 * row['hit_ratio']:>9.2f} %{row['evictions']:>11}"
            f"{row['curr_items']:>9}{row['bytes']:>12}"
        )
    lines.append(f"difference: {result['points']:+.2f} points (limit: {-result['limit']:+g})")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="-m of both servers (default: 64)")
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law (default: 1)")
    parser.add_argument("--smallest", type=int, default=50, help="bytes of a value (default: 50)")
    parser.add_argument("--largest", type=int, default=8000, help="bytes of a value (default: 8000)")
    parser.add_argument("--points", type=float, default=1.0, help="that the ratio may be lower (default: 1)")
    parser.add_argument("--flags", default="", help="further flags for both servers, in one word")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    length = sizes(options.keys, options.smallest, options.largest)
    wanted = requests(options.keys, options.requests, options.exponent)
    flags = ["-m", str(options.megabytes), *options.flags.split()]
    result: dict[str, Any] = {
        name: getattr(options, name) for name in ("requests", "keys", "exponent", "smallest", "largest", "megabytes")
    }
    result["rmemcached"] = run(start_rmemcached(*flags), wanted, length)
    result["memcached"] = run(start_memcached(*flags, program=options.memcached), wanted, length)
    result["points"] = 100 * (result["rmemcached"]["hit_ratio"] - result["memcached"]["hit_ratio"])
    result["limit"] = options.points
    put_out(options, result, report(result))
    return 0 if result["points"] >= -options.points else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The hit ratio of a full cache: rmemcached and memcached under the same requests and the same -m.

rmemcached runs with memcached's segmented LRU and with S3-FIFO (-o lru_algorithm=s3fifo); with each of them also for a
Client that reads the daemon's memory itself (direct: -o rdma_direct), and tells it of hits afterwards. One connection
behaves like an application that caches what it computes: it asks for keys, and stores those that it did not get. Each
key has a value size of its own, spread evenly on a logarithmic scale between --smallest and --largest bytes. The
first half of the requests fills the cache; the ratio is that of the second half. Then the same connection asks
for small values that are there, again and again: the daemon's CPU time for one of these hits. The exit status is 1
when rmemcached's ratio is more than --points below memcached's.

--mix says which keys are asked for: those that follow Zipf's law (zipf); with a scan of all keys beside it, that asks
for one key of three (scan); with as many keys that are asked for once (once); with another order of popularity eight
times (changing); or a fifth of the keys, one behind the other, again and again (loop).
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from rmemcached.bench.figures import add_json, put_out
from rmemcached.bench.servers import Server, start_memcached, start_rmemcached
from rmemcached.client import Client

BATCH = 50  # keys of one get
RECENT = 5000  # keys asked for last, the smallest fifth of which CPU time is measured with
HITS = 20_000  # of a round
ROUNDS = 20
ROWS = ("rmemcached", "s3fifo", "direct", "s3, direct", "memcached")
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


def mixed(mix: str, keys: int, count: int, exponent: float) -> tuple[list[int], int]:
    """The requests of a mix, and the number of keys that it takes."""
    if mix == "loop":
        return list(itertools.islice(itertools.cycle(range(keys // 5)), count)), keys
    base = requests(keys, count, exponent)
    if mix == "changing":
        phase = -(-count // 8)
        return [(key * 7919 + at // phase * 12345) % keys for at, key in enumerate(base)], keys
    if mix == "once":
        pairs = zip(base, range(keys, keys + count), strict=False)
        return list(itertools.islice(itertools.chain.from_iterable(pairs), count)), keys + count // 2
    if mix == "scan":
        scan = itertools.cycle(range(keys))
        return [next(scan) if at % 30000 >= 20000 else key for at, key in enumerate(base)], keys
    return base, keys


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


class Asking:
    """One connection that speaks the text protocol."""

    def __init__(self, server: Server, length: Sequence[int]) -> None:
        self.plain = server.connect(30)
        self.plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a get follows a set that has no reply
        self.length = length
        self.filler = memoryview(b"x" * max(length))

    def found(self, keys: Sequence[int]) -> set[int]:
        """Those of the keys that are there."""
        return ask(self.plain, keys, self.length)

    def store(self, keys: Sequence[int]) -> None:
        pieces: list[bytes | memoryview] = []
        for key in keys:
            size = self.length[key]
            pieces += [b"set %d 0 0 %d noreply\r\n" % (key, size), self.filler[:size], b"\r\n"]
        self.plain.sendall(b"".join(pieces))

    def close(self) -> None:
        self.plain.close()


class Reading:
    """A Client that asks nobody for what it finds."""

    def __init__(self, server: Server, length: Sequence[int]) -> None:
        self.client = Client(server.address, transport="soft_shm", timeout=30, default_noreply=False)
        self.length = length
        self.filler = b"x" * max(length)

    def found(self, keys: Sequence[int]) -> set[int]:
        """Those of the keys that are there."""
        found = {int(key): len(value) for key, value in self.client.get_many([str(key) for key in keys]).items()}
        if any(size != self.length[key] for key, size in found.items()):
            raise ValueError("a value has a wrong size")
        return set(found)

    def store(self, keys: Sequence[int]) -> None:
        self.client.set_many({str(key): self.filler[: self.length[key]] for key in keys})

    def close(self) -> None:
        self.client.close()


def hit_cpu(server: Server, cache: Asking | Reading, wanted: Sequence[int], length: Sequence[int]) -> float:
    """The daemon's CPU time for a hit, in microseconds: in the round that was disturbed least."""
    recent = list(dict.fromkeys(reversed(wanted)))[:RECENT]
    keys = sorted(recent, key=lambda key: length[key])[: max(len(recent) // 5, 1)]
    cost = []
    for _ in range(ROUNDS):
        before, hits = server.cpu_seconds(), 0
        for _ in range(-(-HITS // len(keys))):
            for first in range(0, len(keys), BATCH):
                hits += len(cache.found(keys[first : first + BATCH]))
        cost.append((server.cpu_seconds() - before) * 1e6 / max(hits, 1))
    return min(cost)


def run(
    server: Server, wanted: Sequence[int], length: Sequence[int], make: type[Asking] | type[Reading] = Asking
) -> dict[str, Any]:
    """Puts the load on one server, stops it, and returns its hit ratio (0 to 1) and counters."""
    hits = asked = 0
    with server, closing(make(server, length)) as cache:
        for first in range(0, len(wanted), BATCH):
            keys = wanted[first : first + BATCH]
            there = cache.found(list(dict.fromkeys(keys)))
            if first >= len(wanted) // 2:
                asked += len(keys)
                hits += sum(key in there for key in keys)
            missing = [key for key in dict.fromkeys(keys) if key not in there]
            if missing:
                cache.store(missing)
        cpu = hit_cpu(server, cache, wanted, length)
        stats = server.stats()
    return {
        "version": stats["version"],
        "hit_ratio": hits / asked,
        "hit_cpu_us": cpu,
        **{name: int(stats[name]) for name in ("evictions", "curr_items", "bytes", "total_items")},
    }


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        f"{result['requests']} requests for {result['keys']} keys, {result['mix']} (exponent {result['exponent']}),"
        f" {result['smallest']} to {result['largest']} B, -m {result['megabytes']}",
        f"{'server':<12}{'version':>9}{'hit ratio':>11}{'misses':>9}{'CPU of a hit':>14}{'evictions':>11}{'items':>9}"
        f"{'bytes':>12}",
    ]
    for name in ROWS:
        row = result[name]
        lines.append(
            f"{name:<12}{row['version']:>9}{100 * row['hit_ratio']:>9.2f} %"
            f"{row['misses']:>9.3f}{row['hit_cpu_us']:>11.3f} us{row['evictions']:>11}"
            f"{row['curr_items']:>9}{row['bytes']:>12}"
        )
    lines.append("misses: as a ratio to rmemcached's with the segmented LRU")
    lines.append(f"difference: {result['points']:+.2f} points (limit: {-result['limit']:+g})")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="-m of both servers (default: 64)")
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law (default: 1)")
    parser.add_argument("--mix", choices=("zipf", "scan", "once", "changing", "loop"), default="zipf")
    parser.add_argument("--smallest", type=int, default=50, help="bytes of a value (default: 50)")
    parser.add_argument("--largest", type=int, default=8000, help="bytes of a value (default: 8000)")
    parser.add_argument("--points", type=float, default=1.0, help="that the ratio may be lower (default: 1)")
    parser.add_argument("--flags", default="", help="further flags for both servers, in one word")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    wanted, keys = mixed(options.mix, options.keys, options.requests, options.exponent)
    length = sizes(keys, options.smallest, options.largest)
    flags = ["-m", str(options.megabytes), *options.flags.split()]
    result: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("requests", "keys", "mix", "exponent", "smallest", "largest", "megabytes")
    }
    result["rmemcached"] = run(start_rmemcached(*flags), wanted, length)
    result["s3fifo"] = run(start_rmemcached(*flags, "-o", "lru_algorithm=s3fifo"), wanted, length)
    direct = [*flags, "-o", "rdma_direct"]
    result["direct"] = run(start_rmemcached(*direct), wanted, length, Reading)
    result["s3, direct"] = run(start_rmemcached(*direct, "-o", "lru_algorithm=s3fifo"), wanted, length, Reading)
    result["memcached"] = run(start_memcached(*flags, program=options.memcached), wanted, length)
    for name in ROWS:
        result[name]["misses"] = (1 - result[name]["hit_ratio"]) / max(1 - result["rmemcached"]["hit_ratio"], 1e-9)
    result["points"] = 100 * (result["rmemcached"]["hit_ratio"] - result["memcached"]["hit_ratio"])
    result["limit"] = options.points
    put_out(options, result, report(result))
    return 0 if result["points"] >= -options.points else 1


if __name__ == "__main__":
    sys.exit(main())

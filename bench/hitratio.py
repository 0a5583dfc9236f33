"""`rmemcached-bench hitratio`: the misses of a full cache under the same requests and the same -m.

lru is rmemcached with memcached's segmented LRU, s3fifo with S3-FIFO (-o lru_algorithm=s3fifo); +direct: a Client reads
the daemon's memory itself (-o rdma_direct), and reports its hits afterwards. One connection behaves like an application
that caches its results: it asks for keys, and stores each missing key. Each key has a value size of its own, spread
evenly on a logarithmic scale between --smallest and --largest bytes. The first half of the requests fills the cache;
only the misses of the second half count. Then the same connection asks for small stored values again and again: this
gives the daemon's CPU time for a hit. The exit status is 1 when a contender of ours misses more than memcached by more
than --points.

--mix chooses the keys: by Zipf's law (zipf); with a scan of all keys beside the rest, for every third key (scan); with
as many keys again, each asked for once (once); with a new order of popularity eight times (changing); or a fifth of the
keys in a row, again and again (loop). Each round has other requests.

There is no floor: with values of many sizes nobody can compute the fewest possible misses.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import socket
from collections.abc import Sequence
from contextlib import closing

from rmemcached.bench.arguments import placement, several
from rmemcached.bench.contenders import Contender, described, parse_contender, start
from rmemcached.bench.document import Document, Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Case, Figure, Run, Taken, take_turns
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server, memcached_path
from rmemcached.client import Client

HELP = "the misses of a full cache, with each way to evict"
BATCH = 50  # keys of a get
RECENT = 5000  # keys asked for last; CPU time is measured with the smallest fifth of them
HITS = 20_000  # in a pass, for the CPU time of a hit; fewer after few requests: HITS_PART of them
HITS_PART = 0.05
PASSES = 20
ITEM_MOST = 1_000_000  # bytes of a value for an item of the usual size
TURNS = False
VALUE = re.compile(rb"VALUE (\d+) 0 (\d+)\r\n")
FIGURES = (Figure("misses_percent", "percent"), Figure("hit_cpu_us", "us"), Figure("evictions", "", ""))
S3FIFO, DIRECT = ("-o", "lru_algorithm=s3fifo"), ("-o", "rdma_direct")
# The variants of our daemon: {name: flags}
VARIANTS = {"lru": (), "s3fifo": S3FIFO, "lru+direct": DIRECT, "s3fifo+direct": (*S3FIFO, *DIRECT)}
CONTENDERS = (*VARIANTS, "memcached")
GRAMMAR = f"{', '.join(CONTENDERS)}, memcached=PATH"


def parse_contenders(text: str) -> list[Contender]:
    def parse(name: str) -> Contender:
        if name in VARIANTS:
            transport = "soft_shm" if name.endswith("+direct") else "tcp"
            return Contender(name, "rmemcached", transport, flags=VARIANTS[name])
        if name.startswith("memcached") and "+" not in name:
            return parse_contender(name)
        raise argparse.ArgumentTypeError(f"{name!r} is no contender: {GRAMMAR}")

    return several(text, parse, "a contender")


def contenders() -> list[Contender]:
    return parse_contenders(",".join(CONTENDERS if memcached_path() else VARIANTS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=64, help="-m of all servers (default: 64)")
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law (default: 1)")
    parser.add_argument("--mix", choices=("zipf", "scan", "once", "changing", "loop"), default="zipf")
    parser.add_argument("--smallest", type=int, default=50, help="bytes of a value (default: 50)")
    parser.add_argument("--largest", type=int, default=8000, help="bytes of a value (default: 8000)")
    parser.add_argument("--points", type=float, default=1.0, help="that a part of 100 may be more (default: 1)")
    parser.add_argument("--flags", default="", help="further flags for all servers, in one word")


def sizes(keys: int, smallest: int, largest: int) -> list[int]:
    """The value size of each key, in bytes."""
    spread = random.Random(1)
    return [int(smallest * (largest / smallest) ** spread.random()) for _ in range(keys)]


def requests(keys: int, count: int, exponent: float, seed: int) -> list[int]:
    """`count` keys by Zipf's law. A key's popularity is independent of its number, and so of its size."""
    order = list(range(keys))
    source = random.Random(seed)
    source.shuffle(order)
    weights = itertools.accumulate((rank + 1) ** -exponent for rank in range(keys))
    return source.choices(order, cum_weights=list(weights), k=count)


def mixed(mix: str, keys: int, count: int, exponent: float, seed: int = 2) -> tuple[list[int], int]:
    """The requests of a mix, and the number of its keys."""
    if mix == "loop":
        return list(itertools.islice(itertools.cycle(range(max(keys // 5, 1))), count)), keys
    base = requests(keys, count, exponent, seed)
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
    """Sends a get and returns the keys found. Raises ValueError for a value of a wrong size."""
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
    """A connection with the text protocol."""

    TOLD = "a plain socket over tcp"

    def __init__(self, server: Server, length: Sequence[int]) -> None:
        self.plain = server.connect(30)
        # Otherwise Nagle's algorithm would delay a get behind a set without a reply.
        self.plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.length = length
        self.filler = memoryview(b"x" * max(length))

    def found(self, keys: Sequence[int]) -> set[int]:
        """The keys found."""
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
    """A Client with direct reads."""

    TOLD = "rmemcached.client over soft_shm, which reads the items"

    def __init__(self, server: Server, length: Sequence[int]) -> None:
        self.client = Client(server.address, transport="soft_shm", timeout=30, default_noreply=False)
        self.length = length
        self.filler = b"x" * max(length)

    def found(self, keys: Sequence[int]) -> set[int]:
        """The keys found."""
        found = {int(key): len(value) for key, value in self.client.get_many([str(key) for key in keys]).items()}
        if any(size != self.length[key] for key, size in found.items()):
            raise ValueError("a value has a wrong size")
        return set(found)

    def store(self, keys: Sequence[int]) -> None:
        self.client.set_many({str(key): self.filler[: self.length[key]] for key in keys})

    def close(self) -> None:
        self.client.close()


def hit_cpu(server: Server, cache: Asking | Reading, wanted: Sequence[int], length: Sequence[int]) -> float:
    """The daemon's CPU time for a hit, in microseconds, in the least disturbed of several passes."""
    recent = list(dict.fromkeys(reversed(wanted)))[:RECENT]
    keys = sorted(recent, key=lambda key: length[key])[: max(len(recent) // 5, 1)]
    cost = []
    least = min(HITS, int(len(wanted) * HITS_PART))
    for _ in range(PASSES):
        before, hits = server.cpu_seconds(), 0
        for _ in range(-(-least // len(keys))):
            for first in range(0, len(keys), BATCH):
                hits += len(cache.found(keys[first : first + BATCH]))
        cost.append((server.cpu_seconds() - before) * 1e6 / max(hits, 1))
    return min(cost)


def replay(
    server: Server, wanted: Sequence[int], length: Sequence[int], make: type[Asking] | type[Reading] = Asking
) -> dict[str, float]:
    """Puts the load on a server; returns its figures."""
    hits = asked = 0
    with closing(make(server, length)) as cache:
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
    return {
        "misses_percent": 100 * (1 - hits / asked),
        "hit_cpu_us": cpu,
        "evictions": float(server.stats()["evictions"]),
    }


def case_of(options: argparse.Namespace) -> Case:
    names = ("requests", "keys", "mix", "exponent", "smallest", "largest", "megabytes")
    return Case(
        f"{options.mix} (exponent {options.exponent:g}), {options.requests} requests for {options.keys} keys,"
        f" {options.smallest} to {options.largest} B, -m {options.megabytes}",
        {name: getattr(options, name) for name in names},
        FIGURES,
    )


def run_of(contender: Contender, options: argparse.Namespace, folder: str, record: Record) -> Run:
    flags = ("-m", str(options.megabytes), *options.flags.split())
    _, for_servers = placement("any")

    def run(number: int) -> Taken:
        # The first round's requests are always the same; in each round all contenders get the same requests.
        wanted, keys = mixed(options.mix, options.keys, options.requests, options.exponent, number + 1)
        length = sizes(keys, options.smallest, options.largest)
        with start(contender, flags, folder, for_servers) as server:
            reads = Reading if "rdma_direct" in contender.flags else Asking
            record.contender({**described(contender, server), "client": reads.TOLD})
            return Taken(replay(server, wanted, length, reads))

    return run


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    # A refused set without a reply would count as a miss.
    if max(options.smallest, options.largest) > ITEM_MOST and "-I" not in options.flags:
        raise BenchError(f"--largest is {ITEM_MOST} at most, unless --flags=-I allows larger items")
    case = case_of(options)
    steps = record.steps(len(options.contenders))
    with scratch() as folder:
        runs = {contender.name: run_of(contender, options, folder, record) for contender in options.contenders}
        record.case(case, take_turns(case, runs, record.round, steps, warm=False))


def missed(document: Document, options: argparse.Namespace) -> list[str]:
    """Returns a line for each contender of ours with more misses than memcached, by more than --points."""
    found = {row["contender"]: row["median"] for row in document["results"] if row["figure"] == "misses_percent"}
    theirs = [name for name in found if name.startswith("memcached")][:1]
    return [
        f"{name}: {found[name]:.2f} % misses are more than {other}'s {found[other]:.2f} % and {options.points:g} points"
        for other in theirs
        for name in found
        if not name.startswith("memcached") and found[name] > found[other] + options.points
    ]

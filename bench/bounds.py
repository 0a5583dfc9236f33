"""`rmemcached-bench bounds`: whether the server keeps its bounds beside memcached and beside the floor.

The command measures the server's CPU for a request or a key (one worker, keys of 32 B, at C speed), throughput and p99
of two workers, the longest pause of sets that evict, lock waits of gets, and memory. One get or set at a time is
measured beside a bare echo server with the same replies, every other case beside memcached. The bounds are for
memcached 1.6.45, built by `./configure CFLAGS=-O2 && make`; --memcached names the program. The exit status is 1 when a
bound is missed. A bound inside the 95 % interval of the ratio is undecided, and not missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmemcached.bench import cpu, locks, memory
from rmemcached.bench.arguments import CORES, one_of_cores, placement, size_name
from rmemcached.bench.contenders import Contender, described, parse_contender, pinned, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import TCP, UNIX, floor_servers
from rmemcached.bench.measure import Case, Figure, Steps, runs_of, take_turns
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import memcached_path

HELP = "server CPU and memory of the cases that have bounds, beside memcached and the floor"
REFERENCE = "memcached"
OVER = ("tcp", "unix")
ALONE, PIPELINED, OTHERS, MANY, LARGE, TWO, EVICTING, WAITS, MEMORY = (
    "one request at a time",
    "pipelined by 16",
    "other requests",
    "gets of many keys, a key",
    "large values",
    "two workers",
    "sets that evict, 100000 a second",
    "lock waits",
    "memory",
)
K = 1024


@dataclass(frozen=True)
class Row:
    """A row: a case and its bound. bound: the limit of the ratio to memcached; empty: 1.05 is the limit of the ratio to
    the floor, over TCP and UNIX. figure: the name of the bounded figure."""

    group: str
    operation: str
    bound: str = ""
    depth: int = 1
    keys: int = 1
    size: int = 100
    connections: int = 50
    workers: int = 1
    rate: int = 0
    figure: str = "cpu_us"


ROWS = (
    *(Row(ALONE, what, connections=count) for what, count in itertools.product(("get", "set"), (50, 500, 1000))),
    Row(PIPELINED, "get", "<= 0.55", depth=16),
    Row(PIPELINED, "set", "<= 0.6", depth=16),
    *(
        Row(OTHERS, what, bound, depth=depth)
        for (depth, bound), what in itertools.product(
            ((1, "<= 0.9"), (16, "<= 0.7")), ("miss", "delete", "incr", "touch", "mg", "ms")
        )
    ),
    *(Row(MANY, "get", bound, keys=keys) for keys, bound in ((10, "<= 0.6"), (100, "<= 0.5"), (1000, "<= 0.5"))),
    *(
        Row(MANY, "get", bound, keys=100, size=size)
        for size, bound in ((300, "<= 0.6"), (K, "<= 0.65"), (4 * K, "<= 0.8"))
    ),
    *(Row(LARGE, what, "<= 0.9", size=size * K) for what, size in itertools.product(("get", "set"), (16, 64, 1024))),
)
TWO_WORKERS = tuple(
    Row(TWO, what, bound, workers=2, figure=figure)
    for what, (figure, bound) in itertools.product(("get", "set"), (("per_second", ">= 1.05"), ("p99_us", "<= 1")))
)
# With a rate, the depth is the number of requests that can wait on a connection.
EVICTIONS = (Row(EVICTING, "new", "<= 1", depth=10, rate=100_000, figure="longest_us"),)
SIZES = len({row.size for row in ROWS})
MOST = K * K - K  # bytes of a value for an item of the usual size, with its key and header
# The servers for groups of rows: their flags, and the rows.
PLACES: tuple[tuple[tuple[str, ...], tuple[Row, ...]], ...] = (
    (cpu.FLAGS, tuple(row for row in ROWS if row.size <= MOST)),
    # A value of 1 MB is larger than an item under the usual -I of 1 MB.
    ((*cpu.FLAGS, *cpu.LARGE_FLAGS), tuple(row for row in ROWS if row.size > MOST)),
    (("-t", "2", "-m", "256"), TWO_WORKERS),
    (("-t", "1", "-m", "64"), EVICTIONS),
)
FIGURE_NAMES = {"per_second": "throughput", "p99_us": "p99", "longest_us": "the longest wait"}
MORE_AT_START = 10  # MB
DELETES_MOST = 2_000_000  # a second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.15, help="of each run (default: 0.15)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each contender in a round (default: 2)")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the memory of an item (default: 1000000)")
    parser.add_argument("--cores", type=one_of_cores, default="any", help=f"{', '.join(CORES)} (default: any)")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )


def placed(group: str, cores: str) -> str:
    """A group of cases with their placement on cores: files with different placements are not compared."""
    return group if cores == "any" else f"{group}, {CORES[cores]}"


def name_of(row: Row, cores: str) -> str:
    what = f"get of {row.keys} keys" if row.keys > 1 else cpu.OTHERS.get(row.operation, row.operation)
    deep = f", pipelined by {row.depth}" if row.group == OTHERS and row.depth > 1 else ""
    figure = "" if row.figure == "cpu_us" else f", {FIGURE_NAMES[row.figure]}"
    return f"{placed(row.group, cores)}: {what} of {size_name(row.size)}{deep}, {row.connections} connections{figure}"


def case_of(row: Row, seconds: float, cores: str) -> Case:
    """The case of a row, with its floors and bounds. seconds: of a run."""
    stored = cpu.keys_of(row.size, SIZES, row.operation)
    if row.operation == "delete":
        # There are as many keys as a run of so many seconds deletes.
        stored = min(stored, max(cpu.KEYS, int(seconds * DELETES_MOST)))
    said: dict[str, Any] = {"operation": row.operation, "depth": row.depth, "multiget": row.keys, "size": row.size}
    said |= {"connections": row.connections, "stored": stored}
    said |= {"workers": row.workers, "rate": row.rate, "cores": cores}
    floors = {"tcp": TCP, "memcached": TCP} | ({} if row.bound else {"unix": UNIX})
    # A batch fits into a socket's buffers: otherwise the floor would wait for its client.
    fits = row.depth == 1 or row.depth * (row.size + 64) <= cpu.BATCH_MOST
    has_floor = row.operation in cpu.OPERATIONS and row.workers == 1 and fits
    bounds = {"tcp": f"{row.bound} of {REFERENCE}"}
    if not row.bound:
        bounds = {"tcp": f"<= 1.05 of {TCP}", "unix": f"<= 1.05 of {UNIX}"}
    # The figure of the bound comes first.
    figures = sorted(cpu.PACED if row.rate else cpu.FIGURES, key=lambda figure: figure.name != row.figure)
    kept = floors if has_floor else {}
    return Case(name_of(row, cores), said, tuple(figures), kept, bounds, placed(row.group, cores))


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    program = options.memcached or memcached_path()
    if program is None:
        raise BenchError("memcached is not installed: apt-get install memcached, or --memcached PATH")
    contenders = dict(zip((*OVER, REFERENCE), map(parse_contender, (*OVER, f"memcached={program}")), strict=True))
    beside = {name: contender for name, contender in contenders.items() if name != "unix"}
    rows = sum(len(some) for _, some in PLACES)
    steps = record.steps(3 * (rows + len(locks.WORKERS) + 1) * runs_of(record.round))
    for flags, some in PLACES:
        over_unix = any(not row.bound for row in some)
        measure_rows(options, contenders if over_unix else beside, flags, some, record, steps)
    locks.measure(beside, placed(WAITS, options.cores), options.cores, options.seconds, record, steps)
    measure_memory(options, beside, record)


def measure_rows(
    options: argparse.Namespace,
    contenders: dict[str, Contender],
    flags: Sequence[str],
    rows: Sequence[Row],
    record: Record,
    steps: Steps,
) -> None:
    """Measures these rows, with servers of their own."""
    cases = [case_of(row, options.seconds, options.cores) for row in rows]
    floors = dict.fromkeys(name for case in cases for name in case.floors.values())
    for_clients, for_servers = placement(options.cores)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stack.enter_context(pinned(for_clients))
        servers = {}
        for name, contender in contenders.items():
            servers[name] = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender({**described(contender, servers[name], "the load generator"), "name": name})
        echoes = stack.enter_context(floor_servers([*floors], folder, for_servers, False, record))
        stored = 0
        for case in cases:
            operation, size = case.parameters["operation"], case.parameters["size"]
            if size != stored:
                cpu.fill_all(servers, case.parameters["stored"], size)
            # The next case stores the deleted keys again.
            stored = 0 if operation == "delete" else size
            if operation == "new":
                for server in servers.values():
                    cpu.fill_up(server, size)
            runs = {
                name: cpu.run_of(server, case, options.seconds, False)
                for name, server in servers.items()
                if name != "unix" or name in case.bounds
            }
            for name in dict.fromkeys(case.floors.values()):
                runs[name] = cpu.run_of(echoes[name], case, options.seconds, True)
            record.case(case, take_turns(case, runs, record.round, steps))


def measure_memory(options: argparse.Namespace, contenders: dict[str, Any], record: Record) -> None:
    """Measures memory at start, for an item, and for an idle connection."""
    said = argparse.Namespace(items=options.items, connections=1000)
    with scratch() as folder:
        found = {
            name: memory.run(contenders[name], said, folder, None).values for name in record.round.shuffled(contenders)
        }
    more = (found["tcp"]["resident_bytes"] - found[REFERENCE]["resident_bytes"]) / 2**20
    rows: list[tuple[str, Figure, str, dict[str, float]]] = [
        ("more than memcached at start", Figure("more_mb", "MB"), f"<= {MORE_AT_START}", {"tcp": more}),
        ("an idle connection, of 1000", Figure("connection_bytes", "bytes"), f"<= 0.7 of {REFERENCE}", {}),
        (f"an item of 100 B, of {options.items}", Figure("item_counted_bytes", "bytes"), f"<= 1 of {REFERENCE}", {}),
        (f"an item, resident, of {options.items}", Figure("item_resident_bytes", "bytes"), f"<= 1 of {REFERENCE}", {}),
    ]
    for name, figure, bound, values in rows:
        values = values or {who: figures[figure.name] for who, figures in found.items()}
        case = Case(f"{MEMORY}: {name}", {}, (figure,), {}, {"tcp": bound}, MEMORY)
        samples = [
            record.round.sample(case.name, who, turn, {figure.name: value})
            for turn, (who, value) in enumerate(values.items(), 1)
        ]
        record.case(case, samples)

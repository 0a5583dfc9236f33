"""`rmemcached-bench bounds`: what the server must keep beside memcached and beside the floor, and whether it does.

Server CPU for a request or a key, one worker, keys of 32 B, at C speed; memory. The bounds of one request at a time are
of a bare echo server with the same replies, the others of memcached. They are meant of memcached 1.6.45 as
`./configure CFLAGS=-O2 && make` builds it: --memcached names it. The exit status is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
from typing import Any

from rmemcached.bench import cpu, memory
from rmemcached.bench.arguments import placement, size_name
from rmemcached.bench.contenders import described, parse_contender, pinned, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import TCP, UNIX, floor_servers, floors_of
from rmemcached.bench.measure import Case, Figure, runs_of, take_turns
from rmemcached.bench.servers import memcached_path

HELP = "server CPU and memory of the cases that have bounds, beside memcached and the floor"
REFERENCE = "memcached"
OVER = ("tcp", "unix")
ALONE, PIPELINED, MANY, LARGE, MEMORY = (
    "one request at a time",
    "pipelined by 16",
    "gets of many keys, a key",
    "large values",
    "memory",
)
K = 1024
# group, operation, depth, keys of a get, size, connections, bound to memcached ("": to the floor, over TCP and UNIX)
ROWS: tuple[tuple[str, str, int, int, int, int, str], ...] = (
    *((ALONE, what, 1, 1, 100, count, "") for what, count in itertools.product(("get", "set"), (50, 500, 1000))),
    (PIPELINED, "get", 16, 1, 100, 50, "<= 0.55"),
    (PIPELINED, "set", 16, 1, 100, 50, "<= 0.6"),
    (MANY, "get", 1, 10, 100, 50, "<= 0.6"),
    (MANY, "get", 1, 100, 100, 50, "<= 0.5"),
    (MANY, "get", 1, 1000, 100, 50, "<= 0.5"),
    (MANY, "get", 1, 100, 300, 50, "<= 0.6"),
    (MANY, "get", 1, 100, K, 50, "<= 0.65"),
    (MANY, "get", 1, 100, 4 * K, 50, "<= 0.8"),
    *((LARGE, what, 1, 1, size * K, 50, "<= 0.9") for what, size in itertools.product(("get", "set"), (16, 64, 1024))),
)
SIZES = len({row[4] for row in ROWS})
FLAGS = (*cpu.FLAGS, *cpu.LARGE_FLAGS)
MORE_AT_START = 10  # MB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.2, help="of each run (default: 0.2)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each contender in a round (default: 2)")
    parser.add_argument("--items", type=int, default=200_000, help="of the memory of an item (default: 200000)")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )


def name_of(operation: str, keys: int, size: int, connections: int) -> str:
    what = f"get of {keys} keys" if keys > 1 else operation
    return f"{what} of {size_name(size)}, {connections} connections"


def case_of(row: tuple[str, str, int, int, int, int, str]) -> Case:
    group, operation, depth, keys, size, connections, bound = row
    said: dict[str, Any] = {"operation": operation, "depth": depth, "multiget": keys, "size": size}
    said |= {"connections": connections, "stored": cpu.keys_of(size, SIZES), "cores": "any"}
    floors = {"tcp": TCP, "memcached": TCP} | ({} if bound else {"unix": UNIX})
    # A batch must fit into a socket's buffers, or the floor would wait for its client.
    fits = depth == 1 or depth * (size + 64) <= cpu.BATCH_MOST
    bounds = {"tcp": f"{bound} of {REFERENCE}"} if bound else {"tcp": f"<= 1.05 of {TCP}", "unix": f"<= 1.05 of {UNIX}"}
    name = f"{group}: {name_of(operation, keys, size, connections)}"
    return Case(name, said, cpu.FIGURES, floors if fits else {}, bounds, group)


def measure(options: argparse.Namespace, record: Record) -> None:
    program = options.memcached or memcached_path()
    if program is None:
        raise BenchError("memcached is not installed: apt-get install memcached, or --memcached PATH")
    contenders = [*map(parse_contender, OVER), parse_contender(f"memcached={program}")]
    names = dict(zip(contenders, (*OVER, REFERENCE), strict=True))
    memory.allow_descriptors(8192)
    floors = floors_of(contenders)
    steps = record.steps(3 * (len(ROWS) + 1) * runs_of(record.round))
    for_clients, for_servers = placement("any")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(pinned(for_clients))
        servers = {}
        for contender, name in names.items():
            servers[name] = stack.enter_context(start(contender, FLAGS, folder, for_servers))
            record.contender({**described(contender, servers[name]), "name": name})
        echoes = stack.enter_context(floor_servers([*floors.values()], folder, for_servers, False, record))
        stored = 0
        for row in ROWS:
            case = case_of(row)
            size = case.parameters["size"]
            if size != stored:
                for server in servers.values():
                    cpu.fill(server, case.parameters["stored"], size)
                stored = size
            runs = {
                name: cpu.run_of(server, case, options.seconds, False)
                for name, server in servers.items()
                if name != "unix" or name in case.bounds
            }
            for name in dict.fromkeys(case.floors.values()):
                runs[name] = cpu.run_of(echoes[name], case, options.seconds, True)
            record.case(case, take_turns(case, runs, record.round, steps))
    measure_memory(options, {name: contender for contender, name in names.items() if name != "unix"}, record)


def measure_memory(options: argparse.Namespace, contenders: dict[str, Any], record: Record) -> None:
    """At start, for an item, and for an idle connection."""
    said = argparse.Namespace(items=options.items, connections=1000)
    with tempfile.TemporaryDirectory() as folder:
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
            {
                "case": case.name,
                "contender": who,
                "round": record.round.number,
                "turn": turn,
                "values": {figure.name: value},
            }
            for turn, (who, value) in enumerate(values.items(), 1)
        ]
        record.case(case, samples)

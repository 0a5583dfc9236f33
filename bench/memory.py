"""`rmemcached-bench memory`: a server at start, for each item, and for each idle connection.

At start: the resident set, and the time until a connection is accepted. Items have 32 B keys and 100 B values: the
growth of `bytes` in `stats`, and of the process's resident anonymous memory when the hash table has grown as well.
Connections have made one request each.

Floors: of an item the bytes of its key, its value and memcached's header of 48 B; of our start a Python that only
listens. A connection has no floor: a bare connection takes memory of the kernel only, which counts for no process.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from typing import Any

from rmemcached.bench import _load
from rmemcached.bench.arguments import placement
from rmemcached.bench.contenders import Contender, default_contenders, described, refuse, start
from rmemcached.bench.document import Document, Record
from rmemcached.bench.measure import Case, Figure, Taken
from rmemcached.bench.processes import check_descriptors
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server, on_free_port

HELP = "a server's memory at start, for each item, and for each idle connection"
AT_LEAST = {"items": 0, "connections": 0}
CONTENDERS = ("tcp", "memcached")
START_MORE = 30 * 2**20  # bytes allowed to rmemcached beyond memcached at start, for Python
ITEM_MORE = 0.05  # the part of an item's memory allowed to rmemcached beyond memcached
TURNS = False
KEY, VALUE, HEADER = 32, 100, 48  # bytes
BARE, BYTES = "floor: Python", "floor: bytes"
LISTEN = """
import _socket, sys
listener = _socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(9)
while True:
    listener._accept()
"""
MOST_FOR_A_BUCKET = 1.5  # items; with more the hash table doubles (memcached, assoc.c)
WARM = 100  # connections made before the first look, so allocator and tables have grown once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=1_000_000, help="0: none (default: 1000000)")
    parser.add_argument("--connections", type=int, default=5000, help="0: none (default: 5000)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def exchange(plain: socket.socket, request: bytes, length: int) -> bytes:
    """Sends a request and returns its reply of `length` bytes. Raises ConnectionError."""
    plain.sendall(request)
    reply = bytearray()
    while len(reply) < length:
        more = plain.recv(65536)
        if not more:
            raise ConnectionError("the server closed the connection")
        reply += more
    return bytes(reply)


def wait_for_table(server: Any) -> None:
    """Returns when the hash table has grown for the items. memcached doubles its table at most once a second."""
    deadline = time.monotonic() + 30
    while True:
        stats = server.stats()
        buckets = 1 << int(stats["hash_power_level"])
        if stats["hash_is_expanding"] == "0" and int(stats["curr_items"]) <= MOST_FOR_A_BUCKET * buckets:
            return
        if time.monotonic() > deadline:
            raise ValueError(f"{stats['curr_items']} items have {buckets} buckets still")
        time.sleep(0.05)


def measure_items(server: Any, count: int) -> dict[str, float]:
    """Bytes per item, resident and as `stats` counts them. Raises ValueError when an item was not stored."""
    with server.connect(30) as plain:
        # The first items are not counted: they make the server allocate its hash table and first pages.
        done = exchange(plain, _load.store_commands(0, 1000), 8 * 1000)
        before, counted = server.private_bytes(), int(server.stats()["bytes"])
        for first in range(1000, 1000 + count, 1000):
            part = min(1000, 1000 + count - first)
            done = exchange(plain, _load.store_commands(first, part), 8 * part)
            if done != b"STORED\r\n" * part:
                raise ValueError(f"wrong reply {done[:80]!r}")
        stats = server.stats()
        if int(stats["curr_items"]) != count + 1000:
            raise ValueError(f"{stats['curr_items']} items are there, not {count + 1000}")
        wait_for_table(server)
        return {
            "item_resident_bytes": (server.private_bytes() - before) / count,
            "item_counted_bytes": (int(stats["bytes"]) - counted) / count,
        }


def measure_connections(server: Any, count: int) -> float:
    """Bytes of resident memory per idle connection. Raises ValueError for a wrong reply."""
    with contextlib.ExitStack() as stack:

        def add(number: int) -> None:
            for _ in range(number):
                plain = stack.enter_context(server.connect(30))
                plain.sendall(b"mn\r\n")
                if plain.recv(64) != b"MN\r\n":
                    raise ValueError("wrong reply to mn")

        add(WARM)
        before = server.private_bytes()
        add(count)
        return float(server.private_bytes() - before) / count


def cases_of(options: argparse.Namespace) -> list[Case]:
    ours = {contender.name: BARE for contender in options.contenders if contender.server == "rmemcached"}
    every = {contender.name: BYTES for contender in options.contenders}
    made = [Case("at start", {}, (Figure("resident_bytes", "bytes"), Figure("ready_ms", "ms")), ours)]
    if options.connections:
        name = f"an idle connection, of {options.connections}"
        made.append(Case(name, {"count": options.connections}, (Figure("connection_bytes", "bytes"),)))
    if options.items:
        figures = (Figure("item_resident_bytes", "bytes"), Figure("item_counted_bytes", "bytes"))
        made.append(Case(f"an item of 100 B, of {options.items}", {"count": options.items}, figures, every))
    return made


def floors(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """{floor: its figures}"""
    command = [sys.executable, "-I", "-S", "-c", LISTEN]
    with on_free_port(lambda port: Server([*command, str(port)], port)) as bare:
        found = {BARE: {"resident_bytes": float(bare.resident_bytes()), "ready_ms": bare.started_after * 1000}}
    if options.items:
        least = float(KEY + VALUE + HEADER)
        found[BYTES] = {"item_resident_bytes": least, "item_counted_bytes": least}
    return found


def run(contender: Contender, options: argparse.Namespace, folder: str, record: Record | None) -> Taken:
    """All figures of a server, from its start to its end."""
    megabytes = max(64, options.items // 4000)
    flags = ["-m", str(megabytes), "-t", "1", "-c", str(options.connections + WARM + 100)]
    _, for_servers = placement("any")
    with start(contender, flags, folder, for_servers) as server:
        values = {"resident_bytes": float(server.resident_bytes()), "ready_ms": server.started_after * 1000}
        if record is not None:
            record.contender(described(contender, server, "plain sockets"))
        if options.connections:
            values["connection_bytes"] = measure_connections(server, options.connections)
        if options.items:
            values |= measure_items(server, options.items)
        return Taken(values)


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    refuse(options.contenders, "memory", ("tcp", "unix"), clients=False)
    check_descriptors("--connections", options.connections + WARM)
    cases = cases_of(options)
    known = {contender.name: contender for contender in options.contenders}
    record.floor(BARE, "a Python that only listens")
    if options.items:
        record.floor(BYTES, f"{KEY} B of key, {VALUE} B of value, {HEADER} B of memcached's header")
    steps = record.steps(len(known))
    (turns,) = record.round.orders(list(known), "memory")
    found = floors(options)
    with scratch() as folder:
        for name in turns:
            found[name] = run(known[name], options, folder, record).values
            steps.step(f"memory: {name}")
    places = {name: turn for turn, name in enumerate(found, 1)}
    for case in cases:
        record.case(
            case,
            [
                record.round.sample(
                    case.name, name, places[name], {figure.name: values[figure.name] for figure in case.figures}
                )
                for name, values in found.items()
                if all(figure.name in values for figure in case.figures)
            ],
        )


def missed(document: Document, options: argparse.Namespace) -> list[str]:
    """Returns a line for each limit beside memcached missed by a contender of ours."""
    figures = {(row["contender"], row["figure"]): row["median"] for row in document["results"]}
    theirs = [known["name"] for known in document["contenders"] if known["server"].startswith("memcached ")]
    ours = [known["name"] for known in document["contenders"] if known["server"].startswith("rmemcached ")]
    lines = []
    for name in ours:
        for other in theirs[:1]:
            limits = {
                "resident_bytes": ("30 MB", lambda bound: bound + START_MORE),
                "connection_bytes": ("nothing", lambda bound: bound),
                "item_resident_bytes": ("5 %", lambda bound: bound * (1 + ITEM_MORE)),
                "item_counted_bytes": ("5 %", lambda bound: bound * (1 + ITEM_MORE)),
            }
            lines += [
                f"{name}: {figure} {figures[name, figure]:.0f} is more than {other}'s"
                f" {figures[other, figure]:.0f} and {words}"
                for figure, (words, limit) in limits.items()
                if (name, figure) in figures and figures[name, figure] > limit(figures[other, figure])
            ]
    return lines

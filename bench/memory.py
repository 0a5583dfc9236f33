#!/usr/bin/env python3
"""Memory of the server at start, for each item and for each idle connection: rmemcached compared with memcached.

At start: the resident set. Items: 1 000 000 with 32 B keys and 100 B values (--items); the growth of `bytes` in
`stats`, and of the process's resident anonymous memory, divided by the number of items. Connections: 5000 TCP
connections that have made one request each (--connections). The last column shows the limits for rmemcached; the exit
status is 1 when it misses one.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from figures import add_json, put_out  # noqa: E402
from servers import Server, start_memcached, start_rmemcached  # noqa: E402

from rmemcached.client import _load  # noqa: E402

BASE_MORE = 30 * 2**20  # bytes that rmemcached may take more at start, for Python
ITEM_MORE = 0.05  # the part of an item's memory that rmemcached may take more
WARM = 100  # connections made before the first look, so that allocator and tables have grown once


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


def measure_items(server: Server, count: int) -> dict[str, float]:
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
        return {
            "item_resident": (server.private_bytes() - before) / count,
            "item_counted": (int(stats["bytes"]) - counted) / count,
        }


def measure_connections(server: Server, count: int) -> float:
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
        return (server.private_bytes() - before) / count


def measure(server: Server, items: int, connections: int) -> dict[str, float]:
    """All figures of one server, in bytes. Stops it."""
    with server:
        figures: dict[str, float] = {"base": server.resident_bytes()}
        if connections:
            figures["connection"] = measure_connections(server, connections)
        if items:
            figures.update(measure_items(server, items))
        return figures


def judge(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, tuple[str, bool]]:
    """{figure: (its limit in words, whether rmemcached keeps it)}."""
    limits = {
        "base": ("memcached's + 30 MB", theirs["base"] + BASE_MORE),
        "connection": ("memcached's", theirs.get("connection", 0)),
        "item_resident": ("memcached's + 5 %", theirs.get("item_resident", 0) * (1 + ITEM_MORE)),
        "item_counted": ("memcached's + 5 %", theirs.get("item_counted", 0) * (1 + ITEM_MORE)),
    }
    return {name: (words, ours[name] <= limit) for name, (words, limit) in limits.items() if name in ours}


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    names = {
        "base": "at start",
        "connection": f"per connection, of {result['connections']}",
        "item_resident": f"per item, of {result['items']}, resident",
        "item_counted": "per item, as `stats` counts",
    }
    lines = [f"{'bytes':<38}{'rmemcached':>12}{'memcached':>12}   limit"]
    for name, title in names.items():
        if name in result["rmemcached"]:
            words, kept = result["limits"][name]
            figures = [f"{result[server][name]:12.0f}" for server in ("rmemcached", "memcached")]
            lines.append(f"{title:<38}{''.join(figures)}   {words}: {'kept' if kept else 'MISSED'}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # the system's limit is lower
        wanted = 2 * options.connections + 4096
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
    flags = ["-m", "1024", "-t", "1", "-c", str(options.connections + WARM + 100)]
    result: dict[str, Any] = {"items": options.items, "connections": options.connections}
    result["rmemcached"] = measure(start_rmemcached(*flags), options.items, options.connections)
    result["memcached"] = measure(
        start_memcached(*flags, program=options.memcached), options.items, options.connections
    )
    result["limits"] = judge(result["rmemcached"], result["memcached"])
    put_out(options, result, report(result))
    return 0 if all(kept for _, kept in result["limits"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())

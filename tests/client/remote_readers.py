#!/usr/bin/env python3
"""Clients that read a daemon's items by RDMA READ, beside writers, for any length of time.

    script/direct-reads --remote TRANSPORT [SECONDS]

TRANSPORT: soft_iw, or verbs on a machine with a device (script/vm). Two processes read the items written by a third:
sets, incr, deletes, flush_all, expiry, evictions, page moves, a growing index. Each value contains its key and
version. No value may be older than the writer's last acknowledged version, or torn. The exit status is 1 after a wrong
value.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from servers import Server, start_rmemcached  # noqa: E402

from rmemcached.bench import _load  # noqa: E402
from rmemcached.client import Client, MemcacheError  # noqa: E402

KEYS = 400
NUMBERS = 40  # keys whose values are counted up
READERS = 2
ROUND = 30.0  # limit in seconds for one daemon
TIMEOUT = 60.0
FLAGS = ("-m", "64", "-t", "2", "-o", "rdma_direct_remote,slab_reassign,lru_crawler")
LATE = 3.0  # seconds after which no reader may see an expired or flushed item: two clocks judge, in whole seconds


class Shared:
    """The state shared by writer and readers.

    For each key `least` is the oldest version that a reader may see, `newest` the newest version sent, and `until` the
    time from which `newest` may not be seen. From `flushed_at` on versions up to `flushed` must be gone.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        total = KEYS + NUMBERS
        self.least = context.RawArray(ctypes.c_uint64, total)
        self.newest = context.RawArray(ctypes.c_uint64, total)
        self.until = context.RawArray(ctypes.c_double, [float("inf")] * total)
        self.flushed = context.RawArray(ctypes.c_uint64, total)
        self.flushed_at = context.RawValue(ctypes.c_double, 0.0)
        self.stop = context.RawValue(ctypes.c_int, 0)
        self.found = context.RawArray(ctypes.c_uint64, READERS)
        self.wrong = context.Queue()


def name_of(index: int) -> str:
    return f"key-{index}" if index < KEYS else f"number-{index - KEYS}"


def value_of(index: int, version: int) -> bytes:
    head = f"{name_of(index)} {version} ".encode()
    length = random.Random(version * 1009 + index).choice((1, 60, 500, 3000, 20_000))
    return head * (length // len(head) + 1)


def write(server: Server, shared: Shared, seed: int) -> None:
    """The writer's process: changes items over TCP until `shared.stop`, and notes in `shared` what readers may see."""
    chance = random.Random(seed)
    filled = 0
    with (
        Client(server.address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as client,
        server.connect(TIMEOUT) as plain,
    ):
        for index in range(KEYS, KEYS + NUMBERS):
            shared.newest[index] = shared.least[index] = 1
            client.set(name_of(index), b"%020d" % 1)
        while not shared.stop.value:
            index = chance.randrange(KEYS + NUMBERS)
            name, version = name_of(index), shared.newest[index] + 1
            shared.newest[index] = version
            kind = chance.random()
            if index >= KEYS:
                # incr fails if the item has been evicted or flushed.
                if client.incr(name, 1) != version:
                    client.set(name, b"%020d" % version)
                shared.least[index] = version
                continue
            expire = 1 if kind < 0.02 else 0
            # Until the reply comes, the time at which the new version expires is unknown.
            shared.until[index] = float("inf")
            if kind > 0.95:
                client.delete(name)
                shared.least[index] = version
                continue
            client.set(name, value_of(index, version), expire=expire)
            shared.least[index] = version
            if expire:
                shared.until[index] = time.monotonic() + expire + LATE
            if kind > 0.9495:
                client.flush_all()
                # Readers leave `flushed` alone while `flushed_at` is in the future: they never use half of the changes.
                shared.flushed_at.value = float("inf")
                for each in range(KEYS + NUMBERS):
                    shared.flushed[each] = shared.newest[each]
                shared.flushed_at.value = time.monotonic()
            elif kind > 0.93:
                client.set(f"fill-{chance.randrange(10**9)}", os.urandom(chance.randrange(50_000)))
            elif kind > 0.925:
                plain.sendall(_load.store_commands(filled, 1000, value_size=10))
                left = 8 * 1000
                while left:
                    left -= len(plain.recv(left))
                filled += 1000
            elif kind > 0.92:
                client.raw_command(f"slabs reassign -1 {chance.randrange(1, 40)}")


def check(shared: Shared, index: int, value: bytes, least: int, began: float, dead: int) -> str | None:
    """Returns the fault of a value, or None. The caller looked up least, and dead (the flushed version), before the
    read."""
    if index >= KEYS:
        # set writes 20 digits. incr in place writes no leading zeros, and fills the rest with blanks.
        version = int(value)
        whole = value.strip() in (b"%d" % version, b"%020d" % version)
    else:
        version = int(value.split(b" ", 2)[1])
        whole = value == value_of(index, version)
    if not whole:
        return "foreign or torn"
    if version < least:
        return f"version {version} was replaced before: at least {least}"
    if version > shared.newest[index]:
        return f"version {version} was never stored"
    if version <= dead:
        return f"version {version} was flushed before"
    if version == shared.newest[index] and began > shared.until[index]:
        return f"version {version} has expired"
    return None


def read(server: Server, transport: str, shared: Shared, place: int) -> None:
    """A reader's process: gets items until `shared.stop`, and puts a wrong value's description into `shared.wrong`."""
    os.environ["RMEMCACHED_DIRECT"] = transport
    chance = random.Random(place)
    into = bytearray(65536)
    with Client(server.address, transport=transport, timeout=TIMEOUT, default_noreply=False) as client:
        while not shared.stop.value:
            # The square makes low indices frequent: the client reads some keys often.
            some = {int((KEYS + NUMBERS) * chance.random() ** 2) for _ in range(chance.choice((1, 1, 1, 12, 40)))}
            began = time.monotonic()
            flushed_at = shared.flushed_at.value
            before = {index: (shared.least[index], shared.flushed[index]) for index in some}
            gone = began > flushed_at + LATE and flushed_at == shared.flushed_at.value
            found: dict[int, bytes | None]
            if len(some) > 1:
                values: dict[str, Any] = client.get_many([name_of(index) for index in some])
                found = {index: values.get(name_of(index)) for index in some}
            else:
                (index,) = some
                kind = chance.randrange(3)
                if kind == 0:
                    length = client.get_into(name_of(index), into)
                    found = {index: None if length is None else bytes(into[:length])}
                else:
                    found = {index: client.get(name_of(index)) if kind == 1 else client.gets(name_of(index))[0]}
            for index, value in found.items():
                if value is None:
                    continue
                shared.found[place] += 1
                problem = check(shared, index, value, before[index][0], began, before[index][1] if gone else 0)
                if problem is not None:
                    shared.wrong.put(f"{name_of(index)}: {problem}: {value[:60]!r}")
                    shared.stop.value = 1


def one_round(transport: str, seconds: float, seed: int) -> tuple[int, int, str | None]:
    """Returns the number of values, the number of values read without asking, and the fault or None."""
    shared = Shared()
    context = multiprocessing.get_context("fork")
    with start_rmemcached(*FLAGS) as server:
        writer = context.Process(target=write, args=(server, shared, seed))
        readers = [context.Process(target=read, args=(server, transport, shared, place)) for place in range(READERS)]
        for process in (writer, *readers):
            process.start()
        end = time.monotonic() + seconds
        problem = None
        while time.monotonic() < end and problem is None:
            for process in (writer, *readers):
                process.join(0.2)
                if process.exitcode is not None:
                    problem = f"a process ended with {process.exitcode}"
        shared.stop.value = 1
        for process in (writer, *readers):
            process.join(TIMEOUT)
            if process.is_alive():
                process.kill()
                problem = problem or "a process does not end"
        if not shared.wrong.empty():
            problem = shared.wrong.get()
        try:
            direct = int(server.stats()["direct_hits"])
        except (OSError, MemcacheError, KeyError):
            direct, problem = 0, problem or "the daemon has ended"
    return sum(shared.found), direct, problem


def main() -> int:
    transport = sys.argv[1] if len(sys.argv) > 1 else "soft_iw"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
    began = time.monotonic()
    found = direct = rounds = 0
    seed = int.from_bytes(os.urandom(4), "big")
    while (left := began + seconds - time.monotonic()) > 0:
        values, unasked, problem = one_round(transport, min(left, ROUND), seed + rounds)
        found, direct, rounds = found + values, direct + unasked, rounds + 1
        if problem is not None:
            print(f"\nwrong, with seed {seed + rounds - 1}: {problem}")
            return 1
        left = max(left - ROUND, 0)
        print(f"\r{found:,} values read, {direct:,} without asking; {left:.0f} s left ", end="", flush=True)
    print(f"\nno wrong value in {time.monotonic() - began:.0f} s, {rounds} rounds over {transport}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`rmemcached-bench clients`: rmemcached.client over each transport, pymemcache, pylibmc, emcache and aiomcache.

Starts rmemcached and memcached with one worker thread each, on loopback, with a core for the clients and one for the
servers if there are two. In each round the contenders of a row take turns. Values are compared, outside the measured
time where that is possible. A contender that is not installed is named. The last column has the bounds; the exit status
is 1 when one is missed.

Floors are clients that only ask a bare echo server, or ask through two cache lines, and create the result. The floor of
32 tasks is a turn of the event loop. Sixteen threads of one client have no floor: they wait for the GIL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import importlib.util
import os
import statistics
import threading
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter, sleep
from typing import Any, NamedTuple

from rmemcached import __version__
from rmemcached.bench.arguments import names_of
from rmemcached.bench.document import Record
from rmemcached.bench.floor import FLOORS, LINES, TCP, EchoClient, LinesClient, floor_servers, one_core
from rmemcached.bench.measure import Round
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server, memcached_path, start_memcached, start_rmemcached
from rmemcached.bench.sheet import Sheet
from rmemcached.client import AsyncClient, Client, serde

HELP = "Python clients side by side: plain, asynchronous, large values, and their bounds"
REFERENCE = "pymemcache"
MEMCPY, LOOP = "floor: memcpy", "floor: loop"
SERVER_FLAGS = ("-t", "1", "-m", "1024", "-I", "128m")
TIMEOUT = 30.0
OURS = ("soft_shm", "soft_iw", "tcp")
OTHERS = ("pymemcache", "pylibmc", "emcache", "aiomcache")
FLIGHT = 32
THREADS = 16
KEYS = 100
VALUE = bytes(range(100))
PAUSE = 0.001
ARRAYS, ARRAY_BYTES = 10, 4 << 20
LARGE = (1, 16, 64)  # MB
# Bounds of rates over shared memory, as parts of memcpy's rate.
LARGE_BOUNDS = {
    "set, from a Buffer": ">= 0.8",
    "get_into a Buffer": ">= 0.8",
    "arrays set": ">= 0.7",
    "arrays get": ">= 0.7",
}

Sample = Callable[[float], float]
"""Repeats an operation for so many seconds, at least once, and returns the seconds that one takes."""


class Row(NamedTuple):
    """A row of the table. unit: of the figure; more: a greater figure is better."""

    name: str
    unit: str
    factor: float  # figure of a time in seconds, or with `more` of its inverse
    more: bool = False


def repeat(operation: Callable[[], object], seconds: float) -> list[float]:
    """The time of each call, repeated for so many seconds, and at least three times."""
    times: list[float] = []
    end = perf_counter() + seconds
    while len(times) < 3 or perf_counter() < end:
        begin = perf_counter()
        operation()
        times.append(perf_counter() - begin)
    return times


def median_of(operation: Callable[[], object], units: int = 1, pause: float = 0.0) -> Sample:
    """The Sample of a synchronous operation with so many units: the median time of a unit."""

    def paced() -> float:
        sleep(pause)
        begin = perf_counter()
        operation()
        return perf_counter() - begin

    def sample(seconds: float) -> float:
        if not pause:
            return statistics.median(repeat(operation, seconds)) / units
        end = perf_counter() + seconds
        times = [paced() for _ in range(3)]
        while perf_counter() < end:
            times.append(paced())
        return statistics.median(times) / units

    return sample


def check(got: object, wanted: object) -> None:
    """Compares a value with the stored value. Raises ValueError when they differ."""
    if got != wanted:
        raise ValueError("a wrong value came back")


# --- clients ---


def connect(name: str, server: Server) -> Any:
    """Connects a synchronous client."""
    if name in OURS:
        return Client(server.address, timeout=TIMEOUT, default_noreply=False, transport=name)
    if name == "pymemcache":
        from pymemcache.client.base import Client as PymemcacheClient

        return PymemcacheClient(server.address, timeout=TIMEOUT, no_delay=True, default_noreply=False)
    import pylibmc

    return pylibmc.Client([server.place], behaviors={"tcp_nodelay": True})


def plain_rows(client: Any, name: str) -> dict[str, Sample]:
    """The rows of a synchronous client."""
    values = {f"key-{number}": VALUE for number in range(KEYS)}
    names = list(values)
    few = names[:FLIGHT]
    get_many = client.get_multi if name == "pylibmc" else client.get_many
    set_many = client.set_multi if name == "pylibmc" else client.set_many
    client.set("key", VALUE)
    set_many(values)
    check(client.get("key"), VALUE)
    check(get_many(names), values)
    rows = {
        "get": median_of(lambda: client.get("key")),
        "get, 1 ms apart": median_of(lambda: client.get("key"), pause=PAUSE),
        "set": median_of(lambda: client.set("key", VALUE)),
        "get_many": median_of(lambda: get_many(names), KEYS),
        "set_many": median_of(lambda: set_many(values), KEYS),
    }
    if name in OURS:

        def pipeline() -> None:
            with client.pipeline() as batch:
                get = batch.get
                for key in few:
                    get(key)

        rows["in flight"] = median_of(pipeline, FLIGHT)
        rows["threads"] = functools.partial(in_threads, client)
    else:
        rows["in flight"] = median_of(lambda: get_many(few), FLIGHT)
    return rows


def in_threads(client: Any, seconds: float) -> float:
    """The seconds for a get of THREADS threads that share a client."""
    counts = [0] * THREADS
    ready = threading.Barrier(THREADS + 1)
    end = threading.Event()

    def work(number: int) -> None:
        ready.wait()
        count = 0
        while not count or not end.is_set():
            client.get("key")
            count += 1
        counts[number] = count

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = perf_counter()
    sleep(seconds)
    end.set()
    for thread in threads:
        thread.join()
    return (perf_counter() - begin) / sum(counts)


def floor_rows(name: str, address: Any) -> dict[str, Sample]:
    """The rows of a floor. Each sample opens a client and closes it: while a client is connected, the server of the
    cache lines polls.
    """
    values = {f"key-{number}": VALUE for number in range(KEYS)}

    def sample(method: str, what: Any, keys: int, pause: float, seconds: float) -> float:
        operation = method.partition("_")[0]
        client: Any = (
            LinesClient(address, VALUE) if name == LINES else EchoClient(address, "key-00", VALUE, (operation,), keys)
        )
        with contextlib.closing(client):
            call = getattr(client, method)
            done = (lambda: call(*what)) if isinstance(what, tuple) else (lambda: call(what))
            check(done(), {"get": VALUE, "set": True, "set_many": []}.get(method, dict.fromkeys(what, VALUE)))
            return median_of(done, keys, pause)(seconds)

    names = list(values)
    rows: dict[str, tuple[str, Any, int, float]] = {
        "get": ("get", "key", 1, 0),
        "get, 1 ms apart": ("get", "key", 1, PAUSE),
        "set": ("set", ("key", VALUE), 1, 0),
        "get_many": ("get_many", names, KEYS, 0),
        "set_many": ("set_many", values, KEYS, 0),
        "in flight": ("get_many", names[:FLIGHT], FLIGHT, 0),
    }
    return {row: functools.partial(sample, *said) for row, said in rows.items()}


# --- asyncio ---


def event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A new loop: "asyncio" or "uvloop"."""
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


async def turn_of_the_loop() -> bytes:
    """The least wait of a task: the event loop comes round once, with a result."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    loop.call_soon(waiting.set_result, VALUE)
    return bytes(await waiting)


async def close_nothing() -> None:
    """Does nothing: the client has no connection."""


async def connect_async(name: str, server: Any) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
    """(get, close) of an asynchronous client."""
    if name == LOOP:
        return turn_of_the_loop, close_nothing
    if name in OURS:
        ours = AsyncClient(server.address, timeout=TIMEOUT, transport=name)
        return functools.partial(ours.get, "key"), ours.close
    if name == "aiomcache":
        import aiomcache

        theirs = aiomcache.Client(server.host, server.port, pool_size=FLIGHT)
        return functools.partial(theirs.get, b"key"), theirs.close
    import emcache

    other = await emcache.create_client(
        [emcache.MemcachedHostAddress(server.host, server.port)], timeout=TIMEOUT, max_connections=FLIGHT
    )
    return functools.partial(other.get, b"key"), other.close


class Tasks:
    """FLIGHT tasks of an event loop; each sends its next get as soon as its answer comes."""

    def __init__(self, name: str, server: Server | None, kind: str) -> None:
        self.loop = event_loop(kind)
        self.get, self.end = self.loop.run_until_complete(connect_async(name, server))
        got = self.loop.run_until_complete(self.get())
        check(getattr(got, "value", got), VALUE)

    async def _run(self, seconds: float) -> float:
        counts = [0]
        begin = perf_counter()
        end = begin + seconds

        async def work() -> None:
            get = self.get
            count = 0
            while not count or perf_counter() < end:
                await get()
                count += 1
            counts[0] += count

        await asyncio.gather(*(work() for _ in range(FLIGHT)))
        return (perf_counter() - begin) / counts[0]

    def sample(self, seconds: float) -> float:
        """Seconds for a get."""
        return self.loop.run_until_complete(self._run(seconds))

    def close(self) -> None:
        """Ends client and loop."""
        self.loop.run_until_complete(self.end())
        self.loop.close()


# --- large values ---


def large_rows(client: Client, size: int, into: bytearray, value: bytes) -> dict[str, Sample]:
    """The rows of values of so many bytes. Their Buffer stays until the client is closed."""
    buffer = client.buffer(size)
    with memoryview(buffer) as view:
        view[:] = value
    client.set("large", value)
    check(client.get("large"), value)
    check(client.get_into("large", buffer), size)
    with memoryview(buffer) as view:
        check(view == value, True)

    def seen() -> None:
        client.get("large", copy=False).release()

    return {
        "set, from a Buffer": median_of(lambda: client.set("large", buffer)),
        "get_into a Buffer": median_of(lambda: client.get_into("large", buffer)),
        "set": median_of(lambda: client.set("large", value)),
        "get": median_of(lambda: client.get("large")),
        "get, copy=False": median_of(seen),
        "get_into": median_of(lambda: client.get_into("large", into)),
    }


def copy_sample(size: int) -> Sample:
    """memcpy of so many bytes, to memory already touched."""
    source, target = memoryview(bytes([1]) * size), memoryview(bytearray(size))

    def copy() -> None:
        target[:] = source

    return median_of(copy)


def array_rows(client: Client) -> dict[str, Sample]:
    """The rows of a dict of arrays."""
    import numpy

    arrays = {f"array-{number}": numpy.full(ARRAY_BYTES, number, dtype="u1") for number in range(ARRAYS)}
    client.set("arrays", arrays)
    found = client.get("arrays")
    check(all((found[name] == arrays[name]).all() for name in arrays), True)
    del found
    return {
        "set": median_of(lambda: client.set("arrays", arrays)),
        "get": median_of(lambda: client.get("arrays")),
    }


# --- the run ---

# (row, contender): its bound.
BOUNDS = {
    ("get", "soft_shm"): "<= 1.3 and <= 0.025 of pymemcache",
    ("get_many", "soft_shm"): "<= 0.15",
    ("set_many", "soft_shm"): "<= 0.2",
    ("in flight", "soft_shm"): ">= 1000",
    ("uvloop", "soft_shm"): ">= 150 and >= 4 of emcache",
}
PLAIN = (
    Row("get", "us", 1e6),
    Row("get, 1 ms apart", "us", 1e6),
    Row("set", "us", 1e6),
    Row("get_many", "us/key", 1e6),
    Row("set_many", "us/key", 1e6),
    Row("in flight", "1000/s", 1e-3, True),
    Row("threads", "1000/s", 1e-3, True),
)


def cores() -> tuple[set[int], set[int]]:
    """The cores for the clients, and the cores for the servers: different cores, if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    return ({allowed[0]}, {allowed[-1]}) if len(allowed) > 1 else (set(allowed), set(allowed))


def contenders_of(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """(contenders in the run, names not installed)."""
    missing = [name for name in OTHERS if importlib.util.find_spec(name) is None]
    if options.memcached is None and memcached_path() is None:
        return [*OURS], ["memcached", *missing]
    return [*OURS, *(name for name in OTHERS if name not in missing)], missing


@contextlib.contextmanager
def daemons(options: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """The server of each contender."""
    allowed = os.sched_getaffinity(0)
    for_clients, for_servers = cores()
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, for_servers)  # the servers inherit the cores
        ours = stack.enter_context(start_rmemcached(*SERVER_FLAGS))
        names, _ = contenders_of(options)
        servers = dict.fromkeys(OURS, ours)
        if set(names) - set(OURS):
            theirs = stack.enter_context(start_memcached(*SERVER_FLAGS, program=options.memcached))
            servers |= dict.fromkeys(set(names) - set(OURS), theirs)
        os.sched_setaffinity(0, for_clients)
        yield servers


def in_turns(
    samples: dict[tuple[str, str], Sample], options: argparse.Namespace, now: Round
) -> dict[tuple[str, str], float]:
    """The time of each (row, contender). The contenders of a row are measured in turn, in any order."""
    for sample in samples.values():
        sample(options.seconds / 4)  # a first run, as a warm-up
    taken = {}
    gc.disable()
    try:
        for row in now.shuffled(dict.fromkeys(row for row, _ in samples)):
            for which in now.shuffled(which for which in samples if which[0] == row):
                taken[which] = samples[which](options.seconds)
    finally:
        gc.enable()
    return taken


def floor_of_row(contender: str, taken: dict[tuple[str, str], float], row: str) -> str:
    """The name of the floor of a contender's row."""
    for name in (LOOP, FLOORS.get(contender, TCP)):
        if (row, name) in taken and not contender.startswith("floor"):
            return name
    return ""


def add_row(sheet: Sheet, group: str, row: Row, taken: dict[tuple[str, str], float]) -> None:
    """Adds the figures of a row."""
    for (name, contender), time in taken.items():
        if name != row.name:
            continue
        wanted = BOUNDS.get((row.name, contender), "")
        # A bound relative to another client applies only if that client is installed.
        wanted = " and ".join(
            bound
            for bound in filter(None, wanted.split(" and "))
            if " of " not in bound or (row.name, bound.partition(" of ")[2]) in taken
        )
        sheet.add(
            row.name,
            contender,
            row.factor / time if row.more else row.factor * time,
            row.unit,
            group=group,
            better="higher" if row.more else "lower",
            bound=wanted,
            floor=floor_of_row(contender, taken, name),
        )


def measure_plain(servers: dict[str, Server], options: argparse.Namespace, sheet: Sheet) -> None:
    """Small values, from a single thread and from many."""
    samples: dict[tuple[str, str], Sample] = {}
    with contextlib.ExitStack() as stack:
        for name in ("soft_shm", "soft_iw", "tcp", "pymemcache", "pylibmc"):
            if name in servers:
                client = connect(name, servers[name])
                stack.callback(client.disconnect_all if name == "pylibmc" else client.close)
                samples |= {(row, name): sample for row, sample in plain_rows(client, name).items()}
        folder = stack.enter_context(scratch())
        for_clients, for_servers = cores()
        yields = one_core(for_clients, for_servers)
        bare = stack.enter_context(floor_servers((LINES, TCP), folder, for_servers, yields, sheet.record))
        for name, server in bare.items():
            samples |= {(row, name): sample for row, sample in floor_rows(name, server.address).items()}
        taken = in_turns(samples, options, sheet.record.round)
    for row in PLAIN:
        add_row(sheet, "100 B, from one thread or more", row, taken)


def measure_async(servers: dict[str, Server], options: argparse.Namespace, sheet: Sheet) -> None:
    """FLIGHT tasks of an event loop."""
    for name in ("soft_shm", "pymemcache"):
        if name in servers:
            with contextlib.closing(connect(name, servers[name])) as client:
                client.set("key", VALUE)
    if "pymemcache" not in servers and set(servers) - set(OURS):
        with contextlib.closing(Client(next(iter(set(servers.values()))).address, transport="tcp")) as client:
            client.set("key", VALUE, noreply=False)
    for kind in ("asyncio", "uvloop"):
        if importlib.util.find_spec(kind) is None:
            continue
        with contextlib.ExitStack() as stack:
            samples: dict[tuple[str, str], Sample] = {}
            for name in ("soft_shm", "soft_iw", "tcp", "emcache", "aiomcache", LOOP):
                if name in servers or name == LOOP:
                    samples[kind, name] = stack.enter_context(
                        contextlib.closing(Tasks(name, servers.get(name), kind))
                    ).sample
            taken = in_turns(samples, options, sheet.record.round)
        add_row(sheet, f"100 B, {FLIGHT} tasks", Row(kind, "1000/s", 1e-3, True), taken)


def beside_copy(
    case: str, name: str, size: int, samples: dict[str, Sample], options: argparse.Namespace, sheet: Sheet
) -> None:
    """Rates of operations on so many bytes, beside memcpy's. case: has {row}."""
    copy = ("memcpy", name)
    every = {copy: copy_sample(size), **{(row, name): sample for row, sample in samples.items()}}
    taken = in_turns(every, options, sheet.record.round)
    for row in samples:
        time = taken[row, name]
        full = f"{case.format(row=row)}, {name}"
        bound = LARGE_BOUNDS.get(f"arrays {row}" if "arrays" in case else row, "")
        sheet.add(
            full,
            name,
            size / time / 1e9,
            "GB/s",
            group="large values",
            better="higher",
            bound=f"{bound} of {MEMCPY}" if bound and name == "soft_shm" else "",
            floor=MEMCPY,
        )
        sheet.add(full, MEMCPY, size / taken[copy] / 1e9, "GB/s", group="large values", better="higher")


def measure_large(servers: dict[str, Server], options: argparse.Namespace, sheet: Sheet) -> None:
    """Measures large values, and a dict of arrays."""
    for name in OURS:
        with contextlib.closing(connect(name, servers[name])) as client:
            for megabytes in LARGE:
                size = megabytes << 20
                value = os.urandom(1 << 20) * megabytes
                rows = large_rows(client, size, bytearray(size), value)
                beside_copy(f"{{row}}, {megabytes} MB", name, size, rows, options, sheet)
        if importlib.util.find_spec("numpy") is None:
            continue
        with Client(
            servers[name].address, serde.Pickle5Serde(), timeout=TIMEOUT, default_noreply=False, transport=name
        ) as arrays:
            size = ARRAYS * ARRAY_BYTES
            beside_copy("{row}, ten arrays of 4 MB", name, size, array_rows(arrays), options, sheet)


PARTS: dict[str, Callable[[dict[str, Server], argparse.Namespace, Sheet], None]] = {
    "plain": measure_plain,
    "async": measure_async,
    "large": measure_large,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts",
        type=names_of(tuple(PARTS)),
        default=list(PARTS),
        metavar="PARTS",
        help=f"of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="of each sample (default: 0.2)")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )


def add_contenders(record: Record, servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        ours = name in OURS
        version = server.stats()["version"]
        record.contender(
            {
                "name": name,
                "server": f"rmemcached {__version__}" if ours else f"memcached {version}",
                "client": f"rmemcached.client over {name}" if ours else name,
                "command": server.command,
                "floor": False,
            }
        )
    record.floor(MEMCPY, "memcpy of as many bytes, to memory that has been touched")
    record.floor(LOOP, "a task that waits until its event loop has come round once, with a result")


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    absent = contenders_of(options)[1]
    if absent:
        record.note(f"not installed: {', '.join(absent)}")
    sheet = Sheet(record)
    steps = record.steps(len(options.parts))
    with daemons(options) as servers:
        add_contenders(record, servers)
        for part in options.parts:
            PARTS[part](servers, options, sheet)
            steps.step(part)
    sheet.finish()

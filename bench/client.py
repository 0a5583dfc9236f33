#!/usr/bin/env python3
"""Python clients side by side: rmemcached.client over each transport, pymemcache, pylibmc, emcache and aiomcache.

Starts rmemcached and memcached with one worker thread each, on loopback, with a core for the clients and one for the
servers if there are two. Each row is measured in rounds, in which the contenders take turns; a figure is the median of
the rounds, with their spread. Values are compared, outside the measured time where that is possible. A contender that
is not installed is named.
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
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter, sleep
from typing import Any, NamedTuple

from rmemcached.bench.figures import add_json, add_plot, check_plot, put_out
from rmemcached.bench.servers import Server, memcached_path, start_memcached, start_rmemcached
from rmemcached.client import AsyncClient, Client, serde

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

Sample = Callable[[float], float]
"""Repeats an operation for so many seconds, at least once, and returns the seconds that one takes."""


class Row(NamedTuple):
    """What is measured. unit: of the figure; better: "less" or "more"."""

    name: str
    unit: str
    factor: float  # figure of a time in seconds, or with `more` of its inverse
    more: bool = False


def repeat(operation: Callable[[], object], seconds: float) -> list[float]:
    """How long each took, repeated for so many seconds, and at least three times."""
    times: list[float] = []
    end = perf_counter() + seconds
    while len(times) < 3 or perf_counter() < end:
        begin = perf_counter()
        operation()
        times.append(perf_counter() - begin)
    return times


def median_of(operation: Callable[[], object], units: int = 1, pause: float = 0.0) -> Sample:
    """The Sample of a synchronous operation that does so many units: the median time of one unit."""

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
    """Raises ValueError when a value is not the one that was stored."""
    if got != wanted:
        raise ValueError("a wrong value came back")


# --- clients ---


def connect(name: str, server: Server) -> Any:
    """A synchronous client."""
    if name in OURS:
        return Client(server.address, timeout=TIMEOUT, default_noreply=False, transport=name)
    if name == "pymemcache":
        from pymemcache.client.base import Client as PymemcacheClient

        return PymemcacheClient(server.address, timeout=TIMEOUT, no_delay=True, default_noreply=False)
    import pylibmc

    return pylibmc.Client([f"{server.host}:{server.port}"], behaviors={"tcp_nodelay": True})


def plain_rows(client: Any, name: str) -> dict[str, Sample]:
    """The rows of a client that waits for each answer."""
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
    """Seconds for a get, of THREADS threads with one client."""
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


# --- asyncio ---


def event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A new loop: "asyncio" or "uvloop"."""
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


async def connect_async(name: str, server: Server) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
    """(get, close) of an asynchronous client."""
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
    """FLIGHT tasks of one event loop that get, each as soon as it has its answer."""

    def __init__(self, name: str, server: Server, kind: str) -> None:
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
    """The rows of values of so many bytes. They leave a Buffer to the client's end."""
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
    """memcpy of so many bytes, to memory that has been touched."""
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
    """The cores for the clients, and those for the servers: one each, if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    return ({allowed[0]}, {allowed[-1]}) if len(allowed) > 1 else (set(allowed), set(allowed))


def contenders(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """(those that take part, what is not installed)."""
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
        os.sched_setaffinity(0, for_servers)  # they inherit it
        ours = stack.enter_context(start_rmemcached(*SERVER_FLAGS))
        names, _ = contenders(options)
        servers = dict.fromkeys(OURS, ours)
        if set(names) - set(OURS):
            theirs = stack.enter_context(start_memcached(*SERVER_FLAGS, program=options.memcached))
            servers |= dict.fromkeys(set(names) - set(OURS), theirs)
        os.sched_setaffinity(0, for_clients)
        yield servers


def in_turns(samples: dict[tuple[str, str], Sample], options: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """The times of each (row, contender), of each round."""
    taken: dict[tuple[str, str], list[float]] = {which: [] for which in samples}
    for sample in samples.values():
        sample(options.seconds / 4)  # a first time, which warms up
    gc.disable()
    try:
        for _ in range(options.rounds):
            for which, sample in samples.items():
                taken[which].append(sample(options.seconds))
    finally:
        gc.enable()
    return taken


def results_of(row: Row, taken: dict[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """The results of a row."""
    results = []
    for (name, contender), times in taken.items():
        if name != row.name:
            continue
        figures = sorted(row.factor / time if row.more else row.factor * time for time in times)
        results.append(
            {
                "row": name,
                "contender": contender,
                "unit": row.unit,
                "median": statistics.median(figures),
                "least": figures[0],
                "most": figures[-1],
            }
        )
    return results


def measure_plain(servers: dict[str, Server], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Small values, from one thread and from many."""
    samples: dict[tuple[str, str], Sample] = {}
    with contextlib.ExitStack() as stack:
        for name in ("soft_shm", "soft_iw", "tcp", "pymemcache", "pylibmc"):
            if name in servers:
                client = connect(name, servers[name])
                stack.callback(client.disconnect_all if name == "pylibmc" else client.close)
                samples |= {(row, name): sample for row, sample in plain_rows(client, name).items()}
        ordered = {which: samples[which] for row in PLAIN for which in samples if which[0] == row.name}
        taken = in_turns(ordered, options)
    return [result for row in PLAIN for result in results_of(row, taken)]


def measure_async(servers: dict[str, Server], options: argparse.Namespace) -> list[dict[str, Any]]:
    """FLIGHT tasks of one event loop."""
    results = []
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
            for name in ("soft_shm", "soft_iw", "tcp", "emcache", "aiomcache"):
                if name in servers:
                    samples[kind, name] = stack.enter_context(
                        contextlib.closing(Tasks(name, servers[name], kind))
                    ).sample
            taken = in_turns(samples, options)
        results += results_of(Row(kind, "1000/s", 1e-3, True), taken)
    return results


def beside_copy(name: str, size: int, samples: dict[str, Sample], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rates of operations that move so many bytes, as a part of memcpy's."""
    taken = in_turns({(row, name): sample for row, sample in {**samples, "memcpy": copy_sample(size)}.items()}, options)
    copies = taken.pop(("memcpy", name))
    results = []
    for (row, _), times in taken.items():
        ratios = sorted(copy / time for copy, time in zip(copies, times, strict=True))
        results.append(
            {
                "row": row,
                "contender": name,
                "size": size,
                "unit": "memcpy",
                "median": statistics.median(ratios),
                "least": ratios[0],
                "most": ratios[-1],
                "gb_per_second": size / statistics.median(times) / 1e9,
            }
        )
    return results


def measure_large(servers: dict[str, Server], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Large values, and a dict of arrays."""
    results = []
    for name in OURS:
        with contextlib.closing(connect(name, servers[name])) as client:
            for megabytes in LARGE:
                size = megabytes << 20
                value = os.urandom(1 << 20) * megabytes
                results += beside_copy(name, size, large_rows(client, size, bytearray(size), value), options)
        if importlib.util.find_spec("numpy") is None:
            continue
        with Client(
            servers[name].address, serde.Pickle5Serde(), timeout=TIMEOUT, default_noreply=False, transport=name
        ) as arrays:
            for result in beside_copy(name, ARRAYS * ARRAY_BYTES, array_rows(arrays), options):
                results.append({**result, "row": f"{result['row']}, ten arrays of 4 MB"})
    return results


def bounds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is wanted, beside what was measured."""

    def figure(row: str, contender: str, size: int | None = None) -> float | None:
        for result in results:
            if (result["row"], result["contender"], result.get("size")) == (row, contender, size):
                return float(result["median"])
        return None

    def over(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a / b

    arrays = ARRAYS * ARRAY_BYTES
    wanted: list[tuple[str, str, float, float | None]] = [
        ("get, soft_shm, us", "<=", 1.3, figure("get", "soft_shm")),
        ("get, soft_shm, of pymemcache's", "<=", 1 / 40, over(figure("get", "soft_shm"), figure("get", "pymemcache"))),
        ("get_many(100), soft_shm, us a key", "<=", 0.15, figure("get_many", "soft_shm")),
        ("set_many(100), soft_shm, us a key", "<=", 0.2, figure("set_many", "soft_shm")),
        ("pipeline of 32, soft_shm, 1000/s", ">=", 1000, figure("in flight", "soft_shm")),
        ("uvloop, 32 tasks, soft_shm, 1000/s", ">=", 150, figure("uvloop", "soft_shm")),
        (
            "uvloop, 32 tasks, of emcache's",
            ">=",
            4,
            over(figure("uvloop", "soft_shm"), figure("uvloop", "emcache")),
        ),
    ]
    for megabytes in LARGE:
        for row in ("set, from a Buffer", "get_into a Buffer"):
            wanted.append((f"{row}, {megabytes} MB, memcpy", ">=", 0.8, figure(row, "soft_shm", megabytes << 20)))
    for row in ("set", "get"):
        name = f"{row}, ten arrays of 4 MB"
        wanted.append((f"{name}, memcpy", ">=", 0.7, figure(name, "soft_shm", arrays)))
    return [
        {
            "what": what,
            "bound": f"{sign} {bound:.3g}",
            "measured": measured,
            "holds": measured <= bound if sign == "<=" else measured >= bound,
        }
        for what, sign, bound, measured in wanted
        if measured is not None
    ]


def table(figures: dict[str, Any]) -> str:
    """The results as text."""
    lines = [f"{'':<28} {'':<11} {'median':>9} {'least':>9} {'most':>9}"]
    before = None
    for result in figures["results"]:
        size = result.get("size")
        name = result["row"] if size is None or "arrays" in result["row"] else f"{result['row']}, {size >> 20} MB"
        lines.append(
            f"{name if name != before else '':<28} {result['contender']:<11} {result['median']:9.3f}"
            f" {result['least']:9.3f} {result['most']:9.3f} {result['unit']}"
        )
        before = name
    lines += ["", f"{'':<40} {'bound':>8} {'measured':>9}"]
    for bound in figures["bounds"]:
        holds = "holds" if bound["holds"] else "does not hold"
        lines.append(f"{bound['what']:<40} {bound['bound']:>8} {bound['measured']:9.3f} {holds}")
    if figures["not_installed"]:
        lines += ["", f"not installed: {', '.join(figures['not_installed'])}"]
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], path: str) -> None:
    """Draws microseconds for a get, a set and a key of many, of each contender."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rc("svg", fonttype="none", hashsalt="rmemcached")
    shown = [row.name for row in PLAIN if not row.more]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(2.2 * len(shown), 3), squeeze=False)
    for panel, name in zip(axes[0], shown, strict=True):
        found = [result for result in results if result["row"] == name]
        panel.bar([result["contender"] for result in found], [result["median"] for result in found], color="#3b8ed0")
        panel.set_title(name, fontsize=9)
        panel.tick_params(axis="x", rotation=60, labelsize=8)
        panel.tick_params(axis="y", labelsize=8)
    axes[0][0].set_ylabel("microseconds", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None} if path.endswith(".svg") else None)


PARTS: dict[str, Callable[[dict[str, Server], argparse.Namespace], list[dict[str, Any]]]] = {
    "plain": measure_plain,
    "async": measure_async,
    "large": measure_large,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each sample (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each kind (default: 7)")
    parser.add_argument(
        "--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)"
    )
    add_json(parser)
    add_plot(parser, "the latencies of small values")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"{part!r} is not one of {', '.join(PARTS)}")
    check_plot(parser, options)
    with daemons(options) as servers:
        results = [result for part in parts for result in PARTS[part](servers, options)]
    figures = {"results": results, "bounds": bounds(results), "not_installed": contenders(options)[1]}
    put_out(options, figures, table(figures))
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`rmemcached-bench load`: a load of your own, from one core, in C: on servers of its own, or on a running server.

In the closed loop each connection has --depths requests under way, and sends the next after each answer. With --rates
the loop is open: a request leaves when it is due, answered or not, over any connection with room. A latency counts from
the time when the request was due, so a stalled server delays all requests due meanwhile (no coordinated omission). With
--think each connection waits between an answer and its next request.

The command stores its keys first (unless --no-fill), and leaves them there; where the memory is full, they push out
other items. So the users of a --server feel its load, too. A key is its number behind as many letters as its size
needs: k, or c for the counters of incr.

The number of a key draws the sizes of key and value, which stay the same. The keys and lengths of all replies are
compared, with --verify each byte of the values, too. Anything wrong ends the command with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from rmemcached.bench import _load
from rmemcached.bench.arguments import CORES, cores, names_of, numbers, placement
from rmemcached.bench.contenders import (
    Contender,
    connect,
    default_contenders,
    described,
    parse_address,
    pinned,
    refuse_clients,
    start,
)
from rmemcached.bench.cpu import percentile
from rmemcached.bench.distributions import (
    GRAMMAR,
    KEY_MOST,
    VALUE_MOST,
    WORKLOADS,
    Sizes,
    key_sizes,
    name_of,
    value_sizes,
)
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError, named
from rmemcached.bench.helpers import PR_SET_TIMERSLACK
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, need_histograms, runs_of, take_turns
from rmemcached.bench.processes import check_descriptors
from rmemcached.bench.scratch import scratch

HELP = "a load of your own: distributions, open loop, think times, over each transport; on a running server, too"
CONTENDERS = ("soft_shm", "tcp", "memcached")
SOCKETS = ("tcp", "unix")
TRANSPORTS = (*SOCKETS, "soft_shm", "soft_iw", "verbs", "auto")
TIMEOUT = 10.0  # seconds without an answer
ALWAYS = (Figure("client_cpu_us", "us"), Figure("cpu_us", "us"))
FILL_DEPTH = 32


def ratio(text: str) -> tuple[float, ...]:
    """A type of argparse: the parts of gets, sets, deletes and incrs, as numbers with : between them."""
    try:
        parts = [float(part) for part in text.split(":")]
        if not 1 <= len(parts) <= 4 or min(parts) < 0 or not 0 < sum(parts) < float("inf"):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not GETS:SETS[:DELETES[:INCRS]], such as 9:1") from None
    return tuple(part / sum(parts) for part in [*parts, 0.0, 0.0, 0.0][:4])


def popularity(text: str) -> float:
    """A type of argparse: the exponent of Zipf's law; 0: all keys alike."""
    kind, _, exponent = text.partition(":")
    try:
        if kind == "uniform" and not exponent:
            return 0.0
        if kind == "zipf" and 0 <= float(exponent) < 10:
            return float(exponent)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not uniform or zipf:EXPONENT, such as zipf:0.99")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--server", metavar="ADDRESS", type=parse_address, help="a running one: HOST:PORT, or a UNIX socket's path")
    add(
        "--transports",
        type=names_of(TRANSPORTS),
        metavar="NAMES",
        help=f"to --server: some of {', '.join(TRANSPORTS)} (default: tcp, or unix for a path)",
    )
    add("--connections", type=numbers, default=[50], metavar="N", help="default: 50")
    add("--depths", type=numbers, default=[1], metavar="N", help="requests under way on a connection (default: 1)")
    add("--batch", action="store_true", help="the next ones leave when all of them are answered")
    add("--multiget", type=numbers, default=[1], metavar="KEYS", help="keys of a get (default: 1)")
    add("--workload", choices=tuple(WORKLOADS), help="published sizes, popularity and ratio, unless options say others")
    add("--keys", type=int, default=10000, metavar="N", help="how many there are (default: 10000)")
    add("--key-size", type=key_sizes, metavar="SIZES", help=f"{GRAMMAR} (default: 32)")
    add("--values", type=value_sizes, metavar="SIZES", help="the same, one or several with commas (default: 100)")
    add("--popularity", type=popularity, metavar="LAW", help="of keys: uniform, or zipf:EXPONENT (default: uniform)")
    add("--ratio", type=ratio, metavar="PARTS", help="GETS:SETS[:DELETES[:INCRS]] (default: 9:1)")
    add("--rates", type=numbers, default=[0], metavar="N", help="open loop: requests a second, of all connections")
    add("--even", action="store_true", help="open loop: equal gaps between requests; else they are at random (Poisson)")
    add("--think", type=numbers, default=[0], metavar="US", help="microseconds before a connection's next request")
    add("--exponential", action="store_true", help="think times of random length, with that mean")
    add("--verify", action="store_true", help="compare every byte of each value")
    add("--no-fill", action="store_true", help="do not store the keys first")
    add("--memory", type=int, default=1024, metavar="MB", help="-m of servers that it starts (default: 1024)")
    add("--workers", type=int, default=1, help="threads of servers that it starts (default: 1)")
    add("--seconds", type=float, default=2.0, help="of each run (default: 2)")
    add("--warm-up", type=float, default=0.5, metavar="SECONDS", help="of each contender and case (default: 0.5)")
    add("--cores", type=cores, default=["any"], help=f"some of {', '.join(CORES)} (default: any)")


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


def on_server(options: argparse.Namespace) -> list[Contender]:
    """The contenders of --server. Raises BenchError."""
    address = options.server
    path = isinstance(address, str)
    found = options.transports or ["unix" if path else "tcp"]
    for name in found:
        if path and name not in ("unix", "soft_shm", "auto"):
            raise BenchError(f"--transports {name}: it needs HOST:PORT, not the UNIX socket {address}")
        if not path and name == "unix":
            raise BenchError("--transports unix: it needs the path of a UNIX socket as --server")
    return [Contender(name, "running", name, address=address) for name in found]


def aimed(options: argparse.Namespace) -> list[Contender] | None:
    """The contenders of --server, or None without --server. Raises BenchError."""
    if options.server is None:
        if options.transports:
            raise BenchError("--transports are those to --server; without it --contenders names them")
        return None
    if options.contenders:
        raise BenchError("--server and --contenders exclude each other: a contender may be HOST:PORT, too")
    return on_server(options)


def settle(options: argparse.Namespace) -> None:
    """Puts the workload, or the defaults, in place of missing options. Raises BenchError."""
    chosen = WORKLOADS.get(options.workload)
    if options.key_size is None:
        options.key_size = key_sizes(chosen.key_size) if chosen else 32
    if options.values is None:
        options.values = value_sizes(chosen.values) if chosen else [100]
    if options.popularity is None:
        options.popularity = chosen.exponent if chosen else 0.0
    if options.ratio is None and chosen:
        gets = 1 - chosen.sets - chosen.deletes - chosen.incrs
        options.ratio = (gets, chosen.sets, chosen.deletes, chosen.incrs)
    elif options.ratio is None:
        options.ratio = ratio("9:1")
    if max(options.rates) and max(options.think):
        raise BenchError("--rates and --think exclude each other: an open loop does not wait for answers")
    for sizes in options.values:
        if isinstance(sizes, int) and sizes > VALUE_MOST:
            raise BenchError(f"--values: {VALUE_MOST >> 20} MB at most")
    digits = len(str(options.keys - 1))
    if options.keys >= 1 << 32:
        raise BenchError(f"--keys is {(1 << 32) - 1} at most")
    if isinstance(options.key_size, int) and not digits <= options.key_size <= KEY_MOST:
        raise BenchError(f"--key-size of {options.keys} keys is {digits} to {KEY_MOST}")


def make_load(options: argparse.Namespace, said: dict[str, Any], sizes: int | Sizes, seed: int) -> _load.Load:
    """A Load by a case's parameters; without connections yet."""
    digits = len(str(options.keys - 1))
    key_size = options.key_size
    _, sets, deletes, incrs = options.ratio
    return _load.Load(
        keys=options.keys,
        key_size=key_size if isinstance(key_size, int) else KEY_MOST,
        key_sizes=None if isinstance(key_size, int) else key_size.table("H", digits, KEY_MOST),
        value_size=sizes if isinstance(sizes, int) else 0,
        value_sizes=None if isinstance(sizes, int) else sizes.table("I", 0, VALUE_MOST),
        exponent=options.popularity,
        sets=sets,
        deletes=deletes,
        incrs=incrs,
        multiget=said["multiget"],
        depth=said["depth"],
        batch=options.batch,
        rate=said["rate"],
        rate_varies=not options.even,
        think=said["think_us"] / 1e6,
        think_varies=options.exponential,
        verify=options.verify,
        patience=TIMEOUT,
        seed=seed,
    )


def cases_of(options: argparse.Namespace, cores: str) -> Iterator[tuple[Case, int | Sizes]]:
    several = (options.values, options.connections, options.depths, options.multiget, options.rates, options.think)
    fixed = all(isinstance(sizes, int) for sizes in options.values)
    for sizes, connections, depth, multiget, rate, think in itertools.product(*several):
        words = [f"values of {name_of(sizes)}", f"{connections} connections" if connections > 1 else "one connection"]
        words += [f"pipelined by {depth}"] if depth > 1 else []
        words += [f"{multiget} keys a get"] if multiget > 1 else []
        words += [f"{rate} requests a second"] if rate else []
        words += [f"{think} us between requests"] if think else []
        parameters = {
            **({"size": sizes} if fixed else {"values": name_of(sizes)}),
            "connections": connections,
            "depth": depth,
            "multiget": multiget,
            "rate": rate,
            "think_us": think,
            "keys": options.keys,
            "key_size": options.key_size if isinstance(options.key_size, int) else options.key_size.name,
            "exponent": options.popularity,
            "ratio": ":".join(f"{part:g}" for part in options.ratio),
            "verify": options.verify,
            "cores": cores,
        }
        figures = [Figure("p50_us", "us")]
        figures += [Figure("per_second", "1/s", "" if rate or think else "higher")]
        gets, sets, *_ = options.ratio
        figures += [Figure("get_p99_us", "us"), Figure("set_p99_us", "us")] if gets and sets else []
        figures += [Figure("hit_percent", "percent", "")] if gets else []
        figures += [Figure("late_p99_us", "us"), Figure("unsent", "")] if rate else []
        yield Case(f"{', '.join(words)}, {CORES[cores]}", parameters, (*figures, *ALWAYS)), sizes


def figures_of(done: dict[str, Any], case: Case, spent: float, used: float | None) -> dict[str, float]:
    """The figures of a run. spent, used: CPU seconds of this process and of the server."""
    known = {figure.name for figure in case.figures}
    requests = max(done["requests"], 1)
    values = {
        "p50_us": percentile(done["latencies"], 50),
        "per_second": done["requests"] / done["seconds"],
        "client_cpu_us": spent / requests * 1e6,
    }
    if used is not None:
        values["cpu_us"] = used / requests * 1e6
    for kind in ("get", "set"):
        if f"{kind}_p99_us" in known and done["by_kind"][kind]:
            values[f"{kind}_p99_us"] = percentile(done["by_kind"][kind], 99)
    if "hit_percent" in known and done["hits"] + done["misses"]:
        values["hit_percent"] = 100 * done["hits"] / (done["hits"] + done["misses"])
    if "unsent" in known:
        values |= {"late_p99_us": percentile(done["late"], 99), "unsent": float(done["unsent"])}
    return values


def attach(load: _load.Load, contender: Contender, server: Any, count: int, stack: contextlib.ExitStack) -> None:
    """Connects a load. Raises the errors of connecting."""
    if contender.transport in SOCKETS:
        for _ in range(count):
            plain = stack.enter_context(server.connect(TIMEOUT))
            if plain.family != socket.AF_UNIX:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            load.add_socket(plain)
        return
    client = stack.enter_context(contextlib.closing(connect(contender, server.address)))
    for _ in range(count):
        load.add_client(client)


def fill(options: argparse.Namespace, case: Case, sizes: int | Sizes, contender: Contender, server: Any) -> None:
    """Stores the keys of a case on a server. Raises BenchError."""
    with named(contender.name), contextlib.ExitStack() as stack:
        load = make_load(options, {**case.parameters, "depth": FILL_DEPTH}, sizes, 1)
        attach(load, contender, server, 1, stack)
        stack.enter_context(load)
        load.fill()


def run_of(
    options: argparse.Namespace, case: Case, sizes: int | Sizes, contender: Contender, server: Any, steps: Steps
) -> Run:
    cpu: Callable[[], float] | None = getattr(server, "cpu_seconds", None)

    def run(number: int) -> Taken:
        with contextlib.ExitStack() as stack:
            load = make_load(options, case.parameters, sizes, number + 1)
            attach(load, contender, server, case.parameters["connections"], stack)
            stack.enter_context(load)
            spent, used = time.thread_time(), cpu() if cpu else 0.0
            done = load.run(
                options.seconds if number else options.warm_up,
                lambda part: steps.within(part, f"{case.name}: {contender.name}"),
            )
            spent = time.thread_time() - spent
            values = figures_of(done, case, spent, cpu() - used if cpu else None)
            return Taken(values, counted=done["latencies"])

    return run


def measure_placed(options: argparse.Namespace, cores: str, record: Record, steps: Steps) -> None:
    for_clients, for_servers = placement(cores)
    most = max(options.connections) * 2 + 100
    flags = ("-t", str(options.workers), "-m", str(options.memory), "-I", "2m", "-c", str(most))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stack.enter_context(pinned(for_clients))
        servers: dict[Contender, Any] = {}
        for contender in options.contenders:
            servers[contender] = stack.enter_context(start(contender, flags, folder, for_servers))
            record.contender(described(contender, servers[contender], "the load generator"))
        filled: int | Sizes | None = None
        for case, sizes in cases_of(options, cores):
            if filled is not sizes and not options.no_fill:
                for contender, server in servers.items():
                    fill(options, case, sizes, contender, server)
            filled = sizes
            runs = {c.name: run_of(options, case, sizes, c, server, steps) for c, server in servers.items()}
            record.case(case, take_turns(case, runs, record.round, steps))


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    need_histograms()
    check_descriptors("--connections", max(options.connections))
    settle(options)
    refuse_clients(options.contenders, "load")
    record.note("Every value that came back was compared, byte by byte." if options.verify else COMPARED)
    cases = len(options.cores) * sum(1 for _ in cases_of(options, options.cores[0]))
    steps = record.steps(cases * len(options.contenders) * runs_of(record.round))
    # By default the kernel may prolong each sleep by 50 us: too much for short pauses between requests.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    for where in options.cores:
        measure_placed(options, where, record, steps)


COMPARED = "Key and length of every value that came back were compared; --verify compares the bytes, too."

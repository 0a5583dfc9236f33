"""`rmemcached-bench survives`: restarts and TLS, beside memcached's.

restart      items of 200 B taken over in a second by a start with -e on a tmpfs, after SIGKILL of our daemon, and after
             SIGUSR1 of memcached, which keeps its items after no other end. The time is from exec to the first
             answer, less the same time of a start with an empty file; for our daemon also by its restored_us.
sets         the server's CPU time for a set of 100 B, and sets a second, with -e beside without.
tls          gets of 1 MB by one client, Python's ssl for all servers, beside the same gets without TLS on another port
             of the same server.
handshakes   full handshakes a second by several processes; a handshake counts when a request behind it is answered.
             Meanwhile a bystander, without TLS, gets 100 B: its p99 beside the p99 without a storm, and beside the p99
             while the same processes shake hands among themselves, without the server.
idle         memory of an idle connection with TLS.
flash        hits of 1 KB, 64 KB and 500 KB, one at a time: of values in memory, and of values on flash (-o ext_path),
             read from the page cache and from the device; p99 of hits in memory while the server compacts, beside the
             p99 with the same sets without flash, and with no sets.

The floor of handshakes is the sum of as many processes, or one for each core if these are more, which share all cores:
each has both ends of its handshakes in memory (ssl.MemoryBIO), with the same certificate (P-256), without tickets. So
the floor is what all cores can do with the cryptography of both ends and Python's calls, without sockets. The other
figures have no floor. Runs with and without -e, or TLS, take turns, and a ratio divides two figures of the same round.
A server that does not know an option is left out, and the result says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rmemcached.bench import _load, cpu, tls
from rmemcached.bench.arguments import names_of, size_name
from rmemcached.bench.contenders import Contender, default_contenders, described, refuse, start
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError, named
from rmemcached.bench.helpers import Helper, orders
from rmemcached.bench.measure import Case, Round
from rmemcached.bench.memory import WARM, exchange, measure_connections
from rmemcached.bench.processes import check_descriptors
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server
from rmemcached.bench.sheet import Sheet

HELP = "restarts with a memory file, TLS, and values on flash"
CONTENDERS = ("tcp", "memcached")
TURNS = False
AT_LEAST = {"processes": 1}
FILE, TLS, FLASH = "--memory-file", "--enable-ssl", "ext_path"
# {part: its option, as the servers' help has it}
PARTS = {"restart": FILE, "sets": FILE, "tls": TLS, "handshakes": TLS, "idle": TLS, "flash": FLASH}
TMPFS = "/dev/shm"
RESTORED = 200  # bytes of a value
SET, CONNECTIONS, DEPTHS = 100, 50, (1, 16)
LARGE, KEY = 1 << 20, b"key"
RUNS = 3  # of what takes turns in a round
BYSTANDERS, RATE, GOT = 8, 2000, 1000  # connections, gets a second in all, keys
SHAKEN = "floor: handshakes"
FLASH_SIZES, FLASH_KEYS = (1 << 10, 64 << 10, 500 << 10), 32  # bytes of values, and the values of each size
PLACES = ("memory", "page cache", "device")
FLASH_OPTIONS = (
    "ext_page_size=8,ext_wbuf_size=2,ext_item_size=512,ext_item_age=0,ext_max_sleep=10000,ext_recache_rate=0"
)
COMPACTING = "ext_compact_under=5,ext_drop_under=1,ext_max_frag=0.9"
REPLACED, REPLACED_KEYS, REPLACED_RATE = 4000, 8000, 8000  # bytes, keys, sets a second: half of the 64 MB of flash
FLASH_TIMEOUT = 60  # seconds until the values are on flash
Name = TypeVar("Name", bound=Hashable)
Figures = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", type=names_of(tuple(PARTS)), default=[*PARTS], help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--items", type=int, default=1_000_000, help="of a restart (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each figure in a round (default: 1)")
    parser.add_argument("--processes", type=int, default=4, help="that shake hands (default: 4)")
    parser.add_argument("--connections", type=int, default=1000, help="idle ones (default: 1000)")


@dataclass(frozen=True)
class Scene:
    """What all parts of a round need. certificate: None without the command openssl."""

    options: argparse.Namespace
    sheet: Sheet
    certificate: tls.Certificate | None


def contenders() -> list[Contender]:
    return default_contenders(CONTENDERS)


@functools.cache
def help_of(program: str) -> str:
    """A server's help. program: memcached's path; "": our daemon. Raises OSError."""
    command = [program] if program else [sys.executable, "-P", "-m", "rmemcached"]
    return subprocess.run([*command, "-h"], capture_output=True, text=True, check=False).stdout


def able_ones(scene: Scene, part: str) -> list[Contender]:
    """The contenders that know the part's option, in this round's order. Notes the others."""
    record, found = scene.sheet.record, []
    if PARTS[part] == TLS and not scene.certificate:
        record.note(tls.ABSENT)
        return []
    for contender in scene.options.contenders:
        if PARTS[part] in help_of(contender.program):
            found.append(contender)
        else:
            record.note(f"{part} is without {contender.name}: its help has no {PARTS[part]}")
    return record.round.orders(found, part)[0] if found else []


def in_turns(
    works: Mapping[Name, Callable[[int], Figures]], what: str, now: Round, runs: int = RUNS
) -> dict[Name, Figures]:
    """The medians of each work's figures in several runs, in turns, after a warm-up. A work's argument is the number of
    its run, and 0 for the warm-up."""
    found: dict[Name, list[Figures]] = {name: [] for name in works}
    for work in works.values():
        work(0)
    orders = Round(now.number, runs, now.seed).orders(list(works), what)
    for number, names in enumerate(orders, (now.number - 1) * runs + 1):
        for name in names:
            found[name].append(works[name](number))
    return {name: {key: statistics.median(run[key] for run in some) for key in some[0]} for name, some in found.items()}


# ---- memory files ----------------------------------------------------------------------------------------------------


def room(megabytes: int) -> bool:
    """Whether the tmpfs has room for so much."""
    try:
        found = os.statvfs(TMPFS)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= megabytes << 20


def measure_restarts(scene: Scene, contenders: list[Contender]) -> None:
    sheet, items = scene.sheet, scene.options.items
    record = sheet.record
    # An item takes 300 bytes; memcached gives each slab class a page at once. Our file may be 64 MB larger than -m.
    megabytes = 128 + items // 2500
    if not room(megabytes + 100):
        record.note(f"{TMPFS} has no room for {megabytes + 100} MB: restarts are not measured, or with fewer --items")
        return
    case = f"{items} items of {RESTORED} B"
    time_of: dict[str, Any] = {"unit": "ms", "group": "restart"}
    rate_of: dict[str, Any] = {"unit": "1/s", "group": "restart", "better": "higher"}
    for contender in contenders:
        with named(contender.name):
            empty, full = (restarted(contender, megabytes, count, record) for count in (0, items))
        name, taken = contender.name, full["seconds"] - empty["seconds"]
        sheet.add(f"{case}: start", name, full["seconds"] * 1000, **time_of)
        sheet.add(f"{case}: start with an empty file", name, empty["seconds"] * 1000, **time_of)
        if taken > 0:
            sheet.add(f"{case}: taken over", name, items / taken, **rate_of)
        else:
            record.note(f"{name}: a start with {items} items is as short as one without: take more --items")
        if "restored_us" in full:
            sheet.add(f"{case}: taken over, by restored_us", name, items / full["restored_us"] * 1e6, **rate_of)


def restarted(contender: Contender, megabytes: int, items: int, record: Record) -> Figures:
    """Fills a server with a memory file, ends and starts it. Returns the seconds from exec to the first answer, and the
    daemon's own figure. Raises ValueError when items are missing."""
    ours = contender.server == "rmemcached"
    with scratch(TMPFS) as folder:
        flags = ("-t", "1", "-m", str(megabytes), "-e", f"{folder}/items")
        with start(contender, flags, folder, os.sched_getaffinity(0)) as server:
            record.contender(described(contender, server, "plain sockets"))
            if items:
                with loaded(server, items) as load:
                    load.fill()
            server.stop(signal.SIGKILL if ours else signal.SIGUSR1)
        if not ours:
            time.sleep(1 - time.time() % 1)  # memcached refuses its file within the second of its end
        with start(contender, flags, folder, os.sched_getaffinity(0)) as server:
            accepted = time.perf_counter()
            with server.connect(60) as plain:
                exchange(plain, b"mn\r\n", 4)
            figures = {"seconds": server.started_after + time.perf_counter() - accepted}
            stats = server.stats()
            if int(stats["curr_items"]) != items:
                raise ValueError(f"{stats['curr_items']} of {items} items are there after the restart: {server.said()}")
            if items:
                with loaded(server, items) as load:
                    load.run(0.1)
                if ours:
                    figures["restored_us"] = float(stats["restored_us"])
        return figures


@contextlib.contextmanager
def loaded(server: Server, items: int) -> Any:
    """A load of gets of these items; it compares all bytes, and a missing item is an error."""
    with server.connect(30) as plain:
        load = _load.Load(keys=items, value_size=RESTORED, depth=100, complete=True)
        load.add_socket(plain)
        with load:
            yield load


def measure_sets(scene: Scene, contenders: list[Contender]) -> None:
    options, sheet = scene.options, scene.sheet
    names = [contender.name for contender in contenders]
    if not room(2 * cpu.MEGABYTES * len(names)):
        sheet.record.note(f"{TMPFS} has no room for {2 * cpu.MEGABYTES * len(names)} MB: sets with -e are not measured")
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch(TMPFS))
        servers: dict[tuple[str, bool], Server] = {}
        for number, (contender, kept) in enumerate(itertools.product(contenders, (False, True))):
            flags = (*cpu.FLAGS, "-e", f"{folder}/items{number}") if kept else cpu.FLAGS
            server = stack.enter_context(start(contender, flags, folder, os.sched_getaffinity(0)))
            servers[contender.name, kept] = server
            sheet.record.contender(described(contender, server, "plain sockets"))
            with named(contender.name):
                cpu.fill(server, cpu.KEYS, SET)
        for depth in DEPTHS:
            found = in_turns(set_works(servers, depth, options.seconds / RUNS), f"sets {depth}", sheet.record.round)
            what = f"set of {SET} B{f', pipelined by {depth}' if depth > 1 else ''}, {CONNECTIONS} connections"
            add_sets(sheet, what, names, found)


def set_works(
    servers: Mapping[tuple[str, bool], Server], depth: int, seconds: float
) -> dict[tuple[str, bool], Callable[[int], Figures]]:
    """A run of sets for each server."""
    said = {"operation": "set", "size": SET, "depth": depth, "multiget": 1, "connections": CONNECTIONS}
    case = Case(f"sets {depth}", {**said, "stored": cpu.KEYS}, cpu.FIGURES)

    def work(name: str, server: Server) -> Callable[[int], Figures]:
        run = cpu.run_of(server, case, seconds, False)

        def numbered(number: int) -> Figures:
            with named(name):
                return run(number).values

        return numbered

    return {key: work(key[0], server) for key, server in servers.items()}


def add_sets(sheet: Sheet, what: str, names: Iterable[str], found: Mapping[tuple[str, bool], Figures]) -> None:
    for name, (figure, unit, better, words) in itertools.product(
        names, (("cpu_us", "us", "lower", "CPU"), ("per_second", "1/s", "higher", "throughput"))
    ):
        without, kept = found[name, False][figure], found[name, True][figure]
        sheet.add(f"{what}: {words}", name, without, unit, group="sets", better=better)
        sheet.add(f"{what}: {words}, -e", name, kept, unit, group="sets", better=better)
        sheet.add(f"{what}: {words}, -e beside without", name, kept / without, "", group="sets", better=better)


# ---- TLS -------------------------------------------------------------------------------------------------------------


def started(scene: Scene, contender: Contender, flags: Iterable[str], stack: contextlib.ExitStack) -> tls.Secured:
    """The contender's server with TLS, until the stack ends."""
    assert scene.certificate is not None
    secured = tls.start_secured(contender, [*flags], scene.certificate)
    stack.enter_context(secured.server)
    scene.sheet.record.contender(described(contender, secured.server, "plain sockets"))
    return secured


def measure_tls(scene: Scene, contenders: list[Contender]) -> None:
    options, sheet = scene.options, scene.sheet
    with contextlib.ExitStack() as stack:
        works, ciphers = {}, {}
        for contender in contenders:
            secured = started(scene, contender, (*cpu.FLAGS, *cpu.LARGE_FLAGS), stack)
            value = os.urandom(LARGE)
            with named(contender.name):
                session = stack.enter_context(secured.connect(30))
                exchange(session, b"set %s 0 0 %d\r\n%s\r\n" % (KEY, len(value), value), 8)
                plain = stack.enter_context(secured.server.connect(30))
            ciphers[contender.name] = session.cipher()
            for kind, peer in (("without TLS", plain), ("TLS", session)):
                works[contender.name, kind] = large_gets(secured.server, peer, value, options.seconds / RUNS)
        if len(set(ciphers.values())) > 1:
            sheet.record.note(f"tls: the servers chose different ciphers: {ciphers}")
        found = in_turns(works, "tls", sheet.record.round)
    case = f"get of {size_name(LARGE)}"
    for name, kind in found:
        for figure, unit, better in (("rate", "MB/s", "higher"), ("cpu_us", "us", "lower")):
            words = "" if figure == "rate" else ", server's CPU"
            measured = found[name, kind][figure]
            sheet.add(f"{case}, {kind}{words}", name, measured, unit, group="tls", better=better)
            if kind == "TLS":
                ratio = measured / found[name, "without TLS"][figure]
                sheet.add(f"{case}, TLS beside without{words}", name, ratio, "", group="tls", better=better)


def timed_get(peer: socket.socket, request: bytes, into: bytearray, expected: bytes) -> float:
    """Seconds of a get over a connection, with or without TLS, without the comparison. into: as long as the reply."""
    view, got = memoryview(into), 0
    begin = time.perf_counter()
    peer.sendall(request)
    while got < len(view):
        more = peer.recv_into(view[got:])
        if not more:
            raise ConnectionError("the server closed the connection")
        got += more
    spent = time.perf_counter() - begin
    if into != expected:
        raise ValueError(f"{request.decode().strip()}: a wrong value came back")
    return spent


def large_gets(server: Server, peer: socket.socket, value: bytes, seconds: float) -> Callable[[int], Figures]:
    """A run of gets over a connection."""
    request, expected = b"get %s\r\n" % KEY, b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (KEY, len(value), value)
    into = bytearray(len(expected))

    def work(number: int) -> Figures:
        done, spent, before = 0, 0.0, server.cpu_seconds()
        while done == 0 or spent < (seconds if number else seconds / 10):
            spent += timed_get(peer, request, into, expected)
            done += 1
        return {"rate": done * len(value) / spent / 1e6, "cpu_us": (server.cpu_seconds() - before) / done * 1e6}

    return work


def measure_handshakes(scene: Scene, contenders: list[Contender]) -> None:
    options, sheet = scene.options, scene.sheet
    now, cores = sheet.record.round, len(os.sched_getaffinity(0))
    count = max(options.processes, cores)
    text = f"full handshakes of two ends in a process, in memory; {count} processes on {cores} cores, all together"
    sheet.record.floor(SHAKEN, text)
    with contextlib.ExitStack() as stack:
        everywhere = os.sched_getaffinity(0)
        helpers = [stack.enter_context(Helper(tls.shaker, everywhere, scene.certificate)) for _ in range(count)]
        works: dict[str, Callable[[int], Figures]] = {}
        for contender in contenders:
            secured = started(scene, contender, ("-t", str(cores), "-m", "64"), stack)
            with named(contender.name):
                cpu.fill(secured.server, GOT)
            works[contender.name] = storm_work(helpers[: options.processes], secured, options.seconds / RUNS)

        def floor(number: int) -> Figures:
            answers = together(helpers, options.seconds / RUNS, "alone")
            return {"per_second": per_second(answers())}

        found = in_turns({**works, SHAKEN: floor}, "handshakes", now)
    case, p99 = f"full handshakes, {options.processes} processes", "p99 of a bystander's get"
    for name, figures in found.items():
        under = "" if name == SHAKEN else SHAKEN
        given: dict[str, Any] = {"group": "handshakes", "floor": under, "better": "higher"}
        sheet.add(case, name, figures["per_second"], "1/s", **given)
        if name == SHAKEN:
            continue
        sheet.add("a full handshake, server's CPU", name, figures["cpu_us"], "us", group="handshakes")
        for kind, words in (("quiet", ""), ("busy", ", processes busy elsewhere"), ("storm", ", in the storm")):
            sheet.add(f"{p99}{words}", name, figures[kind], "us", group="handshakes")
        for kind, words in (("quiet", "without"), ("busy", "busy elsewhere")):
            ratio = figures["storm"] / figures[kind]
            sheet.add(f"{p99}, the storm beside {words}", name, ratio, "", group="handshakes")


def together(helpers: list[Helper], seconds: float, *order: Any) -> Callable[[], list[tuple[int, float]]]:
    """Starts all helpers on an order. Returns a function that waits for their answers."""
    for helper in helpers:
        helper.tell(order[0], seconds, *order[1:])
    return lambda: [helper.answer() for helper in helpers]


def per_second(answers: Iterable[tuple[int, float]]) -> float:
    """The handshakes of all processes."""
    return sum(done / spent for done, spent in answers)


def storm_work(helpers: list[Helper], secured: tls.Secured, seconds: float) -> Callable[[int], Figures]:
    """A run of a bystander alone, beside processes that shake hands among themselves, and in the storm. The CPU time of
    the bystander's gets does not count."""
    server = secured.server

    def work(number: int) -> Figures:
        length = seconds if number else seconds / 10
        begin = server.cpu_seconds()
        figures = {"quiet": bystander(server, length, number)}
        gets = server.cpu_seconds() - begin
        answers = together(helpers, length, "alone")
        figures["busy"] = bystander(server, length, number)
        answers()
        begin = server.cpu_seconds()
        answers = together(helpers, length, "shake", secured.address)
        figures["storm"] = bystander(server, length, number)
        found = answers()
        used = max(server.cpu_seconds() - begin - gets, 0.0)
        return {**figures, "per_second": per_second(found), "cpu_us": used / sum(done for done, _ in found) * 1e6}

    return work


def bystander(server: Server, seconds: float, number: int) -> float:
    """The p99, in microseconds from the due time, of gets at a fixed rate without TLS. number: of the run."""
    with contextlib.ExitStack() as stack:
        load = _load.Load(keys=GOT, rate=RATE, complete=True, seed=number + 1)
        for _ in range(BYSTANDERS):
            load.add_socket(stack.enter_context(server.connect(60)))
        with load:
            return cpu.percentile(load.run(seconds)["latencies"], 99)


def measure_idle(scene: Scene, contenders: list[Contender]) -> None:
    options, sheet = scene.options, scene.sheet
    flags = ("-t", "1", "-m", "64", "-c", str(options.connections + WARM + 100))
    for contender in contenders:
        with contextlib.ExitStack() as stack, named(contender.name):
            secured = started(scene, contender, flags, stack)
            found = measure_connections(secured, options.connections)
        sheet.add(
            f"an idle connection with TLS, of {options.connections}", contender.name, found, "bytes", group="idle"
        )


# ---- flash -----------------------------------------------------------------------------------------------------------


def measure_flash(scene: Scene, contenders: list[Contender]) -> None:
    measure_flash_hits(scene, contenders)
    measure_compaction(scene, contenders)


def with_flash(file: str, megabytes: int, *more: str) -> tuple[str, ...]:
    """The options of a server whose values leave memory as soon as possible."""
    return ("-o", ",".join((FLASH_OPTIONS, *more, f"ext_path={file}:{megabytes}m")))


def measure_flash_hits(scene: Scene, contenders: list[Contender]) -> None:
    sheet = scene.sheet
    values = {size: [os.urandom(size) for _ in range(2 * FLASH_KEYS)] for size in FLASH_SIZES}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        works: dict[int, dict[tuple[str, str], Callable[[int], Figures]]] = {size: {} for size in FLASH_SIZES}
        for number, contender in enumerate(contenders):
            flags, file = ("-t", "1", "-m", "256"), f"{folder}/flash{number}"
            for options in ((), with_flash(file, 256)):
                server = stack.enter_context(start(contender, (*flags, *options), folder, os.sched_getaffinity(0)))
                sheet.record.contender(described(contender, server, "plain sockets"))
                with named(contender.name):
                    peer = stack.enter_context(server.connect(60))
                    store_values(peer, values)
                    for size in FLASH_SIZES:
                        keys = on_flash(server, peer, size, values[size]) if options else range(FLASH_KEYS)
                        hits = Hits(server, peer, file, size, {key: values[size][key] for key in keys})
                        places = PLACES[1:] if options else PLACES[:1]
                        if options and not hits.reach_the_device():
                            sheet.record.note("flash is without the device: the file system of TMPDIR is in memory")
                            places = places[:1]
                        for place in places:
                            works[size][contender.name, place] = hits.work(place, scene.options.seconds / RUNS)
        for size in FLASH_SIZES:
            found = in_turns(works[size], f"flash {size}", sheet.record.round)
            for name, place in found:
                us = found[name, place]["p50_us"]
                sheet.add(f"hit of {size_name(size)}, {place}: p50", name, us, "us", group="flash")
                if place != PLACES[0]:
                    ratio = us / found[name, PLACES[0]]["p50_us"]
                    sheet.add(f"hit of {size_name(size)}, {place} beside memory", name, ratio, "", group="flash")


def store_values(peer: socket.socket, values: Mapping[int, list[bytes]]) -> None:
    """Stores the values, and then the largest again under other keys: these push the others out of write buffers."""
    largest = max(values)
    for size, kind in (*((size, "key") for size in values), (largest, "more")):
        for key, value in enumerate(values[size]):
            command = b"set %s-%d-%d 0 0 %d\r\n%s\r\n" % (kind.encode(), size, key, size, value)
            if (reply := exchange(peer, command, 8)) != b"STORED\r\n":
                raise ValueError(f"set of {size} bytes: a wrong reply came back: {reply!r}")


def on_flash(server: Server, peer: socket.socket, size: int, values: list[bytes]) -> list[int]:
    """The numbers of FLASH_KEYS values on flash. Raises ValueError when too few are there after a minute."""
    deadline = time.monotonic() + FLASH_TIMEOUT
    while True:
        found = []
        for key, value in enumerate(values):
            before = server.stats()["get_extstore"]
            timed_get(peer, *flash_get(size, key, value))
            if server.stats()["get_extstore"] != before:
                found.append(key)
            if len(found) == FLASH_KEYS:
                return found
        if time.monotonic() > deadline:
            raise ValueError(f"{len(found)} of {len(values)} values of {size} bytes are on flash after a minute")


def flash_get(size: int, key: int, value: bytes) -> tuple[bytes, bytearray, bytes]:
    """The arguments of timed_get."""
    expected = b"VALUE key-%d-%d 0 %d\r\n%s\r\nEND\r\n" % (size, key, size, value)
    return b"get key-%d-%d\r\n" % (size, key), bytearray(len(expected)), expected


@dataclass(frozen=True)
class Hits:
    """Gets of these values. file: of the server's flash."""

    server: Server
    peer: socket.socket
    file: str
    size: int
    values: Mapping[int, bytes]

    def work(self, place: str, seconds: float) -> Callable[[int], Figures]:
        gets = [flash_get(self.size, key, value) for key, value in self.values.items()]

        def run(number: int) -> Figures:
            taken: list[float] = []
            hits, read = self.flash_hits(), self.device_bytes()
            end = time.monotonic() + (seconds if number else seconds / 10)
            while not taken or time.monotonic() < end:
                for get in gets:
                    if place == "device":
                        self.leave_page_cache()
                    taken.append(timed_get(self.peer, *get))
            if place != "memory" and self.flash_hits() - hits != len(taken):
                raise ValueError(f"{self.flash_hits() - hits} of {len(taken)} hits came from flash")
            if place == "device" and self.device_bytes() - read < len(taken) * self.size / 2:
                raise ValueError(f"{self.device_bytes() - read} bytes were read from the device by {len(taken)} gets")
            return {"p50_us": statistics.median(taken) * 1e6}

        return run

    def flash_hits(self) -> int:
        return int(self.server.stats().get("get_extstore", 0))

    def leave_page_cache(self) -> None:
        """The next gets read from the device."""
        with open(self.file, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def reach_the_device(self) -> bool:
        """Whether a get can reach a device. On a tmpfs the page cache is all there is."""
        key, value = next(iter(self.values.items()))
        before = self.device_bytes()
        self.leave_page_cache()
        timed_get(self.peer, *flash_get(self.size, key, value))
        return self.device_bytes() > before

    def device_bytes(self) -> int:
        """Bytes read from devices by the server so far. Raises OSError."""
        lines = Path(f"/proc/{self.server.pid}/io").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def measure_compaction(scene: Scene, contenders: list[Contender]) -> None:
    sheet, seconds = scene.sheet, scene.options.seconds
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        helper = stack.enter_context(Helper(replacer, os.sched_getaffinity(0)))
        works: dict[tuple[str, bool], Callable[[int], Figures]] = {}
        for number, contender in enumerate(contenders):
            for flash in (False, True):
                options = with_flash(f"{folder}/flash{number}", 64, COMPACTING) if flash else ()
                flags = ("-t", "1", "-m", "64", *options)
                server = stack.enter_context(start(contender, flags, folder, os.sched_getaffinity(0)))
                with named(contender.name):
                    cpu.fill(server, GOT)
                    helper.tell("fill", server.address)
                    helper.answer()
                works[contender.name, flash] = replacing_work(helper, server, flash, seconds)
        found = in_turns(works, "compaction", sheet.record.round, runs=1)
    p99 = "p99 of a hit in memory"
    for name in (contender.name for contender in contenders):
        without, compacting = found[name, False], found[name, True]
        if not compacting["compacted"]:
            sheet.record.note(f"flash: {name} has compacted nothing while it was measured: take more --seconds")
            continue
        given: dict[str, Any] = {"unit": "us", "group": "flash"}
        sheet.add(f"{p99}, no sets", name, without["quiet"], **given)
        sheet.add(f"{p99}, sets without flash", name, without["p99_us"], **given)
        sheet.add(f"{p99}, sets and compaction", name, compacting["p99_us"], **given)
        given["unit"] = ""
        sheet.add(f"{p99}, compaction beside sets", name, compacting["p99_us"] / without["p99_us"], **given)
        sheet.add(f"{p99}, compaction beside no sets", name, compacting["p99_us"] / without["quiet"], **given)


def replacing_work(helper: Helper, server: Server, flash: bool, seconds: float) -> Callable[[int], Figures]:
    """A run of the bystander's gets beside sets of values that are there already; without flash, also of gets alone."""

    def work(number: int) -> Figures:
        length = seconds if number else seconds / 10
        figures = {} if flash else {"quiet": bystander(server, length, number)}
        before = compacted(server)
        helper.tell("replace", server.address, length, number + 1)
        figures["p99_us"] = bystander(server, length, number)
        helper.answer()
        return {**figures, "compacted": compacted(server) - before}

    return work


def compacted(server: Server) -> int:
    """Values that compactions have moved, and pages that they have given back."""
    stats = server.stats()
    return sum(int(stats.get(key, 0)) for key in ("extstore_compact_rescues", "extstore_page_reclaims"))


def replacer(pipe: Connection, cores: set[int]) -> None:
    """Answers ("fill", address), and ("replace", address, seconds, seed) when the sets are over."""
    for what, address, *rest in orders(pipe, cores):
        seed = rest[1] if rest else 1
        with socket.create_connection(address, 60) as plain:
            rate = 0 if what == "fill" else REPLACED_RATE
            load = _load.Load(
                keys=REPLACED_KEYS, key_size=33, value_size=REPLACED, sets=1.0, depth=16, rate=rate, seed=seed
            )  # the bystander's keys have 32 bytes
            load.add_socket(plain)
            with load:
                if what == "fill":
                    load.fill()
                else:
                    load.run(rest[0])
        pipe.send(None)


# ---- all parts -------------------------------------------------------------------------------------------------------

WORKS: dict[str, Callable[[Scene, list[Contender]], None]] = {
    "restart": measure_restarts,
    "sets": measure_sets,
    "tls": measure_tls,
    "handshakes": measure_handshakes,
    "idle": measure_idle,
    "flash": measure_flash,
}


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    refuse(options.contenders, "survives", ("tcp",), clients=False)
    check_descriptors("--connections", options.connections + WARM)
    steps = record.steps(len(options.parts))
    with scratch() as folder:
        scene = Scene(options, Sheet(record), tls.make_certificate(folder))
        for part in options.parts:
            if able := able_ones(scene, part):
                WORKS[part](scene, able)
            steps.step(part)
    if not scene.sheet.cases:
        raise BenchError(f"nothing was measured: {'; '.join(record.document['notes'])}")
    scene.sheet.finish()

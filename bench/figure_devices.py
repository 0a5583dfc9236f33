"""Figures of bare devices: two polling processes with a queue pair each, and TCP and memcpy beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmemcached import __version__
from rmemcached.bench import fabrics
from rmemcached.bench.arguments import size_name
from rmemcached.bench.document import Record
from rmemcached.bench.drawing import (
    Claim,
    Drawing,
    Effort,
    devices,
    of_devices,
    participant,
    system_device,
    to_reference,
)
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Case, Figure
from rmemcached.perftest import session
from rmemcached.perftest.bare import copy_rate, tcp_ping, tcp_stream
from rmemcached.perftest.session import Test

PATIENCE = 300.0  # seconds for the peer's program to end
LATENCY = Figure("latency_us", "us")
RATE = Figure("rate", "MB/s", "higher")
MEMCPY, STREAM = fabrics.MEMCPY, fabrics.STREAM
FEWEST = {LATENCY.unit: 100, RATE.unit: 32}
MOST = 20000
PASSES = 3
TURNS = (
    "Each round has processes and connections of its own. In it the rows take turns in an order that is drawn, so that"
    " load from elsewhere meets all alike. Of each row two runs are thrown away, which find how long the third one is."
)
POLLING = "Two processes poll, each on a core of its own where there are two. MB is 2^20 bytes."
MEDIAN = "A figure is the median of the rounds."
NO_DATAGRAMS = "UC and UD: the software RNIC has reliable connections only, as iWARP has."


class DeviceSide(fabrics.Side):
    """One of the two processes, as fabrics.Side; connects devices of the system, too."""

    def connect(self, name: str, which: int) -> None:
        end = self.ends[name]
        if end.fabric.stream:
            super().connect(name, which)
        else:
            session.connect(end, self.control, self.tests[name], self.client, None, which)

    def meet(self) -> None:
        """Waits until the peer calls it too."""
        self.control.send(here=True)
        self.control.receive("here", patience=PATIENCE)

    def agreed(self, count: int) -> int:
        """The client's number, at both."""
        if self.client:
            self.control.send(count=count)
            return count
        return int(self.control.receive("count", patience=PATIENCE))

    def average(self, name: str, verb: str, size: int, iterations: int) -> float:
        """The mean latency in microseconds. Returns 0 at the server."""
        test = Test(verb, "lat", [size], iterations)
        if not self.client:
            session.measure_as_server(self.ends[name], self.control, test)
            return 0.0
        return float(session.measure_as_client(self.ends[name], self.control, test, size)["t_avg"])


# The work of both sides for a contender: (side, iterations) -> its figure at the client.
Probe = Callable[[DeviceSide, int], float]


@dataclass(frozen=True)
class Cell:
    """A case, and each contender's probe. prepare: the client's work before."""

    case: Case
    probes: dict[str, Probe]
    prepare: Callable[[], None] = lambda: None


Samples = list[tuple[Case, list[dict[str, Any]]]]


def iterations(case: Case, value: float, seconds: float) -> int:
    """The number of iterations that take so many seconds at this value. A latency may be half of a round trip."""
    if not value:
        return MOST
    if case.figures[0].unit == LATENCY.unit:
        return int(seconds * 1e6 / (2 * value))
    return int(seconds * value * session.MB / case.parameters["size"])


def alternate(side: DeviceSide, cells: Sequence[Cell], record: Record, seconds: float) -> Samples:
    """Measures a round of all cells, the probes of a cell in turns, and returns their samples.

    Each pass computes the number of iterations with which the next pass takes so many seconds. All passes but the last
    are thrown away. Both sides have the record's round, and so the same order.
    """
    made = []
    steps = record.steps(sum(len(cell.probes) for cell in cells) * PASSES)
    for cell in cells:
        side.meet()
        if side.client:
            cell.prepare()
        least = FEWEST[cell.case.figures[0].unit]
        counts = dict.fromkeys(cell.probes, least)
        names = record.round.orders(list(cell.probes), cell.case.name)[0]
        values: dict[str, float] = {}
        for _ in range(PASSES):
            for name in names:
                side.meet()
                values[name] = cell.probes[name](side, counts[name])
                counts[name] = side.agreed(min(max(iterations(cell.case, values[name], seconds), least), MOST))
                if side.client:
                    steps.step(f"{cell.case.name}: {name}")
        samples = [
            record.round.sample(cell.case.name, name, turn, {cell.case.figures[0].name: values[name]})
            for turn, name in enumerate(names, 1)
        ]
        made.append((cell.case, samples))
    side.meet()
    side.stack.close()
    return made


def measured(work: Callable[[DeviceSide], Samples], record: Record) -> None:
    """Runs both sides and records their samples. Raises BenchError."""
    try:
        found = fabrics.both(DeviceSide, work)
    except (session.SessionError, session.EndError, OSError) as error:
        raise BenchError(str(error)) from error
    for case, samples in found:
        record.case(case, samples)


def transfer(name: str, verb: str, size: int) -> Probe:
    """Bandwidth of a verb over an open device."""
    return lambda side, count: side.measure(name, verb, "bw", size, count)


def ping(name: str, verb: str, size: int) -> Probe:
    """Latency of a verb over an open device: half a round trip, for READ a whole round trip."""
    return lambda side, count: side.measure(name, verb, "lat", size, count)


def stream(size: int) -> Probe:
    """Bandwidth of a bare TCP connection."""
    return lambda side, count: tcp_stream(side.tcp.fileno(), size, count, side.client) / session.MB


def tcp_latency(size: int) -> Probe:
    """Half a round trip over a bare TCP connection."""
    return lambda side, count: statistics.median(tcp_ping(side.tcp.fileno(), size, count, side.client)) * 1e6


def copies(size: int) -> Probe:
    """memcpy at the client; the peer waits."""

    def run(side: DeviceSide, count: int) -> float:
        return statistics.harmonic_mean(copy_rate(size, count)) / session.MB if side.client else 0.0

    return run


# --- operations ---

OPERATIONS = ("write", "read", "send")
SIZES = (64, 1024, 4096, 16384, 65536, 1 << 20)
QUICK_SIZES = (1024, 65536)


def present() -> dict[str, str]:
    """{fabric: device}"""
    found = {name: f"{name}0" for name in ("soft_shm", "soft_iw")}
    return found | ({"verbs": device} if (device := system_device()) else {})


def operations(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 1."""
    there = present()
    server = f"rmemcached {__version__}"
    for verb in OPERATIONS:
        participant(record, verb.upper(), server, f"{verb.upper()}s over a queue pair of {', '.join(there.values())}")
    record.floor(MEMCPY, "memcpy of as many bytes, once: what soft_shm can reach")
    record.floor(STREAM, "one message after the other over a bare TCP connection: what soft_iw can reach")
    floors = {"soft_shm": (MEMCPY, copies), "soft_iw": (STREAM, stream)}
    cells = []
    for fabric in there:
        for size in effort.of(QUICK_SIZES, SIZES):
            probes = {verb.upper(): transfer(fabric, verb, size) for verb in OPERATIONS}
            named = {}
            if fabric in floors:
                floor, probe = floors[fabric]
                probes[floor] = probe(size)
                named = dict.fromkeys((verb.upper() for verb in OPERATIONS), floor)
            case = Case(
                f"{size_name(size)} over {there[fabric]}", {"device": fabric, "size": size}, (RATE,), floors=named
            )
            cells.append(Cell(case, probes))

    def work(side: DeviceSide) -> Samples:
        for fabric, device in there.items():
            side.open(fabric, device)
        return alternate(side, cells, record, effort.of(0.02, 0.1))

    measured(work, record)


# --- DDP over TCP ---

TCP, PLAIN, CHECKED = "TCP", "soft_iw", "soft_iw with CRC"
DDP_SIZES = (4, 64, 1024, 4096, 16384, 65536, 262144, 1 << 20)


def placement(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RDDP, figure 6."""
    server = f"rmemcached {__version__}"
    participant(record, TCP, "none", "a bare TCP connection between the same two processes")
    participant(record, PLAIN, server, "a queue pair of soft_iw0: MPA, DDP and RDMAP over TCP")
    participant(record, CHECKED, server, "the same with MPA's CRC32c")
    cells = []
    for size in effort.of((64, 65536), DDP_SIZES):
        said = {"what": "latency", "size": size}
        probes = {TCP: tcp_latency(size), PLAIN: ping("iw", "send", size), CHECKED: ping("iw crc", "send", size)}
        cells.append(Cell(Case(f"ping-pong of {size_name(size)}, half a round trip", said, (LATENCY,)), probes))
    for size in effort.of((64, 65536), DDP_SIZES):
        said = {"what": "bandwidth", "size": size}
        probes = {TCP: stream(size), PLAIN: transfer("iw", "send", size), CHECKED: transfer("iw crc", "send", size)}
        cells.append(Cell(Case(f"{size_name(size)} after the other, one way", said, (RATE,)), probes))

    def work(side: DeviceSide) -> Samples:
        side.open("iw", "soft_iw0")
        side.open("iw crc", "soft_iw0", crc=True)
        return alternate(side, cells, record, effort.of(0.02, 0.1))

    measured(work, record)


def at(what: str, size: int) -> Callable[..., Any]:
    return devices(to_reference, PLAIN, CHECKED, what=what, size=size)


DRAWINGS = (
    Drawing(
        "raas-1",
        "Figure 1: throughput of the RDMA operations, by message size",
        "size",
        (POLLING, TURNS, MEDIAN, "32 operations are under way."),
        operations,
        (
            Claim(
                "READ is close to WRITE where messages are large",
                "near 1",
                of_devices(to_reference, "READ", size=1 << 20),
            ),
            Claim("READ to WRITE, 64 KB", "", of_devices(to_reference, "READ", size=65536)),
            Claim("READ to WRITE, 1 KB", "less than 1", of_devices(to_reference, "READ", size=1024)),
            Claim("SEND to WRITE, 1 KB", "", of_devices(to_reference, "SEND", size=1024)),
        ),
        reference="WRITE",
        lacks=(NO_DATAGRAMS, "A link of 40 Gb/s: both processes are on one host."),
    ),
    Drawing(
        "rddp-6",
        "Figure 6: latency and bandwidth of DDP in software, beside TCP",
        "size",
        (POLLING, TURNS, MEDIAN),
        placement,
        (
            Claim("the user-level DDP adds some 100 us to a ping-pong of TCP; 64 B", "more than 1", at("latency", 64)),
            Claim("latency of 64 KB", "", at("latency", 65536)),
            Claim(
                "small messages have less bandwidth than TCP, which joins them; 64 B",
                "less than 1",
                at("bandwidth", 64),
            ),
            Claim("large messages lose by the computation of CRCs; 64 KB", "less than 1", at("bandwidth", 65536)),
            Claim("bandwidth of 1 MB", "", at("bandwidth", 1 << 20)),
        ),
        reference=TCP,
        lacks=(
            "DDP in the kernel: siw is that, and stands in `usiw-6` and `usiw-7`, for which a laboratory is needed.",
            "A Gigabit Ethernet between two hosts: both processes are on one host.",
        ),
    ),
)

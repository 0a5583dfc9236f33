"""`rmemcached-bench fabrics`: the software RDMA devices beside shared memory, memcpy and TCP, in one run.

Two processes, each on a core of its own, alternate between these measurements: a ping-pong through two cache lines,
memcpy, a TCP connection, and the queue pairs of soft_shm0 and soft_iw0. All of them poll. Each round has other
processes, and another order. A second queue pair of each device shares its completion queue with a thousand idle queue
pairs. They show what an idle queue pair costs in memory (of both processes, without its posted receives) and in
latency.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import socket
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rmemcached import __version__
from rmemcached.bench.document import Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Round
from rmemcached.bench.processes import check_descriptors, end_with, uninterrupted
from rmemcached.bench.sheet import Sheet
from rmemcached.perftest import session
from rmemcached.perftest.bare import copy_rate, line_ping, tcp_ping, tcp_stream
from rmemcached.perftest.ends import End
from rmemcached.perftest.session import Control, Device, Test

MEGABYTE = 1 << 20
SMALL = 8
IDLE_DEPTH = 16
DESCRIPTORS_MORE = 100  # for the remaining queue pairs
READS = 16

HELP = "the software RDMA devices beside shared memory, memcpy and TCP, and their bounds"
AT_LEAST = {"iterations": 10}
REFERENCE = ""
LINES_FLOOR, MEMCPY, PING, STREAM, ALONE = (
    f"floor: {name}" for name in ("two cache lines", "memcpy", "TCP ping-pong", "TCP stream", "no idle queue pairs")
)
FLOORS = {
    LINES_FLOOR: "a ping-pong through two cache lines of shared memory",
    MEMCPY: "memcpy of 1 MB",
    PING: "a ping-pong of 8 B over a bare TCP connection",
    STREAM: "1 MB after the other over a bare TCP connection",
    ALONE: "the same device without idle queue pairs",
}
# The rows: device, case, its figure, its floor, the floor's figure, bound of their ratio. MB/s in cases of 1 MB, else
# us.
LINES: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("soft_shm", "SEND 8 B, half round trip", "shm send", LINES_FLOOR, "lines", "<= 2"),
    ("soft_shm", "READ 8 B", "shm read", LINES_FLOOR, "lines", "<= 5"),
    ("soft_shm", "READ 1 MB by shared memory", "shm read 1m", MEMCPY, "memcpy", ">= 0.8"),
    ("soft_iw", "SEND 8 B, half round trip", "iw send", PING, "tcp", "<= 1.15"),
    ("soft_iw", "WRITE 1 MB", "iw write 1m", STREAM, "tcp 1m", ">= 0.8"),
    ("soft_iw", "READ 1 MB", "iw read 1m", STREAM, "tcp 1m", ">= 0.8"),
    ("soft_iw", "WRITE 1 MB, CRC", "iw crc write 1m", STREAM, "tcp 1m", ">= 0.6"),
    ("soft_iw", "READ 1 MB, CRC", "iw crc read 1m", STREAM, "tcp 1m", ">= 0.6"),
    ("soft_shm", "SEND 8 B, idle queue pairs beside, soft_shm", "shm idle send", ALONE, "shm send", "<= 1.2"),
    ("soft_iw", "SEND 8 B, idle queue pairs beside, soft_iw", "iw idle send", ALONE, "iw send", "<= 1.2"),
)
MEMORY_BOUND = "<= 16"  # KB of an idle queue pair
GROUP = "devices"
Result = TypeVar("Result")


class Side:
    """One of the two processes. Both call the same methods in the same order."""

    def __init__(self, client: bool, control: socket.socket, descriptors: socket.socket, memory: mmap.mmap) -> None:
        self.client = client
        self.control = Control(control)
        self.descriptors = descriptors
        self.memory = memory
        self.stack = contextlib.ExitStack()
        self.tests: dict[str, Test] = {}
        self.ends: dict[str, End] = {}
        self.tcp = self.pair(False)

    def pair(self, local: bool) -> socket.socket:
        """This side's end of a new pair of connected sockets. local: UNIX sockets, else TCP over loopback."""
        if not self.client:
            _, (fd,), _, _ = socket.recv_fds(self.descriptors, 1, 1)
            return socket.socket(fileno=fd)
        if local:
            ours, theirs = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                ours = socket.create_connection(listener.getsockname())
                theirs, _ = listener.accept()
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with theirs:
            socket.send_fds(self.descriptors, [b"x"], [theirs.fileno()])
        return ours

    def open(self, name: str, device: str, crc: bool = False) -> None:
        """Opens a device and connects its first queue pair to the peer's. crc: with MPA's CRC32c."""
        test = Test("send", "lat", [MEGABYTE], 5, crc=crc, tx_depth=32, moderation=16, inline_size=64)
        end = self.stack.enter_context(
            contextlib.closing(session.open_end(self.control, test, Device(device, reads=READS)))
        )
        self.ends[name], self.tests[name] = end, test
        self.connect(name, 0)

    def connect(self, name: str, which: int) -> None:
        """Connects queue pair number `which` of the device to the peer's."""
        end = self.ends[name]
        session.connect(end, self.control, self.tests[name], self.client, lambda: self.pair(end.fabric.near), which)

    def measure(self, name: str, verb: str, kind: str, size: int, iterations: int) -> float:
        """Measures a latency (kind "lat", in microseconds) or a bandwidth ("bw", in MB/s). Returns 0 at the server."""
        base = self.tests[name]
        test = Test(verb, kind, [size], iterations, crc=base.crc, tx_depth=32, moderation=16 if kind == "lat" else 1)
        if not self.client:
            session.measure_as_server(self.ends[name], self.control, test)
            return 0.0
        row = session.measure_as_client(self.ends[name], self.control, test, size)
        return float(row["t_typical" if kind == "lat" else "BW_average"])

    def meet(self) -> None:
        """Waits until the peer calls `meet`, too."""
        self.control.send(here=True)
        self.control.receive("here")

    def add_idle(self, name: str, count: int) -> float:
        """Connects `count` idle queue pairs. Returns the KB of memory used by one end of such a queue pair."""
        before = resident()
        for _ in range(count):
            self.connect(name, self.ends[name].add(IDLE_DEPTH, IDLE_DEPTH))
        # This completes the start-up of the new queue pairs, and lets the device notice that they are idle.
        self.measure(name, "send", "lat", SMALL, 2000)
        used = resident() - before
        self.control.send(used=used)
        return (used + float(self.control.receive("used"))) / 2 / count if count else 0.0


def resident() -> float:
    """The process's proportional set size in KB: a page shared with n processes counts 1/n."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1])
    raise RuntimeError("the kernel does not tell the resident memory")


def run(side: Side, now: Round, iterations: int, idle: int) -> dict[str, Any]:
    """All measurements: {"figures": {name: figure}, "memory": {fabric: KB of an idle queue pair}}.

    The figures are 0 at the server. The order comes from the round, which both sides have.
    """
    for name, device, crc in (
        ("shm", "soft_shm0", False),
        ("iw", "soft_iw0", False),
        ("iw crc", "soft_iw0", True),
        ("shm idle", "soft_shm0", False),
        ("iw idle", "soft_iw0", False),
    ):
        side.open(name, device, crc)
    memory = {name: side.add_idle(f"{name} idle", idle) for name in ("shm", "iw")}
    large = max(5, iterations // 50)
    steps: dict[str, Callable[[], float]] = {
        "lines": lambda: statistics.median(line_ping(side.memory, 10 * iterations, side.client)) * 1e6,
        "shm send": lambda: side.measure("shm", "send", "lat", SMALL, 10 * iterations),
        "shm idle send": lambda: side.measure("shm idle", "send", "lat", SMALL, 10 * iterations),
        "shm read": lambda: side.measure("shm", "read", "lat", SMALL, 10 * iterations),
        # The figure is the rate of all copies together, as the bandwidth of READs is the rate of all READs together.
        "memcpy": lambda: statistics.harmonic_mean(copy_rate(MEGABYTE, large)) / session.MB,
        "shm read 1m": lambda: side.measure("shm", "read", "bw", MEGABYTE, large),
        "tcp": lambda: statistics.median(tcp_ping(side.tcp.fileno(), SMALL, iterations, side.client)) * 1e6,
        "iw send": lambda: side.measure("iw", "send", "lat", SMALL, iterations),
        "iw idle send": lambda: side.measure("iw idle", "send", "lat", SMALL, iterations),
        "tcp 1m": lambda: tcp_stream(side.tcp.fileno(), MEGABYTE, large, side.client) / session.MB,
        "iw write 1m": lambda: side.measure("iw", "write", "bw", MEGABYTE, large),
        "iw read 1m": lambda: side.measure("iw", "read", "bw", MEGABYTE, large),
        "iw crc write 1m": lambda: side.measure("iw crc", "write", "bw", MEGABYTE, large),
        "iw crc read 1m": lambda: side.measure("iw crc", "read", "bw", MEGABYTE, large),
    }
    figures: dict[str, float] = {}
    for name in now.orders(list(steps), "fabrics")[0]:
        side.meet()
        figures[name] = steps[name]()
    side.meet()
    side.stack.close()
    return {"figures": figures, "memory": memory}


def fill_sheet(found: dict[str, Any], sheet: Sheet) -> None:
    """Adds the rows of the table. A floor is measured in the same rounds as its figure, so a disturbance meets both."""
    for device, case, what, floor, other, bound in LINES:
        unit, better = ("MB/s", "higher") if "1 MB" in case else ("us", "lower")
        ours, bare = found["figures"][what], found["figures"][other]
        sheet.add(case, device, ours, unit, group=GROUP, better=better, bound=f"{bound} of {floor}", floor=floor)
        sheet.add(case, floor, bare, unit, group=GROUP, better=better)
    for name, device in (("shm", "soft_shm"), ("iw", "soft_iw")):
        used = found["memory"][name]
        sheet.add("memory of an idle queue pair", device, used, "KB", group=GROUP, bound=MEMORY_BOUND)


Kind = TypeVar("Kind", bound=Side)


def pin(number: int) -> None:
    """Pins the process to its allowed core number 0 or 1, if more than one is allowed."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number]})


def both(kind: type[Kind], work: Callable[[Kind], Result]) -> Result:
    """Runs `work` in two processes, and returns the client's result. Raises SessionError, EndError, OSError."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    ours, theirs = socket.socketpair()
    our_fds, their_fds = socket.socketpair()
    parent = os.getpid()
    # A signal handler's exception during the fork would be lost in Python's fork handlers. The child needs no signal:
    # the parent ends the child.
    with uninterrupted():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                end_with(parent, signal.SIGKILL)
                ours.close()
                our_fds.close()
                pin(1)
                work(kind(False, theirs, their_fds, memory))
                status = 0
            except session.PeerError:
                pass
            except Exception as error:
                Control(theirs).complain(f"{type(error).__name__}: {error}")
            finally:
                os._exit(status)
    theirs.close()
    their_fds.close()
    mask = os.sched_getaffinity(0)
    try:
        pin(0)
        return work(kind(True, ours, our_fds, memory))
    except BaseException:
        # The child may poll for a value that nobody will write.
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        ours.close()
        our_fds.close()
        os.waitpid(child, 0)
        os.sched_setaffinity(0, mask)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=int, default=10000, help="of a TCP ping-pong (default: 10000)")
    parser.add_argument("--idle", type=int, default=1000, help="idle queue pairs (default: 1000)")


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    check_descriptors(f"--idle {options.idle}", 2 * options.idle + DESCRIPTORS_MORE)
    for device in ("soft_shm", "soft_iw"):
        record.contender(
            {
                "name": device,
                "server": f"rmemcached {__version__}",
                "client": f"two processes with a queue pair of {device}0 each, which poll",
                "command": [],
                "floor": False,
            }
        )
    for name, text in FLOORS.items():
        record.floor(name, text)
    try:
        found = both(Side, lambda side: run(side, record.round, options.iterations, options.idle))
    except (session.SessionError, session.EndError, OSError) as error:
        raise BenchError(str(error)) from error
    sheet = Sheet(record)
    fill_sheet(found, sheet)
    sheet.finish()

"""Figures beside siw, the kernel's iWARP over TCP, measured by perftest's programs; and bandwidth against loss."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rmemcached import __version__
from rmemcached.bench.arguments import size_name
from rmemcached.bench.document import Document, Record
from rmemcached.bench.drawing import (
    INFINIBAND,
    UNMEASURED,
    Claim,
    Drawing,
    Effort,
    devices,
    participant,
    row,
    to_reference,
)
from rmemcached.bench.errors import BenchError
from rmemcached.bench.figure_devices import (
    LATENCY,
    MEDIAN,
    RATE,
    TCP,
    TURNS,
    Cell,
    DeviceSide,
    Probe,
    Samples,
    alternate,
    measured,
    ping,
    stream,
    tcp_latency,
    transfer,
)
from rmemcached.bench.measure import Case
from rmemcached.bench.table import number

SIW, SOFT_IW = "siw", "soft_iw"
VERBS = ("send", "write", "read")
SIOCGIFADDR = 0x8915
LOSSES = (0, 0.1, 0.5, 1, 2, 5)
LOSS_SIZE = 65536
DELAY_US = 250
READS = 16
ETHERNET = 1500
TIME = 120.0  # seconds for a program of perftest's
STARTS = 3  # of a program that does not end in time
MOST = {"lat": 1000, "bw": 2000}  # messages in a run of perftest: where it has to wait for a core, each may take 10 ms
MACHINE = 'script/vm --driver siw --module "$(script/build-siw)" .venv/bin/'
NETEM = ("--netem", "lo")
POLLING = (
    "siw is measured by perftest's programs over rdma_cm, soft_iw and TCP by loops of the same kind in two processes"
    " that poll. Each side has a core of its own where there are two. MB is 2^20 bytes."
)
ONE_GUEST = "All are over TCP on the loopback interface of one guest."
WHOLE = "A READ's latency is a whole round trip, the others' half of one."


def siw_device() -> tuple[str, str]:
    """(device, address of its network device); ("", "") without one."""
    if not INFINIBAND.is_dir():
        return "", ""
    for device in sorted(path.name for path in INFINIBAND.iterdir()):
        if not device.startswith("siw"):
            continue
        found = subprocess.run(["rdma", "link", "show", "-j"], capture_output=True, text=True, check=False)
        for link in json.loads(found.stdout or "[]"):
            if link.get("ifname") == device and (address := address_of(str(link.get("netdev", "")))):
                return device, address
    return "", ""


def address_of(netdev: str) -> str:
    """The IPv4 address of a network device, or ""."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        try:
            answer = fcntl.ioctl(plain, SIOCGIFADDR, struct.pack("256s", netdev.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def obstacle(effort: Effort) -> str:
    missing = [name for name in ("rdma", "ib_send_lat") if shutil.which(name) is None]
    if not INFINIBAND.is_dir() or not any(path.name.startswith("siw") for path in INFINIBAND.iterdir()):
        where = f"In the clone a guest has it: {MACHINE}rmemcached-bench figures NAME"
        return f"there is no device of siw, the kernel's software iWARP. {where}"
    if missing:
        return f"{' and '.join(missing)} not in PATH (apt-get install iproute2 perftest)"
    if not siw_device()[1]:
        return "siw's network device has no IPv4 address"
    return ""


def loss_obstacle(effort: Effort) -> str:
    if found := obstacle(effort):
        return found
    if not effort.netem:
        return "packets have to get lost: --netem lo says that lo may lose them while it runs, in a laboratory"
    if os.geteuid() != 0 or shutil.which("tc") is None:
        return "--netem needs root, and tc (apt-get install iproute2)"
    return ""


# --- perftest ---


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


def perftest(verb: str, kind: str, size: int, iterations: int) -> float:
    """A test between two processes on siw: microseconds (t_typical) or MB/s (average). Raises BenchError."""
    device, address = siw_device()
    tool = f"ib_{verb}_{kind}"
    command = [tool, "-R", "-F", "-d", device, "-s", str(size), "-n", str(max(iterations, 5))]
    if kind == "bw":
        command += ["-t", "32", *(["-o", str(READS)] if verb == "read" else [])]
    said = None
    for _ in range(STARTS):
        said = both_ends([*command, "-p", str(free_port())], address)
        if said is not None:
            break
    else:
        raise BenchError(f"{tool} on {device} took more than {TIME:.0f} s, {STARTS} times")
    for line in said.splitlines():
        cells = line.split()
        if cells[:1] == [str(size)] and len(cells) >= 5:
            return float(cells[4] if kind == "lat" else cells[3])
    raise BenchError(f"{tool} printed no figures:\n{said.strip()}")


def both_ends(command: list[str], address: str) -> str | None:
    """The client's output of a program of perftest's. None: the program did not end; this happens in about 1 of some
    hundred runs over siw. Raises BenchError."""
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs = (["taskset", "-c", str(core)] for core in (cores[0], other_core(cores[0])))
    with subprocess.Popen(
        [*theirs, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as server:
        deadline = time.monotonic() + TIME
        try:
            while True:
                done = subprocess.run(
                    [*ours, *command, address],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=TIME,
                    check=False,
                )
                if done.returncode == 0:
                    break
                # The server prints nothing before it listens: the client tries again.
                if server.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"{command[0]} failed on {command[4]}:\n{done.stdout.strip()}")
                time.sleep(0.1)
            server.wait(TIME)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if server.poll() is None:
                server.kill()
            assert server.stdout is not None
            server.stdout.read()
    return done.stdout


def other_core(ours: int) -> int:
    """A different core, if the machine has another: this process may be bound to a single core."""
    count = os.cpu_count() or 1
    return next((core for core in range(count) if core != ours), ours)


def by_perftest(verb: str, kind: str, size: int) -> Probe:
    """siw's part of a round; the peer waits."""
    return lambda side, count: perftest(verb, kind, size, min(count, MOST[kind])) if side.client else 0.0


# --- the figures ---


def name_participants(record: Record) -> None:
    kernel = os.uname().release
    participant(record, SIW, f"siw of Linux {kernel}", "perftest's programs over rdma_cm")
    participant(record, SOFT_IW, f"rmemcached {__version__}", "a queue pair of soft_iw0")
    participant(record, TCP, "none", "a bare TCP connection between the same two processes")
    vendor = Path("/sys/class/dmi/id/sys_vendor")
    if vendor.exists() and "QEMU" in vendor.read_text():
        record.note(
            "Measured in a guest of QEMU, whose processors may be emulated: its times are its own, and the ratios hold"
            " between contenders in this guest. Its load does not show what else the host did."
        )


def sides(cells: list[Cell], record: Record, seconds: float) -> None:
    def work(side: DeviceSide) -> Samples:
        side.open("iw", "soft_iw0")
        return alternate(side, cells, record, seconds)

    measured(work, record)


def latencies(effort: Effort, record: Record) -> None:
    """Repeats the measurements of USIW, figure 6."""
    name_participants(record)
    cells = []
    for verb in effort.of(("send",), VERBS):
        for size in effort.of((64,), (64, 1024, 4096, 16384, 65536)):
            probes = {SIW: by_perftest(verb, "lat", size), SOFT_IW: ping("iw", verb, size)}
            if verb == "send":
                probes[TCP] = tcp_latency(size)
            case = Case(f"{verb.upper()} of {size_name(size)}", {"verb": verb.upper(), "size": size}, (LATENCY,))
            cells.append(Cell(case, probes))
    sides(cells, record, effort.of(0.02, 0.2))


def rates(effort: Effort, record: Record) -> None:
    """Repeats the measurements of USIW, figure 7."""
    name_participants(record)
    cells = []
    for verb in effort.of(("write",), VERBS):
        for size in effort.of((65536,), (1024, 4096, 16384, 65536, 262144, 1 << 20)):
            probes = {SIW: by_perftest(verb, "bw", size), SOFT_IW: transfer("iw", verb, size)}
            if verb != "read":
                probes[TCP] = stream(size)
            case = Case(f"{verb.upper()} of {size_name(size)}", {"verb": verb.upper(), "size": size}, (RATE,))
            cells.append(Cell(case, probes))
    sides(cells, record, effort.of(0.05, 0.3))


def command(*words: str) -> str:
    """Runs a program of iproute2. Raises BenchError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def losing(device: str) -> Iterator[Callable[[float], None]]:
    """Makes a network device like an Ethernet with packet loss; yields a function to set the loss in percent.

    Segments leave one by one, in packets of 1500 octets. The device is restored at the end. Raises BenchError.
    """
    (link,) = json.loads(command("ip", "-d", "-j", "link", "show", "dev", device))
    if link["qdisc"] not in ("noqueue", "pfifo_fast", "fq_codel"):
        raise BenchError(f"--netem {device}: it has a queueing discipline of its own, {link['qdisc']}")

    def lose(percent: float) -> None:
        command(
            *("tc", "qdisc", "replace", "dev", device, "root", "netem"),
            *("limit", "100000", "delay", f"{DELAY_US}us", "loss", f"{percent}%"),
        )

    try:
        command("ip", "link", "set", "dev", device, "mtu", str(ETHERNET), "gso_max_segs", "1")
        lose(0)
        yield lose
    finally:
        with contextlib.suppress(BenchError):
            command("tc", "qdisc", "del", "dev", device, "root")
        command(
            *("ip", "link", "set", "dev", device, "mtu", str(link["mtu"])),
            *("gso_max_segs", str(link["gso_max_segs"])),
        )


def losses(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RDDP, section 4.2."""
    name_participants(record)
    with losing(effort.netem) as lose:
        cells = []
        for percent in effort.of((0, 2), LOSSES):
            case = Case(f"{percent} % of the packets lost", {"loss_percent": percent, "size": LOSS_SIZE}, (RATE,))
            probes = {
                TCP: stream(LOSS_SIZE),
                SIW: by_perftest("read", "bw", LOSS_SIZE),
                SOFT_IW: transfer("iw", "read", LOSS_SIZE),
            }
            cells.append(Cell(case, probes, loss_of(lose, percent)))
        sides(cells, record, effort.of(0.2, 1.0))


def loss_of(lose: Callable[[float], None], percent: float) -> Callable[[], None]:
    return lambda: lose(percent)


# --- the drawings ---


def kept(contender: str, percent: float) -> Callable[[Document], str]:
    """The part of its bandwidth kept by a contender."""

    def said(document: Document) -> str:
        rows = [row(document, contender, loss_percent=each) for each in (percent, 0)]
        if rows[0] is None or rows[1] is None or not rows[1]["median"]:
            return UNMEASURED
        return number(rows[0]["median"] / rows[1]["median"])

    return said


def keeps(percent: float) -> Callable[[Document], str]:
    def said(document: Document) -> str:
        found = [f"{name} {kept(name, percent)(document)}" for name in (SOFT_IW, SIW, TCP)]
        return UNMEASURED if all(UNMEASURED in text for text in found) else ", ".join(found)

    return said


NO_UDP = (
    "USIW, iWARP over UDP by DPDK: rmemcached has no UDP fabric yet. soft_iw, iWARP over TCP in user space, stands in"
    " its place."
)
NO_WIRE = "A wire between two hosts: both processes are in one guest."

DRAWINGS = (
    Drawing(
        "usiw-6",
        "Figure 6: latency of SEND, WRITE and READ beside siw",
        "size",
        (POLLING, ONE_GUEST, WHOLE, TURNS, MEDIAN),
        latencies,
        (
            *(
                Claim(
                    f"{verb}s in user space take less than half of siw's time; 64 B",
                    "less than 0.5",
                    devices(to_reference, SOFT_IW, TCP, verb=verb, size=64),
                )
                for verb in ("SEND", "WRITE", "READ")
            ),
            Claim("SEND of 64 KB", "less than 0.5", devices(to_reference, SOFT_IW, TCP, verb="SEND", size=65536)),
        ),
        reference=SIW,
        lacks=(NO_UDP, NO_WIRE),
        obstacle=obstacle,
        machine=MACHINE,
    ),
    Drawing(
        "usiw-7",
        "Figure 7: throughput of SEND, WRITE and READ beside siw",
        "size",
        (POLLING, ONE_GUEST, TURNS, MEDIAN),
        rates,
        (
            *(
                Claim(
                    f"{verb} of 64 KB, to siw: siw is ahead, by the coalescing of TCP",
                    "less than 1",
                    devices(to_reference, SOFT_IW, TCP, verb=verb, size=65536),
                )
                for verb in ("SEND", "WRITE", "READ")
            ),
            Claim("READ of 1 MB", "less than 1", devices(to_reference, SOFT_IW, TCP, verb="READ", size=1 << 20)),
        ),
        reference=SIW,
        lacks=(NO_UDP, NO_WIRE, "Messages beyond 1 MB: the original goes on to 8 MB."),
        obstacle=obstacle,
        machine=MACHINE,
    ),
    Drawing(
        "rddp-loss",
        "Section 4.2: bandwidth against packet loss",
        "loss_percent",
        (
            f"READs of {size_name(LOSS_SIZE)}, {READS} under way, and TCP with messages of the same size. netem drops"
            f" packets of {ETHERNET} octets at random, and delays each by {DELAY_US} us; segments leave one by one, as"
            " without offloads.",
            POLLING,
            "soft_iw and TCP keep their connections for a whole round; siw has a new one in each run.",
            TURNS,
            MEDIAN,
        ),
        losses,
        (
            Claim("bandwidth with 0.5 % of the packets lost, to the same without loss", "none given", keeps(0.5)),
            Claim("1 % lost", "none given", keeps(1)),
            Claim("5 % lost", "none given", keeps(5)),
            Claim(
                "bandwidth with 2 % lost, to TCP",
                "DDP in the kernel ahead of TCP",
                devices(to_reference, SIW, SOFT_IW, loss_percent=2),
            ),
        ),
        reference=TCP,
        lacks=(
            "DDP that places segments which overtook a lost one: siw and soft_iw read TCP's stream in its order, as the"
            " original's user-level DDP does. A fabric over UDP could place them.",
        ),
        obstacle=loss_obstacle,
        machine=MACHINE,
        options=NETEM,
    ),
)

"""Mixed load over all fabrics for any length of time, with clients that are killed, stalled and slowed.

    script/soak [MINUTES]     (60)

The time is divided into phases. In each, clients over TCP and over both software devices set and get values that
contain their own size and seed (tests/system/load_clients.py). Others are stopped and killed in the middle of
transfers (tests/system/victims.py), read slowly, or do not read at all (attack_sockets.py). Between phases only a
bystander stays, and the daemon is measured at rest. The bystander has a connection over each transport, and the daemon
two workers: from a latency is subtracted only the time that the connection's own worker waited for a processor.

The run fails after a wrong byte, an operation longer than 20 s, leftovers, or drift. For drift the last third of the
phases is compared with the first third: memory at rest, descriptors, threads, and the bystander's latency.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("bench", "tests/shared", "tests/system")]

import attack_sockets  # noqa: E402
import transport  # noqa: E402
from daemon_tools import child, finished  # noqa: E402
from harness import MB, Attacker, Footprint, Latency, Limits, Scene, scene_of  # noqa: E402
from servers import Server, start_rmemcached  # noqa: E402

TRANSPORTS = ("tcp", "soft_iw", "soft_shm")
MEGABYTES = 64
FLAGS = ("-t", "2", "-m", str(MEGABYTES), "-I", "8m", "-c", "2000", "-o", "rdma_direct_linger=0")
CLIENTS = {"tcp": 20, "soft_iw": 8, "soft_shm": 8}
LONGEST_PHASE, PHASES = 60.0, 12
MORE_MEMORY = 16 * MB  # at rest, from the first third to the last
MORE_SECONDS = 0.002  # of the bystander's p99 at rest
BIG = 4_000_000


class Sample(NamedTuple):
    """The measurements of a phase."""

    minute: float
    operations: int
    killed: int
    longest: float
    loaded: dict[str, Latency]
    rest: dict[str, Latency]
    footprint: Footprint


@contextlib.contextmanager
def over(name: str) -> Iterator[None]:
    """Processes started within the block use this RDMA transport."""
    before = os.environ.get(transport.VARIABLE)
    os.environ[transport.VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[transport.VARIABLE]
        else:
            os.environ[transport.VARIABLE] = before


class Victims:
    """Forks clients over a transport, to be stopped and killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.alive: list[int] = []
        self.killed = 0

    def fork(self, *words: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        # A client that finds a wrong value prints the fault in place of the next client's number.
        line = self.process.stdout.readline().strip()
        assert line.isdigit(), line
        self.alive.append(int(line))

    def kill(self, source: random.Random) -> None:
        if self.alive:
            os.kill(self.alive.pop(source.randrange(len(self.alive))), signal.SIGKILL)
            self.killed += 1

    def stop(self, source: random.Random) -> None:
        if self.alive:
            os.kill(source.choice(self.alive), signal.SIGSTOP)


def harass(server: Server, victims: list[Victims], attackers: list[Attacker], source: random.Random) -> None:
    """Harasses the daemon once: by a victim or an attacker."""
    one = source.choice(victims)
    what = source.randrange(7)
    if what == 0:
        one.fork("storm", source.getrandbits(30))
    elif what == 1:
        one.fork("read", "soak", BIG)
    elif what == 2:
        one.fork("write", "soak", BIG)
    elif what == 3:
        one.stop(source)
    elif what == 4:
        attackers.append(Attacker(server, attack_sockets.slow_readers, count=3, key="soak"))
    elif what == 5:
        attackers.append(Attacker(server, attack_sockets.ask_without_reading, count=5, request="get soak\r\n"))
    elif attackers:
        attackers.pop(0).kill()
    if len(one.alive) > 4:
        one.kill(source)
    if len(attackers) > 3:
        attackers.pop(0).kill()


def load(server: Server, seconds: float, seed: int, stack: contextlib.ExitStack) -> list[subprocess.Popen[str]]:
    processes = []
    for number, (name, count) in enumerate(CLIENTS.items()):
        kind = "tcp" if name == "tcp" else "rdma"
        with over(name if kind == "rdma" else transport.RDMA):
            arguments = (server.host, server.port, kind, count, seconds, seed + number)
            processes.append(stack.enter_context(child("load_clients.py", *arguments)))
    for process in processes:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def store_big(scene: Scene, key: str) -> None:
    assert scene.control.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), BIG, bytes(BIG))) == b"STORED\r\n"


def fill(scene: Scene) -> None:
    """Uses all item memory once: from here on the system counts the memory, which does not grow."""
    for number in range(2 * MEGABYTES * MB // BIG):
        store_big(scene, f"fill{number}")
    store_big(scene, "soak")


def phase(scene: Scene, base: Footprint, seconds: float, began: float, source: random.Random) -> Sample:
    server = scene.server
    attackers: list[Attacker] = []
    with contextlib.ExitStack() as stack:
        victims = []
        for name in TRANSPORTS[1:]:
            with over(name):
                victims.append(Victims(stack.enter_context(child("victims.py", server.host, server.port))))
        try:
            processes = load(server, seconds, source.getrandbits(30), stack)
            end = time.monotonic() + seconds
            loaded = scene.bystander.round(20)
            while time.monotonic() < end:
                harass(server, victims, attackers, source)
                time.sleep(min(0.2, seconds / 20))
            results: list[dict[str, Any]] = [json.loads(finished(process, 90.0)) for process in processes]
        finally:
            for attacker in attackers:
                attacker.kill()
    wrong = [line for result in results for line in result["wrong"]]
    assert not wrong, wrong[:5]
    # The limit of memory is wide, because drift() compares memory at the end.
    scene.wait_until_at_rest(base, Limits(memory=MEGABYTES * MB, descriptors=0, threads=0))
    return Sample(
        (time.monotonic() - began) / 60,
        sum(result["operations"] for result in results),
        sum(one.killed + len(one.alive) for one in victims),
        max(result["longest"] for result in results),
        loaded,
        scene.bystander.round(300),
        scene.footprint(),
    )


def drift(samples: list[Sample]) -> list[str]:
    """The values that have grown from the first third of the phases to the last, each judged by its median."""
    third = max(len(samples) // 3, 1)
    first, last = samples[:third], samples[-third:]

    def middle(some: list[Sample], name: str) -> int:
        return int(statistics.median(getattr(sample.footprint, name) for sample in some))

    limits = Limits(memory=MORE_MEMORY)
    names = list(Footprint.__dataclass_fields__)
    before, now = (Footprint(**{name: middle(some, name) for name in names}) for some in (first, last))
    found = limits.exceeded(before, now)
    for name in TRANSPORTS:
        was, is_now = (statistics.median(sample.rest[name].p99 for sample in some) for some in (first, last))
        if is_now > was + MORE_SECONDS:
            found.append(f"p99 over {name} went from {was * 1e3:.2f} to {is_now * 1e3:.2f} ms")
    return found


def row(sample: Sample) -> str:
    """Returns a line of the table. Latencies are p99 in milliseconds, over TCP, soft_iw and soft_shm."""

    def times(found: dict[str, Latency]) -> str:
        return " ".join(f"{found[name].p99 * 1e3:6.2f}" for name in TRANSPORTS)

    print_ = sample.footprint
    return (
        f"{sample.minute:6.1f} {sample.operations:10} {sample.killed:6} {sample.longest:7.2f}  {times(sample.loaded)}  "
        f"{times(sample.rest)} {print_.resident / MB:8.1f} {print_.shared / MB:6.1f} {print_.descriptors:5} "
        f"{print_.threads:4}"
    )


HEAD = (
    "minute operations killed longest  p99 under load, ms    p99 at rest, ms      resident shared descr thrd\n"
    "                              s    tcp     iw    shm     tcp     iw    shm       MB     MB"
)


def soak(minutes: float, seed: int = 1) -> list[str]:
    """Runs, and prints the table. Returns the faults."""
    source = random.Random(seed)
    total = minutes * 60
    seconds = min(total / PHASES, LONGEST_PHASE)
    seconds = max(seconds, min(total / 2, 5.0))
    samples: list[Sample] = []
    wrong = []
    with start_rmemcached(*FLAGS) as server:
        print(HEAD, flush=True)
        with scene_of(server, TRANSPORTS) as scene:
            fill(scene)
            base = scene.footprint()
            began = time.monotonic()
            try:
                # The first phase is for pools and allocators to get their size.
                phase(scene, base, min(seconds, 10.0), began, source)
                while time.monotonic() - began < total or len(samples) < 2:
                    store_big(scene, "soak")
                    samples.append(phase(scene, base, seconds, began, source))
                    print(row(samples[-1]), flush=True)
            except AssertionError as error:
                wrong.append(str(error))
        if not server.alive():
            wrong.append(f"the daemon has ended:\n{server.stderr()}")
    if not server.ended_well():
        wrong.append(f"the daemon ended with status {server.process.returncode}:\n{server.stderr()}")
    return wrong + (drift(samples) if samples else [])


def main() -> int:
    wrong = soak(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
    print("\n".join(wrong) or "no wrong byte, nothing left behind, no drift")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

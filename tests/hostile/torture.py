"""Processes that share queue pairs among threads, with all sizes and commands at once, killed and stopped in the
middle.

    script/torture [SECONDS [PROCESSES [FABRIC...]]]     (60, 16, all)

So many processes, with 4 threads of 8 clients each (torture_clients.py), run on each fabric with a daemon, then on all
fabrics with a single daemon. Meanwhile processes are killed and replaced, some are stopped for 0.1 to 2 s, and now and
then the daemon itself for 0.2 s.

Faults are a wrong byte, a failed operation, an operation longer than 20 s (without the stops of its process), a silent
daemon, and leftovers at the end: connections, lanes, queue pairs, registrations, bytes of clients' requests,
descriptors, threads, memory. The output has a line for each fabric.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("bench", "tests/shared", "tests/system")]

import polling  # noqa: E402
from daemon_tools import Conversation, eventually  # noqa: E402
from harness import MB, REST_SECONDS, START_SECONDS, Footprint, Helper, Limits  # noqa: E402
from servers import Server, start_rmemcached  # noqa: E402
from torture_clients import STALL  # noqa: E402
from transport import within  # noqa: E402

FABRICS = {
    "soft_shm": ("soft_shm",),
    "soft_iw": ("soft_iw",),
    "tcp": ("tcp",),
    "mixed": ("soft_shm", "soft_iw", "tcp"),
}
THREADS, CLIENTS = 4, 8
MEGABYTES = 64
FLAGS = ("-t", "2", "-m", str(MEGABYTES), "-I", "16m", "-c", "4000", "-o", "rdma_direct_linger=0")
KILL_EVERY, STOP_EVERY, STOP_DAEMON_EVERY = 1.0, 0.7, 5.0  # seconds, about
STOPPED = (0.1, 2.0)  # seconds
DAEMON_STOPPED = 0.2
GAUGES = (
    "rdma_queue_pairs",
    "rdma_registrations",
    "rdma_streams",
    "rdma_input_bytes",
    "shm_mapped_regions",
    "shm_mapped_bytes",
)
LEFT = Limits(memory=16 * MB)
"""Permitted growth at rest: memory of the load, kept by malloc and the workers' pools."""

FIRST = Limits(memory=MEGABYTES * MB)
"""Permitted growth at rest after the first load: pools, connection structures, and item memory used first."""

BIG = 1_000_000


class Process(Helper):
    """A process under torture."""

    def __init__(self, server: Server, transport: str, seed: int) -> None:
        self.transport = transport
        self.wakes = 0.0  # when the process is to go on; 0: the process runs
        self.stopped = 0.0  # seconds in all
        self.said: dict[str, Any] = {}
        super().__init__("torture_clients.py", server.host, server.port, transport, seed, THREADS, CLIENTS)

    def stop(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.wakes = time.monotonic() + seconds
        self.stopped += seconds

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.wakes = 0.0

    def listen(self) -> None:
        """Takes the output up to now."""
        assert self.process.stdout is not None
        while b"\n" in self.pending or polling.readable(self.process.stdout):
            try:
                self.said = json.loads(self.line(1.0))
            except AssertionError:
                # The process has been killed, perhaps in the middle of a line.
                if self.process.poll() is None:
                    raise
                return

    def finish(self) -> None:
        """Waits for the end of a process that was told to end."""
        while not self.said.get("last"):
            self.said = json.loads(self.line(within(90.0)))
        self.process.wait(within(30.0))


class Torture:
    """The supervisor of a run on a fabric."""

    def __init__(self, server: Server, transports: tuple[str, ...], processes: int, seed: int) -> None:
        self.server = server
        self.transports = transports
        self.source = random.Random(seed)
        self.kills = self.stops = self.daemon_stops = 0
        self.wrong: list[str] = []
        self.ended: list[Process] = []
        self.processes: list[Process] = []
        for number in range(processes):
            self.start(transports[number % len(transports)])

    def start(self, transport: str) -> None:
        self.processes.append(Process(self.server, transport, self.source.getrandbits(30)))

    def run(self, seconds: float) -> None:
        for process in self.processes:
            process.said = json.loads(process.line())
        end = time.monotonic() + seconds
        # Short runs have some of everything, too.
        every = [min(usual, seconds / 4) for usual in (KILL_EVERY, STOP_EVERY, STOP_DAEMON_EVERY)]
        due = [time.monotonic() + one for one in every]
        acts = (self.kill_one, self.stop_one, self.stop_daemon)
        while (now := time.monotonic()) < end:
            for process in self.processes:
                if process.wakes and process.wakes <= now:
                    process.go_on()
                process.listen()
                if process.process.poll() is not None:
                    raise AssertionError(f"a process has ended by itself: {process.process.returncode}")
            for number, act in enumerate(acts):
                if due[number] <= now:
                    due[number] = now + every[number] * self.source.uniform(0.5, 1.5)
                    act()
            if not self.server.alive():
                raise AssertionError("the daemon has ended")
            time.sleep(0.01)

    def kill_one(self) -> None:
        victim = self.processes.pop(self.source.randrange(len(self.processes)))
        victim.process.kill()
        victim.process.wait()
        victim.listen()
        victim.kill()
        self.note(victim)
        self.kills += 1
        self.start(victim.transport)

    def stop_one(self) -> None:
        running = [process for process in self.processes if not process.wakes]
        if running:
            self.source.choice(running).stop(self.source.uniform(*STOPPED))
            self.stops += 1

    def stop_daemon(self) -> None:
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(DAEMON_STOPPED)
        finally:
            self.server.process.send_signal(signal.SIGCONT)
        self.daemon_stops += 1

    def finish(self) -> None:
        """Ends the remaining processes in order, and takes their results."""
        for process in self.processes:
            if process.wakes:
                process.go_on()
            process.tell("end")
        for process in self.processes:
            process.finish()
            self.note(process)
            if process.process.returncode:
                self.wrong.append(f"{process.transport}: a process ended with {process.process.returncode}")

    def note(self, process: Process) -> None:
        """Takes the results of an ended process."""
        self.ended.append(process)
        self.wrong += [f"{process.transport}: {line}" for line in process.said.get("wrong", ())]
        if process.said.get("longest", 0.0) > STALL + process.stopped:
            self.wrong.append(f"{process.transport}: an operation took {process.said['longest']:.1f} s")

    def close(self) -> None:
        for process in self.processes:
            process.kill()

    def total(self, name: str) -> int:
        return sum(process.said.get(name, 0) for process in self.ended)

    def longest(self) -> float:
        """The longest operation of the processes without stops, or of all if all had stops."""
        alone = [process for process in self.ended if not process.stopped]
        return max(process.said.get("longest", 0.0) for process in alone or self.ended)


def gauges(control: Conversation) -> dict[str, int]:
    found = {**control.stats(), **control.stats("rdma")}
    return {name: int(found[name]) for name in ("curr_connections", *GAUGES)}


def left(
    server: Server,
    control: Conversation,
    base: tuple[dict[str, int], Footprint],
    seconds: float = REST_SECONDS,
    limits: Limits = LEFT,
) -> list[str]:
    """The values that are not back at their beginning within the time limit."""
    found: list[str] = []

    def back() -> bool:
        now = gauges(control)
        found[:] = [f"{name} is {now[name]}, not {base[0][name]}" for name in now if now[name] != base[0][name]]
        found.extend(limits.exceeded(base[1], Footprint.of(server.pid)))
        return not found

    with contextlib.suppress(AssertionError):
        eventually(back, seconds)
    return found


def fill(control: Conversation) -> None:
    """Uses all item memory once: from here on the system counts the memory, which does not grow."""
    for number in range(2 * MEGABYTES):
        line = b"set fill%d 0 0 %d\r\n%s\r\n" % (number, BIG, bytes(BIG))
        assert control.ask(line) == b"STORED\r\n"


@contextlib.contextmanager
def tortured(server: Server, fabric: str, processes: int, seed: int) -> Iterator[Torture]:
    torture = Torture(server, FABRICS[fabric], processes, seed)
    try:
        yield torture
    finally:
        torture.close()


def row(fabric: str, torture: Torture, evictions: int, grown: float, found: list[str]) -> str:
    return (
        f"{fabric:9} {torture.total('operations'):10} {torture.total('timeouts'):8} {torture.total('full'):6} "
        f"{torture.total('forks'):5} {evictions:9} {torture.kills:5} {torture.stops:5} {torture.daemon_stops:6} "
        f"{torture.longest():9.2f} {grown:6.1f}  {'; '.join(found) or 'nothing'}"
    )


HEAD = (
    "fabric    operations timeouts   full forks evictions kills stops daemon   longest  grown  left\n"
    "                                                                 stopped       s     MB"
)


def run(fabric: str, seconds: float, processes: int, seed: int = 1) -> list[str]:
    """Runs on a fabric, and prints its line. Returns the faults."""
    with start_rmemcached(*FLAGS) as server:
        with Conversation(server, within(30.0)) as control:
            fill(control)
            eventually(lambda: control.number("curr_connections") == 1, START_SECONDS)
            begun = gauges(control), Footprint.of(server.pid)
            try:
                # The first part is for pools and allocators to get their size.
                with tortured(server, fabric, processes, seed) as first:
                    first.run(max(seconds / 6, 1.0))
                    first.finish()
                wrong = first.wrong + [f"left at first: {line}" for line in left(server, control, begun, limits=FIRST)]
                base = begun[0], Footprint.of(server.pid)
                with tortured(server, fabric, processes, seed + 1) as torture:
                    torture.run(seconds)
                    torture.finish()
                wrong += torture.wrong
                found = left(server, control, base)
                grown = (Footprint.of(server.pid).resident - base[1].resident) / MB
                print(row(fabric, torture, control.number("evictions"), grown, found), flush=True)
                wrong += [f"left: {line}" for line in found]
            except (AssertionError, OSError) as error:
                wrong = [str(error)]
        if not server.alive():
            wrong.append(f"the daemon has ended:\n{server.stderr()}")
    if not server.ended_well():
        wrong.append(f"the daemon ended with status {server.process.returncode}:\n{server.stderr()}")
    return [f"{fabric}: {line}" for line in wrong]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    print(HEAD, flush=True)
    wrong = [line for fabric in sys.argv[3:] or FABRICS for line in run(fabric, seconds, processes)]
    print("\n".join(wrong) or "no wrong byte, no stall, nothing left")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

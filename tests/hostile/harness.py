"""The gate against hostile use of resources: a peer may harm its own connection, and nobody else's anything.

A case has three processes beside pytest: the daemon, with a single worker for all clients; an *attacker*, which acts
as no proper client does; and a *bystander*, which gets a small value each millisecond, over each transport in turn.
`run_case` asserts:

1. Latency: the bystander's p99 is less than 1 ms more than without the attacker, over each transport (or the case's
   limit; and in proportion more on a machine on which a get takes more than 40 us without the attacker). The p99 is
   the median over the rounds of the attack, against the worst quiet round. Time that the worker or the bystander was
   ready to run and waited for a processor is subtracted: the scheduler counts such time in
   /proc/PID/task/TID/schedstat. So other work on the machine hardly matters, and the daemon's work counts in full.
2. Footprint: anonymous, shared, locked and mapped memory, the memory charged to the daemon's cgroup (with a cgroup v2
   for the tests, see `own_cgroup`), descriptors and threads stay within the case's limits.
3. Outcome: the attacker meets the end described by the case.
4. Afterwards: the attacker is killed, and the daemon is back at its former footprint within a deadline.

Under a sanitizer neither latency nor anonymous, mapped and charged memory is the daemon's: they are not asserted.

To add a case:

1. Write the attack into an attack_*.py beside this file: a function with a `Target` as its first argument and JSON
   values as its other arguments. The function works with sockets, memfds or raw verbs, calls `target.ready()` when
   the attack has begun, and goes on until killed. Findings go to the test by `target.say(...)`.
2. Add a `Case` to the table of a test_*.py, or write a test that uses `Scene` and its parts if the case has another
   course.
3. Name the test in the table of docs/security.md, in the row of the checked limit.

The attacker can read the memory taken by its memfd from `os.fstat(memfd).st_blocks`, also without a cgroup.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import polling
from daemon_tools import Conversation, eventually
from resident import SANITIZED
from servers import Server
from transport import PACE, within

HERE = Path(__file__).resolve().parent
KB, MB = 1 << 10, 1 << 20
MORE_SECONDS = 0.001 * PACE  # the limit of an attack's effect on the bystander's p99
USUAL_GET = 40e-6  # seconds of a get on a machine of usual speed
GETS = 100  # of each transport in a round
QUIET_ROUNDS, ATTACK_ROUNDS = 1, 3  # and a quiet round at the end
START_SECONDS = within(20.0)
REST_SECONDS = within(10.0)
CGROUPS = "RMEMCACHED_TEST_CGROUP"
"""Environment: a directory of cgroup v2 below which the tests may make cgroups, with the memory controller."""

MAPPED = 160 * MB
"""Address space that malloc's arenas may take: 128 MB reserved for each."""


# ---- processes -------------------------------------------------------------------------------------------------------


class Helper:
    """A process that runs a script of this folder. Lines in, lines out. The end of the block ends the process."""

    def __init__(self, script: str, *arguments: object) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            # The process stays in the session of pytest: Linux divides the processors among sessions first
            # (sched_autogroup), and not well. A session with processes of low priority, such as script/test's, has
            # kept others waiting for half a minute.
            process_group=0,
        )
        self.pending = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def line(self, seconds: float = START_SECONDS) -> str:
        """The next line of the process."""
        assert self.process.stdout is not None
        while b"\n" not in self.pending:
            more = b""
            if polling.readable(self.process.stdout, seconds):
                more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                self.errors.seek(0)
                raise AssertionError(f"{self.process.args!r} said nothing:\n{self.errors.read().decode()}")
            self.pending += more
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        """Kills the process and all its children, without a chance to say goodbye. May be repeated."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


def address(server: Server) -> str:
    return json.dumps(server.address)


class Attacker(Helper):
    """A process that runs a function of an attack_*.py against a daemon, begun when the constructor returns."""

    def __init__(self, server: Server, attack: Callable[..., None], **arguments: Any) -> None:
        super().__init__("attacker.py", attack.__module__, attack.__name__, address(server), json.dumps(arguments))
        try:
            assert self.line() == "ready"
        except BaseException:
            self.kill()
            raise


@dataclass(frozen=True)
class Latency:
    """Seconds from request to reply, without the waiting for a processor; `wall`: with the waiting."""

    p50: float
    p99: float
    most: float
    wall: float


class Bystander(Helper):
    """Measures its gets over a connection for each of `transports`. TCP and UNIX sockets are `socket`."""

    def __init__(self, server: Server, transports: Sequence[str]) -> None:
        super().__init__("bystander.py", address(server), server.pid, *transports)
        try:
            assert self.line() == "ready"
        except BaseException:
            self.kill()
            raise

    def round(self, gets: int = GETS) -> dict[str, Latency]:
        """Does so many gets over each transport, one each millisecond."""
        self.tell(str(gets))
        return {name: Latency(*times) for name, times in json.loads(self.line(within(60.0))).items()}


# ---- latency ---------------------------------------------------------------------------------------------------------


def check_bystander(
    quiet: Sequence[dict[str, Latency]], attack: Sequence[dict[str, Latency]], more: float = MORE_SECONDS
) -> None:
    """Compares the p99 over each transport: the median of the rounds of the attack, and the worst quiet round."""
    slow = max(times[name].p50 for times in quiet for name in times) / USUAL_GET
    more *= max(slow, 1.0)
    for name in quiet[0]:
        before = max(times[name].p99 for times in quiet)
        during = statistics.median(times[name].p99 for times in attack)
        assert during < before + more, (
            f"{name}: p99 is {during * 1e3:.2f} ms, and {before * 1e3:.2f} ms without the attacker\n"
            + "\n".join(
                f"{kind} {times[name]}" for kind, rounds in (("quiet", quiet), ("attack", attack)) for times in rounds
            )
        )


# ---- memory, descriptors, threads ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """The resources of a process. Memory is in bytes."""

    resident: int  # anonymous, in RAM
    shared: int  # shared memory and memfds, in RAM and in its page tables
    locked: int
    mapped: int  # address space
    charged: int  # to its cgroup, page cache of memfds included; 0: the process has no cgroup of its own
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int, cgroup: Path | None = None) -> Footprint:
        """The present footprint of a process, and of its cgroup."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        resident, shared, locked, mapped = (
            int(fields[name][0]) * KB for name in ("RssAnon", "RssShmem", "VmLck", "VmSize")
        )
        if SANITIZED:
            resident, mapped, cgroup = 0, 0, None
        return cls(
            resident=resident,
            shared=shared,
            locked=locked,
            mapped=mapped,
            charged=int((cgroup / "memory.current").read_text()) if cgroup else 0,
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields["Threads"][0]),
        )

    def most(self, other: Footprint) -> Footprint:
        return Footprint(*map(max, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Limits:
    """The limits on an attack's effect on the daemon's footprint."""

    memory: int = 2 * MB  # resident, shared, charged: each
    locked: int = 0
    mapped: int = MAPPED
    descriptors: int = 0
    threads: int = 0

    def exceeded(self, before: Footprint, now: Footprint) -> list[str]:
        allowed = {"resident": self.memory, "shared": self.memory, "charged": self.memory} | {
            name: getattr(self, name) for name in ("locked", "mapped", "descriptors", "threads")
        }
        grown = {name: getattr(now, name) - getattr(before, name) for name in allowed}
        return [
            f"{name} grew by {grown[name]}, limit {allowed[name]}" for name in allowed if grown[name] > allowed[name]
        ]


def for_connections(count: int, each: int, descriptors: int = 1, memory: int = 2 * MB, **more: int) -> Limits:
    """Limits for so many connections. `each`: bytes of a connection. `memory`: further bytes, such as malloc's."""
    return Limits(memory=count * each + memory, descriptors=count * descriptors, **more)


REST = Limits(memory=4 * MB)
"""The most left at rest: two huge pages, of malloc's free memory and of item memory used for the first time."""


@functools.cache
def own_cgroup() -> Path | None:
    """A cgroup for the daemons of this process, with the memory controller, or None.

    The cgroup is below the cgroup named by the environment, or below this process' own, if delegated to the tests. The
    tests change no other cgroup. The end of this process removes the cgroup: before, a running daemon prevents the
    removal.
    """
    named = os.environ.get(CGROUPS)
    if named:
        parent = Path(named)
    else:
        own = [line.partition("::")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
        parent = Path("/sys/fs/cgroup") / next(filter(None, own), "/").lstrip("/")
    try:
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            return None
        group = parent / f"rmemcached-hostile-{os.getpid()}"
        group.mkdir()
    except OSError:
        if named:
            raise
        return None
    atexit.register(group.rmdir)
    return group


# ---- a case ----------------------------------------------------------------------------------------------------------


class Scene:
    """A daemon with a single worker, a connection to ask the daemon, and a bystander."""

    def __init__(self, server: Server, transports: Sequence[str]) -> None:
        self.server = server
        self.cgroup = own_cgroup()
        if self.cgroup is not None:
            (self.cgroup / "cgroup.procs").write_text(str(server.pid))
        self.control = Conversation(server, within(30.0))
        self.bystander = Bystander(server, transports)
        self.connections = self.control.number("curr_connections")
        self.queue_pairs = self.control.number("rdma_queue_pairs", "rdma")

    def footprint(self) -> Footprint:
        return Footprint.of(self.server.pid, self.cgroup)

    def at_rest(self, before: Footprint, limits: Limits) -> bool:
        """Whether nothing of the attacker is left."""
        counts = (self.control.number("curr_connections"), self.control.number("rdma_queue_pairs", "rdma"))
        return counts == (self.connections, self.queue_pairs) and not limits.exceeded(before, self.footprint())

    def wait_until_at_rest(self, before: Footprint, limits: Limits = Limits()) -> None:
        try:
            eventually(lambda: self.at_rest(before, limits), REST_SECONDS)
        except AssertionError:
            found = {**self.control.stats(), **self.control.stats("rdma")}
            left = {name: found[name] for name in ("curr_connections", "rdma_queue_pairs")}
            raise AssertionError(f"left behind: {left} {limits.exceeded(before, self.footprint())}") from None

    def close(self) -> None:
        self.bystander.kill()
        self.control.close()


def nothing(scene: Scene, attacker: Attacker) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A row of a table of cases."""

    name: str
    attack: Callable[..., None]
    arguments: dict[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()
    prepare: Callable[[Scene], None] | None = None
    """Called before the first measurement, for example to store the values requested by the attacker."""
    outcome: Callable[[Scene, Attacker], None] = nothing
    """Called after the rounds, with the attacker still running: checks the attack's outcome."""
    after: Limits = REST
    """The limits after the attacker's end."""
    flags: tuple[str, ...] = ()
    """Flags of the daemon."""
    more: float = MORE_SECONDS
    """The most added to the bystander's p99, in seconds."""


def run_case(scene: Scene, case: Case) -> None:
    """The body of every case; the module's docstring lists the assertions."""
    if case.prepare is not None:
        case.prepare(scene)
    quiet = [scene.bystander.round() for _ in range(QUIET_ROUNDS)]
    before = most = scene.footprint()
    attack = []
    with Attacker(scene.server, case.attack, **case.arguments) as attacker:
        for _ in range(ATTACK_ROUNDS):
            attack.append(scene.bystander.round())
            most = most.most(scene.footprint())
        case.outcome(scene, attacker)
        most = most.most(scene.footprint())
    scene.wait_until_at_rest(before, case.after)
    quiet.append(scene.bystander.round())
    assert not case.limits.exceeded(before, most), case.limits.exceeded(before, most)
    if not SANITIZED:
        check_bystander(quiet, attack, case.more)


@contextlib.contextmanager
def scene_of(server: Server, transports: Sequence[str]) -> Iterator[Scene]:
    """A Scene for the block. transports: of its bystander."""
    scene = Scene(server, transports)
    try:
        yield scene
    finally:
        scene.close()

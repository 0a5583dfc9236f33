"""Counts how often threads of a server wait for a lock while it answers gets of different keys. A part of `bounds`.

The server runs under strace, which traces futex calls only (--seccomp-bpf): the times are of no use, and the count is
exact. A thread waiting for a mutex calls FUTEX_WAIT with the value 2, "taken, and others wait"; condition variables and
semaphores call FUTEX_WAIT_BITSET. Each connection asks for keys of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from rmemcached.bench import _load
from rmemcached.bench.arguments import placement
from rmemcached.bench.contenders import Contender, described, pinned, start
from rmemcached.bench.document import Record
from rmemcached.bench.measure import Case, Figure, Run, Steps, Taken, take_turns
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server

STRACE = ("strace", "-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=futex", "-e", "signal=none", "-o")
WAIT = b"FUTEX_WAIT_PRIVATE, 2,"
WORKERS = (4, 16)
CONNECTIONS, DEPTH = 16, 16
KEYS, KEY_SIZE, VALUE_SIZE = 1000, 32, 100  # keys of a connection; a key's size in the first, a byte more in each next
WAITS = Figure("waits_a_million", "a million gets")
PER_SECOND = Figure("per_second", "1/s", "higher")
ABSENT = "strace is not in PATH (apt-get install strace): lock waits are not counted"


def measure(
    contenders: dict[str, Contender], group: str, cores: str, seconds: float, record: Record, steps: Steps
) -> None:
    """Measures the cases of this group, with servers of their own. Without strace, adds a note."""
    if shutil.which("strace") is None:
        record.note(ABSENT)
        return
    for_clients, for_servers = placement(cores)
    for workers in WORKERS:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(scratch())
            stack.enter_context(pinned(for_clients))
            runs = {}
            for name, contender in contenders.items():
                trace = Path(folder, f"{name}.trace")
                flags = ("-t", str(workers), "-m", "64")
                server = stack.enter_context(start(contender, flags, folder, for_servers, (*STRACE, str(trace))))
                record.contender({**described(contender, server), "name": name})
                runs[name] = run_of(server, trace, seconds, stack)
            said = {"operation": "get", "depth": DEPTH, "connections": CONNECTIONS, "workers": workers, "cores": cores}
            text = (
                f"{group}: gets of different keys, pipelined by {DEPTH}, {CONNECTIONS} connections, {workers} workers"
            )
            case = Case(text, said, (WAITS, PER_SECOND), {}, {"tcp": "<= 0"}, group)
            record.case(case, take_turns(case, runs, record.round, steps))


def run_of(server: Server, trace: Path, seconds: float, stack: contextlib.ExitStack) -> Run:
    """Stores the keys. Returns a run that asks for them, on connections kept until the stack ends."""
    loads = [stack.enter_context(load_of(server, number)) for number in range(CONNECTIONS)]
    for load in loads:
        load.fill()

    def run(number: int) -> Taken:
        before = waits(trace)
        # The warm-up has moved each item in the LRU lists. An item moves again only after a minute, so no get waits for
        # the lock of a list.
        gets, longest = run_beside(loads, seconds)
        return Taken({WAITS.name: (waits(trace) - before) / gets * 1e6, PER_SECOND.name: gets / longest})

    return run


@contextlib.contextmanager
def load_of(server: Server, number: int) -> Iterator[_load.Load]:
    """A connection with keys of its own: their length differs from the keys of all others."""
    with server.connect(10) as plain:
        load = _load.Load(
            keys=KEYS, key_size=KEY_SIZE + number, value_size=VALUE_SIZE, depth=DEPTH, batch=True, complete=True
        )
        load.add_socket(plain)
        with load:
            yield load


def run_beside(loads: list[_load.Load], seconds: float) -> tuple[int, float]:
    """Runs all loads at a time: their gets together, and the seconds of the longest. Raises the errors of a run."""
    done: list[dict[str, float]] = []
    wrong: list[BaseException] = []

    def work(load: _load.Load) -> None:
        try:
            done.append(load.run(seconds))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(load,)) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return int(sum(one["gets"] for one in done)), max(one["seconds"] for one in done)


def waits(trace: Path) -> int:
    """The number of waits for a mutex written down by strace so far."""
    return trace.read_bytes().count(WAIT)

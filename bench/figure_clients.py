"""Figures of daemons and clients: rmemcached over its transports, and memcached beside it."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from rmemcached import __version__
from rmemcached.bench import _load, latency, throughput
from rmemcached.bench.arguments import CORES, placement, size_name
from rmemcached.bench.contenders import Contender, connect, described, pinned, start
from rmemcached.bench.cpu import fill
from rmemcached.bench.document import Document, Record
from rmemcached.bench.drawing import (
    UNMEASURED,
    Claim,
    Drawing,
    Effort,
    contenders,
    devices,
    each,
    last_to_first,
    median,
    of_devices,
    participant,
    row,
    system_device,
    to_reference,
)
from rmemcached.bench.figure_devices import Cell, DeviceSide, Samples, alternate, measured
from rmemcached.bench.helpers import Helper, orders
from rmemcached.bench.measure import Case, Figure, Run, Taken, runs_of, take_turns
from rmemcached.bench.realuse import daemons, shared_rate, sharing_clients
from rmemcached.bench.scratch import scratch
from rmemcached.bench.table import number

OURS = ("soft_shm", "soft_iw", "verbs", "tcp")
ALL = (*OURS, "memcached")
SOFT = ("soft_shm", "soft_iw")
VALUE_SIZE = 64 << 10
VALUES = 16  # different values, for keys drawn at random
WARM_UP = "Each contender has a server of its own with one worker thread. A warm-up run is thrown away."
ROUNDS = "Each round has processes of its own. In it every contender does the case once, in an order that is drawn."
COMPARED = "Every value that came back was compared."
RATIOS = "A figure is the median of the rounds; a ratio is the median of the paired ratios."
METHOD = (WARM_UP, ROUNDS, COMPARED, RATIOS)
ONE_HOST = "Several hosts: clients and server are on one, so that no NIC's cache overflows."


def own_core() -> str:
    """The placement "apart" on a machine with two cores, else "any"."""
    return "apart" if len(os.sched_getaffinity(0)) > 1 else "any"


@contextlib.contextmanager
def started(
    found: list[Contender], record: Record, flags: tuple[str, ...], cores: set[int]
) -> Iterator[dict[str, tuple[Contender, Any]]]:
    """{name: (contender, its server)}"""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        made = {}
        for contender in found:
            server = stack.enter_context(start(contender, flags, folder, cores))
            record.contender(described(contender, server))
            made[contender.name] = contender, server
        yield made


# --- RaaS, figures 2 and 7: threads sharing a queue pair ---

PER_SECOND = Figure("per_second", "1/s", "higher")


def sharers(effort: Effort, record: Record, counts: list[int], groups: dict[str, int], depths: tuple[int, ...]) -> None:
    """Gets of 100 B by threads at C speed. groups: {name: threads sharing a queue pair, 0: all of them}."""
    words = {0: "all threads share a queue pair", 1: "each thread has a queue pair of its own"}
    for name, together in groups.items():
        which = words.get(together, f"{together} threads share a queue pair")
        participant(
            record,
            name,
            f"rmemcached {__version__}",
            f"{which}; a daemon with one worker for each device",
        )
    there = [name for name in (*SOFT, "verbs") if name != "verbs" or system_device()]
    seconds = effort.of(0.05, 0.2)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(there, os.sched_getaffinity(0), "-t", "1", "-m", "64"))
        for server in servers.values():
            fill(server, 1000)
        steps = record.steps(len(there) * len(counts) * len(depths) * len(groups) * runs_of(record.round))
        for device in there:
            for count in counts:
                with contextlib.ExitStack() as connected:
                    clients = {}
                    for name, together in groups.items():
                        makers = count // together if together else 1
                        clients[name] = sharing_clients(servers[device].address, device, count, makers)
                        for client in clients[name]:
                            connected.enter_context(contextlib.closing(client))

                    def run_of(these: list[Any], depth: int) -> Run:
                        return lambda turn: Taken({"per_second": shared_rate(these, seconds, depth, turn)})

                    for depth in depths:
                        threads = f"{count} threads" if count > 1 else "one thread"
                        case = Case(
                            f"{threads}, {depth} under way in each, over {device}",
                            {"device": device, "depth": depth, "sharers": count},
                            (PER_SECOND,),
                        )
                        runs = {name: run_of(these, depth) for name, these in clients.items()}
                        record.case(case, take_turns(case, runs, record.round, steps))


def contention(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 2."""
    sharers(effort, record, effort.of([3], [1, 3, 6, 9]), {"own": 1, "shared": 0}, effort.of((16,), (1, 16)))


def groups_of(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 7."""
    sharers(effort, record, effort.of([6], [6, 12]), {"own": 1, "3 share": 3, "6 share": 6}, (16,))


# --- RaaS, figure 6: connections ---


def reader(pipe: Connection, cores: set[int], number: int) -> None:
    """Answers ("connect", contender, address, count) when connected, and ("read", name, seconds) with (gets, seconds).

    The values come from stored(); the keys are drawn at random.
    """
    clients: dict[str, list[Any]] = {}
    chance = random.Random(number)
    values = stored()
    with contextlib.ExitStack() as stack:
        for what, *rest in orders(pipe, cores):
            if what == "connect":
                contender, address, count = rest
                made = [stack.enter_context(contextlib.closing(connect(contender, address))) for _ in range(count)]
                for client in made:
                    client.version()
                clients[contender.name] = made
                pipe.send(None)
            else:
                name, seconds = rest
                done = 0
                begin = perf_counter()
                while done == 0 or perf_counter() - begin < seconds:
                    # There are as many gets as in a round over few connections, so the loop reads the clock equally
                    # often.
                    for _ in range(VALUES):
                        key = f"key{chance.randrange(VALUES)}"
                        if chance.choice(clients[name]).get(key) != values[key]:
                            raise ValueError(f"get of {name}: a wrong value came back")
                    done += VALUES
                pipe.send((done, perf_counter() - begin))


def stored() -> dict[str, bytes]:
    """The content of the servers, the same in every process."""
    chance = random.Random(6)
    return {f"key{number}": chance.randbytes(VALUE_SIZE) for number in range(VALUES)}


def store(server: Any) -> None:
    with contextlib.closing(connect(Contender("tcp", "rmemcached"), server.address)) as client:
        for key, value in stored().items():
            client.set(key, value)


def scalability(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 6."""
    found = contenders(effort, *ALL)
    processes = effort.of(2, 10)
    counts = effort.of((4, 20), (10, 100, 400, 1000))
    seconds = effort.of(0.1, 0.3)
    for_clients, for_servers = placement("any")

    def run_of(helpers: list[Helper], name: str) -> Run:
        def run(turn: int) -> Taken:
            for helper in helpers:
                helper.tell("read", name, seconds if turn else seconds / 5)
            answers = [helper.answer() for helper in helpers]
            rate = sum(done / spent for done, spent in answers)
            return Taken({"rate": rate * VALUE_SIZE / 2**20, "per_second": rate})

        return run

    steps = record.steps(len(counts) * len(found) * runs_of(record.round))
    for count in counts:
        flags = ("-t", "1", "-m", "128", "-c", str(2 * count + 100))
        with contextlib.ExitStack() as stack:
            servers = stack.enter_context(started(found, record, flags, for_servers))
            helpers = [stack.enter_context(Helper(reader, for_clients, number)) for number in range(processes)]
            for contender, server in servers.values():
                store(server)
                for helper in helpers:
                    helper.tell("connect", contender, server.address, count // processes)
                for helper in helpers:
                    helper.answer()
            case = Case(
                f"gets of {size_name(VALUE_SIZE)} over {count} connections of {processes} processes",
                {"connections": count, "size": VALUE_SIZE},
                (Figure("rate", "MB/s", "higher"), PER_SECOND),
            )
            runs = {name: run_of(helpers, name) for name in servers}
            record.case(case, take_turns(case, runs, record.round, steps))


# --- RaaS, figures 8 and 9: the cost of further applications ---

KEY, SMALL = "key", bytes(100)
THINK_US = 1000


def resident(pid: int) -> float:
    """The memory of a process in KB, without mapped files; a page shared by n processes counts 1/n in each."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
            total += int(line.split()[1])
    return float(total)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def application(pipe: Connection, cores: set[int]) -> None:
    """A program with a cache.

    Answers ("connect", contender, address, count) with the KB taken by its connections, and ("pace", name, seconds)
    with its gets, one each millisecond.
    """
    clients: dict[str, list[Any]] = {}
    with contextlib.ExitStack() as stack:
        for what, *rest in orders(pipe, cores):
            if what == "connect":
                contender, address, count = rest
                before = resident(os.getpid())
                made = [stack.enter_context(contextlib.closing(connect(contender, address))) for _ in range(count)]
                for client in made:
                    client.set(KEY, SMALL)
                clients[contender.name] = made
                pipe.send(resident(os.getpid()) - before)
            else:
                name, seconds = rest
                (client,) = clients[name]
                done = 0
                begin = perf_counter()
                while done == 0 or perf_counter() - begin < seconds:
                    sleep(THINK_US / 1e6)
                    if client.get(KEY) != SMALL:
                        raise ValueError(f"get of {name}: a wrong value came back")
                    done += 1
                pipe.send(done)


def applications_case(count: int, what: str, unit: str) -> Case:
    return Case(
        f"{count} applications" if count > 1 else "one application",
        {"applications": count},
        (Figure("of_one", ""), Figure(what, unit)),
    )


def memory(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 8."""
    found = contenders(effort, *ALL)
    counts = effort.of((1, 2), (1, 2, 4, 8))
    connections = 100
    for_clients, for_servers = placement("any")
    cases = {count: applications_case(count, "memory_KB", "KB") for count in counts}
    samples: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    known = {contender.name: contender for contender in found}

    def take(contender: Contender, turn: int) -> None:
        with contextlib.ExitStack() as stack:
            servers = stack.enter_context(started([contender], record, ("-t", "1", "-m", "64"), for_servers))
            _, server = servers[contender.name]
            # The server's allocations for its first connection are not counted.
            with contextlib.closing(connect(contender, server.address)) as first:
                first.set(KEY, SMALL)
                before = resident(server.pid)
                of_clients, there, one = 0.0, 0, 0.0
                for count in counts:
                    for _ in range(count - there):
                        helper = stack.enter_context(Helper(application, for_clients))
                        helper.tell("connect", contender, server.address, connections)
                        of_clients += helper.answer()
                    there = count
                    total = max(of_clients + resident(server.pid) - before, 1.0)
                    one = one or total
                    values = {"of_one": total / one, "memory_KB": total}
                    samples[count].append(record.round.sample(cases[count].name, contender.name, turn, values))

    steps = record.steps(len(known))
    for turn, name in enumerate(record.round.orders(list(known), "memory")[0], 1):
        take(known[name], turn)
        steps.step(f"memory: {name}")
    for count in counts:
        record.case(cases[count], samples[count])


def processor(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 9."""
    found = contenders(effort, *ALL)
    counts = effort.of((1, 2), (1, 2, 4, 8))
    seconds = effort.of(0.1, 0.4)
    for_clients, for_servers = placement("any")
    ones: dict[tuple[str, int], float] = {}

    def run_of(helpers: list[Helper], name: str, server: Any) -> Run:
        def run(turn: int) -> Taken:
            pids = [server.pid, *(helper.process.pid for helper in helpers)]
            before = sum(map(cpu_seconds, pids))
            for helper in helpers:
                helper.tell("pace", name, seconds if turn else seconds / 5)
            done = sum(helper.answer() for helper in helpers)
            spent = (sum(map(cpu_seconds, pids)) - before) / done * 1e6
            # CPU for gets at the pace of all applications, one get each per THINK_US: percent of a core.
            percent = spent / THINK_US * 100 * len(helpers)
            one = ones.setdefault((name, turn), percent)
            return Taken({"of_one": percent / one, "percent": percent})

        return run

    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(started(found, record, ("-t", "1", "-m", "64"), for_servers))
        helpers = [stack.enter_context(Helper(application, for_clients)) for _ in range(max(counts))]
        for contender, server in servers.values():
            for helper in helpers:
                helper.tell("connect", contender, server.address, 1)
                helper.answer()
        steps = record.steps(len(counts) * len(found) * runs_of(record.round))
        for count in counts:
            case = applications_case(count, "percent", "% of a core")
            runs = {name: run_of(helpers[:count], name, server) for name, (_, server) in servers.items()}
            record.case(case, take_turns(case, runs, record.round, steps))


# --- RaaS, figure 11: the cost of the service beside the device ---

LAYER_SIZES = (64, 1024, 4096, 16384, 65536, 262144, 1 << 20)
BARE, GET = "READ", "get"


def layer(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 11."""
    there = {name: f"{name}0" for name in SOFT} | ({"verbs": device} if (device := system_device()) else {})
    participant(record, BARE, "none: the device alone", "RDMA READs between two processes that poll")
    participant(record, GET, f"rmemcached {__version__}", "gets at C speed, one at a time; a daemon for each device")
    sizes = effort.of((64, 65536), LAYER_SIZES)
    seconds = effort.of(0.02, 0.1)
    _, for_servers = placement(own_core())
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(list(there), for_servers, "-t", "1", "-m", "256", "-I", "8m"))

        def work(side: DeviceSide) -> Samples:
            clients = {}
            for fabric, device in there.items():
                side.open(fabric, device)
                if side.client:
                    contender = Contender(fabric, "rmemcached", fabric)
                    clients[fabric] = side.stack.enter_context(
                        contextlib.closing(connect(contender, servers[fabric].address))
                    )
            cells = []
            for fabric in there:
                for size in sizes:
                    case = Case(
                        f"{size_name(size)} over {there[fabric]}",
                        {"device": fabric, "size": size},
                        (Figure("latency_us", "us"),),
                    )
                    probes = {BARE: bare(fabric, size), GET: ask(clients, fabric, size)}
                    cells.append(Cell(case, probes, filling(servers[fabric], size)))
            return alternate(side, cells, record, seconds)

        def bare(fabric: str, size: int) -> Callable[[DeviceSide, int], float]:
            return lambda side, count: side.average(fabric, "read", size, count)

        def ask(clients: dict[str, Any], fabric: str, size: int) -> Callable[[DeviceSide, int], float]:
            def run(side: DeviceSide, count: int) -> float:
                if not side.client:
                    return 0.0
                with _load.Load(keys=1, value_size=size, complete=True) as load:
                    load.add_client(clients[fabric])
                    done = load.run(seconds)
                return float(done["seconds"] / done["requests"] * 1e6)

            return run

        def filling(server: Any, size: int) -> Callable[[], None]:
            return lambda: fill(server, 1, size)

        measured(work, record)


def dearer(fabric: str, size: int) -> Callable[[Document], str]:
    """The microseconds that a get takes more than a READ."""

    def said(document: Document) -> str:
        rows = [row(document, name, device=fabric, size=size) for name in (GET, BARE)]
        if rows[0] is None or rows[1] is None:
            return UNMEASURED
        return f"{number(rows[0]['median'] - rows[1]['median'])} us more"

    return said


# --- RaaS, figure 18: memcached ---


def eight_octets(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RaaS, figure 18."""
    small_latencies(effort, record, contenders(effort, *ALL), [8], "get,set", [own_core(), "together"])


def small_latencies(
    effort: Effort, record: Record, found: list[Contender], sizes: list[int], operations: str, cores: list[str]
) -> None:
    """Runs the subcommand latency with these contenders and sizes."""
    parser = argparse.ArgumentParser()
    latency.add_arguments(parser)
    options = parser.parse_args(
        ["--operations", operations, "--seconds", str(effort.of(0.02, 0.2)), "--least", str(effort.of(10, 20))]
    )
    options.sizes, options.cores, options.contenders = sizes, cores, found
    latency.measure(options, record)


# --- RDDP, figure 5: sockets without RDMA ---

SOCKET_SIZES = (8, 64, 1024, 4096, 16384, 65536)


def plain_sockets(effort: Effort, record: Record) -> None:
    """Repeats the measurements of RDDP, figure 5."""
    found = contenders(effort, "tcp", "memcached")
    sizes = list(effort.of((64, 65536), SOCKET_SIZES))
    small_latencies(effort, record, found, sizes, "get", ["together"])
    for_clients, for_servers = placement("any")
    seconds = effort.of(0.05, 0.2)
    options = argparse.Namespace(operations=["get"], keys=[64], depths=[16])
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(started(found, record, ("-t", "1", "-m", "256", "-I", "8m"), for_servers))
        stack.enter_context(pinned(for_clients))
        clients = {
            name: stack.enter_context(contextlib.closing(connect(contender, server.address)))
            for name, (contender, server) in servers.items()
        }
        steps = record.steps(len(sizes) * len(found) * runs_of(record.round))
        for size in sizes:
            for _, server in servers.values():
                fill(server, 64, size)
            (asked,) = throughput.cases_of(options, size, "any", {})
            case = Case(
                f"gets of {size_name(size)}, 16 under way, {CORES['any']}",
                {**asked.parameters, "what": "bandwidth"},
                (Figure("rate", "MB/s", "higher"), Figure("cpu_us", "us")),
            )

            def run_of(name: str, case: Case = asked, size: int = size) -> Run:
                inner = throughput.run_of(clients[name], servers[name][1], case, seconds)

                def run(turn: int) -> Taken:
                    values = inner(turn).values
                    return Taken({"rate": values["per_second"] * size / 2**20, "cpu_us": values["cpu_us"]})

                return run

            record.case(case, take_turns(case, {name: run_of(name) for name in servers}, record.round, steps))


# --- the drawings ---


def shares(contender: str, **parameters: Any) -> Callable[[Document], str]:
    return of_devices(to_reference, contender, **parameters)


def ends(axis: str) -> Callable[[Document], str]:
    return each({name: last_to_first(name, axis) for name in ALL})


DRAWINGS = (
    Drawing(
        "raas-2",
        "Figure 2: threads that share a queue pair",
        "sharers",
        METHOD,
        contention,
        (
            Claim(
                "3 threads that share a queue pair, to a queue pair each; 16 requests under way in each thread",
                "0.66 under a lock",
                shares("shared", sharers=3, depth=16),
            ),
            Claim(
                "9 threads; 16 requests under way in each",
                "0.56 under a lock",
                shares("shared", sharers=9, depth=16),
            ),
            Claim("3 threads, one request at a time", "", shares("shared", sharers=3, depth=1)),
            Claim("9 threads, one request at a time", "", shares("shared", sharers=9, depth=1)),
        ),
        reference="own",
        lacks=("24 cores: more threads than cores take turns on these.",),
    ),
    Drawing(
        "raas-6",
        "Figure 6: throughput of values of 64 KB, by connections",
        "connections",
        (*METHOD, "Keys and connections are drawn at random."),
        scalability,
        (
            Claim(
                "throughput, most connections to fewest",
                "falls beyond 400 with a queue pair for each; 1 with shared queue pairs",
                ends("connections"),
            ),
            Claim("1000 connections, to memcached with as many", "", devices(to_reference, *OURS, connections=1000)),
        ),
        lacks=(
            ONE_HOST,
            "A queue pair for each of 1000 connections: the Clients of a process share them. A connection of its own is"
            " what `tcp` and memcached have.",
        ),
    ),
    Drawing(
        "raas-7",
        "Figure 7: throughput by how many share a queue pair",
        "sharers",
        METHOD,
        groups_of,
        (
            Claim(
                "12 threads in groups of 3 that share a queue pair, to a queue pair each",
                "less than 1 under a lock",
                shares("3 share", sharers=12),
            ),
            Claim("12 threads in groups of 6", "still less under a lock", shares("6 share", sharers=12)),
            Claim("6 threads in groups of 3", "", shares("3 share", sharers=6)),
            Claim("6 threads in one group", "", shares("6 share", sharers=6)),
        ),
        reference="own",
        lacks=(ONE_HOST, "More than 16 queue pairs of one process: a client makes no more."),
    ),
    Drawing(
        "raas-8",
        "Figure 8: memory, by applications",
        "applications",
        (
            "Each run starts a server and processes of its own. An application is a process with 100 connections, each"
            " of which has made a request.",
            "Counted is what server and applications together have grown by since before the first one connected;"
            " shared memory once.",
            RATIOS,
        ),
        memory,
        (
            Claim(
                "memory, most applications to one",
                "native verbs: in proportion to the applications; RaaS: less",
                ends("applications"),
            ),
            Claim(
                "memory of 8 applications, KB",
                "",
                each({name: median(name, "memory_KB", applications=8) for name in ALL}),
            ),
        ),
        lacks=(
            "Applications that share queue pairs: here the connections of a process share them, and processes do not.",
        ),
    ),
    Drawing(
        "raas-9",
        "Figure 9: CPU, by applications",
        "applications",
        (
            *METHOD,
            "An application is a process that gets 100 B each millisecond.",
            "Counted is the time of the server and of the applications together.",
        ),
        processor,
        (
            Claim(
                "CPU time, most applications to one",
                "native verbs: in proportion to the applications; RaaS: less",
                ends("applications"),
            ),
            Claim(
                "CPU time of 8 applications, % of a core",
                "",
                devices(median, *ALL, figure="percent", applications=8),
            ),
        ),
        lacks=(
            "A device that works without the CPU: the software RNIC's work is counted with the processes that do it.",
        ),
    ),
    Drawing(
        "raas-11",
        "Figure 11: latency of the service beside the bare device, by size",
        "size",
        (
            "A READ is between two processes that poll and do nothing else; a get goes to a daemon, as in any program."
            " Both are means of many, one at a time.",
            "Client and server have a core each where there are two.",
            ROUNDS,
            RATIOS,
        ),
        layer,
        (
            Claim(
                "get of 64 B",
                "1 to 2 us more than the READ, below 64 KB",
                each({name: dearer(name, 64) for name in SOFT}),
            ),
            Claim("get of 64 KB, to the READ", "1", of_devices(to_reference, GET, size=65536)),
            Claim("get of 256 KB, to the READ", "0.63", of_devices(to_reference, GET, size=262144)),
            Claim("get of 64 B, to the READ", "", of_devices(to_reference, GET, size=64)),
        ),
        reference=BARE,
        lacks=("A link of 40 Gb/s: both processes are on one host.",),
    ),
    Drawing(
        "raas-18",
        "Figure 18: latency of memcached's get and set of 8 B",
        "",
        METHOD,
        eight_octets,
        (
            Claim(
                "get, to memcached over TCP; a core each",
                "0.5",
                devices(to_reference, *OURS, operation="get", cores="apart"),
            ),
            Claim("set; a core each", "0.5", devices(to_reference, *OURS, operation="set", cores="apart")),
            Claim("get; one core", "", devices(to_reference, *OURS, operation="get", cores="together")),
            Claim("set; one core", "", devices(to_reference, *OURS, operation="set", cores="together")),
        ),
        lacks=("A link of 40 Gb/s between two hosts: both are on one.",),
    ),
    Drawing(
        "rddp-5",
        "Figure 5: the cost for programs that know only sockets",
        "size",
        METHOD,
        plain_sockets,
        (
            Claim(
                "latency of standard sockets through a stack that can do RDMA, to the plain one; 64 B",
                "nearly 1",
                devices(to_reference, "tcp", operation="get", size=64, cores="together"),
            ),
            Claim(
                "latency of 64 KB",
                "nearly 1",
                devices(to_reference, "tcp", operation="get", size=65536, cores="together"),
            ),
            Claim("bandwidth, 64 B", "nearly 1", devices(to_reference, "tcp", what="bandwidth", size=64)),
            Claim("bandwidth, 64 KB", "nearly 1", devices(to_reference, "tcp", what="bandwidth", size=65536)),
        ),
        lacks=("A Gigabit Ethernet between two hosts: both processes are on one host.",),
    ),
)

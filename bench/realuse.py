"""`rmemcached-bench realuse`: real use rather than ping-pong. Large values, several threads, other clients beside.

large        get, get_many of four and set of large values over shared memory: as bytes, in the caller's memory, and in
             registered buffers; gets answered by the daemon (-o rdma_direct=off), and direct gets; throughput as a
             ratio to one memcpy of the same bytes in the client's process, in turn with the calls.
threads      get and set by several threads with a client each, two workers; bytes per second as a ratio to TCP; floors:
             two bare echo servers, and one memcpy in each thread.
sharing      gets of 100 B by threads of one process, at C speed, with a shared queue pair, or a queue pair each;
             requests per second as a ratio to a queue pair each, and to one thread.
beside       gets of 100 B by two TCP clients, beside other clients of the same worker: 100 idle, 4 with a request each
             millisecond, or 2 without pause; throughput as a ratio to none beside, and to the same over TCP.

Each transport has a daemon of its own: idle clients of one transport do not meet requests of another, and its CPU time
is the transport's. The transports take turns in short samples: other load on the machine slows all of them alike, and
the ratios hold. Every value is compared. `sharing` and `beside` have no floor: they are compared with a queue pair
each, and with no client beside.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from rmemcached import __version__
from rmemcached.bench import _floor, _load
from rmemcached.bench.arguments import CORES, all_cores, cores, names_of, numbers, placement, size_name, sizes
from rmemcached.bench.connections import asker
from rmemcached.bench.contenders import parse_contender
from rmemcached.bench.cpu import fill
from rmemcached.bench.document import Record
from rmemcached.bench.floor import EchoClient, start_echo
from rmemcached.bench.helpers import Helper, busy
from rmemcached.bench.paced import paced_client
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server, start_rmemcached
from rmemcached.bench.sheet import Sheet
from rmemcached.client import Client

HELP = "large values, threads with clients of their own or shared queue pairs, other clients beside"
REFERENCE = "tcp"
MEMCPY, ECHO = "floor: memcpy", "floor: tcp"
TRANSPORTS = ("soft_shm", "soft_iw", "tcp", "unix", "auto")
PARTS = ("large", "threads", "sharing", "beside")
KEY, SMALL = "key", 100
TIMEOUT = 60.0
MB = 1 << 20


# ---- daemons and clients ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemons(transports: list[str], cores: set[int], *flags: str) -> Iterator[dict[str, Server]]:
    """A daemon for each transport, on these cores."""
    allowed = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stack.callback(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, cores)  # the daemons inherit the cores
        made = {}
        for name in transports:
            path = f"{folder}/socket" if name == "unix" else None
            made[name] = stack.enter_context(start_rmemcached(*flags, path=path))
        os.sched_setaffinity(0, allowed)
        yield made


def connect(address: Any, transport: str) -> Any:
    """A client over this transport; "unix" is memcached's protocol over a UNIX socket."""
    name = "tcp" if transport == "unix" else transport
    return Client(address, timeout=TIMEOUT, default_noreply=False, transport=name)


# ---- large values, and threads ---------------------------------------------------------------------------------------


def transfer_rate(client: Any, operation: str, key: str, value: bytes, seconds: float) -> float:
    """Bytes per second of an operation, repeated. Raises ValueError for a changed value."""
    client.set(key, value)
    done = 0
    spent = 0.0
    while done == 0 or spent < seconds:
        begin = perf_counter()
        got = client.get(key) if operation == "get" else client.set(key, value)
        spent += perf_counter() - begin
        done += len(value)
        # A comparison with the GIL would make the gets of all other threads wait.
        if operation == "get" and not (got and _floor.same(got, value)):
            raise ValueError(f"get of {len(value)} bytes: a wrong value came back")
    if operation == "set" and client.get(key) != value:
        raise ValueError(f"set of {len(value)} bytes: a wrong value came back")
    return done / spent


LARGER: dict[str, Any] = {"group": "large values", "better": "higher"}
MANY = 4
LARGE_OPERATIONS = ("get", "get_many", "set")
LARGE_SERVERS = {"asked": "off", "direct": "own"}
BYTES, OWN, REGISTERED = "bytes", "memory of one's own", "registered buffers"


def taking_turns(works: dict[str, Callable[[], object]], size: int, seconds: float) -> dict[str, float]:
    """Bytes per second of each call. The calls take turns, so each finds the caches as the others leave them."""
    spent = dict.fromkeys(works, 0.0)
    done = 0
    for work in works.values():
        # The first calls are slower, and do not count: the server maps the client's memory when a request first names
        # the memory, and results take the memory of earlier results from the second call on.
        for _ in range(4):
            work()
    while done == 0 or sum(spent.values()) < seconds * len(works):
        for name, work in works.items():
            begin = perf_counter()
            work()
            spent[name] += perf_counter() - begin
        done += size
    return {name: done / took for name, took in spent.items()}


def same(what: str, found: object, value: object) -> None:
    if found != value:
        raise ValueError(f"{what}: a wrong value came back")


def large_works(client: Any, operation: str, values: dict[str, bytes], stack: contextlib.ExitStack) -> dict[str, Any]:
    """{name: a call of the operation with these values}. All values are compared first."""
    value = values[KEY]
    size, keys = len(value), list(values)
    sources, targets = [bytearray(one) for one in values.values()], [bytearray(size) for _ in values]
    own, buffer = bytearray(value), stack.enter_context(client.buffer(size))
    view = stack.enter_context(memoryview(buffer))
    view[:] = value

    def copy() -> None:
        for source, target in zip(sources, targets, strict=True):
            target[:] = source

    if operation == "get_many":
        same(operation, client.get_many(keys), values)
        return {MEMCPY: copy, BYTES: lambda: client.get_many(keys)}
    if operation == "get":
        for memory in (own, view):
            memory[:] = bytes(size)
            client.get_into(KEY, memory)
            same(operation, memory, value)
        same(operation, client.get(KEY), value)
        return {
            MEMCPY: copy,
            BYTES: lambda: client.get(KEY),
            OWN: lambda: client.get_into(KEY, own),
            REGISTERED: lambda: client.get_into(KEY, view),
        }
    sets: dict[str, Any] = {BYTES: value, OWN: own, REGISTERED: view}
    for given in sets.values():
        client.set(KEY, given)
        same(operation, client.get(KEY), value)
    return {MEMCPY: copy} | {name: lambda given=given: client.set(KEY, given) for name, given in sets.items()}


def measure_large(options: argparse.Namespace, sheet: Sheet) -> None:
    most = max(options.large) // MB + 1
    flags = ("-t", "1", "-m", str(4 * most * MANY + 64), "-I", f"{2 * most}m")
    allowed = os.sched_getaffinity(0)
    for where, (kind, who) in itertools.product(options.cores, LARGE_SERVERS.items()):
        for_clients, for_daemons = placement(where)
        with contextlib.ExitStack() as stack:
            direct = ("-o", f"rdma_direct={who}")
            server = stack.enter_context(daemons(["soft_shm"], for_daemons, *flags, *direct))["soft_shm"]
            stack.callback(os.sched_setaffinity, 0, allowed)
            os.sched_setaffinity(0, for_clients)
            client = stack.enter_context(contextlib.closing(connect(server.address, "soft_shm")))
            for size, operation in itertools.product(options.large, LARGE_OPERATIONS):
                if operation == "set" and kind == "direct":
                    # A set asks the daemon in any case: with direct reads its figure would be the same.
                    continue
                count = MANY if operation == "get_many" else 1
                values = {KEY + "+" * number: os.urandom(size) for number in range(count)}
                client.set_many(values)
                case = f"{operation} of {size_name(size)}, {kind}, {CORES[where]}"
                said = {"cores": where, "size": size, "operation": operation, "server": kind}
                with contextlib.ExitStack() as opened:
                    works = large_works(client, operation, values, opened)
                    works = {name: works[name] for name in sheet.record.round.shuffled(works)}
                    rates = taking_turns(works, size * count, options.seconds)
                for name, rate in rates.items():
                    named, floor = (name, "") if name == MEMCPY else (f"soft_shm, {name}", MEMCPY)
                    sheet.add(case, named, rate / 1e6, "MB/s", floor=floor, parameters=said, **LARGER)


def together(work: Callable[[int], float], count: int) -> float:
    """The sum of the results of so many threads working at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(work, range(count)))


def clients_rate(clients: list[Any], operation: str, value: bytes, seconds: float) -> float:
    """Bytes per second of all clients, each in a thread of its own."""
    return together(
        lambda number: transfer_rate(clients[number], operation, f"{KEY}{number}", value, seconds), len(clients)
    )


def echo_rate(addresses: list[Any], operation: str, value: bytes, seconds: float, count: int) -> float:
    """clients_rate of so many threads with echo servers."""

    def work(number: int) -> float:
        address = addresses[number % len(addresses)]
        with contextlib.closing(EchoClient(address, f"{KEY}{number}", value)) as client:
            return transfer_rate(client, operation, KEY, value, seconds)

    return together(work, count)


def copies_rate(value: bytes, seconds: float, count: int) -> float:
    """clients_rate of so many copying threads, each from its own memory to another place."""
    return together(lambda _: _floor.copy(bytearray(value), bytearray(len(value)), seconds), count)


def measure_threads(options: argparse.Namespace, sheet: Sheet) -> None:
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw", "tcp")]
    flags = ("-t", "2", "-m", "256", "-I", f"{2 * max(options.sizes) // MB + 1}m")
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, os.sched_getaffinity(0), *flags))
        clients = {
            name: [
                stack.enter_context(contextlib.closing(connect(server.address, name)))
                for _ in range(max(options.threads))
            ]
            for name, server in servers.items()
        }
        everywhere = os.sched_getaffinity(0)
        # There are as many echo servers as each daemon has workers.
        echoes = [stack.enter_context(start_echo("tcp", "", everywhere)).address for _ in range(2)]
        for count, size, operation in itertools.product(options.threads, options.sizes, ("set", "get")):
            value = os.urandom(size)
            case = f"{operation} of {size_name(size)}, {count} {'threads' if count > 1 else 'thread'}"
            said = {"threads": count, "size": size, "operation": operation}
            floors = {name: MEMCPY if name == "soft_shm" else ECHO for name in names}
            for name in sheet.record.round.shuffled((*names, *dict.fromkeys(floors.values()))):
                if name == MEMCPY:
                    found = copies_rate(value, options.seconds, count)
                elif name == ECHO:
                    found = echo_rate(echoes, operation, value, options.seconds, count)
                else:
                    found = clients_rate(clients[name][:count], operation, value, options.seconds)
                more: dict[str, Any] = {"floor": floors.get(name, ""), "parameters": said}
                sheet.add(case, name, found / 1e6, "MB/s", group="threads", better="higher", **more)


# ---- threads sharing a queue pair ------------------------------------------------------------------------------------


def sharing_clients(address: Any, transport: str, count: int, makers: int) -> list[Any]:
    """Connected clients, made by so many threads. The clients of a thread share a queue pair; up to 16 threads have
    a queue pair each."""
    barrier = threading.Barrier(makers)

    def make(_: int) -> list[Any]:
        barrier.wait()
        made = [connect(address, transport) for _ in range(count // makers)]
        for client in made:
            client.version()
        # Each thread waits for the others: an ended thread would leave its number, and its queue pair, to the next.
        barrier.wait()
        return made

    with ThreadPoolExecutor(makers) as pool:
        return list(itertools.chain.from_iterable(pool.map(make, range(makers))))


def shared_rate(clients: list[Any], seconds: float, depth: int, seed: int) -> float:
    """Requests per second of all clients, each in a thread of its own."""

    def work(number: int) -> float:
        with _load.Load(keys=1000, value_size=SMALL, depth=depth, complete=True, seed=seed * 100 + number) as load:
            load.add_client(clients[number])
            done = load.run(seconds)
        return float(done["requests"] / done["seconds"])

    with ThreadPoolExecutor(len(clients)) as pool:
        return sum(pool.map(work, range(len(clients))))


def measure_sharing(options: argparse.Namespace, sheet: Sheet) -> None:
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw")]
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, os.sched_getaffinity(0), "-t", "1", "-m", "64"))
        for server in servers.values():
            fill(server, 1000)
        for name, count in itertools.product(names, options.sharers):
            with contextlib.ExitStack() as connected:
                clients = {}
                for pairs, makers in (("shared", 1), ("own", count)):
                    clients[pairs] = sharing_clients(servers[name].address, name, count, makers)
                    for client in clients[pairs]:
                        connected.enter_context(contextlib.closing(client))
                now = sheet.record.round
                for depth in sorted({1, options.depth}):
                    rates = {
                        pairs: shared_rate(clients[pairs], options.seconds, depth, now.number)
                        for pairs in now.shuffled(clients)
                    }
                    for pairs, rate in rates.items():
                        sheet.add(
                            f"{count} {'threads' if count > 1 else 'thread'}, {depth} under way, {name}",
                            f"{name}, {pairs}",
                            rate,
                            "1/s",
                            group="queue pairs, shared or own",
                            better="higher",
                            parameters={"transport": name, "depth": depth, "threads": count},
                            more={"to_own": (rate / rates["own"], "", "higher")},
                        )


# ---- TCP clients beside others ---------------------------------------------------------------------------------------

OTHERS = ("none", "100 idle", "4 paced", "2 busy")
ASKERS = 2
OTHERS_THINK = 1000


def connected_asker(server: Server, transport: str) -> Helper:
    """A process with a client of the daemon over this transport."""
    helper = Helper(asker, os.sched_getaffinity(0), 1)
    helper.tell("connect", parse_contender(transport), server.address)
    helper.answer()
    return helper


@contextlib.contextmanager
def beside(case: str, server: Server, transport: str, seconds: float) -> Iterator[None]:
    """Clients of the daemon over this transport. For so many seconds they do the work named by the case."""
    everywhere = os.sched_getaffinity(0)
    count = 0 if case == "none" else int(case.split()[0])
    with contextlib.ExitStack() as stack:
        helpers: list[Helper] = []
        if case.endswith("idle"):
            for _ in range(count):
                stack.enter_context(contextlib.closing(connect(server.address, transport))).set(KEY, bytes(SMALL))
        elif case.endswith("paced"):
            for number in range(count):
                helper = Helper(paced_client, everywhere, parse_contender(transport), server.address, number)
                helpers.append(stack.enter_context(helper))
                helper.tell("get", OTHERS_THINK, False, int(seconds * 1e6 / OTHERS_THINK))
        else:
            for _ in range(count):
                helpers.append(stack.enter_context(connected_asker(server, transport)))
                helpers[-1].tell("ask", transport, seconds)
        yield
        for helper in helpers:
            helper.answer()


def measure_beside(options: argparse.Namespace, sheet: Sheet) -> None:
    everywhere = os.sched_getaffinity(0)
    names = [name for name in options.transports if name in ("soft_shm", "soft_iw", "tcp")]
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(daemons(names, everywhere, "-t", "1", "-m", "64"))
        askers = {
            name: [stack.enter_context(connected_asker(server, "tcp")) for _ in range(ASKERS)]
            for name, server in servers.items()
        }
        for name in sheet.record.round.shuffled(names):
            alone = 0.0
            for case in OTHERS:
                with beside(case, servers[name], name, options.seconds):
                    for each in askers[name]:
                        each.tell("ask", "tcp", options.seconds)
                    rate = sum(done / spent for done, spent in [each.answer() for each in askers[name]])
                alone = alone or rate
                sheet.add(
                    f"beside {case}",
                    name,
                    rate,
                    "1/s",
                    group="two clients over TCP, beside others over the transport",
                    better="higher",
                    parameters={"others": case},
                    more={"to_none": (rate / alone, "", "higher")},
                )


MEASURES = {
    "large": measure_large,
    "threads": measure_threads,
    "sharing": measure_sharing,
    "beside": measure_beside,
}


def part(text: str) -> str:
    """A type of argparse: one of PARTS."""
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PARTS)}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    transports = names_of(TRANSPORTS)
    parser.add_argument("--transports", type=transports, default=list(TRANSPORTS), help="default: all")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each sample (default: 0.5)")
    parser.add_argument("--cores", type=cores, default=all_cores(), help="placements (default: all that there are)")
    parser.add_argument("--depth", type=int, default=32, help="requests under way, of sharing (default: 32)")
    parser.add_argument("--large", type=sizes, default=sizes("1m,4m,16m,64m"), metavar="SIZES", help="1m,4m,16m,64m")
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4], metavar="N", help="default: 1,2,4")
    parser.add_argument("--sharers", type=numbers, default=[1, 2, 4, 8, 16], metavar="N", help="threads that share")
    parser.add_argument("--sizes", type=sizes, default=sizes("4k,64k,256k,1m,4m"), help="of the threads' values")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that always run beside (default: 0)"
    )


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    for name in options.transports:
        kinds = {"": "rmemcached.client"}
        if name == "soft_shm":
            kinds |= {f", {name}": f"from and into {name}" for name in (BYTES, OWN, REGISTERED)}
        if name in ("soft_shm", "soft_iw"):
            kinds |= {", shared": "threads share a queue pair", ", own": "threads have a queue pair each"}
        for kind, client in kinds.items():
            record.contender(
                {
                    "name": f"{name}{kind}",
                    "server": f"rmemcached {__version__}",
                    "client": f"{client} over {name}",
                    "command": [],
                    "floor": False,
                }
            )
    record.floor(MEMCPY, "memcpy of as many bytes between pages that are there, in each thread")
    record.floor(ECHO, "two bare echo servers over TCP: epoll_wait, recv and send, without Python")
    parts = options.parts or PARTS
    sheet = Sheet(record)
    steps = record.steps(len(parts))
    with busy(options.busy):
        for name in parts:
            MEASURES[name](options, sheet)
            steps.step(name)
    sheet.finish()

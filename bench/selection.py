"""`rmemcached-bench selection`: whether a build has become slower, in a minute, for the test suite.

A few cases are measured beside a floor and beside the installed memcached; each ratio is compared with the recorded
ratio in expected.json. A case is suspect when all its ratios are worse by more than the recorded spread. The case is
then measured once more, in twice as many rounds; the exit status is 1 when the case is worse again. Only ratios of CPU
time and of memory are compared, never of times: on a machine with other work only the former hold. Nothing that polls
is compared: its CPU time shows how busy the machine is. The floors are always there and always the same; ratios to
memcached belong to one version, and are not judged beside another version.

expected.json has a record for each kind of measured machine, by model of processor and version of Python (and whether
the machine has one core only), because ratios differ between them. A machine without a record is judged by the most
lenient of all records, with a spread of 50 % at least (memory: 10 %).

--record measures anew, half of the runs beside processes that are always busy, and writes the record of this machine:
after a change with an intended cost, or with a gain. The file belongs to the sources; the commit gives the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rmemcached import __version__
from rmemcached.bench import _floor, cpu, estimate, memory
from rmemcached.bench.arguments import placement
from rmemcached.bench.document import Document, Record, values_of, write_text
from rmemcached.bench.errors import BenchError
from rmemcached.bench.floor import CALL, TCP, TEXTS, floor_servers
from rmemcached.bench.helpers import busy
from rmemcached.bench.measure import Case, Figure, Run, Taken, runs_of, take_turns
from rmemcached.bench.scratch import scratch
from rmemcached.bench.servers import Server, memcached_path, start_memcached, start_rmemcached
from rmemcached.client import Client

HELP = "whether a build has become slower than recorded, in a minute: for the test suite"
REFERENCE = "memcached"
OURS = "rmemcached"
EXPECTED = Path(__file__).with_name("expected.json")
SIZE, CONNECTIONS = 100, 50
CALLS = 20_000
KEY, VALUE = "key", bytes(range(SIZE))
CPU, BYTES = Figure("cpu_us", "us"), Figure("bytes", "bytes")
MARGIN = 2.0  # times the difference of the recorded runs
# {case: operation, depth, keys of a get}
OVER_TCP = {
    "get, one at a time": ("get", 1, 1),
    "set, one at a time": ("set", 1, 1),
    "get, pipelined by 16": ("get", 16, 1),
    "set, pipelined by 16": ("set", 16, 1),
    "get of 100 keys": ("get", 1, 100),
}
ASKS_NOBODY = "get that asks nobody, from Python"
START, ITEM = "resident at start", "memory of an item"
CASES = (*OVER_TCP, ASKS_NOBODY, START, ITEM)
# The least spreads written by --record, as starts of the same build have them; and the spreads for an unknown machine.
LEAST_SPREAD = {**dict.fromkeys(CASES, 0.15), START: 0.06, ITEM: 0.03}
UNKNOWN_SPREAD = {**dict.fromkeys(CASES, 0.5), START: 0.1, ITEM: 0.1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="default: all")
    parser.add_argument("--seconds", type=float, default=0.15, help="of each run (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each contender in a round (default: 2)")
    parser.add_argument("--items", type=int, default=50_000, help="of the memory of an item (default: 50000)")
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that always run beside (default: 0)"
    )
    parser.add_argument("--flags", default="", help="further flags of rmemcached, in one word, for example --flags=-vv")
    parser.add_argument(
        "--expected", metavar="FILE", default=str(EXPECTED), help="default: expected.json of the sources"
    )
    parser.add_argument("--record", action="store_true", help="write this machine's record into that file instead")
    parser.add_argument("--runs", type=int, default=6, help="that --record makes (default: 6)")


# ---- the measurement -------------------------------------------------------------------------------------------------


def case_of(name: str) -> Case:
    operation, depth, keys = OVER_TCP.get(name, ("get", 1, 1))
    said = {"operation": operation, "depth": depth, "multiget": keys, "size": SIZE}
    said |= {"connections": CONNECTIONS, "stored": cpu.keys_of(SIZE)}
    peer = {ASKS_NOBODY: CALL, START: memory.BARE, ITEM: memory.BYTES}.get(name, TCP)
    figure = BYTES if name in (START, ITEM) else CPU
    return Case(name, said if figure is CPU else {}, (figure,), {OURS: peer, "memcached": peer}, group="selection")


def only(run: Run, figure: Figure) -> Run:
    """Returns the same run, with this figure only."""
    return lambda number: Taken({figure.name: run(number).values[figure.name]})


def calls(client: Any) -> Run:
    """CPU time of this thread for a get."""

    def run(number: int) -> Taken:
        get, count = client.get, CALLS if number else CALLS // 10
        begin = time.thread_time()
        for _ in range(count):
            got = get(KEY)
        spent = time.thread_time() - begin
        if got != VALUE:
            raise ValueError("get: a wrong value came back")
        return Taken({CPU.name: spent / count * 1e6})

    return run


def start_figures(options: argparse.Namespace, server: Server) -> dict[str, float]:
    found = {START: float(server.resident_bytes())}
    if ITEM in options.cases:
        found[ITEM] = memory.measure_items(server, options.items)["item_resident_bytes"]
    return found


def memory_samples(options: argparse.Namespace, flags: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """(case, contender, bytes) of newly started servers."""
    with start_rmemcached("-t", "1", "-m", "64", *flags) as server:
        for case, value in start_figures(options, server).items():
            yield case, OURS, value
    if memcached_path() is not None:
        with start_memcached("-t", "1", "-m", "64") as server:
            for case, value in start_figures(options, server).items():
                yield case, "memcached", value
    bare = memory.floors(options)
    yield START, memory.BARE, bare[memory.BARE]["resident_bytes"]
    if memory.BYTES in bare:
        yield ITEM, memory.BYTES, bare[memory.BYTES]["item_resident_bytes"]


def measure_memory(options: argparse.Namespace, flags: Sequence[str], record: Record) -> None:
    record.floor(memory.BARE, "a Python that only listens")
    record.floor(memory.BYTES, f"{memory.KEY} B of key, {memory.VALUE} B of value, {memory.HEADER} B of header")
    taken = list(memory_samples(options, flags))
    for name in (START, ITEM):
        if name in options.cases:
            samples = [
                record.round.sample(name, who, turn, {BYTES.name: value})
                for turn, (case, who, value) in enumerate(taken, 1)
                if case == name
            ]
            record.case(case_of(name), samples)


def measure(options: argparse.Namespace, record: Record) -> None:
    """Measures a round for command.measure_round, in the round's process. Raises the errors of errors.EXPECTED."""
    flags = options.flags.split()
    steps = record.steps(len(options.cases) * 3 * runs_of(record.round))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stack.enter_context(busy(options.busy))
        ours = stack.enter_context(start_rmemcached(*cpu.FLAGS, "-o", "rdma_direct", *flags))
        servers = {OURS: stack.enter_context(start_rmemcached(*cpu.FLAGS, *flags))}
        if memcached_path() is not None:
            servers["memcached"] = stack.enter_context(start_memcached(*cpu.FLAGS))
        add_contenders(record, servers)
        everywhere = placement("any")[1]
        echo = stack.enter_context(floor_servers((TCP,), folder, everywhere, False, record))[TCP]
        cpu.fill_all(servers, cpu.keys_of(SIZE), SIZE)
        for name in options.cases:
            case = case_of(name)
            with contextlib.ExitStack() as connected:
                runs = runs_of_case(name, options, servers, echo, ours, connected, record)
                if runs:
                    record.case(case, take_turns(case, runs, record.round, steps))
    if set(options.cases) & {START, ITEM}:
        measure_memory(options, flags, record)


def runs_of_case(
    name: str,
    options: argparse.Namespace,
    servers: dict[str, Server],
    echo: Server,
    ours: Server,
    stack: contextlib.ExitStack,
    record: Record,
) -> dict[str, Run]:
    """{contender: its run} of a case over sockets or queue pairs, or of calls."""
    if name in OVER_TCP:
        case = case_of(name)
        made = {who: cpu.run_of(server, case, options.seconds, False) for who, server in servers.items()}
        made[TCP] = cpu.run_of(echo, case, options.seconds, True)
    elif name == ASKS_NOBODY:
        record.floor(CALL, TEXTS[CALL])
        client = Client(ours.address, timeout=30, default_noreply=False, transport="soft_shm")
        stack.enter_context(contextlib.closing(client))
        client.set(KEY, VALUE)
        copier = _floor.Copier(SIZE)
        copier.set(KEY, VALUE)
        return {OURS: calls(client), CALL: calls(copier)}
    else:
        return {}
    return {who: only(run, CPU) for who, run in made.items()}


def add_contenders(record: Record, servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        version = __version__ if name == OURS else server.stats()["version"]
        record.contender(
            {
                "name": name,
                "server": f"{name} {version}",
                "client": "at C speed over TCP; rmemcached.client, which reads the items",
                "command": server.command,
                "floor": False,
            }
        )


# ---- the records -----------------------------------------------------------------------------------------------------


def peers(found: Document) -> dict[str, str]:
    """{peer of our ratios: its version}. A floor has none."""
    return {
        known["name"]: "" if known["floor"] else known["server"]
        for known in found["contenders"]
        if known["name"] != OURS
    }


def ratios(found: Document) -> dict[tuple[str, str], list[float]]:
    """{(case, peer): our ratios to the peer, round by round}"""
    made = {}
    for case in found["cases"]:
        figure = case["figures"][0]["name"]
        ours = values_of(found, case["name"], OURS, figure)
        for peer in peers(found):
            theirs = values_of(found, case["name"], peer, figure)
            if theirs and len(theirs) == len(ours) and (paired := estimate.ratios(ours, theirs)):
                made[case["name"], peer] = paired
    return made


def kind_of(found: Document) -> str:
    """The kind of machine of a run: everything besides the build with influence on its ratios."""
    here = found["machine"]
    # On a single core the clients' requests come in batches.
    return f"{here['cpu']}, {here['python'].rpartition('.')[0]}{', one core' if here['cores'] == 1 else ''}"


def recorded(documents: Sequence[Document]) -> dict[str, Any]:
    """The record of this machine, from several runs."""
    versions = peers(documents[0])
    taken = [ratios(found) for found in documents]
    lines = []
    for case, peer in taken[0]:
        medians = [statistics.median(each[case, peer]) for each in taken]
        ratio = statistics.median(medians)
        apart = max(abs(median / ratio - 1) for median in medians)
        spread = max(LEAST_SPREAD[case], MARGIN * apart)
        lines.append(
            {"case": case, "to": peer, "version": versions[peer], "ratio": round(ratio, 3), "spread": round(spread, 3)}
        )
    return {"machine": kind_of(documents[0]), "runs": len(documents), "ratios": lines}


def read_expected(path: str) -> list[dict[str, Any]]:
    """The records, a record for each kind of machine. Raises BenchError."""
    try:
        records = json.loads(Path(path).read_text())["records"]
        if not records or len({record["machine"] for record in records}) < len(records):
            raise ValueError("it has no record, or two of one machine")
        for line in (line for record in records for line in record["ratios"]):
            if not (line.keys() >= {"to", "version"} and line["case"] in CASES and line["ratio"] > 0 < line["spread"]):
                raise ValueError("a ratio lacks something")
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; --record makes it") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path} was not written by --record: {error}; remove it, and --record makes it") from error
    return list(records)


def write_expected(path: str, documents: Sequence[Document]) -> None:
    """Adds or replaces the record of this machine. Raises BenchError."""
    new = recorded(documents)
    others = read_expected(path) if Path(path).exists() else []
    records = [new, *(record for record in others if record["machine"] != new["machine"])]
    records.sort(key=lambda record: str(record["machine"]))
    write_text(path, json.dumps({"records": records}, indent=1) + "\n")


def limits(found: Document, records: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The ratios for judging a run: (its machine's record, ""), or (the most lenient of all records, a message)."""
    here = kind_of(found)
    for record in records:
        if record["machine"] == here:
            return record["ratios"], ""
    versions = peers(found)
    lenient: dict[tuple[str, str], dict[str, Any]] = {}
    for line in (line for record in records for line in record["ratios"]):
        case, peer = line["case"], line["to"]
        line = line | {"spread": max(line["spread"], UNKNOWN_SPREAD[case])}

        def leniency(line: dict[str, Any], peer: str = peer) -> tuple[bool, float]:
            return versions.get(peer) == line["version"], line["ratio"] * (1 + line["spread"])

        lenient[case, peer] = max(lenient.get((case, peer), line), line, key=leniency)
    said = f"no record of {here}: judged leniently, by those of {'; '.join(record['machine'] for record in records)}"
    return list(lenient.values()), f"{said}; --record adds one"


def judge(found: Document, records: Sequence[dict[str, Any]], cases: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (a line for each ratio of these cases, the worse cases). Raises BenchError for a case without a ratio.

    A case is worse only if all its ratios are. A busy neighbour changes some ratios; a change of ours changes all. The
    ratio to memcached is left out if memcached has another version than in the record.
    """
    taken, versions = ratios(found), peers(found)
    expected, said = limits(found, records)
    lines = [said] if said else []
    judged: dict[str, list[bool]] = {}
    for line in expected:
        case, peer = line["case"], line["to"]
        if case not in cases:
            continue
        if versions.get(peer) != line["version"]:
            lines.append(f"not judged: {case}: recorded beside {line['version']}, here is {versions.get(peer, 'none')}")
            continue
        if (case, peer) not in taken:
            raise BenchError(f"{case}: the run has no ratio to {peer}, and expected.json does")
        ratio, limit = statistics.median(taken[case, peer]), line["ratio"] * (1 + line["spread"])
        word = "WORSE" if ratio > limit else "ok"
        lines.append(f"{word}: {case}: {ratio:.3f} of {peer}, recorded {line['ratio']:.3f}, at most {limit:.3f}")
        judged.setdefault(case, []).append(ratio > limit)
    for case in cases:
        if case not in judged:
            raise BenchError(f"{case}: expected.json has no ratio of it; --record writes all")
    return lines, [case for case in judged if all(judged[case])]


def faster(found: Document, records: Sequence[dict[str, Any]]) -> list[str]:
    """The ratios better than this machine's record by more than their spread: candidates for a new record."""
    taken = ratios(found)
    expected, unknown = limits(found, records)
    return [
        f"better than recorded: {line['case']}: {statistics.median(taken[which]):.3f} of {line['to']},"
        f" recorded {line['ratio']:.3f}; --record keeps it"
        for line in ([] if unknown else expected)
        if (which := (line["case"], line["to"])) in taken
        and peers(found)[line["to"]] == line["version"]
        and statistics.median(taken[which]) < line["ratio"] * (1 - line["spread"])
    ]

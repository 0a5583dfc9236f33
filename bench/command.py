"""The command rmemcached-bench: measures rmemcached and memcached in turns, and says how sure the result is."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from rmemcached.bench import (
    connections,
    cpu,
    document,
    hitratio,
    latency,
    memory,
    paced,
    page,
    plots,
    table,
    throughput,
    verdict,
)
from rmemcached.bench.contenders import GRAMMAR, parse_contenders, reference_of
from rmemcached.bench.document import Document, Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.servers import StartError

SUBCOMMANDS: dict[str, ModuleType] = {
    "latency": latency,
    "paced": paced,
    "cpu": cpu,
    "throughput": throughput,
    "connections": connections,
    "memory": memory,
    "hitratio": hitratio,
}
ROUNDS = {"memory": 3, "hitratio": 1}
USUAL_ROUNDS = 7


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rmemcached-bench", description=__doc__)
    parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, module in SUBCOMMANDS.items():
        sub = parsers.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(sub)
        add_common(sub, name, module)
    sub = parsers.add_parser(
        "compare",
        help="two files of --json: what became better or worse",
        description=verdict.__doc__,
        epilog="The exit status is 1 when anything became worse.",
    )
    sub.add_argument("first", metavar="A.json")
    sub.add_argument("second", metavar="B.json")
    sub.add_argument("--absolute", action="store_true", help="the figures themselves, not ratios to the reference")
    sub.add_argument(
        "--least", type=float, default=3.0, metavar="PERCENT", help="a difference that counts at all (default: 3)"
    )
    return parser


def add_common(parser: argparse.ArgumentParser, name: str, module: ModuleType) -> None:
    rounds = ROUNDS.get(name, USUAL_ROUNDS)
    grammar = getattr(module, "GRAMMAR", GRAMMAR)
    parser.add_argument(
        "--contenders",
        type=getattr(module, "parse_contenders", parse_contenders),
        metavar="NAMES",
        help=f"{grammar} (default: those of {','.join(module.CONTENDERS)} that are installed)",
    )
    parser.add_argument("--reference", metavar="NAME", help="the contender that ratios are given to")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"runs of each contender (default: {rounds})")
    parser.add_argument("--json", metavar="FILE", help="write everything there; - for stdout, without the table")
    parser.add_argument("--html", metavar="FILE", help="write a page with tables and plots that needs nothing else")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the medians against the first parameter that varies")


def check_outputs(options: argparse.Namespace) -> None:
    """Raises BenchError for a file that could not be written, before anything is measured."""
    for name in (options.json, options.html, options.plot):
        if name and name != "-":
            folder = os.path.dirname(name) or "."
            if not os.path.isdir(folder):
                raise BenchError(f"{name}: there is no folder {folder}")
            if os.path.isdir(name) or not os.access(name if os.path.exists(name) else folder, os.W_OK):
                raise BenchError(f"{name}: it cannot be written")
    if options.plot and not options.plot.endswith(".svg"):
        raise BenchError(f"--plot {options.plot}: it draws .svg only")


def measured(options: argparse.Namespace, command: Sequence[str]) -> Document:
    """Runs a subcommand that measures. Raises BenchError, StartError, OSError, ValueError."""
    module = SUBCOMMANDS[options.subcommand]
    if options.rounds < 1:
        raise BenchError("--rounds is at least 1")
    check_outputs(options)
    if options.contenders is None:
        options.contenders = module.contenders()
        absent = set(module.CONTENDERS) - {contender.name for contender in options.contenders}
        if absent:
            print(f"without {', '.join(sorted(absent))}: not installed", file=sys.stderr)
    record = Record(options.subcommand, command, reference_of(options.contenders, options.reference))
    module.measure(options, record)
    return record.finished()


def put_out(options: argparse.Namespace, result: Document) -> None:
    """Writes what the options name, and the table unless --json took stdout. Raises BenchError."""
    if options.json == "-":
        print(json.dumps(result, indent=1))
    else:
        print(table.text(result))
    if options.json and options.json != "-":
        document.write(options.json, result)
    if options.html:
        document.write_text(options.html, page.html(result))
    if options.plot:
        drawn = plots.against(result) or plots.bars(result)
        document.write_text(options.plot, drawn[0][1] + "\n")


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if options.subcommand == "compare":
        first, second = document.read(options.first), document.read(options.second)
        found = verdict.compare(first, second, options.absolute, options.least / 100)
        print(verdict.text(found, options.absolute))
        return 1 if verdict.worse(found) else 0
    result = measured(options, command)
    put_out(options, result)
    judge = getattr(SUBCOMMANDS[options.subcommand], "missed", None)
    missed = judge(result, options) if judge else []
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    options = make_parser().parse_args(given)
    try:
        return run(options, given)
    except (BenchError, StartError, ConnectionError, TimeoutError, ChildProcessError, ValueError) as error:
        print(f"rmemcached-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130

"""The command rmemcached-bench: measures rmemcached and memcached in turns, and says how sure the result is."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from rmemcached import __version__
from rmemcached.bench import (
    bounds,
    client,
    connections,
    cpu,
    direct,
    document,
    estimate,
    fabrics,
    figures,
    hitratio,
    latency,
    load,
    memory,
    paced,
    page,
    plots,
    realuse,
    rounds,
    selection,
    survives,
    table,
    throughput,
    verdict,
)
from rmemcached.bench.arguments import check_numbers, names_of
from rmemcached.bench.contenders import GRAMMAR, parse_contenders, reference_of
from rmemcached.bench.document import Document, Record
from rmemcached.bench.errors import EXPECTED, BenchError, text_of
from rmemcached.bench.measure import Round

# The modules of the subcommands that measure. Each has HELP, add_arguments and measure; and either REFERENCE, or
# CONTENDERS and contenders for the option --contenders. The other names that getattr looks for here are optional.
SUBCOMMANDS: dict[str, ModuleType] = {
    "latency": latency,
    "paced": paced,
    "cpu": cpu,
    "throughput": throughput,
    "load": load,
    "connections": connections,
    "memory": memory,
    "hitratio": hitratio,
    "direct": direct,
    "fabrics": fabrics,
    "clients": client,
    "realuse": realuse,
    "bounds": bounds,
    "survives": survives,
    "selection": selection,
}
# `selection` passes a judgement, and is not part of the report.
SHOWN = [name for name in SUBCOMMANDS if name != "selection"]
# The options of the subcommands in `all --quick`.
QUICK = {
    "latency": "--sizes 100,64k --seconds 0.05 --rounds 5",
    "paced": "--think 0,1000 --seconds 0.1 --rounds 5",
    "cpu": "--seconds 0.2 --rounds 5",
    "throughput": "--keys 1000 --seconds 0.1 --rounds 5",
    "load": "--keys 1000 --seconds 0.2 --warm-up 0.1 --rounds 5",
    "connections": "--connections 10,100 --seconds 0.1 --rounds 5",
    "memory": "--items 100000 --connections 500 --rounds 1",
    "hitratio": "--megabytes 4 --keys 20000 --requests 60000 --largest 2000",
    "direct": "--seconds 0.05 --items 100000 --rounds 5",
    "fabrics": "--iterations 500 --idle 100 --rounds 5",
    "clients": "--parts plain,async --seconds 0.02 --rounds 5",
    "bounds": "--seconds 0.03 --items 20000 --rounds 1 --turns 1",
    "realuse": "--seconds 0.02 --large 1m --threads 2 --sizes 64k --sharers 4 --cores any --rounds 5",
    "survives": "--items 100000 --seconds 0.1 --connections 200 --rounds 1",
}
# Options of `all` without --quick: a run takes a quarter of an hour.
WHOLE = {
    "latency": "--rounds 5",
    "paced": "--think 0,100,1000 --seconds 0.2 --rounds 5",
    "cpu": "--seconds 0.4",
    "throughput": "--seconds 0.3 --rounds 5",
    "load": "--workload etc --keys 100000 --rates 0,10000 --seconds 1 --rounds 5",
    "connections": "--seconds 0.3 --rounds 5",
    "memory": "",
    "hitratio": "--megabytes 32 --keys 200000 --requests 800000",
    "direct": "--seconds 0.15",
    "fabrics": "--rounds 5",
    "clients": "--seconds 0.08 --rounds 5",
    "realuse": "--seconds 0.1 --large 1m,64m --sizes 4k,64k,1m --threads 1,2,4 --sharers 1,4,16",
    "bounds": "--seconds 0.1 --rounds 5",
    "survives": "--items 300000 --seconds 0.3",
}
EPILOG = "SUBCOMMAND --help says what it measures, and with which options. docs/benchmarks.md says how it measures."
ROUNDS = {"memory": 3, "hitratio": 1, "direct": 5, "realuse": 5, "bounds": 5, "survives": 5, "selection": 5}
USUAL_ROUNDS = 7


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rmemcached-bench", description=__doc__, epilog=EPILOG)
    parser.add_argument("-V", "--version", action="version", version=f"rmemcached-bench {__version__}")
    parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, module in SUBCOMMANDS.items():
        sub = parsers.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(sub)
        add_common(sub, name, module)
    sub = parsers.add_parser(
        "all", help="all of these but selection and figures, into a folder", description=run_all.__doc__
    )
    sub.add_argument("folder", metavar="FOLDER", help="for SUBCOMMAND.json, and report.html")
    sub.add_argument("--only", type=names_of(SHOWN), default=SHOWN, metavar="SUBCOMMANDS")
    sub.add_argument("--quick", action="store_true", help="a small selection with short runs, in some minutes")
    sub.add_argument("--memcached", metavar="PATH", help="the memcached to compare with (default: the installed one)")
    sub = parsers.add_parser(
        "show",
        help="a file of --json: its table, as text or Markdown; its page; its plot",
        description="Prints what a run that was written by --json has found, and draws it.",
    )
    sub.add_argument("json", metavar="FILE.json")
    sub.add_argument("--markdown", action="store_true", help="tables of Markdown, for documentation")
    sub.add_argument("--html", metavar="FILE", help="write a page with tables and plots that needs nothing else")
    sub.add_argument("--plot", metavar="FILE.svg", help="draw the medians against what varies")
    sub = parsers.add_parser(
        "figures",
        help=figures.HELP,
        description=figures.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    figures.add_arguments(sub)
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


def makes(name: str) -> set[str]:
    """The options that a subcommand defines itself."""
    parser = argparse.ArgumentParser()
    SUBCOMMANDS[name].add_arguments(parser)
    return {option for action in parser._actions for option in action.option_strings}


def chooses(module: ModuleType) -> bool:
    """Whether a subcommand's contenders can be chosen."""
    return hasattr(module, "contenders")


def takes_turns(module: ModuleType) -> bool:
    """Whether a contender can do a case more than once in a round."""
    return getattr(module, "TURNS", True) and chooses(module)


def add_common(parser: argparse.ArgumentParser, name: str, module: ModuleType) -> None:
    usual = ROUNDS.get(name, USUAL_ROUNDS)
    grammar = getattr(module, "GRAMMAR", GRAMMAR)
    parser.add_argument(
        "--rounds", type=int, default=usual, help=f"each with servers and clients of its own (default: {usual})"
    )
    parser.add_argument("--seed", type=int, help="of the orders of contenders (default: drawn, and written down)")
    if takes_turns(module):
        parser.add_argument(
            "--turns", type=int, default=1, help="runs of each contender for a case in a round (default: 1)"
        )
    parser.add_argument("--json", metavar="FILE", help="write everything there; - for stdout, without the table")
    parser.add_argument("--html", metavar="FILE", help="write a page with tables and plots that needs nothing else")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the medians against what varies")
    if not chooses(module):
        return
    parser.add_argument(
        "--contenders",
        type=getattr(module, "parse_contenders", parse_contenders),
        metavar="NAMES",
        help=f"{grammar} (default: those of {','.join(module.CONTENDERS)} that are installed)",
    )
    parser.add_argument("--reference", metavar="NAME", help="the contender that ratios are given to")


def check_outputs(options: argparse.Namespace) -> None:
    """Raises BenchError for a file without permission to write, before the measurement."""
    for name in (options.json, options.html, options.plot):
        if name and name != "-":
            folder = os.path.dirname(name) or "."
            if not os.path.isdir(folder):
                raise BenchError(f"{name}: there is no folder {folder}")
            if os.path.isdir(name) or not os.access(name if os.path.exists(name) else folder, os.W_OK):
                raise BenchError(f"{name}: it cannot be written")
    written = [os.path.realpath(name) for name in (options.json, options.html, options.plot) if name]
    if len(set(written)) < len(written):
        raise BenchError("--json, --html and --plot name a file twice")
    if options.plot and not options.plot.endswith(".svg"):
        raise BenchError(f"--plot {options.plot}: it draws .svg only")


def prepared(options: argparse.Namespace) -> str:
    """Fills in the contenders; returns the reference. Raises BenchError."""
    module = SUBCOMMANDS[options.subcommand]
    if not chooses(module):
        return str(module.REFERENCE)
    aimed = getattr(module, "aimed", None)
    if aimed and (found := aimed(options)):
        options.contenders = found
    if options.contenders is None:
        options.contenders = module.contenders()
    return reference_of(options.contenders, options.reference)


def measured(options: argparse.Namespace, command: Sequence[str]) -> Document:
    """Runs a measuring subcommand. Raises BenchError, ChildProcessError, OSError."""
    module = SUBCOMMANDS[options.subcommand]
    turns = getattr(options, "turns", 1)
    check_numbers(options, getattr(module, "AT_LEAST", {}))
    check_outputs(options)
    chosen = options.subcommand == "load" and options.server is not None
    chosen = chosen or (chooses(module) and options.contenders is not None)
    reference = prepared(options)
    if chooses(module) and not chosen:
        absent = set(module.CONTENDERS) - {contender.name for contender in options.contenders}
        if absent:
            print(f"without {', '.join(sorted(absent))}: not installed", file=sys.stderr)
    seed = rounds.draw_seed() if options.seed is None else options.seed
    record = Record(options.subcommand, command, reference, seed)
    running = chooses(module) and any(contender.server == "running" for contender in options.contenders)
    rounds.measure(command, options.rounds, turns, record, alone=not running)
    if chooses(module):
        record.arrange([contender.name for contender in options.contenders])
    return record.finished()


def measure_round(command: Sequence[str], now: Round, report: Callable[[float, str], None]) -> Document:
    """Measures a round in this process. Raises the errors of errors.EXPECTED."""
    options = make_parser().parse_args(command)
    if options.subcommand == "figures":
        return figures.measure_round(options, command, now, report)
    record = Record(options.subcommand, command, prepared(options), now.seed, now, report)
    SUBCOMMANDS[options.subcommand].measure(options, record)
    return record.measured()


def put_out(options: argparse.Namespace, result: Document) -> None:
    """Writes the files of the options, and then the table unless --json took stdout. Raises BenchError."""
    if options.json and options.json != "-":
        document.write(options.json, result)
    draw(options, result)
    document.say(json.dumps(result, indent=1) if options.json == "-" else table.text(result, table.terminal()))


def draw(options: argparse.Namespace, result: Document) -> None:
    """Writes the page and the plot of the options. Raises BenchError."""
    if options.html:
        document.write_text(options.html, page.html(result))
    if options.plot:
        drawn = plots.against(result) or plots.bars(result)
        document.write_text(options.plot, plots.stacked([picture for _, picture in drawn]) + "\n")


def missed_limits(options: argparse.Namespace, result: Document) -> bool:
    """Whether bounds of the cases, or limits of the subcommand, are missed. Prints them, and the undecided bounds."""
    judge = getattr(SUBCOMMANDS[options.subcommand], "missed", None)
    missed = [*table.bounds(result, estimate.MISSED), *(judge(result, options) if judge else ())]
    for line in [*table.bounds(result, estimate.UNDECIDED), *missed]:
        print(line, file=sys.stderr)
    return bool(missed)


def run_all(options: argparse.Namespace) -> int:
    """Runs the subcommands that measure, one after the other, and writes a page of all.

    After a failure or an interruption the page has the finished subcommands. Raises BenchError.
    """
    folder = options.folder
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise BenchError(f"{folder}: {error.strerror}") from error
    check_outputs(argparse.Namespace(json=None, html=f"{folder}/report.html", plot=None))
    results: list[Document] = []
    try:
        return run_each(options, results)
    finally:
        if results:
            document.write_text(f"{folder}/report.html", page.html(*results))


def run_each(options: argparse.Namespace, results: list[Document]) -> int:
    """The subcommands of `all`. Adds their results to the list. Raises BenchError."""
    parser, folder, missed = make_parser(), options.folder, False
    for name in options.only:
        words = [name, *(QUICK if options.quick else WHOLE)[name].split(), "--json", f"{folder}/{name}.json"]
        if options.memcached and not chooses(SUBCOMMANDS[name]) and "--memcached" in makes(name):
            words += ["--memcached", options.memcached]
        elif options.memcached and chooses(SUBCOMMANDS[name]):
            theirs = f"memcached={options.memcached}"
            chosen = [other.replace("memcached", theirs, 1) for other in SUBCOMMANDS[name].CONTENDERS]
            # Only the names of memcached's contenders contain "memcached", so no other name has changed.
            words += ["--contenders", ",".join(chosen)]
        asked = parser.parse_args(words)
        results.append(measured(asked, words))
        put_out(asked, results[-1])
        document.say("")
        missed |= missed_limits(asked, results[-1])
    return 1 if missed else 0


def run_selection(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Compares with the recorded run, or records. Raises BenchError."""
    if options.record:
        if options.runs < 2 or set(options.cases) != set(selection.CASES):
            raise BenchError("--record takes at least 2 --runs, of all cases")
        if os.path.exists(options.expected):
            selection.read_expected(options.expected)  # an error is raised now, not after minutes of measuring
        # Half of the runs are beside busy cores, since a later run may be, too.
        busy = os.cpu_count() or 1
        words = [[*command, "--busy", str(busy if number % 2 else options.busy)] for number in range(options.runs)]
        found = [measured(options, each) for each in words]
        selection.write_expected(options.expected, found)
        document.say(f"written: {options.expected}")
        return 0
    expected = selection.read_expected(options.expected)
    result = measured(options, command)
    put_out(options, result)
    lines, worse = selection.judge(result, expected, options.cases)
    lines += selection.faster(result, expected)
    print("\n".join(["", *lines]), file=sys.stderr)
    if worse:
        print(f"once more, in {2 * options.rounds} rounds: {'; '.join(worse)}", file=sys.stderr)
        options.rounds *= 2
        again = measured(options, [*command, "--cases", *worse])
        lines, worse = selection.judge(again, expected, worse)
        print("\n".join(lines), file=sys.stderr)
    return 1 if worse else 0


def show(options: argparse.Namespace) -> int:
    """Prints a document from a file. Raises BenchError."""
    result = document.read(options.json)
    check_outputs(argparse.Namespace(json=None, html=options.html, plot=options.plot))
    with document.undamaged(options.json):
        draw(options, result)
        text = table.markdown(result) if options.markdown else table.text(result, table.terminal())
    document.say(text)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Compares two documents from files. Raises BenchError."""
    check_numbers(options, {"least": 0})
    first, second = document.read(options.first), document.read(options.second)
    with document.undamaged(options.first, options.second):
        found = verdict.compare(first, second, options.absolute, options.least / 100)
        cautions = verdict.cautions(first, second)
    for line in cautions:
        print(line, file=sys.stderr)
    document.say(verdict.text(found, options.absolute))
    return 1 if verdict.worse(found) else 0


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if options.subcommand == "show":
        return show(options)
    if options.subcommand == "selection":
        return run_selection(options, command)
    if options.subcommand == "all":
        return run_all(options)
    if options.subcommand == "figures":
        return figures.run(options, command)
    if options.subcommand == "compare":
        return compare(options)
    result = measured(options, command)
    put_out(options, result)
    return 1 if missed_limits(options, result) else 0


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    options = make_parser().parse_args(given)
    try:
        return run(options, given)
    except BrokenPipeError:
        return 1  # the reader of the table has gone
    except EXPECTED as error:
        print(f"rmemcached-bench: {text_of(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130

"""`rmemcached-bench figures`: figures of papers about RDMA and memcached, drawn with rmemcached.

A figure is named by its paper and its number there. Each is measured as the other subcommands measure: in rounds with
processes of their own, in turns, after a warm-up, as ratios in one round. docs/figures.md compares the originals with
the results. A figure that cannot be drawn is named with its reason; the exit status is 1 when the command line names
such a figure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rmemcached.bench import document, figure_clients, figure_devices, figure_page, figure_siw, page, rounds, table
from rmemcached.bench.arguments import check_numbers
from rmemcached.bench.contenders import default_contenders, reference_of
from rmemcached.bench.document import Document, Record
from rmemcached.bench.drawing import Drawing, Effort, Paper
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Round

Documents = tuple[dict[str, Document], dict[str, str]]

HELP = "figures of papers about RDMA and memcached, drawn with rmemcached"
ROUNDS, QUICK_ROUNDS = 7, 2
PAPERS = {
    "raas": Paper(
        "Toward Deploying Scalable and Effective RDMA as a Service at End-hosts through Reliable Connection",
        "authors withheld for review, paper 1570477397",
        "RaaS on four hosts with 24 cores and 40 Gb/s RoCE each, beside native verbs and TCP",
    ),
    "usiw": Paper(
        "USIW: Design and Implementation of Userspace Software iWARP using DPDK",
        "P. I. MacArthur, IBM Research report RZ 3894, 2016",
        "iWARP over UDP in user space, by DPDK, beside siw in the kernel",
    ),
    "rddp": Paper(
        "Supporting RDMA capable network compatibility and features for regular network adapters",
        "P. Balaji, H.-W. Jin, K. Vaidyanathan and D. K. Panda, report OSU-CISRC-6/05-TR37, 2005",
        "DDP in software, in user space and in the kernel, beside TCP over Gigabit Ethernet",
    ),
}
MADE = (*figure_devices.DRAWINGS, *figure_clients.DRAWINGS, *figure_siw.DRAWINGS)
DRAWINGS: dict[str, Drawing] = {
    drawing.name: drawing
    for drawing in sorted(
        MADE, key=lambda made: (list(PAPERS).index(made.paper), made.title.partition(":")[0].split()[-1].zfill(4))
    )
}
OTHER_PROGRAM = "it shows another program on RaaS, which rmemcached has no part in"
UNDRAWN = {
    "raas-10": "it compares clusters of two hosts and more; everything here runs on one",
    "raas-12": "it shows remote atomics, which the software RNIC does not have",
    "raas-13": f"{OTHER_PROGRAM}: gRPC",
    "raas-14": f"{OTHER_PROGRAM}: gRPC",
    "raas-15": f"{OTHER_PROGRAM}: ps-lite",
    "raas-16": f"{OTHER_PROGRAM}: ps-lite",
    "raas-17": f"{OTHER_PROGRAM}: MXNet",
    "raas-19": f"{OTHER_PROGRAM}: XtraBackup",
    "raas-20": f"{OTHER_PROGRAM}: XtraBackup",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(DRAWINGS)} (default: all)")
    parser.add_argument(
        "--list", action="store_true", help="say what there is, what it lacks, and what cannot be drawn"
    )
    parser.add_argument("--quick", action="store_true", help="few sizes with short runs, in less than two minutes")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"each with servers and clients of its own (default: {ROUNDS}; quick: {QUICK_ROUNDS})",
    )
    parser.add_argument("--seed", type=int, help="of the orders of contenders (default: drawn, and written down)")
    parser.add_argument("--memcached", default="", metavar="PATH", help="the memcached beside (default: the installed)")
    parser.add_argument(
        "--netem", default="", metavar="DEVICE", help="a network device that may lose packets meanwhile, for rddp-loss"
    )
    parser.add_argument("--folder", metavar="FOLDER", help="for NAME.json, NAME.svg, and report.html")
    parser.add_argument("--from", dest="source", metavar="FOLDER", help="measure nothing: take FOLDER's NAME.json")
    parser.add_argument(
        "--write", metavar="DOCS", help="put pictures and tables into DOCS/figures.md and its folder pictures"
    )


def chosen(names: Sequence[str]) -> list[Drawing]:
    """The drawings of these names; all without names. Raises BenchError."""
    for name in names:
        if name in UNDRAWN:
            raise BenchError(f"{name} cannot be drawn: {UNDRAWN[name]}")
        if name not in DRAWINGS:
            raise BenchError(f"{name!r} is no figure: {', '.join(DRAWINGS)}")
    return [drawing for name, drawing in DRAWINGS.items() if not names or name in names]


def listing(effort: Effort) -> str:
    """A text with all figures."""
    lines: list[str] = []
    for key, paper in PAPERS.items():
        lines += [f"{key}: {paper.title} ({paper.authors})"]
        for drawing in DRAWINGS.values():
            if drawing.paper == key:
                lines.append(f"  {drawing.name}: {drawing.title}")
                lines += [f"    lacks: {lack}" for lack in drawing.lacks]
                if found := drawing.obstacle(effort):
                    lines.append(f"    not here: {found}")
        lines += [f"  {name}: not drawn: {why}" for name, why in UNDRAWN.items() if name.partition("-")[0] == key]
    return "\n".join(lines)


def effort_of(options: argparse.Namespace) -> Effort:
    return Effort(options.quick, options.memcached, options.netem)


def measured(drawing: Drawing, options: argparse.Namespace, command: Sequence[str], load: float) -> Document:
    """Draws a figure. load: the machine's before the first figure, since figures add to it. Raises BenchError,
    ChildProcessError."""
    reference = drawing.reference or reference_of(default_contenders(("memcached", "tcp")), None)
    if options.memcached and not drawing.reference:
        reference = "memcached"
    record = Record(
        f"figures {drawing.name}", command, reference, rounds.draw_seed() if options.seed is None else options.seed
    )
    paper = PAPERS[drawing.paper]
    record.document["machine"]["load"] = load
    record.document["axis"] = drawing.axis
    record.document["method"] = list(drawing.method)
    record.document["notes"].append(f"{drawing.title}, of: {paper.title} ({paper.authors}).")
    record.document["notes"] += [f"Not as in the original: {lack}" for lack in drawing.lacks]
    words = ["figures", drawing.name, "--memcached", options.memcached, "--netem", options.netem]
    rounds.measure([*words, *(["--quick"] if options.quick else [])], options.rounds, 1, record)
    return record.finished()


def measure_round(
    options: argparse.Namespace, command: Sequence[str], now: Round, report: Callable[[float, str], None]
) -> Document:
    """Measures a round of a figure in this process. Raises the errors of errors.EXPECTED."""
    (drawing,) = chosen(options.names)
    record = Record("figures", command, drawing.reference, now.seed, now, report)
    drawing.measure(effort_of(options), record)
    return record.measured()


def read(drawings: Sequence[Drawing], folder: str, named: bool) -> dict[str, Document]:
    """The documents of earlier runs. named: each must exist. Raises BenchError."""
    found = {}
    for drawing in drawings:
        path = f"{folder}/{drawing.name}.json"
        if named or os.path.exists(path):
            found[drawing.name] = document.read(path)
    if not found:
        raise BenchError(f"--from {folder}: no figure's file is there")
    return found


def draw(drawings: Sequence[Drawing], options: argparse.Namespace, command: Sequence[str]) -> Documents:
    """({name: document}, {name: reason against drawing})"""
    found: dict[str, Document] = {}
    absent: dict[str, str] = {}
    load = os.getloadavg()[0]
    for drawing in drawings:
        if why := drawing.obstacle(effort_of(options)):
            if options.names:
                raise BenchError(f"{drawing.name} cannot be drawn here: {why}")
            absent[drawing.name] = why
            print(f"without {drawing.name}: {why}", file=sys.stderr)
            continue
        found[drawing.name] = made = measured(drawing, options, command, load)
        if options.folder:
            document.write(f"{options.folder}/{drawing.name}.json", made)
            document.write_text(f"{options.folder}/{drawing.name}.svg", figure_page.picture(made) + "\n")
        document.say(f"{table.text(made, table.terminal())}\n")
    return found, absent


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carries out the command. Raises BenchError."""
    usual = QUICK_ROUNDS if options.quick else ROUNDS
    options.rounds = usual if options.rounds is None else options.rounds
    check_numbers(options, {})
    if options.list:
        document.say(listing(effort_of(options)))
        return 0
    drawings = chosen(options.names)
    if options.write and not (Path(options.write) / figure_page.PAGE).is_file():
        raise BenchError(f"--write {options.write}: there is no {figure_page.PAGE}")
    absent: dict[str, str] = {}
    if options.source:
        found = read(drawings, options.source, bool(options.names))
    else:
        if options.folder:
            try:
                os.makedirs(options.folder, exist_ok=True)
            except OSError as error:
                raise BenchError(f"{options.folder}: {error.strerror}") from error
        found, absent = draw(drawings, options, command)
    if options.folder:
        beyond = figure_page.absent({**absent, **UNDRAWN})
        document.write_text(f"{options.folder}/report.html", page.html(*found.values(), beyond=beyond))
    if options.write:
        figure_page.fill(options.write, found, DRAWINGS)
    return 0

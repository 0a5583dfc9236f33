"""The result of a benchmark: machine, contenders, cases, samples, results. docs/benchmarks.md has the format."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from rmemcached.bench import estimate
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Case, Round, Steps, merged

FORMAT, VERSION = "rmemcached-bench", 2
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p99_9": 99.9}
BOUND = re.compile(r"(<=|>=) ([\d.e-]+)(?: of ((?:(?! and ).)+))?")
HOLDS = {estimate.HELD: True, estimate.MISSED: False}
NEEDED = {
    *("subcommand", "command", "started", "seconds", "machine"),
    *("reference", "contenders", "cases", "samples", "results"),
}

Document = dict[str, Any]


def processor(cpuinfo: str | None = None) -> str:
    """The model of the CPU as the kernel names it, and its numbers: in guests many models share a name."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    first = dict(re.findall(r"^(.+?)\s*: *(.*)$", text.split("\n\n")[0], re.MULTILINE))
    names = ("cpu family", "model", "CPU implementer", "CPU part")
    numbers = [f"{name.removeprefix('cpu ')} {first[name]}" for name in names if name in first]
    name = first.get("model name", platform.machine())
    return f"{name} ({', '.join(numbers)})" if numbers else name


def machine() -> dict[str, Any]:
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": os.getloadavg()[0],
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def unheard(part: float, what: str) -> None:
    """Takes a report of progress, and shows it nowhere."""


class Record:
    """A document in the making.

    `round` is the round under measurement, in its own process; `report` hears of its progress.
    """

    def __init__(
        self,
        subcommand: str,
        command: Sequence[str],
        reference: str,
        seed: int = 1,
        round: Round | None = None,
        report: Callable[[float, str], None] = unheard,
    ) -> None:
        self.begin = monotonic()
        self.round = round or Round()
        self.report = report
        self.document: Document = {
            "format": FORMAT,
            "version": VERSION,
            "subcommand": subcommand,
            "command": ["rmemcached-bench", *command],
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "machine": machine(),
            "seed": seed,
            "reference": reference,
            "notes": [],
            "contenders": [],
            "cases": [],
            "samples": [],
            "results": [],
        }

    def steps(self, count: int) -> Steps:
        """A counter for this round's steps."""
        return Steps(count, self.report)

    def contender(self, described: dict[str, Any]) -> None:
        """Adds a contender, once."""
        if described["name"] not in [known["name"] for known in self.document["contenders"]]:
            self.document["contenders"].append(described)

    def floor(self, name: str, text: str) -> None:
        """Adds a floor with its description."""
        self.contender({"name": name, "server": text, "client": "", "command": [], "floor": True})

    def note(self, text: str) -> None:
        """Adds a further note for the reader, once."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)

    def announce(self, text: str) -> None:
        """Adds a note and prints it at once, unless the document has it already."""
        if text not in self.document["notes"]:
            print(text, file=sys.stderr)
        self.note(text)

    def case(self, case: Case, samples: list[dict[str, Any]]) -> None:
        self.document["cases"].append(case.described())
        self.document["samples"] += samples

    def measured(self) -> Document:
        """The additions of a round: the part of the document for `add`."""
        return {name: self.document[name] for name in ("notes", "contenders", "cases", "samples")}

    def add(self, found: Document) -> None:
        """Adds the measurements of a round. Notes are printed at once."""
        for text in found["notes"]:
            self.announce(text)
        for described in found["contenders"]:
            self.contender(described)
        for case in found["cases"]:
            same = [known for known in self.document["cases"] if known["name"] == case["name"]]
            if not same:
                self.document["cases"].append(case)
        self.document["samples"] += found["samples"]

    def arrange(self, names: Sequence[str]) -> None:
        """Puts the contenders into this order, and the floors behind them."""
        self.document["contenders"].sort(
            key=lambda known: (known["floor"], [*names, known["name"]].index(known["name"]))
        )

    def finished(self) -> Document:
        """The document with its results."""
        self.document["seconds"] = round(monotonic() - self.begin, 1)
        self.document["results"] = results(self.document)
        return self.document


def values_of(document: Document, case: str, contender: str, figure: str) -> list[float]:
    """A figure of a contender, round by round: of several turns in a round the median."""
    found = defaultdict(list)
    for sample in document["samples"]:
        if sample["case"] == case and sample["contender"] == contender and figure in sample["values"]:
            found[sample["round"]].append(sample["values"][figure])
    return [statistics.median(found[number]) for number in sorted(found)]


def histograms_of(document: Document, case: str, contender: str) -> list[str]:
    """The encoded histograms of the latencies in all samples of a contender."""
    return [
        sample["histogram"]
        for sample in document["samples"]
        if sample["case"] == case and sample["contender"] == contender and "histogram" in sample
    ]


def results(document: Document) -> list[dict[str, Any]]:
    """The results of the samples, a row for each case, contender and figure."""
    return [
        row
        for case in document["cases"]
        for contender in document["contenders"]
        for figure in case["figures"]
        if (row := result(document, case, contender["name"], figure["name"]))
    ]


def result(document: Document, case: dict[str, Any], contender: str, figure: str) -> dict[str, Any] | None:
    """The row of a figure; None: this contender has no sample of the figure."""
    values = values_of(document, case["name"], contender, figure)
    if not values:
        return None
    low, high = estimate.quartiles(values)
    median = statistics.median(values)
    row: dict[str, Any] = {
        "case": case["name"],
        "contender": contender,
        "figure": figure,
        "median": median,
        "low_quartile": low,
        "high_quartile": high,
        "ratio": None,
        "interval": None,
        "noise": None,
        "to_floor": None,
    }
    floors = set(case["floors"].values())
    other = values_of(document, case["name"], document["reference"], figure)
    if contender != document["reference"] and contender not in floors and len(other) == len(values):
        paired = estimate.ratios(values, other)
        if paired:
            row["ratio"] = statistics.median(paired)
            row["interval"] = estimate.interval(paired)
            row["noise"] = estimate.within_noise(row["interval"])
    floor = values_of(document, case["name"], case["floors"].get(contender, ""), figure)
    if len(floor) == len(values) and (paired := estimate.ratios(values, floor)):
        row["to_floor"] = statistics.median(paired)
    if figure == case["figures"][0]["name"] and (bound := case.get("bounds", {}).get(contender)):
        row |= judged(document, case["name"], figure, values, bound)
    if figure == case["figures"][0]["name"] and (texts := histograms_of(document, case["name"], contender)):
        total = merged(texts)
        row |= {name: total.get_value_at_percentile(at) / 1000 for name, at in PERCENTILES.items()}
        row["max"] = total.get_max_value() / 1000
    return row


def judged(document: Document, case: str, figure: str, values: list[float], bound: str) -> dict[str, Any]:
    """A row's fields about its bound. of_bound: [low, median, high] of the ratio for each part of the bound."""
    found: dict[str, Any] = {"bound": bound, "verdict": estimate.UNMEASURED, "holds": None, "of_bound": []}
    words = set()
    for sign, limit, other in BOUND.findall(bound):
        others = values_of(document, case, other, figure) if other else [1.0] * len(values)
        ratios = estimate.ratios(values, others) if len(others) == len(values) else []
        if not ratios:
            return found | {"of_bound": []}
        low, median, high = estimate.spread(ratios, bool(other))
        found["of_bound"].append([low, median, high])
        words.add(estimate.judge(low, high, sign, float(limit)))
    for word in (estimate.MISSED, estimate.UNDECIDED, estimate.HELD):
        if word in words:
            return found | {"verdict": word, "holds": HOLDS.get(word)}
    return found


@contextlib.contextmanager
def undamaged(*paths: str) -> Iterator[None]:
    """Names the files when a document lacks a required part. Raises BenchError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise BenchError(f"{' or '.join(paths)} is damaged: {type(error).__name__}: {error}") from error


def read(path: str) -> Document:
    """A document from a file, with its results computed anew. Raises BenchError, one line with the reason."""
    try:
        document = json.loads(Path(path).read_text())
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BenchError(f"{path} was not written by rmemcached-bench --json")
    if document.get("version") != VERSION:
        raise BenchError(f"{path} has version {document.get('version')} of the format; this program reads {VERSION}")
    missing = NEEDED - set(document)
    if missing:
        raise BenchError(f"{path} lacks {', '.join(sorted(missing))}")
    with undamaged(path):
        document["results"] = results(document)
    return document


def write(path: str, document: Document) -> None:
    """Writes the document. Raises BenchError."""
    write_text(path, json.dumps(document, indent=1) + "\n")


def write_text(path: str, text: str) -> None:
    """Replaces an existing file once the new file is whole. Raises BenchError."""
    target = Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():
            target.write_text(text)  # a device, or a pipe
            return
        try:
            new.write_text(text)
            new.replace(target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error


def say(text: str) -> None:
    """Prints the text at once. Raises BenchError; BrokenPipeError when nobody reads."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The rest of the buffer would fail again at the end, so stdout becomes /dev/null.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise
        raise BenchError(f"stdout: {error.strerror}") from error

"""`rmemcached-bench compare`: improvements and losses from one file to another, beyond the spread.

Ratios to the reference are compared, round by round, because times depend on the machine. A change counts when the
exact rank test of Mann and Whitney finds the change among all compared figures (Benjamini and Hochberg, 5 %), and when
the change is larger than --least. With few rounds the test needs many figures; with --rounds 7 or more a single figure
is enough.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rmemcached.bench import estimate
from rmemcached.bench.document import Document, values_of
from rmemcached.bench.errors import BenchError
from rmemcached.bench.table import number

WORSE, BETTER, SAME, UNSURE = "worse", "better", "same", "too few runs"


@dataclass(frozen=True)
class Verdict:
    """The change of a figure from the first file to the second. change: the second median over the first; interval: its
    95 % interval, None with too few rounds."""

    word: str
    case: str
    contender: str
    figure: str
    first: float
    second: float
    change: float
    interval: tuple[float, float] | None = None


def judge(better: str, change: float, certain: bool, least: float) -> str:
    """The word for a change. `least`: the least relative difference of the medians."""
    if not certain or abs(change - 1) < least:
        return SAME
    return BETTER if (change < 1) == (better == "lower") else WORSE


def changed(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """(first median, second median, change)."""
    one, two = statistics.median(first), statistics.median(second)
    return one, two, two / one if one else float("inf") if two else 1.0


def series(document: Document, case: str, contender: str, figure: str, absolute: bool) -> list[float]:
    """A figure round by round, or its ratio to the reference's. Empty without the figure."""
    values = values_of(document, case, contender, figure)
    if absolute:
        return values
    others = values_of(document, case, document["reference"], figure)
    return estimate.ratios(values, others) if len(others) == len(values) else []


def known_figures(document: Document, absolute: bool) -> dict[tuple[str, str, str], str]:
    """{(case, contender, figure): better} of the compared contenders."""
    names = [
        known["name"]
        for known in document["contenders"]
        if not known["floor"] and (absolute or known["name"] != document["reference"])
    ]
    return {
        (case["name"], name, figure["name"]): figure["better"]
        for case in document["cases"]
        for name in names
        for figure in case["figures"]
        if figure["better"]
    }


def compare(first: Document, second: Document, absolute: bool = False, least: float = 0.03) -> list[Verdict]:
    """A verdict for each figure in both. Raises BenchError without a common figure."""
    if first["subcommand"] != second["subcommand"]:
        raise BenchError(f"a run of {first['subcommand']} and one of {second['subcommand']} have nothing in common")
    if not absolute and first["reference"] != second["reference"]:
        raise BenchError(
            f"ratios to {first['reference']} and to {second['reference']} are not comparable:"
            " give both runs the same --reference, or compare with --absolute"
        )
    common = known_figures(second, absolute)
    pairs = {}
    for where, better in known_figures(first, absolute).items():
        values = series(first, *where, absolute), series(second, *where, absolute)
        if where in common and all(values):
            pairs[where, better] = values
    if not pairs:
        hint = "" if absolute else "; without another contender than the reference, --absolute compares its figures"
        raise BenchError(f"the files have no case and contender in common{hint}")
    enough = {which: min(map(len, values)) >= estimate.LEAST_ROUNDS for which, values in pairs.items()}
    tested = [which for which in pairs if enough[which]]
    certain = dict(
        zip(tested, estimate.significant([estimate.rank_test(*pairs[which]) for which in tested]), strict=True)
    )
    found = []
    for which, values in pairs.items():
        where, better = which
        one, two, change = changed(*values)
        word = judge(better, change, certain[which], least) if enough[which] else UNSURE
        found.append(Verdict(word, *where, one, two, change, estimate.change_interval(*values)))
    return found


def cautions(first: Document, second: Document) -> list[str]:
    """Cautions for a reader of two files, before the verdict."""
    lines = []
    loads = [document.get("machine", {}).get("load", 0.0) for document in (first, second)]
    if max(loads) > 1 and max(loads) > 2 * min(loads):
        lines.append(
            f"load at the start {loads[0]:.1f} and {loads[1]:.1f}: who waits for a core loses more on a busy machine,"
            " and ratios of times change with it"
        )
    if first.get("machine", {}).get("cpu") != second.get("machine", {}).get("cpu"):
        lines.append("the files are from different processors, which have different ratios")
    one, two = ({known["name"]: known["server"] for known in document["contenders"]} for document in (first, second))
    name = first["reference"]
    if name in one and name in two and one[name] != two[name]:
        lines.append(f"the reference is {one[name]} and {two[name]}: what differs may be theirs")
    only = set(known_figures(first, True)) ^ set(known_figures(second, True))
    if only:
        lines.append(f"in one of the files only, and not compared: {len(only)} figures")
    return lines


def spread(verdict: Verdict) -> str:
    """A change in percent, and its interval."""
    change = f"{100 * (verdict.change - 1):+.1f} %"
    if verdict.interval is None:
        return change
    low, high = (100 * (bound - 1) for bound in verdict.interval)
    return f"{change}, {low:+.1f} to {high:+.1f}"


def text(verdicts: list[Verdict], absolute: bool) -> str:
    """The changes, the worst first; then the number of unchanged figures."""
    lines = []
    for word in (WORSE, BETTER):
        chosen = [verdict for verdict in verdicts if verdict.word == word]
        chosen.sort(key=lambda verdict: abs(verdict.change - 1), reverse=True)
        lines += [
            f"{word}: {verdict.case}: {verdict.contender}: {verdict.figure}"
            f" {number(verdict.first)} -> {number(verdict.second)} ({spread(verdict)})"
            for verdict in chosen
        ]
    count = {word: sum(verdict.word == word for verdict in verdicts) for word in (WORSE, BETTER, SAME, UNSURE)}
    kind = "figures" if absolute else "ratios to the reference"
    summary = f"{len(verdicts)} {kind}: {count[WORSE]} worse, {count[BETTER]} better, {count[SAME]} the same"
    if count[UNSURE]:
        summary += f", {count[UNSURE]} of too few runs to tell (--rounds {estimate.LEAST_ROUNDS} at least)"
    return "\n".join([*lines, summary])


def worse(verdicts: list[Verdict]) -> bool:
    return any(verdict.word == WORSE for verdict in verdicts)

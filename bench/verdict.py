"""`rmemcached-bench compare`: what became better or worse from one file to another, beyond its spread."""

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
    """change: the second median over the first."""

    word: str
    case: str
    contender: str
    figure: str
    first: float
    second: float
    change: float


def judge(first: list[float], second: list[float], better: str, least: float) -> tuple[str, float, float, float]:
    """(verdict, first median, second median, change). `least`: the part by which medians must differ."""
    one, two = statistics.median(first), statistics.median(second)
    change = two / one if one else float("inf") if two else 1.0
    spans = estimate.interval(first), estimate.interval(second)
    if spans[0] is None or spans[1] is None:
        return UNSURE, one, two, change
    apart = spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]
    if not apart or abs(change - 1) < least:
        return SAME, one, two, change
    return BETTER if (change < 1) == (better == "lower") else WORSE, one, two, change


def series(document: Document, case: str, contender: str, figure: str, absolute: bool) -> list[float]:
    """A figure round by round, or its ratio to the reference's. Empty without one."""
    values = values_of(document, case, contender, figure)
    if absolute:
        return values
    others = values_of(document, case, document["reference"], figure)
    return estimate.ratios(values, others) if len(others) == len(values) else []


def known_figures(document: Document, absolute: bool) -> dict[tuple[str, str, str], str]:
    """{(case, contender, figure): better} of the contenders that are compared."""
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
    """A verdict for each figure that both have. Raises BenchError when there is none."""
    if first["subcommand"] != second["subcommand"]:
        raise BenchError(f"a run of {first['subcommand']} and one of {second['subcommand']} have nothing in common")
    if not absolute and first["reference"] != second["reference"]:
        raise BenchError(
            f"ratios to {first['reference']} and to {second['reference']} are not comparable:"
            " give both runs the same --reference, or compare with --absolute"
        )
    common = known_figures(second, absolute)
    found = []
    for where, better in known_figures(first, absolute).items():
        if where not in common:
            continue
        values = series(first, *where, absolute), series(second, *where, absolute)
        if all(values):
            word, one, two, change = judge(*values, better, least)
            found.append(Verdict(word, *where, one, two, change))
    if not found:
        hint = "" if absolute else "; without another contender than the reference, --absolute compares its figures"
        raise BenchError(f"the files have no case and contender in common{hint}")
    return found


def text(verdicts: list[Verdict], absolute: bool) -> str:
    """What changed, the worst first; then how much did not."""
    lines = []
    for word in (WORSE, BETTER):
        chosen = [verdict for verdict in verdicts if verdict.word == word]
        chosen.sort(key=lambda verdict: abs(verdict.change - 1), reverse=True)
        lines += [
            f"{word}: {verdict.case}: {verdict.contender}: {verdict.figure}"
            f" {number(verdict.first)} -> {number(verdict.second)} ({100 * (verdict.change - 1):+.1f} %)"
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

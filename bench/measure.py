"""Cases, and their runs in turns. In a run a contender does a case for a short time; the run gives a sample.

A round is a process of its own with servers of its own (rounds.py). In a round each contender does each case at least
once.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, TextIO, TypeVar

from rmemcached.bench.errors import BenchError, named

LONGEST_NS = 60_000_000_000
DIGITS = 3
USUAL_COLUMNS = 80
Name = TypeVar("Name")


@dataclass(frozen=True)
class Figure:
    """A figure: its name, its unit, and the better direction, "lower" or "higher", or "" without."""

    name: str
    unit: str
    better: str = "lower"


@dataclass(frozen=True)
class Case:
    """A case, whose first figure is the main figure. floors: {contender: the name of its floor}.

    bounds: {contender: bound of its main figure}. A bound is "<= 0.4"; or ">= 0.8 of NAME", of the figure of NAME in
    the same round; or several bounds with " and " between them. Cases of a group share a table.
    """

    name: str
    parameters: dict[str, Any]
    figures: tuple[Figure, ...]
    floors: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)
    group: str = ""

    def described(self) -> dict[str, Any]:
        """The case's entry in files."""
        return {**asdict(self), "figures": [asdict(figure) for figure in self.figures]}


@dataclass
class Taken:
    """The result of a run: its figures, and latencies in nanoseconds, each or as {latency: count}."""

    values: dict[str, float]
    latencies: list[int] = field(default_factory=list)
    counted: dict[int, int] = field(default_factory=dict)


# Does a run; the argument is its number, from 1, different in each round. 0 is the warm-up.
Run = Callable[[int], Taken]


class Round:
    """A round: its number, from 1, and the order of its parts.

    turns: how often each contender does a case. The seed, with the number, decides every order.
    """

    def __init__(self, number: int = 1, turns: int = 1, seed: int = 1) -> None:
        self.number = number
        self.turns = turns
        self.seed = seed
        self.chance = random.Random(f"{seed} {number}")

    def shuffled(self, names: Iterable[Name]) -> list[Name]:
        """The names in a random order."""
        made = list(names)
        self.chance.shuffle(made)
        return made

    def sample(self, case: str, contender: str, turn: int, values: dict[str, float]) -> dict[str, Any]:
        """A sample's entry in files. turn: its place among the case's samples of this round, from 1."""
        return {"case": case, "contender": contender, "round": self.number, "turn": turn, "values": values}

    def orders(self, names: Sequence[Name], what: str) -> list[list[Name]]:
        """The order of each turn of a case: random for this seed, then balanced over the turns of all rounds.

        Each name comes first, and last, equally often. what: the case, which has an order of its own.
        """
        drawn = list(names)
        random.Random(f"{self.seed} {what}").shuffle(drawn)
        first = (self.number - 1) * self.turns
        return [order(drawn, first + turn) for turn in range(self.turns)]


def need_histograms() -> None:
    """Raises BenchError without hdrhistogram, before the measurement."""
    try:
        import hdrh.histogram  # noqa: F401
    except ImportError:
        raise BenchError("hdrhistogram is not installed: pip install hdrhistogram") from None


def histogram(latencies: Iterable[int] | Mapping[int, int] = ()) -> Any:
    """An HdrHistogram of nanoseconds: of each, or of {latency: count}."""
    from hdrh.histogram import HdrHistogram

    made = HdrHistogram(1, LONGEST_NS, DIGITS)
    for value, count in Counter(latencies).items():
        made.record_value(min(max(value, 1), LONGEST_NS), count)
    return made


def encoded(latencies: Iterable[int] | Mapping[int, int]) -> str:
    return str(histogram(latencies).encode().decode())


def merged(texts: Iterable[str]) -> Any:
    """A histogram of several encoded histograms."""
    total = histogram()
    for text in texts:
        total.decode_and_add(text.encode())
    return total


class Progress:
    """A bar with the time left, on a terminal; elsewhere nothing."""

    WIDTH = 30

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.begin = monotonic()
        self.shown = self.stream.isatty()

    def show(self, part: float, what: str) -> None:
        """Shows the finished part of all work; `what` is under way."""
        if self.shown:
            part = min(part, 1.0)
            left = (monotonic() - self.begin) / part * (1 - part) if part else 0
            full = int(self.WIDTH * part)
            bar = "#" * full + "." * (self.WIDTH - full)
            minutes, seconds = divmod(round(left), 60)
            line = f"[{bar}] {minutes}:{seconds:02} left  {what}"
            # A line that wraps on the terminal could not be removed.
            self.stream.write(f"\r\x1b[K{line[: self.columns() - 1]}")
            self.stream.flush()

    def columns(self) -> int:
        """The columns of the terminal, which may change its size."""
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or USUAL_COLUMNS
        except OSError:
            return USUAL_COLUMNS

    def end(self) -> None:
        """Removes the bar."""
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


class Steps:
    """Counts the steps of a round, and reports each: the finished part of the round, and the next step."""

    def __init__(self, steps: int, report: Callable[[float, str], None]) -> None:
        self.steps = max(steps, 1)
        self.done = 0
        self.report = report

    def step(self, what: str) -> None:
        """A step is over; `what` comes next, or is still under way."""
        self.done = min(self.done + 1, self.steps)
        self.within(0.0, what)

    def within(self, part: float, what: str) -> None:
        """This part of `what`, the next step, is over."""
        self.report(min(self.done + part, self.steps) / self.steps, what)


def order(names: list[Name], number: int) -> list[Name]:
    """The turns of a round: rotated by one in every second round, and reversed in the rounds between."""
    first = number // 2 % len(names)
    turns = names[first:] + names[:first]
    return turns[::-1] if number % 2 else turns


def take_turns(case: Case, runs: dict[str, Run], now: Round, steps: Steps, warm: bool = True) -> list[dict[str, Any]]:
    """The samples of a case in a round, as files have them. Raises BenchError when a run fails."""
    orders = now.orders(list(runs), case.name)
    for name in orders[0] if warm else ():
        with named(name):
            runs[name](0)
        steps.step(f"{case.name}: {name}")
    samples = []
    for number, names in enumerate(orders):
        for place, name in enumerate(names):
            with named(name):
                taken = runs[name]((now.number - 1) * now.turns + number + 1)
            sample = now.sample(case.name, name, number * len(names) + place + 1, taken.values)
            if taken.latencies or taken.counted:
                sample["histogram"] = encoded(taken.latencies or taken.counted)
            samples.append(sample)
            steps.step(f"{case.name}: {name}")
    return samples


def runs_of(now: Round, warm: bool = True) -> int:
    """The number of runs of a contender for a case in a round."""
    return now.turns + warm

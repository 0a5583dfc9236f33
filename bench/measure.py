"""Cases, and their runs in turns. A run is one contender doing one case for a short time; it gives one sample."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, TextIO

from rmemcached.bench.errors import BenchError

LONGEST_NS = 60_000_000_000
DIGITS = 3


@dataclass(frozen=True)
class Figure:
    """better: "lower", "higher", or "" when neither is."""

    name: str
    unit: str
    better: str = "lower"


@dataclass(frozen=True)
class Case:
    """The first figure is the main one. floors: {contender: the name of its floor}.

    bounds: {contender: what its main figure must keep}: "<= 0.4", or ">= 0.8 of NAME": of NAME's in the same round; or
    several with " and " between.
    Cases of one group share a table.
    """

    name: str
    parameters: dict[str, Any]
    figures: tuple[Figure, ...]
    floors: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)
    group: str = ""

    def described(self) -> dict[str, Any]:
        """The case as files have it."""
        return {**asdict(self), "figures": [asdict(figure) for figure in self.figures]}


@dataclass
class Taken:
    """What a run has measured: its figures, and latencies in nanoseconds, each or {latency: how many}."""

    values: dict[str, float]
    latencies: list[int] = field(default_factory=list)
    counted: dict[int, int] = field(default_factory=dict)


# Does one run; the argument is the round, from 1. 0 is the warm-up.
Run = Callable[[int], Taken]


def need_histograms() -> None:
    """Raises BenchError without hdrhistogram, before anything is measured."""
    try:
        import hdrh.histogram  # noqa: F401
    except ImportError:
        raise BenchError("hdrhistogram is not installed: pip install hdrhistogram") from None


def histogram(latencies: Iterable[int] | Mapping[int, int] = ()) -> Any:
    """An HdrHistogram of nanoseconds: of each, or of {latency: how many}."""
    from hdrh.histogram import HdrHistogram

    made = HdrHistogram(1, LONGEST_NS, DIGITS)
    for value, count in Counter(latencies).items():
        made.record_value(min(max(value, 1), LONGEST_NS), count)
    return made


def encoded(latencies: Iterable[int] | Mapping[int, int]) -> str:
    return str(histogram(latencies).encode().decode())


def merged(texts: Iterable[str]) -> Any:
    """One histogram of several that were encoded."""
    total = histogram()
    for text in texts:
        total.decode_and_add(text.encode())
    return total


class Progress:
    """A bar with the time left, on a terminal; elsewhere nothing."""

    WIDTH = 30

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.steps = max(steps, 1)
        self.done = 0
        self.begin = monotonic()
        self.shown = self.stream.isatty()

    def step(self, what: str) -> None:
        """A step is over; `what` comes next, or is still under way."""
        self.done = min(self.done + 1, self.steps)
        self.within(0.0, what)

    def within(self, part: float, what: str) -> None:
        """This part of `what`, the next step, is over."""
        done = min(self.done + part, self.steps)
        if self.shown and done > 0:
            left = (monotonic() - self.begin) / done * (self.steps - done)
            full = int(self.WIDTH * done / self.steps)
            bar = "#" * full + "." * (self.WIDTH - full)
            minutes, seconds = divmod(round(left), 60)
            self.stream.write(f"\r\x1b[K[{bar}] {minutes}:{seconds:02} left  {what[:40]}")
            self.stream.flush()

    def end(self) -> None:
        """Takes the bar away."""
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Progress]:
    bar = Progress(steps)
    try:
        yield bar
    finally:
        bar.end()


def order(names: list[str], number: int) -> list[str]:
    """The turns of a round: rotated by one in every second round, and reversed in those between."""
    first = number // 2 % len(names)
    turns = names[first:] + names[:first]
    return turns[::-1] if number % 2 else turns


def take_turns(case: Case, runs: dict[str, Run], rounds: int, bar: Progress, warm: bool = True) -> list[dict[str, Any]]:
    """The samples of a case, as files have them. A run that fails ends all."""
    for name, run in runs.items() if warm else ():
        run(0)
        bar.step(f"{case.name}: {name}")
    samples = []
    for number in range(rounds):
        for turn, name in enumerate(order(list(runs), number)):
            taken = runs[name](number + 1)
            sample = {
                "case": case.name,
                "contender": name,
                "round": number + 1,
                "turn": turn + 1,
                "values": taken.values,
            }
            if taken.latencies or taken.counted:
                sample["histogram"] = encoded(taken.latencies or taken.counted)
            samples.append(sample)
            bar.step(f"{case.name}: {name}")
    return samples

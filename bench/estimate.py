"""Statistics of samples: median, spread, and ratios of paired runs with their intervals."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

LEAST_ROUNDS = 5  # with fewer rounds the interval would be too narrow
DRAWS = 2000
CONFIDENCE = 0.95
SEED = 1
# Verdicts about a figure and its bound.
HELD, MISSED, UNDECIDED, UNMEASURED = "held", "missed", "undecided", "not measured"


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, interpolated between the values."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The paired ratios. Empty when one of the others is 0: there is no ratio to it."""
    if not all(others):
        return []
    return [value / other for value, other in zip(values, others, strict=True)]


def tail(count: int) -> float:
    """The part of a bootstrap's draws cut off at each end.

    The percentiles of a bootstrap are too narrow for few values: 2.5 % of seven hold the true median with 87 % only. So
    they are widened as Student's t is wider than the normal distribution (Hesterberg's expanded percentiles).
    """
    normal = statistics.NormalDist()
    z = normal.inv_cdf((1 + CONFIDENCE) / 2)
    freedom = count - 1
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return normal.cdf(-student * math.sqrt(count / freedom))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median by bootstrap; None with too few values."""
    if len(values) < LEAST_ROUNDS:
        return None
    chance = random.Random(SEED)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    cut = int(DRAWS * tail(len(values)))
    return medians[cut], medians[-1 - cut]


def within_noise(found: tuple[float, float] | None) -> bool | None:
    """Whether an interval of a ratio holds 1; None without an interval."""
    return None if found is None else found[0] <= 1 <= found[1]


def spread(values: Sequence[float], ratios: bool) -> tuple[float, float, float]:
    """(low, median, high): the median and its interval; the quartiles without an interval, or for values other than
    ratios."""
    low, high = (interval(values) if ratios else None) or quartiles(values)
    return low, statistics.median(values), high


def judge(low: float, high: float, sign: str, limit: float) -> str:
    """The verdict of a spread about a bound, such as "<=" 0.4: UNDECIDED when the bound lies within the spread."""
    if sign == ">=":
        low, high, limit = -high, -low, -limit
    return HELD if high <= limit else MISSED if low > limit else UNDECIDED


def change_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the second median over the first by bootstrap of both; None with too few values."""
    count = min(len(first), len(second))
    if count < LEAST_ROUNDS or min(first) <= 0:
        return None
    chance = random.Random(SEED)
    found = sorted(
        statistics.median(chance.choices(second, k=len(second)))
        / statistics.median(chance.choices(first, k=len(first)))
        for _ in range(DRAWS)
    )
    cut = int(DRAWS * tail(count))
    return found[cut], found[-1 - cut]


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of so large a difference of ranks, in either direction, between two samples of the same kind.

    Mann and Whitney's U, exact. The test assumes no distribution of the values.
    """
    less = sum((value < other) + (value == other) / 2 for value, other in itertools.product(first, second))
    least = int(min(less, len(first) * len(second) - less) + 0.5)
    ways = arrangements(len(first), len(second))
    return min(1.0, 2 * sum(ways[: least + 1]) / sum(ways))


def arrangements(first: int, second: int) -> list[int]:
    """The number of orders of two samples of these sizes with U 0, 1, ...: coefficients of a Gaussian binomial."""
    ways = [1] + [0] * (first * second)
    for number in range(1, second + 1):
        # The polynomial is multiplied by 1 - x^(first + number), then divided by 1 - x^number.
        for at in range(len(ways) - 1, first + number - 1, -1):
            ways[at] -= ways[at - first - number]
        for at in range(number, len(ways)):
            ways[at] += ways[at - number]
    return ways


def significant(chances: Sequence[float], part: float = 1 - CONFIDENCE) -> list[bool]:
    """The tests with a finding, such that on average at most this part of the findings is false.

    Benjamini and Hochberg's procedure: of 200 comparisons of the same thing, 10 would be called different without it.
    """
    order = sorted(range(len(chances)), key=lambda at: chances[at])
    last = max((rank for rank, at in enumerate(order, 1) if chances[at] <= part * rank / len(chances)), default=0)
    found = set(order[:last])
    return [at in found for at in range(len(chances))]

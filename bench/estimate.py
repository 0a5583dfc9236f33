"""Statistics of samples: median, spread, and ratios of paired runs with their intervals."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

LEAST_ROUNDS = 5  # with fewer, an interval would promise what it cannot hold
DRAWS = 2000
CONFIDENCE = 0.95
SEED = 1


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
    """The part of a bootstrap's draws that is cut off at each end.

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

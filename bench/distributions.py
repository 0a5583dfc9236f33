"""Distributions of key and value sizes, as quantiles; and published workloads.

Facebook's pool ETC: Atikoglu, Xu, Frachtenberg, Jiang, Paleczny, "Workload Analysis of a Large-Scale Key-Value Store",
SIGMETRICS 2012: key sizes by a generalized extreme value distribution; values of less than 15 bytes by a table, longer
ones by a generalized Pareto distribution; 30 gets to a set. It names no law of popularity.

Twitter's clusters: Yang, Yue, Rashmi, "A Large Scale Analysis of Hundreds of In-memory Cache Clusters at Twitter", OSDI
2020, by the statistics that come with its traces (github.com/twitter/cache-trace, stat/2020Mar.md): mean sizes, the
exponent of Zipf's law, the parts of commands. Here are clusters whose commands are gets, sets, deletes and incrs only.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import itertools
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from rmemcached.bench.arguments import parse_size, several, size_name

QUANTILES = 1 << 16
KEY_MOST = 250
VALUE_MOST = 1 << 20
SIGMA_MOST = 100  # of a lognormal size's logarithm; long before this limit all sizes are 0 or VALUE_MOST
GRAMMAR = "BYTES, uniform:LEAST:MOST, lognormal:MEDIAN:SIGMA, etc"

# Parts of ETC's values of 0, 1, ... 14 bytes.
ETC_SMALL = (
    *(0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606),
    *(0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980),
)
ETC_SMALL_SUMS = tuple(itertools.accumulate(ETC_SMALL))
ETC_SCALE, ETC_SHAPE = 214.476, 0.348238
ETC_KEYS = (30.7984, 8.20449, 0.078688)  # location, scale, shape


@dataclass(frozen=True)
class Sizes:
    """A distribution of sizes: its name, and its quantile function, which gives the size in bytes below which a part of
    all sizes lies."""

    name: str
    quantile: Callable[[float], float]

    def table(self, typecode: str, least: int, most: int) -> array[int]:
        """QUANTILES sizes within these limits, in ascending order. Each is for an equal part of the keys."""
        return quantiles(self, typecode, least, most)


@dataclass(frozen=True)
class Workload:
    """A workload: sizes of keys and values as on the command line, the exponent of Zipf's law, the parts of
    requests."""

    key_size: str
    values: str
    exponent: float
    sets: float
    deletes: float = 0.0
    incrs: float = 0.0


WORKLOADS = {
    "etc": Workload("etc", "etc", 0.0, 1 / 31),
    "twitter2": Workload("21", "68", 1.4908, 0.0),
    "twitter4": Workload("67", "2439", 1.1004, 0.07),
    "twitter6": Workload("44", "252", 1.882, 0.02),
    "twitter7": Workload("17", "1936", 1.0666, 0.18),
    "twitter8": Workload("23", "9497", 1.7366, 0.50),
    "twitter12": Workload("44", "1030", 0.3048, 0.80),
    "twitter13": Workload("44", "4266", 0.4565, 0.62),
    "twitter14": Workload("96", "414", 1.2959, 0.13, deletes=0.22),
    "twitter15": Workload("18", "102", 0.0242, 1.0),
    "twitter19": Workload("42", "101", 0.735, 0.25),
    "twitter22": Workload("54", "4", 0.7624, 0.10, incrs=0.18),
    "twitter26": Workload("122", "1745", 0.6299, 0.29),
    "twitter27": Workload("66", "8", 1.065, 0.15),
    "twitter31": Workload("41", "15", 0.0, 0.94),
    "twitter32": Workload("41", "138", 0.0, 0.98),
    "twitter33": Workload("24", "1118", 1.354, 0.01),
    "twitter34": Workload("33", "322", 1.1401, 0.06),
    "twitter35": Workload("19", "1796", 0.0, 0.04),
}


@functools.lru_cache
def quantiles(sizes: Sizes, typecode: str, least: int, most: int) -> array[int]:
    """The array of Sizes.table, kept for later calls: nobody may change it."""
    parts = ((place + 0.5) / QUANTILES for place in range(QUANTILES))
    return array(typecode, (min(max(round(sizes.quantile(part)), least), most) for part in parts))


def etc_value(part: float) -> float:
    """The quantile of ETC's value sizes."""
    small = bisect.bisect_right(ETC_SMALL_SUMS, part)
    if small < len(ETC_SMALL):
        return small
    # All larger sizes are the tail of the Pareto distribution above the table's sizes.
    rest = (1 - part) / (1 - ETC_SMALL_SUMS[-1])
    least = len(ETC_SMALL)
    return least + (ETC_SCALE + ETC_SHAPE * least) / ETC_SHAPE * (rest**-ETC_SHAPE - 1)


def etc_key(part: float) -> float:
    """The quantile of ETC's key sizes."""
    location, scale, shape = ETC_KEYS
    return location + scale / shape * ((-math.log(part)) ** -shape - 1)


def parse(text: str, etc: Callable[[float], float]) -> int | Sizes:
    """Bytes, or a distribution. Raises argparse.ArgumentTypeError."""
    kind, *rest = text.split(":")
    try:
        if kind == "etc" and not rest:
            return Sizes(text, etc)
        if kind == "uniform":
            least, most = map(parse_size, rest)
            if not 0 <= least <= most:
                raise ValueError
            return Sizes(text, lambda part: least - 0.5 + part * (most - least + 1))
        if kind == "lognormal":
            median, sigma = parse_size(rest[0]), float(*rest[1:])
            if not 0 < median <= VALUE_MOST or not 0 < sigma <= SIGMA_MOST:
                raise ValueError
            normal = NormalDist(math.log(median), sigma)
            return Sizes(text, lambda part: math.exp(normal.inv_cdf(part)))
        size = parse_size(text)
        if size < 0:
            raise ValueError
        return size
    except (ValueError, IndexError, TypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is no distribution of sizes: {GRAMMAR}") from None


def key_sizes(text: str) -> int | Sizes:
    """A type of argparse. Raises argparse.ArgumentTypeError."""
    return parse(text, etc_key)


def value_sizes(text: str) -> list[int | Sizes]:
    """A type of argparse: one distribution or several. Raises argparse.ArgumentTypeError."""
    return several(text, lambda part: parse(part, etc_value), "a size")


def name_of(sizes: int | Sizes) -> str:
    return sizes.name if isinstance(sizes, Sizes) else size_name(sizes)

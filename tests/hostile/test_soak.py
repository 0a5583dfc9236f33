"""script/soak runs, and finds what drifts. The hour is run by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import MB, Footprint, Latency
from soak import MORE_MEMORY, TRANSPORTS, Sample, drift, soak

FOOTPRINT = Footprint(50 * MB, 0, 0, 500 * MB, 0, 33, 8)
QUIET = {name: Latency(0.00003, 0.0001, 0.0002, 0.0002) for name in TRANSPORTS}


def samples(*footprints: Footprint, slower: float = 0.0) -> list[Sample]:
    rest = [{name: replace(times, p99=times.p99 + slower * i) for name, times in QUIET.items()} for i in range(9)]
    return [Sample(i, 1000, 5, 0.1, QUIET, rest[i], footprint) for i, footprint in enumerate(footprints)]


def test_a_few_seconds() -> None:
    assert soak(0.05) == []


def test_no_drift_is_found_in_noise() -> None:
    once = replace(FOOTPRINT, descriptors=40, resident=90 * MB)
    assert drift(samples(FOOTPRINT, FOOTPRINT, FOOTPRINT, once, FOOTPRINT, FOOTPRINT, FOOTPRINT, once, FOOTPRINT)) == []


@pytest.mark.parametrize("name", ["resident", "shared", "descriptors", "threads", "locked"])
def test_what_grows_is_found(name: str) -> None:
    step = MORE_MEMORY // 4 if name in ("resident", "shared") else 1
    growing = [replace(FOOTPRINT, **{name: getattr(FOOTPRINT, name) + step * i}) for i in range(9)]
    assert [line.split()[0] for line in drift(samples(*growing))] == [name]


def test_latency_that_grows_is_found() -> None:
    found = drift(samples(*[FOOTPRINT] * 9, slower=0.0005))
    assert [line.split()[2] for line in found] == list(TRANSPORTS)

"""What the command line's words mean: sizes, lists of numbers, names, places."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

from rmemcached.bench.errors import BenchError

CORES = {"any": "cores as the scheduler chooses", "together": "client and server on one core", "apart": "a core each"}


# What the numbers of options are at least, by the options' names; a subcommand's AT_LEAST has what differs there.
AT_LEAST: dict[str, float] = {
    **dict.fromkeys(("rounds", "turns", "runs", "connections", "clients", "workers", "threads", "sharers"), 1),
    **dict.fromkeys(("depth", "depths", "multiget", "keys", "sizes", "large", "smallest", "largest", "most"), 1),
    **dict.fromkeys(("items", "memory", "megabytes", "requests", "idle", "least", "iterations"), 1),
    **dict.fromkeys(("think", "pause", "rate", "rates", "busy", "exponent"), 0),
    "points": -100,  # below 0 a contender must be better by so much
    **dict.fromkeys(("seconds", "warm_up"), 0.001),
}


def check_numbers(options: argparse.Namespace, other: Mapping[str, float]) -> None:
    """Raises BenchError for a number that is less than AT_LEAST, or `other`, says, or that is none."""
    for name, least in {**AT_LEAST, **other}.items():
        value = getattr(options, name, None)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not least <= number < float("inf"):
                raise BenchError(f"--{name.replace('_', '-')} {number}: it is at least {least:g}")


def parse_size(text: str) -> int:
    """Bytes from "100", "64k" or "1m". Raises ValueError."""
    factors = {"k": 1024, "m": 1024 * 1024}
    factor = factors.get(text[-1:].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def size_name(size: int) -> str:
    """A number of bytes as text, for example "64 KB"."""
    if size >= 2**20 and size % 2**20 == 0:
        return f"{size >> 20} MB"
    if size >= 1024 and size % 1024 == 0:
        return f"{size >> 10} KB"
    return f"{size} B"


def sizes(text: str) -> list[int]:
    return [parse_size(part) for part in text.split(",")]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of argparse: some of these names, comma-separated."""

    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return text.split(",")

    return parse


def cores(text: str) -> list[str]:
    """Some of CORES that this machine has."""
    chosen = names_of(tuple(CORES))(text)
    if "apart" in chosen and len(os.sched_getaffinity(0)) < 2:
        raise argparse.ArgumentTypeError("apart needs two cores")
    return chosen


def placement(cores: str) -> tuple[set[int], set[int]]:
    """The cores for the clients, and those for the servers."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores == "any":
        return set(allowed), set(allowed)
    return {allowed[0]}, {allowed[0] if cores == "together" else allowed[1]}

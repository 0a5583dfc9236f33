"""The meaning of the command line's words: sizes, lists of numbers, names, places."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rmemcached.bench.errors import BenchError

Value = TypeVar("Value")
CORES = {"any": "cores as the scheduler chooses", "together": "client and server on one core", "apart": "a core each"}


# The least values of numeric options, by the options' names; a subcommand's AT_LEAST has its own values.
AT_LEAST: dict[str, float] = {
    **dict.fromkeys(("rounds", "turns", "runs", "connections", "clients", "workers", "threads", "sharers"), 1),
    **dict.fromkeys(("depth", "depths", "multiget", "keys", "sizes", "large", "smallest", "largest", "most"), 1),
    **dict.fromkeys(("items", "memory", "megabytes", "requests", "idle", "least", "iterations"), 1),
    **dict.fromkeys(("think", "pause", "rate", "rates", "busy", "exponent"), 0),
    "points": -100,  # below 0 a contender must be better by so much
    **dict.fromkeys(("seconds", "warm_up"), 0.001),
}
# The greatest values: a larger number is a slip of the finger, or too much for one core.
AT_MOST: dict[str, float] = {
    **dict.fromkeys(("depth", "depths", "multiget", "seconds", "warm_up"), 1_000_000),
    **dict.fromkeys(("rate", "rates"), 10_000_000),
    **dict.fromkeys(("think", "pause"), 1_000_000_000),
    **dict.fromkeys(("sizes", "large", "smallest", "largest"), 1 << 30),
}


def check_numbers(options: argparse.Namespace, other: Mapping[str, float]) -> None:
    """Raises BenchError for NaN, infinity, or a number below AT_LEAST or `other`, or above AT_MOST."""
    for name, least in {**AT_LEAST, **other}.items():
        value = getattr(options, name, None)
        for number in value if isinstance(value, list) else [value]:
            if number is None:
                continue
            if not least <= number < float("inf"):
                raise BenchError(f"--{name.replace('_', '-')} {number}: it is at least {least:g}")
            if number > (most := AT_MOST.get(name, float("inf"))):
                raise BenchError(f"--{name.replace('_', '-')} {number}: it is at most {most:.0f}")


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


def several(text: str, parse: Callable[[str], Value], what: str) -> list[Value]:
    """Parses values with commas between them. what: their kind, for the error. Raises argparse.ArgumentTypeError."""
    found = []
    for part in text.split(","):
        try:
            found.append(parse(part))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not {what}") from None
        if found[-1] in found[:-1]:
            raise argparse.ArgumentTypeError(f"{text!r} names {part} twice")
    return found


def sizes(text: str) -> list[int]:
    """A type of argparse: numbers of bytes, comma-separated."""
    return several(text, parse_size, "a number of bytes, such as 100, 64k or 1m")


def numbers(text: str) -> list[int]:
    """A type of argparse: whole numbers, comma-separated."""
    return several(text, int, "a whole number")


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of argparse: some of these names, comma-separated."""

    def name_of(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return lambda text: several(text, name_of, f"one of {', '.join(known)}")


def all_cores() -> list[str]:
    """The names of CORES possible on this machine."""
    return [name for name in CORES if name != "apart" or len(os.sched_getaffinity(0)) > 1]


def cores(text: str) -> list[str]:
    """A type of argparse: some of CORES, possible on this machine, comma-separated."""
    chosen = names_of(tuple(CORES))(text)
    if set(chosen) - set(all_cores()):
        raise argparse.ArgumentTypeError("apart needs two cores")
    return chosen


def one_of_cores(text: str) -> str:
    """A type of argparse: one of CORES, possible on this machine."""
    if len(found := cores(text)) > 1:
        raise argparse.ArgumentTypeError(f"one of {', '.join(CORES)}")
    return found[0]


def placement(cores: str) -> tuple[set[int], set[int]]:
    """The cores for the clients, and the cores for the servers."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores == "any":
        return set(allowed), set(allowed)
    return {allowed[0]}, {allowed[0] if cores == "together" else allowed[1]}

"""The samples of rmemcached-top: two samples of a server's statistics, and their changes per second."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmemcached.client import Client
from rmemcached.tools import metrics, targets

PROBES = 10  # for each sample
PREFIX = re.compile(rb"PREFIX (.*) get (\d+) hit (\d+) set (\d+) del (\d+)")
NO_DETAIL = 'not counted there: start it with -D, or send it "stats detail on"'


@dataclass(frozen=True)
class Sample:
    """A server's statistics at one time."""

    at: float  # seconds of time.monotonic()
    general: dict[str, Any]
    classes: dict[str, dict[str, Any]]
    rdma: dict[str, Any]
    probe: float  # seconds, the median of PROBES
    probe_worst: float
    prefixes: dict[str, dict[str, int]] = field(default_factory=dict)
    detail: bool = True
    """Whether the server counts by prefix."""


def merged(client: Client) -> dict[str, dict[str, Any]]:
    """Returns {slab class: statistics of `stats slabs` and `stats items`}."""
    found = metrics.by_class(targets.read_stats(client, "slabs"))
    for place, values in metrics.by_class(targets.read_stats(client, "items")).items():
        found.setdefault(place, {}).update(values)
    found.pop("", None)
    return found


def read_prefixes(client: Client) -> dict[str, dict[str, int]]:
    """Returns {prefix: counts of get, hit, set and delete} of `stats detail dump`."""
    found = {}
    for line in client.raw_command("stats detail dump", "END\r\n").split(b"\r\n"):
        if parts := PREFIX.fullmatch(line):
            counts = [int(digits) for digits in parts.groups()[1:]]
            found[targets.clean(parts[1])] = dict(zip(("get", "hit", "set", "del"), counts, strict=True))
    return found


def take(client: Client, prefixes: bool) -> Sample:
    """Asks a server. Raises targets.FAILURES, and any exception from a strange answer.

    The probe is `version`: it takes the path of every request and counts in no statistic.
    """
    times = []
    for _ in range(PROBES):
        begin = time.perf_counter()
        client.version()
        times.append(time.perf_counter() - begin)
    general = targets.read_stats(client)
    at = time.monotonic()
    detail, by_prefix = True, {}
    if prefixes:
        detail = targets.number(targets.read_stats(client, "settings").get("detail_enabled", 0)) == 1
        by_prefix = read_prefixes(client) if detail else {}
    return Sample(
        at=at,
        general=general,
        classes=merged(client),
        rdma=targets.read_stats(client, "rdma"),
        probe=statistics.median(times),
        probe_worst=max(times),
        prefixes=by_prefix,
        detail=detail,
    )


def value(found: dict[str, Any], *names: str) -> float | None:
    """Returns the sum of the present statistics, or None without any."""
    numbers = [targets.number(found[name]) for name in names if name in found]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class Reading:
    """The present state of a server. `last` and `before` are None until there are samples of the same process."""

    name: str
    last: Sample | None = None
    before: Sample | None = None
    error: str = ""
    """Why the server does not answer."""

    def general(self, *names: str) -> float | None:
        """Returns the sum of general statistics."""
        return value(self.last.general, *names) if self.last else None

    def rdma(self, *names: str) -> float | None:
        return value(self.last.rdma, *names) if self.last else None

    def change(self, part: Callable[[Sample], dict[str, Any]], *names: str) -> float | None:
        """Returns the growth of counters between the samples. part: the place of the counters in a sample."""
        if self.last is None or self.before is None:
            return None
        new, old = value(part(self.last), *names), value(part(self.before), *names)
        # A new counter, of a new slab class or prefix, counts from 0.
        return None if new is None or new < (old or 0) else new - (old or 0)

    def rate(self, part: Callable[[Sample], dict[str, Any]], *names: str) -> float | None:
        """Returns the growth per second."""
        changed = self.change(part, *names)
        if changed is None or self.last is None or self.before is None:
            return None
        return changed / max(self.last.at - self.before.at, 1e-6)

    def ratio(self, part: Callable[[Sample], dict[str, Any]], good: str, *others: str) -> float | None:
        """Returns good / (good + others) of the growth between the samples, from 0 to 1, or None without growth."""
        all_of_them, found = self.change(part, good, *others), self.change(part, good)
        return found / all_of_them if all_of_them and found is not None else None

    def after(self, sample: Sample) -> Reading:
        """Returns the state after a new sample. After a restart or a reset of the counters, the sample is the first."""
        before = self.last
        if before is not None and (
            before.general.get("pid") != sample.general.get("pid")
            or (value(sample.general, "uptime") or 0) < (value(before.general, "uptime") or 0)
            or (value(sample.general, "total_connections") or 0) < (value(before.general, "total_connections") or 0)
        ):
            before = None
        return Reading(self.name, sample, before)

    def failed(self, error: str) -> Reading:
        return Reading(self.name, error=error)


def in_general(sample: Sample) -> dict[str, Any]:
    return sample.general


def in_rdma(sample: Sample) -> dict[str, Any]:
    return sample.rdma


def in_class(place: str) -> Callable[[Sample], dict[str, Any]]:
    return lambda sample: sample.classes.get(place, {})


def in_prefix(prefix: str) -> Callable[[Sample], dict[str, Any]]:
    return lambda sample: sample.prefixes.get(prefix, {})


class Poller:
    """Asks one server every `interval` seconds, in a thread of its own: a slow server delays no other server.

    The thread replaces `reading` as a whole, so any thread may read it. tell: called in the thread after each change.
    """

    def __init__(
        self, server: str, arguments: dict[str, Any], interval: float, prefixes: bool, tell: Callable[[], None]
    ) -> None:
        """Raises ValueError for an impossible server."""
        self.client = targets.make_client(server, arguments)
        self.reading = Reading(targets.name_of(server))
        self.interval = interval
        self.prefixes = prefixes
        self.tell = tell
        self.patience = targets.PATIENCE * arguments["timeout"]
        self.asking: float | None = None  # time.monotonic() at a sample's beginning; written by the thread
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def now(self) -> Reading:
        """Returns the present state, also of a server with an endless answer. Threads: any."""
        asking = self.asking
        if asking is not None and time.monotonic() - asking > self.patience:
            return self.reading.failed(f"no end of its answers within {self.patience:g} s")
        return self.reading

    def ask(self) -> None:
        """Takes a sample. Threads: one at a time."""
        self.asking = time.monotonic()
        try:
            self.reading = self.reading.after(targets.twice(self.client, lambda client: take(client, self.prefixes)))
        except Exception as error:
            # Any exception from a strange answer is shown as the server's failure.
            self.client.close()
            self.reading = self.reading.failed(targets.clean(f"{type(error).__name__}: {error}"))
        self.asking = None

    def ask_twice(self) -> None:
        """Takes the samples of one interval."""
        self.ask()
        self.ending.wait(self.interval)
        self.ask()

    def run(self) -> None:
        due = time.monotonic()
        while not self.ending.is_set():
            self.ask()
            self.tell()
            due = max(due + self.interval, time.monotonic())
            self.ending.wait(due - time.monotonic())

    def stop(self) -> None:
        """Makes the thread end at the server's answer, or at a time-out. Nobody waits for the thread."""
        self.ending.set()

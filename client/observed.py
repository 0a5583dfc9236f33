"""Clients that count and time their calls, and count their errors, by command. They can make OpenTelemetry spans.

Needs the extra "observe" (HdrHistogram, OpenTelemetry's API): ``pip install 'rmemcached[observe]'``. A call takes one
to two microseconds longer, and more with spans.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from .api._async import AsyncClient
from .api._client import Client
from .transport.sockets import Server

try:
    from hdrh.histogram import HdrHistogram
except ImportError:
    raise ImportError("rmemcached.client.observed needs hdrhistogram: pip install 'rmemcached[observe]'") from None

# fmt: off
COMMANDS = (
    "get", "get_view", "gets", "gat", "gats", "get_many", "get_multi", "gets_many", "gat_many", "set", "add", "replace",
    "append", "prepend", "cas", "set_many", "set_multi", "delete", "delete_many", "delete_multi", "incr", "decr",
    "touch", "get_into", "get_many_into", "meta_get", "meta_set", "meta_delete", "meta_arithmetic", "meta_noop",
    "meta_debug", "exists", "ttl", "last_access", "invalidate", "get_or_set", "stats", "version", "flush_all",
    "cache_memlimit", "raw_command",
)
# fmt: on
BLOCKING = {"get_view"}  # absent from AsyncClient
LONGEST = 3_600_000_000_000  # nanoseconds of the longest time in a histogram
DIGITS = 2  # significant digits of a time in a histogram


class Metrics(NamedTuple):
    """Statistics of a command of a client.

    calls, errors: numbers. mean, p50, p90, p99, p999 (percentiles) and longest: times in seconds, with two significant
    digits. The times include calls that raised. A cancelled call counts as an error. get_or_set counts in addition to
    its meta commands.
    """

    calls: int
    errors: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float


class Observer:
    """The statistics of a client so far. Thread-safe. A copy of a client begins anew."""

    def __init__(self, spans: bool) -> None:
        self.spans = spans
        self.tracer: Any = None
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may make calls
        self.errors = dict.fromkeys(COMMANDS, 0)
        self.histograms = {name: HdrHistogram(1, LONGEST, DIGITS) for name in COMMANDS}
        if spans:
            try:
                from opentelemetry import trace
            except ImportError:
                raise ImportError("spans=True needs OpenTelemetry's API: pip install 'rmemcached[observe]'") from None
            self.tracer = trace.get_tracer("rmemcached.client")

    def __reduce__(self) -> tuple[type[Observer], tuple[bool]]:
        return Observer, (self.spans,)

    @property
    def lock(self) -> threading.RLock:
        """The lock of errors and histograms. A forked child makes a new one: no thread there releases the old one."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
        return self._lock

    def record(self, command: str, nanoseconds: int, failed: bool) -> None:
        """Counts a call."""
        with self.lock:
            self.histograms[command].record_value(min(max(nanoseconds, 1), LONGEST))
            self.errors[command] += failed

    def metrics(self) -> dict[str, Metrics]:
        """The Metrics of each command called so far."""
        found = {}
        with self.lock:
            for name, histogram in self.histograms.items():
                if not histogram.total_count:
                    continue
                times = [histogram.get_value_at_percentile(part) / 1e9 for part in (50, 90, 99, 99.9, 100)]
                found[name] = Metrics(
                    histogram.total_count, self.errors[name], histogram.get_mean_value() / 1e9, *times
                )
        return found

    def span(self, command: str, server: Server) -> Any:
        """An OpenTelemetry span for a `with` block, with attributes by OpenTelemetry's conventions for databases."""
        host, port = server if isinstance(server, tuple) else (server, None)
        attributes: dict[str, Any] = {
            "db.system.name": "memcached",
            "db.operation.name": command,
            "server.address": host,
        }
        if port is not None:
            attributes["server.port"] = port
        from opentelemetry.trace import SpanKind

        return self.tracer.start_as_current_span(command, kind=SpanKind.CLIENT, attributes=attributes)


def observed(name: str) -> Callable[..., Any]:
    """Client's method of this name, with its calls recorded by the client's Observer."""
    method = getattr(Client, name)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        observer: Observer = self._observer
        failed = True
        begin = perf_counter_ns()
        try:
            if observer.tracer is None:
                result = method(self, *arguments, **options)
            else:
                with observer.span(name, self.server):
                    result = method(self, *arguments, **options)
            failed = False
        finally:
            observer.record(name, perf_counter_ns() - begin, failed)
        return result

    return call


def observed_async(name: str) -> Callable[..., Any]:
    """AsyncClient's method of this name, with its calls recorded by the client's Observer."""
    method = getattr(AsyncClient, name)

    @functools.wraps(method)
    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        observer: Observer = self._observer
        failed = True
        begin = perf_counter_ns()
        try:
            if observer.tracer is None:
                result = await method(self, *arguments, **options)
            else:
                with observer.span(name, self.server):
                    result = await method(self, *arguments, **options)
            failed = False
        finally:
            observer.record(name, perf_counter_ns() - begin, failed)
        return result

    return call


class ObservedClient(Client):
    """A Client whose commands are counted and timed.

    Args: as for Client, and spans: each command makes a span by OpenTelemetry's tracer "rmemcached.client".
    """

    def __init__(self, *arguments: Any, spans: bool = False, **options: Any) -> None:
        self._observer = Observer(spans)
        super().__init__(*arguments, **options)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._observer = Observer(self._observer.spans)

    def metrics(self) -> dict[str, Metrics]:
        """{command: Metrics} of the commands called so far. Thread-safe."""
        return self._observer.metrics()


class ObservedAsyncClient(AsyncClient):
    """An AsyncClient whose commands are counted and timed. Args: as for ObservedClient."""

    def __init__(self, *arguments: Any, spans: bool = False, **options: Any) -> None:
        self._observer = Observer(spans)
        super().__init__(*arguments, **options)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._observer = Observer(self._observer.spans)

    def metrics(self) -> dict[str, Metrics]:
        """{command: Metrics} of the commands called so far."""
        return self._observer.metrics()


for _name in COMMANDS:
    setattr(ObservedClient, _name, observed(_name))
    if _name not in BLOCKING:
        setattr(ObservedAsyncClient, _name, observed_async(_name))

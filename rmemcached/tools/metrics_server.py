"""The targets of rmemcached-exporter, and its HTTP server."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer

from rmemcached import __version__
from rmemcached.client import Client
from rmemcached.tools import metrics, targets

MOST_TARGETS = 1000  # remembered at a time: each has a connection
REQUEST_SECONDS = 10.0  # limit for a silent HTTP client
UNITS = ("seconds", "bytes")
Answer = Callable[[str, list[tuple[str, str]]], Any]


def ask_all(client: Client) -> dict[str, dict[str, Any]]:
    """Returns {group: statistics} of a server. Raises targets.FAILURES."""
    return {group: targets.read_stats(client, *group.split()) for group in metrics.GROUPS}


def family(sample: metrics.Sample) -> Metric:
    """Returns a sample as prometheus_client's metric."""
    metric = sample.metric
    name = metric.name.removesuffix("_total")
    unit = next((unit for unit in UNITS if name.endswith("_" + unit)), "")
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    found: Metric = kind(name, metric.help, labels=metric.all_labels, unit=unit)
    for labels, value in sample.rows:
        found.add_metric(labels, value)  # type: ignore[attr-defined]
    return found


def told(name: str, text: str, **labels: str) -> Metric:
    """Returns a gauge of 1, to carry its labels."""
    found = GaugeMetricFamily(name, text, labels=list(labels))
    found.add_metric(list(labels.values()), 1)
    return found


def identity(groups: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    """Yields versions and devices, as labels."""
    text = targets.clean
    general, rdma = groups[""], groups["rdma"]
    version = text(general.get("version", ""))
    yield told("memcached_version", "The version of memcached that the server is, or is a port of.", version=version)
    if "rmemcached_version" in general:
        own = text(general["rmemcached_version"])
        yield told("rmemcached_build_info", "The server's own version.", version=own, memcached_version=version)
    if rdma:
        devices = GaugeMetricFamily("rmemcached_rdma_device_info", "The devices.", labels=["device", "transport"])
        names = (text(rdma.get(name, "")).split(",") for name in ("rdma_device", "rdma_transport"))
        for device, transport in zip(*names, strict=False):
            devices.add_metric([device, transport], 1)
        yield devices
    if "rdma_direct" in rdma:
        who, off = (text(rdma.get(name, "")) for name in ("rdma_direct", "rdma_direct_off"))
        yield told(
            "rmemcached_rdma_direct_info",
            "Which clients on its host read values themselves, or why none.",
            who=who,
            off=off,
        )


class Target:
    """A server, its connection, and its metrics for prometheus_client.

    Threads: any. A thread waits while another thread asks the server, so the target needs one connection. A thread
    waits for `patience` seconds at most: a server with an endless answer blocks only its own thread.
    """

    def __init__(self, server: str, arguments: dict[str, Any]) -> None:
        """Raises ValueError for an impossible server."""
        self.name = targets.name_of(server)
        self.client = targets.make_client(server, arguments)
        self.patience = targets.PATIENCE * arguments["timeout"]
        self.lock = threading.Lock()
        self.said: str | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self.app = make_wsgi_app(registry)

    def collect(self) -> Iterable[Metric]:
        """Yields the server's metrics; only memcached_up 0 without an answer."""
        begin = time.perf_counter()
        groups = self.ask()
        seconds = time.perf_counter() - begin
        yield GaugeMetricFamily("memcached_up", "1: the server answered in time.", value=float(groups is not None))
        yield GaugeMetricFamily(
            "rmemcached_exporter_scrape_seconds", "Time that the server took.", value=seconds, unit="seconds"
        )
        if groups is not None:
            yield from identity(groups)
            yield from map(family, metrics.samples(groups))

    def ask(self) -> dict[str, dict[str, Any]] | None:
        """Returns {group: statistics}, or None. Writes a line to stderr at each change between the two."""
        groups = self.wait()
        if isinstance(groups, Exception):
            self.tell(f"{type(groups).__name__}: {groups}")
            return None
        self.tell(None)
        return groups

    def wait(self) -> dict[str, dict[str, Any]] | Exception:
        """Returns the server's answer, or the error, within `patience`."""
        found: SimpleQueue[dict[str, dict[str, Any]] | Exception] = SimpleQueue()
        if not self.lock.acquire(timeout=self.patience):
            return TimeoutError("it has not ended its answer to an earlier scrape")
        try:
            threading.Thread(target=self.run, args=(found,), daemon=True).start()
        except BaseException:
            self.lock.release()
            raise
        try:
            return found.get(timeout=self.patience)
        except Empty:
            return TimeoutError(f"no end of its answers within {self.patience:g} s")

    def run(self, found: SimpleQueue[dict[str, dict[str, Any]] | Exception]) -> None:
        """Asks the server. The caller holds the lock, and this thread releases the lock, even much later."""
        try:
            found.put(targets.twice(self.client, ask_all))
        except Exception as error:
            # Any exception from a strange answer is reported as the server's failure.
            self.client.close()
            found.put(error)
        finally:
            self.lock.release()

    def tell(self, problem: str | None) -> None:
        if (problem is None) != (self.said is None):
            # With --allow anybody may choose a target: its name must not write control characters to the terminal.
            line = targets.clean(f"{self.name}: {problem or 'answers again'}")
            print(f"rmemcached-exporter: {line}", file=sys.stderr, flush=True)
        self.said = problem


def pattern(text: str) -> re.Pattern[str]:
    """Returns the pattern of an --allow: * stands for letters, digits and hyphens, ** for anything.

    If * matched dots, 10.0.0.* would match 10.0.0.example.com, and its owner, anybody, would get the password.
    """
    parts = re.split(r"(\*\*?)", text)
    return re.compile("".join({"*": "[A-Za-z0-9-]*", "**": ".*"}.get(part, re.escape(part)) for part in parts))


class Exporter:
    """The WSGI application. Threads: any."""

    def __init__(self, servers: Sequence[str], allowed: Sequence[str], arguments: dict[str, Any]) -> None:
        """allowed: patterns for further targets, for `pattern`. Raises ValueError."""
        self.allowed = [pattern(text) for text in allowed]
        self.arguments = arguments
        self.lock = threading.Lock()
        self.first = Target(servers[0], arguments)
        self.named = {servers[0]: self.first, **{server: Target(server, arguments) for server in servers[1:]}}
        # A URL is also known without its password, because Prometheus' pages show such a URL.
        self.named |= {target.name: target for target in self.named.values()}
        self.others: dict[str, Target] = {}

    def target(self, server: str) -> Target | None:
        """Returns the target, or None if --allow does not match. Raises ValueError for an impossible server."""
        if server in self.named:
            return self.named[server]
        if not any(allowed.fullmatch(server) for allowed in self.allowed):
            return None
        with self.lock:
            # The most recent target is the last entry.
            found = self.others.pop(server, None) or Target(server, self.arguments)
            self.others[server] = found
            if len(self.others) > MOST_TARGETS:
                self.others.pop(next(iter(self.others))).client.close()
            return found

    def __call__(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self.first.app(environ, start)
        if path == "/scrape":
            return self.scrape(environ, start)
        if path == "/":
            lines = [f"/scrape?target={server}" for server in sorted({t.name for t in self.named.values()})]
            return plain(start, "200 OK", "\n".join(["rmemcached-exporter " + __version__, "/metrics", *lines]))
        return plain(start, "404 Not Found", "there are /metrics and /scrape?target=SERVER")

    def scrape(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        """Answers /scrape?target=SERVER."""
        given = parse_qs(environ.get("QUERY_STRING", "")).get("target", [])
        if len(given) != 1:
            return plain(start, "400 Bad Request", "/scrape needs one target: /scrape?target=SERVER")
        try:
            target = self.target(given[0])
        except (ValueError, TypeError) as error:
            return plain(start, "400 Bad Request", f"{targets.name_of(given[0])}: {error}")
        if target is None:
            name = targets.name_of(given[0])
            return plain(start, "403 Forbidden", f"{name} is neither a SERVER of the command line nor --allow'ed")
        return target.app(environ, start)

    def close(self) -> None:
        for target in [*self.named.values(), *self.others.values()]:
            target.client.close()


def plain(start: Answer, status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode(errors="replace") + b"\n"]


class Handler(WSGIRequestHandler):
    """Handles requests without a line in the log for each."""

    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        # A name would need a look-up at a name server.
        return str(self.client_address[0])


class Server(ThreadingWSGIServer):
    daemon_threads = True
    request_queue_size = 128  # scrapes of many targets may come at one time
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client gone early or silent, such as a probe of the port, is no failure here.
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Server4(Server):
    address_family = socket.AF_INET


def serve(exporter: Exporter, place: tuple[str, int]) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError for an unavailable port."""
    host, port = place
    six = ":" in host or (not host and socket.has_dualstack_ipv6())
    server = make_server(host or ("::" if six else "0.0.0.0"), port, exporter, Server if six else Server4, Handler)

    def end(*_: object) -> None:
        # shutdown() waits for serve_forever(), and the signal has interrupted serve_forever().
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    shown = f"[{host}]" if ":" in host else host or "*"
    print(f"rmemcached-exporter: http://{shown}:{server.server_port}/metrics", file=sys.stderr, flush=True)
    with server:
        server.serve_forever()

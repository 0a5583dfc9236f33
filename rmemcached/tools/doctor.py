"""rmemcached-doctor: which transports a client has to a server, how fast they are, and what keeps it from the others.

It tries each transport by the client's own code, measures the working transports, and says what to change for the rest.
The exit status is 0 if the best transport possible between both ends works, 1 if only lesser transports work, and 2 if
there is no connection, the server lets nobody in or is no memcached, or it has gone before the end of the measurements.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rmemcached import __version__, import_error

try:
    from rmemcached import verbs
    from rmemcached.client import Client, MemcacheError
    from rmemcached.client.transport.connection import Choice
    from rmemcached.client.transport.sockets import is_local, server_text
    from rmemcached.client.transport.transports import PLAIN, ROWS, TRANSPORTS, Transport
    from rmemcached.client.urls import chosen_transport, is_url, names_auto, parse_server
    from rmemcached.settings import DIRECT_OFF
    from rmemcached.tools.targets import clean, number
except ModuleNotFoundError as error:
    raise SystemExit(str(import_error(error))) if __name__ == "__main__" else import_error(error) from None

USABLE, ABSENT, BROKEN = "works", "not there", "fails"
SMALL, LARGE = b"s" * 100, b"L" * 1_000_000
SMALL_GETS, LARGE_ROUNDS = 2000, 20
SECONDS = 1.0  # of measuring, for small and for large values each
KEY_LIFE = 60  # seconds, for the values left by a killed doctor

DEVICE_FILES = "/dev/infiniband"
DEVICES = "/sys/class/infiniband"

T = TypeVar("T")


class StepError(Exception):
    """A step did not end in time, or its answer is no memcached's."""


FAILURES = (MemcacheError, OSError, StepError)


@dataclass
class Facts:
    """The properties of both ends."""

    server: str
    client_version: str = __version__
    server_version: str = ""
    rmemcached_version: str = ""
    local: bool = False
    server_devices: list[str] = field(default_factory=list)
    client_devices: list[str] = field(default_factory=list)
    unopened: list[str] = field(default_factory=list)
    direct: str = ""
    """Which clients on the server's host read items without asking, as its statistics say."""
    direct_off: str = ""


@dataclass
class Finding:
    """A transport. Latencies are in microseconds, bandwidths in MB (10^6 bytes) per second."""

    transport: str
    state: str = USABLE
    why: str = ""
    change: str = ""
    direct: bool = False
    """Gets read the server's items where they lie, and ask nobody."""
    p50: float | None = None
    p99: float | None = None
    set_bandwidth: float | None = None
    get_bandwidth: float | None = None


UPGRADE = "install the same version of rmemcached on both ends"
OPEN_SHM = (
    "start the server with -o rdma_shm=FILE, in a folder that both ends see, and with -a 0660 and a common group, or"
    " -a 0666 to let all in"
)
CONTAINERS = (
    "nothing, if it is. Containers of one host with addresses of their own: start the server with -o rdma_shm=FILE in a"
    " folder that both see, and name the transport in the client (shm://HOST:PORT)"
)
FURTHER = (
    "an earlier connection was answered and this one was not: a firewall, a proxy or the server's -c lets too few"
    " through at one time, or the server has ended since"
)
NO_SERVER_DEVICE = "on the server, rmemcached-devices says why it has no device; -o rdma_device= names one"
# Words in errors about a refused or lost connection.
LOST = r"[Rr]efused|timed out|[Rr]eset|[Nn]o route|unreachable|Broken pipe|has ended the connection|UnexpectedClose"


def any_row(row: Transport) -> bool:
    return True


def of_system(row: Transport) -> bool:
    """Whether the transport needs a device of libibverbs."""
    return not row.soft and not row.plain


def by_exchange(row: Transport) -> bool:
    """Whether the transport needs a device of libibverbs, and connects by exchange lines on the first connection."""
    return of_system(row) and not row.by_cm


def by_cm(row: Transport) -> bool:
    return row.by_cm


def near(row: Transport) -> bool:
    return row.near


def by_second_connection(row: Transport) -> bool:
    """Whether a second TCP connection carries the queue pair."""
    return row.attach is not None and not row.near


# Each rule has a condition on the transport's row, a pattern of the error, the error's meaning, and the change. The
# first match counts.
RULES: tuple[tuple[Callable[[Transport], bool], str, str, str], ...] = (
    (any_row, r"the server answered ERROR$", ABSENT, "a memcached without RDMA: start rmemcached there"),
    (any_row, r"version \d+ is not supported|makes no sense", BROKEN, UPGRADE),
    (any_row, r"no transport is available here", ABSENT, "start the server without -o no_rdma"),
    (any_row, r"is not encrypted", ABSENT, "the server's -o rdma_cleartext allows it, beside TLS and in the clear"),
    (any_row, r"rdma_max_qps", BROKEN, "raise the server's -o rdma_max_qps="),
    (
        any_row,
        r"too few file descriptors",
        BROKEN,
        "raise the server's limit of open files (systemd: LimitNOFILE=), or lower -c",
    ),
    (any_row, r"ulimit -l", BROKEN, "raise the limit of locked memory: ulimit -l, or systemd's LimitMEMLOCK=infinity"),
    (
        any_row,
        r"not registered for this device",
        BROKEN,
        "on the server: LimitMEMLOCK=infinity, or ulimit -l unlimited",
    ),
    (any_row, r"out of resources", BROKEN, "the server's log (-v) says what it has no memory for"),
    (of_system, r"RMEMCACHED_RDMA_DEVICE says none", ABSENT, "unset RMEMCACHED_RDMA_DEVICE here"),
    (by_exchange, r"transport \w+ is not available here", ABSENT, NO_SERVER_DEVICE),
    (by_cm, r"[Rr]efused|[Rr]eject", BROKEN, "start the server with -o rdma_cm_port=, and name that port here"),
    (near, r"on another host", ABSENT, CONTAINERS),
    (near, r"transport \w+ is not available here", ABSENT, "start the server without -o rdma_shm=none"),
    (near, r"network namespace", BROKEN, OPEN_SHM),
    (near, r"same host", BROKEN, f"if both ends are containers of one host: {OPEN_SHM}"),
    (near, r"is for user|Permission denied", BROKEN, f"run both ends as one user, or {OPEN_SHM}"),
    (
        near,
        r"No such file",
        BROKEN,
        "make the folder of the server's -o rdma_shm= visible here, by the same path",
    ),
    (
        by_second_connection,
        LOST,
        BROKEN,
        "let a second TCP connection to the same port through: a firewall, a proxy or the server's -c holds it up, or"
        " it is sent to another server",
    ),
    # This is a time-out while connecting, before the RDMA exchange.
    (any_row, r"^timed out: (?!no end)", BROKEN, FURTHER),
    (
        of_system,
        r"timed out|RETRY|retry",
        BROKEN,
        "the two devices do not reach each other: ping between their addresses, let UDP port 4791 through (RoCE), and"
        " compare the GIDs' kinds that rmemcached-devices shows on both ends",
    ),
    (any_row, r"[Tt]oo many open connections", BROKEN, "raise the server's -c"),
    (any_row, LOST, BROKEN, FURTHER),
)


# Patterns of errors that leave no connection at all, and a hint for each.
NOT_REACHED = (
    (r"authenticat", "a URL can have them: memcached://user:password@host:port"),
    (r"[Rr]efused", "nobody listens there: is the daemon up, and do its -p and -l have this port and address?"),
    (r"timed out|[Nn]o route|unreachable", "the host is down, the daemon stands still, or a firewall drops the port"),
    (r"Permission denied", "the server's -a gives users and groups access to its socket"),
    (r"No such file", "the server's -s names its socket, which must be visible here by the same path"),
)


def step(function: Callable[[], T], seconds: float) -> T:
    """Calls the function in a thread. Returns or raises its outcome, or raises StepError and leaves the thread."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise StepError(f"timed out: no end after {seconds:g} s")
    return done[0]


def is_here(server: tuple[str, int] | str) -> bool:
    """Returns whether a server has an address of this host. Sends nothing. Raises OSError."""
    if isinstance(server, str):
        return True
    for family, _, _, _, address in socket.getaddrinfo(*server, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            # The kernel chooses the addresses of both ends here.
            probe.connect(address)
            return is_local(probe)
    return False


def started(found: dict[bytes, Any]) -> tuple[float | None, float]:
    """Returns the process id in these statistics, and the process's start in seconds since 1970."""
    times = [number(found.get(name, 0)) or 0.0 for name in (b"time", b"uptime")]
    return number(found.get(b"pid", 0)), times[0] - times[1]


def device_advice() -> tuple[list[str], str]:
    """Returns the kernel's devices closed to this process, and the change to open them."""
    with contextlib.suppress(OSError):
        opened = verbs.devices("system")
        known = sorted(os.listdir(DEVICES))
        files = sorted(Path(DEVICE_FILES).glob("uverbs*"))
        closed = [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
        if closed:
            return known, f"give this user read and write access to {', '.join(closed)} (as a rule group rdma)"
        if known and not files:
            return known, (
                f"{DEVICE_FILES} has no uverbs device: load ib_uverbs; in a container, pass it in"
                f" (--device={DEVICE_FILES})"
            )
        if lacking := sorted(set(known) - set(opened)):
            return lacking, "install the device's libibverbs provider (Debian: ibverbs-providers)"
    return [], ""


class Examination:
    """The steps for a server. timeout: seconds for each wait."""

    def __init__(self, target: str, timeout: float, rdma_cm_port: int | None) -> None:
        self.server, options = parse_server(target)
        if is_url(target) and names_auto(target):
            # Such a scheme chooses "auto", as for a Client.
            options.setdefault("transport", "auto")
        self.wanted, self.pinned_by = chosen_transport(options.pop("transport", None), TRANSPORTS)
        if rdma_cm_port is not None:
            options["rdma_cm_port"] = rdma_cm_port
        for name in ("ignore_exc", "key_prefix", "allow_unicode_keys", "encoding", "default_noreply"):
            options.pop(name, None)
        self.timeout = timeout
        self.options = {**options, "timeout": timeout, "connect_timeout": timeout, "default_noreply": False}
        self.facts = Facts(server_text(self.server))
        self.keys: set[str] = set()
        self.advice = ""
        self.reached = False  # a connection was answered
        self.process: tuple[float | None, float] = (None, 0.0)

    def client(self, transport: str) -> Client:
        return Client(self.server, transport=transport, **self.options)

    def transports(self) -> list[str]:
        """Returns the transports to try, the best first."""
        if isinstance(self.server, str):
            return [name for name, row in ROWS.items() if row.near or row.plain]
        by_cm = self.options.get("rdma_cm_port") is not None and "tls_context" not in self.options
        return [name for name, row in ROWS.items() if by_cm or not row.by_cm]

    def look(self) -> None:
        """Fills the facts. Raises OSError, MemcacheError, StepError."""

        def ask() -> None:
            with self.client(PLAIN.name) as client:
                self.facts.server_version = clean(client.version())
                if not re.match(r"\d|\w+[ -/]?\d|unknown", self.facts.server_version):
                    raise StepError(f"the answer to version is not memcached's: {self.facts.server_version}")
                found = client.stats()
                self.process = started(found)
                self.facts.rmemcached_version = clean(found.get(b"rmemcached_version", ""))
                with contextlib.suppress(MemcacheError):
                    rdma = client.stats("rdma")
                    self.facts.server_devices = [
                        name for name in clean(rdma.get(b"rdma_device", b"")).split(",") if name
                    ]
                    self.facts.direct = clean(rdma.get(b"rdma_direct", b""))
                    self.facts.direct_off = clean(rdma.get(b"rdma_direct_off", b""))

        step(ask, 4 * self.timeout)
        self.reached = True
        self.facts.local = is_here(self.server)
        with contextlib.suppress(OSError):
            self.facts.client_devices = verbs.devices("system")
        self.facts.unopened, self.advice = device_advice()

    def choose(self) -> tuple[str, list[str]]:
        """Returns the transport taken by "auto", and the reasons against each transport before."""
        choice = Choice(self.client("auto"), "auto", True)
        return step(lambda: choice.open()[1].name, 4 * self.timeout), [clean(reason) for reason in choice.reasons]

    def try_one(self, transport: str) -> Finding:
        """Tries and measures a transport."""
        finding = Finding(transport)
        if ROWS[transport].near and not self.facts.local and self.wanted != transport:
            # A client offers shared memory to a server on a different host only on demand.
            finding.why = "by its address the server is on another host"
        else:
            try:
                step(lambda: self.measure(finding), 4 * self.timeout + 4 * SECONDS)
            except FAILURES as error:
                cause = error.args[0] if isinstance(error, MemcacheError) and len(error.args) == 1 else error
                # A server can refuse without a reason.
                finding.why = clean(cause) or type(error).__name__
        if finding.why and finding.p50 is None:
            finding.state, finding.change = self.explain(transport, finding.why)
        return finding

    def explain(self, transport: str, why: str) -> tuple[str, str]:
        """Returns the meaning of an error, and the change."""
        soft = {row.device.decode() for row in ROWS.values() if row.device}
        if not ROWS[transport].soft and re.match(r"no queue pair here(?!.*(says none|ulimit -l))", why):
            if self.facts.unopened:
                return BROKEN if set(self.facts.server_devices) - soft else ABSENT, self.advice
            if self.facts.client_devices:
                return BROKEN, "rmemcached-devices shows the ports of this machine's devices: one must be active"
            return ABSENT, "this machine has no RDMA device (rmemcached-devices)"
        for concerns, pattern, state, change in RULES:
            if concerns(ROWS[transport]) and re.search(pattern, why):
                return state, change
        return BROKEN, "the server's log says more (rmemcached -v)"

    def measure(self, finding: Finding) -> None:
        """Fills latency and bandwidth. Raises OSError, MemcacheError, StepError."""
        small, large = (f"rmemcached-doctor:{secrets.token_hex(8)}" for _ in range(2))
        with self.client(finding.transport) as client:
            self.keys |= {small, large}
            try:
                client.set(small, SMALL, expire=KEY_LIFE)
                times = timed(lambda: client.get(small), SMALL, SMALL_GETS)
                finding.direct = client.direct
                finding.p50 = statistics.median(times) * 1e6
                finding.p99 = times[int(len(times) * 0.99)] * 1e6
                try:
                    stored = timed(lambda: client.set(large, LARGE, expire=KEY_LIFE), True, LARGE_ROUNDS)
                    read = timed(lambda: client.get(large), LARGE, LARGE_ROUNDS)
                    finding.set_bandwidth = len(LARGE) / statistics.median(stored) / 1e6
                    finding.get_bandwidth = len(LARGE) / statistics.median(read) / 1e6
                except MemcacheError as error:
                    finding.why = f"a value of 1 MB: {clean(error.args[0] if error.args else error)}"
                    if "too large" in finding.why:
                        finding.change = "raise the server's -I for values of that size"
            finally:
                for key in (small, large):
                    with contextlib.suppress(MemcacheError, OSError):
                        client.delete(key)
                        self.keys.discard(key)

    def look_again(self) -> list[str]:
        """Returns notes on changes since `look`. Raises OSError, MemcacheError, StepError: the server has gone."""

        def ask() -> tuple[float | None, float]:
            end = time.monotonic() + self.timeout
            while True:
                try:
                    with self.client(PLAIN.name) as client:
                        return started(client.stats())
                except (MemcacheError, OSError):
                    # A firewall may still count the ended connections.
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.05)

        (before, begun), (after, begun_again) = self.process, step(ask, 4 * self.timeout)
        # Times are in whole seconds, so two computed starts of a process may differ.
        if before == after and abs(begun - begun_again) <= 2:
            return []
        return ["another process answers than at first: it was started again, or a proxy has several: ask once more"]

    def explain_loss(self, error: Exception) -> str:
        """Returns the reason of a missing or lost connection, in a line."""
        text = clean(error)
        if self.reached and re.search(LOST, text):
            return f"{text} ({FURTHER})"
        return text + next((f" ({hint})" for pattern, hint in NOT_REACHED if re.search(pattern, text)), "")

    def leave(self) -> None:
        """Deletes the values left by failed transports."""

        def delete() -> None:
            with self.client(PLAIN.name) as client:
                for key in list(self.keys):
                    client.delete(key)

        if self.keys:
            with contextlib.suppress(*FAILURES):
                step(delete, 2 * self.timeout)


def timed(function: Callable[[], Any], expected: Any, count: int) -> list[float]:
    """Returns the seconds of up to count calls, sorted. Raises StepError for an unexpected result."""
    times: list[float] = []
    end = time.monotonic() + SECONDS
    while not times or (len(times) < count and time.monotonic() < end):
        begun = time.perf_counter()
        found = function()
        times.append(time.perf_counter() - begun)
        if found != expected:
            what = "nothing" if found is None else "another value"
            raise StepError(f"{what} came back for a value that was stored: the server is full, or not reliable")
    return sorted(times)


def verdict(findings: Sequence[Finding]) -> int:
    """Returns the exit status (see the module). findings: the best transport first. A software transport never taken
    by "auto" is not counted as the best."""
    for finding in findings:
        if ROWS[finding.transport].automatic or not ROWS[finding.transport].soft:
            if finding.state == USABLE:
                return 0
            if finding.state == BROKEN:
                return 1 if any(one.state == USABLE for one in findings) else 2
    return 2


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def reads(facts: Facts, one: Finding) -> str:
    """Returns a line on gets over shared memory: direct reads, or the reason for requests."""
    if one.direct:
        return f"gets read the items where they lie, and ask nobody (rdma_direct={facts.direct})"
    if facts.direct == "off":
        reason = DIRECT_OFF.get(facts.direct_off, facts.direct_off)
        return f"gets ask, though they could read the items where they lie: rdma_direct is off: {reason}"
    return (
        "gets ask: this process cannot map the server's items (ulimit -v), or has another clock (a time namespace of"
        " its own)"
    )


def show(facts: Facts, findings: Sequence[Finding], taken: str, notes: Sequence[str]) -> None:
    ours = f"rmemcached {facts.rmemcached_version}, memcached" if facts.rmemcached_version else "memcached"
    print(f"server {facts.server}: {ours} {facts.server_version}, {'this host' if facts.local else 'another host'}")
    print(f"  its devices: {', '.join(facts.server_devices) or 'none'}")
    print(f"client: rmemcached {facts.client_version}; RDMA devices: {', '.join(facts.client_devices) or 'none'}")
    print(f"a client takes: {taken}")
    for note in notes:
        print(f"  {note}")
    print(f"\n{'transport':10}{'':10}{'get p50':>10}{'p99 [us]':>10}{'1 MB set':>10}{'get [MB/s]':>12}")
    for one in findings:
        figures = (
            f"{shown(one.p50):>10}{shown(one.p99):>10}{shown(one.set_bandwidth):>10}{shown(one.get_bandwidth):>12}"
        )
        print(f"{one.transport:10}{one.state:10}{figures}")
    for one in findings:
        if ROWS[one.transport].near and one.state == USABLE and facts.direct:
            print(f"\n{one.transport}: {reads(facts, one)}")
        if one.why:
            print(f"\n{one.transport}: {one.why}")
            if one.change:
                print(f"  to change: {one.change}")


def examine(examination: Examination, as_json: bool) -> int:
    """Does all steps, and prints the report. Returns the exit status. Raises FAILURES if there is no connection."""
    examination.look()
    taken, reasons = examination.choose()
    notes = reasons
    if examination.wanted != "auto":
        notes = [f"but {examination.pinned_by} pins {examination.wanted}", *reasons]
    try:
        findings = [examination.try_one(transport) for transport in examination.transports()]
    finally:
        examination.leave()
    status, lost = verdict(findings), ""
    try:
        notes = [*notes, *examination.look_again()]
    except FAILURES as error:
        status, lost = 2, examination.explain_loss(error)
    if as_json:
        document = {
            **({"error": lost} if lost else {}),
            "facts": asdict(examination.facts),
            "taken": taken,
            "pinned": examination.wanted,
            "reasons": reasons,
        }
        print(json.dumps({**document, "transports": [asdict(one) for one in findings], "status": status}, indent=2))
    else:
        show(examination.facts, findings, taken, notes)
    if lost:
        sys.stdout.flush()
        print(f"rmemcached-doctor: in the end the server does not answer: {lost}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmemcached-doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "server", metavar="SERVER", help="HOST, HOST:PORT, the path of a UNIX socket, or a client's URL"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--timeout", type=float, default=3.0, metavar="SECONDS", help="for each wait (default: 3; 0.1 to 60)"
    )
    parser.add_argument("--rdma-cm-port", type=int, metavar="PORT", help="try rdma_cm, too, at this port of the server")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not 0.1 <= options.timeout <= 60:
        parser.error(f"--timeout is 0.1 to 60 seconds, not {options.timeout:g}")
    try:
        examination = Examination(options.server, options.timeout, options.rdma_cm_port)
    except ValueError as error:
        parser.error(clean(error))
    try:
        status = examine(examination, options.json)
    except FAILURES as error:
        text = examination.explain_loss(error)
        if options.json:
            print(json.dumps({"error": text, "status": 2}))
        print(f"rmemcached-doctor: {text}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.daemon for thread in threading.enumerate()):
        # A waiting thread would delay the interpreter's end.
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Two processes that measure together: how they agree on a test, connect, and run it.

They talk over a control connection, in lines of JSON. The client chooses the test, both exchange the addresses of their
queue pairs, and they wait for each other before and after each size. The stream of a software device's queue pair is a
second connection. The client measures, and sends the figures to the server.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rmemcached import verbs
from rmemcached.perftest.ends import CONTROL, BrokenError, End, EndError

PROTOCOL = 1
LINE_MAX = 65536
PIECE = 900  # bytes received at a time: malloc reuses blocks of this size, so tests can measure memory
SIZE_MAX = 1 << 23
MB = 1 << 20  # as perftest counts
PATIENCE = 10.0  # seconds for the peer to answer while nothing is measured
WARM_UP = 100  # messages before the measurement; WARM_UP_BYTES limits large messages
WARM_UP_BYTES = 8 << 20


class SessionError(Exception):
    """One line with the reason for no measurement."""


class PeerError(SessionError):
    """The peer gave the reason, or is gone: so this side need not tell the peer."""


@dataclass(frozen=True)
class Test:
    """A test as both sides need it. iterations: for each size, unless `seconds` is not 0."""

    verb: str
    kind: str
    sizes: Sequence[int]
    iterations: int
    seconds: float = 0
    bidirectional: bool = False
    crc: bool = False
    tx_depth: int = 1
    rx_depth: int = 512
    moderation: int = 1
    inline_size: int = 0

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.kind}"


@dataclass(frozen=True)
class Device:
    """The device of this side, and its settings."""

    name: str
    port: int = 0
    gid_index: int = -1
    events: bool = False
    mtu: int = 0
    reads: int = 0


class Control:
    """The control connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""

    def send(self, **message: Any) -> None:
        try:
            self.sock.settimeout(PATIENCE)
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PeerError(f"the other side is gone: {error.strerror or error}") from None

    def receive(self, *wanted: str, patience: float | None = PATIENCE) -> Any:
        """Returns the values of these keys in the next message, or the value of a single key. Raises PeerError."""
        while b"\n" not in self.rest:
            try:
                self.sock.settimeout(patience)
                more = self.sock.recv(PIECE)
            except TimeoutError:
                raise PeerError(f"the other side was silent for {patience:.0f} s") from None
            except OSError as error:
                raise PeerError(f"the other side is gone: {error.strerror or error}") from None
            if not more:
                raise PeerError("the other side is gone: it closed the connection")
            self.rest += more
            if len(self.rest) > LINE_MAX:
                break
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict) and "error" in message:
            raise PeerError(f"the other side: {message['error']}")
        if not isinstance(message, dict) or any(name not in message for name in wanted):
            raise PeerError("the other side is not a rmemcached-perftest of this version")
        values = [message[name] for name in wanted]
        return values[0] if len(values) == 1 else values

    def complain(self, text: str) -> None:
        """Tells the peer why this side ends."""
        with contextlib.suppress(SessionError):
            self.send(error=text)

    def explain(self) -> None:
        """Raises PeerError if the peer has told the reason of a failure, or has gone."""
        if select.select([self.sock], [], [], 0.5)[0]:
            self.receive()

    def close(self) -> None:
        self.sock.close()


def read_request(sock: socket.socket) -> bytes:
    """Reads an MPA request frame, and nothing behind it."""
    data = b""
    sock.settimeout(PATIENCE)
    try:
        while verbs.parse_request(data) is None:
            length = 20 if len(data) < 20 else 20 + int.from_bytes(data[18:20], "big")
            more = sock.recv(length - len(data))
            if not more:
                raise PeerError("the other side is gone: its stream ended")
            data += more
    except OSError as error:
        raise PeerError(f"the stream of the queue pair: {error.strerror or error}") from None
    return data


def give_stream(end: End, sock: socket.socket, client: bool, crc: bool, which: int = 0) -> None:
    """Makes a connected socket the queue pair's stream. On an iWARP device the client does so first."""
    request = read_request(sock) if end.fabric.iwarp and not client else None
    sock.setblocking(False)
    end.stream(sock, request, crc=crc, which=which)


def open_end(control: Control, test: Test, device: Device) -> End:
    end = End(
        device.name,
        device.port,
        device.gid_index,
        control=control.sock.fileno(),
        size=max(test.sizes),
        events=device.events,
        tx_depth=test.tx_depth,
        rx_depth=test.rx_depth,
        inline_size=test.inline_size,
        mtu=device.mtu,
        reads=device.reads,
    )
    try:
        end.add()
    except BaseException:
        end.close()
        raise
    return end


def agree_as_client(control: Control, test: Test, fabric: str) -> None:
    control.send(perftest=PROTOCOL, fabric=fabric, test=asdict(test))
    control.receive("agreed")


def agree_as_server(control: Control, required: dict[str, Any], fabric: str) -> Test:
    """Returns the client's test. `required`: the values of its fields required by this side."""
    version, peer_fabric, values = control.receive("perftest", "fabric", "test", patience=PATIENCE)
    try:
        test = Test(**{field.name: values[field.name] for field in fields(Test)})
        usable = version == PROTOCOL and all(1 <= size <= SIZE_MAX for size in test.sizes) and test.sizes
    except (TypeError, KeyError):
        usable = False
    if not usable:
        raise PeerError("the other side is not a rmemcached-perftest of this version")
    if peer_fabric != fabric:
        raise SessionError(f"the server uses {fabric}, the client {peer_fabric}")
    ours = f"{required['verb']}_{required['kind']}"
    if ours != test.name:
        raise SessionError(f"the server runs {ours}, the client {test.name}")
    for name, value in required.items():
        if getattr(test, name) != value:
            raise SessionError(f"the server has {name} {value}, the client {getattr(test, name)}")
    control.send(agreed=True)
    return test


def connect(
    end: End, control: Control, test: Test, client: bool, stream: Callable[[], socket.socket] | None, which: int = 0
) -> None:
    """Brings one queue pair up. stream: makes the second connection; None if the device needs none."""
    control.send(address=end.address(which))
    end.connect(control.receive("address"), which)
    if stream is not None:
        if client:
            give_stream(end, stream(), True, test.crc, which)
            control.send(streaming=True)
        else:
            control.receive("streaming")
            give_stream(end, stream(), False, test.crc, which)
    control.send(connected=True)
    control.receive("connected")


def prepare(end: End, test: Test, size: int, iterations: int | None, client: bool, measured: bool) -> None:
    """Sets up this side of a run. iterations: None if `test.seconds` ends the run. measured: False for the warm-up."""
    seconds = test.seconds if measured and iterations is None else 0
    if test.kind == "lat":
        end.prepare_test(
            test.verb,
            size,
            total=iterations if client else None,
            seconds=seconds if client else 0,
            # Each READ is posted after the completion of the READ before.
            moderation=1 if test.verb == "read" else min(test.moderation, test.tx_depth),
            stamps=measured and client and iterations is not None,
        )
        return
    sends = client or test.bidirectional
    receives = (test.bidirectional or not client) and test.verb == "send"
    moderation = min(test.moderation, test.tx_depth)
    groups = 0 if iterations is None else math.ceil(iterations / moderation)
    end.prepare_test(
        test.verb,
        size,
        total=iterations if sends else None,
        seconds=seconds if sends else 0,
        expected=iterations if receives else None,
        moderation=moderation,
        credit_every=max(1, min(test.rx_depth // 4, (4 << 20) // size)) if test.verb == "send" else 0,
        # The search for the best stretch looks at all pairs of groups, and would take long for more groups.
        peak=measured and sends and 0 < groups <= 5000,
    )


def loop(end: End, control: Control, name: str) -> bool:
    """Runs a loop of the end. True if the test is done, False if the control connection is readable."""
    try:
        return bool(end.run(name) != CONTROL)
    except BrokenError:
        control.explain()
        raise


def course_as_client(end: End, control: Control, test: Test) -> Any:
    """Runs the test once and returns the server's result."""
    if not loop(end, control, "ping" if test.kind == "lat" else "flow"):
        control.receive("nothing but an error")
    control.send(done=True)
    loop(end, control, "serve")
    return control.receive("result", patience=PATIENCE + 2 * test.seconds)


def course_as_server(end: End, control: Control, test: Test) -> None:
    """Serves a test until the client is done, and sends this side's result."""
    flows = test.kind == "bw" and test.bidirectional
    done = False
    while flows and not loop(end, control, "flow"):
        done = control.receive("done")
        end.ignore_control()
    result = end.rate() if flows else None
    if not done:
        loop(end, control, "serve" if test.kind == "bw" or test.verb == "read" else "pong")
        control.receive("done")
    control.send(result=result)


def measure_as_client(end: End, control: Control, test: Test, size: int) -> dict[str, Any]:
    """Measures one size, and returns its row of the report."""
    warm_up = max(2, min(WARM_UP, WARM_UP_BYTES // size, test.iterations))
    theirs = None
    for iterations, measured in ((warm_up, False), (None if test.seconds else test.iterations, True)):
        prepare(end, test, size, iterations, True, measured)
        control.send(size=size, iterations=iterations, measured=measured)
        control.receive("ready")
        theirs = course_as_client(end, control, test)
    row = latency_row(end, test, size) if test.kind == "lat" else bandwidth_row(end, theirs, size)
    control.send(row=row)
    return row


def measure_as_server(end: End, control: Control, test: Test) -> dict[str, Any] | None:
    """Serves one size and returns the client's row, or None when there are no more sizes."""
    for _ in range(2):
        size, iterations, measured = control.receive("size", "iterations", "measured")
        if size is None:
            return None
        prepare(end, test, size, iterations, False, measured)
        control.send(ready=True)
        course_as_server(end, control, test)
    row: dict[str, Any] = control.receive("row", patience=PATIENCE + 10)
    return row


def end_session(control: Control) -> None:
    control.send(size=None, iterations=None, measured=None)


def latency_row(end: End, test: Test, size: int) -> dict[str, Any]:
    """A row of latencies in microseconds, named as in perftest's JSON: of half the round trip for SEND and WRITE."""
    factor = 1e6 if test.verb == "read" else 0.5e6
    if test.seconds:
        count, seconds, _ = end.rate()
        count = max(count, 1)
        return {
            "MsgSize": size,
            "n_iterations": count,
            "t_avg": seconds / count * factor,
            "tps_average": count / seconds,
        }
    times = sorted(seconds * factor for seconds in end.latencies())
    last = len(times) - 1
    return {
        "MsgSize": size,
        "n_iterations": len(times),
        "t_min": times[0],
        "t_max": times[-1],
        "t_typical": statistics.median(times),
        "t_avg": statistics.fmean(times),
        "t_stdev": statistics.pstdev(times),
        "percentile_99": times[min(last, math.ceil(len(times) * 0.99))],
        "percentile_99.9": times[min(last, math.ceil(len(times) * 0.999))],
    }


def bandwidth_row(end: End, theirs: tuple[int, float, float] | None, size: int) -> dict[str, Any]:
    """A row of bandwidths: MB (2^20 bytes) and millions of messages per second, both directions together. A peak of 0
    was not measured."""
    count = peak = rate = 0.0
    for messages, seconds, best in (end.rate(), *([theirs] if theirs else [])):
        count += messages
        rate += messages / seconds
        peak += best
    return {
        "MsgSize": size,
        "n_iterations": int(count),
        "BW_peak": peak * size / MB,
        "BW_average": rate * size / MB,
        "MsgRate": rate / 1e6,
    }


__all__ = [
    "MB",
    "SIZE_MAX",
    "Control",
    "Device",
    "EndError",
    "PeerError",
    "SessionError",
    "Test",
    "agree_as_client",
    "agree_as_server",
    "connect",
    "end_session",
    "give_stream",
    "measure_as_client",
    "measure_as_server",
    "open_end",
]

"""rmemcached-perftest: latency and bandwidth of SEND, WRITE and READ, with the options and columns of perftest's tools.

    rmemcached-perftest send lat -d soft_iw0               # a server, on one host
    rmemcached-perftest send lat -d soft_iw0 HOST          # its client, on another
    rmemcached-perftest read bw -d soft_shm0 -a --local    # both, in one command
    rmemcached-perftest write bw -d soft_iw0 -s 64k --local

Both sides use devices of one kind. The client's sizes, iterations and the like hold for the server too.
Latencies are half round trips for SEND and WRITE, as perftest's, and whole ones for READ; MB is 2^20 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import secrets
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rmemcached import verbs
from rmemcached.perftest import session
from rmemcached.perftest.ends import ALWAYS_THERE, Fabric, fabric_of
from rmemcached.perftest.session import Control, Device, EndError, PeerError, SessionError, Test
from rmemcached.verbs import port as ports

PORT = 18515
TOKEN_SIZE = 16
SIZES_ALL = tuple(1 << power for power in range(1, 24))
LINE = "-" * 88
KINDS = {"lat": "latency", "bw": "bandwidth"}
LATENCY_COLUMNS = (
    ("t_min[usec]", "t_min"),
    ("t_max[usec]", "t_max"),
    ("t_typical[usec]", "t_typical"),
    ("t_avg[usec]", "t_avg"),
    ("t_stdev[usec]", "t_stdev"),
    ("99% percentile[usec]", "percentile_99"),
    ("99.9% percentile[usec]", "percentile_99.9"),
)
DURATION_COLUMNS = (("t_avg[usec]", "t_avg"), ("tps average", "tps_average"))
BANDWIDTH_COLUMNS = (
    ("BW peak[MB/sec]", "BW_peak"),
    ("BW average[MB/sec]", "BW_average"),
    ("MsgRate[Mpps]", "MsgRate"),
)


def columns(test: Test) -> tuple[tuple[str, str], ...]:
    """The columns behind #bytes and #iterations: (heading, name in the row)."""
    if test.kind == "bw":
        return BANDWIDTH_COLUMNS
    return DURATION_COLUMNS if test.seconds else LATENCY_COLUMNS


def heading(test: Test) -> str:
    return " #bytes   #iterations" + "".join(f"   {title:>11}" for title, _ in columns(test))


def line(test: Test, row: dict[str, Any]) -> str:
    text = f" {row['MsgSize']:<8} {row['n_iterations']:<11}"
    for title, name in columns(test):
        text += f"   {row[name]:>{max(len(title), 11)}.{6 if name == 'MsgRate' else 2}f}"
    return text


def plot(test: Test, device: str, rows: list[dict[str, Any]], path: str) -> None:
    """Draws the rows over the message size; the ending of the path chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 4.5))
    sizes = [row["MsgSize"] for row in rows]
    for title, name in columns(test):
        if name in ("t_typical", "t_avg", "percentile_99", "BW_peak", "BW_average"):
            panel.plot(sizes, [row[name] for row in rows], marker="o", markersize=4, label=title)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel("bytes")
    panel.set_title(f"{test.name}, {device}")
    panel.grid(True, which="both", alpha=0.25)
    panel.legend()
    figure.tight_layout()
    figure.savefig(path)


def socket_path(port: str) -> str:
    """The UNIX socket where two sides of soft_shm meet: the given path, or a private path for the port number."""
    if "/" in port:
        return port
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return str(Path(folder) / f"rmemcached-perftest.{os.getuid()}.{port}")


def reason(error: OSError) -> str:
    """The system's message, without the additions of create_server."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


@contextlib.contextmanager
def listening(port: str, bind: str, shm: bool) -> Iterator[socket.socket]:
    """The server's socket. Raises SessionError with one line."""
    where = socket_path(port) if shm else f"{bind or '*'}:{port}"
    try:
        listener = listen_unix(where) if shm else listen_tcp(port, bind)
    except OSError as error:
        raise SessionError(f"cannot listen on {where}: {reason(error)}") from None
    try:
        yield listener
    finally:
        listener.close()
        if shm:
            with contextlib.suppress(OSError):
                os.unlink(where)


def listen_tcp(port: str, bind: str) -> socket.socket:
    if bind:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        return socket.create_server((bind, int(port)), family=family, backlog=4)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", int(port)), family=family, backlog=4, dualstack_ipv6=dual)


def is_port(text: str) -> bool:
    """Whether -p is a TCP port from 1 to 65535."""
    return text.isdecimal() and 0 < int(text) < 65536


@contextlib.contextmanager
def other_kinds(port: str, bind: str, shm: bool) -> Iterator[list[socket.socket]]:
    """Sockets for clients of other devices, so both sides learn of the difference.

    A server of soft_shm listens on the TCP port, too, unless the port is taken: then a client meets the port's owner.
    """
    found = []
    if shm and is_port(port):
        with contextlib.suppress(OSError):
            found.append(listen_tcp(port, bind))
    try:
        yield found
    finally:
        for listener in found:
            listener.close()


def listen_unix(path: str) -> socket.socket:
    """Returns a listening socket for this user alone. Replaces the socket of a killed server."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        if Path(path).is_socket():
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def dial_control(host: str, port: str, shm: bool) -> socket.socket:
    """Makes the control connection. Without a server of soft_shm, a server of another device may answer on the TCP
    port."""
    try:
        return dial(host, port, shm)
    except SessionError:
        if shm and is_port(port):
            with contextlib.suppress(SessionError):
                return dial(host, port, False)
        raise


def dial(host: str, port: str, shm: bool) -> socket.socket:
    where = socket_path(port) if shm else f"{host}:{port}"
    try:
        if not shm:
            return socket.create_connection((host, int(port)), session.PATIENCE)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(session.PATIENCE)
            sock.connect(where)
        except OSError:
            sock.close()
            raise
        return sock
    except OSError as error:
        raise SessionError(f"cannot connect to {where}: {reason(error)}") from None


def accept_stream(listener: socket.socket, token: bytes) -> socket.socket:
    """Accepts the connection beginning with the token known to the peer. Closes all connections before."""
    listener.settimeout(session.PATIENCE)
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            raise PeerError("the other side did not connect its queue pair") from None
        sock.settimeout(1)
        with contextlib.suppress(OSError):
            if sock.recv(TOKEN_SIZE, socket.MSG_WAITALL) == token:
                return sock
        sock.close()


def dial_stream(host: str, port: str, shm: bool, token: bytes) -> socket.socket:
    sock = dial(host, port, shm)
    sock.sendall(token)
    return sock


def find_device(name: str | None, port: int, gid_index: int) -> str:
    """Returns the device's name. Without a name: the first usable device of the system, or else soft_iw0."""
    if name is not None and fabric_of(name).stream:
        return name
    try:
        return str(ports.choose("system", name, port, gid_index)["device"])
    except OSError as error:
        if name is None:
            return ALWAYS_THERE
        raise SessionError(f"{error}; software devices: {', '.join(verbs.devices())}") from None


class Side:
    """One side of a session: its device and its control connection."""

    def __init__(self, device: Device, fabric: Fabric, control: Control, shown: bool) -> None:
        self.device = device
        self.fabric = fabric
        self.control = control
        self.shown = shown

    def show_head(self, test: Test, end: Any) -> None:
        if self.shown:
            mtu = "" if end.fabric.stream else f", MTU {end.mtu}"
            print(LINE)
            print(f" {test.verb.upper()} {KINDS[test.kind]}: {end.device}{mtu}{', CRC' if test.crc else ''}")
            print(
                f" {'events' if self.device.events else 'polling'}, TX depth {test.tx_depth}, RX depth {test.rx_depth},"
                f" a completion for {test.moderation}, inline {test.inline_size}"
            )
            print(LINE)
            print(heading(test), flush=True)

    def show(self, test: Test, row: dict[str, Any]) -> None:
        if self.shown:
            print(line(test, row), flush=True)

    def serve(self, required: dict[str, Any], stream: Callable[[bytes], socket.socket]) -> None:
        test = session.agree_as_server(self.control, required, self.fabric.name)
        with contextlib.closing(session.open_end(self.control, test, self.device)) as end:
            token = secrets.token_bytes(TOKEN_SIZE)
            self.control.send(token=token.hex())
            session.connect(end, self.control, test, False, (lambda: stream(token)) if end.fabric.stream else None)
            self.show_head(test, end)
            while (row := session.measure_as_server(end, self.control, test)) is not None:
                self.show(test, row)

    def measure(self, test: Test, stream: Callable[[bytes], socket.socket]) -> list[dict[str, Any]]:
        session.agree_as_client(self.control, test, self.fabric.name)
        with contextlib.closing(session.open_end(self.control, test, self.device)) as end:
            token = bytes.fromhex(self.control.receive("token"))
            session.connect(end, self.control, test, True, (lambda: stream(token)) if end.fabric.stream else None)
            self.show_head(test, end)
            rows = []
            for size in test.sizes:
                rows.append(session.measure_as_client(end, self.control, test, size))
                self.show(test, rows[-1])
            session.end_session(self.control)
        return rows


@contextlib.contextmanager
def complaining(control: Control) -> Iterator[None]:
    """Reports an error of this side to the peer."""
    try:
        with contextlib.closing(control):
            try:
                yield
            except PeerError:
                raise
            except (SessionError, EndError, OSError) as error:
                control.complain(str(error))
                raise
    finally:
        control.close()


def run_server(options: argparse.Namespace, device: Device, fabric: Fabric) -> None:
    shm = fabric.near
    with (
        listening(options.port, options.bind, shm) as listener,
        other_kinds(options.port, options.bind, shm) as others,
    ):
        if not options.quiet:
            where = socket_path(options.port) if shm else f"port {listener.getsockname()[1]}"
            print(f"waiting for a client on {where}", flush=True)
        ready, _, _ = select.select([listener, *others], [], [])
        sock, _ = ready[0].accept()
        control = Control(sock)
        with complaining(control):
            side = Side(device, fabric, control, not options.quiet)
            side.serve(required(options), lambda token: accept_stream(listener, token))


def run_client(options: argparse.Namespace, test: Test, device: Device, fabric: Fabric) -> list[dict[str, Any]]:
    shm = fabric.near
    control = Control(dial_control(options.host, options.port, shm))
    with complaining(control):
        side = Side(device, fabric, control, not options.quiet)
        return side.measure(test, lambda token: dial_stream(options.host, options.port, shm, token))


def run_local(options: argparse.Namespace, test: Test, device: Device, fabric: Fabric) -> list[dict[str, Any]]:
    """Runs both sides, in two processes. The client's side reports errors of the server's side."""
    ours, theirs = socket.socketpair()
    streams = stream_pair(fabric)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ours.close()
            streams[0].close()
            control = Control(theirs)
            with contextlib.suppress(SessionError, EndError, OSError), complaining(control):
                Side(device, fabric, control, False).serve(required(options), lambda token: streams[1])
                status = 0
        finally:
            os._exit(status)
    theirs.close()
    streams[1].close()
    control = Control(ours)
    try:
        with complaining(control):
            return Side(device, fabric, control, not options.quiet).measure(test, lambda token: streams[0])
    finally:
        os.waitpid(child, 0)


def stream_pair(fabric: Fabric) -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets of the fabric's kind."""
    if fabric.near or not fabric.stream:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


def message_size(text: str) -> int:
    """Parses a size: 4096, 64k or 1m, where k is 1024."""
    found = re.fullmatch(r"([0-9]+)([km]?)", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number, with k or m behind it if you like, not {text}")
    return int(found[1]) << {"": 0, "k": 10, "m": 20}[found[2]]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmemcached-perftest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("verb", choices=("send", "read", "write"))
    add("kind", choices=("lat", "bw"))
    add("host", nargs="?", help="of the server; without it this is the server")
    add("--local", action="store_true", help="run server and client as two processes, here")
    add("-d", "--ib-dev", metavar="DEV", help="of libibverbs, soft_iw0 or soft_shm0 (default: the first there is)")
    add("-i", "--ib-port", type=int, default=0, metavar="PORT", help="of the device (default: the first active one)")
    add("-x", "--gid-index", type=int, default=-1, metavar="INDEX", help="(default: RoCE v2 and IPv4 before others)")
    add(
        "-s",
        "--size",
        type=message_size,
        metavar="BYTES",
        help="of a message, with k or m behind it for 2^10 or 2^20 (default: 2 for lat, 64k for bw)",
    )
    add("-a", "--all", action="store_true", help="all sizes from 2 to 2^23")
    add("-n", "--iters", type=int, metavar="N", help="messages (default: 1000; 5000 for write bw)")
    add("-D", "--duration", type=float, metavar="SECONDS", help="instead of a number of messages")
    add("-b", "--bidirectional", action="store_true", help="bw: both sides send; the sum is shown")
    add("-t", "--tx-depth", type=int, metavar="N", help="of the send queue (default: 1 for lat, 128 for bw)")
    add("-r", "--rx-depth", type=int, metavar="N", help="receives for SENDs (default: 512)")
    add("-Q", "--cq-mod", type=int, metavar="N", help="messages for one completion (default: 100; 1 above 8 KB)")
    add(
        "-I",
        "--inline_size",
        type=int,
        metavar="BYTES",
        help="inline up to this (default: send lat 236, write 220)",
    )
    add("-o", "--outs", type=int, default=0, metavar="N", help="READs under way (default: the device's limit)")
    add("-m", "--mtu", type=int, default=0, metavar="BYTES", help="of the path (default: the port's)")
    add("-e", "--events", action="store_true", help="sleep instead of polling")
    add("-p", "--port", default=str(PORT), help=f"where the two meet; TCP, or a UNIX socket's path (default: {PORT})")
    add("--bind", default="", metavar="ADDRESS", help="server: listen there only")
    add("--crc", action="store_true", help="soft_iw0: with CRC32c")
    add("--json", metavar="FILE", help="write the figures there; - for stdout, without the table")
    add("--plot", metavar="FILE", help="draw them over the size; the format follows the name (.svg, .png)")
    return parser


def parse(arguments: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = make_parser()
    options = parser.parse_intermixed_args(arguments)
    options.quiet = options.json == "-"
    return parser, options


def required(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what the server requires of the client's test: the options on the server's command line."""
    wanted: dict[str, Any] = {"verb": options.verb, "kind": options.kind}
    if options.size is not None or options.all:
        wanted["sizes"] = list(SIZES_ALL) if options.all else [options.size]
    for name, value in (
        ("iterations", options.iters),
        ("seconds", options.duration),
        ("bidirectional", options.bidirectional or None),
        ("crc", options.crc or None),
    ):
        if value is not None:
            wanted[name] = value
    return wanted


def make_test(options: argparse.Namespace) -> Test:
    lat = options.kind == "lat"
    size = options.size if options.size is not None else 2 if lat else 65536
    tx_depth = options.tx_depth if options.tx_depth is not None else 1 if lat else 128
    inline = options.inline_size
    if inline is None:
        inline = {"send": 236, "write": 220, "read": 0}[options.verb] if lat else 0
    moderation = options.cq_mod
    if moderation is None:
        moderation = 1 if size > 8192 or options.all else 100
    iterations = options.iters
    if iterations is None:
        iterations = 5000 if (options.verb, options.kind) == ("write", "bw") else 1000
    return Test(
        verb=options.verb,
        kind=options.kind,
        sizes=list(SIZES_ALL) if options.all else [size],
        iterations=iterations,
        seconds=options.duration or 0.0,
        bidirectional=options.bidirectional,
        crc=options.crc,
        tx_depth=tx_depth,
        rx_depth=options.rx_depth if options.rx_depth is not None else 512,
        moderation=min(moderation, tx_depth),
        inline_size=inline,
    )


def check(options: argparse.Namespace, fabric: Fabric) -> str | None:
    """Returns an error in the options, in one line, or None."""
    limits = {
        "size": (1, session.SIZE_MAX),
        "iters": (5, 1 << 26),
        "tx_depth": (1, 15000),
        "rx_depth": (1, 15000),
        "cq_mod": (1, 1024),
        "inline_size": (0, 1024),
        "outs": (0, 255),
    }
    for name, (low, high) in limits.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            return f"--{name.replace('_', '-')} is {low} to {high}, not {value}"
    if options.duration is not None and not 0 < options.duration <= 86400:
        return f"--duration is up to 86400 seconds, not {options.duration:g}"
    if options.duration is not None and options.iters is not None:
        return "--iters and --duration exclude each other"
    if options.all and options.size is not None:
        return "--all and --size exclude each other"
    if options.bidirectional and options.kind == "lat":
        return "--bidirectional is for bw"
    if options.verb == "read" and options.inline_size:
        return "a READ is never inline"
    if options.events and (options.verb, options.kind) == ("write", "lat"):
        return "write lat has no events: who waits for a WRITE looks at its memory"
    if options.crc and not fabric.iwarp:
        return "--crc is for soft_iw0"
    if options.host and options.local:
        return "--local needs no host"
    if options.host and fabric.near and options.host not in ("localhost", "127.0.0.1", "::1"):
        return "soft_shm0 connects processes of one host: the host is localhost"
    if not fabric.near and not options.local and not (options.port.isdecimal() and int(options.port) < 65536):
        return f"--port is a TCP port, not {options.port}"
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        return "--plot needs matplotlib: pip install matplotlib"
    if not (options.host or options.local) and (options.json or options.plot):
        return "--json and --plot are for the client"
    return None


def main(arguments: list[str] | None = None) -> int:
    """The console script. Returns 0, or 1 with one line on stderr if no measurement is possible. Exits with 2 for wrong
    arguments."""
    parser, options = parse(arguments)
    # The loops run without Python, so no handler of Python would see a Ctrl-C: the signal ends the process itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        name = find_device(options.ib_dev, options.ib_port, options.gid_index)
        fabric = fabric_of(name)
        wrong = check(options, fabric)
        if wrong:
            parser.error(wrong)
        device = Device(name, options.ib_port, options.gid_index, options.events, options.mtu, options.outs)
        if not options.host and not options.local:
            run_server(options, device, fabric)
            return 0
        test = make_test(options)
        rows = (run_local if options.local else run_client)(options, test, device, fabric)
    except (SessionError, EndError) as error:
        print(f"rmemcached-perftest: {error}", file=sys.stderr)
        return 1
    text = json.dumps({"test": test.name, "device": name, "options": asdict(test), "results": rows}, indent=2)
    if options.plot:
        plot(test, name, rows, options.plot)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(text + "\n")
    return 0

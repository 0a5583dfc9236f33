"""rmemcached-perftest: every test over every software device, and clean errors."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from servers import free_port
from transport import RDMA, rounds

from rmemcached import verbs

COMMAND = (sys.executable, "-P", "-m", "rmemcached.perftest")
# The software devices, or libibverbs' first where the tests' transport is "verbs".
DEVICES = tuple(verbs.devices("system")[:1]) if RDMA == "verbs" else ("soft_iw0", "soft_shm0")
LATENCY = (
    "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec]"
    " 99% percentile[usec] 99.9% percentile[usec]"
)
BANDWIDTH = "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]"


def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run((*COMMAND, *arguments), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def table(printed: str, heading: str) -> list[list[float]]:
    """The figures below the heading."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [[float(word) for word in line.split()] for line in lines[lines.index(heading) + 1 :]]


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("64k", 65536), ("4K", 4096), ("1m", 1048576)])
def test_sizes(text: str, size: int) -> None:
    figures = json.loads(run("send", "lat", "-d", "soft_shm0", "--local", "-n", "5", "-s", text, "--json", "-").stdout)
    assert [row["MsgSize"] for row in figures["results"]] == [size]


def is_plausible_latency(row: list[float]) -> bool:
    _, _, least, most, typical, average, deviation, p99, p999 = row
    return 0 < least <= typical <= p99 <= p999 <= most and least <= average <= most and deviation <= most


@pytest.mark.device("polled completions")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", ["send", "write", "read"])
def test_latency(device: str, verb: str) -> None:
    printed = run(verb, "lat", "-d", device, "--local", "-n", "20", "-s", "100").stdout
    (row,) = table(printed, LATENCY)
    assert row[:2] == [100, 20] and is_plausible_latency(row)


@pytest.mark.device("many requests")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", ["send", "write", "read"])
@pytest.mark.parametrize("options", [(), ("-e",), ("-b",)], ids=" ".join)
def test_bandwidth(device: str, verb: str, options: tuple[str, ...]) -> None:
    printed = run(verb, "bw", "-d", device, "--local", "-n", str(rounds(300)), "-s", "4000", *options).stdout
    ((size, count, peak, average, rate),) = table(printed, BANDWIDTH)
    assert (size, count) == (4000, rounds(300) * (2 if "-b" in options else 1))
    assert 0 < average <= peak * 1.01
    assert average == pytest.approx(rate * 1e6 * 4000 / 2**20, rel=0.02, abs=0.02)


@pytest.mark.parametrize("options", [("8",), ("8", "-b"), ("2000", "-r", "16"), ("9000", "-b")], ids=" ".join)
def test_shared_memory_at_full_rate(options: tuple[str, ...]) -> None:
    """Two processes write and read the rings all the time: each looks in the middle of the peer's work."""
    count = 500_000 if options[0] == "8" else 50_000
    printed = run("send", "bw", "-d", "soft_shm0", "--local", "-n", str(count), "-s", *options).stdout
    assert table(printed, BANDWIDTH)[0][1] == (2 * count if "-b" in options else count)


@pytest.mark.parametrize("device", DEVICES)
def test_all_sizes_with_figures_and_picture(device: str, tmp_path: Path) -> None:
    target, picture = tmp_path / "out.json", tmp_path / "out.svg"
    printed = run(
        "read", "bw", "-a", "-n", "5", "-d", device, "--local", "--json", str(target), "--plot", str(picture)
    ).stdout
    rows = table(printed, BANDWIDTH)
    assert [row[0] for row in rows] == [2**power for power in range(1, 24)]
    figures = json.loads(target.read_text())
    assert figures["test"] == "read_bw" and figures["device"] == device
    assert [row["MsgSize"] for row in figures["results"]] == [row[0] for row in rows]
    assert all(row["BW_average"] > 0 and row["n_iterations"] == 5 for row in figures["results"])
    assert picture.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("kind", ["lat", "bw"])
def test_duration(kind: str) -> None:
    figures = json.loads(run("send", kind, "-d", "soft_shm0", "--local", "-D", "0.1", "--json", "-").stdout)
    (row,) = figures["results"]
    assert row["n_iterations"] > 0
    assert row["tps_average" if kind == "lat" else "BW_average"] > 0


@pytest.mark.parametrize(
    "options",
    [
        ("-t", "7", "-Q", "3"),
        ("-r", "1", "-t", "50", "-Q", "50"),
        ("-n", "5", "-s", "8388608"),
        ("-o", "1"),
        ("--crc",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("verb", ["send", "write", "read"])
def test_depths(verb: str, options: tuple[str, ...]) -> None:
    count = ("-n", "101") if "-n" not in options else ()
    printed = run(verb, "bw", "-d", "soft_iw0", "--local", "-s", "64", *count, *options).stdout
    assert len(table(printed, BANDWIDTH)) == 1


@pytest.mark.parametrize("verb", ["send", "write", "read"])
def test_latency_with_fewer_completions(verb: str) -> None:
    printed = run(verb, "lat", "-d", "soft_shm0", "--local", "-n", "50", "-t", "16", "-Q", "16").stdout
    assert is_plausible_latency(table(printed, LATENCY)[0])


def test_events_latency() -> None:
    for device in DEVICES:
        (row,) = table(run("send", "lat", "-d", device, "--local", "-n", "50", "-e", "-I", "0").stdout, LATENCY)
        assert is_plausible_latency(row)


class Server:
    """A listening server in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            (*COMMAND, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.match(r"waiting for a client on (?:port )?(\S+)\n", said)
        assert found, said
        self.where = found.group(1)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts servers, on a free port of the loopback interface, or on a UNIX socket."""
    servers = []

    def start(*arguments: str) -> Server:
        port = str(tmp_path / "meet") if "soft_shm0" in arguments else "0"
        servers.append(Server(*arguments, "-p", port, "--bind", "127.0.0.1"))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("test", [("send", "lat"), ("write", "bw")], ids=" ".join)
def test_two_commands(device: str, test: tuple[str, str], started: Any) -> None:
    server = started(*test, "-d", device)
    done = run(*test, "-d", device, "-n", "50", "-s", "300", "-p", server.where, "localhost")
    heading = LATENCY if test[1] == "lat" else BANDWIDTH
    status, out, err = server.end()
    assert (status, err) == (0, "")
    assert table(out, heading) == table(done.stdout, heading)
    assert not Path(server.where).exists()


@pytest.mark.parametrize(
    ("ours", "theirs", "complaint"),
    [
        (("send", "lat"), ("send", "bw"), "the server runs send_lat, the client send_bw"),
        (("read", "bw"), ("write", "bw"), "the server runs read_bw, the client write_bw"),
        (("send", "bw", "-s", "64"), ("send", "bw"), "the server has sizes [64], the client [65536]"),
        (("send", "bw", "-n", "10"), ("send", "bw"), "the server has iterations 10, the client 1000"),
    ],
)
def test_different_tests(ours: tuple[str, ...], theirs: tuple[str, ...], complaint: str, started: Any) -> None:
    server = started(*ours, "-d", "soft_iw0")
    done = run(*theirs, "-d", "soft_iw0", "-p", server.where, "127.0.0.1", status=1)
    assert done.stderr == f"rmemcached-perftest: the other side: {complaint}\n"
    assert server.end()[::2] == (1, f"rmemcached-perftest: {complaint}\n")


@pytest.mark.parametrize(("ours", "theirs"), [("soft_iw", "soft_shm"), ("soft_shm", "soft_iw")])
def test_different_devices(ours: str, theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends with different devices meet in different places, and neither waits for ever."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = str(free_port())
    server = Server("send", "lat", "-d", f"{ours}0", "-p", port, "--bind", "127.0.0.1")
    try:
        done = run("send", "lat", "-d", f"{theirs}0", "-p", port, "127.0.0.1", status=1)
        complaint = f"the server uses {ours}, the client {theirs}"
        assert done.stderr == f"rmemcached-perftest: the other side: {complaint}\n"
        assert server.end()[::2] == (1, f"rmemcached-perftest: {complaint}\n")
    finally:
        server.close()


def test_servers_of_both_devices_on_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of both devices on a port serve the clients of their own device."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = str(free_port())
    devices = ("soft_iw0", "soft_shm0")
    servers = [Server("send", "lat", "-d", device, "-p", port, "--bind", "127.0.0.1") for device in devices]
    try:
        for device, server in zip(devices, servers, strict=True):
            run("send", "lat", "-d", device, "-n", "5", "-p", port, "127.0.0.1")
            assert server.end()[::2] == (0, "")
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [("lat",), ("bw",), ("bw", "-e")], ids=" ".join)
@pytest.mark.parametrize("killed", ["server", "client"])
def test_one_side_is_killed(device: str, options: tuple[str, ...], killed: str, started: Any) -> None:
    kind, *more = options
    server = started("send", kind, "-d", device, *more)
    client = subprocess.Popen(
        (*COMMAND, "send", kind, "-d", device, "-D", "60", *more, "-p", server.where, "localhost"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        while not client.stdout.readline().lstrip().startswith("#bytes"):
            assert client.poll() is None
        victim, other = (server.process, client) if killed == "server" else (client, server.process)
        os.kill(victim.pid, signal.SIGKILL)
        _, err = other.communicate(timeout=20)
        assert other.returncode == 1
        assert re.fullmatch(r"rmemcached-perftest: the other side is gone: .*\n", err), err
    finally:
        if client.poll() is None:
            client.kill()
        client.communicate()


def test_port_is_busy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = run("send", "lat", "-d", "soft_iw0", "--bind", "127.0.0.1", "-p", port, status=1)
        assert done.stderr == f"rmemcached-perftest: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    path = str(tmp_path / "busy")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        done = run("send", "lat", "-d", "soft_shm0", "-p", path, status=1)
        assert done.stderr == f"rmemcached-perftest: cannot listen on {path}: Address already in use\n"


def test_socket_that_was_left_behind_is_replaced(tmp_path: Path, started: Any) -> None:
    first = started("send", "lat", "-d", "soft_shm0")
    first.close()
    assert Path(first.where).exists()
    second = started("send", "lat", "-d", "soft_shm0")
    run("send", "lat", "-d", "soft_shm0", "-n", "5", "-p", second.where, "localhost")
    assert second.end()[0] == 0


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    done = run("send", "lat", "-d", "soft_iw0", "-p", port, "127.0.0.1", status=1)
    assert done.stderr == f"rmemcached-perftest: cannot connect to 127.0.0.1:{port}: Connection refused\n"
    path = str(tmp_path / "nobody")
    done = run("send", "lat", "-d", "soft_shm0", "-p", path, "localhost", status=1)
    assert done.stderr == f"rmemcached-perftest: cannot connect to {path}: No such file or directory\n"


@pytest.mark.parametrize("sent", [b"", b"x", b"get key\r\n", b"{}\n", b'{"perftest": 1, "fabric": "", "test": 3}\n'])
def test_strange_client(sent: bytes, started: Any) -> None:
    server = started("send", "lat", "-d", "soft_iw0")
    with socket.create_connection(("127.0.0.1", int(server.where))) as sock:
        sock.sendall(sent)
        # The server may have closed the connection already.
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        status, _, err = server.end()
    assert status == 1
    assert re.fullmatch(r"rmemcached-perftest: the other side is (gone|not a rmemcached-perftest).*\n", err), err


def test_unknown_device() -> None:
    done = run("send", "lat", "-d", "nix0", "--local", status=1)
    assert re.fullmatch(r"rmemcached-perftest: .*; software devices: soft_iw0, soft_shm0\n", done.stderr)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("send", "lat", "-s", "8388609"), "--size is 1 to 8388608, not 8388609"),
        (("send", "lat", "-s", "9m"), "--size is 1 to 8388608, not 9437184"),
        (
            ("send", "lat", "-s", "64kb"),
            "argument -s/--size: a size is a number, with k or m behind it if you like, not 64kb",
        ),
        (("send", "lat", "-n", "4"), "--iters is 5 to 67108864, not 4"),
        (("send", "lat", "-b"), "--bidirectional is for bw"),
        (("write", "lat", "-e"), "write lat has no events: who waits for a WRITE looks at its memory"),
        (("read", "bw", "-I", "8"), "a READ is never inline"),
        (("send", "bw", "-D", "1", "-n", "10"), "--iters and --duration exclude each other"),
        (("send", "bw", "-d", "soft_shm0", "--crc"), "--crc is for soft_iw0"),
        (("send", "bw", "-d", "soft_shm0", "far.example"), "--local needs no host"),
    ],
)
def test_wrong_options(options: tuple[str, ...], complaint: str) -> None:
    device = () if "-d" in options else ("-d", "soft_iw0")
    done = run(*options, *device, "--local", status=2)
    assert done.stderr.endswith(f"rmemcached-perftest: error: {complaint}\n")


def test_what_a_device_cannot() -> None:
    done = run("send", "lat", "-d", "soft_iw0", "--local", "-t", "9000", status=1)
    assert done.stderr.startswith("rmemcached-perftest: soft_iw0 has 16384 work requests in a queue")
    done = run("send", "lat", "-d", "soft_iw0", "--local", "-m", "1024", status=1)
    assert done.stderr == "rmemcached-perftest: soft_iw0 has no MTU of its own to choose\n"

"""Starts and stops memcached daemons on ephemeral loopback ports, for the benchmarks and the tests.

A daemon counts as started when it accepts a connection. Everything started here is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Tests on an RDMA device of the system set these variables: the address of the device, and the transport. The port of
# rdma_cm gets the number of the TCP port.
HOST = os.environ.get("RMEMCACHED_TEST_HOST", "127.0.0.1")
CM_OPTIONS = ("-o", "rdma_cm_port={port}") if os.environ.get("RMEMCACHED_TEST_TRANSPORT") == "rdma_cm" else ()
START_TIMEOUT = 20.0  # seconds
STOP_TIMEOUT = 30.0
DEATH_TIMEOUT = 0.2  # seconds between the end of a process's connections and the end of the process
STATS_MOST = 1 << 20  # bytes


class StartError(RuntimeError):
    """A daemon ended by itself, or did not accept connections in time. The message holds its output to stderr."""


def free_port() -> int:
    """A TCP port of HOST that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def connect_path(path: str, timeout: float | None) -> socket.socket:
    """A socket connected to a UNIX socket. timeout: seconds. Raises OSError."""
    plain = socket.socket(socket.AF_UNIX)
    plain.settimeout(timeout)
    try:
        plain.connect(path)
    except OSError:
        plain.close()
        raise
    return plain


class Server:
    """A running daemon.

    Attributes: host and port ("" and 0 for a UNIX socket), path (of the UNIX socket, or None), process
    (subprocess.Popen), pid, started_after (seconds from exec to the first accepted connection). Raises StartError if
    the daemon ended by itself, or accepts no connection. As a context manager it raises StartError in place of the
    error caused by the daemon's end.
    """

    def __init__(self, command: Sequence[str], port: int, path: str | None = None) -> None:
        self.command = list(command)
        self.host = HOST if path is None else ""
        self.port = port
        self.path = path
        self.ended_by_us = False
        self._ended_by = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        # Let Python use byte code, as for an installed daemon: otherwise each start would compile the modules, and use
        # 1 MB more.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._stderr, stderr=self._stderr, env=environment
        )
        try:
            self._wait_until_accepting(begin)
        except BaseException:
            self.kill()
            raise
        self.started_after = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> tuple[str, int] | str:
        """The server argument of a client."""
        return (self.host, self.port) if self.path is None else self.path

    @property
    def place(self) -> str:
        """The server as commands and URLs name it."""
        return f"{self.host}:{self.port}" if self.path is None else self.path

    def told(self) -> str:
        """The command line."""
        return shlex.join(self.command)

    def said(self) -> str:
        """The server's output, for a message."""
        return self.stderr().strip() or "it has written nothing"

    def _wait_until_accepting(self, begin: float) -> None:
        while True:
            try:
                with self.connect(timeout=1.0) as plain:
                    if CM_OPTIONS:
                        # Only an answer shows that the daemon serves: the kernel accepts TCP connections before, and
                        # meanwhile refuses requests of rdma_cm.
                        plain.sendall(b"version\r\n")
                        plain.recv(64)
            except OSError as error:
                if self.process.poll() is not None:
                    status = self.process.returncode
                    raise StartError(f"{self.told()} ended with status {status}: {self.said()}") from error
                waited = time.perf_counter() - begin
                if waited > START_TIMEOUT:
                    raise StartError(f"{self.told()} accepts no connection: {self.said()}") from error
                # Where a start takes long, constant attempts would take the daemon's processor.
                time.sleep(min(max(0.001, waited / 50), 0.05))
            else:
                return

    def connect(self, timeout: float | None = 5.0) -> socket.socket:
        """A plain socket connected to the daemon. timeout: seconds. Raises OSError."""
        if self.path is not None:
            return connect_path(self.path, timeout)
        return socket.create_connection((self.host, self.port), timeout)

    def stderr(self) -> str:
        """The daemon's output to stdout and stderr so far."""
        if self._stderr.closed:
            return self._last_stderr
        # The daemon shares the file's position, and may be writing: this process must not move the position.
        file = self._stderr.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Ends the daemon by a signal and returns its exit status, negative when a signal ended it. May be repeated."""
        self.ended_by_us = True
        if self.alive():
            self._ended_by = how
            self.process.send_signal(how)
            if self.command[0] != sys.executable:
                # memcached notices a signal when its listener wakes: without this connection up to a second later.
                with contextlib.suppress(OSError):
                    self.connect(timeout=1.0).close()
        try:
            status = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if not self._stderr.closed:
            self._last_stderr = self.stderr()
            self._stderr.close()
        return status

    def ended_well(self) -> bool:
        """Whether the ended daemon ended with status 0 or by the signal sent to it.

        A debug build ends with another status when live objects are left, and names them on stderr.
        """
        return self.process.returncode in (0, -self._ended_by)

    def kill(self) -> int:
        """Ends the daemon by SIGKILL."""
        return self.stop(signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far: from the scheduler's nanosecond counters, else from clock ticks."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (OSError, ValueError):
                total = 0
                break
        if total:
            return total / 1e9
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Resident set size, in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def private_bytes(self) -> int:
        """Resident memory in bytes, without mapped programs and libraries, but with the memfd of our daemon's items."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
        if not found:
            raise OSError("no RssAnon in /proc/PID/status")
        return sum(found)

    def stats(self) -> dict[str, str]:
        """The general statistics, as text. Raises OSError, and ValueError when the server is no memcached."""
        left = STATS_MOST
        with self.connect() as plain, plain.makefile("rb") as lines:
            plain.sendall(b"stats\r\n")
            found: dict[str, str] = {}
            while line := lines.readline(left):
                if line == b"END\r\n":
                    return found
                left -= len(line)
                what, _, rest = line.decode(errors="replace").rstrip("\r\n").partition(" ")
                name, _, value = rest.partition(" ")
                if what != "STAT" or not left:
                    raise ValueError(f"stats is answered by {line[:80]!r}: is it memcached, without authentication?")
                found[name] = value
        raise ConnectionError("the server closed the connection")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        died = isinstance(error, Exception) and not self.ended_by_us and self._has_ended()
        status = self.stop()
        if died:
            raise StartError(f"{error}; {self.told()} ended with status {status}: {self.said()}") from error

    def _has_ended(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(DEATH_TIMEOUT)
        return not self.alive()


def memcached_path() -> str | None:
    """The installed memcached, or None."""
    return shutil.which("memcached")


def on_free_port(start: Callable[[int], Server]) -> Server:
    """A daemon on a free port, or on another port if somebody takes the first meanwhile. Raises StartError."""
    for _ in range(4):
        try:
            return start(free_port())
        except StartError as error:
            if "in use" not in str(error):
                raise
    return start(free_port())


def _start(command: Sequence[str], arguments: Sequence[str], path: str | None, with_port: Sequence[str] = ()) -> Server:
    user = ["-u", "root"] if os.geteuid() == 0 and "-u" not in arguments else []
    if path is not None:
        options = [word.format(port=path.replace("/", "-")) for word in with_port]
        return Server([*command, *user, "-s", path, *options, *arguments], 0, path)

    def start(port: int) -> Server:
        options = [word.format(port=port) for word in with_port]
        return Server([*command, *user, "-p", str(port), "-U", "0", "-l", HOST, *options, *arguments], port)

    return on_free_port(start)


def start_rmemcached(*arguments: str, path: str | None = None, under: Sequence[str] = ()) -> Server:
    """Starts our daemon with the running interpreter; path: a UNIX socket in place of a port; under: a command to run
    the daemon with.

    Options in RMEMCACHED_TEST_OPTIONS come first: all tests with `-o rdma_direct`, for example. {port} in these options
    stands for the daemon's port, or for its path with dashes.
    """
    options = os.environ.get("RMEMCACHED_TEST_OPTIONS", "").split()
    # With -P Python takes the installed package, or the first in PYTHONPATH, and no folder of the current directory.
    command = [*under, sys.executable, "-P", "-m", "rmemcached"]
    return _start(command, arguments, path, [*options, *(CM_OPTIONS if path is None else ())])


def start_memcached(
    *arguments: str, path: str | None = None, program: str | None = None, under: Sequence[str] = ()
) -> Server:
    """Starts the installed memcached, or `program`; StartError without memcached. under: a command to run memcached
    with."""
    program = program or memcached_path()
    if program is None:
        raise StartError("memcached is not installed: apt-get install memcached")
    return _start([*under, program], arguments, path)

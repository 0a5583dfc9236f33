"""-d: the daemon in the background, its PID file, and the end of the command that started the daemon."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_commands import AS_ROOT, OURS, START, answers, refused, run, started, stopped
from daemon_tools import eventually
from servers import free_port

from rmemcached.client import Client


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., tuple[int, int, Path]]]:
    """Starts daemons by -d -P. At the end kills the survivors."""
    pids: list[int] = []

    def start(*flags: str) -> tuple[int, int, Path]:
        port, file = free_port(), tmp_path / "pid"
        done = run(OURS, *AS_ROOT, "-d", "-P", str(file), "-p", str(port), "-l", "127.0.0.1", *flags)
        assert done == (0, "", "")
        pid = int(file.read_text())
        pids.append(pid)
        assert answers("127.0.0.1", port)
        return pid, port, file

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_daemon_with_pid_file(daemon: Callable[..., tuple[int, int, Path]], how: int) -> None:
    pid, port, file = daemon()
    assert file.read_text() == f"{pid}\n"
    assert not file.with_name("pid.tmp").exists()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
    client = Client(("127.0.0.1", port), transport="soft_iw", timeout=10, default_noreply=False)
    assert client.set("key", bytes(100_000)) and client.get("key") == bytes(100_000)
    client.close()
    os.kill(pid, how)
    eventually(lambda: gone(pid), START)
    assert not file.exists()


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (("-Y", "/nowhere/users"), 1),
        (("-m", "200000000"), 1),
        (("-o", "rdma_cm_port=11212"), 71),
    ],
    ids=["users", "memory", "device"],
)
def test_a_daemon_that_cannot_start_says_so(tmp_path: Path, flags: tuple[str, ...], status: int) -> None:
    """A failure of the daemon after the fork has the message and status of a start without -d."""
    file = tmp_path / "pid"
    where = ("-p", str(free_port()), "-l", "127.0.0.1")
    problem = refused(*where, *flags)
    assert problem[0] == status and problem[1]
    assert refused("-d", "-P", str(file), *where, *flags) == problem
    assert not file.exists()


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A daemon that waits for its users from a FIFO, before it serves: the command, the daemon's PID, the FIFO."""
    file, users = folder / "pid", folder / "users"
    os.mkfifo(users)
    command = started("-d", "-P", str(file), "-p", str(free_port()), "-l", "127.0.0.1", "-Y", str(users))
    pid = int(eventually(lambda: file.exists() and file.read_text(), START))
    try:
        yield command, pid, users
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        command.communicate(timeout=START)


def test_a_daemon_that_dies_before_it_serves(tmp_path: Path) -> None:
    with starting(tmp_path) as (command, pid, _):
        os.kill(pid, signal.SIGKILL)
        said = command.communicate(timeout=START)
        assert (command.returncode, said[0]) == (70, "")
        assert said[1].splitlines()[1:] == ["the daemon was ended by signal 9 before it could serve"]


def test_a_signal_while_a_daemon_starts(tmp_path: Path) -> None:
    """A signal sent to the command during the daemon's start reaches the daemon and ends it in order."""
    with starting(tmp_path) as (command, pid, users):
        # Signals wait in the command's mask until the command can pass them on.
        command.send_signal(signal.SIGTERM)
        eventually(lambda: pending(pid, signal.SIGTERM), START)
        users.write_text("name:password\n")
        said = command.communicate(timeout=START)
        assert (command.returncode, said[0]) == (0, "")
        # The daemon writes a single line: with -Y clients may not read without asking.
        assert said[1].startswith("rdma_direct is off: -Y") and said[1].count("\n") == 1
        eventually(lambda: gone(pid), START)


def test_a_socket_named_from_the_working_folder(tmp_path: Path) -> None:
    """A socket named relative to the working folder is removed at the end by the daemon, whose folder is another."""
    command = [*OURS, *AS_ROOT, "-d", "-P", str(tmp_path / "pid"), "-s", "socket"]
    subprocess.run(command, check=True, timeout=START, cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert (tmp_path / "socket").is_socket()
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: gone(pid), START)
    assert not (tmp_path / "socket").exists()


def pending(pid: int, number: int) -> bool:
    """Whether a signal waits for a process that blocks the signal."""
    found = re.search(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def test_a_daemon_without_standard_streams(tmp_path: Path) -> None:
    """A daemon started without standard streams serves: its sockets do not take their place."""
    port, file = free_port(), tmp_path / "pid"
    command = [*OURS, *AS_ROOT, "-d", "-P", str(file), "-p", str(port), "-l", "127.0.0.1"]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True, timeout=START)
    pid = int(file.read_text())
    try:
        assert answers("127.0.0.1", port)
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: gone(pid), START)


def test_pid_file_of_a_running_process(tmp_path: Path) -> None:
    """The daemon warns of a PID file of a running process. Without -d the file stays after the end, as with
    memcached."""
    file, port = tmp_path / "pid", free_port()
    file.write_text(f"{os.getpid()}\n")
    process = started("-P", str(file), "-p", str(port), "-l", "127.0.0.1")
    eventually(lambda: file.read_text() == f"{process.pid}\n", START)
    eventually(lambda: answers("127.0.0.1", port), START)
    warning = f"WARNING: The pid file contained the following (running) pid: {os.getpid()}\n"
    assert stopped(process) == (0, warning)
    assert file.read_text() == f"{process.pid}\n"


def test_pid_file_that_cannot_be_written(tmp_path: Path) -> None:
    name, port = tmp_path / "none" / "pid", free_port()
    process = started("-P", str(name), "-p", str(port), "-l", "127.0.0.1")
    eventually(lambda: answers("127.0.0.1", port), START)
    message = f"Could not open the pid file {name}.tmp for writing: No such file or directory\n"
    assert stopped(process) == (0, message)

"""contrib/systemd: systemd accepts the units, and the daemon reports when it serves."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from servers import Server, free_port, start_rmemcached

from rmemcached.client import Client

FOLDER = Path(__file__).resolve().parents[2] / "contrib" / "systemd"
UNITS = ("rmemcached.service", "rmemcached@.service")
EXPORTER = "rmemcached-exporter.service"
# The highest permitted exposure by systemd-analyze, from 0 (safe) to 10. The daemon needs devices, the network and the
# host's users.
EXPOSURE = {**dict.fromkeys(UNITS, 2.5), EXPORTER: 1.5}


def installed(unit: str, folder: Path) -> Path:
    """The unit as installed, with an existing program."""
    text = re.sub(r"/usr/local/bin/rmemcached[a-z-]*", "/bin/true", (FOLDER / unit).read_text())
    path = folder / unit.replace("@", "@one")
    path.write_text(text)
    return path


@pytest.mark.parametrize("unit", [*UNITS, EXPORTER])
def test_systemd_takes_it(unit: str, tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "script/prepare.sh installs systemd"
    path = installed(unit, tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "rmemcached" in line]
    assert not said, said
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    level = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
    assert level is not None and float(level[1]) <= EXPOSURE[unit], done.stdout + done.stderr


def test_the_units_differ_in_names_only() -> None:
    one, many = ((FOLDER / unit).read_text() for unit in UNITS)
    assert many.replace(" (%i)", "").replace("-%i", "") == one


def allowed_calls(unit: str = UNITS[0]) -> set[str]:
    """The system calls permitted by the unit's filter."""
    done = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True)
    groups: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            calls = groups[line.strip()] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            calls.append(line.strip())

    def members(word: str) -> set[str]:
        return set().union(*map(members, groups[word])) if word in groups else {word}

    allowed = members("@default")
    for words in re.findall("^SystemCallFilter=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE):
        for word in words.removeprefix("~").split():
            allowed = allowed - members(word) if words.startswith("~") else allowed | members(word)
    return allowed


def test_the_filter_has_what_the_daemon_calls(tmp_path: Path) -> None:
    """Clients of each transport, of another user than root, need only calls in the filter; others would fail."""
    trace, port = tmp_path / "trace", free_port()
    command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port)]
    command += ["-o", f"rdma_shm={tmp_path / 'shm.sock'}", "-P", str(tmp_path / "pid")]
    with Server(["strace", "-f", "-qq", "-o", str(trace), *command], port) as server:
        for transport in ("soft_shm", "soft_iw", "tcp"):
            with Client(server.address, transport=transport, default_noreply=False, timeout=20) as client:
                for size in (10, 100_000, 1_000_000):
                    assert client.set("key", bytes(size)) and client.get("key") == bytes(size)
                assert client.stats("rdma")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        server.process.wait(20)
    called = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    as_root = {"setuid", "setgid", "setgroups"}
    assert {"epoll_wait", "sendto"} & called and not called - allowed_calls() - as_root


def test_the_exporter_by_its_options_and_filter(tmp_path: Path) -> None:
    """The exporter takes its /etc/default, makes only calls in the unit's filter, and ends with status 0 by SIGTERM."""
    (options,) = re.findall('^OPTIONS="(.*)"$', (FOLDER / "rmemcached-exporter.default").read_text(), re.MULTILINE)
    assert options.split()[-2:] == ["--listen", ":9150"]
    trace, program = tmp_path / "trace", Path(sys.executable).with_name("rmemcached-exporter")
    with start_rmemcached() as server:
        words = [word.replace("11211", str(server.port)) for word in options.split()[:-1]]
        command = ["strace", "-f", "-qq", "-o", str(trace), str(program), *words, "127.0.0.1:0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            where = re.search(r"http://\S+", process.stderr.readline())
            assert where is not None
            assert b"\nmemcached_up 1" in urllib.request.urlopen(where[0], timeout=20).read()
            # strace names its first process, the exporter, at the head of each line.
            os.kill(int(trace.read_text().split(maxsplit=1)[0]), signal.SIGTERM)
            assert process.wait(20) == 0
    called = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    assert {"accept4", "connect"} <= called and not called - allowed_calls(EXPORTER)


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
@pytest.mark.parametrize("options", [[], ["-d"]], ids=["foreground", "-d"])
def test_the_daemon_says_when_it_serves(abstract: bool, options: list[str], tmp_path: Path) -> None:
    """The daemon reports by sd_notify when it serves; a client is served from then on."""
    path = tmp_path / "notify"
    name = f"\0rmemcached-test-{os.getpid()}" if abstract else str(path)
    daemon = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(20)
        pidfile = tmp_path / "pid"
        command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-s", str(daemon), "-P", str(pidfile)]
        environment = {**os.environ, "NOTIFY_SOCKET": name.replace("\0", "@")}
        process = subprocess.Popen([*command, *options], env=environment)
        try:
            assert manager.recv(100) == b"READY=1\n"
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(20)
                client.connect(str(daemon))
                client.sendall(b"version\r\n")
                assert client.recv(100).startswith(b"VERSION ")
        finally:
            pid = int(pidfile.read_text())
            os.kill(pid, 15)
            process.wait(20)


def test_items_of_a_memory_file_survive_a_stop() -> None:
    """With RemoveIPC systemd removes the user's files in /dev/shm when the service stops."""
    for unit in UNITS:
        assert "\nRemoveIPC=no\n" in (FOLDER / unit).read_text()

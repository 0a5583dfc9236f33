"""rmemcached-doctor beside real daemons, memcached, and servers of other kinds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted
from servers import Server, start_rmemcached

from rmemcached import verbs
from rmemcached.client import Client
from rmemcached.tools.doctor import BROKEN, Examination, Finding, device_advice, examine, main, verdict

ServerFactory = Callable[..., Server]

NONE = {"RMEMCACHED_RDMA_DEVICE": "none"}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached.tools.doctor", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def document(*arguments: str, status: int = 0) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    done = doctor("--json", *arguments, **NONE)
    assert done.returncode == status, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == status
    return found, {one["transport"]: one for one in found["transports"]}


def test_a_daemon_on_this_host(rmemcached_server: ServerFactory) -> None:
    """Shared memory is taken, all software devices are measured, and nothing is left in the store."""
    server = rmemcached_server()
    found, by_name = document(server.place)
    assert (found["taken"], found["pinned"], found["facts"]["local"]) == ("soft_shm", "auto", True)
    assert list(by_name) == ["verbs", "soft_shm", "soft_iw", "tcp"]
    for name in ("soft_shm", "soft_iw", "tcp"):
        one = by_name[name]
        assert one["state"] == "works" and 0 < one["p50"] <= one["p99"] and one["why"] == ""
        assert one["set_bandwidth"] > 0 and one["get_bandwidth"] > 0
    assert by_name["verbs"]["state"] == "not there" and "RMEMCACHED_RDMA_DEVICE" in by_name["verbs"]["change"]
    with Client(server.host, server.port) as client:
        assert client.stats()[b"curr_items"] == 0 and client.stats()[b"total_items"] >= 6


def test_what_a_person_reads(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    done = doctor(f"memcached://{server.place}", RMEMCACHED_TRANSPORT="tcp", **NONE)
    assert done.returncode == 0 and not done.stderr
    assert "a client takes: soft_shm\n" in done.stdout and "RMEMCACHED_RDMA_DEVICE says none" in done.stdout
    assert "\nsoft_shm: gets read the items where they lie, and ask nobody (rdma_direct=own)\n" in done.stdout
    assert "but" not in done.stdout  # memcached:// chooses "auto", whatever the environment says
    done = doctor(server.place, RMEMCACHED_TRANSPORT="tcp", **NONE)
    assert "but RMEMCACHED_TRANSPORT=tcp pins tcp\n" in done.stdout


def test_who_must_ask_is_told_why(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-X")
    done = doctor(server.place, **NONE)
    assert (
        "\nsoft_shm: gets ask, though they could read the items where they lie: rdma_direct is off: -X" in done.stdout
    )
    assert "-o rdma_direct=own" in done.stdout
    found, by_name = document(server.place)
    assert (found["facts"]["direct"], found["facts"]["direct_off"]) == ("off", "-X")
    assert by_name["soft_shm"]["direct"] is False
    found, by_name = document(rmemcached_server().place)
    assert (found["facts"]["direct"], by_name["soft_shm"]["direct"], by_name["tcp"]["direct"]) == ("own", True, False)


@pytest.mark.parametrize(
    ("options", "transport", "change"),
    [
        ("-o rdma_shm=none", "soft_shm", "without -o rdma_shm=none"),
        ("-o no_rdma", "soft_shm", "without -o no_rdma"),
    ],
)
def test_what_the_server_has_switched_off(
    options: str, transport: str, change: str, rmemcached_server: ServerFactory
) -> None:
    found, by_name = document(rmemcached_server(*options.split()).place)
    assert found["taken"] == "tcp" and by_name["tcp"]["state"] == "works"
    assert by_name[transport]["state"] == "not there" and change in by_name[transport]["change"]


def test_shared_memory_that_is_out_of_sight(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    """Without the folder of the socket, as in a container, the status is 1: a better transport is possible."""
    path = tmp_path / "shm.sock"
    server = rmemcached_server("-o", f"rdma_shm={path}")
    end = time.monotonic() + 20
    while not path.exists():
        # The daemon listens for clients before it listens at this path, so the file may come late.
        assert time.monotonic() < end
    server.stats()
    path.rename(tmp_path / "elsewhere")
    found, by_name = document(server.place, status=1)
    (tmp_path / "elsewhere").rename(path)
    assert found["taken"] == "tcp" and by_name["soft_shm"]["state"] == "fails"
    assert "No such file" in by_name["soft_shm"]["why"] and "visible here" in by_name["soft_shm"]["change"]


def test_other_users_and_limits() -> None:
    """The doctor turns errors of servers and devices, also those absent from this machine, into advice."""
    examination = Examination("127.0.0.1", 1, None)
    for transport, why, change in (
        ("soft_shm", "SERVER_ERROR rdma: this socket is for user 0 and root, not for user 1", "rdma_shm=FILE"),
        ("soft_shm", "/run/x: Permission denied", "common group"),
        (
            "verbs",
            "no queue pair here: [Errno 12] 9 KB could not be locked for the device: ulimit -l is 8 KB",
            "MEMLOCK",
        ),
        ("soft_iw", "timed out", "firewall"),
        ("verbs", "timed out: 127.0.0.1:1", "lets too few through"),
        ("verbs", "timed out: no end after 4 s", "4791"),
        ("soft_iw", "MemcacheUnexpectedCloseError", "the server's -c"),
        ("soft_shm", "ERROR Too many open connections", "raise the server's -c"),
        ("tcp", "[Errno 111] Connection refused: '127.0.0.1:1'", "lets too few through"),
        ("verbs", "timed out", "4791"),
        ("soft_iw", "the server answered CLIENT_ERROR rdma: version 2 is not supported, this", "same version"),
    ):
        state, advice = examination.explain(transport, why)
        assert state == BROKEN and change in advice, (transport, why, advice)
    findings = [Finding("verbs", BROKEN), Finding("soft_iw", BROKEN), Finding("tcp")]
    assert [verdict(findings), verdict(findings[1:]), verdict(findings[:2])] == [1, 0, 2]


def test_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "memcached.sock")
    rmemcached_server(path=path)
    found, by_name = document(path)
    assert found["taken"] == "soft_shm" and [one["state"] for one in by_name.values()] == ["works", "works"]


def test_memcached(memcached_server: ServerFactory) -> None:
    """The best common transport is a plain connection."""
    found, by_name = document(memcached_server().place)
    assert found["taken"] == "tcp" and found["facts"]["rmemcached_version"] == ""
    assert "memcached without RDMA" in by_name["soft_iw"]["change"] and by_name["tcp"]["get_bandwidth"] > 0


def test_small_items(rmemcached_server: ServerFactory) -> None:
    """With items too small for a value of 1 MB the rest is measured."""
    _, by_name = document(rmemcached_server("-I", "512k").place)
    assert by_name["tcp"]["p50"] > 0 and by_name["tcp"]["get_bandwidth"] is None and "-I" in by_name["tcp"]["change"]


def test_authentication(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    server = rmemcached_server("-Y", str(users))
    done = doctor(server.place)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "memcached://user:password@host" in done.stderr
    assert document(f"memcached://ann:secret@{server.place}")[0]["taken"] == "soft_shm"


@pytest.fixture
def bad_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers the first input of each connection with request.param; None: with nothing."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        held = []
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                break
            held.append(sock)
            if request.param is not None:
                try:
                    sock.recv(1000)
                    sock.sendall(request.param)
                except OSError:
                    pass
        for sock in held:
            sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    "bad_server",
    [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\0\2\2\x46", b"SSH-2.0-x\r\n", b"VERSION \x1b[2J\r\n"],
    indirect=True,
    ids=["silent", "HTTP", "TLS", "SSH", "escape"],
)
def test_what_is_no_memcached(bad_server: str) -> None:
    """The doctor soon prints a single line, safe for a terminal."""
    done = doctor("--timeout", "0.3", bad_server)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr[:-1].isprintable(), done.stderr


def test_ctrl_c() -> None:
    """Ctrl-C during the wait for an answer leaves no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, "-P", "-m", "rmemcached.tools.doctor", "--timeout", "60"]
        with subprocess.Popen(
            [*command, f"127.0.0.1:{silent.getsockname()[1]}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            silent.settimeout(20)
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=20) == (b"", b"") and process.returncode == 130


def test_a_refusal_without_words(scripted: Callable[..., Scripted]) -> None:
    """A transport refused without words does not count as working."""

    def answers(line: bytes) -> Iterator[bytes]:
        yield b"END\r\n" if line.startswith(b"stats") else b"SERVER_ERROR \r\n"

    _, by_name = document("--timeout", "0.5", scripted(answers).place, status=2)
    assert [(one["state"], bool(one["why"])) for one in by_name.values()][1:] == [("fails", True)] * 3


def test_no_server_and_wrong_arguments() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = doctor(f"127.0.0.1:{port}")
    assert done.returncode == 2 and "refused" in done.stderr and done.stderr.count("\n") == 1
    assert json.loads(doctor("--json", f"127.0.0.1:{port}").stdout)["status"] == 2
    for wrong in (["host:port"], ["gopher://host"], ["--timeout", "0", "host"]):
        with pytest.raises(SystemExit) as refused:
            main(wrong)
        assert refused.value.code == 2


class Between(Examination):
    """An examination with an event after the measurement of the first working transport."""

    def __init__(self, target: str, happens: Callable[[], object]) -> None:
        super().__init__(target, 0.5, None)
        self.happens: Callable[[], object] | None = happens

    def try_one(self, transport: str) -> Finding:
        found = super().try_one(transport)
        if found.p50 is not None and self.happens is not None:
            self.happens()
            self.happens = None
        return found


def test_a_server_dies_while_it_is_measured(
    rmemcached_server: ServerFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, although a transport has worked, in words and as JSON."""
    for as_json in (False, True):
        server = rmemcached_server()
        assert examine(Between(server.place, server.kill), as_json) == 2
        said = capsys.readouterr()
        assert said.err.startswith("rmemcached-doctor: in the end the server does not answer: ")
        assert said.err.count("\n") == 1 and "refused" in said.err and "has ended since" in said.err
        if as_json:
            found = json.loads(said.out)
            states = {one["transport"]: one["state"] for one in found["transports"]}
            assert found["status"] == 2 and found["error"] and "works" in states.values() and states["tcp"] == "fails"


def test_a_server_is_started_again_while_it_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(start_rmemcached(path=path))

        def again() -> None:
            first.kill()
            stack.enter_context(start_rmemcached(path=path))

        assert examine(Between(path, again), False) == 0
    assert "another process answers than at first" in capsys.readouterr().out


def test_devices_of_the_system_are_told() -> None:
    """Devices of the kernel that this process cannot open stand beside the usable devices."""
    unopened, advice = device_advice()
    assert bool(unopened) == bool(advice) and not set(unopened) & set(verbs.devices("system"))

"""The daemon as a process: its flags, messages, start and end. Messages are memcached's where memcached has them."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_commands import AS_ROOT, OURS, START, answers, as_nobody, refused, run, started, stopped
from daemon_tools import Conversation, Peer, child, eventually, rdma_client, room_for
from pymemcache.client.base import Client as PymemcacheClient
from servers import Server, free_port, memcached_path

from rmemcached import MEMCACHED_VERSION, __version__
from rmemcached.client import Client, MemcacheError

ServerFactory = Callable[..., Server]


# ---- command lines that end at once ----------------------------------------------------------------------------------

SAME_AS_MEMCACHED = [
    ["-q"],
    ["--nonsense"],
    ["-p"],
    ["--port"],
    ["-p", "70000"],
    ["-I", "500"],
    ["-I", "40m"],
    ["-I", "1025m", "-m", "4096"],
    ["-I", "700k"],
    ["-m", "0"],
    ["-m", "1"],
    ["-t", "0"],
    ["-t", "x"],
    ["-t", "-1"],
    ["-c", "0"],
    ["-c", "x"],
    ["-f", "1"],
    ["-f", "0.5"],
    ["-n", "0"],
    ["-R", "0"],
    ["-R", "x"],
    ["-o", "nonsense"],
    ["-o", "hashpower=5"],
    ["-o", "hashpower"],
]


@pytest.mark.parametrize("flags", SAME_AS_MEMCACHED, ids=" ".join)
def test_wrong_flags_as_memcached_says_it(flags: list[str]) -> None:
    memcached = memcached_path()
    assert memcached is not None, "memcached is not installed"
    status, out, message = run([memcached], *AS_ROOT, *flags)
    assert run(OURS, *AS_ROOT, *flags) == (status, out, message.replace(memcached, "memcached"))


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["-U", "x"], 1, "Invalid UDP port number: x\n"),
        (["-p", "x"], 1, "Invalid port number: x\n"),
        (["-p", "-2"], 64, "ERROR: Invalid port number -2.\n"),
        (["-m", "x"], 1, "Invalid memory limit: x\n"),
        (["-a", "9"], 1, "Invalid access mask: 9\n"),
        (["-I", "x"], 64, "Item max size is not a number: x\n"),
        (["-l", "127.0.0.1:x"], 71, 'Invalid port number: "x"\n'),
        (["-l", "127.0.0.1:70000"], 71, 'Invalid port number: "70000"\n'),
        (["-l", "[::1"], 71, 'Invalid IPV6 address: "[::1"\n'),
        (["-o", "rdma_credits=1"], 1, "rdma_credits must be between 2 and 1024, not 1\n"),
        (["-o", "rdma_msgsize"], 1, "Missing rdma_msgsize argument\n"),
        (["-l", "notls:127.0.0.1"], 71, "'notls' option is valid only when SSL is enabled\n"),
        (["-l", "btls:127.0.0.1"], 71, "'btls' option is valid only when SSL is enabled\n"),
        (["-l", "mtls:proto[ascii]:127.0.0.1:11212"], 71, "'mtls' option is valid only when SSL is enabled\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_flags(flags: list[str], status: int, message: str) -> None:
    assert refused(*flags) == (status, message)


def test_unknown_host() -> None:
    status, message = refused("-l", "no.such.host.invalid", "-p", str(free_port()))
    assert status == 71
    assert message.startswith("failed to listen on one of interface(s) no.such.host.invalid: ")
    assert message.count("\n") == 1


def test_version_and_help() -> None:
    versions = f"memcached {MEMCACHED_VERSION} (rmemcached {__version__})\n"
    assert run(OURS, "-V") == run(OURS, "--version") == (0, versions, "")
    status, text, errors = run(OURS, "-h")
    assert (status, errors) == (0, "") and text.startswith(versions)
    for flag in ["p", "s", "a", "l", "d", "u", "m", "c", "v", "h", "V", "P", "t", "R", "I", "U"]:
        assert f"-{flag}, " in text, flag
    assert all(len(line) <= 120 for line in text.splitlines())
    status, text, errors = run(OURS, "-i")
    assert (status, errors) == (0, "") and text.startswith(versions) and "BSD-3-Clause" in text


@pytest.mark.parametrize("flag", ["-V", "-h", "-i"])
@pytest.mark.parametrize(
    "command", ["awk 'NR == 1 { print $2 }'", "head -n 1 | cut -d ' ' -f 2", r"sed -nE 's/^memcached ([0-9.]+).*/\1/p'"]
)
def test_what_scripts_take_for_the_version(flag: str, command: str) -> None:
    """Scripts for memcached's output get from our output exactly the version of memcached whose behaviour is ours."""
    _, printed, _ = run(OURS, flag)
    done = subprocess.run(command, shell=True, input=printed, capture_output=True, text=True, check=True)
    assert done.stdout == f"{MEMCACHED_VERSION}\n"


def test_statistics_have_both_versions(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server()) as plain:
        found = plain.stats()
        assert (found["version"], found["rmemcached_version"]) == (MEMCACHED_VERSION, __version__)
        assert plain.ask(b"version\r\n") == f"VERSION {MEMCACHED_VERSION}\r\n".encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="the message is for root")
def test_root_without_user() -> None:
    assert run(OURS, "-p", str(free_port())) == (64, "", "must add '-u root' to start as root\n")
    status, out, message = run(OURS, "-p", str(free_port()), "-u", "no-such-user")
    assert (status, out, message) == (67, "", "can't find the user no-such-user to switch to\n")


def test_too_many_descriptors_wanted() -> None:
    message = "failed to set rlimit for open files. Try starting as root or requesting smaller maxconns value.\n"
    assert as_nobody("-p", str(free_port()), "-c", "5000") == (71, "", message)


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_ephemeral_port_and_port_file(tmp_path: Path) -> None:
    name = tmp_path / "ports"
    process = started("-p", "-1", "-l", "127.0.0.1", environment={"MEMCACHED_PORT_FILENAME": str(name)})
    try:
        eventually(name.exists, START)
        word, family, port = name.read_text().split()
        assert (word, family) == ("TCP", "INET:")
        assert eventually(lambda: answers("127.0.0.1", int(port)))
        assert list(tmp_path.iterdir()) == [name]
    finally:
        assert stopped(process) == (0, "")


def test_port_file_that_cannot_be_written(tmp_path: Path) -> None:
    """A daemon whose port file cannot be written says so and serves, as memcached does."""
    name, port = tmp_path / "none" / "ports", free_port()
    process = started("-p", str(port), "-l", "127.0.0.1", environment={"MEMCACHED_PORT_FILENAME": str(name)})
    eventually(lambda: answers("127.0.0.1", port), START)
    assert stopped(process) == (0, f'Failed to open "{name}.lck": No such file or directory\n')


def test_all_addresses(rmemcached_server: ServerFactory) -> None:
    port = free_port()
    process = started("-p", str(port))
    try:
        eventually(lambda: answers("127.0.0.1", port), START)
        assert answers("::1", port)
    finally:
        assert stopped(process) == (0, "")


@pytest.mark.parametrize("form", ["list", "flags", "own ports"])
def test_several_addresses(form: str) -> None:
    port, other = free_port(), free_port()
    flags = {
        "list": ["-l", "127.0.0.1,127.0.0.2,::1"],
        "flags": ["-l", "127.0.0.1", "-l", "127.0.0.2", "-l", "[::1]"],
        "own ports": ["-l", f"127.0.0.1,127.0.0.2:{other},[::1]:{other}"],
    }[form]
    second = other if form == "own ports" else port
    process = started("-p", str(port), *flags)
    try:
        eventually(lambda: answers("127.0.0.1", port), START)
        assert answers("127.0.0.2", second) and answers("::1", second)
        assert not answers("127.0.0.3", port)
    finally:
        assert stopped(process) == (0, "")


def test_no_tcp_port() -> None:
    """With -p 0 and without a UNIX socket nothing listens, as with memcached."""
    process = started("-p", "0", "-vv")
    try:
        assert process.stderr is not None
        eventually(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 4, START)
        table = Path(f"/proc/{process.pid}/net/tcp").read_text() + Path(f"/proc/{process.pid}/net/tcp6").read_text()
        inodes = {line.split()[9] for line in table.splitlines() if " 0A " in line}
        held = set()
        for name in os.listdir(f"/proc/{process.pid}/fd"):
            # The starting daemon closes files after reading.
            with contextlib.suppress(FileNotFoundError):
                held.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
        assert not any(f"socket:[{inode}]" in held for inode in inodes)
    finally:
        assert stopped(process)[0] == 0


def test_busy_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        flags = ["-p", str(port), "-l", "127.0.0.1"]
        message = "failed to listen on one of interface(s) 127.0.0.1: Address already in use\n"
        assert refused(*flags) == (71, message)
        status, message = refused("-p", str(port))
        assert (status, message) == (71, f"failed to listen on TCP port {port}: Address already in use\n")


def test_forbidden_port() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if lowest > 0:
        message = "failed to listen on one of interface(s) 127.0.0.1: Permission denied\n"
        assert as_nobody("-p", str(lowest - 1), "-l", "127.0.0.1", "-c", "100") == (71, "", message)


# ---- UNIX sockets ----------------------------------------------------------------------------------------------------


def test_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    server = rmemcached_server(path=path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    with Client(path) as ours, Conversation(server) as talk:
        assert ours.set("key", b"value" * 1000, noreply=False)
        assert ours.transport == "soft_shm"
        theirs = PymemcacheClient(path)
        assert theirs.get("key") == b"value" * 1000
        theirs.close()
        assert talk.stats("settings")["domain_socket"] == path
        line = b"rdma version=2 transport=soft_iw qpn=1 credits=16 msgsize=8192 lanebytes=512\r\n"
        assert talk.ask(line) == b"SERVER_ERROR rdma: transport soft_iw is not available here\r\n"
    assert server.stop() == 0
    assert not os.path.exists(path)


@pytest.mark.parametrize("mask", ["777", "0660", "600"])
def test_unix_socket_mask(rmemcached_server: ServerFactory, tmp_path: Path, mask: str) -> None:
    path = str(tmp_path / "sock")
    rmemcached_server("-a", mask, path=path)
    assert stat.S_IMODE(os.stat(path).st_mode) == int(mask, 8)


def test_stale_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    rmemcached_server(path=path).kill()
    assert os.path.exists(path)
    server = rmemcached_server(path=path)
    with Conversation(server) as talk:
        assert talk.ask(b"mn\r\n") == b"MN\r\n"


def accepts(server: Server) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return False
    return True


def test_unix_socket_of_a_later_daemon_stays(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    """The end of the first daemon on a path does not remove the socket of the second."""
    path = str(tmp_path / "sock")
    first = rmemcached_server(path=path)
    inode = os.stat(path).st_ino

    def replaced() -> bool:
        try:
            return os.stat(path).st_ino != inode
        except FileNotFoundError:
            return False

    # Connections to the path reach the first daemon until the second has replaced the socket.
    second = rmemcached_server(path=path)
    eventually(replaced, START)
    assert first.stop() == 0
    eventually(lambda: accepts(second), START)
    with Conversation(second) as talk:
        assert talk.ask(b"mn\r\n") == b"MN\r\n"


def test_unix_socket_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for name, reason in (("none/sock", "No such file or directory"), ("file", "Address already in use")):
        path = str(tmp_path / name)
        assert refused("-s", path) == (71, f"failed to listen on UNIX socket: {path}: {reason}\n")
    assert (tmp_path / "file").read_text() == "precious"
    status, message = refused("-s", str(tmp_path / ("x" * 200)))
    assert status == 71 and "path too long" in message and message.count("\n") == 1
    (tmp_path / "closed").mkdir(0o000)
    path = str(tmp_path / "closed" / "sock")
    said = f"failed to listen on UNIX socket: {path}: Permission denied\n"
    assert as_nobody("-s", path, "-c", "100") == (71, "", said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its identity")
def test_user(tmp_path: Path) -> None:
    """The daemon runs as the user, and its UNIX socket belongs to the user."""
    user = pwd.getpwnam("nobody")
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o711)
    path = str(tmp_path / "sock")
    process = subprocess.Popen([*OURS, "-u", "nobody", "-s", path], stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: os.path.exists(path) or process.poll() is not None, START)
        assert process.poll() is None, process.communicate()
        assert os.stat(path).st_uid == user.pw_uid
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        assert fields["Uid"].split() == [str(user.pw_uid)] * 4
        assert fields["Gid"].split() == [str(user.pw_gid)] * 4
    finally:
        process.terminate()
        _, message = process.communicate(timeout=START)
    assert (process.returncode, message) == (0, "")
    assert not os.path.exists(path)


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "flags", "message"),
    [
        (signal.SIGTERM, [], ""),
        (signal.SIGINT, [], ""),
        (signal.SIGTERM, ["-v"], "Exiting normally\n"),
        (signal.SIGINT, ["-v"], "Exiting normally\n"),
        (signal.SIGUSR1, [], "Gracefully stopping\n"),
    ],
    ids=["SIGTERM", "SIGINT", "SIGTERM -v", "SIGINT -v", "SIGUSR1"],
)
def test_signals(how: int, flags: list[str], message: str) -> None:
    port = free_port()
    process = started("-p", str(port), "-l", "127.0.0.1", *flags)
    eventually(lambda: answers("127.0.0.1", port), START)
    status, errors = stopped(process, how)
    # With -v the daemon also names its RDMA device of the system, or the reason for having none.
    lines = [line for line in errors.splitlines(True) if not line.startswith("RDMA: ")]
    assert (status, "".join(lines)) == (0, message)


def test_sighup_does_not_end_it(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Conversation(server) as talk:
        server.process.send_signal(signal.SIGHUP)
        for _ in range(100):
            assert talk.ask(b"mn\r\n") == b"MN\r\n"
    with Conversation(server) as talk:
        assert talk.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.device("READs and WRITEs under way")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stop_with_clients_and_transfers(rmemcached_server: ServerFactory, how: int) -> None:
    """The daemon stops in order while clients of all kinds are busy, and READs and WRITEs are under way."""
    server = rmemcached_server("-m", "128", "-I", "8m", "-t", "3")
    with Conversation(server) as idle, rdma_client(server) as quiet, Peer(server) as attached:
        assert idle.ask(b"mn\r\n") == b"MN\r\n"
        quiet.set("big", bytes(8_000_000))
        half = Conversation(server)
        half.send(b"set half 0 0 1000000\r\nabc")
        with child("victims.py", server.host, server.port) as nursery:
            assert nursery.stdin is not None and nursery.stdout is not None
            for words in ("storm 1", "storm 2", "read big 8000000", "write big 8000000"):
                nursery.stdin.write(words + "\n")
                nursery.stdin.flush()
                assert nursery.stdout.readline().strip().isdigit()
            assert server.stop(how) == 0
        assert server.stderr() == ""
        assert idle.ended()
        assert half.ended()
        half.close()
        assert attached.lifeline.ended()


def test_stop_within_a_storm_of_connections(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-t", "3")
    ending = threading.Event()
    done: list[Any] = []

    def storm() -> None:
        count = 0
        while not ending.is_set():
            try:
                with Client(server.address, transport="soft_iw", timeout=5, connect_timeout=5) as client:
                    client.set("key", bytes(5000), noreply=False)
                    count += 1
            except (OSError, MemcacheError):
                pass
            except Exception as error:
                done.append(error)
        done.append(count)

    threads = [threading.Thread(target=storm) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with Conversation(server) as control:
            eventually(lambda: control.number("rdma_total_queue_pairs", "rdma") > 30)
        assert server.stop() == 0
        assert server.stderr() == ""
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert all(isinstance(result, int) for result in done), done


def test_many_starts_and_stops(rmemcached_server: ServerFactory) -> None:
    for _ in range(10):
        server = rmemcached_server("-t", "2")
        with rdma_client(server) as client:
            assert client.set("key", bytes(10_000))
            assert server.stop() == 0


# ---- limits of the flags ---------------------------------------------------------------------------------------------


def test_connection_limit(rmemcached_server: ServerFactory) -> None:
    limit = room_for(10)
    server = rmemcached_server("-c", limit)
    talks = []
    with Conversation(server) as control:
        eventually(lambda: control.number("curr_connections") == 1)
        assert control.stats()["max_connections"] == limit
        for _ in range(9):
            talks.append(Conversation(server))
            assert talks[-1].ask(b"mn\r\n") == b"MN\r\n"
        for _ in range(5):
            with Conversation(server) as refused_one:
                assert refused_one.line() == b"ERROR Too many open connections\r\n"
                assert refused_one.ended()
        assert control.number("rejected_connections") == 5
        talks.pop().close()
        eventually(lambda: control.number("curr_connections") == 9)
        with Conversation(server) as talk:
            assert talk.ask(b"mn\r\n") == b"MN\r\n"
        for talk in talks:
            talk.close()
        # An RDMA client counts as one connection once its stream is handed over.
        eventually(lambda: control.number("curr_connections") == 1)
        with rdma_client(server) as client:
            client.version()
            eventually(lambda: control.number("curr_connections") == 2)


@pytest.mark.parametrize(("listeners", "threads", "taken"), [(1, 1, 1 + 5 + 1), (2, 3, 1 + 15 + 2)])
def test_what_counts_for_the_connection_limit(
    rmemcached_server: ServerFactory, listeners: int, threads: int, taken: int
) -> None:
    """The limit counts the daemon's descriptors, not only connections, as memcached's does."""
    addresses = ",".join(f"127.0.0.{number + 1}" for number in range(listeners))
    server = rmemcached_server("-c", "40", "-t", str(threads), "-l", addresses)
    talks: list[Conversation] = []
    while True:
        talk = Conversation(server)
        talks.append(talk)
        if talk.ask(b"mn\r\n") != b"MN\r\n":
            break
    accepted = len(talks) - 1
    # The 40 include 3 standard streams, the descriptors of main thread, workers and listeners, and one descriptor to
    # refuse with.
    assert accepted == 40 - 3 - 2 - taken - 1
    found = talks[0].stats()
    assert found["curr_connections"] == str(accepted + listeners - 1)
    assert found["connection_structures"] == str(accepted + listeners)
    assert found["reserved_fds"] == str(5 * threads)
    assert (found["rejected_connections"], found["listen_disabled_num"]) == ("1", "0")
    for talk in talks:
        talk.close()


def test_connection_limit_too_low() -> None:
    message = "Maxconns setting is too low, use -c to increase.\n"
    assert run(OURS, *AS_ROOT, "-p", str(free_port()), "-l", "127.0.0.1", "-c", "26") == (1, "", message)


def test_rdma_client_beyond_the_limit(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-c", room_for(3))
    with Conversation(server) as first, Conversation(server) as second:
        eventually(lambda: first.number("curr_connections") == 2)
        assert second.ask(b"mn\r\n") == b"MN\r\n"
        with pytest.raises((OSError, MemcacheError)) as caught:
            rdma_client(server, timeout=5, connect_timeout=5).version()
        # The connection ends although the error, with its traceback, still exists.
        assert caught.tb
        eventually(lambda: first.number("curr_connections") == 2)
        second.close()
        # The next client needs two connections for a while, so the place of `second` must be free.
        eventually(lambda: first.number("curr_connections") == 1)
    with rdma_client(server) as client:
        assert client.set("key", b"value")


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads(rmemcached_server: ServerFactory, threads: int) -> None:
    server = rmemcached_server("-t", str(threads))
    with Conversation(server) as talk:
        assert talk.number("threads") == threads
        names = [
            (Path(f"/proc/{server.pid}/task") / task / "comm").read_text().strip()
            for task in os.listdir(f"/proc/{server.pid}/task")
        ]
        assert names.count("mc-worker") == threads
    clients = [rdma_client(server) for _ in range(2 * threads)]
    for number, client in enumerate(clients):
        assert client.set(f"key{number}", bytes(10_000))
    for number, client in enumerate(clients):
        assert client.get(f"key{2 * threads - 1 - number}") == bytes(10_000)
        client.close()


@pytest.mark.parametrize(("flag", "size"), [("1k", 1024), ("2048", 2048), ("128k", 131072), ("2m", 2 << 20)])
def test_item_size(rmemcached_server: ServerFactory, flag: str, size: int) -> None:
    flags = ["-I", flag, "-m", "64"]
    if size < 1 << 20:
        flags += ["-o", f"slab_chunk_max={min(size, 1 << 19) // 1024}"]
    server = rmemcached_server(*flags)
    with Conversation(server) as talk, rdma_client(server) as client:
        assert talk.number("item_size_max", "settings") == size
        assert client.set("fits", bytes(size - 200))
        assert client.get("fits") == bytes(size - 200)
        talk.send(b"set large 0 0 %d\r\n%s\r\n" % (size, bytes(size)))
        assert talk.line() == b"SERVER_ERROR object too large for cache\r\n"


@pytest.mark.parametrize("megabytes", [2, 100, 1000])
def test_memory_limit(rmemcached_server: ServerFactory, megabytes: int) -> None:
    server = rmemcached_server("-m", str(megabytes))
    with Conversation(server) as talk:
        assert talk.number("limit_maxbytes") == megabytes << 20
        assert talk.ask(b"set key 0 0 1\r\nx\r\n") == b"STORED\r\n"


def test_settings_are_shown(rmemcached_server: ServerFactory) -> None:
    flags = [
        "-m",
        "100",
        "-c",
        "500",
        "-t",
        "3",
        "-R",
        "7",
        "-f",
        "1.5",
        "-n",
        "64",
        "-b",
        "99",
        "-I",
        "2m",
        "-v",
        "-v",
        "-M",
        "-C",
        "-F",
        "-o",
        "hash_algorithm=jenkins",
    ]
    server = rmemcached_server(*flags)
    with Conversation(server) as talk:
        found = talk.stats("settings")
    expected = {
        "maxbytes": str(100 << 20),
        "maxconns": "500",
        "num_threads": "3",
        "reqs_per_event": "7",
        "growth_factor": "1.50",
        "chunk_size": "64",
        "tcp_backlog": "99",
        "item_size_max": str(2 << 20),
        "verbosity": "2",
        "evictions": "off",
        "cas_enabled": "no",
        "flush_enabled": "no",
        "tcpport": str(server.port),
        "udpport": "0",
        "inter": "127.0.0.1",
        "domain_socket": "NULL",
        "hash_algorithm": "xxh3",
    }
    assert {name: found.get(name) for name in expected} == expected


def said(server: Server, conversation: list[bytes]) -> list[str]:
    """The lines that the daemon writes about a conversation of one-line replies, without descriptors."""
    new, end = "client connection", "<N connection closed."

    def everything() -> str:
        """The written lines, once all connections have ended."""
        found = re.sub(r"(?m)^([<>]?)\d+(?=[: ])", r"\1N", server.stderr())
        return found if found.endswith("\n") and found.count(end) == found.count(new) > 0 else ""

    # Wait for the end of the connection that awaited the daemon's start, which has states of its own.
    eventually(everything)
    with Conversation(server) as talk:
        for request in conversation:
            talk.ask(request)
            while b"get" in request and talk.line() != b"END\r\n":
                pass
        talk.send(b"quit\r\n")
        assert talk.ended()
    eventually(lambda: everything().count(end) == 2)
    lines = everything().splitlines()
    lines = lines[lines.index("N: Client using the ascii protocol") + 1 :]
    return [line for line in lines if line != end and not line.endswith(new)]


CONVERSATION = [
    b"set key 0 0 3\r\nabc\r\n",
    b"set key 0 0 3 noreply\r\nabd\r\nget key key\r\n",
    b"bogus\r\n",
]
SAID = """<N set key 0 0 3
>N STORED
<N set key 0 0 3 noreply
>N NOREPLY STORED
<N get key key
>N sending key key
>N sending key key
>N END
<N bogus
>N ERROR
<N quit"""
TURN = ["N: going from conn_new_cmd to conn_mwrite", "N: going from conn_mwrite to conn_new_cmd"]
WAIT = [
    "N: going from conn_new_cmd to conn_waiting",
    "N: going from conn_waiting to conn_read",
    "N: going from conn_read to conn_parse_cmd",
]


def test_verbosity_shows_commands_and_replies(rmemcached_server: ServerFactory) -> None:
    """-vv writes commands and replies as memcached 1.6.45 does."""
    assert said(rmemcached_server("-vv"), CONVERSATION) == SAID.splitlines()


def test_verbosity_shows_states(rmemcached_server: ServerFactory) -> None:
    stored = ["N: going from conn_parse_cmd to conn_nread", ">N STORED", "N: going from conn_nread to conn_new_cmd"]
    done = "N: going from conn_parse_cmd to conn_new_cmd"
    expected = ["<N set key 0 0 3", *stored, *TURN, *WAIT, "<N bogus", ">N ERROR", done, *TURN, *WAIT, "<N quit"]
    ended = "N: going from conn_parse_cmd to conn_closing"
    assert said(rmemcached_server("-vvv"), [CONVERSATION[0], CONVERSATION[2]]) == [*expected, ended]


def test_verbosity_shows_states_of_a_long_get(rmemcached_server: ServerFactory) -> None:
    """A get with many keys, or with a line longer than a read, goes through the states of several commands."""

    def states(request: bytes) -> list[str]:
        lines = said(rmemcached_server("-vvv"), [CONVERSATION[0], request])
        begin = lines.index(WAIT[-1]) + 1
        return [line for line in lines[begin : lines.index("<N quit")] if "going from" in line]

    part = ["N: going from conn_parse_cmd to conn_new_cmd", "N: going from conn_new_cmd to conn_parse_cmd"]
    whole = [*part, *part, part[0], *TURN, *WAIT]
    assert states(b"get" + b" key" * 120 + b"\r\n") == whole
    assert states(b"get" + b" key" * 1000 + b"\r\n")[-len(whole) :] == whole


def test_verbosity_lists_the_slab_classes(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    """-vv lists the slab classes as memcached does."""
    ours, theirs = rmemcached_server("-vv"), memcached_server("-vv")
    expected = [line for line in theirs.stderr().splitlines() if line.startswith("slab class")]
    assert len(expected) == 39

    def found() -> list[str]:
        return [line for line in ours.stderr().splitlines(keepends=True) if line.startswith("slab class")]

    eventually(lambda: len(found()) == len(expected) and found()[-1].endswith("\n"))
    assert "".join(found()).splitlines() == expected

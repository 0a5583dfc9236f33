"""soft_shm between daemon and client: its users and its meeting place, hostile peers, the death of either end."""

from __future__ import annotations

import getpass
import logging
import multiprocessing
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import transport
from daemon_commands import as_nobody
from daemon_tools import (
    DATA,
    GONE_WITHIN,
    READY,
    SHM_REPLY,
    SHM_REQUEST,
    TIMEOUT,
    Conversation,
    Peer,
    alone,
    descriptors,
    eventually,
    message,
    rdma_at_rest,
    rdma_client,
    shm_socket,
)
from servers import Server, free_port
from shm_by_hand import HELLO, MESSAGE, STREAM, WAKEUP, ShmPeer, lingering, record
from suspended import suspended

from rmemcached.client import Client, KeepaliveOpts
from rmemcached.client.exceptions import MemcacheError, MemcacheServerError
from rmemcached.host import host_identity
from rmemcached.verbs import MR, Access

LARGE = 300_000
RECORD_FAULT = b"SERVER_ERROR rdma: a record came that no correct peer sends\r\n"
MANY_CLOSES = 256
"""With so many descriptors waiting for their close in the daemon, no queue pair gets a stream."""
HOST, NETNS = host_identity()
EXCHANGE = "rdma version=2 transport=soft_shm qpn=17 credits=16 msgsize=8192 lanebytes=512"
PLACE = f"host={HOST} netns={NETNS}"

ServerFactory = Callable[..., Server]


@pytest.fixture(autouse=True)
def over_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transport.VARIABLE, "soft_shm")


@pytest.fixture(scope="module")
def server(module_server: ServerFactory) -> Server:
    return module_server("-m", "64", "-I", "16m", "-t", "2", "-o", "rdma_direct_linger=0")


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    """A control connection. Afterwards nothing of any queue pair is left, neither memory nor descriptors."""
    with Conversation(server) as talk:
        alone(talk)
        before = descriptors(server.pid), shared_mappings(server.pid)
        yield talk
        eventually(lambda: rdma_at_rest(talk) and talk.number("curr_connections") == 1, GONE_WITHIN)
        # The numbers may fall: ends of an earlier test were counted before.
        eventually(lambda: descriptors(server.pid) <= before[0] and shared_mappings(server.pid) <= before[1])


def shared_mappings(pid: int) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text()
    # The daemon's items are in a memfd, too.
    return maps.count("memfd:") - maps.count("memfd:rmemcached items")


def abstract_names() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@rmemcached-" in line}


def named_files() -> set[str]:
    """The files with a name. Other programs on the machine may have some, too."""
    return {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "rmemcached" in name}


def exchanged(talk: Conversation, line: str = f"{EXCHANGE} {PLACE}") -> dict[str, str]:
    answer = talk.ask(line.encode() + b"\r\n").decode()
    assert answer.startswith("RDMA "), answer
    return dict(pair.split("=") for pair in answer.split()[1:])


def place_of(server: Server) -> str:
    with Conversation(server) as talk:
        return exchanged(talk)["path"]


def frame(offer: dict[str, str]) -> bytes:
    return SHM_REQUEST + int(offer["qpn"]).to_bytes(4, "big") + bytes.fromhex(offer["token"])


def everything(sock: socket.socket) -> bytes:
    """All bytes up to the end."""
    received = b""
    try:
        while more := sock.recv(4096):
            received += more
    except ConnectionResetError:
        pass
    return received


# ---- the meeting place -----------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_daemon_that_was_killed(rmemcached_server: ServerFactory) -> None:
    before = named_files()
    server = rmemcached_server("-t", "1")
    name = place_of(server)
    assert name in abstract_names()
    with rdma_client(server) as client:
        client.set("key", bytes(LARGE))
        server.kill()
    assert name not in abstract_names()
    assert named_files() <= before


@pytest.mark.parametrize(
    "where", ["", "netns=1", "host=0123", f"host={HOST}", f"host={HOST} netns=1", f"netns={NETNS}"]
)
def test_another_host_or_network(control: Conversation, where: str) -> None:
    reply = control.ask(f"{EXCHANGE} {where}".strip().encode() + b"\r\n")
    assert reply == b"SERVER_ERROR rdma: soft_shm needs a client on the same host and network\r\n"
    assert control.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("where", ["host=", "host=" + "x" * 65, "netns=0", "netns=x", "netns=4294967296"])
def test_a_place_that_is_none(control: Conversation, where: str) -> None:
    reply = control.ask(f"{EXCHANGE} {where}".encode() + b"\r\n")
    assert reply == b"CLIENT_ERROR rdma: a value is malformed or out of range\r\n"


def as_user(uid: int, address: Any, transport: str, results: Any) -> None:
    """Runs in a process of its own: puts the transport that this user gets, or the error, into `results`."""
    logging.basicConfig(level=logging.CRITICAL)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setuid(uid)
    try:
        with Client(address, transport=transport, timeout=TIMEOUT) as client:
            client.version()
            results.put(client.transport)
    except MemcacheServerError as error:
        results.put(str(error))


def asked_as(uid: int, address: Any, transport: str) -> str:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=as_user, args=(uid, address, transport, results))
    process.start()
    found: str = results.get(timeout=TIMEOUT)
    process.join()
    return found


def test_another_user(server: Server, control: Conversation) -> None:
    """Another user gets a refusal with the reason. A client with a choice goes on to the next transport."""
    assert asked_as(os.geteuid(), server.address, "auto") == "soft_shm"
    if os.geteuid() == 0:
        assert asked_as(12345, server.address, "auto") == "tcp"
        found = asked_as(12345, server.address, "soft_shm")
        assert "SERVER_ERROR rdma: this socket is for user 0 and root, not for user 12345" in found


@pytest.fixture
def open_folder() -> Iterator[str]:
    """A folder open to every user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield folder


def test_a_file_of_that_name(rmemcached_server: ServerFactory, open_folder: str) -> None:
    """-o rdma_shm: the permissions of the file decide. The file goes with the daemon, or at the next daemon's start."""
    path = f"{open_folder}/shm"
    server = rmemcached_server("-o", f"rdma_shm={path}", "-a", "0666")
    assert place_of(server) == path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    assert asked_as(12345, server.address, "soft_shm") == "soft_shm"
    with Conversation(server) as talk:
        # With a path the client's network does not matter.
        assert exchanged(talk, f"{EXCHANGE} host={HOST}")["path"] == path
    assert server.stop() == 0
    assert not os.path.exists(path)
    server = rmemcached_server("-o", f"rdma_shm={path}")
    assert place_of(server) == path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    if os.geteuid() == 0:
        assert "Permission denied" in asked_as(12345, server.address, "soft_shm")
        assert asked_as(12345, server.address, "auto") == "tcp"
    server.kill()
    assert os.path.exists(path)
    server = rmemcached_server("-o", f"rdma_shm={path}")
    # A second daemon does not take the path away.
    flags = ("-U", "0", "-l", "127.0.0.1", "-u", getpass.getuser(), "-o", f"rdma_shm={path}")
    command = [sys.executable, "-P", "-m", "rmemcached", "-p", str(free_port()), *flags]
    second = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert (second.returncode, second.stderr) == (1, f"rdma_shm: {path} is in use by another process\n")
    with Client(server.address, timeout=TIMEOUT) as client:
        client.version()
        assert client.transport == "soft_shm"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize("mode", [0o777, 0o1777], ids=["folder", "sticky folder"])
def test_a_file_of_another_user(open_folder: str, mode: int) -> None:
    """The daemon leaves another user's file, even in a folder where all may delete files, and gives the reason."""
    os.chmod(open_folder, mode)
    path = f"{open_folder}/shm"
    with socket.socket(socket.AF_UNIX) as others:
        others.bind(path)
        others.listen()
        os.chmod(path, 0o700)
        flags = ("-p", str(free_port()), "-l", "127.0.0.1", "-c", "50")
        assert as_nobody(*flags, "-o", f"rdma_shm={path}") == (1, "", f"rdma_shm: {path} is in use by another user\n")
        assert stat.S_ISSOCK(os.lstat(path).st_mode)
        if mode & stat.S_ISVTX:
            said = f"failed to listen on UNIX socket: {path}: Address already in use\n"
            assert as_nobody("-s", path, "-c", "50") == (71, "", said)


@pytest.mark.without_direct("it starts a daemon with rdma_shm=none, which excludes it")
def test_a_unix_socket_lets_in_whom_its_permissions_do(rmemcached_server: ServerFactory, open_folder: str) -> None:
    path = f"{open_folder}/socket"
    for flags, transport_of_others in (((), "soft_shm"), (("-o", "rdma_shm=none"), "tcp")):
        server = rmemcached_server("-a", "0777", *flags, path=path)
        assert asked_as(12345, path, "auto") == transport_of_others
        assert server.stop() == 0


@pytest.mark.without_direct("it starts a daemon with rdma_shm=none, which excludes it")
def test_where_it_meets_is_shown(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "shm")
    for flags, place in (
        (("-o", f"rdma_shm={path}"), path),
        (("-o", "rdma_shm=none"), "none"),
        ((), None),
    ):
        server = rmemcached_server(*flags)
        with Conversation(server) as talk:
            found = talk.stats("rdma")
            assert found["rdma_shm"] == (place or exchanged(talk)["path"])
            assert found["rdma_cm_port"] == "0"
    with Conversation(rmemcached_server(path=str(tmp_path / "socket"))) as talk:
        assert talk.stats("rdma")["rdma_shm"] == "-s"


def test_only_streams_come_there(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    path = str(tmp_path / "shm")
    assert place_of(rmemcached_server("-o", f"rdma_shm={path}")) == path
    for octets in (b"version\r\n", b"S", b"MPA ID Req Frame" + bytes(4), bytes(36), b"\x80" + bytes(23)):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(path)
            sock.sendall(octets)
            sock.shutdown(socket.SHUT_WR)
            assert everything(sock) == b""


@pytest.mark.without_direct("it starts a daemon with rdma_shm=none, which excludes it")
def test_switched_off(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-o", "rdma_shm=none")
    with Client(server.address, timeout=TIMEOUT) as client:
        client.version()
        assert client.transport == "tcp"
    with (
        Client(server.address, transport="soft_shm", timeout=TIMEOUT) as client,
        pytest.raises(MemcacheServerError, match="soft_shm is not available here"),
    ):
        client.version()


def test_on_a_unix_socket(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    server = rmemcached_server("-I", "8m", path=str(tmp_path / "socket"))
    source = random.Random(1)
    assert server.path is not None
    with Client(server.path, timeout=TIMEOUT, default_noreply=False) as client, Conversation(server) as talk:
        for size in (0, 1, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1, 4_000_000):
            value = source.randbytes(size)
            assert client.set("key", value)
            for _ in range(2):
                assert client.get("key") == value
        assert client.transport == "soft_shm"
        assert talk.stats("rdma")["rdma_soft_shm_queue_pairs"] == "1"
        assert talk.ask(b"SHM is no command\r\n") == b"ERROR\r\n"
    with Conversation(server) as talk:
        # This line has the beginning of a frame.
        assert talk.ask(b"SHM is no frame either\r\n") == b"ERROR\r\n"


# ---- the request for a stream ----------------------------------------------------------------------------------------


def test_every_cut_of_the_request(server: Server, control: Conversation) -> None:
    with Conversation(server) as talk:
        offer = exchanged(talk)
        whole = frame(offer)
        for length in range(len(whole)):
            with shm_socket(offer) as sock:
                sock.sendall(whole[:length])
        with shm_socket(offer) as sock:
            for octet in whole:
                sock.sendall(bytes([octet]))
            assert sock.recv(16) == SHM_REPLY


def test_wrong_requests(server: Server, control: Conversation) -> None:
    with Conversation(server) as talk:
        offer = exchanged(talk)
        whole = frame(offer)
        none = b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"
        for octets, answer in (
            (whole[:16] + bytes(20), none),
            (whole[:19] + bytes([whole[19] ^ 1]) + whole[20:], none),
            (whole[:-1] + bytes([whole[-1] ^ 1]), none),
            (whole + b"x", b""),
            (b"SHM ID Rep Frame" + whole[16:], b""),
            (b"stats\r\n", b""),
        ):
            with shm_socket(offer) as sock:
                sock.sendall(octets)
                assert everything(sock) == answer
        with shm_socket(offer) as sock, shm_socket(offer) as second:
            sock.sendall(whole)
            assert sock.recv(16) == SHM_REPLY
            # The token opens a single stream.
            second.sendall(whole)
            assert everything(second) == none


def test_a_token_of_the_other_transport(server: Server, control: Conversation) -> None:
    with Conversation(server) as talk, Conversation(server) as other:
        offer = exchanged(talk)
        iw = exchanged(other, EXCHANGE.replace("soft_shm", "soft_iw"))
        with shm_socket(offer) as sock:
            sock.sendall(frame(iw))
            assert everything(sock) == b"SERVER_ERROR rdma: no queue pair waits for this stream\r\n"


# ---- hostile peers ---------------------------------------------------------------------------------------------------


def attached(talk: Conversation) -> socket.socket:
    """A granted stream before its first message."""
    offer = exchanged(talk)
    sock = shm_socket(offer)
    sock.sendall(frame(offer))
    assert sock.recv(16) == SHM_REPLY
    return sock


def test_garbage_in_place_of_records(server: Server, control: Conversation) -> None:
    source = random.Random(3)
    with rdma_client(server) as bystander:
        bystander.set("safe", b"value")
        for size in (1, 48, 48, 48, 100, 5000):
            with Conversation(server) as talk, attached(talk) as sock:
                sock.sendall(source.randbytes(size))
                if size < 48:
                    sock.shutdown(socket.SHUT_WR)
                last = everything(talk.sock)
                assert last == (RECORD_FAULT if size >= 48 else b""), last
        with Conversation(server) as talk, attached(talk) as sock, open(os.devnull) as null:
            # These descriptors are not of memory.
            ShmPeer(sock).post(record(HELLO), null.fileno(), null.fileno())
            assert everything(talk.sock) == RECORD_FAULT
        assert bystander.get("safe") == b"value"


def close_waits(server: Server, sender: socket.socket) -> None:
    """Makes the daemon's thread for closing descriptors wait in its first close. Then peers add descriptors, three and
    a socket each, until MANY_CLOSES wait."""
    with open(os.devnull) as null:
        fds = [null.fileno()] * 3
        with Conversation(server) as talk, attached(talk) as sock:
            # Our descriptor is closed before the daemon receives its own, which is then the last.
            with suspended(server.pid):
                socket.send_fds(sock, [record(HELLO)], [*fds[:2], sender.fileno()])
                sender.close()
            assert everything(talk.sock) == RECORD_FAULT
        for _ in range(MANY_CLOSES // 4 - 1):
            with Conversation(server) as talk, attached(talk) as sock:
                socket.send_fds(sock, [record(HELLO)], fds)
                assert everything(talk.sock) == RECORD_FAULT


def test_auto_falls_back_while_the_daemon_takes_no_stream(rmemcached_server: ServerFactory) -> None:
    """While the daemon takes no streams existing clients go on, and new clients take the next transport. Later new
    clients get streams again."""
    server = rmemcached_server("-t", "1")
    sender, reader = lingering(3600)
    # With another keepalive than the later clients, this client shares its queue pair with none of them.
    keepalive = KeepaliveOpts()
    with Client(server.address, timeout=TIMEOUT, default_noreply=False, socket_keepalive=keepalive) as before:
        assert before.set("key", b"value") and before.transport == "soft_shm"
        close_waits(server, sender)

        def next_has(transport: str) -> bool:
            with Client(server.address, timeout=TIMEOUT) as client:
                return client.get("key") == b"value" and client.transport == transport

        eventually(lambda: next_has("tcp"))
        with (
            Client(server.address, transport="soft_shm", timeout=TIMEOUT) as client,
            pytest.raises((MemcacheError, OSError)),
        ):
            client.get("key")
        assert before.get("key") == b"value"
        reader.close()
        eventually(lambda: next_has("soft_shm"))


def is_served(peer: ShmPeer) -> bool:
    """Whether the daemon has understood all so far, and answers READY."""
    peer.cell(message(READY), MESSAGE)
    peer.post(record(WAKEUP))
    eventually(lambda: (cell := peer.next_cell()) is not None and cell[2][0] == READY)
    return True


def nonsense(peer: ShmPeer, case: str, source: random.Random) -> None:
    octets = source.randbytes(source.randrange(1, 5000))
    if case == "a cell of no kind":
        peer.cell(octets, source.randrange(3, 256))
    elif case == "a message that is none":
        peer.cell(bytes([source.randrange(3, 256)]) + octets, MESSAGE)
    elif case == "a frame that is none":
        peer.cell(len(octets).to_bytes(2, "big") + octets + bytes(-(2 + len(octets)) % 4 + 4), STREAM)
    elif case == "records that were not sent":
        peer.sent += source.randrange(1, 1 << 30)
        # A record may come before its count: only the next record shows that the count is false.
        peer.post(record(WAKEUP))
    elif case == "a word that is none":
        peer.put(octets)
        peer.word(len(octets), MESSAGE, stamp=source.randrange(2, 1 << 32))
    peer.post(record(WAKEUP))


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("a cell of no kind", "a cell of the ring is malformed"),
        ("a message that is none", "a first message that is not READY"),
        ("a frame that is none", None),
        ("records that were not sent", "records are counted that were not sent"),
        ("a word that is none", None),
    ],
)
def test_garbage_in_the_ring(server: Server, control: Conversation, case: str, why: str | None) -> None:
    """Garbage ends its own connection only, with the reason in a line. A wrong word counts as no word."""
    source = random.Random(4)
    with rdma_client(server) as bystander:
        bystander.set("safe", b"value")
        for _ in range(12):
            with Conversation(server) as talk, closing(ShmPeer(attached(talk), paid=True)) as peer:
                peer.hello()
                with suppress(BrokenPipeError):
                    nonsense(peer, case, source)
                if case == "a word that is none":
                    assert is_served(peer)
                else:
                    last = everything(talk.sock)
                    assert last == (b"" if why is None else f"SERVER_ERROR rdma: {why}\r\n".encode()), last
        assert bystander.get("safe") == b"value"


@pytest.mark.parametrize("case", ["paid", "sparse"])
def test_a_ring_made_by_hand(server: Server, control: Conversation, case: str) -> None:
    """The daemon serves a hand-made ring with all pages allocated, and refuses a sparse ring: so the tests' garbage, in
    allocated rings, reaches the daemon."""
    with Conversation(server) as talk, closing(ShmPeer(attached(talk), paid=case == "paid")) as peer:
        peer.hello()
        assert is_served(peer) if case == "paid" else everything(talk.sock) == RECORD_FAULT


def test_one_sided_memory_that_goes_away(server: Server, control: Conversation) -> None:
    """The daemon refuses a deregistered region, even while the region is still mapped."""
    with Peer(server) as peer:
        region = MR.alloc(peer.pd, LARGE, Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE)
        memory = memoryview(region)
        memory[:] = b"x" * LARGE
        before = control.number("shm_one_sided", "rdma")
        source = f"@{region.addr:x}:{region.rkey:x}"
        for _ in range(3):
            assert peer.ask(f"ms key {LARGE} {source}\r\n".encode()) == b"HD\r\n"
        assert control.number("shm_one_sided", "rdma") == before + 2
        memory[:] = bytes(LARGE)
        assert peer.ask(f"mg key v {source}:{LARGE:x}\r\n".encode()) == f"VA {LARGE} @\r\n".encode()
        assert memory == b"x" * LARGE
        memory.release()
        region.close()
        peer.send(DATA, f"ms key {LARGE} {source}\r\n".encode())
        with pytest.raises(ConnectionError):
            peer.wait(lambda: False)
        assert peer.last_words().startswith(b"SERVER_ERROR rdma: RDMA READ failed: ")
    with rdma_client(server) as client:
        assert client.get("key") == b"x" * LARGE


def test_one_sided_memory_beyond_its_end(server: Server, control: Conversation) -> None:
    with rdma_client(server) as client:
        client.set("key", bytes(LARGE))
    for at, length in ((1, LARGE), (LARGE, 8192), (-1, 8192), (0, 2 * LARGE)):
        with Peer(server) as peer:
            region = MR.alloc(peer.pd, LARGE, Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE)
            assert peer.ask(f"ms mine {LARGE} @{region.addr:x}:{region.rkey:x}\r\n".encode()) == b"HD\r\n"
            peer.send(DATA, f"ms mine {length} @{region.addr + at:x}:{region.rkey:x}\r\n".encode())
            with pytest.raises(ConnectionError):
                peer.wait(lambda: False)
            assert peer.last_words().startswith(b"SERVER_ERROR rdma: RDMA READ failed: ")


# ---- values ----------------------------------------------------------------------------------------------------------


def test_values_of_every_size(server: Server, control: Conversation) -> None:
    """Values around and above the limits of messages and of the daemon's mapped region arrive, singly and together."""
    source = random.Random(7)
    sizes = [0, 1, 4095, 4096, 4097, 8192, 65_536, 131_072, 131_073, 1 << 20, (1 << 20) + 1, 1 << 23, (1 << 23) + 1]
    with rdma_client(server) as client:
        values = {f"size{size}": source.randbytes(size) for size in sizes}
        for key, value in values.items():
            assert client.set(key, value)
            for _ in range(2):
                assert client.get(key) == value
        # The values of this call need more room than the region has.
        values = {f"many{i}": source.randbytes(2_500_000) for i in range(5)}
        assert client.set_many(values) == []
        assert client.get_many(list(values)) == values
        assert client.set("small", b"again")
        assert client.get("small") == b"again"


# ---- the death of the daemon -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "in a transfer"])
def test_the_daemon_dies(rmemcached_server: ServerFactory, busy: bool) -> None:
    """A waiting client learns of the daemon's death by the end of the connection, not by its own time-out."""
    server = rmemcached_server("-t", "1", "-I", "16m", "-m", "128")
    ready, told = multiprocessing.Pipe()
    patience = 2 * max(GONE_WITHIN, TIMEOUT)

    def wait() -> None:
        with rdma_client(server, timeout=patience) as client:
            client.set("key", bytes(10_000_000))
            ready.send("ready")
            try:
                while True:
                    if busy:
                        client.get("key")
                    else:
                        os.kill(server.pid, signal.SIGSTOP)
                        client.get("none")
            except (MemcacheServerError, OSError) as error:
                ready.send((time.monotonic(), type(error).__name__))

    process = multiprocessing.get_context("fork").Process(target=wait)
    process.start()
    assert told.recv() == "ready"
    if not busy:
        eventually(lambda: Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    killed = time.monotonic()
    server.kill()
    assert told.poll(patience + TIMEOUT)
    when, _ = told.recv()
    process.join()
    assert when - killed < GONE_WITHIN

"""The clients that may read without asking (-o rdma_direct): by default those of the daemon's user, and of root."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Server, start_rmemcached
from suspended import suspended

from rmemcached.client import AsyncClient, Client, ClusterClient, MemcacheClientError

ServerFactory = Callable[..., Server]
TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False}
CLONE_NEWNET = 0x40000000
pytestmark = pytest.mark.by_default("about the clients that read without an option")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users, and make namespaces")


def mappings() -> int:
    """The number of mappings of an index in this process. Tests compare two such numbers, because earlier tests may
    have left Clients that still read."""
    return Path("/proc/self/maps").read_text().count("memfd:rmemcached index")


def reads(address: Any, **options: Any) -> tuple[str, bool, bool]:
    """The chosen transport of a Client; whether the Client reports direct reads; whether the index is mapped."""
    before = mappings()
    with Client(address, **OPTIONS | options) as client:
        client.set("key", b"value")
        assert client.get("key") == b"value"
        return client.transport, client.direct, mappings() > before


def in_child(uid: int, network: bool, target: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result in a process of this user, and with `network` in a network of its own."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def body() -> None:
        if network:
            assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        os.setgroups([])
        os.setuid(uid)
        try:
            results.put(target(*arguments))
        except Exception as error:
            results.put(error)

    process = context.Process(target=body)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    return results.get()


def said(server: Server) -> tuple[str, str]:
    """Returns the two values of `stats rdma` about direct reads."""
    with Client(server.address, **OPTIONS, transport="tcp", username="u", password="p") as client:
        found = client.stats("rdma")
    return found[b"rdma_direct"].decode(), found[b"rdma_direct_off"].decode()


def test_clients_of_the_own_user_read(rmemcached_server: ServerFactory, caplog: pytest.LogCaptureFixture) -> None:
    """A plain client of a plain daemon of the same user reads."""
    server = rmemcached_server()
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(server.address) as client:
        assert not client.direct
        client.set("greeting", "hello", noreply=False)
        assert client.direct and client.transport == "soft_shm"
        assert "; gets read its items and ask nobody" in caplog.text
        with suspended(server.pid):
            assert client.get("greeting") == b"hello"
            assert client.get_many(["greeting"]) == {"greeting": b"hello"}
    assert not client.direct
    assert said(server) == ("own", "none")
    cluster = ClusterClient([server.address], default_noreply=False, timeout=TIMEOUT)
    cluster.set("key", b"value")
    with suspended(server.pid):
        assert cluster.get("key") == b"value"
    cluster.close()


def test_async_clients_of_the_own_user_read(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()

    async def body() -> None:
        async with AsyncClient(server.address, **OPTIONS) as client:
            assert not client.direct
            await client.set("key", b"value")
            assert client.direct
            with suspended(server.pid):
                assert await client.get("key") == b"value"
        assert not client.direct

    asyncio.run(body())


@pytest.mark.parametrize(
    ("flags", "word", "line"),
    [
        (["-X"], "-X", "rdma_direct is off: -X keeps keys from clients: -o rdma_direct=own shows them to the"),
        (["-Y", "{users}"], "-Y", "rdma_direct is off: -Y asks for a password: -o rdma_direct=own lets clients"),
        (["-o", "rdma_shm={folder}/shm"], "rdma_shm", ""),
        (["-v", "-o", "rdma_shm={folder}/shm"], "rdma_shm", "rdma_direct is off: the socket has a file, by"),
        (["-o", "rdma_direct=off"], "rdma_direct", ""),
        (["-o", "rdma_shm=none"], "shared_memory", ""),
    ],
    ids=lambda value: value[0] + value[-1] if isinstance(value, list) else "",
)
def test_nobody_reads(
    rmemcached_server: ServerFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    word: str,
    line: str,
) -> None:
    """With options that restrict clients nobody reads. Daemon, statistics and client's log give the reason."""
    (tmp_path / "users").write_text("u:p\n")
    server = rmemcached_server(*(flag.format(users=tmp_path / "users", folder=tmp_path) for flag in flags))
    with caplog.at_level(logging.INFO, "rmemcached.client"):
        transport, says, mapped = reads(server.address, username="u", password="p")
    assert transport == ("tcp" if word == "shared_memory" else "soft_shm")
    assert not says and not mapped
    assert said(server) == ("off", word)
    assert server.stderr().startswith(line) and (line or not server.stderr())
    assert transport == "tcp" or f"; gets ask: the server's rdma_direct is off ({word})" in caplog.text


def test_the_log_says_that_gets_begin_to_ask(
    rmemcached_server: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon without direct reads takes the place of a daemon with them: the transport is the same, and gets ask."""
    path = str(tmp_path / "socket")
    said_last = []
    with caplog.at_level(logging.INFO, "rmemcached.client"), Client(path, **OPTIONS) as client:
        for who in ("all", "off", "off", "all"):
            server = rmemcached_server("-o", f"rdma_direct={who}", path=path)
            client.set("key", b"value")
            assert client.direct == (who == "all")
            said_last.append(caplog.messages[-1].rpartition("; ")[2])
            server.stop()
    reading, asking = "gets read its items and ask nobody", "gets ask: the server's rdma_direct is off (rdma_direct)"
    assert said_last == [reading, asking, asking, reading]
    assert len(caplog.messages) == 3


def test_nobody_reads_over_a_socket_with_a_file(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    server = rmemcached_server(path=str(tmp_path / "socket"))
    assert reads(server.address) == ("soft_shm", False, False)
    assert said(server) == ("off", "-s")
    other = rmemcached_server("-o", "rdma_direct=all", path=str(tmp_path / "other"))
    assert reads(other.address) == ("soft_shm", True, True)


@needs_root
def test_nobody_reads_where_pages_may_be_missing(tmp_path: Path) -> None:
    """With vm.overcommit_memory=2 nobody reads. The setting is the machine's: the daemon alone gets a false file."""
    (tmp_path / "two").write_text("2\n")
    # By default unshare makes the root private, and fails if a chroot's root is no mount: only /proc is made private.
    script = 'mount --make-private /proc && mount --bind "$0" /proc/sys/vm/overcommit_memory && exec "$@"'
    under = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, str(tmp_path / "two")]
    with start_rmemcached(under=under) as server:
        assert reads(server.address)[1:] == (False, False)
        assert said(server) == ("off", "overcommit_memory")
        assert server.stderr().startswith("rdma_direct is off: vm.overcommit_memory is 2")


@pytest.mark.parametrize("flags", [["-X"], ["-Y", "{users}"]], ids=["-X", "-Y"])
def test_an_option_says_that_they_may(rmemcached_server: ServerFactory, tmp_path: Path, flags: list[str]) -> None:
    users = tmp_path / "users"
    users.write_text("u:p\n")
    server = rmemcached_server("-o", "rdma_direct=own", *(flag.format(users=users) for flag in flags))
    assert server.stderr() == ""
    assert reads(server.address, username="u", password="p") == ("soft_shm", True, True)
    if flags[0] == "-Y":
        before = mappings()
        with pytest.raises(MemcacheClientError):
            reads(server.address)
        assert mappings() == before


@needs_root
def test_another_user_does_not(rmemcached_server: ServerFactory) -> None:
    """Another user gets no shared memory, and over a socket open to all only the reads permitted by rdma_direct."""
    server = rmemcached_server()
    assert in_child(12345, False, reads, server.address) == ("tcp", False, False)
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    folder.chmod(0o755)
    try:
        for who, direct in (("off", False), ("all", True)):
            flags = f"rdma_shm={folder}/{who}" + (",rdma_direct=all" if direct else "")
            let_in = rmemcached_server("-o", flags, "-a", "0666")
            assert in_child(12345, False, reads, let_in.address) == ("soft_shm", direct, direct)
            let_in.stop()
    finally:
        folder.rmdir()


def meets(name: str) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + name[1:])
    return "met"


@needs_root
def test_another_container_does_not(rmemcached_server: ServerFactory) -> None:
    """A network of its own has other abstract names: not even the same user reaches the socket."""
    server = rmemcached_server()
    with Client(server.address, **OPTIONS, transport="tcp") as client:
        name = client.stats("rdma")[b"rdma_shm"].decode()
    assert in_child(0, False, meets, name) == "met"
    assert isinstance(in_child(0, True, meets, name), ConnectionRefusedError)


@needs_root
def test_a_client_with_another_clock_says_that_it_asks(rmemcached_server: ServerFactory) -> None:
    """A client in a time namespace of its own cannot tell whether the daemon's clock moves."""
    server = rmemcached_server()
    child = "import asyncio, logging, sys; from rmemcached.client import AsyncClient, Client\n"
    child += "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
    child += f"with Client({server.address!r}) as client:\n"
    child += "    client.set('key', 'value', noreply=False)\n"
    child += "    print(client.get('key'), client.transport, client.direct)\n"
    child += "async def body():\n"
    child += f"    async with AsyncClient({server.address!r}) as client:\n"
    child += "        print(await client.get('key'), client.transport, client.direct)\n"
    child += "asyncio.run(body())\n"
    namespace = ["unshare", "--time", "--monotonic", "100000", sys.executable, "-c", child]
    printed = subprocess.run(namespace, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
    assert printed.count("b'value' soft_shm False\n") == 2
    assert printed.count("; gets ask: its clock does not move here (a stopped server, or another time namespace)") == 2
    doctor = [*namespace[:5], "-m", "rmemcached.tools.doctor", "{}:{}".format(*server.address)]
    said = subprocess.run(doctor, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT).stdout
    assert "soft_shm: gets ask: this process cannot map the server's items (ulimit -v), or has another clock" in said


@needs_root
def test_a_daemon_that_became_another_user(rmemcached_server: ServerFactory) -> None:
    """After -u the clients of the new user and of root read."""
    server = rmemcached_server("-u", "nobody")
    assert reads(server.address) == ("soft_shm", True, True)
    assert in_child(65534, False, reads, server.address) == ("soft_shm", True, True)
    assert in_child(12345, False, reads, server.address) == ("tcp", False, False)


def test_the_index_goes_with_the_last_client(rmemcached_server: ServerFactory) -> None:
    """The index goes also when the last client is killed, and the next client finds another index."""
    server = rmemcached_server("-o", "rdma_direct_linger=0")
    with Client(server.address, **OPTIONS, transport="tcp") as asking:

        def has_gone() -> bool:
            found = asking.stats()
            return found[b"direct_buckets"] == 0 and found[b"direct_readers"] == 0

        for number in range(3):
            assert reads(server.address) == ("soft_shm", True, True)
            child = [sys.executable, "-c", "import sys; from rmemcached.client import Client\n"]
            child[-1] += f"client = Client({server.address!r}, timeout={TIMEOUT})\n"
            child[-1] += "client.get('key'); print(client.direct, flush=True); sys.stdin.read()"
            with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "True\n"
                assert asking.stats()[b"direct_readers"] == 1
                process.kill()
            while not has_gone():
                os.sched_yield()
            assert asking.stats()[b"direct_clients"] == 2 * number + 2

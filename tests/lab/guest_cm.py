"""Connections through rdma_cm: the daemon's ports, the permitted clients, the ends of connections. Run by test_lab.py
in a guest with the device rxe0."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cm_by_hand import ListenerByHand
from daemon_tools import Conversation, child, descriptors, eventually, rdma_at_rest, room_for
from guest_selection import OVER_CM, has_selected
from guest_tools import DEVICE, PYTEST, REFERENCE, ROOT, SYSTEM_PYTHON, resources, run
from servers import Server, free_port
from suspended import suspended

from rmemcached.client import Client, KeepaliveOpts, MemcacheError, MemcacheServerError
from rmemcached.client.transport.connection import TransportUnavailable

HERE = "10.0.2.15"
HERE_TOO = "10.0.2.16"
HERE_V6 = "fd00::15"
CM_FILE = "/dev/infiniband/rdma_cm"
WITHIN = 20.0
SIZES = (0, 1, 100, 4000, 4095, 4096, 4097, 8192, 65536, 1_000_000, 2_000_000)
BIG = random.Random(7).randbytes(1_000_000)

ServerFactory = Callable[..., Server]
DaemonFactory = Callable[..., "Daemon"]


def in_use() -> tuple[int, ...]:
    """The numbers of queue pairs, completion queues and connections; the kernel has some for itself."""
    found = resources()
    return found["qp"], found["cq"], found["cm_id"]


@pytest.fixture(scope="module", autouse=True)
def addresses() -> Iterator[None]:
    """Adds an IPv4 and an IPv6 address, which the device gets as soon as its network device."""
    run("ip", "address", "add", f"{HERE_TOO}/24", "dev", "eth0")
    run("ip", "address", "add", f"{HERE_V6}/64", "dev", "eth0", "nodad")
    gids = Path(f"/sys/class/infiniband/{DEVICE}/ports/1/gids")
    wanted = "fd00:0000:0000:0000:0000:0000:0000:0015"
    eventually(lambda: wanted in [gid.read_text().strip() for gid in gids.iterdir()], WITHIN)
    yield
    run("ip", "address", "delete", f"{HERE_TOO}/24", "dev", "eth0")
    run("ip", "address", "delete", f"{HERE_V6}/64", "dev", "eth0")


class Daemon:
    """A daemon with a port of rdma_cm. The tests talk to the daemon over TCP as well, on the loopback address."""

    def __init__(self, *arguments: str) -> None:
        self.cm_port = free_port()
        port = free_port()
        options = ("-u", "root", "-p", str(port), "-m", "256", "-I", "8m", "-t", "2", "-v")
        command = [sys.executable, "-P", "-m", "rmemcached", *options, "-o", f"rdma_cm_port={self.cm_port}", *arguments]
        self.server = Server(command, port)

    def client(self, host: str = HERE, **arguments: Any) -> Client:
        settings: dict[str, Any] = {"timeout": WITHIN, "connect_timeout": WITHIN, "default_noreply": False, **arguments}
        return Client(
            (host, self.server.port),
            transport="rdma_cm",
            rdma_cm_port=self.cm_port,
            **settings,
        )

    def reference(self, host: str = HERE, before: str = "") -> subprocess.CompletedProcess[str]:
        """Runs tests/client/reference.py over librdmacm, after some lines that change the client."""
        script = [
            f"import sys; sys.path.insert(0, {str(Path(REFERENCE).parent)!r}); import reference",
            before,
            f"sys.argv = ['reference.py', '--rdma-cm', '{self.cm_port}', {host!r}, '{self.server.port}']",
            "sys.exit(reference.main())",
        ]
        command = [SYSTEM_PYTHON, "-c", "\n".join(script)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)


@contextmanager
def factory() -> Iterator[DaemonFactory]:
    made: list[Daemon] = []

    def start(listen: str | None, *arguments: str) -> Daemon:
        made.append(Daemon(*(("-l", listen) if listen else ()), *arguments))
        # TCP connections wait for the daemon to come up, requests of rdma_cm are refused until then.
        with Conversation(made[-1].server, WITHIN) as talk:
            assert talk.ask(b"version\r\n").startswith((b"VERSION", b"CLIENT_ERROR unauthenticated"))
        return made[-1]

    yield start
    crashed = [each.server.stderr() for each in made if not each.server.ended_by_us and not each.server.alive()]
    for each in made:
        each.server.stop()
    assert not crashed


@pytest.fixture
def make() -> Iterator[DaemonFactory]:
    """make(listen, *flags) starts a daemon. listen: its -l; None: all addresses."""
    with factory() as start:
        yield start


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon on all addresses, for the tests that do not end the daemon."""
    with factory() as start:
        yield start(None)


@pytest.fixture
def control(daemon: Daemon) -> Iterator[Conversation]:
    with Conversation(daemon.server, WITHIN) as talk:
        yield talk


def there_and_back(client: Client) -> None:
    generator = random.Random(3)
    for size in SIZES:
        value = generator.randbytes(size)
        assert client.set("key", value)
        assert client.get("key") == value


# ---- clients and addresses -------------------------------------------------------------------------------------------


def test_librdmacm_is_a_peer(daemon: Daemon, control: Conversation) -> None:
    """The client in pyverbs, written from the protocol's page, connects by librdmacm."""
    done = daemon.reference()
    assert done.returncode == 0, done.stdout
    assert "speaks as the protocol says" in done.stdout
    counted = control.stats("rdma")
    assert int(counted["rdma_read_bytes"]) > 1_000_000 and int(counted["rdma_write_bytes"]) > 1_000_000
    eventually(lambda: rdma_at_rest(control), WITHIN)


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        (None, (HERE, HERE_TOO, HERE_V6)),
        (f"127.0.0.1,{HERE}", (HERE,)),
        (f"127.0.0.1,{HERE_TOO},[{HERE_V6}]", (HERE_TOO, HERE_V6)),
    ],
    ids=["all", "one", "several"],
)
def test_where_it_listens(make: DaemonFactory, listen: str | None, hosts: tuple[str, ...]) -> None:
    daemon = make(listen)
    for host in hosts:
        with daemon.client(host) as client:
            there_and_back(client)
            assert client.transport == "rdma_cm"
    for host in {HERE, HERE_TOO, HERE_V6} - set(hosts):
        with daemon.client(host) as client, pytest.raises(ConnectionRefusedError, match="nobody listens there"):
            client.version()
    with daemon.client("127.0.0.1") as client, pytest.raises(TransportUnavailable, match="no RDMA device leads there"):
        client.version()
    assert "127.0.0.1" not in "".join(line for line in daemon.server.stderr().splitlines() if "rdma_cm" in line)


def test_auto_takes_it(daemon: Daemon) -> None:
    """auto takes rdma_cm on the daemon's port, and the next transport on a port without a listener."""
    address = (HERE, daemon.server.port)
    with Client(address, rdma_cm_port=daemon.cm_port, timeout=WITHIN) as client:
        client.set("key", BIG, noreply=False)
        assert client.transport == "rdma_cm"
    with Client(address, rdma_cm_port=free_port(), timeout=WITHIN) as client:
        assert client.get("key") == BIG
        assert client.transport == "verbs"


def test_bodies_of_the_host_s_tests() -> None:
    """Values, and clients that die: after the set-up all is as over "verbs"."""
    command = [*PYTEST, *(path for path in OVER_CM if has_selected(ROOT / path))]
    environment = {**os.environ, "RMEMCACHED_TEST_TRANSPORT": "rdma_cm", "RMEMCACHED_TEST_HOST": HERE}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_reads_ask_nobody(make: DaemonFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's reply tells whether items can be read, and the number of READs answered at a time."""
    monkeypatch.setenv("RMEMCACHED_DIRECT", "rdma_cm")
    daemon = make(None, "-o", "rdma_direct_remote")
    value = BIG[:3000]
    with daemon.client() as client:
        client.set("key", value)
        assert [client.get("key") for _ in range(3)] == [value] * 3
        with suspended(daemon.server.pid):
            assert client.get("key") == value


# ---- statistics and messages ---------------------------------------------------------------------------------------


def test_it_counts_as_a_connection(daemon: Daemon, control: Conversation) -> None:
    before, total = control.number("curr_connections"), control.number("total_connections")
    with daemon.client() as client, daemon.client(HERE_V6) as other:
        client.version()
        other.version()
        assert control.number("curr_connections") == before + 2
        assert control.number("total_connections") == total + 2
        assert control.number("rdma_cm_queue_pairs", "rdma") == 2
        assert control.number("rdma_verbs_queue_pairs", "rdma") == 2
        rows = control.stats("conns")
        found = [name.partition(":")[0] for name, value in rows.items() if value.startswith(f"rdma:{HERE}:")]
        numbers = set(found)
        assert len(numbers) == 1 and len(found) == 2
        (number,) = numbers
        assert rows[f"{number}:listen_addr"] == f"rdma:{HERE}:{daemon.cm_port}"
        assert rows[f"{number}:rdma"] == "yes"
        assert f"rdma6:[{HERE_V6}]:{daemon.cm_port}" in rows.values()
    eventually(lambda: control.number("curr_connections") == before, WITHIN)
    eventually(lambda: rdma_at_rest(control), WITHIN)


def test_watchers_see_it(daemon: Daemon) -> None:
    with Conversation(daemon.server, WITHIN) as watcher:
        assert watcher.ask(b"watch connevents\r\n") == b"OK\r\n"
        with daemon.client() as client:
            client.version()
        assert b"type=conn_new rip=10.0.2.15 " in watcher.line()
        closed = watcher.line()
        assert b"type=conn_close rip=10.0.2.15 " in closed and b"transport=rdma reason=normal" in closed


def test_idle_timeout(make: DaemonFactory) -> None:
    daemon = make(None, "-o", "idle_timeout=2")
    with daemon.client() as client:
        client.version()

        def kicked() -> bool:
            with Conversation(daemon.server, WITHIN) as control:
                return control.number("idle_kicks") > 0 and rdma_at_rest(control)

        eventually(kicked, WITHIN)
        # The client sees the server's end of the connection before sending, and connects anew.
        client.version()
        with Conversation(daemon.server, WITHIN) as control:
            assert control.number("rdma_cm_queue_pairs", "rdma") == 1


def test_authentication(make: DaemonFactory, tmp_path: Path) -> None:
    """Each lane has to authenticate: without a lifeline there is no earlier authentication."""
    users = tmp_path / "users"
    users.write_text("me:secret\n")
    daemon = make(None, "-Y", str(users))
    with daemon.client() as client, pytest.raises(MemcacheError, match="wants authentication"):
        client.set("key", b"value")
    with daemon.client(username="me", password="secret") as client:
        assert client.set("key", b"value") is True
    script = f"""
        with reference.ReferenceClient({HERE!r}, 0, cm_port={daemon.cm_port}) as client:
            client.request(b"set any 0 0 9\\r\\nme secret\\r\\n")
            client.expect(b"STORED")
            client.set_from_memory(b"key", bytes(100000))
            sys.exit(client.get(b"key") != bytes(100000))
        """
    done = daemon.reference(before=textwrap.dedent(script))
    assert done.returncode == 0, done.stdout


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_too_many_connections(make: DaemonFactory) -> None:
    daemon = make(f"127.0.0.1,{HERE}", "-c", room_for(6, 2))
    with Conversation(daemon.server, WITHIN) as control:
        clients = []
        try:
            with pytest.raises(TransportUnavailable, match="the server answered ERROR Too many open connections"):
                for number in range(8):
                    # A Client with another option shares no queue pair.
                    clients.append(daemon.client(socket_keepalive=KeepaliveOpts(idle=10 + number)))
                    clients[-1].version()
            assert control.number("rejected_connections") == 1
            assert len(clients) > 2
        finally:
            for client in clients:
                client.close()
        eventually(lambda: rdma_at_rest(control), WITHIN)
        with daemon.client() as client:
            assert client.set("key", BIG)


def test_too_many_queue_pairs(make: DaemonFactory) -> None:
    daemon = make(None, "-o", "rdma_max_qps=1")
    with daemon.client() as client, daemon.client() as other:
        client.version()
        with pytest.raises(TransportUnavailable, match="SERVER_ERROR rdma: too many queue pairs"):
            other.version()


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ("b'rdmb', 2, 16, 8192, 65536", "CLIENT_ERROR rdma: the private data does not begin with rdma"),
        ("b'rdma', 1, 16, 8192, 0", "CLIENT_ERROR rdma: version 1 is not supported, this server speaks 2"),
        ("b'rdma', 2, 1, 8192, 65536", "CLIENT_ERROR rdma: a value is out of range"),
        ("b'rdma', 2, 16, 65537, 65536", "CLIENT_ERROR rdma: a value is out of range"),
        ("b'rdma', 2, 16, 8192, 511", "CLIENT_ERROR rdma: a value is out of range"),
    ],
)
def test_wrong_private_data(daemon: Daemon, control: Conversation, change: str, answer: str) -> None:
    """The program of librdmacm sees the daemon's answer to wrong private data."""
    before = control.number("rdma_exchange_errors", "rdma")
    fake = f"real = reference.REQUEST; reference.REQUEST = type('', (), dict(pack=lambda *_: real.pack({change})))"
    done = daemon.reference(before=fake)
    assert done.returncode == 1
    assert f"RDMA_CM_EVENT_REJECTED {answer}" in done.stdout
    assert control.number("rdma_exchange_errors", "rdma") == before + 1
    assert rdma_at_rest(control)


@pytest.mark.parametrize(
    "numbers", [{"credits": 1}, {"msgsize": 511}, {"lanebytes": 511}, {"lanes": 0}, {"workers": 0}], ids=str
)
def test_a_reply_that_makes_no_sense(numbers: dict[str, int]) -> None:
    port = free_port()
    with closing(ListenerByHand(HERE, port, WITHIN)) as server, ThreadPoolExecutor(1) as threads:
        client = Client((HERE, port), transport="rdma_cm", timeout=WITHIN, connect_timeout=WITHIN)
        version = threads.submit(client.version)
        server.welcome(**numbers)
        with pytest.raises(MemcacheServerError, match="what answers through rdma_cm is no rmemcached"):
            version.result()


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_what_was_sent_before_the_end_is_done(daemon: Daemon, control: Conversation) -> None:
    for index in range(20):
        with daemon.client(default_noreply=True) as client:
            client.set("last", b"%d" % index)
        eventually(lambda: rdma_at_rest(control), WITHIN)
        assert control.ask(b"mg last v\r\n") == b"VA %d\r\n" % len(str(index))
        assert control.line() == b"%d\r\n" % index


def test_killed_clients(rmemcached_server: ServerFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_TEST_TRANSPORT", "rdma_cm")
    # The victims use the default for the port of rdma_cm: the TCP port's number. So both ports of the daemon have it.
    port = free_port()
    server = rmemcached_server("-m", "256", "-I", "8m", "-t", "2", "-l", f"{HERE}:{port}", "-o", f"rdma_cm_port={port}")
    with Conversation(server, WITHIN) as control, child("victims.py", HERE, port) as nursery:
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        made, opened = in_use(), descriptors(server.pid)
        assert nursery.stdin is not None and nursery.stdout is not None
        victims = []
        for mode in ("storm 1", "storm 2", "storm 3", "idle"):
            print(mode, file=nursery.stdin, flush=True)
            victims.append(int(nursery.stdout.readline()))
        eventually(lambda: control.number("rdma_reads", "rdma") > 20, WITHIN)
        assert control.number("rdma_cm_queue_pairs", "rdma") == 4
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: rdma_at_rest(control), WITHIN)
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        eventually(lambda: in_use() == made, WITHIN)
        eventually(lambda: descriptors(server.pid) <= opened, WITHIN)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_daemon_ends(make: DaemonFactory, how: int) -> None:
    daemon = make(None)
    with daemon.client() as client, daemon.client() as other:
        client.version()
        other.set("key", BIG)
        daemon.server.stop(how)
        for each in (client, other):
            # The error is "nobody listens" if the client sees the end before sending.
            with pytest.raises((MemcacheError, ConnectionRefusedError), match=r"has ended|nobody listens"):
                each.get("key")
            with pytest.raises(ConnectionRefusedError):
                each.get("key")


def test_silent_clients_are_looked_for(make: DaemonFactory) -> None:
    """The daemon sends an empty WRITE to a silent client, and a live client does not notice."""
    daemon = make(None, "-o", "debug_commands")
    with daemon.client() as client, Conversation(daemon.server, WITHIN) as control:
        client.set("key", BIG)
        wakeups = control.number("rdma_wakeups", "rdma")
        # By the daemon's clock the connection has now been silent for 40 s.
        assert control.ask(b"debugtime 40\r\n") == b"OK\r\n"
        eventually(lambda: control.number("rdma_wakeups", "rdma") > wakeups, WITHIN)
        assert client.get("key") == BIG


@pytest.mark.parametrize("listen", [None, f"127.0.0.1,{HERE}"], ids=["all", "one"])
def test_the_device_is_removed(make: DaemonFactory, listen: str | None) -> None:
    """The connections of a removed device end. As soon as the device is back, the daemon takes connections again."""
    daemon = make(listen)
    with Conversation(daemon.server, WITHIN) as control, daemon.client() as client:
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        opened = descriptors(daemon.server.pid)
        client.set("key", BIG)
        # The removal waits until nobody has the device open; a client learns of the removal in its calls.
        removal = subprocess.Popen(["rdma", "link", "delete", DEVICE])
        try:

            def removed() -> bool:
                with suppress(MemcacheError, OSError):
                    client.get("key")
                return removal.poll() is not None

            eventually(removed, WITHIN)
            assert removal.returncode == 0
            eventually(lambda: DEVICE not in control.stats("rdma")["rdma_device"], WITHIN)
            eventually(lambda: rdma_at_rest(control), WITHIN)
            with pytest.raises(TransportUnavailable, match="no RDMA device leads there"):
                client.get("key")
        finally:
            run("rdma", "link", "add", DEVICE, "type", "rxe", "netdev", "eth0")
        eventually(lambda: DEVICE in control.stats("rdma")["rdma_device"], WITHIN)

        def works() -> bool:
            # The daemon listens on the device a moment after opening the device.
            try:
                return client.get("key") == BIG
            except (MemcacheError, OSError):
                return False

        eventually(works, WITHIN)
        client.close()
        eventually(lambda: rdma_at_rest(control), WITHIN)
        eventually(lambda: descriptors(daemon.server.pid) <= opened, WITHIN)


# ---- places without rdma_cm ------------------------------------------------------------------------------------------


def why_not(*arguments: str) -> str:
    """The output of a daemon that does not start."""
    command = [sys.executable, "-P", "-m", "rmemcached", "-p", str(free_port()), *arguments]
    if "-u" not in arguments:
        command += ["-u", "root"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 71, done.stdout
    return done.stdout.rstrip("\n")


@contextmanager
def file_of_rdma_cm(change: str, undo: str) -> Iterator[None]:
    run("sh", "-c", change)
    try:
        yield
    finally:
        run("sh", "-c", undo)


def test_the_port_is_taken(daemon: Daemon) -> None:
    busy = f"failed to listen on rdma_cm port {daemon.cm_port}: "
    said = why_not("-l", HERE, "-o", f"rdma_cm_port={daemon.cm_port}")
    assert said == f"{busy}{HERE}:{daemon.cm_port}: Address already in use"


def test_no_device_has_the_address(make: DaemonFactory) -> None:
    port = free_port()
    run("ip", "link", "add", "far0", "type", "dummy")
    try:
        run("ip", "address", "add", "192.0.2.1/24", "dev", "far0")
        run("ip", "link", "set", "far0", "up")
        said = why_not("-l", "127.0.0.1,192.0.2.1", "-o", f"rdma_cm_port={port}")
        assert said == f"failed to listen on rdma_cm port {port}: 192.0.2.1:{port}: no RDMA device has this address"
        # A single address on a device is enough.
        daemon = make(f"127.0.0.1,192.0.2.1,{HERE}")
        with daemon.client() as client:
            assert client.set("key", BIG)
        assert "192.0.2.1" in daemon.server.stderr()
    finally:
        run("ip", "link", "delete", "far0")


def test_the_module_is_not_loaded() -> None:
    numbers = os.stat(CM_FILE).st_rdev
    back = f"mknod -m 666 {CM_FILE} c {os.major(numbers)} {os.minor(numbers)}"
    with file_of_rdma_cm(f"rm {CM_FILE}", back):
        said = why_not("-l", HERE, "-o", "rdma_cm_port=11212")
        with (
            Client((HERE, 11211), transport="rdma_cm", timeout=WITHIN) as client,
            pytest.raises(TransportUnavailable, match=f"no queue pair here: .*{CM_FILE}: No such file or directory"),
        ):
            client.version()
    assert said == (
        f"failed to listen on rdma_cm port 11212: {CM_FILE}: No such file or directory"
        " (the kernel's module is rdma_ucm)"
    )


def test_no_permission() -> None:
    with file_of_rdma_cm(f"chmod 600 {CM_FILE}", f"chmod 666 {CM_FILE}"):
        said = why_not("-u", "nobody", "-l", HERE, "-o", "rdma_cm_port=11212")
    assert said == f"failed to listen on rdma_cm port 11212: {CM_FILE}: Permission denied"

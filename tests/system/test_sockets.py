"""Plain connections: how payloads are read, and what RDMA clients of the same worker cost them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_tools import TIMEOUT, Conversation, eventually, rdma_client
from servers import Server
from transport import some

ServerFactory = Callable[..., Server]

# around what is read at once: 2 KB where a large payload is expected, 32 KB, what the kernel hands over in one piece
SIZES = (0, 1, 100, 2000, 2033, 2048, 5000, 32_700, 32_768, 33_000, 65_520, 65_536, 100_000, 700_000)


@pytest.mark.parametrize("seed", some(range(12)))
def test_payloads_among_pipelined_commands(rmemcached_server: ServerFactory, seed: int) -> None:
    """Sets of all sizes, long lines and short ones, in pieces of any length: no octet goes astray."""
    choice = random.Random(seed)
    stored: dict[bytes, bytes] = {}
    request, reply = bytearray(), bytearray()
    for number in range(300):
        what = choice.randrange(4)
        if what < 2:
            key, value = b"key%d" % choice.randrange(40), choice.randbytes(choice.choice(SIZES))
            stored[key] = value
            request += b"ms %b %d\r\n%b\r\n" % (key, len(value), value)
            reply += b"HD\r\n"
        elif what == 2:
            key = b"key%d" % choice.randrange(40)
            request += b"mg %b s\r\n" % key
            reply += b"HD s%d\r\n" % len(stored[key]) if key in stored else b"EN\r\n"
        else:
            absent = (b"absent%d" % (number * 1000 + i) for i in range(choice.choice([1, 400])))
            request += b"get %b\r\n" % b" ".join(absent)
            reply += b"END\r\n"
    server = rmemcached_server("-t", "1", "-m", "256", "-I", "1m")
    with Conversation(server) as talk:
        at = 0
        while at < len(request):
            length = choice.choice([1, 7, 1000, 2048, 20_000, 32_768, 1_000_000])
            talk.send(bytes(request[at : at + length]))
            at += length
        assert talk.read(len(reply)) == reply
        for key, value in stored.items():
            talk.send(b"get %b\r\n" % key)
            head = b"VALUE %b 0 %d\r\n" % (key, len(value))
            assert talk.read(len(head) + len(value) + 7) == head + value + b"\r\nEND\r\n"


def worker_of(server: Server) -> Path:
    """The folder in /proc of the only worker's thread."""
    tasks = Path(f"/proc/{server.pid}/task")
    (found,) = (tasks / task for task in os.listdir(tasks) if (tasks / task / "comm").read_text() == "mc-worker\n")
    return found


def times_slept(task: Path) -> int:
    for line in (task / "status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError("no voluntary_ctxt_switches")


@pytest.mark.usefixtures("rdma_transport")
def test_sockets_do_not_prolong_polling(rmemcached_server: ServerFactory) -> None:
    """A worker polls for rdma_spin after RDMA work, and not for as long as anybody sends it anything."""
    server = rmemcached_server("-t", "1", "-o", "rdma_spin=300000")
    with rdma_client(server) as client, Conversation(server) as talk:
        assert client.set("key", b"value")
        worker = worker_of(server)
        before = times_slept(worker)

        def sleeps_again() -> bool:
            assert talk.ask(b"mn\r\n") == b"MN\r\n"
            return times_slept(worker) > before + 20

        eventually(sleeps_again, TIMEOUT, "the worker sleeps between the requests of a socket")
        assert client.get("key") == b"value"


@pytest.mark.usefixtures("rdma_transport")
def test_a_paced_client_is_not_polled_for(rmemcached_server: ServerFactory) -> None:
    """Its gaps are longer than rdma_spin: the worker sleeps through them, all of them."""
    server = rmemcached_server("-t", "1", "-o", "rdma_spin=1")
    with rdma_client(server) as client, Conversation(server) as control:
        assert client.set("key", b"value")
        polled = control.number("rdma_polled_ns", "rdma")
        for _ in range(20):
            # A question over a socket takes longer than that.
            assert control.number("rdma_polled_ns", "rdma") == polled
            assert client.get("key") == b"value"


@pytest.mark.usefixtures("rdma_transport")
def test_the_worker_polls_through_short_gaps_for_its_share(rmemcached_server: ServerFactory) -> None:
    """With gaps below rdma_spin it polls, for as much of its time as rdma_spin_share says."""
    server = rmemcached_server("-t", "1", "-o", "rdma_spin=1000000,rdma_spin_share=10")
    with rdma_client(server) as client, Conversation(server) as control:
        assert client.set("key", b"value")
        begin = time.monotonic_ns()
        before = times_slept(worker_of(server))

        def polls() -> bool:
            assert client.get("key") == b"value"
            return control.number("rdma_polled_ns", "rdma") > 0

        eventually(polls, TIMEOUT, "the worker polls")
        while times_slept(worker_of(server)) < before + 50:
            assert client.get("key") == b"value"
        # What it has saved is 10 ms at most; and one yield may take long where others want the core.
        assert control.number("rdma_polled_ns", "rdma") < (time.monotonic_ns() - begin) // 2 + 20_000_000


@pytest.mark.usefixtures("rdma_transport")
def test_the_time_that_a_large_value_takes_is_no_gap(rmemcached_server: ServerFactory) -> None:
    """Between two requests the worker moves 64 MB, which takes longer than the longest gap that it tries to poll
    through. It waits for parts of a value, and for the next request, for less."""
    server = rmemcached_server("-t", "1", "-m", "256", "-I", "65m", "-o", "rdma_spin=1000")
    value = bytes(64 << 20)
    with rdma_client(server) as client, Conversation(server) as control:

        def polls() -> bool:
            for _ in range(8):
                assert client.set("key", value)
            return control.number("rdma_polled_ns", "rdma") > 0

        eventually(polls, TIMEOUT, "the worker polls")


def test_polling_on_a_system_that_has_run_for_long() -> None:
    """The first share of its time that a worker has is that since the system's start."""
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user")
    years = ("unshare", *user, "--time", "--monotonic", "1000000000", "--fork", "--kill-child")
    if subprocess.run([*years, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    test = f"{__file__}::{test_the_worker_polls_through_short_gaps_for_its_share.__name__}"
    command = (*years, sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout

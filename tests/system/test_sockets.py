"""Plain connections: the reading of payloads, and the costs of RDMA clients of the same worker."""

from __future__ import annotations

import contextlib
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
from suspended import suspended
from transport import some

ServerFactory = Callable[..., Server]

# Sizes around the limits of one read: 2 KB before a large payload, 32 KB, and the kernel's largest piece.
SIZES = (0, 1, 100, 2000, 2033, 2048, 5000, 32_700, 32_768, 33_000, 65_520, 65_536, 100_000, 700_000)


@pytest.mark.parametrize("seed", some(range(12)))
def test_payloads_among_pipelined_commands(rmemcached_server: ServerFactory, seed: int) -> None:
    """No octet is lost among pipelined sets of all sizes, long and short lines, in pieces of any length."""
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
    """A worker polls for rdma_spin after RDMA work, not as long as its sockets have input."""
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
    """The worker does not poll for a client whose gaps are longer than rdma_spin."""
    server = rmemcached_server("-t", "1", "-o", "rdma_spin=1")
    with rdma_client(server) as client, Conversation(server) as control:
        assert client.set("key", b"value")
        polled = control.number("rdma_polled_ns", "rdma")
        for _ in range(20):
            # A request over a socket takes longer than rdma_spin.
            assert control.number("rdma_polled_ns", "rdma") == polled
            assert client.get("key") == b"value"


@pytest.mark.usefixtures("rdma_transport")
def test_the_worker_polls_through_short_gaps_for_its_share(rmemcached_server: ServerFactory) -> None:
    """With gaps below rdma_spin the worker polls for the part of its time set by rdma_spin_share."""
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
        # The limit is far above the share. The worker may save up 10 ms of polling time (CREDIT_MAX), and a yield
        # counts as polling, however long a busy core takes to return to the worker.
        assert control.number("rdma_polled_ns", "rdma") < (time.monotonic_ns() - begin) // 2 + 20_000_000


@pytest.mark.usefixtures("rdma_transport")
def test_the_time_that_a_large_value_takes_is_no_gap(rmemcached_server: ServerFactory) -> None:
    """The worker polls between requests, though a value of 64 MB between them takes longer than the longest polled gap:
    the waits for its parts are shorter."""
    server = rmemcached_server("-t", "1", "-m", "256", "-I", "65m", "-o", "rdma_spin=1000")
    value = bytes(64 << 20)
    with rdma_client(server) as client, Conversation(server) as control:

        def polls() -> bool:
            for _ in range(8):
                assert client.set("key", value)
            return control.number("rdma_polled_ns", "rdma") > 0

        eventually(polls, TIMEOUT, "the worker polls")


def test_polling_on_a_system_that_has_run_for_long() -> None:
    """Polling has its share from the start on a system that has run for 30 years, from whose start the time is
    counted."""
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user")
    years = ("unshare", *user, "--time", "--monotonic", "1000000000", "--fork", "--kill-child")
    if subprocess.run([*years, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    test = f"{__file__}::{test_the_worker_polls_through_short_gaps_for_its_share.__name__}"
    command = (*years, sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_sockets_that_are_read_together(rmemcached_server: ServerFactory) -> None:
    """The worker reads the input of many connections in a turn before the first answer, whatever the input is."""
    server = rmemcached_server("-t", "1")
    value = b"v" * 100
    large = b"l" * 20_000
    long_line = b"get" + b" absent" * 1000 + b" there\r\n"
    there = b"VALUE there 0 100\r\n" + value + b"\r\n"
    asked = [
        (b"get there\r\n", there + b"END\r\n"),
        (b"set mine 0 0 20000\r\n" + large + b"\r\nget there\r\n", b"STORED\r\n" + there + b"END\r\n"),
        (b"get the", b""),
        (b"get there\r\nget the", there + b"END\r\n"),
        (b"mg there v\r\nmg absent q\r\nmn\r\n", b"VA 100\r\n" + value + b"\r\nMN\r\n"),
        (b"get there\r\n" * 600, (there + b"END\r\n") * 600),
        (long_line, there + b"END\r\n"),
        (b"get " + b"k" * 251 + b"\r\nmn\r\n", b"CLIENT_ERROR bad command line format\r\n\r\nMN\r\n"),
        (b"quit\r\n", b""),
        (b"\x80" + bytes([0x0A]) + bytes(22), b"\x81" + bytes([0x0A]) + bytes(22)),
    ] * 3
    with contextlib.ExitStack() as stack:
        opened = []
        for request, _ in asked:
            plain = stack.enter_context(server.connect(TIMEOUT))
            opened.append((plain, stack.enter_context(plain.makefile("rb"))))
            if request[0] != 0x80:
                plain.sendall(b"set there 0 0 100\r\n" + value + b"\r\n")
                assert opened[-1][1].readline() == b"STORED\r\n"
        with suspended(server.pid):
            for (plain, _), (request, _) in zip(opened, asked, strict=True):
                plain.sendall(request)
        for (plain, lines), (request, reply) in zip(opened, asked, strict=True):
            assert lines.read(len(reply)) == reply
            if request == b"quit\r\n":
                assert lines.read() == b""
            elif request.endswith(b"get the"):
                # The rest of the incomplete request follows.
                plain.sendall(b"re\r\n")
                assert lines.read(len(there) + 5) == there + b"END\r\n"


def test_a_pipeline_is_answered_as_one_command_after_the_other(rmemcached_server: ServerFactory) -> None:
    commands = [
        b"set a 0 0 5\r\nget b\r\n",
        b"get a b\r\n",
        b"set b 0 0 3 noreply\r\n123\r\n",
        b"incr b 4\r\n",
        b"set c 0 0 4\r\ntoo long\r\n",
        b"set c 0 0 99999999999\r\n",
        b"ms d 3 T0\r\nabc\r\n",
        b"ms d x\r\n",
        b"mg d s v\r\n",
        b"gat 0 d\r\n",
        b"get  a\r\n",
        b"get \r\n",
        b"delete a\r\n",
        b"get a\n",
        b"touch b 0\r\n",
        b"append b 0 0 1\r\n5\r\n",
        b"get b d\r\n",
    ]
    replies = []
    for together in (False, True):
        server = rmemcached_server()
        with server.connect() as plain, plain.makefile("rb") as lines:
            reply = b""
            for command in [b"".join(commands)] if together else commands:
                plain.sendall(command + b"mn\r\n")
                line = b""
                while line != b"MN\r\n":
                    line = lines.readline()
                    assert line
                    reply += line if line != b"MN\r\n" else b""
            replies.append(reply)
    assert replies[0] == replies[1] and replies[0].count(b"VALUE") >= 3

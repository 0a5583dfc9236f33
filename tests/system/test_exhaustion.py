"""At the end of its descriptors or memory the daemon refuses, does not fall, and recovers."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from daemon_tools import (
    GONE_WITHIN,
    TIMEOUT,
    Conversation,
    Peer,
    alone,
    descriptors,
    eventually,
    rdma_at_rest,
    rdma_client,
    tcp_client,
)
from servers import Server

from rmemcached.client import Client, KeepaliveOpts, MemcacheError

EXCHANGE = b"rdma version=2 transport=soft_iw qpn=1 credits=16 msgsize=8192 lanebytes=512\r\n"
FEW = b"SERVER_ERROR rdma: the server has too few file descriptors left\r\n"

# A library by which the start of the software RNIC's first thread fails.
NO_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    static int failed;
    Dl_info found;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!failed && dladdr((void *)body, &found) && strstr(found.dli_fname, "verbs/soft.")) {
        failed = 1;
        return EAGAIN;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, body, argument);
}
"""


def served(server: Server, control: Conversation) -> None:
    """Checks that everything works, by both transports."""
    for client in (rdma_client(server), tcp_client(server)):
        for size in (10, 100_000):
            assert client.set("served", bytes(size))
            assert client.get("served") == bytes(size)
        client.close()
    eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


def processor_seconds(server: Server) -> float:
    """The processor time of the main thread, which listens."""
    fields = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def test_descriptors_run_out(rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server("-t", "2")
    with Conversation(server) as control:
        served(server, control)
        alone(control)
        before = descriptors(server.pid)
        limit = before + 40
        old = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, old[1]))
        talks = [server.connect() for _ in range(2)]
        # With no descriptor left the kernel lets new connections wait.
        for _ in range(58):
            talks.append(socket.socket())
            talks[-1].setblocking(False)
            talks[-1].connect_ex((server.host, server.port))
        eventually(lambda: descriptors(server.pid) == limit)
        # The daemon serves existing connections, and the listener does not spin.
        cpu = processor_seconds(server)
        began = time.monotonic()
        while time.monotonic() - began < 0.3:
            assert control.ask(b"mn\r\n") == b"MN\r\n"
        assert processor_seconds(server) - cpu < 0.3 * (time.monotonic() - began)
        # A connected client is refused a queue pair, and is served.
        for sock in talks[:2]:
            sock.sendall(EXCHANGE)
            assert sock.recv(1000) == FEW
            sock.sendall(b"mn\r\n")
            assert sock.recv(100) == b"MN\r\n"
        for sock in talks:
            sock.close()
        eventually(lambda: control.number("curr_connections") == 1)
        eventually(lambda: descriptors(server.pid) <= before)
        served(server, control)


def test_the_last_descriptors_are_for_plain_connections(rmemcached_server: Callable[..., Server]) -> None:
    """Before descriptors run out a client with a choice goes on over TCP, and plain clients still get in."""
    server = rmemcached_server("-t", "2", "-v")
    with Conversation(server) as control, ExitStack() as stack:
        limit = descriptors(server.pid) + 60
        old = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, old[1]))
        chosen = []
        for number in range(1, 41):
            # Each client has another keepalive option, and so a lifeline and a queue pair of its own.
            keepalive = KeepaliveOpts(idle=number)
            client = stack.enter_context(closing(Client(server.address, timeout=TIMEOUT, socket_keepalive=keepalive)))
            assert client.set("key", b"value")
            chosen.append(client.transport)
            # A plain connection beside each client gets in, even when the client has got no queue pair.
            plain = stack.enter_context(server.connect())
            plain.sendall(b"mn\r\n")
            assert plain.recv(100) == b"MN\r\n"
            if chosen[-1] == "tcp":
                break
        assert chosen[0] != "tcp" and chosen[-1] == "tcp", chosen
        assert limit - descriptors(server.pid) >= 8
        # A client of soft_iw needs fewer descriptors than a client of soft_shm. After three more plain connections the
        # rest is too small for soft_iw, too.
        for _ in range(3):
            plain = stack.enter_context(server.connect())
            plain.sendall(b"mn\r\n")
            assert plain.recv(100) == b"MN\r\n"
        control.send(EXCHANGE)
        assert control.line() == FEW
        # When no descriptor is left, the listener names the shortage.
        talks = [stack.enter_context(socket.socket()) for _ in range(limit)]
        for sock in talks:
            sock.setblocking(False)
            sock.connect_ex((server.host, server.port))
        line = "Too many open files: raise the limit (ulimit -Hn), or lower -c\n"
        eventually(lambda: line in server.stderr())
        # The listener tries again each second, and writes no more lines while nothing has become better.
        eventually(lambda: control.number("time_in_listen_disabled_us") > 3_000_000)
        assert server.stderr().count(line) == control.number("listen_disabled_num") < 3


def test_a_thread_that_cannot_be_made_at_the_start(tmp_path: Path) -> None:
    """The daemon does not start without the thread that unmaps clients' memory: the memory would have no limit."""
    (tmp_path / "no_thread.c").write_text(NO_THREAD)
    library = tmp_path / "no_thread.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c"), "-ldl"], check=True)
    command = [sys.executable, "-P", "-m", "rmemcached", "-l", "127.0.0.1", "-p", "-1", "-o", "rdma_device=none"]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr == (
        "RDMA: device soft_shm0: the threads that limit clients' memory cannot be started: "
        f"{os.strerror(errno.EAGAIN)}; -o rdma_shm=none starts the daemon without this device\n"
    )


@pytest.mark.parametrize("spare", [0, 256 << 10, 2 << 20, 8 << 20])
def test_memory_runs_out(rmemcached_server: Callable[..., Server], spare: int) -> None:
    """With only `spare` bytes of memory left, queue pairs, long lines, statistics and items are refused."""
    server = rmemcached_server("-t", "2", "-m", "64", "-c", "2000")
    with Conversation(server) as control, rdma_client(server) as old_client:
        assert old_client.set("old", bytes(100_000))
        status = Path(f"/proc/{server.pid}/status").read_text()
        limit = int(status.partition("VmData:")[2].split()[0]) * 1024 + spare
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
        peers = []
        for _ in range(60):
            # A peer is refused, for want of resources, or of memory for the stream.
            with suppress(OSError, AssertionError):
                peers.append(Peer(server))
        assert control.number("rdma_exchange_errors", "rdma") > 0
        talks = [server.connect() for _ in range(300)]
        for number, sock in enumerate(talks):
            sock.sendall(
                (b"get " + b"k" * 100 * number, b"set x 0 0 500000\r\nabc", b"stats\r\n", b"mn\r\n")[number % 4]
            )
        for size in (10, 100_000, 1_000_000):
            for command in (b"set key 0 0 %d\r\n%s\r\n", b"add other 0 0 %d\r\n%s\r\n"):
                with Conversation(server) as talk:
                    try:
                        talk.send(command % (size, bytes(size)))
                        talk.line()
                    except OSError:
                        pass
        assert server.alive()
        try:
            assert old_client.get("old") in (None, bytes(100_000))
        except (OSError, MemcacheError):
            old_client.close()
        for sock in talks:
            sock.close()
        for peer in peers:
            peer.close()
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        old_client.close()
    assert server.alive()
    with Conversation(server) as control:
        eventually(lambda: control.number("curr_connections") == 1)
        served(server, control)
    assert server.stop() == 0


def test_read_buffers_run_out(rmemcached_server: Callable[..., Server]) -> None:
    """-o read_buf_mem_limit: connections that would exceed the limit are closed, and the daemon goes on."""
    server = rmemcached_server("-t", "1", "-o", "read_buf_mem_limit=1")
    with Conversation(server) as control:
        talks: list[socket.socket] = []
        while control.number("read_buf_oom") == 0 and len(talks) < 900:
            for _ in range(50):
                talks.append(server.connect())
                talks[-1].sendall(b"x" * 1900)
        eventually(lambda: control.number("read_buf_oom") > 0)
        found = control.stats()
        assert int(found["read_buf_bytes"]) - int(found["read_buf_bytes_free"]) <= 1 << 20
        for sock in talks:
            sock.close()
        eventually(lambda: control.number("curr_connections") == 1)
        assert control.number("read_buf_bytes") == control.number("read_buf_bytes_free")
        # Waiting replies count too. The daemon has at most one turn's keys of a get in memory.
        assert control.ask(b"set value 0 0 15000\r\n" + bytes(15_000) + b"\r\n") == b"STORED\r\n"
        readers: list[socket.socket] = []
        before = control.number("read_buf_oom")

        def closed() -> int:
            """The number of connections closed for want of memory, for a reply or for the rest of a request."""
            return control.number("response_obj_oom") + control.number("read_buf_oom") - before

        while closed() == 0 and len(readers) < 500:
            readers.append(server.connect())
            readers[-1].sendall(b"get" + b" value" * 2000 + b"\r\n")
        eventually(lambda: closed() > 0)
        # The requests alone would be 16 KB each, so 64 of them would use up the limit.
        assert len(readers) < 64
        for sock in readers:
            sock.close()
        eventually(lambda: control.number("curr_connections") == 1)
        served(server, control)

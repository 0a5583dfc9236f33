"""The effects of single options on the process and its connections."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from daemon_tools import Conversation, Peer, eventually
from servers import Server, free_port

ServerFactory = Callable[..., Server]


def test_stats_conns(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    """`stats conns` shows listeners, a socket of UDP for each thread, and a client, as memcached does."""

    def rows(talk: Conversation, ports: dict[int, str]) -> list[list[str]]:
        rows: dict[str, list[str]] = {}
        for name, value in talk.stats("conns").items():
            fd, _, what = name.partition(":")
            if what != "secs_since_last_cmd":
                for port, word in ports.items():
                    value = value.replace(f":{port}", f":{word}")
                rows.setdefault(fd, []).append(f"{what} {value}")
        return sorted(rows.values())

    def all_listed(talk: Conversation, ports: dict[int, str]) -> list[list[str]] | None:
        """The rows, once they show a listener, two sockets of UDP and a client."""
        listed = rows(talk, ports)
        return listed if len(listed) == 4 and sum("UDP" in " ".join(row) for row in listed) == 2 else None

    found = []
    for start in (rmemcached_server, memcached_server):
        udp = free_port()
        server = start("-t", "2", "-U", str(udp))
        with Conversation(server) as talk:
            ports = {udp: "UDP", talk.sock.getsockname()[1]: "CLIENT", server.port: "PORT"}
            # A thread of memcached may take its UDP socket after the start.
            found.append(eventually(partial(all_listed, talk, ports)))
    ours, theirs = found
    assert ours == theirs


def test_stats_conns_during_a_long_get(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    """A client stops within the line of a get, another reads no values: their states have memcached's names."""

    def states(talk: Conversation) -> list[str]:
        return sorted(state for name, state in talk.stats("conns").items() if name.endswith(":state"))

    expected = ["conn_listening", "conn_mwrite", "conn_parse_cmd", "conn_read"]
    for start in (rmemcached_server, memcached_server):
        server = start("-U", "0")
        with Conversation(server) as control, Conversation(server) as writer, Conversation(server) as reader:
            assert control.ask(b"set v 0 0 500000\r\n" + bytes(500_000) + b"\r\n") == b"STORED\r\n"
            writer.send(b"get " + b"key " * 1000)
            reader.send(b"get" + b" v" * 100 + b"\r\n")
            eventually(lambda: states(control) == expected)


@pytest.mark.no_memory_file("the kinds of large pages")
@pytest.mark.parametrize("direct", ["own", "off"])
def test_large_pages(rmemcached_server: ServerFactory, direct: str) -> None:
    """Memory open to clients has large pages, too, whatever the system's setting for shared memory is."""
    server = rmemcached_server("-L", "-m", "64", "-o", f"rdma_direct={direct}")
    with Conversation(server) as talk:
        assert talk.number("limit_maxbytes") == 64 << 20
        assert server.stderr() == ""
    kind = "ShmemPmdMapped" if direct == "own" else "AnonHugePages"
    text = Path(f"/proc/{server.pid}/smaps_rollup").read_text()
    (found,) = (int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{kind}:"))
    assert found > 56 * 1024


def test_idle_queue_pair(rmemcached_server: ServerFactory) -> None:
    """Commands of a queue pair keep its silent connection open. Without commands the connection ends."""
    server = rmemcached_server("-t", "1", "-o", "idle_timeout=10,debug_commands")
    with Conversation(server) as control, Conversation(server) as idle:
        assert control.ask(b"debugtime p\r\n") == b"OK\r\n"
        assert idle.ask(b"mn\r\n") == b"MN\r\n"
        peer = Peer(server)
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        assert control.ask(b"debugtime 8\r\n") == b"OK\r\n"
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        assert control.ask(b"debugtime 8\r\n") == b"OK\r\n"
        assert idle.ended()
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        assert control.number("idle_kicks") == 1
        for _ in range(2):
            assert control.ask(b"debugtime 8\r\n") == b"OK\r\n"
        eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 0)
        assert control.number("idle_kicks") == 2
        peer.close()


def test_locked_memory(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-k", "-m", "8")
    status = Path(f"/proc/{server.pid}/status")

    def locked() -> bool:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmLck:"))
        return int(line.split()[1]) > 0 or "mlockall() failed" in server.stderr()

    eventually(locked)


def test_core_files(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-r")
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_CORE)
    assert soft == hard != 0


def test_memory_at_the_start(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    """-L gives the daemon as many huge pages as memcached."""
    found = []
    for start in (rmemcached_server, memcached_server):
        with Conversation(start("-L", "-m", "64")) as talk:
            found.append(talk.number("total_malloced", "slabs"))
    assert found[0] == found[1] > 0

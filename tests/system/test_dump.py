"""lru_crawler metadump and mgdump: their lines, dumps beside writers, readers that stall or die."""

from __future__ import annotations

import re
import signal
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from daemon_tools import TIMEOUT, Conversation, alone, eventually
from servers import Server

ServerFactory = Callable[..., Server]

KINDS = {"metadump": b"END\r\n", "mgdump": b"EN\r\n"}
BUSY = b"BUSY currently processing crawler request\r\n"


def dump(client: Conversation, kind: str = "metadump", classes: str = "all") -> list[bytes]:
    """The lines between OK and the end. The crawler may be busy for a moment with the maintainer's work."""
    begin(client, kind, classes)
    return rest_of(client, kind)


def begin(client: Conversation, kind: str = "metadump", classes: str = "all") -> None:
    def started() -> bool:
        reply = client.ask(f"lru_crawler {kind} {classes}\r\n".encode())
        assert reply in (b"OK\r\n", BUSY)
        return reply != BUSY

    eventually(started)


def rest_of(client: Conversation, kind: str = "metadump") -> list[bytes]:
    lines = []
    while (line := client.line()) != KINDS[kind]:
        assert line.endswith(b"\n"), line
        lines.append(line)
    return lines


def keys(lines: list[bytes]) -> list[bytes]:
    """The keys in metadump's lines."""
    return [line.split(b" ", 1)[0][4:] for line in lines]


def fill(client: Conversation, count: int, prefix: bytes = b"k", size: int = 10) -> None:
    value = bytes(size)
    for start in range(0, count, 1000):
        end = min(start + 1000, count)
        client.send(
            b"".join(b"set %s%d 0 0 %d noreply\r\n%s\r\n" % (prefix, i, size, value) for i in range(start, end))
        )
        assert client.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("classes", ["all", "hash", "1", "1,2,3"])
def test_lines(rmemcached_server: ServerFactory, classes: str) -> None:
    with Conversation(rmemcached_server()) as client:
        assert client.ask(b"set plain 0 0 3\r\nabc\r\n") == b"STORED\r\n"
        assert client.ask(b"set a%b#\xff 5 1000 3\r\nabc\r\n") == b"STORED\r\n"
        assert client.ask(b"ms AAEC 2 b F7\r\nab\r\n") == b"HD\r\n"
        assert client.ask(b"set gone 0 -1 1\r\nx\r\n") == b"STORED\r\n"
        client.send(b"get plain\r\n")
        assert client.read(len(b"VALUE plain 0 3\r\nabc\r\nEND\r\n")).endswith(b"END\r\n")
        now = int(client.stats()["time"])
        found = {line.split()[0]: line for line in dump(client, "metadump", classes)}
        assert sorted(found) == [b"key=%00%01%02", b"key=a%25b%23%FF", b"key=plain"]
        pattern = rb"key=plain exp=-1 la=(\d+) cas=\d+ fetch=yes cls=1 size=67 flags=0 \n"
        match = re.fullmatch(pattern, found[b"key=plain"])
        assert match is not None and abs(int(match[1]) - now) <= 3
        pattern = rb"key=a%25b%23%FF exp=(\d+) la=\d+ cas=\d+ fetch=no cls=1 size=71 flags=5 \n"
        match = re.fullmatch(pattern, found[b"key=a%25b%23%FF"])
        assert match is not None and abs(int(match[1]) - now - 1000) <= 3
        assert b" flags=7 \n" in found[b"key=%00%01%02"]
        assert sorted(dump(client, "mgdump", classes)) == [b"mg AAEC b\r\n", b"mg a%b#\xff\r\n", b"mg plain\r\n"]


@pytest.mark.parametrize("kind", KINDS)
def test_refusals(rmemcached_server: ServerFactory, kind: str) -> None:
    with Conversation(rmemcached_server()) as client:
        command = b"lru_crawler " + kind.encode()
        for classes in (b"0", b"nonsense", b"64", b"-1", b"1,x"):
            assert client.ask(command + b" " + classes + b"\r\n") == b"BADCLASS invalid class id\r\n"
        for words in (b"", b" all all"):
            assert client.ask(command + words + b"\r\n") == b"ERROR\r\n"
        assert client.ask(b"version\r\n" + command + b" all\r\n").startswith(b"VERSION")
        assert client.line() == b"ERROR cannot pipeline other commands before " + kind.encode() + b"\r\n"
        assert client.ask(b"lru_crawler disable\r\n") == b"OK\r\n"
        eventually(lambda: client.ask(command + b" all\r\n") == b"CLIENT_ERROR lru crawler disabled\r\n")
        assert client.ask(b"lru_crawler enable\r\n") == b"OK\r\n"
        assert dump(client, kind) == []


def test_dumping_can_be_forbidden(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-X")) as client:
        assert client.ask(b"lru_crawler metadump all\r\n") == b"ERROR metadump not allowed\r\n"
        assert client.ask(b"lru_crawler mgdump all\r\n") == b"ERROR key dump not allowed\r\n"
        eventually(lambda: client.ask(b"lru_crawler crawl all\r\n") == b"OK\r\n")


@pytest.mark.parametrize("classes", ["all", "hash"])
def test_every_item_once_while_others_write(rmemcached_server: ServerFactory, classes: str) -> None:
    """Each stable item is dumped once, and the dump does not hold up writers."""
    server = rmemcached_server("-m", "256", "-o", "lru_crawler_sleep=0" if classes == "hash" else "no_lru_maintainer")
    count = 30_000
    stop = threading.Event()

    def work() -> None:
        with Conversation(server) as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.send(b"set w%d 0 0 1\r\nx\r\ndelete w%d\r\nget k%d\r\n" % (number, number - 5, number % count))
                client.line()
                client.line()
                assert client.line().startswith(b"VALUE")
                client.line()
                client.line()

    with Conversation(server) as client:
        assert client.ask(b"lru_crawler sleep 0\r\n") == b"OK\r\n"
        fill(client, count)
        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(3):
                stay = [key for key in keys(dump(client, "metadump", classes)) if key[:1] == b"k"]
                assert len(stay) == count
                assert set(stay) == {b"k%d" % i for i in range(count)}
        finally:
            stop.set()
            worker.join(TIMEOUT)


def test_input_behind_a_dump_is_answered_after_it(rmemcached_server: ServerFactory) -> None:
    # The daemon has no maintainer: while the maintainer's own crawl runs, the daemon would refuse the dump.
    with Conversation(rmemcached_server("-o", "no_lru_maintainer")) as client:
        fill(client, 3000)
        client.send(b"lru_crawler metadump all\r\nset a 0 0 3\r\nab")
        assert client.line() == b"OK\r\n"
        assert len(rest_of(client)) == 3000
        client.send(b"c\r\nget a\r\n")
        assert [client.line() for _ in range(4)] == [b"STORED\r\n", b"VALUE a 0 3\r\n", b"abc\r\n", b"END\r\n"]
        client.send(b"lru_crawler mgdump hash\r\nlru_crawler metadump all\r\nversion\r\n")
        assert client.line() == b"OK\r\n"
        assert len(rest_of(client, "mgdump")) == 3001
        assert client.line() == b"OK\r\n"
        assert len(rest_of(client)) == 3001
        assert client.line().startswith(b"VERSION")


def test_half_closed_reader_gets_it_all(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-o", "no_lru_maintainer")) as client:
        fill(client, 20_000)
        client.send(b"lru_crawler metadump all\r\n")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.line() == b"OK\r\n"
        assert len(rest_of(client)) == 20_000
        assert client.ended()


def stalled_dump(server: Server) -> Conversation:
    """A dump with a stalled reader. The daemon is full of items with long keys."""
    reader = Conversation(server)
    fill(reader, 60_000, b"k" * 240, 1)
    begin(reader)
    return reader


def test_stalled_and_killed_reader(rmemcached_server: ServerFactory, tmp_path: object) -> None:
    """The crawler is busy until the stalled reader dies; all else goes on."""
    server = rmemcached_server("-m", "256", path=f"{tmp_path}/sock")
    with Conversation(server) as client:
        assert client.ask(b"lru_crawler sleep 0\r\n") == b"OK\r\n"
        reader = stalled_dump(server)
        for kind in KINDS:
            assert client.ask(f"lru_crawler {kind} all\r\n".encode()) == BUSY
        assert client.ask(b"lru_crawler crawl all\r\n") == BUSY
        assert client.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.close()
        assert len(dump(client)) == 60_001
        alone(client)


def test_stop_with_a_stalled_dump(rmemcached_server: ServerFactory, tmp_path: object) -> None:
    server = rmemcached_server("-m", "256", path=f"{tmp_path}/sock")
    with Conversation(server) as client:
        assert client.ask(b"lru_crawler sleep 0\r\n") == b"OK\r\n"
        reader = stalled_dump(server)
        assert client.ask(b"lru_crawler metadump all\r\n") == BUSY
        server.ended_by_us = True
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT) == 0
        reader.close()

"""Checks the tables of docs/compatibility.md against the daemon."""

from __future__ import annotations

import itertools
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_tools import Conversation, eventually
from servers import Server

from rmemcached.cli import UsageError, parse

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "compatibility.md"
ServerFactory = Callable[..., Server]


def tables() -> dict[str, list[dict[str, str]]]:
    """Heading -> the rows of the table below it, each as column -> cell; the column without a name is `state`."""
    found: dict[str, list[dict[str, str]]] = {}
    heading = ""
    columns: list[str] = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading, columns = line[3:].replace("`", ""), []
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split(" |")]
            if not columns:
                columns = [cell or "state" for cell in cells]
            elif not line.startswith("|---"):
                found.setdefault(heading, []).append(dict(zip(columns, cells, strict=True)))
    return found


TABLES = tables()


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


# The examples with these answers need a daemon with the segmented LRU.
OF_SEGMENTS = [row for row in TABLES["Text commands"] if row["command"] == "`lru mode`"]


def converse(server: Server, rows: list[dict[str, str]]) -> None:
    """Asks the examples of a table in their order and compares the replies, line by line."""
    with Conversation(server) as plain:
        for row in rows:
            requests, replies = code(row["example"]), code(row["reply"])
            if not requests:
                continue
            plain.send("".join(request + "\r\n" for request in requests).encode())
            for wanted in replies:
                got = plain.line().decode().rstrip("\r\n")
                same = got.startswith(wanted[:-3]) if wanted.endswith("...") else got == wanted
                assert same, f"{requests}: {got!r}, not {wanted!r}"
            # The daemon has sent nothing else.
            assert plain.ask(b"mn\r\n") == b"MN\r\n", requests


def test_every_row_has_a_state() -> None:
    assert len(TABLES) == 16
    for heading, rows in TABLES.items():
        for row in rows:
            assert row["state"] in ("yes", "no", "differs"), (heading, row)
            assert row["state"] != "differs" or row["note"], (heading, row)


@pytest.mark.parametrize("heading", ["Text commands", "Statistics: other subcommands"])
def test_examples(rmemcached_server: ServerFactory, heading: str) -> None:
    converse(rmemcached_server(), [row for row in TABLES[heading] if row not in OF_SEGMENTS])


@pytest.mark.segmented("lru mode is refused")
def test_examples_of_segments(rmemcached_server: ServerFactory) -> None:
    assert OF_SEGMENTS
    converse(rmemcached_server(), OF_SEGMENTS)


def test_meta_examples(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Conversation(server) as plain:
        assert plain.ask(b"set n 0 0 1\r\n0\r\n") == b"STORED\r\n"
    converse(server, TABLES["Meta commands"])


EXTRAS = {**dict.fromkeys((1, 2, 3, 0x11, 0x12, 0x13), 8), **dict.fromkeys((5, 6, 0x15, 0x16), 20)}
EXTRAS.update(dict.fromkeys((0x1C, 0x1D, 0x1E, 0x23, 0x24), 4))
KEYLESS = {0x07, 0x08, 0x0A, 0x0B, 0x10, 0x17, 0x18, 0x20}


def test_binary_opcodes(rmemcached_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    monkeypatch.setenv("MEMCACHED_SASL_PWDB", str(users))
    plain_server, sasl_server = rmemcached_server(), rmemcached_server("-S")
    for row in TABLES["Binary protocol"]:
        server = sasl_server if "SASL" in row["opcode"] else plain_server
        opcode = int(code(row["opcode"])[0], 16)
        key = b"" if opcode in KEYLESS else b"5"
        body = bytes(EXTRAS.get(opcode, 0)) + key
        request = struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(body) - len(key), 0, 0, len(body), 0, 0) + body
        noop = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 99, 0)
        with server.connect() as plain, plain.makefile("rb") as replies:
            plain.sendall(request + noop)
            plain.shutdown(socket.SHUT_WR)
            answered = replies.read()
        unknown = len(answered) >= 8 and answered[6:8] == b"\x00\x81"
        assert unknown == (row["state"] == "no"), row


def accepted(*arguments: str) -> bool:
    try:
        parse(["-u", "root", *arguments])
    except UsageError:
        return False
    return True


def test_flags() -> None:
    for row in TABLES["Flags"]:
        names = code(row["flag"]) + code(row["long form"])
        for name in names:
            assert accepted(name, *code(row["for example"])) == (row["state"] != "no"), (name, row)


def test_extended_options() -> None:
    for row in TABLES["Options of -o"]:
        (option,) = code(row["option"])
        # The option `restart` is about the file of -e.
        assert accepted("-e", "/tmp/m", "-o", option) == (row["state"] != "no"), row


def names(heading: str) -> list[str]:
    return [name for row in TABLES[heading] if row["state"] != "no" for name in code(row["name"])]


def of_s3fifo(subcommand: str) -> list[str]:
    """The statistics that S3-FIFO adds to a subcommand, in the words of its option's row."""
    (row,) = (row for row in TABLES["Options of -o"] if row["option"] == "`lru_algorithm=s3fifo`")
    said = code(row["note"])
    more = said[said.index(subcommand) + 1 :]
    return list(itertools.takewhile(lambda name: not name.startswith("stats"), more))


def compare(printed: list[str], wanted: list[str], more: list[str]) -> None:
    """The printed names are the wanted names, in this order, and those of `more`, in any place."""
    assert sorted(set(printed) - set(wanted)) == sorted(more)
    assert [name for name in printed if name not in more] == wanted


@pytest.mark.without_direct("stats has the lines of docs/direct-reads.md, section 7, too")
@pytest.mark.no_memory_file("stats has the lines of docs/warm-restart.md, too")
@pytest.mark.parametrize("s3fifo", [False, True])
def test_general_statistics(rmemcached_server: ServerFactory, s3fifo: bool) -> None:
    options = "idle_timeout=1000,lru_algorithm=" + ("s3fifo" if s3fifo else "segmented")
    with Conversation(rmemcached_server("-o", options)) as plain:
        compare(list(plain.stats()), names("Statistics: stats"), of_s3fifo("stats") if s3fifo else [])


@pytest.mark.without_direct("stats has the lines of docs/direct-reads.md, section 7, too")
def test_statistics_of_external_storage(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    with Conversation(rmemcached_server("-o", f"ext_path={tmp_path / 'flash'}:64m,idle_timeout=1000")) as plain:
        compare(list(plain.stats()), names("Statistics: stats"), names("Statistics: external storage"))
        assert list(plain.stats("extstore")) == ["0:version", "0:bytes", "0:bucket", "0:free_bucket"]


@pytest.mark.parametrize("s3fifo", [False, True])
def test_settings(rmemcached_server: ServerFactory, s3fifo: bool) -> None:
    with Conversation(rmemcached_server("-o", "lru_algorithm=" + ("s3fifo" if s3fifo else "segmented"))) as plain:
        wanted = names("Statistics: stats settings")
        compare(list(plain.stats("settings")), wanted, of_s3fifo("stats settings") if s3fifo else [])


def test_statistics_of_classes_and_connections(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-o", "temporary_ttl=61")) as plain:
        assert plain.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        for word in ("items", "slabs", "conns"):
            heading = f"Statistics: stats {word}"
            printed = [name.rpartition(":")[2] for name in plain.stats(word)]
            assert list(dict.fromkeys(printed)) == names(heading) or word == "conns", heading
            assert set(printed) == set(names(heading)), heading


def test_statistics_of_segments_with_s3fifo(rmemcached_server: ServerFactory) -> None:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("- Always 0: "))
    with Conversation(rmemcached_server("-m", "2", "-o", "lru_algorithm=s3fifo")) as plain:
        for i in range(3000):
            assert plain.ask(b"set %d 0 0 1000\r\n%s\r\n" % (i, bytes(1000))) == b"STORED\r\n"
            # Each key is read twice, as the segmented LRU needs for a move to WARM.
            for key in (i // 2, i // 2):
                plain.send(b"mg %d s\r\n" % key)
                plain.line()
        found = {name.rpartition(":")[2]: value for name, value in plain.stats("items").items()}
        assert {name: found[name] for name in code(line)} == dict.fromkeys(code(line), "0")
        assert min(int(found[name]) for name in ("evicted", "moves_to_cold", "hits_to_hot", "number_cold")) > 0


@pytest.mark.without_direct("it starts a daemon with no_rdma, which excludes it")
def test_rdma_statistics(rmemcached_server: ServerFactory) -> None:
    """`stats rdma` prints the documented statistics, in this order, and no others."""
    with Conversation(rmemcached_server("-o", "rdma_device=none")) as plain:
        # This statistic needs a device.
        wanted = [name for name in names("Statistics: stats rdma") if name != "rdma_verbs_queue_pairs"]
        assert list(plain.stats("rdma")) == wanted
    with Conversation(rmemcached_server("-o", "no_rdma")) as plain:
        assert plain.ask(b"stats rdma\r\n") == b"ERROR\r\n"


def test_environment(rmemcached_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (variable,) = code(TABLES["Environment variables"][0]["variable"])
    monkeypatch.setenv(variable, str(tmp_path / "ports"))
    server = rmemcached_server()
    # The daemon writes the file after it has made its sockets.
    eventually((tmp_path / "ports").exists)
    assert f"TCP INET: {server.port}" in (tmp_path / "ports").read_text().splitlines()

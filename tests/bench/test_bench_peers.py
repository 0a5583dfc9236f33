"""rmemcached-bench beside broken, hostile and dying servers: a line names the server and the fault."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_runs import measured, run
from scripted import Scripted
from servers import Server, memcached_path

from rmemcached.bench._load import Load
from rmemcached.bench.contenders import Running

Script = Callable[[Callable[[bytes], Iterator[bytes]]], Scripted]
BENCH = (sys.executable, "-P", "-m", "rmemcached.bench")


# ---- servers other than memcached ------------------------------------------------------------------------------------


def endless(piece: bytes) -> Callable[[bytes], Iterator[bytes]]:
    def answers(line: bytes) -> Iterator[bytes]:
        while True:
            yield piece

    return answers


@pytest.mark.parametrize("piece", [b"x" * 65536, b"STAT name value\r\n" * 4000, b"STAT " + b"x" * 65536])
def test_endless_statistics_end(scripted: Script, piece: bytes) -> None:
    """Endless statistics cost no more than a megabyte."""
    server = scripted(endless(piece))
    for words in (("load", "--server"), ("latency", "--contenders")):
        said = run(*words, server.place, status=1).stderr.splitlines()
        name = "tcp" if words[0] == "load" else server.place
        wanted = f"rmemcached-bench: {name}: stats is answered by "
        assert len(said) == 1 and said[0].startswith(wanted), said


@pytest.mark.parametrize(
    "piece", [b"Invalid SSH identification string.\r\n", b"ERROR\r\n", b"CLIENT_ERROR unauthenticated\r\n"]
)
def test_another_protocol_is_named(scripted: Script, piece: bytes) -> None:
    server = scripted(lambda line: iter([piece]))
    said = run("latency", "--contenders", server.place, status=1).stderr.splitlines()
    assert said == [
        f"rmemcached-bench: {server.place}: stats is answered by {piece!r}: is it memcached, without authentication?"
    ]


def answers_well(line: bytes) -> Iterator[bytes]:
    """Enough of the protocol for a load of sets."""
    if line.startswith(b"stats"):
        yield b"STAT version \x1b]0;owned\x07<b>\xff" + b"9" * 5000 + b"\r\nEND\r\n"
    elif line.startswith(b"set "):
        yield b"STORED\r\n"


def test_a_version_controls_no_terminal_and_no_page(scripted: Script, tmp_path: Path) -> None:
    words = f"load --server {scripted(answers_well).place} --ratio 0:1 --seconds 0.05 --warm-up 0.01 --rounds 1"
    # The server takes the line of a value for an unknown command, and gives no answer.
    figures, text, _ = measured(tmp_path, *words.split(), "--keys", "20", "--connections", "2")
    version = figures["contenders"][0]["server"]
    assert version.startswith("memcached \\x1b]0;owned\\x07<b>\ufffd999") and len(version) < 80
    assert "\x1b" not in text and "<b>" not in (tmp_path / "out.html").read_text()


def test_an_answer_that_never_ends_is_given_up(scripted: Script) -> None:
    """An answer of single bytes, each in time but without an end, is given up."""

    def answers(line: bytes) -> Iterator[bytes]:
        while not server.ended.wait(0.05):
            yield b"V"

    server = scripted(answers)
    begin = time.monotonic()
    with (
        socket.create_connection(server.address) as plain,
        pytest.raises(TimeoutError, match=r"too slow: no whole answer for 1\.8 s"),
        Load(keys=1, patience=0.3) as made,
    ):
        made.add_socket(plain)
        made.run(0.1)
    assert 1.8 <= time.monotonic() - begin < 15


def test_a_rate_that_no_clock_can_count_is_refused() -> None:
    with pytest.raises(ValueError, match="rate is 1e9 at most"):
        Load(rate=1e12)


def test_a_full_server_is_named(memcached_server: Any) -> None:
    server: Server = memcached_server("-m", "2", "-M")
    place = f"127.0.0.1:{server.port}"
    words = ("throughput", "--contenders", place, "--keys", "100000", "--sizes", "1000")
    said = run(*words, status=1).stderr
    start = f"rmemcached-bench: {place}: set of 1000 B: a wrong reply came back: b'SERVER_ERROR out of memory"
    assert said.startswith(start) and said.count("\n") == 1


@pytest.mark.parametrize("words", ["latency", "throughput", "paced", "connections --connections 2", "load"])
def test_a_transport_that_is_not_there_is_named(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMEMCACHED_RDMA_DEVICE", "none")
    said = run(*words.split(), "--contenders", "tcp,verbs", "--rounds", "1", status=1).stderr.splitlines()
    assert len(said) == 1 and said[0].startswith("rmemcached-bench: verbs: "), said


# ---- servers that die half way ---------------------------------------------------------------------------------------


def counts(server: Server | Running) -> int:
    return int(server.stats()["cmd_get"])


@pytest.mark.parametrize(
    "words",
    [
        "latency --seconds 60 --sizes 100",
        "paced --seconds 60 --think 0 --most 100000000 --clients 2",
        "connections --seconds 60 --connections 3",
        "throughput --seconds 60 --keys 100",
    ],
)
def test_a_running_server_that_dies_is_one_line(rmemcached_server: Any, words: str) -> None:
    server: Server = rmemcached_server()
    place = f"127.0.0.1:{server.port}"
    with subprocess.Popen(
        [*BENCH, *words.split(), "--contenders", place], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bench:
        while counts(server) < 3000 and bench.poll() is None:
            pass
        server.kill()
        _, said = bench.communicate(timeout=60)
    assert bench.returncode == 1 and said.startswith(f"rmemcached-bench: {place}: "), said
    assert said.count("\n") == 1, said


def test_a_server_of_its_own_that_dies_says_why(tmp_path: Path) -> None:
    """The error has the status and the last words of the dead server."""
    program, pipe = tmp_path / "memcached", tmp_path / "pipe"
    os.mkfifo(pipe)
    program.write_text(f'#!/bin/sh\necho $$ "$@" > {pipe}\necho the last words >&2\nexec {memcached_path()} "$@"\n')
    program.chmod(0o755)
    words = ["load", "--seconds", "60", "--keys", "10", "--contenders", f"memcached={program}"]
    with subprocess.Popen([*BENCH, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench:
        number, *command = pipe.read_text().split()
        server = Running(("127.0.0.1", int(command[command.index("-p") + 1])))
        asked = 0
        while asked < 1000 and bench.poll() is None:
            with contextlib.suppress(ConnectionRefusedError):  # the server does not listen yet
                asked = counts(server)
        os.kill(int(number), signal.SIGKILL)
        _, said = bench.communicate(timeout=60)
    assert bench.returncode == 1 and said.startswith(f"rmemcached-bench: memcached={program}: "), said
    assert said.endswith(" ended with status -9: the last words\n") and said.count("\n") == 1, said

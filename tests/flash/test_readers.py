"""The readers of external storage in the daemon: threads, and io_uring (-o ext_io)."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from daemon_tools import Conversation, tcp_client
from flash_tools import fill, held, options, settle, value_of
from polling import eventually, readable
from servers import Server
from suspended import threads_named

from rmemcached.option_values import UsageError
from rmemcached.options import parse

ServerFactory = Callable[..., Server]

LONG = 900_000

# Runs a command without io_uring, as in a container: its setup fails with EPERM.
WITHOUT_URING = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def step(code, jt, jf, k):
    return struct.pack("HBBI", code, jt, jf, k)
# Load the number of the call; 425 (io_uring_setup): EPERM; others are allowed.
program = step(0x20, 0, 0, 0) + step(0x15, 0, 1, 425) + step(0x06, 0, 0, 0x50001) + step(0x06, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flash"


def daemon(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rmemcached", "-p", "0", "-u", "root", *arguments]


@pytest.fixture
def server(rmemcached_server: ServerFactory, file: Path, reader: str) -> Server:
    return rmemcached_server("-m", "64", "-t", "2", "-o", options(file, "256m", ext_io=reader, ext_threads=2))


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    with Conversation(server) as conversation:
        yield conversation


def fill_long(control: Conversation, count: int) -> list[str]:
    """Stores long values, and waits until they are on the device."""
    keys = [f"long-{number}" for number in range(count)]
    before = control.number("extstore_objects_written")
    for key in keys:
        assert control.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), LONG, value_of(key, LONG))) == b"STORED\r\n"
    settle(control, before + count)
    return keys


def test_values_of_all_sizes(server: Server, control: Conversation, reader: str) -> None:
    values = fill(server, control)
    long = fill_long(control, 30)
    assert len(threads_named(server.pid, "mc-ext-io")) == (1 if reader == "uring" else 2)

    def read() -> None:
        with closing(tcp_client(server)) as client:
            for _ in range(5):
                if client.get_many(list(values)) != values:
                    wrong.append("short")
                wrong.extend(key for key in long if client.get(key) != value_of(key, LONG))

    wrong: list[str] = []
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert control.number("miss_from_extstore") == 0
    assert control.number("extstore_io_queue") == 0


def test_a_short_file_is_misses(server: Server, control: Conversation, file: Path) -> None:
    keys = fill_long(control, 20)
    os.truncate(file, 5 * LONG)
    with closing(tcp_client(server)) as client:
        found = [client.get(key) for key in keys]
        assert all(value in (None, value_of(key, LONG)) for key, value in zip(keys, found, strict=True))
        missed = found.count(None)
        assert 0 < missed == control.number("miss_from_extstore")
        assert [client.get(key) for key in keys] == found
        assert control.number("miss_from_extstore") == missed


def test_queued_reads_have_no_memory(server: Server, control: Conversation) -> None:
    """Clients ask for four times the memory, while the device gives nothing, and leave."""
    keys = fill_long(control, 30)
    clients, each = 20, 15
    with ExitStack() as stack:
        with held(server):
            socks = [stack.enter_context(server.connect(10)) for _ in range(clients)]
            for sock in socks:
                sock.sendall(b"get " + " ".join(keys[:each]).encode() + b"\r\n")
            # Behind a quarter of the memory each client has a value under way.
            eventually(lambda: control.number("get_extstore") >= clients)
            # The memory is there for others.
            for number in range(100):
                assert control.ask(b"set other-%d 0 0 90\r\n%s\r\n" % (number, b"x" * 90)) == b"STORED\r\n"
            fill_long(control, 20)
            for sock in socks:
                # A closed socket might only be shut down for writing. A reset is an end.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            eventually(lambda: control.number("get_aborted_extstore") == control.number("get_extstore"))
        eventually(lambda: control.number("extstore_io_queue") == 0)
    assert control.number("get_oom_extstore") == 0
    assert control.number("miss_from_extstore") == 0
    with closing(tcp_client(server)) as client:
        for key in keys[5:]:
            assert client.get(key) == value_of(key, LONG)
    eventually(lambda: control.number("response_obj_count") <= 1)


def test_slow_readers_leave_memory_to_others(rmemcached_server: ServerFactory, file: Path) -> None:
    """Clients ask for twice the memory and take nothing: they hold a quarter of it, and a value each."""
    server = rmemcached_server("-m", "64", "-t", "2", "-o", options(file, "256m"))
    with Conversation(server) as control, ExitStack() as stack:
        keys = fill_long(control, 17)
        line = b"get " + " ".join(keys).encode() + b"\r\n"
        socks = [stack.enter_context(server.connect(30)) for _ in range(10)]
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            sock.sendall(line)
        eventually(lambda: all(readable(sock) for sock in socks))
        eventually(lambda: control.number("extstore_io_queue") == 0)
        # The memory is there for others, and others have their values.
        fill_long(control, 20)
        with closing(tcp_client(server)) as client:
            assert [client.get(key) for key in keys] == [value_of(key, LONG) for key in keys]
        assert [control.number(name) for name in ("get_oom_extstore", "miss_from_extstore")] == [0, 0]
        # A slow client gets everything in the end.
        values = [b"VALUE %s 0 %d\r\n%s\r\n" % (key.encode(), LONG, value_of(key, LONG)) for key in keys]
        expected = b"".join(values) + b"END\r\n"
        with socks[0].makefile("rb") as stream:
            assert stream.read(len(expected)) == expected


def test_an_end_with_a_long_queue(server: Server, control: Conversation) -> None:
    keys = fill_long(control, 20)
    with ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(server.connect(10))
            sock.sendall(b"get " + " ".join(keys).encode() + b"\r\n")
        eventually(lambda: control.number("get_extstore") > 50)
        # The fixture fails for a daemon that does not end well.
        server.stop()


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ("auto", "ext_io: values are read by threads; io_uring: Operation not permitted\n"),
        ("threads", "ext_io: values are read by threads\n"),
    ],
)
def test_a_kernel_without_io_uring(
    rmemcached_server: ServerFactory, file: Path, tmp_path: Path, choice: str, line: str
) -> None:
    errors = tmp_path / "errors"
    command = [sys.executable, "-c", WITHOUT_URING, *daemon("-v", "-o", options(file, ext_io=choice), "--pidfile")]
    with errors.open("wb") as stream, subprocess.Popen([*command, str(tmp_path / "pid")], stderr=stream) as process:
        eventually((tmp_path / "pid").exists)
        eventually(lambda: line in errors.read_text())
        process.terminate()
        assert process.wait(20) == 0


def test_io_uring_is_demanded_and_refused(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_URING, *daemon("-o", options(file, ext_io="uring"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr == (
        "Failed to initialize external storage: ext_io=uring: the kernel refuses io_uring: Operation not permitted."
        " Choose ext_io=auto or threads\n"
    )


def test_a_wrong_reader_is_one_line() -> None:
    with pytest.raises(UsageError, match="ext_io must be auto, threads or uring, not 'x'"):
        parse(["-o", "ext_path=/tmp/f:1g,ext_io=x"])

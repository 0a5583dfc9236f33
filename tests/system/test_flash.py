"""External storage (-o ext_path): values on flash are like values in memory, and its faults are misses."""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from daemon_tools import Conversation, rdma_client, tcp_client
from flash_tools import PAGE, SETTLED, fill, options, settle, value_of
from polling import eventually
from program import in_tmpfs
from servers import Server, start_rmemcached

from rmemcached.option_values import UsageError
from rmemcached.options import parse

ServerFactory = Callable[..., Server]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flash"


@pytest.fixture(params=["segmented", "s3fifo"])
def server(request: pytest.FixtureRequest, rmemcached_server: ServerFactory, file: Path) -> Server:
    more = f",lru_algorithm={request.param}" if request.param != "segmented" else ""
    return rmemcached_server("-m", "128", "-t", "2", "-o", options(file) + more)


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    with Conversation(server) as conversation:
        yield conversation


def push_out(client: Any, control: Conversation) -> None:
    """Stores further values, so that earlier ones leave the write buffers of both buckets. Waits for the writes."""
    before = control.number("extstore_objects_written")
    for number in range(24):
        client.set(f"more-{number}", value_of(str(number), 900_000 if number % 2 else 400_000))
    settle(control, before + 24)


class TestCommands:
    def test_values_of_all_sizes_come_back(self, server: Server, control: Conversation) -> None:
        values = fill(server, control, flags=7)
        with closing(tcp_client(server)) as client:
            for key, value in values.items():
                assert client.get(key) == value, key
                found, cas = client.gets(key)
                assert found == value
                assert client.cas(key, value, cas, flags=7) is True
            assert client.get_many(list(values)) == values
        assert control.number("get_extstore") > len(values)
        assert control.number("miss_from_extstore") == 0
        assert control.number("badcrc_from_extstore") == 0

    def test_values_come_back_from_the_device(self, server: Server, control: Conversation, file: Path) -> None:
        values = fill(server, control)
        with closing(tcp_client(server)) as client:
            push_out(client, control)
            for key, value in values.items():
                assert client.get(key) == value, key
        assert any(file.read_bytes().find(value[:64]) >= 0 for value in values.values())

    def test_meta_commands(self, server: Server, control: Conversation) -> None:
        values = fill(server, control, flags=5)
        key, value = "key-4000", values["key-4000"]
        assert control.ask(f"mg {key} v s f k Oabc\r\n".encode()) == f"VA 4000 s4000 f5 k{key} Oabc\r\n".encode()
        assert control.read(4002) == value + b"\r\n"
        assert control.ask(f"mg {key} s\r\n".encode()) == b"HD s4000\r\n"
        control.send(f"mg {key} q v\r\nmn\r\n".encode())
        assert control.line() == b"VA 4000\r\n"
        assert control.read(4002) == value + b"\r\n"
        assert control.line() == b"MN\r\n"
        assert control.ask(f"md {key} I\r\n".encode()) == b"HD\r\n"
        assert control.ask(f"mg {key} v\r\n".encode()) == b"VA 4000 X W\r\n"
        assert control.read(4002) == value + b"\r\n"
        assert control.ask(f"md {key}\r\n".encode()) == b"HD\r\n"
        assert control.ask(f"mg {key} v\r\n".encode()) == b"EN\r\n"

    def test_binary_commands(self, server: Server, control: Conversation) -> None:
        values = fill(server, control, flags=9)
        header = struct.Struct(">BBHBBHIIQ")
        with server.connect(10) as sock, sock.makefile("rb") as stream:

            def ask(opcode: int, key: bytes, extras: bytes = b"") -> tuple[int, bytes, bytes]:
                body = extras + key
                sock.sendall(header.pack(0x80, opcode, len(key), len(extras), 0, 0, len(body), 77, 0) + body)
                _, op, nkey, nextra, _, status, length, opaque, _ = header.unpack(stream.read(24))
                assert (op, opaque) == (opcode, 77)
                answer = stream.read(length)
                return status, answer[nextra : nextra + nkey], answer[nextra + nkey :]

            for key, value in values.items():
                assert ask(0x00, key.encode()) == (0, b"", value)
                assert ask(0x0C, key.encode()) == (0, key.encode(), value)
                assert ask(0x1D, key.encode(), struct.pack(">I", 100)) == (0, b"", value)

    def test_touch_delete_replace(self, server: Server, control: Conversation) -> None:
        values = fill(server, control)
        with closing(tcp_client(server)) as client:
            assert client.touch("key-4000", 1000)
            control.send(b"gat 1000 key-16000\r\n")
            assert control.line() == b"VALUE key-16000 0 16000\r\n"
            assert control.read(16002 + 5) == values["key-16000"] + b"\r\nEND\r\n"
            assert client.get("key-4000") == values["key-4000"]
            assert client.add("key-4000", b"x") is False
            used = control.number("extstore_objects_used")
            assert client.replace("key-4000", b"short")
            assert client.get("key-4000") == b"short"
            assert client.delete("key-16000")
            assert client.get("key-16000") is None
            assert control.number("extstore_objects_used") == used - 2
            assert client.flush_all()
            assert client.get_many(list(values)) == {}
            eventually(lambda: control.number("extstore_objects_used") == 0, what="flushed values gone")

    def test_what_memcached_refuses(self, server: Server, control: Conversation) -> None:
        """As in memcached, a value on flash is not changed in place."""
        fill(server, control)
        assert control.ask(b"append key-500 0 0 1\r\nx\r\n") == b"NOT_STORED\r\n"
        assert control.ask(b"prepend key-500 0 0 1\r\nx\r\n") == b"NOT_STORED\r\n"
        assert control.ask(b"incr key-500 1\r\n") == (
            b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
        )

    def test_expired_values_are_gone(self, rmemcached_server: ServerFactory, file: Path) -> None:
        server = rmemcached_server("-m", "128", "-o", options(file) + ",debug_commands")
        with Conversation(server) as control, closing(tcp_client(server)) as client:
            client.set("a", value_of("a", 5000), expire=50)
            settle(control, 1)
            assert control.ask(b"debugtime 60\r\n") == b"OK\r\n"
            assert client.get("a") is None

    def test_popular_values_come_back_to_memory(self, rmemcached_server: ServerFactory, file: Path) -> None:
        server = rmemcached_server("-m", "128", "-o", options(file, ext_recache_rate=1, ext_item_age=2))
        with Conversation(server) as control, closing(tcp_client(server)) as client:
            client.set("a", value_of("a", 5000))
            settle(control, 1)
            # A hot header waits in COLD for its move to WARM, so the maintainer may be first.
            eventually(
                lambda: client.get("a") == value_of("a", 5000) and control.number("recache_from_extstore") > 0,
                SETTLED,
            )
            assert client.get("a") == value_of("a", 5000)

    def test_evictions_go_to_flash(self, rmemcached_server: ServerFactory, file: Path) -> None:
        """Without item_age values leave for lack of memory only. Each value is there, or its eviction was counted."""
        server = rmemcached_server("-m", "64", "-o", options(file, "256m", ext_item_age=None, ext_item_size=512))
        with Conversation(server) as control, closing(tcp_client(server)) as client:
            values = {f"k{n}": value_of(f"k{n}", 50_000) for n in range(2400)}
            for key, value in values.items():
                assert client.set(key, value)
            found = {key: client.get(key) for key in values}
            kept = {key for key, value in found.items() if value is not None}
            assert all(found[key] == values[key] for key in kept)
            assert len(values) - len(kept) <= control.number("evictions")
            # Memory has room for some 1200 values.
            assert len(kept) > 1400

    def test_a_stop_under_load(self, rmemcached_server: ServerFactory, file: Path) -> None:
        server = rmemcached_server("-m", "64", "-t", "2", "-o", options(file))
        with Conversation(server) as control:
            values = fill(server, control)

            def ask() -> None:
                with suppress(OSError), server.connect(10) as sock:
                    while True:
                        sock.sendall(b"get " + " ".join(values).encode() + b"\r\n")
                        while data := sock.recv(1 << 20):
                            if data.endswith(b"END\r\n"):
                                break
                        else:
                            return

            threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: control.number("get_extstore") > 100)
        # The fixture fails for a daemon that does not end well.
        server.stop()
        for thread in threads:
            thread.join(10)


class TestOrder:
    def test_answers_keep_their_order(self, server: Server, control: Conversation) -> None:
        values = fill(server, control)
        keys = list(values) * 5
        request = "".join(f"mg {key} v k\r\nmg none v\r\nversion\r\n" for key in keys)
        control.send(request.encode())
        for key in keys:
            assert control.line() == f"VA {len(values[key])} k{key}\r\n".encode()
            assert control.read(len(values[key]) + 2) == values[key] + b"\r\n"
            assert control.line() == b"EN\r\n"
            assert control.line().startswith(b"VERSION ")

    def test_a_set_behind_a_get_waits(self, server: Server, control: Conversation) -> None:
        values = fill(server, control)
        payload = value_of("new", 300_000)
        control.send(b"get key-600000\r\nset new 0 0 300000\r\n" + payload + b"\r\nget new\r\n")
        assert control.line() == b"VALUE key-600000 0 600000\r\n"
        assert control.read(600_002) == values["key-600000"] + b"\r\n"
        assert control.line() == b"END\r\n"
        assert control.line() == b"STORED\r\n"
        assert control.line() == b"VALUE new 0 300000\r\n"
        assert control.read(300_002) == payload + b"\r\n"

    def test_clients_that_leave_cost_nothing(self, server: Server, control: Conversation) -> None:
        values = fill(server, control)
        for _ in range(50):
            with server.connect(10) as sock:
                sock.sendall(b"get " + " ".join(values).encode() + b"\r\n")
        with closing(tcp_client(server)) as client:
            assert client.get_many(list(values)) == values
        eventually(lambda: control.number("curr_connections") == 1)
        eventually(lambda: control.number("response_obj_count") <= 1)

    def test_a_failed_get_is_aborted(self, server: Server, control: Conversation) -> None:
        fill(server, control)
        aborted = control.number("get_aborted_extstore")
        assert control.ask(b"get key-600000 key-1000000 " + b"k" * 300 + b"\r\n").startswith(b"CLIENT_ERROR")
        assert control.line() == b"\r\n"
        assert control.number("get_aborted_extstore") == aborted + 2
        assert control.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.usefixtures("rdma_transport")
class TestRdma:
    def test_values_and_views(self, rmemcached_server: ServerFactory, file: Path) -> None:
        server = rmemcached_server("-m", "128", "-t", "2", "-o", options(file) + ",rdma_direct=all")
        with Conversation(server) as control, rdma_client(server) as client:
            values = fill(server, control)
            for key, value in values.items():
                assert client.get(key) == value, key
            assert client.get_many(list(values)) == values
            view = client.get_view("key-60000")
            assert bytes(view) == values["key-60000"]
            view.release()
            buffer = client.buffer(1_000_000)
            assert client.get_into("key-1000000", buffer) == 1_000_000
            assert bytes(memoryview(buffer)[:1_000_000]) == values["key-1000000"]
            assert control.number("miss_from_extstore") == 0


class TestFaults:
    def pushed_out(self, server: Server, control: Conversation) -> dict[str, bytes]:
        """Values on the device, not in a write buffer."""
        values = fill(server, control)
        with closing(tcp_client(server)) as client:
            push_out(client, control)
        return values

    def test_a_truncated_file_is_misses(self, server: Server, control: Conversation, file: Path) -> None:
        values = self.pushed_out(server, control)
        os.truncate(file, 0)
        missed = 0
        with closing(tcp_client(server)) as client:
            for key, value in values.items():
                found = client.get(key)
                assert found in (None, value), key
                missed += found is None
            assert missed > 0
            assert control.number("miss_from_extstore") >= missed
            assert client.set("again", b"x" * 5000)
            assert client.get("again") == b"x" * 5000

    def test_a_miss_in_every_protocol(self, server: Server, control: Conversation, file: Path) -> None:
        self.pushed_out(server, control)
        os.truncate(file, 0)
        assert control.ask(b"mg key-4000 v k Oxy s\r\n") == b"EN kkey-4000 Oxy\r\n"
        assert control.ask(b"get key-500 key-1000\r\n") == b"END\r\n"
        control.send(b"mg key-16000 v q\r\nmn\r\n")
        assert control.line() == b"MN\r\n"
        header = struct.Struct(">BBHBBHIIQ")
        with server.connect(10) as sock, sock.makefile("rb") as stream:
            for opcode, key, answer in ((0x0C, b"key-60000", b"key-60000"), (0x00, b"key-200000", b"Not found")):
                sock.sendall(header.pack(0x80, opcode, len(key), 0, 0, 0, len(key), 0, 0) + key)
                _, _, _, _, _, status, length, _, _ = header.unpack(stream.read(24))
                assert (status, stream.read(length)) == (1, answer)
            # A quiet get says nothing about a miss.
            sock.sendall(header.pack(0x80, 0x09, 10, 0, 0, 0, 10, 0, 0) + b"key-600000")
            sock.sendall(header.pack(0x80, 0x0A, 0, 0, 0, 0, 0, 0, 0))
            assert header.unpack(stream.read(24))[1] == 0x0A

    def test_wrong_bytes_are_misses(self, server: Server, control: Conversation, file: Path) -> None:
        values = self.pushed_out(server, control)
        random.seed(1)
        with file.open("r+b") as flash:
            size = flash.seek(0, 2)
            for place in range(0, size, 256):
                flash.seek(place)
                flash.write(bytes([random.randrange(256)]))
        with closing(tcp_client(server)) as client:
            for key, value in values.items():
                assert client.get(key) in (None, value), key
        assert control.number("badcrc_from_extstore") > 0
        assert control.number("badcrc_from_extstore") <= control.number("miss_from_extstore")

    def test_a_full_disk_is_a_smaller_storage(self, tmp_path: Path) -> None:
        small = tmp_path / "small"
        in_small = in_tmpfs(small, f"{2 * PAGE + 4}m")
        with (
            start_rmemcached("-m", "128", "-o", options(small / "flash", "256m"), under=in_small) as server,
            Conversation(server) as control,
            closing(tcp_client(server)) as client,
        ):
            values = {f"k{n}": value_of(f"k{n}", 50_000) for n in range(800)}
            for key, value in values.items():
                assert client.set(key, value)
            eventually(lambda: control.number("extstore_page_evictions") > 0, SETTLED)
            for key, value in values.items():
                assert client.get(key) in (None, value), key
            assert client.get("k799") == values["k799"]
            assert control.number("badcrc_from_extstore") == 0

    def test_one_daemon_for_a_file(self, server: Server, rmemcached_server: ServerFactory, file: Path) -> None:
        second = subprocess.run(
            [*server.command[:-2], "-p", "0", "-o", options(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode != 0
        assert "in use by another process" in second.stderr

    def test_a_restart_begins_empty(
        self, server: Server, control: Conversation, rmemcached_server: ServerFactory, file: Path
    ) -> None:
        values = fill(server, control)
        control.close()
        server.stop()
        again = rmemcached_server("-m", "128", "-o", options(file))
        with closing(tcp_client(again)) as client:
            assert client.get_many(list(values)) == {}
            client.set("a", b"y" * 5000)
            assert client.get("a") == b"y" * 5000


class TestCompaction:
    def test_values_stay_right_while_pages_are_compacted(self, rmemcached_server: ServerFactory, file: Path) -> None:
        """Writers replace and delete, so pages fill and are compacted. Readers check each value."""
        server = rmemcached_server(
            "-m", "64", "-t", "2", "-o", options(file, "48m", ext_compact_under=3, ext_drop_under=1, ext_max_frag=0.95)
        )
        stop = threading.Event()
        wrong: list[str] = []
        keys = 600

        def write(seed: int) -> None:
            chance = random.Random(seed)
            with closing(tcp_client(server)) as client:
                while not stop.is_set():
                    key = f"{seed}-{chance.randrange(keys)}"
                    if chance.random() < 0.1:
                        client.delete(key)
                    else:
                        version = chance.randrange(1 << 30)
                        size = chance.choice((300, 2000, 20_000, 100_000))
                        client.set(key, f"{key} {version} ".encode() + value_of(key, size, version))

        def read(seed: int) -> None:
            chance = random.Random(seed)
            with closing(tcp_client(server)) as client:
                while not stop.is_set():
                    asked = [f"{chance.randrange(2)}-{chance.randrange(keys)}" for _ in range(8)]
                    for key, found in client.get_many(asked).items():
                        name, version, body = found.split(b" ", 2)
                        if name.decode() != key or body != value_of(key, len(body), int(version)):
                            wrong.append(key)
                            stop.set()

        threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        threads += [threading.Thread(target=read, args=(n,)) for n in range(2, 4)]
        for thread in threads:
            thread.start()
        try:
            with Conversation(server) as control:
                eventually(
                    lambda: stop.is_set() or control.number("extstore_compact_rescues") > 500, 120.0, what="compaction"
                )
                assert control.number("badcrc_from_extstore") == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong

    def test_a_value_that_moves_is_no_miss(self, rmemcached_server: ServerFactory, file: Path) -> None:
        """A writer has pages compacted, and the recaching takes headers away, between a get's lookup and its read.
        Without CAS values nothing but the header says which value is meant."""
        tuned = options(file, "160m", ext_recache_rate=20, ext_compact_under=19, ext_drop_under=0, ext_max_frag=0.95)
        server = rmemcached_server("-m", "128", "-t", "4", "-C", "-o", tuned)
        stop = threading.Event()
        missing: list[str] = []
        values = {f"key-{n}": value_of(f"key-{n}", 400) for n in range(300)}

        def write() -> None:
            chance = random.Random(1)
            with closing(tcp_client(server)) as client:
                while not stop.is_set():
                    client.set(f"other-{chance.randrange(60)}", b"y" * chance.choice((400, 20_000, 200_000)))

        def read(seed: int) -> None:
            chance = random.Random(seed)
            with closing(tcp_client(server)) as client:
                while not stop.is_set() and not missing:
                    asked = chance.sample(list(values), 60)
                    found = client.get_many(asked)
                    missing.extend(key for key in asked if found.get(key) != values[key])

        with closing(tcp_client(server)) as client:
            client.set_many(values)
        threads = [threading.Thread(target=write)] + [threading.Thread(target=read, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            with Conversation(server) as control:
                eventually(
                    lambda: missing or control.number("extstore_compact_rescues") > 40_000, 120.0, what="compaction"
                )
                assert control.number("extstore_page_evictions") == control.number("evictions") == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not missing


class TestOptions:
    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (
                "ext_path=/tmp/f",
                "must supply size to ext_path, ie: ext_path=/f/e:64m (m|g|t|p supported), not '/tmp/f'",
            ),
            ("ext_path=/tmp/f:1GB", "must supply size to ext_path"),
            ("ext_path", "missing argument to ext_path, ie: ext_path=/d/file:5G"),
            ("ext_path=/tmp/f:1g:warm", "Unknown extstore bucket: warm"),
            ("ext_path=/tmp/f:63m", "supplied ext_path has zero size, cannot use"),
            ("ext_path=/tmp/f:1g,ext_page_size=3", "ext_page_size and ext_wbuf_size must be even numbers of megabytes"),
            ("ext_path=/tmp/f:1g,ext_wbuf_size=6", "ext_page_size and ext_wbuf_size must be even numbers of megabytes"),
            ("ext_path=/tmp/f:9p", "ext_path takes 64 files and 65534 pages at most"),
            ("ext_path=/tmp/f:1g,ext_threads=0", "ext_threads and ext_io_depth must be at least 1"),
            ("ext_item_size=x", "could not parse argument to ext_item_size"),
            ("ext_max_frag=-1", "could not parse argument to ext_max_frag"),
        ],
    )
    def test_a_wrong_value_is_one_line(self, words: str, line: str) -> None:
        with pytest.raises(UsageError) as raised:
            parse(["-o", words])
        assert str(raised.value).startswith(line)

    def test_udp_and_large_items_are_refused(self) -> None:
        with pytest.raises(UsageError, match="Cannot use UDP with extstore enabled"):
            parse(["-U", "11211", "-o", "ext_path=/tmp/f:1g"])
        with pytest.raises(UsageError, match="cannot be larger than ext_wbuf_size"):
            parse(["-m", "64", "-I", "8m", "-o", "ext_path=/tmp/f:1g"])


def refused(words: str, *more: str) -> str:
    """The error line of a start refused, without its beginning."""
    user = ["-u", "root"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached", "-p", "0", *user, *more, "-o", words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0 and done.stderr.count("\n") == 1, done
    beginning = "Failed to initialize external storage: ext_path: "
    assert done.stderr.startswith(beginning), done.stderr
    return done.stderr.removeprefix(beginning).rstrip("\n")


class TestFiles:
    """ext_path takes a file made for values, or a block device."""

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        file = tmp_path / "no" / "file"
        assert refused(f"ext_path={file}:64m") == f"{file}: No such file or directory"

    @pytest.mark.parametrize("kind", ["device", "FIFO", "socket", "directory"])
    def test_other_kinds(self, tmp_path: Path, kind: str) -> None:
        file = tmp_path / "other"
        name = f"a {kind}"
        with socket.socket(socket.AF_UNIX) as sock:
            if kind == "device":
                file, name = Path("/dev/null"), "a character device"
            elif kind == "FIFO":
                os.mkfifo(file)
            elif kind == "socket":
                sock.bind(str(file))
            else:
                file.mkdir()
            assert refused(f"ext_path={file}:64m").startswith(f"{file}: is {name}: name a file ")

    @pytest.mark.skipif(not os.access("/dev/loop-control", os.R_OK | os.W_OK), reason="needs /dev/loop-control")
    @pytest.mark.parametrize("link", [False, True])
    def test_a_device(self, rmemcached_server: ServerFactory, tmp_path: Path, link: bool) -> None:
        """A device is used for the size given, but not for a size above the device's."""
        (tmp_path / "image").write_bytes(bytes(64 << 20))
        words = ["losetup", "--find", "--show", str(tmp_path / "image")]
        loop = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        try:
            device = tmp_path / "device"
            os.mknod(device, stat.S_IFBLK | 0o600, os.stat(loop).st_rdev)
            if link:
                (tmp_path / "link").symlink_to(device)
                device = tmp_path / "link"
            line = f"{device}: is a device with less room than the size given for it: give a size that fits"
            assert refused(options(device, "72m")) == line
            with (
                start_rmemcached("-m", "128", "-o", options(device)) as server,
                Conversation(server) as control,
                closing(tcp_client(server)) as client,
            ):
                for key, value in fill(server, control).items():
                    assert client.get(key) == value
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)

    @pytest.mark.parametrize("content", [b"", b"precious\n"])
    def test_symbolic_links(self, tmp_path: Path, content: bytes) -> None:
        file, link = tmp_path / "victim", tmp_path / "link"
        link.symlink_to(file)
        if content:
            file.write_bytes(content)
        assert refused(f"ext_path={link}:64m") == f"{link}: is a symbolic link: name the file itself"
        assert file.read_bytes() == content if content else not file.exists()

    @pytest.mark.parametrize("more", [[], ["-e"]])
    @pytest.mark.parametrize("content", [b"precious\n", b"RMCITEMS" + bytes((1 << 20) - 8), b"RMC"])
    def test_foreign_files_stay(self, tmp_path: Path, file: Path, content: bytes, more: list[str]) -> None:
        file.write_bytes(content)
        memory = [*more, str(tmp_path / "memory")] if more else []
        line = f"{file}: is not a file of ext_path: remove it, or name another file"
        assert refused(f"ext_path={file}:64m", *memory) == line
        assert file.read_bytes() == content

    @pytest.mark.parametrize("before", ["own", "own of another size", "memcached's", "empty"])
    def test_files_for_values_are_used_again(self, rmemcached_server: ServerFactory, file: Path, before: str) -> None:
        if before == "memcached's":
            file.write_bytes(b"item" * (1 << 19))
        elif before == "empty":
            file.touch()
        else:
            rmemcached_server("-o", options(file)).stop()
            assert file.read_bytes()[:8] == b"RMCFLASH"
        if before == "own of another size":
            os.truncate(file, 5_000_001)
        file.chmod(0o600)
        server = rmemcached_server("-m", "128", "-o", options(file))
        with Conversation(server) as control, closing(tcp_client(server)) as client:
            for key, value in fill(server, control).items():
                assert client.get(key) == value
            assert control.number("get_extstore") > 0
        server.stop()
        assert server.stderr() == "" and file.read_bytes()[:8] == b"RMCFLASH"

    def test_a_file_open_to_others_is_named(self, rmemcached_server: ServerFactory, file: Path) -> None:
        """memcached makes files with this mode."""
        file.touch()
        file.chmod(0o644)
        server = rmemcached_server("-o", options(file))
        server.stop()
        assert server.stderr() == f"ext_path: {file} is open to other users, and so are its values: chmod 600\n"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_a_file_of_another_user(self, file: Path) -> None:
        file.touch()
        file.chmod(0o666)
        os.chown(file, 65534, 65534)
        line = f"{file}: belongs to another user: name another file, or start the daemon as its owner (-u)"
        assert refused(f"ext_path={file}:64m") == line

    @pytest.mark.parametrize("name", ["plain", "hard link"])
    def test_a_file_twice(self, tmp_path: Path, file: Path, name: str) -> None:
        again = file
        if name == "hard link":
            file.touch()
            again = tmp_path / "again"
            again.hardlink_to(file)
        assert refused(f"ext_path={file}:64m,ext_path={again}:64m") == f"{again}: is given twice"

    def test_a_file_in_use(self, rmemcached_server: ServerFactory, file: Path) -> None:
        rmemcached_server("-o", options(file))
        assert refused(f"ext_path={file}:64m") == f"{file}: is in use by another process"

    @pytest.mark.parametrize("link", ["plain", "hard link"])
    @pytest.mark.parametrize("ending", ["", ".flash"])
    @pytest.mark.parametrize("there", [False, True])
    def test_the_memory_files(
        self, rmemcached_server: ServerFactory, tmp_path: Path, ending: str, link: str, there: bool
    ) -> None:
        memory = tmp_path / "memory"
        wanted = Path(f"{memory}{ending}")
        if there:
            rmemcached_server("-e", str(memory), "-o", options(tmp_path / "flash")).stop()
        elif link == "hard link":
            wanted.touch(0o600)
        before = wanted.read_bytes() if there else b""
        given = wanted
        if link == "hard link":
            given = tmp_path / "link"
            given.hardlink_to(wanted)
        line = f"{given}: is the memory file (-e), or belongs to it: name another file"
        assert refused(f"ext_path={given}:64m", "-e", str(memory)) == line
        assert wanted.read_bytes() == before

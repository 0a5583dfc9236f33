"""Replies that wait for a value on flash (-o ext_path): in every kind of connection they keep their order, and hold up
only the commands behind them."""

from __future__ import annotations

import base64
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from certificates import Authority
from daemon_tools import CLOSE, GONE_WITHIN, TIMEOUT, Conversation, alone, rdma_at_rest, rdma_client
from flash_tools import held, options, settle, value_of
from lane_peer import Lanes
from polling import eventually, readable
from sasl_tools import GET, GETQ, GOOD, NOOP, OK, SET, SETQ, Binary, Folder, packet
from servers import Server
from tls_peers import TlsConversation, client_context
from tls_peers import options as tls_options
from transport import rounds

ServerFactory = Callable[..., Server]

LONG = 200_000  # bytes of a value that a worker does not read by itself
SHORT = 3000
MANY = 60  # commands: more than a connection does at once
GETK, GAT, GATK, TOUCH = 0x0C, 0x1D, 0x23, 0x1C
SETTINGS = ("-m", "256", "-t", "1", "-c", "4096", "-o")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flash"


@pytest.fixture(
    params=["", ",lru_algorithm=s3fifo", ",slab_chunk_max=16,rdma_direct=all"], ids=["", "s3fifo", "chunks"]
)
def server(request: pytest.FixtureRequest, rmemcached_server: ServerFactory, file: Path) -> Server:
    more = f",debug_commands{request.param}"
    return rmemcached_server(*SETTINGS, options(file, ext_threads=1, ext_item_size=512) + more)


@pytest.fixture
def control(server: Server) -> Iterator[Conversation]:
    with Conversation(server) as conversation:
        yield conversation


def put(control: Conversation, keys: dict[str, int], flash: bool = True) -> None:
    """Stores values of these sizes, and waits until they are on flash."""
    before = control.number("extstore_objects_written") if flash else 0
    for key, size in keys.items():
        assert control.ask(b"set %s 5 0 %d\r\n%s\r\n" % (key.encode(), size, value_of(key, size))) == b"STORED\r\n"
    if flash:
        settle(control, before + len(keys))


def hit(key: str, size: int) -> bytes:
    return b"VALUE %s 5 %d\r\n%s\r\nEND\r\n" % (key.encode(), size, value_of(key, size))


def comes_back(control: Conversation, recached: int) -> bool:
    """Gets the value. Returns whether more than so many values have come back into memory."""
    control.send(b"get long\r\n")
    assert control.read(len(hit("long", LONG))) == hit("long", LONG)
    return control.number("recache_from_extstore") > recached


def asked(control: Conversation, gets: int) -> None:
    """Waits until the daemon has begun so many fetches."""
    eventually(lambda: control.number("get_extstore") >= gets, what=f"{gets} fetches")


def at_rest(control: Conversation) -> None:
    alone(control)
    eventually(lambda: control.number("response_obj_count") <= 1)


# ---- connections that end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_half_closed_connection_is_answered(
    rmemcached_server: ServerFactory, file: Path, tmp_path: Path, kind: str
) -> None:
    """After the client's last word all its commands are done, and all replies leave."""
    path = str(tmp_path / "socket") if kind == "unix" else None
    server = rmemcached_server(*SETTINGS, options(file, ext_threads=1), path=path)
    with Conversation(server) as control:
        put(control, {"long": LONG})
        request = b"get long\r\n" + b"".join(b"set s%d 0 0 1\r\nx\r\n" % n for n in range(MANY)) + b"get long\r\nmn\r\n"
        with server.connect(TIMEOUT) as sock, sock.makefile("rb") as answer:
            with held(server):
                sock.sendall(request)
                asked(control, 1)
                sock.shutdown(socket.SHUT_WR)
                # The daemon sees the end of the input, too.
                for _ in range(20):
                    control.ask(b"mn\r\n")
                assert not readable(sock)
            assert answer.read() == hit("long", LONG) + b"STORED\r\n" * MANY + hit("long", LONG) + b"MN\r\n"
        at_rest(control)


@pytest.mark.parametrize("kind", ["tcp", "unix", "reset"])
def test_a_connection_that_ends_gives_its_read_up(
    rmemcached_server: ServerFactory, file: Path, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "socket") if kind == "unix" else None
    server = rmemcached_server(*SETTINGS, options(file, ext_threads=1), path=path)
    with Conversation(server) as control:
        put(control, {"long": LONG})
        with held(server):
            for n in range(1, 11):
                with server.connect(TIMEOUT) as sock:
                    sock.sendall(b"get long\r\nset s%d 0 0 1\r\nx\r\n" % n)
                    asked(control, n)
                    if kind == "reset":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            # The commands behind, of the same input, have been done.
            assert control.ask(b"mg s10\r\n") == b"HD\r\n"
            if kind != "tcp":
                alone(control)
                assert control.number("get_aborted_extstore") == 10
        at_rest(control)
        control.send(b"get long\r\n")
        assert control.read(len(hit("long", LONG))) == hit("long", LONG)


def test_the_last_reply_before_quit_is_sent(server: Server, control: Conversation) -> None:
    put(control, {"long": LONG})
    with Conversation(server) as talk:
        with held(server):
            talk.send(b"get long\r\nquit\r\n")
            asked(control, 1)
        assert talk.file.read() == hit("long", LONG)


def test_a_connection_that_waits_too_long_is_idle(rmemcached_server: ServerFactory, file: Path) -> None:
    server = rmemcached_server(*SETTINGS, options(file, ext_threads=1) + ",idle_timeout=2")
    with Conversation(server) as control:
        put(control, {"long": LONG})
    with Conversation(server) as talk, held(server):
        talk.send(b"get long\r\n")
        assert talk.ended()
    with Conversation(server) as control:
        assert control.number("idle_kicks") >= 1
        assert control.number("get_aborted_extstore") == 1


def test_a_watcher_and_a_dump_come_behind(server: Server, control: Conversation) -> None:
    put(control, {"long": LONG})
    with Conversation(server) as watcher, Conversation(server) as dump:
        with held(server):
            watcher.send(b"get long\r\n")
            dump.send(b"get long\r\n")
            asked(control, 2)
            watcher.send(b"watch mutations\r\n")
            dump.send(b"lru_crawler metadump all\r\n")
        assert watcher.read(len(hit("long", LONG))) == hit("long", LONG)
        assert watcher.line() == b"OK\r\n"
        assert dump.read(len(hit("long", LONG))) == hit("long", LONG)
        assert dump.line() == b"OK\r\n"
        assert b" ext_page=" in dump.line()
        assert dump.line() == b"END\r\n"


def test_a_thousand_connections_wait(server: Server, control: Conversation) -> None:
    """Each of 1000 connections waits for a value, and others are served meanwhile."""
    count = rounds(1000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    size = 70_000
    put(control, {"long": size})
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        talks = [stack.enter_context(Conversation(server, 60.0)) for _ in range(count)]
        with held(server):
            for talk in talks:
                talk.send(b"get long\r\n")
            asked(control, count)
            assert control.ask(b"set short 0 0 1\r\nx\r\n") == b"STORED\r\n"
            assert not any(readable(talk.sock) for talk in talks)
        for talk in talks:
            assert talk.read(len(hit("long", size))) == hit("long", size)
    at_rest(control)


# ---- changes while a value is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (b"flush_all\r\n", b"END\r\n"),
        (b"flush_all 3\r\n", b"END\r\n"),
        (b"delete long\r\n", b"END\r\n"),
        (b"set long 0 0 1\r\nx\r\n", b"VALUE long 0 1\r\n"),
        (b"touch long 3\r\n", b"END\r\n"),
        (b"mn\r\n", b"VALUE long 5 200000\r\n"),
    ],
)
def test_a_value_read_for_a_get_revives_nothing(
    server: Server, control: Conversation, change: bytes, after: bytes
) -> None:
    """A popular value comes back into memory after its read, but not after a change meanwhile."""
    put(control, {"long": LONG})
    assert control.ask(b"extstore item_age 3600\r\n") == b"OK\r\n"
    recached = control.number("recache_from_extstore")
    control.send(b"get long\r\n" * 3)
    assert control.read(3 * len(hit("long", LONG))) == hit("long", LONG) * 3
    assert control.ask(b"extstore recache_rate 1\r\n") == b"OK\r\n"
    with Conversation(server) as talk:
        with held(server):
            talk.send(b"get long\r\n" * 3)
            asked(control, 6)
            assert control.ask(b"debugtime 5\r\n") == b"OK\r\n"
            control.ask(change)
            assert control.ask(b"debugtime 5\r\n") == b"OK\r\n"
        assert talk.read(3 * len(hit("long", LONG))) == hit("long", LONG) * 3
    with Conversation(server) as talk:
        assert talk.ask(b"get long\r\n") == after
    if change == b"mn\r\n":
        # The maintainer may look at the item at the same moment: then a later get brings the value back.
        eventually(partial(comes_back, control, recached))
    else:
        assert control.number("recache_from_extstore") == recached


# ---- lanes -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rdma_transport")
class TestLanes:
    @pytest.fixture
    def server(self, rmemcached_server: ServerFactory, file: Path) -> Server:
        return rmemcached_server(*SETTINGS, options(file, ext_threads=1))

    def request(self, mark: str) -> bytes:
        sets = b"".join(b"set %s%d 0 0 1\r\nx\r\n" % (mark.encode(), n) for n in range(MANY))
        return b"get long\r\nmg long v q\r\n" + sets + b"get long\r\nset %s 0 0 1\r\nx\r\n" % mark.encode()

    def test_what_came_before_close_is_done(self, server: Server, control: Conversation) -> None:
        """A closed lane needs no replies: its commands do not even wait for them."""
        put(control, {"long": LONG})
        with Lanes(server) as peer:
            peer.open(0, 1)
            with held(server):
                peer.put(1, self.request("a"))
                asked(control, 1)
                peer.send(CLOSE, b"", 1)
                eventually(lambda: control.ask(b"mg a\r\n") == b"HD\r\n")
                assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
            peer.wait(lambda: 1 in peer.closed)
            peer.open(2)
            assert peer.talk(2, b"mg a\r\n") == b"HD\r\n"
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        at_rest(control)

    @pytest.mark.parametrize("lanes", [1, 100])
    def test_what_came_before_the_end_is_done(self, server: Server, control: Conversation, lanes: int) -> None:
        """The client ends its queue pair: the commands of all lanes are done."""
        put(control, {"long": 70_000})
        with Lanes(server) as peer:
            peer.open(*range(lanes))
            with held(server):
                for lane in range(lanes):
                    peer.put(lane, self.request(f"l{lane}."))
                asked(control, lanes)
                peer.close()
                for lane in range(lanes):
                    eventually(lambda: control.ask(b"mg l%d.\r\n" % lane) == b"HD\r\n")  # noqa: B023
                eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        at_rest(control)

    def test_lanes_are_apart(self, server: Server, control: Conversation) -> None:
        """A lane that waits holds up no other."""
        put(control, {"long": 15_000 * 6})
        with Lanes(server) as peer:
            peer.open(0, 1, 2)
            with held(server):
                peer.put(1, b"get long\r\n")
                peer.put(2, b"mg long v k\r\nmn\r\n")
                asked(control, 2)
                assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
                assert not peer.replies[1] and not peer.replies[2]
            assert peer.read(1, lambda r: r.endswith(b"END\r\n")) == hit("long", 90_000)
            expected = b"VA 90000 klong\r\n" + value_of("long", 90_000) + b"\r\nMN\r\n"
            assert peer.read(2, lambda r: len(r) >= len(expected)) == expected

    def test_a_client_asks_for_values_on_flash(self, rmemcached_server: ServerFactory, file: Path) -> None:
        """Direct reads find no value of flash in memory, and the client asks the daemon."""
        server = rmemcached_server(*SETTINGS, options(file) + ",rdma_direct=all")
        with Conversation(server) as control, rdma_client(server) as client:
            sizes = {f"key{n}": n * 1000 + 600 for n in range(50)}
            for key, size in sizes.items():
                client.set(key, value_of(key, size))
            settle(control, len(sizes))
            begun = control.number("get_extstore")
            for key, size in sizes.items():
                assert client.get(key) == value_of(key, size)
                assert client.gets(key)[0] == value_of(key, size)
            found = client.get_many(list(sizes))
            assert found == {key: value_of(key, size) for key, size in sizes.items()}
            assert control.number("get_extstore") == begun + 3 * len(sizes)
            # In memory again, a value is read directly.
            client.set("key1", b"new")
            assert client.get("key1") == b"new"


# ---- many commands at once, as without flash -------------------------------------------------------------------------


SIZES = {f"key{n}": (SHORT if n % 2 else LONG) + n for n in range(8)}
BINARY = base64.b64encode(b"\0binary\xffkey")


def text_script() -> bytes:
    """Commands whose replies are the same whether the values are on flash or in memory."""
    words: list[bytes] = []
    for n in range(24):
        key = b"key%d" % (n % len(SIZES))
        words += [
            b"get %s\r\n" % key,
            b"set new%d 0 0 3\r\nabc\r\n" % n,
            b"gets %s missing new%d %s key0\r\n" % (key, n, key),
            b"mg %s v k q O%d s f\r\n" % (key, n),
            b"mg missing v q\r\nmg missing v k O1\r\n",
            b"mg %s b v k\r\nmg %s b k s h\r\n" % (BINARY, BINARY),
            b"gat 1000 %s\r\n" % key,
            b"touch %s 2000\r\n" % key,
            b"mg %s t T500\r\n" % key,
            b"add %s 0 0 1\r\nx\r\n" % key,
            b"cas %s 0 0 1 999999\r\nx\r\n" % key,
            b"mg new%d v c\r\n" % n,
            b"ms %s 2 C999999\r\nab\r\n" % key,
            b"md %s C999999 q\r\n" % key,
            b"incr missing 1\r\ndecr missing 1\r\nma missing\r\nappend missing 0 0 1\r\nx\r\n",
            b"bogus\r\n",
            b"mn\r\n",
        ]
    return b"".join(words)


def prepare(control: Conversation, flash: bool) -> None:
    put(control, SIZES, flash)
    before = control.number("extstore_objects_written") if flash else 0
    assert control.ask(b"ms %s 5000 b\r\n%s\r\n" % (BINARY, value_of("b", 5000))) == b"HD\r\n"
    if flash:
        settle(control, before + 1)


@pytest.fixture
def expected(rmemcached_server: ServerFactory) -> bytes:
    """The replies of a daemon whose values are in memory."""
    plain = rmemcached_server("-m", "256", "-t", "1")
    with Conversation(plain) as talk:
        prepare(talk, False)
        talk.send(text_script() + b"quit\r\n")
        return talk.file.read()


def test_text_commands_are_as_in_memory(server: Server, control: Conversation, expected: bytes) -> None:
    prepare(control, True)
    with Conversation(server) as talk:
        with held(server):
            talk.send(text_script() + b"quit\r\n")
            asked(control, 1)
        assert talk.file.read() == expected
    assert control.number("miss_from_extstore") == 0


def test_commands_over_tls_are_as_in_memory(
    rmemcached_server: ServerFactory, file: Path, tmp_path: Path, expected: bytes
) -> None:
    authority = Authority(tmp_path / "tls")
    server = rmemcached_server(*SETTINGS, options(file, ext_threads=1), *tls_options(authority.sign("server")))
    context = client_context(authority.trusted)
    with TlsConversation(server, context) as control, TlsConversation(server, context) as talk:
        prepare(control, True)
        with held(server):
            talk.send(text_script() + b"quit\r\n")
            asked(control, 1)
        assert talk.read(len(expected)) == expected
        assert talk.ended()


@pytest.mark.usefixtures("rdma_transport")
def test_commands_of_a_lane_are_as_in_memory(server: Server, control: Conversation, expected: bytes) -> None:
    prepare(control, True)
    script = text_script()
    with Lanes(server) as peer:
        peer.open(3)
        for at in range(0, len(script), 4000):
            peer.put(3, script[at : at + 4000])
        assert peer.read(3, lambda r: len(r) >= len(expected)) == expected


def binary_script() -> bytes:
    packets: list[bytes] = []
    for n in range(24):
        key = b"key%d" % (n % len(SIZES))
        packets += [
            packet(GET, key, opaque=n),
            packet(SET, b"new%d" % n, b"abc", bytes(8)),
            packet(GETQ, key, opaque=n),
            packet(GETQ, b"missing", opaque=n),
            packet(GETK, key, opaque=n),
            packet(SETQ, b"quiet%d" % n, b"abc", bytes(8)),
            packet(GAT, key, b"", b"\0\0\3\xe8"),
            packet(GATK, key, b"", b"\0\0\3\xe8"),
            packet(TOUCH, key, b"", b"\0\0\3\xe8"),
            packet(GETK, b"missing", opaque=n),
            packet(NOOP),
        ]
    return b"".join(packets)


def binary_replies(server: Server, flash: bool) -> list[tuple[int, int, bytes]]:
    with Binary(server) as control, Binary(server) as talk:
        for one in (control, talk):
            assert one.ask(GOOD)[0] == OK
        for key, size in SIZES.items():
            assert control.ask(packet(SET, key.encode(), value_of(key, size), b"\0\0\0\5\0\0\0\0"))[0] == OK
        if flash:
            eventually(lambda: int(control.stats()["extstore_objects_written"]) >= len(SIZES))
        script = binary_script()
        if not flash:
            talk.send(script)
        else:
            with held(server):
                talk.send(script)
                eventually(lambda: int(control.stats()["get_extstore"]) >= 1)
        replies: list[tuple[int, int, bytes]] = []
        while sum(opcode == NOOP for opcode, _, _ in replies) < 24:
            replies.append(talk.reply())
        return replies


def test_binary_commands_with_sasl_are_as_in_memory(
    rmemcached_server: ServerFactory, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder(tmp_path, monkeypatch).users_in_sasldb()
    plain = rmemcached_server("-m", "256", "-t", "1", "-S")
    server = rmemcached_server("-S", *SETTINGS, options(file, ext_threads=1))
    assert binary_replies(server, True) == binary_replies(plain, False)


def test_commands_that_need_no_value(server: Server, control: Conversation) -> None:
    """me, metadump and cachedump know the sizes of the values; a number or an addition needs the value in memory."""
    put(control, {"long": LONG, "short": SHORT})
    with held(server):
        for key, size in (("long", LONG), ("short", SHORT)):
            line = control.ask(b"me %s\r\n" % key.encode())
            assert line.startswith(b"ME %s exp=-1 la=" % key.encode())
            found = dict(word.split(b"=") for word in line.split()[2:])
            assert int(found[b"size"]) > size
            assert control.ask(b"incr %s 1\r\n" % key.encode()).startswith(b"CLIENT_ERROR cannot increment")
            assert control.ask(b"ma %s\r\n" % key.encode()).startswith(b"CLIENT_ERROR cannot increment")
            assert control.ask(b"append %s 0 0 1\r\nx\r\n" % key.encode()) == b"NOT_STORED\r\n"
            assert control.ask(b"ms %s 1 MA\r\nx\r\n" % key.encode()) == b"NS\r\n"
            assert control.ask(b"mg %s s t f\r\n" % key.encode()) == b"HD s%d t-1 f5\r\n" % size
            clsid = int(found[b"cls"])
            control.send(b"stats cachedump %d 0\r\n" % clsid)
            while (line := control.line()) != b"END\r\n":
                assert line.startswith(b"ITEM ")
            cas = control.ask(b"mg %s c\r\n" % key.encode())[4:-2]
            assert control.ask(b"cas %s 0 0 1 %s\r\nx\r\n" % (key.encode(), cas)) == b"STORED\r\n"
            assert control.ask(b"mg %s s\r\n" % key.encode()) == b"HD s1\r\n"
    assert control.number("extstore_objects_used") == 0

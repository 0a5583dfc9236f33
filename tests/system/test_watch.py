"""watch: the log lines of each command over each transport; slow, dead and too many watchers."""

from __future__ import annotations

import re
import signal
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from daemon_tools import TIMEOUT, Conversation, Peer, alone, descriptors, eventually, rdma_client
from servers import Server

ServerFactory = Callable[..., Server]

LINE = re.compile(r"ts=(\d+)\.(\d{1,6}) gid=(\d+) (type=\S+(?: [a-z_]+=\S*)*)\n")
WORDS = ("fetchers", "mutations", "evictions", "connevents", "deletions", "sysevents")
SILENT_WORDS = ("rawcmds", "proxyreqs", "proxyevents", "proxyuser")


class Watcher(Conversation):
    """A watching connection."""

    def __init__(self, server: Server, *words: str, receive_buffer: int | None = None) -> None:
        super().__init__(server)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        assert self.ask(" ".join(("watch", *words)).encode() + b"\r\n") == b"OK\r\n"
        self.gid = 0

    def __enter__(self) -> Watcher:
        return self

    def event(self) -> str:
        """The next line, from its type on. The gid has risen."""
        text = self.line().decode()
        found = LINE.fullmatch(text)
        assert found is not None, text
        assert int(found[3]) > self.gid
        self.gid = int(found[3])
        return found[4]

    def events(self, count: int) -> list[str]:
        return [self.event() for _ in range(count)]


def anonymous(event: str) -> str:
    """The line without its descriptor."""
    return re.sub(r" cfd=\d+", "", event)


def log_watchers(server: Server, count: int) -> None:
    with Conversation(server) as control:
        eventually(lambda: control.number("log_watchers") == count, what=f"{count} watchers")


def descriptors_at_rest(server: Server) -> int:
    """The number of descriptors of a daemon with one connection and no watcher."""
    with Conversation(server) as control:
        eventually(lambda: control.number("log_watchers") == 0, what="no watcher")
        eventually(lambda: control.number("curr_connections") == 1, what="one connection")
        return descriptors(server.pid)


# ---- log lines -------------------------------------------------------------------------------------------------------

FETCH = "type=item_get key={} status={} clsid={} size={}"
STORE = "type=item_store key={} status={} cmd={} ttl={} clsid={} size={}"
SAID = [
    (b"get none\r\n", [FETCH.format("none", "not_found", 0, 0)]),
    (b"set a 0 0 3\r\nabc\r\n", [FETCH.format("a", "not_found", 0, 0), STORE.format("a", "stored", "set", 0, 1, 3)]),
    (
        b"get a none a\r\n",
        [
            FETCH.format("a", "found", 1, 3),
            FETCH.format("none", "not_found", 0, 0),
            FETCH.format("a", "found", 1, 3),
        ],
    ),
    (b"add a 0 0 1\r\nx\r\n", [FETCH.format("a", "found", 1, 3), STORE.format("a", "not_stored", "add", 0, 1, 1)]),
    (
        b"append a 0 0 2\r\nde\r\n",
        [FETCH.format("a", "found", 1, 3), STORE.format("a", "stored", "append", 0, 1, 5)],
    ),
    (
        b"cas a 0 9 1 1234567\r\nx\r\n",
        [FETCH.format("a", "found", 1, 5), STORE.format("a", "exists", "cas", 9, 1, 1)],
    ),
    (b"cas b 0 0 1 5\r\nx\r\n", [FETCH.format("b", "not_found", 0, 0), STORE.format("b", "not_found", "cas", 0, 1, 1)]),
    (b"gat 100 a\r\n", [FETCH.format("a", "found", 1, 5)]),
    (b"touch a 50\r\n", [FETCH.format("a", "found", 1, 5)]),
    (b"set n 0 0 1\r\n7\r\n", [FETCH.format("n", "not_found", 0, 0), STORE.format("n", "stored", "set", 0, 1, 1)]),
    (b"incr n 1\r\n", [FETCH.format("n", "found", 1, 1)]),
    (b"mg a v\r\n", [FETCH.format("a", "found", 1, 5)]),
    (b"mg viv N30\r\n", [FETCH.format("viv", "not_found", 0, 0)]),
    (
        b"ms m 2 T30\r\nab\r\n",
        [FETCH.format("m", "not_found", 0, 0), STORE.format("m", "stored", "set", 30, 1, 2)],
    ),
    (
        b"ma num N0 J5\r\n",
        [
            FETCH.format("num", "not_found", 0, 0),
            FETCH.format("num", "not_found", 0, 0),
            STORE.format("num", "stored", "add", 0, 1, 1),
        ],
    ),
    (b"me a\r\n", [FETCH.format("a", "found", 1, 5)]),
    (b"delete n\r\n", [FETCH.format("n", "found", 1, 1), "type=deleted key=n cmd=delete clsid=1 size=1"]),
    (b"delete n\r\n", [FETCH.format("n", "not_found", 0, 0)]),
    (b"md m I\r\n", [FETCH.format("m", "found", 1, 2)]),
    (b"md m\r\n", [FETCH.format("m", "found", 1, 2), "type=deleted key=m cmd=md clsid=1 size=2"]),
    (
        b"set big 0 0 5000000\r\n" + bytes(5_000_000) + b"\r\n",
        [STORE.format("big", "too_large", "set", 0, 0, 0), FETCH.format("big", "not_found", 0, 0)],
    ),
    (
        b"set a%b#\xff/ 0 0 1\r\nx\r\n",
        [
            FETCH.format("a%25b%23%FF%2F", "not_found", 0, 0),
            STORE.format("a%25b%23%FF%2F", "stored", "set", 0, 1, 1),
        ],
    ),
    (
        b"set dies 0 -1 1\r\nx\r\nget dies\r\n",
        [
            FETCH.format("dies", "not_found", 0, 0),
            "type=item_store key=dies status=stored cmd=set ttl=[0-9]+ clsid=1 size=1",
            # The maintainer may have removed the item meanwhile.
            FETCH.format("dies", "(expired|not_found)", 0, 0),
        ],
    ),
    (b"flush_all\r\nget a\r\n", [FETCH.format("a", "(not_found|flushed)", 0, 0)]),
]


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_lines_of_commands(rmemcached_server: ServerFactory, tmp_path: object, transport: str) -> None:
    """The lines are 1.6.45's, except for its garbage in class and descriptor of an item above the size limit."""
    server = rmemcached_server("-t", "1", path=f"{tmp_path}/sock" if transport == "unix" else None)
    with Watcher(server, "fetchers", "mutations", "deletions") as watcher, Conversation(server) as client:
        cfd = None
        for request, expected in SAID:
            client.send(request)
            for pattern in expected:
                event = watcher.event()
                assert re.fullmatch(pattern, anonymous(event)), (request, event)
                found = re.search(r"cfd=(\d+)", event)
                if not event.startswith("type=deleted"):
                    assert found is not None
                    cfd = cfd or found[1]
                    assert found[1] == cfd


def test_commands_over_rdma_are_logged(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Watcher(server, "fetchers", "mutations", "deletions") as watcher, rdma_client(server) as client:
        client.set("r", b"x" * 100_000)
        stored = [FETCH.format("r", "not_found", 0, 0), STORE.format("r", "stored", "set", 0, "[0-9]+", 100_000)]
        assert all(map(re.fullmatch, stored, map(anonymous, watcher.events(2))))
        assert client.get("r") == b"x" * 100_000
        assert re.fullmatch(FETCH.format("r", "found", "[0-9]+", 100_000), anonymous(watcher.event()))
        client.delete("r")
        assert watcher.events(2)[1].startswith("type=deleted key=r cmd=")


def test_a_stream_that_its_queue_pair_takes_ends_well(rmemcached_server: ServerFactory) -> None:
    """The log has a normal end, and no error, for a connection that a queue pair takes as its stream."""
    server = rmemcached_server()
    with Conversation(server) as control:
        alone(control)
        with Watcher(server, "connevents") as watcher, rdma_client(server) as client:
            assert client.set("key", b"value")
            with Conversation(server) as last:
                port = last.sock.getsockname()[1]
                last.send(b"quit\r\n")
                events = [watcher.event()]
                while not events[-1].startswith("type=conn_close") or f" rport={port} " not in events[-1]:
                    events.append(watcher.event())
            kinds = [(event.split()[0], event.split()[-2]) for event in events]
            assert kinds.count(("type=conn_close", "reason=normal")) == 2, events
            assert all(kind != "type=conn_close" or why == "reason=normal" for kind, why in kinds), events


def test_binary_commands_are_logged(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    extras = struct.pack(">II", 0, 40)
    body = extras + b"key" + b"value"
    header = struct.pack(">BBHBBHIIQ", 0x80, 1, 3, len(extras), 0, 0, len(body), 0, 0)
    with Conversation(server) as client, Watcher(server, "fetchers", "mutations", "connevents") as watcher:
        client.send(header + body)
        assert client.read(24)[:2] == b"\x81\x01"
        events = iter(watcher.event, "")
        event = next(event for event in events if not event.startswith("type=conn_"))
        assert anonymous(event) == FETCH.format("key", "not_found", 0, 0)
        assert anonymous(watcher.event()) == STORE.format("key", "stored", "set", 40, 1, 5)
        client.send(struct.pack(">BBHBBHIIQ", 0x80, 7, 0, 0, 0, 0, 0, 0, 0))
        port = client.sock.getsockname()[1]
        event = next(event for event in events if f" rport={port} " in event)
        assert event.startswith("type=conn_close ") and "reason=normal" in event


def test_longest_key(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Watcher(server) as watcher, Conversation(server) as client:
        assert client.ask(b"get " + b"#" * 250 + b"\r\n") == b"END\r\n"
        assert anonymous(watcher.event()) == FETCH.format("%23" * 250, "not_found", 0, 0)


def test_evictions(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "2", "-I", "512k", "-o", "no_lru_maintainer,slab_chunk_max=512")
    with Watcher(server, "evictions") as watcher, Conversation(server) as client:
        for number in range(100):
            assert client.ask(b"set k%d 0 1000 90000\r\n%s\r\n" % (number, bytes(90_000))) == b"STORED\r\n"
        assert client.number("evictions") > 10
        event = watcher.event()
        assert re.fullmatch(
            r"type=eviction key=k\d+ fetch=no ttl=(1000|999|99[0-9]) la=\d clsid=\d+ size=90000", event
        ), event


def test_connections(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Conversation(server) as control:
        # The connection that awaited the daemon's start has ended.
        alone(control)
    with Watcher(server, "connevents") as watcher:

        def new() -> tuple[Conversation, str]:
            client = Conversation(server)
            port = client.sock.getsockname()[1]
            event = next(event for event in iter(watcher.event, "") if f" rport={port} " in event)
            found = re.fullmatch(rf"type=conn_new rip=127\.0\.0\.1 rport={port} transport=tcp cfd=(\d+)", event)
            assert found, event
            return client, f"rip=127.0.0.1 rport={port} transport=tcp reason={{}} cfd={found[1]}"

        def closed(text: str, reason: str) -> None:
            port = text.split("rport=")[1].split()[0]
            event = next(event for event in iter(watcher.event, "") if f" rport={port} " in event)
            assert event == "type=conn_close " + text.format(reason)

        client, text = new()
        client.send(b"quit\r\n")
        closed(text, "normal")
        client.close()
        client, text = new()
        client.close()
        closed(text, "normal")
        client, text = new()
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        closed(text, "error")
        client.close()
        client, text = new()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        closed(text, "error")


def test_connections_of_a_unix_socket(rmemcached_server: ServerFactory, tmp_path: object) -> None:
    server = rmemcached_server(path=f"{tmp_path}/sock")
    with Watcher(server, "connevents") as watcher, Conversation(server):
        events = iter(watcher.event, "")
        event = next(event for event in events if event.startswith("type=conn_new "))
        assert re.fullmatch(r"type=conn_new rip=unix rport=0 transport=local cfd=\d+", event)


# ---- the command watch -----------------------------------------------------------------------------------------------


def test_words(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-c", "100")
    with Conversation(server) as client:
        for words in ("nonsense", "fetchers nonsense", "fetcherss", "noreply", "Fetchers"):
            assert client.ask(f"watch {words}\r\n".encode()) == b"ERROR\r\n"
        assert client.ask(b"version\r\nwatch\r\n").startswith(b"VERSION")
        assert client.line() == b"ERROR cannot pipeline other commands before watch\r\n"
        assert client.ask(b"mn\r\n") == b"MN\r\n"
    for words in (*WORDS, *SILENT_WORDS, "f", "mut", " ".join(WORDS + SILENT_WORDS)):
        Watcher(server, *words.split()).close()
    with Watcher(server) as everything, Watcher(server, "mutations") as mutations, Conversation(server) as client:
        assert client.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        assert everything.event().startswith("type=item_get ")
        assert mutations.event().startswith("type=item_store ")


def test_not_allowed(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-W")) as client:
        assert client.ask(b"watch\r\n") == b"CLIENT_ERROR watch commands not allowed\r\n"
        assert client.ask(b"watch nonsense\r\n") == b"CLIENT_ERROR watch commands not allowed\r\n"


def test_not_on_a_queue_pair(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Peer(server) as peer:
        for command in (b"watch", b"lru_crawler metadump all", b"lru_crawler mgdump all"):
            assert peer.ask(command + b"\r\n").startswith(b"CLIENT_ERROR ")
        assert peer.ask(b"mn\r\n") == b"MN\r\n"


def test_twenty_watchers_at_most(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    before = descriptors_at_rest(server)
    watchers = [Watcher(server) for _ in range(20)]
    refused = [Conversation(server) for _ in range(80)]
    for client in refused:
        assert client.ask(b"watch\r\n") == b"WATCHER_TOO_MANY log watcher limit reached\r\n"
    # The refused connections are ordinary connections still, and all watchers see their commands.
    for number, client in enumerate(refused):
        assert client.ask(b"get k%d\r\n" % number) == b"END\r\n"
    for watcher in watchers:
        keys = [watcher.event().split()[1] for _ in refused]
        assert sorted(keys) == sorted(f"key=k{number}" for number in range(80))
    watchers.pop().close()
    log_watchers(server, 19)
    assert refused[0].ask(b"watch\r\n") == b"OK\r\n"
    for one in (*watchers, *refused):
        one.close()
    eventually(lambda: descriptors_at_rest(server) <= before)


# ---- slow, dead and many watchers ------------------------------------------------------------------------------------


def test_what_a_watcher_says_is_ignored(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Watcher(server) as watcher, Conversation(server) as client:
        watcher.send(b"get a\r\nquit\r\n" + b"x" * 100_000 + b"\n")
        assert client.ask(b"get b\r\n") == b"END\r\n"
        assert watcher.event().startswith("type=item_get key=b ")
        watcher.sock.shutdown(socket.SHUT_WR)
        assert watcher.line() == b""
        log_watchers(server, 0)


def test_input_behind_watch_is_ignored(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server()
    with Conversation(server) as watcher, Conversation(server) as client:
        watcher.send(b"watch\r\nget a\r\nversion\r\n")
        assert watcher.line() == b"OK\r\n"
        assert client.ask(b"get b\r\n") == b"END\r\n"
        assert b" key=b " in watcher.line()


def test_slow_watcher(rmemcached_server: ServerFactory, tmp_path: object) -> None:
    """A slow watcher loses lines, which are counted: sent and skipped lines together are all lines. No client waits."""
    options = "watcher_logbuf_size=8,worker_logbuf_size=16384"
    server = rmemcached_server("-t", "1", "-o", options, path=f"{tmp_path}/sock")
    with Watcher(server) as watcher, Conversation(server) as client:
        key = b"k" * 200
        total = 0
        while client.number("log_watcher_skipped") == 0:
            for _ in range(100):
                client.send((b"get " + key + b"\r\n") * 100)
                for _ in range(100):
                    assert client.line() == b"END\r\n"
            total += 10_000
            assert total < 1_000_000
        stats = client.stats()
        assert stats["log_worker_dropped"] == "0"
        assert stats["log_worker_written"] == str(total)
        seen = skipped = 0
        while seen + skipped < total:
            line = watcher.line()
            if line.startswith(b"skipped="):
                skipped += int(line[8:])
            else:
                assert LINE.fullmatch(line.decode()), line
                seen += 1
        assert (seen + skipped, skipped > 0) == (total, True)
        stats = client.stats()
        assert (int(stats["log_watcher_sent"]), int(stats["log_watcher_skipped"])) == (seen, skipped)
        assert client.ask(b"get after\r\n") == b"END\r\n"
        assert watcher.event().startswith("type=item_get key=after ")


def test_ring_that_is_too_small_drops(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-o", "worker_logbuf_size=0")
    with Watcher(server), Conversation(server) as client:
        assert client.ask(b"get a\r\n") == b"END\r\n"
        stats = client.stats()
        assert (stats["log_worker_dropped"], stats["log_worker_written"]) == ("1", "0")
        client.stats("reset")
        assert client.number("log_worker_dropped") == 0


def test_many_threads_in_order(rmemcached_server: ServerFactory) -> None:
    """Watchers get whole lines of all workers, none twice, while watchers come, are killed and go."""
    server = rmemcached_server("-t", "4", "-o", "worker_logbuf_size=16384,watcher_logbuf_size=65536")
    before = descriptors_at_rest(server)
    count = 3000
    clients = 8
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def come_and_go() -> None:
        while not stop.is_set():
            watcher = Watcher(server, "mutations", "fetchers")
            watcher.line()
            watcher.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            watcher.close()

    def load(name: int) -> None:
        with Conversation(server) as client:
            for number in range(0, count, 100):
                client.send(b"".join(b"get c%d-%d\r\n" % (name, number + i) for i in range(100)))
                for _ in range(100):
                    assert client.line() == b"END\r\n"

    with Watcher(server) as watcher:
        restless = guarded(come_and_go)
        threads = [guarded(lambda name=name: load(name)) for name in range(clients)]  # type: ignore[misc]
        seen: dict[str, list[int]] = {}
        gids = set()
        for _ in range(count * clients):
            text = watcher.line().decode()
            found = LINE.fullmatch(text)
            assert found, text
            gids.add(found[3])
            name, number = found[4].split()[1][len("key=c") :].split("-")
            seen.setdefault(name, []).append(int(number))
        for thread in threads:
            thread.join(TIMEOUT)
        stop.set()
        # Watchers that still wait get a last line.
        with Conversation(server) as client:
            while restless.is_alive():
                assert client.ask(b"get end\r\n") == b"END\r\n"
                restless.join(0.001)
    assert not failures
    assert len(gids) == count * clients
    assert all(numbers == list(range(count)) for numbers in seen.values())
    eventually(lambda: descriptors_at_rest(server) <= before)


def test_stop_with_watchers_under_load(rmemcached_server: ServerFactory) -> None:
    """SIGTERM is obeyed at once, however full the watchers' buffers are."""
    server = rmemcached_server("-o", "watcher_logbuf_size=8")
    watchers = [Watcher(server, *WORDS, receive_buffer=4096) for _ in range(20)]
    with Conversation(server) as client:
        for _ in range(100):
            client.send(b"get kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\r\n" * 100)
            for _ in range(100):
                assert client.line() == b"END\r\n"
        client.send(b"get a\r\n" * 1000)
        server.ended_by_us = True
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT) == 0
    for watcher in watchers:
        watcher.close()


def test_background_work(rmemcached_server: ServerFactory) -> None:
    """The watcher gets the result of an automatic crawl when the maintainer has judged the crawl."""
    server = rmemcached_server("-o", "debug_commands")
    with Watcher(server, "sysevents") as watcher, Conversation(server) as client:
        assert client.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        assert client.ask(b"debugtime 100\r\n") == b"OK\r\n"
        assert re.fullmatch(
            r"type=lru_crawler crawler=\d+ lru=(hot|warm|cold|temp) low_mark=\d+ next_reclaims=\d+ since_run=\d+ "
            r"next_run=\d+ elapsed=\d+ examined=\d+ reclaimed=\d+",
            watcher.event(),
        )

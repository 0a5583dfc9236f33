"""Commands for operators."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_tools import Conversation, eventually, room_for
from sasl_tools import DENIED, Binary, plain
from servers import Server

ServerFactory = Callable[..., Server]
ITEMS = 32 << 20  # bytes: a larger part of the daemon's memory has items


def memory(pid: int) -> bytes:
    """The contents of a process's own memory: heap, stacks and variables."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as process:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if line.split()[1] == "rw-p" and end - start < ITEMS:
                process.seek(start)
                found.append(process.read(end - start))
    return b"".join(found)


class TestDebugCommands:
    @pytest.fixture
    def control(self, rmemcached_server: ServerFactory) -> Iterator[Conversation]:
        with Conversation(rmemcached_server("-t", "1", "-o", "relaxed_privileges,debug_commands")) as conversation:
            yield conversation

    def test_no_such_command_without_the_switch(self, shared_rmemcached: Server) -> None:
        with Conversation(shared_rmemcached) as plain:
            assert plain.ask(b"debugtime 1\r\n") == b"ERROR\r\n"
            assert plain.ask(b"debugitem ref a\r\n") == b"ERROR\r\n"

    @pytest.mark.parametrize("line", [b"debugtime", b"debugtime x", b"debugtime 1x", b"debugtime -", b"debugtime pp"])
    def test_debugtime_refuses(self, control: Conversation, line: bytes) -> None:
        assert control.ask(line + b"\r\n") == b"ERROR\r\n"

    def test_the_clock_stops_moves_and_goes_on(self, control: Conversation) -> None:
        assert control.ask(b"debugtime p\r\n") == b"OK\r\n"
        start = control.number("uptime")
        assert control.ask(b"set a 0 100 1\r\nx\r\n") == b"STORED\r\n"
        assert control.ask(b"debugtime 99\r\n") == b"OK\r\n"
        assert control.ask(b"mg a t\r\n") == b"HD t1\r\n"
        assert control.number("uptime") == start + 99
        assert control.ask(b"debugtime -9\r\n") == b"OK\r\n"
        assert control.ask(b"mg a t\r\n") == b"HD t10\r\n"
        assert control.ask(b"debugtime 10\r\n") == b"OK\r\n"
        assert control.ask(b"mg a t\r\n") == b"EN\r\n"
        assert control.ask(b"debugtime r\r\n") == b"OK\r\n"
        assert control.number("uptime") >= start + 100

    def test_debugitem_takes_and_gives_back_references(self, control: Conversation) -> None:
        assert control.ask(b"debugitem ref a\r\n") == b"MISS\r\n"
        assert control.ask(b"debugitem unref a\r\n") == b"MISS\r\n"
        assert control.ask(b"debugitem drop a\r\n") == b"ERROR\r\n"
        assert control.ask(b"debugitem ref\r\n") == b"ERROR\r\n"
        control.ask(b"set a 0 0 1\r\nx\r\n")
        assert control.ask(b"debugitem ref a\r\n") == b"OK\r\n"
        used = control.number("1:used_chunks", "slabs")
        control.ask(b"set a 0 0 1\r\ny\r\n")
        # The replaced item stays while somebody holds a reference to the item.
        assert control.number("1:used_chunks", "slabs") == used + 1
        assert control.ask(b"debugitem unref reffed\r\n") == b"OK\r\n"
        assert control.ask(b"debugitem unref reffed\r\n") == b"OK\r\n"
        assert control.number("1:used_chunks", "slabs") == used

    def test_debugitem_locks_an_item(self, control: Conversation) -> None:
        assert control.ask(b"debugitem lock a\r\n") == b"OK\r\n"
        assert control.ask(b"debugitem unlock a\r\n") == b"OK\r\n"
        assert control.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        assert control.ask(b"debugitem ref a\r\n") == b"OK\r\n"
        assert control.ask(b"debugitem unref a\r\n") == b"OK\r\n"
        assert control.ask(b"delete a\r\n") == b"DELETED\r\n"
        assert control.stats("slabs")["1:used_chunks"] == "0"


class TestAuthentication:
    @pytest.fixture
    def authfile(self, tmp_path: Path) -> Path:
        file = tmp_path / "users"
        file.write_text("ann:secret\nbob:pass word")
        return file

    def test_nothing_is_done_before_it(self, rmemcached_server: ServerFactory, authfile: Path) -> None:
        server = rmemcached_server("-Y", str(authfile))
        with Conversation(server) as talk:
            for line in (b"get a\r\n", b"version\r\n", b"rdma version=2\r\n", b"set a 0 0 99999\r\n"):
                assert talk.ask(line).startswith(b"CLIENT_ERROR "), line
            assert talk.ask(b"set a 0 0 8\r\nann wron\r\n") == b"CLIENT_ERROR authentication failure\r\n"
            assert talk.ask(b"set a 0 0 3\r\nann\r\n") == b"CLIENT_ERROR bad authentication token format\r\n"
            assert talk.ask(b"set a 0 0 10\r\nann secret\r\n") == b"STORED\r\n"
            assert talk.ask(b"mg a\r\n") == b"EN\r\n"
            found = talk.stats()
            assert (found["auth_cmds"], found["auth_errors"]) == ("2", "1")
        with Conversation(server) as talk:
            assert talk.ask(b"set a 0 0 13\r\nbob pass word\r\n") == b"STORED\r\n"
        with Conversation(server) as talk:
            talk.send(b"x\r\n")
            assert talk.ended()

    def test_sighup_reads_the_file_again(self, rmemcached_server: ServerFactory, authfile: Path) -> None:
        server = rmemcached_server("-Y", str(authfile))

        def accepted(token: bytes) -> bool:
            with Conversation(server) as talk:
                return talk.ask(b"set a 0 0 %d\r\n%s\r\n" % (len(token), token)) == b"STORED\r\n"

        assert accepted(b"ann secret")
        authfile.write_text("no colon")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "malformed entry" in server.stderr())
        assert accepted(b"ann secret")
        authfile.write_text("eve:new\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: accepted(b"eve new"))
        assert not accepted(b"ann secret")

    @pytest.mark.parametrize("sasl", [False, True])
    def test_a_password_is_not_kept(
        self, rmemcached_server: ServerFactory, authfile: Path, monkeypatch: pytest.MonkeyPatch, sasl: bool
    ) -> None:
        """Behind the answer the daemon's memory has no copy of a client's password."""
        secret = secrets.token_hex(16)
        if sasl:
            monkeypatch.setenv("MEMCACHED_SASL_PWDB", str(authfile))
            server = rmemcached_server("-S", "-t", "1")
            with Binary(server) as talk:
                assert talk.ask(plain("ann", secret))[0] == DENIED
                assert secret.encode() not in memory(server.pid)
        else:
            server = rmemcached_server("-Y", str(authfile), "-t", "1")
            with Conversation(server) as talk:
                line = b"set a 0 0 36\r\nann %s\r\n" % secret.encode()
                assert talk.ask(line) == b"CLIENT_ERROR authentication failure\r\n"
                assert secret.encode() not in memory(server.pid)


@pytest.mark.parametrize("line", [b"shutdown\r\n", b"shutdown graceful\r\n"])
def test_shutdown(rmemcached_server: ServerFactory, line: bytes) -> None:
    server = rmemcached_server("-A")
    with Conversation(server) as talk:
        assert talk.ask(b"shutdown now\r\n") == b"CLIENT_ERROR invalid shutdown mode\r\n"
        server.ended_by_us = True
        talk.send(line)
        assert talk.ended()
        assert server.process.wait(10) == 0


def test_full_listener_lets_clients_wait(rmemcached_server: ServerFactory) -> None:
    # With no_maxconns_fast the descriptor that memcached keeps for a refusal serves a connection.
    server = rmemcached_server("-c", room_for(1), "-o", "no_maxconns_fast")
    with Conversation(server) as first:
        second = Conversation(server)
        assert second.ask(b"mn\r\n") == b"MN\r\n"
        assert first.stats()["accepting_conns"] == "1"
        waiting = Conversation(server)
        waiting.send(b"mn\r\n")
        eventually(lambda: first.number("accepting_conns") == 0)
        second.close()
        assert waiting.line() == b"MN\r\n"
        assert first.number("listen_disabled_num") > 0
        waiting.close()


def test_s3fifo(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-m", "2", "-o", "lru_algorithm=s3fifo")) as talk:
        settings = talk.stats("settings")
        assert (settings["lru_algorithm"], settings["lru_segmented"]) == ("s3fifo", "no")
        assert talk.ask(b"lru mode segmented\r\n") == b"ERROR lru_algorithm is s3fifo, which has no modes\r\n"
        assert talk.ask(b"lru tune 20 40 0.2 2.0\r\n") == b"OK\r\n"
        assert talk.ask(b"lru temp_ttl 60\r\n") == b"OK\r\n"
        assert talk.ask(b"set wanted 0 0 3\r\nabc\r\n") == b"STORED\r\n"
        assert talk.ask(b"stats cachedump 1 1\r\n") == b"ITEM wanted [3 b; 0 s]\r\n"
        assert talk.line() == b"END\r\n"
        assert talk.ask(b"mg wanted\r\n") == b"HD\r\n"
        for i in range(5000):
            talk.send(b"set %d 0 0 900 noreply\r\n" % i + b"x" * 900 + b"\r\n")
        assert talk.ask(b"mg wanted h t v\r\n") == b"VA 3 h1 t-1\r\n"
        assert talk.line() == b"abc\r\n"
        stats = talk.stats()
        assert int(stats["evictions"]) > 1000
        assert int(stats["ghost_bytes"]) > 0
        assert stats["ghost_hits"] == "0"
        assert 0.49 < float(stats["small_lru_pct"]) <= 70
    with Conversation(rmemcached_server("-o", "lru_algorithm=segmented")) as talk:
        assert "lru_algorithm" not in talk.stats("settings")
        assert "ghost_bytes" not in talk.stats()


def test_cachedump(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server("-o", "no_lru_maintainer")) as talk:
        talk.ask(b"set key 0 0 3\r\nabc\r\n")
        assert talk.ask(b"stats cachedump 1 10\r\n") == b"ITEM key [3 b; 0 s]\r\n"
        assert talk.line() == b"END\r\n"
        assert talk.ask(b"stats cachedump 64 1\r\n") == b"CLIENT_ERROR Illegal slab id\r\n"
    with Conversation(rmemcached_server("-X")) as talk:
        assert talk.ask(b"stats cachedump 1 1\r\n") == b"CLIENT_ERROR stats cachedump not allowed\r\n"
        assert talk.ask(b"stats detail on\r\n") == b"CLIENT_ERROR stats detail not allowed\r\n"


# The lines of memcached 1.6.45 in `stats settings`, from inline_ascii_response to num_napi_ids, with the features off.
FEATURES_OFF = """
ext_item_size 512
ext_item_age 4294967295
ext_low_ttl 0
ext_recache_rate 2000
ext_wbuf_size 4194304
ext_compact_under 0
ext_drop_under 0
ext_max_sleep 1000000
ext_max_frag 0.80
slab_automove_freeratio 0.010
ext_drop_unread no
ssl_enabled no
ssl_chain_cert (null)
ssl_key (null)
ssl_verify_mode 0
ssl_keyformat 1
ssl_ciphers NULL
ssl_ca_cert NULL
ssl_wbuf_size 16384
ssl_session_cache no
ssl_kernel_tls no
ssl_min_version tlsv1.2
proxy_enabled no
proxy_uring_enabled no
"""
# Words behind extstore with memcached 1.6.45's answer, and the changed setting.
EXTSTORE = [
    ("", "ERROR", ""),
    ("x 1", "ERROR", ""),
    ("item_age", "ERROR", ""),
    ("item_age 5", "OK", "ext_item_age 5"),
    ("item_age 4294967295", "OK", "ext_item_age 4294967295"),
    ("item_age 4294967296", "ERROR", ""),
    ("item_age -1", "ERROR", ""),
    ("item_age 5x", "ERROR", ""),
    ("item_age 6 7 8", "OK", "ext_item_age 6"),
    ("i 77", "OK", "ext_item_size 77"),
    ("item_a 79", "OK", "ext_item_age 79"),
    ("item_sizes 1", "ERROR", ""),
    ("low_ttl 3", "OK", "ext_low_ttl 3"),
    ("recache_rate 7", "OK", "ext_recache_rate 7"),
    ("compact_under 9", "OK", "ext_compact_under 9"),
    ("drop_under 8", "OK", "ext_drop_under 8"),
    ("d 11", "OK", "ext_drop_under 11"),
    ("drop_unread 2", "OK", "ext_drop_unread yes"),
    ("drop_unread x", "ERROR", ""),
    ("drop_unread 0", "OK", "ext_drop_unread no"),
    ("max_sleep 12", "OK", "ext_max_sleep 12"),
    ("m 5", "OK", "ext_max_sleep 5"),
    ("max_frag 0.5", "OK", "ext_max_frag 0.50"),
    ("max_f 1e3", "OK", "ext_max_frag 1000.00"),
    ("max_frag 0.5x", "ERROR", ""),
    ("max_frag 1e99999", "ERROR", ""),
    ("max_frag 0.123456789012345678901234567890123", "ERROR", ""),
    ("wbuf_size 5", "ERROR", ""),
    ("free_memchunks 1", "ERROR", ""),
    ("free_memchunks 63 2", "OK", ""),
    ("free_memchunks 64 2", "ERROR", ""),
    ("free_memchunks 1 x", "ERROR", ""),
    ("f 1 2", "OK", ""),
]


class TestFeaturesThatAreOff:
    """memcached's answers about storage on flash, TLS and the proxy, while the features are off."""

    def test_settings(self, rmemcached_server: ServerFactory) -> None:
        with Conversation(rmemcached_server()) as talk:
            lines = [f"{name} {value}" for name, value in talk.stats("settings").items()]
        start = lines.index("inline_ascii_response no") + 1
        assert lines[start : lines.index("num_napi_ids 0")] == FEATURES_OFF.split("\n")[1:-1]

    def test_freeratio(self, rmemcached_server: ServerFactory) -> None:
        with Conversation(rmemcached_server("-o", "slab_automove_freeratio=0.02")) as talk:
            assert talk.stats("settings")["slab_automove_freeratio"] == "0.020"
            assert talk.ask(b"slabs automove freeratio 0.3\r\n") == b"OK\r\n"
            assert talk.stats("settings")["slab_automove_freeratio"] == "0.300"

    def test_extstore(self, rmemcached_server: ServerFactory) -> None:
        with Conversation(rmemcached_server()) as talk:
            expected = talk.stats("settings")
            for words, answer, changed in EXTSTORE:
                assert talk.ask(f"extstore {words}".rstrip().encode() + b"\r\n") == answer.encode() + b"\r\n", words
                if changed:
                    name, value = changed.split()
                    assert expected[name] != value
                    expected[name] = value
                assert talk.stats("settings") == expected, words

    def test_extstore_with_noreply(self, rmemcached_server: ServerFactory) -> None:
        with Conversation(rmemcached_server()) as talk:
            for line in (b"extstore item_size 9 noreply", b"extstore noreply", b"extstore free_memchunks 1 noreply"):
                assert talk.ask(line + b"\r\nmn\r\n") == b"MN\r\n"
            assert talk.stats("settings")["ext_item_size"] == "9"

    def test_settings_are_the_same_for_every_worker(self, rmemcached_server: ServerFactory) -> None:
        server = rmemcached_server("-t", "4")
        talks = [Conversation(server) for _ in range(4)]
        for number, talk in enumerate(talks):
            assert talk.ask(b"extstore max_frag 0.%d\r\n" % (number + 1)) == b"OK\r\n"
            assert {other.stats("settings")["ext_max_frag"] for other in talks} == {f"0.{number + 1}0"}
        for talk in talks:
            talk.close()

    @pytest.mark.parametrize("line", [b"refresh_certs", b"refresh_certs noreply", b"refresh_certs a b"])
    def test_refresh_certs(self, shared_rmemcached: Server, line: bytes) -> None:
        with Conversation(shared_rmemcached) as talk:
            assert talk.ask(line + b"\r\n") == b"Error TLS not enabled\r\n"

    @pytest.mark.parametrize("sub", ["extstore", "e", "extstore a b", "proxy", "p", "proxyf", "proxyfuncs", "proxybe"])
    def test_statistics(self, shared_rmemcached: Server, sub: str) -> None:
        with Conversation(shared_rmemcached) as talk:
            assert talk.ask(b"stats %s\r\n" % sub.encode()) == b"END\r\n"

    @pytest.mark.parametrize("sub", ["extstorex", "proxyx", "proxyfuncss", "x"])
    def test_unknown_statistics(self, shared_rmemcached: Server, sub: str) -> None:
        with Conversation(shared_rmemcached) as talk:
            assert talk.ask(b"stats %s\r\n" % sub.encode()) == b"ERROR\r\n"

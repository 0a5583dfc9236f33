"""Commands for whoever runs the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from daemon_tools import Conversation
from servers import Server

ServerFactory = Callable[..., Server]


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
        # The replaced item stays for as long as the reference.
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

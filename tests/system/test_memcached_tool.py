"""memcached-tool, a part of Debian's memcached, works with our daemon as with memcached."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_tools import Conversation
from servers import Server

TOOL = Path("/usr/share/memcached/scripts/memcached-tool")

ServerFactory = Callable[..., Server]


def tool(server: Server, *words: str) -> list[str]:
    """The lines of the tool's output. On stderr only the title of a dump is allowed."""
    done = subprocess.run(["perl", str(TOOL), server.place, *words], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if not line.startswith("Dumping")], done.stderr
    return done.stdout.replace(server.place, "ADDRESS").splitlines()


@pytest.fixture
def both(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> list[Server]:
    """Starts our daemon and memcached, with the same items."""
    found = []
    for start in (rmemcached_server, memcached_server):
        server = start("-m", "64", "-o", "track_sizes,no_lru_maintainer")
        with Conversation(server) as talk:
            for request in (b"one 5 0 3\r\nabc", b"two%20 0 0 0\r\n", b"large 0 0 5000\r\n" + b"z" * 5000):
                assert talk.ask(b"set " + request + b"\r\n") == b"STORED\r\n"
        found.append(server)
    return found


def test_display(both: list[Server]) -> None:
    ours, theirs = (tool(server) for server in both)
    assert len(ours) == 3
    # The column Max_age differs with the second.
    assert [line[:13] + line[24:] for line in ours] == [line[:13] + line[24:] for line in theirs]


def test_sizes(both: list[Server]) -> None:
    ours, theirs = (tool(server, "sizes") for server in both)
    assert len(ours) > 1
    assert ours == theirs


@pytest.mark.parametrize("mode", ["dump", "keys"])
def test_dump(both: list[Server], mode: str) -> None:
    ours, theirs = (tool(server, mode) for server in both)
    if mode == "dump":
        assert sorted(ours) == sorted(theirs)
        assert "add one 5 0 3" in ours
    else:
        keys = [sorted(line.split()[0] for line in lines) for lines in (ours, theirs)]
        assert keys[0] == keys[1] == ["key=large", "key=one", "key=two%2520"]


@pytest.mark.parametrize("mode", ["stats", "settings"])
def test_names(both: list[Server], mode: str) -> None:
    """The tool prints sorted names; ours are of a later memcached."""
    ours, theirs = ([line.split()[0] for line in tool(server, mode)] for server in both)
    assert len(ours) > 50
    assert set(theirs) - set(ours) <= {"slab_reassign_evictions_nomem"}
    assert "curr_items" in ours if mode == "stats" else "maxbytes" in ours

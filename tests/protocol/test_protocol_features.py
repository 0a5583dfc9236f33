"""What each command does, request by request: a step is bytes to send, or seconds for the clock to advance."""

from __future__ import annotations

import re

import pytest
from request_tables import octets, pattern, rows

from rmemcached.protocol._testing import Machine, Server

Step = bytes | int


def steps_of(text: str) -> list[Step]:
    return [int(step) if step.isdigit() else octets(step) for step in text.split(" // ")]


def features(elsewhere: str) -> dict[str, tuple[list[Step], str]]:
    """{name: (steps, pattern of the replies)} of features.tsv, without the lines that need `elsewhere`: "daemon" or
    "machine"."""
    table = rows("features.tsv")
    return {name: (steps_of(steps), pattern(reply)) for where, name, steps, reply in table if where != elsewhere}


FEATURES = features("daemon")


def run(machine: Machine, steps: list[Step]) -> str:
    reply = b""
    for step in steps:
        if isinstance(step, int):
            machine.server.advance(step)
        else:
            reply += machine.feed(step)
    return reply.decode("latin-1") + ("~CLOSED~" if machine.closed else "")


@pytest.mark.parametrize("name", FEATURES)
def test_feature(name: str) -> None:
    steps, expected = FEATURES[name]
    server = Server()
    reply = run(Machine(server), steps)
    assert re.search(expected, reply, re.DOTALL), reply[:500]
    server.check()


def test_absolute_exptime() -> None:
    server = Server()
    machine = Machine(server)
    assert machine.feed(b"set ae 0 %d 1\r\nx\r\nmg ae t\r\n" % (server.now + 10)) == b"STORED\r\nHD t10\r\n"
    server.advance(11)
    assert machine.feed(b"get ae\r\nset ae 0 %d 1\r\nx\r\nget ae\r\n" % (server.now - 1)) == b"END\r\nSTORED\r\nEND\r\n"


def test_without_cas() -> None:
    machine = Machine(Server(use_cas=False))
    assert (
        machine.feed(b"set c 0 0 1\r\nx\r\ngets c\r\nmg c c\r\n") == b"STORED\r\nVALUE c 0 1 0\r\nx\r\nEND\r\nHD c0\r\n"
    )


def test_flush_all_refused() -> None:
    machine = Machine(Server(flush_enabled=False))
    assert machine.feed(b"flush_all\r\n") == b"CLIENT_ERROR flush_all not allowed\r\n"


def test_no_memory_left() -> None:
    server = Server(maxbytes=2 << 20, evict_to_free=False)
    machine = Machine(server)
    request = b"set k%d 0 0 100000\r\n" + b"v" * 100000 + b"\r\n"
    replies = [machine.feed(request % i) for i in range(60)]
    assert replies[0] == b"STORED\r\n"
    assert replies[-1] == b"SERVER_ERROR out of memory storing object\r\n"
    assert server.stats()["store_no_memory"] == replies.count(replies[-1])
    server.check()


def test_verbosity_reaches_the_server() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(b"verbosity 1\r\n")
    assert server.verbosity == 1
    machine.feed(b"verbosity 4000000000 noreply\r\n")
    assert server.verbosity == 2


def test_exchange_line() -> None:
    machine = Machine(Server(exchange=True))
    assert machine.feed(b"rdma version=2 x=noreply\r\n") == b"RDMA got rdma version=2 x=noreply\r\n"


def test_counters() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(
        b"set a 0 0 1\r\n1\r\nget a b\r\ngets a\r\ngat 0 a b\r\ntouch a 0\r\ntouch b 0\r\nincr a 1\r\n"
        b"incr b 1\r\ndecr a 1\r\ndecr b 1\r\ncas a 0 0 1 99\r\nx\r\ncas b 0 0 1 1\r\nx\r\n"
        b"ms c 1 E5\r\nx\r\nms c 1 C5\r\ny\r\nmg c v\r\nmg d v\r\n"
        b"mg c T0\r\nma a\r\nma b\r\nmd d\r\nmd c\r\ndelete b\r\ndelete a\r\nme a\r\nflush_all\r\n"
        b"set z 0 0 2000000 noreply\r\n" + b"x" * 2000002
    )
    expected = {
        "get_cmds": 5, "get_hits": 3, "get_misses": 2, "touch_cmds": 5, "touch_hits": 3, "touch_misses": 2,
        "incr_hits": 2, "incr_misses": 2, "decr_hits": 1, "decr_misses": 1,
        "cas_badval": 1, "cas_misses": 1, "cas_hits": 1,
        "set_cmds": 5, "delete_hits": 2, "delete_misses": 2, "meta_cmds": 1, "flush_cmds": 1, "store_too_large": 1,
        "response_obj_count": 0,
    }  # fmt: skip
    counted = server.stats()
    assert {name: counted[name] for name in expected} == expected

"""The machine's demands, and the limits on its memory for input and output."""

from __future__ import annotations

import random

import pytest

from rmemcached.protocol._testing import CONN_SIZE, MAX_BYTES, MAX_LINE, MAX_RESPS, RESP_SIZE, Machine, Server


def test_an_idle_connection_is_small() -> None:
    assert CONN_SIZE < 500
    assert RESP_SIZE < 700


def test_wants_input_first_and_again() -> None:
    machine = Machine(Server())
    assert [machine.next_want() for _ in range(3)] == ["input"] * 3
    assert machine.feed(b"get a") == b""
    assert machine.next_want() == "input"
    assert machine.unparsed == 5
    assert machine.feed(b"\r\n") == b"END\r\n"
    assert machine.unparsed == 0


def test_payload_in_the_input_and_behind_it() -> None:
    machine = Machine(Server())
    machine.direct = True
    assert machine.feed(b"set a 0 0 10\r\n01234") == b""
    assert (machine.next_want(), machine.missing, machine.unparsed) == ("payload", 7, 0)
    assert machine.feed(b"567") == b""
    assert machine.next_want() == "payload"
    assert machine.feed(b"89\r\nget a\r\n") == b"STORED\r\nVALUE a 0 10\r\n0123456789\r\nEND\r\n"


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("chunk", [1000, 65536])
def test_chained_payload(direct: bool, chunk: int) -> None:
    server = Server(maxbytes=128 << 20, item_size_max=8 << 20)
    machine = Machine(server)
    machine.direct = direct
    value = random.Random(7).randbytes(5_000_000)
    assert machine.feed(b"set a 3 0 %d\r\n%s\r\n" % (len(value), value), chunk=chunk) == b"STORED\r\n"
    for most in (1 << 30, 100_000):
        machine.max_bytes = machine.max_sent = most
        assert machine.feed(b"get a\r\n") == b"VALUE a 3 %d\r\n%s\r\nEND\r\n" % (len(value), value)
    server.check()


def test_requests_per_event() -> None:
    server = Server(reqs_per_event=3)
    machine = Machine(server)
    machine.feed(b"mn\r\n" * 10)
    assert machine.wants == ["input", "yield", "yield", "yield", "input"]
    machine.feed(b"mn\r\n" * 3)
    assert machine.wants[5:] == ["input", "input"]


def test_replies_are_bounded() -> None:
    server = Server(reqs_per_event=1_000_000)
    machine = Machine(server)
    machine.feed(b"set a 0 0 1000\r\n" + b"v" * 1000 + b"\r\n")
    requests = 5 * MAX_RESPS
    reply = machine.feed(b"get a\r\n" * requests)
    assert reply == (b"VALUE a 0 1000\r\n" + b"v" * 1000 + b"\r\nEND\r\n") * requests
    assert machine.most_pending <= MAX_RESPS
    assert machine.wants.count("flush") >= 4
    server.check()


def test_nothing_more_is_done_until_replies_have_left() -> None:
    server = Server(reqs_per_event=1_000_000)
    machine = Machine(server)
    machine.feed(b"set a 0 0 1000\r\n" + b"v" * 1000 + b"\r\n")
    machine.feed(b"get a\r\n" * (2 * MAX_RESPS), send=False)
    before = machine.unparsed
    assert [machine.next_want() for _ in range(3)] == ["flush"] * 3
    assert machine.unparsed == before
    machine.close()
    server.check()


def test_referenced_bytes_are_bounded() -> None:
    server = Server(item_size_max=1 << 20, reqs_per_event=1_000_000)
    machine = Machine(server)
    machine.feed(b"set a 0 0 900000\r\n" + b"v" * 900000 + b"\r\n")
    machine.feed(b"get a\r\n" * 100, send=False)
    replies, held = machine.pending
    assert replies < 10
    assert held < MAX_BYTES + 1_000_000
    machine.close()
    server.check()


def test_statistics_are_bounded() -> None:
    machine = Machine(Server(reqs_per_event=1_000_000))
    machine.feed(b"stats long\r\n" * 1000, send=False)
    assert machine.pending[1] < MAX_BYTES + 300_000
    machine.close()


@pytest.mark.parametrize("size", [10, 1000])
def test_a_long_multiget_is_answered_in_parts(size: int) -> None:
    server = Server()
    machine = Machine(server)
    for i in range(10):
        machine.feed(b"set k%d %d 0 %d\r\n%s\r\n" % (i, i, size, b"%d" % i * size))
    block = [b"VALUE k%d %d %d\r\n%s\r\n" % (i, i, size, b"%d" % i * size) for i in range(10)]
    keys = [random.Random(1).randrange(12) for _ in range(5000)]
    line = b"get " + b" ".join(b"k%d" % i for i in keys) + b"\r\n"
    expected = b"".join(block[i] for i in keys if i < 10) + b"END\r\nMN\r\n"
    for chunk in (100, 1000, 5000, 65536):
        assert machine.feed(line + b"mn\r\n", chunk=chunk) == expected
        assert machine.most_pending <= MAX_RESPS
    server.check()


def test_a_long_get_gives_way() -> None:
    """A get gives way behind each fifty keys, which count as a command, also in a line that comes in parts."""
    machine = Machine(Server(reqs_per_event=2))
    assert machine.feed(b"get" + b" k" * 300 + b"\r\n") == b"END\r\n"
    assert machine.wants == ["input", "yield", "yield", "input"]
    assert machine.feed(b"get" + b" k" * 2000) == b""
    assert machine.wants[4:].count("yield") == 19
    assert machine.feed(b" k\r\nmn\r\n") == b"END\r\nMN\r\n"


@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 32, 33, 49, 50, 51, 66, 101])
def test_keys_are_looked_up_in_their_order(keys: int) -> None:
    """Replies come in the order of the keys, with spaces, misses and repetitions. The numbers of keys are near
    multiples of 16, the keys prefetched together, and of 50, the keys counted as a command."""
    choice = random.Random(keys)
    server = Server(slab_chunk_size_max=16384)
    machine = Machine(server)
    sizes = [0, 1, 100, 255, 256, 257, 1000, 20_000]  # the last value is chained
    blocks = {}
    for i, size in enumerate(sizes):
        name, value = b"%d" % i * choice.choice([1, 30, 250]), choice.randbytes(size)
        machine.feed(b"set %b 0 0 %d\r\n%b\r\n" % (name, size, value))
        blocks[name] = b"VALUE %b 0 %d\r\n%b\r\n" % (name, size, value)
    names = [choice.choice([*blocks, b"missing"]) for _ in range(keys)]
    line = (
        b"get" + b"".join(choice.choice([b" ", b"  "]) + name for name in names) + choice.choice([b"", b" "]) + b"\r\n"
    )
    expected = b"".join(blocks.get(name, b"") for name in names) + b"END\r\n"
    assert machine.feed(line) == expected
    for offset in range(0, len(line), 1 if keys < 20 else 37):
        assert machine.feed(line[:offset]) + machine.feed(line[offset:]) == expected, offset
    server.check()


@pytest.mark.parametrize("place", [0, 1, 14, 15, 16, 17, 48, 49])
def test_a_key_that_is_too_long_among_many(place: int) -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(b"set a 0 0 1\r\nx\r\n")
    names = [b"a"] * 50
    names[place] = b"k" * 251
    assert machine.feed(b"get " + b" ".join(names) + b"\r\nmn\r\n") == (
        b"CLIENT_ERROR bad command line format\r\n\r\nMN\r\n"
    )
    server.check()


def test_a_multiget_without_end_needs_no_memory() -> None:
    machine = Machine(Server())
    machine.feed(b"set a 0 0 1\r\nx\r\n")
    assert machine.feed(b"gets ") == b""
    got = 0
    for _ in range(300):
        got += machine.feed(b"a nothere " * 100).count(b"VALUE a 0 1 ")
        assert machine.unparsed <= MAX_LINE
    got += machine.feed(b"a\r\n").count(b"VALUE a 0 1 ")
    assert got == 300 * 100 + 1


def test_a_long_multiget_with_a_bad_key() -> None:
    machine = Machine(Server())
    machine.feed(b"set a 0 0 1\r\nx\r\n")
    reply = machine.feed(b"get " + b"a " * 2000)
    reply += machine.feed(b"k" * 300)
    reply += machine.feed(b"k" * 5000 + b" a a")
    reply += machine.feed(b"\r\nmn\r\n")
    assert reply == b"VALUE a 0 1\r\nx\r\n" * 2000 + b"CLIENT_ERROR bad command line format\r\n\r\nMN\r\n"


def test_small_replies_share_their_memory() -> None:
    machine = Machine(Server(reqs_per_event=1_000_000))
    machine.feed(b"set a 0 0 10\r\n0123456789\r\n")
    machine.feed(b"get a\r\nmn\r\nmg a v\r\n" * 100, send=False)
    assert machine.pending[0] < 25
    assert machine.feed() == (b"VALUE a 0 10\r\n0123456789\r\nEND\r\nMN\r\nVA 10\r\n0123456789\r\n") * 100


def test_replies_are_reused() -> None:
    server = Server()
    machine = Machine(server)
    for _ in range(1000):
        machine.feed(b"mn\r\n")
    assert server.free_resps == 1


def test_close_leaves_replies_before_it() -> None:
    machine = Machine(Server())
    assert machine.feed(b"mn\r\nget a\r\nquit\r\nmn\r\n") == b"MN\r\nEND\r\n"
    assert machine.closed
    assert machine.wants[-1] == "close"


def test_connections_share_the_store() -> None:
    server = Server()
    one, two = Machine(server), Machine(server)
    assert one.feed(b"set a 0 0 3\r\nab") == b""
    assert two.feed(b"get a\r\nset a 0 0 1\r\nz\r\nget a\r\n") == b"END\r\nSTORED\r\nVALUE a 0 1\r\nz\r\nEND\r\n"
    assert one.feed(b"c\r\n") == b"STORED\r\n"
    assert two.feed(b"get a\r\n") == b"VALUE a 0 3\r\nabc\r\nEND\r\n"
    server.check()


def test_a_waiting_value_stays_whole() -> None:
    server = Server()
    one, two = Machine(server), Machine(server)
    one.feed(b"set a 0 0 1000\r\n" + b"v" * 1000 + b"\r\n")
    one.feed(b"get a\r\n", send=False)
    two.feed(b"set a 0 0 1000\r\n" + b"w" * 1000 + b"\r\nappend a 0 0 1\r\nx\r\ndelete a\r\nflush_all\r\n")
    assert one.feed() == b"VALUE a 0 1000\r\n" + b"v" * 1000 + b"\r\nEND\r\n"
    server.check()


def test_arithmetic_beside_a_waiting_value() -> None:
    server = Server()
    one, two = Machine(server), Machine(server)
    number = b"%0300d" % 7
    one.feed(b"set n 0 0 300\r\n" + number + b"\r\n")
    one.feed(b"get n\r\n", send=False)
    assert two.feed(b"incr n 1\r\nget n\r\n") == b"8\r\nVALUE n 0 1\r\n8\r\nEND\r\n"
    assert one.feed() == b"VALUE n 0 300\r\n" + number + b"\r\nEND\r\n"
    server.check()


def test_references_do_not_overflow() -> None:
    server = Server(maxbytes=64 << 20, reqs_per_event=1_000_000, direct=True)
    Machine(server).feed(b"set a 0 0 300\r\n" + b"v" * 300 + b"\r\n")
    readers = [Machine(server) for _ in range(60_000 // MAX_RESPS + 2)]
    for reader in readers:
        reader.feed(b"get " + b"a " * (MAX_RESPS - 1) + b"\r\n", send=False)
    assert Machine(server).feed(b"get a\r\nmg a v\r\nmg a v t\r\n") == (
        b"END\r\n" + b"SERVER_ERROR refcount overflow during fetch\r\n" * 2
    )
    assert b"too many references" in Machine(server).feed(b"rdma_view a\r\n")
    for reader in readers:
        reader.feed()
    assert readers[0].feed(b"get a\r\n") == b"VALUE a 0 300\r\n" + b"v" * 300 + b"\r\nEND\r\n"
    assert readers[0].feed(b"rdma_view a\r\n") == b"SERVER_ERROR this engine keeps nothing\r\n"
    server.check()

"""The binary protocol: every command, every error, however the bytes come in."""

from __future__ import annotations

import random
import socket
import struct

import pytest
from binary_packets import (
    ADD,
    ADDQ,
    APPEND,
    CONVERSATION,
    DECREMENT,
    DELETE,
    DELETEQ,
    EXISTS,
    FLUSH,
    FLUSHQ,
    GAT,
    GATK,
    GET,
    GETK,
    GETQ,
    INCREMENT,
    INCREMENTQ,
    INVALID,
    NO_MEMORY,
    NOOP,
    NOT_FOUND,
    OK,
    PREPEND,
    QUIT,
    QUITQ,
    REPLACE,
    SASL_AUTH,
    SASL_LIST_MECHS,
    SET,
    SETQ,
    STAT,
    TOO_LARGE,
    TOUCH,
    UNKNOWN,
    VERSION,
    Packet,
    count,
    error,
    flags,
    normal,
    number,
    packets,
    request,
    store,
    touch,
)
from transport import some

from rmemcached.protocol._testing import Machine, Server

REQUESTS = b"".join(sent for sent, _ in CONVERSATION)
REPLIES = [packet for _, expected in CONVERSATION for packet in expected]


def ask(machine: Machine, data: bytes) -> list[Packet]:
    return packets(machine.feed(data))


# ---- the conversation ------------------------------------------------------------------------------------------------


def test_conversation() -> None:
    server = Server()
    machine = Machine(server)
    for sent, expected in CONVERSATION:
        assert normal(ask(machine, sent)) == expected, sent
    assert machine.closed
    server.check()


@pytest.mark.parametrize("direct", [False, True])
def test_split_in_two_at_every_offset(direct: bool) -> None:
    whole = Machine(Server()).feed(REQUESTS)
    for offset in some(range(len(REQUESTS))):
        server = Server()
        machine = Machine(server)
        machine.direct = direct
        assert machine.feed(REQUESTS[:offset]) + machine.feed(REQUESTS[offset:]) == whole, offset
        assert machine.closed
        server.check()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 23, 24, 25, 1000])
def test_in_pieces(step: int, direct: bool) -> None:
    server = Server()
    machine = Machine(server)
    machine.direct = direct
    assert normal(packets(machine.feed(REQUESTS, chunk=step))) == REPLIES
    server.check()


@pytest.mark.parametrize("max_iov", [1, 2, 1000])
@pytest.mark.parametrize("max_sent", [1, 5, 100000])
def test_output_in_pieces(max_iov: int, max_sent: int) -> None:
    server = Server(reqs_per_event=3)
    machine = Machine(server)
    machine.max_iov = max_iov
    machine.max_sent = max_sent
    machine.max_bytes = max(3, max_sent)
    assert normal(packets(machine.feed(REQUESTS))) == REPLIES
    assert server.stats()["conn_yields"] == machine.wants.count("yield") > 0
    server.check()


def converse(peer: socket.socket, data: bytes) -> list[Packet]:
    """A daemon's answers to data, up to the answer to a NOOP behind them."""
    mark = request(NOOP, opaque=0x0FF0)
    end = b"\x81" + mark[1:]
    peer.sendall(data + mark)
    reply = b""
    while not reply.endswith(end):
        part = peer.recv(65536)
        assert part, reply
        reply += part
    return packets(reply.removesuffix(end))


def test_as_memcached_answers(memcached_server) -> None:
    """Random single commands get the same packets from the installed memcached, CAS values apart."""
    daemon = memcached_server("-m", "64")
    server = Server()
    machine = Machine(server)
    rng = random.Random(20)
    keys = [b"k%d" % i for i in range(5)] + [b"n%d" % i for i in range(3)] + [b"K" * 250]
    with socket.create_connection(("127.0.0.1", daemon.port)) as peer:
        for _ in range(3000):
            key = rng.choice(keys)
            opaque = rng.getrandbits(32)
            cas = rng.choice([0, 0, 0, 2**63])
            size = rng.choice([0, 1, 100, 256, 257, 3000])
            value = b"%d" % rng.getrandbits(rng.choice([1, 30, 64])) if key[:1] == b"n" else rng.randbytes(size)
            exptime = rng.choice([0, 100, 2592000, 4000000000])
            sent = rng.choice([
                store(rng.choice([SET, SET, ADD, REPLACE, SETQ, ADDQ]), key, value, rng.getrandbits(32), exptime,
                      opaque=opaque, cas=cas),
                request(rng.choice([GET, GETK, GETQ]), key, opaque=opaque),
                count(rng.choice([INCREMENT, DECREMENT, INCREMENTQ]), key, rng.choice([1, 2**63]), rng.getrandbits(64),
                      rng.choice([0xFFFFFFFF, 0, 50]), opaque=opaque, cas=cas),
                request(rng.choice([DELETE, DELETEQ]), key, opaque=opaque, cas=cas),
                request(rng.choice([APPEND, PREPEND]), key, b"", b"%d" % rng.randrange(10), opaque=opaque, cas=cas),
                touch(rng.choice([TOUCH, GAT, GATK]), key, exptime, opaque=opaque),
                request(rng.choice([NOOP, SASL_LIST_MECHS, 0x40]), opaque=opaque),
            ])  # fmt: skip
            assert normal(ask(machine, sent)) == normal(converse(peer, sent)), sent[:24].hex()
    server.check()


# ---- single commands and settings ------------------------------------------------------------------------------------


def test_version() -> None:
    assert ask(Machine(Server()), request(VERSION)) == [Packet(VERSION, value=b"1.6.45")]


def test_cas() -> None:
    machine = Machine(Server())
    (stored,) = ask(machine, store(SET, b"a", b"1"))
    assert stored.cas
    (found,) = ask(machine, request(GET, b"a"))
    assert found.cas == stored.cas
    (changed,) = ask(machine, store(SET, b"a", b"2", cas=stored.cas))
    assert (changed.status, changed.cas > stored.cas) == (OK, True)
    assert ask(machine, store(SET, b"a", b"3", cas=stored.cas)) == [error(SET, EXISTS)]
    (counted,) = ask(machine, count(INCREMENT, b"a", 1, cas=changed.cas))
    assert (counted.value, counted.cas > changed.cas) == (number(3), True)
    (appended,) = ask(machine, request(APPEND, b"a", value=b"0", cas=counted.cas))
    assert ask(machine, request(DELETE, b"a", cas=counted.cas)) == [error(DELETE, EXISTS)]
    assert ask(machine, request(DELETE, b"a", cas=appended.cas)) == [Packet(DELETE)]
    assert ask(machine, store(SET, b"a", b"3", cas=5)) == [error(SET, NOT_FOUND)]


def test_without_cas() -> None:
    machine = Machine(Server(use_cas=False))
    assert ask(machine, store(SET, b"a", b"1", cas=5) + request(GET, b"a") + count(INCREMENT, b"a", 1)) == [
        Packet(SET), Packet(GET, OK, b"", flags(0), b"1"), Packet(INCREMENT, value=number(2)),
    ]  # fmt: skip
    assert ask(machine, request(DELETE, b"a", cas=5)) == [error(DELETE, EXISTS)]


def test_expiry() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(store(SET, b"a", b"x", exptime=10) + store(SET, b"b", b"x", exptime=10) + touch(TOUCH, b"b", 100))
    machine.feed(count(INCREMENT, b"n", 1, 7, 10) + store(SET, b"past", b"x", exptime=2592001))
    assert ask(machine, request(GET, b"past")) == [error(GET, NOT_FOUND)]
    server.advance(11)
    assert [packet.status for packet in ask(machine, b"".join(request(GET, key) for key in (b"a", b"b", b"n")))] == [
        NOT_FOUND, OK, NOT_FOUND,
    ]  # fmt: skip
    machine.feed(touch(GAT, b"b", 5))
    server.advance(6)
    assert ask(machine, request(GET, b"b")) == [error(GET, NOT_FOUND)]


def test_flush() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(store(SET, b"a", b"x"))
    server.advance(2)
    assert ask(machine, request(FLUSH, extras=flags(10)) + request(GETK, b"a"))[1].value == b"x"
    server.advance(11)
    assert ask(machine, request(GET, b"a")) == [error(GET, NOT_FOUND)]
    machine.feed(store(SET, b"a", b"x"))
    server.advance(2)
    assert ask(machine, request(FLUSHQ) + request(GET, b"a")) == [error(GET, NOT_FOUND)]
    refusing = Machine(Server(flush_enabled=False))
    assert ask(refusing, request(FLUSH) + request(FLUSHQ)) == [
        Packet(FLUSH, 0x20, value=b"Auth failure."), Packet(FLUSHQ, 0x20, value=b"Auth failure."),
    ]  # fmt: skip


@pytest.mark.parametrize("direct", [False, True])
def test_large_values(direct: bool) -> None:
    server = Server(maxbytes=128 << 20, item_size_max=8 << 20)
    machine = Machine(server)
    machine.direct = direct
    rng = random.Random(3)
    for size in (524_000, 524_287, 524_288, 1_048_576, 5_000_000, 5_000_001):
        value = rng.randbytes(size)
        assert normal(packets(machine.feed(store(SET, b"a", value, 3), chunk=100_000))) == [Packet(SET)]
        assert normal(ask(machine, request(GET, b"a"))) == [Packet(GET, OK, b"", flags(3), value)]
        machine.feed(request(APPEND, b"a", value=b"tail") + request(PREPEND, b"a", value=b"head"))
        assert ask(machine, request(GETK, b"a"))[0].value == b"head" + value + b"tail"
        assert machine.feed(request(QUITQ)) == b""
        machine = Machine(server)
        machine.direct = direct
        # Over the text protocol the item has the same value. A line end follows the appended data.
        assert machine.feed(b"get a\r\n") == b"VALUE a 3 %d\r\nhead%stail\r\nEND\r\n" % (size + 8, value)
        machine.close()
        machine = Machine(server)
        machine.direct = direct
    server.check()


def test_too_large() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(store(SET, b"a", b"x"))
    value = b"v" * 2_000_000
    assert ask(machine, store(SET, b"a", value) + request(GET, b"a") + request(NOOP)) == [
        error(SET, TOO_LARGE), error(GET, NOT_FOUND), Packet(NOOP),
    ]  # fmt: skip
    machine.feed(store(SET, b"a", b"x"))
    sent = store(ADDQ, b"a", value) + request(APPEND, b"a", value=value) + request(GETK, b"a")
    assert [(packet.opcode, packet.status) for packet in ask(machine, sent)] == [
        (ADDQ, TOO_LARGE), (APPEND, TOO_LARGE), (GETK, OK),
    ]  # fmt: skip
    server.check()


def test_out_of_memory() -> None:
    server = Server(maxbytes=2 << 20, evict_to_free=False)
    machine = Machine(server)
    value = b"v" * 100_000
    replies = []
    for i in range(60):
        replies += ask(machine, store(SET, b"%d" % i, value))
    assert replies[0].status == OK
    assert replies[-1] == Packet(SET, NO_MEMORY, value=b"Out of memory allocating item")
    assert normal(ask(machine, request(NOOP))) == [Packet(NOOP)]
    # A set without memory drops the old value: no later get returns an outdated value.
    assert ask(machine, store(SET, b"0", value) + request(GET, b"0"))[1] == error(GET, NOT_FOUND)
    server.check()


def test_stats() -> None:
    machine = Machine(Server())
    assert ask(machine, request(STAT, opaque=6)) == [
        Packet(STAT, OK, b"pid", value=b"4711", opaque=6), Packet(STAT, OK, b"version", value=b"1.6.45", opaque=6),
        Packet(STAT, opaque=6),
    ]  # fmt: skip
    assert ask(machine, request(STAT, b"items") + request(STAT, b"reset")) == [Packet(STAT), Packet(STAT)]
    for key in (b"nothing", b"conns", b"dump 1 2", b"itemsx"):
        assert ask(machine, request(STAT, key)) == [error(STAT, NOT_FOUND)], key
    assert normal(ask(machine, request(NOOP))) == [Packet(NOOP)]


def test_statistics_are_counted() -> None:
    server = Server()
    machine = Machine(server)
    (stored,) = ask(machine, store(SET, b"a", b"1"))
    machine.feed(
        store(SETQ, b"a", b"1", cas=stored.cas) + store(SET, b"a", b"1", cas=999) + store(SET, b"b", b"1", cas=3)
        + request(APPEND, b"a", value=b"2") + request(GET, b"a") + request(GETQ, b"b") + request(GETK, b"b")
        + touch(TOUCH, b"a", 0) + touch(GAT, b"a", 0) + touch(GATK, b"b", 0)
        + count(INCREMENT, b"a", 1) + count(DECREMENT, b"a", 1) + count(DECREMENT, b"a", 1) + count(INCREMENT, b"b", 1)
        + count(DECREMENT, b"b", 1) + request(DELETE, b"b") + request(DELETE, b"a", cas=3) + request(DELETE, b"a")
        + store(SET, b"big", b"v" * 2_000_000) + request(FLUSH) + request(FLUSHQ) + request(QUIT)
    )  # fmt: skip
    expected = {
        "get_cmds": 3, "get_misses": 2, "get_hits": 1, "touch_cmds": 3, "touch_misses": 1, "touch_hits": 2,
        "set_cmds": 5, "cas_hits": 1, "cas_badval": 1, "cas_misses": 1, "incr_hits": 1, "decr_hits": 2,
        "incr_misses": 1, "decr_misses": 1, "delete_hits": 1, "delete_misses": 1, "flush_cmds": 2,
        "store_too_large": 0, "meta_cmds": 0, "response_obj_count": 0,
    }  # fmt: skip
    counted = server.stats()
    assert {name: counted[name] for name in expected} == expected


# ---- errors ----------------------------------------------------------------------------------------------------------

BAD_LENGTHS = {
    "get-extras": request(GET, b"a", b"\0" * 4),
    "get-value": request(GET, b"a", b"", b"v"),
    "get-no-key": request(GET),
    "getq-no-key": request(GETQ),
    "set-no-extras": request(SET, b"a", b"", b"v"),
    "set-short-extras": request(SET, b"a", b"\0" * 7, b"v"),
    "set-long-extras": request(SET, b"a", b"\0" * 9, b"v"),
    "set-no-key": request(SET, b"", b"\0" * 8, b"v"),
    "setq-no-key": request(SETQ, b"", b"\0" * 8, b"v"),
    "append-extras": request(APPEND, b"a", b"\0" * 8, b"v"),
    "append-no-key": request(APPEND, b"", b"", b"v"),
    "delete-extras": request(DELETE, b"a", b"\0" * 4),
    "delete-value": request(DELETE, b"a", b"", b"v"),
    "delete-no-key": request(DELETE),
    "incr-short-extras": request(INCREMENT, b"a", b"\0" * 19),
    "incr-value": request(INCREMENT, b"a", b"\0" * 20, b"v"),
    "incr-no-key": request(INCREMENT, b"", b"\0" * 20),
    "touch-no-extras": request(TOUCH, b"a"),
    "touch-no-key": request(TOUCH, b"", b"\0" * 4),
    "noop-key": request(NOOP, b"a"),
    "version-value": request(VERSION, b"", b"", b"v"),
    "stat-extras": request(STAT, b"items", b"\0"),
    "flush-key": request(FLUSH, b"a"),
    "flush-short-extras": request(FLUSH, b"", b"\0" * 3),
    "flush-value": request(FLUSH, b"", b"\0" * 4, b"v"),
    "quit-value": request(QUIT, b"", b"", b"v"),
    "sasl-list-key": request(SASL_LIST_MECHS, b"a"),
    "sasl-auth-no-key": request(SASL_AUTH),
    "key-251": request(GET, b"k" * 251),
    "key-65535": request(GET, b"k" * 65535),
    "unknown-key-251": request(0x77, b"k" * 251),
    "extras-255": request(GET, b"a", b"e" * 255),
}


@pytest.mark.parametrize("sent", BAD_LENGTHS.values(), ids=BAD_LENGTHS.keys())
def test_bad_lengths_end_the_connection(sent: bytes) -> None:
    server = Server()
    machine = Machine(server)
    assert ask(machine, request(NOOP) + sent + request(NOOP)) == [Packet(NOOP), error(sent[1], INVALID)]
    assert machine.closed
    server.check()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(SET, b"key", b"\0" * 8, body=10), UNKNOWN),
        (request(SET, b"key", b"\0" * 8, body=0), UNKNOWN),
        (request(SET, b"key", b"\0" * 8, body=2**30 + 1), INVALID),
        (request(SET, b"key", b"\0" * 8, body=2**32 - 1), INVALID),
        (request(NOOP, body=2**31), INVALID),
    ],
)
def test_bad_headers_end_the_connection(sent: bytes, status: int) -> None:
    machine = Machine(Server())
    assert ask(machine, sent) == [error(sent[1], status)]
    assert machine.closed


@pytest.mark.parametrize("magic", [0, 0x81, ord("g")])
def test_bad_magic_ends_the_connection(magic: int) -> None:
    machine = Machine(Server())
    assert ask(machine, request(NOOP) + request(NOOP, magic=magic) + request(NOOP)) == [Packet(NOOP)]
    assert machine.closed


def test_a_giant_announced_is_not_allocated() -> None:
    server = Server()
    machine = Machine(server)
    head = struct.pack(">BBHBBHIIQ", 0x80, SET, 1, 8, 0, 0, 2**30, 0, 0) + b"\0" * 8 + b"a"
    assert ask(machine, head) == [error(SET, TOO_LARGE)]
    machine.close()
    server.check()


def test_half_a_value_is_never_stored() -> None:
    server = Server()
    Machine(server).feed(store(SET, b"a", b"old"))
    machine = Machine(server)
    machine.feed(store(SET, b"a", b"v" * 1000)[:-1])
    machine.close()
    assert ask(Machine(server), request(GET, b"a"))[0].value == b"old"
    server.check()


# ---- the choice of the protocol --------------------------------------------------------------------------------------


def test_the_first_byte_chooses() -> None:
    server = Server()
    text, binary = Machine(server), Machine(server)
    assert text.feed(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert ask(binary, request(GETK, b"a"))[0].value == b"x"
    # Later bytes do not choose the protocol.
    assert text.feed(request(VERSION) + b"\r\n") == b"ERROR\r\n"
    assert ask(binary, b"get a\r\n".ljust(24)) == []
    assert binary.closed


def test_a_protocol_laid_down() -> None:
    text, binary = Machine(Server(protocol="ascii")), Machine(Server(protocol="binary"))
    assert text.feed(request(VERSION) + b"\r\nmn\r\n") == b"ERROR\r\nMN\r\n"
    assert binary.feed(b"version\r\n" * 3) == b""
    assert binary.closed


def test_verbose(capfd) -> None:
    machine = Machine(Server(verbose=2))
    ask(machine, store(SET, b"kk", b"v") + request(GET, b"kk") + request(GET))
    written = capfd.readouterr().err
    assert "Client using the binary protocol" in written
    assert "<0 Read binary protocol data:\n<0    0x80 0x01 0x00 0x02\n<0    0x08 0x00 0x00 0x00\n" in written
    assert ">0 Writing bin response:\n>0   0x81 0x01 0x00 0x00\n" in written
    assert "Protocol error (opcode 00), close connection 0\n" in written

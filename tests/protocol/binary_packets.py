"""Packets of the binary protocol: requests made, replies taken apart, and a conversation with every command."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct(">BBHBBHIIQ")

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ = range(14)
APPEND, PREPEND, STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCREMENTQ, DECREMENTQ, QUITQ, FLUSHQ = range(14, 25)
APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(25, 31)
SASL_LIST_MECHS, SASL_AUTH, SASL_STEP, GATK, GATKQ = range(32, 37)

OK, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, NOT_STORED, NOT_NUMERIC = range(7)
AUTH_ERROR, UNKNOWN, NO_MEMORY = 0x20, 0x81, 0x82

TEXT = {
    NOT_FOUND: b"Not found",
    EXISTS: b"Data exists for key.",
    TOO_LARGE: b"Too large.",
    INVALID: b"Invalid arguments",
    NOT_STORED: b"Not stored.",
    NOT_NUMERIC: b"Non-numeric server-side value for incr or decr",
    AUTH_ERROR: b"Auth failure.",
    UNKNOWN: b"Unknown command",
}


class Packet(NamedTuple):
    opcode: int
    status: int = OK
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    opaque: int = 0
    cas: int = 0


def request(
    opcode: int,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    *,
    opaque: int = 0,
    cas: int = 0,
    magic: int = 0x80,
    body: int | None = None,
) -> bytes:
    """Returns a request. body: the length given by the header in place of the right length."""
    length = len(extras) + len(key) + len(value) if body is None else body
    return HEADER.pack(magic, opcode, len(key), len(extras), 0, 0, length, opaque, cas) + extras + key + value


def store(
    opcode: int, key: bytes, value: bytes, flags: int = 0, exptime: int = 0, *, opaque: int = 0, cas: int = 0
) -> bytes:
    return request(opcode, key, struct.pack(">II", flags, exptime), value, opaque=opaque, cas=cas)


def count(
    opcode: int, key: bytes, delta: int, initial: int = 0, exptime: int = 0xFFFFFFFF, *, opaque: int = 0, cas: int = 0
) -> bytes:
    return request(opcode, key, struct.pack(">QQI", delta, initial, exptime), opaque=opaque, cas=cas)


def touch(opcode: int, key: bytes, exptime: int, *, opaque: int = 0) -> bytes:
    return request(opcode, key, struct.pack(">I", exptime), opaque=opaque)


def packets(data: bytes) -> list[Packet]:
    """The responses in data; all of them must be whole."""
    found = []
    while data:
        magic, opcode, keylen, extlen, datatype, status, length, opaque, cas = HEADER.unpack_from(data)
        assert (magic, datatype) == (0x81, 0)
        body, data = data[HEADER.size : HEADER.size + length], data[HEADER.size + length :]
        assert len(body) == length
        extras, key, value = body[:extlen], body[extlen : extlen + keylen], body[extlen + keylen :]
        found.append(Packet(opcode, status, key, extras, value, opaque, cas))
    return found


def error(opcode: int, status: int, opaque: int = 0) -> Packet:
    return Packet(opcode, status, value=TEXT[status], opaque=opaque)


def flags(value: int) -> bytes:
    return struct.pack(">I", value)


def number(value: int) -> bytes:
    return struct.pack(">Q", value)


LONG_KEY = b"k" * 250
BIG = bytes(range(256)) * 4

# The requests, and the answers without their CAS values. The entries build on each other, in order.
CONVERSATION: list[tuple[bytes, list[Packet]]] = [
    (store(SET, b"a", b"abc", 5, opaque=77), [Packet(SET, opaque=77)]),
    (request(GET, b"a", opaque=0xDEADBEEF), [Packet(GET, OK, b"", flags(5), b"abc", 0xDEADBEEF)]),
    (request(GETK, b"a"), [Packet(GETK, OK, b"a", flags(5), b"abc")]),
    (request(GETQ, b"a") + request(GETKQ, b"a"), [
        Packet(GETQ, OK, b"", flags(5), b"abc"), Packet(GETKQ, OK, b"a", flags(5), b"abc"),
    ]),
    (request(GET, b"no"), [error(GET, NOT_FOUND)]),
    (request(GETK, b"no"), [Packet(GETK, NOT_FOUND, b"no")]),
    (request(GETQ, b"no") + request(GETKQ, b"no") + request(NOOP, opaque=1), [Packet(NOOP, opaque=1)]),
    (store(ADD, b"a", b"x") + store(ADD, b"b", b"y", 1), [error(ADD, EXISTS), Packet(ADD)]),
    (store(REPLACE, b"c", b"x") + store(REPLACE, b"b", b"yy", 2), [error(REPLACE, NOT_FOUND), Packet(REPLACE)]),
    (request(APPEND, b"b", value=b">") + request(PREPEND, b"b", value=b"<") + request(GET, b"b"), [
        Packet(APPEND), Packet(PREPEND), Packet(GET, OK, b"", flags(2), b"<yy>"),
    ]),
    (request(APPEND, b"c", value=b">") + request(PREPEND, b"c", value=b"<"), [
        error(APPEND, NOT_STORED), error(PREPEND, NOT_STORED),
    ]),
    (request(APPEND, b"b") + request(GET, b"b"), [Packet(APPEND), Packet(GET, OK, b"", flags(2), b"<yy>")]),
    (store(SETQ, b"q", b"1") + store(ADDQ, b"q2", b"2") + store(REPLACEQ, b"q", b"3") + request(DELETEQ, b"q2")
     + request(APPENDQ, b"q", value=b"4") + request(PREPENDQ, b"q", value=b"2") + request(GET, b"q"), [
        Packet(GET, OK, b"", flags(0), b"234"),
    ]),
    (store(ADDQ, b"q", b"1", opaque=3) + store(REPLACEQ, b"c", b"1") + request(DELETEQ, b"c")
     + request(APPENDQ, b"c", value=b"x"), [
        error(ADDQ, EXISTS, 3), error(REPLACEQ, NOT_FOUND), error(DELETEQ, NOT_FOUND), error(APPENDQ, NOT_STORED),
    ]),
    (store(SET, b"cas", b"1", cas=999999) + store(SET, b"a", b"1", cas=999999) + store(ADD, b"a", b"1", cas=999999)
     + request(DELETE, b"a", cas=999999) + request(APPEND, b"a", value=b"x", cas=999999), [
        error(SET, NOT_FOUND), error(SET, EXISTS), error(ADD, EXISTS), error(DELETE, EXISTS), error(APPEND, EXISTS),
    ]),
    (store(SET, b"z", b"") + request(GET, b"z"), [Packet(SET), Packet(GET, OK, b"", flags(0))]),
    (store(SET, LONG_KEY, b"x", 0xFFFFFFFF) + request(GETK, LONG_KEY), [
        Packet(SET), Packet(GETK, OK, LONG_KEY, flags(0xFFFFFFFF), b"x"),
    ]),
    (store(SET, b"big", BIG) + request(GET, b"big") + request(GETK, b"big"), [
        Packet(SET), Packet(GET, OK, b"", flags(0), BIG), Packet(GETK, OK, b"big", flags(0), BIG),
    ]),
    (store(SET, b"n", b"9") + count(INCREMENT, b"n", 1) + count(DECREMENT, b"n", 3) + request(GET, b"n"), [
        Packet(SET), Packet(INCREMENT, value=number(10)), Packet(DECREMENT, value=number(7)),
        Packet(GET, OK, b"", flags(0), b"7 "),
    ]),
    (count(DECREMENT, b"n", 100) + count(INCREMENT, b"n", 2**64 - 1) + count(INCREMENT, b"n", 2), [
        Packet(DECREMENT, value=number(0)), Packet(INCREMENT, value=number(2**64 - 1)),
        Packet(INCREMENT, value=number(1)),
    ]),
    (count(INCREMENT, b"i", 5, 100, 0) + count(DECREMENT, b"d", 5, 100, 60) + count(INCREMENT, b"i", 5)
     + request(GET, b"d"), [
        Packet(INCREMENT, value=number(100)), Packet(DECREMENT, value=number(100)),
        Packet(INCREMENT, value=number(105)), Packet(GET, OK, b"", flags(0), b"100"),
    ]),
    (count(INCREMENT, b"no", 1) + count(DECREMENT, b"no", 1) + count(INCREMENT, b"a", 1)
     + count(INCREMENT, b"i", 1, cas=999999), [
        error(INCREMENT, NOT_FOUND), error(DECREMENT, NOT_FOUND), error(INCREMENT, NOT_NUMERIC),
        error(INCREMENT, EXISTS),
    ]),
    (count(INCREMENTQ, b"i", 1) + count(DECREMENTQ, b"i", 3) + count(INCREMENTQ, b"no", 1) + request(GET, b"i"), [
        error(INCREMENTQ, NOT_FOUND), Packet(GET, OK, b"", flags(0), b"103"),
    ]),
    (touch(TOUCH, b"a", 100) + touch(TOUCH, b"no", 100) + touch(GAT, b"a", 0) + touch(GAT, b"no", 0), [
        Packet(TOUCH, OK, b"", flags(5)), error(TOUCH, NOT_FOUND), Packet(GAT, OK, b"", flags(5), b"abc"),
        error(GAT, NOT_FOUND),
    ]),
    (touch(GATQ, b"a", 0) + touch(GATQ, b"no", 0) + touch(GATK, b"a", 0) + touch(GATK, b"no", 0)
     + touch(GATKQ, b"a", 0) + touch(GATKQ, b"no", 0), [
        Packet(GATQ, OK, b"", flags(5), b"abc"), Packet(GATK, OK, b"a", flags(5), b"abc"),
        Packet(GATK, NOT_FOUND, b"no"), Packet(GATKQ, OK, b"a", flags(5), b"abc"),
    ]),
    (request(DELETE, b"q") + request(DELETE, b"q") + request(GET, b"q"), [
        Packet(DELETE), error(DELETE, NOT_FOUND), error(GET, NOT_FOUND),
    ]),
    (request(SASL_LIST_MECHS) + request(SASL_AUTH, b"PLAIN", value=b"\0u\0p") + request(SASL_STEP, b"PLAIN"), [
        error(SASL_LIST_MECHS, UNKNOWN), error(SASL_AUTH, UNKNOWN), error(SASL_STEP, UNKNOWN),
    ]),
    (request(0x8F) + request(VERBOSITY, extras=b"\0\0\0\1") + b"\0\0\0\0" + request(0x30), [
        error(0x8F, UNKNOWN), error(VERBOSITY, UNKNOWN), error(0x30, UNKNOWN),
    ]),
    (request(FLUSHQ) + request(FLUSH, extras=flags(0)) + request(FLUSH) + request(NOOP), [
        Packet(FLUSH), Packet(FLUSH), Packet(NOOP),
    ]),
    (request(QUIT, opaque=9), [Packet(QUIT, opaque=9)]),
]  # fmt: skip


def normal(found: list[Packet]) -> list[Packet]:
    """Packets without CAS values, which depend on earlier commands."""
    return [packet._replace(cas=0) for packet in found]

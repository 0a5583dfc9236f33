"""A socket with memcached's binary protocol, for a stream with classic text commands.

memcached -S knows the binary protocol alone. The rest of the client does not change: the stream sees a server without
meta commands. Each command waits in a queue for its reply, so the replies have the order of the commands. A command
without a reply (noreply) gets a reply here, and the socket drops the reply.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..exceptions import MemcacheUnexpectedCloseError, MemcacheUnknownError

HEADER = struct.Struct("!BBHBBHIIQ")
REQUEST, RESPONSE = 0x80, 0x81
GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH = range(9)
VERSION, APPEND, PREPEND, STAT, TOUCH, GAT, SASL_AUTH = 0x0B, 0x0E, 0x0F, 0x10, 0x1C, 0x1D, 0x21
SUCCESS, NOT_FOUND, EXISTS, TOO_LARGE, NOT_STORED, NOT_A_NUMBER, AUTH_ERROR, UNKNOWN, NO_MEMORY = (
    *(0x00, 0x01, 0x02, 0x03, 0x05, 0x06),
    *(0x20, 0x81, 0x82),
)
BODY_LIMIT = 1 << 30  # bytes of a reply
PIECE = 65536  # bytes of text taken by a single send
RECEIVE = 65536
NO_CREATION = 0xFFFFFFFF  # expiration of an increment without a new item
PAST = 60 * 60 * 24 * 30 + 1  # seconds since 1970: an expiration before the server's start

ERRORS = {
    TOO_LARGE: b"SERVER_ERROR object too large for cache\r\n",
    NOT_A_NUMBER: b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    AUTH_ERROR: b"CLIENT_ERROR unauthenticated\r\n",
    UNKNOWN: b"ERROR\r\n",
    NO_MEMORY: b"SERVER_ERROR out of memory storing object\r\n",
}
STORES = {b"set": SET, b"add": ADD, b"replace": REPLACE, b"append": APPEND, b"prepend": PREPEND, b"cas": SET}
# Text for the statuses of a store; a missing key or an existing key is no error to the text protocol.
OF_STORE = {SUCCESS: b"STORED\r\n", **dict.fromkeys((NOT_FOUND, EXISTS, NOT_STORED), b"NOT_STORED\r\n")}
OF_CAS = {SUCCESS: b"STORED\r\n", NOT_FOUND: b"NOT_FOUND\r\n", EXISTS: b"EXISTS\r\n"}


class Reply:
    """A packet of the server."""

    def __init__(self, data: bytes) -> None:
        _, self.opcode, self.key_length, self.extras_length, _, self.status, _, _, self.cas = HEADER.unpack_from(data)
        self.body = data[HEADER.size :]

    @property
    def value(self) -> bytes:
        return self.body[self.extras_length + self.key_length :]

    def error(self) -> bytes:
        """The text for a status outside of the command's outcomes."""
        return ERRORS.get(self.status) or b"SERVER_ERROR %b\r\n" % self.value.translate(None, b"\r\n")


# Turns a packet into text; the flag says whether the command's reply is complete.
Render = Callable[[Reply], tuple[bytes, bool]]


def request(
    opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", cas: int = 0, opaque: int = 0
) -> bytes:
    """A packet of the client."""
    length = len(extras) + len(key) + len(value)
    return HEADER.pack(REQUEST, opcode, len(key), len(extras), 0, 0, length, opaque, cas) + extras + key + value


def by_status(texts: dict[int, bytes]) -> Render:
    return lambda reply: (texts.get(reply.status) or reply.error(), True)


def value_of(key: bytes, with_cas: bool, last: bool) -> Render:
    """The reply to a key of a get."""
    end = b"END\r\n" if last else b""

    def render(reply: Reply) -> tuple[bytes, bool]:
        if reply.status == NOT_FOUND:
            return end, True
        if reply.status != SUCCESS:
            return reply.error(), True
        (flags,) = struct.unpack_from("!I", reply.body)
        cas = b" %d" % reply.cas if with_cas else b""
        return b"VALUE %b %d %d%b\r\n%b\r\n%b" % (key, flags, len(reply.value), cas, reply.value, end), True

    return render


def number_of(reply: Reply) -> tuple[bytes, bool]:
    if reply.status == SUCCESS:
        return b"%d\r\n" % int.from_bytes(reply.value, "big"), True
    return (b"NOT_FOUND\r\n" if reply.status == NOT_FOUND else reply.error()), True


def version_of(reply: Reply) -> tuple[bytes, bool]:
    return b"VERSION %b\r\n" % reply.value if reply.status == SUCCESS else reply.error(), True


def statistic_of(reply: Reply) -> tuple[bytes, bool]:
    if reply.status != SUCCESS:
        return (b"END\r\n" if reply.status == NOT_FOUND else reply.error()), True
    name = reply.body[: reply.key_length]
    return (b"STAT %b %b\r\n" % (name, reply.value), False) if name else (b"END\r\n", True)


def expiration(text: bytes) -> bytes:
    """The extras for an expiration time. Before its zero the text protocol means: expired at once."""
    seconds = int(text)
    return struct.pack("!I", PAST if seconds < 0 else seconds & 0xFFFFFFFF)


class Commands:
    """Text into packets: keeps the beginning of a command until its rest comes."""

    def __init__(self) -> None:
        self.text = bytearray()

    def take(self, data: bytes | memoryview) -> Iterator[tuple[bytes, Render | bytes, bool]]:
        """(packet, renderer of the reply, whether the reply is wanted) for each whole command. A reply in bytes is
        known without the server."""
        self.text += data
        while (end := self.text.find(b"\n")) >= 0:
            words = bytes(self.text[:end]).split()
            size = end + 1
            value = b""
            if words and words[0] in STORES and len(words) >= 5:
                size += int(words[4]) + 2
                if len(self.text) < size:
                    return
                value = bytes(self.text[end + 1 : size - 2])
            del self.text[:size]
            wanted = words[-1:] != [b"noreply"]
            yield from ((*one, wanted) for one in self.packets(words if wanted else words[:-1], value))

    def packets(self, words: list[bytes], value: bytes) -> Iterator[tuple[bytes, Render | bytes]]:
        name = words[0] if words else b""
        if name in STORES and len(words) >= 5:
            yield self.store(name, words, value)
        elif name in (b"get", b"gets", b"gat", b"gats") and len(words) > (2 if name[:3] == b"gat" else 1):
            first = 2 if name[:3] == b"gat" else 1
            for index in range(first, len(words)):
                key = words[index]
                packet = request(GAT, key, extras=expiration(words[1])) if first == 2 else request(GET, key)
                yield packet, value_of(key, name.endswith(b"s"), index + 1 == len(words))
        elif name == b"delete" and len(words) >= 2:
            yield request(DELETE, words[1]), by_status({SUCCESS: b"DELETED\r\n", NOT_FOUND: b"NOT_FOUND\r\n"})
        elif name in (b"incr", b"decr") and len(words) == 3:
            extras = struct.pack("!QQI", int(words[2]), 0, NO_CREATION)
            yield request(INCREMENT if name == b"incr" else DECREMENT, words[1], extras=extras), number_of
        elif name == b"touch" and len(words) == 3:
            texts = {SUCCESS: b"TOUCHED\r\n", NOT_FOUND: b"NOT_FOUND\r\n"}
            yield request(TOUCH, words[1], extras=expiration(words[2])), by_status(texts)
        elif name == b"flush_all":
            extras = struct.pack("!I", int(words[1])) if len(words) > 1 else b""
            yield request(FLUSH, extras=extras), by_status({SUCCESS: b"OK\r\n"})
        elif name == b"version":
            yield request(VERSION), version_of
        elif name == b"stats":
            yield request(STAT, b" ".join(words[1:])), statistic_of
        elif name == b"quit":
            yield request(QUIT), by_status({SUCCESS: b""})
        else:
            yield b"", b"ERROR\r\n"

    @staticmethod
    def store(name: bytes, words: list[bytes], value: bytes) -> tuple[bytes, Render]:
        extras = b""
        if name not in (b"append", b"prepend"):
            extras = struct.pack("!I", int(words[2])) + expiration(words[3])
        cas = int(words[5]) if name == b"cas" else 0
        return request(STORES[name], words[1], value, extras, cas), by_status(OF_CAS if name == b"cas" else OF_STORE)


class BinarySocket:
    """A socket's methods for SocketStream and for the opening of a connection; `inner` is the connected socket.

    A single thread at a time uses the object. The methods raise the errors of `inner`, and MemcacheUnknownError for
    packets of no server.
    """

    def __init__(self, inner: socket.socket) -> None:
        self.inner = inner
        self.commands = Commands()
        self.expected: deque[tuple[Render | bytes, bool]] = deque()
        self.output = bytearray()  # packets not sent yet
        self.owed = False  # the last byte of text counts as not taken, until its packets have been sent
        self.input = bytearray()  # the beginning of packets
        self.text = bytearray()  # replies not read yet

    def __getattr__(self, name: str) -> Any:
        # settimeout, gettimeout, setsockopt, fileno, shutdown, close, getpeername, family, ...
        return getattr(self.inner, name)

    def flush(self) -> None:
        while self.output:
            del self.output[: self.inner.send(self.output)]

    def send(self, data: bytes | memoryview) -> int:
        """Takes text. As long as packets of earlier text wait for room, takes nothing: a socket with packets to send
        must never look idle."""
        self.flush()
        taken = min(len(data), PIECE)
        for packet, render, wanted in self.commands.take(data[1 if self.owed else 0 : taken]):
            self.output += packet
            self.expected.append((render, wanted))
        self.owed = False
        self.answer_known()
        try:
            self.flush()
        except OSError as error:
            if not isinstance(error, (BlockingIOError, TimeoutError)) and "Want" not in type(error).__name__:
                raise
            self.owed = True
        return taken - self.owed

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self.send(left) :]

    def answer_known(self) -> None:
        """Replies to commands without a packet, at the head of the queue."""
        while self.expected and isinstance(self.expected[0][0], bytes):
            text, wanted = self.expected.popleft()
            if wanted and isinstance(text, bytes):
                self.text += text

    def take_packets(self) -> None:
        while len(self.input) >= HEADER.size:
            magic, _, key, extras, _, _, length, _, _ = HEADER.unpack_from(self.input)
            if magic != RESPONSE or length > BODY_LIMIT or key + extras > length or not self.expected:
                raise MemcacheUnknownError("the answer is none of memcached's binary protocol")
            if len(self.input) < HEADER.size + length:
                return
            reply = Reply(bytes(self.input[: HEADER.size + length]))
            del self.input[: HEADER.size + length]
            render, wanted = self.expected[0]
            assert not isinstance(render, bytes)
            text, last = render(reply)
            if wanted:
                self.text += text
            if last:
                self.expected.popleft()
                self.answer_known()

    def recv_into(self, buffer: memoryview) -> int:
        while not self.text:
            if self.output:
                self.flush()
            more = self.inner.recv(RECEIVE)
            if not more:
                return 0
            self.input += more
            self.take_packets()
        count = min(len(buffer), len(self.text))
        buffer[:count] = self.text[:count]
        del self.text[:count]
        return count

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])


def read_exactly(plain: socket.socket, size: int) -> bytes:
    """Raises MemcacheUnexpectedCloseError, OSError, TimeoutError."""
    received = b""
    while len(received) < size:
        more = plain.recv(size - len(received))
        if not more:
            raise MemcacheUnexpectedCloseError("the server has ended the connection")
        received += more
    return received


def read_reply(plain: socket.socket) -> Reply:
    """The server's next packet. Raises the errors of read_exactly, MemcacheUnknownError."""
    header = read_exactly(plain, HEADER.size)
    length = HEADER.unpack(header)[6]
    if header[0] != RESPONSE or length > PIECE:
        raise MemcacheUnknownError("the answer is none of memcached's binary protocol")
    return Reply(header + read_exactly(plain, length))

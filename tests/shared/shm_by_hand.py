"""soft_shm's records, and the cells of its ring, for peers made by hand (docs/soft-rnic.md section 4)."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct

# The memory of a ring: RING_AT bytes of head, then RING_SIZE bytes of lines for the cells.
SIZE, RING_AT, LINE = 1 << 17, 128, 64
RING_SIZE = SIZE - RING_AT
HEAD_AT = 64  # offset, in the head, of the number of octets taken out of the device's ring
REGISTRY_SIZE = 65536
MESSAGE, STREAM = 1, 2  # kinds of cells
SOLICITED = 1
MESSAGE_MAX, CHUNK_MAX = 8192, 16384 - 8
HELLO, WAKEUP, OFFER, ANSWER, SEALED = range(0x524D4301, 0x524D4306)
ANSWERS, MAPPED = 1, 1  # `access` of HELLO and ANSWER
BELL = 2  # `access` of HELLO, too
RECORD = struct.Struct("=IIIHHIIIIQQ")

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


def record(kind: int, **fields: int) -> bytes:
    values = {"version": 2, "ring": RING_SIZE, "ird": 16, "ord": 16}
    values |= dict.fromkeys(("stag", "slot", "generation", "access", "addr", "length"), 0)
    return RECORD.pack(kind, *(values | fields).values())


def memfd(size: int, *, sparse: bool = True, seals: int = SEAL_SHRINK | SEAL_GROW) -> int:
    """A memfd of this size. sparse: no page of the file is allocated yet."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if not sparse:
        os.pwrite(fd, bytes(size), 0)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def lingering(seconds: int) -> tuple[socket.socket, socket.socket]:
    """A TCP socket whose `close` waits for so many seconds, or until its peer has gone; and the peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # With a small receive buffer little is enough to fill the connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    return sender, reader


def cell_size(length: int) -> int:
    """Octets of the ring for a cell."""
    return (8 + length + LINE - 1) // LINE * LINE


class ShmPeer:
    """An end of a connection to a soft_shm device, which has sent HELLO already. The peer acts only within its
    methods.

    paid: all pages of ring and registry are allocated by this process, which pays for them. Some devices map no other
    memory.
    """

    def __init__(self, sock: socket.socket, *, paid: bool = False) -> None:
        self.sock = sock
        octets, self.fds, _, _ = socket.recv_fds(sock, RECORD.size, 3)
        self.records = [octets]
        assert RECORD.unpack(octets)[0] == HELLO and len(self.fds) == 3
        self.bell = self.fds.pop()
        self.theirs = mmap.mmap(self.fds[0], SIZE, prot=mmap.PROT_READ)
        self.ring_fd = memfd(SIZE)
        self.registry_fd = memfd(REGISTRY_SIZE, sparse=not paid)
        self.page = mmap.mmap(self.ring_fd, SIZE)
        self.tail = 0
        self.taken = 0
        self.sent = 0
        if paid:
            self.page[0] = self.page[RING_AT] = 0
            for fd in (self.ring_fd, self.registry_fd):
                fcntl.fcntl(fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)

    def close(self) -> None:
        for fd in (*self.fds, self.bell, self.ring_fd, self.registry_fd):
            os.close(fd)
        self.sock.close()

    def post(self, octets: bytes, *fds: int) -> None:
        """Sends a record. The device sees the new count at once."""
        self.sock.sendmsg([octets], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        self.sent += 1
        self.set_sent(self.sent)

    def set_sent(self, count: int) -> None:
        struct.pack_into("=I", self.page, 0, count)

    def hello(self, **fields: int) -> None:
        self.post(record(HELLO, **fields), self.ring_fd, self.registry_fd)

    def set_head(self, head: int) -> None:
        # The number is written in one store: half of the number would be an impossible position.
        ctypes.c_uint64.from_buffer(self.page, HEAD_AT).value = head % 2**64

    def head(self) -> int:
        """The number of octets taken by the device."""
        head: int = struct.unpack_from("=Q", self.theirs, HEAD_AT)[0]
        return head

    def word(self, length: int, kind: int, flags: int = 0, stamp: int | None = None) -> None:
        """Announces the cell at the tail, whose octets are in place."""
        at = RING_AT + self.tail % RING_SIZE
        # The stamp is written last: the device takes the cell as soon as it sees the stamp.
        struct.pack_into("=HBB", self.page, at + 4, length, kind, flags)
        struct.pack_into("=I", self.page, at, (self.tail // LINE + 1) % 2**32 if stamp is None else stamp)

    def put(self, octets: bytes) -> None:
        """Writes the octets of a cell at the tail."""
        at = (self.tail + 8) % RING_SIZE
        first = octets[: RING_SIZE - at]
        self.page[RING_AT + at : RING_AT + at + len(first)] = first
        self.page[RING_AT : RING_AT + len(octets) - len(first)] = octets[len(first) :]

    def cell(self, octets: bytes, kind: int, flags: int = 0) -> None:
        self.put(octets)
        self.word(len(octets), kind, flags)
        self.tail += cell_size(len(octets))

    def next_cell(self) -> tuple[int, int, bytes] | None:
        """Kind, flags and octets of the next cell from the device, which does not learn of the taking."""
        at = self.taken % RING_SIZE
        stamp, length, kind, flags = struct.unpack_from("=IHBB", self.theirs, RING_AT + at)
        if stamp != (self.taken // LINE + 1) % 2**32:
            return None
        part = min(length, RING_SIZE - at - 8)
        start = RING_AT + at + 8
        self.taken += cell_size(length)
        return kind, flags, self.theirs[start : start + part] + self.theirs[RING_AT : RING_AT + length - part]

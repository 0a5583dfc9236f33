"""What the tests of soft_shm share: regions in shared memory, and a hand-made peer, which writes records and cells."""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import socket
import struct

import verbs_ends
from verbs_ends import ALL, End, completions, until

from rmemcached.verbs import MR, QP, EventType, Opcode, SendWR, State

RING_AT = 128
SIZE = 1 << 17
RING_SIZE = SIZE - RING_AT
LINE = 64
MESSAGE, STREAM = 1, 2  # kinds of cells
SOLICITED = 1
MESSAGE_MAX, CHUNK_MAX = 8192, 16384 - 8
REGISTRY_SIZE = 65536
HELLO, WAKEUP, OFFER = 0x524D4301, 0x524D4302, 0x524D4303

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


def shared_region(end: End, size: int, access: int = ALL) -> tuple[MR, verbs_ends.Memory]:
    mr = MR.alloc(end.pd, size, access)
    return mr, verbs_ends.Memory(mr)


def one_sided(end: End) -> int:
    return end.qp.counters()["one_sided"]


def read(a: End, mr: MR, size: int = 8, at: int = 0, **options: int) -> SendWR:
    return SendWR(Opcode.RDMA_READ, [a.mr.sge(0, size)], remote_addr=mr.addr + at, rkey=mr.rkey, **options)


def write(a: End, mr: MR, size: int = 8, at: int = 0, **options: int) -> SendWR:
    return SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, size)], remote_addr=mr.addr + at, rkey=mr.rkey, **options)


def acquaint(a: End, b: End, mr: MR) -> None:
    """A READ of the region through the stream, upon which the other side offers it."""
    a.qp.post_send(read(a, mr))
    completions(a, 1, b)
    a.poll()


def record(kind: int, **fields: int) -> bytes:
    values = {"version": 2, "ring": RING_SIZE, "ird": 16, "ord": 16}
    values |= dict.fromkeys(("stag", "slot", "generation", "access", "addr", "length"), 0)
    return struct.pack("=IIIHHIIIIQQ", kind, *(values | fields).values())


def memfd(size: int, seals: int = SEAL_SHRINK | SEAL_GROW) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def cell_size(length: int) -> int:
    """Octets of the ring that a cell takes."""
    return (8 + length + LINE - 1) // LINE * LINE


class RawPeer:
    """Speaks records, and writes and reads cells by hand."""

    def __init__(self, end: End, hello: bool = True, qp: QP | None = None) -> None:
        self.end = end
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        (qp or end.qp).attach(theirs)
        self.fds: list[int] = []
        self.records: list[bytes] = []
        self.receive()
        assert struct.unpack_from("=I", self.records[0])[0] == HELLO
        self.theirs = mmap.mmap(self.fds[0], SIZE, prot=mmap.PROT_READ)
        self.ring_fd = memfd(SIZE)
        self.registry_fd = memfd(REGISTRY_SIZE)
        self.page = mmap.mmap(self.ring_fd, SIZE)
        self.tail = 0
        self.taken = 0
        self.sent = 0
        if hello:
            self.post(record(HELLO), self.ring_fd, self.registry_fd)
            end.poll()

    def close(self) -> None:
        for fd in (*self.fds, self.ring_fd, self.registry_fd):
            os.close(fd)
        self.sock.close()

    def post(self, octets: bytes, *fds: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([octets], ancillary)
        self.sent += 1
        struct.pack_into("=I", self.page, 0, self.sent)

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                octets, ancillary, _, _ = self.sock.recvmsg(48, socket.CMSG_SPACE(16))
                for _, _, data in ancillary:
                    self.fds += array.array("i", data)
                if not octets:
                    return
                self.records.append(octets)

    def set_head(self, head: int) -> None:
        struct.pack_into("=Q", self.page, 64, head % 2**64)

    def word(self, length: int, kind: int, flags: int = 0, stamp: int | None = None) -> None:
        """Announces a cell at the tail; its octets are there."""
        whole = (self.tail // LINE + 1) % 2**32 if stamp is None else stamp
        struct.pack_into("=IHBB", self.page, RING_AT + self.tail % RING_SIZE, whole, length, kind, flags)

    def put(self, octets: bytes) -> None:
        """The octets of a cell at the tail."""
        at = (self.tail + 8) % RING_SIZE
        first = octets[: RING_SIZE - at]
        self.page[RING_AT + at : RING_AT + at + len(first)] = first
        self.page[RING_AT : RING_AT + len(octets) - len(first)] = octets[len(first) :]

    def cell(self, octets: bytes, kind: int, flags: int = 0) -> None:
        self.put(octets)
        self.word(len(octets), kind, flags)
        self.tail += cell_size(len(octets))

    def write(self, octets: bytes) -> None:
        """Octets of the stream, in as few cells as can be."""
        for at in range(0, len(octets), CHUNK_MAX):
            self.cell(octets[at : at + CHUNK_MAX], STREAM)

    def cells(self) -> list[tuple[int, int, bytes]]:
        """Kind, flags and octets of the cells that the end has written since."""
        found: list[tuple[int, int, bytes]] = []
        while True:
            at = self.taken % RING_SIZE
            stamp, length, kind, flags = struct.unpack_from("=IHBB", self.theirs, RING_AT + at)
            if stamp != (self.taken // LINE + 1) % 2**32:
                self.set_head(self.taken)
                return found
            part = min(length, RING_SIZE - at - 8)
            octets = self.theirs[RING_AT + at + 8 : RING_AT + at + 8 + part]
            found.append((kind, flags, octets + self.theirs[RING_AT : RING_AT + length - part]))
            self.taken += cell_size(length)

    def read(self) -> bytes:
        """The octets of the stream that the end has written since. There are no messages."""
        cells = self.cells()
        assert all((kind, flags) == (STREAM, 0) for kind, flags, _ in cells)
        return b"".join(octets for _, _, octets in cells)


def broken(peer: RawPeer) -> None:
    """The queue pair must be in error, without a completion to blame, and nobody else."""
    until(lambda: peer.end.qp.state == State.ERR, peer.end)
    os.set_blocking(peer.end.context.async_fileno(), False)
    event = peer.end.context.get_async_event()
    assert event == (EventType.QP_FATAL, peer.end.qp)

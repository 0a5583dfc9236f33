"""soft_shm: what is shared and with which rights, one-sided access, a hostile peer, the death of peers."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import verbs_ends
from verbs_ends import (
    ALL,
    PATHS,
    End,
    completions,
    connect,
    connected,
    fpdu,
    send,
    statuses,
    untagged,
    until,
)

from rmemcached.verbs import MR, PD, QP, WC, Access, EventType, Opcode, SendFlag, SendWR, State, Status, VerbsError

RING_AT = 128
SIZE = 1 << 17
RING_SIZE = SIZE - RING_AT
LINE = 64
MESSAGE, STREAM = 1, 2  # kinds of cells
SOLICITED = 1
MESSAGE_MAX, CHUNK_MAX = 8192, 16384 - 8
REGISTRY_SIZE = 65536
HELLO, WAKEUP, OFFER = 0x524D4301, 0x524D4302, 0x524D4303
pytestmark = pytest.mark.once

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


@pytest.fixture(autouse=True)
def only_once(fabric: str) -> Iterator[None]:
    """These tests choose their memory themselves."""
    verbs_ends.FABRIC = "soft_shm"
    yield
    verbs_ends.FABRIC = fabric


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


def test_access_needs_no_help_of_the_target() -> None:
    a, b = connected()
    with a, b:
        mr, memory = shared_region(b, 1 << 16)
        acquaint(a, b, mr)
        assert one_sided(a) == 0
        a.buffer[:] = random.Random(1).randbytes(len(a.buffer))
        # Nobody polls for the target from here on.
        a.qp.post_send(write(a, mr, 1 << 16, wr_id=1))
        assert bytes(memory) == bytes(a.buffer)
        memory[100:108] = b"8 octets"
        a.qp.post_send(read(a, mr, 8, 100, wr_id=2))
        assert a.buffer[:8] == b"8 octets"
        a.qp.post_send(
            SendWR(Opcode.RDMA_WRITE, [(a.mr.addr, 8, 0)], flags=SendFlag.INLINE, remote_addr=mr.addr, rkey=mr.rkey)
        )
        assert memory[:8] == b"8 octets"
        assert [(wc.wr_id, wc.status, wc.byte_len) for wc in a.cq.poll()] == [(1, 0, 1 << 16), (2, 0, 8)]
        assert one_sided(a) == 3
        counters = a.qp.counters()
        assert (counters["reads"], counters["writes"]) == (2, 2)


def test_one_sided_requests_keep_their_place() -> None:
    """Among SENDs, and behind a WRITE and a READ that go through the stream."""
    a, b = connected(1 << 20)
    with a, b:
        mr, memory = shared_region(b, 1 << 20)
        acquaint(a, b, mr)
        b.qp.post_recv(*((i, [b.mr.sge(i, 1)]) for i in range(4)))
        a.qp.post_send(
            SendWR(Opcode.SEND, [], wr_id=1),
            write(a, b.mr, 1 << 20, wr_id=2),
            write(a, mr, 1 << 20, wr_id=3),
            read(a, b.mr, 8, wr_id=4),
            read(a, mr, 8, wr_id=5),
            SendWR(Opcode.SEND, [], wr_id=6, flags=SendFlag.FENCE | SendFlag.SIGNALED),
            write(a, mr, 8, wr_id=7),
        )
        assert [wc.wr_id for wc in completions(a, 7, b)] == [1, 2, 3, 4, 5, 6, 7]
        assert bytes(memory) == bytes(a.buffer)
        assert [wc.wr_id for wc in completions(b, 2, a)] == [0, 1]


def test_a_read_sees_the_write_before_it() -> None:
    """The same memory under two keys, one of which cannot be used one-sidedly."""
    a, b = connected(1 << 17)
    with a, b:
        mr, memory = shared_region(b, 1 << 17)
        address = (ctypes.c_char * mr.length).from_address(mr.addr)
        alias = MR(b.pd, address, ALL)
        acquaint(a, b, mr)
        for i in range(50):
            a.buffer[: 1 << 16] = bytes([i]) * (1 << 16)
            a.qp.post_send(
                write(a, alias, 1 << 16),
                SendWR(Opcode.RDMA_READ, [a.mr.sge(1 << 16, 8)], remote_addr=mr.addr + 65000, rkey=mr.rkey),
            )
            completions(a, 2, b)
            assert a.buffer[1 << 16 : (1 << 16) + 8] == bytes([i]) * 8
        alias.close()
        assert memory[:1] == bytes([49])


@pytest.mark.parametrize("case", ["bounds", "wrap", "no write right", "deregistered", "invalidated", "other domain"])
def test_what_may_not_be_is_refused_as_ever(case: str) -> None:
    """Also when the region is mapped already: whatever fails a check goes to the target, which refuses it."""
    a, b = connected()
    with a, b:
        pd = PD(b.context) if case == "other domain" else b.pd
        access = Access.LOCAL_WRITE | Access.REMOTE_READ if case == "no write right" else ALL
        mr, memory = shared_region(b, 8192, access)
        addr, rkey = mr.addr, mr.rkey
        if case != "other domain":
            acquaint(a, b, mr)
            a.qp.post_send(read(a, mr))
            assert one_sided(a) == 1
            completions(a, 1)
        else:
            mr.close()
            mr, memory = shared_region(b, 8192)
            other = MR.alloc(pd, 8192, ALL)
            addr, rkey = other.addr, other.rkey
        if case == "deregistered":
            mr.close()
        elif case == "invalidated":
            b.qp.post_recv((1, []))
            a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=rkey, flags=0))
            completions(b, 1, a)
        elif case == "bounds":
            addr += 8185
        elif case == "wrap":
            addr = 2**64 - 4
        opcode = Opcode.RDMA_WRITE if case == "no write right" else Opcode.RDMA_READ
        a.qp.post_send(
            SendWR(opcode, [a.mr.sge(0, 8)], wr_id=1, remote_addr=addr, rkey=rkey),
            SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=2, remote_addr=b.mr.addr, rkey=b.mr.rkey),
        )
        found = statuses(completions(a, 2, b))
        assert Status.REM_ACCESS_ERR in found or opcode == Opcode.RDMA_WRITE
        assert found[-1] == Status.WR_FLUSH_ERR
        assert a.qp.state == b.qp.state == State.ERR
        assert case == "deregistered" or bytes(memory) == bytes(8192)


def test_local_protection_of_one_sided_requests() -> None:
    for opcode, access in ((Opcode.RDMA_WRITE, None), (Opcode.RDMA_READ, 0)):
        a, b = connected()
        with a, b:
            mr, memory = shared_region(b, 4096)
            acquaint(a, b, mr)
            sge = (a.mr.addr, 8, a.mr.lkey ^ 1) if access is None else MR(a.pd, bytes(8), access).sge()
            a.qp.post_send(SendWR(opcode, [a.mr.sge(0, 8), sge], remote_addr=mr.addr, rkey=mr.rkey))
            assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
            assert bytes(memory) == bytes(4096)


def test_many_regions_come_and_go() -> None:
    """More than can be mapped at a time, more than the registry remembers: still right, and nothing is left."""
    maps = Path("/proc/self/maps").read_text().count("memfd:rmemcached")
    a, b = connected()
    with a, b:

        def one(count: int) -> None:
            regions = [shared_region(b, 100) for _ in range(count)]
            for i, (_, memory) in enumerate(regions):
                memory[:8] = struct.pack(">Q", i)
            for _ in range(2):
                for i, (mr, _) in enumerate(regions):
                    a.qp.post_send(read(a, mr))
                    completions(a, 1, b)
                    assert a.buffer[:8] == struct.pack(">Q", i)
            for mr, _ in regions:
                mr.close()

        one(10)
        before = len(os.listdir("/proc/self/fd"))
        direct = one_sided(a)
        one(300)
        assert one_sided(a) - direct >= 256
        for _ in range(40):
            one(20)
        assert one_sided(a) - direct >= 256 + 40 * 20
        assert len(os.listdir("/proc/self/fd")) == before
        assert Path("/proc/self/maps").read_text().count("memfd:rmemcached region") <= 256 + 20
    assert Path("/proc/self/maps").read_text().count("memfd:rmemcached") == maps


def test_two_peers_of_one_region() -> None:
    with End() as b, End() as a, End() as c:
        first = b.qp
        connect(a, b)
        b.qp = QP(b.pd, b.cq)
        b.qp.ready(access=ALL)
        connect(c, b)
        mr, memory = shared_region(b, 64)
        for end in (a, c):
            acquaint(end, b, mr)
        a.buffer[:8] = b"from a__"
        a.qp.post_send(write(a, mr))
        c.qp.post_send(read(c, mr))
        assert c.buffer[:8] == b"from a__" and one_sided(a) == one_sided(c) == 1
        # One peer invalidates the key: it is gone for both.
        b.qp.post_recv((1, []))
        c.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=mr.rkey))
        completions(b, 1, c)
        completions(a, 1)
        a.qp.post_send(read(a, mr))
        assert statuses(completions(a, 1, b)) == [Status.REM_ACCESS_ERR]
        assert first.state == State.ERR and b.qp.state == State.RTS
        assert bytes(memory)[:8] == b"from a__"


def test_the_wrong_socket() -> None:
    with End() as a:
        for pair in (verbs_ends.tcp_pair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):
            with pytest.raises(VerbsError) as caught:
                a.qp.attach(pair[0])
            assert caught.value.errno == 22 and pair[0].fileno() >= 0
            for sock in pair:
                sock.close()
        ours, theirs = socket.socketpair()
        with pytest.raises(VerbsError) as caught:
            a.qp.connect(ours)
        assert caught.value.errno == 22
        verbs_ends.FABRIC = "soft_iw"
        with End() as iwarp, pytest.raises(VerbsError) as caught:
            iwarp.qp.attach(ours)
        assert caught.value.errno == 22
        ours.close()
        theirs.close()


# A peer made by hand.


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


@pytest.fixture
def raw(fabric: str) -> Iterator[RawPeer]:
    with End() as end:
        peer = RawPeer(end)
        yield peer
        peer.close()


def broken(peer: RawPeer) -> None:
    """The queue pair must be in error, without a completion to blame, and nobody else."""
    until(lambda: peer.end.qp.state == State.ERR, peer.end)
    os.set_blocking(peer.end.context.async_fileno(), False)
    event = peer.end.context.get_async_event()
    assert event == (EventType.QP_FATAL, peer.end.qp)


def test_the_hand_made_peer_is_understood(raw: RawPeer) -> None:
    raw.end.qp.post_recv((1, [raw.end.mr.sge(0, 100)]), (2, [raw.end.mr.sge(0, 100)]))
    raw.write(fpdu(send(b"hello"), crc=False))
    (wc,) = completions(raw.end, 1)
    assert (wc.status, wc.byte_len) == (Status.SUCCESS, 5) and raw.end.buffer[:5] == b"hello"
    raw.cell(b"again", MESSAGE)
    (wc,) = completions(raw.end, 1)
    assert (wc.status, wc.byte_len) == (Status.SUCCESS, 5) and raw.end.buffer[:5] == b"again"
    raw.end.qp.post_send(SendWR(Opcode.SEND, [raw.end.mr.sge(0, 5)]))
    raw.end.qp.post_send(SendWR(Opcode.SEND, [raw.end.mr.sge(0, 5)], flags=SendFlag.SOLICITED))
    assert raw.cells() == [(MESSAGE, 0, b"again"), (MESSAGE, SOLICITED, b"again")]
    # What is no short message is of the stream, and counts as the third.
    raw.end.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [raw.end.mr.sge(0, 5)], invalidate_rkey=7))
    assert raw.read() == fpdu(untagged(4, b"again", msn=3, invalidate=7), crc=False)


def test_every_cut_of_a_frame(raw: RawPeer) -> None:
    frame = fpdu(send(b"hello, world!"), crc=False)
    for cut in range(1, len(frame)):
        raw.end.qp.post_recv((cut, [raw.end.mr.sge(0, 100)]))
        frame = fpdu(send(b"hello, world!", cut), crc=False)
        raw.write(frame[:cut])
        raw.end.poll()
        raw.write(frame[cut:])
        assert [(wc.wr_id, wc.byte_len) for wc in completions(raw.end, 1)] == [(cut, 13)]


def test_what_is_passed_cannot_be_changed(raw: RawPeer) -> None:
    """Page and ring, registry, and a region without remote write: by no mapping, write, truncation or reopening."""
    mr, memory = shared_region(raw.end, 8192, Access.LOCAL_WRITE | Access.REMOTE_READ)
    memory[:6] = b"secret"
    raw.write(fpdu(verbs_ends.read_request_segment((1, 2), 6, (mr.rkey, mr.addr)), crc=False))
    raw.end.poll()
    raw.receive()
    kind, *_, stag, slot, generation, access, addr, length = struct.unpack("=IIIHHIIIIQQ", raw.records[-1])
    assert (kind, stag, access, addr, length) == (OFFER, mr.rkey, Access.REMOTE_READ, mr.addr, 8192)
    assert raw.read()[16:22] == b"secret"
    with mmap.mmap(raw.fds[1], REGISTRY_SIZE, prot=mmap.PROT_READ) as registry:
        assert struct.unpack_from("=I", registry, slot * 4) == (generation,)
    assert len(raw.fds) == 3
    for fd in raw.fds:
        size = os.fstat(fd).st_size
        assert fcntl.fcntl(fd, F_GET_SEALS) == SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        for one in (fd, again):
            for attempt in (
                lambda one=one, size=size: mmap.mmap(one, size),
                lambda one=one: os.pwrite(one, b"x", 0),
                lambda one=one: os.ftruncate(one, 0),
                lambda one=one, size=size: os.ftruncate(one, 2 * size),
                lambda one=one: fcntl.fcntl(one, F_ADD_SEALS, SEAL_SHRINK),
            ):
                with pytest.raises(PermissionError):
                    attempt()
        os.close(again)
        # Nor can a mapping for reading be made one for writing.
        view = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        address = libc.mmap(None, size, 1, 1, fd, 0)
        assert libc.mprotect(address, size, 3) == -1 and ctypes.get_errno() == 13
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.munmap(address, size)
        view.close()
    assert memory[:6] == b"secret"
    # It holds the region's memory only, and what the owner gives up is told.
    mr.close()
    with mmap.mmap(raw.fds[1], REGISTRY_SIZE, prot=mmap.PROT_READ) as registry:
        assert struct.unpack_from("=I", registry, slot * 4) == (0,)


@pytest.mark.parametrize("access", [Access.LOCAL_WRITE, Access.LOCAL_WRITE | Access.REMOTE_WRITE])
def test_what_may_not_be_read_is_not_passed(raw: RawPeer, access: int) -> None:
    mr, _ = shared_region(raw.end, 4096, access)
    raw.write(fpdu(verbs_ends.write(mr.rkey, mr.addr, b"data"), crc=False))
    raw.end.poll()
    raw.receive()
    assert len(raw.fds) == 2
    assert raw.end.qp.state == (State.RTS if access & Access.REMOTE_WRITE else State.ERR)


def test_the_queue_pairs_rights_are_not_widened_by_a_mapping() -> None:
    with End(qp_access=Access.LOCAL_WRITE | Access.REMOTE_READ) as end:
        peer = RawPeer(end)
        mr, _ = shared_region(end, 4096, ALL)
        peer.write(fpdu(verbs_ends.read_request_segment((1, 2), 6, (mr.rkey, mr.addr)), crc=False))
        end.poll()
        peer.receive()
        assert len(peer.fds) == 2 and len(peer.read()) == 28
        peer.close()


def test_impossible_heads(fabric: str) -> None:
    """They matter once the ring seems full."""
    for head in (RING_SIZE + LINE, 1 << 40, 1 << 63, 2**64 - LINE, 3, LINE + 1):
        with End() as end:
            peer = RawPeer(end)
            end.qp.post_recv((1, []))
            end.qp.post_send(*(SendWR(Opcode.SEND, [end.mr.sge(0, 60_000)], flags=0) for _ in range(3)))
            peer.set_head(head)
            until(lambda end=end: end.qp.state == State.ERR, end)  # type: ignore[misc]
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]
            peer.close()


CELLS = {
    "no kind": lambda peer: peer.cell(b"hello", 0),
    "an unknown kind": lambda peer: peer.cell(b"hello", 3),
    "kind 255": lambda peer: peer.cell(b"hello", 255),
    "a message with an unknown flag": lambda peer: peer.cell(b"hello", MESSAGE, 2),
    "a message with all flags": lambda peer: peer.cell(b"hello", MESSAGE, 255),
    "a part of the stream with a flag": lambda peer: peer.cell(b"hello", STREAM, 1),
    "nothing of the stream": lambda peer: peer.cell(b"", STREAM),
    "too long a message": lambda peer: peer.cell(bytes(MESSAGE_MAX + 1), MESSAGE),
    "the longest length of a message": lambda peer: peer.word(65535, MESSAGE),
    "too much of the stream": lambda peer: peer.cell(bytes(CHUNK_MAX + 1), STREAM),
    "the longest length of the stream": lambda peer: peer.word(65535, STREAM),
    "a message within a header": lambda peer: (
        peer.write(fpdu(send(b"hello"), crc=False)[:3]),
        peer.cell(b"hello", MESSAGE),
    ),
    "a message within a frame": lambda peer: (
        peer.write(fpdu(send(b"hello"), crc=False)[:22]),
        peer.cell(b"hello", MESSAGE),
    ),
    "a message within a trailer": lambda peer: (
        peer.write(fpdu(send(b"hello"), crc=False)[:-1]),
        peer.cell(b"hello", MESSAGE),
    ),
}


@pytest.mark.parametrize("case", CELLS)
def test_impossible_cells(raw: RawPeer, case: str) -> None:
    """Each ends this queue pair, and nothing of it arrives."""
    raw.end.qp.post_recv(*((i, [raw.end.mr.sge(1000 * i, 1000)]) for i in range(3)))
    before = bytes(raw.end.buffer)
    CELLS[case](raw)
    broken(raw)
    assert statuses(completions(raw.end, 3)) == [Status.WR_FLUSH_ERR] * 3
    if "within" not in case:
        assert bytes(raw.end.buffer) == before


@pytest.mark.parametrize("stamp", [0, 2, 1 + RING_SIZE // LINE, 2**32 - 1, 1 << 31])
def test_a_wrong_stamp_is_no_cell(raw: RawPeer, stamp: int) -> None:
    raw.end.qp.post_recv((1, [raw.end.mr.sge(0, 100)]))
    raw.put(b"hello")
    raw.word(5, MESSAGE, stamp=stamp)
    assert raw.end.poll() == [] and raw.end.qp.state == State.RTS
    raw.cell(b"hello", MESSAGE)
    assert statuses(completions(raw.end, 1)) == [Status.SUCCESS]


WRONG_MESSAGES = {
    # Octets, the receive's, the status of the receive, layer, type and code of the Terminate.
    "no receive": (5, None, None, (1, 2, 2)),
    "longer than the receive": (6, 5, Status.LOC_LEN_ERR, (1, 2, 5)),
    "longer than no receive at all": (1, 0, Status.LOC_LEN_ERR, (1, 2, 5)),
    "within a message of several frames": (5, 100, Status.WR_FLUSH_ERR, (1, 2, 4)),
    "into memory without a right": (5, 100, Status.LOC_PROT_ERR, (0, 0, 0)),
}


@pytest.mark.parametrize("case", WRONG_MESSAGES)
def test_a_wrong_message_in_a_cell(raw: RawPeer, case: str) -> None:
    length, receive, status, error = WRONG_MESSAGES[case]
    mr = MR(raw.end.pd, bytes(200), 0) if case == "into memory without a right" else raw.end.mr
    if receive is not None:
        raw.end.qp.post_recv((1, [mr.sge(0, receive)]))
    if case == "within a message of several frames":
        raw.write(fpdu(send(b"first", last=False), crc=False))
    raw.cell(bytes(length), MESSAGE)
    until(lambda: raw.end.qp.state == State.ERR, raw.end)
    if status is not None:
        assert statuses(completions(raw.end, 1)) == [status]
    octets = raw.read()
    assert octets[2:4] == b"\x41\x47"
    assert (octets[20] >> 4, octets[20] & 15, octets[21]) == error


def test_messages_and_stream_in_turns(raw: RawPeer) -> None:
    """More of them than the ring holds, so that cells of either kind end anywhere in it, and begin again."""
    draw = random.Random(3)
    sizes = [draw.choice((0, 1, 55, 56, 57, 120, 121, 1000, 8191, 8192)) for _ in range(200)]
    for i, size in enumerate(sizes):
        octets = draw.randbytes(size)
        raw.end.qp.post_recv((i, [raw.end.mr.sge(0, 10), raw.end.mr.sge(5000, 0), raw.end.mr.sge(10, 9000)]))
        if draw.random() < 0.5:
            raw.cell(octets, MESSAGE)
        else:
            whole = fpdu(send(octets, i + 1), crc=False)
            cut = draw.randrange(len(whole))
            raw.write(whole[:cut])
            if draw.random() < 0.5:
                raw.end.poll()
            raw.write(whole[cut:])
        (wc,) = completions(raw.end, 1)
        assert (wc.wr_id, wc.status, wc.byte_len) == (i, Status.SUCCESS, size)
        assert raw.end.buffer[:size] == octets
    assert raw.tail > 3 * RING_SIZE


def test_octets_that_look_like_the_next_cell(raw: RawPeer) -> None:
    """What a message leaves in the ring is seen again a lap later, where a cell may begin, and is not taken for one.

    A program that knows how much was sent can choose octets that are the word of a cell to come.
    """
    lines = RING_SIZE // LINE
    sent = 0

    def forged(first: int, count: int) -> bytes:
        """A message that has in each line, but for the first, the word of the cell that may be there one lap later."""
        return b"".join(
            struct.pack("=IHBB", (first + i + lines + 1) % 2**32, 5, MESSAGE, 0) + b"wrong" + bytes(LINE - 13)
            for i in range(1, count)
        )

    for lap in range(3):
        while sent < (lap + 1) * lines:
            # Now of many lines, now of one; another way to cut the ring in each lap.
            octets = forged(sent, 8) if (sent + lap) % 3 else b"short"
            data = bytes(LINE - 8) + octets if len(octets) > 5 else octets
            raw.end.buffer[: len(data)] = data
            raw.end.qp.post_send(SendWR(Opcode.SEND, [raw.end.mr.sge(0, len(data))], flags=0))
            assert raw.cells() == [(MESSAGE, 0, data)]
            sent += cell_size(len(data)) // LINE
            assert raw.taken == sent * LINE


def test_a_region_that_messages_use_can_be_given_up() -> None:
    """A queue pair remembers the regions of its last message: it forgets one that is deregistered or invalidated."""
    a, b = connected()
    with a, b:
        for i in range(20):
            source, target = MR(a.pd, bytearray(b"%2d" % i), ALL), MR(b.pd, bytearray(2), ALL)
            for _ in range(2):
                b.qp.post_recv((i, [target.sge()]))
                a.qp.post_send(SendWR(Opcode.SEND, [source.sge()], flags=0))
                assert statuses(completions(b, 1, a)) == [Status.SUCCESS]
            assert ctypes.string_at(target.addr, 2) == b"%2d" % i
            gone = source.lkey
            source.close()
            target.close()
        # Whoever posts a region that is gone gets the error that he gets for any other.
        b.qp.post_recv((99, [b.mr.sge(0, 8)]))
        a.qp.post_send(SendWR(Opcode.SEND, [(a.mr.addr, 2, gone)], wr_id=1))
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
        assert statuses(completions(b, 1, a)) == [Status.WR_FLUSH_ERR]
    a, b = connected()
    with a, b:
        mr = MR(b.pd, bytearray(8), ALL)
        b.qp.post_recv(*((i, [mr.sge()]) for i in range(2)), (2, []), (3, [mr.sge()]))
        a.qp.post_send(*(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], flags=0) for _ in range(2)))
        assert statuses(completions(b, 2, a)) == [Status.SUCCESS] * 2
        a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=mr.rkey, flags=0))
        assert statuses(completions(b, 1, a)) == [Status.SUCCESS]
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], flags=0))
        assert statuses(completions(b, 1, a)) == [Status.LOC_PROT_ERR]


def test_messages_keep_their_place_among_all_else() -> None:
    """READs and WRITEs that need the peer, sends that do not fit the ring, and messages of one cell, in one queue."""
    a, b = connected(1 << 20)
    with a, b:
        draw = random.Random(5)
        b.qp.post_recv(*((i, [b.mr.sge(0, 1 << 19)]) for i in range(60)))
        sizes = []
        requests = []
        for i in range(200):
            kind = draw.randrange(4)
            size = draw.choice((0, 8, 100, 8192, 8193, 100_000))
            if kind < 2:
                sizes.append(size)
                requests.append(SendWR(Opcode.SEND, [a.mr.sge(0, size)], wr_id=i))
            elif kind == 2:
                requests.append(read(a, b.mr, 100, wr_id=i))
            else:
                requests.append(write(a, b.mr, size, wr_id=i))
            if len(sizes) == 60:
                break
        done: list[WC] = []
        for request in requests:
            while len(done) < request.wr_id - 10:
                done += completions(a, 1, b)
            a.qp.post_send(request)
        done += completions(a, len(requests) - len(done), b)
        assert [(wc.wr_id, wc.status) for wc in done] == [(i, Status.SUCCESS) for i in range(len(requests))]
        received = completions(b, len(sizes), a)
        assert [(wc.wr_id, wc.byte_len) for wc in received] == list(enumerate(sizes))


def test_a_queue_of_one_is_polled_one_by_one() -> None:
    """All queue pairs get their turn, and the messages of each come in order, however few are taken at a time."""
    with End() as a, End() as b:
        pairs = []
        for _ in range(3):
            ours, theirs = QP(a.pd, a.cq), QP(b.pd, b.cq)
            ours.ready(access=ALL)
            theirs.ready(access=ALL)
            one, other = socket.socketpair()
            ours.attach(one)
            theirs.attach(other)
            theirs.post_recv(*((i, [b.mr.sge(0, 8)]) for i in range(50)))
            pairs.append((ours, theirs))
        for i in range(50):
            for ours, _ in pairs:
                ours.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], wr_id=i, flags=0))
            a.poll()
        found: dict[int, list[int]] = {theirs.qp_num: [] for _, theirs in pairs}
        deadline = time.monotonic() + 10
        while sum(map(len, found.values())) < 150:
            for wc in b.cq.poll(1):
                found[wc.qp_num].append(wc.wr_id)
            assert time.monotonic() < deadline
        assert list(found.values()) == [list(range(50))] * 3
        for pair in pairs:
            for qp in pair:
                qp.close()


def test_threads_share_a_queue_pair() -> None:
    """Two send, one of them from regions that come and go; two poll one queue and post receives."""
    count, slots = 1500, 32
    a, b = connected()
    with a, b:
        room = threading.Semaphore(slots)
        found: list[list[tuple[int, int]]] = [[], []]
        failures: list[BaseException] = []
        ended = threading.Event()

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    failures.append(error)
                    ended.set()

            return run

        def post(sge: tuple[int, int, int], flags: int) -> None:
            assert room.acquire(timeout=60)
            a.qp.post_send(SendWR(Opcode.SEND, [sge], flags=flags))

        def send_from_one_region() -> None:
            for i in range(count):
                # A place that is not written again before all that may be under way has come.
                at = 8 * (i % (4 * slots))
                a.buffer[at : at + 8] = struct.pack("=II", 0, i)
                post(a.mr.sge(at, 8), 0)

        def send_from_many() -> None:
            for i in range(count):
                with MR(a.pd, bytearray(struct.pack("=II", 1, i)), ALL) as mr:
                    post(mr.sge(), SendFlag.SIGNALED)
                    while not (done := a.cq.poll()):
                        assert not ended.is_set()
                    assert statuses(done) == [Status.SUCCESS]

        def receive(mine: list[tuple[int, int]]) -> None:
            while not ended.is_set():
                for wc in b.cq.poll(3):
                    assert wc.status == Status.SUCCESS
                    at = 8 * wc.wr_id
                    mine.append(struct.unpack("=II", b.buffer[at : at + 8]))
                    b.qp.post_recv((wc.wr_id, [b.mr.sge(at, 8)]))
                    room.release()
                if sum(map(len, found)) == 2 * count:
                    ended.set()

        b.qp.post_recv(*((i, [b.mr.sge(8 * i, 8)]) for i in range(slots)))
        a.qp.post_send(SendWR(Opcode.SEND, []))
        assert completions(a, 1, b)
        assert [wc.wr_id for wc in completions(b, 1, a)] == [0]
        b.qp.post_recv((0, [b.mr.sge(0, 8)]))
        work: list[Callable[[], None]] = [
            send_from_one_region,
            send_from_many,
            *(functools.partial(receive, mine) for mine in found),
        ]
        threads = [threading.Thread(target=guarded(one)) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not failures
        for sender in range(2):
            numbers = [[i for who, i in mine if who == sender] for mine in found]
            # Who polls sees the messages of one sender in their order.
            assert all(one == sorted(one) for one in numbers)
            assert sorted(numbers[0] + numbers[1]) == list(range(count))


def test_consumption_is_told(raw: RawPeer) -> None:
    """Of messages each quarter of the ring, of the stream at once."""
    told = []
    for i in range(RING_SIZE // LINE):
        raw.end.qp.post_recv((i, [raw.end.mr.sge(0, 8)]))
        raw.cell(b"8 octets", MESSAGE)
        completions(raw.end, 1)
        told.append(struct.unpack_from("=Q", raw.theirs, 64)[0])
    assert len(set(told)) in (4, 5) and told[-1] > RING_SIZE * 3 // 4
    raw.end.qp.post_recv((1, [raw.end.mr.sge(0, 8)]))
    raw.write(fpdu(send(b"8 octets", len(told) + 1), crc=False))
    completions(raw.end, 1)
    assert struct.unpack_from("=Q", raw.theirs, 64)[0] == raw.tail


def test_impossible_records(fabric: str) -> None:
    def openings(peer: RawPeer) -> list[tuple[bytes, tuple[int, ...]]]:
        good, registry = peer.ring_fd, peer.registry_fd
        plain, pipe = os.memfd_create("plain"), os.pipe()[0]
        os.ftruncate(plain, SIZE)
        small = memfd(REGISTRY_SIZE // 2)
        with open("/etc/passwd") as file:
            ordinary = os.dup(file.fileno())
        peer.fds += [plain, pipe, small, ordinary]
        return [
            (record(HELLO, version=1), (good, registry)),
            (record(HELLO, version=3), (good, registry)),
            (record(HELLO, ring=RING_SIZE * 2), (good, registry)),
            (record(HELLO), ()),
            (record(HELLO), (good,)),
            (record(HELLO), (small, registry)),
            (record(HELLO), (good, small)),
            (record(HELLO), (plain, registry)),
            (record(HELLO), (pipe, registry)),
            (record(HELLO), (ordinary, registry)),
            (record(WAKEUP), ()),
            (record(OFFER, generation=1, length=4096), (good,)),
            (b"MPA ID Req Frame" * 3, ()),
            (bytes(48), ()),
        ]

    for i in range(14):
        with End() as end:
            peer = RawPeer(end, hello=False)
            octets, fds = openings(peer)[i]
            peer.post(octets, *fds)
            broken(peer)
            peer.close()
    offers = (
        {"slot": 16384},
        {"slot": 1 << 31},
        {"generation": 0},
        {"length": 0},
        {"length": 1 << 40},
        {"addr": 2**64 - 4, "length": 4096},
        {"length": 1 << 63},
    )
    for offer in offers:
        with End() as end:
            peer = RawPeer(end)
            peer.post(record(OFFER, **{"generation": 1, "length": 4096, **offer}), peer.registry_fd)
            broken(peer)
            peer.close()
    for octets, count in ((record(OFFER, generation=1, length=1), 0), (record(HELLO), 2), (record(7), 0)):
        with End() as end:
            peer = RawPeer(end)
            peer.post(octets, *[peer.ring_fd, peer.registry_fd][:count])
            broken(peer)
            peer.close()


def descriptors_of(fd: int) -> int:
    """How many of the process's descriptors are of this file, or of one with the same name: RawPeer's are. The device
    may open and close others of its own at any time.
    """
    name = os.readlink(f"/proc/self/fd/{fd}")
    with os.scandir("/proc/self/fd") as descriptors:
        return sum(os.readlink(entry.path) == name for entry in descriptors)


def test_surplus_descriptors_are_closed(raw: RawPeer) -> None:
    before = descriptors_of(raw.ring_fd)
    for _ in range(20):
        raw.post(record(WAKEUP), *[raw.ring_fd] * 30)
        raw.end.poll()
    one = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [raw.ring_fd]))]
    for octet in record(WAKEUP):
        raw.sock.sendmsg([bytes([octet])], one)
        raw.end.poll()
    assert descriptors_of(raw.ring_fd) == before
    assert raw.end.qp.state == State.RTS


def test_a_lying_count_of_records(raw: RawPeer) -> None:
    """Fewer than were sent may be a peer that is about to count; more cannot be."""
    raw.post(record(WAKEUP))
    raw.post(record(WAKEUP))
    struct.pack_into("=I", raw.page, 0, raw.sent - 2)
    raw.end.poll()
    raw.end.qp.post_recv((1, []))
    raw.write(fpdu(send(b""), crc=False))
    completions(raw.end, 1)
    struct.pack_into("=I", raw.page, 0, raw.sent + 1)
    broken(raw)


def test_offers_without_end(raw: RawPeer) -> None:
    """At most 256 regions are mapped, whatever is offered."""
    struct.pack_into("=I", mmap.mmap(raw.registry_fd, REGISTRY_SIZE), 0, 1)
    before = descriptors_of(raw.registry_fd)
    for i in range(600):
        raw.post(record(OFFER, stag=i * 256, generation=1, length=4096, addr=4096 * i, access=4), raw.registry_fd)
        raw.end.poll()
    assert descriptors_of(raw.registry_fd) == before
    assert raw.end.qp.state == State.RTS
    ours = os.fstat(raw.registry_fd).st_ino
    assert Path("/proc/self/maps").read_text().count(f" {ours} ") <= 256 + 2


def test_garbage_in_the_ring(fabric: str) -> None:
    """Mutated conversations: the queue pair ends, or goes on; nothing else happens."""
    draw = random.Random(20)
    for _ in range(150):
        with End(256) as end:
            peer = RawPeer(end)
            end.qp.post_recv(*((i, [end.mr.sge(0, 64)]) for i in range(8)))
            frames = [fpdu(send(draw.randbytes(draw.randrange(70)), i + 1), crc=False) for i in range(4)]
            frames += [fpdu(verbs_ends.write(end.mr.rkey, end.mr.addr + draw.randrange(300), b"data"), crc=False)]
            frames += [fpdu(verbs_ends.read_request_segment((1, 2), 8, (end.mr.rkey, end.mr.addr)), crc=False)]
            draw.shuffle(frames)
            if draw.random() < 0.5:
                peer.cell(draw.randbytes(draw.randrange(70)), MESSAGE, draw.randrange(2))
            octets = bytearray(b"".join(frames))
            for _ in range(draw.randrange(4)):
                octets[draw.randrange(len(octets))] ^= 1 << draw.randrange(8)
            cut = draw.randrange(len(octets))
            peer.write(bytes(octets[:cut]))
            end.poll()
            peer.write(bytes(octets[cut:]))
            end.poll()
            assert end.qp.state in (State.RTS, State.ERR)
            peer.close()


def test_a_peer_that_does_not_introduce_itself() -> None:
    """Closing before the introduction ends the queue pair at once."""
    with End() as end:
        ours, theirs = socket.socketpair()
        end.qp.attach(ours)
        end.qp.post_recv((1, []))
        assert end.poll() == [] and end.qp.state == State.RTS
        theirs.close()
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]


CHILD = """
import socket, struct, sys
sys.path[:0] = {paths!r}
import verbs_ends
from verbs_ends import *
from rmemcached.verbs import *
verbs_ends.FABRIC = "soft_shm shared"
end = End(1 << 20)
give(end.qp, socket.socket(fileno=int(sys.argv[1])), initiator=True)
end.buffer[:16] = struct.pack(">QI4x", end.mr.addr, end.mr.rkey)
end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 16)]))
print("ready", flush=True)
{rest}
"""


@contextlib.contextmanager
def child(end: End, rest: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Another process at the other end of the stream. Gives it, and address and key of its region."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD.format(paths=PATHS, rest=rest), str(theirs.fileno())],
        cwd=Path(__file__).parent.parent.parent,
        stdout=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        end.qp.post_recv((1, [end.mr.sge(0, 16)]))
        end.qp.attach(ours)
        completions(end, 1)
        addr, rkey = struct.unpack(">QI4x", end.buffer[:16])
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process, addr, rkey
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


SERVE = """
while True:
    end.poll()
"""
SLEEP = """
import os
while end.channel.get_event() or True:
    end.cq.arm()
    while end.poll():
        pass
"""


@pytest.mark.parametrize("watching", ["polls", "waits"])
def test_the_death_of_a_peer_is_seen_within_100_ms(watching: str) -> None:
    with End() as end, child(end, SERVE) as (process, _, _):
        end.qp.post_recv((2, []))
        end.cq.arm()
        until(lambda: True, end)
        assert end.channel is not None
        os.set_blocking(end.channel.fileno(), False)
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        while end.qp.state != State.ERR:
            if watching == "waits":
                assert select.select([end.channel], [], [], 10)[0]
                end.channel.get_event()
            else:
                end.poll()
            assert time.monotonic() - killed < 10
        process.wait()
        assert time.monotonic() - killed < 0.1
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]


def test_another_process_that_sleeps_serves_what_is_its_to_serve() -> None:
    """Its region is read through the stream once, then without it."""
    with End() as end, child(end, SLEEP) as (process, addr, rkey):
        wr = SendWR(Opcode.RDMA_READ, [end.mr.sge(0, 16)], wr_id=7, remote_addr=addr, rkey=rkey)
        end.qp.post_send(wr)
        assert statuses(completions(end, 1)) == [Status.SUCCESS]
        assert struct.unpack(">QI4x", end.buffer[:16]) == (addr, rkey)
        process.send_signal(signal.SIGSTOP)
        end.buffer[:16] = bytes(16)
        end.qp.post_send(wr)
        assert struct.unpack(">QI4x", end.buffer[:16]) == (addr, rkey)
        assert one_sided(end) == 1
        # What was mapped stays mapped when the owner dies; the queue pair knows that it is over.
        process.send_signal(signal.SIGKILL)
        until(lambda: end.qp.state == State.ERR, end)


def test_nothing_is_left_behind() -> None:
    def names() -> set[str]:
        return {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "rmem" in name.lower()}

    before = names()
    with End() as end, child(end, SERVE) as (process, _, _):
        assert names() == before
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names() == before

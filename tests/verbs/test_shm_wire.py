"""soft_shm: the shared memory and its rights, and the cells and records permitted to a hand-made peer."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import verbs_ends
from shm_by_hand import (
    CHUNK_MAX,
    F_ADD_SEALS,
    F_GET_SEALS,
    HELLO,
    LINE,
    MESSAGE,
    MESSAGE_MAX,
    OFFER,
    RECORD,
    REGISTRY_SIZE,
    RING_SIZE,
    SEAL_FUTURE_WRITE,
    SEAL_GROW,
    SEAL_SEAL,
    SEAL_SHRINK,
    SIZE,
    SOLICITED,
    STREAM,
    WAKEUP,
    cell_size,
    memfd,
    record,
)
from shm_ends import RawPeer, broken, shared_region
from verbs_ends import ALL, End, completions, fpdu, send, statuses, untagged, until

from rmemcached.verbs import MR, Access, Opcode, SendFlag, SendWR, State, Status

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]


@pytest.fixture
def raw(fabric: str) -> Iterator[RawPeer]:
    with End() as end:
        peer = RawPeer(end)
        yield peer


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
    # Only a short plain SEND goes in a cell of its own. This SEND goes through the stream, as the third message (msn).
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
    """No mapping, write, truncation or reopening changes page, ring, registry, or a region without remote write."""
    mr, memory = shared_region(raw.end, 8192, Access.LOCAL_WRITE | Access.REMOTE_READ)
    memory[:6] = b"secret"
    raw.write(fpdu(verbs_ends.read_request_segment((1, 2), 6, (mr.rkey, mr.addr)), crc=False))
    raw.end.poll()
    raw.receive()
    kind, *_, stag, slot, generation, access, addr, length = RECORD.unpack(raw.records[-1])
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
        # A mapping for reading cannot become a mapping for writing either.
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
    # The memfd has the region's memory only, and the registry tells the end of a region.
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


def test_impossible_heads(fabric: str) -> None:
    """An impossible head ends the queue pair once the ring seems full."""
    for head in (RING_SIZE + LINE, 1 << 40, 1 << 63, 2**64 - LINE, 3, LINE + 1):
        with End() as end:
            peer = RawPeer(end)
            end.qp.post_recv((1, []))
            end.qp.post_send(*(SendWR(Opcode.SEND, [end.mr.sge(0, 60_000)], flags=0) for _ in range(3)))
            peer.set_head(head)
            until(lambda end=end: end.qp.state == State.ERR, end)  # type: ignore[misc]
            assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]


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
    """Each impossible cell ends this queue pair, and none of its octets arrives."""
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
    # {case: (octets of the message, octets of the receive, its status, (layer, type, code) of the Terminate)}
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
    """More messages and stream than the ring holds: cells of either kind end anywhere in the ring, and start again."""
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
    """Octets left in the ring by a message, in the place of a later cell, do not count as a cell.

    A program that knows the number of sent octets can choose octets equal to the word of a later cell.
    """
    lines = RING_SIZE // LINE
    sent = 0

    def forged(first: int, count: int) -> bytes:
        """A message with the word of a possible cell of the next lap in each line but the first."""
        return b"".join(
            struct.pack("=IHBB", (first + i + lines + 1) % 2**32, 5, MESSAGE, 0) + b"wrong" + bytes(LINE - 13)
            for i in range(1, count)
        )

    for lap in range(3):
        while sent < (lap + 1) * lines:
            # Messages of many lines mix with messages of a single line, and cut the ring at other places in each lap.
            octets = forged(sent, 8) if (sent + lap) % 3 else b"short"
            data = bytes(LINE - 8) + octets if len(octets) > 5 else octets
            raw.end.buffer[: len(data)] = data
            raw.end.qp.post_send(SendWR(Opcode.SEND, [raw.end.mr.sge(0, len(data))], flags=0))
            assert raw.cells() == [(MESSAGE, 0, data)]
            sent += cell_size(len(data)) // LINE
            assert raw.taken == sent * LINE


def test_consumption_is_told(raw: RawPeer) -> None:
    """The device reports the octets taken by messages each quarter of the ring, and the octets taken by the stream at
    once."""
    told = []
    for i in range(RING_SIZE // LINE):
        raw.end.qp.post_recv((i, [raw.end.mr.sge(0, 8)]))
        raw.cell(b"8 octets", MESSAGE)
        completions(raw.end, 1)
        told.append(raw.head())
    assert len(set(told)) in (4, 5) and told[-1] > RING_SIZE * 3 // 4
    raw.end.qp.post_recv((1, [raw.end.mr.sge(0, 8)]))
    raw.write(fpdu(send(b"8 octets", len(told) + 1), crc=False))
    completions(raw.end, 1)
    assert raw.head() == raw.tail


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
    for octets, count in ((record(OFFER, generation=1, length=1), 0), (record(HELLO), 2), (record(7), 0)):
        with End() as end:
            peer = RawPeer(end)
            peer.post(octets, *[peer.ring_fd, peer.registry_fd][:count])
            broken(peer)


def descriptors_of(fd: int) -> int:
    """The number of the process's descriptors of this file, or of files with the same name, such as RawPeer's. The
    device may open and close others of its own at any time."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    with os.scandir("/proc/self/fd") as descriptors:
        return sum(os.readlink(entry.path) == name for entry in descriptors)


@pytest.mark.parametrize("how", ["one", "253", "one with each octet", "more than there is room for"])
def test_surplus_descriptors_end_the_queue_pair(raw: RawPeer, how: str) -> None:
    """Surplus descriptors are closed, and descriptors without room are never taken."""
    before = descriptors_of(raw.ring_fd)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    one = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [raw.ring_fd]))]
    if how == "one with each octet":
        for octet in record(WAKEUP):
            with contextlib.suppress(BrokenPipeError):
                raw.sock.sendmsg([bytes([octet])], one)
                raw.end.poll()
    else:
        raw.post(record(WAKEUP), *[raw.ring_fd] * {"one": 1, "253": 253}.get(how, 30))
    if how == "more than there is room for":
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limit[1]))
    try:
        raw.end.poll()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    broken(raw)
    assert descriptors_of(raw.ring_fd) == before


def test_a_lying_count_of_records(raw: RawPeer) -> None:
    """A count of records that is too low is no fault, since the peer may be about to count. A count too high ends the
    queue pair."""
    raw.post(record(WAKEUP))
    raw.post(record(WAKEUP))
    raw.set_sent(raw.sent - 2)
    raw.end.poll()
    raw.end.qp.post_recv((1, []))
    raw.write(fpdu(send(b""), crc=False))
    completions(raw.end, 1)
    raw.set_sent(raw.sent + 1)
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
    """Mutated conversations only end the queue pair, or go on."""
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


def test_a_peer_that_does_not_introduce_itself() -> None:
    """A close before HELLO ends the queue pair at once."""
    with End() as end:
        ours, theirs = socket.socketpair()
        end.qp.attach(ours)
        end.qp.post_recv((1, []))
        assert end.poll() == [] and end.qp.state == State.RTS
        theirs.close()
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]

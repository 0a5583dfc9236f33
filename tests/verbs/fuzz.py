"""A fuzzer for what a peer sends: a TCP stream (MPA, DDP, RDMAP), or a shared-memory ring with its records.

    python tests/verbs/fuzz.py --seconds 3600 [--fabric soft_iw|soft_shm] [--seed N] [--corpus FOLDER]
    python tests/verbs/fuzz.py --replay FILE...

A conversation has the program's operations on a queue pair and the peer's frames. Frames are kept in their parts:
lengths, CRCs, keys and addresses are right unless meant to be wrong. Conversations are mutated, cut anywhere, and fed.
A conversation that runs new code is mutated further. In the build for the fuzzer (script/sanitize fuzz) code is pairs
of basic blocks and how often they ran, and two sanitizers watch. In any build the state of the queue pair counts as
code: counters, state, events, the sent Terminate. After each conversation the memory around the regions must be
untouched, and another queue pair of the same completion queue must work.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import hashlib
import importlib.util
import json
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

# tests/conftest.py adds this folder for tests only.
sys.path.append(str(Path(__file__).parent.parent / "shared"))

import verbs_ends
from verbs_ends import (
    ALL,
    REMOTE,
    REPLY,
    REQUEST,
    End,
    bind,
    completions,
    fpdu,
    give,
    mpa_frame,
    read_request,
    read_request_segment,
    send,
    stream_pair,
    tagged,
    tcp_pair,
    untagged,
    write,
)

from rmemcached.verbs import (
    MR,
    MW,
    PD,
    QP,
    Access,
    Opcode,
    SendFlag,
    SendWR,
    State,
    Status,
    parse_request,
)

isal = ctypes.PyDLL("libisal.so.2")


def crc32c(data: bytes) -> int:
    """CRC32C by libisal: the function of verbs_ends would take most of the time."""
    return int(isal.crc32_iscsi(data, len(data), ctypes.c_uint(0xFFFFFFFF))) & 0xFFFFFFFF ^ 0xFFFFFFFF


assert crc32c(b"123456789") == verbs_ends.crc32c(b"123456789")
verbs_ends.crc32c = crc32c

ALIGN = 1 << 16
SIZE = 1 << 15  # octets of the region
EDGES = (0, 1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 4095, 4096, SIZE, 65535, 1 << 31, (1 << 32) - 1)
# Placeholders for values known only when a conversation is fed: keys, and the address of the region.
STAGS = [0x5AFE57A0 + i for i in range(7)]
MINE, FOREIGN, READ_ONLY, GONE, OFFERED, WINDOW, OTHER_WINDOW = STAGS
AT = 0x1122334455660000
SCRATCH = 1 << 29
WORK = 10  # kinds of requests of the program


class Coverage:
    """Tells whether new code has run. `there`: the build is the fuzzer's."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("rmemcached.verbs.soft")
        assert spec is not None
        library = ctypes.PyDLL(spec.origin)
        self.there = hasattr(library, "rmc_coverage_start")
        if self.there:
            self.start = library.rmc_coverage_start
            self.stop = library.rmc_coverage_stop
            self.total = library.rmc_coverage_total


@dataclasses.dataclass
class Frame:
    """A frame of the peer in its parts, and the faults of this frame."""

    octets: bytes
    length: int = -1  # value of the length field; -1: the right length
    crc: int = 0  # exclusive-or with the right CRC
    keep: int = -1  # octets of the frame; -1: all
    tail: bytes = b""
    lie: int = -1  # soft_shm: the kind of RingFeed.lie before the frame; -1: no lie
    lie_value: int = 0
    cell: int = -1  # soft_shm: the octets are no frame but a cell of this kind
    cell_flags: int = 0
    cell_length: int = -1  # length in the cell's word; -1: the right length

    def payload(self, stags: list[bytes], at: bytes) -> bytes:
        octets = self.octets
        for mark, stag in zip(STAGS, stags, strict=True):
            octets = octets.replace(struct.pack(">I", mark), stag)
        return octets.replace(struct.pack(">Q", AT)[:6], at)[:65535]

    def wire(self, crc: bool, stags: list[bytes], at: bytes) -> bytes:
        octets = self.payload(stags, at)
        framed = bytearray(fpdu(octets, crc and self.crc == 0 and self.length < 0))
        if self.length >= 0:
            framed[:2] = struct.pack(">H", self.length)
            if crc and self.crc == 0 and self.length <= len(octets):
                framed = bytearray(fpdu(octets[: self.length]) + octets[self.length :])
        return bytes(framed if self.keep < 0 else framed[: self.keep]) + self.tail


@dataclasses.dataclass
class Conversation:
    """The set-up of a queue pair, the kinds of the program's requests, and the peer's frames."""

    frames: list[Frame]
    crc: bool = False
    initiator: bool = False  # the queue pair is the initiator
    start: bytes = b""  # the peer's MPA frame; empty: a right frame
    receives: int = 3
    receive_size: int = 100
    scratch: bool = False  # the region is registered with SOFT_ACCESS_SCRATCH
    work: tuple[int, ...] = ()
    chop: int = 0  # how the octets are cut into pieces

    def save(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=lambda octets: octets.hex())

    @staticmethod
    def load(text: str) -> Conversation:
        parts = json.loads(text)
        frames = [
            Frame(**{**f, "octets": bytes.fromhex(f["octets"]), "tail": bytes.fromhex(f["tail"])})
            for f in parts.pop("frames")
        ]
        parts.update(start=bytes.fromhex(parts["start"]), work=tuple(parts["work"]))
        return Conversation(frames, **parts)


class Victim:
    """An end with a region between canaries, and a second queue pair whose peer behaves."""

    def __init__(self) -> None:
        self.end = End(4096, cqe=4096)
        os.set_blocking(self.end.context.async_fileno(), False)
        self.block = mmap.mmap(-1, 4 * ALIGN)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.block))
        self.offset = -base % ALIGN + ALIGN
        self.at = base + self.offset
        self.canary = os.urandom(ALIGN)
        self.places = (slice(self.offset - ALIGN, self.offset), slice(self.offset + SIZE, self.offset + SIZE + ALIGN))
        for place in self.places:
            self.block[place] = self.canary
        self.other_pd = PD(self.end.context)
        self.friend = End(4096)
        self.good = QP(self.end.pd, self.end.cq)
        self.good.ready(access=ALL)
        ours, theirs = stream_pair()
        give(self.friend.qp, ours, initiator=True)
        give(self.good, theirs, initiator=False)

    def regions(self, scratch: bool) -> list[MR]:
        """New regions for each conversation, which may invalidate them. The first can have memory windows."""
        memory = memoryview(self.block)[self.offset : self.offset + SIZE]
        pd = self.end.pd
        return [
            MR(pd, memory, ALL | Access.MW_BIND | (SCRATCH if scratch else 0)),
            MR(self.other_pd, memory, ALL),
            MR(pd, memory, Access.REMOTE_READ),
        ]

    def windows(self, qp: QP, mr: MR) -> list[MW]:
        """New windows over the region's second page: one of this queue pair, one of the good queue pair."""
        made = [MW(self.end.pd, 2), MW(self.end.pd, 2)]
        for mw, owner in zip(made, (qp, self.good), strict=True):
            assert bind(self.end, mw, mr, 4096, 4096, key=mw.rkey, qp=owner).status == Status.SUCCESS
        return made

    def check(self) -> None:
        assert all(self.block[place] == self.canary for place in self.places), "written beyond the region"
        self.end.done.clear()
        self.good.post_recv((99, [self.end.mr.sge(0, 16)]))
        self.friend.qp.post_send(SendWR(Opcode.SEND, [self.friend.mr.sge(0, 16)]))
        (sent,) = completions(self.friend, 1, self.end)
        (received,) = completions(self.end, 1, self.friend)
        assert (sent.status, received.wr_id, received.status) == (Status.SUCCESS, 99, Status.SUCCESS)

    def close(self) -> None:
        self.friend.close()
        self.end.close()


# --- conversations ---


def seeds() -> list[Conversation]:
    """Conversations, mostly without a fault."""
    single = [
        send(b"hello"),
        untagged(5, msn=1),
        untagged(4, b"bye", invalidate=MINE),
        untagged(6, b"gone", invalidate=GONE),
        tagged(0, 1, 0),
        write(MINE, AT + 100, b"data" * 50),
        write(MINE, AT, bytes(6000)),
        write(READ_ONLY, AT, b"no"),
        write(FOREIGN, AT, b"no"),
        read_request_segment((7, 8), 300, (MINE, AT)),
        read_request_segment((7, 8), SIZE, (READ_ONLY, AT)),
        read_request_segment((7, 8), 0, (1, 2)),
        tagged(2, 5, 6, b"unasked"),
        untagged(7, bytes([0x11, 0, 0xC0, 0]) + bytes(18), qn=2),
        untagged(7, bytes([0x01, 1, 0xE0, 0]) + bytes(48), qn=2),
        untagged(4, b"bye", invalidate=WINDOW),
        untagged(4, b"no", invalidate=OTHER_WINDOW),
        write(WINDOW, AT + 4096, bytes(4096)),
        write(OTHER_WINDOW, AT + 4096, b"no"),
        read_request_segment((7, 8), 4096, (WINDOW, AT + 4096)),
    ]
    found = [Conversation([Frame(octets)]) for octets in single]
    chains = [
        [send(b"first", last=False), send(b"second", mo=5), send(b"third", 2)],
        [write(MINE, AT, bytes(3000), last=False), write(MINE, AT + 3000, b"y"), send(b"", 1)],
        [*(write(MINE, AT + 5000 * i, bytes(5000), last=i == 4) for i in range(5)), send(b"done", 1)],
        [read_request_segment((7, 8), 64, (MINE, AT), msn=i + 1) for i in range(5)],
        [read_request_segment((7, 8), 9000, (MINE, AT)), send(b"x"), write(MINE, AT + 9000, b"y")],
    ]
    found += [Conversation([Frame(octets) for octets in chain]) for chain in chains]
    found.append(Conversation([Frame(write(WINDOW, AT + 4096, b"x")), Frame(send(b"y"))], work=(8, 9, 0)))
    answers = [tagged(2, MINE, AT, bytes(64)), tagged(2, MINE, AT + 64, bytes(20), last=False)]
    answers.append(tagged(2, MINE, AT + 84, bytes(44)))
    found.append(Conversation([Frame(octets) for octets in answers], work=(0, 0)))
    found.append(Conversation([Frame(tagged(2, MINE, AT, bytes(3000)))], work=(4,)))
    found.append(Conversation([Frame(b"", keep=0, lie=4, lie_value=i) for i in range(3)], work=(6, 7, 2, 3)))
    message = Frame(b"a message in a cell", cell=1)
    for frames in (
        [message],
        [Frame(b"", cell=1, cell_flags=1), message, Frame(bytes(100), cell=1)],
        [Frame(send(b"first")), message, Frame(send(b"third", 3))],
        [Frame(send(b"first", last=False)), message],
        [Frame(send(b"hello"), keep=10), message],
        [Frame(read_request_segment((7, 8), 9000, (MINE, AT))), message, Frame(write(MINE, AT, b"x")), message],
        [Frame(fpdu(send(b"as it is"), crc=False), cell=2), message],
        [Frame(bytes(8000), cell=1), Frame(bytes(8193), cell=1)],
    ):
        found.append(Conversation(frames))
        found.append(Conversation(frames, work=(2, 5, 2, 0), receive_size=5000))
    found += [dataclasses.replace(one, initiator=True) for one in found[:6]]
    found += [dataclasses.replace(one, crc=True) for one in found]
    return found


def number(draw: random.Random) -> int:
    return draw.choice((draw.choice(EDGES), draw.choice(STAGS), draw.randrange(8), draw.getrandbits(32)))


def renumber(frames: list[Frame]) -> None:
    """Gives message numbers, offsets and addresses of a correct peer, where the frames determine them."""
    msn = {0: 1, 1: 1, 2: 1}
    mo = 0
    to = -1
    for frame in frames:
        octets = bytearray(frame.octets)
        if frame.cell >= 0:
            msn[0] += frame.cell == 1
        elif len(octets) >= 14 and octets[0] & 0x80:
            if to >= 0:
                octets[6:14] = struct.pack(">Q", to & (1 << 64) - 1)
            to = -1 if octets[0] & 0x40 else int.from_bytes(octets[6:14], "big") + len(octets) - 14
        elif len(octets) >= 18 and (qn := int.from_bytes(octets[6:10], "big")) in msn:
            octets[10:18] = struct.pack(">II", msn[qn], mo if qn == 0 else 0)
            last = octets[0] & 0x40 or qn
            msn[qn] += 1 if last else 0
            mo = 0 if last else mo + len(octets) - 18
        frame.octets = bytes(octets)


def mutate_frame(draw: random.Random, frame: Frame) -> None:
    """Changes a frame in a way drawn at random."""
    octets = bytearray(frame.octets)
    kind = draw.randrange(14)
    if kind == 12:
        frame.cell = draw.choice((-1, 1, 1, 1, 2, draw.getrandbits(8)))
        frame.cell_flags = draw.choice((0, 0, 1, draw.getrandbits(8)))
    elif kind == 13:
        frame.cell_length = draw.choice(
            (-1, draw.choice(EDGES) & 0xFFFF, draw.choice((55, 57, 8192, 8193, 16376, 16377)))
        )
    elif kind == 0 and octets:
        octets[draw.randrange(len(octets))] ^= 1 << draw.randrange(8)
    elif kind == 1 and len(octets) >= 6:
        place = draw.choice([i for i in range(2, 46, 4) if i + 4 <= len(octets)])
        octets[place : place + 4] = struct.pack(">I", number(draw))
    elif kind == 2 and len(octets) > 18:
        sizes = (0, 1, 2, 3, 27, 28, 29, 64, 100, 101, 256, 257, 1400, 4095, 4096, 4097, 9000, 20000)
        header = 14 if octets[0] & 0x80 else 18
        payload = octets[header:] or b"\0"
        size = draw.choice(sizes)
        octets[header:] = (payload * (size // len(payload) + 1))[:size]
    elif kind == 3:
        frame.length = draw.choice((-1, draw.choice(EDGES) & 0xFFFF, max(0, len(octets) + draw.randrange(-5, 5))))
    elif kind == 4:
        frame.crc = draw.choice((0, 1, draw.getrandbits(32)))
    elif kind == 5:
        frame.keep = draw.choice((-1, draw.randrange(len(octets) + 8)))
    elif kind == 6:
        frame.tail = draw.randbytes(draw.randrange(40)) if draw.random() < 0.5 else b""
    elif kind == 7 and octets:
        octets[0] = draw.choice((0x41, 0x01, 0xC1, 0x81, draw.getrandbits(8)))
    elif kind == 8 and len(octets) > 1:
        octets[1] = 0x40 | draw.randrange(8) if draw.random() < 0.9 else draw.getrandbits(8)
    elif kind == 9 and len(octets) >= 14:
        place = draw.choice([i for i in (6, 22, 38) if i + 8 <= len(octets)])
        offset = draw.choice((0, 64, 4095, 4096, SIZE - 1, SIZE, SIZE + 1, ALIGN - 1, draw.randrange(SIZE)))
        octets[place : place + 8] = struct.pack(">Q", AT + offset)
    elif kind == 10:
        frame.lie = draw.randrange(LIES)
        frame.lie_value = draw.choice((draw.randrange(6), draw.choice(EDGES), draw.getrandbits(64)))
    elif kind == 11:
        del octets[draw.randrange(len(octets) + 1) :]
    frame.octets = bytes(octets)


def mutate_setup(draw: random.Random, one: Conversation) -> None:
    """Changes all of a conversation but its frames, in a way drawn at random."""
    kind = draw.randrange(7)
    if kind == 6:
        one.scratch = not one.scratch
    elif kind == 0:
        one.receives = draw.randrange(6)
        one.receive_size = draw.choice((0, 1, 5, 100, 5000))
    elif kind == 1:
        one.work = tuple(draw.randrange(WORK) for _ in range(draw.randrange(5)))
    elif kind == 2:
        one.crc = not one.crc
    elif kind == 3:
        one.initiator = not one.initiator
        one.start = b""
    elif kind == 4:
        one.chop = draw.getrandbits(16)
    else:
        start = bytearray(one.start or start_frame(one))
        place = draw.choice((16, 17, 18, 19, *range(20, len(start)), draw.randrange(len(start))))
        change = draw.randrange(4)
        if change == 0:
            start[place] ^= 1 << draw.randrange(8)
        elif change == 1:
            start[place] = draw.choice(EDGES) & 255
        elif change == 2:
            start += draw.randbytes(draw.choice((1, 2, 4, 100, 600)))
            start[18:20] = struct.pack(">H", len(start) - 20)
        else:
            del start[max(20, place) :]
        one.start = bytes(start)


def mutate(draw: random.Random, one: Conversation, corpus: list[Conversation]) -> Conversation:
    """A changed copy of a conversation. corpus: the conversations whose frames may be added."""
    one = dataclasses.replace(one, frames=[dataclasses.replace(frame) for frame in one.frames])
    frames = one.frames
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        kind = draw.randrange(10)
        if kind < 5 and frames:
            mutate_frame(draw, draw.choice(frames))
        elif kind == 5:
            mutate_setup(draw, one)
        elif kind == 6 and frames:
            frames.insert(draw.randrange(len(frames) + 1), dataclasses.replace(draw.choice(frames)))
        elif kind == 7 and len(frames) > 1:
            frames.pop(draw.randrange(len(frames)))
        elif kind == 8 and len(frames) > 1:
            i, j = draw.randrange(len(frames)), draw.randrange(len(frames))
            frames[i], frames[j] = frames[j], frames[i]
        elif kind == 9:
            more = draw.choice(corpus).frames
            place = draw.randrange(len(frames) + 1)
            frames[place:place] = [dataclasses.replace(frame) for frame in more]
    if draw.random() < 0.4:
        renumber(frames)
    while len(frames) > 16 or sum(len(frame.octets) for frame in frames) > 60_000:
        frames.pop()
    return one


# --- feeding of conversations ---


def start_frame(one: Conversation) -> bytes:
    flags = 0x10 | (0x40 if one.crc else 0)
    return mpa_frame(REPLY if one.initiator else REQUEST, flags, 2, (4, 4))


class TcpFeed:
    """Feeds octets to a queue pair over a TCP connection, and takes the queue pair's octets."""

    def __init__(self, qp: QP, one: Conversation, victim: Victim) -> None:
        self.sock, theirs = tcp_pair()
        start = one.start or start_frame(one)
        if one.initiator:
            qp.connect(theirs, crc=one.crc, ird=4, ord=4)
            read_request(self.sock)
            self.sock.sendall(start)
        else:
            # The victim reads all received bytes, as a program may.
            with contextlib.suppress(OSError):
                parse_request(start)
            with contextlib.suppress(OSError):
                qp.accept(theirs, start, ird=4, ord=4)
        theirs.close()
        self.sock.setblocking(False)

    def write(self, octets: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(octets)

    def lie(self, kind: int, value: int) -> None:
        """A stream has no counters and records to lie about."""

    def cell(self, frame: Frame, octets: bytes) -> None:
        """A stream has no cells."""

    def answer(self) -> bytes:
        try:
            return self.sock.recv(1 << 20)
        except OSError:
            return b""

    def close(self) -> None:
        self.sock.close()


LIES = 8


class RingFeed:
    """Feeds a ring, and also lies about counters and records."""

    def __init__(self, qp: QP, one: Conversation, victim: Victim) -> None:
        from shm_ends import RawPeer

        self.peer = RawPeer(victim.end, qp=qp)
        if one.start:
            struct.pack_into("=Q", self.peer.page, 0, int.from_bytes(one.start[16:24], "big"))

    def write(self, octets: bytes) -> None:
        self.peer.write(octets)

    def cell(self, frame: Frame, octets: bytes) -> None:
        from shm_by_hand import cell_size

        peer = self.peer
        length = len(octets) if frame.cell_length < 0 else frame.cell_length
        peer.put(octets)
        peer.word(length, frame.cell & 255, frame.cell_flags & 255)
        peer.tail += cell_size(length)

    def lie(self, kind: int, value: int) -> None:
        from shm_by_hand import ANSWER, HELLO, OFFER, SEALED, WAKEUP, record

        peer = self.peer
        small = value & 0xFFFFFFFF
        with contextlib.suppress(OSError):
            if kind == 0:
                # The word announces a cell with false length, kind and flags. In two of three cases the stamp is also
                # false.
                peer.word(value >> 8 & 0xFFFF, value >> 24 & 255, value >> 32 & 255, (0, small, None)[value % 3])
            elif kind == 1:
                peer.set_head(value)
            elif kind == 2:
                peer.post(record((WAKEUP, HELLO, OFFER, ANSWER, SEALED, small)[value % 6]))
            elif kind == 3:
                options = {("slot", "length", "generation", "access", "addr")[value % 5]: small}
                peer.post(record(OFFER, stag=OFFERED, **options), *[peer.registry_fd] * (value % 3))
            elif kind == 4:
                # The record offers an existing region, which the queue pair may use.
                struct.pack_into("=I", self.registry(), 4 * (value % 16), 1 + value % 3)
                peer.post(
                    record(
                        OFFER, stag=OFFERED, slot=value % 16, generation=1 + value % 2, access=6, addr=4096, length=4096
                    ),
                    peer.registry_fd,
                )
            elif kind == 5:
                struct.pack_into("=I", peer.page, 72, small)
            elif kind == 6:
                struct.pack_into("=II", peer.page, 0, small, value % 2)
            else:
                peer.sock.sendall(struct.pack("=Q", value)[: 1 + value % 8])

    def registry(self) -> mmap.mmap:
        from shm_by_hand import REGISTRY_SIZE

        return mmap.mmap(self.peer.registry_fd, REGISTRY_SIZE)

    def answer(self) -> bytes:
        return b"".join(octets for kind, _, octets in self.peer.cells() if kind == 2)[-(1 << 14) :]

    def close(self) -> None:
        self.peer.theirs.close()
        self.peer.page.close()
        self.peer.close()


def do_work(qp: QP, mr: MR, mw: MW, kinds: tuple[int, ...]) -> None:
    """Posts requests of the program, whose answers may come from the peer."""
    far = {"remote_addr": 4096, "rkey": OFFERED}
    for i, kind in enumerate(kinds):
        request = (
            SendWR(Opcode.RDMA_READ, [mr.sge(64 * i, 64)], remote_addr=1, rkey=2),
            SendWR(Opcode.RDMA_READ, [], remote_addr=1, rkey=2),
            SendWR(Opcode.SEND, [mr.sge(0, 16)]),
            SendWR(Opcode.RDMA_WRITE, [mr.sge(0, 5000)], remote_addr=1, rkey=2),
            SendWR(Opcode.RDMA_READ, [mr.sge(0, 1000), mr.sge(1000, 2000)], remote_addr=1, rkey=2),
            SendWR(Opcode.SEND, [mr.sge(0, 9)], flags=SendFlag.FENCE | SendFlag.SIGNALED),
            SendWR(Opcode.RDMA_READ, [mr.sge(0, 64)], **far),
            SendWR(Opcode.RDMA_WRITE, [mr.sge(0, 64)], **far),
            SendWR(Opcode.LOCAL_INV, invalidate_rkey=mw.rkey),
            SendWR.bind_mw(mw=mw, rkey=mw.rkey, bind=(mr, mr.addr + 8192, 64, REMOTE)),
        )[kind]
        qp.post_send(request)


def feed(victim: Victim, one: Conversation) -> object:
    """Feeds a conversation. Returns its visible outcome."""
    draw = random.Random(one.chop)
    mine, foreign, read_only = regions = victim.regions(one.scratch)
    qp = QP(victim.end.pd, victim.end.cq, max_recv_wr=8)
    qp.ready(access=ALL)
    windows = victim.windows(qp, mine)
    qp.post_recv(*((i, [mine.sge(i * one.receive_size, one.receive_size)]) for i in range(one.receives)))
    peer = TcpFeed(qp, one, victim) if verbs_ends.FABRIC == "soft_iw" else RingFeed(qp, one, victim)
    do_work(qp, mine, windows[0], one.work[: len(one.work) // 2])
    keys = mine.rkey, foreign.rkey, read_only.rkey, mine.rkey ^ 256, OFFERED, *(mw.rkey for mw in windows)
    stags = [struct.pack(">I", key) for key in keys]
    at = struct.pack(">Q", victim.at)[:6]
    pending = b""
    for i, frame in enumerate(one.frames):
        if frame.lie >= 0:
            victim.end.poll()
            peer.lie(frame.lie, frame.lie_value)
        if i == len(one.frames) // 2:
            do_work(qp, mine, windows[0], one.work[len(one.work) // 2 :])
        if frame.cell >= 0:
            # Mostly the pending octets, perhaps the beginning of a frame, go before the cell.
            if draw.random() < 0.8:
                peer.write(pending)
                pending = b""
            peer.cell(frame, frame.payload(stags, at))
            for _ in range(2):
                victim.end.poll()
        else:
            pending += frame.wire(one.crc and verbs_ends.FABRIC == "soft_iw", stags, at)
        # Several frames may come at once, or a frame in pieces.
        while pending and (draw.random() < 0.7 or i == len(one.frames) - 1):
            cut = len(pending) if draw.random() < 0.5 else draw.randrange(1, len(pending) + 1)
            peer.write(pending[:cut])
            pending = pending[cut:]
            for _ in range(2):
                victim.end.poll()
    for _ in range(3):
        victim.end.poll()
    answer = peer.answer()
    victim.end.poll()
    peer.close()
    victim.end.poll()
    assert qp.state in (State.RTS, State.ERR)
    counters = qp.counters()
    shown = tuple(min(value, 4) for name, value in counters.items() if not name.endswith("bytes"))
    events = []
    while (event := victim.end.context.get_async_event()) is not None:
        events.append(event[0])
    terminate = answer.rfind(b"\x41\x47") if counters["terminates_sent"] else -1
    code = answer[terminate + 18 : terminate + 20] if terminate >= 0 else b""
    statuses = tuple(sorted({int(wc.status) for wc in victim.end.done}))
    qp.close()
    for mw in windows:
        mw.close()
    for region in regions:
        region.close()
    return shown, statuses, tuple(events), code


class Fuzzer:
    """Feeds conversations to a Victim. A conversation that runs new code joins the corpus. folder: keeps the corpus."""

    def __init__(self, fabric: str, seed: int, folder: Path | None = None) -> None:
        verbs_ends.FABRIC = fabric
        self.draw = random.Random(seed)
        self.coverage = Coverage()
        self.signatures: set[object] = set()
        self.corpus: list[Conversation] = []
        self.folder = folder
        self.victim = Victim()
        self.fed = 0
        known = seeds()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            known += [Conversation.load(path.read_text()) for path in sorted(folder.glob("*.json"))]
        for one in known:
            self.feed(one, save=False)
        self.corpus = self.corpus or known

    def feed(self, one: Conversation, save: bool = True) -> None:
        if self.folder is not None:
            # When a sanitizer ends the process, the conversation is found in this file.
            (self.folder / "current").write_text(one.save())
        if self.coverage.there:
            self.coverage.start()
        signature = (one.crc, feed(self.victim, one))
        fresh = self.coverage.stop() if self.coverage.there else signature not in self.signatures
        self.signatures.add(signature)
        self.victim.check()
        self.fed += 1
        if fresh:
            self.corpus.append(one)
            if save and self.folder is not None:
                text = one.save()
                (self.folder / f"{hashlib.sha1(text.encode()).hexdigest()[:16]}.json").write_text(text)
        if self.fed % 2000 == 0:
            self.victim.close()
            self.victim = Victim()

    def step(self) -> None:
        # Recent finds are tried more often.
        place = self.draw.random() if self.draw.random() < 0.5 else 1 - self.draw.random() ** 2 / 4
        one = self.corpus[min(int(place * len(self.corpus)), len(self.corpus) - 1)]
        self.feed(mutate(self.draw, one, self.corpus))

    def report(self) -> str:
        code = f", {self.coverage.total()} pairs of blocks" if self.coverage.there else ""
        return f"{self.fed} conversations, {len(self.signatures)} outcomes, {len(self.corpus)} kept{code}"


def run(fabric: str, seconds: float, seed: int, rounds: int = 1 << 62, folder: Path | None = None) -> Fuzzer:
    """Feeds until the time or the rounds are used up."""
    deadline = time.monotonic() + seconds
    fuzzer = Fuzzer(fabric, seed, folder)
    while fuzzer.fed < rounds and time.monotonic() < deadline:
        fuzzer.step()
    fuzzer.victim.close()
    return fuzzer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--fabric", choices=("soft_iw", "soft_shm"))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--corpus", type=Path, help="keeps conversations there, by fabric, and begins with them")
    parser.add_argument("--replay", type=Path, nargs="+", help="feeds these files and nothing else")
    options = parser.parse_args()
    fabrics = [options.fabric] if options.fabric else ["soft_iw", "soft_shm"]
    for fabric in fabrics:
        if options.replay:
            fuzzer = Fuzzer(fabric, 0)
            for path in options.replay:
                fuzzer.feed(Conversation.load(path.read_text()))
        else:
            print(f"{fabric}: seed {options.seed}", flush=True)
            folder = options.corpus / fabric if options.corpus else None
            fuzzer = run(fabric, options.seconds / len(fabrics), options.seed, folder=folder)
        print(f"{fabric}: {fuzzer.report()}, no finding", flush=True)


if __name__ == "__main__":
    main()

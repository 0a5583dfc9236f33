"""A fuzzer for what a peer sends: a TCP stream (MPA, DDP, RDMAP), or a shared-memory ring with its records.

    python tests/verbs/fuzz.py --seconds 3600 [--fabric soft_iw|soft_shm] [--seed N]

Conversations are lists of frames. They are mutated, cut anywhere, and fed to a queue pair. What it did then (counters,
state, the Terminate it sent, its events) is its signature; conversations with a new one are mutated further. After
each, the memory around the regions must be untouched, and another queue pair of the same completion queue must work.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import time
from collections.abc import Callable

import verbs_ends
from verbs_ends import (
    ALL,
    REQUEST,
    End,
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

from rmemcached.verbs import MR, QP, Opcode, SendWR, State, Status

CANARY = b"\xc3" * 4096
EDGES = (0, 1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 4095, 4096, 65535, 1 << 31, (1 << 32) - 1)


class Victim:
    """An end with a region between canaries, and a second queue pair whose peer behaves."""

    def __init__(self) -> None:
        self.end = End(4096, cqe=4096)
        self.block = bytearray(CANARY + bytes(4096) + CANARY)
        self.mr = MR(self.end.pd, memoryview(self.block)[4096:8192], ALL)
        self.friend = End(4096)
        self.good = QP(self.end.pd, self.end.cq)
        self.good.ready(access=ALL)
        ours, theirs = stream_pair()
        give(self.friend.qp, ours, initiator=True)
        give(self.good, theirs, initiator=False)

    def check(self) -> None:
        assert self.block[:4096] == CANARY and self.block[8192:] == CANARY, "written beyond the region"
        self.end.done.clear()
        self.good.post_recv((99, [self.end.mr.sge(0, 16)]))
        self.friend.qp.post_send(SendWR(Opcode.SEND, [self.friend.mr.sge(0, 16)]))
        (sent,) = completions(self.friend, 1, self.end)
        (received,) = completions(self.end, 1, self.friend)
        assert (sent.status, received.wr_id, received.status) == (Status.SUCCESS, 99, Status.SUCCESS)

    def close(self) -> None:
        self.friend.close()
        self.end.close()


def seeds(victim: Victim, crc: bool) -> list[list[bytes]]:
    """Conversations without fault."""
    stag, at = victim.mr.rkey, victim.mr.addr
    single = [
        send(b"hello"),
        untagged(5, msn=1),
        untagged(4, b"bye", invalidate=stag),
        tagged(0, 1, 0),
        write(stag, at + 100, b"data" * 50),
        read_request_segment((7, 8), 300, (stag, at)),
        read_request_segment((7, 8), 0, (1, 2)),
        tagged(2, 5, 6, b"unasked"),
        untagged(7, bytes([0x11, 0, 0xC0, 0]) + bytes(18), qn=2),
    ]
    chains = [[frame] for frame in single]
    chains.append([send(b"first", last=False), send(b"second", mo=5), send(b"third", 2)])
    chains.append([write(stag, at, b"x" * 3000, last=False), write(stag, at + 3000, b"y"), send(b"", 1)])
    chains.append([read_request_segment((7, 8), 64, (stag, at), msn=i + 1) for i in range(5)])
    return [[fpdu(frame, crc) for frame in chain] for chain in chains]


def mutate(draw: random.Random, chain: list[bytes], corpus: list[list[bytes]], crc: bool) -> list[bytes]:
    chain = list(chain)
    for _ in range(draw.randrange(1, 4)):
        i = draw.randrange(len(chain))
        frame = bytearray(chain[i])
        kind = draw.randrange(7)
        if kind == 0 and frame:
            frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
        elif kind == 1 and len(frame) > 8:
            place = draw.randrange(len(frame) - 4)
            frame[place : place + 4] = struct.pack(">I", draw.choice(EDGES))
        elif kind == 2:
            frame[0:2] = struct.pack(">H", draw.choice(EDGES) & 0xFFFF)
        elif kind == 3:
            del frame[draw.randrange(len(frame) + 1) :]
        elif kind == 4:
            frame += draw.randbytes(draw.randrange(40))
        elif kind == 5:
            chain.insert(i, bytes(frame))
        else:
            chain += draw.choice(corpus)
        if crc and draw.random() < 0.7 and len(frame) > 6:
            # With a CRC that is right, so that what is behind it is reached.
            length = min(int.from_bytes(frame[:2], "big"), len(frame) - 6)
            frame = bytearray(fpdu(bytes(frame[2 : 2 + length])))
        chain[i] = bytes(frame)
        if sum(map(len, chain)) > 100_000 or len(chain) > 24:
            break
    return [frame for frame in chain if frame] or [b"\0"]


class TcpFeed:
    def __init__(self, qp: QP, crc: bool) -> None:
        self.sock, theirs = tcp_pair()
        self.sock.sendall(mpa_frame(REQUEST, 0x10 | (0x40 if crc else 0), 2, (4, 4)))
        qp.accept(theirs, read_request(theirs), ird=4, ord=4)
        self.sock.setblocking(False)

    def write(self, octets: bytes) -> None:
        try:
            self.sock.sendall(octets)
        except OSError:
            return

    def answer(self) -> bytes:
        try:
            return self.sock.recv(1 << 20)
        except OSError:
            return b""

    def close(self) -> None:
        self.sock.close()


class RingFeed:
    """Also tells lies about counters and records."""

    def __init__(self, qp: QP, draw: random.Random, victim: Victim) -> None:
        from test_shm import BELL, HELLO, OFFER, RING_SIZE, RawPeer, record

        self.peer = RawPeer(victim.end, qp=qp)
        self.draw = draw
        self.size = RING_SIZE
        self.lies: list[Callable[[], object]] = [
            lambda: self.peer.set_tail(draw.choice((1 << 63, self.peer.tail - 1, self.peer.tail + (1 << 40)))),
            lambda: self.peer.set_head(draw.choice(EDGES)),
            lambda: self.peer.post(record(draw.choice((BELL, HELLO, OFFER, draw.getrandbits(32))))),
            lambda: self.peer.post(
                record(OFFER, stag=1, generation=1, length=draw.choice(EDGES), slot=draw.choice(EDGES)),
                *[self.peer.registry_fd] * draw.randrange(3),
            ),
            lambda: struct.pack_into("=I", self.peer.page, 72, draw.getrandbits(32)),
            lambda: struct.pack_into("=II", self.peer.page, 8, draw.getrandbits(32), draw.randrange(2)),
        ]

    def write(self, octets: bytes) -> None:
        self.peer.write(octets[: self.size])
        if self.draw.random() < 0.1:
            try:
                self.draw.choice(self.lies)()
            except OSError:
                return

    def answer(self) -> bytes:
        return self.peer.read()

    def close(self) -> None:
        self.peer.close()


def run(fabric: str, seconds: float, seed: int, rounds: int = 1 << 62) -> tuple[int, int]:
    """Feeds until the time or the rounds are used up. Conversations fed, and signatures seen."""
    verbs_ends.FABRIC = fabric
    draw = random.Random(seed)
    signatures: set[object] = set()
    deadline = time.monotonic() + seconds
    fed = 0
    while fed < rounds and time.monotonic() < deadline:
        # The keys of a victim are in the conversations: a new victim, a new corpus.
        crc = fabric == "soft_iw" and draw.random() < 0.5
        victim = Victim()
        os.set_blocking(victim.end.context.async_fileno(), False)
        corpus = seeds(victim, crc)
        for _ in range(400):
            if fed >= rounds or time.monotonic() >= deadline:
                break
            chain = mutate(draw, draw.choice(corpus), corpus, crc)
            signature = feed(victim, draw, chain, crc)
            if (crc, signature) not in signatures:
                signatures.add((crc, signature))
                corpus.append(chain)
            fed += 1
        victim.close()
    return fed, len(signatures)


def feed(victim: Victim, draw: random.Random, chain: list[bytes], crc: bool) -> object:
    qp = QP(victim.end.pd, victim.end.cq, max_recv_wr=8)
    qp.ready(access=ALL)
    qp.post_recv(*((i, [victim.mr.sge(i * 100, 100)]) for i in range(draw.randrange(4))))
    if draw.random() < 0.3:
        read = SendWR(Opcode.RDMA_READ, [victim.mr.sge(0, 64)], remote_addr=1, rkey=2)
        qp.post_send(*[read] * draw.randrange(1, 4))
    peer = TcpFeed(qp, crc) if verbs_ends.FABRIC == "soft_iw" else RingFeed(qp, draw, victim)
    octets = b"".join(chain)
    while octets:
        cut = draw.randrange(1, len(octets) + 1)
        peer.write(octets[:cut])
        octets = octets[cut:]
        for _ in range(3):
            victim.end.poll()
    for _ in range(3):
        victim.end.poll()
    answer = peer.answer()
    peer.close()
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
    victim.check()
    return shown, statuses, tuple(events), code


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--fabric", choices=("soft_iw", "soft_shm"))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    fabrics = [options.fabric] if options.fabric else ["soft_iw", "soft_shm"]
    for fabric in fabrics:
        print(f"{fabric}: seed {options.seed}", flush=True)
        fed, seen = run(fabric, options.seconds / len(fabrics), options.seed)
        print(f"{fabric}: {fed} conversations, {seen} different outcomes, no finding")


if __name__ == "__main__":
    main()

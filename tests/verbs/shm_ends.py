"""Common parts of the tests of soft_shm: regions in shared memory, and a peer made by hand."""

from __future__ import annotations

import contextlib
import os
import socket

import verbs_ends
from shm_by_hand import CHUNK_MAX, RECORD, STREAM, ShmPeer
from verbs_ends import ALL, End, completions, until

from rmemcached.verbs import MR, QP, EventType, Opcode, SendWR, State


def shared_region(end: End, size: int, access: int = ALL) -> tuple[MR, verbs_ends.Memory]:
    mr = MR.alloc(end.pd, size, access)
    return mr, verbs_ends.Memory(mr)


def one_sided(end: End) -> int:
    """The number of the end's READs and WRITEs done without the stream."""
    return end.qp.counters()["one_sided"]


def read(a: End, mr: MR, size: int = 8, at: int = 0, **options: int) -> SendWR:
    """A READ of the peer's region into the end's buffer."""
    return SendWR(Opcode.RDMA_READ, [a.mr.sge(0, size)], remote_addr=mr.addr + at, rkey=mr.rkey, **options)


def write(a: End, mr: MR, size: int = 8, at: int = 0, **options: int) -> SendWR:
    """A WRITE of the end's buffer into the peer's region."""
    return SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, size)], remote_addr=mr.addr + at, rkey=mr.rkey, **options)


def acquaint(a: End, b: End, mr: MR) -> None:
    """A READ of the region through the stream, after which the target offers the region."""
    a.qp.post_send(read(a, mr))
    completions(a, 1, b)
    a.poll()


class RawPeer(ShmPeer):
    """A peer of an end in the same process."""

    def __init__(
        self,
        end: End,
        hello: bool = True,
        qp: QP | None = None,
        pair: tuple[socket.socket, socket.socket] | None = None,
    ) -> None:
        self.end = end
        ours, theirs = pair or socket.socketpair()
        ours.setblocking(False)
        (qp or end.qp).attach(theirs)
        super().__init__(ours)
        end.peers.append(self)
        if hello:
            self.hello()
            end.poll()

    def close(self) -> None:
        if self in self.end.peers:
            self.end.peers.remove(self)
            super().close()

    def receive(self) -> None:
        """Takes the records sent since by the end."""
        with contextlib.suppress(BlockingIOError):
            while True:
                octets, fds, _, _ = socket.recv_fds(self.sock, RECORD.size, 3)
                self.fds += fds
                if not octets:
                    return
                self.records.append(octets)

    def write(self, octets: bytes) -> None:
        """Writes octets of the stream, in as few cells as possible."""
        for at in range(0, len(octets), CHUNK_MAX):
            self.cell(octets[at : at + CHUNK_MAX], STREAM)

    def cells(self) -> list[tuple[int, int, bytes]]:
        """Kind, flags and octets of the cells written since by the end."""
        found = list(iter(self.next_cell, None))
        self.set_head(self.taken)
        return found

    def read(self) -> bytes:
        """The octets of the stream written since by the end. There are no messages."""
        cells = self.cells()
        assert all((kind, flags) == (STREAM, 0) for kind, flags, _ in cells)
        return b"".join(octets for _, _, octets in cells)


def broken(peer: RawPeer) -> None:
    """The queue pair gets into the state ERR, and the context reports QP_FATAL for this queue pair."""
    until(lambda: peer.end.qp.state == State.ERR, peer.end)
    os.set_blocking(peer.end.context.async_fileno(), False)
    event = peer.end.context.get_async_event()
    assert event == (EventType.QP_FATAL, peer.end.qp)

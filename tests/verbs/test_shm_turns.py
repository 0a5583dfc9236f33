"""soft_shm: windows and records of a peer are also part of a bounded turn of progress."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator

import polling
import pytest
import verbs_ends
from shm_by_hand import OFFER, REGISTRY_SIZE, memfd, record
from shm_ends import RawPeer, acquaint, read, shared_region, write
from verbs_ends import End, completions, statuses, until

from rmemcached.verbs import MR, WC, Opcode, SendWR, State, Status

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]
MB = 1 << 20


@contextlib.contextmanager
def acquainted(size: int) -> Iterator[tuple[End, End, MR, verbs_ends.Memory]]:
    """Two ends of soft_shm, and a region of the second end mapped by the first."""
    with End(size) as a, End(4096) as b:
        verbs_ends.connect(a, b)
        mr, memory = shared_region(b, size)
        acquaint(a, b, mr)
        yield a, b, mr, memory


@pytest.mark.parametrize("how", ["polls", "waits"])
def test_a_long_copy_is_done_in_pieces(how: str) -> None:
    """A long copy is done in pieces, without delay for others and without work at the target."""
    size = 40 * MB
    with acquainted(size) as (a, _, mr, memory):
        memory[:] = struct.pack("=I", 1234567) * (size // 4)
        channel = a.channel
        assert channel is not None
        os.set_blocking(channel.fileno(), False)
        a.cq.arm()
        before = a.qp.counters()["one_sided"]
        a.qp.post_send(read(a, mr, size, wr_id=1), write(a, mr, 8, wr_id=2))
        assert a.qp.counters()["one_sided"] == before
        if how == "waits":
            found: list[WC] = []
            while len(found) < 2:
                assert polling.readable(channel, verbs_ends.PATIENCE)
                while channel.get_event() is not None:
                    a.cq.arm()
                found += a.cq.poll()
        else:
            found = completions(a, 2)
        assert [(wc.wr_id, wc.status, wc.byte_len) for wc in found] == [(1, 0, size), (2, 0, 8)]
        assert bytes(a.buffer) == bytes(memory)
        a.buffer[:] = bytes(size)
        a.qp.post_send(write(a, mr, size, wr_id=3))
        assert statuses(completions(a, 1)) == [Status.SUCCESS] and bytes(memory) == bytes(size)


@pytest.mark.parametrize("opcode", [Opcode.RDMA_READ, Opcode.RDMA_WRITE])
def test_a_region_that_goes_in_the_middle_of_a_copy(opcode: Opcode) -> None:
    size = 40 * MB
    with acquainted(size) as (a, b, mr, _):
        wr = SendWR(opcode, [a.mr.sge(0, size)], remote_addr=mr.addr, rkey=mr.rkey)
        a.qp.post_send(wr)
        mr.close()
        (wc,) = completions(a, 1, b)
        # A WRITE is complete when it is in the ring. The refusal comes later.
        assert wc.status == Status.REM_ACCESS_ERR or opcode == Opcode.RDMA_WRITE
        until(lambda: a.qp.state == State.ERR, a, b)


def test_a_poll_takes_a_few_offers_of_many() -> None:
    with End() as end:
        peer = RawPeer(end)
        struct.pack_into("=I", mmap.mmap(peer.registry_fd, REGISTRY_SIZE), 0, 1)
        region = memfd(4096)
        for i in range(64):
            peer.post(record(OFFER, stag=i * 256, generation=1, length=4096, addr=4096 * i, access=4), region)
        end.cq.poll(0)
        assert 0 < end.context.windows()["regions"] <= 4
        until(lambda: end.context.windows()["regions"] == 64, end)
        assert end.qp.state == State.RTS
        os.close(region)


def test_a_peer_that_frees_one_line_at_a_time() -> None:
    """The peer gets a line's octets at a time, and at the end everything."""
    with End() as end:
        peer = RawPeer(end)
        end.buffer[:] = os.urandom(len(end.buffer))
        end.qp.post_send(*(SendWR(Opcode.SEND, [end.mr.sge(0, 60_000)], flags=0) for _ in range(3)))
        octets = b""
        for _ in range(40):
            whole = peer.taken
            octets += peer.read()
            line, full = peer.taken, end.qp.counters()["tx_bytes"]
            peer.set_head(whole)
            while whole < line and end.qp.counters()["sends"] < 3:
                whole += 64
                peer.set_head(whole)
                end.poll()
            assert end.qp.counters()["tx_bytes"] > full or end.qp.counters()["sends"] == 3
            if len(octets) > 3 * 60_000 and end.qp.counters()["sends"] == 3:
                break
        octets += peer.read()
        assert len(octets) == end.qp.counters()["tx_bytes"] and end.qp.state == State.RTS

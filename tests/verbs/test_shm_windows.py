"""soft_shm: a process maps a limited part of its peers' memory, at the cost of the peer alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shm_by_hand import (
    ANSWER,
    ANSWERS,
    F_ADD_SEALS,
    F_GET_SEALS,
    HELLO,
    MAPPED,
    MESSAGE,
    OFFER,
    REGISTRY_SIZE,
    RING_AT,
    SEAL_FUTURE_WRITE,
    SEAL_GROW,
    SEAL_SEAL,
    SEAL_SHRINK,
    SEALED,
    SIZE,
    lingering,
    memfd,
    record,
)
from shm_ends import RawPeer, acquaint, broken, one_sided, read, shared_region, write
from verbs_ends import ALL, PATHS, End, completions, connect, fpdu, statuses, tagged, until

from rmemcached.verbs import QP, Access, Context, Opcode, SendWR, State, Status, VerbsError

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
READ_RESPONSE = 2
KEEP_SIZE, HOLE = 1, 3  # FALLOC_FL_KEEP_SIZE, and with FALLOC_FL_PUNCH_HOLE
READABLE = Access.LOCAL_WRITE | Access.REMOTE_READ


def limited(**limits: Any) -> End:
    end = End()
    end.context.limit_windows(**limits)
    return end


def paid_peer(
    registry: int | None = None, answers: int = ANSWERS, end: End | None = None, qp: QP | None = None
) -> tuple[End, RawPeer]:
    """An end that maps only memory whose pages the peer has allocated, and a hand-made peer that behaves so far."""
    end = end or limited(paid=True)
    peer = RawPeer(end, hello=False, qp=qp)
    peer.page[0] = 0
    peer.page[RING_AT] = 0
    fcntl.fcntl(peer.ring_fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)
    if registry is None:
        os.pwrite(peer.registry_fd, struct.pack("=I", 1) + bytes(REGISTRY_SIZE - 4), 0)
    fcntl.fcntl(peer.registry_fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)
    peer.post(record(HELLO, access=answers), peer.ring_fd, peer.registry_fd)
    end.poll()
    return end, peer


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def fallocate(fd: int, mode: int, start: int, length: int) -> int:
    """0, or the system's error."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return 0 if libc.fallocate(fd, mode, start, length) == 0 else ctypes.get_errno()


def region_record(kind: int, length: int, stag: int = 7, access: int = Access.REMOTE_READ) -> bytes:
    return record(kind, stag=stag, generation=1, length=length, addr=1 << 20, access=access)


def offer(peer: RawPeer, fd: int, length: int, stag: int = 7, access: int = Access.REMOTE_READ) -> None:
    peer.post(region_record(OFFER, length, stag, access), fd)
    peer.end.poll()


def answers(peer: RawPeer) -> list[int]:
    """Returns for each new answer whether the peer's region was mapped, and has to be sealed."""
    known = len(peer.records)
    peer.receive()
    found = [struct.unpack("=IIIHHIIIIQQ", octets) for octets in peer.records[known:]]
    return [fields[8] for fields in found if fields[0] == ANSWER]


def seal(peer: RawPeer, fd: int, length: int, seals: int = SEAL_FUTURE_WRITE | SEAL_SEAL) -> None:
    """Seals a region as the owner of a mapped region does."""
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    peer.post(region_record(SEALED, length))
    peer.end.poll()


def post_read(end: End, stag: int = 7, size: int = 8, **options: int) -> None:
    end.qp.post_send(SendWR(Opcode.RDMA_READ, [end.mr.sge(0, size)], remote_addr=1 << 20, rkey=stag, **options))


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"pair_regions": 3}, 6),
        ({"pair_bytes": 5 * 4096}, 4),
        ({"regions": 3}, 3),
        ({"bytes": 5 * 4096}, 2),
        ({"regions": 0}, 0),
        ({"bytes": 0}, 0),
        ({}, 20),
        ({"paid": 1}, 20),
    ],
)
def test_what_goes_beyond_a_limit_goes_through_the_ring(limits: dict[str, Any], most: int) -> None:
    """Regions beyond a limit are read and written through the ring, though two queue pairs name ten again and again."""
    with limited(**limits) as a, End() as b:
        pairs = [(a.qp, b.qp), (QP(a.pd, a.cq), QP(b.pd, b.cq))]
        for pair in pairs[1:]:
            for qp in pair:
                qp.ready(access=ALL)
        for a.qp, b.qp in pairs:
            connect(a, b)
        regions = [[shared_region(b, 8192) for _ in range(10)] for _ in pairs]
        for turn in range(3):
            for (a.qp, b.qp), mine in zip(pairs, regions, strict=True):
                for i, (mr, memory) in enumerate(mine):
                    memory[:8] = struct.pack("=Q", i + turn)
                    a.qp.post_send(read(a, mr))
                    assert statuses(completions(a, 1, b)) == [Status.SUCCESS]
                    assert a.buffer[:8] == struct.pack("=Q", i + turn)
                    a.buffer[:8] = struct.pack("=Q", i + turn + 100)
                    a.qp.post_send(write(a, mr, at=8), read(a, mr))
                    assert statuses(completions(a, 2, b)) == [Status.SUCCESS] * 2
                    assert memory[8:16] == struct.pack("=Q", i + turn + 100)
                    # This poll sees the offer.
                    a.poll()
        found = a.context.windows()
        assert (found["regions"], found["bytes"], found["declined"]) == (most, most * 8192, 20 - most)
        for qp, _ in pairs:
            qp.close()
        until(lambda: a.context.windows() == {"regions": 0, "bytes": 0, "declined": 20 - most})


def test_a_region_that_is_gone_makes_room() -> None:
    with limited(pair_regions=1) as a, End() as b:
        connect(a, b)
        for _ in range(5):
            mr, _ = shared_region(b, 4096)
            acquaint(a, b, mr)
            before = one_sided(a)
            a.qp.post_send(read(a, mr))
            completions(a, 1, b)
            assert one_sided(a) == before + 1
            mr.close()
        assert a.context.windows() == {"regions": 1, "bytes": 4096, "declined": 0}


def test_who_has_mapped_a_region_loses_it_when_it_is_renewed() -> None:
    """A renewed region leaves the peers that have mapped it, and is offered to them anew while they have a stream."""
    with End() as a, End() as b:
        connect(a, b)
        mr, memory = shared_region(b, 8192)
        acquaint(a, b, mr)
        for _ in range(3):
            mr.renew()
            memory[:8] = os.urandom(8)
            before = one_sided(a)
            acquaint(a, b, mr)
            assert one_sided(a) == before and bytes(a.buffer[:8]) == bytes(memory[:8])
            a.qp.post_send(read(a, mr))
            assert statuses(completions(a, 1, b)) == [Status.SUCCESS]
            assert one_sided(a) == before + 1 and a.context.windows()["regions"] == 1


@pytest.mark.parametrize("opcode", [Opcode.RDMA_READ, Opcode.RDMA_WRITE])
@pytest.mark.parametrize("renewed", [True, False])
def test_a_renewed_region_is_out_of_reach_of_who_is_late(opcode: Opcode, renewed: bool) -> None:
    """A late peer cannot reach a renewed region after the owner has ended the queue pair.

    The end alone leaves the region in reach until the peer has noticed.
    """
    with End() as a, End() as b:
        connect(a, b)
        mr, memory = shared_region(b, 8192)
        acquaint(a, b, mr)
        b.qp.close()
        if renewed:
            mr.renew()
        memory[:8] = b"what is "
        a.buffer[:8] = b"later on"
        a.qp.post_send((read if opcode == Opcode.RDMA_READ else write)(a, mr))
        (wc,) = completions(a, 1)
        # A WRITE is complete when it is in the ring, from which nobody takes the octets.
        assert wc.status == Status.SUCCESS or (renewed and opcode == Opcode.RDMA_READ)
        moved = bytes(a.buffer[:8]) == bytes(memory[:8])
        assert moved == (not renewed)


def test_limits_that_cannot_be() -> None:
    with Context("soft_iw0") as other, pytest.raises(VerbsError) as caught:
        other.limit_windows()
    assert caught.value.errno == errno.EINVAL
    with Context("soft_iw0") as other, pytest.raises(VerbsError):
        other.windows()
    with Context("soft_shm0") as context:
        wrong: list[dict[str, Any]] = [{"pair_regions": 257}, {"pair_bytes": (1 << 40) + 1}, {"bytes": (1 << 46) + 1}]
        for limits in wrong:
            with pytest.raises(VerbsError) as caught:
                context.limit_windows(**limits)
            assert caught.value.errno == errno.EINVAL
        context.limit_windows(pair_regions=256, pair_bytes=1 << 40, bytes=1 << 46)
    with End() as a, End() as b:
        connect(a, b)
        acquaint(a, b, shared_region(b, 4096)[0])
        with pytest.raises(VerbsError) as caught:
            a.context.limit_windows()
        assert caught.value.errno == errno.EBUSY


def test_address_space_is_not_used_up() -> None:
    """Offers of 1 TB each leave other peers enough of the default limit."""
    with End() as end:
        peer = RawPeer(end)
        struct.pack_into("=I", mmap.mmap(peer.registry_fd, REGISTRY_SIZE), 0, 1)
        huge = memfd(1 << 40)
        for i in range(140):
            offer(peer, huge, 1 << 40, stag=i * 256)
            offer(peer, huge, 1 << 35, stag=i * 256 + 1)
        assert end.context.windows() == {"regions": 2, "bytes": 1 << 36, "declined": 278}
        assert allocated(huge) == 0 and end.qp.state == State.RTS
        os.close(huge)


@pytest.mark.parametrize("access", [Access.REMOTE_READ, Access.REMOTE_READ | Access.REMOTE_WRITE])
@pytest.mark.parametrize("holes", ["all", "the last page", "none"])
def test_only_what_the_peer_has_paid_for_is_mapped(access: int, holes: str) -> None:
    """Only memory whose pages all exist is mapped: the process that touches a page of a memfd first pays for the
    page."""
    end, peer = paid_peer()
    with end:
        region = memfd(MB)
        memory = mmap.mmap(region, MB)
        if holes != "all":
            memory[: MB - 4096] = b"p" * (MB - 4096)
        if holes == "none":
            memory[-1] = 112
        paid = allocated(region)
        offer(peer, region, MB, access=access)
        # The end answers, but does not use the region before the seal, after which no hole can be made.
        assert answers(peer) == [MAPPED]
        post_read(end, size=8)
        assert one_sided(end) == 0 and peer.read()[2:4] == b"\x41\x41"
        peer.write(fpdu(tagged(READ_RESPONSE, end.mr.lkey, end.mr.addr, b"answered"), crc=False))
        assert statuses(completions(end, 1)) == [Status.SUCCESS]
        seal(peer, region, MB)
        found = end.context.windows()
        assert (found["regions"], found["declined"]) == ((1, 0) if holes == "none" else (0, 1))
        post_read(end, size=MB // 16)
        if holes == "none":
            assert statuses(completions(end, 1)) == [Status.SUCCESS] and one_sided(end) == 1
            assert end.buffer[:8] == b"pppppppp"
            # The seal keeps the pages, since no hole can be made. But the peer can write through its earlier mapping.
            assert fallocate(region, HOLE, 0, MB) == errno.EPERM
            memory[:8] = b"still_my"
            post_read(end)
            assert end.buffer[:8] == b"still_my"
        else:
            # The READ has gone to the peer, who answers.
            octets = peer.read()
            assert octets[2:4] == b"\x41\x41" and one_sided(end) == 0
            peer.write(response(end))
            assert statuses(completions(end, 1)) == [Status.SUCCESS]
        assert allocated(region) == paid and end.qp.state == State.RTS
        memory.close()
        os.close(region)


def response(end: End) -> bytes:
    """The response to a READ of 64 KB, in two frames."""
    half = MB // 32
    return b"".join(
        fpdu(tagged(READ_RESPONSE, end.mr.lkey, end.mr.addr + at, b"answered" * (half // 8), last=at > 0), crc=False)
        for at in (0, half)
    )


LARGE = 40 * MB


def large_file(hole: int | None = None, size: int = LARGE) -> int:
    """A memfd with all its pages but the page at `hole`."""
    region = memfd(size)
    os.pwrite(region, bytes(size), 0)
    if hole is not None:
        assert fallocate(region, HOLE, hole, 4096) == 0
    return region


@pytest.mark.parametrize("access", [Access.REMOTE_READ, Access.REMOTE_READ | Access.REMOTE_WRITE])
@pytest.mark.parametrize("hole", [0, 20 * MB, LARGE - 4096, None])
def test_a_large_region_is_looked_at_slice_by_slice(access: int, hole: int | None) -> None:
    """A region above 16 MB is mapped only if no page is missing at any place, at no further cost."""
    end, peer = paid_peer()
    with end:
        region = large_file(hole)
        paid = allocated(region)
        if access == Access.REMOTE_READ:
            fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE)
            offer(peer, region, LARGE, access=access)
        else:
            offer(peer, region, LARGE, access=access)
            assert answers(peer) == [MAPPED]
            seal(peer, region, LARGE)
        for _ in range(LARGE // (4 * MB)):
            end.cq.poll()
        mapped = int(hole is None)
        assert end.context.windows() == {"regions": mapped, "bytes": mapped * LARGE, "declined": 1 - mapped}
        post_read(end)
        assert one_sided(end) == mapped and allocated(region) == paid and end.qp.state == State.RTS
        os.close(region)


def test_a_large_region_takes_several_turns() -> None:
    """The owner gets an answer after the look at the whole region. A message received meanwhile is taken."""
    end, peer = paid_peer()
    with end:
        region = large_file(size=64 * MB)
        fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE)
        end.qp.post_recv((1, [end.mr.sge(0, 100)]))
        peer.post(region_record(OFFER, 64 * MB), region)
        end.cq.poll()
        peer.cell(b"hello", MESSAGE)
        assert statuses(end.cq.poll()) == [Status.SUCCESS] and answers(peer) == []
        turns = 2
        while answers(peer) == []:
            end.cq.poll()
            turns += 1
        assert turns >= 4 and end.context.windows() == {"regions": 1, "bytes": 64 * MB, "declined": 0}
        os.close(region)


@pytest.mark.parametrize("how", ["the peer ends", "the queue pair is closed"])
def test_an_end_in_the_middle_of_a_look(how: str) -> None:
    end, peer = paid_peer()
    with end:
        region = large_file(size=64 * MB)
        fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE)
        peer.post(region_record(OFFER, 64 * MB), region)
        end.cq.poll()
        assert end.context.windows()["regions"] == 1 and answers(peer) == []
        if how == "the peer ends":
            peer.sock.close()
            until(lambda: end.qp.state == State.ERR, end)
        else:
            end.qp.close()
        until(lambda: end.context.windows()["regions"] == 0)
        os.close(region)


def block_cachestat() -> None:
    """Makes cachestat fail as on a kernel before 6.5, without the system call."""
    refused = [(0x20, 0, 0, 0), (0x15, 0, 1, 451), (6, 0, 0, 0x50000 | errno.ENOSYS), (6, 0, 0, 0x7FFF0000)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *code) for code in refused))
    program = struct.pack("=HxxxxxxQ", len(refused), ctypes.addressof(filters))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0


@pytest.mark.parametrize(("trusted", "hole", "mapped"), [(True, None, 1), (True, 20 * MB, 0), (False, None, 0)])
def test_a_large_region_without_cachestat(trusted: bool, hole: int | None, mapped: int) -> None:
    """Without cachestat the middle of a large file is not known for certain: the end maps only a trusted peer's."""
    found = in_a_process(
        f"os.close(region); region = large_file({hole}); fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE)\n"
        "block_cachestat()",
        "for _ in range(40): end.poll()\nlocked = 0",
        paid=True,
        size=LARGE,
        nobody=0xFFFFFFFF if trusted else os.geteuid(),
    )
    assert (found["regions"], found["declined"]) == (mapped, 1 - mapped)
    assert found["allocated"] == LARGE - (0 if hole is None else 4096)


def test_memory_that_is_sealed_already_is_not_mapped_for_writing() -> None:
    """An offer of sealed memory for writing is declined, without an error of the peer's."""
    end, peer = paid_peer()
    with end:
        region = memfd(MB, seals=0)
        os.pwrite(region, b"p" * MB, 0)
        fcntl.fcntl(region, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
        offer(peer, region, MB, access=Access.REMOTE_READ | Access.REMOTE_WRITE)
        assert answers(peer) == [0]
        assert end.context.windows() == {"regions": 0, "bytes": 0, "declined": 1}
        assert end.qp.state == State.RTS
        os.close(region)


def test_an_end_seals_no_file_of_its_peer() -> None:
    """An end neither seals files nor waits for seals: peers without answers are declined, unsealed regions stay
    unused."""
    for understands in (0, ANSWERS):
        end, peer = paid_peer(answers=understands)
        with end:
            descriptors = len(os.listdir("/proc/self/fd"))
            region = memfd(4096)
            os.pwrite(region, b"p" * 4096, 0)
            for count in range(1, 4):
                offer(peer, region, 4096)
                assert answers(peer) == [MAPPED] * understands
                found = end.context.windows()
                assert (found["regions"], found["declined"]) == ((1, 0) if understands else (0, count))
            assert fcntl.fcntl(region, F_GET_SEALS) == SEAL_SHRINK | SEAL_GROW
            # A thread closes declined memory. The thread of an earlier test may have had some to close, too.
            kept = descriptors + 1 + understands
            until(lambda kept=kept: len(os.listdir("/proc/self/fd")) <= kept)  # type: ignore[misc]
            os.close(region)
            peer.sock.close()
            qp = end.qp
            until(lambda qp=qp: qp.state == State.ERR, end)  # type: ignore[misc]
            # The descriptors at first include both ends of the socket.
            until(lambda kept=descriptors - 2: len(os.listdir("/proc/self/fd")) <= kept)  # type: ignore[misc]
            assert end.context.windows()["regions"] == 0


@pytest.mark.parametrize("case", ["not sealed", "nothing is mapped", "another region", "twice"])
def test_what_is_said_of_seals_is_not_believed(case: str) -> None:
    end, peer = paid_peer()
    with end:
        region = memfd(4096)
        os.pwrite(region, b"p" * 4096, 0)
        if case != "nothing is mapped":
            offer(peer, region, 4096)
        if case in ("another region", "twice"):
            fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE)
        for _ in range(2 if case == "twice" else 1):
            assert end.qp.state == State.RTS
            peer.post(region_record(SEALED, 4096, stag=8 if case == "another region" else 7))
            end.poll()
        broken(peer)
        os.close(region)


def test_an_answer_to_no_offer_ends_the_queue_pair() -> None:
    end, peer = paid_peer()
    with end:
        peer.post(region_record(ANSWER, 4096, access=MAPPED))
        broken(peer)


def test_pages_behind_the_end_of_a_file_do_not_count() -> None:
    """Pages behind the end of a sealed file do not count as its own, even if they are as many as its holes, or slow to
    free."""
    for hole, behind in ((4096, 4096), (0, 16 * MB)):
        end, peer = paid_peer()
        with end:
            region = memfd(MB, seals=0)
            os.pwrite(region, b"p" * (MB - hole), 0)
            assert fallocate(region, KEEP_SIZE, MB, behind) == 0
            fcntl.fcntl(region, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
            assert os.fstat(region).st_size == MB and allocated(region) == MB - hole + behind
            offer(peer, region, MB)
            assert end.context.windows()["declined"] == 1
            assert allocated(region) == MB - hole + behind
            os.close(region)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's process")
@pytest.mark.parametrize("size", [MB, LARGE])
@pytest.mark.parametrize("there", [True, False])
def test_a_file_whose_pages_are_hidden_is_not_mapped(there: bool, size: int) -> None:
    """For a file closed to writing mincore reports all pages as present. Such a file is not mapped."""
    found = in_a_process(
        f"os.posix_fallocate(region, 0, {size}) if {there} else None\n"
        "fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE); os.fchmod(region, 0)\n"
        "os.setresuid(65534, 65534, 65534)",
        "for _ in range(40): end.poll()\nlocked = 0",
        paid=True,
        size=size,
        nobody=0,
    )
    # Where cachestat needs no right, the kernel tells the truth about the file to everybody.
    assert found["regions"] + found["declined"] == 1 and not (found["regions"] and (size == MB or not there))
    assert found["allocated"] == (size if there else 0)


@pytest.mark.parametrize(
    ("size", "seals", "mapped"),
    [(4096, SEAL_GROW, 1), (8, SEAL_GROW, 1), (8192, SEAL_GROW, 0), (64 * MB, SEAL_GROW, 0), (4096, 0, 0)],
)
def test_a_file_has_the_size_of_its_region(size: int, seals: int, mapped: int) -> None:
    """A file longer than its region, or able to grow, is not mapped: the work for a file takes as long as the file."""
    end, peer = paid_peer()
    with end:
        region = memfd(size, seals=SEAL_SHRINK)
        os.pwrite(region, bytes(size), 0)
        fcntl.fcntl(region, F_ADD_SEALS, SEAL_FUTURE_WRITE | seals)
        offer(peer, region, 8)
        assert answers(peer) == [0]
        assert end.context.windows() == {"regions": mapped, "bytes": 8 * mapped, "declined": 1 - mapped}
        assert end.qp.state == State.RTS
        os.close(region)


def test_an_owner_touches_what_it_offers() -> None:
    """An owner touches all pages of a region before it offers the region, so its peer takes the offer."""
    with limited(paid=True) as a, End() as b:
        connect(a, b)
        regions = [shared_region(b, MB, access)[0] for access in (ALL, Access.LOCAL_WRITE | Access.REMOTE_READ)]
        for mr in regions:
            acquaint(a, b, mr)
            before = one_sided(a)
            a.qp.post_send(read(a, mr, 8, MB - 8))
            completions(a, 1, b)
            assert one_sided(a) == before + 1
        # The second queue pair maps both for reading. The first has mapped the writable region for writing.
        first = (a.qp, b.qp)
        a.qp, b.qp = QP(a.pd, a.cq), QP(b.pd, b.cq)
        for qp in (a.qp, b.qp):
            qp.ready(access=ALL)
        connect(a, b)
        for mr in regions:
            acquaint(a, b, mr)
            before = one_sided(a)
            a.qp.post_send(read(a, mr))
            assert statuses(completions(a, 1, b)) == [Status.SUCCESS] and one_sided(a) == before + 1
        a.qp.post_send(write(a, regions[0]))
        assert statuses(completions(a, 1, b)) == [Status.SUCCESS] and one_sided(a) == before + 1
        assert [qp.state for qp in first] == [State.RTS] * 2


def test_a_sparse_registry_or_ring_is_not_taken() -> None:
    end, peer = paid_peer(registry=0)
    with end:
        broken(peer)
        assert allocated(peer.registry_fd) == 0
    for case in ("not sealed", "no first page"):
        with limited(paid=True) as end:
            peer = RawPeer(end, hello=False)
            os.pwrite(peer.registry_fd, bytes(REGISTRY_SIZE), 0)
            fcntl.fcntl(peer.registry_fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)
            if case == "not sealed":
                peer.page[0] = 0
            else:
                fcntl.fcntl(peer.ring_fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)
            fresh = memfd(SIZE, seals=SEAL_SHRINK | SEAL_GROW | (SEAL_FUTURE_WRITE if case == "no first page" else 0))
            peer.sock.sendmsg(
                [record(HELLO)],
                [(1, 1, struct.pack("=ii", fresh if case == "no first page" else peer.ring_fd, peer.registry_fd))],
            )
            end.poll()
            broken(peer)
            assert allocated(fresh) == 0
            os.close(fresh)


@pytest.mark.parametrize("cell", ["a message", "of the stream", "a short one, and a hole behind it"])
def test_a_cell_over_a_hole_ends_the_queue_pair(cell: str) -> None:
    """The word of a cell whose octets were never written ends the queue pair."""
    end, peer = paid_peer()
    with end:
        end.qp.post_recv(*((i, [end.mr.sge(0, 8192)]) for i in range(64)))
        if cell == "a message":
            peer.word(8192, MESSAGE)
        elif cell == "of the stream":
            peer.word(16000, 2)
        else:
            while peer.tail < 4096 - RING_AT:
                peer.word(56, MESSAGE)
                peer.tail += 64
        broken(peer)
        assert allocated(peer.ring_fd) == 4096


def test_many_laps_of_a_ring_that_is_paid_for() -> None:
    """A correct peer touches its pages before showing them: messages and stream, from the first octet on."""
    with limited(paid=True) as a, limited(paid=True) as b:
        # Leftovers of earlier tests are collected now: their descriptors must not be in the count.
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd"))
        connect(a, b)
        for i in range(300):
            size = (i * 977) % 8192
            b.qp.post_recv((i, [b.mr.sge(0, 60_000)]))
            a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, size if i % 3 else 7 * size)], flags=0))
            assert statuses(completions(b, 1, a)) == [Status.SUCCESS]
        for i in range(30):
            a.qp.post_recv((i, [a.mr.sge(0, 8192)]))
            b.qp.post_send(SendWR(Opcode.SEND, [b.mr.sge(0, 8000)], flags=0))
            assert statuses(completions(a, 1, b)) == [Status.SUCCESS]
        # Both sockets are left, and each end's bell at both ends: the descriptors of the rings are closed once all
        # pages are there.
        assert len(os.listdir("/proc/self/fd")) == descriptors + 6


CHILD = """
import ctypes, json, os, resource, struct, sys
sys.path[:0] = {paths!r}
import verbs_ends
verbs_ends.FABRIC = "soft_shm"
from test_shm_windows import *
from verbs_ends import *

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name + ":"))

paid = {paid!r}
end, peer = paid_peer(end=limited(paid=True, nobody={nobody})) if paid else (End(), None)
if peer is None:
    peer = RawPeer(end)
    struct.pack_into("=I", mmap.mmap(peer.registry_fd, REGISTRY_SIZE), 0, 1)
region = memfd({size})
{before}
offer(peer, region, {size})
{after}
# The connection is as good as before.
end.qp.post_recv((1, [end.mr.sge(0, 100)]))
peer.cell(b"hello", MESSAGE)
os.eventfd_write(peer.bell, 1)
assert statuses(completions(end, 1)) == [Status.SUCCESS] and end.buffer[:5] == b"hello"
print(json.dumps({{"windows": end.context.windows(), "allocated": allocated(region), "locked": locked}}))
"""


def in_a_process(
    before: str, after: str, paid: bool = False, size: int = GB, nobody: int = 0xFFFFFFFF
) -> dict[str, int]:
    paths = [*PATHS, str(Path(__file__).parent)]
    code = CHILD.format(paths=paths, before=before, after=after, paid=paid, size=size, nobody=nobody)
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    return {**found["windows"], "allocated": found["allocated"], "locked": found["locked"]}


def test_mapping_locks_and_touches_nothing() -> None:
    """With mlockall(MCL_FUTURE), which fills and locks every new mapping, a mapping of a peer's memory is neither
    filled nor locked."""
    found = in_a_process(
        "ctypes.CDLL(None).mlockall(2); before = status('VmLck')",
        "locked = status('VmLck') - before; ctypes.CDLL(None).munlockall()",
    )
    # The offer is declined if the process may lock less memory than the region has: the kernel refuses the mapping.
    assert found["regions"] + found["declined"] == 1
    assert found["allocated"] == 0 and found["locked"] < 1024


@pytest.mark.parametrize(
    ("what", "limit"),
    [("RLIMIT_AS", "status('VmSize') * 1024 + (100 << 20)"), ("RLIMIT_NOFILE", "len(os.listdir('/proc/self/fd')) - 1")],
)
def test_a_shortage_declines_the_offer_and_blames_nobody(what: str, limit: str) -> None:
    """A shortage of address space declines the offer, and so does a shortage of descriptors: the memfd never comes."""
    found = in_a_process(
        f"old = resource.getrlimit(resource.{what}); resource.setrlimit(resource.{what}, ({limit}, old[1]))",
        f"resource.setrlimit(resource.{what}, old); locked = 0",
    )
    assert (found["regions"], found["declined"]) == (0, 1)


def fresh(size: int) -> int:
    """Makes memory whose last reference takes long to close, for its pages."""
    region = memfd(size)
    os.posix_fallocate(region, 0, size)
    return region


def declined(peer: RawPeer, *regions: int) -> None:
    """Offers memory longer than its region, which the end declines, and leaves the last reference to the end."""
    for region in regions:
        peer.post(region_record(OFFER, 8), region)
        os.close(region)


def further_pair(a: End, b: End) -> tuple[QP, QP]:
    pair = QP(a.pd, a.cq), QP(b.pd, b.cq)
    for qp in pair:
        qp.ready(access=ALL)
    a.qp, b.qp = pair
    connect(a, b)
    return pair


def test_what_other_peers_have_left_ends_no_queue_pair() -> None:
    """A queue pair whose peer offers its first region goes on while regions and memory of other peers wait to be
    unmapped and closed."""
    a, hostile = paid_peer()
    with a, End() as b:
        first = a.qp
        gone = [further_pair(a, b) for _ in range(5)]
        regions = [shared_region(b, 4096, READABLE) for _ in range(60)]
        for mr, _ in regions:
            for a.qp, b.qp in gone:
                acquaint(a, b, mr)
        assert a.context.windows()["regions"] == 300
        last = further_pair(a, b)
        mr, _ = shared_region(b, 4096)
        declined(hostile, fresh(512 * MB))
        until(lambda: answers(hostile) != [], a)
        for pair in gone:
            pair[0].close()
        acquaint(a, b, mr)
        a.qp.post_send(read(a, mr))
        assert statuses(completions(a, 1, b)) == [Status.SUCCESS] and one_sided(a) == 1
        assert [qp.state for qp in (first, *last)] == [State.RTS] * 3
        until(lambda: a.context.windows()["regions"] == 1)


def test_who_leaves_more_than_can_be_closed_is_slowed_down() -> None:
    """Surplus offers of a peer stay in its socket, while another peer's first region is mapped."""
    end, hostile = paid_peer()
    with end:
        qp = QP(end.pd, end.cq)
        qp.ready(access=ALL)
        _, other = paid_peer(end=end, qp=qp)
        mine = memfd(4096)
        os.pwrite(mine, bytes(4096), 0)

        def slowed_down() -> bool:
            """Whether 31 offers are held back during the close of the first memory, which takes a moment."""
            before = end.context.windows()["declined"]
            declined(hostile, fresh(512 * MB), *[fresh(2 * MB) for _ in range(30)])
            for _ in range(100):
                end.poll()
            taken = end.context.windows()["declined"] - before
            until(lambda: end.context.windows()["declined"] == before + 31, end)
            return bool(taken == 8)

        assert any(slowed_down() for _ in range(5))
        declined(hostile, fresh(512 * MB), *[fresh(2 * MB) for _ in range(30)])
        offer(other, mine, 4096)
        assert answers(other) == [MAPPED]
        assert end.qp.state == qp.state == State.RTS
        os.close(mine)
        hostile.close()
        other.close()


def test_close_waits_in_a_thread_of_its_own() -> None:
    """The descriptors of an attacker's peers wait behind the first close. After many of them new peers get no
    stream."""
    with limited(paid=True) as end:
        sender, reader = lingering(3600)

        def attach() -> int:
            """A queue pair whose peer says HELLO with a socket for memory. 0, or the error in place of a stream."""
            with QP(end.pd, end.cq) as qp:
                qp.ready(access=ALL)
                ours, theirs = socket.socketpair()
                with ours:
                    try:
                        qp.attach(theirs)
                    except VerbsError as error:
                        theirs.close()
                        assert error.errno is not None
                        return error.errno
                    # The test closes its descriptor at once: the device has the last.
                    socket.send_fds(ours, [record(HELLO)], [sender.fileno() if sender.fileno() >= 0 else 0, 0])
                    sender.close()
                    until(lambda: qp.state == State.ERR, end)
            return 0

        assert attach() == 0
        until(lambda: attach() == errno.EBUSY)
        reader.close()
        until(lambda: attach() == 0, end)

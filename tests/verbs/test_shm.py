"""soft_shm: one-sided access, messages among other requests, several threads, the death of peers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polling
import pytest
import verbs_ends
from shm_ends import acquaint, one_sided, read, shared_region, write
from verbs_ends import ALL, PATHS, End, completions, connect, connected, statuses, until

from rmemcached.verbs import MR, PD, QP, WC, Access, Opcode, SendFlag, SendWR, State, Status, VerbsError

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("soft_shm")]


def test_access_needs_no_help_of_the_target() -> None:
    with connected() as (a, b):
        mr, memory = shared_region(b, 1 << 16)
        acquaint(a, b, mr)
        assert one_sided(a) == 0
        a.buffer[:] = random.Random(1).randbytes(len(a.buffer))
        # From here on nobody polls for the target: one-sided requests complete all the same.
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
    """One-sided requests keep their place among SENDs, and behind a WRITE and a READ through the stream."""
    with connected(1 << 20) as (a, b):
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
    """A READ sees an earlier WRITE by a second key of the same memory, which allows no one-sided access."""
    with connected(1 << 17) as (a, b):
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
    """The target refuses requests with a failed check, as ever, even for a region mapped by the peer."""
    with connected() as (a, b):
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
        with connected() as (a, b):
            mr, memory = shared_region(b, 4096)
            acquaint(a, b, mr)
            sge = (a.mr.addr, 8, a.mr.lkey ^ 1) if access is None else MR(a.pd, bytes(8), access).sge()
            a.qp.post_send(SendWR(opcode, [a.mr.sge(0, 8), sge], remote_addr=mr.addr, rkey=mr.rkey))
            assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
            assert bytes(memory) == bytes(4096)


def test_many_regions_come_and_go() -> None:
    """Regions beyond the limits of mappings and registry are read right, and nothing is left."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:rmemcached")
    with connected() as (a, b):

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
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        direct = one_sided(a)
        one(300)
        assert one_sided(a) - direct >= 256
        for _ in range(40):
            one(20)
        assert one_sided(a) - direct >= 256 + 40 * 20
        assert len(os.listdir("/proc/self/fd")) <= before
        assert Path("/proc/self/maps").read_text().count("memfd:rmemcached region") <= 256 + 20
    assert Path("/proc/self/maps").read_text().count("memfd:rmemcached") <= maps


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
        # A peer invalidates the key, which is gone for both peers.
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


def test_a_region_that_messages_use_can_be_given_up() -> None:
    """A queue pair remembers the regions of its last message, and forgets a deregistered or invalidated region."""
    with connected() as (a, b):
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
        # A SEND from a closed region completes with the same error as a SEND with any other invalid lkey.
        b.qp.post_recv((99, [b.mr.sge(0, 8)]))
        a.qp.post_send(SendWR(Opcode.SEND, [(a.mr.addr, 2, gone)], wr_id=1))
        assert statuses(completions(a, 1, b)) == [Status.LOC_PROT_ERR]
        assert statuses(completions(b, 1, a)) == [Status.WR_FLUSH_ERR]
    with connected() as (a, b):
        mr = MR(b.pd, bytearray(8), ALL)
        b.qp.post_recv(*((i, [mr.sge()]) for i in range(2)), (2, []), (3, [mr.sge()]))
        a.qp.post_send(*(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], flags=0) for _ in range(2)))
        assert statuses(completions(b, 2, a)) == [Status.SUCCESS] * 2
        a.qp.post_send(SendWR(Opcode.SEND_WITH_INV, [], invalidate_rkey=mr.rkey, flags=0))
        assert statuses(completions(b, 1, a)) == [Status.SUCCESS]
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 8)], flags=0))
        assert statuses(completions(b, 1, a)) == [Status.LOC_PROT_ERR]


def test_messages_keep_their_place_among_all_else() -> None:
    """READs, WRITEs, sends above the ring's size and messages of a cell keep their order."""
    with connected(1 << 20) as (a, b):
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
    """Polls for a single completion give all queue pairs their turn, and the messages of each in order."""
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
    """Two threads send, the second from short-lived regions; two poll a queue and post receives."""
    count, slots = 1500, 32
    with connected() as (a, b):
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
                # The place is written again only after all its octets under way have arrived.
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
            # A polling thread sees the messages of a sender in their order.
            assert all(one == sorted(one) for one in numbers)
            assert sorted(numbers[0] + numbers[1]) == list(range(count))


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
    """Starts another process as the peer of the stream. Yields the process, and address and key of its region."""
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
def test_the_death_of_a_peer_is_seen(watching: str) -> None:
    """The end of the connection tells of a peer's death, and wakes a waiting program."""
    with End() as end, child(end, SERVE) as (process, _, _):
        end.qp.post_recv((2, []))
        end.cq.arm()
        until(lambda: True, end)
        assert end.channel is not None
        os.set_blocking(end.channel.fileno(), False)
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + verbs_ends.PATIENCE
        while end.qp.state != State.ERR:
            if watching == "waits":
                assert polling.readable(end.channel, verbs_ends.PATIENCE)
                end.channel.get_event()
            else:
                end.poll()
            assert time.monotonic() < deadline
        assert statuses(completions(end, 1)) == [Status.WR_FLUSH_ERR]


def test_another_process_that_sleeps_serves_what_is_its_to_serve() -> None:
    """The region of a sleeping process is read through the stream once, then without the stream."""
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
        # The region stays mapped when its owner dies; the queue pair notices the end.
        process.send_signal(signal.SIGKILL)
        until(lambda: end.qp.state == State.ERR, end)


def test_nothing_is_left_behind() -> None:
    def names() -> set[str]:
        return {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "rmem" in name.lower()}

    before = names()
    with End() as end, child(end, SERVE) as (process, _, _):
        assert names() <= before
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names() <= before

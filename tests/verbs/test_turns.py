"""A turn of progress is bounded: no peer holds up others, and no rest is forgotten."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import polling
import pytest
import verbs_ends
from verbs_ends import ALL, End, completions, connect_pair, statuses, until

from rmemcached.verbs import CQ, MR, QP, CompChannel, Opcode, SendWR, State, Status

pytestmark = pytest.mark.soft("other devices have no turns")
MB = 1 << 20
FLOOD = 5500  # frames of 20 octets: the room of a ring


class Flooders:
    """Queue pairs whose peers have sent many frames without payload, and then a SEND."""

    def __init__(self, count: int = 8, second_channel: bool = False) -> None:
        self.here, self.there = End(), End()
        self.second = CompChannel(self.here.context) if second_channel else None
        self.sends = CQ(self.here.context, 64, self.second) if second_channel else self.here.cq
        self.pairs = []
        for i in range(count):
            ours = QP(self.here.pd, self.sends, self.here.cq)
            theirs = QP(self.there.pd, self.there.cq, max_send_wr=FLOOD + 1)
            for qp in (ours, theirs):
                qp.ready(access=ALL)
            connect_pair(theirs, ours)
            ours.post_recv((i, []))
            self.pairs.append((ours, theirs))

    def flood(self, quiet: int = 0) -> None:
        """Floods all queue pairs but the last few, which get the SEND only."""
        nothing = SendWR(Opcode.RDMA_WRITE, [], remote_addr=0, rkey=0, flags=0)
        for i, (_, theirs) in enumerate(self.pairs):
            flood = [] if i >= len(self.pairs) - quiet else [nothing] * FLOOD
            theirs.post_send(*flood, SendWR(Opcode.SEND, [], flags=0))
        until(lambda: all(qp.counters()["sends"] == 1 for _, qp in self.pairs), self.there)

    def received(self) -> list[int]:
        return [ours.counters()["rx_fpdus"] for ours, _ in self.pairs]

    def __enter__(self) -> Flooders:
        return self

    def __exit__(self, *exc: object) -> None:
        self.here.close()
        self.there.close()


def test_a_poll_does_a_bounded_part_of_a_flood() -> None:
    with Flooders() as all_of_them:
        all_of_them.flood()
        all_of_them.here.poll()
        assert 0 < max(all_of_them.received()) < FLOOD / 2
        # Successive turns serve all queue pairs.
        before = all_of_them.received()
        for _ in range(3):
            all_of_them.here.poll()
        now = all_of_them.received()
        assert min(now) > 0 and sum(now) > sum(before) and sum(now) < 8 * FLOOD
        found = statuses(completions(all_of_them.here, 8))
        assert found == [Status.SUCCESS] * 8 and all_of_them.received() == [FLOOD + 1] * 8


def test_a_quiet_one_among_flooders_is_served_at_once() -> None:
    with Flooders(12) as all_of_them:
        all_of_them.flood(quiet=1)
        (wc,) = completions(all_of_them.here, 1)
        assert wc.wr_id == 11 and sum(all_of_them.received()) < 11 * FLOOD


def test_a_core_that_others_want_is_not_given_away_between_pieces() -> None:
    """A thread does not yield between the pieces of a copy: a yield would cost a time slice of another process, in
    which the thread serves nobody."""
    cores = os.sched_getaffinity(0)
    size = 16 * MB
    with End(size) as here, End(size) as there:
        try:
            os.sched_setaffinity(0, {min(cores)})
            connect_pair(here.qp, there.qp)
            with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
                                  stdout=subprocess.PIPE) as busy:  # fmt: skip
                try:
                    assert busy.stdout is not None and busy.stdout.readline()
                    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
                    for _ in range(8):
                        here.qp.post_send(SendWR(Opcode.RDMA_WRITE, [here.mr.sge(0, size)],
                                                 remote_addr=there.mr.addr, rkey=there.mr.rkey))  # fmt: skip
                        assert statuses(completions(here, 1, there)) == [Status.SUCCESS]
                    given = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - before
                finally:
                    busy.kill()
        finally:
            os.sched_setaffinity(0, cores)
    # A yield after each of some 550 pieces would give the core away more often.
    assert given < 200


def test_a_read_is_answered_in_turns() -> None:
    """The message of a ninth peer comes before the end of the READs of eight peers, of 256 MB."""
    size = 16 * MB
    with End(size) as asking, End(size) as answering:
        pairs = []
        for _ in range(9):
            ours, theirs = QP(answering.pd, answering.cq), QP(asking.pd, asking.cq)
            for qp in (ours, theirs):
                qp.ready(access=ALL)
            connect_pair(theirs, ours)
            ours.post_recv((1, []))
            pairs.append((ours, theirs))
        source = MR(answering.pd, bytearray(size), ALL)
        request = SendWR(Opcode.RDMA_READ, [asking.mr.sge(0, size)], remote_addr=source.addr, rkey=source.rkey)
        for _, theirs in pairs[:8]:
            theirs.post_send(request, request)
        until(lambda: all(qp.counters()["tx_bytes"] > 0 for _, qp in pairs[:8]), asking)
        pairs[8][1].post_send(SendWR(Opcode.SEND, [], flags=0))
        assert statuses(completions(answering, 1, asking)) == [Status.SUCCESS]
        assert sum(qp.counters()["reads_served"] for qp, _ in pairs) < 8
        assert statuses(completions(asking, 16, answering)) == [Status.SUCCESS] * 16
        source.close()


@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ])
def test_posts_and_polls_share_a_turn_of_the_program(opcode: Opcode) -> None:
    """Posts and polls share a turn of the program, for any number of busy queue pairs."""
    count, each, piece, turn = 6, 32, 64 << 10, 256 << 10
    with End(count * piece) as here, End(count * piece) as there:
        here.buffer[:] = os.urandom(count * piece)
        there.buffer[:] = os.urandom(count * piece)
        pairs = []
        for _ in range(count):
            ours, theirs = QP(here.pd, here.cq, max_send_wr=each), QP(there.pd, there.cq)
            for qp in (ours, theirs):
                qp.ready(access=ALL)
            connect_pair(ours, theirs)
            pairs.append((ours, theirs))

        def moved() -> int:
            found = [ours.counters() for ours, _ in pairs]
            return sum(of["tx_bytes"] + of["rx_bytes"] + of["one_sided"] * piece for of in found)

        channel = here.channel
        assert channel is not None
        first = SendWR(opcode, [here.mr.sge(0, 8)], remote_addr=there.mr.addr, rkey=there.mr.rkey)
        for _ in range(2):
            for ours, _ in pairs:
                ours.post_send(first)
            assert statuses(completions(here, count, there)) == [Status.SUCCESS] * count
        # From here on posts find open streams, and mapped windows where the memory is shared.
        for _ in range(100):
            there.poll()
            here.poll()
        here.done.clear()
        before = moved()
        channel.begin_turn(turn)
        for i, (ours, _) in enumerate(pairs):
            request = SendWR(
                opcode, [here.mr.sge(i * piece, piece)], remote_addr=there.mr.addr + i * piece, rkey=there.mr.rkey
            )
            ours.post_send(*[request] * each)
        turns = 1
        while len(here.done) < count * each:
            for _ in range(8):
                there.poll()
                here.poll()
            # At the turn's end each queue pair may still move a frame, and take what one look at its input finds.
            assert moved() - before < turn + 3 * count * piece
            before = moved()
            channel.begin_turn(turn)
            turns += 1
        assert statuses(here.done) == [Status.SUCCESS] * (count * each)
        assert turns > count * each * piece // (turn + 3 * count * piece)
        assert bytes(here.buffer) == bytes(there.buffer)


def test_what_moves_before_a_fault_counts() -> None:
    """A queue pair that ends with an error has used the turn like any other."""
    piece, count, turn = 16 << 10, 8, 128 << 10
    with End(piece) as here, End(piece) as there:
        pairs = []
        for _ in range(2):
            ours, theirs = QP(here.pd, here.cq, max_send_wr=count + 1), QP(there.pd, there.cq)
            for qp in (ours, theirs):
                qp.ready(access=ALL)
            connect_pair(ours, theirs)
            pairs.append((ours, theirs))
        write = SendWR(
            Opcode.RDMA_WRITE, [here.mr.sge(0, piece)], remote_addr=there.mr.addr, rkey=there.mr.rkey, flags=0
        )
        for _ in range(3):
            for ours, _ in pairs:
                ours.post_send(
                    SendWR(Opcode.RDMA_WRITE, [here.mr.sge(0, 8)], remote_addr=there.mr.addr, rkey=there.mr.rkey)
                )
            completions(here, 2, there)
            for _ in range(100):
                there.poll()
                here.poll()

        def moved(qp: QP) -> int:
            found = qp.counters()
            return found["tx_bytes"] + found["one_sided"] * piece

        channel = here.channel
        assert channel is not None
        wrong = SendWR(
            Opcode.RDMA_WRITE, [(here.mr.addr, piece, here.mr.lkey ^ 1)], remote_addr=there.mr.addr, rkey=there.mr.rkey
        )
        before = [moved(ours) for ours, _ in pairs]
        channel.begin_turn(turn)
        pairs[0][0].post_send(*[write] * (count - 2), wrong)
        assert pairs[0][0].state == State.ERR
        pairs[1][0].post_send(*[write] * count)
        first, second = (moved(ours) - old for (ours, _), old in zip(pairs, before, strict=True))
        assert first >= (count - 2) * piece
        # The second queue pair gets the rest of the turn, and a frame more.
        assert first + second < turn + piece


def test_a_turn_ends_a_few_frames_late() -> None:
    """A turn ends a few frames late, for any number of queue pairs ready before its end."""
    count, piece, turn, late = 24, 60_000, 256 << 10, 8
    with End(piece) as here, End(piece) as there:
        pairs = []
        for _ in range(count):
            ours, theirs = QP(here.pd, here.cq), QP(there.pd, there.cq)
            for qp in (ours, theirs):
                qp.ready(access=ALL)
            connect_pair(theirs, ours)
            pairs.append((ours, theirs))

        def moved() -> int:
            return sum(ours.counters()["tx_bytes"] for ours, _ in pairs)

        channel = here.channel
        assert channel is not None
        request = SendWR(Opcode.RDMA_READ, [there.mr.sge(0, piece)], remote_addr=here.mr.addr, rkey=here.mr.rkey)
        for _, theirs in pairs:
            theirs.post_send(request)
        assert statuses(completions(there, count, here)) == [Status.SUCCESS] * count
        there.done.clear()
        for _, theirs in pairs:
            theirs.post_send(*[request] * 4)
        while len(there.done) < 4 * count:
            before = moved()
            channel.begin_turn(turn)
            for _ in range(4):
                here.poll()
            assert moved() - before < turn + late * (64 << 10)
            there.poll()
        assert statuses(there.done) == [Status.SUCCESS] * (4 * count)


def drain(flooders: Flooders, channel: CompChannel, cq: CQ, count: int) -> None:
    """Takes completions like a program that only waits for a descriptor."""
    os.set_blocking(channel.fileno(), False)
    found = 0
    cq.arm()
    while found < count:
        assert polling.readable(channel, verbs_ends.PATIENCE), flooders.received()
        while channel.get_event() is not None:
            cq.arm()
        found += len(cq.poll())


@pytest.mark.parametrize("first", ["nothing", "polls", "polls the other queue", "polls both"])
def test_the_descriptor_tells_of_what_is_left(first: str) -> None:
    """The descriptor is readable as long as a turn has left input, even in the domain of the unused completion
    queue."""
    other = "other" in first or "both" in first
    with Flooders(second_channel=other) as flooders:
        channel, cq = flooders.here.channel, flooders.here.cq
        assert channel is not None
        cq.arm()
        flooders.flood()
        found = 0
        if first in ("polls", "polls both"):
            found += len(cq.poll())
        if other:
            assert flooders.sends.poll() == []
            assert sum(flooders.received()) < 8 * FLOOD
        drain(flooders, channel, cq, 8 - found)
        assert flooders.received() == [FLOOD + 1] * 8


def test_the_progress_thread_leaves_nothing() -> None:
    with Flooders() as flooders:
        flooders.here.context.start_progress(0)
        flooders.flood()
        until(lambda: flooders.received() == [FLOOD + 1] * 8)
        flooders.here.context.stop_progress()

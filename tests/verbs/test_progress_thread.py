"""The progress thread of a context works while the program does nothing."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import polling
import pytest
from verbs_ends import PATIENCE, End, completions, connect, connect_pair, connected, ready, statuses, streams

from rmemcached.verbs import CQ, QP, CompChannel, Opcode, SendFlag, SendWR, Status, VerbsError

SIZES = [1, 8, 4096, 300_000, 1 << 20]


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def state(thread: str) -> str:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def switches(thread: str) -> int:
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


def wait_event(end: End) -> None:
    """Waits for an event of the end's channel. The descriptor is readable, too, while the thread is at work."""
    assert end.channel is not None
    os.set_blocking(end.channel.fileno(), False)
    deadline = time.monotonic() + PATIENCE
    while end.channel.get_event() is None:
        assert polling.readable(end.channel, deadline - time.monotonic())


def send(end: End, number: int = 0) -> None:
    end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 8)], wr_id=number, flags=SendFlag.SIGNALED))


def write_and_read(end: End, target: End, size: int, at: int = 0) -> None:
    """WRITEs the first octets of the end to the target, READs them back behind them, and compares."""
    remote = {"remote_addr": target.mr.addr + at, "rkey": target.mr.rkey, "flags": SendFlag.SIGNALED}
    end.qp.post_send(
        SendWR(Opcode.RDMA_WRITE, [end.mr.sge(0, size)], **remote),
        SendWR(Opcode.RDMA_READ, [end.mr.sge(size, size)], **remote),
    )
    assert statuses(completions(end, 2)) == [Status.SUCCESS] * 2
    assert end.buffer[:size] == end.buffer[size : 2 * size]


@pytest.mark.parametrize("spin", [0, 50])
@pytest.mark.parametrize("channel", [False, True])
def test_the_target_does_nothing(spin: int, channel: bool) -> None:
    """WRITEs and READs of all sizes, and SENDs, reach an end whose program never polls."""
    a, b = End(1 << 21, channel=channel), End(1 << 21, channel=channel)
    with a, b:
        b.context.start_progress(spin)
        connect(a, b)
        b.qp.post_recv((7, [b.mr.sge()]))
        for size in SIZES:
            a.buffer[:size] = os.urandom(size)
            write_and_read(a, b, size)
            # The READ tells the program of the placed octets. Later octets come behind the octets compared here. The
            # query takes the queue pair's lock, held by the thread while placing octets: ThreadSanitizer sees the order
            # of locks, and not the ring's.
            b.qp.query()
            assert a.buffer[:size] == b.buffer[:size]
            b.qp.query()
            assert b.cq.poll() == []
        send(a)
        assert statuses(completions(a, 1)) == [Status.SUCCESS]
        assert [(wc.wr_id, wc.byte_len) for wc in completions(b, 1)] == [(7, 8)]


def test_a_channel_becomes_readable() -> None:
    """The thread makes the completions. An armed channel has an event for each completion, as without the thread."""
    with connected() as (a, b):
        b.context.start_progress()
        write_and_read(a, b, 8)
        for number in range(200):
            b.qp.post_recv((number, [b.mr.sge()]))
            b.cq.arm()
            send(a)
            wait_event(b)
            assert [wc.wr_id for wc in b.cq.poll()] == [number]
            completions(a, 1)


def test_both_sides() -> None:
    """With threads on both sides, and polls of the program too, nothing is lost or comes twice."""
    with connected() as (a, b):
        a.context.start_progress()
        b.context.start_progress(0)
        for number in range(2000):
            b.qp.post_recv((number, [b.mr.sge()]))
            send(a, number)
            assert [wc.wr_id for wc in completions(b, 1)] == [number]
            assert [wc.wr_id for wc in completions(a, 1)] == [number]


def test_it_sleeps() -> None:
    """The thread sleeps with nothing to do, also with an event that the program does not fetch."""
    if not streams():
        return
    before = threads()
    with connected() as (a, b):
        b.context.start_progress(1000)
        (thread,) = threads() - before
        b.qp.post_recv((1, [b.mr.sge()]))
        b.cq.arm()
        send(a)
        completions(a, 1)
        # The thread sleeps if two thousand looks in a row find the thread asleep, and not switched since the look
        # before.
        asleep = 0
        deadline = time.monotonic() + PATIENCE
        seen = switches(thread)
        while asleep < 2000:
            assert time.monotonic() < deadline
            now = switches(thread)
            asleep = asleep + 1 if state(thread) == "S" and now == seen else 0
            seen = now
        write_and_read(a, b, 8)
        wait_event(b)


def test_twice_and_ended() -> None:
    if not streams():
        return
    before = threads()
    with End() as end:
        end.context.stop_progress()
        end.context.start_progress()
        with pytest.raises(VerbsError) as found:
            end.context.start_progress()
        assert found.value.errno == errno.EALREADY
        assert len(threads() - before) == 1
        end.context.stop_progress()
        end.context.stop_progress()
        assert threads() <= before
        end.context.start_progress()
    assert threads() <= before


def test_queues_come_and_go() -> None:
    """The thread goes on working while completion queues, channels and queue pairs are made and destroyed."""
    with connected() as (a, b):
        b.context.start_progress()
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                with (
                    CompChannel(b.context) as channel,
                    CQ(b.context, 16, channel) as cq,
                    CQ(b.context, 16) as other,
                    QP(b.pd, cq) as ours,
                    QP(b.pd, other) as theirs,
                ):
                    ready(ours)
                    ready(theirs)
                    connect_pair(ours, theirs)

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            for number in range(1000):
                a.buffer[:8] = number.to_bytes(8, "little")
                write_and_read(a, b, 8, 8 * (number % 64))
        finally:
            stop.set()
            churning.join()


def test_the_peer_goes() -> None:
    """The thread notices the end of a stream without a poll: receives are flushed."""
    a, b = connected()
    with b:
        b.context.start_progress()
        write_and_read(a, b, 8)
        b.qp.post_recv((3, [b.mr.sge()]))
        b.cq.arm()
        a.close()
        if streams():
            wait_event(b)
            assert [(wc.wr_id, wc.status) for wc in b.cq.poll()] == [(3, Status.WR_FLUSH_ERR)]

"""Completion channels: events, readiness of the descriptor, no lost wake-up, no busy loop."""

from __future__ import annotations

import gc
import os
import random
import select
import threading
import time

import polling
import pytest
from transport import rounds
from verbs_ends import End, Peer, completions, connect, connected, fpdu, raw_initiator, ready, send, streams, until

from rmemcached.verbs import CQ, QP, CompChannel, Opcode, SendFlag, SendWR, State, Status


def readable(end: End, timeout: float = 0) -> bool:
    assert end.channel is not None
    return polling.readable(end.channel, timeout)


def event(end: End) -> CQ | None:
    assert end.channel is not None
    os.set_blocking(end.channel.fileno(), False)
    return end.channel.get_event()


def open_gate(a: End, b: End) -> None:
    """A message from the initiator, after which the responder may send; start-up is over then."""
    b.qp.post_recv((1000, []))
    a.qp.post_send(SendWR(flags=0))
    completions(b, 1, a)


def test_an_armed_queue_makes_one_event() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        b.qp.post_recv(*((i, []) for i in range(5)))
        assert event(b) is None and not readable(b)
        b.cq.arm()
        assert not readable(b)
        a.qp.post_send(SendWR(), SendWR())
        assert readable(b, 5)
        assert event(b) is b.cq
        assert event(b) is None and not readable(b)
        assert len(completions(b, 2)) == 2
        # Without arming there are completions, but no event.
        a.qp.post_send(SendWR())
        completions(b, 1, a)
        assert event(b) is None and not readable(b)


def test_the_event_of_a_completion_made_by_polling_is_kept() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        b.qp.post_recv((1, []), (2, []))
        b.cq.arm()
        a.qp.post_send(SendWR())
        completions(b, 1)
        assert readable(b)
        assert event(b) is b.cq
        assert not readable(b)


def test_arming_again_before_the_event_is_taken() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        b.qp.post_recv(*((i, []) for i in range(3)))
        for _ in range(3):
            b.cq.arm()
            a.qp.post_send(SendWR())
            completions(b, 1)
        assert [event(b) for _ in range(4)] == [b.cq, b.cq, b.cq, None]


def test_solicited_only() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        b.qp.post_recv(*((i, []) for i in range(5)))
        b.cq.arm(solicited_only=True)
        a.qp.post_send(SendWR(), SendWR())
        completions(b, 2, a)
        assert event(b) is None
        a.qp.post_send(SendWR(flags=SendFlag.SOLICITED))
        completions(b, 1, a)
        assert event(b) is b.cq
        # A solicited event also comes for an error, and arming for any completion overrides arming for solicited ones.
        b.cq.arm(solicited_only=True)
        b.cq.arm()
        b.cq.arm(solicited_only=True)
        a.qp.post_send(SendWR())
        completions(b, 1, a)
        assert event(b) is b.cq
        b.cq.arm(solicited_only=True)
        if streams():
            a.qp.close()
        else:
            b.qp.modify(State.ERR)
        until(lambda: b.qp.state == State.ERR, b)
        assert event(b) is b.cq


def test_sends_make_events_too() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        b.qp.post_recv((1, []))
        a.cq.arm()
        a.qp.post_send(SendWR())
        assert readable(a)
        assert event(a) is a.cq


def test_several_queues_on_one_channel_take_turns() -> None:
    with connected() as (_, b):
        assert b.channel is not None
        others = [CQ(b.context, 16, b.channel) for _ in range(3)]
        qps = [QP(b.pd, cq) for cq in others]
        for qp, cq in zip(qps, others, strict=True):
            ready(qp, 0)
            for _ in range(2):
                cq.arm()
                qp.modify(State.ERR)
                qp.post_send(SendWR())
        assert readable(b)
        found = [event(b) for _ in range(6)]
        assert sorted(found, key=others.index) == sorted(others * 2, key=others.index)  # type: ignore[arg-type]
        if streams():
            assert found == others * 2
        assert event(b) is None and not readable(b)
        # The pending events of a completion queue disappear with the queue.
        others[1].arm()
        qps[1].post_send(SendWR())
        assert readable(b)
        others[1].close()
        assert event(b) is None and not readable(b)


def test_send_and_receive_queues_on_different_channels() -> None:
    with connected() as (a, b):
        channels = [CompChannel(a.context) for _ in range(2)]
        send_cq, recv_cq = (CQ(a.context, 64, channel) for channel in channels)
        a.qp.close()
        b.qp.modify(State.RESET)
        ready(b.qp)
        a.qp = QP(a.pd, send_cq, recv_cq)
        ready(a.qp)
        connect(a, b)
        # Either channel may serve the stream. The event appears on the channel of its queue.
        for channel in channels:
            os.set_blocking(channel.fileno(), False)
        a.qp.post_recv((1, []))
        send_cq.arm()
        recv_cq.arm()
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR(wr_id=5))
        until(lambda: send_cq.poll() or recv_cq.poll(), a, b)
        assert channels[0].get_event() is send_cq
        until(lambda: b.done, b)
        b.qp.post_send(SendWR())
        until(lambda: send_cq.poll() or polling.select([channels[1]], [], 0)[0], b)
        assert channels[1].get_event() is recv_cq
        assert [wc.wr_id for wc in recv_cq.poll()] == [1]
        a.qp.close()


def serve(end: End, count: int, pause: random.Random, blocking: bool) -> None:
    """Answers each message, by the usual arm, poll, wait."""
    assert end.channel is not None
    poller = select.epoll()
    poller.register(end.channel, select.EPOLLIN)
    answered = 0
    while answered < count:
        found = end.cq.poll()
        if not found:
            end.cq.arm()
            found = end.cq.poll()
        if not found:
            if blocking:
                assert end.channel.get_event() is end.cq
            else:
                assert poller.poll(20), f"no wake-up after {answered} of {count}"
                end.channel.get_event()
            continue
        for wc in found:
            assert wc.status == Status.SUCCESS
            if wc.wr_id >= 1000:
                continue
            end.qp.post_recv((wc.wr_id, [end.mr.sge(wc.wr_id * 64, 64)]))
            end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(wc.wr_id * 64, wc.byte_len)], wr_id=1000))
            answered += 1
        if pause.random() < 0.02:
            time.sleep(0)
    poller.close()


def ping_pong(blocking: bool, count: int, window: int) -> None:
    with connected(max_send_wr=64) as (a, b):
        assert a.channel is not None and b.channel is not None
        for end in (a, b):
            os.set_blocking(end.channel.fileno(), blocking)  # type: ignore[union-attr]
            end.qp.post_recv(*((i, [end.mr.sge(i * 64, 64)]) for i in range(16)))
        threads = [
            threading.Thread(target=serve, args=(end, count, random.Random(i), blocking))
            for i, end in enumerate((a, b))
        ]
        for thread in threads:
            thread.start()
        a.qp.post_send(
            *(SendWR(Opcode.SEND, [a.mr.sge(4096, 1 + i)], wr_id=1000, flags=SendFlag.SIGNALED) for i in range(window))
        )
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_no_wake_up_is_lost_with_an_outer_epoll() -> None:
    ping_pong(blocking=False, count=rounds(2000), window=1)
    ping_pong(blocking=False, count=rounds(2000), window=5)


def test_no_wake_up_is_lost_when_blocking() -> None:
    ping_pong(blocking=True, count=rounds(2000), window=1)
    ping_pong(blocking=True, count=rounds(2000), window=5)


def test_two_threads_on_one_channel() -> None:
    """Of two threads, a thread that always polls the queue and a waiting thread, the latter gets every event."""
    with connected() as (a, b):
        assert b.channel is not None
        count = rounds(2000)
        seen = threading.Semaphore(0)
        b.qp.post_recv(*((i, []) for i in range(32)))

        def wait() -> None:
            for _ in range(count):
                assert b.channel is not None and b.channel.get_event() is b.cq
                seen.release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        for i in range(count):
            b.cq.arm()
            a.qp.post_send(SendWR(flags=0))
            deadline = time.monotonic() + 20
            while not seen.acquire(blocking=False):
                for wc in b.cq.poll():
                    b.qp.post_recv((wc.wr_id, []))
                a.poll()
                assert time.monotonic() < deadline, i
        waiter.join(20)
        assert not waiter.is_alive()


def quiet(end: End) -> None:
    """The descriptor wakes nobody up in vain: all octets still on their way come in a few turns."""
    for _ in range(100):
        if not readable(end, 0.05):
            return
        event(end)
    raise AssertionError("the descriptor stays readable")


def test_idle_streams_do_not_spin() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        completions_before = a.cq.poll() + b.cq.poll()
        assert completions_before == []
        quiet(a)
        quiet(b)
        # A READ under way waits quietly, with more requests queued behind.
        read = SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=b.mr.addr, rkey=b.mr.rkey)
        a.qp.post_send(*[read] * 40)
        quiet(a)
        completions(a, 40, b)
        quiet(a)
        quiet(b)


@pytest.mark.soft("InfiniBand has no word for the end of a queue pair")
def test_a_closed_peer_does_not_spin() -> None:
    with connected() as (a, b):
        open_gate(a, b)
        a.qp.close()
        until(lambda: b.qp.state == State.ERR, b)
        quiet(b)


@pytest.mark.once
def test_a_peer_closed_in_error_does_not_spin() -> None:
    with End() as end:
        peer, _ = raw_initiator(end)
        peer.send(send(b"no receive"))
        assert peer.recv_terminate() == (1, 2, 2)
        peer.sock.setblocking(True)
        quiet(end)
        peer.close()
        quiet(end)


@pytest.mark.once
def test_a_full_socket_does_not_spin_and_goes_on() -> None:
    """EPOLLOUT is watched only while octets wait and the socket is full."""
    with End(16 << 20) as end:
        peer, _ = raw_initiator(end, crc=False)
        end.qp.post_recv((1, [end.mr.sge(0, 8)]))
        peer.send(send(b"go"))
        completions(end, 1)
        end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge()], wr_id=2))
        quiet(end)
        received = 0
        deadline = time.monotonic() + 20
        while received < 16 << 20:
            received += drain(peer)
            if readable(end):
                event(end)
            assert time.monotonic() < deadline
        drain(peer)
        assert [wc.wr_id for wc in completions(end, 1)] == [2]
        quiet(end)


def drain(peer: Peer) -> int:
    try:
        return len(peer.sock.recv(1 << 20))
    except BlockingIOError:
        return 0


@pytest.mark.once
def test_no_processor_time_while_waiting() -> None:
    """A blocked get_event with a peer that sends octet by octet costs next to nothing."""
    with End() as end:
        peer, _ = raw_initiator(end)
        end.qp.post_recv((1, [end.mr.sge(0, 100)]))
        end.cq.arm()
        frame = bytearray()
        frame += fpdu(send(b"hello"))

        def trickle() -> None:
            for octet in frame:
                time.sleep(0.01)
                peer.sock.send(bytes([octet]))

        thread = threading.Thread(target=trickle)
        # Leftovers of earlier tests are collected now, and not while the time counts.
        gc.collect()
        used = time.process_time()
        thread.start()
        assert end.channel is not None
        assert end.channel.get_event() is end.cq
        used = time.process_time() - used
        thread.join()
        assert used < 0.1


def test_a_flood_of_own_completions_does_not_starve_the_peer() -> None:
    """The peer's READ is served, though no poll finds the queue empty."""
    with connected() as (a, b):
        open_gate(a, b)
        a.qp.post_recv(*((i, []) for i in range(64)))
        read = SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], wr_id=1, remote_addr=b.mr.addr, rkey=b.mr.rkey)
        a.qp.post_send(read)
        for _ in range(1000):
            b.qp.post_send(SendWR(Opcode.RDMA_WRITE, [], wr_id=2))
            assert [wc.wr_id for wc in b.cq.poll()] == [2]
            if any(wc.wr_id == 1 for wc in a.cq.poll()):
                break
        else:
            raise AssertionError("the READ was not served")

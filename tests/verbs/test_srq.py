"""Shared receive queues, resizing of completion queues, asynchronous events, memory of the provider."""

from __future__ import annotations

import os
import threading

import polling
import pytest
from transport import rounds
from verbs_ends import (
    ALL,
    INIT,
    RTR,
    RTS,
    End,
    completions,
    connect,
    connected,
    device,
    faults,
    ready,
    statuses,
    streams,
    until,
)

from rmemcached.verbs import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    Access,
    Context,
    EventType,
    Opcode,
    SendFlag,
    SendWR,
    State,
    Status,
    VerbsError,
    event_text,
)


def no_wait(end: End) -> None:
    os.set_blocking(end.context.async_fileno(), False)


def events(end: End) -> list[tuple[EventType, object]]:
    """All pending asynchronous events; the descriptor is readable exactly while there are some."""
    no_wait(end)
    found: list[tuple[EventType, object]] = []
    while True:
        readable = polling.readable(end.context.async_fileno(), 0)
        event = end.context.get_async_event()
        assert readable == (event is not None)
        if event is None:
            return found
        found.append(event)


class SharedEnd(End):
    """An end whose queue pair, and any number of others, take receives from an SRQ."""

    def __init__(self, size: int = 1 << 16, *, max_wr: int = 64, max_sge: int = 4) -> None:
        super().__init__(size)
        self.srq = SRQ(self.pd, max_wr=max_wr, max_sge=max_sge)
        self.qp.close()
        self.qp = self.another()

    def another(self) -> QP:
        qp = QP(self.pd, self.cq, srq=self.srq)
        ready(qp)
        return qp


def test_receives_are_shared() -> None:
    """Two senders, two receiving queue pairs, one SRQ: first come, first served, and each completion names its QP."""
    with End() as a, End() as c, SharedEnd() as b:
        other = b.another()
        first = b.qp
        connect(a, b)
        b.qp = other
        connect(c, b)
        b.srq.post_recv(*((i, [b.mr.sge(i * 100, 50), b.mr.sge(i * 100 + 50, 50)]) for i in range(4)))
        expected = []
        for i, (end, qp) in enumerate(((a, first), (c, other), (c, other), (a, first))):
            end.buffer[:70] = bytes([i + 65]) * 70
            end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(0, 70)]))
            (wc,) = completions(b, 1, end)
            expected.append((i, Status.SUCCESS, 70, qp.qp_num))
            assert (wc.wr_id, wc.status, wc.byte_len, wc.qp_num) == expected[-1]
            assert b.buffer[i * 100 : i * 100 + 70] == bytes([i + 65]) * 70
        # Without a receive left a SEND ends its queue pair, as without an SRQ.
        if streams():
            a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 7)]))
            until(lambda: first.state == State.ERR, a, b)
            assert other.state == State.RTS
        b.srq.post_recv((9, [b.mr.sge(0, 100)]))
        c.qp.post_send(SendWR(Opcode.SEND, [c.mr.sge(0, 7)]))
        (wc,) = completions(b, 1, c)
        assert (wc.wr_id, wc.status, wc.qp_num) == (9, Status.SUCCESS, other.qp_num)


@pytest.mark.soft("beyond what libibverbs has")
def test_the_newest_receive_is_taken_first() -> None:
    with End() as a, SharedEnd() as b:
        connect(a, b)
        b.srq.newest_first()
        b.srq.post_recv(*((i, [b.mr.sge(0, 100)]) for i in range(3)))
        taken = []
        for _ in range(3):
            a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 7)]))
            (wc,) = completions(b, 1, a)
            taken.append(wc.wr_id)
            if len(taken) == 1:
                b.srq.post_recv((3, [b.mr.sge(0, 100)]))
        assert taken == [2, 3, 1]


@pytest.mark.soft("beyond what libibverbs has")
def test_a_limited_queue_pair_takes_nothing_from_others() -> None:
    """A limited queue pair ends with the message beyond its limit, reported by a completion."""
    with End() as a, End() as c, SharedEnd() as b:
        other, greedy = b.another(), b.qp
        greedy.limit(1, wr_id=99)
        other.limit(3, wr_id=98)
        connect(a, b)
        b.qp = other
        connect(c, b)
        b.srq.post_recv(*((i, [b.mr.sge(0, 100)]) for i in range(5)))
        greedy.allow(1)
        for _ in range(20):
            a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 7)]))
        found = completions(b, 3, a)
        assert {wc.qp_num for wc in found} == {greedy.qp_num}
        assert [(wc.wr_id, wc.status) for wc in found] == [
            (0, Status.SUCCESS),
            (1, Status.SUCCESS),
            (99, Status.WR_FLUSH_ERR),
        ]
        assert greedy.state == State.ERR
        for i in range(3):
            c.qp.post_send(SendWR(Opcode.SEND, [c.mr.sge(0, 7)]))
            (wc,) = completions(b, 1, c)
            assert (wc.wr_id, wc.status, wc.qp_num) == (2 + i, Status.SUCCESS, other.qp_num)


def test_a_message_in_several_segments_takes_one_receive() -> None:
    with End(1 << 20) as a, SharedEnd(1 << 20) as b:
        connect(a, b)
        b.srq.post_recv((1, [b.mr.sge(0, 1 << 20)]), (2, [b.mr.sge(0, 10)]))
        a.buffer[:] = os.urandom(1 << 20)
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge()]))
        (wc,) = completions(b, 1, a)
        assert (wc.wr_id, wc.byte_len) == (1, 1 << 20)
        assert a.buffer == b.buffer
        # The message is too long for its receive, whose completion has the error.
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 11)]))
        (wc,) = completions(b, 1, a)
        assert wc.wr_id == 2 and wc.status in faults(Status.LOC_LEN_ERR)


def test_limit_event() -> None:
    with End() as a, SharedEnd() as b:
        connect(a, b)
        b.srq.post_recv(*((i, []) for i in range(8)))
        b.srq.modify(srq_limit=6)
        found = b.srq.query()
        assert found["max_wr"] >= 64 and found["max_sge"] >= 4 and found["srq_limit"] == 6
        for i in range(2):
            a.qp.post_send(SendWR())
            completions(b, 1, a)
            assert events(b) == [], i
        a.qp.post_send(SendWR())
        completions(b, 1, a)
        # The limit is passed, and the event comes once.
        assert events(b) == [(EventType.SRQ_LIMIT_REACHED, b.srq)]
        assert b.srq.query()["srq_limit"] == 0
        a.qp.post_send(SendWR())
        completions(b, 1, a)
        assert events(b) == []
        # A limit armed too late, with fewer receives left, makes its event at once.
        if streams():
            b.srq.modify(srq_limit=5)
            assert events(b) == [(EventType.SRQ_LIMIT_REACHED, b.srq)]
        b.srq.modify(srq_limit=2)
        b.srq.modify(srq_limit=0)
        for _ in range(4):
            a.qp.post_send(SendWR())
            completions(b, 1, a)
        assert events(b) == []


@pytest.mark.soft("a device's queues may be longer than was asked for")
def test_srq_limits_and_resizing() -> None:
    with SharedEnd(max_wr=4, max_sge=2) as b:
        sge = b.mr.sge(0, 10)
        with pytest.raises(VerbsError) as caught:
            b.srq.post_recv((0, [sge]), (1, [sge] * 3))
        assert caught.value.errno == 22 and "request 1" in str(caught.value)
        with pytest.raises(VerbsError) as caught:
            b.srq.post_recv(*((i, [sge, sge]) for i in range(1, 5)))
        assert caught.value.errno == 12 and "request 3" in str(caught.value)
        b.srq.modify(max_wr=100)
        b.srq.post_recv(*((i, [b.mr.sge(i * 10, 10)]) for i in range(4, 20)))
        for change in ({"max_wr": 19}, {"max_wr": 0}, {"max_wr": 1 << 30}, {"srq_limit": 101}):
            with pytest.raises(VerbsError) as caught:
                b.srq.modify(**change)
            assert caught.value.errno == 22
        with End() as a:
            connect(a, b)
            a.qp.post_send(*(SendWR(Opcode.SEND, [a.mr.sge(0, 3)]) for _ in range(20)))
            assert [wc.wr_id for wc in completions(b, 20, a)] == list(range(20))
        for options in ({"max_wr": 0}, {"max_wr": 1 << 30}, {"max_sge": 0}, {"max_sge": 100}):
            with pytest.raises(VerbsError) as caught:
                SRQ(b.pd, **options)
            assert caught.value.errno == 22
        # The queue pair has no receive queue of its own.
        with pytest.raises(VerbsError) as caught:
            b.qp.post_recv((1, []))
        assert caught.value.errno == 22
        assert b.qp.query()["max_recv_wr"] == 0


def test_srq_and_its_queue_pairs() -> None:
    with Context(device()) as context:
        pd, cq = PD(context), CQ(context)
        srq = SRQ(pd)
        qp = QP(pd, cq, srq=srq)
        assert qp.srq is srq
        with Context(device()) as other, pytest.raises(VerbsError):
            QP(PD(other), CQ(other), srq=srq)
        # The close of the SRQ first closes its users.
        srq.close()
        srq.close()
        for gone in (lambda: qp.qp_num, lambda: srq.post_recv((1, []))):
            with pytest.raises(ValueError):
                gone()


@pytest.mark.soft("Soft-RoCE does not say QP_LAST_WQE_REACHED")
def test_the_shared_receives_survive_a_queue_pair() -> None:
    with SharedEnd() as b:
        b.srq.post_recv(*((i, [b.mr.sge(0, 10)]) for i in range(3)))
        for i in range(3):
            b.qp.close()
            b.qp = b.another()
            with End() as a:
                connect(a, b)
                a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 10)]))
                assert [wc.wr_id for wc in completions(b, 1, a)] == [i]
                b.qp.modify(State.ERR)
                assert events(b) == [(EventType.QP_LAST_WQE_REACHED, b.qp)]
                # No receive is flushed: they belong to all queue pairs.
                assert b.cq.poll() == []


@pytest.mark.soft("stops in the middle of a message")
def test_an_open_message_is_flushed_from_the_shared_queue() -> None:
    """The receive taken by a half-received message comes back in error; the others stay."""
    with End(8 << 20) as a, SharedEnd(8 << 20) as b:
        connect(a, b)
        b.srq.post_recv((1, [b.mr.sge()]), (2, []))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge()]))
        until(lambda: b.qp.counters()["rx_bytes"] >= 1 << 16, a, b)
        assert b.done == []
        a.close()
        (wc,) = completions(b, 1)
        assert (wc.wr_id, wc.status) == (1, Status.WR_FLUSH_ERR)
        assert events(b) == [(EventType.QP_FATAL, b.qp), (EventType.QP_LAST_WQE_REACHED, b.qp)]


@pytest.mark.soft("Soft-RoCE makes none of these events")
def test_events_of_errors() -> None:
    """The end that detects a broken rule gets an event where no completion can report the fault."""
    remote = {"remote_addr": 64, "rkey": 1234}
    for request, event in (
        (lambda a: SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 8)], **remote), EventType.QP_ACCESS_ERR),
        (lambda a: SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], **remote), EventType.QP_ACCESS_ERR),
        (lambda a: SendWR(Opcode.SEND, [a.mr.sge(0, 8)]), EventType.QP_REQ_ERR),
    ):
        with connected() as (a, b):
            a.qp.post_send(request(a))
            both = (a.qp, b.qp)
            until(lambda both=both: all(qp.state == State.ERR for qp in both), a, b)  # type: ignore[misc]
            assert events(b) == [(event, b.qp)]
            told = any(wc.status not in (Status.SUCCESS, Status.WR_FLUSH_ERR) for wc in a.done)
            assert events(a) == ([] if told else [(EventType.QP_FATAL, a.qp)])
    with connected() as (a, b):
        b.qp.post_recv((1, [b.mr.sge(0, 4)]))
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 5)]))
        assert statuses(completions(b, 1, a)) == [Status.LOC_LEN_ERR]
        assert events(b) == []
    with connected() as (a, b):
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR())
        completions(b, 1, a)
        a.qp.modify(State.ERR)
        until(lambda: b.qp.state == State.ERR, b)
        assert events(a) == []
        assert events(b) == [(EventType.QP_FATAL, b.qp)]


def test_event_of_an_overrun_queue() -> None:
    with End(cqe=2) as a:
        a.qp.post_recv(*((i, []) for i in range(4)))
        a.qp.modify(State.ERR)
        # A device with its own progress flushes the receives a little later.
        until(lambda: polling.readable(a.context.async_fileno(), 0))
        assert events(a) == [(EventType.CQ_ERR, a.cq)]


@pytest.mark.soft("RTR and RTS without a peer")
def test_communication_established() -> None:
    """The first message to a responder still in RTR gives the event COMM_EST."""
    with End() as a, End() as b:
        b.qp.modify(State.RESET)
        b.qp.to_init(ALL)
        b.qp.to_rtr()
        b.qp.post_recv((1, []), (2, []))
        connect(a, b)
        a.qp.post_send(SendWR(), SendWR())
        completions(b, 2, a)
        assert events(b) == [(EventType.COMM_EST, b.qp)]
        b.qp.to_rts()
        a.qp.post_recv((3, []))
        b.qp.post_send(SendWR())
        completions(a, 1, b)


@pytest.mark.soft("a device that works by itself has drained it by then")
def test_drained_send_queue() -> None:
    with connected() as (a, b):
        read = SendWR(Opcode.RDMA_READ, [a.mr.sge(0, 8)], remote_addr=b.mr.addr, rkey=b.mr.rkey)
        a.qp.post_send(read)
        until(lambda: a.qp.counters()["tx_fpdus"] == 1, a)
        a.qp.modify(State.SQD, en_sqd_async_notify=1)
        a.qp.post_send(SendWR(wr_id=7))
        # Requests under way are completed, and later requests wait.
        assert a.qp.query()["sq_draining"] and events(a) == []
        completions(a, 1, b)
        assert events(a) == [(EventType.SQ_DRAINED, a.qp)]
        assert not a.qp.query()["sq_draining"] and a.poll() == []
        a.qp.modify(State.SQD, max_rd_atomic=2, timeout=9)
        b.qp.post_recv((1, []))
        a.qp.modify(State.RTS)
        assert [wc.wr_id for wc in completions(a, 1, b)] == [7]
        # With nothing to drain the event comes at once, and only on request.
        a.qp.modify(State.SQD, en_sqd_async_notify=1)
        assert events(a) == [(EventType.SQ_DRAINED, a.qp)]
        a.qp.modify(State.RTS)
        a.qp.modify(State.SQD)
        assert events(a) == []


@pytest.mark.soft("Soft-RoCE does not say QP_LAST_WQE_REACHED")
def test_waiting_for_an_event() -> None:
    with End() as a:
        found = []
        thread = threading.Thread(target=lambda: found.append(a.context.get_async_event()))
        thread.start()
        srq = SRQ(a.pd)
        qp = QP(a.pd, a.cq, srq=srq)
        qp.to_init()
        qp.modify(State.ERR)
        thread.join(20)
        assert found == [(EventType.QP_LAST_WQE_REACHED, qp)]
        # Pending events go with their object.
        qp.modify(State.RESET)
        qp.to_init()
        qp.modify(State.ERR)
        qp.close()
        assert events(a) == []


def test_event_texts() -> None:
    texts = [event_text(event) for event in EventType]
    assert len(set(texts)) == len(texts) and "unknown" not in texts
    assert event_text(31) == "unknown"


@pytest.mark.soft("Soft-RoCE keeps the completions of a queue pair that was reset")
def test_resizing_a_completion_queue() -> None:
    with connected(cqe=8) as (_, b):
        for i in range(3):
            b.qp.post_recv(*((i * 10 + k, []) for k in range(6)))
            b.qp.modify(State.ERR)
            b.qp.modify(State.RESET) if i < 2 else None
            if i < 2:
                ready(b.qp, 0)
        with pytest.raises(VerbsError) as caught:
            b.cq.resize(4)
        assert caught.value.errno == 22
        b.cq.resize(1000)
        assert b.cq.cqe >= 1000
        b.qp.post_recv(*((100 + k, []) for k in range(50)))
        assert [wc.wr_id for wc in b.cq.poll(100)] == [*range(20, 26), *range(100, 150)]
        b.cq.resize(1)
        assert b.cq.cqe == 1
        for cqe in (0, -1, 1 << 30):
            with pytest.raises(VerbsError):
                b.cq.resize(cqe)


def test_resizing_while_in_use() -> None:
    with connected(cqe=64) as (a, b):
        count = rounds(3000)
        stop = threading.Event()

        def resize() -> None:
            size = 64
            while not stop.is_set():
                size = 64 if size > 4096 else size * 2
                for cq in (a.cq, b.cq):
                    cq.resize(size)

        thread = threading.Thread(target=resize)
        thread.start()
        b.qp.post_recv(*((i, []) for i in range(32)))
        try:
            for i in range(count):
                a.qp.post_send(SendWR(wr_id=i))
                (wc,) = completions(b, 1, a)
                b.qp.post_recv((wc.wr_id, []))
                assert completions(a, 1, b)[0].wr_id == i
        finally:
            stop.set()
            thread.join()


def test_the_partition_key() -> None:
    with Context(device()) as context:
        assert context.query_pkey() == 0xFFFF
        for port, index in ((2, 0), (1, 1)):
            with pytest.raises(VerbsError):
                context.query_pkey(port, index)


@pytest.mark.soft("RTR and RTS without a peer")
def test_attribute_values_are_checked() -> None:
    with Context(device()) as context:
        qp = QP(PD(context), CQ(context))
        steps = (
            (State.INIT, INIT, {"qp_access_flags": int(Access.REMOTE_ATOMIC)}),
            (State.RTR, RTR, {"path_mtu": 0, "dest_qp_num": 1 << 24, "min_rnr_timer": 32}),
            (State.RTS, RTS, {"timeout": 32, "retry_cnt": 8, "rnr_retry": 8, "max_rd_atomic": 129}),
        )
        for state, attributes, wrong in steps:
            for name, value in wrong.items():
                with pytest.raises(VerbsError) as caught:
                    qp.modify(state, **{**attributes, name: value})
                assert caught.value.errno == 22, name
            qp.modify(state, **attributes)
        asked = qp.query()
        for name in ("path_mtu", "timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "port_num"):
            assert asked[name] == {**INIT, **RTR, **RTS}[name]


@pytest.mark.soft("libibverbs has no regions over memory of its own")
def test_memory_of_the_provider() -> None:
    with End() as a, End() as b:
        connect(a, b)
        mr = MR.alloc(b.pd, 10_000, ALL)
        assert mr.length == 10_000 and mr.addr % 4096 == 0
        with memoryview(mr) as view:
            assert bytes(view) == bytes(10_000) and not view.readonly
            a.buffer[:100] = os.urandom(100)
            b.qp.post_recv((1, []))
            a.qp.post_send(
                SendWR(Opcode.RDMA_WRITE, [a.mr.sge(0, 100)], remote_addr=mr.addr + 9900, rkey=mr.rkey, flags=0),
                SendWR(Opcode.SEND, [], flags=SendFlag.SOLICITED),
            )
            completions(b, 1, a)
            assert view[9900:] == a.buffer[:100]
            with pytest.raises(BufferError):
                mr.close()
            # A refused close leaves the region whole.
            assert mr.rkey and view[9900:] == a.buffer[:100]
        mr.close()
        mr.close()
        with pytest.raises(ValueError):
            memoryview(mr)
        for length, access, error in (
            (0, ALL, 22),
            (8, Access.REMOTE_WRITE, 22),
            (8, Access.REMOTE_ATOMIC, 95),
            (1 << 62, ALL, 12),
        ):
            with pytest.raises(VerbsError) as caught:
                MR.alloc(b.pd, length, access)
            assert caught.value.errno == error


def test_a_region_is_a_buffer() -> None:
    with Context(device()) as context:
        pd = PD(context)
        data = bytearray(b"0123456789")
        mr = MR(pd, data)
        memoryview(mr)[3:5] = b"xy"
        assert data == b"012xy56789"
        constant = MR(pd, b"constant", Access.REMOTE_READ)
        assert memoryview(constant).readonly and bytes(memoryview(constant)) == b"constant"

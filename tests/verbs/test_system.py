"""Behaviour of libibverbs' devices that the software devices lack; see conftest.py."""

from __future__ import annotations

import pytest
from verbs_ends import End, completions, connected, device, ready, statuses, stream_pair

from rmemcached.verbs import MR, Context, Opcode, SendWR, State, Status, VerbsError, devices

pytestmark = pytest.mark.system


def test_a_send_waits_for_its_receive() -> None:
    """A sender whose peer has no receive tries again until there is one, and nothing is lost."""
    with connected() as (a, b):
        a.buffer[:5] = b"early"
        a.qp.post_send(SendWR(Opcode.SEND, [a.mr.sge(0, 5)], wr_id=1))
        for _ in range(100):
            assert a.poll() == b.poll() == []
        b.qp.post_recv((2, [b.mr.sge(0, 5)]))
        assert statuses(completions(b, 1) + completions(a, 1)) == [Status.SUCCESS] * 2
        assert b.buffer[:5] == b"early"


def test_the_address_names_the_queue_pair() -> None:
    with End() as end:
        address = end.qp.address
        assert address["qpn"] == end.qp.qp_num and 0 <= address["psn"] < 1 << 24
        gids = [end.context.query_gid(1, i) for i in range(end.context.query_port()["gid_tbl_len"])]
        assert address["gid"] in gids and any(address["gid"])
        assert address["mtu"] == 128 << end.context.query_port()["active_mtu"]
        assert end.qp.state == State.INIT
        for wrong in ({"gid": bytes(15)}, {"qpn": -1}, {"mtu": "1024"}):
            with pytest.raises((ValueError, OverflowError, TypeError)):
                end.qp.join({**address, **wrong})
        # A queue pair may also be connected to itself.
        end.qp.join(address)
        end.qp.post_recv((1, [end.mr.sge(0, 8)]))
        end.qp.post_send(SendWR(Opcode.SEND, [end.mr.sge(8, 8)]))
        assert statuses(completions(end, 2)) == [Status.SUCCESS] * 2


def test_what_only_the_software_device_has_is_refused() -> None:
    ours, theirs = stream_pair()
    with End() as end, ours, theirs:
        for call in (
            lambda: MR.alloc(end.pd, 4096),
            lambda: end.qp.counters(),
            lambda: end.qp.stream(),
            lambda: end.qp.connect(ours),
            lambda: end.qp.accept(ours, b""),
            lambda: end.qp.attach(ours),
        ):
            with pytest.raises(VerbsError) as caught:
                call()
            assert caught.value.errno == 95


def test_both_providers_side_by_side() -> None:
    assert device() in devices("system") and device() not in devices()
    with Context(device()) as hard, Context("soft_iw0") as soft:
        assert hard.query_device()["phys_port_cnt"] >= 1 and soft.query_device()["phys_port_cnt"] == 1


def test_ready_again_after_reset() -> None:
    with connected() as (a, b):
        for end in (a, b):
            end.qp.modify(State.ERR)
            end.qp.modify(State.RESET)
            ready(end.qp)
        addresses = a.qp.address, b.qp.address
        a.qp.join(addresses[1])
        b.qp.join(addresses[0])
        b.qp.post_recv((1, []))
        a.qp.post_send(SendWR())
        assert statuses(completions(b, 1, a)) == [Status.SUCCESS]

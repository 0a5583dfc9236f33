"""The counters show that values above the eager limit go straight between the client's memory and the item."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from daemon_tools import TIMEOUT, Conversation, eventually, rdma_client
from servers import Server
from transport import rounds, some

from rmemcached.client import Client

pytestmark = pytest.mark.usefixtures("rdma_transport")

COUNT = rounds(20)
TWO_MESSAGES = 16_000  # the longest value, with its command, for two messages of soft_iw


@pytest.fixture
def control(rmemcached_server: Callable[..., Server]) -> Iterator[tuple[Server, Conversation]]:
    server = rmemcached_server("-m", "256", "-I", "8m")
    with Conversation(server) as talk:
        yield server, talk


def counters(talk: Conversation) -> dict[str, int]:
    """The counters, without the cost of asking for them."""
    general = talk.stats()
    found = {name: int(general[name]) for name in ("bytes_read", "bytes_written", "cmd_set", "cmd_get", "touch_hits")}
    return found | {name: int(value) for name, value in talk.stats("rdma").items() if value.isdigit()}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


def test_requests_for_small_values_name_no_memory(control: tuple[Server, Conversation]) -> None:
    """Successive small requests name no memory. A large value among them comes in messages, a second by WRITE."""
    server, talk = control
    large = random.Random(1).randbytes(65536)
    with rdma_client(server) as client:
        client.set("small", b"x" * 100)
        client.set("large", large)
        for _ in range(100):
            assert client.gat("small") == b"x" * 100
        before = counters(talk)
        for _ in range(COUNT):
            assert client.gat("small") == b"x" * 100
        after = counters(talk)
        assert after["rdma_recv_bytes"] - before["rdma_recv_bytes"] == COUNT * len(b"mg small v T0\r\n")
        assert client.gat("large") == large
        assert counters(talk)["rdma_write_bytes"] == 0
        assert client.gat("large") == large
        eventually(lambda: counters(talk)["rdma_write_bytes"] == len(large))


@pytest.mark.device("READs and WRITEs")
@pytest.mark.parametrize("size", some([4097, 8193, 65536, 1_000_000, 8_000_000]))
def test_large_values_bypass_the_sockets(control: tuple[Server, Conversation], size: int, rdma_transport: str) -> None:
    server, talk = control
    value = random.Random(size).randbytes(size)
    with rdma_client(server) as client:
        # The daemon counts a WRITE when it completes, perhaps after the reply. The client's memory for values (its
        # Sink) has 1 MB at first, and grows after the first larger value: only this value comes without a WRITE.
        assert client.set("large", value)
        for _ in range(2):
            assert client.gat("large") == value
        writes = 1 if size > 1 << 20 else 2
        eventually(lambda: counters(talk)["rdma_write_bytes"] == writes * size)
        before = counters(talk)
        for _ in range(COUNT):
            assert client.set("large", value)
        after_set = counters(talk)
        for _ in range(COUNT):
            assert client.gat("large") == value
        eventually(lambda: counters(talk)["rdma_write_bytes"] - before["rdma_write_bytes"] == COUNT * size)
        after = counters(talk)
    sets, gets = grown(before, after_set), grown(after_set, after)
    overhead = COUNT * 300 + 20_000  # command lines, replies, headers, and the replies to `stats` itself

    assert sets["cmd_set"] == COUNT
    assert sets["rdma_writes"] == sets["rdma_write_bytes"] == 0
    if rdma_transport == "soft_iw" and size <= TWO_MESSAGES:
        assert sets["rdma_reads"] == 0
        assert COUNT * size <= sets["rdma_recv_bytes"] < COUNT * size + overhead
    else:
        assert sets["rdma_read_bytes"] == COUNT * size
        assert sets["rdma_reads"] >= COUNT
        assert sets["rdma_recv_bytes"] < overhead
        assert sets["bytes_read"] < overhead
    if rdma_transport == "soft_shm":
        # The daemon takes the values from the client's memory, but for the first two: these make the region known, and
        # sealed.
        assert sets["shm_one_sided"] >= sets["rdma_reads"] - 2
        assert sets["shm_rx_bytes"] < overhead + size * 2.2
    elif rdma_transport == "soft_iw" and size > TWO_MESSAGES:
        assert sets["iw_rx_bytes"] >= COUNT * size
        # Only messages and frame headers may pass through the provider's own buffer.
        assert sets["iw_rx_staged_bytes"] < overhead + COUNT * size // 20, sets

    assert gets["touch_hits"] == COUNT
    assert gets["rdma_write_bytes"] == COUNT * size
    assert gets["rdma_writes"] >= COUNT
    assert gets["rdma_reads"] == gets["rdma_read_bytes"] == 0
    assert gets["rdma_send_bytes"] < overhead
    assert gets["bytes_written"] < overhead
    if rdma_transport == "soft_shm":
        assert gets["shm_one_sided"] >= gets["rdma_writes"] - 2
    elif rdma_transport == "soft_iw":
        assert gets["iw_tx_bytes"] >= COUNT * size


def test_of_many_values_the_first_comes_in_messages(control: tuple[Server, Conversation], rdma_transport: str) -> None:
    """The first value of a call comes in messages, where two messages hold the value and are faster.

    The other values come by WRITE: in messages they would wait for one another, since the server keeps less for a lane.
    """
    server, talk = control
    value = random.Random(2).randbytes(TWO_MESSAGES)
    with rdma_client(server) as client:
        assert client.set_many({f"key{n}": value for n in range(10)}) == []
        found = counters(talk)
        assert client.gat_many([f"key{n}" for n in range(10)]) == {f"key{n}": value for n in range(10)}
    assert found["rdma_read_bytes"] == (9 if rdma_transport == "soft_iw" else 10) * len(value)


def frames_of(client: Client, talk: Conversation, size: int, unwritten: int) -> int:
    """The number of soft_iw frames for a get of this size. unwritten: the number of first gets without a WRITE."""
    value = random.Random(size).randbytes(size)
    assert client.set("large", value)
    total = counters(talk)["rdma_write_bytes"]

    def get(gets: int) -> int:
        before = counters(talk)
        assert client.gat("large") == value
        eventually(lambda: counters(talk)["rdma_write_bytes"] == total + (gets - unwritten) * size)
        # The reply has a frame of its own, which does not count.
        return grown(before, counters(talk))["iw_tx_fpdus"] - 1

    return [get(gets) for gets in (1, 2, 3)][-1]


def test_a_value_of_several_writes_has_one_short_frame(control: tuple[Server, Conversation]) -> None:
    """A large value has a single short frame, the last.

    1 MB is one WRITE, whose last frame is short. Several such WRITEs for a larger value would have a short frame after
    each MB. A receiver prepared for long frames would have to copy the bytes behind a short frame.
    """
    server, talk = control
    with rdma_client(server) as client:
        one, seven = (frames_of(client, talk, size << 20, unwritten) for size, unwritten in ((1, 0), (7, 1)))
    # Other transports have no frames.
    assert seven < 7 * one or client.transport != "soft_iw"


@pytest.mark.parametrize("size", some([0, 1, 100, 4096]))
def test_small_values_travel_in_messages(control: tuple[Server, Conversation], size: int) -> None:
    server, talk = control
    value = bytes(size)
    with rdma_client(server) as client:
        client.set("small", value)
        before = counters(talk)
        for _ in range(COUNT):
            assert client.set("small", value)
            assert client.gat("small") == value
        sums = grown(before, counters(talk))
    assert sums["rdma_reads"] == sums["rdma_writes"] == 0
    assert sums["rdma_recv_bytes"] >= COUNT * size
    assert sums["rdma_send_bytes"] >= COUNT * size
    assert sums["cmd_set"] == sums["touch_hits"] == COUNT
    # The sockets carried nothing but the statistics.
    assert sums["bytes_read"] < 200


def test_frames_carry_the_payload_once(control: tuple[Server, Conversation]) -> None:
    """Frame headers, trailers and messages are a few per cent of a large transfer."""
    server, talk = control
    size = 4_000_000
    with Client(server.address, transport="soft_iw", timeout=TIMEOUT, default_noreply=False) as client:
        assert client.set("frames", bytes(size))
        before = counters(talk)
        for _ in range(5):
            assert client.set("frames", bytes(size))
        sums = grown(before, counters(talk))
    assert 5 * size < sums["iw_rx_bytes"] < 5 * size * 1.05
    assert sums["iw_rx_fpdus"] >= 5 * size // 65536


@pytest.mark.device("registrations")
def test_registrations_are_made_once_per_connection(control: tuple[Server, Conversation]) -> None:
    server, talk = control
    with rdma_client(server) as client:
        for size in (10, 5000, 1_000_000):
            for _ in range(rounds(50)):
                client.set("again", bytes(size))
                client.get("again")
        found = talk.stats("rdma")
    assert found["rdma_queue_pairs"] == found["rdma_total_queue_pairs"] == "1"
    # The registrations are of receives, and of replies.
    assert found["rdma_registrations"] == "2"

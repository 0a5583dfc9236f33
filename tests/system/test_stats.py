"""Statistics: memcached's names and counts for the same commands, the same over RDMA, and `stats reset`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from daemon_tools import DATA, GONE_WITHIN, Conversation, Peer, eventually, rdma_client
from servers import Server

from rmemcached import MEMCACHED_VERSION

ServerFactory = Callable[..., Server]

SEQUENCE = [
    b"set a 0 0 3\r\nabc\r\n",
    b"set b 0 0 1\r\n5\r\n",
    b"set c 0 -1 1\r\nx\r\n",
    b"add a 0 0 1\r\nx\r\n",
    b"add d 0 0 1\r\nx\r\n",
    b"replace none 0 0 1\r\nx\r\n",
    b"append a 0 0 1\r\nd\r\n",
    b"prepend none 0 0 1\r\nd\r\n",
    b"get a\r\n",
    b"get none\r\n",
    b"get a b none d\r\n",
    b"gets a\r\n",
    b"get c\r\n",
    b"cas a 0 0 1 999999\r\nx\r\n",
    b"cas none 0 0 1 1\r\nx\r\n",
    b"delete d\r\n",
    b"delete none\r\n",
    b"incr b 3\r\n",
    b"incr none 1\r\n",
    b"incr a 1\r\n",
    b"decr b 1\r\n",
    b"decr none 1\r\n",
    b"touch a 100\r\n",
    b"touch none 100\r\n",
    b"gat 100 a\r\n",
    b"gat 100 none\r\n",
    b"mg a v\r\n",
    b"mg none v\r\n",
    b"mg a v T50\r\n",
    b"mg vivid v N30\r\n",
    b"ms e 4\r\nabcd\r\n",
    b"ms none 1 MR\r\nx\r\n",
    b"md e\r\n",
    b"md none\r\n",
    b"ma b\r\n",
    b"ma none\r\n",
    b"ma fresh N0 J7\r\n",
    b"me a\r\n",
    b"mn\r\n",
    b"nonsense\r\n",
    b"set big 0 0 5000000\r\n" + bytes(5_000_000) + b"\r\n",
    b"ms big 5000000\r\n" + bytes(5_000_000) + b"\r\n",
    b"set z 0 0 10\r\n0123456789\r\n",
    b"get z\r\n",
]
# Statistics that are not about commands, or are counted otherwise on purpose.
APART = {
    *("pid", "uptime", "time", "version", "rusage_user", "rusage_system", "max_connections", "connection_structures"),
    *("response_obj_count", "response_obj_bytes", "curr_connections", "total_connections", "hash_bytes"),
    # These depend on the part of a pipeline found by each read, and on the time until the daemon finds the
    # connection alone.
    *("conn_yields", "bytes_read", "bytes_written"),
    # memcached's own background threads change this count.
    "lrutail_reflocked",
}

# Statistics of 1.6.45, which an older installed memcached lacks.
NEWER = {
    *("slab_reassign_busy_nomem", "slab_reassign_last_busy_status", "store_too_large", "store_no_memory"),
    "client_flags_size",
    *("proxy_enabled", "proxy_uring_enabled"),
}
# A statistic of our own (docs/compatibility.md).
NEWER.add("rmemcached_version")
if "lru_algorithm=s3fifo" in os.environ.get("RMEMCACHED_TEST_OPTIONS", ""):
    NEWER |= {"ghost_hits", "ghost_bytes", "small_lru_pct", "lru_algorithm"}
# These show the progress of background threads, or differences between the two programs.
OWN = {
    *("lru_maintainer_juggles", "lru_crawler_starts", "lru_crawler_running", "moves_to_cold", "moves_to_warm"),
    *("moves_within_lru", "crawler_items_checked", "crawler_reclaimed"),
    *("libevent", "reserved_fds", "read_buf_count", "read_buf_bytes", "read_buf_bytes_free"),
}

# These depend on the remover of an expired item: a request, or a background thread before the request.
EXPIRED = {"reclaimed", "expired_unfetched", "get_expired"}


def after_sequence(server: Server) -> dict[str, str]:
    with Conversation(server) as talk:
        talk.send(b"".join(SEQUENCE) + b"version\r\n")
        while not talk.line().startswith(b"VERSION"):
            pass
        eventually(lambda: talk.number("curr_connections") in (1, 2))
        return talk.stats()


# Daemons with these options have no crawler and no maintainer, which would remove expired items at different times in
# the two daemons.
ALONE = ("-m", "64", "-o", "no_lru_crawler,no_lru_maintainer")


@pytest.mark.without_direct("stats has the lines of docs/direct-reads.md, section 6, too")
@pytest.mark.parametrize("threads", [(), ALONE[2:]], ids=["", "alone"])
def test_counters_are_memcached_s(
    rmemcached_server: ServerFactory, memcached_server: ServerFactory, threads: tuple[str, ...]
) -> None:
    ours, theirs = (after_sequence(start("-m", "64", *threads)) for start in (rmemcached_server, memcached_server))
    assert set(ours) - set(theirs) <= NEWER
    wrong = {
        name: (ours[name], theirs[name])
        for name in ours
        if name not in APART | NEWER | OWN | (EXPIRED if not threads else set()) and ours[name] != theirs[name]
    }
    assert not wrong, wrong
    # The statistics come in memcached's order.
    names = [name for name in theirs if name in ours]
    assert [name for name in ours if name in theirs] == names


@pytest.mark.parametrize("what", ["settings", "items", "slabs"])
def test_names_are_memcached_s(rmemcached_server: ServerFactory, memcached_server: ServerFactory, what: str) -> None:
    found = []
    for start in (rmemcached_server, memcached_server):
        with Conversation(start()) as talk:
            assert talk.ask(b"set key 0 0 1\r\nx\r\n") == b"STORED\r\n"
            found.append(talk.stats(what))
    ours, theirs = found
    assert set(ours) - set(theirs) - NEWER == set()
    assert [name for name in ours if name in theirs] == [name for name in theirs if name in ours]
    if what != "settings":
        differing = {name for name in ours if ours[name] != theirs[name]}
        # These statistics depend on how far the maintainer thread has come.
        moving: tuple[str, ...] = (
            "age",
            "age_hot",
            "age_warm",
            "lrutail_reflocked",
            "number_hot",
            "number_cold",
            "moves_to_cold",
        )
        moving += ("crawler_items_checked", "crawler_reclaimed")
        assert {name for name in differing if not name.endswith(moving)} == set()


def test_counters_by_rdma_are_those_by_tcp(rmemcached_server: ServerFactory) -> None:
    by_tcp = after_sequence(rmemcached_server(*ALONE))
    server = rmemcached_server(*ALONE)
    with Peer(server) as peer, Conversation(server) as talk:
        stream = b"".join(SEQUENCE) + b"version\r\n"
        for at in range(0, len(stream), 8000):
            peer.send(DATA, stream[at : at + 8000])
        peer.wait(lambda: b"VERSION" in peer.inbox)
        by_rdma = talk.stats()
    wrong = {name: (by_rdma[name], by_tcp[name]) for name in by_tcp if by_rdma[name] != by_tcp[name]}
    assert set(wrong) <= APART | OWN, wrong


def test_general(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "100", "-t", "2", "-c", "77")
    with Conversation(server) as talk:
        found = talk.stats()
    assert found["pid"] == str(server.pid)
    assert found["version"] == MEMCACHED_VERSION
    assert abs(int(found["time"]) - time.time()) < 3
    assert int(found["uptime"]) < 5
    assert found["pointer_size"] == "64"
    assert found["limit_maxbytes"] == str(100 << 20)
    assert found["threads"] == "2"
    assert found["max_connections"] == "77"
    assert float(found["rusage_user"]) > 0
    assert os.sysconf("SC_PAGE_SIZE") and int(found["hash_power_level"]) == 16


def test_huge_pages_are_counted(rmemcached_server: ServerFactory) -> None:
    for options in ("huge_pages", "huge_pages,rdma_direct=off", "no_huge_pages"):
        with Conversation(rmemcached_server("-m", "128", "-o", options)) as talk:
            assert "huge_pages_made" not in talk.stats()
            for number in range(100):
                assert talk.ask(b"set %d 0 0 500000\r\n" % number + b"x" * 500_000 + b"\r\n") == b"STORED\r\n"
            if options.startswith("huge_pages"):
                eventually(lambda: int(talk.stats().get("huge_pages_made", 0)) > 10)
            else:
                assert "huge_pages_made" not in talk.stats()


def test_bytes_of_the_sockets(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server()) as talk:
        before = talk.stats()
        request = b"set key 0 0 100000\r\n" + bytes(100_000) + b"\r\n"
        assert talk.ask(request) == b"STORED\r\n"
        talk.send(b"get key\r\n")
        reply = talk.read(len(b"VALUE key 0 100000\r\n") + 100_002 + 5)
        after = talk.stats()
    asked = len(b"stats\r\n")
    told = sum(len(f"STAT {name} {value}\r\n") for name, value in before.items()) + len(b"END\r\n")
    assert int(after["bytes_read"]) - int(before["bytes_read"]) == len(request) + len(b"get key\r\n") + asked
    assert int(after["bytes_written"]) - int(before["bytes_written"]) == len(reply) + len(b"STORED\r\n") + told


def test_rdma_counters(rmemcached_server: ServerFactory) -> None:
    """Before any RDMA client all counters are zero, and the others describe the device."""
    with Conversation(rmemcached_server("-m", "64")) as talk:
        assert talk.ask(b"set key 0 0 1\r\nx\r\n") == b"STORED\r\n"
        server_stats = talk.stats("rdma")
        assert server_stats["rdma_device"] == "soft_iw0,soft_shm0"
        assert server_stats["rdma_transport"] == "soft_iw,soft_shm"
        words = [name for name, value in server_stats.items() if not value.isdigit()]
        assert words == ["rdma_device", "rdma_transport", "rdma_shm", "rdma_direct", "rdma_direct_off"]
        zero = [name for name, value in server_stats.items() if value == "0"]
        for name in ("queue_pairs", "registrations", "streams", "exchanges", "sends", "recvs", "reads", "writes"):
            assert f"rdma_{name}" in zero
        assert int(server_stats["rdma_arena_registrations"]) >= 1


def test_rdma_counters_of_one_client(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "64")
    with Conversation(server) as talk, rdma_client(server) as client:
        client.version()
        first = {name: int(value) for name, value in talk.stats("rdma").items() if value.isdigit()}
        assert first["rdma_queue_pairs"] == first["rdma_total_queue_pairs"] == 1
        assert first["rdma_registrations"] == 2
        assert first["rdma_exchanges"] == first["rdma_streams"] == 1
        client.set("small", bytes(100))
        client.get("small")
        client.set("large", bytes(100_000))
        client.get("large")
        last = {}

        def complete() -> bool:
            last.update({name: int(value) for name, value in talk.stats("rdma").items() if value.isdigit()})
            return last["rdma_write_bytes"] == 100_000

        eventually(complete)
        grown = {name: last[name] - first[name] for name in first}
        assert grown["rdma_recvs"] == 4
        assert grown["rdma_sends"] == 4
        assert grown["rdma_reads"] == grown["rdma_writes"] == 1
        assert grown["rdma_read_bytes"] == grown["rdma_write_bytes"] == 100_000
        assert grown["rdma_qp_errors"] == grown["rdma_read_errors"] == grown["rdma_write_errors"] == 0
        assert grown["iw_rx_bytes"] > 100_000 and grown["iw_tx_bytes"] > 100_000
        client.close()

        def over() -> bool:
            found = talk.stats("rdma")
            return found["rdma_queue_pairs"] == "0" and int(found["iw_rx_bytes"]) >= last["iw_rx_bytes"]

        eventually(over, GONE_WITHIN)
        assert talk.number("rdma_total_queue_pairs", "rdma") == 1


@pytest.mark.without_direct("stats has the lines of docs/direct-reads.md, section 6, too")
def test_reset(rmemcached_server: ServerFactory, memcached_server: ServerFactory) -> None:
    found = []
    for start in (rmemcached_server, memcached_server):
        server = start("-m", "64")
        after_sequence(server)
        with Conversation(server) as talk:
            assert talk.ask(b"stats reset\r\n") == b"RESET\r\n"
            found.append(talk.stats())
            assert talk.ask(b"get z\r\n") == b"VALUE z 0 10\r\n"
            assert talk.line() == b"0123456789\r\n" and talk.line() == b"END\r\n"
            assert talk.number("get_hits") == 1
    ours, theirs = found
    wrong = {
        name: (ours[name], theirs[name])
        for name in ours
        if name not in APART | NEWER | OWN and ours[name] != theirs[name]
    }
    assert not wrong, wrong


def test_flush_all(rmemcached_server: ServerFactory) -> None:
    """flush_all reaches items of the same second, by both transports. Items stored afterwards stay."""
    server = rmemcached_server("-m", "64")
    with Conversation(server) as talk, rdma_client(server) as client:
        for flush in (lambda: client.flush_all(), lambda: talk.ask(b"flush_all\r\n") == b"OK\r\n"):
            assert client.set("small", b"x") and client.set("large", bytes(100_000))
            assert flush()
            assert client.get_many(["small", "large"]) == {}
            assert client.set("small", b"y")
            assert client.get("small") == b"y"
            assert talk.number("curr_items") == 1
        assert talk.number("cmd_flush") == 2


def test_statistics_over_rdma(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "64")
    with rdma_client(server) as client, Conversation(server) as talk:
        for words in ((), ("settings",), ("items",), ("slabs",), ("rdma",)):
            assert {name.decode() for name in client.stats(*words)} == set(talk.stats(*words))

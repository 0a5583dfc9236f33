"""Items above the size limit and exhausted memory give memcached's own errors, on the RDMA path too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from daemon_tools import (
    DATA,
    GONE_WITHIN,
    Conversation,
    Peer,
    eventually,
    rdma_at_rest,
    rdma_client,
    tcp_client,
)
from polling import at_least
from pymemcache.exceptions import MemcacheServerError as TcpServerError
from servers import Server
from transport import some

from rmemcached.client import Client, MemcacheServerError
from rmemcached.verbs import Access

TOO_LARGE = "object too large for cache"
FULL = "out of memory storing object"


@pytest.mark.parametrize("size", some([2_000_000, 1 << 20, 5000, 4097]))
def test_item_too_large(rmemcached_server: Callable[..., Server], size: int) -> None:
    """The answer, and the fate of the old value, are those of a set over TCP."""
    flags = ("-m", "64") if size > 5000 else ("-m", "64", "-I", "4k", "-o", "slab_chunk_max=4,rdma_eager=512")
    server = rmemcached_server(*flags)
    tcp = tcp_client(server)
    fates = []
    with rdma_client(server) as rdma:
        for writer, error in ((rdma, MemcacheServerError), (tcp, TcpServerError)):
            assert rdma.set("key", b"old")
            with pytest.raises(error, match=TOO_LARGE):
                writer.set("key", bytes(size))
            fates.append(tcp.get("key"))
            # The connection goes on.
            assert writer.set("other", b"new")
            assert writer.get("other") == b"new"
        for command in ("add", "replace", "append", "prepend"):
            rdma.set("key", b"old")
            with pytest.raises(MemcacheServerError, match=TOO_LARGE):
                getattr(rdma, command)("key", bytes(size))
        assert rdma.get("other") == b"new"
    assert fates[0] == fates[1]
    tcp.close()


def test_nothing_is_read_for_an_item_too_large(rmemcached_server: Callable[..., Server]) -> None:
    """The daemon posts no READ for an item beyond its limits: a false address cannot be the cause of the error."""
    server = rmemcached_server("-m", "64")
    with Peer(server) as peer, Conversation(server) as control:
        assert peer.ask(b"ms key 2000000 @1:1\r\n") == b"SERVER_ERROR object too large for cache\r\n"
        assert peer.ask(b"ms key 99999999999 @1:1\r\n").startswith((b"SERVER_ERROR ", b"CLIENT_ERROR "))
        assert peer.ask(b"ms key -1 @1:1\r\n").startswith(b"CLIENT_ERROR ")
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        assert control.number("rdma_reads", "rdma") == 0
        assert control.number("store_too_large") >= 1


def fill(client: Any, error: type[Exception], size: int) -> int:
    """Sets new keys until memory is used up. Returns the number of keys with room."""
    for number in range(100_000):
        try:
            assert client.set(f"fill{number}", bytes(size))
        except error as problem:
            assert FULL in str(problem)
            return number
    raise AssertionError("memory never ends")


@pytest.mark.parametrize("size", [1000, 10_000, 100_000, 900_000])
def test_out_of_memory(rmemcached_server: Callable[..., Server], size: int) -> None:
    """-M gives an error instead of an eviction, at the same point and with the same consequences as over TCP."""
    counts = []
    for transport in ("soft_shm", "soft_iw", "tcp"):
        server = rmemcached_server("-m", "8", "-M")
        with Client(server.address, transport=transport, timeout=10, default_noreply=False) as client:
            count = fill(client, MemcacheServerError, size)
            counts.append(count)
            assert count > 0
            assert client.get("fill0") == bytes(size)
            # Old values can be deleted, and their room used again.
            assert client.delete("fill0")
            assert client.set("again", bytes(size))
            assert client.get("again") == bytes(size)
            with Conversation(server) as control:
                found = control.stats()
            assert found["evictions"] == "0"
            assert int(found["store_no_memory"]) >= 1
            assert int(found["curr_items"]) == count
    assert counts[0] == counts[1] == counts[2]


def test_out_of_memory_while_the_payload_is_awaited(rmemcached_server: Callable[..., Server]) -> None:
    """Memory held by READs under way is not available, and is available again when the READs fail."""
    server = rmemcached_server("-m", "8", "-M")
    size = 1_000_000
    with rdma_client(server) as client, Conversation(server) as control:
        assert client.set("key", b"old")
        peers = []
        while True:
            before = control.number("rdma_recvs", "rdma")
            peer = Peer(server)
            peers.append(peer)
            region = peer.region(bytearray(size), Access.REMOTE_READ)
            peer.send(DATA, f"ms key {size} @{region.addr:x}:{region.rkey:x}\r\n".encode())
            eventually(at_least(lambda: control.number("rdma_recvs", "rdma"), before + 3))
            try:
                client.set("probe", bytes(size))
            except MemcacheServerError as error:
                assert FULL in str(error)
                break
            client.delete("probe")
            assert len(peers) < 20
        # The old value is there. A refused set takes the old value of its own key with it, as over TCP.
        assert client.get("key") == b"old"
        for peer in peers:
            peer.close()
        eventually(lambda: control.stats("rdma")["rdma_queue_pairs"] == "1", GONE_WITHIN)
        assert client.set("probe", bytes(size))
    eventually_at_rest(server)


def eventually_at_rest(server: Server) -> None:
    with Conversation(server) as control:
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


def test_eviction_by_rdma(rmemcached_server: Callable[..., Server]) -> None:
    """Without -M old items make room, and the remaining values are whole."""
    server = rmemcached_server("-m", "8")
    with rdma_client(server) as client, Conversation(server) as control:
        for number in range(400):
            assert client.set(f"evict{number}", bytes([number % 256]) * 100_000)
        assert control.number("evictions") > 300
        found = client.get_many([f"evict{number}" for number in range(400)])
        assert 10 < len(found) < 100
        for key, value in found.items():
            assert value == bytes([int(key[5:]) % 256]) * 100_000

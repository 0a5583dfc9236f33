"""READs of item memory by queue pairs made by hand: the daemon permits some and refuses the rest
(docs/direct-reads.md, section 9)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from daemon_tools import Conversation, Peer, eventually, rdma_client
from lane_peer import Lanes
from servers import Server, start_rmemcached

from rmemcached import verbs
from rmemcached.verbs import Opcode, SendWR

FLAGS = ("-m", "64", "-t", "1")
REMOTE = ("-o", "rdma_direct_remote")
MAGIC = b"rmemcach"
REFUSED = "REM_ACCESS_ERR"
# The status of an operation forbidden by the queue pair for any memory: for InfiniBand an invalid request, for iWARP a
# refused access.
NOT_ALLOWED = f"{REFUSED}|REM_INV_REQ_ERR"
AUTHENTICATE = b"set auth 0 0 10\r\njoe secret\r\n"


@pytest.fixture(scope="module")
def server(module_server: Callable[..., Server]) -> Server:
    return module_server(*FLAGS, *REMOTE)


class Known(Peer):
    """A peer with an authenticated lifeline."""

    def exchange(self, credits: int, tokens: Sequence[str]) -> None:
        assert self.lifeline.ask(AUTHENTICATE) == b"STORED\r\n"
        super().exchange(credits, tokens)


class KnownLanes(Known, Lanes):
    """A peer with an authenticated lifeline, for lanes opened by the test."""


def ask(peer: Peer, place: int = 0) -> tuple[int, int]:
    """(address, key) of the memory at a place."""
    word, base, _, _, key = peer.ask(b"rdma_direct %x\r\n" % place).split()
    assert word == b"DIRECT"
    return int(base, 16) + place, int(key, 16)


def transfer(peer: Peer, opcode: int, where: tuple[int, int], memory: bytearray) -> None:
    """A READ into the memory, or a WRITE of its bytes. Raises ConnectionError with the reason of a failure."""
    address, key = where
    region = peer.region(memory, verbs.Access.LOCAL_WRITE)
    done: list[object] = []
    request = SendWR(opcode, [region.sge(0, len(memory))], wr_id=1 << 21, remote_addr=address, rkey=key)
    peer.qp.post_send(request)
    peer.wait(lambda: done, done)


def read(peer: Peer, where: tuple[int, int], length: int = len(MAGIC)) -> bytes:
    memory = bytearray(length)
    transfer(peer, Opcode.RDMA_READ, where, memory)
    return bytes(memory)


def serves(server: Server) -> None:
    with rdma_client(server) as client:
        assert client.set("key", b"value")
        assert client.get("key") == b"value"


@pytest.mark.device("keys of the daemon's memory")
def test_a_queue_pair_that_has_not_asked_is_refused(server: Server) -> None:
    """A queue pair may not read before it asks, even with the right key, and nobody else notices."""
    with Peer(server) as allowed, Peer(server) as other:
        where = ask(allowed)
        assert read(allowed, where) == MAGIC
        with pytest.raises(ConnectionError, match=NOT_ALLOWED):
            read(other, where)
        assert read(allowed, where) == MAGIC
        assert allowed.ask(b"mn\r\n") == b"MN\r\n"
    serves(server)


@pytest.mark.device("keys of the daemon's memory")
def test_nobody_writes_to_items(server: Server) -> None:
    with Peer(server) as peer, Peer(server) as witness:
        where = ask(peer)
        with pytest.raises(ConnectionError, match=f"{NOT_ALLOWED}|WR_FLUSH_ERR"):
            transfer(peer, Opcode.RDMA_WRITE, where, bytearray(8))
            # A WRITE over a software device completes at its sending, before the daemon's refusal.
            peer.wait(lambda: False)
        assert read(witness, ask(witness)) == MAGIC
    serves(server)


@pytest.mark.device("keys of the daemon's memory")
def test_what_is_behind_a_part_is_refused(server: Server) -> None:
    with Peer(server) as peer:
        word, base, first, length, key = peer.ask(b"rdma_direct 0\r\n").split()
        assert word == b"DIRECT" and first == b"0"
        end = int(base, 16) + int(length, 16)
        assert len(read(peer, (end - 8, int(key, 16)))) == 8
        with pytest.raises(ConnectionError, match=REFUSED):
            read(peer, (end - 4, int(key, 16)))
    serves(server)


@pytest.mark.device("keys of the daemon's memory")
def test_a_key_is_of_no_use_to_who_has_been_thrown_out(server: Server) -> None:
    """The key of an ended queue pair gives the client's next queue pair no rights."""
    with Conversation(server) as control:
        before = control.number("rdma_queue_pairs", "rdma")
        with Peer(server) as peer:
            where = ask(peer)
            assert read(peer, where) == MAGIC
            # The end of the lifeline ends the queue pair.
            peer.lifeline.sock.shutdown(socket.SHUT_RDWR)
            eventually(lambda: control.number("rdma_queue_pairs", "rdma") == before)
            with pytest.raises((ConnectionError, verbs.VerbsError)):
                read(peer, where)
    with Peer(server) as again, pytest.raises(ConnectionError, match=NOT_ALLOWED):
        read(again, where)
    with Peer(server) as again:
        assert read(again, ask(again)) == MAGIC


def test_who_is_not_authenticated_has_no_queue_pair(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("joe:secret\n")
    with start_rmemcached(*FLAGS, *REMOTE, "-Y", str(users)) as server:
        with pytest.raises(AssertionError, match="CLIENT_ERROR unauthenticated"):
            Peer(server)
        with Known(server) as peer, Known(server) as other:
            where = ask(peer)
            assert read(peer, where) == MAGIC
            with pytest.raises(ConnectionError, match=NOT_ALLOWED):
                read(other, where)
        # Lane 0 is the lifeline's. Each further lane authenticates itself.
        with KnownLanes(server) as lanes:
            lanes.open(1)
            assert lanes.talk(1, b"rdma_direct 0\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
            assert lanes.talk(1, AUTHENTICATE) == b"STORED\r\n"
            assert lanes.talk(1, b"rdma_direct 0\r\n").startswith(b"DIRECT ")


def test_hits_are_told_by_who_may_read(server: Server) -> None:
    """All lanes of an asking queue pair may report hits; no other queue pair may, not even one of the same
    client."""
    refused = b"CLIENT_ERROR rdma: this client was not given the items' memory\r\n"
    with Conversation(server) as control:
        before = control.number("direct_hits")
        with Lanes(server) as lanes, Lanes(server) as other:
            lanes.open(1, 2)
            other.open(1)
            assert lanes.talk(1, b"rdma_hits 5:7\r\n") == refused
            assert lanes.talk(2, b"rdma_direct 0\r\n").startswith(b"DIRECT ")
            assert lanes.talk(1, b"rdma_hits 5:7\r\nmn\r\n") == b"MN\r\n"
            assert other.talk(1, b"rdma_hits 5:7\r\n") == refused
        with Lanes(server) as again:
            again.open(1)
            assert again.talk(1, b"rdma_hits 5:7\r\n") == refused
        assert control.number("direct_hits") == before + 7


def test_only_who_may_read_has_reads_in_flight(server: Server) -> None:
    """The daemon keeps room for READs of a client only with the option rdma_direct_remote."""
    with Peer(server) as peer:
        assert peer.qp.query()["max_rd_atomic"] == 16
    with start_rmemcached(*FLAGS) as plain, Peer(plain) as peer:
        assert peer.qp.query()["max_rd_atomic"] == 1

"""A peer that breaks the rules on its queue pair loses its own connection, and gets a line with the reason."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daemon_tools import (
    BROKEN_STREAM,
    CLOSE,
    CREDIT,
    DATA,
    GONE_WITHIN,
    HEADER,
    OPEN,
    READY,
    Conversation,
    Peer,
    alone,
    descriptors,
    eventually,
    message,
    rdma_at_rest,
    rdma_client,
    resident,
)
from servers import Server
from transport import PACE, rdma, rounds

from rmemcached import verbs
from rmemcached.verbs import Access

pytestmark = pytest.mark.usefixtures("rdma_transport")

SIZE = 1_000_000 // PACE
READ_FAILED = b"SERVER_ERROR rdma: RDMA READ failed: "
WRITE_FAILED = b"SERVER_ERROR rdma: RDMA WRITE failed: "


@pytest.fixture(scope="module")
def server(module_server: Callable[..., Server]) -> Server:
    return module_server("-m", "64", "-I", "4m", "-t", "2", "-M")


@pytest.fixture(autouse=True)
def bystander(server: Server) -> Iterator[Any]:
    """Another client goes on undisturbed, and finds its items. Afterwards nothing of the peers is left."""
    with Conversation(server) as control, rdma_client(server) as other:
        for size in (10, SIZE):
            assert other.set(f"safe{size}", bytes(size))
        for _ in range(3):
            assert other.get(f"safe{SIZE}") == bytes(SIZE)
        # Only this connection and the other client's are left.
        alone(control, 2)
        items, open_files = control.number("curr_items"), descriptors(server.pid)
        registered = control.number("rdma_registrations", "rdma")
        yield other
        for size in (10, SIZE):
            assert other.get(f"safe{size}") == bytes(size)
        eventually(lambda: control.stats("rdma")["rdma_queue_pairs"] == "1", GONE_WITHIN)
        eventually(lambda: control.number("rdma_registrations", "rdma") == registered, GONE_WITHIN)

        def given_back() -> bool:
            # Over shared memory the daemon keeps a descriptor of a region until the client has sealed the region, in a
            # later call.
            return other.get(f"safe{SIZE}") == bytes(SIZE) and descriptors(server.pid) <= open_files

        eventually(given_back)
        # The crawler may have removed an expired item.
        assert control.number("curr_items") <= items
        other.close()
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    with Peer(server) as made:
        yield made


def ended(peer: Peer, words: bytes) -> None:
    """The daemon writes `words` on the lifeline and closes both connections."""
    assert peer.last_words() == words
    if not peer.failed:
        with pytest.raises(ConnectionError):
            peer.wait(lambda: False)


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(HEADER))
def test_message_too_short(peer: Peer, length: int) -> None:
    peer.send_raw(bytes(length))
    ended(peer, b"SERVER_ERROR rdma: a message shorter than its header\r\n")


@pytest.mark.parametrize("kind", [5, 77, 255])
def test_unknown_type(peer: Peer, kind: int) -> None:
    peer.send_raw(message(kind))
    ended(peer, b"SERVER_ERROR rdma: a message of unknown type\r\n")


@pytest.mark.parametrize("kind", [DATA, CREDIT, 9])
def test_first_message_is_not_ready(server: Server, kind: int) -> None:
    with Peer(server, ready=False) as peer:
        peer.send_raw(message(kind, b"mn\r\n"))
        ended(peer, b"SERVER_ERROR rdma: a first message that is not READY\r\n")


@pytest.mark.device("receives that are too short")
def test_message_too_long(server: Server) -> None:
    """A message longer than the daemon's receives ends the queue pair."""
    with Peer(server) as peer:
        peer.send_raw(message(DATA, bytes(8192)))
        fails(peer, b"SERVER_ERROR rdma: receive failed: ")


def test_more_credits_than_anybody_has(peer: Peer) -> None:
    peer.send(CREDIT, credits=65535)
    ended(peer, b"SERVER_ERROR rdma: more credits than any client has\r\n")


def test_send_without_a_credit(server: Server) -> None:
    """More messages than the peer has credits end the queue pair, though the daemon has credits left to give."""
    with Peer(server, credits=2) as peer:
        peer.sends[:HEADER] = message(CREDIT)
        for _ in range(200):
            try:
                peer.qp.post_send(verbs.SendWR(verbs.Opcode.SEND, [peer.send_region.sge(0, HEADER)]))
            except OSError:
                break
        with pytest.raises(ConnectionError):
            peer.wait(lambda: False)
        # The device may find no receive left before the daemon finds the missing credit.
        assert peer.last_words() in (b"SERVER_ERROR rdma: a message without a credit\r\n", BROKEN_STREAM, b"")


@pytest.mark.device("a peer without receives")
def test_no_credit_for_the_daemon(server: Server, bystander: Any) -> None:
    """A client that gives no credits back gets no more replies than credits, and the daemon's memory is bounded."""
    with Peer(server, credits=2) as peer:
        before = resident(server.pid)
        peer.ask(b"set big 0 0 4000\r\n" + bytes(4000) + b"\r\n")
        batch = b"get big\r\n" * 800
        while peer.room[0] >= len(batch):
            peer.send(DATA, batch, credits=0)
        assert resident(server.pid) - before < 8 << 20
        assert len(peer.inbox) < 2 * peer.msgsize

        def granting() -> bool:
            if peer.owed and peer.credits:
                peer.send(CREDIT)
            return len(peer.inbox) > 100_000

        peer.wait(granting)
    assert bystander.delete("big")


def test_empty_data(peer: Peer) -> None:
    for _ in range(100):
        peer.send(DATA, b"")
    assert peer.ask(b"mn\r\n") == b"MN\r\n"


def test_fuzzed_messages(server: Server, bystander: Any) -> None:
    source = random.Random(4)
    commands = [
        b"get a\r\n",
        b"ms a 5 @",
        b"mg a v @",
        b"set a 0 0 3\r\nabc\r\n",
        b"ms a S3\r\n",
        b"\r\n",
        b"mn\r\n",
        b"quit\r\n",
    ]
    for _ in range(rounds(60)):
        with Peer(server) as peer:
            # The peer does not count the bytes that it has sent and used.
            peer.room.clear()
            try:
                for _ in range(source.randint(1, 10)):
                    payload = b"".join(source.choices(commands, k=source.randint(0, 5)))
                    payload += source.randbytes(source.randint(0, 40)) + source.choice((b"", b"\r\n"))
                    kind = source.choice((DATA, DATA, DATA, DATA, CREDIT, OPEN, CLOSE, READY, source.randrange(256)))
                    lane = source.choice((0, 0, 0, 1, 1023, 65535)) | source.choice((0, 0, 0, 1)) << 16
                    peer.send_raw(message(kind, payload, source.choice((0, 1)), lane))
            except ConnectionError:
                pass
    bystander.delete("a")


# ---- descriptors -----------------------------------------------------------------------------------------------------


def set_request(address: int, key: int, length: int) -> bytes:
    return f"ms safe10 {length} @{address:x}:{key:x}\r\n".encode()


def get_request(address: int, key: int, length: int, name: str = f"safe{SIZE}") -> bytes:
    return f"mg {name} v @{address:x}:{key:x}:{length:x}\r\n".encode()


def fails(peer: Peer, beginning: bytes) -> None:
    """The transfer ends the connection, with a line of this beginning on the lifeline."""
    with pytest.raises(ConnectionError):
        peer.wait(lambda: False)
    words = peer.last_words()
    assert words.startswith(beginning) and words.endswith(b"\r\n")


Descriptor = Callable[[Any], tuple[int, int, int]]
OUTSIDE: dict[str, Descriptor] = {
    "before the region": lambda r: (r.addr - 1, r.rkey, SIZE),
    "over its end": lambda r: (r.addr + 1, r.rkey, SIZE),
    "elsewhere": lambda r: (0x1000, r.rkey, SIZE),
    "at null": lambda r: (0, r.rkey, SIZE),
    "around the top": lambda r: (2**64 - 8, r.rkey, SIZE),
    "another key": lambda r: (r.addr, r.rkey ^ 1, SIZE),
    "key 0": lambda r: (r.addr, 0, SIZE),
    "longer than it": lambda r: (r.addr, r.rkey, 2 * SIZE),
}


@pytest.mark.device("failing READs")
@pytest.mark.parametrize("what", OUTSIDE)
def test_set_from_outside_the_region(peer: Peer, what: str) -> None:
    memory = bytearray(SIZE)
    region = peer.region(memory, Access.REMOTE_READ)
    peer.send(DATA, set_request(*OUTSIDE[what](region)))
    fails(peer, READ_FAILED)


@pytest.mark.device("failing READs")
@pytest.mark.parametrize("access", [0, Access.LOCAL_WRITE, Access.LOCAL_WRITE | Access.REMOTE_WRITE])
def test_set_from_memory_that_may_not_be_read(peer: Peer, access: int) -> None:
    memory = bytearray(SIZE)
    region = peer.region(memory, access)
    peer.send(DATA, set_request(region.addr, region.rkey, SIZE))
    fails(peer, READ_FAILED)


@pytest.mark.device("failing READs")
def test_set_from_a_deregistered_region(peer: Peer) -> None:
    memory = bytearray(SIZE)
    region = peer.region(memory, Access.REMOTE_READ)
    address, key = region.addr, region.rkey
    region.close()
    peer.send(DATA, set_request(address, key, SIZE))
    fails(peer, READ_FAILED)


@pytest.mark.device("failing READs")
def test_set_from_somebody_else_s_region(server: Server, peer: Peer) -> None:
    with Peer(server) as owner:
        memory = bytearray(SIZE)
        region = owner.region(memory, Access.REMOTE_READ)
        peer.send(DATA, set_request(region.addr, region.rkey, SIZE))
        fails(peer, READ_FAILED)
        assert owner.ask(b"mn\r\n") == b"MN\r\n"


GET_OUTSIDE = {name: descriptor for name, descriptor in OUTSIDE.items() if name != "longer than it"}


@pytest.mark.device("failing WRITEs")
@pytest.mark.parametrize("what", GET_OUTSIDE)
def test_get_to_outside_the_region(peer: Peer, what: str) -> None:
    memory = bytearray(SIZE)
    region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    peer.send(DATA, get_request(*GET_OUTSIDE[what](region)))
    fails(peer, WRITE_FAILED)


@pytest.mark.device("failing WRITEs")
@pytest.mark.parametrize("access", [0, Access.LOCAL_WRITE, Access.LOCAL_WRITE | Access.REMOTE_READ])
def test_get_to_memory_that_may_not_be_written(peer: Peer, access: int) -> None:
    memory = bytearray(b"x" * SIZE)
    region = peer.region(memory, access)
    peer.send(DATA, get_request(region.addr, region.rkey, SIZE))
    fails(peer, WRITE_FAILED)
    region.close()
    assert memory == b"x" * SIZE


@pytest.mark.device("failing WRITEs")
def test_get_to_a_deregistered_region(peer: Peer) -> None:
    memory = bytearray(b"x" * SIZE)
    region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    address, key = region.addr, region.rkey
    region.close()
    peer.send(DATA, get_request(address, key, SIZE))
    fails(peer, WRITE_FAILED)
    assert memory == b"x" * SIZE


def test_get_with_a_sink_longer_than_its_region(peer: Peer) -> None:
    """A sink announced longer than its region ends the connection: the value fits the sink, but not the region."""
    memory = bytearray(b"x" * SIZE)
    region = peer.region(memoryview(memory)[: SIZE // 2], Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    peer.send(DATA, get_request(region.addr, region.rkey, SIZE))
    fails(peer, WRITE_FAILED)
    assert memory[SIZE // 2 :] == b"x" * (SIZE // 2)


@pytest.mark.parametrize("length", [0, 1, 4096, SIZE - 1])
def test_get_with_too_short_a_sink(peer: Peer, length: int) -> None:
    """With a sink too short the value comes in messages, and the memory is not touched."""
    memory = bytearray(b"x" * SIZE)
    region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    request = get_request(region.addr, region.rkey, length)
    assert peer.ask(request) == b"VA %d\r\n" % SIZE
    peer.wait(lambda: _returned(peer) >= SIZE + 2)
    assert peer.inbox == bytes(SIZE) + b"\r\n"
    assert memory == b"x" * SIZE


def _returned(peer: Peer) -> int:
    if peer.owed >= 8:
        peer.send(CREDIT)
    return len(peer.inbox)


@pytest.mark.device("WRITEs")
def test_get_touches_nothing_beyond_the_value(peer: Peer) -> None:
    memory = bytearray(b"x" * (SIZE + 200))
    region = peer.region(memory, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    assert peer.ask(get_request(region.addr + 100, region.rkey, SIZE + 100)) == b"VA %d @\r\n" % SIZE
    assert memory == b"x" * 100 + bytes(SIZE) + b"x" * 100


def test_get_that_needs_no_sink(peer: Peer) -> None:
    """A false sink does no harm if the value travels in messages, or if there is no value."""
    assert peer.ask(get_request(1, 1, 1, "absent")) == b"EN\r\n"
    assert peer.ask(get_request(1, 1, SIZE, "safe10"), b"\0\r\n") == b"VA 10\r\n" + bytes(10) + b"\r\n"
    assert peer.ask(b"mg safe%d s @1:1:ffffffff\r\n" % SIZE) == b"HD s%d\r\n" % SIZE


@pytest.mark.parametrize(
    "descriptor",
    ["", ":", "1", "1:", ":1", "1:1:1", "x:1", "1:x", "11111111111111111:1", "1:111111111", "1:1:", "-1:1", "1: 1"],
)
def test_malformed_source(peer: Peer, descriptor: str) -> None:
    reply = peer.ask(f"ms key 5000 @{descriptor}\r\n".encode())
    assert reply.startswith(b"CLIENT_ERROR ")
    assert peer.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("descriptor", ["", "1", "1:1", "1:1:", "1:1:1:1", "x:1:1", "1:1:x", "1:1:111111111"])
def test_malformed_sink(peer: Peer, descriptor: str) -> None:
    reply = peer.ask(f"mg safe{SIZE} v @{descriptor}\r\n".encode())
    assert reply.startswith(b"CLIENT_ERROR ")
    assert peer.ask(b"mn\r\n") == b"MN\r\n"


def test_set_of_nothing(peer: Peer) -> None:
    """A set of no byte reads nothing: a false address does no harm."""
    assert peer.ask(b"ms nothing 0 @1:1\r\n") == b"HD\r\n"
    assert peer.ask(b"mg nothing v\r\n", b"\r\n\r\n") == b"VA 0\r\n\r\n"
    assert peer.ask(b"md nothing\r\n") == b"HD\r\n"


def test_commands_behind_a_set_wait(peer: Peer) -> None:
    """Commands behind a set wait on the same lane, and see the new value, not the value before."""
    assert peer.ask(b"ms order 3 c\r\nold\r\n").startswith(b"HD c")
    memory = bytearray(b"s" * SIZE)
    region = peer.region(memory, Access.REMOTE_READ)
    peer.send(DATA, b"ms order %d @%x:%x\r\nmg order s v\r\nmd order\r\n" % (SIZE, region.addr, region.rkey))
    peer.wait(lambda: _returned(peer) >= len(b"HD\r\nVA %d s%d\r\n\r\nHD\r\n" % (SIZE, SIZE)) + SIZE)
    assert peer.inbox == b"HD\r\nVA %d s%d\r\n%b\r\nHD\r\n" % (SIZE, SIZE, bytes(memory))


# ---- the daemon's memory ---------------------------------------------------------------------------------------------


@pytest.mark.device("keys of the daemon's memory")
@pytest.mark.parametrize("opcode", [verbs.Opcode.RDMA_READ, verbs.Opcode.RDMA_WRITE], ids=["read", "write"])
def test_the_daemon_s_memory_cannot_be_touched(server: Server, opcode: Any) -> None:
    """No key lets a peer touch the daemon's memory, not even the key of the daemon's READs on the wire."""
    source = random.Random(6)
    for _ in range(rounds(20)):
        with Peer(server) as peer:
            memory = bytearray(4096)
            region = peer.region(memory, Access.LOCAL_WRITE)
            wr = verbs.SendWR(
                opcode,
                [region.sge()],
                remote_addr=source.getrandbits(47) & ~4095,
                rkey=source.getrandbits(32),
            )
            peer.qp.post_send(wr)
            with pytest.raises(ConnectionError):
                peer.wait(lambda: False)
            # A refused access over shared memory breaks no stream.
            assert peer.last_words() == (BROKEN_STREAM if rdma() == "soft_iw" else b"")

"""A value has the same bytes, flags and CAS, whichever way a client stores and gets the value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from daemon_tools import Conversation, rdma_client, tcp_client
from servers import Server
from transport import rounds, some

pytestmark = pytest.mark.usefixtures("rdma_transport")

BATCH = 64
ITEM_HEADER = 48 + 8  # an item's header and its CAS
FACTOR = 1.25
CHUNK_MAX = 512 * 1024


@pytest.fixture
def rdma(module_rmemcached: Server) -> Iterator[Any]:
    with rdma_client(module_rmemcached) as client:
        yield client


@pytest.fixture
def tcp(module_rmemcached: Server) -> Iterator[Any]:
    client = tcp_client(module_rmemcached)
    yield client
    client.close()


def slab_chunks() -> list[int]:
    """The chunk sizes of memcached's slab classes with its default settings (slabs.c)."""
    sizes = []
    size = float(96)
    while size < CHUNK_MAX / FACTOR:
        aligned = (int(size) + 7) // 8 * 8
        sizes.append(aligned)
        size = aligned * FACTOR
    return [*sizes, CHUNK_MAX]


def batches(sizes: Iterable[int], seed: int) -> Iterator[dict[str, bytes]]:
    source = random.Random(seed)
    batch: dict[str, bytes] = {}
    total = 0
    for size in sizes:
        batch[f"s{size:07d}"] = source.randbytes(size)
        total += size
        if len(batch) == BATCH or total > 8 << 20:
            yield batch
            batch, total = {}, 0
    yield batch


def check(writer: Any, readers: Iterable[Any], sizes: Iterable[int], seed: int, flags: int | None = None) -> None:
    for batch in batches(sizes, seed):
        assert writer.set_many(batch, flags=flags) == []
        for reader in readers:
            found = reader.get_many(list(batch))
            wrong = [key for key, value in batch.items() if found.get(key) != value]
            assert not wrong, wrong


def test_every_size_to_4096_by_rdma(rdma: Any, tcp: Any) -> None:
    check(rdma, (tcp, rdma), some(range(4097)), 1)


def test_every_size_to_4096_by_tcp(rdma: Any, tcp: Any) -> None:
    check(tcp, (rdma,), some(range(4097)), 2)


def limit_sizes() -> list[int]:
    """Sizes around the eager limit, the multiples of a message, and the chunk of every slab class."""
    sizes = set(range(4090, 4120))
    for multiple in range(1, 9):
        for bytes_of_message in (8192, 8184):
            sizes.update(range(multiple * bytes_of_message - 24, multiple * bytes_of_message + 10))
    for chunk in slab_chunks():
        # An item also has the key "s0000000", a NUL, \r\n behind the value, and four bytes of flags or none.
        for overhead in (ITEM_HEADER + 9 + 2, ITEM_HEADER + 9 + 2 + 4):
            sizes.update(max(0, chunk - overhead + delta) for delta in (-1, 0, 1, 2))
    return some(sorted(sizes))


def large_sizes() -> list[int]:
    """Sizes around the multiples of the largest chunk, the unit of chained items, and of a megabyte."""
    sizes = set()
    for multiple in (1, 2, 3, 15):
        for delta in (-120, -72, -71, -70, -69, -64, -60, -49, -48, -2, -1, 0, 1, 2, 8, 48):
            sizes.add(multiple * CHUNK_MAX + delta)
    return some(sorted(sizes))


@pytest.mark.parametrize("flags", [None, 4711], ids=["plain", "flags"])
def test_around_every_limit(rdma: Any, tcp: Any, flags: int | None) -> None:
    check(rdma, (tcp, rdma), limit_sizes(), 3, flags)
    check(tcp, (rdma,), limit_sizes(), 4, flags)


@pytest.mark.device("scatter entries")
def test_chained_items(rdma: Any, tcp: Any) -> None:
    check(rdma, (tcp, rdma), large_sizes(), 5)
    check(tcp, (rdma,), large_sizes(), 6)


def accepted(store: Callable[[bytes, bytes], object], size: int) -> str:
    """The result of a store of this size."""
    try:
        return str(store(b"limit", bytes(size)))
    except Exception as error:
        return str(error.args)


@pytest.mark.parametrize("limit", [1, 8])
def test_item_size_limit_is_the_same_both_ways(rmemcached_server: Callable[..., Server], limit: int) -> None:
    server = rmemcached_server("-I", f"{limit}m", "-m", "64")
    top = limit << 20
    sizes = [*range(top - 130, top + 3, 1 if limit == 1 else 5), top + 4096]
    outcomes = set()
    with rdma_client(server) as rdma:
        tcp = tcp_client(server)
        for size in some(sizes):
            by_rdma, by_tcp = accepted(rdma.set, size), accepted(tcp.set, size)
            assert by_rdma.endswith(by_tcp), (size, by_rdma, by_tcp)
            outcomes.add(by_tcp)
            expected = size if by_tcp == "True" else None
            value = rdma.get("limit")
            assert (None if value is None else len(value)) == expected, size
        tcp.close()
    assert len(outcomes) == 2, outcomes


def test_item_size_limit_is_memcached_s(
    rmemcached_server: Callable[..., Server], memcached_server: Callable[..., Server]
) -> None:
    ours, theirs = tcp_client(rmemcached_server("-m", "64")), tcp_client(memcached_server("-m", "64"))
    for size in range((1 << 20) - 130, (1 << 20) + 3):
        assert accepted(ours.set, size) == accepted(theirs.set, size), size
    ours.close()
    theirs.close()


def raw_get(talk: Conversation, key: str) -> tuple[int, bytes, int]:
    """(flags, value, cas) by `gets` on a plain connection."""
    talk.send(f"gets {key}\r\n".encode())
    word, _, flags, length, cas = talk.line().split()
    assert word == b"VALUE"
    value = talk.read(int(length) + 2)
    assert value.endswith(b"\r\n") and talk.line() == b"END\r\n"
    return int(flags), value[:-2], int(cas)


SIZES = [0, 10, 4096, 4097, 8192, 100_000, 1_500_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flags", [0, 1, 65535, 2**32 - 1])
def test_flags_both_ways(module_rmemcached: Server, rdma: Any, size: int, flags: int) -> None:
    class Flags:
        """A serde that gives the flags beside the value."""

        @staticmethod
        def serialize(key: object, value: bytes) -> tuple[bytes, int]:
            return value, flags

        @staticmethod
        def deserialize(key: object, value: bytes, flags: int) -> tuple[bytes, int]:
            return value, flags

    value = random.Random(size).randbytes(size)
    with rdma_client(module_rmemcached, serde=Flags) as seeing, Conversation(module_rmemcached) as talk:
        assert seeing.set("flagged", value)
        assert raw_get(talk, "flagged")[:2] == (flags, value)
        assert talk.ask(b"set flagged %d 0 %d\r\n%s\r\n" % (flags, size, value)) == b"STORED\r\n"
        assert seeing.get("flagged") == (value, flags)


@pytest.mark.parametrize("size", SIZES)
def test_cas_both_ways(module_rmemcached: Server, rdma: Any, size: int) -> None:
    source = random.Random(size)
    first, second, third = (source.randbytes(size) for _ in range(3))
    with Conversation(module_rmemcached) as talk:
        assert rdma.set("cas", first)
        _, value, unique = raw_get(talk, "cas")
        assert value == first
        assert rdma.gets("cas") == (first, str(unique).encode())
        # The CAS value seen over TCP serves for a store by RDMA, once.
        assert rdma.cas("cas", second, str(unique).encode()) is True
        assert rdma.cas("cas", third, str(unique).encode()) is False
        assert talk.ask(b"cas cas 0 0 %d %d\r\n%s\r\n" % (size, unique, third)) == b"EXISTS\r\n"
        # The CAS value seen by RDMA serves for a store over TCP, once.
        value, unique_text = rdma.gets("cas")
        assert value == second
        assert talk.ask(b"cas cas 0 0 %d %s\r\n%s\r\n" % (size, unique_text, third)) == b"STORED\r\n"
        assert rdma.cas("cas", first, unique_text) is False
        assert rdma.get("cas") == third
        assert rdma.delete("cas")
        assert rdma.cas("cas", first, unique_text) is None


def remaining(talk: Conversation, key: str) -> int:
    """Seconds until the item expires, to the next ten: some may have passed."""
    word, time_to_live = talk.ask(f"mg {key} t\r\n".encode()).split()
    assert word == b"HD"
    return (int(time_to_live[1:]) + 9) // 10 * 10 if time_to_live != b"t-1" else -1


@pytest.mark.parametrize("size", SIZES)
def test_expiry_both_ways(module_rmemcached: Server, rdma: Any, tcp: Any, size: int) -> None:
    value = bytes(size)
    with Conversation(module_rmemcached) as talk:
        assert rdma.set("expiry", value, expire=1000)
        assert remaining(talk, "expiry") == 1000
        assert rdma.set("expiry", value)
        assert remaining(talk, "expiry") == -1
        assert tcp.touch("expiry", expire=500)
        assert remaining(talk, "expiry") == 500
        assert rdma.gat("expiry", expire=700) == value
        assert remaining(talk, "expiry") == 700
        assert rdma.set("expiry", value, expire=-1)
        assert tcp.get("expiry") is None
        assert tcp.set("expiry", value, expire=-1)
        assert rdma.get("expiry") is None


def test_the_same_keys_from_both_sides(rdma: Any, tcp: Any) -> None:
    """A long random mixture of commands, alternating between the paths, agrees with a dictionary."""
    source = random.Random(7)
    model: dict[str, bytes] = {}
    keys = [f"mixed{i}" for i in range(12)]
    for key in keys:
        tcp.delete(key)
    for step in range(rounds(3000)):
        client, other = (rdma, tcp) if source.random() < 0.5 else (tcp, rdma)
        key = source.choice(keys)
        value = source.randbytes(source.choice((0, 1, 50, 4000, 4096, 4097, 9000, 70_000)))
        old = model.get(key)
        command = source.choice(("set", "get", "delete", "append", "prepend", "add", "replace", "incr", "cas", "get"))
        if command == "set":
            assert client.set(key, value)
            model[key] = value
        elif command == "get":
            assert client.get(key) == old, (step, key)
        elif command == "delete":
            assert client.delete(key) is (old is not None)
            model.pop(key, None)
        elif command in ("append", "prepend"):
            value = value[:100]
            assert getattr(client, command)(key, value) is (old is not None)
            if old is not None:
                model[key] = old + value if command == "append" else value + old
        elif command == "add":
            assert client.add(key, value) is (old is None)
            model.setdefault(key, value)
        elif command == "replace":
            assert client.replace(key, value) is (old is not None)
            if old is not None:
                model[key] = value
        elif command == "incr":
            assert client.set(key, b"41")
            assert other.incr(key, 1) == 42
            model[key] = b"42"
        else:
            found, unique = other.gets(key)
            assert found == old
            if old is not None:
                assert client.cas(key, value, unique) is True
                model[key] = value
        assert other.get(key) == model.get(key), (step, command, key)


OPTIONS = [
    "rdma_credits=2,rdma_msgsize=512",
    "rdma_credits=2,rdma_msgsize=65536",
    "rdma_credits=3",
    "rdma_credits=1024,rdma_msgsize=65536",
    "rdma_eager=0",
    "rdma_eager=1000000",
    "rdma_crc",
    "rdma_spin=0",
]


@pytest.mark.device("receives of other sizes")
@pytest.mark.parametrize("options", some(OPTIONS))
def test_with_other_settings_of_the_transport(rmemcached_server: Callable[..., Server], options: str) -> None:
    """Values are right with few credits, small messages, all or no values in messages, singly and many in flight."""
    server = rmemcached_server("-m", "128", "-o", options)
    source = random.Random(options)
    tcp = tcp_client(server)
    with rdma_client(server) as rdma:
        for size in (0, 1, 400, 504, 505, 4096, 5000, 65_528, 65_536, 300_000, 1_000_000):
            value = source.randbytes(size)
            assert rdma.set("one", value)
            assert rdma.get("one") == value
            assert tcp.get("one") == value
        lengths = source.choices((0, 10, 600, 5000, 20_000), k=rounds(800))
        many = {f"many{number}": source.randbytes(length) for number, length in enumerate(lengths)}
        assert rdma.set_many(many) == []
        assert rdma.get_many(list(many)) == many
        assert tcp.get_many(list(many)) == many
        rdma.set_many(many, noreply=True)
        assert rdma.get_many(list(many)) == many
    tcp.close()

"""Malicious input costs its own connection only. The input ends at an inaccessible page."""

from __future__ import annotations

import random

import pytest

from rmemcached.protocol._testing import MAX_LINE, Machine, Server

WORDS = [
    *b"get gets gat gats set add replace append prepend cas incr decr touch delete mg ms md ma me mn mx".split(),
    *b"extstore item_age max_frag free_memchunks refresh_certs".split(),
    *b"stats version verbosity flush_all rdma shutdown noreply reset a b Zm9v q v k c s t f h l u x I b".split(),
    *b"0 1 2 3 10 -1 4294967295 4294967296 18446744073709551615 18446744073709551616 2147483645 2147483646".split(),
    *b"Oabc N1 N-1 T0 R30 R-1 E5 C5 F9 MA MP ME MZ M D1 D J5 J- -2147483648 99999999999999999999999999".split(),
    *b"@ @1:1 @0:1 @0:1:ffff @0:1:0 @::: { \xff \0".split(b" "),
    b"\t",
    b"O" + b"o" * 40,
    b"k" * 250,
    b"k" * 251,
    b"k" * 2000,
]
ENDS = [b"\r\n", b"\n", b"\r", b"", b" \r\n", b"\r\r\n", b"\n\n"]


def hostile(rng: random.Random) -> bytes:
    """A more or less well-formed command, or rubbish."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(200))
    if kind < 0.15:
        return rng.choice([b" ", b"\r", b"get ", b"gets  a", b"\n"]) * rng.randrange(3000)
    if kind < 0.4:
        length = rng.randrange(600)
        data = rng.choice([b"5", b"\r\n", b"x", b"18446744073709551615"]) * length
        claimed = rng.choice([length, length, length, length + 1, max(length - 1, 0)])
        command = rng.choice(
            [
                b"set a 0 0 %d",
                b"append a 1 0 %d",
                b"ms a %d k c s b",
                b"ms b %d MP",
                b"cas a 0 0 %d 5",
                b"add b 9 -1 %d",
            ]
        )
        return command % claimed + b"\r\n" + data[:length] + b"\r\n"
    words = [rng.choice(WORDS) for _ in range(rng.randrange(1, 30 if kind > 0.95 else 7))]
    return rng.choice([b" ", b" ", b" ", b"  "]).join(words) + rng.choice(ENDS)


@pytest.mark.parametrize("seed", range(8))
def test_rubbish(seed: int) -> None:
    rng = random.Random(seed)
    server = Server(maxbytes=8 << 20, reqs_per_event=rng.choice([1, 5, 1000]), exchange=bool(seed % 2))
    machines: list[Machine] = []
    for _ in range(4000):
        if len(machines) < 4:
            machines.append(Machine(server, remote=bool(seed & 2), eager=rng.choice([0, 100])))
            machines[-1].memory[1] = (0, bytearray(65536))
            machines[-1].direct = rng.random() < 0.5
            machines[-1].max_iov = rng.choice([1, 3, 100])
        machine = rng.choice(machines)
        data = b"".join(hostile(rng) for _ in range(rng.randrange(1, 4)))
        machine.feed(data, chunk=rng.choice([1, 17, 1000, 65536]), send=rng.random() < 0.8)
        if rng.random() < 0.02:
            machine.close()
        if machine.closed:
            machines.remove(machine)
        if rng.random() < 0.01:
            server.advance(rng.randrange(3))
    for machine in machines:
        machine.close()
    server.check()


@pytest.mark.parametrize("seed", range(4))
def test_rubbish_is_read_the_same_in_any_pieces(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(150):
        data = b"".join(hostile(rng) for _ in range(8))
        replies = set()
        for chunk in (65536, 1, rng.randrange(2, 50)):
            server = Server(exchange=True)
            machine = Machine(server)
            # A line above the limit ends the connection at a point that depends on the pieces: no comparison.
            replies.add(machine.feed(data, chunk=chunk) if max(map(len, data.split(b"\n"))) < MAX_LINE else b"")
            machine.close()
            server.check()
        assert len(replies) == 1, data


def test_every_single_byte_and_pair() -> None:
    server = Server()
    for first in range(256):
        machine = Machine(server)
        machine.feed(bytes([first]))
        machine.feed(bytes([first, 10]))
        for second in range(0, 256, 3):
            machine.feed(bytes([first, second]) + b"\r\n")
            machine.feed(b"m" + bytes([first, 32, second]) + b"\n")
    server.check()


@pytest.mark.parametrize(
    "command",
    [b"get a b", b"set a 0 0 5\r\nhello\r\n", b"ms a 5 k c Oabc b\r\nhello\r\n", b"ma a N0 D5 k", b"gat 10 a"],
)
def test_connections_that_end_anywhere(command: bytes) -> None:
    server = Server()
    for length in range(len(command) + 1):
        for direct in (False, True):
            machine = Machine(server)
            machine.direct = direct
            machine.feed(command[:length], send=False)
            machine.close()
    server.check()


def test_lines_without_end() -> None:
    server = Server()
    for start in (b"x", b" ", b"set a 0 0 ", b"mg ", b"gat 0 a ", b"gets", b"get\0"):
        machine = Machine(server)
        machine.feed(start + b"a" * (MAX_LINE - len(start)))
        assert not machine.closed
        machine.feed(b"a")
        assert machine.closed, start
    server.check()


def test_numbers_at_their_limits() -> None:
    machine = Machine(Server())
    for number in (
        b"2147483645",
        b"2147483646",
        b"2147483647",
        b"2147483648",
        b"4294967295",
        b"9" * 20,
        b"-0",
        b"-9",
        b"+5",
        b"",
    ):
        for line in (b"set a 0 0 %s", b"ms a %s", b"ms a %s @0:1"):
            fresh = Machine(machine.server)
            reply = fresh.feed(line % number + b"\r\n")
            assert reply.startswith((b"CLIENT_ERROR", b"SERVER_ERROR object too large")) or (
                number == b"-0" and not reply
            )
        reply = machine.feed(
            b"set n 0 0 1\r\n5\r\nincr n %s\r\ntouch n %s\r\nflush_all %s\r\nverbosity %s\r\n" % ((number,) * 4)
        )
        assert reply.startswith(b"STORED\r\n")
        assert reply.count(b"\r\n") == 5


def test_truncated_sets_hold_no_items() -> None:
    server = Server()
    machines = [Machine(server) for _ in range(100)]
    for number, machine in enumerate(machines):
        machine.feed(b"set k%d 0 0 100000\r\n" % number + b"x" * number)
    assert server.store_stats()["curr_items"] == 0
    for machine in machines:
        machine.close()
    server.check()

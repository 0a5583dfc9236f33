"""Values that travel by RDMA READ or WRITE, outside the stream (docs/rdma-protocol.md, sections 6 and 7). The test's
Machine plays the engine."""

from __future__ import annotations

import pytest

from rmemcached.protocol._testing import Machine, Server

BASE = 0x7F00_0000_0000
NO_QUEUE_PAIR = b"CLIENT_ERROR rdma: no queue pair on this connection\r\n"
BAD_TOKEN = b"CLIENT_ERROR bad token in command line format\r\n"


@pytest.fixture
def server() -> Server:
    return Server(item_size_max=8 << 20)


@pytest.fixture
def machine(server: Server) -> Machine:
    machine = Machine(server, remote=True, eager=4096)
    machine.memory[0xABC] = (BASE, bytearray(range(256)) * 20000)
    return machine


def value(machine: Machine, offset: int, length: int) -> bytes:
    return bytes(machine.memory[0xABC][1][offset : offset + length])


@pytest.mark.parametrize("length", [1, 10, 4096, 100000, 600000, 5000000])
def test_set_and_get(machine: Machine, server: Server, length: int) -> None:
    assert machine.feed(b"ms k %d F7 c @%x:abc\r\nmn\r\n" % (length, BASE)) == b"HD c2\r\nMN\r\n"
    assert machine.wants.count("remote") == 1
    assert machine.feed(b"get k\r\n") == b"VALUE k 7 %d\r\n%s\r\nEND\r\n" % (length, value(machine, 0, length))
    machine.memory[0xDEF] = (BASE, bytearray(length + 100))
    reply = machine.feed(b"mg k s v f @%x:DEF:%x\r\nmn\r\n" % (BASE + 50, length))
    if length > 4096:
        assert reply == b"VA %d s%d f7 @\r\nMN\r\n" % (length, length)
        assert machine.writes == [(0xDEF, BASE + 50, length, machine.writes[0][3])]
        got = machine.memory[0xDEF][1]
        assert bytes(got) == bytes(50) + value(machine, 0, length) + bytes(50)
    else:
        assert reply == b"VA %d s%d f7\r\n%s\r\nMN\r\n" % (length, length, value(machine, 0, length))
        assert not machine.writes
    server.check()


def test_zero_length(machine: Machine, server: Server) -> None:
    assert machine.feed(b"ms k 0 s k @0:0\r\nmg k v @0:0:0\r\n") == b"HD s0 kk\r\nVA 0\r\n\r\n"
    assert "remote" not in machine.wants
    server.check()


def test_modes(machine: Machine, server: Server) -> None:
    at = b"@%x:abc" % (BASE + 65)
    assert machine.feed(b"ms k 2 ME %s\r\nms k 2 ME %s\r\nms k 3 MA %s\r\nmg k v\r\n" % (at, at, at)) == (
        b"HD\r\nNS\r\nHD\r\nVA 5\r\nABABC\r\n"
    )
    assert machine.feed(b"ms k 1 C1 %s Oq k\r\nms nk 1 C1 %s\r\nms k 1 q %s\r\nget k\r\n" % (at, at, at)) == (
        b"EX Oq kk\r\nNF\r\nVALUE k 0 1\r\nA\r\nEND\r\n"
    )
    server.check()


def test_commands_behind_wait_and_others_are_served(machine: Machine, server: Server) -> None:
    other = Machine(server)
    other.feed(b"set k 0 0 3\r\nold\r\n")
    assert machine.feed(b"mn\r\nms k 5000 @%x:999\r\nget k\r\n" % BASE) == b"MN\r\n"
    assert machine.closed
    assert other.feed(b"get k\r\n") == b"VALUE k 0 3\r\nold\r\nEND\r\n"
    server.check()


def test_old_value_until_the_new_one_is_whole(server: Server) -> None:
    writer, reader = Machine(server, remote=True), Machine(server)
    reader.feed(b"set k 0 0 3\r\nold\r\n")
    seen = []

    class Memory(dict):
        def get(self, *args):  # The Machine calls this to carry out the READ.
            seen.append(reader.feed(b"get k\r\n"))
            return super().get(*args)

    writer.memory = Memory({1: (0, bytearray(b"n" * 9000))})
    assert writer.feed(b"ms k 9000 @0:1\r\n") == b"HD\r\n"
    assert seen == [b"VALUE k 0 3\r\nold\r\nEND\r\n"]
    assert reader.feed(b"mg k s\r\n") == b"HD s9000\r\n"
    server.check()


def test_failed_payload_drops_the_item_only(machine: Machine, server: Server) -> None:
    machine.feed(b"set k 0 0 3\r\nold\r\n")
    assert machine.feed(b"ms k 5000 @%x:abc\r\n" % (BASE + 256 * 20000 - 4999)) == b""
    assert machine.closed
    assert Machine(server).feed(b"get k\r\n") == b"VALUE k 0 3\r\nold\r\nEND\r\n"
    server.check()


def test_connection_ends_while_a_payload_is_missing(server: Server) -> None:
    machine = Machine(server)
    machine.feed(b"set k 0 0 5000\r\nabc")
    assert machine.missing == 4999
    machine.close()
    server.check()


def test_a_value_longer_than_the_sink_goes_in_the_reply(machine: Machine, server: Server) -> None:
    machine.feed(b"set k 0 0 5000\r\n" + b"v" * 5000 + b"\r\n")
    machine.memory[1] = (0, bytearray(5000))
    assert machine.feed(b"mg k v @0:1:1387\r\n") == b"VA 5000\r\n" + b"v" * 5000 + b"\r\n"
    assert machine.feed(b"mg k v @0:1:1388\r\n") == b"VA 5000 @\r\n"
    assert machine.feed(b"mg k s @0:1:1388\r\nmg x v k @0:1:1388\r\nmg x v q @0:1:1388\r\n") == b"HD s5000\r\nEN kx\r\n"
    assert len(machine.writes) == 1
    server.check()


def test_writes_come_before_their_lines_and_behind_what_was_asked_before(machine: Machine, server: Server) -> None:
    machine.feed(b"set k 0 0 5000\r\n" + b"v" * 5000 + b"\r\nset s 0 0 1\r\nx\r\n")
    machine.memory[1] = (0, bytearray(20000))
    sent = len(b"STORED\r\n") * 2
    request = b"get s\r\nmg k v @0:1:1388\r\nget s\r\nget k\r\nmg k v Oa @1388:1:1388\r\nmg k v @2710:1:1388\r\nmn\r\n"
    before = b"VALUE s 0 1\r\nx\r\nEND\r\n"
    middle = before + b"VALUE k 0 5000\r\n" + b"v" * 5000 + b"\r\nEND\r\n"
    for most in (1 << 20, 1000, 7):
        del machine.writes[:]
        machine.max_sent = most
        reply = machine.feed(request)
        assert reply == before + b"VA 5000 @\r\n" + middle + b"VA 5000 Oa @\r\nVA 5000 @\r\nMN\r\n"
        first = sent + len(before)
        second = first + len(b"VA 5000 @\r\n" + middle)
        third = second + len(b"VA 5000 Oa @\r\n")
        assert [write[3] for write in machine.writes] == [first, second, third]
        sent += len(reply)
    assert machine.memory[1][1] == b"v" * 15000 + bytes(5000)
    server.check()


def test_a_value_that_is_replaced_while_it_waits_stays_whole(machine: Machine, server: Server) -> None:
    machine.feed(b"set k 0 0 5000\r\n" + b"v" * 5000 + b"\r\n")
    machine.memory[1] = (0, bytearray(5000))
    assert machine.feed(b"mg k v @0:1:1388\r\n", send=False) == b""
    assert machine.pending == (1, 5000)
    Machine(server).feed(b"set k 0 0 5000\r\n" + b"w" * 5000 + b"\r\n")
    assert machine.feed() == b"VA 5000 @\r\n"
    assert machine.memory[1][1] == b"v" * 5000
    server.check()


def test_connection_ends_with_values_waiting(machine: Machine, server: Server) -> None:
    machine.feed(b"set k 0 0 5000\r\n" + b"v" * 5000 + b"\r\n")
    machine.memory[1] = (0, bytearray(5000))
    machine.feed(b"mg k v @0:1:1388\r\nget k\r\n" * 3, send=False)
    machine.close()
    server.check()


@pytest.mark.parametrize("command", [b"ms k 3 @1:2\r\n", b"ms k 3 q @junk Oa\r\n", b"mg k v @1:2:3\r\n", b"mg k @\r\n"])
def test_without_a_queue_pair(server: Server, command: bytes) -> None:
    machine = Machine(server)
    assert machine.feed(command + b"mn\r\n") == NO_QUEUE_PAIR + b"MN\r\n"


@pytest.mark.parametrize(
    "descriptor",
    [
        b"@",
        b"@1",
        b"@:1",
        b"@1:",
        b"@1:2:3",
        b"@g:1",
        b"@1:123456789",
        b"@12345678901234567:1",
        b"@-1:1",
        b"@1:-",
        b"@1: 2",
    ],
)
def test_malformed_source(machine: Machine, server: Server, descriptor: bytes) -> None:
    reply = machine.feed(b"ms k 3 q %s\r\nmn\r\n" % descriptor)
    expected = BAD_TOKEN if b" " not in descriptor else b"CLIENT_ERROR invalid flag\r\n"
    assert reply == expected + b"MN\r\n"
    server.check()


@pytest.mark.parametrize(
    "descriptor", [b"@", b"@1:2", b"@1:2:", b"@1::3", b"@:2:3", b"@1:2:3:4", b"@1:2:123456789", b"@x:2:3"]
)
def test_malformed_sink(machine: Machine, descriptor: bytes) -> None:
    assert machine.feed(b"mg k v %s\r\nmn\r\n" % descriptor) == BAD_TOKEN + b"MN\r\n"


def test_errors_of_a_remote_set_swallow_nothing(machine: Machine, server: Server) -> None:
    at = b"@%x:abc" % BASE
    assert machine.feed(b"ms k 9000000 %s\r\nmn\r\n" % at) == b"SERVER_ERROR object too large for cache\r\nMN\r\n"
    assert machine.feed(b"ms k 9 MZ %s\r\nmn\r\n" % at) == b"CLIENT_ERROR invalid mode for ms M token\r\nMN\r\n"
    assert machine.feed(b"ms k 9 Tx %s\r\nmn\r\n" % at) == BAD_TOKEN + b"MN\r\n"
    assert machine.feed(b"ms k 9 %s %s\r\nmn\r\n" % (at, at)) == b"CLIENT_ERROR duplicate flag\r\nMN\r\n"
    assert machine.feed(b"ms k -9 %s\r\nmn\r\n" % at) == b"CLIENT_ERROR bad command line format\r\nMN\r\n"
    assert "remote" not in machine.wants
    server.check()


@pytest.mark.parametrize("command", [b"md k", b"ma k", b"me k"])
def test_others_do_not_take_it(machine: Machine, command: bytes) -> None:
    assert machine.feed(command + b" @1:2\r\n") == b"CLIENT_ERROR bad command line format\r\n"

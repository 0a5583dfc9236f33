"""Wrong exchange lines and wrong iWARP starts cost their own connection at most."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from daemon_tools import (
    BROKEN_STREAM,
    GONE_WITHIN,
    TIMEOUT,
    VERSION,
    Conversation,
    Peer,
    address_tokens,
    alone,
    beside_another,
    descriptors,
    eventually,
    rdma_at_rest,
    rdma_device,
)
from polling import readable
from servers import Server
from transport import RDMA, rounds

from rmemcached import verbs

GOOD = f"version={VERSION} transport={RDMA} qpn=17 credits=16 msgsize=8192 lanebytes=16384"
if RDMA == "verbs":
    with verbs.Context(rdma_device()) as _context, verbs.PD(_context) as _pd, verbs.CQ(_context) as _cq:
        GOOD = " ".join([GOOD, *address_tokens(verbs.QP(_pd, _cq))])
MPA_REQUEST = b"MPA ID Req Frame"
MPA_REPLY = b"MPA ID Rep Frame"
REJECT = 0x20
ENHANCED = 0x10
CRC = 0x40
MARKERS = 0x80
LATE = 30.0  # seconds, for a request that never becomes whole


@pytest.fixture(scope="module")
def server(module_server: Callable[..., Server]) -> Server:
    return module_server("-m", "64", "-t", "2")


@pytest.fixture(autouse=True)
def bystander(server: Server) -> Iterator[None]:
    with beside_another(server) as control:
        open_files = descriptors(server.pid)
        yield
        eventually(lambda: control.stats("rdma")["rdma_queue_pairs"] == "1", GONE_WITHIN)
        alone(control, 2)
        eventually(lambda: descriptors(server.pid) <= open_files)


@pytest.fixture
def talk(server: Server) -> Iterator[Conversation]:
    with Conversation(server) as conversation:
        yield conversation


def without(key: str) -> str:
    return " ".join(token for token in GOOD.split() if not token.startswith(key + "="))


def with_value(key: str, value: str) -> str:
    return f"{without(key)} {key}={value}"


MALFORMED = "CLIENT_ERROR rdma: a value is malformed or out of range"
NUMBERS = {
    "qpn": ("", "-1", "x", "16777216", "1x", "0x11", "4294967296", "99999999999999999999", "+1"),
    "psn": ("-1", "16777216", "none"),
    "credits": ("0", "1", "1025", "-5", "", "2.5"),
    "msgsize": ("0", "511", "65537", "8k", ""),
    "lanebytes": ("511", "1048577", "x"),
    "ird": ("0", "129", "-1", ""),
    "ord": ("0", "129", "x"),
    "crc": ("2", "-1", "yes", ""),
    "lid": ("65536", "-1"),
    "mtu": ("x", "", "255", "4097"),
    "gid": ("", "0", "z" * 32, "0" * 31, "0" * 33),
    "version": ("", "x", "-1", "1.0", "4294967296"),
}


@pytest.mark.device("the address of a queue pair")
@pytest.mark.parametrize("key", NUMBERS)
def test_values_out_of_range(talk: Conversation, key: str) -> None:
    for value in NUMBERS[key]:
        reply = talk.ask(f"rdma {with_value(key, value)}\r\n".encode()).decode()
        assert reply == MALFORMED + "\r\n", (key, value)
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.device("the address of a queue pair")
@pytest.mark.parametrize("key", ["version", "transport", "qpn", "credits", "msgsize", "lanebytes"])
def test_missing_keys(talk: Conversation, key: str) -> None:
    assert talk.ask(f"rdma {without(key)}\r\n".encode()).decode() == f"CLIENT_ERROR rdma: {key} is missing\r\n"
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("version", ["1", "3", "77", "4294967295"])
def test_unknown_version(talk: Conversation, version: str) -> None:
    """The daemon names the unknown version, and looks at no other words of the line."""
    expected = f"CLIENT_ERROR rdma: version {version} is not supported, this server speaks {VERSION}\r\n"
    assert talk.ask(f"rdma version={version}\r\n".encode()).decode() == expected
    assert talk.ask(f"rdma {with_value('version', version)}\r\n".encode()).decode() == expected
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("name", ["verbs", "soft_i", "soft_iww", "SOFT_IW", "%n%s", "x" * 200])
def test_unknown_transport(talk: Conversation, name: str) -> None:
    reply = talk.ask(f"rdma {with_value('transport', name)}\r\n".encode()).decode()
    assert reply == f"SERVER_ERROR rdma: transport {name[:32]} is not available here\r\n"
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.parametrize("line", ["rdma", "rdma ", "rdma   ", "rdma x", f"rdma version {GOOD}", f"rdma {GOOD} novalue"])
def test_not_tokens(talk: Conversation, line: str) -> None:
    assert talk.ask(line.encode() + b"\r\n").startswith(b"CLIENT_ERROR rdma: ")
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


def test_unknown_keys_are_ignored_and_order_is_free(talk: Conversation) -> None:
    tokens = [*GOOD.split(), "colour=blue", "x=", "host=abc=def"]
    random.Random(1).shuffle(tokens)
    assert talk.ask(f"rdma {' '.join(tokens)}\r\n".encode()).startswith(b"RDMA version=%d " % VERSION)


def test_long_lines(server: Server) -> None:
    with Conversation(server) as talk:
        line = f"rdma {GOOD} pad="
        reply = talk.ask((line + "x" * (1024 - len(line))).encode() + b"\r\n")
        assert reply.startswith(b"RDMA "), reply
    with Conversation(server) as talk:
        reply = talk.ask((line + "x" * (1025 - len(line))).encode() + b"\r\n")
        assert reply == b"CLIENT_ERROR rdma: the line is longer than 1024 bytes\r\n"
        assert talk.ask(b"mn\r\n") == b"MN\r\n"
    with Conversation(server) as talk:
        talk.send((line + "x" * 100_000).encode())
        assert talk.ended()


def test_second_exchange(server: Server, talk: Conversation) -> None:
    line = f"rdma {GOOD}\r\n".encode()
    assert talk.ask(line).startswith(b"RDMA ")
    for _ in range(3):
        assert talk.ask(line) == b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"
    assert talk.ask(b"mn\r\n") == b"MN\r\n"


def test_exchange_after_a_wrong_one(talk: Conversation) -> None:
    assert talk.ask(b"rdma nonsense\r\n").startswith(b"CLIENT_ERROR")
    assert talk.ask(f"rdma {GOOD}\r\n".encode()).startswith(b"RDMA ")


def test_exchange_inside_a_lane(server: Server) -> None:
    with Peer(server) as peer:
        expected = b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"
        assert peer.ask(f"rdma {GOOD}\r\n".encode()) == expected
        assert peer.ask(b"mn\r\n") == b"MN\r\n"


def test_commands_on_the_lifeline(server: Server) -> None:
    with Peer(server) as peer:
        assert peer.lifeline.ask(b"set lifeline 0 0 1\r\nx\r\n") == b"STORED\r\n"
        assert peer.ask(b"mg lifeline v\r\n", b"x\r\n") == b"VA 1\r\nx\r\n"
        assert (
            peer.lifeline.ask(b"ms lifeline 1 @1000:1\r\n")
            == b"CLIENT_ERROR rdma: no queue pair on this connection\r\n"
        )
        assert peer.lifeline.ask(b"mn\r\n") == b"MN\r\n"


@pytest.mark.without_direct("it starts a daemon with no_rdma, which excludes it")
def test_no_rdma(rmemcached_server: Callable[..., Server]) -> None:
    """A daemon without RDMA is a plain memcached, also for a client with an MPA request."""
    plain = rmemcached_server("-o", "no_rdma")
    with Conversation(plain) as talk:
        assert talk.ask(f"rdma {GOOD}\r\n".encode()) == b"SERVER_ERROR rdma: no transport is available here\r\n"
        assert talk.ask(b"stats rdma\r\n") == b"ERROR\r\n"
        assert talk.ask(b"MPA ID Req Frame\r\n") == b"ERROR\r\n"
        # A failed Peer leaves no connection, even while this test still holds its error.
        with pytest.raises(AssertionError, match="no transport is available") as caught:
            Peer(plain)
        assert caught.tb
        alone(talk)


def test_too_many_queue_pairs(rmemcached_server: Callable[..., Server]) -> None:
    small = rmemcached_server("-o", "rdma_max_qps=2,rdma_spin=7,no_rdma_crc")
    with Conversation(small) as refused, Conversation(small) as control:
        settings = [control.number(name, "rdma") for name in ("rdma_max_queue_pairs", "rdma_spin", "rdma_crc")]
        assert settings == [2, 7, 0]
        with Conversation(small) as first, Conversation(small) as second:
            line = f"rdma {GOOD}\r\n".encode()
            assert first.ask(line).startswith(b"RDMA ")
            assert second.ask(line).startswith(b"RDMA ")
            assert refused.ask(line) == b"SERVER_ERROR rdma: too many queue pairs (rdma_max_qps)\r\n"
            assert refused.ask(b"mn\r\n") == b"MN\r\n"
            assert control.number("rdma_refused_queue_pairs", "rdma") == 1
        eventually(lambda: rdma_at_rest(control), GONE_WITHIN)
        assert refused.ask(line).startswith(b"RDMA ")


def test_fuzzed_lines(server: Server) -> None:
    """Any line of bytes gets one line of answer, and the connection goes on."""
    source = random.Random(8)
    good = f"rdma {without('gid')} gid={'0' * 32} ird=16 ord=16 crc=0".encode()
    # These are all octets but NUL and a line's end.
    letters = bytes(set(range(256)) - set(b"\r\n\0"))
    with Conversation(server) as talk:
        for _ in range(rounds(2000)):
            line = bytearray(good)
            for _ in range(source.randint(1, 4)):
                at = source.randrange(5, len(line))
                what = source.randrange(3)
                if what == 0:
                    line[at] = source.choice(letters)
                elif what == 1:
                    del line[at : at + source.randint(1, 8)]
                    line += b" "
                else:
                    line[at:at] = bytes(source.choices(letters, k=source.randint(1, 20)))
            reply = talk.ask(bytes(line) + b"\r\n")
            assert reply.startswith((b"CLIENT_ERROR rdma: ", b"SERVER_ERROR rdma: ", b"RDMA ", b"ERROR")), (line, reply)
            assert reply.endswith(b"\r\n")
        assert talk.ask(b"mn\r\n") == b"MN\r\n"


# ---- the iWARP stream ------------------------------------------------------------------------------------------------


def mpa_request(private_data: bytes, flags: int = ENHANCED, revision: int = 2) -> bytes:
    words = b"\x40\x10\x00\x10" if flags & ENHANCED else b""
    body = words + private_data
    return MPA_REQUEST + bytes([flags, revision]) + len(body).to_bytes(2, "big") + body


def answer(stream: Conversation) -> bytes:
    """The MPA Reply frame, or its beginning if the daemon closes early, perhaps before it has read all."""
    try:
        head = stream.read(20)
        return head + (stream.read(int.from_bytes(head[18:20], "big")) if len(head) == 20 else b"")
    except ConnectionResetError:
        return b""


def refused(server: Server, frame: bytes) -> None:
    """The daemon answers the frame by a rejection, or not at all, and closes the connection."""
    with Conversation(server) as stream:
        stream.send(frame)
        reply = answer(stream)
        if reply:
            assert reply.startswith(MPA_REPLY) and reply[16] & REJECT, reply
        assert stream.ended()


def test_wrong_token_or_number(server: Server) -> None:
    with Peer(server, attach=False) as peer, Conversation(server) as control:
        before = control.number("rdma_refused_streams", "rdma")
        right = peer.private_data
        number = int.from_bytes(right[:4], "big")
        wrong = [
            (number + 1).to_bytes(4, "big") + right[4:],
            right[:4] + bytes(16),
            right[:19] + bytes([right[19] ^ 1]),
            *(right[:at] + bytes([right[at] ^ 0x80]) + right[at + 1 :] for at in range(4, 20)),
            # These have the number of another worker, if the daemon has so many.
            *(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :] for at in range(4, 8)),
            bytes(20),
            right[:19],
            right + b"\0",
            b"",
        ]
        for private_data in wrong:
            refused(server, mpa_request(private_data))
        assert control.number("rdma_refused_streams", "rdma") - before == len(wrong)
        # The wrong frames have not used up the right private data.
        peer.attach()
        peer.send(2)
        peer.wait(lambda: peer.ready)
        peer.open(0)
        assert peer.ask(b"mn\r\n") == b"MN\r\n"


def test_rejection_is_told(server: Server) -> None:
    with Conversation(server) as stream:
        stream.send(mpa_request(bytes(20)))
        reply = answer(stream)
        assert reply[:16] == MPA_REPLY and reply[16] & REJECT and stream.ended()


def test_stream_attached_twice(server: Server) -> None:
    with Peer(server) as peer:
        refused(server, mpa_request(peer.private_data))
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        refused(server, mpa_request(peer.private_data))
        assert peer.ask(b"set two 0 0 1\r\nx\r\n") == b"STORED\r\n"


def test_token_of_a_dead_queue_pair(server: Server) -> None:
    with Peer(server) as peer:
        private_data = peer.private_data
    with Conversation(server) as control:
        eventually(lambda: control.stats("rdma")["rdma_queue_pairs"] == "1", GONE_WITHIN)
    refused(server, mpa_request(private_data))


def test_markers_and_other_revisions(server: Server) -> None:
    with Peer(server, attach=False) as peer:
        for frame in (
            mpa_request(peer.private_data, ENHANCED | MARKERS),
            mpa_request(peer.private_data, ENHANCED, revision=0),
            mpa_request(peer.private_data, ENHANCED, revision=3),
            mpa_request(bytes(400)),
            MPA_REQUEST + bytes([ENHANCED, 2, 255, 255]) + bytes(600),
        ):
            refused(server, frame)


def test_garbage_behind_m(server: Server) -> None:
    """A line that begins unlike a request is an ordinary line, as in memcached. A false request is refused."""
    source = random.Random(2)
    for garbage in (b"MGET", b"MPA", b"MPA ID Rep Frame", b"M" * 600, b"Mg key v"):
        with Conversation(server) as stream:
            stream.send(garbage)
            if MPA_REQUEST.startswith(garbage):
                # The bytes may still become a request.
                assert not readable(stream.sock, 0.05)
                stream.send(b"!" * 600)
            assert stream.ask(b"\r\n") == b"ERROR\r\n", garbage
            assert stream.ask(b"mn\r\n") == b"MN\r\n"
    refused(server, b"MPA ID Req Frames and more")
    for _ in range(100):
        frame = bytearray(mpa_request(source.randbytes(20)))
        at = source.randrange(1, len(frame))
        frame[at] ^= 1 << source.randrange(8)
        frame += source.randbytes(600)
        with Conversation(server) as stream:
            stream.send(bytes(frame))
            # The daemon may have closed the stream already.
            with contextlib.suppress(OSError):
                stream.sock.shutdown(socket.SHUT_WR)
            if at < len(MPA_REQUEST):
                with contextlib.suppress(ConnectionResetError):
                    stream.file.read()
            else:
                answer(stream)
                assert stream.ended()


def test_request_in_pieces(server: Server) -> None:
    """A request that comes octet by octet is as good as a whole request. A wrong request is refused early."""
    with Peer(server, attach=False) as peer, Conversation(server) as stream:
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in mpa_request(peer.private_data):
            stream.send(bytes([octet]))
        reply = answer(stream)
        assert reply.startswith(MPA_REPLY) and not reply[16] & REJECT


@pytest.mark.parametrize("crc", [0, CRC], ids=["plain", "crc"])
def test_garbage_behind_the_start(server: Server, crc: int) -> None:
    """After garbage in place of frames, on an accepted stream, the lifeline ends, with an error line unless the
    garbage is cut off."""
    source = random.Random(3)
    hostile = [
        bytes(64),
        b"\xff" * 70_000,
        b"\x00\x0e" + bytes(100),
        *(source.randbytes(source.randint(4, 3000)) for _ in range(40)),
    ]
    # The last is a proper header, and a payload whose rest never comes.
    hostile.append(b"\x00\x1a\x41\x43" + bytes(4) + bytes(4) + (1).to_bytes(4, "big") + bytes(4) + bytes(3))
    for garbage in hostile:
        with Peer(server, attach=False) as peer, Conversation(server) as stream:
            stream.send(mpa_request(peer.private_data, ENHANCED | crc))
            reply = answer(stream)
            assert reply.startswith(MPA_REPLY) and not reply[16] & REJECT
            try:
                stream.send(garbage)
                stream.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            assert peer.last_words() in (b"", BROKEN_STREAM)


def test_request_never_completed(server: Server) -> None:
    """The daemon drops an unfinished request after 10 seconds, not sooner. The slow test of this file."""
    begin = time.monotonic()
    with Conversation(server, LATE) as silent, Conversation(server, LATE) as partial:
        silent.send(b"M")
        partial.send(MPA_REQUEST + bytes([ENHANCED, 2, 0]))
        assert readable(silent.sock, LATE) and silent.ended()
        assert partial.ended()
    assert time.monotonic() - begin > 9.0


def test_a_queue_pair_waits_for_its_stream(server: Server) -> None:
    """A queue pair waits for its stream; meanwhile the lifeline is an ordinary connection."""
    with Peer(server, attach=False) as peer:
        assert peer.lifeline.ask(b"mn\r\n") == b"MN\r\n"
        assert not readable(peer.lifeline.sock, 0.05)
        peer.attach()
        peer.send(2)
        peer.wait(lambda: peer.ready, timeout=TIMEOUT)


RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset
LONG = 500_000


def is_stopped(server: Server) -> bool:
    with open(f"/proc/{server.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_a_lifeline_breaks_while_its_stream_has_input(rmemcached_server: Callable[..., Server]) -> None:
    """A reset of the lifeline, found in the same turn as its stream's input, ends both in order. The lifeline's replies
    wait for that turn."""
    source = random.Random(4)
    server = rmemcached_server("-t", "1", "-m", "64")
    with Conversation(server) as control:
        assert control.ask(b"set long 0 0 %d\r\n%b\r\n" % (LONG, bytes(LONG))) == b"STORED\r\n"
        for _ in range(rounds(30)):
            with Peer(server, attach=False) as peer, Conversation(server) as stream:
                stream.send(mpa_request(peer.private_data))
                assert answer(stream).startswith(MPA_REPLY)
                lifeline = peer.lifeline
                lifeline.send(b"get long\r\n" * 50)
                lifeline.read(source.randrange(LONG, 20 * LONG))
                os.kill(server.pid, signal.SIGSTOP)
                eventually(lambda: is_stopped(server))
                lifeline.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                lifeline.close()
                # These bytes are the beginning of a frame.
                stream.send(b"\x00\x1a")
                os.kill(server.pid, signal.SIGCONT)
            assert control.ask(b"mn\r\n") == b"MN\r\n"
        eventually(lambda: control.stats("rdma")["rdma_queue_pairs"] == "0", GONE_WITHIN)

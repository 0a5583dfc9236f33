"""soft_iw beside TLS: the stream of a queue pair is inside TLS too, by a key from the lifeline."""

from __future__ import annotations

import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from certificates import Authority, Signed
from daemon_tools import DATA, OPEN, READY, TIMEOUT, Peer, eventually, message, working
from recorder import Recorder
from servers import Server
from tls_peers import OpenSsl, TlsConversation, client_context, options
from transport import VARIABLE, within

from rmemcached.client import Client, MemcacheServerError

ServerFactory = Callable[..., Server]

HANDSHAKE = b"\x16\x03"
SECRET = b"nobody on the way may read these words"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Signed:
    return authority.sign("server")


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    return client_context(authority.trusted)


@pytest.fixture(params=[(), ("ssl_kernel_tls",), ("ssl_wbuf_size=1",)], ids=["", "kernel", "small buffer"])
def more(request: pytest.FixtureRequest) -> Sequence[str]:
    found: Sequence[str] = request.param
    return found


@pytest.fixture
def server(rmemcached_server: ServerFactory, certificate: Signed) -> Server:
    return rmemcached_server("-I", "16m", *options(certificate))


def client_of(server: Server, context: ssl.SSLContext, *, port: int | None = None, timeout: float = TIMEOUT) -> Client:
    return Client(
        ("127.0.0.1", port or server.port),
        tls_context=context,
        transport="soft_iw",
        timeout=timeout,
        default_noreply=False,
    )


def number(server: Server, context: ssl.SSLContext, name: str, *words: str) -> int:
    with TlsConversation(server, context) as control:
        return control.number(name, *words)


def errors(server: Server, context: ssl.SSLContext) -> list[int]:
    return [number(server, context, name) for name in ("ssl_proto_errors", "ssl_handshake_errors")]


# ---- the traffic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crc", [False, True])
def test_values(
    rmemcached_server: ServerFactory, certificate: Signed, context: ssl.SSLContext, more: Sequence[str], crc: bool
) -> None:
    words = more if crc else (*more, "no_rdma_crc")
    server = rmemcached_server("-I", "16m", *options(certificate, *words))
    before = errors(server, context)
    with client_of(server, context) as client:
        for size in (0, 1, 100, 4096, 16383, 16384, 16385, 70_000, 1_000_000, 10_000_000):
            data = random.Random(size).randbytes(size)
            assert client.set("key", data) and client.get("key") == data
        many = {f"key{n}": random.Random(n).randbytes(n * 37) for n in range(500)}
        assert client.set_many(many) == [] and client.get_many(many) == many
    assert errors(server, context) == before


def test_all_is_encrypted(server: Server, context: ssl.SSLContext) -> None:
    with Recorder(server) as relay, client_of(server, context, port=relay.port) as client:
        assert client.set("key", SECRET * 1000) and client.get("key") == SECRET * 1000
        assert client.set("small", SECRET) and client.get("small") == SECRET
        lifeline, stream = relay.connections
        assert len(stream.sent) > 2000 and len(stream.received) > 2000
        for connection in (lifeline, stream):
            for said in (connection.sent, connection.received):
                assert said.startswith(HANDSHAKE) and SECRET[:10] not in said and b"MPA" not in said


def test_a_client_without_tls_gets_none(server: Server, context: ssl.SSLContext) -> None:
    """Without the word in the exchange the daemon refuses, as for all networks."""
    with TlsConversation(server, context) as peer:
        line = b"rdma version=2 transport=soft_iw qpn=1 credits=16 msgsize=8192 lanebytes=65536%s\r\n"
        assert b"is not encrypted" in peer.ask(line % b"")
        assert b" tls=" in peer.ask(line % b" tls=1")


def test_verbs_is_refused(server: Server, context: ssl.SSLContext) -> None:
    """Whether the daemon has a device or not, and although the client asks for TLS."""
    with TlsConversation(server, context) as peer:
        for word in (b"", b" tls=1"):
            line = b"rdma version=2 transport=verbs qpn=1 credits=16 msgsize=8192 lanebytes=65536%s\r\n"
            answer = peer.ask(line % word)
            assert b"verbs is not encrypted" in answer or b"verbs is not available" in answer


# ---- who has no key --------------------------------------------------------------------------------------------------


def exchanged(peer: TlsConversation, number: int = 1) -> dict[str, str]:
    line = f"rdma version=2 transport=soft_iw qpn={number} credits=16 msgsize=8192 lanebytes=65536 tls=1\r\n"
    words = peer.ask(line.encode()).decode().split()
    assert words[0] == "RDMA"
    return dict(word.split("=") for word in words[1:])


def request(offer: dict[str, str]) -> bytes:
    private = bytes(4) + int(offer["qpn"]).to_bytes(4, "big") + bytes.fromhex(offer["token"])
    return b"MPA ID Req Frame" + bytes((0x10, 2)) + len(private).to_bytes(2, "big") + private


def test_a_stream_by_hand(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        offer = exchanged(peer)
        with OpenSsl(server, key=bytes.fromhex(offer["tls"])) as stream:
            assert stream.write(request(offer))
            assert stream.read(20).startswith(b"MPA ID Rep Frame\x10\x02")


def test_a_key_opens_no_connection(server: Server, context: ssl.SSLContext) -> None:
    """A key is worth no certificate: commands get no answer."""
    with TlsConversation(server, context) as peer:
        offer = exchanged(peer)
        for line in (b"mn\r\n", b"version\r\n", b"\x80" + bytes(23), b"SHM ID Req Frame" + bytes(20)):
            with OpenSsl(server, key=bytes.fromhex(offer["tls"])) as stream:
                assert stream.write(line)
                assert stream.read(1) == b""


def test_a_wrong_key_opens_nothing(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        key = bytes.fromhex(exchanged(peer)["tls"])
        for at in (8, 24, 55):
            wrong = bytearray(key)
            wrong[at] ^= 1
            with pytest.raises(ConnectionError):
                OpenSsl(server, key=bytes(wrong))
        # The peer may hear of the error before the daemon counts it.
        eventually(lambda: peer.number("ssl_handshake_errors") == 3, what="three failed handshakes")
        # A different name is like an unknown session ticket: an ordinary handshake follows.
        with OpenSsl(server, key=b"x" + key[1:]) as other:
            assert other.write(b"mn\r\n") and other.read(4) == b"MN\r\n"


def test_another_token_has_no_stream(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        offer = exchanged(peer)
        with OpenSsl(server, key=bytes.fromhex(offer["tls"])) as stream:
            wrong = {**offer, "token": offer["token"][:-2] + f"{int(offer['token'][-2:], 16) ^ 1:02x}"}
            assert stream.write(request(wrong))
            # R=1: a reject
            assert stream.read(20)[16] & 0x20
        assert peer.number("rdma_refused_streams", "rdma") == 1


def test_a_key_outlives_no_daemon(
    rmemcached_server: ServerFactory, certificate: Signed, context: ssl.SSLContext, server: Server
) -> None:
    with TlsConversation(rmemcached_server(*options(certificate)), context) as peer:
        offer = exchanged(peer)
    with pytest.raises(ConnectionError):
        OpenSsl(server, key=bytes.fromhex(offer["tls"]))


class AskingPeer(Peer):
    """A client of RDMA with TLS on its lifeline. It asks for TLS for the stream, but has a plain stream."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self.tls = context
        super().__init__(server, tokens=["tls=1"])

    def connect(self, credits: int, tokens: Sequence[str], attach: bool, ready: bool) -> None:
        self.lifeline = TlsConversation(self.server, self.tls)
        self.exchange(credits, tokens)
        self.credits = int(self.offer["credits"])
        self.attach()
        self.send(READY)
        self.wait(lambda: self.ready or self.failed is not None)
        assert self.failed is None


@pytest.mark.parametrize("words", [(), ("rdma_cleartext",)])
def test_a_plain_stream_gets_no_queue_pair_with_a_key(
    rmemcached_server: ServerFactory,
    certificate: Signed,
    context: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
) -> None:
    monkeypatch.setenv(VARIABLE, "soft_iw")
    server = rmemcached_server(*options(certificate, *words))
    with pytest.raises((AssertionError, OSError)):
        AskingPeer(server, context)
    assert number(server, context, "rdma_refused_streams", "rdma") == len(words)


def test_who_is_in_the_middle_of_the_second_connection(
    server: Server, authority: Authority, certificate: Signed, context: ssl.SSLContext
) -> None:
    """The server's own certificate does not help: only the key counts."""
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(certificate.certificate, certificate.key)

    def answer(plain: socket.socket) -> None:
        with pytest.raises(OSError), impostor.wrap_socket(plain, server_side=True) as other:
            other.recv(1000)

    with Recorder(server, second=answer) as relay:
        with pytest.raises(OSError, match="TLS of the second connection"):
            client_of(server, context, port=relay.port).version()
        assert b"MPA" not in relay.connections[1].sent


# ---- renewed keys ----------------------------------------------------------------------------------------------------


class RenewingStream:
    """A stream by hand, which can renew its keys, and reads only when told."""

    def __init__(self, server: Server, lifeline: TlsConversation) -> None:
        offer = exchanged(lifeline)
        self.sent = 0
        self.tls = OpenSsl(server, receive_buffer=65536, key=bytes.fromhex(offer["tls"]))
        self.tls.plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        assert self.tls.write(request(offer))
        reply = self.tls.read(24)
        assert reply.startswith(b"MPA ID Rep Frame\x10\x02") and reply[18:20] == b"\0\x04"
        self.say(READY)
        assert self.frame()[20] == READY
        self.say(OPEN)

    def __enter__(self) -> RenewingStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.tls.__exit__()

    def made(self, kind: int, payload: bytes = b"", credits: int = 0) -> bytes:
        """A message in a frame. The CRC is not in use."""
        self.sent += 1
        body = struct.pack(">BBIIII", 0x41, 0x43, 0, 0, self.sent, 0) + message(kind, payload, credits)
        return struct.pack(">H", len(body)) + body + bytes(-(len(body) + 2) % 4 + 4)

    def say(self, kind: int, payload: bytes = b"", credits: int = 0) -> None:
        assert self.tls.write(self.made(kind, payload, credits))

    def frame(self) -> bytes:
        head = self.tls.read(2)
        assert len(head) == 2, "the stream has ended"
        length = int.from_bytes(head, "big")
        return head + self.tls.read(length + -(length + 2) % 4 + 4)

    def await_replies(self, reply: bytes, count: int = 1) -> None:
        self.tls.plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        while count > 0:
            count -= self.frame().count(reply)

    def queues(self) -> tuple[int, int]:
        """Bytes in the daemon's socket: to be sent, and to be read."""
        names = f"{self.tls.plain.getpeername()[1]:04X}", f"{self.tls.plain.getsockname()[1]:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines():
            words = line.split()
            if (words[1][-4:], words[2][-4:]) == names:
                sending, _, reading = words[4].partition(":")
                return int(sending, 16), int(reading, 16)
        raise AssertionError("the daemon has no such socket")

    def holds(self, least: int) -> bool:
        return self.queues()[0] > least

    def nearly_fill(self, control: TlsConversation) -> None:
        """Leaves room in the daemon's socket for some 100 KB of further replies at most. Each value leaves at once: the
        rest of a longer reply would wait until a third of the socket is free."""
        size = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) // 12
        assert control.ask(b"set big 0 0 %d\r\n%s\r\n" % (size, bytes(size))) == b"STORED\r\n"
        for count in range(1, 13):
            self.say(DATA, b"mg big v @0:1:f4240\r\n", credits=1)
            eventually(partial(self.holds, size * count - 250_000), what="a value in the socket")

    def renew_between(self, octets: bytes, times: int) -> None:
        """Gathers each octet in a record of its own, behind so many renewals that ask for another."""
        self.tls.gather()
        for at in range(len(octets)):
            for _ in range(times):
                assert self.tls.renew_keys(True)
            assert self.tls.write(octets[at : at + 1])

    def renew_until_full(self, control: TlsConversation, pieces: Iterable[bytes]) -> bool:
        """Sends pieces with a renewal in front of each octet, until the daemon reads no more. False: the daemon has
        read all."""
        for piece in pieces:
            self.renew_between(piece, 1)
            self.tls.leave()
            for _ in range(50):
                assert control.ask(b"mn\r\n") == b"MN\r\n"
                if not self.queues()[1]:
                    break
            else:
                return True
        return False


@pytest.fixture
def lonely(rmemcached_server: ServerFactory, certificate: Signed) -> Server:
    """A daemon with a single worker."""
    return rmemcached_server("-t", "1", *options(certificate, "no_rdma_crc"))


def test_renewals_beside_a_full_socket(lonely: Server, context: ssl.SSLContext) -> None:
    """OpenSSL's answers fill the socket: the stream alone waits for its peer, and then goes on."""
    with (
        TlsConversation(lonely, context) as control,
        TlsConversation(lonely, context) as lifeline,
        RenewingStream(lonely, lifeline) as stream,
    ):
        stream.nearly_fill(control)
        half = bytes(8000)
        command = stream.made(DATA, b"set own 0 0 16000\r\n" + half) + stream.made(DATA, half + b"\r\n")
        left = iter([command[at : at + 500] for at in range(0, len(command), 500)])
        assert stream.renew_until_full(control, left)
        before = working(lonely.pid)
        for _ in range(100):
            assert control.ask(b"mn\r\n") == b"MN\r\n"
        assert working(lonely.pid) - before < within(0.2)
        stream.tls.gather()
        assert stream.tls.write(b"".join(left))
        sender = threading.Thread(target=stream.tls.leave)
        sender.start()
        stream.await_replies(b"STORED\r\n")
        sender.join()


def test_replies_behind_a_renewal_that_waits(lonely: Server, context: ssl.SSLContext) -> None:
    """A reply meets OpenSSL's own answer in the full socket: no record is made of the reply, and it leaves later."""
    with (
        TlsConversation(lonely, context) as control,
        TlsConversation(lonely, context) as lifeline,
        RenewingStream(lonely, lifeline) as stream,
    ):
        stream.nearly_fill(control)
        pieces = (b"".join(stream.made(DATA, b"mn\r\n", credits=1) for _ in range(8)) for _ in range(30))
        stream.renew_until_full(control, pieces)
        stream.await_replies(b"MN\r\n", stream.sent - 14)


def test_a_renewal_while_a_record_is_owed(lonely: Server, context: ssl.SSLContext) -> None:
    with (
        TlsConversation(lonely, context) as control,
        TlsConversation(lonely, context) as lifeline,
        RenewingStream(lonely, lifeline) as stream,
    ):
        stream.nearly_fill(control)
        stream.say(DATA, b"mg big v @0:1:f4240\r\n" * 2, credits=1)
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        assert stream.tls.renew_keys(True)
        stream.say(DATA, b"mn\r\n")
        stream.await_replies(b"MN\r\n")


def test_renewals_have_a_share_of_the_turn(lonely: Server, context: ssl.SSLContext) -> None:
    """Another connection has its turn again and again while the worker renews keys 4000 times."""
    turns = 0
    with (
        TlsConversation(lonely, context) as control,
        TlsConversation(lonely, context) as lifeline,
        RenewingStream(lonely, lifeline) as stream,
    ):
        stream.renew_between(stream.made(DATA, b"ms own 960\r\n" + bytes(960) + b"\r\n"), 4)
        sender = threading.Thread(target=stream.tls.leave)
        sender.start()
        while sender.is_alive() or stream.queues()[1]:
            assert control.ask(b"mn\r\n") == b"MN\r\n"
            turns += 1
        stream.await_replies(b"HD\r\n")
        sender.join()
    assert turns > 10


# ---- limits and ends -------------------------------------------------------------------------------------------------


def values_for_ever(port: int, trusted: str) -> None:
    client = Client(
        ("127.0.0.1", port),
        tls_context=client_context(Path(trusted)),
        transport="soft_iw",
        timeout=TIMEOUT * 3,
        default_noreply=False,
    )
    data = {f"own{n}": random.Random(n).randbytes(700_000 + n) for n in range(8)}
    assert client.set_many(data) == []
    while True:
        assert client.get_many(data) == data
        print("round", flush=True)


def test_ends_that_stop_now_and_then(server: Server, authority: Authority) -> None:
    """A full socket takes a part of a record, and the rest later, in both directions."""
    words = f"import sys; sys.path[:0] = {sys.path!r}; import test_tls_streams as t; t.values_for_ever"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{words}({server.port}, {str(authority.trusted)!r})"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        for n in range(12):
            assert child.stdout.readline() == "round\n"
            stopped = (child.pid, server.pid)[n % 2]
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(0.05)  # the peer fills the socket meanwhile
            os.kill(stopped, signal.SIGCONT)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_the_end_of_the_daemon(server: Server, context: ssl.SSLContext) -> None:
    with client_of(server, context) as client:
        assert client.set("key", b"value")
        server.stop()
        with pytest.raises((MemcacheServerError, OSError)):
            client.get("key")


def test_the_reason_of_the_end_comes_over_the_lifeline(
    rmemcached_server: ServerFactory, certificate: Signed, context: ssl.SSLContext
) -> None:
    server = rmemcached_server(*options(certificate, "rdma_ready_timeout=1"))
    with TlsConversation(server, context) as peer:
        exchanged(peer)
        assert b"no READY within 1 s" in peer.file.readline()


def test_memory_and_descriptors_come_back(server: Server, context: ssl.SSLContext) -> None:
    def open_files() -> int:
        return len(os.listdir(f"/proc/{server.pid}/fd"))

    with client_of(server, context) as client:
        client.version()
    with TlsConversation(server, context) as control:
        before = open_files()
        for _ in range(20):
            with client_of(server, context) as client:
                assert client.set("key", b"value")
        eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 0, what="the end of the queue pairs")
        eventually(lambda: open_files() <= before, what="the descriptors")

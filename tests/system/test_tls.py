"""TLS (-Z): Python's ssl and OpenSSL as the peers, with good and bad manners."""

from __future__ import annotations

import random
import re
import resource
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Signed, make
from daemon_tools import READY, TIMEOUT, Conversation, Peer, eventually, resident, room_for, working
from program import run_program
from servers import HOST, Server, free_port
from tls_peers import ByRecord, OpenSsl, TlsConversation, await_ports, client_context, half_renewal, options
from transport import VARIABLE, within

from rmemcached.tools import metrics

ServerFactory = Callable[..., Server]

SIZES = (0, 1, 2000, 4095, 16383, 16384, 16385, 40000, 300_000, 1_000_000, 5_000_000)
KB = 1024
ENDED = (ssl.SSLError, ConnectionError)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Signed:
    return authority.sign("server")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Signed:
    return authority.sign("client")


@pytest.fixture
def server(rmemcached_server: ServerFactory, certificate: Signed) -> Server:
    return rmemcached_server("-I", "8m", *options(certificate))


@pytest.fixture(params=["1.2", "1.3"])
def context(request: pytest.FixtureRequest, authority: Authority) -> ssl.SSLContext:
    return client_context(authority.trusted, request.param)


@pytest.fixture
def newest(authority: Authority) -> ssl.SSLContext:
    return client_context(authority.trusted)


@pytest.fixture
def control(server: Server, newest: ssl.SSLContext) -> Iterator[TlsConversation]:
    with TlsConversation(server, newest) as peer:
        yield peer


def value(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def said(plain: socket.socket) -> bytes:
    """Everything until the daemon ends the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while data := plain.recv(65536):
            found += data
    return found


def answer(key: str, data: bytes) -> bytes:
    return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key.encode(), len(data), data)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_values_of_all_sizes(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        for size in SIZES:
            assert peer.ask(b"set k%d 0 0 %d\r\n%s\r\n" % (size, size, value(size))) == b"STORED\r\n"
        for size in SIZES:
            expected = answer(f"k{size}", value(size))
            peer.send(b"get k%d\r\n" % size)
            assert peer.read(len(expected)) == expected


def test_many_commands_at_once(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        peer.send(b"".join(b"set k%d 0 0 %d\r\n%s\r\n" % (i, i, value(i)) for i in range(3000)))
        assert peer.read(3000 * 8) == b"STORED\r\n" * 3000
        peer.send(b"".join(b"get k%d\r\n" % i for i in range(3000)))
        expected = b"".join(answer(f"k{i}", value(i)) for i in range(3000))
        assert peer.read(len(expected)) == expected


def test_binary_protocol(server: Server, newest: ssl.SSLContext) -> None:
    with TlsConversation(server, newest) as peer:
        peer.send(bytes([0x80, 0x0B]) + bytes(22))
        assert peer.read(24)[:2] == b"\x81\x0b"
        assert peer.read(3) == b"1.6"


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_records_in_pieces(server: Server, context: ssl.SSLContext, piece: int) -> None:
    with ByRecord(server, context) as peer:
        peer.send(peer.hello(), piece)
        peer.shake()
        peer.send(peer.records([b"set a 0 0 5000\r\n", value(5000) + b"\r\n"]), piece)
        assert peer.read(8) == b"STORED\r\n"
        peer.send(peer.records([b"get a\r\n"]), piece)
        expected = answer("a", value(5000))
        assert peer.read(len(expected)) == expected


def test_a_command_over_many_records(server: Server, context: ssl.SSLContext) -> None:
    """Each byte is a record, and all records come at once: more than a worker takes in a turn."""
    data = value(3000)
    command = b"set a 0 0 3000\r\n" + data + b"\r\nget a\r\n"
    with ByRecord(server, context).shake() as peer:
        peer.send(peer.records(command[i : i + 1] for i in range(len(command))))
        expected = b"STORED\r\n" + answer("a", data)
        assert peer.read(len(expected)) == expected


def test_a_record_that_does_not_come(server: Server, newest: ssl.SSLContext, control: TlsConversation) -> None:
    """A client stopping inside a record holds up nobody, and its value is not stored."""
    with ByRecord(server, newest).shake() as peer:
        peer.send(peer.records([b"set a 0 0 10000\r\n" + value(10000) + b"\r\n"])[:-1])
        assert control.ask(b"get a\r\n") == b"END\r\n"
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connection")
    assert control.ask(b"get a\r\n") == b"END\r\n"


def test_a_slow_reader(server: Server, context: ssl.SSLContext, control: TlsConversation) -> None:
    """A client pausing before it reads gets all replies whole. Meanwhile the daemon serves others."""
    for i in range(4):
        assert control.ask(b"set k%d 0 0 4000000\r\n%s\r\n" % (i, value(4_000_000 + i)[:4_000_000])) == b"STORED\r\n"
    with TlsConversation(server, context, receive_buffer=4096) as peer:
        peer.send(b"get k0 k1 k2 k3\r\nget k3 k2\r\nversion\r\n" * 2)
        assert control.ask(b"get none\r\n") == b"END\r\n"
        for _ in range(2):
            for keys in ((0, 1, 2, 3), (3, 2)):
                for i in keys:
                    assert peer.line() == b"VALUE k%d 0 4000000\r\n" % i
                    assert peer.read(4_000_002) == value(4_000_000 + i)[:4_000_000] + b"\r\n"
                assert peer.line() == b"END\r\n"
            assert peer.line().startswith(b"VERSION")


# ---- the beginning and the end of a session --------------------------------------------------------------------------


def test_the_end_is_announced(server: Server, context: ssl.SSLContext) -> None:
    with TlsConversation(server, context) as peer:
        peer.send(b"quit\r\n")
        assert peer.read(1) == b""  # without close_notify: ssl.SSLEOFError


def test_an_end_without_notice_is_no_error(server: Server, newest: ssl.SSLContext, control: TlsConversation) -> None:
    with TlsConversation(server, newest) as peer:
        assert peer.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
    server.connect().close()
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connections")
    assert control.number("ssl_proto_errors") == control.number("ssl_handshake_errors") == 0


def test_plain_text_at_a_port_with_tls(server: Server, control: TlsConversation) -> None:
    with server.connect(TIMEOUT) as plain:
        plain.sendall(b"version\r\n")
        assert b"VERSION" not in said(plain)
    assert control.number("ssl_handshake_errors") == 1
    assert control.number("ssl_proto_errors") == 0


def test_tls_at_a_plain_port(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    port = free_port()
    server = rmemcached_server("-l", f"notls:{HOST}:{port},{HOST}", *options(certificate))
    await_ports(server.port)
    with pytest.raises(ENDED):
        TlsConversation(server, newest, port=port)
    with TlsConversation(server, newest) as peer:
        assert peer.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
    with socket.create_connection((HOST, port), TIMEOUT) as plain:
        plain.sendall(b"get a\r\n")
        assert plain.makefile("rb").readline() == b"VALUE a 0 1\r\n"


@pytest.mark.parametrize("seed", range(20))
def test_garbage_in_a_handshake(server: Server, newest: ssl.SSLContext, control: TlsConversation, seed: int) -> None:
    """A handshake with a wrong byte costs its own connection alone."""
    dice = random.Random(seed)
    with ByRecord(server, newest) as peer:
        hello = bytearray(peer.hello())
        hello[dice.randrange(len(hello))] ^= dice.randrange(1, 256)
        peer.plain.sendall(hello + bytes(20000))
        said(peer.plain)
    assert control.ask(b"get a\r\n") == b"END\r\n"


def test_garbage_in_a_session(server: Server, context: ssl.SSLContext, control: TlsConversation) -> None:
    with ByRecord(server, context).shake() as peer:
        peer.send(peer.records([b"set a 0 0 1\r\nx\r\n"]))
        assert peer.read(8) == b"STORED\r\n"
        record = bytearray(peer.records([b"set b 0 0 1\r\nx\r\n"]))
        good = peer.records([b"set c 0 0 1\r\nx\r\n"])
        record[-1] ^= 1
        peer.send(bytes(record) + good)
        with pytest.raises(ENDED):
            while True:
                assert peer.read(1) == b""
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connection")
    assert control.number("ssl_proto_errors") == 1
    assert control.ask(b"get b c\r\n") == b"END\r\n"


def test_records_before_garbage_are_served(server: Server, newest: ssl.SSLContext, control: TlsConversation) -> None:
    with ByRecord(server, newest).shake() as peer:
        peer.send(peer.records([b"set a 0 0 1\r\nx\r\n"]) + b"\x17\x03\x03\x00\x20" + bytes(32))
        eventually(lambda: control.number("curr_connections") == 1, what="the end of the connection")
    assert control.number("ssl_proto_errors") == 1
    assert control.ask(b"get a\r\n") == b"VALUE a 0 1\r\n"


def test_half_handshakes_have_a_time_limit(
    rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext
) -> None:
    server = rmemcached_server(*options(certificate, "idle_timeout=1"))
    silent = server.connect(TIMEOUT)
    half = ByRecord(server, newest)
    half.plain.sendall(half.hello()[:100])
    idle = TlsConversation(server, newest)
    with silent, half, idle:
        for sock in (silent, half.plain):
            sock.settimeout(TIMEOUT)
            assert sock.recv(100) == b""
        assert idle.read(1) == b""
    with TlsConversation(server, newest) as peer:
        assert peer.number("idle_kicks") == 3
        assert peer.number("ssl_handshake_errors") == 0


def test_renegotiation_is_refused(server: Server, control: TlsConversation) -> None:
    with OpenSsl(server, most=OpenSsl.TLS1_2) as peer:
        assert peer.write(b"set a 0 0 1\r\nx\r\n")
        assert peer.read(8) == b"STORED\r\n"
        assert not peer.renegotiate()
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connection")
    assert control.ask(b"get a\r\n") == b"VALUE a 0 1\r\n"


def test_renewed_keys(server: Server) -> None:
    with OpenSsl(server) as peer:
        for ask in (True, False, True, True):
            assert peer.renew_keys(ask)
            assert peer.write(b"set a 0 0 100000\r\n" + value(100_000) + b"\r\nget a\r\n")
            expected = b"STORED\r\n" + answer("a", value(100_000))
            assert peer.read(len(expected)) == expected


def test_a_storm_of_renewed_keys(server: Server, control: TlsConversation) -> None:
    """Keys renewed again and again without any data end the connection."""
    with OpenSsl(server) as peer:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for _ in range(100_000):
            if not peer.renew_keys(False):
                break
        else:
            pytest.fail("100 000 renewals without data were taken")
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connection")


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("count", [4, 5])
def test_the_limit_of_renewed_keys(
    server: Server, newest: ssl.SSLContext, control: TlsConversation, count: int, at_once: bool, ask: bool
) -> None:
    """Four renewals without data are taken, as often as data comes in between; a fifth ends the connection."""
    with OpenSsl(server) as peer:
        peer.gather()
        # The daemon closes the connection: the next write or read meets the end, sooner or later.
        with suppress(ConnectionError, ssl.SSLEOFError):
            for _ in range(3):
                for _ in range(count):
                    assert peer.renew_keys(ask)
                    if not at_once:
                        peer.leave()
                        control.ask(b"mn\r\n")
                assert peer.write(b"get none\r\n")
                peer.leave()
        assert peer.read(15) == (b"END\r\n" * 3 if count == 4 else b"")
    assert control.number("ssl_proto_errors") == (count == 5)


def test_renewals_at_once_cost_no_time(server: Server, control: TlsConversation) -> None:
    """OpenSSL gets hundreds of renewals in a single read, and stops at the fifth: all took 60 ms and more."""
    peers = [OpenSsl(server) for _ in range(5)]
    for peer in peers:
        peer.gather()
        for _ in range(590):
            assert peer.renew_keys(False)
    before = working(server.pid)
    for peer in peers:
        peer.leave()
    eventually(lambda: control.number("curr_connections") == 1, what="the end of the connections")
    assert working(server.pid) - before < within(0.1)
    for peer in peers:
        peer.__exit__()


def test_renewed_keys_beside_a_full_socket(server: Server) -> None:
    """The daemon's own renewals wait for room in the socket, and no wake-up is lost."""
    size, count = 10_000, 600
    expected = answer("a", value(size))
    with OpenSsl(server, receive_buffer=4096) as peer:
        peer.gather()
        assert peer.write(b"set a 0 0 %d\r\n%s\r\n" % (size, value(size)))
        peer.leave()
        assert peer.read(8) == b"STORED\r\n"
        for _ in range(count):
            assert peer.renew_keys(True)
            assert peer.write(b"get a\r\n")
            peer.leave()
        for _ in range(count):
            assert peer.read(len(expected)) == expected


def test_half_a_renewal_before_a_reply(
    server: Server, authority: Authority, control: TlsConversation, tmp_path: Path
) -> None:
    """OpenSSL sends nothing before the renewal's end: the connection ends, and does not wait for room in its socket."""
    context = client_context(authority.trusted, "1.3")
    context.keylog_filename = str(tmp_path / "keys")
    with TlsConversation(server, client_context(authority.trusted)) as watcher:
        assert watcher.ask(b"watch connevents\r\n") == b"OK\r\n"
        with ByRecord(server, context).shake() as peer:
            peer.send(peer.records([b"mn\r\n"]) + half_renewal(tmp_path / "keys", 1))
            with suppress(*ENDED):
                assert peer.read(1) == b""
        while b"type=conntlserr" not in (line := watcher.line()):
            pass
        assert b"msg=Protocol error" in line
    assert control.number("ssl_proto_errors") == 1


# ---- certificates ----------------------------------------------------------------------------------------------------


def subject(peer: TlsConversation) -> str:
    found: Any = peer.tls.getpeercert()
    return str(dict(pair[0] for pair in found["subject"])["commonName"])


@pytest.fixture
def changeable(tmp_path: Path, certificate: Signed) -> Signed:
    """A certificate in files for the test to change."""
    files = Signed(tmp_path / "changing.pem", tmp_path / "changing.key")
    copy(certificate, files)
    return files


def copy(source: Signed, target: Signed) -> None:
    shutil.copy(source.certificate, target.certificate)
    shutil.copy(source.key, target.key)


def by_command(server: Server, peer: TlsConversation) -> str:
    return peer.ask(b"refresh_certs\r\n").decode()


def by_signal(server: Server, peer: TlsConversation) -> str:
    before = len(server.stderr())
    age = peer.number("time_since_server_cert_refresh")
    server.process.send_signal(signal.SIGHUP)
    eventually(
        lambda: len(server.stderr()) > before or peer.number("time_since_server_cert_refresh") < age,
        what="an answer to SIGHUP",
    )
    return server.stderr()[before:] or "OK\r\n"


@pytest.mark.parametrize("refresh", [by_command, by_signal])
def test_new_certificates(
    rmemcached_server: ServerFactory,
    authority: Authority,
    certificate: Signed,
    changeable: Signed,
    newest: ssl.SSLContext,
    refresh: Callable[[Server, TlsConversation], str],
) -> None:
    server = rmemcached_server(*options(changeable))
    with TlsConversation(server, newest) as old:
        assert subject(old) == "server"
        eventually(lambda: old.number("time_since_server_cert_refresh") > 0, what="a second")
        copy(authority.sign("renewed"), changeable)
        assert refresh(server, old) == "OK\r\n"
        with TlsConversation(server, newest) as new:
            assert subject(new) == "renewed"
        assert old.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        shutil.copy(certificate.key, changeable.key)
        said = refresh(server, old)
        assert "Error loading the key: " in said or "Error validating the certificate" in said, said
        changeable.certificate.write_text("nothing")
        assert f"Error loading the certificate chain: {changeable.certificate} : error:" in refresh(server, old)
        with TlsConversation(server, newest) as new:
            assert subject(new) == "renewed"


def test_refresh_without_tls(rmemcached_server: ServerFactory) -> None:
    with Conversation(rmemcached_server()) as peer:
        assert peer.ask(b"refresh_certs\r\n") == b"Error TLS not enabled\r\n"


@pytest.mark.parametrize("mode", range(4))
def test_client_certificates(
    rmemcached_server: ServerFactory, authority: Authority, certificate: Signed, own: Signed, tmp_path: Path, mode: int
) -> None:
    server = rmemcached_server(*options(certificate, f"ssl_verify_mode={mode}", f"ssl_ca_cert={authority.trusted}"))
    alien = Authority(tmp_path / "alien", "alien").sign("client")

    def admitted(shown: Signed | None) -> bool:
        try:
            with TlsConversation(server, client_context(authority.trusted, own=shown)) as peer:
                return peer.ask(b"version\r\n").startswith(b"VERSION")
        except ENDED:
            return False

    assert admitted(own)
    assert admitted(alien) == (mode == 0)
    assert admitted(None) == (mode < 2)


def test_listeners_of_all_kinds(
    rmemcached_server: ServerFactory, authority: Authority, certificate: Signed, own: Signed
) -> None:
    ports = {kind: free_port() for kind in ("notls", "btls", "mtls")}
    addresses = ",".join(f"{kind}:{HOST}:{port}" for kind, port in ports.items())
    server = rmemcached_server(
        "-l", f"{addresses},{HOST}", *options(certificate, "ssl_verify_mode=2", f"ssl_ca_cert={authority.trusted}")
    )
    await_ports(*ports.values(), server.port)
    without, with_own = client_context(authority.trusted), client_context(authority.trusted, own=own)
    for context, port, good in (
        (without, ports["btls"], True),
        (without, ports["mtls"], False),
        (without, server.port, False),
        (with_own, ports["btls"], True),
        (with_own, ports["mtls"], True),
        (with_own, server.port, True),
    ):
        try:
            with TlsConversation(server, context, port=port) as peer:
                assert peer.ask(b"version\r\n").startswith(b"VERSION") == good
        except ENDED:
            assert not good
    with socket.create_connection((HOST, ports["notls"]), TIMEOUT) as plain:
        plain.sendall(b"version\r\n")
        assert plain.recv(100).startswith(b"VERSION")


@pytest.mark.parametrize("tickets", [False, True])
def test_resumed_sessions(
    rmemcached_server: ServerFactory, authority: Authority, certificate: Signed, tickets: bool
) -> None:
    """A client comes back by the number of its session, or by a ticket, until the certificates are new."""
    server = rmemcached_server(*options(certificate, "ssl_session_cache"))
    context = client_context(authority.trusted, "1.2")
    if not tickets:
        context.options |= ssl.OP_NO_TICKET
    with TlsConversation(server, context) as first:
        before = first.number("ssl_new_sessions")
        with TlsConversation(server, context, session=first.tls.session) as second:
            assert second.tls.session_reused
            assert second.number("ssl_new_sessions") == before == (not tickets)
        assert first.ask(b"refresh_certs\r\n") == b"OK\r\n"
        with TlsConversation(server, context, session=first.tls.session) as third:
            assert not third.tls.session_reused


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("cache", [False, True])
def test_a_session_opens_no_stricter_listener(
    rmemcached_server: ServerFactory,
    authority: Authority,
    certificate: Signed,
    context: ssl.SSLContext,
    cache: bool,
    mode: int,
) -> None:
    """A client without a certificate resumes its session at listeners that ask for none, and is refused by others."""
    ports = {kind: free_port() for kind in ("btls", "mtls")}
    addresses = ",".join(f"{kind}:{HOST}:{port}" for kind, port in ports.items())
    more = [f"ssl_verify_mode={mode}", f"ssl_ca_cert={authority.trusted}", *["ssl_session_cache"] * cache]
    server = rmemcached_server("-l", f"{addresses},{HOST}", *options(certificate, *more))
    await_ports(*ports.values(), server.port)
    strict = {ports["btls"]: False, ports["mtls"]: True, server.port: mode >= 2}
    for first, refuses in strict.items():
        if refuses:
            continue
        with TlsConversation(server, context, port=first) as peer:
            assert peer.ask(b"version\r\n").startswith(b"VERSION")
            session = peer.tls.session
        for second in strict:
            try:
                with TlsConversation(server, context, port=second, session=session) as peer:
                    assert peer.ask(b"version\r\n").startswith(b"VERSION") != strict[second]
                    assert peer.tls.session_reused or first != second
            except ENDED:
                assert strict[second], (first, second)


@pytest.mark.parametrize(("least", "spoken"), [(2, "1.2"), (3, "1.3")])
def test_least_version(
    rmemcached_server: ServerFactory, authority: Authority, certificate: Signed, least: int, spoken: str
) -> None:
    server = rmemcached_server(*options(certificate, f"ssl_min_version={least}"))
    with TlsConversation(server, client_context(authority.trusted, spoken)) as peer:
        assert peer.stats("settings")["ssl_min_version"] == f"tlsv{spoken}"
    if spoken == "1.3":
        with pytest.raises(ssl.SSLError):
            TlsConversation(server, client_context(authority.trusted, "1.2"))


# ---- further commands, many connections ------------------------------------------------------------------------------


def test_dumps_and_watchers(server: Server, newest: ssl.SSLContext, control: TlsConversation) -> None:
    for i in range(5000):
        control.send(b"set key%d 0 0 10 noreply\r\n0123456789\r\n" % i)
    control.ask(b"version\r\n")
    with TlsConversation(server, newest) as watcher:
        assert watcher.ask(b"watch fetchers connevents\r\n") == b"OK\r\n"
        control.ask(b"get none\r\n")
        assert b"type=item_get key=none status=not_found" in watcher.line()
        control.send(b"lru_crawler metadump all\r\n")
        keys = set()
        while (line := control.line()) != b"END\r\n":
            keys |= set(re.findall(rb"^key=(\w+) ", line))
        assert len(keys) == 5000
        assert control.ask(b"version\r\n").startswith(b"VERSION")
        with server.connect() as plain:
            plain.sendall(b"version\r\n" * 3)
            lines = b"".join(watcher.line() for _ in range(3))
        assert re.search(rb"type=conntlserr fd=\d+ msg=error:\w+:SSL routines:", lines), lines


def test_a_watcher_with_a_broken_session(server: Server, newest: ssl.SSLContext, control: TlsConversation) -> None:
    """The thread of the watchers logs the error, its own first entry, and goes on."""
    with ByRecord(server, newest).shake() as watcher:
        watcher.send(watcher.records([b"watch connevents\r\n"]))
        assert watcher.read(4) == b"OK\r\n"
        watcher.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        eventually(lambda: control.number("curr_connections") == 1, what="the end of the watcher")
    with TlsConversation(server, newest) as other:
        assert other.ask(b"watch connevents\r\n") == b"OK\r\n"
        with server.connect() as plain:
            plain.sendall(b"version\r\n" * 3)
            assert b"conntlserr" in b"".join(other.line() for _ in range(3))


def test_a_thousand_connections(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    """Each is served, and an idle session costs 20 KB at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 1200, "the test needs 1200 descriptors: ulimit -Hn"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    server = rmemcached_server("-c", "1200", *options(certificate))
    with ExitStack() as stack:
        peers = [stack.enter_context(TlsConversation(server, newest)) for _ in range(100)]
        before = resident(server.pid)
        peers += [stack.enter_context(TlsConversation(server, newest)) for _ in range(900)]
        for i, peer in enumerate(peers):
            peer.send(b"set k%d 0 0 5\r\n%05d\r\n" % (i, i))
        for peer in peers:
            assert peer.line() == b"STORED\r\n"
        assert (resident(server.pid) - before) / 900 < 20 * KB
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_beyond_the_limit_of_connections(
    rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext
) -> None:
    server = rmemcached_server("-c", room_for(2), *options(certificate))
    with TlsConversation(server, newest) as peer:
        eventually(lambda: peer.number("curr_connections") == 1, what="one connection")
        with TlsConversation(server, newest) as second:
            assert second.ask(b"version\r\n").startswith(b"VERSION")
            with pytest.raises(OSError):
                TlsConversation(server, newest)
            assert peer.number("rejected_connections") == 1


def test_shutdown(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    server = rmemcached_server("-A", *options(certificate))
    waiting = server.connect()
    with TlsConversation(server, newest) as idle, TlsConversation(server, newest) as peer, waiting:
        server.ended_by_us = True
        peer.send(b"shutdown\r\n")
        assert peer.read(1) == idle.read(1) == b""
        server.process.wait(TIMEOUT)


def test_kernel_tls(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    """With the kernel's TLS or, where the kernel has none, without it."""
    server = rmemcached_server("-I", "8m", *options(certificate, "ssl_kernel_tls"))
    with TlsConversation(server, newest, receive_buffer=4096) as peer:
        assert peer.ask(b"set a 0 0 5000000\r\n" + value(5_000_000) + b"\r\n") == b"STORED\r\n"
        peer.send(b"get a\r\n" * 3)
        expected = answer("a", value(5_000_000)) * 3
        assert peer.read(len(expected)) == expected
    with server.connect() as plain:
        plain.sendall(b"version\r\n")
        assert b"VERSION" not in said(plain)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-Z", "-Z needs the server's certificate and key: -o ssl_chain_cert=<file>,ssl_key=<file>"),
        ("-Z -p 0 -U 11211", "ERROR: You cannot enable SSL without a TCP port."),
        ("-Z -o ssl_chain_cert=/none.pem", "Error loading the certificate chain: /none.pem : error:80000002"),
        ("-Z -o ssl_chain_cert={good},ssl_key={other}", "Error"),
        ("-Z -o ssl_chain_cert={good},ssl_key={key},ssl_ca_cert=/none.pem", "Error loading the CA certificate: /none"),
        ("-Z -o ssl_chain_cert={good},ssl_key={key},ssl_ciphers=none", "Error setting the provided cipher(s): none"),
        ("-o ssl_verify_mode=4", "Invalid ssl_verify_mode. Use help to see valid options."),
        ("-o ssl_verify_mode=x", "could not parse argument to ssl_verify_mode"),
        ("-o ssl_min_version=4", "Invalid ssl_min_version. Use help to see valid options."),
        ("-o ssl_wbuf_size=0", "ssl_wbuf_size must be at least 1 (kilobyte)"),
        ("-o ssl_chain_cert", "Missing ssl_chain_cert argument"),
        ("-l notls:127.0.0.1", "'notls' option is valid only when SSL is enabled"),
        ("-Z -o ssl_chain_cert={good},rdma_cm_port=4000", "rdma_cm_port does not go with -Z: RDMA is not encrypted"),
    ],
)
def test_wrong_options(tmp_path: Path, certificate: Signed, words: str, told: str) -> None:
    other = make(tmp_path, "other", kind="rsa2048")
    line = words.format(good=certificate.certificate, key=certificate.key, other=other.key).split()
    done = run_program([sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-p", str(free_port()), *line], TIMEOUT)
    assert done.returncode != 0
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == 1


def test_settings(server: Server, certificate: Signed, control: TlsConversation) -> None:
    found = {name: text for name, text in control.stats("settings").items() if name.startswith("ssl_")}
    assert found == {
        "ssl_enabled": "yes",
        "ssl_chain_cert": str(certificate.certificate),
        "ssl_key": str(certificate.key),
        "ssl_verify_mode": "0",
        "ssl_keyformat": "1",
        "ssl_ciphers": "NULL",
        "ssl_ca_cert": "NULL",
        "ssl_wbuf_size": "16384",
        "ssl_session_cache": "no",
        "ssl_kernel_tls": "no",
        "ssl_min_version": "tlsv1.2",
    }


def test_statistics(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    """The lines of TLS have memcached's place, and are metrics of the exporter."""
    wanted = ["ssl_new_sessions", "ssl_handshake_errors", "ssl_proto_errors", "time_since_server_cert_refresh"]
    with TlsConversation(rmemcached_server(*options(certificate, "ssl_session_cache")), newest) as peer:
        names = list(peer.stats())
    first = names.index("ssl_new_sessions")
    assert names[first - 1] == "round_robin_fallback" and names[first + 4] == "bytes"
    assert names[first : first + 4] == wanted
    assert set(wanted) <= {name for metric in metrics.METRICS for name in metric.sources}


# ---- RDMA ------------------------------------------------------------------------------------------------------------

EXCHANGE = "rdma version=2 transport={} qpn=17 psn=1 credits=16 msgsize=8192 lanebytes=65536 host=none\r\n"


def test_queue_pairs_beside_tls(rmemcached_server: ServerFactory, certificate: Signed, newest: ssl.SSLContext) -> None:
    """Over the network a queue pair is refused unless the server's options allow it; a queue pair within the host goes
    over shared memory."""
    refusal = b"SERVER_ERROR rdma: soft_iw is not encrypted, and this connection is"
    with TlsConversation(rmemcached_server(*options(certificate)), newest) as peer:
        assert peer.ask(EXCHANGE.format("soft_iw").encode()).startswith(refusal)
        assert b"needs a client on the same host" in peer.ask(EXCHANGE.format("soft_shm").encode())
        assert peer.ask(b"version\r\n").startswith(b"VERSION")
    with TlsConversation(rmemcached_server(*options(certificate, "rdma_cleartext")), newest) as peer:
        assert peer.ask(EXCHANGE.format("soft_iw").encode()).startswith(b"RDMA version=2 transport=soft_iw")


class TlsPeer(Peer):
    """A client of RDMA whose lifeline has TLS."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self.tls = context
        super().__init__(server)

    def connect(self, credits: int, tokens: Sequence[str], attach: bool, ready: bool) -> None:
        self.lifeline = TlsConversation(self.server, self.tls)
        self.exchange(credits, tokens)
        self.credits = int(self.offer["credits"])
        self.lane_bytes = int(self.offer["lanebytes"])
        self.attach()
        self.send(READY)
        self.wait(lambda: self.ready)


@pytest.mark.parametrize("transport", ["soft_shm", "soft_iw"])
def test_a_lifeline_with_tls(
    rmemcached_server: ServerFactory,
    certificate: Signed,
    newest: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
) -> None:
    """The stream of soft_iw comes to the port with TLS in the clear; nothing but a stream may."""
    monkeypatch.setenv(VARIABLE, transport)
    more = ["rdma_cleartext"] * (transport == "soft_iw")
    server = rmemcached_server(*options(certificate, *more))
    with TlsPeer(server, newest) as peer, TlsConversation(server, newest) as control:
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
        for beginning in (b"MPA ID Req Frame" + bytes(100), b"MPA\r\n", b"mn\r\n"):
            with server.connect(TIMEOUT) as plain:
                plain.sendall(beginning)
                plain.shutdown(socket.SHUT_WR)
                assert b"MN" not in said(plain)
        assert control.number("rdma_queue_pairs", "rdma") == 1
        assert peer.ask(b"mn\r\n") == b"MN\r\n"
    with TlsConversation(server, newest) as control:
        eventually(lambda: control.number("rdma_queue_pairs", "rdma") == 0, what="the end of the queue pair")

"""Authentication by SASL (-S): libsasl2's users, memcached's file of passwords, slow mechanisms."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import bmemcached
import pytest
from daemon_commands import refused
from daemon_tools import Conversation, room_for, threads
from lane_peer import Lanes
from polling import eventually
from sasl_tools import (
    AUTH,
    CONTINUE,
    DENIED,
    GET,
    GETQ,
    GOOD,
    INVALID,
    LIST_MECHS,
    MISS,
    NOOP,
    OK,
    QUIT,
    REALM,
    SET,
    SETQ,
    STAT,
    STEP,
    UNKNOWN,
    USERS,
    VERSION,
    WRONG,
    Binary,
    Folder,
    SaslAuthd,
    cram,
    packet,
    plain,
)
from servers import Server
from suspended import threads_named
from transport import rdma, rounds

ServerFactory = Callable[..., Server]
FIRST = b"CLIENT_ERROR unauthenticated: SASL comes first, in the binary protocol (-S)\r\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


@pytest.fixture
def daemon(rmemcached_server: ServerFactory, folder: Folder) -> Server:
    """A daemon with one worker and USERS in a database of libsasl2."""
    folder.users_in_sasldb()
    return rmemcached_server("-S", "-t", "1")


@pytest.fixture
def slow(folder: Folder) -> Iterator[SaslAuthd]:
    found = SaslAuthd(folder)
    yield found
    found.stop()


# ---- users -----------------------------------------------------------------------------------------------------------


def test_users_of_libsasl2(daemon: Server) -> None:
    with Binary(daemon) as talk:
        assert talk.ask(packet(VERSION))[0] == OK
        assert sorted(talk.ask(packet(LIST_MECHS))[1].split()) == [b"CRAM-MD5", b"PLAIN"]
        assert talk.ask(WRONG) == (DENIED, b"Auth failure.")
        assert talk.ask(plain(f"eve@{REALM}", "secret")) == (DENIED, b"Auth failure.")
        # Without a realm, libsasl2 looks for the user in the host's realm.
        assert talk.ask(plain("ann", "secret")) == (DENIED, b"Auth failure.")
        assert talk.ask(GOOD) == (OK, b"Authenticated")
        assert talk.ask(packet(GET, b"key")) == (MISS, b"Not found")
        assert talk.stats()["auth_cmds"] == "4"
        assert talk.stats()["auth_errors"] == "3"
        assert talk.stats("settings")["auth_enabled_sasl"] == "yes"
        assert talk.stats("settings")["auth_enabled_ascii"] == "no"
    with Binary(daemon) as talk:
        assert talk.ask(plain(f"bob@{REALM}", "pass word")) == (OK, b"Authenticated")


def test_the_reason_for_operators(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """-v names the user with the realm, for whom there is no password, and shows no password."""
    folder.users_in_sasldb()
    server = rmemcached_server("-S", "-vv")
    with Binary(server) as talk:
        assert talk.ask(plain("ann", "secret")) == (DENIED, b"Auth failure.")
    host = os.uname().nodename
    eventually(lambda: "PLAIN refuses a client" in server.stderr())
    assert f"ann@{host}" in server.stderr() or "user not found" in server.stderr()
    assert "secret" not in server.stderr()


def test_a_client_writes_no_lines_of_its_own(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """Bytes of a mechanism's name that are no letters are escaped."""
    folder.users_in_sasldb()
    server = rmemcached_server("-S", "-v")
    with Binary(server) as talk:
        talk.ask(packet(AUTH, b"X\x1b[31m\nforged\xff", b"z"))
    eventually(lambda: r"SASL: X\x1b[31m\x0aforged\xff refuses a client" in server.stderr())
    assert "\x1b" not in server.stderr() and "\nforged" not in server.stderr()


def test_a_file_of_passwords(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """MEMCACHED_SASL_PWDB needs no memcached.conf, and is read again each time."""
    file = folder.users_in_file()
    server = rmemcached_server("-S")
    with Binary(server) as talk:
        assert talk.ask(packet(LIST_MECHS)) == (OK, b"PLAIN")
        for user, password in (("ann", "secre"), ("ann", "secrets"), ("an", "secret"), ("ann:secret", "x")):
            assert talk.ask(plain(user, password))[0] == DENIED
        assert talk.ask(plain("bob", "pass word"))[0] == OK
    file.write_text("ann:secret\r\nbob:pass word:and more\neve:" + "x" * 1000)
    for user, password in (("ann", "secret"), ("bob", "pass word"), ("eve", "x" * 1000)):
        with Binary(server) as talk:
            assert talk.ask(plain(user, password))[0] == OK
    file.unlink()
    with Binary(server) as talk:
        assert talk.ask(plain("ann", "secret"))[0] == DENIED


def test_a_mechanism_with_a_step(daemon: Server) -> None:
    with Binary(daemon) as talk:
        for password, expected in (("wrong", DENIED), ("secret", OK)):
            status, challenge = talk.ask(packet(AUTH, b"CRAM-MD5"))
            assert status == CONTINUE and challenge.startswith(b"<")
            assert talk.ask(cram(challenge, f"ann@{REALM}", password))[0] == expected
        assert talk.ask(packet(GET, b"key"))[0] == MISS
        # The challenges do not count.
        assert (talk.stats()["auth_cmds"], talk.stats()["auth_errors"]) == ("2", "1")


def test_a_step_without_a_beginning(daemon: Server) -> None:
    with Binary(daemon) as talk:
        assert talk.ask(packet(STEP, b"PLAIN", f"\0ann@{REALM}\0secret".encode()))[0] == DENIED
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(packet(STEP, b"PLAIN", b"x"))[0] == DENIED
        assert talk.ask(packet(GET, b"key"))[0] == DENIED


def test_a_second_authentication(daemon: Server) -> None:
    """An authentication replaces the authentication before. memcached refuses a second."""
    with Binary(daemon) as talk:
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(packet(GET, b"key"))[0] == MISS
        assert talk.ask(WRONG)[0] == DENIED
        assert talk.ask(packet(GET, b"key"))[0] == DENIED
        assert talk.ended()


CONVERSATIONS: dict[str, list[bytes]] = {
    "get": [packet(GET, b"key")],
    "quiet get": [packet(GETQ, b"key"), packet(NOOP), GOOD],
    "set": [packet(SET, b"key", b"value", bytes(8)), packet(NOOP)],
    "quiet set": [packet(SETQ, b"key", b"value", bytes(8)), packet(NOOP)],
    "quit": [packet(QUIT)],
    "stat": [packet(STAT)],
    "unknown command": [packet(0x77), packet(NOOP)],
    "behind an authentication": [GOOD, packet(GETQ, b"key", opaque=1), packet(GET, b"key", opaque=2), packet(QUIT)],
    "behind a refused one": [WRONG, packet(GETQ, b"key"), packet(NOOP)],
    "wrong, then right": [WRONG, GOOD, packet(NOOP), packet(QUIT)],
    "mechanisms in between": [GOOD, packet(LIST_MECHS), packet(NOOP)],
    "unknown mechanism": [packet(AUTH, b"QUARK", b"x"), packet(NOOP)],
    "long mechanism": [packet(AUTH, b"X" * 40, b"abc"), packet(NOOP)],
    "huge mechanism": [packet(AUTH, b"X" * 300, b"abc"), packet(NOOP)],
    "no mechanism": [packet(AUTH, b"", b"abc"), packet(NOOP)],
    "a mechanism with NUL": [packet(AUTH, b"PLAIN\0x", f"\0ann@{REALM}\0secret".encode()), packet(NOOP), packet(QUIT)],
    "extras": [packet(AUTH, b"PLAIN", b"v", b"abcd"), packet(NOOP)],
    "key for mechanisms": [packet(LIST_MECHS, b"key"), packet(NOOP)],
    "empty body": [packet(AUTH, b"PLAIN"), packet(NOOP)],
    "garbage": [packet(AUTH, b"PLAIN", bytes(range(256)) * 4), packet(NOOP)],
    "no NULs": [packet(AUTH, b"PLAIN", b"ann secret"), packet(NOOP)],
    "NULs only": [packet(AUTH, b"PLAIN", bytes(64)), packet(NOOP)],
    "large body": [packet(AUTH, b"PLAIN", b"a" * 60_000), packet(NOOP)],
    "huge body": [packet(AUTH, b"PLAIN", b"a" * 2_000_000), packet(NOOP)],
    "empty step": [packet(AUTH, b"PLAIN"), packet(STEP, b"PLAIN"), packet(NOOP)],
    "step of a half": [packet(AUTH, b"PLAIN"), packet(STEP, b"PLAIN", f"\0ann@{REALM}\0secret".encode()), packet(QUIT)],
    "another mechanism": [packet(AUTH, b"CRAM-MD5")[:2] + packet(AUTH, b"PLAIN")[2:], GOOD, packet(QUIT)],
    "key beyond the body": [packet(AUTH, b"PLAIN")[:8] + bytes(4) + packet(AUTH, b"PLAIN")[12:], packet(NOOP)],
}


def test_as_memcached(memcached_server: ServerFactory, daemon: Server) -> None:
    """The same requests, at once and byte by byte, have the same replies as with memcached -S."""
    theirs = memcached_server("-S", "-t", "1")
    for name, packets in CONVERSATIONS.items():
        found: list[list[tuple[int, int, bytes]]] = []
        for server in (theirs, daemon, daemon):
            with Binary(server) as talk:
                if len(found) == 2 and sum(map(len, packets)) < 2000:
                    talk.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    try:
                        for octet in b"".join(packets):
                            talk.send(bytes([octet]))
                    except (BrokenPipeError, ConnectionResetError):
                        # The daemon has ended the connection before the last packet.
                        found.append(found[0])
                        continue
                else:
                    talk.send(*packets)
                found.append(talk.all_replies())
        assert found[1] == found[0], name
        assert found[2] == found[0], name


def damaged(chance: random.Random, octets: bytes) -> bytes:
    """The bytes with a few changed, taken away, or put in."""
    found = bytearray(octets)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found))
        what = chance.randrange(3)
        found[at : at + (what != 2)] = b"" if what == 1 and len(found) > 1 else chance.randbytes(1)
    return bytes(found)


@pytest.mark.parametrize("seed", range(rounds(4)))
def test_damaged_packets(daemon: Server, seed: int) -> None:
    """Nobody gets in by damaged packets with a wrong password, and others are served meanwhile."""
    chance = random.Random(seed)
    whole = [WRONG, packet(AUTH, b"CRAM-MD5"), packet(STEP, b"CRAM-MD5", b"ann 0123"), packet(LIST_MECHS), packet(NOOP)]
    secret = packet(SET, b"secret", b"value", bytes(8))
    with Binary(daemon) as bystander:
        assert bystander.ask(GOOD)[0] == OK
        for _ in range(50):
            with Binary(daemon) as talk:
                sent = [damaged(chance, b"".join(chance.choices(whole, k=3))), secret, packet(QUIT)]
                with suppress(ConnectionError):
                    talk.send(*sent)
                    talk.sock.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while talk.sock.recv(65536):
                        pass
        assert bystander.ask(packet(GET, b"secret"))[0] == MISS


# ---- text, queue pairs -----------------------------------------------------------------------------------------------


def test_text_comes_after_authentication(daemon: Server) -> None:
    for line in (b"version\r\n", b"get key\r\n", b"rdma version=2 transport=soft_iw qpn=1\r\n", b"mn\r\n", b"\r\n"):
        with Conversation(daemon) as talk:
            assert talk.ask(line) == FIRST
            assert talk.ended()
    with Binary(daemon) as talk:
        assert talk.ask(GOOD)[0] == OK
        talk.send(b"set key 0 0 5\r\nvalue\r\nmg key v\r\n")
        assert [talk.file.readline() for _ in range(3)] == [b"STORED\r\n", b"VA 5\r\n", b"value\r\n"]
    with Binary(daemon) as talk:
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(packet(GET, b"key")) == (OK, bytes(4) + b"value")
        # The protocol is chosen now.
        talk.send(b"version\r\n" * 3)
        assert talk.ended()


def test_binary_only(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """With -B binary there is no text after authentication, either."""
    folder.users_in_sasldb()
    server = rmemcached_server("-S", "-B", "binary")
    with Binary(server) as talk:
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(packet(NOOP))[0] == OK
        talk.send(b"version\r\n" * 3)
        assert talk.ended()


def test_beside_the_file_of_y(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """With -S and -Y the first byte says how a connection authenticates itself."""
    folder.users_in_sasldb()
    users = folder.path / "users"
    users.write_text("eve:other\n")
    server = rmemcached_server("-S", "-Y", str(users))
    with Conversation(server) as talk:
        assert talk.ask(b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        assert talk.ask(b"set auth 0 0 9\r\neve other\r\n") == b"STORED\r\n"
        assert talk.ask(b"mn\r\n") == b"MN\r\n"
        assert talk.stats("settings")["auth_enabled_ascii"] == str(users)
    with Binary(server) as talk:
        assert talk.ask(plain("eve", "other"))[0] == DENIED
        assert talk.ask(GOOD)[0] == OK
        assert talk.ask(packet(NOOP))[0] == OK


class Authenticated(Lanes):
    """A peer whose lifeline has authenticated itself."""

    def exchange(self, credits: int, tokens: object) -> None:
        self.lifeline.send(GOOD)
        assert self.lifeline.read(24)[6:8] == bytes(2)
        assert self.lifeline.read(13) == b"Authenticated"
        super().exchange(credits, tokens)  # type: ignore[arg-type]


@pytest.mark.usefixtures("rdma_transport")
def test_each_lane_authenticates_itself(daemon: Server) -> None:
    """Lane 0 is authenticated with its lifeline. A refused lane leaves the queue pair alone."""
    with Authenticated(daemon) as peer:
        assert rdma() != "rdma_cm"
        peer.open(0, 1, 2, 3)
        assert peer.talk(0, b"get key\r\n") == b"END\r\n"
        assert peer.talk(1, b"get key\r\n") == FIRST
        assert peer.talk(2, packet(GET, b"key"), b"failure.")[6:8] == bytes([0, DENIED])
        assert peer.talk(3, WRONG, b"failure.")[6:8] == bytes([0, DENIED])
        assert peer.talk(3, GOOD, b"Authenticated")[6:8] == bytes(2)
        assert peer.talk(3, b"mn\r\n") == b"MN\r\n"
        peer.wait(lambda: {1, 2} <= peer.closed.keys())
        peer.open(4)
        assert peer.talk(4, GOOD + packet(NOOP) + packet(QUIT), packet(QUIT)[2:])[24:37] == b"Authenticated"


@pytest.mark.usefixtures("rdma_transport")
def test_a_lane_that_waits(rmemcached_server: ServerFactory, slow: SaslAuthd) -> None:
    """While a mechanism waits, a lane's further commands wait, and other lanes go on. Lanes and whole clients may end
    meanwhile."""
    server = rmemcached_server("-S", "-t", "1")
    good = plain("ann", "secret")
    slow.proceed.release()

    class Known(Lanes):
        def exchange(self, credits: int, tokens: object) -> None:
            self.lifeline.send(good)
            assert self.lifeline.read(37).endswith(b"Authenticated")
            super().exchange(credits, tokens)  # type: ignore[arg-type]

    with Known(server) as peer:
        slow.wait()
        peer.open(0, 1, 2)
        peer.put(1, good + b"mn\r\n")
        peer.put(2, good)
        slow.wait()
        slow.wait()
        peer.put(1, b"get key\r\n")
        for _ in range(3):
            assert peer.talk(0, b"mn\r\n") == b"MN\r\n"
        assert not peer.replies[1]
        slow.proceed.release()
        slow.proceed.release()
        peer.wait(lambda: peer.replies[1].endswith(b"AuthenticatedMN\r\nEND\r\n"))
        peer.open(3)
        peer.put(3, good)
        slow.wait()
    # The client is gone, and one lane's authentication is still under way.
    slow.proceed.release()
    slow.proceed.release()
    with Binary(server) as talk:
        assert talk.ask(good)[0] == OK
        slow.wait()
        eventually(lambda: talk.stats("rdma")["rdma_queue_pairs"] == "0")
        eventually(lambda: talk.stats()["curr_connections"] == "1")


# ---- slow mechanisms -------------------------------------------------------------------------------------------------


def test_a_mechanism_that_waits(rmemcached_server: ServerFactory, slow: SaslAuthd) -> None:
    """A slow mechanism delays its own connection alone, whose commands keep their order."""
    server = rmemcached_server("-S", "-t", "1")
    with Binary(server) as first, Binary(server) as second, Binary(server) as other:
        first.send(packet(VERSION), plain("ann", "secret"), packet(GETQ, b"key"), packet(GET, b"key"), packet(VERSION))
        second.send(plain("ann", "wrong"), packet(VERSION))
        assert first.reply()[0] == VERSION
        slow.wait()
        slow.wait()
        for _ in range(100):
            assert other.ask(packet(VERSION))[0] == OK
        slow.proceed.release()
        slow.proceed.release()
        assert [first.reply()[:2] for _ in range(3)] == [(AUTH, OK), (GET, MISS), (VERSION, OK)]
        assert [second.reply()[:2] for _ in range(2)] == [(AUTH, DENIED), (VERSION, OK)]


def test_more_waiting_than_side_threads(rmemcached_server: ServerFactory, slow: SaslAuthd) -> None:
    server = rmemcached_server("-S", "-t", "1")
    with ExitStack() as stack:
        talks = [stack.enter_context(Binary(server)) for _ in range(40)]
        for talk in talks:
            talk.send(plain("ann", "secret"))
        for _ in range(16):
            slow.wait()
        assert threads(server.pid) < 40
        for _ in talks:
            slow.proceed.release()
        assert [talk.reply()[1] for talk in talks] == [OK] * 40


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_peer_that_ends_meanwhile(rmemcached_server: ServerFactory, slow: SaslAuthd, how: str) -> None:
    server = rmemcached_server("-S", "-t", "1")
    talk = Binary(server)
    talk.send(plain("ann", "secret"), packet(GET, b"key") * 1000)
    slow.wait()
    if how == "half":
        talk.sock.shutdown(socket.SHUT_WR)
        slow.proceed.release()
        assert len(talk.all_replies()) == 1001
    elif how == "reset":
        talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    talk.close()
    slow.proceed.release()
    slow.proceed.release()
    with Binary(server) as control:
        assert control.ask(plain("bob", "pass word"))[0] == OK
        eventually(lambda: control.stats()["curr_connections"] == "1")


def test_a_peer_that_waits_too_long(rmemcached_server: ServerFactory, slow: SaslAuthd) -> None:
    """-o idle_timeout ends a connection whose mechanism takes longer."""
    server = rmemcached_server("-S", "-t", "1", "-o", "idle_timeout=1")
    with Binary(server) as talk:
        talk.send(plain("ann", "secret"))
        slow.wait()
        assert talk.ended()
    slow.proceed.release()
    slow.proceed.release()
    with Binary(server) as talk:
        assert talk.ask(plain("ann", "secret"))[0] == OK
        assert talk.stats()["idle_kicks"] == "1"


def test_the_daemon_ends_meanwhile(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """A FIFO in place of the file of passwords: a mechanism without end does not hold up the daemon's end."""
    pipe = folder.path / "pipe"
    os.mkfifo(pipe)
    folder.patch.setenv("MEMCACHED_SASL_PWDB", str(pipe))
    server = rmemcached_server("-S", "-t", "1")
    with Binary(server) as waiting, Binary(server) as gone, Binary(server) as other:
        waiting.send(plain("ann", "secret"))
        gone.send(plain("ann", "secret"))
        # A thread that finds a second request asks for one more thread, even if the worker has already done so.
        eventually(lambda: len(threads_named(server.pid, "mc-sasl")) >= 2)
        gone.close()
        assert other.ask(packet(VERSION))[0] == OK
        server.ended_by_us = True
        assert server.stop(signal.SIGTERM) == 0
        assert waiting.ended()


def test_many_connections(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """Many connections authenticate themselves at once; many more only begin, and leave nothing behind."""
    folder.users_in_sasldb()
    count = rounds(1000)
    server = rmemcached_server("-S", "-c", room_for(count + 10))
    with ExitStack() as stack:
        talks = [stack.enter_context(Binary(server, 60)) for _ in range(count)]
        for index, talk in enumerate(talks):
            talk.send([GOOD, WRONG, packet(AUTH, b"CRAM-MD5")][index % 3])
        found = [talk.reply()[1] for talk in talks]
        assert found == [[OK, DENIED, CONTINUE][index % 3] for index in range(count)]
        assert all(talk.ask(packet(GET, b"key"))[0] == MISS for talk in talks[::3])
    with Binary(server) as control:
        assert control.ask(GOOD)[0] == OK
        eventually(lambda: control.stats()["curr_connections"] == "1")


def test_threads_that_hammer(daemon: Server) -> None:
    failed: list[object] = []

    def hammer(seed: int) -> None:
        for turn in range(rounds(60)):
            with Binary(daemon) as talk:
                wanted = [GOOD, WRONG, packet(AUTH, b"CRAM-MD5")][(seed + turn) % 3]
                talk.send(wanted, packet(VERSION))
                if turn % 5:
                    found = [talk.reply()[1], talk.reply()[1]]
                    if found != [[OK, DENIED, CONTINUE][(seed + turn) % 3], OK]:
                        failed.append(found)

    running = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert not failed


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_what_is_missing(folder: Folder) -> None:
    """The error lines name the file looked for, and the option that may have been meant."""
    missing = folder.path / "memcached.conf"

    def check(*words: str) -> None:
        status, message = refused("-S", "-p", "-1", "-l", "127.0.0.1", "-o", "rdma_direct=off")
        assert status != 0
        assert len(message.splitlines()) == 1, message
        for word in (*words, "-Y <file>"):
            assert word in message, message

    check(str(missing), f"SASL_CONF_PATH={folder.path}")
    folder.patch.delenv("SASL_CONF_PATH")
    if not any(Path(path).exists() for path in ("/etc/sasl/memcached.conf", "/etc/sasl2/memcached.conf")):
        check("/etc/sasl/memcached.conf", "/etc/sasl2/memcached.conf", "SASL_CONF_PATH is not set")
    folder.patch.setenv("MEMCACHED_SASL_PWDB", str(folder.path / "nothing"))
    check(f"MEMCACHED_SASL_PWDB={folder.path / 'nothing'} cannot be read")
    folder.patch.delenv("MEMCACHED_SASL_PWDB")
    folder.patch.setenv("SASL_CONF_PATH", str(folder.path))
    folder.configure("mech_list: quark")
    check("no mechanism is available", "mech_list", str(missing), "libsasl2-modules")


def test_a_path_of_the_file_itself(rmemcached_server: ServerFactory, folder: Folder) -> None:
    folder.users_in_sasldb()
    folder.patch.setenv("SASL_CONF_PATH", str(folder.path / "memcached.conf"))
    with Binary(rmemcached_server("-S")) as talk:
        assert talk.ask(GOOD)[0] == OK


def test_a_mechanism_for_everybody(rmemcached_server: ServerFactory, folder: Folder) -> None:
    """The daemon warns of a configuration for everybody."""
    folder.configure("mech_list: plain anonymous")
    server = rmemcached_server("-S")
    eventually(lambda: "ANONYMOUS lets everybody in" in server.stderr())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-B", "ascii"], "ASCII protocol while using SASL"),
        (["-B", "auto"], "ASCII protocol while using SASL"),
        (["-U", "0", "-U", "11999"], "UDP while using binary SASL"),
        (["-l", "proto[ascii]:127.0.0.1"], "ascii protocol when SASL is enabled"),
    ],
)
def test_what_does_not_go_together(folder: Folder, flags: list[str], words: str) -> None:
    folder.users_in_sasldb()
    status, message = refused("-S", "-p", "-1", *flags)
    assert status != 0
    assert words in message


def test_without_libsasl2(folder: Folder) -> None:
    """A process whose loader finds an empty libsasl2."""
    folder.users_in_sasldb()
    library = folder.path / "libsasl2.so.2"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(library)], check=True, timeout=60)
    folder.patch.setenv("LD_LIBRARY_PATH", str(folder.path))
    status, message = refused("-S", "-p", "-1", "-l", "127.0.0.1", "-o", "rdma_direct=off")
    assert status != 0
    assert re.fullmatch(r".*no usable libsasl2\.so\.2 is installed .*-Y <file>\)\n", message)


def test_direct_reads_are_off(daemon: Server) -> None:
    with Binary(daemon) as talk:
        assert talk.ask(GOOD)[0] == OK
        assert talk.stats("rdma")["rdma_direct_off"] == "-S"


def test_without_the_option(rmemcached_server: ServerFactory) -> None:
    with Binary(rmemcached_server()) as talk:
        for command in (packet(LIST_MECHS), GOOD, packet(STEP, b"PLAIN", b"x")):
            assert talk.ask(command)[0] == UNKNOWN
        assert talk.ask(packet(AUTH, b""))[0] == INVALID


# ---- strangers' clients ----------------------------------------------------------------------------------------------


def test_bmemcached(daemon: Server) -> None:
    client = bmemcached.Client((daemon.place,), f"ann@{REALM}", USERS["ann"])
    assert client.set("key", "value")
    assert client.get("key") == "value"
    assert client.set_multi({"a": "1", "b": "2"}) == []
    assert client.get_multi(["a", "b", "c"]) == {"a": "1", "b": "2"}
    assert client.incr("n", 5) == 0
    client.disconnect_all()
    stranger = bmemcached.Client((daemon.place,), f"ann@{REALM}", "wrong")
    with pytest.raises(bmemcached.exceptions.MemcachedException, match="Auth failure"):
        stranger.get("key")


PYLIBMC = """
import sys, pylibmc
place, user, *passwords = sys.argv[1:]
for password in passwords:
    client = pylibmc.Client([place], binary=True, username=user, password=password)
    try:
        print(client.set("key", password), client.get("key"))
    except pylibmc.Error as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pylibmc has no wheels for this Python")
def test_pylibmc(daemon: Server) -> None:
    # pylibmc's wheel has a libsasl2 of its own, without modules: the environment names the system's.
    modules = next(Path("/usr/lib").glob("*/sasl2"))
    done = subprocess.run(
        [sys.executable, "-c", PYLIBMC, daemon.place, f"ann@{REALM}", "secret", "wrong"],
        env={**os.environ, "SASL_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "True secret"
    assert "True" not in second and "secret" not in second

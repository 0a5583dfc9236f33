"""Users for SASL, packets of the binary protocol, and a stand-in for saslauthd."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from polling import TIMEOUT
from servers import Server

GET, SET, QUIT, GETQ, NOOP, VERSION, STAT, SETQ, LIST_MECHS, AUTH, STEP = 0, 1, 7, 9, 10, 11, 16, 17, 0x20, 0x21, 0x22
OK, MISS, INVALID, DENIED, CONTINUE, UNKNOWN, NO_MEMORY = 0, 1, 4, 0x20, 0x21, 0x81, 0x82
REALM = "test.realm"
USERS = {"ann": "secret", "bob": "pass word"}
SASLPASSWD = shutil.which("saslpasswd2", path=f"{os.environ['PATH']}:/usr/sbin")


def packet(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", opaque: int = 0) -> bytes:
    length = len(extras) + len(key) + len(value)
    header = struct.pack("!BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, length, opaque, 0)
    return header + extras + key + value


def plain(user: str, password: str) -> bytes:
    """AUTH by the mechanism PLAIN."""
    return packet(AUTH, b"PLAIN", f"\0{user}\0{password}".encode())


GOOD = plain(f"ann@{REALM}", "secret")
WRONG = plain(f"ann@{REALM}", "wrong")


def cram(challenge: bytes, user: str, password: str) -> bytes:
    """The answer to a challenge of CRAM-MD5, as STEP."""
    digest = hmac.new(password.encode(), challenge, hashlib.md5).hexdigest()
    return packet(STEP, b"CRAM-MD5", f"{user} {digest}".encode())


class Binary:
    """A binary connection: packets out, (opcode, status, body) in."""

    def __init__(self, server: Server, timeout: float = TIMEOUT) -> None:
        self.sock = server.connect(timeout)
        self.file = self.sock.makefile("rb")

    def send(self, *packets: bytes) -> None:
        self.sock.sendall(b"".join(packets))

    def next(self) -> tuple[int, int, bytes] | None:
        """The next reply; None: the daemon has closed the connection."""
        try:
            header = self.file.read(24)
        except ConnectionResetError:
            return None
        if not header:
            return None
        magic, opcode, _, _, _, status, length = struct.unpack("!BBHBBHI", header[:12])
        assert magic == 0x81, header
        return opcode, status, self.file.read(length)

    def reply(self) -> tuple[int, int, bytes]:
        found = self.next()
        assert found is not None, "the daemon has closed the connection"
        return found

    def ended(self) -> bool:
        return self.next() is None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """(status, body)"""
        self.send(request)
        return self.reply()[1:]

    def all_replies(self) -> list[tuple[int, int, bytes]]:
        """The replies until the daemon closes the connection."""
        found = []
        while (one := self.next()) is not None:
            found.append(one)
        return found

    def stats(self, *words: str) -> dict[str, str]:
        self.send(packet(STAT, " ".join(words).encode()))
        found: dict[str, str] = {}
        while True:
            header = self.file.read(24)
            key, extras, length = struct.unpack("!H", header[2:4])[0], header[4], struct.unpack("!I", header[8:12])[0]
            body = self.file.read(length)
            assert not extras
            if not key:
                return found
            found[body[:key].decode()] = body[key:].decode()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def __enter__(self) -> Binary:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Folder:
    """A folder with a memcached.conf, and the environment that names the folder."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.patch = patch
        patch.delenv("MEMCACHED_SASL_PWDB", raising=False)
        patch.setenv("SASL_CONF_PATH", str(path))

    def configure(self, *lines: str) -> None:
        (self.path / "memcached.conf").write_text("".join(f"{line}\n" for line in lines))

    def users_in_sasldb(self, mechanisms: str = "plain cram-md5") -> None:
        """USERS of REALM in a database of libsasl2."""
        assert SASLPASSWD is not None, "saslpasswd2 is not installed: apt-get install sasl2-bin libsasl2-modules"
        database = self.path / "users.db"
        for user, password in USERS.items():
            command = [SASLPASSWD, "-f", str(database), "-a", "memcached", "-u", REALM, "-c", "-p", user]
            subprocess.run(command, input=password, text=True, check=True, timeout=30)
        self.configure(f"mech_list: {mechanisms}", f"sasldb_path: {database}")

    def users_in_file(self) -> Path:
        """USERS in a file for MEMCACHED_SASL_PWDB, without a memcached.conf."""
        file = self.path / "passwords"
        file.write_text("".join(f"{user}:{password}\n" for user, password in USERS.items()))
        self.patch.setenv("MEMCACHED_SASL_PWDB", str(file))
        self.patch.delenv("SASL_CONF_PATH")
        return file


class SaslAuthd:
    """A stand-in for saslauthd on a UNIX socket: answers a question when the test says so."""

    def __init__(self, folder: Folder) -> None:
        self.path = folder.path / "mux"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self.asked = threading.Semaphore(0)
        self.proceed = threading.Semaphore(0)
        self.ended = False
        folder.configure("mech_list: plain", "pwcheck_method: saslauthd", f"saslauthd_path: {self.path}")
        self.threads = [threading.Thread(target=self.serve)]
        self.threads[0].start()

    def serve(self) -> None:
        while True:
            one, _ = self.listener.accept()
            if self.ended:
                one.close()
                return
            self.threads.append(threading.Thread(target=self.answer, args=(one,)))
            self.threads[-1].start()

    def answer(self, one: socket.socket) -> None:
        with closing(one), one.makefile("rb") as file:
            words = [file.read(struct.unpack("!H", file.read(2))[0]).decode() for _ in range(4)]
            self.asked.release()
            self.proceed.acquire()
            text = b"OK" if USERS.get(words[0]) == words[1] else b"NO"
            with suppress(OSError):
                one.sendall(struct.pack("!H", len(text)) + text)

    def wait(self) -> None:
        """Waits until the daemon asks."""
        assert self.asked.acquire(timeout=TIMEOUT)

    def stop(self) -> None:
        self.ended = True
        for _ in range(2000):
            self.proceed.release()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
        for thread in self.threads:
            thread.join(TIMEOUT)
        self.listener.close()

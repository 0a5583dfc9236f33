"""Peers for tests of TLS: conversations over Python's ssl, a peer that sends its records as it likes, and OpenSSL."""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from certificates import Signed
from daemon_tools import TIMEOUT, Conversation
from polling import eventually
from servers import HOST, Server

NAME = 24  # octets of a key's name, in front of the key
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def client_context(trusted: Path, version: str | None = None, own: Signed | None = None) -> ssl.SSLContext:
    """A client that trusts this CA alone. own: its certificate."""
    context = ssl.create_default_context(cafile=str(trusted))
    if version is not None:
        context.minimum_version = context.maximum_version = VERSIONS[version]
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def options(server: Signed, *more: str) -> tuple[str, ...]:
    """The command line's words for TLS."""
    return ("-Z", "-o", ",".join((f"ssl_chain_cert={server.certificate},ssl_key={server.key}", *more)))


def await_ports(*ports: int) -> None:
    """Waits until the daemon listens on these ports, too: the first port of -l takes connections before the last."""

    def listens(port: int) -> bool:
        with socket.socket() as plain:
            return plain.connect_ex((HOST, port)) == 0

    for port in ports:
        eventually(partial(listens, port), what=f"a listener on port {port}")


class TlsConversation(Conversation):
    """A connection with TLS. The end of the stream without close_notify is an error."""

    def __init__(
        self,
        server: Server,
        context: ssl.SSLContext,
        *,
        port: int | None = None,
        session: ssl.SSLSession | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(TIMEOUT)
        try:
            plain.connect((HOST, port or server.port))
            self.tls = context.wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False, session=session
            )
        except BaseException:
            plain.close()
            raise
        self.sock = self.tls
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> TlsConversation:
        return self


class ByRecord:
    """A connection with TLS whose encrypted bytes go to the socket as the test likes."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self.plain = server.connect(TIMEOUT)
        self.plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def hello(self) -> bytes:
        """The client's first flight."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def take(self) -> None:
        """Waits for encrypted bytes."""
        data = self.plain.recv(65536)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    def shake(self) -> ByRecord:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send(self.outgoing.read())
                self.take()
            else:
                self.send(self.outgoing.read())
                return self

    def send(self, encrypted: bytes, piece: int | None = None) -> None:
        """Sends encrypted bytes, `piece` at a time."""
        for start in range(0, len(encrypted), piece or len(encrypted) or 1):
            self.plain.sendall(encrypted[start : start + (piece or len(encrypted))])
            if piece:
                time.sleep(0)  # another process may run: the daemon sees the pieces

    def records(self, parts: Iterable[bytes]) -> bytes:
        """Each part as a record of its own."""
        for part in parts:
            self.tls.write(part)
        return self.outgoing.read()

    def read(self, length: int) -> bytes:
        """So many decrypted bytes, or fewer at the end."""
        found = b""
        while len(found) < length:
            try:
                data = self.tls.read(length - len(found))
            except ssl.SSLWantReadError:
                self.take()
            else:
                if not data:
                    break
                found += data
        return found

    def __enter__(self) -> ByRecord:
        return self

    def __exit__(self, *exc: object) -> None:
        self.plain.close()


def half_renewal(keys: Path, number: int) -> bytes:
    """The client's record of this number, with four of the five octets of a KeyUpdate, which renews keys. OpenSSL never
    writes such a record.

    keys: SSLContext.keylog_filename of a client with a single connection, by TLS_AES_256_GCM_SHA384.
    """
    found = re.search(r"^CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)$", keys.read_text(), re.MULTILINE)
    assert found
    secret = bytes.fromhex(found[1])

    def derived(label: bytes, length: int) -> bytes:
        # HKDF-Expand-Label of RFC 8446.
        info = length.to_bytes(2, "big") + bytes((len(label),)) + label + b"\0"
        return hmac.digest(secret, info + b"\1", "sha384")[:length]

    nonce = int.from_bytes(derived(b"tls13 iv", 12), "big") ^ number
    # Type and length of the message, and the type of the record's content: handshake.
    content = b"\x18\0\0\1" + b"\x16"
    head = b"\x17\x03\x03" + (len(content) + 16).to_bytes(2, "big")
    crypto = ctypes.CDLL("libcrypto.so.3")
    crypto.EVP_CIPHER_CTX_new.restype = crypto.EVP_aes_256_gcm.restype = ctypes.c_void_p
    cipher, room = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new()), ctypes.create_string_buffer(16)
    tag, length = ctypes.create_string_buffer(16), ctypes.c_int()
    aes = ctypes.c_void_p(crypto.EVP_aes_256_gcm())
    crypto.EVP_EncryptInit_ex(cipher, aes, None, derived(b"tls13 key", 32), nonce.to_bytes(12, "big"))
    crypto.EVP_EncryptUpdate(cipher, None, ctypes.byref(length), head, len(head))
    crypto.EVP_EncryptUpdate(cipher, room, ctypes.byref(length), content, len(content))
    encrypted = room.raw[: length.value]
    crypto.EVP_EncryptFinal_ex(cipher, room, ctypes.byref(length))
    crypto.EVP_CIPHER_CTX_ctrl(cipher, 0x10, 16, tag)  # EVP_CTRL_AEAD_GET_TAG
    crypto.EVP_CIPHER_CTX_free(cipher)
    return head + encrypted + tag.raw


class OpenSsl:
    """A client by OpenSSL itself, which can renew its keys. Blocking, without checks of the server's certificate."""

    TLS1_2 = 0x303
    TLS1_3 = 0x304
    SET_MOST = 124  # SSL_CTRL_SET_MAX_PROTO_VERSION

    def __init__(
        self, server: Server, most: int = TLS1_3, receive_buffer: int | None = None, key: bytes | None = None
    ) -> None:
        """key: of a queue pair's stream, as the exchange gives it. Raises ConnectionError: the handshake failed."""
        library = ctypes.CDLL("libssl.so.3")
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, name).restype = ctypes.c_void_p
        self.library = library
        self.plain = socket.socket()
        if receive_buffer is not None:
            self.plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.plain.connect((HOST, server.port))
        self.plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(TIMEOUT), 0))
        self.context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
        assert library.SSL_CTX_ctrl(self.context, self.SET_MOST, ctypes.c_long(most), None) == 1
        self.ssl = ctypes.c_void_p(library.SSL_new(self.context))
        library.SSL_set_fd(self.ssl, self.plain.fileno())
        if key is not None:
            self.use_key(key)
        if library.SSL_connect(self.ssl) != 1:
            self._forget_errors()
            self.__exit__()
            raise ConnectionError("the handshake failed")

    def use_key(self, key: bytes) -> None:
        library = self.library
        for name in ("SSL_SESSION_new", "SSL_CIPHER_find"):
            getattr(library, name).restype = ctypes.c_void_p
        self.name = ctypes.create_string_buffer(key[:NAME], NAME)
        pointer = ctypes.c_void_p

        def give(ssl: int, md: int, name: Any, length: Any, out: Any) -> int:
            session = pointer(library.SSL_SESSION_new())
            library.SSL_SESSION_set1_master_key(session, key[NAME:], ctypes.c_size_t(len(key) - NAME))
            cipher = pointer(library.SSL_CIPHER_find(self.ssl, b"\x13\x01"))
            library.SSL_SESSION_set_cipher(session, cipher)
            library.SSL_SESSION_set_protocol_version(session, self.TLS1_3)
            name[0], length[0], out[0] = ctypes.addressof(self.name), NAME, session.value
            return 1

        kind = ctypes.CFUNCTYPE(
            ctypes.c_int,
            *(pointer, pointer, ctypes.POINTER(pointer), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(pointer)),
        )
        self.give = kind(give)
        library.SSL_CTX_set_ciphersuites(self.context, b"TLS_AES_128_GCM_SHA256")
        library.SSL_set_psk_use_session_callback(self.ssl, self.give)

    def write(self, data: bytes) -> bool:
        written = self.library.SSL_write(self.ssl, data, len(data)) == len(data)
        self._forget_errors()
        return written

    def renew_keys(self, ask: bool) -> bool:
        """Sends a KeyUpdate. ask: the server is to renew its keys, too."""
        self.library.SSL_key_update(self.ssl, int(ask))
        return self._shake()

    def gather(self) -> None:
        """From now on encrypted bytes wait for `leave`."""
        crypto = ctypes.CDLL("libcrypto.so.3")
        crypto.BIO_new.restype = crypto.BIO_s_mem.restype = ctypes.c_void_p
        self.crypto = crypto
        self.waiting = ctypes.c_void_p(crypto.BIO_new(ctypes.c_void_p(crypto.BIO_s_mem())))
        self.library.SSL_set0_wbio(self.ssl, self.waiting)

    def leave(self) -> None:
        """Sends the gathered bytes at once."""
        self.plain.sendall(self.gathered())

    def gathered(self) -> bytes:
        """The gathered bytes, which are then no longer kept."""
        found = b""
        room = ctypes.create_string_buffer(1 << 20)
        while (length := self.crypto.BIO_read(self.waiting, room, len(room))) > 0:
            found += room.raw[:length]
        return found

    def renegotiate(self) -> bool:
        """Asks for another handshake, in TLS 1.2. False: the server refuses."""
        self.library.SSL_renegotiate(self.ssl)
        return self._shake()

    def _shake(self) -> bool:
        done = self.library.SSL_do_handshake(self.ssl) == 1
        self._forget_errors()
        return done

    def _forget_errors(self) -> None:
        """Empties OpenSSL's queue of errors. The thread's queue is Python's ssl's, too: its next read would fail."""
        ctypes.CDLL("libcrypto.so.3").ERR_clear_error()

    def read(self, length: int) -> bytes:
        found = b""
        room = ctypes.create_string_buffer(length)
        while len(found) < length:
            got = self.library.SSL_read(self.ssl, room, length - len(found))
            if got <= 0:
                self._forget_errors()
                break
            found += room.raw[:got]
        return found

    def __enter__(self) -> OpenSsl:
        return self

    def __exit__(self, *exc: object) -> None:
        self.library.SSL_free(self.ssl)
        self.library.SSL_CTX_free(self.context)
        self.plain.close()

"""Who the client is to a server that asks: ASCII authentication (memcached -Y, doc/protocol.txt "Authentication").

SASL is a part of the binary protocol, which the client does not speak.
"""

from __future__ import annotations

import socket

from .exceptions import (
    FULL,
    UNAUTHENTICATED,
    MemcacheClientError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
    too_many_connections,
    unauthenticated,
)
from .sockets import Options

LINE_MAX = 2048
# A server that asks nobody stores this, and it has expired at once.
KEY = b"rmemcached:authentication"


def checked_credentials(username: str | bytes | None, password: str | bytes | None) -> tuple[bytes, bytes] | None:
    """(name, password) as they are sent, or None for neither. Raises ValueError, which does not show them."""
    if username is None and password is None:
        return None
    if username is None or password is None:
        raise ValueError("username and password: one without the other")
    name, secret = (word.encode() if isinstance(word, str) else bytes(word) for word in (username, password))
    for what, word in (("username", name), ("password", secret)):
        if not word or any(octet in b" \t\r\n\0" for octet in word):
            raise ValueError(
                f"{what}: it must not be empty, nor have blanks or ends of lines, which a server cannot take"
            )
    return name, secret


def request(credentials: tuple[bytes, bytes]) -> bytes:
    """The command that authenticates a connection."""
    text = b" ".join(credentials)
    return b"set %b 0 -1 %d\r\n%b\r\n" % (KEY, len(text), text)


def check_answer(line: bytes) -> None:
    """The answer to `request`. Raises MemcacheClientError when the server does not know the client."""
    if line == FULL:
        raise too_many_connections()
    if line.startswith(b"CLIENT_ERROR"):
        raise MemcacheClientError(f"{line[13:].decode('ascii', 'replace')}: the server refuses username and password")
    if line != b"STORED":
        # It may be what was sent.
        raise MemcacheUnknownError("the answer to the authentication is none of memcached's")


def read_line(plain: socket.socket) -> bytes:
    """The next line, without its end; the server sends nothing behind it.

    Raises MemcacheUnexpectedCloseError, MemcacheUnknownError, OSError, TimeoutError.
    """
    received = b""
    while b"\n" not in received:
        more = plain.recv(LINE_MAX)
        if not more:
            raise MemcacheUnexpectedCloseError("the server has ended the connection")
        received += more
        if len(received) > LINE_MAX:
            raise MemcacheUnknownError("the answer is no line of memcached's")
    return received.partition(b"\n")[0].rstrip(b"\r")


def ask(plain: socket.socket, command: bytes) -> bytes:
    """Sends a command, and returns the line of the answer. Raises what read_line does."""
    try:
        plain.sendall(command)
    except (BrokenPipeError, ConnectionResetError):
        # A server that wants no connection may have said so before it has read anything.
        return read_line(plain)
    return read_line(plain)


def authenticate(client: Options, plain: socket.socket) -> None:
    """Of a new connection, if the client has credentials. Raises MemcacheClientError, and what read_line does."""
    if client.credentials is not None:
        check_answer(ask(plain, request(client.credentials)))


def recognise(plain: socket.socket) -> tuple[bool, bool]:
    """(classic, unmarked) of the server of a new connection: whether it knows no meta commands, and whether it does not
    answer to `version` either then.

    Raises MemcacheUnexpectedCloseError when a question ends the connection, TooManyConnections, MemcacheClientError.
    """
    line = ask(plain, b"mn\r\n")
    if line == b"MN":
        return False, False
    if line == FULL:
        raise too_many_connections()
    if line == UNAUTHENTICATED:
        raise unauthenticated()
    if not line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
        raise MemcacheUnknownError(line[:64])
    return True, not ask(plain, b"version\r\n").startswith(b"VERSION")

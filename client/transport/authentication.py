"""The client's authentication: memcached's ASCII authentication (memcached -Y, doc/protocol.txt "Authentication").

SASL is a part of the binary protocol, which the client does not have.
"""

from __future__ import annotations

import contextlib
import re
import socket

from ..exceptions import (
    FULL,
    UNAUTHENTICATED,
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
    too_many_connections,
    unauthenticated,
)
from .sockets import Options

LINE_MAX = 2048
# A server without authentication stores an item with this key, expired at once.
KEY = b"rmemcached:authentication"
META_SINCE = (1, 6, 10)


def checked_credentials(username: str | bytes | None, password: str | bytes | None) -> tuple[bytes, bytes] | None:
    """(name, password) as bytes, or None for neither. Raises ValueError; the error does not show them."""
    if username is None and password is None:
        return None
    if username is None or password is None:
        raise ValueError("username and password: one without the other")
    name, secret = encoded("username", username), encoded("password", password)
    # A server takes the text before the first blank for the name.
    if not name or any(octet in b" \r\n\0" for octet in name):
        raise ValueError("username: it must not be empty, nor have blanks, ends of lines or NUL")
    if any(octet in b"\r\n\0" for octet in secret):
        raise ValueError("password: it must not have ends of lines or NUL")
    return name, secret


def encoded(what: str, word: str | bytes) -> bytes:
    """The bytes of a name or password. Raises ValueError, TypeError; neither shows the word."""
    if isinstance(word, bytes):
        return bytes(word)
    if not isinstance(word, str):
        raise TypeError(f"{what} must be str or bytes, not {type(word).__name__}")
    try:
        return word.encode()
    except UnicodeEncodeError:
        # The ValueError is raised outside of this block: a UnicodeEncodeError as its context would show the text.
        pass
    raise ValueError(f"{what}: it has characters that UTF-8 does not have")


def request(credentials: tuple[bytes, bytes]) -> bytes:
    """The command for a connection's authentication."""
    text = b" ".join(credentials)
    return b"set %b 0 -1 %d\r\n%b\r\n" % (KEY, len(text), text)


def check_answer(line: bytes, credentials: tuple[bytes, bytes]) -> None:
    """The answer to `request`. Raises MemcacheClientError when the server does not know the client, MemcacheServerError
    for SERVER_ERROR, MemcacheUnknownError for any other answer."""
    if line == FULL:
        raise too_many_connections()
    if credentials[1] in line:
        # The line repeats the password.
        line = b"CLIENT_ERROR its text is not shown" if line.startswith(b"CLIENT_ERROR") else b""
    if line.startswith(b"CLIENT_ERROR"):
        raise MemcacheClientError(f"{line[13:].decode('ascii', 'replace')}: the server refuses username and password")
    if line.startswith(b"SERVER_ERROR"):
        raise MemcacheServerError(line[13:])
    if line != b"STORED":
        raise MemcacheUnknownError("the answer to the authentication is none of memcached's")


def read_lines(plain: socket.socket, count: int) -> list[bytes]:
    """The next lines, without their ends; the server sends nothing behind them. Fewer lines, but at least a line, if
    the server ends the connection behind them, or wants no commands of this client.

    Raises MemcacheUnexpectedCloseError, MemcacheUnknownError, OSError, TimeoutError.
    """
    received = b""
    while received.count(b"\n") < count and received.rstrip(b"\r\n") not in (FULL, UNAUTHENTICATED):
        try:
            more = plain.recv(LINE_MAX)
        except ConnectionResetError:
            if b"\n" not in received:
                raise
            break
        if not more:
            break
        received += more
        if len(received) > LINE_MAX:
            raise MemcacheUnknownError("the answer is no line of memcached's")
    lines = [line.rstrip(b"\r") for line in received.split(b"\n")[:-1]]
    if not lines:
        raise MemcacheUnexpectedCloseError("the server has ended the connection")
    return lines[:count]


def ask(plain: socket.socket, commands: bytes, count: int = 1) -> list[bytes]:
    """Sends commands, and returns the lines of the answers. Raises the errors of read_lines."""
    # A server that refuses the connection may have sent its answer, and closed, before it read anything.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        plain.sendall(commands)
    return read_lines(plain, count)


def authenticate(client: Options, plain: socket.socket) -> None:
    """Authenticates a new connection, if the client has credentials. Raises the errors of check_answer and
    read_lines."""
    if client.credentials is not None:
        check_answer(ask(plain, request(client.credentials))[0], client.credentials)


def has_meta(answer: bytes, version: bytes) -> bool:
    """Whether a server with these answers to `mn` and `version` has the meta commands of today.

    memcached before 1.6.10 had other commands under these names, and sent values in another way: a value sent as today
    would be the next command there.
    """
    found = re.match(rb"VERSION (\d+)\.(\d+)\.(\d+)", version)
    return answer == b"MN" and (found is None or tuple(map(int, found.groups())) >= META_SINCE)


def recognise(plain: socket.socket) -> tuple[tuple[bool, bool], bool]:
    """((classic, unmarked), lives) of a new connection. classic: its server knows no meta commands. unmarked: nor does
    this server answer to `version`. lives: `version` was answered; behind an error the server may close the connection.

    Raises MemcacheUnexpectedCloseError when a question ends the connection, TooManyConnections, MemcacheClientError.
    """
    line, *others = ask(plain, b"mn\r\nversion\r\n", 2)
    if line == FULL:
        raise too_many_connections()
    if line == UNAUTHENTICATED:
        raise unauthenticated()
    if not line.startswith((b"MN", b"EN", b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
        raise MemcacheUnknownError(line[:64])
    if not others:
        raise MemcacheUnexpectedCloseError("the server has ended the connection")
    known = others[0].startswith(b"VERSION")
    return ((False, False) if has_meta(line, others[0]) else (True, not known)), known


def knows_version(plain: socket.socket) -> bool:
    """Whether the server of a new connection answers to `version`. Raises the errors of read_lines."""
    line = ask(plain, b"version\r\n")[0]
    if line == FULL:
        raise too_many_connections()
    return line.startswith(b"VERSION")

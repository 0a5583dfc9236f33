"""The client's authentication: memcached's ASCII authentication (memcached -Y, doc/protocol.txt "Authentication"), or
SASL's mechanism PLAIN (memcached -S), two packets of the binary protocol.

Behind SASL, rmemcached takes text and meta commands. memcached goes on with the binary protocol alone (binary.py).
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable

from ..exceptions import (
    FULL,
    SASL_FIRST,
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
    authentication_wanted,
    is_unauthenticated,
    too_many_connections,
)
from .arguments import Credentials
from .binary import AUTH_ERROR, SASL_AUTH, SUCCESS, UNKNOWN, read_reply
from .binary import request as binary_request
from .sockets import Options

LINE_MAX = 2048
# A server without authentication stores an item with this key, expired at once.
KEY = b"rmemcached:authentication"
META_SINCE = (1, 6, 10)
# The end of a line in the header of the answer: behind the status, and before the rest of the packet.
SASL_OPAQUE = 0x0A


def checked_credentials(
    username: str | bytes | None, password: str | bytes | None, sasl: bool = False
) -> Credentials | None:
    """The credentials; None without a name and a password. Raises ValueError; the error does not show them."""
    if sasl is not True and sasl is not False:
        raise ValueError(f"sasl must be True or False, not {sasl!r}")
    if username is None and password is None:
        if sasl:
            raise ValueError("sasl needs username and password")
        return None
    if username is None or password is None:
        raise ValueError("username and password: one without the other")
    name, secret = encoded("username", username), encoded("password", password)
    if sasl:
        if not name or 0 in name or not secret or 0 in secret:
            raise ValueError("username and password: with sasl they must not be empty, nor have NUL")
        return Credentials(name, secret, True)
    # A server takes the text before the first blank for the name.
    if not name or any(octet in b" \r\n\0" for octet in name):
        raise ValueError("username: it must not be empty, nor have blanks, ends of lines or NUL")
    if any(octet in b"\r\n\0" for octet in secret):
        raise ValueError("password: it must not have ends of lines or NUL")
    return Credentials(name, secret, False)


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


def sasl_request(credentials: Credentials, opaque: int = 0) -> bytes:
    """The packet for a connection's authentication by PLAIN."""
    return binary_request(SASL_AUTH, b"PLAIN", b"\0%b\0%b" % credentials[:2], opaque=opaque)


def check_status(status: int, body: bytes = b"") -> None:
    """The answer to sasl_request. Raises MemcacheClientError, MemcacheServerError."""
    if status == AUTH_ERROR:
        raise MemcacheClientError("authentication failure: the server refuses username and password")
    if status == UNKNOWN:
        raise MemcacheClientError("the server has no SASL (-S): for a server with -Y, leave sasl out")
    if status != SUCCESS:
        raise MemcacheServerError(body or b"SASL fails with status %d" % status)


def request(credentials: Credentials) -> bytes:
    """The commands for a connection's authentication, where all answers are read by lines (answers)."""
    if credentials.sasl:
        return sasl_request(credentials, SASL_OPAQUE) + b"mn\r\n"
    text = b" ".join(credentials[:2])
    return b"set %b 0 -1 %d\r\n%b\r\n" % (KEY, len(text), text)


def check_sasl_header(line: bytes, credentials: Credentials) -> None:
    """The header of the answer to sasl_request, as a line. Raises the errors of check_status."""
    if line[:2] != bytes((0x81, SASL_AUTH)) or len(line) < 12:
        # A server without the binary protocol, or with too many connections, answers with text.
        check_answer(line, credentials)
    check_status(int.from_bytes(line[6:8], "big"))


def check_sasl_end(line: bytes, credentials: Credentials) -> None:
    if not line.endswith(b"MN"):
        raise MemcacheUnknownError("the answer to the authentication is none of rmemcached's")


def answers(credentials: Credentials) -> list[Callable[[bytes, Credentials], None]]:
    """What checks the lines with which a server answers to `request`."""
    return [check_sasl_header, check_sasl_end] if credentials.sasl else [check_answer]


def check_answer(line: bytes, credentials: Credentials) -> None:
    """The answer to `request` without SASL. Raises MemcacheClientError when the server does not know the client,
    MemcacheServerError for SERVER_ERROR, MemcacheUnknownError for any other answer."""
    if line == FULL:
        raise too_many_connections()
    if line == SASL_FIRST:
        raise authentication_wanted(line)
    if credentials[1] in line:
        # The line repeats the password.
        line = b"CLIENT_ERROR its text is not shown" if line.startswith(b"CLIENT_ERROR") else b""
    if line.startswith(b"CLIENT_ERROR"):
        raise MemcacheClientError(f"{line[13:].decode('ascii', 'replace')}: the server refuses username and password")
    if line.startswith(b"SERVER_ERROR"):
        raise MemcacheServerError(line[13:])
    if line != b"STORED":
        raise MemcacheUnknownError("the answer to the authentication is none of memcached's")


def is_last(line: bytes) -> bool:
    """Whether the server says nothing behind the line."""
    return line == FULL or is_unauthenticated(line)


def read_lines(plain: socket.socket, count: int) -> list[bytes]:
    """The next lines, without their ends; the server sends nothing behind them. Fewer lines, but at least a line, if
    the server ends the connection behind them, or wants no commands of this client.

    Raises MemcacheUnexpectedCloseError, MemcacheUnknownError, OSError, TimeoutError.
    """
    received = b""
    while received.count(b"\n") < count and not is_last(received.rstrip(b"\r\n")):
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
    credentials = client.credentials
    if credentials is not None and credentials.sasl:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            plain.sendall(sasl_request(credentials))
        found = read_reply(plain)
        check_status(found.status, found.value)
    elif credentials is not None:
        check_answer(ask(plain, request(credentials))[0], credentials)


def takes_text(plain: socket.socket) -> bool:
    """Whether a connection takes text after SASL's authentication. If not, the server has ended the connection. Raises
    the errors of read_lines."""
    # memcached waits for the 24 bytes of a packet's header, and ends the connection because of the first byte.
    try:
        return ask(plain, b"mn\r\n" * 6, 6)[-1] == b"MN"
    except (MemcacheUnexpectedCloseError, ConnectionResetError):
        return False


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
    if is_unauthenticated(line):
        raise authentication_wanted(line)
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

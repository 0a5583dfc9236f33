"""The exceptions of the client: pymemcache's names and hierarchy (pymemcache/exceptions.py).

Where pymemcache is installed each is a subclass of its namesake, so that code which catches those catches these. The
client needs nothing but this package.
"""

from __future__ import annotations

import re

try:
    from pymemcache import exceptions as _theirs
    from pymemcache.exceptions import MemcacheError as _Error
except ImportError:
    _theirs = None
    _Error = Exception

# Exception itself where there is no pymemcache: a base that the others have anyway.
_ClientError = getattr(_theirs, "MemcacheClientError", Exception)
_UnknownCommandError = getattr(_theirs, "MemcacheUnknownCommandError", Exception)
_IllegalInputError = getattr(_theirs, "MemcacheIllegalInputError", Exception)
_ServerError = getattr(_theirs, "MemcacheServerError", Exception)
_UnknownError = getattr(_theirs, "MemcacheUnknownError", Exception)
_UnexpectedCloseError = getattr(_theirs, "MemcacheUnexpectedCloseError", Exception)


CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """The text without characters that control a terminal or end a line, whatever a server has sent."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class MemcacheError(_Error):
    """Base of all exceptions that the client defines.

    Attributes: server: "host:port" or a path, and command: the name of the method; None where they are not known. The
    text names both, and the cause. args[0] is the cause: bytes if they are the server's.
    """

    server: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        cause = self.args[0] if len(self.args) == 1 else super().__str__()
        text = one_line(cause.decode("utf-8", "backslashreplace") if isinstance(cause, bytes) else str(cause))
        return ": ".join(part for part in (self.server, self.command, text) if part)


class MemcacheClientError(MemcacheError, _ClientError):  # type: ignore[misc, valid-type]
    """The server answered CLIENT_ERROR, or the arguments of a call cannot be sent."""


class MemcacheUnknownCommandError(MemcacheClientError, _UnknownCommandError):  # type: ignore[misc, valid-type]
    """The server answered ERROR: it does not know the command."""

    def __str__(self) -> str:
        # Its argument is the command's name, as pymemcache's, or a sentence.
        if not self.server or not self.command or " " in str(self.args[0]):
            return super().__str__()
        return f"{self.server}: {self.command}: the server does not know this command"


class MemcacheIllegalInputError(MemcacheClientError, _IllegalInputError):  # type: ignore[misc, valid-type]
    """A key, value or number is not one that memcached takes. Nothing was sent."""


class MemcacheServerError(MemcacheError, _ServerError):  # type: ignore[misc, valid-type]
    """The server answered SERVER_ERROR, or ERROR with a reason."""


class MemcacheUnknownError(MemcacheError, _UnknownError):  # type: ignore[misc, valid-type]
    """The server's answer is not memcached's protocol. The connection was closed."""


class MemcacheUnexpectedCloseError(MemcacheServerError, _UnexpectedCloseError):  # type: ignore[misc, valid-type]
    """The server ended the connection in the middle of a command.

    Over RDMA the message holds the line in which the server said why, when one came.
    """


class TooManyConnections(MemcacheServerError):
    """The server has as many connections as its -c allows."""


class TransportUnavailable(MemcacheServerError):
    """The server, or this machine, does not have the transport."""


class ExchangeRefused(TransportUnavailable):
    """The server has answered the RDMA exchange with an error. Behind that it may close the connection."""


class ExchangeEnded(MemcacheUnexpectedCloseError):
    """The server has ended the connection in place of an answer to the RDMA exchange."""


class TransportRefused(MemcacheServerError):
    """The server has said, through rdma_cm, why it does not want a connection."""


FULL = b"ERROR Too many open connections"
"""What a server answers to a connection beyond its limit, before it closes it."""


def too_many_connections() -> TooManyConnections:
    """The exception for a server that has answered FULL."""
    return TooManyConnections("too many open connections: the server has as many as its -c (--conn-limit) allows")


UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated"
"""What a server answers that was started with -Y."""


def unauthenticated() -> MemcacheClientError:
    """The exception for a server that has answered UNAUTHENTICATED."""
    return MemcacheClientError("the server wants authentication: username= and password=")

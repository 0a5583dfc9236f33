"""The exceptions of the client: pymemcache's names and hierarchy (pymemcache/exceptions.py).

With pymemcache installed each exception is a subclass of its namesake, so code that catches pymemcache's exceptions
catches these, too. The client needs nothing but this package.
"""

from __future__ import annotations

import re

try:
    from pymemcache import exceptions as _theirs
    from pymemcache.exceptions import MemcacheError as _Error
except ImportError:
    _theirs = None
    _Error = Exception

# Without pymemcache these are Exception itself, which is a base of all classes here anyway.
_ClientError = getattr(_theirs, "MemcacheClientError", Exception)
_UnknownCommandError = getattr(_theirs, "MemcacheUnknownCommandError", Exception)
_IllegalInputError = getattr(_theirs, "MemcacheIllegalInputError", Exception)
_ServerError = getattr(_theirs, "MemcacheServerError", Exception)
_UnknownError = getattr(_theirs, "MemcacheUnknownError", Exception)
_UnexpectedCloseError = getattr(_theirs, "MemcacheUnexpectedCloseError", Exception)


CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """The text without control characters and ends of lines, whatever the server has sent."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class MemcacheError(_Error):
    """Base of all exceptions defined by the client.

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
        # args[0] is the command's name, as with pymemcache, or a sentence.
        if not self.server or not self.command or " " in str(self.args[0]):
            return super().__str__()
        return f"{self.server}: {self.command}: the server does not know this command"


class MemcacheIllegalInputError(MemcacheClientError, _IllegalInputError):  # type: ignore[misc, valid-type]
    """memcached does not take this key, value or number. Nothing was sent."""


class MemcacheServerError(MemcacheError, _ServerError):  # type: ignore[misc, valid-type]
    """The server answered SERVER_ERROR, or ERROR with a reason."""


class MemcacheUnknownError(MemcacheError, _UnknownError):  # type: ignore[misc, valid-type]
    """The server's answer is not memcached's protocol. The connection was closed."""


class MemcacheUnexpectedCloseError(MemcacheServerError, _UnexpectedCloseError):  # type: ignore[misc, valid-type]
    """The server ended the connection in the middle of a command.

    Over RDMA the message holds the server's last line with the reason, if there was such a line.
    """


class TooManyConnections(MemcacheServerError):
    """The server has as many connections as its -c allows."""


class TransportUnavailable(MemcacheServerError):
    """The server, or this machine, does not have the transport."""


class ExchangeRefused(TransportUnavailable):
    """The server has answered the RDMA exchange with an error. Afterwards the server may close the connection."""


class ExchangeEnded(MemcacheUnexpectedCloseError):
    """The server has ended the connection in place of an answer to the RDMA exchange."""


class TransportRefused(MemcacheServerError):
    """The server has refused the connection through rdma_cm, and given the reason."""


FULL = b"ERROR Too many open connections"
"""The answer to a connection above the server's limit; the server then closes the connection."""


def too_many_connections() -> TooManyConnections:
    """The exception for the answer FULL."""
    return TooManyConnections("too many open connections: the server has as many as its -c (--conn-limit) allows")


UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated"
"""The answer of a server started with -Y to a request before authentication."""


SASL_FIRST = b"CLIENT_ERROR unauthenticated: SASL comes first, in the binary protocol (-S)"
"""The same of a server started with -S."""


def is_unauthenticated(line: bytes) -> bool:
    """Whether the answer demands authentication."""
    return line in (UNAUTHENTICATED, SASL_FIRST)


def unauthenticated() -> MemcacheClientError:
    """The exception for the answer UNAUTHENTICATED."""
    return MemcacheClientError("the server wants authentication: username= and password=")


def authentication_wanted(line: bytes) -> MemcacheClientError:
    """The exception for an answer that demands authentication."""
    if line == SASL_FIRST:
        return MemcacheClientError("the server wants authentication: username=, password= and sasl=True")
    return unauthenticated()

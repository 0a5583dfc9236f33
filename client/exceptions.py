"""The exceptions of the client: pymemcache's names and hierarchy (pymemcache/exceptions.py), defined here so that the
client needs nothing but this package."""

from __future__ import annotations


class MemcacheError(Exception):
    """Base of all exceptions that the client defines."""


class MemcacheClientError(MemcacheError):
    """The server answered CLIENT_ERROR, or the arguments of a call cannot be sent."""


class MemcacheUnknownCommandError(MemcacheClientError):
    """The server answered ERROR: it does not know the command."""


class MemcacheIllegalInputError(MemcacheClientError):
    """A key, value or number is not one that memcached takes. Nothing was sent."""


class MemcacheServerError(MemcacheError):
    """The server answered SERVER_ERROR."""


class MemcacheUnknownError(MemcacheError):
    """The server's answer is not memcached's protocol. The connection was closed."""


class MemcacheUnexpectedCloseError(MemcacheServerError):
    """The server ended the connection in the middle of a command.

    Over RDMA the message holds the line in which the server said why, when one came.
    """


class TransportUnavailable(MemcacheServerError):
    """The server, or this machine, does not have the transport."""


class TransportRefused(MemcacheServerError):
    """The server has said, through rdma_cm, why it does not want a connection."""

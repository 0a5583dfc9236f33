"""The client's transports: a row for each. All other modules ask the row, and compare no transport's name.

A new transport needs a row, and its attach function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._attach import attach_iw, attach_shm


class Transport(NamedTuple):
    """A row of ROWS."""

    name: str
    scheme: str | None = None  # in URLs
    device: bytes | None = None  # its name; None: a device of the system, perhaps named by the environment
    # attach(client's options, queue pair, server's Offer, lifeline) opens the second connection and gives it to the
    # queue pair. Raises MemcacheServerError, OSError, TimeoutError. None: the transport has no second connection.
    attach: Callable[..., None] | None = None
    plain: bool = False  # the connection to the server's port itself, without a queue pair
    by_cm: bool = False  # rdma_cm connects the queue pair: there is no exchange of lines
    # The provider is the software provider, not libibverbs: the calls of verbs/soft.pxd work, and the device makes
    # progress in this process' calls alone.
    soft: bool = False
    pins: bool = False  # a registration pins the memory's pages; False: it is an entry in a table
    looks: int = 1  # polls between two yields of a thread alone on its core; so many polls take as long as a yield
    inline: int = 0  # bytes of the longest message copied at posting, without a completion; the device grants as many
    # The transport is for a server on this host, which maps the memory of this process. So:
    # - "auto" tries the transport on UNIX sockets, too, and on no connection to another host;
    # - the exchange names this host, asks for the items' memory, and offers no READs;
    # - the provider makes the memory of Buffers and of the pool, so the server can map the memory; a Buffer of a
    #   program's memory is not registered;
    # - a lane gives the caller's memory back only after the server has closed the lane: the queue pair's end stops no
    #   copy.
    near: bool = False
    set_messages: int = 0  # messages for a set of a value above the server's eager size, if faster than a READ
    automatic: bool = False  # "auto" tries the transport, in the order of the rows
    reads: bool | None = None  # READs of items: True: by default, False: if the environment says so, None: never


PLAIN = Transport("tcp", "tcp", plain=True)
ROWS = {
    row.name: row
    for row in (
        Transport("rdma_cm", by_cm=True, pins=True, reads=False),
        Transport("verbs", "rdma", pins=True, automatic=True, reads=True),
        Transport(
            "soft_shm", "shm", b"soft_shm0", attach_shm, soft=True, looks=16, inline=1024, near=True, automatic=True
        ),
        # "auto" does not try soft_iw: its gain comes from polling, and is lost with pauses between requests
        # (docs/notes/waiting.md). set_messages: a READ by the server costs a round trip and four system calls. reads:
        # an item takes two READs by the client, which wake the daemon like requests.
        Transport("soft_iw", "iwarp", b"soft_iw0", attach_iw, soft=True, inline=1024, set_messages=2, reads=False),
        PLAIN,
    )
}
TRANSPORTS = ("auto", *ROWS)
"""The names of a Client's argument."""

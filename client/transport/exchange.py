"""Brings up a queue pair to a server: the exchange on the lifeline, the second connection, or rdma_cm.

docs/rdma-protocol.md, sections 2, 3 and 9.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import cast

from ..exceptions import (
    FULL,
    ExchangeEnded,
    MemcacheServerError,
    TransportRefused,
    TransportUnavailable,
    authentication_wanted,
    is_unauthenticated,
    too_many_connections,
)
from ._cm import CmRoute
from ._exchange import REPLY_LIMIT, Offer
from ._queue_pair import QueuePair
from ._rdma import RdmaStream
from ._tls import load_tls
from ._uninterrupted import Turn
from .sockets import Options, Server
from .transports import Transport

DEFAULT_SPIN = 50  # microseconds


def patience(client: Options) -> float | None:
    """Seconds for each step of connecting, or None."""
    return client.timeout if client.connect_timeout is None else client.connect_timeout


def stream_of(client: Options, queue: QueuePair) -> RdmaStream:
    """The stream of a connected queue pair, with the client's time limits."""
    spin = DEFAULT_SPIN if client.spin is None else client.spin
    return RdmaStream(queue, client.timeout, int(spin * 1000))


Key = tuple[Server, str, object, object, object, object]

MOST_FOR_THREADS = 16  # queue pairs to a server; beyond them, threads share
shared: dict[Key, list[tuple[QueuePair, int]]] = {}
"""This process' queue pairs with lanes for others, by server, transport, options and the lifeline's credentials, each
with the thread that made it. Threads add and remove entries at any time. So a reader copies the list first: a copy is
atomic, also without the GIL."""


locks: dict[Key, threading.RLock] = {}
"""Each held by the thread that makes a queue pair, while other threads wait for the queue pair. Reentrant: a signal
handler of the thread may make another queue pair."""

connecting: dict[Key, set[object]] = {}
"""Attempts to make a queue pair through rdma_cm. Over rdma_cm no thread waits for another thread's queue pair, so the
queue pairs count before they exist."""

counting = threading.RLock()
"""Held between a look at `connecting` and its change."""

unshared: set[Key] = set()
"""Keys whose last connection had no lanes for others: threads do not wait for the next connection."""


def forget() -> None:
    """Forgets all queue pairs in a forked child: they are the parent's."""
    global counting
    shared.clear()
    locks.clear()
    connecting.clear()
    counting = threading.RLock()


os.register_at_fork(after_in_child=forget)


def one_at_a_time(client: Options, wanted: str) -> Turn:
    """The lock for making a queue pair, for a `with`. Entering raises TimeoutError if another thread takes too long."""
    return Turn(locks.setdefault(key_of(client, wanted), threading.RLock()), patience(client))


def others_wait(client: Options, wanted: str) -> bool:
    """Whether threads in need of the same queue pair wait for this thread."""
    return key_of(client, wanted) not in unshared


def key_of(client: Options, wanted: str) -> Key:
    keepalive = client.socket_keepalive
    probes = keepalive and (keepalive.idle, keepalive.intvl, keepalive.cnt)
    # Clients with the same key may share a queue pair. The key has the credentials, because lane 0 is authenticated
    # with its lifeline, also for the next Client on this lane.
    # So is the lifeline's trust in the server.
    return client.server, wanted, client.rdma_cm_port, probes, client.credentials, client.tls_context


def join(client: Options, wanted: str) -> tuple[RdmaStream, Transport] | None:
    """(stream, row) of a lane on a queue pair of the process, or None: the caller makes another queue pair.

    Each of the server's threads gets a queue pair. So does each connecting thread of this process, up to
    MOST_FOR_THREADS: two threads that use the same queue pair at the same time wait for each other now and then.
    Otherwise join takes the queue pair with the fewest lanes: of the thread's own, or, if it has none, of all.
    """
    key = key_of(client, wanted)
    # Read before `shared`: so a queue pair that comes meanwhile counts twice; in the other order it could count not at
    # all.
    under_way = len(connecting.get(key, ()))
    pairs = [one for one in list(shared.get(key, ())) if not one[0].ended()]
    count = under_way + len(pairs)
    free = [one for one in pairs if one[0].usable()]
    if not free:
        return None
    mine = [queue for queue, thread in free if thread == threading.get_ident()]
    if count < free[0][0].workers or (not mine and count < MOST_FOR_THREADS):
        return None
    queue = min(mine or [queue for queue, _ in free], key=lambda one: one.users)
    return stream_of(client, queue), queue.row


def one_count() -> Turn:
    """The lock held from join to reserve, for a `with`."""
    return Turn(counting, None)


def reserve(client: Options, wanted: str, attempt: object) -> None:
    """Counts an attempt to make a queue pair through rdma_cm, until release."""
    connecting.setdefault(key_of(client, wanted), set()).add(attempt)


def release(client: Options, wanted: str, attempt: object) -> None:
    """Ends the count of an attempt, if the attempt was counted."""
    connecting.get(key_of(client, wanted), set()).discard(attempt)


def share(client: Options, wanted: str, queue: QueuePair) -> RdmaStream:
    """The first stream of a queue pair that others may join. Drops ended queue pairs from `shared`."""
    stream = stream_of(client, queue)
    for pairs in list(shared.values()):
        for one in list(pairs):
            if one[0].ended():
                with contextlib.suppress(ValueError):
                    pairs.remove(one)
    if queue.usable():
        unshared.discard(key_of(client, wanted))
        shared.setdefault(key_of(client, wanted), []).append((queue, threading.get_ident()))
    else:
        share_nothing(client, wanted)
    return stream


def share_nothing(client: Options, wanted: str) -> None:
    """Notes that the new connection has no lanes for others, so threads do not wait for the next (see `unshared`)."""
    unshared.add(key_of(client, wanted))


def is_covered(client: Options, row: Transport) -> bool:
    """Whether the second connection is to have TLS: the lifeline has it, and the octets leave the host."""
    return client.tls_context is not None and row.attach is not None and not row.near


def ask(queue: QueuePair, plain: socket.socket, covered: bool) -> Offer:
    """The exchange of lines. Raises the errors of read_reply_line, and ExchangeRefused."""
    # A server that wants no connection may have said so before it has read anything.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        plain.sendall(queue.exchange_line(covered))
    return Offer(read_reply_line(plain), queue.row.attach is not None)


def read_reply_line(plain: socket.socket) -> bytes:
    """The next line of the server, without its end. The server sends nothing behind the line.

    Raises MemcacheServerError, ExchangeEnded, OSError, TimeoutError.
    """
    received = b""
    while not received.endswith(b"\r\n"):
        if len(received) >= REPLY_LIMIT:
            raise MemcacheServerError(f"the answer to the RDMA exchange is too long: {received[:64]!r}...")
        more = plain.recv(REPLY_LIMIT - len(received))
        if not more:
            raise ExchangeEnded("the server closed the connection during the RDMA exchange")
        received += more
    if received[:-2] == FULL:
        raise too_many_connections()
    if is_unauthenticated(received[:-2]):
        raise authentication_wanted(received[:-2])
    return received[:-2]


def open_rdma(client: Options, plain: socket.socket, row: Transport, wanted: str | None) -> RdmaStream:
    """The RDMA stream of a queue pair whose lifeline is plain, for a transport of the exchange.

    wanted: the transport argument of Clients that may share the queue pair; None: nobody may.

    Raises TransportUnavailable, after which plain is still an ordinary connection; MemcacheServerError, OSError,
    TimeoutError.
    """
    covered = is_covered(client, row)
    if covered:
        load_tls()
    try:
        queue = QueuePair(row, client.server)
        queue.exchange_line()
    except OSError as error:
        raise TransportUnavailable(f"no queue pair here: {error}") from error
    # If anything is raised from here on, the queue pair is freed with its object.
    plain.settimeout(patience(client))
    queue.connect(client, ask(queue, plain, covered), plain, patience(client))
    return stream_of(client, queue) if wanted is None else share(client, wanted, queue)


def open_rdma_cm(client: Options, row: Transport, wanted: str | None) -> RdmaStream:
    """The RDMA stream to the server's port of rdma_cm; there is no lifeline. wanted: as for open_rdma.

    Raises TransportUnavailable, MemcacheServerError, OSError, TimeoutError.
    """
    host, port = cast(tuple[str, int], client.server)  # a Client takes no path with rdma_cm
    found = socket.getaddrinfo(host, client.rdma_cm_port or port, type=socket.SOCK_STREAM)
    for index, (family, _, _, _, address) in enumerate(found):
        try:
            queue = QueuePair(row, client.server, CmRoute(family, address, patience(client)))
        except TimeoutError:
            raise
        except OSError as error:
            if index + 1 == len(found):
                raise TransportUnavailable(f"no queue pair here: {error}") from error
            continue
        try:
            queue.connect_cm(patience(client))
        except TransportRefused as error:
            raise TransportUnavailable(str(error)) from error
        except ConnectionRefusedError:
            if index + 1 == len(found):
                raise
            continue
        return stream_of(client, queue) if wanted is None else share(client, wanted, queue)
    raise AssertionError("getaddrinfo gives one address at least")

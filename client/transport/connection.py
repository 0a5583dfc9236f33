"""The choice of a connection's transport."""

from __future__ import annotations

import codecs
import contextlib
import logging
import socket
from typing import Any

from ..exceptions import (
    ExchangeEnded,
    ExchangeRefused,
    MemcacheError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    TooManyConnections,
    TransportUnavailable,
)
from . import exchange
from ._socket_stream import SocketStream
from ._tcp import TcpStream
from .authentication import authenticate, knows_version, recognise, takes_text
from .binary import BinarySocket
from .sockets import (
    Options,
    is_local,
    is_ours,
    is_patched,
    name_failure,
    open_socket,
    server_text,
    speaks_tls,
    why_plain,
    wrap,
)
from .transports import PLAIN, ROWS, Transport

logger = logging.getLogger("rmemcached.client")

PROBE_LIMIT = 1.0  # seconds

# The client imports all modules for connecting here: in a child forked during a later import, the module's lock would
# stay for ever. Looking up a host's name needs this codec.
codecs.lookup("idna")


def open_plain(client: Options) -> socket.socket:
    """connect_plain, for text: through a BinarySocket if the server takes none after SASL. Raises the same errors."""
    plain = connect_plain(client)
    try:
        if client.credentials is not None and client.credentials.sasl:
            if client.binary_only is None:
                client.binary_only = not takes_text(plain)
                if client.binary_only:
                    plain.close()
                    plain = connect_plain(client)
            if client.binary_only:
                return BinarySocket(plain)  # type: ignore[return-value]
    except BaseException:
        plain.close()
        raise
    return plain


def connect_plain(client: Options) -> socket.socket:
    """A socket connected to the client's server, authenticated. Its time-out is the one for connecting.

    Raises OSError, TimeoutError, MemcacheClientError: the server does not know the client; MemcacheServerError.
    """
    plain = open_socket(
        client.server,
        client.connect_timeout,
        client.socket_keepalive,
        client.no_delay,
        client.socket_module,
    )
    try:
        plain.settimeout(exchange.patience(client))
        if client.tls_context is not None:
            plain = wrap(plain, client.tls_context, client.server)
        authenticate(client, plain)
    except BaseException:
        plain.close()
        raise
    return plain


def candidates(client: Options, pinned: Transport | None) -> list[Transport]:
    """The transports to try before the plain connection itself. pinned: None for "auto"."""
    if pinned is not None:
        return [] if pinned.plain else [pinned]
    found = [row for row in ROWS.values() if row.by_cm and client.rdma_cm_port is not None]
    if not client.closes_on_rdma:
        far = not isinstance(client.server, str)
        found += [row for row in ROWS.values() if row.automatic and (far or row.near)]
    return found


def refuse_tls(client: Options) -> None:
    """Raises MemcacheServerError if the server of a client without TLS, which has closed a connection, speaks TLS."""
    if client.tls_context is not None or isinstance(client.server, str):
        return
    patience = exchange.patience(client)
    limit = PROBE_LIMIT if patience is None else min(patience, PROBE_LIMIT)
    with contextlib.suppress(OSError):
        plain = open_socket(client.server, limit, None, True, client.socket_module)
        with contextlib.closing(plain):
            plain.settimeout(limit)
            if speaks_tls(plain):
                raise MemcacheServerError("the server speaks TLS: give tls_context, or memcacheds:// in the URL")


class Choice:
    """The choice for a connection: tries transports, and remembers the reasons against the tried transports."""

    def __init__(self, client: Options, wanted: str, alone: bool) -> None:
        self.client = client
        self.wanted = wanted
        self.pinned = ROWS.get(wanted)  # None: "auto"
        self.alone = alone
        self.reasons: list[str] = []
        self.refused = False  # the last answer on self.plain was an error, and the server may close the connection

    def open(self) -> tuple[Any, Transport]:
        """(stream, row). Raises the same errors as open_stream."""
        reason = why_plain(self.client) if self.pinned is None else None
        if reason is not None:
            self.reasons.append(reason)
            self.pinned = PLAIN
        if self.alone or (self.pinned is not None and self.pinned.plain):
            return self.open_by_cm() or self.open_one()
        by_cm = any(row.by_cm for row in candidates(self.client, self.pinned))
        opened = self.join_or_open_by_cm() if by_cm else self.join()
        if opened is None:
            with exchange.one_at_a_time(self.client, self.wanted):
                # Another thread may have made a queue pair meanwhile.
                opened = self.join()
                if opened is None and exchange.others_wait(self.client, self.wanted):
                    opened = self.open_and_tell()
        return self.open_and_tell() if opened is None else opened

    def open_and_tell(self) -> tuple[Any, Transport]:
        """open_one. After a plain connection threads do not wait for each other any more (exchange.unshared)."""
        opened = self.open_one()
        if opened[1].plain:
            exchange.share_nothing(self.client, self.wanted)
        return opened

    def open_by_cm(self) -> tuple[Any, Transport] | None:
        """(stream, row) through rdma_cm, or None when another transport may be tried."""
        for row in candidates(self.client, self.pinned):
            if row.by_cm and (stream := self.try_rdma_cm(row)) is not None:
                return stream, row
        return None

    def join_or_open_by_cm(self) -> tuple[Any, Transport] | None:
        """join, else open_by_cm. No thread waits for its turn: a server without an answer over rdma_cm would use up the
        patience of other threads, which could not fall back any more."""
        try:
            with exchange.one_count():
                opened = self.join()
                if opened is None:
                    exchange.reserve(self.client, self.wanted, self)
            return opened or self.open_by_cm()
        finally:
            exchange.release(self.client, self.wanted, self)

    def open_one(self) -> tuple[Any, Transport]:
        """(stream, row) of a new connection to the server's port: plain, or a queue pair that others can join."""
        self.plain = open_plain(self.client)
        if self.pinned is None and self.client.closes_on_rdma:
            self.reasons.append("the server closes connections that ask for RDMA")
        try:
            # Another thread may have learned meanwhile that the server closes connections that ask for RDMA.
            for row in candidates(self.client, self.pinned):
                if not row.by_cm and (stream := self.try_rdma(row)) is not None:
                    return stream, row
            classic, unmarked = self.recognise()
            if is_ours(self.plain) and self.client.tls_context is None and self.client.socket_module is None:
                self.plain.settimeout(None)
                stream = TcpStream(self.plain, self.client.timeout, int((self.client.spin or 0) * 1000))
            else:
                stream = SocketStream(self.plain, self.client.timeout)
        except BaseException:
            self.plain.close()
            raise
        stream.classic = classic
        stream.unmarked = unmarked
        return stream, PLAIN

    def recognise(self) -> tuple[bool, bool]:
        """(classic, unmarked): the server's abilities, asked for on self.plain (authentication.recognise). If the
        server ends the connection because of the question, connects again and does not repeat the question."""
        client = self.client
        refused = self.refused
        while not client.closes_on_meta:
            try:
                self.plain.settimeout(exchange.patience(client))
                found, lives = recognise(self.plain)
            except (MemcacheUnexpectedCloseError, ConnectionResetError):
                self.open_again()
                if refused:
                    # The server may have ended the connection because of the exchange before. Ask without an exchange.
                    refused = False
                    client.closes_on_rdma = True
                    continue
                self.ask_for_version()
            else:
                if not lives:
                    self.open_again()
                return found
        if self.refused:
            self.open_again()
        return True, client.unmarked

    def ask_for_version(self) -> None:
        """Notes the abilities of a server that has ended a connection for a question about meta commands."""
        client = self.client
        try:
            client.unmarked = not knows_version(self.plain)
        except (MemcacheUnexpectedCloseError, ConnectionResetError):
            refuse_tls(client)
            client.unmarked = True
        if client.unmarked:
            self.open_again()
        # Set last: from here on no thread asks.
        client.closes_on_meta = True

    def open_again(self) -> None:
        """A new self.plain: the old connection has ended, or soon may. Raises the same errors as open_plain."""
        self.plain.close()
        self.plain = open_plain(self.client)
        self.plain.settimeout(exchange.patience(self.client))
        self.refused = False

    def join(self) -> tuple[Any, Transport] | None:
        """(stream, row) on a queue pair made by another Client, or None."""
        try:
            return exchange.join(self.client, self.wanted)
        except OSError:
            # The queue pair has no lane left, or has just ended.
            return None

    def try_rdma_cm(self, row: Transport) -> Any:
        """The stream, or None when another transport may be tried."""
        try:
            return exchange.open_rdma_cm(self.client, row, None if self.alone else self.wanted)
        except (MemcacheServerError, OSError) as error:
            if self.pinned is not None:
                raise
            self.reasons.append(f"{row.name} is not available: {error}")
        return None

    def try_rdma(self, row: Transport) -> Any:
        """The stream, or None when another transport may be tried, on self.plain."""
        try:
            if self.pinned is None and row.near and not is_local(self.plain):
                # A server on another host must not learn this host's identity, nor choose a path for the client's
                # second connection.
                raise TransportUnavailable("the server is on another host")
            return exchange.open_rdma(self.client, self.plain, row, None if self.alone else self.wanted)
        except TransportUnavailable as error:
            if self.pinned is not None:
                raise
            self.reasons.append(f"{row.name} is not available: {error}")
            self.refused = self.refused or isinstance(error, ExchangeRefused)
        except TooManyConnections:
            raise
        except (MemcacheServerError, OSError) as error:
            # A server without an answer over TCP in time will not answer next time either. A timeout over a device of
            # the system is a matter of another network.
            if self.pinned is not None or (isinstance(error, TimeoutError) and row.soft):
                raise
            self.reasons.append(f"{row.name} failed: {error}")
            refused = self.refused and isinstance(error, (ExchangeEnded, ConnectionResetError))
            self.open_again()
            self.client.closes_on_rdma |= refused
        return None

    def why(self, row: Transport) -> str:
        """Why this transport was taken, for the log."""
        if row.plain:
            return "; ".join(self.reasons) or "as asked for"
        return "; ".join(["both ends have it" if self.pinned is None else "as asked for", *self.reasons])


# The transports already reported to block greenlets.
told: set[str] = set()


def tell_what_blocks(client: Options, transport: str) -> None:
    """Warns, once in a process, of a transport that blocks the thread's other greenlets while a call waits."""
    if not ROWS[transport].plain and is_patched() and transport not in told:
        told.add(transport)
        logger.warning(
            "%s: transport %s: the standard library's sockets are patched (gevent, eventlet), and while a call waits"
            " no other greenlet of its thread runs: over transport 'tcp' they do",
            server_text(client.server),
            transport,
        )


def name_connecting(error: OSError, client: Options, wanted: str) -> None:
    """Adds server and command to the text of an error without the server's name."""
    place = server_text(client.server)
    if error.filename is not None or place in str(error):
        return
    if error.errno is not None:
        name_failure(error, client.server, f"connecting ({wanted})")
    elif isinstance(error, TimeoutError):
        patience = exchange.patience(client) or 0
        error.args = (f"{place}: connecting ({wanted}): timed out: nothing has come for {patience:g} s",)


def open_stream(client: Options, wanted: str, logged: str | None, alone: bool = False) -> tuple[Any, str, str]:
    """(stream, transport's name, log text about it) of a new connection of the client.

    wanted: of TRANSPORTS. logged: the last text in the log, or None; a different text is logged: of another transport,
    or when gets begin or cease to ask the server. alone: no other connection shares the queue pair. Raises
    MemcacheServerError (TransportUnavailable when an end lacks the transport), OSError, TimeoutError.
    """
    choice = Choice(client, wanted, alone)
    try:
        try:
            stream, row = choice.open()
        except (MemcacheUnexpectedCloseError, ExchangeEnded, ConnectionResetError):
            refuse_tls(client)
            raise
    except OSError as error:
        name_connecting(error, client, wanted)
        raise
    except MemcacheError as error:
        error.server = server_text(client.server)
        error.command = f"connecting ({wanted})"
        raise
    reads = getattr(stream, "reads", "")
    says = f"; {reads}" if reads else ""
    if logged != row.name + says:
        logger.info("%s: transport %s (%s)%s", client.server, row.name, choice.why(row), says)
    return stream, row.name, row.name + says

"""How a client reaches its server: addresses, sockets, and the choice of the transport."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Any

from ._tcp import TcpStream
from .exceptions import MemcacheServerError, MemcacheUnexpectedCloseError

logger = logging.getLogger("rmemcached.client")

RDMA_TRANSPORTS = ("verbs", "soft_shm", "soft_iw")  # in the order of preference
TRANSPORTS = ("auto", "rdma_cm", *RDMA_TRANSPORTS, "tcp")
DEFAULT_PORT = 11211
DEFAULT_SPIN = {"rdma_cm": 50, "verbs": 50, "soft_shm": 50, "soft_iw": 50, "tcp": 0}  # microseconds
REPLY_LIMIT = 1026  # bytes of an exchange line with its end
SHM_REQUEST = b"SHM ID Req Frame"
SHM_REPLY = b"SHM ID Rep Frame"

Server = tuple[str, int] | str


class KeepaliveOpts:
    """TCP keepalive: seconds idle before the first probe, seconds between probes, probes before giving up."""

    __slots__ = ("cnt", "idle", "intvl")

    def __init__(self, idle: int = 1, intvl: int = 1, cnt: int = 5) -> None:
        for name, value in (("idle", idle), ("intvl", intvl), ("cnt", cnt)):
            if value < 1:
                raise ValueError(f"The {name} parameter must be greater or equal to 1.")
        self.idle = idle
        self.intvl = intvl
        self.cnt = cnt


def normalize_server(server: Any) -> Server:
    """A (host, port) tuple, or the path of a UNIX socket, from what pymemcache takes as a server."""
    if isinstance(server, (tuple, list)):
        host, port = server
        return (host, int(port))
    if not isinstance(server, str):
        raise ValueError(f"Unsupported server specification: {server!r}")
    if server.startswith("unix:"):
        return server[5:]
    if server.startswith("/"):
        return server
    if ":" not in server or server.endswith("]"):
        host, port = server, DEFAULT_PORT
    else:
        host, _, digits = server.rpartition(":")
        port = int(digits)
    if host.startswith("["):
        host = host.strip("[]")
    return (host, port)


def open_socket(
    server: Server, connect_timeout: float | None, keepalive: KeepaliveOpts | None, no_delay: bool
) -> socket.socket:
    """A connected socket that still has connect_timeout as its time-out."""
    if isinstance(server, str):
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(connect_timeout)
            plain.connect(server)
        except BaseException:
            plain.close()
            raise
        return plain
    plain = socket.create_connection(server, connect_timeout)
    try:
        if no_delay:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if keepalive is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive.idle)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive.intvl)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keepalive.cnt)
    except BaseException:
        plain.close()
        raise
    return plain


class TransportUnavailable(MemcacheServerError):
    """The server, or this machine, does not have the transport."""


def read_reply_line(plain: socket.socket) -> bytes:
    """One line of the server, without its end. Nothing behind it is expected, so nothing behind it is lost."""
    received = b""
    while not received.endswith(b"\r\n"):
        if len(received) >= REPLY_LIMIT:
            raise MemcacheServerError(f"the answer to the RDMA exchange is too long: {received[:64]!r}...")
        more = plain.recv(REPLY_LIMIT - len(received))
        if not more:
            raise MemcacheUnexpectedCloseError("the server closed the connection during the RDMA exchange")
        received += more
    return received[:-2]


def parse_exchange(line: bytes) -> dict[str, str]:
    """The tokens of the server's exchange line (docs/rdma-protocol.md section 2)."""
    word, *tokens = line.decode("ascii", "replace").split(" ")
    if word != "RDMA":
        raise TransportUnavailable(f"the server answered {line.decode('ascii', 'replace')}")
    return dict(token.partition("=")[::2] for token in tokens)


def open_rdma(client: Any, plain: socket.socket, transport: str) -> Any:
    """The RDMA stream whose lifeline is plain. TransportUnavailable: plain is still an ordinary connection."""
    try:
        from ._rdma import RdmaStream
    except ImportError as error:
        raise TransportUnavailable(f"the client was built without it: {error}") from error
    try:
        stream = RdmaStream(transport, client.timeout, spin_time(client, transport))
        line = stream.exchange_line()
    except OSError as error:
        raise TransportUnavailable(f"no queue pair here: {error}") from error
    # What is left of a stream that does not come about is freed with the object.
    patience = client.timeout if client.connect_timeout is None else client.connect_timeout
    plain.settimeout(patience)
    plain.sendall(line)
    offer = parse_exchange(read_reply_line(plain))
    if transport == "verbs":
        stream.connect(offer, None, plain, patience)
        return stream
    second = open_shm(client, offer, patience) if transport == "soft_shm" else open_iw(client, plain)
    try:
        stream.connect(offer, second, plain, patience)
    finally:
        second.close()
    return stream


def open_rdma_cm(client: Any) -> Any:
    """The RDMA stream to the server's port of rdma_cm; there is no lifeline. TransportUnavailable, OSError."""
    try:
        from ._rdma import CmRoute, RdmaStream, TransportRefused
    except ImportError as error:
        raise TransportUnavailable(f"the client was built without it: {error}") from error
    host, port = client.server
    patience = client.timeout if client.connect_timeout is None else client.connect_timeout
    found = socket.getaddrinfo(host, client.rdma_cm_port or port, type=socket.SOCK_STREAM)
    for index, (family, _, _, _, address) in enumerate(found):
        try:
            route = CmRoute(family, address, patience)
            stream = RdmaStream("rdma_cm", client.timeout, spin_time(client, "rdma_cm"), route)
        except TimeoutError:
            raise
        except OSError as error:
            if index + 1 == len(found):
                raise TransportUnavailable(f"no queue pair here: {error}") from error
            continue
        try:
            stream.connect_cm(patience)
        except TransportRefused as error:
            raise TransportUnavailable(str(error)) from error
        except ConnectionRefusedError:
            if index + 1 == len(found):
                raise
            continue
        return stream
    raise AssertionError("getaddrinfo gives one address at least")


def open_iw(client: Any, plain: socket.socket) -> socket.socket:
    """The connection for the iWARP stream."""
    peer = plain.getpeername()
    return open_socket((peer[0], peer[1]), client.connect_timeout, client.socket_keepalive, True)


def open_shm(client: Any, offer: dict[str, str], patience: float | None) -> socket.socket:
    """The connection for shared memory, agreed (docs/rdma-protocol.md section 3). MemcacheServerError."""
    path = offer.get("path") or client.server
    if not isinstance(path, str):
        raise MemcacheServerError(f"the server's answer to the RDMA exchange names no path: {offer}")
    try:
        request = SHM_REQUEST + int(offer["qpn"]).to_bytes(4, "big") + bytes.fromhex(offer["token"])
    except (KeyError, ValueError, OverflowError):
        raise MemcacheServerError(f"the server's answer to the RDMA exchange makes no sense: {offer}") from None
    second = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        second.settimeout(patience)
        second.connect("\0" + path[1:] if path.startswith("@") else path)
        # A server that refuses may do so before it has read anything.
        with suppress(BrokenPipeError):
            second.sendall(request)
        reply = b""
        with suppress(ConnectionResetError):
            while len(reply) < len(SHM_REPLY) and (more := second.recv(len(SHM_REPLY) - len(reply))):
                reply += more
            while reply != SHM_REPLY and len(reply) < REPLY_LIMIT and (more := second.recv(REPLY_LIMIT - len(reply))):
                reply += more
        if reply != SHM_REPLY:
            text = reply.decode("ascii", "replace").strip()
            raise MemcacheServerError(text or "the server closed the connection for shared memory")
    except OSError as error:
        second.close()
        raise MemcacheServerError(f"{path}: {error.strerror or error}") from error
    except BaseException:
        second.close()
        raise
    return second


def is_local(plain: socket.socket) -> bool:
    """Whether the other end is on this host, as far as addresses tell."""
    if plain.family == socket.AF_UNIX:
        return True
    return plain.getpeername()[0] == plain.getsockname()[0]


def spin_time(client: Any, transport: str) -> int:
    """Nanoseconds for which a wait may spin."""
    spin = DEFAULT_SPIN[transport] if client.spin is None else client.spin
    return int(spin * 1000)


def open_stream(client: Any, wanted: str, logged: str | None) -> tuple[Any, str, str]:
    """(stream, transport, transport reported in the log) of a new connection of client."""
    reasons = []
    if wanted == "rdma_cm" or (wanted == "auto" and client.rdma_cm_port is not None):
        try:
            stream = open_rdma_cm(client)
        except (MemcacheServerError, OSError) as error:
            if wanted != "auto":
                raise
            reasons.append(f"rdma_cm is not available: {error}")
        else:
            if logged != "rdma_cm":
                why = "both ends have it" if wanted == "auto" else "as asked for"
                logger.info("%s: transport rdma_cm (%s)", client.server, why)
            return stream, "rdma_cm", "rdma_cm"
    plain = open_socket(client.server, client.connect_timeout, client.socket_keepalive, client.no_delay)
    candidates = RDMA_TRANSPORTS if wanted == "auto" else (wanted,) if wanted != "tcp" else ()
    if wanted == "auto" and isinstance(client.server, str):
        candidates = ("soft_shm",)
    try:
        for transport in candidates:
            try:
                if wanted == "auto" and transport == "soft_shm" and not is_local(plain):
                    # Nothing of this host is told to another, and no path of his choice is gone to.
                    raise TransportUnavailable("the server is on another host")
                stream = open_rdma(client, plain, transport)
            except TransportUnavailable as error:
                if wanted != "auto":
                    raise
                reasons.append(f"{transport} is not available: {error}")
            except (MemcacheServerError, OSError) as error:
                # A server that does not answer over TCP once would not do so twice; the networks of two verbs devices
                # need not meet.
                if wanted != "auto" or (isinstance(error, TimeoutError) and transport != "verbs"):
                    raise
                reasons.append(f"{transport} failed: {error}")
                plain.close()
                plain = open_socket(client.server, client.connect_timeout, client.socket_keepalive, client.no_delay)
            else:
                if logged != transport:
                    why = "; ".join(["both ends have it" if wanted == "auto" else "as asked for", *reasons])
                    logger.info("%s: transport %s (%s)", client.server, transport, why)
                return stream, transport, transport
        plain.settimeout(None)
        stream = TcpStream(plain.fileno(), client.timeout, spin_time(client, "tcp"))
        plain.detach()
    except BaseException:
        plain.close()
        raise
    if logged != "tcp":
        logger.info("%s: transport tcp (%s)", client.server, "; ".join(reasons) or "as asked for")
    return stream, "tcp", "tcp"

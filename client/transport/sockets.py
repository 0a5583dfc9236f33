"""Servers' addresses, and sockets connected to them."""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from .arguments import Credentials, is_integer

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_PORT = 11211
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")  # reasons of ssl when the answer is plain text

Server = tuple[str, int] | str


class Keepalive(Protocol):
    """TCP keepalive, as in KeepaliveOpts."""

    idle: int
    intvl: int
    cnt: int


class Options(Protocol):
    """The options of a Client for its connections."""

    @property
    def server(self) -> Server: ...
    @property
    def connect_timeout(self) -> float | None: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def no_delay(self) -> bool: ...
    @property
    def socket_keepalive(self) -> Keepalive | None: ...
    @property
    def spin(self) -> float | None: ...
    @property
    def rdma_cm_port(self) -> int | None: ...
    @property
    def credentials(self) -> Credentials | None: ...
    @property
    def socket_module(self) -> ModuleType | None: ...
    @property
    def tls_context(self) -> SSLContext | None: ...

    # Set by connection: the server takes no text after SASL (None: not known); the server closes connections that ask
    # for RDMA, or for meta commands; the server does not answer to `version`.
    binary_only: bool | None
    closes_on_rdma: bool
    closes_on_meta: bool
    unmarked: bool


class KeepaliveOpts:
    """TCP keepalive. idle: seconds without data before the first probe. intvl: seconds between probes. cnt: unanswered
    probes before the connection ends.

    Raises ValueError for a number below 1.
    """

    __slots__ = ("cnt", "idle", "intvl")

    def __init__(self, idle: int = 1, intvl: int = 1, cnt: int = 5) -> None:
        for name, value in (("idle", idle), ("intvl", intvl), ("cnt", cnt)):
            if not is_integer(value) or value < 1:
                raise ValueError(f"The {name} parameter must be an integer greater or equal to 1.")
        self.idle = idle
        self.intvl = intvl
        self.cnt = cnt


def server_text(server: Server) -> str:
    """A server's name in errors and logs: "host:port", "[v6]:port", or the path of a UNIX socket."""
    if isinstance(server, str):
        return server
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_unix(path: str, timeout: float | None, module: Any = socket) -> socket.socket:
    """A socket connected to a UNIX socket, with its time-out in seconds. Raises OSError, TimeoutError."""
    plain: socket.socket = module.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        plain.settimeout(timeout)
        plain.connect(path)
    except BaseException:
        plain.close()
        raise
    return plain


def name_server(error: OSError, server: Server) -> None:
    """Adds the server to the text of an error of connecting."""
    where = server_text(server)
    if error.errno is None:  # a time-out
        error.args = (f"{error}: {where}",)
    else:
        error.filename = where


def create_connection(module: Any, server: tuple[str, int], timeout: float | None) -> socket.socket:
    """socket.create_connection, by the means of another module. Raises OSError, TimeoutError."""
    problem: OSError = OSError(f"no address of {server[0]}")
    for family, kind, protocol, _, address in module.getaddrinfo(*server, socket.AF_UNSPEC, socket.SOCK_STREAM):
        plain: socket.socket = module.socket(family, kind, protocol)
        try:
            plain.settimeout(timeout)
            plain.connect(address)
        except OSError as error:
            plain.close()
            problem = error
        except BaseException:
            plain.close()
            raise
        else:
            return plain
    raise problem


def is_patched() -> bool:
    """Whether the standard library's socket module has been patched, as by gevent.monkey or eventlet.monkey_patch."""
    return not issubclass(socket.socket, _socket.socket)


def is_ours(plain: Any) -> bool:
    """Whether the descriptor of a socket can be used without the socket object."""
    return isinstance(plain, _socket.socket)


def why_plain(client: Options) -> str | None:
    """Why "auto" means a plain connection: a wait on another transport would not let greenlets run, and with TLS
    only a named transport takes values elsewhere. None: there is no such reason."""
    if client.tls_context is not None:
        return "there is a tls_context"
    if client.socket_module is not None:
        return "there is a socket_module"
    return "the standard library's sockets are patched" if is_patched() else None


def check_sockets(module: Any, tls_context: Any) -> None:
    """Raises ValueError for a bad socket_module or tls_context. None: there is none."""
    for name in ("socket", "getaddrinfo"):
        if module is not None and not callable(getattr(module, name, None)):
            raise ValueError(f"socket_module must be a module like socket: {module!r} has no function {name}")
    if tls_context is not None and not callable(getattr(tls_context, "wrap_socket", None)):
        raise ValueError(f"tls_context must be a TLS context, such as ssl.SSLContext, not {tls_context!r}")


def current_greenlet() -> Any:
    """The function that returns the current greenlet, or None: nothing has loaded greenlets."""
    return getattr(sys.modules.get("greenlet"), "getcurrent", None)


def duplicate(descriptor: int) -> socket.socket:
    """A socket object with a descriptor of its own for the same socket. Raises OSError."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise


def wrap(plain: socket.socket, context: SSLContext, server: Server) -> socket.socket:
    """A connected socket after TLS's handshake, with the same time-out. Raises OSError with the server's name."""
    try:
        return context.wrap_socket(plain, server_hostname=server[0])
    except OSError as error:
        if getattr(error, "reason", None) in NO_TLS:
            error.strerror = f"the server speaks no TLS: leave out tls_context, or give memcached:// ({error.strerror})"
        elif getattr(error, "reason", None) == "CERTIFICATE_VERIFY_FAILED":
            error.strerror = f"{error.strerror}: trust its CA by the context's cafile, tls_ca=FILE or --tls-ca"
        if error.errno is None:
            name_server(error, server)
        else:
            name_failure(error, server, "connecting with TLS")
        raise


def speaks_tls(plain: socket.socket) -> bool:
    """Whether the server of a new connection answers to the beginning of a TLS handshake. Raises OSError."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the handshake is not finished
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    plain.sendall(hello.read())
    return plain.recv(2) == b"\x16\x03"


def name_failure(error: OSError, server: Server, command: str) -> None:
    """Adds server and command to the text of an error with an errno."""
    if hasattr(error, "library"):
        # The text of an error of ssl is strerror alone.
        error.strerror = f"{server_text(server)}: {command}: {error.strerror}"
    else:
        error.strerror = f"{error.strerror or os.strerror(error.errno or 0)} during {command}"
        error.filename = server_text(server)


def open_socket(
    server: Server,
    connect_timeout: float | None,
    keepalive: Keepalive | None,
    no_delay: bool,
    module: Any = None,
) -> socket.socket:
    """A connected socket. Its time-out is still connect_timeout, in seconds.

    module: in place of the standard library's. Raises OSError, TimeoutError.
    """
    try:
        if isinstance(server, str):
            return open_unix(server, connect_timeout, module or socket)
        if module is None:
            plain = socket.create_connection(server, connect_timeout)
        else:
            plain = create_connection(module, server, connect_timeout)
    except OSError as error:
        name_server(error, server)
        raise
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


def is_local(plain: socket.socket) -> bool:
    """Whether the peer of a connected socket is on this host, as far as addresses tell."""
    if plain.family == socket.AF_UNIX:
        return True
    return bool(plain.getpeername()[0] == plain.getsockname()[0])

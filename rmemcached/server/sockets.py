"""Listening sockets: opens the sockets of -l, -p, -U and -s (memcached.c, server_sockets)."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
import struct
import sys
from contextlib import suppress
from typing import NamedTuple

from rmemcached.host import read_text
from rmemcached.settings import Settings

SO_INCOMING_NAPI_ID = 56
MAX_SENDBUF_SIZE = 256 * 1024 * 1024
MAX_TAG_LENGTH = 8


class ServerError(Exception):
    """The daemon cannot start. `args[0]` is a line for the user, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Interface(NamedTuple):
    """An address of -l."""

    host: str | None
    """None: all addresses."""
    port: int
    protocol: str
    """ascii, binary or auto-negotiate."""
    tls: str
    """As in Listener."""


class Listener(NamedTuple):
    """An open socket."""

    sock: socket.socket
    transport: str
    """tcp, udp, unix, or shm: for the streams of soft_shm only."""
    protocol: str
    tls: str = "notls"
    """notls: no TLS; tls: client certificates by ssl_verify_mode; btls: none; mtls: required."""


def parse_interface(text: str, port: int, settings: Settings) -> Interface:
    """An address of -l: [notls:|btls:|mtls:][proto[..]:][tag[..]:]host[:port]. Raises ServerError."""
    rest = text
    tls = "tls" if settings.ssl_enabled else "notls"
    for word in ("notls", "btls", "mtls"):
        if rest.startswith(word):
            if not settings.ssl_enabled:
                raise ServerError(f"'{word}' option is valid only when SSL is enabled", os.EX_OSERR)
            tls = word
            rest = rest[len(word) + 1 :]
            break
    protocol = settings.protocol
    if rest.startswith("proto["):
        name, bracket, rest = rest[6:].partition("]")
        if not bracket:
            raise ServerError(f'Invalid protocol spec: "{text}"', os.EX_OSERR)
        rest = rest[1:]
        if name not in ("ascii", "binary", "negotiating"):
            reason = "Server not built with proxy" if name == "proxy" else "Invalid protocol spec"
            raise ServerError(f'{reason}: "{text}"', os.EX_OSERR)
        protocol = "auto-negotiate" if name == "negotiating" else name
        if settings.sasl:
            if protocol == "ascii" and settings.auth_file is None:
                message = "Cannot use ascii protocol when SASL is enabled: clients could not authenticate"
                raise ServerError(message, os.EX_OSERR)
        elif settings.auth_file is not None:
            if protocol == "binary":
                raise ServerError("Cannot use binary protocol when ascii authentication enabled", os.EX_OSERR)
            if protocol == "auto-negotiate":
                message = "WARNING: negotiating ports are ascii only when ascii authentication enabled"
                print(message, file=sys.stderr)
                protocol = "ascii"
    if found := re.match(r"tag[\[_]", rest):
        name, end, rest = re.match(r"([^\]_]*)([\]_]?)(.*)", rest[found.end() :], re.DOTALL).groups()  # type: ignore[union-attr]
        if not end:
            raise ServerError(f'Invalid tag in socket config: "{text}"', os.EX_OSERR)
        if not 1 <= len(name) <= MAX_TAG_LENGTH:
            raise ServerError(f'Listener tags must be between 1 and 8 characters: "{name}"', os.EX_OSERR)
        rest = rest[1:]
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ServerError(f'Invalid IPV6 address: "{text}"', os.EX_OSERR)
        number = rest[1:]
    elif rest.count(":") == 1:
        host, _, number = rest.partition(":")
    else:
        host, number = rest, ""
    if number:
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise ServerError(f'Invalid port number: "{number}"', os.EX_OSERR)
        port = int(number)
    return Interface(None if host == "*" else host, port, protocol, tls)


def maximize_sndbuf(sock: socket.socket) -> None:
    """Gives the socket the largest send buffer allowed by the system."""
    low, high = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), MAX_SENDBUF_SIZE
    while low <= high:
        middle = (low + high) // 2
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, middle)
            low = middle + 1
        except OSError:
            high = middle - 1


def prepare(sock: socket.socket, family: int, settings: Settings) -> None:
    """Sets the options of a socket, before its bind."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if settings.napi_ids:
        try:
            sock.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)
        except OSError:
            raise ServerError("-N <num_napi_ids> option not supported") from None
    if settings.sock_cookie_id:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, struct.pack("I", settings.sock_cookie_id))
        except OSError as error:
            print(f"setsockopt: {error.strerror}", file=sys.stderr)
    if sock.type == socket.SOCK_DGRAM:
        maximize_sndbuf(sock)


def bind_all(interface: Interface, transport: str, settings: Settings, what: str) -> list[Listener]:
    """Binds every address behind the interface's name. `what` names the place in errors. Raises ServerError."""
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(interface.host, max(interface.port, 0), type=kind, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServerError(f"failed to listen on {what}: getaddrinfo(): {reason}", os.EX_OSERR) from None
    problem: OSError | None = None
    bound: list[Listener] = []
    for family, kind, number, _, address in found:
        try:
            sock = socket.socket(family, kind, number)
        except OSError as error:
            # For example, the kernel has no IPv6. The other addresses are enough.
            problem = problem or error
            continue
        if address[1] == 0 and bound:
            # Both families get the same ephemeral port.
            address = (address[0], bound[0].sock.getsockname()[1], *address[2:])
        try:
            prepare(sock, family, settings)
            sock.bind(address)
            if transport != "udp":
                sock.listen(settings.backlog)
        except OSError as error:
            sock.close()
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise ServerError(f"failed to listen on {what}: {error.strerror}", os.EX_OSERR) from None
            problem = error
            if error.errno == errno.EADDRINUSE:
                break
            continue
        sock.setblocking(False)
        bound.append(Listener(sock, transport, interface.protocol, "notls" if transport == "udp" else interface.tls))
    if not bound or (problem is not None and problem.errno == errno.EADDRINUSE):
        reason = problem.strerror if problem is not None else "no address"
        raise ServerError(f"failed to listen on {what}: {reason}", os.EX_OSERR)
    return bound


def bind_unix(path: str, settings: Settings) -> socket.socket:
    """A listening UNIX socket with the permissions of -a. Replaces the socket left by a dead daemon."""
    # If the file cannot be read or removed, `bind` fails and says why.
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(~settings.socket_mask & 0o777)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        message = f"failed to listen on UNIX socket: {path}: {error.strerror or error}"
        raise ServerError(message, os.EX_OSERR) from None
    finally:
        os.umask(old)
    sock.listen(settings.backlog)
    sock.setblocking(False)
    return sock


def what_uses(path: str) -> str | None:
    """Who takes connections at this UNIX socket, or may do so; None: nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # its queue is full
        except PermissionError:
            # A user who may not look into the folder learns nothing here: `bind` fails later, and says why.
            return "another user" if os.path.exists(path) else None
        except OSError:
            return None
        return "another process"


def listen_unix(settings: Settings) -> Listener:
    """The UNIX socket of -s."""
    assert settings.socket_path is not None
    return Listener(bind_unix(settings.socket_path, settings), "unix", settings.protocol)


def listen_shm(settings: Settings) -> tuple[Listener, str]:
    """Opens the socket for soft_shm besides a TCP port. Returns the socket and its name in the exchange. Raises OSError
    or ServerError.

    By default the socket has an abstract name, which leaves no file behind, however the process ends. The name is
    random, and the peer's user id decides who may connect.
    """
    if settings.rdma_shm is not None:
        if user := what_uses(settings.rdma_shm):
            # A takeover of the file would send the other process' clients to this daemon, which does not know them.
            raise ServerError(f"{settings.rdma_shm} is in use by {user}", os.EX_OSERR)
        return Listener(bind_unix(settings.rdma_shm, settings), "shm", "ascii"), settings.rdma_shm
    name = f"rmemcached-{os.urandom(16).hex()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(b"\0" + name.encode())
        sock.listen(settings.backlog)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return Listener(sock, "shm", "ascii"), f"@{name}"


def overflow_uid() -> int:
    """The user id shown for users without an id in this user namespace; the largest number if there are no such users.

    See user_namespaces(7). A user of this namespace may have the same id.
    """
    try:
        maps = read_text("/proc/self/uid_map").split()
        if maps == ["0", "0", "4294967295"]:
            return 0xFFFFFFFF
        return int(read_text("/proc/sys/kernel/overflowuid"))
    except (OSError, ValueError):
        return 65534


def open_listeners(settings: Settings) -> list[Listener]:
    """Opens all sockets named in the settings. Raises ServerError."""
    if settings.socket_path is not None:
        return [listen_unix(settings)]
    opened: list[Listener] = []
    for transport, port in (("tcp", settings.port), ("udp", settings.udp_port)):
        if port == 0:
            continue
        if settings.interfaces:
            what = "one of interface(s) " + ",".join(settings.interfaces)
        else:
            what = f"{transport.upper()} port {max(port, 0)}"
        for text in settings.interfaces or ["*"]:
            opened += bind_all(parse_interface(text, port, settings), transport, settings, what)
    return opened


def is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def choose_cm_addresses(listeners: list[Listener]) -> list[tuple[int, str, int]]:
    """Addresses for connections of rdma_cm: (family, address, scope) of the listening sockets, each once.

    Loopback addresses are left out: no RDMA device has such an address.
    """
    chosen: dict[tuple[int, str, int], None] = {}
    for listener in listeners:
        if listener.transport in ("tcp", "udp"):
            host, _, *more = listener.sock.getsockname()
            if not is_loopback(host):
                chosen[listener.sock.family, host, more[1] if more else 0] = None
    return list(chosen)


def write_port_file(listeners: list[Listener]) -> None:
    """Writes the ports in use to the file named by MEMCACHED_PORT_FILENAME, whole or not at all."""
    name = os.environ.get("MEMCACHED_PORT_FILENAME")
    if not name:
        return
    lines = []
    for listener in listeners:
        if listener.transport == "unix":
            return
        family = "INET6" if listener.sock.family == socket.AF_INET6 else "INET"
        lines.append(f"{listener.transport.upper()} {family}: {listener.sock.getsockname()[1]}\n")
    try:
        with open(name + ".lck", "w") as file:
            file.writelines(lines)
        os.rename(name + ".lck", name)
    except OSError as error:
        print(f'Failed to open "{error.filename}": {error.strerror}', file=sys.stderr)

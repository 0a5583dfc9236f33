"""Where a ClusterClient's servers are listed: in the DNS, or by a configuration endpoint of AWS ElastiCache."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from ..exceptions import MemcacheUnknownError
from ..transport.sockets import server_text
from ..transport.transports import PLAIN
from ..urls import checked_host, checked_port, is_url
from ._client import Client

Servers = list[tuple[str, int]]

# The options of a ClusterClient for its connection to a configuration endpoint.
OF_ENDPOINT = (
    *("connect_timeout", "timeout", "socket_module", "socket_keepalive", "tls_context"),
    *("username", "password", "sasl"),
)


def dns_servers(name: str, port: int) -> Servers:
    """A server for each address of a name, IPv4 and IPv6, sorted by the address's text. Raises OSError, ValueError."""
    name, port = checked_host(name), checked_port(port)
    try:
        found = socket.getaddrinfo(name, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"{error.strerror}: {name}") from None
    return sorted({(str(address[0]), port) for *_, address in found})


def read_configuration(answer: bytes, by_address: bool) -> Servers:
    """The servers in an answer to "config get cluster" without its last line. Raises ValueError."""
    header, version, nodes = answer.split(b"\n", 2)
    if not header.startswith(b"CONFIG cluster ") or not version.strip().isdigit():
        raise ValueError(answer)
    servers: Servers = []
    for node in nodes.decode("ascii").split():
        host, address, port = node.split("|")
        servers.append((address if by_address and address else host, checked_port(port)))
    if not servers or not all(name for name, _ in servers):
        raise ValueError(answer)
    return servers


def configured_servers(endpoint: Any, options: Mapping[str, Any], by_address: bool = True) -> Servers:
    """The servers listed by a configuration endpoint.

    endpoint: as Client takes a server. options: arguments of a ClusterClient. by_address: the servers' addresses, not
    their hosts' names.
    Raises the errors of a Client's commands; MemcacheUnknownCommandError when the server is no such endpoint.
    """
    arguments = {name: options[name] for name in OF_ENDPOINT if name in options}
    with Client(endpoint, transport=None if is_url(endpoint) else PLAIN.name, **arguments) as client:
        answer = client.raw_command("config get cluster", "\n\r\nEND\r\n")
        try:
            return read_configuration(answer, by_address)
        except ValueError:
            error = MemcacheUnknownError(f"this is no list of servers: {answer[:100]!r}")
            error.server = server_text(client.server)
            error.command = "config get cluster"
            raise error from None


Discovery = Callable[[], list[Any]]

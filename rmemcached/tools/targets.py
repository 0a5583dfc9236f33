"""Servers of the operators' commands: their options, and the Clients for them."""

from __future__ import annotations

import argparse
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rmemcached.client import (
    Client,
    MemcacheClientError,
    MemcacheError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)
from rmemcached.client.exceptions import one_line
from rmemcached.client.transport.sockets import server_text
from rmemcached.client.transport.transports import PLAIN, TRANSPORTS
from rmemcached.client.urls import is_url, parse_server, shown

_T = TypeVar("_T")

DEFAULT = "127.0.0.1:11211"
SERVER_HELP = "HOST, HOST:PORT, the path of a UNIX socket, or a URL as rmemcached.client takes it"
LONGEST = 300  # characters of a server's text
PATIENCE = 3  # times --timeout, for all answers of a server: below Prometheus' limit of 10 s
ENDED = (MemcacheUnexpectedCloseError, ConnectionResetError, BrokenPipeError)
FAILURES = (MemcacheError, OSError, ValueError)
"""The errors of a request to a server: unreachable, too slow, or with a wrong answer."""


def add_options(parser: argparse.ArgumentParser, timeout: float) -> None:
    """Adds the options for connecting. timeout: seconds, the default."""
    group = parser.add_argument_group("connections")
    group.add_argument(
        "--timeout",
        type=positive,
        default=timeout,
        metavar="SECONDS",
        help="for connecting, and for each answer (%(default)g)",
    )
    group.add_argument(
        "--transport",
        choices=TRANSPORTS,
        default=PLAIN.name,
        help="the default, %(default)s, makes no queue pair in the daemon",
    )
    group.add_argument("--username", metavar="NAME", help="of a daemon with -Y; needs --password-file")
    group.add_argument("--password-file", metavar="FILE", type=Path, help="the password is the first line of it")
    group.add_argument("--sasl", action="store_true", help="name and password are for SASL (-S)")
    group.add_argument("--tls", action="store_true", help="by TLS, as a URL memcacheds://HOST:PORT")
    group.add_argument("--tls-ca", metavar="FILE", help="certificates to trust in place of the system's; implies --tls")


def positive(text: str) -> float:
    """Returns a positive number of seconds from the command line. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is needed, not {text!r}")
    return number


def settings(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of Clients for the options. Ends the command for contradicting options."""
    found: dict[str, Any] = {
        "timeout": given.timeout,
        "connect_timeout": given.timeout,
        "transport": given.transport,
    }
    if (given.username is None) != (given.password_file is None):
        parser.error("--username and --password-file are given together")
    if given.sasl and given.username is None:
        parser.error("--sasl needs --username and --password-file")
    if given.username is not None:
        try:
            lines = given.password_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--password-file {given.password_file}: {error}")
        if not lines or not lines[0]:
            parser.error(f"--password-file {given.password_file}: its first line is empty: it must be the password")
        found |= {"username": given.username, "password": lines[0], "sasl": given.sasl}
    if given.tls or given.tls_ca:
        try:
            found["tls_context"] = ssl.create_default_context(cafile=given.tls_ca)
        except OSError as error:
            parser.error(f"--tls-ca {given.tls_ca}: {error}")
    return found


def name_of(server: str) -> str:
    """Returns a server for the screen: a URL without its password."""
    return shown(server) if is_url(server) else server


def make_client(server: str, arguments: dict[str, Any]) -> Client:
    """Returns the Client of a server. A URL's options precede the command's. Raises ValueError."""
    said = parse_server(server)[1]
    return Client(server, **{name: value for name, value in arguments.items() if name not in said})


def check(parser: argparse.ArgumentParser, servers: list[str], arguments: dict[str, Any]) -> None:
    """Ends the command with one line for an impossible server."""
    for server in servers:
        try:
            parse_server(server)
        except ValueError as error:
            # The error names the server.
            parser.error(str(error))
        try:
            make_client(server, arguments).close()
        except (ValueError, TypeError) as error:
            parser.error(f"{name_of(server)}: {error}")


def address(client: Client) -> str:
    """Returns host:port, or the path of the UNIX socket."""
    return server_text(client.server)


def twice(client: Client, ask: Callable[[Client], _T]) -> _T:
    """Returns ask(client). If the server has ended the kept connection, reconnects and asks once more; raises the
    second failure. Raises the errors of ask."""
    try:
        return ask(client)
    except ENDED:
        client.close()
        return ask(client)


def clean(text: object) -> str:
    """Returns one line for any bytes of a server."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    line = one_line(str(text).strip())
    return line if len(line) <= LONGEST else line[:LONGEST] + "..."


def read_stats(client: Client, *words: str) -> dict[str, Any]:
    """Returns {name: value} of `stats words`; empty if the server, or a proxy, refuses the words. Raises FAILURES."""
    try:
        found = client.stats(*words)
    except (MemcacheClientError, MemcacheServerError) as error:
        if not words or isinstance(error, MemcacheUnexpectedCloseError):
            raise
        return {}
    return {name.decode(errors="replace"): value for name, value in found.items()}


def number(value: Any) -> float | None:
    """Returns a statistic as a finite number: yes and on are 1, no and off 0; None for any other value."""
    word = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if word in ("yes", "on"):
        return 1.0
    if word in ("no", "off"):
        return 0.0
    try:
        found = float(value if isinstance(value, int | float) else word)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None

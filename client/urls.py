"""Servers as users write them: (host, port), "host:port", the path of a UNIX socket, or a URL, perhaps with arguments
of a Client: "memcached://user:password@host:port?timeout=0.5"."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from .transport.arguments import as_port, looks_like_port
from .transport.sockets import DEFAULT_PORT, Server
from .transport.transports import ROWS

if TYPE_CHECKING:
    from ssl import SSLContext

# The transport of each scheme. None: the argument or option names the transport.
SCHEMES = {
    "memcached": "auto",
    "memcacheds": "auto",
    **{row.scheme: row.name for row in ROWS.values() if row.scheme},
    "unix": None,
}
# The schemes that leave the choice to the argument `transport`, or the option of that name.
OPEN_SCHEMES = ("memcached", "memcacheds", "unix")
# The scheme with TLS.
TLS_SCHEME = "memcacheds"

ENVIRONMENT = "RMEMCACHED_TRANSPORT"
"""The environment variable with the transport of Clients without a transport argument."""

READS_ENVIRONMENT = "RMEMCACHED_DIRECT"
"""The environment variable with the transports for reading values by RDMA READ, separated by commas."""
READ_BY_DEFAULT = [name for name, row in ROWS.items() if row.reads]
READ_TRANSPORTS = READ_BY_DEFAULT + [name for name, row in ROWS.items() if row.reads is False]

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


def as_boolean(text: str) -> bool:
    """True or False for one of the words above. Raises ValueError."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError("true or false")


def as_number(text: str) -> float | None:
    """A number; the text "none" gives None. Raises ValueError."""
    if text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number or none")
    return number


OPTIONS: dict[str, Callable[[str], Any]] = {
    "connect_timeout": as_number,
    "timeout": as_number,
    "spin": as_number,
    "no_delay": as_boolean,
    "ignore_exc": as_boolean,
    "default_noreply": as_boolean,
    "allow_unicode_keys": as_boolean,
    "key_prefix": str,
    "encoding": str,
    "transport": str,
    "rdma_cm_port": as_port,
    "sasl": as_boolean,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
}
"""The options of a URL's query, and their parsers."""
TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key")


DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("connect_timeout", "timeout", "spin", "transport", "rdma_cm_port", "tls_context")),
    **dict.fromkeys(("username", "password")),
    **{"no_delay": True, "ignore_exc": False, "default_noreply": True, "allow_unicode_keys": False},
    **{"key_prefix": b"", "encoding": "ascii", "sasl": False},
}
"""The defaults of the Client's arguments that a URL can set."""

URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
CONTROL = re.compile("[\x00-\x1f\x7f]")
UNFIT = re.compile(r"[\x00-\x20\x7f/?#@\[\]\\]")  # characters that no host has
FORMS = "a server is 'host', 'host:port', '[v6]:port', (host, port), '/path' of a UNIX socket, or a URL"
QUOTING = "what is special in it is percent-encoded: %2F for /, %3F for ?, %23 for #, %40 for @"


def is_url(server: object) -> bool:
    """Whether a server argument is a URL."""
    return isinstance(server, str) and URL.match(server) is not None


def is_place(text: str) -> bool:
    """Whether the text looks like a host, perhaps with a port. If not, text after a colon may be a password."""
    port = text.partition(":")[2]
    if text.startswith("[") or (":" not in port and (not port or (port.isdigit() and len(port) <= 5))):
        return True
    return is_ipv6(text)


def is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def shown(url: str) -> str:
    """The URL for errors: in a single line, and without the password."""
    scheme, _, rest = url.partition("://")
    # After a / or ? in the password, the rest of the password may have become a path or query.
    user = rest.rpartition("@")[0]
    if ":" in user:
        rest = user.partition(":")[0] + ":***" + rest[len(user) :]
    elif not user and not is_place(re.split("[/?#]", rest, maxsplit=1)[0]):
        rest = rest.partition(":")[0] + ":***"
    return CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", f"{scheme}://{rest}")


def explained(url: str, error: ValueError) -> str:
    """The error of a URL, without its password."""
    behind_host = "".join(re.split("[/?#]", url.partition("://")[2], maxsplit=1)[1:])
    if "@" in behind_host and not url.startswith("unix:"):
        # The password may have ended early, and be quoted in the error.
        return QUOTING
    return re.sub(":.*@", ":***@", str(error)) if "netloc" in str(error) else str(error)


def decoded(text: str) -> str:
    """The text without percent-encoding. Raises ValueError."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("what is percent-encoded must be UTF-8: other bytes can be an argument") from None


def checked_host(host: Any) -> str:
    """The host, without brackets. Raises ValueError for bad hosts, since resolvers' errors about them do not help."""
    if not isinstance(host, str):
        raise ValueError(f"the host must be a text, not {host!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host:
        raise ValueError(f"it names no host: {FORMS}")
    if host.isdigit():
        raise ValueError(f"{host!r} is a port, and the host is missing, as in '127.0.0.1:{host}'")
    if UNFIT.search(host) or (":" in host and not is_ipv6(host)):
        raise ValueError(f"{host!r} is no host: {FORMS}")
    return host


def checked_port(port: Any) -> int:
    """The port as a number. Raises ValueError."""
    try:
        return as_port(port)
    except ValueError as error:
        raise ValueError(f"the port must be {error}, not {port!r}") from None


def parse_plain(server: Any) -> Server:
    """normalize_server, with errors that do not name the server."""
    if isinstance(server, (tuple, list)) and len(server) == 2:
        return checked_host(server[0]), checked_port(server[1])
    if not isinstance(server, str):
        raise ValueError(FORMS)
    if server.startswith(("unix:", "/")):
        path = server.removeprefix("unix:")
        if not path.strip("/"):
            raise ValueError("it names no UNIX socket, as '/run/memcached.sock' does")
        return path
    if is_ipv6(server):
        raise ValueError("an IPv6 address is written in brackets: [::1]:11211")
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        return checked_host(server), DEFAULT_PORT
    return checked_host(host), checked_port(port)


def normalize_server(server: Any) -> Server:
    """A (host, port) tuple, or the path of a UNIX socket, from pymemcache's forms of a server. Raises ValueError."""
    try:
        return parse_plain(server)
    except ValueError as error:
        # Text before an @ may be a password.
        text = re.sub(r"[^'\"]*@", "***@", f"{server!r}: {error}")
        raise ValueError(f"Unsupported server specification: {text}") from None


def parse_server(server: Any) -> tuple[Server, dict[str, Any]]:
    """(server, options) of a server in any form, by parse_url or normalize_server. Raises ValueError."""
    return parse_url(server) if is_url(server) else (normalize_server(server), {})


def host_and_port(parts: SplitResult) -> tuple[str, int]:
    """The server of a URL with a host. Raises ValueError."""
    place = parts.netloc.rpartition("@")[2]
    if not place.startswith("[") and place.count(":") > 1:
        raise ValueError("an IPv6 address is written in brackets: [::1]:11211")
    host = decoded(parts.hostname or "")
    if not host:
        raise ValueError("it names no host")
    _, colon, digits = place.rpartition("]")[2].partition(":")
    try:
        port = as_port(digits) if colon else DEFAULT_PORT
    except ValueError as error:
        # Text other than a few digits may be a password whose host was forgotten: such text is not shown.
        found = repr(digits) if is_place(place) else "what is there; a name and a password end in @"
        raise ValueError(f"the port must be {error}, not {found}") from None
    if parts.path not in ("", "/"):
        raise ValueError(f"a path ({parts.path!r}) is for unix:// alone")
    return checked_host(host), port


def check_brackets(url: str) -> None:
    """Raises ValueError if more than a port follows an IPv6 address: urlsplit's own error, if any, is not clear."""
    place = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    beside = place.rpartition("]")[2].partition(":")[0]
    if beside and place.startswith("[") and "]" in place:
        raise ValueError(f"behind the brackets there is a port or nothing, not {beside!r}")


def socket_path(parts: SplitResult) -> str:
    """The server of a unix:// URL. Raises ValueError."""
    place = parts.netloc.rpartition("@")[2]
    if place or not parts.path.strip("/"):
        raise ValueError("the path of a UNIX socket follows three slashes: unix:///run/memcached.sock")
    return decoded(parts.path)


def query_options(parts: SplitResult) -> dict[str, Any]:
    """The options of a URL's query. Raises ValueError."""
    options: dict[str, Any] = {}
    try:
        pairs = parse_qsl(parts.query, True, True, errors="surrogateescape") if parts.query else []
    except ValueError:
        raise ValueError(f"the query is name=value&..., not {parts.query!r}") from None
    for name, text in pairs:
        if name not in OPTIONS:
            raise ValueError(f"there is no option {name!r}: it can have {', '.join(sorted(OPTIONS))}")
        if name in options:
            raise ValueError(f"the option {name} is there twice")
        if not text.isprintable():
            raise ValueError(f"the option {name} must be printable UTF-8, not {text!r}: other bytes can be an argument")
        try:
            options[name] = OPTIONS[name](text)
        except ValueError as error:
            raise ValueError(f"the option {name} must be {error}, not {text!r}") from None
    return options


def take_context(options: dict[str, Any], scheme: str) -> SSLContext | None:
    """Takes the options of TLS, and returns their context; None: the scheme is without TLS. Raises ValueError."""
    ca, cert, key = files = [options.pop(name, None) for name in TLS_OPTIONS]
    if scheme != TLS_SCHEME:
        if any(files):
            raise ValueError(f"the options {', '.join(TLS_OPTIONS)} are for {TLS_SCHEME}:// alone")
        return None
    if key is not None and cert is None:
        raise ValueError("the option tls_key is for a certificate: tls_cert")
    from .contexts import context_of

    try:
        return context_of(ca, cert, key)
    except OSError as error:
        # The module ssl names no file, and says "PEM lib" of a file without a certificate or with another's key.
        hint = " (not PEM, or tls_key is of another certificate)" if cert and not error.filename else ""
        raise ValueError(f"TLS: {', '.join(filter(None, files))}: {error.strerror or error}{hint}") from None


def parse_parts(url: str) -> tuple[Server, dict[str, Any]]:
    """parse_url, with errors that do not name the URL."""
    if CONTROL.search(url):
        # urlsplit would leave out some control characters without an error.
        raise ValueError("it has control characters, such as the end of a line: leave them out")
    check_brackets(url)
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"the scheme must be one of {', '.join(SCHEMES)}, not {parts.scheme!r}")
    if parts.fragment:
        what = f" ({parts.fragment!r})" if is_place(parts.netloc) else ""
        raise ValueError(f"it ends in a fragment{what}: write # as %23")
    server: Server = socket_path(parts) if parts.scheme == "unix" else host_and_port(parts)
    options = query_options(parts)
    if "transport" in options and parts.scheme not in OPEN_SCHEMES:
        raise ValueError(
            f"{parts.scheme}:// is a transport already: the option transport is for {', '.join(OPEN_SCHEMES)}"
        )
    if parts.scheme not in OPEN_SCHEMES:
        options["transport"] = SCHEMES[parts.scheme]
    context = take_context(options, parts.scheme)
    if context is not None:
        options["tls_context"] = context
    for name, text in (("username", parts.username), ("password", parts.password)):
        if text is not None:
            options[name] = decoded(text)
    return server, options


def parse_url(url: str) -> tuple[Server, dict[str, Any]]:
    """(server, options) of a URL: the server in normalize_server's form, and arguments of a Client.

    Raises ValueError, with the URL, without its password, and the error.
    """
    try:
        return parse_parts(url)
    except ValueError as error:
        raise ValueError(f"{shown(url)}: {explained(url, error)}") from None


def names_auto(url: str) -> bool:
    """Whether the URL's scheme is "auto", so the environment does not choose the transport."""
    return SCHEMES.get(urlsplit(url).scheme) == "auto"


def expanded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Client whose server is a URL, together with the URL's.

    Raises ValueError for a bad URL, and for an argument that is in the URL as well and differs from its default.
    """
    url = arguments["server"]
    server, options = parse_url(url)
    if looks_like_port(arguments["serde"]):
        raise ValueError(f"{shown(url)}: the port is a part of the URL, not an argument of its own")
    for name in options:
        if arguments[name] != DEFAULTS[name]:
            raise ValueError(f"{shown(url)}: {name} is given twice, there and as an argument: leave one of them out")
    if names_auto(url) and arguments["transport"] is None:
        options.setdefault("transport", SCHEMES["memcached"])
    return {**arguments, **options, "server": server}


def chosen_transport(transport: Any, known: Collection[str]) -> tuple[str, str]:
    """(transport, its name for errors) of a Client's argument. None: the environment variable's, or "auto".

    Raises ValueError for an unknown transport.
    """
    if transport is None and os.environ.get(ENVIRONMENT):
        transport = os.environ[ENVIRONMENT]
        who = f"the environment variable {ENVIRONMENT}"
        name = f"{ENVIRONMENT}={transport}"
    else:
        transport = "auto" if transport is None else transport
        who = "transport"
        name = f"transport {transport!r}"
    if transport not in known:
        raise ValueError(f"{who} must be one of {', '.join(known)}, not {transport!r}")
    return transport, name


def read_transports() -> Collection[str]:
    """The transports over which values are read by READs. Raises ValueError for unknown names in the environment."""
    chosen = os.environ.get(READS_ENVIRONMENT)
    if chosen is None:
        return READ_BY_DEFAULT
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in READ_TRANSPORTS:
            raise ValueError(
                f"the environment variable {READS_ENVIRONMENT} must list some of {', '.join(READ_TRANSPORTS)}, or"
                f" none, not {name!r}"
            )
    return names

"""Contenders: a server, the way to start or reach it, and a client. docs/benchmarks.md has the names."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rmemcached import __version__
from rmemcached.bench.arguments import several
from rmemcached.bench.errors import BenchError, named
from rmemcached.bench.servers import Server, connect_path, memcached_path, start_memcached, start_rmemcached
from rmemcached.client import Client
from rmemcached.client.exceptions import one_line
from rmemcached.client.urls import is_url, parse_server, shown

TRANSPORTS = ("soft_shm", "soft_iw", "tcp", "unix", "verbs", "auto")
GRAMMAR = f"{', '.join(TRANSPORTS)}, memcached, memcached=PATH, HOST:PORT; each may be followed by +pymemcache"
TIMEOUT = 60.0
VERSION_MOST = 40  # characters of a version, for any server


@dataclass(frozen=True)
class Contender:
    """A contender. server: "rmemcached", "memcached", or "running": at (host, port) or a path, not ours to start.

    transport: of our client; "unix" is the text protocol over a UNIX socket. program: memcached's path. flags: of the
    server, before the flags common to all contenders.
    """

    name: str
    server: str
    transport: str = "tcp"
    client: str = "rmemcached"
    program: str = ""
    address: tuple[str, int] | str = ("", 0)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Running:
    """A server started by somebody else; it is not stopped."""

    address: tuple[str, int] | str

    def connect(self, timeout: float | None = 5.0) -> socket.socket:
        """A plain socket. timeout: seconds. Raises OSError."""
        if isinstance(self.address, str):
            return connect_path(self.address, timeout)
        return socket.create_connection(self.address, timeout)

    def stats(self) -> dict[str, str]:
        return Server.stats(self)  # type: ignore[arg-type]  # asks by connect() only


def parse_contender(text: str) -> Contender:
    """Raises argparse.ArgumentTypeError, one line that names the mistake."""
    base, plus, client = text.partition("+")
    if plus and client != "pymemcache":
        raise argparse.ArgumentTypeError(f"{text!r}: the client behind + is pymemcache")
    client = client or "rmemcached"
    if client == "pymemcache" and importlib.util.find_spec("pymemcache") is None:
        raise argparse.ArgumentTypeError(f"{text!r}: pymemcache is not installed: pip install pymemcache")
    if base in TRANSPORTS:
        if client == "pymemcache" and base not in ("tcp", "unix"):
            raise argparse.ArgumentTypeError(f"{text!r}: pymemcache speaks over tcp and unix only")
        return Contender(text, "rmemcached", base, client)
    name, equals, program = base.partition("=")
    if name == "memcached":
        found = shutil.which(program) if equals else memcached_path()
        if found is None:
            hint = f"there is no program {program}" if equals else "it is not installed: apt-get install memcached"
            raise argparse.ArgumentTypeError(f"{text!r}: {hint}")
        return Contender(text, "memcached", "tcp", client, os.path.abspath(found))
    if ":" in base and not isinstance(address := parse_address(base), str):
        return Contender(text, "running", "tcp", client, "", address)
    raise argparse.ArgumentTypeError(f"{text!r} is no contender: {GRAMMAR}")


def parse_address(text: str) -> tuple[str, int] | str:
    """A type of argparse: the address of a server, as a Client takes it, but without the options of a URL."""
    if "/" in text and not is_url(text) and not text.startswith("unix:"):
        return os.path.abspath(text)  # a Client would take a relative path for a host
    try:
        server, options = parse_server(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if "tls_context" in options:
        raise argparse.ArgumentTypeError(
            f"{shown(text)}: the load generators speak no TLS: rmemcached-doctor measures it"
        )
    if options:
        raise argparse.ArgumentTypeError(f"{shown(text)}: {', '.join(options)}: it is said by other options")
    return server


def parse_contenders(text: str) -> list[Contender]:
    return several(text, parse_contender, "a contender")


def default_contenders(names: Sequence[str]) -> list[Contender]:
    """The names available on this machine."""
    found = []
    for name in names:
        with contextlib.suppress(argparse.ArgumentTypeError):
            found.append(parse_contender(name))
    return found


def reference_of(contenders: Sequence[Contender], wanted: str | None) -> str:
    """The reference of all ratios. Raises BenchError."""
    names = [contender.name for contender in contenders]
    if wanted is not None:
        if wanted not in names:
            raise BenchError(f"--reference {wanted}: it is not among the contenders {', '.join(names)}")
        return wanted
    theirs = [contender.name for contender in contenders if contender.server == "memcached"]
    return (theirs + [name for name in names if name == "tcp"] + names)[0]


@contextlib.contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """This process, and processes started meanwhile, run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start(contender: Contender, flags: Sequence[str], folder: str, cores: set[int], under: Sequence[str] = ()) -> Any:
    """The contender's server, a context manager: a Server on these cores, or Running. folder: for UNIX sockets.

    under: a command to run the server with, such as strace.

    Raises StartError, BenchError when a running server does not answer.
    """
    if contender.server == "running":
        running = Running(contender.address)
        try:
            running.connect().close()
        except OSError as error:
            raise BenchError(f"{contender.name}: no connection: {error.strerror or error}") from error
        return contextlib.nullcontext(running)
    path = f"{folder}/{contender.name}" if contender.transport == "unix" else None
    with pinned(cores):
        if contender.server == "memcached":
            return start_memcached(*flags, path=path, program=contender.program, under=under)
        return start_rmemcached(*contender.flags, *flags, path=path, under=under)


def connect(contender: Contender, address: Any) -> Any:
    """A client of the contender's server."""
    if contender.client == "pymemcache":
        from pymemcache.client.base import Client as PymemcacheClient

        return PymemcacheClient(address, timeout=TIMEOUT, no_delay=True, default_noreply=False)
    transport = "tcp" if contender.transport == "unix" else contender.transport
    return Client(address, timeout=TIMEOUT, default_noreply=False, transport=transport)


def described(contender: Contender, server: Any, client: str = "") -> dict[str, Any]:
    """The contender's entry in files. client: the asking program, where the contender has no client of its own.

    Raises BenchError when the server does not answer as memcached does.
    """
    with named(contender.name):
        version = one_line(server.stats().get("version", "unknown")[:VERSION_MOST])
    ours = contender.server == "rmemcached"
    client = client or ("pymemcache" if contender.client == "pymemcache" else "rmemcached.client")
    return {
        "name": contender.name,
        "server": f"rmemcached {__version__}" if ours else f"memcached {version}",
        "client": f"{client} over {contender.transport}",
        "command": getattr(server, "command", []),
        "floor": False,
    }


def refuse(contenders: Sequence[Contender], subcommand: str, transports: Sequence[str], clients: bool) -> None:
    """Raises BenchError for a contender that a subcommand cannot measure.

    A subcommand takes contenders over these transports, and no running server. clients: also contenders with
    pymemcache.
    """
    for contender in contenders:
        if contender.server == "running":
            raise BenchError(f"{subcommand} {contender.name}: it measures servers that it starts itself")
        if contender.transport not in transports or (contender.client == "pymemcache" and not clients):
            raise BenchError(f"{subcommand} {contender.name}: it measures {', '.join(transports)} and memcached only")


def refuse_clients(contenders: Sequence[Contender], subcommand: str) -> None:
    """Raises BenchError for a contender whose client is not ours."""
    for contender in contenders:
        if contender.client != "rmemcached":
            raise BenchError(f"{subcommand} {contender.name}: it measures our own client only")

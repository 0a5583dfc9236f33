"""Commands whose answers have no known end, each on a plain connection of its own: metadump, mgdump, watch.

memcached's doc/protocol.txt: "LRU crawler", "Watchers".
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from ..exceptions import (
    FULL,
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    too_many_connections,
)
from ..transport.connection import open_plain
from ..transport.sockets import Options, name_failure, name_server, server_text

T = TypeVar("T")

LINE_MAX = 65536  # bytes of the longest line accepted


class Lines(Generic[T], Iterator[T]):
    """An iterator over the lines of an answer, as they come, each parsed. The last line, `close`, and the end of a
    `with` block close the connection.

    Not thread-safe. Raises MemcacheUnexpectedCloseError when the server ends the connection before the answer's end,
    OSError, and TimeoutError when nothing comes within the time limit. Each of these errors closes the connection.
    """

    def __init__(self, client: Options, command: str, parse: Callable[[bytes], T], timeout: float | None) -> None:
        self._server = client.server
        self._command = command
        self._parse = parse
        self._timeout = timeout
        self._first = True
        self._reading = threading.Lock()
        self._plain: socket.socket | None = None
        plain = open_plain(client)
        try:
            plain.settimeout(timeout)
            self._lines = plain.makefile("rb")
            plain.sendall(command.encode("ascii") + b"\r\n")
        except OSError as error:
            plain.close()
            name_server(error, client.server)
            raise
        self._plain = plain

    def __iter__(self) -> Lines[T]:
        return self

    def __next__(self) -> T:
        line = self._next_line()
        if line == b"OK" and self._first:
            # Newer servers begin with OK.
            line = self._next_line()
        self._first = False
        if line in (b"END", b"EN"):
            self.close()
            raise StopIteration
        try:
            return self._parse(line)
        except ValueError:
            self.close()
            raise self._named(MemcacheUnknownError(line[:64])) from None

    def _next_line(self) -> bytes:
        if self._plain is None:
            raise StopIteration
        try:
            with self._reading:
                line = self._lines.readline(LINE_MAX)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError) and self._timeout is not None:
                raise TimeoutError(
                    f"{server_text(self._server)}: {self._command}: timed out: nothing has come for {self._timeout:g} s"
                ) from None
            if isinstance(error, OSError) and error.errno is not None:
                name_failure(error, self._server, self._command)
            raise
        if len(line) == LINE_MAX and not line.endswith(b"\n"):
            self.close()
            raise self._named(MemcacheUnknownError(b"answer too long"))
        if not line.endswith(b"\n"):
            self.close()
            raise self._named(
                MemcacheUnexpectedCloseError("the server has ended the connection before the answer's end")
            )
        line = line.rstrip(b"\r\n")
        refusal = error_of(line, self._command)
        if refusal is not None:
            self.close()
            raise self._named(refusal)
        return line

    def _named(self, error: MemcacheError) -> MemcacheError:
        error.server = server_text(self._server)
        error.command = self._command
        return error

    def close(self) -> None:
        """Closes the connection. May be called any number of times."""
        plain, self._plain = self._plain, None
        if plain is not None:
            self._lines.close()
            plain.close()

    def shut_down(self) -> None:
        """Ends the wait of a thread for a line. The caller then closes the connection by close_after_reading."""
        plain = self._plain
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.shutdown(socket.SHUT_RDWR)

    def close_after_reading(self) -> None:
        """Waits until no thread reads, then closes: a thread must not read from a descriptor closed and used again."""
        with self._reading:
            self.close()

    def __enter__(self) -> Lines[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_plain", None) is not None:
            what = f"unclosed {self._command!r} of {server_text(self._server)}"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)
            self.close()


def error_of(line: bytes, command: str) -> MemcacheError | None:
    """The exception for an error line, or None."""
    if line == b"ERROR":
        return MemcacheUnknownCommandError(command)
    if line == FULL:
        return too_many_connections()
    word, _, reason = line.partition(b" ")
    if word == b"CLIENT_ERROR":
        return MemcacheClientError(reason)
    if word in (b"SERVER_ERROR", b"BUSY", b"BADCLASS", b"ERROR"):
        return MemcacheServerError(reason or line)
    return None


NUMBERS = ("exp", "la", "cas", "cls", "size", "flags")


def parse_item(line: bytes) -> dict[str, Any]:
    """A line of metadump: key (bytes, as stored), exp (seconds since 1970; -1: never), la, cas, cls, size as integers,
    fetch as a bool, and any other words as text."""
    item: dict[str, Any] = {}
    for word in line.decode("utf-8", "surrogateescape").split():
        name, _, value = word.partition("=")
        if name == "key":
            item[name] = unquote_to_bytes(value.encode("utf-8", "surrogateescape"))
        elif name == "fetch":
            item[name] = value == "yes"
        elif name in NUMBERS:
            item[name] = int(value)
        else:
            item[name] = value
    return item


def parse_key(line: bytes) -> bytes:
    """A line of mgdump: "mg <key>", or "mg <base64> b"."""
    _, key, *flags = line.split(b" ")
    return base64.b64decode(key) if b"b" in flags else key


def parse_event(line: bytes) -> dict[str, str]:
    """A line of watch: its words "name=value"; a word without a value has the value ""."""
    words = (word.partition("=") for word in line.decode("utf-8", "surrogateescape").split())
    return {name: value for name, _, value in words}


def checked_word(word: object) -> str:
    """A word of a command. Raises MemcacheIllegalInputError."""
    text = str(word)
    if not text.isascii() or not text.isprintable() or not text or " " in text:
        raise MemcacheIllegalInputError(f"{word!r} is no word of a command")
    return text


def metadump(client: Options, classes: object) -> Lines[dict[str, Any]]:
    """See Client.metadump."""
    return Lines(client, f"lru_crawler metadump {checked_word(classes)}", parse_item, client.timeout)


def mgdump(client: Options, classes: object) -> Lines[bytes]:
    """See Client.mgdump."""
    return Lines(client, f"lru_crawler mgdump {checked_word(classes)}", parse_key, client.timeout)


def watch(client: Options, streams: tuple[object, ...], timeout: float | None) -> Lines[dict[str, str]]:
    """See Client.watch."""
    lines = Lines(client, " ".join(["watch", *map(checked_word, streams)]), parse_event, timeout)
    try:
        lines._next_line()  # OK
    except StopIteration:
        raise AssertionError("a new connection is open") from None
    return lines

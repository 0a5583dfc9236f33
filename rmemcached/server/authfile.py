"""The file of -Y: users and passwords (memcached: authfile.c). server/auth reads it at the start and at SIGHUP."""

from __future__ import annotations

MAX_ENTRIES = 8
MAX_ENTRY_LENGTH = 254
"""Bytes of a line without its end; memcached cuts longer lines silently."""


class AuthFileError(Exception):
    """The file cannot be used; `args[0]` is a line with the reason."""


def load(path: str) -> list[tuple[bytes, bytes]]:
    """The (user, password) pairs of the file's first MAX_ENTRIES lines. Raises AuthFileError."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise AuthFileError(f"Could not open authfile [{path}] for reading, error {error.strerror}") from None
    entries = []
    for line in lines[:MAX_ENTRIES]:
        user, colon, password = line.partition(b":")
        if not colon or b"\0" in line or len(line) > MAX_ENTRY_LENGTH:
            raise AuthFileError(f"Authfile [{path}] has a malformed entry. Should be 'user:password'")
        entries.append((user, password))
    return entries

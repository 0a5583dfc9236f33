"""TLS contexts of files, as URLs name them. Imported for such a URL only: the module ssl takes a while to load."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Any

Files = tuple[str | None, str | None, str | None]


class FileContext(ssl.SSLContext):
    """A client's context for pickle, which reads the files again."""

    files: Files

    def __reduce__(self) -> tuple[Any, ...]:
        return context_of, self.files


def stamp(path: str | None) -> object:
    """Inode and time of a file: a new file in its place has a different stamp. Raises OSError."""
    found = os.stat(path) if path is not None else None
    return found and (found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=64)
def read(ca: str | None, cert: str | None, key: str | None, *_: object) -> FileContext:
    context = FileContext(ssl.PROTOCOL_TLS_CLIENT)
    context.files = (ca, cert, key)
    if ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def context_of(ca: str | None, cert: str | None, key: str | None) -> FileContext:
    """A context with trust in the CA's certificates, or the system's, and with the client's certificate. Clients with
    the same files have the same context, and so may share queue pairs. Raises OSError."""
    return read(ca, cert, key, stamp(ca), stamp(cert), stamp(key))

"""Names of blocks, which may be long and have any characters, as keys that memcached takes.

A key says what kind it is before anything else, so that no name makes another name's key, or that of a piece.
"""

from __future__ import annotations

import json
import re
import sys
from hashlib import sha256

LONGEST = 250  # bytes of a key
_PLAIN = re.compile(rb"[!-~]+")


def block_key(name: str | bytes, prefix: bytes = b"") -> bytes:
    """The key of a block: its name, or the SHA-256 of all of it where memcached would not take the name.

    prefix: bytes that memcached takes, at most 100, which all keys of a connector begin with.
    """
    try:
        text = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(name)
    except UnicodeEncodeError:
        # Halves of a pair, which JSON can write: UTF-8 has no bytes for them.
        return prefix + b"u:" + sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest().encode()
    if len(prefix) + 2 + len(text) <= LONGEST and _PLAIN.fullmatch(text):
        return prefix + b"n:" + text
    return prefix + b"h:" + sha256(text).hexdigest().encode()


def piece_key(store: bytes, number: int, prefix: bytes = b"") -> bytes:
    """The key of a piece of a block. store: the 16 random bytes that this one store of the block has chosen."""
    return prefix + b"p:" + store.hex().encode() + b":%d" % number


def check_prefix(prefix: str | bytes) -> bytes:
    """The prefix as bytes. Raises ValueError for one that memcached does not take, or over 100 bytes."""
    text = prefix.encode() if isinstance(prefix, str) else prefix
    if not isinstance(text, bytes) or (text and (len(text) > 100 or not _PLAIN.fullmatch(text))):
        raise ValueError(f"the prefix {prefix!r} has to be a text of 100 bytes at most, without spaces")
    return text


def platform() -> str:
    """What torch of this process is built for, if that has FP8 of another kind (AMD's, whose names are the same)."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return "hip" if getattr(version, "hip", None) else ""


def identity(**fields: object) -> str:
    """64 hexadecimal digits of what makes blocks exchangeable (model, layout, ranks): others' blocks have other names.

    Fields are what JSON can say. Any difference, also of a type, gives another identity.
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()

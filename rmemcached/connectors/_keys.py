"""Keys for memcached from names of blocks, with any length and characters.

A key begins with its kind, so no name makes the key of another name, or of a piece.
"""

from __future__ import annotations

import json
import re
import sys
from hashlib import sha256

LONGEST = 250  # bytes of a key
_PLAIN = re.compile(rb"[!-~]+")


def block_key(name: str | bytes, prefix: bytes = b"") -> bytes:
    """Returns the key of a block: its name, or the SHA-256 of the whole name if memcached would refuse the name.

    prefix: the beginning of all keys of a connector, valid bytes for memcached, at most 100.
    """
    try:
        text = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(name)
    except UnicodeEncodeError:
        # Half of a surrogate pair, possible in JSON: UTF-8 has no bytes for the half.
        return prefix + b"u:" + sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest().encode()
    if len(prefix) + 2 + len(text) <= LONGEST and _PLAIN.fullmatch(text):
        return prefix + b"n:" + text
    return prefix + b"h:" + sha256(text).hexdigest().encode()


def piece_key(store: bytes, number: int, prefix: bytes = b"") -> bytes:
    """Returns the key of a piece of a block. store: the 16 random bytes of this store of the block."""
    return prefix + b"p:" + store.hex().encode() + b":%d" % number


def check_prefix(prefix: str | bytes) -> bytes:
    """Returns the prefix as bytes. Raises ValueError for bytes refused by memcached, or over 100 bytes."""
    text = prefix.encode() if isinstance(prefix, str) else prefix
    if not isinstance(text, bytes) or (text and (len(text) > 100 or not _PLAIN.fullmatch(text))):
        raise ValueError(f"the prefix {prefix!r} has to be a text of 100 bytes at most, without spaces")
    return text


def platform() -> str:
    """Returns "hip" if this process' torch is for AMD, else "": AMD's FP8 formats differ under the same names."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return "hip" if getattr(version, "hip", None) else ""


def identity(**fields: object) -> str:
    """Returns 64 hexadecimal digits for the fields on which a block's meaning depends (model, layout, ranks).

    Fields are JSON values. Any difference, also of a type, gives a new identity, and so new names of blocks.
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()

"""The answers to meta commands (memcached's doc/protocol.txt, "Meta Commands")."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class MetaItem(NamedTuple):
    """An item found by `meta_get`. Fields not asked for are None.

    won: this caller should compute the value and store it with `cas`. stale: the value has been invalidated. waits:
    another caller has won before.

    key: as given. value: after the serde; None also for a won, stale or waiting item whose value has no bytes, because
    its winner has probably stored no value yet. flags: the client's 32 bits. cas: an integer. ttl: seconds until
    expiry, -1: never. size: of the value, in bytes. hit_before: whether the item was ever fetched before. last_access:
    seconds since the last fetch. opaque: as given.
    """

    key: bytes | str
    value: Any = None
    flags: int | None = None
    cas: int | None = None
    ttl: int | None = None
    size: int | None = None
    hit_before: bool | None = None
    last_access: int | None = None
    opaque: bytes | None = None
    won: bool = False
    stale: bool = False
    waits: bool = False


class MetaResult(NamedTuple):
    """The result of a `meta_set` or `meta_delete`. True if the server has stored or deleted the item.

    status: "done", "not stored" (the mode did not allow it), "exists" (the item has another cas), "not found". cas,
    size, opaque: as in MetaItem.
    """

    status: str
    cas: int | None = None
    size: int | None = None
    opaque: bytes | None = None

    def __bool__(self) -> bool:
        return self.status == "done"


class MetaNumber(NamedTuple):
    """The result of a `meta_arithmetic`. True if the server has changed the number.

    status: as in MetaResult. value: the new number. cas, ttl, opaque: as in MetaItem.
    """

    status: str
    value: int | None = None
    cas: int | None = None
    ttl: int | None = None
    opaque: bytes | None = None

    def __bool__(self) -> bool:
        return self.status == "done"


STATUS = {b"HD": "done", b"VA": "done", b"NS": "not stored", b"EX": "exists", b"NF": "not found", b"EN": "not found"}
NUMBERS = {b"f": "flags", b"c": "cas", b"t": "ttl", b"s": "size", b"l": "last_access"}
NUMERAL = re.compile(rb"-?[0-9]{1,20}")
MARKS = {b"W": "won", b"X": "stale", b"Z": "waits"}


def numeral(text: bytes) -> int:
    """The number in a server's text. Raises ValueError for other texts that int() takes, such as 1_0 or +1."""
    if NUMERAL.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def fields_of(words: list[bytes]) -> dict[str, Any]:
    """The flags of an answer, by the names of MetaItem. Raises ValueError for a bad number."""
    found: dict[str, Any] = {}
    for word in words:
        letter = word[:1]
        if letter in NUMBERS:
            found[NUMBERS[letter]] = numeral(word[1:])
        elif letter in MARKS:
            found[MARKS[letter]] = True
        elif letter == b"h":
            found["hit_before"] = word == b"h1"
        elif letter == b"O":
            found["opaque"] = word[1:]
    return found


def item_of(key: bytes | str, line: bytes, value: Any) -> MetaItem | None:
    """The item of an answer to mg; None: a miss. Raises ValueError for another line."""
    code, *words = line.split()
    if code == b"EN":
        return None
    if code not in (b"VA", b"HD"):
        raise ValueError(line)
    found = fields_of(words[code == b"VA" :])
    if not value and not found.keys().isdisjoint(("won", "waits", "stale")):
        # The item was made by vivify, most likely, and may have been invalidated since.
        value = None
    return MetaItem(key, value, **found)


def result_of(line: bytes) -> MetaResult:
    """The result of an answer to ms or md. Raises ValueError for another line."""
    code, *words = line.split()
    if code not in STATUS or code in (b"VA", b"EN"):
        raise ValueError(line)
    found = fields_of(words)
    return MetaResult(STATUS[code], found.get("cas"), found.get("size"), found.get("opaque"))


def number_of(line: bytes, value: bytes | None) -> MetaNumber:
    """The result of an answer to ma. Raises ValueError for another line, or a value that is no number."""
    code, *words = line.split()
    if code not in STATUS or code == b"EN":
        raise ValueError(line)
    found = fields_of(words[code == b"VA" :])
    number = None if value is None else numeral(value.rstrip(b" "))
    return MetaNumber(STATUS[code], number, found.get("cas"), found.get("ttl"), found.get("opaque"))


def description_of(line: bytes) -> dict[str, Any] | None:
    """The fields of an answer to me; None: a miss. Raises ValueError for another line."""
    code, *words = line.split()
    if code == b"EN":
        return None
    if code != b"ME" or not words:
        raise ValueError(line)
    found: dict[str, Any] = {}
    for word in words[1:]:
        name, _, text = word.decode("ascii", "backslashreplace").partition("=")
        number = text[1:] if text.startswith("-") else text
        found[name] = int(text) if number.isdigit() else {"yes": True, "no": False}.get(text, text)
    if isinstance(found.get("exp"), int) and found["exp"] < -1:
        # memcached before 1.6.24 gives the seconds until expiry as a negative number.
        found["exp"] = -found["exp"]
    return found


def known(line: bytes) -> bool:
    """True, for the answer to mn. Raises ValueError for another line."""
    if line != b"MN":
        raise ValueError(line)
    return True

"""A conversation with every command (conversation.tsv): the requests, and patterns of the answers."""

from __future__ import annotations

import re
from typing import NamedTuple

from request_tables import octets, pattern, rows


class Exchange(NamedTuple):
    request: bytes
    reply: str
    both: bool  # whether memcached gives this reply, too


CONVERSATION = [
    Exchange(octets(request), pattern(reply), whose != "ours") for whose, request, reply in rows("conversation.tsv")
]


def normal(reply: bytes) -> bytes:
    """The answers without CAS values."""
    reply = re.sub(rb"(VALUE \S+ \d+ \d+) \d+", rb"\1 #", reply)
    return re.sub(rb" (c|cas=)\d+", rb" \1#", reply)

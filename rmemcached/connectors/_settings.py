"""Settings of the connectors for blocks, from JSON, YAML or a command line. Numbers may be texts there."""

from __future__ import annotations

import math
from typing import Any

from rmemcached.client.api.servers import OF_THE_CLUSTER
from rmemcached.client.urls import parse_server, shown


def as_number(name: str, value: Any, least: float, unit: str = "") -> float:
    """Returns a finite number, also from a text. Raises ValueError for anything else, or below `least`."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found < math.inf:
        raise ValueError(f"{name} has to be {least:g} or more{unit}, not {value!r}")
    return found


def as_whole(name: str, value: Any, least: int) -> int:
    """Returns a whole number, also from a text. Raises ValueError as as_number does, and for a fraction."""
    found = as_number(name, value, least)
    if found != int(found):
        raise ValueError(f"{name} has to be a whole number, not {value!r}")
    return int(found)


def said_by(server: Any) -> dict[str, Any]:
    """Returns the arguments of a Client in a server's URL. Raises ValueError for arguments chosen by connectors."""
    said = parse_server(server)[1]
    for name in OF_THE_CLUSTER:
        if name in said:
            better = "use the setting prefix" if name == "key_prefix" else "leave it out"
            raise ValueError(f"{shown(server)}: blocks are kept without the option {name}: {better}")
    return said

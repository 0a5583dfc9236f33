"""The shared parts of the tests of the frameworks' back ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MANY = 200
A_YEAR = 365 * 24 * 3600  # seconds, more than memcached takes as a duration
FIFTY_YEARS = 50 * A_YEAR  # ends past 2038, where the seconds since 1970 leave 31 bits
LARGE = os.urandom(3_000_000)


def in_threads(call: Callable[[int], Any]) -> list[Any]:
    """The results of MANY calls in eight threads."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(call, range(MANY)))

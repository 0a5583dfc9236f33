"""Memory of the process that runs the tests, which other tests have used before."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

_libc = ctypes.CDLL(None)

SANITIZED = re.search(r"/lib[at]san\.so", Path("/proc/self/maps").read_text()) is not None
"""Whether this process, and so the daemons that it starts, run under a sanitizer that has memory of its own, keeps what
is freed, and takes time for each access."""


def give_back() -> None:
    """Gives back to the system what malloc keeps for later, so that resident memory is what is in use.

    How much it keeps depends on what the process has freed before: after large blocks up to 64 MB.
    """
    gc.collect()
    _libc.malloc_trim(0)


def mapped_items() -> int:
    """Bytes of daemons' memory that this process has mapped pages of."""
    found = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = "rmemcached items" in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found

"""Memory in RAM of the test process: of its own, and of daemons whose memory it maps."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

_libc = ctypes.CDLL(None)

SANITIZED = re.search(r"/lib[at]san\.so", Path("/proc/self/maps").read_text()) is not None
"""Whether a sanitizer watches this process, and so the daemons started by this process. The sanitizer has memory of its
own, keeps freed memory, and takes time for each access."""


def give_back() -> None:
    """Gives the memory that malloc keeps for later back to the system. Then resident memory is memory in use.

    malloc keeps more, up to 64 MB, after the process has freed large blocks.
    """
    gc.collect()
    _libc.malloc_trim(0)


def mapped_items() -> int:
    """Bytes in RAM of the daemons' memory mapped by this process."""
    found = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = "rmemcached items" in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found

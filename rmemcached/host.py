"""Which host this is, for a transport that reaches no other."""

from __future__ import annotations

import os
from pathlib import Path


def host_identity() -> tuple[str, int]:
    """The identity of the running kernel, and that of this process's network namespace. OSError: /proc is not there.

    Containers of one host share the first and mostly not the second.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return boot, os.stat("/proc/self/ns/net").st_ino & 0xFFFFFFFF

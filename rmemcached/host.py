"""Which host this is, for a transport that reaches no other; and the small files that describe it."""

from __future__ import annotations

import os


def read_text(path: str) -> str:
    """A small file of text. OSError. Without pathlib, a tenth of what the daemon would import at its start."""
    with open(path) as file:
        return file.read()


def host_identity() -> tuple[str, int]:
    """The identity of the running kernel, and that of this process's network namespace. OSError: /proc is not there.

    Containers of one host share the first and mostly not the second.
    """
    boot = read_text("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
    return boot, os.stat("/proc/self/ns/net").st_ino & 0xFFFFFFFF

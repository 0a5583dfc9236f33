"""The identity of this host, for a transport within a host; and reading small files of text."""

from __future__ import annotations

import os


def read_text(path: str) -> str:
    """Reads a small file of text. Raises OSError. Without pathlib, whose import would be a tenth of all the daemon
    imports at its start.
    """
    with open(path) as file:
        return file.read()


def host_identity() -> tuple[str, int]:
    """The identities of the running kernel and of this process's network namespace. OSError: /proc is missing.

    Containers of a host share the first identity, and mostly not the second.
    """
    boot = read_text("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
    return boot, os.stat("/proc/self/ns/net").st_ino & 0xFFFFFFFF

"""The readers of external storage (-o ext_io), for tests of both."""

from __future__ import annotations

import ctypes
import os

import pytest

IO_URING_SETUP = 425


def refused() -> str:
    """Why this process has no io_uring, as in most containers; empty: it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))
    if ring < 0:
        return os.strerror(ctypes.get_errno())
    os.close(ring)
    return ""


# What a start does where the kernel refuses io_uring is a test of its own, on every kernel.
@pytest.fixture(params=["threads"] if refused() else ["threads", "uring"])
def reader(request: pytest.FixtureRequest) -> str:
    return str(request.param)

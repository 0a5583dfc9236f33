"""Memory of the process that runs the tests, which other tests have used before."""

from __future__ import annotations

import ctypes
import gc

_libc = ctypes.CDLL(None)


def give_back() -> None:
    """Gives back to the system what malloc keeps for later, so that resident memory is what is in use.

    How much it keeps depends on what the process has freed before: after large blocks up to 64 MB.
    """
    gc.collect()
    _libc.malloc_trim(0)

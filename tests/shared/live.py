"""Live objects, which a debug build counts (rmemcached/sys/debug.pxd)."""

from __future__ import annotations

import gc
import time

from rmemcached.sys.debug import live_objects


def left_behind(before: dict[str, int], seconds: float) -> str:
    """Which kinds of objects there are more of than `before`, after `seconds` at most; empty: none.

    Other threads may need that time to end what they were told to end.
    """
    deadline = time.monotonic() + seconds
    while True:
        gc.collect()
        more = {kind: count - before.get(kind, 0) for kind, count in live_objects().items()}
        left = ", ".join(f"{count} {kind}" for kind, count in more.items() if count > 0)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)

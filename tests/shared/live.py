"""Live objects, as a debug build counts them (rmemcached/sys/debug.pxd)."""

from __future__ import annotations

import gc
import time

from rmemcached.sys.debug import live_objects


def left_behind(before: dict[str, int], seconds: float) -> str:
    """Names the kinds with more live objects than `before`, after `seconds` at most; empty: there are none.

    Other threads may need the time to end their work.
    """
    deadline = time.monotonic() + seconds
    late = False
    while True:
        more = {kind: count - before.get(kind, 0) for kind, count in live_objects().items()}
        left = ", ".join(f"{count} {kind}" for kind, count in more.items() if count > 0)
        if not left or late:
            return left
        # Garbage counts as alive until a collection, which takes longer than most tests. So the first look, without a
        # collection, has to be enough for a test without garbage.
        gc.collect()
        late = time.monotonic() > deadline
        time.sleep(0.01)

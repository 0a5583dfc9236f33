"""The counters of live objects (see debug.pxd), for the tests and for the daemon's own check at its end."""

from rmemcached.sys.atomics cimport load_acquire

# In the order of live_kind.
_NAMES = (
    "contexts", "protection domains", "memory regions", "completion channels", "completion queues",
    "shared receive queues", "queue pairs", "stores", "item references", "responses", "connections", "RDMA devices",
    "RDMA connections", "lanes", "pins", "workers", "connections of workers", "UDP sockets", "client connections",
    "client lanes", "client buffers",
)
assert len(_NAMES) == LIVE_KINDS

# Whether assertions are checked and objects counted (debug.pxd).
debug_build = bool(DEBUG_BUILD)


def live_objects():
    """The numbers of this process's objects by kind, without zeros. Empty in a build without counting.

    Safe in any thread. Each number is correct; together the numbers are a snapshot only while no thread makes or frees
    objects.
    """
    cdef int i
    counts = {}
    for i in range(<int>LIVE_KINDS):
        count = <int64_t>load_acquire(&live_counts[i])
        if count:
            counts[_NAMES[i]] = count
    return counts

"""The pace of a connection: how long after a request its next one is expected.

To poll for about as long as the gap between two requests is the worst of all: it costs the time, and then the other
side has to wake this one as well. So a worker polls through the whole gap, or not at all. What it expects is the second
longest of the last gaps: one pause between two bursts says nothing about the gaps within them.
"""

cdef enum:
    PACE_GAPS = 4

cdef struct rdma_pace:               # of one connection; its worker's
    int64_t served               # when it was last served (now_ns()); 0: never, or nobody asked
    uint32_t gaps[PACE_GAPS]     # the last ones in nanoseconds, UINT32_MAX for longer ones
    uint32_t next                # the oldest of them

# The connection is served. Returns the gap that is now expected in nanoseconds, UINT32_MAX: long, or not known yet.
cdef uint32_t pace_note(rdma_pace *pace, int64_t now) noexcept nogil

"""The pace of a connection: how long after a request its next one is expected.

To poll for about as long as the gap between two requests is the worst of all: it costs the time, and then the other
side has to wake this one as well. So a worker polls through the whole gap, or not at all. It expects the second
longest of the last gaps: one pause between two bursts says nothing about the gaps within them.

The worker waits more than once for a request that moves a large value: for what the client sends and takes, and then
for the next request. The gap is the longest of these waits, and the time that the worker itself works is none of them.

A gap has the time in it that it takes to wake both sides up. Where each has a core of its own that is 40 us and
more, so that a client which asks again at once looks like one that pauses. Therefore gaps of a little more than the
limit are polled through now and then, a few in a row: if the client does not pause, they become short. If they do
not, that is tried again after twice as many requests. Gaps that are polled through may get half as long again as the
limit: one whose gaps are about as long as the limit would lose both ways, as each gap that is not polled through makes
the next ones longer.
"""

cdef enum:
    PACE_GAPS = 4
    PACE_TRY_GAP = 3             # gaps of up to so many times the limit are tried
    PACE_TRY_FIRST = 16          # after so many requests, then twice as many, up to
    PACE_TRY_RARE = 4096

cdef struct rdma_pace:               # of one connection; its worker's
    int64_t served               # when it was last served (now_ns()); 0: never, or nobody asked
    int64_t waited               # nanoseconds of the longest wait since the last request
    uint32_t expected            # the gap that is polled through
    uint32_t gaps[PACE_GAPS]     # the last ones in nanoseconds, UINT32_MAX for longer ones
    uint32_t next                # the oldest of them
    bint polled                  # the last gap was to be polled through
    uint32_t trying              # gaps that are still polled through to try
    uint32_t untried             # requests since the last try
    uint32_t every               # requests between two tries

# The connection has got a request. Returns the gap in nanoseconds that is to be polled through, after which its next
# request is expected; UINT32_MAX: it is longer than `limit`, or not known yet.
cdef uint32_t pace_note(rdma_pace *pace, int64_t now, int64_t limit) noexcept nogil
# The worker begins to serve the connection: a wait is over.
cdef void pace_begin(rdma_pace *pace, int64_t now) noexcept nogil
# It has served it: the next wait begins, perhaps of the same request. Returns what pace_note has returned.
cdef uint32_t pace_end(rdma_pace *pace, int64_t now) noexcept nogil

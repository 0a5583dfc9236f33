"""The pace of a connection: the expected gap between a request and the next request.

To poll for about as long as the gap between two requests is worst: the worker spends the time, and the client then has
to wake the worker as well. So a worker polls through the whole gap, or not at all. The worker expects the second
longest of the last gaps: a single pause between two bursts says nothing about the gaps within them.

For a request with a large value the worker waits several times: for the transfers of the value, and then for the next
request. The gap is the longest of these waits, without the time of the worker's own work.

A gap contains the time to wake both sides. With a core for each side waking takes 40 us and more, so a client without
pauses looks like a client with pauses. Therefore now and then the worker polls through a few gaps in a row, if they are
no longer than PACE_TRY_GAP limits: without pauses of the client they become short. If they stay long, the worker tries
again after twice as many requests. A gap polled through may be half as long again as the limit: otherwise polling would
end soon for a client with gaps near the limit, since a single unpolled gap lengthens the next gaps.
"""

cdef enum:
    PACE_GAPS = 4
    PACE_TRY_GAP = 3             # the longest tried gap, as a multiple of the limit
    PACE_TRY_FIRST = 16          # requests before the first try; doubles with each failed try
    PACE_TRY_RARE = 4096         # ... up to this number

cdef struct rdma_pace:           # of a connection; its worker's
    int64_t served               # when the worker last served the connection (now_ns()); 0: never, or untimed
    int64_t waited               # nanoseconds of the longest wait since the last request
    uint32_t expected            # the gap to poll through
    uint32_t gaps[PACE_GAPS]     # the last gaps in nanoseconds, UINT32_MAX for longer gaps
    uint32_t next                # the oldest of the gaps
    bint polled                  # the last gap was to be polled through
    uint32_t trying              # gaps still to be polled through as a try
    uint32_t untried             # requests since the last try
    uint32_t every               # requests between two tries

# The connection has got a request. Returns the expected gap before the next request in nanoseconds, to be polled
# through; UINT32_MAX: the gap is longer than `limit`, or not known yet.
cdef uint32_t pace_note(rdma_pace *pace, int64_t now, int64_t limit) noexcept nogil
# The worker begins to serve the connection: a wait is over.
cdef void pace_begin(rdma_pace *pace, int64_t now) noexcept nogil
# The worker has served the connection: the next wait begins, perhaps of the same request. Returns the last result of
# pace_note.
cdef uint32_t pace_end(rdma_pace *pace, int64_t now) noexcept nogil

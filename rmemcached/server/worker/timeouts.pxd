# Silent and slow connections: incomplete requests for a stream, peers of rdma_cm that may be gone, and connections
# beyond idle_timeout. The worker's thread.

cdef enum:
    TICK_MS = 1000               # of the longest sleep while there is anything to look for

# Notes the time: the peer has sent a part of a payload, or taken a part of a reply.
cdef void connection_moved(connection *cn) noexcept nogil
# Called after each turn of the loop. Ends slow and idle connections, and probes silent peers of rdma_cm: each kind when
# its time has come by the store's clock.
cdef void enforce_timeouts(worker *w) noexcept nogil

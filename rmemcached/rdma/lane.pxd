"""A lane: one of the memcached connections that share a queue pair. It feeds the drive machine, and posts its replies.

The first DATA message with a lane's id makes it; whatever ends a memcached connection, as `quit` does, ends it. Output
that cannot be posted stays in the lane's reply list, and the lane is marked as blocked. Input that cannot be used yet
is kept. The next completion lets both go on.

A lane, and the lanes' fields of its connection, belong to the connection's worker. A part of the C unit of rdma_conn,
above rdma/queue and rdma/thread.
"""

cdef enum:
    READS_AT_A_TIME = 16         # of one lane
    INPUT_MAX = 256 * 1024       # unparsed bytes of a lane beyond which its receives are not given back

cdef struct rdma_lane:
    conn c                       # first: the machine's
    rdma_conn *rc
    uint32_t id
    char *inbuf                  # unparsed input that could not be used at once
    size_t insize
    size_t write_off             # bytes of the next reply's data whose WRITE has been posted
    size_t read_bytes            # of the READs under way
    unsigned int reads           # READs under way
    unsigned int deferred        # receives not given back because inbuf is full

# NULL: out of memory.
cdef rdma_lane *lane_open(rdma_conn *rc, uint32_t id) noexcept nogil
# No READ of it is under way, or the queue pair has been destroyed.
cdef void lane_close(rdma_lane *lane) noexcept nogil
# Takes the payload of a DATA message. False: the lane is gone, or the queue pair has failed.
cdef bint lane_input(rdma_lane *lane, const char *data, size_t length) noexcept nogil
# A READ of so many bytes has completed; the last of a batch lets the machine go on.
cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil

# Lets lanes go on that have given way. which: a bit for each.
cdef void lanes_resume(rdma_conn *rc, uint64_t which) noexcept nogil
# Tries again what could not be posted.
cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil
# Gives back the receives that lanes with too much input have held.
cdef void lanes_release_deferred(rdma_conn *rc) noexcept nogil

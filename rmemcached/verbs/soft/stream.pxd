"""Streams, as far as all fabrics share them: attachment to a queue pair, epoll sets, the start-up's deadline, the end.

A fabric attaches a stream in three steps. stream_begin reserves the queue pair. stream_join adds it to its domains.
Then, with soft_qp.lock held, the fabric fills in its own state and qp.stream, or gives up with stream_undo.
"""

cdef enum:                           # stream_state.phase
    STREAM_NONE
    STREAM_ATTACHING                 # a thread is attaching a stream
    STREAM_REQUESTED                 # the peer has to answer before the deadline
    STREAM_OPEN                      # FPDUs may be received
    STREAM_CLOSED

cdef struct stream_state:            # soft_qp.stream; guarded by soft_qp.lock
    int fd                           # -1 without a stream; read unlocked
    uint8_t phase
    const char *fault                # for soft_qp_fault
    bint starved                     # input is left in the fabric until the stream can be written
    int timer_fd                     # for the deadline, in the epoll sets of the domains; -1: none
    int64_t deadline                 # CLOCK_MONOTONIC nanoseconds; 0: none

# Reserves the queue pair for a stream of this fabric. 0, or -1 with errno: EISCONN (the queue pair has or had a stream
# since RESET), EINVAL (another fabric, or not in RTR, RTS or SQD). Takes qp.lock.
cdef int stream_begin(soft_qp *qp, const soft_fabric *fabric) noexcept nogil
# Adds the queue pair to its domains. Takes their progress locks: the caller holds no lock.
cdef void stream_join(soft_qp *qp) noexcept nogil
# Leaves the queue pair without a stream, as before stream_begin. Releases qp.lock, which is held. Gives -1, with errno
# set to `error`.
cdef int stream_undo(soft_qp *qp, int error) noexcept nogil

# How many READs may be under way: `wanted` (from the options), but no more than `limit` (the queue pair's attribute);
# 0: `limit`.
cdef uint16_t stream_depth(uint32_t wanted, uint32_t limit) noexcept nogil

# The next eight need qp.lock.

# The peer has to answer from now on until the deadline.
cdef void stream_await_peer(soft_qp *qp) noexcept nogil
# Makes the queue of READ responses, for qp.ird, and the receive buffer. False: no memory.
cdef bint stream_buffers(soft_qp *qp) noexcept nogil
# Ends the start-up: from now on FPDUs come in. False: no memory.
cdef bint stream_open(soft_qp *qp) noexcept nogil
# Closes the stream, if there is one. Nothing on it is read or written any more.
cdef void stream_close(soft_qp *qp) noexcept nogil

# Adds the stream, and a timer for its deadline, to the epoll set of the link's domain. False with errno: the set is as
# before.
cdef bint stream_watch(soft_qp *qp, soft_link *link) noexcept nogil
# Adds the timer alone to this epoll set; makes the timer first if there is none. False: errno is set.
cdef bint stream_start_timer(soft_qp *qp, soft_link *link) noexcept nogil
# Closes the timer, which so leaves all epoll sets.
cdef void stream_stop_timer(soft_qp *qp) noexcept nogil
# The events of the stream that its epoll sets report. The caller holds qp.lock.
cdef uint32_t stream_events(const soft_qp *qp) noexcept nogil
# Sets tx.blocked: whether a sender waits until the stream can be written. Tells the fabric of a change.
cdef void stream_want_writable(soft_qp *qp, bint wanted) noexcept nogil

# Called when the timer has run out. A queue pair whose peer has not answered moves to ERR; for an open stream the
# fabric decides. domain.progress is held. Takes qp.lock.
cdef void stream_deadline(soft_qp *qp, soft_domain *domain) noexcept nogil

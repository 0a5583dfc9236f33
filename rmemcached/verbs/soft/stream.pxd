# What the streams of all fabrics share: attachment to a queue pair, epoll sets, the start-up's deadline, the end.
#
# A fabric attaches a stream in three steps: stream_begin reserves the queue pair, stream_join makes it known to its
# domains, and with soft_qp.lock held the fabric fills in its own state and qp.stream, or gives up with stream_undo.

cdef enum:                           # stream_state.phase
    STREAM_NONE
    STREAM_ATTACHING                 # a thread is attaching a stream
    STREAM_REQUESTED                 # the peer has to answer before the deadline
    STREAM_OPEN                      # FPDUs may be received
    STREAM_CLOSED

cdef struct stream_state:            # soft_qp.stream; guarded by soft_qp.lock
    int fd                           # -1 without a stream; read unlocked
    uint8_t phase
    int timer_fd                     # for the deadline, in the domains that are watched; -1 without
    int64_t deadline                 # CLOCK_MONOTONIC nanoseconds; 0: none

# Reserves the queue pair for a stream of this fabric. 0, or -1 with errno. Takes qp.lock.
cdef int stream_begin(soft_qp *qp, const soft_fabric *fabric) noexcept nogil
# Adds the queue pair to its domains. Takes their progress locks, so that qp.lock must not be held.
cdef void stream_join(soft_qp *qp) noexcept nogil
# Leaves the queue pair without a stream, as before stream_begin, and fails with this error: -1 with errno. qp.lock is
# held, and released.
cdef int stream_undo(soft_qp *qp, int error) noexcept nogil

# How many READs may be under way: what the options ask for, at most the queue pair's attribute; 0: as many as that.
cdef uint16_t stream_depth(uint32_t wanted, uint32_t limit) noexcept nogil

# From here on qp.lock is held.

# Starts the time that the start-up may take.
cdef void stream_await_peer(soft_qp *qp) noexcept nogil
# Makes the buffers for qp.ird and for received FPDUs. False: no memory.
cdef bint stream_buffers(soft_qp *qp) noexcept nogil
# From start-up to full operation, with or without qp.crc. False: no memory.
cdef bint stream_open(soft_qp *qp) noexcept nogil
# Closes the stream, if there is one. Nothing on it is read or written any more.
cdef void stream_close(soft_qp *qp) noexcept nogil

# Puts the stream, and a timer for its deadline, into the link's epoll set. False with errno: neither is.
cdef bint stream_watch(soft_qp *qp, soft_link *link) noexcept nogil
# The timer alone.
cdef bint stream_start_timer(soft_qp *qp, soft_link *link) noexcept nogil
cdef void stream_stop_timer(soft_qp *qp) noexcept nogil
# Notes whether something waits until the stream can be written.
cdef void stream_want_writable(soft_qp *qp, bint wanted) noexcept nogil

# The timer has run out. The progress lock of `domain` is held; takes qp.lock.
cdef void stream_deadline(soft_qp *qp, soft_domain *domain) noexcept nogil

"""soft_shm: threads that close descriptors and mappings received from peers, where closing may take long.

A process that does not trust its peers closes their descriptors in threads of their own. `close` may wait for the peer
(a file of FUSE; a TCP socket with SO_LINGER; a UNIX socket with such a descriptor under way), and closing the last
reference to memory of many GB takes time for each page. Such a context has two threads: the first closes memory, and
only takes time; the second closes all else, and may wait for ever. A *piece* is a descriptor or mapping to be closed.
"""

cdef enum:
    CLOSER_MEMORY                    # memory: closing only takes time
    CLOSER_ANY
    CLOSERS
    CLOSER_MANY = 256                # waiting descriptors; above this number a peer may add few
    CLOSER_EACH = 8                  # waiting pieces of one queue pair, at most
    CLOSER_FEW = 2                   # the same limit while CLOSER_MANY descriptors or more wait
    CLOSER_STUCK = 50000000          # nanoseconds in one close; a longer close is taken for stuck
    CLOSER_RETRY = 100000000         # nanoseconds until another look at a record after the last descriptor was used

cdef struct shm_closing              # a waiting piece; see closer.pyx

# A stream's unread records may have to stay in its socket for a while: the stream is held. Meanwhile the epoll sets
# watch the socket only for its end.
cdef struct shm_hold:                # shm_stream.hold; guarded by the lock of the closer of memory
    shm_hold *next                   # in shm_closer.held, as the next two
    shm_hold *prev
    soft_qp *qp
    int64_t until                    # CLOCK_MONOTONIC nanoseconds; 0: until fewer of the stream's pieces wait
    bint held                        # in the list; read unlocked

cdef struct shm_closer:
    pthread_mutex_t lock             # guards the next seven. A leaf: its holder takes no lock
    pthread_cond_t filled
    shm_closing *first
    shm_closing **last
    shm_closing *unused              # for reuse: the thread frees nothing, so malloc makes no arena for it
    uint64_t taken                   # number of pieces left to the thread so far
    shm_hold *held                   # streams with records waiting for this thread
    bint stopping
    # atomic
    uint64_t done                    # finished pieces, out of `taken`, in order
    uint32_t waiting                 # descriptors, including the descriptor being closed
    int64_t since                    # start of the thread's present piece; 0: none
    pthread_t thread
    bint joined                      # closing the context waits for the thread; else the thread frees this struct

# Starts the threads of a context, before it has queue pairs. 0 or an errno value.
cdef int closers_start(shm_context *shared) noexcept nogil
# Ends the threads, if any. The thread for memory first finishes all its pieces; the other thread may wait for ever, and
# is left alone.
cdef void closers_stop(shm_context *shared) noexcept nogil

# Closes an unmapped descriptor sent by a peer, or the socket of the stream. The caller's thread closes memory of up to
# CLOSER_SMALL, and any descriptor if the context has no such threads or malloc fails. Returns the number of the piece
# if memory waits, else 0.
cdef uint64_t closer_take_fd(shm_context *shared, int fd) noexcept nogil
# Unmaps a peer's region, and takes it off the context's usage. The context's limits bound the number of waiting
# regions.
cdef void closer_take_window(shm_context *shared, void *base, size_t length) noexcept nogil
# Whether the peer may pass more memory, since few pieces of its earlier memory wait. Needs soft_qp.lock.
cdef bint closer_keeps_up(const soft_qp *qp) noexcept nogil
# Whether the context has closer threads: it does not trust its peers (soft_shm_limits.paid).
cdef bint closer_runs(const shm_context *shared) noexcept nogil
# Leaves the queue pair's records in its socket until closer_keeps_up holds; `scarce`: for CLOSER_RETRY, because no
# descriptor is left. The thread puts the socket back into the epoll sets. False: closer_keeps_up holds already. Needs
# soft_qp.lock.
cdef bint closer_hold(soft_qp *qp, bint scarce) noexcept nogil
# Ends the hold of a stream that ends, if the stream is held. Needs soft_qp.lock.
cdef void closer_forget(soft_qp *qp) noexcept nogil
# Whether many descriptors other than memory wait behind a long close.
cdef bint closer_is_stuck(const shm_context *shared) noexcept nogil

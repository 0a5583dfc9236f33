"""soft_shm: threads that give back what a peer has passed, where that may take long.

A process that does not trust its peers closes no descriptor of theirs in a thread that serves others. `close` may wait
for the peer (a file of FUSE; a TCP socket with SO_LINGER; a UNIX socket in which such a descriptor is under way), and
the last reference to memory of many GB takes as long as that has pages. Such a context has two threads: one for what
only takes time, memory, and one for what may wait for ever.
"""

cdef enum:
    CLOSER_MEMORY                    # what can only take time
    CLOSER_ANY
    CLOSERS
    CLOSER_MANY = 256                # descriptors that wait, after which peers that can do without add few
    CLOSER_EACH = 8                  # of one queue pair, at most,
    CLOSER_FEW = 2                   # and after so many of all
    CLOSER_STUCK = 50000000          # nanoseconds in one close, after which what waits is not about to end
    CLOSER_RETRY = 100000000         # nanoseconds until a record is looked at again that found no descriptor left

cdef struct shm_closing              # a piece that waits; see closer.pyx

# A stream whose records stay in its socket for a while. The socket is not in the epoll sets meanwhile, but for its end.
cdef struct shm_hold:                # shm_stream.hold; guarded by the lock of the closer of memory
    shm_hold *next                   # in shm_closer.held, as the next two
    shm_hold *prev
    soft_qp *qp
    int64_t until                    # CLOCK_MONOTONIC nanoseconds; 0: until fewer of its pieces wait
    bint held                        # in that list; read unlocked

cdef struct shm_closer:
    pthread_mutex_t lock             # guards the next seven. A leaf: no lock is taken while it is held
    pthread_cond_t filled
    shm_closing *first
    shm_closing **last
    shm_closing *unused              # to be used again: the thread frees nothing, so that malloc has no arena for it
    uint64_t taken                   # pieces, ever
    shm_hold *held                   # streams whose records wait for this thread
    bint stopping
    # atomic
    uint64_t done                    # pieces of `taken`, from the first on
    uint32_t waiting                 # descriptors, and the one that is being closed
    int64_t since                    # when the thread began with its piece; 0: it has none
    pthread_t thread
    bint joined                      # the context waits for the thread when it is closed, or the thread frees this

# Starts the threads of a context, before it has queue pairs. 0 or an errno value.
cdef int closers_start(shm_context *shared) noexcept nogil
# Ends them, if there are any, once all memory is given back. What waits for ever is left to its thread.
cdef void closers_stop(shm_context *shared) noexcept nogil

# Closes a descriptor that a peer has sent and that is not mapped, or the socket through which it came: here, if the
# context has no such threads, or there is no memory. The number of the piece, if it is memory that waits; else 0.
cdef uint64_t closer_take_fd(shm_context *shared, int fd) noexcept nogil
# Unmaps a peer's region, and counts it no more in the context's usage. Its limits bound how many can wait.
cdef void closer_take_window(shm_context *shared, void *base, size_t length) noexcept nogil
# Whether a peer may pass memory: of what it passed before, few pieces wait. Needs soft_qp.lock.
cdef bint closer_keeps_up(const soft_qp *qp) noexcept nogil
# The context has such threads.
cdef bint closer_runs(const shm_context *shared) noexcept nogil
# Leaves the queue pair's records in its socket until closer_keeps_up holds; `scarce`: for CLOSER_RETRY, because no
# descriptor is left. The thread puts the socket back into the epoll sets. False: it holds already. Needs soft_qp.lock.
cdef bint closer_hold(soft_qp *qp, bint scarce) noexcept nogil
# The stream ends. Needs soft_qp.lock.
cdef void closer_forget(soft_qp *qp) noexcept nogil
# Whether many descriptors other than memory wait behind one whose close takes long.
cdef bint closer_is_stuck(const shm_context *shared) noexcept nogil

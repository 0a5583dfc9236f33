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
    CLOSER_MANY = 256                # pieces that wait: then no more come from peers that can do without

cdef struct shm_closing              # a piece that waits; see closer.pyx

cdef struct shm_closer:
    pthread_mutex_t lock             # guards the next five. A leaf: no lock is taken while it is held
    pthread_cond_t filled
    shm_closing *first
    shm_closing **last
    shm_closing *unused              # to be used again: the thread frees nothing, so that malloc has no arena for it
    bint stopping
    uint32_t waiting                 # and what is being closed; atomic
    pthread_t thread
    bint joined                      # the context waits for the thread when it is closed, or the thread frees this

# Starts the threads of a context, before it has queue pairs. 0 or an errno value.
cdef int closers_start(shm_context *shared) noexcept nogil
# Ends them, if there are any, once all memory is given back. What waits for ever is left to its thread.
cdef void closers_stop(shm_context *shared) noexcept nogil

# Closes a descriptor that a peer has sent and that is not mapped, or the socket through which it came: here, if the
# context has no such threads, or there is no memory.
cdef void closer_take_fd(shm_context *shared, int fd) noexcept nogil
# Unmaps a peer's region, and counts it no more in the context's usage.
cdef void closer_take_window(shm_context *shared, void *base, size_t length) noexcept nogil
# Whether so much waits that more should not come.
cdef bint closer_is_full(const shm_context *shared, int kind) noexcept nogil

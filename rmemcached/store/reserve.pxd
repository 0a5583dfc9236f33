"""Space in the memory file, taken ahead of its use by a thread.

To take space for a page, the file system has to find 256 small pages: 0.1 to 0.3 ms, in which a worker would stand
still, also for a value that is only begun. So with a memory file the thread keeps RESERVE_AHEAD of the arena in space
that is there already. A store that outruns the thread takes space itself.
"""

cdef enum:
    RESERVE_AHEAD = 32 * 1024 * 1024    # bytes of the arena

cdef struct reserver:
    # the slabs lock
    pthread_cond_t cond         # `woken` or `stop` was set
    pthread_t thread
    bint joinable
    bint stop
    bint woken                  # more of the arena is in use

cdef void reserve_init(store *s) noexcept nogil
cdef void reserve_destroy(store *s) noexcept nogil
# Starts the thread, if there is a memory file, for store_create. False: the thread cannot be started.
cdef bint reserve_start(store *s) noexcept nogil
# Ends the thread, for store_stop_threads.
cdef void reserve_stop(store *s) noexcept nogil
# Wakes the thread, because more of the arena is in use. The caller holds the slabs lock.
cdef void reserve_arena_grows(store *s) noexcept nogil

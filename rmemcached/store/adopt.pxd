"""Brings the pages of a memory file into this run's shape while the daemon serves: a thread that copies the items of
foreign pages (foreign.pxd) to chunks of this run's classes, gives the empty pages to the pool and, if the memory limit
has become lower, has the page mover empty pages until the limit holds. If there is hardly room for copies, the thread
evicts the items never fetched. The thread ends when nothing is left to do.
"""

cdef struct adoption:
    pthread_t thread
    bint joinable
    uint64_t dropped            # atomic: items evicted, or too large

# Starts the thread, if there is something to do, for store_create. False: the thread cannot be started.
cdef bint adopt_start(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; store.stopping is set.
cdef void adopt_stop(store *s) noexcept nogil

"""Brings the pages of a memory file into this run's shape while the daemon serves: a thread that copies the items of
foreign pages (recover.pxd) to chunks of this run's classes, gives the empty pages to the pool and, if the memory limit
has become lower, has the page mover empty pages until the limit holds. If there is hardly room for copies, the thread
evicts the items never fetched. The thread ends when nothing is left to do.

Nobody allocates a chunk of a foreign page. So a freed chunk keeps its bytes, and its key can be read without a lock.
"""

cdef struct adoption:
    uint32_t pages              # foreign pages; written with the slabs lock held, by the thread once it runs
    uint16_t *live              # by page: chunks in use, on a foreign page. The slabs lock
    pthread_t thread
    bint joinable
    uint32_t owner              # the thread's thread_id(); written by the thread before its first allocation
    # atomic
    uint64_t dropped            # items evicted, or too large

# Makes the counts, for recover. False: no memory.
cdef bint adopt_init(store *s) noexcept nogil
# Counts the chunks in use, after recover has linked all items.
cdef void adopt_count(store *s) noexcept nogil
# Starts the thread, if there is something to do, for store_create. False: the thread cannot be started.
cdef bint adopt_start(store *s) noexcept nogil
# Ends the thread, for store_stop_threads; store.stopping is set.
cdef void adopt_stop(store *s) noexcept nogil
# Frees the counts, for store_destroy.
cdef void adopt_destroy(store *s) noexcept nogil
# Bytes by which the classes may exceed the memory limit: an item evicted from a foreign page makes no room for others.
cdef uint64_t adopt_room(store *s) noexcept nogil
# Waits a moment for a page of the thread's, for an allocation that found no memory. waits: the waits of this allocation
# so far. False: there are no foreign pages, or the allocation has waited long enough.
cdef bint adopt_wait(store *s, unsigned int *waits) noexcept nogil
# Notes that a chunk of a foreign page is no longer in use. The caller holds the slabs lock.
cdef void do_foreign_free(store *s, item *chunk) noexcept nogil

"""Huge pages for the arena: a thread sees to it that nobody else waits for them.

The system clears a huge page when it is touched first, 0.2 to 5 ms, for which a worker would stand still because of a
header of 50 bytes. And memory of a memfd, which clients can read, has huge pages by itself only where the system's
shmem_enabled says so, which is rare. So the arena is used in small pages, except that this thread

- makes the next huge page ahead of its use, once HUGE_FROM of the arena is in use: less has no need of it, and would
  count as used memory;
- makes one of small pages (MADV_COLLAPSE, Linux 6.1) where all chunks of both slab pages have been used.

What nobody has written to, because a value has been begun and does not come, stays as it is. So does what the system
refuses.
"""

cdef struct huge_pages:
    # constant
    bint enabled                # store_config.huge_pages
    # the slabs lock
    pthread_cond_t cond         # woken, or stop
    pthread_t thread
    bint joinable
    bint stop
    bint woken                  # there may be something to do
    bint refused                # the system has no such pages,
    unsigned int refusals       # ... as it has said so often in a row
    size_t ready                # bytes of the arena up to which pages were made ahead; a multiple of HUGE_PAGE
    uint8_t *state              # by huge page of the arena
    uint32_t waiting            # of these, those that are to be made of small ones
    uint32_t next               # where to look for one
    # atomic
    uint64_t made               # huge pages that the system has made

# False: no memory.
cdef bint huge_init(store *s) noexcept nogil
# False: no thread.
cdef bint huge_start(store *s) noexcept nogil
# Ends the thread; store.stopping is set.
cdef void huge_stop(store *s) noexcept nogil
cdef void huge_destroy(store *s) noexcept nogil
# The slabs lock is held in these: more of the arena is in use; a huge page of it is full; the system got a slab page.
cdef void huge_arena_grows(store *s) noexcept nogil
cdef void huge_want(store *s, uint32_t number) noexcept nogil
cdef void huge_forget(store *s, uint32_t page) noexcept nogil
# Makes a part of the arena huge, whole huge pages, which nobody uses yet (-L). False: there is not so much memory.
cdef bint huge_preallocate(store *s, size_t length) noexcept nogil

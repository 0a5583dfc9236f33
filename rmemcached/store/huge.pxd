"""Huge pages for the arena: a thread makes them, so nobody else waits for them.

The system clears a huge page at the first touch, which takes 0.2 to 5 ms. A worker would stand still for so long
because of a header of 50 bytes. And the memory of a memfd, for clients to read, has huge pages by itself only with a
rare setting of the system's shmem_enabled. So the arena starts in small pages, except that this thread

- makes the next huge page ahead of its use, once HUGE_FROM of the arena is in use: a smaller store does not need huge
  pages, and they would count as used memory;
- makes a huge page of small pages (MADV_COLLAPSE, Linux 6.1) where all chunks of both slab pages have been used.

Memory without any writes, because a value was begun and does not come, stays in small pages. So does memory for which
the system refuses a huge page.
"""

cdef struct huge_pages:
    # constant
    bint enabled                # store_config.huge_pages
    # the slabs lock
    slabs_thread maker
    bint refused                # the system has no huge pages: the thread has ended
    unsigned int refusals       # refusals of the system in a row
    size_t ready                # bytes of the arena, up to the last huge page made ahead; a multiple of HUGE_PAGE
    uint8_t *state              # by huge page of the arena: SMALL_PAGES, HUGE_WANTED or HUGE_MADE (huge.pyx)
    uint32_t waiting            # huge pages whose state is HUGE_WANTED
    uint32_t next               # where to look for the next HUGE_WANTED page
    # atomic
    uint64_t made               # huge pages made by the system

# Makes the states of the huge pages, for store_create. False: no memory.
cdef bint huge_init(store *s) noexcept nogil
# Starts the thread, if there are to be huge pages. False: the thread cannot be started.
cdef bint huge_start(store *s) noexcept nogil
# Frees the states, for store_destroy.
cdef void huge_destroy(store *s) noexcept nogil
# Wakes the thread if a huge page should be made ahead, because more of the arena is in use. slabs.pyx calls this and
# the next two functions, with the slabs lock held.
cdef void huge_arena_grows(store *s) noexcept nogil
# Asks for a huge page: all chunks of huge page `number` of the arena have been used.
cdef void huge_want(store *s, uint32_t number) noexcept nogil
# Notes the end of a huge page: the memory of slab page `page` goes back to the system.
cdef void huge_forget(store *s, uint32_t page) noexcept nogil
# Puts the first length bytes of the arena, unused so far, into huge pages where possible, and takes their memory, for
# slabs_preallocate (-L). False: the system has less memory.
cdef bint huge_preallocate(store *s, size_t length) noexcept nogil

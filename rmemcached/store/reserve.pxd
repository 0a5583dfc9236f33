"""Space in the memory file, taken ahead of its use by a thread.

To take space for a page, the file system has to find 256 small pages. This takes 0.1 to 0.3 ms. A worker would stand
still meanwhile, even if a client has only begun a value. So with a memory file the thread takes space for RESERVE_AHEAD
bytes beyond the used part of the arena. A worker that outruns the thread takes space by itself.
"""

cdef enum:
    RESERVE_AHEAD = 32 * 1024 * 1024    # bytes of the arena

cdef void reserve_init(store *s) noexcept nogil
cdef void reserve_destroy(store *s) noexcept nogil
# Starts the thread, if there is a memory file, for store_create. False: the thread cannot be started.
cdef bint reserve_start(store *s) noexcept nogil
# Wakes the thread, because more of the arena is in use. The caller holds the slabs lock.
cdef void reserve_arena_grows(store *s) noexcept nogil

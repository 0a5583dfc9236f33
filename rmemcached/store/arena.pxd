"""The arena: address space that becomes memory as slabs take pages of it. It is private, or of a memfd for clients."""

cdef enum:
    HUGE_PAGE = 2 * 1024 * 1024

# Reserves address space for an arena of length bytes, inaccessible and without a claim on memory. False: the system
# refuses.
cdef bint arena_reserve(store *s, size_t length) noexcept nogil
cdef void arena_release(store *s) noexcept nogil
# The slabs lock is held: makes the arena accessible up to top, in whole extents; its memfd, if there is one, long
# enough for that part. False: the system refuses.
cdef bint arena_open_to(store *s, size_t top) noexcept nogil
cdef bint arena_lengthen(store *s, size_t top) noexcept nogil
# Readies memfd for clients: from now on its pages stay where they are, and nobody else can write to it. Returns how
# many bytes of the arena there can be, in whole huge pages: those that are used, or all that the limit allows. 0: the
# system refuses. Twice is harmless.
cdef size_t arena_seal(store *s) noexcept nogil

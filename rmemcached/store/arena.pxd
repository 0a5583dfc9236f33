"""The arena: address space that becomes memory as slabs take pages. It is private, or of a memfd for clients."""

# Reserves address space for an arena of length bytes, inaccessible and without a claim on memory. False: the system
# refuses.
cdef bint arena_reserve(store *s, size_t length) noexcept nogil
cdef void arena_release(store *s) noexcept nogil
# With the slabs lock held: make the arena accessible up to top, in whole extents; make its memfd, if there is one, long
# enough. False: the system refuses.
cdef bint arena_open_to(store *s, size_t top) noexcept nogil
cdef bint arena_lengthen(store *s, size_t top) noexcept nogil
# Readies memfd for clients: from now on its pages stay where they are, and no process can write to them through the
# file. Returns the arena's length for clients, in whole huge pages: the used part, or as much as -m allows. 0: the
# system refuses. A second call is harmless.
cdef size_t arena_seal(store *s) noexcept nogil

"""The arena: address space that becomes memory as slabs take pages, and before the first page the head
(memory_file.pxd). The memory is private, a memfd's for clients, or the memory file's.
"""

# Reserves address space for an arena of length bytes, inaccessible and without a claim on memory, for slabs_init. With
# config.direct makes the memfd as well; a memory file is mapped. False: the system refuses, and nothing is reserved.
cdef bint arena_reserve(store *s, size_t length) noexcept nogil
# Gives the address space and the memfd back, for slabs_destroy.
cdef void arena_release(store *s) noexcept nogil
# Makes the arena accessible up to top, in whole extents, before a page is taken or made huge. The caller holds the
# slabs lock. False: the system refuses.
cdef bint arena_open_to(store *s, size_t top) noexcept nogil
# Makes the arena's file, if there is one, long enough for top, and takes space for a memory file. The caller holds the
# slabs lock. False: the system refuses, or the file system is full.
cdef bint arena_lengthen(store *s, size_t top) noexcept nogil
# Readies memfd for clients, when an index is made: from now on its pages stay where they are, and no process can write
# to the file or newly map the file for writing. Returns the arena's length for clients, in whole huge pages: the used
# part, the huge pages made ahead or as much as -m allows, whichever is longest; with direct_remote the whole arena. 0:
# there is no memfd, or the system refuses. Takes the slabs lock. A second call is harmless.
cdef size_t arena_seal(store *s) noexcept nogil

"""A value whose bytes are in several places."""

cdef class Gathered:
    cdef list views              # contiguous memoryviews of bytes
    cdef readonly Py_ssize_t nbytes

    # Copies all to memory that has room for nbytes.
    cdef int copy_to(self, char *to) except -1

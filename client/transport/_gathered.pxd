"""A value whose bytes are in several places."""

from posix.uio cimport iovec

# Whether a buffer's format (PEP 3118) has objects or pointers among its types.
cdef bint holds_addresses(str format)


cdef class Gathered:
    cdef list views              # contiguous memoryviews of bytes
    cdef readonly Py_ssize_t nbytes

    # The places of the bytes, one for each view. The caller frees the array.
    cdef iovec *places(self) except NULL
    # Copies all bytes to memory with room for nbytes.
    cdef int copy_to(self, char *to) except -1

"""A value whose bytes are in several places."""

from posix.uio cimport iovec

# Whether a buffer's format (PEP 3118) has objects or pointers among its types. Such a value is not stored: in another
# process its addresses mean nothing.
cdef bint holds_addresses(str format)


cdef class Gathered:
    cdef list views              # contiguous memoryviews of bytes
    cdef readonly Py_ssize_t nbytes

    # Returns an array with the place of each view's bytes, for a registration of all (_memory.pyx). The caller frees
    # the array. Raises MemoryError.
    cdef iovec *places(self) except NULL
    # Copies all bytes to memory with room for nbytes. Long parts are copied without the GIL.
    cdef int copy_to(self, char *to) except -1

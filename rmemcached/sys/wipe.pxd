"""Erasing secrets from memory."""

from libc.stddef cimport size_t

cdef extern from "<string.h>" nogil:
    # memset with zeros, which the compiler keeps although nobody reads the memory afterwards.
    void explicit_bzero(void *data, size_t length)

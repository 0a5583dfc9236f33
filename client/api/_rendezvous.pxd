"""Rendezvous hashing, with pymemcache's placement of keys."""

from libc.stdint cimport uint32_t


cdef class Node:
    cdef object name
    cdef uint32_t state          # of the hash, behind the whole words of "name-"
    cdef bytes rest              # the rest of "name-": 0 to 3 bytes
    cdef size_t length           # of "name-"


cdef class RendezvousHash:
    cdef tuple _nodes            # of Node; never changed, but replaced

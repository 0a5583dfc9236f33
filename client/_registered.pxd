"""Callers' bytes objects that stay registered, on devices where registering takes long.

The cache of a queue pair holds a reference to each object, so that its memory cannot go away, and a bytes object never
changes or moves. An object is found again by its identity. One is registered when it comes for the second time; where
objects have gone unused before, few are. What has a limit are the bytes and the number of objects; those that nobody
else has any more go first, when another is registered.

Needs the GIL, or the lock of _state.pxd, which it takes.
"""

from libc.stdint cimport uint32_t

from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef enum:
    REGISTERED_BYTES = 1 << 27       # of all objects of a queue pair
    REGISTERED_MOST = 256            # objects
    REGISTERED_SEEN = 64             # objects that were seen once


cdef class Registration:
    cdef bytes value
    cdef ibv_mr *mr
    cdef readonly uint32_t transfers     # requests that name it; it stays until there are none
    cdef bint found                      # it was of use


cdef class Registrations:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef dict kept                   # id -> Registration; the one that was used last is the last
    cdef dict seen                   # id -> length
    cdef readonly size_t size        # bytes of those that are kept
    cdef readonly size_t registered  # how many ever were
    cdef unsigned int wasted         # objects in a row that were registered in vain
    cdef unsigned int skipped

    # The registration of the object, which a request may name until `give`. None: it has none.
    cpdef Registration take(self, bytes value)
    cpdef int give(self, Registration one) except -1
    # Drops all. No request names one.
    cpdef int close(self) except -1

    cdef Registration taken(self, bytes value)
    cdef bint is_worth(self, bytes value) except -1
    cdef bint make_room(self, size_t length) except -1
    cdef int drop(self, Registration one) except -1

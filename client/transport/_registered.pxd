"""Callers' bytes objects that stay registered, on devices where registering takes long.

The cache of a queue pair holds a reference to each object, so its memory cannot go away, and a bytes object never
changes or moves. An object is found again by its identity. An object is registered when it comes for the second time;
after several registrations in vain, only few objects are registered. Limits apply to the bytes and the number of
objects. When another object is registered, objects without another owner are dropped first.

Needs the GIL, or the lock of _state.pxd, which the methods take.
"""

from libc.stdint cimport uint32_t

from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef enum:
    REGISTERED_BYTES = 1 << 27       # of all objects of a queue pair
    REGISTERED_MOST = 256            # objects
    REGISTERED_SEEN = 64             # objects seen once


cdef class Registration:
    cdef bytes value
    cdef ibv_mr *mr
    cdef readonly uint32_t transfers     # requests that name the object; with any, the registration stays
    cdef bint found                      # used again after the first use


cdef class Registrations:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef dict kept                   # id -> Registration; the last used comes last
    cdef dict seen                   # id -> length
    cdef readonly size_t size        # bytes of all kept objects
    cdef readonly size_t registered  # the number of objects ever registered
    cdef unsigned int wasted         # objects in a row registered in vain: dropped before any further use
    cdef unsigned int skipped        # objects considered since WASTED_MOST were in vain

    # The registration of an object, for a request of Source until `give`. May register the object, and drop others.
    # None: the object is not registered.
    cpdef Registration take(self, bytes value)
    # Ends a `take`: the request does not need the registration any more, which stays in the cache.
    cpdef int give(self, Registration one) except -1
    # Drops all registrations, at the end of the queue pair. No request may name an object.
    cpdef int close(self) except -1

    # The steps of `take`, with the lock.
    cdef Registration taken(self, bytes value)
    cdef bint is_worth(self, bytes value) except -1
    cdef bint make_room(self, size_t length) except -1
    cdef int drop(self, Registration one) except -1

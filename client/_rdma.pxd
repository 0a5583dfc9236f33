"""A memcached connection on a lane of a queue pair."""

from libc.stdint cimport int64_t, uint64_t

from rmemcached.client._memory cimport Sink, Source
from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.client._stream cimport Stream


cdef class RdmaStream(Stream):
    cdef QueuePair queue             # its lane 0; closed with the stream
    cdef uint64_t received           # bytes so far
    cdef Source source
    cdef Sink sink

    cdef bint drained(self) noexcept nogil
    cdef int advance(self, bint draining) noexcept nogil

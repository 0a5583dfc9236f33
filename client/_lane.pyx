"""See _lane.pxd."""

from libc.errno cimport ENOMEM
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove


cdef int inbox_put(lane_state *lane, const char *data, size_t length) noexcept nogil:
    cdef size_t size = max(lane.size, <size_t>4096)
    cdef char *grown
    if lane.last - lane.first + length > LANE_BYTES:
        return 0
    if lane.last + length > lane.size:
        if lane.first:
            memmove(lane.inbox, lane.inbox + lane.first, lane.last - lane.first)
            lane.last -= lane.first
            lane.first = 0
        while size < lane.last + length:
            size *= 2
        if size > lane.size:
            grown = <char *>realloc(lane.inbox, size)
            if grown == NULL:
                return -ENOMEM
            lane.inbox = grown
            lane.size = size
    memcpy(lane.inbox + lane.last, data, length)
    lane.last += length
    return 1


cdef int inbox_take(lane_state *lane, Stream stream) noexcept nogil:
    cdef int r = stream.deliver(lane.inbox + lane.first, lane.last - lane.first)
    if r > 0:
        lane.unsaid += lane.last - lane.first
        free(lane.inbox)
        lane.inbox = NULL
        lane.first = lane.last = lane.size = 0
    return r

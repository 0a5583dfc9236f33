"""A memcached connection on a lane of a queue pair."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmemcached.client.transport._buffers cimport Buffer
from rmemcached.client.transport._lane cimport lane_state
from rmemcached.client.transport._memory cimport Sink, Source
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._spin cimport spinning
from rmemcached.client.transport._stream cimport Stream
from rmemcached.verbs.verbs cimport ibv_mr


cdef class Leaving:
    """Memory of a lane without an owner, not closed by the server yet."""
    cdef lane_state *lane
    cdef Source source
    cdef list sinks

    cdef void release(self) noexcept


cdef class RdmaStream(Stream):
    cdef QueuePair queue             # closed with its last stream
    cdef lane_state *lane            # of the queue pair
    cdef spinning spin
    cdef bint woke                   # the server had to be woken up for the last send
    cdef int looks                   # at rings between two yields, when the core is this thread's own
    cdef uint64_t received           # bytes so far
    # Replies of a server woken up for a request, while this side polled (0) or slept (1) meanwhile.
    cdef int64_t woken_ns[2]         # how long they lately took
    cdef unsigned int woken          # how many there were
    cdef size_t message_limit        # bytes of the longest set with its value in messages, if messages are faster; or 0
    cdef unsigned int small_values   # in a row
    cdef int64_t looked              # now_ns() of the last look whether the connection has ended
    cdef Source source
    cdef Sink sink                   # named by put_sink, for the present reply
    cdef list sinks                  # all sinks; `sink` is the first, or the chosen sink (choose_sink)
    cdef bint large                  # the last value was
    cdef Buffer target               # named by the request in place of the sink
    cdef ibv_mr *borrowed            # registration for this call of target memory outside Buffers
    cdef size_t target_size          # bytes of either

    cdef int put_memory(self, uint64_t address, uint32_t key, size_t size) except -1
    # A value has come to `size` bytes of memory named in the request.
    cdef int memory_filled(self, size_t length, size_t size) except -1
    cdef bint has_target(self) noexcept
    cdef void drop_target(self, bint lost) noexcept
    cdef void leave_queue(self, QueuePair queue) noexcept
    cdef bint goes_in_messages(self, size_t length) noexcept
    # Experience with waits belongs to the queue pair: few requests on many lanes teach as much as many on a single
    # lane.
    cdef void take_hints(self) noexcept nogil
    cdef void leave_hints(self) noexcept nogil
    cdef bint drained(self) noexcept nogil
    cdef bint sleeps_for_woken(self) noexcept nogil
    cdef void woken_took(self, bint slept, int64_t ns) noexcept nogil
    cdef int advance(self, bint draining) noexcept nogil
    cdef int await_more(self, bint draining) noexcept nogil
    cdef int look_late(self, bint draining, uint64_t received) noexcept nogil

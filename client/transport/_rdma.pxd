"""A memcached connection on a lane of a queue pair."""

from libc.stdint cimport int64_t, uint64_t

from rmemcached.client.transport._lane cimport lane_state
from rmemcached.client.transport._lane_memory cimport LaneMemory
from rmemcached.client.transport._memory cimport Source
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._spin cimport spinning
from rmemcached.client.transport._stream cimport Stream
from rmemcached.sys.debug cimport DEBUG_BUILD, assert_that


cdef class Leaving:
    """Memory of a lane that has no owner any more and that the server has not closed yet: the server may use it."""
    cdef lane_state *lane
    cdef Source source
    cdef list sinks

    # Frees the memory, after the server has closed the lane or the queue pair has ended.
    cdef void release(self) noexcept


cdef class RdmaStream(Stream):
    cdef QueuePair queue             # closed with its last stream
    cdef lane_state *lane            # of the queue pair
    cdef spinning spin
    cdef bint woke                   # the server had to be woken up for the last send
    cdef int looks                   # polls between two yields (transports.py)
    cdef uint64_t received           # bytes so far
    # Replies of a server woken up for a request:
    cdef int64_t woken_ns[2]         # how long they lately took while this side polled [0], or slept [1]
    cdef unsigned int woken          # how many there were
    cdef size_t message_limit        # bytes of the longest set with its value in messages, if messages are faster; or 0
    cdef int64_t looked              # now_ns() of the last look whether the connection has ended
    cdef LaneMemory memory

    # `close` with the lock of _state.pxd: takes the stream off the queue pair, and closes the queue pair after its last
    # stream. Memory that the server may still use is left to queue.leaving.
    cdef void leave_queue(self, QueuePair queue) noexcept
    # Whether a set's value of this length goes in messages, in place of a READ by the server. The command asks this
    # before LaneMemory.expose.
    cdef bint goes_in_messages(self, size_t length) noexcept
    # Copies the experience with waits from the queue pair, before a wait: few requests on many lanes teach as much as
    # many on a single lane.
    cdef void take_hints(self) noexcept nogil
    # Copies the experience back to the queue pair, after the wait.
    cdef void leave_hints(self) noexcept nogil
    # Whether all output has left this process.
    cdef bint drained(self) noexcept nogil
    # Whether to sleep, not poll, for the reply of a server just woken up.
    cdef bint sleeps_for_woken(self) noexcept nogil
    # Notes the time of such a reply. slept: this side slept for it.
    cdef void woken_took(self, bint slept, int64_t ns) noexcept nogil
    # Waits for input or, when draining, until drained; sends meanwhile. The wait of fill, fill_body and drain, with
    # results as of the waiting methods of Stream. await_more and look_late are its steps.
    cdef int advance(self, bint draining) noexcept nogil
    cdef int await_more(self, bint draining) noexcept nogil
    cdef int look_late(self, bint draining, uint64_t received) noexcept nogil


cdef inline LaneMemory memory_of(Stream s):
    """The LaneMemory of an RdmaStream. None: the stream is of another transport, so its requests name no memory."""
    if DEBUG_BUILD:
        assert_that(isinstance(s, RdmaStream) == s.remote)
    return (<RdmaStream>s).memory if s.remote else None

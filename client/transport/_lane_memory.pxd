"""The memory named in the requests of a lane: values for the server to read, and places for values.

See docs/rdma-protocol.md, sections 6 and 7, and _memory.pxd. The thread that uses the lane's RdmaStream; the GIL, but
for the fields read by the stream while it waits.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.transport._buffers cimport Buffer
from rmemcached.client.transport._memory cimport Sink, Source
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr

cdef struct memory_name:
    uint64_t address
    uint32_t key
    size_t size


cdef class LaneMemory:
    cdef QueuePair queue         # None: the stream is closed
    cdef Source source
    cdef Sink sink               # for the present reply
    cdef list sinks              # all sinks; `sink` is the first, or the chosen sink (choose_sink)
    cdef size_t named            # bytes of values named in requests and perhaps not sent yet
    cdef size_t copied           # bytes of values copied for requests since an event loop set this field to 0
    cdef bint sink_named         # the request names the sink, or the target in its place
    cdef unsigned int moved      # values moved by the server since the stream's last wait; not read in an event loop
    cdef unsigned int small_values   # values in a row that needed no named memory
    cdef bint large              # the last value had LARGE bytes or more
    cdef Buffer target           # named by the request in place of the sink
    cdef ibv_mr *borrowed        # registration for this call of target memory outside Buffers
    cdef size_t target_size      # bytes of `target` or `borrowed`

    cdef void join_loop(self) noexcept
    # Names a value for the server to read: its address, or a copy's, and the key. `value`: the bytes or memoryview with
    # the memory, or a Gathered, whose data is NULL. False: the memory cannot be named.
    cdef bint expose(self, object value, const char *data, size_t length, memory_name *name) except -1
    # Gives back the memory of the exposed values: no request of this call needs them any more.
    cdef int unexpose(self) except -1
    # Names the sink for the value of the reply. lends: `lend` follows, not `take`. False: values come in the stream.
    cdef bint name_sink(self, bint lends, memory_name *name) except -1
    # Names the caller's memory, or the sink.
    cdef bint name_target(self, char *to, size_t size, memory_name *name) except -1
    # Prepares `take`: the value is copied while the server writes it.
    cdef int copy_early(self) except -1
    # The server has written a value of `length` bytes to the named memory. False: there is no room for so many.
    cdef bint filled(self, size_t length) noexcept
    # take: the value in the sink. lend: a read-only memoryview of the value; only a small value is copied. take_into:
    # puts the value into the caller's memory, if there is room.
    cdef bytes take(self, size_t length)
    cdef object lend(self, size_t length)
    cdef int take_into(self, char *to, size_t size, size_t length) except -1
    # Gives back the sinks' regions and the target: no request needs them any more.
    cdef int release_sink(self) except -1
    # How many sinks a call of several requests, each with a sink, may have at a time; their numbers begin at 0. The
    # methods above mean the chosen sink, with sink_named False at first. 0: values come in the stream.
    cdef Py_ssize_t sinks_at_once(self) noexcept
    cdef int choose_sink(self, Py_ssize_t number) except -1
    # Notes the length of a value that comes in the stream.
    cdef void saw_length(self, size_t length) noexcept
    # Whether memory of the caller's is named that may change as soon as the call returns.
    cdef bint holds(self) noexcept
    # Whether the request names memory of the caller's in place of the sink.
    cdef bint has_target(self) noexcept
    # No request needs this memory any more. lost: a server that maps regions may still write to the memory.
    cdef void drop_target(self, bint lost) noexcept

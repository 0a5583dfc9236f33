"""The memory named in the requests of a lane: values for the server to read, and places for values.

See docs/rdma-protocol.md, sections 6 and 7, and _memory.pxd. The commands (wire/_commands.pyx) name memory, and the
Connection takes values out of it and releases it. Only the thread that uses the lane's RdmaStream uses a LaneMemory,
with the GIL; while the stream waits, it reads some fields without the GIL.
"""

from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.transport._buffers cimport Buffer
from rmemcached.client.transport._memory cimport Sink, Source
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr

# Memory as a request names it.
cdef struct memory_name:
    uint64_t address
    uint32_t key
    size_t size              # bytes; not of a value to read


cdef class LaneMemory:
    cdef QueuePair queue         # None: the stream is closed
    cdef Source source
    cdef Sink sink               # for the present reply
    cdef list sinks              # all sinks; `sink` is the first, or the chosen sink (choose_sink)
    cdef size_t named            # bytes of values named in requests; Connection.ahead sets it to 0 before a send
    cdef size_t copied           # bytes of values copied for requests since an event loop set this field to 0
    cdef bint sink_named         # the request names the sink, or the target in its place
    cdef unsigned int moved      # exchanges in which the server moved values, until RdmaStream.take_hints counts down
    cdef unsigned int small_values   # values in a row that needed no named memory
    cdef bint large              # the last value had LARGE bytes or more
    cdef Buffer target           # named by the request in place of the sink
    cdef ibv_mr *borrowed        # the registration, for this call, of a target outside of all Buffers
    cdef size_t target_size      # bytes of `target` or `borrowed`

    # RdmaStream.join_loop: from now on an event loop uses the memory (Memory.join_loop).
    cdef void join_loop(self) noexcept
    # Names a value for the server to read: its address, or a copy's, and the key. `value`: the bytes or memoryview with
    # the memory, or a Gathered, whose data is NULL. False: the memory cannot be named, and the value goes in messages.
    # Raises OSError, MemoryError.
    cdef bint expose(self, object value, const char *data, size_t length, memory_name *name) except -1
    # Gives back the memory of the exposed values, after the answers: no request of this call needs them any more.
    cdef int unexpose(self) except -1
    # Names the sink for the value of the reply. lends: `lend` follows, not `take`. False: the value shall come in the
    # stream. Raises OSError, MemoryError.
    cdef bint name_sink(self, bint lends, memory_name *name) except -1
    # Names the caller's memory for the value, or else the sink as name_sink does.
    cdef bint name_target(self, char *to, size_t size, memory_name *name) except -1
    # Called after name_sink(False) and before the send. `take` will be faster: where the server maps regions, the value
    # is copied while the server writes it.
    cdef int copy_early(self) except -1
    # Called at a reply whose value of `length` bytes the server has written to the named memory; one of `take`, `lend`
    # and `take_into` follows. False: the memory is smaller, so the reply is wrong.
    cdef bint filled(self, size_t length) noexcept
    # Returns the value in the sink.
    cdef bytes take(self, size_t length)
    # Returns a read-only memoryview of the value in the sink. Only a small value is copied.
    cdef object lend(self, size_t length)
    # Copies the value from the sink to the caller's memory, unless the value is longer than `size`. Copies nothing if
    # the request named the caller's memory.
    cdef int take_into(self, char *to, size_t size, size_t length) except -1
    # Gives back the sinks' regions and the target, at the end of a call: no request needs them any more.
    cdef int release_sink(self) except -1
    # How many requests of a call may each name a sink at a time (Fetches). 0: the requests shall name none, because the
    # last value was not LARGE.
    cdef Py_ssize_t sinks_at_once(self) noexcept
    # Makes the sink with this number, from 0 on, the sink of the methods above, and sets sink_named to False.
    cdef int choose_sink(self, Py_ssize_t number) except -1
    # Notes the length of a value that comes in the stream: later requests may name more memory, or none.
    cdef void saw_length(self, size_t length) noexcept
    # Whether memory of the caller's is named that may change as soon as the call returns.
    cdef bint holds(self) noexcept
    # Whether the request names memory of the caller's in place of the sink.
    cdef bint has_target(self) noexcept
    # Gives the target back: no request needs it any more. lost: a server that maps regions may still write there.
    cdef void drop_target(self, bint lost) noexcept

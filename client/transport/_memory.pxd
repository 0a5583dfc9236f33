"""Memory for READs (Source) and WRITEs (Sink) of values by the server, for the calls of a stream.

See docs/rdma-protocol.md, sections 6 and 7. Memory named in a request is given back only after the reply to the
request, after the server has closed the lane, or after the end of the queue pair. The RdmaStream ensures this order. It
calls `close` itself, with the GIL and never in a forked child. One thread at a time uses an object.

Where a server maps regions (soft_shm), and where registering takes long (devices of the system), values are copied into
and out of regions of the queue pair's pool. On devices of the system large bytes objects stay registered if they come
again. On soft_iw registering is an entry in a table: values are registered in place. Values on soft_shm that go faster
through the ring are registered in place, too.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client.transport._buffers cimport Pool, region
from rmemcached.client.transport._gathered cimport Gathered
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._registered cimport Registrations
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef class Memory:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef Pool pool
    cdef bint pooled                 # regions of the pool are used
    cdef size_t ring_from            # bytes; larger values go through the ring of soft_shm. Of a Sink: only in a loop

    # From now on an event loop uses the memory: values larger than LOOP_RING_FROM go through the ring.
    cdef void join_loop(self) noexcept

    # Whether values of so many bytes are copied into and out of regions of the pool.
    cdef bint in_pool(self, size_t length) noexcept
    # Registers memory in place. NULL: errno has the reason.
    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept
    # Ends a registration by `register`.
    cdef void release(self, ibv_mr *mr) noexcept


cdef class Source(Memory):
    # the callers' memory named in requests of this call
    cdef ibv_mr **regions
    cdef size_t count
    cdef size_t cap
    cdef list values                 # references to the bytes objects with this memory, or None
    cdef bint borrows                # some memory may change as soon as the call returns
    cdef list buffers                # Buffers named in requests
    cdef Registrations registered    # None: registering takes no time, or is not needed
    cdef list objects                # objects of `registered` named in requests
    # copies of values
    cdef region **copies
    cdef size_t copies_count
    cdef size_t copies_cap
    cdef size_t copies_used          # bytes of the last region named in requests
    cdef size_t total                # bytes of all values named in requests of this call

    # Names a value for the server to read: the address of the value, or of a copy, and the key. The caller keeps a
    # value other than bytes until `forget`. False: the memory cannot be registered. OSError, MemoryError.
    cdef bint expose(self, object value, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # Gives back the memory of the exposed values: no request needs them any more.
    cdef void forget(self) noexcept
    # Calls Buffer.renew for the Buffers named in requests: a server that has not answered shall not read their next
    # contents.
    cdef void renew(self) noexcept
    # Whether memory is exposed that the caller may change when its call returns.
    cdef bint holds(self) noexcept
    # `forget`, and frees the arrays.
    cdef void close(self) noexcept

    # The next functions are ways of `expose`. Each names a value that fits; False: the value does not fit this way.
    # A value in a Buffer is named there.
    cdef bint expose_buffer(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # An object of `registered` is named in place.
    cdef bint name_object(self, object value, uint64_t *address, uint32_t *key) except -1
    # Names room for a copy behind the present copies, for the caller to fill. NULL: there is no room.
    cdef char *reserve(self, size_t length, uint64_t *address, uint32_t *key) except? NULL
    # Registers the pieces of a Gathered together, as a single region.
    cdef bint expose_parts(self, Gathered value, size_t length, uint64_t *address, uint32_t *key) except -1
    # Makes room in `regions` for a registration, which `keep` then adds.
    cdef int make_room(self) except -1
    cdef void keep(self, ibv_mr *mr, uint64_t *address, uint32_t *key) noexcept
    # Registers a value in place.
    cdef bint register_value(self, object value, const char *data, size_t length, uint64_t *address,
                             uint32_t *key) except -1


cdef class Sink(Memory):
    cdef region *borrowed            # of the pool; NULL: none
    cdef ibv_mr *mr                  # of block; NULL: there is none now
    cdef PyObject *block             # memory outside the pool: a bytes object, perhaps kept by new_result, too
    cdef size_t size                 # bytes of `borrowed` or `block`
    cdef size_t next_size            # of the next region or block
    cdef size_t last                 # bytes of the last value in the sink
    cdef unsigned int misfits        # values in a row that were too small for the sink
    cdef size_t peak                 # bytes of the largest value among them
    cdef bytes early                 # a copy of the value, begun while it comes (begin_copy); None: no such copy
    cdef bint copies                 # `early` is set
    cdef char *early_data
    cdef size_t copied               # bytes of `early` copied so far
    cdef uint64_t stale              # the result of queue_written before the request was sent

    # Makes the region or block, unless the present one is fit. lends: a region for `lend`. No request may name the
    # present memory. False: there is no memory. Raises OSError, MemoryError.
    cdef bint prepare(self, bint lends) except -1
    # The memory's name for the server.
    cdef uint64_t address(self) noexcept
    cdef uint32_t key(self) noexcept
    # Returns the value written there by the server, of `length` bytes: `size` at most.
    cdef bytes take(self, size_t length)
    # Returns the value as a memoryview of the region; the Pool gets the region back after the last view.
    cdef object lend(self, size_t length)
    # Copies the value to the caller's memory.
    cdef void take_into(self, char *to, size_t length) noexcept
    # Gives back the pool's region: the sink has no value, or the value was taken.
    cdef void forget(self) noexcept
    # Prepares copy_on, if the last value was large enough; the next value is expected to have the same length. `now`:
    # the result of queue_written before the request is sent.
    cdef int begin_copy(self, uint64_t now) except -1
    # Called by the waiting RdmaStream. Copies the part of the value that has come since: it ends at the address
    # `written`, the result of queue_written.
    cdef void copy_on(self, uint64_t written) noexcept nogil
    # A value of `length` bytes came in the stream: the next region will have room for such values, up to a limit.
    cdef void saw_length(self, size_t length) noexcept
    # `forget`, and frees the block.
    cdef void close(self) noexcept

    # Finishes the copy that began early, and returns it. None: no copy began, or another length was expected.
    cdef bytes take_early(self, size_t length)
    cdef char *data(self) noexcept
    # Chooses next_size by the lengths of the last values.
    cdef void learn(self, size_t length) noexcept
    # Returns the block itself as the value, without a copy.
    cdef bytes hand_out(self, size_t length)

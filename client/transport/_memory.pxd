"""Memory for READs (Source) and WRITEs (Sink) of values by the server, for the calls of a stream.

See docs/rdma-protocol.md, sections 6 and 7. Memory named in a request is given back only after the reply to the
request, after the server has closed the lane, or after the end of the queue pair. The RdmaStream ensures this order. It
calls `close` itself, with the GIL and never in a forked child. One thread at a time uses an object.

Where a server maps regions (soft_shm), and where registering takes long (devices of the system), values are copied into
and out of regions of the queue pair's pool. On devices of the system large bytes objects stay registered if they come
again. On soft_iw registering is an entry in a table: values are registered in place. So are values sent on soft_shm
that go faster through the ring.
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
    cdef size_t ring_from            # bytes; larger values go through the ring of soft_shm

    # From now on an event loop uses the memory: values larger than LOOP_RING_FROM go through the ring.
    cdef void join_loop(self) noexcept

    # Whether values of so many bytes are copied into and out of regions of the pool.
    cdef bint in_pool(self, size_t length) noexcept
    # A registration in place, which `release` ends. NULL: errno has the reason.
    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept
    cdef void release(self, ibv_mr *mr) noexcept


cdef class Source(Memory):
    # the callers' memory named in requests of this call
    cdef ibv_mr **regions
    cdef size_t count
    cdef size_t cap
    cdef list values                 # bytes objects behind this memory, kept unchanged, or None
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
    # Renews the Buffers named in requests: a server that has not answered shall not read their next contents.
    cdef void renew(self) noexcept
    # Whether memory is exposed that the caller may change when its call returns.
    cdef bint holds(self) noexcept
    cdef void close(self) noexcept

    # The ways of `expose`; False: the way does not fit the value. The first way: the value lies in a Buffer.
    cdef bint expose_buffer(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # The value is an object of `registered`.
    cdef bint name_object(self, object value, uint64_t *address, uint32_t *key) except -1
    # Room for a copy behind the present copies. NULL: there is no room.
    cdef char *reserve(self, size_t length, uint64_t *address, uint32_t *key) except? NULL
    # The pieces of a Gathered are registered as a whole.
    cdef bint expose_parts(self, Gathered value, size_t length, uint64_t *address, uint32_t *key) except -1
    # Makes room in `regions`, for a registration given to `keep`.
    cdef int make_room(self) except -1
    cdef void keep(self, ibv_mr *mr, uint64_t *address, uint32_t *key) noexcept
    # The value is registered in place.
    cdef bint register_value(self, object value, const char *data, size_t length, uint64_t *address,
                             uint32_t *key) except -1


cdef class Sink(Memory):
    cdef region *borrowed            # of the pool; NULL: none
    cdef ibv_mr *mr                  # of block; NULL: there is none now
    cdef PyObject *block             # the Sink's own memory: a bytes object, perhaps kept by new_result, too
    cdef size_t size                 # bytes of `borrowed` or `block`
    cdef size_t next_size            # of the next region or block
    cdef size_t last                 # bytes of the last value in the sink
    cdef unsigned int misfits        # values in a row that were too small for the sink
    cdef size_t peak                 # bytes of the largest value among them
    cdef bytes early                 # the next value, as expected; None: copied after it has come
    cdef bint copies                 # `early` is set
    cdef char *early_data
    cdef size_t copied               # bytes of `early` copied so far
    cdef uint64_t stale              # `written` before the request was sent (begin_copy)

    # Makes the region, unless there is a sufficient region. lends: a region fit for `lend`. False: there is no region.
    # OSError, MemoryError. No request may name the present region.
    cdef bint prepare(self, bint lends) except -1
    # The region's name for the server.
    cdef uint64_t address(self) noexcept
    cdef uint32_t key(self) noexcept
    # The value written there by the server, `length` bytes, `size` at most.
    cdef bytes take(self, size_t length)
    # The value as a memoryview of the region, which the reader has until its release.
    cdef object lend(self, size_t length)
    cdef void take_into(self, char *to, size_t length) noexcept
    # Gives back the pool's region: the sink has no value, or the value was taken.
    cdef void forget(self) noexcept
    # Copies the value while the server writes it, up to the place `written` (queue_written). The expected length is the
    # last value's; `take` checks it. `now`: `written` before the request was sent.
    cdef int begin_copy(self, uint64_t now) except -1
    cdef void copy_on(self, uint64_t written) noexcept nogil
    # A value of `length` bytes came in the stream: the next region will have room for such values, up to a limit.
    cdef void saw_length(self, size_t length) noexcept
    cdef void close(self) noexcept

    # `take` by the copy that began early. None: another length was expected.
    cdef bytes take_early(self, size_t length)
    cdef char *data(self) noexcept
    # Chooses next_size by the lengths of the last values.
    cdef void learn(self, size_t length) noexcept
    # `take` of the block itself, without a copy.
    cdef bytes hand_out(self, size_t length)

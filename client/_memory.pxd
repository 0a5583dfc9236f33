"""Memory that the server reads values from (Source) and writes values to (Sink), for the calls of a stream.

See docs/rdma-protocol.md, sections 6 and 7. What a request has named is given back only after the reply to that request
has come, or when the server has closed the lane, or the queue pair is gone; the RdmaStream sees to that. It calls
`close` itself, with the GIL and never in a forked child. One thread at a time.

Where a server maps regions (soft_shm), and where registering takes long (devices of the system), values are copied into
and out of regions of the queue pair's pool. On devices of the system large bytes objects that come again stay
registered. On soft_iw registering is an entry in a table: values are registered where they are, and so are those that
are sent on soft_shm and go faster through the ring.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client._buffers cimport Pool, region
from rmemcached.client._gathered cimport Gathered
from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.client._registered cimport Registrations
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef class Memory:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef Pool pool
    cdef bint pooled                 # regions of the pool are used
    cdef size_t ring_from            # bytes; larger values go through the ring of soft_shm

    # For an event loop.
    cdef void join_loop(self) noexcept

    # Whether values of so many bytes are copied into and out of regions of the pool.
    cdef bint in_pool(self, size_t length) noexcept
    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept
    cdef void release(self, ibv_mr *mr) noexcept


cdef class Source(Memory):
    # the callers' memory that requests of this call name
    cdef ibv_mr **regions
    cdef size_t count
    cdef size_t cap
    cdef list values                 # bytes objects that it is, which stay as they are, or None
    cdef bint borrows                # some of it may change as soon as the call returns
    cdef list buffers                # Buffers that they name
    cdef Registrations registered    # None: registering takes no time, or is not needed
    cdef list objects                # of those, the ones that they name
    # copies of values
    cdef region **copies
    cdef size_t copies_count
    cdef size_t copies_cap
    cdef size_t copies_used          # bytes of the last one that requests name
    cdef size_t total                # bytes of all values that requests of this call name

    # Names a value for the server to read: the address of the value, or of a copy, and the key. The caller keeps what
    # is no bytes object until `forget`. False: it cannot be registered. OSError, MemoryError.
    cdef bint expose(self, object value, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # No request needs the exposed values any more.
    cdef void forget(self) noexcept
    # The server has not answered: it is not to read from Buffers any more what they get next.
    cdef void renew(self) noexcept
    # Whether memory is exposed that the caller may change when its call returns.
    cdef bint holds(self) noexcept
    cdef void close(self) noexcept

    cdef bint expose_buffer(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    cdef bint name_object(self, object value, uint64_t *address, uint32_t *key) except -1
    # Room behind the copies that are there. NULL: there is none.
    cdef char *reserve(self, size_t length, uint64_t *address, uint32_t *key) except? NULL
    cdef bint expose_parts(self, Gathered value, size_t length, uint64_t *address, uint32_t *key) except -1
    cdef int make_room(self) except -1
    cdef void keep(self, ibv_mr *mr, uint64_t *address, uint32_t *key) noexcept
    cdef bint register_value(self, object value, const char *data, size_t length, uint64_t *address,
                             uint32_t *key) except -1


cdef class Sink(Memory):
    cdef region *borrowed            # of the pool; NULL: none
    cdef ibv_mr *mr                  # of block; NULL: there is none now
    cdef PyObject *block             # memory of its own: a bytes object that nobody else sees
    cdef size_t size                 # bytes of either
    cdef size_t next_size            # of the next one
    cdef size_t last                 # bytes of the last value that came there
    cdef unsigned int misfits        # values in a row that were small for it
    cdef size_t peak                 # the largest of them
    cdef bytes early                 # the value that is likely to come; None: it is copied when it has come
    cdef bint copies                 # there is one
    cdef char *early_data
    cdef size_t copied               # bytes of it that are there
    cdef uint64_t stale              # what `written` said before

    # Makes the region, unless one that is large enough is there. lends: one that can be lent. False: there is none.
    # OSError, MemoryError. No request names the one that is there.
    cdef bint prepare(self, bint lends) except -1
    # Of it, for the server.
    cdef uint64_t address(self) noexcept
    cdef uint32_t key(self) noexcept
    # The value of so many bytes, `size` at most, that the server has written there.
    cdef bytes take(self, size_t length)
    # The same as a memoryview of the region, which is the reader's until it is released.
    cdef object lend(self, size_t length)
    cdef void take_into(self, char *to, size_t length) noexcept
    # Nothing has come there, or it was taken.
    cdef void forget(self) noexcept
    # Copies the value while the server writes it, as far as `written` (queue_written) says that it is there. It is
    # likely to be as long as the last one; `take` finds out. `now`: the same before the request was sent.
    cdef int begin_copy(self, uint64_t now) except -1
    cdef void copy_on(self, uint64_t written) noexcept nogil
    # A value of so many bytes came in the stream: the next region will have room for it, up to a limit.
    cdef void saw_length(self, size_t length) noexcept
    cdef void close(self) noexcept

    cdef bytes take_early(self, size_t length)
    cdef char *data(self) noexcept
    cdef void learn(self, size_t length) noexcept
    cdef bytes hand_out(self, size_t length)

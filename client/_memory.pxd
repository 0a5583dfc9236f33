"""Memory that the server reads values from (Source) and writes values to (Sink).

See docs/rdma-protocol.md, sections 6 and 7. A region that a request has named is released only after the reply to that
request has come, or when the queue pair is gone; the RdmaStream sees to both. It calls `close` itself, with the GIL and
never in a forked child. One thread at a time.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef class Memory:
    cdef const verbs_provider *provider
    cdef ibv_pd *pd
    cdef str transport
    cdef bint server_maps            # soft_shm: the server maps regions, if soft_alloc_mr has made them

    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept
    cdef ibv_mr *allocate(self, size_t length, int access) except NULL
    cdef void release(self, ibv_mr *mr) noexcept
    cdef bint go_without(self, size_t length) except -1


cdef class Source(Memory):
    # the callers' memory that requests of this call name
    cdef ibv_mr **regions
    cdef size_t count
    cdef size_t cap
    # soft_shm: copies of values, in memory that the server has mapped
    cdef ibv_mr *copies
    cdef size_t copies_used          # bytes of it that requests of this call name
    cdef size_t total                # bytes of all values that they name

    # Names a value for the server to read: the address of the value, or of a copy, and the key. The caller keeps the
    # value until `forget`. False: it cannot be registered. OSError, MemoryError.
    cdef bint expose(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    # No request needs the exposed values any more.
    cdef void forget(self) noexcept
    cdef void close(self) noexcept

    cdef bint copy(self, const char *data, size_t length) except -1
    cdef bint register_value(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1


cdef class Sink(Memory):
    cdef ibv_mr *mr                  # NULL: there is none now
    cdef size_t size                 # bytes of it
    cdef PyObject *block             # its memory: a bytes object that nobody else has seen. NULL: shared memory
    cdef size_t next_size            # of the next one
    cdef size_t last                 # bytes of the last value that came there
    cdef unsigned int misfits        # values in a row that were small for it
    cdef size_t peak                 # the largest of them

    # Makes the region, unless it is there. False: it cannot be registered. OSError, MemoryError.
    cdef bint prepare(self) except -1
    # The value of so many bytes, `size` at most, that the server has written there.
    cdef bytes take(self, size_t length)
    # A value of so many bytes came in the stream: the next region will have room for it, up to a limit.
    cdef void saw_length(self, size_t length) noexcept
    cdef void close(self) noexcept

    cdef bytes copy(self, size_t length)
    cdef bytes hand_out(self, size_t length)

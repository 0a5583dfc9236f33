"""See _memory.pxd."""

import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from rmemcached.client._errors cimport os_error, registration_error
from rmemcached.sys.debug cimport LIVE_CLIENT_BUFFER, assert_that, live_add, live_sub
from rmemcached.verbs.soft cimport SOFT_ACCESS_SCRATCH, soft_alloc_mr, soft_provider
from rmemcached.verbs.verbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE

from rmemcached.client._exchange import SOFT_SHM

cdef extern from "Python.h":
    void Py_CLEAR(PyObject *p)
    int _PyBytes_Resize(PyObject **string, Py_ssize_t size) except -1

cdef enum:
    SHARED_MIN = 1 << 20     # bytes of the first region that a server maps
    SHARED_MAX = 1 << 23     # and of the largest; larger values go through the ring
    SINK_FIRST = 1 << 20     # bytes of the first sink
    SINK_MIN = 1 << 18
    SINK_MAX = 1 << 28
    SINK_WINDOW = 16         # values after which a sink that is too large for them gets smaller

cdef object logger = logging.getLogger("rmemcached.client")
cdef bint told_shortage = False      # of memory that may be locked; under the GIL


cdef class Memory:

    def __init__(self, QueuePair queue):
        self.provider = queue.provider
        self.pd = queue.pd
        self.transport = queue.transport
        self.server_maps = queue.transport == SOFT_SHM

    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept:
        # NULL: errno says why.
        cdef ibv_mr *mr = self.provider.reg_mr(self.pd, <void *>data, length, access)
        if mr != NULL:
            live_add(LIVE_CLIENT_BUFFER)
        return mr

    cdef ibv_mr *allocate(self, size_t length, int access) except NULL:
        # A region of shared memory.
        cdef ibv_mr *mr = soft_alloc_mr(self.pd, length, access)
        if mr == NULL:
            raise os_error("memory region", errno)
        live_add(LIVE_CLIENT_BUFFER)
        return mr

    cdef void release(self, ibv_mr *mr) noexcept:
        self.provider.dereg_mr(mr)
        live_sub(LIVE_CLIENT_BUFFER)

    cdef bint go_without(self, size_t length) except -1:
        # Memory could not be registered: False, since values can travel in messages. The log says so the first time.
        global told_shortage
        error = registration_error(self.provider, length, errno)
        if error.errno != ENOMEM:
            raise error
        if not told_shortage:
            told_shortage = True
            logger.warning("transport %s: %s; large values are copied", self.transport, error.strerror)
        return False


cdef class Source(Memory):

    cdef bint expose(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        if not self.copy(data, length):
            return self.register_value(data, length, address, key)
        address[0] = <uint64_t><uintptr_t>self.copies.addr + self.copies_used
        key[0] = self.copies.rkey
        # The next one begins a cache line of its own.
        self.copies_used = min((self.copies_used + length + 63) & ~<size_t>63, self.copies.length)
        self.total += length
        return True

    cdef bint copy(self, const char *data, size_t length) except -1:
        # Copies the value behind those that are there. False: the server cannot map such memory, or there is no room.
        cdef size_t size
        if not self.server_maps or length > SHARED_MAX:
            return False
        if self.copies_used == 0 and (self.copies == NULL or self.copies.length < length):
            if self.copies != NULL:
                self.release(self.copies)
                self.copies = NULL
            size = SHARED_MIN
            while size < length:
                size *= 2
            self.copies = self.allocate(size, IBV_ACCESS_REMOTE_READ)
        if self.copies.length - self.copies_used < length:
            return False
        memcpy(<char *>self.copies.addr + self.copies_used, data, length)
        return True

    cdef bint register_value(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        cdef ibv_mr **grown
        cdef ibv_mr *mr
        if self.count == self.cap:
            grown = <ibv_mr **>realloc(self.regions, (self.cap * 2 + 8) * sizeof(ibv_mr *))
            if grown == NULL:
                raise MemoryError
            self.regions = grown
            self.cap = self.cap * 2 + 8
        mr = self.register(data, length, IBV_ACCESS_REMOTE_READ)
        if mr == NULL:
            return self.go_without(length)
        self.regions[self.count] = mr
        self.count += 1
        self.total += length
        address[0] = <uint64_t><uintptr_t>data
        key[0] = mr.rkey
        return True

    cdef void forget(self) noexcept:
        while self.count:
            self.count -= 1
            self.release(self.regions[self.count])
        self.total = 0
        self.copies_used = 0

    cdef void close(self) noexcept:
        self.forget()
        free(self.regions)
        self.regions = NULL
        self.cap = 0
        if self.copies != NULL:
            self.release(self.copies)
            self.copies = NULL


cdef class Sink(Memory):

    def __cinit__(self):
        self.next_size = SINK_FIRST

    cdef bint prepare(self) except -1:
        cdef int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
        cdef bytes fresh
        if self.mr != NULL:
            return True
        if self.server_maps and self.next_size <= SHARED_MAX:
            # The server maps only what it may read.
            self.mr = self.allocate(self.next_size, access | IBV_ACCESS_REMOTE_READ)
        else:
            fresh = PyBytes_FromStringAndSize(NULL, self.next_size)
            if self.provider == soft_provider():
                access |= SOFT_ACCESS_SCRATCH
            self.mr = self.register(PyBytes_AS_STRING(fresh), self.next_size, access)
            if self.mr == NULL:
                return self.go_without(self.next_size)
            Py_INCREF(fresh)
            self.block = <PyObject *>fresh
        self.size = self.next_size
        return True

    cdef bytes take(self, size_t length):
        cdef size_t largest
        assert_that(self.mr != NULL and length <= self.size)
        self.last = length
        self.peak = max(self.peak, length)
        if length * 2 >= self.size:
            self.misfits = 0
            self.peak = 0
            return self.copy(length) if self.block == NULL else self.hand_out(length)
        value = self.copy(length)
        self.misfits += 1
        if self.misfits == SINK_WINDOW:
            largest = self.peak
            self.misfits = 0
            self.peak = 0
            if self.size > SINK_MIN:
                self.next_size = max(largest, <size_t>SINK_MIN)
                self.close()
        return value

    cdef bytes copy(self, size_t length):
        return PyBytes_FromStringAndSize(<char *>self.mr.addr, length)

    cdef bytes hand_out(self, size_t length):
        # The bytes object itself becomes the value. Not worth it for small values: shrinking it costs system calls that
        # give most of it back, and the next sink page faults.
        cdef PyObject *whole = self.block
        cdef bytes value
        self.release(self.mr)
        self.mr = NULL
        self.block = NULL
        _PyBytes_Resize(&whole, length)
        value = <bytes>whole
        Py_DECREF(value)
        return value

    cdef void saw_length(self, size_t length) noexcept:
        if self.next_size < length <= SINK_MAX:
            self.next_size = length
            self.misfits = 0
            self.peak = 0
            self.close()

    cdef void close(self) noexcept:
        if self.mr != NULL:
            self.release(self.mr)
            self.mr = NULL
        Py_CLEAR(self.block)

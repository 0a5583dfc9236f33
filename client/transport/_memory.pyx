"""See _memory.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport errno
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.client.transport._buffers cimport (
    REGION_MIN,
    REGIONS_MOST,
    Buffer,
    count_registration,
    lend_region,
    name_buffer,
    unname_buffer,
)
from rmemcached.client.transport._registered cimport Registration
from rmemcached.client.transport._results cimport new_result
from rmemcached.sys.debug cimport LIVE_CLIENT_BUFFER, assert_that, live_sub
from rmemcached.verbs.soft cimport SOFT_ACCESS_SCRATCH, soft_reg_list
from rmemcached.verbs.verbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE

cdef extern from "Python.h":
    void Py_CLEAR(PyObject *p)
    Py_ssize_t Py_REFCNT(PyObject *o)
    int _PyBytes_Resize(PyObject **string, Py_ssize_t size) except -1

cdef enum:
    COPY_MOST = 1 << 17      # bytes of values that are always copied, as long as there is room
    RING_FROM = 1 << 23      # soft_shm: larger values to the server go through the ring: both sides copy at once
    LOOP_RING_FROM = 1 << 20  # ... in an event loop, also values from the server: the loop does other work in between
    SINK_FIRST = 1 << 20     # bytes of the first sink
    SINK_MIN = 1 << 18       # bytes of the smallest block
    SINK_MAX = 1 << 28       # bytes of the largest block, or region mapped by the server
    SINK_WINDOW = 16         # values after which a too large sink gets smaller
    EARLY_MIN = 1 << 21      # bytes of a value that is copied while it comes: two pieces of a WRITE on soft_shm
    LONG_COPY = 1 << 18      # bytes of a copy made without the GIL


cdef void copy_bytes(char *to, const char *data, size_t length) noexcept:
    # Source and target are the call's: nobody else uses them meanwhile.
    if length < LONG_COPY:
        memcpy(to, data, length)
    else:
        with nogil:
            memcpy(to, data, length)


cdef class Memory:

    def __init__(self, QueuePair queue):
        self.provider = queue.provider
        self.pd = queue.pd
        self.pool = queue.pool
        # A near server maps regions of the pool; and a copy costs less than to pin pages.
        self.pooled = queue.near or queue.row.pins
        self.ring_from = RING_FROM

    cdef void join_loop(self) noexcept:
        self.ring_from = LOOP_RING_FROM

    cdef bint in_pool(self, size_t length) noexcept:
        return self.pooled and (length <= self.ring_from or not self.pool.server_maps)

    cdef ibv_mr *register(self, const void *data, size_t length, int access) noexcept:
        cdef ibv_mr *mr = self.provider.reg_mr(self.pd, <void *>data, length, access)
        if mr != NULL:
            count_registration()
        return mr

    cdef void release(self, ibv_mr *mr) noexcept:
        self.provider.dereg_mr(mr)
        live_sub(LIVE_CLIENT_BUFFER)


cdef class Source(Memory):

    def __init__(self, QueuePair queue):
        Memory.__init__(self, queue)
        self.registered = queue.registered

    cdef bint expose(self, object value, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        cdef char *to
        cdef bint exposed = data != NULL and self.expose_buffer(data, length, address, key)
        if data == NULL and self.expose_parts(value, length, address, key):
            self.total += length
            return True
        if data == NULL:
            to = self.reserve(length, address, key)
            if to == NULL:
                return False
            (<Gathered>value).copy_to(to)
            self.total += length
            return True
        if not exposed and self.registered is not None and length > COPY_MOST and type(value) is bytes:
            exposed = self.name_object(value, address, key)
        if not exposed and self.in_pool(length):
            to = self.reserve(length, address, key)
            exposed = to != NULL
            if exposed:
                copy_bytes(to, data, length)
        if not exposed:
            exposed = self.register_value(value, data, length, address, key)
        if exposed:
            self.total += length
        return exposed

    cdef bint expose_buffer(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1:
        cdef Buffer found = name_buffer(self.pd, data, length)
        if found is None:
            return False
        if self.buffers is None:
            self.buffers = []
        self.buffers.append(found)
        address[0] = <uint64_t><uintptr_t>data
        key[0] = found.memory.mr.rkey
        return True

    cdef bint name_object(self, object value, uint64_t *address, uint32_t *key) except -1:
        cdef Registration one = self.registered.take(value)
        if one is None:
            return False
        if self.objects is None:
            self.objects = []
        self.objects.append(one)
        address[0] = <uint64_t><uintptr_t>one.mr.addr
        key[0] = one.mr.rkey
        return True

    cdef char *reserve(self, size_t length, uint64_t *address, uint32_t *key) except? NULL:
        cdef region **grown
        cdef char *to
        cdef region *one = self.copies[self.copies_count - 1] if self.copies_count else NULL
        if one == NULL or one.size - self.copies_used < length:
            if self.copies_count == self.copies_cap:
                grown = <region **>realloc(self.copies, (self.copies_cap * 2 + 1) * sizeof(region *))
                if grown == NULL:
                    raise MemoryError
                self.copies = grown
                self.copies_cap = self.copies_cap * 2 + 1
            one = self.pool.take(length)
            if one == NULL:
                return NULL
            self.copies[self.copies_count] = one
            self.copies_count += 1
            self.copies_used = 0
        to = one.data + self.copies_used
        address[0] = <uint64_t><uintptr_t>to
        key[0] = one.mr.rkey
        # The next copy begins a cache line of its own.
        self.copies_used = min((self.copies_used + length + 63) & ~<size_t>63, one.size)
        return to

    cdef bint expose_parts(self, Gathered value, size_t length, uint64_t *address, uint32_t *key) except -1:
        # A software device registers several pieces as a single region.
        cdef iovec *parts
        cdef ibv_mr *mr
        if self.in_pool(length):
            return False
        self.make_room()
        parts = value.places()
        mr = soft_reg_list(self.pd, parts, <uint32_t>len(value.views))
        free(parts)
        if mr == NULL:
            # There are too many small pieces for a registration.
            return False
        count_registration()
        self.borrows = True
        self.keep(mr, address, key)
        return True

    cdef int make_room(self) except -1:
        cdef ibv_mr **grown
        if self.count == self.cap:
            grown = <ibv_mr **>realloc(self.regions, (self.cap * 2 + 8) * sizeof(ibv_mr *))
            if grown == NULL:
                raise MemoryError
            self.regions = grown
            self.cap = self.cap * 2 + 8
        return 0

    cdef void keep(self, ibv_mr *mr, uint64_t *address, uint32_t *key) noexcept:
        self.regions[self.count] = mr
        self.count += 1
        address[0] = <uint64_t><uintptr_t>mr.addr
        key[0] = mr.rkey

    cdef bint register_value(self, object value, const char *data, size_t length, uint64_t *address,
                             uint32_t *key) except -1:
        cdef ibv_mr *mr
        self.make_room()
        if type(value) is not bytes:
            self.borrows = True
        elif self.values is None:
            self.values = [value]
        else:
            self.values.append(value)
        mr = self.register(data, length, IBV_ACCESS_REMOTE_READ)
        if mr == NULL:
            return self.pool.go_without(length, errno)
        self.keep(mr, address, key)
        return True

    cdef bint holds(self) noexcept:
        return self.borrows or self.buffers is not None

    cdef void renew(self) noexcept:
        cdef Buffer one
        if self.buffers is not None:
            for one in self.buffers:
                one.renew()

    cdef void forget(self) noexcept:
        cdef Buffer one
        while self.count:
            self.count -= 1
            self.release(self.regions[self.count])
        self.values = None
        self.borrows = False
        while self.copies_count:
            self.copies_count -= 1
            self.pool.give(self.copies[self.copies_count])
        if self.buffers is not None:
            for one in self.buffers:
                unname_buffer(one)
            self.buffers = None
        if self.objects is not None:
            for object_ in self.objects:
                self.registered.give(object_)
            self.objects = None
        self.total = 0

    cdef void close(self) noexcept:
        self.forget()
        free(self.regions)
        self.regions = NULL
        self.cap = 0
        free(self.copies)
        self.copies = NULL
        self.copies_cap = 0


cdef class Sink(Memory):

    def __init__(self, QueuePair queue):
        Memory.__init__(self, queue)
        # On soft_shm values of all sizes come into a region: a waiting RdmaStream copies a value while it comes
        # (copy_on). An event loop does not wait in the stream, so join_loop sets a limit.
        self.ring_from = <size_t>-1

    def __cinit__(self, *_):
        self.next_size = SINK_FIRST

    cdef bint prepare(self, bint lends) except -1:
        cdef int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | SOFT_ACCESS_SCRATCH
        cdef bytes fresh
        if self.size < self.next_size or lends and self.mr != NULL:
            self.close()
        if self.mr != NULL or self.borrowed != NULL:
            return True
        if lends or self.in_pool(self.next_size):
            self.borrowed = self.pool.take(self.next_size)
            if self.borrowed != NULL:
                self.size = self.borrowed.size
            return self.borrowed != NULL
        fresh = new_result(self.next_size)
        self.mr = self.register(PyBytes_AS_STRING(fresh), self.next_size, access)
        if self.mr == NULL:
            return self.pool.go_without(self.next_size, errno)
        Py_INCREF(fresh)
        self.block = <PyObject *>fresh
        self.size = self.next_size
        return True

    cdef uint64_t address(self) noexcept:
        return <uint64_t><uintptr_t>self.data()

    cdef uint32_t key(self) noexcept:
        return self.borrowed.mr.rkey if self.borrowed != NULL else self.mr.rkey

    cdef char *data(self) noexcept:
        return self.borrowed.data if self.borrowed != NULL else <char *>self.mr.addr

    cdef void learn(self, size_t length) noexcept:
        # The next value is expected to be as large as the last. SINK_WINDOW small values in a row shrink the sink.
        cdef size_t largest
        cdef size_t least = REGION_MIN if self.pooled else SINK_MIN
        self.last = length
        self.peak = max(self.peak, length)
        if length * 2 >= self.next_size:
            self.misfits = 0
            self.peak = 0
            return
        self.misfits += 1
        if self.misfits == SINK_WINDOW:
            largest = self.peak
            self.misfits = 0
            self.peak = 0
            if self.next_size > least:
                self.next_size = max(largest, least)
                self.close()

    cdef bytes take(self, size_t length):
        cdef bytes value
        assert_that(length <= self.size)
        # Only an object with a single reference can be shortened. If new_result keeps the block for later values
        # (_results.pxd), the block has a second reference, and becomes a value of its whole size only.
        if self.block != NULL and (length == self.size or length * 2 >= self.size and Py_REFCNT(self.block) == 1):
            value = self.hand_out(length)
            self.learn(length)
            return value
        value = self.take_early(length)
        if value is not None:
            return value
        value = new_result(length)
        self.take_into(PyBytes_AS_STRING(value), length)
        return value

    cdef int begin_copy(self, uint64_t now) except -1:
        self.early = None
        self.copies = False
        if self.borrowed != NULL and EARLY_MIN <= self.last <= self.size:
            self.early = new_result(self.last)
            self.early_data = PyBytes_AS_STRING(self.early)
            self.copied = 0
            self.stale = now
            self.copies = True
        return 0

    cdef void copy_on(self, uint64_t written) noexcept nogil:
        # `written` is stale until a WRITE for this answer has moved the place into this region.
        cdef size_t there = written - <uint64_t><uintptr_t>self.borrowed.data
        if written != self.stale and self.copied < there <= self.last:
            memcpy(self.early_data + self.copied, self.borrowed.data + self.copied, there - self.copied)
            self.copied = there
            self.stale = 0

    cdef bytes take_early(self, size_t length):
        cdef bytes value = self.early
        self.early = None
        self.copies = False
        if value is None or length != self.last:
            return None
        copy_bytes(self.early_data + self.copied, self.data() + self.copied, length - self.copied)
        self.forget()
        self.learn(length)
        return value

    cdef object lend(self, size_t length):
        cdef region *one = self.borrowed
        # A small value is copied: to lend it would keep the whole region from other calls.
        if one == NULL or length * 4 < one.size:
            return memoryview(self.take(length))
        self.borrowed = NULL
        self.learn(length)
        return lend_region(self.pool, one, length)

    cdef void take_into(self, char *to, size_t length) noexcept:
        copy_bytes(to, self.data(), length)
        self.forget()
        self.learn(length)

    cdef void forget(self) noexcept:
        self.early = None
        self.copies = False
        if self.borrowed != NULL:
            self.pool.give(self.borrowed)
            self.borrowed = NULL

    cdef bytes hand_out(self, size_t length):
        # The bytes object itself becomes the value. A small value is copied instead: shrinking the object costs system
        # calls to give most of the memory back, and the next sink costs page faults.
        cdef PyObject *whole = self.block
        cdef bytes value
        self.release(self.mr)
        self.mr = NULL
        self.block = NULL
        if length != self.size:
            _PyBytes_Resize(&whole, length)
        value = <bytes>whole
        Py_DECREF(value)
        return value

    cdef void saw_length(self, size_t length) noexcept:
        if self.next_size < length <= <size_t>(REGIONS_MOST if self.pooled and not self.pool.server_maps else SINK_MAX):
            # An unanswered request may name the present region: `prepare` replaces this region later.
            self.next_size = length
            self.misfits = 0
            self.peak = 0

    cdef void close(self) noexcept:
        self.forget()
        if self.mr != NULL:
            self.release(self.mr)
            self.mr = NULL
        Py_CLEAR(self.block)

"""See _lane_memory.pxd."""

cimport cython
from libc.stdint cimport uintptr_t

from rmemcached.client.transport._buffers cimport name_buffer, unname_buffer
from rmemcached.client.transport._queue_events cimport queue_written
from rmemcached.sys.debug cimport assert_that
from rmemcached.verbs.verbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE

cdef enum:
    LARGE = 1 << 17          # bytes; after a value of this size, each request of a call names memory of its own
    SINKS = 3                # such requests at a time, at most
    SINKS_BYTES = 1 << 26    # bytes of their memory, at most
    SMALL_RUN = 32           # values in a row without need of memory, after which requests name none


# No cycle leads through a LaneMemory, as none leads through an RdmaStream.
@cython.no_gc
cdef class LaneMemory:

    def __init__(self, QueuePair queue not None):
        self.queue = queue
        self.source = Source(queue)
        self.sink = Sink(queue)
        self.sinks = [self.sink]

    cdef void join_loop(self) noexcept:
        self.source.join_loop()
        self.sink.join_loop()

    cdef bint holds(self) noexcept:
        return self.source.holds() or self.has_target()

    cdef bint expose(self, object value, const char *data, size_t length, memory_name *name) except -1:
        if not self.source.expose(value, data, length, &name.address, &name.key):
            return False
        self.named += length
        if self.source.in_pool(length):
            self.copied += length
        return True

    cdef int unexpose(self) except -1:
        if self.source.total:
            self.moved += 1
            self.source.forget()
            self.named = 0
        return 0

    cdef bint name_sink(self, bint lends, memory_name *name) except -1:
        assert_that(not self.sink_named)
        # After a series of small values requests name no memory: the name would be most of a request. The next large
        # value comes in messages, and later requests name memory again.
        if self.small_values == SMALL_RUN or not self.sink.prepare(lends):
            return False
        name.address = self.sink.address()
        name.key = self.sink.key()
        name.size = self.sink.size
        self.sink_named = True
        return True

    cdef bint name_target(self, char *to, size_t size, memory_name *name) except -1:
        cdef Buffer found = name_buffer(self.queue.pd, to, size)
        if found is None and not self.sink.pooled and size >= LARGE:
            # Where no pool is used, registering is only an entry in a table.
            self.borrowed = self.sink.register(to, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        if self.borrowed != NULL:
            name.key = self.borrowed.rkey
        elif found is None:
            return self.name_sink(False, name)
        else:
            self.target = found
            name.key = found.memory.mr.rkey
        self.target_size = name.size = size
        name.address = <uint64_t><uintptr_t>to
        self.sink_named = True
        return True

    cdef int copy_early(self) except -1:
        if self.sink_named and self.sink.pool.server_maps:
            self.sink.begin_copy(queue_written(self.queue))
        return 0

    cdef bint filled(self, size_t length) noexcept:
        self.sink_named = False
        self.small_values = 0
        self.large = length >= LARGE
        if length > (self.target_size if self.has_target() else self.sink.size):
            return False
        self.moved += 1
        return True

    cdef bytes take(self, size_t length):
        return self.sink.take(length)

    cdef object lend(self, size_t length):
        return self.sink.lend(length)

    cdef int take_into(self, char *to, size_t size, size_t length) except -1:
        if self.has_target():
            self.sink.last = length
        elif length <= size:
            self.sink.take_into(to, length)
        return 0

    cdef int release_sink(self) except -1:
        cdef Sink more
        self.sink_named = False
        if len(self.sinks) > 1:
            for more in self.sinks[1:]:
                more.close()
            del self.sinks[1:]
            self.sink = self.sinks[0]
        self.sink.forget()
        self.drop_target(False)
        return 0

    cdef Py_ssize_t sinks_at_once(self) noexcept:
        # The caller copies from a sink while the server fills the rest.
        if not self.large:
            return 0
        return <Py_ssize_t>max(<size_t>1, min(<size_t>SINKS, SINKS_BYTES // (<Sink>self.sinks[0]).next_size))

    cdef int choose_sink(self, Py_ssize_t number) except -1:
        cdef Sink made
        if number == len(self.sinks):
            made = Sink(self.queue)
            made.next_size = self.sink.next_size
            made.ring_from = self.sink.ring_from
            made.last = self.sink.last
            self.sinks.append(made)
        self.sink = self.sinks[number]
        self.sink_named = False
        return 0

    cdef void saw_length(self, size_t length) noexcept:
        self.large = length >= LARGE
        if length > self.queue.eager:
            self.small_values = 0
            self.sink.saw_length(length)
        elif self.small_values < SMALL_RUN:
            self.small_values += 1

    cdef bint has_target(self) noexcept:
        return self.target is not None or self.borrowed != NULL

    cdef void drop_target(self, bint lost) noexcept:
        if self.borrowed != NULL:
            self.sink.release(self.borrowed)
            self.borrowed = NULL
        if self.target is not None:
            self.target.lost |= lost
            if lost:
                self.target.renew()
            unname_buffer(self.target)
            self.target = None

"""The RDMA transport: DATA messages of a queue pair as a byte stream."""

cimport cython
from libc.errno cimport EAGAIN, EINTR, ETIMEDOUT

from rmemcached.client.transport._buffers cimport Pool
from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._memory cimport Sink
from rmemcached.client.transport._queue_events cimport (
    queue_arm,
    queue_descriptors,
    queue_ended,
    queue_lives,
    queue_written,
)
from rmemcached.client.transport._queue_pair cimport wait_hints
from rmemcached.client.transport._registered cimport Registrations
from rmemcached.client.transport._spin cimport spin_begin, spin_budget, spin_has_core, spin_result, spin_yield
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.transport._timeouts cimport milliseconds
from rmemcached.sys.atomics cimport relaxed_load, relaxed_store
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_LANE, live_add, live_sub

from rmemcached.client.transport.sockets import duplicate

cdef enum:
    BULK_BYTES_PER_NS = 2    # slower transfers than this are not worth polling for
    WOKEN_TRY = 64           # one reply in 64 of a woken server is awaited the slower way, to measure that way again
    WOKEN_MOST = 1000000     # ns; a longer time says nothing about waking
    END_LENGTH = 8           # of " q\r\n" and "\r\n", and a little more
    LOOK_INTERVAL = 50000    # ns after which a connection without answers is looked at again
    LATE_WAIT = 250          # ms of a late call's wait for the caller's memory, which may change afterwards


cdef class Leaving:

    cdef void release(self) noexcept:
        cdef Sink sink
        self.source.close()
        for sink in self.sinks:
            sink.close()


cdef void release_closed(QueuePair queue) noexcept:
    """Releases the memory of lanes closed by the server meanwhile."""
    cdef Leaving one
    if queue.leaving:
        left = []
        for one in queue.leaving:
            if queue.lane_is_closed(one.lane):
                one.release()
            else:
                left.append(one)
        queue.leaving = left


# No cycle leads through a stream; the collector would clear `queue` before __dealloc__ needs it.
@cython.no_gc
cdef class RdmaStream(Stream):
    """The stream of a lane of a connected queue pair, which is closed with the last of its streams.

    timeout: seconds for each wait, or None. spin: nanoseconds. OSError: the queue pair has no lane left.
    """

    def __init__(self, QueuePair queue not None, timeout, spin):
        lock_state(&shared_state)
        try:
            release_closed(queue)
            if queue.pool is None:
                pool = Pool(queue)
                if queue.row.pins:
                    queue.registered = Registrations(queue)
                queue.pool = pool
        finally:
            unlock_state(&shared_state)
        self.timeout_ms = milliseconds(timeout, -1)
        spin_begin(&self.spin, spin)
        self.remote = True
        self.inline_limit = queue.eager
        self.message_limit = min(<size_t>queue.row.set_messages * queue.room, queue.lane_bytes)
        self.looks = queue.row.looks
        self.memory = LaneMemory(queue)
        self.lane = queue.join()
        self.queue = queue
        live_add(LIVE_CLIENT_LANE)

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        cdef QueuePair queue = self.queue
        if queue is None:
            return
        self.queue = None
        live_sub(LIVE_CLIENT_LANE)
        lock_state(&shared_state)
        self.leave_queue(queue)
        self.memory.queue = None
        unlock_state(&shared_state)

    cdef void leave_queue(self, QueuePair queue) noexcept:
        cdef Leaving leaving
        cdef LaneMemory memory = self.memory
        cdef Pool pool
        cdef Registrations registered
        cdef Sink sink
        cdef bint lost, must_close
        cdef int patience
        # In a forked child the lane and the memory are the parent's, and nothing is released.
        if queue.foreign():
            queue.close()
            return
        release_closed(queue)
        # The server may still read and write the memory named in the last request. A caller's memory is the caller's
        # again when this function returns; bytes objects are kept.
        must_close = self.memory.holds()
        patience = 0 if self.in_loop else <int>LATE_WAIT if self.late else self.timeout_ms
        if queue.leave(self.lane, must_close, patience):
            leaving = Leaving.__new__(Leaving)
            leaving.lane = self.lane
            leaving.source = memory.source
            leaving.sinks = memory.sinks
            queue.leaving.append(leaving)
        else:
            # Nobody can reach the memory through the queue pair any more. But a server without an answer may still use
            # its mappings. So regions are freed, lest the server read another lane's value there, and Buffers are
            # renewed. A server in the middle of a copy notices the end only after the copy, too late for a WRITE.
            lost = queue.failed and memory.sink.pool.server_maps
            if lost:
                memory.sink.pool.close()
                memory.source.renew()
            memory.source.close()
            for sink in memory.sinks:
                sink.close()
            memory.drop_target(lost)
        queue.users -= 1
        if queue.users == 0:
            queue.disconnect()
            for leaving in queue.leaving:
                leaving.release()
            queue.leaving = []
            pool = queue.pool
            pool.close()
            registered = queue.registered
            if registered is not None:
                registered.close()
            queue.close()

    @property
    def reads(self):
        """Whether gets read the server's items directly, as a half sentence for the log; empty: gets ask as on any
        transport.
        """
        cdef QueuePair queue = self.queue
        if queue is None or not queue.memory:
            return ""
        if queue.direct is not None:
            if queue.direct.is_read():
                return "gets read its items and ask nobody"
            return "gets ask: its clock does not move here (a stopped server, or another time namespace)"
        if queue.memory in ("own", "all"):
            return "gets ask: its items cannot be mapped here"
        return f"gets ask: the server's rdma_direct is off ({queue.memory})"

    cdef DirectMemory direct_memory(self):
        return None if self.queue is None else self.queue.direct

    cdef bint may_stay(self) noexcept:
        return self.keeps_pins() and not self.memory.holds()

    cdef bint keeps_pins(self) noexcept:
        cdef QueuePair queue = self.queue
        return (queue is not None and not relaxed_load(&queue.failed) and not relaxed_load(&self.lane.closed)
                and not queue_ended(queue))

    cdef str failure_text(self):
        return self.queue.failure_text(self.lane, 0 if self.late else self.timeout_ms)

    # --- the stream ---

    cdef int deliver(self, const char *data, size_t length) noexcept nogil:
        self.received += length
        return Stream.deliver(self, data, length)

    cdef bint drained(self) noexcept nogil:
        # Output must leave before a call ends: nobody makes progress between two calls.
        return self.iov_next == self.iov_count and self.queue.all_sent(self.lane)

    cdef bint sleeps_for_woken(self) noexcept nogil:
        # Sleeping pays if the woken server runs on this core, and costs another wake-up if the server runs elsewhere.
        # The times of replies show the faster way.
        cdef bint better = self.woken_ns[1] <= self.woken_ns[0]
        self.woken += 1
        return better if self.woken % WOKEN_TRY else not better

    cdef void woken_took(self, bint slept, int64_t ns) noexcept nogil:
        cdef int64_t *lately = &self.woken_ns[slept]
        ns = min(ns, <int64_t>WOKEN_MOST)
        lately[0] = lately[0] + (ns - lately[0]) // 8 if lately[0] else ns

    cdef void take_hints(self) noexcept nogil:
        cdef wait_hints *hints = &self.queue.hints
        if relaxed_load(&self.queue.hinted):
            self.spin.score = <int>relaxed_load(&hints.spin_score)
            self.spin.skipped = <unsigned int>relaxed_load(&hints.spin_skipped)
            self.spin.pause.ns = <int64_t>relaxed_load(&hints.spin_pause)
            self.spin.pause.again = <int64_t>relaxed_load(&hints.spin_again)
            self.woken = <unsigned int>relaxed_load(&hints.woken)
            self.woken_ns[0] = <int64_t>relaxed_load(&hints.woken_ns[0])
            self.woken_ns[1] = <int64_t>relaxed_load(&hints.woken_ns[1])
        # A wait for bulk data says nothing about spinning for small replies: it counts as a success.
        while self.memory.moved:
            spin_result(&self.spin, True)
            self.memory.moved -= 1

    cdef void leave_hints(self) noexcept nogil:
        cdef wait_hints *hints = &self.queue.hints
        relaxed_store(&hints.spin_score, self.spin.score)
        relaxed_store(&hints.spin_skipped, self.spin.skipped)
        relaxed_store(&hints.spin_pause, self.spin.pause.ns)
        relaxed_store(&hints.spin_again, self.spin.pause.again)
        relaxed_store(&hints.woken, self.woken)
        relaxed_store(&hints.woken_ns[0], self.woken_ns[0])
        relaxed_store(&hints.woken_ns[1], self.woken_ns[1])
        relaxed_store(&self.queue.hinted, True)

    cdef int advance(self, bint draining) noexcept nogil:
        cdef int r
        self.take_hints()
        r = self.await_more(draining)
        self.leave_hints()
        self.queue.hand_over()
        if r != -EINTR:
            self.until = 0
        return r

    cdef int await_more(self, bint draining) noexcept nogil:
        # Waits until something has been received, or, when draining, everything sent. Goes on sending meanwhile.
        cdef uint64_t received = self.received
        cdef int64_t budget = spin_budget(&self.spin)
        # While the server moves payloads, a sleeping thread would be woken again and again. So the thread polls longer,
        # by the expected time of the transfer (`bulk`). The next value in a sink is expected to be as large as the
        # last.
        cdef size_t expected = self.memory.sink.last if self.memory.sink_named else 0
        cdef int64_t bulk = (self.memory.source.total + expected) // BULK_BYTES_PER_NS
        cdef int64_t now
        cdef bint woken = self.woke and bulk == 0 and self.iov_next == self.iov_count and budget
        cdef bint sleeps = woken and self.sleeps_for_woken()
        cdef bint block = sleeps
        cdef bint copies = self.memory.sink_named and self.memory.sink.copies
        cdef int64_t began = 0
        cdef int64_t until = 0
        cdef int looks, r
        self.woke = False
        if budget:
            began = now = now_ns()
            if not block:
                until = now + budget + bulk
        while True:
            if copies:
                self.memory.sink.copy_on(queue_written(self.queue))
            looks = self.looks if until and spin_has_core(&self.spin) else 1
            # A thread that sleeps at once (`block`) need not reap: `wait` looks for input, too.
            r = 1 if block else self.queue.reap(self, self.lane, looks)
            block = False
            if r > 0 and self.iov_next < self.iov_count:
                r = self.push()
            if r <= 0:
                return r
            if self.received != received or (draining and self.drained()):
                if woken:
                    self.woken_took(sleeps, now_ns() - began)
                if until:
                    spin_result(&self.spin, True)
                return 1
            if until:
                if now >= until:
                    spin_result(&self.spin, False)
                    until = 0
                # The server may be waiting for this very core.
                elif not spin_yield(&self.spin, &now, bulk):
                    until = 0
                continue
            if self.timeout_ms >= 0:
                now = now_ns()
                if self.until == 0:
                    self.until = now + <int64_t>self.timeout_ms * 1000000
                elif now >= self.until:
                    # A server with an endless flow of messages, but no answer, lets no wait sleep until its time limit.
                    return self.look_late(draining, received)
            r = self.queue.wait(self, self.lane, draining, self.until)
            if r == -ETIMEDOUT:
                return self.look_late(draining, received)
            if r <= 0:
                return r

    cdef int look_late(self, bint draining, uint64_t received) noexcept nogil:
        # The last look of await_more after the time limit: this process may have stood still since the last look, while
        # the answer came.
        cdef int r = self.queue.reap(self, self.lane, 1)
        if r > 0 and self.received == received and not (draining and self.drained()):
            return -ETIMEDOUT
        return r

    cdef int push(self) noexcept nogil:
        return self.queue.push(self, self.lane, &self.woke)

    cdef int drain(self) noexcept nogil:
        cdef int r
        self.lane.told = True
        r = self.push()
        while r > 0 and not self.drained():
            r = self.advance(True)
        self.lane.told = False
        return r

    cdef bint join_loop(self) noexcept:
        self.memory.join_loop()
        return Stream.join_loop(self)

    cdef bint must_authenticate(self) noexcept:
        # docs/rdma-protocol.md: lane 0 is authenticated with its lifeline.
        return self.queue.by_cm or self.lane.id != 0

    cdef bint has_ended(self) noexcept nogil:
        # queue_ended makes a system call, too slow for each of a quick series of commands.
        cdef int64_t now = now_ns()
        if now - self.looked < LOOK_INTERVAL:
            return False
        self.looked = now
        return queue_ended(self.queue)

    cdef bint has_gone(self) noexcept:
        # The end of a lane is a message of the server, which must be taken first.
        self.queue.reap(None, NULL, 1)
        return not self.keeps_pins()

    cdef int take_input(self) noexcept nogil:
        cdef uint64_t received = self.received
        cdef int r = self.queue.reap(self, self.lane, 1)
        if r > 0 and self.received == received:
            return -EAGAIN if queue_lives(self.queue) else 0
        return r

    cdef bint arm(self) noexcept nogil:
        return queue_arm(self.queue, self, self.lane)

    cdef list descriptors(self):
        return queue_descriptors(self.queue)

    cdef object socket_object(self):
        # The descriptor of rdma_cm is no socket.
        return None if self.queue.by_cm else duplicate(self.queue.fd)

    cdef int fill(self) noexcept nogil:
        return self.advance(False)

    cdef int fill_body(self) noexcept nogil:
        return self.advance(False)

    # --- memory named in requests ---

    cdef bint goes_in_messages(self, size_t length) noexcept:
        # The server can keep message_limit bytes of the call's first value at once. Later values would wait for the
        # first.
        return self.iov_count == 0 and self.wlen + length + END_LENGTH <= self.message_limit

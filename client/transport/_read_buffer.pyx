"""See _read_buffer.pxd."""

from libc.errno cimport ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.unistd cimport getpid

from rmemcached.client.transport._endpoint cimport READ, READS
from rmemcached.client.transport._errors cimport registration_error
from rmemcached.client.transport._spin cimport spin_budget, spin_result, spin_yield
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport assert_held, assert_that
from rmemcached.sys.linux cimport posix_memalign, pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.verbs.verbs cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_SEND_SIGNALED,
    IBV_WR_RDMA_READ,
    ibv_post_send,
    ibv_send_wr,
    ibv_sge,
)

cdef enum:
    READ_POLLS = 16          # polls of a device, before other threads may run


cdef class ReadBuffer:

    def __dealloc__(self):
        # The queue pair has ended. In a forked child the registration stays: it is the parent's.
        if self.mr != NULL and self.pid == getpid():
            self.provider.dereg_mr(self.mr)
        free(self.buffer)

    cdef int open(self, QueuePair queue) except -1:
        if self.mr != NULL:
            return 0
        if posix_memalign(<void **>&self.buffer, 4096, READ_BUFFER) != 0:
            self.buffer = NULL
            raise MemoryError
        self.provider = queue.provider
        self.pid = queue.pid
        self.mr = queue.provider.reg_mr(queue.pd, self.buffer, READ_BUFFER, IBV_ACCESS_LOCAL_WRITE)
        if self.mr == NULL:
            raise registration_error(queue.provider, READ_BUFFER, errno)
        return 0

    cdef bint post(self, RdmaStream s, uint64_t address, uint32_t key, size_t length, size_t at) noexcept nogil:
        cdef ibv_sge sge
        cdef ibv_send_wr wr
        cdef ibv_send_wr *bad
        assert_held(&s.queue.lock)
        if s.queue.reads == READS or s.queue.failed:
            return False
        assert_that(at + length <= READ_BUFFER)
        sge.addr = <uint64_t><uintptr_t>(self.buffer + at)
        sge.length = <uint32_t>length
        sge.lkey = self.mr.lkey
        memset(&wr, 0, sizeof(wr))
        wr.wr_id = READ
        wr.sg_list = &sge
        wr.num_sge = 1
        wr.opcode = IBV_WR_RDMA_READ
        wr.send_flags = IBV_SEND_SIGNALED
        wr.wr.rdma.remote_addr = address
        wr.wr.rdma.rkey = key
        if ibv_post_send(s.queue.qp, &wr, &bad) != 0:
            return False
        s.queue.reads += 1
        s.queue.reader = s.lane
        return True


cdef int reap_reads(RdmaStream s) noexcept nogil:
    # Polls a device many times: a yield and a look at the clock take as long as many polls. Polls a software device
    # once: the poll itself makes progress, and then the peer must do its part.
    cdef int r
    pthread_mutex_lock(&s.queue.lock)
    r = s.queue.reap_locked(s, s.lane, 1 if s.queue.soft else READ_POLLS)
    if r > 0 and s.queue.reader != s.lane:
        r = READS_COMPLETE
    pthread_mutex_unlock(&s.queue.lock)
    return r


cdef int reap_late(RdmaStream s) noexcept nogil:
    # The last look of await_reads after the deadline: this process may have stood still since the last look.
    cdef int r = reap_reads(s)
    return -ETIMEDOUT if r == 1 else min(r, 1)


cdef int await_reads(RdmaStream s, int64_t *deadline) noexcept nogil:
    cdef int64_t budget = spin_budget(&s.spin)
    cdef int64_t until = 0
    cdef int64_t now = 0
    cdef int r
    while True:
        r = reap_reads(s)
        if r <= 0:
            return r
        if r == READS_COMPLETE:
            if budget:
                spin_result(&s.spin, True)
            return 1
        if now == 0:
            # A quick READ needs no clock.
            now = now_ns()
            until = now + budget
            if deadline[0] == 0 and s.timeout_ms >= 0:
                deadline[0] = now + <int64_t>s.timeout_ms * 1000000
        if budget:
            if now >= until:
                spin_result(&s.spin, False)
                budget = 0
            elif not spin_yield(&s.spin, &now, 0):
                budget = 0
            continue
        # A server with an endless flow of messages, but without an answer to a READ, lets no wait sleep.
        if deadline[0] and now_ns() >= deadline[0]:
            return reap_late(s)
        r = s.queue.wait(s, s.lane, False, deadline[0])
        if r == -ETIMEDOUT:
            return reap_late(s)
        if r <= 0:
            return r

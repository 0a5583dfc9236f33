"""See _reads.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid

from rmemcached.client._commands cimport answer, text_of
from rmemcached.client._connection cimport Connection
from rmemcached.client._endpoint cimport READ, READS
from rmemcached.client._errors cimport registration_error
from rmemcached.client._queue_pair cimport QueuePair
from rmemcached.client._rdma cimport RdmaStream
from rmemcached.client._state cimport lock_state, shared_state, unlock_state
from rmemcached.direct cimport (
    DIRECT_FOUND,
    DIRECT_LINE,
    DIRECT_READ,
    direct_bucket,
    direct_bucket_of,
    direct_class,
    direct_clock,
    direct_header,
    direct_hit,
    direct_is_usable,
    direct_line,
    direct_look,
    direct_memory,
    direct_note,
    direct_place,
    direct_report,
    direct_report_begin,
    direct_verify,
)
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport assert_held, assert_that
from rmemcached.sys.key_hash cimport key_hash
from rmemcached.sys.linux cimport posix_memalign, pthread_mutex_lock, pthread_mutex_unlock
from rmemcached.verbs.verbs cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_SEND_SIGNALED,
    IBV_WR_RDMA_READ,
    ibv_mr,
    ibv_post_send,
    ibv_send_wr,
    ibv_sge,
    verbs_provider,
)

from rmemcached.client.exceptions import MemcacheUnexpectedCloseError
from rmemcached.client.urls import read_transports

cdef enum:
    BUFFER = 256 * 1024
    KEYS = READS - 1         # of one round; the clock comes with their buckets
    CLOCK_NS = 100000000     # after which the server's clock is read again
    STALL_NS = 2000000000    # that it may fall behind ours, before the server is asked,
    DRIFT_ONE_OF = 10000     # ... beside what clocks of two hosts may differ in speed
    PART_NS = 1000000000     # after which it is asked again about memory that it has not registered
    PARTS_MOST = 1 << 15
    CLOCK_AT = KEYS * 128    # in the buffer, behind the buckets
    ITEMS_AT = CLOCK_AT + 128

cdef struct memory_part:     # that the server has registered
    uint64_t first           # from the header on
    uint64_t length
    uint32_t key

cdef struct sought:          # a key of one round
    const char *text
    size_t length
    uint32_t hv
    uint64_t slot            # 0: not found, or its memory has no key yet
    size_t size              # bytes of the READ of its item,
    size_t at                # ... which come here


cdef int64_t flushed_ns = 0      # when this process has last flushed a server; the GIL, or a value that is near


cdef class RemoteMemory:
    """A server's memory, as a queue pair reads it."""
    cdef direct_header header        # as read; its clock again and again
    cdef direct_memory memory        # of which `header` alone is set, for reports
    cdef direct_report report        # of the call that reads, as what follows is
    cdef bint told_later             # it is time to tell of hits
    cdef uint64_t base               # the server's address of the header
    cdef memory_part *parts
    cdef unsigned int count
    cdef unsigned int last           # the part that was used last
    cdef bint usable                 # the header is there
    cdef bint refused                # the server is always asked
    cdef bint busy                   # a call reads; the GIL, or the lock of _state.pxd
    cdef int64_t clock_ns            # when the READ of the clock was posted; 0: never
    cdef int64_t posted_ns           # the same of a READ that is under way
    cdef int64_t lag_ns              # how far it was behind ours then,
    cdef int64_t least_ns            # ... and the least that this was lately
    cdef int64_t asked_ns            # when memory was asked for that is not registered; 0: never
    cdef uint64_t wanted             # a place whose memory has no key yet; 0: none
    # what READs fill, registered with the queue pair's domain; NULL: not yet
    cdef char *buffer
    cdef ibv_mr *mr
    cdef const verbs_provider *provider
    cdef int pid

    def __dealloc__(self):
        # In a forked child the registration is the parent's. The queue pair has ended.
        if self.mr != NULL and self.pid == getpid():
            self.provider.dereg_mr(self.mr)
        free(self.buffer)
        free(self.parts)

    cdef int open_buffer(self, QueuePair queue) except -1:
        if self.mr != NULL:
            return 0
        if posix_memalign(<void **>&self.buffer, 4096, BUFFER) != 0:
            self.buffer = NULL
            raise MemoryError
        self.provider = queue.provider
        self.pid = queue.pid
        self.mr = queue.provider.reg_mr(queue.pd, self.buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE)
        if self.mr == NULL:
            raise registration_error(queue.provider, BUFFER, errno)
        return 0

    cdef const memory_part *part_of(self, uint64_t place, size_t length) noexcept nogil:
        cdef unsigned int _i
        for _i in range(self.count):
            if self.last >= self.count:
                self.last = 0
            if place - self.parts[self.last].first < self.parts[self.last].length:
                if length <= self.parts[self.last].length - (place - self.parts[self.last].first):
                    return &self.parts[self.last]
                return NULL
            self.last += 1
        self.wanted = place
        return NULL

    cdef int add_part(self, uint64_t first, uint64_t length, uint32_t key) except -1:
        cdef memory_part *more
        if self.count == PARTS_MOST:
            return 0
        more = <memory_part *>realloc(self.parts, (self.count + 1) * sizeof(memory_part))
        if more == NULL:
            raise MemoryError
        self.parts = more
        more[self.count].first = first
        more[self.count].length = length
        more[self.count].key = key
        self.count += 1
        return 0

    cdef void take_clock(self, const char *line) noexcept nogil:
        # The header's clock has been read.
        cdef int64_t now = self.posted_ns
        cdef int64_t drift = (now - self.clock_ns) // DRIFT_ONE_OF
        memcpy(&self.header.buckets, line, clock_length())
        self.lag_ns = now - <int64_t>self.header.current_time * 1000000000
        self.least_ns = self.lag_ns if self.clock_ns == 0 else min(self.lag_ns, self.least_ns + drift)
        self.clock_ns = now

    cdef bint lives(self) noexcept nogil:
        # The server does not end, and does not stand still: otherwise nobody knows what has expired.
        return (not self.header.ended and self.lag_ns - self.least_ns < STALL_NS
                and 0 < self.header.buckets <= self.header.most)


cdef inline size_t clock_length() noexcept nogil:
    cdef direct_header *h = NULL
    return <size_t>&h.beat - <size_t>&h.buckets


cdef inline uint64_t clock_place() noexcept nogil:
    cdef direct_header *h = NULL
    return <uint64_t><size_t>&h.buckets


cdef int await_reads(RdmaStream s) noexcept nogil:
    # Until all READs have completed. 1; 0: the connection has ended; a negative errno.
    cdef int64_t now = now_ns()
    cdef int64_t budget = s.spin_budget()
    cdef int64_t until = now + budget if budget else 0
    cdef int64_t deadline = now + <int64_t>s.timeout_ms * 1000000 if s.timeout_ms >= 0 else 0
    cdef int r
    while True:
        r = s.queue.reap(s, s.lane)
        if r <= 0:
            return r
        if s.queue.reader != s.lane:
            if until:
                s.spin_result(True)
            return 1
        if until:
            if now >= until:
                s.spin_result(False)
                until = 0
            elif not s.spin_yield(&now, 0):
                until = 0
            continue
        r = s.queue.wait(s, s.lane, False, deadline)
        if r <= 0:
            return r


cdef int complete(RdmaStream s) except -1:
    cdef int r = -EINTR
    while r == -EINTR:
        with nogil:
            s.take_hints()
            r = await_reads(s)
            s.leave_hints()
            s.queue.hand_over()
        try:
            PyErr_CheckSignals()
        except BaseException:
            s.queue.fail(False)
            raise
    if r <= 0:
        # READs may still be under way, into memory that the next call would use.
        s.queue.fail(False)
        if r == -ETIMEDOUT:
            raise TimeoutError("timed out")
        raise MemcacheUnexpectedCloseError(s.failure_text())
    return 0


cdef bint post(RdmaStream s, RemoteMemory m, uint64_t place, size_t length, size_t at) noexcept nogil:
    # Posts a READ into the buffer at `at`. The queue pair's lock is held. False: its memory has no key yet.
    cdef const memory_part *part = m.part_of(place, length)
    cdef ibv_sge sge
    cdef ibv_send_wr wr
    cdef ibv_send_wr *bad
    assert_held(&s.queue.lock)
    if part == NULL or s.queue.reads == READS or s.queue.failed:
        return False
    assert_that(at + length <= BUFFER)
    sge.addr = <uint64_t><uintptr_t>(m.buffer + at)
    sge.length = <uint32_t>length
    sge.lkey = m.mr.lkey
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = READ
    wr.sg_list = &sge
    wr.num_sge = 1
    wr.opcode = IBV_WR_RDMA_READ
    wr.send_flags = IBV_SEND_SIGNALED
    wr.wr.rdma.remote_addr = m.base + place
    wr.wr.rdma.rkey = part.key
    if ibv_post_send(s.queue.qp, &wr, &bad) != 0:
        return False
    s.queue.reads += 1
    s.queue.reader = s.lane
    return True


cdef int ask_for_part(Connection c, RemoteMemory m, uint64_t place) except -1:
    # Asks the server for the key of the memory at a place.
    cdef RdmaStream s = c.stream
    cdef list words
    cdef bytes line
    s.put("rdma_direct ", 12)
    s.put_hex(place)
    s.put("\r\n", 2)
    c.exchange()
    line = answer(s)
    words = line.split(b" ")
    try:
        if len(words) == 5 and words[0] == b"DIRECT":
            base, first, length, key = [int(word, 16) for word in words[1:]]
            if first <= place < first + length:
                m.base = base
                m.add_part(first, length, key)
                return 0
    except (OverflowError, ValueError):
        pass
    m.asked_ns = now_ns()
    # Memory that is not registered yet may be so later; everything else stays.
    if line != b"NOT_FOUND":
        m.refused = True
    return 0


cdef int open_memory(Connection c, RemoteMemory m) except -1:
    # Reads the header.
    cdef RdmaStream s = c.stream
    cdef QueuePair queue = s.queue
    cdef bint posted
    try:
        m.open_buffer(queue)
    except (MemoryError, OSError):
        m.refused = True
        return 0
    ask_for_part(c, m, 0)
    if m.count == 0:
        m.refused = True
        return 0
    pthread_mutex_lock(&queue.lock)
    posted = post(s, m, 0, sizeof(direct_header), 0)
    pthread_mutex_unlock(&queue.lock)
    if posted:
        complete(s)
        memcpy(&m.header, m.buffer, sizeof(direct_header))
    m.usable = posted and direct_is_usable(&m.header)
    m.refused = not m.usable
    m.memory.header = &m.header
    direct_report_begin(&m.report, &m.memory)
    return 0


cdef bint post_buckets(RdmaStream s, RemoteMemory m, sought *keys, unsigned int count) noexcept nogil:
    # Whether the clock comes with them. If it is due and does not come, nothing does.
    cdef int64_t now = now_ns()
    cdef bint due = now - m.clock_ns > CLOCK_NS or m.clock_ns <= flushed_ns
    cdef bint clocked = False
    cdef uint64_t place
    cdef unsigned int i
    pthread_mutex_lock(&s.queue.lock)
    if due:
        m.posted_ns = now
        clocked = post(s, m, clock_place(), clock_length(), CLOCK_AT)
    for i in range(count):
        if due and not clocked:
            keys[i].slot = 0
            continue
        place = m.header.index + direct_bucket_of(keys[i].hv, m.header.buckets) * sizeof(direct_bucket)
        keys[i].slot = post(s, m, place, sizeof(direct_bucket), i * sizeof(direct_bucket))
    pthread_mutex_unlock(&s.queue.lock)
    return clocked


cdef void post_items(RdmaStream s, RemoteMemory m, sought *keys, unsigned int count) noexcept nogil:
    cdef size_t at = ITEMS_AT
    cdef unsigned int i
    pthread_mutex_lock(&s.queue.lock)
    for i in range(count):
        if keys[i].slot == 0:
            continue
        keys[i].slot = direct_look(<const direct_bucket *>(m.buffer + i * sizeof(direct_bucket)), keys[i].hv)
        if keys[i].slot == 0:
            continue
        keys[i].size = min(<size_t>m.header.sizes[direct_class(keys[i].slot)], <size_t>DIRECT_READ)
        keys[i].at = at
        if (at + keys[i].size > BUFFER
                or not post(s, m, direct_place(keys[i].slot), keys[i].size, at)):
            keys[i].slot = 0
            continue
        at += (keys[i].size + 63) & ~<size_t>63
    pthread_mutex_unlock(&s.queue.lock)


cdef int read_round(RdmaStream s, RemoteMemory m, sought *keys, unsigned int count, list found) except -1:
    # Appends what is found of so many keys.
    cdef QueuePair queue = s.queue
    cdef direct_clock clock
    cdef direct_hit hit
    cdef unsigned int i
    cdef bint clocked
    for i in range(count):
        keys[i].hv = key_hash(&m.header.hash, keys[i].text, keys[i].length)
    clocked = post_buckets(s, m, keys, count)
    if queue.reader == s.lane:
        complete(s)
    if clocked:
        m.take_clock(m.buffer + CLOCK_AT)
    if not m.lives():
        found += [None] * count
        return 0
    post_items(s, m, keys, count)
    if queue.reader == s.lane:
        complete(s)
    clock.now = m.header.current_time
    clock.oldest_live = m.header.oldest_live
    clock.algorithm = m.header.algorithm
    for i in range(count):
        if keys[i].slot == 0 or direct_verify(&m.header.hash, &clock, keys[i].slot, keys[i].hv,
                                              m.buffer + keys[i].at, keys[i].size, keys[i].text,
                                              keys[i].length, &hit) != DIRECT_FOUND:
            found.append(None)
            continue
        found.append((PyBytes_FromStringAndSize(hit.data, hit.length), hit.flags))
        m.told_later |= direct_note(&m.report, &m.memory, &hit)
    return 0


cdef int tell(Connection c, RemoteMemory m, bint asks) except -1:
    # Puts the line of hits, which nobody answers. asks: a request follows, with which it goes.
    cdef RdmaStream s = c.stream
    m.told_later = False
    s.wlen += direct_line(&m.report, &m.memory, s.room(DIRECT_LINE))
    if not asks:
        c.send()
    return 0


cdef bint enter(RdmaStream s):
    # Whether the caller reads alone now.
    cdef QueuePair queue = s.queue
    cdef RemoteMemory m
    cdef bint entered
    cdef bint wanted = queue.remote is None and queue.offers_reads and queue.transport in read_transports()
    lock_state(&shared_state)
    if queue.remote is None:
        queue.remote = RemoteMemory.__new__(RemoteMemory)
        (<RemoteMemory>queue.remote).refused = not wanted
    m = queue.remote
    entered = not m.busy and not m.refused
    if entered:
        m.busy = True
    unlock_state(&shared_state)
    return entered


cdef list read_values(Connection c, list keys):
    cdef RdmaStream s = c.stream
    cdef RemoteMemory m
    cdef sought[KEYS] round_
    cdef list found = []
    cdef Py_ssize_t i, first
    cdef unsigned int count
    if s.noreplies or s.wlen or not enter(s):
        return None
    m = s.queue.remote
    try:
        if not m.usable:
            open_memory(c, m)
        if m.refused:
            return None
        for first in range(0, len(keys), KEYS):
            count = 0
            for i in range(first, min(first + KEYS, len(keys))):
                round_[count].text = text_of(keys[i], &round_[count].length)
                count += 1
            read_round(s, m, round_, count, found)
        if m.wanted and now_ns() - m.asked_ns > PART_NS:
            ask_for_part(c, m, m.wanted)
        m.wanted = 0
        asks = None in found
        if m.told_later or asks:
            tell(c, m, asks)
        return found
    finally:
        m.busy = False


cdef void forget_clocks() noexcept:
    global flushed_ns
    flushed_ns = now_ns()

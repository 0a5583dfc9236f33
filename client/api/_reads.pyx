"""See _reads.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.transport._endpoint cimport READS
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._rdma cimport RdmaStream
from rmemcached.client.transport._read_buffer cimport READ_BUFFER, READS_COMPLETE, ReadBuffer, await_reads, reap_reads
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.client.wire._commands cimport answer, text_of
from rmemcached.direct cimport (
    DIRECT_FOREIGN,
    DIRECT_FOUND,
    DIRECT_LINE,
    DIRECT_READ,
    DIRECT_SLOTS,
    direct_answer,
    direct_bucket,
    direct_bucket_of,
    direct_class,
    direct_clock,
    direct_header,
    direct_hit,
    direct_is_usable,
    direct_line,
    direct_look,
    direct_note,
    direct_place,
    direct_report,
    direct_report_begin,
    direct_slot,
    direct_verify,
)
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.key_hash cimport key_hash
from rmemcached.sys.linux cimport pthread_mutex_lock, pthread_mutex_unlock

from rmemcached.client.urls import read_transports

cdef enum:
    KEYS = READS - 1         # keys in a round: a READ of the clock may go with the READs of their buckets
    CLOCK_NS = 100000000     # the server's clock is read again after this time
    STALL_NS = 2000000000    # gets ask a server whose clock falls behind ours by more
    DRIFT_ONE_OF = 10000     # the clocks of two hosts drift apart by a part in so many, at most
    PART_NS = 1000000000     # the time between two requests for remote keys of unregistered memory
    PARTS_MOST = 1 << 15     # registered parts of a server's memory that a client remembers
    ENTRIES = 4096           # remembered places of keys' items: one for each value of the lower hash bits
    CLOCK_AT = KEYS * 128    # in the buffer, behind the buckets
    ITEMS_AT = CLOCK_AT + 128

cdef struct memory_part:     # registered by the server
    uint64_t first           # its distance from the header
    uint64_t length
    uint32_t key             # the remote key

cdef enum read_step:         # of a key
    WANTS_BUCKET             # a READ of its bucket is to be posted
    READS_BUCKET             # a READ of its bucket is under way
    WANTS_ITEM               # a READ of its item is to be posted
    READS_ITEM               # a READ of its item is under way
    FOUND
    ASKS                     # only the server can say

cdef struct sought:          # a key of a round
    const char *text
    size_t length
    uint32_t hv
    read_step step
    bint guessed             # `slot` is remembered, not read
    int looked               # the number of `slot` in its bucket, if `slot` was read
    uint64_t slot
    size_t size              # bytes of the READ of its item
    size_t at                # the place of the item in the buffer

cdef struct remembered:      # the place of a key's item, once read
    uint32_t hv
    uint32_t doubtful        # at the last read the item was elsewhere
    uint64_t slot            # where; 0: nothing is remembered


cdef int64_t flushed_ns = 0      # when this process last flushed a server. A thread may see a change a little later


cdef class RemoteMemory(ReadBuffer):
    """A server's memory, as read by a queue pair."""
    cdef direct_header header        # as read; the clock is read again and again
    cdef direct_report report        # this and the following fields belong to the reading call
    cdef bint told_later             # a line with the report is due, even without a request
    cdef uint64_t base               # the server's address of the header
    cdef memory_part *parts
    cdef unsigned int count
    cdef unsigned int last           # the part used last
    cdef remembered *entries         # ENTRIES, by the hash
    cdef bint usable                 # the header is there
    cdef bint refused                # the server is always asked
    cdef bint busy                   # a call reads. Changed with the GIL, or the lock of _state.pxd
    cdef int64_t clock_ns            # when the READ of the clock was posted; 0: never
    cdef int64_t posted_ns           # when the READ under way was posted
    cdef int64_t lag_ns              # how far the server's clock was behind ours at clock_ns
    cdef int64_t least_ns            # the least such lag lately
    cdef int64_t asked_ns            # when the server last refused a remote key; 0: never
    cdef uint64_t wanted             # a place whose remote key is not known; 0: none

    def __dealloc__(self):
        free(self.parts)
        free(self.entries)

    cdef int open_entries(self) except -1:
        if self.entries == NULL:
            self.entries = <remembered *>calloc(ENTRIES, sizeof(remembered))
            if self.entries == NULL:
                raise MemoryError
        return 0

    cdef const memory_part *part_of(self, uint64_t place, size_t length) noexcept nogil:
        # The registered part with all of this memory. NULL: there is no such part. `wanted` notes a place in no part.
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
        # Takes the clock just read into the header, and computes how far the clock is behind ours.
        cdef int64_t now = self.posted_ns
        cdef int64_t drift = (now - self.clock_ns) // DRIFT_ONE_OF
        memcpy(&self.header.buckets, line, clock_length())
        self.lag_ns = now - <int64_t>self.header.current_time * 1000000000
        self.least_ns = self.lag_ns if self.clock_ns == 0 else min(self.lag_ns, self.least_ns + drift)
        self.clock_ns = now

    cdef bint lives(self) noexcept nogil:
        # Whether the server has not ended, and its clock moves. With a standing clock nobody knows the expired items.
        return (not self.header.ended and self.lag_ns - self.least_ns < STALL_NS
                and 0 < self.header.buckets <= self.header.most)


cdef inline size_t clock_length() noexcept nogil:
    cdef direct_header h
    return <size_t>&h.beat - <size_t>&h.buckets


cdef inline uint64_t clock_place() noexcept nogil:
    cdef direct_header h
    return <size_t>&h.buckets - <size_t>&h


cdef int complete(Connection c) except -1:
    # Waits until all posted READs have completed.
    cdef RdmaStream s = c.stream
    cdef int64_t deadline = 0
    cdef int r = 0
    if not s.queue.soft and reap_reads(s) == READS_COMPLETE:
        # For a quick READ, release and return of the GIL cost more than the READ.
        s.queue.hand_over()
        PyErr_CheckSignals()
        return 0
    while r <= 0:
        with nogil:
            s.take_hints()
            r = await_reads(s, &deadline)
            s.leave_hints()
            s.queue.hand_over()
        if r <= 0:
            try:
                c.interrupted(r)
            except BaseException:
                # READs still under way would write into the memory of the next call's READs: the queue pair fails. In a
                # forked child the READs are the parent's.
                if not s.queue.foreign():
                    s.queue.fail(True)
                raise
    return 0


cdef bint post(RdmaStream s, RemoteMemory m, uint64_t place, size_t length, size_t at) noexcept nogil:
    # Posts a READ into the buffer at `at`. The queue pair's lock is held. False: the remote key of the memory at
    # the place is not known.
    cdef const memory_part *part = m.part_of(place, length)
    return part != NULL and m.post(s, m.base + place, part.key, length, at)


cdef int ask_for_part(Connection c, RemoteMemory m, uint64_t place) except -1:
    # Asks the server for the remote key of the memory at a place.
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
    # Unregistered memory may be registered later; any other refusal is final.
    if line != b"NOT_FOUND":
        m.refused = True
    return 0


cdef int open_memory(Connection c, RemoteMemory m) except -1:
    # Asks for the first remote key, and reads the header. Sets `usable`, or `refused`.
    cdef RdmaStream s = c.stream
    cdef QueuePair queue = s.queue
    cdef bint posted
    try:
        m.open_entries()
        m.open(queue)
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
        complete(c)
        memcpy(&m.header, m.buffer, sizeof(direct_header))
    m.usable = posted and direct_is_usable(&m.header)
    m.refused = not m.usable
    direct_report_begin(&m.report, &m.header)
    return 0


cdef inline remembered *entry_of(RemoteMemory m, uint32_t hv) noexcept nogil:
    return &m.entries[hv % ENTRIES]


cdef void remember(RemoteMemory m, uint32_t hv, uint64_t slot) noexcept nogil:
    cdef remembered *entry = entry_of(m, hv)
    # After a wrong guess the place stays doubtful until the key has been found twice at the same place.
    entry.doubtful = entry.hv == hv and entry.doubtful and entry.slot != slot
    entry.hv = hv
    entry.slot = slot


cdef void guess(RemoteMemory m, sought *k) noexcept nogil:
    # Takes the remembered place of the key's item.
    cdef remembered *entry = entry_of(m, k.hv)
    k.guessed = entry.slot != 0 and entry.hv == k.hv and not entry.doubtful
    k.step = WANTS_ITEM if k.guessed else WANTS_BUCKET
    k.slot = entry.slot


cdef bint post_one(RdmaStream s, RemoteMemory m, sought *k, unsigned int number, size_t *at) noexcept nogil:
    # Posts the next READ for a key. False: no READ is due, or there is no room. at: a free place in the buffer.
    cdef uint64_t place
    if s.queue.reads == READS:
        return False
    if k.step == WANTS_BUCKET:
        place = m.header.index + direct_bucket_of(k.hv, m.header.buckets) * sizeof(direct_bucket)
        if not post(s, m, place, sizeof(direct_bucket), number * sizeof(direct_bucket)):
            k.step = ASKS
            return False
        k.step = READS_BUCKET
        return True
    if k.step != WANTS_ITEM:
        return False
    k.size = min(<size_t>m.header.chunks.sizes[direct_class(&m.header.chunks, k.slot)], <size_t>DIRECT_READ)
    if at[0] + k.size > READ_BUFFER:
        return False
    if not post(s, m, direct_place(&m.header.chunks, k.slot), k.size, at[0]):
        k.step = ASKS
        return False
    k.step = READS_ITEM
    k.at = at[0]
    at[0] += (k.size + 63) & ~<size_t>63
    return True


cdef unsigned int post_round(RdmaStream s, RemoteMemory m, sought *keys, unsigned int count,
                             bint due) noexcept nogil:
    # Posts READs as far as there is room, after a READ of the clock if `due`; no READ if the clock cannot be read.
    # Returns the number of READs.
    cdef unsigned int posted = 0
    cdef bint reads = m.lives()
    cdef size_t at = ITEMS_AT
    cdef unsigned int i
    pthread_mutex_lock(&s.queue.lock)
    if due:
        m.posted_ns = now_ns()
        reads = post(s, m, clock_place(), clock_length(), CLOCK_AT)
        posted = reads
    if reads:
        for i in range(count):
            posted += post_one(s, m, &keys[i], i, &at)
    pthread_mutex_unlock(&s.queue.lock)
    return posted


cdef void look(RemoteMemory m, sought *k, unsigned int number, int first) noexcept nogil:
    # Looks for the key's item in the slots from `first` on of its bucket, just read.
    cdef const direct_bucket *bucket = <const direct_bucket *>(m.buffer + number * sizeof(direct_bucket))
    k.looked = direct_look(&m.header.chunks, bucket, k.hv, first)
    k.step = ASKS
    if k.looked < DIRECT_SLOTS:
        k.slot = direct_slot(bucket, k.looked)
        k.step = WANTS_ITEM


cdef int take(RemoteMemory m, sought *k, unsigned int number, direct_hit *hit) noexcept nogil:
    # Takes the bucket or item just read for a key. True: the item has the key's value.
    cdef direct_clock clock
    cdef direct_answer verified
    if k.step == READS_BUCKET:
        look(m, k, number, 0)
        return False
    if k.step != READS_ITEM:
        return False
    clock.now = m.header.current_time
    clock.oldest_live = m.header.oldest_live
    clock.algorithm = m.header.algorithm
    verified = direct_verify(&m.header.hash, &clock, direct_place(&m.header.chunks, k.slot), k.hv, m.buffer + k.at,
                             k.size, k.text, k.length, hit)
    if verified == DIRECT_FOUND:
        remember(m, k.hv, k.slot)
        m.told_later |= direct_note(&m.report, &m.header, hit)
        k.step = FOUND
        return True
    if k.guessed:
        entry_of(m, k.hv).doubtful = True
        k.guessed = False
        k.step = WANTS_BUCKET
    elif verified == DIRECT_FOREIGN:
        # Another key of the bucket has the same tag.
        look(m, k, number, k.looked + 1)
    else:
        k.step = ASKS
    return False


cdef int read_round(Connection c, RemoteMemory m, sought *keys, unsigned int count, list found,
                    Py_ssize_t first) except -1:
    # Reads the items of the keys. Puts the values found into found[first:]; without a list only sets the keys' steps.
    cdef RdmaStream s = c.stream
    cdef int64_t now = now_ns()
    cdef bint due = now - m.clock_ns > CLOCK_NS or m.clock_ns <= flushed_ns
    cdef direct_hit hit
    cdef unsigned int i
    for i in range(count):
        keys[i].hv = key_hash(&m.header.hash, keys[i].text, keys[i].length)
        guess(m, &keys[i])
    while post_round(s, m, keys, count, due):
        complete(c)
        if due:
            m.take_clock(m.buffer + CLOCK_AT)
            due = False
        if not m.lives():
            break
        for i in range(count):
            if take(m, &keys[i], i, &hit) and found is not None:
                found[first + i] = (PyBytes_FromStringAndSize(hit.data, hit.length), hit.flags, hit.cas)
    return 0


cdef int tell(Connection c, RemoteMemory m, bint asks) except -1:
    # Puts the line of hits, a line without an answer. asks: the line goes with the following request.
    cdef RdmaStream s = c.stream
    m.told_later = False
    s.wlen += direct_line(&m.report, &m.header, s.room(DIRECT_LINE))
    if not asks:
        c.send()
    return 0


cdef bint enter(RdmaStream s):
    # Takes queue.remote for this caller alone. False: another call reads, or the server is always asked.
    cdef QueuePair queue = s.queue
    cdef RemoteMemory m
    cdef bint entered
    cdef bint wanted = queue.remote is None and queue.offers_reads and queue.row.name in read_transports()
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


cdef RemoteMemory begin_reads(Connection c):
    # The memory, for this caller alone until the caller sets `busy` to False. None: the caller must ask the server.
    cdef RdmaStream s = c.stream
    cdef RemoteMemory m
    if s.noreplies or s.wlen or not enter(s):
        return None
    m = s.queue.remote
    try:
        if not m.usable:
            open_memory(c, m)
    except BaseException:
        m.busy = False
        raise
    if m.refused:
        m.busy = False
        return None
    return m


cdef list read_values(Connection c, list keys):
    cdef RemoteMemory m = begin_reads(c)
    cdef sought[KEYS] some
    cdef Py_ssize_t i, first
    cdef unsigned int count
    if m is None:
        return None
    try:
        found = [None] * len(keys)
        for first in range(0, len(keys), KEYS):
            count = 0
            for i in range(first, min(first + KEYS, len(keys))):
                some[count].text = text_of(keys[i], &some[count].length)
                count += 1
            read_round(c, m, some, count, found, first)
        if m.wanted and now_ns() - m.asked_ns > PART_NS:
            ask_for_part(c, m, m.wanted)
        m.wanted = 0
        asks = None in found
        if m.told_later or asks:
            tell(c, m, asks)
        return found
    finally:
        m.busy = False


cdef int64_t time_read(Connection c, bytes key, bint anew) except -1:
    cdef int64_t begin = now_ns()
    cdef RemoteMemory m = begin_reads(c)
    cdef sought one
    if m is None:
        return 0
    try:
        one.text = text_of(key, &one.length)
        if anew:
            entry_of(m, key_hash(&m.header.hash, one.text, one.length)).slot = 0
        read_round(c, m, &one, 1, None, 0)
        if m.told_later:
            tell(c, m, False)
        return now_ns() - begin if one.step == FOUND else 0
    finally:
        m.busy = False


cdef void forget_clocks() noexcept:
    global flushed_ns
    flushed_ns = now_ns()

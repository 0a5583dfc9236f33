"""Watchers: each has a ring of bytes waiting for its socket.

The thread sleeps in poll until an entry is logged, a watcher can take more, or a watcher has hung up. After work the
thread sleeps a millisecond at least, so a busy daemon's lines leave many at a time. A line without room in a watcher's
ring is skipped for this watcher; before its next line the watcher is told the number of skipped lines.
"""

from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, full_fence, load_acquire, relaxed_load, relaxed_store, store_release
from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.linux cimport (
    EAGAIN, EINTR, POLLERR, POLLHUP, POLLIN, POLLOUT, errno, eventfd_clear, poll, pollfd, pthread_join,
    pthread_mutex_lock, pthread_mutex_unlock, pthread_t, start_thread,
)
from rmemcached.logger cimport (
    LOG_LINE_MAX, READER_AWAKE, READER_NAPS, READER_SLEEPS, log_done, log_entry, log_get_stats, log_next, log_next_gid,
    log_render, log_ring, log_round, log_stats, log_waiting, log_wake,
)
from rmemcached.protocol.conn cimport LEND_FAILED, LEND_OK, LEND_TOO_MANY

cdef enum:
    SKIPPED_MAX = 32             # "skipped=18446744073709551615\n"
    NAP_MS = 1
    DISCARD = 4096               # bytes of a watcher's input, read and dropped at a time

cdef struct watcher:             # under log.lock, except for `owner` and `stream`, which are constant
    void *owner
    stream *stream
    uint32_t eflags
    bint stuck                   # its socket took nothing in this round: no further attempt before the next
    uint64_t min_gid             # entries before this gid are older than the watcher
    uint64_t skipped             # lines skipped since the last report
    char *data                   # size bytes; [start, start + used) modulo size waits for the socket
    size_t size
    size_t start
    size_t used

cdef struct watchers:
    # constant
    logger *log
    size_t buffer_size
    watcher_release_fn release
    # the main thread's
    pthread_t id
    bint started
    # under log.lock
    watcher *slots[WATCHER_LIMIT]
    int count
    watcher_stats at_reset       # the counters at the last reset
    # atomic
    uint64_t skipped             # written by the logger thread alone, as is sent
    uint64_t sent
    uint64_t stop


# ---- a watcher -------------------------------------------------------------------------------------------------------

cdef void push(watcher *w, const char *text, size_t length) noexcept nogil:
    """Appends bytes; the caller has made sure of the room."""
    cdef size_t end = (w.start + w.used) % w.size
    cdef size_t first = w.size - end
    if first > length:
        first = length
    memcpy(w.data + end, text, first)
    memcpy(w.data, text + first, length - first)
    w.used += length


cdef bint flush(watcher *w) noexcept nogil:
    """Sends as much as the socket takes. False: the connection is broken."""
    cdef iovec iov[2]
    cdef ssize_t n
    cdef int count
    while w.used:
        iov[0].iov_base = w.data + w.start
        iov[0].iov_len = w.size - w.start
        count = 1
        if iov[0].iov_len >= w.used:
            iov[0].iov_len = w.used
        else:
            iov[1].iov_base = w.data
            iov[1].iov_len = w.used - iov[0].iov_len
            count = 2
        n = w.stream.calls.send(w.stream, iov, count)
        if n < 0:
            if errno == EINTR:
                continue
            w.stuck = True
            return errno == EAGAIN
        w.start = (w.start + <size_t>n) % w.size
        w.used -= <size_t>n
    return True


cdef bint drop_input(watcher *w) noexcept nogil:
    """Reads and drops a watcher's input. True: the watcher has closed its side."""
    cdef char ignored[DISCARD]
    cdef ssize_t n = w.stream.calls.receive(w.stream, ignored, DISCARD)
    return n == 0 or (n < 0 and errno != EAGAIN and errno != EINTR)


cdef void remove(watchers *ws, int slot) noexcept nogil:
    """Gives the connection back, to be closed."""
    cdef watcher *w = ws.slots[slot]
    assert_held(&ws.log.lock)
    ws.slots[slot] = NULL
    ws.count -= 1
    set_flags(ws)
    ws.release(w.owner, True, NULL, 0)
    free(w.data)
    free(w)


cdef void set_flags(watchers *ws) noexcept nogil:
    """Tells the logging threads the entries wanted by any watcher."""
    cdef uint32_t eflags = 0
    cdef int i
    assert_held(&ws.log.lock)
    for i in range(WATCHER_LIMIT):
        if ws.slots[i] != NULL:
            eflags |= ws.slots[i].eflags
    relaxed_store(&ws.log.flags, eflags)


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef void report_skipped(watcher *w) noexcept nogil:
    cdef char text[SKIPPED_MAX]
    push(w, text, <size_t>snprintf(text, sizeof(text), b"skipped=%llu\n", <unsigned long long>w.skipped))
    w.skipped = 0


cdef void offer(watchers *ws, int slot, const char *line, size_t length) noexcept nogil:
    """Queues a line for a watcher, or counts it as skipped."""
    cdef watcher *w = ws.slots[slot]
    assert_held(&ws.log.lock)
    if not w.stuck and w.size - w.used < length + SKIPPED_MAX and not flush(w):
        remove(ws, slot)
        return
    if w.stuck or w.size - w.used < length + SKIPPED_MAX:
        w.skipped += 1
        counter_add(&ws.skipped, 1)
        return
    if w.skipped:
        report_skipped(w)
    push(w, line, length)
    counter_add(&ws.sent, 1)


cdef bint distribute(watchers *ws) noexcept nogil:
    """Takes the present entries and queues their lines. False: no entry was there."""
    cdef char line[LOG_LINE_MAX]
    cdef log_ring *ring = NULL
    cdef log_entry *e
    cdef watcher *w
    cdef size_t length
    cdef bint found = False
    cdef int i
    assert_held(&ws.log.lock)
    log_round(ws.log)
    while True:
        e = log_next(ws.log, &ring)
        if e == NULL:
            return found
        found = True
        length = 0
        for i in range(WATCHER_LIMIT):
            w = ws.slots[i]
            if w != NULL and e.eflags & w.eflags and e.gid >= w.min_gid:
                if length == 0:
                    length = log_render(e, line)
                offer(ws, i, line, length)
        log_done(ring, e)


cdef void flush_all(watchers *ws) noexcept nogil:
    """Sends waiting bytes; a watcher without waiting bytes gets the number of skipped lines."""
    cdef watcher *w
    cdef int i
    assert_held(&ws.log.lock)
    for i in range(WATCHER_LIMIT):
        w = ws.slots[i]
        if w == NULL or w.stuck:
            continue
        if not flush(w):
            remove(ws, i)
            continue
        if w.skipped and w.used == 0:
            report_skipped(w)
            if not flush(w):
                remove(ws, i)


cdef void *logger_main(void *arg) noexcept nogil:
    """The main function of the logger thread."""
    cdef watchers *ws = <watchers *>arg
    cdef logger *log = ws.log
    cdef pollfd fds[WATCHER_LIMIT + 1]
    cdef int slot_of[WATCHER_LIMIT + 1]
    cdef watcher *w
    cdef int i, n
    cdef int timeout
    cdef bint busy = False
    while True:
        # Announce the wait before the look for entries: a thread that logs later wakes this thread.
        relaxed_store(&log.reader_waits, READER_NAPS if busy else READER_SLEEPS)
        full_fence()
        pthread_mutex_lock(&log.lock)
        timeout = NAP_MS if busy else -1
        if load_acquire(&ws.stop) or (not busy and log_waiting(log)):
            timeout = 0
        fds[0].fd = log.wake_fd
        fds[0].events = POLLIN
        n = 1
        for i in range(WATCHER_LIMIT):
            w = ws.slots[i]
            if w != NULL:
                fds[n].fd = w.stream.fd
                fds[n].events = POLLIN | POLLOUT if w.used else POLLIN
                slot_of[n] = i
                n += 1
        pthread_mutex_unlock(&log.lock)
        if poll(fds, n, timeout) < 0:
            if errno != EINTR:
                # The kernel has no memory now: poll is tried again.
                continue
            n = 0
        relaxed_store(&log.reader_waits, READER_AWAKE)
        if n and fds[0].revents:
            eventfd_clear(log.wake_fd)
        pthread_mutex_lock(&log.lock)
        for i in range(1, n):
            # The slot still has the polled watcher: nobody else empties a slot, and a new watcher takes an empty slot.
            w = ws.slots[slot_of[i]]
            w.stuck = w.used != 0 and not fds[i].revents & POLLOUT
            if fds[i].revents & (POLLERR | POLLHUP) or (fds[i].revents & POLLIN and drop_input(w)):
                remove(ws, slot_of[i])
        busy = distribute(ws)
        flush_all(ws)
        pthread_mutex_unlock(&log.lock)
        if load_acquire(&ws.stop):
            return NULL


# ---- for the server --------------------------------------------------------------------------------------------------

cdef watchers *watchers_create(logger *log, size_t buffer_size, watcher_release_fn release) noexcept nogil:
    cdef watchers *ws = <watchers *>calloc(1, sizeof(watchers))
    if ws != NULL:
        ws.log = log
        # The buffer has room for the OK, even if a smaller buffer is wanted.
        ws.buffer_size = max(buffer_size, <size_t>SKIPPED_MAX)
        ws.release = release
    return ws


cdef int watchers_start(watchers *ws) noexcept nogil:
    cdef int err = start_thread(&ws.id, b"mc-log", logger_main, ws)
    ws.started = err == 0
    return err


cdef void watchers_stop(watchers *ws) noexcept nogil:
    if ws.started:
        store_release(&ws.stop, 1)
        full_fence()
        log_wake(ws.log)
        pthread_join(ws.id, NULL)
        ws.started = False
    relaxed_store(&ws.log.flags, 0)


cdef void watchers_destroy(watchers *ws) noexcept nogil:
    cdef int i
    for i in range(WATCHER_LIMIT):
        if ws.slots[i] != NULL:
            free(ws.slots[i].data)
            free(ws.slots[i])
    free(ws)


cdef lend_result watchers_add(watchers *ws, void *owner, stream *s, uint32_t eflags) noexcept nogil:
    cdef watcher *w
    cdef int i
    pthread_mutex_lock(&ws.log.lock)
    if ws.count == WATCHER_LIMIT:
        pthread_mutex_unlock(&ws.log.lock)
        return LEND_TOO_MANY
    w = <watcher *>calloc(1, sizeof(watcher))
    if w != NULL:
        w.data = <char *>malloc(ws.buffer_size)
    if w == NULL or w.data == NULL:
        pthread_mutex_unlock(&ws.log.lock)
        free(w)
        return LEND_FAILED
    w.owner = owner
    w.stream = s
    w.eflags = eflags
    w.min_gid = log_next_gid(ws.log)
    w.size = ws.buffer_size
    push(w, b"OK\r\n", 4)
    i = 0
    while ws.slots[i] != NULL:
        i += 1
    ws.slots[i] = w
    ws.count += 1
    set_flags(ws)
    pthread_mutex_unlock(&ws.log.lock)
    log_wake(ws.log)
    return LEND_OK


cdef void counted(watchers *ws, watcher_stats *out) noexcept nogil:
    """Reads the counters, which a reset does not change."""
    cdef log_stats rings
    assert_held(&ws.log.lock)
    log_get_stats(ws.log, &rings)
    out.dropped = rings.worker_dropped
    out.written = rings.worker_written
    out.skipped = relaxed_load(&ws.skipped)
    out.sent = relaxed_load(&ws.sent)


cdef void watchers_get_stats(watchers *ws, watcher_stats *out) noexcept nogil:
    pthread_mutex_lock(&ws.log.lock)
    counted(ws, out)
    out.dropped -= ws.at_reset.dropped
    out.written -= ws.at_reset.written
    out.skipped -= ws.at_reset.skipped
    out.sent -= ws.at_reset.sent
    out.count = <uint64_t>ws.count
    pthread_mutex_unlock(&ws.log.lock)


cdef void watchers_reset_stats(watchers *ws) noexcept nogil:
    """Notes the counters' present values, to be subtracted from then on: the counters belong to the writing threads."""
    pthread_mutex_lock(&ws.log.lock)
    counted(ws, &ws.at_reset)
    pthread_mutex_unlock(&ws.log.lock)

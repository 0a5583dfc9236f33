"""Dumps: lines gather in a buffer while item locks are held, and are sent between items."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strlen

from rmemcached.sys.linux cimport (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, POLLERR, POLLHUP, POLLIN, POLLOUT, close, errno, eventfd, eventfd_signal,
    poll, pollfd,
)
from rmemcached.protocol.stats_text cimport stat_append_raw, stat_buf
from rmemcached.protocol.dump cimport DUMP_LINE_MAX, dump_end, dump_line
from rmemcached.streams.stream cimport stream_send
from rmemcached.store.store cimport (
    CRAWLER_ERROR, CRAWLER_OK, crawler_client, item, lru_crawler_dump, store_process_started,
)

cdef enum:
    FLUSH_BYTES = 32 * 1024      # of the dump, gathered before they are sent
    STALL_MS = 1800 * 1000       # a reader taking nothing for so long loses its connection

cdef struct dumps:               # constant
    store *store
    int stop_fd                  # eventfd: readable once dumps_stop was called
    dump_release_fn release

cdef struct dump:                # the crawler thread's; before the start the worker's
    dumps *all
    void *owner
    stream *stream
    dump_kind kind
    int64_t started              # Unix time of rel_time_t 0
    bint broken                  # the socket takes no more
    stat_buf out


cdef bint item_found(void *arg, item *it) noexcept nogil:
    """crawler_client.item_found. Nothing is sent with an item lock held: the buffer may grow beyond FLUSH_BYTES."""
    cdef dump *d = <dump *>arg
    cdef char line[DUMP_LINE_MAX]
    stat_append_raw(&d.out, line, <size_t>(dump_line(d.kind, it, d.started, line) - line))
    return not d.out.failed


cdef bint wait_writable(dump *d) noexcept nogil:
    """Waits until the socket takes more. False: the reader is gone or does not read, or all dumps are to end."""
    cdef pollfd fds[2]
    cdef int n = 0
    fds[0].fd = d.stream.fd
    fds[0].events = POLLOUT
    fds[1].fd = d.all.stop_fd
    fds[1].events = POLLIN
    while n <= 0:
        n = poll(fds, 2, STALL_MS)
        if n == 0 or (n < 0 and errno != EINTR):
            return False
    return fds[1].revents == 0 and not fds[0].revents & (POLLERR | POLLHUP)


cdef bint flush(void *arg) noexcept nogil:
    """crawler_client.flush. A peer may shut down its own sending, and still gets everything."""
    cdef dump *d = <dump *>arg
    cdef size_t sent = 0
    cdef ssize_t n
    if d.out.used < FLUSH_BYTES:
        return True
    while sent < d.out.used and not d.broken:
        n = stream_send(d.stream, d.out.data + sent, d.out.used - sent)
        if n >= 0:
            sent += <size_t>n
        elif errno == EAGAIN:
            d.broken = not wait_writable(d)
        else:
            d.broken = errno != EINTR
    d.out.used = 0
    return not d.broken


cdef void done(void *arg, bint complete) noexcept nogil:
    """crawler_client.done. Adds the last line, and gives the connection back, to be closed after an incomplete dump."""
    cdef dump *d = <dump *>arg
    cdef const char *end = dump_end(d.kind)
    stat_append_raw(&d.out, end, strlen(end))
    if complete and not d.out.failed:
        d.all.release(d.owner, False, d.out.data, d.out.used)
    else:
        free(d.out.data)
        d.all.release(d.owner, True, NULL, 0)
    free(d)


cdef dumps *dumps_create(store *s, dump_release_fn release) noexcept nogil:
    cdef dumps *d = <dumps *>calloc(1, sizeof(dumps))
    if d == NULL:
        return NULL
    d.store = s
    d.release = release
    d.stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    if d.stop_fd < 0:
        free(d)
        return NULL
    return d


cdef void dumps_stop(dumps *d) noexcept nogil:
    eventfd_signal(d.stop_fd)


cdef void dumps_destroy(dumps *d) noexcept nogil:
    close(d.stop_fd)
    free(d)


cdef crawler_result_type dumps_start(dumps *all, void *owner, stream *s, dump_kind kind, const char *classes,
                                     size_t length) noexcept nogil:
    cdef crawler_client client
    cdef crawler_result_type result = CRAWLER_ERROR
    cdef dump *d = <dump *>calloc(1, sizeof(dump))
    if d == NULL:
        return CRAWLER_ERROR
    d.all = all
    d.owner = owner
    d.stream = s
    d.kind = kind
    d.started = store_process_started(all.store)
    stat_append_raw(&d.out, b"OK\r\n", 4)
    client.arg = d
    client.item_found = item_found
    client.flush = flush
    client.done = done
    if not d.out.failed:
        result = lru_crawler_dump(all.store, classes, length, &client)
    if result != CRAWLER_OK:
        free(d.out.data)
        free(d)
    return result

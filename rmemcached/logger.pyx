"""Rings of log entries, and the rendering of lines.

A ring has one writer, its own thread, and one reader. Both count the bytes since the start; the difference is the
content of the ring. An entry is contiguous: a skip mark fills the end of the ring if the entry does not fit there. A
full ring drops the newest entry, as in memcached: a worker never waits for a watcher.
"""

from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

from rmemcached.sys.atomics cimport (
    compare_exchange_pointer, counter_add, exchange, fetch_add, full_fence, load_acquire, relaxed_load, store_release,
)
from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.linux cimport (
    AF_INET, AF_INET6, CLOCK_REALTIME, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, INET6_ADDRSTRLEN, clock_gettime, close, errno,
    eventfd, inet_ntop, ntohs, pthread_mutex_destroy, pthread_mutex_init, sockaddr_in, timespec,
    write,
)

cdef enum:
    KEY_URI_MAX = 3 * 250 + 1    # the longest key (KEY_MAX_LENGTH of the store) in the letters of a URI, and a NUL

cdef enum log_events:
    LOGGER_SKIP = 0              # fills the end of the ring; has size and event only
    LOGGER_TEXT
    LOGGER_EVICTION
    LOGGER_ITEM_GET
    LOGGER_ITEM_STORE
    LOGGER_DELETIONS
    LOGGER_CONNECTION_NEW
    LOGGER_CONNECTION_CLOSE

cdef struct log_ring:
    log_ring *next               # the logger's list
    size_t size                  # constant
    char *data                   # bytes [tail, head) are the reader's, the others the writer's
    # the writer's
    uint64_t head                # bytes ever written; published with release
    uint64_t reserved            # the value of head after the present entry is published
    uint64_t written             # relaxed: entries
    uint64_t dropped
    char pad[LOG_PAD]
    # the reader's
    uint64_t tail                # bytes ever taken; published with release
    uint64_t limit               # the end of the present round

cdef struct item_body:           # follows the log_entry; the key comes next
    int32_t status
    int32_t cmd
    int32_t nbytes
    int32_t sfd
    int64_t ttl
    uint32_t la
    uint8_t clsid
    uint8_t nkey

cdef struct conn_body:
    log_peer peer
    int32_t sfd
    uint32_t lane
    int32_t reason

cdef extern from *:
    """
    /* The calling thread's ring in the logger with this serial, and the variable given to log_thread_sfd. */
    static __thread struct {
        unsigned long long serial;
        void *ring;
        const int *sfd;
    } rmc_log_self;
    """
    struct log_self_type "rmc_log_self":
        unsigned long long serial
        void *ring
        const int *sfd
    log_self_type self "rmc_log_self"

cdef uint64_t _serials = 0       # atomic: loggers made so far
cdef logger _none                # all zero: no flag is ever set

# Whether a byte of a key stands for itself in a URI.
cdef char _plain[256]
for _byte in range(256):
    _plain[_byte] = chr(_byte) in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"


# ---- creation and end ------------------------------------------------------------------------------------------------

cdef logger *logger_create(size_t ring_size) noexcept nogil:
    cdef logger *log = <logger *>calloc(1, sizeof(logger))
    if log == NULL:
        return NULL
    log.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    if log.wake_fd < 0:
        free(log)
        return NULL
    log.ring_size = ring_size & ~<size_t>7
    log.serial = fetch_add(&_serials, 1) + 1
    pthread_mutex_init(&log.lock, NULL)
    return log


cdef void logger_destroy(logger *log) noexcept nogil:
    cdef log_ring *ring
    while log.rings != NULL:
        ring = log.rings
        log.rings = ring.next
        free(ring.data)
        free(ring)
    close(log.wake_fd)
    pthread_mutex_destroy(&log.lock)
    free(log)


cdef logger *logger_none() noexcept nogil:
    return &_none


# ---- writing ---------------------------------------------------------------------------------------------------------

cdef void log_thread_sfd(const int *sfd) noexcept nogil:
    self.sfd = sfd


cdef inline int own_sfd() noexcept nogil:
    return self.sfd[0] if self.sfd != NULL else 0


cdef inline log_ring *first_ring(logger *log) noexcept nogil:
    return <log_ring *>load_acquire(&log.rings)


cdef log_ring *new_ring(logger *log) noexcept nogil:
    """Makes the calling thread's ring, for its first entry in this logger. NULL: no memory."""
    cdef log_ring *ring = <log_ring *>calloc(1, sizeof(log_ring))
    if ring == NULL:
        return NULL
    ring.size = log.ring_size
    ring.data = <char *>malloc(ring.size)
    if ring.data == NULL:
        free(ring)
        return NULL
    # Without the lock: the reader, who holds it, may log as well.
    ring.next = first_ring(log)
    while not compare_exchange_pointer(&log.rings, &ring.next, ring):
        pass
    self.serial = log.serial
    self.ring = ring
    return ring


cdef log_entry *reserve(logger *log, log_events event, uint32_t eflags, size_t body, log_ring **out) noexcept nogil:
    """Reserves an entry with `body` bytes behind its header. The caller fills the entry before `publish`. NULL: the
    ring is full, or there is no memory for a ring.
    """
    cdef log_ring *ring
    cdef log_entry *e
    cdef size_t need = (sizeof(log_entry) + body + 7) & ~<size_t>7
    cdef size_t offset, rest, skip
    cdef timespec now
    if self.serial == log.serial:
        ring = <log_ring *>self.ring
    else:
        ring = new_ring(log)
        if ring == NULL:
            fetch_add(&log.unplaced, 1)
            return NULL
    if need > ring.size:
        counter_add(&ring.dropped, 1)
        return NULL
    offset = <size_t>(ring.head % ring.size)
    rest = ring.size - offset
    skip = rest if rest < need else 0
    if ring.size - <size_t>(ring.head - load_acquire(&ring.tail)) < need + skip:
        counter_add(&ring.dropped, 1)
        return NULL
    if skip:
        e = <log_entry *>(ring.data + offset)
        e.size = <uint32_t>skip
        e.event = LOGGER_SKIP
        offset = 0
    ring.reserved = ring.head + skip + need
    e = <log_entry *>(ring.data + offset)
    e.size = <uint32_t>need
    e.event = event
    e.eflags = <uint16_t>eflags
    e.gid = log_next_gid(log)
    clock_gettime(CLOCK_REALTIME, &now)
    e.seconds = now.tv_sec
    e.micros = now.tv_nsec // 1000
    out[0] = ring
    return e


cdef void publish(logger *log, log_ring *ring) noexcept nogil:
    # Shows the reserved entry to the reader, and wakes the reader if need be.
    cdef uint64_t waits
    store_release(&ring.head, ring.reserved)
    counter_add(&ring.written, 1)
    # Either the reader sees the entry before sleeping, or this thread sees the sleeping reader.
    full_fence()
    waits = relaxed_load(&log.reader_waits)
    if waits == READER_SLEEPS or (waits == READER_NAPS and ring.head - load_acquire(&ring.tail) > ring.size // 2):
        log_wake(log)


cdef void log_wake(logger *log) noexcept nogil:
    cdef uint64_t one = 1
    if exchange(&log.reader_waits, READER_AWAKE):
        while write(log.wake_fd, &one, sizeof(one)) < 0 and errno == EINTR:
            pass


cdef inline item_body *item_entry(logger *log, log_events event, uint32_t eflags, const log_item *it,
                                  log_ring **ring) noexcept nogil:
    # Reserves an entry about an item. The caller fills in the event's other fields and publishes the entry.
    cdef log_entry *e = reserve(log, event, eflags, sizeof(item_body) + it.nkey, ring)
    cdef item_body *b
    if e == NULL:
        return NULL
    b = <item_body *>(e + 1)
    memcpy(b + 1, it.key, it.nkey)
    b.nkey = <uint8_t>it.nkey
    b.nbytes = it.nbytes
    b.clsid = <uint8_t>it.clsid
    b.sfd = own_sfd()
    return b


cdef void log_item_get(logger *log, log_fetch_status status, const log_item *it) noexcept nogil:
    cdef log_ring *ring
    cdef item_body *b = item_entry(log, LOGGER_ITEM_GET, LOG_FETCHERS, it, &ring)
    if b != NULL:
        b.status = status
        publish(log, ring)


cdef void log_item_store(logger *log, int status, int cmd, const log_item *it, uint32_t ttl) noexcept nogil:
    cdef log_ring *ring
    cdef item_body *b = item_entry(log, LOGGER_ITEM_STORE, LOG_MUTATIONS, it, &ring)
    if b != NULL:
        b.status = status
        b.cmd = cmd
        b.ttl = ttl
        publish(log, ring)


cdef void log_eviction(logger *log, const log_item *it, bint fetched, int64_t ttl, uint32_t la) noexcept nogil:
    cdef log_ring *ring
    cdef item_body *b = item_entry(log, LOGGER_EVICTION, LOG_EVICTIONS, it, &ring)
    if b != NULL:
        b.status = fetched
        b.ttl = ttl
        b.la = la
        publish(log, ring)


cdef void log_deletion(logger *log, log_delete_cmd cmd, const log_item *it) noexcept nogil:
    cdef log_ring *ring
    cdef item_body *b = item_entry(log, LOGGER_DELETIONS, LOG_DELETIONS, it, &ring)
    if b != NULL:
        b.cmd = cmd
        publish(log, ring)


cdef void conn_entry(logger *log, log_events event, const log_peer *peer, int sfd, uint32_t lane,
                     close_reasons reason) noexcept nogil:
    cdef log_ring *ring
    cdef log_entry *e = reserve(log, event, LOG_CONNEVENTS, sizeof(conn_body), &ring)
    cdef conn_body *b
    if e != NULL:
        b = <conn_body *>(e + 1)
        b.peer = peer[0]
        b.sfd = sfd
        b.lane = lane
        b.reason = reason
        publish(log, ring)


cdef void log_conn_new(logger *log, const log_peer *peer, int sfd, uint32_t lane) noexcept nogil:
    conn_entry(log, LOGGER_CONNECTION_NEW, peer, sfd, lane, ERROR_CLOSE)


cdef void log_conn_close(logger *log, const log_peer *peer, int sfd, uint32_t lane,
                         close_reasons reason) noexcept nogil:
    conn_entry(log, LOGGER_CONNECTION_CLOSE, peer, sfd, lane, reason)


cdef void log_text(logger *log, uint32_t eflags, const char *text) noexcept nogil:
    cdef size_t length = strlen(text)
    cdef log_ring *ring
    cdef log_entry *e
    if length >= LOG_TEXT_MAX:
        length = LOG_TEXT_MAX - 1
    e = reserve(log, LOGGER_TEXT, eflags, length + 1, &ring)
    if e != NULL:
        memcpy(e + 1, text, length)
        (<char *>(e + 1))[length] = 0
        publish(log, ring)


cdef uint64_t log_next_gid(logger *log) noexcept nogil:
    """A new number for an entry, larger than all before."""
    return fetch_add(&log.gid, 1) + 1


# ---- reading ---------------------------------------------------------------------------------------------------------

cdef void log_round(logger *log) noexcept nogil:
    assert_held(&log.lock)
    cdef log_ring *ring = first_ring(log)
    while ring != NULL:
        ring.limit = load_acquire(&ring.head)
        ring = ring.next


cdef log_entry *log_next(logger *log, log_ring **out) noexcept nogil:
    assert_held(&log.lock)
    cdef log_ring *ring = first_ring(log)
    cdef log_entry *oldest = NULL
    cdef log_entry *e
    while ring != NULL:
        if ring.tail != ring.limit:
            e = <log_entry *>(ring.data + ring.tail % ring.size)
            if e.event == LOGGER_SKIP:
                # Another entry follows the skip mark: both were published together.
                log_done(ring, e)
                e = <log_entry *>ring.data
            if oldest == NULL or e.gid < oldest.gid:
                oldest = e
                out[0] = ring
        ring = ring.next
    return oldest


cdef void log_done(log_ring *ring, log_entry *e) noexcept nogil:
    store_release(&ring.tail, ring.tail + e.size)


cdef bint log_waiting(logger *log) noexcept nogil:
    assert_held(&log.lock)
    cdef log_ring *ring = first_ring(log)
    while ring != NULL:
        if load_acquire(&ring.head) != ring.tail:
            return True
        ring = ring.next
    return False


cdef void log_get_stats(logger *log, log_stats *out) noexcept nogil:
    assert_held(&log.lock)
    cdef log_ring *ring
    out.worker_dropped = relaxed_load(&log.unplaced)
    out.worker_written = 0
    ring = first_ring(log)
    while ring != NULL:
        out.worker_dropped += relaxed_load(&ring.dropped)
        out.worker_written += relaxed_load(&ring.written)
        ring = ring.next


# ---- rendering lines -------------------------------------------------------------------------------------------------

cdef char *uri_encode(const char *key, size_t nkey, char *out) noexcept nogil:
    cdef const char *digits = b"0123456789ABCDEF"
    cdef uint8_t byte
    cdef size_t i
    for i in range(nkey):
        byte = <uint8_t>key[i]
        if _plain[byte]:
            out[0] = <char>byte
            out += 1
        else:
            out[0] = c'%'
            out[1] = digits[byte >> 4]
            out[2] = digits[byte & 15]
            out += 3
    return out


cdef const char *status_name(int status) noexcept nogil:
    """The name of a store_item_type. The numbers are literal, because the enum is in the store, above this module."""
    if status == 0:
        return b"not_stored"
    if status == 1:
        return b"stored"
    if status == 2:
        return b"exists"
    if status == 3:
        return b"not_found"
    if status == 4:
        return b"too_large"
    return b"no_memory"


cdef const char *cmd_name(int cmd) noexcept nogil:
    """The name of a store_op, by literal numbers as well."""
    if cmd == 1:
        return b"add"
    if cmd == 2:
        return b"set"
    if cmd == 3:
        return b"replace"
    if cmd == 4 or cmd == 7:
        return b"append"
    if cmd == 5 or cmd == 8:
        return b"prepend"
    if cmd == 6:
        return b"cas"
    return b"null"


cdef const char *fetch_name(int status) noexcept nogil:
    if status == LOG_FOUND:
        return b"found"
    if status == LOG_FLUSHED:
        return b"flushed"
    if status == LOG_EXPIRED:
        return b"expired"
    return b"not_found"


cdef const char *transport_name(int transport) noexcept nogil:
    if transport == LOG_TCP:
        return b"tcp"
    if transport == LOG_UDP:
        return b"udp"
    if transport == LOG_RDMA:
        return b"rdma"
    return b"local"


cdef const char *reason_name(int reason) noexcept nogil:
    if reason == NORMAL_CLOSE:
        return b"normal"
    if reason == IDLE_TIMEOUT_CLOSE:
        return b"idle_timeout"
    if reason == SHUTDOWN_CLOSE:
        return b"shutdown"
    return b"error"


cdef unsigned int peer_text(const log_peer *peer, char *out) noexcept nogil:
    """Writes the address into INET6_ADDRSTRLEN bytes; returns the port."""
    cdef const sockaddr_in *four = <const sockaddr_in *>&peer.addr
    out[0] = 0
    if peer.addr.sin6_family == AF_INET:
        inet_ntop(AF_INET, &four.sin_addr, out, INET6_ADDRSTRLEN)
        return ntohs(four.sin_port)
    if peer.addr.sin6_family == AF_INET6:
        inet_ntop(AF_INET6, &peer.addr.sin6_addr, out, INET6_ADDRSTRLEN)
        return ntohs(peer.addr.sin6_port)
    memcpy(out, b"unix", 5)
    return 0


cdef size_t log_render(const log_entry *e, char *out) noexcept nogil:
    # Microseconds are not padded with zeros, as in memcached.
    cdef const item_body *b = <const item_body *>(e + 1)
    cdef const conn_body *c = <const conn_body *>(e + 1)
    cdef char key[KEY_URI_MAX]
    cdef char address[INET6_ADDRSTRLEN]
    cdef char lane[24]
    cdef unsigned int port
    cdef int value_size
    cdef int n = snprintf(out, LOG_LINE_MAX, b"ts=%lld.%d gid=%llu ", <long long>e.seconds, <int>e.micros,
                          <unsigned long long>e.gid)
    cdef size_t room = <size_t>(LOG_LINE_MAX - n)
    cdef char *p = out + n
    if e.event == LOGGER_TEXT:
        n = snprintf(p, room, b"%s\n", <const char *>(e + 1))
    elif e.event == LOGGER_CONNECTION_NEW or e.event == LOGGER_CONNECTION_CLOSE:
        port = peer_text(&c.peer, address)
        lane[0] = 0
        if c.lane:
            snprintf(lane, sizeof(lane), b" lane=%u", <unsigned int>c.lane)
        if e.event == LOGGER_CONNECTION_NEW:
            n = snprintf(p, room, b"type=conn_new rip=%s rport=%u transport=%s cfd=%d%s\n", address, port,
                         transport_name(c.peer.transport), c.sfd, lane)
        else:
            n = snprintf(p, room, b"type=conn_close rip=%s rport=%u transport=%s reason=%s cfd=%d%s\n", address, port,
                         transport_name(c.peer.transport), reason_name(c.reason), c.sfd, lane)
    else:
        uri_encode(<const char *>(b + 1), b.nkey, key)[0] = 0
        value_size = b.nbytes - 2 if b.nbytes > 0 else 0
        if e.event == LOGGER_ITEM_GET:
            n = snprintf(p, room, b"type=item_get key=%s status=%s clsid=%u cfd=%d size=%d\n", key,
                         fetch_name(b.status), <unsigned int>b.clsid, b.sfd, value_size)
        elif e.event == LOGGER_ITEM_STORE:
            n = snprintf(p, room, b"type=item_store key=%s status=%s cmd=%s ttl=%u clsid=%u cfd=%d size=%d\n", key,
                         status_name(b.status), cmd_name(b.cmd), <unsigned int>b.ttl, <unsigned int>b.clsid, b.sfd,
                         value_size)
        elif e.event == LOGGER_EVICTION:
            n = snprintf(p, room, b"type=eviction key=%s fetch=%s ttl=%lld la=%d clsid=%u size=%d\n", key,
                         <const char *>(b"yes" if b.status else b"no"), <long long>b.ttl, <int>b.la,
                         <unsigned int>b.clsid, value_size)
        else:
            n = snprintf(p, room, b"type=deleted key=%s cmd=%s clsid=%u size=%d\n", key,
                         <const char *>(b"delete" if b.cmd == LOG_TYPE_DELETE else b"md"), <unsigned int>b.clsid,
                         value_size)
    return <size_t>(p - out) + <size_t>n

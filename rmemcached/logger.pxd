"""Log entries for watchers: events of the store, the protocol and the workers, as shown by memcached's `watch`.

Each writing thread appends entries to a ring of its own, without a lock. A single reader, the logger thread of
`rmemcached/server/watchers`, takes the entries out in the order of their gid and renders the lines. While nobody
watches, nothing is written: `log_wants` is one relaxed load. memcached: logger.c, logger.h.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.linux cimport pthread_mutex_t, sockaddr_in6

cdef enum log_eflags:            # memcached's bits
    LOG_SYSEVENTS = 1 << 1       # the work of background threads
    LOG_FETCHERS = 1 << 2        # lookups
    LOG_MUTATIONS = 1 << 3       # stores
    LOG_CONNEVENTS = 1 << 5
    LOG_EVICTIONS = 1 << 6
    # `watch` accepts the four below, and nothing is logged for them, as in memcached without its proxy
    LOG_RAWCMDS = 1 << 9
    LOG_PROXYREQS = 1 << 10
    LOG_PROXYEVENTS = 1 << 11
    LOG_PROXYUSER = 1 << 12
    LOG_DELETIONS = 1 << 13

cdef enum log_fetch_status:      # of log_item_get
    LOG_NOT_FOUND = 0
    LOG_FOUND
    LOG_FLUSHED
    LOG_EXPIRED

cdef enum log_delete_cmd:        # of log_deletion
    LOG_TYPE_DELETE = 1
    LOG_TYPE_META_DELETE

cdef enum log_transport:
    LOG_LOCAL = 0                # UNIX socket
    LOG_TCP
    LOG_UDP
    LOG_RDMA                     # rdma_cm

cdef enum close_reasons:         # why a connection ended
    ERROR_CLOSE = 0
    NORMAL_CLOSE
    IDLE_TIMEOUT_CLOSE
    SHUTDOWN_CLOSE

cdef enum:
    LOG_LINE_MAX = 1280          # bytes of a rendered line, its NUL included
    LOG_TEXT_MAX = 512           # bytes of a text entry, its NUL included
    LOG_PAD = 64                 # bytes between fields of different threads: a cache line

cdef enum log_reader_state:
    READER_AWAKE = 0
    READER_SLEEPS                # until wake_fd is readable: the writer of the next entry wakes the reader
    READER_NAPS                  # for a moment, so entries gather; only a filling ring wakes the reader

# The peer of a connection. Owned by the connection.
cdef struct log_peer:
    sockaddr_in6 addr            # or a sockaddr_in; sin6_family 0: a UNIX socket
    uint8_t transport            # log_transport

cdef struct log_ring             # the entries of a writing thread; complete in logger.pyx

cdef struct logger:
    uint32_t flags               # atomic: the log_eflags watched by anybody; the reader writes this field
    char pad_after_flags[LOG_PAD]
    uint64_t gid                 # atomic: number of the newest entry
    uint32_t reader_waits        # atomic: a log_reader_state
    int wake_fd                  # constant: an eventfd
    size_t ring_size             # constant: bytes of a ring
    uint64_t serial              # constant: tells the loggers of a process apart
    uint64_t unplaced            # atomic: entries lost because there was no memory for a ring
    pthread_mutex_t lock
    # Atomic: a thread puts its ring in front without the lock, so whoever holds the lock may log. A ring lives as long
    # as the logger.
    log_ring *rings

cdef struct log_entry:           # an entry in a ring; the event's body follows
    uint32_t size                # bytes with the body, a multiple of 8
    uint16_t event
    uint16_t eflags
    uint64_t gid
    int64_t seconds              # time of day
    int64_t micros

cdef struct log_stats:
    uint64_t worker_dropped
    uint64_t worker_written

cdef struct log_item:            # an item of the store, or the key of a command
    const char *key
    size_t nkey
    int32_t nbytes               # as in item.nbytes, with the line end; 0: no item
    unsigned int clsid

# Makes the server's logger. ring_size: bytes of each writing thread's ring. NULL: no memory, or no descriptor (errno).
cdef logger *logger_create(size_t ring_size) noexcept nogil
# Frees the logger. No thread may log any more.
cdef void logger_destroy(logger *log) noexcept nogil
# The logger for a store without a server: one for the process, constant, without watchers. Not to be destroyed.
cdef logger *logger_none() noexcept nogil

cdef inline bint log_wants(const logger *log, uint32_t eflags) noexcept nogil:
    """Whether anybody watches for such events. The log functions below are called only then."""
    return (<uint32_t>relaxed_load(&(<logger *>log).flags) & eflags) != 0

# --- writing; any thread ---
# From now on the entries of the calling thread, a worker, show *sfd as cfd=. Each entry reads *sfd, so the variable
# must outlive the thread.
cdef void log_thread_sfd(const int *sfd) noexcept nogil
# The functions below append an entry to the calling thread's ring, and wake the reader if need be. A full ring drops
# the entry. Each function is for the event in its name.
cdef void log_item_get(logger *log, log_fetch_status status, const log_item *it) noexcept nogil
# status: a store_item_type; cmd: a store_op, 0: none; ttl: seconds, 0: never expires
cdef void log_item_store(logger *log, int status, int cmd, const log_item *it, uint32_t ttl) noexcept nogil
# ttl: seconds, -1: never expires; la: seconds since the last access
cdef void log_eviction(logger *log, const log_item *it, bint fetched, int64_t ttl, uint32_t la) noexcept nogil
cdef void log_deletion(logger *log, log_delete_cmd cmd, const log_item *it) noexcept nogil
# sfd, lane: the fields of the conn
cdef void log_conn_new(logger *log, const log_peer *peer, int sfd, uint32_t lane) noexcept nogil
cdef void log_conn_close(logger *log, const log_peer *peer, int sfd, uint32_t lane,
                         close_reasons reason) noexcept nogil
# For an event given as text, "type=... name=value ...". Cuts a text longer than LOG_TEXT_MAX - 1 bytes.
cdef void log_text(logger *log, uint32_t eflags, const char *text) noexcept nogil

# --- reading; a single thread, with log.lock held ---
# Begins a round: log_next returns only the entries present now.
cdef void log_round(logger *log) noexcept nogil
# The round's next entry, oldest gid first, or NULL. The entry stays in the ring until log_done.
cdef log_entry *log_next(logger *log, log_ring **ring) noexcept nogil
# Takes the entry of log_next out of its ring.
cdef void log_done(log_ring *ring, log_entry *e) noexcept nogil
# Whether any ring has an entry.
cdef bint log_waiting(logger *log) noexcept nogil
# Writes the line of an entry, with its \n, into LOG_LINE_MAX bytes. Returns the line's length.
cdef size_t log_render(const log_entry *e, char *out) noexcept nogil
# Takes the next gid, for a new entry or a new watcher. Any thread, with or without the lock.
cdef uint64_t log_next_gid(logger *log) noexcept nogil
# Wakes a sleeping or napping reader. Any thread, with or without the lock.
cdef void log_wake(logger *log) noexcept nogil
# Adds up the counters of all rings. Any thread with log.lock.
cdef void log_get_stats(logger *log, log_stats *out) noexcept nogil

# Writes the key in the letters of a URI: all bytes but letters, digits and -._~ as %XX. out has room for three bytes
# per byte of the key. Returns the end.
cdef char *uri_encode(const char *key, size_t nkey, char *out) noexcept nogil

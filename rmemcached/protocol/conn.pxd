"""A connection as the protocol and the drive machine see it: bytes in, reply segments out, no socket.

Everything here is owned by the worker thread that serves the connection; nothing is locked. An engine
(`rmemcached/server`, `rmemcached/rdma_conn`) embeds `conn` as the first member of a structure of its own, supplies
input in ``rcurr``/``rbytes``, calls ``drive_machine``, and sends what ``conn_gather`` returns. What it can do for a
connection beyond that stands in a table, ``conn.engine``.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, relaxed_load
from rmemcached.logger cimport close_reasons, logger
from rmemcached.protocol.dump cimport dump_kind
from rmemcached.protocol.stats_prefix cimport stats_prefixes
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.store.store cimport MAX_NUMBER_OF_SLAB_CLASSES, NUMBER_OF_QUEUES, crawler_result_type, item, store

ctypedef uint32_t rel_time_t

cdef struct conn             # complete below
cdef struct mc_resp

cdef enum conn_states:       # memcached's names, where it has them
    conn_new_cmd             # prepare for the next command
    conn_waiting             # has done all the input there was
    conn_read                # waits for input, or has got it
    conn_parse_cmd           # try to parse a command out of the input
    conn_nread               # an item's payload arrives with the input stream
    conn_rdma_read           # an item's payload is being fetched from the address the client named
    conn_swallow             # discards sbytes of input
    conn_mwrite              # replies must leave before anything else is done
    conn_watch               # a side thread has the connection's socket
    conn_closing             # replies leave, then the connection ends
    conn_closed

cdef enum protocol:
    negotiating_prot         # the first byte of the input decides
    ascii_prot
    binary_prot

cdef enum conn_want:         # what drive_machine returns
    WANT_INPUT               # more input: fill rbuf after rcurr + rbytes, call again
    WANT_PAYLOAD             # rlbytes of the item, straight into conn_payload_iov; report with conn_payload_received
    WANT_REMOTE_PAYLOAD      # rlbytes of the item from remote (an RDMA READ); report as above. Only if engine.remote
    WANT_FLUSH               # too many replies are waiting; call again when they have left
    WANT_LENT                # nothing: a side thread reads and writes the socket until it gives the connection back
    WANT_YIELD               # reqs_per_event commands were done and more input is there; serve others, call again
    WANT_CLOSE               # send what is queued, then close

cdef enum:
    WRITE_BUFFER_SIZE = 512  # room for a reply's formatted part: key 250 (or in base64 252), flags, opaque, numbers
    MAX_PENDING_RESPS = 256  # with as many replies waiting, or ...
    MAX_PENDING_BYTES = 4 * 1024 * 1024   # ... as many bytes of items and statistics, the machine asks for WANT_FLUSH
    MAX_FREE_RESPS = 4096    # per thread
    MSET_TOKENS_SIZE = 40    # an opaque of 1 + 32 bytes and the flags b, c, k, s
    AUTH_LINE = -1           # conn.auth_wanted: the command line of an authentication

cdef struct remote_buf:      # memory of the client that it named in a request (`@addr:rkey[:length]`)
    uint64_t addr
    uint32_t rkey
    uint32_t length
    bint set

cdef struct slab_counters:   # per slab class
    uint64_t set_cmds
    uint64_t touch_hits
    uint64_t delete_hits
    uint64_t cas_hits
    uint64_t cas_badval
    uint64_t incr_hits
    uint64_t decr_hits

cdef struct thread_stats:
    # Written by the owning worker with counter_add, read by any thread with relaxed_load. uint64_t only: the
    # aggregation adds the structure up as an array.
    uint64_t get_cmds
    uint64_t get_misses
    uint64_t get_expired
    uint64_t get_flushed
    uint64_t touch_cmds
    uint64_t touch_misses
    uint64_t delete_misses
    uint64_t incr_misses
    uint64_t decr_misses
    uint64_t cas_misses
    uint64_t meta_cmds
    uint64_t flush_cmds
    uint64_t bytes_read
    uint64_t bytes_written
    uint64_t conn_yields
    uint64_t auth_cmds
    uint64_t auth_errors
    uint64_t idle_kicks
    uint64_t response_obj_oom
    uint64_t read_buf_oom
    uint64_t store_too_large
    uint64_t store_no_memory
    slab_counters slab[MAX_NUMBER_OF_SLAB_CLASSES]
    uint64_t lru_hits[NUMBER_OF_QUEUES]     # gets that found an item, by ITEM_queue: get_hits, hits_to_hot, ...
    # not counted but in use: `stats reset` leaves them alone
    uint64_t response_obj_count
    uint64_t response_obj_bytes  # those in reserve included
    uint64_t read_buf_count      # of connections; each thread has one more
    uint64_t read_buf_bytes

cdef enum lend_result:       # what came of lending a connection to a side thread
    LEND_OK = 0              # it is gone: the worker must not touch its socket
    LEND_TOO_MANY
    LEND_FAILED

# What an engine can do for a connection, beside moving its bytes: a constant table for each kind of connection. The
# functions get the conn, which is the first member of the engine's own structure, and run in the connection's worker.
cdef struct conn_engine:
    # "rdma ..." line: agrees on a queue pair. Returns the reply line (with \r\n): a constant, or what it has written
    # into `reply`. NULL: the command is unknown.
    const char *(*exchange)(conn *c, const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil
    # watch: lends the connection's socket to the logger thread, which answers. NULL, as dump then is: it has none.
    lend_result (*watch)(conn *c, uint32_t eflags) noexcept nogil
    # lru_crawler metadump, mgdump: lends it to the crawler thread, which answers.
    crawler_result_type (*dump)(conn *c, dump_kind kind, const char *classes, size_t length) noexcept nogil
    bint remote              # it fetches payloads from `conn.remote` and writes values to sinks (conn_next_write)
    bint datagrams           # each reply is a message of its own, so that no two share an mc_resp

# What commands need of the server, given as functions so that the protocol imports nothing above it. All may be called
# from any worker. `arg` is hooks.arg.
cdef struct conn_hooks:
    void *arg
    # stats [sub]: appends the lines, without END. Returns 0; -1: unknown sub (ERROR); 1: "RESET\r\n" is to be answered.
    int (*stats)(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil
    # shutdown: graceful, or at once. NULL: not enabled.
    void (*shutdown)(void *arg, bint graceful) noexcept nogil
    # Whether a user has this password. NULL: connections need not authenticate.
    bint (*authenticate)(void *arg, const char *user, size_t nuser, const char *password,
                         size_t npassword) noexcept nogil
    # The verbosity command.
    void (*set_verbosity)(void *arg, int level) noexcept nogil
    const char *version      # rmemcached.MEMCACHED_VERSION: of the memcached whose behaviour is followed
    uint64_t verbose         # atomic. From 2 on, command and reply lines are written to stderr

# conn.mget: a text get whose keys are not all done
cdef enum mget_flags:
    MGET_ACTIVE = 1
    MGET_CAS = 2
    MGET_TOUCH = 4
    MGET_HIT = 16            # the key before was found
    MGET_SKIP = 8            # the command has failed: the rest of its line is discarded
    MGET_OOM = 32            # ... for want of memory

# One worker thread, as its connections see it.
cdef struct conn_thread:
    store *store
    const conn_hooks *hooks
    unsigned int reqs_per_event
    uint32_t owner           # thread_id() of the worker, from its start to its end; else 0. It alone uses all of this
    uint64_t mem_limit       # bytes of read buffers and replies, at most; 0: no limit
    protocol binding_protocol    # of new connections
    bint cas_enabled
    bint flush_enabled
    bint dump_enabled        # stats detail, stats cachedump, lru_crawler metadump and mgdump
    stats_prefixes *prefixes  # shared by all workers; NULL: there is no server
    bint debug_commands      # debugtime and debugitem are answered
    item *debug_item_reffed  # what debugitem ref took last, for `debugitem unref reffed`
    bint watch_enabled
    logger *log              # never NULL
    int cur_sfd              # of the connection being served: log entries name it
    mc_resp *free_resps      # free list
    unsigned int nfree_resps
    thread_stats stats

# A stretch of output: one reply, a part of one, or several short ones. In the list, tosend is never 0.
cdef struct mc_resp:
    mc_resp *next
    item *item               # its data is sent; the reference is released when it has left. May be NULL
    uint32_t tosend          # bytes of the reply that have not left yet
    uint32_t sent            # bytes of it that have
    uint32_t wbytes          # formatted bytes at the start of wbuf, sent before the item's data
    uint32_t data_offset     # item data bytes [data_offset, data_offset + data_length) follow wbuf[:wbytes]
    uint32_t data_length     # 0: no data
    uint32_t tail_bytes      # constant bytes after the data
    const char *tail
    char *owned              # malloc'd text sent in place of wbuf (stats); freed when it has left. May be NULL
    remote_buf sink          # sink.set: the data goes there by RDMA WRITE (no \r\n), only wbuf is sent in the stream
    char wbuf[WRITE_BUFFER_SIZE]

cdef struct conn:
    conn_thread *thread
    const conn_engine *engine    # may be exchanged for another table between commands
    conn_states state
    protocol protocol
    int sfd                  # of the connection or, for a lane of a queue pair, its lifeline: names it in log lines
    # input: [rcurr, rcurr + rbytes) is unparsed. The memory is the engine's. Across calls it keeps unparsed bytes.
    char *rcurr
    size_t rbytes
    # the payload being received (conn_nread, conn_rdma_read)
    item *item
    size_t rlbytes           # bytes still missing, \r\n included (conn_nread) or not (conn_rdma_read)
    size_t roffset           # bytes of the item's data already there
    remote_buf remote
    uint64_t cas             # CAS value that the pending store gives the item; 0: the next of the server's
    short cmd                # store_op of the pending store
    bint set_stale
    bint mset_res            # the pending store is a meta set, whose reply is described in mset_tokens
    uint8_t nmset_tokens     # bytes used of mset_tokens
    char mset_tokens[MSET_TOKENS_SIZE]   # return flags in the client's order; the opaque with its length behind the O
    uint8_t opcode           # of the binary command being done
    uint32_t opaque          # of it, as it came
    size_t sbytes            # bytes to discard (conn_swallow)
    int32_t auth_wanted      # 0: authenticated, or need not be; > 0: bytes of the token that is awaited; AUTH_LINE
    bint noreply             # of the command being done: nothing but a meta command's error is answered
    uint8_t mget             # mget_flags
    rel_time_t mget_exptime  # of a gat
    uint8_t close_reason     # close_reasons
    uint32_t eager           # values up to this many bytes travel in the reply even when a sink is named
    unsigned int charged     # commands and keys since the output was empty; counted where there is a mem_limit
    unsigned int reqs_left   # commands that may still be done in this call of drive_machine
    unsigned int npending    # mc_resps in the list
    size_t pending_bytes     # bytes of items and owned text that they refer to
    mc_resp *resp_head       # oldest reply not wholly sent
    mc_resp *resp            # newest; being filled
    rel_time_t last_cmd_time

cdef void conn_init(conn *c, conn_thread *thread, const conn_engine *engine) noexcept nogil
cdef void conn_release(conn *c) noexcept nogil
cdef void conn_thread_release(conn_thread *t) noexcept nogil
cdef bint conn_memory(conn_thread *t, size_t more) noexcept nogil
# Releases what a reply refers to and the reply itself, which is not in the list any more.
cdef void resp_free(conn *c, mc_resp *resp) noexcept nogil

# As `stats conns` shows it.
cdef const char *conn_state_name(conn_states state) noexcept nogil

cdef inline bint conn_logs(const conn *c) noexcept nogil:
    """Whether commands and replies are written to stderr (-vv)."""
    return relaxed_load(&c.thread.hooks.verbose) > 1

# Writes `mark`, the descriptor and the text (up to \r\n) to stderr, as memcached does: "<27 get a", ">27 END".
cdef void conn_log(const conn *c, const char *mark, const char *text, size_t length) noexcept nogil

cdef inline void conn_set_state(conn *c, conn_states state) noexcept nogil:
    c.state = state

cdef inline bint conn_charge(conn *c) noexcept nogil:
    """Charges a command or a key as one mc_resp, as memcached does. False: the memory limit is reached."""
    cdef conn_thread *t = c.thread
    if t.mem_limit == 0:
        return True
    c.charged += 1
    if c.charged * sizeof(mc_resp) <= t.mem_limit:
        return True
    counter_add(&t.stats.response_obj_oom, 1)
    return False

cdef inline bint conn_output_full(conn *c) noexcept nogil:
    return c.npending >= MAX_PENDING_RESPS or c.pending_bytes >= MAX_PENDING_BYTES

# --- for the engine ---
cdef int conn_gather(conn *c, iovec *iov, int max_iov, size_t max_bytes) noexcept nogil
cdef void conn_sent(conn *c, size_t n) noexcept nogil
cdef mc_resp *conn_next_write(conn *c) noexcept nogil
cdef item *conn_write_posted(conn *c) noexcept nogil
cdef int conn_payload_iov(conn *c, iovec *iov, int max_iov) noexcept nogil
cdef void conn_payload_received(conn *c, size_t n) noexcept nogil

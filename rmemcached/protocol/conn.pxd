"""A connection as the protocol and the drive machine see it: bytes in, reply segments out, no socket.

One worker thread owns a connection and everything behind its pointers (conn_thread.owner); there are no locks. An
engine (`rmemcached/server`, `rmemcached/rdma_conn`) embeds `conn` as the first member of its own structure, supplies
input in ``rcurr``/``rbytes``, calls ``drive_machine``, and sends the extents from ``conn_gather``. The table
``conn.engine`` has the engine's other functions for a connection.

The command modules append replies through `reply`; the functions below are for engines and for the machine.

Failures in this folder and in the machine: a `bint` is False, a pointer NULL; a result with more outcomes is an enum.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, relaxed_load
from rmemcached.logger cimport close_reasons, logger
from rmemcached.protocol.dump cimport dump_kind
from rmemcached.protocol.stats_prefix cimport stats_prefixes
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.store.store cimport (
    MAX_NUMBER_OF_SLAB_CLASSES, NUMBER_OF_QUEUES, crawler_result_type, item, rel_time_t, store, store_get_config,
)

cdef extern from *:
    """
    #define RMC_NOT_GIVEN "CLIENT_ERROR rdma: this client was not given the items' memory"
    """
    # The answer to a command of direct reads (rdma_hits, rdma_view) if the client was not given the items' memory.
    const char *NOT_GIVEN "RMC_NOT_GIVEN"

cdef struct conn             # complete below
cdef struct conn_thread
cdef struct mc_resp

cdef enum conn_states:       # memcached's names, if memcached has the state; see conn_state_name
    conn_new_cmd             # between commands, or between parts of a get (mget)
    conn_waiting             # the input is empty, or is no whole command
    conn_read                # waits for input, or has got input
    conn_parse_cmd           # there is input, perhaps a whole command
    conn_nread               # an item's payload arrives with the input
    conn_rdma_read           # an RDMA READ fetches an item's payload from the address named by the client
    conn_swallow             # discards sbytes of input
    conn_mwrite              # waits until replies have left
    conn_resume              # a get with keys left (mget) goes on
    conn_read_keys           # a long get waits for the rest of its line, or has got input
    conn_watch               # a side thread has the connection's socket
    conn_auth                # a side thread works on the connection's authentication (sasl_session)
    conn_closing             # replies leave, then the connection ends
    conn_closed

cdef enum protocol:
    negotiating_prot         # the first byte of the input decides
    ascii_prot
    binary_prot

cdef enum conn_want:         # the result of drive_machine
    WANT_INPUT               # more input: append it to the unparsed input, call again
    WANT_PAYLOAD             # rlbytes of the item's data, where conn_payload_iov says; report by conn_payload_received
    WANT_REMOTE_PAYLOAD      # rlbytes of its data, by RDMA READ from `remote`; report as above. Only if engine.remote
    WANT_FLUSH               # too many replies are waiting; call again when they have left
    WANT_LENT                # nothing: a side thread has the socket; call again when the socket is back
    WANT_AUTH                # nothing, and no more input: the engine's `resume_auth` follows; call again then
    WANT_YIELD               # more input is there after reqs_per_event commands; serve others, call again
    WANT_CLOSE               # send the queued output, then close

cdef enum:
    WRITE_BUFFER_SIZE = 512  # room for a reply's formatted part: key 250 (or in base64 252), flags, opaque, numbers
    MAX_PENDING_RESPS = 256  # with so many waiting replies the machine returns WANT_FLUSH; or with ...
    MAX_PENDING_BYTES = 4 * 1024 * 1024   # ... so many bytes of items and statistics
    MAX_WAITING_BYTES = 16 * 1024 * 1024  # ... or so many bytes of values of replies that wait
    EXTERNAL_SHARE = 4       # ... or when values from external storage have this part of the memory, and it has one
    REFRESH_WHY_MAX = 4096 + 320   # bytes of refresh_certs' reason, a path and OpenSSL's words, with a NUL
    MSET_TOKENS_SIZE = 40    # bytes of an O, a length, an opaque of up to 32 bytes, and the flags c, k, s

cdef enum auth_states:       # conn.auth_state
    AUTH_DONE                # the connection is authenticated, or need not be
    AUTH_WANTED              # an authentication must come first: a line (-Y), or the binary commands of SASL (-S)
    AUTH_TOKEN               # the line has come; auth_bytes bytes with user and password follow

cdef struct remote_buf:      # the client's memory, named in a request as `@addr:rkey[:length]`
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
    # The owning worker writes with counter_add, any thread reads with relaxed_load. All fields are uint64_t: a sum
    # over all workers treats the structures as arrays.
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
    uint64_t idle_kicks_stalled  # the part of idle_kicks in the middle of a value or a reply
    uint64_t response_obj_oom
    uint64_t read_buf_oom
    uint64_t store_too_large
    uint64_t store_no_memory
    # values in external storage
    uint64_t get_extstore        # fetches begun
    uint64_t get_aborted_extstore  # replies released before their value came
    uint64_t get_oom_extstore    # fetches without memory for the value
    uint64_t recache_from_extstore
    uint64_t miss_from_extstore
    uint64_t badcrc_from_extstore  # the part of the misses whose bytes had a wrong checksum
    slab_counters slab[MAX_NUMBER_OF_SLAB_CLASSES]
    uint64_t direct_hits         # the part of get_hits read directly by clients
    uint64_t lru_hits[NUMBER_OF_QUEUES]     # gets with a hit, by ITEM_queue: get_hits, hits_to_hot, ...
    # amounts in use now: `stats reset` leaves these four alone
    uint64_t response_obj_count
    uint64_t response_obj_bytes  # free_resps included
    uint64_t read_buf_count      # of connections; each thread has one more
    uint64_t read_buf_bytes

cdef enum lend_result:       # of lending a connection to the logger thread
    LEND_OK = 0              # the logger thread has the socket now; the worker must not touch the socket
    LEND_TOO_MANY            # too many clients watch already
    LEND_FAILED              # out of memory

cdef enum stats_result:      # of conn_hooks.stats
    STATS_ANSWERED           # the lines are there
    STATS_RESET              # the counters have been reset; there are no lines
    STATS_UNKNOWN            # there are no such statistics

# Turns the text of a reply that waits, about a found value, into the text about a missing key. NULL: there is no text
# then, except the tail.
ctypedef void (*missed_fn)(mc_resp *resp) noexcept nogil

# A reply's wait for a side thread. The side thread's module embeds the structure as its first member, fills it in, sets
# mc_resp.wait, and calls conn_thread.post when the result is there. Meanwhile the reply and the replies behind it stay
# where they are. A reply may be released before, by its connection's end.
cdef struct resp_wait
cdef struct resp_wait_calls:
    # The result has been posted. Makes the reply whole, or calls resp_missed; wait.resp is NULL if the reply was
    # released. In the connection's worker.
    void (*complete)(resp_wait *wait) noexcept nogil
    # The reply is released before its result came. `complete` follows all the same. In the connection's worker.
    void (*abandon)(resp_wait *wait) noexcept nogil
    # The last call: gives the structure back. In the connection's worker, after `complete`; or in the main thread, for
    # results that no worker takes any more: then `complete` was not called.
    void (*end)(resp_wait *wait) noexcept nogil

cdef struct resp_wait:
    const resp_wait_calls *calls     # constant
    conn_thread *thread      # constant: of the connection
    # the worker's
    conn *c                  # valid while resp is not NULL
    mc_resp *resp            # NULL: the reply was released
    bint done                # the result has come
    # the side thread's until post, then the worker's
    resp_wait *next

cdef enum external_result:
    EXTERNAL_WAITS           # the reply waits for the value (mc_resp.wait)
    EXTERNAL_THERE           # the value was at hand: the reply has it (mc_resp.item)
    EXTERNAL_GONE            # the value is not there any more
    EXTERNAL_NO_MEMORY

# Where the values of headers (ITEM_HDR) are.
cdef struct external_values:
    void *arg
    # Atomic: bytes of fetched values in the replies of all connections, from the fetch until the reply has left. Such a
    # value has memory of its own, while a value in memory is the item itself.
    uint64_t *held
    # Begins to fetch the header's value for the reply. Takes over the caller's reference to the header.
    external_result (*fetch)(void *arg, conn *c, mc_resp *resp, item *it) noexcept nogil

# An engine's functions for a connection, beyond moving its bytes: a constant table for each kind of connection. The
# functions run in the connection's worker. The conn is the first member of the engine's own structure.
cdef struct conn_engine:
    # The command "rdma ...": agrees on a queue pair. Returns the reply line (with \r\n): a constant, or the text
    # written into `reply`. `exchange` itself is NULL if a connection of this kind does not know the command.
    const char *(*exchange)(conn *c, const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil
    # The command watch: lends the connection's socket to the logger thread, which answers. watch and dump are NULL if
    # the connection has no socket to lend.
    lend_result (*watch)(conn *c, uint32_t eflags) noexcept nogil
    # The commands lru_crawler metadump and mgdump: lends the socket to the crawler thread, which answers.
    crawler_result_type (*dump)(conn *c, dump_kind kind, const char *classes, size_t length) noexcept nogil
    # The command rdma_view: pins an item for the client. Returns NULL, and the pin's *id: the pin has the caller's
    # reference now. Or returns the error line: the caller keeps the reference. pin and unpin are NULL if no client of
    # such a connection has the items' memory.
    const char *(*pin)(conn *c, item *it, uint32_t *id) noexcept nogil
    # The command rdma_release: ends a pin. An unknown id changes nothing.
    void (*unpin)(conn *c, uint32_t id) noexcept nogil
    # The command rdma_direct (docs/direct-reads.md): lets the client's queue pair READ items. Returns the reply line
    # about the memory `place` bytes from the beginning of the direct memory: a constant, or the text written into
    # `reply`. `direct` itself is NULL if a connection of this kind has no queue pair.
    const char *(*direct)(conn *c, uint64_t place, char *reply, size_t reply_size) noexcept nogil
    # The command rdma_hits: whether the client was given the items' memory, by a descriptor or for READs. `given`
    # itself is NULL if no client of such a connection has the memory.
    bint (*given)(const conn *c) noexcept nogil
    # The state is no longer conn_auth: the connection goes on. NULL if a connection of this kind has no SASL. The
    # connection may end in this function and the next.
    void (*resume_auth)(conn *c) noexcept nogil
    # The reply at the head of the output is whole: sends, and goes on with the machine. NULL if no reply of such a
    # connection ever waits (mc_resp.wait). Both waits may be under way at once: each function leaves the other's alone.
    void (*resume_reply)(conn *c) noexcept nogil
    bint remote              # the engine fetches payloads from conn.remote and writes values to sinks (conn_next_write)
    bint datagrams           # the engine sends each reply as a message of its own: no two replies share an mc_resp

cdef enum sasl_command:
    SASL_AUTH                # begins an authentication by the named mechanism
    SASL_STEP                # answers the mechanism's challenge

cdef enum sasl_outcome:
    SASL_AUTHENTICATED
    SASL_CHALLENGE           # the mechanism wants another step
    SASL_DENIED

cdef enum sasl_places:       # where a session is: of server/sasl, under its lock
    SASL_IDLE                # with its connection, which waits for the client
    SASL_QUEUED              # for a side thread
    SASL_WORKING             # in a side thread
    SASL_DELIVERED           # on its way back to the worker

# An authentication by SASL: from the client's AUTH to its outcome, with a few steps in between. While the place is not
# SASL_IDLE, the worker uses `c` alone.
cdef struct sasl_session:
    conn *c                  # NULL: the connection has ended. The worker writes it, under the lock of server/sasl
    conn_thread *thread      # constant: the connection's worker
    sasl_session *next       # in the queue of side threads, or of the worker
    sasl_places place
    sasl_command command
    sasl_outcome outcome
    void *mechanism          # libsasl2's connection; NULL: there is none yet, or the authentication has its outcome
    const char *challenge    # nchallenge bytes of libsasl2, until the next step
    unsigned int nchallenge
    char *request            # malloc'd: the mechanism's name with a NUL, then nrequest bytes for the mechanism
    unsigned int nname       # bytes of the name
    unsigned int nrequest

# SASL (-S). Any worker calls the functions.
cdef struct sasl_hooks:
    void *arg
    # Lets a side thread do the command, in the connection's session, which is made for the first. The outcome comes to
    # the worker, which calls `take`. False: out of memory; nothing happens.
    bint (*begin)(void *arg, conn *c, sasl_command command, const char *name, size_t nname, const char *data,
                  size_t length) noexcept nogil
    # Takes a delivered session. False: its connection has ended; the session is not the caller's.
    bint (*take)(void *arg, sasl_session *session) noexcept nogil
    # Ends a session, at once or when the side thread is done.
    void (*end)(void *arg, sasl_session *session) noexcept nogil
    const char *mechanisms   # names with blanks in between. Constant
    size_t nmechanisms

# The server's functions for commands. The protocol imports no module of the server, so it gets pointers. Any worker
# calls the functions, with hooks.arg as the first argument.
cdef struct conn_hooks:
    void *arg
    # stats [sub]: appends the lines, without END.
    stats_result (*stats)(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil
    # The command shutdown: graceful, or at once. NULL: shutdown is not enabled.
    void (*shutdown)(void *arg, bint graceful) noexcept nogil
    # Whether the user has this password (-Y). NULL: there is no authentication in the text protocol.
    bint (*authenticate)(void *arg, const char *user, size_t nuser, const char *password,
                         size_t npassword) noexcept nogil
    const sasl_hooks *sasl   # NULL: there is no authentication in the binary protocol (-S)
    # The command refresh_certs: reads TLS's certificates again. False: `why`, of REFRESH_WHY_MAX bytes, has the reason.
    # NULL: TLS is not enabled.
    bint (*refresh_certs)(void *arg, char *why) noexcept nogil
    # The command verbosity. NULL: the command changes nothing.
    void (*set_verbosity)(void *arg, int level) noexcept nogil
    const char *version      # rmemcached.MEMCACHED_VERSION: of the memcached whose behaviour is followed
    uint64_t verbose         # atomic. From 2 on, command and reply lines are written to stderr

# conn.mget: the present text get. Between two calls of drive_machine the get has keys left; the connection is in
# conn_new_cmd, conn_mwrite or conn_read_keys.
cdef enum mget_flags:
    MGET_ACTIVE = 1          # set in every get, so mget is not 0
    MGET_CAS = 2             # gets, gats
    MGET_TOUCH = 4           # gat, gats
    MGET_SKIP = 8            # the command has failed: the rest of its line is discarded
    MGET_HIT = 16            # the last key looked up was found
    MGET_OOM = 32            # the memory limit was reached

# A worker thread, as its connections see it.
cdef struct conn_thread:
    # set before the thread starts, then constant
    store *store
    const conn_hooks *hooks
    unsigned int reqs_per_event
    uint64_t mem_limit       # bytes of read buffers and replies, at most; 0: no limit
    protocol binding_protocol    # of new connections
    bint cas_enabled
    bint flush_enabled
    bint dump_enabled        # stats detail, stats cachedump, lru_crawler metadump and mgdump
    bint debug_commands      # debugtime and debugitem are answered
    bint watch_enabled
    stats_prefixes *prefixes  # shared by all workers; NULL: in a test without a server
    logger *log              # never NULL
    const external_values *external  # NULL: no item has ITEM_HDR
    # Hands a result over to this worker, which then calls its `complete`. For the side thread. NULL: no reply waits.
    void (*post)(conn_thread *t, resp_wait *wait) noexcept nogil
    # the worker's own, apart from `stats`
    uint32_t owner           # thread_id() of the worker, from its start to its end; 0 before and after
    item *debug_item_reffed  # the item taken by the last debugitem ref, for `debugitem unref reffed`
    int cur_sfd              # descriptor of the connection being served, for log entries
    mc_resp *free_resps      # free list
    unsigned int nfree_resps
    thread_stats stats

# A stretch of output: a reply, a part of a reply, or several short replies. tosend is 0 only until text is added, or
# after a miss that needs no text (resp_missed).
cdef struct mc_resp:
    mc_resp *next
    item *item               # its data is sent; the reference is released when the reply has left. May be NULL
    uint32_t tosend          # bytes not sent yet
    uint32_t sent            # bytes sent
    uint32_t wbytes          # formatted bytes at the start of wbuf, sent before the item's data
    uint32_t data_offset     # item data bytes [data_offset, data_offset + data_length) follow wbuf[:wbytes]
    uint32_t data_length     # 0: no data
    uint32_t tail_bytes      # constant bytes after the data
    uint32_t external_bytes  # of external_values.held
    const char *tail
    char *owned              # malloc'd text sent in place of wbuf (stats); freed when the reply has left. May be NULL
    remote_buf sink          # sink.set: the data goes there by RDMA WRITE, without \r\n; only wbuf is sent
    resp_wait *wait          # what the reply waits for; NULL: nothing. A reply that waits is alone in its mc_resp
    missed_fn missed         # of a reply that waits
    char wbuf[WRITE_BUFFER_SIZE]

# An idle connection costs little more than this structure, so small fields have one byte. Lengths have 32 bits, because
# they are of a single item or command.
cdef struct conn:
    conn_thread *thread
    const conn_engine *engine    # the engine may switch to another table
    int sfd                  # descriptor of the connection or, for a lane of a queue pair, of the lifeline
    uint32_t lane            # the lane's number; 0: a connection without lane, or lane 0. Log lines name sfd and lane
    # Unparsed input is [rcurr, rcurr + rbytes). The engine owns the memory, and keeps these bytes between two calls.
    char *rcurr
    uint32_t rbytes
    uint32_t sbytes          # bytes to discard (conn_swallow)
    # the payload being received (conn_nread, conn_rdma_read)
    item *item               # with a reference
    uint32_t rlbytes         # bytes still missing, \r\n included (conn_nread) or not (conn_rdma_read)
    uint32_t roffset         # bytes of the item's data already there
    remote_buf remote        # the payload's source (conn_rdma_read)
    uint64_t cas             # the CAS value for the item of the pending store; 0: the server's next
    uint8_t state            # conn_states
    uint8_t protocol         # protocol
    uint8_t cmd              # store_op of the pending store
    uint8_t set_stale        # bool, as mset_res and noreply
    uint8_t mset_res         # the pending store is a meta set, whose reply is described in mset_tokens
    uint8_t nmset_tokens     # bytes used of mset_tokens
    uint8_t opcode           # of the binary command being done
    uint8_t noreply          # the present command gets no reply, unless a meta command fails
    uint8_t mget             # mget_flags
    uint8_t ahead            # so many of the next commands have been looked at for items_ahead
    uint8_t close_reason     # close_reasons
    uint8_t auth_state       # auth_states
    uint8_t negotiated       # bool: the first byte has decided for the protocol, and decides again after SASL
    char mset_tokens[MSET_TOKENS_SIZE]   # return flags in the client's order; the opaque with its length behind the O
    uint32_t opaque          # of the binary command, in network order
    uint32_t auth_bytes      # bytes of user, password and line end (AUTH_TOKEN)
    sasl_session *sasl       # the present authentication; NULL most of the time
    rel_time_t mget_exptime  # the new expiry time in a gat
    rel_time_t last_cmd_time
    uint32_t eager           # values of up to so many bytes travel in the reply even when a sink is named
    unsigned int charged     # commands and keys since the output was empty; counted if there is a mem_limit
    unsigned int reqs_left   # commands still allowed in this call of drive_machine
    unsigned int npending    # mc_resps in the list
    uint32_t pending_bytes   # bytes of items and owned text in these mc_resps, except
    uint32_t waiting_bytes   # ... bytes of values that have not come yet
    uint32_t external_bytes  # of external_values.held
    mc_resp *resp_head       # oldest reply not wholly sent
    mc_resp *resp            # newest; being filled

# ---- for engines: beginning and end ----------------------------------------------------------------------------------

# Prepares a connection. An engine calls it first: for an accepted socket, a new lane, each datagram of UDP. eager is 0;
# an engine with `remote` sets eager afterwards. The connection must authenticate itself if the server wants it.
cdef void conn_init(conn *c, conn_thread *thread, const conn_engine *engine) noexcept nogil
# Ends the connection and gives back all its holdings: the waiting replies, and the item of an incomplete payload (the
# key's present item stays). The engine calls it when no transfer reads the replies or writes into the item any more. A
# second call does nothing.
cdef void conn_release(conn *c) noexcept nogil
# The connection has authenticated itself, or is a part of an authenticated connection. The next command may be of
# another protocol, unless the server fixes the protocol (-B).
cdef void conn_authenticated(conn *c) noexcept nogil
# Frees the thread's spare mc_resps. worker_destroy calls it, when all connections of the thread have been released.
cdef void conn_thread_release(conn_thread *t) noexcept nogil
# Whether mem_limit leaves room for `more` bytes of replies or read buffers. To be asked before each allocation of them.
cdef bint conn_memory(conn_thread *t, size_t more) noexcept nogil

# ---- for engines: output ---------------------------------------------------------------------------------------------

# Describes waiting output from its beginning: up to max_iov extents of together up to max_bytes bytes. The extents stay
# valid until conn_sent accounts for them. Returns their number. Output from a value for a sink (conn_next_write) on, or
# from a reply that waits on (conn_waits), is not included.
cdef int conn_gather(conn *c, iovec *iov, int max_iov, size_t max_bytes) noexcept nogil
# The first n bytes described by conn_gather have left: releases the completed replies.
cdef void conn_sent(conn *c, size_t n) noexcept nogil
# Releases the reply at the head of the output, sent or not: a reply that waits, for an engine without a receiver.
cdef void resp_finish(conn *c, mc_resp *resp) noexcept nogil
# The reply at the head of the output, if its value must be written to its sink before its line leaves; else NULL.
# NULL also while that reply waits. Source and target are in item, data_offset, data_length and sink. The engine posts
# the RDMA WRITE, and then calls conn_write_posted.
cdef mc_resp *conn_next_write(conn *c) noexcept nogil
# The value of conn_next_write is on its way: the reply's line can be gathered. Returns the item with the reply's
# reference, which the caller gives back with item_remove when the write is complete.
cdef item *conn_write_posted(conn *c) noexcept nogil

# ---- for engines: payloads (WANT_PAYLOAD, WANT_REMOTE_PAYLOAD) -------------------------------------------------------

# Describes where the missing rlbytes of the payload go. Returns the number of extents. With too few entries the extents
# cover only the first bytes.
cdef int conn_payload_iov(conn *c, iovec *iov, int max_iov) noexcept nogil
# Describes likewise where up to `most` bytes go, behind the first `skip` bytes, whose transfers
# are under way.
cdef int conn_payload_piece(conn *c, size_t skip, size_t most, iovec *iov, int max_iov) noexcept nogil
# n more bytes of the payload are in place. The machine goes on when rlbytes is 0. An engine that cannot get the rest
# ends the connection instead.
cdef void conn_payload_received(conn *c, size_t n) noexcept nogil

# ---- for the machine and the command modules -------------------------------------------------------------------------

# The results of replies of this worker's connections have come, in a list: completes all of them, and resumes their
# connections. For the worker, which gets the list by conn_thread.post.
cdef void conn_complete(resp_wait *results) noexcept nogil
# The result of a reply that waits is that the key has no value: makes the reply a miss. Also for a reply whose wait has
# not begun.
cdef void resp_missed(conn *c, mc_resp *resp) noexcept nogil
# Releases a reply with all its contents: for resp_rollback, which has taken the reply out of the list, and for `conn`.
cdef void resp_free(conn *c, mc_resp *resp) noexcept nogil

# The state's name for users (`stats conns`, -vvv). conn_resume and conn_read_keys have the names of the states in which
# memcached does the same: conn_parse_cmd and conn_read.
cdef const char *conn_state_name(conn_states state) noexcept nogil

cdef inline bint conn_logs(const conn *c) noexcept nogil:
    """Whether commands and replies are written to stderr (-vv)."""
    return relaxed_load(&c.thread.hooks.verbose) > 1

cdef enum:
    CONN_NAME = 24

# A connection's name in lines on stderr and in `stats conns`: its descriptor, as "27", and its lane, as "27.3". out:
# CONN_NAME bytes. Returns out.
cdef const char *conn_name(const conn *c, char *out) noexcept nogil
# Writes `mark`, the name and the text (up to \r\n) to stderr, as memcached does: "<27 get a", ">27 END".
cdef void conn_log(const conn *c, const char *mark, const char *text, size_t length) noexcept nogil

cdef inline void conn_set_state(conn *c, conn_states state) noexcept nogil:
    c.state = state

cdef inline bint conn_charge(conn *c) noexcept nogil:
    """Charges a command or a key as a whole mc_resp, as memcached does: the machine calls this for each command, a get
    for each key. False: the memory limit is reached."""
    cdef conn_thread *t = c.thread
    if t.mem_limit == 0:
        return True
    c.charged += 1
    if c.charged * sizeof(mc_resp) <= t.mem_limit:
        return True
    counter_add(&t.stats.response_obj_oom, 1)
    return False

cdef inline bint resp_waits(const mc_resp *resp) noexcept nogil:
    """Whether the reply's result has not come yet."""
    return resp.wait != NULL and not resp.wait.done

cdef inline bint conn_waits(const conn *c) noexcept nogil:
    """Whether the output stops at a reply that waits. Then the engine sends nothing and does no commands until
    engine.resume_reply."""
    return c.resp_head != NULL and resp_waits(c.resp_head)

cdef inline bint conn_external_full(const conn *c) noexcept nogil:
    """Whether fetched values of all connections have their share of the memory, and the connection has such a value.
    Without a value it may go on: else clients that do not read would hold up all others."""
    return c.external_bytes != 0 and relaxed_load(c.thread.external.held) \
        >= relaxed_load(&store_get_config(c.thread.store).maxbytes) // EXTERNAL_SHARE

cdef inline bint conn_output_full(const conn *c) noexcept nogil:
    """Whether replies must leave before the next command, or the next key of a get."""
    return c.npending >= MAX_PENDING_RESPS or c.pending_bytes >= MAX_PENDING_BYTES \
        or c.waiting_bytes >= MAX_WAITING_BYTES or conn_external_full(c)

"""Text commands: a line is parsed in place in the input buffer, its reply appended to the connection's output."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset, strlen, strncmp
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, relaxed_load, relaxed_store
from rmemcached.logger cimport (
    LOG_CONNEVENTS, LOG_DELETIONS, LOG_EVICTIONS, LOG_FETCHERS, LOG_MUTATIONS, LOG_PROXYEVENTS, LOG_PROXYREQS,
    LOG_PROXYUSER, LOG_RAWCMDS, LOG_SYSEVENTS, LOG_TYPE_DELETE, LOG_TYPE_META_DELETE, NORMAL_CLOSE, log_delete_cmd,
    log_deletion, log_item_store, log_wants,
)
from rmemcached.protocol.conn cimport (
    AUTH_LINE, LEND_OK, LEND_TOO_MANY, LINE_MAX_LENGTH, MEMCACHED_VERSION, MGET_ACTIVE, MGET_CAS, MGET_HIT, MGET_OOM,
    MGET_SKIP, MGET_TOUCH, WRITE_BUFFER_SIZE, conn, conn_charge, conn_closing, conn_hooks, conn_log, conn_logs,
    conn_mwrite, conn_new_cmd, conn_nread, conn_output_full, conn_rdma_read, conn_set_state, conn_swallow, conn_watch,
    lend_result, mc_resp, overused, remote_buf, thread_stats,
)
from rmemcached.protocol.reply cimport (
    RESP_COPY_MAX, out_errstring, out_line, out_string, resp_add, resp_rollback, resp_start, resp_text, stat_reply,
    text_reply,
)
from rmemcached.protocol.stats_text cimport stat_buf, stat_end
from rmemcached.protocol.parse cimport (
    LINE_TOKENS, base64_decode, base64_encode, itoa_u32, itoa_u64, parse_exptime, parse_flags, parse_hex, parse_i32,
    parse_i64, parse_u32, parse_u64, token, token_is, tokenize,
)
from rmemcached.protocol.dump cimport DUMP_MG, DUMP_META, dump_kind
from rmemcached.protocol.stats_prefix cimport (
    stats_prefix_dump, stats_prefix_record_delete, stats_prefix_record_get, stats_prefix_record_set,
)
from rmemcached.store.store cimport (
    CRAWLER_BADCLASS, CRAWLER_NOTSTARTED, CRAWLER_OK, CRAWLER_RUNNING, DELTA_ITEM_CAS_MISMATCH, EXISTS,
    INCR_MAX_STORAGE_LEN, ITEM_CHUNKED, ITEM_FETCHED, ITEM_KEY_BINARY, ITEM_LINKED, ITEM_STALE, ITEM_TOKEN_SENT,
    KEY_MAX_LENGTH, MAX_NUMBER_OF_SLAB_CLASSES, NON_NUMERIC, NOT_FOUND, NO_MEMORY, NREAD_ADD, NREAD_APPEND,
    NREAD_APPENDVIV, NREAD_CAS, NREAD_PREPEND, NREAD_PREPENDVIV, NREAD_REPLACE, NREAD_SET, OK, REALTIME_MAXDELTA,
    STORED, TOO_LARGE, ITEM_client_flags, ITEM_clsid, ITEM_data, ITEM_get_cas, ITEM_has, ITEM_key, ITEM_ntotal,
    ITEM_queue, ITEM_set_cas, crawler_result_type, delta_result_type, do_add_delta, do_item_bump, do_item_link,
    do_item_remove, do_item_unlink, do_store_item, get_cas_id, item, item_alloc, item_get, item_get_locked,
    item_clear_flags, item_exptime, item_iov, item_remove, item_set_exptime, item_set_flags, item_size_ok,
    item_time, item_touch, item_unlink, item_unlock, realtime, rel_time_t, store, store_advance, store_cachedump,
    store_debug_lock, store_debug_unlock, store_flush_all, store_get_config, store_hash, store_item, store_item_type,
    store_op, store_pause, store_time,
)

cdef enum:
    VALUE_ROOM = 51          # "VALUE " key " flags bytes cas\r\n" without the key

cdef const char *BAD_FORMAT = b"CLIENT_ERROR bad command line format"
cdef const char *NO_QUEUE_PAIR = b"CLIENT_ERROR rdma: no queue pair on this connection"
cdef const char *BAD_TOKEN = b"CLIENT_ERROR bad token in command line format"
cdef const char *TOO_BIG = b"SERVER_ERROR object too large for cache"
cdef const char *NO_MEMORY_STORING = b"SERVER_ERROR out of memory storing object"


# ---- common ----------------------------------------------------------------------------------------------------------

cdef inline bint is_noreply(const token *t) noexcept nogil:
    return token_is(t, b"noreply", 7)


cdef inline rel_time_t expiry(store *s, int32_t exptime) noexcept nogil:
    """The store's time for an exptime of the wire; a negative one has passed already."""
    return realtime(s, exptime if exptime >= 0 else <int32_t>REALTIME_MAXDELTA + 1)


cdef inline void swallow(conn *c, size_t n) noexcept nogil:
    """Discards the data block of a command that has been answered with an error."""
    c.sbytes = n
    if c.state != conn_closing:
        conn_set_state(c, conn_swallow)


cdef inline bint fits_copy(item *it, size_t room) noexcept nogil:
    """The value is short enough to be copied behind `room` bytes of text."""
    return (it.nbytes <= RESP_COPY_MAX and room + <size_t>it.nbytes <= WRITE_BUFFER_SIZE
            and not ITEM_has(it, ITEM_CHUNKED))


cdef inline void add_value(conn *c, mc_resp *resp, char *p, item *it, bint copy) noexcept nogil:
    """Ends the text of resp at p and adds the item's data, whose reference is consumed."""
    cdef uint32_t n = <uint32_t>it.nbytes
    if copy:
        memcpy(p, ITEM_data(it), n)
        resp_add(resp, p + n)
        item_remove(c.thread.store, it)
        return
    resp_add(resp, p)
    resp.item = it
    resp.data_offset = 0
    resp.data_length = n
    resp.tosend += n
    c.pending_bytes += n


cdef const char *alloc_error(conn *c, store_op op, const char *key, size_t nkey, uint32_t flags, size_t nbytes,
                             bint drop_old) noexcept nogil:
    """item_alloc has failed: counts it, unlinks what is stored under the key lest it be read as the newest, and returns
    the error line."""
    cdef store *s = c.thread.store
    cdef bint fits = item_size_ok(s, nkey, flags, nbytes)
    if log_wants(c.thread.log, LOG_MUTATIONS):
        log_item_store(c.thread.log, NO_MEMORY if fits else TOO_LARGE, op, key, nkey, 0, 0, 0)
    if drop_old:
        item_unlink(s, key, nkey)
    if fits:
        counter_add(&c.thread.stats.store_no_memory, 1)
        return NO_MEMORY_STORING
    counter_add(&c.thread.stats.store_too_large, 1)
    return TOO_BIG


cdef inline void log_deleted(conn *c, item *it, log_delete_cmd cmd) noexcept nogil:
    if log_wants(c.thread.log, LOG_DELETIONS):
        log_deletion(c.thread.log, cmd, ITEM_key(it), it.nkey, ITEM_clsid(it), it.nbytes)


# ---- get, gets, gat, gats --------------------------------------------------------------------------------------------

cdef bint get_key(conn *c, const char *key, size_t nkey) noexcept nogil:
    """Appends the VALUE block of one key, if it is there. False: out of memory, the connection is closing."""
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef item *it
    cdef mc_resp *resp
    cdef char *p
    cdef size_t room
    cdef bint copy
    if c.mget & MGET_TOUCH:
        it = item_touch(s, key, nkey, c.mget_exptime)
        counter_add(&stats.touch_cmds, 1)
    else:
        it = item_get(s, key, nkey, True)
        counter_add(&stats.get_cmds, 1)
    if it != NULL and overused(it):
        item_remove(s, it)
        it = NULL
    stats_prefix_record_get(c.thread.prefixes, key, nkey, it != NULL)
    if it == NULL:
        if c.mget & MGET_TOUCH:
            counter_add(&stats.touch_misses, 1)
        else:
            counter_add(&stats.get_misses, 1)
        c.mget &= ~MGET_HIT
        return True
    c.mget |= MGET_HIT
    if c.mget & MGET_TOUCH:
        counter_add(&stats.slab[ITEM_clsid(it)].touch_hits, 1)
    else:
        counter_add(&stats.lru_hits[ITEM_queue(it)], 1)
    room = VALUE_ROOM + nkey
    copy = fits_copy(it, room)
    resp = resp_text(c, room + (<size_t>it.nbytes if copy else 0))
    if resp == NULL:
        item_remove(s, it)
        return False
    if conn_logs(c):
        fprintf(stderr, b">%d sending key %.*s\n", c.sfd, <int>nkey, key)
    p = resp.wbuf + resp.wbytes
    memcpy(p, b"VALUE ", 6)
    memcpy(p + 6, key, nkey)
    p += 6 + nkey
    p[0] = c' '
    p = itoa_u32(ITEM_client_flags(it), p + 1)
    p[0] = c' '
    p = itoa_u32(<uint32_t>it.nbytes - 2, p + 1)
    if c.mget & MGET_CAS:
        p[0] = c' '
        p = itoa_u64(ITEM_get_cas(it), p + 1)
    memcpy(p, b"\r\n", 2)
    add_value(c, resp, p + 2, it, copy)
    return True


cdef const char *get_keys(conn *c, const char *p, const char *end, bint whole) noexcept nogil:
    """Answers the keys in [p, end) until the output is full. Returns where it stopped; NULL: a key is too long, or the
    connection is closing. Not whole: the line goes on behind `end`, and a key is complete only when a space follows."""
    cdef const char *space
    while True:
        while p < end and p[0] == c' ':
            p += 1
        if p == end or conn_output_full(c):
            return p
        space = <const char *>memchr(p, c' ', <size_t>(end - p))
        if space == NULL:
            if not whole and end - p <= KEY_MAX_LENGTH + 1:
                return p
            space = end
        if space - p > KEY_MAX_LENGTH:
            return NULL
        if not conn_charge(c):
            c.mget |= MGET_OOM
            return NULL
        if not get_key(c, p, <size_t>(space - p)):
            return NULL
        p = space


cdef void get_end(conn *c) noexcept nogil:
    """END belongs to the reply to the last key, if there is one."""
    cdef mc_resp *resp = c.resp if c.mget & MGET_HIT else NULL
    c.mget = 0
    if resp == NULL or (resp.data_length == 0 and resp.wbytes + 5 > WRITE_BUFFER_SIZE):
        out_line(c, b"END\r\n", 5)
        return
    if conn_logs(c):
        conn_log(c, b">", b"END", 3)
    if resp.data_length:
        resp.tail = b"END\r\n"
        resp.tail_bytes = 5
        resp.tosend += 5
    else:
        memcpy(resp.wbuf + resp.wbytes, b"END\r\n", 5)
        resp_add(resp, resp.wbuf + resp.wbytes + 5)
    conn_set_state(c, conn_new_cmd)


cdef void get_failed(conn *c) noexcept nogil:
    if c.mget & MGET_OOM:
        c.mget &= ~<int>MGET_OOM
        c.charged = 0
        out_string(c, b"SERVER_ERROR out of memory writing get response")
    # memcached sends this line with one line end too many; clients have seen both for years.
    elif c.state != conn_closing:
        out_line(c, b"CLIENT_ERROR bad command line format\r\n\r\n", 40)


cdef void process_get_command(conn *c, const char *p, const char *end, uint8_t flags) noexcept nogil:
    """The keys of a whole line are [p, end); the input begins behind the line."""
    cdef mc_resp *mark = c.resp
    cdef uint32_t mark_bytes = mark.wbytes if mark != NULL else 0
    cdef const char *stop
    while p < end and p[0] == c' ':
        p += 1
    if p == end:
        out_string(c, BAD_FORMAT)
        return
    c.mget = flags
    stop = get_keys(c, p, end, True)
    if stop == end:
        get_end(c)
    elif stop != NULL:
        # The rest of the line is input again, until the replies have left.
        c.rbytes += <size_t>(c.rcurr - stop)
        c.rcurr = <char *>stop
        conn_set_state(c, conn_mwrite)
    else:
        resp_rollback(c, mark, mark_bytes)
        get_failed(c)
        c.mget = 0


cdef void process_gat_command(conn *c, const char *p, const char *end, uint8_t flags) noexcept nogil:
    cdef const char *start
    cdef int32_t exptime
    while p < end and p[0] == c' ':
        p += 1
    start = p
    while p < end and p[0] != c' ':
        p += 1
    if p == end:
        out_string(c, BAD_FORMAT)
        return
    if not parse_i32(start, <size_t>(p - start), &exptime):
        # A line without a key is malformed before its numbers are looked at.
        while p < end and p[0] == c' ':
            p += 1
        if p == end:
            out_string(c, BAD_FORMAT)
        else:
            out_string(c, b"CLIENT_ERROR invalid exptime argument")
        return
    c.mget_exptime = expiry(c.thread.store, exptime)
    process_get_command(c, p, end, flags | MGET_TOUCH)


cdef bint resume_get(conn *c) noexcept nogil:
    """Goes on with a get whose line is longer than LINE_MAX_LENGTH or whose replies filled the output. False: more
    input is needed."""
    cdef const char *p = c.rcurr
    cdef const char *newline = <const char *>memchr(p, c'\n', c.rbytes)
    cdef const char *end
    cdef const char *stop
    if newline != NULL:
        end = newline
        if end > p and (end - 1)[0] == c'\r':
            end -= 1
    else:
        end = p + c.rbytes
    if c.mget & MGET_SKIP:
        stop = end
    else:
        stop = get_keys(c, p, end, newline != NULL)
        if stop == NULL:
            get_failed(c)
            if c.state == conn_closing:
                return True
            c.mget |= MGET_SKIP
            stop = end
    if stop == end and newline != NULL:
        if c.mget & MGET_SKIP:
            c.mget = 0
            conn_set_state(c, conn_new_cmd)
        else:
            get_end(c)
        stop = newline + 1
    c.rbytes -= <size_t>(stop - p)
    c.rcurr = <char *>stop
    if c.mget == 0:
        return True
    if stop != end and conn_output_full(c):
        conn_set_state(c, conn_mwrite)
        return True
    return False


# ---- set, add, replace, append, prepend, cas -------------------------------------------------------------------------

cdef void process_update_command(conn *c, token *t, int n, store_op op) noexcept nogil:
    """<command> <key> <flags> <exptime> <bytes> [cas] [noreply]"""
    cdef store *s = c.thread.store
    cdef item *it
    cdef uint32_t flags
    cdef int32_t exptime, length
    cdef uint64_t cas = 0
    cdef const char *error
    if n < 5 or not parse_i32(t[4].value, t[4].length, &length) or length < 0 or length > INT32_MAX - 2:
        out_string(c, BAD_FORMAT)
        return
    c.noreply = is_noreply(&t[n - 1])
    if (t[1].length > KEY_MAX_LENGTH or not parse_flags(t[2].value, t[2].length, &flags)
            or not parse_exptime(t[3].value, t[3].length, &exptime)
            or (op == NREAD_CAS and (n < 6 or not parse_u64(t[5].value, t[5].length, &cas)))):
        out_string(c, BAD_FORMAT)
        swallow(c, <size_t>length + 2)
        return
    stats_prefix_record_set(c.thread.prefixes, t[1].value, t[1].length)
    it = item_alloc(s, t[1].value, t[1].length, flags, expiry(s, exptime), <size_t>length + 2)
    if it == NULL:
        error = alloc_error(c, op, t[1].value, t[1].length, flags, <size_t>length + 2, op == NREAD_SET)
        out_string(c, error)
        swallow(c, <size_t>length + 2)
        return
    ITEM_set_cas(it, cas)
    counter_add(&c.thread.stats.slab[ITEM_clsid(it)].set_cmds, 1)
    c.item = it
    c.rlbytes = <size_t>length + 2
    c.roffset = 0
    c.cas = 0
    c.cmd = op
    c.set_stale = False
    c.mset_res = False
    conn_set_state(c, conn_nread)


cdef bint terminated(item *it) noexcept nogil:
    """The data ends with \\r\\n."""
    cdef iovec iov[2]
    cdef const char *p
    cdef int n
    if not ITEM_has(it, ITEM_CHUNKED):
        p = ITEM_data(it) + it.nbytes - 2
        return p[0] == c'\r' and p[1] == c'\n'
    n = item_iov(it, <size_t>it.nbytes - 2, 2, iov, 2)
    p = <const char *>iov[0].iov_base
    return p[0] == c'\r' and (p[1] if n == 1 else (<const char *>iov[1].iov_base)[0]) == c'\n'


cdef void complete_nread_ascii(conn *c) noexcept nogil:
    """The payload of a storage command is complete: stores the item and answers."""
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef item *it = c.item
    cdef uint64_t cas = 0
    cdef int nbytes = 0
    cdef store_item_type result
    c.item = NULL
    if c.state == conn_nread and not terminated(it):
        if c.mset_res:
            c.noreply = False
        out_string(c, b"CLIENT_ERROR bad data chunk")
        item_remove(s, it)
        return
    result = store_item(s, it, <store_op>c.cmd, c.cas, &cas, c.set_stale, &nbytes)
    if c.cmd == NREAD_CAS:
        if result == STORED:
            counter_add(&stats.slab[ITEM_clsid(it)].cas_hits, 1)
        elif result == EXISTS:
            counter_add(&stats.slab[ITEM_clsid(it)].cas_badval, 1)
        elif result == NOT_FOUND:
            counter_add(&stats.cas_misses, 1)
    if c.mset_res:
        finalize_mset(c, it, result, nbytes if nbytes else it.nbytes, cas)
    elif result == STORED:
        out_line(c, b"STORED\r\n", 8)
    elif result == EXISTS:
        out_line(c, b"EXISTS\r\n", 8)
    elif result == NOT_FOUND:
        out_line(c, b"NOT_FOUND\r\n", 11)
    else:
        # memcached answers so as well when an append finds no room for the longer value.
        out_line(c, b"NOT_STORED\r\n", 12)
    item_remove(s, it)


include "meta.pyx"


# ---- delete, touch, incr, decr ---------------------------------------------------------------------------------------

cdef void process_delete_command(conn *c, token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef item *it
    cdef uint32_t hv
    if t[1].length > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    stats_prefix_record_delete(c.thread.prefixes, t[1].value, t[1].length)
    it = item_get_locked(s, t[1].value, t[1].length, False, &hv)
    if it != NULL:
        counter_add(&c.thread.stats.slab[ITEM_clsid(it)].delete_hits, 1)
        log_deleted(c, it, LOG_TYPE_DELETE)
        do_item_unlink(s, it, hv)
        do_item_remove(s, it)
    item_unlock(s, hv)
    if it != NULL:
        out_line(c, b"DELETED\r\n", 9)
    else:
        counter_add(&c.thread.stats.delete_misses, 1)
        out_line(c, b"NOT_FOUND\r\n", 11)


cdef void process_touch_command(conn *c, token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef item *it
    cdef int32_t exptime
    if t[1].length > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    if not parse_i32(t[2].value, t[2].length, &exptime):
        out_string(c, b"CLIENT_ERROR invalid exptime argument")
        return
    counter_add(&stats.touch_cmds, 1)
    it = item_touch(s, t[1].value, t[1].length, expiry(s, exptime))
    if it != NULL:
        counter_add(&stats.slab[ITEM_clsid(it)].touch_hits, 1)
        item_remove(s, it)
        out_line(c, b"TOUCHED\r\n", 9)
    else:
        counter_add(&stats.touch_misses, 1)
        out_line(c, b"NOT_FOUND\r\n", 11)


cdef void count_delta(conn *c, item *it, bint incr) noexcept nogil:
    cdef thread_stats *stats = &c.thread.stats
    if it == NULL:
        counter_add(&stats.incr_misses if incr else &stats.decr_misses, 1)
    elif incr:
        counter_add(&stats.slab[ITEM_clsid(it)].incr_hits, 1)
    else:
        counter_add(&stats.slab[ITEM_clsid(it)].decr_hits, 1)


cdef void process_arithmetic_command(conn *c, token *t, int n, bint incr) noexcept nogil:
    cdef store *s = c.thread.store
    cdef char text[INCR_MAX_STORAGE_LEN]
    cdef item *it
    cdef uint32_t hv
    cdef uint64_t delta
    cdef uint64_t cas = 0
    cdef delta_result_type result
    if t[1].length > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    if not parse_u64(t[2].value, t[2].length, &delta):
        out_string(c, b"CLIENT_ERROR invalid numeric delta argument")
        return
    it = item_get_locked(s, t[1].value, t[1].length, False, &hv)
    if it == NULL:
        item_unlock(s, hv)
        count_delta(c, NULL, incr)
        out_line(c, b"NOT_FOUND\r\n", 11)
        return
    result = do_add_delta(s, it, hv, incr, delta, text, &cas)
    if result == OK:
        count_delta(c, it, incr)
    do_item_remove(s, it)
    item_unlock(s, hv)
    if result == OK:
        out_string(c, text)
    elif result == NON_NUMERIC:
        out_string(c, b"CLIENT_ERROR cannot increment or decrement non-numeric value")
    else:
        out_string(c, b"SERVER_ERROR out of memory")


# ---- the rest --------------------------------------------------------------------------------------------------------

cdef void process_flush_all_command(conn *c, token *t, int n) noexcept nogil:
    cdef int32_t exptime = 0
    counter_add(&c.thread.stats.flush_cmds, 1)
    if not c.thread.flush_enabled:
        out_string(c, b"CLIENT_ERROR flush_all not allowed")
        return
    if n != (2 if c.noreply else 1) and not parse_i32(t[1].value, t[1].length, &exptime):
        out_string(c, b"CLIENT_ERROR invalid exptime argument")
        return
    store_flush_all(c.thread.store, exptime if exptime > 0 else 0)
    out_line(c, b"OK\r\n", 4)


include "admin.pyx"
include "admin_watch.pyx"
include "admin_slabs.pyx"
include "admin_lru.pyx"
include "auth.pyx"


include "admin_stats.pyx"


cdef void process_exchange(conn *c, const char *line, const char *end) noexcept nogil:
    """The line that agrees on queue pairs."""
    cdef char buffer[WRITE_BUFFER_SIZE]
    cdef const char *reply = c.engine.exchange(c, line, <size_t>(end - line), buffer, sizeof(buffer))
    out_line(c, reply, strlen(reply))


cdef void process_version_command(conn *c) noexcept nogil:
    cdef size_t length = strlen(MEMCACHED_VERSION)
    cdef char line[64]
    memcpy(line, b"VERSION ", 8)
    memcpy(line + 8, MEMCACHED_VERSION, length)
    memcpy(line + 8 + length, b"\r\n", 2)
    out_line(c, line, length + 10)


cdef void process_other_command(conn *c, const char *line, const char *end) noexcept nogil:
    """Rare commands, and what is none."""
    cdef token t[LINE_TOKENS]
    cdef int n = tokenize(line, end, t)
    if n:
        c.noreply = is_noreply(&t[n - 1])
        if token_is(&t[0], b"flush_all", 9):
            process_flush_all_command(c, t, n)
            return
        if token_is(&t[0], b"verbosity", 9):
            process_verbosity_command(c, t, n)
            return
        if token_is(&t[0], b"lru_crawler", 11):
            process_lru_crawler_command(c, t, n)
            return
        if token_is(&t[0], b"lru", 3):
            process_lru_command(c, t, n)
            return
        if token_is(&t[0], b"shutdown", 8):
            process_shutdown_command(c, t, n)
            return
        if token_is(&t[0], b"slabs", 5):
            process_slabs_command(c, t, n)
            return
        if token_is(&t[0], b"cache_memlimit", 14):
            process_memlimit_command(c, t, n)
            return
        if token_is(&t[0], b"watch", 5):
            process_watch_command(c, t, n)
            return
        if c.thread.debug_commands and process_debug_command(c, t, n):
            return
        if token_is(&t[0], b"rdma", 4) and c.engine.exchange != NULL:
            c.noreply = False
            process_exchange(c, t[0].value, end)
            return
    if n > 1 and t[n - 1].length >= 5 and memcmp(t[n - 1].value, b"HTTP/", 5) == 0:
        conn_set_state(c, conn_closing)
        return
    out_string(c, b"ERROR")


cdef inline bint word(const char *line, const char *text, size_t length) noexcept nogil:
    return memcmp(line, text, length) == 0


cdef void process_command_ascii(conn *c, const char *line, const char *end, size_t length) noexcept nogil:
    """One line, [line, end) without its line end, `length` bytes with it. The input begins behind it."""
    cdef token t[LINE_TOKENS]
    cdef const char *space
    cdef size_t command
    cdef int n
    c.noreply = False
    if conn_logs(c):
        conn_log(c, b"<", line, <size_t>(end - line))
    if length < 4:
        out_string(c, BAD_FORMAT)
        return
    space = <const char *>memchr(line, c' ', <size_t>(end - line))
    command = <size_t>((space if space != NULL else end) - line)

    if command == 3:
        if word(line, b"get", 3):
            process_get_command(c, line + 3, end, MGET_ACTIVE)
            return
        if word(line, b"set", 3):
            process_update_command(c, t, tokenize(line, end, t), NREAD_SET)
            return
        if word(line, b"gat", 3):
            process_gat_command(c, line + 3, end, MGET_ACTIVE)
            return
        if word(line, b"add", 3):
            process_update_command(c, t, tokenize(line, end, t), NREAD_ADD)
            return
        if word(line, b"cas", 3):
            process_update_command(c, t, tokenize(line, end, t), NREAD_CAS)
            return
    elif command == 2:
        if line[0] == c'm' and process_meta_command(c, line, end):
            return
    elif command == 4:
        if word(line, b"gets", 4):
            process_get_command(c, line + 4, end, MGET_ACTIVE | MGET_CAS)
            return
        if word(line, b"gats", 4):
            process_gat_command(c, line + 4, end, MGET_ACTIVE | MGET_CAS)
            return
        if word(line, b"incr", 4) or word(line, b"decr", 4):
            n = tokenize(line, end, t)
            if n < 3:
                out_string(c, BAD_FORMAT)
                return
            c.noreply = is_noreply(&t[n - 1])
            process_arithmetic_command(c, t, n, line[0] == c'i')
            return
        if word(line, b"quit", 4):
            c.close_reason = NORMAL_CLOSE
            conn_set_state(c, conn_closing)
            return
    elif command == 5:
        if word(line, b"touch", 5):
            n = tokenize(line, end, t)
            if n < 3:
                out_string(c, BAD_FORMAT)
                return
            c.noreply = is_noreply(&t[n - 1])
            process_touch_command(c, t, n)
            return
        if word(line, b"stats", 5):
            process_stats_command(c, t, tokenize(line, end, t))
            return
    elif command == 6:
        if word(line, b"delete", 6):
            n = tokenize(line, end, t)
            if n < 2:
                out_string(c, BAD_FORMAT)
                return
            c.noreply = is_noreply(&t[n - 1])
            process_delete_command(c, t, n)
            return
        if word(line, b"append", 6):
            process_update_command(c, t, tokenize(line, end, t), NREAD_APPEND)
            return
    elif command == 7:
        if word(line, b"replace", 7):
            process_update_command(c, t, tokenize(line, end, t), NREAD_REPLACE)
            return
        if word(line, b"prepend", 7):
            process_update_command(c, t, tokenize(line, end, t), NREAD_PREPEND)
            return
        if word(line, b"version", 7):
            process_version_command(c)
            return
    process_other_command(c, line, end)


cdef bint try_read_command_ascii(conn *c) noexcept nogil:
    """Does one command of the input. False: it is not complete yet. On return the state says what is next."""
    cdef char *line = c.rcurr
    cdef char *newline
    cdef char *end
    cdef size_t length
    if c.mget:
        return resume_get(c)
    if c.auth_wanted:
        return try_read_command_asciiauth(c)
    newline = <char *>memchr(line, c'\n', c.rbytes)
    if newline == NULL:
        if c.rbytes <= LINE_MAX_LENGTH:
            return False
        c.noreply = False
        c.last_cmd_time = store_time(c.thread.store)
        if word(line, b"get ", 4):
            c.mget = MGET_ACTIVE
            length = 4
        elif word(line, b"gets ", 5):
            c.mget = MGET_ACTIVE | MGET_CAS
            length = 5
        else:
            conn_set_state(c, conn_closing)
            return True
        c.rcurr += length
        c.rbytes -= length
        return resume_get(c)
    length = <size_t>(newline + 1 - line)
    end = newline
    if end > line and (end - 1)[0] == c'\r':
        end -= 1
    c.rcurr += length
    c.rbytes -= length
    c.last_cmd_time = store_time(c.thread.store)
    process_command_ascii(c, line, end, length)
    return True

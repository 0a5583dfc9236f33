"""Text commands: a line is parsed in place in the input buffer, its reply appended to the connection's output."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, UINT32_MAX, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport fprintf, stderr
from libc.string cimport memchr, memcmp, memcpy, strlen
from posix.uio cimport iovec

from rmemcached.logger cimport LOG_TYPE_DELETE, NORMAL_CLOSE
from rmemcached.protocol.admin cimport process_admin_command
from rmemcached.protocol.admin_stats cimport process_stats_command
from rmemcached.protocol.auth cimport try_read_command_asciiauth
from rmemcached.protocol.conn cimport (
    AUTH_DONE, CONN_NAME, MGET_ACTIVE, MGET_CAS, MGET_HIT, MGET_OOM, MGET_SKIP, MGET_TOUCH, NOT_GIVEN,
    WRITE_BUFFER_SIZE, conn_charge, conn_closing, conn_log, conn_logs, conn_name, conn_new_cmd, conn_nread,
    conn_output_full, conn_read_keys, conn_resume, conn_set_state, mc_resp, thread_stats,
)
from rmemcached.protocol.item_commands cimport (
    alloc_error, count_cas, count_delta, expect_payload, expiry, fetch_item, fits_copy, log_deleted, resp_external,
    resp_value, swallow,
)
from rmemcached.protocol.meta cimport finalize_mset, process_meta_command
from rmemcached.protocol.parse cimport (
    LINE_TOKENS, itoa_u32, itoa_u64, parse_exptime, parse_flags, parse_i32, parse_u64, token, token_is, tokenize,
)
from rmemcached.protocol.reply cimport (
    BAD_EXPTIME, BAD_FORMAT, NOT_A_NUMBER, OUT_OF_MEMORY, out_line, out_string, resp_add, resp_rollback, resp_start,
    resp_text,
)
from rmemcached.protocol.stats_prefix cimport stats_prefix_record_delete, stats_prefix_record_set
from rmemcached.protocol.views cimport process_release_command, process_view_command
from rmemcached.rdma.wire cimport EXCHANGE_REQUEST, EXCHANGE_WORD_LENGTH
from rmemcached.store.store cimport (
    EXISTS, INCR_MAX_STORAGE_LEN, ITEM_CHUNKED, ITEM_HDR, KEY_MAX_LENGTH, NON_NUMERIC, NOT_FOUND, NREAD_ADD,
    NREAD_APPEND, NREAD_CAS, NREAD_PREPEND, NREAD_REPLACE, NREAD_SET, NUMBER_OF_QUEUES, OK, STORED, ITEM_client_flags,
    ITEM_clsid, ITEM_data, ITEM_get_cas, ITEM_has, ITEM_set_cas, delta_result_type, do_add_delta, do_item_remove,
    do_item_unlink, item, item_alloc, item_get_locked, item_iov, item_note_read, item_remove, item_touch, item_unlock,
    items_ahead, key_ahead, store, store_get_config, store_item, store_item_type, store_op, store_time, stored_item,
)
from rmemcached.sys.atomics cimport counter_add
from rmemcached.sys.debug cimport assert_that

cdef enum:
    VALUE_ROOM = 51          # "VALUE " key " flags bytes cas\r\n" without the key
    KEYS_PER_COMMAND = 50    # a get counts as a command for every so many keys (-R)
    KEYS_AHEAD = 16          # keys prefetched together


cdef inline bint is_noreply(const token *t) noexcept nogil:
    return token_is(t, b"noreply", 7)


# ---- get, gets, gat, gats --------------------------------------------------------------------------------------------

cdef bint get_key(conn *c, const key_ahead *k, bint ahead) noexcept nogil:
    """Appends the VALUE block of a key, if the key has an item. False: out of memory, the connection is closing. ahead:
    items_ahead has prepared the key."""
    cdef char name[CONN_NAME]
    cdef const char *key = k.key
    cdef size_t nkey = k.nkey
    cdef item *it = fetch_item(c, key, nkey, c.mget & MGET_TOUCH != 0, c.mget_exptime, k if ahead else NULL)
    cdef mc_resp *resp
    cdef char *p
    cdef size_t n, room
    cdef bint copy, external
    if it == NULL:
        c.mget &= ~MGET_HIT
        return True
    c.mget |= MGET_HIT
    n = <size_t>it.nbytes
    room = VALUE_ROOM + nkey
    copy = fits_copy(it, n, room)
    external = ITEM_has(it, ITEM_HDR)
    resp = resp_start(c) if external else resp_text(c, room + (n if copy else 0))
    if resp == NULL:
        item_remove(c.thread.store, it)
        return False
    if conn_logs(c):
        fprintf(stderr, b">%s sending key %.*s\n", conn_name(c, name), <int>nkey, key)
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
    if not external:
        resp_value(c, resp, p + 2, it, <uint32_t>n, copy)
    elif not resp_external(c, resp, p + 2, it, <uint32_t>n, NULL, NULL):
        c.mget |= MGET_OOM
        return False
    return True


cdef unsigned int keys_ahead(const char *p, const char *end, bint whole, key_ahead *keys,
                             unsigned int most) noexcept nogil:
    """Finds up to `most` keys in [p, end), and returns their number. Stops before a key that is too long or incomplete.
    whole: as in get_keys."""
    cdef const char *space
    cdef unsigned int n = 0
    while p < end and n < most:
        if p[0] == c' ':
            p += 1
            continue
        space = <const char *>memchr(p, c' ', <size_t>(end - p))
        if space == NULL:
            if not whole:
                break
            space = end
        if space - p > KEY_MAX_LENGTH:
            break
        keys[n].key = p
        keys[n].nkey = <size_t>(space - p)
        n += 1
        p = space
    return n


cdef const char *get_keys(conn *c, const char *p, const char *end, bint whole, bint *more) noexcept nogil:
    """Answers the keys in [p, end) until the output is full, KEYS_PER_COMMAND at most. whole: the line ends at `end`.
    Else a key is complete only if a space follows. Returns the place of the first key not answered; *more: this key may
    be complete. NULL: a key is too long, there is no memory for its reply, or the memory limit is reached
    (MGET_OOM)."""
    cdef key_ahead keys[KEYS_AHEAD]
    cdef unsigned int left = KEYS_PER_COMMAND
    cdef unsigned int found = 0      # number of `keys` found
    cdef unsigned int next = 0
    more[0] = False
    while True:
        while p < end and p[0] == c' ':
            p += 1
        if p == end:
            return p
        if left == 0 or conn_output_full(c):
            more[0] = True
            return p
        if next == found:
            next = 0
            found = keys_ahead(p, end, whole, keys, min(left, <unsigned int>KEYS_AHEAD))
            if found == 0:
                # The key is incomplete, unless it is too long already.
                return p if not whole and end - p <= KEY_MAX_LENGTH + 1 and memchr(p, c' ', <size_t>(end - p)) == NULL \
                    else NULL
            if found > 1:
                items_ahead(c.thread.store, keys, found)
        left -= 1
        if not conn_charge(c):
            c.mget |= MGET_OOM
            return NULL
        if not get_key(c, &keys[next], found > 1):
            return NULL
        p = keys[next].key + keys[next].nkey
        next += 1


cdef void get_end(conn *c) noexcept nogil:
    """Answers END, in the reply to the last key if this key was found."""
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
    # Answers the error of a get for which get_keys has returned NULL.
    if c.mget & MGET_OOM:
        c.mget &= ~<int>MGET_OOM
        c.charged = 0
        out_string(c, b"SERVER_ERROR out of memory writing get response")
    # The answer has a second line end, as in memcached.
    elif c.state != conn_closing:
        out_line(c, b"CLIENT_ERROR bad command line format\r\n\r\n", 40)


cdef void process_get_command(conn *c, const char *p, const char *end, uint8_t flags) noexcept nogil:
    """Answers a get whose line is whole: the keys are in [p, end), and the input begins behind the line."""
    cdef mc_resp *mark = c.resp
    cdef uint32_t mark_bytes = mark.wbytes if mark != NULL else 0
    cdef const char *stop
    cdef bint more
    while p < end and p[0] == c' ':
        p += 1
    if p == end:
        out_string(c, BAD_FORMAT)
        return
    c.mget = flags
    stop = get_keys(c, p, end, True, &more)
    if stop == end:
        get_end(c)
    elif stop != NULL:
        # The rest of the line becomes input again; resume_get goes on at once, or when replies have left if the output
        # is full.
        c.rbytes += <size_t>(c.rcurr - stop)
        c.rcurr = <char *>stop
        conn_set_state(c, conn_new_cmd)
    else:
        resp_rollback(c, mark, mark_bytes)
        get_failed(c)
        c.mget = 0


cdef void process_gat_command(conn *c, const char *p, const char *end, uint8_t flags) noexcept nogil:
    # [p, end) is the line behind gat or gats: <exptime> <key>*.
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
        # As in memcached, the answer is about a missing key rather than the malformed number.
        while p < end and p[0] == c' ':
            p += 1
        if p == end:
            out_string(c, BAD_FORMAT)
        else:
            out_string(c, BAD_EXPTIME)
        return
    c.mget_exptime = expiry(c.thread.store, exptime)
    process_get_command(c, p, end, flags)


cdef bint resume_get(conn *c) noexcept nogil:
    """Goes on with a get whose line is longer than LINE_MAX_LENGTH, whose keys are many, or whose replies filled the
    output."""
    cdef bint more = False
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
        stop = get_keys(c, p, end, newline != NULL, &more)
        if stop == NULL:
            get_failed(c)
            if c.state == conn_closing:
                c.mget = 0
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
    conn_set_state(c, conn_new_cmd if more else conn_read_keys)
    return more


# ---- set, add, replace, append, prepend, cas -------------------------------------------------------------------------

cdef void process_update_command(conn *c, const token *t, int n, store_op op) noexcept nogil:
    """<command> <key> <flags> <exptime> <bytes> [cas] [noreply]"""
    cdef store *s = c.thread.store
    cdef item *it
    cdef uint32_t flags
    cdef int32_t exptime
    cdef int32_t length = 0
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
    expect_payload(c, it, <size_t>length + 2, op)


cdef bint terminated(item *it) noexcept nogil:
    """Whether the item's data ends with \\r\\n."""
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
    cdef store *s = c.thread.store
    cdef item *it = c.item
    cdef stored_item stored = stored_item(0, 0)
    cdef store_item_type result
    assert_that(c.rlbytes == 0)
    c.item = NULL
    if c.state == conn_nread and not terminated(it):
        if c.mset_res:
            c.noreply = False
        out_string(c, b"CLIENT_ERROR bad data chunk")
        item_remove(s, it)
        return
    result = store_item(s, it, <store_op>c.cmd, c.cas, c.set_stale, &stored)
    if c.cmd == NREAD_CAS:
        count_cas(c, it, result)
    if c.mset_res:
        finalize_mset(c, it, result, stored.nbytes if stored.nbytes else it.nbytes, stored.cas)
    elif result == STORED:
        out_line(c, b"STORED\r\n", 8)
    elif result == EXISTS:
        out_line(c, b"EXISTS\r\n", 8)
    elif result == NOT_FOUND:
        out_line(c, b"NOT_FOUND\r\n", 11)
    else:
        # An append without room for the longer value ends here, too, as in memcached.
        out_line(c, b"NOT_STORED\r\n", 12)
    item_remove(s, it)


# ---- delete, touch, incr, decr ---------------------------------------------------------------------------------------

cdef void process_delete_command(conn *c, const token *t) noexcept nogil:
    cdef store *s = c.thread.store
    cdef item *it
    cdef uint32_t hv
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


cdef void process_touch_command(conn *c, const token *t) noexcept nogil:
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef item *it
    cdef int32_t exptime
    if not parse_i32(t[2].value, t[2].length, &exptime):
        out_string(c, BAD_EXPTIME)
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


cdef void process_arithmetic_command(conn *c, const token *t, bint incr) noexcept nogil:
    cdef store *s = c.thread.store
    cdef char text[INCR_MAX_STORAGE_LEN]
    cdef item *it
    cdef uint32_t hv
    cdef uint64_t delta
    cdef uint64_t cas = 0
    cdef delta_result_type result
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
        out_string(c, NOT_A_NUMBER)
    else:
        out_string(c, OUT_OF_MEMORY)


# ---- exchange, version, direct reads, other commands -----------------------------------------------------------------

cdef void process_exchange(conn *c, const char *line, const char *end) noexcept nogil:
    """Answers the client's line about a queue pair."""
    cdef char buffer[WRITE_BUFFER_SIZE]
    cdef const char *reply = c.engine.exchange(c, line, <size_t>(end - line), buffer, sizeof(buffer))
    out_line(c, reply, strlen(reply))


cdef void process_version_command(conn *c) noexcept nogil:
    cdef size_t length = strlen(c.thread.hooks.version)
    cdef char line[64]
    memcpy(line, b"VERSION ", 8)
    memcpy(line + 8, c.thread.hooks.version, length)
    memcpy(line + 8 + length, b"\r\n", 2)
    out_line(c, line, length + 10)


cdef inline const char *read_count(const char *p, const char *end, unsigned int base, uint64_t *value) noexcept nogil:
    """Reads digits below base; letters are lower-case. Returns the place behind the digits."""
    cdef unsigned int digit
    value[0] = 0
    while p < end:
        digit = <unsigned int>(p[0] - c'0')
        if digit > 9:
            digit = <unsigned int>(p[0] - c'a') + 10 if p[0] >= c'a' else base
        if digit >= base:
            break
        value[0] = value[0] * base + digit
        p += 1
    return p


cdef void process_direct_command(conn *c, const token *t, int n) noexcept nogil:
    """Tells a client with READs where items are (docs/direct-reads.md, section 9)."""
    cdef char reply[128]
    cdef const char *line = NULL
    cdef uint64_t place
    cdef const char *end
    c.noreply = False
    if n != 2 or t[1].length > 16:
        out_string(c, BAD_FORMAT)
        return
    end = t[1].value + t[1].length
    if read_count(t[1].value, end, 16, &place) != end:
        out_string(c, BAD_FORMAT)
        return
    if c.engine.direct != NULL:
        line = c.engine.direct(c, place, reply, sizeof(reply))
    if line == NULL:
        out_string(c, b"CLIENT_ERROR rdma: this connection has no queue pair for direct reads")
        return
    out_line(c, line, strlen(line))


cdef void process_hits_command(conn *c, const char *p, const char *end) noexcept nogil:
    """Takes a client's report of its direct reads (docs/direct-reads.md, section 4). Only clients without the items'
    memory get an answer.
    """
    cdef thread_stats *stats = &c.thread.stats
    cdef uint64_t first, second
    cdef bint names
    if c.engine.given == NULL or not c.engine.given(c):
        c.noreply = False
        out_string(c, NOT_GIVEN)
        return
    while p < end:
        names = p[0] == c'@'
        p = read_count(p + names, end, 16 if names else 10, &first)
        if p < end and p[0] == c':':
            p = read_count(p + 1, end, 16 if names else 10, &second)
            if names:
                item_note_read(c.thread.store, <uint32_t>first, second)
            elif first < NUMBER_OF_QUEUES and second <= UINT32_MAX:
                # A larger count is false, and could wrap the counters: they would seem to go back.
                counter_add(&stats.get_cmds, second)
                counter_add(&stats.direct_hits, second)
                counter_add(&stats.lru_hits[first], second)
        while p < end and p[0] != c' ':
            p += 1
        p += 1
    c.noreply = True
    out_string(c, b"")


cdef void process_other_command(conn *c, const char *line, const char *end) noexcept nogil:
    """Does administrative commands, and refuses unknown commands."""
    cdef token t[LINE_TOKENS]
    cdef int n = tokenize(line, end, t)
    if n:
        c.noreply = is_noreply(&t[n - 1])
        if process_admin_command(c, t, n):
            return
        if token_is(&t[0], EXCHANGE_REQUEST, EXCHANGE_WORD_LENGTH) and c.engine.exchange != NULL:
            c.noreply = False
            process_exchange(c, t[0].value, end)
            return
        if token_is(&t[0], b"rdma_direct", 11) and store_get_config(c.thread.store).direct_remote:
            process_direct_command(c, t, n)
            return
        if token_is(&t[0], b"rdma_hits", 9) and store_get_config(c.thread.store).direct:
            process_hits_command(c, t[0].value + 9, end)
            return
        if token_is(&t[0], b"rdma_view", 9) and store_get_config(c.thread.store).direct:
            process_view_command(c, t, n)
            return
        if token_is(&t[0], b"rdma_release", 12) and store_get_config(c.thread.store).direct:
            process_release_command(c, t[0].value + 12, end)
            return
    if n > 1 and t[n - 1].length >= 5 and memcmp(t[n - 1].value, b"HTTP/", 5) == 0:
        conn_set_state(c, conn_closing)
        return
    out_string(c, b"ERROR")


# ---- prefetching for the commands ahead ------------------------------------------------------------------------------

cdef const char *skip_words(const char *p, const char *end, int n) noexcept nogil:
    """The place behind the next n spaces. NULL: there are fewer."""
    while p != NULL and n:
        p = <const char *>memchr(p, c' ', <size_t>(end - p))
        if p != NULL:
            p += 1
        n -= 1
    return p


cdef const char *command_ahead(const char *p, const char *end, key_ahead *k) noexcept nogil:
    cdef const char *newline = <const char *>memchr(p, c'\n', <size_t>(end - p))
    cdef const char *space
    cdef const char *size = NULL     # of a payload
    cdef uint64_t bytes
    cdef size_t word
    if newline == NULL:
        return NULL
    space = <const char *>memchr(p, c' ', <size_t>(newline - p))
    if space == NULL:
        return NULL
    word = <size_t>(space - p)
    k.key = space + 1
    space = <const char *>memchr(k.key, c' ', <size_t>(newline - k.key))
    if space == NULL:
        space = newline - ((newline - 1)[0] == c'\r')
    k.nkey = <size_t>(space - k.key)
    if space <= k.key or k.nkey > KEY_MAX_LENGTH or retrieval_flags(p, word) & MGET_TOUCH:
        return NULL
    if update_op(p, word):
        size = skip_words(space, newline, 3)
    elif word == 2 and p[0] == c'm' and p[1] == c's':
        size = skip_words(space, newline, 1)
    else:
        return newline + 1
    if size == NULL:
        return NULL
    read_count(size, newline, 10, &bytes)
    return newline + 1 + min(bytes, <uint64_t>UINT32_MAX) + 2


cdef void look_ahead(conn *c, const char *p, const char *end) noexcept nogil:
    """Prefetches the memory for the commands from p on."""
    cdef key_ahead keys[KEYS_AHEAD]
    cdef unsigned int n = 0
    while n < KEYS_AHEAD and p < end:
        p = command_ahead(p, end, &keys[n])
        if p == NULL:
            break
        n += 1
    # The present command counts, too. The caller takes 1 off for it, so at least 1 must be there.
    c.ahead = <uint8_t>max(n, 1)
    if n > 1:
        items_ahead(c.thread.store, keys, n)


# ---- dispatch --------------------------------------------------------------------------------------------------------

cdef inline bint word(const char *line, const char *text, size_t length) noexcept nogil:
    return memcmp(line, text, length) == 0


cdef inline uint8_t retrieval_flags(const char *line, size_t length) noexcept nogil:
    """The mget_flags of a command with a list of keys; 0: the line's first word (`length` bytes) is no such command."""
    if length == 3:
        if word(line, b"get", 3):
            return MGET_ACTIVE
        if word(line, b"gat", 3):
            return MGET_ACTIVE | MGET_TOUCH
    elif length == 4:
        if word(line, b"gets", 4):
            return MGET_ACTIVE | MGET_CAS
        if word(line, b"gats", 4):
            return MGET_ACTIVE | MGET_CAS | MGET_TOUCH
    return 0


cdef inline int update_op(const char *line, size_t length) noexcept nogil:
    """The store_op of a storage command; 0: no storage command."""
    if length == 3:
        if word(line, b"set", 3):
            return NREAD_SET
        if word(line, b"add", 3):
            return NREAD_ADD
        if word(line, b"cas", 3):
            return NREAD_CAS
    elif length == 6:
        if word(line, b"append", 6):
            return NREAD_APPEND
    elif length == 7:
        if word(line, b"replace", 7):
            return NREAD_REPLACE
        if word(line, b"prepend", 7):
            return NREAD_PREPEND
    return 0


cdef bint process_one_key(conn *c, const char *line, const char *end, size_t length) noexcept nogil:
    """Does the commands on a single item without a payload. False: another command. length: of the first word."""
    cdef token t[LINE_TOKENS]
    cdef bint incr = length == 4 and word(line, b"incr", 4)
    cdef bint arithmetic = incr or (length == 4 and word(line, b"decr", 4))
    cdef bint touch = length == 5 and word(line, b"touch", 5)
    cdef int n
    if not arithmetic and not touch and not (length == 6 and word(line, b"delete", 6)):
        return False
    n = tokenize(line, end, t)
    if n < (3 if arithmetic or touch else 2):
        out_string(c, BAD_FORMAT)
        return True
    c.noreply = is_noreply(&t[n - 1])
    if t[1].length > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
    elif arithmetic:
        process_arithmetic_command(c, t, incr)
    elif touch:
        process_touch_command(c, t)
    else:
        process_delete_command(c, t)
    return True


cdef void process_command_ascii(conn *c, const char *line, const char *end, size_t length) noexcept nogil:
    """Does a line: [line, end) without its line end, `length` bytes with its line end. Input begins behind the line."""
    cdef token t[LINE_TOKENS]
    cdef const char *space
    cdef size_t command          # bytes of the first word
    cdef uint8_t flags
    cdef int op
    c.noreply = False
    if conn_logs(c):
        conn_log(c, b"<", line, <size_t>(end - line))
    if length < 4:
        out_string(c, BAD_FORMAT)
        return
    space = <const char *>memchr(line, c' ', <size_t>(end - line))
    command = <size_t>((space if space != NULL else end) - line)
    flags = retrieval_flags(line, command)
    if flags:
        if flags & MGET_TOUCH:
            process_gat_command(c, line + command, end, flags)
        else:
            process_get_command(c, line + command, end, flags)
        return
    op = update_op(line, command)
    if op:
        process_update_command(c, t, tokenize(line, end, t), <store_op>op)
    elif command == 2 and line[0] == c'm' and process_meta_command(c, line, end):
        pass
    elif process_one_key(c, line, end, command):
        pass
    elif command == 4 and word(line, b"quit", 4):
        c.close_reason = NORMAL_CLOSE
        conn_set_state(c, conn_closing)
    elif command == 5 and word(line, b"stats", 5):
        process_stats_command(c, t, tokenize(line, end, t))
    elif command == 7 and word(line, b"version", 7):
        process_version_command(c)
    else:
        process_other_command(c, line, end)


cdef bint begin_long_get(conn *c) noexcept nogil:
    """Begins an input line longer than LINE_MAX_LENGTH. Only get and gets may be so long: resume_get answers each key
    on arrival. Any other command ends the connection. Returns as try_read_command_ascii."""
    cdef const char *space = <const char *>memchr(c.rcurr, c' ', LINE_MAX_LENGTH)
    cdef size_t length = <size_t>(space - c.rcurr) if space != NULL else 0
    c.noreply = False
    c.last_cmd_time = store_time(c.thread.store)
    c.mget = retrieval_flags(c.rcurr, length)
    if c.mget == 0 or c.mget & MGET_TOUCH:
        c.mget = 0
        conn_set_state(c, conn_closing)
        return True
    c.rcurr += length + 1
    c.rbytes -= length + 1
    conn_set_state(c, conn_resume)
    return False


cdef bint try_read_command_ascii(conn *c) noexcept nogil:
    cdef char *line = c.rcurr
    cdef char *newline
    cdef char *end
    cdef size_t length
    if c.auth_state != AUTH_DONE:
        return try_read_command_asciiauth(c)
    newline = <char *>memchr(line, c'\n', c.rbytes)
    if newline == NULL:
        return begin_long_get(c) if c.rbytes > LINE_MAX_LENGTH else False
    length = <size_t>(newline + 1 - line)
    end = newline
    if end > line and (end - 1)[0] == c'\r':
        end -= 1
    c.rcurr += length
    c.rbytes -= length
    c.last_cmd_time = store_time(c.thread.store)
    if c.ahead:
        c.ahead -= 1
    elif c.reqs_left != c.thread.reqs_per_event and c.rbytes:
        # Commands come together: the present command is not the first, and maybe not the last.
        look_ahead(c, line, c.rcurr + c.rbytes)
        c.ahead -= 1
    process_command_ascii(c, line, end, length)
    return True

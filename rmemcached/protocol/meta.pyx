"""Meta commands: reply lines are formatted in place, flag by flag (see meta.pxd)."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset, strlen

from rmemcached.logger cimport LOG_TYPE_META_DELETE
from rmemcached.protocol.conn cimport (
    WRITE_BUFFER_SIZE, conn_new_cmd, conn_rdma_read, conn_set_state, mc_resp, missed_fn, remote_buf, thread_stats,
)
from rmemcached.protocol.item_commands cimport (
    alloc_error, count_delta, expect_payload, fits_copy, log_deleted, overused, resp_external, resp_value, swallow,
)
from rmemcached.protocol.meta_flags cimport (
    MARK_BINARY_KEY, MARK_CAS, MARK_KEY, MARK_LOCKED, MARK_NEW_CAS, MARK_NEW_TTL, MARK_NO_UPDATE, MARK_NO_VALUE,
    MARK_QUIET, MARK_STALE, MARK_VALUE, MARK_VIVIFY, META_ARITHMETIC, META_DEBUG, META_DELETE, META_GET,
    META_MAX_OPAQUE, META_NOOP, META_SET, flag_allowed, meta_flags, meta_lost, parse_meta_flags,
)
from rmemcached.protocol.parse cimport (
    LINE_TOKENS, base64_decode, base64_encode, itoa_u32, itoa_u64, parse_i32, token, token_is, tokenize,
)
from rmemcached.protocol.reply cimport (
    BAD_FORMAT, NOT_A_NUMBER, OUT_OF_MEMORY, out_errstring, out_line, out_string, resp_add, resp_start, resp_text,
)
from rmemcached.store.store cimport (
    DELTA_ITEM_CAS_MISMATCH, EXISTS, INCR_MAX_STORAGE_LEN, ITEM_FETCHED, ITEM_HDR, ITEM_KEY_BINARY, ITEM_LINKED,
    ITEM_STALE, ITEM_TOKEN_SENT, KEY_MAX_LENGTH, NON_NUMERIC, NOT_FOUND, NREAD_ADD, NREAD_APPEND, NREAD_APPENDVIV,
    NREAD_CAS, NREAD_PREPEND, NREAD_PREPENDVIV, NREAD_REPLACE, NREAD_SET, OK, STORED, ITEM_client_flags, ITEM_clsid,
    ITEM_data, ITEM_get_cas, ITEM_has, ITEM_key, ITEM_ntotal, ITEM_queue, ITEM_set_cas, delta_result_type, do_add_delta,
    do_item_bump, do_item_clear_flags, do_item_link, do_item_remove, do_item_set_cas, do_item_set_exptime,
    do_item_set_flags, do_item_unlink, do_store_item, get_cas_id, item_alloc, item_exptime, item_get, item_get_locked,
    item_mutex, item_remove, item_set_flags, item_time, item_unlock, item_win, rel_time_t, store, store_op, store_time,
    stored_item,
)
from rmemcached.sys.atomics cimport counter_add, relaxed_load, write_fence
from rmemcached.sys.debug cimport assert_held

cdef enum:
    META_ROOM = 136          # a reply line without its key: "VA " size, s t f l h c, O, Z X W, @, line end
    META_KEY_ROOM = 256      # " k", 252 bytes of base64 (250 of plain key), " b"


cdef const char *OPAQUE_TOO_LONG = b"CLIENT_ERROR opaque token too long"


# ---- parts of a line -------------------------------------------------------------------------------------------------

cdef inline bint refuse_long_opaque(conn *c, const meta_flags *of) noexcept nogil:
    """Answers with the error if the line's opaque is too long. False: the opaque is no reason to refuse the line."""
    if of.opaque == NULL or of.opaque.length <= META_MAX_OPAQUE:
        return False
    out_errstring(c, OPAQUE_TOO_LONG)
    return True


cdef inline char *put_flag_u32(char *p, char flag, uint32_t value) noexcept nogil:
    p[0] = c' '
    p[1] = flag
    return itoa_u32(value, p + 2)


cdef inline char *put_cas(char *p, uint64_t cas) noexcept nogil:
    p[0] = c' '
    p[1] = c'c'
    return itoa_u64(cas, p + 2)


cdef inline char *put_token(char *p, const token *t) noexcept nogil:
    p[0] = c' '
    memcpy(p + 1, t.value, t.length)
    return p + 1 + t.length


cdef inline char *put_mark(char *p, char flag) noexcept nogil:
    p[0] = c' '
    p[1] = flag
    return p + 2


cdef inline char *put_ttl(char *p, rel_time_t exptime, rel_time_t now) noexcept nogil:
    if exptime != 0:
        return put_flag_u32(p, c't', exptime - now)
    memcpy(p, b" t-1", 4)
    return p + 4


cdef inline char *put_key(char *p, const char *key, size_t nkey, bint binary) noexcept nogil:
    p[0] = c' '
    p[1] = c'k'
    if not binary:
        memcpy(p + 2, key, nkey)
        return p + 2 + nkey
    p = base64_encode(key, nkey, p + 2)
    memcpy(p, b" b", 2)
    return p + 2


cdef inline size_t meta_room(const meta_flags *of) noexcept nogil:
    return META_ROOM + (META_KEY_ROOM if of.marks & MARK_KEY else 0)


cdef inline char *put_status(char *p, bint value, uint32_t length) noexcept nogil:
    """Writes VA and the value's length, or HD."""
    if value:
        memcpy(p, b"VA ", 3)
        return itoa_u32(length, p + 3)
    memcpy(p, b"HD", 2)
    return p + 2


cdef void meta_line(conn *c, const char *code, const token *t, int n, const meta_flags *of) noexcept nogil:
    """Answers with a two-letter code and the flags O and k."""
    cdef mc_resp *resp = resp_text(c, meta_room(of))
    cdef char *p
    cdef int i
    if resp == NULL:
        return
    p = resp.wbuf + resp.wbytes
    memcpy(p, code, 2)
    p += 2
    for i in range(2, n):
        if t[i].value[0] == c'O':
            p = put_token(p, &t[i])
        elif t[i].value[0] == c'k':
            p = put_key(p, of.key, of.nkey, of.marks & MARK_BINARY_KEY != 0)
    memcpy(p, b"\r\n", 2)
    resp_add(resp, p + 2)


# ---- mg --------------------------------------------------------------------------------------------------------------

cdef item *vivify_item(conn *c, const meta_flags *of, uint32_t hv, const char *data, size_t length,
                       uint64_t *cas) noexcept nogil:
    """Makes an item for a key without an item. The flag N sets the expiry time later. cas: place for the item's CAS
    value; NULL: none, and watchers hear of no store. Returns NULL if there is no memory."""
    cdef store *s = c.thread.store
    cdef item *it = item_alloc(s, of.key, of.nkey, 0, 0, length + 2)
    cdef stored_item stored
    assert_held(item_mutex(s, hv))
    if it == NULL:
        return NULL
    memcpy(ITEM_data(it), data, length)
    memcpy(ITEM_data(it) + length, b"\r\n", 2)
    ITEM_set_cas(it, 0)
    if of.marks & MARK_BINARY_KEY:
        item_set_flags(it, ITEM_KEY_BINARY)
    if cas == NULL:
        do_item_link(s, it, hv, of.cas_id_in if of.cas_id_in != 0 else get_cas_id(s))
    elif do_store_item(s, it, hv, NREAD_ADD, of.cas_id_in, False, &stored) != STORED:
        do_item_remove(s, it)
        return NULL
    else:
        cas[0] = stored.cas
    return it


cdef struct mget_outcome:        # the effects of an mg's flags
    uint64_t cas             # the item's CAS value, read before everything else in the reply
    bint created             # by the flag N
    bint won                 # this client is to recache the item
    bint touched             # by the flag T


cdef item *mget_find(conn *c, const meta_flags *of, uint32_t *hv, bint *created) noexcept nogil:
    """Finds the key's item, with a reference; makes an item if the flags want so. With MARK_LOCKED the key is locked on
    return, even if the result is NULL.
    """
    cdef item *it
    if not of.marks & MARK_LOCKED:
        return item_get(c.thread.store, of.key, of.nkey, not of.marks & MARK_NO_UPDATE)
    it = item_get_locked(c.thread.store, of.key, of.nkey, False, hv)
    if it == NULL and of.marks & MARK_VIVIFY:
        it = vivify_item(c, of, hv[0], b"", 0, NULL)
        created[0] = it != NULL
    return it


cdef void mget_drop(conn *c, const meta_flags *of, item *it, uint32_t hv) noexcept nogil:
    """Gives back the item from mget_find, and the lock."""
    if of.marks & MARK_LOCKED:
        do_item_remove(c.thread.store, it)
        item_unlock(c.thread.store, hv)
    else:
        item_remove(c.thread.store, it)


cdef void mget_missed(conn *c, const token *t, int n, const meta_flags *of, uint32_t hv) noexcept nogil:
    if of.marks & MARK_LOCKED:
        item_unlock(c.thread.store, hv)
    counter_add(&c.thread.stats.get_cmds, 1)
    counter_add(&c.thread.stats.get_misses, 1)
    if not of.marks & MARK_QUIET:
        meta_line(c, b"EN", t, n, of)


cdef inline char *put_recache_marks(conn *c, char *p, item *it, const meta_flags *of,
                                    const mget_outcome *done) noexcept nogil:
    """Writes the marks Z: a client recaches the item already; X: the item is stale; W: this client is to recache the
    item, as is now noted in the item."""
    cdef unsigned int flags = <unsigned int>relaxed_load(&it.it_flags)
    cdef bint sent = flags & ITEM_TOKEN_SENT != 0
    # The first client to see a stale item recaches the item.
    cdef bint won = done.won or flags & (ITEM_STALE | ITEM_TOKEN_SENT) == ITEM_STALE
    if won and of.marks & MARK_LOCKED:
        do_item_set_flags(c.thread.store, it, ITEM_TOKEN_SENT)
    elif won:
        won = item_win(c.thread.store, it, done.cas)
        sent = not won
    if sent:
        p = put_mark(p, c'Z')
    if flags & ITEM_STALE:
        p = put_mark(p, c'X')
    if won:
        p = put_mark(p, c'W')
    return p


cdef char *put_item_flags(conn *c, char *p, const token *t, int n, item *it, const meta_flags *of,
                          mget_outcome *done) noexcept nogil:
    """Does the flags of an mg in their order: a flag's result depends on the flags before."""
    cdef rel_time_t now = store_time(c.thread.store)
    cdef char flag
    cdef int i
    for i in range(2, n):
        flag = t[i].value[0]
        if flag == c'k':
            p = put_key(p, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_KEY_BINARY))
        elif flag == c'O':
            p = put_token(p, &t[i])
        elif flag == c's':
            p = put_flag_u32(p, c's', <uint32_t>it.nbytes - 2)
        elif flag == c'f':
            p = put_flag_u32(p, c'f', ITEM_client_flags(it))
        elif flag == c'c':
            p = put_cas(p, ITEM_get_cas(it))
        elif flag == c't':
            p = put_ttl(p, item_exptime(it), now)
        elif flag == c'l':
            p = put_flag_u32(p, c'l', now - item_time(it))
        elif flag == c'h':
            p = put_flag_u32(p, c'h', 1 if ITEM_has(it, ITEM_FETCHED) else 0)
        elif flag == c'T':
            done.touched = True
            do_item_set_exptime(c.thread.store, it, of.exptime)
        elif flag == c'N':
            if done.created:
                done.won = True
                do_item_set_exptime(c.thread.store, it, of.autoviv_exptime)
        elif flag == c'R':
            if (not done.created and not it.it_flags & ITEM_TOKEN_SENT and it.exptime != 0
                    and it.exptime < of.recache_time):
                done.won = True
    return put_recache_marks(c, p, it, of, done)


cdef inline void count_mget(conn *c, const item *it, bint touched) noexcept nogil:
    cdef thread_stats *stats = &c.thread.stats
    if touched:
        counter_add(&stats.touch_cmds, 1)
        counter_add(&stats.slab[ITEM_clsid(it)].touch_hits, 1)
    else:
        counter_add(&stats.get_cmds, 1)
        counter_add(&stats.lru_hits[ITEM_queue(it)], 1)


cdef inline void resp_write(conn *c, mc_resp *resp, char *p, item *it, const remote_buf *sink) noexcept nogil:
    """Ends the text of resp at p. The item's value, without its line end, goes to the sink. Takes over the caller's
    reference to the item."""
    resp_add(resp, p)
    resp.item = it
    resp.data_offset = 0
    resp.data_length = <uint32_t>it.nbytes - 2
    resp.sink = sink[0]
    c.pending_bytes += resp.data_length


cdef void put_value(conn *c, mc_resp *resp, char *p, item *it, const meta_flags *of, bint sink) noexcept nogil:
    """Ends the text of resp at p, and adds a value that is not copied. Takes over the caller's reference."""
    cdef uint32_t n = <uint32_t>it.nbytes - 2 if sink else <uint32_t>it.nbytes
    cdef missed_fn missed = NULL
    if ITEM_has(it, ITEM_HDR):
        if not of.marks & MARK_QUIET:
            missed = meta_lost
        resp_external(c, resp, p, it, n, &of.remote if sink else NULL, missed)
    elif sink:
        resp_write(c, resp, p, it, &of.remote)
    else:
        resp_value(c, resp, p, it, n, False)


cdef void process_mget_command(conn *c, const token *t, int n) noexcept nogil:
    cdef char key_buffer[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef mget_outcome done
    cdef const char *error = parse_meta_flags(c, t, n, 2, META_GET, &of, key_buffer)
    cdef item *it
    cdef mc_resp *resp
    cdef char *p
    cdef uint32_t hv = 0
    cdef uint32_t length
    cdef size_t room
    cdef bint value, sink
    cdef bint copy = False
    if error != NULL:
        out_errstring(c, error)
        return
    if refuse_long_opaque(c, &of):
        return
    memset(&done, 0, sizeof(done))
    it = mget_find(c, &of, &hv, &done.created)
    if it == NULL:
        mget_missed(c, t, n, &of, hv)
        return
    if overused(it):
        mget_drop(c, &of, it, hv)
        out_errstring(c, b"SERVER_ERROR refcount overflow during fetch")
        return

    length = <uint32_t>it.nbytes - 2
    done.cas = ITEM_get_cas(it)
    value = of.marks & MARK_VALUE and not (of.marks & MARK_CAS and done.cas == of.req_cas_id)
    sink = value and of.remote.set and length > c.eager and length <= of.remote.length
    room = meta_room(&of)
    if sink or (value and ITEM_has(it, ITEM_HDR)):
        resp = resp_start(c)
    else:
        copy = value and fits_copy(it, <size_t>it.nbytes, room)
        resp = resp_text(c, room + (<size_t>it.nbytes if copy else 0))
    if resp == NULL:
        mget_drop(c, &of, it, hv)
        return
    p = put_status(resp.wbuf + resp.wbytes, value, length)
    p = put_item_flags(c, p, t, n, it, &of, &done)
    if sink:
        p = put_mark(p, c'@')
    memcpy(p, b"\r\n", 2)
    p += 2

    count_mget(c, it, done.touched)
    if of.marks & MARK_LOCKED:
        if not of.marks & MARK_NO_UPDATE:
            do_item_bump(c.thread.store, it, hv)
        item_unlock(c.thread.store, hv)
    if copy:
        resp_value(c, resp, p, it, <uint32_t>it.nbytes, True)
    elif value:
        put_value(c, resp, p, it, &of, sink)
    else:
        resp_add(resp, p)
        item_remove(c.thread.store, it)


# ---- ms --------------------------------------------------------------------------------------------------------------

cdef const char *mset_mode(const meta_flags *of, store_op *op) noexcept nogil:
    """Finds the store operation for mode, CAS and vivify flags. Returns NULL or an error line."""
    if of.mode == 0 or of.mode == c'S':
        op[0] = NREAD_CAS if of.marks & MARK_CAS else NREAD_SET
    elif of.mode == c'E':
        op[0] = NREAD_ADD
    elif of.mode == c'A':
        op[0] = NREAD_APPENDVIV if of.marks & MARK_VIVIFY else NREAD_APPEND
    elif of.mode == c'P':
        op[0] = NREAD_PREPENDVIV if of.marks & MARK_VIVIFY else NREAD_PREPEND
    elif of.mode == c'R':
        op[0] = NREAD_CAS if of.marks & MARK_CAS else NREAD_REPLACE
    else:
        return b"CLIENT_ERROR invalid mode for ms M token"
    return NULL


cdef void stash_mset_tokens(conn *c, const token *t, int n) noexcept nogil:
    """Keeps the return flags for the reply: the line is gone when the payload has arrived."""
    cdef char *p = c.mset_tokens
    cdef char flag
    cdef int i
    for i in range(3, n):
        flag = t[i].value[0]
        if flag == c'O':
            p[0] = c'O'
            p[1] = <char>t[i].length
            memcpy(p + 2, t[i].value, t[i].length)
            p += 2 + t[i].length
        elif flag == c'k' or flag == c'c' or flag == c's':
            p[0] = flag
            p += 1
    c.nmset_tokens = <uint8_t>(p - c.mset_tokens)


cdef item *mset_item(conn *c, const meta_flags *of, store_op op, size_t nbytes, const char **error) noexcept nogil:
    """Allocates the item for nbytes of data. NULL: *error is the line to answer."""
    cdef rel_time_t exptime = of.exptime
    cdef item *it
    if op == NREAD_APPENDVIV or op == NREAD_PREPENDVIV:
        exptime = of.autoviv_exptime
    it = item_alloc(c.thread.store, of.key, of.nkey, of.client_flags, exptime, nbytes)
    if it == NULL:
        error[0] = alloc_error(c, op, of.key, of.nkey, of.client_flags, nbytes, True)
        return NULL
    ITEM_set_cas(it, of.req_cas_id)
    if of.marks & MARK_BINARY_KEY:
        item_set_flags(it, ITEM_KEY_BINARY)
    counter_add(&c.thread.stats.slab[ITEM_clsid(it)].set_cmds, 1)
    return it


cdef void process_mset_command(conn *c, const token *t, int n) noexcept nogil:
    """ms <key> <datalen> <flags>*"""
    cdef char key_buffer[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef const char *error
    cdef store_op op = NREAD_SET
    cdef item *it = NULL
    cdef int32_t length
    cdef bint remote = False
    cdef int i
    if n < 3 or not parse_i32(t[2].value, t[2].length, &length) or length < 0 or length > INT32_MAX - 2:
        out_string(c, BAD_FORMAT)
        return
    for i in range(3, n):
        if t[i].value[0] == c'@':
            remote = True
    error = parse_meta_flags(c, t, n, 3, META_SET, &of, key_buffer)
    if error == NULL:
        error = mset_mode(&of, &op)
    if error == NULL and of.opaque != NULL and of.opaque.length > META_MAX_OPAQUE:
        error = OPAQUE_TOO_LONG
    if error == NULL:
        it = mset_item(c, &of, op, <size_t>length + 2, &error)
    if it == NULL:
        out_errstring(c, error)
        # No data block follows a line with the address of the value.
        if not remote:
            swallow(c, <size_t>length + 2)
        return
    stash_mset_tokens(c, t, n)
    expect_payload(c, it, <size_t>length + 2, op)
    c.cas = of.cas_id_in
    c.set_stale = of.marks & MARK_STALE and op == NREAD_CAS
    c.mset_res = True
    c.noreply = of.marks & MARK_QUIET != 0
    if remote:
        c.remote = of.remote
        c.remote.length = <uint32_t>length
        c.rlbytes = <size_t>length
        conn_set_state(c, conn_rdma_read)


cdef void finalize_mset(conn *c, item *it, store_item_type result, int nbytes, uint64_t cas) noexcept nogil:
    cdef mc_resp *resp
    cdef const char *flag = c.mset_tokens
    cdef const char *end = flag + c.nmset_tokens
    cdef char *p
    conn_set_state(c, conn_new_cmd)
    if result == STORED and c.noreply:
        return
    resp = resp_text(c, META_ROOM + META_KEY_ROOM if c.nmset_tokens else 4)
    if resp == NULL:
        return
    p = resp.wbuf + resp.wbytes
    if result == STORED:
        memcpy(p, b"HD", 2)
    elif result == EXISTS:
        memcpy(p, b"EX", 2)
    elif result == NOT_FOUND:
        memcpy(p, b"NF", 2)
    else:
        memcpy(p, b"NS", 2)
    p += 2
    while flag < end:
        if flag[0] == c'O':
            p[0] = c' '
            memcpy(p + 1, flag + 2, <size_t>flag[1])
            p += 1 + flag[1]
            flag += 2 + flag[1]
            continue
        if flag[0] == c'k':
            p = put_key(p, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_KEY_BINARY))
        elif flag[0] == c'c':
            p = put_cas(p, cas)
        else:
            p = put_flag_u32(p, c's', <uint32_t>nbytes - 2)
        flag += 1
    memcpy(p, b"\r\n", 2)
    resp_add(resp, p + 2)


# ---- md --------------------------------------------------------------------------------------------------------------

cdef const char *mdelete_value(conn *c, const meta_flags *of, uint32_t hv, item **it) noexcept nogil:
    """Replaces `*it` by an empty item. Returns the two letters of a reply, or an error line."""
    cdef store *s = c.thread.store
    cdef uint64_t cas = of.cas_id_in if of.marks & MARK_NEW_CAS else ITEM_get_cas(it[0])
    cdef item *empty = item_alloc(s, of.key, of.nkey, of.client_flags, of.exptime, 2)
    assert_held(item_mutex(s, hv))
    if empty == NULL:
        return OUT_OF_MEMORY
    memcpy(ITEM_data(empty), b"\r\n", 2)
    ITEM_set_cas(empty, 0)
    if of.marks & MARK_BINARY_KEY:
        item_set_flags(empty, ITEM_KEY_BINARY)
    if do_store_item(s, empty, hv, NREAD_SET, cas, False, NULL) != STORED:
        do_item_remove(s, empty)
        return b"NS"
    do_item_remove(s, it[0])
    it[0] = empty
    return b"HD"


cdef const char *mdelete_item(conn *c, const meta_flags *of, uint32_t hv, item **it) noexcept nogil:
    """Removes `*it` or its value, or makes the item stale. Returns as mdelete_value. The caller gives back `*it`
    afterwards.
    """
    cdef thread_stats *stats = &c.thread.stats
    cdef const char *code = b"HD"
    assert_held(item_mutex(c.thread.store, hv))
    if it[0] == NULL:
        counter_add(&stats.delete_misses, 1)
        return b"NF"
    if of.marks & MARK_CAS and ITEM_get_cas(it[0]) != of.req_cas_id:
        counter_add(&stats.delete_misses, 1)
        return b"EX"
    if of.marks & MARK_NO_VALUE:
        code = mdelete_value(c, of, hv, it)
        if code[0] != c'H':
            return code
    if of.marks & MARK_STALE:
        if of.marks & MARK_NEW_TTL:
            do_item_set_exptime(c.thread.store, it[0], of.exptime)
        # Without ITEM_TOKEN_SENT the item's next reader is told to recache it.
        do_item_set_flags(c.thread.store, it[0], ITEM_STALE)
        do_item_clear_flags(c.thread.store, it[0], ITEM_TOKEN_SENT)
        # Direct reads load the CAS value before the flags, so the flags change first.
        write_fence()
        ITEM_set_cas(it[0], of.cas_id_in if of.marks & MARK_NEW_CAS else get_cas_id(c.thread.store))
    else:
        counter_add(&stats.slab[ITEM_clsid(it[0])].delete_hits, 1)
        log_deleted(c, it[0], LOG_TYPE_META_DELETE)
        if not of.marks & MARK_NO_VALUE:
            do_item_unlink(c.thread.store, it[0], hv)
    return code


cdef void process_mdelete_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef char key_buffer[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef const char *error = parse_meta_flags(c, t, n, 2, META_DELETE, &of, key_buffer)
    cdef const char *code
    cdef item *it
    cdef uint32_t hv
    if error != NULL:
        out_errstring(c, error)
        return
    if refuse_long_opaque(c, &of):
        return
    it = item_get_locked(s, of.key, of.nkey, False, &hv)
    code = mdelete_item(c, &of, hv, &it)
    if it != NULL:
        do_item_remove(s, it)
    item_unlock(s, hv)
    if code[2] != 0:
        out_errstring(c, code)
    elif code[0] != c'H' or not of.marks & MARK_QUIET:
        meta_line(c, code, t, n, &of)


# ---- ma --------------------------------------------------------------------------------------------------------------

cdef struct marithmetic:         # the result of an ma
    item *item               # with a reference
    uint64_t cas             # the item's CAS value
    rel_time_t exptime       # the value of the flag t, as changed by earlier flags T and N
    bint created             # by the flag N
    char text[INCR_MAX_STORAGE_LEN]  # the number's digits and a NUL


cdef void set_new_cas(conn *c, const meta_flags *of, item *it, uint32_t *hv, uint64_t cas) noexcept nogil:
    """Gives the incremented item the client's CAS value. If the increment has replaced the item, looks up the
    successor. The lock is released for this lookup; an item stored by another client meanwhile is left alone."""
    cdef store *s = c.thread.store
    cdef item *successor
    assert_held(item_mutex(s, hv[0]))
    if not it.it_flags & ITEM_LINKED:
        item_unlock(s, hv[0])
        successor = item_get_locked(s, of.key, of.nkey, False, hv)
        if successor != NULL:
            if ITEM_get_cas(successor) == cas:
                do_item_set_cas(s, successor, of.cas_id_in)
            do_item_remove(s, successor)
    do_item_set_cas(s, it, of.cas_id_in)


cdef delta_result_type add_to_item(conn *c, const meta_flags *of, bint incr, uint32_t *hv,
                                   marithmetic *m) noexcept nogil:
    """Increments or decrements m.item."""
    cdef item *it = m.item
    cdef delta_result_type result
    assert_held(item_mutex(c.thread.store, hv[0]))
    m.exptime = it.exptime
    # Set the expiry time first: a number in need of more room is stored in a new item, which inherits the time.
    if of.marks & MARK_NEW_TTL:
        do_item_set_exptime(c.thread.store, it, of.exptime)
    m.cas = of.req_cas_id
    result = do_add_delta(c.thread.store, it, hv[0], incr, of.delta, m.text, &m.cas)
    if result != OK:
        do_item_set_exptime(c.thread.store, it, m.exptime)
        return result
    count_delta(c, it, incr)
    if of.marks & MARK_NEW_CAS:
        set_new_cas(c, of, it, hv, m.cas)
        m.cas = of.cas_id_in
    return OK


cdef bint make_number(conn *c, const meta_flags *of, uint32_t hv, marithmetic *m) noexcept nogil:
    """Makes an item with the initial value. False: out of memory."""
    cdef char *end = itoa_u64(of.initial, m.text)
    end[0] = 0
    m.item = vivify_item(c, of, hv, m.text, <size_t>(end - m.text), &m.cas)
    m.created = True
    m.exptime = 0
    return m.item != NULL


cdef char *put_number_line(conn *c, char *p, const token *t, int n, const meta_flags *of,
                           marithmetic *m) noexcept nogil:
    """Writes the reply's first line. Does the flags T and N in their order: t returns the expiry time set by the flags
    before."""
    cdef char flag
    cdef int i
    p = put_status(p, of.marks & MARK_VALUE != 0, <uint32_t>strlen(m.text))
    for i in range(2, n):
        flag = t[i].value[0]
        if flag == c'c':
            p = put_cas(p, m.cas)
        elif flag == c't':
            p = put_ttl(p, m.exptime, store_time(c.thread.store))
        elif flag == c'T' or (flag == c'N' and m.created):
            m.exptime = of.exptime if flag == c'T' else of.autoviv_exptime
            do_item_set_exptime(c.thread.store, m.item, m.exptime)
        elif flag == c'O':
            p = put_token(p, &t[i])
        elif flag == c'k':
            p = put_key(p, of.key, of.nkey, of.marks & MARK_BINARY_KEY != 0)
    memcpy(p, b"\r\n", 2)
    return p + 2


cdef void number_failed(conn *c, const token *t, int n, const meta_flags *of, delta_result_type result) noexcept nogil:
    if result == DELTA_ITEM_CAS_MISMATCH:
        meta_line(c, b"EX", t, n, of)
    elif result == NON_NUMERIC:
        out_errstring(c, NOT_A_NUMBER)
    else:
        out_errstring(c, OUT_OF_MEMORY)


cdef void process_marithmetic_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef char key_buffer[KEY_MAX_LENGTH]
    cdef char line[WRITE_BUFFER_SIZE]
    cdef meta_flags of
    cdef marithmetic m
    cdef delta_result_type result = OK
    cdef char *p
    cdef uint32_t hv
    cdef size_t length
    cdef bint incr
    if parse_meta_flags(c, t, n, 2, META_ARITHMETIC, &of, key_buffer) != NULL:
        out_errstring(c, b"CLIENT_ERROR invalid or duplicate flag")
        return
    incr = of.mode == 0 or of.mode == c'I' or of.mode == c'+'
    if not incr and of.mode != c'D' and of.mode != c'-':
        out_errstring(c, b"CLIENT_ERROR invalid mode for ma M token")
        return
    if refuse_long_opaque(c, &of):
        return
    memset(&m, 0, sizeof(m))
    m.item = item_get_locked(s, of.key, of.nkey, False, &hv)
    if m.item != NULL:
        result = add_to_item(c, &of, incr, &hv, &m)
        if result != OK:
            do_item_remove(s, m.item)
            item_unlock(s, hv)
            number_failed(c, t, n, &of, result)
            return
    elif not of.marks & MARK_VIVIFY:
        item_unlock(s, hv)
        count_delta(c, NULL, incr)
        meta_line(c, b"NF", t, n, &of)
        return
    elif not make_number(c, &of, hv, &m):
        item_unlock(s, hv)
        out_errstring(c, b"SERVER_ERROR Out of memory allocating new item")
        return
    p = put_number_line(c, line, t, n, &of, &m)
    do_item_remove(s, m.item)
    item_unlock(s, hv)
    if of.marks & MARK_QUIET:
        return
    if of.marks & MARK_VALUE:
        length = strlen(m.text)
        memcpy(p, m.text, length)
        memcpy(p + length, b"\r\n", 2)
        p += length + 2
    c.noreply = False
    out_line(c, line, <size_t>(p - line))


# ---- me --------------------------------------------------------------------------------------------------------------

cdef inline char *put_text(char *p, const char *text) noexcept nogil:
    cdef size_t length = strlen(text)
    memcpy(p, text, length)
    return p + length


cdef char *put_debug_line(char *p, item *it, rel_time_t now) noexcept nogil:
    cdef rel_time_t exptime = item_exptime(it)
    p = put_text(p, b"ME ")
    if ITEM_has(it, ITEM_KEY_BINARY):
        p = base64_encode(ITEM_key(it), it.nkey, p)
    else:
        memcpy(p, ITEM_key(it), it.nkey)
        p += it.nkey
    p = put_text(p, b" exp=")
    p = put_text(p, b"-1") if exptime == 0 else itoa_u32(exptime - now, p)
    p = itoa_u32(now - item_time(it), put_text(p, b" la="))
    p = itoa_u64(ITEM_get_cas(it), put_text(p, b" cas="))
    p = put_text(p, b" fetch=yes" if ITEM_has(it, ITEM_FETCHED) else b" fetch=no")
    p = itoa_u32(ITEM_clsid(it), put_text(p, b" cls="))
    p = itoa_u64(ITEM_ntotal(it), put_text(p, b" size="))
    return put_text(p, b"\r\n")


cdef void process_mdebug_command(conn *c, const token *t, int n) noexcept nogil:
    """me <key> [b <word>]: shows the store's data about an item, without touching the item.

    `b`: the key is in base64. As in memcached 1.6.45, a `b` at the end of the line has no effect: another word must
    follow.
    """
    cdef store *s = c.thread.store
    cdef char key_buffer[KEY_MAX_LENGTH]
    cdef const char *key = t[1].value
    cdef size_t nkey = t[1].length
    cdef item *it
    cdef mc_resp *resp
    if nkey > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    if n > 3 and token_is(&t[2], b"b", 1):
        nkey = base64_decode(key, nkey, key_buffer)
        key = key_buffer
        if nkey == 0:
            out_string(c, BAD_FORMAT)
            return
    counter_add(&c.thread.stats.meta_cmds, 1)
    it = item_get(s, key, nkey, False)
    if it == NULL:
        out_line(c, b"EN\r\n", 4)
        return
    resp = resp_text(c, WRITE_BUFFER_SIZE)
    if resp != NULL:
        resp_add(resp, put_debug_line(resp.wbuf + resp.wbytes, it, store_time(s)))
    item_remove(s, it)


# ---- dispatch --------------------------------------------------------------------------------------------------------

cdef bint process_meta_command(conn *c, const char *line, const char *end) noexcept nogil:
    cdef token t[LINE_TOKENS]
    cdef char command = line[1]
    cdef int i, n
    if command == META_NOOP:
        out_line(c, b"MN\r\n", 4)
        return True
    if (command != META_GET and command != META_SET and command != META_DELETE and command != META_ARITHMETIC
            and command != META_DEBUG):
        return False
    conn_set_state(c, conn_new_cmd)
    n = tokenize(line, end, t)
    for i in range(3 if command == META_SET else 2, n):
        if not flag_allowed(t[i].value[0], command):
            n = 0
            break
    if n < 2:
        out_string(c, BAD_FORMAT)
    elif command == META_GET:
        process_mget_command(c, t, n)
    elif command == META_SET:
        process_mset_command(c, t, n)
    elif command == META_DELETE:
        process_mdelete_command(c, t, n)
    elif command == META_ARITHMETIC:
        process_marithmetic_command(c, t, n)
    else:
        process_mdebug_command(c, t, n)
    return True

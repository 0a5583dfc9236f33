# Meta commands. Included by ascii.pyx.

cdef enum:
    META_MAX_TOKENS = 20     # command and key included
    META_MAX_OPAQUE = 32     # the O included
    META_ROOM = 136          # a reply line without its key: "VA " size, s t f l h c, O, Z X W, @, line end
    META_KEY_ROOM = 256      # " k", 252 bytes of base64 (250 of plain key), " b"

cdef struct meta_flags:
    const char *key          # decoded
    size_t nkey
    const token *opaque      # NULL: none
    bint key_binary
    bint locked              # what the flags do needs the item lock
    bint vivify
    bint value
    bint return_key
    bint no_update
    bint quiet
    bint has_cas
    bint has_cas_in
    bint new_ttl
    bint remove_value
    bint set_stale
    char mode
    rel_time_t exptime
    rel_time_t autoviv_exptime
    rel_time_t recache_time
    uint32_t client_flags
    uint64_t req_cas_id
    uint64_t cas_id_in
    uint64_t delta
    uint64_t initial
    remote_buf remote


cdef bint parse_remote(const char *p, size_t length, bint with_length, remote_buf *out) noexcept nogil:
    """addr:rkey or addr:rkey:length, all hexadecimal."""
    cdef const char *end = p + length
    cdef const char *colon
    cdef uint64_t addr, rkey
    cdef uint64_t size = 0
    colon = <const char *>memchr(p, c':', length)
    if colon == NULL or not parse_hex(p, <size_t>(colon - p), 16, &addr):
        return False
    p = colon + 1
    if with_length:
        colon = <const char *>memchr(p, c':', <size_t>(end - p))
        if colon == NULL or not parse_hex(colon + 1, <size_t>(end - colon - 1), 8, &size):
            return False
        end = colon
    if not parse_hex(p, <size_t>(end - p), 8, &rkey):
        return False
    out.addr = addr
    out.rkey = <uint32_t>rkey
    out.length = <uint32_t>size
    out.set = True
    return True


cdef inline bint flag_time(conn *c, const token *t, rel_time_t *out) noexcept nogil:
    cdef int32_t exptime
    if t.length < 2 or not parse_i32(t.value + 1, t.length - 1, &exptime):
        return False
    out[0] = expiry(c.thread.store, exptime)
    return True


cdef inline bint flag_u64(const token *t, uint64_t *out) noexcept nogil:
    return t.length > 1 and parse_u64(t.value + 1, t.length - 1, out)


cdef bint parse_meta_flags(conn *c, const token *t, int n, int first, char command, meta_flags *of, char *binkey,
                           const char **error) noexcept nogil:
    """Reads the key t[1] and the flags from t[first] on into *of, which is zero or has defaults. False: *error is the
    line to answer. Else *error is NULL. binkey has KEY_MAX_LENGTH bytes."""
    cdef uint64_t seen[2]
    cdef uint8_t flag
    cdef bint good = True
    cdef int i
    cdef const token *f
    of.key = t[1].value
    of.nkey = t[1].length
    error[0] = BAD_FORMAT
    if of.nkey > KEY_MAX_LENGTH:
        return False
    if n > META_MAX_TOKENS:
        error[0] = b"CLIENT_ERROR options flags are too long"
        return False
    seen[0] = 0
    seen[1] = 0
    for i in range(first, n):
        f = &t[i]
        flag = <uint8_t>f.value[0]
        if seen[flag >> 6] >> (flag & 63) & 1:
            error[0] = b"CLIENT_ERROR duplicate flag"
            return False
        seen[flag >> 6] |= <uint64_t>1 << (flag & 63)
        if flag == c'v':
            of.value = True
        elif flag == c'k':
            of.return_key = True
        elif flag == c'O':
            of.opaque = f
        elif flag == c'q':
            of.quiet = True
        elif flag == c's' or flag == c't' or flag == c'c' or flag == c'f' or flag == c'P' or flag == c'L':
            pass
        elif flag == c'u':
            of.no_update = True
        elif flag == c'h' or flag == c'l':
            # what the item was before this access
            of.locked = True
        elif flag == c'x':
            of.remove_value = True
        elif flag == c'I':
            of.set_stale = True
        elif flag == c'b':
            of.nkey = base64_decode(t[1].value, t[1].length, binkey)
            of.key = binkey
            of.key_binary = True
            if of.nkey == 0:
                error[0] = b"CLIENT_ERROR error decoding key"
                good = False
        elif flag == c'T':
            of.locked = True
            of.new_ttl = True
            if not flag_time(c, f, &of.exptime):
                error[0] = BAD_TOKEN
                good = False
        elif flag == c'N':
            of.locked = True
            of.vivify = True
            if not flag_time(c, f, &of.autoviv_exptime):
                error[0] = BAD_TOKEN
                good = False
        elif flag == c'R':
            of.locked = True
            if not flag_time(c, f, &of.recache_time):
                error[0] = BAD_TOKEN
                good = False
        elif flag == c'F':
            if f.length < 2 or not parse_u32(f.value + 1, f.length - 1, &of.client_flags):
                good = False
        elif flag == c'C':
            of.has_cas = True
            if not flag_u64(f, &of.req_cas_id):
                error[0] = BAD_TOKEN
                good = False
        elif flag == c'E':
            of.has_cas_in = True
            if not flag_u64(f, &of.cas_id_in):
                error[0] = BAD_TOKEN
                good = False
        elif flag == c'M':
            of.mode = f.value[1] if f.length > 1 else c' '
        elif flag == c'J':
            if not flag_u64(f, &of.initial):
                error[0] = b"CLIENT_ERROR invalid numeric initial value"
                good = False
        elif flag == c'D':
            if not flag_u64(f, &of.delta):
                error[0] = b"CLIENT_ERROR invalid numeric delta value"
                good = False
        elif flag == c'@':
            if not c.engine.remote:
                error[0] = NO_QUEUE_PAIR
                return False
            if not parse_remote(f.value + 1, f.length - 1, command == c'g', &of.remote):
                error[0] = BAD_TOKEN
                good = False
        else:
            error[0] = b"CLIENT_ERROR invalid flag"
            return False
    if good:
        error[0] = NULL
    return good


cdef inline bint opaque_too_long(conn *c, const meta_flags *of) noexcept nogil:
    """Answers an opaque that is too long with an error."""
    if of.opaque == NULL or of.opaque.length <= META_MAX_OPAQUE:
        return False
    out_errstring(c, b"CLIENT_ERROR opaque token too long")
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
    return META_ROOM + (META_KEY_ROOM if of.return_key else 0)


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
            p = put_key(p, of.key, of.nkey, of.key_binary)
    memcpy(p, b"\r\n", 2)
    resp_add(resp, p + 2)


# ---- mg --------------------------------------------------------------------------------------------------------------

cdef item *vivify_item(conn *c, const meta_flags *of, uint32_t hv, const char *data, size_t length,
                       uint64_t *cas) noexcept nogil:
    """Makes an item for the key, whose lock is held and which has none. Its expiry is set at the flag N. cas: out, its
    CAS value; NULL: nobody asks, and watchers are told of no store. NULL: out of memory."""
    cdef store *s = c.thread.store
    cdef item *it = item_alloc(s, of.key, of.nkey, 0, 0, length + 2)
    if it == NULL:
        return NULL
    memcpy(ITEM_data(it), data, length)
    memcpy(ITEM_data(it) + length, b"\r\n", 2)
    ITEM_set_cas(it, 0)
    if of.key_binary:
        item_set_flags(it, ITEM_KEY_BINARY)
    if cas == NULL:
        do_item_link(s, it, hv, of.cas_id_in if of.cas_id_in != 0 else get_cas_id(s))
    elif do_store_item(s, it, NREAD_ADD, hv, of.cas_id_in, cas, False, NULL) != STORED:
        do_item_remove(s, it)
        return NULL
    return it


cdef void process_mget_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef rel_time_t now = store_time(s)
    cdef char binkey[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef const char *error
    cdef item *it
    cdef mc_resp *resp
    cdef char *p
    cdef uint32_t hv = 0
    cdef uint32_t length
    cdef size_t room
    cdef bint created = False
    cdef bint won = False
    cdef bint ttl_set = False
    cdef bint copy = False
    cdef bint sink
    cdef char flag
    cdef int i
    memset(&of, 0, sizeof(of))
    if not parse_meta_flags(c, t, n, 2, c'g', &of, binkey, &error):
        out_errstring(c, error)
        return
    if opaque_too_long(c, &of):
        return
    if of.locked:
        it = item_get_locked(s, of.key, of.nkey, False, &hv)
    else:
        it = item_get(s, of.key, of.nkey, not of.no_update)
    if it != NULL and overused(it):
        if of.locked:
            do_item_remove(s, it)
            item_unlock(s, hv)
        else:
            item_remove(s, it)
        out_errstring(c, b"SERVER_ERROR refcount overflow during fetch")
        return
    if it == NULL and of.vivify:
        it = vivify_item(c, &of, hv, b"", 0, NULL)
        created = it != NULL
    if it == NULL:
        if of.locked:
            item_unlock(s, hv)
        counter_add(&stats.get_cmds, 1)
        counter_add(&stats.get_misses, 1)
        if not of.quiet:
            meta_line(c, b"EN", t, n, &of)
        return

    if of.has_cas and ITEM_get_cas(it) == of.req_cas_id:
        of.value = False
    length = <uint32_t>it.nbytes - 2
    sink = of.value and of.remote.set and length > c.eager and length <= of.remote.length
    room = meta_room(&of)
    if of.value and not sink:
        copy = fits_copy(it, room)
    if sink:
        resp = resp_start(c)
    else:
        resp = resp_text(c, room + (<size_t>it.nbytes if copy else 0))
    if resp == NULL:
        if of.locked:
            do_item_remove(s, it)
            item_unlock(s, hv)
        else:
            item_remove(s, it)
        return
    p = resp.wbuf + resp.wbytes
    if of.value:
        memcpy(p, b"VA ", 3)
        p = itoa_u32(length, p + 3)
    else:
        memcpy(p, b"HD", 2)
        p += 2
    for i in range(2, n):
        flag = t[i].value[0]
        if flag == c'k':
            p = put_key(p, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_KEY_BINARY))
        elif flag == c'O':
            p = put_token(p, &t[i])
        elif flag == c's':
            p = put_flag_u32(p, c's', length)
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
            ttl_set = True
            item_set_exptime(it, of.exptime)
        elif flag == c'N':
            if created:
                won = True
                item_set_exptime(it, of.autoviv_exptime)
        elif flag == c'R':
            if (not created and not it.it_flags & ITEM_TOKEN_SENT and it.exptime != 0
                    and it.exptime < of.recache_time):
                won = True
    if ITEM_has(it, ITEM_TOKEN_SENT):
        p = put_mark(p, c'Z')
    if ITEM_has(it, ITEM_STALE):
        p = put_mark(p, c'X')
        # The first to see a stale item recaches it. Only a marked item is written to, and that under the lock.
        if not ITEM_has(it, ITEM_TOKEN_SENT):
            won = True
    if won:
        p = put_mark(p, c'W')
        item_set_flags(it, ITEM_TOKEN_SENT)
    if sink:
        p = put_mark(p, c'@')
    memcpy(p, b"\r\n", 2)
    p += 2

    if ttl_set:
        counter_add(&stats.touch_cmds, 1)
        counter_add(&stats.slab[ITEM_clsid(it)].touch_hits, 1)
    else:
        counter_add(&stats.get_cmds, 1)
        counter_add(&stats.lru_hits[ITEM_queue(it)], 1)
    if of.locked:
        if not of.no_update:
            do_item_bump(s, it, hv)
        item_unlock(s, hv)
    if sink:
        resp_add(resp, p)
        resp.item = it
        resp.data_offset = 0
        resp.data_length = length
        resp.sink = of.remote
        c.pending_bytes += length
    elif of.value:
        add_value(c, resp, p, it, copy)
    else:
        resp_add(resp, p)
        item_remove(s, it)


# ---- ms --------------------------------------------------------------------------------------------------------------

cdef const char *mset_mode(const meta_flags *of, store_op *op) noexcept nogil:
    """The store operation that mode, CAS and vivify flags ask for; or an error line."""
    if of.mode == 0 or of.mode == c'S':
        op[0] = NREAD_CAS if of.has_cas else NREAD_SET
    elif of.mode == c'E':
        op[0] = NREAD_ADD
    elif of.mode == c'A':
        op[0] = NREAD_APPENDVIV if of.vivify else NREAD_APPEND
    elif of.mode == c'P':
        op[0] = NREAD_PREPENDVIV if of.vivify else NREAD_PREPEND
    elif of.mode == c'R':
        op[0] = NREAD_CAS if of.has_cas else NREAD_REPLACE
    else:
        return b"CLIENT_ERROR invalid mode for ms M token"
    return NULL


cdef void stash_mset_tokens(conn *c, const token *t, int n) noexcept nogil:
    """Keeps the return flags until the payload is there; the line will be gone by then."""
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


cdef void process_mset_command(conn *c, const token *t, int n) noexcept nogil:
    """ms <key> <datalen> <flags>*"""
    cdef store *s = c.thread.store
    cdef char binkey[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef const char *error
    cdef store_op op = NREAD_SET
    cdef item *it
    cdef int32_t length
    cdef bint remote = False
    cdef rel_time_t exptime
    cdef int i
    if n < 3 or not parse_i32(t[2].value, t[2].length, &length) or length < 0 or length > INT32_MAX - 2:
        out_string(c, BAD_FORMAT)
        return
    for i in range(3, n):
        if t[i].value[0] == c'@':
            remote = True
    memset(&of, 0, sizeof(of))
    if parse_meta_flags(c, t, n, 3, c's', &of, binkey, &error):
        error = mset_mode(&of, &op)
        if error == NULL and of.opaque != NULL and of.opaque.length > META_MAX_OPAQUE:
            error = b"CLIENT_ERROR opaque token too long"
    it = NULL
    if error == NULL:
        exptime = of.autoviv_exptime if op == NREAD_APPENDVIV or op == NREAD_PREPENDVIV else of.exptime
        it = item_alloc(s, of.key, of.nkey, of.client_flags, exptime, <size_t>length + 2)
        if it == NULL:
            error = alloc_error(c, op, of.key, of.nkey, of.client_flags, <size_t>length + 2, True)
    if it == NULL:
        out_errstring(c, error)
        # With a descriptor no data block follows.
        if not remote:
            swallow(c, <size_t>length + 2)
        return
    ITEM_set_cas(it, of.req_cas_id)
    if of.key_binary:
        item_set_flags(it, ITEM_KEY_BINARY)
    counter_add(&c.thread.stats.slab[ITEM_clsid(it)].set_cmds, 1)
    stash_mset_tokens(c, t, n)
    c.item = it
    c.roffset = 0
    c.cas = of.cas_id_in
    c.cmd = op
    c.set_stale = of.set_stale and op == NREAD_CAS
    c.mset_res = True
    c.noreply = of.quiet
    if remote:
        c.remote = of.remote
        c.remote.length = <uint32_t>length
        c.rlbytes = <size_t>length
        conn_set_state(c, conn_rdma_read)
    else:
        c.rlbytes = <size_t>length + 2
        conn_set_state(c, conn_nread)


cdef void finalize_mset(conn *c, item *it, store_item_type result, int nbytes, uint64_t cas) noexcept nogil:
    """The reply of ms: nbytes is the stored length with its line end."""
    cdef mc_resp *resp
    cdef const char *token = c.mset_tokens
    cdef const char *end = token + c.nmset_tokens
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
    while token < end:
        if token[0] == c'O':
            p[0] = c' '
            memcpy(p + 1, token + 2, <size_t>token[1])
            p += 1 + token[1]
            token += 2 + token[1]
            continue
        if token[0] == c'k':
            p = put_key(p, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_KEY_BINARY))
        elif token[0] == c'c':
            p = put_cas(p, cas)
        else:
            p = put_flag_u32(p, c's', <uint32_t>nbytes - 2)
        token += 1
    memcpy(p, b"\r\n", 2)
    resp_add(resp, p + 2)


# ---- md --------------------------------------------------------------------------------------------------------------

cdef void process_mdelete_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef thread_stats *stats = &c.thread.stats
    cdef char binkey[KEY_MAX_LENGTH]
    cdef meta_flags of
    cdef const char *error
    cdef const char *code = b"HD"
    cdef item *it
    cdef item *empty
    cdef uint32_t hv
    memset(&of, 0, sizeof(of))
    if not parse_meta_flags(c, t, n, 2, c'd', &of, binkey, &error):
        out_errstring(c, error)
        return
    if opaque_too_long(c, &of):
        return
    it = item_get_locked(s, of.key, of.nkey, False, &hv)
    if it == NULL:
        counter_add(&stats.delete_misses, 1)
        code = b"NF"
    elif of.has_cas and ITEM_get_cas(it) != of.req_cas_id:
        counter_add(&stats.delete_misses, 1)
        code = b"EX"
    else:
        if of.remove_value:
            empty = item_alloc(s, of.key, of.nkey, of.client_flags, of.exptime, 2)
            if empty == NULL:
                do_item_remove(s, it)
                item_unlock(s, hv)
                out_errstring(c, b"SERVER_ERROR out of memory")
                return
            memcpy(ITEM_data(empty), b"\r\n", 2)
            ITEM_set_cas(empty, 0)
            if of.key_binary:
                item_set_flags(empty, ITEM_KEY_BINARY)
            if do_store_item(s, empty, NREAD_SET, hv, of.cas_id_in if of.has_cas_in else ITEM_get_cas(it), NULL, False,
                             NULL) == STORED:
                do_item_remove(s, it)
                it = empty
            else:
                do_item_remove(s, empty)
                code = b"NS"
        if code[0] != c'N':
            if of.set_stale:
                if of.new_ttl:
                    item_set_exptime(it, of.exptime)
                # Without the token sent, so that the next reader wins.
                item_set_flags(it, ITEM_STALE)
                item_clear_flags(it, ITEM_TOKEN_SENT)
                ITEM_set_cas(it, of.cas_id_in if of.has_cas_in else get_cas_id(s))
            else:
                counter_add(&stats.slab[ITEM_clsid(it)].delete_hits, 1)
                log_deleted(c, it, LOG_TYPE_META_DELETE)
                if not of.remove_value:
                    do_item_unlink(s, it, hv)
    if it != NULL:
        do_item_remove(s, it)
    item_unlock(s, hv)
    if code[0] != c'H' or not of.quiet:
        meta_line(c, code, t, n, &of)


# ---- ma --------------------------------------------------------------------------------------------------------------

cdef void set_new_cas(conn *c, const meta_flags *of, item *it, uint32_t *hv, uint64_t cas) noexcept nogil:
    """Gives the incremented item the client's CAS. When the increment replaced the item, its successor has to be found;
    the lock is given up for that, and whoever was faster wins."""
    cdef store *s = c.thread.store
    cdef item *successor
    if not it.it_flags & ITEM_LINKED:
        item_unlock(s, hv[0])
        successor = item_get_locked(s, of.key, of.nkey, False, hv)
        if successor != NULL:
            if ITEM_get_cas(successor) == cas:
                ITEM_set_cas(successor, of.cas_id_in)
            do_item_remove(s, successor)
    ITEM_set_cas(it, of.cas_id_in)


cdef void process_marithmetic_command(conn *c, const token *t, int n) noexcept nogil:
    cdef store *s = c.thread.store
    cdef rel_time_t now = store_time(s)
    cdef char binkey[KEY_MAX_LENGTH]
    cdef char text[INCR_MAX_STORAGE_LEN]
    cdef meta_flags of
    cdef const char *error
    cdef item *it
    cdef char line[WRITE_BUFFER_SIZE]
    cdef char *p
    cdef uint32_t hv
    cdef uint64_t cas = 0
    cdef size_t length
    cdef bint incr = True
    cdef bint created = False
    cdef delta_result_type result
    cdef rel_time_t exptime      # what the flag t shows: the flags before it count
    cdef char flag
    cdef int i
    memset(&of, 0, sizeof(of))
    of.delta = 1
    if not parse_meta_flags(c, t, n, 2, c'a', &of, binkey, &error):
        out_errstring(c, b"CLIENT_ERROR invalid or duplicate flag")
        return
    if of.mode == c'D' or of.mode == c'-':
        incr = False
    elif of.mode != 0 and of.mode != c'I' and of.mode != c'+':
        out_errstring(c, b"CLIENT_ERROR invalid mode for ma M token")
        return
    if opaque_too_long(c, &of):
        return
    it = item_get_locked(s, of.key, of.nkey, False, &hv)
    if it != NULL:
        # Set first, because a number that needs more room moves to a new item, which inherits it.
        exptime = it.exptime
        if of.new_ttl:
            item_set_exptime(it, of.exptime)
        cas = of.req_cas_id
        result = do_add_delta(s, it, hv, incr, of.delta, text, &cas)
        if result != OK:
            item_set_exptime(it, exptime)
            do_item_remove(s, it)
            item_unlock(s, hv)
            if result == DELTA_ITEM_CAS_MISMATCH:
                meta_line(c, b"EX", t, n, &of)
            elif result == NON_NUMERIC:
                out_errstring(c, b"CLIENT_ERROR cannot increment or decrement non-numeric value")
            else:
                out_errstring(c, b"SERVER_ERROR out of memory")
            return
        count_delta(c, it, incr)
        if of.has_cas_in:
            set_new_cas(c, &of, it, &hv, cas)
            cas = of.cas_id_in
    elif of.vivify:
        p = itoa_u64(of.initial, text)
        p[0] = 0
        it = vivify_item(c, &of, hv, text, <size_t>(p - text), &cas)
        if it == NULL:
            item_unlock(s, hv)
            out_errstring(c, b"SERVER_ERROR Out of memory allocating new item")
            return
        created = True
        exptime = 0
    else:
        item_unlock(s, hv)
        count_delta(c, NULL, incr)
        meta_line(c, b"NF", t, n, &of)
        return

    length = strlen(text)
    p = line
    if of.value:
        memcpy(p, b"VA ", 3)
        p = itoa_u32(<uint32_t>length, p + 3)
    else:
        memcpy(p, b"HD", 2)
        p += 2
    for i in range(2, n):
        flag = t[i].value[0]
        if flag == c'c':
            p = put_cas(p, cas)
        elif flag == c't':
            p = put_ttl(p, exptime, now)
        elif flag == c'T' or (flag == c'N' and created):
            exptime = of.exptime if flag == c'T' else of.autoviv_exptime
            item_set_exptime(it, exptime)
        elif flag == c'O':
            p = put_token(p, &t[i])
        elif flag == c'k':
            p = put_key(p, of.key, of.nkey, of.key_binary)
    do_item_remove(s, it)
    item_unlock(s, hv)
    if of.quiet:
        return
    memcpy(p, b"\r\n", 2)
    p += 2
    if of.value:
        memcpy(p, text, length)
        memcpy(p + length, b"\r\n", 2)
        p += length + 2
    c.noreply = False
    out_line(c, line, <size_t>(p - line))


# ---- me --------------------------------------------------------------------------------------------------------------

cdef void process_mdebug_command(conn *c, const token *t, int n) noexcept nogil:
    """me <key> [b]: what the store knows of an item, without touching it."""
    cdef store *s = c.thread.store
    cdef rel_time_t now = store_time(s)
    cdef char binkey[KEY_MAX_LENGTH]
    cdef const char *key = t[1].value
    cdef size_t nkey = t[1].length
    cdef rel_time_t exptime
    cdef item *it
    cdef mc_resp *resp
    cdef char *p
    if nkey > KEY_MAX_LENGTH:
        out_string(c, BAD_FORMAT)
        return
    if n > 3 and token_is(&t[2], b"b", 1):
        nkey = base64_decode(key, nkey, binkey)
        key = binkey
        if nkey == 0:
            out_string(c, BAD_FORMAT)
            return
    counter_add(&c.thread.stats.meta_cmds, 1)
    it = item_get(s, key, nkey, False)
    if it == NULL:
        out_line(c, b"EN\r\n", 4)
        return
    resp = resp_text(c, WRITE_BUFFER_SIZE)
    if resp == NULL:
        item_remove(s, it)
        return
    p = resp.wbuf + resp.wbytes
    memcpy(p, b"ME ", 3)
    p += 3
    if ITEM_has(it, ITEM_KEY_BINARY):
        p = base64_encode(ITEM_key(it), it.nkey, p)
    else:
        memcpy(p, ITEM_key(it), it.nkey)
        p += it.nkey
    exptime = item_exptime(it)
    if exptime == 0:
        memcpy(p, b" exp=-1", 7)
        p += 7
    else:
        memcpy(p, b" exp=", 5)
        p = itoa_u32(exptime - now, p + 5)
    memcpy(p, b" la=", 4)
    p = itoa_u32(now - item_time(it), p + 4)
    memcpy(p, b" cas=", 5)
    p = itoa_u64(ITEM_get_cas(it), p + 5)
    memcpy(p, b" fetch=", 7)
    p += 7
    if ITEM_has(it, ITEM_FETCHED):
        memcpy(p, b"yes", 3)
        p += 3
    else:
        memcpy(p, b"no", 2)
        p += 2
    memcpy(p, b" cls=", 5)
    p = itoa_u32(ITEM_clsid(it), p + 5)
    memcpy(p, b" size=", 6)
    p = itoa_u64(ITEM_ntotal(it), p + 6)
    memcpy(p, b"\r\n", 2)
    resp_add(resp, p + 2)
    item_remove(s, it)


# ---- dispatch --------------------------------------------------------------------------------------------------------

cdef bint process_meta_command(conn *c, const char *line, const char *end) noexcept nogil:
    """A line whose command is m and one more letter. False: there is no such command."""
    cdef token t[LINE_TOKENS]
    cdef char command = line[1]
    cdef char flag
    cdef int first = 3 if command == c's' else 2
    cdef int i, n
    if command == c'n':
        out_line(c, b"MN\r\n", 4)
        return True
    if command != c'g' and command != c's' and command != c'd' and command != c'a' and command != c'e':
        return False
    conn_set_state(c, conn_new_cmd)
    n = tokenize(line, end, t)
    for i in range(first, n):
        flag = t[i].value[0]
        if c'A' <= flag <= c'z' or c'0' <= flag <= c'9' or (flag == c'@' and (command == c'g' or command == c's')):
            continue
        n = 0
        break
    if n < 2:
        out_string(c, BAD_FORMAT)
    elif command == c'g':
        process_mget_command(c, t, n)
    elif command == c's':
        process_mset_command(c, t, n)
    elif command == c'd':
        process_mdelete_command(c, t, n)
    elif command == c'a':
        process_marithmetic_command(c, t, n)
    else:
        process_mdebug_command(c, t, n)
    return True

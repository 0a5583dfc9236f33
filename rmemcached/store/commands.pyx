cdef item *_concatenate(store *s, item *old, item *it, store_op op) noexcept nogil:
    """A new item with the key, flags and expiry of old, and the values of both. NULL: no memory."""
    cdef item *joined
    cdef item *first = old
    cdef item *second = it
    if op == NREAD_PREPEND or op == NREAD_PREPENDVIV:
        first = it
        second = old
    joined = item_alloc(s, ITEM_key(old), old.nkey, ITEM_client_flags(old), old.exptime,
                        <size_t>first.nbytes - 2 + <size_t>second.nbytes)
    if joined != NULL:
        data_copy(joined, 0, first, <size_t>first.nbytes - 2)
        data_copy(joined, <size_t>first.nbytes - 2, second, second.nbytes)
    return joined


cdef inline store_item_type _judge_store(store *s, item *it, item *old, store_op op, bint set_stale) noexcept nogil:
    """STORED if op may store the item in place of old (NULL: there is none), else op's result. set_stale: see
    store_item; then also gives the item old's expiry time.
    """
    assert_held(item_mutex_of(s, it))
    cdef uint64_t wanted = ITEM_get_cas(it)
    cdef uint64_t present
    if old == NULL:
        if op == NREAD_CAS:
            return NOT_FOUND
        if op == NREAD_ADD or op == NREAD_SET or op == NREAD_APPENDVIV or op == NREAD_PREPENDVIV:
            return STORED
        return NOT_STORED
    if op == NREAD_ADD:
        # The value is not stored, but the add counts as a use of the old item.
        do_item_update(s, old)
        return NOT_STORED
    if op == NREAD_SET or op == NREAD_REPLACE:
        return STORED
    present = ITEM_get_cas(old)
    if op != NREAD_CAS:
        if (wanted == 0 or wanted == present) and old.it_flags & ITEM_HDR:
            # As in memcached, no value of external storage is made longer.
            return NOT_STORED
        return STORED if wanted == 0 or wanted == present else EXISTS
    if wanted != 0 and wanted == present:
        return STORED
    if wanted != 0 and set_stale and wanted < present:
        it.exptime = old.exptime
        item_set_flags(it, ITEM_STALE | (old.it_flags & ITEM_TOKEN_SENT))
        return STORED
    return EXISTS


cdef inline bint _is_joined(store_op op) noexcept nogil:
    return op == NREAD_APPEND or op == NREAD_PREPEND or op == NREAD_APPENDVIV or op == NREAD_PREPENDVIV


cdef store_item_type do_store_item(store *s, item *it, uint32_t hv, store_op op, uint64_t cas, bint set_stale,
                                   stored_item *out) noexcept nogil:
    assert_held(item_mutex(s, hv))
    # The item lock keeps the old item in its place, so no reference is taken.
    cdef item *old = do_item_find(s, ITEM_key(it), it.nkey, hv)
    cdef item *joined = NULL
    cdef store_item_type result
    cdef log_item logged
    if cas == 0 and s.config.use_cas:
        # As in memcached, a store that fails uses up a number, too: clients can see the gap.
        cas = get_cas_id(s)
    result = _judge_store(s, it, old, op, set_stale)
    if result == STORED and old != NULL and _is_joined(op):
        joined = _concatenate(s, old, it, op)
        if joined == NULL:
            result = NOT_STORED
        else:
            it = joined
            if out != NULL:
                out.nbytes = joined.nbytes
    if result == STORED:
        if old != NULL:
            do_item_supersede(s, old, it, hv, cas, store_time(s))
        else:
            do_item_link(s, it, hv, cas)
        if out != NULL:
            out.cas = ITEM_get_cas(it)
    if log_wants(s.config.log, LOG_MUTATIONS):
        logged = log_item(ITEM_key(it), it.nkey, it.nbytes, ITEM_clsid(it))
        log_item_store(s.config.log, result, op, &logged, it.exptime - store_time(s) if it.exptime != 0 else 0)
    if joined != NULL:
        do_item_remove(s, joined)
    return result


cdef store_item_type store_item(store *s, item *it, store_op op, uint64_t cas, bint set_stale,
                                stored_item *out) noexcept nogil:
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    cdef store_item_type result
    item_lock(s, hv)
    result = do_store_item(s, it, hv, op, cas, set_stale, out)
    item_unlock(s, hv)
    return result


cdef inline bint _is_space(char c) noexcept nogil:
    return c == c' ' or c'\t' <= c <= c'\r'


cdef bint _parse_number(const char *text, const char *end, uint64_t *value) noexcept nogil:
    """Parses a decimal number before `end` like memcached's safe_strtoull: white space and a sign may precede the
    number, white space or a NUL ends it. Refuses overflows and negative numbers, except the negative numbers made
    positive by strtoull (-0).
    """
    cdef uint64_t total = 0
    cdef unsigned int digit
    cdef bint negative
    while text < end and _is_space(text[0]):
        text += 1
    if text == end:
        return False
    negative = text[0] == c'-'
    if negative or text[0] == c'+':
        text += 1
    # The loop needs no bound: the data ends with \r\n, so a digit is never the last byte.
    if text == end or not c'0' <= text[0] <= c'9':
        return False
    while c'0' <= text[0] <= c'9':
        digit = text[0] - c'0'
        if total > (<uint64_t>0xffffffffffffffff - digit) // 10:
            return False
        total = total * 10 + digit
        text += 1
    if negative:
        total = 0 - total
        if <int64_t>total < 0:
            return False
    value[0] = total
    return _is_space(text[0]) or text[0] == 0


cdef delta_result_type do_add_delta(store *s, item *it, uint32_t hv, bint incr, uint64_t delta, char *buf,
                                    uint64_t *cas) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef uint64_t value
    cdef uint64_t new_cas = 0
    cdef size_t length
    cdef item *fresh
    cdef bint fits
    # A chained item is too long for a number. A value in external storage is no number, as in memcached.
    if it.nbytes <= 2 or it.it_flags & (ITEM_CHUNKED | ITEM_HDR):
        return NON_NUMERIC
    if cas != NULL and cas[0] != 0 and cas[0] != ITEM_get_cas(it):
        return DELTA_ITEM_CAS_MISMATCH
    if not _parse_number(ITEM_data(it), ITEM_data(it) + it.nbytes, &value):
        return NON_NUMERIC
    if not it.it_flags & ITEM_LINKED:
        return DELTA_ITEM_NOT_FOUND
    if incr:
        value += delta
    else:
        value = value - delta if delta < value else 0
    length = <size_t>snprintf(buf, INCR_MAX_STORAGE_LEN, "%llu", <unsigned long long>value)
    fits = length + 2 <= <size_t>it.nbytes and load_acquire(&it.refcount) == 2
    # In a memory file a thread killed here would leave half a number: another item takes the item's place.
    if fits and s.file.fd < 0:
        if s.config.use_cas:
            new_cas = get_cas_id(s)
        change_alter(s, it, hv)
        ITEM_set_cas(it, new_cas)
        memcpy(ITEM_data(it), buf, length)
        memset(ITEM_data(it) + length, c' ', <size_t>it.nbytes - length - 2)
        change_altered(s, it, hv)
        do_item_update(s, it)
    else:
        fresh = item_alloc(s, ITEM_key(it), it.nkey, ITEM_client_flags(it), it.exptime,
                           <size_t>it.nbytes if fits else length + 2)
        if fresh == NULL:
            return EOM
        if s.config.use_cas:
            new_cas = get_cas_id(s)
        data_write(fresh, 0, buf, length)
        if fits:
            item_set_flags(fresh, it.it_flags & ADOPT_STATE)
            memset(ITEM_data(fresh) + length, c' ', <size_t>fresh.nbytes - length - 2)
        do_item_supersede(s, it, fresh, hv, new_cas, store_time(s))
        do_item_remove(s, fresh)
    if cas != NULL:
        cas[0] = new_cas
    return OK


cdef delta_result_type add_delta(store *s, const char *key, size_t nkey, bint incr, uint64_t delta, char *buf,
                                 uint64_t *cas) noexcept nogil:
    cdef uint32_t hv
    cdef delta_result_type result = DELTA_ITEM_NOT_FOUND
    cdef item *it = item_get_locked(s, key, nkey, False, &hv)
    if it != NULL:
        result = do_add_delta(s, it, hv, incr, delta, buf, cas)
        do_item_remove(s, it)
    item_unlock(s, hv)
    return result

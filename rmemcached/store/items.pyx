# Items: allocation, linking, lookup, the store commands. memcached: items.c, and memcached.c for store and delta.


# --- data bytes ---

cdef struct data_cursor:
    item_chunk *chunk   # NULL: the item is not chained
    char *data
    size_t left         # bytes from data on to the end of this run


cdef inline void _cursor_set(data_cursor *c, item *it, size_t offset) noexcept nogil:
    """Points c at data byte offset, which is at most nbytes."""
    cdef item_chunk *ch
    if ITEM_has(it, ITEM_CHUNKED):
        ch = ITEM_schunk(it)
        while offset >= <size_t>ch.used and ch.next != NULL:
            offset -= ch.used
            ch = ch.next
        c.chunk = ch
        c.data = <char *>(ch + 1) + offset
        c.left = ch.used - offset
    else:
        c.chunk = NULL
        c.data = ITEM_data(it) + offset
        c.left = it.nbytes - offset


cdef inline void _cursor_advance(data_cursor *c, size_t n) noexcept nogil:
    """Moves on by n bytes of the present run."""
    c.data += n
    c.left -= n
    if c.left == 0 and c.chunk != NULL and c.chunk.next != NULL:
        c.chunk = c.chunk.next
        c.data = <char *>(c.chunk + 1)
        c.left = c.chunk.used


cdef int item_iov(item *it, size_t offset, size_t length, iovec *iov, int max_iov) noexcept nogil:
    cdef data_cursor c
    cdef size_t n
    cdef int count = 0
    cdef size_t nbytes = it.nbytes
    if offset >= nbytes:
        return 0
    if length > nbytes - offset:
        length = nbytes - offset
    _cursor_set(&c, it, offset)
    while length > 0 and count < max_iov:
        n = length if length < c.left else c.left
        iov[count].iov_base = c.data
        iov[count].iov_len = n
        count += 1
        length -= n
        _cursor_advance(&c, n)
    return count


cdef void _data_write(item *it, size_t offset, const char *src, size_t length) noexcept nogil:
    cdef data_cursor c
    cdef size_t n
    _cursor_set(&c, it, offset)
    while length > 0:
        n = length if length < c.left else c.left
        memcpy(c.data, src, n)
        src += n
        length -= n
        _cursor_advance(&c, n)


cdef void _data_copy(item *dst, size_t offset, item *src, size_t length) noexcept nogil:
    """Copies the first length data bytes of src to data byte offset of dst."""
    cdef data_cursor c
    cdef size_t n
    _cursor_set(&c, src, 0)
    while length > 0:
        n = length if length < c.left else c.left
        _data_write(dst, offset, c.data, n)
        offset += n
        length -= n
        _cursor_advance(&c, n)


# --- allocation ---

cdef inline size_t _item_ntotal(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil:
    return sizeof(item) + (8 if s.config.use_cas else 0) + nkey + 1 + (4 if flags != 0 else 0) + nbytes


cdef bint item_size_ok(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil:
    """Whether an item of these sizes is within the item size limit."""
    if nbytes < 2 or nbytes > s.config.item_size_max:
        return False
    return slabs_clsid(s, _item_ntotal(s, nkey, flags, nbytes)) != 0


cdef item *_alloc_pull(store *s, unsigned int clsid) noexcept nogil:
    """A chunk of the class: a free one, one of a new page, an evicted item's; or NULL.

    COLD's tail is evicted; when COLD is empty HOT's tail moves on. memcached leaves it at that: where every item was
    fetched twice since the maintainer came last, all of HOT goes to WARM and there is nothing to evict. Here WARM's
    tail goes to COLD then.
    """
    cdef bint segmented = relaxed_load(&s.config.lru_segmented)
    cdef int most = 2 * ALLOC_TRIES if segmented and s.config.evict_to_free else ALLOC_TRIES
    cdef item *it
    cdef int pulls = 0
    while True:
        if not segmented:
            # No maintainer does it.
            lru_pull_tail(s, clsid, COLD_LRU, 0, 0, 0, PULL_TRIES)
        it = slabs_alloc(s, clsid, True, NULL)
        if it != NULL or pulls == most:
            break
        if lru_pull_tail(s, clsid, COLD_LRU, 0, PULL_EVICT, 0, PULL_TRIES) == 0:
            if not segmented:
                break
            if pulls < ALLOC_TRIES:
                lru_pull_tail(s, clsid, HOT_LRU, 0, 0, 0, 1)
            else:
                lru_pull_tail(s, clsid, WARM_LRU, 0, 0, 0, PULL_MOST)
        pulls += 1
    if pulls > 0:
        pthread_mutex_lock(&s.queues[clsid | HOT_LRU].lock)
        s.queues[clsid | HOT_LRU].stats.direct_reclaims += pulls
        pthread_mutex_unlock(&s.queues[clsid | HOT_LRU].lock)
    return it


cdef inline unsigned int _first_queue(store *s, rel_time_t exptime) noexcept nogil:
    """The queue of a new item."""
    if relaxed_load(&s.config.temp_lru) \
            and <rel_time_t>(exptime - store_time(s)) <= <rel_time_t>relaxed_load(&s.config.temporary_ttl):
        return TEMP_LRU
    return HOT_LRU if relaxed_load(&s.config.lru_segmented) else COLD_LRU


cdef item_chunk *_alloc_chunk(store *s, item_chunk *ch, size_t remain) noexcept nogil:
    """Chains a chunk for up to remain bytes after ch, as large as they need; or NULL."""
    cdef size_t largest = s.config.slab_chunk_size_max
    cdef size_t size = remain + sizeof(item_chunk)
    cdef unsigned int clsid
    cdef item_chunk *chained
    if size > largest:
        size = largest
    clsid = slabs_clsid(s, size)
    chained = <item_chunk *>_alloc_pull(s, clsid)
    if chained == NULL and clsid != s.power_largest:
        # The small class may have nothing to evict while the largest has.
        clsid = s.power_largest
        chained = <item_chunk *>_alloc_pull(s, clsid)
    if chained == NULL:
        return NULL
    chained.head = ch.head
    chained.prev = ch
    chained.next = NULL
    chained.size = <int32_t>(size - sizeof(item_chunk))
    chained.used = chained.size if <size_t>chained.size < remain else <int32_t>remain
    chained.nbytes = 0
    chained.slabs_clsid = clsid
    chained.orig_clsid = clsid
    # From now on the page mover looks for the head.
    store_release(&chained.it_flags, ITEM_CHUNK)
    ch.next = chained
    return chained


cdef bint _alloc_chain(store *s, item *it) noexcept nogil:
    """All chunks of a chained item; False (with those it got still chained) when memory ran out."""
    cdef item_chunk *ch = ITEM_schunk(it)
    cdef size_t remain = it.nbytes
    while remain > 0:
        ch = _alloc_chunk(s, ch, remain)
        if ch == NULL:
            return False
        remain -= ch.used
    return True


cdef item *item_alloc(store *s, const char *key, size_t nkey, uint32_t flags, rel_time_t exptime,
                      size_t nbytes) noexcept nogil:
    """A new item, not linked, for nbytes of data (value and \\r\\n, which is already written), or NULL.

    NULL means that it is over the item size limit (item_size_ok) or that there is no memory. nkey is at most
    KEY_MAX_LENGTH. A large item comes with all the chunks it needs. Older items may be evicted.
    """
    cdef size_t ntotal, htotal
    cdef unsigned int clsid, head_clsid
    cdef uint16_t it_flags = 0
    cdef item *it
    cdef item_chunk *ch
    if not item_size_ok(s, nkey, flags, nbytes):
        return NULL
    ntotal = _item_ntotal(s, nkey, flags, nbytes)
    clsid = head_clsid = slabs_clsid(s, ntotal)
    if ntotal > s.config.slab_chunk_size_max:
        # Linked into the LRU of the largest class, though its head is a small chunk of another.
        htotal = ((ntotal - nbytes + 7) & ~<size_t>7) + sizeof(item_chunk)
        head_clsid = slabs_clsid(s, htotal)
        it_flags = ITEM_CHUNKED
    it = _alloc_pull(s, head_clsid)
    if it != NULL:
        if s.config.use_cas:
            it_flags |= ITEM_CAS
        if flags != 0:
            it_flags |= ITEM_CFLAGS
        it.next = NULL
        it.prev = NULL
        it.h_next = NULL
        it.time = 0
        it.exptime = exptime
        it.nbytes = <int32_t>nbytes
        relaxed_store(&it.it_flags, it_flags)
        it.slabs_clsid = clsid | _first_queue(s, exptime)
        it.nkey = <uint8_t>nkey
        ITEM_set_cas(it, 0)
        memcpy(ITEM_key(it), key, nkey)
        ITEM_key(it)[nkey] = 0
        if flags != 0:
            memcpy(ITEM_key(it) + nkey + 1, &flags, sizeof(flags))
        if it_flags & ITEM_CHUNKED:
            ch = ITEM_schunk(it)
            memset(ch, 0, sizeof(item_chunk))
            ch.head = it
            ch.orig_clsid = head_clsid
            if not _alloc_chain(s, it):
                slabs_free(s, it)
                it = NULL
    if it == NULL:
        pthread_mutex_lock(&s.queues[clsid | HOT_LRU].lock)
        s.queues[clsid | HOT_LRU].stats.outofmemory += 1
        pthread_mutex_unlock(&s.queues[clsid | HOT_LRU].lock)
        return NULL
    _data_write(it, nbytes - 2, b"\r\n", 2)
    return it


# --- references and links ---

cdef uint64_t get_cas_id(store *s) noexcept nogil:
    """The next CAS value."""
    return fetch_add(&s.cas_id, 1) + 1


cdef void do_item_remove(store *s, item *it) noexcept nogil:
    """Gives a reference back; the last one frees the item. Needs no lock: whoever takes a reference finds the item
    linked, with its item lock held, and a linked item has one more.
    """
    if fetch_sub(&it.refcount, 1) == 1:
        slabs_free(s, it)


cdef void item_remove(store *s, item *it) noexcept nogil:
    """Gives a reference back; NULL is not allowed."""
    do_item_remove(s, it)


cdef bint sizes_init(store *s) noexcept nogil:
    s.sizes_buckets = <uint32_t>(s.config.item_size_max // SIZES_GRANULARITY + 2)
    s.sizes = <uint32_t *>calloc(s.sizes_buckets, sizeof(uint32_t))
    return s.sizes != NULL


cdef inline uint32_t _sizes_bucket(item *it) noexcept nogil:
    return <uint32_t>((ITEM_ntotal(it) + SIZES_GRANULARITY - 1) // SIZES_GRANULARITY)


cdef inline void sizes_add(store *s, item *it) noexcept nogil:
    if s.sizes != NULL:
        fetch_add(&s.sizes[_sizes_bucket(it)], 1)


cdef inline void sizes_remove(store *s, item *it) noexcept nogil:
    if s.sizes != NULL:
        fetch_sub(&s.sizes[_sizes_bucket(it)], 1)


cdef uint32_t store_sizes_buckets(store *s) noexcept nogil:
    return s.sizes_buckets


cdef uint32_t store_sizes(store *s, uint32_t bucket) noexcept nogil:
    return <uint32_t>relaxed_load(&s.sizes[bucket])


cdef inline void count_linked(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef item_stripe *stripe = &s.item_locks[hv & s.item_lock_mask]
    relaxed_store(&stripe.items, stripe.items + 1)
    relaxed_store(&stripe.bytes, stripe.bytes + ITEM_ntotal(it))
    sizes_add(s, it)


cdef inline void count_unlinked(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef item_stripe *stripe = &s.item_locks[hv & s.item_lock_mask]
    relaxed_store(&stripe.items, stripe.items - 1)
    relaxed_store(&stripe.bytes, stripe.bytes - ITEM_ntotal(it))
    sizes_remove(s, it)


cdef void count_items(store *s, uint64_t *items, uint64_t *nbytes) noexcept nogil:
    """Of the whole store. A sum over stripes; whoever holds all item locks gets the state of one moment."""
    cdef uint32_t i
    items[0] = nbytes[0] = 0
    for i in range(s.item_lock_mask + 1):
        items[0] += relaxed_load(&s.item_locks[i].items)
        nbytes[0] += relaxed_load(&s.item_locks[i].bytes)


cdef void do_item_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil:
    """Makes the item findable. The table takes a reference of its own."""
    cdef lru_queue *q = &s.queues[it.slabs_clsid]
    cdef bint crowded
    it.time = store_time(s)
    ITEM_set_cas(it, cas)
    fetch_add(&it.refcount, 1)
    # Published for the page mover, which reads the key of what is linked.
    store_release(&it.it_flags, it.it_flags | ITEM_LINKED)
    assoc_insert(s, it, hv)
    count_linked(s, it, hv)
    pthread_mutex_lock(&q.lock)
    do_item_link_q(s, q, it)
    q.stats.total_items += 1
    crowded = q.stats.total_items & GROW_CHECK_MASK == 0
    pthread_mutex_unlock(&q.lock)
    if crowded:
        assoc_check_load(s)


cdef void do_item_unlink(store *s, item *it, uint32_t hv) noexcept nogil:
    """Takes the item out of the table, if it is there. The caller's reference stays."""
    cdef lru_queue *q
    if it.it_flags & ITEM_LINKED:
        q = &s.queues[it.slabs_clsid]
        item_clear_flags(it, ITEM_LINKED)
        assoc_delete(s, it, hv)
        count_unlinked(s, it, hv)
        pthread_mutex_lock(&q.lock)
        do_item_unlink_q(s, q, it)
        pthread_mutex_unlock(&q.lock)
        do_item_remove(s, it)


# --- lookup ---

cdef item *do_item_get(store *s, const char *key, size_t nkey, uint32_t hv, bint do_update) noexcept nogil:
    """item_get for a caller that holds the item lock."""
    cdef item *it = assoc_find(s, key, nkey, hv)
    cdef log_fetch_status status = LOG_NOT_FOUND
    if it != NULL:
        if item_is_flushed(s, it):
            do_item_unlink(s, it, hv)
            fetch_add(&s.get_flushed, 1)
            it = NULL
            status = LOG_FLUSHED
        elif it.exptime != 0 and it.exptime <= store_time(s):
            do_item_unlink(s, it, hv)
            fetch_add(&s.get_expired, 1)
            it = NULL
            status = LOG_EXPIRED
        else:
            fetch_add(&it.refcount, 1)
            if do_update:
                do_item_bump(s, it, hv)
            status = LOG_FOUND
    if log_wants(s.config.log, LOG_FETCHERS):
        log_item_get(s.config.log, status, key, nkey, it.nbytes if it != NULL else 0,
                     ITEM_clsid(it) if it != NULL else 0)
    return it


cdef item *item_get(store *s, const char *key, size_t nkey, bint do_update) noexcept nogil:
    """The item of the key, with a reference, or NULL. An expired or flushed one is unlinked. do_update: it is used."""
    cdef uint32_t hv = store_hash(key, nkey)
    cdef item *it
    item_lock(s, hv)
    it = do_item_get(s, key, nkey, hv, do_update)
    item_unlock(s, hv)
    return it


cdef item *item_get_locked(store *s, const char *key, size_t nkey, bint do_update, uint32_t *hv) noexcept nogil:
    """item_get that leaves the item lock of ``*hv`` held, also when it returns NULL."""
    hv[0] = store_hash(key, nkey)
    item_lock(s, hv[0])
    return do_item_get(s, key, nkey, hv[0], do_update)


cdef void item_unlink(store *s, const char *key, size_t nkey) noexcept nogil:
    """Unlinks the item of the key, if there is one. By its key, for the page mover may put a copy in an item's place
    at any time but under its lock.
    """
    cdef uint32_t hv
    cdef item *it = item_get_locked(s, key, nkey, False, &hv)
    if it != NULL:
        do_item_unlink(s, it, hv)
        do_item_remove(s, it)
    item_unlock(s, hv)


cdef item *item_touch(store *s, const char *key, size_t nkey, rel_time_t exptime) noexcept nogil:
    """item_get that sets a new expiry time."""
    cdef uint32_t hv
    cdef item *it = item_get_locked(s, key, nkey, True, &hv)
    if it != NULL:
        item_set_exptime(it, exptime)
    item_unlock(s, hv)
    return it


# --- the store commands ---

cdef item *_concatenate(store *s, item *old, item *it, store_op op) noexcept nogil:
    """A new item with the key, flags and expiry of old, and the values of both; or NULL."""
    cdef item *joined
    cdef item *first = old
    cdef item *second = it
    if op == NREAD_PREPEND or op == NREAD_PREPENDVIV:
        first = it
        second = old
    joined = item_alloc(s, ITEM_key(old), old.nkey, ITEM_client_flags(old), old.exptime,
                        <size_t>first.nbytes - 2 + <size_t>second.nbytes)
    if joined != NULL:
        _data_copy(joined, 0, first, <size_t>first.nbytes - 2)
        _data_copy(joined, <size_t>first.nbytes - 2, second, second.nbytes)
    return joined


cdef store_item_type do_store_item(store *s, item *it, store_op op, uint32_t hv, uint64_t cas_in, uint64_t *cas_out,
                                   bint set_stale, int *nbytes_out) noexcept nogil:
    """Stores it as op says (memcached.c, do_store_item). The caller keeps its reference whatever the result.

    The CAS value that the client compares with is in the item (ITEM_set_cas; 0: none). cas_in: the CAS value that
    the stored item gets; 0: the next one. cas_out (may be NULL): its CAS value when STORED. set_stale: a compared
    value that is older than the item's is stored and marked ITEM_STALE. nbytes_out (may be NULL): data length after
    append and prepend, otherwise untouched. Append and prepend without memory for the result are NOT_STORED.
    """
    cdef item *old = do_item_get(s, ITEM_key(it), it.nkey, hv, False)
    cdef item *joined = NULL
    cdef uint64_t wanted = ITEM_get_cas(it)
    cdef uint64_t present
    cdef store_item_type result = NOT_STORED
    cdef bint storing = False
    if cas_in == 0 and s.config.use_cas:
        # Whatever comes of it: clients see the numbers that are left.
        cas_in = get_cas_id(s)
    if old == NULL:
        if op == NREAD_CAS:
            result = NOT_FOUND
        else:
            storing = op == NREAD_ADD or op == NREAD_SET or op == NREAD_APPENDVIV or op == NREAD_PREPENDVIV
    elif op == NREAD_ADD:
        # Not stored, yet it counts as a use.
        do_item_update(s, old)
    elif op == NREAD_CAS:
        present = ITEM_get_cas(old)
        if wanted != 0 and wanted == present:
            storing = True
        elif wanted != 0 and set_stale and wanted < present:
            it.exptime = old.exptime
            item_set_flags(it, ITEM_STALE | (old.it_flags & ITEM_TOKEN_SENT))
            storing = True
        else:
            result = EXISTS
    elif op == NREAD_SET or op == NREAD_REPLACE:
        storing = True
    elif wanted != 0 and wanted != ITEM_get_cas(old):
        result = EXISTS
    else:
        joined = _concatenate(s, old, it, op)
        if joined != NULL:
            it = joined
            storing = True
            if nbytes_out != NULL:
                nbytes_out[0] = joined.nbytes

    if storing:
        if old != NULL:
            do_item_unlink(s, old, hv)
        do_item_link(s, it, hv, cas_in)
        result = STORED
        if cas_out != NULL:
            cas_out[0] = ITEM_get_cas(it)
    if log_wants(s.config.log, LOG_MUTATIONS):
        log_item_store(s.config.log, result, op, ITEM_key(it), it.nkey, it.nbytes,
                       it.exptime - store_time(s) if it.exptime != 0 else 0, ITEM_clsid(it))
    if old != NULL:
        do_item_remove(s, old)
    if joined != NULL:
        do_item_remove(s, joined)
    return result


cdef store_item_type store_item(store *s, item *it, store_op op, uint64_t cas_in, uint64_t *cas_out,
                                bint set_stale, int *nbytes_out) noexcept nogil:
    """do_store_item under the item's lock."""
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    cdef store_item_type result
    item_lock(s, hv)
    result = do_store_item(s, it, op, hv, cas_in, cas_out, set_stale, nbytes_out)
    item_unlock(s, hv)
    return result


cdef inline bint _is_space(char c) noexcept nogil:
    return c == c' ' or c'\t' <= c <= c'\r'


cdef bint _parse_number(const char *text, const char *end, uint64_t *value) noexcept nogil:
    """A decimal number before `end` that white space or a NUL ends; takes what memcached's safe_strtoull takes: white
    space and a sign before it, no overflow, and of negative numbers those that strtoull makes positive (-0).
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
    # A digit is never the last byte: the data ends with \r\n.
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
    """Adds to (incr) or takes from a decimal value. incr wraps at 64 bits, decr stops at 0.

    it: a linked item of item_get_locked. buf: INCR_MAX_STORAGE_LEN bytes for the new value as text with a NUL.
    cas (may be NULL): in, the CAS value to compare with (0: none); out, the new one. The value is written in place,
    padded with spaces, when it fits and nobody else has a reference; otherwise a new item takes the place of it.
    """
    cdef uint64_t value
    cdef uint64_t new_cas = 0
    cdef size_t length
    cdef item *fresh
    # A chained item is too long for a number.
    if it.nbytes <= 2 or it.it_flags & ITEM_CHUNKED:
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
    if length + 2 <= <size_t>it.nbytes and load_acquire(&it.refcount) == 2:
        if s.config.use_cas:
            new_cas = get_cas_id(s)
        ITEM_set_cas(it, new_cas)
        memcpy(ITEM_data(it), buf, length)
        memset(ITEM_data(it) + length, c' ', <size_t>it.nbytes - length - 2)
        do_item_update(s, it)
    else:
        fresh = item_alloc(s, ITEM_key(it), it.nkey, ITEM_client_flags(it), it.exptime, length + 2)
        if fresh == NULL:
            return EOM
        if s.config.use_cas:
            new_cas = get_cas_id(s)
        _data_write(fresh, 0, buf, length)
        do_item_unlink(s, it, hv)
        do_item_link(s, fresh, hv, new_cas)
        do_item_remove(s, fresh)
    if cas != NULL:
        cas[0] = new_cas
    return OK


cdef delta_result_type add_delta(store *s, const char *key, size_t nkey, bint incr, uint64_t delta, char *buf,
                                 uint64_t *cas) noexcept nogil:
    """do_add_delta on the item of the key; DELTA_ITEM_NOT_FOUND when there is none."""
    cdef uint32_t hv
    cdef delta_result_type result = DELTA_ITEM_NOT_FOUND
    cdef item *it = item_get_locked(s, key, nkey, False, &hv)
    if it != NULL:
        result = do_add_delta(s, it, hv, incr, delta, buf, cas)
        do_item_remove(s, it)
    item_unlock(s, hv)
    return result

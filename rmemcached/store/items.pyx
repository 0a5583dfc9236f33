cdef enum:
    ALLOC_TRIES = 10            # pulls of an allocation, except pulls that freed no memory because of references


# --- allocation ---

cdef inline size_t _item_ntotal(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil:
    return sizeof(item) + (8 if s.config.use_cas else 0) + nkey + 1 + (4 if flags != 0 else 0) + nbytes


cdef bint item_size_ok(store *s, size_t nkey, uint32_t flags, size_t nbytes) noexcept nogil:
    if nbytes < 2 or nbytes > s.config.item_size_max:
        return False
    return slabs_clsid(s, _item_ntotal(s, nkey, flags, nbytes)) != 0


cdef inline bint class_goes_outward(store *s, unsigned int clsid) noexcept nogil:
    return s.config.external != NULL and s.slabs.classes[clsid].size >= relaxed_load(&s.config.flash.item_size)


cdef bint do_move_outward(store *s, const victim *v) noexcept nogil:
    assert_held(item_mutex(s, v.hv))
    return class_goes_outward(s, ITEM_clsid(v.it)) and s.config.external.take(s.config.external.arg, v)


cdef int evict_outward(store *s, unsigned int clsid) noexcept nogil:
    cdef victim v
    cdef int taken
    if not class_goes_outward(s, clsid) or not store_take_victim(s, clsid, &v):
        return 0
    taken = do_move_outward(s, &v)
    if taken and relaxed_load(&v.it.refcount) != 1:
        # Others have references: they free the memory.
        taken = PULL_KEPT
    victim_release(s, &v)
    return taken


cdef inline void _refill_cold(store *s, unsigned int clsid, bint of_warm) noexcept nogil:
    """Moves the tail of HOT, or items of WARM, to an empty COLD."""
    cdef int moved
    if of_warm:
        moved = lru_pull_tail(s, clsid, WARM_LRU, 0, 0, 0, PULL_MOST)
    else:
        moved = lru_pull_tail(s, clsid, HOT_LRU, 0, 0, 0, 1)
    if moved == 0:
        # A thread with moved items, in no queue yet, may be waiting for this processor.
        sched_yield()


cdef item *_alloc_pull(store *s, unsigned int clsid, bint outward) noexcept nogil:
    """Allocates a chunk of the class: a free chunk, a chunk of a new page, or the chunk of an evicted item. NULL: no
    memory.

    Eviction takes COLD's tail; when COLD is empty, HOT's tail moves on. memcached stops there: if every item was
    fetched twice since the maintainer's last turn, all of HOT moves to WARM, and memcached finds nothing to evict. Here
    WARM's tail moves to COLD then. memcached also gives up after ten referenced items at the tail. Here clients keep
    references to thousands of items for views: such items leave the queue, each only once, and do not count. S3-FIFO
    passes over referenced items, until it may have looked at all items of the class.

    outward: external storage may take items. Not for a header, which would need another header.
    """
    cdef bint segmented = relaxed_load(&s.config.lru_segmented) or s.config.s3fifo
    cdef int most = 2 * ALLOC_TRIES if segmented and s.config.evict_to_free else ALLOC_TRIES
    cdef unsigned int waits = 0
    cdef s3_pulled evicted
    cdef item *it
    cdef int pulled
    cdef int pulls = 0
    cdef int kept = 0
    while True:
        # Drop expired items: there may be no maintainer for them.
        if not segmented:
            lru_pull_tail(s, clsid, COLD_LRU, 0, 0, 0, PULL_TRIES)
        elif s.config.s3fifo and not s.config.lru_maintainer:
            s3_drop(s, clsid, PULL_TRIES)
        it = slabs_alloc(s, clsid, True)
        if it != NULL:
            break
        if pulls - kept == most:
            # The items evicted may have lain on foreign pages, and then their memory is of no use here.
            if not foreign_wait(s, &waits):
                break
            continue
        pulled = evict_outward(s, clsid) if outward else 0
        if pulled:
            kept += pulled == PULL_KEPT
        elif s.config.s3fifo:
            evicted = s3_evict(s, clsid, NULL)
            if evicted == S3_STAYED and <uint64_t>(pulls + 1) * S3_LOOKED >= s3_items(s, clsid):
                break
            if evicted == S3_LOCKED:
                # A lock's owner may be waiting for this processor.
                sched_yield()
        else:
            pulled = lru_pull_tail(s, clsid, COLD_LRU, 0, PULL_EVICT, 0, PULL_TRIES)
            kept += pulled == PULL_KEPT
            if pulled == 0:
                if not segmented:
                    break
                _refill_cold(s, clsid, pulls - kept >= ALLOC_TRIES)
        pulls += 1
    if pulls > 0:
        lock_ranked(&s.queues[clsid | HOT_LRU].lock, LRU_LOCK)
        s.queues[clsid | HOT_LRU].stats.direct_reclaims += pulls
        unlock_ranked(&s.queues[clsid | HOT_LRU].lock, LRU_LOCK)
    if it == NULL:
        slabs_starved(s, clsid)
    return it


cdef inline unsigned int _first_queue(store *s, rel_time_t exptime) noexcept nogil:
    """A new item's queue."""
    if relaxed_load(&s.config.temp_lru) \
            and <rel_time_t>(exptime - store_time(s)) <= <rel_time_t>relaxed_load(&s.config.temporary_ttl):
        return TEMP_LRU
    return HOT_LRU if relaxed_load(&s.config.lru_segmented) or s.config.s3fifo else COLD_LRU


cdef item_chunk *_alloc_chunk(store *s, item_chunk *ch, size_t remain) noexcept nogil:
    """Appends a chunk to the chain after ch, for as many of the remaining bytes as fit. NULL: no memory."""
    cdef size_t largest = s.config.slab_chunk_size_max
    cdef size_t size = remain + sizeof(item_chunk)
    cdef unsigned int clsid
    cdef item_chunk *chained
    if size > largest:
        size = largest
    clsid = slabs_clsid(s, size)
    chained = <item_chunk *>_alloc_pull(s, clsid, True)
    if chained == NULL and clsid != s.slabs.power_largest:
        # The small class may have nothing to evict while the largest has.
        clsid = s.slabs.power_largest
        chained = <item_chunk *>_alloc_pull(s, clsid, True)
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
    # The flag is published last: the page mover follows a chunk with this flag to its head.
    store_release(&chained.it_flags, ITEM_CHUNK)
    ch.next = chained
    return chained


cdef bint _alloc_chain(store *s, item *it) noexcept nogil:
    """Allocates all chunks of a chained item. False: no memory; the chain keeps the chunks allocated so far."""
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
    return item_alloc_as(s, key, nkey, flags, exptime, nbytes, False)


cdef item *item_alloc_as(store *s, const char *key, size_t nkey, uint32_t flags, rel_time_t exptime, size_t nbytes,
                         bint for_header) noexcept nogil:
    cdef size_t ntotal, htotal, more
    cdef unsigned int clsid, head_clsid
    cdef uint16_t it_flags = 0
    cdef item *it
    cdef item_chunk *ch
    if not item_size_ok(s, nkey, flags, nbytes):
        return NULL
    ntotal = _item_ntotal(s, nkey, flags, nbytes)
    more = 0 if for_header else direct_seal_room(s, ntotal)
    if more:
        it_flags = ITEM_SEAL_ROOM
    clsid = head_clsid = slabs_clsid(s, ntotal + more)
    if ntotal > s.config.slab_chunk_size_max:
        # The item belongs to the queues of the largest class, though its head is a small chunk of another class.
        htotal = ((ntotal - nbytes + 7) & ~<size_t>7) + sizeof(item_chunk)
        head_clsid = slabs_clsid(s, htotal)
        it_flags = ITEM_CHUNKED
    if relaxed_load(&s.direct.bucket_count):
        # The processor fetches the bucket while the value arrives.
        direct_ahead(s, store_hash(key, nkey))
    it = _alloc_pull(s, head_clsid, not for_header)
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
        lock_ranked(&s.queues[clsid | HOT_LRU].lock, LRU_LOCK)
        s.queues[clsid | HOT_LRU].stats.outofmemory += 1
        unlock_ranked(&s.queues[clsid | HOT_LRU].lock, LRU_LOCK)
        return NULL
    data_write(it, nbytes - 2, b"\r\n", 2)
    live_add(LIVE_ITEM_REF)
    return it


cdef uint64_t get_cas_id(store *s) noexcept nogil:
    return fetch_add(&s.head.cas_id, 1) + 1


# --- lookup ---

cdef inline item *do_item_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item *it = assoc_find(s, key, nkey, hv)
    cdef log_fetch_status status = LOG_NOT_FOUND
    cdef log_item logged
    if it != NULL:
        status = LOG_FOUND
        if item_is_flushed(s, it):
            do_item_unlink(s, it, hv)
            fetch_add(&s.items.get_flushed, 1)
            it = NULL
            status = LOG_FLUSHED
        elif it.exptime != 0 and it.exptime <= store_time(s):
            do_item_unlink(s, it, hv)
            fetch_add(&s.items.get_expired, 1)
            it = NULL
            status = LOG_EXPIRED
    if log_wants(s.config.log, LOG_FETCHERS):
        logged = log_item(key, nkey, it.nbytes if it != NULL else 0, ITEM_clsid(it) if it != NULL else 0)
        log_item_get(s.config.log, status, &logged)
    return it


cdef item *do_item_get(store *s, const char *key, size_t nkey, uint32_t hv, bint do_update) noexcept nogil:
    """item_get for a caller with the item lock."""
    assert_held(item_mutex(s, hv))
    cdef item *it = do_item_find(s, key, nkey, hv)
    if it != NULL:
        fetch_add(&it.refcount, 1)
        live_add(LIVE_ITEM_REF)
        if do_update:
            do_item_bump(s, it, hv)
    return it


cdef item *item_get(store *s, const char *key, size_t nkey, bint do_update) noexcept nogil:
    cdef uint32_t hv = store_hash(key, nkey)
    cdef item *it
    item_lock(s, hv)
    it = do_item_get(s, key, nkey, hv, do_update)
    item_unlock(s, hv)
    return it


cdef enum:
    AHEAD_LINES = 4             # cache lines prefetched of an item: its header, its key, and short data


cdef void items_ahead(store *s, key_ahead *keys, unsigned int n) noexcept nogil:
    cdef const char *it
    cdef unsigned int i, line
    for i in range(n):
        keys[i].hv = store_hash(keys[i].key, keys[i].nkey)
    if n < 2:
        return
    # With one item lock held the table stays in place. While the table grows, some items are still in the old table:
    # these lookups miss the cache.
    item_lock(s, keys[0].hv)
    for i in range(n):
        prefetch(&s.assoc.primary_hashtable[keys[i].hv & s.assoc.hash_mask])
    for i in range(n):
        # The item locks of the keys are not held: prefetch the address, and read nothing there.
        it = <const char *>relaxed_load(&s.assoc.primary_hashtable[keys[i].hv & s.assoc.hash_mask])
        for line in range(<unsigned int>AHEAD_LINES):
            prefetch(it + line * CACHE_LINE)
    item_unlock(s, keys[0].hv)


cdef item *item_get_ahead(store *s, const key_ahead *key, bint do_update) noexcept nogil:
    cdef item *it
    item_lock(s, key.hv)
    it = do_item_get(s, key.key, key.nkey, key.hv, do_update)
    item_unlock(s, key.hv)
    return it


cdef item *item_get_locked(store *s, const char *key, size_t nkey, bint do_update, uint32_t *hv) noexcept nogil:
    hv[0] = store_hash(key, nkey)
    item_lock(s, hv[0])
    return do_item_get(s, key, nkey, hv[0], do_update)


cdef bint item_win(store *s, item *it, uint64_t cas) noexcept nogil:
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    cdef item *present
    cdef bint won
    item_lock(s, hv)
    # The item in the table counts: the page mover may have put a copy in the item's place.
    present = assoc_find(s, ITEM_key(it), it.nkey, hv)
    won = present != NULL and ITEM_get_cas(present) == cas \
        and present.it_flags & (ITEM_STALE | ITEM_TOKEN_SENT) == ITEM_STALE
    if won:
        do_item_set_flags(s, present, ITEM_TOKEN_SENT)
    item_unlock(s, hv)
    return won


cdef bint item_note_read(store *s, uint32_t hv, uint64_t place) noexcept nogil:
    cdef item *it
    item_lock(s, hv)
    it = direct_item_at(s, hv, place)
    if it != NULL and item_is_expired(s, it):
        # The client read the item earlier. Noting the use now would make the item younger than the flush.
        it = NULL
    if it != NULL:
        do_item_bump(s, it, hv)
    item_unlock(s, hv)
    return it != NULL


cdef void item_unlink(store *s, const char *key, size_t nkey) noexcept nogil:
    cdef uint32_t hv
    cdef item *it = item_get_locked(s, key, nkey, False, &hv)
    if it != NULL:
        do_item_unlink(s, it, hv)
        do_item_remove(s, it)
    item_unlock(s, hv)


cdef item *item_touch(store *s, const char *key, size_t nkey, rel_time_t exptime) noexcept nogil:
    cdef uint32_t hv
    cdef item *it = item_get_locked(s, key, nkey, True, &hv)
    if it != NULL:
        do_item_set_exptime(s, it, exptime)
    item_unlock(s, hv)
    return it

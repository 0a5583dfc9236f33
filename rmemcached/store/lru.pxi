# One least recently used list per slab class, and eviction from its tail. memcached: items.c, in its flat LRU mode.


cdef inline void item_set_flags(item *it, unsigned int flags) noexcept nogil:
    """For flags of a linked item: its lock is held, but a reader may look at others of the flags without it."""
    relaxed_store(&it.it_flags, it.it_flags | flags)


cdef inline void item_clear_flags(item *it, unsigned int flags) noexcept nogil:
    relaxed_store(&it.it_flags, it.it_flags & ~flags)


cdef inline void do_item_link_q(store *s, lru_queue *q, item *it) noexcept nogil:
    it.prev = NULL
    it.next = q.head
    if q.head != NULL:
        q.head.prev = it
    else:
        q.tail = it
    q.head = it
    relaxed_store(&q.size, q.size + 1)
    q.bytes += ITEM_ntotal(it)


cdef inline void do_item_unlink_q(store *s, lru_queue *q, item *it) noexcept nogil:
    if it.prev != NULL:
        it.prev.next = it.next
    else:
        q.head = it.next
    if it.next != NULL:
        it.next.prev = it.prev
    else:
        q.tail = it.prev
    if q.crawl == it:
        q.crawl = it.prev
    relaxed_store(&q.size, q.size - 1)
    q.bytes -= ITEM_ntotal(it)


cdef inline bint item_is_flushed(store *s, const item *it) noexcept nogil:
    cdef rel_time_t oldest = <rel_time_t>relaxed_load(&s.oldest_live)
    return it.time <= oldest and oldest <= store_time(s)


cdef void _item_unlink_nolock(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """do_item_unlink for a caller that holds the LRU lock as well."""
    if it.it_flags & ITEM_LINKED:
        item_clear_flags(it, ITEM_LINKED)
        assoc_delete(s, it, hv)
        do_item_unlink_q(s, q, it)
        do_item_remove(s, it)


cdef int lru_pull_tail(store *s, unsigned int clsid, bint evict) noexcept nogil:
    """Looks at the oldest items of a class: drops those that are expired or flushed and, if none was and evict is set,
    one more. Returns how many went. An item that somebody has a reference to is of no use here, for its memory would
    not come back: it is in use, so it moves to the head.
    """
    cdef lru_queue *q = &s.queues[clsid | COLD_LRU]
    cdef item *it
    cdef item *newer
    cdef uint32_t hv
    cdef rel_time_t now = store_time(s)
    cdef int removed = 0
    cdef int tries = PULL_TRIES
    cdef int reflocked = PULL_REFLOCKED
    pthread_mutex_lock(&q.lock)
    it = q.tail
    while it != NULL and tries > 0:
        newer = it.prev
        tries -= 1
        # No item leaves the list without this LRU lock, so its key can be read; its item lock can only be tried.
        hv = store_hash(ITEM_key(it), it.nkey)
        if not item_trylock(s, hv):
            it = newer
            continue
        if (it.exptime != 0 and it.exptime < now) or item_is_flushed(s, it):
            q.stats.reclaimed += 1
            if not it.it_flags & ITEM_FETCHED:
                q.stats.expired_unfetched += 1
            _item_unlink_nolock(s, q, it, hv)
            removed += 1
        elif relaxed_load(&it.refcount) > 1:
            q.stats.lrutail_reflocked += 1
            if evict and newer != NULL and reflocked > 0:
                do_item_unlink_q(s, q, it)
                it.time = now
                do_item_link_q(s, q, it)
                reflocked -= 1
                tries += 1
        else:
            if evict and removed == 0 and s.config.evict_to_free:
                q.stats.evicted += 1
                q.stats.evicted_time = now - it.time
                if it.exptime != 0:
                    q.stats.evicted_nonzero += 1
                if not it.it_flags & ITEM_FETCHED:
                    q.stats.evicted_unfetched += 1
                if it.it_flags & ITEM_ACTIVE:
                    q.stats.evicted_active += 1
                log_evicted(s, it)
                _item_unlink_nolock(s, q, it, hv)
                removed += 1
            tries = 0
        item_unlock(s, hv)
        it = newer
    pthread_mutex_unlock(&q.lock)
    return removed


cdef bint _flush_queue(store *s, lru_queue *q, rel_time_t oldest) noexcept nogil:
    """Unlinks what was used at or after oldest; False when it met an item whose lock was taken."""
    cdef item *it
    cdef item *older
    cdef uint32_t hv
    cdef bint complete = True
    pthread_mutex_lock(&q.lock)
    it = q.head
    # The list is sorted by time.
    while it != NULL and it.time >= oldest:
        older = it.next
        hv = store_hash(ITEM_key(it), it.nkey)
        if item_trylock(s, hv):
            _item_unlink_nolock(s, q, it, hv)
            item_unlock(s, hv)
        else:
            complete = False
        it = older
    pthread_mutex_unlock(&q.lock)
    return complete


cdef void store_flush_all(store *s, int64_t exptime) noexcept nogil:
    """Invalidates all items there are, at once (exptime <= 0) or when the clock reaches exptime (as in realtime()).

    Items last used before that second die when they are next looked at; those of the present second are unlinked here,
    because the clock cannot tell them from items that are stored after the flush.
    """
    cdef rel_time_t oldest
    cdef int i, tries
    oldest = realtime(s, exptime) - 1 if exptime > 0 else store_time(s) - 1
    relaxed_store(&s.oldest_live, oldest)
    for i in range(NUMBER_OF_QUEUES):
        # The holder of an item lock may be waiting for the LRU lock: let it pass and look again.
        for tries in range(1000):
            if _flush_queue(s, &s.queues[i], oldest):
                break
            sched_yield()

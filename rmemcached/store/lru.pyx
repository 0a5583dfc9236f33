cdef extern from *:
    """
    /* The calling thread's number: 1 for the first thread that asks, then 2, ... */
    static inline unsigned int rmc_thread_slot(void)
    {
        static unsigned int threads;
        static __thread unsigned int slot;
        if (slot == 0)
            slot = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
        return slot;
    }
    """
    unsigned int _thread_slot "rmc_thread_slot"() nogil

cdef enum:
    NOT_MOVED = 1               # for moved_item.lru: the item moves to no queue
    VICTIM_TRIES = 8            # pulls for a victim: a pull may drop expired items instead

cdef struct moved_item:         # taken out of its queue, with its item lock held
    item *it
    uint32_t hv
    unsigned int lru            # the item's next queue

cdef struct moved_items:
    moved_item items[PULL_MOST]
    int count


cdef void lru_init(store *s) noexcept nogil:
    pthread_mutex_init(&s.lru.bump_lock, NULL)
    pthread_mutex_init(&s.lru.tune_lock, NULL)


cdef void lru_destroy(store *s) noexcept nogil:
    cdef uint32_t i
    if s.lru.bump_bufs != NULL:
        for i in range(s.lru.bump_mask + 1):
            pthread_mutex_destroy(&s.lru.bump_bufs[i].lock)
        free(s.lru.bump_bufs)
    pthread_mutex_destroy(&s.lru.bump_lock)
    pthread_mutex_destroy(&s.lru.tune_lock)


# --- bumps: moves of fetched items from COLD to WARM ---

cdef bint lru_bumps_init(store *s) noexcept nogil:
    cdef uint32_t count = 1
    cdef uint32_t i
    while count < s.config.nthreads:
        count *= 2
    s.lru.bump_bufs = <lru_bump_buf *>calloc(count, sizeof(lru_bump_buf))
    if s.lru.bump_bufs == NULL:
        return False
    s.lru.bump_mask = count - 1
    for i in range(count):
        pthread_mutex_init(&s.lru.bump_bufs[i].lock, NULL)
    return True


cdef bint _lru_bump_async(store *s, item *it, uint32_t hv) noexcept nogil:
    """Leaves the move of an item of COLD to WARM to the maintainer. False: too many such moves are waiting."""
    assert_held(item_mutex(s, hv))
    cdef lru_bump_buf *b = &s.lru.bump_bufs[_thread_slot() & s.lru.bump_mask]
    cdef lru_bump_entry *entry
    cdef bint ok
    lock_ranked(&b.lock, BUMP_BUF_LOCK)
    ok = b.tail - b.head < LRU_BUMP_BUF_SIZE
    if ok:
        fetch_add(&it.refcount, 1)
        entry = &b.entries[b.tail % LRU_BUMP_BUF_SIZE]
        entry.it = it
        entry.hv = hv
        b.tail += 1
    else:
        b.dropped += 1
    unlock_ranked(&b.lock, BUMP_BUF_LOCK)
    return ok


cdef bint lru_maintainer_bumps(store *s) noexcept nogil:
    assert_held(&s.lru.bump_lock)
    cdef lru_bump_buf *b
    cdef lru_bump_entry entry
    cdef uint32_t i, n, todo
    cdef bint bumped = False
    for i in range(s.lru.bump_mask + 1):
        b = &s.lru.bump_bufs[i]
        lock_ranked(&b.lock, BUMP_BUF_LOCK)
        todo = b.tail - b.head
        unlock_ranked(&b.lock, BUMP_BUF_LOCK)
        # Nobody overwrites these entries before head has passed them.
        for n in range(todo):
            entry = b.entries[(b.head + n) % LRU_BUMP_BUF_SIZE]
            item_lock(s, entry.hv)
            do_item_update(s, entry.it)
            do_item_unref(s, entry.it)
            item_unlock(s, entry.hv)
        if todo != 0:
            bumped = True
            lock_ranked(&b.lock, BUMP_BUF_LOCK)
            b.head += todo
            unlock_ranked(&b.lock, BUMP_BUF_LOCK)
    return bumped


cdef uint64_t lru_bumps_dropped(store *s) noexcept nogil:
    cdef uint64_t dropped = 0
    cdef uint32_t i
    if s.lru.bump_bufs != NULL:
        for i in range(s.lru.bump_mask + 1):
            lock_ranked(&s.lru.bump_bufs[i].lock, BUMP_BUF_LOCK)
            dropped += s.lru.bump_bufs[i].dropped
            unlock_ranked(&s.lru.bump_bufs[i].lock, BUMP_BUF_LOCK)
    return dropped


cdef inline bint is_before_flush(store *s, const item *it) noexcept nogil:
    return load_acquire(&s.lru.flushing) != 0 and item_time(it) >= relaxed_load(&s.head.oldest_live)


cdef void do_item_update(store *s, item *it) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    cdef rel_time_t now = store_time(s)
    cdef lru_queue *q
    # The fetch may be older than the flush, and then does not save the item.
    if not it.it_flags & ITEM_LINKED or item_is_flushed(s, it):
        return
    if s.config.s3fifo:
        direct_set_times(s, it, now, it.exptime)
        return
    q = &s.queues[it.slabs_clsid]
    if not relaxed_load(&s.config.lru_segmented):
        if it.time < now - ITEM_UPDATE_INTERVAL:
            lock_ranked(&q.lock, LRU_LOCK)
            do_item_unlink_q(s, q, it)
            direct_set_times(s, it, now, it.exptime)
            do_item_link_q(s, q, it)
            unlock_ranked(&q.lock, LRU_LOCK)
    elif is_before_flush(s, it):
        # The item stays in its queue, because the flush would not find it elsewhere. If the item survives the flush,
        # its next fetch can ask for the move again: so ACTIVE is cleared.
        do_item_clear_flags(s, it, ITEM_ACTIVE)
    elif ITEM_lruid(it) == COLD_LRU and it.it_flags & ITEM_ACTIVE:
        lock_ranked(&q.lock, LRU_LOCK)
        do_item_unlink_q(s, q, it)
        unlock_ranked(&q.lock, LRU_LOCK)
        direct_set_times(s, it, now, it.exptime)
        do_item_clear_flags(s, it, ITEM_ACTIVE)
        q = &s.queues[ITEM_clsid(it) | WARM_LRU]
        relaxed_store(&it.slabs_clsid, ITEM_clsid(it) | WARM_LRU)
        lock_ranked(&q.lock, LRU_LOCK)
        do_item_link_q(s, q, it)
        q.stats.moves_to_warm += 1
        unlock_ranked(&q.lock, LRU_LOCK)
    else:
        direct_set_times(s, it, now, it.exptime)


cdef inline bint _is_known(store *s, const item *it, unsigned int flags) noexcept nogil:
    """Whether another fetch would change nothing in the item. Most fetches change nothing, and must cost little."""
    if s.config.s3fifo:
        return flags & (ITEM_FETCHED | ITEM_FREQUENCY) == ITEM_FETCHED | ITEM_FREQUENCY \
            and it.time >= store_time(s) - ITEM_UPDATE_INTERVAL
    return flags & ITEM_ACTIVE and relaxed_load(&s.config.lru_segmented)


cdef inline void _s3_hit(store *s, item *it) noexcept nogil:
    """Counts a fetch. A fetch writes the time of an often fetched item once in ITEM_UPDATE_INTERVAL seconds."""
    cdef unsigned int counted = it.it_flags | ITEM_FETCHED
    cdef rel_time_t now = store_time(s)
    if counted & ITEM_FREQUENCY != ITEM_FREQUENCY:
        counted += ITEM_FREQUENCY_ONE
    relaxed_store(&it.it_flags, counted)
    if it.time < now - ITEM_UPDATE_INTERVAL:
        direct_set_times(s, it, now, it.exptime)


cdef void do_item_bump(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef unsigned int flags = it.it_flags
    if _is_known(s, it, flags):
        return
    if s.config.s3fifo:
        if not flags & ITEM_FETCHED:
            direct_note_use(s, it, hv)
        _s3_hit(s, it)
    elif not relaxed_load(&s.config.lru_segmented):
        if not flags & ITEM_FETCHED:
            do_item_set_flags(s, it, ITEM_FETCHED)
            direct_note_use(s, it, hv)
        do_item_update(s, it)
    elif not flags & ITEM_FETCHED:
        do_item_set_flags(s, it, ITEM_FETCHED)
        direct_note_use(s, it, hv)
    else:
        # Set the flag before queuing the move: do_item_update makes the move and clears the flag.
        do_item_set_flags(s, it, ITEM_ACTIVE)
        if ITEM_lruid(it) != COLD_LRU:
            direct_set_times(s, it, store_time(s), it.exptime)
        elif not _lru_bump_async(s, it, hv):
            do_item_clear_flags(s, it, ITEM_ACTIVE)


# --- the tails ---

cdef void log_evicted(store *s, item *it) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    cdef rel_time_t now
    cdef log_item logged
    if log_wants(s.config.log, LOG_EVICTIONS):
        now = store_time(s)
        logged = log_item(ITEM_key(it), it.nkey, it.nbytes, ITEM_clsid(it))
        log_eviction(s.config.log, &logged, ITEM_has(it, ITEM_FETCHED),
                     <int64_t>it.exptime - now if it.exptime != 0 else -1, now - it.time)


cdef bint _pull_evict(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """Evicts the item. False: eviction is not allowed (-M)."""
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    if not s.config.evict_to_free:
        return False
    q.stats.evicted += 1
    q.stats.evicted_time = store_time(s) - it.time
    if it.exptime != 0:
        q.stats.evicted_nonzero += 1
    if not it.it_flags & ITEM_FETCHED:
        q.stats.evicted_unfetched += 1
    if it.it_flags & ITEM_ACTIVE:
        q.stats.evicted_active += 1
    log_evicted(s, it)
    do_item_unlink_nolock(s, q, it, hv)
    return True


cdef void _hand_over(victim *v, item *it, uint32_t hv) noexcept nogil:
    """The victim gets a reference, and keeps its item lock."""
    fetch_add(&it.refcount, 1)
    v.it = it
    v.hv = hv


cdef struct lru_pull:            # arguments of lru_pull_tail
    unsigned int clsid
    unsigned int lru
    uint64_t total_bytes
    unsigned int flags
    rel_time_t max_age
    int most
    victim *v                    # with PULL_EVICT, if not NULL: the item is handed over


cdef bint _pull_live(store *s, const lru_pull *pull, lru_queue *q, item *it, uint32_t hv,
                     unsigned int *move_to) noexcept nogil:
    """Decides about a tail item that is neither expired nor flushed. False: the item stays. True: the item has left the
    tail; if move_to was set, the item is in no queue, and the caller puts the item into the queue *move_to.
    """
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    cdef uint64_t limit
    cdef bint active = (it.it_flags & ITEM_ACTIVE) != 0
    if pull.lru == TEMP_LRU or s.config.s3fifo:
        return False
    if pull.lru == COLD_LRU:
        if pull.v != NULL:
            _hand_over(pull.v, it, hv)
            return True
        if pull.flags & PULL_EVICT:
            return _pull_evict(s, q, it, hv)
        if not active or not relaxed_load(&s.config.lru_segmented):
            return False
        q.stats.moves_to_warm += 1
        do_item_clear_flags(s, it, ITEM_ACTIVE)
        move_to[0] = WARM_LRU
    elif active:
        do_item_clear_flags(s, it, ITEM_ACTIVE)
        if pull.lru == WARM_LRU:
            q.stats.moves_within_lru += 1
            do_item_unlink_q(s, q, it)
            do_item_link_q(s, q, it)
            return True
        q.stats.moves_to_warm += 1
        move_to[0] = WARM_LRU
    else:
        limit = relaxed_load(&s.config.hot_lru_pct if pull.lru == HOT_LRU else &s.config.warm_lru_pct)
        if q.bytes <= pull.total_bytes * limit // 100 and store_time(s) - it.time <= pull.max_age:
            return False
        q.stats.moves_to_cold += 1
        move_to[0] = COLD_LRU
    do_item_unlink_q(s, q, it)
    return True


cdef bint _pull_repair(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """Unlinks an item with probably leaked references: nobody has used the item for tail_repair_time. False: the item
    was used.
    """
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    cdef rel_time_t repair_time = s.config.tail_repair_time
    q.stats.lrutail_reflocked += 1
    if repair_time == 0 or it.time + repair_time >= store_time(s):
        return False
    q.stats.tailrepairs += 1
    relaxed_store(&it.refcount, 1)
    do_item_unlink_nolock(s, q, it, hv)
    return True


cdef void _pull_expired(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """Drops an expired or flushed item from the queue's tail. Called by lru_pull_tail and _s3_tail."""
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    q.stats.reclaimed += 1
    if not it.it_flags & ITEM_FETCHED:
        q.stats.expired_unfetched += 1
    do_item_unlink_nolock(s, q, it, hv)


cdef void _pull_finish(store *s, const moved_items *moved) noexcept nogil:
    """Puts moved items into their new queues, and releases their item locks."""
    cdef lru_queue *q = NULL
    cdef lru_queue *target
    cdef item *it
    cdef int i
    for i in range(moved.count):
        it = moved.items[i].it
        target = &s.queues[ITEM_clsid(it) | moved.items[i].lru]
        if target != q:
            if q != NULL:
                unlock_ranked(&q.lock, LRU_LOCK)
            q = target
            lock_ranked(&q.lock, LRU_LOCK)
        relaxed_store(&it.slabs_clsid, ITEM_clsid(it) | moved.items[i].lru)
        do_item_link_q(s, q, it)
        # Release the item lock before the queue's lock: otherwise an eviction in another thread could find only locked
        # items at the tail, and no memory.
        item_unlock(s, moved.items[i].hv)
    if q != NULL:
        unlock_ranked(&q.lock, LRU_LOCK)


cdef int _pull_tail(store *s, const lru_pull *pull) noexcept nogil:
    cdef lru_queue *q = &s.queues[pull.clsid | pull.lru]
    cdef unsigned int flags = pull.flags
    cdef int most = pull.most
    cdef moved_items moved
    cdef moved_item *move = &moved.items[0]
    cdef item *it
    cdef item *newer
    cdef int removed = 0
    cdef int freed = 0
    cdef int tries = PULL_TRIES
    cdef bint referenced, evicted = False
    if relaxed_load(&q.size) == 0:
        return 0
    moved.count = 0
    lock_ranked(&q.lock, LRU_LOCK)
    newer = q.tail
    while newer != NULL and tries > 0 and removed < most:
        it = newer
        newer = it.prev
        tries -= 1
        if flags & PULL_CRAWL_BLOCKS and q.crawl == it:
            # The crawler has not seen the item yet.
            break
        # The key can be read: no item leaves the queue while this thread has the LRU lock.
        move.hv = store_hash(ITEM_key(it), it.nkey)
        if not item_trylock(s, move.hv):
            continue
        # An item with references can be unlinked, too; its memory is free when the last reference has been given back.
        referenced = relaxed_load(&it.refcount) > 1
        if referenced and _pull_repair(s, q, it, move.hv):
            item_unlock(s, move.hv)
            continue
        move.lru = NOT_MOVED
        if item_is_expired(s, it) or is_before_flush(s, it):
            _pull_expired(s, q, it, move.hv)
        elif (flags & PULL_EVICT and removed != 0) \
                or not _pull_live(s, pull, q, it, move.hv, &move.lru):
            item_unlock(s, move.hv)
            break
        elif pull.v != NULL:
            removed += 1
            break
        elif flags & PULL_EVICT:
            evicted = True
            most = 0
        removed += 1
        freed += not referenced
        tries = PULL_TRIES
        if move.lru != NOT_MOVED:
            move.it = it
            moved.count += 1
            move += 1
        else:
            item_unlock(s, move.hv)
    unlock_ranked(&q.lock, LRU_LOCK)
    _pull_finish(s, &moved)
    if evicted and relaxed_load(&s.config.slab_automove) == 2:
        slabs_reassign(s, -1, <int>pull.clsid, True)
    return PULL_KEPT if flags & PULL_EVICT and removed != 0 and freed == 0 else removed


cdef int lru_pull_tail(store *s, unsigned int clsid, unsigned int lru, uint64_t total_bytes, unsigned int flags,
                       rel_time_t max_age, int most) noexcept nogil:
    cdef lru_pull pull = lru_pull(clsid, lru, total_bytes, flags, max_age, most, NULL)
    return _pull_tail(s, &pull)


cdef int _pull_victim(store *s, unsigned int clsid, victim *v) noexcept nogil:
    cdef lru_pull pull = lru_pull(clsid, COLD_LRU, 0, PULL_EVICT, 0, PULL_TRIES, v)
    return _pull_tail(s, &pull)


# --- S3-FIFO ---

cdef inline uint64_t s3_items(store *s, unsigned int clsid) noexcept nogil:
    return relaxed_load(&s.queues[clsid | HOT_LRU].size) + relaxed_load(&s.queues[clsid | COLD_LRU].size)


cdef void _s3_keep(store *s, lru_queue *q, lru_queue *main, item *it) noexcept nogil:
    """Moves an item from the tail of the small or the main queue, q, to the head of the main queue."""
    assert_held(&q.lock)
    do_item_unlink_q(s, q, it)
    if q == main:
        q.stats.moves_within_lru += 1
        do_item_link_q(s, q, it)
        return
    # Both locks are held: with the item in neither queue, another thread would take the class for empty.
    lock_next_ranked(&main.lock, LRU_LOCK)
    q.stats.moves_to_cold += 1
    relaxed_store(&it.slabs_clsid, ITEM_clsid(it) | COLD_LRU)
    do_item_link_q(s, main, it)
    unlock_ranked(&main.lock, LRU_LOCK)


cdef s3_pulled _s3_tail(store *s, lru_queue *q, item *it, uint32_t hv, bint force, victim *v) noexcept nogil:
    """Drops, keeps or evicts a tail item, or hands it over. force: only references keep the item from eviction."""
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    cdef unsigned int frequency = it.it_flags & ITEM_FREQUENCY
    cdef unsigned int clsid = ITEM_clsid(it)
    cdef bint small = ITEM_lruid(it) == HOT_LRU
    # Nobody else can take a reference while this thread has the item lock.
    cdef bint referenced = relaxed_load(&it.refcount) > 1
    if referenced and _pull_repair(s, q, it, hv):
        return S3_GONE
    if item_is_expired(s, it) or is_before_flush(s, it):
        _pull_expired(s, q, it, hv)
        return S3_GONE
    if (not s.config.evict_to_free and v == NULL) or (force and referenced):
        # This item stays where it is, but items behind it may go.
        return S3_STAYED
    if (frequency != 0 or referenced) and not force:
        # A fetched item stays cached, and evicting a referenced item would free nothing. Both go to the head of the
        # main queue, away from the next pull.
        if frequency != 0:
            relaxed_store(&it.it_flags, it.it_flags - ITEM_FREQUENCY_ONE)
        _s3_keep(s, q, &s.queues[clsid | COLD_LRU], it)
        return S3_STAYED
    if v != NULL:
        _hand_over(v, it, hv)
        return S3_GONE
    _pull_evict(s, q, it, hv)
    ghost_add(s, clsid, hv, GHOST_SMALL if small else GHOST_MAIN)
    return S3_GONE


cdef s3_pulled _s3_pull(store *s, unsigned int clsid, unsigned int lru, bint force, victim *v) noexcept nogil:
    """Looks at the tail of the small or the main queue until an item has gone, PULL_MOST times at most."""
    cdef lru_queue *q = &s.queues[clsid | lru]
    cdef item *it
    cdef item *newer
    cdef uint32_t hv
    cdef s3_pulled result = S3_NOTHING
    cdef int tries = PULL_TRIES
    cdef int looked = 0
    lock_ranked(&q.lock, LRU_LOCK)
    newer = q.tail
    while newer != NULL and tries > 0 and looked < PULL_MOST and result != S3_GONE:
        it = newer
        newer = it.prev
        tries -= 1
        # The key can be read: no item leaves the queue while this thread has the LRU lock.
        hv = store_hash(ITEM_key(it), it.nkey)
        if not item_trylock(s, hv):
            if result == S3_NOTHING:
                result = S3_LOCKED
            continue
        result = _s3_tail(s, q, it, hv, force, v)
        if v == NULL or v.it == NULL:
            item_unlock(s, hv)
        looked += 1
        tries = PULL_TRIES
    unlock_ranked(&q.lock, LRU_LOCK)
    return result


cdef int s3_drop(store *s, unsigned int clsid, int most) noexcept nogil:
    return lru_pull_tail(s, clsid, HOT_LRU, 0, PULL_CRAWL_BLOCKS, 0, most) \
        + lru_pull_tail(s, clsid, COLD_LRU, 0, PULL_CRAWL_BLOCKS, 0, most)


cdef s3_pulled s3_evict(store *s, unsigned int clsid, victim *v) noexcept nogil:
    cdef uint64_t small
    cdef unsigned int lru
    cdef s3_pulled result = S3_NOTHING
    cdef s3_pulled other
    # Without evictions (-M) only expired items go.
    cdef int rounds = S3_ROUNDS if s.config.evict_to_free or v != NULL else 1
    cdef int pull
    cdef bint force
    for pull in range(rounds):
        force = pull == S3_ROUNDS - 1
        small = relaxed_load(&s.queues[clsid | HOT_LRU].size)
        lru = HOT_LRU if ghost_small_is_full(s, small, s3_items(s, clsid)) else COLD_LRU
        result = _s3_pull(s, clsid, lru, force, v)
        if result < S3_STAYED or (result == S3_STAYED and pull == rounds - 1):
            other = _s3_pull(s, clsid, HOT_LRU if lru == COLD_LRU else COLD_LRU, force, v)
            result = max(result, other)
        if result != S3_STAYED:
            break
    if result == S3_GONE and v == NULL and relaxed_load(&s.config.slab_automove) == 2:
        slabs_reassign(s, -1, <int>clsid, True)
    return result


# --- victims ---

cdef bint store_take_victim(store *s, unsigned int clsid, victim *v) noexcept nogil:
    cdef int _try
    v.it = NULL
    for _try in range(VICTIM_TRIES):
        if s.config.s3fifo:
            if s3_evict(s, clsid, v) != S3_GONE:
                break
        elif _pull_victim(s, clsid, v) == 0:
            break
        if v.it != NULL:
            live_add(LIVE_ITEM_REF)
            return True
    return False


cdef void victim_release(store *s, victim *v) noexcept nogil:
    do_item_remove(s, v.it)
    item_unlock(s, v.hv)


# --- flush_all ---

cdef enum:
    FLUSH_MOST = 1000           # items looked at by a flush before other threads get the queue


cdef void _flush_locked(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """Unlinks the item at the flush's cursor (q.flush), locked by another thread, unless the other thread unlinks or
    moves the item first. Releases the LRU lock for a while.
    """
    assert_held(&q.lock)
    # The item lock's owner may be waiting for the LRU lock.
    unlock_ranked(&q.lock, LRU_LOCK)
    item_lock(s, hv)
    lock_ranked(&q.lock, LRU_LOCK)
    # An item that leaves the queue moves the cursor on. So an item at the cursor is in the queue: its key can be read.
    if q.flush == it and store_hash(ITEM_key(it), it.nkey) == hv:
        q.flush = it.next
        do_item_unlink_nolock(s, q, it, hv)
    item_unlock(s, hv)


cdef void _flush_queue(store *s, lru_queue *q, rel_time_t oldest) noexcept nogil:
    """Unlinks items last used at `oldest` or later."""
    cdef item *it
    cdef uint32_t hv
    cdef int looked = 0
    lock_ranked(&q.lock, LRU_LOCK)
    q.flush = q.head
    while q.flush != NULL:
        it = q.flush
        if item_time(it) >= oldest:
            hv = store_hash(ITEM_key(it), it.nkey)
            if item_trylock(s, hv):
                q.flush = it.next
                do_item_unlink_nolock(s, q, it, hv)
                item_unlock(s, hv)
            else:
                _flush_locked(s, q, it, hv)
        else:
            # Items behind may be younger: in no mode is a queue sorted by time. A fetched item keeps its place, and an
            # item that moves to another queue, or to or from external storage, keeps its time.
            q.flush = it.next
        looked += 1
        if looked >= FLUSH_MOST:
            looked = 0
            unlock_ranked(&q.lock, LRU_LOCK)
            sched_yield()
            lock_ranked(&q.lock, LRU_LOCK)
    q.flush = NULL
    unlock_ranked(&q.lock, LRU_LOCK)


cdef void store_flush_all(store *s, int64_t exptime) noexcept nogil:
    # Lookups and LRU pulls drop items last used before the present second. Items of the present second are unlinked
    # here, because the clock cannot tell them from items stored after the flush.
    cdef rel_time_t oldest
    cdef uint32_t hv
    cdef int i
    oldest = realtime(s, exptime) - 1 if exptime > 0 else store_time(s) - 1
    change_flush(s, oldest)
    # A queue has only one cursor for flushes, so a flush waits for the end of another.
    while exchange(&s.lru.flushing, 1):
        sched_yield()
    # A thread that moves an item without having seen the flush holds the item's lock. After each item lock was taken
    # once, all such moves have ended.
    for hv in range(s.assoc.item_lock_mask + 1):
        item_lock(s, hv)
        item_unlock(s, hv)
    for i in range(NUMBER_OF_QUEUES):
        _flush_queue(s, &s.queues[i], oldest)
    store_release(&s.lru.flushing, 0)


# --- settings at run time ---

cdef void lru_tune(store *s, unsigned int hot_lru_pct, unsigned int warm_lru_pct, double hot_max_factor,
                   double warm_max_factor) noexcept nogil:
    lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    relaxed_store(&s.config.hot_lru_pct, hot_lru_pct)
    relaxed_store(&s.config.warm_lru_pct, warm_lru_pct)
    s.config.hot_max_factor = hot_max_factor
    s.config.warm_max_factor = warm_max_factor
    unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)


cdef void lru_set_segmented(store *s, bint segmented) noexcept nogil:
    if s.config.lru_maintainer:
        lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
        relaxed_store(&s.config.lru_segmented, segmented)
        unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)
        direct_tell(s)


cdef void lru_set_temp_ttl(store *s, int32_t ttl) noexcept nogil:
    if s.config.lru_maintainer:
        lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
        if ttl >= 0:
            relaxed_store(&s.config.temporary_ttl, ttl)
        relaxed_store(&s.config.temp_lru, ttl >= 0)
        unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)

cdef enum:
    GROW_CHECK_MASK = 255       # every 256th link into a queue looks at the load of the hash table


cdef bint link_init(store *s) noexcept nogil:
    cdef int i
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_init(&s.queues[i].lock, NULL)
    if s.config.track_sizes:
        s.sizes.buckets = <uint32_t>(s.config.item_size_max // SIZES_GRANULARITY + 2)
        s.sizes.count = <uint32_t *>calloc(s.sizes.buckets, sizeof(uint32_t))
    return s.sizes.buckets == 0 or s.sizes.count != NULL


cdef void link_destroy(store *s) noexcept nogil:
    cdef int i
    free(s.sizes.count)
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_destroy(&s.queues[i].lock)


# --- queues ---

cdef inline unsigned int ITEM_lruid(const item *it) noexcept nogil:
    return it.slabs_clsid & LRU_MASK


cdef inline void do_item_link_q(store *s, lru_queue *q, item *it) noexcept nogil:
    assert_held(&q.lock)
    it.prev = NULL
    it.next = q.head
    if q.head != NULL:
        q.head.prev = it
    else:
        q.tail = it
    q.head = it
    relaxed_store(&q.size, q.size + 1)
    q.bytes += ITEM_size(it)


cdef inline void do_item_unlink_q(store *s, lru_queue *q, item *it) noexcept nogil:
    assert_held(&q.lock)
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
    if q.flush == it:
        q.flush = it.next
    relaxed_store(&q.size, q.size - 1)
    q.bytes -= ITEM_size(it)


cdef inline void _item_replace_q(store *s, lru_queue *q, item *it, item *fresh) noexcept nogil:
    """Puts fresh, an item of the same size, in the item's place."""
    assert_held(&q.lock)
    fresh.prev = it.prev
    fresh.next = it.next
    if fresh.prev != NULL:
        fresh.prev.next = fresh
    else:
        q.head = fresh
    if fresh.next != NULL:
        fresh.next.prev = fresh
    else:
        q.tail = fresh
    if q.crawl == it:
        q.crawl = fresh
    if q.flush == it:
        q.flush = fresh


# --- counts ---

cdef inline uint32_t _sizes_bucket(item *it) noexcept nogil:
    return <uint32_t>((ITEM_size(it) + SIZES_GRANULARITY - 1) // SIZES_GRANULARITY)


cdef inline void _sizes_add(store *s, item *it) noexcept nogil:
    if s.sizes.count != NULL:
        fetch_add(&s.sizes.count[_sizes_bucket(it)], 1)


cdef inline void _sizes_remove(store *s, item *it) noexcept nogil:
    if s.sizes.count != NULL:
        fetch_sub(&s.sizes.count[_sizes_bucket(it)], 1)


cdef uint32_t store_sizes_buckets(store *s) noexcept nogil:
    return s.sizes.buckets


cdef uint32_t store_sizes(store *s, uint32_t bucket) noexcept nogil:
    return <uint32_t>relaxed_load(&s.sizes.count[bucket])


cdef inline void do_count_linked(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item_stripe *stripe = &s.assoc.item_locks[hv & s.assoc.item_lock_mask]
    relaxed_store(&stripe.items, stripe.items + 1)
    relaxed_store(&stripe.bytes, stripe.bytes + ITEM_size(it))
    _sizes_add(s, it)


cdef inline void do_count_unlinked(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item_stripe *stripe = &s.assoc.item_locks[hv & s.assoc.item_lock_mask]
    relaxed_store(&stripe.items, stripe.items - 1)
    relaxed_store(&stripe.bytes, stripe.bytes - ITEM_size(it))
    _sizes_remove(s, it)


# --- items ---

cdef inline void do_item_unref(store *s, item *it) noexcept nogil:
    # No lock is needed: others take references only to a linked item, under the item lock, and a linked item has the
    # table's reference.
    assert_that(relaxed_load(&it.refcount) != 0)
    # Nobody can take a reference when the caller's is the last: then no atomic subtraction is needed.
    if load_acquire(&it.refcount) == 1 or fetch_sub(&it.refcount, 1) == 1:
        slabs_free(s, it)


cdef void do_item_remove(store *s, item *it) noexcept nogil:
    live_sub(LIVE_ITEM_REF)
    do_item_unref(s, it)


cdef void item_remove(store *s, item *it) noexcept nogil:
    do_item_remove(s, it)


cdef inline bint _link_counted(store *s, lru_queue *q, item *it) noexcept nogil:
    """Puts the item at the head of its queue. True: the caller should look at the load of the hash table."""
    do_item_link_q(s, q, it)
    q.stats.total_items += 1
    return q.stats.total_items & GROW_CHECK_MASK == 0


cdef void do_item_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef lru_queue *q
    cdef bint crowded
    if s.ghost.buckets != NULL and ITEM_lruid(it) == HOT_LRU and ghost_take(s, ITEM_clsid(it), hv):
        if not ghost_class_is_small(s, ITEM_clsid(it)):
            relaxed_store(&it.slabs_clsid, ITEM_clsid(it) | COLD_LRU)
        else:
            # In the main queue, an eviction could pass over all other items, because they have fetches, and take this
            # item. So the item stays in the small queue, with a fetch counted.
            relaxed_store(&it.it_flags, it.it_flags | ITEM_FREQUENCY_ONE)
    q = &s.queues[it.slabs_clsid]
    change_link(s, it, hv, cas)
    do_count_linked(s, it, hv)
    lock_ranked(&q.lock, LRU_LOCK)
    crowded = _link_counted(s, q, it)
    unlock_ranked(&q.lock, LRU_LOCK)
    if crowded:
        assoc_check_load(s)
        direct_check_load(s)


cdef void do_item_unlink(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef lru_queue *q
    if it.it_flags & ITEM_LINKED:
        q = &s.queues[it.slabs_clsid]
        change_unlink(s, it, hv)
        do_count_unlinked(s, it, hv)
        lock_ranked(&q.lock, LRU_LOCK)
        do_item_unlink_q(s, q, it)
        unlock_ranked(&q.lock, LRU_LOCK)
        do_item_unref(s, it)


cdef void do_item_unlink_nolock(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_held(&q.lock)
    if it.it_flags & ITEM_LINKED:
        change_unlink(s, it, hv)
        do_count_unlinked(s, it, hv)
        do_item_unlink_q(s, q, it)
        do_item_unref(s, it)


cdef inline void _inherit(const item *old, item *it) noexcept nogil:
    """S3-FIFO: a key stored again in the same slab class keeps its queue and its fetches."""
    if ITEM_clsid(old) == ITEM_clsid(it) and ITEM_lruid(it) == HOT_LRU and ITEM_lruid(old) == COLD_LRU:
        relaxed_store(&it.slabs_clsid, old.slabs_clsid)
    relaxed_store(&it.it_flags, it.it_flags | (old.it_flags & ITEM_FREQUENCY))


cdef void do_item_supersede(store *s, item *old, item *it, uint32_t hv, uint64_t cas, rel_time_t used) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef lru_queue *q
    cdef lru_queue *old_q = &s.queues[old.slabs_clsid]
    cdef bint crowded
    if s.ghost.buckets != NULL:
        _inherit(old, it)
    q = &s.queues[it.slabs_clsid]
    change_replace(s, old, it, hv, cas, used)
    do_count_unlinked(s, old, hv)
    do_count_linked(s, it, hv)
    # Mostly both items have the same queue: take its lock once.
    lock_ranked(&old_q.lock, LRU_LOCK)
    do_item_unlink_q(s, old_q, old)
    if old_q != q:
        unlock_ranked(&old_q.lock, LRU_LOCK)
        lock_ranked(&q.lock, LRU_LOCK)
    crowded = _link_counted(s, q, it)
    unlock_ranked(&q.lock, LRU_LOCK)
    do_item_unref(s, old)
    if crowded:
        assoc_check_load(s)
        direct_check_load(s)


cdef void do_item_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_that(relaxed_load(&it.refcount) > 1)
    cdef lru_queue *q = &s.queues[it.slabs_clsid]
    change_move(s, it, fresh, hv)
    lock_ranked(&q.lock, LRU_LOCK)
    _item_replace_q(s, q, it, fresh)
    unlock_ranked(&q.lock, LRU_LOCK)
    fetch_sub(&it.refcount, 1)

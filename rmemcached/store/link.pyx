# Items in the hash table and in the LRU queues, and references to them.


cdef inline unsigned int ITEM_lruid(const item *it) noexcept nogil:
    return it.slabs_clsid & LRU_MASK


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


cdef inline void do_item_replace_q(store *s, lru_queue *q, item *it, item *fresh) noexcept nogil:
    """Puts fresh, an item of the same size, in the item's place."""
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


cdef void do_item_remove(store *s, item *it) noexcept nogil:
    """Gives a reference back; the last one frees the item. Needs no lock: whoever takes a reference finds the item
    linked, with its item lock held, and a linked item has one more.
    """
    if fetch_sub(&it.refcount, 1) == 1:
        slabs_free(s, it)


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


cdef void _item_unlink_nolock(store *s, lru_queue *q, item *it, uint32_t hv) noexcept nogil:
    """do_item_unlink for a caller that holds the LRU lock as well."""
    if it.it_flags & ITEM_LINKED:
        item_clear_flags(it, ITEM_LINKED)
        assoc_delete(s, it, hv)
        count_unlinked(s, it, hv)
        do_item_unlink_q(s, q, it)
        do_item_remove(s, it)

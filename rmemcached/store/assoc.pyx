cdef enum:
    HASHPOWER_DEFAULT = 16


cdef inline pthread_mutex_t *item_mutex(store *s, uint32_t hv) noexcept nogil:
    return &s.assoc.item_locks[hv & s.assoc.item_lock_mask].lock


cdef inline pthread_mutex_t *item_mutex_of(store *s, item *it) noexcept nogil:
    return item_mutex(s, store_hash(ITEM_key(it), it.nkey))


cdef inline void item_lock(store *s, uint32_t hv) noexcept nogil:
    lock_ranked(item_mutex(s, hv), ITEM_LOCK)


cdef inline bint item_trylock(store *s, uint32_t hv) noexcept nogil:
    return trylock_ranked(item_mutex(s, hv), ITEM_LOCK)


cdef inline void item_unlock(store *s, uint32_t hv) noexcept nogil:
    unlock_ranked(item_mutex(s, hv), ITEM_LOCK)


cdef unsigned int _item_lock_power(unsigned int nthreads) noexcept nogil:
    """log2 of the number of item locks for so many worker threads; memcached's choice (thread.c)."""
    if nthreads < 3:
        return 10
    if nthreads < 4:
        return 11
    if nthreads < 5:
        return 12
    if nthreads <= 10:
        return 13
    if nthreads <= 20:
        return 14
    return 15


cdef void store_debug_lock(store *s, uint32_t hv) noexcept nogil:
    pthread_mutex_lock(item_mutex(s, hv))


cdef void store_debug_unlock(store *s, uint32_t hv) noexcept nogil:
    pthread_mutex_unlock(item_mutex(s, hv))


cdef void count_items(store *s, uint64_t *items, uint64_t *nbytes) noexcept nogil:
    cdef uint32_t i
    items[0] = nbytes[0] = 0
    for i in range(s.assoc.item_lock_mask + 1):
        items[0] += relaxed_load(&s.assoc.item_locks[i].items)
        nbytes[0] += relaxed_load(&s.assoc.item_locks[i].bytes)


cdef bint assoc_init(store *s) noexcept nogil:
    cdef unsigned int lock_power = _item_lock_power(s.config.nthreads)
    cdef uint32_t lock
    pthread_mutex_init(&s.assoc.grow_lock, NULL)
    if s.config.hashpower_init == 0:
        s.config.hashpower_init = HASHPOWER_DEFAULT
    # A table too small for the items of a memory file would have long chains while the items are linked.
    s.assoc.hashpower = max(s.config.hashpower_init, s.file.hashpower)
    # A bucket must not need two item locks, so there are fewer locks than buckets.
    if lock_power >= s.config.hashpower_init:
        lock_power = s.config.hashpower_init - 1
    s.assoc.item_lock_mask = (<uint32_t>1 << lock_power) - 1
    s.assoc.item_locks = <item_stripe *>calloc(<size_t>s.assoc.item_lock_mask + 1, sizeof(item_stripe))
    if s.assoc.item_locks == NULL:
        return False
    for lock in range(s.assoc.item_lock_mask + 1):
        pthread_mutex_init(&s.assoc.item_locks[lock].lock, NULL)
    s.assoc.hash_mask = (<uint64_t>1 << s.assoc.hashpower) - 1
    s.assoc.primary_hashtable = <item **>calloc(<size_t>1 << s.assoc.hashpower, sizeof(item *))
    return s.assoc.primary_hashtable != NULL


cdef void assoc_stop(store *s) noexcept nogil:
    lock_ranked(&s.assoc.grow_lock, GROW_LOCK)
    if s.assoc.grow_joinable:
        pthread_join(s.assoc.grow_thread, NULL)
        s.assoc.grow_joinable = False
    unlock_ranked(&s.assoc.grow_lock, GROW_LOCK)


cdef void assoc_destroy(store *s) noexcept nogil:
    cdef uint32_t lock
    free(s.assoc.primary_hashtable)
    free(s.assoc.old_hashtable)
    if s.assoc.item_locks != NULL:
        for lock in range(s.assoc.item_lock_mask + 1):
            pthread_mutex_destroy(&s.assoc.item_locks[lock].lock)
        free(s.assoc.item_locks)
    pthread_mutex_destroy(&s.assoc.grow_lock)


cdef inline item **assoc_bucket(store *s, uint32_t hv) noexcept nogil:
    """The head of the chain for a hash value.

    The growing thread moves a bucket only with the bucket's item lock, held by the caller here: so nobody moves the
    bucket meanwhile.
    """
    assert_held(item_mutex(s, hv))
    cdef uint64_t old_bucket
    if relaxed_load(&s.assoc.expanding):
        old_bucket = hv & s.assoc.old_hash_mask
        if old_bucket >= relaxed_load(&s.assoc.expand_bucket):
            return &s.assoc.old_hashtable[old_bucket]
    return &s.assoc.primary_hashtable[hv & s.assoc.hash_mask]


cdef inline item *assoc_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item *it = assoc_bucket(s, hv)[0]
    while it != NULL:
        if it.nkey == nkey and memcmp(key, ITEM_key(it), nkey) == 0:
            return it
        it = it.h_next
    return NULL


cdef inline void assoc_insert(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item **bucket = assoc_bucket(s, hv)
    it.h_next = bucket[0]
    relaxed_store_pointer(bucket, it)


cdef inline void assoc_delete(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item **pos = assoc_bucket(s, hv)
    while pos[0] != it:
        pos = &pos[0].h_next
    relaxed_store_pointer(pos, it.h_next)
    it.h_next = NULL


cdef inline void assoc_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item **pos = assoc_bucket(s, hv)
    while pos[0] != it:
        pos = &pos[0].h_next
    fresh.h_next = it.h_next
    relaxed_store_pointer(pos, fresh)
    it.h_next = NULL


cdef void _assoc_expand(store *s, item **table) noexcept nogil:
    """Makes `table`, twice as large, the primary table. All item locks are held for the few assignments."""
    cdef uint32_t i
    for i in range(s.assoc.item_lock_mask + 1):
        lock_next_ranked(&s.assoc.item_locks[i].lock, ITEM_LOCK)
    s.assoc.old_hashtable = s.assoc.primary_hashtable
    s.assoc.old_hash_mask = s.assoc.hash_mask
    s.assoc.primary_hashtable = table
    s.assoc.hash_mask = s.assoc.hash_mask * 2 + 1
    relaxed_store(&s.assoc.hashpower, s.assoc.hashpower + 1)
    relaxed_store(&s.assoc.expand_bucket, 0)
    relaxed_store(&s.assoc.expanding, 1)
    for i in range(s.assoc.item_lock_mask + 1):
        unlock_ranked(&s.assoc.item_locks[i].lock, ITEM_LOCK)


cdef void *_assoc_grow_thread(void *arg) noexcept nogil:
    """Doubles the table once: moves each bucket into the new table with the bucket's item lock held."""
    cdef store *s = <store *>arg
    cdef item **table = <item **>calloc(<size_t>2 << s.assoc.hashpower, sizeof(item *))
    cdef item **target
    cdef item *it
    cdef item *after
    cdef uint64_t bucket
    if table == NULL:
        fetch_add(&s.assoc.malloc_fails, 1)
        store_release(&s.assoc.growing, 0)
        return NULL
    _assoc_expand(s, table)
    for bucket in range(s.assoc.old_hash_mask + 1):
        if relaxed_load(&s.stopping):
            return NULL
        item_lock(s, <uint32_t>bucket)
        it = s.assoc.old_hashtable[bucket]
        while it != NULL:
            after = it.h_next
            target = &s.assoc.primary_hashtable[store_hash(ITEM_key(it), it.nkey) & s.assoc.hash_mask]
            it.h_next = target[0]
            relaxed_store_pointer(target, it)
            it = after
        s.assoc.old_hashtable[bucket] = NULL
        relaxed_store(&s.assoc.expand_bucket, bucket + 1)
        if bucket == s.assoc.old_hash_mask:
            # A thread that still finds `expanding` set finds its bucket moved, and does not look at the old table.
            relaxed_store(&s.assoc.expanding, 0)
        item_unlock(s, <uint32_t>bucket)
    free(s.assoc.old_hashtable)
    s.assoc.old_hashtable = NULL
    store_release(&s.assoc.growing, 0)
    return NULL


cdef inline bint _crowded(store *s, uint64_t items) noexcept nogil:
    return items > <uint64_t>3 << (relaxed_load(&s.assoc.hashpower) - 1)


cdef void assoc_check_load(store *s) noexcept nogil:
    cdef uint64_t items = 0
    cdef unsigned int i
    if not s.config.hash_expand or relaxed_load(&s.assoc.growing) or relaxed_load(&s.stopping) \
            or relaxed_load(&s.assoc.hashpower) >= HASHPOWER_MAX:
        return
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        items += relaxed_load(&s.queues[i].size)
    if not _crowded(s, items) or not trylock_ranked(&s.assoc.grow_lock, GROW_LOCK):
        return
    if not load_acquire(&s.assoc.growing) and not relaxed_load(&s.stopping) and _crowded(s, items):
        if s.assoc.grow_joinable:
            pthread_join(s.assoc.grow_thread, NULL)
        store_release(&s.assoc.growing, 1)
        s.assoc.grow_joinable = start_quiet_thread(&s.assoc.grow_thread, b"mc-assocmaint", _assoc_grow_thread, s) == 0
        if not s.assoc.grow_joinable:
            store_release(&s.assoc.growing, 0)
    unlock_ranked(&s.assoc.grow_lock, GROW_LOCK)

# The hash table and the item locks. memcached: assoc.c, thread.c.


cdef void item_lock(store *s, uint32_t hv) noexcept nogil:
    pthread_mutex_lock(&s.item_locks[hv & s.item_lock_mask].lock)


cdef inline bint item_trylock(store *s, uint32_t hv) noexcept nogil:
    return pthread_mutex_trylock(&s.item_locks[hv & s.item_lock_mask].lock) == 0


cdef void item_unlock(store *s, uint32_t hv) noexcept nogil:
    pthread_mutex_unlock(&s.item_locks[hv & s.item_lock_mask].lock)


cdef bint assoc_init(store *s) noexcept nogil:
    s.hashpower = s.config.hashpower_init
    s.hash_mask = (<uint64_t>1 << s.hashpower) - 1
    s.primary_hashtable = <item **>calloc(<size_t>1 << s.hashpower, sizeof(item *))
    return s.primary_hashtable != NULL


cdef inline item **assoc_bucket(store *s, uint32_t hv) noexcept nogil:
    """The chain of a hash value. The caller holds its item lock.

    The growing thread moves a bucket with the bucket's item lock held, so what another thread reads here about its
    own bucket does not change while that holds its lock.
    """
    cdef uint64_t old_bucket
    if relaxed_load(&s.expanding):
        old_bucket = hv & s.old_hash_mask
        if old_bucket >= relaxed_load(&s.expand_bucket):
            return &s.old_hashtable[old_bucket]
    return &s.primary_hashtable[hv & s.hash_mask]


cdef inline item *assoc_find(store *s, const char *key, size_t nkey, uint32_t hv) noexcept nogil:
    cdef item *it = assoc_bucket(s, hv)[0]
    while it != NULL:
        if it.nkey == nkey and memcmp(key, ITEM_key(it), nkey) == 0:
            return it
        it = it.h_next
    return NULL


cdef inline void assoc_insert(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef item **bucket = assoc_bucket(s, hv)
    it.h_next = bucket[0]
    bucket[0] = it


cdef inline void assoc_delete(store *s, item *it, uint32_t hv) noexcept nogil:
    cdef item **pos = assoc_bucket(s, hv)
    while pos[0] != it:
        pos = &pos[0].h_next
    pos[0] = it.h_next
    it.h_next = NULL


cdef inline void assoc_replace(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    """Puts fresh, whose h_next is the item's, in the item's place."""
    cdef item **pos = assoc_bucket(s, hv)
    while pos[0] != it:
        pos = &pos[0].h_next
    pos[0] = fresh


cdef void _assoc_expand(store *s, item **table) noexcept nogil:
    """Makes table, twice the size, the primary one. All item locks are held for the few assignments."""
    cdef uint32_t i
    for i in range(s.item_lock_mask + 1):
        pthread_mutex_lock(&s.item_locks[i].lock)
    s.old_hashtable = s.primary_hashtable
    s.old_hash_mask = s.hash_mask
    s.primary_hashtable = table
    s.hash_mask = s.hash_mask * 2 + 1
    relaxed_store(&s.hashpower, s.hashpower + 1)
    relaxed_store(&s.expand_bucket, 0)
    relaxed_store(&s.expanding, 1)
    for i in range(s.item_lock_mask + 1):
        pthread_mutex_unlock(&s.item_locks[i].lock)


cdef void *_assoc_grow_thread(void *arg) noexcept nogil:
    """Doubles the table once: bucket by bucket into the new one, each under its item lock."""
    cdef store *s = <store *>arg
    cdef item **table = <item **>calloc(<size_t>2 << s.hashpower, sizeof(item *))
    cdef item **target
    cdef item *it
    cdef item *after
    cdef uint64_t bucket
    if table == NULL:
        fetch_add(&s.malloc_fails, 1)
        store_release(&s.growing, 0)
        return NULL
    _assoc_expand(s, table)
    for bucket in range(s.old_hash_mask + 1):
        if relaxed_load(&s.stopping):
            return NULL
        item_lock(s, <uint32_t>bucket)
        it = s.old_hashtable[bucket]
        while it != NULL:
            after = it.h_next
            target = &s.primary_hashtable[store_hash(ITEM_key(it), it.nkey) & s.hash_mask]
            it.h_next = target[0]
            target[0] = it
            it = after
        s.old_hashtable[bucket] = NULL
        relaxed_store(&s.expand_bucket, bucket + 1)
        if bucket == s.old_hash_mask:
            # Whoever still sees `expanding` also sees its own bucket moved, and does not look at the old table.
            relaxed_store(&s.expanding, 0)
        item_unlock(s, <uint32_t>bucket)
    free(s.old_hashtable)
    s.old_hashtable = NULL
    store_release(&s.growing, 0)
    return NULL


cdef void assoc_check_load(store *s) noexcept nogil:
    """Starts the growing thread when there are more than 1.5 items a bucket."""
    cdef uint64_t items = 0
    cdef unsigned int i
    if not s.config.hash_expand or relaxed_load(&s.growing) or relaxed_load(&s.stopping) \
            or relaxed_load(&s.hashpower) >= HASHPOWER_MAX:
        return
    for i in range(<unsigned int>NUMBER_OF_QUEUES):
        items += relaxed_load(&s.queues[i].size)
    if items <= <uint64_t>3 << (relaxed_load(&s.hashpower) - 1):
        return
    if pthread_mutex_trylock(&s.grow_lock) != 0:
        return
    if not load_acquire(&s.growing) and not relaxed_load(&s.stopping) and items > <uint64_t>3 << (s.hashpower - 1):
        if s.grow_joinable:
            pthread_join(s.grow_thread, NULL)
        store_release(&s.growing, 1)
        s.grow_joinable = _start_thread(&s.grow_thread, b"mc-assocmaint", _assoc_grow_thread, s)
        if not s.grow_joinable:
            store_release(&s.growing, 0)
    pthread_mutex_unlock(&s.grow_lock)

# store_create, store_destroy and what goes with them.


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


cdef const char *_config_error(const store_config *config) noexcept nogil:
    if config.maxbytes == 0:
        return b"the memory limit must be greater than zero"
    if config.maxbytes >= <uint64_t>1 << 62:
        return b"the memory limit is larger than the address space"
    if config.factor <= 1.0:
        return b"the slab growth factor must be greater than 1"
    if config.chunk_size == 0:
        return b"the chunk size must be greater than zero"
    if config.slab_chunk_size_max > SLAB_PAGE_SIZE or config.slab_chunk_size_max < sizeof(item) + config.chunk_size:
        return b"the largest slab chunk must be at most a slab page and at least the smallest chunk"
    if config.slab_chunk_size_max % 8 != 0:
        return b"the largest slab chunk must be a multiple of 8 bytes"
    if config.item_size_max < config.slab_chunk_size_max or config.item_size_max > <uint64_t>1 << 30:
        return b"the item size limit must be between the largest slab chunk and 1 GB"
    if config.hashpower_init > HASHPOWER_MAX:
        return b"the initial hash power must be at most 32"
    return NULL


cdef char _problem[160]         # the text of an error that store_create words


cdef store *store_create(const store_config *config, const char **error) noexcept nogil:
    """A new, empty store, or NULL with a constant text in ``*error``. Starts the threads that config asks for; touches
    little memory.
    """
    cdef store *s
    cdef unsigned int lock_power
    cdef uint32_t lock
    cdef int i
    cdef timespec now
    cdef pthread_condattr_t clock
    error[0] = _config_error(config)
    if error[0] != NULL:
        return NULL
    s = <store *>calloc(1, sizeof(store))
    if s == NULL:
        error[0] = b"out of memory"
        return NULL
    s.config = config[0]
    if s.config.log == NULL:
        s.config.log = logger_none()
    s.cas_id = 1
    pthread_mutex_init(&s.slabs_lock, NULL)
    pthread_mutex_init(&s.grow_lock, NULL)
    pthread_mutex_init(&s.crawler_lock, NULL)
    pthread_mutex_init(&s.maintainer_lock, NULL)
    pthread_mutex_init(&s.bump_lock, NULL)
    pthread_mutex_init(&s.tune_lock, NULL)
    pthread_mutex_init(&s.mover.lock, NULL)
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(&s.crawler_cond, &clock)
    pthread_cond_init(&s.maintainer_cond, &clock)
    pthread_cond_init(&s.mover.cond, &clock)
    pthread_condattr_destroy(&clock)
    s.config.lru_crawler = False
    if not s.config.lru_maintainer:
        s.config.lru_segmented = False
        s.config.temp_lru = False
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_init(&s.queues[i].lock, NULL)

    clock_gettime(CLOCK_MONOTONIC, &now)
    s.process_started = <int64_t>c_time(NULL) - ITEM_UPDATE_INTERVAL - 2
    s.monotonic_start = <int64_t>now.tv_sec - ITEM_UPDATE_INTERVAL - 2

    if s.config.hashpower_init == 0:
        s.config.hashpower_init = HASHPOWER_DEFAULT
    # A bucket must not need two item locks: fewer locks than buckets.
    lock_power = _item_lock_power(config.nthreads)
    if lock_power >= s.config.hashpower_init:
        lock_power = s.config.hashpower_init - 1
    s.item_lock_mask = (<uint32_t>1 << lock_power) - 1
    s.item_locks = <item_stripe *>calloc(<size_t>s.item_lock_mask + 1, sizeof(item_stripe))
    if s.item_locks == NULL or not assoc_init(s):
        error[0] = b"out of memory for the hash table"
        store_destroy(s)
        return NULL
    for lock in range(s.item_lock_mask + 1):
        pthread_mutex_init(&s.item_locks[lock].lock, NULL)
    if not slabs_init(s):
        error[0] = b"cannot reserve address space for the memory limit"
        store_destroy(s)
        return NULL
    if s.config.preallocate and not slabs_preallocate(s):
        snprintf(_problem, sizeof(_problem), b"Error while preallocating slab memory!\nIf using -L or other prealloc "
                 b"options, max memory must be at least %u megabytes.", s.power_largest)
        error[0] = _problem
        store_destroy(s)
        return NULL
    if s.config.track_sizes and not sizes_init(s):
        error[0] = b"out of memory"
        store_destroy(s)
        return NULL
    store_tick(s)
    if config.lru_crawler and not lru_crawler_enable(s):
        error[0] = b"cannot start the LRU crawler thread"
        store_destroy(s)
        return NULL
    if config.lru_maintainer and not _maintainer_start(s):
        error[0] = b"cannot start the LRU maintainer thread"
        store_destroy(s)
        return NULL
    if s.config.slab_reassign and not mover_start(s):
        error[0] = b"cannot start the slab page mover"
        store_destroy(s)
        return NULL
    return s


cdef void store_stop_threads(store *s) noexcept nogil:
    """Ends all threads of the store; twice is harmless. It stays usable, but grows and maintains nothing any more."""
    pthread_mutex_lock(&s.crawler_lock)
    store_release(&s.stopping, 1)
    pthread_cond_broadcast(&s.crawler_cond)
    pthread_mutex_unlock(&s.crawler_lock)
    _maintainer_stop(s)
    _crawler_stop(s)
    mover_stop(s)
    pthread_mutex_lock(&s.grow_lock)
    if s.grow_joinable:
        pthread_join(s.grow_thread, NULL)
        s.grow_joinable = False
    pthread_mutex_unlock(&s.grow_lock)


cdef void store_destroy(store *s) noexcept nogil:
    """Frees everything. No other thread may be in the store, and no item may be used afterwards."""
    cdef uint32_t lock
    cdef int i
    if s == NULL:
        return
    store_stop_threads(s)
    if s.mapping != NULL:
        munmap(s.mapping, s.mapping_length)
    free(s.page_class)
    free(s.page_next)
    free(s.move.taken)
    free(s.automove.window)
    free(s.sizes)
    free(s.primary_hashtable)
    free(s.old_hashtable)
    if s.item_locks != NULL:
        for lock in range(s.item_lock_mask + 1):
            pthread_mutex_destroy(&s.item_locks[lock].lock)
        free(s.item_locks)
    for i in range(NUMBER_OF_QUEUES):
        pthread_mutex_destroy(&s.queues[i].lock)
    _bumps_free(s)
    pthread_mutex_destroy(&s.tune_lock)
    pthread_mutex_destroy(&s.bump_lock)
    pthread_cond_destroy(&s.maintainer_cond)
    pthread_mutex_destroy(&s.maintainer_lock)
    pthread_cond_destroy(&s.crawler_cond)
    pthread_mutex_destroy(&s.crawler_lock)
    pthread_cond_destroy(&s.mover.cond)
    pthread_mutex_destroy(&s.mover.lock)
    pthread_mutex_destroy(&s.grow_lock)
    pthread_mutex_destroy(&s.slabs_lock)
    free(s)


cdef const store_config *store_get_config(store *s) noexcept nogil:
    return &s.config


cdef void store_copy_config(store *s, store_config *out) noexcept nogil:
    # The locks of all that changes it.
    pthread_mutex_lock(&s.crawler_lock)
    pthread_mutex_lock(&s.mover.lock)
    pthread_mutex_lock(&s.tune_lock)
    pthread_mutex_lock(&s.slabs_lock)
    out[0] = s.config
    pthread_mutex_unlock(&s.slabs_lock)
    pthread_mutex_unlock(&s.tune_lock)
    pthread_mutex_unlock(&s.mover.lock)
    pthread_mutex_unlock(&s.crawler_lock)


cdef void store_arena(store *s, void **base, size_t *length) noexcept nogil:
    """The reserved range in which all items lie."""
    base[0] = s.arena
    length[0] = s.arena_length


cdef void store_tick(store *s) noexcept nogil:
    cdef timespec now
    cdef rel_time_t advance
    if not relaxed_load(&s.paused) and clock_gettime(CLOCK_MONOTONIC, &now) == 0:
        while True:
            advance = <rel_time_t>relaxed_load(&s.advance)
            relaxed_store(&s.current_time, <rel_time_t>(<int64_t>now.tv_sec - s.monotonic_start) + advance)
            # store_advance may have come between.
            if advance == <rel_time_t>relaxed_load(&s.advance):
                break
    assoc_check_load(s)

cdef char _problem[160]         # store_create's text for an error with a number


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


cdef const char *_create_parts(store *s) noexcept nogil:
    """Makes the locks and takes the memory of all parts. Returns the error, or NULL."""
    if not memory_file_open(s):
        return memory_file_problem()
    clock_init(s)
    lru_init(s)
    crawler_init(s)
    maintainer_init(s)
    reassign_init(s)
    reserve_init(s)
    if not assoc_init(s):
        return b"out of memory for the hash table"
    if not ghost_init(s):
        return b"out of memory for the ghost queue of S3-FIFO"
    if not link_init(s):
        return b"out of memory"
    if not slabs_init(s):
        if s.config.direct:
            return b"cannot make shared memory for the items: rdma_direct and rdma_direct_remote need Linux 5.1, and " \
                b"address space for the memory limit (ulimit -v, -m)"
        if s.file.fd >= 0 and errno == ENOSPC:
            return b"the file system of the memory file (-e) is full"
        return b"cannot reserve address space for the memory limit"
    if not s.file.fresh:
        memory_file_claim(s)
        recover_mark_foreign(s)
    memory_file_begin(s)
    if not huge_init(s):
        return b"out of memory"
    if not direct_init(s):
        return b"cannot make the index of direct reads: rdma_direct and rdma_direct_remote need memory for it, and " \
            b"go with a memory limit of up to 1.7 TB (-m)"
    return NULL


cdef const char *_fill(store *s) noexcept nogil:
    """Takes the items of a memory file, and the memory of -L. Returns the error, or NULL."""
    cdef const external_storage *external = s.config.external if s.file.fd >= 0 else NULL
    cdef const char *error = NULL
    store_tick(s)
    if external != NULL:
        error = external.begin(external.arg, memory_file_id(s), s.file.fresh)
    if error == NULL and not s.file.fresh and not recover(s):
        error = b"no memory for the items of the memory file, or no space in its file system for missing pages"
    if error == NULL and external != NULL:
        error = external.end(external.arg)
    if error != NULL:
        return error
    if s.config.preallocate and not slabs_preallocate(s):
        snprintf(_problem, sizeof(_problem), b"Error while preallocating slab memory!\nIf using -L or other prealloc "
                 b"options, max memory must be at least %u megabytes.", s.slabs.power_largest)
        return _problem
    if s.config.external != NULL:
        slabs_fill_pool(s)
    s.file.serves = True
    return NULL


cdef const char *_start_threads(store *s, bint lru_crawler) noexcept nogil:
    """Starts the threads named in config. Returns the error, or NULL."""
    if lru_crawler and not lru_crawler_enable(s):
        return b"cannot start the LRU crawler thread"
    if s.config.lru_maintainer and not maintainer_start(s):
        return b"cannot start the LRU maintainer thread"
    if not reserve_start(s):
        return b"cannot start the thread that takes space in the memory file"
    if not huge_start(s):
        return b"cannot start the thread for huge pages"
    if s.config.slab_reassign and not mover_start(s):
        return b"cannot start the slab page mover"
    if not adopt_start(s):
        return b"cannot start the thread for pages with old chunk sizes"
    return NULL


cdef store *store_create(const store_config *config, const char **error) noexcept nogil:
    cdef store *s
    error[0] = _config_error(config)
    if error[0] != NULL:
        return NULL
    s = <store *>calloc(1, sizeof(store))
    if s == NULL:
        error[0] = b"out of memory"
        return NULL
    live_add(LIVE_STORE)
    s.slabs.memfd = s.slabs.shared_fd = s.file.fd = -1
    s.config = config[0]
    if s.config.log == NULL:
        s.config.log = logger_none()
    # lru_crawler_enable sets this field.
    s.config.lru_crawler = False
    if s.config.s3fifo or not s.config.lru_maintainer:
        s.config.lru_segmented = False
    if not s.config.lru_maintainer:
        s.config.temp_lru = False
    error[0] = _create_parts(s)
    if error[0] == NULL:
        error[0] = _fill(s)
    if error[0] == NULL:
        error[0] = _start_threads(s, config.lru_crawler)
    if error[0] != NULL:
        memory_file_keep_note()
        store_destroy(s)
        return NULL
    return s


cdef void store_stop_threads(store *s) noexcept nogil:
    # The held lock keeps the crawler from missing the signal between its check of the flag and its wait.
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    store_release(&s.stopping, 1)
    pthread_cond_broadcast(&s.crawler.cond)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    adopt_stop(s)
    maintainer_stop(s)
    crawler_stop(s)
    mover_stop(s)
    assoc_stop(s)
    slabs_thread_stop(s, &s.huge.maker)
    slabs_thread_stop(s, &s.reserver)
    direct_stop(s)


cdef void store_destroy(store *s) noexcept nogil:
    if s == NULL:
        return
    store_stop_threads(s)
    automove_destroy(s)
    reassign_destroy(s)
    maintainer_destroy(s)
    crawler_destroy(s)
    lru_destroy(s)
    link_destroy(s)
    ghost_destroy(s)
    direct_destroy(s)
    assoc_destroy(s)
    huge_destroy(s)
    reserve_destroy(s)
    foreign_destroy(s)
    memory_file_end(s)
    slabs_destroy(s)
    clock_destroy(s)
    free(s)
    live_sub(LIVE_STORE)


cdef const char *store_note(store *s) noexcept nogil:
    return memory_file_note()


cdef void store_tick(store *s) noexcept nogil:
    clock_tick(s)
    assoc_check_load(s)


cdef const store_config *store_get_config(store *s) noexcept nogil:
    return &s.config


cdef void store_copy_config(store *s, store_config *out) noexcept nogil:
    # These locks together guard all settings that change.
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    out[0] = s.config
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)


cdef flash_settings *store_flash_settings(store *s) noexcept nogil:
    return &s.config.flash


cdef void store_set_flash(store *s, uint32_t *number, uint32_t value) noexcept nogil:
    lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    relaxed_store(number, value)
    unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)


cdef void store_set_flash_max_frag(store *s, double share) noexcept nogil:
    lock_ranked(&s.lru.tune_lock, TUNE_LOCK)
    s.config.flash.max_frag = share
    unlock_ranked(&s.lru.tune_lock, TUNE_LOCK)

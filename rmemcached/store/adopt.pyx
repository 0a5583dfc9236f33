cdef enum:
    ADOPT_NS = 50000            # how long the thread works before a rest of the same length
    ADOPT_WAIT_US = 10000       # before it looks again at items that others use
    ADOPT_SHAPE = ITEM_CAS | ITEM_CFLAGS | ITEM_CHUNKED | ITEM_SEAL_ROOM | ITEM_HDR  # flags of the copy's own,
    ADOPT_STATE = (ITEM_FETCHED | ITEM_ACTIVE | ITEM_TOKEN_SENT | ITEM_STALE | ITEM_KEY_BINARY     # ... of the item's
                   | ITEM_FREQUENCY)


cdef bint _is_crowded(store *s) noexcept nogil:
    """Whether more than half of foreign_room is used up."""
    cdef bint crowded
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    crowded = s.config.slab_reassign and s.config.evict_to_free \
        and s.slabs.malloced > s.config.maxbytes + foreign_room(s) // 2
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return crowded


cdef item *_adopt_look(store *s, item *chunk, uint32_t *hv) noexcept nogil:
    """The linked item of a chunk, with its item lock held and a reference; NULL: none at present."""
    cdef item *it
    cdef unsigned int flags
    cdef item *found = NULL
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    # While this thread has the slabs lock nothing is freed: a chunk's head and a linked item's key can be read.
    flags = <unsigned int>load_acquire(&chunk.it_flags) & 0xffff
    it = (<item_chunk *>chunk).head if flags & ITEM_CHUNK else chunk
    if not flags & ITEM_SLABBED and load_acquire(&it.it_flags) & ITEM_LINKED:
        hv[0] = store_hash(ITEM_key(it), it.nkey)
        if item_trylock(s, hv[0]):
            if relaxed_load(&it.it_flags) & ITEM_LINKED:
                fetch_add(&it.refcount, 1)
                found = it
            else:
                item_unlock(s, hv[0])
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return found


cdef item *_adopt_alloc(store *s, item *it) noexcept nogil:
    """An unlinked copy in this run's shape. NULL: no memory, or the item is too large now."""
    cdef item *fresh
    if it.it_flags & ITEM_HDR:
        return header_copy(s, it)
    fresh = item_alloc(s, ITEM_key(it), it.nkey, ITEM_client_flags(it), it.exptime, it.nbytes)
    if fresh != NULL:
        data_copy(fresh, 0, it, it.nbytes)
    return fresh


cdef void _adopt_item(store *s, item *it, uint32_t hv, bint crowded) noexcept nogil:
    """Puts a copy in this run's shape in the item's place, or unlinks the item. crowded: see _is_crowded."""
    assert_held(item_mutex(s, hv))
    cdef item *fresh = NULL
    cdef lru_queue *q
    cdef uint64_t cas
    if not item_is_expired(s, it):
        if not crowded or it.it_flags & ITEM_FETCHED:
            fresh = _adopt_alloc(s, it)
        if fresh == NULL and not s.config.evict_to_free \
                and item_size_ok(s, it.nkey, ITEM_client_flags(it), it.nbytes):
            # Without evictions the item stays where it is until there is room.
            return
        if fresh == NULL:
            fetch_add(&s.adopt.dropped, 1)
            q = &s.queues[it.slabs_clsid]
            lock_ranked(&q.lock, LRU_LOCK)
            q.stats.evicted += 1
            unlock_ranked(&q.lock, LRU_LOCK)
            log_evicted(s, it)
    if fresh == NULL:
        do_item_unlink(s, it, hv)
        return
    live_sub(LIVE_ITEM_REF)
    cas = ITEM_get_cas(it) if ITEM_has(it, ITEM_CAS) else get_cas_id(s)
    relaxed_store(&fresh.it_flags, (fresh.it_flags & ADOPT_SHAPE) | (it.it_flags & ADOPT_STATE))
    if ITEM_clsid(fresh) == ITEM_clsid(it) and ITEM_ntotal(fresh) == ITEM_ntotal(it):
        fresh.time = it.time
        fresh.slabs_clsid = it.slabs_clsid
        ITEM_set_cas(fresh, cas)
        store_release(&fresh.it_flags, fresh.it_flags | ITEM_LINKED)
        do_item_replace(s, it, fresh, hv)
    else:
        # The item has become longer or shorter by its CAS value (-C was changed), so the queues have to count it anew.
        if it.it_flags & ITEM_HDR:
            # The old header's end must not free the value.
            s.config.external.restore(s.config.external.arg, fresh)
        do_item_supersede(s, it, fresh, hv, cas, it.time)
        do_item_unref(s, fresh)


cdef void _adopt_rest(store *s, int64_t *began) noexcept nogil:
    cdef timespec pause = ns_timespec(ADOPT_NS)
    if now_ns() - began[0] > ADOPT_NS:
        nanosleep(&pause, NULL)
        began[0] = now_ns()


cdef void _adopt_page(store *s, uint32_t page) noexcept nogil:
    """Copies the items of a foreign page away, as far as nobody uses them."""
    cdef uint32_t size = page_chunk_size(s, page)
    cdef int64_t began = now_ns()
    cdef uint32_t i, hv
    cdef item *it
    cdef bint crowded = _is_crowded(s)
    for i in range(SLAB_PAGE_SIZE // size):
        if relaxed_load(&s.stopping):
            return
        it = _adopt_look(s, <item *>(page_address(s, page) + <size_t>i * size), &hv)
        if it != NULL:
            _adopt_item(s, it, hv, crowded)
            do_item_unref(s, it)
            item_unlock(s, hv)
        if not crowded:
            _adopt_rest(s, &began)


cdef void _adopt_end_page(store *s, uint32_t page) noexcept nogil:
    """Gives an empty foreign page to the pool."""
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    relaxed_store(&s.slabs.page_class[page], <uint8_t>PAGE_IN_TRANSIT)
    s.foreign.pages -= 1
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    memset(page_address(s, page), 0, SLAB_PAGE_SIZE)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    s.slabs.page_class[page] = SLAB_GLOBAL_PAGE_POOL
    do_page_append(s, &s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages, page)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    slabs_release(s)


cdef void _adopt_pages(store *s, uint32_t pages) noexcept nogil:
    cdef timespec pause = ns_timespec(<int64_t>ADOPT_WAIT_US * 1000)
    cdef uint32_t page
    while s.foreign.pages != 0 and not relaxed_load(&s.stopping):
        for page in range(pages):
            if is_foreign_page(s, page):
                if relaxed_load(&s.foreign.live[page]):
                    _adopt_page(s, page)
                if relaxed_load(&s.foreign.live[page]) == 0:
                    _adopt_end_page(s, page)
        if s.foreign.pages != 0:
            nanosleep(&pause, NULL)


cdef bint _is_over_limit(store *s) noexcept nogil:
    cdef bint over
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    over = s.slabs.malloced > s.config.maxbytes
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return over


cdef void _adopt_limit(store *s) noexcept nogil:
    """Has the page mover empty pages until the memory limit holds."""
    cdef timespec pause = ns_timespec(<int64_t>ADOPT_WAIT_US * 1000)
    cdef reassign_result result
    slabs_release(s)
    while _is_over_limit(s) and not relaxed_load(&s.stopping):
        result = slabs_reassign(s, -1, SLAB_GLOBAL_PAGE_POOL, True)
        if result != REASSIGN_OK and result != REASSIGN_RUNNING:
            return
        nanosleep(&pause, NULL)


cdef void *_adopt_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    s.foreign.owner = thread_id()
    _adopt_pages(s, <uint32_t>(relaxed_load(&s.slabs.arena_used) // SLAB_PAGE_SIZE))
    if s.config.slab_reassign:
        _adopt_limit(s)
    return NULL


cdef bint adopt_start(store *s) noexcept nogil:
    if not s.file.fresh and (s.foreign.pages != 0 or s.slabs.malloced > s.config.maxbytes):
        s.adopt.joinable = start_quiet_thread(&s.adopt.thread, b"mc-adopt", _adopt_thread, s) == 0
        return s.adopt.joinable
    return True


cdef void adopt_stop(store *s) noexcept nogil:
    if s.adopt.joinable:
        pthread_join(s.adopt.thread, NULL)
        s.adopt.joinable = False

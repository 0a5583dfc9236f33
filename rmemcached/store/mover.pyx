cdef enum:
    MOVE_MAX_LOOPS = 5000       # passes over a page before the mover deletes and evicts items in its way
    MOVE_GIVE_UP_LOOPS = 2 * MOVE_MAX_LOOPS     # ... and before the mover leaves the page in its class
    MOVE_BACKOFF_MAX = 5000     # microseconds between two passes
    MOVE_PATIENCE = 100         # passes in which external storage may make room, before the mover evicts instead
    MOVE_PAGES_TRIED = 4096     # pages of a class tried, to find a page without pins

cdef struct move_target:        # a chunk of the page, looked at
    item *chunk
    item *it                    # the chunk's item
    # The hash of its key. For MOVE_FROM_LRU and MOVE_BUSY_ACTIVE the mover has the item lock and a reference.
    uint32_t hv


cdef item *_move_alloc(store *s, unsigned int clsid, bint new_page) noexcept nogil:
    """Allocates a chunk of the class outside of the page. NULL: no memory."""
    assert_owner(s.mover.owner)
    cdef item *it = slabs_alloc(s, clsid, new_page)
    while it != NULL and on_moving_page(s, it):
        lock_ranked(&s.slabs.lock, SLABS_LOCK)
        do_slabs_push(s, it, clsid)
        unlock_ranked(&s.slabs.lock, SLABS_LOCK)
        it = slabs_alloc(s, clsid, new_page)
    return it


cdef inline bint _move_may_evict(store *s) noexcept nogil:
    return s.mover.allow_evictions and (
        not class_goes_outward(s, s.slabs.move.src) or s.mover.busy_loops > MOVE_PATIENCE)


cdef void _move_prepare(store *s) noexcept nogil:
    """Allocates the chunk for the next item's copy, if possible."""
    assert_owner(s.mover.owner)
    cdef page_mover *m = &s.mover
    cdef bint limit_reached
    cdef int _try
    if m.spare != NULL:
        return
    m.spare = _move_alloc(s, s.slabs.move.src, False)
    if m.spare != NULL:
        return
    if not m.allow_evictions:
        global_page_pool_size(s, &limit_reached)
        if not limit_reached:
            # Below the memory limit a new page costs less than an evicted item.
            m.spare = _move_alloc(s, s.slabs.move.src, True)
        elif m.busy_loops > MOVE_MAX_LOOPS:
            # Memory has become full since the move began: without evictions the move would not end.
            m.allow_evictions = True
    if m.allow_evictions:
        for _try in range(10):
            if m.spare != NULL:
                return
            if evict_outward(s, s.slabs.move.src) == 0:
                if not _move_may_evict(s):
                    return
                if s.config.s3fifo:
                    s3_evict(s, s.slabs.move.src, NULL)
                elif lru_pull_tail(s, s.slabs.move.src, COLD_LRU, 0, PULL_EVICT, 0, PULL_TRIES) == 0:
                    lru_pull_tail(s, s.slabs.move.src, HOT_LRU, 0, 0, 0, 1)
            m.spare = _move_alloc(s, s.slabs.move.src, False)


cdef move_status _move_look(store *s, move_target *t) noexcept nogil:
    """Finds a chunk's state. Takes a free chunk; for a linked item, takes the item lock and a reference."""
    assert_owner(s.mover.owner)
    cdef item *chunk = t.chunk
    cdef unsigned int flags
    cdef move_status status = MOVE_BUSY_FLOATING
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    flags = <unsigned int>load_acquire(&chunk.it_flags) & 0xffff
    if relaxed_load(&s.slabs.move.taken[move_chunk_index(s, chunk)]):
        status = MOVE_PASS
    elif flags & ITEM_SLABBED:
        do_slabs_unlink_free_chunk(s, chunk, s.slabs.move.src)
        do_move_take(s, chunk)
        status = MOVE_FROM_SLAB
    else:
        # While this thread has the slabs lock nothing is freed: a chunk's head and a linked item's key can be read.
        t.it = (<item_chunk *>chunk).head if flags & ITEM_CHUNK else chunk
        if load_acquire(&t.it.it_flags) & ITEM_LINKED:
            t.hv = store_hash(ITEM_key(t.it), t.it.nkey)
            if not item_trylock(s, t.hv):
                status = MOVE_LOCKED
            elif not relaxed_load(&t.it.it_flags) & ITEM_LINKED:
                item_unlock(s, t.hv)
            else:
                status = MOVE_FROM_LRU if fetch_add(&t.it.refcount, 1) == 1 else MOVE_BUSY_ACTIVE
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return status


cdef void _move_item(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    """Copies a linked item, or the head of a chained item, to fresh, which takes its place in table and queue. The
    caller has a reference to the item and keeps it; nobody else has a reference to a chained item.
    """
    assert_owner(s.mover.owner)
    assert_held(item_mutex(s, hv))
    cdef unsigned int flags = <unsigned int>relaxed_load(&it.it_flags) & 0xffff
    cdef size_t body
    cdef item_chunk *ch
    fresh.time = it.time
    fresh.exptime = it.exptime
    fresh.nbytes = it.nbytes
    fresh.slabs_clsid = it.slabs_clsid
    fresh.nkey = it.nkey
    if flags & ITEM_CHUNKED:
        body = <size_t>(<char *>ITEM_schunk(it) - <char *>it) + sizeof(item_chunk)
    else:
        body = ITEM_size(it)
    memcpy(fresh + 1, it + 1, body - sizeof(item))
    relaxed_store(&fresh.refcount, 1)
    store_release(&fresh.it_flags, flags)
    if flags & ITEM_CHUNKED:
        ch = ITEM_schunk(fresh)
        ch.next.prev = ch
        while ch != NULL:
            ch.head = fresh
            ch = ch.next

    do_item_replace(s, it, fresh, hv)
    if flags & ITEM_CHUNKED:
        # The copy owns the chain now: the old head becomes a single chunk.
        it.slabs_clsid = ITEM_schunk(it).orig_clsid
        relaxed_store(&it.it_flags, 0)


cdef void _move_chunk(store *s, item_chunk *ch, item_chunk *fresh, uint32_t hv) noexcept nogil:
    """Puts a copy of a chunk in its place in the chain. The caller has the only reference."""
    assert_owner(s.mover.owner)
    assert_held(item_mutex_of(s, ch.head))
    memcpy(fresh + 1, ch + 1, ch.used)
    fresh.next = ch.next
    fresh.prev = ch.prev
    fresh.head = ch.head
    fresh.size = ch.size
    fresh.used = ch.used
    fresh.nbytes = ch.nbytes
    fresh.slabs_clsid = ch.slabs_clsid
    fresh.orig_clsid = ch.orig_clsid
    # The flag comes before the link: at any moment the chain in a memory file is whole.
    store_release(&fresh.it_flags, ITEM_CHUNK)
    write_fence()
    ch.prev.next = fresh
    if ch.next != NULL:
        ch.next.prev = fresh
    write_fence()
    change_move_chunk(s, hv)
    relaxed_store(&ch.it_flags, 0)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    do_slabs_push(s, <item *>ch, s.slabs.move.src)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


cdef void _move_evict(store *s, item *it, uint32_t hv) noexcept nogil:
    """Has external storage take the item, or evicts it. The caller keeps its reference."""
    assert_owner(s.mover.owner)
    assert_held(item_mutex(s, hv))
    cdef lru_queue *q = &s.queues[it.slabs_clsid]
    cdef victim v = victim(it, hv)
    if do_move_outward(s, &v) or not _move_may_evict(s):
        return
    lock_ranked(&q.lock, LRU_LOCK)
    q.stats.evicted += 1
    unlock_ranked(&q.lock, LRU_LOCK)
    log_evicted(s, it)
    do_item_unlink(s, it, hv)


cdef void _move_linked(store *s, move_target *t, bint referenced) noexcept nogil:
    """Copies a linked item away, or unlinks it. The caller keeps its reference."""
    assert_owner(s.mover.owner)
    assert_held(item_mutex(s, t.hv))
    cdef page_mover *m = &s.mover
    cdef item *it = t.it
    cdef bint chained = (it.it_flags & ITEM_CHUNKED) != 0
    cdef victim v = victim(it, t.hv)
    if item_is_expired(s, it):
        do_item_unlink(s, it, t.hv)
    elif m.spare == NULL:
        relaxed_store(&m.busy_nomem, m.busy_nomem + 1)
        if m.allow_evictions and s.config.evict_to_free:
            # The class's queues had nothing to evict, perhaps because its chunks are parts of large items, which are in
            # the queues of another class. So this item is evicted.
            _move_evict(s, it, t.hv)
    elif not chained:
        _move_item(s, it, m.spare, t.hv)
        m.spare = NULL
        relaxed_store(&m.rescues, m.rescues + 1)
    elif referenced:
        # A thread with a reference may walk the chain at any time, so the chain must not change.
        if m.busy_loops > MOVE_MAX_LOOPS and not do_move_outward(s, &v):
            log_evicted(s, it)
            do_item_unlink(s, it, t.hv)
            relaxed_store(&m.busy_deletes, m.busy_deletes + 1)
    elif t.chunk == it:
        _move_item(s, it, m.spare, t.hv)
        m.spare = NULL
        relaxed_store(&m.rescues, m.rescues + 1)
    else:
        _move_chunk(s, <item_chunk *>t.chunk, <item_chunk *>m.spare, t.hv)
        m.spare = NULL
        relaxed_store(&m.chunk_rescues, m.chunk_rescues + 1)


cdef uint32_t _move_pass(store *s) noexcept nogil:
    """Looks once at each chunk of the page not taken yet. Returns how many could not be taken."""
    assert_owner(s.mover.owner)
    cdef page_mover *m = &s.mover
    cdef move_target t
    cdef move_status status
    cdef uint32_t i, busy = 0
    cdef uint32_t moved = 0
    for i in range(s.slabs.move.perslab):
        if relaxed_load(&s.slabs.move.taken[i]) or relaxed_load(&m.stop):
            continue
        _move_prepare(s)
        t.chunk = <item *>(s.slabs.move.page + <size_t>i * s.slabs.move.size)
        status = _move_look(s, &t)
        if status == MOVE_FROM_LRU or status == MOVE_BUSY_ACTIVE:
            _move_linked(s, &t, status == MOVE_BUSY_ACTIVE)
            do_item_unref(s, t.it)
            item_unlock(s, t.hv)
            moved += relaxed_load(&s.slabs.move.taken[i])
        if not relaxed_load(&s.slabs.move.taken[i]):
            busy += 1
            relaxed_store(&m.last_busy_status, status)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    relaxed_store(&m.inline_reclaim, m.inline_reclaim + s.slabs.move.given_back - moved)
    s.slabs.move.given_back = 0
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return busy


cdef bint _move_choose(store *s, page_list *pages) noexcept nogil:
    """Brings the oldest page without pins to the head of the list. False: all pages tried have pins."""
    assert_held(&s.slabs.lock)
    cdef uint32_t _try
    for _try in range(min(pages.count, <uint32_t>MOVE_PAGES_TRIED)):
        if not page_is_pinned(s, pages.head):
            return True
        do_page_append(s, pages, do_page_take(s, pages))
    return False


cdef bint move_begin(store *s, const move_request *r) noexcept nogil:
    # The move is of the class's oldest page without pins. Pages of the pool are empty: move_finish takes such a page at
    # its end.
    assert_owner(s.mover.owner)
    cdef slab_class *p = &s.slabs.classes[r.src]
    cdef bint limit_reached
    cdef bint begun = False
    cdef uint32_t i
    s.mover.allow_evictions = r.allow_evictions
    s.mover.busy_loops = 0
    if global_page_pool_size(s, &limit_reached) == 0 and limit_reached:
        s.mover.allow_evictions = True
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    if p.pages.count >= 2 and (r.src == SLAB_GLOBAL_PAGE_POOL or _move_choose(s, &p.pages)):
        s.slabs.move.src = r.src
        s.slabs.move.dst = r.dst
        s.slabs.move.size = p.size
        s.slabs.move.perslab = p.perslab
        s.slabs.move.taken_count = 0
        s.slabs.move.given_back = 0
        memset(s.slabs.move.taken, 0, p.perslab)
        begun = True
        if r.src != SLAB_GLOBAL_PAGE_POOL:
            relaxed_store_pointer(&s.slabs.move.page, page_address(s, p.pages.head))
            if p.carve_left != 0 and on_moving_page(s, p.carve):
                for i in range(p.carve_left):
                    s.slabs.move.taken[i] = 1
                s.slabs.move.taken_count = p.carve_left
                p.sl_curr -= p.carve_left
                p.carve_left = 0
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return begun


cdef void _move_end(store *s) noexcept nogil:
    """Gives the page to its new class. All of its chunks have been taken."""
    assert_owner(s.mover.owner)
    cdef slab_class *from_ = &s.slabs.classes[s.slabs.move.src]
    cdef slab_class *to = &s.slabs.classes[s.slabs.move.dst]
    cdef uint32_t page, i
    cdef item *it = NULL
    cdef item *first = NULL
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    # The pool may have been emptied meanwhile.
    if from_.pages.count < 2 and s.slabs.move.src == SLAB_GLOBAL_PAGE_POOL:
        unlock_ranked(&s.slabs.lock, SLABS_LOCK)
        return
    s.slabs.move.page = NULL
    page = do_page_take(s, &from_.pages)
    s.slabs.page_class[page] = PAGE_IN_TRANSIT
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)

    if s.slabs.move.dst == SLAB_GLOBAL_PAGE_POOL:
        memset(page_address(s, page), 0, SLAB_PAGE_SIZE)
    else:
        for i in range(to.perslab):
            it = <item *>(page_address(s, page) + <size_t>i * to.size)
            relaxed_store(&it.it_flags, ITEM_SLABBED)
            it.slabs_clsid = s.slabs.move.dst
            it.prev = NULL
            it.next = first
            if first != NULL:
                first.prev = it
            first = it

    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    s.slabs.page_class[page] = s.slabs.move.dst
    do_page_append(s, &to.pages, page)
    if first != NULL:
        it = <item *>page_address(s, page)
        it.next = to.slots
        if it.next != NULL:
            it.next.prev = it
        to.slots = first
        to.sl_curr += to.perslab
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    relaxed_store(&s.mover.slabs_moved, s.mover.slabs_moved + 1)
    slabs_release(s)


cdef void _move_give_up(store *s) noexcept nogil:
    """Leaves the page in its class: taken chunks are free again, and the next move tries another page."""
    assert_owner(s.mover.owner)
    # The page is still the first of its class, because only the mover takes pages from a class. For the pool this would
    # not hold: any thread takes pages from there.
    assert_that(s.slabs.move.src != SLAB_GLOBAL_PAGE_POOL)
    cdef uint32_t i
    cdef page_list *pages = &s.slabs.classes[s.slabs.move.src].pages
    cdef char *page = s.slabs.move.page
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    s.slabs.move.page = NULL
    do_page_append(s, pages, do_page_take(s, pages))
    for i in range(s.slabs.move.perslab):
        if s.slabs.move.taken[i]:
            do_slabs_push(s, <item *>(page + <size_t>i * s.slabs.move.size), s.slabs.move.src)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


cdef void _mover_sleep(store *s, unsigned int usec) noexcept nogil:
    """Waits for a request or for mover_stop, so many microseconds at most. Releases the reassign lock meanwhile."""
    assert_held(&s.reassign.lock)
    cdef timespec until
    time_after(&until, usec)
    pthread_cond_timedwait(&s.reassign.cond, &s.reassign.lock, &until)


cdef uint32_t _move_empty(store *s) noexcept nogil:
    """Passes over the page until all chunks are taken, the page gets a pin, or the mover gives up or has to end.
    Returns how many chunks could not be taken.
    """
    assert_owner(s.mover.owner)
    cdef page_mover *m = &s.mover
    cdef unsigned int backoff = 1
    cdef uint32_t page = <uint32_t>(<size_t>(s.slabs.move.page - s.slabs.arena) // SLAB_PAGE_SIZE)
    cdef uint32_t busy = _move_pass(s)
    while busy != 0 and m.busy_loops < MOVE_GIVE_UP_LOOPS and not relaxed_load(&m.stop) \
            and not page_is_pinned(s, page):
        m.busy_loops += 1
        relaxed_store(&m.busy_items, m.busy_items + busy)
        lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
        if not m.stop:
            _mover_sleep(s, backoff)
        unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
        backoff = backoff * 2 if backoff < MOVE_BACKOFF_MAX // 2 else MOVE_BACKOFF_MAX
        busy = _move_pass(s)
    if m.spare != NULL:
        # No slabs_free: the spare chunk has never been an item, so its slabs_clsid may not be set.
        lock_ranked(&s.slabs.lock, SLABS_LOCK)
        do_slabs_push(s, m.spare, s.slabs.move.src)
        unlock_ranked(&s.slabs.lock, SLABS_LOCK)
        m.spare = NULL
    return busy


cdef void move_finish(store *s, const move_request *r) noexcept nogil:
    assert_owner(s.mover.owner)
    # A move out of the pool has no page yet: there is nothing to wait for, and nothing to give up.
    if r.src == SLAB_GLOBAL_PAGE_POOL or (_move_empty(s) == 0 and not relaxed_load(&s.mover.stop)):
        _move_end(s)
    else:
        _move_give_up(s)


# --- the thread ---

cdef void *_mover_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    cdef move_request r
    cdef uint32_t idle = 0
    s.mover.owner = thread_id()
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    while not s.mover.stop:
        if s.reassign.requests != 0:
            r = do_reassign_take(s)
        elif not do_automove_run(s, &r):
            # The thread looks often at first: a freed page is usually followed by more.
            idle += 1
            _mover_sleep(s, 100000 if idle <= 10 else 1000000)
            continue
        else:
            idle = 0
        relaxed_store(&s.reassign.running, 1)
        unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
        if move_begin(s, &r):
            move_finish(s, &r)
        lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
        relaxed_store(&s.reassign.running, 0)
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    return NULL


cdef bint mover_start(store *s) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    if do_automove_init(s):
        s.mover.joinable = start_quiet_thread(&s.mover.thread, b"mc-slabmaint", _mover_thread, s) == 0
    s.reassign.open = s.mover.joinable
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    return s.mover.joinable


cdef void mover_stop(store *s) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    s.reassign.open = False
    relaxed_store(&s.mover.stop, 1)
    pthread_cond_broadcast(&s.reassign.cond)
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    if s.mover.joinable:
        pthread_join(s.mover.thread, NULL)
        s.mover.joinable = False
        s.mover.owner = 0

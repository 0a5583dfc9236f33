cdef enum:
    DIRECT_RESERVE = 4          # with direct_remote: the arena's length, in multiples of the memory limit's needs

cdef size_t ARENA_RESERVE = <size_t>1 << 40     # address space, so the memory limit can grow at run time


cdef inline unsigned int slabs_clsid(store *s, size_t size) noexcept nogil:
    cdef unsigned int clsid = 1
    if size == 0 or size > s.config.item_size_max:
        return 0
    while size > s.slabs.class_size[clsid]:
        if clsid == s.slabs.power_largest:
            break
        clsid += 1
    return clsid


cdef void _slabs_set_class(store *s, unsigned int clsid, uint32_t size) noexcept nogil:
    s.slabs.class_size[clsid] = size
    s.slabs.classes[clsid].size = size
    s.slabs.classes[clsid].perslab = SLAB_PAGE_SIZE // size
    s.slabs.power_largest = clsid


cdef void _slabs_set_classes(store *s) noexcept nogil:
    """Sets the chunk sizes: from -o slab_sizes, or growing by factor."""
    cdef unsigned int clsid = 1
    cdef uint32_t size = <uint32_t>sizeof(item) + s.config.chunk_size
    cdef uint32_t largest = s.config.slab_chunk_size_max
    cdef bint listed = s.config.slab_sizes[0] != 0
    while clsid < MAX_NUMBER_OF_SLAB_CLASSES - 1:
        if listed:
            size = s.config.slab_sizes[clsid - 1]
            if size == 0:
                break
        elif size >= largest / s.config.factor:
            break
        size = (size + 7) & ~<uint32_t>7
        _slabs_set_class(s, clsid, size)
        size = <uint32_t>(size * s.config.factor)
        clsid += 1
    _slabs_set_class(s, clsid, largest)


cdef bint slabs_init(store *s) noexcept nogil:
    # Reserves more than the memory limit needs, for store_set_memory_limit, unless address space is scarce.
    cdef size_t needed, length, pages
    cdef rlimit address_space
    cdef int i
    pthread_mutex_init(&s.slabs.lock, NULL)
    _slabs_set_classes(s)
    for i in range(MAX_NUMBER_OF_SLAB_CLASSES):
        s.slabs.classes[i].pages.head = s.slabs.classes[i].pages.tail = NO_PAGE
    s.slabs.released.head = s.slabs.released.tail = NO_PAGE
    s.slabs.malloced = s.config.initial_malloced

    # A class may take its first page even beyond the limit, and a memory file may have more pages than the limit.
    needed = max(<size_t>s.config.maxbytes, s.file.reserved) + <size_t>s.slabs.power_largest * SLAB_PAGE_SIZE
    needed = (needed + ARENA_EXTENT - 1) // ARENA_EXTENT * ARENA_EXTENT
    length = needed if needed > ARENA_RESERVE else ARENA_RESERVE
    if s.config.direct_remote and needed < ARENA_RESERVE // DIRECT_RESERVE:
        # The index covers the whole arena from the start: a shorter arena needs a smaller index.
        length = needed * DIRECT_RESERVE
    if getrlimit(RLIMIT_AS, &address_space) != 0 or address_space.rlim_cur != RLIM_INFINITY:
        length = needed
    while not arena_reserve(s, length):
        if length == needed:
            return False
        length //= 2
        if length < needed:
            length = needed
    pages = length // SLAB_PAGE_SIZE
    s.slabs.page_class = head_pages(s.head)
    s.slabs.arena_used = s.file.reserved
    s.slabs.page_next = <uint32_t *>calloc(pages, sizeof(uint32_t))
    s.slabs.move.taken = <uint8_t *>calloc(SLAB_PAGE_SIZE // sizeof(item), 1)
    if s.config.direct:
        s.slabs.page_pins = <uint32_t *>calloc(pages, sizeof(uint32_t))
        if s.slabs.page_pins == NULL:
            return False
    return s.slabs.page_next != NULL and s.slabs.move.taken != NULL


cdef void slabs_destroy(store *s) noexcept nogil:
    arena_release(s)
    free(s.slabs.page_next)
    free(s.slabs.page_pins)
    free(s.slabs.move.taken)
    pthread_mutex_destroy(&s.slabs.lock)


cdef bint slabs_preallocate(store *s) noexcept nogil:
    cdef unsigned int clsid
    cdef bint enough
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    enough = s.config.maxbytes >= <uint64_t>s.slabs.power_largest * SLAB_PAGE_SIZE \
        and arena_open_to(s, s.config.maxbytes) and arena_lengthen(s, s.config.maxbytes) \
        and (not s.file.fresh or huge_preallocate(s, s.config.maxbytes))
    if enough:
        for clsid in range(1, s.slabs.power_largest + 1):
            if s.slabs.classes[clsid].pages.count == 0:
                do_slabs_newslab(s, clsid)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return enough


# --- pages ---

cdef inline char *page_address(store *s, uint32_t page) noexcept nogil:
    return s.slabs.arena + <size_t>page * SLAB_PAGE_SIZE


cdef inline bint page_is_pinned(store *s, uint32_t page) noexcept nogil:
    return s.slabs.page_pins != NULL and relaxed_load(&s.slabs.page_pins[page]) != 0


cdef inline uint64_t page_bytes(store *s, unsigned int clsid) noexcept nogil:
    """How much a page of the class adds to total_malloced: less than a page if no page can move, as in memcached."""
    if s.config.slab_reassign or s.config.slab_chunk_size_max != SLAB_PAGE_SIZE:
        return SLAB_PAGE_SIZE
    return <uint64_t>s.slabs.classes[clsid].size * s.slabs.classes[clsid].perslab


cdef void do_page_append(store *s, page_list *pages, uint32_t page) noexcept nogil:
    assert_held(&s.slabs.lock)
    s.slabs.page_next[page] = NO_PAGE
    if pages.head == NO_PAGE:
        pages.head = page
    else:
        s.slabs.page_next[pages.tail] = page
    pages.tail = page
    pages.count += 1


cdef uint32_t do_page_take(store *s, page_list *pages) noexcept nogil:
    assert_held(&s.slabs.lock)
    assert_that(pages.count != 0)
    cdef uint32_t page = pages.head
    pages.head = s.slabs.page_next[page]
    if pages.head == NO_PAGE:
        pages.tail = NO_PAGE
    pages.count -= 1
    return page


cdef bint do_slabs_can_grow(store *s, unsigned int clsid) noexcept nogil:
    """Whether the class may take another page: the first always, others from the pool or within the memory limit."""
    assert_held(&s.slabs.lock)
    cdef uint64_t pool = s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    if s.slabs.classes[clsid].pages.count == 0 \
            or s.slabs.malloced + page_bytes(s, clsid) <= s.config.maxbytes + foreign_room(s):
        return True
    if s.slabs.pinned or s.slabs.sealed:
        return pool != 0 and s.slabs.malloced - pool * SLAB_PAGE_SIZE + page_bytes(s, clsid) <= s.config.maxbytes
    return pool != 0


cdef uint32_t _page_of_arena(store *s) noexcept nogil:
    """Takes a never used page. NO_PAGE: none is left, or the system refuses."""
    assert_held(&s.slabs.lock)
    cdef uint32_t page = <uint32_t>(s.slabs.arena_used // SLAB_PAGE_SIZE)
    # A device registers whole extents, so the file must have all of their pages.
    cdef size_t more = ARENA_EXTENT if s.slabs.pinned and s.slabs.arena_used % ARENA_EXTENT == 0 else SLAB_PAGE_SIZE
    if s.slabs.arena_used == s.slabs.arena_length or not arena_open_to(s, s.slabs.arena_used + SLAB_PAGE_SIZE) \
            or not arena_lengthen(s, s.slabs.arena_used + more):
        return NO_PAGE
    if s.slabs.arena_used % ARENA_EXTENT == 0 and s.config.extent_added != NULL:
        s.config.extent_added(s.config.extent_arg, s.slabs.arena + s.slabs.arena_used, ARENA_EXTENT)
    relaxed_store(&s.slabs.arena_used, s.slabs.arena_used + SLAB_PAGE_SIZE)
    relaxed_store(&s.head.arena_used, s.slabs.arena_used)
    huge_arena_grows(s)
    reserve_arena_grows(s)
    direct_arena_grows(s)
    return page


cdef bint page_reserve(store *s, uint32_t page) noexcept nogil:
    """Takes space in the memory file for a page. False: the file system is full."""
    cdef size_t at = <size_t>page * SLAB_PAGE_SIZE
    return memory_file_reserve(s, at, at + SLAB_PAGE_SIZE)


cdef uint32_t _page_released(store *s) noexcept nogil:
    """Takes a page given back to the system before. NO_PAGE: the memory file's file system is full."""
    assert_held(&s.slabs.lock)
    cdef uint32_t page = do_page_take(s, &s.slabs.released)
    if s.file.fd >= 0 and not page_reserve(s, page):
        do_page_append(s, &s.slabs.released, page)
        return NO_PAGE
    return page


cdef inline bint do_page_is_full(store *s, uint32_t page) noexcept nogil:
    """Whether all chunks of a page have been used."""
    assert_held(&s.slabs.lock)
    cdef uint8_t clsid = s.slabs.page_class[page]
    if clsid == SLAB_GLOBAL_PAGE_POOL or clsid >= PAGE_RELEASED:
        return False
    return s.slabs.classes[clsid].carve != page_address(s, page) or s.slabs.classes[clsid].carve_left == 0


cdef void do_join_pages(store *s, char *last) noexcept nogil:
    """Asks for a huge page around the slab page `last`, if all chunks of its slab pages have been used. Each class has
    one partly used page at most, so the process needs few mappings for small and huge pages.
    """
    assert_held(&s.slabs.lock)
    cdef uint32_t first = <uint32_t>(<size_t>(last - s.slabs.arena) // HUGE_PAGE * (HUGE_PAGE // SLAB_PAGE_SIZE))
    cdef uint32_t page
    for page in range(first, first + HUGE_PAGE // SLAB_PAGE_SIZE):
        if not do_page_is_full(s, page):
            return
    huge_want(s, first // (HUGE_PAGE // SLAB_PAGE_SIZE))


cdef void do_slabs_newslab(store *s, unsigned int clsid) noexcept nogil:
    """Gives a class without free chunks a page, if the class may have one. Does not access the page: slabs_alloc carves
    chunks out of the page one by one.
    """
    assert_held(&s.slabs.lock)
    cdef slab_class *p = &s.slabs.classes[clsid]
    cdef page_list *pool = &s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages
    cdef uint32_t page
    if not do_slabs_can_grow(s, clsid):
        return
    if pool.count != 0:
        page = do_page_take(s, pool)
        if s.config.external != NULL and pool.count <= relaxed_load(&s.automove.pool_least):
            s.config.external.scarce(s.config.external.arg)
    else:
        page = _page_released(s) if s.slabs.released.count != 0 else _page_of_arena(s)
        if page == NO_PAGE:
            return
        s.slabs.malloced += page_bytes(s, clsid)
    if p.carve != NULL:
        do_join_pages(s, p.carve)
    s.slabs.page_class[page] = clsid
    do_page_append(s, &p.pages, page)
    p.carve = page_address(s, page)
    p.carve_left = p.perslab
    p.sl_curr += p.perslab


cdef void slabs_release(store *s) noexcept nogil:
    cdef page_list *pool = &s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages
    cdef uint32_t page
    if not s.config.slab_reassign:
        return
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    while s.slabs.malloced > s.config.maxbytes and pool.count != 0 \
            and not s.slabs.pinned and not s.slabs.sealed and not memory_file_is_watched(s):
        page = do_page_take(s, pool)
        s.slabs.page_class[page] = PAGE_IN_TRANSIT
        s.slabs.malloced -= SLAB_PAGE_SIZE
        huge_forget(s, page)
        unlock_ranked(&s.slabs.lock, SLABS_LOCK)
        if madvise(page_address(s, page), SLAB_PAGE_SIZE,
                   MADV_REMOVE if s.slabs.memfd >= 0 else MADV_DONTNEED) != 0:
            # The file was sealed for a client meanwhile, and keeps the page: zero its bytes instead.
            memset(page_address(s, page), 0, SLAB_PAGE_SIZE)
        lock_ranked(&s.slabs.lock, SLABS_LOCK)
        s.slabs.page_class[page] = PAGE_RELEASED
        do_page_append(s, &s.slabs.released, page)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


cdef bint store_set_memory_limit(store *s, uint64_t maxbytes) noexcept nogil:
    cdef bint possible = not s.config.preallocate and maxbytes > 0 \
        and maxbytes + <uint64_t>s.slabs.power_largest * SLAB_PAGE_SIZE <= s.slabs.arena_length
    if possible:
        lock_ranked(&s.slabs.lock, SLABS_LOCK)
        relaxed_store(&s.config.maxbytes, maxbytes)
        unlock_ranked(&s.slabs.lock, SLABS_LOCK)
        slabs_release(s)
    return possible


cdef void store_pin_memory(store *s) noexcept nogil:
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    s.slabs.pinned = True
    # A device registers whole extents, and touches all their pages at once, so the pages may be huge.
    arena_lengthen(s, s.slabs.arena_open)
    madvise(s.slabs.arena, s.slabs.arena_open, MADV_HUGEPAGE)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


cdef unsigned int global_page_pool_size(store *s, bint *mem_limit_reached) noexcept nogil:
    cdef unsigned int count
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    count = s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    mem_limit_reached[0] = s.slabs.malloced >= s.config.maxbytes
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return count


cdef void slabs_fill_pool(store *s) noexcept nogil:
    cdef uint32_t page
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    while s.slabs.malloced + SLAB_PAGE_SIZE <= s.config.maxbytes:
        page = _page_released(s) if s.slabs.released.count != 0 else _page_of_arena(s)
        if page == NO_PAGE:
            break
        s.slabs.page_class[page] = SLAB_GLOBAL_PAGE_POOL
        do_page_append(s, &s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages, page)
        s.slabs.malloced += SLAB_PAGE_SIZE
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


# --- chunks ---

cdef inline bint on_moving_page(store *s, void *chunk) noexcept nogil:
    # If no page is being emptied, move.page is NULL, and the difference is larger than a page: the result is False.
    return <size_t>(<char *>chunk - s.slabs.move.page) < SLAB_PAGE_SIZE


cdef inline uint32_t move_chunk_index(store *s, void *chunk) noexcept nogil:
    return <uint32_t>(<size_t>(<char *>chunk - s.slabs.move.page) // s.slabs.move.size)


cdef inline void do_move_take(store *s, item *chunk) noexcept nogil:
    assert_held(&s.slabs.lock)
    relaxed_store(&s.slabs.move.taken[move_chunk_index(s, chunk)], 1)
    s.slabs.move.taken_count += 1


cdef inline item *do_slabs_alloc(store *s, unsigned int clsid, bint new_page, bint *carved) noexcept nogil:
    """Takes a free chunk, or NULL. carved: the chunk was never used, and its memory may not be resident."""
    assert_held(&s.slabs.lock)
    cdef slab_class *p = &s.slabs.classes[clsid]
    cdef item *it = NULL
    carved[0] = False
    if p.sl_curr == 0 and new_page:
        do_slabs_newslab(s, clsid)
    if p.slots != NULL:
        it = p.slots
        p.slots = it.next
        if it.next != NULL:
            it.next.prev = NULL
        # ITEM_SLABBED tells the page mover about a free chunk: the flag changes only with the slabs lock held.
        relaxed_store(&it.it_flags, 0)
        p.sl_curr -= 1
    elif p.carve_left != 0:
        # Chunks are taken from the end of the page, as in memcached: the mover begins at the start, with the newest
        # items.
        p.carve_left -= 1
        it = <item *>(p.carve + <size_t>p.carve_left * p.size)
        p.sl_curr -= 1
        carved[0] = True
    return it


cdef item *slabs_alloc(store *s, unsigned int clsid, bint new_page) noexcept nogil:
    cdef bint carved
    cdef item *it
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    it = do_slabs_alloc(s, clsid, new_page, &carved)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    # The lock is not held here: this may be the first access to the memory, a page fault.
    if it != NULL:
        if carved:
            relaxed_store(&it.it_flags, 0)
        relaxed_store(&it.refcount, 1)
    return it


cdef inline void do_slabs_push(store *s, item *it, unsigned int clsid) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef slab_class *p = &s.slabs.classes[clsid]
    if is_foreign(s, it):
        do_foreign_free(s, it)
        return
    relaxed_store(&it.it_flags, ITEM_SLABBED)
    it.slabs_clsid = clsid
    if on_moving_page(s, it):
        do_move_take(s, it)
        s.slabs.move.given_back += 1
        return
    it.prev = NULL
    it.next = p.slots
    if it.next != NULL:
        it.next.prev = it
    p.slots = it
    p.sl_curr += 1


cdef inline void do_slabs_unlink_free_chunk(store *s, item *it, unsigned int clsid) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef slab_class *p = &s.slabs.classes[clsid]
    if it.prev != NULL:
        it.prev.next = it.next
    else:
        p.slots = it.next
    if it.next != NULL:
        it.next.prev = it.prev
    p.sl_curr -= 1


cdef inline void do_slabs_free(store *s, item *it) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef item_chunk *ch
    cdef item_chunk *after
    if not it.it_flags & ITEM_CHUNKED:
        do_slabs_push(s, it, ITEM_clsid(it))
        return
    ch = ITEM_schunk(it)
    after = ch.next
    do_slabs_push(s, it, ch.orig_clsid)
    while after != NULL:
        ch = after
        after = ch.next
        do_slabs_push(s, <item *>ch, ch.slabs_clsid)


cdef void slabs_free(store *s, item *it) noexcept nogil:
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    do_slabs_free(s, it)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


# --- pins ---

cdef inline uint32_t *_pins_of(store *s, void *chunk) noexcept nogil:
    return &s.slabs.page_pins[<size_t>(<char *>chunk - s.slabs.arena) // SLAB_PAGE_SIZE]


cdef void _chunk_unpin(store *s, void *chunk) noexcept nogil:
    if fetch_sub(_pins_of(s, chunk), 1) == 1:
        fetch_sub(&s.slabs.pinned_pages, 1)


cdef bint _chunk_pin(store *s, void *chunk, uint64_t most) noexcept nogil:
    # Pins the page of a chunk. False: for the reasons of item_pin, and nothing is pinned.
    cdef bint first = fetch_add(_pins_of(s, chunk), 1) == 0
    # If the mover begins to empty the page a moment later, it finds the pin and leaves the page alone.
    if (not first or fetch_add(&s.slabs.pinned_pages, 1) < most) \
            and <size_t>chunk - <size_t>relaxed_load(<size_t *>&s.slabs.move.page) >= SLAB_PAGE_SIZE:
        return True
    _chunk_unpin(s, chunk)
    return False


cdef bint item_pin(store *s, item *it, uint64_t most) noexcept nogil:
    cdef item_chunk *ch
    if not _chunk_pin(s, it, most):
        return False
    # The chain does not change as long as there is a reference.
    ch = ITEM_schunk(it).next if ITEM_has(it, ITEM_CHUNKED) else NULL
    while ch != NULL and _chunk_pin(s, ch, most):
        ch = ch.next
    if ch == NULL:
        return True
    while ch.prev != ITEM_schunk(it):
        ch = ch.prev
        _chunk_unpin(s, ch)
    _chunk_unpin(s, it)
    return False


cdef void item_unpin(store *s, item *it) noexcept nogil:
    cdef item_chunk *ch = ITEM_schunk(it).next if ITEM_has(it, ITEM_CHUNKED) else NULL
    while ch != NULL:
        _chunk_unpin(s, ch)
        ch = ch.next
    _chunk_unpin(s, it)

# Slab classes in one reserved arena. memcached: slabs.c.
#
# A page of the arena is at any time in the list of one slab class, in the global pool (class 0), among the released
# pages, or between two of them while the page mover prepares it. Pages without a class are all zeros, so that a chunk
# carved out of one has no flags before its owner gives it some.


cdef inline unsigned int slabs_clsid(store *s, size_t size) noexcept nogil:
    """The class for size bytes; 0 when that is no size of an item. The largest class for what needs several chunks."""
    cdef unsigned int clsid = 1
    if size == 0 or size > s.config.item_size_max:
        return 0
    while size > s.class_size[clsid]:
        if clsid == s.power_largest:
            break
        clsid += 1
    return clsid


cdef void _slabs_set_class(store *s, unsigned int clsid, uint32_t size) noexcept nogil:
    s.class_size[clsid] = size
    s.classes[clsid].size = size
    s.classes[clsid].perslab = SLAB_PAGE_SIZE // size
    s.power_largest = clsid


cdef void _slabs_set_classes(store *s) noexcept nogil:
    """Chunk sizes: the configured ones, or by factor."""
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


cdef bint _slabs_reserve(store *s, size_t length) noexcept nogil:
    """Reserves address space for an arena of length bytes, without access and without a claim on memory."""
    cdef void *mapping = mmap(NULL, length + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapping == MAP_FAILED:
        return False
    s.mapping = <char *>mapping
    s.mapping_length = length + HUGE_PAGE
    s.arena = <char *>((<size_t>mapping + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE)
    s.arena_length = length
    return True


cdef bint slabs_init(store *s) noexcept nogil:
    """Computes the chunk sizes and reserves the arena; False when there is no address space for it.

    More is reserved than the memory limit needs, for store_set_memory_limit, unless address space is scarce.
    """
    cdef size_t needed, length, pages
    cdef rlimit address_space
    cdef int i
    _slabs_set_classes(s)
    for i in range(MAX_NUMBER_OF_SLAB_CLASSES):
        s.classes[i].pages.head = s.classes[i].pages.tail = NO_PAGE
    s.released.head = s.released.tail = NO_PAGE
    s.malloced = s.config.initial_malloced

    # Every class may take its first page over the limit.
    needed = s.config.maxbytes + <size_t>s.power_largest * SLAB_PAGE_SIZE
    needed = (needed + ARENA_EXTENT - 1) // ARENA_EXTENT * ARENA_EXTENT
    length = needed if needed > ARENA_RESERVE else ARENA_RESERVE
    if getrlimit(RLIMIT_AS, &address_space) != 0 or address_space.rlim_cur != RLIM_INFINITY:
        length = needed
    while not _slabs_reserve(s, length):
        if length == needed:
            return False
        length //= 2
        if length < needed:
            length = needed
    pages = length // SLAB_PAGE_SIZE
    s.page_class = <uint8_t *>calloc(pages, sizeof(uint8_t))
    s.page_next = <uint32_t *>calloc(pages, sizeof(uint32_t))
    return s.page_class != NULL and s.page_next != NULL


cdef bint _slabs_open(store *s, size_t top) noexcept nogil:
    """Makes the arena usable up to top, whole extents; False when the system has no memory to promise."""
    cdef size_t length
    if top <= s.arena_open:
        return True
    length = (top - s.arena_open + ARENA_EXTENT - 1) // ARENA_EXTENT * ARENA_EXTENT
    if mprotect(s.arena + s.arena_open, length, PROT_READ | PROT_WRITE) != 0:
        return False
    madvise(s.arena + s.arena_open, length, MADV_HUGEPAGE)
    s.arena_open += length
    return True


cdef bint slabs_preallocate(store *s) noexcept nogil:
    """Takes all memory of the limit and gives each class a page; False when the limit is too small for that, or there
    is not so much memory.
    """
    cdef unsigned int clsid
    if s.config.maxbytes < <uint64_t>s.power_largest * SLAB_PAGE_SIZE or not _slabs_open(s, s.config.maxbytes) \
            or rmc_populate(s.arena, s.config.maxbytes) != 0:
        return False
    for clsid in range(1, s.power_largest + 1):
        do_slabs_newslab(s, clsid)
    return True


# --- pages ---

cdef inline char *page_address(store *s, uint32_t page) noexcept nogil:
    return s.arena + <size_t>page * SLAB_PAGE_SIZE


cdef inline uint64_t page_bytes(store *s, unsigned int clsid) noexcept nogil:
    """What a page of the class counts as in total_malloced."""
    if s.config.slab_reassign or s.config.slab_chunk_size_max != SLAB_PAGE_SIZE:
        return SLAB_PAGE_SIZE
    return <uint64_t>s.classes[clsid].size * s.classes[clsid].perslab


cdef void do_page_append(store *s, page_list *pages, uint32_t page) noexcept nogil:
    s.page_next[page] = NO_PAGE
    if pages.head == NO_PAGE:
        pages.head = page
    else:
        s.page_next[pages.tail] = page
    pages.tail = page
    pages.count += 1


cdef uint32_t do_page_take(store *s, page_list *pages) noexcept nogil:
    """The oldest page of a list that is not empty."""
    cdef uint32_t page = pages.head
    pages.head = s.page_next[page]
    if pages.head == NO_PAGE:
        pages.tail = NO_PAGE
    pages.count -= 1
    return page


cdef bint do_slabs_can_grow(store *s, unsigned int clsid) noexcept nogil:
    """Whether the class may take another page: the first always, others from the pool or within the memory limit."""
    cdef uint64_t pool = s.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    if s.classes[clsid].pages.count == 0 or s.malloced + page_bytes(s, clsid) <= s.config.maxbytes:
        return True
    if s.pinned:
        return pool != 0 and s.malloced - pool * SLAB_PAGE_SIZE + page_bytes(s, clsid) <= s.config.maxbytes
    return pool != 0


cdef uint32_t _page_of_arena(store *s) noexcept nogil:
    """A page that was never used, or NO_PAGE."""
    cdef uint32_t page = <uint32_t>(s.arena_used // SLAB_PAGE_SIZE)
    if s.arena_used == s.arena_length or not _slabs_open(s, s.arena_used + SLAB_PAGE_SIZE):
        return NO_PAGE
    if s.arena_used % ARENA_EXTENT == 0 and s.config.extent_added != NULL:
        s.config.extent_added(s.config.extent_arg, s.arena + s.arena_used, ARENA_EXTENT)
    s.arena_used += SLAB_PAGE_SIZE
    return page


cdef void do_slabs_newslab(store *s, unsigned int clsid) noexcept nogil:
    """Gives a class without free chunks a page, if it may have one. The page is not touched: chunks are carved when
    they are used.
    """
    cdef slab_class *p = &s.classes[clsid]
    cdef uint32_t page
    if not do_slabs_can_grow(s, clsid):
        return
    if s.classes[SLAB_GLOBAL_PAGE_POOL].pages.count != 0:
        page = do_page_take(s, &s.classes[SLAB_GLOBAL_PAGE_POOL].pages)
    else:
        page = do_page_take(s, &s.released) if s.released.count != 0 else _page_of_arena(s)
        if page == NO_PAGE:
            return
        s.malloced += page_bytes(s, clsid)
    s.page_class[page] = clsid
    do_page_append(s, &p.pages, page)
    p.carve = page_address(s, page)
    p.carve_left = p.perslab
    p.sl_curr += p.perslab


cdef void slabs_release(store *s) noexcept nogil:
    """Gives pages of the pool back to the system while more is used than the limit allows."""
    cdef page_list *pool = &s.classes[SLAB_GLOBAL_PAGE_POOL].pages
    cdef uint32_t page
    if not s.config.slab_reassign:
        return
    pthread_mutex_lock(&s.slabs_lock)
    while s.malloced > s.config.maxbytes and pool.count != 0 and not s.pinned:
        page = do_page_take(s, pool)
        s.page_class[page] = PAGE_IN_TRANSIT
        s.malloced -= SLAB_PAGE_SIZE
        pthread_mutex_unlock(&s.slabs_lock)
        madvise(page_address(s, page), SLAB_PAGE_SIZE, MADV_DONTNEED)
        pthread_mutex_lock(&s.slabs_lock)
        s.page_class[page] = PAGE_RELEASED
        do_page_append(s, &s.released, page)
    pthread_mutex_unlock(&s.slabs_lock)


cdef bint store_set_memory_limit(store *s, uint64_t maxbytes) noexcept nogil:
    """Changes the memory limit, in bytes, at run time. When it shrinks, pages of the pool are given back at once and
    others as the page mover frees them; after store_pin_memory they stay in the pool, where no class gets them until
    the limit allows it. False: the memory was preallocated, or the reserved address space is smaller.
    """
    cdef bint possible = not s.config.preallocate and maxbytes > 0 \
        and maxbytes + <uint64_t>s.power_largest * SLAB_PAGE_SIZE <= s.arena_length
    if possible:
        pthread_mutex_lock(&s.slabs_lock)
        relaxed_store(&s.config.maxbytes, maxbytes)
        pthread_mutex_unlock(&s.slabs_lock)
        slabs_release(s)
    return possible


cdef void store_pin_memory(store *s) noexcept nogil:
    """From now on the arena keeps its physical memory: nothing is given back to the system."""
    pthread_mutex_lock(&s.slabs_lock)
    s.pinned = True
    pthread_mutex_unlock(&s.slabs_lock)


cdef unsigned int global_page_pool_size(store *s, bint *mem_limit_reached) noexcept nogil:
    """Pages without a class. mem_limit_reached (may be NULL): all memory of the limit has been taken."""
    cdef unsigned int count
    pthread_mutex_lock(&s.slabs_lock)
    count = s.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    if mem_limit_reached != NULL:
        mem_limit_reached[0] = s.malloced >= s.config.maxbytes
    pthread_mutex_unlock(&s.slabs_lock)
    return count


# --- chunks ---

cdef inline bint _on_moving_page(store *s, void *chunk) noexcept nogil:
    # No page is moved: the difference to NULL is larger than any page.
    return <size_t>(<char *>chunk - s.move.page) < SLAB_PAGE_SIZE


cdef item *slabs_alloc(store *s, unsigned int clsid, bint new_page, bint *can_grow) noexcept nogil:
    """A free chunk of the class with reference count 1 and no flags, or NULL. new_page: the class may grow for it.
    can_grow (may be NULL) is told, with NULL, whether it still could.
    """
    cdef slab_class *p = &s.classes[clsid]
    cdef item *it = NULL
    cdef bint carved = False
    pthread_mutex_lock(&s.slabs_lock)
    if p.sl_curr == 0 and new_page:
        do_slabs_newslab(s, clsid)
    if p.slots != NULL:
        it = p.slots
        p.slots = it.next
        if it.next != NULL:
            it.next.prev = NULL
        # The page mover takes what is ITEM_SLABBED for free: the flag comes and goes with the slabs lock held.
        relaxed_store(&it.it_flags, 0)
        p.sl_curr -= 1
    elif p.carve_left != 0:
        # From the page's end, as memcached does: the mover, which begins at the other, meets the newest items first.
        p.carve_left -= 1
        it = <item *>(p.carve + <size_t>p.carve_left * p.size)
        p.sl_curr -= 1
        carved = True
    elif can_grow != NULL:
        can_grow[0] = do_slabs_can_grow(s, clsid)
    pthread_mutex_unlock(&s.slabs_lock)
    # Outside of the lock, for this may be the page's first touch.
    if it != NULL:
        if carved:
            relaxed_store(&it.it_flags, 0)
        relaxed_store(&it.refcount, 1)
    return it


cdef inline void do_slabs_push(store *s, item *it, unsigned int clsid) noexcept nogil:
    cdef slab_class *p = &s.classes[clsid]
    relaxed_store(&it.it_flags, ITEM_SLABBED)
    it.slabs_clsid = clsid
    if _on_moving_page(s, it):
        do_move_take(s, it)
        s.move.given_back += 1
        return
    it.prev = NULL
    it.next = p.slots
    if it.next != NULL:
        it.next.prev = it
    p.slots = it
    p.sl_curr += 1


cdef inline void do_slabs_unlink_free_chunk(store *s, item *it, unsigned int clsid) noexcept nogil:
    cdef slab_class *p = &s.classes[clsid]
    if it.prev != NULL:
        it.prev.next = it.next
    else:
        p.slots = it.next
    if it.next != NULL:
        it.next.prev = it.prev
    p.sl_curr -= 1


cdef void slabs_free(store *s, item *it) noexcept nogil:
    """Returns an item's memory: its chunk, or its head and all chunks of the chain."""
    cdef item_chunk *ch
    cdef item_chunk *after
    pthread_mutex_lock(&s.slabs_lock)
    if it.it_flags & ITEM_CHUNKED:
        ch = ITEM_schunk(it)
        after = ch.next
        do_slabs_push(s, it, ch.orig_clsid)
        while after != NULL:
            ch = after
            after = ch.next
            do_slabs_push(s, <item *>ch, ch.slabs_clsid)
    else:
        do_slabs_push(s, it, ITEM_clsid(it))
    pthread_mutex_unlock(&s.slabs_lock)


cdef inline uint32_t _chunk_index(store *s, void *chunk) noexcept nogil:
    return <uint32_t>(<size_t>(<char *>chunk - s.move.page) // s.move.size)


cdef void do_move_take(store *s, item *chunk) noexcept nogil:
    """Takes a chunk of the page that is moved; nobody else has it. The slabs lock is held."""
    relaxed_store(&s.move.taken[_chunk_index(s, chunk)], 1)
    s.move.taken_count += 1

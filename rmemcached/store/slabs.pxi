# Slab classes in one reserved arena. memcached: slabs.c.


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


cdef bint slabs_init(store *s) noexcept nogil:
    """Computes the chunk sizes and reserves the arena; False when there is no address space for it."""
    cdef unsigned int clsid = 1
    cdef uint32_t size = <uint32_t>sizeof(item) + s.config.chunk_size
    cdef uint32_t largest = s.config.slab_chunk_size_max
    cdef size_t length
    cdef void *mapping
    while clsid < MAX_NUMBER_OF_SLAB_CLASSES - 1 and size < largest / s.config.factor:
        size = (size + 7) & ~<uint32_t>7
        _slabs_set_class(s, clsid, size)
        size = <uint32_t>(size * s.config.factor)
        clsid += 1
    _slabs_set_class(s, clsid, largest)

    # Every class may take its first page over the limit.
    length = s.config.maxbytes + <size_t>s.power_largest * SLAB_PAGE_SIZE
    length = (length + ARENA_EXTENT - 1) // ARENA_EXTENT * ARENA_EXTENT
    s.page_class = <uint8_t *>calloc(length // SLAB_PAGE_SIZE, 1)
    if s.page_class == NULL:
        return False
    mapping = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapping == MAP_FAILED:
        return False
    s.mapping = <char *>mapping
    s.mapping_length = length + HUGE_PAGE
    s.arena = <char *>((<size_t>mapping + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE)
    s.arena_length = length
    return True


cdef bint do_slabs_can_grow(store *s, unsigned int clsid) noexcept nogil:
    """Whether the class may take another page: the first always, others within the memory limit."""
    return s.classes[clsid].slabs == 0 or s.arena_used + SLAB_PAGE_SIZE <= s.config.maxbytes


cdef void do_slabs_newslab(store *s, unsigned int clsid) noexcept nogil:
    """Takes the arena's next page for the class, if it may. Its memory is not touched: chunks are carved when used."""
    cdef slab_class *p = &s.classes[clsid]
    cdef char *page = s.arena + s.arena_used
    if not do_slabs_can_grow(s, clsid):
        return
    if s.arena_used % ARENA_EXTENT == 0:
        madvise(page, ARENA_EXTENT, MADV_HUGEPAGE)
        if s.config.extent_added != NULL:
            s.config.extent_added(s.config.extent_arg, page, ARENA_EXTENT)
    s.page_class[s.arena_used // SLAB_PAGE_SIZE] = clsid
    s.arena_used += SLAB_PAGE_SIZE
    p.slabs += 1
    p.carve = page
    p.carve_left = p.perslab
    p.sl_curr += p.perslab


cdef item *slabs_alloc(store *s, unsigned int clsid, bint new_page, bint *can_grow) noexcept nogil:
    """A free chunk of the class with reference count 1 and no flags, or NULL. new_page: the class may grow for it.
    can_grow (may be NULL) is told, with NULL, whether it still could.
    """
    cdef slab_class *p = &s.classes[clsid]
    cdef item *it = NULL
    pthread_mutex_lock(&s.slabs_lock)
    if p.sl_curr == 0 and new_page:
        do_slabs_newslab(s, clsid)
    if p.slots != NULL:
        it = p.slots
        p.slots = it.next
        p.sl_curr -= 1
    elif p.carve_left != 0:
        it = <item *>p.carve
        p.carve += p.size
        p.carve_left -= 1
        p.sl_curr -= 1
    elif can_grow != NULL:
        can_grow[0] = do_slabs_can_grow(s, clsid)
    pthread_mutex_unlock(&s.slabs_lock)
    # Outside of the lock, for this may be the page's first touch.
    if it != NULL:
        it.it_flags = 0
        relaxed_store(&it.refcount, 1)
    return it


cdef inline void do_slabs_push(store *s, item *it, unsigned int clsid) noexcept nogil:
    cdef slab_class *p = &s.classes[clsid]
    it.it_flags = ITEM_SLABBED
    it.slabs_clsid = clsid
    it.next = p.slots
    p.slots = it
    p.sl_curr += 1


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

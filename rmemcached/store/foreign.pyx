cdef enum:
    FOREIGN_ROOM = 64 * SLAB_PAGE_SIZE
    FOREIGN_WAITS = 2000        # waits of an allocation, at most, of so many microseconds each
    FOREIGN_WAIT_US = 100


cdef inline uint32_t page_chunk_size(store *s, uint32_t page) noexcept nogil:
    cdef unsigned int clsid = s.slabs.page_class[page]
    if clsid < MAX_NUMBER_OF_SLAB_CLASSES:
        return s.slabs.class_size[clsid]
    return s.head.foreign[clsid - PAGE_FOREIGN] if clsid >= PAGE_FOREIGN else 0


cdef inline bint is_foreign_page(store *s, uint32_t page) noexcept nogil:
    return relaxed_load(&s.slabs.page_class[page]) >= PAGE_FOREIGN


cdef inline bint is_foreign(store *s, const void *chunk) noexcept nogil:
    # A page loses this class only when none of its chunks is in use any more.
    return relaxed_load(&s.foreign.pages) != 0 \
        and is_foreign_page(s, <uint32_t>(<size_t>(<const char *>chunk - s.slabs.arena) // SLAB_PAGE_SIZE))


cdef bint foreign_init(store *s) noexcept nogil:
    s.foreign.live = <uint16_t *>calloc(s.slabs.arena_used // SLAB_PAGE_SIZE, sizeof(uint16_t))
    return s.foreign.live != NULL


cdef void foreign_destroy(store *s) noexcept nogil:
    free(s.foreign.live)


cdef inline uint64_t foreign_room(store *s) noexcept nogil:
    return min(<uint64_t>FOREIGN_ROOM, s.config.maxbytes // 4) if s.foreign.pages != 0 else 0


cdef bint foreign_wait(store *s, unsigned int *waits) noexcept nogil:
    cdef timespec pause = ns_timespec(<int64_t>FOREIGN_WAIT_US * 1000)
    if relaxed_load(&s.foreign.pages) == 0 or waits[0] == FOREIGN_WAITS or thread_id() == s.foreign.owner:
        return False
    waits[0] += 1
    nanosleep(&pause, NULL)
    return True


cdef inline void do_foreign_free(store *s, item *chunk) noexcept nogil:
    assert_held(&s.slabs.lock)
    cdef uint32_t page = <uint32_t>(<size_t>(<char *>chunk - s.slabs.arena) // SLAB_PAGE_SIZE)
    assert_that(s.foreign.live[page] != 0)
    relaxed_store(&chunk.it_flags, ITEM_SLABBED)
    relaxed_store(&s.foreign.live[page], s.foreign.live[page] - 1)

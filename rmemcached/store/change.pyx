# --- link, replace, move, unlink ---

cdef inline void _publish(store *s, item *it, uint64_t cas, rel_time_t used) noexcept nogil:
    """Readies an unshared item for the hash table: the table's reference, time, CAS value."""
    assert_that(not it.it_flags & (ITEM_LINKED | ITEM_SLABBED))
    assert_that(relaxed_load(&it.refcount) == 1)
    it.time = used
    ITEM_set_cas(it, cas)
    relaxed_store(&it.refcount, 2)
    # Publishes the item for the page mover, which reads keys of linked items.
    store_release(&it.it_flags, it.it_flags | ITEM_LINKED)


cdef inline void _withdraw(store *s, item *it) noexcept nogil:
    direct_take_seal(s, it)
    do_item_clear_flags(s, it, ITEM_LINKED)


cdef inline void _tell_gone(store *s, item *it) noexcept nogil:
    if it.it_flags & ITEM_HDR:
        s.config.external.gone(s.config.external.arg, it)


cdef inline void change_link(store *s, item *it, uint32_t hv, uint64_t cas) noexcept nogil:
    assert_held(item_mutex(s, hv))
    _publish(s, it, cas, store_time(s))
    assoc_insert(s, it, hv)
    direct_insert(s, it, hv)
    direct_write_seal(s, it)


cdef inline void change_replace(store *s, item *old, item *it, uint32_t hv, uint64_t cas,
                                rel_time_t used) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_that(old.it_flags & ITEM_LINKED)
    _publish(s, it, cas, used)
    # In a memory file the old or the new item is linked at any moment.
    write_fence()
    _withdraw(s, old)
    _tell_gone(s, old)
    assoc_replace(s, old, it, hv)
    direct_replace(s, old, it, hv)
    direct_write_seal(s, it)


cdef inline void change_move(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_that(it.it_flags & fresh.it_flags & ITEM_LINKED)
    _withdraw(s, it)
    assoc_replace(s, it, fresh, hv)
    direct_replace(s, it, fresh, hv)
    direct_write_seal(s, fresh)


cdef inline void change_restore(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_that(it.it_flags & ITEM_LINKED)
    it.h_next = NULL
    relaxed_store(&it.refcount, 1)
    assoc_insert(s, it, hv)
    direct_insert(s, it, hv)
    direct_write_seal(s, it)


cdef inline void change_move_chunk(store *s, uint32_t hv) noexcept nogil:
    # A client may be reading the old chunk: the changed version tells the client.
    direct_begin(s, hv)
    direct_end(s, hv)


cdef inline void change_unlink(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    assert_that(it.it_flags & ITEM_LINKED)
    _withdraw(s, it)
    _tell_gone(s, it)
    assoc_delete(s, it, hv)
    direct_remove(s, it, hv)


# --- alter ---

cdef inline void change_alter(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_that(it.it_flags & ITEM_LINKED)
    direct_begin(s, hv)
    direct_take_seal(s, it)


cdef inline void change_altered(store *s, item *it, uint32_t hv) noexcept nogil:
    direct_write_seal(s, it)
    direct_end(s, hv)


cdef void change_place(store *s, item *it, const item_hdr *where) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    assert_that(it.it_flags & ITEM_HDR != 0)
    _tell_gone(s, it)
    # By one store each, for a memory file: version and offset agree then, and the version alone names the page.
    memcpy(ITEM_data(it), where, sizeof(uint64_t))
    write_fence()
    memcpy(ITEM_data(it) + sizeof(uint64_t), <const char *>where + sizeof(uint64_t),
           sizeof(item_hdr) - sizeof(uint64_t))


cdef inline void do_item_set_flags(store *s, item *it, unsigned int flags) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    if flags & (ITEM_STALE | ITEM_TOKEN_SENT) and it.it_flags & ITEM_LINKED:
        direct_take_seal(s, it)
    relaxed_store(&it.it_flags, it.it_flags | flags)


cdef inline void do_item_clear_flags(store *s, item *it, unsigned int flags) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    relaxed_store(&it.it_flags, it.it_flags & ~flags)


cdef void do_item_set_exptime(store *s, item *it, rel_time_t exptime) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    direct_set_times(s, it, it.time, exptime)


cdef void do_item_set_cas(store *s, item *it, uint64_t cas) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    direct_set_cas(s, it, cas)


# --- flush ---

cdef void change_flush(store *s, rel_time_t oldest) noexcept nogil:
    relaxed_store(&s.head.oldest_live, oldest)
    direct_tell(s)

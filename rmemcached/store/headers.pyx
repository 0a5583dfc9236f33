cdef enum:
    KEPT_FLAGS = ITEM_FETCHED | ITEM_TOKEN_SENT | ITEM_STALE | ITEM_KEY_BINARY  # in another item with the same value


# --- headers ---

cdef item *_header_alloc(store *s, item *it, const item_hdr *where) noexcept nogil:
    """An unlinked header for the item's value."""
    cdef item *fresh = item_alloc_as(s, ITEM_key(it), it.nkey, ITEM_client_flags(it), it.exptime, sizeof(item_hdr),
                                     True)
    if fresh != NULL:
        memcpy(ITEM_data(fresh), where, sizeof(item_hdr))
        fresh.nbytes = it.nbytes
        item_set_flags(fresh, ITEM_HDR | (it.it_flags & KEPT_FLAGS))
    return fresh


cdef void _take_place(store *s, item *it, item *fresh, uint32_t hv) noexcept nogil:
    """Puts fresh, whose value is elsewhere, in the item's place. The move is no use of the item: so a flush_all that
    meets the item meets fresh, too."""
    do_item_supersede(s, it, fresh, hv, ITEM_get_cas(it), it.time)


cdef inline bint _is_over(store *s, const item *it) noexcept nogil:
    """Whether the item has expired, or was flushed, or a running flush may have to unlink the item."""
    return item_is_expired(s, it) or is_before_flush(s, it)


cdef bint do_victim_to_header(store *s, const victim *v, const item_hdr *where) noexcept nogil:
    assert_held(item_mutex(s, v.hv))
    cdef item *fresh = _header_alloc(s, v.it, where)
    if fresh == NULL:
        return False
    _take_place(s, v.it, fresh, v.hv)
    do_item_remove(s, fresh)
    return True


cdef inline bint _is_at(item *it, const item_hdr *where) noexcept nogil:
    """Whether the item is a linked header, and its value at this place."""
    cdef item_hdr at
    if it.it_flags & (ITEM_HDR | ITEM_LINKED) != ITEM_HDR | ITEM_LINKED:
        return False
    at = ITEM_get_hdr(it)
    return at.page_version == where.page_version and at.page_id == where.page_id and at.offset == where.offset


cdef item *header_find_locked(store *s, const char *key, size_t nkey, uint32_t hv,
                              const item_hdr *where) noexcept nogil:
    cdef item *it
    item_lock(s, hv)
    it = assoc_find(s, key, nkey, hv)
    if it != NULL and _is_at(it, where) and not _is_over(s, it):
        return it
    item_unlock(s, hv)
    return NULL


cdef item *header_copy(store *s, item *it) noexcept nogil:
    cdef item_hdr where = ITEM_get_hdr(it)
    return _header_alloc(s, it, &where)


cdef void do_header_move(store *s, item *it, const item_hdr *where) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    change_place(s, it, where)


cdef item *header_buffer(store *s, item *it) noexcept nogil:
    return item_alloc(s, ITEM_key(it), it.nkey, ITEM_client_flags(it), item_exptime(it), it.nbytes)


cdef uint32_t header_lock(store *s, item *it) noexcept nogil:
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    item_lock(s, hv)
    return hv


cdef item *do_header_successor(store *s, item *it, uint32_t hv) noexcept nogil:
    assert_held(item_mutex(s, hv))
    cdef item *present = assoc_find(s, ITEM_key(it), it.nkey, hv)
    if present == NULL or present == it or present.nbytes != it.nbytes or present.exptime != it.exptime \
            or ITEM_client_flags(present) != ITEM_client_flags(it) or ITEM_get_cas(present) != ITEM_get_cas(it):
        return NULL
    fetch_add(&present.refcount, 1)
    live_add(LIVE_ITEM_REF)
    return present


cdef void header_drop(store *s, item *it, const item_hdr *where) noexcept nogil:
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    cdef item *present
    item_lock(s, hv)
    present = assoc_find(s, ITEM_key(it), it.nkey, hv)
    if present != NULL and _is_at(present, where):
        do_item_unlink(s, present, hv)
    item_unlock(s, hv)


cdef bint header_is_hot(store *s, item *it) noexcept nogil:
    cdef unsigned int flags = <unsigned int>relaxed_load(&it.it_flags)
    cdef unsigned int wanted = ITEM_FETCHED | ITEM_ACTIVE | ITEM_LINKED
    if s.config.s3fifo:
        return flags & ITEM_LINKED and flags & ITEM_FREQUENCY > ITEM_FREQUENCY_ONE
    return flags & wanted == wanted and item_time(it) > store_time(s) - ITEM_UPDATE_INTERVAL


cdef bint header_recache(store *s, item *it, item *value) noexcept nogil:
    cdef uint32_t hv = store_hash(ITEM_key(it), it.nkey)
    cdef bint hot
    if not item_trylock(s, hv):
        return False
    # A header that was deleted or replaced meanwhile is not linked any more.
    hot = header_is_hot(s, it) and not _is_over(s, it)
    if hot:
        value.exptime = it.exptime
        item_set_flags(value, it.it_flags & KEPT_FLAGS)
        _take_place(s, it, value, hv)
    item_unlock(s, hv)
    return hot


cdef inline bint header_is_lost(store *s, item *it) noexcept nogil:
    assert_held(item_mutex_of(s, it))
    return it.it_flags & ITEM_HDR and not s.config.external.exists(s.config.external.arg, it)


# --- room ---

cdef void store_class_room(store *s, unsigned int clsid, class_room *out) noexcept nogil:
    cdef slab_class *p = &s.slabs.classes[clsid]
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    out.perslab = p.perslab if p.size else 0
    out.chunks_free = p.sl_curr
    out.total_pages = p.pages.count
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)


cdef unsigned int store_free_pages(store *s) noexcept nogil:
    cdef bint limit_reached
    return global_page_pool_size(s, &limit_reached)


cdef unsigned int store_pool_least(store *s) noexcept nogil:
    return <unsigned int>relaxed_load(&s.automove.pool_least)


cdef unsigned int store_memory_pressure(store *s) noexcept nogil:
    return <unsigned int>relaxed_load(&s.automove.pressure)

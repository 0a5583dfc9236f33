cdef bint pins_grow(lane_pins *pins, uint32_t most) noexcept nogil:
    """Makes room for another pin. The lane has fewer than `most` pins. False: out of memory."""
    cdef uint32_t size = min(max(pins.size * 2, <uint32_t>PINS_FIRST), most)
    cdef pin_entry *grown = <pin_entry *>realloc(pins.entries, size * sizeof(pin_entry))
    if grown == NULL:
        return False
    pins.entries = grown
    while pins.size < size:
        grown[pins.size].it = NULL
        grown[pins.size].following = pins.size + 1
        pins.size += 1
    return True


cdef inline uint64_t pins_pages(const rdma_device *dev) noexcept nogil:
    """The most pages on which items with pins may lie."""
    return PINS_SPREAD * (dev.limits.view_bytes // SLAB_PAGE_SIZE + 1)


cdef const char *pins_add(rdma_thread *t, lane_pins *pins, item *it, uint32_t *id) noexcept nogil:
    cdef rdma_device *dev = t.dev
    cdef uint64_t nbytes = ITEM_ntotal(it)
    cdef uint32_t most = dev.limits.views // PINS_SHARE
    cdef pin_entry *entry
    assert_owner(t.worker.owner)
    if dev.limits.view_bytes == 0:
        return b"SERVER_ERROR rdma: there are no views here (rdma_view_limit=0)"
    if pins.nbytes + nbytes > dev.limits.view_bytes // PINS_SHARE or pins.used == most:
        counter_add(&t.counters.refused_views, 1)
        return b"SERVER_ERROR rdma: this connection has as many views as it may have (rdma_view_limit)"
    if pins.first_free == pins.size and not pins_grow(pins, most):
        counter_add(&t.counters.refused_views, 1)
        return b"SERVER_ERROR rdma: out of memory for one more view"
    # The pin is counted before the check, so that no two lanes get the last place.
    if fetch_add(&dev.pins, 1) >= dev.limits.views:
        fetch_sub(&dev.pins, 1)
    elif (fetch_add(&dev.pinned_bytes, nbytes) + nbytes > dev.limits.view_bytes
          or not item_pin(t.worker.store, it, pins_pages(dev))):
        fetch_sub(&dev.pinned_bytes, nbytes)
        fetch_sub(&dev.pins, 1)
    else:
        id[0] = pins.first_free
        entry = &pins.entries[pins.first_free]
        pins.first_free = entry.following
        entry.it = it
        pins.used += 1
        pins.nbytes += nbytes
        live_add(LIVE_PIN)
        counter_add(&t.counters.total_views, 1)
        return NULL
    counter_add(&t.counters.refused_views, 1)
    return b"SERVER_ERROR rdma: there are as many views as there may be (rdma_view_limit)"


cdef bint pins_remove(rdma_thread *t, lane_pins *pins, uint32_t id) noexcept nogil:
    cdef item *it
    cdef uint64_t nbytes
    assert_owner(t.worker.owner)
    if id >= pins.size or pins.entries[id].it == NULL:
        return False
    it = pins.entries[id].it
    nbytes = ITEM_ntotal(it)
    pins.entries[id].it = NULL
    pins.entries[id].following = pins.first_free
    pins.first_free = id
    pins.used -= 1
    pins.nbytes -= nbytes
    fetch_sub(&t.dev.pinned_bytes, nbytes)
    fetch_sub(&t.dev.pins, 1)
    item_unpin(t.worker.store, it)
    item_remove(t.worker.store, it)
    live_sub(LIVE_PIN)
    return True


cdef void pins_free(rdma_thread *t, lane_pins *pins) noexcept nogil:
    cdef uint32_t id
    for id in range(pins.size):
        pins_remove(t, pins, id)
    assert_that(pins.used == 0 and pins.nbytes == 0)
    free(pins.entries)
    memset(pins, 0, sizeof(lane_pins))

cdef enum:
    GHOST_MOST = 1 << 26        # buckets
    GHOST_MEASURE = 255         # the main queues are measured every 256 evictions


cdef bint ghost_init(store *s) noexcept nogil:
    cdef uint64_t buckets = 1
    if not s.config.s3fifo:
        return True
    while buckets < GHOST_MOST and buckets * GHOST_ENTRIES * GHOST_SHARE < s.config.maxbytes:
        buckets *= 2
    # Memory of pages that no entry has come to is not taken.
    s.ghost.buckets = <ghost_bucket *>calloc(buckets, sizeof(ghost_bucket))
    s.ghost.mask = <uint32_t>(buckets - 1)
    return s.ghost.buckets != NULL


cdef void ghost_destroy(store *s) noexcept nogil:
    free(s.ghost.buckets)


cdef inline uint32_t _ghost_hash(unsigned int clsid, uint32_t hv) noexcept nogil:
    """A key's hash, and another one in each slab class: a value of another size is evicted for other reasons."""
    return hv ^ clsid * <uint32_t>0x9e3779b9


cdef uint32_t _main_items(store *s) noexcept nogil:
    """Items in the main queues of all classes."""
    cdef uint64_t items = 0
    cdef unsigned int clsid
    for clsid in range(1, s.slabs.power_largest + 1):
        items += relaxed_load(&s.queues[clsid | COLD_LRU].size)
    return <uint32_t>items if items < <uint64_t>1 << 31 else <uint32_t>1 << 31


cdef void ghost_add(store *s, unsigned int clsid, uint32_t hv) noexcept nogil:
    cdef uint32_t hash = _ghost_hash(clsid, hv)
    cdef ghost_bucket *bucket = &s.ghost.buckets[hash & s.ghost.mask]
    cdef uint32_t now = <uint32_t>fetch_add(&s.ghost.clock, 1) + 1
    cdef uint64_t entry
    cdef uint32_t age
    cdef uint32_t oldest = 0
    cdef int i
    cdef int victim = 0
    if now & GHOST_MEASURE == 0:
        relaxed_store(&s.ghost.length, _main_items(s))
    for i in range(GHOST_ENTRIES):
        entry = relaxed_load(&bucket.entries[i])
        if entry == 0 or <uint32_t>(entry >> 32) == hash:
            victim = i
            break
        age = now - <uint32_t>entry
        if age > oldest:
            oldest = age
            victim = i
    relaxed_store(&bucket.entries[victim], <uint64_t>hash << 32 | now)


cdef bint ghost_take(store *s, unsigned int clsid, uint32_t hv) noexcept nogil:
    cdef uint32_t hash = _ghost_hash(clsid, hv)
    cdef ghost_bucket *bucket = &s.ghost.buckets[hash & s.ghost.mask]
    cdef uint64_t entry
    cdef int i
    for i in range(GHOST_ENTRIES):
        entry = relaxed_load(&bucket.entries[i])
        if entry != 0 and <uint32_t>(entry >> 32) == hash:
            relaxed_store(&bucket.entries[i], 0)
            if <uint32_t>relaxed_load(&s.ghost.clock) - <uint32_t>entry > <uint32_t>relaxed_load(&s.ghost.length):
                return False
            fetch_add(&s.ghost.hits, 1)
            return True
    return False


cdef uint64_t ghost_bytes(store *s) noexcept nogil:
    return (<uint64_t>s.ghost.mask + 1) * sizeof(ghost_bucket) if s.ghost.buckets != NULL else 0

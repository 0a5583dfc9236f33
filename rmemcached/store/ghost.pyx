cdef enum:
    GHOST_MOST = 1 << 26        # buckets
    GHOST_CLOCK = 0x7fffffff    # the clock in an entry has 31 bits
    GHOST_STEPS = 256           # measurements during as many evictions as there are items
    GHOST_STEP_LEAST = 16       # evictions between two measurements, at least
    GHOST_ENOUGH = 10           # evictions from each kind of queue, before a measurement means anything
    GHOST_SMALL_FIRST = GHOST_WHOLE // 10
    GHOST_SMALL_LEAST = GHOST_WHOLE // 200
    GHOST_SMALL_MOST = GHOST_WHOLE * 7 // 10
    GHOST_SMALL_FEW = 2         # items allowed in any small queue, if its class has twice as many
    GHOST_ALL_SEEN = 256        # in a class of up to so many items, one eviction may look at all
    GHOST_SMALL_STEP = 100      # a measurement changes the share by 1/GHOST_SMALL_STEP

# The first three numbers are durations: evictions, divided by the number of items. docs/notes/eviction.md has the
# measurements behind these numbers.
cdef double GHOST_LENGTH = 0.4  # how long a key is remembered
cdef double GHOST_EARLY = 0.05  # how long the return of a key is early
cdef double GHOST_LATELY = 0.3  # after so long a count weighs 0.37 times as much
cdef double GHOST_WEIGHT = 0.9  # of the return of a key evicted from a small queue


cdef bint ghost_init(store *s) noexcept nogil:
    cdef uint64_t buckets = 1
    if not s.config.s3fifo:
        return True
    while buckets < GHOST_MOST and buckets * GHOST_ENTRIES * GHOST_SHARE < s.config.maxbytes:
        buckets *= 2
    # The system takes no memory for pages without entries.
    s.ghost.buckets = <ghost_bucket *>calloc(buckets, sizeof(ghost_bucket))
    s.ghost.mask = <uint32_t>(buckets - 1)
    s.ghost.small = GHOST_SMALL_FIRST
    return s.ghost.buckets != NULL


cdef void ghost_destroy(store *s) noexcept nogil:
    free(s.ghost.buckets)


cdef inline uint32_t _ghost_hash(unsigned int clsid, uint32_t hv) noexcept nogil:
    """A key's hash, different in each slab class: values of different sizes are evicted for different reasons."""
    return hv ^ clsid * <uint32_t>0x9e3779b9


cdef inline uint32_t _ghost_age(uint32_t now, uint64_t entry) noexcept nogil:
    return (now - (<uint32_t>entry >> 1)) & <uint32_t>GHOST_CLOCK


cdef uint64_t _queued_items(store *s) noexcept nogil:
    """Items in the small and main queues of all classes."""
    cdef uint64_t items = 0
    cdef unsigned int clsid
    for clsid in range(1, s.slabs.power_largest + 1):
        items += relaxed_load(&s.queues[clsid | HOT_LRU].size) + relaxed_load(&s.queues[clsid | COLD_LRU].size)
    return min(items, <uint64_t>GHOST_CLOCK)


cdef void _flow_measure(ghost_flow *flow, double kept) noexcept nogil:
    # Adds the counts since the last measurement to the decaying sums. kept: the part of the sums that stays.
    cdef uint64_t evicted = relaxed_load(&flow.evicted)
    cdef uint64_t returned = relaxed_load(&flow.returned)
    flow.evicted_lately = (flow.evicted_lately + (evicted - flow.evicted_before)) * kept
    flow.returned_lately = (flow.returned_lately + (returned - flow.returned_before)) * kept
    flow.evicted_before = evicted
    flow.returned_before = returned


cdef void _ghost_measure(store *s, uint32_t now) noexcept nogil:
    """Takes note of how many items there are, and gives the small queues more room, or less."""
    cdef ghost_flow *small = &s.ghost.flows[GHOST_SMALL]
    cdef ghost_flow *main = &s.ghost.flows[GHOST_MAIN]
    cdef uint64_t items
    cdef uint32_t step, share
    cdef double kept
    if exchange(&s.ghost.measuring, 1):
        return
    items = _queued_items(s)
    step = max(<uint32_t>(items // GHOST_STEPS), <uint32_t>GHOST_STEP_LEAST)
    relaxed_store(&s.ghost.length, <uint32_t>(items * GHOST_LENGTH))
    relaxed_store(&s.ghost.early, <uint32_t>(items * GHOST_EARLY))
    kept = 1 / (1 + step / (GHOST_LATELY * items + 1))
    _flow_measure(small, kept)
    _flow_measure(main, kept)
    share = <uint32_t>relaxed_load(&s.ghost.small)
    if small.evicted_lately >= GHOST_ENOUGH and main.evicted_lately >= GHOST_ENOUGH:
        if small.returned_lately * GHOST_WEIGHT * main.evicted_lately > main.returned_lately * small.evicted_lately:
            share = min(share + share // GHOST_SMALL_STEP, <uint32_t>GHOST_SMALL_MOST)
        else:
            share = max(share - share // GHOST_SMALL_STEP, <uint32_t>GHOST_SMALL_LEAST)
        relaxed_store(&s.ghost.small, share)
    relaxed_store(&s.ghost.next, now + step)
    store_release(&s.ghost.measuring, 0)


cdef void ghost_add(store *s, unsigned int clsid, uint32_t hv, int source) noexcept nogil:
    cdef uint32_t hash = _ghost_hash(clsid, hv)
    cdef ghost_bucket *bucket = &s.ghost.buckets[hash & s.ghost.mask]
    cdef uint32_t now = <uint32_t>fetch_add(&s.ghost.clock, 1) + 1
    cdef uint64_t entry
    cdef uint32_t age
    cdef uint32_t oldest = 0
    cdef int i
    cdef int victim = 0
    fetch_add(&s.ghost.flows[source].evicted, 1)
    if <int32_t>(now - <uint32_t>relaxed_load(&s.ghost.next)) >= 0:
        _ghost_measure(s, now)
    for i in range(GHOST_ENTRIES):
        entry = relaxed_load(&bucket.entries[i])
        if entry == 0 or <uint32_t>(entry >> 32) == hash:
            victim = i
            break
        age = _ghost_age(now, entry)
        if age > oldest:
            oldest = age
            victim = i
    relaxed_store(&bucket.entries[victim], <uint64_t>hash << 32 | <uint32_t>(now << 1) | source)


cdef bint ghost_take(store *s, unsigned int clsid, uint32_t hv) noexcept nogil:
    cdef uint32_t hash = _ghost_hash(clsid, hv)
    cdef ghost_bucket *bucket = &s.ghost.buckets[hash & s.ghost.mask]
    cdef uint64_t entry
    cdef uint32_t age
    cdef int i
    for i in range(GHOST_ENTRIES):
        entry = relaxed_load(&bucket.entries[i])
        if entry != 0 and <uint32_t>(entry >> 32) == hash:
            relaxed_store(&bucket.entries[i], 0)
            age = _ghost_age(<uint32_t>relaxed_load(&s.ghost.clock), entry)
            if age <= <uint32_t>relaxed_load(&s.ghost.early):
                fetch_add(&s.ghost.flows[entry & 1].returned, 1)
            if age > <uint32_t>relaxed_load(&s.ghost.length):
                return False
            fetch_add(&s.ghost.hits, 1)
            return True
    return False


cdef inline bint ghost_small_is_full(store *s, uint64_t small, uint64_t items) noexcept nogil:
    # With few large items a share can be less than an item. Then each new item would evict the item before it.
    cdef uint64_t few = min(items // 2, <uint64_t>GHOST_SMALL_FEW) * GHOST_WHOLE
    return small * GHOST_WHOLE > max(items * <uint32_t>relaxed_load(&s.ghost.small), few)


cdef inline bint ghost_class_is_small(store *s, unsigned int clsid) noexcept nogil:
    cdef uint64_t items = relaxed_load(&s.queues[clsid | HOT_LRU].size)
    return items + relaxed_load(&s.queues[clsid | COLD_LRU].size) <= GHOST_ALL_SEEN


cdef void ghost_stats(store *s, store_stats *out) noexcept nogil:
    if s.ghost.buckets != NULL:
        out.ghost_hits = relaxed_load(&s.ghost.hits)
        out.ghost_bytes = (<uint64_t>s.ghost.mask + 1) * sizeof(ghost_bucket)
        out.small_lru_pct = 100.0 * <uint32_t>relaxed_load(&s.ghost.small) / GHOST_WHOLE

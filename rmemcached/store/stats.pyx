cdef const char *_status_text(unsigned int status) noexcept nogil:
    if status == MOVE_NONE:
        return b"none"
    if status == MOVE_FROM_LRU:
        return b"from_lru"
    if status == MOVE_BUSY_ACTIVE:
        return b"busy_active"
    if status == MOVE_BUSY_FLOATING:
        return b"busy_floating"
    return b"locked"


cdef void _add_queue_totals(lru_queue *q, store_stats *out) noexcept nogil:
    """Adds a queue's counters to the store's."""
    assert_held(&q.lock)
    out.total_items += q.stats.total_items
    out.evictions += q.stats.evicted
    out.reclaimed += q.stats.reclaimed
    out.expired_unfetched += q.stats.expired_unfetched
    out.evicted_unfetched += q.stats.evicted_unfetched
    out.evicted_active += q.stats.evicted_active
    out.lrutail_reflocked += q.stats.lrutail_reflocked
    out.outofmemory += q.stats.outofmemory
    out.direct_reclaims += q.stats.direct_reclaims
    out.crawler_reclaimed += q.stats.crawler_reclaimed
    out.crawler_items_checked += q.stats.crawler_items_checked
    out.moves_to_cold += q.stats.moves_to_cold
    out.moves_to_warm += q.stats.moves_to_warm
    out.moves_within_lru += q.stats.moves_within_lru


cdef void _mover_stats(store *s, store_stats *out) noexcept nogil:
    out.slab_reassign_running = relaxed_load(&s.reassign.running) != 0
    out.slabs_moved = relaxed_load(&s.mover.slabs_moved)
    out.slab_reassign_rescues = relaxed_load(&s.mover.rescues)
    out.slab_reassign_chunk_rescues = relaxed_load(&s.mover.chunk_rescues)
    out.slab_reassign_inline_reclaim = relaxed_load(&s.mover.inline_reclaim)
    out.slab_reassign_busy_items = relaxed_load(&s.mover.busy_items)
    out.slab_reassign_busy_deletes = relaxed_load(&s.mover.busy_deletes)
    out.slab_reassign_busy_nomem = relaxed_load(&s.mover.busy_nomem)
    out.slab_reassign_last_busy_status = _status_text(<unsigned int>relaxed_load(&s.mover.last_busy_status))


cdef void _assoc_stats(store *s, store_stats *out) noexcept nogil:
    out.malloc_fails = relaxed_load(&s.assoc.malloc_fails)
    out.hash_power_level = <unsigned int>relaxed_load(&s.assoc.hashpower)
    out.hash_is_expanding = relaxed_load(&s.assoc.expanding) != 0
    out.hash_bytes = (<uint64_t>1 << out.hash_power_level) * sizeof(void *)
    if out.hash_is_expanding:
        out.hash_bytes += out.hash_bytes // 2


cdef void store_get_stats(store *s, store_stats *out) noexcept nogil:
    cdef int i
    memset(out, 0, sizeof(store_stats))
    count_items(s, &out.curr_items, &out.curr_bytes)
    for i in range(NUMBER_OF_QUEUES):
        lock_ranked(&s.queues[i].lock, LRU_LOCK)
        _add_queue_totals(&s.queues[i], out)
        unlock_ranked(&s.queues[i].lock, LRU_LOCK)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    out.total_malloced = s.slabs.malloced
    out.slab_global_page_pool = s.slabs.classes[SLAB_GLOBAL_PAGE_POOL].pages.count
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    lock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    out.lru_crawler_starts = s.crawler.starts
    out.lru_crawler_running = s.crawler.running
    unlock_ranked(&s.crawler.lock, CRAWLER_LOCK)
    out.lru_maintainer_juggles = relaxed_load(&s.maintainer.juggles)
    out.lru_bumps_dropped = lru_bumps_dropped(s)
    ghost_stats(s, out)
    _mover_stats(s, out)
    _assoc_stats(s, out)
    out.get_expired = relaxed_load(&s.items.get_expired)
    out.get_flushed = relaxed_load(&s.items.get_flushed)
    out.oldest_live = <rel_time_t>relaxed_load(&s.head.oldest_live)
    out.restored_items = s.recovered.items
    out.restored_dropped = s.recovered.dropped
    out.restored_expired = s.recovered.expired
    out.restored_us = <uint64_t>s.recovered.ns // 1000
    out.foreign_pages = relaxed_load(&s.foreign.pages)
    out.foreign_dropped = relaxed_load(&s.adopt.dropped)


cdef void store_reset_stats(store *s) noexcept nogil:
    cdef int i
    for i in range(NUMBER_OF_QUEUES):
        lock_ranked(&s.queues[i].lock, LRU_LOCK)
        memset(&s.queues[i].stats, 0, sizeof(lru_counters))
        unlock_ranked(&s.queues[i].lock, LRU_LOCK)
    relaxed_store(&s.ghost.hits, 0)
    relaxed_store(&s.assoc.malloc_fails, 0)
    relaxed_store(&s.items.get_expired, 0)
    relaxed_store(&s.items.get_flushed, 0)
    relaxed_store(&s.mover.slabs_moved, 0)
    relaxed_store(&s.mover.rescues, 0)
    relaxed_store(&s.mover.chunk_rescues, 0)
    relaxed_store(&s.mover.inline_reclaim, 0)
    relaxed_store(&s.mover.busy_items, 0)
    relaxed_store(&s.mover.busy_deletes, 0)
    relaxed_store(&s.mover.busy_nomem, 0)
    relaxed_store(&s.mover.last_busy_status, MOVE_NONE)


cdef unsigned int store_largest_class(store *s) noexcept nogil:
    return s.slabs.power_largest


cdef unsigned int store_class_of(store *s, size_t ntotal) noexcept nogil:
    return slabs_clsid(s, ntotal)


cdef void _add_queue_stats(store *s, lru_queue *q, unsigned int lru, class_stats *out) noexcept nogil:
    """Adds a queue's figures to its class's."""
    assert_held(&q.lock)
    cdef rel_time_t age = 0
    if q.tail != NULL:
        age = store_time(s) - item_time(q.tail)
    if lru == HOT_LRU:
        out.number_hot = q.size
        out.age_hot = age
        if s.config.s3fifo:
            out.age = age
            out.evicted_time = q.stats.evicted_time
    elif lru == WARM_LRU:
        out.number_warm = q.size
        out.age_warm = age
    elif lru == COLD_LRU:
        out.number_cold = q.size
        # The class has the small queue's figures as long as the main queue has none.
        if q.size != 0 or not s.config.s3fifo:
            out.age = age
        if q.stats.evicted != 0 or not s.config.s3fifo:
            out.evicted_time = q.stats.evicted_time
    else:
        out.number_temp = q.size
    out.number += q.size
    out.mem_requested += q.bytes
    out.evicted += q.stats.evicted
    out.evicted_nonzero += q.stats.evicted_nonzero
    out.outofmemory += q.stats.outofmemory
    out.reclaimed += q.stats.reclaimed
    out.expired_unfetched += q.stats.expired_unfetched
    out.evicted_unfetched += q.stats.evicted_unfetched
    out.evicted_active += q.stats.evicted_active
    out.lrutail_reflocked += q.stats.lrutail_reflocked
    out.tailrepairs += q.stats.tailrepairs
    out.crawler_reclaimed += q.stats.crawler_reclaimed
    out.crawler_items_checked += q.stats.crawler_items_checked
    out.moves_to_cold += q.stats.moves_to_cold
    out.moves_to_warm += q.stats.moves_to_warm
    out.moves_within_lru += q.stats.moves_within_lru
    out.direct_reclaims += q.stats.direct_reclaims


cdef bint store_get_class_stats(store *s, unsigned int clsid, class_stats *out) noexcept nogil:
    cdef slab_class *p
    cdef lru_queue *q
    cdef unsigned int queue, lru
    memset(out, 0, sizeof(class_stats))
    if clsid < 1 or clsid > s.slabs.power_largest:
        return False
    p = &s.slabs.classes[clsid]
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    out.chunk_size = p.size
    out.chunks_per_page = p.perslab
    out.total_pages = p.pages.count
    out.total_chunks = <uint64_t>p.pages.count * p.perslab
    out.free_chunks = p.sl_curr
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    out.used_chunks = out.total_chunks - out.free_chunks
    for queue in range(4):
        lru = queue << SLAB_CLASS_BITS
        q = &s.queues[clsid | lru]
        lock_ranked(&q.lock, LRU_LOCK)
        _add_queue_stats(s, q, lru, out)
        unlock_ranked(&q.lock, LRU_LOCK)
    return True

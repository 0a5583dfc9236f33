cdef enum:
    CACHEDUMP_MAX = 2 * 1024 * 1024   # bytes of the answer
    CACHEDUMP_LINE = 512


cdef char *store_cachedump(store *s, unsigned int clsid, uint32_t limit, size_t *length) noexcept nogil:
    cdef lru_queue *q = &s.queues[clsid | COLD_LRU]
    cdef char *text = <char *>malloc(CACHEDUMP_MAX)
    cdef size_t used = 0
    cdef uint32_t shown = 0
    cdef rel_time_t exptime
    cdef item *it
    if text == NULL:
        return NULL
    lock_ranked(&q.lock, LRU_LOCK)
    it = q.head
    while it != NULL and (limit == 0 or shown < limit) and used + CACHEDUMP_LINE + 5 <= CACHEDUMP_MAX:
        if not ITEM_has(it, ITEM_KEY_BINARY):
            exptime = item_exptime(it)
            used += <size_t>snprintf(text + used, CACHEDUMP_LINE, b"ITEM %.*s [%d b; %llu s]\r\n", <int>it.nkey,
                                     ITEM_key(it), it.nbytes - 2,
                                     <unsigned long long>(exptime + s.clock.process_started if exptime != 0 else 0))
            shown += 1
        it = it.next
    unlock_ranked(&q.lock, LRU_LOCK)
    memcpy(text + used, b"END\r\n", 5)
    length[0] = used + 5
    return text

cdef enum:
    CACHEDUMP_MAX = 2 * 1024 * 1024   # bytes of the answer
    CACHEDUMP_LINE = 512              # bytes of a line, at most


cdef struct dump_text:
    char *text
    size_t used
    uint32_t shown
    uint32_t limit              # items; 0: as many as have room


cdef void _dump_queue(store *s, lru_queue *q, dump_text *to) noexcept nogil:
    cdef rel_time_t exptime
    cdef item *it
    lock_ranked(&q.lock, LRU_LOCK)
    it = q.head
    while it != NULL and (to.limit == 0 or to.shown < to.limit) and to.used + CACHEDUMP_LINE + 5 <= CACHEDUMP_MAX:
        if not ITEM_has(it, ITEM_KEY_BINARY):
            exptime = item_exptime(it)
            to.used += <size_t>snprintf(to.text + to.used, CACHEDUMP_LINE, b"ITEM %.*s [%d b; %llu s]\r\n",
                                        <int>it.nkey, ITEM_key(it), it.nbytes - 2,
                                        <unsigned long long>(exptime + s.clock.process_started if exptime != 0 else 0))
            to.shown += 1
        it = it.next
    unlock_ranked(&q.lock, LRU_LOCK)


cdef char *store_cachedump(store *s, unsigned int clsid, uint32_t limit, size_t *length) noexcept nogil:
    cdef dump_text to
    memset(&to, 0, sizeof(to))
    to.limit = limit
    to.text = <char *>malloc(CACHEDUMP_MAX)
    if to.text == NULL:
        return NULL
    if s.config.s3fifo:
        # The small queue comes first: most items are never fetched, and so never reach the main queue.
        _dump_queue(s, &s.queues[clsid | HOT_LRU], &to)
    _dump_queue(s, &s.queues[clsid | COLD_LRU], &to)
    memcpy(to.text + to.used, b"END\r\n", 5)
    length[0] = to.used + 5
    return to.text

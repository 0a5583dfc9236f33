# What the store tells watchers besides lookups and stores, which are logged where they happen.


cdef inline void log_evicted(store *s, item *it) noexcept nogil:
    """An item is about to be evicted. The caller holds its item lock, or the LRU lock of its queue."""
    cdef rel_time_t now
    if log_wants(s.config.log, LOG_EVICTIONS):
        now = store_time(s)
        log_eviction(s.config.log, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_FETCHED),
                     <int64_t>it.exptime - now if it.exptime != 0 else -1, now - it.time, ITEM_clsid(it), it.nbytes)


cdef void log_crawl(store *s, unsigned int id, const crawler_stats *stats, uint64_t low_watermark, uint64_t available,
                    rel_time_t next_run) noexcept nogil:
    """An automatic crawl of a queue has been judged; the next begins in so many seconds. The crawler lock is held."""
    cdef char text[LOG_TEXT_MAX]
    cdef const char *lru = b"hot"
    if not log_wants(s.config.log, LOG_SYSEVENTS):
        return
    if id & 192 == WARM_LRU:
        lru = b"warm"
    elif id & 192 == COLD_LRU:
        lru = b"cold"
    elif id & 192 == TEMP_LRU:
        lru = b"temp"
    snprintf(text, sizeof(text),
             "type=lru_crawler crawler=%u lru=%s low_mark=%llu next_reclaims=%llu since_run=%u next_run=%u elapsed=%u "
             "examined=%llu reclaimed=%llu", id & 63, lru, <unsigned long long>low_watermark,
             <unsigned long long>available, store_time(s) - stats.end_time, next_run,
             stats.end_time - stats.start_time, <unsigned long long>stats.seen, <unsigned long long>stats.reclaimed)
    log_text(s.config.log, LOG_SYSEVENTS, text)


cdef void log_slab_move(store *s, int src, int dst, bint started) noexcept nogil:
    """Automove has decided to move a page."""
    cdef char text[LOG_TEXT_MAX]
    if log_wants(s.config.log, LOG_SYSEVENTS):
        snprintf(text, sizeof(text), "type=slab_move src=%d dst=%d state=%s", src, dst,
                 <const char *>(b"ok" if started else b"fail"))
        log_text(s.config.log, LOG_SYSEVENTS, text)

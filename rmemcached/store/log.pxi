# What the store tells watchers besides lookups and stores, which are logged where they happen.


cdef inline void log_evicted(store *s, item *it) noexcept nogil:
    """An item is about to be evicted. The caller holds its item lock, or the LRU lock of its queue."""
    cdef rel_time_t now
    if log_wants(s.config.log, LOG_EVICTIONS):
        now = store_time(s)
        log_eviction(s.config.log, ITEM_key(it), it.nkey, ITEM_has(it, ITEM_FETCHED),
                     <int64_t>it.exptime - now if it.exptime != 0 else -1, now - it.time, ITEM_clsid(it), it.nbytes)

cdef void do_direct_tell(store *s) noexcept nogil:
    assert_held(&s.direct.lock)
    cdef direct_header *h = s.direct.mapped
    cdef uint32_t algorithm = DIRECT_SEGMENTED if relaxed_load(&s.config.lru_segmented) else DIRECT_FLAT
    if h != NULL:
        relaxed_store(&h.algorithm, DIRECT_S3FIFO if s.config.s3fifo else algorithm)
        relaxed_store(&h.oldest_live, relaxed_load(&s.head.oldest_live))
        relaxed_store(&h.used, min(relaxed_load(&s.slabs.arena_used), s.direct.covered))
        relaxed_store(&h.current_time, relaxed_load(&s.clock.current_time))
        # A reader of the new beat also reads the new time.
        store_release(&h.beat, coarse_ms())


cdef void direct_tell(store *s) noexcept nogil:
    lock_ranked(&s.direct.lock, DIRECT_LOCK)
    do_direct_tell(s)
    unlock_ranked(&s.direct.lock, DIRECT_LOCK)


cdef void direct_arena_grows(store *s) noexcept nogil:
    assert_held(&s.slabs.lock)
    # If another thread has the lock, the next store_tick writes the field.
    if relaxed_load(&s.direct.bucket_count) and trylock_ranked(&s.direct.lock, DIRECT_LOCK):
        if s.direct.mapped != NULL:
            relaxed_store(&s.direct.mapped.used, min(s.slabs.arena_used, s.direct.covered))
        unlock_ranked(&s.direct.lock, DIRECT_LOCK)

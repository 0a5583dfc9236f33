cdef size_t _reserve_end(store *s) noexcept nogil:
    """Where the space of the arena should end: within the memory limit, if more is not in use already."""
    assert_held(&s.slabs.lock)
    cdef size_t most = min(<size_t>s.config.maxbytes, s.slabs.arena_length) // SLAB_PAGE_SIZE * SLAB_PAGE_SIZE
    return min(s.slabs.arena_used + RESERVE_AHEAD, most)


cdef bint _reserve_next(store *s) noexcept nogil:
    """Takes space for the next page. False: there is enough, or no more. Lets the lock go meanwhile: a worker that
    needs the page then takes the same space, which is harmless."""
    assert_held(&s.slabs.lock)
    cdef size_t start = s.file.reserved
    cdef size_t end = start + SLAB_PAGE_SIZE
    cdef bint done
    if end > _reserve_end(s) or not arena_lengthen_file(s, end):
        return False
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    done = memory_file_reserve(s, start, end)
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    if done:
        s.file.reserved = max(s.file.reserved, end)
    return done


cdef void *_reserve_thread(void *arg) noexcept nogil:
    cdef store *s = <store *>arg
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    while not s.reserver.stop:
        if s.reserver.woken:
            s.reserver.woken = False
            while not s.reserver.stop and _reserve_next(s):
                pass
        else:
            pthread_cond_wait(&s.reserver.cond, &s.slabs.lock)
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return NULL


cdef void reserve_init(store *s) noexcept nogil:
    cond_init(&s.reserver.cond)


cdef void reserve_destroy(store *s) noexcept nogil:
    pthread_cond_destroy(&s.reserver.cond)


cdef bint reserve_start(store *s) noexcept nogil:
    if s.file.fd < 0:
        return True
    s.reserver.woken = True
    s.reserver.joinable = start_quiet_thread(&s.reserver.thread, b"mc-reserve", _reserve_thread, s) == 0
    return s.reserver.joinable


cdef inline void reserve_arena_grows(store *s) noexcept nogil:
    assert_held(&s.slabs.lock)
    if s.reserver.joinable and s.file.reserved < _reserve_end(s):
        do_slabs_thread_wake(s, &s.reserver)

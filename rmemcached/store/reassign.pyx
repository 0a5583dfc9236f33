cdef void reassign_init(store *s) noexcept nogil:
    pthread_mutex_init(&s.reassign.lock, NULL)
    cond_init(&s.reassign.cond)


cdef void reassign_destroy(store *s) noexcept nogil:
    pthread_cond_destroy(&s.reassign.cond)
    pthread_mutex_destroy(&s.reassign.lock)


cdef int _pick_any(store *s, int dst) noexcept nogil:
    """Chooses a class with a page to spare, a different class each time; -1: none."""
    assert_held(&s.slabs.lock)
    cdef reassign *r = &s.reassign
    cdef int _try
    for _try in range(MAX_NUMBER_OF_SLAB_CLASSES):
        r.any_class += 1
        if r.any_class > s.slabs.power_largest:
            r.any_class = 1
        if <int>r.any_class != dst and s.slabs.classes[r.any_class].pages.count > 1:
            return <int>r.any_class
    return -1


cdef reassign_result check_reassign(store *s, int *src, int dst) noexcept nogil:
    cdef reassign_result result = REASSIGN_OK
    cdef int largest = <int>s.slabs.power_largest
    if src[0] == dst:
        return REASSIGN_SRC_DST_SAME
    lock_ranked(&s.slabs.lock, SLABS_LOCK)
    if src[0] == -1:
        src[0] = _pick_any(s, dst)
    if not 0 <= src[0] <= largest or not 0 <= dst <= largest:
        result = REASSIGN_BADCLASS
    elif s.slabs.classes[src[0]].pages.count < 2:
        result = REASSIGN_NOSPARE
    unlock_ranked(&s.slabs.lock, SLABS_LOCK)
    return result


cdef reassign_result slabs_reassign(store *s, int src, int dst, bint allow_evictions) noexcept nogil:
    cdef reassign *r = &s.reassign
    cdef move_request *request
    cdef reassign_result result
    lock_ranked(&r.lock, REASSIGN_LOCK)
    if r.running or r.requests == MOVE_REQUESTS or not r.open:
        result = REASSIGN_RUNNING
    else:
        result = check_reassign(s, &src, dst)
        if result == REASSIGN_OK:
            request = &r.request[r.requests]
            request.src = src
            request.dst = dst
            request.allow_evictions = allow_evictions
            r.requests += 1
            pthread_cond_broadcast(&r.cond)
    unlock_ranked(&r.lock, REASSIGN_LOCK)
    return result


cdef void slabs_starved(store *s, unsigned int clsid) noexcept nogil:
    cdef bint waits
    if not s.config.slab_reassign or not s.config.evict_to_free or relaxed_load(&s.config.slab_automove) == 0:
        return
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    waits = s.reassign.requests != 0
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    if not waits:
        slabs_reassign(s, -1, <int>clsid, True)


cdef move_request do_reassign_take(store *s) noexcept nogil:
    assert_held(&s.reassign.lock)
    assert_that(s.reassign.requests != 0)
    cdef reassign *r = &s.reassign
    cdef move_request request = r.request[0]
    cdef uint32_t i
    r.requests -= 1
    for i in range(r.requests):
        r.request[i] = r.request[i + 1]
    return request

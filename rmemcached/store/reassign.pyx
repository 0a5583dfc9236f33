# Requests for slab pages.


cdef int _pick_any(store *s, int dst) noexcept nogil:
    """A class with a page to spare, a different one each time; -1: none."""
    cdef int tries
    for tries in range(MAX_NUMBER_OF_SLAB_CLASSES):
        s.mover.any_class += 1
        if s.mover.any_class > s.power_largest:
            s.mover.any_class = 1
        if <int>s.mover.any_class != dst and s.classes[s.mover.any_class].pages.count > 1:
            return <int>s.mover.any_class
    return -1


cdef reassign_result _check_reassign(store *s, int *src, int dst) noexcept nogil:
    cdef reassign_result result = REASSIGN_OK
    if src[0] == dst:
        return REASSIGN_SRC_DST_SAME
    pthread_mutex_lock(&s.slabs_lock)
    if src[0] == -1:
        src[0] = _pick_any(s, dst)
    if not 0 <= src[0] <= <int>s.power_largest or not 0 <= dst <= <int>s.power_largest:
        result = REASSIGN_BADCLASS
    elif s.classes[src[0]].pages.count < 2:
        result = REASSIGN_NOSPARE
    pthread_mutex_unlock(&s.slabs_lock)
    return result


cdef reassign_result slabs_reassign(store *s, int src, int dst, bint allow_evictions) noexcept nogil:
    """Asks for a page of class src to be moved to class dst; 0 is the global pool, src -1 any class. Returns at once:
    store_stats tell when the page has moved. allow_evictions: items may be evicted for it when memory is full.
    """
    cdef page_mover *m = &s.mover
    cdef reassign_result result
    pthread_mutex_lock(&m.lock)
    if m.running or m.requests == MOVE_REQUESTS or not m.joinable:
        result = REASSIGN_RUNNING
    else:
        result = _check_reassign(s, &src, dst)
        if result == REASSIGN_OK:
            m.request[m.requests].src = src
            m.request[m.requests].dst = dst
            m.request[m.requests].allow_evictions = allow_evictions
            m.requests += 1
            pthread_cond_broadcast(&m.cond)
    pthread_mutex_unlock(&m.lock)
    return result

cdef double MIN_PAGES_FOR_RECLAIM = 2.5         # free memory of a class, in pages, before a page goes to the pool
cdef uint32_t MIN_PAGES_FOR_SOURCE = 2          # a class with more pages may lose a page


cdef void _automove_sample(store *s, class_sample *samples) noexcept nogil:
    assert_held(&s.reassign.lock)
    cdef class_stats stats
    cdef unsigned int clsid
    for clsid in range(1, s.slabs.power_largest + 1):
        store_get_class_stats(s, clsid, &stats)
        samples[clsid].evicted = stats.evicted
        samples[clsid].outofmemory = stats.outofmemory
        samples[clsid].age = stats.age
        samples[clsid].total_pages = stats.total_pages
        samples[clsid].free_chunks = stats.free_chunks
        samples[clsid].chunks_per_page = stats.chunks_per_page


cdef inline uint64_t _since(uint64_t before, uint64_t after) noexcept nogil:
    """How much a counter has grown between two samples; a reset may have set the counter to 0."""
    return after - before if after >= before else after


cdef bint do_automove_init(store *s) noexcept nogil:
    assert_held(&s.reassign.lock)
    cdef slab_automove *a = &s.automove
    cdef uint32_t size = s.config.slab_automove_window
    cdef window_data *window = <window_data *>calloc(<size_t>size * MAX_NUMBER_OF_SLAB_CLASSES, sizeof(window_data))
    if window == NULL:
        return False
    free(a.window)
    a.window = window
    a.window_size = size
    a.window_cur = 0
    a.max_age_ratio = s.config.slab_automove_ratio
    _automove_sample(s, a.before)
    return True


cdef void automove_destroy(store *s) noexcept nogil:
    free(s.automove.window)


cdef window_data _window_sum(const slab_automove *a, unsigned int clsid) noexcept nogil:
    cdef window_data total
    cdef const window_data *w = &a.window[clsid * a.window_size]
    cdef uint32_t i
    memset(&total, 0, sizeof(total))
    for i in range(a.window_size):
        total.age += w[i].age
        total.dirty += w[i].dirty
        total.evicted_seen += w[i].evicted_seen
        total.evicted_ratio += w[i].evicted_ratio
        total.excess_free += w[i].excess_free
    return total


cdef bint _automove_decide(store *s, int *src, int *dst) noexcept nogil:
    # Chooses the classes of a move as automove.pxd describes. False: no move.
    assert_held(&s.reassign.lock)
    cdef slab_automove *a = &s.automove
    cdef class_sample after[MAX_NUMBER_OF_SLAB_CLASSES]
    cdef window_data *w
    cdef window_data total
    cdef uint64_t evicted, evicted_total = 0
    cdef uint64_t age, oldest_age = 0
    cdef uint64_t youngest_age = <uint64_t>-1
    cdef int oldest = -1
    cdef int youngest = -1
    cdef bint youngest_evicts = False
    cdef bint limit_reached
    cdef unsigned int clsid
    global_page_pool_size(s, &limit_reached)
    _automove_sample(s, after)
    for clsid in range(1, s.slabs.power_largest + 1):
        evicted_total += _since(a.before[clsid].evicted, after[clsid].evicted)
    a.window_cur += 1
    src[0] = dst[0] = -1
    for clsid in range(1, s.slabs.power_largest + 1):
        w = &a.window[clsid * a.window_size + a.window_cur % a.window_size]
        memset(w, 0, sizeof(window_data))
        evicted = _since(a.before[clsid].evicted, after[clsid].evicted)
        if evicted > 0:
            w.evicted_seen = 1
            w.evicted_ratio = <double>evicted / <double>evicted_total
        w.dirty = evicted > 0 or after[clsid].outofmemory != a.before[clsid].outofmemory \
            or after[clsid].total_pages > a.before[clsid].total_pages
        w.age = after[clsid].age
        total = _window_sum(a, clsid)
        age = total.age // a.window_size
        if limit_reached and total.dirty == 0 \
                and after[clsid].free_chunks > after[clsid].chunks_per_page * MIN_PAGES_FOR_RECLAIM:
            src[0] = <int>clsid
            dst[0] = SLAB_GLOBAL_PAGE_POOL
            break
        if age > oldest_age and after[clsid].total_pages > MIN_PAGES_FOR_SOURCE:
            oldest = <int>clsid
            oldest_age = age
        if age < youngest_age and (total.evicted_seen > a.window_size // 2
                                   or total.evicted_ratio / a.window_size > 0.25):
            youngest = <int>clsid
            youngest_age = age
            youngest_evicts = w.evicted_seen != 0
    memcpy(a.before, after, sizeof(after))
    if src[0] == -1 and youngest != -1 and oldest != -1 and a.window_cur > a.window_size and youngest_evicts \
            and <double>youngest_age < <double>oldest_age * a.max_age_ratio:
        src[0] = oldest
        dst[0] = youngest
    return src[0] != -1


cdef void _note_run(store *s, const class_sample *before, const class_sample *after, bint stays,
                    window_data *w) noexcept nogil:
    """Notes a run's figures of a class, with external storage. stays: the class's items stay in memory."""
    memset(w, 0, sizeof(window_data))
    if stays:
        w.dirty = after.evicted != before.evicted or after.outofmemory != before.outofmemory \
            or after.total_pages > before.total_pages
    w.excess_free = after.free_chunks > after.chunks_per_page * MIN_PAGES_FOR_SOURCE
    w.age = after.age


cdef void _set_least(store *s, uint64_t pages, uint64_t staying, uint64_t going, uint64_t pool) noexcept nogil:
    """Decides how many pages the pool should have, and computes the pressure."""
    relaxed_store(&s.automove.pool_least, max(<uint64_t>(pages * s.config.slab_automove_freeratio), <uint64_t>2))
    relaxed_store(&s.automove.pressure, staying * 10000 // max(staying + going + pool, <uint64_t>1))


cdef bint _decide_external(store *s, int *src, int *dst) noexcept nogil:
    """_automove_decide with external storage."""
    assert_held(&s.reassign.lock)
    cdef slab_automove *a = &s.automove
    cdef class_sample after[MAX_NUMBER_OF_SLAB_CLASSES]
    cdef window_data total
    cdef uint64_t staying = 0
    cdef uint64_t going = 0
    cdef uint64_t pages = 0
    cdef uint64_t oldest_age = 0
    cdef int oldest = -1
    cdef bint limit_reached, stays
    cdef unsigned int pool = global_page_pool_size(s, &limit_reached)
    cdef bint low = limit_reached and pool < relaxed_load(&a.pool_least)
    cdef unsigned int clsid
    _automove_sample(s, after)
    a.window_cur += 1
    src[0] = -1
    dst[0] = SLAB_GLOBAL_PAGE_POOL
    for clsid in range(1, s.slabs.power_largest + 1):
        stays = not class_goes_outward(s, clsid)
        pages += after[clsid].total_pages
        if stays:
            staying += after[clsid].total_pages
        elif after[clsid].total_pages > MIN_PAGES_FOR_SOURCE:
            going += after[clsid].total_pages
        _note_run(s, &a.before[clsid], &after[clsid], stays,
                  &a.window[clsid * a.window_size + a.window_cur % a.window_size])
        total = _window_sum(a, clsid)
        if total.dirty != 0 and pool != 0:
            continue
        if total.excess_free >= a.window_size:
            src[0] = <int>clsid
        if not stays and after[clsid].total_pages > MIN_PAGES_FOR_SOURCE \
                and (after[clsid].age > oldest_age or oldest == -1):
            oldest = <int>clsid
            oldest_age = after[clsid].age
    memcpy(a.before, after, sizeof(after))
    _set_least(s, pages + pool, staying, going, pool)
    if a.window_cur < a.window_size:
        return False
    if src[0] == -1 and low:
        src[0] = oldest
    return src[0] != -1


cdef void _log_slab_move(store *s, int src, int dst, bint started) noexcept nogil:
    """Logs the coming move of a page. started: the mover can make the move."""
    cdef char text[LOG_TEXT_MAX]
    if log_wants(s.config.log, LOG_SYSEVENTS):
        snprintf(text, sizeof(text), "type=slab_move src=%d dst=%d state=%s", src, dst,
                 <const char *>(b"ok" if started else b"fail"))
        log_text(s.config.log, LOG_SYSEVENTS, text)


cdef bint do_automove_run(store *s, move_request *r) noexcept nogil:
    assert_held(&s.reassign.lock)
    assert_owner(s.mover.owner)
    cdef slab_automove *a = &s.automove
    cdef int64_t now
    cdef int src, dst
    cdef bint good
    if s.config.slab_automove == 0:
        return False
    now = now_seconds()
    if a.last == now:
        return False
    if a.changed and do_automove_init(s):
        a.changed = False
    if not (_automove_decide(s, &src, &dst) if s.config.external == NULL else _decide_external(s, &src, &dst)):
        return False
    good = check_reassign(s, &src, dst) == REASSIGN_OK
    _log_slab_move(s, src, dst, good)
    if not good:
        return False
    r.src = src
    r.dst = dst
    r.allow_evictions = False
    # A class gets one page a second at most; the pool has no such limit.
    if dst != SLAB_GLOBAL_PAGE_POOL:
        a.last = now
    return True


cdef void slabs_set_automove(store *s, unsigned int level) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    relaxed_store(&s.config.slab_automove, level)
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)


cdef void slabs_set_automove_ratio(store *s, double ratio) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    s.config.slab_automove_ratio = ratio
    s.automove.changed = True
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)


cdef void slabs_set_automove_window(store *s, unsigned int runs) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    s.config.slab_automove_window = runs
    s.automove.changed = True
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)


cdef void slabs_set_automove_freeratio(store *s, double ratio) noexcept nogil:
    lock_ranked(&s.reassign.lock, REASSIGN_LOCK)
    s.config.slab_automove_freeratio = ratio
    unlock_ranked(&s.reassign.lock, REASSIGN_LOCK)

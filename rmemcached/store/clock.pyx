cdef void clock_init(store *s) noexcept nogil:
    # The clock begins at ITEM_UPDATE_INTERVAL + 2: see rel_time_t.
    s.clock.process_started = <int64_t>c_time(NULL) - ITEM_UPDATE_INTERVAL - 2
    s.clock.monotonic_start = now_seconds() - ITEM_UPDATE_INTERVAL - 2


cdef void clock_tick(store *s) noexcept nogil:
    cdef rel_time_t advance, now
    if not relaxed_load(&s.clock.paused):
        now = <rel_time_t>(now_seconds() - s.clock.monotonic_start)
        while True:
            advance = <rel_time_t>relaxed_load(&s.clock.advance)
            relaxed_store(&s.clock.current_time, now + advance)
            # store_advance may have come between: either it sees this time, or this loop sees its change.
            full_fence()
            if advance == <rel_time_t>relaxed_load(&s.clock.advance):
                break
    direct_tell(s)


cdef void store_advance(store *s, int64_t seconds) noexcept nogil:
    fetch_add(&s.clock.advance, <uint64_t>seconds)
    fetch_add(&s.clock.current_time, <uint64_t>seconds)
    direct_tell(s)


cdef void store_pause(store *s, bint paused) noexcept nogil:
    relaxed_store(&s.clock.paused, paused)


cdef inline rel_time_t store_time(store *s) noexcept nogil:
    return <rel_time_t>relaxed_load(&s.clock.current_time)


cdef int64_t store_process_started(store *s) noexcept nogil:
    return s.clock.process_started


cdef rel_time_t realtime(store *s, int64_t exptime) noexcept nogil:
    cdef int64_t relative
    if exptime == 0:
        return 0
    if exptime < 0:
        return 1
    if exptime <= REALTIME_MAXDELTA:
        return <rel_time_t>(exptime + <int64_t>store_time(s))
    if exptime <= s.clock.process_started:
        return 1
    relative = exptime - s.clock.process_started
    return <rel_time_t>relative if relative < <int64_t>0xffffffff else <rel_time_t>0xffffffff


cdef inline bint item_is_flushed(store *s, const item *it) noexcept nogil:
    cdef rel_time_t oldest = <rel_time_t>relaxed_load(&s.clock.oldest_live)
    return it.time <= oldest and oldest <= store_time(s)


cdef inline bint item_is_expired(store *s, const item *it) noexcept nogil:
    cdef rel_time_t exptime = it.exptime
    return (exptime != 0 and exptime < store_time(s)) or item_is_flushed(s, it)

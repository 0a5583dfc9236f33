# The clock, and what is dead by it.


cdef void store_advance(store *s, int64_t seconds) noexcept nogil:
    fetch_add(&s.advance, <uint64_t>seconds)
    fetch_add(&s.current_time, <uint64_t>seconds)


cdef void store_pause(store *s, bint paused) noexcept nogil:
    relaxed_store(&s.paused, paused)


cdef rel_time_t store_time(store *s) noexcept nogil:
    """The clock at the last store_tick."""
    return <rel_time_t>relaxed_load(&s.current_time)


cdef int64_t store_process_started(store *s) noexcept nogil:
    """Unix time of rel_time_t 0."""
    return s.process_started


cdef rel_time_t realtime(store *s, int64_t exptime) noexcept nogil:
    """A client's expiry time as a rel_time_t: 0 never, negative at once, up to 30 days relative, above a Unix time."""
    cdef int64_t relative
    if exptime == 0:
        return 0
    if exptime < 0:
        return 1
    if exptime <= REALTIME_MAXDELTA:
        return <rel_time_t>(exptime + <int64_t>store_time(s))
    if exptime <= s.process_started:
        return 1
    relative = exptime - s.process_started
    return <rel_time_t>relative if relative < <int64_t>0xffffffff else <rel_time_t>0xffffffff


cdef inline bint item_is_flushed(store *s, const item *it) noexcept nogil:
    cdef rel_time_t oldest = <rel_time_t>relaxed_load(&s.oldest_live)
    return it.time <= oldest and oldest <= store_time(s)


cdef inline bint item_is_expired(store *s, const item *it) noexcept nogil:
    """Whether the item can be dropped. A lookup is a second ahead: for it, an item is dead once exptime is reached."""
    cdef rel_time_t exptime = it.exptime
    return (exptime != 0 and exptime < store_time(s)) or item_is_flushed(s, it)

cdef void _clock_go_on(store *s) noexcept nogil:
    """Goes on with the clock of the last run. CLOCK_MONOTONIC counts the time in between, whatever was done to the time
    of day. After a new start of the machine only the time of day can tell.
    """
    cdef int64_t last = max(<int64_t>s.file.last_time, <int64_t>(ITEM_UPDATE_INTERVAL + 2))
    cdef int64_t now = now_seconds() - s.file.last.monotonic_start
    s.clock.process_started = s.file.last.process_started
    if not memory_file_is_of_boot(s):
        now = <int64_t>c_time(NULL) - s.file.last.process_started
    if now < last or now > HEAD_TIME_MOST:
        now = last
    s.clock.monotonic_start = now_seconds() - now


cdef void clock_init(store *s) noexcept nogil:
    pthread_mutex_init(&s.clock.lock, NULL)
    if not s.file.fresh:
        _clock_go_on(s)
        return
    # The clock begins at ITEM_UPDATE_INTERVAL + 2: see rel_time_t.
    s.clock.process_started = <int64_t>c_time(NULL) - ITEM_UPDATE_INTERVAL - 2
    s.clock.monotonic_start = now_seconds() - ITEM_UPDATE_INTERVAL - 2


cdef void clock_destroy(store *s) noexcept nogil:
    pthread_mutex_destroy(&s.clock.lock)


cdef void clock_tick(store *s) noexcept nogil:
    lock_ranked(&s.clock.lock, CLOCK_LOCK)
    if not s.clock.paused:
        relaxed_store(&s.clock.current_time,
                      <rel_time_t>(now_seconds() - s.clock.monotonic_start) + s.clock.advance)
    relaxed_store(&s.head.current_time, s.clock.current_time)
    relaxed_store(&s.head.hashpower, relaxed_load(&s.assoc.hashpower))
    unlock_ranked(&s.clock.lock, CLOCK_LOCK)
    direct_tell(s)


cdef void store_advance(store *s, int64_t seconds) noexcept nogil:
    lock_ranked(&s.clock.lock, CLOCK_LOCK)
    s.clock.advance += <rel_time_t>seconds
    relaxed_store(&s.clock.current_time, s.clock.current_time + <rel_time_t>seconds)
    relaxed_store(&s.head.current_time, s.clock.current_time)
    unlock_ranked(&s.clock.lock, CLOCK_LOCK)
    direct_tell(s)


cdef void store_pause(store *s, bint paused) noexcept nogil:
    lock_ranked(&s.clock.lock, CLOCK_LOCK)
    s.clock.paused = paused
    unlock_ranked(&s.clock.lock, CLOCK_LOCK)


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
    cdef rel_time_t oldest = <rel_time_t>relaxed_load(&s.head.oldest_live)
    return it.time <= oldest and oldest <= store_time(s)


cdef inline bint item_is_expired(store *s, const item *it) noexcept nogil:
    cdef rel_time_t exptime = it.exptime
    return (exptime != 0 and exptime < store_time(s)) or item_is_flushed(s, it)

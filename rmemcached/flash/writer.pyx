cdef enum:
    SLEEP_MIN = 200              # microseconds
    SLEEP_SCARCE = 1000          # ... at most, while memory is scarce
    CLASSES = MAX_NUMBER_OF_SLAB_CLASSES

cdef enum write_result:
    ITEM_STAYS                   # the item is not to be written, or has no memory for a header
    ITEM_WRITTEN
    ITEM_LACKS_SPACE

cdef struct write_round:         # a look at all classes
    unsigned int smallest        # the class of the smallest items to be written
    unsigned int wanted          # free pages missing in the pool
    bint wrote
    uint64_t bytes               # written


cdef unsigned int _bucket_of(flash *f, item *it, uint32_t now) noexcept nogil:
    # As in memcached, an item that never expires has the longest life.
    if <uint32_t>(item_exptime(it) - now) < relaxed_load(&f.tuning.low_ttl):
        return BUCKET_LOWTTL
    return BUCKET_CHUNKED if ITEM_has(it, ITEM_CHUNKED) else BUCKET_DEFAULT


cdef void _log_write(flash *f, item *it, unsigned int bucket, uint32_t now) noexcept nogil:
    cdef char key[3 * RECORD_KEY + 1]
    cdef char text[LOG_TEXT_MAX]
    if log_wants(f.config.log, LOG_EVICTIONS):
        uri_encode(ITEM_key(it), it.nkey, key)[0] = 0
        snprintf(text, sizeof(text), b"type=extwrite key=%.380s fetch=%s ttl=%lld la=%u clsid=%u bucket=%u", key,
                 <const char *>b"yes" if ITEM_has(it, ITEM_FETCHED) else <const char *>b"no",
                 <long long>item_exptime(it) - now if item_exptime(it) else <long long>-1,
                 <unsigned int>(now - item_time(it)), ITEM_clsid(it), <unsigned int>bucket)
        log_text(f.config.log, LOG_EVICTIONS, text)


cdef write_result _write_victim(flash *f, const victim *v, uint64_t item_age, unsigned int *bucket) noexcept nogil:
    """Puts a value into a write buffer, and a header in the item's place."""
    cdef item *it = v.it
    cdef uint32_t now = store_time(f.store)
    cdef flash_space space
    if ITEM_has(it, ITEM_HDR) or (item_age and now - item_time(it) <= item_age):
        return ITEM_STAYS
    bucket[0] = _bucket_of(f, it, now)
    if space_take_present(f, bucket[0], record_length(it), &space) != SPACE_OK:
        return ITEM_LACKS_SPACE
    record_write(space.to, it, &space.where)
    space_written(f, &space)
    if not do_victim_to_header(f.store, v, &space.where):
        value_gone(f, &space.where, space.length)
        return ITEM_STAYS
    _log_write(f, it, bucket[0], now)
    return ITEM_WRITTEN


cdef bint victim_take(void *arg, const victim *v) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef unsigned int bucket
    # Before flash_start, and after flash_stop_writing, nothing is written.
    return f.store != NULL and not relaxed_load(&f.stop_writing) \
        and _write_victim(f, v, 0, &bucket) == ITEM_WRITTEN


cdef inline uint64_t _chunks_wanted(const class_room *room, unsigned int wanted) noexcept nogil:
    """The free chunks that a class should have: with fewer, its items are written whatever their age. Headers of small
    items take too much memory to write many of them at once."""
    cdef uint64_t size = SLAB_PAGE_SIZE // room.perslab
    cdef unsigned int most = wanted
    if size < 500:
        most = 3
    elif size < 1000:
        most = 4
    elif size < 2000:
        most = 5
    return room.perslab * <uint64_t>min(wanted, most)


cdef void _write_class(flash *f, unsigned int clsid, write_round *round) noexcept nogil:
    """Writes items of a class until there is enough room, or the next item is too young, or no buffer is free."""
    cdef class_room room
    cdef victim v
    cdef uint64_t age, wanted
    cdef unsigned int bucket
    cdef write_result result = ITEM_WRITTEN
    store_class_room(f.store, clsid, &room)
    if room.perslab == 0 or room.total_pages == 0:
        return
    wanted = _chunks_wanted(&room, round.wanted)
    while result == ITEM_WRITTEN and not relaxed_load(&f.stop_writing):
        age = 0 if room.chunks_free < wanted else relaxed_load(&f.tuning.item_age)
        if not store_take_victim(f.store, clsid, &v):
            break
        result = _write_victim(f, &v, age, &bucket)
        victim_release(f.store, &v)
        if result == ITEM_LACKS_SPACE and bucket_open(f, bucket, True):
            # The next try has a new page. It was opened without a lock, because the system may take its time.
            result = ITEM_WRITTEN
        elif result == ITEM_WRITTEN:
            room.chunks_free += 1
            round.wrote = True
            round.bytes += SLAB_PAGE_SIZE // room.perslab


cdef void _begin_round(flash *f, write_round *round) noexcept nogil:
    cdef unsigned int least = store_pool_least(f.store)
    cdef unsigned int pages = store_free_pages(f.store)
    round.smallest = store_class_of(f.store, relaxed_load(&f.tuning.item_size))
    round.wrote = False
    round.wanted = 0
    if pages < least:
        round.wanted = least - pages
    elif pages == least:
        # Begin early: the page mover then finds pages in time.
        round.wanted = 1


cdef void writer_wake(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    pthread_mutex_lock(&f.lock)
    if not f.memory_scarce:
        f.memory_scarce = True
        pthread_cond_broadcast(&f.space_cond)
    pthread_mutex_unlock(&f.lock)


cdef void _rest(flash *f, unsigned int usec) noexcept nogil:
    """Waits for scarce memory, for space, or for so many microseconds."""
    pthread_mutex_lock(&f.lock)
    if not f.memory_scarce:
        do_space_wait(f, usec)
    f.memory_scarce = False
    pthread_mutex_unlock(&f.lock)


cdef void *_writer_thread(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef write_round round
    cdef uint64_t most
    cdef unsigned int usec = SLEEP_MIN
    cdef unsigned int clsid
    round.bytes = 0
    while not relaxed_load(&f.stop_writing):
        _begin_round(f, &round)
        clsid = CLASSES - 1
        # An item size above all classes leaves everything in memory.
        while round.smallest and clsid >= round.smallest:
            _write_class(f, clsid, &round)
            clsid -= 1
        if round.bytes >= SLAB_PAGE_SIZE:
            # A compaction looks at all pages, so it is not asked for more often.
            compactor_wake(f)
            round.bytes = 0
        if round.wrote:
            usec = SLEEP_MIN
            continue
        most = relaxed_load(&f.tuning.max_sleep)
        if round.wanted:
            most = min(most, <uint64_t>SLEEP_SCARCE)
        usec = <unsigned int>max(min(<uint64_t>usec + usec // 64 + 1, most), <uint64_t>1)
        _rest(f, usec)
    return NULL


cdef bint writer_start(flash *f) noexcept nogil:
    f.writer_started = start_quiet_thread(&f.writer, b"mc-ext-write", _writer_thread, f) == 0
    return f.writer_started


cdef void writer_stop(flash *f) noexcept nogil:
    if f.writer_started:
        pthread_join(f.writer, NULL)
        f.writer_started = False

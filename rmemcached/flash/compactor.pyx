cdef enum:
    LOOK_MS = 100                # milliseconds between looks at the pages without a wake
    COOL_USEC = 1000             # microseconds between two compactions
    WAIT_USEC = 1000             # a wait for space
    WAITS_MOST = 5000            # waits in a part of a page, at most

cdef struct bucket_pages:        # the pages kept for a bucket
    unsigned int total
    unsigned int free
    int emptiest                 # page to compact; -1: none
    uint64_t emptiest_bytes
    uint32_t emptiest_version
    int oldest                   # -1: none
    uint32_t oldest_version

cdef struct compaction:          # of a page
    unsigned int page
    uint32_t version
    bint drop_unread             # values that nobody has fetched are dropped
    bint has_coldcompact         # ... or go to their own pages
    bint has_old
    bint use_old                 # the page was not worth a compaction: its values go to the pages for old values

cdef struct part_counts:         # of a part of a page
    uint64_t rescues
    uint64_t shared              # rescues with a header in use: memcached copies such a header
    uint64_t lost
    uint64_t skipped
    uint64_t cold
    uint64_t old


# ---- the choice of a page --------------------------------------------------------------------------------------------

cdef void _look_at_pages(flash *f, bucket_pages *buckets) noexcept nogil:
    cdef uint64_t limit = <uint64_t>(f.tuning.max_frag * f.config.page_size)
    cdef bucket_pages *b
    cdef flash_page *p
    cdef int64_t now = now_ns()
    cdef unsigned int i
    for i in range(<unsigned int>BUCKETS):
        buckets[i] = bucket_pages(0, 0, -1, 0, 0, -1, 0)
    pthread_mutex_lock(&f.lock)
    for i in range(f.page_count):
        walk_pause(f, i)
        p = &f.pages[i]
        b = &buckets[p.free_bucket]
        b.total += 1
        if p.version == 0:
            # A page refused by the device, or with an I/O error, is neither free nor in use.
            b.free += not p.failed and (p.reserved or f.files[p.path].full_until == 0)
        elif page_is_coming(p, now):
            b.free += 1
        elif not p.active and not p.closed:
            if b.oldest < 0 or p.version < b.oldest_version:
                b.oldest = <int>i
                b.oldest_version = p.version
            if p.bytes < limit and (b.emptiest < 0 or p.bytes < b.emptiest_bytes):
                b.emptiest = <int>i
                b.emptiest_bytes = p.bytes
                b.emptiest_version = p.version
    pthread_mutex_unlock(&f.lock)


cdef bint _choose_in_bucket(flash *f, const bucket_pages *b, bint tiered, compaction *out) noexcept nogil:
    """tiered: the bucket's own pages are only compacted or evicted."""
    if b.total == 0 or b.free >= relaxed_load(&f.tuning.compact_under):
        return False
    if b.emptiest >= 0:
        out.page = <unsigned int>b.emptiest
        out.version = b.emptiest_version
        return True
    if b.free >= relaxed_load(&f.tuning.drop_under) or b.oldest < 0 or tiered:
        return False
    out.drop_unread = relaxed_load(&f.tuning.drop_unread) != 0
    if not (out.drop_unread or out.has_coldcompact or out.has_old):
        return False
    out.use_old = out.has_old
    out.page = <unsigned int>b.oldest
    out.version = b.oldest_version
    return True


cdef bint _choose(flash *f, compaction *out) noexcept nogil:
    """Chooses a page for a compaction. Evicts the oldest page of a tier that is full."""
    cdef bucket_pages buckets[BUCKETS]
    cdef char text[LOG_TEXT_MAX]
    cdef unsigned int i
    memset(out, 0, sizeof(compaction))
    if log_wants(f.config.log, LOG_SYSEVENTS):
        snprintf(text, sizeof(text), b"type=compact_fraginfo ratio=%.2f bytes=%lu",
                 f.tuning.max_frag, <unsigned long>(f.tuning.max_frag * f.config.page_size))
        log_text(f.config.log, LOG_SYSEVENTS, text)
    _look_at_pages(f, buckets)
    out.has_coldcompact = buckets[BUCKET_COLDCOMPACT].total != 0
    out.has_old = buckets[BUCKET_OLD].total != 0
    for i in range(<unsigned int>BUCKET_COLDCOMPACT, <unsigned int>BUCKETS):
        if buckets[i].total and buckets[i].free == 0 and buckets[i].oldest >= 0:
            page_evict(f, <unsigned int>buckets[i].oldest, buckets[i].oldest_version, False)
            return False
    for i in range(<unsigned int>BUCKETS):
        # Values with short lives expire together: their pages become free by themselves.
        if i != BUCKET_LOWTTL and _choose_in_bucket(f, &buckets[i], i >= BUCKET_COLDCOMPACT, out):
            return True
    return False


# ---- a value ---------------------------------------------------------------------------------------------------------

cdef inline bint _is_cold(flash *f, item *it) noexcept nogil:
    """Whether nobody has fetched the value for long."""
    if store_get_config(f.store).s3fifo:
        return not ITEM_has(it, ITEM_FETCHED | ITEM_FREQUENCY)
    return ITEM_queue(it) & LRU_MASK == COLD_LRU


cdef bint _is_kept(flash *f, const compaction *c, item *it, unsigned int *bucket, part_counts *counts) noexcept nogil:
    """Whether a header's value is kept, and where."""
    bucket[0] = BUCKET_OLD if c.use_old else BUCKET_COMPACT
    if _is_cold(f, it):
        if c.has_coldcompact:
            bucket[0] = BUCKET_COLDCOMPACT
        elif c.drop_unread:
            counts.skipped += 1
            return False
    return True


cdef bint _take_space(flash *f, unsigned int bucket, uint32_t length, flash_space *space,
                      unsigned int *waits) noexcept nogil:
    """Takes space for a value, and waits for space if need be. No lock is held. Without a free page the value goes into
    the writer's page, before another page is dropped."""
    while space_take(f, bucket, length, False, space) != SPACE_OK:
        if space_take_present(f, BUCKET_DEFAULT, length, space) == SPACE_OK:
            f.compact_lent = True
            return True
        if space_take(f, bucket, length, True, space) == SPACE_OK:
            return True
        if waits[0] == 0 or relaxed_load(&f.stop_writing):
            return False
        waits[0] -= 1
        space_wait(f, WAIT_USEC)
    return True


cdef inline uint32_t _hash_of(const char *data) noexcept nogil:
    """The hash of a record's key: other in each process."""
    return store_hash(data + sizeof(flash_record), (<const flash_record *>data).nkey)


cdef void _rescue(flash *f, const char *data, const item_hdr *where, unsigned int bucket, part_counts *counts,
                  unsigned int *waits) noexcept nogil:
    """Copies a value, and gives its header the copy's place, if the header still has the old place."""
    cdef const flash_record *record = <const flash_record *>data
    cdef uint32_t hv = _hash_of(data)
    cdef flash_space space
    cdef item *it
    if not _take_space(f, bucket, record.length, &space, waits):
        counts.lost += 1
        return
    record_copy(space.to, data, &space.where)
    space_written(f, &space)
    it = header_find_locked(f.store, data + sizeof(flash_record), record.nkey, hv, where)
    if it == NULL:
        # Deleted, or stored again, since the first look.
        value_gone(f, &space.where, space.length)
        return
    counts.shared += relaxed_load(&it.refcount) > 1
    do_header_move(f.store, it, &space.where)
    item_unlock(f.store, hv)
    counts.rescues += 1
    counts.cold += bucket == BUCKET_COLDCOMPACT
    counts.old += bucket == BUCKET_OLD


cdef void _compact_part(flash *f, const compaction *c, const char *data, uint32_t offset,
                        part_counts *counts) noexcept nogil:
    """Looks at the values of a former write buffer."""
    cdef const flash_record *record
    cdef uint32_t at = label_room(f, &f.pages[c.page], offset)
    cdef uint32_t size = <uint32_t>f.config.wbuf_size
    cdef unsigned int waits = WAITS_MOST
    cdef unsigned int bucket
    cdef item_hdr where
    cdef uint32_t hv
    cdef item *it
    cdef bint kept
    where.page_id = <uint16_t>c.page
    where.page_version = c.version
    while at + sizeof(flash_record) < size and not relaxed_load(&f.stop_writing):
        record = <const flash_record *>(data + at)
        where.offset = offset + at
        if record.nkey == 0 and 0 < record.length <= size - at:
            at += record_space(record.length)
            continue
        # A damaged record hides the records behind it: their gets will miss.
        if record.length == 0 or not record_is_whole(data + at, size - at, &where):
            break
        hv = _hash_of(data + at)
        it = header_find_locked(f.store, data + at + sizeof(flash_record), record.nkey, hv, &where)
        if it != NULL:
            kept = _is_kept(f, c, it, &bucket, counts)
            item_unlock(f.store, hv)
            if kept:
                _rescue(f, data + at, &where, bucket, counts, &waits)
        at += record_space(record.length)


# ---- a page ----------------------------------------------------------------------------------------------------------

cdef void _log_page(flash *f, const char *format, uint64_t page, uint64_t value) noexcept nogil:
    cdef char text[LOG_TEXT_MAX]
    if log_wants(f.config.log, LOG_SYSEVENTS):
        snprintf(text, sizeof(text), format, <unsigned long>page, <unsigned long long>value)
        log_text(f.config.log, LOG_SYSEVENTS, text)


cdef void _count_part(flash *f, const compaction *c, uint32_t offset, const part_counts *counts) noexcept nogil:
    cdef char text[LOG_TEXT_MAX]
    pthread_mutex_lock(&f.lock)
    f.stats.compact_lost += counts.lost
    f.stats.compact_rescues += counts.rescues
    f.stats.compact_skipped += counts.skipped
    f.stats.compact_resc_cold += counts.cold
    f.stats.compact_resc_old += counts.old
    pthread_mutex_unlock(&f.lock)
    if log_wants(f.config.log, LOG_SYSEVENTS):
        # memcached's line. A move needs no new header, and so no memory.
        snprintf(text, sizeof(text), b"type=compact_read_end id=%lu offset=%llu rescues=%lu rescues_realloc=%lu "
                 b"lost=%lu lost_oom=0 skipped=%lu", <unsigned long>c.page, <unsigned long long>offset,
                 <unsigned long>counts.rescues, <unsigned long>counts.shared, <unsigned long>counts.lost,
                 <unsigned long>counts.skipped)
        log_text(f.config.log, LOG_SYSEVENTS, text)


cdef bint _compact_page(flash *f, const compaction *c, char *data) noexcept nogil:
    """Copies a page's values elsewhere, part by part. False: the page cannot be read, or the threads are to stop."""
    cdef flash_page *p = &f.pages[c.page]
    cdef part_counts counts
    cdef ssize_t size
    cdef uint32_t offset = 0
    while offset < p.allocated:
        _log_page(f, b"type=compact_read_start id=%lu offset=%llu", c.page, offset)
        memset(&counts, 0, sizeof(counts))
        # Of a part not written to its end, the file may have no more; the end mark is always there.
        size = read_part(p.fd, data, f.config.wbuf_size, p.offset + offset)
        if size <= 0:
            return False
        memset(data + size, 0, f.config.wbuf_size - <size_t>size)
        _compact_part(f, c, data, offset, &counts)
        _count_part(f, c, offset, &counts)
        if relaxed_load(&f.stop_writing):
            return False
        offset += <uint32_t>f.config.wbuf_size
    return True


cdef void _compact(flash *f, const compaction *c, char *data) noexcept nogil:
    cdef bint done
    if not page_keep(f, c.page, c.version):
        return
    _log_page(f, b"type=compact_start id=%lu version=%llu", c.page, c.version)
    f.compact_lent = False
    done = _compact_page(f, c, data)
    if not done:
        _log_page(f, b"type=compact_abort id=%lu", c.page, 0)
    else:
        _log_page(f, b"type=compact_end id=%lu", c.page, 0)
    page_release(f, c.page, done)
    if f.compact_lent:
        # The page becomes the next compaction's, as in memcached: values kept by compactions lie together.
        bucket_open(f, BUCKET_OLD if c.use_old else BUCKET_COMPACT, False)
    if not done and not relaxed_load(&f.stop_writing):
        complain(f, page_file(f, &f.pages[c.page]), b"cannot be read; a page of values is lost", EIO)
        page_evict(f, c.page, c.version, True)
    space_wait(f, COOL_USEC)


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef void compactor_wake(flash *f) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    f.compact_asked = True
    pthread_cond_signal(&f.compact_cond)
    pthread_mutex_unlock(&f.lock)


cdef void _wait_to_look(flash *f) noexcept nogil:
    cdef timespec until = ns_timespec(now_ns() + <int64_t>LOOK_MS * 1000000)
    pthread_mutex_lock(&f.lock)
    if not f.compact_asked and not f.stop_writing:
        pthread_cond_timedwait(&f.compact_cond, &f.lock, &until)
    f.compact_asked = False
    pthread_mutex_unlock(&f.lock)


cdef void *_compactor_thread(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef compaction c
    while not relaxed_load(&f.stop_writing):
        if _choose(f, &c):
            _compact(f, &c, f.compact_buf)
        else:
            _wait_to_look(f)
    return NULL


cdef bint compactor_start(flash *f) noexcept nogil:
    f.compact_buf = <char *>malloc(f.config.wbuf_size)
    f.compactor_started = f.compact_buf != NULL and start_quiet_thread(
        &f.compactor, b"mc-ext-compact", _compactor_thread, f) == 0
    return f.compactor_started


cdef void compactor_stop(flash *f) noexcept nogil:
    if f.compactor_started:
        pthread_join(f.compactor, NULL)
        f.compactor_started = False
    free(f.compact_buf)
    f.compact_buf = NULL

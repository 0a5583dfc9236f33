cdef enum:
    RETRY_NS = 10000000000       # after a refusal of space by the device


cdef bint pages_init(flash *f, const int *fds) noexcept nogil:
    """Pages alternate between the files, as in memcached."""
    cdef uint64_t offsets[PATHS]
    cdef uint64_t left[PATHS]
    cdef unsigned int i
    cdef unsigned int path = 0
    cdef flash_page *p
    pthread_mutex_init(&f.lock, NULL)
    flash_cond_init(&f.wbuf_cond)
    flash_cond_init(&f.space_cond)
    for i in range(f.config.npaths):
        f.page_count += <unsigned int>f.config.paths[i].pages
        left[i] = f.config.paths[i].pages
        offsets[i] = 0
    f.pages = <flash_page *>calloc(f.page_count, sizeof(flash_page))
    if f.pages == NULL:
        return False
    for i in range(f.page_count):
        while left[path] == 0:
            path = (path + 1) % f.config.npaths
        p = &f.pages[i]
        p.id = <uint16_t>i
        p.path = path
        p.fd = fds[path]
        p.file = f.config.paths[path].file
        p.offset = offsets[path]
        p.free_bucket = f.config.paths[path].bucket
        offsets[path] += f.config.page_size
        left[path] -= 1
        path = (path + 1) % f.config.npaths
    f.version = 1
    return True


cdef void _begin_page(flash *f, flash_page *p) noexcept nogil:
    """Gives a page its place: among the free pages, as the page of its bucket, or with values alone."""
    if p.version != 0 and p.allocated < f.config.page_size and f.active[p.bucket] == NULL:
        p.active = True
        f.active[p.bucket] = p
    elif p.objects == 0:
        p.version = 0
        p.allocated = 0
        _push_free(f, p)
    p.kept.number = <uint32_t>(p.offset // f.config.page_size)
    p.kept.path = <uint8_t>p.path
    p.kept.bucket = <uint8_t>p.bucket
    p.kept.allocated = <uint32_t>p.allocated
    p.kept.version = p.version


cdef void pages_begin(flash *f) noexcept nogil:
    cdef unsigned int i = f.page_count
    while i:
        i -= 1
        f.pages[i].kept = &f.kept.pages[i]
        _begin_page(f, &f.pages[i])
    f.kept.head.next_version = f.version
    f.free_wbufs = NULL
    for i in range(<unsigned int>WBUFS):
        f.wbufs[i].buf = f.kept.buffers + i * f.config.wbuf_size
        f.wbufs[i].kept = &f.kept.head.wbufs[i]
        f.wbufs[i].next = f.free_wbufs
        f.free_wbufs = &f.wbufs[i]


cdef void pages_destroy(flash *f) noexcept nogil:
    kept_close(f)
    free(f.pages)
    pthread_cond_destroy(&f.wbuf_cond)
    pthread_cond_destroy(&f.space_cond)
    pthread_mutex_destroy(&f.lock)


# ---- free pages ------------------------------------------------------------------------------------------------------

cdef inline void _push_free(flash *f, flash_page *p) noexcept nogil:
    p.next = f.free_pages[p.free_bucket]
    f.free_pages[p.free_bucket] = p
    f.pages_free += 1


cdef inline void _forget(flash_page *p) noexcept nogil:
    """Tells the next daemon that the page has no values, before the page is used again."""
    store_release(&p.kept.version, 0)


cdef void _free_if_unused(flash *f, flash_page *p) noexcept nogil:
    """Frees a page without values, or a closed page, when nothing refers to it."""
    assert_held(&f.lock)
    if p.version == 0 or p.refs != 0 or p.buffers != 0:
        return
    if not p.closed and (p.active or p.objects != 0):
        return
    f.stats.objects_used -= p.objects
    f.stats.bytes_used -= p.bytes
    f.stats.page_reclaims += 1
    if f.active[p.bucket] == p:
        f.active[p.bucket] = NULL
    _forget(p)
    p.version = 0
    p.objects = 0
    p.bytes = 0
    p.allocated = 0
    p.bucket = 0
    p.active = False
    p.closed = False
    p.filling = NULL
    _push_free(f, p)
    pthread_cond_broadcast(&f.space_cond)


cdef void _close_evicted(flash *f, flash_page *p) noexcept nogil:
    """The page's values are gone."""
    assert_held(&f.lock)
    p.closed = True
    _forget(p)
    f.stats.page_evictions += 1
    f.stats.objects_evicted += p.objects
    f.stats.bytes_evicted += p.bytes
    _free_if_unused(f, p)


cdef flash_page *_pop_free(flash *f, unsigned int bucket) noexcept nogil:
    """A free page of the bucket, or of the pages for all buckets. NULL: none."""
    assert_held(&f.lock)
    cdef flash_page *p
    if f.free_pages[bucket] == NULL:
        bucket = BUCKET_DEFAULT
    p = f.free_pages[bucket]
    if p != NULL:
        f.free_pages[bucket] = p.next
        p.next = NULL
        f.pages_free -= 1
    return p


cdef void _drop_oldest(flash *f, unsigned int bucket) noexcept nogil:
    """Drops the oldest page among the pages for the bucket. Before, returns pages refused by the device to the free
    pages, when their time has come."""
    assert_held(&f.lock)
    cdef flash_page *oldest = NULL
    cdef flash_page *p
    cdef int64_t now = now_ns()
    cdef unsigned int i
    for i in range(f.page_count):
        p = &f.pages[i]
        if p.free_bucket != BUCKET_DEFAULT and p.free_bucket != bucket:
            continue
        if p.retry != 0:
            if now >= p.retry:
                p.retry = 0
                _push_free(f, p)
        elif p.version != 0 and not (p.active or p.closed or p.compacting) \
                and (oldest == NULL or p.version < oldest.version):
            oldest = p
    if f.free_pages[bucket] == NULL and f.free_pages[BUCKET_DEFAULT] == NULL and oldest != NULL:
        _close_evicted(f, oldest)


cdef bint _has_space(flash *f, flash_page *p) noexcept nogil:
    """Reserves space for a page taken from the free pages: no write of its values fails for lack of space then.
    False: the device is full."""
    cdef int error
    if p.reserved:
        return True
    error = allocate_file(p.fd, <int64_t>p.offset, <int64_t>f.config.page_size)
    # A file system without this call gives its space write by write.
    p.reserved = error == 0 or (error != ENOSPC and error != EDQUOT and error != EIO and error != EFBIG)
    return p.reserved


cdef void _begin_use(flash *f, flash_page *p, unsigned int bucket) noexcept nogil:
    """Gives a page a version and a bucket. The next daemon learns of both before a byte is written."""
    assert_held(&f.lock)
    p.version = f.version
    f.version += 1
    if f.version == 0:
        f.version = 1
    p.bucket = bucket
    p.active = True
    f.kept.head.next_version = f.version
    p.kept.bucket = <uint8_t>bucket
    p.kept.allocated = 0
    store_release(&p.kept.version, p.version)


cdef bint _open_page(flash *f, unsigned int bucket, bint may_drop) noexcept nogil:
    """Gives the bucket a new page. False: none is free now."""
    cdef flash_page *p
    cdef bint fits
    while True:
        pthread_mutex_lock(&f.lock)
        p = _pop_free(f, bucket)
        if p == NULL and may_drop:
            _drop_oldest(f, bucket)
            p = _pop_free(f, bucket)
        pthread_mutex_unlock(&f.lock)
        if p == NULL:
            return False
        # Nobody else knows the page now.
        fits = _has_space(f, p)
        pthread_mutex_lock(&f.lock)
        if fits and f.active[bucket] != NULL:
            # Another thread was faster.
            _push_free(f, p)
        elif fits:
            _begin_use(f, p, bucket)
            f.active[bucket] = p
            f.stats.page_allocs += 1
        else:
            p.retry = now_ns() + RETRY_NS
        pthread_mutex_unlock(&f.lock)
        if fits:
            return True
        complain(f, p.file, b"has no space on its device", ENOSPC)


# ---- space -----------------------------------------------------------------------------------------------------------

cdef void _queue_if_full(flash *f, flash_wbuf *wbuf) noexcept nogil:
    """Has a full buffer written, when all its values are there."""
    assert_held(&f.lock)
    if wbuf.full and wbuf.copies == 0:
        wbuf.next = NULL
        f.to_write_tail[0] = wbuf
        f.to_write_tail = &wbuf.next
        pthread_cond_signal(&f.wbuf_cond)


cdef void _end_filling(flash *f, flash_page *p) noexcept nogil:
    assert_held(&f.lock)
    if p.filling != NULL:
        p.filling.full = True
        _queue_if_full(f, p.filling)
        p.filling = NULL


cdef bint _begin_filling(flash *f, flash_page *p) noexcept nogil:
    """Gives the page a buffer. False: none is free."""
    assert_held(&f.lock)
    cdef flash_wbuf *wbuf = f.free_wbufs
    if wbuf == NULL:
        return False
    f.free_wbufs = wbuf.next
    wbuf.page = p
    wbuf.offset = <uint32_t>p.allocated
    wbuf.used = label_room(f, p, wbuf.offset)
    wbuf.full = False
    wbuf.written = False
    wbuf.kept.offset = wbuf.offset
    wbuf.kept.used = wbuf.used
    store_release(&wbuf.kept.version, p.version)
    p.allocated += f.config.wbuf_size
    store_release(&p.kept.allocated, p.allocated)
    p.buffers += 1
    p.filling = wbuf
    return True


cdef bint _give_space(flash *f, flash_page *p, uint32_t length, flash_space *out) noexcept nogil:
    """Takes space in the page's buffer. False: there is too little."""
    assert_held(&f.lock)
    cdef flash_wbuf *wbuf = p.filling
    cdef uint32_t space = record_space(length)
    if wbuf == NULL or f.config.wbuf_size - wbuf.used < space:
        return False
    out.where.page_id = p.id
    out.where.page_version = p.version
    out.where.offset = wbuf.offset + wbuf.used
    out.to = wbuf.buf + wbuf.used
    out.wbuf = wbuf
    out.length = length
    (<flash_record *>out.to).length = length
    wbuf.used += space
    store_release(&wbuf.kept.used, wbuf.used)
    wbuf.copies += 1
    p.objects += 1
    p.bytes += length
    f.stats.objects_written += 1
    f.stats.objects_used += 1
    f.stats.bytes_written += length
    f.stats.bytes_used += length
    return True


cdef space_result _take_in_page(flash *f, unsigned int bucket, uint32_t length, flash_space *out) noexcept nogil:
    """Takes space in the bucket's present page. Without room there, the bucket has no present page afterwards."""
    assert_held(&f.lock)
    cdef flash_page *p = f.active[bucket]
    if p == NULL:
        return SPACE_LATER
    if not p.closed and _give_space(f, p, length, out):
        return SPACE_OK
    _end_filling(f, p)
    if p.closed or p.allocated == f.config.page_size:
        f.active[bucket] = NULL
        _free_if_unused(f, p)
        return SPACE_LATER
    return SPACE_OK if _begin_filling(f, p) and _give_space(f, p, length, out) else SPACE_LATER


cdef space_result space_take_present(flash *f, unsigned int bucket, uint32_t length, flash_space *out) noexcept nogil:
    cdef space_result result = SPACE_LATER
    if record_space(length) <= f.config.wbuf_size:
        pthread_mutex_lock(&f.lock)
        result = _take_in_page(f, bucket, length, out)
        pthread_mutex_unlock(&f.lock)
    return result


cdef space_result space_take(flash *f, unsigned int bucket, uint32_t length, bint may_drop,
                             flash_space *out) noexcept nogil:
    cdef space_result result = space_take_present(f, bucket, length, out)
    if result != SPACE_OK and bucket_open(f, bucket, may_drop):
        result = space_take_present(f, bucket, length, out)
    return result


cdef bint bucket_open(flash *f, unsigned int bucket, bint may_drop) noexcept nogil:
    cdef bint wanted
    pthread_mutex_lock(&f.lock)
    # With a page there is no free buffer at the moment.
    wanted = f.active[bucket] == NULL
    pthread_mutex_unlock(&f.lock)
    return wanted and _open_page(f, bucket, may_drop)


cdef void space_written(flash *f, const flash_space *space) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    space.wbuf.copies -= 1
    _queue_if_full(f, space.wbuf)
    pthread_mutex_unlock(&f.lock)


cdef void space_wait(flash *f, unsigned int usec) noexcept nogil:
    cdef timespec until = ns_timespec(now_ns() + <int64_t>usec * 1000)
    pthread_mutex_lock(&f.lock)
    if not f.stop_writing:
        pthread_cond_timedwait(&f.space_cond, &f.lock, &until)
    pthread_mutex_unlock(&f.lock)


# ---- values ----------------------------------------------------------------------------------------------------------

cdef inline flash_page *_page_of(flash *f, const item_hdr *where) noexcept nogil:
    """The page if it still has this version's values; else NULL."""
    assert_held(&f.lock)
    cdef flash_page *p
    if where.page_id >= f.page_count:
        return NULL
    p = &f.pages[where.page_id]
    return p if p.version == where.page_version and p.version != 0 and not p.closed else NULL


cdef void value_gone(flash *f, const item_hdr *where, uint32_t length) noexcept nogil:
    cdef flash_page *p
    pthread_mutex_lock(&f.lock)
    p = _page_of(f, where)
    if p != NULL:
        p.objects -= 1
        p.bytes -= length
        f.stats.objects_used -= 1
        f.stats.bytes_used -= length
        _free_if_unused(f, p)
    pthread_mutex_unlock(&f.lock)


cdef bint value_exists(flash *f, const item_hdr *where) noexcept nogil:
    cdef bint found
    pthread_mutex_lock(&f.lock)
    found = _page_of(f, where) != NULL
    pthread_mutex_unlock(&f.lock)
    return found


cdef inline flash_wbuf *_wbuf_of(flash *f, const flash_page *p, uint32_t offset) noexcept nogil:
    """The buffer with this place of the page, unless it is on the device."""
    assert_held(&f.lock)
    cdef unsigned int i
    for i in range(<unsigned int>WBUFS):
        if f.wbufs[i].page == p and not f.wbufs[i].written and f.wbufs[i].offset <= offset \
                and offset - f.wbufs[i].offset < f.config.wbuf_size:
            return &f.wbufs[i]
    return NULL


cdef bint source_find(flash *f, const item_hdr *where, uint32_t length, flash_source *out) noexcept nogil:
    cdef flash_page *p
    pthread_mutex_lock(&f.lock)
    p = _page_of(f, where)
    if p != NULL and where.offset + <uint64_t>length > p.allocated:
        p = NULL
    out.page = p
    out.data = NULL
    out.wbuf = NULL
    if p != NULL:
        p.refs += 1
        out.wbuf = _wbuf_of(f, p, where.offset)
        if out.wbuf != NULL:
            out.wbuf.reads += 1
            out.data = out.wbuf.buf + (where.offset - out.wbuf.offset)
        f.stats.objects_read += 1
        f.stats.bytes_read += length
    pthread_mutex_unlock(&f.lock)
    return p != NULL


cdef void source_release(flash *f, const flash_source *source) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    if source.wbuf != NULL:
        source.wbuf.reads -= 1
        _free_wbuf(f, source.wbuf)
    source.page.refs -= 1
    _free_if_unused(f, source.page)
    pthread_mutex_unlock(&f.lock)


# ---- writing ---------------------------------------------------------------------------------------------------------

cdef void _free_wbuf(flash *f, flash_wbuf *wbuf) noexcept nogil:
    """Frees a written buffer without reads."""
    assert_held(&f.lock)
    cdef flash_page *p = wbuf.page
    if not wbuf.written or wbuf.reads != 0 or p == NULL:
        return
    wbuf.page = NULL
    wbuf.next = f.free_wbufs
    f.free_wbufs = wbuf
    p.buffers -= 1
    if p.buffers == 0 and p.allocated == f.config.page_size:
        p.active = False
        _free_if_unused(f, p)
    elif p.closed:
        _free_if_unused(f, p)
    pthread_cond_broadcast(&f.space_cond)


cdef flash_wbuf *wbuf_next(flash *f) noexcept nogil:
    cdef flash_wbuf *wbuf
    pthread_mutex_lock(&f.lock)
    while f.to_write == NULL and not f.stop_io:
        pthread_cond_wait(&f.wbuf_cond, &f.lock)
    wbuf = f.to_write
    if wbuf != NULL:
        f.to_write = wbuf.next
        if f.to_write == NULL:
            f.to_write_tail = &f.to_write
    pthread_mutex_unlock(&f.lock)
    return wbuf


cdef void wbuf_done(flash *f, flash_wbuf *wbuf, int error) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    wbuf.written = True
    if error:
        f.write_errors += 1
        # The page gives out no more space: space_take sees `closed`.
        if not wbuf.page.closed:
            _close_evicted(f, wbuf.page)
    store_release(&wbuf.kept.version, 0)
    _free_wbuf(f, wbuf)
    pthread_mutex_unlock(&f.lock)


# ---- pages as a whole ------------------------------------------------------------------------------------------------

cdef bint page_keep(flash *f, unsigned int number, uint32_t version) noexcept nogil:
    cdef flash_page *p = &f.pages[number]
    cdef bint kept
    pthread_mutex_lock(&f.lock)
    kept = p.version == version and not p.closed and not p.active
    if kept:
        p.refs += 1
        p.compacting = True
    pthread_mutex_unlock(&f.lock)
    return kept


cdef void page_release(flash *f, unsigned int number, bint dropped) noexcept nogil:
    cdef flash_page *p = &f.pages[number]
    pthread_mutex_lock(&f.lock)
    p.refs -= 1
    p.compacting = False
    if dropped:
        p.closed = True
        _forget(p)
    _free_if_unused(f, p)
    pthread_mutex_unlock(&f.lock)


cdef void page_evict(flash *f, unsigned int number, uint32_t version) noexcept nogil:
    cdef flash_page *p = &f.pages[number]
    pthread_mutex_lock(&f.lock)
    if p.version == version and not p.closed and not p.active:
        _close_evicted(f, p)
    pthread_mutex_unlock(&f.lock)


# ---- statistics ------------------------------------------------------------------------------------------------------

cdef void flash_get_stats(flash *f, flash_stats *out) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    out[0] = f.stats
    out.pages_free = f.pages_free
    out.pages_used = f.page_count - f.pages_free
    pthread_mutex_unlock(&f.lock)
    out.limit_maxbytes = f.page_count * f.config.page_size
    out.bytes_fragmented = out.pages_used * f.config.page_size - out.bytes_used
    out.memory_pressure = store_memory_pressure(f.store)
    out.io_queue = io_queued(f)


cdef void flash_reset_stats(flash *f) noexcept nogil:
    cdef flash_stats kept
    memset(&kept, 0, sizeof(kept))
    pthread_mutex_lock(&f.lock)
    kept.objects_used = f.stats.objects_used
    kept.bytes_used = f.stats.bytes_used
    f.stats = kept
    pthread_mutex_unlock(&f.lock)


cdef unsigned int flash_page_count(flash *f) noexcept nogil:
    return f.page_count


cdef void flash_get_page(flash *f, unsigned int number, page_stats *out) noexcept nogil:
    cdef flash_page *p = &f.pages[number]
    pthread_mutex_lock(&f.lock)
    out.version = p.version
    out.bytes = p.bytes
    out.bucket = p.bucket
    out.free_bucket = p.free_bucket
    out.active = p.active
    pthread_mutex_unlock(&f.lock)


cdef uint64_t flash_write_errors(flash *f) noexcept nogil:
    cdef uint64_t errors
    pthread_mutex_lock(&f.lock)
    errors = f.write_errors
    pthread_mutex_unlock(&f.lock)
    return errors

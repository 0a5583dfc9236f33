cdef enum:
    RETRY_NS = 10000000000       # after a refusal of space by the device, or an I/O error: the whole file
    REST_NS = 600000000000       # ... and the page with the error
    CLOSING_NS = 1000000000      # a closed page is expected to be free so soon
    WALK_PAGES = 1024            # pages looked at before other threads may have the lock
    WALK_PAUSE_NS = 10000        # more than a waiting thread needs to wake up


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
        p.offset = offsets[path]
        p.free_bucket = f.config.paths[path].bucket
        offsets[path] += f.config.page_size
        left[path] -= 1
        path = (path + 1) % f.config.npaths
    for i in range(f.config.npaths):
        f.files[i].resting_tail = &f.files[i].resting
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
    cdef flash_file *file = &f.files[p.path]
    if p.reserved:
        p.next = file.free
        file.free = p
        file.free_count += 1
    else:
        p.next = file.fresh
        file.fresh = p
        file.fresh_count += 1


cdef inline uint64_t _free_in(const flash_file *file) noexcept nogil:
    """The number of free pages in the file. A page without space on a full device is not free."""
    return file.free_count + (file.fresh_count if file.full_until == 0 else 0)


cdef inline void _push_resting(flash *f, flash_page *p) noexcept nogil:
    assert_held(&f.lock)
    cdef flash_file *file = &f.files[p.path]
    p.next = NULL
    p.rests_until = now_ns() + <int64_t>REST_NS
    file.resting_tail[0] = p
    file.resting_tail = &p.next
    f.stats.pages_resting += 1


cdef inline void _end_rests(flash *f, flash_file *file, int64_t now) noexcept nogil:
    """Returns pages to the free pages, the time after their error being over."""
    cdef flash_page *p = file.resting
    while p != NULL and now >= p.rests_until:
        file.resting = p.next
        if p.next == NULL:
            file.resting_tail = &file.resting
        p.failed = False
        f.stats.pages_resting -= 1
        _push_free(f, p)
        p = file.resting


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
    if p.failed:
        _push_resting(f, p)
    else:
        _push_free(f, p)
    pthread_cond_broadcast(&f.space_cond)


cdef void _close(flash *f, flash_page *p) noexcept nogil:
    """The page's values are gone."""
    assert_held(&f.lock)
    p.closed = True
    p.closed_at = now_ns()
    _forget(p)
    _free_if_unused(f, p)


cdef void _close_evicted(flash *f, flash_page *p) noexcept nogil:
    """The page's values are lost."""
    assert_held(&f.lock)
    f.stats.page_evictions += 1
    f.stats.objects_evicted += p.objects
    f.stats.bytes_evicted += p.bytes
    _close(f, p)


cdef void _close_failed(flash *f, flash_page *p) noexcept nogil:
    """The device has failed with the page: the page rests, and no page of the file is opened for a while. So a bad
    place, or a whole bad device, costs few values."""
    p.failed = True
    f.files[p.path].bad_until = now_ns() + <int64_t>RETRY_NS
    f.stats.io_errors += 1
    _close_evicted(f, p)


cdef inline bint page_is_coming(const flash_page *p, int64_t now) noexcept nogil:
    """Whether the page is about to be free, after its last reads. A read may hang: then the page is not counted on."""
    return p.closed and not p.failed and now - p.closed_at < <int64_t>CLOSING_NS


cdef flash_page *_pop_free_of(flash *f, unsigned int bucket) noexcept nogil:
    """A free page of the files with this bucket, from the file with most free pages. NULL: none."""
    assert_held(&f.lock)
    cdef flash_file *best = NULL
    cdef flash_file *file
    cdef flash_page *p
    cdef uint64_t count
    cdef uint64_t most = 0
    cdef int64_t now = now_ns()
    cdef unsigned int i
    for i in range(f.config.npaths):
        file = &f.files[i]
        if f.config.paths[i].bucket != bucket or now < file.bad_until:
            continue
        _end_rests(f, file, now)
        count = file.free_count + (file.fresh_count if now >= file.full_until else 0)
        if count > most:
            most = count
            best = file
    if best == NULL:
        return NULL
    p = best.free
    if p != NULL:
        best.free = p.next
        best.free_count -= 1
    else:
        p = best.fresh
        best.fresh = p.next
        best.fresh_count -= 1
    p.next = NULL
    return p


cdef flash_page *_pop_free(flash *f, unsigned int bucket) noexcept nogil:
    """A free page of the bucket, or of the pages for all buckets. NULL: none."""
    cdef flash_page *p = _pop_free_of(f, bucket)
    if p == NULL and bucket != BUCKET_DEFAULT:
        p = _pop_free_of(f, BUCKET_DEFAULT)
    return p


cdef void walk_pause(flash *f, unsigned int i) noexcept nogil:
    """At times lets other threads have the lock, in a walk over all pages. The thread sleeps a moment: else it would
    have the lock again before a woken thread."""
    cdef timespec pause = ns_timespec(WALK_PAUSE_NS)
    assert_held(&f.lock)
    if i % WALK_PAGES == WALK_PAGES - 1:
        pthread_mutex_unlock(&f.lock)
        nanosleep(&pause, NULL)
        pthread_mutex_lock(&f.lock)


cdef inline bint _is_droppable(const flash_page *p) noexcept nogil:
    return p.version != 0 and not (p.active or p.closed or p.compacting)


cdef flash_page *_find_oldest(flash *f, unsigned int bucket) noexcept nogil:
    """The page to be dropped for the bucket: the oldest page without reads under way, since it is free at once; or else
    the oldest of all. NULL: none, or another page will be free soon. Lets other threads have the lock in between."""
    assert_held(&f.lock)
    cdef flash_page *oldest = NULL
    cdef flash_page *p
    cdef uint32_t version = 0
    cdef bint in_use = False
    cdef int64_t now = now_ns()
    cdef unsigned int i
    for i in range(f.page_count):
        walk_pause(f, i)
        p = &f.pages[i]
        # A page of a failed file would not be opened.
        if (p.free_bucket != BUCKET_DEFAULT and p.free_bucket != bucket) or now < f.files[p.path].bad_until:
            continue
        if page_is_coming(p, now):
            return NULL
        if _is_droppable(p) and (oldest == NULL or (p.refs != 0) < in_use
                                 or ((p.refs != 0) == in_use and p.version < version)):
            oldest = p
            version = p.version
            in_use = p.refs != 0
    return oldest if oldest != NULL and oldest.version == version and _is_droppable(oldest) else NULL


cdef int _reserve(flash *f, flash_page *p) noexcept nogil:
    """Reserves space for a page taken from the free pages: no write of its values fails for lack of space then.
    Returns 0, or an errno: the device is full."""
    cdef int error
    if p.reserved:
        return 0
    error = allocate_file(p.fd, <int64_t>p.offset, <int64_t>f.config.page_size)
    # A file system without this call gives its space write by write.
    p.reserved = error == 0 or (error != ENOSPC and error != EDQUOT and error != EIO and error != EFBIG)
    return 0 if p.reserved else error


cdef flash_page *_take_page(flash *f, unsigned int bucket, bint may_drop) noexcept nogil:
    """Takes a page from the free pages. NULL: none is free now."""
    cdef flash_page *p
    cdef flash_page *oldest
    pthread_mutex_lock(&f.lock)
    p = _pop_free(f, bucket)
    if p == NULL and may_drop:
        oldest = _find_oldest(f, bucket)
        p = _pop_free(f, bucket)
        if p == NULL and oldest != NULL:
            _close_evicted(f, oldest)
            p = _pop_free(f, bucket)
    pthread_mutex_unlock(&f.lock)
    return p


cdef void _begin_use(flash *f, flash_page *p, unsigned int bucket) noexcept nogil:
    """Gives a page a version and a bucket. The next daemon learns of both before a byte is written."""
    assert_held(&f.lock)
    p.version = f.version
    f.version += 1
    if f.version == 0:
        f.version = 1
    p.bucket = bucket
    p.active = True
    f.active[bucket] = p
    f.stats.page_allocs += 1
    f.kept.head.next_version = f.version
    p.kept.bucket = <uint8_t>bucket
    p.kept.allocated = 0
    store_release(&p.kept.version, p.version)


cdef bint _open_page(flash *f, unsigned int bucket, bint may_drop) noexcept nogil:
    """Gives the bucket a new page. False: none is free now."""
    cdef flash_page *p
    cdef int error
    cdef bint fresh
    while True:
        p = _take_page(f, bucket, may_drop)
        if p == NULL:
            return False
        # Nobody else knows the page now.
        fresh = not p.reserved
        error = _reserve(f, p)
        pthread_mutex_lock(&f.lock)
        if fresh:
            # A refusal is the whole file's: its other pages are not tried one by one.
            f.files[p.path].full_until = now_ns() + <int64_t>RETRY_NS if error else 0
        if error or f.active[bucket] != NULL:
            # Without an error, another thread was faster.
            _push_free(f, p)
        else:
            _begin_use(f, p, bucket)
        pthread_mutex_unlock(&f.lock)
        if not error:
            return True
        complain(f, page_file(f, p), b"has no space on its device", error)


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


cdef void do_space_wait(flash *f, unsigned int usec) noexcept nogil:
    assert_held(&f.lock)
    cdef timespec until = ns_timespec(now_ns() + <int64_t>usec * 1000)
    if not f.stop_writing:
        pthread_cond_timedwait(&f.space_cond, &f.lock, &until)


cdef void space_wait(flash *f, unsigned int usec) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    do_space_wait(f, usec)
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


cdef void _open_source(flash *f, const item_hdr *where, flash_source *source) noexcept nogil:
    assert_held(&f.lock)
    source.wbuf = _wbuf_of(f, source.page, where.offset)
    if source.wbuf != NULL:
        source.wbuf.reads += 1
        source.data = source.wbuf.buf + (where.offset - source.wbuf.offset)


cdef void _close_source(flash *f, flash_source *source) noexcept nogil:
    assert_held(&f.lock)
    if source.wbuf != NULL:
        source.wbuf.reads -= 1
        _free_wbuf(f, source.wbuf)
    source.wbuf = NULL
    source.data = NULL


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
        _open_source(f, where, out)
        f.stats.objects_read += 1
        f.stats.bytes_read += length
    pthread_mutex_unlock(&f.lock)
    return p != NULL


cdef void source_close(flash *f, flash_source *source) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    _close_source(f, source)
    pthread_mutex_unlock(&f.lock)


cdef void source_open(flash *f, const item_hdr *where, flash_source *source) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    _open_source(f, where, source)
    pthread_mutex_unlock(&f.lock)


cdef void source_release(flash *f, flash_source *source) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    _close_source(f, source)
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
    while True:
        while f.to_write == NULL and not f.stop_io:
            pthread_cond_wait(&f.wbuf_cond, &f.lock)
        if f.stop_io:
            # With a memory file the next daemon writes the rest (restart.pyx).
            wbuf = NULL
            break
        wbuf = f.to_write
        f.to_write = wbuf.next
        if f.to_write == NULL:
            f.to_write_tail = &f.to_write
        if not wbuf.page.closed:
            break
        wbuf.written = True
        _free_wbuf(f, wbuf)
    pthread_mutex_unlock(&f.lock)
    return wbuf


cdef void wbuf_done(flash *f, flash_wbuf *wbuf, int error) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    wbuf.written = True
    # The page gives out no more space: space_take sees `closed`.
    if error and not wbuf.page.closed:
        _close_failed(f, wbuf.page)
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
        _close(f, p)
    else:
        _free_if_unused(f, p)
    pthread_mutex_unlock(&f.lock)


cdef void page_evict(flash *f, unsigned int number, uint32_t version, bint failed) noexcept nogil:
    cdef flash_page *p = &f.pages[number]
    pthread_mutex_lock(&f.lock)
    if p.version == version and not p.closed and not p.active:
        if failed:
            _close_failed(f, p)
        else:
            _close_evicted(f, p)
    pthread_mutex_unlock(&f.lock)


cdef const char *page_file(flash *f, const flash_page *p) noexcept nogil:
    return f.config.paths[p.path].file


# ---- statistics ------------------------------------------------------------------------------------------------------

cdef void flash_get_stats(flash *f, flash_stats *out) noexcept nogil:
    cdef unsigned int i
    pthread_mutex_lock(&f.lock)
    out[0] = f.stats
    for i in range(f.config.npaths):
        out.pages_free += _free_in(&f.files[i])
    pthread_mutex_unlock(&f.lock)
    out.pages_used = f.page_count - out.pages_free
    out.limit_maxbytes = f.page_count * f.config.page_size
    out.bytes_fragmented = out.pages_used * f.config.page_size - out.bytes_used
    out.memory_pressure = store_memory_pressure(f.store)
    out.io_queue = io_queued(f)


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

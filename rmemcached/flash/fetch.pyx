cdef enum:
    AT_ONCE_MOST = 64 * 1024     # bytes of a value that a worker reads by itself
    FIND_TRIES = 3               # lookups of a place that a compaction may change meanwhile


cdef struct flash_get:
    resp_wait wait               # first
    flash_request request
    flash *f                     # constant, as are the next four
    item *header                 # with a reference
    item_hdr where
    flash_source source
    item *value                  # with a reference; NULL: given away
    bint whole                   # the pool's, then the worker's: the value was read
    bint wrong                   # ... but has not its checksum


cdef inline flash_get *_get_of(flash_request *r) noexcept nogil:
    return <flash_get *>(<char *>r - sizeof(resp_wait))


# ---- the pool's thread -----------------------------------------------------------------------------------------------

cdef bint _copy_value(flash_get *g, const char *data) noexcept nogil:
    """Takes the value from a write buffer. Its bytes were never away, so the key alone is compared."""
    cdef iovec iov[RECORD_IOV]
    cdef size_t offset = 0
    cdef int i, n
    cdef const flash_record *record = <const flash_record *>data
    if record.nkey != g.value.nkey or record.nbytes != g.value.nbytes:
        return False
    data += sizeof(flash_record) + record.nkey
    while offset < <size_t>g.value.nbytes:
        n = item_iov(g.value, offset, <size_t>g.value.nbytes - offset, iov, RECORD_IOV)
        for i in range(n):
            memcpy(iov[i].iov_base, data + offset, iov[i].iov_len)
            offset += iov[i].iov_len
    return True


cdef bint _read_value(flash_get *g, char *head) noexcept nogil:
    """Reads the record: head and key into `head`, the data into the item."""
    cdef iovec iov[RECORD_IOV]
    cdef uint64_t place = g.source.page.offset + g.where.offset
    cdef size_t size = sizeof(flash_record) + g.value.nkey
    cdef size_t nbytes = <size_t>g.value.nbytes
    cdef size_t offset = 0
    cdef size_t length
    cdef int i, n
    iov[0].iov_base = head
    iov[0].iov_len = size
    n = 1
    while True:
        length = 0
        i = n
        n += item_iov(g.value, offset, nbytes - offset, iov + n, <int>RECORD_IOV - n)
        while i < n:
            length += iov[i].iov_len
            i += 1
        if not read_all(g.source.page.fd, iov, n, place):
            return False
        place += size + length
        size = 0
        offset += length
        if offset == nbytes:
            return True
        n = 0


cdef void _run_get(flash_request *r) noexcept nogil:
    """flash_request.run"""
    cdef flash_get *g = _get_of(r)
    cdef char head[RECORD_HEAD]
    if g.source.data != NULL:
        g.whole = _copy_value(g, g.source.data)
        g.wrong = not g.whole
    else:
        g.whole = _read_value(g, head)
        if g.whole and not record_fits(head, g.value, &g.where):
            g.whole = False
            g.wrong = True
    source_release(g.f, &g.source)
    g.wait.thread.post(g.wait.thread, &g.wait)


# ---- the worker ------------------------------------------------------------------------------------------------------

cdef void _recache(flash_get *g) noexcept nogil:
    """Puts one of many popular values back into memory."""
    cdef uint64_t rate = relaxed_load(&g.f.tuning.recache_rate)
    if rate and header_is_hot(g.f.store, g.header) and fetch_add(&g.f.recache_counter, 1) % rate == 0 \
            and header_recache(g.f.store, g.header, g.value):
        counter_add(&g.wait.thread.stats.recache_from_extstore, 1)


cdef void _get_complete(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.complete"""
    cdef flash_get *g = <flash_get *>wait
    if not g.whole:
        counter_add(&wait.thread.stats.miss_from_extstore, 1)
        counter_add(&wait.thread.stats.badcrc_from_extstore, g.wrong)
        header_drop(g.f.store, g.header, &g.where)
        if wait.resp != NULL:
            resp_missed(wait.c, wait.resp)
        return
    if wait.resp == NULL:
        return
    _recache(g)
    wait.resp.item = g.value
    g.value = NULL


cdef void _get_abandon(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.abandon"""
    counter_add(&wait.thread.stats.get_aborted_extstore, 1)


cdef void _get_end(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.end"""
    cdef flash_get *g = <flash_get *>wait
    item_remove(g.f.store, g.header)
    if g.value != NULL:
        item_remove(g.f.store, g.value)
    free(g)


cdef resp_wait_calls get_calls = resp_wait_calls(complete=_get_complete, abandon=_get_abandon, end=_get_end)


cdef bint _read_at_once(flash_get *g) noexcept nogil:
    """Reads a short value without a wait. False: the value is long, not in memory, or faulty: the pool reads it."""
    cdef char head[RECORD_HEAD]
    cdef iovec iov[2]
    cdef ssize_t size
    if g.value.nbytes > AT_ONCE_MOST or ITEM_has(g.value, ITEM_CHUNKED):
        return False
    if g.source.data != NULL:
        return _copy_value(g, g.source.data)
    iov[0].iov_base = head
    iov[0].iov_len = sizeof(flash_record) + g.value.nkey
    item_iov(g.value, 0, <size_t>g.value.nbytes, &iov[1], 1)
    size = <ssize_t>(iov[0].iov_len + iov[1].iov_len)
    return preadv2(g.source.page.fd, iov, 2, <int64_t>(g.source.page.offset + g.where.offset), RWF_NOWAIT) == size \
        and record_fits(head, g.value, &g.where)


cdef void _give_at_once(flash_get *g, mc_resp *resp) noexcept nogil:
    source_release(g.f, &g.source)
    _recache(g)
    resp.item = g.value
    g.value = NULL
    _get_end(&g.wait)


cdef bint _find_source(flash *f, flash_get *g) noexcept nogil:
    """Keeps the value's page. False: the value is gone."""
    cdef uint32_t length = record_length(g.header)
    cdef int _try
    g.where = ITEM_get_hdr(g.header)
    for _try in range(FIND_TRIES):
        if source_find(f, &g.where, length, &g.source):
            return True
        # Perhaps a compaction has moved the value since the lookup.
        if not header_place(f.store, g.header, &g.where):
            break
    return source_find(f, &g.where, length, &g.source)


cdef external_result flash_fetch(void *arg, conn *c, mc_resp *resp, item *it) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef flash_get *g = <flash_get *>calloc(1, sizeof(flash_get))
    cdef external_result result = EXTERNAL_NO_MEMORY
    if g == NULL:
        item_remove(f.store, it)
        return result
    g.wait.calls = &get_calls
    g.wait.thread = c.thread
    g.f = f
    g.header = it
    g.value = header_buffer(f.store, it)
    if g.value != NULL:
        result = EXTERNAL_GONE
        if _find_source(f, g):
            if _read_at_once(g):
                _give_at_once(g, resp)
                return EXTERNAL_THERE
            g.wait.c = c
            g.wait.resp = resp
            resp.wait = &g.wait
            g.request.run = _run_get
            io_submit(f, &g.request)
            return EXTERNAL_WAITS
        counter_add(&c.thread.stats.miss_from_extstore, 1)
        header_drop(f.store, it, &g.where)
    _get_end(&g.wait)
    return result

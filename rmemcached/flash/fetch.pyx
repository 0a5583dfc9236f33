cdef enum:
    AT_ONCE_MOST = 64 * 1024     # bytes of a value that a worker reads by itself


cdef struct flash_get:           # on the worker's stack, and malloc'd if the reply has to wait
    resp_wait wait               # first
    flash_request request
    flash *f                     # constant
    item *header                 # constant after _find_source, with a reference
    # the worker's until the submission, then the reader's, then the worker's again
    item_hdr where               # the value's place
    flash_source source          # keeps the page
    item *value                  # with a reference; NULL: not there yet, or given away
    bint no_memory               # for the value
    bint whole                   # the value was read
    bint wrong                   # ... but has not its checksum
    char head[RECORD_HEAD]       # head and key, as read
    uint64_t abandoned           # atomic: the worker has released the reply


cdef inline flash_get *_get_of(flash_request *r) noexcept nogil:
    return <flash_get *>(<char *>r - sizeof(resp_wait))


# ---- the reader's thread ---------------------------------------------------------------------------------------------

cdef bint _copy_value(flash_get *g, const char *data) noexcept nogil:
    """Takes the value from a write buffer. Its bytes were never away: so the checksum is not compared, but the key."""
    cdef iovec iov[RECORD_IOV]
    cdef size_t offset = 0
    cdef int i, n
    if not record_is_of(data, g.value):
        return False
    data += sizeof(flash_record) + g.value.nkey
    while offset < <size_t>g.value.nbytes:
        n = item_iov(g.value, offset, <size_t>g.value.nbytes - offset, iov, RECORD_IOV)
        for i in range(n):
            memcpy(iov[i].iov_base, data + offset, iov[i].iov_len)
            offset += iov[i].iov_len
    return True


cdef bint _get_begin(flash_request *r) noexcept nogil:
    """flash_request_calls.begin"""
    cdef flash_get *g = _get_of(r)
    if relaxed_load(&g.abandoned):
        return False
    g.value = header_buffer(g.f.store, g.header)
    if g.value == NULL:
        g.no_memory = True
        return False
    source_open(g.f, &g.where, &g.source)
    if g.source.data == NULL:
        return True
    g.whole = _copy_value(g, g.source.data)
    g.wrong = not g.whole
    return False


cdef int _get_extents(flash_request *r, iovec *iov, int most) noexcept nogil:
    """flash_request_calls.extents"""
    cdef flash_get *g = _get_of(r)
    cdef uint64_t size = sizeof(flash_record) + g.value.nkey
    cdef uint64_t done = size + <uint64_t>g.value.nbytes - r.left
    cdef int n = 0
    if done < size:
        iov[0].iov_base = g.head + done
        iov[0].iov_len = size - done
        done = size
        n = 1
    done -= size
    return n + item_iov(g.value, done, <size_t>g.value.nbytes - done, iov + n, most - n)


cdef void _get_end(flash_request *r) noexcept nogil:
    """flash_request_calls.end"""
    cdef flash_get *g = _get_of(r)
    if r.left == 0:
        g.whole = record_fits(g.head, g.value, &g.where)
        g.wrong = not g.whole
    source_release(g.f, &g.source)
    g.wait.thread.post(g.wait.thread, &g.wait)


cdef flash_request_calls get_reads = flash_request_calls(begin=_get_begin, extents=_get_extents, end=_get_end)


# ---- the worker ------------------------------------------------------------------------------------------------------

cdef void _recache(flash_get *g) noexcept nogil:
    """Puts one of many popular values back into memory."""
    cdef uint64_t rate = relaxed_load(&g.f.tuning.recache_rate)
    if rate and header_is_hot(g.f.store, g.header) and fetch_add(&g.f.recache_counter, 1) % rate == 0 \
            and header_recache(g.f.store, g.header, g.value):
        counter_add(&g.wait.thread.stats.recache_from_extstore, 1)


cdef void _fetch_complete(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.complete"""
    cdef flash_get *g = <flash_get *>wait
    if wait.resp == NULL:
        return
    if g.whole:
        _recache(g)
        wait.resp.item = g.value
        g.value = NULL
        return
    resp_missed(wait.c, wait.resp)
    if g.no_memory:
        counter_add(&wait.thread.stats.get_oom_extstore, 1)
        return
    counter_add(&wait.thread.stats.miss_from_extstore, 1)
    counter_add(&wait.thread.stats.badcrc_from_extstore, g.wrong)
    header_drop(g.f.store, g.header, &g.where)


cdef void _fetch_abandon(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.abandon. A queued read does not begin then. A read under way ends, and gives its memory back."""
    cdef flash_get *g = <flash_get *>wait
    relaxed_store(&g.abandoned, 1)
    counter_add(&wait.thread.stats.get_aborted_extstore, 1)


cdef void _end_get(flash_get *g) noexcept nogil:
    item_remove(g.f.store, g.header)
    if g.value != NULL:
        item_remove(g.f.store, g.value)


cdef void _fetch_end(resp_wait *wait) noexcept nogil:
    """resp_wait_calls.end"""
    _end_get(<flash_get *>wait)
    free(wait)


cdef resp_wait_calls get_calls = resp_wait_calls(complete=_fetch_complete, abandon=_fetch_abandon, end=_fetch_end)


cdef bint _read_at_once(flash_get *g) noexcept nogil:
    """Reads a short value into g.value, without a wait. False: the value is not in memory, or faulty, and a reader has
    to see to it."""
    cdef iovec iov[2]
    cdef ssize_t size
    if g.source.data != NULL:
        return _copy_value(g, g.source.data)
    iov[0].iov_base = g.head
    iov[0].iov_len = sizeof(flash_record) + g.value.nkey
    item_iov(g.value, 0, <size_t>g.value.nbytes, &iov[1], 1)
    size = <ssize_t>(iov[0].iov_len + iov[1].iov_len)
    return preadv2(g.source.page.fd, iov, 2, <int64_t>(g.source.page.offset + g.where.offset), RWF_NOWAIT) == size \
        and record_fits(g.head, g.value, &g.where)


cdef external_result _give_at_once(flash_get *g, mc_resp *resp) noexcept nogil:
    """Gives a short value to the reply, if the value can be read without a wait. EXTERNAL_WAITS: it cannot."""
    # A lack of memory is known here: later the reply could only become a miss.
    g.value = header_buffer(g.f.store, g.header)
    if g.value == NULL:
        return EXTERNAL_NO_MEMORY
    # A chained item is long.
    if g.header.nbytes <= AT_ONCE_MOST and not ITEM_has(g.value, ITEM_CHUNKED) and _read_at_once(g):
        _recache(g)
        resp.item = g.value
        g.value = NULL
        return EXTERNAL_THERE
    # In the queue a read has no memory.
    item_remove(g.f.store, g.value)
    g.value = NULL
    return EXTERNAL_WAITS


cdef bint _submit(const flash_get *at_once, conn *c, mc_resp *resp) noexcept nogil:
    """Has a reader read the value. False: out of memory."""
    cdef flash_get *g = <flash_get *>malloc(sizeof(flash_get))
    if g == NULL:
        return False
    g[0] = at_once[0]
    g.wait.c = c
    g.wait.resp = resp
    resp.wait = &g.wait
    # A queued read keeps no write buffer from its next use.
    source_close(g.f, &g.source)
    g.request.calls = &get_reads
    g.request.fd = g.source.page.fd
    g.request.place = g.source.page.offset + g.where.offset
    g.request.bytes = g.request.left = record_length(g.header)
    io_submit(g.f, &g.request)
    return True


cdef inline bint _find_present(flash_get *g) noexcept nogil:
    g.where = ITEM_get_hdr(g.header)
    return source_find(g.f, &g.where, record_length(g.header), &g.source)


cdef bint _find_source(flash_get *g) noexcept nogil:
    """Keeps the value's page, or finds the value in memory (g.value). False: the value is gone."""
    # A compaction changes the place with the item lock held, and has the page dropped afterwards.
    cdef uint32_t hv = header_lock(g.f.store, g.header)
    cdef bint found = _find_present(g)
    # A header that has left the table is no reason for a miss if the key is there.
    cdef item *present = NULL if found else do_header_successor(g.f.store, g.header, hv)
    if present != NULL and ITEM_has(present, ITEM_HDR):
        do_item_remove(g.f.store, g.header)
        g.header = present
        found = _find_present(g)
    elif present != NULL:
        g.value = present
        found = True
    item_unlock(g.f.store, hv)
    return found


cdef external_result flash_fetch(void *arg, conn *c, mc_resp *resp, item *it) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef flash_get g
    cdef external_result result = EXTERNAL_GONE
    memset(&g, 0, sizeof(g))
    g.wait.calls = &get_calls
    g.wait.thread = c.thread
    g.f = f
    g.header = it
    if not _find_source(&g):
        counter_add(&c.thread.stats.miss_from_extstore, 1)
        header_drop(f.store, g.header, &g.where)
    elif g.value != NULL:
        resp.item = g.value
        g.value = NULL
        result = EXTERNAL_THERE
    else:
        result = _give_at_once(&g, resp)
        if result == EXTERNAL_WAITS:
            if _submit(&g, c, resp):
                return result
            result = EXTERNAL_NO_MEMORY
        source_release(f, &g.source)
    _end_get(&g)
    return result

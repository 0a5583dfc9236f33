cdef struct data_cursor:        # a place in an item's data
    item_chunk *chunk   # NULL: the item is not chained
    char *data
    size_t left         # bytes from data on to the end of this run


cdef inline void _cursor_set(data_cursor *c, item *it, size_t offset) noexcept nogil:
    """Points c at a data byte; offset is at most nbytes."""
    cdef item_chunk *ch
    assert_that(not ITEM_has(it, ITEM_HDR))
    if ITEM_has(it, ITEM_CHUNKED):
        ch = ITEM_schunk(it)
        while offset >= <size_t>ch.used and ch.next != NULL:
            offset -= ch.used
            ch = ch.next
        c.chunk = ch
        c.data = <char *>(ch + 1) + offset
        c.left = ch.used - offset
    else:
        c.chunk = NULL
        c.data = ITEM_data(it) + offset
        c.left = it.nbytes - offset


cdef inline void _cursor_advance(data_cursor *c, size_t n) noexcept nogil:
    """Moves on by n bytes of the present run."""
    c.data += n
    c.left -= n
    if c.left == 0 and c.chunk != NULL and c.chunk.next != NULL:
        c.chunk = c.chunk.next
        c.data = <char *>(c.chunk + 1)
        c.left = c.chunk.used


cdef int item_iov(item *it, size_t offset, size_t length, iovec *iov, int max_iov) noexcept nogil:
    cdef data_cursor c
    cdef size_t n
    cdef int count = 0
    cdef size_t nbytes = it.nbytes
    if offset >= nbytes:
        return 0
    if length > nbytes - offset:
        length = nbytes - offset
    _cursor_set(&c, it, offset)
    while length > 0 and count < max_iov:
        n = length if length < c.left else c.left
        iov[count].iov_base = c.data
        iov[count].iov_len = n
        count += 1
        length -= n
        _cursor_advance(&c, n)
    return count


cdef void data_write(item *it, size_t offset, const char *src, size_t length) noexcept nogil:
    cdef data_cursor c
    cdef size_t n
    _cursor_set(&c, it, offset)
    while length > 0:
        n = length if length < c.left else c.left
        memcpy(c.data, src, n)
        src += n
        length -= n
        _cursor_advance(&c, n)


cdef void data_copy(item *dst, size_t offset, item *src, size_t length) noexcept nogil:
    cdef data_cursor c
    cdef size_t n
    _cursor_set(&c, src, 0)
    while length > 0:
        n = length if length < c.left else c.left
        data_write(dst, offset, c.data, n)
        offset += n
        length -= n
        _cursor_advance(&c, n)

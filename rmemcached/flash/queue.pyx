cdef enum:
    READ_BYTES_MOST = 16 * 1024 * 1024
    READ_SHARE = 8               # ... and this part of the store's memory: bytes of values under way


cdef void queue_init(flash *f) noexcept nogil:
    f.io.most = min(<uint64_t>READ_BYTES_MOST, store_get_config(f.store).maxbytes // READ_SHARE)


cdef void io_submit(flash *f, flash_request *r) noexcept nogil:
    cdef bint wakes
    r.next = NULL
    pthread_mutex_lock(&f.io.lock)
    f.io.tail[0] = r
    f.io.tail = &r.next
    f.io.depth += 1
    wakes = f.io.asleep
    f.io.asleep = False
    pthread_mutex_unlock(&f.io.lock)
    if wakes:
        eventfd_signal(f.ring.wake_fd)
    elif f.ring.fd < 0:
        pthread_cond_signal(&f.io.cond)


cdef uint64_t io_queued(flash *f) noexcept nogil:
    cdef uint64_t depth
    pthread_mutex_lock(&f.io.lock)
    depth = f.io.depth
    pthread_mutex_unlock(&f.io.lock)
    return depth


cdef inline bint _may_begin(const io_queue *q) noexcept nogil:
    """Whether the oldest request is within the bound. A request above it is alone."""
    return q.head != NULL and (q.bytes == 0 or q.bytes + q.head.bytes <= q.most)


cdef flash_request *_pop(io_queue *q) noexcept nogil:
    cdef flash_request *r = q.head
    q.head = r.next
    if q.head == NULL:
        q.tail = &q.head
    r.next = NULL
    q.bytes += r.bytes
    q.depth -= 1
    return r


cdef flash_request *io_take(flash *f, uint64_t done, unsigned int most, bint waits) noexcept nogil:
    cdef io_queue *q = &f.io
    cdef flash_request *first = NULL
    cdef flash_request **last = &first
    cdef unsigned int n = 0
    pthread_mutex_lock(&q.lock)
    q.bytes -= done
    while waits and not _may_begin(q) and not relaxed_load(&f.stop_io):
        pthread_cond_wait(&q.cond, &q.lock)
    while n < most and _may_begin(q) and not relaxed_load(&f.stop_io):
        last[0] = _pop(q)
        last = &last[0].next
        n += 1
    if not waits:
        q.asleep = n == 0
    elif _may_begin(q):
        # The bytes done may have made room for another thread's request: nobody else tells the thread.
        pthread_cond_signal(&q.cond)
    pthread_mutex_unlock(&q.lock)
    return first


cdef void io_give_up(flash *f) noexcept nogil:
    cdef flash_request *r
    while f.io.head != NULL:
        r = _pop(&f.io)
        r.calls.end(r)


cdef bint request_got(flash_request *r, int64_t n) noexcept nogil:
    if n == -EINTR or n == -EAGAIN:
        return True
    if n <= 0:
        return False
    r.place += <uint64_t>n
    r.left -= <uint64_t>n
    return True

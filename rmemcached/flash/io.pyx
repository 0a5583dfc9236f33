cdef enum:
    COMPLAIN_NS = 10000000000


cdef void io_init(flash *f) noexcept nogil:
    ring_init(&f.ring)
    pthread_mutex_init(&f.io.lock, NULL)
    flash_cond_init(&f.io.cond)
    f.io.tail = &f.io.head


cdef void io_destroy(flash *f) noexcept nogil:
    free(f.io_threads)
    ring_close(&f.ring)
    pthread_cond_destroy(&f.io.cond)
    pthread_mutex_destroy(&f.io.lock)


cdef void flash_cond_init(pthread_cond_t *cond) noexcept nogil:
    cdef pthread_condattr_t clock
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(cond, &clock)
    pthread_condattr_destroy(&clock)


cdef void complain(flash *f, const char *file, const char *what, int error) noexcept nogil:
    cdef int64_t now = now_ns()
    cdef bint due
    pthread_mutex_lock(&f.lock)
    due = f.complained == 0 or now - f.complained >= <int64_t>COMPLAIN_NS
    if due:
        f.complained = now
    pthread_mutex_unlock(&f.lock)
    if due:
        fprintf(stderr, b"ext_path: %s %s: %s\n", file, what, strerror(error))


# ---- reads -----------------------------------------------------------------------------------------------------------

cdef ssize_t read_part(int fd, char *data, size_t length, uint64_t offset) noexcept nogil:
    cdef size_t done = 0
    cdef ssize_t n
    while done < length:
        n = pread(fd, data + done, length - done, <int64_t>(offset + done))
        if n < 0 and errno == EINTR:
            continue
        if n < 0:
            return -1
        if n == 0:
            break
        done += <size_t>n
    return <ssize_t>done


cdef void _run(flash *f, flash_request *r) noexcept nogil:
    """Does a request, or gives it up at the end of the daemon. The request may be gone afterwards."""
    cdef iovec iov[RECORD_IOV]
    cdef bint goes_on = not relaxed_load(&f.stop_io) and r.calls.begin(r)
    cdef ssize_t n
    while goes_on and r.left:
        n = preadv(r.fd, iov, r.calls.extents(r, iov, RECORD_IOV), <int64_t>r.place)
        goes_on = request_got(r, n if n >= 0 else -errno)
    r.calls.end(r)


cdef void *_read_thread(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef flash_request *r = io_take(f, 0, f.config.io_depth, True)
    cdef flash_request *following
    cdef uint64_t done
    while r != NULL:
        done = 0
        while r != NULL:
            following = r.next
            done += r.bytes
            _run(f, r)
            r = following
        r = io_take(f, done, f.config.io_depth, True)
    return NULL


# ---- writes ----------------------------------------------------------------------------------------------------------

cdef int write_wbuf(flash *f, flash_wbuf *wbuf) noexcept nogil:
    cdef flash_page *p = wbuf.page
    cdef size_t length = min(wbuf.used + sizeof(flash_record), f.config.wbuf_size)
    cdef size_t done = label_room(f, p, wbuf.offset)
    cdef ssize_t n
    # A record without length marks the end for the compactor.
    memset(wbuf.buf + wbuf.used, 0, length - wbuf.used)
    while done < length:
        n = pwrite(p.fd, wbuf.buf + done, length - done, <int64_t>(p.offset + wbuf.offset + done))
        if n < 0:
            if errno == EINTR:
                continue
            return errno
        if n == 0:
            return ENOSPC
        done += <size_t>n
    return 0


cdef void *_write_thread(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef flash_wbuf *wbuf = wbuf_next(f)
    cdef int error
    while wbuf != NULL:
        error = write_wbuf(f, wbuf)
        if error:
            complain(f, page_file(f, wbuf.page), b"cannot be written; a page of values is lost", error)
        wbuf_done(f, wbuf, error)
        wbuf = wbuf_next(f)
    return NULL


# ---- beginning and end -----------------------------------------------------------------------------------------------

cdef bint io_open(flash *f, char *why, size_t size) noexcept nogil:
    cdef int error = ring_open(&f.ring) if f.config.io != IO_THREADS else 0
    if f.config.verbose:
        if f.ring.fd >= 0:
            fprintf(stderr, b"ext_io: values are read by io_uring\n")
        elif error:
            fprintf(stderr, b"ext_io: values are read by threads; io_uring: %s\n", strerror(error))
        else:
            fprintf(stderr, b"ext_io: values are read by threads\n")
    if error and f.config.io == IO_URING:
        snprintf(why, size, b"ext_io=uring: the kernel refuses io_uring: %s. Choose ext_io=auto or threads",
                 strerror(error))
        return False
    return True


cdef bint io_start(flash *f) noexcept nogil:
    queue_init(f)
    f.io_threads = <pthread_t *>calloc(f.config.io_threads, sizeof(pthread_t))
    if f.io_threads == NULL:
        return False
    while f.io_started < (1 if f.ring.fd >= 0 else f.config.io_threads):
        if start_quiet_thread(&f.io_threads[f.io_started], b"mc-ext-io",
                              ring_thread if f.ring.fd >= 0 else _read_thread, f) != 0:
            return False
        f.io_started += 1
    f.write_started = start_quiet_thread(&f.write_thread, b"mc-ext-bgio", _write_thread, f) == 0
    return f.write_started


cdef void io_stop(flash *f) noexcept nogil:
    pthread_mutex_lock(&f.io.lock)
    pthread_mutex_lock(&f.lock)
    relaxed_store(&f.stop_io, 1)
    pthread_cond_broadcast(&f.wbuf_cond)
    pthread_mutex_unlock(&f.lock)
    pthread_cond_broadcast(&f.io.cond)
    pthread_mutex_unlock(&f.io.lock)
    if f.ring.fd >= 0:
        eventfd_signal(f.ring.wake_fd)
    while f.io_started:
        f.io_started -= 1
        pthread_join(f.io_threads[f.io_started], NULL)
    io_give_up(f)
    if f.write_started:
        pthread_join(f.write_thread, NULL)
        f.write_started = False

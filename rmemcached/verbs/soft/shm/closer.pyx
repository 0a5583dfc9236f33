# soft_shm: threads for closing the descriptors and mappings of peers; see closer.pxd.

cdef enum:
    CLOSER_SMALL = 1 << 20           # octets of a file in memory that the caller's thread frees itself
    CLOSER_PIECE = 512 << 10         # octets of pages given up at a time

cdef struct shm_closing:
    shm_closing *next
    int fd                           # -1: memory
    void *base
    size_t length
    shm_context *shared              # for memory


cdef void window_unmap(shm_context *shared, void *base, size_t length) noexcept nogil:
    """Unmaps a peer's region and takes it off the context's usage. In a closer's thread, or the caller's."""
    cdef size_t at = 0
    # madvise and munmap block other threads that map memory. So the pages go first, CLOSER_PIECE at a time; munmap
    # without pages is short.
    while at < length:
        madvise(<uint8_t *> base + at, min(length - at, <size_t> CLOSER_PIECE), MADV_DONTNEED)
        at += CLOSER_PIECE
    munmap(base, length)
    fetch_sub(&shared.usage.regions, 1)
    fetch_sub(&shared.usage.bytes, length)


cdef void closer_free(shm_closer *closer) noexcept nogil:
    cdef shm_closing *piece = closer.unused
    while piece != NULL:
        closer.unused = piece.next
        free(piece)
        piece = closer.unused
    pthread_mutex_destroy(&closer.lock)
    pthread_cond_destroy(&closer.filled)
    free(closer)


cdef void hold_watch(const shm_hold *hold, uint32_t events) noexcept nogil:
    # Sets the events for which the domains' epoll sets watch the stream's socket.
    cdef epoll_event event
    cdef int i
    event.events = events
    for i in range(hold.qp.ndomains):
        event.data.u64 = domain_event(hold.qp.domains[i], hold.qp, 0)
        epoll_ctl(hold.qp.domains[i].epoll_fd, EPOLL_CTL_MOD, <int> relaxed_load(&hold.qp.stream.fd), &event)


cdef void hold_end(shm_closer *closer, shm_hold *hold) noexcept nogil:
    # Takes the stream off the closer's list of held streams.
    assert_held(&closer.lock)
    if hold.prev != NULL:
        hold.prev.next = hold.next
    else:
        closer.held = hold.next
    if hold.next != NULL:
        hold.next.prev = hold.prev
    store_release(&hold.held, 0)


cdef int64_t closer_resume(shm_closer *closer) noexcept nogil:
    """Resumes the streams whose hold has ended. Returns the time of the next look at a stream; 0: nothing to look
    at before the next piece is closed."""
    cdef shm_hold *hold = closer.held
    cdef shm_hold *following
    cdef int64_t first = 0
    cdef int64_t now
    assert_held(&closer.lock)
    if hold == NULL:
        return 0
    now = now_ns()
    while hold != NULL:
        following = hold.next
        if now >= hold.until and pieces_done(closer, shm_of(hold.qp)):
            # Records in the socket wake the thread waiting there. End the hold last: the queue pair may be freed then.
            hold_watch(hold, EPOLLIN)
            hold_end(closer, hold)
        elif hold.until and (first == 0 or hold.until < first):
            first = hold.until
        hold = following
    return first


cdef void closer_wait(shm_closer *closer) noexcept nogil:
    """Waits until there is a piece or the thread is to end. Meanwhile resumes streams whose hold has ended."""
    cdef int64_t again = closer_resume(closer)
    cdef timespec due
    assert_held(&closer.lock)
    while closer.first == NULL and not closer.stopping:
        if again:
            due = ns_timespec(again)
            pthread_cond_timedwait(&closer.filled, &closer.lock, &due)
        else:
            pthread_cond_wait(&closer.filled, &closer.lock)
        again = closer_resume(closer)


cdef void *closer_main(void *argument) noexcept nogil:
    cdef shm_closer *closer = <shm_closer *> argument
    cdef shm_closing *piece = NULL
    while True:
        pthread_mutex_lock(&closer.lock)
        if piece != NULL:
            piece.next = closer.unused
            closer.unused = piece
            if piece.fd >= 0:
                fetch_sub(&closer.waiting, 1)
            store_release(&closer.done, closer.done + 1)
        relaxed_store(&closer.since, 0)
        closer_wait(closer)
        piece = closer.first
        if piece != NULL:
            closer.first = piece.next
            if closer.first == NULL:
                closer.last = &closer.first
        pthread_mutex_unlock(&closer.lock)
        if piece == NULL:
            break
        relaxed_store(&closer.since, now_ns())
        if piece.fd >= 0:
            close(piece.fd)
        else:
            window_unmap(piece.shared, piece.base, piece.length)
    if not closer.joined:
        closer_free(closer)
    return NULL


cdef int closer_start(shm_closer **out, bint joined) noexcept nogil:
    """Makes a closer with its thread. 0 or an errno value."""
    cdef shm_closer *closer = <shm_closer *> calloc(1, sizeof(shm_closer))
    cdef pthread_condattr_t clock
    cdef int error
    if closer == NULL:
        return ENOMEM
    pthread_mutex_init(&closer.lock, NULL)
    pthread_condattr_init(&clock)
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC)
    pthread_cond_init(&closer.filled, &clock)
    pthread_condattr_destroy(&clock)
    closer.last = &closer.first
    closer.joined = joined
    error = start_quiet_thread(&closer.thread, b"mc-close", closer_main, closer)
    if error:
        closer_free(closer)
        return error
    if not joined:
        pthread_detach(closer.thread)
    out[0] = closer
    return 0


cdef int closers_start(shm_context *shared) noexcept nogil:
    cdef int i
    cdef int error = 0
    for i in range(CLOSERS):
        if error == 0 and shared.closers[i] == NULL:
            error = closer_start(&shared.closers[i], i == CLOSER_MEMORY)
    return error


cdef void closers_stop(shm_context *shared) noexcept nogil:
    cdef shm_closer *closer
    cdef pthread_t thread
    cdef bint joined
    cdef int i
    for i in range(CLOSERS):
        closer = shared.closers[i]
        if closer == NULL:
            continue
        thread = closer.thread
        joined = closer.joined
        pthread_mutex_lock(&closer.lock)
        closer.stopping = True
        pthread_cond_signal(&closer.filled)
        pthread_mutex_unlock(&closer.lock)
        # The unjoined thread frees the closer itself, from now on at any time.
        if joined:
            pthread_join(thread, NULL)
            closer_free(closer)
        shared.closers[i] = NULL


cdef uint64_t closer_put(shm_closer *closer, int fd, shm_context *shared, void *base, size_t length) noexcept nogil:
    """Leaves a descriptor, or a mapping (fd is -1), to the thread. Returns the number of the piece; 0: the caller must
    close the piece."""
    cdef shm_closing *piece
    cdef uint64_t number = 0
    if closer == NULL:
        return 0
    pthread_mutex_lock(&closer.lock)
    piece = closer.unused
    if piece != NULL:
        closer.unused = piece.next
    else:
        piece = <shm_closing *> malloc(sizeof(shm_closing))
    if piece != NULL:
        piece.next = NULL
        piece.fd = fd
        piece.shared = shared
        piece.base = base
        piece.length = length
        if fd >= 0:
            fetch_add(&closer.waiting, 1)
        closer.last[0] = piece
        closer.last = &piece.next
        closer.taken += 1
        number = closer.taken
        pthread_cond_signal(&closer.filled)
    pthread_mutex_unlock(&closer.lock)
    return number


cdef uint64_t closer_take_fd(shm_context *shared, int fd) noexcept nogil:
    cdef struct_stat status
    # Only files in memory have seals.
    cdef int kind = CLOSER_MEMORY if fcntl(fd, F_GET_SEALS) >= 0 else CLOSER_ANY
    cdef bint small = kind == CLOSER_MEMORY and fstat(fd, &status) == 0 and status.st_blocks <= CLOSER_SMALL // 512
    cdef uint64_t number = 0 if small else closer_put(shared.closers[kind], fd, NULL, NULL, 0)
    if number == 0:
        close(fd)
    return number if kind == CLOSER_MEMORY else 0


cdef void closer_take_window(shm_context *shared, void *base, size_t length) noexcept nogil:
    if closer_put(shared.closers[<int> CLOSER_MEMORY], -1, shared, base, length) == 0:
        window_unmap(shared, base, length)


cdef bint pieces_done(const shm_closer *closer, const shm_stream *shm) noexcept nogil:
    # Whether enough of the stream's pieces are closed, so the peer may pass memory again.
    cdef uint32_t most = CLOSER_EACH if <int64_t> relaxed_load(&closer.waiting) < CLOSER_MANY else CLOSER_FEW
    # The thread finishes pieces in the order of their numbers.
    return shm.closing[(shm.nclosing - most) % CLOSER_EACH] <= load_acquire(&closer.done)


cdef bint closer_runs(const shm_context *shared) noexcept nogil:
    return shared.closers[<int> CLOSER_MEMORY] != NULL


cdef bint closer_keeps_up(const soft_qp *qp) noexcept nogil:
    cdef const shm_closer *closer = shm_context_of(qp.context).closers[<int> CLOSER_MEMORY]
    assert_held(&qp.lock)
    return closer == NULL or pieces_done(closer, shm_of(qp))


cdef bint closer_hold(soft_qp *qp, bint scarce) noexcept nogil:
    cdef shm_closer *closer = shm_context_of(qp.context).closers[<int> CLOSER_MEMORY]
    cdef shm_hold *hold = &shm_of(qp).hold
    cdef bint wanted
    assert_held(&qp.lock)
    assert_that(closer != NULL and not hold.held)
    pthread_mutex_lock(&closer.lock)
    # The closer's lock is held. So the thread will look at the list of held streams after its present piece, if any,
    # and resumes a stream held from now on.
    wanted = scarce or not pieces_done(closer, shm_of(qp))
    if wanted:
        hold.qp = qp
        hold.until = now_ns() + CLOSER_RETRY if scarce else 0
        hold.prev = NULL
        hold.next = closer.held
        if hold.next != NULL:
            hold.next.prev = hold
        closer.held = hold
        store_release(&hold.held, 1)
        hold_watch(hold, 0)
        if scarce:
            pthread_cond_signal(&closer.filled)
    pthread_mutex_unlock(&closer.lock)
    return wanted


cdef void closer_forget(soft_qp *qp) noexcept nogil:
    cdef shm_closer *closer = shm_context_of(qp.context).closers[<int> CLOSER_MEMORY]
    cdef shm_hold *hold = &shm_of(qp).hold
    assert_held(&qp.lock)
    if closer == NULL or not load_acquire(&hold.held):
        return
    pthread_mutex_lock(&closer.lock)
    if hold.held:
        hold_end(closer, hold)
    pthread_mutex_unlock(&closer.lock)


cdef bint closer_is_stuck(const shm_context *shared) noexcept nogil:
    cdef const shm_closer *closer = shared.closers[<int> CLOSER_ANY]
    cdef int64_t since
    if closer == NULL or <int64_t> relaxed_load(&closer.waiting) < CLOSER_MANY:
        return False
    since = relaxed_load(&closer.since)
    return since != 0 and now_ns() - since > CLOSER_STUCK

# The progress thread of a context; see thread.pxd.

cdef enum:
    THREAD_EVENTS = 16
    THREAD_YIELD = 64                # turns in vain between two calls of sched_yield


cdef void thread_open(soft_context *context) noexcept nogil:
    pthread_mutex_init(&context.thread_lock, NULL)
    context.thread_epoll = -1
    context.thread_stop = -1


cdef int thread_watch(soft_context *context, soft_domain *domain) noexcept nogil:
    """Adds the domain's descriptor to the thread's epoll set. 0, or -1 with errno."""
    cdef epoll_event event
    assert_held(&context.thread_lock)
    if domain.mark:
        # A thread of the program makes the domain's progress.
        errno.errno = EBUSY
        return -1
    domain_lock(domain)
    if not domain.watched:
        domain_watch(domain)
    domain_unlock(domain)
    event.events = EPOLLIN | EPOLLET
    event.data.u64 = 1
    return epoll_ctl(context.thread_epoll, EPOLL_CTL_ADD, domain.epoll_fd, &event)


cdef bint thread_add(soft_context *context, soft_domain *domain) noexcept nogil:
    cdef bint known
    lock_ranked(&context.thread_lock, RANK_THREAD)
    known = context.thread_epoll < 0 or thread_watch(context, domain) == 0
    if known:
        domain.prev = NULL
        domain.next = context.domains
        if domain.next != NULL:
            domain.next.prev = domain
        context.domains = domain
    unlock_ranked(&context.thread_lock, RANK_THREAD)
    return known


cdef void thread_drop(soft_context *context, soft_domain *domain) noexcept nogil:
    lock_ranked(&context.thread_lock, RANK_THREAD)
    if domain.prev != NULL:
        domain.prev.next = domain.next
    else:
        context.domains = domain.next
    if domain.next != NULL:
        domain.next.prev = domain.prev
    unlock_ranked(&context.thread_lock, RANK_THREAD)


cdef bint thread_turn(soft_context *context, bint arm) noexcept nogil:
    """Makes progress in all domains. Returns whether there was any. `arm`: later work wakes the thread."""
    cdef soft_domain *domain
    cdef bint worked = False
    lock_ranked(&context.thread_lock, RANK_THREAD)
    domain = context.domains
    while domain != NULL:
        domain_lock(domain)
        domain_begin_turn(domain)
        worked |= domain.fabric.serve(domain, arm)
        domain_unlock(domain)
        if domain.event_fd >= 0:
            domain_update_fd(domain)
        domain = domain.next
    unlock_ranked(&context.thread_lock, RANK_THREAD)
    return worked


cdef void *thread_main(void *argument) noexcept nogil:
    cdef soft_context *context = <soft_context *> argument
    cdef epoll_event events[THREAD_EVENTS]
    cdef int64_t most = <int64_t> context.thread_spin * 1000
    cdef int64_t patience = most     # nanoseconds to poll for more before sleeping; halved after polling in vain
    cdef int64_t last = now_ns()
    cdef int64_t now
    cdef uint32_t vain = 0
    while not relaxed_load(&context.thread_stopping):
        if thread_turn(context, False):
            last = now_ns()
            vain = 0
            continue
        now = now_ns()
        if now - last < patience:
            vain += 1
            if vain % THREAD_YIELD == 0:
                sched_yield()
            continue
        patience //= 2
        if thread_turn(context, True):
            last = now_ns()
            continue
        epoll_wait(context.thread_epoll, events, THREAD_EVENTS, -1)
        last = now_ns()
        # After so short a sleep, polling for `most` would have found the work earlier: so poll again next time.
        if last - now < most:
            patience = most
    return NULL


cdef int soft_start_progress(ibv_context *ibcontext, unsigned int spin) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    cdef soft_domain *domain
    cdef epoll_event event
    cdef int error = 0
    lock_ranked(&context.thread_lock, RANK_THREAD)
    if context.thread_epoll >= 0:
        error = EALREADY
    else:
        context.thread_epoll = epoll_create1(EPOLL_CLOEXEC)
        context.thread_stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        context.thread_spin = spin
        context.thread_stopping = False
        event.events = EPOLLIN
        event.data.u64 = 0
        if (context.thread_epoll < 0 or context.thread_stop < 0
                or epoll_ctl(context.thread_epoll, EPOLL_CTL_ADD, context.thread_stop, &event) < 0):
            error = errno.errno
        domain = context.domains
        while domain != NULL and error == 0:
            if thread_watch(context, domain) < 0:
                error = errno.errno
            domain = domain.next
        if error == 0:
            error = start_quiet_thread(&context.thread, b"mc-progress", thread_main, context)
        if error:
            thread_close(context)
    unlock_ranked(&context.thread_lock, RANK_THREAD)
    return error


cdef void thread_close(soft_context *context) noexcept nogil:
    assert_held(&context.thread_lock)
    if context.thread_epoll >= 0:
        close(context.thread_epoll)
    if context.thread_stop >= 0:
        close(context.thread_stop)
    context.thread_epoll = -1
    context.thread_stop = -1


cdef void soft_stop_progress(ibv_context *ibcontext) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    if context.thread_epoll < 0:
        return
    relaxed_store(&context.thread_stopping, True)
    eventfd_signal(context.thread_stop)
    pthread_join(context.thread, NULL)
    lock_ranked(&context.thread_lock, RANK_THREAD)
    thread_close(context)
    unlock_ranked(&context.thread_lock, RANK_THREAD)

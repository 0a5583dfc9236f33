# Asynchronous events; see async_events.pxd.


cdef bint async_open(soft_context *context) noexcept nogil:
    context.ibv.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if context.ibv.async_fd < 0:
        return False
    # A program sets O_NONBLOCK itself when it does not want get_async_event to wait.
    fcntl(context.ibv.async_fd, F_SETFL, 0)
    pthread_mutex_init(&context.async_lock, NULL)
    pthread_cond_init(&context.async_acked, NULL)
    return True


cdef void async_close(soft_context *context) noexcept nogil:
    close(context.ibv.async_fd)
    pthread_mutex_destroy(&context.async_lock)
    pthread_cond_destroy(&context.async_acked)


cdef void async_update_fd_locked(soft_context *context) noexcept nogil:
    """Makes async_fd readable exactly while events are pending."""
    cdef uint64_t value = 1
    assert_held(&context.async_lock)
    if (context.first_async != NULL) == context.async_signalled:
        return
    if context.async_signalled:
        context.async_signalled = read(context.ibv.async_fd, &value, 8) != 8
    else:
        context.async_signalled = write(context.ibv.async_fd, &value, 8) == 8


cdef void async_event(soft_context *context, soft_async *events, int kind) noexcept nogil:
    lock_ranked(&context.async_lock, RANK_EVENTS)
    if not events.pending:
        events.next = NULL
        if context.first_async == NULL:
            context.first_async = events
        else:
            context.last_async.next = events
        context.last_async = events
    events.pending |= 1U << kind
    async_update_fd_locked(context)
    unlock_ranked(&context.async_lock, RANK_EVENTS)


cdef void async_unlink_locked(soft_context *context, soft_async *events) noexcept nogil:
    cdef soft_async *before = NULL
    cdef soft_async *at = context.first_async
    assert_held(&context.async_lock)
    while at != events:
        before = at
        at = at.next
    if before != NULL:
        before.next = events.next
    else:
        context.first_async = events.next
    if context.last_async == events:
        context.last_async = before


cdef void async_forget(soft_context *context, soft_async *events) noexcept nogil:
    lock_ranked(&context.async_lock, RANK_EVENTS)
    if events.pending:
        async_unlink_locked(context, events)
        events.pending = 0
        async_update_fd_locked(context)
    while events.acked != events.delivered:
        pthread_cond_wait(&context.async_acked, &context.async_lock)
    unlock_ranked(&context.async_lock, RANK_EVENTS)


cdef bint async_take(soft_context *context, ibv_async_event *event) noexcept nogil:
    # Takes an event of the oldest object with pending events. False: there is none.
    cdef soft_async *events
    cdef int kind = 0
    lock_ranked(&context.async_lock, RANK_EVENTS)
    events = context.first_async
    if events != NULL:
        while not events.pending & 1U << kind:
            kind += 1
        events.pending &= ~(1U << kind)
        events.delivered += 1
        event.event_type = <ibv_event_type> kind
        # All members of the union are pointers at the same address.
        event.element.qp = <ibv_qp *> events.element
        if not events.pending:
            async_unlink_locked(context, events)
            async_update_fd_locked(context)
    unlock_ranked(&context.async_lock, RANK_EVENTS)
    return events != NULL


cdef int soft_get_async_event(ibv_context *ibcontext, ibv_async_event *event) noexcept nogil:
    """Waits for an event unless async_fd has O_NONBLOCK. The waiting thread makes no progress."""
    cdef soft_context *context = <soft_context *> ibcontext
    cdef pollfd waiting
    cdef int flags
    while not async_take(context, event):
        flags = fcntl(ibcontext.async_fd, F_GETFL)
        if flags < 0:
            return -1
        if flags & O_NONBLOCK:
            errno.errno = EAGAIN
            return -1
        waiting.fd = ibcontext.async_fd
        waiting.events = POLLIN
        if poll(&waiting, 1, -1) < 0:
            return -1
    return 0


cdef void soft_ack_async_event(ibv_async_event *event) noexcept nogil:
    cdef soft_context *context
    cdef soft_async *events
    if event.event_type == IBV_EVENT_CQ_ERR:
        context = <soft_context *> event.element.cq.context
        events = &(<soft_cq *> event.element.cq).async_events
    elif event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED:
        context = <soft_context *> event.element.srq.context
        events = &(<soft_srq *> event.element.srq).async_events
    else:
        context = <soft_context *> event.element.qp.context
        events = &(<soft_qp *> event.element.qp).async_events
    lock_ranked(&context.async_lock, RANK_EVENTS)
    events.acked += 1
    pthread_cond_broadcast(&context.async_acked)
    unlock_ranked(&context.async_lock, RANK_EVENTS)


cdef const char *soft_event_type_str(ibv_event_type event) noexcept nogil:
    if event == IBV_EVENT_CQ_ERR:
        return b"completion queue error"
    if event == IBV_EVENT_QP_FATAL:
        return b"queue pair fatal error"
    if event == IBV_EVENT_QP_REQ_ERR:
        return b"invalid request of the peer"
    if event == IBV_EVENT_QP_ACCESS_ERR:
        return b"access violation by the peer"
    if event == IBV_EVENT_COMM_EST:
        return b"communication established"
    if event == IBV_EVENT_SQ_DRAINED:
        return b"send queue drained"
    if event == IBV_EVENT_SRQ_LIMIT_REACHED:
        return b"shared receive queue limit reached"
    if event == IBV_EVENT_QP_LAST_WQE_REACHED:
        return b"last receive of the shared queue taken"
    return b"unknown"

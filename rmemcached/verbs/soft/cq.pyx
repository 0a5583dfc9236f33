# Completion queues; see cq.pxd.

cdef enum:
    POLLS_MAX = 64                   # polls in a row that only take completions


cdef inline void cq_lock(soft_cq *cq) noexcept nogil:
    if cq.domain.alone:
        assert_owner(cq.domain.owner)
    else:
        lock_ranked(&cq.lock, RANK_QUEUE)


cdef inline void cq_unlock(soft_cq *cq) noexcept nogil:
    if not cq.domain.alone:
        unlock_ranked(&cq.lock, RANK_QUEUE)


cdef inline void assert_cq(const soft_cq *cq) noexcept nogil:
    if cq.domain.alone:
        assert_owner(cq.domain.owner)
    else:
        assert_held(&cq.lock)


cdef ibv_cq *soft_create_cq(ibv_context *context, int cqe, void *cq_context, ibv_comp_channel *channel,
                            int comp_vector) noexcept nogil:
    cdef soft_cq *cq
    cdef uint32_t size
    if cqe < 1 or cqe > <int> MAX_CQE or comp_vector < 0 or comp_vector >= context.num_comp_vectors:
        errno.errno = EINVAL
        return NULL
    size = ring_size(<uint32_t> cqe)
    cq = <soft_cq *> calloc(1, sizeof(soft_cq))
    if cq != NULL:
        cq.ring = <ibv_wc *> malloc(size * sizeof(ibv_wc))
    if cq == NULL or cq.ring == NULL:
        free(cq)
        errno.errno = ENOMEM
        return NULL
    if channel != NULL:
        cq.domain = &(<soft_channel *> channel).domain
        fetch_add(&channel.refcnt, 1)
    else:
        if not domain_open(&cq.own, <soft_context *> context, False):
            free(cq.ring)
            free(cq)
            return NULL
        cq.domain = &cq.own
    cq.ibv.context = context
    cq.ibv.channel = channel
    cq.ibv.cq_context = cq_context
    cq.ibv.cqe = <int> size
    cq.size = size
    cq.async_events.element = &cq.ibv
    pthread_mutex_init(&cq.lock, NULL)
    fetch_add(&(<soft_context *> context).users, 1)
    live_add(LIVE_CQ)
    return &cq.ibv


cdef int soft_destroy_cq(ibv_cq *ibcq) noexcept nogil:
    """Waits until every delivered event has been acknowledged, as libibverbs does."""
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef soft_domain *domain = cq.domain
    cdef soft_cq *before = NULL
    cdef soft_cq *at
    if load_acquire(&cq.users):
        return EBUSY
    lock_ranked(&domain.events, RANK_EVENTS)
    if cq.events_pending:
        at = domain.first_event
        while at != cq:
            before = at
            at = at.next_event
        if before != NULL:
            before.next_event = cq.next_event
        else:
            relaxed_store_pointer(&domain.first_event, cq.next_event)
        if domain.last_event == cq:
            domain.last_event = before
        domain_update_fd_locked(domain)
    while cq.events_acked != cq.events_delivered:
        pthread_cond_wait(&domain.acked, &domain.events)
    unlock_ranked(&domain.events, RANK_EVENTS)
    async_forget(<soft_context *> ibcq.context, &cq.async_events)
    if cq.armed != ARMED_NOT:
        fetch_sub(&domain.armed, 1)
    if domain == &cq.own:
        domain_close(&cq.own, <soft_context *> ibcq.context)
    else:
        fetch_sub(&cq.ibv.channel.refcnt, 1)
    pthread_mutex_destroy(&cq.lock)
    fetch_sub(&(<soft_context *> ibcq.context).users, 1)
    free(cq.ring)
    free(cq)
    live_sub(LIVE_CQ)
    return 0


cdef int soft_resize_cq(ibv_cq *ibcq, int cqe) noexcept nogil:
    """Makes room for at least `cqe` entries. EINVAL: too many, or fewer than there are completions in the queue."""
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef ibv_wc *ring
    cdef uint32_t i, size
    cdef int result = 0
    if cqe < 1 or cqe > <int> MAX_CQE:
        return EINVAL
    size = ring_size(<uint32_t> cqe)
    ring = <ibv_wc *> malloc(size * sizeof(ibv_wc))
    if ring == NULL:
        return ENOMEM
    cq_lock(cq)
    if cq.count > size:
        result = EINVAL
    else:
        for i in range(cq.count):
            ring[i] = cq.ring[(cq.head + i) & (cq.size - 1)]
        free(cq.ring)
        cq.ring = ring
        ring = NULL
        cq.head = 0
        cq.size = size
        cq.ibv.cqe = <int> size
    cq_unlock(cq)
    free(ring)
    return result


cdef void cq_event_locked(soft_cq *cq) noexcept nogil:
    """Makes a completion event."""
    cdef soft_domain *domain = cq.domain
    assert_cq(cq)
    lock_ranked(&domain.events, RANK_EVENTS)
    if cq.events_pending == 0:
        cq.next_event = NULL
        if domain.first_event == NULL:
            relaxed_store_pointer(&domain.first_event, cq)
        else:
            domain.last_event.next_event = cq
        domain.last_event = cq
    cq.events_pending += 1
    unlock_ranked(&domain.events, RANK_EVENTS)


cdef bint cq_push_locked(soft_cq *cq, const ibv_wc *wc, bint solicited) noexcept nogil:
    """Stores a completion, and makes an event if the queue is armed for it. False: there is no room."""
    assert_cq(cq)
    if cq.count == cq.size:
        return False
    cq.ring[(cq.head + cq.count) & (cq.size - 1)] = wc[0]
    relaxed_store(&cq.count, cq.count + 1)
    if cq.armed != ARMED_NOT and (cq.armed == ARMED_ANY or solicited or wc.status != IBV_WC_SUCCESS):
        cq.armed = ARMED_NOT
        fetch_sub(&cq.domain.armed, 1)
        if cq.ibv.channel != NULL:
            cq_event_locked(cq)
    return True


cdef bint cq_add(soft_cq *cq, const ibv_wc *wc, bint solicited) noexcept nogil:
    cdef bint stored
    cq_lock(cq)
    stored = cq_push_locked(cq, wc, solicited)
    if not stored and not cq.overrun:
        relaxed_store(&cq.overrun, True)
        async_event(<soft_context *> cq.ibv.context, &cq.async_events, IBV_EVENT_CQ_ERR)
    cq_unlock(cq)
    return stored


cdef void cq_purge(soft_cq *cq, uint32_t qp_num) noexcept nogil:
    cdef uint32_t i, kept = 0
    cdef uint32_t mask = cq.size - 1
    cq_lock(cq)
    for i in range(cq.count):
        if cq.ring[(cq.head + i) & mask].qp_num != qp_num:
            if kept != i:
                cq.ring[(cq.head + kept) & mask] = cq.ring[(cq.head + i) & mask]
            kept += 1
    relaxed_store(&cq.count, kept)
    cq_unlock(cq)


cdef inline int cq_take(soft_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil:
    cdef int n = 0
    cdef int result
    cq_lock(cq)
    while n < num_entries and cq.count:
        wc[n] = cq.ring[cq.head & (cq.size - 1)]
        cq.head += 1
        relaxed_store(&cq.count, cq.count - 1)
        n += 1
    if cq.count == 0:
        # The ring starts again at its first entry, so a large queue touches only few entries.
        cq.head = 0
    result = -EOVERFLOW if n == 0 and cq.overrun else n
    cq_unlock(cq)
    return result


cdef inline bint cq_wants_progress(soft_cq *cq, int num_entries) noexcept nogil:
    """False if the program calls soft_channel_poll itself, or while completions wait, but not POLLS_MAX times in a row.

    Without this limit a program whose own sends fill the queue would starve its peers.
    """
    cdef uint32_t polls = <uint32_t> relaxed_load(&cq.polls) + 1
    if cq.domain.mark:
        return False
    if relaxed_load(&cq.count) == 0 or polls > POLLS_MAX or num_entries == 0:
        relaxed_store(&cq.polls, 0)
        return True
    relaxed_store(&cq.polls, polls)
    return False


cdef inline bint cq_is_empty(const soft_cq *cq) noexcept nogil:
    return relaxed_load(&cq.count) == 0 and not relaxed_load(&cq.overrun)


cdef bint soft_cq_pending(const ibv_cq *ibcq) noexcept nogil:
    return not cq_is_empty(<const soft_cq *> ibcq)


cdef int soft_poll_cq(ibv_cq *ibcq, int num_entries, ibv_wc *wc) noexcept nogil:
    """Takes completions. Without completions, or with num_entries 0, makes progress first."""
    cdef soft_cq *cq = <soft_cq *> ibcq
    if cq_wants_progress(cq, num_entries):
        domain_progress(cq.domain, False)
        if cq.domain.event_fd >= 0:
            domain_update_fd(cq.domain)
    if cq_is_empty(cq):
        return 0
    return cq_take(cq, num_entries, wc)


cdef int soft_req_notify_cq(ibv_cq *ibcq, int solicited_only) noexcept nogil:
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef soft_domain *domain = cq.domain
    cq_lock(cq)
    if cq.armed == ARMED_NOT:
        fetch_add(&domain.armed, 1)
    if not solicited_only:
        cq.armed = ARMED_ANY
    elif cq.armed == ARMED_NOT:
        cq.armed = ARMED_SOLICITED
    cq_unlock(cq)
    if domain.fabric.arm != NULL and domain.event_fd >= 0 and not relaxed_load(&domain.polling):
        domain_lock(domain)
        domain.fabric.arm(domain)
        domain_unlock(domain)
        domain_update_fd(domain)
    return 0


cdef int soft_get_cq_event(ibv_comp_channel *ibchannel, ibv_cq **cq, void **cq_context) noexcept nogil:
    """Makes progress until there is an event. -1 with EAGAIN: there is none, and the channel's fd has O_NONBLOCK, the
    channel is joined, or its turn is over; with EINTR: a signal came."""
    cdef soft_domain *domain = &(<soft_channel *> ibchannel).domain
    cdef soft_cq *found = domain_take_event(domain)
    cdef pollfd waiting
    cdef int flags
    while found == NULL:
        if relaxed_load(&domain.polling) or domain_is_over(domain):
            errno.errno = EAGAIN
            return -1
        # A caller that does not block has found the descriptor readable, so there is work. A blocking caller has found
        # the queue empty, so the wait comes first.
        if relaxed_load(&domain.blocking):
            flags = fcntl(ibchannel.fd, F_GETFL)
            relaxed_store(&domain.blocking, flags >= 0 and not flags & O_NONBLOCK)
        if relaxed_load(&domain.blocking) and not (domain.fabric.polls != NULL and domain.fabric.polls(domain)):
            waiting.fd = ibchannel.fd
            waiting.events = POLLIN
            if poll(&waiting, 1, -1) < 0:
                return -1
            found = domain_take_event(domain)
            if found != NULL:
                break
        domain_progress(domain, True)
        found = domain_take_event(domain)
        if found != NULL:
            break
        # domain_take_event updates the descriptor only when it takes an event.
        domain_update_fd(domain)
        if relaxed_load(&domain.work_pending):
            continue
        if not relaxed_load(&domain.blocking):
            flags = fcntl(ibchannel.fd, F_GETFL)
            if flags < 0:
                return -1
            if flags & O_NONBLOCK:
                errno.errno = EAGAIN
                return -1
            relaxed_store(&domain.blocking, True)
    cq[0] = &found.ibv
    cq_context[0] = found.ibv.cq_context
    return 0


cdef void soft_ack_cq_events(ibv_cq *ibcq, unsigned int nevents) noexcept nogil:
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef soft_domain *domain = cq.domain
    lock_ranked(&domain.events, RANK_EVENTS)
    cq.events_acked += nevents
    pthread_cond_broadcast(&domain.acked)
    unlock_ranked(&domain.events, RANK_EVENTS)

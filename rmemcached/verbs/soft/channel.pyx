# Completion channels; see channel.pxd.


cdef ibv_comp_channel *soft_create_comp_channel(ibv_context *context) noexcept nogil:
    cdef soft_channel *channel = <soft_channel *> calloc(1, sizeof(soft_channel))
    if channel == NULL:
        errno.errno = ENOMEM
        return NULL
    if not domain_open(&channel.domain, <soft_context *> context, True):
        free(channel)
        return NULL
    channel.ibv.context = context
    channel.ibv.fd = channel.domain.epoll_fd
    fetch_add(&(<soft_context *> context).users, 1)
    live_add(LIVE_CHANNEL)
    return &channel.ibv


cdef int soft_destroy_comp_channel(ibv_comp_channel *ibchannel) noexcept nogil:
    cdef soft_channel *channel = <soft_channel *> ibchannel
    if load_acquire(&channel.ibv.refcnt):
        return EBUSY
    domain_close(&channel.domain, <soft_context *> ibchannel.context)
    fetch_sub(&(<soft_context *> ibchannel.context).users, 1)
    free(channel)
    live_sub(LIVE_CHANNEL)
    return 0


cdef bint soft_channel_poll(ibv_comp_channel *ibchannel) noexcept nogil:
    cdef soft_domain *domain = &(<soft_channel *> ibchannel).domain
    cdef bint worked = False
    cdef int64_t before
    assert_that(domain.mark != 0)
    domain_lock(domain)
    domain_begin_turn(domain)
    before = domain.left
    if not domain_is_over(domain):
        domain.looked = True
        domain.fabric.progress(domain, False)
    worked = domain.left < before
    domain_unlock(domain)
    return worked


cdef int64_t soft_channel_begin_turn(ibv_comp_channel *ibchannel, uint32_t work) noexcept nogil:
    cdef soft_domain *domain = &(<soft_channel *> ibchannel).domain
    cdef int64_t left = work
    if domain.turn == 0:
        domain_lock(domain)
        domain.owner = thread_id()
        domain_unlock(domain)
        domain.alone = domain.mark != 0
    else:
        left = domain.left
    assert_owner(domain.owner)
    domain_lock(domain)
    domain.turn = max(work, <uint32_t> SHARE_MIN)
    domain.left = domain.aside = domain.turn
    domain.looked = False
    if domain.mark and domain.fabric.polls == NULL:
        domain.busy = max(domain.seen, <uint32_t> 1)
    domain.seen = 0
    domain_unlock(domain)
    return left


cdef void soft_channel_end_turns(ibv_comp_channel *ibchannel) noexcept nogil:
    cdef soft_domain *domain = &(<soft_channel *> ibchannel).domain
    assert_owner(domain.owner)
    domain.alone = False
    domain.turn = 0
    domain.owner = 0


cdef bint soft_channel_arm(ibv_comp_channel *ibchannel) noexcept nogil:
    cdef soft_domain *domain = &(<soft_channel *> ibchannel).domain
    assert_that(domain.mark != 0)
    domain_lock(domain)
    domain_clear_pending(domain)
    if domain.fabric.arm != NULL:
        domain.fabric.arm(domain)
    domain_unlock(domain)
    return relaxed_load(&domain.work_pending) != 0


cdef int soft_channel_join(ibv_comp_channel *ibchannel, int epfd) noexcept nogil:
    cdef soft_channel *channel = <soft_channel *> ibchannel
    cdef soft_domain *domain = &channel.domain
    cdef int error = 0
    domain_lock(domain)
    if domain.links != NULL or domain.mark or (<soft_context *> ibchannel.context).thread_epoll >= 0:
        error = EBUSY
    else:
        close(domain.epoll_fd)
        domain.epoll_fd = epfd
        domain.mark = SOFT_EVENT
        channel.ibv.fd = domain.event_fd
        # The program asks for completions: the channel does not report them.
        relaxed_store(&domain.polling, True)
    domain_unlock(domain)
    if error:
        errno.errno = error
        return -1
    return 0


cdef ibv_qp *soft_event_qp(const epoll_event *event) noexcept nogil:
    return &(<soft_qp *> <uintptr_t> (event.data.u64 & ~<uint64_t> EVENTS)).ibv


cdef bint soft_channel_event(const epoll_event *event, uint32_t coming) noexcept nogil:
    cdef bint taken
    cdef soft_qp *qp = <soft_qp *> soft_event_qp(event)
    # The queue pair has only this domain in the epoll set, which holds each descriptor once.
    cdef soft_domain *domain = qp.domains[0]
    assert_that(domain.mark and event.data.u64 & SOFT_EVENT)
    domain_lock(domain)
    assert_owner(domain.owner)
    # A few events are taken even after rings and posts have used up the turn. A level-triggered event comes again in
    # the next turn; a bell's event does not.
    taken = event.data.u64 & EVENT_BELL or not domain_is_over(domain) or domain.seen < <uint32_t> domain.fabric.batch
    if taken:
        domain.looked = True
        domain.seen += 1
        domain.coming = max(coming, <uint32_t> 1)
        domain_take(domain, event)
        domain.coming = 1
    domain_unlock(domain)
    return taken


cdef int soft_channel_watch(ibv_comp_channel *ibchannel, int fd) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN
    event.data.u64 = EVENT_PROGRAM
    return epoll_ctl((<soft_channel *> ibchannel).domain.epoll_fd, EPOLL_CTL_ADD, fd, &event)


cdef int soft_cq_wait(ibv_cq *ibcq, int timeout) noexcept nogil:
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef soft_domain *domain = cq.domain
    cdef epoll_event ready[PROGRESS_BATCH]
    cdef int found = 0
    cdef bint busy
    cdef int i, n
    assert_that(cq.ibv.channel != NULL and domain.mark == 0)
    domain_lock(domain)
    domain_clear_pending(domain)
    if domain.fabric.arm != NULL:
        domain.fabric.arm(domain)
    busy = relaxed_load(&domain.work_pending) != 0 or not cq_is_empty(cq)
    domain_unlock(domain)
    if busy:
        return CHANNEL_WORK
    n = epoll_wait(domain.epoll_fd, ready, PROGRESS_BATCH, timeout)
    if n <= 0:
        return n
    domain_lock(domain)
    domain_next_turn(domain)
    domain_take_batch(domain, ready, n)
    domain_unlock(domain)
    for i in range(n):
        found |= CHANNEL_PROGRAM if ready[i].data.u64 == EVENT_PROGRAM else CHANNEL_WORK
    return found

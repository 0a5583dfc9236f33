# Progress domains; see domain.pxd.

cdef enum:
    PROGRESS_EVENTS = 64             # descriptors in one pass


cdef inline void domain_lock(soft_domain *domain) noexcept nogil:
    if domain.alone:
        assert_owner(domain.owner)
    else:
        lock_ranked(&domain.progress, RANK_DOMAIN)


cdef inline bint domain_trylock(soft_domain *domain) noexcept nogil:
    if domain.alone:
        assert_owner(domain.owner)
        return True
    return trylock_ranked(&domain.progress, RANK_DOMAIN)


cdef inline void domain_unlock(soft_domain *domain) noexcept nogil:
    if not domain.alone:
        unlock_ranked(&domain.progress, RANK_DOMAIN)


cdef inline void assert_domain(const soft_domain *domain) noexcept nogil:
    if domain.alone:
        assert_owner(domain.owner)
    else:
        assert_held(&domain.progress)


cdef bint domain_open(soft_domain *domain, soft_context *context, bint channel) noexcept nogil:
    cdef epoll_event event
    domain.fabric = context.fabric
    domain.event_fd = -1
    domain.coming = 1
    domain.busy = 1
    domain.watched = channel
    domain.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
    if domain.epoll_fd < 0:
        return False
    if channel:
        domain.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        event.events = EPOLLIN
        event.data.u64 = 0
        if domain.event_fd < 0 or epoll_ctl(domain.epoll_fd, EPOLL_CTL_ADD, domain.event_fd, &event) < 0:
            if domain.event_fd >= 0:
                close(domain.event_fd)
            close(domain.epoll_fd)
            return False
    pthread_mutex_init(&domain.progress, NULL)
    pthread_mutex_init(&domain.events, NULL)
    pthread_cond_init(&domain.acked, NULL)
    if domain.fabric.open_domain != NULL and not domain.fabric.open_domain(domain):
        domain_release(domain)
        return False
    if not thread_add(context, domain):
        if domain.fabric.close_domain != NULL:
            domain.fabric.close_domain(domain)
        domain_release(domain)
        return False
    return True


cdef void domain_close(soft_domain *domain, soft_context *context) noexcept nogil:
    thread_drop(context, domain)
    if domain.fabric.close_domain != NULL:
        domain.fabric.close_domain(domain)
    domain_release(domain)


cdef void domain_release(soft_domain *domain) noexcept nogil:
    free(domain.spare)
    if domain.mark == 0:
        close(domain.epoll_fd)
    if domain.event_fd >= 0:
        close(domain.event_fd)
    pthread_mutex_destroy(&domain.progress)
    pthread_mutex_destroy(&domain.events)
    pthread_cond_destroy(&domain.acked)


cdef void domain_update_fd_locked(soft_domain *domain) noexcept nogil:
    cdef uint64_t value = 1
    cdef bint wanted = not domain.polling and (domain.first_event != NULL or relaxed_load(&domain.work_pending) != 0)
    assert_held(&domain.events)
    if wanted and not domain.signalled:
        if write(domain.event_fd, &value, 8) == 8:
            relaxed_store(&domain.signalled, True)
    elif not wanted and domain.signalled:
        if read(domain.event_fd, &value, 8) == 8:
            relaxed_store(&domain.signalled, False)
            # Other threads set work_pending without this lock. After the fence, either such a thread finds
            # event_fd not signalled, or later readers find work_pending set.
            full_fence()


cdef void domain_update_fd(soft_domain *domain) noexcept nogil:
    cdef bint wanted = relaxed_load(&domain.first_event) != 0 or relaxed_load(&domain.work_pending) != 0
    if wanted != <bint> relaxed_load(&domain.signalled):
        lock_ranked(&domain.events, RANK_EVENTS)
        domain_update_fd_locked(domain)
        unlock_ranked(&domain.events, RANK_EVENTS)


cdef void qp_update_fds(soft_qp *qp, soft_domain *except_for) noexcept nogil:
    cdef int i
    for i in range(qp.ndomains):
        if qp.domains[i] != except_for and qp.domains[i].event_fd >= 0:
            domain_update_fd(qp.domains[i])


cdef inline uint64_t domain_event(const soft_domain *domain, const soft_qp *qp, uint32_t kind) noexcept nogil:
    assert_that(<uintptr_t> qp & EVENTS == 0)
    return <uint64_t> <uintptr_t> qp | kind | domain.mark


cdef inline void domain_begin_turn(soft_domain *domain) noexcept nogil:
    assert_domain(domain)
    if domain.turn == 0:
        domain.left = domain.aside = DOMAIN_TURN


cdef inline void domain_next_turn(soft_domain *domain) noexcept nogil:
    if not relaxed_load(&domain.polling):
        domain_begin_turn(domain)


cdef inline bint domain_is_over(const soft_domain *domain) noexcept nogil:
    return domain.turn != 0 and domain.looked and domain.left <= 0


cdef inline uint32_t domain_share(const soft_domain *domain, uint32_t most) noexcept nogil:
    cdef int64_t fair = domain.left // domain.coming
    if fair >= most:
        return most
    return SHARE_MIN if fair < SHARE_MIN else <uint32_t> fair


cdef inline void domain_worked(soft_domain *domain, uint32_t work) noexcept nogil:
    assert_domain(domain)
    domain.left -= work


cdef inline void domain_posted(soft_qp *qp, uint32_t work) noexcept nogil:
    cdef soft_domain *domain = qp.send_cq.domain
    assert_held(&qp.lock)
    if domain.turn:
        assert_owner(domain.owner)
        domain.left -= work


cdef void domain_post(soft_qp *qp) noexcept nogil:
    cdef soft_domain *domain = qp.send_cq.domain
    assert_held(&qp.lock)
    if domain.turn:
        # Each busy queue pair has an equal part of the turn.
        qp.tx.share = <uint32_t> max(min(domain.left, max(domain.turn // domain.busy, <uint32_t> SHARE_MIN)), 0)
    qp.tx.used = 0
    qp.fabric.transmit(qp)
    domain_posted(qp, qp.tx.used)
    qp.tx.share = TX_TURN


cdef inline void domain_clear_pending(soft_domain *domain) noexcept nogil:
    if relaxed_load(&domain.work_pending):
        exchange(&domain.work_pending, 0)


cdef void domain_transmit(soft_domain *domain, soft_qp *qp) noexcept nogil:
    assert_domain(domain)
    assert_held(&qp.lock)
    qp.tx.share = domain_share(domain, TX_TURN)
    qp.tx.used = 0
    qp.fabric.transmit(qp)
    domain_worked(domain, qp.tx.used)
    qp.tx.share = TX_TURN


cdef inline void share_spend(uint32_t *share, uint64_t work) noexcept nogil:
    share[0] -= <uint32_t> min(<uint64_t> share[0], work)


cdef void domain_progress(soft_domain *domain, bint waits) noexcept nogil:
    if waits:
        domain_lock(domain)
    elif not domain_trylock(domain):
        return
    domain_next_turn(domain)
    if not domain_is_over(domain):
        domain.looked = True
        domain.fabric.progress(domain, waits)
    domain_unlock(domain)


cdef inline void domain_take(soft_domain *domain, const epoll_event *event) noexcept nogil:
    """Hands an event of a queue pair to the fabric."""
    cdef soft_qp *qp = <soft_qp *> <uintptr_t> (event.data.u64 & ~<uint64_t> EVENTS)
    assert_domain(domain)
    if event.data.u64 & EVENT_TIMER:
        stream_deadline(qp, domain)
    elif event.data.u64 & EVENT_BELL:
        domain.fabric.rung(qp, domain)
    else:
        domain.fabric.ready(qp, event.events, domain)


cdef uint32_t domain_take_batch(soft_domain *domain, const epoll_event *ready, int count) noexcept nogil:
    """Hands events to the fabric. Returns the number of events of queue pairs."""
    cdef uint32_t found = 0
    cdef int i
    assert_domain(domain)
    for i in range(count):
        # Skip events of event_fd, which only wake waiting threads, and of the program's descriptor.
        if ready[i].data.u64 & ~<uint64_t> EVENTS:
            found += 1
            domain.coming = <uint32_t> (count - i)
            domain_take(domain, &ready[i])
    domain.coming = 1
    return found


cdef uint32_t domain_poll_batch(soft_domain *domain, int *count) noexcept nogil:
    """A single epoll_wait of domain_poll_descriptors. *count: the result of epoll_wait."""
    cdef epoll_event ready[PROGRESS_BATCH]
    count[0] = epoll_wait(domain.epoll_fd, ready, domain.fabric.batch, 0)
    return domain_take_batch(domain, ready, count[0])


cdef uint32_t domain_poll_descriptors(soft_domain *domain) noexcept nogil:
    cdef uint32_t found = 0
    cdef int seen = 0
    cdef int n = domain.fabric.batch
    assert_domain(domain)
    if domain.mark:
        return 0
    if not domain.watched:
        domain_watch(domain)
    # epoll puts reported descriptors behind unreported descriptors, so the next call reports others.
    while n == domain.fabric.batch and seen < PROGRESS_EVENTS and (seen == 0 or domain.left > 0):
        found += domain_poll_batch(domain, &n)
        seen += n
    return found


cdef void domain_watch(soft_domain *domain) noexcept nogil:
    cdef soft_link *link = domain.links
    assert_domain(domain)
    store_release(&domain.watched, 1)
    while link != NULL:
        lock_ranked(&link.qp.lock, RANK_QP)
        if link.qp.stream.fd >= 0 and not link.watched and not stream_watch(link.qp, link):
            qp_lost(link.qp)
        unlock_ranked(&link.qp.lock, RANK_QP)
        link = link.next


cdef void domain_remove(soft_domain *domain, soft_link *link) noexcept nogil:
    domain_lock(domain)
    if link.prev != NULL:
        link.prev.next = link.next
    else:
        domain.links = link.next
    if link.next != NULL:
        link.next.prev = link.prev
    domain.nlinks -= 1
    link.domain = NULL
    if domain.fabric.leave != NULL:
        domain.fabric.leave(domain, link.qp)
    domain_unlock(domain)


cdef void domain_add(soft_domain *domain, soft_link *link, soft_qp *qp) noexcept nogil:
    domain_lock(domain)
    link.qp = qp
    link.domain = domain
    link.prev = NULL
    link.next = domain.links
    if link.next != NULL:
        link.next.prev = link
    domain.links = link
    domain.nlinks += 1
    domain_unlock(domain)


cdef soft_cq *domain_take_event(soft_domain *domain) noexcept nogil:
    cdef soft_cq *cq
    if relaxed_load(&domain.first_event) == 0:
        return NULL
    lock_ranked(&domain.events, RANK_EVENTS)
    cq = domain.first_event
    if cq != NULL:
        cq.events_pending -= 1
        cq.events_delivered += 1
        # A completion queue with more events goes to the end of the list.
        if cq.events_pending == 0 or cq.next_event != NULL:
            relaxed_store_pointer(&domain.first_event, cq.next_event)
            if cq.events_pending:
                domain.last_event.next_event = cq
                domain.last_event = cq
            elif domain.first_event == NULL:
                domain.last_event = NULL
            cq.next_event = NULL
        domain_update_fd_locked(domain)
    unlock_ranked(&domain.events, RANK_EVENTS)
    return cq

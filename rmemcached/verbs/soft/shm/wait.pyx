# soft_shm: polling and waiting; see wait.pxd.

cdef enum:
    SHM_IDLE_POLLS = 256             # polls in vain until a stream waits, if more than SHM_ALWAYS_POLLED are polled
    SHM_CHECK_WAKEUPS = 4000         # nanoseconds between looks at the sockets while some streams wait for a wake-up
    SHM_CHECK_IDLE = 16000           # the same after looks in vain, at most
    SHM_CHECK_ENDS = 5000000         # the same while no stream waits: the death of a peer shows there


cdef inline shm_domain *shm_domain_of(const soft_domain *domain) noexcept nogil:
    return <shm_domain *> domain.fabric_state


cdef shm_link *shm_link_of(const soft_domain *domain, const soft_qp *qp) noexcept nogil:
    return &shm_of(qp).links[0 if qp.domains[0] == domain else 1]


cdef bint shm_open_domain(soft_domain *domain) noexcept nogil:
    domain.fabric_state = calloc(1, sizeof(shm_domain))
    if domain.fabric_state == NULL:
        errno.errno = ENOMEM
        return False
    shm_domain_of(domain).check_after = SHM_CHECK_WAKEUPS
    # Sockets are seldom readable, so epoll always watches them.
    domain.watched = True
    return True


cdef void shm_close_domain(soft_domain *domain) noexcept nogil:
    free(domain.fabric_state)


# Waiting for the peer.


cdef bint shm_ready(const soft_qp *qp) noexcept nogil:
    """Whether there is a cell or record to receive, or room for waiting requests. Needs no lock."""
    cdef const shm_stream *shm = shm_of(qp)
    cdef const shm_page *theirs = <const shm_page *> load_acquire(&shm.theirs)
    cdef uint64_t word
    if theirs == NULL:
        return False
    return (shm_cell_ready(shm, &word) or shm_may_read(shm) or relaxed_load(&shm.unfinished)
            or relaxed_load(&shm.arrival.looking) or relaxed_load(&theirs.closed) != 0
            or (relaxed_load(&qp.tx.blocked) and load_acquire(&theirs.head) != relaxed_load(&shm.space_head)))


cdef bint shm_has_waiter(const soft_qp *qp) noexcept nogil:
    cdef const shm_stream *shm = shm_of(qp)
    cdef int i
    assert_held(&qp.lock)
    for i in range(qp.ndomains):
        if not relaxed_load(&shm.links[i].polled):
            return True
    return False


cdef void shm_tell_rest(soft_qp *qp) noexcept nogil:
    cdef const shm_stream *shm = shm_of(qp)
    cdef int i
    assert_held(&qp.lock)
    for i in range(qp.ndomains):
        if not relaxed_load(&shm.links[i].polled):
            relaxed_store(&qp.links[i].left_over, True)
            store_release(&shm_domain_of(qp.domains[i]).left_over, 1)
            # A turn that clears work_pending looks afterwards at the stores above.
            store_release(&qp.domains[i].work_pending, 1)
            # The fence comes before qp_update_fds reads `signalled`.
            full_fence()


cdef bint shm_request_wakeup(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    if not shm.wakeup_pending or (qp.tx.blocked and not shm.wakeup_for_space):
        shm.wakeups_requested += 1
        shm.wakeup_pending = True
        shm.wakeup_for_space = qp.tx.blocked
        store_release(&shm.ours.wakeup, shm.wakeups_requested << 1 | shm.wakeup_for_space)
    # Either the peer sees the request, or this end sees the octets written before the peer looked for a request.
    full_fence()
    return shm_ready(qp)


cdef bint shm_wait_for_space(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    if shm.broken:
        return False
    relaxed_store(&qp.tx.blocked, True)
    if shm_has_waiter(qp):
        shm_request_wakeup(qp)
    return load_acquire(&shm.theirs.head) != shm.space_head


cdef void shm_wake_peer(soft_qp *qp, bint consumed) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef uint32_t request
    assert_held(&qp.lock)
    full_fence()
    request = relaxed_load(&shm.theirs.wakeup)
    if request == shm.wakeup_answered or (consumed and not request & 1):
        return
    bell_ring(qp)
    shm.wakeup_answered = request


# Polled streams. The progress lock is held, except in shm_polls.


cdef void shm_start_polling(soft_domain *domain, soft_qp *qp) noexcept nogil:
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef shm_link *link = shm_link_of(domain, qp)
    assert_domain(domain)
    link.idle = 0
    if link.polled:
        return
    link.qp = qp
    link.prev = NULL
    link.next = shared.polled
    if link.next != NULL:
        link.next.prev = link
    relaxed_store_pointer(&shared.polled, link)
    shared.npolled += 1
    relaxed_store(&link.polled, True)


cdef void shm_stop_polling(soft_domain *domain, shm_link *link) noexcept nogil:
    cdef shm_domain *shared = shm_domain_of(domain)
    assert_domain(domain)
    if not link.polled:
        return
    if link.prev != NULL:
        link.prev.next = link.next
    else:
        relaxed_store_pointer(&shared.polled, link.next)
    if link.next != NULL:
        link.next.prev = link.prev
    if shared.resume == link:
        shared.resume = link.next
    shared.npolled -= 1
    relaxed_store(&link.polled, False)


cdef void shm_leave(soft_domain *domain, soft_qp *qp) noexcept nogil:
    assert_domain(domain)
    relaxed_store(&qp.links[0 if qp.domains[0] == domain else 1].left_over, False)
    if qp.fabric_state != NULL:
        shm_stop_polling(domain, shm_link_of(domain, qp))


cdef bint shm_polls(const soft_domain *domain) noexcept nogil:
    return relaxed_load(&shm_domain_of(domain).polled) != 0


cdef void shm_await_wakeup(soft_domain *domain, shm_link *link) noexcept nogil:
    """Waits for a wake-up instead of polling the ring, unless there is work already."""
    cdef soft_qp *qp = link.qp
    cdef bint busy
    assert_domain(domain)
    shm_stop_polling(domain, link)
    lock_ranked(&qp.lock, RANK_QP)
    busy = qp.stream.fd >= 0 and qp.stream.phase == STREAM_OPEN and shm_request_wakeup(qp)
    unlock_ranked(&qp.lock, RANK_QP)
    if busy:
        shm_start_polling(domain, qp)
        relaxed_store(&domain.work_pending, True)


cdef void shm_take_rest(soft_domain *domain) noexcept nogil:
    """Begins to poll the streams left with work by a turn of their other domain."""
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef soft_link *link = domain.links
    assert_domain(domain)
    if not load_acquire(&shared.left_over):
        return
    exchange(&shared.left_over, 0)
    while link != NULL:
        if load_acquire(&link.left_over):
            relaxed_store(&link.left_over, False)
            shm_start_polling(domain, link.qp)
        link = link.next


cdef void shm_arm(soft_domain *domain) noexcept nogil:
    cdef shm_link *link
    cdef shm_link *following
    assert_domain(domain)
    shm_take_rest(domain)
    link = shm_domain_of(domain).polled
    while link != NULL:
        following = link.next
        shm_await_wakeup(domain, link)
        link = following


cdef bint shm_poll_rings(soft_domain *domain) noexcept nogil:
    """Makes progress for the polled streams. Returns whether there was work."""
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef shm_link *link = shared.polled if shared.resume == NULL else shared.resume
    cdef shm_link *following
    cdef uint32_t count = shared.npolled
    cdef uint32_t found = 0
    assert_domain(domain)
    shared.resume = NULL
    while count and link != NULL:
        if domain.left <= 0:
            shared.resume = link
            break
        count -= 1
        following = shared.polled if link.next == NULL else link.next
        if <int> relaxed_load(&link.qp.stream.fd) < 0:
            shm_stop_polling(domain, link)
        elif shm_ready(link.qp):
            link.idle = 0
            domain.coming = domain.busy - found if domain.busy > found else 1
            found += 1
            shm_progress(link.qp, False, domain)
        elif shared.npolled > SHM_ALWAYS_POLLED:
            link.idle += 1
            if link.idle >= SHM_IDLE_POLLS:
                shm_await_wakeup(domain, link)
        link = following
    domain.coming = 1
    # Streams without a share in this turn are counted in the next turn.
    domain.busy = max(found, domain.busy if shared.resume != NULL else 1)
    return found != 0


cdef bint shm_sockets_due(soft_domain *domain) noexcept nogil:
    """Whether it is time to look at the sockets, which report wake-ups and the death of peers."""
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef int64_t now
    assert_domain(domain)
    shared.turns += 1
    if shared.polled == NULL:
        return True
    if shared.turns < SHM_TURNS:
        return False
    shared.turns = 0
    now = now_ns()
    if now - shared.checked < (shared.check_after if shared.npolled < domain.nlinks else <int64_t> SHM_CHECK_ENDS):
        return False
    shared.checked = now
    return True


cdef bint shm_poll_sockets(soft_domain *domain) noexcept nogil:
    """Looks at the sockets. Returns whether any was ready. If none was, the next look comes later."""
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef bint found = domain_poll_descriptors(domain) != 0
    assert_domain(domain)
    if found:
        shared.check_after = SHM_CHECK_WAKEUPS
    else:
        shared.check_after = min(2 * shared.check_after, <int64_t> SHM_CHECK_IDLE)
    return found


cdef bint shm_make_progress(soft_domain *domain, bint waits) noexcept nogil:
    """shm_domain_progress. Returns whether there was work."""
    cdef bint found
    assert_domain(domain)
    domain_clear_pending(domain)
    shm_take_rest(domain)
    found = shm_poll_rings(domain)
    if shm_sockets_due(domain) or waits:
        found |= shm_poll_sockets(domain)
    # A program with an armed queue may wait next. So its streams ask their peers for wake-ups.
    if (domain.event_fd >= 0 and shm_domain_of(domain).polled != NULL and not relaxed_load(&domain.polling)
            and (waits or relaxed_load(&domain.armed))):
        shm_arm(domain)
    return found


cdef void shm_domain_progress(soft_domain *domain, bint waits) noexcept nogil:
    shm_make_progress(domain, waits)


cdef bint shm_serve(soft_domain *domain, bint arm) noexcept nogil:
    cdef bint found = shm_make_progress(domain, arm)
    assert_domain(domain)
    if arm:
        shm_arm(domain)
        found |= relaxed_load(&domain.work_pending) != 0
    return found

# soft_shm: bells; see bell.pxd.


cdef bint bell_watch(soft_qp *qp, soft_domain *domain) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN | EPOLLET
    event.data.u64 = domain_event(domain, qp, EVENT_BELL)
    return epoll_ctl(domain.epoll_fd, EPOLL_CTL_ADD, shm_of(qp).bell, &event) == 0


cdef int bell_make(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef int i
    assert_held(&qp.lock)
    shm.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if shm.bell < 0:
        return -1
    for i in range(qp.ndomains):
        if not bell_watch(qp, qp.domains[i]):
            return -1
    return shm.bell


cdef bint bell_is_trusted(const soft_qp *qp) noexcept nogil:
    """A peer without a pid here is not trusted: another container's PID namespace hides the peer. Such a peer, whatever
    its user, cannot send signals to this process, and so must not be able to block this process by a bell.
    """
    cdef ucred peer
    cdef socklen_t length = sizeof(peer)
    if getsockopt(qp.stream.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0:
        return False
    if peer.pid == 0 or peer.uid == shm_context_of(qp.context).limits.nobody:
        return False
    return peer.uid == 0 or peer.uid == geteuid()


cdef void bell_take(soft_qp *qp, int fd) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    assert_that(shm.peer_bell < 0)
    if bell_is_trusted(qp):
        shm.peer_bell = fd
    else:
        closer_take_fd(shm_context_of(qp.context), fd)


cdef uint32_t shm_wakeups(const soft_qp *qp) noexcept nogil:
    return <uint32_t> relaxed_load(&shm_of(qp).rings)


cdef void bell_ring(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_record record
    assert_held(&qp.lock)
    relaxed_store(&shm.rings, shm.rings + 1)
    if shm.peer_bell >= 0:
        # If the bell's counter is full, earlier rings have woken the peer already.
        eventfd_signal(shm.peer_bell)
        return
    memset(&record, 0, sizeof(record))
    record.kind = SHM_WAKEUP
    # A full socket is readable for the peer, and so wakes the peer anyway.
    shm_send_record(qp, &record, NULL, 0)


cdef void bell_close(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef int i
    assert_held(&qp.lock)
    if shm.bell >= 0:
        # The peer has the open file, too: closing this descriptor does not take it out of the epoll sets.
        for i in range(qp.ndomains):
            epoll_ctl(qp.domains[i].epoll_fd, EPOLL_CTL_DEL, shm.bell, NULL)
        close(shm.bell)
    if shm.peer_bell >= 0:
        closer_take_fd(shm_context_of(qp.context), shm.peer_bell)
    shm.bell = -1
    shm.peer_bell = -1


cdef void shm_rung(soft_qp *qp, soft_domain *domain) noexcept nogil:
    assert_domain(domain)
    lock_ranked(&qp.lock, RANK_QP)
    # The queue pair may have lost its stream since the bell rang.
    if qp.stream.fd >= 0:
        shm_of(qp).wakeup_pending = False
        shm_start_polling(domain, qp)
        if not domain_is_over(domain):
            shm_progress_locked(qp, False, domain)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, domain)

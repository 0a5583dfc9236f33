# The common part of all fabrics' streams; see stream.pxd.

cdef enum:
    START_SECONDS = 10               # for the peer's answer


cdef int stream_begin(soft_qp *qp, const soft_fabric *fabric) noexcept nogil:
    cdef int error = 0
    lock_ranked(&qp.lock, RANK_QP)
    if qp.fabric != fabric or (
            qp.ibv.state != IBV_QPS_RTR and qp.ibv.state != IBV_QPS_RTS and qp.ibv.state != IBV_QPS_SQD):
        error = EINVAL
    elif qp.stream.phase != STREAM_NONE:
        error = EISCONN
    else:
        qp.stream.phase = STREAM_ATTACHING
        qp.stream.fault = NULL
    unlock_ranked(&qp.lock, RANK_QP)
    if error:
        errno.errno = error
        return -1
    return 0


cdef void stream_join(soft_qp *qp) noexcept nogil:
    cdef int i
    for i in range(qp.ndomains):
        if qp.links[i].domain == NULL:
            domain_add(qp.domains[i], &qp.links[i], qp)


cdef int stream_undo(soft_qp *qp, int error) noexcept nogil:
    assert_held(&qp.lock)
    stream_unwatch(qp)
    relaxed_store(&qp.stream.fd, -1)
    if qp.stream.phase != STREAM_CLOSED:
        qp.stream.phase = STREAM_NONE
    unlock_ranked(&qp.lock, RANK_QP)
    errno.errno = error
    return -1


cdef uint16_t stream_depth(uint32_t wanted, uint32_t limit) noexcept nogil:
    return <uint16_t> (limit if wanted == 0 or wanted > limit else wanted)


cdef void stream_await_peer(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    qp.stream.deadline = now_ns() + START_SECONDS * <int64_t> 1000000000
    qp.stream.phase = STREAM_REQUESTED


cdef bint stream_buffers(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    free(qp.responses)
    qp.responses_mask = ring_size(qp.ird) - 1
    qp.responses = <soft_response *> malloc((qp.responses_mask + 1) * sizeof(soft_response))
    free(qp.rx.buffer)
    rx_get_buffer(qp)
    return qp.responses != NULL and qp.rx.buffer != NULL


cdef bint stream_open(soft_qp *qp) noexcept nogil:
    cdef uint8_t *larger
    assert_held(&qp.lock)
    if qp.crc:
        # The buffer must hold a whole FPDU, whose CRC is checked before its use.
        larger = <uint8_t *> realloc(qp.rx.buffer, RX_BUFFER_CRC)
        if larger == NULL:
            return False
        qp.rx.buffer = larger
        qp.rx.capacity = RX_BUFFER_CRC
    qp.fabric.measure(qp)
    qp.tx.share = TX_TURN
    rx_open(qp)
    qp.stream.phase = STREAM_OPEN
    qp.stream.deadline = 0
    stream_stop_timer(qp)
    return True


cdef void stream_close(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    stream_unwatch(qp)
    if qp.stream.fd >= 0:
        qp.fabric.close(qp)
        relaxed_store(&qp.stream.fd, -1)
    free(qp.tx.bounce)
    qp.tx.bounce = NULL
    relaxed_store(&qp.tx.blocked, False)
    qp.tx.owed = False
    qp.stream.starved = False
    qp.stream.deadline = 0
    qp.stream.phase = STREAM_CLOSED


cdef bint stream_start_timer(soft_qp *qp, soft_link *link) noexcept nogil:
    cdef epoll_event event
    cdef itimerspec due
    cdef int64_t left
    assert_held(&qp.lock)
    if qp.stream.timer_fd < 0:
        qp.stream.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if qp.stream.timer_fd < 0:
            return False
        left = qp.stream.deadline - now_ns()
        memset(&due, 0, sizeof(due))
        # A due time of zero would stop the timer.
        due.it_value = ns_timespec(left if left > 0 else 1)
        timerfd_settime(qp.stream.timer_fd, 0, &due, NULL)
    event.events = EPOLLIN
    event.data.u64 = domain_event(link.domain, qp, EVENT_TIMER)
    return epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_ADD, qp.stream.timer_fd, &event) == 0


cdef void stream_stop_timer(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    # The descriptor has no duplicate, so closing it takes it out of the epoll sets.
    if qp.stream.timer_fd >= 0:
        close(qp.stream.timer_fd)
        qp.stream.timer_fd = -1


cdef inline uint32_t stream_events(const soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    if qp.stream.starved:
        # The stream's further input would be reported again and again.
        return EPOLLOUT
    return EPOLLIN | EPOLLOUT if qp.tx.blocked else EPOLLIN


cdef bint stream_watch(soft_qp *qp, soft_link *link) noexcept nogil:
    cdef epoll_event event
    assert_held(&qp.lock)
    event.events = stream_events(qp)
    event.data.u64 = domain_event(link.domain, qp, 0)
    if epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_ADD, qp.stream.fd, &event) < 0:
        return False
    if qp.stream.deadline and not stream_start_timer(qp, link):
        epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_DEL, qp.stream.fd, NULL)
        return False
    link.watched = True
    return True


cdef void stream_unwatch(soft_qp *qp) noexcept nogil:
    """Takes the stream out of all epoll sets."""
    cdef int i
    assert_held(&qp.lock)
    stream_stop_timer(qp)
    for i in range(qp.ndomains):
        if qp.links[i].watched:
            epoll_ctl(qp.domains[i].epoll_fd, EPOLL_CTL_DEL, qp.stream.fd, NULL)
            qp.links[i].watched = False


cdef void stream_want_writable(soft_qp *qp, bint wanted) noexcept nogil:
    assert_held(&qp.lock)
    if qp.tx.blocked == wanted or qp.stream.fd < 0:
        return
    relaxed_store(&qp.tx.blocked, wanted)
    if qp.fabric.want_writable != NULL:
        qp.fabric.want_writable(qp)


cdef void stream_deadline(soft_qp *qp, soft_domain *domain) noexcept nogil:
    assert_domain(domain)
    lock_ranked(&qp.lock, RANK_QP)
    if qp.stream.phase == STREAM_REQUESTED:
        qp.stream.fault = b"no answer to the stream's first record within 10 s"
    if qp.stream.phase == STREAM_REQUESTED or (qp.fabric.deadline != NULL and not qp.fabric.deadline(qp)):
        qp_lost(qp)
    if qp.stream.fd >= 0 and not qp.tx.blocked and tx_pending(qp):
        domain_transmit(domain, qp)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, domain)

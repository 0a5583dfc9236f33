# Shared receive queues; see srq.pxd.


cdef ibv_srq *soft_create_srq(ibv_pd *ibpd, ibv_srq_init_attr *init) noexcept nogil:
    cdef soft_srq *srq
    cdef uint32_t size
    if (init.attr.max_wr < 1 or init.attr.max_wr > MAX_SRQ_WR or init.attr.max_sge < 1
            or init.attr.max_sge > MAX_SGE):
        errno.errno = EINVAL
        return NULL
    srq = <soft_srq *> calloc(1, sizeof(soft_srq))
    if srq == NULL:
        errno.errno = ENOMEM
        return NULL
    size = ring_size(init.attr.max_wr)
    srq.ring = <soft_rwqe *> malloc(size * sizeof(soft_rwqe))
    srq.sges = <ibv_sge *> malloc(<size_t> size * init.attr.max_sge * sizeof(ibv_sge))
    if srq.ring == NULL or srq.sges == NULL:
        free(srq.ring)
        free(srq.sges)
        free(srq)
        errno.errno = ENOMEM
        return NULL
    pthread_mutex_init(&srq.lock, NULL)
    srq.mask = size - 1
    srq.max_wr = init.attr.max_wr
    srq.max_sge = init.attr.max_sge
    srq.async_events.element = &srq.ibv
    srq.ibv.context = ibpd.context
    srq.ibv.srq_context = init.srq_context
    srq.ibv.pd = ibpd
    fetch_add(&(<soft_pd *> ibpd).users, 1)
    live_add(LIVE_SRQ)
    return &srq.ibv


cdef int soft_destroy_srq(ibv_srq *ibsrq) noexcept nogil:
    cdef soft_srq *srq = <soft_srq *> ibsrq
    if load_acquire(&srq.users):
        return EBUSY
    async_forget(<soft_context *> ibsrq.context, &srq.async_events)
    fetch_sub(&(<soft_pd *> ibsrq.pd).users, 1)
    pthread_mutex_destroy(&srq.lock)
    free(srq.ring)
    free(srq.sges)
    free(srq)
    live_sub(LIVE_SRQ)
    return 0


cdef void srq_check_limit_locked(soft_srq *srq) noexcept nogil:
    # Makes the event, once, when fewer receives than the limit are left.
    assert_held(&srq.lock)
    if srq.tail - srq.head < srq.limit:
        srq.limit = 0
        async_event(<soft_context *> srq.ibv.context, &srq.async_events, IBV_EVENT_SRQ_LIMIT_REACHED)


cdef int srq_resize_locked(soft_srq *srq, uint32_t max_wr) noexcept nogil:
    cdef uint32_t size, i, place
    cdef soft_rwqe *ring
    cdef ibv_sge *sges
    assert_held(&srq.lock)
    if max_wr < 1 or max_wr > MAX_SRQ_WR or max_wr < srq.tail - srq.head:
        return EINVAL
    size = ring_size(max_wr)
    ring = <soft_rwqe *> malloc(size * sizeof(soft_rwqe))
    sges = <ibv_sge *> malloc(<size_t> size * srq.max_sge * sizeof(ibv_sge))
    if ring == NULL or sges == NULL:
        free(ring)
        free(sges)
        return ENOMEM
    for i in range(srq.tail - srq.head):
        place = (srq.head + i) & srq.mask
        ring[i] = srq.ring[place]
        memcpy(sges + <size_t> i * srq.max_sge, srq.sges + <size_t> place * srq.max_sge,
               srq.max_sge * sizeof(ibv_sge))
    free(srq.ring)
    free(srq.sges)
    srq.ring = ring
    srq.sges = sges
    srq.tail -= srq.head
    srq.head = 0
    srq.mask = size - 1
    srq.max_wr = max_wr
    return 0


cdef int soft_modify_srq(ibv_srq *ibsrq, ibv_srq_attr *attr, int mask) noexcept nogil:
    """IBV_SRQ_LIMIT arms the event. If fewer receives than the limit are left, the event is made at once."""
    cdef soft_srq *srq = <soft_srq *> ibsrq
    cdef int result = 0
    if mask & ~<int> (IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT):
        return EINVAL
    lock_ranked(&srq.lock, RANK_QUEUE)
    if mask & IBV_SRQ_LIMIT and attr.srq_limit > (attr.max_wr if mask & IBV_SRQ_MAX_WR else srq.max_wr):
        result = EINVAL
    if result == 0 and mask & IBV_SRQ_MAX_WR:
        result = srq_resize_locked(srq, attr.max_wr)
    if result == 0 and mask & IBV_SRQ_LIMIT:
        srq.limit = attr.srq_limit
        srq_check_limit_locked(srq)
    unlock_ranked(&srq.lock, RANK_QUEUE)
    return result


cdef int soft_query_srq(ibv_srq *ibsrq, ibv_srq_attr *attr) noexcept nogil:
    cdef soft_srq *srq = <soft_srq *> ibsrq
    lock_ranked(&srq.lock, RANK_QUEUE)
    attr.max_wr = srq.max_wr
    attr.max_sge = srq.max_sge
    attr.srq_limit = srq.limit
    unlock_ranked(&srq.lock, RANK_QUEUE)
    return 0


cdef int soft_post_srq_recv(ibv_srq *ibsrq, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil:
    cdef soft_srq *srq = <soft_srq *> ibsrq
    cdef int result = 0
    lock_ranked(&srq.lock, RANK_QUEUE)
    while wr != NULL:
        if wr.num_sge < 0 or <uint32_t> wr.num_sge > srq.max_sge:
            result = EINVAL
            break
        if srq.tail - srq.head >= srq.max_wr:
            result = ENOMEM
            break
        rwqe_fill(&srq.ring[srq.tail & srq.mask], srq.sges + <size_t> (srq.tail & srq.mask) * srq.max_sge, wr)
        srq.tail += 1
        wr = wr.next
    unlock_ranked(&srq.lock, RANK_QUEUE)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
    return result


cdef bint srq_take(soft_qp *qp) noexcept nogil:
    cdef soft_srq *srq = qp.srq
    cdef uint32_t place
    cdef bint taken = False
    assert_held(&qp.lock)
    if qp.limited and relaxed_load(&qp.allowed) == qp.taken:
        return False
    lock_ranked(&srq.lock, RANK_QUEUE)
    if srq.head != srq.tail:
        if srq.newest_first:
            srq.tail -= 1
            place = srq.tail & srq.mask
        else:
            place = srq.head & srq.mask
            srq.head += 1
        qp.rq[qp.rq_tail & qp.rq_mask] = srq.ring[place]
        memcpy(qp.rq_sges, srq.sges + <size_t> place * srq.max_sge, srq.max_sge * sizeof(ibv_sge))
        qp.rq_tail += 1
        qp.taken += 1
        srq_check_limit_locked(srq)
        taken = True
    unlock_ranked(&srq.lock, RANK_QUEUE)
    return taken


cdef void soft_srq_newest_first(ibv_srq *ibsrq) noexcept nogil:
    cdef soft_srq *srq = <soft_srq *> ibsrq
    lock_ranked(&srq.lock, RANK_QUEUE)
    srq.newest_first = True
    unlock_ranked(&srq.lock, RANK_QUEUE)

# Queue pairs; see qp.pxd.

cdef enum:
    QP_NUM_MASK = 0xffffff
    SQ_FIRST = 8                     # entries of the send queue's ring, at first


cdef void qp_reset(soft_qp *qp) noexcept nogil:
    """Sets the queues and the protocol's counters as in RESET. qp.lock is held, or the queue pair is new."""
    qp.sq_head = 0
    qp.sq_tail = 0
    qp.rq_head = 0
    qp.rq_tail = 0
    qp.reads_done = 0
    qp.responses_tail = 0
    memset(&qp.tx.cursor, 0, sizeof(qp.tx.cursor))
    qp.tx.cursor.send_msn = 1
    qp.tx.cursor.read_msn = 1
    qp.tx.allowed = False
    qp.tx.held = False
    relaxed_store(&qp.tx.blocked, False)
    qp.tx.owed = False
    qp.tx.broken = False
    qp.tx.frame_sent = 0
    rx_open(qp)
    qp.rx.offset = 0
    qp.rx.segment = 0
    qp.rx.send_msn = 1
    qp.rx.read_msn = 1
    qp.crc = False
    qp.terminated = False
    qp.drain_notify = False
    qp.established = False


cdef uint32_t ring_size(uint32_t entries) noexcept nogil:
    cdef uint32_t size = 1
    while size < entries:
        size *= 2
    return size


cdef int qp_check_init(const ibv_context *context, const ibv_qp_init_attr *init) noexcept nogil:
    """Checks the attributes asked for by the program. 0 or an errno value."""
    cdef const ibv_qp_cap *cap = &init.cap
    if init.qp_type != IBV_QPT_RC:
        return EOPNOTSUPP
    if (init.send_cq == NULL or init.recv_cq == NULL or init.send_cq.context != context
            or init.recv_cq.context != context or (init.srq != NULL and init.srq.context != context)):
        return EINVAL
    if (cap.max_send_wr > MAX_QP_WR or cap.max_recv_wr > MAX_QP_WR or cap.max_send_sge > MAX_SGE
            or cap.max_recv_sge > MAX_SGE or cap.max_inline_data > MAX_INLINE):
        return EINVAL
    return 0


cdef bint qp_make_queues(soft_qp *qp, ibv_qp_init_attr *init) noexcept nogil:
    """Makes the work queues for init.cap. With an SRQ sets the two receive sizes of init.cap to 0, for the program to
    see. False: no memory; qp_free frees the finished parts.
    """
    cdef ibv_qp_cap *cap = &init.cap
    cdef uint32_t recvs
    if init.srq != NULL:
        # No receive queue; ring_size(0) is 1, so there is one entry, for the receive taken from the SRQ.
        cap.max_recv_wr = 0
        cap.max_recv_sge = 0
    qp.cap = cap[0]
    qp.rq_sge = cap.max_recv_sge if init.srq == NULL else (<soft_srq *> init.srq).max_sge
    recvs = ring_size(cap.max_recv_wr)
    qp.rq_mask = recvs - 1
    # malloc(0) may return NULL: no size here is zero.
    qp.rq = <soft_rwqe *> malloc(recvs * sizeof(soft_rwqe))
    qp.rq_sges = <ibv_sge *> malloc((<size_t> recvs * qp.rq_sge + 1) * sizeof(ibv_sge))
    return (qp.rq != NULL and qp.rq_sges != NULL
            and qp_make_sends(qp, min(ring_size(cap.max_send_wr), <uint32_t> SQ_FIRST)))


cdef bint qp_make_sends(soft_qp *qp, uint32_t sends) noexcept nogil:
    """Makes the send queue's ring, or a larger ring. False: no memory, and the queue is unchanged."""
    cdef const ibv_qp_cap *cap = &qp.cap
    cdef soft_swqe *sq = <soft_swqe *> malloc(sends * sizeof(soft_swqe))
    cdef ibv_sge *sges = <ibv_sge *> malloc((<size_t> sends * cap.max_send_sge + 1) * sizeof(ibv_sge))
    cdef uint8_t *data = <uint8_t *> malloc(<size_t> sends * cap.max_inline_data + 1)
    cdef uint32_t i
    cdef size_t old, new
    if sq == NULL or sges == NULL or data == NULL:
        free(sq)
        free(sges)
        free(data)
        return False
    for i in range(qp.sq_tail - qp.sq_head):
        old = (qp.sq_head + i) & qp.sq_mask
        new = (qp.sq_head + i) & (sends - 1)
        sq[new] = qp.sq[old]
        memcpy(sges + new * cap.max_send_sge, qp.sq_sges + old * cap.max_send_sge, cap.max_send_sge * sizeof(ibv_sge))
        memcpy(data + new * cap.max_inline_data, qp.sq_inline + old * cap.max_inline_data, cap.max_inline_data)
    free(qp.sq)
    free(qp.sq_sges)
    free(qp.sq_inline)
    qp.sq = sq
    qp.sq_sges = sges
    qp.sq_inline = data
    qp.sq_mask = sends - 1
    return True


cdef void qp_list(soft_context *context, soft_qp *qp) noexcept nogil:
    """Gives the queue pair its number and adds it to the context's list."""
    cdef soft_qp *other = qp
    lock_ranked(&context.lock, RANK_DOMAIN)
    while other != NULL:
        # The number has 24 bits, and no other queue pair has it. InfiniBand reserves 0 and 1.
        context.next_qp_num = (context.next_qp_num + 1) & QP_NUM_MASK
        if context.next_qp_num < 2:
            continue
        other = context.qps
        while other != NULL and other.ibv.qp_num != context.next_qp_num:
            other = other.next
    qp.ibv.qp_num = context.next_qp_num
    qp.ibv.handle = qp.ibv.qp_num
    qp.next = context.qps
    if qp.next != NULL:
        qp.next.prev = qp
    context.qps = qp
    unlock_ranked(&context.lock, RANK_DOMAIN)


cdef void qp_unlist(soft_context *context, soft_qp *qp) noexcept nogil:
    lock_ranked(&context.lock, RANK_DOMAIN)
    if qp.prev != NULL:
        qp.prev.next = qp.next
    else:
        context.qps = qp.next
    if qp.next != NULL:
        qp.next.prev = qp.prev
    unlock_ranked(&context.lock, RANK_DOMAIN)


cdef ibv_qp *soft_create_qp(ibv_pd *ibpd, ibv_qp_init_attr *init) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibpd.context
    cdef soft_qp *qp
    cdef int error = qp_check_init(ibpd.context, init)
    if error:
        errno.errno = error
        return NULL
    qp = <soft_qp *> calloc(1, sizeof(soft_qp))
    if qp == NULL:
        errno.errno = ENOMEM
        return NULL
    pthread_mutex_init(&qp.lock, NULL)
    if not qp_make_queues(qp, init):
        qp_free(qp)
        errno.errno = ENOMEM
        return NULL
    qp.counters = &qp.own_counters
    qp.context = context
    qp.fabric = context.fabric
    qp.pd = <soft_pd *> ibpd
    qp.send_cq = <soft_cq *> init.send_cq
    qp.recv_cq = <soft_cq *> init.recv_cq
    qp.srq = <soft_srq *> init.srq
    qp.async_events.element = &qp.ibv
    qp.domains[0] = qp.recv_cq.domain
    qp.ndomains = 1
    if qp.send_cq.domain != qp.recv_cq.domain:
        qp.domains[1] = qp.send_cq.domain
        qp.ndomains = 2
    qp.sig_all = init.sq_sig_all != 0
    qp.stream.fd = -1
    qp.stream.timer_fd = -1
    qp_reset(qp)
    qp.ibv.context = ibpd.context
    qp.ibv.qp_context = init.qp_context
    qp.ibv.pd = ibpd
    qp.ibv.send_cq = init.send_cq
    qp.ibv.recv_cq = init.recv_cq
    qp.ibv.srq = init.srq
    qp.ibv.state = IBV_QPS_RESET
    qp.ibv.qp_type = IBV_QPT_RC
    fetch_add(&qp.pd.users, 1)
    fetch_add(&qp.send_cq.users, 1)
    fetch_add(&qp.recv_cq.users, 1)
    if qp.srq != NULL:
        fetch_add(&qp.srq.users, 1)
    qp_list(context, qp)
    live_add(LIVE_QP)
    return &qp.ibv


cdef void qp_free(soft_qp *qp) noexcept nogil:
    # Frees a queue pair in no list, perhaps half-made.
    pthread_mutex_destroy(&qp.lock)
    free(qp.sq)
    free(qp.sq_sges)
    free(qp.sq_inline)
    free(qp.rq)
    free(qp.rq_sges)
    free(qp.responses)
    free(qp.rx.buffer)
    if qp.fabric_state != NULL:
        qp.fabric.free(qp)
    free(qp)


cdef int soft_destroy_qp(ibv_qp *ibqp) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int i
    lock_ranked(&qp.lock, RANK_QP)
    stream_close(qp)
    qp.ibv.state = IBV_QPS_RESET
    unlock_ranked(&qp.lock, RANK_QP)
    for i in range(qp.ndomains):
        if qp.links[i].domain != NULL:
            domain_remove(qp.domains[i], &qp.links[i])
    mw_unbind_all(qp)
    cq_purge(qp.send_cq, qp.ibv.qp_num)
    if qp.recv_cq != qp.send_cq:
        cq_purge(qp.recv_cq, qp.ibv.qp_num)
    qp_unlist(qp.context, qp)
    async_forget(qp.context, &qp.async_events)
    if qp.srq != NULL:
        fetch_sub(&qp.srq.users, 1)
    fetch_sub(&qp.send_cq.users, 1)
    fetch_sub(&qp.recv_cq.users, 1)
    fetch_sub(&qp.pd.users, 1)
    qp_free(qp)
    live_sub(LIVE_QP)
    return 0


cdef void qp_complete_send(soft_qp *qp, const soft_swqe *swqe, int status) noexcept nogil:
    cdef ibv_wc_opcode opcode = IBV_WC_SEND
    if swqe.opcode == IBV_WR_RDMA_WRITE:
        opcode = IBV_WC_RDMA_WRITE
    elif swqe.opcode == IBV_WR_RDMA_READ:
        opcode = IBV_WC_RDMA_READ
    elif swqe.opcode == IBV_WR_LOCAL_INV:
        opcode = IBV_WC_LOCAL_INV
    elif swqe.opcode == IBV_WR_BIND_MW:
        opcode = IBV_WC_BIND_MW
    qp_completed(qp, swqe.wr_id, opcode, swqe.length, status)


cdef void qp_completed(soft_qp *qp, uint64_t wr_id, ibv_wc_opcode opcode, uint32_t length, int status) noexcept nogil:
    cdef ibv_wc wc
    assert_held(&qp.lock)
    memset(&wc, 0, sizeof(wc))
    wc.wr_id = wr_id
    wc.status = <ibv_wc_status> status
    wc.opcode = opcode
    wc.qp_num = qp.ibv.qp_num
    wc.byte_len = length
    if not cq_add(qp.send_cq, &wc, False) and qp.ibv.state != IBV_QPS_ERR:
        qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef void qp_complete_recv(soft_qp *qp, const soft_rwqe *rwqe, int status) noexcept nogil:
    """Adds the completion of a failed receive."""
    cdef ibv_wc wc
    assert_held(&qp.lock)
    memset(&wc, 0, sizeof(wc))
    wc.wr_id = rwqe.wr_id
    wc.status = <ibv_wc_status> status
    wc.opcode = IBV_WC_RECV
    wc.qp_num = qp.ibv.qp_num
    cq_add(qp.recv_cq, &wc, False)


cdef void qp_retire(soft_qp *qp) noexcept nogil:
    cdef soft_swqe *swqe
    assert_held(&qp.lock)
    while qp.sq_head != qp.sq_tail:
        swqe = &qp.sq[qp.sq_head & qp.sq_mask]
        if swqe.state != SWQE_DONE:
            break
        qp.sq_head += 1
        if swqe.flags & IBV_SEND_SIGNALED:
            qp_complete_send(qp, swqe, IBV_WC_SUCCESS)
    if qp.drain_notify and qp.ibv.state == IBV_QPS_SQD and qp_drained(qp):
        qp.drain_notify = False
        async_event(qp.context, &qp.async_events, IBV_EVENT_SQ_DRAINED)


cdef bint qp_drained(soft_qp *qp) noexcept nogil:
    """Whether all begun requests are complete."""
    assert_held(&qp.lock)
    return qp.sq_head == qp.tx.cursor.next_wqe and qp.tx.cursor.kind != TX_REQUEST


cdef void qp_error(soft_qp *qp, uint32_t culprit, int sq_status, int rq_status) noexcept nogil:
    cdef soft_swqe *swqe
    cdef soft_rwqe last
    cdef bint entered = qp.ibv.state != IBV_QPS_ERR
    assert_held(&qp.lock)
    stream_close(qp)
    if qp.ibv.state == IBV_QPS_RESET:
        return
    relaxed_store(&qp.ibv.state, IBV_QPS_ERR)
    qp_retire(qp)
    while qp.sq_head != qp.sq_tail:
        swqe = &qp.sq[qp.sq_head & qp.sq_mask]
        if sq_status != IBV_WC_SUCCESS and qp.sq_head == culprit:
            qp_complete_send(qp, swqe, sq_status)
        else:
            qp_complete_send(qp, swqe, IBV_WC_WR_FLUSH_ERR)
        qp.sq_head += 1
    while qp.rq_head != qp.rq_tail:
        qp_complete_recv(qp, &qp.rq[qp.rq_head & qp.rq_mask],
                         rq_status if rq_status != IBV_WC_SUCCESS else IBV_WC_WR_FLUSH_ERR)
        rq_status = IBV_WC_SUCCESS
        qp.rq_head += 1
    if entered and qp.srq != NULL:
        async_event(qp.context, &qp.async_events, IBV_EVENT_QP_LAST_WQE_REACHED)
        if qp.limited:
            last.wr_id = qp.last_wr_id
            qp_complete_recv(qp, &last, IBV_WC_WR_FLUSH_ERR)


cdef void qp_lost(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    if qp.ibv.state != IBV_QPS_RESET and qp.ibv.state != IBV_QPS_ERR:
        async_event(qp.context, &qp.async_events, IBV_EVENT_QP_FATAL)
    qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef int qp_event_of(uint32_t error) noexcept nogil:
    """The asynchronous event for a Terminate caused by the peer. error: TERM_*, layer and type in the upper byte, code
    in the lower."""
    if error >> 8 == TERM_PROTECTION_STAG >> 8 or (error >> 8 == TERM_TAGGED_STAG >> 8
                                                   and error != TERM_TAGGED_VERSION):
        return IBV_EVENT_QP_ACCESS_ERR
    if error >> 8 == TERM_RDMAP_VERSION >> 8 or error >> 8 == TERM_UNTAGGED_QN >> 8 or error == TERM_TAGGED_VERSION:
        return IBV_EVENT_QP_REQ_ERR
    return IBV_EVENT_QP_FATAL


cdef void qp_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received, int sq_status,
                       int rq_status) noexcept nogil:
    cdef uint32_t culprit = qp.reads[qp.reads_done % MAX_READS]
    assert_held(&qp.lock)
    # An error reported by a completion makes no event.
    if sq_status == IBV_WC_SUCCESS and rq_status == IBV_WC_SUCCESS:
        async_event(qp.context, &qp.async_events, qp_event_of(error))
    tx_terminate(qp, error, segment, received)
    qp_error(qp, culprit, sq_status, rq_status)


cdef int qp_allowed(int before, int after, int *required, int *optional) noexcept nogil:
    """The attributes required and allowed for an RC queue pair's transition of states. EINVAL: no such transition."""
    cdef int either = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE
    either |= IBV_QP_MIN_RNR_TIMER
    required[0] = 0
    optional[0] = 0
    if after == IBV_QPS_RESET or after == IBV_QPS_ERR:
        return 0
    if after == IBV_QPS_INIT and before == IBV_QPS_RESET:
        required[0] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
    elif after == IBV_QPS_INIT and before == IBV_QPS_INIT:
        optional[0] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
    elif after == IBV_QPS_RTR and before == IBV_QPS_INIT:
        required[0] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        required[0] |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
        optional[0] = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX
    elif after == IBV_QPS_RTS and before == IBV_QPS_RTR:
        required[0] = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
        optional[0] = either
    elif after == IBV_QPS_RTS and (before == IBV_QPS_RTS or before == IBV_QPS_SQD):
        optional[0] = either
    elif after == IBV_QPS_SQD and before == IBV_QPS_RTS:
        optional[0] = IBV_QP_EN_SQD_ASYNC_NOTIFY
    elif after == IBV_QPS_SQD and before == IBV_QPS_SQD:
        optional[0] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
        optional[0] |= IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH
        optional[0] |= IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE
    else:
        return EINVAL
    return 0


cdef bint qp_values_valid(const ibv_qp_attr *attr, int mask) noexcept nogil:
    """Whether the values are possible for this device, and fit the fields of InfiniBand packets."""
    if (mask & IBV_QP_PORT and attr.port_num != 1) or (mask & IBV_QP_PKEY_INDEX and attr.pkey_index != 0):
        return False
    if mask & IBV_QP_ACCESS_FLAGS and attr.qp_access_flags & ~<unsigned int> (
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND):
        return False
    if mask & IBV_QP_PATH_MTU and (<int> attr.path_mtu < IBV_MTU_256 or <int> attr.path_mtu > IBV_MTU_4096):
        return False
    if (mask & IBV_QP_DEST_QPN and attr.dest_qp_num > QP_NUM_MASK) or (mask & IBV_QP_TIMEOUT and attr.timeout > 31):
        return False
    if (mask & IBV_QP_RETRY_CNT and attr.retry_cnt > 7) or (mask & IBV_QP_RNR_RETRY and attr.rnr_retry > 7):
        return False
    if mask & IBV_QP_MIN_RNR_TIMER and attr.min_rnr_timer > 31:
        return False
    if mask & IBV_QP_MAX_DEST_RD_ATOMIC and attr.max_dest_rd_atomic > MAX_READS:
        return False
    return not (mask & IBV_QP_MAX_QP_RD_ATOMIC and attr.max_rd_atomic > MAX_READS)


cdef int qp_modify(soft_qp *qp, const ibv_qp_attr *attr, int mask) noexcept nogil:
    """soft_modify_qp, once qp.lock is held."""
    cdef int before = qp.ibv.state
    cdef int after = attr.qp_state if mask & IBV_QP_STATE else before
    cdef int required, optional
    assert_held(&qp.lock)
    if mask & IBV_QP_CUR_STATE and <int> attr.cur_qp_state != before:
        return EINVAL
    if qp_allowed(before, after, &required, &optional):
        return EINVAL
    mask &= ~<int> IBV_QP_STATE
    if mask & required != required or mask & ~(required | optional):
        return EINVAL
    if not qp_values_valid(attr, mask):
        return EINVAL
    if mask & IBV_QP_ACCESS_FLAGS:
        qp.attr.qp_access_flags = attr.qp_access_flags
    if mask & IBV_QP_PORT:
        qp.attr.port_num = attr.port_num
    if mask & IBV_QP_AV:
        qp.attr.ah_attr = attr.ah_attr
    if mask & IBV_QP_PATH_MTU:
        qp.attr.path_mtu = attr.path_mtu
    if mask & IBV_QP_DEST_QPN:
        qp.attr.dest_qp_num = attr.dest_qp_num
    if mask & IBV_QP_RQ_PSN:
        qp.attr.rq_psn = attr.rq_psn
    if mask & IBV_QP_SQ_PSN:
        qp.attr.sq_psn = attr.sq_psn
    if mask & IBV_QP_MAX_DEST_RD_ATOMIC:
        qp.attr.max_dest_rd_atomic = attr.max_dest_rd_atomic
    if mask & IBV_QP_MAX_QP_RD_ATOMIC:
        qp.attr.max_rd_atomic = attr.max_rd_atomic
    if mask & IBV_QP_MIN_RNR_TIMER:
        qp.attr.min_rnr_timer = attr.min_rnr_timer
    if mask & IBV_QP_TIMEOUT:
        qp.attr.timeout = attr.timeout
    if mask & IBV_QP_RETRY_CNT:
        qp.attr.retry_cnt = attr.retry_cnt
    if mask & IBV_QP_RNR_RETRY:
        qp.attr.rnr_retry = attr.rnr_retry
    if after == IBV_QPS_ERR:
        qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)
    elif after == IBV_QPS_RESET:
        stream_close(qp)
        qp.stream.phase = STREAM_NONE
        qp_reset(qp)
        memset(&qp.attr, 0, sizeof(qp.attr))
        cq_purge(qp.send_cq, qp.ibv.qp_num)
        cq_purge(qp.recv_cq, qp.ibv.qp_num)
    relaxed_store(&qp.ibv.state, after)
    if after == IBV_QPS_SQD and before == IBV_QPS_RTS:
        qp.drain_notify = mask & IBV_QP_EN_SQD_ASYNC_NOTIFY and attr.en_sqd_async_notify
        qp_retire(qp)
    if after == IBV_QPS_RTS and not qp.tx.blocked and tx_pending(qp):
        qp.fabric.transmit(qp)
    return 0


cdef int soft_modify_qp(ibv_qp *ibqp, ibv_qp_attr *attr, int mask) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int result
    lock_ranked(&qp.lock, RANK_QP)
    result = qp_modify(qp, attr, mask)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, NULL)
    return result


cdef int soft_query_qp(ibv_qp *ibqp, ibv_qp_attr *attr, int mask, ibv_qp_init_attr *init) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    lock_ranked(&qp.lock, RANK_QP)
    attr[0] = qp.attr
    attr.qp_state = qp.ibv.state
    attr.cur_qp_state = qp.ibv.state
    attr.sq_draining = qp.ibv.state == IBV_QPS_SQD and not qp_drained(qp)
    attr.cap = qp.cap
    if qp.stream.phase == STREAM_OPEN:
        # An open stream has the values negotiated with the peer.
        attr.max_rd_atomic = <uint8_t> qp.ord
        attr.max_dest_rd_atomic = <uint8_t> qp.ird
    unlock_ranked(&qp.lock, RANK_QP)
    if init != NULL:
        memset(init, 0, sizeof(init[0]))
        init.qp_context = ibqp.qp_context
        init.send_cq = ibqp.send_cq
        init.recv_cq = ibqp.recv_cq
        init.srq = ibqp.srq
        init.cap = qp.cap
        init.qp_type = ibqp.qp_type
        init.sq_sig_all = qp.sig_all
    return 0


cdef inline bint swqe_is_local(const soft_swqe *swqe) noexcept nogil:
    return swqe.opcode == IBV_WR_LOCAL_INV or swqe.opcode == IBV_WR_BIND_MW


cdef int qp_enqueue_send(soft_qp *qp, const ibv_send_wr *wr) noexcept nogil:
    """Takes one work request into the send queue. 0 or an errno value."""
    cdef uint32_t index
    cdef soft_swqe *swqe
    cdef uint64_t length = 0
    cdef uint8_t *data
    cdef int i
    assert_held(&qp.lock)
    if (wr.opcode != IBV_WR_SEND and wr.opcode != IBV_WR_RDMA_WRITE and wr.opcode != IBV_WR_RDMA_READ
            and wr.opcode != IBV_WR_SEND_WITH_INV and wr.opcode != IBV_WR_LOCAL_INV and wr.opcode != IBV_WR_BIND_MW):
        return EINVAL
    if qp.sq_tail - qp.sq_head >= qp.cap.max_send_wr:
        return ENOMEM
    if wr.num_sge < 0 or (<uint32_t> wr.num_sge > qp.cap.max_send_sge
                          and not (wr.send_flags & IBV_SEND_INLINE and wr.num_sge <= <int> MAX_SGE)):
        return EINVAL
    for i in range(wr.num_sge):
        length += wr.sg_list[i].length
    if length > MAX_MESSAGE:
        return EINVAL
    if qp.sq_tail - qp.sq_head > qp.sq_mask and not qp_make_sends(qp, 2 * (qp.sq_mask + 1)):
        return ENOMEM
    index = qp.sq_tail & qp.sq_mask
    swqe = &qp.sq[index]
    swqe.wr_id = wr.wr_id
    swqe.opcode = <uint8_t> wr.opcode
    swqe.flags = <uint8_t> (wr.send_flags | (IBV_SEND_SIGNALED if qp.sig_all else 0))
    swqe.state = SWQE_POSTED
    swqe.length = <uint32_t> length
    swqe.received = 0
    if wr.opcode == IBV_WR_SEND_WITH_INV:
        swqe.rkey = wr.invalidate_rkey
    else:
        swqe.rkey = wr.wr.rdma.rkey
        swqe.remote_addr = wr.wr.rdma.remote_addr
    if swqe_is_local(swqe):
        i = mw_fill(qp, swqe, wr)
        if i:
            return i
    elif wr.send_flags & IBV_SEND_INLINE:
        if length > qp.cap.max_inline_data or wr.opcode == IBV_WR_RDMA_READ:
            return EINVAL
        data = qp.sq_inline + <size_t> index * qp.cap.max_inline_data
        for i in range(wr.num_sge):
            memcpy(data, <const void *> wr.sg_list[i].addr, wr.sg_list[i].length)
            data += wr.sg_list[i].length
        swqe.num_sge = 0
    else:
        swqe.num_sge = <uint16_t> wr.num_sge
        if wr.num_sge:
            memcpy(qp.sq_sges + index * qp.cap.max_send_sge, wr.sg_list, wr.num_sge * sizeof(ibv_sge))
    qp.sq_tail += 1
    return 0


cdef inline void qp_begin_again(soft_qp *qp) noexcept nogil:
    """Restarts an empty send queue at its first entry: with few requests at a time, a long ring touches only its first
    entries, and these stay in the processor's cache."""
    cdef uint32_t skipped = (qp.sq_mask + 1 - (qp.sq_tail & qp.sq_mask)) & qp.sq_mask
    assert_held(&qp.lock)
    if qp.sq_head == qp.sq_tail and qp.tx.cursor.next_wqe == qp.sq_tail:
        qp.sq_head += skipped
        qp.sq_tail += skipped
        qp.tx.cursor.next_wqe += skipped


cdef int qp_enqueue_sends(soft_qp *qp, ibv_send_wr **wr) noexcept nogil:
    cdef bint local = False
    cdef int result = 0
    assert_held(&qp.lock)
    if qp.ibv.state != IBV_QPS_RTS and qp.ibv.state != IBV_QPS_SQD and qp.ibv.state != IBV_QPS_ERR:
        return EINVAL
    qp_begin_again(qp)
    while wr[0] != NULL:
        result = qp_enqueue_send(qp, wr[0])
        if result:
            break
        local |= swqe_is_local(&qp.sq[(qp.sq_tail - 1) & qp.sq_mask])
        if qp.ibv.state == IBV_QPS_ERR:
            qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)
        wr[0] = wr[0].next
    if local:
        # Such requests need no stream, also before there is a stream.
        tx_execute_local(qp)
    return result


cdef void rwqe_fill(soft_rwqe *rwqe, ibv_sge *sges, const ibv_recv_wr *wr) noexcept nogil:
    cdef int i
    rwqe.wr_id = wr.wr_id
    rwqe.num_sge = <uint32_t> wr.num_sge
    rwqe.length = 0
    for i in range(wr.num_sge):
        rwqe.length += wr.sg_list[i].length
        sges[i] = wr.sg_list[i]


cdef int soft_post_recv(ibv_qp *ibqp, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef uint32_t index
    cdef int result = 0
    cdef bint flushed = False
    lock_ranked(&qp.lock, RANK_QP)
    if qp.ibv.state == IBV_QPS_RESET or qp.srq != NULL:
        result = EINVAL
    while result == 0 and wr != NULL:
        if wr.num_sge < 0 or <uint32_t> wr.num_sge > qp.cap.max_recv_sge:
            result = EINVAL
            break
        if qp.rq_tail - qp.rq_head >= qp.cap.max_recv_wr:
            result = ENOMEM
            break
        index = qp.rq_tail & qp.rq_mask
        rwqe_fill(&qp.rq[index], qp.rq_sges + index * qp.rq_sge, wr)
        qp.rq_tail += 1
        if qp.ibv.state == IBV_QPS_ERR:
            qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)
            flushed = True
        wr = wr.next
    unlock_ranked(&qp.lock, RANK_QP)
    if flushed:
        qp_update_fds(qp, NULL)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
    return result


cdef void soft_query_counters(ibv_qp *ibqp, soft_qp_counters *out) noexcept nogil:
    cdef const uint64_t *counters = <const uint64_t *> (<soft_qp *> ibqp).counters
    cdef uint64_t *copies = <uint64_t *> out
    cdef size_t i
    for i in range(sizeof(soft_qp_counters) // sizeof(uint64_t)):
        copies[i] = relaxed_load(&counters[i])


cdef void soft_share_counters(ibv_qp *ibqp, soft_qp_counters *counters) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    lock_ranked(&qp.lock, RANK_QP)
    assert_that(qp.stream.phase == STREAM_NONE)
    qp.counters = counters
    unlock_ranked(&qp.lock, RANK_QP)


cdef void soft_qp_limit(ibv_qp *ibqp, uint32_t allowed, uint64_t wr_id) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    lock_ranked(&qp.lock, RANK_QP)
    assert_that(qp.srq != NULL and qp.stream.phase == STREAM_NONE)
    qp.limited = True
    qp.last_wr_id = wr_id
    relaxed_store(&qp.allowed, allowed)
    unlock_ranked(&qp.lock, RANK_QP)


cdef void soft_qp_allow(ibv_qp *ibqp, uint32_t more) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    relaxed_store(&qp.allowed, qp.allowed + more)


cdef bint soft_qp_terminated(ibv_qp *ibqp, int *opcode, ibv_wc_status *status) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef bint known
    lock_ranked(&qp.lock, RANK_QP)
    known = qp.terminated and qp.terminated_opcode >= 0
    opcode[0] = qp.terminated_opcode
    status[0] = <ibv_wc_status> qp.terminated_status
    unlock_ranked(&qp.lock, RANK_QP)
    return known


cdef const char *soft_qp_fault(ibv_qp *ibqp) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef const char *fault
    lock_ranked(&qp.lock, RANK_QP)
    fault = qp.stream.fault
    unlock_ranked(&qp.lock, RANK_QP)
    return fault


cdef uint32_t soft_qp_wakeups(ibv_qp *ibqp) noexcept nogil:
    cdef const soft_qp *qp = <const soft_qp *> ibqp
    return qp.fabric.wakeups(qp) if qp.fabric.wakeups != NULL and qp.fabric_state != NULL else 0


cdef uint64_t soft_qp_written(ibv_qp *ibqp) noexcept nogil:
    cdef const soft_qp *qp = <const soft_qp *> ibqp
    return qp.fabric.written(qp) if qp.fabric.written != NULL and qp.fabric_state != NULL else 0


cdef uint32_t soft_qp_write_unit(ibv_qp *ibqp) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef uint32_t unit = 0
    if qp.fabric.is_direct == NULL:
        lock_ranked(&qp.lock, RANK_QP)
        unit = tx_tagged_room(qp.tx.mulpdu)
        unlock_ranked(&qp.lock, RANK_QP)
    return unit

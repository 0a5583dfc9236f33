# Queue pairs: creation, states, posting, completion of sends, errors.


cdef void qp_forget_work(soft_qp *qp) noexcept nogil:
    """The queues and the protocol's counters as in RESET."""
    qp.sq_head = 0
    qp.sq_tail = 0
    qp.rq_head = 0
    qp.rq_tail = 0
    qp.reads_done = 0
    qp.responses_tail = 0
    memset(&qp.cursor, 0, sizeof(qp.cursor))
    qp.cursor.send_msn = 1
    qp.cursor.read_msn = 1
    qp.frame_sent = 0
    qp.rx_state = RX_HEADER
    qp.rx_start = 0
    qp.rx_end = 0
    qp.rx_offset = 0
    qp.rx_segment = 0
    qp.rx_send_msn = 1
    qp.rx_read_msn = 1
    qp.tx_gate = False
    qp.pausing = False
    qp.refused = False
    qp.peer_ird = 0
    qp.peer_ord = 0
    free(qp.peer_data)
    qp.peer_data = NULL
    qp.peer_length = 0
    relaxed_store(&qp.tx_blocked, False)
    qp.tx_dead = False
    qp.crc = False
    qp.terminated = False
    qp.drain_notify = False
    qp.established = False


cdef void qp_free(soft_qp *qp) noexcept nogil:
    pthread_mutex_destroy(&qp.lock)
    free(qp.sq)
    free(qp.sq_sges)
    free(qp.sq_inline)
    free(qp.rq)
    free(qp.rq_sges)
    free(qp.responses)
    free(qp.rx_buffer)
    free(qp.peer_data)
    if qp.shm != NULL:
        shm_unmap(qp.shm)
    free(qp.shm)
    free(qp)


cdef uint32_t ring_size(uint32_t entries) noexcept nogil:
    cdef uint32_t size = 1
    while size < entries:
        size *= 2
    return size


cdef ibv_qp *soft_create_qp(ibv_pd *ibpd, ibv_qp_init_attr *init) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibpd.context
    cdef soft_qp *qp
    cdef soft_qp *other
    cdef ibv_qp_cap *cap = &init.cap
    cdef uint32_t sends, recvs
    if init.qp_type != IBV_QPT_RC:
        errno.errno = EOPNOTSUPP
        return NULL
    if (init.send_cq == NULL or init.recv_cq == NULL or init.send_cq.context != ibpd.context
            or init.recv_cq.context != ibpd.context
            or (init.srq != NULL and init.srq.context != ibpd.context)
            or cap.max_send_wr > MAX_QP_WR or cap.max_recv_wr > MAX_QP_WR
            or cap.max_send_sge > MAX_SGE or cap.max_recv_sge > MAX_SGE or cap.max_inline_data > MAX_INLINE):
        errno.errno = EINVAL
        return NULL
    qp = <soft_qp *> calloc(1, sizeof(soft_qp))
    if qp == NULL:
        errno.errno = ENOMEM
        return NULL
    pthread_mutex_init(&qp.lock, NULL)
    if init.srq != NULL:
        # The queue pair has no receive queue: one place, for the receive that is taken from the shared one.
        cap.max_recv_wr = 0
        cap.max_recv_sge = 0
    qp.cap = cap[0]
    qp.rq_sge = cap.max_recv_sge if init.srq == NULL else (<soft_srq *> init.srq).max_sge
    sends = ring_size(cap.max_send_wr)
    recvs = ring_size(cap.max_recv_wr)
    qp.sq_mask = sends - 1
    qp.rq_mask = recvs - 1
    # One element more, so that no size is zero.
    qp.sq = <soft_swqe *> malloc(sends * sizeof(soft_swqe))
    qp.rq = <soft_rwqe *> malloc(recvs * sizeof(soft_rwqe))
    qp.sq_sges = <ibv_sge *> malloc((<size_t> sends * cap.max_send_sge + 1) * sizeof(ibv_sge))
    qp.rq_sges = <ibv_sge *> malloc((<size_t> recvs * qp.rq_sge + 1) * sizeof(ibv_sge))
    qp.sq_inline = <uint8_t *> malloc(<size_t> sends * cap.max_inline_data + 1)
    if qp.sq == NULL or qp.rq == NULL or qp.sq_sges == NULL or qp.rq_sges == NULL or qp.sq_inline == NULL:
        qp_free(qp)
        errno.errno = ENOMEM
        return NULL
    qp.context = context
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
    qp.fd = -1
    qp.timer_fd = -1
    qp_forget_work(qp)
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
    pthread_mutex_lock(&context.lock)
    other = NULL
    while True:
        # 24 bits, none that is in use; 0 and 1 are special in InfiniBand.
        context.next_qp_num = (context.next_qp_num + 1) & 0xffffff
        if context.next_qp_num < 2:
            continue
        other = context.qps
        while other != NULL and other.ibv.qp_num != context.next_qp_num:
            other = other.next
        if other == NULL:
            break
    qp.ibv.qp_num = context.next_qp_num
    qp.ibv.handle = qp.ibv.qp_num
    qp.next = context.qps
    if qp.next != NULL:
        qp.next.prev = qp
    context.qps = qp
    pthread_mutex_unlock(&context.lock)
    return &qp.ibv


cdef int soft_destroy_qp(ibv_qp *ibqp) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int i
    pthread_mutex_lock(&qp.lock)
    stream_close(qp)
    qp.ibv.state = IBV_QPS_RESET
    pthread_mutex_unlock(&qp.lock)
    for i in range(qp.ndomains):
        if qp.links[i].domain != NULL:
            domain_forget(qp.domains[i], &qp.links[i])
    cq_purge(qp.send_cq, qp.ibv.qp_num)
    if qp.recv_cq != qp.send_cq:
        cq_purge(qp.recv_cq, qp.ibv.qp_num)
    pthread_mutex_lock(&qp.context.lock)
    if qp.prev != NULL:
        qp.prev.next = qp.next
    else:
        qp.context.qps = qp.next
    if qp.next != NULL:
        qp.next.prev = qp.prev
    pthread_mutex_unlock(&qp.context.lock)
    async_forget(qp.context, &qp.async_events)
    if qp.srq != NULL:
        fetch_sub(&qp.srq.users, 1)
    fetch_sub(&qp.send_cq.users, 1)
    fetch_sub(&qp.recv_cq.users, 1)
    fetch_sub(&qp.pd.users, 1)
    qp_free(qp)
    return 0


cdef void qp_complete_send(soft_qp *qp, const soft_swqe *swqe, int status) noexcept nogil:
    cdef ibv_wc_opcode opcode = IBV_WC_SEND
    if swqe.opcode == IBV_WR_RDMA_WRITE:
        opcode = IBV_WC_RDMA_WRITE
    elif swqe.opcode == IBV_WR_RDMA_READ:
        opcode = IBV_WC_RDMA_READ
    qp_completed(qp, swqe.wr_id, opcode, swqe.length, status)


cdef void qp_completed(soft_qp *qp, uint64_t wr_id, ibv_wc_opcode opcode, uint32_t length, int status) noexcept nogil:
    """Adds the completion of a request of the send queue."""
    cdef ibv_wc wc
    memset(&wc, 0, sizeof(wc))
    wc.wr_id = wr_id
    wc.status = <ibv_wc_status> status
    wc.opcode = opcode
    wc.qp_num = qp.ibv.qp_num
    wc.byte_len = length
    if not cq_add(qp.send_cq, &wc, False) and qp.ibv.state != IBV_QPS_ERR:
        qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef void qp_complete_recv(soft_qp *qp, const soft_rwqe *rwqe, int status) noexcept nogil:
    """A receive that failed."""
    cdef ibv_wc wc
    memset(&wc, 0, sizeof(wc))
    wc.wr_id = rwqe.wr_id
    wc.status = <ibv_wc_status> status
    wc.opcode = IBV_WC_RECV
    wc.qp_num = qp.ibv.qp_num
    cq_add(qp.recv_cq, &wc, False)


cdef void qp_retire(soft_qp *qp) noexcept nogil:
    """Completes, in order, the sends that are done. qp.lock is held."""
    cdef soft_swqe *swqe
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
    """Whether every request that was begun is complete."""
    return qp.sq_head == qp.cursor.next_wqe and qp.cursor.kind != TX_REQUEST


cdef void qp_error(soft_qp *qp, uint32_t culprit, int sq_status, int rq_status) noexcept nogil:
    """To ERR: closes the stream and flushes both queues. qp.lock is held.

    A sq_status other than success is for the send queue entry `culprit`, such an rq_status for the oldest receive.
    """
    cdef soft_swqe *swqe
    cdef bint entered = qp.ibv.state != IBV_QPS_ERR
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


cdef void qp_lost(soft_qp *qp) noexcept nogil:
    """To ERR because the stream is no more, with no request to blame. qp.lock is held."""
    if qp.ibv.state != IBV_QPS_RESET and qp.ibv.state != IBV_QPS_ERR:
        async_event(qp.context, &qp.async_events, IBV_EVENT_QP_FATAL)
    qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef int qp_event_of(uint32_t error) noexcept nogil:
    """The asynchronous event for an error in what the peer sent."""
    if error >> 8 == TERM_PROTECTION_STAG >> 8 or (error >> 8 == TERM_TAGGED_STAG >> 8
                                                   and error != TERM_TAGGED_VERSION):
        return IBV_EVENT_QP_ACCESS_ERR
    if error >> 8 == TERM_RDMAP_VERSION >> 8 or error >> 8 == TERM_UNTAGGED_QN >> 8 or error == TERM_TAGGED_VERSION:
        return IBV_EVENT_QP_REQ_ERR
    return IBV_EVENT_QP_FATAL


cdef void qp_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received, int sq_status,
                       int rq_status) noexcept nogil:
    """Tells the peer, best effort, and goes to ERR. `sq_status` is for the oldest READ under way."""
    cdef uint32_t culprit = qp.reads[qp.reads_done % MAX_READS]
    # An error that a completion tells of makes no event.
    if sq_status == IBV_WC_SUCCESS and rq_status == IBV_WC_SUCCESS:
        async_event(qp.context, &qp.async_events, qp_event_of(error))
    tx_terminate(qp, error, segment, received)
    qp_error(qp, culprit, sq_status, rq_status)


cdef int qp_allowed(int before, int after, int *required, int *optional) noexcept nogil:
    """The attributes that a transition of an RC queue pair requires and allows, as libibverbs' drivers check them."""
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
    """Whether the attributes' values are ones that their fields on an InfiniBand wire, or this device, can have."""
    if (mask & IBV_QP_PORT and attr.port_num != 1) or (mask & IBV_QP_PKEY_INDEX and attr.pkey_index != 0):
        return False
    if mask & IBV_QP_ACCESS_FLAGS and attr.qp_access_flags & ~<unsigned int> (
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ):
        return False
    if mask & IBV_QP_PATH_MTU and (<int> attr.path_mtu < IBV_MTU_256 or <int> attr.path_mtu > IBV_MTU_4096):
        return False
    if (mask & IBV_QP_DEST_QPN and attr.dest_qp_num > 0xffffff) or (mask & IBV_QP_TIMEOUT and attr.timeout > 31):
        return False
    if (mask & IBV_QP_RETRY_CNT and attr.retry_cnt > 7) or (mask & IBV_QP_RNR_RETRY and attr.rnr_retry > 7):
        return False
    if mask & IBV_QP_MIN_RNR_TIMER and attr.min_rnr_timer > 31:
        return False
    if mask & IBV_QP_MAX_DEST_RD_ATOMIC and attr.max_dest_rd_atomic > MAX_READS:
        return False
    return not (mask & IBV_QP_MAX_QP_RD_ATOMIC and attr.max_rd_atomic > MAX_READS)


cdef int qp_modify(soft_qp *qp, const ibv_qp_attr *attr, int mask) noexcept nogil:
    """soft_modify_qp with qp.lock held."""
    cdef int before = qp.ibv.state
    cdef int after = attr.qp_state if mask & IBV_QP_STATE else before
    cdef int required, optional
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
        qp.phase = STREAM_NONE
        qp_forget_work(qp)
        memset(&qp.attr, 0, sizeof(qp.attr))
        cq_purge(qp.send_cq, qp.ibv.qp_num)
        cq_purge(qp.recv_cq, qp.ibv.qp_num)
    relaxed_store(&qp.ibv.state, after)
    if after == IBV_QPS_SQD and before == IBV_QPS_RTS:
        qp.drain_notify = mask & IBV_QP_EN_SQD_ASYNC_NOTIFY and attr.en_sqd_async_notify
        qp_retire(qp)
    if after == IBV_QPS_RTS and not qp.tx_blocked and tx_pending(qp):
        qp_transmit(qp)
    return 0


cdef int soft_modify_qp(ibv_qp *ibqp, ibv_qp_attr *attr, int mask) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int result
    pthread_mutex_lock(&qp.lock)
    result = qp_modify(qp, attr, mask)
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, NULL)
    return result


cdef int soft_query_qp(ibv_qp *ibqp, ibv_qp_attr *attr, int mask, ibv_qp_init_attr *init) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    pthread_mutex_lock(&qp.lock)
    attr[0] = qp.attr
    attr.qp_state = qp.ibv.state
    attr.cur_qp_state = qp.ibv.state
    attr.sq_draining = qp.ibv.state == IBV_QPS_SQD and not qp_drained(qp)
    attr.cap = qp.cap
    if qp.phase == STREAM_OPEN:
        # As negotiated with the peer.
        attr.max_rd_atomic = <uint8_t> qp.ord
        attr.max_dest_rd_atomic = <uint8_t> qp.ird
    pthread_mutex_unlock(&qp.lock)
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


cdef int qp_enqueue_send(soft_qp *qp, const ibv_send_wr *wr) noexcept nogil:
    """Takes one work request into the send queue. 0 or an errno value."""
    cdef uint32_t index = qp.sq_tail & qp.sq_mask
    cdef soft_swqe *swqe = &qp.sq[index]
    cdef uint64_t length = 0
    cdef uint8_t *data
    cdef int i
    if (wr.opcode != IBV_WR_SEND and wr.opcode != IBV_WR_RDMA_WRITE and wr.opcode != IBV_WR_RDMA_READ
            and wr.opcode != IBV_WR_SEND_WITH_INV):
        return EINVAL
    if qp.sq_tail - qp.sq_head >= qp.cap.max_send_wr:
        return ENOMEM
    if wr.num_sge < 0 or (<uint32_t> wr.num_sge > qp.cap.max_send_sge
                          and not (wr.send_flags & IBV_SEND_INLINE and wr.num_sge <= MAX_SGE)):
        return EINVAL
    for i in range(wr.num_sge):
        length += wr.sg_list[i].length
    if length > MAX_MESSAGE:
        return EINVAL
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
    if wr.send_flags & IBV_SEND_INLINE:
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


cdef int soft_post_send(ibv_qp *ibqp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int result = 0
    pthread_mutex_lock(&qp.lock)
    if qp.shm != NULL:
        wr = shm_post_messages(qp, wr)
    if qp.ibv.state != IBV_QPS_RTS and qp.ibv.state != IBV_QPS_SQD and qp.ibv.state != IBV_QPS_ERR:
        result = EINVAL
    while result == 0 and wr != NULL:
        result = qp_enqueue_send(qp, wr)
        if result == 0:
            if qp.ibv.state == IBV_QPS_ERR:
                qp_error(qp, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)
            wr = wr.next
    if qp.phase == STREAM_OPEN and not qp.tx_blocked and (qp.shm != NULL or not tx_short(qp)) and tx_pending(qp):
        qp_transmit(qp)
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, NULL)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
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
    pthread_mutex_lock(&qp.lock)
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
    pthread_mutex_unlock(&qp.lock)
    if flushed:
        qp_settle(qp, NULL)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
    return result

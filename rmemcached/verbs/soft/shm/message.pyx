# soft_shm: messages that are one cell of the ring: SENDs that are not long, with nothing before them that has to wait.
#
# To the rest of the provider such a message is the SEND that it would have been as one FPDU: it has a message number,
# and the same errors. What it saves is the queue entry, the building and parsing of the frame, and a second line.


cdef inline soft_mr *shm_hold(soft_qp *qp, soft_mr **kept, uint32_t stag, uint64_t addr, uint64_t length,
                              int access) noexcept nogil:
    """As mr_get, for as long as qp.lock is held. The region stays in use, to be found at once the next time."""
    cdef soft_mr *mr = kept[0]
    cdef int why = 0
    if (mr != NULL and mr.ibv.lkey == stag and relaxed_load(&mr.valid) and not access & ~mr.access
            and mr_covers(mr, addr, length)):
        return mr
    mr = mr_get(qp.pd, stag, addr, length, access, &why)
    if mr == NULL:
        return NULL
    if kept[0] != NULL:
        mr_put(kept[0])
    kept[0] = mr
    return mr


cdef void shm_release(shm_stream *shm) noexcept nogil:
    """Lets the stream's regions go."""
    if shm.sending != NULL:
        mr_put(shm.sending)
    if shm.receiving != NULL:
        mr_put(shm.receiving)
    shm.sending = NULL
    shm.receiving = NULL


cdef void shm_let_go(soft_context *context, const soft_mr *mr) noexcept nogil:
    """Makes all streams forget a region, which cannot be found any more."""
    cdef soft_qp *qp
    pthread_mutex_lock(&context.lock)
    qp = context.qps
    while qp != NULL:
        pthread_mutex_lock(&qp.lock)
        if qp.shm != NULL and (qp.shm.sending == mr or qp.shm.receiving == mr):
            shm_release(qp.shm)
        pthread_mutex_unlock(&qp.lock)
        qp = qp.next
    pthread_mutex_unlock(&context.lock)


cdef inline bint shm_may_post(const soft_qp *qp) noexcept nogil:
    """Whether a message may go into the ring now, ahead of nothing. Then nothing is in the send queue."""
    return (qp.sq_head == qp.sq_tail and qp.phase == STREAM_OPEN and qp.ibv.state == IBV_QPS_RTS
            and not qp.tx_blocked and not qp.tx_dead and qp.cursor.kind == TX_NONE
            and qp.cursor.next_response == qp.responses_tail)


cdef bint shm_post_message(soft_qp *qp, const ibv_send_wr *wr) noexcept nogil:
    """Puts one request into the ring, after shm_may_post. False: it has to take the long way, or has a fault."""
    cdef shm_stream *shm = qp.shm
    cdef const ibv_sge *sge
    cdef uint64_t length = 0
    cdef uint32_t at
    cdef int i
    if wr.opcode != IBV_WR_SEND or wr.num_sge < 0 or <uint32_t> wr.num_sge > qp.cap.max_send_sge:
        return False
    for i in range(wr.num_sge):
        length += wr.sg_list[i].length
    if (length > (qp.cap.max_inline_data if wr.send_flags & IBV_SEND_INLINE else SHM_MESSAGE_MAX)
            or qp.cap.max_send_wr == 0 or not shm_room(shm, shm_size(<uint32_t> length))):
        return False
    at = shm.tail_at + SHM_WORD
    for i in range(wr.num_sge):
        sge = &wr.sg_list[i]
        if sge.length == 0:
            continue
        if (not wr.send_flags & IBV_SEND_INLINE
                and shm_hold(qp, &shm.sending, sge.lkey, sge.addr, sge.length, 0) == NULL):
            return False
        at = shm_in(shm, at, <const void *> sge.addr, sge.length)
    shm_publish(shm, <uint32_t> length, SHM_MESSAGE, SHM_SOLICITED if wr.send_flags & IBV_SEND_SOLICITED else 0)
    qp.cursor.send_msn += 1
    qp.counters.sends += 1
    qp.counters.tx_fpdus += 1
    qp.counters.tx_bytes += SHM_WORD + length
    if wr.send_flags & IBV_SEND_SIGNALED or qp.sig_all:
        qp_completed(qp, wr.wr_id, IBV_WC_SEND, <uint32_t> length, IBV_WC_SUCCESS)
    return True


cdef ibv_send_wr *shm_post_messages(soft_qp *qp, ibv_send_wr *wr) noexcept nogil:
    """Puts into the ring what of a list may go there at once. Gives the rest. qp.lock is held."""
    cdef ibv_send_wr *first = wr
    while wr != NULL and shm_may_post(qp) and shm_post_message(qp, wr):
        wr = wr.next
    if wr != first and qp.fd >= 0:
        shm_bell(qp, False)
    return wr


cdef bint shm_wrong_message(soft_qp *qp, uint32_t length, uint32_t error, int rq_status) noexcept nogil:
    """The message at the head cannot be received. The Terminate shows it as the FPDU that it could have been."""
    put_untagged(qp.rx_raw, OP_SEND, True, length, 0, QN_SEND, qp.rx_send_msn, 0)
    qp_terminate(qp, error, qp.rx_raw, HEADER_MAX, IBV_WC_SUCCESS, rq_status)
    return False


cdef bint shm_take_message(soft_qp *qp, uint64_t word, ibv_wc *wc) noexcept nogil:
    """Receives the message at the head, whose word this is. False: the queue pair is in error."""
    cdef shm_stream *shm = qp.shm
    cdef uint32_t length = shm_length(word)
    cdef uint32_t left = length
    cdef uint32_t at = shm.head_at + SHM_WORD
    cdef uint32_t index, n
    cdef soft_rwqe *rwqe
    cdef const ibv_sge *sge
    # A cell within a frame of the stream, or that is none.
    if (length > SHM_MESSAGE_MAX or shm_flags(word) & ~<uint32_t> SHM_SOLICITED or shm.chunk_left
            or qp.rx_state != RX_HEADER or qp.rx_start != qp.rx_end):
        shm.broken = True
        qp_lost(qp)
        return False
    if qp.rx_offset:
        return shm_wrong_message(qp, length, TERM_UNTAGGED_MO, IBV_WC_SUCCESS)
    if qp.rq_head == qp.rq_tail and (qp.srq == NULL or not srq_take(qp)):
        return shm_wrong_message(qp, length, TERM_UNTAGGED_NO_BUFFER, IBV_WC_SUCCESS)
    index = qp.rq_head & qp.rq_mask
    rwqe = &qp.rq[index]
    if length > rwqe.length:
        return shm_wrong_message(qp, length, TERM_UNTAGGED_TOO_LONG, IBV_WC_LOC_LEN_ERR)
    sge = qp.rq_sges + <size_t> index * qp.rq_sge
    while left:
        n = min(left, sge.length)
        if n:
            if shm_hold(qp, &shm.receiving, sge.lkey, sge.addr, n, IBV_ACCESS_LOCAL_WRITE) == NULL:
                qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR)
                return False
            at = shm_out(shm, at, <void *> sge.addr, n)
            left -= n
        sge += 1
    memset(wc, 0, sizeof(wc[0]))
    wc.wr_id = rwqe.wr_id
    wc.status = IBV_WC_SUCCESS
    wc.opcode = IBV_WC_RECV
    wc.byte_len = length
    wc.qp_num = qp.ibv.qp_num
    wc.src_qp = qp.attr.dest_qp_num
    qp.rq_head += 1
    qp.rx_send_msn += 1
    qp.counters.recvs += 1
    qp.counters.rx_fpdus += 1
    qp.counters.rx_bytes += SHM_WORD + length
    shm_consume(qp, shm_size(length))
    return True


cdef bint shm_messages(soft_qp *qp, uint32_t *budget) noexcept nogil:
    """Receives the messages at the head. False: the queue pair is in error."""
    cdef ibv_wc wc
    cdef uint64_t word
    while shm_there(qp.shm, &word) and shm_kind(word) == SHM_MESSAGE and budget[0]:
        if not shm_take_message(qp, word, &wc):
            return False
        rx_established(qp)
        if not cq_add(qp.recv_cq, &wc, shm_flags(word) & SHM_SOLICITED):
            rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
            return False
        budget[0] -= min(budget[0], shm_size(shm_length(word)))
    return True


cdef int shm_collect(soft_cq *cq, soft_link *link, int num_entries, ibv_wc *wc) noexcept nogil:
    """Receives messages of a queue pair without the detour through the completion queue, when that changes nothing."""
    cdef soft_qp *qp = link.qp
    cdef uint64_t word
    cdef int n = 0
    pthread_mutex_lock(&qp.lock)
    # What was received before this is not in the queue any more.
    if (qp.recv_cq == cq and qp.ndomains == 1 and qp.phase == STREAM_OPEN and qp.ibv.state == IBV_QPS_RTS
            and relaxed_load(&cq.count) == 0 and not relaxed_load(&cq.overrun)):
        while n < num_entries and shm_there(qp.shm, &word) and shm_kind(word) == SHM_MESSAGE:
            if not shm_take_message(qp, word, &wc[n]):
                break
            n += 1
    pthread_mutex_unlock(&qp.lock)
    link.idle = 0
    return n


cdef int shm_poll(soft_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil:
    """Progress for a program that polls an empty queue. Gives what it has received into `wc`.

    The rings are looked at several times while the lock is held: what comes meanwhile is seen at once, and another
    thread that polls would do nothing else.
    """
    cdef soft_domain *domain = cq.domain
    cdef soft_link *link
    cdef soft_link *following
    cdef uint64_t word
    cdef int n = 0
    cdef int looks = SHM_LOOKS
    if pthread_mutex_trylock(&domain.progress) != 0:
        return 0
    # Of what comes to a queue that is armed an event has to be made.
    if domain.nhot <= SHM_FEW and num_entries and relaxed_load(&domain.armed) == 0:
        while looks > 0 and domain.hot != NULL:
            link = domain.hot
            while link != NULL:
                following = link.hot_next
                looks -= 1
                if load_acquire(&link.qp.shm.theirs) and shm_there(link.qp.shm, &word):
                    looks = 0
                    if n < num_entries:
                        n += shm_collect(cq, link, num_entries - n, wc + n)
                    else:
                        shm_progress(link.qp, False, domain)
                link = following
    if n == 0 or domain.turns >= SHM_TURNS:
        shm_domain_progress(domain, False)
    else:
        domain.turns += 1
    pthread_mutex_unlock(&domain.progress)
    return n

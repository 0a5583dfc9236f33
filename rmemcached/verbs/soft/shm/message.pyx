# soft_shm: messages in cells of their own; see message.pxd.

cdef enum:
    WORK_MESSAGE = 512
    SHM_SHORT = 1024                 # octets of a message that leaves even after the turn is over


cdef inline soft_mr *shm_hold_region(soft_qp *qp, soft_mr **kept, uint32_t stag, uint64_t addr, uint64_t length,
                                     int access) noexcept nogil:
    """Returns the region of the STag, as mr_get, in use while the caller holds qp.lock. Tries *kept, the region used
    last, first. The returned region becomes *kept, and stays in use for the next call."""
    cdef soft_mr *mr = kept[0]
    cdef int why = 0
    assert_held(&qp.lock)
    if mr != NULL and mr_serves(mr, stag, addr, length, access):
        return mr
    mr = mr_get(qp, stag, addr, length, access, &why)
    if mr == NULL:
        return NULL
    if kept[0] != NULL:
        mr_put(kept[0])
    kept[0] = mr
    return mr


cdef void shm_release_regions(shm_stream *shm) noexcept nogil:
    if shm.sending != NULL:
        mr_put(shm.sending)
    if shm.receiving != NULL:
        mr_put(shm.receiving)
    shm.sending = NULL
    shm.receiving = NULL


cdef void shm_forget_region(soft_mr *mr) noexcept nogil:
    cdef soft_context *context = <soft_context *> mr.ibv.context
    cdef shm_stream *shm
    cdef soft_qp *qp
    lock_ranked(&context.lock, RANK_DOMAIN)
    qp = context.qps
    while qp != NULL:
        lock_ranked(&qp.lock, RANK_QP)
        shm = shm_of(qp)
        if shm != NULL and (shm.sending == mr or shm.receiving == mr):
            shm_release_regions(shm)
        unlock_ranked(&qp.lock, RANK_QP)
        qp = qp.next
    unlock_ranked(&context.lock, RANK_DOMAIN)


cdef inline bint shm_can_post_message(const soft_qp *qp) noexcept nogil:
    """Whether a message may go into the ring now: no earlier request waits."""
    return (qp.sq_head == qp.sq_tail and qp.stream.phase == STREAM_OPEN and qp.ibv.state == IBV_QPS_RTS
            and not qp.tx.blocked and not qp.tx.broken and qp.tx.cursor.kind == TX_NONE
            and qp.tx.cursor.next_response == qp.responses_tail)


cdef bint shm_post_message(soft_qp *qp, const ibv_send_wr *wr) noexcept nogil:
    """Puts a request into the ring as a message, and completes the request. Called after shm_can_post_message.

    False: the request cannot be a message now, or has an error. The peer sees nothing of the request, and the caller
    puts the request into the send queue.
    """
    cdef shm_stream *shm = shm_of(qp)
    cdef const ibv_sge *sge
    cdef const soft_mr *mr
    cdef const void *data
    cdef uint64_t length = 0
    cdef uint32_t at
    cdef int i
    assert_held(&qp.lock)
    if wr.opcode != IBV_WR_SEND or wr.num_sge < 0 or <uint32_t> wr.num_sge > qp.cap.max_send_sge:
        return False
    for i in range(wr.num_sge):
        length += wr.sg_list[i].length
    if length > SHM_SHORT and domain_is_over(qp.send_cq.domain):
        return False
    if (length > (qp.cap.max_inline_data if wr.send_flags & IBV_SEND_INLINE else SHM_MESSAGE_MAX)
            or qp.cap.max_send_wr == 0 or not shm_room(shm, shm_cell_size(<uint32_t> length))):
        return False
    at = shm.tail_at + SHM_WORD
    for i in range(wr.num_sge):
        sge = &wr.sg_list[i]
        if sge.length == 0:
            continue
        if wr.send_flags & IBV_SEND_INLINE:
            data = <const void *> sge.addr
        else:
            mr = shm_hold_region(qp, &shm.sending, sge.lkey, sge.addr, sge.length, 0)
            if mr == NULL:
                return False
            data = mr_at(mr, sge.addr)
        at = shm_write(shm, at, data, sge.length)
    shm_publish_cell(shm, <uint32_t> length, SHM_MESSAGE, SHM_SOLICITED if wr.send_flags & IBV_SEND_SOLICITED else 0)
    qp.tx.cursor.send_msn += 1
    counter_add(&qp.counters.sends, 1)
    counter_add(&qp.counters.tx_fpdus, 1)
    counter_add(&qp.counters.tx_bytes, SHM_WORD + length)
    domain_posted(qp, WORK_MESSAGE + <uint32_t> length)
    if wr.send_flags & IBV_SEND_SIGNALED or qp.sig_all:
        qp_completed(qp, wr.wr_id, IBV_WC_SEND, <uint32_t> length, IBV_WC_SUCCESS)
    return True


cdef ibv_send_wr *shm_post_messages(soft_qp *qp, ibv_send_wr *wr) noexcept nogil:
    # Puts requests into the ring as messages. Returns the first request for the send queue, or NULL.
    cdef ibv_send_wr *first = wr
    assert_held(&qp.lock)
    while wr != NULL and shm_can_post_message(qp) and shm_post_message(qp, wr):
        wr = wr.next
    if wr != first and qp.stream.fd >= 0:
        shm_wake_peer(qp, False)
    return wr


cdef int shm_post_send(ibv_qp *ibqp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int result = 0
    lock_ranked(&qp.lock, RANK_QP)
    wr = shm_post_messages(qp, wr)
    # An empty list, too, is refused in a state that forbids posting.
    if wr != NULL or qp.ibv.state != IBV_QPS_RTS:
        result = qp_enqueue_sends(qp, &wr)
    if qp.stream.phase == STREAM_OPEN and not qp.tx.blocked and tx_pending(qp):
        domain_post(qp)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, NULL)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
    return result


cdef bint shm_reject_message(soft_qp *qp, uint32_t length, uint32_t error, int rq_status) noexcept nogil:
    """Ends the stream because of the message at the head, which the Terminate shows as an FPDU. Returns False."""
    assert_held(&qp.lock)
    put_untagged(qp.rx.raw, OP_SEND, True, length, 0, QN_SEND, qp.rx.send_msn, 0)
    qp_terminate(qp, error, qp.rx.raw, HEADER_MAX, IBV_WC_SUCCESS, rq_status)
    return False


cdef bint shm_take_message(soft_qp *qp, uint64_t word, ibv_wc *wc) noexcept nogil:
    """Receives the message at the head, with this word. False: the queue pair is in error."""
    cdef shm_stream *shm = shm_of(qp)
    cdef uint32_t length = shm_length(word)
    cdef uint32_t left = length
    cdef uint32_t at = shm.head_at + SHM_WORD
    cdef uint32_t index, n
    cdef soft_rwqe *rwqe
    cdef const soft_mr *mr
    cdef const ibv_sge *sge
    assert_held(&qp.lock)
    # End the stream if the cell is malformed, or comes within an FPDU.
    if (length > SHM_MESSAGE_MAX or shm_flags(word) & ~<uint32_t> SHM_SOLICITED or shm.chunk_left
            or qp.rx.state != RX_HEADER or qp.rx.start != qp.rx.end
            or not shm_cell_present(shm, shm.head_at, shm_cell_size(length))):
        shm.broken = b"a message in the ring is malformed"
        qp_lost(qp)
        return False
    if qp.rx.offset:
        return shm_reject_message(qp, length, TERM_UNTAGGED_MO, IBV_WC_SUCCESS)
    if qp.rq_head == qp.rq_tail and (qp.srq == NULL or not srq_take(qp)):
        return shm_reject_message(qp, length, TERM_UNTAGGED_NO_BUFFER, IBV_WC_SUCCESS)
    index = qp.rq_head & qp.rq_mask
    rwqe = &qp.rq[index]
    if length > rwqe.length:
        return shm_reject_message(qp, length, TERM_UNTAGGED_TOO_LONG, IBV_WC_LOC_LEN_ERR)
    sge = qp.rq_sges + <size_t> index * qp.rq_sge
    while left:
        n = min(left, sge.length)
        if n:
            mr = shm_hold_region(qp, &shm.receiving, sge.lkey, sge.addr, n, IBV_ACCESS_LOCAL_WRITE)
            if mr == NULL:
                qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR)
                return False
            at = shm_read(shm, at, mr_at(mr, sge.addr), n)
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
    qp.rx.send_msn += 1
    counter_add(&qp.counters.recvs, 1)
    counter_add(&qp.counters.rx_fpdus, 1)
    counter_add(&qp.counters.rx_bytes, SHM_WORD + length)
    shm_consume(qp, shm_cell_size(length))
    return True


cdef bint shm_receive_messages(soft_qp *qp, uint32_t *share) noexcept nogil:
    cdef ibv_wc wc
    cdef uint64_t word
    assert_held(&qp.lock)
    while share[0] and shm_cell_ready(shm_of(qp), &word) and shm_kind(word) == SHM_MESSAGE:
        if not shm_take_message(qp, word, &wc):
            return False
        rx_established(qp)
        if not cq_add(qp.recv_cq, &wc, shm_flags(word) & SHM_SOLICITED):
            rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
            return False
        share_spend(share, WORK_MESSAGE + shm_cell_size(shm_length(word)))
    return True


cdef int shm_poll_messages(soft_cq *cq, soft_qp *qp, int num_entries, ibv_wc *wc) noexcept nogil:
    """Receives messages of a queue pair past the completion queue, where the program sees no difference. Returns their
    number."""
    cdef uint64_t word
    cdef int n = 0
    lock_ranked(&qp.lock, RANK_QP)
    # The completion queue is empty, so the messages overtake no completion.
    if (qp.recv_cq == cq and qp.ndomains == 1 and qp.stream.phase == STREAM_OPEN and qp.ibv.state == IBV_QPS_RTS
            and cq_is_empty(cq)):
        while n < num_entries and shm_cell_ready(shm_of(qp), &word) and shm_kind(word) == SHM_MESSAGE:
            if not shm_take_message(qp, word, &wc[n]):
                break
            domain_worked(cq.domain, WORK_MESSAGE + shm_length(word))
            n += 1
    unlock_ranked(&qp.lock, RANK_QP)
    return n


cdef int shm_poll(soft_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil:
    """Makes progress for a program polling an empty queue. Returns the number of completions in `wc`.

    The function looks at the rings several times while it holds the lock. So it sees new cells at once. A polling
    thread without the lock loses nothing: its poll would do the same.
    """
    cdef soft_domain *domain = cq.domain
    cdef shm_domain *shared = shm_domain_of(domain)
    cdef shm_link *link
    cdef shm_link *following
    cdef uint64_t word
    cdef int n = 0
    cdef int looks = SHM_POLL_LOOKS
    if not domain_trylock(domain):
        return 0
    domain_next_turn(domain)
    if domain_is_over(domain):
        domain_unlock(domain)
        return 0
    domain.looked = True
    # If a queue is armed, completions have to go through the queue: the first makes an event.
    if shared.npolled <= SHM_ALWAYS_POLLED and num_entries and relaxed_load(&domain.armed) == 0:
        while looks > 0 and shared.polled != NULL:
            link = shared.polled
            while link != NULL:
                following = link.next
                looks -= 1
                if load_acquire(&shm_of(link.qp).theirs) and shm_cell_ready(shm_of(link.qp), &word):
                    looks = 0
                    if n < num_entries:
                        n += shm_poll_messages(cq, link.qp, num_entries - n, wc + n)
                        link.idle = 0
                    else:
                        shm_progress(link.qp, False, domain)
                link = following
    if n == 0 or shared.turns >= SHM_TURNS:
        shm_domain_progress(domain, False)
    else:
        shared.turns += 1
    domain_unlock(domain)
    return n


cdef int shm_poll_cq(ibv_cq *ibcq, int num_entries, ibv_wc *wc) noexcept nogil:
    cdef soft_cq *cq = <soft_cq *> ibcq
    cdef int n
    if cq_wants_progress(cq, num_entries):
        n = shm_poll(cq, num_entries, wc)
        if cq.domain.event_fd >= 0:
            domain_update_fd(cq.domain)
        if n:
            return n
    if cq_is_empty(cq):
        return 0
    return cq_take(cq, num_entries, wc)

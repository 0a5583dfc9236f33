# Reception: the octets of the stream are parsed into FPDUs, checked, and placed. Nothing that comes in is trusted.
#
# Without CRC the payload of SENDs, WRITEs and READ responses goes from the socket straight to its target; headers,
# trailers and what arrived together with a header pass through rx_buffer. With CRC whole FPDUs do, but for those that
# rx_foreseen lets pass.


cdef void rx_fail(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil:
    qp_terminate(qp, error, segment, received, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef uint32_t rx_write_error(int why) noexcept nogil:
    # DDP has no code for a missing right; siw too sends "invalid STag" then.
    if why == MR_BOUNDS:
        return TERM_TAGGED_BOUNDS
    if why == MR_STREAM:
        return TERM_TAGGED_STREAM
    if why == MR_WRAP:
        return TERM_TAGGED_WRAP
    return TERM_TAGGED_STAG


cdef uint32_t rx_read_error(int why) noexcept nogil:
    if why == MR_BOUNDS:
        return TERM_PROTECTION_BOUNDS
    if why == MR_STREAM:
        return TERM_PROTECTION_STREAM
    if why == MR_WRAP:
        return TERM_PROTECTION_WRAP
    if why == MR_ACCESS:
        return TERM_PROTECTION_ACCESS
    return TERM_PROTECTION_STAG


cdef soft_swqe *rx_read_head(soft_qp *qp) noexcept nogil:
    """The oldest READ under way, or NULL."""
    if qp.reads_done == qp.cursor.reads:
        return NULL
    return &qp.sq[qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask]


cdef struct rx_target:
    iovec iov[RX_IOVECS]
    soft_mr *regions[RX_IOVECS]      # held until the octets are placed
    int niov
    int nregions


cdef void rx_release(rx_target *target) noexcept nogil:
    cdef int i
    for i in range(target.nregions):
        mr_put(target.regions[i])


cdef bint rx_scatter(soft_qp *qp, rx_target *target, const ibv_sge *sges, uint32_t count, uint32_t offset,
                     uint32_t length) noexcept nogil:
    cdef uint32_t i, n
    cdef int why = 0
    cdef soft_mr *mr
    for i in range(count):
        if length == 0:
            break
        if offset >= sges[i].length:
            offset -= sges[i].length
            continue
        n = sges[i].length - offset
        if n > length:
            n = length
        mr = target.regions[target.nregions - 1] if target.nregions else NULL
        if (mr == NULL or mr.ibv.lkey != sges[i].lkey or not mr.valid or not mr.access & IBV_ACCESS_LOCAL_WRITE
                or not mr_covers(mr, sges[i].addr + offset, n)):
            mr = mr_get(qp.pd, sges[i].lkey, sges[i].addr + offset, n, IBV_ACCESS_LOCAL_WRITE, &why)
            if mr == NULL:
                return False
            target.regions[target.nregions] = mr
            target.nregions += 1
        target.iov[target.niov].iov_base = <void *> (sges[i].addr + offset)
        target.iov[target.niov].iov_len = n
        target.niov += 1
        offset = 0
        length -= n
    return length == 0


cdef bint rx_aim(soft_qp *qp, rx_target *target) noexcept nogil:
    """Where the next rx_left octets of payload go. False: nowhere, and the queue pair is in error."""
    cdef soft_swqe *swqe
    cdef uint32_t index
    cdef int why = 0
    target.niov = 0
    target.nregions = 0
    if qp.rx_header.opcode == OP_WRITE:
        target.regions[0] = mr_get(qp.pd, qp.rx_header.stag, qp.rx_to, qp.rx_left, IBV_ACCESS_REMOTE_WRITE, &why)
        if target.regions[0] == NULL:
            rx_fail(qp, rx_write_error(why), qp.rx_raw, HEADER_MAX)
            return False
        target.nregions = 1
        target.iov[0].iov_base = <void *> qp.rx_to
        target.iov[0].iov_len = qp.rx_left
        target.niov = 1
        return True
    if qp.rx_header.opcode == OP_READ_RESPONSE:
        swqe = rx_read_head(qp)
        index = qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask
        if rx_scatter(qp, target, qp.sq_sges + index * qp.cap.max_send_sge, swqe.num_sge, swqe.received, qp.rx_left):
            return True
        rx_release(target)
        qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS)
        return False
    index = qp.rq_head & qp.rq_mask
    if rx_scatter(qp, target, qp.rq_sges + index * qp.rq_sge, qp.rq[index].num_sge, qp.rx_offset, qp.rx_left):
        return True
    rx_release(target)
    qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR)
    return False


cdef void rx_advance(soft_qp *qp, uint32_t placed) noexcept nogil:
    qp.rx_left -= placed
    if qp.rx_header.opcode == OP_WRITE:
        qp.rx_to += placed
    elif qp.rx_header.opcode == OP_READ_RESPONSE:
        rx_read_head(qp).received += placed
    else:
        qp.rx_offset += placed


cdef bint rx_place(soft_qp *qp, const uint8_t *data, uint32_t length) noexcept nogil:
    """Copies payload from the receive buffer to its target."""
    cdef rx_target target
    cdef uint32_t placed = 0
    cdef uint32_t n
    cdef int i
    if length == 0:
        return True
    if not rx_aim(qp, &target):
        return False
    for i in range(target.niov):
        n = length - placed
        if n > target.iov[i].iov_len:
            n = <uint32_t> target.iov[i].iov_len
        memcpy(target.iov[i].iov_base, data + placed, n)
        placed += n
    rx_release(&target)
    if qp.crc and not qp.rx_checked:
        qp.rx_crc = crc32c_add(qp.rx_crc, data, length)
    rx_advance(qp, length)
    qp.counters.rx_staged_bytes += length
    return True


cdef bint rx_begin(soft_qp *qp) noexcept nogil:
    """Checks the header of an FPDU that carries payload. False: the queue pair is in error."""
    cdef ddp_header *h = &qp.rx_header
    cdef soft_swqe *swqe
    cdef soft_rwqe *rwqe
    cdef soft_mr *mr
    cdef int why = 0
    qp.rx_left = h.payload
    if h.tagged and not h.last:
        qp.rx_segment = h.payload
    if h.opcode == OP_WRITE:
        # A zero-length WRITE names no memory: it may be a peer's ready-to-receive frame.
        if h.payload == 0:
            return True
        if not qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE:
            rx_fail(qp, TERM_TAGGED_STAG, qp.rx_raw, HEADER_MAX)
            return False
        mr = mr_get(qp.pd, h.stag, h.to, h.payload, IBV_ACCESS_REMOTE_WRITE, &why)
        if mr == NULL:
            rx_fail(qp, rx_write_error(why), qp.rx_raw, HEADER_MAX)
            return False
        if qp.shm != NULL:
            shm_offer(qp, mr)
        mr_put(mr)
        qp.rx_to = h.to
        return True
    if h.opcode == OP_READ_RESPONSE:
        return rx_begin_response(qp, h)
    if h.msn != qp.rx_send_msn:
        rx_fail(qp, TERM_UNTAGGED_MSN, qp.rx_raw, HEADER_MAX)
        return False
    if h.mo != qp.rx_offset:
        rx_fail(qp, TERM_UNTAGGED_MO, qp.rx_raw, HEADER_MAX)
        return False
    if h.mo != 0 and h.opcode != qp.rx_send:
        rx_fail(qp, TERM_UNEXPECTED_OPCODE, qp.rx_raw, HEADER_MAX)
        return False
    # An empty segment that is not the last would go on for ever.
    if h.payload == 0 and not h.last:
        rx_fail(qp, TERM_UNTAGGED_MO, qp.rx_raw, HEADER_MAX)
        return False
    if qp.rq_head == qp.rq_tail and (qp.srq == NULL or not srq_take(qp)):
        rx_fail(qp, TERM_UNTAGGED_NO_BUFFER, qp.rx_raw, HEADER_MAX)
        return False
    rwqe = &qp.rq[qp.rq_head & qp.rq_mask]
    if <uint64_t> h.mo + h.payload > rwqe.length:
        qp_terminate(qp, TERM_UNTAGGED_TOO_LONG, qp.rx_raw, HEADER_MAX, IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR)
        return False
    qp.rx_send = h.opcode
    return True


cdef bint rx_begin_response(soft_qp *qp, const ddp_header *h) noexcept nogil:
    """A READ response must be the continuation of the oldest READ under way."""
    cdef soft_swqe *swqe = rx_read_head(qp)
    cdef const ibv_sge *sges
    if swqe == NULL:
        rx_fail(qp, TERM_UNEXPECTED_OPCODE, qp.rx_raw, HEADER_MAX)
        return False
    sges = qp.sq_sges + (qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask) * qp.cap.max_send_sge
    if swqe.length:
        if h.stag != sges[0].lkey:
            rx_fail(qp, TERM_TAGGED_STAG, qp.rx_raw, HEADER_MAX)
            return False
        if h.to != sges[0].addr + swqe.received:
            rx_fail(qp, TERM_TAGGED_BOUNDS, qp.rx_raw, HEADER_MAX)
            return False
    if h.payload > swqe.length - swqe.received or h.last != (h.payload == swqe.length - swqe.received):
        rx_fail(qp, TERM_TAGGED_BOUNDS, qp.rx_raw, HEADER_MAX)
        return False
    return True


cdef void rx_established(soft_qp *qp) noexcept nogil:
    """A message has come in."""
    if qp.ibv.state == IBV_QPS_RTR and not qp.established:
        qp.established = True
        async_event(qp.context, &qp.async_events, IBV_EVENT_COMM_EST)


cdef bint rx_finish(soft_qp *qp) noexcept nogil:
    """The FPDU is placed; completes the message with its last one. False: the queue pair is in error."""
    cdef ddp_header *h = &qp.rx_header
    cdef soft_rwqe *rwqe
    cdef soft_swqe *swqe
    cdef ibv_wc wc
    cdef bint solicited
    qp.rx_state = RX_HEADER
    qp.counters.rx_fpdus += 1
    qp.tx_gate = True
    if not h.last:
        return True
    rx_established(qp)
    if h.opcode == OP_WRITE:
        qp.counters.writes_served += 1
        return True
    if h.opcode == OP_READ_RESPONSE:
        swqe = rx_read_head(qp)
        swqe.state = SWQE_DONE
        qp.reads_done += 1
        qp.counters.reads += 1
        qp.counters.read_bytes += swqe.length
        qp_retire(qp)
        return qp.fd >= 0
    memset(&wc, 0, sizeof(wc))
    if h.opcode == OP_SEND_INVALIDATE or h.opcode == OP_SEND_SE_INVALIDATE:
        if not mr_invalidate(qp.pd, h.stag):
            rx_fail(qp, TERM_CANNOT_INVALIDATE, qp.rx_raw, HEADER_MAX)
            return False
        wc.wc_flags = IBV_WC_WITH_INV
        wc.invalidated_rkey = h.stag
    rwqe = &qp.rq[qp.rq_head & qp.rq_mask]
    wc.wr_id = rwqe.wr_id
    wc.status = IBV_WC_SUCCESS
    wc.opcode = IBV_WC_RECV
    wc.byte_len = qp.rx_offset
    wc.qp_num = qp.ibv.qp_num
    wc.src_qp = qp.attr.dest_qp_num
    qp.rq_head += 1
    qp.rx_offset = 0
    qp.rx_send_msn += 1
    qp.counters.recvs += 1
    solicited = h.opcode == OP_SEND_SE or h.opcode == OP_SEND_SE_INVALIDATE
    if not cq_add(qp.recv_cq, &wc, solicited):
        rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
        return False
    return True


cdef bint rx_close(soft_qp *qp, const uint8_t *trailer) noexcept nogil:
    """The trailer of the open FPDU is there. False: the queue pair is in error."""
    cdef uint32_t pad = qp.rx_trailer - 4
    if qp.crc and not qp.rx_checked and not crc_matches(trailer + pad, crc32c_add(qp.rx_crc, trailer, pad)):
        rx_fail(qp, TERM_MPA_CRC, NULL, 0)
        return False
    return rx_finish(qp)


cdef bint rx_read_request(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    """A whole Read Request: checked, and queued for tx_response."""
    cdef ddp_header *h = &qp.rx_header
    cdef const uint8_t *segment = fpdu
    cdef uint32_t received = UNTAGGED_HEADER + READ_REQUEST_PAYLOAD
    cdef read_request request
    cdef soft_response *response
    cdef soft_mr *mr
    cdef int why = 0
    if h.msn != qp.rx_read_msn:
        rx_fail(qp, TERM_UNTAGGED_MSN, segment, received)
        return False
    if h.mo != 0:
        rx_fail(qp, TERM_UNTAGGED_MO, segment, received)
        return False
    if not h.last:
        rx_fail(qp, TERM_UNTAGGED_TOO_LONG, segment, received)
        return False
    # Not qp.ird: siw rounds its ORD up to a power of two, and so is the ring.
    if qp.responses_tail - qp.cursor.next_response > qp.responses_mask:
        rx_fail(qp, TERM_STREAM_CATASTROPHIC, segment, received)
        return False
    get_read_request(fpdu + UNTAGGED_HEADER, &request)
    if request.length:
        if not qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ:
            rx_fail(qp, TERM_PROTECTION_ACCESS, segment, received)
            return False
        mr = mr_get(qp.pd, request.source_stag, request.source_to, request.length, IBV_ACCESS_REMOTE_READ, &why)
        if mr == NULL:
            rx_fail(qp, rx_read_error(why), segment, received)
            return False
        if qp.shm != NULL:
            shm_offer(qp, mr)
        mr_put(mr)
    response = &qp.responses[qp.responses_tail & qp.responses_mask]
    response.sink_stag = request.sink_stag
    response.sink_to = request.sink_to
    response.length = request.length
    response.source_stag = request.source_stag
    response.source_to = request.source_to
    qp.responses_tail += 1
    qp.rx_read_msn += 1
    qp.counters.rx_fpdus += 1
    qp.tx_gate = True
    return True


cdef void rx_terminate(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    """The peer gives up the stream. The request it complains of, if that can be told, gets the matching status."""
    cdef terminate_error what
    cdef soft_swqe *swqe
    cdef uint32_t index = qp.sq_head
    cdef int status = IBV_WC_SUCCESS
    cdef int culprit = -1
    qp.counters.rx_fpdus += 1
    qp.counters.terminates_received += 1
    if get_terminate(fpdu + UNTAGGED_HEADER, qp.rx_header.payload, &what) < 0:
        what.error = TERM_LOCAL_CATASTROPHIC
        what.about_read = False
    if what.about_read:
        culprit = IBV_WR_RDMA_READ
    elif what.error >> 8 == TERM_TAGGED_STAG >> 8:
        culprit = IBV_WR_RDMA_WRITE
    elif what.error >> 8 == TERM_UNTAGGED_QN >> 8 or what.error == TERM_CANNOT_INVALIDATE:
        culprit = IBV_WR_SEND
    elif what.error >> 8 == TERM_PROTECTION_STAG >> 8:
        culprit = IBV_WR_RDMA_READ
    if what.error >> 8 == TERM_PROTECTION_STAG >> 8 or what.error >> 8 == TERM_TAGGED_STAG >> 8:
        status = IBV_WC_REM_ACCESS_ERR
    elif what.error == TERM_UNTAGGED_NO_BUFFER:
        status = IBV_WC_RNR_RETRY_EXC_ERR
    elif what.error == TERM_UNTAGGED_TOO_LONG or what.error >> 8 == TERM_RDMAP_VERSION >> 8:
        status = IBV_WC_REM_INV_REQ_ERR
    else:
        status = IBV_WC_REM_OP_ERR
    qp.terminated = True
    qp.terminated_opcode = culprit
    qp.terminated_status = status
    # Of the requests that are at least begun, the oldest of the kind that is not complete.
    while index != qp.sq_tail and (index != qp.cursor.next_wqe or qp.cursor.kind == TX_REQUEST):
        swqe = &qp.sq[index & qp.sq_mask]
        if swqe.state != SWQE_DONE and (
                swqe.opcode == culprit or (culprit == IBV_WR_SEND and swqe.opcode == IBV_WR_SEND_WITH_INV)):
            qp_error(qp, index, status, IBV_WC_SUCCESS)
            return
        if index == qp.cursor.next_wqe:
            break
        index += 1
    qp_lost(qp)


cdef bint rx_check(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    """Versions, opcode and queue of an FPDU whose header is there. False: the queue pair is in error."""
    cdef ddp_header *h = &qp.rx_header
    cdef uint32_t error = 0
    if h.control & DDP_VERSION_MASK != DDP_VERSION:
        error = TERM_TAGGED_VERSION if h.tagged else TERM_UNTAGGED_VERSION
    elif not h.tagged and h.qn > QN_TERMINATE:
        error = TERM_UNTAGGED_QN
    elif h.rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION:
        error = TERM_RDMAP_VERSION
    elif h.tagged:
        if h.opcode != OP_WRITE and h.opcode != OP_READ_RESPONSE:
            error = TERM_UNEXPECTED_OPCODE
    elif h.qn == QN_SEND:
        if h.opcode < OP_SEND or h.opcode > OP_SEND_SE_INVALIDATE:
            error = TERM_UNEXPECTED_OPCODE
    elif h.qn == QN_READ_REQUEST:
        if h.opcode != OP_READ_REQUEST:
            error = TERM_UNEXPECTED_OPCODE
        elif h.payload != READ_REQUEST_PAYLOAD:
            error = TERM_UNTAGGED_TOO_LONG if h.payload > READ_REQUEST_PAYLOAD else TERM_DDP_CATASTROPHIC
    elif h.opcode != OP_TERMINATE:
        error = TERM_UNEXPECTED_OPCODE
    elif h.payload > TERMINATE_MAX:
        error = TERM_UNTAGGED_TOO_LONG
    if error:
        rx_fail(qp, error, fpdu, HEADER_MAX)
        return False
    return True


cdef bint rx_parse(soft_qp *qp) noexcept nogil:
    """Consumes what rx_buffer holds. False: the queue pair is in error."""
    cdef uint8_t *p
    cdef uint32_t there, total, header, n
    cdef ddp_header ahead
    cdef int done
    while True:
        p = qp.rx_buffer + qp.rx_start
        there = qp.rx_end - qp.rx_start
        qp.rx_need = 0
        if qp.rx_state == RX_PAYLOAD:
            n = there if there < qp.rx_left else qp.rx_left
            if not rx_place(qp, p, n):
                return False
            qp.rx_start += n
            if qp.rx_left:
                return True
            qp.rx_state = RX_TRAILER
            continue
        if qp.rx_state == RX_TRAILER:
            if there < qp.rx_trailer:
                qp.rx_need = qp.rx_trailer - there
                return True
            qp.rx_start += qp.rx_trailer
            if not rx_close(qp, p):
                return False
            continue
        if there < 4:
            qp.rx_need = HEADER_MAX - there
            return True
        total = fpdu_size(get16(p))
        if qp.crc:
            qp.rx_checked = there >= total
            if qp.rx_checked:
                if not crc_matches(p + total - 4, crc32c_add(0xffffffffU, p, total - 4)):
                    rx_fail(qp, TERM_MPA_CRC, NULL, 0)
                    return False
            elif get_header(p, there, &ahead) != 1 or not rx_foreseen(qp, &ahead):
                qp.rx_need = total - there
                return True
            else:
                qp.rx_crc = crc32c_add(0xffffffffU, p, TAGGED_HEADER)
        done = get_header(p, there, &qp.rx_header)
        if done < 0:
            rx_fail(qp, TERM_DDP_CATASTROPHIC, NULL, 0)
            return False
        if done == 0:
            qp.rx_need = HEADER_MAX - there
            return True
        header = TAGGED_HEADER if qp.rx_header.tagged else UNTAGGED_HEADER
        # For the Terminate that tells of an error in here; its last octets are not the header's when that is short.
        memset(qp.rx_raw, 0, sizeof(qp.rx_raw))
        memcpy(qp.rx_raw, p, header)
        if not rx_check(qp, qp.rx_raw):
            return False
        if not qp.rx_header.tagged and qp.rx_header.qn != QN_SEND:
            if there < total:
                qp.rx_need = total - there
                return True
            if qp.rx_header.qn == QN_TERMINATE:
                rx_terminate(qp, p)
                return False
            if not rx_read_request(qp, p):
                return False
            qp.rx_start += total
            continue
        if not rx_begin(qp):
            return False
        qp.rx_start += header
        qp.rx_trailer = total - header - qp.rx_header.payload
        qp.rx_state = RX_PAYLOAD
        if qp.rx_header.payload > RX_SMALL:
            qp.rx_window = RX_WINDOW_MIN


cdef bint qp_receive(soft_qp *qp) noexcept nogil:
    """Receives until the socket is empty or the turn is used up. False: the queue pair is in error. qp.lock is held."""
    cdef uint32_t room
    cdef ssize_t n
    # Most looks find nothing, or a short message: between two FPDUs, with none predicted, no vector is needed for them.
    if qp.shm == NULL and qp.rx_state == RX_HEADER and qp.rx_start == qp.rx_end and not rx_midway(qp):
        room = qp.rx_window
        n = recv(qp.fd, qp.rx_buffer, room, MSG_DONTWAIT)
        if n < 0 and errno.errno == EAGAIN:
            return True
        if n > 0:
            qp.counters.rx_bytes += <uint64_t> n
            qp.rx_start = 0
            qp.rx_end = <uint32_t> n
            if not rx_parse(qp):
                return False
            if n < room:
                return True
    return qp_receive_all(qp)


cdef bint qp_receive_all(soft_qp *qp) noexcept nogil:
    """qp_receive in any state; errors and the end of the stream are found here."""
    cdef rx_target target
    cdef rx_plan plan
    cdef msghdr message
    cdef uint32_t want, room, direct, there
    cdef uint32_t budget = RX_BYTES
    cdef ssize_t n
    cdef bint whole, vector
    while True:
        if qp.shm != NULL and not shm_messages(qp, &budget):
            return False
        if qp.rx_start == qp.rx_end:
            qp.rx_start = 0
            qp.rx_end = 0
        target.niov = 0
        target.nregions = 0
        direct = 0
        plan.count = 0
        if qp.rx_end == 0 and qp.rx_state == RX_HEADER and rx_ahead(qp, &target, &plan):
            room = min(plan.trailer + (qp.rx_window if plan.ends else TAGGED_HEADER), qp.rx_capacity)
        elif qp.rx_state == RX_PAYLOAD:
            # Everything buffered is placed: the buffer is empty.
            if not rx_aim(qp, &target):
                return False
            direct = qp.rx_left
            rx_predict(qp, &target, &plan)
            # Behind a segment in the middle of a message comes the next one's header, then payload not to be staged.
            room = plan.trailer + (qp.rx_window if plan.ends
                                   else TAGGED_HEADER if qp.rx_header.tagged else UNTAGGED_HEADER)
            if room > qp.rx_capacity:
                room = qp.rx_capacity
        else:
            there = qp.rx_end - qp.rx_start
            room = qp.rx_need if qp.rx_need > qp.rx_window else qp.rx_window
            if qp.crc:
                # With a whole FPDU comes the next one's header, but not much payload that has to be moved.
                room += RX_WINDOW_MIN
            if room > qp.rx_capacity - qp.rx_end and qp.rx_start:
                memmove(qp.rx_buffer, qp.rx_buffer + qp.rx_start, there)
                qp.rx_start = 0
                qp.rx_end = there
            if room > qp.rx_capacity - qp.rx_end:
                room = qp.rx_capacity - qp.rx_end
        target.iov[target.niov].iov_base = qp.rx_buffer + qp.rx_end
        target.iov[target.niov].iov_len = room
        vector = direct or plan.count
        if vector:
            memset(&message, 0, sizeof(message))
            message.msg_iov = target.iov
            message.msg_iovlen = <size_t> target.niov + 1
        want = direct + room + (plan.size if plan.count else 0)
        while True:
            if qp.shm != NULL:
                n = shm_recv(qp, target.iov, target.niov + 1)
            elif vector:
                n = recvmsg(qp.fd, &message, MSG_DONTWAIT)
            else:
                n = recv(qp.fd, target.iov[0].iov_base, room, MSG_DONTWAIT)
            if n >= 0 or errno.errno != EINTR:
                break
        if n <= 0:
            rx_release(&target)
        if n < 0:
            if errno.errno == EAGAIN:
                return True
            if errno.errno == EFAULT:
                rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
            else:
                qp_lost(qp)
            return False
        if n == 0:
            qp_lost(qp)
            return False
        qp.counters.rx_bytes += <uint64_t> n
        if direct:
            if n < direct:
                direct = <uint32_t> n
            rx_sum(qp, &target, 0, direct)
            rx_advance(qp, direct)
        if plan.count and n > direct:
            whole = rx_predicted_came(qp, &target, &plan, <uint32_t> n - direct)
        else:
            qp.rx_end += <uint32_t> n - direct
            whole = rx_parse(qp)
        rx_release(&target)
        if not whole:
            return False
        if n < want:
            if qp.shm == NULL:
                return True
        elif qp.rx_state == RX_HEADER and qp.rx_window < RX_BUFFER:
            qp.rx_window *= 2
        if budget < n:
            return True
        budget -= <uint32_t> n


cdef void qp_progress(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil:
    """Does what the stream allows now. The progress lock of `domain` is held."""
    cdef int opened = 1
    pthread_mutex_lock(&qp.lock)
    if qp.fd >= 0:
        if events & EPOLLOUT and qp.start_frame != NULL:
            stream_start(qp)
        if qp.phase == STREAM_REQUESTED:
            opened = stream_reply(qp) if events & ~<uint32_t> EPOLLOUT else 0
            if opened < 0:
                qp_lost(qp)
        elif qp.pausing and monotonic() >= qp.deadline and not stream_ready(qp):
            qp_lost(qp)
        elif qp.phase == STREAM_OPEN and events & ~<uint32_t> EPOLLOUT:
            qp_receive(qp)
        if qp.fd >= 0 and (events & EPOLLOUT or not qp.tx_blocked) and tx_pending(qp):
            qp_transmit(qp)
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, domain)

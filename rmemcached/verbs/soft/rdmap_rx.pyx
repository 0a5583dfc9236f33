# Receiving: FPDUs are parsed, checked, and placed; see rdmap_rx.pxd.

cdef enum:
    RX_SMALL = 4096                  # payloads up to this size cost the same copied or received directly
    TERMINATE_MAX = 256

cdef enum:                           # results of rx_parse_header
    RX_WRONG                         # the queue pair is in error
    RX_MORE                          # more octets are needed
    RX_DONE                          # a complete FPDU without payload to place
    RX_OPENED                        # the header of an FPDU with payload to place


cdef void rx_open(soft_qp *qp) noexcept nogil:
    qp.rx.start = 0
    qp.rx.end = 0
    qp.rx.need = 0
    qp.rx.read_size = RX_READ
    qp.rx.state = RX_HEADER
    # Prediction goes by the last header: an earlier stream may have ended within a READ response.
    memset(&qp.rx.header, 0, sizeof(qp.rx.header))


cdef void rx_fail(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil:
    assert_held(&qp.lock)
    if qp.stream.fault == NULL and error != TERM_LOCAL_CATASTROPHIC:
        qp.stream.fault = b"a frame came that no correct peer sends"
    qp_terminate(qp, error, segment, received, IBV_WC_SUCCESS, IBV_WC_SUCCESS)


cdef uint32_t rx_write_error(int why) noexcept nogil:
    # The error of a WRITE refused by mr_get. DDP has no code for a missing right. "Invalid STag" is siw's choice, too.
    if why == MR_BOUNDS:
        return TERM_TAGGED_BOUNDS
    if why == MR_STREAM:
        return TERM_TAGGED_STREAM
    if why == MR_WRAP:
        return TERM_TAGGED_WRAP
    return TERM_TAGGED_STAG


cdef uint32_t rx_read_error(int why) noexcept nogil:
    # The error of a READ refused by mr_get.
    if why == MR_BOUNDS:
        return TERM_PROTECTION_BOUNDS
    if why == MR_STREAM:
        return TERM_PROTECTION_STREAM
    if why == MR_WRAP:
        return TERM_PROTECTION_WRAP
    if why == MR_ACCESS:
        return TERM_PROTECTION_ACCESS
    return TERM_PROTECTION_STAG


cdef soft_swqe *rx_oldest_read(soft_qp *qp) noexcept nogil:
    if qp.reads_done == qp.tx.cursor.reads:
        return NULL
    return &qp.sq[qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask]


cdef void rx_release(rx_target *target) noexcept nogil:
    cdef int i
    for i in range(target.nregions):
        mr_put(target.regions[i])


cdef soft_mr *rx_hold_region(soft_qp *qp, rx_target *target, uint32_t stag, uint64_t addr,
                             uint64_t length) noexcept nogil:
    cdef soft_mr *mr = target.regions[target.nregions - 1] if target.nregions else NULL
    cdef int why = 0
    if mr != NULL and mr_serves(mr, stag, addr, length, IBV_ACCESS_LOCAL_WRITE):
        return mr
    if target.nregions == RX_IOVECS:
        return NULL
    mr = mr_get(qp, stag, addr, length, IBV_ACCESS_LOCAL_WRITE, &why)
    if mr != NULL:
        target.regions[target.nregions] = mr
        target.nregions += 1
    return mr


cdef bint rx_scatter(soft_qp *qp, rx_target *target, const ibv_sge *sges, uint32_t count, uint32_t offset,
                     uint32_t length) noexcept nogil:
    cdef uint32_t i, n
    cdef const soft_mr *mr
    for i in range(count):
        if length == 0:
            break
        if offset >= sges[i].length:
            offset -= sges[i].length
            continue
        n = sges[i].length - offset
        if n > length:
            n = length
        mr = rx_hold_region(qp, target, sges[i].lkey, sges[i].addr + offset, n)
        if mr == NULL:
            return False
        target.iov[target.niov].iov_base = mr_at(mr, sges[i].addr + offset)
        target.iov[target.niov].iov_len = n
        target.niov += 1
        offset = 0
        length -= n
    return length == 0


cdef bint rx_find_target(soft_qp *qp, rx_target *target) noexcept nogil:
    """Finds the memory for the next rx.left octets of payload. False: the queue pair is in error."""
    cdef soft_swqe *swqe
    cdef uint32_t index
    cdef int why = 0
    assert_held(&qp.lock)
    target.niov = 0
    target.nregions = 0
    if qp.rx.header.opcode == OP_WRITE:
        target.regions[0] = mr_get(qp, qp.rx.header.stag, qp.rx.to, qp.rx.left, IBV_ACCESS_REMOTE_WRITE, &why)
        if target.regions[0] == NULL:
            rx_fail(qp, rx_write_error(why), qp.rx.raw, HEADER_MAX)
            return False
        target.nregions = 1
        target.iov[0].iov_base = mr_at(target.regions[0], qp.rx.to)
        target.iov[0].iov_len = qp.rx.left
        target.niov = 1
        return True
    if qp.rx.header.opcode == OP_READ_RESPONSE:
        swqe = rx_oldest_read(qp)
        index = qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask
        if rx_scatter(qp, target, qp.sq_sges + index * qp.cap.max_send_sge, swqe.num_sge, swqe.received, qp.rx.left):
            return True
        rx_release(target)
        qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS)
        return False
    index = qp.rq_head & qp.rq_mask
    if rx_scatter(qp, target, qp.rq_sges + index * qp.rq_sge, qp.rq[index].num_sge, qp.rx.offset, qp.rx.left):
        return True
    rx_release(target)
    qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR)
    return False


cdef void rx_advance(soft_qp *qp, uint32_t placed) noexcept nogil:
    qp.rx.left -= placed
    if qp.rx.header.opcode == OP_WRITE:
        qp.rx.to += placed
    elif qp.rx.header.opcode == OP_READ_RESPONSE:
        rx_oldest_read(qp).received += placed
    else:
        qp.rx.offset += placed


cdef bint rx_place(soft_qp *qp, const uint8_t *data, uint32_t length) noexcept nogil:
    """Copies payload from the receive buffer to its target. False: the queue pair is in error."""
    cdef rx_target target
    cdef uint32_t placed = 0
    cdef uint32_t n
    cdef int i
    if length == 0:
        return True
    if not rx_find_target(qp, &target):
        return False
    for i in range(target.niov):
        n = length - placed
        if n > target.iov[i].iov_len:
            n = <uint32_t> target.iov[i].iov_len
        memcpy(target.iov[i].iov_base, data + placed, n)
        placed += n
    rx_release(&target)
    if qp.crc and not qp.rx.checked:
        qp.rx.crc = crc32c_add(qp.rx.crc, data, length)
    rx_advance(qp, length)
    counter_add(&qp.counters.rx_staged_bytes, length)
    return True


cdef bint rx_begin_segment(soft_qp *qp) noexcept nogil:
    cdef ddp_header *h = &qp.rx.header
    cdef soft_rwqe *rwqe
    cdef soft_mr *mr
    cdef int why = 0
    assert_held(&qp.lock)
    qp.rx.left = h.payload
    if h.tagged and not h.last:
        qp.rx.segment = h.payload
    if h.opcode == OP_WRITE:
        # A zero-length WRITE names no memory: it may be a peer's ready-to-receive frame.
        if h.payload == 0:
            return True
        if not qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE:
            rx_fail(qp, TERM_TAGGED_STAG, qp.rx.raw, HEADER_MAX)
            return False
        mr = mr_get(qp, h.stag, h.to, h.payload, IBV_ACCESS_REMOTE_WRITE, &why)
        if mr == NULL:
            rx_fail(qp, rx_write_error(why), qp.rx.raw, HEADER_MAX)
            return False
        if qp.fabric.named_by_peer != NULL:
            qp.fabric.named_by_peer(qp, mr)
        mr_put(mr)
        qp.rx.to = h.to
        return True
    if h.opcode == OP_READ_RESPONSE:
        return rx_begin_response(qp, h)
    if h.msn != qp.rx.send_msn:
        rx_fail(qp, TERM_UNTAGGED_MSN, qp.rx.raw, HEADER_MAX)
        return False
    if h.mo != qp.rx.offset:
        rx_fail(qp, TERM_UNTAGGED_MO, qp.rx.raw, HEADER_MAX)
        return False
    if h.mo != 0 and h.opcode != qp.rx.send:
        rx_fail(qp, TERM_UNEXPECTED_OPCODE, qp.rx.raw, HEADER_MAX)
        return False
    # A message of empty segments would never end.
    if h.payload == 0 and not h.last:
        rx_fail(qp, TERM_UNTAGGED_MO, qp.rx.raw, HEADER_MAX)
        return False
    if qp.rq_head == qp.rq_tail and (qp.srq == NULL or not srq_take(qp)):
        rx_fail(qp, TERM_UNTAGGED_NO_BUFFER, qp.rx.raw, HEADER_MAX)
        return False
    rwqe = &qp.rq[qp.rq_head & qp.rq_mask]
    if <uint64_t> h.mo + h.payload > rwqe.length:
        qp_terminate(qp, TERM_UNTAGGED_TOO_LONG, qp.rx.raw, HEADER_MAX, IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR)
        return False
    qp.rx.send = h.opcode
    return True


cdef bint rx_begin_response(soft_qp *qp, const ddp_header *h) noexcept nogil:
    """Checks that a READ response continues the oldest READ under way. False: the queue pair is in error."""
    cdef soft_swqe *swqe = rx_oldest_read(qp)
    cdef const ibv_sge *sges
    if swqe == NULL:
        rx_fail(qp, TERM_UNEXPECTED_OPCODE, qp.rx.raw, HEADER_MAX)
        return False
    sges = qp.sq_sges + (qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask) * qp.cap.max_send_sge
    if swqe.length:
        if h.stag != sges[0].lkey:
            rx_fail(qp, TERM_TAGGED_STAG, qp.rx.raw, HEADER_MAX)
            return False
        if h.to != sges[0].addr + swqe.received:
            rx_fail(qp, TERM_TAGGED_BOUNDS, qp.rx.raw, HEADER_MAX)
            return False
    if h.payload > swqe.length - swqe.received or h.last != (h.payload == swqe.length - swqe.received):
        rx_fail(qp, TERM_TAGGED_BOUNDS, qp.rx.raw, HEADER_MAX)
        return False
    return True


cdef inline void rx_established(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    if qp.ibv.state == IBV_QPS_RTR and not qp.established:
        qp.established = True
        async_event(qp.context, &qp.async_events, IBV_EVENT_COMM_EST)


cdef bint rx_finish_segment(soft_qp *qp) noexcept nogil:
    """The FPDU is placed. The last FPDU completes its message. False: the queue pair is in error."""
    cdef ddp_header *h = &qp.rx.header
    cdef soft_rwqe *rwqe
    cdef soft_swqe *swqe
    cdef ibv_wc wc
    cdef bint solicited
    assert_held(&qp.lock)
    qp.rx.state = RX_HEADER
    counter_add(&qp.counters.rx_fpdus, 1)
    qp.tx.allowed = True
    if not h.last:
        return True
    rx_established(qp)
    if h.opcode == OP_WRITE:
        counter_add(&qp.counters.writes_served, 1)
        return True
    if h.opcode == OP_READ_RESPONSE:
        swqe = rx_oldest_read(qp)
        swqe.state = SWQE_DONE
        qp.reads_done += 1
        counter_add(&qp.counters.reads, 1)
        counter_add(&qp.counters.read_bytes, swqe.length)
        qp_retire(qp)
        return qp.stream.fd >= 0
    memset(&wc, 0, sizeof(wc))
    if h.opcode == OP_SEND_INVALIDATE or h.opcode == OP_SEND_SE_INVALIDATE:
        if not mr_invalidate(qp, h.stag):
            rx_fail(qp, TERM_CANNOT_INVALIDATE, qp.rx.raw, HEADER_MAX)
            return False
        wc.wc_flags = IBV_WC_WITH_INV
        wc.invalidated_rkey = h.stag
    rwqe = &qp.rq[qp.rq_head & qp.rq_mask]
    wc.wr_id = rwqe.wr_id
    wc.status = IBV_WC_SUCCESS
    wc.opcode = IBV_WC_RECV
    wc.byte_len = qp.rx.offset
    wc.qp_num = qp.ibv.qp_num
    wc.src_qp = qp.attr.dest_qp_num
    qp.rq_head += 1
    qp.rx.offset = 0
    qp.rx.send_msn += 1
    counter_add(&qp.counters.recvs, 1)
    solicited = h.opcode == OP_SEND_SE or h.opcode == OP_SEND_SE_INVALIDATE
    if not cq_add(qp.recv_cq, &wc, solicited):
        rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
        return False
    return True


cdef bint rx_end_fpdu(soft_qp *qp, const uint8_t *trailer) noexcept nogil:
    cdef uint32_t pad = qp.rx.trailer - 4
    assert_held(&qp.lock)
    if qp.crc and not qp.rx.checked and not crc_matches(trailer + pad, crc32c_add(qp.rx.crc, trailer, pad)):
        rx_fail(qp, TERM_MPA_CRC, NULL, 0)
        return False
    return rx_finish_segment(qp)


cdef bint rx_read_request(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    """Checks a whole Read Request and queues it for tx_response. False: the queue pair is in error."""
    cdef ddp_header *h = &qp.rx.header
    cdef const uint8_t *segment = fpdu
    cdef uint32_t received = UNTAGGED_HEADER + READ_REQUEST_PAYLOAD
    cdef read_request request
    cdef soft_response *response
    cdef soft_mr *mr
    cdef int why = 0
    assert_held(&qp.lock)
    if h.msn != qp.rx.read_msn:
        rx_fail(qp, TERM_UNTAGGED_MSN, segment, received)
        return False
    if h.mo != 0:
        rx_fail(qp, TERM_UNTAGGED_MO, segment, received)
        return False
    if not h.last:
        rx_fail(qp, TERM_UNTAGGED_TOO_LONG, segment, received)
        return False
    # The limit is the ring, not qp.ird: siw rounds its ORD up to a power of two, and the ring is rounded up too.
    if qp.responses_tail - qp.tx.cursor.next_response > qp.responses_mask:
        rx_fail(qp, TERM_STREAM_CATASTROPHIC, segment, received)
        return False
    get_read_request(fpdu + UNTAGGED_HEADER, &request)
    if request.length:
        if not qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ:
            rx_fail(qp, TERM_PROTECTION_ACCESS, segment, received)
            return False
        mr = mr_get(qp, request.source_stag, request.source_to, request.length, IBV_ACCESS_REMOTE_READ, &why)
        if mr == NULL:
            rx_fail(qp, rx_read_error(why), segment, received)
            return False
        if qp.fabric.named_by_peer != NULL:
            qp.fabric.named_by_peer(qp, mr)
        mr_put(mr)
    response = &qp.responses[qp.responses_tail & qp.responses_mask]
    response.sink_stag = request.sink_stag
    response.sink_to = request.sink_to
    response.length = request.length
    response.source_stag = request.source_stag
    response.source_to = request.source_to
    qp.responses_tail += 1
    qp.rx.read_msn += 1
    counter_add(&qp.counters.rx_fpdus, 1)
    qp.tx.allowed = True
    return True


cdef void rx_terminate(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    """Carries out the peer's Terminate, which ends the stream. If the Terminate points to one of our requests, this
    request completes with the matching status."""
    cdef terminate_error what
    cdef soft_swqe *swqe
    cdef uint32_t index = qp.sq_head
    cdef int status = IBV_WC_SUCCESS
    cdef int culprit = -1
    assert_held(&qp.lock)
    counter_add(&qp.counters.rx_fpdus, 1)
    counter_add(&qp.counters.terminates_received, 1)
    if get_terminate(fpdu + UNTAGGED_HEADER, qp.rx.header.payload, &what) < 0:
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
    # The culprit is the oldest incomplete request of this kind among the begun requests.
    while index != qp.sq_tail and (index != qp.tx.cursor.next_wqe or qp.tx.cursor.kind == TX_REQUEST):
        swqe = &qp.sq[index & qp.sq_mask]
        if swqe.state != SWQE_DONE and (
                swqe.opcode == culprit or (culprit == IBV_WR_SEND and swqe.opcode == IBV_WR_SEND_WITH_INV)):
            qp_error(qp, index, status, IBV_WC_SUCCESS)
            return
        if index == qp.tx.cursor.next_wqe:
            break
        index += 1
    qp_lost(qp)


cdef bint rx_check(soft_qp *qp, const uint8_t *fpdu) noexcept nogil:
    cdef ddp_header *h = &qp.rx.header
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


cdef int rx_check_crc(soft_qp *qp, const uint8_t *p, uint32_t there, uint32_t total) noexcept nogil:
    """Checks an FPDU's CRC at its start: RX_OPENED if the header may be used already, else RX_MORE or RX_WRONG."""
    cdef ddp_header ahead
    qp.rx.checked = there >= total
    if qp.rx.checked:
        if not crc_matches(p + total - 4, crc32c_add(0xffffffffU, p, total - 4)):
            rx_fail(qp, TERM_MPA_CRC, NULL, 0)
            return RX_WRONG
    elif get_header(p, there, &ahead) != 1 or not rx_may_place_early(qp, &ahead):
        qp.rx.need = total - there
        return RX_MORE
    else:
        qp.rx.crc = crc32c_add(0xffffffffU, p, TAGGED_HEADER)
    return RX_OPENED


cdef int rx_parse_header(soft_qp *qp) noexcept nogil:
    """At an FPDU's start: parses its header; if it has no payload to place, all of the FPDU."""
    cdef uint8_t *p = qp.rx.buffer + qp.rx.start
    cdef uint32_t there = qp.rx.end - qp.rx.start
    cdef uint32_t total, header
    cdef int found
    if there < 4:
        qp.rx.need = HEADER_MAX - there
        return RX_MORE
    total = fpdu_size(get16(p))
    if qp.crc:
        found = rx_check_crc(qp, p, there, total)
        if found != RX_OPENED:
            return found
    found = get_header(p, there, &qp.rx.header)
    if found < 0:
        rx_fail(qp, TERM_DDP_CATASTROPHIC, NULL, 0)
        return RX_WRONG
    if found == 0:
        qp.rx.need = HEADER_MAX - there
        return RX_MORE
    header = TAGGED_HEADER if qp.rx.header.tagged else UNTAGGED_HEADER
    # Keep the header: a Terminate shows a wrong header to the peer. A tagged header is shorter; the rest is zeros.
    memset(qp.rx.raw, 0, sizeof(qp.rx.raw))
    memcpy(qp.rx.raw, p, header)
    if not rx_check(qp, qp.rx.raw):
        return RX_WRONG
    if not qp.rx.header.tagged and qp.rx.header.qn != QN_SEND:
        if there < total:
            qp.rx.need = total - there
            return RX_MORE
        if qp.rx.header.qn == QN_TERMINATE:
            rx_terminate(qp, p)
            return RX_WRONG
        if not rx_read_request(qp, p):
            return RX_WRONG
        qp.rx.start += total
        return RX_DONE
    if not rx_begin_segment(qp):
        return RX_WRONG
    qp.rx.start += header
    qp.rx.trailer = total - header - qp.rx.header.payload
    if qp.rx.header.payload > RX_SMALL:
        qp.rx.read_size = RX_READ_MIN
    return RX_OPENED


cdef bint rx_parse(soft_qp *qp) noexcept nogil:
    cdef uint8_t *p
    cdef uint32_t there, n
    cdef int found
    assert_held(&qp.lock)
    while True:
        qp.rx.need = 0
        if qp.rx.state == RX_HEADER:
            found = rx_parse_header(qp)
            if found == RX_WRONG or found == RX_MORE:
                return found == RX_MORE
            if found == RX_DONE:
                continue
            qp.rx.state = RX_PAYLOAD
        p = qp.rx.buffer + qp.rx.start
        there = qp.rx.end - qp.rx.start
        if qp.rx.state == RX_PAYLOAD:
            n = there if there < qp.rx.left else qp.rx.left
            if not rx_place(qp, p, n):
                return False
            qp.rx.start += n
            if qp.rx.left:
                return True
            qp.rx.state = RX_TRAILER
            p += n
            there -= n
        if there < qp.rx.trailer:
            qp.rx.need = qp.rx.trailer - there
            return True
        qp.rx.start += qp.rx.trailer
        if not rx_end_fpdu(qp, p):
            return False


cdef void rx_make_room(soft_qp *qp, rx_reception *r) noexcept nogil:
    """Outside of payload: the next octets go behind the content of the receive buffer."""
    cdef uint32_t there = qp.rx.end - qp.rx.start
    r.room = qp.rx.need if qp.rx.need > qp.rx.read_size else qp.rx.read_size
    if qp.crc:
        # Read a little more than this FPDU: the next FPDU's header, but not much payload, which would have to be moved.
        r.room += RX_READ_MIN
    if r.room > qp.rx.capacity - qp.rx.end and qp.rx.start:
        memmove(qp.rx.buffer, qp.rx.buffer + qp.rx.start, there)
        qp.rx.start = 0
        qp.rx.end = there
    if r.room > qp.rx.capacity - qp.rx.end:
        r.room = qp.rx.capacity - qp.rx.end


cdef void rx_trim(rx_reception *r, uint32_t most) noexcept nogil:
    """Leaves out octets beyond `most`, as if the stream had no more."""
    cdef uint32_t left = most
    cdef int i = 0
    if r.want <= most:
        return
    while r.target.iov[i].iov_len < left:
        left -= <uint32_t> r.target.iov[i].iov_len
        i += 1
    r.target.iov[i].iov_len = left
    r.target.niov = i + 1
    r.want = most


cdef inline void rx_get_buffer(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    qp.rx.capacity = RX_BUFFER
    qp.rx.buffer = <uint8_t *> exchange(&qp.domains[0].spare, 0)
    if qp.rx.buffer == NULL:
        qp.rx.buffer = <uint8_t *> malloc(RX_BUFFER)


cdef inline bint rx_borrow(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    if qp.rx.buffer != NULL:
        return True
    assert_that(qp.rx.start == qp.rx.end and not qp.crc)
    qp.rx.start = 0
    qp.rx.end = 0
    rx_get_buffer(qp)
    if qp.rx.buffer == NULL:
        qp_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS)
        return False
    return True


cdef inline void rx_return(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    if qp.rx.buffer == NULL or qp.rx.start != qp.rx.end or qp.crc:
        return
    free(<void *> exchange(&qp.domains[0].spare, <uint64_t> qp.rx.buffer))
    qp.rx.buffer = NULL


cdef bint rx_prepare(soft_qp *qp, rx_reception *r, uint32_t most) noexcept nogil:
    assert_held(&qp.lock)
    r.plan.most = min(most, <uint32_t> PREDICTED_BYTES)
    if qp.rx.start == qp.rx.end:
        qp.rx.start = 0
        qp.rx.end = 0
    r.target.niov = 0
    r.target.nregions = 0
    r.direct = 0
    r.plan.count = 0
    if qp.rx.end == 0 and qp.rx.state == RX_HEADER and rx_predict_between(qp, &r.target, &r.plan):
        r.room = min(r.plan.trailer + (qp.rx.read_size if r.plan.ends else TAGGED_HEADER), qp.rx.capacity)
    elif qp.rx.state == RX_PAYLOAD:
        # All of the buffer's content is placed, so the buffer is empty.
        if not rx_find_target(qp, &r.target):
            return False
        r.direct = qp.rx.left
        r.plan.most = min(most - min(most, r.direct), <uint32_t> PREDICTED_BYTES)
        rx_predict(qp, &r.target, &r.plan)
        # Within a message only the next header is read into the buffer: the payload behind it goes to its target.
        r.room = r.plan.trailer + (qp.rx.read_size if r.plan.ends
                                   else TAGGED_HEADER if qp.rx.header.tagged else UNTAGGED_HEADER)
        if r.room > qp.rx.capacity:
            r.room = qp.rx.capacity
    else:
        rx_make_room(qp, r)
    r.target.iov[r.target.niov].iov_base = qp.rx.buffer + qp.rx.end
    r.target.iov[r.target.niov].iov_len = r.room
    r.target.niov += 1
    r.want = r.direct + r.room + (r.plan.size if r.plan.count else 0)
    rx_trim(r, max(most, <uint32_t> RX_READ))
    return True


cdef bint rx_take(soft_qp *qp, rx_reception *r, size_t n) noexcept nogil:
    cdef uint32_t left = <uint32_t> n
    cdef bint whole
    assert_held(&qp.lock)
    counter_add(&qp.counters.rx_bytes, n)
    if r.direct:
        if left < r.direct:
            r.direct = left
        rx_add_crc(qp, &r.target, 0, r.direct)
        rx_advance(qp, r.direct)
        left -= r.direct
    if r.plan.count and left:
        whole = rx_take_predicted(qp, &r.target, &r.plan, left)
    else:
        qp.rx.end += left
        whole = rx_parse(qp)
    rx_release(&r.target)
    if whole and n >= r.want and qp.rx.state == RX_HEADER and qp.rx.read_size < RX_BUFFER:
        qp.rx.read_size *= 2
    return whole


cdef bint rx_nothing(soft_qp *qp, rx_reception *r, ssize_t n) noexcept nogil:
    cdef int error = errno.errno
    assert_held(&qp.lock)
    rx_release(&r.target)
    if n < 0 and error == EAGAIN:
        return True
    if n < 0 and error == EFAULT:
        rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
    else:
        qp_lost(qp)
    return False

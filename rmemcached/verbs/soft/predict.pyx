# Prediction of FPDUs; see predict.pxd.

cdef enum:
    PREDICTED_MIN = 512              # octets of payload; shorter FPDUs are not worth it
    REPLAY_SMALL = 2048              # octets replayed from the stack


cdef bint rx_expect(rx_target *target, rx_plan *plan, uint32_t stag, uint64_t to, uint32_t payload) noexcept nogil:
    """Adds an FPDU to the plan; the caller adds its target. False: the plan is full."""
    cdef rx_predicted *fpdu = &plan.fpdus[plan.count]
    if plan.count == PREDICTED_MAX or plan.size >= plan.most or target.niov + MAX_SGE + 2 > RX_IOVECS:
        return False
    fpdu.stag = stag
    fpdu.to = to
    fpdu.payload = payload
    fpdu.gap = plan.trailer + TAGGED_HEADER
    fpdu.iov = target.niov
    target.iov[target.niov].iov_base = plan.gaps[plan.count]
    target.iov[target.niov].iov_len = fpdu.gap
    target.niov += 1
    plan.size += fpdu.gap + payload
    plan.trailer = fpdu_pad(TAGGED_HEADER - 2 + payload) + 4
    plan.count += 1
    return True


cdef bint rx_sink_is_apart(soft_qp *qp, rx_target *target, const soft_swqe *swqe, uint32_t index, uint64_t *low,
                           uint64_t *high) noexcept nogil:
    """Whether a READ's sink may be written and lies outside [low, high) in memory. Widens the range by the sink.

    Octets that break the prediction are copied back from their place in memory. So one reception must not use the same
    memory twice. Two regions can have the same memory under different addresses.
    """
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> (index & qp.sq_mask) * qp.cap.max_send_sge
    cdef const soft_mr *mr
    cdef uint64_t start, end
    cdef uint32_t i
    for i in range(swqe.num_sge):
        if sges[i].length == 0:
            continue
        mr = rx_hold_region(qp, target, sges[i].lkey, sges[i].addr, sges[i].length)
        if mr == NULL:
            return False
        start = <uint64_t> mr_at(mr, sges[i].addr)
        end = start + sges[i].length
        if start < high[0] and end > low[0]:
            return False
        low[0] = min(low[0], start)
        high[0] = max(high[0], end)
    return True


cdef void rx_predict_write(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil:
    """Plans for the rest of the region, if a WRITE may change all of it."""
    cdef const soft_mr *mr = target.regions[0]
    cdef uint32_t full = qp.rx.header.payload
    cdef uint32_t payload
    cdef uint64_t to = qp.rx.to + qp.rx.left
    cdef uint64_t end = mr.start + mr.ibv.length
    if qp.rx.header.last or not mr.access & SOFT_ACCESS_SCRATCH:
        return
    while to < end:
        payload = full if end - to > full else <uint32_t> (end - to)
        if not rx_expect(target, plan, mr.ibv.lkey, to, payload):
            return
        target.iov[target.niov].iov_base = mr_at(mr, to)
        target.iov[target.niov].iov_len = payload
        target.niov += 1
        to += payload
    plan.ends = True


cdef bint rx_predict_segment(soft_qp *qp, rx_target *target, rx_plan *plan, uint32_t read, uint32_t offset,
                             uint32_t payload) noexcept nogil:
    """Adds an FPDU of the response to qp.reads[read]. False: there is no room, or its target may not be written."""
    cdef uint32_t index = qp.reads[read % MAX_READS] & qp.sq_mask
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> index * qp.cap.max_send_sge
    cdef int niov = target.niov
    if not rx_expect(target, plan, sges[0].lkey, sges[0].addr + offset, payload):
        return False
    if rx_scatter(qp, target, sges, qp.sq[index].num_sge, offset, payload):
        return True
    # The payload may not be placed there. The queue pair goes to ERR when the FPDU itself comes.
    target.niov = niov
    plan.count -= 1
    plan.size -= plan.fpdus[plan.count].gap + payload
    plan.trailer = plan.fpdus[plan.count].gap - TAGGED_HEADER
    return False


cdef void rx_predict_reads(soft_qp *qp, rx_target *target, rx_plan *plan, uint32_t full) noexcept nogil:
    """Plans for the rest of the sinks of the READs under way, in FPDUs of `full` octets of payload."""
    cdef uint32_t read = qp.reads_done
    cdef const soft_swqe *swqe = rx_oldest_read(qp)
    cdef uint32_t offset = swqe.received + qp.rx.left
    cdef uint32_t payload
    cdef uint64_t low = <uint64_t> -1
    cdef uint64_t high = 0
    if not rx_sink_is_apart(qp, target, swqe, qp.reads[read % MAX_READS], &low, &high):
        return
    while True:
        while offset == swqe.length:
            read += 1
            if read == qp.tx.cursor.reads:
                plan.ends = True
                return
            swqe = &qp.sq[qp.reads[read % MAX_READS] & qp.sq_mask]
            offset = 0
            if swqe.length == 0:
                plan.ends = True
                return
            if not rx_sink_is_apart(qp, target, swqe, qp.reads[read % MAX_READS], &low, &high):
                plan.ends = False
                return
        payload = full if swqe.length - offset > full else swqe.length - offset
        if not rx_predict_segment(qp, target, plan, read, offset, payload):
            plan.ends = False
            return
        offset += payload


cdef void rx_predict(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil:
    cdef uint32_t full = qp.rx.segment if qp.rx.header.last else qp.rx.header.payload
    assert_held(&qp.lock)
    plan.count = 0
    plan.size = 0
    plan.trailer = qp.rx.trailer
    plan.ends = qp.rx.header.last
    if not qp.rx.header.tagged or full < PREDICTED_MIN:
        return
    if qp.rx.header.opcode == OP_WRITE:
        rx_predict_write(qp, target, plan)
    else:
        rx_predict_reads(qp, target, plan, full)


cdef inline bint rx_within_message(const soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    return qp.rx.header.tagged and not qp.rx.header.last and qp.rx.header.payload >= PREDICTED_MIN


cdef bint rx_may_place_early(soft_qp *qp, const ddp_header *h) noexcept nogil:
    """Yes if the header is exactly the expected next header, and a wrong octet does no harm in its memory."""
    cdef const soft_swqe *swqe
    cdef const ibv_sge *sges
    cdef uint32_t left
    cdef soft_mr *mr
    cdef bint scratch
    cdef int why = 0
    assert_held(&qp.lock)
    if (not h.tagged or h.payload < PREDICTED_MIN or h.control & DDP_VERSION_MASK != DDP_VERSION
            or h.rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION):
        return False
    if h.opcode == OP_READ_RESPONSE:
        swqe = rx_oldest_read(qp)
        if swqe == NULL or swqe.length == 0:
            return False
        sges = qp.sq_sges + <size_t> (qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask) * qp.cap.max_send_sge
        left = swqe.length - swqe.received
        return (h.stag == sges[0].lkey and h.to == sges[0].addr + swqe.received and h.payload <= left
                and h.last == (h.payload == left))
    if (h.opcode != OP_WRITE or not rx_within_message(qp) or qp.rx.header.opcode != OP_WRITE
            or h.stag != qp.rx.header.stag or h.to != qp.rx.to):
        return False
    mr = mr_get(qp, h.stag, h.to, h.payload, IBV_ACCESS_REMOTE_WRITE, &why)
    if mr == NULL:
        return False
    scratch = mr.access & SOFT_ACCESS_SCRATCH != 0
    mr_put(mr)
    return scratch


cdef void rx_add_crc(soft_qp *qp, const rx_target *target, int index, uint32_t length) noexcept nogil:
    cdef uint32_t n
    while qp.crc and length:
        n = length if length < target.iov[index].iov_len else <uint32_t> target.iov[index].iov_len
        qp.rx.crc = crc32c_add(qp.rx.crc, target.iov[index].iov_base, n)
        length -= n
        index += 1


cdef bint rx_predict_between(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil:
    cdef int why = 0
    assert_held(&qp.lock)
    if not rx_within_message(qp):
        return False
    if qp.rx.header.opcode == OP_WRITE:
        target.regions[0] = mr_get(qp, qp.rx.header.stag, qp.rx.to, 1, IBV_ACCESS_REMOTE_WRITE, &why)
        if target.regions[0] == NULL:
            return False
        target.nregions = 1
    qp.rx.trailer = 0
    rx_predict(qp, target, plan)
    if plan.count == 0:
        rx_release(target)
        target.nregions = 0
        target.niov = 0
        return False
    return True


cdef bint rx_replay(soft_qp *qp, const rx_target *target, int index, size_t skip, uint32_t left) noexcept nogil:
    """Parses `left` received octets, from `skip` in iov[index] on, that lie outside their proper place.

    False: the queue pair is in error.
    """
    cdef uint8_t small[REPLAY_SMALL]
    cdef uint8_t *octets = small
    cdef uint32_t at = 0
    cdef uint32_t n
    cdef bint whole = True
    assert_held(&qp.lock)
    if left > REPLAY_SMALL:
        octets = <uint8_t *> malloc(left)
        if octets == NULL:
            rx_fail(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
            return False
    while at < left:
        n = left - at
        if n > target.iov[index].iov_len - skip:
            n = <uint32_t> (target.iov[index].iov_len - skip)
        memcpy(octets + at, <const uint8_t *> target.iov[index].iov_base + skip, n)
        at += n
        skip = 0
        index += 1
    at = 0
    while whole and at < left:
        n = qp.rx.end - qp.rx.start
        memmove(qp.rx.buffer, qp.rx.buffer + qp.rx.start, n)
        qp.rx.start = 0
        qp.rx.end = n
        n = left - at
        if n > qp.rx.capacity - qp.rx.end:
            n = qp.rx.capacity - qp.rx.end
        memcpy(qp.rx.buffer + qp.rx.end, octets + at, n)
        qp.rx.end += n
        at += n
        whole = rx_parse(qp)
    if octets != small:
        free(octets)
    return whole


cdef bint rx_take_predicted(soft_qp *qp, const rx_target *target, const rx_plan *plan, uint32_t left) noexcept nogil:
    cdef const rx_predicted *fpdu
    cdef ddp_header header
    cdef const uint8_t *octets
    cdef uint32_t i, trailer, placed
    cdef size_t skip
    cdef int index
    assert_held(&qp.lock)
    for i in range(plan.count):
        if left == 0:
            return True
        fpdu = &plan.fpdus[i]
        octets = plan.gaps[i]
        trailer = fpdu.gap - TAGGED_HEADER
        if (left < fpdu.gap or get_header(octets + trailer, TAGGED_HEADER, &header) != 1 or not header.tagged
                or header.opcode != qp.rx.header.opcode or header.stag != fpdu.stag or header.to != fpdu.to):
            return rx_replay(qp, target, fpdu.iov, 0, left)
        if qp.rx.state != RX_HEADER and not rx_end_fpdu(qp, octets):
            return False
        if qp.crc:
            if not rx_may_place_early(qp, &header):
                return rx_replay(qp, target, fpdu.iov, trailer, left - trailer)
            qp.rx.checked = False
            qp.rx.crc = crc32c_add(0xffffffffU, octets + trailer, TAGGED_HEADER)
        qp.rx.header = header
        memset(qp.rx.raw, 0, sizeof(qp.rx.raw))
        memcpy(qp.rx.raw, octets + trailer, TAGGED_HEADER)
        if not rx_check(qp, qp.rx.raw) or not rx_begin_segment(qp):
            return False
        qp.rx.state = RX_PAYLOAD
        qp.rx.trailer = fpdu_size(header.ulpdu) - TAGGED_HEADER - header.payload
        left -= fpdu.gap
        placed = left if left < fpdu.payload else fpdu.payload
        if placed > header.payload:
            placed = header.payload
        rx_add_crc(qp, target, fpdu.iov + 1, placed)
        rx_advance(qp, placed)
        left -= placed
        if qp.rx.left == 0:
            qp.rx.state = RX_TRAILER
        if header.payload != fpdu.payload:
            # The payload has another length than planned. Find the octet behind it: the planned payload may be several
            # elements of the scatter list.
            index = fpdu.iov + 1
            skip = placed
            while left and skip >= target.iov[index].iov_len:
                skip -= target.iov[index].iov_len
                index += 1
            return left == 0 or rx_replay(qp, target, index, skip, left)
    qp.rx.end += left
    return rx_parse(qp)

# Prediction: while a long tagged message comes in, one recvmsg takes many FPDUs.
#
# Behind the open FPDU, or when the socket was empty between two, the next ones of the same message, and of the READs
# behind it, are expected at known places: the octets between two payloads go to a gap of their own, each payload
# straight to its target. What came is then parsed in order; what turns out not to be where it belongs is taken up
# again and goes through the receive buffer, as if it had been received there.
#
# Payload is thus written before its header is seen. So only memory is used whose content the peer decides anyway: all
# that is left of the sinks of READs under way, and regions registered with SOFT_ACCESS_SCRATCH.
#
# The same holds with CRC, where payload that goes there need not wait for its CRC: a READ is not complete, and a WRITE
# not followed by anything, before that is right. All else is placed once the CRC of its FPDU has been checked.

cdef enum:
    PREDICTED_MAX = 32
    PREDICTED_BYTES = 512 << 10      # beyond which no more are predicted
    PREDICTED_MIN = 512              # shorter FPDUs are not worth it
    GAP_MAX = FPDU_TRAILER_MAX + TAGGED_HEADER
    REPLAY_SMALL = 2048

cdef struct rx_predicted:            # an FPDU that is expected
    uint64_t to
    uint32_t stag
    uint32_t payload
    uint32_t gap                     # octets of the trailer before it and of its header
    int iov                          # index of the gap in rx_target.iov

cdef struct rx_plan:
    rx_predicted fpdus[PREDICTED_MAX]
    uint32_t count
    uint32_t size                    # octets of all of them, gaps included
    uint32_t trailer                 # of the last one
    bint ends                        # with the last one the message, or the sink, ends
    uint8_t gaps[PREDICTED_MAX][GAP_MAX]


cdef bint rx_expect(rx_target *target, rx_plan *plan, uint32_t stag, uint64_t to, uint32_t payload) noexcept nogil:
    """One FPDU more; the caller adds its target. False: the plan is full."""
    cdef rx_predicted *fpdu = &plan.fpdus[plan.count]
    if plan.count == PREDICTED_MAX or plan.size >= PREDICTED_BYTES or target.niov + MAX_SGE + 2 > RX_IOVECS:
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


cdef bint rx_apart(soft_qp *qp, const soft_swqe *swqe, uint32_t index, uint64_t *low, uint64_t *high) noexcept nogil:
    """Whether a READ's sink lies outside [low, high), which is widened by it.

    What is not as predicted is taken up from where it was received: no place may be used twice in one reception.
    """
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> (index & qp.sq_mask) * qp.cap.max_send_sge
    cdef uint64_t end
    cdef uint32_t i
    for i in range(swqe.num_sge):
        end = sges[i].addr + sges[i].length
        if sges[i].addr < high[0] and end > low[0]:
            return False
        low[0] = min(low[0], sges[i].addr)
        high[0] = max(high[0], end)
    return True


cdef void rx_predict(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil:
    """Plans what is expected behind the open FPDU, whose target rx_aim has set."""
    cdef uint32_t full = qp.rx_header.payload
    cdef uint32_t read, offset, payload
    cdef uint64_t to, end
    cdef uint64_t low = <uint64_t> -1
    cdef uint64_t high = 0
    cdef soft_swqe *swqe
    cdef soft_mr *mr
    cdef const ibv_sge *sges
    cdef int niov
    plan.count = 0
    plan.size = 0
    plan.trailer = qp.rx_trailer
    plan.ends = qp.rx_header.last
    if qp.rx_header.last:
        full = qp.rx_segment
    if not qp.rx_header.tagged or full < PREDICTED_MIN:
        return
    if qp.rx_header.opcode == OP_WRITE:
        mr = target.regions[0]
        if qp.rx_header.last or not mr.access & SOFT_ACCESS_SCRATCH:
            return
        to = qp.rx_to + qp.rx_left
        end = <uint64_t> mr.ibv.addr + mr.ibv.length
        while to < end:
            payload = full if end - to > full else <uint32_t> (end - to)
            if not rx_expect(target, plan, mr.ibv.lkey, to, payload):
                return
            target.iov[target.niov].iov_base = <void *> to
            target.iov[target.niov].iov_len = payload
            target.niov += 1
            to += payload
        plan.ends = True
        return
    read = qp.reads_done
    swqe = rx_read_head(qp)
    offset = swqe.received + qp.rx_left
    if not rx_apart(qp, swqe, qp.reads[read % MAX_READS], &low, &high):
        return
    while True:
        while offset == swqe.length:
            read += 1
            if read == qp.cursor.reads:
                plan.ends = True
                return
            swqe = &qp.sq[qp.reads[read % MAX_READS] & qp.sq_mask]
            offset = 0
            if swqe.length == 0:
                plan.ends = True
                return
            if not rx_apart(qp, swqe, qp.reads[read % MAX_READS], &low, &high):
                plan.ends = False
                return
        payload = full if swqe.length - offset > full else swqe.length - offset
        sges = qp.sq_sges + (qp.reads[read % MAX_READS] & qp.sq_mask) * qp.cap.max_send_sge
        niov = target.niov
        if not rx_expect(target, plan, sges[0].lkey, sges[0].addr + offset, payload):
            plan.ends = False
            return
        if not rx_scatter(qp, target, sges, swqe.num_sge, offset, payload):
            # Nothing is placed there; the fault shows when its turn comes.
            target.niov = niov
            plan.count -= 1
            plan.size -= plan.fpdus[plan.count].gap + payload
            plan.trailer = plan.fpdus[plan.count].gap - TAGGED_HEADER
            plan.ends = False
            return
        offset += payload


cdef bint rx_midway(const soft_qp *qp) noexcept nogil:
    """Between two FPDUs: whether more of a long tagged message is to come, so that its place may be known."""
    return qp.rx_header.tagged and not qp.rx_header.last and qp.rx_header.payload >= PREDICTED_MIN


cdef bint rx_foreseen(soft_qp *qp, const ddp_header *h) noexcept nogil:
    """With CRC: whether the payload behind a header may be placed before the CRC is known.

    It may when header and memory are just what has to come next, so that a wrong octet does no harm: see above.
    """
    cdef const soft_swqe *swqe
    cdef const ibv_sge *sges
    cdef uint32_t left
    cdef soft_mr *mr
    cdef bint scratch
    cdef int why = 0
    if (not h.tagged or h.payload < PREDICTED_MIN or h.control & DDP_VERSION_MASK != DDP_VERSION
            or h.rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION):
        return False
    if h.opcode == OP_READ_RESPONSE:
        swqe = rx_read_head(qp)
        if swqe == NULL or swqe.length == 0:
            return False
        sges = qp.sq_sges + <size_t> (qp.reads[qp.reads_done % MAX_READS] & qp.sq_mask) * qp.cap.max_send_sge
        left = swqe.length - swqe.received
        return (h.stag == sges[0].lkey and h.to == sges[0].addr + swqe.received and h.payload <= left
                and h.last == (h.payload == left))
    if (h.opcode != OP_WRITE or not rx_midway(qp) or qp.rx_header.opcode != OP_WRITE
            or h.stag != qp.rx_header.stag or h.to != qp.rx_to):
        return False
    mr = mr_get(qp.pd, h.stag, h.to, h.payload, IBV_ACCESS_REMOTE_WRITE, &why)
    if mr == NULL:
        return False
    scratch = mr.access & SOFT_ACCESS_SCRATCH != 0
    mr_put(mr)
    return scratch


cdef void rx_sum(soft_qp *qp, const rx_target *target, int index, uint32_t length) noexcept nogil:
    """With CRC: adds octets that were placed, from iov[index] on."""
    cdef uint32_t n
    while qp.crc and length:
        n = length if length < target.iov[index].iov_len else <uint32_t> target.iov[index].iov_len
        qp.rx_crc = crc32c_add(qp.rx_crc, target.iov[index].iov_base, n)
        length -= n
        index += 1


cdef bint rx_ahead(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil:
    """Plans for the middle of a message, with nothing of its next FPDU received. False: its header must come first."""
    cdef int why = 0
    if not rx_midway(qp):
        return False
    if qp.rx_header.opcode == OP_WRITE:
        target.regions[0] = mr_get(qp.pd, qp.rx_header.stag, qp.rx_to, 1, IBV_ACCESS_REMOTE_WRITE, &why)
        if target.regions[0] == NULL:
            return False
        target.nregions = 1
    qp.rx_trailer = 0
    rx_predict(qp, target, plan)
    if plan.count == 0:
        rx_release(target)
        target.nregions = 0
        target.niov = 0
        return False
    return True


cdef bint rx_replay(soft_qp *qp, const rx_target *target, int index, size_t skip, uint32_t left) noexcept nogil:
    """Parses `left` received octets, from `skip` in iov[index] on, that do not lie where they belong.

    False: the queue pair is in error.
    """
    cdef uint8_t small[REPLAY_SMALL]
    cdef uint8_t *octets = small
    cdef uint32_t at = 0
    cdef uint32_t n
    cdef bint whole = True
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
        n = qp.rx_end - qp.rx_start
        memmove(qp.rx_buffer, qp.rx_buffer + qp.rx_start, n)
        qp.rx_start = 0
        qp.rx_end = n
        n = left - at
        if n > qp.rx_capacity - qp.rx_end:
            n = qp.rx_capacity - qp.rx_end
        memcpy(qp.rx_buffer + qp.rx_end, octets + at, n)
        qp.rx_end += n
        at += n
        whole = rx_parse(qp)
    if octets != small:
        free(octets)
    return whole


cdef bint rx_predicted_came(soft_qp *qp, const rx_target *target, const rx_plan *plan, uint32_t left) noexcept nogil:
    """Takes in `left` octets that came behind the payload of the open FPDU. False: the queue pair is in error."""
    cdef const rx_predicted *fpdu
    cdef ddp_header header
    cdef const uint8_t *octets
    cdef uint32_t i, trailer, placed
    cdef size_t skip
    cdef int index
    for i in range(plan.count):
        if left == 0:
            return True
        fpdu = &plan.fpdus[i]
        octets = plan.gaps[i]
        trailer = fpdu.gap - TAGGED_HEADER
        if (left < fpdu.gap or get_header(octets + trailer, TAGGED_HEADER, &header) != 1 or not header.tagged
                or header.opcode != qp.rx_header.opcode or header.stag != fpdu.stag or header.to != fpdu.to):
            return rx_replay(qp, target, fpdu.iov, 0, left)
        if qp.rx_state != RX_HEADER and not rx_close(qp, octets):
            return False
        if qp.crc:
            if not rx_foreseen(qp, &header):
                return rx_replay(qp, target, fpdu.iov, trailer, left - trailer)
            qp.rx_checked = False
            qp.rx_crc = crc32c_add(0xffffffffU, octets + trailer, TAGGED_HEADER)
        qp.rx_header = header
        memset(qp.rx_raw, 0, sizeof(qp.rx_raw))
        memcpy(qp.rx_raw, octets + trailer, TAGGED_HEADER)
        if not rx_check(qp, qp.rx_raw) or not rx_begin(qp):
            return False
        qp.rx_state = RX_PAYLOAD
        qp.rx_trailer = fpdu_size(header.ulpdu) - TAGGED_HEADER - header.payload
        left -= fpdu.gap
        placed = left if left < fpdu.payload else fpdu.payload
        if placed > header.payload:
            placed = header.payload
        rx_sum(qp, target, fpdu.iov + 1, placed)
        rx_advance(qp, placed)
        left -= placed
        if qp.rx_left == 0:
            qp.rx_state = RX_TRAILER
        if header.payload != fpdu.payload:
            # What follows lies from there on, maybe in several elements of a list.
            index = fpdu.iov + 1
            skip = placed
            while left and skip >= target.iov[index].iov_len:
                skip -= target.iov[index].iov_len
                index += 1
            return left == 0 or rx_replay(qp, target, index, skip, left)
    qp.rx_end += left
    return rx_parse(qp)

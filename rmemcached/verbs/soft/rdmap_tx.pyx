# Sending: from send queue entries and READ responses to FPDUs; see rdmap_tx.pxd.

cdef enum:
    CRC_PIECE = 10240                # octets; larger than the copies that compilers inline
    BOUNCE_SIZE = TX_BYTES_CRC + ULPDU_MAX + 1  # the last FPDU of a batch may be a long one


cdef inline uint32_t tx_tagged_room(uint32_t mulpdu) noexcept nogil:
    return mulpdu + 2 - TAGGED_HEADER


cdef uint32_t crc32c_copy(uint32_t crc, uint8_t *to, const uint8_t *data, size_t length) noexcept nogil:
    """Copies, and adds the copy to a CRC, in pieces that stay in the first-level cache."""
    cdef size_t n
    while length:
        n = length if length < CRC_PIECE else CRC_PIECE
        memcpy(to, data, n)
        crc = crc32c_add(crc, to, n)
        to += n
        data += n
        length -= n
    return crc


cdef bint tx_gather_owned(tx_batch *b, const void *data, size_t length) noexcept nogil:
    """Appends octets that stay unchanged until they are written. Octets contiguous with the last iovec extend it."""
    cdef iovec *last
    if b.niov:
        last = &b.iov[b.niov - 1]
        if <const uint8_t *> last.iov_base + last.iov_len == <const uint8_t *> data:
            last.iov_len += length
            return True
    if b.niov == TX_IOVECS:
        return False
    b.iov[b.niov].iov_base = <void *> data
    b.iov[b.niov].iov_len = length
    b.niov += 1
    return True


cdef soft_mr *tx_hold_region(soft_qp *qp, tx_batch *b, uint32_t stag, uint64_t addr, uint32_t length, int access,
                             int *result) noexcept nogil:
    """The region of the STag, in use until tx_release. NULL: *result is TX_FULL or TX_FAULT_REGION."""
    cdef soft_mr *mr
    cdef int why = 0
    if b.nregions:
        mr = b.regions[b.nregions - 1]
        if mr_serves(mr, stag, addr, length, access):
            return mr
    if b.nregions == TX_REGIONS:
        result[0] = TX_FULL
        return NULL
    mr = mr_get(qp, stag, addr, length, access, &why)
    if mr == NULL:
        result[0] = TX_FAULT_REGION
        return NULL
    b.regions[b.nregions] = mr
    b.nregions += 1
    return mr


cdef int tx_gather(soft_qp *qp, tx_batch *b, const ibv_sge *sges, uint32_t count, uint32_t offset, uint32_t length,
                   uint32_t *crc) noexcept nogil:
    """Appends [offset, offset + length) of a gather list, by reference if longer than TX_COPY, else as a copy."""
    cdef bint copied = length <= TX_COPY
    cdef uint32_t i, n
    cdef const soft_mr *mr
    cdef const uint8_t *data
    cdef int result = TX_BUILT
    for i in range(count):
        if length == 0:
            break
        if offset >= sges[i].length:
            offset -= sges[i].length
            continue
        n = sges[i].length - offset
        if n > length:
            n = length
        mr = tx_hold_region(qp, b, sges[i].lkey, sges[i].addr + offset, n, 0, &result)
        if mr == NULL:
            return result
        data = mr_at(mr, sges[i].addr + offset)
        if copied:
            memcpy(b.arena + b.used, data, n)
            data = b.arena + b.used
            b.used += n
        if crc != NULL:
            crc[0] = crc32c_add(crc[0], data, n)
        if not tx_gather_owned(b, data, n):
            return TX_FULL
        offset = 0
        length -= n
    return TX_BUILT


cdef inline void tx_put_send_header(uint8_t *header, const soft_swqe *swqe, const tx_cursor *cur, bint last,
                                    uint32_t payload) noexcept nogil:
    cdef uint8_t opcode
    if swqe.opcode == IBV_WR_SEND_WITH_INV:
        opcode = OP_SEND_SE_INVALIDATE if swqe.flags & IBV_SEND_SOLICITED else OP_SEND_INVALIDATE
    else:
        opcode = OP_SEND_SE if swqe.flags & IBV_SEND_SOLICITED else OP_SEND
    put_untagged(header, opcode, last, payload, swqe.rkey if swqe.opcode == IBV_WR_SEND_WITH_INV else 0,
                 QN_SEND, cur.send_msn, cur.offset)


cdef int tx_read_request(soft_qp *qp, tx_batch *b, tx_cursor *cur, tx_frame *frame, uint32_t *crc) noexcept nogil:
    """Builds the FPDU of a READ. The sink, the memory for the response, is checked now: the response finds no fault."""
    cdef uint32_t index = cur.next_wqe & qp.sq_mask
    cdef const soft_swqe *swqe = &qp.sq[index]
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> index * qp.cap.max_send_sge
    cdef uint8_t *header = b.arena + b.used
    cdef uint32_t size = UNTAGGED_HEADER + READ_REQUEST_PAYLOAD
    cdef read_request request
    cdef soft_mr *mr
    cdef uint32_t i
    cdef int why = 0
    if qp.ord == 0:
        return TX_FAULT_DEPTH
    for i in range(swqe.num_sge):
        if sges[i].length:
            mr = mr_get(qp, sges[i].lkey, sges[i].addr, sges[i].length, IBV_ACCESS_LOCAL_WRITE, &why)
            if mr == NULL:
                return TX_FAULT_REGION
            mr_put(mr)
    # The peer only echoes the sink. To the peer, a scatter list is one contiguous sink.
    request.sink_stag = sges[0].lkey if swqe.num_sge else 0
    request.sink_to = sges[0].addr if swqe.num_sge else 0
    request.length = swqe.length
    request.source_stag = swqe.rkey
    request.source_to = swqe.remote_addr
    put_untagged(header, OP_READ_REQUEST, True, READ_REQUEST_PAYLOAD, 0, QN_READ_REQUEST, cur.read_msn, 0)
    put_read_request(header + UNTAGGED_HEADER, &request)
    frame.payload = READ_REQUEST_PAYLOAD
    frame.last = True
    b.used += size
    if qp.crc:
        crc[0] = crc32c_add(crc[0], header, size)
    cur.read_msn += 1
    cur.reads += 1
    return TX_BUILT if tx_gather_owned(b, header, size) else TX_FULL


cdef int tx_request(soft_qp *qp, tx_batch *b, tx_cursor *cur, tx_frame *frame, uint32_t *crc) noexcept nogil:
    """Builds header and payload of the next FPDU of a send queue entry."""
    cdef uint32_t index = cur.next_wqe & qp.sq_mask
    cdef soft_swqe *swqe = &qp.sq[index]
    cdef uint8_t *header = b.arena + b.used
    cdef uint8_t *data
    cdef uint32_t size, room, payload
    if swqe.opcode == IBV_WR_RDMA_READ:
        return tx_read_request(qp, b, cur, frame, crc)
    size = TAGGED_HEADER if swqe.opcode == IBV_WR_RDMA_WRITE else UNTAGGED_HEADER
    room = cur.mulpdu + 2 - size
    payload = swqe.length - cur.offset
    frame.last = payload <= room
    if payload > room:
        payload = room
    frame.payload = payload
    if swqe.opcode == IBV_WR_RDMA_WRITE:
        put_tagged(header, OP_WRITE, frame.last, payload, swqe.rkey, swqe.remote_addr + cur.offset)
    else:
        tx_put_send_header(header, swqe, cur, frame.last, payload)
        if frame.last:
            cur.send_msn += 1
    b.used += size
    if qp.crc:
        crc[0] = crc32c_add(crc[0], header, size)
    if not tx_gather_owned(b, header, size):
        return TX_FULL
    if not swqe.flags & IBV_SEND_INLINE:
        return tx_gather(qp, b, qp.sq_sges + <size_t> index * qp.cap.max_send_sge, swqe.num_sge, cur.offset, payload,
                         crc if qp.crc else NULL)
    data = qp.sq_inline + <size_t> index * qp.cap.max_inline_data + cur.offset
    if payload <= TX_COPY:
        memcpy(b.arena + b.used, data, payload)
        data = b.arena + b.used
        b.used += payload
    if qp.crc:
        crc[0] = crc32c_add(crc[0], data, payload)
    return TX_BUILT if payload == 0 or tx_gather_owned(b, data, payload) else TX_FULL


cdef int tx_gather_region(tx_batch *b, const soft_mr *mr, uint64_t source, uint32_t length) noexcept nogil:
    """Appends octets of a region, as tx_gather appends octets of a gather list."""
    cdef bint copied = length <= TX_COPY
    cdef const uint8_t *data
    cdef uint32_t n
    while length:
        n = length
        data = mr_piece(mr, source, &n)
        if copied:
            memcpy(b.arena + b.used, data, n)
            data = b.arena + b.used
            b.used += n
        if not tx_gather_owned(b, data, n):
            return TX_FULL
        source += n
        length -= n
    return TX_BUILT


cdef uint32_t tx_copy_region(const soft_mr *mr, uint64_t source, uint32_t length, uint8_t *to,
                             uint32_t crc) noexcept nogil:
    """Copies octets of a region, and adds the copy to a CRC."""
    cdef const uint8_t *data
    cdef uint32_t n
    while length:
        n = length
        data = mr_piece(mr, source, &n)
        crc = crc32c_copy(crc, to, data, n)
        to += n
        source += n
        length -= n
    return crc


cdef int tx_response(soft_qp *qp, tx_batch *b, tx_cursor *cur, tx_frame *frame, uint32_t *crc) noexcept nogil:
    """Builds header and payload of the next FPDU of a READ response."""
    cdef const soft_response *response = &qp.responses[cur.next_response & qp.responses_mask]
    cdef uint32_t room = tx_tagged_room(cur.mulpdu)
    cdef uint32_t payload = response.length - cur.offset
    cdef uint8_t *header = b.arena + b.used
    cdef const soft_mr *mr
    cdef uint64_t source
    cdef uint8_t *copy
    cdef bint resumed = b.nframes == 0 and qp.tx.frame_sent != 0
    cdef int result = TX_BUILT
    frame.last = payload <= room
    if payload > room:
        payload = room
    frame.payload = payload
    put_tagged(header, OP_READ_RESPONSE, frame.last, payload, response.sink_stag, response.sink_to + cur.offset)
    b.used += TAGGED_HEADER
    if qp.crc:
        crc[0] = crc32c_add(crc[0], header, TAGGED_HEADER)
    if not tx_gather_owned(b, header, TAGGED_HEADER):
        return TX_FULL
    if payload == 0:
        return TX_BUILT
    source = response.source_to + cur.offset
    if not qp.crc:
        mr = tx_hold_region(qp, b, response.source_stag, source, payload, IBV_ACCESS_REMOTE_READ, &result)
        return result if mr == NULL else tx_gather_region(b, mr, source, payload)
    # The source may change at any time, also between the computation of its CRC and the write. So a copy is sent.
    if qp.tx.bounce == NULL:
        qp.tx.bounce = <uint8_t *> malloc(BOUNCE_SIZE)
        if qp.tx.bounce == NULL:
            return TX_FAULT_MEMORY
    if resumed:
        frame.bounce_at = qp.tx.bounce_at
    else:
        if b.bounce_used + payload > BOUNCE_SIZE:
            return TX_FULL
        mr = tx_hold_region(qp, b, response.source_stag, source, payload, IBV_ACCESS_REMOTE_READ, &result)
        if mr == NULL:
            return result
        frame.bounce_at = b.bounce_used
        copy = qp.tx.bounce + frame.bounce_at
        crc[0] = tx_copy_region(mr, source, payload, copy, crc[0])
    b.bounce_used = frame.bounce_at + payload
    return TX_BUILT if tx_gather_owned(b, qp.tx.bounce + frame.bounce_at, payload) else TX_FULL


cdef inline bint tx_may_start(const soft_qp *qp, const tx_cursor *cur) noexcept nogil:
    cdef const soft_swqe *swqe
    cdef uint32_t reads = cur.reads - qp.reads_done
    if cur.next_wqe == qp.sq_tail or qp.ibv.state != IBV_QPS_RTS:
        return False
    swqe = &qp.sq[cur.next_wqe & qp.sq_mask]
    if swqe.flags & IBV_SEND_FENCE and reads:
        return False
    return swqe.opcode != IBV_WR_RDMA_READ or reads < qp.ord or qp.ord == 0


cdef inline bint tx_is_local(const soft_qp *qp, const tx_cursor *cur) noexcept nogil:
    return swqe_is_local(&qp.sq[cur.next_wqe & qp.sq_mask])


cdef bint tx_execute_local(soft_qp *qp) noexcept nogil:
    cdef tx_cursor *cur = &qp.tx.cursor
    cdef soft_swqe *swqe
    assert_held(&qp.lock)
    while cur.kind == TX_NONE and tx_may_start(qp, cur) and tx_is_local(qp, cur):
        swqe = &qp.sq[cur.next_wqe & qp.sq_mask]
        if swqe.opcode == IBV_WR_BIND_MW:
            if not mw_bind(qp, swqe):
                tx_fault(qp, TX_FAULT_BIND)
                return False
        elif not mr_invalidate(qp, swqe.rkey):
            tx_fault(qp, TX_FAULT_KEY)
            return False
        swqe.state = SWQE_DONE
        cur.next_wqe += 1
        qp_retire(qp)
    return True


cdef bint tx_choose(soft_qp *qp, tx_cursor *cur) noexcept nogil:
    """READ responses and requests alternate."""
    cdef bint response = cur.next_response != qp.responses_tail
    cdef const soft_swqe *swqe
    cdef bint request
    cdef uint32_t length
    assert_held(&qp.lock)
    if cur.kind != TX_NONE:
        return True
    if response and cur.response_turn:
        cur.kind = TX_RESPONSE
    else:
        request = (tx_may_start(qp, cur) and not tx_is_local(qp, cur)
                   and not (qp.fabric.is_direct != NULL and qp.fabric.is_direct(qp, cur)))
        if not request and not response:
            return False
        cur.kind = TX_REQUEST if request else TX_RESPONSE
    cur.response_turn = cur.kind == TX_REQUEST
    cur.offset = 0
    if cur.kind == TX_RESPONSE:
        length = qp.responses[cur.next_response & qp.responses_mask].length
    else:
        swqe = &qp.sq[cur.next_wqe & qp.sq_mask]
        # A READ's request is short, however long the READ.
        length = 0 if swqe.opcode == IBV_WR_RDMA_READ else swqe.length
    if length > qp.tx.mulpdu:
        qp.fabric.measure(qp)
    cur.mulpdu = qp.tx.mulpdu
    return True


cdef void tx_skip_written(tx_batch *b, tx_frame *frame) noexcept nogil:
    """Leaves out the octets of the first FPDU that the stream has already taken."""
    cdef size_t skip = frame.written
    cdef int i = 0
    while b.iov[i].iov_len <= skip:
        skip -= b.iov[i].iov_len
        b.iov[i].iov_len = 0
        i += 1
    b.iov[i].iov_base = <uint8_t *> b.iov[i].iov_base + skip
    b.iov[i].iov_len -= skip
    frame.size -= frame.written


cdef bint tx_close_frame(soft_qp *qp, tx_batch *b, tx_frame *frame, uint32_t header, uint32_t crc) noexcept nogil:
    """Appends pad and CRC to an FPDU with header and payload, and sets its size. False: there is no room."""
    cdef uint32_t pad
    cdef uint8_t *trailer = b.arena + b.used
    frame.written = 0
    if b.nframes == 0 and qp.tx.frame_sent:
        frame.written = qp.tx.frame_sent
        crc = qp.tx.frame_crc
    frame.size = header + frame.payload
    pad = (0 - <uint32_t> frame.size) & 3
    memset(trailer, 0, pad + 4)
    if qp.crc:
        # The kept CRC state includes the pad.
        if not frame.written:
            crc = crc32c_add(crc, trailer, pad)
        put_crc(trailer + pad, crc)
    frame.crc = crc
    b.used += pad + 4
    if not tx_gather_owned(b, trailer, pad + 4):
        return False
    frame.size += pad + 4
    if frame.written:
        tx_skip_written(b, frame)
    return True


cdef int tx_build_frame(soft_qp *qp, tx_batch *b, tx_cursor *cur) noexcept nogil:
    """Adds the FPDU at *cur to the batch and moves *cur behind it. Unless TX_BUILT, both are as before."""
    cdef tx_cursor at = cur[0]
    cdef tx_frame *frame = &b.frames[b.nframes]
    cdef int niov = b.niov
    cdef size_t last_length = b.iov[niov - 1].iov_len if niov else 0
    cdef uint32_t used = b.used
    cdef uint32_t header = UNTAGGED_HEADER
    cdef uint32_t crc = 0xffffffffU
    cdef int result
    frame.bounce_at = 0
    if cur.kind == TX_REQUEST:
        result = tx_request(qp, b, &at, frame, &crc)
        if qp.sq[cur.next_wqe & qp.sq_mask].opcode == IBV_WR_RDMA_WRITE:
            header = TAGGED_HEADER
    else:
        result = tx_response(qp, b, &at, frame, &crc)
        header = TAGGED_HEADER
    if result == TX_BUILT and not tx_close_frame(qp, b, frame, header, crc):
        result = TX_FULL
    if result != TX_BUILT:
        b.niov = niov
        if niov:
            b.iov[niov - 1].iov_len = last_length
        b.used = used
        return result
    if not frame.last:
        at.offset += frame.payload
    else:
        if at.kind == TX_REQUEST:
            at.next_wqe += 1
        else:
            at.next_response += 1
        at.kind = TX_NONE
        at.offset = 0
    frame.before = cur[0]
    frame.after = at
    b.size += frame.size
    b.nframes += 1
    cur[0] = at
    return TX_BUILT


cdef int tx_build(soft_qp *qp, tx_batch *b, int max_frames, uint32_t most) noexcept nogil:
    cdef tx_cursor cur = qp.tx.cursor
    cdef uint32_t limit
    cdef int result
    assert_held(&qp.lock)
    b.niov = 0
    b.nframes = 0
    b.nregions = 0
    b.size = 0
    b.used = 0
    b.bounce_used = 0
    while tx_choose(qp, &cur):
        limit = min(most, <uint32_t> TX_BYTES_CRC if qp.crc else qp.tx.batch_bytes)
        if (b.nframes == max_frames or b.nframes and b.size >= limit or b.niov + MAX_SGE + 2 > TX_IOVECS
                or b.used + TX_FRAME_ARENA > TX_ARENA):
            return TX_FULL
        result = tx_build_frame(qp, b, &cur)
        if result != TX_BUILT:
            # The built FPDUs leave first. The fault comes up again at the start of the next batch.
            if b.nframes == 0:
                qp.tx.cursor = cur
            return result
    # Behind these FPDUs a request may be due that needs no FPDU.
    return TX_FULL if b.nframes and tx_may_start(qp, &cur) else TX_BUILT


cdef void tx_commit(soft_qp *qp, tx_batch *b, size_t written) noexcept nogil:
    cdef tx_frame *frame
    cdef soft_swqe *swqe
    cdef int i
    assert_held(&qp.lock)
    counter_add(&qp.counters.tx_bytes, written)
    for i in range(b.nframes):
        frame = &b.frames[i]
        if written < frame.size:
            if written:
                qp.tx.cursor = frame.before
                qp.tx.frame_sent = frame.written + <uint32_t> written
                qp.tx.frame_crc = frame.crc
                qp.tx.bounce_at = frame.bounce_at
            return
        written -= frame.size
        qp.tx.frame_sent = 0
        counter_add(&qp.counters.tx_fpdus, 1)
        if frame.last and frame.before.kind == TX_RESPONSE:
            counter_add(&qp.counters.reads_served, 1)
        elif frame.last:
            swqe = &qp.sq[frame.before.next_wqe & qp.sq_mask]
            if swqe.opcode == IBV_WR_RDMA_READ:
                swqe.state = SWQE_SENT
                qp.reads[frame.before.reads % MAX_READS] = frame.before.next_wqe
            else:
                swqe.state = SWQE_DONE
                if swqe.opcode == IBV_WR_RDMA_WRITE:
                    counter_add(&qp.counters.writes, 1)
                    counter_add(&qp.counters.write_bytes, swqe.length)
                else:
                    counter_add(&qp.counters.sends, 1)
        qp.tx.cursor = frame.after


cdef void tx_release(tx_batch *b) noexcept nogil:
    cdef int i
    for i in range(b.nregions):
        mr_put(b.regions[i])


cdef void tx_fault(soft_qp *qp, int result) noexcept nogil:
    assert_held(&qp.lock)
    if qp.tx.cursor.kind == TX_RESPONSE:
        qp_terminate(qp, TERM_PROTECTION_STAG if result == TX_FAULT_REGION else TERM_LOCAL_CATASTROPHIC, NULL, 0,
                     IBV_WC_SUCCESS, IBV_WC_SUCCESS)
        return
    # A request that needs no stream can fail before this end may send.
    if qp.tx.allowed:
        tx_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
    if result == TX_FAULT_DEPTH or result == TX_FAULT_KEY:
        qp_error(qp, qp.tx.cursor.next_wqe, IBV_WC_LOC_QP_OP_ERR, IBV_WC_SUCCESS)
    elif result == TX_FAULT_BIND:
        qp_error(qp, qp.tx.cursor.next_wqe, IBV_WC_MW_BIND_ERR, IBV_WC_SUCCESS)
    else:
        qp_error(qp, qp.tx.cursor.next_wqe, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS)


cdef inline bint tx_may_write(const soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    return (qp.stream.fd >= 0 and qp.stream.phase == STREAM_OPEN and qp.tx.allowed and not qp.tx.broken
            and not qp.tx.held)


cdef inline bint tx_pending(const soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    return (qp.tx.cursor.kind != TX_NONE or qp.tx.cursor.next_response != qp.responses_tail
            or tx_may_start(qp, &qp.tx.cursor))


cdef void tx_end_turn(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    qp_retire(qp)
    if qp.stream.fd < 0 or qp.tx.broken:
        return
    # After a full stream, or a used-up turn, sending goes on when the stream can be written.
    stream_want_writable(qp, qp.tx.frame_sent != 0 or qp.tx.owed or tx_pending(qp))
    if not qp.tx.blocked and qp.tx.bounce != NULL:
        free(qp.tx.bounce)
        qp.tx.bounce = NULL


cdef inline uint32_t tx_put_trailer(const soft_qp *qp, uint8_t *fpdu, uint32_t size) noexcept nogil:
    cdef uint32_t pad = (0 - size) & 3
    memset(fpdu + size, 0, pad + 4)
    size += pad
    if qp.crc:
        put_crc(fpdu + size, crc32c_add(0xffffffffU, fpdu, size))
    return size + 4


cdef void tx_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil:
    cdef tx_batch b
    cdef uint8_t out[UNTAGGED_HEADER + TERMINATE_PAYLOAD_MAX + FPDU_TRAILER_MAX]
    cdef iovec iov
    cdef uint32_t payload, size
    cdef ssize_t n
    assert_held(&qp.lock)
    if qp.stream.fd < 0 or qp.stream.phase != STREAM_OPEN or qp.tx.broken or qp.tx.held:
        return
    if qp.tx.frame_sent:
        tx_build(qp, &b, 1, TX_TURN)
        if b.nframes == 0:
            tx_release(&b)
            return
        n = qp.fabric.write(qp, b.iov, b.niov)
        tx_release(&b)
        if n != <ssize_t> b.size:
            return
        tx_commit(qp, &b, <size_t> n)
    payload = put_terminate(out + UNTAGGED_HEADER, error, segment, received)
    put_untagged(out, OP_TERMINATE, True, payload, 0, QN_TERMINATE, 1, 0)
    size = tx_put_trailer(qp, out, UNTAGGED_HEADER + payload)
    iov.iov_base = out
    iov.iov_len = size
    n = qp.fabric.write(qp, &iov, 1)
    if n == <ssize_t> size:
        counter_add(&qp.counters.terminates_sent, 1)
        counter_add(&qp.counters.tx_fpdus, 1)
        counter_add(&qp.counters.tx_bytes, size)
    if qp.fabric.end_writing != NULL:
        qp.fabric.end_writing(qp)

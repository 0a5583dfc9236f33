# Transmission: from send queue entries and READ responses to FPDUs, many in one sendmsg.

cdef struct tx_frame:
    tx_cursor before                 # the cursor at this FPDU, with the message chosen
    tx_cursor after                  # the cursor once it is written
    size_t size                      # octets to write
    uint32_t written                 # octets of the FPDU written before
    uint32_t payload
    uint32_t crc
    uint32_t bounce_at
    bint last

cdef struct tx_batch:
    iovec iov[TX_IOVECS]
    tx_frame frames[TX_FRAMES]
    soft_mr *regions[TX_REGIONS]     # held until the octets are with the kernel
    int niov
    int nframes
    int nregions
    size_t size
    uint32_t used                    # of arena
    uint32_t bounce_used
    uint8_t arena[TX_ARENA]          # headers, trailers, small payloads

cdef enum:                           # results of building an FPDU
    TX_BUILT
    TX_FULL                          # the batch has no room for it
    TX_FAULT_REGION                  # the memory may not be read (any more)
    TX_FAULT_DEPTH                   # a READ, and the peer takes none
    TX_FAULT_MEMORY


cdef uint32_t crc32c_copy(uint32_t crc, uint8_t *to, const uint8_t *data, size_t length) noexcept nogil:
    """Copies, and adds the copy to a CRC, piece by piece while it is in the first cache."""
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
    """Appends octets that stay as they are. Octets that follow the last ones in memory need no iovec of their own."""
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


cdef soft_mr *tx_region(soft_qp *qp, tx_batch *b, uint32_t stag, uint64_t addr, uint32_t length, int access,
                        int *result) noexcept nogil:
    """The region, held by the batch."""
    cdef soft_mr *mr
    cdef int why = 0
    if b.nregions:
        mr = b.regions[b.nregions - 1]
        if mr.ibv.lkey == stag and mr.valid and not access & ~mr.access and mr_covers(mr, addr, length):
            return mr
    if b.nregions == TX_REGIONS:
        result[0] = TX_FULL
        return NULL
    mr = mr_get(qp.pd, stag, addr, length, access, &why)
    if mr == NULL:
        result[0] = TX_FAULT_REGION
        return NULL
    b.regions[b.nregions] = mr
    b.nregions += 1
    return mr


cdef int tx_gather(soft_qp *qp, tx_batch *b, const ibv_sge *sges, uint32_t count, uint32_t offset, uint32_t length,
                   uint32_t *crc) noexcept nogil:
    """Appends [offset, offset + length) of a gather list: by reference, or copied when it is little."""
    cdef bint copied = length <= TX_COPY
    cdef uint32_t i, n
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
        if tx_region(qp, b, sges[i].lkey, sges[i].addr + offset, n, 0, &result) == NULL:
            return result
        data = <const uint8_t *> (sges[i].addr + offset)
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


cdef void tx_send_header(uint8_t *header, const soft_swqe *swqe, const tx_cursor *cur, bint last,
                         uint32_t payload) noexcept nogil:
    """The header of a SEND's FPDU at the cursor."""
    cdef uint8_t opcode
    if swqe.opcode == IBV_WR_SEND_WITH_INV:
        opcode = OP_SEND_SE_INVALIDATE if swqe.flags & IBV_SEND_SOLICITED else OP_SEND_INVALIDATE
    else:
        opcode = OP_SEND_SE if swqe.flags & IBV_SEND_SOLICITED else OP_SEND
    put_untagged(header, opcode, last, payload, swqe.rkey if swqe.opcode == IBV_WR_SEND_WITH_INV else 0,
                 QN_SEND, cur.send_msn, cur.offset)


cdef int tx_request(soft_qp *qp, tx_batch *b, tx_cursor *cur, tx_frame *frame, uint32_t *crc) noexcept nogil:
    """Header and payload of the next FPDU of a send queue entry."""
    cdef uint32_t index = cur.next_wqe & qp.sq_mask
    cdef soft_swqe *swqe = &qp.sq[index]
    cdef const ibv_sge *sges = qp.sq_sges + index * qp.cap.max_send_sge
    cdef uint8_t *header = b.arena + b.used
    cdef read_request request
    cdef soft_mr *mr
    cdef uint32_t size, room, payload, i
    cdef int why = 0
    if swqe.opcode == IBV_WR_RDMA_READ:
        if qp.ord == 0:
            return TX_FAULT_DEPTH
        for i in range(swqe.num_sge):
            if sges[i].length:
                mr = mr_get(qp.pd, sges[i].lkey, sges[i].addr, sges[i].length, IBV_ACCESS_LOCAL_WRITE, &why)
                if mr == NULL:
                    return TX_FAULT_REGION
                mr_put(mr)
        # The peer only echoes the sink; a scatter list is one contiguous sink to it.
        request.sink_stag = sges[0].lkey if swqe.num_sge else 0
        request.sink_to = sges[0].addr if swqe.num_sge else 0
        request.length = swqe.length
        request.source_stag = swqe.rkey
        request.source_to = swqe.remote_addr
        put_untagged(header, OP_READ_REQUEST, True, READ_REQUEST_PAYLOAD, 0, QN_READ_REQUEST, cur.read_msn, 0)
        put_read_request(header + UNTAGGED_HEADER, &request)
        size = UNTAGGED_HEADER + READ_REQUEST_PAYLOAD
        frame.payload = READ_REQUEST_PAYLOAD
        frame.last = True
        b.used += size
        if qp.crc:
            crc[0] = crc32c_add(crc[0], header, size)
        cur.read_msn += 1
        cur.reads += 1
        return TX_BUILT if tx_gather_owned(b, header, size) else TX_FULL
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
        tx_send_header(header, swqe, cur, frame.last, payload)
        if frame.last:
            cur.send_msn += 1
    b.used += size
    if qp.crc:
        crc[0] = crc32c_add(crc[0], header, size)
    if not tx_gather_owned(b, header, size):
        return TX_FULL
    if swqe.flags & IBV_SEND_INLINE:
        header = qp.sq_inline + <size_t> index * qp.cap.max_inline_data + cur.offset
        if payload <= TX_COPY:
            memcpy(b.arena + b.used, header, payload)
            header = b.arena + b.used
            b.used += payload
        if qp.crc:
            crc[0] = crc32c_add(crc[0], header, payload)
        return TX_BUILT if payload == 0 or tx_gather_owned(b, header, payload) else TX_FULL
    return tx_gather(qp, b, sges, swqe.num_sge, cur.offset, payload, crc if qp.crc else NULL)


cdef int tx_response(soft_qp *qp, tx_batch *b, tx_cursor *cur, tx_frame *frame, uint32_t *crc) noexcept nogil:
    """Header and payload of the next FPDU of a READ response."""
    cdef const soft_response *response = &qp.responses[cur.next_response & qp.responses_mask]
    cdef uint32_t room = cur.mulpdu + 2 - TAGGED_HEADER
    cdef uint32_t payload = response.length - cur.offset
    cdef uint8_t *header = b.arena + b.used
    cdef const uint8_t *data
    cdef bint resumed = b.nframes == 0 and qp.frame_sent != 0
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
    data = <const uint8_t *> (response.source_to + cur.offset)
    if not qp.crc:
        if tx_region(qp, b, response.source_stag, <uint64_t> data, payload, IBV_ACCESS_REMOTE_READ, &result) == NULL:
            return result
        if payload <= TX_COPY:
            memcpy(b.arena + b.used, data, payload)
            data = b.arena + b.used
            b.used += payload
        return TX_BUILT if tx_gather_owned(b, data, payload) else TX_FULL
    # The source may change at any time, but not between its CRC and its way into the socket: a copy is sent.
    if qp.bounce == NULL:
        qp.bounce = <uint8_t *> malloc(BOUNCE_SIZE)
        if qp.bounce == NULL:
            return TX_FAULT_MEMORY
    if resumed:
        frame.bounce_at = qp.bounce_at
    else:
        if b.bounce_used + payload > BOUNCE_SIZE:
            return TX_FULL
        if tx_region(qp, b, response.source_stag, <uint64_t> data, payload, IBV_ACCESS_REMOTE_READ, &result) == NULL:
            return result
        frame.bounce_at = b.bounce_used
        crc[0] = crc32c_copy(crc[0], qp.bounce + frame.bounce_at, data, payload)
    b.bounce_used = frame.bounce_at + payload
    return TX_BUILT if tx_gather_owned(b, qp.bounce + frame.bounce_at, payload) else TX_FULL


cdef bint tx_may_start(soft_qp *qp, const tx_cursor *cur) noexcept nogil:
    """Whether the next send queue entry may go out now."""
    cdef const soft_swqe *swqe
    cdef uint32_t reads = cur.reads - qp.reads_done
    if cur.next_wqe == qp.sq_tail or qp.ibv.state != IBV_QPS_RTS:
        return False
    swqe = &qp.sq[cur.next_wqe & qp.sq_mask]
    if swqe.flags & IBV_SEND_FENCE and reads:
        return False
    return swqe.opcode != IBV_WR_RDMA_READ or reads < qp.ord or qp.ord == 0


cdef bint tx_choose(soft_qp *qp, tx_cursor *cur) noexcept nogil:
    """Between messages: what comes next. READ responses and requests take turns. False: nothing."""
    cdef bint response = cur.next_response != qp.responses_tail
    cdef bint request
    cdef uint32_t length
    if cur.kind != TX_NONE:
        return True
    if response and cur.response_turn:
        cur.kind = TX_RESPONSE
    else:
        # What needs no help of the peer is no part of the stream: shm_execute does it.
        request = tx_may_start(qp, cur) and (qp.shm == NULL or shm_direct(qp, cur) == NULL)
        if not request and not response:
            return False
        cur.kind = TX_REQUEST if request else TX_RESPONSE
    cur.response_turn = cur.kind == TX_REQUEST
    cur.offset = 0
    if cur.kind == TX_RESPONSE:
        length = qp.responses[cur.next_response & qp.responses_mask].length
    else:
        length = qp.sq[cur.next_wqe & qp.sq_mask].length
    if length > qp.mulpdu:
        stream_measure(qp)
    cur.mulpdu = qp.mulpdu
    return True


cdef int tx_build(soft_qp *qp, tx_batch *b, int max_frames) noexcept nogil:
    """Builds FPDUs from the cursor on. The result says why it stopped; TX_BUILT: there is nothing more."""
    cdef tx_cursor cur = qp.cursor
    cdef tx_cursor at
    cdef tx_frame *frame
    cdef int result, niov, i
    cdef uint32_t crc, used, pad
    cdef size_t skip, last_length
    cdef size_t limit = TX_BYTES
    cdef uint8_t *trailer
    b.niov = 0
    b.nframes = 0
    b.nregions = 0
    b.size = 0
    b.used = 0
    b.bounce_used = 0
    while tx_choose(qp, &cur):
        if qp.crc:
            limit = TX_BYTES_CRC
        elif qp.peer_near:
            limit = TX_BYTES_NEAR
        if (b.nframes == max_frames or b.size >= limit or b.niov + MAX_SGE + 2 > TX_IOVECS
                or b.used + TX_FRAME_ARENA > TX_ARENA):
            return TX_FULL
        at = cur
        frame = &b.frames[b.nframes]
        frame.bounce_at = 0
        niov = b.niov
        last_length = b.iov[niov - 1].iov_len if niov else 0
        used = b.used
        crc = 0xffffffffU
        if cur.kind == TX_REQUEST:
            result = tx_request(qp, b, &at, frame, &crc)
        else:
            result = tx_response(qp, b, &at, frame, &crc)
        if result != TX_BUILT:
            b.niov = niov
            if niov:
                b.iov[niov - 1].iov_len = last_length
            b.used = used
            # What is there goes out first; the fault shows again, as the first thing, in the next batch.
            if b.nframes == 0:
                qp.cursor = cur
            return result
        frame.written = 0
        if b.nframes == 0 and qp.frame_sent:
            frame.written = qp.frame_sent
            crc = qp.frame_crc
        frame.size = frame.payload + 2
        if cur.kind == TX_RESPONSE or qp.sq[cur.next_wqe & qp.sq_mask].opcode == IBV_WR_RDMA_WRITE:
            frame.size += TAGGED_HEADER - 2
        else:
            frame.size += UNTAGGED_HEADER - 2
        pad = (0 - <uint32_t> frame.size) & 3
        trailer = b.arena + b.used
        memset(trailer, 0, pad + 4)
        if qp.crc:
            if not frame.written:
                crc = crc32c_add(crc, trailer, pad)
            put_crc(trailer + pad, crc)
        frame.crc = crc
        b.used += pad + 4
        if not tx_gather_owned(b, trailer, pad + 4):
            b.niov = niov
            return TX_FULL
        frame.size += pad + 4
        if frame.written:
            skip = frame.written
            i = 0
            while b.iov[i].iov_len <= skip:
                skip -= b.iov[i].iov_len
                b.iov[i].iov_len = 0
                i += 1
            b.iov[i].iov_base = <uint8_t *> b.iov[i].iov_base + skip
            b.iov[i].iov_len -= skip
            frame.size -= frame.written
        if frame.last:
            if at.kind == TX_REQUEST:
                at.next_wqe += 1
            else:
                at.next_response += 1
            at.kind = TX_NONE
            at.offset = 0
        else:
            at.offset += frame.payload
        frame.before = cur
        frame.after = at
        b.size += frame.size
        b.nframes += 1
        cur = at
    return TX_BUILT


cdef void tx_commit(soft_qp *qp, tx_batch *b, size_t written) noexcept nogil:
    """The kernel has taken this many octets of the batch."""
    cdef tx_frame *frame
    cdef soft_swqe *swqe
    cdef int i
    qp.counters.tx_bytes += written
    for i in range(b.nframes):
        frame = &b.frames[i]
        if (qp.shm != NULL and frame.before.kind == TX_REQUEST
                and qp.sq[frame.before.next_wqe & qp.sq_mask].opcode == IBV_WR_RDMA_WRITE):
            qp.shm.write_tail = qp.shm.tail
        if written < frame.size:
            if written:
                qp.cursor = frame.before
                qp.frame_sent = frame.written + <uint32_t> written
                qp.frame_crc = frame.crc
                qp.bounce_at = frame.bounce_at
            return
        written -= frame.size
        qp.frame_sent = 0
        qp.counters.tx_fpdus += 1
        if frame.last and frame.before.kind == TX_RESPONSE:
            qp.counters.reads_served += 1
        elif frame.last:
            swqe = &qp.sq[frame.before.next_wqe & qp.sq_mask]
            if swqe.opcode == IBV_WR_RDMA_READ:
                swqe.state = SWQE_SENT
                qp.reads[frame.before.reads % MAX_READS] = frame.before.next_wqe
            else:
                swqe.state = SWQE_DONE
                if swqe.opcode == IBV_WR_RDMA_WRITE:
                    qp.counters.writes += 1
                    qp.counters.write_bytes += swqe.length
                else:
                    qp.counters.sends += 1
        qp.cursor = frame.after


cdef ssize_t tx_write(soft_qp *qp, tx_batch *b) noexcept nogil:
    """One system call. Octets taken, or -1 with errno; the regions are let go."""
    cdef msghdr message
    cdef ssize_t n
    if b.niov > 1:
        memset(&message, 0, sizeof(message))
        message.msg_iov = b.iov
        message.msg_iovlen = <size_t> b.niov
    if qp.shm != NULL:
        n = shm_send(qp, b.iov, b.niov)
        tx_release(b)
        return n
    while True:
        if b.niov == 1:
            n = send(qp.fd, b.iov[0].iov_base, b.iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            n = sendmsg(qp.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            break
    tx_release(b)
    return n


cdef void tx_release(tx_batch *b) noexcept nogil:
    cdef int i
    for i in range(b.nregions):
        mr_put(b.regions[i])


cdef void tx_fault(soft_qp *qp, int result) noexcept nogil:
    """The FPDU at the cursor cannot be sent."""
    if qp.cursor.kind == TX_RESPONSE:
        qp_terminate(qp, TERM_PROTECTION_STAG if result == TX_FAULT_REGION else TERM_LOCAL_CATASTROPHIC, NULL, 0,
                     IBV_WC_SUCCESS, IBV_WC_SUCCESS)
        return
    tx_terminate(qp, TERM_LOCAL_CATASTROPHIC, NULL, 0)
    if result == TX_FAULT_DEPTH:
        qp_error(qp, qp.cursor.next_wqe, IBV_WC_LOC_QP_OP_ERR, IBV_WC_SUCCESS)
    else:
        qp_error(qp, qp.cursor.next_wqe, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS)


cdef bint tx_short(soft_qp *qp) noexcept nogil:
    """Sends the only request that waits, when it is a short SEND: one FPDU, no batch. qp.lock is held.

    False: that is for qp_transmit; also what is left of an FPDU that the socket took in part.
    """
    cdef uint8_t fpdu[TX_FRAME_ARENA]
    cdef tx_cursor *cur = &qp.cursor
    cdef uint32_t index = cur.next_wqe & qp.sq_mask
    cdef soft_swqe *swqe = &qp.sq[index]
    cdef const ibv_sge *sges = qp.sq_sges + index * qp.cap.max_send_sge
    cdef uint32_t size = UNTAGGED_HEADER
    cdef uint32_t crc = 0
    cdef uint32_t i, pad
    cdef soft_mr *mr
    cdef ssize_t n
    cdef int why = 0
    if (cur.next_wqe + 1 != qp.sq_tail or cur.kind != TX_NONE or cur.next_response != qp.responses_tail
            or swqe.opcode != IBV_WR_SEND and swqe.opcode != IBV_WR_SEND_WITH_INV
            or swqe.length > TX_COPY or swqe.length + UNTAGGED_HEADER > qp.mulpdu
            or not qp.tx_gate or qp.tx_dead or qp.start_frame != NULL or not tx_may_start(qp, cur)):
        return False
    cur.offset = 0
    tx_send_header(fpdu, swqe, cur, True, swqe.length)
    if swqe.flags & IBV_SEND_INLINE:
        memcpy(fpdu + size, qp.sq_inline + <size_t> index * qp.cap.max_inline_data, swqe.length)
        size += swqe.length
    else:
        for i in range(swqe.num_sge):
            if sges[i].length == 0:
                continue
            mr = mr_get(qp.pd, sges[i].lkey, sges[i].addr, sges[i].length, 0, &why)
            if mr == NULL:
                return False
            memcpy(fpdu + size, <const void *> sges[i].addr, sges[i].length)
            mr_put(mr)
            size += sges[i].length
    pad = (0 - size) & 3
    memset(fpdu + size, 0, pad + 4)
    size += pad
    if qp.crc:
        crc = crc32c_add(0xffffffffU, fpdu, size)
        put_crc(fpdu + size, crc)
    size += 4
    n = send(qp.fd, fpdu, size, MSG_NOSIGNAL | MSG_DONTWAIT)
    if n <= 0:
        return False
    qp.counters.tx_bytes += <size_t> n
    cur.response_turn = True
    if n < <ssize_t> size:
        cur.kind = TX_REQUEST
        cur.mulpdu = qp.mulpdu
        qp.frame_sent = <uint32_t> n
        qp.frame_crc = crc
        return False
    qp.counters.tx_fpdus += 1
    qp.counters.sends += 1
    cur.send_msn += 1
    cur.next_wqe += 1
    swqe.state = SWQE_DONE
    qp_retire(qp)
    return True


cdef void qp_transmit(soft_qp *qp) noexcept nogil:
    """Writes what may be written, until there is nothing more or the socket is full. qp.lock is held."""
    cdef tx_batch b
    cdef int result = TX_FULL
    cdef size_t sent = 0
    cdef ssize_t n
    if qp.fd < 0 or qp.phase != STREAM_OPEN or not qp.tx_gate or qp.tx_dead or qp.start_frame != NULL:
        return
    # Nothing tells when a ring may be written again that is not full.
    while sent < TX_TURN or qp.shm != NULL:
        if qp.shm != NULL and not shm_execute(qp):
            return
        result = tx_build(qp, &b, TX_FRAMES)
        if b.nframes == 0:
            tx_release(&b)
            if result != TX_BUILT and result != TX_FULL:
                tx_fault(qp, result)
                return
            if qp.shm != NULL and tx_pending(qp):
                continue
            break
        n = tx_write(qp, &b)
        if n < 0 and errno.errno == EFAULT:
            tx_choose(qp, &qp.cursor)
            tx_fault(qp, TX_FAULT_REGION)
            return
        if n < 0 and errno.errno != EAGAIN and errno.errno != ENOBUFS:
            # The reason is read from the receive side, behind a Terminate that may still be there.
            qp.tx_dead = True
            qp_want_out(qp, False)
            break
        if n > 0:
            tx_commit(qp, &b, <size_t> n)
            sent += <size_t> n
        if n < <ssize_t> b.size:
            if qp.shm == NULL or not shm_wait_for_space(qp):
                break
        elif result == TX_BUILT and (qp.shm == NULL or not tx_pending(qp)):
            break
        if qp.peer_near:
            # Copied out while it is in the cache, and into the same pages again: faster than all of it at once.
            sched_yield()
    qp_retire(qp)
    if qp.fd < 0 or qp.tx_dead:
        return
    # Full sockets, and turns that are used up, go on when the socket is writable.
    qp_want_out(qp, qp.frame_sent != 0 or tx_pending(qp))
    if not qp.tx_blocked and qp.bounce != NULL:
        free(qp.bounce)
        qp.bounce = NULL


cdef bint tx_pending(soft_qp *qp) noexcept nogil:
    """Whether there is an FPDU that could be sent now."""
    return (qp.cursor.kind != TX_NONE or qp.cursor.next_response != qp.responses_tail
            or tx_may_start(qp, &qp.cursor))


cdef void tx_terminate(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil:
    """Sends a Terminate, best effort: not when an FPDU is half written and cannot be finished."""
    cdef tx_batch b
    cdef uint8_t out[UNTAGGED_HEADER + 52 + FPDU_TRAILER_MAX]
    cdef uint32_t payload, size, pad
    cdef ssize_t n
    if qp.fd < 0 or qp.phase != STREAM_OPEN or qp.tx_dead or qp.start_frame != NULL:
        return
    if qp.frame_sent:
        tx_build(qp, &b, 1)
        if b.nframes == 0:
            tx_release(&b)
            return
        n = tx_write(qp, &b)
        if n != <ssize_t> b.size:
            return
        tx_commit(qp, &b, <size_t> n)
    payload = put_terminate(out + UNTAGGED_HEADER, error, segment, received)
    put_untagged(out, OP_TERMINATE, True, payload, 0, QN_TERMINATE, 1, 0)
    size = UNTAGGED_HEADER + payload
    pad = (0 - size) & 3
    memset(out + size, 0, pad + 4)
    if qp.crc:
        put_crc(out + size + pad, crc32c_add(0xffffffffU, out, size + pad))
    size += pad + 4
    if qp.shm != NULL:
        b.iov[0].iov_base = out
        b.iov[0].iov_len = size
        n = shm_send(qp, b.iov, 1)
    else:
        n = send(qp.fd, out, size, MSG_NOSIGNAL | MSG_DONTWAIT)
    if n == <ssize_t> size:
        qp.counters.terminates_sent += 1
        qp.counters.tx_fpdus += 1
        qp.counters.tx_bytes += size
    if qp.shm != NULL:
        return
    # With unread octets a close resets the connection, and what was sent may be lost to the peer.
    shutdown(qp.fd, SHUT_WR)
    recv(qp.fd, NULL, DRAIN_BYTES, MSG_TRUNC | MSG_DONTWAIT)

# MPA start-up; see mpa.pxd.


cdef int mpa_parse(const uint8_t *p, size_t received, const char *key, uint8_t *flags,
                   soft_iw_request *out) noexcept nogil:
    """Parses a Request or Reply frame. 1: whole; 0: more octets are needed; -1: not such a frame."""
    cdef uint16_t length, word
    if memcmp(p, key, received if received < MPA_KEY_SIZE else MPA_KEY_SIZE) != 0:
        return -1
    if received < MPA_START_SIZE:
        return 0
    memset(out, 0, sizeof(out[0]))
    flags[0] = p[16]
    out.revision = p[17]
    length = get16(p + 18)
    if out.revision < 1 or out.revision > 2 or length > MPA_PRIVATE_MAX:
        return -1
    # In revision 1 this bit is reserved.
    out.enhanced = out.revision == 2 and (p[16] & MPA_FLAG_ENHANCED) != 0
    if out.enhanced and length < MPA_ENHANCED_SIZE:
        return -1
    if received < <size_t> MPA_START_SIZE + length:
        return 0
    out.crc = (p[16] & MPA_FLAG_CRC) != 0
    out.private_data = p + MPA_START_SIZE
    out.private_length = length
    out.consumed = MPA_START_SIZE + length
    if out.enhanced:
        word = get16(p + MPA_START_SIZE)
        out.peer_to_peer = (word & MPA_P2P) != 0
        out.ird = word & MPA_DEPTH_MASK
        out.ord = get16(p + MPA_START_SIZE + 2) & MPA_DEPTH_MASK
        out.private_data += MPA_ENHANCED_SIZE
        out.private_length -= MPA_ENHANCED_SIZE
    return 1


cdef int soft_iw_parse_request(const void *buf, size_t received, soft_iw_request *out) noexcept nogil:
    cdef uint8_t flags = 0
    cdef int done = mpa_parse(<const uint8_t *> buf, received, MPA_REQUEST_KEY, &flags, out)
    # Markers depend on the boundaries of TCP segments, invisible to a program.
    if done < 0 or (done > 0 and flags & MPA_FLAG_MARKERS):
        errno.errno = EPROTO
        return -1
    return done


cdef size_t mpa_put(uint8_t *p, const char *key, uint8_t flags, uint8_t revision, uint16_t ird_word, uint16_t ord_word,
                    const void *private_data, size_t private_length) noexcept nogil:
    """Writes a Request or Reply frame, and returns its length.

    Parameters: the frame's fields, in their order.
    """
    cdef size_t size = MPA_START_SIZE
    memcpy(p, key, MPA_KEY_SIZE)
    p[16] = flags
    p[17] = revision
    if flags & MPA_FLAG_ENHANCED:
        put16(p + size, ird_word)
        put16(p + size + 2, ord_word)
        size += MPA_ENHANCED_SIZE
    if private_length:
        memcpy(p + size, private_data, private_length)
        size += private_length
    put16(p + 18, <uint16_t> (size - MPA_START_SIZE))
    return size


cdef int soft_iw_reject(stream *s, const void *frame, size_t received, const void *private_data,
                        size_t private_length) noexcept nogil:
    cdef soft_iw_request request
    cdef uint8_t flags = 0
    cdef uint8_t out[SOFT_IW_REQUEST_MAX]
    cdef size_t size
    if private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if mpa_parse(<const uint8_t *> frame, received, MPA_REQUEST_KEY, &flags, &request) != 1:
        errno.errno = EPROTO
        return -1
    flags = (flags & MPA_FLAG_CRC) | MPA_FLAG_REJECT | (MPA_FLAG_ENHANCED if request.enhanced else 0)
    size = mpa_put(out, MPA_REPLY_KEY, flags, request.revision, request.ord, request.ird,
                   private_data, private_length)
    return 0 if stream_send(s, out, size) == <ssize_t> size else -1


cdef int soft_iw_connect(ibv_qp *ibqp, int fd, const soft_iw_options *options) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef tcp_stream *tcp
    cdef uint8_t flags
    if options.private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if stream_begin(qp, &tcp_fabric) < 0:
        return -1
    tcp = mpa_prepare(qp)
    if tcp == NULL:
        return -1
    qp.ird = stream_depth(options.ird, qp.attr.max_dest_rd_atomic)
    qp.ord = stream_depth(options.ord, qp.attr.max_rd_atomic)
    tcp.want_crc = options.crc
    tcp.peer_to_peer = options.peer_to_peer
    tcp.pause = options.pause
    # Without an enhanced feature the request must not be enhanced (RFC 6581 section 10).
    tcp.enhanced = options.ird != 0 or options.ord != 0 or tcp.peer_to_peer
    flags = (MPA_FLAG_CRC if options.crc else 0) | (MPA_FLAG_ENHANCED if tcp.enhanced else 0)
    tcp.start_length = mpa_put(
        tcp.start_frame, MPA_REQUEST_KEY, flags, 2 if tcp.enhanced else 1,
        qp.ird | (MPA_P2P if tcp.peer_to_peer else 0), qp.ord | (MPA_RTR_WRITE if tcp.peer_to_peer else 0),
        options.private_data, options.private_length)
    return tcp_attach(qp, fd, options.cover, True)


cdef int soft_iw_accept(ibv_qp *ibqp, int fd, const void *frame, size_t received,
                        const soft_iw_options *options) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef soft_iw_request request
    cdef tcp_stream *tcp
    cdef uint8_t flags
    cdef uint16_t ird_word, ord_word
    if options.private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if soft_iw_parse_request(frame, received, &request) != 1 or request.consumed != received:
        errno.errno = EPROTO
        return -1
    if stream_begin(qp, &tcp_fabric) < 0:
        return -1
    tcp = mpa_prepare(qp)
    if tcp == NULL:
        return -1
    qp.crc = request.crc or options.crc
    qp.ird = stream_depth(options.ird, qp.attr.max_dest_rd_atomic)
    if qp.ird == 0:
        qp.ird = 1
    qp.ord = stream_depth(options.ord, qp.attr.max_rd_atomic)
    tcp.peer_ird = request.ird
    tcp.peer_ord = request.ord
    ird_word = 0
    ord_word = 0
    if request.enhanced:
        if request.ird != MPA_DEPTH_MASK and qp.ord > request.ird:
            qp.ord = request.ird
        # A peer that refuses to negotiate a depth gets no answer about it (RFC 6581 section 9.1).
        ird_word = <uint16_t> MPA_DEPTH_MASK if request.ord == MPA_DEPTH_MASK else qp.ird
        ord_word = <uint16_t> MPA_DEPTH_MASK if request.ird == MPA_DEPTH_MASK else qp.ord
        if request.peer_to_peer:
            # Every peer can send a zero-length WRITE as the ready-to-receive frame.
            ird_word |= MPA_P2P
            ord_word |= MPA_RTR_READ if (get16(request.private_data - 2) & 0xc000) == MPA_RTR_READ else MPA_RTR_WRITE
    flags = (MPA_FLAG_CRC if qp.crc else 0) | (MPA_FLAG_ENHANCED if request.enhanced else 0)
    tcp.start_length = mpa_put(tcp.start_frame, MPA_REPLY_KEY, flags, request.revision, ird_word, ord_word,
                               options.private_data, options.private_length)
    return tcp_attach(qp, fd, options.cover, False)


cdef tcp_stream *mpa_prepare(soft_qp *qp) noexcept nogil:
    """tcp_prepare, with memory for the start-up frame."""
    cdef tcp_stream *tcp = tcp_prepare(qp)
    if tcp == NULL:
        return NULL
    tcp.start_frame = <uint8_t *> malloc(SOFT_IW_REQUEST_MAX)
    if tcp.start_frame == NULL:
        stream_undo(qp, ENOMEM)
        return NULL
    qp.tx.held = True
    return tcp


cdef bint mpa_keep_private_data(tcp_stream *tcp, const soft_iw_request *reply) noexcept nogil:
    """Copies the reply's private data. False: no memory."""
    if reply.private_length == 0:
        return True
    tcp.peer_data = <uint8_t *> malloc(reply.private_length)
    if tcp.peer_data == NULL:
        return False
    memcpy(tcp.peer_data, reply.private_data, reply.private_length)
    tcp.peer_length = <uint32_t> reply.private_length
    return True


cdef bint mpa_agree(soft_qp *qp, const soft_iw_request *reply) noexcept nogil:
    """Initiator: agrees on CRC, depths and ready-to-receive frame, and opens the stream. False: the stream fails."""
    cdef tcp_stream *tcp = tcp_of(qp)
    cdef const uint8_t *ord_word = qp.rx.buffer + MPA_START_SIZE + 2
    cdef uint32_t error = 0
    assert_held(&qp.lock)
    if reply.enhanced != tcp.enhanced and reply.revision == 2:
        return False
    qp.crc = tcp.want_crc or reply.crc
    if reply.enhanced:
        if reply.ird != MPA_DEPTH_MASK and qp.ord > reply.ird:
            qp.ord = reply.ird
        if reply.ord != MPA_DEPTH_MASK and reply.ord > qp.ird:
            error = TERM_MPA_INSUFFICIENT_IRD
        elif tcp.peer_to_peer and reply.peer_to_peer and not get16(ord_word) & MPA_RTR_WRITE:
            error = TERM_MPA_NO_RTR
    if not stream_open(qp):
        return False
    if error:
        tx_terminate(qp, error, NULL, 0)
    return error == 0


cdef int mpa_read_reply(soft_qp *qp) noexcept nogil:
    cdef tcp_stream *tcp = tcp_of(qp)
    cdef soft_iw_request reply
    cdef int i
    cdef uint8_t flags = 0
    cdef ssize_t n
    cdef int done
    assert_held(&qp.lock)
    n = tcp_read_buffer(qp, qp.rx.buffer + qp.rx.end, SOFT_IW_REQUEST_MAX + 1 - qp.rx.end)
    if n < 0:
        return 0 if errno.errno == EAGAIN and now_ns() < qp.stream.deadline else -1
    if n == 0:
        return -1
    qp.rx.end += <uint32_t> n
    counter_add(&qp.counters.rx_bytes, <uint64_t> n)
    done = mpa_parse(qp.rx.buffer, qp.rx.end, MPA_REPLY_KEY, &flags, &reply)
    if done <= 0:
        return done
    # A responder replies only to a whole request, and sends nothing behind the reply before it has received an FPDU.
    if reply.consumed != qp.rx.end or tcp.start_frame != NULL:
        return -1
    tcp.refused = (flags & MPA_FLAG_REJECT) != 0
    tcp.peer_ird = reply.ird
    tcp.peer_ord = reply.ord
    if (not mpa_keep_private_data(tcp, &reply) or flags & (MPA_FLAG_REJECT | MPA_FLAG_MARKERS)
            or not mpa_agree(qp, &reply)):
        return -1
    if not tcp.pause:
        return 1 if mpa_ready(qp) else -1
    qp.stream.deadline = now_ns() + tcp.pause * <int64_t> 1000000
    tcp.pausing = True
    for i in range(qp.ndomains):
        if qp.links[i].watched and not stream_start_timer(qp, &qp.links[i]):
            return -1
    return 1


cdef bint mpa_ready(soft_qp *qp) noexcept nogil:
    cdef tcp_stream *tcp = tcp_of(qp)
    cdef uint8_t *frame
    # A responder may not have waited for the ready-to-receive frame: then its first FPDU has allowed sending already.
    cdef bint first = not qp.tx.allowed
    assert_held(&qp.lock)
    tcp.pausing = False
    qp.stream.deadline = 0
    stream_stop_timer(qp)
    qp.tx.allowed = True
    if tcp.peer_to_peer and first:
        frame = <uint8_t *> malloc(TAGGED_HEADER + FPDU_TRAILER_MAX)
        if frame == NULL:
            return False
        put_tagged(frame, OP_WRITE, True, 0, RTR_STAG, 0)
        tcp.start_frame = frame
        tcp.start_length = tx_put_trailer(qp, frame, TAGGED_HEADER)
        tcp.start_sent = 0
        qp.tx.held = True
        counter_add(&qp.counters.tx_fpdus, 1)
        tcp_send_start(qp)
    return True


cdef void soft_iw_query(ibv_qp *ibqp, soft_iw_stream *out) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef const tcp_stream *tcp = NULL
    memset(out, 0, sizeof(out[0]))
    lock_ranked(&qp.lock, RANK_QP)
    # While a thread attaches a stream, the fields may be an earlier stream's.
    if qp.fabric == &tcp_fabric and qp.stream.phase > STREAM_ATTACHING:
        tcp = tcp_of(qp)
    if qp.stream.phase == STREAM_ATTACHING or qp.stream.phase == STREAM_REQUESTED:
        out.state = SOFT_IW_STARTING
    elif qp.stream.phase == STREAM_OPEN:
        out.state = SOFT_IW_OPEN
    elif qp.stream.phase == STREAM_CLOSED:
        out.state = SOFT_IW_REFUSED if tcp != NULL and tcp.refused else SOFT_IW_CLOSED
    out.crc = qp.crc
    out.ird = qp.ird
    out.ord = qp.ord
    if tcp != NULL:
        out.peer_ird = tcp.peer_ird
        out.peer_ord = tcp.peer_ord
        out.private_length = tcp.peer_length
        if tcp.peer_length:
            memcpy(out.private_data, tcp.peer_data, tcp.peer_length)
    unlock_ranked(&qp.lock, RANK_QP)

# A queue pair's stream: attachment, MPA start-up (RFC 5044 section 7.1, RFC 6581), and its end.


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
    cdef int done = mpa_parse(<const uint8_t *> buf, received, b"MPA ID Req Frame", &flags, out)
    # Markers need the positions of TCP segments, which a program does not see.
    if done < 0 or (done > 0 and flags & MPA_FLAG_MARKERS):
        errno.errno = EPROTO
        return -1
    return done


cdef size_t mpa_put(uint8_t *p, const char *key, uint8_t flags, uint8_t revision, uint16_t ird_word, uint16_t ord_word,
                    const void *private_data, size_t private_length) noexcept nogil:
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


cdef int soft_iw_reject(int fd, const void *frame, size_t received, const void *private_data,
                        size_t private_length) noexcept nogil:
    cdef soft_iw_request request
    cdef uint8_t flags = 0
    cdef uint8_t out[SOFT_IW_REQUEST_MAX]
    cdef size_t size
    if private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if mpa_parse(<const uint8_t *> frame, received, b"MPA ID Req Frame", &flags, &request) != 1:
        errno.errno = EPROTO
        return -1
    flags = (flags & MPA_FLAG_CRC) | MPA_FLAG_REJECT | (MPA_FLAG_ENHANCED if request.enhanced else 0)
    size = mpa_put(out, b"MPA ID Rep Frame", flags, request.revision, request.ord, request.ird,
                   private_data, private_length)
    return 0 if send(fd, out, size, MSG_NOSIGNAL | MSG_DONTWAIT) == <ssize_t> size else -1


cdef uint16_t depth(uint32_t wish, uint32_t limit) noexcept nogil:
    """A number of READs: what the options ask for, 0 being the queue pair's attribute, which is the limit."""
    return <uint16_t> (limit if wish == 0 or wish > limit else wish)


cdef int stream_begin(soft_qp *qp, bint shm) noexcept nogil:
    """Reserves the queue pair for a stream; `shm`: of soft_shm."""
    cdef int error = 0
    pthread_mutex_lock(&qp.lock)
    if shm != qp.context.shm or (
            qp.ibv.state != IBV_QPS_RTR and qp.ibv.state != IBV_QPS_RTS and qp.ibv.state != IBV_QPS_SQD):
        error = EINVAL
    elif qp.phase != STREAM_NONE:
        error = EISCONN
    else:
        qp.phase = STREAM_ATTACHING
    pthread_mutex_unlock(&qp.lock)
    if error:
        errno.errno = error
        return -1
    return 0


cdef int64_t monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1000000000 + now.tv_nsec


cdef bint stream_timer(soft_qp *qp, soft_link *link) noexcept nogil:
    """Puts a timer for the deadline into the link's epoll set. False with errno set: it is not."""
    cdef epoll_event event
    cdef itimerspec due
    cdef int64_t left
    if qp.timer_fd < 0:
        qp.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if qp.timer_fd < 0:
            return False
        left = qp.deadline - monotonic()
        memset(&due, 0, sizeof(due))
        due.it_value.tv_sec = left // 1000000000 if left > 0 else 0
        due.it_value.tv_nsec = left % 1000000000 if left > 0 else 1
        timerfd_settime(qp.timer_fd, 0, &due, NULL)
    event.events = EPOLLIN
    event.data.u64 = <uint64_t> <uintptr_t> qp | EVENT_TIMER
    return epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_ADD, qp.timer_fd, &event) == 0


cdef bint stream_watch(soft_qp *qp, soft_link *link) noexcept nogil:
    """Puts the stream, and its timer, into the link's epoll set. False with errno set: neither is."""
    cdef epoll_event event
    event.events = EPOLLIN | EPOLLOUT if qp.tx_blocked else EPOLLIN
    event.data.u64 = <uint64_t> <uintptr_t> qp
    if epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_ADD, qp.fd, &event) < 0:
        return False
    if (qp.phase == STREAM_REQUESTED or qp.pausing) and not stream_timer(qp, link):
        epoll_ctl(link.domain.epoll_fd, EPOLL_CTL_DEL, qp.fd, NULL)
        return False
    link.watched = True
    return True


cdef void stream_unwatch(soft_qp *qp) noexcept nogil:
    """Takes the stream out of all epoll sets."""
    cdef int i
    stream_stop_timer(qp)
    for i in range(qp.ndomains):
        if qp.links[i].watched:
            epoll_ctl(qp.domains[i].epoll_fd, EPOLL_CTL_DEL, qp.fd, NULL)
            qp.links[i].watched = False


cdef int stream_undo(soft_qp *qp, int error) noexcept nogil:
    """Leaves the queue pair without a stream, as before stream_begin. qp.lock is held, and released."""
    stream_unwatch(qp)
    free(qp.start_frame)
    qp.start_frame = NULL
    relaxed_store(&qp.fd, -1)
    if qp.phase != STREAM_CLOSED:
        qp.phase = STREAM_NONE
    pthread_mutex_unlock(&qp.lock)
    errno.errno = error
    return -1


cdef bint stream_buffers(soft_qp *qp) noexcept nogil:
    """Makes what a stream needs, for the agreed depth. False: no memory."""
    free(qp.responses)
    qp.responses_mask = ring_size(qp.ird) - 1
    qp.responses = <soft_response *> malloc((qp.responses_mask + 1) * sizeof(soft_response))
    free(qp.rx_buffer)
    qp.rx_capacity = RX_BUFFER
    qp.rx_buffer = <uint8_t *> malloc(qp.rx_capacity)
    return qp.responses != NULL and qp.rx_buffer != NULL


cdef bint stream_local(int fd) noexcept nogil:
    """Whether both ends have the same address: the peer is on this host."""
    cdef sockaddr_in6 here, there
    cdef socklen_t size = sizeof(here)
    if getsockname(fd, <sockaddr *> &here, &size) < 0:
        return False
    size = sizeof(there)
    if getpeername(fd, <sockaddr *> &there, &size) < 0 or here.sin6_family != there.sin6_family:
        return False
    if here.sin6_family == AF_INET:
        return (<sockaddr_in *> &here).sin_addr.s_addr == (<sockaddr_in *> &there).sin_addr.s_addr
    return here.sin6_family == AF_INET6 and memcmp(&here.sin6_addr, &there.sin6_addr, sizeof(here.sin6_addr)) == 0


cdef int stream_attach(soft_qp *qp, int fd, uint8_t *frame, size_t length, bint initiator) noexcept nogil:
    """Ties fd to the queue pair and sends the start-up frame, which it takes over. 0, or -1 with errno."""
    cdef int one = 1
    cdef int i
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    if stream_local(fd):
        # Nothing is congested; what paces by estimated bandwidth, as BBR does, would hold large messages up.
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, b"reno", 4)
    for i in range(qp.ndomains):
        if qp.links[i].domain == NULL:
            domain_add(qp.domains[i], &qp.links[i], qp)
    pthread_mutex_lock(&qp.lock)
    qp.start_frame = frame
    qp.start_length = <uint32_t> length
    qp.start_sent = 0
    if qp.phase != STREAM_ATTACHING:
        return stream_undo(qp, EINVAL)
    if not stream_buffers(qp):
        return stream_undo(qp, ENOMEM)
    relaxed_store(&qp.fd, fd)
    if initiator:
        qp.deadline = monotonic() + START_SECONDS * <int64_t> 1000000000
        qp.phase = STREAM_REQUESTED
    elif not stream_open(qp):
        return stream_undo(qp, ENOMEM)
    for i in range(qp.ndomains):
        if load_acquire(&qp.domains[i].watched) and not stream_watch(qp, &qp.links[i]):
            return stream_undo(qp, errno.errno)
    stream_start(qp)
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, NULL)
    return 0


cdef void stream_start(soft_qp *qp) noexcept nogil:
    """Sends what is left of the start-up frame."""
    cdef ssize_t n
    if qp.tx_dead:
        return
    while qp.start_frame != NULL:
        n = send(qp.fd, qp.start_frame + qp.start_sent, qp.start_length - qp.start_sent, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n < 0 and errno.errno == EINTR:
            continue
        if n < 0 and (errno.errno == EAGAIN or errno.errno == ENOTCONN):
            qp_want_out(qp, True)
            return
        if n < 0:
            qp.tx_dead = True
            qp_want_out(qp, False)
            return
        qp.start_sent += <uint32_t> n
        qp.counters.tx_bytes += <uint64_t> n
        if qp.start_sent == qp.start_length:
            free(qp.start_frame)
            qp.start_frame = NULL
    qp_want_out(qp, False)


cdef bint stream_open(soft_qp *qp) noexcept nogil:
    """From start-up to full operation. False: no memory."""
    cdef uint8_t *larger
    if qp.crc:
        # A frame is looked at only when all of it has been checked.
        larger = <uint8_t *> realloc(qp.rx_buffer, RX_BUFFER_CRC)
        if larger == NULL:
            return False
        qp.rx_buffer = larger
        qp.rx_capacity = RX_BUFFER_CRC
    stream_measure(qp)
    qp.rx_start = 0
    qp.rx_end = 0
    qp.rx_need = 0
    qp.rx_window = RX_WINDOW
    qp.rx_state = RX_HEADER
    qp.phase = STREAM_OPEN
    stream_stop_timer(qp)
    return True


cdef void stream_measure(soft_qp *qp) noexcept nogil:
    """Fits FPDUs to TCP's segments, which grow with the peer's window, and finds out where the peer runs.

    Over loopback the last segment was received on the core of the process that sent it.
    """
    cdef int segment = 0
    cdef int cpu = -1
    cdef socklen_t size = sizeof(segment)
    if qp.shm != NULL:
        qp.mulpdu = ULPDU_MAX
        return
    if getsockopt(qp.fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &size) < 0 or segment <= 0:
        segment = ULPDU_MAX
    qp.mulpdu = mulpdu_of(<uint32_t> segment)
    size = sizeof(cpu)
    qp.peer_near = getsockopt(qp.fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0 and cpu == sched_getcpu()


cdef void stream_stop_timer(soft_qp *qp) noexcept nogil:
    # Nobody else has the descriptor: closing it takes it out of the epoll sets.
    if qp.timer_fd >= 0:
        close(qp.timer_fd)
        qp.timer_fd = -1


cdef void stream_close(soft_qp *qp) noexcept nogil:
    """Closes the stream, if there is one. Nothing on it is read or written any more."""
    stream_unwatch(qp)
    if qp.fd >= 0:
        if qp.shm != NULL:
            shm_close(qp)
        close(qp.fd)
        relaxed_store(&qp.fd, -1)
    free(qp.start_frame)
    qp.start_frame = NULL
    free(qp.bounce)
    qp.bounce = NULL
    relaxed_store(&qp.tx_blocked, False)
    qp.pausing = False
    qp.phase = STREAM_CLOSED


cdef void qp_deadline(soft_qp *qp, soft_domain *domain) noexcept nogil:
    """The stream's timer has run out."""
    pthread_mutex_lock(&qp.lock)
    if qp.phase == STREAM_REQUESTED or (qp.pausing and not stream_ready(qp)):
        qp_lost(qp)
    if qp.fd >= 0 and not qp.tx_blocked and tx_pending(qp):
        qp_transmit(qp)
    pthread_mutex_unlock(&qp.lock)
    qp_settle(qp, domain)


cdef void qp_want_out(soft_qp *qp, bint wanted) noexcept nogil:
    """Asks for EPOLLOUT only while there is something that could not be written."""
    cdef epoll_event event
    cdef int i
    if qp.tx_blocked == wanted or qp.fd < 0:
        return
    relaxed_store(&qp.tx_blocked, wanted)
    if qp.shm != NULL:
        return
    event.events = EPOLLIN | EPOLLOUT if wanted else EPOLLIN
    event.data.u64 = <uint64_t> <uintptr_t> qp
    for i in range(qp.ndomains):
        if qp.links[i].watched:
            epoll_ctl(qp.domains[i].epoll_fd, EPOLL_CTL_MOD, qp.fd, &event)


cdef int soft_iw_connect(ibv_qp *ibqp, int fd, const soft_iw_options *options) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef uint8_t *frame
    cdef uint8_t flags
    cdef size_t size
    if options.private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if stream_begin(qp, False) < 0:
        return -1
    frame = <uint8_t *> malloc(SOFT_IW_REQUEST_MAX)
    if frame == NULL:
        pthread_mutex_lock(&qp.lock)
        return stream_undo(qp, ENOMEM)
    qp.ird = depth(options.ird, qp.attr.max_dest_rd_atomic)
    qp.ord = depth(options.ord, qp.attr.max_rd_atomic)
    qp.want_crc = options.crc
    qp.peer_to_peer = options.peer_to_peer
    qp.pause = options.pause
    # Without an enhanced feature the request must not be an enhanced one (RFC 6581 section 10).
    qp.enhanced = options.ird != 0 or options.ord != 0 or qp.peer_to_peer
    flags = (MPA_FLAG_CRC if options.crc else 0) | (MPA_FLAG_ENHANCED if qp.enhanced else 0)
    size = mpa_put(frame, b"MPA ID Req Frame", flags, 2 if qp.enhanced else 1,
                   qp.ird | (MPA_P2P if qp.peer_to_peer else 0), qp.ord | (MPA_RTR_WRITE if qp.peer_to_peer else 0),
                   options.private_data, options.private_length)
    return stream_attach(qp, fd, frame, size, True)


cdef int soft_iw_accept(ibv_qp *ibqp, int fd, const void *frame, size_t received,
                        const soft_iw_options *options) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef soft_iw_request request
    cdef uint8_t *reply
    cdef uint8_t flags
    cdef uint16_t ird_word, ord_word
    cdef size_t size
    if options.private_length > MPA_PRIVATE_MAX - MPA_ENHANCED_SIZE:
        errno.errno = EINVAL
        return -1
    if soft_iw_parse_request(frame, received, &request) != 1 or request.consumed != received:
        errno.errno = EPROTO
        return -1
    if stream_begin(qp, False) < 0:
        return -1
    reply = <uint8_t *> malloc(SOFT_IW_REQUEST_MAX)
    if reply == NULL:
        pthread_mutex_lock(&qp.lock)
        return stream_undo(qp, ENOMEM)
    qp.crc = request.crc or options.crc
    qp.ird = depth(options.ird, qp.attr.max_dest_rd_atomic)
    if qp.ird == 0:
        qp.ird = 1
    qp.ord = depth(options.ord, qp.attr.max_rd_atomic)
    qp.peer_ird = request.ird
    qp.peer_ord = request.ord
    ird_word = 0
    ord_word = 0
    if request.enhanced:
        if request.ird != MPA_DEPTH_MASK and qp.ord > request.ird:
            qp.ord = request.ird
        # Who wants no negotiation gets none (RFC 6581 section 9.1).
        ird_word = <uint16_t> MPA_DEPTH_MASK if request.ord == MPA_DEPTH_MASK else qp.ird
        ord_word = <uint16_t> MPA_DEPTH_MASK if request.ird == MPA_DEPTH_MASK else qp.ord
        if request.peer_to_peer:
            # The zero-length WRITE is the ready-to-receive frame that every peer can send.
            ird_word |= MPA_P2P
            ord_word |= MPA_RTR_READ if (get16(request.private_data - 2) & 0xc000) == MPA_RTR_READ else MPA_RTR_WRITE
    flags = (MPA_FLAG_CRC if qp.crc else 0) | (MPA_FLAG_ENHANCED if request.enhanced else 0)
    size = mpa_put(reply, b"MPA ID Rep Frame", flags, request.revision, ird_word, ord_word,
                   options.private_data, options.private_length)
    return stream_attach(qp, fd, reply, size, False)


cdef int stream_reply(soft_qp *qp) noexcept nogil:
    """Initiator: reads the MPA Reply. 1: the stream is open; 0: not yet; -1: refused or broken."""
    cdef soft_iw_request reply
    cdef const uint8_t *rtr = qp.rx_buffer + MPA_START_SIZE + 2
    cdef int i
    cdef uint8_t flags = 0
    cdef ssize_t n
    cdef int done
    while True:
        n = recv(qp.fd, qp.rx_buffer + qp.rx_end, SOFT_IW_REQUEST_MAX + 1 - qp.rx_end, MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            break
    if n < 0:
        return 0 if errno.errno == EAGAIN and monotonic() < qp.deadline else -1
    if n == 0:
        return -1
    qp.rx_end += <uint32_t> n
    qp.counters.rx_bytes += <uint64_t> n
    done = mpa_parse(qp.rx_buffer, qp.rx_end, b"MPA ID Rep Frame", &flags, &reply)
    if done <= 0:
        return done
    # The responder answers what it has read, and sends nothing behind its frame before it has received an FPDU.
    if reply.consumed != qp.rx_end or qp.start_frame != NULL:
        return -1
    qp.refused = (flags & MPA_FLAG_REJECT) != 0
    qp.peer_ird = reply.ird
    qp.peer_ord = reply.ord
    if reply.private_length:
        qp.peer_data = <uint8_t *> malloc(reply.private_length)
        if qp.peer_data == NULL:
            return -1
        memcpy(qp.peer_data, reply.private_data, reply.private_length)
        qp.peer_length = <uint32_t> reply.private_length
    if flags & (MPA_FLAG_REJECT | MPA_FLAG_MARKERS):
        return -1
    if reply.enhanced != qp.enhanced and reply.revision == 2:
        return -1
    qp.crc = qp.want_crc or reply.crc
    if reply.enhanced:
        if reply.ird != MPA_DEPTH_MASK and qp.ord > reply.ird:
            qp.ord = reply.ird
        if reply.ord != MPA_DEPTH_MASK and reply.ord > qp.ird:
            if stream_open(qp):
                tx_terminate(qp, TERM_MPA_INSUFFICIENT_IRD, NULL, 0)
            return -1
        if qp.peer_to_peer and reply.peer_to_peer and not get16(rtr) & MPA_RTR_WRITE:
            if stream_open(qp):
                tx_terminate(qp, TERM_MPA_NO_RTR, NULL, 0)
            return -1
    if not stream_open(qp):
        return -1
    if not qp.pause:
        return 1 if stream_ready(qp) else -1
    qp.deadline = monotonic() + qp.pause * <int64_t> 1000000
    qp.pausing = True
    for i in range(qp.ndomains):
        if qp.links[i].watched and not stream_timer(qp, &qp.links[i]):
            return -1
    return 1


cdef bint stream_ready(soft_qp *qp) noexcept nogil:
    """Initiator: from now on FPDUs may be sent, the first one being that which was agreed on. False: no memory."""
    cdef uint8_t *frame
    # Not when a responder that did not wait for it has been answered already.
    cdef bint first = not qp.tx_gate
    qp.pausing = False
    stream_stop_timer(qp)
    qp.tx_gate = True
    if qp.peer_to_peer and first:
        frame = <uint8_t *> malloc(TAGGED_HEADER + FPDU_TRAILER_MAX)
        if frame == NULL:
            return False
        put_tagged(frame, OP_WRITE, True, 0, RTR_STAG, 0)
        memset(frame + TAGGED_HEADER, 0, 4)
        if qp.crc:
            put_crc(frame + TAGGED_HEADER, crc32c_add(0xffffffffU, frame, TAGGED_HEADER))
        qp.start_frame = frame
        qp.start_length = TAGGED_HEADER + 4
        qp.start_sent = 0
        qp.counters.tx_fpdus += 1
        stream_start(qp)
    return True


cdef void soft_iw_query(ibv_qp *ibqp, soft_iw_stream *out) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    memset(out, 0, sizeof(out[0]))
    pthread_mutex_lock(&qp.lock)
    if qp.phase == STREAM_ATTACHING or qp.phase == STREAM_REQUESTED:
        out.state = SOFT_IW_STARTING
    elif qp.phase == STREAM_OPEN:
        out.state = SOFT_IW_OPEN
    elif qp.phase == STREAM_CLOSED:
        out.state = SOFT_IW_REFUSED if qp.refused else SOFT_IW_CLOSED
    out.crc = qp.crc
    out.ird = qp.ird
    out.ord = qp.ord
    out.peer_ird = qp.peer_ird
    out.peer_ord = qp.peer_ord
    out.private_length = qp.peer_length
    if qp.peer_length:
        memcpy(out.private_data, qp.peer_data, qp.peer_length)
    pthread_mutex_unlock(&qp.lock)


cdef int soft_query_counters(ibv_qp *ibqp, soft_qp_counters *out) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    pthread_mutex_lock(&qp.lock)
    out[0] = qp.counters
    pthread_mutex_unlock(&qp.lock)
    return 0


cdef bint soft_qp_terminated(ibv_qp *ibqp, int *opcode, ibv_wc_status *status) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef bint known
    pthread_mutex_lock(&qp.lock)
    known = qp.terminated and qp.terminated_opcode >= 0
    opcode[0] = qp.terminated_opcode
    status[0] = <ibv_wc_status> qp.terminated_status
    pthread_mutex_unlock(&qp.lock)
    return known

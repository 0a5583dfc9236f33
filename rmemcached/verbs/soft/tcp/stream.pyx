# soft_iw: a queue pair's stream; see stream.pxd.

cdef enum:
    TCP_BATCH_SAME_CORE = 240 << 10  # octets of one sendmsg to a peer on the same core: four FPDUs of loopback's size
    TCP_TRY = 2                      # up to so many streams are tried without asking epoll
    TCP_BATCH = 8                    # streams of one epoll_wait; each sends up to 64 KB, also at the turn's end
    TCP_HELD_RENEWALS = 4            # of keys, in the input that the cover holds at the end of a turn
    TCP_DRAIN = 16 << 20             # octets discarded before a close
    TCP_YIELD_LONG = 200000          # nanoseconds; a longer sched_yield was another thread's time slice
    TCP_YIELD_PAUSE = 1000000000     # nanoseconds without sched_yield after such a long call


cdef inline tcp_stream *tcp_of(const soft_qp *qp) noexcept nogil:
    return <tcp_stream *> qp.fabric_state


# Attachment and end.


cdef tcp_stream *tcp_prepare(soft_qp *qp) noexcept nogil:
    stream_join(qp)
    lock_ranked(&qp.lock, RANK_QP)
    if qp.fabric_state == NULL:
        qp.fabric_state = calloc(1, sizeof(tcp_stream))
    if qp.fabric_state == NULL or qp.stream.phase != STREAM_ATTACHING:
        stream_undo(qp, ENOMEM if qp.fabric_state == NULL else EINVAL)
        return NULL
    free(tcp_of(qp).peer_data)
    memset(qp.fabric_state, 0, sizeof(tcp_stream))
    return tcp_of(qp)


cdef void tcp_forget(soft_qp *qp) noexcept nogil:
    cdef tcp_stream *tcp = tcp_of(qp)
    assert_held(&qp.lock)
    free(tcp.start_frame)
    tcp.start_frame = NULL
    tcp.pausing = False
    qp.tx.held = False


cdef int tcp_undo(soft_qp *qp, int error) noexcept nogil:
    """stream_undo after tcp_prepare. The socket stays the program's."""
    tcp_forget(qp)
    return stream_undo(qp, error)


cdef bint tcp_is_local(int fd) noexcept nogil:
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


cdef int tcp_attach(soft_qp *qp, int fd, stream *cover, bint initiator) noexcept nogil:
    cdef int one = 1
    cdef int i
    assert_held(&qp.lock)
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    if tcp_is_local(fd):
        # Loopback is not congested, and pacing by an estimated bandwidth, as in BBR, would delay large messages.
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, b"reno", 4)
    if not stream_buffers(qp):
        return tcp_undo(qp, ENOMEM)
    relaxed_store(&qp.stream.fd, fd)
    if initiator:
        stream_await_peer(qp)
    elif not stream_open(qp):
        return tcp_undo(qp, ENOMEM)
    for i in range(qp.ndomains):
        if load_acquire(&qp.domains[i].watched) and not stream_watch(qp, &qp.links[i]):
            return tcp_undo(qp, errno.errno)
    if cover != NULL:
        stream_move(&tcp_of(qp).cover, cover)
        tcp_of(qp).cover.keeps = True
        tcp_measure(qp)
    tcp_send_start(qp)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, NULL)
    return 0


cdef void tcp_close(soft_qp *qp) noexcept nogil:
    cdef stream *cover = &tcp_of(qp).cover
    assert_held(&qp.lock)
    tcp_forget(qp)
    if cover.calls == NULL:
        close(qp.stream.fd)
        return
    cover.calls.end(cover)
    cover.calls = NULL


cdef void tcp_free(soft_qp *qp) noexcept nogil:
    free(tcp_of(qp).peer_data)
    free(qp.fabric_state)


# Sending.


cdef void tcp_send_start(soft_qp *qp) noexcept nogil:
    cdef tcp_stream *tcp = tcp_of(qp)
    cdef iovec rest
    cdef ssize_t n
    assert_held(&qp.lock)
    if qp.tx.broken:
        return
    while tcp.start_frame != NULL:
        rest.iov_base = tcp.start_frame + tcp.start_sent
        rest.iov_len = tcp.start_length - tcp.start_sent
        n = tcp_write(qp, &rest, 1)
        if n < 0 and (errno.errno == EAGAIN or errno.errno == ENOTCONN):
            stream_want_writable(qp, True)
            return
        if n < 0:
            qp.tx.broken = True
            break
        tcp.start_sent += <uint32_t> n
        counter_add(&qp.counters.tx_bytes, <uint64_t> n)
        if tcp.start_sent == tcp.start_length:
            free(tcp.start_frame)
            tcp.start_frame = NULL
            qp.tx.held = False
    stream_want_writable(qp, qp.tx.owed)


cdef void tcp_measure(soft_qp *qp) noexcept nogil:
    """Fits FPDUs to TCP's segments, which grow with the peer's window, and finds out where the peer runs.

    Over loopback the last segment was received on the core of its sender, the peer.
    """
    cdef tcp_stream *tcp = tcp_of(qp)
    cdef int segment = 0
    cdef int cpu = -1
    cdef socklen_t size = sizeof(segment)
    assert_held(&qp.lock)
    # TLS's records do not keep to segments.
    if (tcp.cover.calls != NULL or getsockopt(qp.stream.fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &size) < 0
            or segment <= 0):
        segment = ULPDU_MAX
    qp.tx.mulpdu = mulpdu_of(<uint32_t> segment)
    size = sizeof(cpu)
    tcp.same_core = (getsockopt(qp.stream.fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0
                     and cpu == sched_getcpu())
    qp.tx.batch_bytes = TCP_BATCH_SAME_CORE if tcp.same_core else TX_BYTES


cdef void tcp_want_writable(soft_qp *qp) noexcept nogil:
    """Asks epoll for EPOLLOUT while the sender is blocked, or input waits for room in the socket."""
    cdef epoll_event event
    cdef int i
    assert_held(&qp.lock)
    event.events = stream_events(qp)
    for i in range(qp.ndomains):
        event.data.u64 = domain_event(qp.domains[i], qp, 0)
        if qp.links[i].watched:
            epoll_ctl(qp.domains[i].epoll_fd, EPOLL_CTL_MOD, qp.stream.fd, &event)


cdef ssize_t tcp_write_covered(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    cdef stream *cover = &tcp_of(qp).cover
    cdef ssize_t n = cover.calls.send(cover, iov, count)
    assert_held(&qp.lock)
    qp.tx.owed = cover.owes
    if qp.tx.owed:
        stream_want_writable(qp, True)
    return n


cdef ssize_t tcp_write(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    """Writes with one system call, without a cover."""
    cdef msghdr message
    cdef ssize_t n
    assert_held(&qp.lock)
    if tcp_of(qp).cover.calls != NULL:
        return tcp_write_covered(qp, iov, count)
    if count > 1:
        memset(&message, 0, sizeof(message))
        message.msg_iov = <iovec *> iov
        message.msg_iovlen = <size_t> count
    while True:
        if count == 1:
            n = send(qp.stream.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            n = sendmsg(qp.stream.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            return n


cdef void tcp_end_writing(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    # A close with unread octets would reset the connection, and the peer could lose the Terminate: so discard them.
    shutdown(qp.stream.fd, SHUT_WR)
    recv(qp.stream.fd, NULL, TCP_DRAIN, MSG_TRUNC | MSG_DONTWAIT)


cdef void tcp_send_owed(soft_qp *qp) noexcept nogil:
    """Sends the rest of a record, behind which there is nothing to send."""
    assert_held(&qp.lock)
    if tcp_write(qp, NULL, 0) < 0 and errno.errno != EAGAIN:
        qp.tx.broken = True
    stream_want_writable(qp, qp.tx.owed and not qp.tx.broken)


cdef bint tcp_copy_payload(soft_qp *qp, uint32_t index, uint8_t *to) noexcept nogil:
    """Copies the payload of a send queue entry. False: some of its memory may not be read."""
    cdef const soft_swqe *swqe = &qp.sq[index]
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> index * qp.cap.max_send_sge
    cdef soft_mr *mr
    cdef uint32_t i
    cdef int why = 0
    if swqe.flags & IBV_SEND_INLINE:
        memcpy(to, qp.sq_inline + <size_t> index * qp.cap.max_inline_data, swqe.length)
        return True
    for i in range(swqe.num_sge):
        if sges[i].length == 0:
            continue
        mr = mr_get(qp, sges[i].lkey, sges[i].addr, sges[i].length, 0, &why)
        if mr == NULL:
            return False
        memcpy(to, mr_at(mr, sges[i].addr), sges[i].length)
        mr_put(mr)
        to += sges[i].length
    return True


cdef bint tcp_send_short(soft_qp *qp) noexcept nogil:
    """Sends the only waiting request, when it is a short SEND: one FPDU, no batch.

    False: tcp_transmit sends the request, or the rest of an FPDU taken in part by the socket.
    """
    cdef uint8_t fpdu[TX_FRAME_ARENA]
    cdef iovec whole
    cdef tx_cursor *cur = &qp.tx.cursor
    cdef uint32_t index = cur.next_wqe & qp.sq_mask
    cdef soft_swqe *swqe = &qp.sq[index]
    cdef uint32_t size
    cdef ssize_t n
    assert_held(&qp.lock)
    if (cur.next_wqe + 1 != qp.sq_tail or cur.kind != TX_NONE or cur.next_response != qp.responses_tail
            or swqe.opcode != IBV_WR_SEND and swqe.opcode != IBV_WR_SEND_WITH_INV
            or swqe.length > TX_COPY or swqe.length + UNTAGGED_HEADER > qp.tx.mulpdu
            or not tx_may_write(qp) or not tx_may_start(qp, cur)):
        return False
    cur.offset = 0
    tx_put_send_header(fpdu, swqe, cur, True, swqe.length)
    if not tcp_copy_payload(qp, index, fpdu + UNTAGGED_HEADER):
        return False
    size = tx_put_trailer(qp, fpdu, UNTAGGED_HEADER + swqe.length)
    whole.iov_base = fpdu
    whole.iov_len = size
    n = tcp_write(qp, &whole, 1)
    if n <= 0:
        return False
    counter_add(&qp.counters.tx_bytes, <size_t> n)
    cur.response_turn = True
    if n < <ssize_t> size:
        cur.kind = TX_REQUEST
        cur.mulpdu = qp.tx.mulpdu
        qp.tx.frame_sent = <uint32_t> n
        qp.tx.frame_crc = crc32c_add(0xffffffffU, fpdu, size - 4) if qp.crc else 0
        return False
    counter_add(&qp.counters.tx_fpdus, 1)
    counter_add(&qp.counters.sends, 1)
    cur.send_msn += 1
    cur.next_wqe += 1
    swqe.state = SWQE_DONE
    qp_retire(qp)
    domain_posted(qp, WORK_CALL + size)
    return True


cdef void tcp_yield(soft_domain *domain) noexcept nogil:
    """Yields to the peer on the same core, so the peer copies the octets while they are in the cache, and the kernel
    uses their pages again.

    Where other threads want the core, a yield costs a time slice, and this thread serves nobody meanwhile. Then the
    function does not yield for a while.
    """
    cdef int64_t before = now_ns()
    cdef int64_t after
    if before < <int64_t> relaxed_load(&domain.yield_again):
        return
    sched_yield()
    after = now_ns()
    if after - before > TCP_YIELD_LONG:
        relaxed_store(&domain.yield_again, <uint64_t> (after + TCP_YIELD_PAUSE))


cdef bint tcp_transmit_share(soft_qp *qp, uint32_t *share) noexcept nogil:
    """Sends until nothing is left, the socket is full or the share is used up. False: the queue pair is in error."""
    cdef tx_batch b
    cdef int result
    cdef ssize_t n
    assert_held(&qp.lock)
    while share[0]:
        if not tx_execute_local(qp):
            return False
        result = tx_build(qp, &b, TX_FRAMES, share[0])
        if b.nframes == 0:
            tx_release(&b)
            if result != TX_BUILT and result != TX_FULL:
                tx_fault(qp, result)
                return False
            break
        n = tcp_write(qp, b.iov, b.niov)
        tx_release(&b)
        if n < 0 and errno.errno == EFAULT:
            tx_choose(qp, &qp.tx.cursor)
            tx_fault(qp, TX_FAULT_REGION)
            return False
        if n < 0 and errno.errno != EAGAIN and errno.errno != ENOBUFS:
            # The receiving side finds the reason, perhaps in an unread Terminate.
            qp.tx.broken = True
            stream_want_writable(qp, False)
            break
        if n > 0:
            share_spend(share, <size_t> n)
            tx_commit(qp, &b, <size_t> n)
        share_spend(share, WORK_CALL + WORK_FPDU * <uint32_t> b.nframes)
        if n < <ssize_t> b.size or result == TX_BUILT:
            break
        if tcp_of(qp).same_core:
            tcp_yield(qp.send_cq.domain)
    return True


cdef void tcp_transmit(soft_qp *qp) noexcept nogil:
    cdef uint32_t share = qp.tx.share
    cdef bint going_on
    assert_held(&qp.lock)
    if not tx_may_write(qp):
        return
    going_on = tcp_transmit_share(qp, &share)
    qp.tx.used = qp.tx.share - share
    if going_on:
        tx_end_turn(qp)


cdef int tcp_post_send(ibv_qp *ibqp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int result
    lock_ranked(&qp.lock, RANK_QP)
    result = qp_enqueue_sends(qp, &wr)
    if qp.stream.phase == STREAM_OPEN and not qp.tx.blocked and not tcp_send_short(qp) and tx_pending(qp):
        domain_post(qp)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, NULL)
    if result and bad_wr != NULL:
        bad_wr[0] = wr
    return result


# Receiving.


cdef ssize_t tcp_read(soft_qp *qp, rx_target *target) noexcept nogil:
    # Reads with one system call, without a cover.
    cdef stream *cover = &tcp_of(qp).cover
    cdef msghdr message
    cdef ssize_t n
    assert_held(&qp.lock)
    if cover.calls != NULL:
        return cover.calls.receive_into(cover, target.iov, target.niov)
    if target.niov > 1:
        memset(&message, 0, sizeof(message))
        message.msg_iov = target.iov
        message.msg_iovlen = <size_t> target.niov
    while True:
        if target.niov > 1:
            n = recvmsg(qp.stream.fd, &message, MSG_DONTWAIT)
        else:
            n = recv(qp.stream.fd, target.iov[0].iov_base, target.iov[0].iov_len, MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            return n


cdef ssize_t tcp_read_buffer(soft_qp *qp, void *buffer, size_t room) noexcept nogil:
    cdef stream *cover = &tcp_of(qp).cover
    cdef ssize_t n
    assert_held(&qp.lock)
    if cover.calls != NULL:
        return cover.calls.receive(cover, buffer, room)
    while True:
        n = recv(qp.stream.fd, buffer, room, MSG_DONTWAIT)
        if n >= 0 or errno.errno != EINTR:
            return n


cdef bint tcp_receive_all(soft_qp *qp, uint32_t *share) noexcept nogil:
    """The general part of tcp_receive, for any state of the receiver, the end of the stream, and errors."""
    cdef rx_reception r
    cdef uint64_t fpdus
    cdef ssize_t n
    assert_held(&qp.lock)
    while share[0]:
        fpdus = qp.counters.rx_fpdus
        if not rx_prepare(qp, &r, share[0]):
            return False
        n = tcp_read(qp, &r.target)
        share_spend(share, WORK_RENEWAL * <uint64_t> tcp_of(qp).cover.renewed)
        if n <= 0:
            return rx_nothing(qp, &r, n)
        if not rx_take(qp, &r, <size_t> n):
            return False
        share_spend(share, <size_t> n + WORK_CALL + WORK_FPDU * (qp.counters.rx_fpdus - fpdus))
        if n < r.want and not tcp_of(qp).cover.held:
            break
    return True


cdef bint tcp_receive_short(soft_qp *qp, uint32_t *share) noexcept nogil:
    """The rest of tcp_receive, once the queue pair has a receive buffer. False: the queue pair is in error.

    Most reads find nothing, or a short message. So between two FPDUs this function first tries one plain recv into the
    receive buffer. tcp_receive_all does everything else, and takes the octets left by the recv.
    """
    cdef uint32_t room = qp.rx.read_size
    cdef uint64_t fpdus = qp.counters.rx_fpdus
    cdef ssize_t n
    assert_held(&qp.lock)
    # Between two FPDUs, without prediction, no target is known: the receive buffer takes all, without a vector.
    if qp.rx.state == RX_HEADER and qp.rx.start == qp.rx.end and not rx_within_message(qp):
        n = tcp_read_buffer(qp, qp.rx.buffer, room)
        share_spend(share, WORK_RENEWAL * <uint64_t> tcp_of(qp).cover.renewed)
        if n < 0 and errno.errno == EAGAIN:
            return True
        if n > 0:
            counter_add(&qp.counters.rx_bytes, <uint64_t> n)
            qp.rx.start = 0
            qp.rx.end = <uint32_t> n
            if not rx_parse(qp):
                return False
            share_spend(share, <size_t> n + WORK_CALL + WORK_FPDU * (qp.counters.rx_fpdus - fpdus))
            if n < room and not tcp_of(qp).cover.held:
                return True
    return tcp_receive_all(qp, share)


cdef bint tcp_receive_held(soft_qp *qp, uint32_t *share) noexcept nogil:
    """Receives what the cover has taken from the socket already, a record or two: epoll does not see it, and the next
    turn may not come. False: the queue pair is in error."""
    cdef stream *cover = &tcp_of(qp).cover
    cdef uint32_t left = 0
    cdef uint32_t renewed = 0
    cdef bint well = True
    cover.held_only = True
    # A blocked cover gives nothing before the peer reads; nor does the loop go on after a round without any input. Many
    # renewals of keys are an attack on the worker's time: they wait for the next turn.
    while well and cover.held and not cover.blocked and left < RX_READ and renewed < TCP_HELD_RENEWALS:
        left = RX_READ
        well = tcp_receive_all(qp, &left)
        renewed += cover.renewed
        share_spend(share, RX_READ - left + WORK_RENEWAL * <uint64_t> cover.renewed)
    cover.held_only = False
    return well


cdef void tcp_await_room(soft_qp *qp) noexcept nogil:
    """Waits for EPOLLOUT if the cover has left input, to receive again then."""
    cdef const stream *cover = &tcp_of(qp).cover
    cdef bint starved = cover.blocked or cover.held
    assert_held(&qp.lock)
    if qp.stream.starved != starved and qp.stream.fd >= 0:
        qp.stream.starved = starved
        tcp_want_writable(qp)


cdef bint tcp_receive(soft_qp *qp, uint32_t *share) noexcept nogil:
    """Receives until the socket is empty or the share is used up. False: the queue pair is in error."""
    cdef bint well = rx_borrow(qp) and tcp_receive_short(qp, share)
    if well and tcp_of(qp).cover.held:
        well = tcp_receive_held(qp, share)
    if well:
        tcp_await_room(qp)
    rx_return(qp)
    return well


# Progress.


cdef void tcp_ready(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil:
    cdef tcp_stream *tcp
    cdef uint32_t most = domain_share(domain, RX_TURN)
    cdef uint32_t share = most
    assert_domain(domain)
    lock_ranked(&qp.lock, RANK_QP)
    if qp.stream.fd >= 0:
        tcp = tcp_of(qp)
        if events & EPOLLOUT and tcp.start_frame != NULL:
            tcp_send_start(qp)
        elif events & EPOLLOUT and qp.tx.owed and not tx_pending(qp):
            tcp_send_owed(qp)
        if qp.stream.phase == STREAM_REQUESTED:
            if events & ~<uint32_t> EPOLLOUT and mpa_read_reply(qp) < 0:
                qp_lost(qp)
        elif tcp.pausing and now_ns() >= qp.stream.deadline and not mpa_ready(qp):
            qp_lost(qp)
        elif qp.stream.phase == STREAM_OPEN and (events & ~<uint32_t> EPOLLOUT or qp.stream.starved):
            tcp_receive(qp, &share)
            domain_worked(domain, most - share)
        if qp.stream.fd >= 0 and (events & EPOLLOUT or not qp.tx.blocked) and tx_pending(qp):
            domain_transmit(domain, qp)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, domain)


cdef bint tcp_deadline(soft_qp *qp) noexcept nogil:
    assert_held(&qp.lock)
    return qp.fabric_state == NULL or not tcp_of(qp).pausing or mpa_ready(qp)


cdef void tcp_progress(soft_domain *domain, bint waits) noexcept nogil:
    """Serves the streams of the domain: tries all if they are few, which is cheaper than asking epoll. In a joined
    channel the program hands in the events, and the function does nothing.
    """
    cdef bint few = domain.nlinks <= TCP_TRY
    cdef soft_link *link = domain.links
    cdef uint32_t coming = domain.nlinks
    cdef uint32_t busy = 0
    cdef int64_t left
    assert_domain(domain)
    if domain.mark:
        return
    while few and link != NULL:
        few = not relaxed_load(&link.qp.tx.blocked)
        link = link.next
    if not few:
        domain.busy = max(domain_poll_descriptors(domain), <uint32_t> 1)
        return
    link = domain.links
    while link != NULL:
        # The stream has the whole turn if the remaining streams had nothing to do in the last pass.
        domain.coming = min(coming, domain.busy)
        left = domain.left
        tcp_ready(link.qp, EPOLLIN, domain)
        busy += domain.left < left
        coming -= 1
        link = link.next
    domain.coming = 1
    domain.busy = max(busy, <uint32_t> 1)


cdef bint tcp_serve(soft_domain *domain, bint arm) noexcept nogil:
    """The epoll set is level-triggered: it is always armed."""
    assert_domain(domain)
    return domain_poll_descriptors(domain) != 0


cdef soft_device tcp_device
cdef soft_fabric tcp_fabric


cdef void tcp_fill_table() noexcept nogil:
    fabric_device(&tcp_device.ibv, b"soft_iw0", IBV_NODE_RNIC)
    tcp_fabric.device = &tcp_device.ibv
    tcp_fabric.batch = TCP_BATCH
    tcp_fabric.post_send = tcp_post_send
    tcp_fabric.poll_cq = soft_poll_cq
    tcp_fabric.alloc_memory = mr_alloc_memory
    tcp_fabric.free_memory = mr_free_memory
    tcp_fabric.progress = tcp_progress
    tcp_fabric.serve = tcp_serve
    tcp_fabric.ready = tcp_ready
    tcp_fabric.transmit = tcp_transmit
    tcp_fabric.write = tcp_write
    tcp_fabric.want_writable = tcp_want_writable
    tcp_fabric.measure = tcp_measure
    tcp_fabric.deadline = tcp_deadline
    tcp_fabric.end_writing = tcp_end_writing
    tcp_fabric.close = tcp_close
    tcp_fabric.free = tcp_free

# soft_shm: a queue pair's stream; see stream.pxd.

cdef enum:
    WORK_ROUND = 2048                # work to build or parse octets for the ring at a time


cdef inline shm_stream *shm_of(const soft_qp *qp) noexcept nogil:
    return <shm_stream *> qp.fabric_state


# Attachment and end.


cdef bint shm_open_stream(soft_qp *qp, const shm_page *page, const shm_generation *registry) noexcept nogil:
    """Opens the stream on the peer's memory. False: no memory."""
    cdef shm_stream *shm = shm_of(qp)
    if not stream_open(qp):
        return False
    shm.their_ring = <const uint8_t *> page + SHM_RING_AT
    shm.registry = registry
    # Last: readers without the lock read `theirs` first, and then the fields above.
    store_release_pointer(&shm.theirs, page)
    qp.tx.allowed = True
    return True


cdef bint shm_take_ring(soft_qp *qp, void *ring) noexcept nogil:
    """Makes the peer's ring readable. With limits.paid, notes its present part. False: seals, size or pages are not as
    required."""
    cdef shm_stream *shm = shm_of(qp)
    cdef int fd = shm.reader.fds[0]
    shm.ring_present = SHM_SIZE
    if shm_context_of(qp.context).limits.paid:
        if not shm_has_size(fd, SHM_SIZE) or not shm_is_sealed(fd):
            return False
        shm.ring_present = <uint32_t> shm_present(ring, 0, SHM_SIZE)
    # Keep the extra page behind the ring, with the same rights, for later calls of shm_present.
    return shm.ring_present > 0 and mprotect(ring, SHM_SIZE + PAGE_SIZE, PROT_READ) == 0


cdef bint shm_take_registry(soft_qp *qp, void *registry) noexcept nogil:
    """Makes the peer's registry readable. False: its seals, size or pages are not as required."""
    cdef int fd = shm_of(qp).reader.fds[1]
    if shm_context_of(qp.context).limits.paid and (
            not shm_has_size(fd, SHM_REGISTRY_SIZE) or not shm_is_sealed(fd)
            or shm_present(registry, 0, SHM_REGISTRY_SIZE) != SHM_REGISTRY_SIZE):
        return False
    return mprotect(registry, SHM_REGISTRY_SIZE, PROT_READ) == 0


cdef bint shm_hello(soft_qp *qp, const shm_record *record) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef const int *fds = shm.reader.fds
    cdef int rings = 1 if record.access & SHM_HAS_BELL else 0
    cdef void *page
    cdef void *registry
    assert_held(&qp.lock)
    if (shm.theirs != NULL or shm.reader.nfds != 2 + rings or record.version != SHM_VERSION
            or record.ring_size != SHM_RING_SIZE or qp.stream.phase != STREAM_REQUESTED
            or not shm_mappable(fds[0], SHM_SIZE) or not shm_mappable(fds[1], SHM_REGISTRY_SIZE)):
        return False
    page = shm_map(fds[0], SHM_SIZE)
    registry = shm_map(fds[1], SHM_REGISTRY_SIZE)
    if page == NULL or registry == NULL:
        shm.broken = b"the peer's memory could not be mapped"
    if (page == NULL or registry == NULL or not shm_take_ring(qp, page) or not shm_take_registry(qp, registry)
            or not shm_open_stream(qp, <const shm_page *> page, <const shm_generation *> registry)):
        if page != NULL:
            shm_unmap(page, SHM_SIZE)
        if registry != NULL:
            shm_unmap(registry, SHM_REGISTRY_SIZE)
        return False
    if rings:
        shm.reader.nfds -= 1
        bell_take(qp, fds[2])
    shm_close_mapped(&shm.reader)
    shm.answers = record.access & SHM_ANSWERS
    if qp.ord > record.ird:
        qp.ord = record.ird
    return True


cdef void shm_unmap_stream(shm_stream *shm) noexcept nogil:
    """Unmaps both ends' memory, and the peer's registry. No thread reads them any more."""
    if shm.ours != NULL:
        munmap(shm.ours, SHM_SIZE)
    if shm.theirs != NULL:
        shm_unmap(<void *> shm.theirs, SHM_SIZE)
        shm_unmap(<void *> shm.registry, SHM_REGISTRY_SIZE)
    shm.ours = NULL
    shm.theirs = NULL


cdef void shm_close(soft_qp *qp) noexcept nogil:
    """Ends the stream. Its memory stays mapped until the next attachment or the queue pair's end, since other threads
    may still read there.
    """
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    store_release(&shm.ours.closed, 1)
    qp.stream.fault = shm.broken
    closer_forget(qp)
    shm_drop_fds(qp)
    bell_close(qp)
    shm_close_windows(qp)
    shm_release_regions(shm)
    # The peer notices the end now, even if the socket is closed much later.
    shutdown(qp.stream.fd, SHUT_RDWR)
    closer_take_fd(shm_context_of(qp.context), qp.stream.fd)


cdef void shm_free(soft_qp *qp) noexcept nogil:
    """The fabric's `free`: unmaps the stream's memory, and frees the shm_stream. No thread uses them any more."""
    shm_unmap_stream(shm_of(qp))
    free(qp.fabric_state)


cdef bint shm_is_unix_stream(int fd) noexcept nogil:
    """Whether fd is a UNIX stream socket. False with errno."""
    cdef int family = 0
    cdef int kind = 0
    cdef socklen_t size = sizeof(int)
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) < 0
            or getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) < 0):
        return False
    if family != AF_UNIX or kind != SOCK_STREAM:
        errno.errno = EINVAL
        return False
    return True


cdef int shm_introduce(soft_qp *qp, int fd) noexcept nogil:
    """Sends our HELLO. From now on the peer's HELLO is due (stream_await_peer). 0 or an errno value."""
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_record hello
    cdef int fds[SHM_FDS]
    cdef int error = 0
    cdef int i
    assert_held(&qp.lock)
    shm.ours = <shm_page *> shm_make(b"rmemcached ring", SHM_SIZE, &fds[0])
    if shm.ours == NULL:
        return errno.errno
    shm.our_ring = <uint8_t *> shm.ours + SHM_RING_AT
    # A peer with soft_shm_limits.paid needs a page touched by this end.
    relaxed_store(&shm.ours.closed, 0)
    fds[1] = shm_context_of(qp.context).registry_fd
    memset(&hello, 0, sizeof(hello))
    hello.kind = SHM_HELLO
    hello.version = SHM_VERSION
    hello.ring_size = SHM_RING_SIZE
    hello.ird = qp.ird
    hello.ord = qp.ord
    hello.access = SHM_ANSWERS | SHM_HAS_BELL
    if not stream_buffers(qp):
        error = ENOMEM
    relaxed_store(&qp.stream.fd, fd)
    stream_await_peer(qp)
    for i in range(qp.ndomains):
        if not error and not stream_watch(qp, &qp.links[i]):
            error = errno.errno
    if not error:
        fds[2] = bell_make(qp)
        error = errno.errno if fds[2] < 0 else 0
    if not error and not shm_send_record(qp, &hello, fds, SHM_FDS):
        error = errno.errno
    close(fds[0])
    if error:
        bell_close(qp)
    return error


cdef int soft_shm_attach(ibv_qp *ibqp, int fd, uint16_t ird, uint16_t ord) noexcept nogil:
    cdef soft_qp *qp = <soft_qp *> ibqp
    cdef int i, error
    if not shm_is_unix_stream(fd):
        return -1
    if qp.fabric == &shm_fabric and closer_is_stuck(shm_context_of(qp.context)):
        errno.errno = EBUSY
        return -1
    if stream_begin(qp, &shm_fabric) < 0:
        return -1
    stream_join(qp)
    for i in range(qp.ndomains):
        domain_lock(qp.domains[i])
        shm_leave(qp.domains[i], qp)
        domain_unlock(qp.domains[i])
    # No thread reads the rings of an earlier stream any more.
    lock_ranked(&qp.lock, RANK_QP)
    if qp.fabric_state == NULL:
        qp.fabric_state = malloc(sizeof(shm_stream))
        if qp.fabric_state == NULL:
            return stream_undo(qp, ENOMEM)
    else:
        shm_unmap_stream(shm_of(qp))
    memset(qp.fabric_state, 0, sizeof(shm_stream))
    shm_of(qp).bell = shm_of(qp).peer_bell = -1
    if qp.stream.phase != STREAM_ATTACHING:
        return stream_undo(qp, EINVAL)
    qp.ird = stream_depth(ird, qp.attr.max_dest_rd_atomic)
    qp.ord = stream_depth(ord, qp.attr.max_rd_atomic)
    error = shm_introduce(qp, fd)
    if error:
        return stream_undo(qp, error)
    unlock_ranked(&qp.lock, RANK_QP)
    return 0


# Sending.


cdef void shm_measure(soft_qp *qp) noexcept nogil:
    qp.tx.mulpdu = ULPDU_MAX
    qp.tx.batch_bytes = TX_BYTES


cdef void shm_note_writes(soft_qp *qp, const tx_batch *b, size_t written) noexcept nogil:
    """Sets shm.write_tail if a WRITE is among the first `written` octets of the batch, which are in the ring now.

    shm_direct_window compares write_tail with the peer's head, so a copy through a window does not overtake the WRITE.
    The function takes shm.tail, an upper bound for the end of the WRITE: other frames may lie behind the WRITE. In this
    case a later request may go through the ring although its copy would overtake nothing.
    """
    cdef shm_stream *shm = shm_of(qp)
    cdef const tx_frame *frame
    cdef int i
    for i in range(b.nframes):
        frame = &b.frames[i]
        if (frame.before.kind == TX_REQUEST
                and qp.sq[frame.before.next_wqe & qp.sq_mask].opcode == IBV_WR_RDMA_WRITE):
            shm.write_tail = shm.tail
        if written < frame.size:
            return
        written -= frame.size


cdef bint shm_transmit_share(soft_qp *qp, uint32_t *share) noexcept nogil:
    """Sends until nothing is left, the ring is full or the share is used up. False: the queue pair is in error."""
    cdef shm_stream *shm = shm_of(qp)
    cdef tx_batch b
    cdef int result
    cdef ssize_t n
    assert_held(&qp.lock)
    relaxed_store(&shm.unfinished, False)
    while True:
        if not tx_execute_local(qp) or not shm_execute_direct(qp, share):
            return False
        if not tx_pending(qp):
            break
        if share[0] == 0:
            relaxed_store(&shm.unfinished, True)
            shm_tell_rest(qp)
            break
        result = tx_build(qp, &b, TX_FRAMES, share[0])
        if b.nframes == 0:
            tx_release(&b)
            if result != TX_BUILT and result != TX_FULL:
                tx_fault(qp, result)
                return False
            continue
        n = shm_send(qp, b.iov, b.niov)
        tx_release(&b)
        if n < 0 and errno.errno != EAGAIN:
            qp.tx.broken = True
            stream_want_writable(qp, False)
            break
        if n > 0:
            shm_note_writes(qp, &b, <size_t> n)
            share_spend(share, <size_t> n)
            tx_commit(qp, &b, <size_t> n)
        share_spend(share, WORK_ROUND + WORK_FPDU * <uint32_t> b.nframes)
        if n < <ssize_t> b.size and not shm_wait_for_space(qp):
            break
    return True


cdef void shm_transmit(soft_qp *qp) noexcept nogil:
    cdef uint32_t share = qp.tx.share
    cdef bint going_on
    assert_held(&qp.lock)
    if not tx_may_write(qp):
        return
    going_on = shm_transmit_share(qp, &share)
    qp.tx.used = qp.tx.share - share
    if going_on:
        tx_end_turn(qp)


# Receiving.


cdef bint shm_receive_all(soft_qp *qp, uint32_t *share) noexcept nogil:
    """The loop of shm_receive. Gives the queue pair a receive buffer when needed; the caller calls rx_return."""
    cdef shm_stream *shm = shm_of(qp)
    cdef rx_reception r
    cdef uint64_t head, fpdus, word
    cdef ssize_t n
    assert_held(&qp.lock)
    while share[0]:
        if not shm_receive_messages(qp, share):
            return False
        if share[0] == 0:
            break
        if shm.chunk_left == 0 and not shm_cell_ready(shm, &word):
            # Most often there are only messages.
            break
        if not rx_borrow(qp) or not rx_prepare(qp, &r, share[0]):
            return False
        head = shm.head
        fpdus = qp.counters.rx_fpdus
        n = shm_recv(qp, r.target.iov, r.target.niov)
        if n < 0:
            return rx_nothing(qp, &r, n)
        if not rx_take(qp, &r, <size_t> n):
            return False
        # shm_recv stops before a message. The next turn of the loop receives the message. A cell with few octets takes
        # nearly as long as a cell with many.
        share_spend(share, <size_t> n + WORK_FPDU * (qp.counters.rx_fpdus - fpdus) + WORK_ROUND)
        if shm.head - head > <size_t> n:
            share_spend(share, 4 * (shm.head - head - <size_t> n))
    return True


cdef inline bint shm_receive(soft_qp *qp, uint32_t *share) noexcept nogil:
    """Receives until the ring is empty or the share is used up. False: the queue pair is in error."""
    cdef bint well = shm_receive_all(qp, share)
    rx_return(qp)
    return well


cdef void shm_progress_locked(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef uint32_t most = domain_share(domain, RX_TURN)
    cdef uint32_t share = most
    cdef uint64_t word
    cdef bint closing
    assert_domain(domain)
    assert_held(&qp.lock)
    while qp.stream.fd >= 0:
        if shm.arrival.looking and domain.aside > 0:
            shm_look_on(qp, &share)
        # An offer takes more work than a share. So only few queue pairs have an offer examined in a turn, but all are
        # served.
        if (domain.aside > 0 and (socket or shm.theirs != NULL and shm_may_read(shm))
                or socket and shm.theirs == NULL):
            shm_read_records(qp, &share)
        socket = False
        closing = shm.eof
        if qp.stream.phase == STREAM_OPEN:
            closing = closing or load_acquire(&shm.theirs.closed) != 0
            if not shm_receive(qp, &share):
                break
            if tx_pending(qp):
                domain_transmit(domain, qp)
                if qp.stream.fd < 0:
                    break
            # First this end receives all octets that the peer wrote before it closed.
            closing = closing and not shm_cell_ready(shm, &word)
        if closing or shm.broken:
            qp_lost(qp)
            break
        if (share == 0 or relaxed_load(&shm.unfinished) or shm.arrival.looking
                or shm.theirs != NULL and shm_may_read(shm)):
            shm_tell_rest(qp)
            break
        if qp.stream.phase != STREAM_OPEN or not shm_has_waiter(qp) or not shm_request_wakeup(qp):
            break
    domain.aside -= shm.excess
    shm.excess = 0
    domain_worked(domain, most - share)


cdef void shm_progress(soft_qp *qp, bint socket, soft_domain *domain) noexcept nogil:
    lock_ranked(&qp.lock, RANK_QP)
    shm_progress_locked(qp, socket, domain)
    unlock_ranked(&qp.lock, RANK_QP)
    qp_update_fds(qp, domain)


cdef void shm_note_end(soft_qp *qp) noexcept nogil:
    """The peer has gone: a held stream is at its end, since records in its socket matter no more."""
    cdef shm_stream *shm
    lock_ranked(&qp.lock, RANK_QP)
    if qp.stream.fd >= 0:
        shm = shm_of(qp)
        shm.eof = shm.eof or load_acquire(&shm.hold.held) != 0
    unlock_ranked(&qp.lock, RANK_QP)


cdef void shm_descriptor_ready(soft_qp *qp, uint32_t events, soft_domain *domain) noexcept nogil:
    """The fabric's `ready`: a woken stream is polled from now on."""
    assert_domain(domain)
    if events & (EPOLLHUP | EPOLLERR):
        shm_note_end(qp)
    shm_start_polling(domain, qp)
    shm_progress(qp, True, domain)


cdef soft_device shm_device
cdef soft_fabric shm_fabric


cdef void shm_fill_table() noexcept nogil:
    fabric_device(&shm_device.ibv, b"soft_shm0", IBV_NODE_CA)
    shm_fabric.device = &shm_device.ibv
    shm_fabric.batch = PROGRESS_BATCH
    shm_fabric.open_context = shm_open_context
    shm_fabric.close_context = shm_close_context
    shm_fabric.post_send = shm_post_send
    shm_fabric.poll_cq = shm_poll_cq
    shm_fabric.alloc_memory = shm_alloc_memory
    shm_fabric.free_memory = shm_free_memory
    shm_fabric.expose = shm_expose
    shm_fabric.withdraw = shm_withdraw
    shm_fabric.renew = shm_renew
    shm_fabric.release = shm_forget_region
    shm_fabric.open_domain = shm_open_domain
    shm_fabric.close_domain = shm_close_domain
    shm_fabric.progress = shm_domain_progress
    shm_fabric.serve = shm_serve
    shm_fabric.arm = shm_arm
    shm_fabric.ready = shm_descriptor_ready
    shm_fabric.rung = shm_rung
    shm_fabric.leave = shm_leave
    shm_fabric.polls = shm_polls
    shm_fabric.transmit = shm_transmit
    shm_fabric.write = shm_send
    shm_fabric.measure = shm_measure
    shm_fabric.is_direct = shm_is_direct
    shm_fabric.named_by_peer = shm_offer
    shm_fabric.close = shm_close
    shm_fabric.wakeups = shm_wakeups
    shm_fabric.written = shm_written
    shm_fabric.free = shm_free

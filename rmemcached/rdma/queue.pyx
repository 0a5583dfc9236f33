cdef enum:
    SENDS_SILENT = SEND_BUFFERS // 2 - 1     # silent SENDs in a row


cdef inline uint32_t completions_of(const rdma_device *dev) noexcept nogil:
    """Completions of a queue pair at most: for all posted work requests, and for the end of a queue pair with shared
    receives."""
    return dev.limits.credits + SEND_DEPTH + 1


cdef ibv_qp *open_pair(rdma_queue *q, ibv_srq *srq) noexcept nogil:
    """Makes the queue pair. srq: its shared receives, or NULL. No device reports its limit of inline data, so the first
    queue pair tries smaller and smaller values."""
    cdef rdma_device *dev = q.t.dev
    cdef ibv_qp_init_attr init
    cdef ibv_qp *qp = NULL
    cdef uint32_t wanted = <uint32_t>relaxed_load(&dev.inline_data)
    while True:
        memset(&init, 0, sizeof(init))
        init.send_cq = q.cq.ibv
        init.recv_cq = q.cq.ibv
        init.srq = srq
        init.qp_type = IBV_QPT_RC
        init.cap.max_send_wr = SEND_DEPTH
        init.cap.max_recv_wr = dev.limits.credits
        init.cap.max_send_sge = max(dev.read_sges, dev.write_sges)
        init.cap.max_recv_sge = 2 if q.compact else 1
        init.cap.max_inline_data = wanted
        qp = dev.provider.create_qp(dev.pd, &init)
        if qp != NULL or wanted == 0:
            break
        wanted = wanted // 2 if wanted > INLINE_LEAST else 0
    if qp != NULL:
        relaxed_store(&dev.inline_data, wanted)
        q.inline_data = min(init.cap.max_inline_data, wanted)
    return qp


cdef bint own_receives(rdma_queue *q) noexcept nogil:
    """Makes memory for the queue pair's own receives. False: out of resources."""
    cdef rdma_thread *t = q.t
    cdef rdma_device *dev = t.dev
    cdef void *buffer = NULL
    cdef size_t size
    q.compact = 0 if dev.transport.pins else COMPACT
    size = <size_t>dev.limits.credits * (dev.limits.msgsize + q.compact)
    # With page alignment the first octets would need a page of their own. So they share a page with other memory.
    if posix_memalign(&buffer, 64, size) != 0:
        return False
    q.buffer = <char *>buffer
    q.mr = dev.provider.reg_mr(dev.pd, buffer, size, IBV_ACCESS_LOCAL_WRITE)
    if q.mr == NULL:
        return False
    counter_add(&t.counters.registrations, 1)
    return True


cdef bint queue_create(rdma_queue *q, rdma_thread *t, unsigned int peer_credits,
                       unsigned int peer_msgsize) noexcept nogil:
    cdef rdma_device *dev = t.dev
    cdef ibv_srq *srq = NULL
    cdef int i
    assert_owner(t.worker.owner)
    q.t = t
    q.send_msgsize = min(peer_msgsize, dev.limits.msgsize)
    q.tx_credits = peer_credits
    q.rx_credits = dev.limits.credits
    for i in range(SEND_BUFFERS):
        q.wrs[i].buffer = NO_BUFFER
    for i in range(BULK_DEPTH):
        q.free_wr[i] = <uint16_t>(SEND_DEPTH - 1 - i)
    q.free_bulk = BULK_DEPTH
    messages_enter(t)
    q.entered = True
    if dev.soft:
        srq = receives_reserve(t, dev.limits.credits)
        q.shared = srq != NULL
    # Without room in the shared queue (with a large -o rdma_credits), the queue pair has receives of its own.
    if not q.shared and not own_receives(q):
        return False
    # Completions of destroyed queue pairs must be polled before the new queue pair exists: see rdma/completions.
    completions_take(t, UINT_MAX)
    q.cq = completions_reserve(t, completions_of(dev))
    if q.cq == NULL:
        return False
    q.qp = open_pair(q, srq)
    if q.qp == NULL:
        return False
    if dev.soft:
        soft_share_counters(q.qp, &t.soft)
    if q.shared:
        soft_qp_limit(q.qp, dev.limits.credits, RECV_WR | NO_RECEIVE)
    counter_add(&t.counters.queue_pairs, 1)
    counter_add(&t.counters.total_queue_pairs, 1)
    return True


cdef void take_back_receives(rdma_queue *q) noexcept nogil:
    """Polls the last messages in shared receives, which would be lost with the queue pair. The connection then drops
    the messages, and posts the receives anew."""
    cdef ibv_qp_attr attr
    memset(&attr, 0, sizeof(attr))
    attr.qp_state = IBV_QPS_ERR
    q.t.dev.provider.modify_qp(q.qp, &attr, IBV_QP_STATE)
    completions_take(q.t, UINT_MAX)


cdef void queue_stop(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    cdef int i
    assert_owner(t.worker.owner)
    if q.qp != NULL:
        if q.shared:
            take_back_receives(q)
        t.dev.provider.destroy_qp(q.qp)
        q.qp = NULL
        counter_add(&t.counters.queue_pairs, <uint64_t>-1)
    for i in range(SEND_DEPTH):
        queue_release_item(q, &q.wrs[i])
    for i in range(SEND_BUFFERS):
        free_buffer(q, &q.wrs[i])


cdef void queue_free(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    assert_that(q.qp == NULL)
    if q.cq != NULL:
        completions_release(t, q.cq, completions_of(t.dev))
    if q.mr != NULL:
        t.dev.provider.dereg_mr(q.mr)
        counter_add(&t.counters.registrations, <uint64_t>-1)
    free(q.buffer)
    if q.shared:
        receives_release(t, t.dev.limits.credits)
    if q.entered:
        messages_leave(t)


cdef void queue_fail(rdma_queue *q, const char *operation, ibv_wc_status status) noexcept nogil:
    if not q.failed:
        q.failed = True
        q.failure = operation
        q.failure_status = status


# ---- messages --------------------------------------------------------------------------------------------------------

cdef inline char *compact_buffer(rdma_queue *q, unsigned int index) noexcept nogil:
    return q.buffer + <size_t>index * q.compact


cdef inline char *receive_buffer(rdma_queue *q, unsigned int index) noexcept nogil:
    assert_that(index < q.t.dev.limits.credits)
    return compact_buffer(q, q.t.dev.limits.credits) + <size_t>index * q.t.dev.limits.msgsize


cdef inline char *queue_message(rdma_queue *q, unsigned int index, size_t length) noexcept nogil:
    if q.shared:
        return receives_message(q.t, index)
    if length <= q.compact:
        return compact_buffer(q, index)
    # The device has put the rest of the message where it belongs, behind the room left for the first octets.
    memcpy(receive_buffer(q, index), compact_buffer(q, index), q.compact)
    return receive_buffer(q, index)


cdef inline char *queue_payload(rdma_queue *q, uint32_t buffer) noexcept nogil:
    return sends_buffer(q.t, buffer) + MESSAGE_HEADER


cdef inline bint post_receive(rdma_queue *q, unsigned int index) noexcept nogil:
    cdef ibv_sge sges[2]
    cdef ibv_recv_wr wr
    cdef ibv_recv_wr *bad
    sges[0].addr = <uint64_t><uintptr_t>compact_buffer(q, index)
    sges[0].length = q.compact
    sges[0].lkey = q.mr.lkey
    sges[1].addr = <uint64_t><uintptr_t>(receive_buffer(q, index) + q.compact)
    sges[1].length = q.t.dev.limits.msgsize - q.compact
    sges[1].lkey = q.mr.lkey
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = RECV_WR | index
    wr.sg_list = &sges[0] if q.compact else &sges[1]
    wr.num_sge = 2 if q.compact else 1
    return ibv_post_recv(q.qp, &wr, &bad) == 0


cdef bint queue_post_receives(rdma_queue *q) noexcept nogil:
    cdef unsigned int i
    if q.shared:
        return True
    for i in range(q.t.dev.limits.credits):
        if not post_receive(q, i):
            return False
    return True


cdef void queue_give_back(rdma_queue *q, unsigned int index) noexcept nogil:
    # A shared receive belongs to all queue pairs, and is posted even if this queue pair has failed.
    cdef bint posted = q.shared and receives_post(q.t, index)
    if q.closing or q.failed:
        return
    if not q.shared:
        posted = post_receive(q, index)
    elif posted:
        soft_qp_allow(q.qp, 1)
    if posted:
        q.owed += 1
    else:
        queue_fail(q, NULL, IBV_WC_SUCCESS)


cdef inline bint queue_has_buffer(rdma_queue *q) noexcept nogil:
    """Whether the send queue has an entry for a further SEND, and the worker a buffer."""
    if q.sends_posted - q.sends_done >= SEND_BUFFERS:
        return False
    if sends_available(q.t):
        return True
    queue_fail(q, b"no memory for messages", IBV_WC_SUCCESS)
    return False


cdef inline bint queue_may_send(rdma_queue *q) noexcept nogil:
    if not queue_has_buffer(q):
        return False
    if q.tx_credits >= 2:
        return True
    counter_add(&q.t.counters.credit_waits, 1)
    return False


cdef inline uint32_t queue_take_buffer(rdma_queue *q) noexcept nogil:
    assert_that(q.sends_posted - q.sends_done < SEND_BUFFERS)
    return sends_take(q.t)


cdef inline void queue_send(rdma_queue *q, uint8_t kind, uint32_t lane, uint32_t used, uint32_t buffer,
                            size_t payload) noexcept nogil:
    cdef char *message = sends_buffer(q.t, buffer)
    cdef uint32_t slot = q.sends_posted % SEND_BUFFERS
    cdef unsigned int flags = IBV_SEND_SOLICITED
    cdef ibv_send_wr *wr
    assert_that(q.tx_credits > 0 and MESSAGE_HEADER + payload <= q.send_msgsize)
    assert_that(q.rx_credits + q.owed <= q.t.dev.limits.credits)
    q.sends_posted += 1
    if MESSAGE_HEADER + payload <= q.inline_data:
        flags |= IBV_SEND_INLINE
    if (q.sends_posted - q.sends_told > SENDS_SILENT
            or q.t.dev.soft and not flags & IBV_SEND_INLINE):
        flags |= IBV_SEND_SIGNALED
        q.sends_told = q.sends_posted
    put_message_header(message, kind, <uint16_t>q.owed, <uint16_t>used, <uint16_t>lane)
    wr = thread_chain(q.t, slot, flags)
    add_element(wr, message, MESSAGE_HEADER + payload, sends_key(q.t, buffer))
    wr.opcode = IBV_WR_SEND
    q.wrs[slot].kind = WR_SEND
    q.wrs[slot].buffer = buffer
    q.rx_credits += q.owed
    q.owed = 0
    q.tx_credits -= 1
    counter_add(&q.t.counters.sends, 1)
    counter_add(&q.t.counters.send_bytes, payload)


cdef inline void queue_return_credits(rdma_queue *q) noexcept nogil:
    if q.owed * 2 < q.t.dev.limits.credits or q.tx_credits == 0 or q.failed or q.closing:
        return
    if queue_has_buffer(q):
        queue_send(q, MESSAGE_CREDIT, 0, 0, queue_take_buffer(q), 0)


# ---- READ and WRITE --------------------------------------------------------------------------------------------------

cdef inline bint queue_may_read(const rdma_queue *q) noexcept nogil:
    return q.free_bulk != 0 and q.read_bytes < READ_AHEAD


cdef inline bint queue_may_write(const rdma_queue *q) noexcept nogil:
    return q.free_bulk != 0 and q.write_bytes < WRITE_AHEAD


cdef size_t queue_write_length(const rdma_queue *q, size_t left) noexcept nogil:
    """soft_iw receives frames of the same size fastest: a short frame in the middle of a value costs its receiver,
    which has planned for whole frames, some 20 us."""
    cdef uint32_t unit
    if left <= BULK_PIECE or q.t.dev.transport.write_unit == NULL:
        return min(left, <size_t>BULK_PIECE)
    unit = q.t.dev.transport.write_unit(q.qp)
    return BULK_PIECE - BULK_PIECE % unit if unit else BULK_PIECE


cdef inline size_t *bytes_under_way(rdma_queue *q, wr_kind kind) noexcept nogil:
    return &q.read_bytes if kind == WR_READ else &q.write_bytes


cdef inline unsigned int take_bulk(rdma_queue *q) noexcept nogil:
    """Takes the index of a free work request for a READ, a WRITE or a probe."""
    assert_that(q.free_bulk > 0)
    if q.free_bulk == BULK_DEPTH:
        q.bulk_moved = store_time(q.t.worker.store)
    q.free_bulk -= 1
    # The work request is signalled, and so confirms all earlier SENDs.
    q.wrs[q.free_wr[q.free_bulk]].sends = q.sends_posted
    q.sends_told = q.sends_posted
    return q.free_wr[q.free_bulk]


cdef rdma_wr *queue_post_bulk(rdma_queue *q, wr_kind kind, const iovec *iov, int count, uint64_t remote,
                              uint32_t rkey) noexcept nogil:
    cdef rdma_device *dev = q.t.dev
    cdef ibv_send_wr *wr
    cdef rdma_wr *entry
    cdef unsigned int index
    cdef int i
    for i in range(count):
        if extent_of(dev, iov[i].iov_base) == NULL:
            queue_fail(q, b"item memory is not registered for this device", IBV_WC_SUCCESS)
            return NULL
    index = take_bulk(q)
    entry = &q.wrs[index]
    entry.kind = kind
    entry.length = 0
    entry.lane = NULL
    entry.item = NULL
    wr = thread_chain(q.t, index, IBV_SEND_SIGNALED)
    wr.opcode = IBV_WR_RDMA_READ if kind == WR_READ else IBV_WR_RDMA_WRITE
    wr.wr.rdma.remote_addr = remote
    wr.wr.rdma.rkey = rkey
    for i in range(count):
        add_element(wr, iov[i].iov_base, iov[i].iov_len, extent_of(dev, iov[i].iov_base).lkey)
        entry.length += <uint32_t>iov[i].iov_len
    assert_that(entry.length <= BULK_PIECE)
    bytes_under_way(q, kind)[0] += entry.length
    return entry


cdef void queue_probe(rdma_queue *q) noexcept nogil:
    cdef unsigned int index = take_bulk(q)
    cdef ibv_send_wr *wr = thread_chain(q.t, index, IBV_SEND_SIGNALED)
    wr.opcode = IBV_WR_RDMA_WRITE
    q.wrs[index].kind = WR_PROBE


cdef inline void free_buffer(rdma_queue *q, rdma_wr *entry) noexcept nogil:
    """Gives back a SEND's buffer, unless done before."""
    if entry.buffer != NO_BUFFER:
        sends_give(q.t, entry.buffer)
        entry.buffer = NO_BUFFER


cdef inline void queue_ring_doorbell(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    cdef ibv_send_wr *bad
    cdef unsigned int i
    cdef unsigned int n = t.nchain
    if n == 0:
        return
    t.nchain = 0
    counter_add(&t.counters.doorbells, 1)
    if ibv_post_send(q.qp, t.chain, &bad) != 0:
        queue_fail(q, NULL, IBV_WC_SUCCESS)
    for i in range(n):
        if t.chain[i].send_flags & IBV_SEND_INLINE:
            free_buffer(q, &q.wrs[t.chain[i].wr_id])


# ---- completions -----------------------------------------------------------------------------------------------------

cdef inline rdma_wr *queue_completed(rdma_queue *q, unsigned int index) noexcept nogil:
    cdef rdma_wr *entry = &q.wrs[index]
    cdef uint32_t done = entry.sends
    assert_that(index < SEND_DEPTH and (entry.kind == WR_SEND) == (index < SEND_BUFFERS))
    if entry.kind == WR_SEND:
        # The index names the SEND: at most SEND_BUFFERS are under way.
        done = q.sends_done + (index - q.sends_done) % SEND_BUFFERS + 1
    while <int32_t>(done - q.sends_done) > 0:
        free_buffer(q, &q.wrs[q.sends_done % SEND_BUFFERS])
        q.sends_done += 1
    assert_that(<int32_t>(q.sends_posted - q.sends_done) >= 0)
    if entry.kind != WR_SEND:
        if entry.kind != WR_PROBE:
            assert_that(bytes_under_way(q, entry.kind)[0] >= entry.length)
            bytes_under_way(q, entry.kind)[0] -= entry.length
        assert_that(q.free_bulk < BULK_DEPTH)
        q.free_wr[q.free_bulk] = <uint16_t>index
        q.free_bulk += 1
        q.bulk_moved = store_time(q.t.worker.store)
    return entry


cdef inline void queue_release_item(rdma_queue *q, rdma_wr *entry) noexcept nogil:
    if entry.kind == WR_WRITE and entry.item != NULL:
        item_remove(q.t.worker.store, entry.item)
        entry.item = NULL

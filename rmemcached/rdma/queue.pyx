cdef bint queue_create(rdma_queue *q, rdma_thread *t, void *context, unsigned int peer_credits,
                       unsigned int peer_msgsize) noexcept nogil:
    cdef rdma_device *dev = t.dev
    cdef ibv_qp_init_attr init
    cdef size_t size
    cdef void *buffer = NULL
    cdef int i
    assert_owner(t.worker.owner)
    q.t = t
    q.send_msgsize = min(peer_msgsize, dev.limits.msgsize)
    q.tx_credits = peer_credits
    q.rx_credits = dev.limits.credits
    for i in range(SEND_BUFFERS):
        q.free_send[i] = <uint16_t>(SEND_BUFFERS - 1 - i)
    q.free_sends = SEND_BUFFERS
    for i in range(BULK_DEPTH):
        q.free_wr[i] = <uint16_t>(SEND_DEPTH - 1 - i)
    q.free_bulk = BULK_DEPTH
    size = <size_t>dev.limits.credits * dev.limits.msgsize + <size_t>SEND_BUFFERS * q.send_msgsize
    if posix_memalign(&buffer, 4096, size) != 0:
        return False
    q.buffer = <char *>buffer
    q.held = <rdma_held *>malloc(dev.limits.credits * sizeof(rdma_held))
    if q.held == NULL:
        return False
    q.mr = dev.provider.reg_mr(dev.pd, buffer, size, IBV_ACCESS_LOCAL_WRITE)
    if q.mr == NULL:
        return False
    counter_add(&t.counters.registrations, 1)
    q.cq = dev.provider.create_cq(dev.port.context, <int>dev.limits.credits + SEND_DEPTH, context, t.channel, 0)
    if q.cq == NULL:
        return False
    memset(&init, 0, sizeof(init))
    init.send_cq = q.cq
    init.recv_cq = q.cq
    init.qp_type = IBV_QPT_RC
    init.cap.max_send_wr = SEND_DEPTH
    init.cap.max_recv_wr = dev.limits.credits
    init.cap.max_send_sge = max(dev.read_sges, dev.write_sges)
    init.cap.max_recv_sge = 1
    q.qp = dev.provider.create_qp(dev.pd, &init)
    if q.qp == NULL:
        return False
    if dev.software:
        soft_share_counters(q.qp, &t.soft)
    counter_add(&t.counters.queue_pairs, 1)
    counter_add(&t.counters.total_queue_pairs, 1)
    return True


cdef void queue_stop(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    cdef int i
    assert_owner(t.worker.owner)
    if q.qp != NULL:
        t.dev.provider.destroy_qp(q.qp)
        q.qp = NULL
        counter_add(&t.counters.queue_pairs, <uint64_t>-1)
    for i in range(SEND_DEPTH):
        queue_release_item(q, &q.wrs[i])


cdef void queue_free(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    assert_that(q.qp == NULL)
    if q.cq != NULL:
        t.dev.provider.destroy_cq(q.cq)
    if q.mr != NULL:
        t.dev.provider.dereg_mr(q.mr)
        counter_add(&t.counters.registrations, <uint64_t>-1)
    free(q.held)
    free(q.buffer)


cdef void queue_fail(rdma_queue *q, const char *operation, ibv_wc_status status) noexcept nogil:
    if not q.failed:
        q.failed = True
        q.failure = operation
        q.failure_status = status
        counter_add(&q.t.counters.qp_errors, 1)


# ---- messages --------------------------------------------------------------------------------------------------------

cdef inline char *queue_received(rdma_queue *q, unsigned int index) noexcept nogil:
    assert_that(index < q.t.dev.limits.credits)
    return q.buffer + <size_t>index * q.t.dev.limits.msgsize


cdef inline char *send_buffer(rdma_queue *q, unsigned int index) noexcept nogil:
    assert_that(index < SEND_BUFFERS)
    return q.buffer + <size_t>q.t.dev.limits.credits * q.t.dev.limits.msgsize + <size_t>index * q.send_msgsize


cdef inline char *queue_payload(rdma_queue *q, unsigned int index) noexcept nogil:
    return send_buffer(q, index) + MESSAGE_HEADER


cdef inline bint queue_post_receive(rdma_queue *q, unsigned int index) noexcept nogil:
    cdef ibv_sge sge
    cdef ibv_recv_wr wr
    cdef ibv_recv_wr *bad
    sge.addr = <uint64_t><uintptr_t>queue_received(q, index)
    sge.length = q.t.dev.limits.msgsize
    sge.lkey = q.mr.lkey
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = RECV_WR | index
    wr.sg_list = &sge
    wr.num_sge = 1
    return ibv_post_recv(q.qp, &wr, &bad) == 0


cdef void queue_give_back(rdma_queue *q, unsigned int index) noexcept nogil:
    if q.closing:
        return
    if queue_post_receive(q, index):
        q.owed += 1
    else:
        queue_fail(q, NULL, IBV_WC_SUCCESS)


cdef inline bint queue_may_send(rdma_queue *q) noexcept nogil:
    if q.free_sends == 0:
        return False
    if q.tx_credits >= 2:
        return True
    counter_add(&q.t.counters.credit_waits, 1)
    return False


cdef inline unsigned int queue_take_buffer(rdma_queue *q) noexcept nogil:
    assert_that(q.free_sends > 0)
    q.free_sends -= 1
    return q.free_send[q.free_sends]


cdef inline void queue_send(rdma_queue *q, uint8_t kind, uint32_t lane, unsigned int index,
                            size_t payload) noexcept nogil:
    cdef char *message = send_buffer(q, index)
    cdef ibv_send_wr *wr = thread_chain(q.t, index)
    assert_that(q.tx_credits > 0 and MESSAGE_HEADER + payload <= q.send_msgsize)
    assert_that(q.rx_credits + q.owed <= q.t.dev.limits.credits)
    put_message_header(message, kind, <uint16_t>q.owed, lane)
    add_element(wr, message, MESSAGE_HEADER + payload, q.mr.lkey)
    wr.opcode = IBV_WR_SEND
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED
    q.wrs[index].kind = WR_SEND
    q.rx_credits += q.owed
    q.owed = 0
    q.tx_credits -= 1
    counter_add(&q.t.counters.sends, 1)
    counter_add(&q.t.counters.send_bytes, payload)


cdef inline void queue_return_credits(rdma_queue *q) noexcept nogil:
    if q.owed * 2 >= q.t.dev.limits.credits and q.tx_credits and q.free_sends and not (q.failed or q.closing):
        queue_send(q, MESSAGE_CREDIT, 0, queue_take_buffer(q), 0)


# ---- READ and WRITE --------------------------------------------------------------------------------------------------

cdef inline unsigned int take_bulk(rdma_queue *q) noexcept nogil:
    assert_that(q.free_bulk > 0)
    q.free_bulk -= 1
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
    wr = thread_chain(q.t, index)
    wr.opcode = IBV_WR_RDMA_READ if kind == WR_READ else IBV_WR_RDMA_WRITE
    wr.wr.rdma.remote_addr = remote
    wr.wr.rdma.rkey = rkey
    for i in range(count):
        add_element(wr, iov[i].iov_base, iov[i].iov_len, extent_of(dev, iov[i].iov_base).lkey)
        entry.length += <uint32_t>iov[i].iov_len
    return entry


cdef void queue_probe(rdma_queue *q) noexcept nogil:
    cdef unsigned int index = take_bulk(q)
    cdef ibv_send_wr *wr = thread_chain(q.t, index)
    wr.opcode = IBV_WR_RDMA_WRITE
    q.wrs[index].kind = WR_PROBE


cdef inline void queue_ring_doorbell(rdma_queue *q) noexcept nogil:
    cdef rdma_thread *t = q.t
    cdef ibv_send_wr *bad
    if t.nchain:
        t.nchain = 0
        if ibv_post_send(q.qp, t.chain, &bad) != 0:
            queue_fail(q, NULL, IBV_WC_SUCCESS)


# ---- completions -----------------------------------------------------------------------------------------------------

cdef inline rdma_wr *queue_completed(rdma_queue *q, unsigned int index) noexcept nogil:
    cdef rdma_wr *entry = &q.wrs[index]
    assert_that(index < SEND_DEPTH and (entry.kind == WR_SEND) == (index < SEND_BUFFERS))
    if entry.kind == WR_SEND:
        assert_that(q.free_sends < SEND_BUFFERS)
        q.free_send[q.free_sends] = <uint16_t>index
        q.free_sends += 1
    else:
        assert_that(q.free_bulk < BULK_DEPTH)
        q.free_wr[q.free_bulk] = <uint16_t>index
        q.free_bulk += 1
    return entry


cdef inline void queue_release_item(rdma_queue *q, rdma_wr *entry) noexcept nogil:
    if entry.kind == WR_WRITE and entry.item != NULL:
        item_remove(q.t.worker.store, entry.item)
        entry.item = NULL

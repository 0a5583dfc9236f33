# Posting.


cdef void rc_fail(rdma_conn *rc, const char *operation, ibv_wc_status status) noexcept nogil:
    """The queue pair is of no use any more. The first reason is kept: what follows it are only flushes."""
    if not rc.failed:
        rc.failed = True
        rc.failure = operation
        rc.failure_status = status
        counter_add(&rc.t.counters.qp_errors, 1)


cdef inline char *send_buffer(rdma_conn *rc, unsigned int index) noexcept nogil:
    return rc.buffer + <size_t>(rc.t.dev.limits.credits) * rc.t.dev.limits.msgsize + <size_t>index * rc.send_msgsize


cdef bint may_send(rdma_conn *rc) noexcept nogil:
    """Whether a DATA message can be posted: a buffer, and a credit besides the last, which is for CREDIT."""
    if rc.free_sends == 0:
        return False
    if rc.tx_credits >= 2:
        return True
    counter_add(&rc.t.counters.credit_waits, 1)
    return False


cdef ibv_send_wr *chain_request(rdma_conn *rc, uint64_t id) noexcept nogil:
    """Appends a signalled work request to the chain, without elements; there is room, as each has a reserved entry."""
    cdef rdma_thread *t = rc.t
    cdef ibv_send_wr *wr = &t.chain[t.nchain]
    memset(wr, 0, sizeof(ibv_send_wr))
    wr.wr_id = id
    wr.sg_list = t.sges[t.nchain]
    wr.send_flags = IBV_SEND_SIGNALED
    if t.nchain:
        t.chain[t.nchain - 1].next = wr
    t.nchain += 1
    return wr


cdef inline void add_element(ibv_send_wr *wr, void *addr, size_t length, uint32_t lkey) noexcept nogil:
    cdef ibv_sge *sge = &wr.sg_list[wr.num_sge]
    sge.addr = <uint64_t><uintptr_t>addr
    sge.length = <uint32_t>length
    sge.lkey = lkey
    wr.num_sge += 1


cdef void ring_doorbell(rdma_conn *rc) noexcept nogil:
    """Posts the chain at once: what one turn has to say leaves together, a WRITE with the reply behind it."""
    cdef rdma_thread *t = rc.t
    cdef ibv_send_wr *bad
    if t.nchain:
        t.nchain = 0
        if ibv_post_send(rc.qp, t.chain, &bad) != 0:
            rc_fail(rc, NULL, IBV_WC_SUCCESS)


cdef bint post_receive(rdma_conn *rc, unsigned int index) noexcept nogil:
    cdef ibv_sge sge
    cdef ibv_recv_wr wr
    cdef ibv_recv_wr *bad
    cdef uint32_t size = rc.t.dev.limits.msgsize
    sge.addr = <uint64_t><uintptr_t>(rc.buffer + <size_t>index * size)
    sge.length = size
    sge.lkey = rc.mr.lkey
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = RECV_WR | index
    wr.sg_list = &sge
    wr.num_sge = 1
    return ibv_post_recv(rc.qp, &wr, &bad) == 0


cdef void post_message(rdma_conn *rc, uint8_t kind, uint32_t id, unsigned int index, size_t payload) noexcept nogil:
    """Sends buffer `index`, which has `payload` bytes behind the header's place."""
    cdef char *buf = send_buffer(rc, index)
    cdef ibv_send_wr *wr
    put_message_header(buf, kind, <uint16_t>rc.owed, id)
    wr = chain_request(rc, index)
    add_element(wr, buf, MESSAGE_HEADER + payload, rc.mr.lkey)
    wr.opcode = IBV_WR_SEND
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED
    rc.wrs[index].kind = WR_SEND
    rc.rx_credits += rc.owed
    rc.owed = 0
    rc.tx_credits -= 1
    counter_add(&rc.t.counters.sends, 1)
    counter_add(&rc.t.counters.send_bytes, payload)


cdef void return_credits(rdma_conn *rc) noexcept nogil:
    """Announces receives that no reply has carried, once half of them wait to be."""
    if rc.owed * 2 >= rc.t.dev.limits.credits and rc.tx_credits and rc.free_sends and not rc.failed:
        rc.free_sends -= 1
        post_message(rc, MESSAGE_CREDIT, 0, rc.free_send[rc.free_sends], 0)


cdef ssize_t post_bulk(rdma_conn *rc, wr_kind kind, const iovec *iov, int count, uint64_t remote, uint32_t rkey,
                       rdma_lane *lane) noexcept nogil:
    """Chains one READ into, or WRITE out of, extents of item memory. The caller has seen that an entry is free.

    The octets of them all, or -1: the connection has failed.
    """
    cdef ibv_send_wr *wr
    cdef unsigned int index
    cdef uint32_t length = 0
    cdef int i
    for i in range(count):
        if extent_of(rc.t.dev, iov[i].iov_base) == NULL:
            rc_fail(rc, NULL, IBV_WC_SUCCESS)
            return -1
    rc.free_bulk -= 1
    index = rc.free_wr[rc.free_bulk]
    wr = chain_request(rc, index)
    wr.opcode = IBV_WR_RDMA_READ if kind == WR_READ else IBV_WR_RDMA_WRITE
    wr.wr.rdma.remote_addr = remote
    wr.wr.rdma.rkey = rkey
    for i in range(count):
        add_element(wr, iov[i].iov_base, iov[i].iov_len, extent_of(rc.t.dev, iov[i].iov_base).lkey)
        length += <uint32_t>iov[i].iov_len
    rc.wrs[index].kind = kind
    rc.wrs[index].length = length
    rc.wrs[index].lane = lane
    rc.wrs[index].item = NULL
    return length

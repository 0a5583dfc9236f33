cdef enum:
    GAP_MARGIN = 2000            # nanoseconds of polling beyond an expected gap and a quarter of the gap


cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil:
    return -1 if t.dev.soft else t.channel.fd


cdef bint rdma_thread_in_use(const rdma_thread *t) noexcept nogil:
    return t.dev.soft and t.counters.queue_pairs != 0


cdef bint rdma_thread_begin_turn(rdma_thread *t, uint32_t work) noexcept nogil:
    cdef int64_t left = 1
    assert_owner(t.worker.owner)
    t.turn += 1
    t.turn_left = <int64_t>TURN_QUANTA_ALL * t.worker.reqs_per_event
    if rdma_thread_in_use(t):
        left = soft_channel_begin_turn(t.channel, work)
        t.was_busy = left < t.work
        t.work = work
    else:
        t.was_busy = False
    t.used_up = left <= 0 or t.left_over != 0
    return left <= 0


cdef void rdma_thread_end_turns(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    if t.dev.soft:
        soft_channel_end_turns(t.channel)


cdef bint rdma_thread_was_busy(const rdma_thread *t) noexcept nogil:
    return t.was_busy


cdef bint rdma_thread_gives_way(const rdma_thread *t) noexcept nogil:
    return t.used_up


cdef int64_t rdma_thread_expected(const rdma_thread *t) noexcept nogil:
    cdef int64_t until = <int64_t>t.least_gap + t.least_gap // 4 + GAP_MARGIN
    assert_owner(t.worker.owner)
    return t.served + until if t.now and t.least_gap != UINT32_MAX else 0


cdef void rdma_thread_polled(rdma_thread *t, int64_t ns) noexcept nogil:
    counter_add(&t.counters.polled_ns, <uint64_t>ns)


cdef inline bint thread_turn_over(const rdma_thread *t) noexcept nogil:
    return t.turn_left <= 0


cdef inline ibv_send_wr *thread_chain(rdma_thread *t, uint64_t wr_id, unsigned int flags) noexcept nogil:
    cdef ibv_send_wr *wr = &t.chain[t.nchain]
    assert_owner(t.worker.owner)
    assert_that(t.nchain < SEND_DEPTH)
    memset(wr, 0, sizeof(ibv_send_wr))
    wr.wr_id = wr_id
    wr.sg_list = t.sges[t.nchain]
    wr.send_flags = flags
    if t.nchain:
        t.chain[t.nchain - 1].next = wr
    t.nchain += 1
    return wr


cdef inline void add_element(ibv_send_wr *wr, void *addr, size_t length, uint32_t lkey) noexcept nogil:
    cdef ibv_sge *sge = &wr.sg_list[wr.num_sge]
    assert_that(wr.num_sge < BULK_SGES)
    sge.addr = <uint64_t><uintptr_t>addr
    sge.length = <uint32_t>length
    sge.lkey = lkey
    wr.num_sge += 1


cdef inline void thread_ready(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    if rc.listed:
        return
    rc.listed = True
    rc.ready_next = NULL
    rc.ready_prev = t.ready_last
    if t.ready_last != NULL:
        t.ready_last.ready_next = rc
    else:
        t.ready = rc
    t.ready_last = rc
    t.nready += 1


cdef inline void thread_unready(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    if not rc.listed:
        return
    rc.listed = False
    t.nready -= 1
    if rc.ready_prev != NULL:
        rc.ready_prev.ready_next = rc.ready_next
    else:
        t.ready = rc.ready_next
    if rc.ready_next != NULL:
        rc.ready_next.ready_prev = rc.ready_prev
    else:
        t.ready_last = rc.ready_prev

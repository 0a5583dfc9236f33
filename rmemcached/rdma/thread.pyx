cdef enum:
    GAP_MARGIN = 2000            # nanoseconds beyond an expected gap, and a quarter of it, that are polled through


cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker, uint32_t number, int epfd, drive_fn drive,
                                     rdma_failed_fn failed, const rdma_lane_hooks *lanes) noexcept nogil:
    cdef rdma_thread *t = <rdma_thread *>calloc(1, sizeof(rdma_thread))
    assert_owner(worker.owner)
    if t == NULL:
        return NULL
    t.dev = dev
    t.worker = worker
    t.number = number
    t.drive = drive
    t.failed = failed
    t.lanes = lanes
    t.channel = dev.provider.create_comp_channel(dev.port.context)
    if t.channel != NULL and dev.software and soft_channel_join(t.channel, epfd) != 0:
        dev.provider.destroy_comp_channel(t.channel)
        t.channel = NULL
    if t.channel == NULL:
        free(t)
        return NULL
    set_nonblocking(t.channel.fd)
    t.counter_entry.counters = &t.counters
    t.counter_entry.soft = &t.soft
    rdma_device_enter_counters(dev, &t.counter_entry)
    return t


cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    assert_that(t.counters.queue_pairs == 0 and t.counters.registrations == 0 and t.counters.lanes == 0)
    assert_that(t.yielded == NULL and t.nchain == 0 and t.setup_oldest == NULL and t.counters.unready == 0)
    rdma_device_retire_counters(t.dev, &t.counter_entry)
    t.dev.provider.destroy_comp_channel(t.channel)
    free(t)


cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil:
    return -1 if t.dev.software else t.channel.fd


# A look into soft_shm's rings costs no system call; of the others epoll tells.
cdef soft_found rdma_thread_poll(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    if not t.dev.same_host or t.counters.queue_pairs == 0:
        return FOUND_NOTHING
    return soft_channel_poll(t.channel)


cdef bint rdma_thread_pending(const rdma_thread *t) noexcept nogil:
    return rdma_thread_in_use(t) and soft_channel_pending(t.channel)


cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    return rdma_thread_in_use(t) and soft_channel_arm(t.channel)


cdef bint rdma_thread_in_use(const rdma_thread *t) noexcept nogil:
    return t.dev.software and t.counters.queue_pairs != 0


cdef bint rdma_thread_begin_turn(rdma_thread *t, uint32_t work) noexcept nogil:
    cdef int64_t left = 1
    assert_owner(t.worker.owner)
    t.turn_left = <int64_t>TURN_QUANTA_ALL * t.worker.reqs_per_event
    if rdma_thread_in_use(t):
        left = soft_channel_begin_turn(t.channel, work)
        t.was_busy = left < t.work
        t.work = work
    else:
        t.was_busy = False
    t.used_up = left <= 0 or t.yielded != NULL
    return left <= 0


cdef bint rdma_thread_was_busy(const rdma_thread *t) noexcept nogil:
    return t.was_busy


cdef bint rdma_thread_gives_way(const rdma_thread *t) noexcept nogil:
    return t.used_up


cdef int64_t rdma_thread_expected(const rdma_thread *t) noexcept nogil:
    cdef int64_t until = <int64_t>t.least_gap + t.least_gap // 4 + GAP_MARGIN
    assert_owner(t.worker.owner)
    return t.now + until if t.now and t.least_gap != UINT32_MAX else 0


cdef void rdma_thread_polled(rdma_thread *t, int64_t ns) noexcept nogil:
    counter_add(&t.counters.polled_ns, <uint64_t>ns)


cdef inline bint thread_turn_over(const rdma_thread *t) noexcept nogil:
    return t.turn_left <= 0


cdef inline ibv_send_wr *thread_chain(rdma_thread *t, uint64_t wr_id) noexcept nogil:
    cdef ibv_send_wr *wr = &t.chain[t.nchain]
    assert_owner(t.worker.owner)
    assert_that(t.nchain < SEND_DEPTH)
    memset(wr, 0, sizeof(ibv_send_wr))
    wr.wr_id = wr_id
    wr.sg_list = t.sges[t.nchain]
    wr.send_flags = IBV_SEND_SIGNALED
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


cdef void thread_yield(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    if rc.yielding:
        return
    rc.yielding = True
    rc.yield_next = NULL
    rc.yield_prev = t.yielded_last
    if t.yielded_last != NULL:
        t.yielded_last.yield_next = rc
    else:
        t.yielded = rc
    t.yielded_last = rc
    t.nyielded += 1


cdef void thread_unyield(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    if not rc.yielding:
        return
    rc.yielding = False
    t.nyielded -= 1
    if rc.yield_prev != NULL:
        rc.yield_prev.yield_next = rc.yield_next
    else:
        t.yielded = rc.yield_next
    if rc.yield_next != NULL:
        rc.yield_next.yield_prev = rc.yield_prev
    else:
        t.yielded_last = rc.yield_prev

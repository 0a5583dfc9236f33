cdef enum:
    LATE_AT_A_TIME = 4           # late connections ended in a turn


cdef inline rdma_conn **token_bucket(rdma_thread *t, const uint8_t *token) noexcept nogil:
    """The bucket of a token, by a random octet."""
    return &t.streamless[token[RDMA_TOKEN_LENGTH - 1] % STREAMLESS_BUCKETS]


cdef bint make_token(uint8_t *token, uint32_t worker) noexcept nogil:
    """An unguessable token for a queue pair of the worker with this number. False: the system has no random octets."""
    cdef ssize_t random = RDMA_TOKEN_LENGTH - sizeof(worker)
    memcpy(token, &worker, sizeof(worker))
    return getrandom(token + sizeof(worker), <size_t>random, 0) == random


cdef bint setup_begin(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    cdef rdma_conn **bucket
    assert_owner(t.worker.owner)
    assert_that(not rc.in_setup and not rc.ready)
    if t.dev.transport.accept != NULL:
        if not make_token(rc.token, t.number):
            return False
        bucket = token_bucket(t, rc.token)
        rc.streamless = True
        rc.streamless_next = bucket[0]
        bucket[0] = rc
    rc.in_setup = True
    rc.setup_since = store_time(t.worker.store)
    rc.setup_prev = t.setup_newest
    if t.setup_newest != NULL:
        t.setup_newest.setup_next = rc
    else:
        t.setup_oldest = rc
    t.setup_newest = rc
    counter_add(&t.counters.unready, 1)
    return True


cdef void forget_token(rdma_conn *rc) noexcept nogil:
    """From here on no stream can reach the queue pair."""
    cdef rdma_conn **link = token_bucket(rc.q.t, rc.token)
    if not rc.streamless:
        return
    while link[0] != rc:
        link = &link[0].streamless_next
    link[0] = rc.streamless_next
    rc.streamless = False


cdef void setup_end(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    assert_owner(t.worker.owner)
    if not rc.in_setup:
        return
    forget_token(rc)
    if rc.setup_prev != NULL:
        rc.setup_prev.setup_next = rc.setup_next
    else:
        t.setup_oldest = rc.setup_next
    if rc.setup_next != NULL:
        rc.setup_next.setup_prev = rc.setup_prev
    else:
        t.setup_newest = rc.setup_prev
    rc.in_setup = False
    counter_add(&t.counters.unready, <uint64_t>-1)


cdef bint setup_give(rdma_conn *rc, int *memory) noexcept nogil:
    """Gives the client the items' memory, unless client, settings or store refuse. True: `memory` has the
    descriptors."""
    cdef const rdma_device *dev = rc.q.t.dev
    rc.given = rc.direct and dev.transport.near and dev.limits.direct != DIRECT_NOBODY \
        and store_direct_give(rc.q.t.worker.store, &memory[0], &memory[1])
    return rc.given


cdef void setup_take_back(rdma_conn *rc) noexcept nogil:
    if rc.given or rc.remote:
        store_direct_return(rc.q.t.worker.store)
        rc.given = rc.remote = False


cdef void rdma_thread_attach(rdma_thread *t, stream *s, const char *data, size_t received) noexcept nogil:
    cdef int[SHM_MEMORY_PARTS] memory
    cdef attach_request request
    cdef rdma_conn *rc
    cdef bint parsed = t.dev.transport.parse(data, received, &request) == 1
    assert_owner(t.worker.owner)
    assert_that(parsed)
    rc = token_bucket(t, request.token)[0]
    while rc != NULL and memcmp(rc.token, request.token, RDMA_TOKEN_LENGTH) != 0:
        rc = rc.streamless_next
    # The stream of a lifeline with TLS has TLS too.
    if rc != NULL and rc.q.qp.qp_num == request.qpn and (s.state != NULL or not rc.covered):
        if t.dev.transport.accept(t.dev, rc.q.qp, s, data, received, memory if setup_give(rc, memory) else NULL):
            forget_token(rc)
            return
        setup_take_back(rc)
    rdma_thread_refuse(t, s, data, received)


cdef void rdma_thread_refuse(rdma_thread *t, stream *s, const char *data, size_t received) noexcept nogil:
    assert_owner(t.worker.owner)
    counter_add(&t.counters.refused_streams, 1)
    t.dev.transport.refuse(s, data, received)
    s.calls.end(s)


cdef int rdma_thread_route(rdma_thread *t, const char *data, size_t received, uint32_t *worker) noexcept nogil:
    cdef attach_request request
    cdef int whole = t.dev.transport.parse(data, received, &request)
    assert_owner(t.worker.owner)
    if whole == 1:
        # A forged token may have any number: the caller checks the number.
        memcpy(worker, request.token, sizeof(uint32_t))
    return whole


cdef bint rdma_thread_waits(const rdma_thread *t) noexcept nogil:
    return t.setup_oldest != NULL


cdef inline bint is_late(const rdma_conn *rc, uint32_t now) noexcept nogil:
    return rc != NULL and now - rc.setup_since > rc.q.t.dev.limits.ready_timeout


cdef bint rdma_thread_end_late(rdma_thread *t) noexcept nogil:
    cdef uint32_t now = store_time(t.worker.store)
    cdef unsigned int left = LATE_AT_A_TIME
    cdef char line[64]
    assert_owner(t.worker.owner)
    snprintf(line, sizeof(line), b"SERVER_ERROR rdma: no READY within %u s\r\n", t.dev.limits.ready_timeout)
    while left and is_late(t.setup_oldest, now):
        left -= 1
        counter_add(&t.counters.ready_timeouts, 1)
        # The owner's function ends the connection, which takes the connection out of the list.
        t.failed(t.setup_oldest.owner, line)
    return is_late(t.setup_oldest, now)


cdef bint setup_given(const conn *c) noexcept nogil:
    cdef const rdma_conn *rc = (<const rdma_lane *>c).rc
    return rc.remote or rc.given


cdef const char *setup_reads(conn *c, uint64_t place, char *reply, size_t reply_size) noexcept nogil:
    cdef rdma_conn *rc = (<rdma_lane *>c).rc
    cdef rdma_device *dev = rc.q.t.dev
    cdef store *s = rc.q.t.worker.store
    cdef const char *base = <const char *>store_direct_base(s)
    cdef int[SHM_MEMORY_PARTS] memory
    cdef const ibv_mr *mr
    assert_owner(rc.q.t.worker.owner)
    if not dev.remote:
        return b"SERVER_ERROR rdma: this transport has no direct reads\r\n"
    mr = rdma_device_find_memory(dev, base + place) if place >> DIRECT_LENGTH_BITS == 0 else NULL
    if mr == NULL:
        return b"NOT_FOUND\r\n"
    if not rc.remote:
        # The rkeys in replies are of no use to the device's other queue pairs, which lack this right.
        if verbs_qp_allow(&dev.port, rc.q.qp, IBV_ACCESS_REMOTE_READ) != 0:
            return b"SERVER_ERROR rdma: the device refuses remote reads\r\n"
        rc.remote = store_direct_give(s, &memory[0], &memory[1])
    snprintf(reply, reply_size, b"DIRECT %llx %llx %llx %x\r\n", <unsigned long long><size_t>base,
             <unsigned long long>(<const char *>mr.addr - base), <unsigned long long>mr.length, mr.rkey)
    return reply

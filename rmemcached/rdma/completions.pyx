cdef enum:
    CQ_FIRST = 256               # entries of a worker's queue, at first
    POLL_BATCH = 32
    NUMBERS_FIRST = 64           # buckets of the table of numbers, at first
    UNACKED_MAX = 256            # events acknowledged together, since each call takes a lock


# ---- the queue -------------------------------------------------------------------------------------------------------

cdef bint queue_grow(rdma_thread *t, rdma_cq *queue, uint32_t count) noexcept nogil:
    """Makes room for `count` further completions in a queue. False: the device refuses."""
    cdef uint32_t most = <uint32_t>t.dev.port.max_cqe
    cdef uint32_t wanted = min(max(2 * queue.entries, queue.promised + count), most)
    if wanted < queue.promised + count or t.dev.provider.resize_cq(queue.ibv, <int>wanted) != 0:
        return False
    queue.entries = wanted
    # The driver may have disarmed the queue.
    t.armed = False
    return True


cdef rdma_cq *queue_open(rdma_thread *t, uint32_t count) noexcept nogil:
    """Makes a queue with room for `count` completions, larger than the queues before."""
    cdef ibv_context *context = t.dev.port.context
    cdef uint32_t wanted = CQ_FIRST if t.queues == NULL else 2 * t.queues.entries
    cdef rdma_cq *queue = <rdma_cq *>calloc(1, sizeof(rdma_cq))
    if queue == NULL:
        return NULL
    queue.entries = min(max(wanted, count), <uint32_t>t.dev.port.max_cqe)
    # Each worker has an interrupt of its own, as far as the device has several.
    queue.ibv = t.dev.provider.create_cq(context, <int>queue.entries, queue, t.channel,
                                         <int>(t.number % <uint32_t>max(context.num_comp_vectors, 1)))
    if queue.ibv == NULL or queue.entries < count:
        if queue.ibv != NULL:
            t.dev.provider.destroy_cq(queue.ibv)
        free(queue)
        return NULL
    queue.next = t.queues
    t.queues = queue
    t.armed = False
    return queue


cdef void queue_close(rdma_thread *t, rdma_cq *queue) noexcept nogil:
    cdef rdma_cq **link = &t.queues
    while link[0] != queue:
        link = &link[0].next
    link[0] = queue.next
    acknowledge(t, queue)
    t.dev.provider.destroy_cq(queue.ibv)
    free(queue)


cdef bint completions_open(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    assert_that(sizeof(kept_completion) == KEPT_BYTES)
    return numbers_grow(t) and queue_open(t, 1) != NULL


cdef bint keep_room(rdma_thread *t, uint32_t count) noexcept nogil:
    """Makes room in t.kept for the completions of all queue pairs, and `count` more. Unused entries are untouched, so
    they need no physical memory."""
    cdef uint32_t least = t.promised + count
    cdef uint32_t wanted = max(2 * t.kept_size, least)
    cdef kept_completion *kept
    if least <= t.kept_size:
        return True
    # realloc would copy unused entries, too.
    kept = <kept_completion *>malloc(wanted * sizeof(kept_completion))
    if kept == NULL:
        return False
    if t.kept_used:
        memcpy(kept, t.kept, t.kept_used * sizeof(kept_completion))
    free(t.kept)
    t.kept = kept
    t.kept_size = wanted
    return True


cdef rdma_cq *completions_reserve(rdma_thread *t, uint32_t count) noexcept nogil:
    cdef rdma_cq *queue = t.queues
    assert_owner(t.worker.owner)
    if t.broken:
        return NULL
    while queue != NULL and queue.entries - queue.promised < count:
        queue = queue.next
    if queue == NULL and queue_grow(t, t.queues, count):
        queue = t.queues
    if queue == NULL:
        queue = queue_open(t, count)
    if queue == NULL or not keep_room(t, count):
        return NULL
    queue.promised += count
    t.promised += count
    return queue


cdef void completions_release(rdma_thread *t, rdma_cq *queue, uint32_t count) noexcept nogil:
    assert_owner(t.worker.owner)
    assert_that(queue.promised >= count and t.promised >= count)
    queue.promised -= count
    t.promised -= count
    if queue.promised == 0 and queue.next != NULL:
        # The first queue, the last in the list, always stays.
        queue_close(t, queue)


cdef void completions_close(rdma_thread *t) noexcept nogil:
    assert_that(t.promised == 0 and t.nkept == 0 and t.nnumbers == 0)
    while t.queues != NULL:
        queue_close(t, t.queues)
    free(t.numbers)
    free(t.kept)


# ---- numbers of queue pairs ------------------------------------------------------------------------------------------

cdef inline rdma_conn **number_bucket(const rdma_thread *t, uint32_t number) noexcept nogil:
    """The bucket of a queue pair's number. Devices give consecutive numbers, so the low bits are a good hash."""
    return &t.numbers[number & (t.numbers_size - 1)]


cdef bint numbers_grow(rdma_thread *t) noexcept nogil:
    """Makes the table of numbers twice as large. False: out of memory; the table stays as before."""
    cdef uint32_t size = 2 * t.numbers_size if t.numbers_size else NUMBERS_FIRST
    cdef uint32_t before = t.numbers_size
    cdef rdma_conn **old = t.numbers
    cdef rdma_conn **bucket
    cdef rdma_conn *rc
    cdef rdma_conn **larger = <rdma_conn **>calloc(size, sizeof(rdma_conn *))
    cdef uint32_t i
    if larger == NULL:
        return False
    t.numbers = larger
    t.numbers_size = size
    for i in range(before):
        while old[i] != NULL:
            rc = old[i]
            old[i] = rc.number_next
            bucket = number_bucket(t, rc.number)
            rc.number_next = bucket[0]
            bucket[0] = rc
    free(old)
    return True


cdef void completions_enter(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    cdef rdma_conn **bucket
    assert_owner(t.worker.owner)
    assert_that(not rc.entered)
    # If the table cannot grow, the only effect is slower searches.
    if t.nnumbers >= t.numbers_size:
        numbers_grow(t)
    rc.number = rc.q.qp.qp_num
    bucket = number_bucket(t, rc.number)
    rc.number_next = bucket[0]
    bucket[0] = rc
    rc.entered = True
    t.nnumbers += 1


cdef void completions_leave(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    cdef rdma_conn **link
    cdef const kept_completion *dropped
    assert_owner(t.worker.owner)
    if not rc.entered:
        return
    link = number_bucket(t, rc.number)
    while link[0] != rc:
        link = &link[0].number_next
    link[0] = rc.number_next
    rc.entered = False
    t.nnumbers -= 1
    while rc.nkept:
        dropped = completions_next(rc)
        if rc.q.shared and dropped.wr_id & RECV_WR and dropped.wr_id != RECV_WR | NO_RECEIVE:
            receives_post(t, dropped.wr_id & (RECV_WR - 1))


cdef inline rdma_conn *find_number(const rdma_thread *t, uint32_t number) noexcept nogil:
    cdef rdma_conn *rc = number_bucket(t, number)[0]
    while rc != NULL and rc.number != number:
        rc = rc.number_next
    return rc


# ---- taking completions ----------------------------------------------------------------------------------------------

cdef inline uint32_t free_entry(rdma_thread *t) noexcept nogil:
    """Takes an entry of t.kept: there are entries for all possible completions."""
    cdef uint32_t at
    if t.nkept < t.kept_used:
        at = t.first_free
        t.first_free = t.kept[at].following
    else:
        at = t.kept_used
        assert_that(at < t.kept_size)
        t.kept_used += 1
    t.nkept += 1
    return at


cdef inline void keep(rdma_thread *t, const ibv_wc *wc) noexcept nogil:
    """Keeps a polled completion for its connection."""
    cdef rdma_conn *rc = find_number(t, wc.qp_num)
    cdef uint32_t at
    if rc == NULL:
        # The completion is of a destroyed queue pair.
        return
    at = free_entry(t)
    t.kept[at].wr_id = <uint32_t>wc.wr_id
    t.kept[at].byte_len = wc.byte_len
    t.kept[at].status = wc.status
    if rc.nkept:
        t.kept[rc.last_kept].following = at
    else:
        rc.first_kept = at
    rc.last_kept = at
    rc.nkept += 1
    thread_ready(rc)


cdef void break_all(rdma_thread *t) noexcept nogil:
    """A queue has failed: no completion will come any more."""
    cdef rdma_conn *rc
    cdef uint32_t i
    t.broken = True
    for i in range(t.numbers_size):
        rc = t.numbers[i]
        while rc != NULL:
            thread_ready(rc)
            rc = rc.number_next


cdef void completions_take(rdma_thread *t, unsigned int most) noexcept nogil:
    cdef rdma_cq *queue = t.queues
    cdef ibv_wc batch[POLL_BATCH]
    cdef unsigned int taken = 0
    cdef int i, n
    assert_owner(t.worker.owner)
    t.drained = True
    while queue != NULL:
        n = POLL_BATCH
        while n == POLL_BATCH and taken < most:
            n = ibv_poll_cq(queue.ibv, POLL_BATCH, batch)
            if n < 0:
                break_all(t)
                break
            for i in range(n):
                keep(t, &batch[i])
            taken += <unsigned int>n
        if n == POLL_BATCH:
            t.drained = False
        queue = queue.next
    counter_add(&t.counters.completions, taken)


cdef inline const kept_completion *completions_next(rdma_conn *rc) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    cdef uint32_t at = rc.first_kept
    assert_that(rc.nkept > 0)
    rc.first_kept = t.kept[at].following
    t.kept[at].following = t.first_free
    t.first_free = at
    rc.nkept -= 1
    t.nkept -= 1
    return &t.kept[at]


cdef inline bint completions_pending(const rdma_thread *t) noexcept nogil:
    cdef const rdma_cq *queue = t.queues
    assert_that(t.dev.soft)
    while queue != NULL:
        if soft_cq_pending(queue.ibv):
            return True
        queue = queue.next
    return False


# ---- events ----------------------------------------------------------------------------------------------------------

cdef void acknowledge(rdma_thread *t, rdma_cq *queue) noexcept nogil:
    if queue.unacked:
        t.dev.provider.ack_cq_events(queue.ibv, queue.unacked)
        queue.unacked = 0


cdef void arm_queues(rdma_thread *t) noexcept nogil:
    """Asks for an event of the next completion. Some completions may be there already."""
    cdef rdma_cq *queue = t.queues
    assert_owner(t.worker.owner)
    if t.armed:
        return
    while queue != NULL:
        if ibv_req_notify_cq(queue.ibv, 0) != 0:
            break_all(t)
        queue = queue.next
    t.armed = True


# ---- for the server --------------------------------------------------------------------------------------------------

cdef bint rdma_thread_poll(rdma_thread *t) noexcept nogil:
    cdef bint worked = False
    assert_owner(t.worker.owner)
    if t.counters.queue_pairs == 0:
        return False
    if not t.dev.soft:
        completions_take(t, TAKEN_AT_A_TIME)
    elif t.dev.transport.rings:
        worked = soft_channel_poll(t.channel)
    return worked or rdma_thread_pending(t)


cdef bint rdma_thread_polls(const rdma_thread *t) noexcept nogil:
    return t.counters.queue_pairs != 0 and t.dev.transport.rings


cdef bint rdma_thread_pending(const rdma_thread *t) noexcept nogil:
    return t.ready != NULL or rdma_thread_in_use(t) and completions_pending(t)


cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil:
    cdef bint worked = False
    assert_owner(t.worker.owner)
    if t.counters.queue_pairs == 0:
        return False
    if t.dev.soft:
        worked = soft_channel_arm(t.channel)
    else:
        # A completion from here on makes an event; earlier completions are found now.
        arm_queues(t)
        completions_take(t, TAKEN_AT_A_TIME)
    return worked or rdma_thread_pending(t)


cdef void rdma_thread_event(rdma_thread *t) noexcept nogil:
    """Takes a single event: with further events the descriptor stays readable."""
    cdef ibv_cq *cq
    cdef void *context
    cdef rdma_cq *queue
    assert_owner(t.worker.owner)
    if t.dev.provider.get_cq_event(t.channel, &cq, &context) != 0:
        return
    t.armed = False
    queue = <rdma_cq *>context
    queue.unacked += 1
    if queue.unacked == UNACKED_MAX:
        acknowledge(t, queue)
    counter_add(&t.counters.wakeups, 1)

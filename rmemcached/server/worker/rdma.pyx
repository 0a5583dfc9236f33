cdef enum:
    TURN_WORK = 512 * 1024       # octets moved by queue pairs in a turn; with more, tests/hostile finds delayed clients
    RING_LOOKS = 32              # looks at the rings in a turn of a polling worker, at most


# ---- taking devices, and giving devices up ---------------------------------------------------------------------------

cdef bint has_device(const rdma_source *r) noexcept nogil:
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL:
            return True
    return False


cdef bint take_device(rdma_source *r, unsigned int transport, rdma_device *device) noexcept nogil:
    """Makes the worker's part of the device, and watches its descriptor. False: the system refuses; errno says why."""
    cdef worker *w = r.w
    cdef epoll_event ev
    cdef rdma_thread *t
    assert_owner(w.thread.owner)
    t = rdma_thread_create(device, &w.thread, w.number, w.epfd, drive_machine, connection_rdma_failed,
                           &w.lane_hooks)
    if t == NULL:
        return False
    ev.events = EPOLLIN
    ev.data.u64 = channel_data(transport)
    if rdma_thread_fd(t) >= 0 and epoll_ctl(w.epfd, EPOLL_CTL_ADD, rdma_thread_fd(t), &ev) != 0:
        rdma_thread_destroy(t)
        return False
    r.threads[transport] = t
    return True


cdef void give_up_device(rdma_source *r, unsigned int transport, const char *line) noexcept nogil:
    """Ends all connections on a device, and the worker's part of the device."""
    cdef worker *w = r.w
    cdef rdma_thread *t = r.threads[transport]
    cdef connection *cn = w.connections
    cdef connection *following
    if t == NULL:
        return
    while cn != NULL:
        following = cn.next
        if cn.rdma != NULL and rdma_conn_thread(cn.rdma) == t:
            connection_rdma_failed(cn, line)
        cn = following
    # Lanes of earlier ended connections still need the device, so they end now, too.
    w.lanes_left = UINT32_MAX
    end_lanes(w)
    w.lanes_left = 0
    if rdma_thread_fd(t) >= 0:
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, rdma_thread_fd(t), NULL)
    rdma_thread_destroy(t)
    r.threads[transport] = NULL


cdef void change_device(worker *w, device_change *change) noexcept nogil:
    assert_owner(w.thread.owner)
    if change.device == NULL:
        give_up_device(&w.rdma, change.transport, change.line)
    elif not take_device(&w.rdma, change.transport, change.device):
        fprintf(stderr, b"RDMA: a worker thread cannot use the device: %s\n", strerror(errno))
    pthread_mutex_lock(&change.lock)
    change.pending -= 1
    if change.pending == 0:
        pthread_cond_signal(&change.done)
    pthread_mutex_unlock(&change.lock)


cdef void connection_paired(connection *cn, rdma_conn *rc) noexcept nogil:
    cdef worker *w = cn.w
    assert_owner(w.thread.owner)
    # `stats conns` follows this pointer in another thread.
    pthread_mutex_lock(&w.list_lock)
    cn.rdma = rc
    pthread_mutex_unlock(&w.list_lock)
    w.rdma.queue_pairs += 1
    w.rdma.base.active = True


# ---- queue pairs without READY ---------------------------------------------------------------------------------------

cdef bint setups_wait(const rdma_source *r) noexcept nogil:
    """Whether queue pairs are there whose READY has not come."""
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL and rdma_thread_waits(r.threads[k]):
            return True
    return False


cdef void end_late_setups(rdma_source *r) noexcept nogil:
    """Ends queue pairs whose READY does not come."""
    cdef uint32_t now = store_time(r.w.thread.store)
    cdef unsigned int k
    if now == r.setups_checked and not r.setups_late:
        return
    r.setups_checked = now
    r.setups_late = False
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL and rdma_thread_waits(r.threads[k]):
            r.setups_late |= rdma_thread_end_late(r.threads[k])


# ---- the source's table ----------------------------------------------------------------------------------------------

cdef bint rdma_begin(source *s) noexcept nogil:
    """Divides the turn among the devices that were busy in the last turn. An idle device gets the share of a further
    busy device."""
    cdef rdma_source *r = <rdma_source *>s
    cdef unsigned int k, share
    cdef unsigned int busy = 0
    cdef bint used_up = False
    assert_owner(r.w.thread.owner)
    for k in range(<unsigned int>RDMA_DEVICES):
        busy += r.threads[k] != NULL and rdma_thread_was_busy(r.threads[k])
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL:
            share = TURN_WORK // (busy if rdma_thread_was_busy(r.threads[k]) else busy + 1)
            used_up |= rdma_thread_begin_turn(r.threads[k], share)
    return used_up


cdef unsigned int pending_devices(const rdma_source *r) noexcept nogil:
    """A bit for each device known to have work."""
    cdef unsigned int found = 0
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL and rdma_thread_pending(r.threads[k]):
            found |= 1 << k
    return found


cdef inline void count_polled(rdma_source *r) noexcept nogil:
    """Counts the polled time for the device of the expected request."""
    if r.polling.polled == 0:
        return
    if r.threads[r.expecting] != NULL:
        rdma_thread_polled(r.threads[r.expecting], r.polling.polled)
    r.polling.polled = 0


cdef bint polls_on(rdma_source *r) noexcept nogil:
    cdef bint on = polling_on(&r.polling)
    count_polled(r)
    return on


cdef int rdma_arm(source *s) noexcept nogil:
    """source_calls.arm"""
    cdef rdma_source *r = <rdma_source *>s
    cdef unsigned int k
    cdef bint busy = False
    assert_owner(r.w.thread.owner)
    if r.left or r.setups_late or polls_on(r) or pending_devices(r):
        return 0
    for k in range(<unsigned int>RDMA_DEVICES):
        busy |= r.threads[k] != NULL and rdma_thread_arm(r.threads[k])
    if busy:
        return 0
    return TICK_MS if setups_wait(r) else -1


cdef bint has_rings(const rdma_source *r) noexcept nogil:
    """Whether a second look may find work: a look at rings may, but only epoll reports soft_iw's streams."""
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL and rdma_thread_polls(r.threads[k]):
            return True
    return False


cdef bint rdma_poll(source *s, bint hurry) noexcept nogil:
    """source_calls.poll"""
    cdef rdma_source *r = <rdma_source *>s
    cdef int looks = RING_LOOKS if r.polling.since and not hurry and has_rings(r) else 1
    cdef bint found = False
    cdef unsigned int k
    assert_owner(r.w.thread.owner)
    # Each look may do a turn's work, so the first success ends the looks.
    while looks and not found:
        for k in range(<unsigned int>RDMA_DEVICES):
            found |= r.threads[k] != NULL and rdma_thread_poll(r.threads[k])
        looks -= 1
        if looks and not found:
            cpu_relax()
    r.found |= pending_devices(r)
    return r.found != 0


cdef void rdma_take_events(source *s, const epoll_event *events, int n) noexcept nogil:
    """Epoll reports descriptors that stay ready in the same order each time. So the first events of software devices
    are those not reached in the last turn.
    """
    cdef rdma_source *r = <rdma_source *>s
    cdef uint32_t coming = 0
    cdef int first = r.soft_left if r.soft_left < n else 0
    cdef int i, at
    cdef worker_event kind
    assert_owner(r.w.thread.owner)
    for i in range(n):
        kind = event_kind(&events[i])
        if kind == EVENT_SOFT:
            coming += 1
        elif kind == EVENT_CHANNEL:
            rdma_thread_event(r.threads[channel_device(&events[i])])
            r.found |= channel_bit(&events[i])
    r.base.active |= r.found != 0
    r.soft_left = 0
    r.came = now_ns() if coming and r.polling.gap_max else 0
    if coming == 0:
        return
    for i in range(n):
        at = (first + i) % n
        if event_kind(&events[at]) == EVENT_SOFT:
            if soft_channel_event(&events[at], coming):
                # Serve the queue pair, even without a complete request or transfer: its input ends a wait.
                rdma_event_taken(soft_event_qp(&events[at]))
            elif r.soft_left == 0:
                r.soft_left = at
            coming -= 1


cdef void run_devices(rdma_source *r, unsigned int which, int64_t now) noexcept nogil:
    """Serves the devices of `which`, and notes until when to poll for a request."""
    cdef unsigned int k
    cdef int64_t expected
    for k in range(<unsigned int>RDMA_DEVICES):
        if not which >> k & 1 or r.threads[k] == NULL:
            continue
        if rdma_thread_run(r.threads[k], now, r.polling.gap_max):
            r.left |= 1 << k
        expected = rdma_thread_expected(r.threads[k])
        if expected > r.polling.expected:
            r.polling.expected = expected
            r.expecting = k


cdef void serve_devices(rdma_source *r, unsigned int ready) noexcept nogil:
    """Serves the devices of `ready`, those with endless work last: their turns would delay the clients of the rest."""
    cdef unsigned int k, last = 0
    cdef int64_t now = r.came
    if now == 0 and r.polling.gap_max:
        now = now_ns()
    if r.polling.since:
        polling_end(&r.polling, now)
        count_polled(r)
    r.left = 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL and rdma_thread_gives_way(r.threads[k]):
            last |= 1 << k
    run_devices(r, ready & ~last, now)
    run_devices(r, ready & last, now)


cdef void rdma_serve(source *s) noexcept nogil:
    """source_calls.serve"""
    cdef rdma_source *r = <rdma_source *>s
    cdef unsigned int ready = r.found | r.left | pending_devices(r)
    assert_owner(r.w.thread.owner)
    r.found = 0
    if ready:
        serve_devices(r, ready)
    end_late_setups(r)
    # The last queue pair may have ended while work was left, or the worker was polling. Then the source stays active.
    r.base.active = r.queue_pairs != 0 or r.left != 0 or r.polling.expected != 0


cdef void rdma_end(source *s) noexcept nogil:
    """source_calls.end"""
    cdef rdma_source *r = <rdma_source *>s
    cdef unsigned int k
    assert_owner(r.w.thread.owner)
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL:
            rdma_thread_end_turns(r.threads[k])


cdef source_calls rdma_calls = source_calls(
    begin=rdma_begin, arm=rdma_arm, poll=rdma_poll, take_events=rdma_take_events, serve=rdma_serve, end=rdma_end)


# ---- the source's beginning and end ----------------------------------------------------------------------------------

cdef bint rdma_source_init(worker *w) noexcept nogil:
    cdef rdma_source *r = &w.rdma
    cdef unsigned int k
    r.base.calls = &rdma_calls
    r.w = w
    assert_that(w.nsources < SOURCES)
    w.sources[w.nsources] = &r.base
    w.nsources += 1
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.devices[k] != NULL and not take_device(r, k, r.devices[k]):
            return False
    return True


cdef void rdma_source_destroy(rdma_source *r) noexcept nogil:
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if r.threads[k] != NULL:
            rdma_thread_destroy(r.threads[k])
            r.threads[k] = NULL

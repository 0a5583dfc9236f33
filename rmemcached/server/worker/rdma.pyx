cdef enum:
    TURN_WORK = 512 * 1024       # octets moved by queue pairs in a turn; with more, tests/hostile finds others delayed
    RING_LOOKS = 32              # between two turns of a polling worker
    ASK_NS = 10000               # how long ring traffic may be served without asking epoll
    TICK_MS = 1000               # how often timeouts are looked at


# ---- devices come and go ---------------------------------------------------------------------------------------------

cdef bint has_device(const worker *w) noexcept nogil:
    cdef unsigned int i
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[i] != NULL:
            return True
    return False


cdef bint take_device(worker *w, unsigned int transport, rdma_device *device) noexcept nogil:
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
    w.rdma[transport] = t
    return True


cdef void give_up_device(worker *w, unsigned int transport, const char *line) noexcept nogil:
    """Ends all connections on a device, and the worker's part of the device."""
    cdef rdma_thread *t = w.rdma[transport]
    cdef connection *cn = w.connections
    cdef connection *following
    if t == NULL:
        return
    while cn != NULL:
        following = cn.next
        if cn.rdma != NULL and rdma_conn_thread(cn.rdma) == t:
            connection_rdma_failed(cn, line)
        cn = following
    # The lanes of earlier connections need the device, too.
    w.lanes_left = UINT32_MAX
    end_lanes(w)
    w.lanes_left = 0
    if rdma_thread_fd(t) >= 0:
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, rdma_thread_fd(t), NULL)
    rdma_thread_destroy(t)
    w.rdma[transport] = NULL


cdef void change_device(worker *w, device_change *change) noexcept nogil:
    assert_owner(w.thread.owner)
    if change.device == NULL:
        give_up_device(w, change.transport, change.line)
    elif not take_device(w, change.transport, change.device):
        fprintf(stderr, b"RDMA: a worker thread cannot use the device: %s\n", strerror(errno))
    pthread_mutex_lock(&change.lock)
    change.pending -= 1
    if change.pending == 0:
        pthread_cond_signal(&change.done)
    pthread_mutex_unlock(&change.lock)


# ---- turns -----------------------------------------------------------------------------------------------------------

cdef void begin_rdma_turn(worker *w) noexcept nogil:
    """Devices busy in the last turn share this turn. An idle device may have the share of one more busy device."""
    cdef unsigned int k, share
    cdef unsigned int busy = 0
    assert_owner(w.thread.owner)
    w.rdma_used_up = False
    if w.nrdma == 0:
        return
    for k in range(<unsigned int>RDMA_DEVICES):
        busy += w.rdma[k] != NULL and rdma_thread_was_busy(w.rdma[k])
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL:
            share = TURN_WORK // (busy if rdma_thread_was_busy(w.rdma[k]) else busy + 1)
            w.rdma_used_up |= rdma_thread_begin_turn(w.rdma[k], share)


cdef void end_rdma_turns(worker *w) noexcept nogil:
    cdef unsigned int k
    assert_owner(w.thread.owner)
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL:
            rdma_thread_end_turns(w.rdma[k])


# ---- polling ---------------------------------------------------------------------------------------------------------

cdef void count_polled(worker *w) noexcept nogil:
    if w.polling.polled and w.rdma[w.expecting] != NULL:
        rdma_thread_polled(w.rdma[w.expecting], w.polling.polled)
    w.polling.polled = 0


cdef bint polls_on(worker *w) noexcept nogil:
    cdef bint on = polling_on(&w.polling)
    assert_owner(w.thread.owner)
    count_polled(w)
    return on


cdef int turn_timeout(worker *w) noexcept nogil:
    """How long epoll_wait may sleep, in milliseconds."""
    if has_runnable(w) or w.dead != NULL or w.rdma_runnable or w.rdma_used_up or w.setups_late or polls_on(w):
        return 0
    return TICK_MS if w.nstreams or w.ncm or w.idle_timeout or setups_wait(w) else -1


cdef unsigned int pending_devices(worker *w) noexcept nogil:
    """A bit for each device known to have work."""
    cdef unsigned int found = 0
    cdef unsigned int k
    if w.nrdma == 0:
        return 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_pending(w.rdma[k]):
            found |= 1 << k
    return found


cdef bint arm_devices(worker *w) noexcept nogil:
    """Asks the devices for a wake-up. True: there is work already, and the worker must not sleep."""
    cdef unsigned int k
    cdef bint busy = False
    if w.nrdma == 0:
        return False
    for k in range(<unsigned int>RDMA_DEVICES):
        busy |= w.rdma[k] != NULL and rdma_thread_arm(w.rdma[k])
    return busy


cdef bint has_rings(const worker *w) noexcept nogil:
    """Whether a second look may find work: only epoll reports soft_iw's streams."""
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_polls(w.rdma[k]):
            return True
    return False


cdef void look_at_rings(worker *w, int looks) noexcept nogil:
    cdef bint found = False
    cdef unsigned int k
    # Each look may do a turn's work.
    while looks and not found and w.nrdma:
        for k in range(<unsigned int>RDMA_DEVICES):
            found |= w.rdma[k] != NULL and rdma_thread_poll(w.rdma[k])
        looks -= 1
        if looks and not found:
            cpu_relax()


cdef unsigned int poll_devices(worker *w, int *timeout) noexcept nogil:
    """Looks at the rings, and arms the devices if the worker is to sleep. Returns a bit for each device with work."""
    cdef unsigned int found
    assert_owner(w.thread.owner)
    timeout[0] = turn_timeout(w)
    found = pending_devices(w)
    # Arming says whether the rings have something.
    if timeout[0] != 0 and (found or arm_devices(w)):
        timeout[0] = 0
    if timeout[0] == 0:
        look_at_rings(w, RING_LOOKS if w.polling.since and not has_runnable(w) and has_rings(w) else 1)
        found |= pending_devices(w)
    return found


cdef bint must_ask(worker *w, unsigned int found) noexcept nogil:
    """Whether to ask epoll in this turn: if nothing was found otherwise, and every few microseconds."""
    cdef int64_t now
    if not found or has_runnable(w) or w.rdma_used_up:
        return True
    now = now_ns()
    if now - w.asked < ASK_NS:
        return False
    w.asked = now
    return True


cdef void take_soft_events(worker *w, const epoll_event *events, int n) noexcept nogil:
    """Hands events to the software devices, before anything else could end queue pairs.

    Epoll reports descriptors that stay ready in the same order each time. So the first events are those not reached in
    the last turn.
    """
    cdef uint32_t coming = 0
    cdef int first = w.soft_left if w.soft_left < n else 0
    cdef int i, at
    for i in range(n):
        coming += event_kind(&events[i]) == EVENT_SOFT
    w.soft_left = 0
    w.came = now_ns() if coming and w.polling.gap_max else 0
    for i in range(n):
        at = (first + i) % n
        if event_kind(&events[at]) == EVENT_SOFT:
            if soft_channel_event(&events[at], coming):
                # Serve the queue pair, even without a complete request or transfer: its input ends a wait.
                rdma_event_taken(soft_event_qp(&events[at]))
            elif w.soft_left == 0:
                w.soft_left = at
            coming -= 1


cdef unsigned int take_channel_event(worker *w, const epoll_event *event) noexcept nogil:
    assert_owner(w.thread.owner)
    # An earlier event of the batch may have made the worker give the device up.
    if w.rdma[channel_device(event)] == NULL:
        return 0
    rdma_thread_event(w.rdma[channel_device(event)])
    return channel_bit(event)


cdef void run_devices(worker *w, unsigned int which, int64_t now) noexcept nogil:
    cdef unsigned int k
    cdef int64_t expected
    for k in range(<unsigned int>RDMA_DEVICES):
        if not which >> k & 1 or w.rdma[k] == NULL:
            continue
        if rdma_thread_run(w.rdma[k], now, w.polling.gap_max):
            w.rdma_runnable |= 1 << k
        expected = rdma_thread_expected(w.rdma[k])
        if expected > w.polling.expected:
            w.polling.expected = expected
            w.expecting = k


cdef void serve_devices(worker *w, unsigned int ready) noexcept nogil:
    """Devices with endless work come last: their turns would delay the clients of the rest."""
    cdef unsigned int k, last = 0
    cdef int64_t now = w.came
    assert_owner(w.thread.owner)
    if now == 0 and w.polling.gap_max:
        now = now_ns()
    polling_end(&w.polling, now)
    count_polled(w)
    w.rdma_runnable = 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_gives_way(w.rdma[k]):
            last |= 1 << k
    run_devices(w, ready & ~last, now)
    run_devices(w, ready & last, now)

cdef enum:
    TURN_WORK = 512 * 1024       # octets that queue pairs move in a turn; tests/hostile shows that others notice more
    RING_LOOKS = 32              # between two turns of a worker that polls
    SPIN_FLOOR = 16              # the least it polls is a 16th of spin_max
    TICK_MS = 1000               # how often timeouts are looked at
    YIELD_LONG = 200000          # ns of a sched_yield after which the core is others'; a time slice has milliseconds
    PAUSE_MIN = 10000000         # ns without polling after that, and twice as long each time, up to
    PAUSE_MAX = 640000000


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
    t = rdma_thread_create(device, &w.thread, w.number, drive_machine, connection_rdma_failed)
    if t == NULL:
        return False
    ev.events = EPOLLIN
    ev.data.ptr = &w.rdma[transport]
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, rdma_thread_fd(t), &ev) != 0:
        rdma_thread_destroy(t)
        return False
    w.rdma[transport] = t
    return True


cdef void give_up_device(worker *w, unsigned int transport, const char *line) noexcept nogil:
    """Ends all connections on a device, and the worker's part of it."""
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
    cdef unsigned int k, busy = 0
    assert_owner(w.thread.owner)
    w.rdma_used_up = False
    for k in range(<unsigned int>RDMA_DEVICES):
        busy += w.rdma[k] != NULL and rdma_thread_in_use(w.rdma[k])
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL:
            w.rdma_used_up |= rdma_thread_begin_turn(w.rdma[k], TURN_WORK // max(busy, <unsigned int>1))


# ---- polling ---------------------------------------------------------------------------------------------------------

cdef int turn_timeout(worker *w) noexcept nogil:
    """Polling is bounded by what lately paid: up to spin_max while RDMA events come within it, less when they do not.
    Events of sockets do not prolong it: their peers sleep as well, and may want the core. Where processes that always
    run want it, each yield costs their time slices, and a sleeper is woken sooner: then it does not poll for a while.
    """
    cdef int64_t now
    assert_owner(w.thread.owner)
    if w.run_head != NULL or w.rdma_runnable or w.rdma_used_up or w.setups_late:
        return 0
    if w.spin_max and w.rdma_recent:
        now = now_ns()
        if w.spin_until == 0:
            w.spin_until = now + (w.spin_ns if now >= w.spin_again else 0)
        if now < w.spin_until:
            # Whoever is to send the next event may be waiting for this very core.
            sched_yield()
            if now_ns() - now > YIELD_LONG:
                w.spin_pause = min(max(2 * w.spin_pause, <int64_t>PAUSE_MIN), <int64_t>PAUSE_MAX)
                w.spin_again = now + w.spin_pause
                w.spin_until = 0
            return 0
        w.spin_ns = max(w.spin_ns // 2, w.spin_max // SPIN_FLOOR)
        w.spin_until = 0
        w.rdma_recent = False
    return TICK_MS if w.nstreams or w.ncm or w.idle_timeout or setups_wait(w) else -1


cdef unsigned int poll_rings(worker *w, int *timeout) noexcept nogil:
    cdef unsigned int found = 0
    cdef unsigned int k
    cdef int _look
    cdef soft_found seen
    cdef int looks = RING_LOOKS if w.spin_until and w.run_head == NULL else 1
    assert_owner(w.thread.owner)
    if w.rdma[TRANSPORT_SOFT_SHM] == NULL:
        return 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] == NULL:
            continue
        if timeout[0] != 0:
            if not rdma_thread_arm(w.rdma[k]):
                continue
            timeout[0] = 0
        for _look in range(looks):
            seen = rdma_thread_poll(w.rdma[k], False)
            if seen == FOUND_EVENTS:
                found |= 1 << k
            # Each look may do a turn's work.
            if seen != FOUND_NOTHING:
                break
            cpu_relax()
    return found


cdef bint is_channel(worker *w, const epoll_event *event) noexcept nogil:
    return <void *>&w.rdma[0] <= event.data.ptr < <void *>&w.rdma[RDMA_DEVICES]


cdef unsigned int channel_readable(worker *w, const epoll_event *event) noexcept nogil:
    cdef unsigned int k = <unsigned int>(<rdma_thread **>event.data.ptr - &w.rdma[0])
    if w.rdma[k] != NULL:
        rdma_thread_poll(w.rdma[k], True)
    return 1 << k


cdef void run_devices(worker *w, unsigned int which) noexcept nogil:
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if which >> k & 1 and w.rdma[k] != NULL and rdma_thread_run(w.rdma[k]):
            w.rdma_runnable |= 1 << k


cdef void serve_devices(worker *w, unsigned int ready) noexcept nogil:
    """Those that never stop come behind the others, whose clients would wait for a turn of theirs as well."""
    cdef unsigned int k, last = 0
    assert_owner(w.thread.owner)
    if w.spin_until:
        if now_ns() < w.spin_until:
            w.spin_ns = min(w.spin_ns * 2, w.spin_max)
            w.spin_pause = 0
        w.spin_until = 0
    w.rdma_runnable = 0
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_gives_way(w.rdma[k]):
            last |= 1 << k
    run_devices(w, ready & ~last)
    run_devices(w, ready & last)
    w.rdma_recent = True

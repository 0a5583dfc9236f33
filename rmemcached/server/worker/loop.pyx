cdef enum:
    MAX_EVENTS = 128
    TURN_BYTES = 512 * 1024      # of replies and payloads in a turn; with more, tests/hostile finds delayed clients
    ASK_NS = 10000               # how long sources may be served without asking epoll


cdef inline void connection_event(connection *cn, uint32_t events) noexcept nogil:
    """Serves an event of a connection."""
    if cn.stream.fd < 0:
        return
    if cn.flags & CONNECTION_CM:
        # The descriptor is rdma_cm's, in place of a socket: its events tell only of the connection's end.
        if cm_ended(cn.stream.fd) != 0:
            connection_gone(cn)
    elif cn.flags & CONNECTION_HANDSHAKE:
        handshake_ready(cn)
    elif cn.flags & CONNECTION_BLOCKED:
        if events & (EPOLLOUT | EPOLLERR | EPOLLHUP):
            connection_writable(cn)
    elif cn.flags & CONNECTION_WAITS:
        # Nothing is read or sent before the result has come. An unread socket would make an event in every turn.
        if events & (EPOLLERR | EPOLLHUP):
            connection_end(cn, True)
        else:
            connection_interest(cn, 0)
    elif cn.ahead:
        connection_run_ahead(cn)
    elif cn.c.state == conn_auth:
        if events & (EPOLLERR | EPOLLHUP):
            connection_gone(cn)
    elif not cn.flags & CONNECTION_RUNNABLE and not queue_for_turn(cn):
        connection_readable(cn)


# ---- the sources -----------------------------------------------------------------------------------------------------

cdef inline bint begin_sources(worker *w) noexcept nogil:
    """Begins the turn of each active source. Returns whether any source has used up its last turn."""
    cdef unsigned int i
    cdef bint used_up = False
    for i in range(w.nsources):
        if w.sources[i].active:
            used_up |= w.sources[i].calls.begin(w.sources[i])
    return used_up


cdef inline int arm_sources(worker *w) noexcept nogil:
    """Arms the sources and returns the timeout of epoll_wait. Stops at the first source with work: then 0."""
    cdef unsigned int i
    cdef int longest
    cdef int timeout = TICK_MS if w.nstreams or w.ncm or w.idle_timeout else -1
    for i in range(w.nsources):
        if w.sources[i].active:
            longest = w.sources[i].calls.arm(w.sources[i])
            if longest == 0:
                return 0
            # -1, no limit, is the largest unsigned number.
            timeout = <int>min(<unsigned int>timeout, <unsigned int>longest)
    return timeout


cdef inline bint poll_sources(worker *w) noexcept nogil:
    """Polls each active source. Returns whether any source has something to serve."""
    cdef unsigned int i
    cdef bint found = False
    for i in range(w.nsources):
        if w.sources[i].active:
            found |= w.sources[i].calls.poll(w.sources[i], found or has_runnable(w))
    return found


cdef inline bint must_ask(worker *w, bint found, bint used_up) noexcept nogil:
    """Whether to ask epoll in this turn. Every ASK_NS is enough while sources find work, unless a source has used up
    its turn or a connection waits for its turn."""
    cdef int64_t now
    if not found or has_runnable(w) or used_up:
        return True
    now = now_ns()
    if now - w.asked < ASK_NS:
        return False
    w.asked = now
    return True


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef void *worker_main(void *arg) noexcept nogil:
    """A worker's thread."""
    cdef worker *w = <worker *>arg
    cdef epoll_event events[MAX_EVENTS]
    cdef worker_event kind
    cdef unsigned int k
    cdef int i, n, timeout
    cdef bint used_up, found
    w.thread.owner = thread_id()
    log_thread_sfd(&w.thread.cur_sfd)
    while not load_acquire(w.stop):
        used_up = begin_sources(w)
        timeout = 0 if used_up or has_runnable(w) or w.dead != NULL else arm_sources(w)
        found = timeout == 0 and poll_sources(w)
        n = epoll_wait(w.epfd, events, MAX_EVENTS, timeout) if must_ask(w, found, used_up) else 0
        # The events point to queue pairs, and the calls below may end queue pairs: so the sources come first.
        for k in range(w.nsources):
            w.sources[k].calls.take_events(w.sources[k], events, n)
        w.turn_left = TURN_BYTES
        w.lanes_left = LANES_PER_TURN
        if w.sending.head != NULL:
            run_sending(w)
        for i in range(n):
            if i % READ_AHEAD == 0:
                read_ahead(w, &events[i], min(n - i, <int>READ_AHEAD))
            kind = event_kind(&events[i])
            if kind == EVENT_QUEUE:
                take_handovers(w)
            elif kind == EVENT_UDP:
                udp_ready(event_udp(&events[i]))
            elif kind == EVENT_CONNECTION:
                connection_event(event_connection(&events[i]), events[i].events)
        for k in range(w.nsources):
            if w.sources[k].active:
                w.sources[k].calls.serve(w.sources[k])
        if w.holding.head != NULL:
            run_holding(w)
        if w.runnable.head != NULL:
            run_runnable(w)
        enforce_timeouts(w)
        if w.dead != NULL:
            end_lanes(w)
            free_dead(w)
    for k in range(w.nsources):
        w.sources[k].calls.end(w.sources[k])
    # From here on the joining thread owns the worker.
    w.thread.owner = 0
    return NULL


cdef bint worker_init(worker *w) noexcept nogil:
    cdef epoll_event ev
    live_add(LIVE_WORKER)
    w.epfd = epoll_create1(EPOLL_CLOEXEC)
    w.notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    w.rbuf = <char *>malloc(READ_BUFFERS_SIZE)
    w.queue_tail = &w.queue_head
    w.results_tail = &w.results
    w.thread.post = worker_post
    pthread_mutex_init(&w.queue_lock, NULL)
    pthread_mutex_init(&w.list_lock, NULL)
    init_lane_hooks(w)
    if w.epfd < 0 or w.notify_fd < 0 or w.rbuf == NULL:
        return False
    ev.events = EPOLLIN
    ev.data.u64 = QUEUE_DATA
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, w.notify_fd, &ev) != 0:
        return False
    return rdma_source_init(w)


cdef bint worker_add_udp(worker *w, int fd) noexcept nogil:
    cdef udp_socket *u = udp_open(&w.thread, w.epfd, fd)
    if u == NULL:
        return False
    u.next = w.udp
    w.udp = u
    return True


cdef int worker_start(worker *w) noexcept nogil:
    return start_thread(&w.id, b"mc-worker", worker_main, w)


cdef void worker_destroy(worker *w) noexcept nogil:
    cdef handover *h
    cdef udp_socket *u
    cdef connection *cn
    assert_that(w.thread.owner == 0)
    take_sessions(w, w.delivered)
    w.delivered = NULL
    while w.connections != NULL:
        connection_end(w.connections, True)
    while w.udp != NULL:
        u = w.udp
        w.udp = u.next
        udp_close(u)
    w.runnable.head = NULL
    w.sending.head = NULL
    w.holding.head = NULL
    w.lanes_left = UINT32_MAX
    end_lanes(w)
    drop_results(w)
    cn = w.dead
    while cn != NULL:
        cn.flags &= ~CONNECTION_RUNNABLE
        cn = cn.next
    free_dead(w)
    while w.queue_head != NULL:
        h = w.queue_head
        w.queue_head = h.next
        if h.kind == HANDOVER_STREAM:
            h.stream.calls.end(&h.stream)
        else:
            close(h.fd)
        free(h.stream_request)
        free(h)
    rdma_source_destroy(&w.rdma)
    conn_thread_release(&w.thread)
    if w.epfd >= 0:
        close(w.epfd)
    if w.notify_fd >= 0:
        close(w.notify_fd)
    free(w.rbuf)
    w.rbuf = NULL
    pthread_mutex_destroy(&w.queue_lock)
    pthread_mutex_destroy(&w.list_lock)
    live_sub(LIVE_WORKER)

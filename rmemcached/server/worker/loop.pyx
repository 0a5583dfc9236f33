cdef enum:
    MAX_EVENTS = 128
    TURN_BYTES = 512 * 1024      # of replies and payloads in a turn; with more, tests/hostile finds others delayed


cdef inline void connection_event(connection *cn, uint32_t events) noexcept nogil:
    if cn.fd < 0:
        return
    if cn.flags & CONNECTION_CM:
        if cm_ended(cn.fd) != 0:
            connection_gone(cn)
    elif cn.flags & CONNECTION_BLOCKED:
        if events & (EPOLLOUT | EPOLLERR | EPOLLHUP):
            connection_writable(cn)
    elif cn.ahead:
        connection_run_ahead(cn)
    elif not cn.flags & CONNECTION_RUNNABLE and not queue_for_turn(cn):
        connection_readable(cn)


cdef void *worker_main(void *arg) noexcept nogil:
    cdef worker *w = <worker *>arg
    cdef epoll_event events[MAX_EVENTS]
    cdef worker_event kind
    cdef int i, n
    cdef int timeout
    cdef unsigned int rdma_ready     # bit per device
    w.thread.owner = thread_id()
    log_thread_sfd(&w.thread.cur_sfd)
    while not load_acquire(w.stop):
        begin_rdma_turn(w)
        rdma_ready = poll_devices(w, &timeout)
        n = epoll_wait(w.epfd, events, MAX_EVENTS, timeout) if must_ask(w, rdma_ready) else 0
        w.turn_left = TURN_BYTES
        w.lanes_left = LANES_PER_TURN
        if w.sending.head != NULL:
            run_sending(w)
        take_soft_events(w, events, n)
        for i in range(n):
            if i % READ_AHEAD == 0:
                read_ahead(w, &events[i], min(n - i, <int>READ_AHEAD))
            kind = event_kind(&events[i])
            if kind == EVENT_QUEUE:
                take_handovers(w)
            elif kind == EVENT_CHANNEL:
                rdma_ready |= take_channel_event(w, &events[i])
            elif kind == EVENT_UDP:
                udp_ready(event_udp(&events[i]))
            elif kind == EVENT_CONNECTION:
                connection_event(event_connection(&events[i]), events[i].events)
        rdma_ready |= w.rdma_runnable | pending_devices(w)
        if rdma_ready:
            serve_devices(w, rdma_ready)
        if w.runnable.head != NULL:
            run_runnable(w)
        enforce_timeouts(w)
        if w.dead != NULL:
            end_lanes(w)
            free_dead(w)
    end_rdma_turns(w)
    # The joining thread owns the rest.
    w.thread.owner = 0
    return NULL


cdef int worker_init(worker *w) noexcept nogil:
    cdef epoll_event ev
    cdef unsigned int i
    live_add(LIVE_WORKER)
    w.epfd = epoll_create1(EPOLL_CLOEXEC)
    w.notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    w.rbuf = <char *>malloc(READ_BUFFERS_SIZE)
    w.queue_tail = &w.queue_head
    pthread_mutex_init(&w.queue_lock, NULL)
    pthread_mutex_init(&w.list_lock, NULL)
    init_lane_hooks(w)
    if w.epfd < 0 or w.notify_fd < 0 or w.rbuf == NULL:
        return -1
    ev.events = EPOLLIN
    ev.data.u64 = QUEUE_DATA
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, w.notify_fd, &ev) != 0:
        return -1
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.devices[i] != NULL and not take_device(w, i, w.devices[i]):
            return -1
    return 0


cdef int worker_add_udp(worker *w, int fd) noexcept nogil:
    cdef udp_socket *u = udp_open(&w.thread, w.epfd, fd)
    if u == NULL:
        return -1
    u.next = w.udp
    w.udp = u
    return 0


cdef int worker_start(worker *w) noexcept nogil:
    cdef int err = pthread_create(&w.id, NULL, worker_main, w)
    if err == 0:
        pthread_setname_np(w.id, b"mc-worker")
    return err


cdef void worker_destroy(worker *w) noexcept nogil:
    cdef handover *h
    cdef unsigned int i
    cdef udp_socket *u
    cdef connection *cn
    assert_that(w.thread.owner == 0)
    while w.connections != NULL:
        connection_end(w.connections, True)
    while w.udp != NULL:
        u = w.udp
        w.udp = u.next
        udp_close(u)
    w.runnable.head = NULL
    w.sending.head = NULL
    w.lanes_left = UINT32_MAX
    end_lanes(w)
    cn = w.dead
    while cn != NULL:
        cn.flags &= ~CONNECTION_RUNNABLE
        cn = cn.next
    free_dead(w)
    while w.queue_head != NULL:
        h = w.queue_head
        w.queue_head = h.next
        close(h.fd)
        free(h.stream_request)
        free(h)
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[i] != NULL:
            rdma_thread_destroy(w.rdma[i])
            w.rdma[i] = NULL
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

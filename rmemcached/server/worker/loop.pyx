cdef void *worker_main(void *arg) noexcept nogil:
    cdef worker *w = <worker *>arg
    cdef epoll_event events[MAX_EVENTS]
    cdef connection *cn
    cdef int i, n
    cdef unsigned int k
    cdef int timeout
    cdef unsigned int polled         # bits per device, as are the next and rdma_runnable
    cdef unsigned int rdma_ready
    w.thread.owner = thread_id()
    log_thread_sfd(&w.thread.cur_sfd)
    while not load_acquire(w.stop):
        timeout = wait_time(w)
        polled = poll_rings(w, &timeout)
        n = epoll_wait(w.epfd, events, MAX_EVENTS, timeout)
        rdma_ready = w.rdma_runnable | polled
        for i in range(n):
            if events[i].data.ptr == NULL:
                take_handovers(w)
            elif <void *>&w.rdma[0] <= events[i].data.ptr < <void *>&w.rdma[RDMA_DEVICES]:
                k = <unsigned int>(<rdma_thread **>events[i].data.ptr - &w.rdma[0])
                if w.rdma[k] != NULL:
                    rdma_thread_poll(w.rdma[k], True)
                rdma_ready |= 1 << k
            elif events[i].data.u64 & UDP_TAG:
                udp_ready(<udp_socket *><uintptr_t>(events[i].data.u64 - UDP_TAG))
            else:
                cn = <connection *>events[i].data.ptr
                if cn.fd < 0:
                    continue
                if cn.flags & CONNECTION_CM:
                    if cm_ended(cn.fd) != 0:
                        connection_gone(cn)
                elif cn.flags & CONNECTION_BLOCKED:
                    if events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP):
                        connection_writable(cn)
                elif not cn.flags & CONNECTION_RUNNABLE:
                    connection_readable(cn)
        if rdma_ready:
            if w.spin_until:
                if now_ns() < w.spin_until:
                    w.spin_ns = min(w.spin_ns * 2, w.spin_max)
                w.spin_until = 0
            w.rdma_runnable = 0
            for k in range(<unsigned int>RDMA_DEVICES):
                if rdma_ready >> k & 1 and w.rdma[k] != NULL and rdma_thread_run(w.rdma[k]):
                    w.rdma_runnable |= 1 << k
            w.rdma_recent = True
        if w.run_head != NULL:
            run_runnable(w)
        if w.nstreams:
            drop_slow_streams(w)
        if w.ncm:
            probe_silent(w)
        if w.idle_timeout:
            close_idle(w)
        if w.dead != NULL:
            free_dead(w)
    # What is left is freed by the thread that joins this one.
    w.thread.owner = 0
    return NULL


cdef int worker_init(worker *w) noexcept nogil:
    """Makes the descriptors and buffers; `thread`, `devices` and shared pointers are set by the caller. -1: errno."""
    cdef epoll_event ev
    cdef unsigned int i
    w.epfd = epoll_create1(EPOLL_CLOEXEC)
    w.notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    w.rbuf = <char *>malloc(READ_BUFFER_SIZE)
    w.queue_tail = &w.queue_head
    w.run_tail = &w.run_head
    pthread_mutex_init(&w.queue_lock, NULL)
    pthread_mutex_init(&w.list_lock, NULL)
    if w.epfd < 0 or w.notify_fd < 0 or w.rbuf == NULL:
        return -1
    ev.events = EPOLLIN
    ev.data.ptr = NULL
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, w.notify_fd, &ev) != 0:
        return -1
    for i in range(<unsigned int>RDMA_DEVICES):
        if w.devices[i] != NULL and not take_device(w, i, w.devices[i]):
            return -1
    return 0


cdef int worker_add_udp(worker *w, int fd) noexcept nogil:
    """Gives the worker, which has not been started, a UDP socket to serve; it closes it. -1: errno."""
    cdef udp_socket *u = udp_open(&w.thread, w.epfd, fd)
    if u == NULL:
        return -1
    u.next = w.udp
    w.udp = u
    return 0


cdef int worker_start(worker *w) noexcept nogil:
    """Starts the thread. Returns 0 or an errno."""
    cdef int err = pthread_create(&w.id, NULL, worker_main, w)
    if err == 0:
        pthread_setname_np(w.id, b"mc-worker")
    return err


cdef void worker_destroy(worker *w) noexcept nogil:
    """Ends all connections and frees everything. The thread has been joined, or was never started."""
    cdef handover *h
    cdef unsigned int i
    cdef udp_socket *u
    while w.connections != NULL:
        connection_end(w.connections, True)
    while w.udp != NULL:
        u = w.udp
        w.udp = u.next
        udp_close(u)
    w.run_head = NULL
    while w.dead != NULL:
        w.dead.flags &= ~CONNECTION_RUNNABLE
        cn = w.dead
        w.dead = cn.next
        free(cn)
    while w.queue_head != NULL:
        h = w.queue_head
        w.queue_head = h.next
        close(h.fd)
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

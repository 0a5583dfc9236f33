# Accepting connections within the limit of -c, and choosing their workers. Included in server.pyx; all of it is the
# main thread's.

cdef enum:
    ACCEPT_RETRY_MS = 10         # while nothing is accepted: how often to look whether it can go on
    ACCEPT_RETRY_US = 1000000    # it is tried again after this time even if no connection ended


cdef uint64_t now_us() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000 + <uint64_t>t.tv_nsec // 1000


cdef void listen_to(server *s, uint32_t events) noexcept nogil:
    cdef epoll_event ev
    cdef unsigned int i
    for i in range(s.nlisteners):
        if s.listeners[i].transport != LOG_UDP:
            ev.events = events
            ev.data.u64 = i
            epoll_ctl(s.epfd, EPOLL_CTL_MOD, s.listeners[i].fd, &ev)


cdef void stop_listening(server *s) noexcept nogil:
    """Leaves further connections in the kernel's queue until one ends."""
    if relaxed_load(&s.hooks.verbose):
        fprintf(stderr, b"Too many open connections\n")
    listen_to(s, 0)
    s.disabled_at = now_us()
    s.disabled_with = relaxed_load(&s.curr_connections)
    relaxed_store(&s.listen_disabled, 1)
    counter_add(&s.listen_disabled_num, 1)


cdef void resume_listening(server *s) noexcept nogil:
    """Accepts again if a connection has ended, or after a while."""
    cdef uint64_t elapsed = now_us() - s.disabled_at
    cdef uint64_t count = relaxed_load(&s.curr_connections)
    if count >= s.settings.maxconns or (count >= s.disabled_with and elapsed < ACCEPT_RETRY_US):
        return
    counter_add(&s.time_in_listen_disabled_us, elapsed)
    relaxed_store(&s.listen_disabled, 0)
    listen_to(s, EPOLLIN)


cdef worker *next_in_turn(server *s) noexcept nogil:
    s.next_worker = (s.next_worker + 1) % s.settings.num_threads
    return &s.workers[s.next_worker]


cdef worker *select_worker(server *s, int fd) noexcept nogil:
    """The worker of a new connection: in turn or, with -N, one for each receive queue of the network card (memcached:
    thread.c, select_thread_by_napi_id)."""
    cdef unsigned int napi_id = 0, i
    cdef socklen_t length = sizeof(napi_id)
    if s.settings.num_napi_ids == 0:
        return next_in_turn(s)
    if getsockopt(fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi_id, &length) != 0 or napi_id == 0:
        counter_add(&s.round_robin_fallback, 1)
        return next_in_turn(s)
    for i in range(s.napi_known):
        if s.workers[i].napi_id == napi_id:
            return &s.workers[i]
    if s.napi_known == s.settings.num_threads:
        # More queues than workers: start over.
        counter_add(&s.unexpected_napi_ids, 1)
        s.napi_known = 0
    i = s.napi_known
    s.workers[i].napi_id = napi_id
    s.napi_known += 1
    return &s.workers[i]


cdef void accept_all(server *s, const listener *l) noexcept nogil:
    """Accepts until nothing is left, and hands each socket to a worker."""
    cdef int sfd, one = 1
    cdef const char *full = b"ERROR Too many open connections\r\n"
    cdef log_peer peer
    cdef socklen_t length
    while True:
        if not s.settings.maxconns_fast and relaxed_load(&s.curr_connections) >= s.settings.maxconns:
            stop_listening(s)
            return
        memset(&peer, 0, sizeof(peer))
        length = sizeof(peer.addr)
        peer.transport = l.transport
        if l.transport == LOG_TCP:
            sfd = accept4(l.fd, <sockaddr *>&peer.addr, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)
        else:
            sfd = accept4(l.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if sfd < 0:
            if errno == EINTR or errno == ECONNABORTED:
                continue
            if errno == EMFILE or errno == ENFILE:
                stop_listening(s)
            return
        if fetch_add(&s.curr_connections, 1) >= s.settings.maxconns:
            fetch_sub(&s.curr_connections, 1)
            counter_add(&s.rejected_connections, 1)
            send(sfd, full, strlen(full), MSG_DONTWAIT | MSG_NOSIGNAL)
            close(sfd)
            continue
        if l.transport == LOG_TCP:
            setsockopt(sfd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            setsockopt(sfd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one))
        counter_add(&s.total_connections, 1)
        if worker_dispatch(select_worker(s, sfd), sfd, l.prot, &peer) != 0:
            close(sfd)
            fetch_sub(&s.curr_connections, 1)

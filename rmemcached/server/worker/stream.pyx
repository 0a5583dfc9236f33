cdef enum:
    STREAM_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX   # octets of the longest request
    STREAM_KEY_LENGTH = MPA_KEY_SIZE     # octets that mark a request; soft_shm's key has as many


cdef inline rdma_transport stream_transport(const connection *cn) noexcept nogil:
    """The transport whose streams come over sockets of this kind."""
    return TRANSPORT_SOFT_SHM if cn.peer.transport == LOG_LOCAL else TRANSPORT_SOFT_IW


cdef inline const char *stream_key(const connection *cn) noexcept nogil:
    return SHM_REQUEST_KEY if cn.peer.transport == LOG_LOCAL else MPA_REQUEST_KEY


cdef bint check_for_stream(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    cn.flags &= ~CONNECTION_FRESH
    if cn.flags & CONNECTION_STREAM:
        return True
    return cn.c.rcurr[0] == stream_key(cn)[0] and cn.w.rdma.threads[stream_transport(cn)] != NULL


cdef void hand_over_stream(connection *cn, uint32_t number) noexcept nogil:
    """Gives the socket to the worker of its queue pair, and ends this connection."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef rdma_transport transport = stream_transport(cn)
    cdef int fd = cn.fd
    # The stream has its worker already, but took a turn among the connections. Without this correction every second
    # worker of an even number would get no queue pairs.
    if w.turns_back != NULL:
        fetch_add(w.turns_back, 1)
    # An open socket would stay in this epoll set.
    epoll_ctl(w.epfd, EPOLL_CTL_DEL, fd, NULL)
    if number == w.number:
        rdma_thread_attach(w.rdma.threads[transport], fd, c.rcurr, c.rbytes)
    else:
        # The socket counts as a connection until the new worker has taken the handover.
        fetch_add(w.curr_connections, 1)
        if number >= w.nall or not worker_dispatch_stream(&w.all[number], fd, transport, c.rcurr, c.rbytes):
            fetch_sub(w.curr_connections, 1)
            rdma_thread_refuse(w.rdma.threads[transport], fd, c.rcurr, c.rbytes)
    c.close_reason = NORMAL_CLOSE
    connection_end(cn, False)


cdef void stream_readable(connection *cn) noexcept nogil:
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef uint32_t number = UINT32_MAX    # no worker's number
    assert_owner(w.thread.owner)
    if memcmp(c.rcurr, stream_key(cn), min(c.rbytes, <size_t>STREAM_KEY_LENGTH)) != 0:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
        if cn.flags & CONNECTION_STREAM:
            cn.flags &= ~CONNECTION_STREAM
            w.nstreams -= 1
        connection_run(cn)
    elif rdma_thread_route(w.rdma.threads[stream_transport(cn)], c.rcurr, c.rbytes, &number) != 0:
        hand_over_stream(cn, number)
    elif c.rbytes >= STREAM_REQUEST_MAX or not keep_input(cn):
        connection_end(cn, True)
    elif not cn.flags & CONNECTION_STREAM:
        cn.flags |= CONNECTION_STREAM
        w.nstreams += 1

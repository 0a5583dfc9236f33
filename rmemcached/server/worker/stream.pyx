cdef enum:
    STREAM_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX   # octets of the longest request
    STREAM_KEY_LENGTH = MPA_KEY_SIZE     # octets by which a request is known; soft_shm's are as many


cdef inline rdma_transport stream_transport(const connection *cn) noexcept nogil:
    """Whose streams come over sockets of this kind."""
    return TRANSPORT_SOFT_SHM if cn.peer.transport == LOG_LOCAL else TRANSPORT_SOFT_IW


cdef inline const char *stream_key(const connection *cn) noexcept nogil:
    return SHM_REQUEST_KEY if cn.peer.transport == LOG_LOCAL else MPA_REQUEST_KEY


cdef bint begins_stream(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    cn.flags &= ~CONNECTION_FRESH
    if cn.flags & CONNECTION_STREAM:
        return True
    return cn.c.rcurr[0] == stream_key(cn)[0] and cn.w.rdma[stream_transport(cn)] != NULL


cdef void hand_over_stream(connection *cn, uint32_t number) noexcept nogil:
    """The socket goes to the worker whose queue pair it is for, and this connection ends."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef rdma_transport transport = stream_transport(cn)
    cdef int fd = cn.fd
    # It has its worker, and came between connections that are given out in turn: every other worker of an even number
    # would get no queue pairs.
    if w.turns_back != NULL:
        fetch_add(w.turns_back, 1)
    # It would stay in this epoll set as long as it is open.
    epoll_ctl(w.epfd, EPOLL_CTL_DEL, fd, NULL)
    if number == w.number:
        rdma_thread_attach(w.rdma[transport], fd, c.rcurr, c.rbytes)
    else:
        # The other worker counts it as a connection until it has taken it.
        fetch_add(w.curr_connections, 1)
        if number >= w.nall or worker_dispatch_stream(&w.all[number], fd, transport, c.rcurr, c.rbytes) != 0:
            fetch_sub(w.curr_connections, 1)
            rdma_thread_refuse(w.rdma[transport], fd, c.rcurr, c.rbytes)
    c.close_reason = NORMAL_CLOSE
    connection_end(cn, False)


cdef void stream_readable(connection *cn) noexcept nogil:
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef uint32_t number = UINT32_MAX    # that of no worker
    assert_owner(w.thread.owner)
    if memcmp(c.rcurr, stream_key(cn), min(c.rbytes, <size_t>STREAM_KEY_LENGTH)) != 0:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
        if cn.flags & CONNECTION_STREAM:
            cn.flags &= ~CONNECTION_STREAM
            w.nstreams -= 1
        connection_run(cn)
    elif rdma_thread_route(w.rdma[stream_transport(cn)], c.rcurr, c.rbytes, &number) != 0:
        hand_over_stream(cn, number)
    elif c.rbytes >= STREAM_REQUEST_MAX or not keep_input(cn):
        connection_end(cn, True)
    elif not cn.flags & CONNECTION_STREAM:
        cn.flags |= CONNECTION_STREAM
        w.nstreams += 1

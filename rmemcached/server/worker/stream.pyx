cdef unsigned int stream_transport(const connection *cn) noexcept nogil:
    """The transport whose requests for a stream begin like the input, on a socket of this kind. RDMA_DEVICES: none."""
    cdef const transport_ops *transport
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        transport = transport_of(k)
        if (cn.w.rdma.threads[k] != NULL and transport.key != NULL
                and transport.near == (cn.peer.transport == LOG_LOCAL)
                and memcmp(cn.c.rcurr, transport.key, min(cn.c.rbytes, <size_t>STREAM_KEY_LENGTH)) == 0):
            return k
    return RDMA_DEVICES


cdef bint wants_stream(connection *cn) noexcept nogil:
    """Whether a socket without a byte read begins like a request, as far as its input goes."""
    cdef char head[STREAM_KEY_LENGTH]
    cdef ssize_t n = recv(cn.stream.fd, head, STREAM_KEY_LENGTH, MSG_PEEK)
    cdef bint wants
    if n <= 0:
        return False
    cn.c.rcurr = head
    cn.c.rbytes = <uint32_t>n
    wants = stream_transport(cn) != RDMA_DEVICES
    cn.c.rcurr = NULL
    cn.c.rbytes = 0
    return wants


cdef bint check_for_stream(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    cn.flags &= ~CONNECTION_FRESH
    return (cn.flags & CONNECTION_STREAM) != 0 or stream_transport(cn) != RDMA_DEVICES


cdef void hand_over_stream(connection *cn, unsigned int transport, uint32_t number) noexcept nogil:
    """Gives the socket to the worker of its queue pair, and ends this connection."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef stream s
    # The stream has its worker already, but took a turn among the connections. Without this correction every second
    # worker of an even number would get no queue pairs.
    if w.turns_back != NULL:
        fetch_add(w.turns_back, 1)
    # The socket stays open, and would stay in this epoll set.
    epoll_ctl(w.epfd, EPOLL_CTL_DEL, cn.stream.fd, NULL)
    stream_move(&s, &cn.stream)
    if number == w.number:
        rdma_thread_attach(w.rdma.threads[transport], &s, c.rcurr, c.rbytes)
    else:
        # The socket counts as a connection until the new worker has taken the handover.
        fetch_add(w.curr_connections, 1)
        if number >= w.nall or not worker_dispatch_stream(&w.all[number], &s, transport, c.rcurr, c.rbytes):
            fetch_sub(w.curr_connections, 1)
            rdma_thread_refuse(w.rdma.threads[transport], &s, c.rcurr, c.rbytes)
    c.close_reason = NORMAL_CLOSE
    connection_end(cn, False)


cdef void stream_readable(connection *cn) noexcept nogil:
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef uint32_t number = UINT32_MAX    # no worker's number
    cdef unsigned int transport = stream_transport(cn)
    assert_owner(w.thread.owner)
    if transport == RDMA_DEVICES:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
        if cn.flags & CONNECTION_STREAM:
            cn.flags &= ~CONNECTION_STREAM
            w.nstreams -= 1
        connection_run(cn)
    elif rdma_thread_route(w.rdma.threads[transport], c.rcurr, c.rbytes, &number) != 0:
        hand_over_stream(cn, transport, number)
    elif c.rbytes >= STREAM_REQUEST_MAX or not keep_input(cn):
        connection_end(cn, True)
    elif not cn.flags & CONNECTION_STREAM:
        cn.flags |= CONNECTION_STREAM
        w.nstreams += 1

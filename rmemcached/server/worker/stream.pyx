cdef enum:
    REQUEST_KEY_LENGTH = 16      # octets by which a request for a stream is known
    STREAM_REQUEST_MAX = 532     # octets of the longest MPA request frame


cdef rdma_device *stream_device(const connection *cn) noexcept nogil:
    """The device whose streams come over sockets of this kind, if there is one."""
    return cn.w.devices[TRANSPORT_SOFT_SHM if cn.peer.transport == LOG_LOCAL else TRANSPORT_SOFT_IW]


cdef inline bint begins_stream(const connection *cn, char first) noexcept nogil:
    """Whether it may be a request for a stream."""
    return first == (c'S' if cn.peer.transport == LOG_LOCAL else c'M') and stream_device(cn) != NULL


cdef void stream_readable(connection *cn) noexcept nogil:
    """The connection began like a stream's request: collects the frame and hands the socket to its queue pair."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef int done
    cdef const char *request = b"SHM ID Req Frame" if cn.peer.transport == LOG_LOCAL else b"MPA ID Req Frame"
    if memcmp(c.rcurr, request, c.rbytes if c.rbytes < REQUEST_KEY_LENGTH else REQUEST_KEY_LENGTH) != 0:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
        # A line that begins with the same letters.
        if cn.flags & CONNECTION_STREAM:
            cn.flags &= ~CONNECTION_STREAM
            w.nstreams -= 1
        connection_run(cn)
        return
    done = rdma_stream_request(stream_device(cn), cn.fd, c.rcurr, c.rbytes)
    if done == 0:
        if c.rbytes >= STREAM_REQUEST_MAX or not keep_input(cn):
            connection_end(cn, True)
        elif not cn.flags & CONNECTION_STREAM:
            cn.flags |= CONNECTION_STREAM
            w.nstreams += 1
        return
    if done == 1:
        # The socket lives on in the queue pair: it must leave this epoll set by hand.
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, cn.fd, NULL)
    connection_end(cn, done != 1)

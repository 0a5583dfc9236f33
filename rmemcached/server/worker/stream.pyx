cdef enum:
    STREAM_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX   # octets of the longest request
    STREAM_KEY_LENGTH = MPA_KEY_SIZE     # octets by which a request is known; soft_shm's are as many


cdef inline rdma_device *stream_device(const connection *cn) noexcept nogil:
    """The device whose streams come over sockets of this kind, if there is one."""
    return cn.w.devices[TRANSPORT_SOFT_SHM if cn.peer.transport == LOG_LOCAL else TRANSPORT_SOFT_IW]


cdef inline const char *stream_key(const connection *cn) noexcept nogil:
    return SHM_REQUEST_KEY if cn.peer.transport == LOG_LOCAL else MPA_REQUEST_KEY


cdef bint begins_stream(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    cn.flags &= ~CONNECTION_FRESH
    if cn.flags & CONNECTION_STREAM:
        return True
    return cn.c.rcurr[0] == stream_key(cn)[0] and stream_device(cn) != NULL


cdef void stream_readable(connection *cn) noexcept nogil:
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef int done
    assert_owner(w.thread.owner)
    if memcmp(c.rcurr, stream_key(cn), min(c.rbytes, <size_t>STREAM_KEY_LENGTH)) != 0:
        if cn.flags & CONNECTION_STREAM_ONLY:
            connection_end(cn, True)
            return
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
        # The socket stays open, as the queue pair's, and would stay in this epoll set.
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, cn.fd, NULL)
    connection_end(cn, done != 1)

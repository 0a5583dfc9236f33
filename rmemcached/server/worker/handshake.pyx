cdef inline tls_session *session_of(const connection *cn) noexcept nogil:
    return <tls_session *>cn.stream.state


cdef void take_in_the_clear(connection *cn) noexcept nogil:
    """The socket is to be the stream of a queue pair, which the server allows beside TLS (rdma_cleartext)."""
    tls_abandon(&cn.stream)
    cn.stream.calls = &plain_stream
    cn.flags = CONNECTION_STREAM | CONNECTION_STREAM_ONLY
    cn.w.nstreams += 1
    connection_readable(cn)


cdef void handshake_ready(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    if cn.w.cleartext and session_of(cn).ssl == NULL and wants_stream(cn):
        take_in_the_clear(cn)
        return
    cn.flags |= CONNECTION_LENT
    epoll_ctl(cn.w.epfd, EPOLL_CTL_DEL, cn.stream.fd, NULL)
    handshakes_add(cn.w.handshakes, session_of(cn), cn)


cdef void worker_handshake_done(void *owner) noexcept nogil:
    worker_give_back(owner, False, NULL, 0)


cdef void handshake_returned(connection *cn) noexcept nogil:
    cdef epoll_event ev
    cdef handshake_result result = session_of(cn).result
    assert_owner(cn.w.thread.owner)
    ev.events = cn.events = EPOLLOUT if result == HANDSHAKE_WRITES else EPOLLIN
    ev.data.ptr = cn
    if result == HANDSHAKE_FAILED or epoll_ctl(cn.w.epfd, EPOLL_CTL_ADD, cn.stream.fd, &ev) != 0:
        connection_end(cn, True)
    elif result == HANDSHAKE_DONE:
        cn.flags &= ~CONNECTION_HANDSHAKE
        if session_of(cn).keyed:
            # A key is worth no certificate: it opens nothing but the stream of its queue pair.
            cn.flags |= CONNECTION_STREAM | CONNECTION_STREAM_ONLY
            cn.w.nstreams += 1
        connection_moved(cn)
        read_held(cn)

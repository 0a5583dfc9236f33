cdef const char *connection_exchange(conn *c, const char *line, size_t length, char *reply,
                                     size_t reply_size) noexcept nogil:
    """conn_engine.exchange"""
    cdef connection *cn = <connection *>c
    cdef rdma_conn *rc
    assert_owner(cn.w.thread.owner)
    if not has_device(&cn.w.rdma):
        return b"SERVER_ERROR rdma: no transport is available here\r\n"
    rc = rdma_exchange(cn.w.rdma.threads, cn, cn.stream.fd, cn.rdma != NULL,
                       cn.w.tls if cn.stream.state != NULL else NULL, cn.w.cleartext, line, length, reply, reply_size)
    if rc != NULL:
        connection_paired(cn, rc)
        c.engine = &lifeline_engine
    return reply


cdef lend_result connection_watch(conn *c, uint32_t eflags) noexcept nogil:
    """conn_engine.watch"""
    cdef connection *cn = <connection *>c
    assert_owner(cn.w.thread.owner)
    return watchers_add(cn.w.watchers, cn, &cn.stream, eflags)


cdef crawler_result_type connection_dump(conn *c, dump_kind kind, const char *classes, size_t length) noexcept nogil:
    """conn_engine.dump"""
    cdef connection *cn = <connection *>c
    assert_owner(cn.w.thread.owner)
    return dumps_start(cn.w.dumps, cn, &cn.stream, kind, classes, length)


cdef void connection_wait_auth(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    # Epoll still reports a broken connection.
    connection_interest(cn, 0)


cdef void connection_resume_auth(conn *c) noexcept nogil:
    """conn_engine.resume_auth"""
    cdef connection *cn = <connection *>c
    assert_owner(cn.w.thread.owner)
    # A connection whose output has not left goes on when it has.
    if not cn.flags & (CONNECTION_BLOCKED | CONNECTION_RUNNABLE | CONNECTION_WAITS):
        connection_interest(cn, EPOLLIN)
        connection_run(cn)


cdef void connection_resume_reply(conn *c) noexcept nogil:
    """conn_engine.resume_reply"""
    cdef connection *cn = <connection *>c
    assert_owner(cn.w.thread.owner)
    # A connection blocked by its socket, or with a long reply, goes on by itself.
    if cn.flags & CONNECTION_WAITS:
        cn.flags &= ~CONNECTION_WAITS
        connection_interest(cn, EPOLLIN)
        if send_waiting(cn):
            connection_run(cn)


socket_engine = conn_engine(
    exchange=connection_exchange, watch=connection_watch, dump=connection_dump, pin=NULL, unpin=NULL, direct=NULL,
    given=NULL, resume_auth=connection_resume_auth, resume_reply=connection_resume_reply, remote=False,
    datagrams=False)
lifeline_engine = conn_engine(
    exchange=connection_exchange, watch=NULL, dump=NULL, pin=NULL, unpin=NULL, direct=NULL, given=NULL,
    resume_auth=connection_resume_auth, resume_reply=connection_resume_reply, remote=False, datagrams=False)


cdef void connection_lent(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    if not keep_input(cn):
        cn.flags |= CONNECTION_CLOSING
        cn.c.rbytes = 0
    cn.flags |= CONNECTION_LENT
    epoll_ctl(cn.w.epfd, EPOLL_CTL_DEL, cn.stream.fd, NULL)


cdef void connection_returned(connection *cn) noexcept nogil:
    cdef epoll_event ev
    cdef stat_buf out
    assert_owner(cn.w.thread.owner)
    assert_that(cn.flags & CONNECTION_LENT)
    cn.flags &= ~CONNECTION_LENT
    if cn.flags & CONNECTION_HANDSHAKE:
        handshake_returned(cn)
        return
    ev.events = cn.events = EPOLLIN
    ev.data.ptr = cn
    if cn.ended_by_side or cn.flags & CONNECTION_CLOSING or epoll_ctl(cn.w.epfd, EPOLL_CTL_ADD, cn.stream.fd, &ev) != 0:
        connection_end(cn, True)
        return
    conn_set_state(&cn.c, conn_new_cmd)
    if cn.rest != NULL:
        memset(&out, 0, sizeof(out))
        out.data = cn.rest
        out.used = cn.rest_length
        cn.rest = NULL
        stat_reply(&cn.c, &out)
        # The rest is sent before the input is served: the input may have another command that lends the connection, and
        # such a command needs an empty output.
        if not send_waiting(cn):
            return
    connection_run(cn)


cdef void worker_give_back(void *owner, bint ended, char *rest, size_t length) noexcept nogil:
    cdef connection *cn = <connection *>owner
    cdef worker *w = cn.w
    cn.ended_by_side = ended
    cn.rest = rest
    cn.rest_length = <uint32_t>length
    pthread_mutex_lock(&w.queue_lock)
    cn.run_next = w.given_back
    w.given_back = cn
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)

cdef enum:
    FIRST_BUFFER = 64            # bytes of a connection's smallest buffer
    SHORT_INPUT = 2048           # bytes of input: to copy so few costs less than to read into the connection's buffer
    MAX_BUFFERED = 64 * 1024 * 1024


cdef void connection_interest(connection *cn, uint32_t events) noexcept nogil:
    cdef epoll_event ev
    assert_owner(cn.w.thread.owner)
    if cn.events == events:
        return
    ev.events = events
    ev.data.ptr = cn
    epoll_ctl(cn.w.epfd, EPOLL_CTL_MOD, cn.stream.fd, &ev)
    cn.events = events


# ---- the read buffer -------------------------------------------------------------------------------------------------

cdef void set_buffer(connection *cn, char *buffer, uint32_t size) noexcept nogil:
    cdef conn_thread *t = &cn.w.thread
    cn.rbuf = buffer
    cn.rsize = size
    counter_add(&t.stats.read_buf_count, 1)
    counter_add(&t.stats.read_buf_bytes, size)


cdef void free_buffer(connection *cn) noexcept nogil:
    cdef conn_thread *t = &cn.w.thread
    counter_add(&t.stats.read_buf_count, -1)
    counter_add(&t.stats.read_buf_bytes, -<int64_t>cn.rsize)
    free(cn.rbuf)
    cn.rbuf = NULL
    cn.rsize = 0


cdef bint keep_input(connection *cn) noexcept nogil:
    cdef conn *c = &cn.c
    cdef size_t want
    cdef char *fresh
    assert_owner(cn.w.thread.owner)
    if c.rbytes == 0:
        if cn.rbuf != NULL:
            free_buffer(cn)
        return True
    if cn.rbuf != NULL and cn.rbuf <= c.rcurr < cn.rbuf + cn.rsize:
        return True
    want = FIRST_BUFFER
    while want <= c.rbytes:
        want *= 2
    fresh = <char *>malloc(want) if conn_memory(c.thread, want) else NULL
    if fresh == NULL:
        counter_add(&c.thread.stats.read_buf_oom, 1)
        return False
    memcpy(fresh, c.rcurr, c.rbytes)
    if cn.rbuf != NULL:
        free_buffer(cn)
    set_buffer(cn, fresh, <uint32_t>want)
    c.rcurr = fresh
    return True


cdef bint make_room(connection *cn) noexcept nogil:
    cdef conn *c = &cn.c
    cdef uint32_t size
    cdef char *fresh
    assert_owner(cn.w.thread.owner)
    if cn.rbuf == NULL:
        return True
    if c.rbytes <= SHORT_INPUT:
        memcpy(cn.w.rbuf, c.rcurr, c.rbytes)
        free_buffer(cn)
        c.rcurr = cn.w.rbuf
        return True
    if c.rcurr + c.rbytes < cn.rbuf + cn.rsize:
        return True
    if c.rcurr != cn.rbuf:
        memmove(cn.rbuf, c.rcurr, c.rbytes)
        c.rcurr = cn.rbuf
        return True
    # The full buffer holds a single incomplete command: a long multiget.
    if cn.rsize >= MAX_BUFFERED:
        return False
    fresh = <char *>malloc(<size_t>cn.rsize * 2) if conn_memory(c.thread, cn.rsize) else NULL
    if fresh == NULL:
        counter_add(&c.thread.stats.read_buf_oom, 1)
        return False
    memcpy(fresh, c.rcurr, c.rbytes)
    size = cn.rsize * 2
    free_buffer(cn)
    set_buffer(cn, fresh, size)
    c.rcurr = fresh
    return True


# ---- beginning and end -----------------------------------------------------------------------------------------------

cdef void log_open(const connection *cn, const conn *c) noexcept nogil:
    cdef char name[CONN_NAME]
    cdef uint8_t prot = c.protocol
    cdef logger *log = cn.w.thread.log
    if conn_logs(c):
        fprintf(stderr, b"<%s new %s\n", conn_name(c, name),
                <const char *>b"ascii client connection." if prot == ascii_prot else
                <const char *>b"binary client connection." if prot == binary_prot else
                <const char *>b"auto-negotiating client connection")
    if log_wants(log, LOG_CONNEVENTS):
        log_conn_new(log, &cn.peer, c.sfd, c.lane)


cdef void log_end(const connection *cn, const conn *c, close_reasons reason) noexcept nogil:
    cdef char name[CONN_NAME]
    cdef logger *log = cn.w.thread.log
    if log_wants(log, LOG_CONNEVENTS):
        log_conn_close(log, &cn.peer, c.sfd, c.lane, reason)
    if conn_logs(c):
        fprintf(stderr, b"<%s connection closed.\n", conn_name(c, name))


cdef connection *connection_open(worker *w, int fd, protocol prot, const log_peer *peer, unsigned int flags,
                                 tls_mode tls) noexcept nogil:
    cdef connection *cn
    cdef epoll_event ev
    assert_owner(w.thread.owner)
    cn = <connection *>calloc(1, sizeof(connection))
    if cn == NULL:
        return NULL
    ev.events = EPOLLIN
    ev.data.ptr = cn
    cn.stream.calls = &plain_stream
    cn.stream.fd = fd
    if epoll_ctl(w.epfd, EPOLL_CTL_ADD, fd, &ev) != 0:
        free(cn)
        return NULL
    if tls != TLS_OFF and not tls_begin(w.tls, tls, &cn.stream):
        epoll_ctl(w.epfd, EPOLL_CTL_DEL, fd, NULL)
        free(cn)
        return NULL
    live_add(LIVE_SERVER_CONN)
    conn_init(&cn.c, &w.thread, &socket_engine)
    cn.c.sfd = fd
    cn.c.protocol = prot
    cn.peer = peer[0]
    cn.w = w
    cn.flags = <uint16_t>flags
    cn.opened = store_time(w.thread.store)
    cn.events = EPOLLIN
    w.nstreams += flags & CONNECTION_STREAM != 0
    w.ncm += flags & CONNECTION_CM != 0
    pthread_mutex_lock(&w.list_lock)
    cn.next = w.connections
    if cn.next != NULL:
        cn.next.prev = cn
    w.connections = cn
    pthread_mutex_unlock(&w.list_lock)
    log_open(cn, &cn.c)
    return cn


cdef void connection_end(connection *cn, bint close_fd) noexcept nogil:
    cdef worker *w = cn.w
    assert_owner(w.thread.owner)
    if cn.stream.fd < 0:
        return
    pthread_mutex_lock(&w.list_lock)
    if cn.prev != NULL:
        cn.prev.next = cn.next
    else:
        w.connections = cn.next
    if cn.next != NULL:
        cn.next.prev = cn.prev
    pthread_mutex_unlock(&w.list_lock)
    if cn.rdma != NULL:
        rdma_conn_stop(cn.rdma)
        if not rdma_conn_free(cn.rdma, &w.lanes_left):
            # More lanes end in the next turns, and need the connection's data for the log.
            cn.ending = cn.rdma
        cn.rdma = NULL
        w.rdma.queue_pairs -= 1
    log_end(cn, &cn.c, <close_reasons>cn.c.close_reason)
    if close_fd:
        cn.stream.calls.end(&cn.stream)
    cn.stream.fd = -1
    if cn.flags & CONNECTION_STREAM:
        w.nstreams -= 1
    if cn.flags & CONNECTION_CM:
        w.ncm -= 1
    conn_release(&cn.c)
    if cn.rbuf != NULL:
        free_buffer(cn)
    free(cn.rest)
    cn.rest = NULL
    cn.next = w.dead
    w.dead = cn
    fetch_sub(w.curr_connections, 1)


cdef void connection_rdma_failed(void *owner, const char *line) noexcept nogil:
    """The queue pair of a lifeline is in error: tells the client, unless the line would garble a reply, and ends the
    lifeline.
    """
    cdef connection *cn = <connection *>owner
    assert_owner(cn.w.thread.owner)
    if cn.flags & CONNECTION_CM:
        # The peer sees the end; there is no socket to say why.
        if line != NULL and conn_logs(&cn.c):
            fprintf(stderr, b"<%d %s", cn.stream.fd, line)
    elif line != NULL and cn.c.npending == 0:
        stream_send(&cn.stream, line, strlen(line))
    elif line == NULL and cn.c.close_reason == ERROR_CLOSE:
        # The client has ended the queue pair. This worker sees the error before the end of the lifeline.
        cn.c.close_reason = NORMAL_CLOSE
    connection_end(cn, True)


cdef void connection_gone(connection *cn) noexcept nogil:
    assert_owner(cn.w.thread.owner)
    cn.c.close_reason = NORMAL_CLOSE
    if cn.rdma == NULL:
        connection_end(cn, True)
        return
    # Epoll would report the end of the lifeline in every turn. connection_rdma_failed follows when all input is served.
    epoll_ctl(cn.w.epfd, EPOLL_CTL_DEL, cn.stream.fd, NULL)
    rdma_conn_finish(cn.rdma)


cdef void end_lanes(worker *w) noexcept nogil:
    cdef connection *cn = w.dead
    assert_owner(w.thread.owner)
    while cn != NULL:
        if cn.ending != NULL and rdma_conn_free(cn.ending, &w.lanes_left):
            cn.ending = NULL
        cn = cn.next


cdef void free_dead(worker *w) noexcept nogil:
    cdef connection *cn = w.dead
    cdef connection *following
    assert_owner(w.thread.owner)
    w.dead = NULL
    while cn != NULL:
        following = cn.next
        if cn.flags & CONNECTION_RUNNABLE or cn.ending != NULL:
            # The run queue, or a lane, still has the pointer.
            cn.next = w.dead
            w.dead = cn
        else:
            free(cn)
            live_sub(LIVE_SERVER_CONN)
        cn = following

cdef enum:
    HANDOVERS_PER_TURN = 32      # handovers taken before the present connections have their turn


# ---- any thread ------------------------------------------------------------------------------------------------------

cdef void worker_wake(worker *w) noexcept nogil:
    eventfd_signal(w.notify_fd)


cdef void enqueue(worker *w, handover *h) noexcept nogil:
    pthread_mutex_lock(&w.queue_lock)
    w.queue_tail[0] = h
    w.queue_tail = &h.next
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


cdef bint worker_dispatch(worker *w, int fd, protocol prot, const log_peer *peer, bint stream_only,
                          tls_mode tls) noexcept nogil:
    cdef handover *h = <handover *>calloc(1, sizeof(handover))
    if h == NULL:
        return False
    h.kind = HANDOVER_SOCKET
    h.fd = fd
    h.prot = prot
    h.stream_only = stream_only
    h.tls = tls
    h.peer = peer[0]
    enqueue(w, h)
    return True


cdef bint worker_dispatch_cm(worker *w, int fd, const rdma_request *request) noexcept nogil:
    cdef handover *h = <handover *>calloc(1, sizeof(handover))
    if h == NULL:
        return False
    h.kind = HANDOVER_CM
    h.fd = fd
    h.prot = w.thread.binding_protocol
    h.request = request[0]
    h.peer.addr = request.where.peer
    h.peer.transport = LOG_RDMA
    enqueue(w, h)
    return True


cdef bint worker_dispatch_stream(worker *w, stream *s, rdma_transport transport, const char *request,
                                 size_t length) noexcept nogil:
    cdef handover *h = <handover *>calloc(1, sizeof(handover))
    if h == NULL:
        return False
    h.stream_request = <char *>malloc(length)
    if h.stream_request == NULL:
        free(h)
        return False
    h.kind = HANDOVER_STREAM
    stream_move(&h.stream, s)
    h.transport = transport
    memcpy(h.stream_request, request, length)
    h.stream_request_length = length
    enqueue(w, h)
    return True


cdef void worker_post(conn_thread *t, resp_wait *wait) noexcept nogil:
    cdef worker *w = <worker *>t
    cdef bint first
    wait.next = NULL
    pthread_mutex_lock(&w.queue_lock)
    first = w.results == NULL
    w.results_tail[0] = wait
    w.results_tail = &wait.next
    pthread_mutex_unlock(&w.queue_lock)
    # A worker told of an earlier result finds this result beside it.
    if first:
        worker_wake(w)


cdef void worker_change_device(worker *w, device_change *change) noexcept nogil:
    pthread_mutex_lock(&w.queue_lock)
    w.change = change
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


cdef void worker_deliver(sasl_session *session) noexcept nogil:
    cdef worker *w = <worker *>session.thread
    pthread_mutex_lock(&w.queue_lock)
    session.next = w.delivered
    w.delivered = session
    pthread_mutex_unlock(&w.queue_lock)
    worker_wake(w)


# ---- the worker's thread ---------------------------------------------------------------------------------------------

cdef void open_socket(worker *w, const handover *h) noexcept nogil:
    cdef unsigned int flags = CONNECTION_STREAM | CONNECTION_STREAM_ONLY if h.stream_only else CONNECTION_FRESH
    if h.tls != TLS_OFF:
        flags = CONNECTION_HANDSHAKE
    if connection_open(w, h.fd, h.prot, &h.peer, flags, h.tls) == NULL:
        close(h.fd)
        fetch_sub(w.curr_connections, 1)


cdef void open_cm(worker *w, const handover *h) noexcept nogil:
    """Accepts or rejects a connection of rdma_cm."""
    cdef connection *cn = connection_open(w, h.fd, h.prot, &h.peer, CONNECTION_CM, TLS_OFF)
    cdef rdma_conn *rc
    if cn == NULL:
        close(h.fd)
        fetch_sub(w.curr_connections, 1)
        return
    rc = rdma_cm_accept(w.rdma.threads, cn, h.fd, &h.request)
    if rc == NULL:
        connection_end(cn, True)
    else:
        connection_paired(cn, rc)


cdef void open_stream(worker *w, handover *h) noexcept nogil:
    """Gives the socket to the queue pair named in its request; the queue pair is this worker's."""
    rdma_thread_attach(w.rdma.threads[h.transport], &h.stream, h.stream_request, h.stream_request_length)
    free(h.stream_request)
    fetch_sub(w.curr_connections, 1)


cdef inline resp_wait *take_results(worker *w) noexcept nogil:
    # The caller has queue_lock, or is alone.
    cdef resp_wait *results = w.results
    w.results = NULL
    w.results_tail = &w.results
    return results


cdef void drop_results(worker *w) noexcept nogil:
    cdef resp_wait *wait = take_results(w)
    cdef resp_wait *following
    while wait != NULL:
        following = wait.next
        wait.calls.end(wait)
        wait = following


cdef void take_sessions(worker *w, sasl_session *session) noexcept nogil:
    cdef const sasl_hooks *hooks = w.thread.hooks.sasl
    cdef sasl_session *following
    cdef conn *c
    while session != NULL:
        following = session.next
        if hooks.take(hooks.arg, session) and w.thread.owner != 0:
            c = session.c
            complete_sasl_binary(c)
            c.engine.resume_auth(c)
        session = following


cdef void take_handovers(worker *w) noexcept nogil:
    cdef handover *h
    cdef handover *following
    cdef handover **rest = &h
    cdef connection *cn
    cdef connection *next_back
    cdef device_change *change
    cdef sasl_session *delivered
    cdef unsigned int left = HANDOVERS_PER_TURN
    cdef resp_wait *results
    assert_owner(w.thread.owner)
    eventfd_clear(w.notify_fd)
    pthread_mutex_lock(&w.queue_lock)
    h = w.queue_head
    while rest[0] != NULL and left:
        rest = &rest[0].next
        left -= 1
    w.queue_head = rest[0]
    rest[0] = NULL
    if w.queue_head == NULL:
        w.queue_tail = &w.queue_head
    else:
        worker_wake(w)
    cn = w.given_back
    w.given_back = NULL
    results = take_results(w)
    delivered = w.delivered
    w.delivered = NULL
    change = w.change
    w.change = NULL
    pthread_mutex_unlock(&w.queue_lock)
    if change != NULL:
        change_device(w, change)
    conn_complete(results)
    while cn != NULL:
        next_back = cn.run_next
        connection_returned(cn)
        cn = next_back
    take_sessions(w, delivered)
    while h != NULL:
        following = h.next
        if h.kind == HANDOVER_CM:
            open_cm(w, h)
        elif h.kind == HANDOVER_STREAM:
            open_stream(w, h)
        else:
            open_socket(w, h)
        free(h)
        h = following

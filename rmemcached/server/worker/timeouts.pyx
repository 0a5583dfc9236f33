cdef enum:
    STREAM_REQUEST_SECONDS = 10  # time a peer has to complete its request for a stream
    PROBE_SECONDS = 30           # a peer of rdma_cm that is silent for so long is probed


cdef void drop_slow_streams(worker *w) noexcept nogil:
    cdef connection *cn = w.connections
    cdef connection *following
    cdef uint32_t now = store_time(w.thread.store)
    if now == w.streams_checked:
        return
    w.streams_checked = now
    while cn != NULL:
        following = cn.next
        if cn.flags & CONNECTION_STREAM and now - cn.opened > STREAM_REQUEST_SECONDS:
            connection_end(cn, True)
        cn = following


cdef inline bint setups_wait(const worker *w) noexcept nogil:
    cdef unsigned int k
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_waits(w.rdma[k]):
            return True
    return False


cdef void end_late_setups(worker *w) noexcept nogil:
    """Ends queue pairs whose READY does not come."""
    cdef uint32_t now = store_time(w.thread.store)
    cdef unsigned int k
    if now == w.setups_checked and not w.setups_late:
        return
    w.setups_checked = now
    w.setups_late = False
    for k in range(<unsigned int>RDMA_DEVICES):
        if w.rdma[k] != NULL and rdma_thread_waits(w.rdma[k]):
            w.setups_late |= rdma_thread_end_late(w.rdma[k])


cdef void probe_silent(worker *w) noexcept nogil:
    """Finds out whether silent peers of rdma_cm are still there. A process that ends says so, a host that vanishes does
    not; a TCP connection has keepalive for that."""
    cdef connection *cn = w.connections
    cdef connection *following
    cdef uint32_t now = store_time(w.thread.store)
    if now < w.probes_due:
        return
    w.probes_due = now + PROBE_SECONDS // 3
    while cn != NULL:
        following = cn.next
        if (cn.flags & CONNECTION_CM and cn.rdma != NULL
                and now - max(cn.opened, cn.probed, rdma_conn_last_cmd(cn.rdma)) >= PROBE_SECONDS):
            cn.probed = now
            rdma_conn_probe(cn.rdma)
        cn = following


cdef void close_idle(worker *w) noexcept nogil:
    """Closes connections of TCP and rdma_cm that have been silent for longer than idle_timeout, between commands."""
    cdef uint32_t now = store_time(w.thread.store)
    cdef uint32_t oldest = now
    cdef uint32_t last
    cdef connection *cn = w.connections
    cdef connection *following
    if now < w.idle_due:
        return
    while cn != NULL:
        following = cn.next
        last = cn.c.last_cmd_time
        if cn.rdma != NULL:
            last = max(last, rdma_conn_last_cmd(cn.rdma))
        if ((cn.peer.transport == LOG_TCP or cn.peer.transport == LOG_RDMA)
                and (cn.c.state == conn_new_cmd or cn.c.state == conn_read)):
            if now - last > w.idle_timeout:
                if conn_logs(&cn.c):
                    fprintf(stderr, b"Closing idle fd %d\n", cn.fd)
                counter_add(&w.thread.stats.idle_kicks, 1)
                cn.c.close_reason = IDLE_TIMEOUT_CLOSE
                connection_end(cn, True)
            else:
                oldest = min(oldest, last)
        cn = following
    w.idle_due = oldest + w.idle_timeout + 1


cdef void enforce_timeouts(worker *w) noexcept nogil:
    assert_owner(w.thread.owner)
    if w.nstreams:
        drop_slow_streams(w)
    end_late_setups(w)
    if w.ncm:
        probe_silent(w)
    if w.idle_timeout:
        close_idle(w)

cdef enum:
    STREAM_REQUEST_SECONDS = 10  # time a peer has to complete its request for a stream
    PROBE_SECONDS = 30           # silence of a peer of rdma_cm before a probe


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


cdef void probe_silent(worker *w) noexcept nogil:
    """Probes silent peers of rdma_cm. The end of a process is reported, but a host may vanish silently; a TCP
    connection has keepalive for this case."""
    cdef connection *cn = w.connections
    cdef connection *following
    cdef uint32_t now = store_time(w.thread.store)
    if now < w.probes_due:
        return
    w.probes_due = now + PROBE_SECONDS // 3
    while cn != NULL:
        following = cn.next
        if (cn.flags & CONNECTION_CM and cn.rdma != NULL
                and now - max(cn.opened, cn.probed, rdma_conn_last_active(cn.rdma)) >= PROBE_SECONDS):
            cn.probed = now
            rdma_conn_probe(cn.rdma)
        cn = following


cdef void connection_moved(connection *cn) noexcept nogil:
    cdef int queued = 0
    if cn.w.idle_timeout == 0:
        return
    cn.moved = store_time(cn.w.thread.store)
    if cn.flags & CONNECTION_BLOCKED and ioctl(cn.stream.fd, SIOCOUTQ, &queued) == 0:
        cn.untaken = queued


cdef bint note_taken(connection *cn, uint32_t now) noexcept nogil:
    """Notes how much of the socket's output is left. Returns whether the peer has taken any since the last look."""
    cdef int queued = 0
    cdef int before = cn.untaken
    if cn.flags & CONNECTION_CM or ioctl(cn.stream.fd, SIOCOUTQ, &queued) != 0:
        return False
    cn.untaken = queued
    if queued >= before and (before or queued == 0):
        return False
    cn.moved = now
    return True


cdef uint32_t last_activity(const connection *cn, uint32_t now) noexcept nogil:
    """When the peer last sent a command, or was last seen to send or take a part of a payload or a reply."""
    cdef uint32_t last = max(cn.c.last_cmd_time, cn.moved)
    cdef uint32_t stalled
    if cn.rdma != NULL:
        last = max(last, rdma_conn_last_active(cn.rdma))
        stalled = rdma_conn_stalled_since(cn.rdma)
        if rdma_conn_has_views(cn.rdma):
            last = now
        # Stalled operations count, whatever else the peer does: READs and WRITEs of all lanes wait behind them, and
        # hold their items.
        if stalled:
            last = min(last, stalled)
    return last


cdef void close_one(connection *cn) noexcept nogil:
    """Closes a connection because of idle_timeout. The line of -v names a stalled transfer."""
    cdef thread_stats *stats = &cn.w.thread.stats
    cdef const char *why = b""
    if cn.untaken:
        why = b": its peer takes nothing"
    elif cn.rdma != NULL and rdma_conn_stalled_since(cn.rdma):
        why = b": its peer answers no READ, or takes no WRITE"
    elif cn.c.rlbytes:
        why = b": its peer sends nothing of the value that it has begun"
    if conn_logs(&cn.c):
        fprintf(stderr, b"Closing idle fd %d%s\n", cn.stream.fd, why)
    counter_add(&stats.idle_kicks, 1)
    counter_add(&stats.idle_kicks_stalled, why[0] != 0)
    cn.c.close_reason = IDLE_TIMEOUT_CLOSE
    connection_end(cn, True)


cdef void close_idle(worker *w) noexcept nogil:
    """Closes connections of TCP and rdma_cm, and lanes of both, whose peers have neither sent nor taken anything for
    longer than idle_timeout. The worker looks at the socket's output only when a peer's time is up, and counts any
    progress as made now; so a peer that takes nothing more may have twice the time. A READ or WRITE counts when
    complete."""
    cdef uint32_t now = store_time(w.thread.store)
    cdef uint32_t oldest = now
    cdef uint32_t last
    cdef connection *cn = w.connections
    cdef connection *following
    if now < w.idle_due:
        return
    while cn != NULL:
        following = cn.next
        if (cn.peer.transport == LOG_TCP or cn.peer.transport == LOG_RDMA) and not cn.flags & CONNECTION_LENT:
            if cn.rdma != NULL:
                counter_add(&w.thread.stats.idle_kicks, rdma_conn_end_idle(cn.rdma, w.idle_timeout, &oldest))
            last = last_activity(cn, now)
            if cn.stream.fd < 0:
                # The connection has just ended, with its queue pair.
                pass
            elif now <= last + <uint64_t>w.idle_timeout:
                oldest = min(oldest, last)
            elif not note_taken(cn, now):
                close_one(cn)
        cn = following
    w.idle_due = oldest + w.idle_timeout + 1


cdef void enforce_timeouts(worker *w) noexcept nogil:
    assert_owner(w.thread.owner)
    if w.nstreams:
        drop_slow_streams(w)
    if w.ncm:
        probe_silent(w)
    if w.idle_timeout:
        close_idle(w)

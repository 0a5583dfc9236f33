# Streams.


cdef const char *lane_exchange(conn *c, const char *line, size_t length, char *reply,
                               size_t reply_size) noexcept nogil:
    return b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"


cdef conn_engine lane_engine = conn_engine(exchange=lane_exchange, watch=NULL, dump=NULL, remote=True, datagrams=False)


cdef rdma_stream *stream_open(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_stream *st = <rdma_stream *>calloc(1, sizeof(rdma_stream))
    if st == NULL:
        return NULL
    conn_init(&st.c, rc.t.worker, &lane_engine)
    st.c.sfd = rc.sfd
    st.c.eager = rc.t.dev.limits.eager
    if rc.by_cm and rc.t.worker.hooks.authenticate != NULL:
        # Nobody has authenticated himself on a lifeline.
        st.c.auth_wanted = AUTH_LINE
    st.rc = rc
    st.id = id
    rc.streams[id] = st
    rc.live |= <uint64_t>1 << id
    counter_add(&rc.t.counters.streams, 1)
    return st


cdef void stream_close(rdma_stream *st) noexcept nogil:
    cdef rdma_conn *rc = st.rc
    cdef uint64_t bit = <uint64_t>1 << st.id
    while st.deferred:
        st.deferred -= 1
        rc.owed += 1
    rc.live &= ~bit
    rc.blocked &= ~bit
    rc.runnable &= ~bit
    rc.streams[st.id] = NULL
    conn_release(&st.c)
    free(st.inbuf)
    free(st)
    counter_add(&rc.t.counters.streams, <uint64_t>-1)


cdef bint stream_keep(rdma_stream *st, const char *more, size_t length) noexcept nogil:
    """Puts `length` bytes behind the unparsed ones, in memory of the stream's own. False: out of memory."""
    cdef conn *c = &st.c
    cdef size_t total = c.rbytes + length
    cdef size_t size
    cdef char *fresh
    if total == 0:
        free(st.inbuf)
        st.inbuf = NULL
        st.insize = 0
        return True
    if st.inbuf != NULL and st.inbuf <= c.rcurr < st.inbuf + st.insize:
        if c.rcurr + total > st.inbuf + st.insize:
            memmove(st.inbuf, c.rcurr, c.rbytes)
            c.rcurr = st.inbuf
    if st.inbuf == NULL or not st.inbuf <= c.rcurr < st.inbuf + st.insize or c.rcurr + total > st.inbuf + st.insize:
        size = 4096
        while size < total:
            size *= 2
        fresh = <char *>malloc(size)
        if fresh == NULL:
            return False
        memcpy(fresh, c.rcurr, c.rbytes)
        free(st.inbuf)
        st.inbuf = fresh
        st.insize = size
        c.rcurr = fresh
    if length:
        memcpy(c.rcurr + c.rbytes, more, length)
        c.rbytes += length
    return True


cdef bint stream_read(rdma_stream *st) noexcept nogil:
    """Posts READs for the payload that the machine waits for. False: no entry was free, to be tried again."""
    cdef rdma_conn *rc = st.rc
    cdef conn *c = &st.c
    cdef iovec iov[READS_AT_A_TIME * BULK_SGES]
    cdef int count, n
    cdef int done = 0
    cdef int per = <int>rc.t.dev.read_sges
    cdef ssize_t length
    cdef uint64_t remote = c.remote.addr + c.roffset
    if rc.free_bulk == 0:
        return False
    count = conn_payload_iov(c, iov, <int>min(rc.free_bulk, <unsigned int>READS_AT_A_TIME) * per)
    while done < count:
        n = min(count - done, per)
        length = post_bulk(rc, WR_READ, &iov[done], n, remote, c.remote.rkey, st)
        if length < 0:
            return True
        done += n
        remote += <uint64_t>length
        st.reads += 1
        st.read_bytes += <size_t>length
    return True


cdef bint stream_write(rdma_stream *st, mc_resp *resp) noexcept nogil:
    """Chains WRITEs of a reply's data into the memory the client named. False: the queue is full; goes on later."""
    cdef rdma_conn *rc = st.rc
    cdef iovec iov[BULK_SGES]
    cdef item *it = resp.item
    cdef ssize_t length
    cdef int count
    while st.write_off < resp.data_length:
        if rc.free_bulk == 0:
            return False
        count = item_iov(it, resp.data_offset + st.write_off, resp.data_length - st.write_off, iov,
                         <int>rc.t.dev.write_sges)
        length = post_bulk(rc, WR_WRITE, iov, count, resp.sink.addr + st.write_off, resp.sink.rkey, st)
        if length < 0:
            return False
        st.write_off += <size_t>length
        if st.write_off == resp.data_length:
            # The reference goes with the last WRITE: they complete in order.
            rc.wrs[rc.free_wr[rc.free_bulk]].item = it
    st.write_off = 0
    conn_write_posted(&st.c)
    return True


cdef bint stream_flush(rdma_stream *st) noexcept nogil:
    """Posts the stream's replies. True: all have been; else the stream is marked blocked."""
    cdef rdma_conn *rc = st.rc
    cdef conn *c = &st.c
    cdef iovec iov[32]
    cdef mc_resp *resp
    cdef char *buf
    cdef size_t n
    cdef int i, count
    cdef unsigned int index
    cdef uint64_t bit = <uint64_t>1 << st.id
    while c.npending and not rc.failed:
        resp = conn_next_write(c)
        if resp != NULL:
            if not stream_write(st, resp):
                rc.blocked |= bit
                return False
            continue
        count = conn_gather(c, iov, 32, rc.send_msgsize - MESSAGE_HEADER)
        if count == 0:
            conn_sent(c, 0)
            if conn_next_write(c) == NULL:
                break
            continue
        if not may_send(rc):
            rc.blocked |= bit
            return False
        rc.free_sends -= 1
        index = rc.free_send[rc.free_sends]
        buf = send_buffer(rc, index) + MESSAGE_HEADER
        n = 0
        for i in range(count):
            memcpy(buf + n, iov[i].iov_base, iov[i].iov_len)
            n += iov[i].iov_len
        post_message(rc, MESSAGE_DATA, st.id, index, n)
        conn_sent(c, n)
    rc.blocked &= ~bit
    return not rc.failed


cdef void stream_run(rdma_stream *st) noexcept nogil:
    """Runs the machine over the stream's input as far as replies can leave and no payload is awaited."""
    cdef rdma_conn *rc = st.rc
    cdef uint64_t bit = <uint64_t>1 << st.id
    cdef conn_want want
    rc.runnable &= ~bit
    while True:
        if st.reads or not stream_flush(st):
            return
        want = rc.t.dev.drive(&st.c)
        rc.last_cmd_time = st.c.last_cmd_time
        if want == WANT_REMOTE_PAYLOAD:
            # Replies that came before it need not wait for the READ.
            stream_flush(st)
            if not stream_read(st):
                rc.blocked |= bit
            return
        if not stream_flush(st):
            return
        if want == WANT_CLOSE:
            stream_close(st)
            return
        if want == WANT_YIELD:
            rc.runnable |= bit
            rc_yield(rc)
            return
        if want != WANT_FLUSH:
            return


cdef bint stream_input(rdma_stream *st, const char *data, size_t length) noexcept nogil:
    """Takes the payload of a DATA message. False: the stream is gone or out of memory (then the connection has
    failed)."""
    cdef rdma_conn *rc = st.rc
    cdef uint32_t id = st.id
    cdef bint direct = st.c.rbytes == 0 and st.reads == 0 and not rc.blocked >> id & 1
    if direct:
        st.c.rcurr = <char *>data
        st.c.rbytes = length
        stream_run(st)
        if rc.streams[id] != st:
            return False
        if stream_keep(st, NULL, 0):
            return True
    elif stream_keep(st, data, length):
        if st.reads == 0 and not rc.blocked >> id & 1:
            stream_run(st)
            if rc.streams[id] != st:
                return False
        return True
    rc_fail(rc, NULL, IBV_WC_SUCCESS)
    return False


cdef void resume_streams(rdma_conn *rc, uint64_t which) noexcept nogil:
    """Lets streams go on that waited for room to post, or had given way."""
    cdef rdma_stream *st
    cdef uint32_t id = 0
    while which and not rc.failed:
        if which & 1:
            st = rc.streams[id]
            if st != NULL and st.reads == 0:
                rc.blocked &= ~(<uint64_t>1 << id)
                stream_run(st)
                st = rc.streams[id]
                if st != NULL and not stream_keep(st, NULL, 0):
                    rc_fail(rc, NULL, IBV_WC_SUCCESS)
        which >>= 1
        id += 1


cdef void retry_blocked(rdma_conn *rc) noexcept nogil:
    """Tries again what could not be posted: READs first, then replies."""
    cdef uint64_t which = rc.blocked
    cdef uint32_t id = 0
    cdef rdma_stream *st
    while which and not rc.failed:
        if which & 1:
            st = rc.streams[id]
            if st.reads == 0 and st.c.state == conn_rdma_read:
                stream_flush(st)
                if stream_read(st):
                    rc.blocked &= ~(<uint64_t>1 << id)
            elif st.reads:
                stream_flush(st)
            else:
                resume_streams(rc, <uint64_t>1 << id)
        which >>= 1
        id += 1


cdef bint release_deferred(rdma_conn *rc) noexcept nogil:
    """Gives receives back that streams with too much input had held."""
    cdef uint64_t which = rc.live
    cdef uint32_t id = 0
    cdef rdma_stream *st
    while which:
        if which & 1:
            st = rc.streams[id]
            if st.deferred and st.c.rbytes <= INPUT_MAX:
                rc.owed += st.deferred
                st.deferred = 0
        which >>= 1
        id += 1
    return True

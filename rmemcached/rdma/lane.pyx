cdef const char *lane_exchange(conn *c, const char *line, size_t length, char *reply,
                               size_t reply_size) noexcept nogil:
    return b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"


# A lane has no socket that a side thread could be lent.
cdef conn_engine lane_engine = conn_engine(exchange=lane_exchange, watch=NULL, dump=NULL, remote=True, datagrams=False)


# ---- open and close --------------------------------------------------------------------------------------------------

cdef inline uint64_t lane_bit(const rdma_lane *lane) noexcept nogil:
    return <uint64_t>1 << lane.id


cdef rdma_lane *lane_open(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_thread *t = rc.q.t
    cdef rdma_lane *lane = <rdma_lane *>calloc(1, sizeof(rdma_lane))
    assert_that(id < RDMA_LANES and rc.lanes[id] == NULL)
    if lane == NULL:
        return NULL
    conn_init(&lane.c, t.worker, &lane_engine)
    lane.c.sfd = rc.sfd
    lane.c.eager = t.dev.limits.eager
    if rc.by_cm and t.worker.hooks.authenticate != NULL:
        # There is no lifeline on which the client could have authenticated itself.
        lane.c.auth_wanted = AUTH_LINE
    lane.rc = rc
    lane.id = id
    rc.lanes[id] = lane
    rc.live |= lane_bit(lane)
    counter_add(&t.counters.lanes, 1)
    live_add(LIVE_LANE)
    return lane


cdef void lane_close(rdma_lane *lane) noexcept nogil:
    cdef rdma_conn *rc = lane.rc
    cdef uint64_t others = ~lane_bit(lane)
    assert_owner(rc.q.t.worker.owner)
    assert_that(rc.lanes[lane.id] == lane and (lane.reads == 0 or rc.q.qp == NULL))
    rc.q.owed += lane.deferred
    rc.live &= others
    rc.blocked &= others
    rc.runnable &= others
    rc.lanes[lane.id] = NULL
    conn_release(&lane.c)
    free(lane.inbuf)
    free(lane)
    counter_add(&rc.q.t.counters.lanes, <uint64_t>-1)
    live_sub(LIVE_LANE)


# ---- input -----------------------------------------------------------------------------------------------------------

cdef bint keep_input(rdma_lane *lane, const char *more, size_t length) noexcept nogil:
    """Puts `length` bytes behind the unparsed ones, in memory of the lane's own. False: out of memory."""
    cdef conn *c = &lane.c
    cdef size_t total = c.rbytes + length
    cdef bint here = lane.inbuf != NULL and lane.inbuf <= c.rcurr < lane.inbuf + lane.insize
    cdef size_t size
    cdef char *fresh
    if total == 0:
        free(lane.inbuf)
        lane.inbuf = NULL
        lane.insize = 0
        return True
    if here and c.rcurr + total > lane.inbuf + lane.insize:
        memmove(lane.inbuf, c.rcurr, c.rbytes)
        c.rcurr = lane.inbuf
    if not here or c.rcurr + total > lane.inbuf + lane.insize:
        size = 4096
        while size < total:
            size *= 2
        fresh = <char *>malloc(size)
        if fresh == NULL:
            return False
        memcpy(fresh, c.rcurr, c.rbytes)
        free(lane.inbuf)
        lane.inbuf = fresh
        lane.insize = size
        c.rcurr = fresh
    if length:
        memcpy(c.rcurr + c.rbytes, more, length)
        c.rbytes += length
    return True


cdef inline bint lane_waits(const rdma_lane *lane) noexcept nogil:
    """Whether the machine cannot run: a payload is awaited, or replies could not be posted."""
    return lane.reads != 0 or lane.rc.blocked & lane_bit(lane) != 0


cdef bint lane_input(rdma_lane *lane, const char *data, size_t length) noexcept nogil:
    cdef rdma_conn *rc = lane.rc
    cdef uint32_t id = lane.id
    assert_owner(rc.q.t.worker.owner)
    if lane.c.rbytes == 0 and not lane_waits(lane):
        # The machine reads the message where it is; only what it leaves is copied.
        lane.c.rcurr = <char *>data
        lane.c.rbytes = length
        lane_run(lane)
        if rc.lanes[id] != lane:
            return False
        if keep_input(lane, NULL, 0):
            return True
    elif keep_input(lane, data, length):
        if not lane_waits(lane):
            lane_run(lane)
        return rc.lanes[id] == lane
    queue_fail(&rc.q, NULL, IBV_WC_SUCCESS)
    return False


# ---- output ----------------------------------------------------------------------------------------------------------

cdef bint lane_read(rdma_lane *lane) noexcept nogil:
    """Posts READs for the payload that the machine waits for. False: there is no room, to be tried again."""
    cdef rdma_queue *q = &lane.rc.q
    cdef conn *c = &lane.c
    cdef iovec iov[READS_AT_A_TIME * BULK_SGES]
    cdef int per = <int>q.t.dev.read_sges
    cdef int done = 0
    cdef int count, n
    cdef uint64_t remote = c.remote.addr + c.roffset
    cdef rdma_wr *posted
    assert_that(lane.reads == 0 and lane.read_bytes == 0)
    if q.free_bulk == 0:
        return False
    count = conn_payload_iov(c, iov, <int>min(q.free_bulk, <unsigned int>READS_AT_A_TIME) * per)
    while done < count:
        n = min(count - done, per)
        posted = queue_post_bulk(q, WR_READ, &iov[done], n, remote, c.remote.rkey)
        if posted == NULL:
            return True
        posted.lane = lane
        done += n
        remote += posted.length
        lane.reads += 1
        lane.read_bytes += posted.length
    return True


cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil:
    cdef size_t n
    assert_owner(lane.rc.q.t.worker.owner)
    assert_that(lane.reads > 0 and length <= lane.read_bytes)
    lane.reads -= 1
    if lane.reads:
        return
    n = lane.read_bytes
    lane.read_bytes = 0
    conn_payload_received(&lane.c, n)
    if lane.c.rlbytes == 0:
        lanes_resume(lane.rc, lane_bit(lane))
    elif not lane_read(lane):
        lane.rc.blocked |= lane_bit(lane)


cdef bint lane_write(rdma_lane *lane, mc_resp *resp) noexcept nogil:
    """Chains WRITEs of a reply's data into the memory the client named. False: there is no room; it goes on later."""
    cdef rdma_queue *q = &lane.rc.q
    cdef iovec iov[BULK_SGES]
    cdef item *it = resp.item
    cdef rdma_wr *posted
    cdef int count
    assert_that(lane.write_off <= resp.data_length)
    while lane.write_off < resp.data_length:
        if q.free_bulk == 0:
            return False
        count = item_iov(it, resp.data_offset + lane.write_off, resp.data_length - lane.write_off, iov,
                         <int>q.t.dev.write_sges)
        posted = queue_post_bulk(q, WR_WRITE, iov, count, resp.sink.addr + lane.write_off, resp.sink.rkey)
        if posted == NULL:
            return False
        lane.write_off += posted.length
        if lane.write_off == resp.data_length:
            # The last WRITE has the reference: they complete in order.
            posted.item = it
    lane.write_off = 0
    conn_write_posted(&lane.c)
    return True


cdef void lane_send(rdma_lane *lane, const iovec *iov, int count) noexcept nogil:
    """Sends stretches of replies in one message; there is room."""
    cdef rdma_queue *q = &lane.rc.q
    cdef unsigned int index = queue_take_buffer(q)
    cdef char *payload = queue_payload(q, index)
    cdef size_t n = 0
    cdef int i
    for i in range(count):
        memcpy(payload + n, iov[i].iov_base, iov[i].iov_len)
        n += iov[i].iov_len
    queue_send(q, MESSAGE_DATA, lane.id, index, n)
    conn_sent(&lane.c, n)


cdef bint lane_flush(rdma_lane *lane) noexcept nogil:
    """Posts the lane's replies. True: all have been; else the lane is marked blocked."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef iovec iov[32]
    cdef mc_resp *resp
    cdef int count
    while c.npending and not rc.q.failed:
        resp = conn_next_write(c)
        if resp != NULL:
            if not lane_write(lane, resp):
                rc.blocked |= lane_bit(lane)
                return False
            continue
        count = conn_gather(c, iov, 32, rc.q.send_msgsize - MESSAGE_HEADER)
        if count == 0:
            conn_sent(c, 0)
            if conn_next_write(c) == NULL:
                break
            continue
        if not queue_may_send(&rc.q):
            rc.blocked |= lane_bit(lane)
            return False
        lane_send(lane, iov, count)
    rc.blocked &= ~lane_bit(lane)
    return not rc.q.failed


# ---- the machine -----------------------------------------------------------------------------------------------------

cdef void lane_run(rdma_lane *lane) noexcept nogil:
    """Runs the machine over the lane's input as far as replies can leave and no payload is awaited. May close it."""
    cdef rdma_conn *rc = lane.rc
    cdef conn_want want
    rc.runnable &= ~lane_bit(lane)
    while True:
        if lane.reads or not lane_flush(lane):
            return
        want = rc.q.t.drive(&lane.c)
        if want == WANT_REMOTE_PAYLOAD:
            # The replies before it need not wait for the READ.
            lane_flush(lane)
            if not lane_read(lane):
                rc.blocked |= lane_bit(lane)
            return
        if not lane_flush(lane):
            return
        if want == WANT_CLOSE:
            lane_close(lane)
            return
        if want == WANT_YIELD:
            rc.runnable |= lane_bit(lane)
            thread_yield(rc)
            return
        if want != WANT_FLUSH:
            return


cdef void lanes_resume(rdma_conn *rc, uint64_t which) noexcept nogil:
    cdef rdma_lane *lane
    cdef uint32_t id = 0
    assert_owner(rc.q.t.worker.owner)
    while which and not rc.q.failed:
        if which & 1:
            lane = rc.lanes[id]
            if lane != NULL and lane.reads == 0:
                rc.blocked &= ~lane_bit(lane)
                lane_run(lane)
                lane = rc.lanes[id]
                if lane != NULL and not keep_input(lane, NULL, 0):
                    queue_fail(&rc.q, NULL, IBV_WC_SUCCESS)
        which >>= 1
        id += 1


cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil:
    cdef uint64_t which = rc.blocked
    cdef uint32_t id = 0
    cdef rdma_lane *lane
    while which and not rc.q.failed:
        if which & 1:
            lane = rc.lanes[id]
            if lane.reads == 0 and lane.c.state == conn_rdma_read:
                lane_flush(lane)
                if lane_read(lane):
                    rc.blocked &= ~lane_bit(lane)
            elif lane.reads:
                lane_flush(lane)
            else:
                lanes_resume(rc, lane_bit(lane))
        which >>= 1
        id += 1


cdef void lanes_release_deferred(rdma_conn *rc) noexcept nogil:
    cdef uint64_t which = rc.live
    cdef uint32_t id = 0
    cdef rdma_lane *lane
    while which:
        if which & 1:
            lane = rc.lanes[id]
            if lane.deferred and lane.c.rbytes <= INPUT_MAX:
                rc.q.owed += lane.deferred
                lane.deferred = 0
        which >>= 1
        id += 1

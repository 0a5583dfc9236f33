# Streams.


cdef const char *lane_exchange(conn *c, const char *line, size_t length, char *reply,
                               size_t reply_size) noexcept nogil:
    return b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"


cdef conn_engine lane_engine = conn_engine(exchange=lane_exchange, watch=NULL, dump=NULL, remote=True, datagrams=False)


cdef rdma_lane *lane_open(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_lane *lane = <rdma_lane *>calloc(1, sizeof(rdma_lane))
    if lane == NULL:
        return NULL
    conn_init(&lane.c, rc.t.worker, &lane_engine)
    lane.c.sfd = rc.sfd
    lane.c.eager = rc.t.dev.limits.eager
    if rc.by_cm and rc.t.worker.hooks.authenticate != NULL:
        # Nobody has authenticated himself on a lifeline.
        lane.c.auth_wanted = AUTH_LINE
    lane.rc = rc
    lane.id = id
    rc.lanes[id] = lane
    rc.live |= <uint64_t>1 << id
    counter_add(&rc.t.counters.lanes, 1)
    return lane


cdef void lane_close(rdma_lane *lane) noexcept nogil:
    cdef rdma_conn *rc = lane.rc
    cdef uint64_t bit = <uint64_t>1 << lane.id
    while lane.deferred:
        lane.deferred -= 1
        rc.owed += 1
    rc.live &= ~bit
    rc.blocked &= ~bit
    rc.runnable &= ~bit
    rc.lanes[lane.id] = NULL
    conn_release(&lane.c)
    free(lane.inbuf)
    free(lane)
    counter_add(&rc.t.counters.lanes, <uint64_t>-1)


cdef bint lane_keep(rdma_lane *lane, const char *more, size_t length) noexcept nogil:
    """Puts `length` bytes behind the unparsed ones, in memory of the lane's own. False: out of memory."""
    cdef conn *c = &lane.c
    cdef size_t total = c.rbytes + length
    cdef size_t size
    cdef char *fresh
    if total == 0:
        free(lane.inbuf)
        lane.inbuf = NULL
        lane.insize = 0
        return True
    if lane.inbuf != NULL and lane.inbuf <= c.rcurr < lane.inbuf + lane.insize:
        if c.rcurr + total > lane.inbuf + lane.insize:
            memmove(lane.inbuf, c.rcurr, c.rbytes)
            c.rcurr = lane.inbuf
    if (lane.inbuf == NULL or not lane.inbuf <= c.rcurr < lane.inbuf + lane.insize
            or c.rcurr + total > lane.inbuf + lane.insize):
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


cdef bint lane_read(rdma_lane *lane) noexcept nogil:
    """Posts READs for the payload that the machine waits for. False: no entry was free, to be tried again."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
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
        length = post_bulk(rc, WR_READ, &iov[done], n, remote, c.remote.rkey, lane)
        if length < 0:
            return True
        done += n
        remote += <uint64_t>length
        lane.reads += 1
        lane.read_bytes += <size_t>length
    return True


cdef bint lane_write(rdma_lane *lane, mc_resp *resp) noexcept nogil:
    """Chains WRITEs of a reply's data into the memory the client named. False: the queue is full; goes on later."""
    cdef rdma_conn *rc = lane.rc
    cdef iovec iov[BULK_SGES]
    cdef item *it = resp.item
    cdef ssize_t length
    cdef int count
    while lane.write_off < resp.data_length:
        if rc.free_bulk == 0:
            return False
        count = item_iov(it, resp.data_offset + lane.write_off, resp.data_length - lane.write_off, iov,
                         <int>rc.t.dev.write_sges)
        length = post_bulk(rc, WR_WRITE, iov, count, resp.sink.addr + lane.write_off, resp.sink.rkey, lane)
        if length < 0:
            return False
        lane.write_off += <size_t>length
        if lane.write_off == resp.data_length:
            # The reference goes with the last WRITE: they complete in order.
            rc.wrs[rc.free_wr[rc.free_bulk]].item = it
    lane.write_off = 0
    conn_write_posted(&lane.c)
    return True


cdef bint lane_flush(rdma_lane *lane) noexcept nogil:
    """Posts the lane's replies. True: all have been; else the lane is marked blocked."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef iovec iov[32]
    cdef mc_resp *resp
    cdef char *buf
    cdef size_t n
    cdef int i, count
    cdef unsigned int index
    cdef uint64_t bit = <uint64_t>1 << lane.id
    while c.npending and not rc.failed:
        resp = conn_next_write(c)
        if resp != NULL:
            if not lane_write(lane, resp):
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
        post_message(rc, MESSAGE_DATA, lane.id, index, n)
        conn_sent(c, n)
    rc.blocked &= ~bit
    return not rc.failed


cdef void lane_run(rdma_lane *lane) noexcept nogil:
    """Runs the machine over the lane's input as far as replies can leave and no payload is awaited."""
    cdef rdma_conn *rc = lane.rc
    cdef uint64_t bit = <uint64_t>1 << lane.id
    cdef conn_want want
    rc.runnable &= ~bit
    while True:
        if lane.reads or not lane_flush(lane):
            return
        want = rc.t.dev.drive(&lane.c)
        rc.last_cmd_time = lane.c.last_cmd_time
        if want == WANT_REMOTE_PAYLOAD:
            # Replies that came before it need not wait for the READ.
            lane_flush(lane)
            if not lane_read(lane):
                rc.blocked |= bit
            return
        if not lane_flush(lane):
            return
        if want == WANT_CLOSE:
            lane_close(lane)
            return
        if want == WANT_YIELD:
            rc.runnable |= bit
            rc_yield(rc)
            return
        if want != WANT_FLUSH:
            return


cdef bint lane_input(rdma_lane *lane, const char *data, size_t length) noexcept nogil:
    """Takes the payload of a DATA message. False: the lane is gone or out of memory (then the connection has
    failed)."""
    cdef rdma_conn *rc = lane.rc
    cdef uint32_t id = lane.id
    cdef bint direct = lane.c.rbytes == 0 and lane.reads == 0 and not rc.blocked >> id & 1
    if direct:
        lane.c.rcurr = <char *>data
        lane.c.rbytes = length
        lane_run(lane)
        if rc.lanes[id] != lane:
            return False
        if lane_keep(lane, NULL, 0):
            return True
    elif lane_keep(lane, data, length):
        if lane.reads == 0 and not rc.blocked >> id & 1:
            lane_run(lane)
            if rc.lanes[id] != lane:
                return False
        return True
    rc_fail(rc, NULL, IBV_WC_SUCCESS)
    return False


cdef void resume_lanes(rdma_conn *rc, uint64_t which) noexcept nogil:
    """Lets lanes go on that waited for room to post, or had given way."""
    cdef rdma_lane *lane
    cdef uint32_t id = 0
    while which and not rc.failed:
        if which & 1:
            lane = rc.lanes[id]
            if lane != NULL and lane.reads == 0:
                rc.blocked &= ~(<uint64_t>1 << id)
                lane_run(lane)
                lane = rc.lanes[id]
                if lane != NULL and not lane_keep(lane, NULL, 0):
                    rc_fail(rc, NULL, IBV_WC_SUCCESS)
        which >>= 1
        id += 1


cdef void retry_blocked(rdma_conn *rc) noexcept nogil:
    """Tries again what could not be posted: READs first, then replies."""
    cdef uint64_t which = rc.blocked
    cdef uint32_t id = 0
    cdef rdma_lane *lane
    while which and not rc.failed:
        if which & 1:
            lane = rc.lanes[id]
            if lane.reads == 0 and lane.c.state == conn_rdma_read:
                lane_flush(lane)
                if lane_read(lane):
                    rc.blocked &= ~(<uint64_t>1 << id)
            elif lane.reads:
                lane_flush(lane)
            else:
                resume_lanes(rc, <uint64_t>1 << id)
        which >>= 1
        id += 1


cdef bint release_deferred(rdma_conn *rc) noexcept nogil:
    """Gives receives back that lanes with too much input had held."""
    cdef uint64_t which = rc.live
    cdef uint32_t id = 0
    cdef rdma_lane *lane
    while which:
        if which & 1:
            lane = rc.lanes[id]
            if lane.deferred and lane.c.rbytes <= INPUT_MAX:
                rc.owed += lane.deferred
                lane.deferred = 0
        which >>= 1
        id += 1
    return True

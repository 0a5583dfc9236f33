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
    while lane.nheld and rc.q.qp != NULL and not rc.q.failed:
        give_back_held(lane)
    unblock(lane)
    rc.live &= others
    rc.runnable &= others
    rc.lanes[lane.id] = NULL
    conn_release(&lane.c)
    free_input(lane)
    free(lane)
    counter_add(&rc.q.t.counters.lanes, <uint64_t>-1)
    live_sub(LIVE_LANE)


# ---- input -----------------------------------------------------------------------------------------------------------

cdef void count_input(rdma_lane *lane, int64_t buffers, int64_t size) noexcept nogil:
    """Buffers of lanes are read buffers, as those of sockets are."""
    cdef rdma_thread *t = lane.rc.q.t
    lane.rc.input_kept += <size_t>size
    counter_add(&t.counters.input_bytes, <uint64_t>size)
    counter_add(&t.worker.stats.read_buf_count, <uint64_t>buffers)
    counter_add(&t.worker.stats.read_buf_bytes, <uint64_t>size)


cdef void free_input(rdma_lane *lane) noexcept nogil:
    if lane.inbuf != NULL:
        count_input(lane, -1, -<int64_t>lane.insize)
        free(lane.inbuf)
        lane.inbuf = NULL
        lane.insize = 0


cdef bint is_in_buffer(const rdma_lane *lane) noexcept nogil:
    """Whether the unparsed input is in the lane's own buffer."""
    return lane.inbuf != NULL and lane.inbuf <= lane.c.rcurr < lane.inbuf + lane.insize


cdef bint keep_input(rdma_lane *lane, const char *more, size_t length, size_t limit) noexcept nogil:
    """Puts `length` bytes behind the unparsed ones, in memory of the lane's own. False: they do not go into the limit
    of all lanes, or there is no memory."""
    cdef conn *c = &lane.c
    cdef size_t total = c.rbytes + length
    cdef bint here = is_in_buffer(lane)
    cdef size_t size = INPUT_FIRST
    cdef char *fresh
    if here and c.rcurr + total > lane.inbuf + lane.insize:
        memmove(lane.inbuf, c.rcurr, c.rbytes)
        c.rcurr = lane.inbuf
    if not here or c.rcurr + total > lane.inbuf + lane.insize:
        while size < total:
            size *= 2
        fresh = NULL
        if lane.rc.input_kept - lane.insize + size <= limit and conn_memory(c.thread, size):
            fresh = <char *>malloc(size)
        if fresh == NULL:
            return False
        memcpy(fresh, c.rcurr, c.rbytes)
        free_input(lane)
        lane.inbuf = fresh
        lane.insize = size
        count_input(lane, 1, <int64_t>size)
        c.rcurr = fresh
    memcpy(c.rcurr + c.rbytes, more, length)
    c.rbytes += length
    return True


cdef bint keep_beginning(rdma_lane *lane, const char *more, size_t length) noexcept nogil:
    """Keeps the beginning of a command, which the machine wants to see again with what follows. False: the queue pair
    has failed."""
    if keep_input(lane, more, length, RDMA_INPUT_MAX):
        return True
    counter_add(&lane.c.thread.stats.read_buf_oom, 1)
    queue_fail(&lane.rc.q, b"no memory for unfinished commands", IBV_WC_SUCCESS)
    return False


cdef void hold(rdma_lane *lane, uint32_t index, size_t offset, size_t length) noexcept nogil:
    """So many bytes at this offset of receive `index` stay there until the lane can use them."""
    cdef rdma_queue *q = &lane.rc.q
    q.held[index].offset = <uint32_t>offset
    q.held[index].length = <uint32_t>length
    if lane.nheld:
        q.held[lane.last_held].following = index
    else:
        lane.first_held = index
    lane.last_held = index
    lane.nheld += 1
    q.nheld += 1
    counter_add(&q.t.counters.input_waits, 1)


cdef void give_back_held(rdma_lane *lane) noexcept nogil:
    """The oldest message that was held has been used, or is of no use any more."""
    cdef rdma_queue *q = &lane.rc.q
    cdef uint32_t index = lane.first_held
    lane.first_held = q.held[index].following
    lane.nheld -= 1
    q.nheld -= 1
    queue_give_back(q, index)


cdef inline void count_waiting(rdma_lane *lane, size_t waiting) noexcept nogil:
    lane.rc.output_waiting += waiting - lane.waiting
    lane.waiting = waiting


cdef void block(rdma_lane *lane) noexcept nogil:
    """The lane waits until something can be posted. Its replies do not change before it is tried again, after which
    they are counted again."""
    lane.rc.blocked |= lane_bit(lane)
    count_waiting(lane, lane.c.pending_bytes + lane.c.npending * sizeof(mc_resp))


cdef inline void unblock(rdma_lane *lane) noexcept nogil:
    lane.rc.blocked &= ~lane_bit(lane)
    if lane.waiting:
        count_waiting(lane, 0)


cdef inline bint lane_waits(const rdma_lane *lane) noexcept nogil:
    """Whether the machine cannot run: a payload is awaited, replies could not be posted, or the lane has given way."""
    return lane.reads != 0 or (lane.rc.blocked | lane.rc.runnable) & lane_bit(lane) != 0


cdef void give_way(rdma_lane *lane) noexcept nogil:
    """The lane goes on in the connection's next turn."""
    lane.rc.runnable |= lane_bit(lane)
    thread_yield(lane.rc)


cdef bint lane_admit(rdma_lane *lane) noexcept nogil:
    """Lets the machine run now, or marks the lane, so that it runs when it may. Which of them."""
    cdef rdma_conn *rc = lane.rc
    if lane_waits(lane):
        return False
    if lanes_end_turn(rc):
        counter_add(&lane.c.thread.stats.conn_yields, 1)
        give_way(lane)
        return False
    if rc.output_waiting >= OUTPUT_KEPT:
        # So many replies wait that no lane may add to them.
        block(lane)
        return False
    return True


cdef size_t lane_use(rdma_lane *lane, char *data, size_t length) noexcept nogil:
    """Runs the machine over what it has kept and the `length` bytes behind it, as far as it may. Returns how many of
    them are left for later. The lane may be gone, or the queue pair may have failed: then 0.

    The machine reads a message where it is. If the beginning of a command is kept, one piece is copied behind it. What
    the machine leaves of that piece, it reads in the message.
    """
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef uint32_t id = lane.id
    cdef size_t n
    while length and lane_admit(lane):
        n = min(length, <size_t>INPUT_PIECE) if c.rbytes else length
        if c.rbytes == 0:
            c.rcurr = data
            c.rbytes = n
        elif not keep_beginning(lane, data, n):
            return 0
        lane_run(lane)
        if rc.lanes[id] != lane or rc.q.failed:
            return 0
        data += n
        length -= n
        if c.rbytes <= n:
            data -= c.rbytes
            length += c.rbytes
            n = c.rbytes
            c.rbytes = 0
            if length == n and n and not lane_waits(lane):
                # The rest is the beginning of a command.
                keep_beginning(lane, data, n)
                return 0
    if c.rbytes == 0:
        free_input(lane)
    return length


cdef bint lane_input(rdma_lane *lane, uint32_t index, char *data, size_t length) noexcept nogil:
    cdef rdma_conn *rc = lane.rc
    cdef size_t left = length
    assert_owner(rc.q.t.worker.owner)
    if lane.nheld == 0:
        left = lane_use(lane, data, length)
        if left == 0 or keep_input(lane, data + length - left, left, INPUT_KEPT):
            return True
    hold(lane, index, <size_t>(data - queue_received(&rc.q, index)) + length - left, left)
    return False


cdef void lane_go_on(rdma_lane *lane) noexcept nogil:
    """Runs the machine over all the input there is. May close the lane."""
    cdef rdma_conn *rc = lane.rc
    cdef uint32_t id = lane.id
    cdef rdma_held *oldest
    cdef size_t left
    if not lane_admit(lane):
        return
    lane_run(lane)
    while rc.lanes[id] == lane and not rc.q.failed:
        if lane.nheld == 0 or lane_waits(lane):
            if lane.c.rbytes == 0:
                free_input(lane)
            return
        oldest = &rc.q.held[lane.first_held]
        left = lane_use(lane, queue_received(&rc.q, lane.first_held) + oldest.offset, oldest.length)
        if rc.lanes[id] != lane or rc.q.failed:
            return
        if left:
            oldest.offset += oldest.length - <uint32_t>left
            oldest.length = <uint32_t>left
            return
        give_back_held(lane)


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
    if q.free_bulk == 0 or q.closing:
        # A client that has ended answers no READ.
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
        unblock(lane)
        lane_go_on(lane)
    elif not lane_read(lane):
        block(lane)


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


cdef void lane_drop(rdma_lane *lane, const iovec *iov, int count) noexcept nogil:
    """The client has ended: nobody takes these stretches of replies."""
    cdef size_t n = 0
    cdef int i
    for i in range(count):
        n += iov[i].iov_len
    conn_sent(&lane.c, n)


cdef bint lane_drop_write(rdma_lane *lane) noexcept nogil:
    """The same for a reply's data. False: WRITEs of it are under way, and need its item."""
    if lane.write_off:
        return False
    item_remove(lane.c.thread.store, conn_write_posted(&lane.c))
    return True


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
            if not (lane_drop_write(lane) if rc.q.closing else lane_write(lane, resp)):
                block(lane)
                return False
            continue
        count = conn_gather(c, iov, 32, rc.q.send_msgsize - MESSAGE_HEADER)
        if count == 0:
            conn_sent(c, 0)
            if conn_next_write(c) == NULL:
                break
            continue
        if rc.q.closing:
            lane_drop(lane, iov, count)
            continue
        if not queue_may_send(&rc.q):
            block(lane)
            return False
        lane_send(lane, iov, count)
    unblock(lane)
    return not rc.q.failed


# ---- the machine -----------------------------------------------------------------------------------------------------

cdef conn_want lane_drive(rdma_lane *lane) noexcept nogil:
    """Runs the machine once; what it does is taken off the turn's share."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef conn_want want = rc.q.t.drive(c)
    cdef int64_t done
    done = 1 + <int64_t>(c.thread.reqs_per_event - c.reqs_left)
    rc.turn_left -= done
    rc.q.t.turn_left -= done
    return want


cdef void lane_run(rdma_lane *lane) noexcept nogil:
    """Runs the machine over the lane's input as far as replies can leave and no payload is awaited. May close it."""
    cdef conn_want want
    while lane.reads == 0 and lane_flush(lane) and lane_admit(lane):
        want = lane_drive(lane)
        if want == WANT_REMOTE_PAYLOAD:
            # The replies before it need not wait for the READ.
            lane_flush(lane)
            if not lane_read(lane):
                block(lane)
            return
        if not lane_flush(lane):
            return
        if want == WANT_CLOSE:
            lane_close(lane)
            return
        if want == WANT_YIELD:
            give_way(lane)
            return
        if want != WANT_FLUSH:
            return


cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    rc.turn_left = <int64_t>TURN_QUANTA * rc.q.t.worker.reqs_per_event


cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil:
    return rc.turn_left <= 0


cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil:
    """Each turn begins with the lane behind the one that the last turn has ended with."""
    cdef uint64_t which = rc.runnable
    cdef uint32_t id = rc.next_lane
    cdef uint64_t bit
    assert_owner(rc.q.t.worker.owner)
    while which and not rc.q.failed:
        bit = <uint64_t>1 << id
        if which & bit:
            if lanes_end_turn(rc):
                thread_yield(rc)
                break
            rc.runnable &= ~bit
            lane_go_on(rc.lanes[id])
        which &= ~bit
        id = (id + 1) % RDMA_LANES
    rc.next_lane = id


cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil:
    cdef uint64_t which = rc.blocked
    cdef uint32_t id = 0
    cdef rdma_lane *lane
    while which and not rc.q.failed:
        if which & 1:
            lane = rc.lanes[id]
            if lane.reads:
                lane_flush(lane)
            elif lane.c.state == conn_rdma_read and lane.c.rlbytes:
                lane_flush(lane)
                if lane_read(lane):
                    unblock(lane)
                else:
                    block(lane)
            elif lane_flush(lane):
                lane_go_on(lane)
        which >>= 1
        id += 1

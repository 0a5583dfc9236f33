cdef const char *lane_exchange(conn *c, const char *line, size_t length, char *reply,
                               size_t reply_size) noexcept nogil:
    """conn_engine.exchange: refuses the command, since a lane has a queue pair."""
    return b"CLIENT_ERROR rdma: this connection has a queue pair\r\n"


cdef const char *lane_pin(conn *c, item *it, uint32_t *id) noexcept nogil:
    """conn_engine.pin: pins the item, if the client has got the items' memory by descriptors."""
    cdef rdma_lane *lane = <rdma_lane *>c
    cdef rdma_conn *rc = lane.rc
    cdef const char *refused
    if not rc.given:
        return NOT_GIVEN
    refused = pins_add(rc.q.t, &lane.pins, it, id)
    rc.pins += refused == NULL
    return refused


cdef void lane_unpin(conn *c, uint32_t id) noexcept nogil:
    """conn_engine.unpin: releases the pin with this id, and its reference; an id without a pin changes nothing."""
    cdef rdma_lane *lane = <rdma_lane *>c
    lane.rc.pins -= pins_remove(lane.rc.q.t, &lane.pins, id)


cdef void lane_resume_auth(conn *c) noexcept nogil:
    """conn_engine.resume_auth"""
    cdef rdma_lane *lane = <rdma_lane *>c
    assert_owner(lane.rc.q.t.worker.owner)
    # A lane in a place goes on when it leaves the place.
    if not lane.rc.q.failed and not lane.ending and not lane_waits(lane):
        give_way(lane)


cdef void lane_resume_reply(conn *c) noexcept nogil:
    """conn_engine.resume_reply"""
    cdef rdma_lane *lane = <rdma_lane *>c
    assert_owner(lane.rc.q.t.worker.owner)
    # A lane in another place sends the reply when it leaves the place.
    if not lane.rc.q.failed and not lane.ending and lane.place == LANE_WANTS_RESULT:
        give_way(lane)


# No watch and no dump: a lane has no socket to lend to a side thread.
cdef conn_engine lane_engine = conn_engine(
    exchange=lane_exchange, watch=NULL, dump=NULL, pin=lane_pin, unpin=lane_unpin, direct=setup_reads,
    given=setup_given, resume_auth=lane_resume_auth, resume_reply=lane_resume_reply, remote=True, datagrams=False)


# Entries of the table for a lane that is gone. closed_lane: the server's CLOSE has left, the client's has not come;
# closing_lane: the server's CLOSE waits; left_lane: the server's CLOSE waits, the client's has come.
cdef rdma_lane closed_lane, closing_lane, left_lane


cdef inline bint is_gone(const rdma_lane *lane) noexcept nogil:
    return lane == &closed_lane or lane == &closing_lane or lane == &left_lane


# ---- open and close --------------------------------------------------------------------------------------------------

cdef rdma_lane *lane_make(rdma_conn *rc, uint32_t id) noexcept nogil:
    """Makes a lane in the table and in no list. NULL: out of memory."""
    cdef rdma_lane *lane
    assert_that(table_get(&rc.table, id) == NULL)
    if not table_reserve(&rc.table, id):
        return NULL
    lane = <rdma_lane *>calloc(1, sizeof(rdma_lane))
    if lane == NULL:
        return NULL
    lane.rc = rc
    lane.id = id
    table_put(&rc.table, id, lane)
    live_add(LIVE_LANE)
    return lane


cdef void lane_open(rdma_lane *lane) noexcept nogil:
    """Makes the lane a memcached connection."""
    cdef rdma_conn *rc = lane.rc
    cdef rdma_thread *t = rc.q.t
    conn_init(&lane.c, t.worker, &lane_engine)
    lane.c.sfd = rc.sfd
    lane.c.lane = lane.id
    lane.c.eager = t.dev.limits.eager
    if not lane.counted and not rc.by_cm:
        # A client has authenticated lane 0 on its lifeline. Every other lane authenticates itself.
        conn_authenticated(&lane.c)
    lane.last_active = store_time(t.worker.store)
    lane.rx_room = RDMA_LANE_BYTES
    lane.tx_room = rc.lane_bytes
    pthread_mutex_lock(t.lanes.lock)
    lane.next = rc.first_lane
    if lane.next != NULL:
        lane.next.prev = lane
    rc.first_lane = lane
    pthread_mutex_unlock(t.lanes.lock)
    counter_add(&t.counters.lanes, 1)
    if lane.counted:
        t.lanes.began(rc.owner, &lane.c)


cdef void lane_release(rdma_lane *lane) noexcept nogil:
    """Undoes lane_open. No READ is under way, or the queue pair has been destroyed."""
    cdef rdma_conn *rc = lane.rc
    cdef rdma_thread *t = rc.q.t
    assert_that(lane.reads == 0 or rc.q.qp == NULL)
    pthread_mutex_lock(t.lanes.lock)
    if lane.prev != NULL:
        lane.prev.next = lane.next
    else:
        rc.first_lane = lane.next
    if lane.next != NULL:
        lane.next.prev = lane.prev
    pthread_mutex_unlock(t.lanes.lock)
    if lane.counted:
        t.lanes.ended(rc.owner, &lane.c)
    if lane.last_write != NULL and rc.q.qp != NULL:
        # A part of a value is on its way: the WRITE needs the item until its completion.
        lane.last_write.item = conn_write_posted(&lane.c)
        lane_write_completed(lane.last_write)
    conn_release(&lane.c)
    rc.pins -= lane.pins.used
    pins_free(t, &lane.pins)
    free_input(lane)
    counter_add(&t.counters.lanes, <uint64_t>-1)


cdef void lane_free(rdma_lane *lane) noexcept nogil:
    assert_owner(lane.rc.q.t.worker.owner)
    lane_leave_place(lane)
    lane_release(lane)
    free(lane)
    live_sub(LIVE_LANE)


cdef void send_close(rdma_conn *rc, uint32_t id, const char *last_words) noexcept nogil:
    """Sends CLOSE; there is room. The id is free after both CLOSE messages."""
    cdef size_t length = strlen(last_words) if last_words != NULL else 0
    cdef unsigned int index = queue_take_buffer(&rc.q)
    if length:
        memcpy(queue_payload(&rc.q, index), last_words, length)
    table_put(&rc.table, id, NULL if table_get(&rc.table, id) == &left_lane else &closed_lane)
    queue_send(&rc.q, MESSAGE_CLOSE, id, 0, index, length)


cdef void close_lane(rdma_conn *rc, uint32_t id, bint peer_closed, const char *last_words) noexcept nogil:
    """Sends the server's CLOSE behind everything posted for the lane, now or as soon as there is room."""
    cdef lane_close *waiting
    table_put(&rc.table, id, &left_lane if peer_closed else &closing_lane)
    if rc.first_close == NULL and queue_may_send(&rc.q):
        send_close(rc, id, last_words)
        return
    waiting = <lane_close *>malloc(sizeof(lane_close))
    if waiting == NULL:
        queue_fail(&rc.q, NULL, IBV_WC_SUCCESS)
        return
    waiting.next = NULL
    waiting.last_words = last_words
    waiting.id = id
    if rc.first_close == NULL:
        rc.first_close = waiting
    else:
        rc.last_close.next = waiting
    rc.last_close = waiting


cdef void lane_closes_send(rdma_conn *rc) noexcept nogil:
    cdef lane_close *waiting
    assert_owner(rc.q.t.worker.owner)
    while rc.first_close != NULL and not rc.q.closing and queue_may_send(&rc.q):
        waiting = rc.first_close
        rc.first_close = waiting.next
        send_close(rc, waiting.id, waiting.last_words)
        free(waiting)


cdef void lane_closes_free(rdma_conn *rc) noexcept nogil:
    cdef lane_close *waiting
    while rc.first_close != NULL:
        waiting = rc.first_close
        rc.first_close = waiting.next
        free(waiting)


cdef void lane_end(rdma_lane *lane, const char *last_words) noexcept nogil:
    """The lane ends now, or with its last READ: a READ still writes into the lane's item."""
    cdef rdma_conn *rc = lane.rc
    cdef uint32_t id = lane.id
    cdef bint peer_closed = lane.peer_closed
    assert_owner(rc.q.t.worker.owner)
    lane.last_words = last_words
    if lane.reads:
        lane.ending = True
        return
    table_put(&rc.table, id, NULL if peer_closed else &closed_lane)
    lane_free(lane)
    if not rc.q.closing and not rc.q.failed:
        close_lane(rc, id, peer_closed, last_words)


cdef inline bint lane_is_there(const rdma_conn *rc, uint32_t id, const rdma_lane *lane) noexcept nogil:
    """Whether the lane still exists and goes on, after a call that may have closed the lane."""
    return not rc.q.failed and table_get(&rc.table, id) == lane and not lane.ending


cdef bint lane_admitted(rdma_conn *rc, rdma_lane *lane) noexcept nogil:
    """Counts the lane as a connection. Lane 0 was counted with the lifeline, or with the connection of rdma_cm. False:
    there are too many connections, and the lane is freed."""
    lane.counted = lane.id != 0 and rc.q.t.lanes.admit(rc.owner)
    if lane.id == 0 or lane.counted:
        return True
    counter_add(&rc.q.t.counters.refused_lanes, 1)
    table_put(&rc.table, lane.id, NULL)
    free(lane)
    live_sub(LIVE_LANE)
    return False


cdef void lane_take_open(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_lane *lane = NULL
    assert_owner(rc.q.t.worker.owner)
    if id >= rc.table.size:
        queue_fail(&rc.q, b"a lane beyond those that the server has", IBV_WC_SUCCESS)
        return
    if table_get(&rc.table, id) != NULL:
        queue_fail(&rc.q, b"a lane opened that is not closed", IBV_WC_SUCCESS)
        return
    lane = lane_make(rc, id)
    if lane == NULL:
        queue_fail(&rc.q, NULL, IBV_WC_SUCCESS)
    elif lane_admitted(rc, lane):
        lane_open(lane)
    else:
        close_lane(rc, id, False, b"ERROR Too many open connections\r\n")


cdef void lane_take_close(rdma_conn *rc, uint32_t id) noexcept nogil:
    cdef rdma_lane *lane = table_get(&rc.table, id)
    assert_owner(rc.q.t.worker.owner)
    if lane == NULL or lane == &left_lane or (not is_gone(lane) and lane.peer_closed):
        queue_fail(&rc.q, b"a lane closed that is not open", IBV_WC_SUCCESS)
    elif is_gone(lane):
        table_put(&rc.table, id, NULL if lane == &closed_lane else &left_lane)
    else:
        lane.peer_closed = True
        lane.c.close_reason = NORMAL_CLOSE
        if lane.ending or lane.reads or lane.place == LANE_RUNNABLE:
            # The completion of a READ, or the next turn, goes on with the lane or ends it.
            return
        lane_leave_place(lane)
        lane_retry(lane)


cdef rdma_lane *lane_for_data(rdma_conn *rc, uint32_t id) noexcept nogil:
    """The lane of a message. NULL: the message is to be dropped, or the queue pair has failed."""
    cdef rdma_lane *lane = table_get(&rc.table, id)
    if lane == NULL or lane == &left_lane or (not is_gone(lane) and lane.peer_closed):
        queue_fail(&rc.q, b"a message for a lane that is not open", IBV_WC_SUCCESS)
        return NULL
    return lane if not is_gone(lane) and not lane.ending else NULL


# ---- waiting lanes ---------------------------------------------------------------------------------------------------

cdef inline lane_list *place_list(rdma_conn *rc, lane_place place) noexcept nogil:
    """The list of a place. NULL: lanes of this place are in no list."""
    if place == LANE_RUNNABLE:
        return &rc.runnable
    if place == LANE_WANTS_SEND:
        return &rc.want_send
    if place == LANE_WANTS_WRITE:
        return &rc.want_write
    if place == LANE_WANTS_ROOM:
        return &rc.want_room
    if place == LANE_WANTS_RESULT:
        return &rc.want_result
    return &rc.want_read if place == LANE_WANTS_READ else NULL


cdef void lane_leave_place(rdma_lane *lane) noexcept nogil:
    cdef lane_list *list = place_list(lane.rc, lane.place)
    if list != NULL:
        list_remove(list, lane)
    lane.place = LANE_FREE


cdef void lane_wait(rdma_lane *lane, lane_place place) noexcept nogil:
    """Puts the lane at the end of the place's list. Counts nothing: waiting replies stay counted in the worker's
    response_obj_count and response_obj_bytes (protocol/conn)."""
    cdef lane_list *list = place_list(lane.rc, place)
    lane_leave_place(lane)
    lane.place = place
    if list != NULL:
        list_append(list, lane)


cdef inline bint lane_waits(const rdma_lane *lane) noexcept nogil:
    """Whether the machine cannot run: a payload is awaited, replies could not be posted, the lane has given way, or a
    side thread works on its authentication."""
    return lane.reads != 0 or lane.place != LANE_FREE or lane.c.state == conn_auth


cdef void give_way(rdma_lane *lane) noexcept nogil:
    """The lane goes on in the connection's next turn."""
    lane_wait(lane, LANE_RUNNABLE)
    thread_ready(lane.rc)


cdef inline bint drops_output(const rdma_lane *lane) noexcept nogil:
    """Whether nobody takes the lane's replies."""
    return lane.rc.q.closing or lane.peer_closed


# ---- input -----------------------------------------------------------------------------------------------------------

cdef void count_input(rdma_lane *lane, int64_t buffers, int64_t size) noexcept nogil:
    """Counts buffers of lanes as read buffers, like buffers of sockets."""
    cdef rdma_thread *t = lane.rc.q.t
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


cdef bint keep_input(rdma_lane *lane, const char *more, size_t length) noexcept nogil:
    """Puts `length` bytes behind the unparsed input, in the lane's own buffer. False: the lane has ended, for lack of
    memory or beyond LANE_INPUT_MAX."""
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
        if size <= LANE_INPUT_MAX and conn_memory(c.thread, size):
            fresh = <char *>malloc(size)
        if fresh == NULL:
            counter_add(&c.thread.stats.read_buf_oom, 1)
            lane_end(lane, b"SERVER_ERROR rdma: no memory for unfinished commands\r\n")
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


cdef bint lane_may_run(rdma_lane *lane) noexcept nogil:
    """Whether the machine may run now. If the turn is used up, the lane gives way."""
    cdef rdma_conn *rc = lane.rc
    if lane_waits(lane):
        return False
    if rc.turn_left <= 0:
        counter_add(&lane.c.thread.stats.conn_yields, 1)
        give_way(lane)
        return False
    return True


cdef void lane_use(rdma_lane *lane, char *data, size_t length) noexcept nogil:
    """Runs the machine over its kept input and the `length` bytes behind it, as far as the machine may run, and keeps
    the rest. May close the lane.

    The machine reads a message in place. If the lane has kept the beginning of a command, one piece of the message is
    copied behind it. The machine reads the rest of the piece in the message.
    """
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef uint32_t id = lane.id
    cdef size_t n
    lane.starved = False
    while length and lane_may_run(lane):
        n = min(length, <size_t>INPUT_PIECE) if c.rbytes else length
        lane.rest = length - n
        if c.rbytes == 0:
            c.rcurr = data
            c.rbytes = n
        elif not keep_input(lane, data, n):
            return
        lane_run(lane)
        if not lane_is_there(rc, id, lane):
            return
        data += n
        length -= n
        if c.rbytes <= n:
            data -= c.rbytes
            length += c.rbytes
            n = c.rbytes
            c.rbytes = 0
            if length == n and n and not lane_waits(lane):
                # The rest is the beginning of a command.
                break
    lane.rest = 0
    if length:
        keep_input(lane, data, length)
    elif c.rbytes == 0:
        free_input(lane)


cdef void lane_take_data(rdma_conn *rc, const message_header *header, char *payload, size_t length) noexcept nogil:
    cdef rdma_lane *lane = lane_for_data(rc, header.lane)
    assert_owner(rc.q.t.worker.owner)
    if lane == NULL:
        return
    lane.last_active = store_time(rc.q.t.worker.store)
    if length > lane.rx_room:
        queue_fail(&rc.q, b"more for a lane than it keeps", IBV_WC_SUCCESS)
        return
    if header.used > rc.lane_bytes - lane.tx_room:
        queue_fail(&rc.q, b"more used than was sent", IBV_WC_SUCCESS)
        return
    lane.rx_room -= <uint32_t>length
    lane.tx_room += header.used
    if lane.place == LANE_WANTS_ROOM and lane.tx_room:
        lane_leave_place(lane)
        lane_retry(lane)
        if not lane_is_there(rc, header.lane, lane):
            return
    if length:
        lane_use(lane, payload, length)


cdef void lane_go_on(rdma_lane *lane) noexcept nogil:
    """Runs the machine over the kept input. May close the lane."""
    cdef rdma_conn *rc = lane.rc
    cdef uint32_t id = lane.id
    if lane_may_run(lane):
        lane_run(lane)
        if not lane_is_there(rc, id, lane):
            return
        if lane.c.rbytes == 0:
            free_input(lane)
    if lane.peer_closed and not lane_waits(lane):
        # All commands before CLOSE are done.
        lane_end(lane, NULL)


# ---- output ----------------------------------------------------------------------------------------------------------

cdef bint lane_read(rdma_lane *lane) noexcept nogil:
    """Posts READs for the rest of the payload, as far as there is room. True: READs are under way,
    or the queue pair has failed."""
    cdef rdma_queue *q = &lane.rc.q
    cdef conn *c = &lane.c
    cdef iovec iov[BULK_SGES]
    cdef int count
    cdef rdma_wr *posted
    # A client answers no READ after its end.
    while lane.read_bytes < c.rlbytes and lane.reads < READS_AT_A_TIME and queue_may_read(q) and not q.closing:
        count = conn_payload_piece(c, lane.read_bytes, BULK_PIECE, iov, <int>q.t.dev.read_sges)
        posted = queue_post_bulk(q, WR_READ, iov, count, c.remote.addr + c.roffset + lane.read_bytes, c.remote.rkey)
        if posted == NULL:
            return True
        posted.lane = lane
        lane.reads += 1
        lane.read_bytes += posted.length
    return lane.reads != 0


cdef void lane_begin_read(rdma_lane *lane) noexcept nogil:
    """Posts READs for the payload now or later. For a client that has closed the lane, the payload is given up."""
    if lane.peer_closed:
        lane_end(lane, NULL)
    elif not lane_read(lane):
        lane_wait(lane, LANE_WANTS_READ)


cdef void lane_read_completed(rdma_lane *lane, size_t length) noexcept nogil:
    assert_owner(lane.rc.q.t.worker.owner)
    assert_that(lane.reads > 0 and length <= lane.read_bytes)
    lane.reads -= 1
    lane.read_bytes -= length
    if lane.ending or lane.peer_closed:
        # The value is given up: no further READs.
        if lane.reads == 0:
            lane_end(lane, lane.last_words)
        return
    lane.last_active = store_time(lane.rc.q.t.worker.store)
    conn_payload_received(&lane.c, length)
    if lane.c.rlbytes == 0:
        lane_leave_place(lane)
        lane_retry(lane)
    elif lane.reads == 0:
        lane_begin_read(lane)
    elif lane.rc.want_read.first == NULL:
        # Lanes that wait for room come before a lane with READs under way.
        lane_read(lane)


cdef void lane_write_completed(rdma_wr *entry) noexcept nogil:
    if entry.lane != NULL:
        entry.lane.last_write = NULL
        entry.lane = NULL


cdef bint lane_write(rdma_lane *lane, mc_resp *resp) noexcept nogil:
    """Chains WRITEs of a reply's data into the client's memory. False: there is no room, and a later
    call goes on; or the queue pair has failed."""
    cdef rdma_queue *q = &lane.rc.q
    cdef iovec iov[BULK_SGES]
    cdef item *it = resp.item
    cdef rdma_wr *posted
    cdef int count
    assert_that(lane.write_off <= resp.data_length)
    while lane.write_off < resp.data_length:
        if not queue_may_write(q):
            return False
        count = item_iov(it, resp.data_offset + lane.write_off,
                         queue_write_length(q, resp.data_length - lane.write_off), iov, <int>q.t.dev.write_sges)
        posted = queue_post_bulk(q, WR_WRITE, iov, count, resp.sink.addr + lane.write_off, resp.sink.rkey)
        if posted == NULL:
            return False
        lane.write_off += posted.length
        # WRITEs complete in order, so the lane needs to know only its last WRITE.
        if lane.last_write != NULL:
            lane.last_write.lane = NULL
        lane.last_write = posted
        posted.lane = lane
    lane.write_off = 0
    assert_that(lane.last_write != NULL)
    # The last WRITE takes over the reply's reference to the item.
    lane.last_write.item = it
    lane_write_completed(lane.last_write)
    conn_write_posted(&lane.c)
    return True


cdef inline uint32_t used_of(const rdma_lane *lane) noexcept nogil:
    """Used bytes of the lane's input, not yet reported to the client."""
    cdef size_t kept = lane.rx_room + lane.rest + (0 if lane.starved else lane.c.rbytes)
    return <uint32_t>(RDMA_LANE_BYTES - kept) if kept < RDMA_LANE_BYTES else 0


cdef void lane_send_data(rdma_lane *lane, unsigned int index, size_t length) noexcept nogil:
    """Sends the `length` bytes in send buffer `index`, and reports the lane's used input."""
    cdef uint32_t used = used_of(lane)
    lane.rx_room += used
    lane.tx_room -= <uint32_t>length
    queue_send(&lane.rc.q, MESSAGE_DATA, lane.id, used, index, length)


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
    lane_send_data(lane, index, n)
    conn_sent(&lane.c, n)


cdef bint lane_tell_used(rdma_lane *lane) noexcept nogil:
    """Reports the used input to the client, if replies have left half of RDMA_LANE_BYTES or more unreported. False: the
    lane waits for room to report."""
    if drops_output(lane) or used_of(lane) * 2 < RDMA_LANE_BYTES:
        return True
    if not queue_may_send(&lane.rc.q):
        lane_wait(lane, LANE_WANTS_SEND)
        return False
    lane_send_data(lane, queue_take_buffer(&lane.rc.q), 0)
    return True


cdef void lane_drop(rdma_lane *lane, const iovec *iov, int count) noexcept nogil:
    """Drops stretches of replies to a client that has ended."""
    cdef size_t n = 0
    cdef int i
    for i in range(count):
        n += iov[i].iov_len
    conn_sent(&lane.c, n)


cdef void lane_drop_write(rdma_lane *lane) noexcept nogil:
    """Drops a reply's data, or the rest of the data."""
    cdef item *it = conn_write_posted(&lane.c)
    lane.write_off = 0
    if lane.last_write == NULL:
        item_remove(lane.c.thread.store, it)
        return
    # A part of the data is on its way, and needs the item.
    lane.last_write.item = it
    lane_write_completed(lane.last_write)


cdef inline bint lane_drops_next_write(rdma_lane *lane) noexcept nogil:
    """Whether a value need not be written, since nobody takes the value. After a CLOSE of the client, a value is still
    written to its end once a part is written: the client's memory stays until the server's CLOSE."""
    return lane.rc.q.closing or lane.peer_closed and lane.write_off == 0


cdef inline size_t lane_room(const rdma_lane *lane) noexcept nogil:
    """Bytes of output for the next message, at most."""
    cdef size_t room = lane.rc.q.send_msgsize - MESSAGE_HEADER
    if not drops_output(lane):
        room = min(room, <size_t>lane.tx_room)
    return room


cdef bint lane_flush(rdma_lane *lane) noexcept nogil:
    """Posts the lane's replies. True: all are posted. False: the lane waits for room, or the queue pair has failed."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef iovec iov[32]
    cdef mc_resp *resp
    cdef int count
    while c.npending and not rc.q.failed:
        resp = conn_next_write(c)
        if resp != NULL:
            if lane_drops_next_write(lane):
                lane_drop_write(lane)
            elif not lane_write(lane, resp):
                lane_wait(lane, LANE_WANTS_WRITE)
                return False
            continue
        if conn_waits(c):
            if drops_output(lane):
                # The commands behind need not wait for a result that nobody takes.
                resp_finish(c, c.resp_head)
                continue
            lane_wait(lane, LANE_WANTS_RESULT)
            return False
        if lane_room(lane) == 0:
            lane_wait(lane, LANE_WANTS_ROOM)
            return False
        count = conn_gather(c, iov, 32, lane_room(lane))
        if count == 0:
            conn_sent(c, 0)
            if conn_next_write(c) == NULL and not conn_waits(c):
                break
            continue
        if drops_output(lane):
            lane_drop(lane, iov, count)
            continue
        if not queue_may_send(&rc.q):
            lane_wait(lane, LANE_WANTS_SEND)
            return False
        lane_send(lane, iov, count)
    lane_leave_place(lane)
    return not rc.q.failed and lane_tell_used(lane)


# ---- the machine -----------------------------------------------------------------------------------------------------

cdef conn_want lane_drive(rdma_lane *lane) noexcept nogil:
    """Runs the machine once, and subtracts its commands from the turn's share; a call counts as at least one
    command."""
    cdef rdma_conn *rc = lane.rc
    cdef conn *c = &lane.c
    cdef conn_want want = rc.q.t.drive(c)
    cdef int64_t done
    lane.starved = want == WANT_INPUT or want == WANT_PAYLOAD
    done = max(<int64_t>(c.thread.reqs_per_event - c.reqs_left), <int64_t>1)
    rc.turn_left -= done
    rc.q.t.turn_left -= done
    return want


cdef void lane_run(rdma_lane *lane) noexcept nogil:
    """Runs the machine over the lane's input, until replies cannot leave, a payload is awaited, or the
    turn is used up. May close the lane."""
    cdef conn_want want
    while True:
        want = lane_drive(lane)
        if want == WANT_REMOTE_PAYLOAD:
            # Earlier replies need not wait for the READ.
            lane_flush(lane)
            lane_begin_read(lane)
            return
        if not lane_flush(lane):
            return
        if want == WANT_CLOSE:
            lane_end(lane, NULL)
            return
        if want == WANT_YIELD:
            give_way(lane)
            return
        if want != WANT_FLUSH or not lane_may_run(lane):
            return


cdef void lane_retry(rdma_lane *lane) noexcept nogil:
    """Tries again to post replies or READs, and goes on. The lane has left its place."""
    if lane.reads:
        lane_flush(lane)
    elif lane.c.state == conn_rdma_read and lane.c.rlbytes:
        lane_flush(lane)
        lane_begin_read(lane)
    elif lane_flush(lane):
        lane_go_on(lane)

cdef enum:
    TURN_LEAST = 64 * 1024       # bytes: a served connection's least share; longer transfers may wait for another turn
    RECEIVE_SIZE = 256 * 1024    # of a payload at once: TCP acknowledges nothing during a copy, and BBR slows down
    BULK_READ_SIZE = 2048        # read at once where a payload larger than the read buffer may follow

cdef enum flush_result:
    FLUSH_BROKEN                 # the connection is broken
    FLUSH_SOCKET_FULL
    FLUSH_TURN_OVER              # the socket has room, but the connection has used up its share of the turn
    FLUSH_WAITS                  # the next reply waits for its result
    FLUSH_DONE                   # all has left


cdef inline size_t turn_share(const worker *w) noexcept nogil:
    """Bytes a connection may send or receive now. The rest waits for another turn."""
    return max(w.turn_left, <size_t>TURN_LEAST)


cdef inline void turn_used(worker *w, size_t n) noexcept nogil:
    w.turn_left -= min(n, w.turn_left)


# ---- output ----------------------------------------------------------------------------------------------------------

cdef flush_result connection_flush(connection *cn) noexcept nogil:
    """Sends the queued output."""
    cdef iovec iov[IOV_MOST]
    cdef ssize_t n
    cdef size_t total
    cdef size_t share = turn_share(cn.w)
    cdef size_t left = share
    cdef int i, count
    assert_owner(cn.w.thread.owner)
    while cn.c.npending:
        if left == 0:
            return FLUSH_TURN_OVER
        count = conn_gather(&cn.c, iov, IOV_MOST, left)
        if count == 0:
            conn_sent(&cn.c, 0)
            if conn_waits(&cn.c):
                return FLUSH_WAITS
            break
        total = 0
        for i in range(count):
            total += iov[i].iov_len
        if total == left and cn.w.turn_left == 0 and not cn.flags & CONNECTION_BLOCKED:
            # The reply is long, and waits in the queue: a part in each turn would cost a system call each time.
            cn.long_replies = True
            return FLUSH_TURN_OVER
        n = cn.stream.calls.send(&cn.stream, iov, count)
        if n < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                return FLUSH_SOCKET_FULL
            return FLUSH_BROKEN
        counter_add(&cn.w.thread.stats.bytes_written, <uint64_t>n)
        conn_sent(&cn.c, <size_t>n)
        turn_used(cn.w, <size_t>n)
        if <size_t>n < total:
            return FLUSH_SOCKET_FULL
        left -= total
    if left != share:
        cn.long_replies = share - left > TURN_LEAST
        # Earlier looks at the socket say nothing about this output.
        cn.untaken = 0
    return FLUSH_DONE


cdef void connection_block(connection *cn) noexcept nogil:
    """Waits for room in the socket."""
    cn.flags |= CONNECTION_BLOCKED
    connection_moved(cn)
    connection_interest(cn, EPOLLOUT)


cdef void give_way(connection *cn, run_queue *q) noexcept nogil:
    """Waits until the queue reaches the connection."""
    if not cn.flags & CONNECTION_RUNNABLE:
        cn.flags |= CONNECTION_RUNNABLE
        cn.run_next = NULL
        if q.head == NULL:
            q.head = cn
        else:
            q.tail.run_next = cn
        q.tail = cn


cdef void read_held(connection *cn) noexcept nogil:
    if cn.stream.held:
        give_way(cn, &cn.w.holding)


cdef void send_later(connection *cn) noexcept nogil:
    """The connection's share of the turn is over: the rest of its output leaves in later turns."""
    # The peer may have taken all output so far. An empty socket then looks as if the peer were idle.
    connection_moved(cn)
    if not cn.flags & CONNECTION_BLOCKED:
        give_way(cn, &cn.w.sending)


cdef inline void wait_for_result(connection *cn) noexcept nogil:
    """Waits for the result of a reply. If epoll reports input or room meanwhile, connection_event stops the events."""
    cn.flags &= ~CONNECTION_BLOCKED
    cn.flags |= CONNECTION_WAITS


cdef bint send_waiting(connection *cn) noexcept nogil:
    cdef flush_result result = connection_flush(cn)
    if result == FLUSH_BROKEN or (result == FLUSH_DONE and cn.flags & CONNECTION_CLOSING):
        connection_end(cn, True)
    elif result == FLUSH_SOCKET_FULL:
        if cn.flags & CONNECTION_BLOCKED:
            connection_moved(cn)
        else:
            connection_block(cn)
    elif result == FLUSH_TURN_OVER:
        send_later(cn)
    elif result == FLUSH_WAITS:
        wait_for_result(cn)
    else:
        return True
    return False


cdef void connection_writable(connection *cn) noexcept nogil:
    if send_waiting(cn):
        cn.flags &= ~CONNECTION_BLOCKED
        connection_interest(cn, EPOLLIN)
        connection_run(cn)


# ---- the machine -----------------------------------------------------------------------------------------------------

cdef void connection_run(connection *cn) noexcept nogil:
    cdef conn_want want
    cdef flush_result result
    assert_owner(cn.w.thread.owner)
    while True:
        want = drive_machine(&cn.c)
        result = connection_flush(cn)
        if want == WANT_CLOSE:
            cn.flags |= CONNECTION_CLOSING
        if result != FLUSH_DONE:
            if result == FLUSH_BROKEN or not keep_input(cn):
                connection_end(cn, True)
            elif result == FLUSH_SOCKET_FULL:
                connection_block(cn)
            elif result == FLUSH_WAITS:
                wait_for_result(cn)
            else:
                send_later(cn)
            return
        if want == WANT_FLUSH:
            continue
        if want == WANT_INPUT or want == WANT_PAYLOAD:
            if not keep_input(cn):
                connection_end(cn, True)
            else:
                read_held(cn)
            return
        if want == WANT_LENT:
            connection_lent(cn)
            return
        if want == WANT_AUTH:
            if keep_input(cn):
                connection_wait_auth(cn)
            else:
                connection_end(cn, True)
            return
        if want == WANT_YIELD:
            if not keep_input(cn):
                connection_end(cn, True)
                return
            give_way(cn, &cn.w.runnable)
            return
        # WANT_CLOSE; WANT_REMOTE_PAYLOAD cannot be: socket_engine.remote is false
        connection_end(cn, True)
        return


cdef void run_runnable(worker *w) noexcept nogil:
    cdef connection *cn = w.runnable.head
    cdef connection *following
    assert_owner(w.thread.owner)
    w.runnable.head = NULL
    while cn != NULL:
        following = cn.run_next
        cn.flags &= ~CONNECTION_RUNNABLE
        if cn.stream.fd >= 0:
            connection_run(cn)
        cn = following


cdef void run_sending(worker *w) noexcept nogil:
    cdef connection *cn
    assert_owner(w.thread.owner)
    while w.sending.head != NULL and w.turn_left:
        cn = w.sending.head
        w.sending.head = cn.run_next
        cn.flags &= ~CONNECTION_RUNNABLE
        if cn.stream.fd < 0:
            continue
        if cn.c.npending == 0:
            connection_readable(cn)
        elif send_waiting(cn):
            connection_run(cn)


cdef void run_holding(worker *w) noexcept nogil:
    cdef connection *cn = w.holding.head
    cdef connection *following
    assert_owner(w.thread.owner)
    w.holding.head = NULL
    while cn != NULL:
        following = cn.run_next
        cn.flags &= ~CONNECTION_RUNNABLE
        if cn.stream.fd >= 0 and not queue_for_turn(cn):
            connection_readable(cn)
        cn = following


cdef bint queue_for_turn(connection *cn) noexcept nogil:
    if cn.w.turn_left or not (cn.long_replies or cn.c.rlbytes > TURN_LEAST):
        return False
    give_way(cn, &cn.w.sending)
    return True


# ---- input -----------------------------------------------------------------------------------------------------------

cdef inline ssize_t receive_payload(connection *cn) noexcept nogil:
    """Reads straight into the item. Returns recv's result."""
    cdef conn *c = &cn.c
    cdef iovec iov[IOV_PAYLOAD]
    cdef size_t room = RECEIVE_SIZE
    cdef ssize_t n
    cdef int count = conn_payload_iov(c, iov, IOV_PAYLOAD)
    cdef int i
    for i in range(count):
        if iov[i].iov_len >= room:
            iov[i].iov_len = room
            count = i + 1
            break
        room -= iov[i].iov_len
    n = cn.stream.calls.receive_into(&cn.stream, iov, count)
    if n > 0:
        counter_add(&cn.w.thread.stats.bytes_read, <uint64_t>n)
        conn_payload_received(c, <size_t>n)
        turn_used(cn.w, <size_t>n)
        connection_moved(cn)
    return n


cdef inline ssize_t receive_input(connection *cn, bint *filled) noexcept nogil:
    """Reads behind the unparsed bytes, where make_room has made space. Returns recv's result; filled: the read used all
    the space."""
    cdef worker *w = cn.w
    cdef conn *c = &cn.c
    cdef char *space
    cdef size_t room
    cdef ssize_t n
    if cn.rbuf != NULL:
        space = c.rcurr + c.rbytes
        room = cn.rsize - <size_t>(space - cn.rbuf)
    else:
        assert_that(c.rbytes == 0 or c.rcurr == w.rbuf)
        c.rcurr = w.rbuf
        space = w.rbuf + c.rbytes
        room = BULK_READ_SIZE if cn.bulk else READ_BUFFER_SIZE - c.rbytes
    n = cn.stream.calls.receive(&cn.stream, space, room)
    if n > 0:
        if c.state == conn_swallow:
            # A part of a refused value counts as a part of a payload.
            connection_moved(cn)
        counter_add(&w.thread.stats.bytes_read, <uint64_t>n)
        c.rbytes += <size_t>n
        cn.long_input = n >= READ_AHEAD_SIZE
        filled[0] = <size_t>n == room
    return n


cdef inline bint choose_next_read(connection *cn, bint filled) noexcept nogil:
    """After the machine has run over the input: sets the size of the next read. True: the payload of the last command
    is to be read now, straight into the item. filled: the read used all its space.

    Payload bytes in the read buffer are copied from there, so of a large payload little should go there. For a payload
    within the buffer, the copy costs less than another system call.
    """
    cdef conn *c = &cn.c
    if cn.stream.fd < 0 or c.state == conn_auth \
            or cn.flags & (CONNECTION_BLOCKED | CONNECTION_RUNNABLE | CONNECTION_LENT | CONNECTION_WAITS):
        return False
    if c.rlbytes == 0:
        if filled:
            cn.bulk = False
        return False
    cn.bulk = c.roffset + c.rlbytes > READ_BUFFER_SIZE
    return filled


cdef void connection_readable(connection *cn) noexcept nogil:
    cdef conn *c = &cn.c
    cdef size_t taken = 0        # of a payload
    cdef size_t share = turn_share(cn.w)
    cdef bint filled = False
    cdef ssize_t n
    assert_owner(cn.w.thread.owner)
    while True:
        if c.rlbytes and c.rbytes == 0:
            if taken == 0 and queue_for_turn(cn):
                # The command has been read just now; its payload waits in the queue.
                return
            n = receive_payload(cn)
            if n > 0:
                taken += <size_t>n
                if c.rlbytes and taken < share and not cn.stream.held:
                    # Even if the socket was empty: a sender on another core has been filling the socket meanwhile, and
                    # would have to wake a sleeping thread.
                    continue
                if c.rlbytes == 0:
                    connection_run(cn)
                else:
                    read_held(cn)
                return
        else:
            if not make_room(cn):
                connection_end(cn, True)
                return
            n = receive_input(cn, &filled)
            if n > 0:
                if cn.flags & (CONNECTION_FRESH | CONNECTION_STREAM) and check_for_stream(cn):
                    stream_readable(cn)
                    return
                connection_run(cn)
                if choose_next_read(cn, filled):
                    continue
                return
        if n < 0 and errno == EINTR:
            continue
        if (n < 0 and errno != EAGAIN) or not keep_input(cn):
            connection_end(cn, True)
        elif n == 0:
            connection_gone(cn)
        elif cn.stream.blocked:
            connection_block(cn)
        else:
            read_held(cn)
        return


# ---- reading ahead ---------------------------------------------------------------------------------------------------

cdef inline bint may_read_ahead(const connection *cn) noexcept nogil:
    """Whether the connection waits for a command, has no part of the command yet, and had little input and output
    before."""
    return (cn.stream.fd >= 0 and cn.flags == 0 and cn.rbuf == NULL and cn.c.state == conn_read and not cn.long_input
            and not cn.bulk and not cn.long_replies)


cdef void read_ahead(worker *w, const epoll_event *events, int n) noexcept nogil:
    cdef key_ahead keys[READ_AHEAD]
    cdef unsigned int found = 0
    cdef char *space = w.rbuf + READ_BUFFER_SIZE
    cdef connection *cn
    cdef ssize_t got
    cdef int i
    assert_owner(w.thread.owner)
    if n < 2:
        return
    for i in range(n):
        if event_kind(&events[i]) != EVENT_CONNECTION:
            continue
        cn = event_connection(&events[i])
        if not may_read_ahead(cn):
            continue
        got = cn.stream.calls.receive(&cn.stream, space, READ_AHEAD_SIZE)
        if got <= 0:
            # There is nothing to take ahead. connection_readable gets the same result, and acts on it.
            continue
        counter_add(&w.thread.stats.bytes_read, <uint64_t>got)
        cn.c.rcurr = space
        cn.c.rbytes = <size_t>got
        cn.ahead = True
        cn.long_input = got == READ_AHEAD_SIZE
        if cn.c.protocol == ascii_prot and command_ahead(space, space + got, &keys[found]) != NULL:
            found += 1
        space += READ_AHEAD_SIZE
    if found > 1:
        items_ahead(w.thread.store, keys, found)


cdef void connection_run_ahead(connection *cn) noexcept nogil:
    cdef bint filled = cn.long_input
    assert_owner(cn.w.thread.owner)
    assert_that(cn.rbuf == NULL)
    assert_that(cn.c.rbytes != 0)
    cn.ahead = False
    connection_run(cn)
    if choose_next_read(cn, filled):
        connection_readable(cn)

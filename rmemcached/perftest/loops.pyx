# The measured loops. A `side` belongs to one thread.
#
# All loops can be left and entered again: where a test stands is in the side.

cdef enum:
    TAKE = 16                        # completions taken, and receives posted, at a time
    LOOKS = 1024                     # polls in vain between looks at the control connection
    CREDITS_MAX = 16                 # credit messages under way
    ROOM = CREDITS_MAX + 1           # in the send queue beside the data: for these, and for the last READ

cdef uint64_t UNLIMITED = <uint64_t> -1
cdef uint64_t CREDIT = 1 << 32       # wr_id of a message that only returns credit

cdef enum stop:                      # why a loop was left; 0: the test is done
    STOP_NOT = 0
    STOP_CONTROL = -1                # the control connection is readable
    STOP_STATUS = -2                 # a work request failed: side.code is its ibv_wc_status
    STOP_POST = -3                   # a call failed: side.code is the errno value
    STOP_POLL = -4
    STOP_EVENT = -5

cdef struct side:
    ibv_qp *qp
    ibv_cq *cq
    ibv_comp_channel *channel        # NULL: the completion queue is polled
    const verbs_provider *provider
    int control                      # descriptor
    short watched                    # poll events of it that end a loop
    int code
    uint32_t in_vain                 # polls
    bint armed
    uint32_t receives                # taken and not yet posted again
    ibv_recv_wr recv[TAKE]
    ibv_sge recv_sge
    ibv_send_wr data
    ibv_sge data_sge
    ibv_send_wr credit
    ibv_send_wr last                 # a READ of one octet, answered when all before it is done
    ibv_sge last_sge
    unsigned int flags               # of the data requests
    uint8_t *mark_out                # last octets of the outgoing and the incoming message
    uint8_t *mark_in
    # The test under way.
    uint64_t total                   # messages to send
    uint64_t until                   # with a duration: cycles; the total is settled then
    uint64_t expected                # messages to receive; of a duration: 2^64 - 1
    uint32_t depth                   # messages in the send queue
    uint32_t moderation              # every so many have a completion
    uint32_t since                   # messages posted since the last of those; may begin in the test before:
    uint32_t stale                   # so many did
    uint32_t window                  # SEND: messages that the peer has receives for
    uint32_t credit_every            # messages that one credit stands for
    uint64_t posted
    uint64_t completed
    uint64_t received
    uint64_t credits
    uint64_t returned                # credits
    uint32_t returning               # ... under way
    bint last_posted
    bint last_done
    uint64_t *begun                  # cycles at the first post of each signalled group, and at its completion
    uint64_t *done
    uint64_t room                    # groups that these have room for
    uint64_t groups


cdef int post_failed(side *s, int error) noexcept nogil:
    s.code = error
    return STOP_POST


cdef int give_receives(side *s, uint32_t count) noexcept nogil:
    """Posts up to TAKE receives. 0 or an errno value."""
    cdef ibv_recv_wr *bad
    cdef int error
    s.recv[count - 1].next = NULL
    error = ibv_post_recv(s.qp, s.recv, &bad)
    if count < TAKE:
        s.recv[count - 1].next = &s.recv[count]
    return error


cdef int wait_event(side *s) noexcept nogil:
    """Sleeps until the channel or the control connection has something."""
    cdef pollfd fds[2]
    cdef ibv_cq *cq
    cdef void *context
    fds[0].fd = s.channel.fd
    fds[0].events = POLLIN
    fds[1].fd = s.control
    fds[1].events = s.watched
    if poll(fds, 2, -1) < 0:
        if errno == EINTR:
            return 0
        s.code = errno
        return STOP_EVENT
    if fds[0].revents:
        if s.provider.get_cq_event(s.channel, &cq, &context) == 0:
            s.provider.ack_cq_events(cq, 1)
            s.armed = False
        elif errno != EAGAIN and errno != EINTR:
            s.code = errno
            return STOP_EVENT
    elif fds[1].revents:
        return STOP_CONTROL
    return 0


cdef int idle(side *s) noexcept nogil:
    """What to do when there was no completion."""
    cdef pollfd look
    cdef int error
    if s.channel != NULL:
        if s.armed:
            return wait_event(s)
        error = ibv_req_notify_cq(s.cq, 0)
        if error:
            s.code = error
            return STOP_EVENT
        s.armed = True
        return 0
    s.in_vain += 1
    if s.in_vain < LOOKS:
        return 0
    s.in_vain = 0
    # The peer may be waiting for this core.
    sched_yield()
    look.fd = s.control
    look.events = s.watched
    return STOP_CONTROL if poll(&look, 1, 0) > 0 else 0


cdef int collect(side *s) noexcept nogil:
    """Takes completions, or waits. How many it took, or why to stop."""
    cdef ibv_wc wcs[TAKE]
    cdef int i, error
    cdef int n = ibv_poll_cq(s.cq, TAKE, wcs)
    if n == 0:
        return idle(s)
    if n < 0:
        s.code = -n
        return STOP_POLL
    for i in range(n):
        if wcs[i].status != IBV_WC_SUCCESS:
            s.code = wcs[i].status
            return STOP_STATUS
        if wcs[i].opcode & IBV_WC_RECV:
            s.receives += 1
            # A message without octets is a credit.
            if wcs[i].byte_len:
                s.received += 1
            else:
                s.credits += 1
        elif wcs[i].wr_id == CREDIT:
            s.returning -= 1
        elif wcs[i].wr_id == 0:
            s.last_done = True
        else:
            s.completed += wcs[i].wr_id
            if s.groups < s.room:
                s.done[s.groups] = cycles()
            s.groups += 1
    while s.receives >= TAKE:
        error = give_receives(s, TAKE)
        if error:
            return post_failed(s, error)
        s.receives -= TAKE
    return n


cdef int post(side *s) noexcept nogil:
    """Posts one message of the test."""
    cdef ibv_send_wr *bad
    cdef int error
    s.data.send_flags = s.flags
    s.data.wr_id = 0
    s.since += 1
    if s.since >= s.moderation or s.posted + 1 == s.total:
        s.data.send_flags |= IBV_SEND_SIGNALED
        s.data.wr_id = s.since - s.stale
        s.since = 0
        s.stale = 0
    error = ibv_post_send(s.qp, &s.data, &bad)
    if error:
        return post_failed(s, error)
    s.posted += 1
    return 0


cdef int return_credits(side *s) noexcept nogil:
    """Tells the sender how many messages were received: each credit_every, and at the end."""
    cdef ibv_send_wr *bad
    cdef uint64_t due
    cdef int error
    if s.credit_every == 0:
        return 0
    due = s.received // s.credit_every + (s.received == s.expected and s.received % s.credit_every != 0)
    while s.returned < due and s.returning < CREDITS_MAX:
        error = ibv_post_send(s.qp, &s.credit, &bad)
        if error:
            return post_failed(s, error)
        s.returned += 1
        s.returning += 1
    return 0


cdef int settle(side *s) noexcept nogil:
    """Takes the completions that are still to come of the sends of a test that has ended."""
    cdef int result = 0
    while s.completed + s.since - s.stale < s.posted and result >= 0:
        result = collect(s)
    return result if result < 0 else 0


cdef int ping_send(side *s, uint64_t *stamps) noexcept nogil:
    """The client of a SEND latency test. stamps: of total + 1, or NULL."""
    cdef int result
    while s.posted < s.total or s.received < s.posted:
        if s.received == s.posted:
            while s.posted - s.completed >= s.depth:
                result = collect(s)
                if result < 0:
                    return result
            if s.until and cycles() >= s.until:
                s.total = s.posted
                break
            if stamps != NULL:
                stamps[s.posted] = cycles()
            result = post(s)
            if result < 0:
                return result
        while s.received < s.posted:
            result = collect(s)
            if result < 0:
                return result
    if stamps != NULL:
        stamps[s.total] = cycles()
    return 0


cdef int pong_send(side *s) noexcept nogil:
    """The server of a SEND latency test. Ends with STOP_CONTROL, or an error."""
    cdef int result
    while True:
        result = collect(s)
        if result < 0:
            return result
        while s.posted < s.received:
            while s.posted - s.completed >= s.depth:
                result = collect(s)
                if result < 0:
                    return result
            result = post(s)
            if result < 0:
                return result


cdef bint arrived(const side *s, uint64_t number) noexcept nogil:
    """Whether WRITE `number`, counted from 0, of the peer is there: it ends in an octet that changes with each."""
    return <uint8_t> load_acquire(s.mark_in) == 1 + number % 255


cdef int write_ping(side *s) noexcept nogil:
    cdef int result
    while s.posted - s.completed >= s.depth:
        result = collect(s)
        if result < 0:
            return result
    s.mark_out[0] = <uint8_t> (1 + s.posted % 255)
    return post(s)


cdef int ping_write(side *s, uint64_t *stamps) noexcept nogil:
    """The client of a WRITE latency test, which sees in its memory that the answer is there."""
    cdef int result
    while s.posted < s.total or s.received < s.posted:
        if s.received == s.posted:
            if s.until and cycles() >= s.until:
                s.total = s.posted
                break
            if stamps != NULL:
                stamps[s.posted] = cycles()
            result = write_ping(s)
            if result < 0:
                return result
        while not arrived(s, s.received):
            result = collect(s)
            if result < 0:
                return result
        s.received += 1
    if stamps != NULL:
        stamps[s.total] = cycles()
    return 0


cdef int pong_write(side *s) noexcept nogil:
    cdef int result
    while True:
        while s.posted < s.received or not arrived(s, s.received):
            if s.posted < s.received:
                result = write_ping(s)
            else:
                result = collect(s)
            if result < 0:
                return result
        s.received += 1


cdef int ping_read(side *s, uint64_t *stamps) noexcept nogil:
    """The client of a READ latency test: one at a time."""
    cdef int result
    while s.posted < s.total or s.completed < s.posted:
        if s.completed == s.posted:
            if s.until and cycles() >= s.until:
                s.total = s.posted
                break
            if stamps != NULL:
                stamps[s.posted] = cycles()
            result = post(s)
            if result < 0:
                return result
        while s.completed < s.posted:
            result = collect(s)
            if result < 0:
                return result
    if stamps != NULL:
        stamps[s.total] = cycles()
    return 0


cdef int serve(side *s) noexcept nogil:
    """Receives, returns credits, and makes progress for the peer. Ends with STOP_CONTROL, or an error."""
    cdef int result
    while True:
        result = collect(s)
        if result >= 0:
            result = return_credits(s)
        if result < 0:
            return result


cdef bint may_post(side *s) noexcept nogil:
    if s.posted >= s.total or s.posted - s.completed >= s.depth:
        return False
    return s.credit_every == 0 or s.posted < s.window + s.credits * s.credit_every


cdef int flow(side *s) noexcept nogil:
    """The sender of a bandwidth test: keeps the send queue full until everything has arrived at the peer.

    That SENDs have arrived the peer's credits tell. WRITEs are there when a READ behind them is answered.
    """
    cdef ibv_send_wr *bad
    cdef uint64_t now
    cdef int result
    while True:
        while may_post(s):
            now = cycles()
            if s.until and now >= s.until and s.total == UNLIMITED:
                s.total = s.posted + 1
                if s.credit_every:
                    s.total += s.credit_every - 1 - s.posted % s.credit_every
            if s.posted % s.moderation == 0 and s.posted // s.moderation < s.room:
                s.begun[s.posted // s.moderation] = now
            result = post(s)
            if result < 0:
                return result
        if s.completed == s.total:
            if s.credit_every:
                if s.credits * s.credit_every >= s.total:
                    return 0
            elif s.data.opcode == IBV_WR_RDMA_READ or s.last_done:
                return 0
            elif not s.last_posted:
                s.last_posted = True
                result = ibv_post_send(s.qp, &s.last, &bad)
                if result:
                    return post_failed(s, result)
        result = collect(s)
        if result >= 0:
            result = return_credits(s)
        if result < 0:
            return result


cdef double best_rate(const side *s, uint64_t groups) noexcept nogil:
    """Messages per cycle of the best stretch between the post of one group and the completion of a later one."""
    cdef double best = 0
    cdef double rate
    cdef uint64_t i, j, messages
    for i in range(groups):
        for j in range(i, groups):
            messages = min((j + 1) * s.moderation, s.total) - i * s.moderation
            if s.done[j] > s.begun[i]:
                rate = <double> messages / <double> (s.done[j] - s.begun[i])
                if rate > best:
                    best = rate
    return best

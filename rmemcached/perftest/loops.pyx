"""See loops.pxd."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rmemcached.sys.atomics cimport load_acquire
from rmemcached.sys.clock cimport cycles
from rmemcached.sys.debug cimport assert_owner, assert_that
from rmemcached.sys.linux cimport POLLIN, poll, pollfd, sched_yield
from rmemcached.verbs.verbs cimport (
    IBV_SEND_SIGNALED, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, ibv_cq, ibv_poll_cq, ibv_post_recv,
    ibv_post_send, ibv_recv_wr, ibv_req_notify_cq, ibv_send_wr, ibv_wc,
)

cdef enum:
    CHECK_EVERY = 1024               # empty polls between looks at the control connection


cdef int post_failed(side *s, int error) noexcept nogil:
    s.code = error
    return STOP_POST


cdef int give_receives(side *s, uint32_t count) noexcept nogil:
    cdef ibv_recv_wr *bad
    cdef int error
    assert_owner(s.owner)
    assert_that(1 <= count <= BATCH)
    s.recv[count - 1].next = NULL
    error = ibv_post_recv(s.qp, s.recv, &bad)
    if count < BATCH:
        s.recv[count - 1].next = &s.recv[count]
    return error


cdef int wait_event(side *s) noexcept nogil:
    """Sleeps until the channel or the control connection is readable."""
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
    """Waits, or looks at the control connection, after a poll without a completion."""
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
    s.empty_polls += 1
    if s.empty_polls < CHECK_EVERY:
        return 0
    s.empty_polls = 0
    # The peer may need this core.
    sched_yield()
    look.fd = s.control
    look.events = s.watched
    return STOP_CONTROL if poll(&look, 1, 0) > 0 else 0


cdef int collect(side *s) noexcept nogil:
    """Takes completions, or waits. Returns their number, or a `stop`."""
    cdef ibv_wc wcs[BATCH]
    cdef int i, error
    cdef int n
    assert_owner(s.owner)
    n = ibv_poll_cq(s.cq, BATCH, wcs)
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
            # A message without data is a credit.
            if wcs[i].byte_len:
                s.received += 1
            else:
                s.credits += 1
        elif wcs[i].wr_id == credit_id():
            s.returning -= 1
        elif wcs[i].wr_id == 0:
            s.last_done = True
        else:
            s.completed += wcs[i].wr_id
            if s.groups < s.room:
                s.done[s.groups] = cycles()
            s.groups += 1
    while s.receives >= BATCH:
        error = give_receives(s, BATCH)
        if error:
            return post_failed(s, error)
        s.receives -= BATCH
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
    """Sends a credit for every credit_every messages received, and a credit for the rest at the end."""
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


cdef int drain(side *s) noexcept nogil:
    cdef int result = 0
    while s.completed + s.since - s.stale < s.posted and result >= 0:
        result = collect(s)
    return result if result < 0 else 0


cdef int ping_send(side *s, uint64_t *stamps) noexcept nogil:
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
    """Whether WRITE `number` of the peer, counted from 0, has arrived: the last byte changes with each WRITE."""
    return <uint8_t> load_acquire(s.mark_in) == 1 + number % 255


cdef int write_ping(side *s) noexcept nogil:
    """Posts a WRITE, once the send queue has room. Returns 0, or a `stop`."""
    cdef int result
    while s.posted - s.completed >= s.depth:
        result = collect(s)
        if result < 0:
            return result
    s.mark_out[0] = <uint8_t> (1 + s.posted % 255)
    return post(s)


cdef int ping_write(side *s, uint64_t *stamps) noexcept nogil:
    """Sends WRITEs, each after the peer's answer has arrived in the memory of this side."""
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
    return s.credit_every == 0 or s.posted < s.peer_receives + s.credits * s.credit_every


cdef int flow(side *s) noexcept nogil:
    """Keeps the send queue full until everything has arrived at the peer.

    The peer's credits report the arrival of SENDs. WRITEs have arrived when a READ posted after them is answered.
    """
    cdef ibv_send_wr *bad
    cdef uint64_t now
    cdef int result
    while True:
        while may_post(s):
            now = cycles()
            if s.until and now >= s.until and s.total == unlimited():
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

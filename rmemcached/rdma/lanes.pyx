cdef enum:
    DROPPED_PER_TURN = 64            # lanes of an ended client that drop their replies in a turn


cdef bint lanes_free(rdma_conn *rc, unsigned int *most) noexcept nogil:
    assert_that(rc.q.qp == NULL)
    while rc.first_lane != NULL and most[0]:
        most[0] -= 1
        lane_free(rc.first_lane)
    if rc.first_lane != NULL:
        return False
    lane_closes_free(rc)
    table_free(&rc.table)
    return True


cdef void lanes_begin_turn(rdma_conn *rc) noexcept nogil:
    assert_owner(rc.q.t.worker.owner)
    rc.turn_left = <int64_t>TURN_QUANTA * rc.q.t.worker.reqs_per_event


cdef bint lanes_end_turn(const rdma_conn *rc) noexcept nogil:
    return rc.turn_left <= 0


cdef inline bint lanes_runnable(const rdma_conn *rc) noexcept nogil:
    return rc.runnable.first != NULL


cdef void lanes_resume_runnable(rdma_conn *rc) noexcept nogil:
    """Goes on with runnable lanes, the longest waiting first. Lanes may give way again."""
    cdef unsigned int left = rc.runnable.count
    cdef rdma_lane *lane
    assert_owner(rc.q.t.worker.owner)
    while left and rc.runnable.first != NULL and not rc.q.failed:
        if lanes_end_turn(rc):
            thread_ready(rc)
            return
        left -= 1
        lane = rc.runnable.first
        lane_leave_place(lane)
        lane_retry(lane)


cdef inline bint lanes_blocked(const rdma_conn *rc) noexcept nogil:
    return (rc.want_send.first != NULL or rc.want_write.first != NULL or rc.want_read.first != NULL
            or rc.first_close != NULL
            or rc.q.closing and (rc.want_room.first != NULL or rc.want_result.first != NULL))


cdef inline void retry_first(lane_list *list) noexcept nogil:
    cdef rdma_lane *lane = list.first
    lane_leave_place(lane)
    lane_retry(lane)


cdef void drop_waiting(rdma_conn *rc) noexcept nogil:
    """Has waiting lanes drop their replies, since the client has ended. A turn does a few lanes: in
    each list the longest waiting first."""
    cdef unsigned int left = DROPPED_PER_TURN
    while left and rc.want_write.first != NULL and not rc.q.failed:
        left -= 1
        retry_first(&rc.want_write)
    while left and rc.want_room.first != NULL and not rc.q.failed:
        left -= 1
        retry_first(&rc.want_room)
    while left and rc.want_result.first != NULL and not rc.q.failed:
        left -= 1
        retry_first(&rc.want_result)
    while left and rc.want_send.first != NULL and not rc.q.failed:
        left -= 1
        retry_first(&rc.want_send)
    if left == 0:
        thread_ready(rc)


cdef void lanes_retry_blocked(rdma_conn *rc) noexcept nogil:
    """Retries blocked lanes while there is room, each lane at most once."""
    cdef unsigned int left = rc.want_read.count
    if rc.q.closing:
        drop_waiting(rc)
        return
    while left and rc.want_read.first != NULL and not rc.q.failed and queue_may_read(&rc.q):
        left -= 1
        retry_first(&rc.want_read)
    left = rc.want_write.count
    while left and rc.want_write.first != NULL and not rc.q.failed and queue_may_write(&rc.q):
        left -= 1
        retry_first(&rc.want_write)
    lane_closes_send(rc)
    left = rc.want_send.count
    while left and rc.want_send.first != NULL and not rc.q.failed and queue_may_send(&rc.q):
        left -= 1
        retry_first(&rc.want_send)


cdef void lanes_client_ended(rdma_conn *rc) noexcept nogil:
    rc.q.closing = True


cdef unsigned int lanes_end_idle(rdma_conn *rc, unsigned int seconds, uint32_t *oldest) noexcept nogil:
    cdef uint32_t now = store_time(rc.q.t.worker.store)
    cdef rdma_lane *lane = rc.first_lane
    cdef rdma_lane *following
    cdef unsigned int ended = 0
    while lane != NULL and not rc.q.failed:
        following = lane.next
        if lane.pins.used:
            # A client with views reads items without a request, so the lane is not idle.
            lane.last_active = now
        if not lane.counted or lane.reads:
            pass
        elif now - lane.last_active <= seconds:
            oldest[0] = min(oldest[0], lane.last_active)
        else:
            lane.c.close_reason = IDLE_TIMEOUT_CLOSE
            lane_end(lane, NULL)
            ended += 1
        lane = following
    return ended

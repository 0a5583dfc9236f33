cdef bint lane_admit(void *owner) noexcept nogil:
    """rdma_lane_hooks.admit"""
    cdef connection *cn = <connection *>owner
    assert_owner(cn.w.thread.owner)
    return cn.w.admit_lane(cn.w.admit_arg)


cdef void lane_began(void *owner, const conn *c) noexcept nogil:
    """rdma_lane_hooks.began"""
    log_open(<connection *>owner, c)


cdef void lane_ended(void *owner, const conn *c) noexcept nogil:
    """rdma_lane_hooks.ended"""
    cdef connection *cn = <connection *>owner
    cdef char name[CONN_NAME]
    assert_owner(cn.w.thread.owner)
    if c.close_reason == IDLE_TIMEOUT_CLOSE and conn_logs(c):
        fprintf(stderr, b"Closing idle fd %s\n", conn_name(c, name))
    # A lane without its own reason ends with its lifeline.
    log_end(cn, c, <close_reasons>(c.close_reason if c.close_reason != ERROR_CLOSE else cn.c.close_reason))
    fetch_sub(cn.w.curr_connections, 1)


cdef void init_lane_hooks(worker *w) noexcept nogil:
    w.lane_hooks.admit = lane_admit
    w.lane_hooks.began = lane_began
    w.lane_hooks.ended = lane_ended
    w.lane_hooks.lock = &w.list_lock

# Memory windows; see mw.pxd.


cdef ibv_mw *soft_alloc_mw(ibv_pd *ibpd, ibv_mw_type kind) noexcept nogil:
    cdef soft_mw *mw
    if kind != IBV_MW_TYPE_1 and kind != IBV_MW_TYPE_2:
        errno.errno = EINVAL
        return NULL
    mw = <soft_mw *> calloc(1, sizeof(soft_mw))
    if mw == NULL:
        errno.errno = ENOMEM
        return NULL
    mw.region.ibv.context = ibpd.context
    mw.region.ibv.pd = ibpd
    mw.region.window = kind
    if not mr_enter(<soft_context *> ibpd.context, &mw.region):
        free(mw)
        return NULL
    mw.ibv.context = ibpd.context
    mw.ibv.pd = ibpd
    mw.ibv.type = kind
    mw.ibv.rkey = mw.region.ibv.rkey
    mw.ibv.handle = mw.region.ibv.handle
    return &mw.ibv


cdef int soft_dealloc_mw(ibv_mw *ibmw) noexcept nogil:
    mr_leave(&(<soft_mw *> ibmw).region)
    free(ibmw)
    return 0


cdef int soft_bind_mw(ibv_qp *ibqp, ibv_mw *ibmw, ibv_mw_bind *bind) noexcept nogil:
    cdef ibv_send_wr wr
    cdef ibv_send_wr *bad
    cdef uint8_t change = 0
    cdef int error
    # The new key differs from the last in its lower bits, at random: no peer knows the key beforehand.
    while change == 0:
        if getrandom(&change, 1, 0) < 0 and errno.errno != EINTR:
            return errno.errno
    memset(&wr, 0, sizeof(wr))
    wr.wr_id = bind.wr_id
    wr.opcode = IBV_WR_BIND_MW
    wr.send_flags = bind.send_flags
    wr.bind_mw.mw = ibmw
    wr.bind_mw.rkey = ibmw.rkey ^ change
    wr.bind_mw.bind_info = bind.bind_info
    error = (<soft_qp *> ibqp).fabric.post_send(ibqp, &wr, &bad)
    if error == 0:
        ibmw.rkey = wr.bind_mw.rkey
    return error


cdef inline uint64_t mw_length(const soft_swqe *swqe) noexcept nogil:
    return swqe.length | <uint64_t> swqe.received << 32


cdef int mw_fill(soft_qp *qp, soft_swqe *swqe, const ibv_send_wr *wr) noexcept nogil:
    cdef const ibv_mw_bind_info *bind = &wr.bind_mw.bind_info
    assert_held(&qp.lock)
    swqe.num_sge = 0
    if wr.opcode == IBV_WR_LOCAL_INV:
        swqe.rkey = wr.invalidate_rkey
        return 0
    if (wr.bind_mw.mw == NULL or wr.bind_mw.mw.pd != &qp.pd.ibv or wr.bind_mw.mw.rkey >> 8 != wr.bind_mw.rkey >> 8
            or bind.mw_access_flags & ~<unsigned int> (MR_REMOTE | IBV_ACCESS_ZERO_BASED)
            or bind.mr == NULL and bind.length):
        return EINVAL
    swqe.rkey = wr.bind_mw.rkey
    swqe.remote_addr = bind.addr
    swqe.length = <uint32_t> bind.length
    swqe.received = <uint32_t> (bind.length >> 32)
    swqe.operand = bind.mr.lkey if bind.mr != NULL else 0
    swqe.num_sge = <uint16_t> bind.mw_access_flags
    return 0


cdef bint mw_may_bind(const soft_qp *qp, const soft_mr *window, const soft_swqe *swqe) noexcept nogil:
    if window == NULL or window.ibv.pd != &qp.pd.ibv:
        return False
    return window.window == IBV_MW_TYPE_1 or not window.valid and mw_length(swqe) != 0


cdef void mw_set(soft_qp *qp, soft_mr *window, soft_mr *parent, const soft_swqe *swqe) noexcept nogil:
    """Binds the window to its new parent, or leaves it unbound without a parent. Its shard is locked for writing."""
    cdef uint64_t start = 0 if swqe.num_sge & IBV_ACCESS_ZERO_BASED else swqe.remote_addr
    window.ibv.lkey = window.ibv.rkey = swqe.rkey
    window.parent = parent
    window.owner = NULL
    if parent == NULL:
        return
    mr_place(window, mr_at(parent, swqe.remote_addr), mw_length(swqe), start)
    window.access = swqe.num_sge & MR_REMOTE
    if window.window == IBV_MW_TYPE_2:
        window.owner = qp
        qp.bound_windows = True
    relaxed_store(&window.valid, True)


cdef bint mw_bind(soft_qp *qp, const soft_swqe *swqe) noexcept nogil:
    cdef mr_shard *shard = mr_shard_of(qp.context, swqe.rkey)
    cdef soft_mr *parent = NULL
    cdef soft_mr *window
    cdef bint allowed
    cdef int access = IBV_ACCESS_MW_BIND
    assert_held(&qp.lock)
    if swqe.num_sge & IBV_ACCESS_REMOTE_WRITE:
        access |= IBV_ACCESS_LOCAL_WRITE
    if mw_length(swqe):
        parent = mr_join(qp, swqe.operand, swqe.remote_addr, mw_length(swqe), access)
        if parent == NULL:
            return False
    while True:
        lock_write_ranked(&shard.lock, RANK_QUEUE)
        window = mr_find_window(shard, swqe.rkey)
        allowed = mw_may_bind(qp, window, swqe)
        if allowed:
            mr_revoke(window)
        if not allowed or load_acquire(&window.users) == 0:
            break
        # A user of the window may need the lock of the shard for its next region, and this queue pair uses none.
        unlock_rw_ranked(&shard.lock, RANK_QUEUE)
        sched_yield()
    if allowed:
        mw_set(qp, window, parent, swqe)
    elif parent != NULL:
        fetch_sub(&parent.windows, 1)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    return allowed


cdef void mw_unbind_all(soft_qp *qp) noexcept nogil:
    cdef mr_shard *shard
    cdef soft_mr *mr
    cdef uint32_t i, j
    if not qp.bound_windows:
        return
    for i in range(<uint32_t> MR_SHARDS):
        shard = &qp.context.shards[i]
        lock_write_ranked(&shard.lock, RANK_QUEUE)
        for j in range(shard.size):
            mr = shard.buckets[j]
            while mr != NULL:
                if mr.owner == qp:
                    mr_revoke(mr)
                    mr.owner = NULL
                mr = mr.next
        unlock_rw_ranked(&shard.lock, RANK_QUEUE)

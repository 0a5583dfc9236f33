cdef enum:
    BLOCK_MESSAGES = 64          # buffers
    SHARED_FIRST = 1024          # receives for which a new shared queue has room


# ---- blocks ----------------------------------------------------------------------------------------------------------

cdef bint blocks_grow(rdma_thread *t, message_blocks *all) noexcept nogil:
    """Adds a block of messages, and registers its memory. False: out of memory."""
    cdef uint32_t count = all.count // BLOCK_MESSAGES
    cdef size_t size = <size_t>BLOCK_MESSAGES * t.dev.limits.msgsize
    cdef void *memory = NULL
    cdef message_block *larger = <message_block *>realloc(all.blocks, (count + 1) * sizeof(message_block))
    if larger == NULL:
        return False
    all.blocks = larger
    if posix_memalign(&memory, 64, size) != 0:
        return False
    larger[count].memory = <char *>memory
    larger[count].mr = t.dev.provider.reg_mr(t.dev.pd, memory, size, IBV_ACCESS_LOCAL_WRITE)
    if larger[count].mr == NULL:
        free(memory)
        return False
    counter_add(&t.counters.registrations, 1)
    all.count += BLOCK_MESSAGES
    return True


cdef void blocks_free(rdma_thread *t, message_blocks *all) noexcept nogil:
    cdef uint32_t i
    for i in range(all.count // BLOCK_MESSAGES):
        t.dev.provider.dereg_mr(all.blocks[i].mr)
        counter_add(&t.counters.registrations, <uint64_t>-1)
        free(all.blocks[i].memory)
    free(all.blocks)
    all.blocks = NULL
    all.count = 0


cdef inline char *block_message(const rdma_thread *t, const message_blocks *all, uint32_t index) noexcept nogil:
    assert_that(index < all.count)
    return all.blocks[index // BLOCK_MESSAGES].memory + <size_t>(index % BLOCK_MESSAGES) * t.dev.limits.msgsize


cdef void messages_enter(rdma_thread *t) noexcept nogil:
    assert_owner(t.worker.owner)
    t.message_users += 1


cdef void messages_leave(rdma_thread *t) noexcept nogil:
    assert_that(t.message_users > 0)
    t.message_users -= 1
    if t.message_users:
        return
    assert_that(t.shared_credits == 0 and t.nfree_sends == t.sends.count)
    if t.srq != NULL:
        t.dev.provider.destroy_srq(t.srq)
        t.srq = NULL
    blocks_free(t, &t.receives)
    blocks_free(t, &t.sends)
    free(t.free_sends)
    t.free_sends = NULL
    t.nfree_sends = 0


# ---- receives --------------------------------------------------------------------------------------------------------

cdef bint shared_open(rdma_thread *t) noexcept nogil:
    """Makes the shared receive queue, still without receives. False: out of resources."""
    cdef ibv_srq_init_attr init
    memset(&init, 0, sizeof(init))
    init.attr.max_wr = SHARED_FIRST
    init.attr.max_sge = 1
    t.srq = t.dev.provider.create_srq(t.dev.pd, &init)
    if t.srq == NULL:
        return False
    soft_srq_newest_first(t.srq)
    t.shared_room = SHARED_FIRST
    return True


cdef bint shared_grow(rdma_thread *t) noexcept nogil:
    """Adds a block of receives. False: out of resources."""
    cdef ibv_srq_attr attr
    cdef uint32_t first = t.receives.count
    cdef uint32_t i
    if first + BLOCK_MESSAGES > t.shared_room:
        memset(&attr, 0, sizeof(attr))
        attr.max_wr = 2 * t.shared_room
        if t.dev.provider.modify_srq(t.srq, &attr, IBV_SRQ_MAX_WR) != 0:
            return False
        t.shared_room *= 2
    if not blocks_grow(t, &t.receives):
        return False
    for i in range(<uint32_t>BLOCK_MESSAGES):
        # Posted backwards: a queue that takes the newest receive first begins at the start of the block.
        if not receives_post(t, first + BLOCK_MESSAGES - 1 - i):
            return False
    return True


cdef ibv_srq *receives_reserve(rdma_thread *t, uint32_t credits) noexcept nogil:
    assert_owner(t.worker.owner)
    assert_that(t.dev.soft and t.message_users > 0)
    if t.srq == NULL and not shared_open(t):
        return NULL
    while t.receives.count < t.shared_credits + credits:
        if not shared_grow(t):
            return NULL
    t.shared_credits += credits
    return t.srq


cdef void receives_release(rdma_thread *t, uint32_t credits) noexcept nogil:
    assert_that(t.shared_credits >= credits)
    t.shared_credits -= credits


cdef bint receives_post(rdma_thread *t, uint32_t index) noexcept nogil:
    cdef ibv_sge sge
    cdef ibv_recv_wr wr
    cdef ibv_recv_wr *bad
    sge.addr = <uint64_t><uintptr_t>block_message(t, &t.receives, index)
    sge.length = t.dev.limits.msgsize
    sge.lkey = t.receives.blocks[index // BLOCK_MESSAGES].mr.lkey
    wr.next = NULL
    wr.wr_id = RECV_WR | index
    wr.sg_list = &sge
    wr.num_sge = 1
    return ibv_post_srq_recv(t.srq, &wr, &bad) == 0


cdef char *receives_message(rdma_thread *t, uint32_t index) noexcept nogil:
    return block_message(t, &t.receives, index)


# ---- sends -----------------------------------------------------------------------------------------------------------

cdef bint sends_grow(rdma_thread *t) noexcept nogil:
    """Adds a block of buffers for SENDs. False: out of memory."""
    cdef uint32_t first = t.sends.count
    cdef uint32_t i
    cdef uint32_t *larger = <uint32_t *>realloc(t.free_sends, (first + BLOCK_MESSAGES) * sizeof(uint32_t))
    if larger == NULL:
        return False
    t.free_sends = larger
    if not blocks_grow(t, &t.sends):
        return False
    for i in range(<uint32_t>BLOCK_MESSAGES):
        sends_give(t, first + BLOCK_MESSAGES - 1 - i)
    return True


cdef inline bint sends_available(rdma_thread *t) noexcept nogil:
    return t.nfree_sends != 0 or sends_grow(t)


cdef inline uint32_t sends_take(rdma_thread *t) noexcept nogil:
    assert_that(t.nfree_sends > 0)
    t.nfree_sends -= 1
    return t.free_sends[t.nfree_sends]


cdef inline void sends_give(rdma_thread *t, uint32_t buffer) noexcept nogil:
    assert_that(t.nfree_sends < t.sends.count)
    t.free_sends[t.nfree_sends] = buffer
    t.nfree_sends += 1


cdef inline char *sends_buffer(rdma_thread *t, uint32_t buffer) noexcept nogil:
    return block_message(t, &t.sends, buffer)


cdef inline uint32_t sends_key(rdma_thread *t, uint32_t buffer) noexcept nogil:
    return t.sends.blocks[buffer // BLOCK_MESSAGES].mr.lkey

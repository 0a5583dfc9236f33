# Memory regions; see mr.pxd.

cdef enum:
    MR_REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
    MR_RIGHTS = MR_REMOTE | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | SOFT_ACCESS_SCRATCH


cdef inline uint32_t mr_hash(uint32_t stag) noexcept nogil:
    return (stag >> 8) * 0x9e3779b1U


cdef mr_shard *mr_shard_of(soft_context *context, uint32_t stag) noexcept nogil:
    return &context.shards[mr_hash(stag) >> (32 - MR_SHARD_BITS)]


cdef soft_mr **mr_find(mr_shard *shard, uint32_t stag) noexcept nogil:
    """The chain link pointing to the region of the STag, or the last link of the chain."""
    cdef soft_mr **link = &shard.buckets[mr_hash(stag) & (shard.size - 1)]
    assert_read_held(&shard.lock)
    while link[0] != NULL and link[0].ibv.lkey != stag:
        link = &link[0].next
    return link


cdef soft_mr *mr_find_window(mr_shard *shard, uint32_t stag) noexcept nogil:
    cdef soft_mr *mr = shard.buckets[mr_hash(stag) & (shard.size - 1)] if shard.size else NULL
    assert_read_held(&shard.lock)
    while mr != NULL and not (mr.window and (mr.ibv.lkey ^ stag) < 256):
        mr = mr.next
    return mr


cdef bint mr_is_free(mr_shard *shard, const soft_mr *mr, uint32_t stag) noexcept nogil:
    """Whether a new region or window can have the STag. A window needs all STags with the same upper 24 bits."""
    cdef const soft_mr *other = shard.buckets[mr_hash(stag) & (shard.size - 1)]
    assert_read_held(&shard.lock)
    while other != NULL:
        if other.ibv.lkey == stag or (mr.window or other.window) and (other.ibv.lkey ^ stag) < 256:
            return False
        other = other.next
    return stag >= 256


cdef bint mr_grow(mr_shard *shard) noexcept nogil:
    """Doubles the hash table. False: no memory, and the table is unchanged."""
    cdef uint32_t size = shard.size * 2 if shard.size else 16
    cdef uint32_t i
    cdef soft_mr *mr
    cdef soft_mr *following
    cdef soft_mr **slot
    cdef soft_mr **buckets = <soft_mr **> calloc(size, sizeof(soft_mr *))
    assert_write_held(&shard.lock)
    if buckets == NULL:
        return False
    for i in range(shard.size):
        mr = shard.buckets[i]
        while mr != NULL:
            following = mr.next
            slot = &buckets[mr_hash(mr.ibv.lkey) & (size - 1)]
            mr.next = slot[0]
            slot[0] = mr
            mr = following
    free(shard.buckets)
    shard.buckets = buckets
    shard.size = size
    return True


cdef ibv_mr *soft_reg_mr(ibv_pd *ibpd, void *addr, size_t length, int access) noexcept nogil:
    return mr_register(ibpd, addr, length, <uint64_t> addr, access, NULL, 0)


cdef ibv_mr *soft_reg_mr_iova(ibv_pd *ibpd, void *addr, size_t length, uint64_t iova, int access) noexcept nogil:
    return mr_register(ibpd, addr, length, iova, access, NULL, 0)


cdef bint mr_list_is_spread(const mr_part *parts, uint32_t count) noexcept nogil:
    """Whether no FPDU can have octets of more than MAX_SGE parts, the limit of a gather list."""
    cdef uint32_t i
    for i in range(<uint32_t> MAX_SGE, count):
        if parts[i - 1].end - parts[i - MAX_SGE].end < PART_WINDOW:
            return False
    return True


cdef ibv_mr *soft_reg_list(ibv_pd *ibpd, const iovec *memory, uint32_t count) noexcept nogil:
    cdef mr_part *parts
    cdef ibv_mr *registered = NULL
    cdef uint64_t length = 0
    cdef uint32_t used = 0
    cdef uint32_t i
    parts = <mr_part *> calloc(max(count, 1), sizeof(mr_part))
    if parts == NULL:
        errno.errno = ENOMEM
        return NULL
    for i in range(count):
        if memory[i].iov_len and length + memory[i].iov_len > length:
            length += memory[i].iov_len
            parts[used].data = <const uint8_t *> memory[i].iov_base
            parts[used].end = length
            used += 1
    if used and mr_list_is_spread(parts, used):
        registered = mr_register(ibpd, <void *> parts[0].data, length, <uint64_t> parts[0].data,
                                 IBV_ACCESS_REMOTE_READ, parts, used)
    else:
        errno.errno = EINVAL
    if registered == NULL:
        free(parts)
    return registered


cdef int mr_check(const void *addr, size_t length, uint64_t start, int access) noexcept nogil:
    """Checks the attributes of a region. 0 or an errno value."""
    if access & ~(MR_RIGHTS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB):
        return EOPNOTSUPP
    # All memory of the process as a region: a peer could name addresses without memory, at the cost of a signal here.
    if access & IBV_ACCESS_ON_DEMAND and addr == NULL and length == <size_t> -1:
        return EOPNOTSUPP
    if access & IBV_ACCESS_REMOTE_WRITE and not access & IBV_ACCESS_LOCAL_WRITE:
        return EINVAL
    if <uint64_t> addr + length < <uint64_t> addr or start + length < start:
        return EINVAL
    return 0


cdef void mr_place(soft_mr *mr, void *addr, size_t length, uint64_t start) noexcept nogil:
    mr.ibv.addr = addr
    mr.ibv.length = length
    mr.start = start
    mr.shift = <uint64_t> addr - start


cdef ibv_mr *mr_register(ibv_pd *ibpd, void *addr, size_t length, uint64_t start, int access, mr_part *parts,
                         uint32_t part_count) noexcept nogil:
    """Makes a region under a new STag. The region takes ownership of the parts, unless the result is NULL."""
    cdef soft_mr *mr
    cdef int error
    access &= ~<int> IBV_ACCESS_OPTIONAL_RANGE | SOFT_ACCESS_SCRATCH
    if access & IBV_ACCESS_ZERO_BASED:
        start = 0
    error = mr_check(addr, length, start, access)
    if error:
        errno.errno = error
        return NULL
    mr = <soft_mr *> calloc(1, sizeof(soft_mr))
    if mr == NULL:
        errno.errno = ENOMEM
        return NULL
    mr.ibv.context = ibpd.context
    mr.ibv.pd = ibpd
    mr_place(mr, addr, length, start)
    mr.access = access
    mr.parts = parts
    mr.part_count = part_count
    mr.valid = True
    if not mr_enter(<soft_context *> ibpd.context, mr):
        free(mr)
        return NULL
    return &mr.ibv


cdef bint mr_enter(soft_context *context, soft_mr *mr) noexcept nogil:
    cdef soft_mr **slot
    cdef mr_shard *shard
    cdef uint32_t stag
    while True:
        # All 32 bits are random: an STag cannot be guessed, and is not soon used again (RFC 5042 section 6.1.1).
        if getrandom(&stag, sizeof(stag), 0) != <ssize_t> sizeof(stag):
            if errno.errno == EINTR:
                continue
            return False
        shard = mr_shard_of(context, stag)
        lock_write_ranked(&shard.lock, RANK_QUEUE)
        if shard.count >= shard.size and not mr_grow(shard):
            unlock_rw_ranked(&shard.lock, RANK_QUEUE)
            errno.errno = ENOMEM
            return False
        if mr_is_free(shard, mr, stag):
            break
        unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    mr.ibv.lkey = stag
    mr.ibv.rkey = stag
    mr.ibv.handle = stag
    slot = &shard.buckets[mr_hash(stag) & (shard.size - 1)]
    mr.next = slot[0]
    slot[0] = mr
    shard.count += 1
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    fetch_add(&(<soft_pd *> mr.ibv.pd).users, 1)
    live_add(LIVE_MR)
    return True


cdef void mr_wait(soft_mr *mr) noexcept nogil:
    """Waits for the end of all uses. mr_get does not find the region any more."""
    cdef const soft_fabric *fabric = (<soft_context *> mr.ibv.context).fabric
    if load_acquire(&mr.users) and fabric.release != NULL:
        fabric.release(mr)
    # The wait is short, as each access is: a copy, or a system call that does not block.
    while load_acquire(&mr.users):
        sched_yield()


cdef void mr_revoke(soft_mr *mr) noexcept nogil:
    cdef soft_context *context = <soft_context *> mr.ibv.context
    assert_write_held(&mr_shard_of(context, mr.ibv.lkey).lock)
    if mr.valid and mr.parent != NULL:
        # Users of the window are users of its parent, too.
        fetch_sub(&mr.parent.windows, 1)
    relaxed_store(&mr.valid, False)
    if context.fabric.withdraw != NULL:
        context.fabric.withdraw(mr)


cdef bint mr_leave(soft_mr *mr) noexcept nogil:
    cdef mr_shard *shard = mr_shard_of(<soft_context *> mr.ibv.context, mr.ibv.lkey)
    lock_write_ranked(&shard.lock, RANK_QUEUE)
    if relaxed_load(&mr.windows):
        unlock_rw_ranked(&shard.lock, RANK_QUEUE)
        return False
    mr_find(shard, mr.ibv.lkey)[0] = mr.next
    shard.count -= 1
    mr_revoke(mr)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    mr_wait(mr)
    fetch_sub(&(<soft_pd *> mr.ibv.pd).users, 1)
    live_sub(LIVE_MR)
    return True


cdef int soft_dereg_mr(ibv_mr *ibmr) noexcept nogil:
    cdef soft_mr *mr = <soft_mr *> ibmr
    if not mr_leave(mr):
        return EBUSY
    if mr.mapped:
        (<soft_context *> ibmr.context).fabric.free_memory(ibmr.addr, mr.mapped, mr.fabric_state)
    free(mr.parts)
    free(mr)
    return 0


cdef int mr_rereg(soft_mr *mr, int flags, ibv_pd *ibpd, void *addr, size_t length, int access) noexcept nogil:
    """Checks and carries out soft_rereg_mr. 0 or an errno value."""
    cdef mr_shard *shard = mr_shard_of(<soft_context *> mr.ibv.context, mr.ibv.lkey)
    cdef uint64_t start = mr.start
    cdef int error
    if (flags & ~<int> IBV_REREG_MR_FLAGS_SUPPORTED or mr.mapped or mr.parts != NULL
            or flags & IBV_REREG_MR_CHANGE_TRANSLATION and (addr == NULL or length == 0)
            or flags & IBV_REREG_MR_CHANGE_PD and (ibpd == NULL or ibpd.context != mr.ibv.context)
            or access and not flags & IBV_REREG_MR_CHANGE_ACCESS):
        return EINVAL
    if not flags & IBV_REREG_MR_CHANGE_TRANSLATION:
        addr = mr.ibv.addr
        length = mr.ibv.length
    if not flags & IBV_REREG_MR_CHANGE_PD:
        ibpd = mr.ibv.pd
    if flags & IBV_REREG_MR_CHANGE_ACCESS:
        access &= ~<int> IBV_ACCESS_OPTIONAL_RANGE | SOFT_ACCESS_SCRATCH
    else:
        access = mr.access
    if access & IBV_ACCESS_ZERO_BASED:
        start = 0
    elif flags & IBV_REREG_MR_CHANGE_TRANSLATION or mr.access & IBV_ACCESS_ZERO_BASED:
        start = <uint64_t> addr
    error = mr_check(addr, length, start, access)
    if error:
        return error
    lock_write_ranked(&shard.lock, RANK_QUEUE)
    if relaxed_load(&mr.windows):
        error = EBUSY
    else:
        relaxed_store(&mr.valid, False)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    if error:
        return error
    mr_wait(mr)
    fetch_add(&(<soft_pd *> ibpd).users, 1)
    fetch_sub(&(<soft_pd *> mr.ibv.pd).users, 1)
    lock_write_ranked(&shard.lock, RANK_QUEUE)
    mr.ibv.pd = ibpd
    mr_place(mr, addr, length, start)
    mr.access = access
    relaxed_store(&mr.valid, True)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    return 0


cdef int soft_rereg_mr(ibv_mr *ibmr, int flags, ibv_pd *ibpd, void *addr, size_t length, int access) noexcept nogil:
    cdef int error = mr_rereg(<soft_mr *> ibmr, flags, ibpd, addr, length, access)
    if error:
        errno.errno = error
        return IBV_REREG_MR_ERR_INPUT
    return 0


cdef void *mr_alloc_memory(soft_context *context, size_t size, int access, void **state) noexcept nogil:
    cdef void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    state[0] = NULL
    return NULL if memory == MAP_FAILED else memory


cdef void mr_free_memory(void *memory, size_t size, void *state) noexcept nogil:
    munmap(memory, size)


cdef ibv_mr *soft_alloc_mr(ibv_pd *ibpd, size_t length, int access) noexcept nogil:
    cdef size_t mapped = (length + PAGE_SIZE - 1) & ~<size_t> (PAGE_SIZE - 1)
    cdef soft_context *context = <soft_context *> ibpd.context
    cdef void *state = NULL
    cdef void *memory
    cdef soft_mr *mr
    cdef int error
    if length == 0 or mapped < length:
        errno.errno = EINVAL
        return NULL
    memory = context.fabric.alloc_memory(context, mapped, access, &state)
    if memory == NULL:
        return NULL
    mr = <soft_mr *> soft_reg_mr(ibpd, memory, length, access)
    if mr == NULL:
        error = errno.errno
        context.fabric.free_memory(memory, mapped, state)
        errno.errno = error
        return NULL
    mr.mapped = mapped
    mr.fabric_state = state
    if context.fabric.expose != NULL:
        context.fabric.expose(mr)
    return &mr.ibv


cdef inline bint mr_covers(const soft_mr *mr, uint64_t addr, uint64_t length) noexcept nogil:
    return addr >= mr.start and length <= mr.ibv.length and addr - mr.start <= mr.ibv.length - length


cdef inline bint mr_allows(const soft_mr *mr, int access) noexcept nogil:
    """Whether the region gives all rights in `access`. Lists and windows give rights to peers alone, and none without a
    right: a request of this end goes by addresses."""
    return not access & ~mr.access and (access != 0 or mr.parts == NULL and mr.window == 0)


cdef inline bint mr_serves(const soft_mr *mr, uint32_t stag, uint64_t addr, uint64_t length, int access) noexcept nogil:
    return (mr.ibv.lkey == stag and relaxed_load(&mr.valid) and mr_allows(mr, access)
            and mr_covers(mr, addr, length))


cdef inline uint8_t *mr_at(const soft_mr *mr, uint64_t addr) noexcept nogil:
    return <uint8_t *> (addr + mr.shift)


cdef const uint8_t *mr_piece(const soft_mr *mr, uint64_t addr, uint32_t *length) noexcept nogil:
    cdef uint64_t offset = addr - mr.start
    cdef uint32_t low = 0
    cdef uint32_t high = mr.part_count
    cdef uint32_t middle
    cdef uint64_t start
    assert_that(mr_covers(mr, addr, length[0]))
    if mr.parts == NULL:
        return mr_at(mr, addr)
    # The first part with its end behind the offset.
    while low < high:
        middle = (low + high) // 2
        if mr.parts[middle].end <= offset:
            low = middle + 1
        else:
            high = middle
    start = mr.parts[low - 1].end if low else 0
    length[0] = <uint32_t> min(<uint64_t> length[0], mr.parts[low].end - offset)
    return mr.parts[low].data + (offset - start)


cdef inline soft_mr *mr_search(mr_shard *shard, const soft_qp *qp, uint32_t stag, uint64_t addr, uint64_t length,
                               int access, int *why) noexcept nogil:
    """mr_get without the use. mr_shard.lock is held."""
    cdef soft_mr *mr = mr_find(shard, stag)[0] if shard.size else NULL
    if mr == NULL or not mr.valid:
        why[0] = MR_STAG
    elif mr.ibv.pd != &qp.pd.ibv or mr.owner != NULL and mr.owner != qp:
        why[0] = MR_STREAM
    elif not mr_allows(mr, access):
        why[0] = MR_ACCESS
    elif not mr_covers(mr, addr, length):
        why[0] = MR_BOUNDS
    else:
        return mr
    return NULL


cdef soft_mr *mr_get(soft_qp *qp, uint32_t stag, uint64_t addr, uint64_t length, int access, int *why) noexcept nogil:
    cdef mr_shard *shard = mr_shard_of(qp.context, stag)
    cdef soft_mr *mr
    if addr + length < addr:
        why[0] = MR_WRAP
        return NULL
    lock_read_ranked(&shard.lock, RANK_QUEUE)
    mr = mr_search(shard, qp, stag, addr, length, access, why)
    if mr != NULL:
        fetch_add(&mr.users, 1)
        if mr.parent != NULL:
            fetch_add(&mr.parent.users, 1)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    return mr


cdef inline void mr_put(soft_mr *mr) noexcept nogil:
    cdef soft_mr *parent = mr.parent
    assert_that(relaxed_load(&mr.users) > 0)
    fetch_sub(&mr.users, 1)
    if parent != NULL:
        fetch_sub(&parent.users, 1)


cdef soft_mr *mr_join(soft_qp *qp, uint32_t stag, uint64_t addr, uint64_t length, int access) noexcept nogil:
    cdef mr_shard *shard = mr_shard_of(qp.context, stag)
    cdef soft_mr *mr
    cdef int why = 0
    lock_write_ranked(&shard.lock, RANK_QUEUE)
    mr = mr_search(shard, qp, stag, addr, length, access, &why)
    if mr != NULL:
        fetch_add(&mr.windows, 1)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    return mr


cdef bint mr_invalidate(soft_qp *qp, uint32_t stag) noexcept nogil:
    cdef mr_shard *shard = mr_shard_of(qp.context, stag)
    cdef soft_mr *mr
    cdef bint done = False
    lock_write_ranked(&shard.lock, RANK_QUEUE)
    mr = mr_find(shard, stag)[0] if shard.size else NULL
    if mr != NULL and mr.valid and mr.ibv.pd == &qp.pd.ibv:
        done = mr.owner == qp if mr.window else mr.access & MR_REMOTE and relaxed_load(&mr.windows) == 0
        if done:
            mr_revoke(mr)
    unlock_rw_ranked(&shard.lock, RANK_QUEUE)
    return done


cdef void soft_mr_renew(ibv_mr *ibmr) noexcept nogil:
    cdef const soft_fabric *fabric = (<soft_context *> ibmr.context).fabric
    if fabric.renew != NULL:
        fabric.renew(<soft_mr *> ibmr)

# soft_shm: regions, offers and windows; see region.pxd.

cdef enum:
    SHM_WINDOWS_DEFAULT = 16384      # of a context
    SHM_SWEEP = 16                   # windows examined at an offer, to close windows on deregistered regions
    SHM_SWEEP_ALL = 64               # windows closed at most when there is no room
    SHM_PIECE = 1 << 20              # octets copied at a time
    WORK_OFFER = 256 << 10           # a dozen system calls, and page tables
    WORK_COPY = 512                  # a READ or WRITE by memcpy, besides its octets
    WORK_SLICE = 256 << 10           # a look at a slice of a region


cdef inline shm_context *shm_context_of(const soft_context *context) noexcept nogil:
    return <shm_context *> context.fabric_state


cdef bint shm_open_context(soft_context *context) noexcept nogil:
    cdef shm_context *shared = <shm_context *> calloc(1, sizeof(shm_context))
    if shared == NULL:
        errno.errno = ENOMEM
        return False
    shared.registry = <shm_generation *> shm_make(b"rmemcached registry", SHM_REGISTRY_SIZE, &shared.registry_fd)
    if shared.registry == NULL:
        free(shared)
        return False
    # A peer with soft_shm_limits.paid refuses a registry with pages that this process has not touched.
    populate_read(<const char *> shared.registry, SHM_REGISTRY_SIZE)
    shared.limits.pair_regions = SHM_WINDOWS_MAX
    shared.limits.regions = SHM_WINDOWS_DEFAULT
    shared.limits.pair_bytes = <uint64_t> 1 << 36
    shared.limits.bytes = <uint64_t> 1 << 40
    shared.limits.nobody = <uint32_t> -1
    context.fabric_state = shared
    return True


cdef void shm_close_context(soft_context *context) noexcept nogil:
    cdef shm_context *shared = shm_context_of(context)
    closers_stop(shared)
    munmap(shared.registry, SHM_REGISTRY_SIZE)
    close(shared.registry_fd)
    free(shared)


cdef int soft_shm_limit(ibv_context *ibcontext, const soft_shm_limits *limits) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    cdef int error = 0
    if (context.fabric != &shm_fabric or limits.pair_regions > SHM_WINDOWS_MAX
            or limits.pair_bytes > <uint64_t> 1 << 40 or limits.bytes > <uint64_t> 1 << 46):
        return EINVAL
    if relaxed_load(&shm_context_of(context).usage.regions):
        return EBUSY
    if limits.paid:
        error = closers_start(shm_context_of(context))
    if error == 0:
        shm_context_of(context).limits = limits[0]
    return error


cdef int soft_shm_query(ibv_context *ibcontext, soft_shm_usage *out) noexcept nogil:
    cdef soft_context *context = <soft_context *> ibcontext
    cdef const soft_shm_usage *usage
    if context.fabric != &shm_fabric:
        return EINVAL
    usage = &shm_context_of(context).usage
    out.regions = relaxed_load(&usage.regions)
    out.bytes = relaxed_load(&usage.bytes)
    out.declined = relaxed_load(&usage.declined)
    return 0


cdef void *shm_file_memory(size_t size, bint writable, int *fd) noexcept nogil:
    """Memory in a memfd of its own. `writable`: a peer may map it for writing."""
    cdef void *memory
    if not writable:
        return shm_make(b"rmemcached region", size, fd)
    fd[0] = shm_memfd(b"rmemcached region", size)
    if fd[0] < 0:
        return NULL
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd[0], 0)
    if memory == MAP_FAILED:
        close(fd[0])
        errno.errno = ENOMEM
        return NULL
    # The remaining seals follow after a peer has mapped the memory: see shm_offer_answered.
    if fcntl(fd[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0:
        munmap(memory, size)
        close(fd[0])
        return NULL
    return memory


cdef void *shm_alloc_memory(soft_context *context, size_t size, int access, void **state) noexcept nogil:
    cdef shm_region *region
    cdef void *memory
    # A region without the right of remote reads is never shared; see shm_offer.
    if not access & IBV_ACCESS_REMOTE_READ:
        return mr_alloc_memory(context, size, access, state)
    region = <shm_region *> calloc(1, sizeof(shm_region))
    if region == NULL:
        errno.errno = ENOMEM
        return NULL
    memory = shm_file_memory(size, access & IBV_ACCESS_REMOTE_WRITE, &region.memfd)
    if memory == NULL:
        free(region)
        return NULL
    state[0] = region
    return memory


cdef void shm_free_memory(void *memory, size_t size, void *state) noexcept nogil:
    munmap(memory, size)
    if state != NULL:
        close((<shm_region *> state).memfd)
        free(state)


cdef shm_generation shm_next_generation(shm_context *shared) noexcept nogil:
    """A new generation; never 0, which means none. soft_context.lock is held."""
    shared.next_generation += 1
    if shared.next_generation == 0:
        shared.next_generation = 1
    return shared.next_generation


cdef void shm_expose(soft_mr *mr) noexcept nogil:
    """Gives the region a slot if one is free."""
    cdef soft_context *context = <soft_context *> mr.ibv.context
    cdef shm_context *shared = shm_context_of(context)
    cdef shm_region *region = <shm_region *> mr.fabric_state
    cdef uint32_t i, slot
    if region == NULL:
        return
    lock_ranked(&context.lock, RANK_DOMAIN)
    for i in range(<uint32_t> SHM_SLOTS):
        slot = (shared.next_slot + i) % SHM_SLOTS
        if shared.registry[slot] == 0:
            shared.next_slot = slot + 1
            region.slot = slot
            region.generation = shm_next_generation(shared)
            store_release(&shared.registry[slot], region.generation)
            break
    unlock_ranked(&context.lock, RANK_DOMAIN)


cdef void shm_withdraw(soft_mr *mr) noexcept nogil:
    """Tells all peers that the region has become invalid."""
    cdef soft_context *context = <soft_context *> mr.ibv.context
    cdef shm_context *shared = shm_context_of(context)
    cdef const shm_region *region = <const shm_region *> mr.fabric_state
    assert_write_held(&mr_shard_of(context, mr.ibv.lkey).lock)
    if region != NULL and region.generation and shared.registry[region.slot] == region.generation:
        store_release(&shared.registry[region.slot], 0)
        # As in shm_renew: no peer may see the program's next write before the registry's change.
        full_fence()


cdef uint64_t shm_written(const soft_qp *qp) noexcept nogil:
    cdef const shm_page *theirs = <const shm_page *> load_acquire(&shm_of(qp).theirs)
    return load_acquire(&theirs.written) if theirs != NULL else 0


cdef void shm_renew(soft_mr *mr) noexcept nogil:
    cdef soft_context *context = <soft_context *> mr.ibv.context
    cdef shm_context *shared = shm_context_of(context)
    cdef shm_region *region = <shm_region *> mr.fabric_state
    cdef shm_generation generation
    if region == NULL or region.generation == 0:
        return
    lock_ranked(&context.lock, RANK_DOMAIN)
    generation = shm_next_generation(shared)
    # Streams of this context may be offering the region, and read the generation without this lock.
    relaxed_store(&region.generation, generation)
    store_release(&shared.registry[region.slot], generation)
    unlock_ranked(&context.lock, RANK_DOMAIN)
    # A peer looks at the registry after each copy. So no peer may see the caller's next write before this generation.
    full_fence()


cdef void shm_offer(soft_qp *qp, soft_mr *mr) noexcept nogil:
    """Offers the region's memory to the peer, which has just proved knowledge of the STag."""
    cdef shm_stream *shm = shm_of(qp)
    cdef const shm_region *region = <const shm_region *> mr.fabric_state
    cdef shm_generation generation = <shm_generation> relaxed_load(&region.generation) if region != NULL else 0
    cdef shm_record record
    cdef int remote = mr.access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
    assert_held(&qp.lock)
    # A mapping can always be read, so the region must allow reads. A mapping has all rights of the region, so the queue
    # pair must allow them all.
    if (generation == 0
            or shm.offered[region.slot % SHM_OFFERS] == generation or shm.unanswered.kind
            or not remote & IBV_ACCESS_REMOTE_READ or remote & ~<int> qp.attr.qp_access_flags):
        return
    memset(&record, 0, sizeof(record))
    record.kind = SHM_OFFER
    record.stag = mr.ibv.rkey
    record.slot = region.slot
    record.generation = generation
    # Once sealed, the memory can be mapped for reading only: another queue pair has it for writing.
    record.access = <uint32_t> (remote & ~<int> IBV_ACCESS_REMOTE_WRITE if shm_is_sealed(region.memfd) else remote)
    record.addr = mr.start
    record.length = mr.ibv.length
    # A peer with soft_shm_limits.paid takes only memory with all pages present.
    if mr.mapped <= SHM_OFFER_PRESENT:
        populate_read(<const char *> mr.ibv.addr, mr.mapped)
    if shm_send_record(qp, &record, &region.memfd, 1):
        shm.offered[region.slot % SHM_OFFERS] = generation
        if shm.answers:
            shm.unanswered = record


cdef bint shm_names_offer(const shm_record *record, const shm_record *offer) noexcept nogil:
    return (record.stag == offer.stag and record.slot == offer.slot and record.generation == offer.generation
            and record.addr == offer.addr and record.length == offer.length)


cdef bint shm_offer_answered(soft_qp *qp, const shm_record *record) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef const shm_region *region
    cdef shm_record reply = record[0]
    cdef soft_mr *mr
    cdef int why = 0
    cdef bint sealed
    assert_held(&qp.lock)
    if not shm.unanswered.kind or not shm_names_offer(record, &shm.unanswered):
        return False
    shm.unanswered.kind = 0
    if not record.access & SHM_MAPPED:
        return True
    mr = mr_get(qp, record.stag, record.addr, record.length, 0, &why)
    # The region may be gone again.
    if mr == NULL:
        return True
    region = <const shm_region *> mr.fabric_state
    # After the seal no page can be taken out of the memory. Existing mappings keep their rights.
    sealed = region != NULL and <shm_generation> relaxed_load(&region.generation) == record.generation and (
        shm_is_sealed(region.memfd) or fcntl(region.memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0)
    mr_put(mr)
    reply.kind = SHM_SEALED
    if sealed:
        shm_send_record(qp, &reply, NULL, 0)
    return True


cdef shm_window *shm_find_window(shm_stream *shm, uint32_t stag) noexcept nogil:
    # Returns the window of the peer's region with this STag, or NULL. The peer may have deregistered the region: see
    # shm_window_valid.
    cdef uint32_t i = mr_hash(stag) >> 16
    cdef shm_window *window
    if shm.windows == NULL:
        return NULL
    while True:
        window = &shm.windows[i & (SHM_WINDOWS_SIZE - 1)]
        if not window.used:
            return NULL
        if window.base != NULL and window.stag == stag:
            return window
        i += 1


cdef bint shm_window_valid(const shm_stream *shm, const shm_window *window) noexcept nogil:
    # Whether the peer has neither deregistered nor renewed the region since its offer.
    return <shm_generation> load_acquire(&shm.registry[window.slot]) == window.generation


cdef void shm_window_close(soft_qp *qp, shm_window *window) noexcept nogil:
    assert_held(&qp.lock)
    shm_uncount_pair(qp, window.length)
    closer_take_window(shm_context_of(qp.context), window.base, window.length)
    window.base = NULL


cdef bint shm_count_window(soft_qp *qp, uint64_t length) noexcept nogil:
    """Counts a window before it is made. False: the limits do not allow the window."""
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_context *shared = shm_context_of(qp.context)
    assert_held(&qp.lock)
    if (shm.open_windows >= shared.limits.pair_regions
            or length > shared.limits.pair_bytes - shm.window_bytes):
        return False
    # Other queue pairs count at the same time. Each adds first, so their sum never exceeds the limit.
    if fetch_add(&shared.usage.regions, 1) >= shared.limits.regions:
        fetch_sub(&shared.usage.regions, 1)
        return False
    if fetch_add(&shared.usage.bytes, length) + length > shared.limits.bytes:
        fetch_sub(&shared.usage.bytes, length)
        fetch_sub(&shared.usage.regions, 1)
        return False
    shm.open_windows += 1
    shm.window_bytes += length
    return True


cdef void shm_uncount_pair(soft_qp *qp, uint64_t length) noexcept nogil:
    """Takes a window off the queue pair's usage. The closer that has the window takes it off the context's usage
    later."""
    assert_held(&qp.lock)
    shm_of(qp).open_windows -= 1
    shm_of(qp).window_bytes -= length


cdef void shm_uncount_window(soft_qp *qp, uint64_t length) noexcept nogil:
    """Takes a window that was not made, or is unmapped, off the usage of queue pair and context."""
    cdef shm_context *shared = shm_context_of(qp.context)
    assert_held(&qp.lock)
    shm_uncount_pair(qp, length)
    fetch_sub(&shared.usage.regions, 1)
    fetch_sub(&shared.usage.bytes, length)


cdef shm_window *shm_free_entry(shm_window *windows, uint32_t stag) noexcept nogil:
    """A free entry for the STag."""
    cdef uint32_t i = mr_hash(stag) >> 16
    while windows[i & (SHM_WINDOWS_SIZE - 1)].base != NULL:
        i += 1
    return &windows[i & (SHM_WINDOWS_SIZE - 1)]


cdef bint shm_rehash_windows(shm_stream *shm) noexcept nogil:
    """Makes the table anew without its free entries. False: too many windows are in use, or there is no memory."""
    cdef shm_window *windows = <shm_window *> calloc(SHM_WINDOWS_SIZE, sizeof(shm_window))
    cdef uint32_t i
    if windows == NULL:
        return False
    shm.nwindows = 0
    for i in range(<uint32_t> SHM_WINDOWS_SIZE):
        if shm.windows[i].base != NULL:
            shm_free_entry(windows, shm.windows[i].stag)[0] = shm.windows[i]
            shm.nwindows += 1
    free(shm.windows)
    shm.windows = windows
    return shm.nwindows < SHM_WINDOWS_MAX


cdef void shm_sweep(soft_qp *qp, uint32_t count, uint32_t most) noexcept nogil:
    """Looks at the next `count` windows, and closes up to `most` windows whose owner has deregistered the region."""
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_window *window
    assert_held(&qp.lock)
    while count and most:
        window = &shm.windows[shm.swept % SHM_WINDOWS_SIZE]
        shm.swept += 1
        count -= 1
        if window.base != NULL and not shm_window_valid(shm, window):
            shm_window_close(qp, window)
            most -= 1


cdef bint shm_make_room(soft_qp *qp, uint64_t length, uint32_t *share) noexcept nogil:
    """Counts a window before it is made. If there is no room, sweeps all windows, which uses up the turn. False: there
    is no room.
    """
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    shm_sweep(qp, SHM_SWEEP, SHM_SWEEP)
    if shm.nwindows < SHM_WINDOWS_MAX and shm_count_window(qp, length):
        return True
    share[0] = 0
    shm_sweep(qp, SHM_WINDOWS_SIZE, SHM_SWEEP_ALL)
    return (shm.nwindows < SHM_WINDOWS_MAX or shm_rehash_windows(shm)) and shm_count_window(qp, length)


cdef bint shm_answer_offer(soft_qp *qp, const shm_record *offer, uint32_t answer) noexcept nogil:
    """Sends the answer (SHM_MAPPED or 0) if the peer understands answers. False: the answer could not be sent."""
    cdef shm_record record = offer[0]
    assert_held(&qp.lock)
    if not shm_of(qp).answers:
        return True
    record.kind = SHM_ANSWER
    record.access = answer
    return shm_send_record(qp, &record, NULL, 0)


cdef void shm_decline_offer(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil:
    # Correct peers seldom make an offer that is declined: so the offer ends the peer's turn.
    share[0] = 0
    fetch_add(&shm_context_of(qp.context).usage.declined, 1)
    shm_answer_offer(qp, record, 0)


cdef void shm_drop_arrival(soft_qp *qp) noexcept nogil:
    # Gives up the arrived region, if there is one.
    cdef shm_arrival *arrival = &shm_of(qp).arrival
    assert_held(&qp.lock)
    if arrival.base == NULL:
        return
    # Unmapping is short, since this process touched no page. But closing may take long: the descriptor may hold the
    # last reference to the memory.
    shm_unmap(arrival.base, arrival.offer.length)
    arrival.base = NULL
    relaxed_store(&arrival.looking, False)
    shm_close_passed(qp, arrival.fd)
    shm_uncount_window(qp, arrival.offer.length)


cdef bint shm_make_window(soft_qp *qp, const shm_record *record, void *base) noexcept nogil:
    """Makes a window of a mapping with present pages. False: the mapping is gone, and not counted any more."""
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_window *window
    cdef int protection = PROT_READ | PROT_WRITE if record.access & IBV_ACCESS_REMOTE_WRITE else PROT_READ
    assert_held(&qp.lock)
    if not shm_allow(base, record.length, protection):
        shm_unmap(base, record.length)
        shm_uncount_window(qp, record.length)
        return False
    window = shm_free_entry(shm.windows, record.stag)
    shm.nwindows += not window.used
    window.used = True
    window.base = <uint8_t *> base
    window.length = record.length
    window.addr = record.addr
    window.stag = record.stag
    window.slot = record.slot
    window.generation = record.generation
    window.access = record.access
    return True


cdef void shm_spend_offer(soft_qp *qp, uint32_t *share, uint64_t length) noexcept nogil:
    """Takes an offer's work, with a look at each page, off the share. Work beyond the share goes to shm.excess."""
    cdef uint64_t work = WORK_OFFER + (length // 8 if length <= SHM_LOOK_MAX else 0)
    assert_held(&qp.lock)
    shm_of(qp).excess += <uint32_t> (work - min(<uint64_t> share[0], work))
    share_spend(share, work)


cdef void shm_keep_arrival(soft_qp *qp, const shm_record *record, void *base, bint sealed) noexcept nogil:
    """Keeps a mapping until its owner has sealed the file, and this process has examined its pages."""
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    shm.arrival.base = base
    shm.arrival.offer = record[0]
    # The descriptor stays open when the record's descriptors are closed.
    shm.arrival.fd = shm.reader.fds[0]
    shm.reader.nfds = 0
    shm.arrival.looked = 0
    shm.arrival.trusted = bell_is_trusted(qp)
    shm.arrival.owes = sealed
    relaxed_store(&shm.arrival.looking, sealed)


cdef bint shm_map_offer(soft_qp *qp, const shm_record *record, uint32_t *share, bint *waits) noexcept nogil:
    """Maps a region. *waits: the mapping is not a window yet, but shm_stream.arrival. False: the offer is declined."""
    cdef shm_stream *shm = shm_of(qp)
    cdef bint paid = shm_context_of(qp.context).limits.paid
    cdef int fd = shm.reader.fds[0]
    cdef bint sealed
    cdef void *base
    assert_held(&qp.lock)
    if shm.windows == NULL:
        shm.windows = <shm_window *> calloc(SHM_WINDOWS_SIZE, sizeof(shm_window))
    if shm.windows == NULL or paid and not shm_has_size(fd, record.length):
        return False
    if not shm_make_room(qp, record.length, share):
        return False
    base = shm_map(fd, record.length)
    if base == NULL:
        shm_uncount_window(qp, record.length)
        return False
    # Once the file is sealed, no mapping for writing can be made.
    sealed = shm_is_sealed(fd)
    if paid and (not sealed or record.length > SHM_LOOK_MAX):
        shm_keep_arrival(qp, record, base, sealed)
        waits[0] = sealed or shm.answers and shm_answer_offer(qp, record, SHM_MAPPED)
        if not waits[0]:
            shm_drop_arrival(qp)
        return waits[0]
    if paid and shm_present(base, 0, record.length) < record.length:
        shm_unmap(base, record.length)
        shm_uncount_window(qp, record.length)
        return False
    if not shm_make_window(qp, record, base):
        return False
    shm_close_mapped(&shm.reader)
    return True


cdef bint shm_accept_offer(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_window *window
    cdef bint waits = False
    assert_held(&qp.lock)
    if (record.slot >= SHM_SLOTS or record.generation == 0 or record.length == 0
            or record.addr + record.length < record.addr or not shm_mappable(shm.reader.fds[0], record.length)):
        return False
    shm_spend_offer(qp, share, record.length)
    shm_drop_arrival(qp)
    window = shm_find_window(shm, record.stag)
    if window == NULL or window.slot != record.slot or window.generation != record.generation:
        if window != NULL:
            shm_window_close(qp, window)
        if not shm_map_offer(qp, record, share, &waits):
            shm_decline_offer(qp, record, share)
            return True
    if not waits:
        shm_answer_offer(qp, record, 0)
    return True


cdef void shm_take_arrival(soft_qp *qp, bint present, uint32_t *share) noexcept nogil:
    """The arrived region is sealed and examined: it becomes a window, or is declined."""
    cdef shm_arrival *arrival = &shm_of(qp).arrival
    cdef void *base = arrival.base
    assert_held(&qp.lock)
    relaxed_store(&arrival.looking, False)
    if not present:
        shm_drop_arrival(qp)
    else:
        arrival.base = NULL
        present = shm_make_window(qp, &arrival.offer, base)
        if present:
            # The mapping keeps the file, so this close is short.
            close(arrival.fd)
        else:
            shm_close_passed(qp, arrival.fd)
    if not present:
        share[0] = 0
        fetch_add(&shm_context_of(qp.context).usage.declined, 1)
    if arrival.owes:
        shm_answer_offer(qp, &arrival.offer, 0)


cdef void shm_look_on(soft_qp *qp, uint32_t *share) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef shm_arrival *arrival = &shm.arrival
    cdef bint present = True
    assert_held(&qp.lock)
    while arrival.looking and share[0]:
        shm.excess += WORK_SLICE - min(share[0], <uint32_t> WORK_SLICE)
        share_spend(share, WORK_SLICE)
        present = shm_slice_present(arrival.fd, arrival.base, arrival.looked, arrival.offer.length, arrival.trusted)
        arrival.looked += SHM_SLICE
        if not present or arrival.looked >= arrival.offer.length:
            shm_take_arrival(qp, present, share)


cdef bint shm_offer_sealed(soft_qp *qp, const shm_record *record, uint32_t *share) noexcept nogil:
    cdef shm_arrival *arrival = &shm_of(qp).arrival
    assert_held(&qp.lock)
    if arrival.base == NULL or not shm_names_offer(record, &arrival.offer):
        return False
    if not shm_is_sealed(arrival.fd):
        return False
    shm_spend_offer(qp, share, record.length)
    if record.length > SHM_LOOK_MAX:
        relaxed_store(&arrival.looking, True)
    else:
        shm_take_arrival(qp, shm_present(arrival.base, 0, record.length) >= record.length, share)
    return True


cdef void shm_close_windows(soft_qp *qp) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef uint32_t i
    assert_held(&qp.lock)
    shm_drop_arrival(qp)
    if shm.windows == NULL:
        return
    for i in range(<uint32_t> SHM_WINDOWS_SIZE):
        if shm.windows[i].base != NULL:
            shm_window_close(qp, &shm.windows[i])
    free(shm.windows)
    shm.windows = NULL
    shm.nwindows = 0


cdef shm_window *shm_direct_window(const soft_qp *qp, const tx_cursor *cur) noexcept nogil:
    """The window for carrying out the send queue entry at the cursor now. NULL: the entry needs the stream."""
    cdef shm_stream *shm = shm_of(qp)
    cdef const soft_swqe *swqe = &qp.sq[cur.next_wqe & qp.sq_mask]
    cdef shm_window *window
    cdef uint32_t right
    assert_held(&qp.lock)
    if shm.windows == NULL or swqe.length == 0:
        return NULL
    if swqe.opcode == IBV_WR_RDMA_WRITE:
        right = IBV_ACCESS_REMOTE_WRITE
    elif swqe.opcode == IBV_WR_RDMA_READ and qp.ord:
        right = IBV_ACCESS_REMOTE_READ
    else:
        return NULL
    # A copy must not overtake a WRITE still in the ring.
    if load_acquire(&shm.theirs.head) < shm.write_tail:
        return NULL
    window = shm_find_window(shm, swqe.rkey)
    if window == NULL or not window.access & right or not shm_window_valid(shm, window):
        return NULL
    if (swqe.remote_addr < window.addr or swqe.length > window.length
            or swqe.remote_addr - window.addr > window.length - swqe.length):
        return NULL
    return window


cdef bint shm_is_direct(const soft_qp *qp, const tx_cursor *cur) noexcept nogil:
    return shm_direct_window(qp, cur) != NULL


cdef int shm_copy(soft_qp *qp, uint32_t index, const shm_window *window, uint32_t offset,
                  uint32_t length) noexcept nogil:
    """Copies a piece of a READ or WRITE. 1: done; 0: the region has become invalid; -1: wrong local memory."""
    cdef const soft_swqe *swqe = &qp.sq[index]
    cdef soft_mr *regions[MAX_SGE]
    cdef void *local[MAX_SGE]
    cdef uint32_t lengths[MAX_SGE]
    cdef const ibv_sge *sges = qp.sq_sges + <size_t> index * qp.cap.max_send_sge
    cdef bint reading = swqe.opcode == IBV_WR_RDMA_READ
    cdef uint8_t *remote = window.base + (swqe.remote_addr - window.addr) + offset
    cdef uint32_t i, held = 0
    cdef int why = 0
    cdef int result = 1
    assert_held(&qp.lock)
    if swqe.flags & IBV_SEND_INLINE:
        memcpy(remote, qp.sq_inline + <size_t> index * qp.cap.max_inline_data, swqe.length)
        return 1
    for i in range(swqe.num_sge):
        if offset >= sges[i].length:
            offset -= sges[i].length
            continue
        lengths[held] = min(sges[i].length - offset, length)
        regions[held] = mr_get(qp, sges[i].lkey, sges[i].addr + offset, lengths[held],
                               IBV_ACCESS_LOCAL_WRITE if reading else 0, &why)
        if regions[held] == NULL:
            result = -1
            break
        local[held] = mr_at(regions[held], sges[i].addr + offset)
        offset = 0
        length -= lengths[held]
        held += 1
        if length == 0:
            break
    if result > 0:
        for i in range(held):
            if reading:
                memcpy(local[i], remote, lengths[i])
            else:
                memcpy(remote, local[i], lengths[i])
            remote += lengths[i]
        full_fence()
        if not shm_window_valid(shm_of(qp), window):
            result = 0
    for i in range(held):
        mr_put(regions[i])
    return result


cdef void shm_direct_done(soft_qp *qp, soft_swqe *swqe) noexcept nogil:
    """The request at the cursor is copied completely."""
    assert_held(&qp.lock)
    swqe.state = SWQE_DONE
    qp.tx.cursor.next_wqe += 1
    counter_add(&qp.counters.one_sided, 1)
    if swqe.opcode == IBV_WR_RDMA_WRITE:
        counter_add(&qp.counters.writes, 1)
        counter_add(&qp.counters.write_bytes, swqe.length)
    else:
        counter_add(&qp.counters.reads, 1)
        counter_add(&qp.counters.read_bytes, swqe.length)


cdef bint shm_execute_direct(soft_qp *qp, uint32_t *share) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef soft_swqe *swqe
    cdef const shm_window *window
    cdef uint32_t index, n
    cdef int done
    assert_held(&qp.lock)
    while share[0] and qp.tx.cursor.kind == TX_NONE and tx_may_start(qp, &qp.tx.cursor):
        window = shm_direct_window(qp, &qp.tx.cursor)
        if window == NULL:
            # The ring carries the whole request, also the octets copied so far.
            shm.copied = 0
            break
        index = qp.tx.cursor.next_wqe & qp.sq_mask
        swqe = &qp.sq[index]
        n = min(swqe.length - shm.copied, <uint32_t> SHM_PIECE, max(share[0], <uint32_t> SHARE_MIN))
        done = shm_copy(qp, index, window, shm.copied, n)
        if done < 0:
            tx_fault(qp, TX_FAULT_REGION)
            return False
        if done == 0:
            # The peer has invalidated the region: the whole request goes through the ring.
            shm.copied = 0
            break
        share_spend(share, n + WORK_COPY)
        shm.copied += n
        if swqe.opcode == IBV_WR_RDMA_WRITE:
            store_release(&shm.ours.written, swqe.remote_addr + shm.copied)
        if shm.copied == swqe.length:
            shm.copied = 0
            shm_direct_done(qp, swqe)
    return True

cdef enum:
    RING_DEPTH = 128             # reads at a time


cdef void ring_init(flash_ring *r) noexcept nogil:
    r.fd = -1
    r.wake_fd = -1


cdef bint _map_ring(flash_ring *r) noexcept nogil:
    cdef void *memory
    r.queues_size = max(r.params.sq_off.array + r.params.sq_entries * sizeof(uint32_t),
                        r.params.cq_off.cqes + r.params.cq_entries * sizeof(io_uring_cqe))
    memory = mmap(NULL, r.queues_size, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQ_RING)
    if memory == MAP_FAILED:
        return False
    r.queues = <char *>memory
    memory = mmap(NULL, r.params.sq_entries * sizeof(io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED,
                  r.fd, IORING_OFF_SQES)
    if memory == MAP_FAILED:
        return False
    r.sqes = <io_uring_sqe *>memory
    return True


cdef int ring_open(flash_ring *r) noexcept nogil:
    cdef unsigned int wanted = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE
    cdef unsigned int i
    cdef int error = 0
    # A slot more: the eventfd's read.
    r.fd = io_uring_setup(RING_DEPTH + 1, &r.params)
    if r.fd < 0:
        return errno
    r.slots = <ring_slot *>calloc(RING_DEPTH, sizeof(ring_slot))
    r.wake_fd = eventfd(0, EFD_CLOEXEC)
    if r.params.features & wanted != wanted:
        error = ENOSYS
    elif r.slots == NULL or r.wake_fd < 0 or not _map_ring(r):
        error = ENOMEM
    if error:
        ring_close(r)
        return error
    for i in range(<unsigned int>RING_DEPTH):
        r.slots[i].next = r.free_slots
        r.free_slots = &r.slots[i]
    return 0


cdef void ring_close(flash_ring *r) noexcept nogil:
    if r.queues != NULL:
        munmap(r.queues, r.queues_size)
    if r.sqes != NULL:
        munmap(r.sqes, r.params.sq_entries * sizeof(io_uring_sqe))
    if r.fd >= 0:
        close(r.fd)
    if r.wake_fd >= 0:
        close(r.wake_fd)
    free(r.slots)
    memset(r, 0, sizeof(flash_ring))
    ring_init(r)


# ---- requests and completions ----------------------------------------------------------------------------------------

cdef void _queue_readv(flash_ring *r, int fd, iovec *iov, int count, uint64_t place, ring_slot *slot) noexcept nogil:
    """Queues a read for the next io_uring_enter. slot: NULL for the eventfd's."""
    cdef uint32_t *tail = <uint32_t *>(r.queues + r.params.sq_off.tail)
    cdef uint32_t *array = <uint32_t *>(r.queues + r.params.sq_off.array)
    cdef uint32_t index = tail[0] & (r.params.sq_entries - 1)
    cdef io_uring_sqe *sqe = &r.sqes[index]
    memset(sqe, 0, sizeof(io_uring_sqe))
    sqe.opcode = IORING_OP_READV
    sqe.fd = fd
    sqe.off = place
    sqe.addr = <uint64_t><uintptr_t>iov
    sqe.len = <uint32_t>count
    sqe.user_data = <uint64_t><uintptr_t>slot
    array[index] = index
    store_release(tail, tail[0] + 1)
    r.unsubmitted += 1


cdef void _queue_wake(flash_ring *r) noexcept nogil:
    r.woken_iov.iov_base = &r.woken
    r.woken_iov.iov_len = sizeof(r.woken)
    _queue_readv(r, r.wake_fd, &r.woken_iov, 1, 0, NULL)


cdef void _queue_read(flash_ring *r, ring_slot *slot) noexcept nogil:
    cdef flash_request *request = slot.request
    cdef int count = request.calls.extents(request, slot.iov, RECORD_IOV)
    _queue_readv(r, request.fd, slot.iov, count, request.place, slot)


cdef uint64_t _end(flash_request *request) noexcept nogil:
    """Ends a request. Returns its bytes."""
    cdef uint64_t bytes = request.bytes
    request.calls.end(request)
    return bytes


cdef uint64_t _begin(flash_ring *r, flash_request *request) noexcept nogil:
    """Begins a request. Returns its bytes if no read was needed."""
    cdef ring_slot *slot
    if not request.calls.begin(request):
        return _end(request)
    slot = r.free_slots
    r.free_slots = slot.next
    slot.request = request
    r.under_way += 1
    _queue_read(r, slot)
    return 0


cdef uint64_t _complete(flash_ring *r, ring_slot *slot, int64_t result) noexcept nogil:
    """Goes on with a read after a result. Returns the request's bytes if the request has ended."""
    cdef flash_request *request = slot.request
    if request_got(request, result) and request.left:
        _queue_read(r, slot)
        return 0
    slot.next = r.free_slots
    r.free_slots = slot
    r.under_way -= 1
    return _end(request)


cdef uint64_t _take_results(flash_ring *r) noexcept nogil:
    """Takes completions. Returns the bytes of ended requests."""
    cdef uint32_t *head = <uint32_t *>(r.queues + r.params.cq_off.head)
    cdef uint32_t *tail = <uint32_t *>(r.queues + r.params.cq_off.tail)
    cdef const io_uring_cqe *cqes = <const io_uring_cqe *>(r.queues + r.params.cq_off.cqes)
    cdef io_uring_cqe result
    cdef uint64_t done = 0
    while head[0] != <uint32_t>load_acquire(tail):
        result = cqes[head[0] & (r.params.cq_entries - 1)]
        store_release(head, head[0] + 1)
        if result.user_data == 0:
            _queue_wake(r)
        else:
            done += _complete(r, <ring_slot *><uintptr_t>result.user_data, result.res)
    return done


cdef void _enter(flash_ring *r) noexcept nogil:
    """Submits the queued reads, and waits for a completion."""
    cdef int n = io_uring_enter(r.fd, r.unsubmitted, 1, IORING_ENTER_GETEVENTS)
    # After a signal, or for lack of memory, the rest is submitted the next time.
    if n > 0:
        r.unsubmitted -= <unsigned int>n


# ---- the thread ------------------------------------------------------------------------------------------------------

cdef void *ring_thread(void *arg) noexcept nogil:
    cdef flash *f = <flash *>arg
    cdef flash_ring *r = &f.ring
    cdef flash_request *request
    cdef flash_request *following
    cdef uint64_t done = 0
    _queue_wake(r)
    while True:
        # Requests that need no read end at once, and make room for others.
        while True:
            request = io_take(f, done, RING_DEPTH - r.under_way, False)
            done = 0
            if request == NULL:
                break
            while request != NULL:
                following = request.next
                done += _begin(r, request)
                request = following
        if r.under_way == 0 and relaxed_load(&f.stop_io):
            return NULL
        _enter(r)
        done = _take_results(r)

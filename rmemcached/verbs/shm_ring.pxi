# soft_shm: rings, bells, and the copying of octets between memory and the rings. See shm.pxd and docs/soft-rnic.md.


cdef bint shm_look_for_space(shm_stream *shm) noexcept nogil:
    """Reads how much the peer has consumed. False: it says what cannot be."""
    cdef uint64_t head = load_acquire(&shm.theirs.head)
    if shm.tail - head > SHM_RING_SIZE:
        shm.broken = True
        return False
    relaxed_store(&shm.space_head, head)
    return True


cdef int32_t shm_records_ahead(const shm_stream *shm) noexcept nogil:
    """Records that the peer says it has sent and that were not read; negative while it has sent one and not said so."""
    return <int32_t> (<uint32_t> load_acquire(&shm.theirs.records) - <uint32_t> relaxed_load(&shm.records_seen))


cdef bint shm_ready(const soft_qp *qp) noexcept nogil:
    """Whether there is something to receive, or room to send what is waiting."""
    cdef const shm_stream *shm = qp.shm
    cdef const shm_page *theirs = <const shm_page *> load_acquire(&shm.theirs)
    if theirs == NULL:
        return False
    # The octets come along with the word that tells of them, not after it.
    prefetch(shm.their_ring + (relaxed_load(&shm.head) & (SHM_RING_SIZE - 1)))
    return (load_acquire(&theirs.tail) != relaxed_load(&shm.head) or shm_records_ahead(shm) > 0
            or relaxed_load(&theirs.closed) != 0
            or (relaxed_load(&qp.tx_blocked) and load_acquire(&theirs.head) != relaxed_load(&shm.space_head)))


cdef bint shm_sleepy(const soft_qp *qp) noexcept nogil:
    """Whether somebody does not look at the ring but waits for the bell."""
    cdef int i
    for i in range(qp.ndomains):
        if not relaxed_load(&qp.links[i].hot):
            return True
    return False


cdef bint shm_wish(soft_qp *qp) noexcept nogil:
    """Asks the peer for a bell. True: there is something to do already."""
    cdef shm_stream *shm = qp.shm
    if not shm.wished or (qp.tx_blocked and not shm.wish_space):
        shm.wishes += 1
        shm.wished = True
        shm.wish_space = qp.tx_blocked
        store_release(&shm.ours.wish, shm.wishes << 1 | shm.wish_space)
    # Either the peer sees the wish, or the wish comes after what the peer wrote, which is seen here.
    full_fence()
    return shm_ready(qp)


cdef void shm_bell(soft_qp *qp, bint consumed) noexcept nogil:
    """Rings if the peer wishes it. Called after each change of what the peer may be waiting for."""
    cdef shm_stream *shm = qp.shm
    cdef shm_record record
    cdef uint32_t wish
    full_fence()
    wish = relaxed_load(&shm.theirs.wish)
    if wish == shm.wish_answered or (consumed and not wish & 1):
        return
    memset(&record, 0, sizeof(record))
    record.kind = SHM_BELL
    # A socket that is full of records is readable anyway.
    shm_post(qp, &record, NULL, 0)
    shm.wish_answered = wish


cdef bint shm_wait_for_space(soft_qp *qp) noexcept nogil:
    """With a full ring: asks for the bell if somebody is going to wait for it. True: there is room already."""
    cdef shm_stream *shm = qp.shm
    if shm.broken:
        return False
    relaxed_store(&qp.tx_blocked, True)
    if shm_sleepy(qp):
        shm_wish(qp)
    return load_acquire(&shm.theirs.head) != shm.space_head


cdef ssize_t shm_send(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    """Writes to the ring what it has room for. Octets, or -1: EAGAIN, EPROTO."""
    cdef shm_stream *shm = qp.shm
    cdef uint64_t tail = shm.tail
    cdef size_t room = SHM_RING_SIZE - <size_t> (tail - shm.space_head)
    cdef size_t total = 0
    cdef size_t at, n, part
    cdef const uint8_t *data
    cdef int i
    for i in range(count):
        total += iov[i].iov_len
    if room < total:
        if not shm_look_for_space(shm):
            errno.errno = EPROTO
            return -1
        room = SHM_RING_SIZE - <size_t> (tail - shm.space_head)
        if room == 0:
            errno.errno = EAGAIN
            return -1
    if total > room:
        total = room
    room = total
    for i in range(count):
        data = <const uint8_t *> iov[i].iov_base
        n = iov[i].iov_len if iov[i].iov_len < room else room
        room -= n
        while n:
            at = tail & (SHM_RING_SIZE - 1)
            part = SHM_RING_SIZE - at
            if part > n:
                part = n
            memcpy(shm.our_ring + at, data, part)
            data += part
            tail += part
            n -= part
        if room == 0:
            break
    shm.tail = tail
    store_release(&shm.ours.tail, tail)
    shm_bell(qp, False)
    return <ssize_t> total


cdef ssize_t shm_recv(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    """Reads from the peer's ring. Octets, or -1: EAGAIN, EPROTO. Nothing is looked at before it is copied."""
    cdef shm_stream *shm = qp.shm
    cdef uint64_t head = shm.head
    cdef uint64_t there = load_acquire(&shm.theirs.tail) - head
    cdef size_t at, n, part
    cdef uint8_t *out
    cdef int i
    if there > SHM_RING_SIZE:
        shm.broken = True
        errno.errno = EPROTO
        return -1
    if there == 0:
        errno.errno = EAGAIN
        return -1
    for i in range(count):
        out = <uint8_t *> iov[i].iov_base
        n = iov[i].iov_len if iov[i].iov_len < there else <size_t> there
        there -= n
        while n:
            at = head & (SHM_RING_SIZE - 1)
            part = SHM_RING_SIZE - at
            if part > n:
                part = n
            memcpy(out, shm.their_ring + at, part)
            out += part
            head += part
            n -= part
        if there == 0:
            break
    n = <size_t> (head - shm.head)
    # A sender that found the ring full waits for several quarters of it.
    at = (head ^ shm.head) & ~<uint64_t> (SHM_RING_SIZE // 4 - 1)
    relaxed_store(&shm.head, head)
    store_release(&shm.ours.head, head)
    if at:
        shm_bell(qp, True)
    return <ssize_t> n

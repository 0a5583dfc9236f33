# soft_shm: rings, bells, and the copying of octets between memory and the rings. See shm.pxd and docs/soft-rnic.md.


cdef inline bint shm_there(const shm_stream *shm, uint64_t *word) noexcept nogil:
    """Whether the peer has written the cell at the head. *word: its word, which is not read again."""
    word[0] = load_acquire(<const uint64_t *> (shm.their_ring + <uint32_t> relaxed_load(&shm.head_at)))
    return <uint32_t> word[0] == shm_stamp(relaxed_load(&shm.head))


cdef inline uint32_t shm_length(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 32) & 0xffff


cdef inline uint32_t shm_kind(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 48) & 0xff


cdef inline uint32_t shm_flags(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 56)


cdef inline uint32_t shm_in(shm_stream *shm, uint32_t at, const void *data, size_t length) noexcept nogil:
    """Copies into our ring, to the place `at`. Gives the place behind it."""
    cdef size_t part = SHM_RING_SIZE - at
    if length < part:
        memcpy(shm.our_ring + at, data, length)
        return at + <uint32_t> length
    memcpy(shm.our_ring + at, data, part)
    memcpy(shm.our_ring, <const uint8_t *> data + part, length - part)
    return <uint32_t> (length - part)


cdef inline uint32_t shm_out(const shm_stream *shm, uint32_t at, void *data, size_t length) noexcept nogil:
    """Copies out of their ring, from the place `at`. Gives the place behind it."""
    cdef size_t part = SHM_RING_SIZE - at
    if length < part:
        memcpy(data, shm.their_ring + at, length)
        return at + <uint32_t> length
    memcpy(data, shm.their_ring + at, part)
    memcpy(<uint8_t *> data + part, shm.their_ring, length - part)
    return <uint32_t> (length - part)


cdef inline void shm_publish(shm_stream *shm, uint32_t length, uint32_t kind, uint32_t flags) noexcept nogil:
    """Shows the peer the cell at the tail, whose octets are written. There was room for it."""
    cdef uint32_t size = shm_size(length)
    cdef uint64_t following = shm.tail + size
    cdef uint32_t at = shm.tail_at + size
    cdef uint64_t *place
    if at >= SHM_RING_SIZE:
        at -= SHM_RING_SIZE
    # The peer looks there next, and may find octets of an earlier lap.
    place = <uint64_t *> (shm.our_ring + at)
    if <uint32_t> relaxed_load(place) == shm_stamp(following):
        relaxed_store(place, ~<uint64_t> shm_stamp(following))
    store_release(<uint64_t *> (shm.our_ring + shm.tail_at), shm_word(shm.tail, length, kind, flags))
    shm.tail = following
    shm.tail_at = at


cdef void shm_tell(soft_qp *qp) noexcept nogil:
    """Lets the peer know what was consumed."""
    cdef shm_stream *shm = qp.shm
    shm.head_told = shm.head
    store_release(&shm.ours.head, shm.head)
    # A sender that found the ring full waits for a quarter of it.
    if shm.head - shm.head_rung >= SHM_RING_SIZE // 4:
        shm.head_rung = shm.head
        shm_bell(qp, True)


cdef inline void shm_consume(soft_qp *qp, uint32_t size) noexcept nogil:
    """Goes on to the next cell. The line that tells of it is disturbed once for each quarter of the ring."""
    cdef shm_stream *shm = qp.shm
    cdef uint32_t at = shm.head_at + size
    if at >= SHM_RING_SIZE:
        at -= SHM_RING_SIZE
    relaxed_store(&shm.head_at, at)
    relaxed_store(&shm.head, shm.head + size)
    if shm.head - shm.head_told >= SHM_RING_SIZE // 4:
        shm_tell(qp)


cdef bint shm_look_for_space(shm_stream *shm) noexcept nogil:
    """Reads how much the peer has consumed. False: it says what cannot be."""
    cdef uint64_t head = load_acquire(&shm.theirs.head)
    if shm.tail - head > SHM_RING_SIZE or head % SHM_LINE:
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
    cdef uint64_t word
    if theirs == NULL:
        return False
    return (shm_there(shm, &word) or shm_records_ahead(shm) > 0
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


cdef inline bint shm_room(shm_stream *shm, size_t size) noexcept nogil:
    """Whether our ring has so much room; looks for what the peer has consumed only if it seems not to."""
    if SHM_RING_SIZE - <size_t> (shm.tail - shm.space_head) >= size:
        return True
    return shm_look_for_space(shm) and SHM_RING_SIZE - <size_t> (shm.tail - shm.space_head) >= size


cdef ssize_t shm_send(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    """Writes of the stream what the ring has room for. Octets, or -1: EAGAIN, EPROTO."""
    cdef shm_stream *shm = qp.shm
    cdef size_t total = 0
    cdef size_t left, room, length, skip, n
    cdef uint32_t at
    cdef int i
    for i in range(count):
        total += iov[i].iov_len
    if not shm_room(shm, total + (total // SHM_CHUNK_MAX + 1) * (SHM_WORD + SHM_LINE)) and shm.broken:
        errno.errno = EPROTO
        return -1
    left = total
    skip = 0
    i = 0
    while left:
        room = SHM_RING_SIZE - <size_t> (shm.tail - shm.space_head)
        if room == 0:
            break
        length = min(left, room - SHM_WORD)
        if length > SHM_CHUNK_MAX:
            length = SHM_CHUNK_MAX
        left -= length
        at = shm.tail_at + SHM_WORD
        room = length
        while room:
            n = iov[i].iov_len - skip
            if n > room:
                n = room
            at = shm_in(shm, at, <const uint8_t *> iov[i].iov_base + skip, n)
            room -= n
            skip += n
            if skip == iov[i].iov_len:
                skip = 0
                i += 1
        shm_publish(shm, <uint32_t> length, SHM_STREAM, 0)
    if left == total:
        errno.errno = EAGAIN
        return -1
    shm_bell(qp, False)
    return <ssize_t> (total - left)


cdef bint shm_open_chunk(shm_stream *shm) noexcept nogil:
    """Begins with the cell at the head. False: it is not there, or is a message, or (shm.broken) is no cell."""
    cdef uint64_t word
    # The word is looked at once: what is not there now may be a message a moment later.
    if not shm_there(shm, &word) or shm_kind(word) == SHM_MESSAGE:
        return False
    if (shm_kind(word) != SHM_STREAM or shm_flags(word) or shm_length(word) == 0
            or shm_length(word) > SHM_CHUNK_MAX):
        shm.broken = True
        return False
    shm.chunk_left = shm_length(word)
    shm.chunk_size = shm_size(shm.chunk_left)
    shm.chunk_at = shm.head_at + SHM_WORD
    return True


cdef ssize_t shm_recv(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    """Reads of the peer's stream. Octets, or -1: EAGAIN, EPROTO. Nothing is looked at before it is copied.

    It ends before a message in a cell of its own.
    """
    cdef shm_stream *shm = qp.shm
    cdef ssize_t total = 0
    cdef size_t n, done
    cdef int i
    for i in range(count):
        done = 0
        while done < iov[i].iov_len:
            if shm.chunk_left == 0 and not shm_open_chunk(shm):
                break
            n = min(iov[i].iov_len - done, shm.chunk_left)
            shm.chunk_at = shm_out(shm, shm.chunk_at, <uint8_t *> iov[i].iov_base + done, n)
            shm.chunk_left -= <uint32_t> n
            done += n
            if shm.chunk_left == 0:
                shm_consume(qp, shm.chunk_size)
        total += <ssize_t> done
        if done < iov[i].iov_len:
            break
    if shm.head != shm.head_told:
        shm_tell(qp)
    if total == 0:
        errno.errno = EPROTO if shm.broken else EAGAIN
        return -1
    return total

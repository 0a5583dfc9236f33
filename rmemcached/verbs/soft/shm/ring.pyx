# soft_shm: the rings of a stream; see ring.pxd.

cdef enum:
    SHM_LAPS = 4                     # of the ring, read by one shm_recv at most


cdef inline uint32_t shm_stamp(uint64_t position) noexcept nogil:
    """The stamp of a cell beginning at this octet, counted since the stream began."""
    return <uint32_t> (position // SHM_LINE + 1)


cdef inline uint64_t shm_word(uint64_t position, uint32_t length, uint32_t kind, uint32_t flags) noexcept nogil:
    return shm_stamp(position) | <uint64_t> length << 32 | <uint64_t> kind << 48 | <uint64_t> flags << 56


cdef inline uint32_t shm_cell_size(uint32_t length) noexcept nogil:
    return (SHM_WORD + length + SHM_LINE - 1) & ~<uint32_t> (SHM_LINE - 1)


cdef inline bint shm_cell_ready(const shm_stream *shm, uint64_t *word) noexcept nogil:
    word[0] = load_acquire(<const uint64_t *> (shm.their_ring + <uint32_t> relaxed_load(&shm.head_at)))
    return <uint32_t> word[0] == shm_stamp(relaxed_load(&shm.head))


cdef inline uint32_t shm_length(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 32) & 0xffff


cdef inline uint32_t shm_kind(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 48) & 0xff


cdef inline uint32_t shm_flags(uint64_t word) noexcept nogil:
    return <uint32_t> (word >> 56)


cdef bint shm_look_for_pages(shm_stream *shm, uint32_t end) noexcept nogil:
    """Counts further present pages of the peer's ring into ring_present. Returns whether they reach end. Needs
    soft_qp.lock."""
    shm.ring_present += <uint32_t> shm_present(shm.theirs, shm.ring_present, SHM_SIZE)
    return shm.ring_present >= end


cdef inline bint shm_cell_present(shm_stream *shm, uint32_t at, uint32_t size) noexcept nogil:
    cdef uint32_t end = SHM_RING_AT + at + size + SHM_WORD
    if end <= shm.ring_present or shm.ring_present == SHM_SIZE:
        return True
    return shm_look_for_pages(shm, min(end, <uint32_t> SHM_SIZE))


cdef inline uint32_t shm_write(shm_stream *shm, uint32_t at, const void *data, size_t length) noexcept nogil:
    cdef size_t part = SHM_RING_SIZE - at
    if length < part:
        memcpy(shm.our_ring + at, data, length)
        return at + <uint32_t> length
    memcpy(shm.our_ring + at, data, part)
    memcpy(shm.our_ring, <const uint8_t *> data + part, length - part)
    return <uint32_t> (length - part)


cdef inline uint32_t shm_read(const shm_stream *shm, uint32_t at, void *data, size_t length) noexcept nogil:
    cdef size_t part = SHM_RING_SIZE - at
    if length < part:
        memcpy(data, shm.their_ring + at, length)
        return at + <uint32_t> length
    memcpy(data, shm.their_ring + at, part)
    memcpy(<uint8_t *> data + part, shm.their_ring, length - part)
    return <uint32_t> (length - part)


cdef inline void shm_publish_cell(shm_stream *shm, uint32_t length, uint32_t kind, uint32_t flags) noexcept nogil:
    cdef uint32_t size = shm_cell_size(length)
    cdef uint64_t following = shm.tail + size
    cdef uint32_t at = shm.tail_at + size
    cdef uint64_t *next_word
    if at >= SHM_RING_SIZE:
        at -= SHM_RING_SIZE
    # The peer looks at the next word now, and must not find octets of an earlier lap equal to the next stamp by chance.
    next_word = <uint64_t *> (shm.our_ring + at)
    if <uint32_t> relaxed_load(next_word) == shm_stamp(following):
        relaxed_store(next_word, ~<uint64_t> shm_stamp(following))
    store_release(<uint64_t *> (shm.our_ring + shm.tail_at), shm_word(shm.tail, length, kind, flags))
    shm.tail = following
    shm.tail_at = at


cdef void shm_publish_head(soft_qp *qp) noexcept nogil:
    """Tells the peer how much of its ring was consumed."""
    cdef shm_stream *shm = shm_of(qp)
    assert_held(&qp.lock)
    shm.head_published = shm.head
    store_release(&shm.ours.head, shm.head)
    # A sender with a full ring waits for a quarter of the ring.
    if shm.head - shm.head_woken >= SHM_QUARTER:
        shm.head_woken = shm.head
        shm_wake_peer(qp, True)


cdef inline void shm_consume(soft_qp *qp, uint32_t size) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef uint32_t at = shm.head_at + size
    assert_held(&qp.lock)
    if at >= SHM_RING_SIZE:
        at -= SHM_RING_SIZE
    relaxed_store(&shm.head_at, at)
    relaxed_store(&shm.head, shm.head + size)
    if shm.head - shm.head_published >= SHM_QUARTER:
        shm_publish_head(qp)


cdef bint shm_refresh_space(shm_stream *shm) noexcept nogil:
    """Reads how much the peer has consumed. False: the peer's number is impossible; shm.broken is set."""
    cdef uint64_t head = load_acquire(&shm.theirs.head)
    if shm.tail - head > SHM_RING_SIZE or head % SHM_LINE:
        shm.broken = b"the peer has taken more out of the ring than there is"
        return False
    relaxed_store(&shm.space_head, head)
    return True


cdef inline bint shm_room(shm_stream *shm, size_t size) noexcept nogil:
    if SHM_RING_SIZE - <size_t> (shm.tail - shm.space_head) >= size:
        return True
    return shm_refresh_space(shm) and SHM_RING_SIZE - <size_t> (shm.tail - shm.space_head) >= size


cdef ssize_t shm_send(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef size_t total = 0
    cdef size_t left, room, length, skip, n
    cdef uint32_t at
    cdef int i
    assert_held(&qp.lock)
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
            at = shm_write(shm, at, <const uint8_t *> iov[i].iov_base + skip, n)
            room -= n
            skip += n
            if skip == iov[i].iov_len:
                skip = 0
                i += 1
        shm_publish_cell(shm, <uint32_t> length, SHM_STREAM, 0)
    if left == total:
        errno.errno = EAGAIN
        return -1
    shm_wake_peer(qp, False)
    return <ssize_t> (total - left)


cdef bint shm_open_chunk(shm_stream *shm) noexcept nogil:
    """Starts to read the cell at the head. False: there is none, it is a message, or (shm.broken) it is malformed."""
    cdef uint64_t word
    # The word is read once: a cell missing now may be a message a moment later.
    if not shm_cell_ready(shm, &word) or shm_kind(word) == SHM_MESSAGE:
        return False
    if (shm_kind(word) != SHM_STREAM or shm_flags(word) or shm_length(word) == 0
            or shm_length(word) > SHM_CHUNK_MAX
            or not shm_cell_present(shm, shm.head_at, shm_cell_size(shm_length(word)))):
        shm.broken = b"a cell of the ring is malformed"
        return False
    shm.chunk_left = shm_length(word)
    shm.chunk_size = shm_cell_size(shm.chunk_left)
    shm.chunk_at = shm.head_at + SHM_WORD
    return True


cdef ssize_t shm_recv(soft_qp *qp, const iovec *iov, int count) noexcept nogil:
    cdef shm_stream *shm = shm_of(qp)
    cdef ssize_t total = 0
    cdef uint64_t most = shm.head + SHM_LAPS * SHM_RING_SIZE
    cdef size_t n, done
    cdef int i
    assert_held(&qp.lock)
    for i in range(count):
        done = 0
        while done < iov[i].iov_len:
            # `most`: with cells of one octet the peer may fill the ring as fast as this end reads.
            if shm.chunk_left == 0 and (shm.head >= most or not shm_open_chunk(shm)):
                break
            n = min(iov[i].iov_len - done, shm.chunk_left)
            shm.chunk_at = shm_read(shm, shm.chunk_at, <uint8_t *> iov[i].iov_base + done, n)
            shm.chunk_left -= <uint32_t> n
            done += n
            if shm.chunk_left == 0:
                shm_consume(qp, shm.chunk_size)
        total += <ssize_t> done
        if done < iov[i].iov_len:
            break
    if shm.head != shm.head_published:
        shm_publish_head(qp)
    if total == 0:
        errno.errno = EPROTO if shm.broken else EAGAIN
        return -1
    return total

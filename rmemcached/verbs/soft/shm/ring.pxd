"""soft_shm: the two rings of a stream. This end writes cells to its own and reads cells from the peer's.

Functions need soft_qp.lock, unless a comment differs.
"""

cdef enum:
    SHM_QUARTER = SHM_RING_SIZE // 4

# Whether there is a cell at the head. Returns its word in *word; the caller must not read the word again. Needs no
# lock.
cdef bint shm_cell_ready(const shm_stream *shm, uint64_t *word) noexcept nogil
# Return a field of a cell's word, for the readers of the stream (ring.pyx) and of messages (message.pyx).
cdef uint32_t shm_length(uint64_t word) noexcept nogil
cdef uint32_t shm_kind(uint64_t word) noexcept nogil
cdef uint32_t shm_flags(uint64_t word) noexcept nogil
# Octets of the ring for a cell of this length.
cdef uint32_t shm_cell_size(uint32_t length) noexcept nogil

# Whether the pages of the peer's ring are present for the cell at `at` and the word behind it. A correct peer has
# touched them before it shows the cell. May raise shm.ring_present. Always True in a context without
# soft_shm_limits.paid, which does not look at pages.
cdef bint shm_cell_present(shm_stream *shm, uint32_t at, uint32_t size) noexcept nogil

# Copy octets into our ring, or out of the peer's, from the position `at` on. They return the position behind the
# octets.
cdef uint32_t shm_write(shm_stream *shm, uint32_t at, const void *data, size_t length) noexcept nogil
cdef uint32_t shm_read(const shm_stream *shm, uint32_t at, void *data, size_t length) noexcept nogil

# Whether our ring has room. Reads the peer's head only if there seems to be no room; sets shm.broken, and returns
# False, if this head is impossible.
cdef bint shm_room(shm_stream *shm, size_t size) noexcept nogil
# Shows the peer the cell at the tail, once its octets are written. The caller has made sure of the room.
cdef void shm_publish_cell(shm_stream *shm, uint32_t length, uint32_t kind, uint32_t flags) noexcept nogil
# Moves the head to the next cell of the peer's ring. Tells the peer after each quarter of the ring, not after each
# cell: each update would take from the peer a cache line that it reads.
cdef void shm_consume(soft_qp *qp, uint32_t size) noexcept nogil

# The next two carry the stream of FPDUs, in cells. -1 with EPROTO: the peer has broken the rules (shm.broken).
# Writes as much as the ring has room for, and wakes the peer. Returns the number of octets; -1 with EAGAIN: no room.
cdef ssize_t shm_send(soft_qp *qp, const iovec *iov, int count) noexcept nogil
# Reads octets up to the next message. Returns their number; -1 with EAGAIN: there are none.
cdef ssize_t shm_recv(soft_qp *qp, const iovec *iov, int count) noexcept nogil

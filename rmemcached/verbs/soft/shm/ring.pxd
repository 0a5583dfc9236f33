# soft_shm: the rings of a stream. Cells are written to ours and read from the peer's, with soft_qp.lock held; whether
# there is a cell to read may be looked at without.

cdef enum:
    SHM_QUARTER = SHM_RING_SIZE // 4  # after which the peer learns what was consumed

# Whether the peer has written the cell at the head. *word: its word, which must not be read again. Needs no lock.
cdef bint shm_cell_ready(const shm_stream *shm, uint64_t *word) noexcept nogil
# The fields of a cell's word.
cdef uint32_t shm_length(uint64_t word) noexcept nogil
cdef uint32_t shm_kind(uint64_t word) noexcept nogil
cdef uint32_t shm_flags(uint64_t word) noexcept nogil
# Octets of the ring that a cell with so many of its own takes.
cdef uint32_t shm_cell_size(uint32_t length) noexcept nogil

# Copy octets into our ring, or out of the peer's, at the position `at`. They give the position behind them.
cdef uint32_t shm_write(shm_stream *shm, uint32_t at, const void *data, size_t length) noexcept nogil
cdef uint32_t shm_read(const shm_stream *shm, uint32_t at, void *data, size_t length) noexcept nogil

# Whether our ring has so much room; looks at what the peer has consumed only if it seems not to.
cdef bint shm_room(shm_stream *shm, size_t size) noexcept nogil
# Shows the peer the cell at the tail, whose octets are written. There was room for it.
cdef void shm_publish_cell(shm_stream *shm, uint32_t length, uint32_t kind, uint32_t flags) noexcept nogil
# Goes on to the next cell of the peer's ring. The peer learns of it once for each quarter of the ring: telling disturbs
# a cache line that it reads.
cdef void shm_consume(soft_qp *qp, uint32_t size) noexcept nogil

# The stream of FPDUs, in cells. Both give octets, or -1: EAGAIN, or EPROTO when the peer does what cannot be.
# Writes what the ring has room for, and wakes the peer.
cdef ssize_t shm_send(soft_qp *qp, const iovec *iov, int count) noexcept nogil
# Reads up to the next message. Nothing is looked at before it is copied.
cdef ssize_t shm_recv(soft_qp *qp, const iovec *iov, int count) noexcept nogil

"""soft_shm: messages. A message is a short SEND in a cell of its own, sent with an empty send queue.

To the rest of the provider a message is a SEND of one FPDU: it has a message number, and the same errors. It saves the
queue entry, the building and parsing of the FPDU, and a second cache line.
"""

# The fabric's post_send: puts messages into the ring past the send queue, as many as possible at once.
cdef int shm_post_send(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil
# The fabric's poll_cq: receives messages past the completion queue where the program sees no difference.
cdef int shm_poll_cq(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

# The fabric's `release`: makes all streams forget a region. Takes soft_context.lock, and the locks of its queue pairs.
cdef void shm_forget_region(soft_mr *mr) noexcept nogil

# Receives messages at the ring's head into the completion queue, as long as the share of this turn lasts. False: the
# queue pair is in error. Needs soft_qp.lock.
cdef bint shm_receive_messages(soft_qp *qp, uint32_t *share) noexcept nogil
# Ends the use of the regions held by the stream. Needs soft_qp.lock.
cdef void shm_release_regions(shm_stream *shm) noexcept nogil

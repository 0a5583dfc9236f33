# soft_shm: messages that are one cell of the ring: SENDs that are not long, with nothing before them that has to wait.
#
# To the rest of the provider such a message is the SEND that it would have been as one FPDU: it has a message number,
# and the same errors. What it saves is the queue entry, the building and parsing of the frame, and a second line.

# ibv_poll_cq: receives messages past the completion queue where that makes no difference.
cdef int shm_poll_cq(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil

# For soft_fabric.release: makes all streams forget a region, which cannot be found any more. Takes soft_context.lock,
# and the locks of its queue pairs.
cdef void shm_forget_region(soft_mr *mr) noexcept nogil

# From here on qp.lock is held.

# Puts into the ring what of a list may go there at once. Gives the rest.
cdef ibv_send_wr *shm_post_messages(soft_qp *qp, ibv_send_wr *wr) noexcept nogil
# Receives the messages at the head, of up to *budget octets. False: the queue pair is in error.
cdef bint shm_receive_messages(soft_qp *qp, uint32_t *budget) noexcept nogil
# Lets the regions go that the stream has kept for its next messages.
cdef void shm_release_regions(shm_stream *shm) noexcept nogil

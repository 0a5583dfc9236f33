"""What programs call on soft_shm0 beyond libibverbs: a queue pair gets its stream, over a UNIX socket."""

# Attaches the UNIX stream socket to the queue pair. Both ends do so, in any order. ird and ord are as in
# soft_iw_options. If the peer does not do so within 10 s, or is none, the queue pair moves to ERR.
cdef int soft_shm_attach(ibv_qp *qp, int fd, uint16_t ird, uint16_t ord) noexcept nogil

# What programs call on soft_shm0 beyond libibverbs: a queue pair gets its stream, a UNIX socket and shared memory.

# Ties the UNIX socket to the queue pair; both sides do so, in any order. ird and ord as in soft_iw_options.
# A peer that does not do so within 10 s, or is none, moves the queue pair to ERR.
cdef int soft_shm_attach(ibv_qp *qp, int fd, uint16_t ird, uint16_t ord) noexcept nogil

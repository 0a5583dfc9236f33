# soft_shm: records through the queue pair's socket, some with descriptors. All of it with soft_qp.lock held.

cdef struct shm_reader:              # what has come of the next record
    shm_record record
    uint32_t have
    int fds[2]                       # that came with it
    int nfds

# Sends a record, with descriptors. False: not now.
cdef bint shm_send_record(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil
# Reads all records that are there, and does what they say.
cdef void shm_read_records(soft_qp *qp) noexcept nogil
# Records that the peer says it has sent and that were not read; negative while it has sent one and not said so. Needs
# no lock.
cdef int32_t shm_records_ahead(const shm_stream *shm) noexcept nogil
cdef void shm_drop_fds(shm_reader *reader) noexcept nogil

"""soft_shm: records through the queue pair's socket, some of them with descriptors. All but one need soft_qp.lock."""

cdef enum:
    SHM_FDS = 3                      # descriptors of a record, at most

cdef struct shm_reader:              # what has come of the next record
    shm_record record
    uint32_t have
    int fds[SHM_FDS]                 # descriptors that came with it
    int nfds
    bint lost_fds                    # this process had no room for all that came

# Sends a record, with nfds descriptors. False: the socket does not take it now.
cdef bint shm_send_record(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil
# Reads records that have come, and does what they say, as long as the share of this turn lasts, and little of the
# memory that came before waits to be closed. The socket, or the count of records ahead, tells of the rest. Those of a
# peer that is not trusted are held back (shm_stream.hold) while this process has no descriptor left for what they have.
cdef void shm_read_records(soft_qp *qp, uint32_t *share) noexcept nogil
# Whether the peer has counted records that were not read, and they are not held back. Needs no lock.
cdef bint shm_may_read(const shm_stream *shm) noexcept nogil
# Closes a descriptor of memory that was not mapped, wherever that may take long. What waits counts for the queue pair.
cdef void shm_close_passed(soft_qp *qp, int fd) noexcept nogil
# Closes the descriptors that came, wherever that may take long.
cdef void shm_drop_fds(soft_qp *qp) noexcept nogil
# The same for those whose files are mapped: these are not the last references to them.
cdef void shm_close_mapped(shm_reader *reader) noexcept nogil

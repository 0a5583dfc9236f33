"""soft_shm: records through the queue pair's socket, some of them with descriptors.

All functions but shm_may_read need soft_qp.lock.
"""

cdef enum:
    SHM_FDS = 3                      # descriptors of a record, at most

cdef struct shm_reader:              # the received part of the next record
    shm_record record
    uint32_t have
    int fds[SHM_FDS]                 # descriptors received with it
    int nfds
    bint lost_fds                    # this process had no room for all descriptors received

# Sends a record, with nfds descriptors, which stay the caller's, and counts the record for the peer. Called by the
# stream (HELLO), by bells (WAKEUP) and by regions (OFFER, ANSWER, SEALED). False with errno: the socket is full or
# broken.
cdef bint shm_send_record(soft_qp *qp, const shm_record *record, const int *fds, int nfds) noexcept nogil
# Reads records and carries them out, as long as the share of this turn lasts and few pieces of the peer's earlier
# memory wait for closing. For the rest the socket stays readable, and shm_may_read true. While this process has no
# descriptor left for the records of an untrusted peer, the records stay in the socket (shm_stream.hold). If the stream
# has to end, the function sets shm.eof or shm.broken, and the caller ends the stream.
cdef void shm_read_records(soft_qp *qp, uint32_t *share) noexcept nogil
# Whether the peer has counted records not yet read here, and the stream is not held. Needs no lock.
cdef bint shm_may_read(const shm_stream *shm) noexcept nogil
# Closes an unmapped descriptor of memory, in a closer thread where closing may take long. A waiting piece counts for
# the queue pair.
cdef void shm_close_passed(soft_qp *qp, int fd) noexcept nogil
# Closes the received descriptors, in a closer thread where closing may take long.
cdef void shm_drop_fds(soft_qp *qp) noexcept nogil
# Closes received descriptors of mapped files in this thread: the mappings hold the files, so these closes are short.
cdef void shm_close_mapped(shm_reader *reader) noexcept nogil

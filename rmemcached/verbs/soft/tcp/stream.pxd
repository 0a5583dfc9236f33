"""soft_iw: a queue pair's stream over a TCP socket, and the table of this fabric.

fabric.pxd says what each function of the table does, and with which locks held.
"""

cdef struct tcp_stream:              # soft_qp.fabric_state; guarded by soft_qp.lock
    uint8_t *start_frame             # MPA frame, or ready-to-receive FPDU, still to be sent; NULL: none
    uint32_t start_length
    uint32_t start_sent
    bint pausing                     # the stream is open, but FPDUs are not sent before stream.deadline
    bint same_core                   # the peer seems to run on this core
    stream cover                     # of all octets; without `calls` the octets go to the socket
    # The request of this end, as the initiator.
    bint want_crc
    bint enhanced
    bint peer_to_peer
    uint16_t pause                   # milliseconds
    # The peer's answer or request.
    bint refused
    uint16_t peer_ird
    uint16_t peer_ord
    uint8_t *peer_data               # initiator: private data of the reply
    uint32_t peer_length

# The tcp_stream of a queue pair.
cdef tcp_stream *tcp_of(const soft_qp *qp) noexcept nogil

# Follows stream_begin: returns the queue pair's state, cleared for a new stream, with qp.lock held. NULL: no memory, or
# the queue pair has left its state meanwhile; tcp_prepare has called stream_undo.
cdef tcp_stream *tcp_prepare(soft_qp *qp) noexcept nogil

# Attaches fd, under the cover unless NULL, to the prepared queue pair and sends the start-up frame. 0, or -1 with
# errno. Releases qp.lock, which is held.
cdef int tcp_attach(soft_qp *qp, int fd, stream *cover, bint initiator) noexcept nogil

# Sends as much of the start-up frame as the socket takes. If octets are left, sending goes on when the socket is
# writable. Needs qp.lock.
cdef void tcp_send_start(soft_qp *qp) noexcept nogil

# Reads into a buffer: with a single system call, or from the cover. Needs qp.lock.
cdef ssize_t tcp_read_buffer(soft_qp *qp, void *buffer, size_t room) noexcept nogil

# Fills the fabric's table, for soft_fill_tables.
cdef void tcp_fill_table() noexcept nogil

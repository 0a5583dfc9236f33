# What programs call on soft_iw0 beyond libibverbs: a queue pair gets its stream, a TCP socket, in MPA's roles.

cdef enum:
    SOFT_IW_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX  # octets of the longest MPA request or reply frame

cdef struct soft_iw_request:         # a parsed MPA Request frame (RFC 5044 7.1, RFC 6581)
    uint8_t revision                 # 1 or 2
    bint enhanced                    # S: ird and ord are the peer's
    bint crc                         # C
    bint peer_to_peer
    uint16_t ird
    uint16_t ord
    const uint8_t *private_data      # of the ULP; points into the parsed buffer
    size_t private_length
    size_t consumed                  # octets of the frame

cdef struct soft_iw_options:
    bint crc                         # ask for (initiator), or insist on (responder), CRC32c
    uint16_t ird                     # limit max_dest_rd_atomic and max_rd_atomic of the queue pair; 0: as there.
    uint16_t ord                     # An initiator with both 0 sends a plain revision 1 request: no negotiation
    # Initiator: sends a ready-to-receive frame, so that the responder need not wait for a message to send first.
    bint peer_to_peer
    # Initiator: milliseconds between the reply and the first FPDU. Linux' siw does not see what comes within its first
    # moments before more comes (docs/soft-rnic.md section 2).
    uint16_t pause
    const void *private_data         # of the ULP; may be NULL
    size_t private_length

cdef enum soft_iw_state:
    SOFT_IW_NONE                     # no stream yet
    SOFT_IW_STARTING                 # MPA request sent
    SOFT_IW_OPEN
    SOFT_IW_REFUSED                  # the peer has answered with a reject
    SOFT_IW_CLOSED

cdef struct soft_iw_stream:          # what became of a start-up
    soft_iw_state state
    bint crc
    uint16_t ird                     # of this side, as negotiated
    uint16_t ord
    uint16_t peer_ird                # as the peer said; 0 when it did not
    uint16_t peer_ord
    size_t private_length
    uint8_t private_data[MPA_PRIVATE_MAX]        # initiator: of the reply, or the reject

# The queue pair's side sends the MPA request (initiator). Asynchronous: progress does the rest. A refusal, a time-out
# of 10 s or a broken stream moves the queue pair to ERR and flushes it.
cdef int soft_iw_connect(ibv_qp *qp, int fd, const soft_iw_options *options) noexcept nogil

# The queue pair's side answers a request that was read from fd (responder): `received` octets, which start with the MPA
# request frame. Octets behind the frame are a protocol error (EPROTO), as for siw.
cdef int soft_iw_accept(ibv_qp *qp, int fd, const void *frame, size_t received,
                        const soft_iw_options *options) noexcept nogil

# Answers with R=1 (reject) on fd, best effort; fd stays the caller's.
cdef int soft_iw_reject(int fd, const void *frame, size_t received, const void *private_data,
                        size_t private_length) noexcept nogil

# Parses a request frame. 1: whole, out is filled; 0: more octets are needed; -1: not an acceptable MPA request
# (errno EPROTO).
cdef int soft_iw_parse_request(const void *buf, size_t received, soft_iw_request *out) noexcept nogil

cdef void soft_iw_query(ibv_qp *qp, soft_iw_stream *out) noexcept nogil

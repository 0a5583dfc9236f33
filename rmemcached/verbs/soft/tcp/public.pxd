"""Calls for programs on soft_iw0 beyond libibverbs: a queue pair gets its stream, over a TCP socket."""

cdef enum:
    SOFT_IW_REQUEST_MAX = MPA_START_SIZE + MPA_PRIVATE_MAX  # octets of the longest MPA Request or Reply frame

cdef struct soft_iw_request:         # a parsed MPA Request frame (RFC 5044 7.1, RFC 6581)
    uint8_t revision                 # 1 or 2
    bint enhanced                    # S: ird and ord are set
    bint crc                         # C
    bint peer_to_peer
    uint16_t ird
    uint16_t ord
    const uint8_t *private_data      # of the ULP, within the parsed buffer
    size_t private_length
    size_t consumed                  # octets of the frame

cdef struct soft_iw_options:
    bint crc                         # ask for (initiator), or insist on (responder), CRC32c
    # Limits of IRD and ORD, below the queue pair's max_dest_rd_atomic and max_rd_atomic; 0: these alone. An initiator
    # with both 0 sends a plain revision 1 request, and nothing is negotiated.
    uint16_t ird
    uint16_t ord
    # Initiator: send a ready-to-receive frame, so the responder may be the first to send a message.
    bint peer_to_peer
    # Initiator: milliseconds between the reply and the first FPDU. The kernel's siw overlooks an FPDU received in its
    # first moments until the next FPDU comes (docs/soft-rnic.md, section 2.1).
    uint16_t pause
    const void *private_data         # of the ULP; may be NULL
    size_t private_length
    # Over this stream, whose descriptor is the socket: TLS, after its handshake. A call that succeeds takes the stream
    # along with the socket. NULL: the socket's octets as they are.
    stream *cover

cdef enum soft_iw_state:
    SOFT_IW_NONE                     # no stream yet
    SOFT_IW_STARTING                 # MPA request sent
    SOFT_IW_OPEN
    SOFT_IW_REFUSED                  # the peer has answered with a reject
    SOFT_IW_CLOSED

cdef struct soft_iw_stream:          # state of a stream, and the results of its start-up
    soft_iw_state state
    bint crc
    uint16_t ird                     # of this side
    uint16_t ord
    uint16_t peer_ird                # announced by the peer; 0: not announced
    uint16_t peer_ord
    size_t private_length
    uint8_t private_data[MPA_PRIVATE_MAX]  # initiator: of the reply or reject

# Makes the queue pair the initiator: sends the MPA Request. Progress does the rest. A refusal, a broken stream, or no
# reply within 10 s moves the queue pair to ERR and flushes it.
cdef int soft_iw_connect(ibv_qp *qp, int fd, const soft_iw_options *options) noexcept nogil

# Makes the queue pair the responder: answers a Request frame that the program has read from fd, in `received` octets.
# Octets behind the frame are a protocol error (EPROTO), as they are for siw.
cdef int soft_iw_accept(ibv_qp *qp, int fd, const void *frame, size_t received,
                        const soft_iw_options *options) noexcept nogil

# Answers a Request frame with a reject (R=1). The stream stays the caller's.
cdef int soft_iw_reject(stream *s, const void *frame, size_t received, const void *private_data,
                        size_t private_length) noexcept nogil

# Parses a Request frame. 1: *out is set; 0: more octets are needed; -1 with EPROTO: not an acceptable MPA Request.
cdef int soft_iw_parse_request(const void *buf, size_t received, soft_iw_request *out) noexcept nogil

# The present state of the queue pair's stream.
cdef void soft_iw_query(ibv_qp *qp, soft_iw_stream *out) noexcept nogil

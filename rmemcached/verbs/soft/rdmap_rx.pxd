"""Receiving: the octets of the stream are parsed into FPDUs, checked, and placed. No octet from the peer is trusted.

Without CRC the payload of SENDs, WRITEs and READ responses goes from the stream straight to its target. Headers,
trailers, and payload received together with a header pass through the receive buffer. With CRC whole FPDUs pass through
the buffer, unless rx_may_place_early allows a direct placement.

A fabric receives in a loop: rx_prepare decides where the next octets go, the fabric reads them, rx_take parses them.
All functions need soft_qp.lock.
"""

cdef enum:
    RX_BUFFER = 16384
    RX_READ = 4096                   # octets asked for at an FPDU's start, at first
    RX_READ_MIN = 512                # while large FPDUs come in
    RX_BUFFER_CRC = 2 * (ULPDU_MAX + 1) + RX_READ
    RX_TURN = 1 << 20                # work in one turn of a queue pair; domain.pxd defines the unit
    RX_IOVECS = 96                   # of one reception

cdef enum:                           # rx_state.state
    RX_HEADER
    RX_PAYLOAD
    RX_TRAILER

cdef struct rx_state:                # soft_qp.rx; guarded by soft_qp.lock
    uint8_t *buffer
    uint32_t capacity
    uint32_t start                   # buffer[start:end] is still to be parsed
    uint32_t end
    uint32_t read_size               # octets asked for at an FPDU's start
    uint32_t need                    # octets needed before parsing can go on
    uint8_t state
    ddp_header header                # of the open FPDU
    uint8_t raw[HEADER_MAX]          # the same, as received
    uint32_t left                    # payload octets of the open FPDU still to come
    uint32_t trailer                 # octets of pad and CRC behind the payload of the open FPDU
    bint checked                     # the open FPDU's CRC was found right before any octet was placed
    uint32_t crc                     # if not checked: CRC state of the open FPDU's octets so far
    uint32_t segment                 # payload of the last tagged FPDU that did not end its message
    uint64_t to                      # WRITE: where the next octet goes
    uint32_t offset                  # SEND: octets of the message placed
    uint8_t send                     # opcode of the open SEND message
    uint32_t send_msn
    uint32_t read_msn

cdef struct rx_target:               # where payload goes
    iovec iov[RX_IOVECS]
    soft_mr *regions[RX_IOVECS]      # in use until the octets are placed
    int niov
    int nregions

cdef struct rx_reception:            # one read of the stream; on the stack of the receiving thread
    rx_target target                 # target.iov[0:niov] is the destination of the read
    rx_plan plan
    uint32_t direct                  # octets of payload of the open FPDU read straight to their target
    uint32_t room                    # octets of the last element, in the receive buffer
    uint32_t want                    # octets of all elements

# A queue pair has a receive buffer while a fabric receives, and as long as the buffer holds octets. The queue pairs of
# a domain share a spare buffer, which so stays in the processor's cache.

# Sets rx.buffer to the spare buffer or a new buffer, when a stream starts. Without memory sets it to NULL.
cdef void rx_get_buffer(soft_qp *qp) noexcept nogil
# Before receiving: gives the queue pair a buffer, if it has none. False: no memory, and the queue pair is in ERR.
cdef bint rx_borrow(soft_qp *qp) noexcept nogil
# After receiving: makes the queue pair's buffer the spare buffer if it is empty. With CRC the queue pair keeps its
# buffer.
cdef void rx_return(soft_qp *qp) noexcept nogil
# Prepares for a new stream. Message numbers stay: only a reset of the queue pair restarts them.
cdef void rx_open(soft_qp *qp) noexcept nogil

# Fills r.target with the memory for the next octets, about `most` in number. Then the fabric reads, and calls rx_take
# or rx_nothing. False: the queue pair is in error.
cdef bint rx_prepare(soft_qp *qp, rx_reception *r, uint32_t most) noexcept nogil
# Parses the n received octets, and ends the use of r. False: the queue pair is in error.
cdef bint rx_take(soft_qp *qp, rx_reception *r, size_t n) noexcept nogil
# Ends the use of r after a read that returned n <= 0. True: the read failed with EAGAIN, and the stream goes on. False:
# it failed otherwise or found the stream's end, and the queue pair is in ERR.
cdef bint rx_nothing(soft_qp *qp, rx_reception *r, ssize_t n) noexcept nogil
# Parses the content of the receive buffer. False: the queue pair is in error.
cdef bint rx_parse(soft_qp *qp) noexcept nogil

# Called for each received message: the first message in RTR makes IBV_EVENT_COMM_EST.
cdef void rx_established(soft_qp *qp) noexcept nogil
# Ends the stream with a Terminate of this error and moves the queue pair to ERR. soft_qp_fault then blames the peer,
# unless the error is TERM_LOCAL_CATASTROPHIC.
cdef void rx_fail(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil

# The rest is for predict.
# The region of the STag, for writing by this end, in use until rx_release. NULL: the memory may not be written, or the
# target has too many regions.
cdef soft_mr *rx_hold_region(soft_qp *qp, rx_target *target, uint32_t stag, uint64_t addr,
                             uint64_t length) noexcept nogil
# Adds [offset, offset + length) of a scatter list to a target. False: some of its memory may not be written.
cdef bint rx_scatter(soft_qp *qp, rx_target *target, const ibv_sge *sges, uint32_t count, uint32_t offset,
                     uint32_t length) noexcept nogil
# Ends the use of a target's regions.
cdef void rx_release(rx_target *target) noexcept nogil
# The oldest READ under way, or NULL.
cdef soft_swqe *rx_oldest_read(soft_qp *qp) noexcept nogil

# The next four are the steps of an FPDU, in order. False: the queue pair is in error.
# Checks rx.header by itself: versions, queue number, opcode, and the length of a READ request or Terminate. fpdu: the
# header as received, HEADER_MAX octets. If the header is wrong, this end's Terminate shows these octets to the peer.
cdef bint rx_check(soft_qp *qp, const uint8_t *fpdu) noexcept nogil
# Checks the rest of rx.header, such as the named memory, message number and receive.
cdef bint rx_begin_segment(soft_qp *qp) noexcept nogil
# Counts `placed` octets of the payload.
cdef void rx_advance(soft_qp *qp, uint32_t placed) noexcept nogil
# Checks the CRC. After the last FPDU of a message completes the message.
cdef bint rx_end_fpdu(soft_qp *qp, const uint8_t *trailer) noexcept nogil

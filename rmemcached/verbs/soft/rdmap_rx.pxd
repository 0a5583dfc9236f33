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
    uint32_t trailer                 # pad and CRC behind it
    bint checked                     # its CRC was right before any octet was placed
    uint32_t crc                     # else: CRC state of its placed octets
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
# a domain share a spare buffer, so it stays hot. rx_get_buffer sets rx.buffer, without memory to NULL.
cdef void rx_get_buffer(soft_qp *qp) noexcept nogil
# Before receiving: gives the queue pair a buffer, if it has none. False: no memory, and the queue pair is in error.
cdef bint rx_borrow(soft_qp *qp) noexcept nogil
# After receiving: takes an empty buffer from the queue pair.
cdef void rx_return(soft_qp *qp) noexcept nogil
# Prepares for a new stream. Message numbers stay: only a reset of the queue pair restarts them.
cdef void rx_open(soft_qp *qp) noexcept nogil

# Decides where the next octets go, about `most` of them. False: the queue pair is in error.
cdef bint rx_prepare(soft_qp *qp, rx_reception *r, uint32_t most) noexcept nogil
# Parses the n received octets. False: the queue pair is in error.
cdef bint rx_take(soft_qp *qp, rx_reception *r, size_t n) noexcept nogil
# The read gave n <= 0: errno, or the end of the stream. Returns whether the stream goes on.
cdef bint rx_nothing(soft_qp *qp, rx_reception *r, ssize_t n) noexcept nogil
# Parses the content of the receive buffer. False: the queue pair is in error.
cdef bint rx_parse(soft_qp *qp) noexcept nogil

# A message has come in. Makes an event if it is the first in RTR.
cdef void rx_established(soft_qp *qp) noexcept nogil
# Ends the stream with a Terminate of this error and moves the queue pair to ERR. soft_qp_fault then blames the peer,
# unless the error is TERM_LOCAL_CATASTROPHIC.
cdef void rx_fail(soft_qp *qp, uint32_t error, const uint8_t *segment, uint32_t received) noexcept nogil

# The rest is for predict.
# Adds [offset, offset + length) of a scatter list to a target. False: some of its memory may not be written.
cdef bint rx_scatter(soft_qp *qp, rx_target *target, const ibv_sge *sges, uint32_t count, uint32_t offset,
                     uint32_t length) noexcept nogil
cdef void rx_release(rx_target *target) noexcept nogil
# The oldest READ under way, or NULL.
cdef soft_swqe *rx_oldest_read(soft_qp *qp) noexcept nogil
# The steps of an FPDU: check versions, opcode and queue; check the rest of its header; count `placed` octets of its
# payload; check its trailer and finish. False: the queue pair is in error.
cdef bint rx_check(soft_qp *qp, const uint8_t *fpdu) noexcept nogil
cdef bint rx_begin_segment(soft_qp *qp) noexcept nogil
cdef void rx_advance(soft_qp *qp, uint32_t placed) noexcept nogil
cdef bint rx_end_fpdu(soft_qp *qp, const uint8_t *trailer) noexcept nogil

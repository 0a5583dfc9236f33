"""Prediction: while a long tagged message comes in, one read of the stream takes many FPDUs.

A message's FPDUs have the same size, and the sinks of READs are known. So rdmap_rx can plan, behind the open FPDU or
between two, where the next headers and payloads will be: it reads each payload straight to its target, and the octets
between two payloads into a gap. Then it parses what came, in order. Whatever is not where the plan has it is read back
and goes through the receive buffer, as if it had been received there.

Payload is thus placed before its header is checked. So only memory is used whose content the peer decides anyway: what
is left of the sinks of READs under way, and regions registered with SOFT_ACCESS_SCRATCH.

With CRC, payload for such memory need not wait for its CRC either: the READ does not complete, and the WRITE is not
followed by anything, before the CRC is right. All other payload is placed after the CRC of its FPDU was checked.

All functions need soft_qp.lock.
"""

cdef enum:
    PREDICTED_MAX = 32
    PREDICTED_BYTES = 512 << 10
    GAP_MAX = FPDU_TRAILER_MAX + TAGGED_HEADER

cdef struct rx_predicted:            # an FPDU that is expected
    uint64_t to
    uint32_t stag
    uint32_t payload
    uint32_t gap                     # octets of the trailer before it and of its header
    int iov                          # index of the gap in rx_target.iov

cdef struct rx_plan:
    rx_predicted fpdus[PREDICTED_MAX]
    uint32_t count
    uint32_t size                    # octets of all of them, gaps included
    uint32_t most                    # with that size the plan is full
    uint32_t trailer                 # of the last one
    bint ends                        # the message, or the sink, ends with the last one
    uint8_t gaps[PREDICTED_MAX][GAP_MAX]

# Between two FPDUs: whether more of a long tagged message is to come, so that prediction may be possible.
cdef bint rx_within_message(const soft_qp *qp) noexcept nogil
# Plans between two FPDUs of a message. False: the next header has to be read first.
cdef bint rx_predict_between(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Plans behind the open FPDU, whose payload has its target already. The plan may be empty.
cdef void rx_predict(soft_qp *qp, rx_target *target, rx_plan *plan) noexcept nogil
# Parses the `left` octets that came behind the payload of the open FPDU. False: the queue pair is in error.
cdef bint rx_take_predicted(soft_qp *qp, const rx_target *target, const rx_plan *plan, uint32_t left) noexcept nogil

# With CRC: whether the payload behind a header may be placed before the CRC is known.
cdef bint rx_may_place_early(soft_qp *qp, const ddp_header *h) noexcept nogil
# With CRC: adds octets that were placed, from iov[index] on.
cdef void rx_add_crc(soft_qp *qp, const rx_target *target, int index, uint32_t length) noexcept nogil
